//! Where each cached block lies, in about eleven bytes of memory a block.
//!
//! Whoever reads holds a block pointer, and with it a checksum. So memory need not know a block's identity, only where
//! to look: a wrong answer costs a read in vain, never a wrong byte. A block's identity is hashed to 48 bits:
//!
//! ```text
//!   10 bits: shard ─▶ two buckets of eight slots, both computed from the other 38 bits
//!   slot:   word  [address / 512: 38][hash: 22][heat: 2][frequent: 1][prefetched: 1]     tag  [hash: 16]
//! ```
//! A slot holds all 38 bits, so a shard grows by a sixteenth at a time, each slot finding its new place by itself; the
//! table stays between 88 and 94 % full, and the pause is that of one shard. Address 0 is no place (labels lie there):
//! an empty slot.
//!
//! Measured, and why no smaller or larger: docs/decisions, "cache device index".

use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use cache::mix;
use parking_lot::Mutex;
use tokio::{task::yield_now, time::Instant};

/// A block's identity, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub u64);

/// What the index knows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte address among all devices, laid end to end; a multiple of 512, not 0.
    pub address: u64,
    /// Times it was asked for since it was written: 0 to 3, 3 meaning more.
    pub heat: u8,
    /// It had been used more than once when it left memory.
    pub frequent: bool,
    /// It came to memory by prefetch and was not asked for there.
    pub prefetched: bool,
}

/// There is no memory for one more block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index of cached blocks may not take more memory")]
pub struct Full;

/// From hashed identity to place.
#[derive(Debug)]
pub struct Index {
    shards: Box<[Mutex<Shard>]>,
    blocks: AtomicU64,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    /// Limits before this one, each smaller than the one before it, and until when they held.
    before: Mutex<VecDeque<(u64, Instant)>>,
    /// Where blocks were that lost their place to others since somebody asked.
    displaced: Mutex<Vec<Place>>,
    /// The shard that is shed next.
    shed_next: AtomicUsize,
}

/// One past the highest address: 38 bits of 512 bytes.
pub(crate) const ADDRESS_MAX: u64 = 1 << (38 + 9);

const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 10;
/// Shards that are walked through before others have their turn.
const TOGETHER: usize = 8;
/// Bits of the hash that a slot holds.
const KEY_BITS: u32 = 38;
const SLOTS: usize = 8;
/// A shard grows when more than this part of its slots is taken.
const FULL: (usize, usize) = (94, 100);
/// How long a limit that was lowered may yet be for a while only.
const LATELY: Duration = Duration::from_secs(600);
/// How many slots are moved to their other bucket to make room, at most.
const KICKS: usize = 64;

const ADDRESS_SHIFT: u32 = 26;
const KEY_SHIFT: u32 = 4;
const HEAT_SHIFT: u32 = 2;
const HEAT_MASK: u64 = 3 << HEAT_SHIFT;
const FREQUENT: u64 = 2;
const PREFETCHED: u64 = 1;

#[derive(Debug, Default)]
struct Shard {
    words: Box<[u64]>,
    tags: Box<[u16]>,
    used: usize,
}

