//! Scans under which devices go away, or do not answer: what cannot be read just now is neither lost nor made good.
//!
//! Here are scans that wait, for all devices or for who may list all datasets; and the disks that turn slowly and can be pulled,
//! with what is asked of a pool at the end.

mod replaced;
mod source;
mod wrong;

use disk::{Effect, Fault, FaultDisk, On};
use tokio::time::timeout;

use super::*;
use crate::{failing::Bays, support::as_disks};

const MINUTE: Duration = Duration::from_secs(60);

/// Disks that turn slowly, and can be pulled.
fn pullable(world: &World) -> Vec<Arc<FaultDisk>> {
    let disks = world.media.iter().zip(1..).map(|(media, seed)| {
        let profile = Profile::hdd_7200().stretched(4);
        let slow = ModelDisk::new(Arc::clone(media) as Arc<dyn Disk>, profile, seed);
        Arc::new(FaultDisk::new(Arc::new(slow), seed))
    });
    disks.collect()
}

async fn open_pullable(disks: &[Arc<FaultDisk>]) -> Arc<Engine> {
    open_caching(disks, 16 << 20).await
}

async fn open_caching(disks: &[Arc<FaultDisk>], cache: usize) -> Arc<Engine> {
    let engine = support::start_caching(as_disks(disks), 1, quiet(), cache).await.unwrap();
    engine.watch(Arc::new(Bays(disks.to_vec())));
    engine
}

