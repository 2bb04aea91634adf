//! What the cache promises: whose bytes it gives, what it keeps, and what it counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use ::cache::{Adaptive, Arc as Classic, Block, Policy, mix};

use super::*;

mod below;
mod budget;

/// A plain sequence of numbers without rhythm.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }
}

fn origin(guid: u64) -> Arc<Origin> {
    Arc::new(Origin::new(guid, mix(guid)))
}

fn bytes(n: u64, len: usize) -> Bytes {
    Bytes::from(vec![n as u8; len])
}

/// A block as it would come from a device; compressed, if it has a content.
fn block(origin: &Arc<Origin>, n: u64, stored: Bytes, content: Option<Bytes>) -> Fresh<'_> {
    Fresh {
        key: Key::nth(n, origin),
        origin,
        class: Class::Data,
        lsize: content.as_ref().unwrap_or(&stored).len() as u32,
        compress: if content.is_some() { 15 } else { 2 },
        is_compressed: content.is_some(),
        level: 0,
        objset: 1,
        access: Access::Demand,
        is_eligible: true,
        stored: Some(stored),
        content,
        memory: Memory::Own,
    }
}

fn find(cache: &BlockCache, origin: &Origin, n: u64) -> Option<Bytes> {
    match cache.find(&Key::nth(n, origin), Access::Demand) {
        Found::Content(bytes) | Found::Packed(bytes) | Found::Stored(bytes) => Some(bytes),
        Found::Nothing => None,
    }
}

#[test]
fn a_shorter_copy_is_told_from_the_content_and_only_indirect_blocks_have_one() {
    let (cache, pool) = (BlockCache::new(32 << 20), origin(1));
    let fresh = |n, level| Fresh {
        class: Class::Metadata,
        level,
        ..block(&pool, n, bytes(1, 20_000), Some(bytes(2, 131_072)))
    };
    let look = |n| cache.find(&Key::nth(n, &pool), Access::Demand);
    cache.insert(fresh(1, 1));
    assert!(matches!(look(1), Found::Content(content) if content == bytes(2, 131_072)));
    let before = cache.hot.taken();
    cache.insert(Fresh { content: Some(bytes(3, 50_000)), lsize: 131_072, ..fresh(2, 1) });
    assert!(matches!(look(2), Found::Packed(copy) if copy == bytes(3, 50_000)));
    assert_eq!(cache.hot.taken() - before, 50_000 + OVERHEAD, "it is charged what it takes");
    cache.insert(Fresh { content: Some(bytes(3, 50_000)), lsize: 131_072, ..fresh(3, 0) });
    assert!(matches!(look(3), Found::Stored(stored) if stored == bytes(1, 20_000)));
    cache.warm(&Key::nth(3, &pool), Class::Metadata, bytes(4, 131_072));
    assert!(matches!(look(3), Found::Content(content) if content == bytes(4, 131_072)));
}

/// Notes what it gets.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Stored>>);

impl Below for Recorder {
    fn evicted(&self, block: Stored) -> Fate {
        // It has some already.
        let fate = if block.dva[1] >> 3 & 15 == 15 { Fate::Cached } else { block.fate() };
        self.0.lock().push(block);
        fate
    }
    fn read(&self, _pool: u64, _bp: &ondisk::blkptr::BlkPtr, _is_eligible: bool) -> Option<BelowFuture> {
        None
    }
    fn lied(&self, _pool: u64, _bp: &ondisk::blkptr::BlkPtr) {}
}

#[test]
fn it_finds_what_it_was_given_and_only_that() {
    let cache = BlockCache::new(4 << 20);
    let pool = origin(1);
    cache.insert(block(&pool, 1, bytes(1, 4096), None));
    assert_eq!(find(&cache, &pool, 1), Some(bytes(1, 4096)));
    assert_eq!(find(&cache, &pool, 2), None);
    let later = Key { birth: 8, ..Key::nth(1, &pool) };
    assert!(matches!(cache.find(&later, Access::Demand), Found::Nothing));
    // A pointer that claims the same place with another checksum: the newer one is believed by those who know it.
    let lie = Key { tag: 99, ..Key::nth(1, &pool) };
    assert!(matches!(cache.find(&lie, Access::Demand), Found::Nothing));
    cache.insert(Fresh { key: lie, ..block(&pool, 1, bytes(9, 4096), None) });
    assert!(matches!(cache.find(&lie, Access::Demand), Found::Content(found) if found == bytes(9, 4096)));
    assert_eq!(find(&cache, &pool, 1), None);
    assert_eq!(cache.stats().hash_elements, 1);
}

