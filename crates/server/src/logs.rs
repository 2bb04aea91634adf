//! The intent logs of open volumes, explained: is the log device used, would one help, what is not durable?
//!
//! The engine counts; here the counters get names of devices and one sentence per volume, which says what a person
//! would say who had looked at all of them. What it recommends it can support with the numbers beside it, or it is
//! left out.

use std::{fmt::Write as _, sync::Arc};

use engine::{
    BoxFuture,
    engine::Engine,
    volume::{LiveVolume, SyncMode},
    zil::stats::{DeviceShare, Report, Spread},
};
use pool::{
    Pool,
    dsl::{Dataset, DatasetKind},
    vdev::{Class, Kind, Vdev},
    zil::{self, Waiting},
};

use crate::{
    api::log::{Fallbacks, LogDevice, LogList, PoolLog, Replayed, Share, Times, VolumeLog},
    clock,
    ops::Held,
};

/// A write with its flush on an SSD that keeps its promises without waiting for its cells, nanoseconds: what a log
/// device is compared with.
const FAST_LOG_NS: u64 = 100_000;
/// A commit slower than this, nanoseconds, is worth a recommendation.
const SLOW_NS: u64 = 1_000_000;
/// Fewer commits than this prove nothing.
const ENOUGH: u64 = 100;

/// The logs of all pools that are open for writing.
#[must_use]
pub fn list(held: &[Arc<Held>]) -> LogList {
    let at_ns = clock::nanos();
    let mut pools: Vec<PoolLog> = held
        .iter()
        .filter_map(|held| Some(PoolLog { opened_ns: held.opened_ns(), ..pool_log(held.engine()?) }))
        .collect();
    pools.sort_by(|a, b| a.pool.cmp(&b.pool));
    LogList { at_ns, started_ns: clock::started(), pools }
}

/// What was replayed when the pool was opened, if anything was.
#[must_use]
pub fn replayed(engine: &Engine) -> Option<Replayed> {
    let found = engine.replayed();
    let notes = found.notes();
    (found.records > 0 || !notes.is_empty()).then(|| Replayed {
        volumes: found.volumes,
        records: found.records,
        bytes: found.bytes,
        ms: u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX),
        notes,
    })
}

/// That in a line; `None` if there was nothing to replay.
#[must_use]
pub fn replayed_line(found: &Replayed) -> Option<String> {
    let Replayed { volumes, records, bytes, ms, .. } = found;
    let plural = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (volumes, what) = (plural(*volumes, "volume"), plural(*records, "record"));
    let bytes = pool::props::value::bytes(*bytes);
    (*records > 0).then(|| format!("intent log of {volumes} replayed: {what}, {bytes}, in {ms} ms"))
}

/// What intent logs hold that a pool does not show, because it is only read: a sentence for each dataset.
pub fn unreplayed(pool: &Pool) -> BoxFuture<'_, Vec<String>> {
    Box::pin(async move {
        match zil::waiting(pool).await {
            Ok(waiting) => waiting.iter().map(|log| sentence_of(log, pool, false)).collect(),
            Err(error) => {
                vec![format!("whether intent logs hold what the pool does not cannot be told: {error}")]
            }
        }
    })
}

/// The same of one dataset, for whoever reads what is in it. Of a snapshot there is nothing: it shows what it is to show. Who
/// writes to the pool (`is_written`) has replayed what it could, and the rest waits.
pub fn unreplayed_of<'a>(
    pool: &'a Pool,
    dataset: &'a Dataset,
    is_written: bool,
) -> BoxFuture<'a, Option<String>> {
    Box::pin(async move {
        if dataset.kind() != DatasetKind::Head {
            return None;
        }
        match zil::waiting_in(pool, dataset, is_written).await {
            Ok(waiting) => Some(sentence_of(&waiting?, pool, is_written)),
            Err(error) => Some(format!(
                "whether the intent log of '{}' holds what is not shown cannot be told: {error}",
                dataset.name()
            )),
        }
    })
}

