//! Blocks that were evicted, remembered in 8 bytes each.
//!
//! ```text
//!   bucket = 8 slots = one cache line      slot = 32 bits of the block's identity | 29 bits of time | 2 of list | 1 for the shadow
//! ```
//! A ghost has no list links. How many of each list were last used when is counted apart, oldest first; to forget is to
//! drop the oldest count and to move the *horizon* there ([`Order`]): ghosts beyond it are dead wherever they lie, and
//! their slots are taken first. So they are forgotten in the order of their last use, to a tick of the clock, as ARC does. Who
//! forgets only about the oldest keeps some ghosts of a loop that ARC has forgotten, and gives up a hot set for them
//! (the tests of `queues`).
//!
//! Two blocks whose 32 bits agree are taken for one: at 16 million ghosts a new block is wrongly remembered once in 250
//! times, and is then merely kept a little longer than it deserves.

use crate::{
    mix,
    order::{Order, TIME_MASK, age},
    shadow::{Known, Seen, Shadow},
};

/// Which list a ghost was evicted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Recent = 0,
    Frequent = 1,
    /// None that its rules remember: only what ARC would know of it is.
    Nowhere = 2,
}

/// What is remembered of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ghost {
    pub(crate) from: From,
    /// When it was last used, and how often ARC has seen it.
    pub(crate) known: Known,
}

const WAYS: usize = 8;
/// Ghosts that the shadow knows are worth more than any that only the rules do.
const OF_SHADOW: u32 = TIME_MASK + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    tag: u32,
    /// Time, then two bits for the list and one for what ARC has seen.
    word: u32,
}

impl Cell {
    const EMPTY: Self = Self { tag: u32::MAX, word: u32::MAX };

    const fn new(tag: u32, ghost: Ghost) -> Self {
        Self {
            tag,
            word: (ghost.known.time & TIME_MASK) << 3 | (ghost.from as u32) << 1 | ghost.known.seen as u32,
        }
    }

    const fn from(self) -> From {
        match self.word >> 1 & 3 {
            0 => From::Recent,
            1 => From::Frequent,
            _ => From::Nowhere,
        }
    }

    const fn known(self) -> Known {
        let seen = if self.word & 1 == 0 { Seen::Once } else { Seen::Again };
        Known { seen, time: self.word >> 3 }
    }
}

/// What ghosts are worth at one time: the ages that matter, by list or by what ARC has seen.
struct Scale {
    now: u32,
    /// Below this ARC would hold the block.
    held: [u32; 2],
    /// Below this it would remember it.
    remembered: [u32; 2],
    /// Below this the rules do.
    kept: [u32; 3],
}

impl Scale {
    /// What it would cost to lose a ghost: nothing if all have forgotten it, then by its age; more if ARC would remember
    /// it, most if it would hold its block.
    #[inline]
    fn worth(&self, cell: Cell) -> u32 {
        if cell == Cell::EMPTY {
            return 0;
        }
        let Known { seen, time } = cell.known();
        let age = age(time, self.now);
        let youth = 1 + (TIME_MASK - age);
        if age < self.held[seen as usize] {
            2 * OF_SHADOW + youth
        } else if age < self.remembered[seen as usize] {
            OF_SHADOW + youth
        } else if age < self.kept[cell.from() as usize] {
            youth
        } else {
            0
        }
    }
}

