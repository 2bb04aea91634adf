//! Who watches the devices of an open pool: notices what fails, what is gone and what is back, and acts on it.
//!
//! ```text
//!   readers, writers ─▶ Reports ─┐                 ┌▶ answers: used again       │ too many errors: FAULTED, DEGRADED
//!   every few seconds, look() ───┼─▶ probe a leaf ─┼▶ NotFound: REMOVED         │ never one the pool cannot do without
//!   clear() ─────────────────────┘                 └▶ errors: FAULTED
//!   one that does not answer: failed if what it owes are writes, probed again and again if reads; used again when all that
//!   was given up has ended ([`pool::vdev::deadline`])
//!   one that is away ─▶ its old disk, Opener ─▶ its label? ─▶ online, or put in place of a suspended pool's ─▶ kick
//!   one that is faulted or offline ─▶ its disk is closed, as soon as nothing is owed: it holds name and place of who comes
//!   next, and what it lies on could not be taken apart. clear(), online() ─▶ Opener: wherever it is by then
//!   one that failed, or gives wrong bytes ─▶ a spare stands in · autoreplace · autoexpand · slow ones sit out ([`slow`])
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
use futures_util::future::select_all;
use pool::{
    space::{addressable, expandable, fitting, misfit_in},
    vdev::{Aux, Class, Deadline, Kind, State, Tree, Vdev},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{
    NewLeaf, Opener,
    auxiliaries::Auxiliaries,
    diagnose::{Diagnosis, Report, Reports, Verdict},
    find, grow, join, leave,
    probe::{PROBE, PROBES_FAILED, Probed, answers, open, probe},
    replicas,
    slow::Slow,
    state, whose,
};
use crate::{
    BoxFuture,
    dsl::OpError,
    engine::Engine,
    events::{DeviceName, Event, IoError},
    write::{labels, ours::Ours},
};

/// Between two looks at all devices.
const EVERY: Duration = Duration::from_secs(5);
/// Between two looks at what went wrong: so many events a second there are at most, of one kind and device.
const BREATH: Duration = Duration::from_millis(250);
/// How long a suspended pool is given to find out whether it can go on.
const ATTEMPT: Duration = Duration::from_secs(60);
/// Pause before a pool that could not go on tries again because a device answers, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Pause before a spare that could not be taken is tried again.
const SPARE_PAUSE: Duration = Duration::from_secs(60);

/// What the watch is asked for.
pub(crate) enum Ask {
    Look(oneshot::Sender<()>),
    Clear(Option<u64>, oneshot::Sender<Result<(), OpError>>),
    /// The disk of a leaf that is not in use, wherever it is now.
    Find(u64, oneshot::Sender<Option<Arc<dyn Disk>>>),
    /// A leaf was taken out of use: its disk is to be closed.
    LetGo(oneshot::Sender<()>),
    Watch(Arc<dyn Opener>),
    Close,
}

/// To the watch of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Asks(mpsc::UnboundedSender<Ask>);

/// A channel to a watch, and its end.
pub(crate) fn asks() -> (Asks, mpsc::UnboundedReceiver<Ask>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Asks(sender), receiver)
}

impl Asks {
    /// The pool is left: devices are let alone.
    pub(crate) fn close(&self) {
        self.tell(Ask::Close);
    }

    fn tell(&self, ask: Ask) {
        if self.0.send(ask).is_err() {
            tracing::trace!("nobody watches any more");
        }
    }
}

