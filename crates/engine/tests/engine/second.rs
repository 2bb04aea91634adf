//! A pool with a cache device: what leaves memory is found there, after a restart too, and zdb agrees with what is on it.

use std::{process::Command, sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    create::{self, DeviceFacts, Plan, Removal, VdevSpec},
    dsl::{self, NewVolume, Properties, Stored},
    engine::{Ending, Engine},
    prewarm::{Ended, Heat, Progress},
    second::Config,
};
use pool::{
    cache::{BlockCache, Caching, Keep},
    vdev::State,
};
use tokio::time::sleep;

use block::{BlockVolume, Durability};

use crate::{
    failing::Bays,
    support::{POOL, Running, World, as_disks, content, data, noise, quiet, start_beside, start_on},
};

/// Four times the cache of these pools: most of it has to leave.
const SIZE: u64 = 64 << 20;

/// Blocks that the device has at least after two readings of a volume of 4096: which ones leave memory before they were
/// written there hangs on the order in which they come and on the hash of their names, so this is well below what is seen.
const MANY: u64 = 2300;

/// Waits until nothing more is written to cache devices.
async fn settle(running: &Running) {
    let mut before = u64::MAX;
    loop {
        sleep(Duration::from_secs(2)).await;
        let written = running.engine.second().stats().l2_write_bytes;
        if written == before {
            return;
        }
        before = written;
    }
}

/// Reads all of a volume, slowly enough for the cache device to take what leaves memory.
async fn read_slowly(running: &Running, volume: &dyn BlockVolume, twin: &[u8]) {
    for (at, expected) in (0..).step_by(1 << 20).zip(twin.chunks(1 << 20)) {
        assert!(block::flatten(&volume.read(at, 1 << 20).await.unwrap()) == expected, "at {at}");
        sleep(Duration::from_millis(250)).await;
    }
    settle(running).await;
}

/// What zdb says of a cache device: log blocks that are right, and those that are not.
fn zdb(image: &std::path::Path) -> Option<(u64, u64)> {
    let zdb = fixtures::tool("zdb")?;
    let output = Command::new(zdb).arg("-l").arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let field = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!(field("magic"), "6504978260106102853");
    assert_eq!(field("log_blk_ent"), "79", "{text}");
    let number = |words: &str| -> u64 {
        let line =
            text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {text}"));
        line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
    };
    let valid = number("with valid cksum");
    assert_eq!(field("lb_count_refcount"), valid.to_string(), "{text}");
    Some((valid, number("with invalid cksum")))
}

