//! The ARC: blocks in memory, found by where they lie and when they were born. One for all pools of a daemon.
//!
//! ```text
//!   find ──▶ shard (map, blocks) ──hit──▶ content, or stored form to be decompressed by the caller
//!               ▲         └──▶ note in the thread's stripe ···later···┐
//!   insert ──▶ ranks (policies for data and metadata) ◀───────────────┘
//!                └──▶ who must go ──▶ out of the shards ──▶ Below
//! ```
//!
//! * [`key`]: what a block is; [`shard`]: where it is; [`ranks`]: whether it stays; [`hot`]: decompressed copies;
//!   [`transfer`]: memory that several blocks share; [`notes`]: what hits leave behind; [`clock`]: which uses are one;
//!   [`below`]: the second tier.
//! * Blocks are held as they are stored. Those that were compressed and are in use are held decompressed as well, in
//!   up to an eighth of the budget.
//! * Bytes: a block is charged the memory it takes; what the map, the policies, half-used transfers and copies take is
//!   subtracted from what the policies may fill. So the whole is within the budget whenever a call returns.
//! * Locks, in this order: ranks or the ring of hot copies; then one shard. A hit takes one shard, and tries the ranks
//!   once in 64 notes. Nothing is freed, and nothing is told to the tier below, under the ranks' lock.
//!
//! Why so, and what was measured: docs/decisions/0010 and 0011. Counters: docs/format/arc.md.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use disk::IoBuf;
use parking_lot::Mutex;
use smallvec::SmallVec;

mod below;
mod clock;
mod hot;
mod key;
mod notes;
mod ranks;
mod shard;
mod stats;
mod transfer;

#[cfg(test)]
mod tests;

pub(crate) use below::Origin;
pub use below::{Below, BelowFuture, Stored};
use clock::Clock;
use hot::{Hot, Seen};
pub use key::{Access, Caching, Keep};
pub(crate) use key::{Class, Key, mix};
use notes::{Stripe, Stripes, noted};
pub use ranks::Replacement;
use ranks::{Going, Held, Ranks, UNIT};
pub(crate) use shard::Found;
use shard::{Entry, Shard};
pub use stats::ArcStats;
use transfer::Pinned;
pub(crate) use transfer::Transfer;

/// Shards, a power of two: with 64, two of 16 threads meet in one about once in five lookups, for
/// some 20 ns.
const SHARDS: usize = 64;
/// What goes with a block's bytes: the owner of its memory, and what the allocator adds.
const OVERHEAD: usize = 64;
/// The largest block, as a part of the budget: larger ones would push out too much.
const LARGEST: usize = 8;
/// Decompressed copies may have this part of the budget.
const HOT: usize = 8;
/// Memory of transfers that is held and of no use may be this part of the budget.
const PINNED: usize = 32;
/// Blocks that are written are taken for parts of one memory up to this many bytes.
const WRITTEN_TOGETHER: usize = 1 << 20;

type Gone = SmallVec<[Entry; 4]>;

/// The cache. Its budget is in bytes.
#[derive(Debug)]
pub struct BlockCache {
    shards: Box<[Mutex<Shard>]>,
    ranks: Mutex<Ranks>,
    stripes: Stripes,
    clock: Clock,
    hot: Hot,
    pinned: Pinned,
    /// What was written lately, and its bytes.
    written: Mutex<Option<(Arc<Transfer>, usize)>>,
    budget: AtomicUsize,
    /// The largest budget it had.
    budget_max: AtomicUsize,
    /// The part of the budget that hot copies may have now. It grows as they come.
    hot_budget: AtomicUsize,
    /// Memory of the shards' own.
    tables: AtomicUsize,
    left: Left,
}

/// Counters of what left.
#[derive(Debug, Default)]
struct Left {
    blocks: AtomicU64,
    /// Content, by whether the tier below may have it, and whether it is frequent.
    content: [[AtomicU64; 2]; 2],
    busy: AtomicU64,
}

