//! A cache without bytes, for a part of the blocks: a policy at a small scale, and which block is in which of its places.
//!
//! With one block in 2^r and a capacity 2^r times smaller it misses as the whole cache would. Unlike a
//! [`Mini`](crate::mini::Mini) it runs any policy, the default with its own miniatures too, and says what it evicts.

use crate::{
    index::Index,
    policy::{Block, Policy, Slot},
};

/// A block in a place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) id: u64,
    pub(crate) size: u32,
    /// Whose it is, for the caller.
    pub(crate) group: u32,
    /// A cache device may have it.
    pub(crate) is_eligible: bool,
}

pub(crate) struct Model {
    policy: Box<dyn Policy>,
    places: Index,
    kept: Vec<Kept>,
}

impl Model {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, places: Index::default(), kept: Vec::new() }
    }

    /// Blocks held.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn memory(&self) -> usize {
        self.policy.memory() + self.places.memory() + self.kept.capacity() * size_of::<Kept>()
    }

    /// A block, if it is here. Not a use.
    pub(crate) fn find(&self, id: u64) -> Option<Kept> {
        self.places.get(id).map(|at| self.kept[at as usize])
    }

    /// A use of a block, which comes in if it is not here; whether it was, and what went for it.
    pub(crate) fn access(&mut self, block: Kept, evicted: &mut dyn FnMut(Kept)) -> bool {
        if let Some(at) = self.places.get(block.id) {
            self.policy.hit(Slot(at));
            return true;
        }
        let Self { policy, places, kept } = self;
        let slot = policy.insert(Block { id: block.id, size: block.size }, &mut |slot| {
            let gone = kept[slot.0 as usize];
            places.remove(gone.id);
            evicted(gone);
        });
        if let Some(Slot(at)) = slot {
            if kept.len() <= at as usize {
                kept.resize(at as usize + 1, Kept::default());
            }
            kept[at as usize] = block;
            places.insert(block.id, at);
        }
        false
    }

    /// A block became worthless.
    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(at) = self.places.remove(id) {
            self.policy.remove(Slot(at));
        }
    }

    /// Keeps only some blocks, in a cache of another size.
    pub(crate) fn thin(&mut self, capacity: u64, keep: &dyn Fn(u64) -> bool) {
        for (at, block) in self.kept.iter().enumerate() {
            let at = at as u32;
            if self.places.get(block.id) == Some(at) && !keep(block.id) {
                self.places.remove(block.id);
                self.policy.remove(Slot(at));
            }
        }
        self.resize(capacity);
    }

    pub(crate) fn resize(&mut self, capacity: u64) {
        if self.policy.capacity() == capacity {
            return;
        }
        let Self { policy, places, kept } = self;
        policy.set_capacity(capacity, &mut |slot| {
            places.remove(kept[slot.0 as usize].id);
        });
    }
}
