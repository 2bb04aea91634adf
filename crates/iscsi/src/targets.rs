//! The registry: which targets there are, who may log in to them, who is, and what each connection did.
//!
//! Shared by all connections. Its lock is held for look-ups only, at login and in discovery; the data
//! path goes through the `Arc`s it handed out.
//!
//! A session is known by initiator name, ISID, target and portal group (RFC 7143 §4.4.3). When the same one logs in
//! again the old one is told to end, and the new login is answered only after it has: no write of a
//! dead session can land late (`Claim`, §6.3.5). Of several that wait for that only the newest is meant by its host.
//!
//! Portals, discovery and access lists change while it runs; sessions that would not be let in any more are ended.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use block::{BlockVolume, Identity, Quiet};
use memory::Gate;
use peers::{Crowd, Places};
use scsi::{Form, LogicalUnit, Naa, Neighbours, PORT_GROUP, PortGroup, Service, naa};
use tokio::{sync::watch, time::Instant};

use crate::{
    access::{Access, Auth},
    iqn,
    tally::Tallies,
};

/// Highest LUN: what flat addressing has room for.
pub const LUN_MAX: u16 = 16_383;
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

/// Why a target or logical unit could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Not the form of an iSCSI name.
    #[error("{0} is not an iSCSI name")]
    Name(String),
    /// There is one of that name.
    #[error("there is a target {0} already")]
    Exists(String),
    /// There is a disk of that number.
    #[error("the target has a LUN {0} already")]
    LunExists(u16),
    /// Initiators could not address it.
    #[error("LUN {0} is above {LUN_MAX}")]
    Lun(u16),
}

/// One target: its logical units, and who may use them.
pub struct Target {
    iqn: String,
    service: Arc<Service>,
    luns: RwLock<BTreeMap<u16, Arc<LogicalUnit>>>,
    /// Counts changes of `luns`; sessions look at it with each command.
    epoch: AtomicU64,
    changes: watch::Sender<u64>,
    access: RwLock<Arc<Access>>,
    groups: RwLock<Option<Vec<u16>>>,
    is_ready: AtomicBool,
    /// How many [`Shut`] there are.
    shut: AtomicUsize,
    removed: AtomicBool,
}

impl Target {
    /// Its iSCSI name.
    pub fn iqn(&self) -> &str {
        &self.iqn
    }

    /// Its disks, by number.
    pub fn luns(&self) -> Vec<(u16, Arc<LogicalUnit>)> {
        let luns = self.luns.read().unwrap_or_else(PoisonError::into_inner);
        luns.iter().map(|(lun, unit)| (*lun, Arc::clone(unit))).collect()
    }

    /// The disk of that number.
    pub fn unit(&self, lun: u16) -> Option<Arc<LogicalUnit>> {
        self.luns.read().unwrap_or_else(PoisonError::into_inner).get(&lun).cloned()
    }

    /// Serves a volume as a further disk from now on, or at the place that was kept for it; whoever is logged in is told.
    ///
    /// # Errors
    /// The number cannot be had.
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn add_lun(
        &self,
        lun: u16,
        volume: Arc<dyn BlockVolume>,
        form: Form,
    ) -> Result<Arc<LogicalUnit>, AddError> {
        let name = naa(&volume.identity());
        self.put(lun, name, || self.service.unit(volume, &self.iqn, form))
    }

    /// Keeps the place of a volume that cannot be had at the moment: the disk is there, and not ready. Hosts take one that is
    /// not there for removed, and give up what is on it.
    ///
    /// # Errors
    /// The number cannot be had.
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn keep_lun(&self, lun: u16, who: Identity, form: Form) -> Result<Arc<LogicalUnit>, AddError> {
        self.put(lun, naa(&who), || self.service.unit_to_come(who, &self.iqn, form))
    }

    fn put(
        &self,
        lun: u16,
        name: Naa,
        unit: impl FnOnce() -> Arc<LogicalUnit>,
    ) -> Result<Arc<LogicalUnit>, AddError> {
        if lun > LUN_MAX {
            return Err(AddError::Lun(lun));
        }
        let (unit, kept) = {
            let mut luns = self.luns.write().unwrap_or_else(PoisonError::into_inner);
            if luns.get(&lun).is_some_and(|other| !other.is_coming() || other.naa() != name) {
                return Err(AddError::LunExists(lun));
            }
            let unit = unit();
            (Arc::clone(&unit), luns.insert(lun, unit))
        };
        if let Some(kept) = kept {
            unit.succeed(&kept);
            kept.retire();
        }
        self.luns_changed();
        Ok(unit)
    }

