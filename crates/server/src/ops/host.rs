//! The pools that are open here, and how they come and go: what operations run on.
//!
//! ```text
//!   daemon:  opened at the start, by create and by import; closed at the end, by export and by destroy
//!   command: opened when an operation names one, closed when the command has done its work
//! ```
//!
//! A pool is held for writing if it can be: devices locked, an engine started. Where it cannot (features this
//! version may only read, an intent log that only OpenZFS can claim, devices without permission) or must not
//! (`--readonly`, `-o readonly=on`, a rewound import), it is held for reading, and the reason is kept: it is what
//! every operation on it is refused with.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use engine::{
    BoxFuture, EngineError,
    dsl::OpError,
    engine::{Ending, Engine, OpFuture, Options},
    open::{OpenOptions, READ_ONLY},
    second::{Config as TierConfig, L2Stats},
    sync::Syncer,
    txg::Limits,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use pool::{
    Pool,
    cache::BlockCache,
    import::{self, Candidate, Refused, Rewind},
    ondisk::nvlist::NvList,
    vdev::Vdev,
};
use rand::{TryRngCore as _, rngs::OsRng};
use tokio::{sync::watch, time::Instant};

use super::{Failure, Held};
use crate::{
    answers::Pools,
    disks::Disks,
    events::{About, observe::Observer},
    host::{self, Foreign, HostError, Older, Places, Settings, chain},
    hostid,
    hotplug::{Changes, DeviceOpener},
    kernel, logs,
    newest::{Note, Notes},
    serving::Serving,
    state::{self, Remembered, StateError},
    warmth::Warmth,
};

/// Who runs operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A daemon: only pools it has; they stay open.
    Daemon,
    /// A command: pools are opened when they are named.
    Command,
    /// A daemon that never writes.
    ReadOnly,
}

/// Why an operation has no pool to work on.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// There is none of that name; what was in the way, each on a line of its own.
    Missing(String),
    /// It is open for reading only: the reason.
    ReadOnly(String),
    /// Nothing can be written: which pool, and why.
    Suspended(String, String),
    /// It is there and cannot be opened. The whole sentence.
    Failed(String),
    /// The same of one that is imported here, and that nobody else has open: all that is left of that is that it is
    /// remembered.
    Unopenable { guid: u64, why: String },
}

impl PoolError {
    /// In the words of `zpool`.
    pub(crate) fn of_pool(self, name: &str) -> Failure {
        match self {
            Self::Missing(hint) => Failure {
                message: format!("cannot open '{name}': no such pool{hint}"),
                ..Failure::no_pool(name)
            },
            Self::ReadOnly(why) => Failure::new(format!("cannot open '{name}': pool is read-only: {why}")),
            Self::Suspended(pool, why) => {
                Failure::because(&format!("cannot open '{name}'"), suspended(&pool, &why))
            }
            Self::Failed(sentence) | Self::Unopenable { why: sentence, .. } => Failure::new(sentence),
        }
    }

    /// The same, about a change: what can be opened, for reading only, is not refused as if it could not.
    pub(crate) fn of_change(self, what: &str, name: &str) -> Failure {
        match self {
            Self::ReadOnly(why) => Failure::because(what, format_args!("pool is read-only: {why}")),
            other => other.of_pool(name),
        }
    }

    /// In the words of `zfs`, about an existing dataset. `what` is what cannot be done: `cannot destroy 'x'`.
    pub(crate) fn of_dataset(self, what: &str, name: &str) -> Failure {
        match self {
            Self::Missing(hint) => Failure {
                message: format!("cannot open '{name}': dataset does not exist{hint}"),
                ..Failure::no_dataset(name)
            },
            Self::ReadOnly(why) => Failure::because(what, format_args!("pool is read-only: {why}")),
            Self::Suspended(pool, why) => Failure::because(what, suspended(&pool, &why)),
            Self::Failed(sentence) | Self::Unopenable { why: sentence, .. } => Failure::new(sentence),
        }
    }
}

/// What goes into a pool's history.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) command: String,
    pub(crate) user: u64,
}

impl Record {
    pub(crate) fn to_nvlist(&self) -> NvList {
        let mut list = NvList::default();
        list.set("history command", self.command.as_str());
        list.set("history zone", "linux");
        list.set("history who", self.user);
        list.set("history time", hostid::now());
        list.set("history hostname", hostid::hostname().as_str());
        list
    }
}

/// One operation at work.
pub(crate) struct Cx<'a> {
    pub(crate) host: &'a Host,
    pub(crate) record: Option<Record>,
}