#[test]
fn several_blocks_are_found_together_or_not_at_all() {
    let (one_by_one, together) = (BlockCache::new(16 << 20), BlockCache::new(16 << 20));
    let pool = origin(1);
    let keys: Vec<Key> = (0..200).map(|n| Key::nth(n, &pool)).collect();
    for cache in [&one_by_one, &together] {
        (0..199).for_each(|n| cache.insert(block(&pool, n, bytes(n, 4096), None)));
    }
    let mut uses = Uses::default();
    let found = together.find_all(&keys[..199], Access::Demand, &mut uses).expect("all of them are here");
    assert_eq!(together.stats().hits, 0, "counted when the request is answered");
    together.count(Access::Demand, &uses);
    for (n, found) in (0..).zip(&found) {
        assert!(matches!(found, Found::Content(content) if *content == bytes(n, 4096)), "{n}");
        assert!(find(&one_by_one, &pool, n).is_some());
    }
    assert_eq!(found.len(), 199);
    // They count as uses, in the same way.
    assert_eq!(together.stats().hits, one_by_one.stats().hits);
    assert_eq!(together.stats().mfu_size, one_by_one.stats().mfu_size);
    let mut find_all = |keys: &[Key]| together.find_all(keys, Access::Demand, &mut uses).map(|all| all.len());
    assert_eq!(find_all(&keys), None);
    assert_eq!(find_all(&[keys[0], Key { tag: 99, ..keys[1] }]), None, "another block of that name");
    assert_eq!(find_all(&[]), Some(0));
}

#[test]
fn blocks_of_different_requests_are_found_together_each_as_it_would_be_alone() {
    let (one_by_one, together) = (BlockCache::new(16 << 20), BlockCache::new(16 << 20));
    let pool = origin(1);
    let is_here = |n: u64| n % 3 != 1;
    for cache in [&one_by_one, &together] {
        (0..200).filter(|n| is_here(*n)).for_each(|n| cache.insert(block(&pool, n, bytes(n, 4096), None)));
    }
    let lie = Key { tag: 99, ..Key::nth(0, &pool) };
    let keys: Vec<Key> = (0..200).map(|n| Key::nth(n * 7 % 200, &pool)).chain([lie]).collect();
    let mut uses = vec![Uses::default(); keys.len()];
    let found = together.find_each(&keys, Access::Demand, &mut uses);
    uses.iter().for_each(|uses| together.count(Access::Demand, uses));
    assert_eq!(found.len(), keys.len());
    for (n, found) in (0..200).map(|n| n * 7 % 200).zip(&found) {
        match found {
            Found::Content(content) => assert!(is_here(n) && *content == bytes(n, 4096), "{n}"),
            _ => assert!(!is_here(n), "{n}"),
        }
        assert_eq!(find(&one_by_one, &pool, n).is_some(), is_here(n));
    }
    assert!(matches!(found[200], Found::Nothing), "another block of that name");
    assert_eq!(together.stats().hits, one_by_one.stats().hits);
    assert_eq!(together.stats().mfu_size, one_by_one.stats().mfu_size);
    assert!(together.find_each(&[], Access::Demand, &mut []).is_empty());
}

/// Blocks of one request that were written here and there are in many shards, whose locks are held together.
#[test]
fn blocks_of_many_shards_are_found_in_any_order_beside_others_that_come_and_go() {
    let cache = BlockCache::new(64 << 20);
    let pool = origin(1);
    let nth = |n: u64| n * 211;
    (0..1000).for_each(|n| cache.insert(block(&pool, nth(n), bytes(n, 4096), None)));
    let (cache, pool) = (&cache, &pool);
    std::thread::scope(|scope| {
        for step in [1, 999, 7, 333] {
            scope.spawn(move || {
                for turn in 0..500_u64 {
                    let row: Vec<u64> = (0..37).map(|k| (turn * 31 + k * step) % 1000).collect();
                    let keys: Vec<Key> = row.iter().map(|n| Key::nth(nth(*n), pool)).collect();
                    let found = cache.find_all(&keys, Access::Demand, &mut Uses::default());
                    let found = found.expect("they stay");
                    for (n, found) in row.iter().zip(found) {
                        assert!(
                            matches!(found, Found::Content(content) if content == bytes(*n, 4096)),
                            "{n}"
                        );
                    }
                }
            });
        }
        scope.spawn(move || {
            for n in 0..4000 {
                cache.insert(block(pool, 1_000_000 + n, bytes(n, 4096), None));
                cache.forget(&[Key::nth(1_000_000 + n, pool)]);
            }
        });
    });
}