impl Index {
    /// An empty index that takes at most `bytes_max` bytes of memory.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new((SHARDS * size_of::<Mutex<Shard>>()) as u64),
            bytes_max: AtomicU64::new(bytes_max),
            before: Mutex::default(),
            displaced: Mutex::default(),
            shed_next: AtomicUsize::new(0),
        }
    }

    /// Changes the limit. What is there stays.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let mut before = self.before.lock();
        let old = self.bytes_max.swap(bytes_max, Relaxed);
        while before.front().is_some_and(|(_, until)| until.elapsed() > LATELY) {
            before.pop_front();
        }
        while before.back().is_some_and(|(limit, _)| *limit <= old) {
            before.pop_back();
        }
        // Between two that are nearly the same a third tells nothing, so there are never many. (To say of one that it held until
        // now, where it was a little less, would be to say so for as long as the limit trembles.)
        let above = before.len().checked_sub(2).and_then(|number| before.get(number));
        if above.is_some_and(|(limit, _)| *limit - old <= old / 16) {
            before.pop_back();
        }
        before.push_back((old, Instant::now()));
    }

    /// Whether it takes more than it may: the limit was lowered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.memory() > self.bytes_max.load(Relaxed)
    }

    /// Whether it has room for a good part of what it may take. One that is filled to its limit has that again only when the
    /// limit rises by a third, or something was shed.
    #[must_use]
    pub fn is_roomy(&self) -> bool {
        self.is_roomy_within(self.bytes_max.load(Relaxed))
    }

    fn is_roomy_within(&self, bytes_max: u64) -> bool {
        self.memory() <= bytes_max / 4 * 3
    }

    /// Whether it lacks memory by a limit that was lowered lately, and may soon be what it was: then it would take no more than
    /// it may, or where that is so already, have room. (Limits follow what the cache has, which goes up and down a little all
    /// the time: an index that is near the largest of them is as full as it gets.)
    #[must_use]
    pub fn is_cut_lately(&self) -> bool {
        let before = self.before.lock();
        let most = before.iter().find(|(_, until)| until.elapsed() <= LATELY);
        most.is_some_and(|(most, _)| match self.is_over() {
            true => self.memory() <= *most,
            false => *most > self.bytes_max.load(Relaxed) && self.is_roomy_within(*most),
        })
    }

    /// Blocks known.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Whether it knows no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory taken, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether a block would be known: it is already, or there is room for it without another losing its place.
    #[must_use]
    pub fn takes(&self, hash: Hash) -> bool {
        let shard = self.shard(hash).lock();
        let old = shard.buckets();
        let more = bytes_of(next_size(old)) - bytes_of(old);
        shard.has_room()
            || self.memory() + more <= self.bytes_max.load(Relaxed)
            || shard.find(key(hash)).is_some()
    }

    /// Where those blocks were that lost their places to others since this was asked, and are not known any more.
    #[must_use]
    pub fn take_displaced(&self) -> Vec<Place> {
        std::mem::take(&mut *self.displaced.lock())
    }

    /// Where a block is, for somebody who wants it: it is hotter from now on.
    #[must_use]
    pub fn get(&self, hash: Hash) -> Option<Place> {
        let mut shard = self.shard(hash).lock();
        let at = shard.find(key(hash))?;
        let word = &mut shard.words[at];
        if *word & HEAT_MASK != HEAT_MASK {
            *word += 1 << HEAT_SHIFT;
        }
        Some(place(*word))
    }

    /// Where a block is.
    #[must_use]
    pub fn peek(&self, hash: Hash) -> Option<Place> {
        let shard = self.shard(hash).lock();
        shard.find(key(hash)).map(|at| place(shard.words[at]))
    }

    /// A block is here now; where it was before.
    ///
    /// # Errors
    /// No memory; the block is not known, then.
    pub fn insert(&self, hash: Hash, new: Place) -> Result<Option<Place>, Full> {
        self.store(hash, new, true)
    }

    /// The same, unless the block is known already: then it stays where it is, which is the answer.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_new(&self, hash: Hash, new: Place) -> Result<Option<Place>, Full> {
        self.store(hash, new, false)
    }

    fn store(&self, hash: Hash, new: Place, replace: bool) -> Result<Option<Place>, Full> {
        debug_assert!(new.address != 0 && new.address < ADDRESS_MAX && new.address.is_multiple_of(512));
        let key = key(hash);
        let mut shard = self.shard(hash).lock();
        if let Some(at) = shard.find(key) {
            let old = place(shard.words[at]);
            if replace {
                shard.words[at] = word(key, new);
            }
            return Ok(Some(old));
        }
        let item = (key, word(key, new));
        let mut placed = if shard.has_room() { shard.place(item) } else { Err(item) };
        if let Err(homeless) = placed {
            placed = if self.grow(&mut shard, homeless) { Ok(()) } else { shard.place(homeless) };
        }
        drop(shard);
        match placed {
            Ok(()) => {
                self.blocks.fetch_add(1, Relaxed);
            }
            Err((homeless, _)) if homeless == key => return Err(Full),
            // Another one lost its home to this one, and is forgotten.
            Err((_, word)) => self.displaced.lock().push(place(word)),
        }
        Ok(None)
    }

    /// A larger table for this shard, with one item more, if memory allows.
    fn grow(&self, shard: &mut Shard, more: (u64, u64)) -> bool {
        let old = shard.buckets();
        let mut buckets = next_size(old);
        loop {
            let more_bytes = bytes_of(buckets) - bytes_of(old);
            if self.bytes.load(Relaxed) + more_bytes > self.bytes_max.load(Relaxed) {
                return false;
            }
            let mut larger = Shard::with_buckets(buckets);
            if shard.items().chain([more]).all(|item| larger.place(item).is_ok()) {
                *shard = larger;
                self.bytes.fetch_add(more_bytes, Relaxed);
                return true;
            }
            buckets = next_size(buckets);
        }
    }

    /// Forgets a block if it is at this address; what was known of it.
    pub fn remove(&self, hash: Hash, address: u64) -> Option<Place> {
        let mut shard = self.shard(hash).lock();
        let at = shard.find(key(hash))?;
        let known = place(shard.words[at]);
        if known.address != address {
            return None;
        }
        shard.clear(at);
        self.blocks.fetch_sub(1, Relaxed);
        Some(known)
    }

    /// Forgets all blocks that begin in this stretch of addresses; how many. Walks the whole table, which takes a second
    /// where there are a hundred million blocks, and lets others go on in between.
    pub async fn remove_range(&self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        for shards in self.shards.chunks(TOGETHER) {
            let of_these = shards.iter().map(|shard| shard.lock().remove_range(&range)).sum();
            self.blocks.fetch_sub(of_these, Relaxed);
            removed += of_these;
            yield_now().await;
        }
        removed
    }

    /// Gives back memory that is not needed for what is known: after a device left. Lets others go on in between.
    pub async fn shrink(&self) {
        for shards in self.shards.chunks(TOGETHER) {
            for shard in shards {
                self.bytes.fetch_sub(shard.lock().shrink(), Relaxed);
            }
            yield_now().await;
        }
    }

    /// Forgets blocks until what is known takes as little memory as it may, or nothing is known: whoever waits for memory has
    /// it at once. Which ones is as good as chance; how many.
    pub fn shed(&self) -> u64 {
        let mut gone = 0;
        for _ in 0..SHARDS {
            if !self.is_over() {
                break;
            }
            let at = self.shed_next.fetch_add(1, Relaxed) % SHARDS;
            let mut shard = self.shards[at].lock();
            let Shard { used, words, .. } = std::mem::take(&mut *shard);
            self.bytes.fetch_sub(bytes_of(words.len() / SLOTS), Relaxed);
            self.blocks.fetch_sub(used as u64, Relaxed);
            gone += used as u64;
        }
        gone
    }

    fn shard(&self, hash: Hash) -> &Mutex<Shard> {
        &self.shards[(hash.0 >> (u64::BITS - SHARD_BITS)) as usize]
    }
}

