//! The task that looks: whenever something happened, and every few seconds in any case.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use engine::events::{Event, ScanKind, ScanStep};
use futures_util::FutureExt as _;
use pool::vdev::State;

use super::{
    Alerts, expiries,
    facts::Facts,
    parts::{Catalog, Part},
    source::Source,
    survey::{self, Memory},
    words,
};
use crate::{
    api::alerts::{Alert, AlertDevice, Finding, Kind, Severity},
    disks::Disks,
    events::{Entry, Journal},
    late::Missing,
};

/// How often all is looked at without an event: this bounds how late an alert is resolved.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After an event, how long others are waited for: a disk that fails tells of itself in several.
const SETTLE: Duration = Duration::from_millis(200);
/// Pools of which something is remembered at most, against a pool that is imported and exported forever.
const REMEMBERED_MAX: usize = 10_000;

/// What outlives a look.
#[derive(Default)]
struct Seen {
    /// Number of the last event.
    event: u64,
    memory: Memory,
    /// Scans that ended, and nobody was told so far.
    ended: Vec<(u64, ScanEnd)>,
    /// What `zpool clear` was said of since the last look.
    cleared: Vec<Cleared>,
}

/// The errors of a pool, or of one of its devices and what is below, were cleared.
struct Cleared {
    pool: u64,
    device: Option<u64>,
}

impl Cleared {
    fn is_about(&self, facts: &Facts, device: u64) -> bool {
        facts.guid == self.pool && self.device.is_none_or(|whole| facts.is_within(device, whole))
    }
}

/// Names disks.
struct Names<'a> {
    disks: &'a Disks,
    labels: BTreeMap<String, String>,
}

impl Catalog for Names<'_> {
    fn device(&self, part: &Part<'_>) -> AlertDevice {
        part.described(self.disks.get(part.vdev.guid).as_ref(), &self.labels)
    }
}