impl Engine {
    /// Forgets the errors of one device or of all, opens again what failed, and lets a suspended pool go on
    /// (`zpool clear`).
    ///
    /// # Errors
    /// What suspended the pool is still in the way.
    pub fn clear(&self, guid: Option<u64>) -> BoxFuture<'_, Result<(), OpError>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks().tell(Ask::Clear(guid, answer));
            let closed = || OpError::Refused("the pool is being closed".to_owned());
            answered.await.map_err(|_| closed())??;
            if let Some(why) = self.suspension().why()
                && self.suspension().retry(ATTEMPT).await.is_some()
            {
                let why = self.suspended().unwrap_or(why);
                return Err(OpError::Refused(format!("I/O error: {why}")));
            }
            match self.suspended() {
                Some(why) => Err(OpError::Refused(format!("I/O error: {why}"))),
                None => Ok(()),
            }
        })
    }

    /// Looks at every device now: those that are gone are noticed, those that are back are opened (`zpool reopen`, an
    /// event of the system).
    pub fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks().tell(Ask::Look(answer));
            // A watch that has ended has nothing to look at.
            drop(answered.await);
        })
    }

    /// The disk of a leaf that is not in use, opened anew; none if it is not found.
    pub(super) fn find(&self, guid: u64) -> BoxFuture<'_, Option<Arc<dyn Disk>>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks().tell(Ask::Find(guid, answer));
            answered.await.ok().flatten()
        })
    }

    /// Closes the disks of leaves that are offline or faulted. One that the watch does not get to, as another hangs, is
    /// closed later.
    pub(super) fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks().tell(Ask::LetGo(answer));
            drop(timeout(PROBE, answered).await);
        })
    }

    /// Begins to watch the devices, with `opener` for those that are away. Without it nothing comes back by itself.
    pub fn watch(&self, opener: Arc<dyn Opener>) {
        self.asks().tell(Ask::Watch(opener));
    }
}

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
                watch.opener = Some(opener);
                watch.next_look = Some(Instant::now() + EVERY);
            }
            Some(Ask::Look(answer)) => {
                watch.look(&engine, true).await;
                tell(answer, ());
            }
            Some(Ask::Clear(guid, answer)) => {
                let cleared = watch.clear(&engine, guid).await;
                tell(answer, cleared);
            }
            Some(Ask::Find(guid, answer)) => {
                watch.close_excluded(&engine);
                let found = watch.seek(&engine, guid).await;
                tell(answer, found.map(|(disk, _)| disk));
                continue;
            }
            Some(Ask::LetGo(answer)) => {
                watch.close_excluded(&engine);
                tell(answer, ());
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
        watch.note_places(&engine).await;
        watch.stand_in(&engine).await;
        watch.tell_pool_state(&engine);
    }
}

fn tell<T>(who: oneshot::Sender<T>, what: T) {
    if who.send(what).is_err() {
        tracing::trace!("nobody waits for the watch any more");
    }
}

/// See the module.
struct Watch {
    reports: Arc<Reports>,
    opener: Option<Arc<dyn Opener>>,
    next_look: Option<Instant>,
    diagnosis: Diagnosis,
    /// Disks of leaves that are away: they may be back as they were.
    parked: BTreeMap<u64, Arc<dyn Disk>>,
    /// Of all leaves: what they owe, and whether they did not answer in time when that was last looked at.
    deadlines: BTreeMap<u64, (Arc<Deadline>, bool)>,
    /// Probes that failed in a row.
    failed_probes: BTreeMap<u64, u32>,
    /// Leaves that are not in use and did not answer a probe: another one would only wait beside it.
    mute: BTreeSet<u64>,
    /// Leaves that were put in their places while the pool was suspended: the configuration may know them elsewhere.
    moved: BTreeSet<u64>,
    /// Leaves that answer, while the pool could not go on with them the last time.
    next_kick: Option<Instant>,
    pause: Duration,
    /// Spares, and replacements of leaves, are not tried before.
    patience: BTreeMap<u64, Instant>,
    /// Leaves that failed and that no spare at rest fits: told once.
    unspared: BTreeSet<u64>,
    slow: Slow,
    auxiliaries: Auxiliaries,
    /// Leaves whose disks were closed because they are offline or faulted, and where they were.
    let_go: BTreeMap<u64, DeviceName>,
    pool_state: Option<State>,
}