#[test]
fn blocks_that_come_together_come_as_each_would() {
    let (one_by_one, together) = (BlockCache::new(16 << 20), BlockCache::new(16 << 20));
    let pool = origin(1);
    // Some twice, some here already.
    let numbers = [0..40_u64, 20..70, 5..6, 69..200];
    for numbers in numbers {
        let row =
            || numbers.clone().chain(numbers.clone().take(3)).map(|n| block(&pool, n, bytes(n, 4096), None));
        row().for_each(|fresh| one_by_one.insert(fresh));
        together.insert_all(row());
    }
    let lie = Key { tag: 99, ..Key::nth(7, &pool) };
    for cache in [&one_by_one, &together] {
        cache.insert_all([
            block(&pool, 300, bytes(1, 4096), Some(bytes(2, 8192))),
            Fresh { key: lie, ..block(&pool, 7, bytes(9, 4096), None) },
        ]);
        assert!((0..200).filter(|n| *n != 7).all(|n| find(cache, &pool, n) == Some(bytes(n, 4096))));
        assert_eq!(find(cache, &pool, 7), None, "a newer block has its identity");
        assert_eq!(find(cache, &pool, 300), Some(bytes(2, 8192)), "the content, because it is wanted next");
    }
    assert_eq!(together.stats(), one_by_one.stats());
}

#[test]
fn rows_that_push_each_other_out_leave_nothing_behind() {
    for budget in [256 << 10, 2 << 20, 20 << 20] {
        let below = Arc::new(Recorder::default());
        let cache = BlockCache::new(budget);
        let pool = origin(1);
        pool.set_below(Some(below.clone()));
        let mut random = Random(budget as u64);
        let mut given = BTreeMap::new();
        let memory = Bytes::from(vec![7; 64 << 10]);
        for _ in 0..600 {
            let (from, len) = (random.below(1500), random.below(70));
            let row: Vec<Fresh<'_>> = (0..len)
                .map(|n| {
                    let n = if random.below(8) == 0 { random.below(1500) } else { from + n };
                    let is_written = random.below(2) == 0;
                    *given.entry(n).or_insert(0) += 1;
                    match is_written {
                        true => {
                            Fresh { memory: Memory::Writer, ..block(&pool, n, memory.slice(..4096), None) }
                        }
                        false => block(&pool, n, bytes(7, 4096), None),
                    }
                })
                .collect();
            cache.insert_all(row);
            assert!(cache.size() <= budget, "{} of {budget}", cache.size());
            let keys: Vec<Key> =
                (0..random.below(40)).map(|n| Key::nth(from + n * (1 + n % 2), &pool)).collect();
            cache.forget(&keys);
            assert!(keys.iter().all(|key| !cache.has(key)));
            let n = random.below(1500);
            assert!(find(&cache, &pool, n).is_none_or(|found| found == bytes(7, 4096)));
        }
        let here = (0..1600).filter(|n| cache.has(&Key::nth(*n, &pool))).count() as u64;
        assert_eq!(cache.stats().hash_elements, here);
        for stored in below.0.lock().iter() {
            let n = (0..1600).find(|n| Key::nth(*n, &pool).dva == stored.dva).expect("a block that came in");
            assert!(given.contains_key(&n));
        }
        cache.forget_all(&pool);
        assert_eq!(cache.stats().hash_elements, 0);
        assert_eq!(cache.ranks.lock().held.map(|held| held.charged + held.held + held.blocks), [0, 0]);
        below.0.lock().clear();
        assert!(memory.is_unique(), "nothing holds what was written");
    }
}