    /// Takes a disk away; whoever is logged in is told, and gets LOGICAL UNIT NOT SUPPORTED from it. What runs on
    /// it ends as it would have ([`Service::last_writes_ended`]), copies excepted: they end soon. False if there is none.
    pub fn remove_lun(&self, lun: u16) -> bool {
        let gone = self.luns.write().unwrap_or_else(PoisonError::into_inner).remove(&lun);
        if let Some(unit) = &gone {
            unit.retire();
            self.luns_changed();
        }
        gone.is_some()
    }

    fn luns_changed(&self) {
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.luns().iter().for_each(|(_, unit)| unit.luns_changed());
        self.changes.send_replace(epoch);
    }

    /// Its volumes may have changed in a way that initiators should hear of without asking (size, room).
    pub fn announce(&self) {
        self.luns().iter().for_each(|(_, unit)| unit.announce());
    }

    /// Whether all its disks have come: until then who logs in is told to try again ([`Offer::is_coming`]).
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// All its disks have come, for good.
    pub fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// Nobody logs in as long as what this returns is kept: who comes is told to try again. Nor may its disks be named in
    /// copies. Sessions that are there stay, and whoever comes in for all that is among [`Targets::sessions`] by now.
    pub fn shut(self: &Arc<Self>) -> Shut {
        self.shut.fetch_add(1, Ordering::AcqRel);
        Shut(Arc::clone(self))
    }

    /// Whether somebody who logs in is to be told to try again.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire) > 0
    }

    /// Who may log in from now on. Sessions that are there stay; see [`Targets::enforce`].
    pub fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// Who may log in.
    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it may be reached through that portal group.
    pub fn is_in_group(&self, group: u16) -> bool {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Portal groups through which it may be reached from now on; `None`: all. See [`Targets::enforce`].
    pub fn set_groups(&self, groups: Option<Vec<u16>>) {
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    /// Whether a session like this would be let in now.
    fn lets_in(&self, info: &SessionInfo) -> bool {
        let access = self.access();
        self.is_in_group(info.portal.group)
            && access.admits(&info.initiator, info.peer.ip())
            && access.trusts(info.proven.as_ref())
    }

    /// Whether an operator took it away; sessions that are still there get LOGICAL UNIT NOT SUPPORTED.
    pub fn removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// A target that nobody may log in to until this is dropped: see [`Target::shut`].
#[must_use = "dropped, it lets everybody in"]
pub struct Shut(Arc<Target>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a target is offered.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Who may log in.
    pub access: Access,
    /// Portal groups through which it may be reached; `None`: all.
    pub groups: Option<Vec<u16>>,
    /// Its disks are still to come: who logs in is told to try again, until [`Target::set_ready`]. A host that found a target
    /// without its disks would take them for removed.
    pub is_coming: bool,
    /// Discovery names it to nobody who does not name it himself: for what hosts are not to log in to because they do so to all
    /// that they are told of.
    pub is_unlisted: bool,
}

/// What a connection did so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// SCSI commands taken.
    pub commands: AtomicU64,
    /// Bytes of Data-In.
    pub bytes_out: AtomicU64,
    /// Bytes of Data-Out.
    pub bytes_in: AtomicU64,
    /// By disk.
    pub luns: Tallies,
}

/// A logged-in session, for listings.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Initiator name.
    pub initiator: String,
    /// Where it came from.
    pub peer: SocketAddr,
    /// Target name; empty for a discovery session.
    pub target: String,
    /// The portal it came in by.
    pub portal: Portal,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// When it logged in.
    pub since: Instant,
    /// The CHAP name it proved, if any.
    pub user: Option<String>,
    pub(crate) proven: Option<Auth>,
    /// Its counters, live.
    pub counters: Arc<Counters>,
}

/// What identifies a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) target: String,
    pub(crate) group: u16,
}

impl SessionKey {
    /// The initiator port's name (SPC-4 §7.6.4.6).
    pub(crate) fn port(&self) -> String {
        let [a, b, c, d, e, f] = self.isid;
        format!("{},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}", self.initiator)
    }
}

/// What other connections may ask of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Go on.
    Serve,
    /// End now: a new session takes your place, or a cold reset.
    End,
}

struct Entry {
    tsih: u16,
    info: SessionInfo,
    orders: watch::Sender<Order>,
    /// Says to the login that waits for this place that a newer one does; gone when the place is free.
    heirs: watch::Sender<()>,
}

#[derive(Default)]
struct Registry {
    targets: BTreeMap<String, Arc<Target>>,
    /// Of these, those that discovery names.
    listed: BTreeMap<String, Arc<Target>>,
    /// Names of targets that were removed, oldest first.
    removed: VecDeque<String>,
    sessions: BTreeMap<SessionKey, Entry>,
    last_tsih: u16,
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