impl Shard {
    fn with_buckets(buckets: usize) -> Self {
        Self { words: vec![0; buckets * SLOTS].into(), tags: vec![0; buckets * SLOTS].into(), used: 0 }
    }

    fn buckets(&self) -> usize {
        self.words.len() / SLOTS
    }

    /// The two buckets of a key.
    fn homes(&self, key: u64) -> [usize; 2] {
        let buckets = self.buckets() as u64;
        let scale = |key: u64| ((u128::from(key) * u128::from(buckets)) >> KEY_BITS) as usize;
        let (first, second) = (scale(key), scale(mix(key) >> (u64::BITS - KEY_BITS)));
        [first, if first == second { (first + 1) % buckets as usize } else { second }]
    }

    /// Forgets what begins in this stretch; how much that was.
    fn remove_range(&mut self, range: &Range<u64>) -> u64 {
        let mut removed = 0;
        for at in 0..self.words.len() {
            let word = self.words[at];
            if word != 0 && range.contains(&place(word).address) {
                self.clear(at);
                removed += 1;
            }
        }
        removed
    }

    /// Becomes as small as what it holds allows; by how many bytes.
    fn shrink(&mut self) -> u64 {
        let mut buckets = (self.used * 10).div_ceil(9 * SLOTS);
        let had = bytes_of(self.buckets());
        while bytes_of(buckets) < had {
            let mut smaller = Self::with_buckets(buckets);
            if self.items().all(|item| smaller.place(item).is_ok()) {
                *self = smaller;
                return had - bytes_of(buckets);
            }
            buckets += (buckets / 16).max(1);
        }
        0
    }

    fn find(&self, key: u64) -> Option<usize> {
        if self.words.is_empty() {
            return None;
        }
        let (tag, rest) = (key as u16, key >> 16);
        self.homes(key).into_iter().find_map(|bucket| {
            let slots = bucket * SLOTS..(bucket + 1) * SLOTS;
            slots.clone().zip(&self.tags[slots]).find_map(|(at, of_slot)| {
                let word = self.words[at];
                (*of_slot == tag && word != 0 && word >> KEY_SHIFT & 0x3f_ffff == rest).then_some(at)
            })
        })
    }

    /// Whether one item more leaves it below the part that may be taken.
    fn has_room(&self) -> bool {
        (self.used + 1) * FULL.1 <= self.words.len() * FULL.0
    }

