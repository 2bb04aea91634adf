//! What is offered to clients: by default every volume for reading and writing and every volume snapshot for reading,
//! each as a target of its own and over NBD; with settings ([`crate::shares`]) what those say.
//!
//! After each change of a pool, [`Serving::follow`] compares what is offered with what the pool has now, and puts
//! the difference right: new volumes appear, others go, a volume that grew is announced, targets, LUNs, access and portals
//! are as the pool's properties say. Nothing has to tell it what changed, so nothing can forget to.
//!
//! The difference and no more. A logical unit carries sessions, and reservations that nothing else keeps: a host that was
//! fenced must not write because somebody changed an option. So a disk stays the disk it is as long as it is the same volume
//! at the same place in the same form; everything else is put right under its clients, each protocol for itself. What
//! cannot be read at the moment changes nothing.
//!
//! Who follows a pool may hang in a read until long after that was given up, and find that another pool has its name: so
//! nothing is offered, changed or taken back without a look, under the lock of what is changed, whether the pool is still to be
//! offered (`Held::is_withdrawn`). Whoever gave it up has taken back what was offered before.
//!
//! A volume with clients is busy: it is asked about before anything is taken away from them. One whose disk was taken away is
//! nobody's before the last write that came by it has ended: it would land in what others have by then.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use block::{BlockVolume, Identity};
use engine::{BoxFuture, engine::OpenError, volume::LiveVolume};
use futures_util::{StreamExt as _, stream::FuturesOrdered};
use iscsi::{Form, LogicalUnit, Offer, Shut, Target};
use parking_lot::Mutex;
use pool::{
    dsl::{Dataset, DatasetKind, LookupError},
    volume::OpenVolumeError,
};

pub(crate) use self::aside::Aside;
use self::coming::Unread;
use crate::{
    api::{Served, ServedList, Url},
    doors::Place,
    host::chain,
    lookout,
    ops::Held,
    shares::{Place as LunPlace, Plan, PoolShares, Portals, Threshold, VolumeShare},
};

mod again;
mod aside;
mod coming;
mod shared;
#[cfg(test)]
pub(crate) mod tests;

/// How long a daemon that starts waits for its pools to be followed, all of them together.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long, from then on, those that come after a pool wait to hear which names it wants: most of it, as disks may be slow,
/// and not all, so that they are offered before anybody is let in.
const NAMES: Duration = Duration::from_secs(15);
/// Volumes and snapshots that are opened at a time: each is some small reads, one after the other.
const AT_ONCE: usize = 32;
/// Those whose settings are read at a time.
const SETTINGS_AT_ONCE: usize = 64;
/// How long the last writes of a disk that was taken away are waited for, from then on: longer than most reads of the blocks
/// that they change parts of.
const LAST_WRITES: Duration = Duration::from_secs(12);

/// The targets of a daemon, and what they offer.
pub struct Serving {
    registry: Arc<nbd::Registry>,
    nbd_server: nbd::Server,
    targets: Arc<iscsi::Targets>,
    nbd: Vec<Place>,
    portals: Arc<Portals>,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Targets that were set up, and discovery.
    shared: Mutex<shared::Shared>,
    /// Who follows a pool, by its guid: one after the other, each with the view of its turn. An older one would open again
    /// what was closed meanwhile.
    following: Mutex<BTreeMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    again: again::Again,
    coming: coming::Coming,
    /// The volume that the empty name stood for first, over NBD: its name and its guid.
    unnamed: OnceLock<(String, String)>,
    /// Volumes whose content is being replaced, or that are about to go or to get another name, by pool and name: how many
    /// mean to.
    asides: Mutex<BTreeMap<(u64, String), usize>>,
}

/// A volume or volume snapshot.
struct Entry {
    served: Served,
    /// None: it could not be opened. Then its disk, if it has one, keeps its place.
    opened: Option<Opened>,
    plan: Plan,
    is_in_nbd: bool,
    disk: Option<Disk>,
}

/// A volume as a disk of a target.
struct Disk {
    target: Arc<Target>,
    lun: u16,
    unit: Arc<LogicalUnit>,
    /// The target is there for this volume alone.
    own: bool,
}

/// A volume that was opened, as targets want it and as it is told of changes: of one that is written to.
type Opened = (Arc<dyn BlockVolume>, Option<Arc<LiveVolume>>);

/// A volume or snapshot that is to be offered.
struct Wanted<'a> {
    dataset: &'a Dataset,
    plan: Plan,
    /// Its target, if that was shut: so it is until the disk is there again.
    shut: Option<Shut>,
}

/// Why a volume is not open.
enum NotOpen {
    /// It is nothing that can be offered.
    Strange(String),
    /// It might have been a volume, or part of one, and is not.
    NoVolume,
    /// It could not be read, or lacks what its intent log holds: a disk all the same, which may be ready later.
    Unread(String),
}

/// Why there is no plan for a volume.
enum NoPlan {
    /// Its settings cannot be understood: it is not offered.
    Strange(String),
    /// They could not be read: what is offered stays.
    Unread(String),
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({} volumes)", self.entries.lock().len())
    }
}

