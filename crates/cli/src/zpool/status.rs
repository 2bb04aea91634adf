//! `zpool status`: how pools and their devices are; as `millpond status` also how the daemon is that serves them.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};
use server::{
    api::{Device, Pool, Sweep},
    logs,
    pool::{
        props::value::{bytes, count},
        status::ERROR_LOG_MAX,
        text::{PAD_MAX, clean},
    },
    view,
};

use crate::{
    args::ZpoolStatus,
    ask::Ask,
    context::{Context, print},
    json, memory, repeat,
};

/// Narrowest name column.
const NAME_WIDTH_MIN: usize = 10;
/// Kinds that have an id and no place in the picture.
const HIDDEN: [&str; 2] = ["hole", "indirect"];

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// `zpool status`, which says what OpenZFS's does and no more.
    Pools,
    /// `millpond status`.
    Everything,
}

pub(crate) async fn run(args: ZpoolStatus, about: About, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZpoolStatus { exact: args.exact || args.numbers.integers, ..args };
    let asked = repeat::parse(&args.words).map_err(|wrong| context.usage(&["zpool", "status"], &wrong))?;
    let ask = Ask::new(context).await?;
    let mut report = 0;
    loop {
        if !args.json {
            print(&repeat::stamp(args.timestamp))?;
        }
        let code = once(&ask, asked.names, &args, about).await?;
        report += 1;
        let Some(interval) = asked.interval.filter(|_| asked.count.is_none_or(|count| report < count)) else {
            return Ok(code);
        };
        tokio::time::sleep(interval).await;
        if !args.json {
            print("\n")?;
        }
    }
}

async fn once(ask: &Ask, names: &[String], args: &ZpoolStatus, about: About) -> anyhow::Result<ExitCode> {
    let answer = ask.health(names).await?;
    let memory = match about {
        About::Pools => None,
        About::Everything => ask.memory().await?,
    };
    let shown: Vec<&Pool> = answer.found.iter().filter(|pool| !args.unhealthy || !is_healthy(pool)).collect();
    if !names.is_empty() && answer.found.is_empty() {
        return Ok(answer.finish());
    }
    if args.json {
        let called = || answer.found.iter().map(|pool| &pool.name);
        let entry = |pool: &&Pool| (json::key(&pool.name, &pool.guid, called()), object(pool, args));
        let entries = shown.iter().map(entry).collect();
        let mut sections = vec![("pools", Value::Object(json::numbers(entries, args.numbers)))];
        if let Some(memory) = &memory {
            sections.push(("memory", serde_json::to_value(memory)?));
        }
        print(&json::sections("zpool status", sections))?;
        return Ok(answer.finish());
    }
    let mut texts: Vec<String> = shown.iter().map(|pool| text(pool, args)).collect();
    texts.extend(memory.as_ref().map(memory::brief));
    print(&texts.join("\n"))?;
    match (names, &answer.found[..]) {
        ([], []) => say!("no pools available"),
        // Of what could not be looked at nobody knows that.
        ([], _) if args.unhealthy && shown.is_empty() && answer.is_whole() => {
            print("all pools are healthy\n")?;
        }
        ([], _) => {}
        // Of what a daemon has neither.
        (_, found) if args.unhealthy && !ask.misses_a_daemon() => {
            for pool in found.iter().filter(|pool| is_healthy(pool)) {
                print(&format!("pool '{}' is healthy\n", pool.name))?;
            }
        }
        _ => {}
    }
    Ok(answer.finish())
}

/// Whether nothing is wrong with a pool. Of one whose error log was not read nobody knows that.
fn is_healthy(pool: &Pool) -> bool {
    !pool.errors_unread && pool.problem.as_ref().is_none_or(|problem| problem.harmless)
}