/// What waits in a log, to whoever reads the pool as it is open here. Once it was gone back with, what waits may be in its newest
/// state, and nobody replays it into this one.
fn sentence_of(log: &Waiting, pool: &Pool, is_written: bool) -> String {
    let txg = pool.uberblock().txg;
    if txg < pool.newest_uberblock().txg {
        return format!("'{}' is shown as of txg {txg}, without what was acknowledged after that", log.name);
    }
    log.sentence(txg, is_written)
}

fn pool_log(engine: &Engine) -> PoolLog {
    let view = engine.view();
    let mut volumes: Vec<VolumeLog> =
        engine.open_volumes().iter().map(|volume| volume_log(volume, &view)).collect();
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut log_devices: Vec<LogDevice> = Vec::new();
    for top in &view.tree().tops {
        if top.class() != Class::Log || matches!(top.kind, Kind::Hole) {
            continue;
        }
        let name = top.display_name();
        let shares = volumes.iter().flat_map(|volume| &volume.devices);
        let shares = shares.filter(|share| share.name == name && !share.removed);
        let (blocks, bytes) = shares.fold((0, 0), |sum, share| (sum.0 + share.blocks, sum.1 + share.bytes));
        let (state, aux) = top.state();
        log_devices.push(LogDevice { name, state: state.word(aux).to_owned(), blocks, bytes });
    }
    let facts = Facts {
        log_devices: log_devices.iter().map(|device| device.name.clone()).collect(),
        log_devices_idle: log_devices.iter().all(|device| device.blocks == 0),
        at_risk_seconds: at_risk_seconds(engine),
    };
    for volume in &mut volumes {
        volume.sentence = sentence(volume, &facts);
    }
    PoolLog { pool: view.name().to_owned(), opened_ns: 0, log_devices, volumes, replayed: replayed(engine) }
}

/// What is only in memory: the group that is open, and the one that is being written.
fn at_risk_seconds(engine: &Engine) -> u64 {
    let writing = engine.statistics().longest;
    (engine.limits().timeout + writing).as_secs_f64().ceil() as u64
}

fn volume_log(volume: &Arc<LiveVolume>, view: &Pool) -> VolumeLog {
    use block::BlockVolume as _;
    let report: Report = volume.log_report();
    let service = volume.service();
    let tree = view.tree();
    let mut devices: Vec<Share> = Vec::new();
    for (_, DeviceShare { device, blocks, bytes }) in &report.devices {
        let top = tree.tops.iter().find(|top| holds(top, device.guid));
        let name = top.map_or_else(|| device.name.clone(), Vdev::display_name);
        let log = top.map_or(device.log, |top| top.class() == Class::Log);
        let removed = top.is_none();
        // One that became a side of a mirror is that mirror now.
        match devices.iter_mut().find(|share| share.name == name && share.removed == removed) {
            Some(share) => (share.blocks, share.bytes) = (share.blocks + blocks, share.bytes + bytes),
            None => devices.push(Share { name, log, removed, blocks: *blocks, bytes: *bytes }),
        }
    }
    let sync = match service.sync {
        SyncMode::Standard => "standard",
        SyncMode::Always => "always",
        SyncMode::Disabled => "disabled",
    };
    let identity = volume.identity();
    VolumeLog {
        name: identity.name,
        guid: identity.guid.to_string(),
        sync: sync.to_owned(),
        logbias: if service.throughput { "throughput" } else { "latency" }.to_owned(),
        writes: report.writes,
        fua: report.fua,
        flush: report.flush,
        cache_off: report.cache_off,
        always: report.always,
        ignored: report.ignored,
        nothing: report.nothing,
        commits: report.commits,
        fallbacks: Fallbacks {
            not_begun: report.not_begun,
            no_space: report.no_space,
            device_failed: report.device_failed,
            burst: report.bursts,
        },
        log_writes: report.rounds,
        records: report.records,
        payload_bytes: report.payload,
        indirect_bytes: report.indirect,
        log_blocks: report.blocks,
        log_bytes: report.written,
        devices,
        total: times(&report.total),
        queue: times(&report.queue),
        device: times(&report.device),
        sentence: String::new(),
    }
}

fn holds(vdev: &Vdev, guid: u64) -> bool {
    vdev.guid == guid || vdev.children.iter().any(|child| holds(child, guid))
}

