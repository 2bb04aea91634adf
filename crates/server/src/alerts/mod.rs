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

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
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
mod expiries;
mod facts;
mod ledger;
mod message;
mod outbox;
mod parts;
mod sinks;
pub(crate) mod source;
mod survey;
mod watch;
mod words;

#[cfg(test)]
mod tests;

use self::{
    config::{Config, ConfigError, SinkConfig},
    ledger::{Ledger, STATE_FILE},
    message::Message,
    outbox::{Outbox, Pace},
    sinks::Sink,
};
use crate::{
    api::alerts::{
        Alert, AlertHistory, AlertStatus, Finding, Kind, Notice, Occasion, Severity, SinkStatus, Tested,
    },
    certificates::Expiry,
    events::{Journal, names},
    hostid, state,
};

/// How often what could not be read at the start is tried again.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// How long changes are collected before they are written down.
const WRITE_AFTER: Duration = Duration::from_millis(100);
/// How long what is written down last is waited for: the pools are closed after it.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Seconds since 1970.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;
/// How sinks are made of their configuration.
pub(crate) type Maker = Arc<dyn Fn(&SinkConfig, &str) -> Result<Arc<dyn Sink>, String> + Send + Sync>;

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

/// A sink at work.
struct Running {
    config: SinkConfig,
    wake: Arc<Notify>,
    task: JoinHandle<()>,
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