#[test]
fn pools_with_equal_addresses_never_mix_and_leave_alone() {
    let cache = BlockCache::new(16 << 20);
    // The same pool opened twice, and another one.
    let pools = [origin(1), Arc::new(Origin::new(1, 77)), origin(2)];
    for n in 0..100 {
        for (which, pool) in pools.iter().enumerate() {
            cache.insert(block(pool, n, bytes(n * 3 + which as u64, 4096), None));
        }
    }
    for n in 0..100 {
        for (which, pool) in pools.iter().enumerate() {
            if let Some(found) = find(&cache, pool, n) {
                assert_eq!(found, bytes(n * 3 + which as u64, 4096));
            }
        }
        assert!(find(&cache, &pools[2], n).is_some());
    }
    let before = cache.stats();
    cache.forget_all(&pools[2]);
    assert!((0..100).all(|n| find(&cache, &pools[2], n).is_none()));
    assert!((0..100).all(|n| find(&cache, &pools[1], n).is_some()));
    assert_eq!(cache.stats().hash_elements, before.hash_elements - 100);
}

#[test]
fn hit_ratios_are_those_of_the_plain_policy() {
    for replacement in [Replacement::Arc, Replacement::Default] {
        let mut cache = BlockCache::with_replacement(32 << 20, replacement);
        cache.clock.count_every_use();
        let pool = origin(1);
        let data = bytes(0, 4096);
        let accesses = 400_000;
        let mut random = Random(3);
        // Popularity by a cube, and a scan now and then.
        let mut next = |n: u64| {
            let unit_interval = random.below(1 << 40) as f64 / (1u64 << 40) as f64;
            if n % 50_000 < 10_000 { 1_000_000 + n } else { (unit_interval.powi(3) * 60_000.0) as u64 }
        };
        let trace: Vec<u64> = (0..accesses).map(&mut next).collect();
        let mut hits = 0i64;
        for id in &trace {
            match find(&cache, &pool, *id) {
                Some(_) => hits += 1,
                None => cache.insert(block(&pool, *id, data.clone(), None)),
            }
        }
        // The plain policy gets what the cache leaves for data once it is full, in units of a block.
        let held = cache.stats().hash_elements;
        assert!(held > 6800, "nearly nine tenths of the memory are blocks: {held}");
        let unit = (4096 + OVERHEAD).div_ceil(UNIT) as u32;
        let mut plain: Box<dyn Policy> = match replacement {
            Replacement::Arc => Box::new(Classic::new(held * u64::from(unit))),
            Replacement::Default => Box::new(Adaptive::new(held * u64::from(unit))),
        };
        let (mut slots, mut owners) = (BTreeMap::new(), BTreeMap::new());
        let mut plain_hits = 0i64;
        for id in &trace {
            if let Some(slot) = slots.get(id) {
                plain.hit(*slot);
                plain_hits += 1;
                continue;
            }
            let fresh = Block { id: Key::nth(*id, &pool).id, size: unit };
            let slot = plain.insert(fresh, &mut |slot| {
                let owner = owners.remove(&slot).unwrap();
                slots.remove(&owner);
            });
            slots.insert(*id, slot.unwrap());
            owners.insert(slot.unwrap(), *id);
        }
        let points = (hits - plain_hits) as f64 * 100.0 / accesses as f64;
        assert!(points.abs() <= 0.5, "{replacement:?}: {hits} hits, the plain policy has {plain_hits}");
    }
}

#[test]
fn a_hot_set_survives_a_scan_of_ten_times_the_cache() {
    let mut cache = BlockCache::new(32 << 20);
    cache.clock.count_every_use();
    let pool = origin(1);
    let read = |n: u64, len: usize| match find(&cache, &pool, n) {
        Some(_) => true,
        None => {
            cache.insert(block(&pool, n, bytes(n, len), None));
            false
        }
    };
    for _ in 0..5 {
        (0..3000).for_each(|n| {
            read(n, 4096);
        });
    }
    for n in 0..80_000 {
        read(1_000_000 + n, 4096);
        // The hot set goes on being used, a little.
        if n % 8 == 0 {
            read(n / 8 % 3000, 4096);
        }
    }
    let kept = (0..3000).filter(|n| read(*n, 4096)).count();
    assert!(kept >= 2970, "{kept} of 3000");
}

