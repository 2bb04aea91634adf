//! The registry: which targets there are, at which portals, and who may discover them.
//!
//! Shared by all connections. Its lock is held for look-ups only, at login and in discovery; the data
//! path goes through the `Arc`s it handed out.
//!
//! Portals, discovery and access lists change while it runs; sessions that would not be let in any more are ended
//! ([`Targets::enforce`]).
//!
//! What one target is stands in `target`, who is logged in in `seats`.

mod seats;
mod target;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use block::{BlockVolume, Quiet};
use memory::Gate;
use peers::{Crowd, Places};
use scsi::{Form, LogicalUnit, Naa, Neighbours, PORT_GROUP, PortGroup, Service};

use self::seats::Seats;
pub(crate) use self::seats::{Claim, Order, SessionKey};
pub use self::{
    seats::{Counters, SessionInfo},
    target::{AddError, LUN_MAX, Offer, Shut, Target},
};
use crate::{
    access::{Access, Auth},
    iqn,
};

/// Names of removed targets remembered, so that their initiators are told "removed" and not "never heard of".
const REMOVED_MAX: usize = 1024;

/// An address that initiators log in at, and the portal group it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Where.
    pub address: SocketAddr,
    /// Portal group tag: portals of one group are one SCSI target port.
    pub group: u16,
}

impl From<SocketAddr> for Portal {
    fn from(address: SocketAddr) -> Self {
        Self { address, group: PORT_GROUP }
    }
}

impl Portal {
    /// Whether initiators can be told to come there: not one that stands for every address, or for a port yet to be
    /// chosen.
    pub(crate) fn is_one_place(&self) -> bool {
        !self.address.ip().is_unspecified() && self.address.port() != 0
    }
}

/// All of a server's.
#[derive(Debug, Default)]
struct Portals {
    /// To initiators.
    named: Arc<Vec<Portal>>,
    /// In groups all the same.
    unnamed: Vec<Portal>,
}

/// Limits and habits of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The portals, as SendTargets names them. The one an initiator came in by is named even if it is not among
    /// them (a server that listens on every address), in the first group.
    pub portals: Vec<Portal>,
    /// Who may discover. Targets that an initiator may not log in to are not listed to it whatever this says.
    pub discovery: Access,
    /// Connections at most, logged in or not; more are closed at once.
    pub connections_max: usize,
    /// Connections of one address at most, and never more than three of four.
    pub connections_per_peer_max: usize,
    /// Connections that are not logged in, or to discover only, at most; half as many of one address. When more come,
    /// the oldest are closed.
    pub logins_max: usize,
    /// A connection must be logged in by then.
    pub login_timeout: Duration,
    /// A silent initiator is asked for a sign of life after this, and dropped after as long again.
    pub ping_after: Duration,
    /// A command that has waited so long for room, and of which nothing was done, is answered with TASK SET FULL. Just below the
    /// half minute after which hosts abort: many clients on little memory wait their turn for seconds as a matter of course, and
    /// not every one knows how to be told to come again.
    pub room_wait: Duration,
    /// How long a shutdown waits for initiators to log out.
    pub logout_wait: Duration,
    /// Initiators are told at once, by an asynchronous message, when logical units come or go; hosts then look for
    /// them without being asked. The unit attention comes either way.
    pub announce_luns: bool,
    /// What all sessions may hold together: data of commands under way and answers not yet sent. Other servers may share
    /// it.
    pub gate: Arc<Gate>,
}

impl Config {
    fn places(&self) -> Places {
        let (all, share) = (self.connections_max, self.connections_per_peer_max);
        Places { all, share, strangers: Some(self.logins_max) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            portals: Vec::new(),
            discovery: Access::default(),
            connections_max: 2048,
            connections_per_peer_max: 1024,
            logins_max: 256,
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(30),
            room_wait: Duration::from_secs(25),
            logout_wait: Duration::from_secs(3),
            announce_luns: true,
            gate: Gate::new(512 << 20),
        }
    }
}

#[derive(Default)]
struct Registry {
    targets: BTreeMap<String, Arc<Target>>,
    /// Of these, those that discovery names.
    listed: BTreeMap<String, Arc<Target>>,
    /// Names of targets that were removed, oldest first.
    removed: VecDeque<String>,
    seats: Seats,
}

/// Says of the name of a target that is not there whether it may come.
type Awaited = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Who comes in, over all portals, and what is said of it.
pub(crate) struct Doors {
    pub(crate) crowd: Crowd,
    pub(crate) quiet: Quiet,
    /// Of its own: who floods the door with connections does not drown what is said of those who are in.
    pub(crate) refusals: Quiet,
    /// For what comes of those who get in and do not log in to a target: it drowns neither.
    pub(crate) strangers: Quiet,
    /// For those who come in: many that come and go must not keep a warning from being written.
    pub(crate) welcome: Quiet,
}