/// What `zpool status` prints about one pool.
fn text(pool: &Pool, args: &ZpoolStatus) -> String {
    let mut out = format!("  pool: {}\n state: {}\n", pool.name, pool.state);
    if let Some(problem) = &pool.problem {
        line(&mut out, format_args!("status: {}", problem.status));
        if let Some(action) = &problem.action {
            line(&mut out, format_args!("action: {action}"));
        }
        if let Some(see) = &problem.see {
            line(&mut out, format_args!("   see: {see}"));
        }
    }
    if let Some(why) = &pool.suspended {
        line(&mut out, format_args!("   why: {}", why.replace('\n', "\n\t")));
    }
    if let Some(why) = &pool.read_only {
        line(&mut out, format_args!("  note: the pool is open read-only: {why}"));
    }
    if let Some(scan) = &pool.scan {
        line(&mut out, format_args!("  scan: {scan}"));
    }
    if let Some(removal) = &pool.removal {
        line(&mut out, format_args!("remove: {removal}"));
    }
    if let Some(expansion) = &pool.expansion {
        line(&mut out, format_args!("expand: {expansion}"));
    }
    for warning in warnings(pool) {
        line(&mut out, format_args!("  sync: {warning}"));
    }
    for replayed in replayed(pool) {
        line(&mut out, format_args!("   log: {replayed}"));
    }
    out.push_str("config:\n\n");
    let mut widest = 0;
    let (cache, spares) = (wanted(&pool.cache, args), wanted(&pool.spares, args));
    let everything = [&pool.root].into_iter().chain(cache.iter().copied()).chain(spares.iter().copied());
    everything
        .for_each(|device| measure(device, if device.kind == "root" { 0 } else { 2 }, args, &mut widest));
    let width = widest.clamp(NAME_WIDTH_MIN, PAD_MAX);
    let slow = if args.slow { format!(" {:>5}", "SLOW") } else { String::new() };
    line(
        &mut out,
        format_args!("\t{:width$}  {:8} {:>5} {:>5} {:>5}{slow}", "NAME", "STATE", "READ", "WRITE", "CKSUM"),
    );
    row(&mut out, &pool.root, 0, width, args);
    let tops = |class: &'static str| {
        pool.root.children.iter().filter(move |top| is_wanted(top, args) && top.class == class)
    };
    tops("normal").for_each(|top| tree(&mut out, top, 2, width, args));
    for (class, title) in [("dedup", "dedup"), ("special", "special"), ("log", "logs")] {
        if tops(class).next().is_some() {
            line(&mut out, format_args!("\t{title}\t"));
        }
        tops(class).for_each(|top| tree(&mut out, top, 2, width, args));
    }
    if !cache.is_empty() {
        out.push_str("\tcache\n");
    }
    cache.iter().for_each(|device| row(&mut out, device, 2, width, args));
    if !spares.is_empty() {
        out.push_str("\tspares\n");
    }
    for spare in spares {
        let (state, name) = (&spare.state, args.names.of(spare));
        match &spare.note {
            Some(note) => line(&mut out, format_args!("\t  {name:0$}  {state:8}  {note}", width - 2)),
            None => line(&mut out, format_args!("\t  {name:0$}  {state:8}", width - 2)),
        }
    }
    out.push('\n');
    let at_least = if pool.errors >= ERROR_LOG_MAX as u64 { "at least " } else { "" };
    match pool.errors {
        // A pool that is not open keeps its log to itself.
        _ if pool.txg == 0 => {}
        // Why, is among the problems.
        _ if pool.errors_unread => out.push_str("errors: List of errors unavailable\n"),
        0 => out.push_str("errors: No known data errors\n"),
        errors if !args.verbose => {
            line(&mut out, format_args!("errors: {at_least}{errors} data errors, use '-v' for a list"));
        }
        _ => {
            out.push_str("errors: Permanent errors have been detected in the following files:\n\n");
            for lost in &pool.lost {
                line(&mut out, format_args!("        {}", clean(lost)));
                for bytes in pool.lost_bytes.iter().filter(|bytes| bytes.object == *lost) {
                    let last = bytes.offset.saturating_add(bytes.length.saturating_sub(1));
                    line(&mut out, format_args!("            bytes {}-{last}", bytes.offset));
                }
            }
            if pool.lost_more > 0 {
                line(
                    &mut out,
                    format_args!(
                        "\n        and {at_least}{} blocks more, of these and perhaps of others, that are too many to be listed:\n\
                         \x20       restore what is named as a whole, and scrub again for the rest",
                        pool.lost_more
                    ),
                );
            }
        }
    }
    out
}

/// What a pool promises less than its clients think.
fn warnings(pool: &Pool) -> Vec<String> {
    let what = "sync=disabled: a power cut takes the last seconds of what its clients wrote, flushed or not";
    pool.sync_disabled.iter().map(|volume| format!("'{volume}' has {what}")).collect()
}

/// What was done after a crash, and what could not be done.
fn replayed(pool: &Pool) -> Vec<String> {
    let Some(found) = &pool.replayed else { return Vec::new() };
    logs::replayed_line(found).into_iter().chain(found.notes.iter().cloned()).collect()
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes any text");
    out.push('\n');
}

fn is_shown(device: &Device) -> bool {
    !HIDDEN.contains(&device.kind.as_str())
}

/// Whether a device has its line: with `-e` only if it or one below it is not as it should be.
fn is_wanted(device: &Device, args: &ZpoolStatus) -> bool {
    is_shown(device) && (!args.unhealthy_devices || !is_well(device))
}

/// Spares and cache devices likewise.
fn wanted<'a>(devices: &'a [Device], args: &ZpoolStatus) -> Vec<&'a Device> {
    devices.iter().filter(|device| is_wanted(device, args)).collect()
}

