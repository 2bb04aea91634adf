//! Miss ratio at every size of an LRU cache, from a small sample of the accesses (fixed-size SHARDS, FAST 2015).
//!
//! Blocks are sampled by hash, so that all accesses to a sampled block are seen. The distance of a reuse among
//! sampled blocks, divided by the sampling rate, is the size an LRU cache needs to turn it into a hit. When more than
//! `keys` blocks are sampled, those with the largest hashes are dropped and the rate falls: memory is bounded.
//!
//! The sample's share of accesses differs from its rate by the luck of where the hottest blocks fall. The difference
//! is booked as hits at the smallest distance, hot blocks being what it consists of.
//!
//! Error: with 16 384 keys at most 0.012 of miss ratio on average over the reference sizes of a trace and 0.03 at
//! any one (`tests/curve.rs`); with 2000 keys up to 0.1. About 60 bytes a key: 1 MB. A sampled access costs some 200 ns, one that is not a few.
//!
//! It is LRU's curve, which shows how much is reused from how far. Adaptive policies are mostly below it.

use std::collections::BTreeSet;

use crate::{index::Index, mix};

/// Parts an octave of distances is divided into: sizes are known to 1/32.
const PARTS_BITS: u32 = 5;
const BUCKETS: usize = (u64::BITS as usize + 1) << PARTS_BITS;

/// Keys that keep the error at about 0.01.
pub const KEYS: usize = 16_384;

/// An LRU miss-ratio curve in the making.
#[derive(Clone, Debug)]
pub struct Curve {
    keys: usize,
    /// Blocks whose hash is below are sampled; the rate is this in 2^64.
    threshold: u64,
    /// When each sampled block was used last: an index into `marks`.
    used: Index,
    /// The sampled blocks by hash, largest last.
    hashes: BTreeSet<u64>,
    /// The block last used at each time; 0 if it was used again later.
    blocks: Vec<u64>,
    /// Fenwick tree: sizes of blocks by time of last use.
    marks: Vec<u64>,
    sizes: Vec<u32>,
    /// Units of reuse, by scaled distance.
    reuse: Vec<f64>,
    /// Units seen for the first time.
    first: f64,
    /// Units of all accesses, sampled or not, in the same fading as `reuse`.
    seen: f64,
}

impl Default for Curve {
    fn default() -> Self {
        Self::new(KEYS)
    }
}

