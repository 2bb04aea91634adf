//! Keeping within the budget: what blocks may have, what has to leave for it, and where that goes.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::{BufMut as _, Bytes};
use disk::Landing;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    BlockCache, Class, Gone, HOT, OVERHEAD, PINNED, Stored, Transfer, WRITTEN_TOGETHER, Written, footprint,
    hot::Seen,
    ranks::{Going, Ranks, UNIT},
    shard::{Entry, Shard},
};

/// Bytes that leave at a time when the budget shrinks by much: about a millisecond, in which misses wait.
const SLICE: usize = 8 << 20;

/// Blocks whose places in the policies are moved under one lock: some milliseconds.
const MOVED_AT_ONCE: usize = 8192;

impl BlockCache {
    /// A step on the way to another budget; true when it is there. A larger one is there at once. Whoever takes memory
    /// away in steps lets others at the cache in between.
    pub fn approach(&self, budget: usize) -> bool {
        let now = self.budget.load(Relaxed);
        // What tables give back need not leave.
        if self.tighten() && budget < now {
            return false;
        }
        let next = if budget < now {
            // What it may have and has not is no work.
            budget.max(now.min(self.size()).saturating_sub(SLICE))
        } else {
            budget
        };
        if next != now {
            self.put_budget(next);
        }
        next == budget && !self.is_loose.load(Relaxed)
    }

    fn put_budget(&self, budget: usize) {
        let before = self.budget.swap(budget, Relaxed);
        self.budget_max.fetch_max(budget, Relaxed);
        self.feed.fit(budget, self.stripes.demand());
        let mut gone = Gone::new();
        {
            let mut ranks = self.ranks.lock();
            self.hot_budget.fetch_min(budget / HOT, Relaxed);
            let whole = (budget / UNIT) as u64;
            if ranks.is_unfit(whole) {
                ranks.begin_anew(whole);
                self.fit(&mut ranks, &mut gone);
                self.rank_all(&mut ranks, &mut gone);
            }
            self.fit(&mut ranks, &mut gone);
        }
        self.shrink_hot();
        self.let_go(gone, true);
        if budget < before {
            self.is_loose.store(true, Relaxed);
        }
        self.rescue();
    }

    /// Policies that know of no block get to know all that are here, in no particular order. Only a small cache, or one on
    /// the way to that, gets others.
    fn rank_all(&self, ranks: &mut Ranks, gone: &mut Gone) {
        for shard in &self.shards {
            let mut going = Going::new();
            for entry in shard.lock().entries_mut() {
                let Some(slot) = ranks.insert(entry.class, entry.key.id, entry.units, &mut going) else {
                    going.push(entry.key.id);
                    continue;
                };
                entry.slot = slot;
                if entry.is_frequent {
                    ranks.hits(entry.class, &[slot]);
                }
            }
            self.take_out(ranks, &going, gone);
        }
    }

    /// Gives a little of the memory of tables back that were made for far more blocks, if there may be such; true if there
    /// is more to be done.
    pub(super) fn tighten(&self) -> bool {
        let is_more = self.is_loose.swap(false, Relaxed) && self.tighten_some();
        if is_more {
            self.is_loose.store(true, Relaxed);
        }
        is_more
    }

