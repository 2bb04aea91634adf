//! The default policy against classic ARC: never far behind, ahead on the whole, and proof against loops and scans.
//!
//! Traces shorter than 300 000 accesses are not judged: there is too little to learn from. `MILLPOND_LONG=1` plays
//! every size of every trace; without it the large synthetic ones run at some of theirs.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

mod support;

use cache::{Adaptive, Arc, mix, trace::Simulation};
use support::{
    OUTSIDE, Trace,
    synth::{Exponent, Rng, Zipf},
};

/// Points of miss ratio that the default may be behind ARC at one size. A point is what is promised; this is what holds.
const BEHIND_MAX: f64 = 0.7;

/// Points of miss ratio by which the default is behind ARC (negative: ahead), at these sizes of the reference.
fn behind_at(trace: &Trace, sizes: &[usize]) -> Vec<f64> {
    let reference: Vec<(u64, u64)> = trace.capacities().into_iter().zip(trace.misses("ARC")).collect();
    let compare = |(capacity, arc): (u64, u64)| {
        let simulation = trace.play(Adaptive::new(capacity));
        assert!(simulation.len() as u64 <= capacity);
        let points = (simulation.score().block_misses as f64 - arc as f64) * 100.0 / trace.accesses() as f64;
        println!(
            "{:14} {capacity:7} blocks: {points:+.2}, {} switches",
            trace.name,
            simulation.policy().switches()
        );
        assert!(points <= BEHIND_MAX, "{} at {capacity} blocks: {points:.2} points behind ARC", trace.name);
        points
    };
    sizes.iter().filter_map(|size| reference.get(*size).copied()).map(compare).collect()
}

fn mean(points: &[f64]) -> f64 {
    points.iter().sum::<f64>() / points.len() as f64
}

const ALL: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];

fn some(sizes: &[usize]) -> &[usize] {
    if std::env::var_os("MILLPOND_LONG").is_some() { &ALL } else { sizes }
}

#[test]
fn a_loop_and_zipf() {
    let points = behind_at(&Trace::synthetic("loop"), &ALL);
    assert!(mean(&points) < -8.5, "{points:?}");
}

#[test]
fn zipf_and_scans() {
    let points = behind_at(&Trace::synthetic("zipfscan"), some(&[1, 4, 6]));
    assert!(mean(&points) < -0.2, "{points:?}");
}

#[test]
fn zipf() {
    let points = behind_at(&Trace::synthetic("zipf"), some(&[3, 5]));
    assert!(mean(&points) < -0.25, "{points:?}");
}

#[test]
fn forty_clones_booting() {
    behind_at(&Trace::synthetic("bootstorm"), some(&[2, 4]));
}

#[test]
fn traces_of_others() {
    let points: Vec<f64> =
        OUTSIDE.into_iter().filter_map(Trace::outside).flat_map(|trace| behind_at(&trace, &ALL)).collect();
    if !points.is_empty() {
        println!("mean {:+.2}", mean(&points));
        assert!(mean(&points) < -0.5, "{points:?}");
    }
}

/// Hits of a stream of blocks, as a share.
fn hits(cache: &mut Simulation<Adaptive>, blocks: impl Iterator<Item = u64>) -> f64 {
    let (mut hits, mut all) = (0_u64, 0_u64);
    for block in blocks {
        hits += u64::from(cache.access(block));
        all += 1;
    }
    hits as f64 / all as f64
}

#[test]
fn a_loop_of_more_than_the_cache_hits_what_fits() {
    for capacity in [1000, 20_000, 100_000] {
        let mut cache = Simulation::new(Adaptive::new(capacity));
        let length = capacity * 5 / 4;
        let hits = hits(&mut cache, (0..20 * length).map(|k| k % length));
        println!("{capacity}: {hits:.3}");
        assert!(hits >= 0.70, "{capacity} blocks: {hits}");
    }
}

#[test]
fn a_hot_set_survives_a_sequential_read_of_ten_times_the_cache() {
    for (capacity, hot) in [(10_000, 5000), (10_000, 9000), (40_000, 30_000)] {
        let mut rng = Rng(capacity + hot);
        let mut cache = Simulation::new(Adaptive::new(capacity));
        hits(&mut cache, (0..20 * hot).map(|_| rng.below(hot)));
        let before = hits(&mut cache, (0..4 * hot).map(|_| rng.below(hot)));
        // The whole read while the hot set rests, then another with one hot access in eight beside it.
        hits(&mut cache, (0..10 * capacity).map(|k| (1 << 32) + k));
        let after = hits(&mut cache, (0..4 * hot).map(|_| rng.below(hot)));
        let (mut during, mut asked) = (0_u64, 0_u64);
        for k in 0..10 * capacity {
            cache.access((2 << 32) + k);
            if k % 8 == 0 {
                asked += 1;
                during += u64::from(cache.access(rng.below(hot)));
            }
        }
        let during = during as f64 / asked as f64;
        println!("{hot} hot of {capacity}: before {before:.4}, after {after:.4}, beside {during:.4}");
        assert!(before - after <= 0.005, "{hot} of {capacity}: {before} fell to {after}");
        assert!(before - during <= 0.005, "{hot} of {capacity}: {before} fell to {during}");
    }
}