#[tokio::test(start_paused = true)]
async fn what_leaves_memory_is_on_the_cache_device_and_stays_there() {
    let (mut world, running) = World::create("d0 cache d1", 12, 1280 << 20, 31).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, SIZE, 16384, Properties::new()).await;
    let twin = noise(8, SIZE);
    for (at, chunk) in (0..).step_by(1 << 20).zip(twin.chunks(1 << 20)) {
        volume.write(at, data(chunk.to_vec()), Durability::Cached).await.unwrap();
    }
    volume.flush().await.unwrap();
    read_slowly(&running, &*volume, &twin).await;
    read_slowly(&running, &*volume, &twin).await;
    let stats = running.engine.second().stats();
    assert!(stats.l2_bufs > MANY && stats.l2_hits > 1000 && stats.l2_cksum_bad == 0, "{stats:?}");
    assert!(stats.l2_log_blk_count > 25 && stats.l2_bufc_data_asize > MANY * 16384, "{stats:?}");
    let (held, log_blocks) = (stats.l2_bufs, stats.l2_log_blk_count);

    // The power goes; what the device has is found again, and read.
    running.disks[1].flush().await.unwrap();
    world.cut(running).await;
    world.verify("with a cache device").await;
    let images = tempfile::tempdir().unwrap();
    world.save(images.path());
    if let Some(found) = zdb(&images.path().join("d1.img")) {
        assert_eq!(found, (log_blocks, 0), "as zdb counts log blocks");
    }
    let running = world.open().await;
    sleep(Duration::from_secs(1)).await;
    let second = running.engine.second();
    let recovered = second.devices()[0].recovered.clone().unwrap();
    assert!(recovered.blocks * 100 >= held * 95, "{recovered}, of {held}");
    assert_eq!(recovered.log_blocks, log_blocks, "{recovered}");
    let volume = running.engine.volume(&name).await.unwrap();
    read_slowly(&running, &*volume, &twin).await;
    let stats = second.stats();
    // How many blocks had left memory hangs on the order in which they came; each that was found again is a hit.
    assert!(
        stats.l2_hits * 100 >= recovered.blocks * 98 && stats.l2_cksum_bad == 0,
        "{stats:?}, {recovered}"
    );

    // Gone in the middle of it, and back.
    running.disks[1].vanish();
    assert!(content(&*volume).await == twin);
    assert!(second.stats().l2_io_error > 0);
    running.disks[1].come_back();
    sleep(Duration::from_secs(200)).await;
    // Rotten.
    let (start, end) = (5 << 20, 60 << 20);
    running.disks[1].rot(start..end, 3000).await.unwrap();
    assert!(content(&*volume).await == twin);
    assert!(second.stats().l2_cksum_bad > 0, "{:?}", second.stats());

    // It leaves the pool while that is in use, and another comes.
    let removal = Removal::find(&running.engine.view(), "d1").unwrap();
    removal.vacate(&running.engine).await.unwrap();
    running.engine.run(move |cx| Box::pin(async move { removal.finish(cx).await })).await.unwrap();
    assert!(second.devices().is_empty() && second.memory() < 100_000, "{} bytes", second.memory());
    assert!(content(&*volume).await == twin);
    let spec = VdevSpec::parse(&["cache".to_owned(), "/disks/d2".to_owned()]).unwrap();
    let (size, sector) = (1280 << 20, 512);
    let facts =
        DeviceFacts { bytes: size, block_device: false, logical_sector: sector, physical_sector: sector };
    let plan = Plan::new(&spec, &[facts], None, true).unwrap();
    let new: Vec<Arc<dyn Disk>> = vec![Arc::new(MemDisk::new(size).named("/disks/d2"))];
    let add = running.engine.run(move |cx| {
        let (plan, new) = (plan.clone(), new.clone());
        Box::pin(async move { create::add(cx, &plan, &new).await })
    });
    add.await.unwrap();
    assert_eq!(second.devices().len(), 1);
    read_slowly(&running, &*volume, &twin).await;
    read_slowly(&running, &*volume, &twin).await;
    let before = second.stats();
    assert!(before.l2_bufs > MANY, "{before:?}");
    assert!(content(&*volume).await == twin);
    assert!(second.stats().l2_hits > before.l2_hits + 1000);
    running.export().await;
}

