//! Alerts for a command without a daemon: the same files, and what the last daemon left behind in them.

use std::sync::Arc;

use super::{
    Files, Maker,
    config::{Config, ConfigError, SinkConfig},
    delivery::{made, test},
    ledger::{Ledger, STATE_FILE},
    sinks,
};
use crate::{
    api::alerts::{AlertHistory, AlertStatus, Tested},
    hostid, state,
};

/// Alerts for a command without a daemon: what the last one left behind.
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
        Ok(Config::load(&self.files.config)?.0.redacted())
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
        Ok(self.ledger()?.status(&config, hostid::now(), &broken))
    }

    /// What is over.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn history(&self) -> Result<AlertHistory, ConfigError> {
        Ok(AlertHistory { alerts: self.ledger()?.book.history() })
    }
}