#[test]
fn uses_that_follow_each_other_at_once_are_one() {
    let cache = BlockCache::new(32 << 20);
    let pool = origin(1);
    cache.insert(block(&pool, 1, bytes(1, 4096), None));
    (0..10).for_each(|_| drop(find(&cache, &pool, 1)));
    assert_eq!((cache.stats().mru_hits, cache.stats().mfu_hits), (10, 0));
    // As much came in as a turn is long.
    (100..400).for_each(|n| cache.insert(block(&pool, n, bytes(1, 4096), None)));
    (0..10).for_each(|_| drop(find(&cache, &pool, 1)));
    assert_eq!((cache.stats().mru_hits, cache.stats().mfu_hits), (11, 9));
}

#[test]
fn what_was_read_ahead_is_used_once_when_it_is_asked_for() {
    let cache = BlockCache::new(32 << 20);
    let pool = origin(1);
    cache.insert(Fresh { access: Access::Prefetch, ..block(&pool, 1, bytes(1, 4096), None) });
    cache.insert(Fresh { access: Access::Prefetch, ..block(&pool, 2, bytes(2, 4096), None) });
    (100..400).for_each(|n| cache.insert(block(&pool, n, bytes(1, 4096), None)));
    (0..2).for_each(|_| drop(find(&cache, &pool, 1)));
    let stats = cache.stats();
    assert_eq!((stats.demand_hit_predictive_prefetch, stats.mru_hits, stats.mfu_hits), (1, 2, 0));
}

#[test]
fn stored_forms_are_kept_and_contents_of_what_is_used() {
    let cache = BlockCache::new(8 << 20);
    let pool = origin(1);
    let content = |n: u64| IoBuf::from_slice(&vec![n as u8; 16 << 10]).freeze();
    for n in 0..1000 {
        cache.insert(block(&pool, n, bytes(n, 4096), Some(content(n))));
    }
    let stats = cache.stats();
    assert_eq!(stats.hash_elements, 1000, "4 MB of stored blocks fit, though their contents would not");
    assert_eq!((stats.compressed_size, stats.uncompressed_size), (1000 * 4096, 1000 * (16 << 10)));
    assert!(stats.overhead_size <= (1 << 20) && stats.overhead_size > (1 << 19), "an eighth: {stats:?}");
    let found = |n: u64| cache.find(&Key::nth(n, &pool), Access::Demand);
    assert!(matches!(found(0), Found::Stored(stored) if stored == bytes(0, 4096)));
    cache.warm(&Key::nth(0, &pool), Class::Data, content(0));
    for n in 1..1000 {
        // The one that is used stays hot while others come by.
        assert!(matches!(found(0), Found::Content(found) if found == content(0)), "{n}");
        if let Found::Stored(_) = found(n) {
            cache.warm(&Key::nth(n, &pool), Class::Data, content(n));
        }
    }
    cache.warm(&Key::nth(0, &pool), Class::Data, bytes(0, 99));
    assert!(matches!(found(0), Found::Content(found) if found == content(0)), "not of that size");
}

#[test]
fn a_block_that_stays_does_not_hold_the_memory_of_its_transfer() {
    let mut cache = BlockCache::new(8 << 20);
    cache.clock.count_every_use();
    let pool = origin(1);
    let memory = Bytes::from(vec![7; 1 << 20]);
    let transfer = Transfer::new();
    for n in 0..256 {
        let slice = memory.slice(n * 4096..(n + 1) * 4096);
        cache.insert(Fresh { memory: Memory::Transfer(&transfer), ..block(&pool, n as u64, slice, None) });
    }
    cache.close(&transfer, 1 << 20);
    assert_eq!(find(&cache, &pool, 3).unwrap().as_ptr(), memory[3 * 4096..].as_ptr(), "no copy");
    assert_eq!(cache.pinned.bytes(), 0, "all of it is in use");
    for n in 1000..8000 {
        assert_eq!(find(&cache, &pool, 3), Some(bytes(7, 4096)), "the hot one stays");
        cache.insert(block(&pool, n, bytes(1, 4096), None));
        assert!(cache.pinned.bytes() <= (8 << 20) / PINNED, "{}", cache.pinned.bytes());
    }
    assert_ne!(
        find(&cache, &pool, 3).unwrap().as_ptr(),
        memory[3 * 4096..].as_ptr(),
        "it has memory of its own"
    );
    assert!(memory.is_unique(), "nothing holds the transfer any more");
}

