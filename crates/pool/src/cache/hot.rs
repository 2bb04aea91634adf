//! Copies of contents: blocks are held as they are stored, and those in use are also held decompressed, within a budget
//! of its own.
//!
//! A CLOCK over the identities of such blocks: who comes by a copy that was used since takes off one of its rounds,
//! and drops one that has none left. Room is made before a copy comes in, so the budget holds at every moment.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::Class;

/// What the hand finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The block or its copy is gone.
    Stale,
    /// It stays for another round.
    Stays,
    /// Its copy was dropped just now.
    Dropped,
}

/// See the module. The copies themselves are in the shards.
#[derive(Debug, Default)]
pub(super) struct Hot {
    /// Bytes of copies, of those on their way in too, by class.
    bytes: [AtomicUsize; 2],
    copies: AtomicUsize,
    ring: Mutex<VecDeque<u64>>,
}

impl Hot {
    pub(super) fn taken(&self) -> usize {
        self.bytes().iter().sum()
    }

    pub(super) fn bytes(&self) -> [usize; 2] {
        [self.bytes[0].load(Relaxed), self.bytes[1].load(Relaxed)]
    }

    /// Takes `len` bytes of `budget` for a copy; `visit` says what becomes of the copy of a block. False if they cannot
    /// be had. The budget is looked at behind the lock: somebody may just be [lowering](Self::lower) it.
    pub(super) fn take(
        &self,
        class: Class,
        len: usize,
        budget: &AtomicUsize,
        visit: &mut dyn FnMut(u64) -> Seen,
    ) -> bool {
        let mut ring = self.ring.lock();
        let budget = budget.load(Relaxed);
        if len > budget / 2 {
            return false;
        }
        self.sweep(&mut ring, budget - len, visit);
        if self.taken() + len > budget {
            return false;
        }
        self.bytes[class as usize].fetch_add(len, Relaxed);
        self.copies.fetch_add(1, Relaxed);
        true
    }

    /// Drops copies until `budget` bytes are kept.
    pub(super) fn shrink(&self, budget: &AtomicUsize, visit: &mut dyn FnMut(u64) -> Seen) {
        let mut ring = self.ring.lock();
        self.sweep(&mut ring, budget.load(Relaxed), visit);
    }

    /// Lowers `budget` to what copies have now and `spare` more. Not while somebody takes some: that is for the next time.
    pub(super) fn lower(&self, budget: &AtomicUsize, spare: usize) {
        if let Some(_no_copy_comes) = self.ring.try_lock() {
            budget.fetch_min(self.taken() + spare, Relaxed);
        }
    }

    fn sweep(&self, ring: &mut VecDeque<u64>, budget: usize, visit: &mut dyn FnMut(u64) -> Seen) {
        // A copy that is used all the time has a handful of rounds; the bound is for those who use it meanwhile.
        let mut left = 8 * ring.len();
        while self.taken() > budget && left > 0 {
            left -= 1;
            let Some(id) = ring.pop_front() else { return };
            if visit(id) == Seen::Stays {
                ring.push_back(id);
            }
        }
    }

    /// A copy came in for which bytes were taken.
    pub(super) fn came(&self, id: u64, is_here: impl Fn(u64) -> bool) {
        let most = 2 * self.copies.load(Relaxed) + 64;
        let mut ring = self.ring.lock();
        ring.push_back(id);
        if ring.len() > most {
            // Blocks that were evicted left their names here.
            let mut seen = BTreeSet::new();
            ring.retain(|id| is_here(*id) && seen.insert(*id));
            ring.shrink_to(most);
        }
    }

    /// One left, or did not come in after all.
    pub(super) fn left(&self, class: Class, len: usize) {
        self.bytes[class as usize].fetch_sub(len, Relaxed);
        self.copies.fetch_sub(1, Relaxed);
    }

    pub(super) fn memory(&self) -> usize {
        // Without the lock: a name for each copy, twice.
        (2 * self.copies.load(Relaxed) + 64) * size_of::<u64>()
    }
}
