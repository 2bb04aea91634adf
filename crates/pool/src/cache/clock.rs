//! When a block was used, as finely as a policy needs to know.
//!
//! Somebody who reads a block in four pieces uses it once. Taken for four uses they would make every block of a
//! sequential read a frequent one. So uses of a block count as one while less than 31 to 62 ms have passed *and* little
//! has come into the cache since: of a small cache much may be replaced in that time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tokio::time::Instant;

/// Length of a tick: 1/32 s.
const TICK_NANOS: u128 = 1_000_000_000 / 32;
/// A turn is this part of the capacity coming in.
const TURNS: u64 = 128;

/// A point on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    tick: u32,
    turn: u32,
}

impl Moment {
    /// Whether a use now is another use than the one then.
    #[inline]
    pub(super) fn is_apart(self, then: Self) -> bool {
        self.tick.wrapping_sub(then.tick) > 1 || self.turn.wrapping_sub(then.turn) > 1
    }
}

/// The clocks: read by every hit, written seldom.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Clock {
    start: Instant,
    tick: AtomicU32,
    turn: AtomicU32,
    /// Units that came in.
    came: AtomicU64,
    /// Each use is one, however soon it follows another: to compare with policies that know no time.
    #[cfg(test)]
    every_use: bool,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            tick: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            came: AtomicU64::new(0),
            #[cfg(test)]
            every_use: false,
        }
    }

    #[inline]
    pub(super) fn now(&self) -> Moment {
        #[cfg(test)]
        if self.every_use {
            self.turn.fetch_add(2, Relaxed);
        }
        Moment { tick: self.tick.load(Relaxed), turn: self.turn.load(Relaxed) }
    }

    /// Looks at the time: at each miss and now and then at a hit.
    pub(super) fn look(&self) {
        let ticks = self.start.elapsed().as_nanos() / TICK_NANOS;
        // Ticks wrap after four years, which costs one note.
        let tick = ticks as u32;
        if self.tick.load(Relaxed) != tick {
            self.tick.store(tick, Relaxed);
        }
    }

    /// Something came into a cache of this capacity. For whoever holds the lock of the policies.
    pub(super) fn came(&self, units: u64, capacity: u64) {
        let of_turn = (capacity / TURNS).max(1);
        let came = self.came.load(Relaxed) + units;
        if came >= of_turn {
            self.turn.store(self.turn.load(Relaxed).wrapping_add((came / of_turn) as u32), Relaxed);
        }
        self.came.store(came % of_turn, Relaxed);
    }

    #[cfg(test)]
    pub(super) fn count_every_use(&mut self) {
        self.every_use = true;
    }
}
