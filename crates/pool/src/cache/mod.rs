//! The read cache: decompressed, verified blocks, found by where they lie and when they were born.
//!
//! A block is never changed in place, so an entry never becomes wrong: there is no invalidation, only
//! forgetting. The key holds the block's address and birth, and a tag made from its checksum and its
//! sizes, so that two pointers that merely *claim* the same address (one of them a lie) do not share
//! an entry.
//!
//! Many shards, each a small map under its own lock that is held for a lookup and the copy of a
//! reference count. Eviction is CLOCK: a hand sweeps the slots; a slot touched since the last sweep
//! gets another round. Blocks within 1 MiB of a device share a shard, because they may share the
//! memory of one transfer, which is only free when all of them are forgotten; a common shard forgets
//! them at about the same time. A block that outlives a sweep gets memory of its own, or one hot block of
//! 4 KiB would hold a megabyte that nobody counts.
//!
//! Locks: one shard at a time, nothing else is taken under it.

#![expect(clippy::disallowed_types, reason = "the map has a fixed hasher and is never iterated")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use disk::IoBuf;
use parking_lot::Mutex;

mod below;

pub(crate) use below::Origin;
pub use below::{Below, BelowFuture, Stored};

/// What a block is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Top-level device of the first copy.
    pub vdev: u64,
    /// Byte offset there.
    pub offset: u64,
    /// Physical birth txg.
    pub birth: u64,
    /// Mix of the checksum words and the sizes, compression and type.
    pub tag: u64,
}

/// Sharded CLOCK cache with a budget in bytes.
#[derive(Debug)]
pub struct BlockCache {
    shards: Box<[Mutex<Shard>]>,
    budget: AtomicUsize,
    /// Bytes held by all shards, bookkeeping included.
    held: AtomicUsize,
    /// Shard the next sweep visits.
    next: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What the cache did so far and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups answered.
    pub hits: u64,
    /// Lookups not answered.
    pub misses: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Blocks held.
    pub blocks: u64,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<Key, usize, BuildHasherDefault<KeyHasher>>,
    slots: Vec<Slot>,
    hand: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    data: Bytes,
    /// Touched since the hand last came by.
    touched: bool,
    /// The memory behind `data` is a transfer's, which may be many times larger.
    is_slice: bool,
}

/// Shards, a power of two: with 64, two of 16 threads meet in one about once in five lookups, for
/// some 20 ns.
const SHARDS: usize = 64;

/// A visit of the hand covers this part of a shard: short enough for a lock, and proportional.
const SWEEP_PARTS: usize = 16;

/// Bookkeeping per block beside its bytes: slot, map entry, reference count.
const OVERHEAD: usize = 192;

impl BlockCache {
    /// A cache that holds at most `budget` bytes, bookkeeping included.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            budget: AtomicUsize::new(budget),
            held: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Changes the budget, in bytes. A smaller one takes effect with the next insertions.
    pub fn set_budget(&self, budget: usize) {
        self.budget.store(budget, Relaxed);
    }

    /// The block, if it is here.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Bytes> {
        let found = self.shard(key).lock().get(key);
        if found.is_some() { &self.hits } else { &self.misses }.fetch_add(1, Relaxed);
        found
    }

    /// Remembers a block. One larger than an eighth of the budget is not: it would push out too much.
    pub fn insert(&self, key: Key, data: Bytes) {
        self.remember(key, data, false);
    }

    /// Remembers a block that is a slice of the memory of a larger transfer.
    pub fn insert_slice(&self, key: Key, data: Bytes) {
        self.remember(key, data, true);
    }

    fn remember(&self, key: Key, data: Bytes, is_slice: bool) {
        let budget = self.budget.load(Relaxed);
        let need = data.len() + OVERHEAD;
        if need > budget / 8 || !self.shard(&key).lock().insert(key, data, is_slice) {
            return;
        }
        self.held.fetch_add(need, Relaxed);
        // Room is made everywhere, in proportion to what each shard holds, so that a few busy regions may
        // fill the whole cache. Two rounds forget everything that is not being touched right now; the
        // bound is for the case that all of it is.
        for _ in 0..4 * SHARDS * SWEEP_PARTS {
            let excess = self.held.load(Relaxed).saturating_sub(budget);
            if excess == 0 {
                return;
            }
            let victim = self.next.fetch_add(1, Relaxed) % SHARDS;
            let freed = self.shards[victim].lock().sweep(excess);
            self.held.fetch_sub(freed, Relaxed);
        }
    }

    /// What the cache did so far and holds now.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.bytes += shard.bytes as u64;
            stats.blocks += shard.slots.len() as u64;
        }
        stats
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        let region = mix(key.vdev.rotate_left(48) ^ (key.offset >> 20));
        &self.shards[region as usize % SHARDS]
    }
}