fn times(spread: &Spread) -> Times {
    Times { count: spread.count, sum_ns: spread.nanos, buckets: spread.buckets().collect() }
}

/// What a sentence about a volume needs to know of its pool.
struct Facts {
    log_devices: Vec<String>,
    /// No log block of any open volume went to a log device.
    log_devices_idle: bool,
    /// What a power cut takes of what is not durable.
    at_risk_seconds: u64,
}

/// One volume's log in plain words.
fn sentence(volume: &VolumeLog, facts: &Facts) -> String {
    let mut out = format!("{}: ", volume.name);
    let asked = volume.asked();
    if volume.sync == "disabled" {
        out.push_str("sync=disabled: ");
        match asked {
            0 => out.push_str("nobody asked for stability, and nobody would get it"),
            _ => {
                add(&mut out, format_args!("{} acknowledged without being durable", were(&requests(volume))))
            }
        }
        let seconds = facts.at_risk_seconds;
        add(&mut out, format_args!("; up to {seconds} seconds of writes are lost in a power cut"));
        return out;
    }
    if asked == 0 {
        if volume.writes == 0 {
            out.push_str("nothing was written to it since it was opened");
            return out;
        }
        add(&mut out, format_args!("0 of {} asked for stability: ", count(volume.writes, "write", "writes")));
        out.push_str(match (&facts.log_devices[..], facts.log_devices_idle) {
            ([], _) => "the intent log is idle, and a log device would change nothing",
            ([_], true) => "the log device is idle, as it should be",
            (_, true) => "the log devices are idle, as they should be",
            ([_], false) => "the log device works for others",
            (_, false) => "the log devices work for others",
        });
        return out;
    }
    let met = asked.saturating_sub(volume.ignored);
    add(&mut out, format_args!("{} ({})", count(met, "commit", "commits"), parts(volume)));
    if volume.commits > 0 {
        add(&mut out, format_args!(", p50 {}", ms(volume.total.quantile(500))));
        out.push_str(&advice_or_place(volume, facts));
        match volume.batching() {
            Some(many) if many >= 1.05 => {
                add(&mut out, format_args!("; {many:.1} commits share a log write"))
            }
            Some(_) => out.push_str("; each has a log write of its own"),
            None => {}
        }
    }
    if volume.nothing > 0 {
        add(&mut out, format_args!("; {} found everything durable already", thousands(volume.nothing)));
    }
    let waited = volume.fallbacks.sum();
    if waited > 0 {
        let reasons = volume.fallbacks.reasons();
        let why: Vec<String> = match &reasons[..] {
            [(_, why, _)] => vec![(*why).to_owned()],
            many => many.iter().map(|(_, why, times)| format!("{} as {why}", thousands(*times))).collect(),
        };
        let why = why.join(", ");
        let whose = if waited == 1 { "its" } else { "their" };
        add(&mut out, format_args!("; {} waited for {whose} transaction group: {why}", thousands(waited)));
    }
    if volume.ignored > 0 {
        let ignored = thousands(volume.ignored);
        add(&mut out, format_args!("; {ignored} more were not made durable while sync was disabled"));
    }
    out
}

/// Where the log blocks went; in place of that, what would make commits faster, if the numbers say so.
fn advice_or_place(volume: &VolumeLog, facts: &Facts) -> String {
    let total = volume.total.quantile(500);
    let device = volume.device.quantile(500).min(total);
    let queue = volume.queue.quantile(500).min(total - device);
    let is_slow = volume.commits >= ENOUGH && total >= SLOW_NS && device * 2 >= total;
    // Who waits in the queue waits for the device, too: with a faster one that becomes less in the same measure.
    let turns = (device + queue) as f64 / device.max(1) as f64;
    let with_fast = (total - device - queue) + (FAST_LOG_NS as f64 * turns) as u64;
    let place = place(volume, facts);
    if !is_slow || with_fast * 3 > total {
        return format!(", {place}");
    }
    let (waiting, would_be) = (ms(device), ms(with_fast));
    if facts.log_devices.is_empty() {
        // Those were waited for, not the disks.
        if volume.devices.iter().any(|share| share.log) {
            return format!(", {place}");
        }
        return format!(
            " of which {waiting} are spent waiting for the disks to write and flush: \
             a log device on a fast SSD would bring this to about {would_be}"
        );
    }
    if volume.logbias == "throughput" {
        return format!(", {place}; logbias=latency would use the log device");
    }
    format!(
        ", {place}, of which {waiting} are spent waiting for it to write and flush: a faster one would bring this to about {would_be}"
    )
}

