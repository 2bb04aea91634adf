//! Scrub, resilver, self-heal: what is wrong on some device is found, made right and counted, and nothing else changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use block::{BlockVolume, Durability};
use disk::{Disk, MemDisk};
use engine::{
    dsl::{Properties, Stored},
    engine::{Engine, Options},
    events::{Event, ScanKind, ScanStep},
    scan::{Progress, ScanCommand},
    volume::LiveVolume,
};
use pool::vdev::LABEL_START;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{self, POOL, Running, World, content, data, quiet};

pub const MIB: u64 = 1 << 20;

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

pub fn plain() -> Properties {
    Properties::from([("compression".to_owned(), Stored::Number(2))])
}

/// Random writes of whole blocks.
pub async fn scribble(volume: &Arc<LiveVolume>, seed: u64, count: u64, block: usize) {
    let size = volume.geometry().size;
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..count {
        let at = random.random_range(0..size / block as u64) * block as u64;
        volume.write(at, data(noise(seed << 32 | number, block)), Durability::Cached).await.unwrap();
    }
}

/// Waits until no scan runs, and says what the last one did.
pub async fn over(engine: &Engine) -> Progress {
    for _ in 0..100_000 {
        if let Some(progress) = engine.scan_progress().filter(|progress| progress.ended.is_some()) {
            return progress;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the scan does not end: {:?}", engine.scan_progress());
}

pub async fn scrub(engine: &Engine) -> Progress {
    engine.scan(ScanCommand::Scrub).await.unwrap();
    over(engine).await
}

/// Garbage in every `every`th 64 KiB of the allocatable part of a disk.
pub async fn corrupt(media: &MemDisk, every: u64, seed: u64) {
    let size = media.info().size;
    let mut at = LABEL_START + seed % every * 65536;
    while at + 65536 + (1 << 20) < size {
        media.write(at, noise(seed ^ at, 65536).into()).await.unwrap();
        at += every * 65536;
    }
}

/// Opens the pool with some of its disks only.
pub async fn open_without(world: &World, away: &[usize], options: Options) -> Arc<Engine> {
    let disks = world.media.iter().enumerate().filter(|(n, _)| !away.contains(n));
    let disks = disks.map(|(_, media)| Arc::clone(media) as Arc<dyn Disk>).collect();
    support::start_on(disks, 3, options).await.unwrap()
}

pub async fn close(engine: Arc<Engine>) {
    engine.end(engine::engine::Ending::Export).await.unwrap();
}

pub async fn take_snapshot(engine: &Engine, name: String) {
    let names = vec![name];
    engine
        .run(true, move |cx| {
            Box::pin(async move { engine::dsl::snapshot(cx, &names, &Properties::new()).await })
        })
        .await
        .unwrap();
}

pub async fn drop_snapshot(engine: &Engine, name: String) {
    let names = vec![name];
    engine
        .run(false, move |cx| {
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

#[tokio::test(start_paused = true)]
async fn a_scrub_repairs_what_is_wrong_and_says_how_much() {
    for (layout, bad) in [
        ("mirror d0 d1", &[1][..]),
        ("raidz d0 d1 d2", &[2]),
        ("raidz2 d0 d1 d2 d3 d4", &[0, 3]),
        ("raidz3 d0 d1 d2 d3 d4 d5", &[1, 2, 5]),
        ("mirror d0 d1 special mirror d2 d3 log d4", &[0, 3]),
    ] {
        let (world, running, volume) = filled(layout, 8 * MIB).await;
        let expected = content(&*volume).await;
        let clean = scrub(&running.engine).await;
        assert_eq!((clean.kind, clean.errors, clean.processed), (ScanKind::Scrub, 0, 0), "{layout}");
        running.export().await;
        for &disk in bad {
            corrupt(&world.media[disk], 3, 7).await;
        }
        let running = world.open().await;
        let repaired = scrub(&running.engine).await;
        assert_eq!(repaired.errors, 0, "{layout}");
        assert!(repaired.processed > MIB / 4, "{layout}: {repaired:?}");
        let errors = checksum_errors(&running.engine);
        for (n, count) in errors.values().enumerate() {
            assert_eq!(*count > 0, bad.contains(&n), "{layout}: {errors:?}");
        }
        let again = scrub(&running.engine).await;
        assert_eq!((again.errors, again.processed), (0, 0), "{layout}");
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        drop(volume);
        running.export().await;
        world.verify(layout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaf_that_was_away_gets_what_it_missed_and_no_more() {
    for (layout, away) in [
        ("mirror d0 d1", &[1][..]),
        ("raidz2 d0 d1 d2 d3 d4", &[0, 3]),
        ("raidz d0 d1 d2 mirror d3 d4 d5 special mirror d6 d7", &[1, 4, 7]),
    ] {
        let (world, running, volume) = filled(layout, 16 * MIB).await;
        drop(volume);
        running.export().await;
        let engine = open_without(&world, away, quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        scribble(&volume, 2, 60, 16384).await;
        engine.sync().await.unwrap();
        let expected = content(&*volume).await;
        drop(volume);
        close(engine).await;

        let before: Vec<_> = world.media.iter().map(|media| media.fork()).collect();
        let running = world.open().await;
        let done = over(&running.engine).await;
        assert_eq!((done.kind, done.errors), (ScanKind::Resilver, 0), "{layout}");
        assert!(done.processed > 0 && done.processed < 8 * MIB, "{layout}: {done:?}");
        assert!(done.issued < 12 * MIB, "{layout}: only the delta is read: {done:?}");
        let lacking = engine::devices::lacking(&running.engine.view().tree());
        assert!(lacking.is_empty(), "{layout}: {lacking:?}");
        let steps: Vec<ScanStep> = running
            .engine
            .events()
            .since(0)
            .iter()
            .filter_map(|record| match record.event {
                Event::Scan { step, .. } => Some(step),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [ScanStep::Started, ScanStep::Finished], "{layout}");
        running.engine.sync().await.unwrap();
        running.export().await;
        world.verify(layout).await;
        // Alone, they are as good as the others.
        let others: Vec<usize> = match layout {
            "mirror d0 d1" => vec![0],
            "raidz2 d0 d1 d2 d3 d4" => vec![1, 2],
            _ => vec![0, 3, 6],
        };
        drop(before);
        let engine = open_without(&world, &others, quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        close(engine).await;
    }
}
