//! Who watches the devices of an open pool: notices what fails, what is gone and what is back, and acts on it.
//!
//! ```text
//!   readers, writers ─▶ Reports ─┐                 ┌▶ answers: used again       │ too many errors: FAULTED, DEGRADED
//!   every few seconds, look() ───┼─▶ probe a leaf ─┼▶ NotFound: REMOVED         │ never one the pool cannot do without
//!   clear() ─────────────────────┘                 └▶ errors: FAULTED
//!   one that does not answer: failed if what it owes are writes, probed again and again if reads; used again when all that
//!   was given up has ended ([`pool::vdev::deadline`])
//!   one that is away, offline or faulted ─▶ its disk is let go, and found again ([`away`])
//!   one that failed, or gives wrong bytes ─▶ autoreplace · a spare stands in ([`stand_in`])
//!   and at each look: autoexpand ([`grow`]) · slow ones sit out ([`super::slow`]) · cache devices and spares at rest
//! ```
//!
//! One task for each pool; it reacts to errors always, and looks by itself only when somebody can open devices
//! ([`Engine::watch`]). It holds the engine weakly, and only while it does something.
//!
//! Facts: docs/format/vdevs.md §9, §9.2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use disk::Disk;
use futures_util::future::{join_all, select_all};
use pool::vdev::{Aux, Class, Deadline, Standing, State, Tree, Vdev};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use self::{
    asks::{Ask, answer},
    away::Away,
    stand_in::StandIns,
};
use super::{
    auxiliaries::Auxiliaries,
    diagnose::{Diagnosis, Report, Reports, Verdict},
    find, grow,
    probe::{PROBES_FAILED, Probed, probe},
    replicas,
    slow::Slow,
};
use crate::{
    engine::Engine,
    events::{Event, IoError},
};

mod asks;
mod away;
mod clear;
mod stand_in;

pub(crate) use asks::{Asks, asks};

/// Between two looks at all devices.
const EVERY: Duration = Duration::from_secs(5);
/// Between two looks at what went wrong: so many events a second there are at most, of one kind and device.
const BREATH: Duration = Duration::from_millis(250);
/// Pause before a pool that could not go on tries again because a device answers, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The task: until the pool is left, or its engine is gone.
pub(crate) async fn run(
    engine: Weak<Engine>,
    mut asked: mpsc::UnboundedReceiver<Ask>,
    reports: Arc<Reports>,
) {
    let mut watch = Watch::new(Arc::clone(&reports));
    let mut breath = Instant::now();
    if let Some(engine) = engine.upgrade() {
        watch.heed_silence(&engine.view().tree());
    }
    loop {
        let ask = tokio::select! {
            biased;
            ask = asked.recv() => match ask {
                Some(Ask::Close) | None => return,
                ask => ask,
            },
            () = async { reports.noted().await; sleep_until(breath).await } => None,
            () = watch.next() => None,
            () = watch.turned() => None,
        };
        let Some(engine) = engine.upgrade() else { return };
        match ask {
            Some(Ask::Watch(opener)) => {
                watch.away.open_by(opener);
                watch.next_look = Some(Instant::now() + EVERY);
            }
            Some(Ask::Look(who)) => {
                watch.look(&engine, true).await;
                answer(who, ());
            }
            Some(Ask::Clear(guid, who)) => {
                let cleared = watch.clear(&engine, guid).await;
                answer(who, cleared);
            }
            Some(Ask::Find(guid, who)) => {
                watch.away.close_excluded(&engine);
                let found = watch.away.seek(&engine, guid).await;
                answer(who, found.map(|(disk, _)| disk));
                continue;
            }
            Some(Ask::LetGo(who)) => {
                watch.away.close_excluded(&engine);
                answer(who, ());
                continue;
            }
            Some(Ask::Close) => return,
            None => {
                if watch.next_look.is_some_and(|next| next <= Instant::now()) {
                    watch.look(&engine, false).await;
                }
                if watch.next_kick.is_some_and(|next| next <= Instant::now()) {
                    watch.next_kick = None;
                    watch.trust_again(&engine).await;
                }
                watch.hear(&engine).await;
                breath = Instant::now() + BREATH;
            }
        }
        watch.heed_silence(&engine.view().tree());
        if engine.is_ending() && engine.suspended().is_none() {
            continue;
        }
        watch.away.note_places(&engine).await;
        watch.stand_ins.look(&engine, &watch.away).await;
        watch.tell_pool_state(&engine);
    }
}