impl Shard {
    fn get(&mut self, key: &Key) -> Option<Bytes> {
        let slot = &mut self.slots[*self.places.get(key)?];
        slot.touched = true;
        Some(slot.data.clone())
    }

    /// False if it is here already: two readers missed at the same time.
    fn insert(&mut self, key: Key, data: Bytes, is_slice: bool) -> bool {
        if self.places.contains_key(&key) {
            return false;
        }
        self.bytes += data.len() + OVERHEAD;
        self.places.insert(key, self.slots.len());
        self.slots.push(Slot { key, data, touched: false, is_slice });
        true
    }

    /// Moves the hand over a part of the slots: forgets those not touched since it last came by, until
    /// `enough` bytes are free. Returns how many became free.
    fn sweep(&mut self, enough: usize) -> usize {
        let mut freed = 0;
        for _ in 0..self.slots.len().div_ceil(SWEEP_PARTS) {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = &mut self.slots[self.hand];
            if std::mem::take(&mut slot.touched) {
                if std::mem::take(&mut slot.is_slice) {
                    slot.data = IoBuf::from_slice(&slot.data).freeze();
                }
                self.hand += 1;
                continue;
            }
            // The last slot takes the place of the forgotten one.
            let forgotten = self.slots.swap_remove(self.hand);
            self.places.remove(&forgotten.key);
            freed += forgotten.data.len() + OVERHEAD;
            if let Some(moved) = self.slots.get(self.hand) {
                self.places.insert(moved.key, self.hand);
            }
            if freed >= enough || self.slots.is_empty() {
                break;
            }
        }
        self.bytes -= freed;
        freed
    }
}

/// Spreads the bits of one word (the finaliser of SplitMix64, public domain).
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Hashes the four words of a key. Not keyed: an attacker who can place blocks can also fill the cache.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        mix(self.0)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key { vdev: 0, offset: n << 12, birth: 7, tag: 1 }
    }

    #[test]
    fn a_block_that_stays_does_not_hold_the_memory_of_its_transfer() {
        let cache = BlockCache::new(1 << 20);
        let transfer = Bytes::from(vec![7; 1 << 20]);
        let block = transfer.slice(4096..8192);
        let start = block.as_ptr();
        let hot = key(3);
        cache.insert_slice(hot, block);
        // Others push the hand around while the hot one is asked for all the time.
        for n in 1000..4000 {
            assert_eq!(cache.get(&hot).as_deref(), Some(&[7; 4096][..]));
            cache.insert(key(n), Bytes::from(vec![0; 1000]));
        }
        assert_ne!(cache.get(&hot).unwrap().as_ptr(), start, "it has memory of its own by now");
        assert!(transfer.is_unique(), "nothing holds the transfer any more");
    }

    #[test]
    fn finds_what_it_was_given_and_only_that() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(key(1), Bytes::from_static(b"one"));
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"one"[..]));
        assert_eq!(cache.get(&Key { tag: 2, ..key(1) }), None);
        assert_eq!(cache.get(&Key { birth: 8, ..key(1) }), None);
        assert_eq!((cache.stats().hits, cache.stats().misses), (1, 2));
    }

    #[test]
    fn stays_within_its_budget_and_keeps_what_is_used() {
        let budget = 512 * (1000 + OVERHEAD);
        let cache = BlockCache::new(budget);
        let hot = key(3);
        cache.insert(hot, Bytes::from(vec![3; 1000]));
        for n in 0..20_000 {
            if n != 3 {
                cache.insert(key(n), Bytes::from(vec![0; 1000]));
            }
            assert!(cache.get(&hot).is_some(), "forgot the one block in use at {n}");
        }
        let stats = cache.stats();
        assert!(stats.bytes <= budget as u64);
        assert!(stats.blocks > 500, "{stats:?}");
        cache.insert(key(90_000), Bytes::from(vec![0; budget / 2]));
        assert_eq!(cache.get(&key(90_000)), None, "it would push out half of all");
    }
}