/// A volume with this property is written and read, and none of it comes to the cache device, or is missed there.
async fn is_not_cached(property: &str, number: u64) {
    let (_world, running) = World::create("d0 cache d1", 12, 256 << 20, 32).await;
    let mut properties = Properties::new();
    properties.insert(property.to_owned(), Stored::Number(number));
    let volume = running.volume(&format!("{POOL}/v"), 32 << 20, 16384, properties).await;
    for at in (0..32 << 20).step_by(1 << 20) {
        volume.write(at, data(noise(at, 1 << 20)), Durability::Cached).await.unwrap();
    }
    volume.flush().await.unwrap();
    let misses = || running.engine.view().io().cache().stats().misses;
    let before = (misses(), running.engine.second().stats().l2_misses);
    let _all = content(&*volume).await;
    settle(&running).await;
    let stats = running.engine.second().stats();
    let (read, missed) = (misses() - before.0, stats.l2_misses - before.1);
    assert!(read > 500 && missed < 20, "{missed} of {read}");
    assert!(stats.evict_l2_ineligible > 8 << 20 && stats.l2_bufc_data_asize == 0, "{stats:?}");
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_dataset_does_not_want_to_be_cached_is_not() {
    is_not_cached("secondarycache", 0).await;
}

/// Nobody could tell such a block from another's, so it is never read from there: writing it wears the device for nothing.
#[tokio::test(start_paused = true)]
async fn what_has_no_checksum_is_not_written_to_a_cache_device() {
    is_not_cached("checksum", codec::checksum::Algorithm::Off.id().into()).await;
}

/// What was warm in a pool with a cache device when its power went.
async fn warm_and_cut(seed: u64) -> (World, Heat) {
    let (mut world, running) = World::create("d0 cache d1", 12, 1280 << 20, seed).await;
    let volume = running.volume(&format!("{POOL}/v"), SIZE, 16384, Properties::new()).await;
    let twin = noise(9, SIZE);
    for (at, chunk) in (0..).step_by(1 << 20).zip(twin.chunks(1 << 20)) {
        volume.write(at, data(chunk.to_vec()), Durability::Cached).await.unwrap();
    }
    volume.flush().await.unwrap();
    read_slowly(&running, &*volume, &twin).await;
    read_slowly(&running, &*volume, &twin).await;
    let heat = running.engine.sample_heat_within(usize::MAX, Duration::from_secs(60)).await.unwrap();
    assert!(heat.blocks().1 > 1000, "{:?}", heat.blocks());
    drop(volume);
    running.disks[1].flush().await.unwrap();
    world.cut(running).await;
    (world, heat)
}

/// Pre-warms a pool; how that went.
async fn prewarmed(running: &Running, heat: Heat) -> Progress {
    running.engine.prewarm(heat);
    loop {
        sleep(Duration::from_secs(1)).await;
        let progress = running.engine.prewarm_progress().unwrap();
        if progress.ended.is_some() {
            return progress;
        }
    }
}

/// A start at which there was no memory for all that was remembered is not the end of the rest.
#[tokio::test(start_paused = true)]
async fn a_pre_warm_that_knew_only_a_part_may_go_on_when_there_is_more_memory() {
    let (world, heat) = warm_and_cut(50).await;
    // Of 64 stretches, and less than the cache has room for.
    let part = Heat::decode(&*heat.encode(), 400).unwrap();
    let (all, some) = (heat.blocks(), part.blocks());
    assert!(some.0 + some.1 > 0 && some.0 + some.1 <= 5 * 64, "{some:?} of {all:?}");
    let running = world.open().await;
    let progress = prewarmed(&running, part).await;
    assert_eq!((progress.ended, progress.memory), (Some(Ended::Full), (some.0, some.0)), "{progress:?}");
    assert!(!running.engine.prewarm_may_go_on(), "the cache has what it had");
    let view = running.engine.view();
    view.io().cache().set_budget(64 << 20);
    assert!(running.engine.prewarm_may_go_on());
    drop(view);
    running.export().await;
}

/// What had been warm was forgotten five minutes after a start at which memory was short, though there was enough again.
#[tokio::test(start_paused = true)]
async fn a_pre_warm_that_filled_a_small_cache_may_go_on_when_there_is_more_memory() {
    let (world, heat) = warm_and_cut(47).await;
    let running = world.open().await;
    let (engine, view) = (&running.engine, running.engine.view());
    let cache = view.io().cache();
    cache.set_budget(8 << 20);
    let small = prewarmed(&running, heat.clone()).await;
    assert_eq!(small.ended, Some(Ended::Full), "{small:?}");
    cache.set_budget(9 << 20);
    assert!(!engine.prewarm_may_go_on(), "that is as good as nothing");
    cache.set_budget(64 << 20);
    assert!(engine.prewarm_may_go_on());
    let large = prewarmed(&running, heat).await;
    assert!(large.read.0 > 100 && large.memory.0 > small.read.0 + 100, "{large:?} after {small:?}");
    assert!(!engine.prewarm_may_go_on());
    drop(view);
    running.export().await;
}

/// Whoever waited for all of it to be seen to waited for ever: it had ended, complete, with next to nothing of it done.
#[tokio::test(start_paused = true)]
async fn what_was_warm_of_a_volume_that_is_gone_is_seen_to() {
    let (world, heat) = warm_and_cut(48).await;
    let running = world.open().await;
    let name = format!("{POOL}/v");
    let destroy = running.engine.run(move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await }));
    destroy.await.unwrap();
    let progress = prewarmed(&running, heat).await;
    assert_eq!((progress.ended, progress.read), (Some(Ended::Complete), (0, 0)), "{progress:?}");
    assert!(progress.memory.1 > 0 && progress.device.1 > 1000, "{progress:?}");
    assert_eq!((progress.memory.0, progress.device.0), (progress.memory.1, progress.device.1));
    running.export().await;
}