/// Workloads that nothing was tuned on: the default stays near ARC where nobody can do better.
#[test]
fn workloads_that_change_do_not_lead_it_astray() {
    for seed in [11, 12] {
        for (name, blocks) in [
            ("shifting", shifting(seed)),
            ("drifting", drifting(seed)),
            ("once-used", once_used(seed)),
            ("phases", phases(seed)),
        ] {
            for capacity in [2000, 12_000] {
                let behind = behind_arc(capacity, &blocks);
                println!("{name} {seed} {capacity}: {behind:+.2}");
                assert!(behind <= BEHIND_MAX, "{name} {seed} {capacity}: {behind:.2}");
            }
        }
    }
}

/// A loop of about the cache's size, between phases of two to six cache-fulls, which are over before a change of rules
/// has paid. Without a shadow of ARC at full size it is up to nine points behind: what ARC has kept is not got back.
#[test]
fn loops_of_about_the_cache_between_short_phases_do_not_lead_it_astray() {
    for (capacity, accesses) in [(3000, 300_000), (12_000, 480_000)] {
        let mut points = Vec::new();
        for fulls in [2, 3, 4, 5, 6] {
            for percent in [97, 101, 103, 110, 125] {
                let blocks = short_phases(capacity, capacity * percent / 100, fulls, accesses);
                let behind = behind_arc(capacity, &blocks);
                println!("{capacity} blocks, a loop of {percent} %, phases of {fulls}: {behind:+.2}");
                assert!(behind <= BEHIND_MAX, "{capacity}, {percent} %, phases of {fulls}: {behind:.2}");
                points.push(behind);
            }
        }
        assert!(mean(&points) <= -0.8, "{capacity} blocks: {points:.2?}");
    }
}

/// Nearly all places of its blocks are free then, its sample was that of a large cache, and its rules were a loop's: up to
/// 2.8 points behind.
#[test]
fn a_cache_that_was_far_larger_is_as_good_as_one_that_never_was() {
    let (before, capacity) = (200_000_u64, 3000);
    let mut adaptive = Simulation::new(Adaptive::new(before));
    let mut arc = Simulation::new(Arc::new(before));
    for k in 0..8 * before {
        let block = (1 << 50) + k % (before * 5 / 4);
        adaptive.access(block);
        arc.access(block);
    }
    adaptive.set_capacity(capacity);
    arc.set_capacity(capacity);
    let mut points = Vec::new();
    for fulls in [2, 4, 6] {
        for percent in [97, 101, 110] {
            let blocks = short_phases(capacity, capacity * percent / 100, fulls, 300_000);
            let behind = behind(adaptive.clone(), arc.clone(), &blocks);
            println!("a loop of {percent} %, phases of {fulls}: {behind:+.2}");
            assert!(behind <= BEHIND_MAX, "a loop of {percent} %, phases of {fulls}: {behind:.2}");
            points.push(behind);
        }
    }
    assert!(mean(&points) <= -0.6, "{points:.2?}");
}

/// Which blocks are sampled hangs on their numbers, and luck must not decide.
#[test]
fn other_numbers_for_the_same_blocks_do_not_lead_it_astray() {
    let names = ["arc-p3", "cp-vm"];
    for trace in names.into_iter().filter_map(Trace::outside) {
        let blocks: Vec<u64> = trace.requests.iter().flat_map(|request| request.blocks()).collect();
        for (capacity, arc) in trace.capacities().into_iter().zip(trace.misses("ARC")).skip(3) {
            for number in 1..4 {
                let mut cache = Simulation::new(Adaptive::new(capacity));
                blocks.iter().for_each(|block| {
                    cache.access(block + (number << 45));
                });
                let misses = cache.score().block_misses as f64 - arc as f64;
                let points = misses * 100.0 / blocks.len() as f64;
                println!("{} {capacity}, numbers {number}: {points:+.2}", trace.name);
                assert!(points <= BEHIND_MAX, "{} {capacity}, numbers {number}: {points:.2}", trace.name);
            }
        }
    }
}

