//! Leaves without a disk: how those that are away come back, and how the disks of those that are not in use are let go.
//!
//! ```text
//!   one that is away ─▶ its old disk, Opener ─▶ its label? ─▶ online, or put in place of a suspended pool's ─▶ kick
//!   one that is faulted or offline ─▶ its disk is closed, as soon as nothing is owed: it holds name and place of who comes
//!   next, and what it lies on could not be taken apart. clear(), online() ─▶ Opener: wherever it is by then
//!   one that left the pool meanwhile ─▶ its labels are cleared, if it is there again, or where it was
//! ```
//!
//! Its old disk is kept only where nobody could open it anew. A disk is never the leaf because of where it is: its labels say so
//! ([`whose`]). What a leaf was given before it went may still land on it, and it is not taken back before that has ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use disk::Disk;
use pool::{
    space::fitting,
    vdev::{Aux, Kind, Leaf, State, Tree, Vdev},
};
use tokio::time::timeout;

use super::{change, trust};
use crate::{
    devices::{
        Opener,
        auxiliaries::Auxiliaries,
        diagnose::Diagnosis,
        find,
        probe::{PROBE, answers, open},
        state, whose,
    },
    engine::Engine,
    events::{DeviceName, Event},
    write::{labels, ours::Ours},
};

/// See the module.
#[derive(Default)]
pub(super) struct Away {
    /// Without it nothing comes back by itself.
    opener: Option<Arc<dyn Opener>>,
    /// Disks of leaves that are away: they may be back as they were.
    parked: BTreeMap<u64, Arc<dyn Disk>>,
    /// Leaves whose disks were closed because they are offline or faulted, and where they were.
    closed: BTreeMap<u64, DeviceName>,
    /// Leaves that were put in their places while the pool was suspended: the configuration may know them elsewhere.
    moved: BTreeSet<u64>,
}

impl Away {
    /// From now on leaves are opened by this one.
    pub(super) fn open_by(&mut self, opener: Arc<dyn Opener>) {
        self.opener = Some(opener);
    }

    pub(super) fn opener(&self) -> Option<&Arc<dyn Opener>> {
        self.opener.as_ref()
    }

    /// Whether the disk of this leaf was closed because it is offline or faulted.
    pub(super) fn is_closed(&self, guid: u64) -> bool {
        self.closed.contains_key(&guid)
    }

    /// A leaf that had this disk went away.
    pub(super) fn park(&mut self, vdev: &Vdev, disk: Arc<dyn Disk>) {
        // An open block device keeps its name from whoever comes next; a file has it for good.
        if self.opener.is_none() || vdev.kind == Kind::File {
            self.parked.insert(vdev.guid, disk);
        }
    }