impl Serving {
    /// Nothing yet, on targets that listen at these addresses.
    pub(crate) fn new(
        registry: Arc<nbd::Registry>,
        nbd_server: nbd::Server,
        targets: Arc<iscsi::Targets>,
        nbd: Vec<Place>,
        portals: Arc<Portals>,
    ) -> Self {
        let (entries, shared, following) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (again, coming, asides) = (again::Again::default(), coming::Coming::default(), Mutex::default());
        Self {
            registry,
            nbd_server,
            targets,
            nbd,
            portals,
            entries,
            shared,
            following,
            again,
            coming,
            unnamed: OnceLock::new(),
            asides,
        }
    }

    pub(crate) fn targets(&self) -> &Arc<iscsi::Targets> {
        &self.targets
    }

    pub(crate) fn portals(&self) -> &Arc<Portals> {
        &self.portals
    }

    pub(crate) fn nbd_server(&self) -> &nbd::Server {
        &self.nbd_server
    }

    /// All that is offered, by name, and how many clients there are.
    #[must_use]
    pub fn list(&self) -> ServedList {
        let portals = self.portals.list();
        let with_urls = |(name, entry): (&String, &Entry)| {
            let mut served = entry.served.clone();
            if entry.is_in_nbd {
                served.urls.extend(self.nbd.iter().map(|place| place.url(name)));
            }
            if let Some(Disk { target, lun, .. }) = entry.disk.as_ref().filter(|disk| !disk.unit.is_coming())
            {
                let open = portals.iter().filter(|portal| portal.is_named());
                let reached = open.filter(|portal| target.is_in_group(portal.group));
                served.urls.extend(reached.map(|portal| Url {
                    protocol: "iscsi".to_owned(),
                    url: format!("iscsi://{}/{}/{lun}", portal.address, target.iqn()),
                }));
            }
            served
        };
        let mut served: Vec<Served> = self.entries.lock().iter().map(with_urls).collect();
        // What nobody is offered is not served.
        served.retain(|served| !served.urls.is_empty() || served.refused.is_some());
        served.sort_by(|a, b| a.dataset.cmp(&b.dataset));
        ServedList {
            served,
            nbd_connections: self.nbd_server.connections().len() as u64,
            iscsi_sessions: self.targets.sessions().len() as u64,
        }
    }

    /// Clients connected to this volume or snapshot.
    #[must_use]
    pub fn clients(&self, name: &str) -> usize {
        self.count(|dataset| dataset == name)
    }

    /// Who they are.
    pub(crate) fn clients_by_name(&self, name: &str) -> Vec<String> {
        self.users(|dataset| dataset == name)
    }

    /// Clients connected to it, to its snapshots, and to what is below it. With `everywhere` a snapshot means
    /// those of its name of everything below its dataset.
    #[must_use]
    pub fn clients_below(&self, name: &str, everywhere: bool) -> usize {
        self.count(|dataset| is_below(dataset, name, everywhere))
    }

    /// Who they are.
    pub(crate) fn clients_below_by_name(&self, name: &str, everywhere: bool) -> Vec<String> {
        self.users(|dataset| is_below(dataset, name, everywhere))
    }

    /// What there is of that.
    pub(crate) fn names_below(&self, name: &str, everywhere: bool) -> Vec<String> {
        let entries = self.entries.lock();
        entries.keys().filter(|dataset| is_below(dataset, name, everywhere)).cloned().collect()
    }

    /// Clients connected to anything of a pool.
    #[must_use]
    pub fn clients_of_pool(&self, pool: &str) -> usize {
        self.count(|dataset| crate::ops::pool_of(dataset) == pool)
    }

    /// Clients that would lose this volume or snapshot if it were offered as planned; with `for_block` those count that would
    /// have it with another block size.
    pub(crate) fn cut_off_by(&self, name: &str, plan: &Plan, for_block: bool) -> usize {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(name) else { return 0 };
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter(|connection| connection.export.as_deref() == Some(name)).count();
        // One that has another block size meant for it keeps its own as long as somebody is there.
        let is_kept = match for_block {
            true => entry.plan.is_same_disk(plan),
            false => entry.plan.is_same_place(plan),
        };
        let lost = entry.disk.as_ref().filter(|_| !is_kept);
        lost.map_or(0, |disk| self.sessions_with(disk)) + if plan.nbd { 0 } else { nbd }
    }

    /// Sessions with the disk of this volume that found no write cache by its plan, and would be under one by this.
    pub(crate) fn deceived_by(&self, name: &str, plan: &Plan) -> usize {
        let entries = self.entries.lock();
        let switched = entries.get(name).filter(|entry| plan.write_cache && !entry.plan.write_cache);
        switched.and_then(|entry| entry.disk.as_ref()).map_or(0, |disk| self.sessions_with(disk))
    }

    /// Sessions with the target of a disk.
    fn sessions_with(&self, disk: &Disk) -> usize {
        self.targets.sessions().iter().filter(|session| session.target == disk.target.iqn()).count()
    }

