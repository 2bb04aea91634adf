//! What the advisor expects of more memory and of a cache device is what a cache of that size really does, within the error
//! that it states; and what ghosts tell is not something else.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

mod support;

use cache::{
    Adaptive, Advisor, Kind, Outlook, Point, Policy as _, RAM, SECOND, SecondTier, mix, trace::Simulation,
};
use support::{OUTSIDE, Trace};

/// One block in so many is shown, as a power of two.
const FEED: u32 = 3;

/// What a cache of `capacity` blocks really hits, and with each of these cache devices below it.
fn really(blocks: &[u64], capacity: u64, devices: &[u64]) -> (f64, Vec<f64>) {
    let mut cache = Simulation::new(Adaptive::new(capacity));
    let mut tiers: Vec<SecondTier> = devices.iter().map(|size| SecondTier::new(*size)).collect();
    let (mut hits, mut below) = (0_u64, vec![0_u64; devices.len()]);
    for block in blocks {
        let mut gone = None;
        if cache.access_evicting(*block, &mut |id| gone = Some(id)) {
            hits += 1;
        } else {
            for (tier, hits) in tiers.iter_mut().zip(&mut below) {
                *hits += u64::from(tier.get(mix(*block)));
            }
        }
        if let Some(id) = gone {
            tiers.iter_mut().for_each(|tier| tier.offer(id, 1));
        }
    }
    let share = |count: u64| count as f64 / blocks.len() as f64;
    (share(hits), below.into_iter().map(|below| share(hits + below)).collect())
}

/// What the advisor makes of a sample of what a live cache sees, and the live cache.
fn advised(blocks: &[u64], capacity: u64) -> (Outlook, Simulation<Adaptive>) {
    let mut advisor = Advisor::new("default", capacity, FEED, 1024, cache::KEYS);
    let mut live = Simulation::new(Adaptive::new(capacity));
    for block in blocks {
        let (id, is_hit) = (mix(*block), live.access(*block));
        if id >> (u64::BITS - FEED) != 0 {
            continue;
        }
        if is_hit {
            advisor.hit(id);
        } else {
            advisor.came(id, 1, 0, Kind::Miss, true);
        }
    }
    let missed = live.score().block_miss_ratio();
    println!("one in {}, {} bytes", advisor.one_in(), advisor.bytes());
    (advisor.outlook(Some(missed)), live)
}

fn is_right(trace: &Trace, permille: u64) {
    let blocks: Vec<u64> = trace.requests.iter().flat_map(|request| request.blocks()).collect();
    let footprint =
        trace.reference["distinct_blocks"].as_u64().or(trace.reference["footprint_blocks"].as_u64());
    let footprint = footprint.unwrap_or_else(|| {
        let mut distinct: Vec<u64> = blocks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        distinct.len() as u64
    });
    let capacity = footprint * permille / 1000;
    let (outlook, live) = advised(&blocks, capacity);
    let mut worst = 0.0_f64;
    let mut check = |what: &str, part: f64, found: &Point, exact: f64| {
        let (found, error) = (found.hit_ratio, found.error);
        let off = found - exact;
        worst = worst.max(off.abs());
        println!(
            "{} {capacity} {what} x {part}: {found:.4}, really {exact:.4}: {off:+.4} of {:.4}",
            trace.name, error
        );
        assert!(off.abs() <= error, "{} {capacity} {what} x {part}: {off:+.4}", trace.name);
    };
    let devices = SECOND.map(|part| (capacity as f64 * part) as u64);
    let (_, with_device) = really(&blocks, capacity, &devices);
    for (part, point) in RAM.iter().zip(&outlook.memory) {
        assert_eq!(point.size, (capacity as f64 * part) as u64);
        check("memory", *part, point, really(&blocks, point.size, &[]).0);
    }
    for ((part, point), exact) in SECOND.iter().zip(&outlook.second).zip(with_device) {
        check("device", *part, point, exact);
    }
    assert!(outlook.error <= 0.05, "an error that says nothing: {}", outlook.error);
    // Ghosts: misses of what was evicted within about one more cache-full.
    let ghosts = live.policy().ghost_hits();
    let told = (ghosts.recent + ghosts.frequent) as f64 / live.score().accesses as f64;
    let more = |part: f64| {
        let at = RAM.iter().position(|known| *known == part).unwrap();
        outlook.memory[at].hit_ratio - outlook.hit_ratio
    };
    println!(
        "{} {capacity}: worst {worst:.4}; ghosts {told:.4}, x 1.25 {:.4}, x 2 {:.4}, x 4 {:.4}",
        trace.name,
        more(1.25),
        more(2.0),
        more(4.0)
    );
    assert!(
        told >= more(1.25) - outlook.error && told <= more(4.0) + outlook.error,
        "{}: ghosts tell {told:.4}",
        trace.name
    );
}

