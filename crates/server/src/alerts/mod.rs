//! Alerts: from what happens to pools to somebody who knows.
//!
//! ```text
//!   events::Journal ──▶ watch ──▶ survey: what is wrong now ──▶ book: what is new, worse, over
//!                         │                                        │ notices
//!                         └── every few seconds, without events    ├──▶ the daemon's own log, at once
//!                                                                  └──▶ outbox of each sink ──▶ its task ──▶ sink
//! ```
//!
//! The book asks what is, not what happened, so events may be lost without an alert being lost. Each sink has a queue, a
//! task and pauses of its own: one that hangs holds up none of the others. Book and queues are kept in
//! `alerts-state.json` of the state directory and outlive the daemon.
//!
//! Nothing here is waited for by the data path. `docs/alerts.md` says it all for administrators.
//!
//! Here is what a daemon has of it, from the first to the last moment. What it does meanwhile stands in files of their own:
//! `settings` are followed, notices delivered (`delivery`), what changes is written down (`writer`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use engine::BoxFuture;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};

mod book;
pub mod config;
mod delivery;
mod expiries;
mod facts;
mod ledger;
mod message;
mod offline;
mod outbox;
mod parts;
mod settings;
mod sinks;
pub(crate) mod source;
mod survey;
mod watch;
mod words;
mod writer;

#[cfg(test)]
mod tests;

pub use self::offline::Offline;
use self::{
    config::{Config, SinkConfig},
    delivery::Running,
    ledger::{Ledger, STATE_FILE},
    sinks::Sink,
};
use crate::{
    api::alerts::{Alert, AlertStatus, Finding, Kind},
    certificates::Expiry,
    events::{Journal, names},
    host, hostid,
};

/// How long what is written down last is waited for: the pools are closed after it.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Seconds since 1970.
type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;
/// How sinks are made of their configuration.
type Maker = Arc<dyn Fn(&SinkConfig, &str) -> Result<Arc<dyn Sink>, String> + Send + Sync>;

/// Where alerts keep what they keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The configuration.
    pub config: PathBuf,
    /// The state directory.
    pub dir: PathBuf,
}

impl Files {
    /// In a state directory; the configuration may be elsewhere.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, config: Option<PathBuf>) -> Self {
        let dir = dir.into();
        Self { config: config.unwrap_or_else(|| dir.join(config::FILE)), dir }
    }
}

/// A daemon's alerts.
pub struct Alerts {
    files: Files,
    clock: Clock,
    maker: Maker,
    config: Mutex<(Config, Option<SystemTime>)>,
    /// Whether that is what the file says, or nothing because it could not be read so far, or is gone.
    is_known: AtomicBool,
    /// What is wrong with the configuration file now.
    problem: Mutex<Option<String>>,
    /// Sinks that cannot be made of their configuration, and why.
    broken: Mutex<BTreeMap<String, String>>,
    ledger: Mutex<Ledger>,
    /// What was kept could not be read so far, and is not written over.
    is_unread: AtomicBool,
    running: Mutex<BTreeMap<String, Running>>,
    /// What clients are served with, and when it ends.
    expiries: Mutex<Vec<Expiry>>,
    /// Something is to be written down.
    dirty: Notify,
    /// The daemon's events, once somebody watches, and the last of them that was looked at for pools that were destroyed.
    events: Mutex<Option<(Arc<Journal>, u64)>>,
    /// What was written last: nothing is written again that is there already. One writer at a time.
    written: tokio::sync::Mutex<serde_json::Value>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// No sink is started any more. Set while `running` is locked.
    has_ended: AtomicBool,
}

impl fmt::Debug for Alerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alerts({} sinks)", self.running.lock().len())
    }
}

impl Alerts {
    /// With what was kept. A configuration that makes no sense is said and waited for: a daemon serves without.
    #[must_use]
    pub fn open(files: Files) -> Arc<Self> {
        Self::with(files, Arc::new(hostid::now), Arc::new(sinks::build))
    }