    /// When hosts of this volume are to be warned that room gets scarce.
    pub(crate) fn threshold(&self, name: &str) -> Threshold {
        self.entries.lock().get(name).map(|entry| entry.plan.threshold).unwrap_or_default()
    }

    fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        self.users(is_meant).len()
    }

    /// A session counts for every disk of its target: whether a host has one mounted cannot be seen. And so does a copy from
    /// or to a disk that a host ordered at another target.
    fn users(&self, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter(|connection| connection.export.as_deref().is_some_and(&is_meant));
        let nbd = nbd.map(|connection| format!("an NBD client from {}", connection.peer));
        let entries = self.entries.lock();
        let meant = || entries.iter().filter(|(name, _)| is_meant(name));
        let disks: Vec<&Disk> = meant().filter_map(|(_, entry)| entry.disk.as_ref()).collect();
        let iqns: BTreeSet<&str> = disks.iter().map(|disk| disk.target.iqn()).collect();
        let sessions = self.targets.sessions();
        let of_disks = sessions.iter().filter(|session| iqns.contains(session.target.as_str()));
        let of_disks = of_disks.map(|session| format!("{} from {}", session.initiator, session.peer));
        let has_session = |disk: &Disk| sessions.iter().any(|session| session.target == disk.target.iqn());
        let copies = disks.iter().filter(|disk| disk.unit.is_in_copy() && !has_session(disk));
        let copies = copies.map(|_| "a copy that a host ordered".to_owned());
        nbd.chain(of_disks).chain(copies).collect()
    }

    /// Those of the volumes and snapshots that `is_meant` picks that have clients, as [`clients`](Self::clients) counts them.
    pub(crate) fn used(&self, is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let connections = self.nbd_server.connections().into_iter();
        let exports = connections.filter_map(|connection| connection.export);
        let mut used: BTreeSet<String> = exports.filter(|name| is_meant(name)).collect();
        let entries = self.entries.lock();
        let sessions = self.targets.sessions();
        let iqns: BTreeSet<&str> = sessions.iter().map(|session| session.target.as_str()).collect();
        let is_used = |disk: &Disk| iqns.contains(disk.target.iqn()) || disk.unit.is_in_copy();
        let disks = entries.iter().filter(|(_, entry)| entry.disk.as_ref().is_some_and(is_used));
        used.extend(disks.map(|(name, _)| name).filter(|name| is_meant(name)).cloned());
        used
    }

    /// Offers no longer this volume or snapshot of a pool.
    pub fn withdraw(&self, held: &Held, name: &str) {
        let mut entries = self.entries.lock();
        if !held.is_withdrawn() {
            self.withdraw_in(&mut entries, name);
        }
    }

    fn withdraw_in(&self, entries: &mut BTreeMap<String, Entry>, name: &str) {
        self.registry.remove(name);
        if let Some(Entry { disk: Some(disk), .. }) = entries.remove(name) {
            self.take(&disk);
        }
    }

    /// A volume is no disk any more.
    fn take(&self, disk: &Disk) {
        if disk.own {
            self.targets.remove(disk.target.iqn());
        } else {
            disk.target.remove_lun(disk.lun);
        }
    }

    /// Whether nothing lands in a volume any more that came by a disk of it which was taken away. That is waited for, but not
    /// for ever: its devices may not answer.
    async fn last_writes_ended(&self, volume: &Arc<dyn BlockVolume>) -> bool {
        self.targets.service().last_writes_ended(volume, LAST_WRITES).await
    }

    /// Offers nothing of this pool any more, not even if somebody is just following it: that may last, where devices do not
    /// answer.
    pub(crate) async fn withdraw_pool(&self, held: &Held) {
        // First: what is offered from here on is among what is taken back, or is not offered.
        held.withdraw();
        let pool = held.name();
        {
            let mut entries = self.entries.lock();
            let of_pool = entries.keys().filter(|name| crate::ops::pool_of(name) == pool);
            let names: Vec<String> = of_pool.cloned().collect();
            names.iter().for_each(|name| self.withdraw_in(&mut entries, name));
        }
        self.withdraw_targets(pool);
        self.portals.leave(pool).await;
    }

    /// Offers what these pools have when the daemon starts. Those that take long are in nobody's way, however many they are: they
    /// are offered when they can be. `tell` hears of that, and of what could not be done.
    pub(crate) async fn begin(self: &Arc<Self>, pools: Vec<Arc<Held>>, mut tell: impl FnMut(String)) {
        let began = tokio::time::Instant::now();
        let ask = |held: &Arc<Held>| {
            let held = Arc::clone(held);
            tokio::spawn(async move { PoolShares::read(&held.view()).await })
        };
        let asked: Vec<_> = pools.iter().map(ask).collect();
        let mut under_way = Vec::new();
        for (held, asked) in pools.into_iter().zip(asked) {
            // One after the other: where two want one name, it is the same one at every start that has it.
            if let Ok(Ok(Ok(shares))) = tokio::time::timeout_at(began + NAMES, asked).await {
                self.take_names(&held, &shares).await;
            }
            let (serving, name) = (Arc::clone(self), held.name().to_owned());
            under_way.push((name, tokio::spawn(async move { serving.follow(&held).await })));
        }
        for (name, mut following) in under_way {
            match tokio::time::timeout_at(began + PATIENCE, &mut following).await {
                Ok(Ok(problems)) => problems.into_iter().for_each(&mut tell),
                Ok(Err(error)) => tell(format!("not all that '{name}' has is offered: {error}")),
                Err(_) => {
                    tell(format!(
                        "'{name}' takes long to read: what of it is not offered yet is when it can be"
                    ));
                    tokio::spawn(async move {
                        for problem in following.await.unwrap_or_default() {
                            tracing::warn!(pool = name, "{problem}");
                        }
                    });
                }
            }
        }
    }

    /// Gives a pool the portals and the names of targets that it wants and no other has. Who follows it says what it does not
    /// get.
    async fn take_names(&self, held: &Held, shares: &PoolShares) {
        drop(self.want_portals(held, shares).await);
        drop(self.follow_targets(held, shares));
    }

    /// Offers what `held` has now. What could not be found out is a sentence each, and is tried again later.
    pub fn follow<'a>(&'a self, held: &'a Held) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async move {
            let turn = {
                let mut following = self.following.lock();
                following.retain(|_, turn| Arc::strong_count(turn) > 1);
                Arc::clone(following.entry(held.guid()).or_default())
            };
            let _turn = turn.lock().await;
            let (problems, mut unread) = self.put_right(held).await;
            let late = std::mem::take(&mut unread.late);
            self.again.note(held, self.is_settled(held, &problems), &problems, late);
            self.coming.note(held, unread);
            problems
        })
    }

    /// What could not be done, a sentence each, and what could not be read.
    async fn put_right(&self, held: &Held) -> (Vec<String>, Unread) {
        let view = held.view();
        let shares = match PoolShares::read(&view).await {
            Ok(shares) => shares,
            Err(error) => {
                let why = format!("cannot read the properties of '{}': {}", held.name(), chain(&error));
                return (vec![why], Unread::all());
            }
        };
        // Before anything that takes long, and before there is anything to log in to: who comes by an address that has not its
        // group yet is told that there is no such target, or has another nexus than the one that it registered.
        let mut problems = self.want_portals(held, &shares).await;
        let listed = match view.dsl().await {
            Ok(dsl) => view.heads().await.map(|listed| (dsl, listed)),
            Err(error) => Err(error),
        };
        let (dsl, (mut heads, unlisted)) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                problems.push(format!("cannot list the datasets of '{}': {}", held.name(), chain(&error)));
                return (problems, Unread::all());
            }
        };
        if held.is_withdrawn() {
            return (Vec::new(), Unread::default());
        }
        heads.retain(Dataset::may_be_volume);
        let mut is_complete = unlisted.is_empty();
        let unread = Mutex::new(Unread { any: !is_complete, ..Unread::default() });
        problems.extend(unlisted.iter().map(|problem| chain(problem)));
        problems.extend(shares.problems.iter().cloned());
        // It lacks the snapshots.
        let has: BTreeSet<&str> = heads.iter().map(Dataset::name).collect();
        self.follow_names(held, &has, false);
        problems.extend(self.follow_targets(held, &shares));
        let (wanted, mut is_known) = self.planned(held, &heads, &mut problems, &unread).await;
        // Hosts wait for volumes, and there may be dozens of snapshots to each of them. One that is a target of its own, and an
        // export, has names that no other has, and comes before anything is read of snapshots.
        let (mut placed, free): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|wanted| wanted.plan.place.is_some());
        problems.extend(self.offer_all(held, free, &unread).await);
        let (snapshots, unlisted) = dsl.snapshots_of(&heads).await;
        let snapshots: Vec<Dataset> = snapshots.into_iter().flatten().collect();
        is_complete &= unlisted.is_empty();
        unread.lock().any = !is_complete;
        problems.extend(unlisted.iter().map(|problem| chain(problem)));
        let has: BTreeSet<&str> = heads.iter().chain(&snapshots).map(Dataset::name).collect();
        self.follow_names(held, &has, is_complete);
        let (wanted, are_known) = self.planned(held, &snapshots, &mut problems, &unread).await;
        is_known &= are_known && is_complete;
        let (others, free): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|wanted| wanted.plan.place.is_some());
        // Hosts wait for all disks of a target that was set up, and some of them may be snapshots.
        placed.extend(others);
        placed.sort_by(|one, other| {
            let (one, other) = (one.dataset.live().name(), other.dataset.live().name());
            one.split('/').cmp(other.split('/'))
        });
        // Where two want one place it is the first in the tree of datasets that gets it: the other waits.
        let mut places = BTreeSet::new();
        let (first, late): (Vec<_>, Vec<_>) =
            placed.into_iter().partition(|wanted| places.insert(wanted.plan.place.clone()));
        problems.extend(self.offer_all(held, first, &unread).await);
        for wanted in late {
            problems.extend(self.offer_all(held, vec![wanted], &unread).await);
        }
        // A volume whose settings cannot be read may be a disk of any of them. What cannot be read half a minute later either
        // is damaged, and the others are not kept waiting for it.
        if is_known || self.again.has_tried(held.guid()) {
            self.targets_are_ready(held);
        }
        problems.extend(self.offer_all(held, free, &unread).await);
        (problems, unread.into_inner())
    }

    /// How these are to be offered, and whether that is known of all of them. What leaves its place has done so: that is before
    /// others that may want it.
    async fn planned<'a>(
        &self,
        held: &Held,
        datasets: &'a [Dataset],
        problems: &mut Vec<String>,
        unread: &Mutex<Unread>,
    ) -> (Vec<Wanted<'a>>, bool) {
        let mut plans: Vec<Result<Plan, NoPlan>> = Vec::with_capacity(datasets.len());
        let mut under_way = FuturesOrdered::new();
        for dataset in datasets {
            under_way.push_back(plan_of(dataset));
            if under_way.len() == SETTINGS_AT_ONCE {
                plans.extend(under_way.next().await);
            }
        }
        while let Some(plan) = under_way.next().await {
            plans.push(plan);
        }
        let (mut wanted, mut is_known) = (Vec::new(), true);
        for (dataset, mut plan) in datasets.iter().zip(plans) {
            let shut = self.leave(held, dataset, &mut plan).unwrap_or_else(|problem| {
                problems.push(problem);
                None
            });
            is_known &= !matches!(plan, Err(NoPlan::Unread(_)));
            match plan {
                Ok(plan) => wanted.push(Wanted { dataset, plan, shut }),
                // It has left its place, and is refused.
                Err(NoPlan::Strange(_)) => {}
                Err(NoPlan::Unread(why)) if self.is_offered(dataset.name()) => {
                    problems.push(format!("cannot read the properties of '{}': {why}", dataset.name()));
                }
                Err(NoPlan::Unread(why)) => {
                    unread.lock().volumes.insert(dataset.name().to_owned());
                    self.refuse(held, dataset, Plan::default(), why);
                }
            }
        }
        (wanted, is_known)
    }

    /// Offers these, some at a time: no two of them may want the same place. What could not be done is a sentence each.
    async fn offer_all(&self, held: &Held, wanted: Vec<Wanted<'_>>, unread: &Mutex<Unread>) -> Vec<String> {
        let (mut problems, mut under_way) = (Vec::<String>::new(), FuturesOrdered::new());
        for Wanted { dataset, plan, shut } in wanted {
            under_way.push_back(async move {
                let problem = self.offer(held, dataset, plan, unread).await;
                drop(shut);
                problem
            });
            if under_way.len() == AT_ONCE {
                problems.extend(under_way.next().await.flatten());
            }
        }
        while let Some(problem) = under_way.next().await {
            problems.extend(problem);
        }
        problems
    }

    /// Whether it is to be given to anybody at all.
    fn is_for_somebody(&self, plan: &Plan) -> bool {
        plan.own || plan.place.is_some() || (plan.nbd && !self.nbd.is_empty())
    }

    /// Knows of a volume or snapshot that is only read and that nobody gets: it is not opened, and takes next to no memory.
    fn keep_closed(&self, held: &Held, dataset: &Dataset, plan: Plan) {
        let mut entries = self.entries.lock();
        if !held.is_withdrawn() {
            self.withdraw_in(&mut entries, dataset.name());
            entries.insert(dataset.name().to_owned(), Entry { plan, ..Entry::new(dataset) });
        }
    }

    /// Whether there is something of a volume that clients may use, or that keeps its place.
    fn is_offered(&self, name: &str) -> bool {
        self.entries.lock().get(name).is_some_and(|entry| entry.opened.is_some() || entry.disk.is_some())
    }

    async fn want_portals(&self, held: &Held, shares: &PoolShares) -> Vec<String> {
        self.portals.want_while(held.name(), &shares.portals, || !held.is_withdrawn()).await
    }

    /// What has another name now keeps its place in a target that was set up; what is gone goes. A list that is not
    /// complete says of none that it is gone: of volumes that were open, those that are destroyed are closed, and of snapshots
    /// and what could not be read yet nobody knows more than the list does.
    fn follow_names(&self, held: &Held, has: &BTreeSet<&str>, is_complete: bool) {
        let gone: Vec<(String, Option<Arc<LiveVolume>>)> = {
            let entries = self.entries.lock();
            if held.is_withdrawn() {
                return;
            }
            let of_pool = entries.iter().filter(|(name, _)| crate::ops::pool_of(name) == held.name());
            let gone = of_pool.filter(|(name, _)| !has.contains(name.as_str()));
            gone.map(|(name, entry)| (name.clone(), entry.live().cloned())).collect()
        };
        for (name, live) in gone {
            let open = held.engine().map(|engine| engine.open_volumes()).unwrap_or_default();
            let is_open = |live: &Arc<LiveVolume>| open.iter().any(|open| Arc::ptr_eq(open, live));
            let is_closed = live.as_ref().is_some_and(|live| !is_open(live));
            match live.filter(is_open).map(|live| live.identity().name) {
                Some(new) if new != name && has.contains(new.as_str()) => self.rename(held, &name, &new),
                _ if !is_complete && !is_closed => {}
                _ => self.withdraw(held, &name),
            }
        }
    }

    /// The same volume by another name. Exports and targets of its own are named by it.
    fn rename(&self, held: &Held, name: &str, new: &str) {
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return;
        }
        self.registry.remove(name);
        let Some(mut entry) = entries.remove(name) else { return };
        entry.is_in_nbd = false;
        if let Some(own) = entry.disk.take_if(|disk| disk.own) {
            self.take(&own);
        }
        new.clone_into(&mut entry.served.dataset);
        // Another volume had the name and is gone: its export, too, leads to that one.
        self.withdraw_in(&mut entries, new);
        entries.insert(new.to_owned(), entry);
    }

    /// Takes a volume from where it will not be. A disk gets no other block size under hosts that are logged in, who would read
    /// and write elsewhere by the one that they know: then it is left as it is, in the plan too, which is a sentence. Where
    /// nobody is, nobody comes in until it has the other: its target is shut, or awaited if it is the disk's own.
    fn leave(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: &mut Result<Plan, NoPlan>,
    ) -> Result<Option<Shut>, String> {
        let name = dataset.name();
        let plan = match plan {
            Ok(plan) => plan,
            Err(NoPlan::Strange(why)) => {
                self.refuse(held, dataset, Plan::default(), why.clone());
                return Ok(None);
            }
            Err(NoPlan::Unread(_)) => return Ok(None),
        };
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return Ok(None);
        }
        let Some(entry) = entries.get_mut(name) else { return Ok(None) };
        if entry.is_in_nbd && !plan.nbd {
            self.registry.remove(name);
            entry.is_in_nbd = false;
        }
        if entry.plan.is_same_disk(plan) {
            return Ok(None);
        }
        let has_other_blocks = entry.plan.is_same_place(plan);
        let Some(disk) = entry.disk.take() else { return Ok(None) };
        // Before it is asked who is there: nobody comes in between. Else it stays open, for its other disks.
        let shut = has_other_blocks.then(|| disk.target.shut());
        let is_used = || self.targets.sessions().iter().any(|session| session.target == disk.target.iqn());
        if has_other_blocks && is_used() {
            plan.block = entry.plan.block;
            entry.disk = Some(disk);
            return Err(format!(
                "'{name}' keeps its block size of {} bytes as long as initiators are logged in ('millpond initiators')",
                plan.block
            ));
        }
        match has_other_blocks && disk.own {
            true => {
                self.coming.expect(held, name);
                self.targets.remove_for_now(disk.target.iqn());
            }
            false => self.take(&disk),
        }
        Ok(shut)
    }

    /// Does not offer one volume or snapshot, and says why. It is known all the time, with what is planned for later.
    fn refuse(&self, held: &Held, dataset: &Dataset, plan: Plan, why: String) {
        let mut entry = Entry { plan, ..Entry::new(dataset) };
        entry.served.refused = Some(why);
        let mut entries = self.entries.lock();
        if !held.is_withdrawn() {
            self.withdraw_in(&mut entries, dataset.name());
            entries.insert(dataset.name().to_owned(), entry);
        }
    }

    /// Offers a volume later that cannot be offered at the moment: its place is kept, or its target awaited. What could not be
    /// done is a sentence.
    fn put_off(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: Plan,
        why: String,
        unread: &Mutex<Unread>,
    ) -> Option<String> {
        if let Some(place) = plan.place.clone() {
            return self.keep_place(held, dataset, (plan, place), why);
        }
        if plan.own {
            unread.lock().volumes.insert(dataset.name().to_owned());
        }
        self.refuse(held, dataset, plan, why);
        None
    }

    /// Keeps the place of a volume that could not be read among the disks of its target: hosts take one that is missing for
    /// removed. What could not be done is a sentence.
    fn keep_place(
        &self,
        held: &Held,
        dataset: &Dataset,
        (plan, place): (Plan, LunPlace),
        why: String,
    ) -> Option<String> {
        let name = dataset.name();
        let target = self.shared_target(held.name(), &place.target);
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return None;
        }
        if !entries.get(name).is_some_and(|entry| entry.is_place_of(dataset)) {
            self.withdraw_in(&mut entries, name);
        }
        let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry::new(dataset));
        entry.served.refused = Some(why);
        let form = Form { block_size: plan.block, write_cache: plan.write_cache };
        entry.plan = plan;
        if entry.disk.is_some() {
            return None;
        }
        let (guid, pool_guid) = (dataset.guid(), held.guid());
        let who = Identity { name: name.to_owned(), guid, pool_guid };
        let kept = target.and_then(|target| {
            let unit = target.keep_lun(place.lun, who, form).map_err(|error| error.to_string())?;
            entry.disk = Some(Disk { target, lun: place.lun, unit, own: false });
            Ok(())
        });
        kept.err()
    }

    /// Offers one volume or snapshot as planned; what is offered of it already stays. What could not be done is a sentence.
    async fn offer(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: Plan,
        unread: &Mutex<Unread>,
    ) -> Option<String> {
        let name = dataset.name();
        let is_live = held.engine().is_some() && dataset.kind() == DatasetKind::Head;
        if !is_live && !self.is_for_somebody(&plan) {
            self.keep_closed(held, dataset, plan);
            return None;
        }
        let before = {
            let entries = self.entries.lock();
            let same = entries.get(name).filter(|entry| entry.served.guid == dataset.guid().to_string());
            same.and_then(|entry| entry.opened.clone()).filter(|(_, live)| live.is_some() == is_live)
        };
        let opened = match (&before, is_live) {
            // A snapshot is what it was.
            (Some(before), false) => Ok(before.clone()),
            _ => open(held, dataset, is_live).await,
        };
        let (volume, live) = match opened {
            Ok(opened) => opened,
            Err(NotOpen::NoVolume) => {
                self.withdraw(held, name);
                return None;
            }
            Err(NotOpen::Strange(why) | NotOpen::Unread(why)) if before.is_some() => {
                // Its target may have been taken away for another block size, and is one that comes.
                if plan.own {
                    unread.lock().volumes.insert(name.to_owned());
                }
                // Some say so themselves.
                let said = format!("cannot open '{name}'");
                return Some(if why.starts_with(&said) { why } else { format!("{said}: {why}") });
            }
            Err(NotOpen::Unread(why)) => return self.put_off(held, dataset, plan, why, unread),
            Err(NotOpen::Strange(why)) => {
                self.refuse(held, dataset, Plan::default(), why);
                return None;
            }
        };
        let same = match (&before, &live) {
            (Some((_, Some(before))), Some(now)) => Arc::ptr_eq(before, now),
            (Some((_, None)), None) => true,
            _ => false,
        };
        let (has_place, has_disk, has_export) = {
            let entries = self.entries.lock();
            let entry = entries.get(name);
            let has_disk = entry.is_some_and(|entry| entry.disk.is_some());
            let has_export = entry.is_some_and(|entry| entry.is_in_nbd);
            (entry.is_some_and(|entry| entry.is_place_of(dataset)), has_disk, has_export)
        };
        let unstable = |error| {
            format!(
                "the write cache of '{name}' is off, and what was written before is not stable: {}",
                chain(&error)
            )
        };
        let is_new_disk = (plan.own || plan.place.is_some()) && !(same && has_disk);
        let is_new_export = plan.nbd && !self.nbd.is_empty() && !has_export;
        let is_new = live.is_some() && (is_new_disk || is_new_export);
        let is_late = is_new && !self.last_writes_ended(&volume).await;
        let late = is_late.then_some("a write that came by the disk it was before is still on its way");
        if late.is_some() {
            let mut unread = unread.lock();
            unread.late.push(Arc::clone(&volume));
            if plan.own {
                unread.volumes.insert(name.to_owned());
            }
        }
        // Who finds the write cache off takes everything for stable, what was written by another way before too.
        if is_new_disk
            && late.is_none()
            && !plan.write_cache
            && let Err(error) = volume.flush().await
        {
            return match same {
                true => {
                    if plan.own {
                        unread.lock().volumes.insert(name.to_owned());
                    }
                    Some(unstable(error))
                }
                false => self.put_off(held, dataset, plan, unstable(error), unread),
            };
        }
        let target = plan.place.as_ref().map(|place| self.shared_target(held.name(), &place.target));
        let geometry = volume.geometry();
        let (write_cache, threshold) = (plan.write_cache, plan.threshold);
        let (unit, is_chosen) = {
            let mut entries = self.entries.lock();
            if held.is_withdrawn() {
                return None;
            }
            // Its own place it takes: the disk must not be missing in between. Nor is it unknown for a moment.
            if !same && !has_place {
                self.withdraw_in(&mut entries, name);
            }
            let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry::new(dataset));
            (entry.served.size, entry.served.block) = (geometry.size, geometry.block);
            entry.opened = Some((Arc::clone(&volume), live));
            let is_chosen = entry.plan.threshold != threshold;
            entry.plan = plan;
            let admitted = match late {
                _ if self.is_aside(held.guid(), name) => {
                    Err("it is being rolled back, renamed or destroyed".to_owned())
                }
                Some(why) => Err(why.to_owned()),
                None => self.admit(entry, name, volume, target),
            };
            entry.served.refused = admitted.err();
            (entry.disk.as_ref().map(|disk| Arc::clone(&disk.unit)), is_chosen)
        };
        let late = late.map(|why| format!("cannot offer '{name}' yet: {why}"));
        let Some(unit) = unit else { return late };
        unit.announce();
        lookout::warn_below(&unit, threshold);
        if is_chosen {
            unit.threshold_chosen();
        }
        unit.set_write_cache(write_cache).await.err().map(unstable).or(late)
    }

    /// Gives it to clients as planned, where they have not got it already. A protocol that cannot have it is in no other's
    /// way.
    fn admit(
        &self,
        entry: &mut Entry,
        name: &str,
        volume: Arc<dyn BlockVolume>,
        target: Option<Result<Arc<Target>, String>>,
    ) -> Result<(), String> {
        let exported = self.export(entry, name, &volume);
        let attached = self.attach(entry, name, volume, target);
        match (exported, attached) {
            (Err(nbd), Err(iscsi)) => Err(format!("{nbd}; {iscsi}")),
            (exported, attached) => exported.and(attached),
        }
    }

    fn export(&self, entry: &mut Entry, name: &str, volume: &Arc<dyn BlockVolume>) -> Result<(), String> {
        if entry.is_in_nbd {
            self.registry.describe(name, &description(&**volume));
        } else if entry.plan.nbd && !self.nbd.is_empty() {
            let inserted = self.registry.insert(name, &description(&**volume), Arc::clone(volume));
            inserted.map_err(|error| error.to_string())?;
            entry.is_in_nbd = true;
        }
        Ok(())
    }

    fn attach(
        &self,
        entry: &mut Entry,
        name: &str,
        volume: Arc<dyn BlockVolume>,
        target: Option<Result<Arc<Target>, String>>,
    ) -> Result<(), String> {
        if entry.disk.as_ref().is_some_and(|disk| !disk.unit.is_coming()) {
            return Ok(());
        }
        let (target, lun, own) = match (&entry.plan.place, target) {
            (Some(place), Some(target)) => (target?, place.lun, false),
            _ if entry.plan.own => {
                // Hosts that log in to all that is named would have every snapshot as a disk, and no retention could destroy one.
                let is_unlisted = name.contains('@');
                let offer = Offer { is_coming: true, is_unlisted, ..Offer::default() };
                let created = self.targets.create(&iscsi::iqn::for_dataset(name), offer);
                (created.map_err(|error| error.to_string())?, 0, true)
            }
            _ => return Ok(()),
        };
        let form = Form { block_size: entry.plan.block, write_cache: entry.plan.write_cache };
        let unit = target.add_lun(lun, volume, form).map_err(|error| error.to_string())?;
        if own {
            target.set_ready();
        }
        entry.disk = Some(Disk { target, lun, unit, own });
        Ok(())
    }
}

