//! Which alerts are open: the difference between what is wrong now and what was wrong before, as notices.
//!
//! ```text
//!   finding, not open ──▶ open ──▶ Opened          finding gone ──(calm)──▶ history ──▶ Resolved
//!   finding, worse    ──▶ Worse                    back within that time: still the same alert, nobody is told
//! ```
//!
//! It asks what *is*, not what happened, so nothing can be missed: after a restart, or if events were lost, the next
//! look opens what is open and resolves what is over. What comes and goes (a bad cable) stays one alert: each return
//! within the hour doubles the calm that must follow before it is taken as over. One that was over and is back within the
//! hour is another alert, and has returned once more all the same.
//!
//! Pure: time is an argument.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::words;
use crate::api::alerts::{Alert, Finding, Gone, Kind, Notice, Occasion, Severity};

/// How long a condition must be gone before it is over, in seconds.
const CALM: u64 = 30;
/// The longest such time, after many returns.
const CALM_MAX: u64 = 3600;
/// Returns are counted within this time.
const RETURNS_WITHIN: u64 = 3600;
/// Alerts that are over and kept.
pub(crate) const HISTORY: usize = 500;

/// What makes two findings the same alert.
pub(crate) type Key = (Kind, String, String);

/// See [`Key`].
pub(crate) fn key(finding: &Finding) -> Key {
    let device = finding.device.as_ref().map(|device| &device.guid);
    let part = device.or(finding.sink.as_ref()).or(finding.file.as_ref()).cloned();
    (finding.kind, finding.pool_guid.clone(), part.unwrap_or_default())
}

/// An open alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Open {
    alert: Alert,
    /// Since when its condition has been gone.
    #[serde(default)]
    gone: Option<u64>,
    /// When it came back, lately.
    #[serde(default)]
    returns: Vec<u64>,
    /// When somebody was last told.
    #[serde(default)]
    told: u64,
    /// Its pool is not open here any more: that its condition is gone does not mean that it is over.
    #[serde(default)]
    left: bool,
    /// What only a newer version knows, as that wrote it.
    #[serde(flatten)]
    unread: BTreeMap<String, Value>,
}

impl Open {
    fn calm(&self) -> u64 {
        let doublings = u32::try_from(self.returns.len()).unwrap_or(u32::MAX).min(16);
        (CALM << doublings).min(CALM_MAX)
    }

    /// As it is told.
    fn told(&self) -> Alert {
        // Nobody sees whether it is gone with a pool that is not open here.
        let gone = self.gone.filter(|_| !self.left);
        let gone = gone.map(|since| Gone { since, over: since.saturating_add(self.calm()) });
        Alert { gone, ..self.alert.clone() }
    }
}

/// All alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Book {
    last_id: u64,
    open: Vec<Open>,
    history: VecDeque<Alert>,
    /// Those that were over within the last hour.
    lately: Vec<Lately>,
    /// As of [`Open`].
    #[serde(flatten)]
    unread: BTreeMap<String, Value>,
}

/// What an alert that is over leaves to the next one about the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lately {
    key: Key,
    /// When it came back.
    returns: Vec<u64>,
    /// When it was taken as over.
    over: u64,
}

/// Whether a time counts as lately. One of a clock that was ahead does not.
fn is_lately(time: u64, now: u64) -> bool {
    time <= now && time + RETURNS_WITHIN > now
}

impl Book {
    /// Nothing, because what was kept cannot be read at `now`: it numbers alerts beyond all that are in that.
    pub(super) fn apart(now: u64) -> Self {
        Self { last_id: now, ..Self::default() }
    }

    /// Goes on with what was kept, and could not be read before. What was told since has its end told, too: as what was kept, where
    /// that was open all the time.
    pub(super) fn join(&mut self, kept: Self) {
        let since = std::mem::replace(self, kept);
        self.last_id = self.last_id.max(since.last_id);
        for open in since.open {
            let about = key(&open.alert.finding);
            let Some(kept) = self.open.iter_mut().find(|kept| key(&kept.alert.finding) == about) else {
                self.open.push(open);
                continue;
            };
            if open.alert.finding.level > kept.alert.finding.level {
                kept.alert.changed = open.alert.changed;
                kept.alert.finding = open.alert.finding;
            }
            kept.alert.worst = kept.alert.worst.max(open.alert.worst);
            kept.returns.extend(open.returns);
            (kept.gone, kept.told, kept.left) = (open.gone, open.told, open.left);
        }
        since.history.into_iter().for_each(|alert| self.keep(alert));
        self.lately.retain(|old| !since.lately.iter().any(|new| new.key == old.key));
        self.lately.extend(since.lately);
    }