/// Which devices took the log blocks.
fn place(volume: &VolumeLog, facts: &Facts) -> String {
    let on_log: Vec<&Share> = volume.devices.iter().filter(|share| share.log).collect();
    let (logged, all) = (
        on_log.iter().map(|share| share.blocks).sum::<u64>(),
        volume.devices.iter().map(|share| share.blocks).sum::<u64>(),
    );
    let name = |share: &&Share| match share.removed {
        true => format!("{} (since removed)", share.name),
        false => share.name.clone(),
    };
    let names = on_log.iter().map(name).collect::<Vec<_>>().join(", ");
    let devices = if on_log.len() == 1 { "log device" } else { "log devices" };
    match () {
        () if all == 0 => "nothing had to be written for them".to_owned(),
        () if logged == all => format!("all on {devices} {names}"),
        () if logged > 0 => {
            // Rounded so that neither side of "all" and "nothing" is claimed.
            let percent = (logged * 100 / all).clamp(1, 99);
            format!("{percent} % of its log on {devices} {names}, the rest in the pool")
        }
        () if volume.logbias == "throughput" && !facts.log_devices.is_empty() => {
            "all in the pool, as logbias=throughput says".to_owned()
        }
        () if !facts.log_devices.is_empty() => "all in the pool: the log device took nothing".to_owned(),
        () => "all in the pool".to_owned(),
    }
}

/// Who asked, and how often.
fn parts(volume: &VolumeLog) -> String {
    let named = [
        (volume.flush, "flush", "flushes"),
        (volume.fua, "FUA", "FUA"),
        (volume.cache_off, "write without a write cache", "writes without a write cache"),
        (volume.always, "by sync=always", "by sync=always"),
    ];
    let named = named.into_iter().filter(|(times, _, _)| *times > 0);
    named.map(|(times, one, many)| count(times, one, many)).collect::<Vec<_>>().join(", ")
}

/// The same as a subject: one kind by its name, several summed up.
fn requests(volume: &VolumeLog) -> (u64, String) {
    let asked = volume.asked();
    if volume.flush == asked {
        return (asked, count(asked, "flush", "flushes"));
    }
    (
        asked,
        format!("{} ({})", count(asked, "request for stability", "requests for stability"), parts(volume)),
    )
}

fn were((times, what): &(u64, String)) -> String {
    format!("{what} {}", if *times == 1 { "was" } else { "were" })
}

fn count(times: u64, one: &str, many: &str) -> String {
    format!("{} {}", thousands(times), if times == 1 { one } else { many })
}