impl Curve {
    /// With room for this many sampled blocks.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        let keys = keys.max(16);
        let times = keys * 4;
        Self {
            keys,
            threshold: u64::MAX,
            used: Index::default(),
            hashes: BTreeSet::new(),
            blocks: Vec::with_capacity(times),
            marks: vec![0; times + 1],
            sizes: Vec::with_capacity(times),
            reuse: vec![0.0; BUCKETS],
            first: 0.0,
            seen: 0.0,
        }
    }

    /// The share of blocks that is sampled now.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }

    /// Bytes of memory behind it.
    #[must_use]
    pub fn memory(&self) -> usize {
        // A B-tree's leaves are two thirds full on average.
        self.used.memory()
            + self.hashes.len() * 12
            + self.blocks.capacity() * size_of::<u64>()
            + self.marks.capacity() * size_of::<u64>()
            + self.sizes.capacity() * size_of::<u32>()
            + self.reuse.capacity() * size_of::<f64>()
    }

    /// One access to a block: its identity, well spread, and its size.
    #[inline]
    pub fn access(&mut self, id: u64, size: u32) {
        self.seen += f64::from(size);
        self.look(id, size, f64::from(size));
    }

    /// A block came in that nobody asked for: written, or read ahead. It is used as by an access, and not counted.
    pub fn fill(&mut self, id: u64, size: u32) {
        self.look(id, size, 0.0);
    }

    /// A block is worthless from now on, and in nobody's way.
    pub fn remove(&mut self, id: u64) {
        let hash = hash(id);
        if let Some(time) = self.used.remove(hash) {
            self.unmark(time);
            self.hashes.remove(&hash);
        }
    }

    /// Forgets everything.
    pub fn begin_anew(&mut self) {
        *self = Self::new(self.keys);
    }

    /// What was counted so far weighs this much of what it did.
    pub fn fade(&mut self, by: f64) {
        self.reuse.iter_mut().for_each(|units| *units *= by);
        self.first *= by;
        self.seen *= by;
    }

    #[inline]
    fn look(&mut self, id: u64, size: u32, weight: f64) {
        let hash = hash(id);
        if hash < self.threshold {
            self.sample(hash, size, weight);
        }
    }

    fn sample(&mut self, hash: u64, size: u32, weight: f64) {
        if self.blocks.len() + 1 >= self.marks.len() {
            self.compact();
        }
        match self.used.get(hash) {
            Some(time) => {
                let younger = self.sum(self.blocks.len()) - self.sum(time as usize + 1);
                let distance = (younger as f64 / self.rate()) as u64 + u64::from(size);
                self.reuse[bucket(distance)] += weight;
                self.unmark(time);
            }
            None => {
                self.first += weight;
                self.hashes.insert(hash);
            }
        }
        let time = self.blocks.len();
        self.blocks.push(hash);
        self.sizes.push(size);
        self.add(time, i64::from(size));
        self.used.insert(hash, time as u32);
        if self.used.len() > self.keys {
            self.thin();
        }
    }

    /// Drops the block with the largest hash; what is known is scaled to the lower rate.
    fn thin(&mut self) {
        let Some(largest) = self.hashes.pop_last() else { return };
        let fade = largest as f64 / self.threshold as f64;
        self.threshold = largest;
        if let Some(time) = self.used.remove(largest) {
            self.unmark(time);
        }
        // What was counted at the higher rate weighs as if it had been sampled at the lower.
        self.reuse.iter_mut().for_each(|units| *units *= fade);
        self.first *= fade;
    }

    /// Miss ratio of an LRU cache of this size, 0 to 1; 1 of nothing seen.
    #[must_use]
    pub fn miss_ratio(&self, size: u64) -> f64 {
        let expected = self.seen * self.rate();
        if expected <= 0.0 {
            return 1.0;
        }
        let end = bucket(size);
        let mut missed = self.first + self.reuse[end + 1..].iter().sum::<f64>();
        // Distances in the bucket of `size` itself lie evenly in it.
        let (low, high) = (floor(end), floor(end + 1));
        missed += self.reuse[end] * (1.0 - (size - low + 1) as f64 / (high - low).max(1) as f64).max(0.0);
        (missed / expected).min(1.0)
    }

    fn unmark(&mut self, time: u32) {
        let at = time as usize;
        self.add(at, -i64::from(self.sizes[at]));
        self.blocks[at] = 0;
    }

    fn add(&mut self, time: usize, size: i64) {
        let mut at = time + 1;
        while at < self.marks.len() {
            self.marks[at] = self.marks[at].wrapping_add_signed(size);
            at += at & at.wrapping_neg();
        }
    }

    /// Units last used before this time.
    fn sum(&self, time: usize) -> u64 {
        let mut at = time;
        let mut sum = 0;
        while at > 0 {
            sum += self.marks[at];
            at &= at - 1;
        }
        sum
    }

    /// Times are used up: numbers them anew without the gaps.
    fn compact(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        let sizes = std::mem::take(&mut self.sizes);
        self.blocks = Vec::with_capacity(blocks.len());
        self.sizes = Vec::with_capacity(sizes.len());
        self.marks.fill(0);
        for (hash, size) in blocks.into_iter().zip(sizes).filter(|(hash, _)| *hash != 0) {
            let time = self.blocks.len();
            self.blocks.push(hash);
            self.sizes.push(size);
            self.add(time, i64::from(size));
            self.used.insert(hash, time as u32);
        }
    }
}

/// What blocks are chosen by. Not the identity itself: policies choose their samples by it.
#[inline]
const fn hash(id: u64) -> u64 {
    mix(id ^ 0x5851_f42d_4c95_7f2d)
}

/// The bucket of a distance: exact below 32, then 32 to an octave.
fn bucket(distance: u64) -> usize {
    let octave = (u64::BITS - distance.leading_zeros()).saturating_sub(PARTS_BITS + 1);
    ((octave as usize) << PARTS_BITS) + (distance >> octave) as usize
}

/// The smallest distance of a bucket.
fn floor(bucket: usize) -> u64 {
    let parts = 1 << PARTS_BITS;
    if bucket < 2 * parts {
        return bucket as u64;
    }
    let octave = bucket / parts - 1;
    ((bucket % parts + parts) as u64).checked_shl(octave as u32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_floor() {
        for at in 0..1500 {
            assert_eq!(bucket(floor(at)), at);
            assert_eq!(bucket(floor(at + 1) - 1), at);
        }
    }

    #[test]
    fn a_loop_hits_from_its_own_size_on() {
        let mut curve = Curve::new(1000);
        for k in 0..5000 {
            curve.access(mix(k % 100), 3);
        }
        assert!(curve.miss_ratio(290) > 0.99);
        assert!((curve.miss_ratio(310) - 0.02).abs() < 1e-9, "{}", curve.miss_ratio(310));
    }
}
