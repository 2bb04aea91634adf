//! `millpond zilstat`: who asked for stable writes, what the intent logs did for them, and what it took.
//!
//! The daemon counts ([`server::logs`]); this subtracts what it said before, and prints. The totals end with a
//! sentence per volume, because "is my log device used, would one help?" is what people come for.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};
use server::{
    api::log::{LogList, PoolLog, Times, VolumeLog},
    pool::props::value::{bytes, count},
};

use crate::{
    args::Zilstat,
    context::{Context, FAILED, print},
    json, repeat,
    table::{Column, render},
    zpool::finish,
};

/// Reports between two headers, when they are one line each.
const HEADER_EVERY: u64 = 20;
pub(crate) async fn run(args: Zilstat, context: &Context) -> anyhow::Result<ExitCode> {
    let asked = repeat::parse(&args.words).map_err(|wrong| context.usage(&["zilstat"], &wrong))?;
    let Some(daemon) = context
        .serving_daemon(
            "show intent logs",
            "what is counted is counted by the process that serves the volumes",
        )
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let mut before = daemon.log().await?;
    let (volumes, failures) = choose(&before, asked.names);
    if volumes.is_empty() && !failures.is_empty() {
        return Ok(finish(&failures));
    }
    let Some(interval) = asked.interval else {
        if volumes.is_empty() && !args.json {
            say!("no volumes are open for writing");
        }
        let text = match args.json {
            true => line(&volumes, None, &args),
            false => totals(&volumes, &args),
        };
        print(&text)?;
        return Ok(finish(&failures));
    };
    failures.iter().for_each(|failure| say!("{failure}"));
    let mut report = 0;
    while asked.count.is_none_or(|count| report < count) {
        tokio::time::sleep(interval).await;
        let now = daemon.log().await?;
        let (happened, seconds) = between(&before, &now, asked.names);
        let happened: Vec<&VolumeLog> = happened.iter().collect();
        print(&match args.json {
            true => line(&happened, Some(seconds), &args),
            false => rates(&happened, seconds, report, &args),
        })?;
        before = now;
        report += 1;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// What happened to the volumes that are meant between two looks, and in how many seconds.
fn between(before: &LogList, now: &LogList, names: &[String]) -> (Vec<VolumeLog>, f64) {
    let moment = |list: &LogList| repeat::Moment(list.started_ns, list.at_ns);
    let (seconds, is_same) = repeat::between(moment(before), moment(now));
    let (volumes, _said) = choose(now, names);
    let since = |volume: &&VolumeLog| {
        let has_it = |pool: &&PoolLog| pool.volumes.iter().any(|other| other.name == volume.name);
        let pool = now.pools.iter().find(has_it).filter(|_| is_same);
        // A pool that was opened anew may have counted more by now than it had before. And only within a pool a guid is one
        // volume's: a pool that was split off has those of the other.
        let is_as_opened = |old: &&PoolLog| {
            pool.is_some_and(|pool| (old.opened_ns, &old.pool) == (pool.opened_ns, &pool.pool))
        };
        let was = before.pools.iter().find(is_as_opened);
        // It may have been renamed, and another have its name.
        let is_it = |old: &&VolumeLog| match volume.guid.as_str() {
            "" => old.name == volume.name,
            guid => old.guid == guid,
        };
        match was.and_then(|old| old.volumes.iter().find(is_it)) {
            Some(old) => volume.since(old),
            None => (*volume).clone(),
        }
    };
    (volumes.iter().map(since).collect(), seconds)
}

/// The volumes that are meant, and what was named and is not there.
fn choose<'a>(list: &'a LogList, names: &[String]) -> (Vec<&'a VolumeLog>, Vec<String>) {
    let all = |pool: &'a PoolLog| pool.volumes.iter();
    if names.is_empty() {
        return (list.pools.iter().flat_map(all).collect(), Vec::new());
    }
    let (mut found, mut failures) = (Vec::<&VolumeLog>::new(), Vec::new());
    for name in names {
        let name = name.as_str();
        let pool_name = name.split(['/', '@', '#']).next().unwrap_or_default();
        let pool = list.pools.iter().find(|pool| pool.pool == pool_name);
        let volume = pool.and_then(|pool| pool.volumes.iter().find(|volume| volume.name == name));
        match (pool, volume) {
            (Some(pool), _) if pool.pool == name => found.extend(all(pool)),
            (_, Some(volume)) => found.push(volume),
            (Some(_), None) => {
                failures.push(format!("cannot open '{name}': no volume of this name is open for writing"));
            }
            (None, None) => {
                failures.push(format!("cannot open '{name}': the daemon has no such pool open for writing"));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup_by(|a, b| a.name == b.name);
    (found, failures)
}

/// Totals, and what they mean.
fn totals(volumes: &[&VolumeLog], args: &Zilstat) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let number = |number: u64| if args.exact { number.to_string() } else { count(number) };
    let size = |number: u64| if args.exact { number.to_string() } else { bytes(number) };
    let rows: Vec<Vec<String>> = volumes.iter().map(|volume| row(volume, &number, &size, args)).collect();
    let mut out = render(&columns(), &rows, args.scripted);
    if args.verbose {
        volumes.iter().for_each(|volume| out.push_str(&histogram(volume, args)));
    }
    if !args.scripted {
        out.push('\n');
        volumes
            .iter()
            .for_each(|volume| writeln!(out, "{}", volume.sentence).expect("a String takes any text"));
    }
    out
}

/// What happened in an interval, per second.
fn rates(volumes: &[&VolumeLog], seconds: f64, report: u64, args: &Zilstat) -> String {
    let exact = |number: u64| format!("{:.1}", number as f64 / seconds);
    let number = |number: u64| match (number as f64 / seconds, args.exact) {
        (_, true) => exact(number),
        (rate, _) if number > 0 && rate < 10.0 => format!("{rate:.1}"),
        (rate, _) => count(rate.round() as u64),
    };
    let size = |number: u64| match args.exact {
        true => exact(number),
        false => bytes((number as f64 / seconds).round() as u64),
    };
    let rows: Vec<Vec<String>> = volumes.iter().map(|volume| row(volume, &number, &size, args)).collect();
    let text = render(&columns(), &rows, args.scripted);
    let is_long = args.verbose || volumes.len() != 1;
    let mut out = match text.split_once('\n') {
        Some((_, rest)) if !args.scripted && !is_long && !report.is_multiple_of(HEADER_EVERY) => {
            rest.to_owned()
        }
        _ => text,
    };
    if args.verbose {
        volumes.iter().for_each(|volume| out.push_str(&histogram(volume, args)));
    }
    if is_long && !args.scripted {
        out.push('\n');
    }
    out
}

/// Wide enough that the lines of one report stand below those of another.
fn columns() -> Vec<Column> {
    let mut columns = vec![Column { width_min: 12, ..Column::left("VOLUME") }];
    for name in [
        "FUA", "FLUSH", "NOCACHE", "ALWAYS", "IGNORED", "COMMITS", "WRITES", "C/W", "DATA", "LOG", "P50",
        "P99", "QUEUE50", "QUEUE99", "DEV50", "DEV99",
    ] {
        columns.push(Column::right(name, 5));
    }
    columns.push(Column { width_min: 10, ..Column::left("WHERE") });
    columns.push(Column::left("WAITED"));
    columns
}

fn row(
    volume: &VolumeLog,
    number: &dyn Fn(u64) -> String,
    size: &dyn Fn(u64) -> String,
    args: &Zilstat,
) -> Vec<String> {
    let time = |times: &Times, permille: u64| match times.count {
        0 => "-".to_owned(),
        _ if args.exact => times.quantile(permille).to_string(),
        _ => time(times.quantile(permille)),
    };
    let mut row = vec![volume.name.clone()];
    for many in [
        volume.fua,
        volume.flush,
        volume.cache_off,
        volume.always,
        volume.ignored,
        volume.commits,
        volume.log_writes,
    ] {
        row.push(number(many));
    }
    row.push(volume.batching().map_or_else(|| "-".to_owned(), |many| format!("{many:.1}")));
    row.push(size(volume.payload_bytes));
    row.push(size(volume.log_bytes));
    for times in [&volume.total, &volume.queue, &volume.device] {
        row.push(time(times, 500));
        row.push(time(times, 990));
    }
    row.push(place(volume));
    let waited = volume.fallbacks.reasons();
    let waited: Vec<String> =
        waited.iter().map(|(word, _, times)| format!("{word}:{}", number(*times))).collect();
    row.push(if waited.is_empty() { "-".to_owned() } else { waited.join(",") });
    row
}

/// The devices that took log blocks; those of the pool in brackets, because a log device is what is looked for.
fn place(volume: &VolumeLog) -> String {
    let names: Vec<String> = volume
        .devices
        .iter()
        .map(|share| if share.log { share.name.clone() } else { format!("({})", share.name) })
        .collect();
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

/// A time in at most five characters: `81us`, `4.8ms`, `1.20s`.
fn time(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = if value >= 9.95 || unit == "us" { 0 } else { 1 };
    format!("{value:.digits$}{unit}")
}

/// The histogram's buckets: powers of two of nanoseconds, as far as something was counted.
fn doublings(volume: &VolumeLog) -> Vec<(u64, [u64; 3])> {
    let power = |upper: u64| upper.max(1).ilog2();
    let all = [&volume.total, &volume.queue, &volume.device];
    let powers = all.iter().flat_map(|times| &times.buckets).map(|(upper, _)| power(*upper));
    let (Some(low), Some(high)) = (powers.clone().min(), powers.max()) else { return Vec::new() };
    let of = |times: &Times, at: u32| -> u64 {
        times.buckets.iter().filter(|(upper, _)| power(*upper) == at).map(|(_, count)| count).sum()
    };
    (low..=high).map(|at| ((2_u64 << at) - 1, all.map(|times| of(times, at)))).collect()
}

fn histogram(volume: &VolumeLog, args: &Zilstat) -> String {
    let buckets = doublings(volume);
    if buckets.is_empty() {
        return String::new();
    }
    let header = format!("{} up to", volume.name);
    let columns = [
        Column::right(&header, 12),
        Column::right("TOTAL", 8),
        Column::right("QUEUE", 8),
        Column::right("DEVICE", 8),
    ];
    let rows = buckets.into_iter().map(|(upper, counts)| {
        let upper = if args.exact { upper.to_string() } else { time(upper) };
        let name = if args.scripted { format!("{}\t{upper}", volume.name) } else { upper };
        let counts = counts.map(|number| if args.exact { number.to_string() } else { count(number) });
        [name].into_iter().chain(counts).collect()
    });
    let text = render(&columns, &rows.collect::<Vec<Vec<String>>>(), args.scripted);
    if args.scripted { text } else { format!("\n{text}") }
}

/// One object: totals, or what happened in so many seconds.
fn line(volumes: &[&VolumeLog], seconds: Option<f64>, args: &Zilstat) -> String {
    let entries: Map<String, Value> =
        volumes.iter().map(|volume| (volume.name.clone(), object(volume, seconds, args))).collect();
    json::envelope("millpond zilstat", "volumes", entries)
}

fn object(volume: &VolumeLog, seconds: Option<f64>, args: &Zilstat) -> Value {
    let spread = |times: &Times| {
        json!({
            "count": times.count, "mean": times.mean(), "p50": times.quantile(500), "p99": times.quantile(990),
            "p999": times.quantile(999),
        })
    };
    let mut object = json!({
        "name": volume.name,
        "sync": volume.sync,
        "logbias": volume.logbias,
        "writes": volume.writes,
        "asked": { "fua": volume.fua, "flush": volume.flush, "cache_off": volume.cache_off, "always": volume.always },
        "ignored": volume.ignored,
        "nothing": volume.nothing,
        "commits": volume.commits,
        "waited": volume.fallbacks,
        "log_writes": volume.log_writes,
        "records": volume.records,
        "payload_bytes": volume.payload_bytes,
        "indirect_bytes": volume.indirect_bytes,
        "log_blocks": volume.log_blocks,
        "log_bytes": volume.log_bytes,
        "devices": volume.devices,
        "latency_ns": {
            "total": spread(&volume.total), "queue": spread(&volume.queue), "device": spread(&volume.device),
        },
    });
    if let Value::Object(object) = &mut object {
        match seconds {
            Some(seconds) => object.insert("seconds".to_owned(), json!((seconds * 1e6).round() / 1e6)),
            None => object.insert("sentence".to_owned(), json!(volume.sentence)),
        };
        if args.verbose {
            let rows: Vec<Value> = doublings(volume)
                .into_iter()
                .map(|(upper, [total, queue, device])| {
                    json!({ "up_to_ns": upper, "total": total, "queue": queue, "device": device })
                })
                .collect();
            object.insert("histogram".to_owned(), json!(rows));
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use server::api::log::Fallbacks;

    use super::*;

    #[test]
    fn times_are_short() {
        let all =
            [0, 999, 1_000, 81_400, 999_400, 1_000_000, 4_812_000, 250_000_000, 1_200_000_000].map(time);
        assert_eq!(all, ["0ns", "999ns", "1us", "81us", "999us", "1.0ms", "4.8ms", "250ms", "1.2s"]);
    }

    /// It had counted more by then than the one before, so the difference was shown, of a nanosecond.
    #[test]
    fn a_daemon_that_was_restarted_is_counted_from_its_beginning() {
        let at = |seconds: u64, fua: u64| {
            let volume = VolumeLog { name: "tank/v".into(), writes: fua, fua, ..VolumeLog::default() };
            let pool = PoolLog { pool: "tank".into(), volumes: vec![volume], ..PoolLog::default() };
            LogList { at_ns: seconds * 1_000_000_000, started_ns: 7, pools: vec![pool] }
        };
        let asked = |before: &LogList, now: &LogList| {
            let (happened, seconds) = between(before, now, &[]);
            (happened[0].fua, seconds)
        };
        assert_eq!(asked(&at(100, 700), &at(105, 900)), (200, 5.0));
        assert_eq!(asked(&at(100, 700), &at(3, 900)), (900, 3.0));
        assert_eq!(asked(&at(100, 700), &at(3, 30)), (30, 3.0));
        assert_eq!(asked(&at(100, 700), &LogList { started_ns: 8, ..at(200, 900) }), (900, 200.0));
    }

    /// What it had counted since was shown less what it had counted before, and times of both in one histogram.
    #[test]
    fn a_pool_that_was_opened_anew_is_counted_from_there() {
        let at = |opened_ns: u64, seconds: u64, fua: u64| {
            let volume = VolumeLog { name: "tank/v".into(), writes: fua, fua, ..VolumeLog::default() };
            let pool =
                PoolLog { pool: "tank".into(), opened_ns, volumes: vec![volume], ..PoolLog::default() };
            LogList { at_ns: seconds * 1_000_000_000, started_ns: 7, pools: vec![pool] }
        };
        let asked = |before: &LogList, now: &LogList| between(before, now, &[]).0[0].fua;
        assert_eq!(asked(&at(1, 100, 1000), &at(1, 160, 1500)), 500);
        assert_eq!(asked(&at(1, 100, 1000), &at(2, 160, 1500)), 1500);
    }

    /// All that a volume ever did was this second's under its new name, and under its old one the difference of two volumes.
    #[test]
    fn a_volume_that_was_renamed_is_the_same() {
        let at = |volumes: [(&str, &str, u64); 2]| {
            let volume = |(name, guid, fua): (&str, &str, u64)| VolumeLog {
                name: name.into(),
                guid: guid.into(),
                writes: fua,
                fua,
                ..VolumeLog::default()
            };
            let volumes = volumes.into_iter().map(volume).collect();
            let pool = PoolLog { pool: "tank".into(), opened_ns: 1, volumes, ..PoolLog::default() };
            LogList { at_ns: 1, started_ns: 7, pools: vec![pool] }
        };
        let before = at([("tank/a", "1", 70), ("tank/b", "2", 100)]);
        let now = at([("tank/a", "2", 101), ("tank/a-old", "1", 75)]);
        let (happened, _) = between(&before, &now, &[]);
        let fua: Vec<_> = happened.iter().map(|volume| (volume.name.as_str(), volume.fua)).collect();
        assert_eq!(fua, [("tank/a", 1), ("tank/a-old", 5)]);
    }

    /// Of the second of two pools all that a volume ever did was each second's: it was looked for in the first.
    #[test]
    fn volumes_of_two_pools_may_have_one_guid() {
        let at = |fua: [u64; 2]| {
            let pool = |(number, fua): (u64, u64)| {
                let name = format!("tank{number}");
                let volume = VolumeLog {
                    name: format!("{name}/v"),
                    guid: "1".into(),
                    writes: fua,
                    fua,
                    ..VolumeLog::default()
                };
                PoolLog { pool: name, opened_ns: number, volumes: vec![volume], ..PoolLog::default() }
            };
            let pools = (1..).zip(fua).map(pool).collect();
            LogList { at_ns: 1, started_ns: 7, pools }
        };
        let (happened, _) = between(&at([70, 100]), &at([75, 101]), &[]);
        let fua: Vec<_> = happened.iter().map(|volume| (volume.name.as_str(), volume.fua)).collect();
        assert_eq!(fua, [("tank1/v", 5), ("tank2/v", 1)]);
    }

    /// In a table of what happens in a second the last column was of the whole interval.
    #[test]
    fn who_waited_is_counted_like_everything_else() {
        let fallbacks = Fallbacks { no_space: 5, burst: 12_340, ..Fallbacks::default() };
        let volume = VolumeLog { fua: 5, fallbacks, ..VolumeLog::default() };
        let waited = |exact: bool, seconds: Option<f64>| {
            let args = Zilstat { scripted: true, exact, verbose: false, json: false, words: Vec::new() };
            let said = match seconds {
                Some(seconds) => rates(&[&volume], seconds, 0, &args),
                None => totals(&[&volume], &args),
            };
            let cells: Vec<&str> = said.trim_end().split('\t').collect();
            (cells[1].to_owned(), (*cells.last().unwrap()).to_owned())
        };
        let is = |fua: &str, waited: &str| (fua.to_owned(), waited.to_owned());
        assert_eq!(waited(true, None), is("5", "space:5,burst:12340"));
        assert_eq!(waited(true, Some(10.0)), is("0.5", "space:0.5,burst:1234.0"));
        assert_eq!(waited(false, Some(50.0)), is("0.1", "space:0.1,burst:247"));
    }

    #[test]
    fn a_histogram_has_a_line_for_every_doubling_in_between() {
        let times = |buckets: &[(u64, u64)]| Times {
            count: buckets.iter().map(|(_, n)| n).sum(),
            sum_ns: 0,
            buckets: buckets.to_vec(),
        };
        let volume = VolumeLog {
            total: times(&[(1279, 1), (1535, 2), (9000, 5)]),
            device: times(&[(700, 4)]),
            ..VolumeLog::default()
        };
        let found = doublings(&volume);
        assert_eq!(
            found,
            [(1023, [0, 0, 4]), (2047, [3, 0, 0]), (4095, [0, 0, 0]), (8191, [0, 0, 0]), (16_383, [5, 0, 0])]
        );
        assert_eq!(doublings(&VolumeLog::default()), []);
    }
}