/// The targets of a server.
pub struct Targets {
    config: Config,
    portals: RwLock<Portals>,
    discovery: RwLock<Arc<Access>>,
    pub(crate) doors: Doors,
    service: Arc<Service>,
    registry: Mutex<Registry>,
    awaited: OnceLock<Awaited>,
}

impl Targets {
    /// No targets yet.
    pub fn new(config: Config) -> Arc<Self> {
        Self::with_service(config, Arc::default())
    }

    /// No targets yet; logical units are of `service`, whose one port group gets the portal groups for ports.
    pub fn with_service(config: Config, service: Arc<Service>) -> Arc<Self> {
        let doors = Doors {
            crowd: Crowd::new(config.places()),
            quiet: Quiet::default(),
            refusals: Quiet::default(),
            strangers: Quiet::default(),
            welcome: Quiet::default(),
        };
        let targets = Self {
            portals: RwLock::default(),
            discovery: RwLock::new(Arc::new(config.discovery.clone())),
            doors,
            service,
            registry: Mutex::default(),
            awaited: OnceLock::new(),
            config,
        };
        targets.set_portals(targets.config.portals.clone());
        Arc::new(targets)
    }

    /// The portals from now on, in place of those of [`Config`]. One with an unspecified address stands for every
    /// address at its port and is not named to initiators.
    pub fn set_portals(&self, portals: Vec<Portal>) {
        let groups: Vec<u16> = portals.iter().map(|portal| portal.group).collect();
        self.set_portals_of(portals, Vec::new(), &groups);
    }

    /// The same where there are more portal groups than those of the portals: of some that cannot be had at the moment.
    /// Initiators register at those target ports, too, when they register at all. Who comes in by one that is `unnamed` is in its
    /// group, and nobody is told to come there.
    pub fn set_portals_of(&self, portals: Vec<Portal>, unnamed: Vec<Portal>, groups: &[u16]) {
        let mut ports: Vec<u16> = groups.iter().copied().chain([PORT_GROUP]).collect();
        ports.sort_unstable();
        ports.dedup();
        if let [group] = self.service.port_groups().as_slice()
            && group.ports != ports
        {
            self.service.set_port_groups(vec![PortGroup { ports, ..group.clone() }]);
        }
        let portals = Portals { named: Arc::new(portals), unnamed };
        *self.portals.write().unwrap_or_else(PoisonError::into_inner) = portals;
    }

    /// The portals, as SendTargets names them.
    pub fn portals(&self) -> Arc<Vec<Portal>> {
        Arc::clone(&self.portals.read().unwrap_or_else(PoisonError::into_inner).named)
    }