    /// Ends the sessions of a target that it would not let in any more. How many those were.
    pub fn enforce(&self, target: &Target) -> usize {
        let registry = self.registry();
        let of_target = registry.sessions.values().filter(|entry| entry.info.target == target.iqn);
        let unwanted = of_target.filter(|entry| !target.lets_in(&entry.info));
        let end = |entry: &&Entry| {
            entry.orders.send_replace(Order::End);
        };
        unwanted.inspect(end).count()
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
        let target = Arc::new(Target {
            iqn: iqn.clone(),
            service: Arc::clone(&self.service),
            luns: RwLock::default(),
            epoch: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            access: RwLock::new(Arc::new(offer.access)),
            groups: RwLock::new(offer.groups),
            is_ready: AtomicBool::new(!offer.is_coming),
            shut: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
        });
        if !offer.is_unlisted {
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

    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.registry().sessions.values().map(|entry| entry.info.clone()).collect()
    }

    pub(crate) fn find(&self, iqn: &str) -> Option<Arc<Target>> {
        self.registry().targets.get(&iqn.to_ascii_lowercase()).cloned()
    }

    /// Whether there was a target of that name, and an operator took it away.
    pub(crate) fn was_removed(&self, iqn: &str) -> bool {
        self.registry().removed.iter().any(|removed| removed == iqn)
    }

    /// Whether a session with that key and handle is logged in.
    pub(crate) fn has_session(&self, key: &SessionKey, tsih: u16) -> bool {
        self.registry().sessions.get(key).is_some_and(|entry| entry.tsih == tsih)
    }

    /// Takes the place of `key` for a session with `asked`, or for a discovery; ends the session that has it and waits until
    /// it is gone. `None` if another login of that name came meanwhile: hosts give up one that is not answered for some seconds
    /// and begin the next, and the one that they gave up must not end the session of that.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        key: SessionKey,
        info: SessionInfo,
        asked: Option<&Arc<Target>>,
    ) -> Option<Claim> {
        let mut newer = {
            let mut registry = self.registry();
            match registry.sessions.get(&key) {
                None => return Some(self.seat(&mut registry, key, info, asked)),
                Some(entry) => {
                    entry.orders.send_replace(Order::End);
                    entry.heirs.send_replace(());
                    entry.heirs.subscribe()
                }
            }
        };
        // An error means that the entry has gone.
        if newer.changed().await.is_ok() {
            return None;
        }
        let mut registry = self.registry();
        // Whoever was faster came later.
        let is_taken = registry.sessions.contains_key(&key);
        (!is_taken).then(|| self.seat(&mut registry, key, info, asked))
    }

    /// Takes a place that is free.
    fn seat(
        self: &Arc<Self>,
        registry: &mut Registry,
        key: SessionKey,
        info: SessionInfo,
        asked: Option<&Arc<Target>>,
    ) -> Claim {
        let tsih = registry.free_tsih();
        // Who may log in may have changed since this one was asked who it is, and the target may be another of the same
        // name: that of a pool which was imported again.
        let target = registry.targets.get(&info.target);
        let is_in = asked.is_none_or(|asked| {
            target.is_some_and(|target| {
                Arc::ptr_eq(target, asked) && !target.is_shut() && target.lets_in(&info)
            })
        });
        let order = if is_in { Order::Serve } else { Order::End };
        let (orders, receiver) = watch::channel(order);
        registry.sessions.insert(key.clone(), Entry { tsih, info, orders, heirs: watch::Sender::new(()) });
        Claim { targets: Arc::clone(self), key, tsih, orders: receiver }
    }

    /// TARGET COLD RESET: every session of the target ends.
    pub(crate) fn end_sessions(&self, iqn: &str) {
        for entry in self.registry().sessions.values().filter(|entry| entry.info.target == iqn) {
            entry.orders.send_replace(Order::End);
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
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
            let access = target.access();
            !target.is_shut()
                && target.is_in_group(self.group)
                && access.admits(&self.initiator, self.peer)
                && access.trusts(self.proven.as_ref())
        };
        let targets = self.targets.list();
        let mut units = targets.iter().filter(|target| may(target)).flat_map(|target| target.luns());
        units.find(|(_, unit)| unit.naa() == *name).map(|(_, unit)| unit)
    }
}

impl Registry {
    /// Takes a target away and ends its sessions.
    fn take(&mut self, iqn: &str) -> bool {
        let Some(target) = self.targets.remove(iqn) else { return false };
        self.listed.remove(iqn);
        target.removed.store(true, Ordering::Release);
        target.luns().iter().for_each(|(_, unit)| unit.retire());
        for entry in self.sessions.values().filter(|entry| entry.info.target == iqn) {
            entry.orders.send_replace(Order::End);
        }
        true
    }

