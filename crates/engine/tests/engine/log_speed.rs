//! What the intent log makes of the devices under it: how long a stable write takes, and how many there are in a
//! second. Devices are models and the clock is virtual, so that the numbers are those of the code, and the same
//! everywhere.
//!
//! Timers tick in milliseconds; where devices are faster, everything is stretched and what was measured is divided.

use std::{sync::Arc, time::Duration};

use block::{Asked, BlockVolume, Durability};
use disk::{Disk, ModelDisk, Profile};
use engine::{
    dsl::Properties,
    engine::{Engine, Options},
    txg::Limits,
    volume::LiveVolume,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::support::{POOL, World, data, noise, quiet, start_on};

const BLOCK: u64 = 4096;
const VOLUME: u64 = 32 << 20;
const STABLE: Durability = Durability::Stable(Asked::Fua);

/// A pool with a volume on devices like these, its log begun.
async fn pool(layout: &str, profiles: &[Profile], options: Options) -> (Arc<Engine>, Arc<LiveVolume>) {
    let (world, running) = World::create(layout, 12, 256 << 20, 1).await;
    let name = format!("{POOL}/v");
    drop(running.volume(&name, VOLUME, BLOCK as u32, Properties::new()).await);
    running.export().await;
    let models = world.media.iter().zip(profiles).zip(1..);
    let disks = models.map(|((media, profile), seed)| {
        Arc::new(ModelDisk::new(Arc::clone(media) as Arc<dyn Disk>, *profile, seed)) as Arc<dyn Disk>
    });
    let engine = start_on(disks.collect(), 1, options).await.unwrap();
    let volume = engine.volume(&name).await.unwrap();
    for _ in 0..8 {
        volume.write(0, data(noise(0, BLOCK)), STABLE).await.unwrap();
    }
    engine.sync().await.unwrap();
    (engine, volume)
}

/// Stable writes to random blocks, one after the other: how long each took.
async fn stream(volume: Arc<LiveVolume>, seed: u64, count: u64) -> Vec<Duration> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut times = Vec::new();
    for number in 0..count {
        let at = random.random_range(0..VOLUME / BLOCK) * BLOCK;
        let start = Instant::now();
        volume.write(at, data(noise(seed << 32 | number, BLOCK)), STABLE).await.unwrap();
        times.push(start.elapsed());
    }
    times
}

/// The time that `percent` of these did not exceed.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[tokio::test(start_paused = true)]
async fn concurrent_streams_share_the_flushes_of_a_log_device() {
    const STRETCH: u32 = 100;
    let profiles = [Profile::ssd().stretched(STRETCH), Profile::ssd_slow_flush().stretched(STRETCH)];
    let (_engine, volume) = pool("d0 log d1", &profiles, quiet()).await;
    let start = Instant::now();
    stream(Arc::clone(&volume), 1, 100).await;
    let single = 100.0 / (start.elapsed() / STRETCH).as_secs_f64();
    let start = Instant::now();
    let streams = (0..32).map(|seed| tokio::spawn(stream(Arc::clone(&volume), 100 + seed, 100)));
    for stream in streams.collect::<Vec<_>>() {
        stream.await.unwrap();
    }
    let together = 3200.0 / (start.elapsed() / STRETCH).as_secs_f64();
    println!("one stream: {single:.0} stable writes a second, 32 streams: {together:.0}");
    println!("{:?}", volume.log_report());
    assert!(single > 700.0, "{single} a second: one flush each");
    assert!(together >= 10.0 * single, "{together} a second, {single} alone");
}

#[tokio::test(start_paused = true)]
async fn a_fast_log_device_hides_slow_disks() {
    const STRETCH: u32 = 100;
    let (disk, flash) = (Profile::hdd_5400().stretched(STRETCH), Profile::ssd().stretched(STRETCH));
    let mut medians = Vec::new();
    for (layout, profiles) in
        [("mirror d0 d1", vec![disk, disk]), ("mirror d0 d1 log d2", vec![disk, disk, flash])]
    {
        let (_engine, volume) = pool(layout, &profiles, quiet()).await;
        let mut times = stream(volume, 2, 200).await;
        let (p50, p99) = (percentile(&mut times, 50) / STRETCH, percentile(&mut times, 99) / STRETCH);
        println!("{layout}: stable 4 KiB writes take {p50:?} (p50), {p99:?} (p99)");
        medians.push(p50);
    }
    assert!(medians[0] >= Duration::from_millis(11), "{:?} without", medians[0]);
    assert!(medians[1] < Duration::from_micros(600), "{:?} with a log device", medians[1]);
}

/// Beside somebody who writes as fast as the disks take it, a stable write waits for a log device, not for them.
#[tokio::test(start_paused = true)]
async fn stable_writes_do_not_wait_behind_others() {
    let (disk, flash) = (Profile::hdd_7200(), Profile::ssd_slow_flush());
    let limits = Limits { dirty_max: 24 << 20, ..Limits::default() };
    let options = Options { limits, ..quiet() };
    let (engine, volume) = pool("mirror d0 d1 log d2", &[disk, disk, flash], options).await;
    let writer = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move {
            let mut random = StdRng::seed_from_u64(5);
            let block = noise(5, BLOCK);
            loop {
                let at = random.random_range(0..VOLUME / BLOCK) * BLOCK;
                volume.write(at, data(block.clone()), Durability::Cached).await.unwrap();
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = engine.statistics().txgs;
    let mut times = stream(volume, 6, 2000).await;
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let groups = engine.statistics().txgs - before;
    println!(
        "under load, {groups} transaction groups: {p50:?} (p50), {p99:?} (p99), {:?} at most",
        times.last()
    );
    writer.abort();
    assert!(groups >= 3, "{groups}: the writer keeps the disks busy");
    assert!(p99 <= Duration::from_millis(20), "{p99:?}");
}