fn is_well(device: &Device) -> bool {
    matches!(device.state.as_str(), "ONLINE" | "AVAIL")
        && device.read_errors + device.write_errors + device.checksum_errors == 0
        && !device.repairing
        && device.children.iter().all(is_well)
}

fn measure(device: &Device, depth: usize, args: &ZpoolStatus, widest: &mut usize) {
    *widest = (*widest).max(depth + args.names.of(device).chars().count());
    for child in device.children.iter().filter(|child| is_wanted(child, args)) {
        measure(child, depth + 2, args, widest);
    }
}

fn tree(out: &mut String, device: &Device, depth: usize, width: usize, args: &ZpoolStatus) {
    row(out, device, depth, width, args);
    let children = device.children.iter().filter(|child| is_wanted(child, args));
    children.for_each(|child| tree(out, child, depth + 2, width, args));
}

fn row(out: &mut String, device: &Device, depth: usize, width: usize, args: &ZpoolStatus) {
    let number = |number: u64| if args.exact { number.to_string() } else { count(number) };
    let name_width = width.saturating_sub(depth);
    let text = format!(
        "\t{:depth$}{:name_width$}  {:8} {:>5} {:>5} {:>5}",
        "",
        args.names.of(device),
        device.state,
        number(device.read_errors),
        number(device.write_errors),
        number(device.checksum_errors),
    );
    let slow = match (device.slow_ios, args.slow) {
        (_, false) => String::new(),
        (Some(slow), true) => format!(" {:>5}", number(slow)),
        (None, true) => format!(" {:>5}", "-"),
    };
    let text = text + &slow;
    let sits_out = (device.sits_out && args.slow).then_some("(slow: not read from while others can answer)");
    let is_swept = json::is_swept(device);
    let initialize = sweep(
        device.initialize.as_ref(),
        args.initialize && is_swept,
        ["initializ", "initialized", "uninitialized"],
    );
    let trim = sweep(device.trim.as_ref(), args.trim && is_swept, ["trimm", "trimmed", "untrimmed"]);
    let notes = [device.note.as_deref(), sits_out, initialize.as_deref(), trim.as_deref()];
    let note = notes.into_iter().flatten().collect::<Vec<_>>().join("  ");
    let note = Some(note).filter(|note| !note.is_empty());
    match note {
        Some(note) => line(out, format_args!("{text}  {note}")),
        None => line(out, format_args!("{text}")),
    }
}

/// `(45% initialized, started at …)`; without `-i` only that it is at work.
fn sweep(sweep: Option<&Sweep>, is_asked: bool, [stem, done, never]: [&str; 3]) -> Option<String> {
    match (sweep, is_asked) {
        (Some(sweep), false) if sweep.state == "ACTIVE" => Some(format!("({stem}ing)")),
        (_, false) => None,
        (None, true) => Some(format!("({never})")),
        (Some(sweep), true) => {
            let percent = (u128::from(sweep.done) * 100).checked_div(sweep.total.into()).unwrap_or(100);
            let word = match sweep.state.as_str() {
                "ACTIVE" => "started",
                "SUSPENDED" => "suspended, started",
                "CANCELED" => return Some(format!("({never})")),
                _ => "completed",
            };
            Some(format!("({percent}% {done}, {word} at {})", view::moment(sweep.when)))
        }
    }
}