/// See the module.
struct Watch {
    reports: Arc<Reports>,
    next_look: Option<Instant>,
    diagnosis: Diagnosis,
    /// Of all leaves: what they owe, and whether they did not answer in time when that was last looked at.
    deadlines: BTreeMap<u64, (Arc<Deadline>, bool)>,
    /// Probes that failed in a row.
    failed_probes: BTreeMap<u64, u32>,
    /// Leaves that are not in use and did not answer a probe: another one would only wait beside it.
    mute: BTreeSet<u64>,
    /// Leaves that answer, while the pool could not go on with them the last time.
    next_kick: Option<Instant>,
    pause: Duration,
    away: Away,
    stand_ins: StandIns,
    slow: Slow,
    auxiliaries: Auxiliaries,
    pool_state: Option<State>,
}

impl Watch {
    fn new(reports: Arc<Reports>) -> Self {
        Self {
            reports,
            next_look: None,
            diagnosis: Diagnosis::default(),
            deadlines: BTreeMap::new(),
            failed_probes: BTreeMap::new(),
            mute: BTreeSet::new(),
            next_kick: None,
            pause: PAUSES.0,
            away: Away::default(),
            stand_ins: StandIns::default(),
            slow: Slow::default(),
            auxiliaries: Auxiliaries::default(),
            pool_state: None,
        }
    }