    /// Puts an item into one of its buckets, moving others to theirs. The one that found no place in the end comes back.
    fn place(&mut self, mut item: (u64, u64)) -> Result<(), (u64, u64)> {
        if self.used == self.words.len() {
            return Err(item);
        }
        let mut bucket = self.emptier(item.0);
        for turn in 0..KICKS {
            let slots = bucket * SLOTS..(bucket + 1) * SLOTS;
            if let Some(free) = slots.clone().find(|at| self.words[*at] == 0) {
                (self.tags[free], self.words[free]) = (item.0 as u16, item.1);
                self.used += 1;
                return Ok(());
            }
            // Which one goes is as good as chance and needs none.
            let at = bucket * SLOTS + (mix(item.0 ^ turn as u64) as usize % SLOTS);
            let moved = self.item(at);
            (self.tags[at], self.words[at]) = (item.0 as u16, item.1);
            item = moved;
            let [first, second] = self.homes(item.0);
            bucket = if first == bucket { second } else { first };
        }
        Err(item)
    }

    /// The bucket with more room.
    fn emptier(&self, key: u64) -> usize {
        let taken =
            |bucket: usize| self.words[bucket * SLOTS..][..SLOTS].iter().filter(|word| **word != 0).count();
        let [first, second] = self.homes(key);
        if taken(second) < taken(first) { second } else { first }
    }

    fn clear(&mut self, at: usize) {
        (self.words[at], self.tags[at]) = (0, 0);
        self.used -= 1;
    }

    /// Key and word of a slot.
    fn item(&self, at: usize) -> (u64, u64) {
        let word = self.words[at];
        ((word >> KEY_SHIFT & 0x3f_ffff) << 16 | u64::from(self.tags[at]), word)
    }

    fn items(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.words.len()).filter(|at| self.words[*at] != 0).map(|at| self.item(at))
    }
}

/// The bits of a hash that a slot holds.
fn key(hash: Hash) -> u64 {
    (hash.0 >> (u64::BITS - SHARD_BITS - KEY_BITS)) & ((1 << KEY_BITS) - 1)
}

fn word(key: u64, place: Place) -> u64 {
    (place.address >> 9) << ADDRESS_SHIFT
        | (key >> 16) << KEY_SHIFT
        | u64::from(place.heat.min(3)) << HEAT_SHIFT
        | if place.frequent { FREQUENT } else { 0 }
        | if place.prefetched { PREFETCHED } else { 0 }
}

fn place(word: u64) -> Place {
    Place {
        address: (word >> ADDRESS_SHIFT) << 9,
        heat: (word >> HEAT_SHIFT & 3) as u8,
        frequent: word & FREQUENT != 0,
        prefetched: word & PREFETCHED != 0,
    }
}

/// The next size of a shard's table.
const fn next_size(buckets: usize) -> usize {
    let more = buckets / 16;
    buckets + if more == 0 { 1 } else { more }
}