/// The same of what was on cache devices, where there are none any more.
#[tokio::test(start_paused = true)]
async fn what_was_warm_on_cache_devices_that_are_gone_is_seen_to() {
    let (_world, running) = World::create("d0", 12, 256 << 20, 49).await;
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, 16384, Properties::new()).await;
    volume.write(0, data(vec![7; 1 << 20]), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    let view = running.engine.view();
    let mut heat = Heat::new(view.guid(), view.uberblock().txg, 0);
    (0..64).for_each(|blkid| heat.note(volume.dataset(), blkid, None, true));
    let progress = prewarmed(&running, heat).await;
    assert_eq!((progress.ended, progress.device), (Some(Ended::Complete), (64, 64)), "{progress:?}");
    drop((volume, view));
    running.export().await;
}

/// Nothing was told, and a pool that was closed before it had been looked through once was cold at the next start.
#[tokio::test(start_paused = true)]
async fn what_was_found_warm_until_there_was_no_more_time_is_told() {
    let (_world, running) = World::create("d0 cache d1", 12, 256 << 20, 43).await;
    let mut volumes = Vec::new();
    for name in ["a", "b"] {
        let volume = running.volume(&format!("{POOL}/{name}"), 2 << 20, 16384, Properties::new()).await;
        volume.write(0, data(noise(11, 2 << 20)), Durability::Cached).await.unwrap();
        volumes.push(volume);
    }
    running.engine.sync().await.unwrap();
    for volume in &volumes {
        let _all = content(&**volume).await;
    }
    let all = running.engine.sample_heat_within(usize::MAX, Duration::from_secs(60)).await.unwrap();
    let some = running.engine.sample_heat_within(usize::MAX, Duration::ZERO).await.unwrap_err();
    let (all, some) = (all.blocks().0, some.blocks().0);
    assert!(some > 100 && all > some + 100, "{some} of {all}: of the first volume only");
    drop(volumes);
    running.export().await;
}

/// It kept its blocks pinned, and whatever a commit was short of, for as long as the device did not answer.
#[tokio::test(start_paused = true)]
async fn a_pre_warm_does_not_wait_for_a_cache_device_that_hangs() {
    let (world, heat) = warm_and_cut(33).await;
    // The device comes back empty, and takes nothing.
    world.media[1].write(ondisk::l2arc::HEADER_OFFSET, vec![0; 4096].into()).await.unwrap();
    let running = world.open().await;
    sleep(Duration::from_secs(1)).await;
    let day = Duration::from_secs(86_400);
    running.disks[1].inject(Fault::anywhere(On::Write, Effect::Delay(day..=day)));
    let progress = prewarmed(&running, heat).await;
    assert_eq!(progress.ended, Some(Ended::Full), "{progress:?}");
    assert!(progress.read.1 > 0 && progress.took < Duration::from_secs(50), "{progress:?}");
}

