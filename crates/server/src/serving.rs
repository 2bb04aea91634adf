//! What is offered to clients: every volume for reading and writing, every volume snapshot for reading.
//!
//! After each change of a pool, [`Serving::follow`] compares what is offered with what the pool has now, and puts
//! the difference right: new volumes appear, others go, a volume that grew is announced. Nothing has to tell it
//! what changed, so nothing can forget to.
//!
//! A volume with clients is busy: it is asked about before anything is taken away from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use block::BlockVolume;
use engine::volume::LiveVolume;
use parking_lot::Mutex;
use pool::{
    dsl::{Dataset, DatasetKind},
    volume::OpenVolumeError,
};

use crate::{
    api::{Served, ServedList, Url},
    client::escape,
    host::chain,
    ops::Held,
};

/// The targets of a daemon, and what they offer.
pub struct Serving {
    registry: Arc<nbd::Registry>,
    nbd_server: nbd::Server,
    targets: Arc<iscsi::Targets>,
    nbd: Vec<SocketAddr>,
    iscsi: Vec<SocketAddr>,
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// A volume or volume snapshot.
struct Entry {
    served: Served,
    /// The open volume, of one that is written to.
    live: Option<Arc<LiveVolume>>,
    target: Option<Arc<iscsi::Target>>,
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
    pub fn new(
        registry: Arc<nbd::Registry>,
        nbd_server: nbd::Server,
        targets: Arc<iscsi::Targets>,
        nbd: Vec<SocketAddr>,
        iscsi: Vec<SocketAddr>,
    ) -> Self {
        Self { registry, nbd_server, targets, nbd, iscsi, entries: Mutex::default() }
    }

    /// All that is offered, by name, and how many clients there are.
    #[must_use]
    pub fn list(&self) -> ServedList {
        let mut served: Vec<Served> =
            self.entries.lock().values().map(|entry| entry.served.clone()).collect();
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

    fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter_map(|connection| connection.export.as_deref());
        let nbd = nbd.filter(|export| is_meant(export)).count();
        let entries = self.entries.lock();
        let iqns: BTreeSet<&str> = entries
            .iter()
            .filter(|(name, _)| is_meant(name))
            .filter_map(|(_, entry)| entry.target.as_ref().map(|target| target.iqn()))
            .collect();
        let sessions = self.targets.sessions();
        nbd + sessions.iter().filter(|session| iqns.contains(session.target.as_str())).count()
    }

    /// Offers no longer this volume or snapshot.
    pub fn withdraw(&self, name: &str) {
        let entry = self.entries.lock().remove(name);
        self.registry.remove(name);
        if let Some(target) = entry.and_then(|entry| entry.target) {
            self.targets.remove(target.iqn());
        }
    }

    /// Offers nothing of this pool any more.
    pub fn withdraw_pool(&self, pool: &str) {
        let names: Vec<String> = self.entries.lock().keys().cloned().collect();
        names.iter().filter(|name| crate::ops::pool_of(name) == pool).for_each(|name| self.withdraw(name));
    }

    /// Offers what `held` has now. What could not be found out is a sentence each.
    pub async fn follow(&self, held: &Held) -> Vec<String> {
        let view = held.view();
        let listed = match view.dsl().await {
            Ok(dsl) => dsl.volumes().await,
            Err(error) => Err(error),
        };
        let (volumes, problems) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                return vec![format!("cannot list the datasets of '{}': {}", held.name(), chain(&error))];
            }
        };
        let has: BTreeSet<&str> = volumes.iter().map(Dataset::name).collect();
        let gone: Vec<String> = {
            let entries = self.entries.lock();
            let of_pool = entries.keys().filter(|name| crate::ops::pool_of(name) == held.name());
            of_pool.filter(|name| !has.contains(name.as_str())).cloned().collect()
        };
        gone.iter().for_each(|name| self.withdraw(name));
        for dataset in &volumes {
            self.offer(held, dataset).await;
        }
        problems.iter().map(|problem| chain(problem)).collect()
    }

    /// Offers one volume or snapshot, unless it is offered already.
    async fn offer(&self, held: &Held, dataset: &Dataset) {
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
        let mut served =
            Served { dataset: name.to_owned(), guid, size: 0, block: 0, urls: Vec::new(), refused: None };
        let (volume, live) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                served.refused = Some(why);
                self.entries.lock().insert(name.to_owned(), Entry { served, live: None, target: None });
                return;
            }
        };
        let geometry = volume.geometry();
        (served.size, served.block) = (geometry.size, geometry.block);
        if !self.nbd.is_empty() {
            match self.registry.insert(name, &description(&*volume), Arc::clone(&volume)) {
                Ok(()) => served.urls.extend(self.nbd.iter().map(|address| nbd_url(*address, name))),
                Err(error) => served.refused = Some(error.to_string()),
            }
        }
        let mut target = None;
        if !self.iscsi.is_empty() {
            let iqn = iscsi::iqn::for_dataset(name);
            match self.targets.add(&iqn, volume) {
                Ok(added) => {
                    target = Some(added);
                    served.urls.extend(self.iscsi.iter().map(|address| Url {
                        protocol: "iscsi".to_owned(),
                        url: format!("iscsi://{address}/{iqn}/0"),
                    }));
                }
                Err(error) => served.refused = Some(error.to_string()),
            }
        }
        self.entries.lock().insert(name.to_owned(), Entry { served, live, target });
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
        if let Some(target) = &entry.target {
            target.announce();
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

fn nbd_url(address: SocketAddr, name: &str) -> Url {
    Url { protocol: "nbd".to_owned(), url: format!("nbd://{address}/{}", escape(name, "/@")) }
}