/// `41200` as `41 200`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Milliseconds with two significant digits.
fn ms(nanos: u64) -> String {
    let ms = nanos as f64 / 1e6;
    let digits = if ms >= 9.95 {
        0
    } else if ms >= 0.995 {
        1
    } else if ms >= 0.0995 {
        2
    } else {
        3
    };
    let text = format!("{ms:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} ms")
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(log_devices: &[&str], idle: bool) -> Facts {
        let log_devices = log_devices.iter().map(|&name| name.to_owned()).collect();
        Facts { log_devices, log_devices_idle: idle, at_risk_seconds: 6 }
    }

    fn volume() -> VolumeLog {
        VolumeLog {
            name: "tank/v".into(),
            sync: "standard".into(),
            logbias: "latency".into(),
            ..VolumeLog::default()
        }
    }

    fn took(nanos: u64, count: u64) -> Times {
        Times { count, sum_ns: nanos * count, buckets: vec![(nanos, count)] }
    }

    fn on(name: &str, log: bool, blocks: u64) -> Share {
        Share { name: name.into(), log, removed: false, blocks, bytes: blocks * 8192 }
    }

    fn busy() -> VolumeLog {
        VolumeLog {
            writes: 50_000,
            flush: 9000,
            fua: 3000,
            commits: 12_000,
            log_writes: 3871,
            total: took(80_000, 12_000),
            queue: took(20_000, 12_000),
            device: took(55_000, 3871),
            devices: vec![on("log0", true, 3871)],
            ..volume()
        }
    }

    #[test]
    fn an_idle_log_is_as_it_should_be() {
        let idle = VolumeLog { writes: 41_200, ..volume() };
        for (devices, is_idle, says) in [
            (&["log0"][..], true, "the log device is idle, as it should be"),
            (&["a", "b"], true, "the log devices are idle, as they should be"),
            (&["log0"], false, "the log device works for others"),
            (&[], true, "the intent log is idle, and a log device would change nothing"),
        ] {
            let text = sentence(&idle, &facts(devices, is_idle));
            assert_eq!(text, format!("tank/v: 0 of 41 200 writes asked for stability: {says}"));
        }
        let text = sentence(&volume(), &facts(&[], true));
        assert_eq!(text, "tank/v: nothing was written to it since it was opened");
    }

    #[test]
    fn a_busy_log_says_who_asked_how_long_it_took_where_it_went_and_how_many_shared() {
        let text = sentence(&busy(), &facts(&["log0"], false));
        assert_eq!(
            text,
            "tank/v: 12 000 commits (9 000 flushes, 3 000 FUA), p50 0.08 ms, all on log device log0; \
             3.1 commits share a log write"
        );
        let mixed = VolumeLog {
            devices: vec![on("log0", true, 3000), on("raidz1-0", false, 871)],
            nothing: 12,
            fallbacks: Fallbacks { not_begun: 2, no_space: 5, ..Fallbacks::default() },
            ..busy()
        };
        let text = sentence(&mixed, &facts(&["log0"], false));
        assert_eq!(
            text,
            "tank/v: 12 000 commits (9 000 flushes, 3 000 FUA), p50 0.08 ms, 77 % of its log on log device log0, \
             the rest in the pool; 3.1 commits share a log write; 12 found everything durable already; \
             7 waited for their transaction group: 2 as the log was not begun, 5 as there was no space for the log"
        );
        let alone = VolumeLog { log_writes: 12_000, logbias: "throughput".into(), ..busy() };
        let alone = VolumeLog { devices: vec![on("mirror-0", false, 12_000)], ..alone };
        let text = sentence(&alone, &facts(&["log0"], true));
        assert!(text.contains("all in the pool, as logbias=throughput says; each has a log write"), "{text}");
    }

    /// It was told as "all in the pool", with the advice to add a log device.
    #[test]
    fn what_a_log_device_took_is_told_of_it_after_it_was_removed() {
        let gone = Share { removed: true, ..on("log0", true, 3000) };
        let slow = VolumeLog {
            total: took(5_000_000, 12_000),
            device: took(4_800_000, 3871),
            devices: vec![gone.clone()],
            ..busy()
        };
        let text = sentence(&slow, &facts(&[], true));
        assert!(text.contains("p50 5 ms, all on log device log0 (since removed); 3.1 commits"), "{text}");
        let another = VolumeLog { devices: vec![gone, on("log1", true, 871)], ..busy() };
        let text = sentence(&another, &facts(&["log1"], false));
        assert!(text.contains("all on log devices log0 (since removed), log1; "), "{text}");
    }

    #[test]
    fn a_log_device_is_recommended_where_the_disks_are_what_is_waited_for_and_only_there() {
        let slow = VolumeLog {
            total: took(5_000_000, 12_000),
            queue: took(100_000, 12_000),
            device: took(4_800_000, 3871),
            devices: vec![on("mirror-0", false, 3871)],
            ..busy()
        };
        let text = sentence(&slow, &facts(&[], true));
        assert!(
            text.contains(
                "p50 5 ms of which 4.8 ms are spent waiting for the disks to write and flush: \
                 a log device on a fast SSD would bring this to about 0.2 ms"
            ),
            "{text}"
        );
        let with_log = VolumeLog { devices: vec![on("log0", true, 3871)], ..slow.clone() };
        let text = sentence(&with_log, &facts(&["log0"], false));
        assert!(text.contains("all on log device log0, of which 4.8 ms are spent waiting for it"), "{text}");
        let throughput = VolumeLog { logbias: "throughput".into(), ..slow.clone() };
        let text = sentence(&throughput, &facts(&["log0"], true));
        assert!(text.contains("logbias=latency would use the log device"), "{text}");
        // Fast, too few, or waiting for something else: no advice.
        for other in [
            VolumeLog { devices: slow.devices.clone(), ..busy() },
            VolumeLog { commits: 99, ..slow.clone() },
            VolumeLog { device: took(300_000, 3871), ..slow },
        ] {
            let text = sentence(&other, &facts(&[], true));
            assert!(text.contains("all in the pool") && !text.contains("SSD"), "{text}");
        }
    }

    #[test]
    fn what_sync_disabled_risks_is_said() {
        let disabled = VolumeLog { sync: "disabled".into(), writes: 5000, ..volume() };
        let text = sentence(&disabled, &facts(&[], true));
        assert!(
            text.ends_with("nobody would get it; up to 6 seconds of writes are lost in a power cut"),
            "{text}"
        );
        let flushed = VolumeLog { flush: 1300, ignored: 1300, ..disabled };
        assert_eq!(
            sentence(&flushed, &facts(&[], true)),
            "tank/v: sync=disabled: 1 300 flushes were acknowledged without being durable; \
             up to 6 seconds of writes are lost in a power cut"
        );
        let both = VolumeLog { fua: 1, ignored: 1301, ..flushed };
        let text = sentence(&both, &facts(&[], true));
        assert!(text.contains("1 301 requests for stability (1 300 flushes, 1 FUA) were"), "{text}");
        let again = VolumeLog { ignored: 10, flush: 9010, ..busy() };
        let text = sentence(&again, &facts(&["log0"], false));
        assert!(text.ends_with("; 10 more were not made durable while sync was disabled"), "{text}");
    }

    /// Who looks a sentence up in the documentation finds it there.
    #[test]
    fn the_documentation_quotes_what_is_said() {
        let slow = VolumeLog {
            total: took(5_000_000, 12_000),
            queue: took(100_000, 12_000),
            device: took(4_800_000, 3871),
            ..busy()
        };
        let pool = vec![on("mirror-0", false, 3871)];
        let log = vec![on("sdb", true, 3871)];
        let throughput = VolumeLog { devices: pool.clone(), logbias: "throughput".into(), ..slow.clone() };
        let said = [
            sentence(&VolumeLog { writes: 41_200, ..volume() }, &facts(&["sdb"], true)),
            sentence(&VolumeLog { devices: log.clone(), ..busy() }, &facts(&["sdb"], false)),
            sentence(&VolumeLog { devices: pool, ..slow.clone() }, &facts(&[], true)),
            sentence(&VolumeLog { devices: log, ..slow }, &facts(&["sdb"], false)),
            sentence(&throughput, &facts(&["sdb"], true)),
            sentence(
                &VolumeLog { sync: "disabled".into(), flush: 1300, ignored: 1300, ..volume() },
                &facts(&[], true),
            ),
        ];
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/intent-log.md");
        let text = std::fs::read_to_string(path).unwrap();
        let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let quoted: Vec<&str> = cells.map(|(quoted, _)| quoted.trim_start_matches(['…', ','])).collect();
        for sentence in said {
            let found = quoted.iter().any(|quoted| quoted.contains(' ') && sentence.contains(quoted));
            assert!(found, "{sentence:?} is none of {quoted:#?}");
        }
    }

    #[test]
    fn numbers_are_as_people_write_them() {
        let all = [0, 999, 1000, 41_200, 1_234_567].map(thousands);
        assert_eq!(all, ["0", "999", "1 000", "41 200", "1 234 567"]);
        let all = [5_000, 80_000, 100_000, 4_800_000, 5_000_000, 11_200_000, 1_500_000_000].map(ms);
        assert_eq!(all, ["0.005 ms", "0.08 ms", "0.1 ms", "4.8 ms", "5 ms", "11 ms", "1500 ms"]);
    }
}
