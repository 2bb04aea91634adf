//! A pool that is open for writing: its volumes, its commands, and the task that syncs.
//!
//! ```text
//!   targets ─▶ LiveVolume ─▶ Txgs ◀── next / close / synced ──┐
//!   commands ─▶ Engine::run ─▶ queue of tasks ────────────────▶ the syncing task, owner of the Syncer
//!   status, list, get ─▶ Engine::view ─▶ Pool of the last commit ◀── published by it
//! ```
//!
//! If too few devices take a transaction group the pool is suspended ([`crate::suspend`]): the group waits in memory,
//! nothing further is acknowledged as durable, reads go on, and every command says why instead of waiting. A command that
//! was being run then is carried out when the pool is cleared; one that still waited for its turn is not.
//!
//! If a transaction group cannot be synced for another reason, a defect among them, or the pool is given up, that is the end
//! until it is opened again: what is on the devices is the last committed state, and every operation says so.
//!
//! Here is what an engine has, and what may be asked of it at any time. How it begins is in `start`, how it is left in `end`;
//! `volumes` opens them, `command` runs commands, `task` is the syncing task and `publish` what a commit means.

mod command;
mod conduct;
mod end;
mod keeper;
mod publish;
mod start;
mod task;
mod volumes;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use block::VolumeError;
use memory::bell::Bell;
use parking_lot::Mutex;
use pool::{Pool, dmu::BlockSource};
use tokio::task::JoinHandle;

pub(crate) use self::volumes::{OpenedBy, content, describe};
pub use self::{conduct::Conduct, end::Ending, volumes::OpenError};
use crate::{
    BoxFuture, EngineError,
    alloc::BitsMemory,
    devices::{Sweeps, watch::Asks},
    dsl::OpError,
    ear::EngineEar,
    events::Events,
    prewarm::Prewarm,
    scan::Scans,
    second::Second,
    suspend::Suspension,
    sync::{Syncer, Task},
    txg::{Limits, Txgs},
    volume::LiveVolume,
    write::{Targets, Written, held::Held},
    zil::{Logs, log::Means, replay::Replayed},
};

/// What a command's future looks like.
pub type OpFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, OpError>> + Send + 'a>>;

/// How an engine runs.
#[derive(Clone, Copy)]
pub struct Options {
    /// Limits of dirty data.
    pub limits: Limits,
    /// Wall clock, seconds since 1970.
    pub now: fn() -> u64,
    /// The same, to the nanosecond: when events happen.
    pub clock: fn() -> Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { limits: Limits::default(), now: || wall_clock().as_secs(), clock: wall_clock }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({:?})", self.limits)
    }
}

fn wall_clock() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// How the last transaction groups went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Transaction groups that changed something.
    pub txgs: u64,
    /// What they wrote.
    pub written: Written,
    /// Time spent syncing.
    pub syncing: Duration,
    /// The longest of them, but for those in which the pool was suspended.
    pub longest: Duration,
}

/// A pool that is open for writing.
pub struct Engine {
    shared: Arc<Shared>,
    task: tokio::sync::Mutex<Option<JoinHandle<Box<Syncer>>>>,
    /// To whoever watches the devices, who ends when this is gone.
    asks: Asks,
    watch: Mutex<Option<JoinHandle<()>>>,
    /// Scans and heals.
    helpers: Mutex<Vec<Helper>>,
    prewarm: Prewarm,
    /// Devices that still owed answers when it was left.
    owing: Mutex<Vec<String>>,
}

/// A task that goes on beside the syncing one, and ends with the engine at the latest.
struct Helper(JoinHandle<()>);

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the engine, the syncing task and commands have of the pool together.
struct Shared {
    txgs: Arc<Txgs>,
    logs: Arc<Logs>,
    means: Means,
    options: Options,
    /// Commands that wait for their turn, numbered.
    tasks: Mutex<VecDeque<(u64, Task)>>,
    volumes: Mutex<BTreeMap<u64, Arc<LiveVolume>>>,
    view: ArcSwap<Pool>,
    /// Of volumes that are being made small: the bytes that clients have.
    shrinking: ArcSwap<BTreeMap<u64, u64>>,
    /// Reads what is committed, and waits for devices.
    source: Arc<dyn BlockSource>,
    /// The same for clients, as the pool says.
    clients_source: Arc<dyn BlockSource>,
    ending: Mutex<Option<Ending>>,
    /// Why nothing is written any more, for good.
    failed: Mutex<Option<EngineError>>,
    suspension: Arc<Suspension>,
    targets: Arc<Targets>,
    conduct: ArcSwap<Conduct>,
    numbers: AtomicU64,
    statistics: Mutex<Statistics>,
    replayed: Mutex<Replayed>,
    events: Arc<Events>,
    sweeps: Sweeps,
    ear: Arc<EngineEar>,
    scans: Arc<Scans>,
    second: Second,
    bits: Arc<BitsMemory>,
    held: Arc<Held>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?})", self.view())
    }
}

impl Engine {
    /// The state of the last commit.
    #[must_use]
    pub fn view(&self) -> Arc<Pool> {
        self.shared.view.load_full()
    }

    /// Its transaction groups.
    #[must_use]
    pub fn txgs(&self) -> &Arc<Txgs> {
        &self.shared.txgs
    }