    pub(crate) fn with(files: Files, clock: Clock, maker: Maker) -> Arc<Self> {
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
            if loaded.1.is_none() && ledger.is_waiting() { Err(gone(&files.config)) } else { Ok(loaded) }
        });
        let (config, problem) = match loaded {
            Ok(loaded) => (loaded, None),
            Err(error) => ((Config::default(), None), Some(crate::host::chain(&error))),
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
        let alerts = Arc::clone(self);
        let writer = tokio::spawn(async move {
            loop {
                if alerts.is_unread.load(Relaxed) {
                    // Also if nothing changes: something may wait in it.
                    let _changed = tokio::time::timeout(READ_AGAIN, alerts.dirty.notified()).await;
                } else {
                    alerts.dirty.notified().await;
                }
                tokio::time::sleep(WRITE_AFTER).await;
                alerts.write().await;
            }
        });
        self.tasks.lock().push(writer);
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

    async fn write(&self) {
        let mut before = self.written.lock().await;
        if self.is_unread.load(Relaxed) && !self.read_late().await {
            return;
        }
        let now = self.ledger.lock().kept();
        let written = match now {
            Ok(now) if now == *before => return,
            Ok(now) => {
                let (dir, content) = (self.files.dir.clone(), now.clone());
                let written =
                    tokio::task::spawn_blocking(move || state::replace_json(&dir, STATE_FILE, &content))
                        .await;
                if matches!(written, Ok(Ok(()))) {
                    *before = now;
                }
                written
            }
            Err(error) => Ok(Err(error.into())),
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "open alerts and queues cannot be kept in {STATE_FILE}")
            }
            Err(error) => tracing::error!(%error, "open alerts and queues were not kept"),
        }
    }

    /// Reads what could not be read when the daemon started; whether that succeeds, or nothing is there any more.
    async fn read_late(&self) -> bool {
        let dir = self.files.dir.clone();
        let Ok(Ok(kept)) = tokio::task::spawn_blocking(move || Ledger::open(&dir)).await else {
            return false;
        };
        if let Some(kept) = kept {
            self.ledger.lock().join(kept);
            tracing::info!("open alerts, and what waits, are known again");
        }
        self.is_unread.store(false, Relaxed);
        self.running.lock().values().for_each(|sink| sink.wake.notify_one());
        true
    }

    fn host(&self) -> String {
        self.config.lock().0.host.clone().unwrap_or_else(hostid::hostname)
    }

    /// Starts, changes and ends sinks as the configuration says.
    fn follow_config(self: &Arc<Self>) {
        let host = self.host();
        let mut running = self.running.lock();
        // After that: who comes later knows what is newer.
        let config = self.config.lock().0.clone();
        running.retain(|name, sink| {
            let stays = config.sinks.iter().any(|wanted| wanted.name == *name && *wanted == sink.config);
            if !stays {
                sink.task.abort();
            }
            stays
        });
        {
            let mut ledger = self.ledger.lock();
            let names: BTreeSet<&str> = config.sinks.iter().map(|sink| sink.name.as_str()).collect();
            // What a file that cannot be read says of whom is not known: what waits for them goes on waiting.
            if self.is_known.load(Relaxed) {
                ledger.outboxes.retain(|name, _| names.contains(name.as_str()));
            }
            for sink in &config.sinks {
                let outbox = ledger.outboxes.entry(sink.name.clone()).or_default();
                if !running.contains_key(&sink.name) {
                    outbox.retry();
                }
            }
        }
        let wanted: Vec<SinkConfig> =
            config.sinks.into_iter().filter(|sink| !running.contains_key(&sink.name)).collect();
        drop(running);
        for config in wanted {
            // Nobody who tells of something waits for the files that it names.
            let made = made(&self.maker, &config, &host);
            self.begin(config, made);
        }
        let names: BTreeSet<String> =
            self.config.lock().0.sinks.iter().map(|sink| sink.name.clone()).collect();
        self.broken.lock().retain(|name, _| names.contains(name));
        self.dirty.notify_one();
    }

    /// Starts a sink, if it could be made, and is wanted as it was made still.
    fn begin(self: &Arc<Self>, config: SinkConfig, made: Result<Arc<dyn Sink>, String>) {
        let mut running = self.running.lock();
        let is_wanted = !self.has_ended.load(Relaxed) && self.config.lock().0.sinks.contains(&config);
        if !is_wanted || running.contains_key(&config.name) {
            return;
        }
        let mut broken = self.broken.lock();
        match made {
            Ok(sink) => {
                if broken.remove(&config.name).is_some() {
                    tracing::info!(target: "millpond::alert", "sink '{}' can be used again", config.name);
                }
                let wake = Arc::new(Notify::new());
                let task = tokio::spawn(Arc::clone(self).deliver(config.clone(), sink, Arc::clone(&wake)));
                running.insert(config.name.clone(), Running { config, wake, task });
            }
            Err(why) => {
                if broken.get(&config.name) != Some(&why) {
                    tracing::error!(target: "millpond::alert", "sink '{}' reaches nobody: {why}", config.name);
                }
                broken.insert(config.name, why);
            }
        }
    }

    /// Looks whether somebody changed the configuration by hand, and tries again what could not be made of it. Blocks for as long
    /// as the files take that say so.
    fn reread(self: &Arc<Self>) {
        let changed = std::fs::metadata(&self.files.config).and_then(|metadata| metadata.modified()).ok();
        let (now, seen) = self.config.lock().clone();
        let was_read = seen.is_some() || self.problem.lock().is_none();
        if changed == seen && was_read {
            return self.retry_broken();
        }
        // A sink that was changed so that it cannot work is a slip of the pen, and what works meanwhile goes on. One
        // that is as it was, and does not work any more, says nothing about what was changed.
        let loaded = Config::load(&self.files.config).and_then(|loaded| {
            if loaded.1.is_none() {
                return Err(gone(&self.files.config));
            }
            let mut new = loaded.0.sinks.iter().filter(|sink| !now.sinks.contains(sink));
            match self.is_known.load(Relaxed) {
                true => new.try_for_each(SinkConfig::check).map(|()| loaded),
                false => Ok(loaded),
            }
        });
        match loaded {
            Ok(loaded) => {
                {
                    let mut config = self.config.lock();
                    // Somebody has changed it since, while this was read.
                    if config.1 != seen {
                        return;
                    }
                    *config = loaded;
                }
                self.config_is_known();
            }
            Err(error) => {
                // As before, until it makes sense; said once for each change. Where it could not be read, what puts that right (an
                // owner, a mode) may leave its time as it is: then it is tried again, and said once for each reason.
                let was_read = error.is_of_content();
                self.config.lock().1 = changed.filter(|_| was_read);
                let problem = crate::host::chain(&error);
                let said = self.problem.lock().replace(problem.clone());
                if was_read || said.as_ref() != Some(&problem) {
                    tracing::error!(target: "millpond::alert", "the alert settings stay as they were: {problem}");
                }
                self.retry_broken();
            }
        }
    }

    fn retry_broken(self: &Arc<Self>) {
        if !self.broken.lock().is_empty() {
            self.follow_config();
        }
    }

    /// Changes the configuration and its file.
    ///
    /// # Errors
    /// It would make no sense, or cannot be written; then nothing has changed.
    pub fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Config) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        // What others change at the same time, and somebody wrote by hand a moment ago, is not overwritten unseen.
        let _lock = state::lock(&self.files.dir)?;
        let (mut config, written) = Config::load(&self.files.config)?;
        if written.is_none() {
            // The file may be gone by mistake: what is in force is what is changed.
            config = self.config.lock().0.clone();
        }
        change(&mut config)?;
        config.save(&self.files.config)?;
        *self.config.lock() = Config::load(&self.files.config)?;
        self.config_is_known();
        Ok(())
    }

    /// The configuration is what the file says. If it was not so far, everything was kept for everybody: each keeps what is for
    /// him.
    fn config_is_known(self: &Arc<Self>) {
        {
            let mut ledger = self.ledger.lock();
            let config = self.config.lock().0.clone();
            if !self.is_known.swap(true, Relaxed) {
                for sink in &config.sinks {
                    if let Some(outbox) = ledger.outboxes.get_mut(&sink.name) {
                        outbox.retain(|notice| wants(sink, &notice.alert));
                    }
                }
            }
        }
        *self.problem.lock() = None;
        self.follow_config();
    }

    /// The configuration, secrets hidden.
    #[must_use]
    pub fn config(&self) -> Config {
        let mut config = self.config.lock().0.clone();
        config.sinks = config.sinks.iter().map(SinkConfig::redacted).collect();
        config
    }

    /// Everything that is wrong at this moment, in all pools that are open.
    pub(crate) fn see(&self, findings: Vec<Finding>) {
        let now = (self.clock)();
        let hours = self.config.lock().0.remind_hours;
        let remind = (hours > 0).then(|| hours.saturating_mul(3600));
        let notices = self.ledger.lock().book.see(now, findings, remind);
        self.tell(now, notices);
    }

    /// Something that happened and is over.
    pub(crate) fn note(&self, finding: Finding) {
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

    /// Sinks that fail, as findings.
    fn failing(&self) -> Vec<Finding> {
        let about = |sink: &String| Finding {
            sink: Some(sink.clone()),
            ..Finding::new(Kind::Delivery, Severity::Warning, 1)
        };
        let broken = self.broken.lock().clone();
        let ledger = self.ledger.lock();
        let waiting = |name: &String| ledger.outboxes.get(name).map_or(0, Outbox::len);
        let mut findings: Vec<Finding> =
            broken.iter().map(|(name, why)| words::unusable(about(name), waiting(name), why)).collect();
        let failing = ledger
            .outboxes
            .iter()
            .filter(|(name, outbox)| outbox.failures >= outbox::FAILURES_TELL && !broken.contains_key(*name));
        findings.extend(failing.map(|(name, outbox)| {
            let error = outbox.last_error.as_deref().unwrap_or("it fails");
            words::delivery(about(name), outbox.failures, outbox.len(), error)
        }));
        findings
    }

    /// Into the log, and into the queues of those who want it.
    fn tell(&self, now: u64, notices: Vec<Notice>) {
        if notices.is_empty() {
            return;
        }
        for notice in &notices {
            let line = message::headline(notice);
            match (notice.occasion, notice.alert.finding.severity) {
                (Occasion::Resolved, _) | (_, Severity::Info) => {
                    tracing::info!(target: "millpond::alert", "{line}");
                }
                (_, Severity::Warning) => tracing::warn!(target: "millpond::alert", "{line}"),
                (_, Severity::Critical) => tracing::error!(target: "millpond::alert", "{line}"),
            }
        }
        {
            let mut ledger = self.ledger.lock();
            let config = self.config.lock().0.clone();
            // Who is told of what nobody knows so far: it waits for all that there were.
            if !self.is_known.load(Relaxed) {
                for outbox in ledger.outboxes.values_mut() {
                    notices.iter().for_each(|notice| outbox.push(now, notice.clone()));
                }
            }
            for sink in &config.sinks {
                let outbox = ledger.outboxes.entry(sink.name.clone()).or_default();
                for notice in notices.iter().filter(|notice| wants(sink, &notice.alert)) {
                    outbox.push(now, notice.clone());
                }
            }
        }
        self.running.lock().values().for_each(|sink| sink.wake.notify_one());
        self.dirty.notify_one();
    }

    /// Sends what one sink's queue has, whenever it is due.
    fn deliver(
        self: Arc<Self>,
        config: SinkConfig,
        sink: Arc<dyn Sink>,
        wake: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let pace = Pace { digest: config.digest_seconds, per_hour: config.per_hour };
            let with = |act: &mut dyn FnMut(&mut Outbox, u64)| {
                let now = (self.clock)();
                let mut ledger = self.ledger.lock();
                act(ledger.outboxes.entry(config.name.clone()).or_default(), now);
            };
            loop {
                let mut wait = None;
                with(&mut |outbox, now| {
                    outbox.heed(now);
                    wait = outbox.due(now, pace).map(|due| due.saturating_sub(now));
                });
                match wait {
                    Some(0) => {}
                    Some(seconds) => {
                        tokio::select! {
                            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                            () = wake.notified() => {}
                        }
                        continue;
                    }
                    None => {
                        wake.notified().await;
                        continue;
                    }
                }
                let mut batch = None;
                with(&mut |outbox, now| batch = outbox.take(now));
                let Some(batch) = batch else { continue };
                let message =
                    Message::new(&self.host(), (self.clock)(), batch.notices.clone(), batch.dropped);
                let outcome = sink.send(&message).await;
                with(&mut |outbox, now| match &outcome {
                    Ok(_) => outbox.succeeded(now, &batch),
                    Err(error) => {
                        let after = error.after.map(|after| after.as_secs());
                        outbox.failed(now, error.text.clone(), after, error.partly);
                    }
                });
                match outcome {
                    Ok(answer) => tracing::info!(sink = config.name, answer, "alerts delivered"),
                    Err(error) => tracing::warn!(sink = config.name, %error, "alerts not delivered"),
                }
                self.dirty.notify_one();
            }
        })
    }

    /// Sends a test through one sink or all, now, and says what came of it.
    ///
    /// # Errors
    /// There is no such sink.
    pub fn test<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Tested>, ConfigError>> {
        Box::pin(async move {
            let config = self.config.lock().0.clone();
            test(&config, name, &self.host(), (self.clock)(), &self.maker).await
        })
    }

    /// What is open, and how the sinks are.
    #[must_use]
    pub fn status(&self) -> AlertStatus {
        let config = self.config.lock().0.clone();
        let broken = self.broken.lock().clone();
        let status = status(&config, &self.ledger.lock(), (self.clock)(), &broken);
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

/// What is said of settings that are not there any more. Somebody may be about to put others in their place, and a directory
/// that is not mounted says nothing.
fn gone(file: &Path) -> ConfigError {
    let why =
        "it was there before: put it back, or one with '{}' in its place if nobody is to be told any more";
    let source = std::io::Error::new(std::io::ErrorKind::NotFound, why);
    ConfigError::Io { doing: "read", path: file.to_owned(), source }
}

/// Whether a sink is to be told of this. Who heard of it at its worst hears of its end, however mild it was by then.
fn wants(sink: &SinkConfig, alert: &Alert) -> bool {
    let finding = &alert.finding;
    let is_own = finding.kind == Kind::Delivery && finding.sink.as_ref() == Some(&sink.name);
    let in_pools = sink.pools.is_empty() || finding.pool.is_empty() || sink.pools.contains(&finding.pool);
    let severity = finding.severity.max(alert.worst);
    severity >= sink.min_severity && in_pools && !is_own
}

/// A sink as configured.
///
/// # Errors
/// Why it cannot be.
fn made(maker: &Maker, config: &SinkConfig, host: &str) -> Result<Arc<dyn Sink>, String> {
    config.check_limits()?;
    maker(config, host)
}

fn status(config: &Config, ledger: &Ledger, now: u64, broken: &BTreeMap<String, String>) -> AlertStatus {
    let sinks = config.sinks.iter().map(|sink| {
        let blank = Outbox::default();
        let outbox = ledger.outboxes.get(&sink.name).unwrap_or(&blank);
        let pace = Pace { digest: sink.digest_seconds, per_hour: sink.per_hour };
        SinkStatus {
            name: sink.name.clone(),
            kind: sink.kind().to_owned(),
            target: sink.destination(),
            queued: outbox.len() as u64,
            sent: outbox.sent,
            dropped: outbox.dropped_total,
            failures: outbox.failures,
            last_error: match broken.get(&sink.name) {
                Some(why) => Some(format!("it cannot be used as it is set up: {why}")),
                None => outbox.last_error.clone(),
            },
            last_success: outbox.last_success,
            next_try: outbox.due(now, pace),
        }
    });
    AlertStatus { open: ledger.book.open(), sinks: sinks.collect(), problem: None }
}

fn test<'a>(
    config: &'a Config,
    name: Option<&'a str>,
    host: &'a str,
    now: u64,
    maker: &'a Maker,
) -> BoxFuture<'a, Result<Vec<Tested>, ConfigError>> {
    Box::pin(async move {
        let chosen: Vec<&SinkConfig> =
            config.sinks.iter().filter(|sink| name.is_none_or(|name| sink.name == name)).collect();
        if let (Some(name), true) = (name, chosen.is_empty()) {
            return Err(ConfigError::NoSink(name.to_owned()));
        }
        let mut tested = Vec::new();
        for sink in chosen {
            let finding = words::test(&sink.name);
            let alert = Alert::new(0, now, finding);
            let notices = vec![Notice { occasion: Occasion::Test, time: now, alert }];
            let message = Message::new(host, now, notices, 0);
            let outcome = match made(maker, sink, host) {
                Ok(sink) => sink.send(&message).await.map_err(|error| error.text),
                Err(error) => Err(error),
            };
            let (delivered, answer) = outcome.map_or_else(|error| (false, error), |answer| (true, answer));
            tested.push(Tested { sink: sink.name.clone(), delivered, answer });
        }
        Ok(tested)
    })
}

