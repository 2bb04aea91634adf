//! ARC as published (Megiddo and Modha, FAST 2003), to the digit.
//!
//! ```text
//!            new ▶ T1 (seen once) ─evicted▶ B1 (ghosts)      hit in T1, T2, B1 or B2 ▶ head of T2
//!                  T2 (seen again) ─evicted▶ B2 (ghosts)     hit in B1: p grows; in B2: p shrinks
//! ```
//! `p` is how much of the capacity T1 may have. It is what the reference results of the traces are made with, and
//! what a better policy has to beat at every size; nothing here is tuned.
//!
//! Generalised to blocks of different sizes so that blocks of size 1 give exactly the published steps: sizes are
//! compared where the paper compares lengths, and "if full" becomes "while it does not fit".
//!
//! Ghosts are whole list entries found through an [`Index`]: exact, and some 75 bytes per cached block. The
//! product's [`Adaptive`](crate::Adaptive) remembers them in 8 bytes each and is therefore not exact.

use crate::{
    index::Index,
    policy::{Block, GhostHits, Policy, Slot, Usage},
    slab::{List, Slab},
};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;
/// In place of a list: a free entry.
const FREE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    size: u32,
    list: u8,
}

/// Classic ARC.
#[derive(Clone, Debug)]
pub struct Arc {
    capacity: u64,
    /// Target size of T1; a double, as the reference has it.
    p: f64,
    lists: [List; 4],
    slab: Slab<Entry>,
    ghosts: Index,
    ghost_hits: GhostHits,
}

impl Arc {
    /// An empty one.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            p: 0.0,
            lists: [List::EMPTY; 4],
            slab: Slab::new(),
            ghosts: Index::default(),
            ghost_hits: GhostHits::default(),
        }
    }

    fn size(&self, list: usize) -> u64 {
        self.lists[list].size
    }

    fn held(&self) -> u64 {
        self.size(T1) + self.size(T2)
    }

    fn entry(&self, slot: Slot) -> Option<Entry> {
        let entry = *((slot.0 as usize) < self.slab.bound()).then(|| self.slab.get(slot.0))?;
        (usize::from(entry.list) <= T2).then_some(entry)
    }

    fn unlink(&mut self, at: u32) -> Entry {
        let entry = *self.slab.get(at);
        self.slab.unlink(&mut self.lists[usize::from(entry.list)], at, u64::from(entry.size));
        entry
    }

    fn push(&mut self, at: u32, list: usize) {
        let entry = self.slab.get_mut(at);
        entry.list = list as u8;
        let size = u64::from(entry.size);
        self.slab.push_head(&mut self.lists[list], at, size);
    }

    /// Takes an entry off its list and frees its place.
    fn drop_entry(&mut self, at: u32) {
        self.unlink(at);
        self.slab.get_mut(at).list = FREE;
        self.slab.give(at);
    }

    fn drop_ghost(&mut self, list: usize) -> bool {
        let Some(at) = self.lists[list].tail() else { return false };
        self.ghosts.remove(self.slab.get(at).id);
        self.drop_entry(at);
        true
    }

    /// The paper's REPLACE: one block becomes a ghost. `of_b2` says that the block that needs the room was in B2.
    fn replace(&mut self, of_b2: bool, evicted: &mut dyn FnMut(Slot)) -> bool {
        let t1 = self.size(T1);
        let from_t1 = t1 > 0 && (t1 as f64 > self.p || (of_b2 && t1 as f64 == self.p));
        let from = if from_t1 || self.size(T2) == 0 { T1 } else { T2 };
        let Some(at) = self.lists[from].tail() else { return false };
        // The ghost is an entry of its own, because the block's place is the cache's to see freed.
        let entry = *self.slab.get(at);
        self.drop_entry(at);
        evicted(Slot(at));
        let ghost = self.slab.take(entry);
        self.push(ghost, from + B1);
        self.ghosts.insert(entry.id, ghost);
        true
    }

    /// A ghost's block comes back.
    fn revive(&mut self, ghost: u32, block: Block, evicted: &mut dyn FnMut(Slot)) {
        let (b1, b2) = (self.size(B1) as f64, self.size(B2) as f64);
        let of_b2 = usize::from(self.slab.get(ghost).list) == B2;
        let weight = f64::from(block.size);
        if of_b2 {
            self.ghost_hits.frequent += 1;
        } else {
            self.ghost_hits.recent += 1;
        }
        self.p = if of_b2 {
            (self.p - (b1 / b2).max(1.0) * weight).max(0.0)
        } else {
            (self.p + (b2 / b1).max(1.0) * weight).min(self.capacity as f64)
        };
        self.ghosts.remove(block.id);
        self.drop_entry(ghost);
        while self.held() + u64::from(block.size) > self.capacity && self.replace(of_b2, evicted) {}
    }

    /// A block nobody remembers comes in.
    fn admit(&mut self, size: u64, evicted: &mut dyn FnMut(Slot)) {
        while self.held() + size > self.capacity {
            if self.size(T1) + self.size(B1) + size > self.capacity {
                if self.drop_ghost(B1) {
                    self.replace(false, evicted);
                } else {
                    let Some(at) = self.lists[T1].tail() else { break };
                    self.drop_entry(at);
                    evicted(Slot(at));
                }
            } else {
                if self.held() + self.size(B1) + self.size(B2) + size > 2 * self.capacity {
                    self.drop_ghost(B2);
                }
                self.replace(false, evicted);
            }
        }
    }
}