/// Who knows when the rules change can make each change a mistake: a loop that ARC cannot hold, until it has been followed
/// for a cache-full; then the working set that ARC has kept meanwhile, for another; and a new loop. What this costs is
/// bounded by what may be missing of ARC's blocks, however good the loops looked.
#[test]
fn a_workload_that_turns_against_every_change_costs_no_more_than_is_free() {
    for (capacity, set) in [(1500, 1350), (6000, 5400), (6000, 3000)] {
        let mut adaptive = Simulation::new(Adaptive::new(capacity));
        let mut arc = Simulation::new(Arc::new(capacity));
        let (mut turns, mut begun, mut switches, mut followed) = (0, 0, 0, None);
        for k in 0..400_000 {
            if turns % 2 == 1 && followed.is_none() && adaptive.policy().switches() != switches {
                followed = Some(k);
            }
            let is_over = if turns % 2 == 0 {
                k >= begun + if turns == 0 { 4 * capacity } else { capacity }
            } else {
                followed.is_some_and(|at| k >= at + capacity)
            };
            if is_over {
                (turns, begun, followed) = (turns + 1, k, None);
                switches = adaptive.policy().switches();
            }
            let block =
                if turns % 2 == 0 { mix(k) % set } else { (turns << 32) + (k - begun) % (capacity * 5 / 4) };
            adaptive.access(block);
            arc.access(block);
        }
        let misses = [adaptive.score(), arc.score()].map(|score| score.block_miss_ratio() * 100.0);
        println!("{set} of {capacity} blocks, {turns} turns, {switches} switches: {misses:.2?}");
        assert!(
            turns >= 3 && switches >= 2,
            "it did not change its rules: {turns} turns, {switches} switches"
        );
        // Without a bound on what may be missing it is 0.5.
        assert!(misses[0] - misses[1] <= 0.4, "{set} of {capacity}: {misses:.2?}");
    }
}

/// Points of miss ratio by which the default is behind ARC.
fn behind_arc(capacity: u64, blocks: &[u64]) -> f64 {
    behind(Simulation::new(Adaptive::new(capacity)), Simulation::new(Arc::new(capacity)), blocks)
}

/// Points of miss ratio over these accesses.
fn behind(mut adaptive: Simulation<Adaptive>, mut arc: Simulation<Arc>, blocks: &[u64]) -> f64 {
    let misses = |adaptive: &Simulation<Adaptive>, arc: &Simulation<Arc>| {
        adaptive.score().block_misses as f64 - arc.score().block_misses as f64
    };
    let before = misses(&adaptive, &arc);
    for block in blocks {
        adaptive.access(*block);
        arc.access(*block);
    }
    (misses(&adaptive, &arc) - before) * 100.0 / blocks.len() as f64
}

/// Zipf, a loop, a scan beside Zipf, of so many cache-fulls each, and again.
fn short_phases(capacity: u64, length: u64, fulls: u64, accesses: u64) -> Vec<u64> {
    let mut rng = Rng(77);
    let zipf = Zipf::new((2 * capacity).next_power_of_two(), Exponent::ThreeQuarters);
    (0..accesses)
        .map(|k| match k / (fulls * capacity) % 3 {
            0 => zipf.draw(&mut rng),
            1 => (1 << 32) + k % length,
            _ if k % 2 == 0 => (1 << 40) + k,
            _ => zipf.draw(&mut rng),
        })
        .collect()
}

/// What is popular changes every 100 000 to 200 000 accesses.
fn shifting(seed: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    let zipf = Zipf::new(1 << 16, Exponent::One);
    let phase = 100_000 + rng.below(100_000);
    (0..600_000).map(|k| mix((zipf.draw(&mut rng) + k / phase * 20_000) % (1 << 16))).collect()
}

/// A working set that moves on all the time.
fn drifting(seed: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    (0..600_000).map(|k| k / 10 + (0..3).map(|_| rng.below(8000)).sum::<u64>()).collect()
}

/// Every third access is to a block that is never used again.
fn once_used(seed: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    let zipf = Zipf::new(1 << 16, Exponent::ThreeQuarters);
    (0..600_000).map(|k| if k % 3 == 0 { (1 << 40) + k } else { zipf.draw(&mut rng) }).collect()
}

/// Zipf, a loop, a scan beside Zipf, and again.
fn phases(seed: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    let zipf = Zipf::new(1 << 15, Exponent::ThreeQuarters);
    let length = 15_000 + rng.below(10_000);
    let phase = |k: u64| k / 120_000 % 3;
    (0..720_000)
        .map(|k| match phase(k) {
            0 => zipf.draw(&mut rng),
            1 => (1 << 32) + k % length,
            _ if k % 2 == 0 => (1 << 40) + k,
            _ => zipf.draw(&mut rng),
        })
        .collect()
}
