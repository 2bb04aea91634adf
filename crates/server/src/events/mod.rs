//! The daemon's journal of events: what happened to all its pools, in order, under the names OpenZFS gives.
//!
//! ```text
//!   engine::Events of each pool ──▶ observe (a task for each) ──▶ names ──▶ Journal ──▶ `zpool events`, alerts
//! ```
//!
//! The last [`KEPT`] are kept in memory for a daemon's life. Whoever reads comes for what is there and waits for a
//! number to change; nobody who tells ever waits for a reader.
//!
//! Not here: what an event means to a person, and who is told (`alerts`).

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use engine::events::Record;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

pub mod names;
pub mod observe;

use crate::api::events::Zevent;

/// Events kept: a device that fails badly tells of itself some ten times a second at most, so this is minutes of the
/// worst and years of the usual.
pub const KEPT: usize = 8192;
/// And while memory is short.
pub(crate) const KEPT_SHORT: usize = 256;

/// An event, named and as the engine told it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// As others see it.
    pub zevent: Zevent,
    /// The pool's guid.
    pub guid: u64,
    /// What the engine said, where it did. Several entries may come of one record.
    pub cause: Option<Arc<Record>>,
}

/// See the head of this file.
pub struct Journal {
    kept: Mutex<VecDeque<Arc<Entry>>>,
    /// So many at most.
    most: AtomicUsize,
    /// Readers are shown none up to this number.
    cleared: AtomicU64,
    newest: watch::Sender<u64>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} events)", *self.newest.borrow())
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            most: AtomicUsize::new(KEPT),
            cleared: AtomicU64::new(0),
            newest: watch::Sender::new(0),
        }
    }
}

/// Which pool an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Name.
    pub pool: String,
    /// Guid.
    pub guid: u64,
}

impl Journal {
    /// Notes an event. `pairs` are what its class adds to what every event has.
    pub fn add(
        &self,
        about: &About,
        class: &str,
        time: (u64, u32),
        pairs: Map<String, Value>,
        cause: Option<Arc<Record>>,
    ) {
        let mut kept = self.kept.lock();
        let eid = *self.newest.borrow() + 1;
        let mut all = Map::new();
        all.insert("class".to_owned(), json!(class));
        all.insert("pool".to_owned(), json!(about.pool));
        all.insert("pool_guid".to_owned(), json!(about.guid.to_string()));
        all.insert("pool_state".to_owned(), json!(0));
        all.insert("pool_context".to_owned(), json!(0));
        all.extend(pairs);
        all.insert("time".to_owned(), json!([time.0, time.1]));
        all.insert("eid".to_owned(), json!(eid));
        let zevent = Zevent { eid, class: class.to_owned(), time, pool: about.pool.clone(), pairs: all };
        kept.push_back(Arc::new(Entry { zevent, guid: about.guid, cause }));
        if kept.len() > self.most.load(Relaxed) {
            kept.pop_front();
        }
        // Within the lock, so that numbers are told in order.
        self.newest.send_replace(eid);
    }

    /// Keeps the last `most` from now on, and forgets the others.
    pub(crate) fn keep(&self, most: usize) {
        self.most.store(most, Relaxed);
        let mut kept = self.kept.lock();
        let gone = kept.len().saturating_sub(most);
        kept.drain(..gone);
        kept.shrink_to(most);
    }

    /// Those kept with a number greater than `after` that nobody cleared, oldest first; of one pool, by name or guid, if
    /// `pool` says so.
    #[must_use]
    pub fn since(&self, after: u64, pool: Option<&str>) -> Vec<Arc<Entry>> {
        let mut found = self.all_since(after.max(self.cleared.load(Relaxed)));
        found.retain(|entry| {
            pool.is_none_or(|pool| entry.zevent.pool == pool || entry.guid.to_string() == pool)
        });
        found
    }

    /// All those kept with a number greater than `after`. For alerts: what somebody cleared before they came for it is news
    /// to them all the same.
    pub(crate) fn all_since(&self, after: u64) -> Vec<Arc<Entry>> {
        let kept = self.kept.lock();
        let first = kept.partition_point(|entry| entry.zevent.eid <= after);
        kept.range(first..).cloned().collect()
    }

    /// The number of the newest; changes when there is a newer one.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Shows nobody those so far any more (`zpool events -c`); how many there were.
    pub fn clear(&self) -> u64 {
        let kept = self.kept.lock();
        let before = self.cleared.swap(*self.newest.borrow(), Relaxed);
        (kept.len() - kept.partition_point(|entry| entry.zevent.eid <= before)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(pool: &str, guid: u64) -> About {
        About { pool: pool.to_owned(), guid }
    }

    #[test]
    fn a_reader_that_comes_back_gets_what_is_new_and_a_bounded_past() {
        let journal = Journal::default();
        for number in 0..KEPT as u64 + 10 {
            let pool = if number % 2 == 0 { about("tank", 7) } else { about("lake", u64::MAX) };
            journal.add(&pool, "sysevent.fs.zfs.config_sync", (number, 1), Map::new(), None);
        }
        let newest = *journal.newest().borrow();
        assert_eq!(newest, KEPT as u64 + 10);
        let all = journal.since(0, None);
        assert_eq!((all.len(), all[0].zevent.eid), (KEPT, 11));
        assert_eq!(journal.since(newest - 3, None).len(), 3);
        assert_eq!(journal.since(newest - 4, Some("tank")).len(), 2);
        assert_eq!(journal.since(newest - 4, Some(&u64::MAX.to_string())).len(), 2);
        assert!(journal.since(newest, None).is_empty());
        let pairs = &all[1].zevent.pairs;
        assert_eq!(
            pairs["pool_guid"],
            json!(u64::MAX.to_string().replace("18446744073709551615", &all[1].guid.to_string()))
        );
        assert_eq!((&pairs["eid"], &pairs["time"]), (&json!(12), &json!([11, 1])));
        assert_eq!(journal.clear(), KEPT as u64);
        assert!(journal.since(0, None).is_empty());
        journal.add(&about("tank", 7), "x", (0, 0), Map::new(), None);
        assert_eq!(journal.since(0, None)[0].zevent.eid, newest + 1, "numbers go on");
        assert_eq!((journal.clear(), journal.clear()), (1, 0));
    }
}
