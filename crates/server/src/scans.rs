//! Scrubs and resilvers as people read them: numbers for JSON, and the `scan:` lines of `zpool status`.
//!
//! The running one is told from memory ([`engine::scan::Progress`]); of a pool that nobody writes to, what its last
//! commit says. The lines are OpenZFS's, with one addition: the time to go is an estimate, so its range stands behind it.
//! Scrubs of the error log are counted in blocks, so they have numbers and lines of their own.
//!
//! Facts: docs/format/vdevs.md §7.1, §9.1.

use engine::{events::ScanKind, scan::Progress};
use pool::{
    ondisk::scan::{ErrorScrubPhys, ScanFunc, ScanPhys, ScanState},
    status::human,
    time::{UtcOffset, ctime, duration},
};

use crate::api::{ErrorScrubStats, ScanStats};

/// The flag of a scan that is halted.
const PAUSED: u64 = 2;

/// What the engine says of the scan that it runs.
pub(crate) fn of_engine(progress: &Progress) -> ScanStats {
    let is_live = progress.running && !progress.held;
    let whole = |seconds: f64| seconds.max(0.0).round() as u64;
    ScanStats {
        function: match progress.kind {
            ScanKind::Scrub => "SCRUB".to_owned(),
            ScanKind::Resilver => "RESILVER".to_owned(),
        },
        state: "SCANNING".to_owned(),
        start_time: progress.started,
        end_time: 0,
        paused: progress.paused.unwrap_or(0),
        to_examine: progress.total,
        examined: progress.scanned,
        issued: progress.issued,
        skipped: 0,
        processed: progress.processed,
        errors: progress.errors,
        examined_rate: if is_live { whole(progress.scanned_rate) } else { 0 },
        issued_rate: if is_live { whole(progress.rate) } else { 0 },
        remaining: progress.remaining.as_ref().filter(|_| is_live).map(|range| {
            let least = whole(range.start.as_secs_f64());
            (least, whole(range.end.as_secs_f64()).max(least))
        }),
        waits_for_memory: progress.held,
    }
}

/// What a commit says of the last scan.
pub(crate) fn of_commit(scan: &ScanPhys) -> Option<ScanStats> {
    let function = match scan.func() {
        ScanFunc::Scrub => "SCRUB",
        ScanFunc::Resilver => "RESILVER",
        _ => return None,
    };
    let state = match scan.state() {
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Cancelled => "CANCELED",
        _ => return None,
    };
    let (start_time, end_time) = scan.times();
    let [to_examine, examined, skipped, processed] = scan.bytes();
    let is_paused = state == "SCANNING" && scan.flags() & PAUSED != 0;
    Some(ScanStats {
        function: function.to_owned(),
        state: state.to_owned(),
        start_time,
        end_time: if state == "SCANNING" { 0 } else { end_time },
        // When it was halted is not written down.
        paused: if is_paused { start_time } else { 0 },
        to_examine,
        examined,
        issued: examined,
        skipped,
        processed,
        errors: scan.errors(),
        ..ScanStats::default()
    })
}

/// What the engine says of the scrub of the error log that it runs, if it is one.
pub(crate) fn error_scrub_of_engine(progress: &Progress) -> Option<ErrorScrubStats> {
    let logged = progress.logged?;
    Some(ErrorScrubStats {
        state: "SCANNING".to_owned(),
        start_time: progress.started,
        end_time: 0,
        paused: progress.paused.unwrap_or(0),
        to_examine: logged.total,
        examined: logged.examined.min(logged.total),
        errors: progress.errors,
    })
}

/// What a commit says of the last scrub of the error log.
pub(crate) fn error_scrub_of_commit(scrub: &ErrorScrubPhys) -> Option<ErrorScrubStats> {
    let state = match scrub.state() {
        _ if scrub.func() != ScanFunc::ErrorScrub => return None,
        ScanState::ErrorScrubbing => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Cancelled => "CANCELED",
        _ => return None,
    };
    let ((start_time, end_time), (to_examine, examined)) = (scrub.times(), scrub.blocks());
    let is_running = state == "SCANNING";
    Some(ErrorScrubStats {
        state: state.to_owned(),
        start_time,
        end_time: if is_running { 0 } else { end_time },
        // When it was halted is not written down.
        paused: if is_running && scrub.is_paused() { start_time } else { 0 },
        to_examine,
        examined,
        errors: scrub.errors(),
    })
}

/// The `scan:` line of a pool: of what began last.
pub(crate) fn last(
    scan: Option<&ScanStats>,
    error_scrub: Option<&ErrorScrubStats>,
    offset: UtcOffset,
) -> Option<String> {
    match (scan, error_scrub) {
        (Some(scan), Some(scrub)) if scan.start_time > scrub.start_time => Some(text(scan, offset)),
        (_, Some(scrub)) => Some(error_scrub_text(scrub, offset)),
        (Some(scan), None) => Some(text(scan, offset)),
        (None, None) => None,
    }
}