    /// Who may discover from now on, in place of [`Config::discovery`].
    pub fn set_discovery(&self, access: Access) {
        *self.discovery.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// Who may discover.
    pub fn discovery(&self) -> Arc<Access> {
        Arc::clone(&self.discovery.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who logs in to a target that is not there, and that `awaited` says may come, is told to try again. Hosts give a
    /// session up for good when its target was never heard of. Set once; later calls do nothing.
    pub fn set_awaited(&self, awaited: impl Fn(&str) -> bool + Send + Sync + 'static) {
        drop(self.awaited.set(Box::new(awaited)));
    }

    /// Whether a target that is not there may come.
    pub(crate) fn is_awaited(&self, iqn: &str) -> bool {
        self.awaited.get().is_some_and(|awaited| awaited(iqn))
    }

    /// Limits and habits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the logical units share: access states of the target ports, and tokens.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The portal group of the address that a connection came in by.
    pub fn group_of(&self, local: SocketAddr) -> u16 {
        let portals = self.portals.read().unwrap_or_else(PoisonError::into_inner);
        let all = || portals.named.iter().chain(&portals.unnamed);
        // Either may be an IPv4 address in its IPv6 form.
        let same = |ip: IpAddr| ip.to_canonical() == local.ip().to_canonical();
        let exact = all().find(|portal| same(portal.address.ip()) && portal.address.port() == local.port());
        let any = || {
            let everywhere = all().filter(|portal| {
                portal.address.ip().is_unspecified() && portal.address.port() == local.port()
            });
            // An IPv4 address is one of `[::]` only where there is no `0.0.0.0`.
            everywhere.max_by_key(|portal| portal.address.is_ipv4() == local.is_ipv4())
        };
        exact.or_else(any).map_or(PORT_GROUP, |portal| portal.group)
    }

    /// Serves `volume` at LUN 0 of a new target that everybody may use. Names are compared in lower case.
    pub fn add(&self, name: &str, volume: Arc<dyn BlockVolume>) -> Result<Arc<Target>, AddError> {
        let target = self.create(name, Offer::default())?;
        target.add_lun(0, volume, Form::default())?;
        Ok(target)
    }

    /// A new target without disks.
    pub fn create(&self, name: &str, offer: Offer) -> Result<Arc<Target>, AddError> {
        let iqn = name.to_ascii_lowercase();
        if !iqn::is_valid(&iqn) {
            return Err(AddError::Name(name.to_owned()));
        }
        let mut registry = self.registry();
        if registry.targets.contains_key(&iqn) {
            return Err(AddError::Exists(iqn));
        }
        registry.removed.retain(|removed| *removed != iqn);
        let is_listed = !offer.is_unlisted;
        let target = Arc::new(Target::new(iqn.clone(), Arc::clone(&self.service), offer));
        if is_listed {
            registry.listed.insert(iqn.clone(), Arc::clone(&target));
        }
        registry.targets.insert(iqn, Arc::clone(&target));
        Ok(target)
    }

    /// Takes a target away and ends its sessions. False if there is none of that name.
    pub fn remove(&self, name: &str) -> bool {
        let iqn = name.to_ascii_lowercase();
        let mut registry = self.registry();
        if !registry.take(&iqn) {
            return false;
        }
        while registry.removed.len() >= REMOVED_MAX {
            registry.removed.pop_front();
        }
        registry.removed.push_back(iqn);
        true
    }

    /// The same of one that will be there again, with another disk: nobody is told that it was taken away.
    pub fn remove_for_now(&self, name: &str) -> bool {
        self.registry().take(&name.to_ascii_lowercase())
    }

    /// Of these names nobody took a target away: they may come, or may not be known at all.
    pub fn forget_removed(&self, which: impl Fn(&str) -> bool) {
        self.registry().removed.retain(|name| !which(name));
    }

    /// All targets, by name.
    pub fn list(&self) -> Vec<Arc<Target>> {
        self.registry().targets.values().cloned().collect()
    }

    /// Of those that discovery names, the one that comes behind this name.
    pub(crate) fn listed_after(&self, name: &str) -> Option<Arc<Target>> {
        let behind: (Bound<&str>, Bound<&str>) = (Bound::Excluded(name), Bound::Unbounded);
        self.registry().listed.range::<str, _>(behind).next().map(|(_, target)| Arc::clone(target))
    }

    pub(crate) fn find(&self, iqn: &str) -> Option<Arc<Target>> {
        self.registry().targets.get(&iqn.to_ascii_lowercase()).cloned()
    }

    /// Whether there was a target of that name, and an operator took it away.
    pub(crate) fn was_removed(&self, iqn: &str) -> bool {
        self.registry().removed.iter().any(|removed| removed == iqn)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Takes a target away and ends its sessions.
    fn take(&mut self, iqn: &str) -> bool {
        let Some(target) = self.targets.remove(iqn) else { return false };
        self.listed.remove(iqn);
        target.leave();
        self.seats.end(|info| info.target == iqn);
        true
    }
}

/// What a session's initiator may name in a copy: the disks of targets that would let it in where it came in, with what it
/// has proven.
pub(crate) struct Reach {
    pub(crate) targets: Arc<Targets>,
    pub(crate) initiator: String,
    pub(crate) peer: IpAddr,
    pub(crate) proven: Option<Auth>,
    pub(crate) group: u16,
}

impl Neighbours for Reach {
    fn unit(&self, name: &Naa) -> Option<Arc<LogicalUnit>> {
        let may = |target: &Arc<Target>| {
            !target.is_shut() && target.lets_in(&self.initiator, self.peer, self.group, self.proven.as_ref())
        };
        let targets = self.targets.list();
        let mut units = targets.iter().filter(|target| may(target)).flat_map(|target| target.luns());
        units.find(|(_, unit)| unit.naa() == *name).map(|(_, unit)| unit)
    }
}

#[cfg(test)]
mod tests {
    use block::MemVolume;

    use super::*;

    /// A copy would have been a way around the portal groups.
    #[test]
    fn a_copy_reaches_no_target_that_is_not_offered_where_its_host_came_in() {
        let targets = Targets::new(Config::default());
        let offer = Offer { groups: Some(vec![1]), ..Offer::default() };
        let target = targets.create("iqn.2026-11.io.millpond:tank:vm", offer).unwrap();
        let unit =
            target.add_lun(0, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192)), Form::default()).unwrap();
        for (group, may) in [(1, true), (2, false)] {
            let (targets, peer) = (Arc::clone(&targets), IpAddr::from([127, 0, 0, 1]));
            let reach = Reach { targets, initiator: "iqn.test".into(), peer, proven: None, group };
            assert_eq!(reach.unit(&unit.naa()).is_some(), may, "{group}");
        }
    }
}
