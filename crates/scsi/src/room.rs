//! When hosts are warned that the room for a thin disk runs short (SBC-3 §4.7.3.9): once each time it falls below the
//! threshold.
//!
//! Room comes and goes with every transaction of the pool. It has to be an eighth above the threshold before the next
//! fall counts, or a disk at its threshold would warn its hosts all day.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::Space;

/// A threshold, and on which side of it the room was last.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Bytes available; 0: never.
    threshold: AtomicU64,
    is_low: AtomicBool,
}

impl Room {
    pub(crate) fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Acquire)
    }

    pub(crate) fn set_threshold(&self, available: u64) {
        self.threshold.store(available, Ordering::Release);
    }

    /// Looks at what there is now; true if hosts are to be warned.
    pub(crate) fn has_fallen(&self, space: Option<Space>) -> bool {
        let Some(space) = space else { return false };
        let threshold = self.threshold();
        let was_low = self.is_low.load(Ordering::Acquire);
        let enough = if was_low { threshold.saturating_add(threshold / 8) } else { threshold };
        let is_low = space.available < enough;
        self.is_low.store(is_low, Ordering::Release);
        is_low && !was_low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_is_told_once_and_again_only_after_there_was_clearly_more() {
        let room = Room::default();
        let fallen = |available| room.has_fallen(Some(Space { available, ..Space::default() }));
        assert!(!fallen(0), "nobody wants to know");
        room.set_threshold(80);
        let seen: Vec<bool> = [81, 79, 81, 79, 0, 89, 79, 91, 80, 79].into_iter().map(fallen).collect();
        assert_eq!(seen, [false, true, false, false, false, false, false, false, false, true]);
        assert!(!room.has_fallen(None));
    }
}
