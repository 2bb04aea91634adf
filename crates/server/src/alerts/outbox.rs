//! What waits to be sent to one sink, and when it is to be tried: a bounded queue with a digest window, a rate limit
//! and growing pauses after failures.
//!
//! ```text
//!   push ─▶ queue ─(digest window since the first)─▶ batch ─▶ sent: gone from the queue
//!                                                        └─▶ failed: stays, next try after 10 s, 20 s, … 15 min
//! ```
//!
//! A notice leaves the queue only when the other side has taken it, so a crash sends some twice and none never. A full
//! queue drops the oldest, and the next message says how many. Pure: time is an argument, in seconds since 1970.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::SinkConfig;
use crate::api::alerts::Notice;

/// Notices that wait at most: at a few hundred bytes each, a file of half a megabyte.
pub(crate) const QUEUE_MAX: usize = 1000;
/// Notices in one message at most.
pub(crate) const BATCH_MAX: usize = 50;
/// First pause after a failure, in seconds.
const PAUSE: u64 = 10;
/// Longest.
const PAUSE_MAX: u64 = 15 * 60;
/// Longest while some of those it is for get what there is.
const PAUSE_MAX_PARTLY: u64 = 60;
/// A notice that could not be sent for so long is dropped: three days, a weekend without the mail server.
const AGE_MAX: u64 = 3 * 86_400;
/// But not before so many attempts in a row failed, which with the longest pauses is two days: by the clock alone, what
/// was noticed before somebody set it is old at once. What is of a time to come is of a clock that was ahead: how old that is
/// only the attempts tell.
const ATTEMPTS_MIN: u64 = 200;
/// The time the rate limit is about.
const HOUR: u64 = 3600;
/// Failures in a row after which that is an alert of its own.
pub(crate) const FAILURES_TELL: u64 = 3;

/// What a sink's configuration says about when it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// How long notices are collected into one message, in seconds.
    pub(crate) digest: u64,
    /// Messages per hour at most.
    pub(crate) per_hour: u32,
}

impl Pace {
    pub(super) fn of(sink: &SinkConfig) -> Self {
        Self { digest: sink.digest_seconds, per_hour: sink.per_hour }
    }
}

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Outbox {
    queue: VecDeque<Notice>,
    /// When the oldest of the queue came.
    waiting_since: Option<u64>,
    /// Dropped since the last message that said so.
    dropped: u64,
    /// In all.
    pub(crate) dropped_total: u64,
    pub(crate) sent: u64,
    pub(crate) failures: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) last_success: Option<u64>,
    next_try: u64,
    /// When messages were sent, within the last hour.
    recent: VecDeque<u64>,
    /// Of the queue's first, how many are in the message under way.
    #[serde(skip)]
    under_way: usize,
    /// What only a newer version knows, as that wrote it.
    #[serde(flatten)]
    unread: BTreeMap<String, Value>,
}

/// A message's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Oldest first; never empty.
    pub(crate) notices: Vec<Notice>,
    /// How many were dropped before.
    pub(crate) dropped: u64,
}

impl Outbox {
    /// One more.
    pub(crate) fn push(&mut self, now: u64, notice: Notice) {
        self.waiting_since.get_or_insert(now);
        self.queue.push_back(notice);
        while self.queue.len() > QUEUE_MAX {
            // Those of a message under way are its own: they leave when it is done.
            let at = self.under_way.min(self.queue.len() - 1);
            if self.queue.remove(at).is_some() {
                self.dropped += 1;
                self.dropped_total += 1;
            }
        }
    }

    /// Takes over what waited before, and could not be read until now. It comes behind what may be under way.
    pub(crate) fn join(&mut self, before: Self) {
        for notice in before.queue {
            self.push(notice.time, notice);
        }
        self.dropped += before.dropped;
        self.dropped_total += before.dropped_total;
        self.sent += before.sent;
        self.unread = before.unread;
    }