impl Cx<'_> {
    /// Runs a change in the engine and notes the command in the pool's history with it. `what` is what cannot be
    /// done if it is refused: `cannot create 'tank/x'`.
    pub(crate) async fn change<F>(
        &self,
        held: &Held,
        what: &str,
        is_snapshot: bool,
        op: F,
    ) -> Result<(), Failure>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        self.try_change(held, is_snapshot, op).await.map_err(|error| refused(what, &error))
    }

    /// The same, for callers who have their own words for some refusals.
    pub(crate) async fn try_change<F>(&self, held: &Held, is_snapshot: bool, op: F) -> Result<(), OpError>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        let Some(engine) = held.engine() else {
            return Err(OpError::Refused("pool is read-only".to_owned()));
        };
        let record = self.record.as_ref().map(Record::to_nvlist);
        engine
            .run(is_snapshot, move |cx| {
                Box::pin(async move {
                    op(cx).await?;
                    if let Some(record) = record {
                        engine::mos::history::append(&mut cx.mos, &record).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    /// After a change: what is served follows.
    pub(crate) async fn served(&self, held: &Held) -> Vec<String> {
        let Some(serving) = &self.host.serving else { return Vec::new() };
        let problems = serving.follow(held).await;
        serving.names_are_free();
        problems
    }

    /// Those of these datasets that clients are connected to.
    pub(crate) fn used<'a>(&self, names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let Some(serving) = &self.host.serving else { return BTreeSet::new() };
        let names: BTreeSet<&str> = names.collect();
        serving.used(|name| names.contains(name))
    }

    /// A dataset with clients stays as it is. `what` is what is refused then: `cannot destroy 'tank/x'`.
    pub(crate) fn spare_clients_of(&self, name: &str, what: &str) -> Result<(), Failure> {
        let clients = self.host.serving.as_ref().map(|serving| serving.clients_by_name(name));
        match &clients.unwrap_or_default()[..] {
            [] => Ok(()),
            clients => Err(Failure::because(what, format_args!("dataset is busy\n{}", used_by(clients)))),
        }
    }
}

/// Who has to be disconnected: some of them, if there are many.
fn used_by(clients: &[String]) -> String {
    let (named, others) = clients.split_at(clients.len().min(CLIENTS_NAMED));
    let others = match others.len() {
        0 => String::new(),
        count => format!(", and {count} more"),
    };
    format!("it is used by {}{others} ('millpond initiators')", named.join(", "))
}

/// What is said of a pool that cannot be written to, and what helps.
pub(crate) fn suspended(pool: &str, why: &str) -> String {
    let remedy = host::remedy(why);
    format!("pool I/O is currently suspended: {why}\n{remedy}, then run 'zpool clear {pool}'")
}

/// A refusal of the engine, in words.
pub(crate) fn refused(what: &str, error: &OpError) -> Failure {
    match error {
        OpError::Engine(EngineError::Suspended(why)) => {
            Failure::because(what, format_args!("pool I/O is currently suspended: {why}"))
        }
        other => Failure::because(what, chain(other)),
    }
}

/// Whether a change that failed may yet be made: when the pool goes on.
pub(crate) fn may_yet_be_made(error: &OpError) -> bool {
    matches!(error, OpError::Engine(EngineError::Suspended(_)))
}

/// Who has it is the only one to change a pool.
pub(crate) type Turn = tokio::sync::OwnedMutexGuard<()>;

/// The pools that are open here.
#[derive(Debug)]
pub struct Host {
    places: Places,
    mode: Mode,
    settings: Settings,
    /// One for all pools.
    cache: Arc<BlockCache>,
    held: Mutex<BTreeMap<u64, Arc<Held>>>,
    /// What the second tiers of pools counted that are not held any more.
    past: Mutex<L2Stats>,
    /// One operation at a time for each pool, by name: one that waits for a suspended pool holds up no other's.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(crate) serving: Option<Arc<Serving>>,
    watching: Option<Watching>,
    /// Whether the daemon ends.
    ending: watch::Sender<bool>,
}

/// What a daemon does for the pools it has open, besides serving them.
#[derive(Debug)]
pub(crate) struct Watching {
    /// Takes their events into the journal.
    pub(crate) observer: Observer,
    /// Knows their devices by other names than the pool does.
    pub(crate) disks: Arc<Disks>,
    /// Devices that came and went.
    pub(crate) changes: Arc<Changes>,
    /// Remembers what is warm.
    pub(crate) warmth: Warmth,
}

/// Clients that are named when a dataset is busy.
const CLIENTS_NAMED: usize = 4;

/// How long devices that somebody else has are asked for: a killed process gives its back within milliseconds, on a
/// busy machine within tenths of a second.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(1500);
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// What is said of a pool that somebody else has open.
pub(crate) const IN_USE: &str = "pool is in use";

/// How often a pool that is being closed is asked whether it was suspended meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// How long operations on pools that are not open are waited for when the daemon ends: they may wait for devices that never
/// answer, and what they have begun is as after a crash, which harms nothing.
const LAST_TURNS: Duration = Duration::from_secs(10);

/// How long the end of a pool that was suspended on the way is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Host {
    /// No pools yet. `settings` are those of pools that are opened because an operation names them.
    #[must_use]
    pub fn new(places: Places, mode: Mode, settings: Settings) -> Self {
        let cache = settings.cache();
        Self {
            places,
            mode,
            settings,
            cache,
            held: Mutex::default(),
            past: Mutex::default(),
            turns: Mutex::default(),
            serving: None,
            watching: None,
            ending: watch::Sender::new(false),
        }
    }

    /// The same, and what it has is watched. Wants a tokio runtime.
    pub(crate) fn with_watching(self, watching: Watching) -> Self {
        Self { watching: Some(watching), ..self }
    }

    /// What watches its pools, in a daemon.
    pub(crate) fn watching(&self) -> Option<&Watching> {
        self.watching.as_ref()
    }

    /// The same, and what it has is served.
    pub(crate) fn with_serving(self, serving: Arc<Serving>) -> Self {
        Self { serving: Some(serving), ..self }
    }

    /// Where pools are looked for.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Who runs operations here.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The turn of operations on the pool of this name or guid: one that is open here has one turn, however it is called.
    pub(crate) async fn turn(&self, pool: &str) -> Turn {
        let pool = self.find(pool).map_or_else(|| pool.to_owned(), |held| held.name().to_owned());
        let turn = {
            let mut turns = self.turns.lock();
            // Names that nobody waits for any more.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(pool).or_default())
        };
        turn.lock_owned().await
    }

    /// The turn of an operation that is about to begin; refused when the daemon ends before it comes.
    pub(crate) async fn next_turn(&self, pool: &str) -> Result<Turn, Failure> {
        let mut ending = self.ending();
        tokio::select! {
            biased;
            // The sender is ours: it is not gone.
            _ends = ending.wait_for(|is_so| *is_so) => Err(Failure::ending()),
            turn = self.turn(pool) => Ok(turn),
        }
    }

    /// The daemon ends: from now on no operation is begun, and one of many steps ends after the one it is at.
    pub(crate) fn begin_to_end(&self) {
        self.ending.send_replace(true);
    }

    /// Whether the daemon ends.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// True when the daemon ends.
    pub(crate) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// All turns, but those of operations that wait for a pool that is suspended, or that are still about to bring one after
    /// a while.
    pub(crate) async fn last_turns(&self) -> Vec<Turn> {
        let deadline = Instant::now() + LAST_TURNS;
        let turns: Vec<_> =
            self.turns.lock().iter().map(|(name, turn)| (name.clone(), Arc::clone(turn))).collect();
        let mut taken = Vec::new();
        for (name, turn) in turns {
            let mut until = deadline;
            loop {
                tokio::select! {
                    biased;
                    turn = Arc::clone(&turn).lock_owned() => {
                        taken.push(turn);
                        break;
                    }
                    () = tokio::time::sleep(LOOK) => {}
                }
                let is_hopeless = match self.find(&name) {
                    Some(held) => {
                        // Whoever exports it has still to say so when it is closed.
                        until = Instant::now() + LAST_TURNS;
                        held.suspended().is_some()
                    }
                    None => Instant::now() >= until,
                };
                if is_hopeless {
                    break;
                }
            }
        }
        taken
    }

    /// The pools that are open, to be asked.
    #[must_use]
    pub fn pools(&self) -> Pools {
        Pools::new(self.all())
    }

    /// The pools that are open.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Held>> {
        self.held.lock().values().cloned().collect()
    }

    /// The open pool of this name or guid.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Held>> {
        let held = self.held.lock();
        let guid = name.parse::<u64>().ok();
        held.values()
            .find(|pool| pool.name() == name)
            .or_else(|| held.values().find(|pool| Some(pool.guid()) == guid))
            .cloned()
    }

    /// Keeps a pool.
    pub(crate) fn keep(&self, held: Held) -> Arc<Held> {
        let held = Arc::new(held);
        if let Some(serving) = &self.serving {
            serving.expect(&held);
        }
        self.held.lock().insert(held.guid(), Arc::clone(&held));
        if self.mode != Mode::Command {
            // What is known can be told when the devices no longer answer.
            held.memory().look(&held.view());
        }
        if let Some(Watching { observer, disks, changes, warmth }) = &self.watching {
            let (serving, guid) = (self.serving.clone(), held.guid());
            let notes = held.engine().map(|engine| {
                let notes = Notes::new(self.places.state().clone(), Arc::downgrade(engine));
                if Note::of(&held.view()).lacks_one() {
                    notes.soon();
                }
                notes
            });
            observer.opened(&held, notes, move || {
                serving.iter().for_each(|serving| serving.try_soon(guid));
            });
            warmth.opened(&held);
            if let Some(engine) = held.engine() {
                let about = About { pool: held.name().to_owned(), guid: held.guid() };
                engine.watch(Arc::new(DeviceOpener::new(
                    self.places.named().to_vec(),
                    Arc::clone(disks),
                    Arc::clone(changes),
                    Arc::downgrade(engine),
                    (about, Arc::clone(observer.journal())),
                )));
            }
        }
        held
    }

    /// What the second tiers of all pools hold, and did since the start: counters never go back, also when a pool is closed.
    #[must_use]
    pub fn second_tiers(&self) -> L2Stats {
        let held = self.held.lock();
        let mut all = *self.past.lock();
        for engine in held.values().filter_map(|held| held.engine()) {
            all.add(&engine.second().stats());
        }
        all
    }

    /// Lets go of a pool; the caller has ended its engine or is about to.
    pub(crate) fn release(&self, guid: u64) {
        {
            // From one to the other under both locks: who asks misses nothing, and has nothing twice.
            let mut held = self.held.lock();
            let gone = held.remove(&guid);
            if let Some(engine) = gone.as_ref().and_then(|gone| gone.engine()) {
                self.past.lock().add(&engine.second().stats().counted());
            }
        }
        if let Some(serving) = &self.serving {
            serving.forget(guid);
        }
    }

    /// The pool of this name or guid, for reading at least. A command opens it if it is imported, or where `-d` says.
    pub(crate) async fn pool(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        if let Some(held) = self.find(name) {
            return Ok(held);
        }
        if self.mode != Mode::Command {
            return Err(PoolError::Missing(String::new()));
        }
        let (candidate, remembered) = match self.places.find(name).await {
            Ok(found) => found,
            Err(HostError::NoSuchPool { hint, .. }) => return Err(PoolError::Missing(hint)),
            Err(error) => return Err(PoolError::Failed(chain(&error))),
        };
        // With -d it was found by searching; how it was imported holds all the same.
        let known = || self.places.state().pools().ok()?.into_iter().find(|pool| pool.guid == candidate.guid);
        let remembered = remembered.or_else(known);
        if remembered.is_none() && self.places.named().is_empty() {
            let hint = format!("\na pool of this name is there and not imported: 'zpool import {name}'");
            return Err(PoolError::Missing(hint));
        }
        let settings = Settings { foreign: Foreign::Refuse, ..self.settings.clone() };
        let opened = self.open(&candidate, remembered.as_ref(), &settings, None, LOCK_PATIENCE).await;
        let (held, _notes) = opened.map_err(|why| match &remembered {
            Some(_) if !why.contains(IN_USE) => PoolError::Unopenable { guid: candidate.guid, why },
            _ => PoolError::Failed(why),
        })?;
        if held.engine().is_some() {
            // The next command looks for it anew then.
            let _unkept = self.remember(&held, &settings, remembered.as_ref());
        }
        Ok(self.keep(held))
    }

    /// The pool of this name or guid, to be looked at only: nothing is written to it, not even that it is open.
    pub(crate) async fn readable(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        if let Some(held) = self.find(name) {
            return Ok(held);
        }
        if self.mode != Mode::Command {
            return Err(PoolError::Missing(String::new()));
        }
        match self.places.open(name, &self.settings).await {
            Ok(opened) => Ok(Arc::new(Held::reading(opened.pool, "it was opened to be looked at"))),
            Err(HostError::NoSuchPool { hint, .. }) => Err(PoolError::Missing(hint)),
            Err(error) => Err(PoolError::Failed(chain(&error))),
        }
    }

    /// The pool of this name or guid, for writing.
    pub(crate) async fn writable(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        let held = self.pool(name).await?;
        match (held.read_only(), held.suspended()) {
            (None, None) => Ok(held),
            (Some(why), _) => Err(PoolError::ReadOnly(why.to_owned())),
            (None, Some(why)) => Err(PoolError::Suspended(held.name().to_owned(), why)),
        }
    }

    /// Opens a pool that was found: for writing if it can be, else for reading. Devices that somebody else has are asked for
    /// as long as `patience` says. What the user should know is in the notes.
    ///
    /// # Errors
    /// It cannot even be read, or somebody else has it: the whole sentence.
    pub fn open<'a>(
        &'a self,
        candidate: &'a Candidate,
        remembered: Option<&'a Remembered>,
        settings: &'a Settings,
        rename: Option<String>,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(Held, Vec<String>), String>> {
        Box::pin(async move {
            let settings = &Settings { cache: Some(self.cache()), ..settings.clone() };
            // Whoever had its devices until now may have found out more.
            let known = || self.places.state().known(candidate.guid);
            // Whoever goes back says so; a pool that is only read loses nothing by it.
            let may_be_older = settings.read_only
                || settings.rewind != Rewind::Latest
                || remembered.is_some_and(|pool| pool.read_only || pool.txg.is_some());
            // Also if it can only be read: hosts would get old blocks.
            let open_as_it_was = async |candidate: &Candidate| {
                let known = known();
                let opened = host::open_knowing(candidate, remembered, known.as_ref(), settings).await;
                let opened = opened.map_err(|error| chain(&error))?;
                if let Some(older) = opened.older.as_ref().filter(|_| !may_be_older) {
                    return Err(older.sentence.clone());
                }
                Ok(opened)
            };
            let must_not = match (self.mode, remembered) {
                (Mode::ReadOnly, _) => Some("it was opened with --readonly"),
                (_, Some(pool)) if pool.read_only => Some("it was imported with readonly=on"),
                (_, Some(pool)) if pool.txg.is_some() => {
                    Some("it was imported as of an earlier transaction group")
                }
                _ if settings.read_only => Some("it was opened with readonly=on"),
                _ if matches!(settings.rewind, Rewind::To(_)) => {
                    Some("it was opened as of an earlier transaction group")
                }
                _ => None,
            };
            let read = async |why: String| {
                let opened = open_as_it_was(candidate).await?;
                let mut notes = opened.notes;
                notes.extend(logs::unreplayed(&opened.pool).await);
                Ok((Held::reading(opened.pool, why), notes))
            };
            if let Some(why) = must_not {
                return read(why.to_owned()).await;
            }
            let in_use = |error: &dyn std::fmt::Display| {
                let remedy = match self.mode {
                    Mode::Command => "if a daemon serves it, say where its control socket is with --socket",
                    Mode::Daemon | Mode::ReadOnly => "'fuser -v DEVICE' says which process that is",
                };
                format!("cannot open '{}': {IN_USE}: {error}\n{remedy}", candidate.name)
            };
            let unwritable = async |error: &std::io::Error| {
                let why = format!("its devices cannot be opened for writing: {}", chain(error));
                let (held, mut notes) = read(why.clone()).await?;
                notes.push(format!("pool '{}' is open read-only: {why}", candidate.name));
                Ok((held.by_need(), notes))
            };
            if kernel::has_imported(&candidate.name, candidate.guid) {
                return Err(format!(
                    "cannot open '{}': {IN_USE}: OpenZFS has it imported on this host; export it there first",
                    candidate.name
                ));
            }
            let locked = match lock(candidate, patience).await {
                Ok(locked) => locked,
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => return Err(in_use(&error)),
                Err(error) => return unwritable(&error).await,
            };
            // Whoever had the devices until now may have exported it.
            if !settings.exported && host::is_given_away(&locked, remembered) {
                return Err(host::given_away(&locked));
            }
            let opened = match (open_as_it_was(&locked).await, &locked.refused[..]) {
                (Ok(opened), _) => opened,
                (Err(why), []) => return Err(why),
                // It cannot do without them.
                (Err(_), [first, ..]) => {
                    let refused = locked.refused.iter().find(|refused| refused.is_in_use()).unwrap_or(first);
                    let error = Arc::clone(&refused.error);
                    let is_in_use = refused.is_in_use();
                    drop(locked);
                    return if is_in_use { Err(in_use(&error)) } else { unwritable(&error).await };
                }
            };
            let mut notes = opened.notes;
            let tree = opened.pool.tree();
            let is_of_pool = |refused: &&Refused| tree.leaves().iter().any(|leaf| leaf.guid == refused.guid);
            for Refused { path, error, .. } in locked.refused.iter().filter(is_of_pool) {
                // Whoever has it may write to it.
                if error.kind() == std::io::ErrorKind::ResourceBusy {
                    return Err(in_use(error));
                }
                notes.push(format!(
                    "pool '{}' goes on without {path}, which cannot be opened for writing: {}",
                    candidate.name,
                    chain(&**error)
                ));
            }
            drop(tree);
            if opened.pool.uberblock().txg < opened.pool.newest_uberblock().txg {
                return Ok((
                    Held::reading(opened.pool, "it was opened as of an earlier transaction group"),
                    notes,
                ));
            }
            let options = OpenOptions {
                rename,
                hostid: hostid::hostid(),
                hostname: hostid::hostname(),
                now: hostid::now(),
                seed: seed(),
                workers: workers(),
            };
            let started = async {
                let syncer = engine::open::open(Arc::clone(&opened.pool), options).await?;
                Engine::start_caching(syncer, self.options(), self.tier()).await
            };
            match Box::pin(started).await {
                Ok(engine) => {
                    notes.extend(engine.replayed().notes());
                    engine.resume_sweeps().await;
                    let txg = opened.pool.newest_uberblock().txg;
                    if known().is_some_and(|known| known.newest > txg) {
                        let gone_on = self.go_on_from(&opened.pool, opened.older.as_ref(), &mut notes);
                        notes.extend(gone_on.err().map(|error| chain(&error)));
                    }
                    Ok((Held::writing(engine), notes))
                }
                Err(error @ EngineError::Unsupported(_)) => {
                    let why = error.to_string();
                    let why = why.strip_prefix(READ_ONLY).unwrap_or(&why).to_owned();
                    notes.push(format!("pool '{}' is open read-only: {why}", candidate.name));
                    // Opened anew: what was locked for writing is given back.
                    drop(opened.pool);
                    drop(locked);
                    let (held, more) = read(why).await?;
                    notes.extend(more.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
                    Ok((held.by_need(), notes))
                }
                Err(error) => Err(format!("cannot open '{}': {}", candidate.name, chain(&error))),
            }
        })
    }

    /// A pool goes on from what was there of it, also if it was newer once. What more there is of it, on devices that are
    /// missing, is not to take its place at a later start, nor be overwritten without a word.
    fn go_on_from(
        &self,
        pool: &Pool,
        older: Option<&Older>,
        notes: &mut Vec<String>,
    ) -> Result<(), StateError> {
        let mut apart = BTreeMap::new();
        if let Some(older) = older {
            notes.push(format!(
                "pool '{}' goes on from txg {}: a device that was missing is not taken back by itself if it has more than \
                 that",
                pool.name(),
                older.txg
            ));
            apart.extend(older.missing.iter().map(|guid| (*guid, older.txg)));
        }
        self.places.state().go_on_from(pool.guid(), pool.newest_uberblock().txg, &apart)
    }

    /// Opens a pool that was found as a daemon opens all of its own; [`receive`](Self::receive) keeps it. Unless somebody asked
    /// for it, one that others exported stays closed: it may be about to go elsewhere. This takes as long as its devices do, so
    /// nobody who does it has a turn. `patience` as of [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open), or another of its name is open.
    pub(crate) async fn reach(
        &self,
        candidate: &Candidate,
        remembered: Option<&Remembered>,
        is_asked_for: bool,
        patience: Duration,
    ) -> Result<(Held, Vec<String>), String> {
        self.has_no_other(&candidate.name, candidate.guid)?;
        let settings = Settings { exported: is_asked_for, ..self.settings.clone() };
        Box::pin(self.open(candidate, remembered, &settings, None, patience)).await
    }

    /// Keeps such a pool, and remembers it if it is open for writing. What the user should know is in the notes.
    ///
    /// # Errors
    /// Another of its name was opened meanwhile: this one is closed again.
    pub(crate) async fn receive(&self, held: Held) -> Result<(Arc<Held>, Vec<String>), String> {
        if let Err(why) = self.has_no_other(held.name(), held.guid()) {
            give_back(&held).await;
            return Err(why);
        }
        let mut notes = Vec::new();
        if held.engine().is_some() {
            let known = self.places.state().pools().unwrap_or_default();
            let before = known.iter().find(|known| known.guid == held.guid());
            let kept = self.remember(&held, &self.settings, before);
            notes.extend(kept.err().map(|error| chain(&error)));
        }
        Ok((self.keep(held), notes))
    }

    /// Nothing that is open has this name.
    fn has_no_other(&self, name: &str, guid: u64) -> Result<(), String> {
        let Some(other) = self.find(name) else { return Ok(()) };
        Err(chain(&HostError::Ambiguous { name: name.to_owned(), guids: vec![other.guid(), guid] }))
    }

    /// How engines of this host run.
    pub(crate) fn options(&self) -> Options {
        // Of the memory, what a pool may have dirty is a tenth; a command hardly writes.
        let memory = self.settings.memory.unwrap_or_else(memory_bytes);
        let limits = match self.mode {
            Mode::Command => Limits::for_memory(memory.min(2 << 30)),
            Mode::Daemon | Mode::ReadOnly => Limits::for_memory(memory),
        };
        Options { limits, ..Options::default() }
    }

    /// How cache devices are used.
    pub(crate) fn tier(&self) -> TierConfig {
        self.settings.tier
    }

    /// The ARC of all pools.
    #[must_use]
    pub fn cache(&self) -> Arc<BlockCache> {
        Arc::clone(&self.cache)
    }

    /// Notes an imported pool in the cache file. One that is only named again is imported for as long as it was to be, also if
    /// that is over: from now until the machine or a daemon starts.
    pub(crate) fn remember(
        &self,
        held: &Held,
        settings: &Settings,
        before: Option<&Remembered>,
    ) -> Result<(), StateError> {
        let is_listed = match settings.listed {
            Some(is_listed) => is_listed,
            None => !self.places.state().is_for_a_while(held.guid())?,
        };
        self.remember_since((!is_listed).then(state::boot), held, settings, before)
    }

    /// The same; with a start of the machine, for a while.
    fn remember_since(
        &self,
        boot: Option<String>,
        held: &Held,
        settings: &Settings,
        before: Option<&Remembered>,
    ) -> Result<(), StateError> {
        held.unlist(boot.is_some());
        let pool = held.view();
        let rewound = pool.uberblock().txg < pool.newest_uberblock().txg;
        let known = self.places.state().known(pool.guid());
        let (newest, mut apart) = known.map(|known| (known.newest, known.apart)).unwrap_or_default();
        // One that is in use has the pool as it is, and one that was replaced is a device like others.
        let is_used = |leaf: &&Vdev| held.engine().is_some() && leaf.is_readable();
        let tree = pool.tree();
        let others: BTreeSet<u64> =
            tree.leaves().into_iter().filter(|leaf| !is_used(leaf)).map(|leaf| leaf.guid).collect();
        apart.retain(|guid, _| others.contains(guid));
        let may_lack_log = settings.missing_log || before.is_some_and(|pool| pool.missing_log);
        let remembered = Remembered {
            name: pool.name().to_owned(),
            guid: pool.guid(),
            devices: host::devices(&pool),
            // Once it is ours, nothing has to be forced any more.
            forced: held.engine().is_none()
                && (settings.foreign == Foreign::Open || before.is_some_and(|pool| pool.forced)),
            txg: (rewound || matches!(settings.rewind, Rewind::To(_))).then_some(pool.uberblock().txg),
            missing_log: may_lack_log && host::lacks_log(&pool),
            destroyed: held.engine().is_none()
                && (settings.destroyed || before.is_some_and(|pool| pool.destroyed)),
            read_only: settings.read_only || before.is_some_and(|pool| pool.read_only),
            untouched: held.engine().is_none(),
            hostid: match held.engine() {
                Some(_) => pool.config().u64("hostid"),
                None => before.and_then(|pool| pool.hostid),
            },
            boot,
            newest,
            apart,
        };
        if before == Some(&remembered) {
            return Ok(());
        }
        self.places.state().remember(remembered, |guid| others.contains(&guid))
    }

    /// After a change of an open pool's devices: the cache file follows. How the pool was imported still holds, or the
    /// next start would refuse what `-m` allowed.
    pub(crate) fn remember_devices(&self, held: &Held) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember(held, &Settings::default(), before)
    }

    /// Whether an open pool is opened by itself at the next start, from now on (`cachefile`).
    pub(crate) fn list(&self, held: &Held, is_listed: bool) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember_since((!is_listed).then(state::boot), held, &Settings::default(), before)
    }

    /// Ends the engine of a pool and lets go of it.
    ///
    /// # Errors
    /// What was done last could not be written.
    pub(crate) async fn end(&self, held: &Held, ending: Ending) -> Result<(), EngineError> {
        if let Some(watching) = &self.watching {
            watching.warmth.closing(held, ending).await;
        }
        // When it has ended all of them are let go.
        let note = Note::of(&held.view());
        let outcome = match held.engine() {
            Some(engine) if ending == Ending::Close => close(held, engine).await,
            Some(engine) => loop {
                let ended = engine.end(ending).await;
                // Suspended on the way: it is left when it is cleared, unless somebody gives it up.
                let is_held = self.find(&held.guid().to_string()).is_some();
                if ended.is_ok() || held.suspended().is_none() || !is_held {
                    break ended;
                }
                tokio::time::sleep(LOOK).await;
            },
            None => Ok(()),
        };
        if let (Some(engine), Ending::Close, Ok(())) = (held.engine(), ending, &outcome) {
            let txg = engine.view().uberblock().txg;
            note.at_txg(txg).in_time(self.places.state()).await;
        }
        self.release(held.guid());
        if let Some(watching) = &self.watching {
            watching.observer.closed(held, ending);
        }
        outcome
    }

    /// Closes every pool: what is dirty is written, the pools stay imported.
    ///
    /// # Errors
    /// A sentence for each pool that could not be written.
    pub fn close(&self) -> BoxFuture<'_, Result<(), Vec<String>>> {
        Box::pin(async move {
            let pools = self.all();
            // At once: one whose devices are slow must not keep what was written to the others from theirs.
            let mut ends = Vec::with_capacity(pools.len());
            for held in &pools {
                ends.push(self.end(held, Ending::Close));
            }
            let ended = join_all(ends).await;
            let failures: Vec<String> = pools
                .iter()
                .zip(ended)
                .filter_map(|(held, ended)| {
                    let error = ended.err()?;
                    Some(format!("cannot close '{}': {}", held.name(), chain(&error)))
                })
                .collect();
            if failures.is_empty() { Ok(()) } else { Err(failures) }
        })
    }
}

