//! What a second tier of cache is worth, on the machines of two field reports: the same ratios come out of the code that
//! serves, on modelled devices.

use std::time::Duration;

use disk::Profile;
use engine::prewarm::Heat;
use tokio::time::{Instant, sleep};

use crate::rig::{Preset, Rig};

/// Timers tick in milliseconds: where flash matters everything is slowed down.
const SLOW: u32 = 50;
/// Warm: for so many of the requests no disk has to move.
const WARM: f64 = 0.95;

fn is_near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() <= 0.10
}

/// The experiment of 2008: random 8 KiB over 500 GB with 120 GB of ARC. Disks only 1.89 K pool operations a second and 9
/// to 10 ms; with a warm L2ARC 8.4 times as many at a twentieth of the latency; hours to warm by misses.
#[tokio::test(start_paused = true)]
async fn a_warm_l2arc_is_worth_what_was_measured_on_the_server_of_2008_and_pre_warm_has_it_at_once() {
    let rig = Rig::build(Preset::walu(), 1).await.unwrap();

    // Disks only, with the ARC as warm as it gets.
    let running = rig.start(SLOW).await.unwrap();
    running.read_at_random(20_000).await.unwrap();
    let disks = running.read_at_random(5_000).await.unwrap();
    println!("disks only: {disks:?}");
    running.stop().await.unwrap();

    // With cache devices, from empty to warm by misses.
    let running = rig.start(1).await.unwrap();
    rig.add_cache(&running).await.unwrap();
    let begin = Instant::now();
    let missed = loop {
        let run = running.read_at_random(5_000).await.unwrap();
        if run.warm() >= WARM {
            break run;
        }
    };
    let by_misses = begin.elapsed();
    let heat = running.engine.sample_heat_within(usize::MAX, Duration::from_secs(60)).await.unwrap();
    println!(
        "warm by misses after {by_misses:?}; {:?} blocks, remembered in {} bytes",
        heat.blocks(),
        heat.encode().len()
    );
    running.stop().await.unwrap();

    // A restart, and the cache devices are new: pre-warm.
    rig.wipe_ssds();
    let running = rig.start(1).await.unwrap();
    let begin = Instant::now();
    running.engine.prewarm(heat.clone());
    while running.engine.prewarm_progress().unwrap().ended.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let by_prewarm = begin.elapsed();
    let progress = running.engine.prewarm_progress().unwrap();
    sleep(Duration::from_secs(2)).await;
    let prewarmed = running.read_at_random(5_000).await.unwrap();
    println!("pre-warmed in {by_prewarm:?}: {progress:?}, {prewarmed:?}");
    assert!(prewarmed.warm() >= 0.98 * missed.warm(), "{prewarmed:?}, {missed:?} before");
    assert!(by_misses >= by_prewarm * 20, "{by_misses:?} by misses, {by_prewarm:?} by pre-warm");
    let second = running.engine.second().stats();
    assert_eq!((second.l2_cksum_bad, second.l2_io_error), (0, 0));
    running.stop().await.unwrap();

    // The cache devices have all of it, as if the last seldom block had been missed once, too.
    let running = rig.start(SLOW).await.unwrap();
    let blocks = running.preset.data / u64::from(running.preset.block);
    let mut all = Heat::new(heat.pool, heat.txg, heat.saved);
    (0..blocks).for_each(|number| all.note(running.volume.dataset(), number, None, true));
    running.engine.prewarm(all);
    while running.engine.prewarm_progress().unwrap().ended.is_none() {
        sleep(Duration::from_millis(100)).await;
    }
    println!("{:?}", running.engine.prewarm_progress());
    sleep(Duration::from_secs(60)).await;
    running.read_at_random(20_000).await.unwrap();
    let warm = running.read_at_random(10_000).await.unwrap();
    println!(
        "warm: {warm:?}; {:.2} times the requests, {:.1} of the latency",
        warm.ops / disks.ops,
        disks.latency_ms / warm.latency_ms
    );
    assert!((8.8..=10.5).contains(&disks.latency_ms), "{disks:?}");
    assert!(is_near(warm.ops / disks.ops, 8.4), "{}", warm.ops / disks.ops);
    assert!(is_near(disks.latency_ms / warm.latency_ms, 20.0), "{}", disks.latency_ms / warm.latency_ms);
    // A single reader waits hardly longer than for the device alone.
    let mut alone = running;
    alone.preset.clients = 1;
    let hits = alone.read_at_random(500).await.unwrap();
    let device =
        alone.preset.ssd.latency.as_secs_f64() * 1e3 + 8192.0 / alone.preset.ssd.bandwidth as f64 * 1e3;
    println!("one client: {hits:?}; the device alone takes {device:.3} ms");
    assert!(hits.warm() > 0.95 && hits.latency_ms <= 1.2 * device, "{hits:?}, the device {device} ms");
    alone.stop().await.unwrap();
}

/// What lies in a row on one device comes nearly as fast as that gives it, also to a client that asks for one piece after
/// the other.
#[tokio::test(start_paused = true)]
async fn one_sequential_reader_gets_nearly_all_of_a_devices_bandwidth() {
    for (profile, slow) in [(Profile::hdd_7200(), 1), (Profile::ssd(), SLOW)] {
        let rig = Rig::build(Preset::single(profile), 3).await.unwrap();
        for len in [16 << 10, 128 << 10, 1 << 20] {
            let running = rig.start(slow).await.unwrap();
            let before = running.moves();
            let rate = running.read_in_order(len).await.unwrap();
            let after = running.moves();
            println!("{} reads, {} moves", after.0 - before.0, after.1 - before.1);
            let share = rate / profile.bandwidth as f64;
            println!(
                "{} bytes a second of {} in pieces of {len}: {share:.2}",
                rate as u64, profile.bandwidth
            );
            assert!(share >= 0.85, "{share:.2} of the device's bandwidth, in pieces of {len}");
            running.stop().await.unwrap();
        }
    }
}

/// The boot of 2014: 121 s with empty caches, 19.9 s with full ones (-84 %). A tenth of its reads here.
#[tokio::test(start_paused = true)]
async fn a_guest_boots_from_warm_caches_as_fast_as_on_the_home_lab_of_2014() {
    const READS: u64 = 808;
    let rig = Rig::build(Preset::san2(), 2).await.unwrap();
    let running = rig.start(10).await.unwrap();
    rig.add_cache(&running).await.unwrap();
    let cold = running.boot(READS).await.unwrap();
    let warm = running.boot(READS).await.unwrap();
    let heat = running.engine.sample_heat_within(usize::MAX, Duration::from_secs(60)).await.unwrap();
    running.stop().await.unwrap();
    let running = rig.start(10).await.unwrap();
    running.engine.prewarm(heat);
    while running.engine.prewarm_progress().unwrap().ended.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let took = running.engine.prewarm_progress().unwrap().took / 10;
    let prewarmed = running.boot(READS).await.unwrap();
    running.stop().await.unwrap();
    println!("cold {cold:?}, warm {warm:?}; after a restart, pre-warmed in {took:?}: {prewarmed:?}");
    let saved = |now: Duration| 1.0 - now.as_secs_f64() / cold.as_secs_f64();
    assert!(
        is_near(saved(warm), 0.84) && is_near(saved(prewarmed), 0.84),
        "{} {}",
        saved(warm),
        saved(prewarmed)
    );
    assert!(took < cold / 4, "{took:?}");
}
