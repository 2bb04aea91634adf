//! What the tier below gets, and what it is told of memory and heat.

use super::*;

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