/// What `zpool status -j` says about one pool.
fn object(pool: &Pool, args: &ZpoolStatus) -> Value {
    let mut object: Map<String, Value> = json::pool(pool, false);
    if let Some(problem) = &pool.problem {
        json::problem(problem, &mut object);
    }
    if let Some(scan) = &pool.scan {
        object.insert("scan".to_owned(), json!(scan));
    }
    if let Some(scan) = &pool.scan_stats {
        object.insert("scan_stats".to_owned(), json::scan(scan, args.exact));
    }
    if let Some(scrub) = &pool.error_scrub {
        object.insert("error_scrub".to_owned(), json::error_scrub(scrub, args.exact));
    }
    if let Some(why) = &pool.suspended {
        object.insert("suspended".to_owned(), json!(why));
    }
    if let Some(why) = &pool.read_only {
        object.insert("read_only".to_owned(), json!(json::one_line(why)));
    }
    let exact = args.exact;
    let number = move |number: u64| if exact { number.to_string() } else { bytes(number) };
    let counter = move |number: u64| if exact { number.to_string() } else { count(number) };
    let name = |device: &Device| args.names.of(device);
    let asked =
        json::Asked { slow: args.slow, initialize: args.initialize, trim: args.trim, exact: args.exact };
    let one = |device: &Device| json::device(device, &name, &number, &counter, asked);
    // As in the text, only devices for data stand below the root; the others have a section each.
    let of_class = |class: &str| {
        let children = pool.root.children.iter().filter(|top| is_wanted(top, args) && top.class == class);
        Device { children: children.cloned().collect(), ..pool.root.clone() }
    };
    let root = of_class("normal");
    object.insert("vdevs".to_owned(), json::devices([&root].into_iter(), &one, &name));
    for (class, key) in [("dedup", "dedup"), ("special", "special"), ("log", "logs")] {
        let tops = of_class(class).children;
        if !tops.is_empty() {
            object.insert(key.to_owned(), json::devices(tops.iter(), &one, &name));
        }
    }
    for (key, devices) in [("l2cache", &pool.cache), ("spares", &pool.spares)] {
        let devices = wanted(devices, args);
        if !devices.is_empty() {
            object.insert(key.to_owned(), json::devices(devices.into_iter(), &one, &name));
        }
    }
    object.insert("error_count".to_owned(), json!((!pool.errors_unread).then(|| counter(pool.errors))));
    if !pool.sync_disabled.is_empty() {
        object.insert("sync_disabled".to_owned(), json!(pool.sync_disabled));
        object.insert("warnings".to_owned(), json!(warnings(pool)));
    }
    if let Some(replayed) = &pool.replayed {
        object.insert("replayed".to_owned(), json!(replayed));
    }
    if args.verbose && !pool.lost.is_empty() {
        object.insert("errlist".to_owned(), json!(pool.lost));
        if !pool.lost_bytes.is_empty() {
            object.insert("lost_bytes".to_owned(), json!(pool.lost_bytes));
        }
        if pool.lost_more > 0 {
            object.insert("errlist_more".to_owned(), json!(pool.lost_more));
        }
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &str) -> ZpoolStatus {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            status: ZpoolStatus,
        }
        Program::parse_from(["status"].into_iter().chain(words.split_whitespace())).status
    }

    /// A pool whose devices had not answered yet, or whose error log could not be read, had "No known data errors" and "is
    /// healthy".
    #[test]
    fn nobody_says_that_a_pool_has_lost_nothing_before_its_error_log_was_read() {
        let mut pool: Pool = serde_json::from_value(json!({
            "name": "tank", "guid": "7", "state": "ONLINE", "txg": 61, "properties": [], "errors": 0, "errors_unread": true,
            "root": {
                "name": "tank", "kind": "root", "guid": "7", "class": "normal", "state": "ONLINE", "present": true,
                "read_errors": 0, "write_errors": 0, "checksum_errors": 0,
            },
        }))
        .unwrap();
        for words in ["", "-v"] {
            let text = text(&pool, &args(words));
            assert!(text.ends_with("\nerrors: List of errors unavailable\n"), "{text}");
        }
        assert!(!is_healthy(&pool) && object(&pool, &args("-j"))["error_count"].is_null());
        pool.errors_unread = false;
        assert!(text(&pool, &args("")).ends_with("\nerrors: No known data errors\n"));
        assert!(is_healthy(&pool));
        assert_eq!(object(&pool, &args("-j"))["error_count"], "0");
    }

    /// What is listed was taken for all that is lost, and restored to the byte.
    #[test]
    fn a_list_of_what_is_lost_says_what_it_leaves_out() {
        let mut pool: Pool = serde_json::from_value(json!({
            "name": "tank", "guid": "7", "state": "ONLINE", "txg": 61, "properties": [], "errors": 1501,
            "lost": ["tank/a:<0x1>"], "lost_more": 501,
            "root": {
                "name": "tank", "kind": "root", "guid": "7", "class": "normal", "state": "ONLINE", "present": true,
                "read_errors": 0, "write_errors": 0, "checksum_errors": 0,
            },
        }))
        .unwrap();
        let said = text(&pool, &args("-v"));
        let end = "        tank/a:<0x1>\n\n        and 501 blocks more, of these and perhaps of others, that are too many to \
                   be listed:\n        restore what is named as a whole, and scrub again for the rest\n";
        assert!(said.ends_with(end), "{said}");
        assert_eq!(object(&pool, &args("-j -v"))["errlist_more"], 501);
        // No more of a log is read.
        pool.errors = ERROR_LOG_MAX as u64;
        let said = text(&pool, &args("-v"));
        assert!(said.contains("\n        and at least 501 blocks more, of these and perhaps"), "{said}");
        let said = text(&pool, &args(""));
        assert!(said.ends_with("\nerrors: at least 100000 data errors, use '-v' for a list\n"), "{said}");
        pool.lost_more = 0;
        assert!(text(&pool, &args("-v")).ends_with("        tank/a:<0x1>\n"));
        assert!(object(&pool, &args("-j -v")).get("errlist_more").is_none());
    }
}