impl Watch {
    fn new(reports: Arc<Reports>) -> Self {
        Self {
            reports,
            opener: None,
            next_look: None,
            diagnosis: Diagnosis::default(),
            parked: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            failed_probes: BTreeMap::new(),
            mute: BTreeSet::new(),
            moved: BTreeSet::new(),
            next_kick: None,
            pause: PAUSES.0,
            patience: BTreeMap::new(),
            unspared: BTreeSet::new(),
            slow: Slow::default(),
            auxiliaries: Auxiliaries::default(),
            let_go: BTreeMap::new(),
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
        self.close_excluded(engine);
        if is_asked {
            // Another device may be in the place of one by now.
            self.patience.retain(|guid, _| !self.let_go.contains_key(guid));
        }
        let tree = engine.view().tree();
        let is_without = |vdev: &&Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_none());
        let leaves = tree.leaves();
        let without: Vec<&Vdev> = leaves.iter().copied().filter(is_without).collect();
        self.mute.retain(|guid| leaves.iter().any(|vdev| vdev.guid == *guid && !vdev.is_readable()));
        let is_looked_at = |vdev: &Vdev| match vdev.state().0 {
            State::Faulted => is_asked || !self.mute.contains(&vdev.guid),
            State::Offline => is_asked,
            state => state.is_readable(),
        };
        let probes = leaves.iter().copied().filter(|vdev| is_looked_at(vdev)).filter_map(|vdev| {
            let (guid, is_used, disk) = (vdev.guid, vdev.is_readable(), vdev.leaf.as_ref()?.timed()?);
            Some(async move { (guid, is_used, probe(&disk).await) })
        });
        let probed = futures_util::future::join_all(probes).await;
        for (guid, is_used, probed) in probed {
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
                Probed::Failing(_) | Probed::Silent => {
                    let why = match probed {
                        Probed::Failing(why) => why,
                        _ => "it does not answer".to_owned(),
                    };
                    let failed = self.failed_probes.entry(guid).or_default();
                    *failed += 1;
                    if *failed >= PROBES_FAILED && is_spareable(&engine.view().tree(), guid) {
                        self.fault(engine, guid, &why);
                    }
                }
            }
        }
        // Without an opener nothing comes back by itself; but what may be failing is looked at until that is clear.
        let again = self.opener.is_some() || !self.failed_probes.is_empty();
        self.next_look = again.then(|| Instant::now() + EVERY);
        let mut away = Vec::new();
        for vdev in without {
            match vdev.state() {
                // That is an administrator's to decide.
                (_, Aux::NewerState) => {}
                (State::Removed | State::CantOpen, _) => away.push(vdev.guid),
                // One that an administrator took offline, or that has too many errors, waits for an administrator.
                _ => self.put_back(engine, vdev.guid).await,
            }
        }
        self.bring_back(engine, &away).await;
        self.part(engine).await;
        Self::expand(engine).await;
        self.slow.look(engine).await;
        self.auxiliaries.look(engine, self.opener.as_ref(), is_asked).await;
        if engine.scans().has_waited() {
            engine.txgs().wake();
        }
        if !engine.suspension().is_on() && self.next_kick.is_none() {
            self.pause = PAUSES.0;
        }
    }

    /// Closes the disks of leaves that are offline or faulted: an open device keeps what it lies on (an encrypted or a logical
    /// volume, a file system) from being taken apart, and may be a dead path to what is elsewhere by now. Not as long as it
    /// owes something, and only where it can be opened again.
    fn close_excluded(&mut self, engine: &Engine) {
        if self.opener.is_none() {
            return;
        }
        let tree = engine.view().tree();
        for vdev in tree.leaves() {
            let Some(leaf) = &vdev.leaf else { continue };
            let standing = Arc::clone(&leaf.condition.get());
            if !standing.offline && !standing.faulted {
                self.let_go.remove(&vdev.guid);
                continue;
            }
            self.parked.remove(&vdev.guid);
            if standing.disk.is_none() || leaf.condition.deadline().is_silent() {
                continue;
            }
            leaf.condition.update(|now| {
                // An administrator may take it online at this moment.
                if now.offline || now.faulted {
                    now.let_go();
                    now.sits_out = false;
                    // That it was gone before was over.
                    (now.removed, now.not_present) = (false, false);
                }
            });
            self.let_go.insert(vdev.guid, find::name(&tree, vdev.guid));
        }
    }

    /// Leaves that left the pool while they were away: nobody waits for their disks. What detaching one promises is made good if
    /// it is there again, or where it was when it was closed.
    async fn part(&mut self, engine: &Engine) {
        let view = engine.view();
        let tree = view.tree();
        let away = self.parked.keys().chain(self.let_go.keys()).copied();
        let strangers: BTreeSet<u64> = away.filter(|guid| find::locate(&tree, *guid).is_none()).collect();
        for guid in strangers {
            let (parked, closed) = (self.parked.remove(&guid), self.let_go.remove(&guid));
            let is_at_rest = view.spares().iter().any(|spare| spare.guid == guid);
            if is_at_rest {
                if let Some(disk) = parked {
                    self.auxiliaries.park(guid, disk);
                }
                continue;
            }
            let disk = match (parked, closed) {
                (None, Some(device)) => {
                    let found = self.open(&device).await;
                    // Elsewhere it may be a copy that somebody keeps.
                    let found = found.filter(|disk| device.path.as_ref() == Some(&disk.info().path));
                    if found.is_none() {
                        tracing::warn!(
                            device = device.name,
                            "labels not cleared: it cannot be opened where it was"
                        );
                    }
                    found
                }
                (parked, _) => parked,
            };
            let Some(disk) = disk else { continue };
            let newest = engine.txgs().open();
            if whose::identify(&disk, guid, &[view.guid()], newest).await.is_err() {
                continue;
            }
            let disk = Ours::over(disk, engine.suspension());
            if let Ok(Err(error)) = timeout(PROBE, labels::clear(&disk)).await {
                tracing::warn!(path = disk.info().path, %error, "labels not cleared");
            }
        }
    }

    /// The disk of a leaf that is faulted or offline is there again, and waits with it.
    async fn put_back(&mut self, engine: &Engine, guid: u64) {
        let Some(disk) = self.parked.get(&guid).cloned() else { return };
        if !answers(&disk).await {
            return;
        }
        let view = engine.view();
        let tree = view.tree();
        let Some(place) = find::locate(&tree, guid) else { return };
        let is_it = whose::is_leaf(&disk, place.vdev, view.guid()).await;
        if is_it.and_then(|_| fits(&tree, guid, &disk)).is_ok() {
            self.parked.remove(&guid);
            change(engine, guid, "it is back", |now| now.disk = Some(Arc::clone(&disk)));
        }
    }

    /// Opens leaves that are away, if they are there again. They are looked for together: each that does not answer would
    /// keep the pool from being watched for a while.
    async fn bring_back(&mut self, engine: &Engine, away: &[u64]) {
        let this = &*self;
        let seeks = away.iter().map(|&guid| async move { (guid, this.seek(engine, guid).await) });
        let found = futures_util::future::join_all(seeks).await;
        for (guid, found) in found {
            if let Some((disk, verdict)) = found {
                self.take_back(engine, guid, disk, verdict).await;
            }
        }
    }

    /// What is where a leaf should be that is away, and whether it is that leaf; if not, what to call that.
    async fn seek(&self, engine: &Engine, guid: u64) -> Option<(Arc<dyn Disk>, Result<(), Aux>)> {
        let view = engine.view();
        let tree = view.tree();
        let device = find::name(&tree, guid);
        let vdev = find::locate(&tree, guid)?.vdev;
        let leaf = vdev.leaf.as_ref()?;
        // What it was given before it went may still land.
        if leaf.condition.deadline().owes_writes() {
            return None;
        }
        let mut found = None;
        if let Some(disk) = self.parked.get(&guid)
            && answers(disk).await
        {
            found = Some(Arc::clone(disk));
        }
        if found.is_none() {
            found = self.open(&device).await;
        }
        if found.is_none() {
            // What was under way when it was closed keeps others from opening it.
            let closed = leaf.condition.get().still_open();
            if let Some(disk) = closed
                && answers(&disk).await
            {
                found = Some(disk);
            }
        }
        let disk = found?;
        let is_it = whose::is_leaf(&disk, vdev, view.guid()).await;
        let verdict = is_it.and_then(|_| fits(&tree, guid, &disk));
        Some((disk, verdict))
    }

    /// What the opener finds of a device.
    async fn open(&self, device: &DeviceName) -> Option<Arc<dyn Disk>> {
        open(&**self.opener.as_ref()?, device).await
    }

    /// Takes a leaf into use that was [found](Self::seek).
    async fn take_back(&mut self, engine: &Engine, guid: u64, disk: Arc<dyn Disk>, verdict: Result<(), Aux>) {
        let view = engine.view();
        let device = find::name(&view.tree(), guid);
        let Some(leaf) = find::locate(&view.tree(), guid).and_then(|place| place.vdev.leaf.clone()) else {
            return;
        };
        if let Err(aux) = verdict {
            let (is_told, at) = (leaf.condition.get().refused == aux, disk.info().path);
            let (from, _) = leaf.state();
            leaf.condition.update(|now| (now.refused, now.refused_at) = (aux, Some(at.clone())));
            if !is_told {
                tracing::warn!(device = device.name, at, reason = aux.note(), "what is there is not used");
                // Whoever opens the pool the next time has to know.
                if aux == Aux::NewerState {
                    let why = "it comes with transaction groups that this pool never wrote to it".to_owned();
                    engine.events().tell(Event::DeviceState { device, from, to: State::CantOpen, aux, why });
                }
            }
            return;
        }
        self.diagnosis.forget(Some(guid));
        trust(engine, guid);
        if !engine.suspension().is_on() {
            match engine.online(guid, Some(Arc::clone(&disk)), false).await {
                Ok(_) => {
                    self.parked.remove(&guid);
                    return;
                }
                // It may be what the pool was suspended for just now.
                Err(_) if engine.suspension().is_on() => {}
                Err(error) => {
                    tracing::warn!(device = device.name, %error, "cannot be taken online");
                    return;
                }
            }
        }
        // The pool waits for it within a transaction group, so no command can put it in its place.
        let is_spared = find::locate(&view.tree(), guid).is_some_and(|place| {
            place.vdev.id == 0 && place.parent.is_some_and(|parent| parent.kind == Kind::Spare)
        });
        change(engine, guid, "it is back", |now| {
            now.disk = Some(Arc::clone(&disk));
            (now.refused, now.removed, now.not_present) = (Aux::None, false, false);
            // The spare that stands in goes back when it is up to date; not from one that gives wrong bytes.
            now.unspare |= is_spared && !now.degraded;
        });
        if device.path.as_ref() != Some(&disk.info().path) {
            self.moved.insert(guid);
        }
        engine.suspension().kick();
        self.parked.remove(&guid);
    }

    /// What was put in its place without a command is known to the configuration where it is.
    async fn note_places(&mut self, engine: &Engine) {
        if engine.suspension().is_on() || engine.is_ending() {
            return;
        }
        for guid in std::mem::take(&mut self.moved) {
            let noted = engine.run(move |cx| Box::pin(async move { state::follow(cx, guid) }));
            if noted.await.is_err() {
                // It is noted when the pool goes on.
                self.moved.insert(guid);
            }
        }
    }

    /// `zpool clear`.
    async fn clear(&mut self, engine: &Engine, guid: Option<u64>) -> Result<(), OpError> {
        let view = engine.view();
        let tree = view.tree();
        let meant: Vec<&Vdev> = match guid {
            None => tree.tops.iter().collect(),
            Some(guid) => match find::locate(&tree, guid) {
                Some(place) => vec![place.vdev],
                None => match view.l2cache().iter().chain(view.spares()).find(|vdev| vdev.guid == guid) {
                    Some(beside) => vec![beside],
                    None => return Err(OpError::Refused("no such device in pool".to_owned())),
                },
            },
        };
        match guid {
            None => tree.reset_errors(),
            Some(_) => meant.iter().for_each(|vdev| reset(vdev)),
        }
        self.patience.clear();
        // What is cleared is looked for wherever it is by now.
        self.close_excluded(engine);
        let leaves = meant.iter().flat_map(|vdev| vdev.leaves());
        let is_away = |vdev: &&Vdev| {
            let standing = vdev.leaf.as_ref().map(|leaf| leaf.condition.get());
            standing.is_some_and(|now| now.disk.is_none() && !now.offline)
        };
        let away: Vec<u64> = leaves.filter(is_away).map(|vdev| vdev.guid).collect();
        self.bring_back(engine, &away).await;
        let mut may_unspare = false;
        for vdev in meant.iter().flat_map(|vdev| vdev.leaves()) {
            self.diagnosis.forget(Some(vdev.guid));
            self.failed_probes.remove(&vdev.guid);
            self.mute.remove(&vdev.guid);
            engine.targets().trust(vdev.guid);
            engine.scans().forgive(vdev.guid);
            let Some(leaf) = &vdev.leaf else { continue };
            let standing = Arc::clone(&leaf.condition.get());
            if standing.faulted || standing.degraded {
                // A spare that stands in for it goes back to rest when it is whole again.
                let is_spared = find::locate(&tree, vdev.guid).is_some_and(|place| {
                    place.parent.is_some_and(|parent| parent.kind == Kind::Spare) && vdev.id == 0
                });
                change(engine, vdev.guid, "its errors were cleared", |now| {
                    now.unspare |= is_spared && (now.faulted || now.degraded);
                    (now.faulted, now.degraded, now.aux) = (false, false, Aux::None);
                });
                may_unspare |= is_spared;
            }
        }
        // One that lacks nothing has no resilver whose end would send the spare back.
        if may_unspare
            && !engine.suspension().is_on()
            && let Err(error) = engine.run(leave::resilvered).await
        {
            tracing::warn!(%error, "a spare cannot go back");
        }
        self.auxiliaries.look(engine, self.opener.as_ref(), true).await;
        self.reports.take();
        self.pause = PAUSES.0;
        engine.events().tell(Event::Cleared { device: guid.map(|guid| find::name(&tree, guid)) });
        engine.txgs().wake();
        Ok(())
    }

    /// It went away.
    fn remove(&mut self, engine: &Engine, guid: u64, why: &str) {
        let tree = engine.view().tree();
        let Some(place) = find::locate(&tree, guid) else { return };
        let Some(disk) = place.vdev.leaf.as_ref().and_then(|leaf| leaf.disk()) else { return };
        // An open block device keeps its name from whoever comes next; a file has it for good.
        if self.opener.is_none() || place.vdev.kind == Kind::File {
            self.parked.insert(guid, disk);
        }
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

    /// Spares, and new devices in the places of old ones, for what failed.
    async fn stand_in(&mut self, engine: &Engine) {
        if engine.suspension().is_on() || engine.is_ending() {
            return;
        }
        let tree = engine.view().tree();
        let (without_stand_in, without_successor) = (without_stand_in(&tree), without_successor(&tree));
        self.unspared.retain(|guid| without_stand_in.contains(guid));
        let leaves: Vec<u64> = tree.leaves().into_iter().map(|leaf| leaf.guid).collect();
        for guid in leaves {
            if without_successor.contains(&guid) && self.is_due(guid) && self.succeed(engine, guid).await {
                continue;
            }
            if without_stand_in.contains(&guid) {
                self.find_stand_in(engine, guid).await;
            }
        }
    }

    /// Whether it is time to try this spare, or a replacement of this leaf.
    fn is_due(&self, guid: u64) -> bool {
        self.patience.get(&guid).is_none_or(|until| *until <= Instant::now())
    }

    /// From now on: what was tried may have taken a while.
    fn try_later(&mut self, guid: u64) {
        self.patience.insert(guid, Instant::now() + SPARE_PAUSE);
    }

    /// `autoreplace`: whether a new device takes the place of a leaf that is gone.
    async fn succeed(&mut self, engine: &Engine, guid: u64) -> bool {
        let tree = engine.view().tree();
        let device = find::name(&tree, guid);
        if !engine.conduct().autoreplace || disk_of(&tree, guid).is_some() {
            return false;
        }
        let Some(opener) = &self.opener else { return false };
        let found = timeout(PROBE, opener.replacement(&device)).await;
        let Ok(Some(new)) = found else {
            // One that failed may be there still, and hold up whoever looks.
            if self.let_go.contains_key(&guid) {
                self.try_later(guid);
            }
            return false;
        };
        let new = NewLeaf { ashift: new.ashift.or(Some(join::SMALLEST)), ..new };
        let replaced = match engine.try_out(&new.disk).await {
            Ok(()) => engine.replace(guid, new).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = &replaced {
            tracing::warn!(device = device.name, %error, "cannot be replaced");
            self.try_later(guid);
        }
        replaced.is_ok()
    }

    /// The first spare that can stands in for a leaf. One that cannot keeps no other from it.
    async fn find_stand_in(&mut self, engine: &Engine, guid: u64) {
        let view = engine.view();
        let device = find::name(&view.tree(), guid);
        let spares = spares_for(&view, guid);
        if spares.is_empty() && !at_rest(&view).is_empty() && self.unspared.insert(guid) {
            tracing::warn!(
                device = device.name,
                "no spare stands in: those at rest are too small, or of larger sectors"
            );
        }
        for spare in spares {
            if !self.is_due(spare) {
                continue;
            }
            let activated = match engine.try_out_spare(spare).await {
                Ok(()) => engine.activate_spare(guid, spare, None).await,
                Err(error) => Err(error),
            };
            let Err(error) = activated else { return };
            tracing::warn!(device = device.name, spare, %error, "a spare cannot stand in");
            self.try_later(spare);
            if engine.suspension().is_on() {
                return;
            }
        }
    }

    /// `autoexpand`: what offers more than the pool uses, whenever it has grown.
    async fn expand(engine: &Engine) {
        if !engine.conduct().autoexpand || engine.is_ending() {
            return;
        }
        let tree = engine.view().tree();
        for top in tree.tops.iter().filter(|top| expandable(top) > 0) {
            // It is grown the next time.
            if engine.suspension().is_on() {
                return;
            }
            let id = top.id;
            let grown = engine.run(move |cx| Box::pin(async move { grow::automatically(cx, id).await }));
            if let Err(error) = grown.await {
                tracing::warn!(device = %top, %error, "cannot grow");
            }
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
pub(super) fn change(engine: &Engine, guid: u64, why: &str, how: impl Fn(&mut pool::vdev::Standing)) {
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
    tell_of_log(engine, &device, place.top, to);
    if to.is_readable() && !from.is_readable() {
        engine.sweeps().go_on();
    }
    engine.events().tell(Event::DeviceState { device, from, to, aux, why: why.to_owned() });
    engine.txgs().wake();
}

fn tell_of_log(engine: &Engine, device: &DeviceName, top: &Vdev, to: State) {
    if top.class() == Class::Log && !to.is_readable() {
        engine.events().tell(Event::LogDeviceFailed { device: device.clone() });
    }
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

fn reset(vdev: &Vdev) {
    vdev.counters.reset();
    if let Some(leaf) = &vdev.leaf {
        leaf.pulse.reset();
    }
    vdev.children.iter().for_each(reset);
}

/// Whether the disk has room for what is on leaf `guid`: its labels would lie over blocks.
fn fits(tree: &Tree, guid: u64, disk: &Arc<dyn Disk>) -> Result<(), Aux> {
    let size = disk.info().size;
    find::locate(tree, guid).and_then(|place| fitting(place.top, size)).map(drop).ok_or(Aux::TooSmall)
}

/// Where one device should be, which may be several: a leaf of a mirror or RAIDZ, what replaces it, what stands in for it.
fn slots(tree: &Tree) -> impl Iterator<Item = &Vdev> {
    let tops = tree.tops.iter().filter(|top| top.class() != Class::Log);
    tops.flat_map(|top| match top.kind {
        Kind::Spare | Kind::Replacing => std::slice::from_ref(top),
        _ => top.children.as_slice(),
    })
}

fn has_failed(vdev: &Vdev) -> bool {
    matches!(vdev.state().0, State::Faulted | State::Removed | State::CantOpen)
}

/// Leaves that failed, or give wrong bytes, and that nothing stands in for: also not who was to do so, or to take their
/// places, and failed as well. Then it is the newest of them.
fn without_stand_in(tree: &Tree) -> Vec<u64> {
    let wanting = |slot: &Vdev| {
        let leaves = slot.leaves();
        let newest = *leaves.last()?;
        let is_wanting = match slot.leaf {
            Some(_) => has_failed(slot) || slot.state().0 == State::Degraded,
            None => has_failed(newest) && !leaves.iter().any(|leaf| leaf.is_readable()),
        };
        is_wanting.then_some(newest.guid)
    };
    slots(tree).filter_map(wanting).collect()
}

/// Leaves that failed and that nothing takes the place of; what stands in for one is to be free again.
fn without_successor(tree: &Tree) -> Vec<u64> {
    let original = |slot: &Vdev| {
        let first = if slot.kind == Kind::Spare { slot.children.first()? } else { slot };
        let is_original = first.leaf.as_ref().is_some_and(|leaf| !leaf.is_spare);
        (is_original && has_failed(first)).then_some(first.guid)
    };
    slots(tree).filter_map(original).collect()
}

/// The spares at rest that are there.
fn at_rest(view: &pool::Pool) -> Vec<&Vdev> {
    let in_use: BTreeSet<u64> = view.tree().leaves().into_iter().map(|leaf| leaf.guid).collect();
    view.spares().iter().filter(|spare| !in_use.contains(&spare.guid) && spare.is_readable()).collect()
}

/// The spares at rest that are large enough for leaf `guid` and can be written to as it is, the smallest first. One that is
/// not for this leaf is not tried, and so is ready for another.
fn spares_for(view: &pool::Pool, guid: u64) -> Vec<u64> {
    let tree = view.tree();
    let Some(place) = find::locate(&tree, guid) else { return Vec::new() };
    let sized = |spare: &Vdev| {
        let info = spare.leaf.as_ref()?.disk()?.info();
        let sector = addressable(spare.kind == Kind::File, &info);
        misfit_in(place.top, info.size, sector).is_none().then_some((info.size, spare.guid))
    };
    let mut fitting: Vec<(u64, u64)> = at_rest(view).into_iter().filter_map(sized).collect();
    fitting.sort_unstable();
    fitting.into_iter().map(|(_, guid)| guid).collect()
}