    /// Why nothing is written: until the pool is cleared, or until it is opened again.
    #[must_use]
    pub fn suspended(&self) -> Option<EngineError> {
        self.shared.suspended()
    }

    /// Who waits when too few devices are there.
    #[must_use]
    pub fn suspension(&self) -> &Arc<Suspension> {
        &self.shared.suspension
    }

    /// What all writers know of the leaves.
    pub(crate) fn targets(&self) -> &Arc<Targets> {
        &self.shared.targets
    }

    /// To whoever watches the devices.
    pub(crate) fn asks(&self) -> &Asks {
        &self.asks
    }

    /// What the pool's properties say about failing devices.
    #[must_use]
    pub fn conduct(&self) -> Conduct {
        **self.shared.conduct.load()
    }

    /// Whether it is being left, or has been.
    pub(crate) fn is_ending(&self) -> bool {
        self.shared.ending.lock().is_some() || self.shared.failed.lock().is_some()
    }

    pub(crate) fn sweeps(&self) -> &Sweeps {
        &self.shared.sweeps
    }

    /// What happened to it and its devices.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    /// The second tier of the cache: the pool's cache devices.
    #[must_use]
    pub fn second(&self) -> &Second {
        &self.shared.second
    }

    /// What reads again what was warm.
    pub(crate) fn prewarming(&self) -> &Prewarm {
        &self.prewarm
    }

    /// Seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        (self.shared.options.now)()
    }

    /// Scrubs and resilvers.
    pub(crate) fn scans(&self) -> &Arc<Scans> {
        &self.shared.scans
    }

    /// What is heard of reads that went wrong: blocks to be healed wait there.
    #[must_use]
    pub fn ear(&self) -> &Arc<EngineEar> {
        &self.shared.ear
    }

    /// How much may be dirty, and for how long.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.txgs.limits()
    }

    /// Scrubs wait, for lack of memory, or go on.
    pub fn hold_scrubs(&self, held: bool) {
        self.shared.scans.hold_scrubs(held);
    }

    /// Bytes of memory that blocks to be scanned may take.
    pub fn set_scan_memory(&self, bytes: usize) {
        self.shared.scans.set_memory(bytes);
    }

    /// Bytes of memory that blocks to be scanned take.
    #[must_use]
    pub fn scan_memory(&self) -> u64 {
        self.shared.scans.memory()
    }

    /// Bytes of memory that what is known of free space may take, beside that of metaslabs that are being allocated from.
    pub fn set_space_memory(&self, bytes: u64) {
        if self.shared.bits.set_most(bytes) {
            // It goes when a transaction group begins, and in a pool that does nothing none would.
            self.shared.txgs.wake();
        }
    }

    /// Bytes of memory that what is known of free space takes.
    #[must_use]
    pub fn space_memory(&self) -> u64 {
        self.shared.bits.held()
    }

    /// Bytes of memory that a transaction group may take until it is durable beside the data that was written: parity, what is
    /// compressed, what is on its way to the devices.
    pub fn set_write_memory(&self, bytes: u64) {
        self.shared.held.set_most(bytes);
    }

    /// Bytes of memory it takes, and the most it may.
    #[must_use]
    pub fn write_memory(&self) -> (u64, u64) {
        (self.shared.held.bytes(), self.shared.held.most())
    }

    /// The most that may be of it before the bell is rung.
    #[must_use]
    pub fn write_memory_at_most(&self) -> u64 {
        self.shared.held.at_most()
    }

    /// Rings `bell` for every `dirty` bytes that become dirty, and for every `beside` that a transaction group takes beside them.
    /// Once.
    pub fn attach_bell(&self, bell: Arc<Bell>, dirty: u64, beside: u64) {
        self.shared.txgs.attach(Arc::clone(&bell), dirty);
        self.shared.held.attach(bell, beside);
    }

    /// What was found in intent logs when the pool was opened.
    #[must_use]
    pub fn replayed(&self) -> Replayed {
        self.shared.replayed.lock().clone()
    }

    /// What was written so far, and how long it took.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        *self.shared.statistics.lock()
    }

    /// Runs a command in the next transaction group and waits until it is durable.
    ///
    /// # Errors
    /// The command's own; then nothing was changed.
    pub fn run<T, F>(&self, op: F) -> BoxFuture<'_, Result<T, OpError>>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
    {
        self.shared.run(op)
    }

    /// The same for a command that takes snapshots: what came before it may be of its transaction group, and after it come
    /// others like it and nothing else.
    ///
    /// # Errors
    /// The command's own; then nothing was changed.
    pub fn run_snapshot<T, F>(&self, op: F) -> BoxFuture<'_, Result<T, OpError>>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
    {
        self.shared.carry_out(true, Box::new(move || Box::new(op.clone())))
    }

    /// Waits until everything done so far is durable, and a new uberblock says so (`zpool sync`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn sync(&self) -> BoxFuture<'_, Result<(), VolumeError>> {
        Box::pin(async move {
            let refuse = |why| Err(VolumeError::NotReady(format!("the pool is suspended: {why}")));
            if let Some(why) = self.shared.suspension.why() {
                return refuse(why);
            }
            tokio::select! {
                biased;
                result = self.shared.txgs.sync_open() => result,
                why = self.shared.suspension.suspended() => refuse(why),
            }
        })
    }
}
