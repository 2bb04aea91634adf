//! What is offered to clients: by default every volume for reading and writing and every volume snapshot for reading,
//! each as a target of its own and over NBD; with settings ([`crate::shares`]) what those say.
//!
//! After each change of a pool, [`Serving::follow`] compares what is offered with what the pool has now, and puts
//! the difference right: new volumes appear, others go, a volume that grew is announced, targets, LUNs, access and portals
//! are as the pool's properties say. Nothing has to tell it what changed, so nothing can forget to.
//!
//! A volume with clients is busy: it is asked about before anything is taken away from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use block::BlockVolume;
use engine::volume::LiveVolume;
use iscsi::{LogicalUnit, Offer, Target};
use parking_lot::Mutex;
use pool::{
    dsl::{Dataset, DatasetKind},
    volume::OpenVolumeError,
};

use crate::{
    api::{Served, ServedList, Url},
    doors::Place,
    host::chain,
    ops::Held,
    shares::{Plan, PoolShares, Portals, Threshold, VolumeShare},
};

mod shared;

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
}

/// A volume or volume snapshot.
struct Entry {
    served: Served,
    /// The open volume, of one that is written to.
    live: Option<Arc<LiveVolume>>,
    plan: Plan,
    is_in_nbd: bool,
    disk: Option<Disk>,
}

/// A volume as a disk of a target.
struct Disk {
    target: Arc<Target>,
    lun: u16,
    unit: Arc<LogicalUnit>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({} volumes)", self.entries.lock().len())
    }
}

/// A volume that was opened, as targets want it and as it is told of changes.
type Opened = (Arc<dyn BlockVolume>, Option<Arc<LiveVolume>>);

impl Serving {
    /// Nothing yet, on targets that listen at these addresses.
    pub(crate) fn new(
        registry: Arc<nbd::Registry>,
        nbd_server: nbd::Server,
        targets: Arc<iscsi::Targets>,
        nbd: Vec<Place>,
        portals: Arc<Portals>,
    ) -> Self {
        let (entries, shared) = (Mutex::default(), Mutex::default());
        Self { registry, nbd_server, targets, nbd, portals, entries, shared }
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
            if let Some(Disk { target, lun, .. }) = &entry.disk {
                let open = portals.iter().filter(|portal| portal.problem.is_none());
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

    /// Clients connected to it, to its snapshots, and to what is below it. With `everywhere` a snapshot means
    /// those of its name of everything below its dataset.
    #[must_use]
    pub fn clients_below(&self, name: &str, everywhere: bool) -> usize {
        let below = |dataset: &str, of: &str| {
            dataset.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        match name.split_once('@').filter(|_| everywhere) {
            Some((head, short)) => self.count(|dataset| {
                below(dataset, head) && dataset.split_once('@').is_some_and(|(_, other)| other == short)
            }),
            None => self.count(|dataset| below(dataset, name)),
        }
    }

    /// Clients connected to anything of a pool.
    #[must_use]
    pub fn clients_of_pool(&self, pool: &str) -> usize {
        self.count(|dataset| crate::ops::pool_of(dataset) == pool)
    }

    /// When hosts of this volume are to be warned that room gets scarce.
    pub(crate) fn threshold(&self, name: &str) -> Threshold {
        self.entries.lock().get(name).map(|entry| entry.plan.threshold).unwrap_or_default()
    }

    /// A session counts for every disk of its target: whether a host has one mounted cannot be seen.
    fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter_map(|connection| connection.export.as_deref());
        let nbd = nbd.filter(|export| is_meant(export)).count();
        let entries = self.entries.lock();
        let iqns: BTreeSet<&str> = entries
            .iter()
            .filter(|(name, _)| is_meant(name))
            .filter_map(|(_, entry)| entry.disk.as_ref().map(|disk| disk.target.iqn()))
            .collect();
        let sessions = self.targets.sessions();
        nbd + sessions.iter().filter(|session| iqns.contains(session.target.as_str())).count()
    }

    /// Offers no longer this volume or snapshot.
    pub fn withdraw(&self, name: &str) {
        let entry = self.entries.lock().remove(name);
        self.registry.remove(name);
        let Some(Entry { plan, disk: Some(disk), .. }) = entry else { return };
        if plan.own {
            self.targets.remove(disk.target.iqn());
        } else {
            disk.target.remove_lun(disk.lun);
        }
    }

    /// Offers nothing of this pool any more.
    pub async fn withdraw_pool(&self, pool: &str) {
        let names: Vec<String> = self.entries.lock().keys().cloned().collect();
        names.iter().filter(|name| crate::ops::pool_of(name) == pool).for_each(|name| self.withdraw(name));
        self.follow_targets(pool, &PoolShares::default());
        self.portals.want(pool, &[]).await;
    }

    /// Offers what `held` has now. What could not be found out is a sentence each.
    pub async fn follow(&self, held: &Held) -> Vec<String> {
        let view = held.view();
        let shares = match PoolShares::read(&view).await {
            Ok(shares) => shares,
            Err(error) => {
                return vec![format!("cannot read the properties of '{}': {}", held.name(), chain(&error))];
            }
        };
        let listed = match view.dsl().await {
            Ok(dsl) => dsl.volumes().await,
            Err(error) => Err(error),
        };
        let (volumes, unlisted) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                return vec![format!("cannot list the datasets of '{}': {}", held.name(), chain(&error))];
            }
        };
        let mut problems: Vec<String> = unlisted.iter().map(|problem| chain(problem)).collect();
        problems.extend(shares.problems.iter().cloned());
        let has: BTreeSet<&str> = volumes.iter().map(Dataset::name).collect();
        let gone: Vec<String> = {
            let entries = self.entries.lock();
            let of_pool = entries.keys().filter(|name| crate::ops::pool_of(name) == held.name());
            of_pool.filter(|name| !has.contains(name.as_str())).cloned().collect()
        };
        gone.iter().for_each(|name| self.withdraw(name));
        problems.extend(self.follow_targets(held.name(), &shares));
        // First what leaves its place, then what may want it.
        let mut plans = Vec::new();
        for dataset in &volumes {
            let share = VolumeShare::read(dataset).await.map_err(|error| chain(&error));
            let share = share.and_then(|share| match &share.problem {
                Some(problem) => Err(problem.clone()),
                None => Ok(share.plan()),
            });
            let moves = {
                let entries = self.entries.lock();
                let entry = entries.get(dataset.name());
                entry.is_some_and(|entry| share.as_ref().ok() != Some(&entry.plan))
            };
            if moves {
                self.withdraw(dataset.name());
            }
            plans.push(share);
        }
        for (dataset, plan) in volumes.iter().zip(plans) {
            self.offer(held, dataset, plan).await;
        }
        problems.extend(self.portals.want(held.name(), &shares.portals).await);
        problems
    }

