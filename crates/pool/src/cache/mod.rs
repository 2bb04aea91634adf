//! The ARC: blocks in memory, found by where they lie and when they were born. One for all pools of a daemon.
//!
//! ```text
//!   find ──▶ shard (map, blocks) ──hit──▶ content, or stored form to be decompressed by the caller
//!               ▲         └──▶ note in the thread's stripe ···later···┐
//!   insert ──▶ ranks (policies for data and metadata) ◀───────────────┘
//!                └──▶ who must go ──▶ out of the shards ──▶ Below
//! ```
//!
//! * [`key`]: what a block is; [`coming`]: how it comes in; [`shard`]: where it is; [`ranks`]: whether it stays; [`hot`]: decompressed copies;
//!   [`transfer`]: memory that several blocks share; [`notes`]: what hits leave behind; [`clock`]: which uses are one;
//!   [`room`]: the budget; [`below`]: the second tier; [`advice`]: what another size of it would do.
//! * Blocks are held as they are stored. Those that were compressed and are in use are held decompressed as well, in
//!   up to an eighth of the budget; of indirect blocks it is a shorter form (`io::pointers`).
//! * Bytes: a block is charged the memory it takes; what the map, the policies, half-used transfers and copies take is
//!   subtracted from what the policies may fill. So the whole is within the budget whenever a call returns.
//! * Locks, in this order: ranks or the ring of hot copies (which is only tried under the ranks' lock); then one shard, or
//!   a few in the order of their numbers. A hit takes its shard, and tries the ranks once in 64 notes, when it has no shard. Nothing is freed, and nothing is
//!   told to the tier below, under the ranks' lock.
//!
//! Why so, and what was measured: docs/decisions/0010 and 0012. Counters: docs/format/arc.md.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use ::cache::{HitBuffer, Slot};
use bytes::Bytes;
use disk::IoBuf;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

mod advice;
mod below;
mod clock;
mod coming;
mod figures;
mod gather;
mod hot;
mod key;
mod notes;
mod ranks;
mod room;
mod shard;
mod stats;
mod transfer;

#[cfg(test)]
mod tests;

pub use ::cache::{Outlook, Point};
pub use advice::Advice;
use advice::Feed;
pub(crate) use below::Origin;
pub use below::{Below, BelowFuture, Fate, Share, Stored, is_servable};
use clock::{Clock, Moment};
pub(crate) use coming::{Fresh, Memory};
use hot::Hot;
pub use key::{Access, Caching, Keep, Warmth};
pub(crate) use key::{Class, Key, Wishes};
pub use notes::{Followed, Uses};
use notes::{Stripe, Stripes, noted};
pub use ranks::Replacement;
use ranks::{Ranks, UNIT};
pub(crate) use shard::Found;
use shard::{Hit, Shard, Together as Gone};
pub use stats::ArcStats;
use transfer::Pinned;
pub(crate) use transfer::Transfer;

/// Shards, a power of two, and an identity's lowest bits: with 64, two of 16 threads meet in one about once in five lookups, for
/// some 20 ns.
const SHARDS: usize = 64;
/// What goes with a block's bytes: the owner of its memory, and what the allocator adds.
const OVERHEAD: usize = 64;
/// Blocks shorter than this are held in memory of just their size: an I/O buffer begins on a page, which takes the
/// allocator a page more (measured: twice the memory for 4 KiB, half as much again for 8 KiB), and ends on one.
pub(crate) const EXACT_BELOW: usize = 64 << 10;
/// The largest block, as a part of the budget: larger ones would push out too much.
const LARGEST: usize = 8;
/// Decompressed copies may have this part of the budget.
const HOT: usize = 8;
/// Memory of transfers that is held and of no use may be this part of the budget.
const PINNED: usize = 32;
/// Blocks that are written and lie one behind the other in memory are taken for parts of one, up to this many bytes.
const WRITTEN_TOGETHER: usize = 1 << 20;

/// The shard of an identity.
const fn shard_of(id: u64) -> usize {
    id as usize % SHARDS
}

/// Something for each block of a request.
pub type Row<T> = SmallVec<[T; 16]>;

