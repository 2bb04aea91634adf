//! `zpool iostat`: what the devices of pools do, in the columns and histograms of OpenZFS.
//!
//! The process that has a pool open counts ([`server::iostat`]): the daemon, or without one this command, which then shows
//! what it took to open the pool. The first report is since the pool was opened, per second; later ones are of the
//! interval. Columns and their meaning: docs/format/arc.md §5.3.

mod histogram;
mod object;
mod rows;

use std::{collections::BTreeMap, io::IsTerminal as _, process::ExitCode, sync::Arc};

use server::{
    api::{
        Device,
        iostat::{IostatList, PoolIo},
        share::SilentPool,
    },
    client::Client,
    host::{Foreign, Settings, absent, chain},
    iostat,
    pool::{Pool, text::PAD_MAX, vdev::Tallied},
    state::Remembered,
    view,
};

use super::finish;
use crate::{
    args::ZpoolIostat,
    context::{Context, Daemon, FAILED, print},
    repeat,
};

/// Lines between two headers on a terminal.
const HEADER_EVERY: usize = 20;
/// Kinds that have an id and no place in the picture.
const HIDDEN: [&str; 2] = ["hole", "indirect"];

pub(crate) async fn run(args: ZpoolIostat, context: &Context) -> anyhow::Result<ExitCode> {
    let usage = |wrong: &str| context.usage(&["zpool", "iostat"], wrong);
    if (args.latency_histogram || args.size_histogram) && (args.latency || args.queues) {
        return Err(usage("histograms (-r, -w) cannot be shown with -l or -q").into());
    }
    let asked = repeat::parse(&args.words).map_err(|wrong| usage(&wrong))?;
    let (mut source, mut failures) = Source::find(context, asked.names).await?;
    let IostatList { pools: mut last, problems, away } = source.look().await?;
    if asked.names.is_empty() {
        away.iter().for_each(|pool| say!("{}", pool.problem));
        let is_other = |problem: &String| away.iter().all(|pool| pool.problem != *problem);
        failures.extend(problems.into_iter().filter(is_other));
    }
    let mut unknown = Vec::new();
    let wanted = Wanted::of(&last, &away, asked.names, &mut unknown);
    let all_known = unknown.is_empty();
    failures.append(&mut unknown);
    if last.is_empty() && asked.names.is_empty() {
        if away.is_empty() {
            say!("no pools available");
        }
        return Ok(finish(&failures));
    }
    failures.iter().for_each(|failure| say!("{failure}"));
    if !all_known {
        return Ok(ExitCode::from(FAILED));
    }
    let (mut reports, mut lines) = (0_u64, 0);
    // What was counted since each pool was opened; `-y` leaves it out.
    let mut shown = (!args.skip || asked.interval.is_none()).then(|| last.clone());
    let mut span = Span::SinceOpened;
    loop {
        if let Some(pools) = shown.take() {
            let is_due = reports == 0
                || (!args.header_once
                    && (args.verbose || (std::io::stdout().is_terminal() && lines >= HEADER_EVERY)));
            if is_due {
                lines = 0;
            }
            let text = report(&pools, &wanted, &args, span, is_due);
            lines += text.lines().count();
            print(&text)?;
            reports += 1;
        }
        let is_last = asked.count.map_or(asked.interval.is_none(), |count| reports >= count);
        let Some(interval) = asked.interval.filter(|_| !is_last) else { break };
        tokio::time::sleep(interval).await;
        let now = source.look().await?.pools;
        (shown, span) = (Some(now.iter().map(|pool| since(pool, &last)).collect()), Span::Interval);
        last = now;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// What a report is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// The time since each pool was opened, which may be this command's own and too short for rates.
    SinceOpened,
    /// As long as was asked for.
    Interval,
}

/// Who counts.
enum Source {
    Daemon(Client),
    /// Pools that no daemon has, opened for this, and those that are not there or cannot be.
    Here(Vec<(Arc<Pool>, bool)>, Vec<SilentPool>),
}

impl Source {
    /// The daemon, if it has all the pools that are meant; else those of them that are found here.
    async fn find(context: &Context, names: &[String]) -> anyhow::Result<(Self, Vec<String>)> {
        let missed = match context.daemon().await? {
            Daemon::Answers(daemon) => return Ok((Self::Daemon(daemon), Vec::new())),
            Daemon::Missed(sentence, remedy) => {
                Some(format!("{sentence}: nothing is known of what it does\n{remedy}"))
            }
            Daemon::Absent => None,
        };
        let known = context.places(&[]).all().await?;
        let (mut pools, mut failures) = (Vec::new(), known.problems);
        failures.extend(missed);
        let absent = |pool: &Remembered| SilentPool { pool: pool.name.clone(), problem: absent(pool) };
        let mut away: Vec<SilentPool> = known.absent.iter().map(absent).collect();
        let is_named = |name: &str| names.iter().any(|asked| asked == name);
        let some_named = known.pools.iter().any(|(candidate, _)| is_named(&candidate.name));
        for (candidate, remembered) in &known.pools {
            if some_named && !is_named(&candidate.name) {
                continue;
            }
            let settings = Settings { foreign: Foreign::Warn, ..Settings::default() };
            match server::host::open(candidate, remembered.as_ref(), &settings).await {
                Ok(opened) => {
                    opened.notes.iter().for_each(|note| say!("warning: {note}"));
                    let is_writable =
                        remembered.as_ref().is_some_and(|pool| !pool.read_only && pool.txg.is_none());
                    pools.push((opened.pool, is_writable));
                }
                Err(error) => away.push(SilentPool { pool: candidate.name.clone(), problem: chain(&error) }),
            }
        }
        Ok((Self::Here(pools, away), failures))
    }

    async fn look(&mut self) -> anyhow::Result<IostatList> {
        match self {
            Self::Daemon(daemon) => Ok(daemon.iostat(None).await?),
            Self::Here(pools, away) => {
                let mut found = IostatList { away: away.clone(), ..IostatList::default() };
                for (pool, is_writable) in pools {
                    found.pools.push(iostat::of(pool, view::pool(pool, !*is_writable).await));
                }
                Ok(found)
            }
        }
    }
}

/// What is to be shown.
#[derive(Debug, Default)]
struct Wanted {
    /// Guids of pools; all if there is nothing else.
    pools: Vec<String>,
    /// Guids of devices, in the order they were named.
    devices: Vec<String>,
    all: bool,
}

impl Wanted {
    /// Each name is a pool, or a device as `zpool status` names it: of the first pool named, if one was.
    fn of(pools: &[PoolIo], away: &[SilentPool], names: &[String], failures: &mut Vec<String>) -> Self {
        let mut wanted = Self { all: names.is_empty(), ..Self::default() };
        for name in names {
            if let Some(pool) = pools.iter().find(|pool| pool.name == *name || pool.guid == *name) {
                wanted.pools.push(pool.guid.clone());
                continue;
            }
            if let Some(pool) = away.iter().find(|pool| pool.pool == *name) {
                failures.push(pool.problem.clone());
                continue;
            }
            let among =
                pools.iter().filter(|pool| wanted.pools.is_empty() || wanted.pools.contains(&pool.guid));
            let found =
                among.flat_map(|pool| [&pool.root].into_iter().chain(&pool.cache)).find_map(|device| {
                    find(device, &|device| {
                        device.name == *name || device.guid == *name || device.path.as_deref() == Some(name)
                    })
                });
            match found {
                Some(device) => wanted.devices.push(device.guid.clone()),
                None if wanted.pools.is_empty() => {
                    failures.push(format!("cannot open '{name}': no such pool or device"));
                }
                None => failures.push(format!("cannot open '{name}': no such device in the pool")),
            }
        }
        wanted
    }
}

/// The first device that is meant, from `device` down.
fn find<'a>(device: &'a Device, is_it: &dyn Fn(&Device) -> bool) -> Option<&'a Device> {
    if is_it(device) {
        return Some(device);
    }
    device.children.iter().find_map(|child| find(child, is_it))
}

