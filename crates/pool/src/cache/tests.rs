//! What the cache promises: its budget, whose bytes it gives, what it keeps, and what the tier below gets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use ::cache::{Adaptive, Arc as Classic, Block, Policy};

use super::*;

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
        Found::Content(bytes) | Found::Stored(bytes) => Some(bytes),
        Found::Nothing => None,
    }
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
    fn read(&self, _pool: u64, _bp: &ondisk::blkptr::BlkPtr) -> Option<BelowFuture> {
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
fn the_budget_holds_for_blocks_of_all_sizes_and_when_it_shrinks() {
    for replacement in [Replacement::Arc, Replacement::Default] {
        let mut random = Random(7);
        let cache = BlockCache::with_replacement(24 << 20, replacement);
        let pool = origin(1);
        for n in 0..30_000u64 {
            if n % 5000 == 2499 {
                cache.set_budget([24 << 20, 2 << 20, 40 << 20, 9 << 20][random.below(4) as usize]);
                let stats = cache.stats();
                assert!(stats.size <= stats.c, "after a new budget: {stats:?}");
            }
            let id = random.below(8000);
            let len = 512 << random.below(8);
            if find(&cache, &pool, id).is_none() {
                let mut fresh = block(&pool, id, bytes(id, len), None);
                if random.below(3) == 0 {
                    let content = Some(IoBuf::from_slice(&vec![id as u8; len * 3]).freeze());
                    fresh = block(&pool, id, bytes(id, len), content);
                }
                if random.below(4) == 0 {
                    fresh.class = Class::Metadata;
                }
                if random.below(2) == 0 {
                    fresh.memory = Memory::Writer;
                }
                cache.insert(fresh);
            }
            if n % 64 == 0 {
                let stats = cache.stats();
                assert!(stats.size <= stats.c, "{n}: {stats:?}");
            }
        }
        let stats = cache.stats();
        assert!(stats.size > stats.c * 3 / 4, "and it is used: {stats:?}");
        assert_eq!(
            stats.data_size + stats.metadata_size,
            stats.compressed_size + stats.overhead_size,
            "{stats:?}"
        );
        assert!(stats.overhead_size > 0 && stats.metadata_size > 0, "{stats:?}");
        cache.set_budget(0);
        assert_eq!(cache.stats().hash_elements, 0);
        assert_eq!((cache.hot.taken(), cache.pinned.bytes()), (0, 0), "all of it was given back");
    }
}

#[test]
fn a_smaller_budget_is_approached_in_slices_and_a_larger_one_is_there_at_once() {
    let cache = BlockCache::new(64 << 20);
    let pool = origin(1);
    (0..3000).for_each(|n| cache.insert(block(&pool, n, bytes(n, 8192), None)));
    let full = cache.size();
    assert!(full > 22 << 20, "{full}");
    assert!(!cache.approach(4 << 20), "not all at once");
    assert!(cache.budget() <= full - (8 << 20), "what it did not use is no work");
    assert!(cache.budget() >= full - (9 << 20) && cache.size() <= cache.budget());
    let mut steps = 1;
    while !cache.approach(4 << 20) {
        steps += 1;
        assert!(cache.size() <= cache.budget() && steps < 5);
    }
    assert!(cache.budget() == 4 << 20 && cache.size() <= 4 << 20);
    assert_eq!(cache.stats().size, cache.size() as u64);
    assert!(cache.approach(32 << 20) && cache.budget() == 32 << 20);
}

/// What had the memory of far more blocks was moved together in one go, and the task that did it did nothing else.
#[test]
fn tables_are_given_back_a_little_at_a_time_and_others_use_the_cache_in_between() {
    for replacement in [Replacement::Arc, Replacement::Default] {
        let cache = BlockCache::with_replacement(128 << 20, replacement);
        let (closed, other) = (origin(1), origin(2));
        let data = bytes(7, 512);
        (0..60_000).for_each(|n| cache.insert(block(&closed, n, data.clone(), None)));
        (0..20_000).for_each(|n| cache.insert(block(&other, n, bytes(n, 512), None)));
        let (mut place, mut steps, mut came) = ((0, usize::MAX), 0, 0);
        while cache.forget_some(&closed, &mut place) {
            if Arc::strong_count(&closed) > 1 {
                continue;
            }
            steps += 1;
            cache.insert(block(&other, 20_000 + came, bytes(20_000 + came, 512), None));
            came += 1;
            assert_eq!(find(&cache, &other, steps), Some(bytes(steps, 512)));
        }
        assert!((2..50).contains(&steps), "{steps}");
        assert!(cache.ranks.lock().memory() < 24_000 * 100, "{}", cache.ranks.lock().memory());
        for n in 0..20_000 + came {
            assert_eq!(find(&cache, &other, n), Some(bytes(n, 512)), "{n}");
        }
        // A budget is not reached before that is done.
        cache.set_budget(4 << 20);
        assert!(cache.size() <= 4 << 20 && cache.approach(4 << 20));
    }
}

/// All of it left under one lock, in which every miss of every pool waited, beside a list of all that went; and what the
/// tables took stayed for good.
#[test]
fn a_closed_pool_leaves_a_few_blocks_at_a_time_and_its_tables_go_too() {
    for replacement in [Replacement::Arc, Replacement::Default] {
        let cache = BlockCache::with_replacement(64 << 20, replacement);
        let (closed, other) = (origin(1), origin(2));
        let data = bytes(7, 512);
        (0..40_000).for_each(|n| cache.insert(block(&closed, n, data.clone(), None)));
        (0..1000).for_each(|n| cache.insert(block(&other, n, bytes(n, 512), None)));
        let before = cache.stats();
        assert_eq!(before.hash_elements, 41_000);
        let (mut place, mut here) = ((0, usize::MAX), before.hash_elements);
        while cache.forget_some(&closed, &mut place) {
            let now = cache.stats().hash_elements;
            assert!(here - now <= AT_ONCE as u64, "{} in one step", here - now);
            here = now;
        }
        let after = cache.stats();
        assert_eq!(after.hash_elements, 1000);
        assert!(after.hdr_size < before.hdr_size / 4, "{} of {}", after.hdr_size, before.hdr_size);
        // The others' places were moved: they are still told apart, used and evicted one by one.
        for n in 0..1000 {
            assert_eq!(find(&cache, &other, n), Some(bytes(n, 512)));
        }
        cache.set_budget(0);
        assert_eq!(cache.stats().hash_elements, 0);
        assert_eq!(cache.ranks.lock().held.map(|held| held.charged + held.held + held.blocks), [0, 0]);
    }
}

/// Tables of small blocks are more than a quarter of all, and that was taken for what is left of a far larger cache: it
/// was emptied, and counters began anew.
#[test]
fn a_little_less_memory_costs_a_little_of_a_cache_of_small_blocks() {
    for replacement in [Replacement::Arc, Replacement::Default] {
        let cache = BlockCache::with_replacement(40 << 20, replacement);
        let pool = origin(1);
        let data = bytes(7, 512);
        (0..90_000).for_each(|n| cache.insert(block(&pool, n, data.clone(), None)));
        let before = cache.stats();
        assert!(before.hash_elements > 30_000 && before.hdr_size > before.c / 4, "{before:?}");
        cache.set_budget(36 << 20);
        let after = cache.stats();
        assert!(after.size <= after.c, "{after:?}");
        assert!(
            after.hash_elements > before.hash_elements * 3 / 4,
            "{} of {}",
            after.hash_elements,
            before.hash_elements
        );
    }
}

#[test]
fn counters_never_go_back_however_the_budget_changes_and_what_fits_stays() {
    let cache = BlockCache::new(24 << 20);
    let pool = origin(1);
    let mut random = Random(3);
    let mut before = cache.stats();
    for budget in [24, 12, 24, 40, 9, 2, 64].map(|mib| mib << 20) {
        for _ in 0..4000 {
            let n = random.below(6000);
            if find(&cache, &pool, n).is_none() {
                cache.insert(block(&pool, n, bytes(n, 4096), None));
            }
        }
        let held = cache.stats();
        cache.set_budget(budget);
        let now = cache.stats();
        for (name, count) in [
            ("mru_ghost_hits", [before.mru_ghost_hits, now.mru_ghost_hits]),
            ("mfu_ghost_hits", [before.mfu_ghost_hits, now.mfu_ghost_hits]),
            ("mp_switches", [before.mp_switches, now.mp_switches]),
        ] {
            assert!(count[0] <= count[1], "{name}: {count:?}");
        }
        let fits = (budget as u64 / 9000).min(held.hash_elements);
        assert!(now.hash_elements >= fits, "{} of {fits} in {budget}", now.hash_elements);
        before = now;
    }
    assert!(before.mru_ghost_hits > 0);
}

#[test]
fn threads_together_stay_within_the_budget_and_get_right_bytes() {
    let cache = BlockCache::new(3 << 20);
    let pools = [origin(1), origin(2)];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (cache, pools) = (&cache, &pools);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..8000 {
                    let (which, n) = (random.below(2), random.below(900));
                    let pool = &pools[which as usize];
                    let stored = bytes(n * 2 + which, 512 << (n % 5));
                    let content = (n % 3 == 0).then(|| bytes(n * 2 + which, 2048 << (n % 5)));
                    match cache.find(&Key::nth(n, pool), Access::Demand) {
                        Found::Content(found) => assert_eq!(found, content.unwrap_or(stored)),
                        Found::Stored(found) => {
                            assert_eq!(found, stored);
                            cache.warm(&Key::nth(n, pool), Class::Data, content.unwrap());
                        }
                        Found::Nothing if random.below(50) == 0 => cache.forget(&[Key::nth(n + 1, pool)]),
                        Found::Nothing => cache.insert(block(pool, n, stored, content)),
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.size <= stats.c && stats.size > stats.c / 2, "{stats:?}");
    assert!(stats.hits > 1000, "{stats:?}");
    pools.iter().for_each(|pool| cache.forget_all(pool));
    assert_eq!((cache.stats().hash_elements, cache.hot.taken(), cache.pinned.bytes()), (0, 0, 0));
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
fn the_tier_below_gets_each_evicted_block_once_in_its_stored_form() {
    let below = Arc::new(Recorder::default());
    let cache = BlockCache::new(2 << 20);
    let pool = origin(5);
    pool.set_below(Some(below.clone()));
    for n in 0..2000u64 {
        let content = (n % 2 == 0).then(|| bytes(n, 8192));
        let fresh = block(&pool, n, bytes(n, 4096), content);
        cache.insert(Fresh { is_eligible: n % 3 != 0, ..fresh });
    }
    // Freed blocks are nobody's; those of a pool that is closed stay where they are.
    let here: Vec<u64> = (0..2000).filter(|n| cache.has(&Key::nth(*n, &pool))).collect();
    cache.forget(&[Key::nth(here[0], &pool)]);
    cache.forget_all(&pool);
    let evicted = below.0.lock();
    assert_eq!(evicted.len() + here.len(), 2000);
    let places: BTreeSet<u64> = evicted.iter().map(|block| block.dva[1] >> 3).collect();
    assert_eq!(places.len(), evicted.len(), "each once");
    assert!(here.iter().all(|n| !places.contains(n)));
    for block in evicted.iter() {
        let n = block.dva[1] >> 3;
        assert_eq!((block.pool, block.birth, block.psize, &block.data), (5, 7, 4096, &bytes(n, 4096)));
        assert_eq!(block.lsize, if n % 2 == 0 { 8192 } else { 4096 });
        assert_eq!((block.eligible, block.frequent, block.metadata), (n % 3 != 0, false, false));
    }
    let stats = cache.stats();
    assert_eq!(stats.deleted, 2000);
    // Each counts once: as what the tier has, may have, or may not.
    let sum = |is_it: fn(u64) -> bool| -> u64 {
        let blocks = evicted.iter().filter(|block| is_it(block.dva[1] >> 3));
        blocks.map(|block| u64::from(block.lsize)).sum()
    };
    assert_eq!(stats.evict_l2_cached, sum(|n| n % 16 == 15));
    assert_eq!(stats.evict_l2_eligible, sum(|n| n % 16 != 15 && n % 3 != 0));
    assert_eq!(stats.evict_l2_ineligible, sum(|n| n % 16 != 15 && n % 3 == 0));
    assert_eq!(stats.evict_l2_eligible_mru, stats.evict_l2_eligible);
}

/// Whoever keeps such a block keeps the whole transfer, and has to know.
#[test]
fn the_tier_below_is_told_which_blocks_are_parts_of_more_memory() {
    let below = Arc::new(Recorder::default());
    let cache = BlockCache::new(2 << 20);
    let pool = origin(5);
    pool.set_below(Some(below.clone()));
    let memory = Bytes::from(vec![7; 64 << 10]);
    let transfer = Transfer::new();
    for n in 0..16 {
        let slice = memory.slice(n * 4096..(n + 1) * 4096);
        cache.insert(Fresh { memory: Memory::Transfer(&transfer), ..block(&pool, n as u64, slice, None) });
        cache.insert(block(&pool, 100 + n as u64, bytes(1, 4096), None));
    }
    cache.close(&transfer, memory.len());
    cache.set_budget(0);
    let evicted = below.0.lock();
    assert_eq!(evicted.len(), 32);
    assert!(evicted.iter().all(|block| block.is_part == (block.data == bytes(7, 4096))));
}

/// `l2arc_mfuonly` left cache devices nearly empty: of what is used seldom, each use finds only what is remembered of it.
#[test]
fn a_block_that_comes_back_from_the_ghosts_is_frequent_to_counters_and_to_the_tier_below() {
    for (budget, replacement) in [(4 << 20, Replacement::Arc), (24 << 20, Replacement::Default)] {
        let below = Arc::new(Recorder::default());
        let mut cache = BlockCache::with_replacement(budget, replacement);
        cache.clock.count_every_use();
        let pool = origin(1);
        pool.set_below(Some(below.clone()));
        let come = |n: u64| cache.insert(block(&pool, n, bytes(n, 4096), None));
        // Half of the cache is used again and again, or nothing of the rest would be remembered.
        let often = (budget / 4096 / 2) as u64;
        for n in (0..often).cycle().take(3 * often as usize) {
            if find(&cache, &pool, n).is_none() {
                come(n);
            }
        }
        let seldom = 10_000;
        come(seldom);
        assert_eq!(cache.warmth(&Key::nth(seldom, &pool)), Some(Warmth::Recent));
        let mut next = 20_000;
        while cache.has(&Key::nth(seldom, &pool)) {
            come(next);
            next += 1;
        }
        let hits = cache.stats();
        come(seldom);
        assert_eq!(cache.warmth(&Key::nth(seldom, &pool)), Some(Warmth::Frequent), "{replacement:?}");
        assert_eq!(cache.stats().mru_ghost_hits, hits.mru_ghost_hits + 1);
        drop(find(&cache, &pool, seldom));
        assert_eq!(cache.stats().mfu_hits, hits.mfu_hits + 1, "{replacement:?}");
        cache.set_budget(0);
        let of_it = Key::nth(seldom, &pool).dva;
        let evicted = below.0.lock();
        let frequent: Vec<bool> =
            evicted.iter().filter(|stored| stored.dva == of_it).map(|stored| stored.frequent).collect();
        assert_eq!(frequent, [false, true], "{replacement:?}: evicted once, and as one that came back");
    }
}

#[test]
fn what_was_read_ahead_for_nobody_is_not_eligible_with_or_without_a_tier() {
    for below in [None, Some(Arc::new(Recorder::default()) as Arc<dyn Below>)] {
        let cache = BlockCache::new(2 << 20);
        let pool = origin(5);
        pool.set_below(below);
        cache.insert(block(&pool, 1, bytes(1, 4096), None));
        cache.insert(Fresh { access: Access::Prefetch, ..block(&pool, 2, bytes(2, 8192), None) });
        let full = cache.stats();
        assert_eq!((full.hash_elements_max, full.mru_evictable_data), (2, full.mru_data));
        cache.set_budget(0);
        let stats = cache.stats();
        assert_eq!((stats.evict_l2_eligible, stats.evict_l2_ineligible), (4096, 8192));
        assert_eq!((stats.hash_elements, stats.hash_elements_max), (0, 2));
    }
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
                 demand_hit_prescient_prefetch demand_iohit_prescient_prefetch cached_only_in_progress"
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

/// They kept ten megabytes whatever the budget was: of one of four nothing was left, not even for pointers.
#[test]
fn statistics_give_way_before_blocks_do_and_come_back_by_themselves() {
    let cache = BlockCache::new(64 << 20);
    let pool = origin(1);
    let pointer = |n: u64| Fresh { class: Class::Metadata, ..block(&pool, n, bytes(n, 16 << 10), None) };
    let is_advised = || {
        assert_eq!(cache.advice().is_some(), cache.feed.memory() > 0);
        cache.advice().is_some()
    };
    assert!(is_advised());
    cache.set_budget(50 << 20);
    assert!(is_advised(), "a little less is no reason to begin anew");
    cache.set_budget(4 << 20);
    assert!(!is_advised());
    (0..100).for_each(|n| cache.insert(pointer(n)));
    let stats = cache.stats();
    assert!(stats.hash_elements == 100 && stats.size <= stats.c, "{stats:?}");
    // What happened meanwhile is not what is told of later.
    (0..900).for_each(|_| cache.count_miss(Access::Demand, Class::Data));
    cache.set_budget(60 << 20);
    assert!(!is_advised(), "nor is a little more");
    cache.set_budget(64 << 20);
    assert!(is_advised());
    cache.insert(block(&pool, 1000, bytes(0, 4096), None));
    (0..10).for_each(|_| drop(find(&cache, &pool, 1000)));
    assert_eq!(cache.advice().unwrap().whole.hit_ratio, 1.0);
    // Who watches over the memory may need it at any size.
    cache.keep_advice(false);
    assert!(!is_advised());
    cache.set_budget(256 << 20);
    assert!(!is_advised());
    cache.keep_advice(true);
    assert!(is_advised());
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
