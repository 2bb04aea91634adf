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
//!
//! Locks: `shared` before `entries`, `asides` and `coming` last; none of them is held while anything is waited for.
//!
//! Here is what is known of what is offered, and one pass over a pool. What becomes of one volume is beside: `offer` gives it
//! to clients, `withdraw` takes it back, `clients` says who would lose it, `aside` keeps it from everybody for a while. So are
//! targets that were set up (`shared`), what is awaited (`coming`), and what is tried again (`again`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use block::BlockVolume;
use engine::{BoxFuture, volume::LiveVolume};
use futures_util::{StreamExt as _, stream::FuturesOrdered};
use iscsi::{LogicalUnit, Target};
use parking_lot::Mutex;
use pool::dsl::Dataset;

pub(crate) use self::aside::Aside;
use self::{coming::Unread, offer::Wanted};
use crate::{
    api::{Served, ServedList, Url},
    doors::Place,
    host::chain,
    ops::Held,
    shares::{Plan, PoolShares, Portals, Threshold, VolumeShare},
};

mod again;
mod aside;
mod clients;
mod coming;
mod offer;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod withdraw;

/// How long a daemon that starts waits for its pools to be followed, all of them together.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long, from then on, those that come after a pool wait to hear which names it wants: most of it, as disks may be slow,
/// and not all, so that they are offered before anybody is let in.
const NAMES: Duration = Duration::from_secs(15);
/// Volumes and snapshots whose settings are read at a time.
const SETTINGS_AT_ONCE: usize = 64;

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

    /// When hosts of this volume are to be warned that room gets scarce.
    pub(crate) fn threshold(&self, name: &str) -> Threshold {
        self.entries.lock().get(name).map(|entry| entry.plan.threshold).unwrap_or_default()
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
        problems.extend(self.offer_placed(held, placed, &unread).await);
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

    /// Whether there is something of a volume that clients may use, or that keeps its place.
    fn is_offered(&self, name: &str) -> bool {
        self.entries.lock().get(name).is_some_and(|entry| entry.opened.is_some() || entry.disk.is_some())
    }

    async fn want_portals(&self, held: &Held, shares: &PoolShares) -> Vec<String> {
        self.portals.want_while(held.name(), &shares.portals, || !held.is_withdrawn()).await
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

/// How a volume or snapshot is to be offered.
async fn plan_of(dataset: &Dataset) -> Result<Plan, NoPlan> {
    match VolumeShare::read(dataset).await {
        Ok(VolumeShare { problem: Some(problem), .. }) => Err(NoPlan::Strange(problem)),
        Ok(share) => Ok(share.plan()),
        Err(error) => Err(NoPlan::Unread(chain(&error))),
    }
}