/// What happened since an earlier look; of what was not there then, all.
fn since(now: &PoolIo, before: &[PoolIo]) -> PoolIo {
    // One that was opened anew began at nothing, however long ago that is.
    let is_same = |pool: &&PoolIo| pool.guid == now.guid && pool.opened_ns == now.opened_ns;
    let Some(old) = before.iter().find(is_same) else { return now.clone() };
    let mut before = BTreeMap::new();
    [&old.root].into_iter().chain(&old.cache).for_each(|device| gather(device, &mut before));
    let mut happened = now.clone();
    [&mut happened.root].into_iter().chain(&mut happened.cache).for_each(|device| subtract(device, &before));
    happened
}

/// What counts, by guid: a disk may stand elsewhere by the next look.
fn gather<'a>(device: &'a Device, found: &mut BTreeMap<&'a str, &'a Tallied>) {
    if device.children.is_empty() {
        found.extend(device.io.as_ref().map(|io| (device.guid.as_str(), io)));
    }
    device.children.iter().for_each(|child| gather(child, found));
}

/// What has devices below did what these did: what it is told to have done is of those that are there, and so becomes less
/// when one leaves.
fn subtract(device: &mut Device, before: &BTreeMap<&str, &Tallied>) {
    device.children.iter_mut().for_each(|child| subtract(child, before));
    let Some(now) = &device.io else { return };
    if device.children.is_empty() {
        if let Some(old) = before.get(device.guid.as_str()) {
            device.io = Some(now.since(old));
        }
        return;
    }
    let mut all = Tallied::default();
    device.children.iter().filter_map(|child| child.io.as_ref()).for_each(|io| all.add(io));
    device.io = Some(all);
}

