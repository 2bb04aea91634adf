//! What is known about a pool without asking its devices: what the last look found out.
//!
//! Most of what `zpool status` tells is in memory anyway: the devices, how they are, the scan. The rest (properties, the
//! error log, how full it is) is read from the pool, and a read can wait for a disk that hangs, or for a pool that is
//! suspended. So reading is a task of its own, one at a time for each pool; an answer waits for it a moment only, and is
//! given with what was known before if that is not enough.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pool::{Pool, space::Space, status::LoggedError};
use tokio::{sync::watch, time::Instant};

use crate::{api, view};

/// How long an answer waits for what is being read.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What was read from a pool, as of one commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) txg: u64,
    pub(crate) space: Option<Space>,
    pub(crate) log: Vec<LoggedError>,
    pub(crate) lost: Vec<String>,
    pub(crate) lost_bytes: Vec<api::LostBytes>,
    pub(crate) properties: Vec<api::Property>,
    pub(crate) sync_disabled: Vec<String>,
    /// What could not be read, a sentence each.
    pub(crate) problems: Vec<String>,
}

/// What is known about one pool.
#[derive(Debug)]
pub(crate) struct Memory {
    known: watch::Sender<Option<Arc<Known>>>,
    /// Since when somebody reads.
    reading: Mutex<Option<Instant>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { known: watch::Sender::new(None), reading: Mutex::default() }
    }
}

impl Memory {
    /// Begins to read what is new in `pool`, unless that is known or somebody is at it. Since when they are.
    pub(crate) fn look(self: &Arc<Self>, pool: &Arc<Pool>) -> Option<Instant> {
        let txg = pool.uberblock().txg;
        if self.known.borrow().as_ref().is_some_and(|known| known.txg >= txg) {
            return None;
        }
        let mut reading = self.reading.lock();
        if reading.is_none() {
            *reading = Some(Instant::now());
            let (memory, pool) = (Arc::clone(self), Arc::clone(pool));
            tokio::spawn(async move {
                // Whoever reads for a dropped runtime has nobody to tell; else this always ends.
                let known = Box::pin(view::read(&pool)).await;
                *memory.reading.lock() = None;
                memory.known.send_replace(Some(Arc::new(known)));
            });
        }
        *reading
    }

    /// What is known of `pool`, after a moment for what is not. `is_mute`: there is no use in waiting.
    pub(crate) async fn recall(self: &Arc<Self>, pool: &Arc<Pool>, is_mute: bool) -> Arc<Known> {
        let mut news = self.known.subscribe();
        // What is being read may be of an earlier commit than the one asked about: then once more.
        while let Some(since) = self.look(pool).filter(|_| !is_mute) {
            if tokio::time::timeout_at(since + PATIENCE, news.changed()).await.is_err() {
                break;
            }
        }
        let known = self.known.borrow().clone();
        known.unwrap_or_else(|| {
            let problem = format!(
                "'{}': properties, space and errors are not known: its devices have not answered yet",
                pool.name()
            );
            Arc::new(Known { problems: vec![problem], ..Known::default() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_does_not_wait_for_devices_that_hang() {
        let memory = Arc::new(Memory::default());
        let start = Instant::now();
        // As if a disk hung since then: whoever asks first waits a moment, later ones not at all.
        *memory.reading.lock() = Some(start);
        let mut news = memory.known.subscribe();
        assert!(tokio::time::timeout_at(start + PATIENCE, news.changed()).await.is_err());
        assert_eq!(start.elapsed(), PATIENCE);
        assert!(tokio::time::timeout_at(start + PATIENCE, news.changed()).await.is_err());
        assert_eq!(start.elapsed(), PATIENCE);
    }
}