#[test]
fn what_was_written_does_not_hold_the_memory_of_its_request() {
    let mut cache = BlockCache::new(8 << 20);
    cache.clock.count_every_use();
    let pool = origin(1);
    let memory = Bytes::from(vec![7; 1 << 20]);
    for n in 0..256 {
        let slice = memory.slice(n * 4096..(n + 1) * 4096);
        cache.insert(Fresh { memory: Memory::Writer, ..block(&pool, n as u64, slice, None) });
    }
    for n in 1000..8000 {
        assert_eq!(find(&cache, &pool, 3), Some(bytes(7, 4096)), "the hot one stays");
        let fresh = block(&pool, n, bytes(1, 4096), None);
        cache.insert(Fresh { memory: Memory::Writer, ..fresh });
    }
    assert!(memory.is_unique(), "nothing holds the request any more");
}

/// Most of what clients write lands in memory of its own for each block. When a part of it is overwritten nothing else is
/// held for nothing, and what stays needs no copy.
#[test]
fn what_was_written_into_memory_of_its_own_is_no_part_of_anything() {
    let cache = BlockCache::new(64 << 20);
    let pool = origin(1);
    let memory = Bytes::from(vec![7; 4 << 20]);
    let own = |n: u64| memory.slice(n as usize * 8192..n as usize * 8192 + 4096);
    for row in 0..16 {
        let fresh = (row * 32..(row + 1) * 32)
            .map(|n| Fresh { memory: Memory::Writer, ..block(&pool, n, own(n), None) });
        cache.insert_all(fresh);
    }
    let keys: Vec<Key> = (0..512).filter(|n| n % 5 > 0).map(|n| Key::nth(n, &pool)).collect();
    cache.forget(&keys);
    assert_eq!(cache.pinned.bytes(), 0);
    assert_eq!(find(&cache, &pool, 5).unwrap().as_ptr(), own(5).as_ptr());
}

#[test]
fn hits_of_one_thread_are_played_while_others_sleep() {
    let cache = Arc::new(BlockCache::new(32 << 20));
    let pool = origin(1);
    (0..64).for_each(|n| cache.insert(block(&pool, n, bytes(n, 4096), None)));
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As much as a turn comes in, then each is used once, and the thread is gone.
            (1000..1300).for_each(|n| cache.insert(block(&pool, n, bytes(n, 4096), None)));
            (0..32).for_each(|n| drop(find(&cache, &pool, n)));
            done.store(1, Relaxed);
        });
    });
    assert_eq!(done.load(Relaxed), 1);
    assert_eq!(cache.stats().mfu_size, 0, "they are noted only");
    (2000..2040).for_each(|n| cache.insert(block(&pool, n, bytes(n, 4096), None)));
    assert!(cache.stats().mfu_size >= 32 * 4096, "{:?}", cache.stats());
}

#[test]
fn what_is_read_ahead_is_counted_while_it_is_and_for_good() {
    let cache = BlockCache::new(4 << 20);
    [Followed::Hit, Followed::Hit, Followed::Miss].into_iter().for_each(|one| cache.count_followed(one));
    let issued = cache.count_ahead(5);
    let active = cache.stats().zfetch_io_active;
    drop(issued);
    let stats = cache.stats();
    assert_eq!(
        (stats.zfetch_hits, stats.zfetch_stride, stats.zfetch_past, stats.zfetch_misses),
        (2, 0, 0, 1)
    );
    assert_eq!((stats.zfetch_io_issued, active, stats.zfetch_io_active), (5, 5, 0));
}