    /// When there is something to do even if nothing happens.
    async fn next(&self) {
        match self.next_look.into_iter().chain(self.next_kick).min() {
            Some(next) => sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when a leaf does not answer any more, or does again.
    async fn turned(&self) {
        if self.deadlines.is_empty() {
            return std::future::pending().await;
        }
        let turned = self.deadlines.values().map(|(deadline, was)| Box::pin(deadline.until(!was)));
        select_all(turned).await;
    }

    /// What has turned is looked at: soon if it fell silent, at once if all that it was to do has ended.
    fn heed_silence(&mut self, tree: &Tree) {
        let mut deadlines = BTreeMap::new();
        for vdev in tree.leaves() {
            let Some(leaf) = &vdev.leaf else { continue };
            let deadline = leaf.condition.deadline();
            let is_silent = deadline.is_silent();
            match (self.deadlines.get(&vdev.guid).is_some_and(|(_, was)| *was), is_silent) {
                (false, true) => {
                    let soon = Instant::now() + EVERY;
                    self.next_look = Some(self.next_look.map_or(soon, |next| next.min(soon)));
                }
                (true, false) => self.next_kick = Some(Instant::now()),
                _ => {}
            }
            deadlines.insert(vdev.guid, (Arc::clone(deadline), is_silent));
        }
        self.deadlines = deadlines;
    }

    /// What went wrong since the last time.
    async fn hear(&mut self, engine: &Engine) {
        let mut refused: BTreeMap<u64, (Option<Verdict>, Report)> = BTreeMap::new();
        for report in self.reports.take() {
            let tree = engine.view().tree();
            // Nothing new of one that is not in use, offline or gone.
            if find::locate(&tree, report.guid).is_none_or(|place| !place.vdev.is_readable()) {
                continue;
            }
            let device = find::name(&tree, report.guid);
            let verdict = self.diagnosis.note(report.guid, report.error, report.count, Instant::now());
            engine.events().tell(Event::IoFailed {
                device: Some(device),
                error: report.error,
                at: report.at,
                count: report.count,
            });
            if report.error == IoError::Checksum {
                if verdict.is_some() {
                    self.degrade(engine, report.guid);
                }
                continue;
            }
            let entry = refused.entry(report.guid).or_insert((None, report));
            entry.0 = entry.0.or(verdict);
        }
        for (guid, (verdict, report)) in refused {
            self.judge(engine, guid, verdict, &report).await;
        }
    }

    /// A leaf refused something.
    async fn judge(&mut self, engine: &Engine, guid: u64, verdict: Option<Verdict>, report: &Report) {
        let tree = engine.view().tree();
        let Some(disk) = disk_of(&tree, guid) else { return };
        match probe(&disk).await {
            // Whoever waits for it looks again what is left.
            Probed::Gone => {
                self.remove(engine, guid, &report.what);
                engine.suspension().kick();
            }
            Probed::Failing(why) if is_spareable(&tree, guid) => {
                self.fault(engine, guid, &format!("{}; then {why}", report.what));
                engine.suspension().kick();
            }
            // It may be busy with a bad sector.
            Probed::Silent if is_spareable(&tree, guid) => {
                self.failed_probes.entry(guid).or_insert(1);
                self.next_look = self.next_look.or_else(|| Some(Instant::now() + EVERY));
            }
            // The pool cannot do without it: it is asked again later.
            Probed::Failing(_) | Probed::Silent => self.kick_later(),
            Probed::Here if verdict == Some(Verdict::Faulted) && is_spareable(&tree, guid) => {
                self.fault(engine, guid, &report.what);
                engine.suspension().kick();
            }
            Probed::Here => {
                if is_spareable(&tree, guid) || !engine.suspension().is_on() {
                    trust(engine, guid);
                    engine.suspension().kick();
                } else {
                    self.kick_later();
                }
            }
        }
    }

    /// What failed is tried again after a while, and after a longer one if it fails again.
    fn kick_later(&mut self) {
        if self.next_kick.is_none() {
            self.next_kick = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(PAUSES.1);
        }
    }

    /// Leaves that were left alone are written to again if they answer.
    async fn trust_again(&mut self, engine: &Engine) {
        let tree = engine.view().tree();
        for guid in engine.targets().suspects() {
            let Some(disk) = disk_of(&tree, guid) else { continue };
            match probe(&disk).await {
                Probed::Here => trust(engine, guid),
                Probed::Gone => self.remove(engine, guid, "it is gone"),
                Probed::Failing(_) | Probed::Silent => self.kick_later(),
            }
        }
        engine.suspension().kick();
        if !engine.suspension().is_on() {
            self.pause = PAUSES.0;
        }
    }

    /// Every device, and every place where one should be. What is offline is left at rest unless this `is_asked` for.
    async fn look(&mut self, engine: &Engine, is_asked: bool) {
        self.away.close_excluded(engine);
        if is_asked {
            self.stand_ins.try_places_again(&self.away);
        }
        let tree = engine.view().tree();
        // Before it is seen who has gone.
        let is_without = |vdev: &&Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_none());
        let without: Vec<&Vdev> = tree.leaves().into_iter().filter(is_without).collect();
        self.probe_all(engine, &tree, is_asked).await;
        // Without an opener nothing comes back by itself; but what may be failing is looked at until that is clear.
        let again = self.away.opener().is_some() || !self.failed_probes.is_empty();
        self.next_look = again.then(|| Instant::now() + EVERY);
        self.away.look(engine, &without, &mut self.diagnosis).await;
        self.away.part(engine, &mut self.auxiliaries).await;
        grow::look(engine).await;
        self.slow.look(engine).await;
        self.auxiliaries.look(engine, self.away.opener(), is_asked).await;
        if engine.scans().has_waited() {
            engine.txgs().wake();
        }
        if !engine.suspension().is_on() && self.next_kick.is_none() {
            self.pause = PAUSES.0;
        }
    }

    /// Asks every device whether it is there, and judges what does not answer well.
    async fn probe_all(&mut self, engine: &Engine, tree: &Tree, is_asked: bool) {
        let leaves = tree.leaves();
        self.mute.retain(|guid| leaves.iter().any(|vdev| vdev.guid == *guid && !vdev.is_readable()));
        let is_looked_at = |vdev: &Vdev| match vdev.state().0 {
            State::Faulted => is_asked || !self.mute.contains(&vdev.guid),
            State::Offline => is_asked,
            state => state.is_readable(),
        };
        let probes = leaves.into_iter().filter(|vdev| is_looked_at(vdev)).filter_map(|vdev| {
            let (guid, is_used, disk) = (vdev.guid, vdev.is_readable(), vdev.leaf.as_ref()?.timed()?);
            Some(async move { (guid, is_used, probe(&disk).await) })
        });
        for (guid, is_used, probed) in join_all(probes).await {
            match probed {
                // Nobody relies on it.
                Probed::Here | Probed::Failing(_) if !is_used => {}
                Probed::Silent if !is_used => {
                    self.mute.insert(guid);
                }
                Probed::Here => {
                    self.failed_probes.remove(&guid);
                    if engine.targets().suspects().contains(&guid) && !engine.suspension().is_on() {
                        trust(engine, guid);
                    }
                }
                Probed::Gone => self.remove(engine, guid, "it is gone"),
                Probed::Failing(why) => self.failed_probe(engine, guid, &why),
                Probed::Silent => self.failed_probe(engine, guid, "it does not answer"),
            }
        }
    }

    /// Another probe of a device in use failed that is there.
    fn failed_probe(&mut self, engine: &Engine, guid: u64, why: &str) {
        let failed = self.failed_probes.entry(guid).or_default();
        *failed += 1;
        if *failed >= PROBES_FAILED && is_spareable(&engine.view().tree(), guid) {
            self.fault(engine, guid, why);
        }
    }

    /// It went away.
    fn remove(&mut self, engine: &Engine, guid: u64, why: &str) {
        let tree = engine.view().tree();
        let Some(place) = find::locate(&tree, guid) else { return };
        let Some(disk) = place.vdev.leaf.as_ref().and_then(|leaf| leaf.disk()) else { return };
        self.away.park(place.vdev, disk);
        self.failed_probes.remove(&guid);
        change(engine, guid, why, |now| {
            now.disk = None;
            now.sits_out = false;
            // What waits for an administrator does so wherever it is.
            now.removed |= !now.offline && !now.faulted;
        });
    }

    /// It does not work any more.
    fn fault(&mut self, engine: &Engine, guid: u64, why: &str) {
        self.failed_probes.remove(&guid);
        change(engine, guid, why, |now| {
            (now.faulted, now.degraded, now.sits_out) = (true, false, false);
            now.aux = Aux::ErrorsExceeded;
        });
    }

    /// It gives other bytes than it should, again and again.
    fn degrade(&mut self, engine: &Engine, guid: u64) {
        let tree = engine.view().tree();
        let is_healthy =
            find::locate(&tree, guid).is_some_and(|place| place.vdev.state().0 == State::Healthy);
        if is_healthy && is_spareable(&tree, guid) {
            change(engine, guid, "too many checksum errors", |now| {
                now.degraded = true;
                now.aux = Aux::ErrorsExceeded;
            });
        }
    }

    fn tell_pool_state(&mut self, engine: &Engine) {
        let to = engine.view().tree().state().0;
        if let Some(from) = self.pool_state.replace(to).or(Some(State::Healthy)).filter(|from| *from != to) {
            engine.events().tell(Event::PoolState { from, to });
        }
    }
}

/// It is written to again, and given what it lacks.
fn trust(engine: &Engine, guid: u64) {
    engine.targets().trust(guid);
    engine.txgs().wake();
}

/// Changes how a leaf is, and tells of it. The next transaction group notes it.
fn change(engine: &Engine, guid: u64, why: &str, how: impl Fn(&mut Standing)) {
    let tree = engine.view().tree();
    let Some(place) = find::locate(&tree, guid) else { return };
    let Some(leaf) = &place.vdev.leaf else { return };
    let device = find::name(&tree, guid);
    let (from, _) = leaf.state();
    leaf.condition.update(how);
    let (to, aux) = leaf.state();
    if from == to {
        return;
    }
    tracing::warn!(device = device.name, state = to.word(aux), why, "a device changed");
    if place.top.class() == Class::Log && !to.is_readable() {
        engine.events().tell(Event::LogDeviceFailed { device: device.clone() });
    }
    if to.is_readable() && !from.is_readable() {
        engine.sweeps().go_on();
    }
    engine.events().tell(Event::DeviceState { device, from, to, aux, why: why.to_owned() });
    engine.txgs().wake();
}

/// Whether the pool can do without this leaf. Without its log devices it can always.
fn is_spareable(tree: &Tree, guid: u64) -> bool {
    let is_log = find::locate(tree, guid).is_some_and(|place| place.top.class() == Class::Log);
    is_log || !replicas::is_required(tree, guid)
}

fn disk_of(tree: &Tree, guid: u64) -> Option<Arc<dyn Disk>> {
    let place = find::locate(tree, guid)?;
    place.vdev.leaf.as_ref()?.timed()
}