/// Blocks of a request that are looked up at once, under the locks of as many shards at most.
const FOUND_AT_ONCE: usize = 8;
/// Something for each of these.
type Several<T> = SmallVec<[T; FOUND_AT_ONCE]>;
/// Blocks that come in, or are forgotten, under one lock of the ranks.
const AT_ONCE: usize = 32;

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
    written: Mutex<Option<Written>>,
    budget: AtomicUsize,
    /// The largest budget it had.
    budget_max: AtomicUsize,
    /// The part of the budget that hot copies may have now. It grows as they come, and shrinks when they have gone.
    hot_budget: AtomicUsize,
    /// Memory of the shards' own.
    tables: AtomicUsize,
    /// Tables may be larger than what they hold needs.
    is_loose: AtomicBool,
    /// The most blocks there were.
    blocks_max: AtomicU64,
    left: Left,
    feed: Arc<Feed>,
    /// Blocks that are being read ahead.
    ahead: AtomicU64,
    /// Pools with a second tier.
    shares: Arc<AtomicUsize>,
}

/// Blocks that were written, one behind the other in memory, and may go on.
#[derive(Debug)]
struct Written {
    transfer: Arc<Transfer>,
    /// Bytes so far.
    total: usize,
    /// Address behind the last.
    end: usize,
}

