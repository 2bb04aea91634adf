//! What ARC would hold, at full size and in hardly any memory: a *shadow*.
//!
//! ```text
//!   seen once    now ├──── T1 ────┤──── B1 ────┤ forgotten          each line is one list in the order of last use;
//!   seen again   now ├────── T2 ──────┤── B2 ──┤ forgotten          what ARC moves are the marks on it
//! ```
//! When a block was last used does not depend on who keeps it. So the time that the cache's items and ghosts carry
//! anyway, and one bit that says whether ARC has seen the block once or again, tell where ARC has it: before the first
//! mark of its line it is held, before the second it is a ghost. All that is left to keep is how many there are of each
//! time ([`Order`]), which is a few kilobytes however large the cache is.
//!
//! Exact to a tick of the clock, a thousandth of a cache-full; and to what the table of ghosts loses.

use crate::order::Order;

/// What ARC knows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Once = 0,
    Again = 1,
}

/// When a block was last used, and what ARC knows of it, if it has not forgotten it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) seen: Seen,
    pub(crate) time: u32,
}

/// The marks. A cache counts in units and this in blocks: of blocks of unequal sizes it knows the mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    /// Blocks it may hold.
    capacity: u64,
    /// ARC's `p`: how many of them may be seen once.
    p: f64,
    held: [Order; 2],
    ghosts: [Order; 2],
    /// Those it holds and the cache does not.
    missing: [Order; 2],
}

impl Shadow {
    /// Blocks it holds that it has seen so often.
    pub(crate) const fn len(&self, seen: Seen) -> u64 {
        self.held[seen as usize].len()
    }

    /// The share of blocks seen once, 0 to 1.
    pub(crate) fn learned(&self) -> f64 {
        self.p / self.capacity.max(1) as f64
    }

    pub(crate) fn memory(&self) -> usize {
        self.held.iter().chain(&self.ghosts).chain(&self.missing).map(Order::memory).sum()
    }

    /// Whether ARC would hold it.
    #[inline]
    pub(crate) fn holds(&self, known: Known, now: u32) -> bool {
        !self.held[known.seen as usize].is_past(known.time, now)
    }

    /// Whether it is among those of its list that ARC would evict next.
    pub(crate) fn is_next(&self, known: Known, now: u32) -> bool {
        self.held[known.seen as usize].is_oldest(known.time, now)
    }

    /// The ages below which ARC would hold blocks, seen once and again, and below which it would remember them.
    pub(crate) fn reach(&self, now: u32) -> [[u32; 2]; 2] {
        [&self.held, &self.ghosts].map(|lists| lists.each_ref().map(|list| list.reach(now)))
    }

    /// How many blocks ARC would hold that the cache does not: what it would cost at most to be ARC again.
    pub(crate) const fn missing(&self) -> u64 {
        self.missing[0].len() + self.missing[1].len()
    }

    /// The cache gives up a block that ARC would hold.
    pub(crate) fn miss(&mut self, known: Known, now: u32) {
        self.missing[known.seen as usize].add(known.time, now);
    }

    /// A block became worthless.
    pub(crate) fn remove(&mut self, known: Known, now: u32) {
        self.held[known.seen as usize].remove(known.time, now);
    }

    /// Another capacity.
    pub(crate) fn resize(&mut self, capacity: u64, now: u32) {
        if capacity == self.capacity {
            return;
        }
        self.capacity = capacity;
        self.p = self.p.min(capacity as f64);
        while self.all_held() > capacity && self.replace(false, now) {}
        while self.len(Seen::Once) + self.ghosts[0].len() > capacity
            && self.ghosts[0].pop_oldest(now).is_some()
        {}
        while self.all() > 2 * capacity && self.ghosts[1].pop_oldest(now).is_some() {}
    }

    const fn all_held(&self) -> u64 {
        self.held[0].len() + self.held[1].len()
    }

    const fn all(&self) -> u64 {
        self.all_held() + self.ghosts[0].len() + self.ghosts[1].len()
    }

    /// An access to a block with what is known of it, and whether the cache has it: whether ARC would have it, and how
    /// often it has seen it now.
    ///
    /// Of those last used in the tick that ARC is just evicting it has some. Which ones, a cache that does as ARC does
    /// knows: those that it has itself.
    #[inline]
    pub(crate) fn access(
        &mut self,
        known: Option<Known>,
        is_cached: bool,
        is_like_arc: bool,
        now: u32,
    ) -> (bool, Seen) {
        let (mut is_hit, mut seen) = (false, Seen::Once);
        if let Some(Known { seen: before, time }) = known {
            let list = before as usize;
            if !is_cached {
                self.missing[list].remove(time, now);
            }
            let is_gone = is_like_arc && !is_cached && self.held[list].is_oldest(time, now);
            if is_gone && self.revive(list, time, now) {
                seen = Seen::Again;
            } else if self.held[list].remove(time, now) {
                (is_hit, seen) = (true, Seen::Again);
            } else if self.revive(list, time, now) {
                seen = Seen::Again;
            }
        }
        if seen == Seen::Once {
            self.admit(now);
        }
        self.held[seen as usize].add(now, now);
        for (missing, held) in self.missing.iter_mut().zip(&self.held) {
            missing.follow(held, now);
        }
        (is_hit, seen)
    }

    /// Learns from a ghost that comes back and makes room for it; false if it is none.
    fn revive(&mut self, list: usize, time: u32, now: u32) -> bool {
        let [mine, other] = [list, 1 - list].map(|list| self.ghosts[list].len() as f64);
        if !self.ghosts[list].remove(time, now) {
            return false;
        }
        let step = (other / mine).max(1.0);
        self.p = if list == 0 { (self.p + step).min(self.capacity as f64) } else { (self.p - step).max(0.0) };
        while self.all_held() >= self.capacity.max(1) && self.replace(list == 1, now) {}
        true
    }

    /// Makes room for a block it does not know.
    fn admit(&mut self, now: u32) {
        while self.all_held() >= self.capacity.max(1) {
            if self.held[0].len() + self.ghosts[0].len() >= self.capacity {
                if self.ghosts[0].pop_oldest(now).is_none() {
                    if self.held[0].pop_oldest(now).is_none() {
                        break;
                    }
                    continue;
                }
            } else if self.all() >= 2 * self.capacity {
                self.ghosts[1].pop_oldest(now);
            }
            if !self.replace(false, now) {
                break;
            }
        }
    }

    /// One block becomes a ghost.
    fn replace(&mut self, of_again: bool, now: u32) -> bool {
        let once = self.held[0].len();
        let is_once = once > 0 && (once as f64 > self.p || (of_again && once as f64 == self.p));
        let list = usize::from(!(is_once || self.held[1].len() == 0));
        let Some(time) = self.held[list].pop_oldest(now) else { return false };
        self.ghosts[list].add(time, now);
        true
    }
}
