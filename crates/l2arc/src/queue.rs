//! What waits to be written, bounded: when it is full, the block of least value goes.
//!
//! The value of a cached block is what a hit on it saves, a seek, per byte that has to be written for it; how likely a
//! hit is, is guessed from what the block was in memory. So small beats large, metadata beats data, what was used often
//! beats what was used once.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Block, index::Hash};

/// Blocks that wait, by value.
#[derive(Debug)]
pub(crate) struct Queue {
    blocks: BTreeMap<(u64, u64), (Hash, Block)>,
    hashes: BTreeSet<Hash>,
    next: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Queue {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { blocks: BTreeMap::new(), hashes: BTreeSet::new(), next: 0, bytes: 0, bytes_max }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Whether a block waits.
    #[cfg(test)]
    fn has(&self, hash: Hash) -> bool {
        self.hashes.contains(&hash)
    }

    /// One more; what has to go for it, which may be itself.
    pub(crate) fn push(&mut self, hash: Hash, block: Block, again: bool) -> Vec<Block> {
        if !self.hashes.insert(hash) {
            return Vec::new();
        }
        self.bytes += u64::from(block.psize);
        self.blocks.insert((value(&block, again), self.next), (hash, block));
        self.next += 1;
        let mut dropped = Vec::new();
        while self.bytes > self.bytes_max
            && let Some((_, (hash, block))) = self.blocks.pop_first()
        {
            self.forget(hash, &block);
            dropped.push(block);
        }
        dropped
    }

    /// The most valuable ones, together at most `bytes` (but one at least), in the order in which they came.
    pub(crate) fn take(&mut self, bytes: u64) -> Vec<(Hash, Block)> {
        let mut taken = BTreeMap::new();
        let mut sum = 0;
        while let Some(entry) = self.blocks.last_entry() {
            sum += u64::from(entry.get().1.psize);
            if sum > bytes && !taken.is_empty() {
                break;
            }
            let ((_, number), (hash, block)) = entry.remove_entry();
            self.forget(hash, &block);
            taken.insert(number, (hash, block));
        }
        taken.into_values().collect()
    }

    /// Nobody will take what waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    fn forget(&mut self, hash: Hash, block: &Block) {
        self.hashes.remove(&hash);
        self.bytes -= u64::from(block.psize);
    }
}

/// Value per byte; `again`: it left memory before, and came back.
fn value(block: &Block, again: bool) -> u64 {
    let weight = 1u64 << (u8::from(block.metadata) + u8::from(block.frequent) + u8::from(again));
    (weight << 40) / u64::from(block.psize.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u64, psize: u32) -> Block {
        Block {
            dva: [8, n],
            birth: 1,
            lsize: psize,
            psize,
            compress: 2,
            level: 0,
            metadata: false,
            frequent: false,
            prefetched: false,
            eligible: true,
            is_part: false,
            data: bytes::Bytes::new(),
        }
    }

    #[test]
    fn when_it_is_full_the_least_valuable_goes_and_order_is_kept() {
        let mut queue = Queue::new(40_000);
        let large = Block { psize: 16384, ..block(1, 16384) };
        assert!(queue.push(Hash(1), large.clone(), false).is_empty());
        assert!(queue.push(Hash(2), Block { frequent: true, ..block(2, 16384) }, false).is_empty());
        assert!(queue.push(Hash(3), block(3, 4096), false).is_empty());
        assert!(queue.push(Hash(3), block(3, 4096), false).is_empty(), "it waits already");
        let dropped = queue.push(Hash(4), block(4, 8192), false);
        assert_eq!(dropped, [large]);
        assert!(queue.has(Hash(4)) && !queue.has(Hash(1)));
        assert_eq!(queue.bytes(), 28672);
        let taken: Vec<u64> = queue.take(30_000).iter().map(|(hash, _)| hash.0).collect();
        assert_eq!(taken, [2, 3, 4]);
        assert!(queue.is_empty() && queue.bytes() == 0);
    }

    #[test]
    fn a_block_larger_than_what_is_asked_for_is_taken_alone() {
        let mut queue = Queue::new(1 << 20);
        queue.push(Hash(1), block(1, 65536), false);
        queue.push(Hash(2), block(2, 65536), false);
        assert_eq!(queue.take(1).len(), 1);
        assert_eq!(queue.take(1).len(), 1);
        assert!(queue.take(1).is_empty());
    }
}
