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

mod command;
mod conduct;
mod keeper;
mod publish;
mod task;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use block::{BlockVolume as _, VolumeError};
use ondisk::label::PoolState;
use parking_lot::Mutex;
use pool::{
    Pool,
    dmu::{BlockSource, ReadError},
    dsl::{DatasetKind, HeadKind},
};
use tokio::{task::JoinHandle, time::timeout};

pub use self::conduct::Conduct;
pub(crate) use self::publish::{content, describe};
use self::{conduct::on_suspension, keeper::PoolKeeper};
use crate::{
    BoxFuture, EngineError,
    alloc::BitsMemory,
    devices::{
        self, Sweeps,
        watch::{self, Asks},
    },
    dsl::{self, OpError, kept},
    ear::EngineEar,
    events::Events,
    heal,
    open::{multihost::Heartbeats, rivals},
    prewarm::Prewarm,
    scan::{self, Ground, Scans},
    second::{self, Second},
    suspend::Suspension,
    sync::{Syncer, Task, Work},
    txg::{Limits, Room, Txgs},
    volume::{LiveVolume, Service},
    write::{Targets, Written},
    zil::{
        Log, Logs,
        log::Means,
        replay::{self, Replayed},
    },
};

/// How long a scan may take to stop between two batches.
const HELPER_PATIENCE: Duration = Duration::from_secs(10);

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
}

impl Shared {
    /// The volume that is open already. One that was closed because it cannot be read serves nobody; with nothing left to be
    /// synced it may be opened anew.
    fn opened(
        &self,
        volumes: &BTreeMap<u64, Arc<LiveVolume>>,
        number: u64,
    ) -> Result<Option<Arc<LiveVolume>>, OpenError> {
        let Some(volume) = volumes.get(&number) else { return Ok(None) };
        match volume.is_closed() {
            false => Ok(Some(Arc::clone(volume))),
            true if volume.is_over() && self.ending.lock().is_none() => Ok(None),
            true => Err(OpenError::Closed(volume.identity().name)),
        }
    }

    /// Nothing is begun or taken any more, and whoever waits for a transaction group or for space hears it; `reason` is what
    /// clients are told.
    fn give_up(&self, reason: &str) {
        self.suspension.give_up();
        self.txgs.refuse(reason);
        self.means.space.close();
        self.scans.halt();
        self.sweeps.close();
    }

    /// Commands that wait for their turn are not carried out, and hear why.
    fn answer_waiting(&self, why: &EngineError) {
        let left: Vec<Task> = self.tasks.lock().drain(..).map(|(_, task)| task).collect();
        left.into_iter().for_each(|task| (task.done)(Err(why.clone())));
    }

    /// How a volume is served: of one that is being made small clients have what is going to be left, and it may have been
    /// opened after that began.
    fn within(&self, number: u64, service: Service) -> Service {
        let most = self.shrinking.load().get(&number).copied().unwrap_or(u64::MAX);
        Service { size: service.size.min(most), ..service }
    }
}

/// How the pool is to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In use by this host: the daemon stops, or a command has done its work.
    Close,
    /// Exported.
    Export,
    /// Destroyed.
    Destroy,
}

/// Why a volume cannot be opened for writing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be found or read.
    #[error(transparent)]
    Lookup(#[from] pool::dsl::LookupError),
    /// A snapshot, a bookmark, a file system.
    #[error("'{0}' is not a volume that can be written to")]
    NotAVolume(String),
    /// Its content is ciphertext.
    #[error("'{0}' is encrypted: the key is not loaded, and loading keys is not supported")]
    Encrypted(String),
    /// Only a part of it was received: OpenZFS takes it away when it imports the pool, or goes on with it.
    #[error("'{0}' was received in part only: receive the rest of it with OpenZFS, or destroy it")]
    Partial(String),
    /// Its intent log holds writes that could not be replayed: without them it is not as its clients left it.
    #[error("{0}")]
    Unreplayed(String),
    /// It could not be read any more, and what was written to it before has still to be synced; or the pool is being left. To
    /// be tried again.
    #[error("'{0}' was closed, and what was written to it before is being synced")]
    Closed(String),
    /// Its structures cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Drop for Engine {
    /// Whoever starts an engine, or has one, may be dropped anywhere. Its pool is left as by a crash then: the task that syncs
    /// would go on for good, with the devices locked, and with nobody who could end it.
    fn drop(&mut self) {
        let Some(task) = self.task.get_mut().take() else { return };
        let why = given_up();
        self.shared.give_up(&why.to_string());
        for volume in self.open_volumes() {
            volume.close();
        }
        task.abort();
        self.shared.failed.lock().get_or_insert(why.clone());
        self.shared.answer_waiting(&why);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?})", self.view())
    }
}