    /// Drops what is not for it. No message may be under way.
    pub(crate) fn retain(&mut self, is_for_it: impl FnMut(&Notice) -> bool) {
        self.queue.retain(is_for_it);
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// It is so late. A clock that was set back must not silence a sink until it has caught up: what is of a time to come begins
    /// now, and no pause is longer than the longest.
    pub(crate) fn heed(&mut self, now: u64) {
        self.waiting_since = self.waiting_since.map(|since| since.min(now));
        self.next_try = self.next_try.min(now + PAUSE_MAX);
    }

    /// When to send; none if nothing waits.
    pub(crate) fn due(&self, now: u64, pace: Pace) -> Option<u64> {
        // Of what was kept for another version nobody here noted when it came.
        let since = self.waiting_since.unwrap_or(self.queue.front()?.time);
        // As of who heeds the clock: status may be asked for before.
        let next_try = self.next_try.min(now + PAUSE_MAX);
        let mut due = since.min(now).saturating_add(pace.digest).max(next_try);
        let limit = pace.per_hour.max(1) as usize;
        let recent: Vec<u64> =
            self.recent.iter().copied().filter(|sent| *sent <= now && sent + HOUR > now).collect();
        if recent.len() >= limit {
            due = due.max(recent[recent.len() - limit] + HOUR);
        }
        Some(due)
    }

    /// The next message.
    pub(crate) fn take(&mut self, now: u64) -> Option<Batch> {
        while self.failures >= ATTEMPTS_MIN
            && self.queue.front().is_some_and(|oldest| oldest.time.abs_diff(now) > AGE_MAX)
        {
            self.queue.pop_front();
            self.dropped += 1;
            self.dropped_total += 1;
        }
        let notices: Vec<Notice> = self.queue.iter().take(BATCH_MAX).cloned().collect();
        if notices.is_empty() {
            self.waiting_since = None;
            return None;
        }
        self.under_way = notices.len();
        Some(Batch { notices, dropped: self.dropped })
    }

    /// The other side has it.
    pub(crate) fn succeeded(&mut self, now: u64, batch: &Batch) {
        self.queue.drain(..self.under_way.min(self.queue.len()));
        self.under_way = 0;
        self.dropped -= batch.dropped.min(self.dropped);
        // What came meanwhile, or did not fit, has waited long enough.
        self.waiting_since = self.queue.front().map(|oldest| oldest.time.min(now));
        self.sent += 1;
        self.recent.push_back(now);
        self.recent.retain(|sent| sent + HOUR > now);
        (self.failures, self.next_try, self.last_error) = (0, 0, None);
        self.last_success = Some(now);
    }

    /// It has not; `after` is when the other side wants to be asked again, in seconds, if it said. `partly`: some have it,
    /// and whoever has not is tried again with what comes meanwhile.
    pub(crate) fn failed(&mut self, now: u64, error: String, after: Option<u64>, partly: bool) {
        self.under_way = 0;
        let doublings = u32::try_from(self.failures).unwrap_or(u32::MAX).min(16);
        self.failures += 1;
        self.last_error = Some(error);
        let most = if partly { PAUSE_MAX_PARTLY } else { PAUSE_MAX };
        let pause = (PAUSE << doublings).min(most);
        self.next_try = now + pause.max(after.unwrap_or(0).min(PAUSE_MAX));
    }

    /// Somebody changed how the sink is reached: it is tried at once.
    pub(crate) fn retry(&mut self) {
        self.next_try = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::alerts::{Alert, Finding, Kind, Occasion, Severity};

    fn notice(id: u64, time: u64) -> Notice {
        let finding = Finding {
            pool: "tank".into(),
            pool_guid: "7".into(),
            title: "x".into(),
            ..Finding::new(Kind::Device, Severity::Critical, 0)
        };
        Notice { occasion: Occasion::Opened, time, alert: Alert::new(id, time, finding) }
    }

    fn ids(batch: &Batch) -> Vec<u64> {
        batch.notices.iter().map(|notice| notice.alert.id).collect()
    }

    const PACE: Pace = Pace { digest: 15, per_hour: 3 };

    #[test]
    fn what_comes_within_the_window_is_one_message() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.due(0, PACE), None);
        outbox.push(100, notice(1, 100));
        outbox.push(110, notice(2, 110));
        assert_eq!(outbox.due(110, PACE), Some(115), "the window begins with the first");
        let batch = outbox.take(115).unwrap();
        assert_eq!(ids(&batch), [1, 2]);
        outbox.push(116, notice(3, 116));
        outbox.succeeded(117, &batch);
        assert_eq!((outbox.len(), outbox.due(117, PACE)), (1, Some(131)));
    }