/// With `l2arc_mfuonly` it read everything, and nothing of it was taken; and it said that all had been given to the device.
#[tokio::test(start_paused = true)]
async fn a_pre_warm_fills_a_cache_device_that_takes_only_what_is_frequent() {
    let (world, heat) = warm_and_cut(41).await;
    // The device comes back empty.
    world.media[1].write(ondisk::l2arc::HEADER_OFFSET, vec![0; 4096].into()).await.unwrap();
    let running = world.open().await;
    let second = running.engine.second();
    second.set_config(Config { mfuonly: 1, ..second.config() });
    sleep(Duration::from_secs(1)).await;
    let progress = prewarmed(&running, heat).await;
    settle(&running).await;
    let stats = second.stats();
    assert!(progress.read.1 > 1000, "{progress:?}");
    assert!(stats.l2_bufs * 100 >= progress.read.1 * 95, "{stats:?}, {progress:?}");
    running.export().await;
}

/// Only commits looked at the budget, so a pool that was only read from kept what it had at the last one.
#[tokio::test(start_paused = true)]
async fn what_the_index_may_take_follows_the_cache_without_a_commit() {
    let (_world, running) = World::create("d0 cache d1", 12, 256 << 20, 34).await;
    let (engine, second) = (&running.engine, running.engine.second());
    let before = second.config().index_max;
    engine.view().io().cache().set_budget(160 << 20);
    let _asked_by_whoever_gives_memory = second.memory();
    let after = second.config();
    assert!(after.index_max > 9 * before, "{after:?}, {before} before");
    assert_eq!(after.buffer, 10 << 20);
    running.export().await;
}

/// What it read from cache devices counted as read ahead for clients and as hits there, also if it could not be read; and
/// it was written again when the hand came by, as if somebody had asked for it.
#[tokio::test(start_paused = true)]
async fn what_a_pre_warm_reads_from_a_cache_device_was_asked_for_by_nobody() {
    let (world, heat) = warm_and_cut(42).await;
    let running = world.open().await;
    sleep(Duration::from_secs(1)).await;
    let look = || (running.engine.view().io().cache().stats(), running.engine.second().stats());
    let (arc, l2) = look();
    let progress = prewarmed(&running, heat).await;
    let (arc_after, l2_after) = look();
    let from_device = l2_after.l2_read_bytes - l2.l2_read_bytes;
    assert!(progress.read.0 > 0 && from_device > 1 << 20, "{progress:?}, {l2_after:?}");
    assert_eq!(arc_after.predictive_prefetch, arc.predictive_prefetch, "{arc_after:?}");
    // What leads to the volume is asked for: a few blocks.
    let hits = l2_after.l2_hits - l2.l2_hits;
    assert!(hits < 20, "{hits} hits, {l2_after:?}");
    running.export().await;
}

/// Each pool took a third of the one cache for itself: with three of them nothing was left for blocks.
#[tokio::test(start_paused = true)]
async fn pools_share_what_the_cache_gives_to_indexes_of_cache_devices() {
    let cache = Arc::new(BlockCache::new(64 << 20));
    let open = async |layout: &str, seed: u64| {
        let (mut world, running) = World::create(layout, 12, 256 << 20, seed).await;
        world.cut(running).await;
        let disks = as_disks(&world.media);
        start_beside(POOL, disks, seed, quiet(), Arc::clone(&cache)).await.unwrap()
    };
    let may_take = |engine: &Engine| {
        let _asked_by_whoever_gives_memory = engine.second().memory();
        let config = engine.second().config();
        (config.index_max, config.buffer)
    };
    let third = cache.budget() as u64 / 100 * 33;
    let first = open("d0 cache d1", 38).await;
    let without = open("d0", 39).await;
    assert_eq!(may_take(&first), (third, 4 << 20), "one without devices takes none of it");
    let other = open("d0 cache d1", 40).await;
    assert_eq!(other.second().config().index_max, may_take(&other).0, "from the beginning");
    let taken = [&first, &other].map(|engine| may_take(engine));
    assert!(taken.iter().map(|(index, _)| index).sum::<u64>() <= third, "{taken:?} of {third}");
    assert!(taken.iter().all(|taken| taken.0 > third / 5 * 2 && taken.1 == 2 << 20), "{taken:?} of {third}");
    other.end(Ending::Export).await.unwrap();
    assert_eq!(may_take(&first), (third, 4 << 20), "it rises again");
    for engine in [first, without] {
        engine.end(Ending::Export).await.unwrap();
    }
}

