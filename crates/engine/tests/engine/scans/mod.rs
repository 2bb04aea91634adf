//! Scrub, resilver, self-heal: what is wrong on some device is found, made right and counted, and nothing else changes. Here is
//! what all of them do with a pool.

mod halted;
mod healing;
mod logged;
mod openzfs;
mod outages;
mod resilvers;
mod scrubs;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BlockVolume, Durability};
use disk::{Disk, MemDisk, ModelDisk, Profile};
use engine::{
    dsl::{Properties, Stored},
    engine::{Engine, Options},
    events::{Event, ScanKind},
    scan::{Progress, ScanCommand},
    volume::LiveVolume,
};
use ondisk::label::DATA_OFFSET;
use pool::dmu::Run;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{self, POOL, Running, World, content, data, noise, plain, quiet, reads::Counting};

pub(crate) const MIB: u64 = 1 << 20;

/// Random writes of whole blocks.
pub(crate) async fn scribble(volume: &Arc<LiveVolume>, seed: u64, count: u64, block: usize) {
    let size = volume.geometry().size;
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..count {
        let at = random.random_range(0..size / block as u64) * block as u64;
        volume.write(at, data(noise(seed << 32 | number, block as u64)), Durability::Cached).await.unwrap();
    }
}

/// Waits until no scan runs, and says what the last one did.
pub(crate) async fn over(engine: &Engine) -> Progress {
    for _ in 0..100_000 {
        if let Some(progress) = engine.scan_progress().filter(|progress| progress.ended.is_some()) {
            return progress;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the scan does not end: {:?}", engine.scan_progress());
}

pub(crate) async fn scrub(engine: &Engine) -> Progress {
    engine.scan(ScanCommand::Scrub).await.unwrap();
    over(engine).await
}

/// Garbage in every `every`th 64 KiB of the allocatable part of a disk.
pub(crate) async fn corrupt(media: &MemDisk, every: u64, seed: u64) {
    let size = media.info().size;
    let mut at = DATA_OFFSET + seed % every * 65536;
    while at + 65536 + (1 << 20) < size {
        media.write(at, noise(seed ^ at, 65536).into()).await.unwrap();
        at += every * 65536;
    }
}

/// Opens the pool with some of its disks only.
pub(crate) async fn open_without(world: &World, away: &[usize], options: Options) -> Arc<Engine> {
    let disks = world.media.iter().enumerate().filter(|(n, _)| !away.contains(n));
    let disks = disks.map(|(_, media)| Arc::clone(media) as Arc<dyn Disk>).collect();
    support::start_on(disks, 3, options).await.unwrap()
}

pub(crate) async fn close(engine: Arc<Engine>) {
    engine.end(engine::engine::Ending::Export).await.unwrap();
}

pub(crate) async fn take_snapshot(engine: &Engine, name: String) {
    let names = vec![name];
    engine
        .run_snapshot(move |cx| {
            Box::pin(async move { engine::dsl::snapshot(cx, &names, &Properties::new()).await })
        })
        .await
        .unwrap();
}

pub(crate) async fn drop_snapshot(engine: &Engine, name: String) {
    let names = vec![name];
    engine
        .run(move |cx| {
            Box::pin(async move { engine::dsl::destroy_snapshots(cx, &names, false).await.map(|_| ()) })
        })
        .await
        .unwrap();
}

async fn filled(layout: &str, size: u64) -> (World, Running, Arc<LiveVolume>) {
    let (world, running) = World::create(layout, 12, 128 << 20, 5).await;
    let volume = running.volume(&format!("{POOL}/v"), size, 16384, plain()).await;
    scribble(&volume, 1, 600, 16384).await;
    running.engine.sync().await.unwrap();
    (world, running, volume)
}

fn checksum_errors(engine: &Engine) -> BTreeMap<String, u64> {
    let tree = engine.view().tree();
    tree.leaves()
        .iter()
        .map(|leaf| (leaf.path.clone().unwrap_or_default(), leaf.counters.get().checksum))
        .collect()
}

/// The pool on disks that turn slowly, and how much is read from each.
async fn slowly(world: &World, stretch: u32) -> (Arc<Engine>, Vec<Arc<AtomicU64>>) {
    let mut counts = Vec::new();
    let disks = world.media.iter().zip(1..).map(|(media, seed)| {
        let read = Arc::new(AtomicU64::new(0));
        counts.push(Arc::clone(&read));
        let profile = Profile::hdd_7200().stretched(stretch);
        let inner = Arc::new(ModelDisk::new(Arc::clone(media) as Arc<dyn Disk>, profile, seed));
        Counting::over(inner, &read, |read| read.end - read.start)
    });
    (support::start_on(disks.collect(), 1, quiet()).await.unwrap(), counts)
}

/// zdb's opinion of what is on the media.
fn judge(world: &World) {
    let dir = tempfile::tempdir_in(fixtures::scratch()).unwrap();
    world.save(dir.path());
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], dir.path(), POOL).unwrap_or_else(|text| panic!("zdb: {text}"));
    }
}

/// What was written is on the disks that are left.
async fn holds_without(world: &World, away: &[usize], expected: &[u8]) {
    let engine = open_without(world, away, quiet()).await;
    let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(content(&*volume).await == expected);
    close(engine).await;
}

/// A pool whose second disk missed everything: as large as `size`.
async fn half(size: u64) -> (World, Vec<u8>) {
    half_of("mirror d0 d1", size).await
}

/// The same of another layout.
async fn half_of(layout: &str, size: u64) -> (World, Vec<u8>) {
    let (world, running) = World::create(layout, 12, 128 << 20, 9).await;
    running.export().await;
    let engine = open_without(&world, &[1], quiet()).await;
    let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
    let volume = running.volume(&format!("{POOL}/v"), size, 16384, plain()).await;
    for number in 0..size / 16384 {
        let bytes = noise(number, 16384);
        volume.write(number * 16384, data(bytes), Durability::Cached).await.unwrap();
    }
    engine.sync().await.unwrap();
    let expected = content(&*volume).await;
    drop((volume, running));
    close(engine).await;
    (world, expected)
}

async fn until(engine: &Engine, share: f64) -> Progress {
    loop {
        let progress = engine.scan_progress().unwrap();
        assert!(progress.ended.is_none(), "it ended before: {progress:?}");
        if progress.issued as f64 >= share * progress.total as f64 && progress.issued > 2 * MIB {
            return progress;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until no scan runs that began by itself.
async fn at_rest(engine: &Engine) {
    while engine.scan_progress().is_some_and(|progress| progress.ended.is_none()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