    #[test]
    fn a_failure_keeps_everything_and_waits_longer_each_time() {
        let mut outbox = Outbox::default();
        outbox.push(0, notice(1, 0));
        let mut now = 15;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            outbox.take(now).unwrap();
            outbox.failed(now, "connection refused".into(), None, false);
            let due = outbox.due(now, PACE).unwrap();
            pauses.push(due - now);
            now = due;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 900, 900, 900]);
        outbox.failed(now, "busy".into(), Some(1_000_000), false);
        assert_eq!(outbox.due(now, PACE).unwrap() - now, 900, "whoever says 'in a week' is asked before");
        outbox.retry();
        assert_eq!(outbox.due(now, PACE), Some(15));
        let batch = outbox.take(now).unwrap();
        outbox.succeeded(now, &batch);
        assert_eq!((outbox.len(), outbox.failures, &outbox.last_error), (0, 0, &None));
    }

    #[test]
    fn a_full_queue_drops_the_oldest_and_says_so_once() {
        let mut outbox = Outbox::default();
        for id in 0..QUEUE_MAX as u64 + 7 {
            outbox.push(id, notice(id, id));
        }
        assert_eq!(outbox.len(), QUEUE_MAX);
        let batch = outbox.take(2000).unwrap();
        assert_eq!((batch.dropped, ids(&batch)[0], batch.notices.len()), (7, 7, BATCH_MAX));
        // While it is under way two more come: what is being sent stays at the front.
        outbox.push(2000, notice(5000, 2000));
        outbox.push(2000, notice(5001, 2000));
        outbox.succeeded(2001, &batch);
        let next = outbox.take(2001).unwrap();
        assert_eq!(next.dropped, 2);
        assert_eq!(ids(&next)[0], 7 + BATCH_MAX as u64 + 2);
        assert_eq!(outbox.dropped_total, 9);
    }

    #[test]
    fn a_sink_is_not_flooded() {
        let mut outbox = Outbox::default();
        let mut now = 10_000;
        for id in 0..3 {
            outbox.push(now, notice(id, now));
            now = outbox.due(now, PACE).unwrap();
            let batch = outbox.take(now).unwrap();
            outbox.succeeded(now, &batch);
        }
        assert_eq!(now, 10_045);
        outbox.push(now, notice(9, now));
        assert_eq!(outbox.due(now, PACE), Some(10_015 + HOUR), "an hour after the first of three");
        let batch = outbox.take(10_015 + HOUR).unwrap();
        outbox.succeeded(10_015 + HOUR, &batch);
        assert_eq!(outbox.sent, 4);
    }

    #[test]
    fn what_is_too_old_is_dropped_and_counted() {
        let mut outbox = Outbox::default();
        outbox.push(0, notice(1, 0));
        outbox.push(AGE_MAX, notice(2, AGE_MAX));
        let mut now = 0;
        while now <= AGE_MAX {
            assert_eq!(outbox.take(now).unwrap().dropped, 0);
            outbox.failed(now, "no route to host".into(), None, false);
            now = outbox.due(now, PACE).unwrap();
        }
        let batch = outbox.take(AGE_MAX + 1).unwrap();
        assert_eq!((ids(&batch), batch.dropped), (vec![2], 1));
    }

    /// A machine without a clock of its own begins in 1970, or when it was last shut down.
    #[test]
    fn what_was_noticed_before_the_clock_was_set_is_not_too_old() {
        let mut outbox = Outbox::default();
        outbox.push(30, notice(1, 30));
        let batch = outbox.take(1_795_330_800).unwrap();
        assert_eq!((ids(&batch), batch.dropped), (vec![1], 0));
    }

    /// It stayed until that time had come, and whatever was noticed later behind it.
    #[test]
    fn what_was_noticed_while_the_clock_was_ahead_is_dropped_after_as_many_attempts() {
        let mut outbox = Outbox::default();
        let (mut now, year) = (1_795_330_800, 365 * 86_400);
        outbox.push(now + year, notice(1, now + year));
        outbox.push(now, notice(2, now));
        for _ in 0..ATTEMPTS_MIN {
            assert_eq!(ids(&outbox.take(now).unwrap()), [1, 2]);
            outbox.failed(now, "no route to host".into(), None, false);
            now = outbox.due(now, PACE).unwrap();
        }
        let batch = outbox.take(now).unwrap();
        assert_eq!((ids(&batch), batch.dropped), (vec![2], 1));
    }

    #[test]
    fn a_restart_loses_nothing() {
        let mut outbox = Outbox::default();
        outbox.push(5, notice(1, 5));
        outbox.take(20).unwrap();
        outbox.failed(20, "no route to host".into(), None, false);
        let mut again: Outbox = serde_json::from_str(&serde_json::to_string(&outbox).unwrap()).unwrap();
        assert_eq!(again.due(21, PACE), Some(30));
        assert_eq!(ids(&again.take(30).unwrap()), [1]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_a_sink() {
        let mut outbox = Outbox::default();
        outbox.push(1_000_000, notice(1, 1_000_000));
        outbox.take(1_000_000).unwrap();
        outbox.failed(1_000_000, "no".into(), None, false);
        outbox.heed(1000);
        let due = outbox.due(1000, PACE).unwrap();
        assert!(due <= 1000 + PAUSE_MAX);
        // It moved on with the clock.
        outbox.heed(due);
        assert_eq!(outbox.due(due, PACE), Some(due));
        // Nor one that was set back while the first notices were collected.
        let mut outbox = Outbox::default();
        outbox.push(1_000_000, notice(1, 1_000_000));
        for now in [1000, 1015] {
            outbox.heed(now);
            assert_eq!(outbox.due(now, PACE), Some(1015));
        }
    }
}