    /// A session handle that is not in use and not 0. Sessions are bounded far below 65,535.
    fn free_tsih(&mut self) -> u16 {
        loop {
            self.last_tsih = self.last_tsih.wrapping_add(1);
            let taken = self.sessions.values().any(|entry| entry.tsih == self.last_tsih);
            if self.last_tsih != 0 && !taken {
                return self.last_tsih;
            }
        }
    }
}

/// A session's place in the registry, given up when dropped.
pub(crate) struct Claim {
    targets: Arc<Targets>,
    key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) orders: watch::Receiver<Order>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Whoever waits for the place hears that its entry has gone.
        self.targets.registry().sessions.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use block::MemVolume;
    use futures_util::FutureExt as _;

    use super::*;

    const NAME: &str = "iqn.2026-11.io.millpond:tank:vm";

    /// Who may log in there.
    fn someone() -> (SessionKey, SessionInfo) {
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let key = SessionKey { initiator: "iqn.test".into(), isid: [0; 6], target: NAME.into(), group: 1 };
        let info = SessionInfo {
            initiator: key.initiator.clone(),
            peer: address,
            target: NAME.into(),
            portal: Portal { address, group: 1 },
            isid: key.isid,
            since: Instant::now(),
            user: None,
            proven: None,
            counters: Arc::default(),
        };
        (key, info)
    }

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

    /// It went on, and wrote to a disk whose content was being replaced.
    #[tokio::test]
    async fn a_login_that_was_under_way_when_its_target_was_shut_is_no_session() {
        let targets = Targets::new(Config::default());
        let target = targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
        let unit = target.unit(0).unwrap();
        let (gate, peer) = (Arc::clone(&targets), IpAddr::from([127, 0, 0, 1]));
        let reach = Reach { targets: gate, initiator: "iqn.other".into(), peer, proven: None, group: 1 };
        let (key, info) = someone();
        let (shut, again) = (target.shut(), target.shut());
        for (held, order) in [(Some(shut), Order::End), (Some(again), Order::End), (None, Order::Serve)] {
            let claim = targets.claim(key.clone(), info.clone(), Some(&target)).await.unwrap();
            assert_eq!(*claim.orders.borrow(), order);
            assert_eq!(reach.unit(&unit.naa()).is_some(), order == Order::Serve, "in a copy");
            drop(held);
        }
    }

    /// It became a session without disks that nobody ended.
    #[tokio::test]
    async fn a_login_that_outlasts_its_target_is_no_session_with_the_next_of_that_name() {
        let targets = Targets::new(Config::default());
        let add = || targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
        let (key, info) = someone();
        let first = add();
        let claim = targets.claim(key.clone(), info.clone(), Some(&first)).await.unwrap();
        assert_eq!(*claim.orders.borrow(), Order::Serve);
        drop(claim);
        assert!(targets.remove(NAME));
        let second = add();
        for (asked, order) in [(&first, Order::End), (&second, Order::Serve)] {
            let claim = targets.claim(key.clone(), info.clone(), Some(asked)).await.unwrap();
            assert_eq!(*claim.orders.borrow(), order);
        }
    }

    /// The old session had ended at last, its host was in again, and milliseconds later out: a login that it had given up long
    /// ago ended that session.
    #[tokio::test]
    async fn a_login_that_waited_ends_no_session_of_a_newer_one() {
        let targets = Targets::new(Config::default());
        let (key, info) = someone();
        let claim = || targets.claim(key.clone(), info.clone(), None);
        let first = claim().await.unwrap();
        let mut oldest = pin!(claim());
        let mut older = pin!(claim());
        let mut newest = pin!(claim());
        assert!(oldest.as_mut().now_or_never().is_none());
        assert_eq!(*first.orders.borrow(), Order::End);
        assert!(older.as_mut().now_or_never().is_none());
        assert!(matches!(oldest.as_mut().now_or_never(), Some(None)), "at once, whoever still has the place");
        assert!(newest.as_mut().now_or_never().is_none());
        drop(first);
        let second = newest.as_mut().now_or_never().flatten().expect("the place is free");
        assert!(matches!(older.as_mut().now_or_never(), Some(None)));
        assert_eq!(*second.orders.borrow(), Order::Serve);
        // One that comes just when the place is free, before the one that waits for that has heard of it.
        let mut waits = pin!(claim());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(second);
        let third = claim().await.unwrap();
        assert!(matches!(waits.as_mut().now_or_never(), Some(None)));
        assert_eq!(*third.orders.borrow(), Order::Serve);
    }
}
