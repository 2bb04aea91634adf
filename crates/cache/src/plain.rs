//! LRU and FIFO: one list, the yardsticks that everybody knows.

use crate::{
    policy::{Block, GhostHits, Policy, Slot, Usage},
    slab::{List, Slab},
};

/// What a hit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Moves the block to the head.
    LastUse,
    /// Nothing.
    Arrival,
}

/// One list: what has been there longest goes. Counts as `recent` in [`Usage`].
#[derive(Clone, Debug)]
pub struct Plain {
    capacity: u64,
    order: Order,
    list: List,
    /// Size of each block; 0 marks a free place.
    slab: Slab<u32>,
}

impl Plain {
    /// Least recently used goes first.
    #[must_use]
    pub const fn lru(capacity: u64) -> Self {
        Self::new(capacity, Order::LastUse)
    }

    /// First in, first out.
    #[must_use]
    pub const fn fifo(capacity: u64) -> Self {
        Self::new(capacity, Order::Arrival)
    }

    const fn new(capacity: u64, order: Order) -> Self {
        Self { capacity, order, list: List::EMPTY, slab: Slab::new() }
    }

    /// The block's size, if there is one.
    fn size(&self, slot: Slot) -> Option<u64> {
        let held = (slot.0 as usize) < self.slab.bound() && *self.slab.get(slot.0) != 0;
        held.then(|| u64::from(*self.slab.get(slot.0)))
    }

    fn forget(&mut self, at: u32, size: u64) {
        self.slab.unlink(&mut self.list, at, size);
        *self.slab.get_mut(at) = 0;
        self.slab.give(at);
    }

    fn make_room(&mut self, limit: u64, evicted: &mut dyn FnMut(Slot)) {
        while self.list.size > limit
            && let Some(at) = self.list.tail()
        {
            self.forget(at, u64::from(*self.slab.get(at)));
            evicted(Slot(at));
        }
    }
}

impl Policy for Plain {
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot> {
        debug_assert!(block.size > 0, "a block of no size would never be evicted");
        let size = u64::from(block.size);
        self.make_room(self.capacity.checked_sub(size)?, evicted);
        let at = self.slab.take(block.size);
        self.slab.push_head(&mut self.list, at, size);
        Some(Slot(at))
    }

    fn hit(&mut self, slot: Slot) {
        if self.order == Order::LastUse
            && let Some(size) = self.size(slot)
        {
            self.slab.unlink(&mut self.list, slot.0, size);
            self.slab.push_head(&mut self.list, slot.0, size);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(size) = self.size(slot) {
            self.forget(slot.0, size);
        }
    }

    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        self.capacity = capacity;
        self.make_room(capacity, evicted);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn usage(&self) -> Usage {
        Usage { recent: self.list.size, recent_target: self.capacity, ..Usage::default() }
    }

    fn ghost_hits(&self) -> GhostHits {
        GhostHits::default()
    }

    fn rules(&self) -> &'static str {
        match self.order {
            Order::LastUse => "lru",
            _ => "fifo",
        }
    }

    fn memory(&self) -> usize {
        self.slab.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: u64, size: u32) -> Block {
        Block { id, size }
    }

    #[test]
    fn a_hit_saves_a_block_from_lru_and_not_from_fifo() {
        for (mut policy, goes) in [(Plain::lru(2), 1), (Plain::fifo(2), 0)] {
            let slots =
                [1, 2].map(|id| policy.insert(block(id, 1), &mut |_| panic!("there is room")).unwrap());
            policy.hit(slots[0]);
            let mut gone = Vec::new();
            policy.insert(block(3, 1), &mut |slot| gone.push(slot));
            assert_eq!(gone, [slots[goes]]);
        }
    }

    #[test]
    fn large_blocks_push_out_many_and_too_large_ones_none() {
        let mut policy = Plain::lru(10);
        for id in 0..10 {
            policy.insert(block(id, 1), &mut |_| panic!("there is room"));
        }
        assert_eq!(policy.insert(block(10, 11), &mut |_| panic!("nothing goes for it")), None);
        let mut gone = 0;
        policy.insert(block(11, 7), &mut |_| gone += 1);
        assert_eq!((gone, policy.usage().recent), (7, 10));
        policy.set_capacity(8, &mut |_| gone += 1);
        assert_eq!((gone, policy.usage().recent), (9, 8));
    }
}
