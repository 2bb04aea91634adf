//! Scrub, resilver, self-heal: what is wrong on some device is found, made right and counted, and nothing else changes.

mod healing;
mod logged;
mod outages;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BlockVolume, Durability};
use disk::{Disk, FaultDisk, MemDisk, ModelDisk, Profile};
use engine::{
    dsl::{Properties, Stored},
    engine::{Engine, Options},
    events::{Event, ScanKind, ScanStep},
    scan::{Progress, ScanCommand},
    volume::LiveVolume,
};
use ondisk::label::DATA_OFFSET;
use parking_lot::Mutex;
use pool::dmu::Run;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{self, POOL, Running, World, content, data, quiet, reads::Counting};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

pub(crate) fn plain() -> Properties {
    Properties::from([("compression".to_owned(), Stored::Number(2))])
}

/// Random writes of whole blocks.
pub(crate) async fn scribble(volume: &Arc<LiveVolume>, seed: u64, count: u64, block: usize) {
    let size = volume.geometry().size;
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..count {
        let at = random.random_range(0..size / block as u64) * block as u64;
        volume.write(at, data(noise(seed << 32 | number, block)), Durability::Cached).await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_resilver_goes_on_where_it_was_when_the_pool_was_closed() {
    let (world, expected) = half(48 * MIB).await;
    let (engine, first) = slowly(&world, 4).await;
    let progress = until(&engine, 0.5).await;
    assert_eq!(progress.kind, ScanKind::Resilver);
    close(engine).await;
    let (engine, second) = slowly(&world, 4).await;
    let continued = engine.scan_progress().unwrap();
    assert!(continued.issued >= progress.issued, "{continued:?} after {progress:?}");
    let done = over(&engine).await;
    assert_eq!((done.errors, done.started), (0, progress.started));
    let (first, second) = (first[0].load(Relaxed), second[0].load(Relaxed));
    assert!(first >= 24 * MIB && second < 32 * MIB, "{first} bytes read before, {second} after");
    assert!(first + second < 66 * MIB, "{first} and {second}");
    close(engine).await;
    world.verify("in two parts").await;
    judge(&world);
    holds_without(&world, &[0], &expected).await;
}

/// Found by reading: what a resilver wrote is older than an image that was taken in the middle of it. The device counted as whole
/// without it when it came back as that.
#[tokio::test(start_paused = true)]
async fn a_drive_that_comes_back_as_it_was_in_the_middle_of_a_resilver_gets_all_of_it() {
    let (mut world, expected) = half(16 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    until(&engine, 0.3).await;
    engine.sync().await.unwrap();
    let image = Arc::new(world.media[1].fork());
    assert_eq!(over(&engine).await.errors, 0);
    engine.sync().await.unwrap();
    let guid = engine.view().tree().leaves()[1].guid;
    engine.offline(guid, false).await.unwrap();
    engine.sync().await.unwrap();
    engine.online(guid, Some(Arc::clone(&image) as Arc<dyn Disk>), false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(over(&engine).await.errors, 0);
    engine.sync().await.unwrap();
    let lacking = engine::devices::lacking(&engine.view().tree());
    assert!(lacking.is_empty(), "{lacking:?}");
    close(engine).await;
    world.media[1] = image;
    holds_without(&world, &[0], &expected).await;
}

/// A stripe that its parity could not help was left as it was, though the block has a second copy.
#[tokio::test(start_paused = true)]
async fn a_stripe_beyond_repair_is_written_anew_from_the_other_copy() {
    let (world, running) = World::create("raidz d0 d1 d2", 12, 128 << 20, 5).await;
    let mut twice = plain();
    twice.insert("copies".to_owned(), Stored::Number(2));
    let volume = running.volume(&format!("{POOL}/v"), 4 * MIB, 16384, twice).await;
    scribble(&volume, 1, 300, 16384).await;
    running.engine.sync().await.unwrap();
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    // Both copies of each sector of the first block, the lower one first: (disk, offset).
    let sectors: Vec<Vec<(usize, u64)>> = expected[..16384]
        .chunks(4096)
        .map(|sector| {
            let mut found = Vec::new();
            for (disk, media) in world.media.iter().enumerate() {
                let all = media.snapshot(0..media.info().size);
                let places = all.chunks_exact(4096).enumerate().filter(|(_, bytes)| *bytes == sector);
                found.extend(places.map(|(number, _)| (disk, number as u64 * 4096)));
            }
            found.sort_unstable_by_key(|(_, offset)| *offset);
            found
        })
        .collect();
    // Two cells of one row: more than parity can make good.
    let harm = async |copy: usize| {
        for number in [0, 2] {
            let [.., (disk, offset)] = sectors[number][..=copy] else { panic!("{sectors:?}") };
            world.media[disk].write(offset, vec![0xee; 4096].into()).await.unwrap();
        }
    };
    harm(0).await;
    let running = world.open().await;
    let done = scrub(&running.engine).await;
    assert_eq!(done.errors, 0);
    assert!(done.processed >= 16384, "{done:?}");
    assert_eq!(scrub(&running.engine).await.processed, 0, "all is right now");
    running.export().await;
    harm(1).await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(content(&*volume).await == expected, "the first copy is there again");
    scrub(&running.engine).await;
    drop(volume);
    running.export().await;
    world.verify("written anew").await;
}

/// OpenZFS takes a leaf for whole only if its list ends at or before the last transaction group of the scan, and counts
/// both by the end of the list. With one less it went through our resilvers and never let the old device go.
#[tokio::test(start_paused = true)]
async fn the_scan_entry_covers_the_lists_of_its_leaves_as_openzfs_counts() {
    let (world, _) = half(32 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    until(&engine, 0.3).await;
    close(engine).await;
    let view = world.look().await.unwrap();
    let lacking = engine::devices::lacking(&view.tree());
    let [(_, missed)] = &lacking[..] else { panic!("one leaf lacks something: {lacking:?}") };
    let (start, end) = missed.span().unwrap();
    let words = *view.scan().unwrap().words();
    assert_eq!((words[0], words[1]), (2, 1), "a resilver that goes on: {words:?}");
    assert_eq!((words[3], words[4]), (start - 1, end), "{missed:?} {words:?}");
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_in_the_middle_of_a_resilver_costs_nothing() {
    let (mut world, expected) = half(24 * MIB).await;
    for round in 0..6u64 {
        let running = world.open().await;
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        if round % 2 == 1 {
            running.engine.sync().await.unwrap();
        }
        world.cut(running).await;
    }
    let running = world.open().await;
    let done = over(&running.engine).await;
    assert_eq!(done.errors, 0);
    running.export().await;
    world.verify("after power cuts").await;
    holds_without(&world, &[0], &expected).await;
}

/// Space of blocks that the resilver has found and not yet copied is freed and given to other blocks all the time. A
/// repair that came late would destroy these, and a read that came late would be taken for damage.
#[tokio::test(start_paused = true)]
async fn blocks_freed_and_replaced_under_a_resilver_are_neither_harmed_nor_missed() {
    for (layout, away) in [("mirror d0 d1", 1), ("raidz d0 d1 d2", 2)] {
        let (world, running) = World::create(layout, 12, 72 << 20, 9).await;
        running.export().await;
        let engine = open_without(&world, &[away], quiet()).await;
        let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
        let volume = running.volume(&format!("{POOL}/v"), 20 * MIB, 8192, plain()).await;
        scribble(&volume, 1, 3000, 8192).await;
        drop((volume, running));
        close(engine).await;
        let (engine, _) = slowly(&world, 2).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let mut rounds = 0;
        while engine.scan_progress().is_none_or(|progress| progress.ended.is_none()) {
            scribble(&volume, 100 + rounds, 300, 8192).await;
            engine.sync().await.unwrap();
            rounds += 1;
            assert!(rounds < 2000, "{layout}: it does not end");
        }
        assert!(rounds > 5, "{layout}: {rounds}");
        let done = over(&engine).await;
        assert_eq!((done.kind, done.errors), (ScanKind::Resilver, 0), "{layout}");
        assert!(checksum_errors(&engine).values().all(|count| *count == 0), "{layout}");
        let expected = content(&*volume).await;
        let lost = engine.events().since(0).iter().any(|r| matches!(r.event, Event::DataLost { .. }));
        assert!(!lost, "{layout}");
        drop(volume);
        close(engine).await;
        world.verify(layout).await;
        judge(&world);
        let engine = open_without(&world, &[0], quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        assert!(checksum_errors(&engine).values().all(|count| *count == 0), "{layout}");
        close(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn snapshots_clones_copies_and_small_blocks_are_resilvered_too() {
    let (world, running) = World::create("raidz d0 d1 d2", 12, 128 << 20, 4).await;
    running.export().await;
    let engine = open_without(&world, &[0], quiet()).await;
    let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
    let mut expected = BTreeMap::new();
    for (name, block, properties) in [
        ("a", 4096, plain()),
        ("b", 65536, Properties::from([("copies".to_owned(), Stored::Number(2))])),
        ("c", 16384, Properties::from([("checksum".to_owned(), Stored::Number(8))])),
    ] {
        let name = format!("{POOL}/{name}");
        let volume = running.volume(&name, 4 * MIB, block, properties).await;
        scribble(&volume, 1, 60, block as usize).await;
        take_snapshot(&engine, format!("{name}@one")).await;
        scribble(&volume, 2, 30, block as usize).await;
        engine.sync().await.unwrap();
        let (of, clone) = (format!("{name}@one"), format!("{name}-clone"));
        let as_clone = clone.clone();
        engine
            .run(move |cx| {
                Box::pin(
                    async move { engine::dsl::clone(cx, &of, &as_clone, &Properties::new(), false).await },
                )
            })
            .await
            .unwrap();
        let copy = engine.volume(&clone).await.unwrap();
        scribble(&copy, 3, 20, block as usize).await;
        engine.sync().await.unwrap();
        expected.insert(name, content(&*volume).await);
        expected.insert(clone, content(&*copy).await);
    }
    drop(running);
    close(engine).await;
    let running = world.open().await;
    assert_eq!(over(&running.engine).await.errors, 0);
    running.export().await;
    world.verify("all kinds").await;
    judge(&world);
    let engine = open_without(&world, &[1], quiet()).await;
    for (name, expected) in expected {
        let volume = engine.volume(&name).await.unwrap();
        assert!(content(&*volume).await == expected, "{name}");
    }
    close(engine).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_listed_and_everything_else_is_right() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    // A few of the volume's blocks, on both sides.
    let mut lost = Vec::new();
    for media in &world.media {
        let all = media.snapshot(0..media.info().size);
        for block in [3usize, 77, 200] {
            let bytes = &expected[block * 16384..(block + 1) * 16384];
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let places: Vec<usize> = (0..all.len() / 4096 - 4)
                .map(|n| n * 4096)
                .filter(|at| all[*at..*at + 16384] == *bytes)
                .collect();
            for at in places {
                media.write(at as u64 + 512, vec![0xee; 512].into()).await.unwrap();
                lost.push(block as u64);
            }
        }
    }
    lost.sort_unstable();
    lost.dedup();
    assert!(!lost.is_empty());
    let running = world.open().await;
    let done = scrub(&running.engine).await;
    assert_eq!(done.errors, lost.len() as u64);
    running.engine.sync().await.unwrap();
    let log = pool::status::error_log(&running.engine.view()).await.unwrap();
    let blocks: Vec<u64> = log.iter().map(|entry| entry.at.blkid).collect();
    assert_eq!(blocks, lost, "{log:?}");
    let told: Vec<String> = running
        .engine
        .events()
        .since(0)
        .iter()
        .filter_map(|record| match &record.event {
            Event::DataLost { what, .. } => Some(what.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), lost.len());
    assert!(told[0].starts_with(&format!("{POOL}/v:<0x1> offset ")), "{told:?}");
    // It is remembered, and forgotten when the blocks were written anew and a scrub finds nothing.
    running.export().await;
    let running = world.open().await;
    assert_eq!(pool::status::error_log(&running.engine.view()).await.unwrap().len(), lost.len());
    // Nor does a scrub that does not look at them forget them.
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    assert_eq!(over(&running.engine).await.errors, 0);
    running.engine.sync().await.unwrap();
    assert_eq!(pool::status::error_log(&running.engine.view()).await.unwrap().len(), lost.len());
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    for (number, bytes) in expected.chunks(16384).enumerate() {
        let at = number as u64 * 16384;
        if lost.contains(&(number as u64)) {
            assert!(volume.read(at, 16384).await.is_err(), "block {number} is lost");
            volume.write(at, data(bytes.to_vec()), Durability::Cached).await.unwrap();
        }
    }
    running.engine.sync().await.unwrap();
    assert_eq!(content(&*volume).await, expected);
    assert_eq!(scrub(&running.engine).await.errors, 0);
    running.engine.sync().await.unwrap();
    assert!(pool::status::error_log(&running.engine.view()).await.unwrap().is_empty());
    drop(volume);
    running.export().await;
    world.verify("written anew").await;
    judge(&world);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_block_that_is_read_is_healed_at_once() {
    for (layout, bad) in [("mirror d0 d1", 0), ("raidz2 d0 d1 d2 d3", 2)] {
        let (world, running, volume) = filled(layout, 8 * MIB).await;
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        corrupt(&world.media[bad], 2, 1).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let first = checksum_errors(&running.engine).values().sum::<u64>();
        let events = running.engine.events().since(0);
        let repaired: u64 = events
            .iter()
            .map(|record| match &record.event {
                Event::Repaired { device, bytes } => {
                    assert_eq!(device.path.as_deref(), Some(&*format!("/disks/d{bad}")), "{layout}");
                    *bytes
                }
                _ => 0,
            })
            .sum();
        assert!(repaired > 0, "{layout}");
        drop(volume);
        running.export().await;
        // What was read once is right now, also without the others.
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        let left = checksum_errors(&running.engine).values().sum::<u64>();
        // What was read before errors count, while the pool was opened, is met again.
        assert!(left * 10 <= first, "{layout}: {first} wrong answers, {left} after all was read and healed");
        drop(volume);
        running.export().await;
    }
}

/// A mirror with something to read that nobody has open.
async fn left() -> World {
    let (world, running, volume) = filled("mirror d0 d1", 32 * MIB).await;
    scribble(&volume, 8, 1500, 16384).await;
    running.engine.sync().await.unwrap();
    drop(volume);
    running.export().await;
    world
}

#[tokio::test(start_paused = true)]
async fn scans_are_begun_halted_and_refused_in_openzfs_words() {
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    let refused = |answer: Result<(), engine::dsl::OpError>| answer.unwrap_err().to_string();
    assert_eq!(refused(engine.scan(ScanCommand::Stop).await), "there is no active scrub");
    assert_eq!(refused(engine.scan(ScanCommand::Pause).await), "there is no active scrub");
    engine.scan(ScanCommand::Scrub).await.unwrap();
    assert_eq!(
        refused(engine.scan(ScanCommand::Scrub).await),
        "currently scrubbing; use 'zpool scrub -s' to cancel scrub"
    );
    until(&engine, 0.2).await;
    engine.scan(ScanCommand::Pause).await.unwrap();
    assert_eq!(
        refused(engine.scan(ScanCommand::Pause).await),
        "scrub is paused; use 'zpool scrub' to resume scrub"
    );
    close(engine).await;
    // Paused it stays, in the eyes of OpenZFS too.
    let (engine, _) = slowly(&world, 20).await;
    let progress = engine.scan_progress().unwrap();
    assert!(!progress.running && progress.paused.is_some(), "{progress:?}");
    assert_eq!(engine.view().scan().unwrap().flags() & 2, 2);
    engine.scan(ScanCommand::Scrub).await.unwrap();
    until(&engine, 0.5).await;
    engine.scan(ScanCommand::Stop).await.unwrap();
    let progress = engine.scan_progress().unwrap();
    assert!(progress.ended.is_some() && !progress.running);
    assert_eq!(engine.view().scan().unwrap().state(), ondisk::scan::ScanState::Cancelled);
    engine.scan(ScanCommand::Scrub).await.unwrap();
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
    world.verify("begun and halted").await;
    judge(&world);
}

/// It seemed to run, with a time to go, for as long as memory was short.
#[tokio::test(start_paused = true)]
async fn a_scrub_that_waits_for_memory_says_so() {
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    until(&engine, 0.2).await;
    engine.hold_scrubs(true);
    let progress = engine.scan_progress().unwrap();
    assert!(progress.held && progress.remaining.is_none(), "{progress:?}");
    engine.hold_scrubs(false);
    assert!(!engine.scan_progress().unwrap().held);
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
}

/// One that was halted over night, or whose daemon was not running, seemed to creep: all the time since its beginning counted.
#[tokio::test(start_paused = true)]
async fn a_rest_makes_no_scan_look_slow() {
    const NIGHT: Duration = Duration::from_secs(8 * 3600);
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    let at_first = until(&engine, 0.2).await;
    assert!(at_first.scanned_rate > 0.0, "{at_first:?}");
    // Whose walk is over finds nothing more.
    let is_like_before =
        |now: &Progress| now.scanned_rate == 0.0 || now.scanned_rate > at_first.scanned_rate / 20.0;
    engine.scan(ScanCommand::Pause).await.unwrap();
    tokio::time::sleep(NIGHT).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    let resumed = until(&engine, 0.5).await;
    assert!(is_like_before(&resumed), "{resumed:?} after {at_first:?}");
    close(engine).await;
    tokio::time::sleep(NIGHT).await;
    let (engine, _) = slowly(&world, 20).await;
    let continued = until(&engine, 0.7).await;
    assert_eq!(continued.started, at_first.started);
    assert!(is_like_before(&continued), "{continued:?} after {at_first:?}");
    close(engine).await;
}

/// The pool's own disks are nearly full, and the view that a walk pinned gives way to writers.
#[tokio::test(start_paused = true)]
async fn writers_of_a_full_pool_do_not_wait_for_scans() {
    let (world, running) = World::create("mirror d0 d1", 12, 72 << 20, 2).await;
    let volume = running.volume(&format!("{POOL}/v"), 40 * MIB, 8192, plain()).await;
    let mut random = StdRng::seed_from_u64(1);
    let mut full = 0;
    running.engine.scan(ScanCommand::Scrub).await.unwrap();
    for round in 0..400u64 {
        for number in 0..60u64 {
            let at = random.random_range(0..40 * MIB / 8192) * 8192;
            let bytes = noise(round << 20 | number, 8192);
            full += u32::from(volume.write(at, data(bytes), Durability::Cached).await.is_err());
        }
        running.engine.sync().await.unwrap();
        if round % 40 == 39 {
            // Refused while one runs: then that one is enough.
            drop(running.engine.scan(ScanCommand::Scrub).await);
        }
    }
    println!("{full} writes found no room");
    assert!(running.engine.suspended().is_none());
    assert_eq!(over(&running.engine).await.errors, 0);
    drop(volume);
    running.export().await;
    world.verify("full").await;
}

/// Waits until no scan runs that began by itself.
async fn at_rest(engine: &Engine) {
    while engine.scan_progress().is_some_and(|progress| progress.ended.is_none()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_that_openzfs_left_damaged_or_degraded_are_scrubbed_here() {
    for (name, options) in [
        ("corrupt-mirror2", &[][..]),
        ("corrupt-raidz2x6", &[]),
        ("degraded-raidz2x6", &["--degraded"]),
        ("missing-mirror2", &["--degraded"]),
        ("missing-raidz2x6", &["--degraded"]),
        ("missing-raidz3x8", &["--degraded"]),
    ] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let copy = fixture.copy();
        let syncer = crate::files::reopen(copy.path(), 1).await.unwrap();
        let pool = syncer.name.clone();
        let engine = Engine::start(syncer, Options::default()).await.unwrap();
        at_rest(&engine).await;
        let done = scrub(&engine).await;
        assert_eq!(done.errors, 0, "{name}");
        assert_eq!(done.processed > 0, name.starts_with("corrupt"), "{name}: {done:?}");
        let again = scrub(&engine).await;
        assert_eq!((again.errors, again.processed), (0, 0), "{name}");
        close(engine).await;
        if fixtures::tool("zdb").is_some() {
            fixtures::zdb_check(options, copy.path(), &pool).unwrap_or_else(|text| panic!("{name}: {text}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_scrub_of_what_is_new_reads_only_that() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let scrubbed = async |engine: &Engine| {
        engine.sync().await.unwrap();
        engine.view().directory().get_u64("last_scrubbed_txg").await.unwrap()
    };
    assert_eq!(scrubbed(&running.engine).await, None);
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    let full = over(&running.engine).await;
    assert_eq!((full.kind, full.errors), (ScanKind::Scrub, 0), "the first is of everything");
    assert!(full.issued > 4 * MIB, "{full:?}");
    let first = scrubbed(&running.engine).await.unwrap();
    assert_eq!(first, running.engine.view().scan().unwrap().words()[4]);
    scribble(&volume, 2, 40, 16384).await;
    running.engine.sync().await.unwrap();
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    let new = over(&running.engine).await;
    assert_eq!((new.kind, new.errors), (ScanKind::Scrub, 0));
    assert!(new.issued > 30 * 16384 && new.issued < full.issued / 2, "{new:?} after {full:?}");
    assert!(scrubbed(&running.engine).await.unwrap() > first);
    // A scrub of everything is one still.
    let again = scrub(&running.engine).await;
    assert!(again.issued >= full.issued, "{again:?} after {full:?}");
    drop(volume);
    running.export().await;
    world.verify("scrubbed in part").await;
}

/// Its number is not all that is asked for.
#[tokio::test(start_paused = true)]
async fn what_a_damaged_scan_entry_takes_for_its_queue_is_not_freed() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    let history = running
        .engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let history =
                    zap::get_u64(&mut cx.mos, DIRECTORY, "history").await?.expect("each pool has one");
                let mut words = [0u64; 24];
                words[..8].copy_from_slice(&[1, 1, history, 0, cx.txg, 0, cx.txg, 1_600_000_000]);
                zap::set(&mut cx.mos, DIRECTORY, "scan".into(), ondisk::zap::Value::from_u64s(&words))
                    .await?;
                Ok(history)
            })
        })
        .await
        .unwrap();
    running.export().await;
    let engine = world.open().await.engine;
    over(&engine).await;
    close(engine).await;
    let view = world.look().await.unwrap();
    let kept = view.mos().dnode(history).await.unwrap();
    assert_eq!(kept.dnode.object_type, ondisk::dnode::ObjectType::HISTORY);
    judge(&world);
}

/// OpenZFS remembers which datasets it has still to visit, and where it is in one: we begin again.
#[tokio::test(start_paused = true)]
async fn a_scrub_that_another_program_left_goes_on_here_from_the_start() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    running
        .engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let queue = zap::create(&mut cx.mos, ondisk::dnode::ObjectType::SCAN_QUEUE, 0).await?;
                zap::set_u64(&mut cx.mos, queue, "36", 5).await?;
                let mut words = [0u64; 24];
                words[..10].copy_from_slice(&[1, 1, queue, 0, cx.txg, 0, cx.txg, 1_600_000_000, 0, 9 << 20]);
                words[10] = 3 << 20;
                words[14..24].copy_from_slice(&[1, 2, 0, 8, 0, 0x36, 1, 0, 77, 0]);
                zap::set(&mut cx.mos, DIRECTORY, "scan".into(), ondisk::zap::Value::from_u64s(&words))
                    .await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    running.export().await;
    corrupt(&world.media[1], 5, 3).await;
    let (engine, _) = slowly(&world, 3).await;
    let progress = engine.scan_progress().unwrap();
    assert_eq!((progress.started, progress.issued, progress.ended), (1_600_000_000, 0, None));
    close(engine).await;
    // In the middle, and as OpenZFS would take it over: a queue of its own kind, and a bookmark at the start.
    let dir = tempfile::tempdir_in(fixtures::scratch()).unwrap();
    world.save(dir.path());
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&["--degraded"], dir.path(), POOL).unwrap_or_else(|text| panic!("zdb: {text}"));
    }
    let view = world.look().await.unwrap();
    let scan = *view.scan().unwrap();
    assert!(scan.queue_object() != 0 && scan.words()[15..23].iter().all(|word| *word == 0), "{scan:?}");
    let running = world.open().await;
    let done = over(&running.engine).await;
    assert_eq!((done.kind, done.started, done.errors), (ScanKind::Scrub, 1_600_000_000, 0));
    assert!(done.processed > 0);
    running.export().await;
    world.verify("taken over").await;
    judge(&world);
}

/// OpenZFS keeps our cursor when it goes on with a scan, so its queue was taken for ours and left beside a bookmark at the start:
/// the next OpenZFS that imported the pool came to a dataset that was in the queue already, and panicked.
#[tokio::test(start_paused = true)]
async fn what_another_program_left_in_the_queue_of_a_scan_of_ours_is_taken_out() {
    let (world, expected) = half(48 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    let progress = until(&engine, 0.3).await;
    engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let words = zap::get(&mut cx.mos, DIRECTORY, "scan".into()).await?.expect("a scan runs");
                let queue = words.integers().nth(2).expect("it has a queue");
                Ok(zap::set_u64(&mut cx.mos, queue, "36", 5).await?)
            })
        })
        .await
        .unwrap();
    close(engine).await;
    let (engine, _) = slowly(&world, 4).await;
    let continued = engine.scan_progress().unwrap();
    assert_eq!((continued.started, continued.ended), (progress.started, None));
    assert!(continued.issued >= progress.issued, "{continued:?} after {progress:?}");
    close(engine).await;
    let view = world.look().await.unwrap();
    let scan = *view.scan().unwrap();
    assert!(scan.words()[15..23].iter().all(|word| *word == 0), "{scan:?}");
    assert_eq!(scan.state(), ondisk::scan::ScanState::Scanning);
    let queue = pool::zap::Zap::open_in(view.mos(), scan.queue_object()).await.unwrap();
    assert!(queue.numbers().await.unwrap().is_empty());
    drop((queue, view));
    let engine = open_without(&world, &[], quiet()).await;
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
    world.verify("without what was in the queue").await;
    judge(&world);
    holds_without(&world, &[0], &expected).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_is_filled_and_takes_its_place_while_clients_write() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (mut world, running, volume) = filled(layout, 8 * MIB).await;
        let path = format!("/disks/d{}", world.media.len());
        let media = Arc::new(MemDisk::new(128 << 20).named(path.clone()));
        world.media.push(Arc::clone(&media));
        let view = running.engine.view();
        let find = |word| engine::devices::find(&view, word);
        let old = find("/disks/d1").or_else(|_| find("d1")).unwrap();
        let new = engine::devices::NewLeaf { path, disk: media, is_file: true, ashift: None };
        running.engine.replace(old, new).await.unwrap();
        let mut rounds = 0;
        while engine::devices::find(&running.engine.view(), &old.to_string()).is_ok() {
            scribble(&volume, 50 + rounds, 40, 16384).await;
            running.engine.sync().await.unwrap();
            rounds += 1;
            assert!(rounds < 500, "{layout}: the old one does not go: {:?}", running.engine.scan_progress());
        }
        at_rest(&running.engine).await;
        assert_eq!(scrub(&running.engine).await.processed, 0, "{layout}");
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        world.media.remove(1);
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        drop(volume);
        running.export().await;
        world.verify(layout).await;
        judge(&world);
    }
}