    /// Everything that is wrong at `now`. `remind` is after how many seconds an open critical alert is told again.
    pub(crate) fn see(&mut self, now: u64, findings: Vec<Finding>, remind: Option<u64>) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut found: BTreeMap<Key, Finding> = BTreeMap::new();
        for finding in findings {
            // Of two about the same, the worse.
            let slot = found.entry(key(&finding)).or_insert_with(|| finding.clone());
            if finding.level > slot.level {
                *slot = finding;
            }
        }
        let mut over = Vec::new();
        for (at, open) in self.open.iter_mut().enumerate() {
            match found.remove(&key(&open.alert.finding)) {
                Some(finding) => {
                    if open.gone.take().is_some() {
                        open.returns.retain(|time| is_lately(*time, now));
                        open.returns.push(now);
                        open.alert.returned += 1;
                    }
                    open.left = false;
                    // A clock that was set back must not silence it for as long.
                    open.told = open.told.min(now);
                    let before = std::mem::replace(&mut open.alert.finding, finding);
                    let now_found = &open.alert.finding;
                    let occasion = if now_found.level > before.level {
                        open.alert.changed = now;
                        Occasion::Worse
                    } else if now_found.severity == Severity::Critical
                        && remind.is_some_and(|after| open.told.saturating_add(after) <= now)
                    {
                        Occasion::Reminder
                    } else {
                        continue;
                    };
                    open.told = now;
                    open.alert.worst = open.alert.worst.max(open.alert.finding.severity);
                    notices.push(Notice { occasion, time: now, alert: open.alert.clone() });
                }
                None => {
                    let gone = *open.gone.get_or_insert(now);
                    // A clock that was set back must not keep it open.
                    if now < gone || now - gone >= open.calm() {
                        over.push(at);
                    }
                }
            }
        }
        self.lately.retain(|old| is_lately(old.over, now));
        for at in over.into_iter().rev() {
            let Open { mut alert, gone, left, returns, .. } = self.open.remove(at);
            alert.resolved = gone.or(Some(now));
            if left {
                alert.finding = words::pool_left(alert.finding);
            } else {
                self.lately.push(Lately { key: key(&alert.finding), returns, over: now });
            }
            notices.push(Notice { occasion: Occasion::Resolved, time: now, alert: alert.clone() });
            self.keep(alert);
        }
        for finding in found.into_values() {
            let alert = self.number(now, finding);
            notices.push(Notice { occasion: Occasion::Opened, time: now, alert: alert.clone() });
            let returns = self.returns(now, &key(&alert.finding));
            let unread = BTreeMap::new();
            self.open.push(Open { alert, gone: None, returns, told: now, left: false, unread });
        }
        notices
    }

    /// The pools that are looked at; nobody sees how others are.
    pub(crate) fn is_looked_at(&mut self, is_here: impl Fn(&str) -> bool) {
        for open in self.open.iter_mut().filter(|open| !open.alert.finding.pool_guid.is_empty()) {
            open.left = !is_here(&open.alert.finding.pool_guid);
        }
    }

    /// Pools that are no more: nothing of theirs is waited for.
    pub(crate) fn destroyed(&mut self, now: u64, is_gone: impl Fn(&str) -> bool) -> Vec<Notice> {
        let mut notices = Vec::new();
        let open = std::mem::take(&mut self.open);
        for open in open {
            if !is_gone(&open.alert.finding.pool_guid) {
                self.open.push(open);
                continue;
            }
            let finding = words::pool_left(open.alert.finding);
            let alert = Alert { resolved: Some(now), finding, ..open.alert };
            notices.push(Notice { occasion: Occasion::Resolved, time: now, alert: alert.clone() });
            self.keep(alert);
        }
        notices
    }

    /// Something that happened and is over: told once, kept in the history.
    pub(crate) fn note(&mut self, now: u64, finding: Finding) -> Notice {
        let alert = self.number(now, finding);
        self.keep(alert.clone());
        Notice { occasion: Occasion::Notice, time: now, alert }
    }

    /// What an alert that opens has to be counted as returns: it is new, but not to who hears of it every two minutes.
    fn returns(&mut self, now: u64, key: &Key) -> Vec<u64> {
        let Some(at) = self.lately.iter().position(|old| old.key == *key) else { return Vec::new() };
        let mut returns = self.lately.swap_remove(at).returns;
        returns.retain(|time| is_lately(*time, now));
        returns.push(now);
        returns
    }

    fn number(&mut self, now: u64, finding: Finding) -> Alert {
        self.last_id += 1;
        Alert::new(self.last_id, now, finding)
    }

    fn keep(&mut self, alert: Alert) {
        self.history.push_back(alert);
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// How bad the open alert of this key is.
    pub(crate) fn level(&self, key: &Key) -> Option<u32> {
        let open = self.open.iter().find(|open| self::key(&open.alert.finding) == *key)?;
        Some(open.alert.finding.level)
    }

    /// Open alerts, the worst first; those whose condition is gone behind the others.
    pub(crate) fn open(&self) -> Vec<Alert> {
        let mut open: Vec<Alert> = self.open.iter().map(Open::told).collect();
        open.sort_by_key(|alert| (alert.gone.is_some(), std::cmp::Reverse(alert.finding.severity), alert.id));
        open
    }

    /// Alerts that are over, oldest first.
    pub(crate) fn history(&self) -> Vec<Alert> {
        self.history.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::alerts::AlertDevice;

    pub(crate) fn finding(kind: Kind, device: &str, level: u32) -> Finding {
        Finding {
            pool: "tank".into(),
            pool_guid: "7".into(),
            device: Some(AlertDevice { guid: device.into(), ..AlertDevice::default() }),
            title: format!("{device} is bad"),
            ..Finding::new(kind, Severity::Critical, level)
        }
    }

    fn told(notices: &[Notice]) -> Vec<(Occasion, u64)> {
        notices.iter().map(|notice| (notice.occasion, notice.alert.id)).collect()
    }

    #[test]
    fn a_condition_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let mut book = Book::default();
        let bad = || vec![finding(Kind::Device, "a", 1)];
        assert_eq!(told(&book.see(100, bad(), None)), [(Occasion::Opened, 1)]);
        assert!(book.see(110, bad(), None).is_empty(), "no news");
        assert!(book.see(120, Vec::new(), None).is_empty(), "not over yet");
        assert_eq!(told(&book.see(150, Vec::new(), None)), [(Occasion::Resolved, 1)]);
        assert!(book.open().is_empty());
        assert_eq!(book.history()[0].resolved, Some(120), "when it ended, not when that was believed");
        assert_eq!(told(&book.see(200, bad(), None)), [(Occasion::Opened, 2)]);
    }

    #[test]
    fn what_comes_and_goes_is_one_alert_until_it_has_been_calm_for_long() {
        let mut book = Book::default();
        let bad = || vec![finding(Kind::Device, "a", 1)];
        let mut notices = book.see(1000, bad(), None);
        // Every ten seconds for five minutes.
        for turn in 1..=30 {
            let now = 1000 + turn * 10;
            notices.extend(book.see(now, if turn % 2 == 0 { bad() } else { Vec::new() }, None));
        }
        assert_eq!(told(&notices), [(Occasion::Opened, 1)]);
        assert_eq!(book.open()[0].returned, 15);
        assert!(book.see(1310, Vec::new(), None).is_empty());
        assert!(book.see(1310 + CALM_MAX - 1, Vec::new(), None).is_empty());
        assert_eq!(told(&book.see(1310 + CALM_MAX, Vec::new(), None)), [(Occasion::Resolved, 1)]);
    }

    /// Each time it was gone for longer than it takes to be over, and began at nothing: five notices every two minutes.
    #[test]
    fn what_comes_and_goes_slowly_becomes_one_alert_too() {
        let mut book = Book::default();
        let bad = || vec![finding(Kind::Device, "a", 1)];
        let mut notices = Vec::new();
        // For two hours, of two minutes each 20 seconds; and the daemon is begun anew all the time.
        for now in (0..7200).step_by(10) {
            book = serde_json::from_str(&serde_json::to_string(&book).unwrap()).unwrap();
            notices.extend(book.see(now, if now % 120 < 20 { bad() } else { Vec::new() }, None));
        }
        let is =
            [Occasion::Opened, Occasion::Resolved, Occasion::Opened, Occasion::Resolved, Occasion::Opened];
        let occasions: Vec<Occasion> = notices.iter().map(|notice| notice.occasion).collect();
        assert_eq!(occasions, is);
        // It went at 7100.
        assert!(book.see(7100 + CALM_MAX - 1, Vec::new(), None).is_empty());
        assert_eq!(told(&book.see(7100 + CALM_MAX, Vec::new(), None)), [(Occasion::Resolved, 3)]);
        // Of what was over for an hour nothing is left.
        let later = 7100 + 2 * CALM_MAX;
        book.see(later, bad(), None);
        book.see(later + 10, Vec::new(), None);
        assert_eq!(told(&book.see(later + 10 + CALM, Vec::new(), None)), [(Occasion::Resolved, 4)]);
        assert_eq!(book.lately.len(), 1);
    }

    /// It was shown as what is wrong now for up to an hour, with the advice to replace disks that were well again.
    #[test]
    fn an_alert_whose_condition_is_gone_says_so_and_when_it_will_be_over() {
        let mut book = Book::default();
        let mild = Finding { severity: Severity::Warning, ..finding(Kind::Errors, "b", 1) };
        book.see(100, vec![finding(Kind::Device, "a", 1), mild.clone()], None);
        assert!(book.open().iter().all(|alert| alert.gone.is_none()));
        book.see(110, vec![mild.clone()], None);
        let shown: Vec<_> = book.open().into_iter().map(|alert| (alert.id, alert.gone)).collect();
        assert_eq!(shown, [(2, None), (1, Some(Gone { since: 110, over: 110 + CALM }))]);
        // Back, and gone again: it takes longer to be believed.
        book.see(120, vec![finding(Kind::Device, "a", 1), mild.clone()], None);
        assert_eq!(book.open()[0].gone, None);
        book.see(130, vec![mild.clone()], None);
        assert_eq!(book.open()[1].gone, Some(Gone { since: 130, over: 130 + 2 * CALM }));
        let over = book.see(130 + 2 * CALM, vec![mild], None);
        assert_eq!((over[0].alert.resolved, over[0].alert.gone), (Some(130), None));
    }

    #[test]
    fn it_is_told_again_when_it_becomes_worse_and_not_when_it_becomes_better() {
        let mut book = Book::default();
        let space = |level| vec![Finding { device: None, ..finding(Kind::Space, "", level) }];
        assert_eq!(told(&book.see(1, space(1), None)), [(Occasion::Opened, 1)]);
        assert_eq!(told(&book.see(2, space(3), None)), [(Occasion::Worse, 1)]);
        assert!(book.see(3, space(2), None).is_empty());
        assert_eq!(book.level(&key(&space(0)[0])), Some(2));
        assert_eq!(told(&book.see(4, space(3), None)), [(Occasion::Worse, 1)]);
    }

    #[test]
    fn two_devices_are_two_alerts_and_one_that_fails_twice_is_one() {
        let mut book = Book::default();
        let both =
            vec![finding(Kind::Device, "a", 1), finding(Kind::Device, "b", 1), finding(Kind::Device, "a", 4)];
        assert_eq!(told(&book.see(1, both, None)).len(), 2);
        assert_eq!(book.level(&(Kind::Device, "7".into(), "a".into())), Some(4));
    }

    #[test]
    fn a_critical_alert_is_remembered_every_day() {
        let mut book = Book::default();
        let bad = || vec![finding(Kind::Device, "a", 1)];
        book.see(0, bad(), Some(86_400));
        assert!(book.see(86_399, bad(), Some(86_400)).is_empty());
        assert_eq!(told(&book.see(86_400, bad(), Some(86_400))), [(Occasion::Reminder, 1)]);
        assert!(book.see(86_410, bad(), Some(86_400)).is_empty());
        let mild = vec![Finding { severity: Severity::Warning, ..finding(Kind::Errors, "b", 1) }];
        book.see(90_000, mild.clone(), Some(86_400));
        let later = book.see(300_000, mild, Some(86_400));
        assert!(later.iter().all(|notice| notice.occasion != Occasion::Reminder));
    }

    /// A clock that was wrong for a while, and years ahead, silenced reminders for as many years.
    #[test]
    fn a_clock_that_is_set_back_puts_no_reminder_and_no_end_off() {
        let mut book = Book::default();
        let (day, year) = (86_400, 365 * 86_400);
        let bad = || vec![finding(Kind::Device, "a", 1)];
        book.see(year, bad(), Some(day));
        book.see(year + 1, Vec::new(), Some(day));
        book.see(year + 2, bad(), Some(day));
        assert!(book.see(100, bad(), Some(day)).is_empty(), "told a moment ago");
        assert_eq!(told(&book.see(100 + day, bad(), Some(day))), [(Occasion::Reminder, 1)]);
        // What came back then is not counted for ever.
        book.see(200 + day, Vec::new(), Some(day));
        book.see(201 + day, bad(), Some(day));
        book.see(300 + day, Vec::new(), Some(day));
        assert_eq!(told(&book.see(300 + day + 2 * CALM, Vec::new(), Some(day))), [(Occasion::Resolved, 1)]);
    }

    /// It was told as resolved, and the pool went to the next host as broken as it was.
    #[test]
    fn what_was_wrong_with_a_pool_that_is_exported_is_not_told_as_over() {
        let mut book = Book::default();
        let bad = || vec![finding(Kind::Device, "a", 1)];
        book.see(0, bad(), None);
        book.is_looked_at(|_| false);
        book.see(10, Vec::new(), None);
        let closed = book.see(40, Vec::new(), None);
        assert_eq!(told(&closed), [(Occasion::Resolved, 1)]);
        let title = &closed[0].alert.finding.title;
        assert!(title.contains("'tank' is not open here any more") && title.contains("a is bad"), "{title}");
        // One that is back in time is looked at again.
        book.see(100, bad(), None);
        book.is_looked_at(|_| false);
        book.see(110, Vec::new(), None);
        book.is_looked_at(|guid| guid == "7");
        book.see(120, Vec::new(), None);
        assert_eq!(book.see(150, Vec::new(), None)[0].alert.finding.title, "a is bad");
    }

    #[test]
    fn a_restart_changes_nothing() {
        let mut book = Book::default();
        book.see(5, vec![finding(Kind::Device, "a", 1), finding(Kind::Errors, "b", 2)], None);
        let mut again: Book = serde_json::from_str(&serde_json::to_string(&book).unwrap()).unwrap();
        assert_eq!(again, book);
        assert!(again.see(100, vec![finding(Kind::Device, "a", 1)], None).is_empty(), "told before");
        assert_eq!(
            told(&again.see(131, vec![finding(Kind::Device, "a", 1)], None)),
            [(Occasion::Resolved, 2)]
        );
    }

    /// Nothing was known any more of what had been told before that could be read.
    #[test]
    fn what_was_told_while_nothing_was_known_goes_on_beside_what_is_known_again() {
        let (a, b) = (|level| finding(Kind::Device, "a", level), || finding(Kind::Device, "b", 1));
        let mut kept = Book::default();
        kept.see(100, vec![a(1)], None);
        let mut book = Book::apart(1000);
        book.note(1000, finding(Kind::Scrub, "", 0));
        book.see(1000, vec![a(2), b()], None);
        book.join(kept);
        assert!(book.see(1010, vec![a(2), b()], None).is_empty(), "all of it was told");
        assert_eq!(told(&book.see(1020, vec![a(3), b()], None)), [(Occasion::Worse, 1)]);
        assert_eq!(told(&[book.note(1020, finding(Kind::Scrub, "", 0))]), [(Occasion::Notice, 1004)]);
        book.see(1030, Vec::new(), None);
        let over = told(&book.see(1030 + CALM, Vec::new(), None));
        assert_eq!(over, [(Occasion::Resolved, 1003), (Occasion::Resolved, 1)]);
        let ids: Vec<u64> = book.history().iter().map(|alert| alert.id).collect();
        assert_eq!(ids, [1001, 1004, 1003, 1]);
    }

    #[test]
    fn what_is_over_is_kept_within_bounds() {
        let mut book = Book::default();
        for now in 0..HISTORY as u64 + 20 {
            book.note(now, finding(Kind::Scrub, "", 0));
        }
        let history = book.history();
        assert_eq!((history.len(), history[0].id), (HISTORY, 21));
    }
}