/// Counters of what left.
#[derive(Debug, Default)]
struct Left {
    blocks: AtomicU64,
    /// Content, by what it is to the tier below, and whether it is frequent.
    content: [[AtomicU64; 2]; 3],
    busy: AtomicU64,
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
            is_loose: AtomicBool::new(false),
            blocks_max: AtomicU64::new(0),
            left: Left::default(),
            feed: Feed::new(replacement, budget),
            ahead: AtomicU64::new(0),
            shares: Arc::default(),
        };
        cache.fit(&mut cache.ranks.lock(), &mut Gone::new());
        cache
    }

    /// Changes the budget, in bytes. It holds no more when this returns.
    pub fn set_budget(&self, budget: usize) {
        while !self.approach(budget) {}
    }

    /// Whether it may have memory for [`advice`](Self::advice). What is known is lost without it.
    pub fn keep_advice(&self, is_wanted: bool) {
        if self.feed.want(is_wanted) {
            self.feed.fit(self.budget(), self.stripes.demand());
            self.settle();
        }
    }

    /// Its budget, in bytes.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget.load(Relaxed)
    }

    /// What second tiers have in memory is a part of the budget, which is one for all pools: one more has its share of that.
    #[must_use]
    pub fn share(&self) -> Share {
        Share::of(&self.shares)
    }

    /// How many [shares](Self::share) there are; one, at least.
    #[must_use]
    pub fn shares(&self) -> usize {
        self.shares.load(Relaxed).max(1)
    }

    /// The block, if it is here. It was used now.
    #[inline]
    pub(crate) fn find(&self, key: &Key, access: Access) -> Found {
        let mut uses = Uses::default();
        let found = self.find_for(key, access, &mut uses);
        self.count(access, &uses);
        found
    }

    /// The same as a part of something that may lack another, and is looked up once more then: it is to be counted when all
    /// was found.
    #[inline]
    pub(crate) fn find_for(&self, key: &Key, access: Access, uses: &mut Uses) -> Found {
        let now = self.clock.now();
        let Some(hit) = self.shard(key.id).lock().hit(key, access, now) else { return Found::Nothing };
        self.note(key, &hit, uses);
        hit.found
    }

    /// Counts what was found.
    #[inline]
    pub(crate) fn count(&self, access: Access, uses: &Uses) {
        if self.stripes.mine().count(access, uses) {
            self.clock.look();
        }
    }

    /// Blocks, if all of them are here, in order. They were used now, which is to be [counted](Self::count).
    ///
    /// Several are looked up at once, and in steps, because the processor can wait for many lines of memory together as long
    /// as nothing between them has to be seen by other threads: to take a lock has, and to count a reference.
    pub(crate) fn find_all(&self, keys: &[Key], access: Access, uses: &mut Uses) -> Option<Row<Found>> {
        let now = self.clock.now();
        let mut all = Row::with_capacity(keys.len());
        for keys in keys.chunks(FOUND_AT_ONCE) {
            for (key, hit) in keys.iter().zip(self.hits(keys, access, now, true)?) {
                all.push(self.noted(key, hit, uses));
            }
        }
        Some(all)
    }

    /// The same for blocks of different requests: those that are here. `uses` has a place for each.
    pub(crate) fn find_each(&self, keys: &[Key], access: Access, uses: &mut [Uses]) -> Row<Found> {
        let now = self.clock.now();
        let mut all = Row::with_capacity(keys.len());
        for (keys, uses) in keys.chunks(FOUND_AT_ONCE).zip(uses.chunks_mut(FOUND_AT_ONCE)) {
            let hits = self.hits(keys, access, now, false).into_iter().flatten();
            for ((key, hit), uses) in keys.iter().zip(hits).zip(uses) {
                all.push(self.noted(key, hit, uses));
            }
        }
        all
    }

    /// What was found, noted.
    fn noted(&self, key: &Key, hit: Option<Hit>, uses: &mut Uses) -> Found {
        let Some(hit) = hit else { return Found::Nothing };
        self.note(key, &hit, uses);
        hit.found
    }

    /// Looks blocks up, and notes the use of those that are here; `all`: only if all are.
    fn hits(&self, keys: &[Key], access: Access, now: Moment, all: bool) -> Option<Several<Option<Hit>>> {
        // Neighbours are in one shard; what was written here and there is all over them.
        let mut numbers: Several<usize> = keys.iter().map(|key| shard_of(key.id)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Several<MutexGuard<'_, Shard>> =
            numbers.iter().map(|number| self.shards[*number].lock()).collect();
        let shard = |key: &Key| numbers.iter().position(|number| *number == shard_of(key.id)).unwrap_or(0);
        let places = keys.iter().map(|key| shards[shard(key)].place(key));
        let mut places: Several<Option<u32>> = places.collect();
        for (key, place) in keys.iter().zip(&mut places) {
            *place = place.filter(|place| shards[shard(key)].is_at(*place, key));
        }
        if all && places.iter().any(Option::is_none) {
            return None;
        }
        let places = keys.iter().zip(places);
        Some(places.map(|(key, place)| Some(shards[shard(key)].hit_at(place?, access, now))).collect())
    }

    /// What a hit leaves behind.
    #[inline]
    fn note(&self, key: &Key, hit: &Hit, uses: &mut Uses) {
        uses.add(hit);
        let stripe = self.stripes.mine();
        let is_due = stripe.note(hit);
        if Feed::wants(key.id) && hit.class == Class::Data {
            let is_to_be_played = match hit.merged {
                _ if hit.note.is_some() || hit.was_prefetched => self.feed.hit(key.id),
                0 => false,
                times => self.feed.merged(key.id, times),
            };
            if is_to_be_played {
                self.feed.play_soon(self.stripes.demand());
            }
        }
        if is_due {
            match self.ranks.try_lock() {
                Some(mut ranks) => play(&mut ranks, stripe),
                None => {
                    self.left.busy.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Whether the block is here. Not a use.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.shard(key.id).lock().get_mut(key).is_some()
    }

    /// The block, if it is here. Not a use, and not counted.
    pub(crate) fn glance(&self, key: &Key) -> Found {
        self.shard(key.id).lock().get_mut(key).map_or(Found::Nothing, |entry| entry.found())
    }

    /// How the block is here, if it is. Not a use.
    pub(crate) fn warmth(&self, key: &Key) -> Option<Warmth> {
        let mut shard = self.shard(key.id).lock();
        let entry = shard.get_mut(key)?;
        Some(if entry.is_frequent { Warmth::Frequent } else { Warmth::Recent })
    }

    /// A block was not here and is read.
    pub(crate) fn count_miss(&self, access: Access, class: Class) {
        self.stripes.mine().miss(access, class);
    }

    /// What was read may not be kept: no cache of any size would have had it.
    pub(crate) fn count_unkept(&self, access: Access, class: Class) {
        self.stripes.mine().unkept(access, class);
    }

    /// A block was not here, and somebody was reading it already.
    pub(crate) fn count_wait(&self, access: Access, class: Class) {
        self.stripes.mine().wait(access, class);
    }

    /// Keeps a copy of the content of a block that is here in its stored form, if there is room. That of an indirect block may
    /// be in a shorter form ([`Found::Packed`]).
    pub(crate) fn warm(&self, key: &Key, class: Class, copy: Bytes) {
        let len = footprint(copy.len()) + OVERHEAD;
        if !self.take_hot(class, len) {
            return;
        }
        let came = match self.shard(key.id).lock().get_mut(key) {
            Some(entry) if entry.hot.is_none() && !entry.is_content && entry.is_copy(copy.len()) => {
                entry.hot = Some(copy);
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

    /// Forgets blocks that are worthless, because they were freed.
    pub(crate) fn forget(&self, keys: &[Key]) {
        for keys in keys.chunks(AT_ONCE) {
            let (mut gone, mut evicted) = (Gone::new(), Gone::new());
            let mut told: SmallVec<[u64; AT_ONCE]> = SmallVec::new();
            {
                let mut ranks = self.ranks.lock();
                for keys in keys.chunk_by(|one, next| shard_of(one.id) == shard_of(next.id)) {
                    let entries = self.shard(keys[0].id).lock().remove_keys(keys);
                    for entry in entries {
                        told.extend(Some(entry.key.id).filter(|id| Feed::wants(*id)));
                        self.removed(&mut ranks, entry, &mut gone);
                    }
                }
                if gone.is_empty() {
                    continue;
                }
                self.fit(&mut ranks, &mut evicted);
            }
            self.let_go(gone, false);
            self.let_go(evicted, true);
            for id in told {
                if self.feed.gone(id) {
                    self.feed.play_soon(self.stripes.demand());
                }
            }
            self.rescue();
        }
    }

    /// Forgets all blocks of a pool that was closed.
    pub(crate) fn forget_all(&self, origin: &Arc<Origin>) {
        let mut place = (0, usize::MAX);
        while self.forget_some(origin, &mut place) {}
    }

    /// Forgets some blocks of a pool that is being closed, from a `place` on that was (0, `usize::MAX`) at first; false if
    /// that were the last. A cache may hold tens of millions, and others go on reading meanwhile.
    pub(crate) fn forget_some(&self, origin: &Arc<Origin>, place: &mut (usize, usize)) -> bool {
        let (shard, from) = place;
        // Each block here has its part in the origin.
        let is_over = *shard >= SHARDS || Arc::strong_count(origin) == 1;
        if is_over {
            if *shard <= SHARDS {
                *shard = SHARDS + 1;
                self.feed.forget(|(pool, _)| pool == origin.guid);
                self.is_loose.store(true, Relaxed);
            }
            return self.tighten();
        }
        let (mut gone, mut evicted) = (Gone::new(), Gone::new());
        {
            let mut ranks = self.ranks.lock();
            let entries = self.shards[*shard].lock().remove_some(origin, from);
            entries.into_iter().for_each(|entry| self.removed(&mut ranks, entry, &mut gone));
            self.fit(&mut ranks, &mut evicted);
        }
        self.let_go(gone, false);
        self.let_go(evicted, true);
        if *from == 0 {
            (*shard, *from) = (*shard + 1, usize::MAX);
        }
        true
    }

    /// A dataset was destroyed: what is known of it stands for nothing to come, and another may get its number.
    pub fn forget_dataset(&self, pool: u64, objset: u64) {
        self.feed.forget(|whose| whose == (pool, objset));
    }

    /// The names of the rules that decide now, of data and of metadata.
    #[must_use]
    pub fn rules(&self) -> [&'static str; 2] {
        let ranks = self.ranks.lock();
        Class::ALL.map(|class| ranks.policy(class).rules())
    }

    /// What more memory or a cache device would be worth; none of a cache too small to be sampled, or not to be
    /// for now.
    #[must_use]
    pub fn advice(&self) -> Option<Advice> {
        let ghosts = self.ranks.lock().missed;
        self.feed.advice(self.stripes.demand(), ghosts)
    }

    #[inline]
    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[shard_of(id)]
    }
}

/// Plays a stripe's notes to the policies.
fn play(ranks: &mut Ranks, stripe: &Stripe) {
    let mut data: SmallVec<[Slot; HitBuffer::NOTES]> = SmallVec::new();
    stripe.notes.drain(|note| match noted(note) {
        (Class::Data, slot) => data.push(slot),
        (class, slot) => ranks.hits(class, &[slot]),
    });
    ranks.hits(Class::Data, &data);
}

/// What a buffer of this many bytes takes. From [`EXACT_BELOW`] on it is an I/O buffer: its memory begins on a page, and
/// unless it comes from the kernel directly a page is lost for that.
fn footprint(len: usize) -> usize {
    let capacity = IoBuf::capacity_for(len);
    match len {
        ..EXACT_BELOW => len,
        _ if capacity < 128 << 10 => capacity + IoBuf::ALIGN,
        _ => capacity,
    }
}
