//! The `scan:` lines of `zpool status` while a scrub or resilver runs, from numbers that only the one who runs it has.
//!
//! Facts: docs/format/vdevs.md §9.1.

use std::{ops::Range, time::Duration};

use super::human;
use crate::time::{duration, utc};

/// A scan that runs, at one moment. Bytes as allocated, times in seconds since 1970, rates in bytes per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveScan {
    /// A resilver, not a scrub.
    pub is_resilver: bool,
    /// When it began.
    pub started: u64,
    /// Since when it waits to be told to go on.
    pub paused: Option<u64>,
    /// To be examined in all.
    pub total: u64,
    /// Found so far, and how fast.
    pub scanned: (u64, f64),
    /// Read so far, and how fast.
    pub issued: (u64, f64),
    /// Written again so far.
    pub processed: u64,
    /// How long it will still take: not less, and not more.
    pub remaining: Option<Range<Duration>>,
}

impl LiveScan {
    /// What follows `scan: `; lines after the first begin with a tab.
    #[must_use]
    pub fn lines(&self) -> String {
        let word = if self.is_resilver { "resilver" } else { "scrub" };
        let mut text = match self.paused {
            Some(since) => {
                format!("{word} paused since {}\n\t{word} started on {}", utc(since), utc(self.started))
            }
            None => format!("{word} in progress since {}", utc(self.started)),
        };
        let total = human(self.total);
        let rate = |rate: f64| match self.paused {
            Some(_) => String::new(),
            // Below a byte a second it stands.
            None => format!(" at {}/s", human(rate.max(0.0) as u64)),
        };
        text.push_str(&format!(
            "\n\t{} / {total} scanned{}, {} / {total} issued{}",
            human(self.scanned.0),
            rate(self.scanned.1),
            human(self.issued.0),
            rate(self.issued.1)
        ));
        let done = if self.total == 0 { 100.0 } else { 100.0 * self.issued.0 as f64 / self.total as f64 };
        let verb = if self.is_resilver { "resilvered" } else { "repaired" };
        text.push_str(&format!("\n\t{} {verb}, {:.2}% done", human(self.processed), done.min(100.0)));
        match (&self.remaining, self.paused) {
            (_, Some(_)) => {}
            (None, None) => text.push_str(", no estimated completion time"),
            (Some(range), None) => {
                let middle = range.start + (range.end - range.start) / 2;
                let words = |time: Duration| duration(time.as_secs());
                text.push_str(&format!(", {} to go", words(middle)));
                if words(range.start) != words(range.end) {
                    text.push_str(&format!(" ({} to {})", words(range.start), words(range.end)));
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_scan_reads_as_openzfs_prints_it() {
        let scan = LiveScan {
            is_resilver: true,
            started: 1_795_226_400,
            total: 3 << 30,
            scanned: (1 << 30, 300.0 * 1048576.0),
            issued: (900 << 20, 225.0 * 1048576.0),
            processed: 450 << 20,
            remaining: Some(Duration::from_secs(9)..Duration::from_secs(9)),
            paused: None,
        };
        assert_eq!(
            scan.lines(),
            "resilver in progress since Sat Nov 21 02:00:00 2026\n\
             \t1G / 3G scanned at 300M/s, 900M / 3G issued at 225M/s\n\
             \t450M resilvered, 29.30% done, 00:00:09 to go"
        );
        let remaining = Some(Duration::from_secs(60)..Duration::from_secs(120));
        let lines = LiveScan { remaining, ..scan.clone() }.lines();
        assert!(lines.ends_with("29.30% done, 00:01:30 to go (00:01:00 to 00:02:00)"), "{lines}");
        let lines = LiveScan { remaining: None, ..scan.clone() }.lines();
        assert!(lines.ends_with("29.30% done, no estimated completion time"), "{lines}");
        let paused = LiveScan { is_resilver: false, paused: Some(1_795_226_460), ..scan };
        assert_eq!(
            paused.lines(),
            "scrub paused since Sat Nov 21 02:01:00 2026\n\tscrub started on Sat Nov 21 02:00:00 2026\n\
             \t1G / 3G scanned, 900M / 3G issued\n\t450M repaired, 29.30% done"
        );
    }
}