/// What was set was for the volume alone: its snapshots were cached as when they were opened, until the next import.
#[tokio::test(start_paused = true)]
async fn open_snapshots_follow_what_is_set_of_their_volume() {
    let (_world, running) = World::create("d0", 12, 256 << 20, 36).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, SIZE, 16384, Properties::new()).await;
    let engine = &running.engine;
    let snapshot = format!("{name}@s");
    let names = vec![snapshot.clone()];
    engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }))
        .await
        .unwrap();
    let opened = engine.view().open_volume(&snapshot).await.unwrap();
    let of_snapshot = opened.data().objset();
    assert_eq!(engine.view().io().caching(of_snapshot), Caching::default());
    let values: Properties = [("primarycache", 1), ("secondarycache", 0), ("prefetch", 0)]
        .map(|(name, value)| (name.to_owned(), Stored::Number(value)))
        .into();
    engine.run(move |cx| Box::pin(async move { dsl::set(cx, &name, &values).await })).await.unwrap();
    let view = engine.view();
    assert_eq!(
        view.io().caching(of_snapshot),
        Caching { primary: Keep::Metadata, secondary: Keep::None },
        "as its volume"
    );
    assert!(!view.io().reads_ahead(of_snapshot, true));
    drop((opened, volume, view));
    running.export().await;
}

/// Each volume below had all that is open of any looked at: with some thousands of both nothing was committed for minutes.
#[tokio::test(start_paused = true)]
async fn what_is_set_of_many_volumes_looks_at_each_snapshot_once() {
    const MORE: u64 = 60;
    let (_world, running) = World::create("d0", 12, 256 << 20, 43).await;
    let engine = &running.engine;
    let hits = || engine.view().io().cache().stats().demand_metadata_hits;
    let mut costs = Vec::new();
    for turn in 0..2 {
        let names: Vec<String> = (0..MORE).map(|n| format!("{POOL}/v{}", turn * MORE + n)).collect();
        let snapshots: Vec<String> = names.iter().map(|name| format!("{name}@s")).collect();
        let made = engine.run(move |cx| {
            Box::pin(async move {
                for name in names {
                    let properties = Properties::new();
                    let new = NewVolume { name, size: SIZE, block: 16384, properties, parents: false };
                    dsl::create_volume(cx, &new).await?;
                }
                Ok(())
            })
        });
        made.await.unwrap();
        let taken = snapshots.clone();
        engine
            .run_snapshot(move |cx| {
                Box::pin(async move { dsl::snapshot(cx, &taken, &Properties::new()).await })
            })
            .await
            .unwrap();
        for snapshot in &snapshots {
            drop(engine.view().open_volume(snapshot).await.unwrap());
        }
        let before = hits();
        set_number(engine, POOL, "primarycache", turn + 1).await;
        costs.push(hits() - before);
    }
    assert!(
        costs[1] * 2 <= costs[0] * 5,
        "{costs:?} for {MORE} volumes with a snapshot each, and for twice as many"
    );
    running.export().await;
}

async fn set_number(engine: &Engine, name: &'static str, property: &str, value: u64) {
    let values = Properties::from([(property.to_owned(), Stored::Number(value))]);
    engine.run(move |cx| Box::pin(async move { dsl::set(cx, name, &values).await })).await.unwrap();
}