#[test]
fn of_zipf() {
    is_right(&Trace::synthetic("zipf"), 100);
}

#[test]
fn of_zipf_and_scans() {
    if std::env::var_os("MILLPOND_LONG").is_none() {
        return println!("NOT RUN: it takes long; MILLPOND_LONG=1 runs it");
    }
    is_right(&Trace::synthetic("zipfscan"), 30);
}

#[test]
fn of_a_loop_and_zipf() {
    is_right(&Trace::synthetic("loop"), 100);
}

#[test]
fn of_forty_clones_booting() {
    is_right(&Trace::synthetic("bootstorm"), 30);
}

#[test]
fn of_traces_of_others() {
    for trace in OUTSIDE.into_iter().filter_map(Trace::outside) {
        is_right(&trace, 100);
    }
}

/// Two groups share a cache: one fits into it, the other runs in a loop that is larger.
#[test]
fn each_group_is_told_what_is_true_of_it() {
    let (small, large) = (4_000_u64, 60_000_u64);
    let capacity = 20_000;
    let mut advisor = Advisor::new("arc", capacity, 0, 1024, cache::KEYS);
    let mut live = Simulation::new(cache::Arc::new(capacity));
    for k in 0..600_000_u64 {
        let (block, group) = if k % 2 == 0 { (mix(k) % small, 3) } else { ((1 << 32) + k / 2 % large, 5) };
        let kind = if live.access(block) { Kind::Hit } else { Kind::Miss };
        advisor.came(mix(block), 1, group, kind, true);
    }
    let of = |group: u32| advisor.outlook_of_groups(&[group], None).unwrap();
    let (fits, loops) = (of(3), of(5));
    println!("{fits:?}\n{loops:?}");
    assert!(fits.hit_ratio > 0.9 && loops.hit_ratio < 0.05);
    let with = |outlook: &Outlook, part: f64| {
        outlook.memory[RAM.iter().position(|known| *known == part).unwrap()].hit_ratio
    };
    assert!((with(&fits, 4.0) - fits.hit_ratio).abs() <= 0.05, "more is of no use to it");
    assert!(with(&loops, 4.0) > 0.6, "but to the other: {loops:?}");
    // Alone, the small one needs a quarter of the memory, and the loop three times as much.
    let alone =
        |outlook: &Outlook, size: u64| outlook.lru.iter().find(|point| point.size >= size).unwrap().hit_ratio;
    assert!(
        alone(&fits, capacity / 4) > 0.9
            && alone(&loops, capacity) < 0.1
            && alone(&loops, 4 * capacity) > 0.7
    );
    assert!(
        advisor.outlook_of_groups(&[3, 5], None).unwrap().accesses
            > advisor.outlook_of_groups(&[3], None).unwrap().accesses
    );
    assert_eq!(advisor.outlook_of_groups(&[4], None), None, "nothing is known of who does nothing");
}

/// A volume whose blocks no cache device may hold was promised hits by one.
#[test]
fn a_cache_device_hits_nothing_of_what_it_may_not_have() {
    // A loop of twice the memory, of which a device would hold all.
    let (capacity, looped) = (4_000_u64, 8_000_u64);
    for is_eligible in [true, false] {
        let mut advisor = Advisor::new("arc", capacity, 0, 1 << 20, cache::KEYS);
        let mut live = Simulation::new(cache::Arc::new(capacity));
        for k in 0..10 * looped {
            let kind = if live.access(k % looped) { Kind::Hit } else { Kind::Miss };
            advisor.came(mix(k % looped), 1, 1, kind, is_eligible);
        }
        let outlook = advisor.outlook(None);
        for point in &outlook.second {
            let more = point.hit_ratio - outlook.hit_ratio;
            assert_eq!(more.abs() > 0.5, is_eligible, "{point:?} of {}", outlook.hit_ratio);
        }
    }
}

