//! The log of one volume.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::stats::{Report, Stats};

/// The intent log of one open volume.
#[derive(Debug)]
pub struct Log {
    dataset: u64,
    pub(crate) stats: Stats,
}

impl Log {
    /// The log of head `dataset`: not begun.
    #[must_use]
    pub fn new(dataset: u64) -> Arc<Self> {
        Arc::new(Self { dataset, stats: Stats::default() })
    }

    /// The dataset's object.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.dataset
    }

    /// What was asked of it, and what it did.
    #[must_use]
    pub fn report(&self) -> Report {
        self.stats.report()
    }
}

/// The logs of all open volumes, by dataset.
#[derive(Debug, Default)]
pub struct Logs(Mutex<BTreeMap<u64, Arc<Log>>>);

impl Logs {
    /// The log of an open volume.
    #[must_use]
    pub fn get(&self, dataset: u64) -> Option<Arc<Log>> {
        self.0.lock().get(&dataset).cloned()
    }
}