fn error_scrub_text(scrub: &ErrorScrubStats, offset: UtcOffset) -> String {
    let date = |seconds| ctime(seconds, offset);
    let ErrorScrubStats { start_time, end_time, to_examine, examined, errors, .. } = *scrub;
    let began = match (scrub.state.as_str(), scrub.paused) {
        ("FINISHED", _) => {
            let took = duration(end_time.saturating_sub(start_time));
            return format!(
                "scrubbed {examined} error block(s) in {took} with {errors} errors on {}",
                date(end_time)
            );
        }
        ("CANCELED", _) => return format!("error scrub canceled on {}", date(end_time)),
        (_, 0) => format!("error scrub in progress since {}", date(start_time)),
        (_, since) => {
            format!("error scrub paused since {}\n\terror scrub started on {}", date(since), date(start_time))
        }
    };
    let done = if to_examine == 0 { 0.0 } else { 100.0 * examined as f64 / to_examine as f64 };
    format!("{began}\n\t{examined} / {to_examine} error block(s) scrubbed, {done:.2}% done")
}

/// The `scan:` line without its label; lines after the first begin with a tab. `offset` is how many seconds local time is
/// ahead of UTC.
pub(crate) fn text(scan: &ScanStats, offset: UtcOffset) -> String {
    let date = |seconds| ctime(seconds, offset);
    let (word, done) = match scan.function.as_str() {
        "RESILVER" => ("resilver", "resilvered"),
        _ => ("scrub", "repaired"),
    };
    let processed = human(scan.processed);
    let took = duration(scan.end_time.saturating_sub(scan.start_time));
    match (scan.state.as_str(), word) {
        ("FINISHED", "resilver") => {
            format!("resilvered {processed} in {took} with {} errors on {}", scan.errors, date(scan.end_time))
        }
        ("FINISHED", _) => {
            format!(
                "scrub repaired {processed} in {took} with {} errors on {}",
                scan.errors,
                date(scan.end_time)
            )
        }
        ("CANCELED", word) => format!("{word} canceled on {}", date(scan.end_time)),
        (_, word) => {
            let mut text = match scan.paused {
                0 => format!("{word} in progress since {}", date(scan.start_time)),
                since => format!(
                    "{word} paused since {}\n\t{word} started on {}",
                    date(since),
                    date(scan.start_time)
                ),
            };
            let at = |rate: u64| if rate > 0 { format!(" at {}/s", human(rate)) } else { String::new() };
            text.push_str(&format!(
                "\n\t{} / {total} scanned{}, {} / {total} issued{}",
                human(scan.examined),
                at(scan.examined_rate),
                human(scan.issued),
                at(scan.issued_rate),
                total = human(scan.to_examine),
            ));
            text.push_str(&format!("\n\t{processed} {done}, {:.2}% done", percent(scan)));
            if scan.paused == 0 && scan.waits_for_memory {
                text.push_str(", waits for memory ('millpond memory')");
            } else if scan.paused == 0 {
                text.push_str(&to_go(scan));
            }
            text
        }
    }
}

fn percent(scan: &ScanStats) -> f64 {
    let total = scan.to_examine.saturating_sub(scan.skipped);
    if total == 0 { 0.0 } else { 100.0 * scan.issued as f64 / total as f64 }
}