/// Whether a device has its line.
fn is_shown(device: &Device) -> bool {
    !HIDDEN.contains(&device.kind.as_str())
}

/// What a device did.
fn work(device: &Device) -> Tallied {
    device.io.clone().unwrap_or_default()
}

/// One report.
fn report(pools: &[PoolIo], wanted: &Wanted, args: &ZpoolIostat, span: Span, with_header: bool) -> String {
    let pools: Vec<&PoolIo> = pools
        .iter()
        .filter(|pool| wanted.all || !wanted.devices.is_empty() || wanted.pools.contains(&pool.guid))
        .collect();
    let devices: Vec<&Device> = wanted
        .devices
        .iter()
        .filter_map(|guid| {
            let tops = pools.iter().flat_map(|pool| [&pool.root].into_iter().chain(&pool.cache));
            tops.into_iter().find_map(|device| find(device, &|device| device.guid == *guid))
        })
        .collect();
    let mut out = String::new();
    if !args.json {
        out.push_str(&repeat::stamp(args.timestamp));
    }
    match () {
        () if args.json => out.push_str(&object::line(&pools, &devices, args)),
        () if args.latency_histogram || args.size_histogram => {
            histogram::render(&mut out, &pools, &devices, args)
        }
        () => rows::render(&mut out, &pools, &devices, args, span, with_header),
    }
    out
}

/// Devices in the order and depth in which they are shown, and the titles of their sections.
enum Line<'a> {
    Device(&'a Device, usize),
    Section(&'static str),
}

/// A pool and, if they are wanted, the devices below it.
fn lines(pool: &PoolIo, verbose: bool) -> Vec<Line<'_>> {
    let mut found = vec![Line::Device(&pool.root, 0)];
    if !verbose {
        return found;
    }
    for (class, title) in
        [("normal", None), ("dedup", Some("dedup")), ("special", Some("special")), ("log", Some("logs"))]
    {
        let mut tops = pool.root.children.iter().filter(|top| is_shown(top) && top.class == class).peekable();
        if tops.peek().is_some() {
            found.extend(title.map(Line::Section));
        }
        tops.for_each(|top| descend(top, 2, &mut found));
    }
    if !pool.cache.is_empty() {
        found.push(Line::Section("cache"));
    }
    pool.cache.iter().for_each(|device| descend(device, 2, &mut found));
    found
}

fn descend<'a>(device: &'a Device, depth: usize, found: &mut Vec<Line<'a>>) {
    found.push(Line::Device(device, depth));
    device.children.iter().for_each(|child| descend(child, depth + 2, found));
}