/// After 256 of them had been seen nothing more was known of those that came.
#[test]
fn a_group_that_comes_late_is_known_as_soon_as_it_is_busy() {
    let mut advisor = Advisor::new("arc", 20_000, 0, 1024, cache::KEYS);
    let groups = cache::GROUPS as u32;
    // A block each, so that all of them are looked at.
    let used = |advisor: &mut Advisor, group: u32, times: u32| {
        (0..times).for_each(|_| advisor.came(mix(u64::from(group)), 1, group, Kind::Miss, true));
    };
    (0..groups).for_each(|group| used(&mut advisor, group, 300 + group));
    // Three that come in turn do not take the place of each other.
    for _ in 0..300 {
        (1000..1003).for_each(|group| used(&mut advisor, group, 1));
    }
    for group in [1000, 1001, 1002, 3, groups - 1] {
        assert!(advisor.outlook_of_groups(&[group], None).is_some(), "{group}");
    }
    assert!((0..3).all(|group| !advisor.knows(group)), "those that were used least gave way");
    // What only fills the cache is nobody's use of it.
    advisor.came(mix(u64::MAX), 1, 2000, Kind::Fill, true);
    assert!(!advisor.knows(2000) && advisor.knows(3));
    advisor.forget_group(1001);
    assert_eq!(advisor.outlook_of_groups(&[1001], None), None);
    used(&mut advisor, 2000, 1);
    assert!(advisor.knows(2000) && advisor.knows(3), "the place was free");
}

/// What changed long ago no longer counts, and memory stays bounded.
#[test]
fn it_forgets_and_stays_small() {
    let mut advisor = Advisor::new("default", 1 << 20, 0, 512, cache::KEYS);
    for k in 0..4_000_000_u64 {
        // First everything is new, then little is used again and again.
        let (block, kind) = if k < 3_000_000 { (k, Kind::Miss) } else { (mix(k) % 10_000, Kind::Hit) };
        advisor.came(mix(block), 1, (block % 1000) as u32, kind, true);
    }
    assert!(advisor.bytes() < 20 << 20, "{} bytes", advisor.bytes());
    assert!(advisor.one_in() >= 512);
}

/// Everybody who comes in is shown, and of hits those that a miniature remembers: LRU's curve had all misses of the blocks
/// shown, and one in sixteen of the hits.
#[test]
fn what_lru_would_hit_is_told_of_hits_and_misses_alike() {
    let capacity = 50_000_u64;
    let mut advisor = Advisor::new("arc", capacity, 0, 512, cache::KEYS);
    let mut live = Simulation::new(cache::Arc::new(capacity));
    let sizes = [capacity / 4, capacity, 2 * capacity];
    let mut exact = sizes.map(|size| Simulation::new(cache::Plain::lru(size)));
    for k in 0..1_500_000_u64 {
        let part = (mix(k) >> 11) as f64 / (1_u64 << 53) as f64;
        let block = (part * part * 200_000.0) as u64;
        match live.access(block) {
            true => advisor.hit(mix(block)),
            false => advisor.came(mix(block), 1, 1, Kind::Miss, true),
        }
        for lru in &mut exact {
            lru.access(block);
        }
    }
    assert!(advisor.one_in() >= 16, "{}", advisor.one_in());
    let outlook = advisor.outlook(None);
    for (size, exact) in sizes.into_iter().zip(&exact) {
        let told = outlook.lru.iter().find(|point| point.size == size).unwrap().hit_ratio;
        let exact = 1.0 - exact.score().block_miss_ratio();
        println!("{size}: {told:.3}, really {exact:.3}");
        assert!((told - exact).abs() <= 0.08, "{size}: {told:.3}, really {exact:.3}");
    }
}

/// A loop of a thousand blocks beside ten that are overwritten all the time, each time under another identity.
#[test]
fn blocks_that_were_overwritten_lie_between_no_two_uses_of_others() {
    let capacity = 4000;
    let mut advisor = Advisor::new("arc", capacity, 0, 4096, cache::KEYS);
    for k in 0..200_000_u64 {
        let kind = if k < 1000 { Kind::Miss } else { Kind::Hit };
        advisor.came(mix(k % 1000), 1, 1, kind, true);
        for write in 10 * k..10 * k + 10 {
            advisor.came(mix((1 << 40) + write), 1, 1, Kind::Fill, true);
            if let Some(before) = write.checked_sub(10) {
                advisor.gone(mix((1 << 40) + before));
            }
        }
    }
    assert_eq!(advisor.one_in(), 1);
    let outlook = advisor.outlook(None);
    let of = |size: u64| outlook.lru.iter().find(|point| point.size == size).unwrap().hit_ratio;
    assert!(of(capacity / 2) > 0.95 && of(capacity / 8) < 0.05, "{:?}", outlook.lru);
}