impl Engine {
    /// Takes over a pool that was created or opened. Its first transaction group is synced before this returns,
    /// so that labels say who has it. With `multihost` on, that takes some seconds more for a pool that was opened: another
    /// host may be about to take it over as well.
    ///
    /// # Errors
    /// It cannot be written to, or another host takes it over.
    pub fn start(syncer: Syncer, options: Options) -> BoxFuture<'static, Result<Arc<Self>, EngineError>> {
        Self::start_caching(syncer, options, second::Config::default())
    }

    /// The same, with a second tier of the cache that works like `tier` from the beginning.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_caching(
        mut syncer: Syncer,
        options: Options,
        tier: second::Config,
    ) -> BoxFuture<'static, Result<Arc<Self>, EngineError>> {
        Box::pin(async move {
            let events = Events::new(options.clock);
            syncer.events = Arc::clone(&events);
            devices::opened(&syncer.io.tree());
            scan::open(&mut syncer).await?;
            let unheld = dsl::release_temporary(&mut syncer).await;
            // What lies on cache devices may be of the future that was given up.
            let is_rewound =
                syncer.view.as_ref().is_some_and(|view| view.uberblock().txg < view.newest_uberblock().txg);
            let mut heartbeats = Heartbeats::default();
            syncer.out.suspension().heed(heartbeats.alive());
            rivals::exclude(&mut syncer, &mut heartbeats, options.now).await?;
            let first = syncer.txg;
            let done = syncer.sync_txg(first, (options.now)(), Work::default()).await?;
            let Some(view) = syncer.view.clone() else {
                return Err(EngineError::Unsupported("the pool has no state to look at".into()));
            };
            let txgs = Txgs::new(first + 1, options.limits);
            txgs.set_supply(done.supply);
            syncer.out.alloc.log_space().set_promises(Arc::clone(&txgs));
            let conduct = Conduct::of(&view).await.unwrap_or_default();
            let suspension = syncer.out.suspension();
            let second = Second::new(view.io(), is_rewound, tier, Arc::clone(&suspension));
            second.follow(|| Arc::clone(&view));
            let means = Means {
                txgs: Arc::clone(&txgs),
                space: Arc::clone(syncer.out.alloc.log_space()),
                direct: syncer.out.direct(),
                ahead: syncer.out.ahead(),
                suspension: Arc::clone(&suspension),
            };
            let ear = EngineEar::new(syncer.out.reports());
            syncer.io.listen(Arc::clone(&ear) as Arc<dyn pool::Ear>);
            let shared = Arc::new(Shared {
                txgs,
                logs: Arc::clone(&syncer.logs),
                means,
                options,
                tasks: Mutex::default(),
                volumes: Mutex::default(),
                view: ArcSwap::new(view),
                shrinking: ArcSwap::default(),
                source: syncer.out.source(),
                clients_source: syncer.out.clients_source(),
                ending: Mutex::new(None),
                failed: Mutex::new(None),
                suspension: Arc::clone(&suspension),
                targets: syncer.out.targets(),
                conduct: ArcSwap::default(),
                numbers: AtomicU64::new(0),
                statistics: Mutex::default(),
                replayed: Mutex::default(),
                events,
                sweeps: Sweeps::default(),
                ear,
                scans: Arc::clone(&syncer.scans),
                second,
                bits: Arc::clone(syncer.out.alloc.bits()),
            });
            shared.conduct_is(conduct);
            let ground = Arc::new(ground(&shared, &syncer));
            let crashed = std::mem::take(&mut syncer.crashed);
            let report = Arc::downgrade(&shared.txgs);
            syncer.out.on_data_written(Arc::new(move |txg, bytes| {
                if let Some(txgs) = report.upgrade() {
                    txgs.undirty(txg, bytes);
                }
            }));
            if done.more_to_do.is_some() {
                shared.txgs.wake();
            }
            heartbeats.committed(&syncer, options.now);
            let commits = Arc::downgrade(&shared.txgs);
            let wake = Box::new(move || {
                if let Some(txgs) = commits.upgrade() {
                    txgs.wake();
                }
            });
            suspension.begin(on_suspension(&shared, &syncer.name), wake, heartbeats.alive());
            let (asks, asked) = watch::asks();
            let reports = syncer.out.reports();
            let task = tokio::spawn(task::run(Arc::clone(&shared), Box::new(syncer), heartbeats));
            let helpers = vec![
                Helper(tokio::spawn(scan::run(Arc::clone(&ground)))),
                Helper(tokio::spawn(heal::run(Arc::clone(&ground), Arc::clone(&shared.ear)))),
            ];
            let engine = Arc::new(Self {
                shared,
                task: tokio::sync::Mutex::new(Some(task)),
                asks,
                watch: Mutex::default(),
                helpers: Mutex::new(helpers),
                prewarm: Prewarm::new(ground),
                owing: Mutex::default(),
            });
            *engine.watch.lock() = Some(tokio::spawn(watch::run(Arc::downgrade(&engine), asked, reports)));
            match replay::replay(&engine, crashed).await {
                Ok(replayed) => *engine.shared.replayed.lock() = replayed,
                Err(error) => {
                    // Whoever starts it has nothing that could be cleared: a suspended pool would keep its devices for good.
                    if engine.end(Ending::Close).await.is_err() {
                        engine.abandon().await;
                    }
                    return Err(error);
                }
            }
            // Not in the first group: what fails on the way of that would keep the pool from being opened, each time.
            for object in unheld {
                let destroyed =
                    engine.run(move |cx| Box::pin(async move { dsl::destroy_deferred(cx, object).await }));
                if let Err(error) = destroyed.await {
                    let pool = engine.view();
                    tracing::warn!(pool = pool.name(), object, %error, "a snapshot that nobody holds any more is not destroyed");
                }
            }
            Ok(engine)
        })
    }

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

    /// Opens a volume for writing; the same one for everybody.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<LiveVolume>, OpenError>> {
        self.open_volume(name, false)
    }

    /// The same; `is_replaying`: whoever opens it does again what its intent log says.
    pub(crate) fn open_volume<'a>(
        &'a self,
        name: &'a str,
        is_replaying: bool,
    ) -> BoxFuture<'a, Result<Arc<LiveVolume>, OpenError>> {
        Box::pin(async move {
            // A commit in between would make what was read here old; then once more.
            loop {
                let view = self.view();
                let dataset = view.dsl().await?.lookup(name).await?;
                if dataset.kind() != DatasetKind::Head || dataset.head_kind() != HeadKind::Volume {
                    // Of what could not be read nobody knows, and it may be one.
                    let unread = dataset.unread().map(OpenError::from);
                    return Err(unread.unwrap_or_else(|| OpenError::NotAVolume(name.to_owned())));
                }
                if dataset.is_encrypted() {
                    return Err(OpenError::Encrypted(name.to_owned()));
                }
                if dataset.phys().is_some_and(|phys| phys.is_inconsistent()) {
                    return Err(OpenError::Partial(name.to_owned()));
                }
                let number = dataset.object();
                if let Some(why) = self.shared.replayed.lock().failed.get(&number) {
                    return Err(OpenError::Unreplayed(why.clone()));
                }
                if let Some(volume) = self.shared.opened(&self.shared.volumes.lock(), number)? {
                    return Ok(volume);
                }
                let (identity, service) = describe(&view, &dataset).await?;
                let (data, _) = content(&view, number).await?;
                // What clients wrote now would be written over when the log is replayed after all.
                if !is_replaying && dsl::waits(dataset.objset().await?.phys()) {
                    return Err(OpenError::Unreplayed(format!(
                        "volume '{name}' is not served: its intent log was not replayed, as it could not be read when the \
                         pool was imported; export the pool and import it again"
                    )));
                }
                // All that were found were claimed or ended before anything else was done.
                let is_unclaimed = !is_replaying && dsl::is_unclaimed(number, dataset.objset().await?.phys());
                let kept = kept::of_directory(dataset.dir().extra(dataset.dsl()).await?, dataset.guid());
                let mut volumes = self.shared.volumes.lock();
                if !Arc::ptr_eq(&view, &self.view()) {
                    continue;
                }
                if let Some(volume) = self.shared.opened(&volumes, number)? {
                    return Ok(volume);
                }
                // Until the next commit tells: nothing of its own.
                let room = Room { limit: u64::MAX, ..Room::default() };
                let txgs = self.shared.txgs.for_volume(number, room);
                let log = Log::new(number, Some(self.shared.means.clone()));
                let was_missed = is_unclaimed && self.shared.logs.get(number).is_none();
                self.shared.logs.insert(Arc::clone(&log));
                let service = self.shared.within(number, service);
                let volume = LiveVolume::new(number, identity, service, data, Arc::clone(&txgs), log);
                let shared = &self.shared;
                volume.read_through(Arc::clone(&shared.clients_source), Arc::clone(&shared.source));
                if kept::is_possible(&view) {
                    volume.keep_in(PoolKeeper::new(number, dataset.guid(), kept, &self.shared));
                }
                volume.set_holding(dataset.phys().map(dsl::Holding::from).unwrap_or_default());
                volumes.insert(number, Arc::clone(&volume));
                drop(volumes);
                if was_missed {
                    self.shared.replayed.lock().missed(name);
                }
                // Its room is known after a transaction group that was asked for it.
                self.shared.txgs.wake();
                return Ok(volume);
            }
        })
    }

    /// Volumes that are open.
    #[must_use]
    pub fn open_volumes(&self) -> Vec<Arc<LiveVolume>> {
        self.shared.volumes.lock().values().cloned().collect()
    }

    /// Syncs what is dirty, stops, and leaves the pool as `ending` says. Volumes answer `NotReady` afterwards.
    ///
    /// # Errors
    /// The last transaction groups could not be written; the pool is as of the last one that could. A suspended pool
    /// stays open: it can be cleared and left then, or [given up](Self::abandon). If it is suspended while it is being
    /// left, it is left as soon as it is cleared, and to call this again waits for that, as it does for another call that is
    /// under way.
    pub fn end<'a>(&'a self, ending: Ending) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let has_ended = || self.shared.failed.lock().clone().map_or(Ok(()), Err);
            // Whoever comes while it is being left waits until it is, or goes on where another gave up.
            let mut running = self.task.lock().await;
            let Some(task) = running.as_mut() else { return has_ended() };
            if let Some(why) = self.shared.suspension.why() {
                return Err(EngineError::Suspended(why.to_string()));
            }
            // What is trimmed or written over now may be the next owner's as soon as the last group is durable. Where a device takes
            // too long over it, whoever leaves the pool hears of that.
            let is_swept = tokio::select! {
                biased;
                has_halted = self.shared.sweeps.halt() => !has_halted,
                why = self.shared.suspension.suspended() => {
                    return Err(EngineError::Suspended(why.to_string()));
                }
            };
            self.prewarm.stop();
            // First, so that the last transaction group says how far a scan is.
            self.shared.scans.halt();
            let helpers = std::mem::take(&mut *self.helpers.lock());
            for mut helper in helpers {
                // A device that does not answer must not keep the pool from being closed.
                let _over = timeout(HELPER_PATIENCE, &mut helper.0).await;
            }
            *self.shared.ending.lock() = Some(ending);
            self.shared.txgs.wake();
            let ended = tokio::select! {
                biased;
                ended = task => ended,
                why = self.shared.suspension.suspended() => {
                    return Err(EngineError::Suspended(format!("{why}; it is left when it is cleared")));
                }
            };
            let ended = ended.map(drop);
            *running = None;
            self.asks.close();
            let watch = self.watch.lock().take();
            if let Some(watch) = watch {
                // It may be about to open a device that is back.
                let _over = timeout(HELPER_PATIENCE, watch).await;
            }
            let view = self.view();
            self.shared.second.close(view.io()).await;
            view.io().leave_cache().await;
            for vdev in view.tree().leaves() {
                let owes = vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.deadline().owes_writes());
                if owes || is_swept && self.shared.sweeps.is_under_way(vdev.guid) {
                    tracing::warn!(
                        device = %vdev,
                        "it owes answers, and what it was given may still land: it stays locked on this host until it has \
                         given them, and is to be used on no other before"
                    );
                    self.owing.lock().push(vdev.to_string());
                }
            }
            // That tells more than that the task ended abnormally.
            has_ended()?;
            ended.map_err(|error| EngineError::Suspended(error.to_string()))
        })
    }

    /// Names of the devices that had not answered everything when the pool [was left](Self::end): what they were given may still
    /// land, also on what is another's by then.
    #[must_use]
    pub fn owing(&self) -> Vec<String> {
        self.owing.lock().clone()
    }

    /// Gives a suspended pool up: everything that waits is told so, what was not written is lost, devices are let go.
    /// On the devices is the last committed state.
    pub fn abandon(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            self.asks.close();
            self.prewarm.stop();
            let why = given_up();
            shared.give_up(&why.to_string());
            drop(std::mem::take(&mut *self.helpers.lock()));
            for volume in self.open_volumes() {
                volume.close();
            }
            // Who is about to leave it hears of the suspension, too.
            let task = timeout(PATIENCE, self.task.lock()).await.ok().and_then(|mut running| running.take());
            if let Some(mut task) = task
                && timeout(PATIENCE, &mut task).await.is_err()
            {
                // A device that never answers holds it up.
                task.abort();
                drop(task.await);
            }
            shared.failed.lock().get_or_insert(why.clone());
            // What was begun before is over soon, or was given to a device that never answers.
            let _over = timeout(PATIENCE, shared.sweeps.halt()).await;
            shared.answer_waiting(&why);
            for log in shared.logs.all() {
                drop(timeout(PATIENCE, log.end()).await);
            }
            let view = self.view();
            shared.second.close(view.io()).await;
            for vdev in view.tree().leaves().into_iter().chain(view.spares()).chain(view.l2cache()) {
                if let Some(leaf) = &vdev.leaf {
                    leaf.condition.update(|now| now.disk = None);
                }
            }
            for guid in view.io().auxiliaries().into_keys() {
                view.io().remove_auxiliary(guid);
            }
            view.io().leave_cache().await;
        })
    }
}

fn given_up() -> EngineError {
    EngineError::Suspended("the pool was given up".to_owned())
}

/// What scans and heals work with.
fn ground(shared: &Arc<Shared>, syncer: &Syncer) -> Ground {
    let (view, suspended) = (Arc::downgrade(shared), Arc::downgrade(shared));
    Ground {
        view: Box::new(move || view.upgrade().map(|shared| shared.view.load_full())),
        is_suspended: Box::new(move || {
            suspended
                .upgrade()
                .is_none_or(|shared| shared.failed.lock().is_some() || shared.suspension.is_on())
        }),
        suspension: Arc::clone(&shared.suspension),
        txgs: Arc::clone(&shared.txgs),
        events: Arc::clone(&shared.events),
        scans: Arc::clone(&shared.scans),
        horizon: Arc::clone(syncer.out.alloc.horizon()),
        reports: syncer.out.reports(),
    }
}

/// How long whoever is told that the pool is given up may take to let go.
const PATIENCE: Duration = Duration::from_secs(10);

impl Ending {
    fn state(self) -> PoolState {
        match self {
            Self::Close => PoolState::Active,
            Self::Export => PoolState::Exported,
            Self::Destroy => PoolState::Destroyed,
        }
    }
}
