//! The pools that are open here: what operations run on.
//!
//! ```text
//!   daemon:  opened at the start, by create and by import; closed at the end, by export and by destroy
//!   command: opened when an operation names one, closed when the command has done its work
//! ```
//!
//! Here is what is kept of them while they are open; how they come is in `open`, how they go in `end`, who may change one
//! in `turns`, what the daemon opens by itself in `attempts`, and what of them outlasts this process in `remember`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{
    engine::Options,
    second::{Config as TierConfig, L2Stats},
    txg::Limits,
};
use parking_lot::Mutex;
use pool::{
    cache::BlockCache,
    import::{self, Opener},
};
use rand::{TryRngCore as _, rngs::OsRng};
use tokio::sync::watch;

use super::Held;
use crate::{
    answers::Pools,
    disks::Disks,
    events::{About, observe::Observer},
    host::{Places, Settings},
    hotplug::{Changes, DeviceOpener},
    newest::{Note, Notes},
    serving::Serving,
    warmth::Warmth,
};

mod attempts;
mod end;
mod open;
mod remember;
mod turns;

pub(crate) use attempts::Attempt;
pub(crate) use end::give_back;
pub(crate) use open::{IN_USE, LOCK_PATIENCE, has_usable_name};

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

/// The pools that are open here.
#[derive(Debug)]
pub struct Host {
    places: Places,
    mode: Mode,
    settings: Settings,
    /// How devices are opened to be written to.
    writable: fn() -> Opener,
    /// One for all pools.
    cache: Arc<BlockCache>,
    held: Mutex<BTreeMap<u64, Arc<Held>>>,
    /// What the second tiers of pools counted that are not held any more.
    past: Mutex<L2Stats>,
    /// One operation at a time for each pool, by name: one that waits for a suspended pool holds up no other's.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Pools that are open and wait for their turn to be kept.
    arriving: Mutex<BTreeSet<u64>>,
    /// Pools that are being opened by themselves, and whether that is given up.
    attempts: watch::Sender<BTreeMap<u64, bool>>,
    /// Paths of devices that were opened to be written to, by pool, since it was attempted last.
    taken: Arc<Mutex<BTreeMap<u64, BTreeSet<PathBuf>>>>,
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

#[cfg(test)]
impl Watching {
    /// Nobody hears of what it sees.
    pub(crate) fn alone(dir: &Path) -> Self {
        Self {
            observer: Observer::new(Arc::default()),
            disks: Disks::remembered(dir),
            changes: Arc::default(),
            warmth: Warmth::new(dir.to_owned()),
        }
    }
}

impl Host {
    /// No pools yet. `settings` are those of pools that are opened because an operation names them.
    #[must_use]
    pub fn new(places: Places, mode: Mode, settings: Settings) -> Self {
        let cache = settings.cache();
        Self {
            places,
            mode,
            settings,
            writable: import::writable,
            cache,
            held: Mutex::default(),
            past: Mutex::default(),
            turns: Mutex::default(),
            arriving: Mutex::default(),
            attempts: watch::Sender::new(BTreeMap::new()),
            taken: Arc::default(),
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

    /// The same, and its pools are written to on other devices than files: those of a test.
    #[cfg(test)]
    pub(crate) fn with_writable(self, writable: fn() -> Opener) -> Self {
        Self { writable, ..self }
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

    /// Whether the pool of this guid is open.
    pub(crate) fn is_open(&self, guid: u64) -> bool {
        self.held.lock().contains_key(&guid)
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
                let (state, unwritten) = (self.places.state().clone(), Arc::clone(held.unwritten()));
                let notes = Notes::new(state, Arc::downgrade(engine), unwritten);
                if Note::of(&held.view()).lacks_one() {
                    notes.soon();
                }
                notes
            });
            observer.opened(&held, notes, move |news| {
                serving.iter().for_each(|serving| serving.hear(guid, news));
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
    use std::time::Duration;

    use engine::engine::Ending;

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
}
