//! The logs of all open volumes of a pool: the syncing task goes through them, and reports find one by its dataset.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::Log;

/// The logs of all open volumes, by dataset.
#[derive(Debug, Default)]
pub struct Logs(Mutex<BTreeMap<u64, Arc<Log>>>);

impl Logs {
    /// The log of an open volume.
    #[must_use]
    pub fn get(&self, dataset: u64) -> Option<Arc<Log>> {
        self.0.lock().get(&dataset).cloned()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Log>> {
        self.0.lock().values().cloned().collect()
    }

    /// Takes in the log of a volume that is opened.
    pub(crate) fn insert(&self, log: Arc<Log>) {
        self.0.lock().insert(log.dataset(), log);
    }

    /// Takes out the log of a volume that goes.
    pub(crate) fn take(&self, dataset: u64) -> Option<Arc<Log>> {
        self.0.lock().remove(&dataset)
    }
}