    fn with(files: Files, clock: Clock, maker: Maker) -> Arc<Self> {
        let (ledger, is_unread) = match Ledger::open(&files.dir) {
            Ok(ledger) => (ledger.unwrap_or_default(), false),
            Err(error) => {
                tracing::error!(
                    %error,
                    "which alerts were open, and what waits, is not known: {STATE_FILE} cannot be read; it is tried again"
                );
                (Ledger::apart(clock()), true)
            }
        };
        let loaded = Config::load(&files.config).and_then(|loaded| {
            // Where something waits there were settings that said for whom.
            if loaded.1.is_none() && ledger.is_waiting() {
                Err(settings::gone(&files.config))
            } else {
                Ok(loaded)
            }
        });
        let (config, problem) = match loaded {
            Ok(loaded) => (loaded, None),
            Err(error) => ((Config::default(), None), Some(host::chain(&error))),
        };
        if let Some(problem) = &problem {
            tracing::error!(target: "millpond::alert", "alerts reach nobody: {problem}");
        }
        let written = ledger.kept().unwrap_or_default();
        Arc::new(Self {
            files,
            clock,
            maker,
            config: Mutex::new(config),
            is_known: AtomicBool::new(problem.is_none()),
            broken: Mutex::default(),
            problem: Mutex::new(problem),
            ledger: Mutex::new(ledger),
            is_unread: AtomicBool::new(is_unread),
            running: Mutex::default(),
            expiries: Mutex::default(),
            dirty: Notify::new(),
            events: Mutex::default(),
            written: tokio::sync::Mutex::new(written),
            tasks: Mutex::default(),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Begins to send what waits, and to write down what changes. Wants a tokio runtime.
    pub fn start(self: &Arc<Self>) {
        self.follow_config();
        self.tasks.lock().push(tokio::spawn(Arc::clone(self).write_changes()));
    }

    /// Ends: what waits is sent after the next start. A state directory that does not answer is waited for a moment only.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.forget_destroyed();
            let mut tasks = std::mem::take(&mut *self.tasks.lock());
            let running = {
                let mut running = self.running.lock();
                self.has_ended.store(true, Relaxed);
                std::mem::take(&mut *running)
            };
            tasks.extend(running.into_values().map(|running| running.task));
            tasks.iter().for_each(JoinHandle::abort);
            let ending = async {
                for task in tasks {
                    let _aborted = task.await;
                }
                self.write().await;
                if self.is_unread.load(Relaxed) {
                    tracing::error!(
                        "what changed in open alerts and queues is not kept: {STATE_FILE} cannot be read"
                    );
                }
            };
            if tokio::time::timeout(LAST_WRITE, ending).await.is_err() {
                tracing::error!(
                    "what changed last in open alerts and queues is not kept in {STATE_FILE}: '{}' did not answer within {} s",
                    self.files.dir.display(),
                    LAST_WRITE.as_secs()
                );
            }
        })
    }

    fn host(&self) -> String {
        self.config.lock().0.host.clone().unwrap_or_else(hostid::hostname)
    }

    /// Everything that is wrong at this moment, in all pools that are open.
    fn see(&self, findings: Vec<Finding>) {
        let now = (self.clock)();
        let hours = self.config.lock().0.remind_hours;
        let remind = (hours > 0).then(|| hours.saturating_mul(3600));
        let notices = self.ledger.lock().book.see(now, findings, remind);
        self.tell(now, notices);
    }

    /// Something that happened and is over.
    fn note(&self, finding: Finding) {
        let now = (self.clock)();
        let notice = self.ledger.lock().book.note(now, finding);
        self.tell(now, vec![notice]);
    }

    /// What was wrong with pools that were destroyed is over at once. Nobody would say so after the next start: such a pool is
    /// neither open nor missing then.
    fn forget_destroyed(&self) {
        let mut events = self.events.lock();
        let Some((journal, read)) = events.as_mut() else { return };
        let entries = journal.all_since(*read);
        *read = entries.last().map_or(*read, |last| last.zevent.eid);
        let destroyed = entries.iter().filter(|entry| entry.zevent.class.ends_with(names::DESTROYED));
        let guids: BTreeSet<String> = destroyed.map(|entry| entry.guid.to_string()).collect();
        drop(events);
        let now = (self.clock)();
        let notices = self.ledger.lock().book.destroyed(now, |guid| guids.contains(guid));
        self.tell(now, notices);
    }

    /// This is what clients are served with from now on: that of which the end is near is told, and what was there before is
    /// over.
    pub(crate) fn set_expiries(&self, expiries: Vec<Expiry>) {
        *self.expiries.lock() = expiries;
    }

    /// What is open, and how the sinks are.
    #[must_use]
    pub fn status(&self) -> AlertStatus {
        let config = self.config.lock().0.clone();
        let broken = self.broken.lock().clone();
        let status = self.ledger.lock().status(&config, (self.clock)(), &broken);
        AlertStatus { problem: self.problem.lock().clone(), ..status }
    }

    /// What is over.
    #[must_use]
    pub fn history(&self) -> Vec<Alert> {
        self.ledger.lock().book.history()
    }

    fn level(&self, pool: u64, kind: Kind) -> Option<u32> {
        self.ledger.lock().book.level(&(kind, pool.to_string(), String::new()))
    }
}