    /// Whether these leaves, which have no disk, are there again.
    pub(super) async fn look(&mut self, engine: &Engine, without: &[&Vdev], diagnosis: &mut Diagnosis) {
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
        self.bring_back(engine, &away, diagnosis).await;
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
    pub(super) async fn bring_back(&mut self, engine: &Engine, away: &[u64], diagnosis: &mut Diagnosis) {
        let this = &*self;
        let seeks = away.iter().map(|&guid| async move { (guid, this.seek(engine, guid).await) });
        let found = futures_util::future::join_all(seeks).await;
        for (guid, found) in found {
            let Some((disk, verdict)) = found else { continue };
            let tree = engine.view().tree();
            let Some(leaf) = find::locate(&tree, guid).and_then(|place| place.vdev.leaf.as_ref()) else {
                continue;
            };
            let device = find::name(&tree, guid);
            if let Err(aux) = verdict {
                refuse(engine, leaf, device, &disk, aux);
                continue;
            }
            diagnosis.forget(Some(guid));
            trust(engine, guid);
            self.take_back(engine, device, disk).await;
        }
    }

    /// What is where a leaf should be that is away, and whether it is that leaf; if not, what to call that.
    pub(super) async fn seek(&self, engine: &Engine, guid: u64) -> Option<(Arc<dyn Disk>, Result<(), Aux>)> {
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

    async fn open(&self, device: &DeviceName) -> Option<Arc<dyn Disk>> {
        open(&**self.opener.as_ref()?, device).await
    }

    /// Takes a leaf into use that was [found](Self::seek).
    async fn take_back(&mut self, engine: &Engine, device: DeviceName, disk: Arc<dyn Disk>) {
        let guid = device.guid;
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
        let tree = engine.view().tree();
        let is_spared = find::locate(&tree, guid).is_some_and(|place| place.is_spared());
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
    pub(super) async fn note_places(&mut self, engine: &Engine) {
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

    /// Closes the disks of leaves that are offline or faulted: an open device keeps what it lies on (an encrypted or a logical
    /// volume, a file system) from being taken apart, and may be a dead path to what is elsewhere by now. Not as long as it
    /// owes something, and only where it can be opened again.
    pub(super) fn close_excluded(&mut self, engine: &Engine) {
        if self.opener.is_none() {
            return;
        }
        let tree = engine.view().tree();
        for vdev in tree.leaves() {
            let Some(leaf) = &vdev.leaf else { continue };
            let standing = Arc::clone(&leaf.condition.get());
            if !standing.offline && !standing.faulted {
                self.closed.remove(&vdev.guid);
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
            self.closed.insert(vdev.guid, find::name(&tree, vdev.guid));
        }
    }

    /// Leaves that left the pool while they were away: nobody waits for their disks. What detaching one promises is made good if
    /// it is there again, or where it was when it was closed. The disk of one that is a spare at rest now is for who looks after
    /// those.
    pub(super) async fn part(&mut self, engine: &Engine, auxiliaries: &mut Auxiliaries) {
        let view = engine.view();
        let tree = view.tree();
        let away = self.parked.keys().chain(self.closed.keys()).copied();
        let strangers: BTreeSet<u64> = away.filter(|guid| find::locate(&tree, *guid).is_none()).collect();
        for guid in strangers {
            let (parked, closed) = (self.parked.remove(&guid), self.closed.remove(&guid));
            let is_at_rest = view.spares().iter().any(|spare| spare.guid == guid);
            if is_at_rest {
                if let Some(disk) = parked {
                    auxiliaries.park(guid, disk);
                }
                continue;
            }
            let disk = match (parked, closed) {
                (None, Some(device)) => self.open_where_it_was(&device).await,
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

    /// The disk of a leaf that left after it was closed. Elsewhere it may be a copy that somebody keeps.
    async fn open_where_it_was(&self, device: &DeviceName) -> Option<Arc<dyn Disk>> {
        let found = self.open(device).await;
        let found = found.filter(|disk| device.path.as_ref() == Some(&disk.info().path));
        if found.is_none() {
            tracing::warn!(device = device.name, "labels not cleared: it cannot be opened where it was");
        }
        found
    }
}

/// What is where a leaf should be is not that leaf, or not to be used: told once.
fn refuse(engine: &Engine, leaf: &Leaf, device: DeviceName, disk: &Arc<dyn Disk>, aux: Aux) {
    let (is_told, at) = (leaf.condition.get().refused == aux, disk.info().path);
    let (from, _) = leaf.state();
    leaf.condition.update(|now| (now.refused, now.refused_at) = (aux, Some(at.clone())));
    if is_told {
        return;
    }
    tracing::warn!(device = device.name, at, reason = aux.note(), "what is there is not used");
    // Whoever opens the pool the next time has to know.
    if aux == Aux::NewerState {
        let why = "it comes with transaction groups that this pool never wrote to it".to_owned();
        engine.events().tell(Event::DeviceState { device, from, to: State::CantOpen, aux, why });
    }
}

/// Whether the disk has room for what is on leaf `guid`: its labels would lie over blocks.
fn fits(tree: &Tree, guid: u64, disk: &Arc<dyn Disk>) -> Result<(), Aux> {
    let size = disk.info().size;
    find::locate(tree, guid).and_then(|place| fitting(place.top, size)).map(drop).ok_or(Aux::TooSmall)
}