    fn tighten_some(&self) -> bool {
        let mut moved = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.is_loose() {
                if moved >= MOVED_AT_ONCE {
                    return true;
                }
                self.resize(&mut shard, Shard::shrink);
                moved += shard.entries_mut().len();
            }
        }
        let mut gone = Gone::new();
        let is_more = {
            let mut ranks = self.ranks.lock();
            let is_more = ranks.compact(MOVED_AT_ONCE, &mut |id, slot| {
                if let Some(entry) = self.shard(id).lock().by_id(id) {
                    entry.slot = slot;
                }
            });
            self.fit(&mut ranks, &mut gone);
            is_more
        };
        self.let_go(gone, true);
        is_more
    }

    /// Bytes it holds, bookkeeping included.
    #[must_use]
    pub fn size(&self) -> usize {
        let ranks = self.ranks.lock();
        let charged: u64 = ranks.held.iter().map(|held| held.charged).sum();
        usize::try_from(charged).unwrap_or(usize::MAX) + self.hot.taken() + self.fixed(&ranks, 0)
    }

    /// Changes a shard, and counts what its tables take.
    pub(super) fn resize<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.memory();
        let result = change(shard);
        let after = shard.memory();
        if after != before {
            // Wraps where it shrinks, as the sum does.
            self.tables.fetch_add(after.wrapping_sub(before), Relaxed);
        }
        result
    }

    /// Bytes that blocks cannot have: bookkeeping, and of the memory of half-used transfers at most `pinned_max`
    /// (0: all).
    pub(super) fn fixed(&self, ranks: &Ranks, pinned_max: usize) -> usize {
        let pinned = self.pinned.bytes();
        let pinned = if pinned_max == 0 { pinned } else { pinned.min(pinned_max) };
        size_of::<Self>()
            + self.shards.len() * size_of::<Mutex<Shard>>()
            + self.stripes.memory()
            + self.hot.memory()
            + self.feed.memory()
            + self.tables.load(Relaxed)
            + ranks.memory()
            + pinned
    }

    /// Gives the policies what the rest leaves of the budget. Where only a little has changed nothing does.
    pub(super) fn fit(&self, ranks: &mut Ranks, gone: &mut Gone) {
        let budget = self.budget.load(Relaxed);
        let slack = (budget / UNIT / 256) as u64;
        // What goes may leave the rest of its transfer pinned, so it is looked at again.
        for _ in 0..8 {
            let pinned_max = (budget / PINNED).max(1);
            let rest = self.fixed(ranks, pinned_max) + self.hot_budget.load(Relaxed);
            let allowed = (budget.saturating_sub(rest) / UNIT) as u64;
            let whole = ranks.capacity();
            if whole <= allowed && whole + 4 * slack >= allowed {
                return;
            }
            let mut going = Going::new();
            ranks.set_whole(allowed.saturating_sub(slack), &mut going);
            self.take_out(ranks, &going, gone);
            if whole <= allowed || going.is_empty() {
                return;
            }
        }
    }

    /// Applies what became pinned outside of an insertion.
    pub(super) fn settle(&self) {
        let mut gone = Gone::new();
        self.fit(&mut self.ranks.lock(), &mut gone);
        self.let_go(gone, true);
        self.rescue();
    }

    /// Takes what the policies gave up out of the shards.
    pub(super) fn take_out(&self, ranks: &mut Ranks, going: &[u64], gone: &mut Gone) {
        for id in going {
            let entry = self.shard(*id).lock().remove(*id);
            if let Some(entry) = entry {
                self.account(ranks, &entry);
                gone.push(entry);
            }
        }
    }

    /// Takes a block out that the policies would keep.
    pub(super) fn remove(&self, ranks: &mut Ranks, id: u64, gone: &mut Gone) {
        let entry = self.shard(id).lock().remove(id);
        if let Some(entry) = entry {
            self.removed(ranks, entry, gone);
        }
    }

    /// A block was taken out of its shard: the policies are told.
    pub(super) fn removed(&self, ranks: &mut Ranks, entry: Entry, gone: &mut Gone) {
        ranks.remove(entry.class, entry.slot);
        self.account(ranks, &entry);
        gone.push(entry);
    }

    pub(super) fn account(&self, ranks: &mut Ranks, entry: &Entry) {
        let held = &mut ranks.held[entry.class as usize];
        held.blocks -= 1;
        held.charged -= u64::from(entry.units) * UNIT as u64;
        held.held -= entry.held.len() as u64;
        held.content -= u64::from(entry.lsize);
        if let Some(transfer) = &entry.transfer {
            self.pinned.detach(transfer, entry.held.len());
        }
        if let Some(hot) = &entry.hot {
            self.hot.left(entry.class, footprint(hot.len()) + OVERHEAD);
        }
    }

    /// Frees what left, without a lock; the tier below may have what was `evicted`.
    pub(super) fn let_go(&self, gone: Gone, evicted: bool) {
        for entry in gone {
            self.left.blocks.fetch_add(1, Relaxed);
            if !evicted {
                continue;
            }
            let is_frequent = entry.is_frequent;
            let below = entry.origin.below().filter(|_| entry.is_stored);
            let (lsize, stored) = (entry.lsize, stored(entry));
            let fate = match below {
                Some(below) => below.evicted(stored),
                None => stored.fate(),
            };
            self.left.content[fate as usize][usize::from(is_frequent)].fetch_add(lsize.into(), Relaxed);
        }
    }

    /// What copies leave of their part when they go is for blocks again. All changes of that part are made under the lock of
    /// the ranks, which `_ranks` stands for; not in [`fit`](Self::fit), which makes room for a copy that is just coming.
    pub(super) fn reclaim_hot(&self, _ranks: &mut Ranks) {
        // A copy that goes to make room for the next is not worth it, nor is a little.
        let step = self.budget.load(Relaxed) / HOT / 8;
        if self.hot_budget.load(Relaxed) > self.hot.taken() + 2 * step {
            self.hot.lower(&self.hot_budget, step);
        }
    }

    /// Takes memory for a hot copy; what all of them may have grows up to its bound as it is needed.
    pub(super) fn take_hot(&self, class: Class, len: usize) -> bool {
        let budget = self.budget.load(Relaxed);
        let most = budget / HOT;
        let wanted = self.hot.taken() + len;
        if wanted > self.hot_budget.load(Relaxed) && self.hot_budget.load(Relaxed) < most {
            let mut gone = Gone::new();
            {
                let mut ranks = self.ranks.lock();
                // The budget may be another one by now.
                let most = self.budget.load(Relaxed) / HOT;
                self.hot_budget.fetch_max((wanted + most / 8).min(most), Relaxed);
                self.fit(&mut ranks, &mut gone);
            }
            self.let_go(gone, true);
        }
        let mut dropped: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.hot.take(class, len, &self.hot_budget, &mut |id| self.cool(id, &mut dropped))
    }

    pub(super) fn shrink_hot(&self) {
        let mut dropped: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.hot.shrink(&self.hot_budget, &mut |id| self.cool(id, &mut dropped));
    }

    /// The hand of the CLOCK comes by a hot copy.
    pub(super) fn cool(&self, id: u64, dropped: &mut SmallVec<[Bytes; 4]>) -> Seen {
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.by_id(id).filter(|entry| entry.hot.is_some()) else { return Seen::Stale };
        if entry.heat > 0 {
            entry.heat -= 1;
            return Seen::Stays;
        }
        if let Some(hot) = entry.hot.take() {
            self.hot.left(entry.class, footprint(hot.len()) + OVERHEAD);
            dropped.push(hot);
        }
        Seen::Dropped
    }

    /// What a block that is being written shares its memory with: those written just before, if it lies right behind the
    /// last of them. Most lie in memory of their own (`disk::Landings`): they are no part of anything.
    pub(super) fn written_together(&self, held: &Bytes, goes_on: bool) -> Option<Arc<Transfer>> {
        let range = held.as_ptr_range();
        let mut written = self.written.lock();
        let (transfer, before) = match written.take() {
            Some(Written { transfer, total, end })
                if end == range.start.addr() && total + held.len() <= WRITTEN_TOGETHER =>
            {
                (transfer, total)
            }
            ended => {
                if let Some(Written { transfer, total, .. }) = ended {
                    self.pinned.close(&transfer, total);
                }
                if !goes_on {
                    return None;
                }
                (Transfer::new(), 0)
            }
        };
        let total = before + held.len();
        *written = Some(Written { transfer: Arc::clone(&transfer), total, end: range.end.addr() });
        Some(transfer)
    }

    /// Gives the survivors of half-used transfers memory of their own, oldest first, until little is pinned.
    pub(super) fn rescue(&self) {
        let limit = self.budget.load(Relaxed) / PINNED;
        while self.pinned.bytes() > limit {
            let Some(transfer) = self.pinned.oldest() else { return };
            for id in transfer.ids() {
                let is_part = |entry: &&mut Entry| {
                    entry.transfer.as_ref().is_some_and(|shared| Arc::ptr_eq(shared, &transfer))
                };
                let part = self.shard(id).lock().by_id(id).filter(is_part).map(|entry| entry.held.clone());
                let Some(part) = part else { continue };
                let mut own = Landing::new(part.len());
                own.put_slice(&part);
                let own = own.freeze();
                let len = own.len();
                let mut shard = self.shard(id).lock();
                if let Some(entry) = shard.by_id(id).filter(is_part) {
                    let part = std::mem::replace(&mut entry.held, own);
                    entry.transfer = None;
                    drop(shard);
                    drop(part);
                    self.pinned.detach(&transfer, len);
                }
            }
        }
    }
}

/// A block as the tier below gets it, or would.
fn stored(entry: Entry) -> Stored {
    Stored {
        pool: entry.origin.guid,
        dva: entry.key.dva,
        birth: entry.key.birth,
        lsize: entry.lsize,
        psize: entry.held.len() as u32,
        compress: entry.compress,
        level: entry.level,
        metadata: entry.class == Class::Metadata,
        frequent: entry.is_frequent,
        prefetched: entry.is_prefetched,
        eligible: entry.is_eligible && entry.is_stored,
        is_part: entry.transfer.is_some(),
        data: entry.held,
    }
}