/// What says where a block may be.
fn hashes(tag: u32) -> [u32; 2] {
    [tag, (mix(u64::from(tag)) >> 32) as u32]
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ghosts {
    buckets: Vec<[Cell; WAYS]>,
    orders: [Order; 2],
}

impl Ghosts {
    /// Ghosts of one list.
    pub(crate) fn count(&self, from: From) -> u64 {
        self.orders.get(from as usize).map_or(0, Order::len)
    }

    /// Places for ghosts.
    pub(crate) const fn places(&self) -> usize {
        self.buckets.len() * WAYS
    }

    pub(crate) fn memory(&self) -> usize {
        let times: usize = self.orders.iter().map(Order::memory).sum();
        self.buckets.capacity() * size_of::<[Cell; WAYS]>() + times
    }

    const fn bucket(&self, hash: u32) -> usize {
        ((hash as u64 * self.buckets.len() as u64) >> 32) as usize
    }

    /// The two buckets that a block may be in: with one, some would be full while half the table is free.
    fn choices(&self, tag: u32) -> [usize; 2] {
        hashes(tag).map(|hash| self.bucket(hash))
    }

    /// Makes room for this many; ghosts move to their new buckets, the oldest of an overfull one are lost.
    ///
    /// Everything waits meanwhile, so that each ghost goes by the hash that it went by before, if there is a place: both
    /// tables are gone through once from one end to the other. To choose anew would wait for memory once or twice a ghost.
    pub(crate) fn resize(&mut self, places: usize, now: u32, shadow: Option<&Shadow>) {
        let mut buckets = Vec::new();
        buckets.reserve_exact(places.div_ceil(WAYS));
        buckets.resize(places.div_ceil(WAYS), [Cell::EMPTY; WAYS]);
        let mut old =
            Self { buckets: std::mem::replace(&mut self.buckets, buckets), orders: self.orders.clone() };
        let scale = self.scale(now, shadow);
        let mut homeless = Vec::new();
        for (at, bucket) in old.buckets.iter().enumerate() {
            for cell in bucket.iter().filter(|cell| scale.worth(**cell) > 0) {
                let hash = hashes(cell.tag).into_iter().find(|hash| old.bucket(*hash) == at);
                let Some(hash) = hash else { continue };
                let new = self.bucket(hash);
                match self
                    .buckets
                    .get_mut(new)
                    .and_then(|new| new.iter_mut().find(|cell| **cell == Cell::EMPTY))
                {
                    Some(place) => *place = *cell,
                    None => homeless.push(*cell),
                }
            }
        }
        old.buckets = Vec::new();
        for cell in homeless {
            self.put(cell.tag, Ghost { from: cell.from(), known: cell.known() }, now, shadow);
        }
        // None came, and those lost in a full bucket stay counted.
        self.orders = old.orders;
    }

    /// Whether the rules have forgotten it.
    fn is_past(&self, from: From, known: Known, now: u32) -> bool {
        self.orders.get(from as usize).is_none_or(|order| order.is_past(known.time, now))
    }

    fn scale(&self, now: u32, shadow: Option<&Shadow>) -> Scale {
        let [held, remembered] = shadow.map_or([[0; 2]; 2], |shadow| shadow.reach(now));
        let [recent, frequent] = self.orders.each_ref().map(|order| order.reach(now));
        Scale { now, held, remembered, kept: [recent, frequent, 0] }
    }

    /// Remembers a block, in place of a forgotten one or of the oldest ghost of a full bucket.
    #[inline]
    pub(crate) fn put(&mut self, tag: u32, mut ghost: Ghost, now: u32, shadow: Option<&Shadow>) {
        if self.is_past(ghost.from, ghost.known, now) {
            ghost.from = From::Nowhere;
        }
        let new = Cell::new(tag, ghost);
        let scale = self.scale(now, shadow);
        // The one block in 2^64 that looks like nothing is not remembered.
        if self.buckets.is_empty() || scale.worth(new) == 0 {
            return;
        }
        let (bucket, way) = self.place(tag, &scale);
        let old = std::mem::replace(&mut self.buckets[bucket][way], new);
        // One that a full bucket gave up stays counted until its time has come: else others live longer for it.
        if old.tag == tag && old != Cell::EMPTY {
            self.uncount(old, now);
        }
        if let Some(order) = self.orders.get_mut(ghost.from as usize) {
            order.add(ghost.known.time & TIME_MASK, now);
        }
    }

    /// Where a block is to be put: where it is, or in place of what is worth least in the bucket that has fewer ghosts of
    /// the shadow's. By worth alone one bucket would be filled up with these while the other has room, and each that is
    /// lost makes the shadow something else than ARC.
    fn place(&self, tag: u32, scale: &Scale) -> (usize, usize) {
        let mut best = ((usize::MAX, u32::MAX), (0, 0));
        for bucket in self.choices(tag) {
            let (mut kept, mut least) = (0, (u32::MAX, 0));
            for (way, cell) in self.buckets[bucket].iter().enumerate() {
                if cell.tag == tag && *cell != Cell::EMPTY {
                    return (bucket, way);
                }
                let worth = scale.worth(*cell);
                kept += usize::from(worth >= OF_SHADOW);
                least = least.min((worth, way));
            }
            best = best.min(((kept, least.0), (bucket, least.1)));
        }
        best.1
    }

    fn uncount(&mut self, cell: Cell, now: u32) -> bool {
        let order = self.orders.get_mut(cell.from() as usize);
        order.is_some_and(|order| {
            let is_here = !order.is_past(cell.known().time, now);
            if is_here {
                order.remove(cell.known().time, now);
            }
            is_here
        })
    }

    /// Forgets a block and says what was remembered of it: of one that the rules have forgotten, what ARC knows.
    #[inline]
    pub(crate) fn take(&mut self, tag: u32, now: u32) -> Option<Ghost> {
        if self.buckets.is_empty() {
            return None;
        }
        let cell = self.choices(tag).into_iter().find_map(|at| {
            let cell = self.buckets[at].iter_mut().find(|cell| cell.tag == tag && **cell != Cell::EMPTY)?;
            Some(std::mem::replace(cell, Cell::EMPTY))
        })?;
        let from = if self.uncount(cell, now) { cell.from() } else { From::Nowhere };
        Some(Ghost { from, known: cell.known() })
    }

    /// Forgets the oldest ghosts of one list; false if it has none.
    pub(crate) fn drop_oldest(&mut self, from: From) -> bool {
        self.orders.get_mut(from as usize).is_some_and(Order::drop_oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ghost(from: From, time: u32) -> Ghost {
        Ghost { from, known: Known { seen: Seen::Once, time } }
    }

    #[test]
    fn what_is_put_is_found_once_and_counted() {
        let mut ghosts = Ghosts::default();
        assert_eq!(ghosts.take(7, 0), None, "an empty table remembers nothing");
        ghosts.resize(1000, 0, None);
        let tag = |n: u32| n.wrapping_mul(0x9e37_79b1);
        for n in 0..400 {
            let from = if n % 2 == 0 { From::Recent } else { From::Frequent };
            ghosts.put(tag(n), ghost(from, n), n, None);
        }
        assert_eq!([From::Recent, From::Frequent].map(|from| ghosts.count(from)), [200, 200]);
        ghosts.resize(2000, 400, None);
        assert_eq!(ghosts.take(tag(8), 400), Some(ghost(From::Recent, 8)));
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
        ghosts.resize(WAYS, 0, None);
        for n in 0..100 {
            ghosts.put(n, ghost(From::Recent, n), n, None);
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