/// `, 00:00:09 to go (00:00:07 to 00:00:12)`: a range of one value is none.
fn to_go(scan: &ScanStats) -> String {
    match scan.remaining {
        None => ", no estimated completion time".to_owned(),
        Some((least, most)) if least == most => format!(", {} to go", duration(least)),
        Some((least, most)) => {
            let middle = least.midpoint(most);
            format!(", {} to go ({} to {})", duration(middle), duration(least), duration(most))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::scan::Logged;

    use super::*;

    fn running() -> Progress {
        Progress {
            kind: ScanKind::Resilver,
            running: true,
            held: false,
            paused: None,
            started: 1_795_226_743,
            ended: None,
            total: 3 << 30,
            scanned: 1_288_490_189,
            issued: 943_718_400,
            processed: 471_859_200,
            errors: 0,
            scanned_rate: 322_122_547.0,
            rate: 235_929_600.0,
            remaining: Some(Duration::from_secs(7)..Duration::from_secs(12)),
            targets: vec![1],
            logged: None,
        }
    }

    fn lines(progress: &Progress) -> String {
        text(&of_engine(progress), |_| 0)
    }

    #[test]
    fn a_running_scan_reads_as_openzfs_prints_it() {
        assert_eq!(
            lines(&running()),
            "resilver in progress since Sat Nov 21 02:05:43 2026\n\
             \t1.20G / 3G scanned at 307M/s, 900M / 3G issued at 225M/s\n\
             \t450M resilvered, 29.30% done, 00:00:09 to go (00:00:07 to 00:00:12)"
        );
        let held = Progress { kind: ScanKind::Scrub, held: true, ..running() };
        assert_eq!(
            lines(&held),
            "scrub in progress since Sat Nov 21 02:05:43 2026\n\
             \t1.20G / 3G scanned, 900M / 3G issued\n\
             \t450M repaired, 29.30% done, waits for memory ('millpond memory')"
        );
        let unknown = Progress { kind: ScanKind::Scrub, remaining: None, rate: 0.0, ..running() };
        assert!(lines(&unknown).ends_with("\n\t450M repaired, 29.30% done, no estimated completion time"));
        assert!(lines(&unknown).contains("900M / 3G issued\n"), "{}", lines(&unknown));
    }

    #[test]
    fn a_paused_scan_has_neither_rates_nor_an_end() {
        let paused =
            Progress { kind: ScanKind::Scrub, running: false, paused: Some(1_795_226_800), ..running() };
        assert_eq!(
            lines(&paused),
            "scrub paused since Sat Nov 21 02:06:40 2026\n\tscrub started on Sat Nov 21 02:05:43 2026\n\
             \t1.20G / 3G scanned, 900M / 3G issued\n\t450M repaired, 29.30% done"
        );
    }

    /// What the last scrub of everything had found stood there.
    #[test]
    fn a_scrub_of_the_error_log_is_told_until_something_else_begins() {
        let over = ErrorScrubPhys::ended(true, (1_795_226_743, 1_795_226_748), (3, 3), 1);
        let over = error_scrub_of_commit(&over).unwrap();
        let line = "scrubbed 3 error block(s) in 00:00:05 with 1 errors on Sat Nov 21 02:05:48 2026";
        assert_eq!(last(None, Some(&over), |_| 0).unwrap(), line);
        let full = ScanStats { start_time: over.start_time - 9, ..of_engine(&running()) };
        assert_eq!(last(Some(&full), Some(&over), |_| 0).unwrap(), line);
        let full = ScanStats { start_time: over.start_time + 9, ..full };
        assert!(last(Some(&full), Some(&over), |_| 0).unwrap().starts_with("resilver in progress"));
        let stopped = ErrorScrubPhys::ended(false, (1_795_226_743, 1_795_226_748), (3, 1), 0);
        let stopped = error_scrub_of_commit(&stopped).unwrap();
        assert_eq!(
            last(None, Some(&stopped), |_| 0).unwrap(),
            "error scrub canceled on Sat Nov 21 02:05:48 2026"
        );
    }

    #[test]
    fn a_running_scrub_of_the_error_log_counts_blocks() {
        let logged = Some(Logged { total: 8, examined: 2 });
        let progress = Progress { kind: ScanKind::Scrub, logged, ..running() };
        let now = error_scrub_of_engine(&progress).unwrap();
        let text = |scrub: &ErrorScrubStats| error_scrub_text(scrub, |_| 0);
        assert_eq!(
            text(&now),
            "error scrub in progress since Sat Nov 21 02:05:43 2026\n\t2 / 8 error block(s) scrubbed, 25.00% done"
        );
        let paused = ErrorScrubStats { paused: 1_795_226_800, ..now };
        assert!(text(&paused).starts_with(
            "error scrub paused since Sat Nov 21 02:06:40 2026\n\terror scrub started on Sat Nov 21 02:05:43 2026\n"
        ));
        assert_eq!(error_scrub_of_engine(&running()), None);
    }

    #[test]
    fn what_is_over_is_one_line_in_local_time() {
        let mut words = [0; ScanPhys::WORDS];
        (words[0], words[1], words[7], words[8], words[12]) =
            (2, 2, 1_795_226_743, 1_795_226_748, 471_859_200);
        let over = of_commit(&ScanPhys::from_words(&words).unwrap()).unwrap();
        let berlin = text(&over, |_| 3600);
        assert_eq!(berlin, "resilvered 450M in 00:00:05 with 0 errors on Sat Nov 21 03:05:48 2026");
        words[0] = 1;
        let scrubbed = of_commit(&ScanPhys::from_words(&words).unwrap()).unwrap();
        let line = "scrub repaired 450M in 00:00:05 with 0 errors on Sat Nov 21 02:05:48 2026";
        assert_eq!(text(&scrubbed, |_| 0), line);
        (words[0], words[1]) = (2, 3);
        let stopped = of_commit(&ScanPhys::from_words(&words).unwrap()).unwrap();
        assert_eq!(text(&stopped, |_| 0), "resilver canceled on Sat Nov 21 02:05:48 2026");
    }
}