/// A block that comes in.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    pub(crate) key: Key,
    pub(crate) origin: &'a Arc<Origin>,
    pub(crate) class: Class,
    pub(crate) lsize: u32,
    pub(crate) compress: u8,
    /// It is stored in another form than its content.
    pub(crate) is_compressed: bool,
    pub(crate) level: u8,
    pub(crate) access: Access,
    /// The tier below may have it.
    pub(crate) is_eligible: bool,
    /// As it is stored.
    pub(crate) stored: Option<Bytes>,
    /// Its content, if that is another one and somebody may want it soon. One of the two is needed.
    pub(crate) content: Option<Bytes>,
    /// What shares the memory.
    pub(crate) memory: Memory<'a>,
}

/// Whose memory the stored form of a block lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory<'a> {
    /// Its own.
    Own,
    /// That of a transfer.
    Transfer(&'a Arc<Transfer>),
    /// That of a writer, who may have written other blocks from it.
    Writer,
    /// Somebody's: it must be copied.
    Foreign,
}

impl BlockCache {
    /// A cache that holds at most `budget` bytes, bookkeeping included, under the default policy.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self::with_replacement(budget, Replacement::Default)
    }

    /// The same under another policy.
    #[must_use]
    pub fn with_replacement(budget: usize, replacement: Replacement) -> Self {
        let cache = Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ranks: Mutex::new(Ranks::new(replacement, (budget / UNIT) as u64)),
            stripes: Stripes::new(),
            clock: Clock::new(),
            hot: Hot::default(),
            pinned: Pinned::default(),
            written: Mutex::default(),
            budget: AtomicUsize::new(budget),
            budget_max: AtomicUsize::new(budget),
            hot_budget: AtomicUsize::new(0),
            tables: AtomicUsize::new(0),
            left: Left::default(),
        };
        cache.fit(&mut cache.ranks.lock(), &mut Gone::new());
        cache
    }

    /// Changes the budget, in bytes. It holds no more when this returns.
    pub fn set_budget(&self, budget: usize) {
        let before = self.budget.swap(budget, Relaxed);
        self.budget_max.fetch_max(budget, Relaxed);
        let mut gone = Gone::new();
        {
            let mut ranks = self.ranks.lock();
            self.hot_budget.fetch_min(budget / HOT, Relaxed);
            if ranks.memory() + self.tables.load(Relaxed) > budget / 4 && budget < before {
                // Even what is remembered is too much: it was made for a far larger cache.
                let mut going = Going::new();
                self.shards.iter().for_each(|shard| going.extend(shard.lock().ids()));
                self.take_out(&mut ranks, &going, &mut gone);
                ranks.reset((budget / UNIT) as u64);
            }
            self.fit(&mut ranks, &mut gone);
            if budget < before / 2 {
                self.shards.iter().for_each(|shard| self.resize(&mut shard.lock(), Shard::shrink));
                self.fit(&mut ranks, &mut gone);
            }
        }
        self.shrink_hot();
        self.let_go(gone, true);
        self.rescue();
    }

    /// Its budget, in bytes.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget.load(Relaxed)
    }

    /// The block, if it is here. It was used now.
    #[inline]
    pub(crate) fn find(&self, key: &Key, access: Access) -> Found {
        let now = self.clock.now();
        let Some(hit) = self.shard(key.id).lock().hit(key, access, now) else { return Found::Nothing };
        let stripe = self.stripes.mine();
        let due = stripe.hit(access, &hit);
        if due.look {
            self.clock.look();
        }
        if due.play {
            match self.ranks.try_lock() {
                Some(mut ranks) => play(&mut ranks, stripe),
                None => {
                    self.left.busy.fetch_add(1, Relaxed);
                }
            }
        }
        hit.found
    }

    /// Whether the block is here. Not a use.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.shard(key.id).lock().get_mut(key).is_some()
    }

    /// A block was not here and is read.
    pub(crate) fn count_miss(&self, access: Access, class: Class) {
        self.stripes.mine().miss(access, class);
    }

    /// Remembers a block. One larger than an eighth of the budget is not: it would push out too much.
    pub(crate) fn insert(&self, fresh: Fresh<'_>) {
        let Fresh { key, class, memory, .. } = fresh;
        let budget = self.budget.load(Relaxed);
        let is_stored = fresh.stored.is_some();
        let is_compressed = is_stored && fresh.is_compressed;
        let Some(bytes) = fresh.stored.as_ref().or(fresh.content.as_ref()) else { return };
        if bytes.len() + OVERHEAD > budget / LARGEST {
            return;
        }
        // What is compressed is of odd sizes, and lies closely only in memory of its own.
        let is_part = !is_compressed && matches!(memory, Memory::Transfer(_) | Memory::Writer);
        let must_copy =
            matches!(memory, Memory::Foreign) || (is_compressed && !matches!(memory, Memory::Own));
        let (held, takes) = compact(bytes.clone(), is_part, must_copy);
        let units = ((takes + OVERHEAD).div_ceil(UNIT)) as u32;
        let transfer = match memory {
            Memory::Transfer(transfer) if is_part => Some(Arc::clone(transfer)),
            Memory::Writer if is_part => Some(self.written_together(held.len())),
            _ => None,
        };
        let mut gone = Gone::new();
        {
            let mut ranks = self.ranks.lock();
            self.clock.look();
            let mine = self.stripes.mine();
            play(&mut ranks, mine);
            let next = self.stripes.next();
            if !std::ptr::eq(mine, next) {
                play(&mut ranks, next);
            }
            let there = self.shard(key.id).lock().by_id(key.id).map(|entry| entry.key == key);
            match there {
                Some(true) => return, // two readers missed at the same time
                Some(false) => self.remove(&mut ranks, key.id, &mut gone),
                None => {}
            }
            let mut going = Going::new();
            let slot = ranks.insert(class, key.id, units, &mut going);
            self.take_out(&mut ranks, &going, &mut gone);
            if let Some(slot) = slot {
                if let Some(transfer) = &transfer {
                    self.pinned.attach(transfer, key.id, held.len());
                }
                let account = &mut ranks.held[class as usize];
                account.blocks += 1;
                account.charged += u64::from(units) * UNIT as u64;
                account.held += held.len() as u64;
                account.content += u64::from(fresh.lsize);
                let entry = Entry {
                    key,
                    origin: Arc::clone(fresh.origin),
                    held,
                    hot: None,
                    transfer,
                    slot,
                    units,
                    lsize: fresh.lsize,
                    used: self.clock.now(),
                    compress: fresh.compress,
                    level: fresh.level,
                    heat: 0,
                    class,
                    is_stored,
                    is_content: !is_compressed,
                    is_frequent: false,
                    is_prefetched: fresh.access == Access::Prefetch,
                    is_eligible: fresh.is_eligible,
                };
                self.resize(&mut self.shard(key.id).lock(), |shard| shard.insert(entry));
                self.clock.came(u64::from(units), ranks.capacity());
            }
            self.fit(&mut ranks, &mut gone);
        }
        self.let_go(gone, true);
        if is_compressed && let Some(content) = fresh.content {
            self.warm(&key, class, content);
        }
        self.rescue();
    }

    /// Keeps the content of a block that is here in its stored form, if there is room.
    pub(crate) fn warm(&self, key: &Key, class: Class, content: Bytes) {
        let len = IoBuf::capacity_for(content.len()) + OVERHEAD;
        if !self.take_hot(class, len) {
            return;
        }
        let came = match self.shard(key.id).lock().get_mut(key) {
            Some(entry)
                if entry.hot.is_none() && !entry.is_content && entry.lsize as usize == content.len() =>
            {
                entry.hot = Some(content);
                if entry.class == Class::Metadata {
                    entry.warm();
                }
                true
            }
            _ => false,
        };
        if came {
            self.hot
                .came(key.id, |id| self.shard(id).lock().by_id(id).is_some_and(|entry| entry.hot.is_some()));
        } else {
            self.hot.left(class, len);
        }
    }

    /// All blocks of a transfer of so many bytes have come in.
    pub(crate) fn close(&self, transfer: &Arc<Transfer>, total: usize) {
        self.pinned.close(transfer, total);
        self.settle();
    }

    /// Forgets a block that is worthless, because it was freed.
    pub(crate) fn forget(&self, key: &Key) {
        if !self.has(key) {
            return;
        }
        let mut gone = Gone::new();
        {
            let mut ranks = self.ranks.lock();
            self.remove(&mut ranks, key.id, &mut gone);
            self.fit(&mut ranks, &mut gone);
        }
        self.let_go(gone, false);
        self.rescue();
    }

    /// Forgets all blocks of a pool that was closed.
    pub(crate) fn forget_all(&self, origin: &Arc<Origin>) {
        let mut gone = Gone::new();
        {
            let mut ranks = self.ranks.lock();
            for shard in &self.shards {
                let ids = shard.lock().of(origin);
                ids.into_iter().for_each(|id| self.remove(&mut ranks, id, &mut gone));
            }
            self.fit(&mut ranks, &mut gone);
        }
        self.let_go(gone, false);
    }

    /// What it counted and holds.
    #[must_use]
    pub fn stats(&self) -> ArcStats {
        let counted = self.stripes.counted();
        let ranks = self.ranks.lock();
        let copies = self.hot.bytes().map(|bytes| bytes as u64);
        let [data, metadata] = ranks.held;
        let fixed = self.fixed(&ranks, 0) as u64;
        let bookkeeping = |held: Held| held.charged.saturating_sub(held.held);
        let bytes = |units: u64| units * UNIT as u64;
        let usage = Class::ALL.map(|class| ranks.usage(class));
        let ghosts = Class::ALL.map(|class| ranks.policy(class).ghost_hits());
        let fraction = |part: f64| (part.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        let recent = |class: Class| {
            let capacity = ranks.policy(class).capacity().max(1);
            fraction(usage[class as usize].recent_target as f64 / capacity as f64)
        };
        let hits = |access: Access, class: Class| -> u64 {
            counted.hits[access as usize][class as usize].iter().sum()
        };
        let misses = |access: Access, class: Class| counted.misses[access as usize][class as usize];
        let listed =
            |frequent: usize| -> u64 { counted.hits.iter().flatten().map(|by_list| by_list[frequent]).sum() };
        let left = |eligible: usize, frequent: usize| self.left.content[eligible][frequent].load(Relaxed);
        let c = self.budget.load(Relaxed) as u64;
        let c_max = self.budget_max.load(Relaxed) as u64;
        let mut stats = ArcStats {
            demand_data_hits: hits(Access::Demand, Class::Data),
            demand_data_misses: misses(Access::Demand, Class::Data),
            demand_metadata_hits: hits(Access::Demand, Class::Metadata),
            demand_metadata_misses: misses(Access::Demand, Class::Metadata),
            prefetch_data_hits: hits(Access::Prefetch, Class::Data),
            prefetch_data_misses: misses(Access::Prefetch, Class::Data),
            prefetch_metadata_hits: hits(Access::Prefetch, Class::Metadata),
            prefetch_metadata_misses: misses(Access::Prefetch, Class::Metadata),
            mru_hits: listed(0),
            mfu_hits: listed(1),
            mru_ghost_hits: ghosts.iter().map(|ghosts| ghosts.recent).sum(),
            mfu_ghost_hits: ghosts.iter().map(|ghosts| ghosts.frequent).sum(),
            deleted: self.left.blocks.load(Relaxed),
            mutex_miss: self.left.busy.load(Relaxed),
            evict_l2_eligible: left(1, 0) + left(1, 1),
            evict_l2_eligible_mfu: left(1, 1),
            evict_l2_eligible_mru: left(1, 0),
            evict_l2_ineligible: left(0, 0) + left(0, 1),
            hash_elements: data.blocks + metadata.blocks,
            meta: fraction(ranks.share()),
            pd: recent(Class::Data),
            pm: recent(Class::Metadata),
            c,
            c_min: (c_max / 32).max(32 << 20).min(c_max),
            c_max,
            size: data.charged + metadata.charged + copies[0] + copies[1] + fixed,
            compressed_size: data.held + metadata.held,
            uncompressed_size: data.content + metadata.content,
            overhead_size: copies[0] + copies[1],
            hdr_size: fixed + bookkeeping(data) + bookkeeping(metadata),
            data_size: data.held + copies[0],
            metadata_size: metadata.held + copies[1],
            mru_data: bytes(usage[0].recent),
            mru_metadata: bytes(usage[1].recent),
            mru_ghost_data: bytes(usage[0].recent_ghosts),
            mru_ghost_metadata: bytes(usage[1].recent_ghosts),
            mfu_data: bytes(usage[0].frequent),
            mfu_metadata: bytes(usage[1].frequent),
            mfu_ghost_data: bytes(usage[0].frequent_ghosts),
            mfu_ghost_metadata: bytes(usage[1].frequent_ghosts),
            demand_hit_predictive_prefetch: counted.useful,
            mp_switches: Class::ALL.map(|class| ranks.policy(class).switches()).iter().sum(),
            ..ArcStats::default()
        };
        drop(ranks);
        stats.hits = stats.mru_hits + stats.mfu_hits;
        stats.misses = counted.misses.iter().flatten().sum();
        stats.predictive_prefetch = stats.prefetch_data_misses + stats.prefetch_metadata_misses;
        stats.mru_size = stats.mru_data + stats.mru_metadata;
        stats.mru_ghost_size = stats.mru_ghost_data + stats.mru_ghost_metadata;
        stats.mfu_size = stats.mfu_data + stats.mfu_metadata;
        stats.mfu_ghost_size = stats.mfu_ghost_data + stats.mfu_ghost_metadata;
        stats
    }

    /// The names of the rules that decide now, of data and of metadata.
    #[must_use]
    pub fn rules(&self) -> [&'static str; 2] {
        let ranks = self.ranks.lock();
        Class::ALL.map(|class| ranks.policy(class).rules())
    }

    #[inline]
    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }

    /// Changes a shard, and counts what its tables take.
    fn resize<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.memory();
        let result = change(shard);
        // Wraps where it shrinks, as the sum does.
        self.tables.fetch_add(shard.memory().wrapping_sub(before), Relaxed);
        result
    }

    /// Bytes that blocks cannot have: bookkeeping, and of the memory of half-used transfers at most `pinned_max`
    /// (0: all).
    fn fixed(&self, ranks: &Ranks, pinned_max: usize) -> usize {
        let pinned = self.pinned.bytes();
        let pinned = if pinned_max == 0 { pinned } else { pinned.min(pinned_max) };
        size_of::<Self>()
            + self.shards.len() * size_of::<Mutex<Shard>>()
            + self.stripes.memory()
            + self.hot.memory()
            + self.tables.load(Relaxed)
            + ranks.memory()
            + pinned
    }

    /// Gives the policies what the rest leaves of the budget. Where only a little has changed nothing does.
    fn fit(&self, ranks: &mut Ranks, gone: &mut Gone) {
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
    fn settle(&self) {
        let mut gone = Gone::new();
        self.fit(&mut self.ranks.lock(), &mut gone);
        self.let_go(gone, true);
        self.rescue();
    }

    /// Takes what the policies gave up out of the shards.
    fn take_out(&self, ranks: &mut Ranks, going: &[u64], gone: &mut Gone) {
        for id in going {
            let entry = self.shard(*id).lock().remove(*id);
            if let Some(entry) = entry {
                self.account(ranks, &entry);
                gone.push(entry);
            }
        }
    }

    /// Takes a block out that the policies would keep.
    fn remove(&self, ranks: &mut Ranks, id: u64, gone: &mut Gone) {
        let entry = self.shard(id).lock().remove(id);
        if let Some(entry) = entry {
            ranks.remove(entry.class, entry.slot);
            self.account(ranks, &entry);
            gone.push(entry);
        }
    }

    fn account(&self, ranks: &mut Ranks, entry: &Entry) {
        let held = &mut ranks.held[entry.class as usize];
        held.blocks -= 1;
        held.charged -= u64::from(entry.units) * UNIT as u64;
        held.held -= entry.held.len() as u64;
        held.content -= u64::from(entry.lsize);
        if let Some(transfer) = &entry.transfer {
            self.pinned.detach(transfer, entry.held.len());
        }
        if let Some(hot) = &entry.hot {
            self.hot.left(entry.class, IoBuf::capacity_for(hot.len()) + OVERHEAD);
        }
    }

    /// Frees what left, without a lock; the tier below may have what was `evicted`.
    fn let_go(&self, gone: Gone, evicted: bool) {
        for entry in gone {
            self.left.blocks.fetch_add(1, Relaxed);
            if !evicted {
                continue;
            }
            let is_eligible = entry.is_eligible && entry.is_stored;
            self.left.content[usize::from(is_eligible)][usize::from(entry.is_frequent)]
                .fetch_add(entry.lsize.into(), Relaxed);
            let Some(below) = entry.origin.below().filter(|_| entry.is_stored) else { continue };
            below.evicted(Stored {
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
                eligible: is_eligible,
                data: entry.held,
            });
        }
    }

    /// Takes memory for a hot copy; what all of them may have grows up to its bound as it is needed.
    fn take_hot(&self, class: Class, len: usize) -> bool {
        let budget = self.budget.load(Relaxed);
        let most = budget / HOT;
        let wanted = self.hot.taken() + len;
        if wanted > self.hot_budget.load(Relaxed) && self.hot_budget.load(Relaxed) < most {
            let mut gone = Gone::new();
            {
                let mut ranks = self.ranks.lock();
                self.hot_budget.store((wanted + most / 8).min(most), Relaxed);
                self.fit(&mut ranks, &mut gone);
            }
            self.let_go(gone, true);
        }
        let mut dropped: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.hot.take(class, len, self.hot_budget.load(Relaxed), &mut |id| self.cool(id, &mut dropped))
    }

    fn shrink_hot(&self) {
        let mut dropped: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.hot.shrink(self.hot_budget.load(Relaxed), &mut |id| self.cool(id, &mut dropped));
    }

    /// The hand of the CLOCK comes by a hot copy.
    fn cool(&self, id: u64, dropped: &mut SmallVec<[Bytes; 4]>) -> Seen {
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.by_id(id).filter(|entry| entry.hot.is_some()) else { return Seen::Stale };
        if entry.heat > 0 {
            entry.heat -= 1;
            return Seen::Stays;
        }
        if let Some(hot) = entry.hot.take() {
            self.hot.left(entry.class, IoBuf::capacity_for(hot.len()) + OVERHEAD);
            dropped.push(hot);
        }
        Seen::Dropped
    }

    /// What a block that is being written shares its memory with: those written just before.
    fn written_together(&self, len: usize) -> Arc<Transfer> {
        let mut written = self.written.lock();
        let (transfer, before) = match written.take() {
            Some((transfer, before)) if before + len <= WRITTEN_TOGETHER => (transfer, before),
            full => {
                if let Some((transfer, total)) = full {
                    self.pinned.close(&transfer, total);
                }
                (Transfer::new(), 0)
            }
        };
        *written = Some((Arc::clone(&transfer), before + len));
        transfer
    }

    /// Gives the survivors of half-used transfers memory of their own, oldest first, until little is pinned.
    fn rescue(&self) {
        let limit = self.budget.load(Relaxed) / PINNED;
        while self.pinned.bytes() > limit {
            let Some(transfer) = self.pinned.oldest() else { return };
            for id in transfer.ids() {
                let is_part = |entry: &&mut Entry| {
                    entry.transfer.as_ref().is_some_and(|shared| Arc::ptr_eq(shared, &transfer))
                };
                let part = self.shard(id).lock().by_id(id).filter(is_part).map(|entry| entry.held.clone());
                let Some(part) = part else { continue };
                let (own, _) = compact(part, false, true);
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

/// Plays a stripe's notes to the policies.
fn play(ranks: &mut Ranks, stripe: &Stripe) {
    stripe.notes.drain(|note| {
        let (class, slot) = noted(note);
        ranks.hit(class, slot);
    });
}

/// Bytes in the memory they are to be held in, and how much of it they take.
fn compact(bytes: Bytes, is_part: bool, must_copy: bool) -> (Bytes, usize) {
    let len = bytes.len();
    let capacity = IoBuf::capacity_for(len);
    let is_wasteful = capacity - len > len / 8;
    match (is_part, must_copy || is_wasteful) {
        // It may get memory of its own later.
        (true, _) => (bytes, if is_wasteful { len } else { capacity }),
        (false, true) if is_wasteful => (Bytes::copy_from_slice(&bytes), len),
        (false, true) => (IoBuf::from_slice(&bytes).freeze(), capacity),
        (false, false) => (bytes, capacity),
    }
}
