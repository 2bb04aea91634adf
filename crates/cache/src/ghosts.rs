//! Blocks that were evicted, remembered in 8 bytes each.
//!
//! ```text
//!   bucket = 8 slots = one cache line      slot = 32 bits of the block's identity | 31 bits of time | 1 bit of list
//! ```
//! A ghost has no list links. How many of each list were last used when is counted apart, oldest first; to forget is to
//! drop the oldest count and to move the *horizon* there: ghosts beyond it are dead wherever they lie, and their slots
//! are taken first. So they are forgotten in the order of their last use, to a tick of the clock, as ARC does. Who
//! forgets only about the oldest keeps some ghosts of a loop that ARC has forgotten, and gives up a hot set for them
//! (the tests of `queues`).
//!
//! Two blocks whose 32 bits agree are taken for one: at 16 million ghosts a new block is wrongly remembered once in 250
//! times, and is then merely kept a little longer than it deserves.

use std::collections::VecDeque;

use crate::mix;

/// Which list a ghost was evicted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Recent = 0,
    Frequent = 1,
}

/// What is remembered of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ghost {
    pub(crate) from: From,
    /// Time of its last use, 31 bits.
    pub(crate) time: u32,
}

/// The bits that times have.
pub(crate) const TIME_MASK: u32 = u32::MAX >> 1;

const WAYS: usize = 8;
/// Times that are told apart for each list; beyond, the oldest are counted together.
const TIMES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    tag: u32,
    /// Time, then one bit for the list.
    word: u32,
}

impl Cell {
    const EMPTY: Self = Self { tag: u32::MAX, word: u32::MAX };

    const fn from(self) -> From {
        if self.word & 1 == 0 { From::Recent } else { From::Frequent }
    }

    const fn age(self, now: u32) -> u32 {
        age(self.word >> 1, now)
    }
}

/// Ghosts of one list by the time of their last use.
#[derive(Clone, Debug, Default)]
struct Order {
    /// Time and ghosts last used then, or since the time before; oldest first.
    times: VecDeque<(u32, u32)>,
    count: u64,
    /// Ghosts of this time and before are forgotten.
    horizon: Option<u32>,
}

impl Order {
    fn is_forgotten(&self, time: u32, now: u32) -> bool {
        self.horizon.is_some_and(|horizon| age(time, now) >= age(horizon, now))
    }

    /// The first entry of this time or later.
    fn entry(&self, time: u32, now: u32) -> usize {
        // Nearly always the youngest: lists are emptied from their older ends.
        match self.times.back() {
            Some((last, _)) if age(*last, now) > age(time, now) => self.times.len(),
            _ => self.times.partition_point(|(known, _)| age(*known, now) > age(time, now)),
        }
    }

    fn add(&mut self, time: u32, now: u32) {
        self.count += 1;
        let at = self.entry(time, now);
        match self.times.get_mut(at) {
            Some((known, count)) if *known == time => *count += 1,
            _ => self.times.insert(at, (time, 1)),
        }
        if self.times.len() > TIMES_MAX {
            self.coarsen();
        }
    }

    fn remove(&mut self, time: u32, now: u32) {
        let at = self.entry(time, now);
        if let Some((_, count)) = self.times.get_mut(at)
            && *count > 0
        {
            *count -= 1;
            self.count -= 1;
        }
    }

    /// The older half is told apart half as finely, and what is no longer there not at all.
    fn coarsen(&mut self) {
        let half = self.times.len() / 2;
        let mut times = VecDeque::with_capacity(self.times.capacity());
        let mut before = 0;
        for (at, (time, count)) in self.times.drain(..).enumerate() {
            if at < half && at % 2 == 0 {
                before = count;
            } else if before + count > 0 {
                times.push_back((time, before + count));
                before = 0;
            }
        }
        self.times = times;
    }

    /// Forgets those last used longest ago; false if there is none.
    fn forget_oldest(&mut self) -> bool {
        while let Some((time, count)) = self.times.pop_front() {
            self.horizon = Some(time);
            self.count -= u64::from(count);
            if count > 0 {
                return true;
            }
        }
        false
    }
}