impl Alerts {
    /// Begins to look. Ends when the source has nothing to look at any more, or with [`stop`](Self::stop).
    pub(crate) fn watch(self: &Arc<Self>, source: impl Source, journal: Arc<Journal>, disks: Arc<Disks>) {
        *self.events.lock() = Some((Arc::clone(&journal), 0));
        let alerts = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mut newest = journal.newest();
            let mut seen = Seen::default();
            loop {
                let turn = alerts.turn(&mut seen, &source, &journal, &disks);
                match AssertUnwindSafe(turn).catch_unwind().await {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => return,
                    // What it panicked over may be gone by the next look; without one nobody would be told of anything.
                    Err(_) => tracing::error!(
                        target: "millpond::alert",
                        "a look at the pools ended abnormally (a defect: please report what stands above); the next is taken"
                    ),
                }
                tokio::select! {
                    changed = newest.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        tokio::time::sleep(SETTLE).await;
                        newest.mark_unchanged();
                    }
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        });
        let alerts = Arc::clone(self);
        // Beside that, and on no thread that serves hosts: what is to be read may lie on a server that is away.
        let reader = tokio::spawn(async move {
            loop {
                let reading = Arc::clone(&alerts);
                if let Err(error) = tokio::task::spawn_blocking(move || reading.reread()).await {
                    tracing::error!(target: "millpond::alert", %error, "the alert settings were not looked at");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        self.tasks.lock().extend([task, reader]);
    }

    /// One look. It breaks off when there is nothing to look at any more.
    async fn turn(
        self: &Arc<Self>,
        seen: &mut Seen,
        source: &impl Source,
        journal: &Journal,
        disks: &Disks,
    ) -> ControlFlow<()> {
        self.forget_destroyed();
        let entries = journal.all_since(seen.event);
        seen.event = entries.last().map_or(seen.event, |last| last.zevent.eid);
        entries.iter().for_each(|entry| remember(&mut seen.memory, entry, (self.clock)()));
        seen.ended.extend(entries.iter().filter_map(|entry| scan_end(entry)));
        seen.cleared.extend(entries.iter().filter_map(|entry| cleared(entry)));
        let fresh: Vec<u64> = seen.ended.iter().map(|(guid, _)| *guid).collect();
        // Before the others: one that is opened meanwhile is counted among both, and not among neither.
        let missing = source.missing();
        let Some(facts) = source.facts(&fresh).await else { return ControlFlow::Break(()) };
        self.look(&facts, &missing, seen, disks);
        if !seen.cleared.is_empty() {
            // That its condition is gone outlives the daemon: nobody would clear it once more.
            self.dirty.notify_one();
            seen.cleared.clear();
        }
        for (guid, end) in seen.ended.drain(..) {
            if let Some(facts) = facts.iter().find(|facts| facts.guid == guid) {
                self.scan_ended(facts, &end);
            }
        }
        ControlFlow::Continue(())
    }

    fn look(&self, all: &[Facts], missing: &[Missing], seen: &Seen, disks: &Disks) {
        let names = Names { disks, labels: self.config.lock().0.labels.clone() };
        let now = (self.clock)();
        let mut findings = self.failing();
        findings.extend(expiries::findings(&self.expiries.lock(), now));
        findings.extend(missing.iter().map(words::missing));
        // Nobody can see how a pool is that is not open: what was wrong with it still is.
        let guids: BTreeSet<String> = missing.iter().map(|pool| pool.guid.to_string()).collect();
        let known = self.ledger.lock().book.open();
        let is_unseen = |alert: &Alert| {
            let pool = &alert.finding.pool_guid;
            // Nor does anybody see what takes a read of a pool before there was one. What was gone by then stays gone.
            let is_unread = |facts: &Facts| {
                facts.guid.to_string() == *pool && facts.is_unread(alert.finding.kind) && alert.gone.is_none()
            };
            guids.contains(pool) || all.iter().any(is_unread)
        };
        // As bad as it was told, and of the device as it is now: names may be others since the pool was opened.
        let unsettled = |alert: &Alert| {
            let kind = alert.finding.kind;
            if !matches!(kind, Kind::Errors | Kind::Slow) || alert.gone.is_some() {
                return None;
            }
            let guid = device_of(&alert.finding)?;
            let facts = all.iter().find(|facts| facts.guid.to_string() == alert.finding.pool_guid)?;
            let part = facts.no_worse(guid)?;
            if seen.cleared.iter().any(|cleared| cleared.is_about(facts, guid)) {
                return None;
            }
            let is_judged_here = facts.watched && !part.role.is_beside();
            let is_used = part.vdev.state == State::Healthy;
            if kind == Kind::Slow && (part.vdev.judged || !is_judged_here || !is_used) {
                return None;
            }
            let device = Some(names.device(&part));
            let finding = Finding { pool: facts.name.clone(), device, ..alert.finding.clone() };
            Some(match kind {
                Kind::Slow => words::slow_before(finding, &part),
                _ => words::errors_before(finding, &part),
            })
        };
        findings.extend(known.iter().filter(|alert| is_unseen(alert)).map(|alert| alert.finding.clone()));
        let open = all.iter().map(|facts| facts.guid.to_string());
        let here: BTreeSet<String> = open.chain(guids).collect();
        self.ledger.lock().book.is_looked_at(|guid| here.contains(guid));
        for facts in all {
            let space = self.level(facts.guid, Kind::Space);
            findings.extend(survey::findings(facts, &seen.memory, &names, now, space));
        }
        // Devices count from 0 when a pool is opened: that is not the end of the errors that an alert told of, nor are the
        // first of the new ones less than those; nor is a disk quick of which nobody has found that out. Behind what is seen
        // now, which stands if it is as bad.
        findings.extend(known.iter().filter_map(unsettled));
        self.see(findings);
    }

    fn scan_ended(&self, facts: &Facts, end: &ScanEnd) {
        let (kind, severity) = match end.kind {
            // A scrub that found nothing is no news.
            ScanKind::Scrub if end.errors == 0 && end.processed == 0 => return,
            ScanKind::Scrub if end.errors == 0 => (Kind::Scrub, Severity::Warning),
            ScanKind::Scrub => (Kind::Scrub, Severity::Critical),
            ScanKind::Resilver if end.errors == 0 => (Kind::Resilver, Severity::Info),
            ScanKind::Resilver => (Kind::Resilver, Severity::Critical),
        };
        let finding = facts.finding(kind, severity, 0);
        self.note(match end.kind {
            ScanKind::Scrub => words::scrub(finding, end.processed, end.errors),
            ScanKind::Resilver => words::resilver(finding, end.processed, end.errors, facts),
        });
    }
}

/// A scan that ended.
struct ScanEnd {
    kind: ScanKind,
    processed: u64,
    errors: u64,
}

fn scan_end(entry: &Entry) -> Option<(u64, ScanEnd)> {
    match &entry.cause.as_ref()?.event {
        Event::Scan { kind, step: ScanStep::Finished, processed, errors } => {
            Some((entry.guid, ScanEnd { kind: *kind, processed: *processed, errors: *errors }))
        }
        _ => None,
    }
}

fn cleared(entry: &Entry) -> Option<Cleared> {
    match &entry.cause.as_ref()?.event {
        Event::Cleared { device } => {
            Some(Cleared { pool: entry.guid, device: device.as_ref().map(|device| device.guid) })
        }
        _ => None,
    }
}

/// The guid of the device that it is about.
fn device_of(finding: &Finding) -> Option<u64> {
    finding.device.as_ref()?.guid.parse().ok()
}

/// What cannot be seen by looking.
fn remember(memory: &mut Memory, entry: &Entry, now: u64) {
    let Some(record) = &entry.cause else { return };
    match &record.event {
        Event::Slow { device, latency, peers, sits_out: true } => {
            memory.latency.insert(device.guid, (latency.as_millis() as u64, peers.as_millis() as u64));
        }
        Event::Slow { device, .. } => {
            memory.latency.remove(&device.guid);
        }
        Event::LogDeviceFailed { device } => {
            memory.logs.insert(device.guid, now);
        }
        Event::DataLost { what, .. } => {
            memory.lost.insert(entry.guid, (now, what.clone()));
        }
        Event::DeviceState { device, why, .. } => {
            memory.why.insert(device.guid, why.clone());
        }
        // `zpool clear`: what was remembered is forgotten with the errors.
        Event::Cleared { device: None } => {
            memory.lost.remove(&entry.guid);
        }
        _ => {}
    }
    let Memory { latency, logs, lost, why } = memory;
    while latency.len() > REMEMBERED_MAX {
        latency.pop_first();
    }
    while logs.len() > REMEMBERED_MAX {
        logs.pop_first();
    }
    while lost.len() > REMEMBERED_MAX {
        lost.pop_first();
    }
    while why.len() > REMEMBERED_MAX {
        why.pop_first();
    }
}
