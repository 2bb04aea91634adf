//! Leaves that somebody waits for: while log blocks go to one, transaction groups keep its queue short.
//!
//! A transaction group hands a leaf many long transfers at once, which is how disks are fast; a log block behind all
//! of them would wait for a third of a second on a slow one. For a moment after each log block the group therefore has
//! two transfers under way there instead of sixteen.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a log block is remembered: who commits again and again does so within this time.
const MEMORY: Duration = Duration::from_millis(200);
/// Share of a leaf's queue that one transfer counts as while somebody waits, and otherwise.
const WEIGHTS: [u32; 2] = [8, 1];

/// Whether somebody waits for one leaf.
#[derive(Debug)]
pub(super) struct Urgency {
    base: Instant,
    /// Milliseconds after `base` until which it is urgent.
    until: AtomicU64,
}

impl Urgency {
    /// A log block goes there.
    pub(super) fn note(&self) {
        let until = (self.base.elapsed() + MEMORY).as_millis();
        self.until.fetch_max(u64::try_from(until).unwrap_or(u64::MAX), Relaxed);
    }

    /// Share of the leaf's queue that a transfer of a transaction group takes now.
    pub(super) fn weight(&self) -> u32 {
        let is_urgent = self.base.elapsed().as_millis() < u128::from(self.until.load(Relaxed));
        WEIGHTS[usize::from(!is_urgent)]
    }
}

/// Those of all leaves, by guid.
#[derive(Debug, Default)]
pub(super) struct Urgencies(Mutex<BTreeMap<u64, Arc<Urgency>>>);

impl Urgencies {
    pub(super) fn of(&self, guid: u64) -> Arc<Urgency> {
        let new = || Arc::new(Urgency { base: Instant::now(), until: AtomicU64::new(0) });
        Arc::clone(self.0.lock().entry(guid).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leaf_is_urgent_for_a_moment_after_each_log_block() {
        let all = Urgencies::default();
        let (one, other) = (all.of(1), all.of(2));
        assert_eq!(one.weight(), 1);
        one.note();
        assert_eq!((all.of(1).weight(), other.weight()), (8, 1));
        tokio::time::sleep(MEMORY).await;
        assert_eq!(one.weight(), 1);
    }
}
