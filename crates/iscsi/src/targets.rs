//! The registry: which targets there are, who is logged in to them, and what each connection did.
//!
//! Shared by all connections. Its lock is held for look-ups only, at login and in discovery; the data
//! path goes through the `Arc`s it handed out.
//!
//! A session is known by initiator name, ISID and target (RFC 7143 §4.4.3). When the same one logs in
//! again the old one is told to end, and the new login is answered only after it has: no write of a
//! dead session can land late (`Claim`, §6.3.5).

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use block::BlockVolume;
use scsi::LogicalUnit;
use tokio::sync::watch;

use crate::iqn;

/// Limits and habits of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses that SendTargets names besides the one the initiator came in by: the other portals.
    pub portals: Vec<SocketAddr>,
    /// Connections at most, logged in or not; more are closed at once.
    pub connections_max: usize,
    /// A connection must be logged in by then.
    pub login_timeout: Duration,
    /// A silent initiator is asked for a sign of life after this, and dropped after as long again.
    pub ping_after: Duration,
    /// How long a shutdown waits for initiators to log out.
    pub logout_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            portals: Vec::new(),
            connections_max: 1024,
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(30),
            logout_wait: Duration::from_secs(3),
        }
    }
}

/// Why a target could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Not the form of an iSCSI name.
    #[error("{0} is not an iSCSI name")]
    Name(String),
    /// There is one of that name.
    #[error("there is a target {0} already")]
    Exists(String),
}

/// One target: a volume at LUN 0.
pub struct Target {
    iqn: String,
    unit: Arc<LogicalUnit>,
    removed: AtomicBool,
}

impl Target {
    /// Its iSCSI name.
    pub fn iqn(&self) -> &str {
        &self.iqn
    }

    /// Its disk.
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    /// Whether an operator took it away; sessions that are still there get LOGICAL UNIT NOT SUPPORTED.
    pub fn removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

/// What a connection did so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// SCSI commands taken.
    pub commands: AtomicU64,
    /// Reads answered from memory, in the connection's own task.
    pub cached_reads: AtomicU64,
    /// Bytes of Data-In.
    pub bytes_out: AtomicU64,
    /// Bytes of Data-Out.
    pub bytes_in: AtomicU64,
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
    /// Its counters, live.
    pub counters: Arc<Counters>,
}

/// What identifies a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) target: String,
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
}

#[derive(Default)]
struct Registry {
    targets: BTreeMap<String, Arc<Target>>,
    sessions: BTreeMap<SessionKey, Entry>,
    last_tsih: u16,
}

/// The targets of a server.
pub struct Targets {
    config: Config,
    registry: Mutex<Registry>,
}

impl Targets {
    /// No targets yet.
    pub fn new(config: Config) -> Arc<Self> {
        Arc::new(Self { config, registry: Mutex::default() })
    }

    /// Limits and habits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves `volume` at LUN 0 of a new target. Names are compared in lower case.
    pub fn add(&self, name: &str, volume: Arc<dyn BlockVolume>) -> Result<Arc<Target>, AddError> {
        let iqn = name.to_ascii_lowercase();
        if !iqn::is_valid(&iqn) {
            return Err(AddError::Name(name.to_owned()));
        }
        let unit = Arc::new(LogicalUnit::new(volume, &iqn));
        let mut registry = self.registry();
        if registry.targets.contains_key(&iqn) {
            return Err(AddError::Exists(iqn));
        }
        let target = Arc::new(Target { iqn: iqn.clone(), unit, removed: AtomicBool::new(false) });
        registry.targets.insert(iqn, Arc::clone(&target));
        Ok(target)
    }

    /// Takes a target away and ends its sessions. False if there is none of that name.
    pub fn remove(&self, name: &str) -> bool {
        let iqn = name.to_ascii_lowercase();
        let mut registry = self.registry();
        let Some(target) = registry.targets.remove(&iqn) else {
            return false;
        };
        target.removed.store(true, Ordering::Release);
        for entry in registry.sessions.values().filter(|entry| entry.info.target == iqn) {
            entry.orders.send_replace(Order::End);
        }
        true
    }

    /// All targets, by name.
    pub fn list(&self) -> Vec<Arc<Target>> {
        self.registry().targets.values().cloned().collect()
    }

    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.registry().sessions.values().map(|entry| entry.info.clone()).collect()
    }

    pub(crate) fn find(&self, iqn: &str) -> Option<Arc<Target>> {
        self.registry().targets.get(&iqn.to_ascii_lowercase()).cloned()
    }

    /// Whether a session with that key and handle is logged in.
    pub(crate) fn has_session(&self, key: &SessionKey, tsih: u16) -> bool {
        self.registry().sessions.get(key).is_some_and(|entry| entry.tsih == tsih)
    }

    /// Takes the place of `key`, ending the session that has it and waiting until it is gone.
    pub(crate) async fn claim(self: &Arc<Self>, key: SessionKey, info: SessionInfo) -> Claim {
        loop {
            let old = {
                let mut registry = self.registry();
                match registry.sessions.get(&key) {
                    Some(entry) => {
                        entry.orders.send_replace(Order::End);
                        entry.orders.clone()
                    }
                    None => {
                        let tsih = registry.free_tsih();
                        let (orders, receiver) = watch::channel(Order::Serve);
                        registry.sessions.insert(key.clone(), Entry { tsih, info, orders });
                        return Claim { targets: Arc::clone(self), key, tsih, orders: receiver };
                    }
                }
            };
            // The receiver is in the old session's claim and goes after the entry has gone.
            old.closed().await;
        }
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

impl Registry {
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
        // The entry goes first; the receiver, dropped after this, wakes whoever waits for the place.
        self.targets.registry().sessions.remove(&self.key);
    }
}