async fn settled(engine: &Engine) {
    for _ in 0..3600 {
        let is_at_rest = engine.scan_progress().is_none_or(|progress| progress.ended.is_some());
        if is_at_rest && engine::devices::lacking(&engine.view().tree()).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("somebody still lacks something: {:?}", engine.scan_progress());
}

async fn nothing_is_lost(engine: &Engine, what: &str) {
    engine.sync().await.unwrap();
    assert!(pool::status::error_log(&engine.view()).await.unwrap().is_empty(), "{what}");
    let told = engine.events().since(0);
    assert!(told.iter().all(|record| !matches!(record.event, Event::DataLost { .. })), "{what}: {told:#?}");
}

/// Everybody gets what he lacks, and what only `d0` had is on the others: `expected`.
async fn ends_whole(world: &World, engine: Arc<Engine>, expected: &[u8], what: &str) {
    engine.sync().await.unwrap();
    settled(&engine).await;
    nothing_is_lost(&engine, what).await;
    close(engine).await;
    world.verify(what).await;
    holds_without(world, &[0], expected).await;
}

/// A sector of 16 KiB blocks that a disk has: the number of the block, and where it is on the disk. Blocks of zeroes do not
/// count.
fn sector_on(media: &MemDisk, blocks: &[u8]) -> (u64, u64) {
    let all = media.snapshot(0..media.info().size);
    let places: BTreeMap<&[u8], u64> = all.chunks_exact(4096).zip((0..).step_by(4096)).collect();
    let sectors = blocks.chunks_exact(4096).zip(0..);
    let mut sectors = sectors.filter(|(sector, _)| sector.iter().any(|byte| *byte != 0));
    let found = sectors.find_map(|(sector, number): (_, u64)| Some((number / 4, *places.get(sector)?)));
    found.expect("a sector of it")
}

/// Properties of a volume whose bytes are stored as they are, without a checksum.
fn unverified() -> Properties {
    let mut properties = plain();
    properties.insert("checksum".to_owned(), Stored::Number(2));
    properties
}

/// A disk does not give what it has there.
fn refuse(disk: &FaultDisk, at: u64, len: u64) {
    disk.inject(Fault::new(On::Read, at..at + len, Effect::Error(std::io::ErrorKind::Other)));
}

/// An exported pool of which `d0` has a sector wrongly: what its volume holds, and the number of the block with that sector.
async fn rotten(layout: &str) -> (World, Vec<u8>, u64) {
    let (world, running, volume) = filled(layout, 8 * MIB).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    let (block, at) = sector_on(&world.media[0], &expected);
    world.media[0].write(at, vec![0xee; 4096].into()).await.unwrap();
    (world, expected, block)
}

/// What could not be read because a shelf was without power for a minute was listed as lost, and the scrub said that it
/// had gone through.
#[tokio::test(start_paused = true)]
async fn a_scrub_under_which_all_devices_go_away_waits_for_them() {
    for layout in ["mirror d0 d1", "d0 d1", "raidz d0 d1 d2"] {
        let (world, running, volume) = filled(layout, 32 * MIB).await;
        scribble(&volume, 2, 1500, 16384).await;
        drop(volume);
        running.export().await;
        let disks = pullable(&world);
        let engine = open_pullable(&disks).await;
        engine.scan(ScanCommand::Scrub).await.unwrap();
        until(&engine, 0.3).await;
        disks.iter().for_each(|disk| disk.vanish());
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(engine.scan_progress().unwrap().ended, None, "{layout}: it waits");
        disks.iter().for_each(|disk| disk.come_back());
        let done = over(&engine).await;
        assert_eq!(done.errors, 0, "{layout}");
        engine.sync().await.unwrap();
        assert!(pool::status::error_log(&engine.view()).await.unwrap().is_empty(), "{layout}");
        close(engine).await;
        world.verify(layout).await;
    }
}

/// Each block of a transfer that was not answered counted as an error of its device, which was taken out of use for one
/// slow answer.
#[tokio::test(start_paused = true)]
async fn one_read_of_a_scrub_that_is_not_answered_is_one_error() {
    let (_world, running, volume) = filled("mirror d0 d1", 16 * MIB).await;
    let expected = content(&*volume).await;
    let hour = Duration::from_secs(3600);
    let late = Fault::anywhere(On::Read, Effect::Delay(hour..=hour));
    running.disks[0].inject(late.times(1));
    let done = scrub(&running.engine).await;
    assert_eq!((done.errors, done.processed), (0, 0), "nothing was wrong, and nothing is written");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tree = running.engine.view().tree();
    let counted: Vec<u64> = tree.leaves().iter().map(|leaf| leaf.counters.get().read).collect();
    assert_eq!(counted, [1, 0]);
    tokio::time::sleep(2 * hour).await;
    assert!(running.engine.view().tree().leaves().iter().all(|leaf| leaf.is_readable()));
    assert!(content(&*volume).await == expected);
    drop(volume);
    running.export().await;
}

/// A disk does not give the block of dnodes with a volume's dataset in it, and with others that nobody touches any more.
async fn refuse_dataset(world: &World, volume: &str, disk: &FaultDisk) {
    let view = world.look().await.unwrap();
    let object = view.dsl().await.unwrap().lookup(&format!("{POOL}/{volume}")).await.unwrap().object();
    let mut runs = view.mos().meta().runs(0, object / 32..object / 32 + 1);
    let Some(Run::Block { pointer, .. }) = runs.next().await.unwrap() else { panic!("no block") };
    for dva in pointer.dvas() {
        let start = DATA_OFFSET + dva.offset;
        refuse(disk, start, dva.asize);
    }
}

/// Datasets that could not be listed just now were not walked, and the leaf was called whole without their blocks.
#[tokio::test(start_paused = true)]
async fn a_resilver_that_cannot_list_all_datasets_makes_nobody_whole() {
    let (world, running) = World::create("mirror d0 d1", 12, 128 << 20, 9).await;
    running.export().await;
    let engine = open_without(&world, &[1], quiet()).await;
    let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
    let mut expected = Vec::new();
    for number in 0..40u64 {
        let volume = running.volume(&format!("{POOL}/v{number}"), MIB, 16384, plain()).await;
        volume.write(0, data(noise(number, 16384)), Durability::Cached).await.unwrap();
        engine.sync().await.unwrap();
        expected.push(content(&*volume).await);
    }
    drop(running);
    close(engine).await;
    let disks = pullable(&world);
    refuse_dataset(&world, "v20", &disks[0]).await;
    let engine = open_caching(&disks, 0).await;
    let done = over(&engine).await;
    assert!(done.errors > 0, "{done:?}");
    engine.sync().await.unwrap();
    assert!(!engine::devices::lacking(&engine.view().tree()).is_empty(), "nobody knows what it lacks");
    disks[0].heal();
    settled(&engine).await;
    engine.sync().await.unwrap();
    close(engine).await;
    world.verify("after all").await;
    let engine = open_without(&world, &[0], quiet()).await;
    for (number, expected) in expected.iter().enumerate() {
        let volume = engine.volume(&format!("{POOL}/v{number}")).await.unwrap();
        assert!(content(&*volume).await == *expected, "{number}");
    }
    close(engine).await;
}

/// Found by reading: a scan that waits for who may list all datasets looked each second whether he is back by beginning again, with
/// a transaction group each time; and for one that an administrator had taken offline it waited for ever.
#[tokio::test(start_paused = true)]
async fn a_scan_that_cannot_list_all_datasets_waits_at_rest_and_only_for_who_may_come_back() {
    for is_offline in [false, true] {
        let (world, running) = World::create("mirror d0 d1", 12, 128 << 20, 9).await;
        for number in 0..40 {
            drop(running.volume(&format!("{POOL}/v{number}"), MIB, 16384, plain()).await);
        }
        running.export().await;
        let disks = pullable(&world);
        refuse_dataset(&world, "v20", &disks[0]).await;
        let engine = open_caching(&disks, 0).await;
        let other = engine.view().tree().leaves()[1].guid;
        match is_offline {
            true => engine.offline(other, false).await.unwrap(),
            false => disks[1].vanish(),
        }
        tokio::time::sleep(MINUTE).await;
        engine.scan(ScanCommand::Scrub).await.unwrap();
        let before = engine.view().uberblock().txg;
        tokio::time::sleep(10 * MINUTE).await;
        let groups = engine.view().uberblock().txg - before;
        assert!(groups < 60, "offline: {is_offline}: {groups}");
        let progress = engine.scan_progress().unwrap();
        assert_eq!(progress.ended.is_some(), is_offline, "{progress:?}");
        assert_eq!(progress.errors > 0, is_offline, "{progress:?}");
        disks[0].heal();
        match is_offline {
            true => {
                engine.online(other, None, false).await.unwrap();
            }
            false => disks[1].come_back(),
        }
        settled(&engine).await;
        close(engine).await;
        world.verify("after all").await;
    }
}