#[test]
fn counters_are_found_by_their_names() {
    let mut stats = ArcStats::default();
    let names: Vec<&str> = stats.rows().into_iter().map(|(name, _)| name).collect();
    for (n, name) in names.iter().enumerate() {
        assert!(stats.add(name, n as u64));
    }
    assert!(!stats.add("nothing", 1));
    // Those that OpenZFS has, after docs/format/arc.md.
    for list in ["anon", "mru", "mru_ghost", "mfu", "mfu_ghost", "uncached"] {
        for of in ["size", "data", "metadata", "evictable_data", "evictable_metadata"] {
            assert!(names.contains(&&*format!("{list}_{of}")), "{list}_{of}");
        }
    }
    for name in "hash_elements_max hash_collisions hash_chains hash_chain_max dbuf_size dnode_size bonus_size \
                 l2_rw_clash l2_writes_lock_retry l2_evict_lock_retry l2_evict_l1cached l2_free_on_write \
                 l2_data_to_meta_ratio memory_direct_count memory_indirect_count arc_no_grow arc_tempreserve \
                 arc_loaned_bytes arc_prune arc_meta_used arc_dnode_limit arc_need_free arc_sys_free arc_raw_size \
                 abd_chunk_waste_size async_upgrade_sync demand_iohit_predictive_prefetch prescient_prefetch \
                 demand_hit_prescient_prefetch demand_iohit_prescient_prefetch cached_only_in_progress \
                 zfetch_hits zfetch_future zfetch_stride zfetch_past zfetch_misses zfetch_max_streams zfetch_io_issued \
                 zfetch_io_active"
        .split_whitespace()
    {
        assert!(names.contains(&name), "{name}");
    }
    assert!(stats.rows().iter().enumerate().all(|(n, (_, value))| *value == n as u64), "each is its own");
    assert_eq!(stats.since(&ArcStats::default()), stats);
    assert_eq!(stats.since(&stats), ArcStats::default());
}

#[test]
fn what_more_memory_would_hit_is_known_from_a_sample_and_ghosts_agree() {
    let mut cache = BlockCache::new(64 << 20);
    cache.clock.count_every_use();
    let pool = origin(1);
    let data = bytes(0, 4096);
    let mut random = Random(5);
    let mut used = |cache: &BlockCache, accesses: u64| {
        let mut hits = 0;
        for _ in 0..accesses {
            let unit_interval = random.below(1 << 40) as f64 / (1_u64 << 40) as f64;
            let n = (unit_interval.powi(2) * 50_000.0) as u64;
            match find(cache, &pool, n) {
                Some(_) => hits += 1,
                None => {
                    cache.count_miss(Access::Demand, Class::Data);
                    cache.insert(Fresh { objset: 54 + n % 2, ..block(&pool, n, data.clone(), None) });
                }
            }
            // There is no task here that plays what was noted.
            if cache.stripes.demand().iter().sum::<u64>() % 4096 == 0 {
                drop(cache.advice());
            }
        }
        f64::from(hits) / accesses as f64
    };
    used(&cache, 400_000);
    let advice = cache.advice().unwrap();
    let stats = cache.stats();
    assert!(stats.size <= stats.c, "its memory is within the budget: {stats:?}");
    assert!(advice.memory < 10 << 20, "{}", advice.memory);
    assert_eq!(advice.one_in, 128);
    let whole = &advice.whole;
    assert!(whole.accesses > 2500.0, "one in 128 of 400 000: {whole:?}");
    let really = stats.demand_data_hits as f64 / (stats.demand_data_hits + stats.demand_data_misses) as f64;
    assert!(
        (whole.hit_ratio - really).abs() < 1e-6,
        "what is there is what was counted: {whole:?}, {really}"
    );
    // Four times the memory holds everything.
    let larger = BlockCache::new(256 << 20);
    used(&larger, 400_000);
    let larger = used(&larger, 100_000);
    let most = whole.memory.last().unwrap();
    assert!(most.size > 200 << 20, "{whole:?}");
    assert!((most.hit_ratio - larger).abs() <= whole.error + 0.05, "{whole:?}, really {larger}");
    assert!(
        whole.memory.windows(2).all(|two| two[0].hit_ratio <= two[1].hit_ratio + whole.error),
        "{whole:?}"
    );
    assert!(whole.second[0].hit_ratio > whole.hit_ratio, "{whole:?}");
    let double = whole.memory[4].hit_ratio - whole.hit_ratio;
    assert!(advice.ghosts > 0.02 && advice.ghosts < double + whole.error, "{} of {double}", advice.ghosts);
    assert_eq!(advice.pools.len(), 1);
    let known: Vec<(u64, u64)> = advice.datasets.iter().map(|(pool, objset, _)| (*pool, *objset)).collect();
    assert_eq!(known, [(1, 54), (1, 55)]);
    assert!(BlockCache::new(32 << 20).advice().is_none(), "too small to be sampled");
}

