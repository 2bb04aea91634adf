//! From single errors to a verdict: what is noticed about devices, and when it is too much.
//!
//! Readers and writers note what went wrong ([`Reports`]); whoever watches takes the notes, counts them in a window of
//! ten minutes ([`Diagnosis`]) and acts. A device that answers with errors more than ten times in that time is
//! faulted, one that answers wrongly as often is degraded: it has still most of what it should, and a second opinion is
//! always at hand, the checksum.
//!
//! Facts: docs/format/vdevs.md §9.2 (a policy, not format).

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    time::Duration,
};

use parking_lot::Mutex;
use pool::Bookmark;
use tokio::{sync::Notify, time::Instant};

use crate::events::IoError;

/// Errors within [`WINDOW`] that are too many.
pub const TOLERATED: usize = 10;
/// How long an error counts.
pub const WINDOW: Duration = Duration::from_secs(600);

/// Errors of one kind of one leaf since they were last taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The leaf.
    pub guid: u64,
    /// Of which kind.
    pub error: IoError,
    /// How many.
    pub count: u64,
    /// A block that was concerned, where it is known.
    pub at: Option<Bookmark>,
    /// What the first one said.
    pub what: String,
}

/// What was noticed about devices, on its way to whoever judges it. Noting never waits; memory is bounded by the number
/// of devices.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: Mutex<BTreeMap<(u64, u8), Report>>,
    noted: Notify,
}

impl Reports {
    /// Something went wrong with leaf `guid`.
    pub fn note(&self, guid: u64, error: IoError, at: Option<Bookmark>, what: &str) {
        {
            let mut waiting = self.waiting.lock();
            let report = waiting.entry((guid, rank(error))).or_insert_with(|| Report {
                guid,
                error,
                count: 0,
                at,
                what: what.to_owned(),
            });
            report.count += 1;
            report.at = report.at.or(at);
        }
        self.noted.notify_waiters();
    }

    /// All that was noted since this was called last.
    pub fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.waiting.lock()).into_values().collect()
    }

    /// Returns when there is something to take.
    pub async fn noted(&self) {
        loop {
            let mut noted = pin!(self.noted.notified());
            noted.as_mut().enable();
            if !self.waiting.lock().is_empty() {
                return;
            }
            noted.await;
        }
    }
}

fn rank(error: IoError) -> u8 {
    match error {
        IoError::Read => 0,
        IoError::Write => 1,
        IoError::Checksum => 2,
    }
}

/// What a device deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too many refusals.
    Faulted,
    /// Too many wrong answers.
    Degraded,
}

/// Errors of the last ten minutes, by leaf.
#[derive(Debug, Default)]
pub struct Diagnosis {
    leaves: BTreeMap<u64, Recent>,
}

/// When the last errors were; more than are needed for a verdict are not kept.
#[derive(Debug, Default)]
struct Recent {
    refused: VecDeque<Instant>,
    wrong: VecDeque<Instant>,
}

impl Diagnosis {
    /// `count` more errors of leaf `guid`: what it deserves now, if it is too much.
    pub fn note(&mut self, guid: u64, error: IoError, count: u64, now: Instant) -> Option<Verdict> {
        let recent = self.leaves.entry(guid).or_default();
        let (list, verdict) = match error {
            IoError::Read | IoError::Write => (&mut recent.refused, Verdict::Faulted),
            IoError::Checksum => (&mut recent.wrong, Verdict::Degraded),
        };
        for _ in 0..count.min(TOLERATED as u64 + 1) {
            list.push_back(now);
        }
        while list.len() > TOLERATED + 1
            || list.front().is_some_and(|then| now.duration_since(*then) > WINDOW)
        {
            list.pop_front();
        }
        (list.len() > TOLERATED).then_some(verdict)
    }

    /// Forgets the errors of one leaf, or of all (`zpool clear`).
    pub fn forget(&mut self, guid: Option<u64>) {
        match guid {
            Some(guid) => drop(self.leaves.remove(&guid)),
            None => self.leaves.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_than_ten_errors_in_ten_minutes_are_too_many() {
        let mut diagnosis = Diagnosis::default();
        for _ in 0..10 {
            assert_eq!(diagnosis.note(1, IoError::Write, 1, Instant::now()), None);
            assert_eq!(diagnosis.note(2, IoError::Checksum, 1, Instant::now()), None);
        }
        assert_eq!(diagnosis.note(1, IoError::Checksum, 1, Instant::now()), None, "another kind");
        assert_eq!(diagnosis.note(1, IoError::Read, 1, Instant::now()), Some(Verdict::Faulted));
        assert_eq!(diagnosis.note(2, IoError::Checksum, 1, Instant::now()), Some(Verdict::Degraded));
        tokio::time::advance(WINDOW + Duration::from_secs(1)).await;
        assert_eq!(diagnosis.note(1, IoError::Read, 10, Instant::now()), None, "those before are forgotten");
        assert_eq!(diagnosis.note(2, IoError::Checksum, 1_000_000, Instant::now()), Some(Verdict::Degraded));
        diagnosis.forget(Some(2));
        assert_eq!(diagnosis.note(2, IoError::Checksum, 1, Instant::now()), None);
    }
}