    /// Offers one volume or snapshot, unless it is offered already.
    async fn offer(&self, held: &Held, dataset: &Dataset, plan: Result<Plan, String>) {
        let (name, guid) = (dataset.name(), dataset.guid().to_string());
        let is_live = held.engine().is_some() && dataset.kind() == DatasetKind::Head;
        let same = {
            let entries = self.entries.lock();
            entries.get(name).is_some_and(|entry| {
                entry.served.guid == guid && entry.served.refused.is_none() && entry.live.is_some() == is_live
            })
        };
        // A snapshot is what it was.
        if same && !is_live {
            return;
        }
        let opened = open(held, dataset, is_live).await;
        if same
            && let Ok((_, Some(now))) = &opened
            && self.refresh(name, now)
        {
            return;
        }
        self.withdraw(name);
        let served =
            Served { dataset: name.to_owned(), guid, size: 0, block: 0, urls: Vec::new(), refused: None };
        let mut entry = Entry { served, live: None, plan: Plan::default(), is_in_nbd: false, disk: None };
        match plan.and_then(|plan| Ok((plan, opened?))) {
            Ok((plan, (volume, live))) => {
                let geometry = volume.geometry();
                (entry.served.size, entry.served.block) = (geometry.size, geometry.block);
                (entry.plan, entry.live) = (plan, live);
                entry.served.refused = self.admit(&mut entry, name, volume).err();
            }
            Err(why) => entry.served.refused = Some(why),
        }
        self.entries.lock().insert(name.to_owned(), entry);
    }

    /// Gives it to clients as planned.
    fn admit(&self, entry: &mut Entry, name: &str, volume: Arc<dyn BlockVolume>) -> Result<(), String> {
        let plan = entry.plan.clone();
        if plan.nbd && !self.nbd.is_empty() {
            let inserted = self.registry.insert(name, &description(&*volume), Arc::clone(&volume));
            inserted.map_err(|error| error.to_string())?;
            entry.is_in_nbd = true;
        }
        let (target, lun) = match &plan.place {
            Some(place) => (self.shared_target(crate::ops::pool_of(name), &place.target)?, place.lun),
            None if plan.own => {
                let created = self.targets.create(&iscsi::iqn::for_dataset(name), Offer::default());
                (created.map_err(|error| error.to_string())?, 0)
            }
            None => return Ok(()),
        };
        let unit = target.add_lun(lun, volume, plan.block).map_err(|error| error.to_string())?;
        unit.set_write_cache(plan.write_cache);
        entry.disk = Some(Disk { target, lun, unit });
        Ok(())
    }

    /// Tells clients of a volume that stayed what is new about it. False if it is another volume now.
    fn refresh(&self, name: &str, now: &Arc<LiveVolume>) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(name) else { return false };
        if !entry.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, now)) {
            return false;
        }
        let geometry = now.geometry();
        entry.served.size = geometry.size;
        self.registry.describe(name, &description(&**now));
        if let Some(disk) = &entry.disk {
            disk.unit.announce();
        }
        true
    }
}

async fn open(held: &Held, dataset: &Dataset, is_live: bool) -> Result<Opened, String> {
    if let Some(engine) = held.engine().filter(|_| is_live) {
        let volume = engine.volume(dataset.name()).await.map_err(|error| chain(&error))?;
        return Ok((Arc::clone(&volume) as Arc<dyn BlockVolume>, Some(volume)));
    }
    match dataset.open_volume().await {
        Ok(volume) => Ok((volume, None)),
        Err(error @ (OpenVolumeError::NotAVolume(_) | OpenVolumeError::Encrypted(_))) => {
            Err(error.to_string())
        }
        Err(error) => Err(chain(&error)),
    }
}

/// What an NBD client's list says about a volume.
fn description(volume: &dyn BlockVolume) -> String {
    let geometry = volume.geometry();
    let access = if geometry.read_only { "read-only" } else { "read-write" };
    format!("{} bytes, {access}", geometry.size)
}
