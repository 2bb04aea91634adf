//! The settings in force, and the sinks that run as they say: at the start, when a command changes them, when somebody changed the
//! file by hand.
//!
//! What makes no sense, cannot be read or is gone changes nothing: what works goes on, and what waits goes on waiting. A sink that
//! cannot be made of what is said of it is broken by itself, and tried again with each look. As long as nobody knows what the
//! settings were, everything is kept for everybody.
//!
//! Locks: `written` (of `writer`, and over its files) before `running`, that before all others, `ledger` before `config`. No file
//! is read under those.
//!
//! Not here: the file and what may stand in it (`config`).

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::sync::Notify;

use super::{
    Alerts,
    config::{Config, ConfigError, SinkConfig},
    delivery::{Running, made, wants},
    sinks::Sink,
};
use crate::{host, state};

impl Alerts {
    /// The configuration, secrets hidden.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config.lock().0.redacted()
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

    /// Looks whether somebody changed the configuration by hand, and tries again what could not be made of it. Blocks for as long
    /// as the files take that say so.
    pub(super) fn reread(self: &Arc<Self>) {
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
                let problem = host::chain(&error);
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

    /// Starts, changes and ends sinks as the configuration says.
    pub(super) fn follow_config(self: &Arc<Self>) {
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
}

/// What is said of settings that are not there any more. Somebody may be about to put others in their place, and a directory
/// that is not mounted says nothing.
pub(super) fn gone(file: &Path) -> ConfigError {
    let why =
        "it was there before: put it back, or one with '{}' in its place if nobody is to be told any more";
    let source = io::Error::new(io::ErrorKind::NotFound, why);
    ConfigError::Io { doing: "read", path: file.to_owned(), source }
}