/// All of them were read for whatever was set.
#[tokio::test(start_paused = true)]
async fn open_snapshots_are_told_of_what_concerns_caches_and_of_nothing_else() {
    const VOLUME: &str = "tank/v";
    let (_world, running) = World::create("d0", 12, 256 << 20, 44).await;
    drop(running.volume(VOLUME, SIZE, 16384, Properties::new()).await);
    let engine = &running.engine;
    let names = vec![format!("{VOLUME}@s")];
    let snapshot = names[0].clone();
    engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }))
        .await
        .unwrap();
    let of_snapshot = engine.view().open_volume(&snapshot).await.unwrap().data().objset();
    let caching = || engine.view().io().caching(of_snapshot);
    let inherit = async |property: &'static str| {
        let inherited =
            engine.run(move |cx| Box::pin(async move { dsl::inherit(cx, VOLUME, property, false).await }));
        inherited.await.unwrap();
    };
    let other = Caching { primary: Keep::Metadata, secondary: Keep::None };
    engine.view().io().set_caching(of_snapshot, other);
    set_number(engine, VOLUME, "compression", 2).await;
    set_number(engine, POOL, "compression", 2).await;
    inherit("compression").await;
    assert_eq!(caching(), other, "it was told again");
    set_number(engine, VOLUME, "prefetch", 0).await;
    assert_eq!(caching(), Caching::default());
    set_number(engine, POOL, "primarycache", 0).await;
    assert_eq!(caching().primary, Keep::None);
    set_number(engine, VOLUME, "primarycache", 1).await;
    assert_eq!(caching().primary, Keep::Metadata);
    inherit("primarycache").await;
    assert_eq!(caching().primary, Keep::None);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_wants_nothing_of_the_caches_any_more() {
    let (_world, running) = World::create("d0", 12, 256 << 20, 37).await;
    let name = format!("{POOL}/v");
    drop(running.volume(&name, SIZE, 16384, Properties::new()).await);
    let engine = &running.engine;
    let names = vec![format!("{name}@s")];
    let taken = names.clone();
    engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &taken, &Properties::new()).await }))
        .await
        .unwrap();
    let snapshot = engine.view().open_volume(&names[0]).await.unwrap().data().objset();
    assert!(engine.view().io().told_of().contains(&snapshot));
    engine
        .run(move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await }))
        .await
        .unwrap();
    assert!(!engine.view().io().told_of().contains(&snapshot));
    running.export().await;
}

/// One that was not there when the pool was opened, or was pulled and put back, was not used again until the next import.
#[tokio::test(start_paused = true)]
async fn a_cache_device_that_comes_later_or_comes_back_is_used() {
    let (mut world, running) = World::create("d0 cache d1", 12, 1280 << 20, 35).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, SIZE, 16384, Properties::new()).await;
    let twin = noise(10, SIZE);
    for (at, chunk) in (0..).step_by(1 << 20).zip(twin.chunks(1 << 20)) {
        volume.write(at, data(chunk.to_vec()), Durability::Cached).await.unwrap();
    }
    volume.flush().await.unwrap();
    read_slowly(&running, &*volume, &twin).await;
    read_slowly(&running, &*volume, &twin).await;
    drop(volume);
    running.disks[1].flush().await.unwrap();
    world.cut(running).await;

    let disks = [0, 1].map(|n| Arc::new(FaultDisk::new(world.media[n].clone(), n as u64)));
    let engine = start_on(vec![disks[0].clone()], 35, quiet()).await.unwrap();
    let state = || engine.view().l2cache()[0].state().0;
    assert!(engine.second().devices().is_empty() && state() == State::CantOpen);
    engine.watch(Arc::new(Bays(disks.to_vec())));
    sleep(Duration::from_secs(12)).await;
    let recovered = |engine: &Engine| engine.second().devices()[0].recovered.clone().unwrap();
    assert!(recovered(&engine).blocks > MANY / 2, "{}", recovered(&engine));
    assert_eq!(state(), State::Healthy);
    let volume = engine.volume(&name).await.unwrap();
    assert!(content(&*volume).await == twin);
    assert!(engine.second().stats().l2_hits > 1000, "{:?}", engine.second().stats());

    disks[1].vanish();
    sleep(Duration::from_secs(12)).await;
    assert_eq!((state(), engine.second().devices().len()), (State::Removed, 0));
    disks[1].come_back();
    sleep(Duration::from_secs(12)).await;
    assert_eq!(state(), State::Healthy);
    assert!(recovered(&engine).blocks > MANY / 2, "{}", recovered(&engine));
    drop(volume);
    Running { engine, disks: disks.to_vec() }.export().await;
}