impl Entry {
    /// Nothing is offered of it.
    fn new(dataset: &Dataset) -> Self {
        let served = Served {
            dataset: dataset.name().to_owned(),
            guid: dataset.guid().to_string(),
            size: 0,
            block: 0,
            urls: Vec::new(),
            refused: None,
        };
        Self { served, opened: None, plan: Plan::default(), is_in_nbd: false, disk: None }
    }

    /// Whether it is the kept place of this volume, which could not be read.
    fn is_place_of(&self, dataset: &Dataset) -> bool {
        let is_kept = self.disk.as_ref().is_some_and(|disk| disk.unit.is_coming());
        is_kept && self.served.guid == dataset.guid().to_string()
    }

    fn live(&self) -> Option<&Arc<LiveVolume>> {
        self.opened.as_ref()?.1.as_ref()
    }
}

/// Whether a dataset is this one, one of its snapshots, or below it. With `everywhere` a snapshot means those of its name of
/// everything below its dataset.
fn is_below(dataset: &str, name: &str, everywhere: bool) -> bool {
    let below = |of: &str| {
        dataset.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    match name.split_once('@').filter(|_| everywhere) {
        Some((head, short)) => {
            below(head) && dataset.split_once('@').is_some_and(|(_, other)| other == short)
        }
        None => below(name),
    }
}

/// How a volume or snapshot is to be offered.
async fn plan_of(dataset: &Dataset) -> Result<Plan, NoPlan> {
    match VolumeShare::read(dataset).await {
        Ok(VolumeShare { problem: Some(problem), .. }) => Err(NoPlan::Strange(problem)),
        Ok(share) => Ok(share.plan()),
        Err(error) => Err(NoPlan::Unread(chain(&error))),
    }
}

async fn open(held: &Held, dataset: &Dataset, is_live: bool) -> Result<Opened, NotOpen> {
    if let Some(engine) = held.engine().filter(|_| is_live) {
        return match engine.volume(dataset.name()).await {
            Ok(volume) => Ok((Arc::clone(&volume) as Arc<dyn BlockVolume>, Some(volume))),
            Err(OpenError::NotAVolume(_)) => Err(NotOpen::NoVolume),
            Err(
                error @ (OpenError::Closed(_)
                | OpenError::Read(_)
                | OpenError::Unreplayed(_)
                | OpenError::Lookup(LookupError::Read { .. })),
            ) => Err(NotOpen::Unread(chain(&error))),
            Err(error) => Err(NotOpen::Strange(chain(&error))),
        };
    }
    match dataset.open_volume().await {
        Ok(volume) => Ok((volume, None)),
        Err(OpenVolumeError::NotAVolume(_)) => Err(NotOpen::NoVolume),
        Err(error @ (OpenVolumeError::Encrypted(_) | OpenVolumeError::Partial(_))) => {
            Err(NotOpen::Strange(error.to_string()))
        }
        Err(error) => Err(NotOpen::Unread(chain(&error))),
    }
}

/// What an NBD client's list says about a volume.
fn description(volume: &dyn BlockVolume) -> String {
    let geometry = volume.geometry();
    let access = if geometry.read_only { "read-only" } else { "read-write" };
    format!("{} bytes, {access}", geometry.size)
}