const fn age(time: u32, now: u32) -> u32 {
    now.wrapping_sub(time) & TIME_MASK
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ghosts {
    buckets: Vec<[Cell; WAYS]>,
    orders: [Order; 2],
}

impl Ghosts {
    /// Ghosts of one list.
    pub(crate) const fn count(&self, from: From) -> u64 {
        self.orders[from as usize].count
    }

    /// Places for ghosts.
    pub(crate) const fn places(&self) -> usize {
        self.buckets.len() * WAYS
    }

    pub(crate) fn memory(&self) -> usize {
        let times: usize = self.orders.iter().map(|order| order.times.capacity()).sum();
        self.buckets.capacity() * size_of::<[Cell; WAYS]>() + times * size_of::<(u32, u32)>()
    }

    /// The two buckets that a block may be in: with one, some would be full while half the table is free.
    fn choices(&self, tag: u32) -> [usize; 2] {
        let buckets = self.buckets.len() as u64;
        let other = mix(u64::from(tag)) >> 32;
        [u64::from(tag), other].map(|hash| ((hash * buckets) >> 32) as usize)
    }

    /// Makes room for this many; ghosts move to their new buckets, the oldest of an overfull one are lost.
    pub(crate) fn resize(&mut self, places: usize, now: u32) {
        let mut buckets = Vec::new();
        buckets.reserve_exact(places.div_ceil(WAYS));
        buckets.resize(places.div_ceil(WAYS), [Cell::EMPTY; WAYS]);
        let old = std::mem::replace(&mut self.buckets, buckets);
        let orders = self.orders.clone();
        for cell in old.into_iter().flatten().filter(|cell| *cell != Cell::EMPTY) {
            self.put(cell.tag, Ghost { from: cell.from(), time: cell.word >> 1 }, now);
        }
        // None came, and those lost in a full bucket stay counted.
        self.orders = orders;
    }

    fn is_dead(&self, cell: Cell, now: u32) -> bool {
        self.orders[cell.from() as usize].is_forgotten(cell.word >> 1, now)
    }

    /// Remembers a block, in place of a forgotten one or of the oldest ghost of a full bucket.
    #[inline]
    pub(crate) fn put(&mut self, tag: u32, ghost: Ghost, now: u32) {
        let time = ghost.time & TIME_MASK;
        let new = Cell { tag, word: time << 1 | ghost.from as u32 };
        // The one block in 2^64 that looks like nothing is not remembered.
        if self.buckets.is_empty() || new == Cell::EMPTY || self.is_dead(new, now) {
            return;
        }
        let (mut chosen, mut worth) = ((0, 0), u32::MAX);
        'found: for at in self.choices(tag) {
            for (way, cell) in self.buckets[at].iter().enumerate() {
                if cell.tag == tag && *cell != Cell::EMPTY {
                    chosen = (at, way);
                    break 'found;
                }
                // Empty slots first, then forgotten ghosts, then the oldest.
                let is_free = *cell == Cell::EMPTY || self.is_dead(*cell, now);
                let mine = if is_free { 0 } else { 1 + (TIME_MASK - cell.age(now)) };
                if mine < worth {
                    (worth, chosen) = (mine, (at, way));
                }
            }
        }
        let old = std::mem::replace(&mut self.buckets[chosen.0][chosen.1], new);
        // One that a full bucket gave up stays counted until its time has come: else others live longer for it.
        if old.tag == tag && old != Cell::EMPTY && !self.is_dead(old, now) {
            self.orders[old.from() as usize].remove(old.word >> 1, now);
        }
        self.orders[ghost.from as usize].add(time, now);
    }

    /// Forgets a block and says what was remembered of it.
    #[inline]
    pub(crate) fn take(&mut self, tag: u32, now: u32) -> Option<Ghost> {
        if self.buckets.is_empty() {
            return None;
        }
        let cell = self.choices(tag).into_iter().find_map(|at| {
            let cell = self.buckets[at].iter_mut().find(|cell| cell.tag == tag && **cell != Cell::EMPTY)?;
            Some(std::mem::replace(cell, Cell::EMPTY))
        })?;
        if self.is_dead(cell, now) {
            return None;
        }
        let ghost = Ghost { from: cell.from(), time: cell.word >> 1 };
        self.orders[ghost.from as usize].remove(ghost.time, now);
        Some(ghost)
    }

    /// Forgets the oldest ghosts of one list; false if it has none.
    pub(crate) fn drop_oldest(&mut self, from: From) -> bool {
        self.orders[from as usize].forget_oldest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_once_and_counted() {
        let mut ghosts = Ghosts::default();
        assert_eq!(ghosts.take(7, 0), None, "an empty table remembers nothing");
        ghosts.resize(1000, 0);
        let tag = |n: u32| n.wrapping_mul(0x9e37_79b1);
        for n in 0..400 {
            let from = if n % 2 == 0 { From::Recent } else { From::Frequent };
            ghosts.put(tag(n), Ghost { from, time: n }, n);
        }
        assert_eq!([From::Recent, From::Frequent].map(|from| ghosts.count(from)), [200, 200]);
        ghosts.resize(2000, 400);
        assert_eq!(ghosts.take(tag(8), 400), Some(Ghost { from: From::Recent, time: 8 }));
        assert_eq!(ghosts.take(tag(8), 400), None);
        assert!((0..100).all(|_| ghosts.drop_oldest(From::Frequent)));
        assert_eq!([From::Recent, From::Frequent].map(|from| ghosts.count(from)), [199, 100]);
        let kept = (0..400).filter(|n| n % 2 == 1 && ghosts.take(tag(*n), 400).is_some()).sum::<u32>() / 100;
        assert!(kept > 204, "the younger ones are kept: their mean is {kept}, of all it is 200");
        assert!(!ghosts.drop_oldest(From::Frequent));
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest() {
        let mut ghosts = Ghosts::default();
        ghosts.resize(WAYS, 0);
        for n in 0..100 {
            ghosts.put(n, Ghost { from: From::Recent, time: n }, n);
        }
        assert_eq!(
            ghosts.count(From::Recent),
            100,
            "those that are lost stay counted until their time has come"
        );
        assert_eq!(
            (0..100).filter(|n| ghosts.take(*n, 100).is_some()).collect::<Vec<_>>(),
            (92..100).collect::<Vec<_>>()
        );
    }
}
