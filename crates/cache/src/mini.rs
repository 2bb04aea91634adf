//! A miniature cache: one rule set at a small scale, on the blocks whose hash falls in the sample.
//!
//! With one block in 2^r sampled and a capacity 2^r times smaller it misses as the full cache would, to about a
//! hundredth when it holds a thousand blocks; two rule sets on the same sample err alike, so that their
//! *difference* is better known than either.

use crate::{
    index::Index,
    mix,
    policy::{Block, Policy, Slot},
    queues::Queues,
    rules::Rules,
};

/// Which blocks are sampled: one in `2^rate`, by their half identity.
pub(crate) const fn is_sampled(tag: u32, rate: u32) -> bool {
    // The product's upper bits: the tag itself chooses buckets of ghosts, which must stay evenly filled.
    rate == 0 || tag.wrapping_mul(0x9e37_79b1) >> (u32::BITS - rate) == 0
}

/// The cache.
#[derive(Clone, Debug)]
pub(crate) struct Mini {
    queues: Queues,
    places: Index<u32>,
    /// The block in each place.
    tags: Vec<u32>,
}

impl Mini {
    pub(crate) fn new(capacity: u64, rules: Rules) -> Self {
        Self { queues: Queues::new(capacity, rules), places: Index::default(), tags: Vec::new() }
    }

    /// Blocks held.
    pub(crate) const fn len(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn memory(&self) -> usize {
        self.queues.memory() + self.places.memory() + self.tags.capacity() * size_of::<u32>()
    }

    /// One access to a sampled block; whether it was here.
    pub(crate) fn access(&mut self, tag: u32, size: u32) -> bool {
        if let Some(at) = self.places.get(tag) {
            self.queues.hit(Slot(at));
            return true;
        }
        let Self { queues, places, tags } = self;
        let block = Block { id: mix(u64::from(tag)), size };
        let slot = queues.insert(block, &mut |slot| {
            places.remove(tags[slot.0 as usize]);
        });
        if let Some(Slot(at)) = slot {
            if tags.len() <= at as usize {
                tags.resize(at as usize + 1, 0);
            }
            tags[at as usize] = tag;
            places.insert(tag, at);
        }
        false
    }

    /// A sampled block became worthless.
    pub(crate) fn remove(&mut self, tag: u32) {
        if let Some(at) = self.places.remove(tag) {
            self.queues.remove(Slot(at));
        }
    }

    /// The sample became smaller, and the cache with it.
    pub(crate) fn thin(&mut self, rate: u32, capacity: u64) {
        for (at, tag) in self.tags.iter().enumerate() {
            let at = at as u32;
            if !is_sampled(*tag, rate) && self.places.get(*tag) == Some(at) {
                self.places.remove(*tag);
                self.queues.remove(Slot(at));
            }
        }
        self.resize(capacity);
    }

    /// Another capacity for the same sample.
    pub(crate) fn resize(&mut self, capacity: u64) {
        let Self { queues, places, tags } = self;
        queues.set_capacity(capacity, &mut |slot| {
            places.remove(tags[slot.0 as usize]);
        });
    }
}