/// Of a dataset only the uses were known that the policies are told of, so that it seemed to miss far more than it did.
#[test]
fn uses_that_are_one_to_the_policies_count_for_their_dataset() {
    let cache = BlockCache::new(64 << 20);
    let (pool, data) = (origin(1), bytes(0, 4096));
    for n in 0..40_000 {
        cache.count_miss(Access::Demand, Class::Data);
        cache.insert(block(&pool, n, data.clone(), None));
        // Half of them are noted each for itself, the others together.
        (0..32).for_each(|_| drop(find(&cache, &pool, n)));
        // There is no task here that plays what was noted.
        if n % 1000 == 0 {
            drop(cache.advice());
        }
    }
    let advice = cache.advice().unwrap();
    let (whole, part) = (&advice.whole, &advice.datasets[0].2);
    assert!((whole.hit_ratio - 32.0 / 33.0).abs() < 0.001, "{whole:?}");
    assert!((part.hit_ratio - whole.hit_ratio).abs() < 0.01 && part.error < 0.25, "{part:?} of {whole:?}");
}

/// After a restart it said of every warm block that it had been missed, at every size.
#[test]
fn what_is_warmed_written_or_read_ahead_is_missed_by_nobody() {
    let cache = BlockCache::new(64 << 20);
    let (pool, data) = (origin(1), bytes(0, 4096));
    for n in 0..120_000 {
        let access = if n % 2 == 0 { Access::Prefetch } else { Access::Demand };
        let memory = if n % 2 == 0 { Memory::Own } else { Memory::Warmed };
        cache.insert(Fresh { access, memory, ..block(&pool, n % 20_000, data.clone(), None) });
        drop(find(&cache, &pool, n % 20_000));
    }
    assert!(cache.stats().mru_ghost_hits + cache.stats().mfu_ghost_hits > 0, "they were here before");
    let advice = cache.advice().unwrap();
    let whole = &advice.whole;
    assert!(whole.accesses > 100.0 && whole.hit_ratio == 1.0 && advice.ghosts == 0.0, "{advice:?}");
    // And of what may not be kept that more memory would hit it.
    (0..80_000).for_each(|_| {
        cache.count_miss(Access::Demand, Class::Data);
        cache.count_unkept(Access::Demand, Class::Data);
    });
    assert_eq!(cache.advice().unwrap().whole.hit_ratio, 1.0);
    assert_eq!(cache.stats().demand_data_misses, 80_000, "which the counters say");
}

/// Blocks that lie where memory is to be given back are moved, in both forms they may have, and are the same to everybody.
#[test]
fn blocks_are_moved_out_of_memory_that_is_to_be_given_back() {
    let cache = BlockCache::new(64 << 20);
    let origin = origin(1);
    for n in 0..3000 {
        let content = (n % 10 == 0).then(|| bytes(n + 1, 16384));
        cache.insert(block(&origin, n, bytes(n, 8192 + (n as usize % 3) * 512), content));
    }
    let forms = |n: u64| {
        let mut shard = cache.shard(Key::nth(n, &origin).id).lock();
        let entry = shard.get_mut(&Key::nth(n, &origin)).unwrap();
        [Some(entry.held.clone()), entry.hot.clone()]
    };
    let before: Vec<[Option<Bytes>; 2]> = (0..3000).map(forms).collect();
    assert!(before.iter().filter(|[_, hot]| hot.is_some()).count() > 100);
    let size = cache.size();
    let is_leaving = |memory: &[u8]| {
        before.iter().flatten().flatten().any(|form| form.as_ptr() == memory.as_ptr() && form[0] % 2 == 0)
    };
    let (mut place, mut steps) = ((0, 0), 0);
    while cache.gather_some(&is_leaving, &mut place) {
        steps += 1;
    }
    assert!(steps > SHARDS, "{steps}");
    for (n, before) in (0..3000).zip(&before) {
        for (before, after) in before.iter().zip(forms(n)) {
            assert!(*before == after, "{n} is another");
            let place = |form: &Option<Bytes>| form.as_ref().map(|form| form.as_ptr().addr());
            let moves = before.as_ref().is_some_and(|form| form[0] % 2 == 0);
            assert_eq!(place(before) != place(&after), moves, "{n}");
        }
    }
    assert_eq!(cache.size(), size);
}
