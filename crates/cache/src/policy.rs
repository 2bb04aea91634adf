//! What a replacement policy is to the cache that holds the blocks.

/// A place a policy gave to a block it keeps. The cache stores it beside the block and names it at each hit, so
/// that a hit needs no lookup here. It is free for another block as soon as the policy reports the eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A block that comes into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Hash of the block's identity (pool, address, birth), well spread over all 64 bits: see [`mix`](crate::mix).
    /// Ghosts are known by it, or by half of it.
    pub id: u64,
    /// What it takes of the capacity: bytes in a cache, 1 in a simulation of blocks. Not 0.
    pub size: u32,
}

/// What a policy holds now, in its units and in the words of ARC: policies with fewer lists leave some at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Seen once recently (`mru`).
    pub recent: u64,
    /// Seen several times (`mfu`).
    pub frequent: u64,
    /// Evicted from `recent` and remembered without data, in the units of capacity (`mru_ghost`).
    pub recent_ghosts: u64,
    /// Evicted from `frequent` (`mfu_ghost`).
    pub frequent_ghosts: u64,
    /// The share of `recent` that the policy aims at, in units of capacity (`p`).
    pub recent_target: u64,
}

/// How often a block came in that was remembered without data, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GhostHits {
    /// It had been evicted from `recent` (`mru_ghost_hits`).
    pub recent: u64,
    /// From `frequent` (`mfu_ghost_hits`).
    pub frequent: u64,
}

/// Decides what stays. A plain value: no lock, no clock, no randomness of its own, no data of blocks.
///
/// The cache keeps the blocks and a map from key to [`Slot`]. It calls [`hit`](Self::hit) for a block it has,
/// in the order of accesses or in small batches some time later; [`insert`](Self::insert) for one it had to
/// read. Sizes of all kept blocks together never exceed the capacity when a call returns.
pub trait Policy: Send {
    /// A block that is not here comes in: gives it a place, and names those that must go, each once, before it
    /// returns. A block larger than the capacity is refused: `None`, and nothing changes.
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot>;

    /// A kept block was used. One that is not here any more is passed over: a batch may be late.
    fn hit(&mut self, slot: Slot);

    /// Kept blocks were used, in this order: the same as [`hit`](Self::hit) for each.
    fn hits(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.hit(*slot);
        }
    }

    /// Whether a kept block is known to have been used more than once: it was used again here, or came back while it was
    /// remembered.
    fn is_frequent(&self, _slot: Slot) -> bool {
        false
    }

    /// A kept block became worthless (freed, overwritten): its place is given up without a ghost. One that is
    /// not here is passed over.
    fn remove(&mut self, slot: Slot);

    /// Kept blocks get other places, so that those which far more blocks had before need no memory: `most` of them at the
    /// most, and `moved` is told each one's place before and now. True if there is more to be done.
    fn compact(&mut self, _most: usize, _moved: &mut dyn FnMut(Slot, Slot)) -> bool {
        false
    }

    /// Places of kept blocks are below this.
    fn places(&self) -> usize {
        usize::MAX
    }

    /// Changes the capacity and names what must go for it.
    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot));

    /// Units it may hold.
    fn capacity(&self) -> u64;

    /// What it holds.
    fn usage(&self) -> Usage;

    /// How often it could have kept what it gave up.
    fn ghost_hits(&self) -> GhostHits;

    /// The name of the rules it follows now.
    fn rules(&self) -> &'static str;

    /// How often it changed them.
    fn switches(&self) -> u64 {
        0
    }

    /// Bytes of memory it has allocated: to be charged to the same budget as the blocks.
    fn memory(&self) -> usize;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot> {
        (**self).insert(block, evicted)
    }
    fn hit(&mut self, slot: Slot) {
        (**self).hit(slot);
    }
    fn hits(&mut self, slots: &[Slot]) {
        (**self).hits(slots);
    }
    fn is_frequent(&self, slot: Slot) -> bool {
        (**self).is_frequent(slot)
    }
    fn remove(&mut self, slot: Slot) {
        (**self).remove(slot);
    }
    fn compact(&mut self, most: usize, moved: &mut dyn FnMut(Slot, Slot)) -> bool {
        (**self).compact(most, moved)
    }
    fn places(&self) -> usize {
        (**self).places()
    }
    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        (**self).set_capacity(capacity, evicted);
    }
    fn capacity(&self) -> u64 {
        (**self).capacity()
    }
    fn usage(&self) -> Usage {
        (**self).usage()
    }
    fn ghost_hits(&self) -> GhostHits {
        (**self).ghost_hits()
    }
    fn rules(&self) -> &'static str {
        (**self).rules()
    }
    fn switches(&self) -> u64 {
        (**self).switches()
    }
    fn memory(&self) -> usize {
        (**self).memory()
    }
}