/// How wide the column of names is.
fn name_width(pools: &[&PoolIo], devices: &[&Device], args: &ZpoolIostat) -> usize {
    let of = |device: &Device, depth: usize| depth + args.names.of(device).chars().count();
    let named = devices.iter().map(|device| of(device, 0)).max();
    let all = pools.iter().flat_map(|pool| lines(pool, args.verbose)).map(|line| match line {
        Line::Device(device, depth) => of(device, depth),
        Line::Section(title) => title.len(),
    });
    let widest = if devices.is_empty() { all.max() } else { named };
    widest.unwrap_or(0).clamp(10, PAD_MAX)
}

/// A time as OpenZFS shortens it: whole numbers, `-` for none.
fn time(nanos: u64, exact: bool) -> String {
    match nanos {
        0 => "-".to_owned(),
        nanos if exact => nanos.to_string(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{}us", nanos / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", nanos / 1_000_000),
        _ => format!("{}s", nanos / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that had been open for longer than the one before was taken for that one: what it did was less, and often nothing.
    #[test]
    fn of_a_pool_that_was_opened_anew_all_is_shown() {
        let at = |opened_ns: u64, seconds: u64, reads: u64| {
            let io =
                Tallied { age_ns: seconds * 1_000_000_000, operations: [reads, 0], ..Tallied::default() };
            let root = serde_json::json!({
                "name": "tank", "kind": "root", "guid": "7", "class": "normal", "state": "ONLINE", "present": true,
                "read_errors": 0, "write_errors": 0, "checksum_errors": 0, "io": io,
            });
            let root = serde_json::from_value(root).unwrap();
            PoolIo { name: "tank".into(), guid: "7".into(), opened_ns, root, cache: Vec::new() }
        };
        let reads = |before: PoolIo, now: PoolIo| {
            let happened = work(&since(&now, &[before]).root);
            (happened.operations[0], happened.age_ns / 1_000_000_000)
        };
        assert_eq!(reads(at(1, 5, 300), at(1, 65, 400)), (100, 60));
        assert_eq!(reads(at(1, 5, 300), at(2, 50, 400)), (400, 50));
        // Of older daemons.
        assert_eq!(reads(at(0, 50, 300), at(0, 5, 400)), (400, 5));
    }

    fn device(guid: &str, reads: u64, children: Vec<Device>) -> Device {
        let io = Tallied { age_ns: reads, operations: [reads, 0], ..Tallied::default() };
        let device = serde_json::json!({
            "name": guid, "kind": "disk", "guid": guid, "class": "normal", "state": "ONLINE", "present": true,
            "read_errors": 0, "write_errors": 0, "checksum_errors": 0, "io": io,
        });
        Device { children, ..serde_json::from_value(device).unwrap() }
    }

    fn pool(root: Device) -> PoolIo {
        PoolIo { name: "tank".into(), guid: "7".into(), opened_ns: 1, root, cache: Vec::new() }
    }

    /// What the sum was less by was shown as nothing done, while the disks worked.
    #[test]
    fn a_drive_that_left_takes_nothing_of_what_the_pool_did() {
        let tank = |reads, disks| pool(device("7", reads, vec![device("m", reads, disks)]));
        let before = tank(1000, vec![device("a", 500, Vec::new()), device("b", 500, Vec::new())]);
        let now = tank(620, vec![device("b", 560, Vec::new()), device("c", 60, Vec::new())]);
        let happened = since(&now, &[before]).root;
        let reads = |device: &Device| work(device).operations[0];
        assert_eq!((reads(&happened), reads(&happened.children[0])), (120, 120));
        assert_eq!(happened.children[0].children.iter().map(reads).collect::<Vec<_>>(), [60, 60]);
    }

    /// It stood elsewhere, and all it had ever done was shown as done within the interval.
    #[test]
    fn a_disk_that_became_a_mirror_is_still_itself() {
        let before = pool(device("7", 500, vec![device("b", 500, Vec::new())]));
        let sides = vec![device("b", 530, Vec::new()), device("c", 30, Vec::new())];
        let now = pool(device("7", 560, vec![device("m", 560, sides)]));
        let happened = since(&now, &[before]).root;
        let reads = |device: &Device| work(device).operations[0];
        assert_eq!((reads(&happened), reads(&happened.children[0])), (60, 60));
        assert_eq!(happened.children[0].children.iter().map(reads).collect::<Vec<_>>(), [30, 30]);
    }
}