/// Memory of a shard's table.
const fn bytes_of(buckets: usize) -> u64 {
    (buckets * SLOTS * (size_of::<u64>() + size_of::<u16>())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> Hash {
        Hash(mix(n.wrapping_add(0x5eed)))
    }

    fn at(n: u64) -> Place {
        Place {
            address: (n + 1) << 9,
            heat: 0,
            frequent: n.is_multiple_of(3),
            prefetched: n.is_multiple_of(5),
        }
    }

    #[test]
    fn every_block_is_found_where_it_was_put_at_less_than_fourteen_bytes_each() {
        let index = Index::new(u64::MAX);
        let mut worst: f64 = 0.0;
        let many = 2_000_000;
        for n in 0..many {
            assert_eq!(index.insert(hash(n), at(n)), Ok(None), "{n}");
            if n > many / 2 && n.is_multiple_of(50_000) {
                worst = worst.max(index.memory() as f64 / index.len() as f64);
            }
        }
        // Two hashes in two million that agree in 48 bits: one chance in a hundred.
        for n in 0..many {
            assert_eq!(index.peek(hash(n)), Some(at(n)), "{n}");
        }
        assert_eq!(index.len(), many);
        assert!(worst < 12.0, "{worst} bytes a block at the worst");
        println!(
            "{worst:.2} bytes a block at the worst, {:.2} at the end",
            index.memory() as f64 / many as f64
        );
        for n in many..many + 1_000_000 {
            assert_eq!(index.peek(hash(n)), None, "a stranger");
        }
    }

    #[test]
    fn heat_counts_to_three_and_only_who_wants_the_block_warms_it() {
        let index = Index::new(u64::MAX);
        index.insert(hash(1), at(1)).unwrap();
        assert_eq!(index.peek(hash(1)).unwrap().heat, 0);
        let heats: Vec<u8> = (0..5).map(|_| index.get(hash(1)).unwrap().heat).collect();
        assert_eq!(heats, [1, 2, 3, 3, 3]);
        assert_eq!(index.insert(hash(1), at(7)).unwrap().unwrap().heat, 3);
        assert_eq!(index.peek(hash(1)), Some(at(7)), "another place, and cold there");
    }

    #[test]
    fn a_block_that_moved_is_not_forgotten_with_its_old_place() {
        let index = Index::new(u64::MAX);
        index.insert(hash(1), at(1)).unwrap();
        index.insert(hash(1), at(2)).unwrap();
        assert_eq!(index.remove(hash(1), at(1).address), None);
        assert_eq!(index.insert_new(hash(1), at(3)), Ok(Some(at(2))));
        assert_eq!(index.remove(hash(1), at(2).address), Some(at(2)));
        assert!(index.is_empty());
    }

    #[tokio::test]
    async fn a_stretch_is_forgotten_wholly_and_memory_given_back() {
        let index = Index::new(u64::MAX);
        for n in 0..50_000 {
            index.insert(hash(n), at(n)).unwrap();
        }
        let full = index.memory();
        assert_eq!(index.remove_range(at(10_000).address..at(50_000).address).await, 40_000);
        for n in 0..50_000 {
            assert_eq!(index.peek(hash(n)).is_some(), n < 10_000, "{n}");
        }
        index.shrink().await;
        assert!(index.memory() < full / 3, "{} of {full}", index.memory());
        assert!((0..10_000).all(|n| index.peek(hash(n)) == Some(at(n))));
    }

    #[test]
    fn what_is_shed_is_memory_at_once_and_what_stays_known_is_right() {
        let index = Index::new(u64::MAX);
        for n in 0..50_000 {
            index.insert(hash(n), at(n)).unwrap();
        }
        let full = index.memory();
        assert_eq!(index.shed(), 0);
        assert_eq!((index.memory(), index.len()), (full, 50_000), "it may take as much");
        index.set_bytes_max(full / 3);
        let gone = index.shed();
        assert!(!index.is_over() && index.memory() > full / 4, "{} of {full}", index.memory());
        let known = (0..50_000).filter(|n| index.peek(hash(*n)) == Some(at(*n))).count() as u64;
        assert_eq!((known, gone), (index.len(), 50_000 - known));
        assert!(known > 10_000 && !index.is_roomy());
        // Others go next time, and what comes afterwards is known.
        index.set_bytes_max(0);
        assert_eq!(index.shed(), known);
        assert!(index.is_empty());
        index.set_bytes_max(u64::MAX);
        assert!(index.is_roomy());
        (0..1000).for_each(|n| assert_eq!(index.insert(hash(n), at(n)).unwrap(), None));
        assert!((0..1000).all(|n| index.peek(hash(n)) == Some(at(n))));
    }

    #[test]
    fn a_limit_of_memory_holds_and_what_is_known_stays_right() {
        let index = Index::new(400_000);
        let refused = (0..100_000).filter(|n| index.insert(hash(*n), at(*n)).is_err()).count() as u64;
        assert!(index.memory() <= 400_000);
        assert!(index.len() > 25_000, "{} blocks", index.len());
        assert!(refused > 0);
        let found =
            (0..100_000).filter(|n| index.peek(hash(*n)).is_some_and(|place| place == at(*n))).count();
        assert_eq!(found as u64, index.len());
        let displaced = index.take_displaced();
        let gave_way = displaced.len() as u64;
        assert_eq!(100_000, index.len() + refused + gave_way, "each is known, was refused, or gave way");
        let number = |place: &Place| (place.address >> 9) - 1;
        assert!(displaced.iter().all(|place| *place == at(number(place))), "which ones is known");
        assert!(displaced.iter().all(|place| index.peek(hash(number(place))).is_none()));
        assert!(index.take_displaced().is_empty());
        let room = |n: &u64| index.takes(hash(*n));
        assert!((0..100_000).filter(|n| index.peek(hash(*n)).is_some()).all(|n| room(&n)), "it is known");
        assert!(!(100_000..200_000).any(|n| room(&n)));
        for n in 0..100_000 {
            index.remove(hash(n), at(n).address);
        }
        assert!((0..1000).all(|n| room(&n)));
    }
}
