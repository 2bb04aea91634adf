//! Blocks that were evicted, remembered in 8 bytes each.
//!
//! ```text
//!   bucket = 8 slots = one cache line      slot = 32 bits of the block's identity | 31 bits of time | 1 bit of list
//! ```
//! A ghost has no list links: order is the time of last use that each carries, and what must be forgotten is the
//! oldest of four buckets, the buckets taken in turn. With one bucket some of a loop's ghosts live on that ARC has
//! forgotten, which made it give up a hot set for the loop (`tests/default.rs`, phases). Two blocks whose 32 bits agree are taken for one: at 16 million ghosts a new
//! block is wrongly remembered once in 250 times, and is then merely kept a little longer than it deserves.

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
/// Buckets among which the oldest ghost is looked for when one must be forgotten.
const LOOK: usize = 4;

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
        now.wrapping_sub(self.word >> 1) & TIME_MASK
    }
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ghosts {
    buckets: Vec<[Cell; WAYS]>,
    counts: [u64; 2],
    /// Bucket the next forgetting begins at.
    hand: usize,
}

impl Ghosts {
    /// Ghosts of one list.
    pub(crate) const fn count(&self, from: From) -> u64 {
        self.counts[from as usize]
    }

    /// Places for ghosts.
    pub(crate) const fn places(&self) -> usize {
        self.buckets.len() * WAYS
    }

    pub(crate) const fn memory(&self) -> usize {
        self.buckets.capacity() * size_of::<[Cell; WAYS]>()
    }

    fn bucket(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Makes room for this many; ghosts move to their new buckets, the oldest of an overfull one are lost.
    pub(crate) fn resize(&mut self, places: usize, now: u32) {
        let mut buckets = Vec::new();
        buckets.reserve_exact(places.div_ceil(WAYS));
        buckets.resize(places.div_ceil(WAYS), [Cell::EMPTY; WAYS]);
        let old = std::mem::replace(&mut self.buckets, buckets);
        self.counts = [0; 2];
        self.hand = 0;
        for cell in old.into_iter().flatten().filter(|cell| *cell != Cell::EMPTY) {
            self.put(cell.tag, Ghost { from: cell.from(), time: cell.word >> 1 }, now);
        }
    }

    /// Remembers a block, in place of the oldest ghost of a full bucket.
    #[inline]
    pub(crate) fn put(&mut self, tag: u32, ghost: Ghost, now: u32) {
        if self.buckets.is_empty() {
            return;
        }
        let at = self.bucket(tag);
        let bucket = &mut self.buckets[at];
        let mut chosen = 0;
        let mut oldest = 0;
        for (i, cell) in bucket.iter().enumerate() {
            if *cell == Cell::EMPTY || cell.tag == tag {
                chosen = i;
                break;
            }
            let age = cell.age(now);
            if age >= oldest {
                (oldest, chosen) = (age, i);
            }
        }
        if bucket[chosen] != Cell::EMPTY {
            self.counts[bucket[chosen].from() as usize] -= 1;
        }
        bucket[chosen] = Cell { tag, word: (ghost.time & TIME_MASK) << 1 | ghost.from as u32 };
        if bucket[chosen] == Cell::EMPTY {
            return; // The one block in 2^64 that looks like nothing is not remembered.
        }
        self.counts[ghost.from as usize] += 1;
    }

    /// Forgets a block and says what was remembered of it.
    #[inline]
    pub(crate) fn take(&mut self, tag: u32) -> Option<Ghost> {
        if self.buckets.is_empty() {
            return None;
        }
        let at = self.bucket(tag);
        let cell = self.buckets[at].iter_mut().find(|cell| cell.tag == tag && **cell != Cell::EMPTY)?;
        let ghost = Ghost { from: cell.from(), time: cell.word >> 1 };
        *cell = Cell::EMPTY;
        self.counts[ghost.from as usize] -= 1;
        Some(ghost)
    }

    /// Forgets an old ghost of one list; false if it has none.
    pub(crate) fn drop_oldest(&mut self, from: From, now: u32) -> bool {
        if self.counts[from as usize] == 0 {
            return false;
        }
        let mut found: Option<(usize, usize, u32)> = None;
        let mut looked = 0;
        loop {
            let at = self.hand;
            self.hand = if at + 1 >= self.buckets.len() { 0 } else { at + 1 };
            for (way, cell) in self.buckets[at].iter().enumerate() {
                if *cell != Cell::EMPTY && cell.from() == from {
                    let age = cell.age(now);
                    if found.is_none_or(|(_, _, oldest)| age > oldest) {
                        found = Some((at, way, age));
                    }
                }
            }
            looked += 1;
            if looked >= LOOK.min(self.buckets.len())
                && let Some((bucket, way, _)) = found
            {
                self.buckets[bucket][way] = Cell::EMPTY;
                self.counts[from as usize] -= 1;
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_once_and_counted() {
        let mut ghosts = Ghosts::default();
        assert_eq!(ghosts.take(7), None, "an empty table remembers nothing");
        ghosts.resize(1000, 0);
        let tag = |n: u32| n.wrapping_mul(0x9e37_79b1);
        for n in 0..400 {
            let from = if n % 2 == 0 { From::Recent } else { From::Frequent };
            ghosts.put(tag(n), Ghost { from, time: n }, n);
        }
        assert_eq!([From::Recent, From::Frequent].map(|from| ghosts.count(from)), [200, 200]);
        ghosts.resize(2000, 400);
        assert_eq!(ghosts.take(tag(8)), Some(Ghost { from: From::Recent, time: 8 }));
        assert_eq!(ghosts.take(tag(8)), None);
        assert!((0..100).all(|_| ghosts.drop_oldest(From::Frequent, 400)));
        assert_eq!([From::Recent, From::Frequent].map(|from| ghosts.count(from)), [199, 100]);
        let kept = (0..400).filter(|n| n % 2 == 1 && ghosts.take(tag(*n)).is_some()).sum::<u32>() / 100;
        assert!(kept > 204, "the younger ones are kept: their mean is {kept}, of all it is 200");
        assert!(!ghosts.drop_oldest(From::Frequent, 400));
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest() {
        let mut ghosts = Ghosts::default();
        ghosts.resize(WAYS, 0);
        for n in 0..100 {
            ghosts.put(n, Ghost { from: From::Recent, time: n }, n);
        }
        assert_eq!(ghosts.count(From::Recent), WAYS as u64);
        assert_eq!(
            (0..100).filter(|n| ghosts.take(*n).is_some()).collect::<Vec<_>>(),
            (92..100).collect::<Vec<_>>()
        );
    }
}