/// The same for a command without a daemon: what the last one left behind.
#[derive(Debug)]
pub struct Offline {
    files: Files,
}

impl Offline {
    /// On these files.
    #[must_use]
    pub fn new(files: Files) -> Self {
        Self { files }
    }

    /// The configuration, secrets hidden.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(&self.files.config)?.0;
        config.sinks = config.sinks.iter().map(SinkConfig::redacted).collect();
        Ok(config)
    }

    /// Changes the configuration.
    ///
    /// # Errors
    /// It would make no sense, or cannot be written.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Config) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let _lock = state::lock(&self.files.dir)?;
        let mut config = Config::load(&self.files.config)?.0;
        change(&mut config)?;
        config.save(&self.files.config)
    }

    /// Sends a test through one sink or all, from this process.
    ///
    /// # Errors
    /// There is no such sink, or the configuration cannot be read.
    pub async fn test(&self, name: Option<&str>) -> Result<Vec<Tested>, ConfigError> {
        let config = Config::load(&self.files.config)?.0;
        let host = config.host.clone().unwrap_or_else(hostid::hostname);
        test(&config, name, &host, hostid::now(), &(Arc::new(sinks::build) as Maker)).await
    }

    fn ledger(&self) -> Result<Ledger, ConfigError> {
        let path = self.files.dir.join(STATE_FILE);
        let read = Ledger::read(&self.files.dir);
        read.map(Option::unwrap_or_default).map_err(|source| ConfigError::Io { doing: "read", path, source })
    }

    /// What was open when the last daemon ended.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn status(&self) -> Result<AlertStatus, ConfigError> {
        let config = Config::load(&self.files.config)?.0;
        let maker: Maker = Arc::new(sinks::build);
        let why = |sink: &SinkConfig| Some((sink.name.clone(), made(&maker, sink, "localhost").err()?));
        let broken = config.sinks.iter().filter_map(why).collect();
        Ok(status(&config, &self.ledger()?, hostid::now(), &broken))
    }

    /// What is over.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn history(&self) -> Result<AlertHistory, ConfigError> {
        Ok(AlertHistory { alerts: self.ledger()?.book.history() })
    }
}