/// Closes a pool that was opened and is not kept.
pub(crate) async fn give_back(held: &Held) {
    if let Some(engine) = held.engine()
        && let Err(error) = close(held, engine).await
    {
        tracing::warn!(
            pool = held.name(),
            "it was opened, is not wanted, and cannot be closed: {}",
            chain(&error)
        );
    }
}

/// Closes a pool. One that is suspended, or becomes so meanwhile, is given up: a process that is told to end must not
/// wait for a disk that somebody may never bring back.
async fn close(held: &Held, engine: &Engine) -> Result<(), EngineError> {
    let mut closing = None;
    loop {
        if let Some(why) = held.suspended() {
            if let Some(closing) = closing.take() {
                // It hears of the suspension, too, and gives back what it has taken.
                let _in_time = tokio::time::timeout(LAST_WORDS, closing).await;
            }
            engine.abandon().await;
            return Err(EngineError::Suspended(format!("{why}: what was not flushed is lost")));
        }
        tokio::select! {
            biased;
            closed = closing.get_or_insert_with(|| engine.end(Ending::Close)) => {
                closing = None;
                if closed.is_ok() || held.suspended().is_none() {
                    return closed;
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Opens a pool's devices for writing. Those of a process that was killed a moment ago are not free at once: the kernel
/// first ends what the process had in flight. So whoever is told that they are in use asks again for a while.
async fn lock(candidate: &Candidate, patience: Duration) -> std::io::Result<Candidate> {
    let deadline = Instant::now() + patience;
    loop {
        let outcome = candidate.reopen(&import::writable()).await;
        let is_in_use = match &outcome {
            Ok(locked) => locked.refused.iter().any(Refused::is_in_use),
            Err(error) => error.kind() == std::io::ErrorKind::ResourceBusy,
        };
        if !is_in_use || Instant::now() >= deadline {
            return outcome;
        }
        drop(outcome);
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

/// Randomness for guids and salts, from the system.
///
/// # Panics
/// The system has none: then nothing is safe to create.
pub(crate) fn seed() -> u64 {
    OsRng.try_next_u64().expect("the system gives random numbers")
}

/// Threads for compression and checksums: what this machine has, within reason.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(16)
}

/// Memory of this machine, in bytes; a gigabyte if it does not say.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ops::{Operation, PoolCreate, Request, run},
        state::State,
    };

    /// They fell to nothing when a pool was exported, and whoever looks now and then saw less than nothing happen.
    #[tokio::test]
    async fn what_second_tiers_counted_stays_when_their_pool_is_closed_and_what_they_held_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(dir.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let create = PoolCreate {
            pool: "tank".to_owned(),
            devices: vec![at("d0"), "cache".to_owned(), at("c0")],
            file_size: Some(128 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        run(&host, request).await.unwrap();
        let written = async {
            while host.second_tiers().l2_write_bytes == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), written).await.expect("its header");
        let open = host.second_tiers();
        assert!(open.l2_ndev == 1 && open.l2_log_blk_writes == 0, "{open:?}");
        host.end(&host.find("tank").unwrap(), Ending::Export).await.unwrap();
        let closed = host.second_tiers();
        assert!(
            closed.l2_write_bytes >= open.l2_write_bytes && closed.l2_feeds >= open.l2_feeds,
            "{closed:?}"
        );
        assert_eq!(closed, closed.counted(), "nothing is held");
    }

    /// Found by reading: the task that closes all pools wrote it down itself, and closed no other one while the state directory
    /// did not answer.
    #[tokio::test]
    async fn pools_are_closed_while_how_new_one_of_them_is_cannot_be_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(dir.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let ask = async |operation| {
            run(&host, Request { operation, command: None, user: 0 }).await.unwrap();
        };
        for (pool, devices) in
            [("lake", vec!["mirror".to_owned(), at("d0"), at("d1")]), ("tank", vec![at("d2")])]
        {
            let file_size = Some(128 << 20);
            let create = PoolCreate { pool: pool.to_owned(), devices, file_size, ..PoolCreate::default() };
            ask(Operation::PoolCreate(create)).await;
        }
        let (pool, device) = ("lake".to_owned(), at("d1"));
        ask(Operation::DeviceOffline { pool, device, temporary: false, fault: false }).await;
        // Who opens it for reading waits for a writer.
        let kept = host.places().state().file();
        std::fs::remove_file(&kept).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&kept).status().unwrap().success());
        let (ended, has_ended) = std::sync::mpsc::channel();
        let freeing = tokio::task::spawn_blocking(move || {
            let in_time = has_ended.recv_timeout(Duration::from_secs(30)).is_ok();
            // Or the test would not end either.
            drop(std::fs::File::options().read(true).write(true).open(&kept).unwrap());
            in_time
        });
        host.close().await.unwrap();
        assert!(host.all().is_empty());
        let _it_gave_up = ended.send(());
        assert!(freeing.await.unwrap(), "it is waited for a moment");
    }

    /// That it is busy was all that was said, and who looked for the reason looked for a mount.
    #[test]
    fn a_busy_dataset_says_by_whom_it_is_used() {
        let clients: Vec<String> = (1..=6).map(|i| format!("iqn.a:{i} from 10.0.0.{i}:4000")).collect();
        let one = "it is used by iqn.a:1 from 10.0.0.1:4000 ('millpond initiators')";
        assert_eq!(used_by(&clients[..1]), one);
        let said = used_by(&clients);
        assert!(
            said.contains("iqn.a:4") && !said.contains("iqn.a:5") && said.contains(", and 2 more"),
            "{said}"
        );
    }

    #[test]
    fn who_has_no_room_is_not_sent_to_the_cables() {
        let said = suspended("tank", "/srv/a: write failed: No space left on device (os error 28)");
        assert!(said.contains("make room in the file system") && !said.contains("connected"), "{said}");
        let said = suspended("tank", "mirror-0 lacks /dev/sda (REMOVED)");
        assert!(said.contains("make sure its devices are connected"), "{said}");
        assert!(said.ends_with(", then run 'zpool clear tank'"), "{said}");
    }

    /// Two operations on one pool ran at once if one of them called it by its guid.
    #[tokio::test]
    async fn a_pool_has_one_turn_whatever_it_is_called() {
        let (dir, state) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(state.path()));
        let opened = places.open("psingle", &Settings::default()).await.unwrap();
        let host = Host::new(places, Mode::Command, Settings::default());
        let held = host.keep(Held::reading(opened.pool, "it is to be looked at"));
        let turn = host.turn(held.name()).await;
        let guid = held.guid().to_string();
        let second = tokio::time::timeout(Duration::from_millis(50), host.turn(&guid)).await;
        assert!(second.is_err(), "it waits");
        drop(turn);
        drop(host.turn(&guid).await);
    }

    /// A daemon whose import waited for devices that did not answer had to be killed, and with it all its other pools.
    #[tokio::test(start_paused = true)]
    async fn whoever_brings_a_pool_that_does_not_come_does_not_keep_the_daemon_from_its_end() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(state.path()));
        let host = Host::new(places, Mode::Daemon, Settings::default());
        let (hanging, short) = (host.turn("").await, host.turn("tank").await);
        let ending = tokio::time::timeout(2 * LAST_TURNS, host.last_turns());
        let soon = async {
            tokio::time::sleep(LAST_TURNS / 2).await;
            drop(short);
        };
        let (turns, ()) = tokio::join!(ending, soon);
        assert_eq!(turns.expect("it does not wait for ever").len(), 1, "what can be finished is");
        drop(hanging);
    }
}
