//! Leaves that somebody waits for: while log blocks go to one, transaction groups keep its queue short.
//!
//! A transaction group hands a leaf many long transfers at once, which is how disks are fast; a log block behind all
//! of them would wait for a third of a second on a slow one. For a moment after each log block the group therefore has
//! two transfers under way there instead of sixteen.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

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
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { base: Instant::now(), until: AtomicU64::new(0) })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leaf_is_urgent_for_a_moment_after_each_log_block() {
        let (one, other) = (Urgency::new(), Urgency::new());
        assert_eq!(one.weight(), 1);
        one.note();
        assert_eq!((one.weight(), other.weight()), (8, 1));
        tokio::time::sleep(MEMORY).await;
        assert_eq!(one.weight(), 1);
    }
}