impl Policy for Arc {
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot> {
        debug_assert!(block.size > 0, "a block of no size would never be evicted");
        if u64::from(block.size) > self.capacity {
            return None;
        }
        let list = match self.ghosts.get(block.id) {
            Some(ghost) => {
                self.revive(ghost, block, evicted);
                T2
            }
            None => {
                self.admit(u64::from(block.size), evicted);
                T1
            }
        };
        let at = self.slab.take(Entry { id: block.id, size: block.size, list: FREE });
        self.push(at, list);
        // Blocks of unequal sizes can leave more ghosts than the paper allows; the tail goes.
        while self.size(T1) + self.size(B1) > self.capacity && self.drop_ghost(B1) {}
        while self.lists.iter().map(|list| list.size).sum::<u64>() > 2 * self.capacity && self.drop_ghost(B2)
        {
        }
        Some(Slot(at))
    }

    fn hit(&mut self, slot: Slot) {
        if self.entry(slot).is_some() {
            self.unlink(slot.0);
            self.push(slot.0, T2);
        }
    }

    fn is_frequent(&self, slot: Slot) -> bool {
        self.entry(slot).is_some_and(|entry| usize::from(entry.list) == T2)
    }

    fn remove(&mut self, slot: Slot) {
        if self.entry(slot).is_some() {
            self.drop_entry(slot.0);
        }
    }

    fn compact(&mut self, most: usize, moved: &mut dyn FnMut(Slot, Slot)) -> bool {
        let Self { slab, lists, ghosts, .. } = self;
        if !slab.is_loose() {
            return false;
        }
        let list_of = |entry: &Entry| Some(usize::from(entry.list)).filter(|list| *list <= B2);
        let is_done = slab.compact(lists, most, list_of, |entry, from, to| {
            if usize::from(entry.list) <= T2 {
                moved(Slot(from), Slot(to));
            } else {
                ghosts.insert(entry.id, to);
            }
        });
        if is_done {
            ghosts.shrink();
        }
        !is_done
    }

    fn places(&self) -> usize {
        self.slab.bound()
    }

    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        self.capacity = capacity;
        self.p = self.p.min(capacity as f64);
        while self.held() > capacity && self.replace(false, evicted) {}
        while self.size(T1) + self.size(B1) > capacity && self.drop_ghost(B1) {}
        while self.lists.iter().map(|list| list.size).sum::<u64>() > 2 * capacity && self.drop_ghost(B2) {}
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn usage(&self) -> Usage {
        Usage {
            recent: self.size(T1),
            frequent: self.size(T2),
            recent_ghosts: self.size(B1),
            frequent_ghosts: self.size(B2),
            recent_target: self.p as u64,
        }
    }

    fn ghost_hits(&self) -> GhostHits {
        self.ghost_hits
    }

    fn rules(&self) -> &'static str {
        "arc"
    }

    fn memory(&self) -> usize {
        self.slab.memory() + self.ghosts.memory()
    }
}
