//! It stays within its budget, whatever comes, and however that changes.

use super::*;

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

/// An eighth of the memory was kept for copies for good, and stayed empty, once there had been as many.
#[test]
fn what_copies_had_is_for_blocks_when_they_have_gone() {
    let cache = BlockCache::new(32 << 20);
    let pool = origin(1);
    for n in 0..2000 {
        let content = IoBuf::from_slice(&vec![n as u8; 16 << 10]).freeze();
        cache.insert(block(&pool, n, bytes(n, 4096), Some(content)));
    }
    let before = cache.stats();
    assert!(before.overhead_size > (3 << 20) && before.size <= before.c, "{before:?}");
    for n in 10_000..30_000 {
        cache.insert(block(&pool, n, bytes(n, 4096), None));
        assert!(cache.size() <= 32 << 20);
    }
    let after = cache.stats();
    assert_eq!(after.overhead_size, 0);
    assert!(after.size > after.c * 15 / 16, "{} of {}", after.size, after.c);
    // And they get it again.
    for n in 0..2000 {
        let content = IoBuf::from_slice(&vec![n as u8; 16 << 10]).freeze();
        cache.insert(block(&pool, n, bytes(n, 4096), Some(content)));
        assert!(cache.size() <= 32 << 20);
    }
    assert!(cache.stats().overhead_size > (3 << 20), "{:?}", cache.stats());
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
                        Found::Packed(_) => panic!("none of them is an indirect block"),
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
