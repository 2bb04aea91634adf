//! Scans under which devices go away, or do not answer: what cannot be read just now is neither lost nor made good.

use block::VolumeError;
use disk::{Effect, Fault, FaultDisk, On};
use tokio::time::timeout;

use super::*;
use crate::{
    failing::Bays,
    support::{as_disks, forgetful::Forgetful, joined},
};

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

async fn fail_what_cannot_be_done(engine: &Engine) {
    let failmode = Properties::from([("failmode".to_owned(), Stored::Number(1))]);
    let set = engine.run(move |cx| Box::pin(async move { engine::dsl::set_pool(cx, &failmode).await }));
    set.await.unwrap();
}

/// What it was to get was on a device that was away for a minute, and the pass took that for the end of it: the leaf was
/// called whole, and in a replacement the old device would have been let go.
#[tokio::test(start_paused = true)]
async fn a_resilver_whose_source_is_away_for_a_while_makes_nobody_whole() {
    let (world, expected) = half(48 * MIB).await;
    let disks = pullable(&world);
    let engine = open_pullable(&disks).await;
    let lacking = |number: usize| {
        let view = engine.view();
        let leaf = view.tree().leaves()[number].leaf.as_ref().map(|leaf| leaf.missed.get().is_empty());
        leaf == Some(false)
    };
    until(&engine, 0.3).await;
    disks[0].vanish();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(lacking(1), "the rest of it is on the other");
    disks[0].come_back();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!lacking(1) && !lacking(0), "both have everything");
    close(engine).await;
    world.verify("after it was away").await;
    holds_without(&world, &[0], &expected).await;
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

/// What was left of a mirror could be read, but not that block, which it was still to get: the transaction group failed, and
/// with it the pool, until it was imported again without what had been acknowledged.
#[tokio::test(start_paused = true)]
async fn pulling_the_source_of_a_resilver_suspends_a_pool_that_needs_what_only_that_has() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, mut expected) = half_of(layout, 48 * MIB).await;
        let disks = pullable(&world);
        // Nothing that was read is kept.
        let engine = open_caching(&disks, 0).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let at = 2100 * 16384;
        volume.write(at, data(noise(77, 16384)), Durability::Cached).await.unwrap();
        expected[at as usize..][..16384].copy_from_slice(&noise(77, 16384));
        disks[0].vanish();
        let refused = timeout(10 * MINUTE, engine.sync()).await.expect("no command hangs");
        assert!(refused.is_err() && !engine.suspension().is_given_up(), "{layout}: {refused:?}");
        tokio::time::sleep(MINUTE / 2).await;
        assert!(engine.suspended().is_some(), "{layout}");
        disks[0].come_back();
        tokio::time::sleep(MINUTE).await;
        assert!(engine.suspended().is_none(), "{layout}: it goes on");
        drop(volume);
        ends_whole(&world, engine, &expected, layout).await;
    }
}

/// A part of a block that was read from what was left of the mirror, which was still to get it: the client was told of a bad
/// medium, though the source was back a moment later.
#[tokio::test(start_paused = true)]
async fn a_part_of_a_block_that_only_the_source_of_a_resilver_has_waits_for_it_or_fails_as_the_pool_says() {
    for (layout, fails) in [("mirror d0 d1", false), ("raidz d0 d1 d2", false), ("mirror d0 d1", true)] {
        let (world, mut expected) = half_of(layout, 48 * MIB).await;
        let disks = pullable(&world);
        let engine = open_caching(&disks, 0).await;
        if fails {
            fail_what_cannot_be_done(&engine).await;
        }
        // It has not been written to since the import.
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let (at, part) = (2100 * 16384 + 512, noise(78, 512));
        disks[0].vanish();
        let writing = tokio::spawn({
            let (volume, part) = (Arc::clone(&volume), part.clone());
            async move { volume.write(at, data(part), Durability::Cached).await }
        });
        tokio::time::sleep(MINUTE / 2).await;
        assert_eq!(writing.is_finished(), fails, "{layout}");
        disks[0].come_back();
        let written = timeout(MINUTE, writing).await.expect("it does not hang").unwrap();
        match fails {
            false => written.unwrap(),
            true => {
                assert!(matches!(written, Err(VolumeError::Failed(_))), "{written:?}");
                tokio::time::sleep(MINUTE).await;
                volume.write(at, data(part.clone()), Durability::Cached).await.unwrap();
            }
        }
        expected[at as usize..][..512].copy_from_slice(&part);
        tokio::time::sleep(MINUTE).await;
        drop(volume);
        ends_whole(&world, engine, &expected, layout).await;
    }
}

/// Whether a read waited for the source of a resilver was decided by whether its volume had been written to since the import,
/// and `failmode=continue` changed nothing. One that failed was a bad block by name, which hosts mark, and which was there again
/// a moment later.
#[tokio::test(start_paused = true)]
async fn a_read_of_what_only_the_source_of_a_resilver_has_waits_for_it_or_fails_as_the_pool_says() {
    for (is_committed, fails) in [(false, false), (true, false), (false, true), (true, true)] {
        let what = format!("written to since the import: {is_committed}, failmode=continue: {fails}");
        let (world, mut expected) = half(48 * MIB).await;
        let disks = pullable(&world);
        let engine = open_caching(&disks, 0).await;
        if fails {
            fail_what_cannot_be_done(&engine).await;
        }
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        if is_committed {
            volume.write(0, data(noise(79, 16384)), Durability::Cached).await.unwrap();
            expected[..16384].copy_from_slice(&noise(79, 16384));
            engine.sync().await.unwrap();
        }
        let at = 2100 * 16384;
        disks[0].vanish();
        let reading = tokio::spawn({
            let volume = Arc::clone(&volume);
            async move { volume.read(at, 16384).await }
        });
        tokio::time::sleep(MINUTE / 2).await;
        assert_eq!(reading.is_finished(), fails, "{what}");
        disks[0].come_back();
        let read = timeout(MINUTE, reading).await.expect("it does not hang").unwrap();
        match fails {
            false => assert!(joined(read.unwrap()) == expected[at as usize..][..16384], "{what}"),
            true => assert!(matches!(read, Err(VolumeError::Failed(_))), "{what}: {read:?}"),
        }
        tokio::time::sleep(MINUTE).await;
        assert!(engine.suspended().is_none(), "{what}: it goes on");
        drop(volume);
        ends_whole(&world, engine, &expected, &what).await;
    }
}

/// Every block that the scan met meanwhile was listed as lost.
#[tokio::test(start_paused = true)]
async fn what_only_the_source_of_a_resilver_has_is_away_with_it_and_not_lost() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, expected) = half_of(layout, 48 * MIB).await;
        let disks = pullable(&world);
        let engine = open_pullable(&disks).await;
        until(&engine, 0.3).await;
        disks[0].vanish();
        tokio::time::sleep(2 * MINUTE).await;
        let progress = engine.scan_progress().unwrap();
        assert_eq!((progress.errors, progress.ended), (0, None), "{layout}: it waits");
        disks[0].come_back();
        tokio::time::sleep(MINUTE).await;
        ends_whole(&world, engine, &expected, layout).await;
    }
}

/// The source of a resilver was there until the pool was closed, and came seconds after it was opened again: by then every block
/// that it alone had was announced as lost, and listed until a scrub of everything.
#[tokio::test(start_paused = true)]
async fn a_source_that_comes_after_the_import_has_lost_nothing() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, expected) = half_of(layout, 48 * MIB).await;
        let engine = open_pullable(&pullable(&world)).await;
        // What is on its way when it is closed is copied as well, four times 8 MiB.
        until(&engine, 0.05).await;
        close(engine).await;
        let disks = pullable(&world);
        disks[0].vanish();
        let engine = support::start_caching(as_disks(&disks[1..]), 1, quiet(), 0).await.unwrap();
        engine.watch(Arc::new(Bays(disks.clone())));
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        // A client meets one of them, too.
        let mut blocks = (0..48 * MIB / 16384).rev();
        loop {
            let block = blocks.next().expect("some of them were not copied yet");
            let read = timeout(MINUTE, volume.read(block * 16384, 16384)).await.expect("it does not hang");
            if read.is_err() {
                break;
            }
        }
        assert!(over(&engine).await.errors > 0, "{layout}: it went through without its source");
        tokio::time::sleep(MINUTE / 6).await;
        nothing_is_lost(&engine, layout).await;
        disks[0].come_back();
        drop(volume);
        ends_whole(&world, engine, &expected, layout).await;
    }
}

/// How many leaves may be late, of a pool that is opened without `d0`.
async fn late_without_first(world: &World) -> usize {
    let engine = open_without(world, &[0], quiet()).await;
    let view = engine.view();
    let late = engine::devices::late(&view.tree());
    let first = world.media[0].info().path;
    let tree = view.tree();
    let is_first = |guid: u64| {
        let leaf = tree.leaves().into_iter().find(|leaf| leaf.guid == guid).expect("a leaf");
        leaf.path.as_deref() == Some(first.as_str())
    };
    assert!(late.iter().all(|(guid, alone)| is_first(*guid) && !alone.is_empty()), "{late:?}");
    close(engine).await;
    late.len()
}

/// A start refuses a pool for a leaf that may be late. One that is dead for good must not keep from everybody what is there.
#[tokio::test(start_paused = true)]
async fn a_leaf_may_be_late_that_alone_has_something_and_without_which_the_pool_was_never_opened() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, _) = half_of(layout, 48 * MIB).await;
        let engine = open_pullable(&pullable(&world)).await;
        assert!(engine::devices::late(&engine.view().tree()).is_empty(), "{layout}: all are here");
        until(&engine, 0.3).await;
        close(engine).await;
        assert_eq!(late_without_first(&world).await, 1, "{layout}");
        assert_eq!(late_without_first(&world).await, 0, "{layout}: the pool was gone on with without it");
    }
    // What the others make up for.
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    running.export().await;
    assert_eq!(late_without_first(&world).await, 0, "the other side is whole");
    let (world, _) = half_of("raidz2 d0 d1 d2 d3", 48 * MIB).await;
    assert_eq!(late_without_first(&world).await, 0, "enough parity is left");
}

/// Announced as lost, and listed, was what a pulled drive had, if a side that was there had it wrongly.
#[tokio::test(start_paused = true)]
async fn what_one_side_has_wrongly_and_one_that_was_pulled_has_right_is_not_lost() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, expected, block) = rotten(layout).await;
        let disks = pullable(&world);
        let engine = open_caching(&disks, 0).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        disks[1].vanish();
        let read = timeout(MINUTE, volume.read(block * 16384, 16384)).await.expect("it does not hang");
        assert!(read.is_err(), "{layout}: nobody has it just now");
        tokio::time::sleep(MINUTE).await;
        nothing_is_lost(&engine, layout).await;
        let done = scrub(&engine).await;
        assert_eq!((done.kind, done.errors), (ScanKind::Scrub, 1), "{layout}");
        nothing_is_lost(&engine, layout).await;
        disks[1].come_back();
        tokio::time::sleep(MINUTE).await;
        engine.sync().await.unwrap();
        settled(&engine).await;
        assert!(content(&*volume).await == expected, "{layout}");
        assert_eq!(scrub(&engine).await.errors, 0, "{layout}");
        nothing_is_lost(&engine, layout).await;
        drop(volume);
        close(engine).await;
        world.verify(layout).await;
    }
}

/// Announced as lost, and listed, was what a pulled drive had, if a side that was there refused it: by far the most common kind
/// of damage.
#[tokio::test(start_paused = true)]
async fn what_one_side_refuses_and_one_that_was_pulled_has_is_not_lost() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, running, volume) = filled(layout, 8 * MIB).await;
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        let (block, at) = sector_on(&world.media[0], &expected);
        let disks = pullable(&world);
        let refuse = Effect::Error(std::io::ErrorKind::Other);
        disks[0].inject(Fault::new(On::Read, at..at + 4096, refuse));
        let engine = open_caching(&disks, 0).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        disks[1].vanish();
        tokio::time::sleep(MINUTE).await;
        let read = timeout(MINUTE, volume.read(block * 16384, 16384)).await.expect("it does not hang");
        assert!(read.is_err(), "{layout}: nobody has it just now");
        tokio::time::sleep(MINUTE).await;
        nothing_is_lost(&engine, layout).await;
        let done = scrub(&engine).await;
        assert!(done.kind == ScanKind::Scrub && done.errors > 0, "{layout}: {done:?}");
        nothing_is_lost(&engine, layout).await;
        disks[1].come_back();
        tokio::time::sleep(MINUTE).await;
        engine.sync().await.unwrap();
        settled(&engine).await;
        let read = joined(volume.read(block * 16384, 16384).await.unwrap());
        assert!(read == expected[block as usize * 16384..][..16384], "{layout}: the other has it");
        disks[0].heal();
        assert_eq!(scrub(&engine).await.errors, 0, "{layout}");
        nothing_is_lost(&engine, layout).await;
        drop(volume);
        close(engine).await;
        world.verify(layout).await;
    }
}

/// Old bytes of a leaf that was away, which no checksum tells from those that were written meanwhile, were given to clients
/// when one read of these failed, and the resilver wrote them over the right ones.
#[tokio::test(start_paused = true)]
async fn what_has_no_checksum_is_not_taken_from_who_missed_it() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (world, running) = World::create(layout, 12, 128 << 20, 5).await;
        let mut unverified = plain();
        unverified.insert("checksum".to_owned(), Stored::Number(2));
        let volume = running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified).await;
        scribble(&volume, 1, 600, 16384).await;
        running.engine.sync().await.unwrap();
        let mut fresh = content(&*volume).await;
        drop(volume);
        running.export().await;
        let engine = open_without(&world, &[1], quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        scribble(&volume, 2, 60, 16384).await;
        engine.sync().await.unwrap();
        let expected = content(&*volume).await;
        drop(volume);
        close(engine).await;
        for (block, now) in fresh.chunks_mut(16384).zip(expected.chunks(16384)) {
            if *block == *now {
                block.fill(0);
            } else {
                block.copy_from_slice(now);
            }
        }
        let (block, at) = sector_on(&world.media[0], &fresh);
        let right = world.media[0].snapshot(at..at + 4096);
        let disks = pullable(&world);
        let refuse = Effect::Error(std::io::ErrorKind::Other);
        disks[0].inject(Fault::new(On::Read, at..at + 4096, refuse));
        let engine = open_caching(&disks, 0).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let read = timeout(MINUTE, volume.read(block * 16384, 16384)).await.expect("it does not hang");
        assert!(read.is_err(), "{layout}: who has it does not give it");
        assert!(over(&engine).await.errors > 0, "{layout}");
        engine.sync().await.unwrap();
        assert!(world.media[0].snapshot(at..at + 4096) == right, "{layout}: it is written over");
        disks[0].heal();
        let read = joined(volume.read(block * 16384, 16384).await.unwrap());
        assert!(read == expected[block as usize * 16384..][..16384], "{layout}");
        drop(volume);
        // It gets it later, and is not trusted with it before.
        settled(&engine).await;
        close(engine).await;
        world.verify(layout).await;
        holds_without(&world, &[0], &expected).await;
    }
}

/// Puts an empty disk in the place of leaf `old`.
async fn replace(world: &mut World, engine: &Engine, old: u64) {
    let path = format!("/disks/d{}", world.media.len());
    let media = Arc::new(MemDisk::new(128 << 20).named(path.clone()));
    world.media.push(Arc::clone(&media));
    let new = engine::devices::NewLeaf { path, disk: media, is_file: true, ashift: None };
    engine.replace(old, new).await.unwrap();
}

/// Whether it has left within a day.
async fn leaves(engine: &Engine, guid: u64) -> bool {
    leaves_within(engine, guid, 24 * 60).await
}

async fn leaves_within(engine: &Engine, guid: u64, minutes: u32) -> bool {
    for _ in 0..minutes {
        if engine::devices::find(&engine.view(), &guid.to_string()).is_err() {
            return true;
        }
        tokio::time::sleep(MINUTE).await;
    }
    false
}

/// The only right copy of a block left the pool with a drive that had been pulled and replaced: what had come in its place was
/// called whole without it. And when the drive was back, what had come in its place was not given that block before the pause
/// was over that it had got to, up to a day.
#[tokio::test(start_paused = true)]
async fn a_replacement_sends_nobody_away_who_alone_has_something_right() {
    let (mut world, expected, _) = rotten("mirror d0 d1").await;
    let disks = pullable(&world);
    let engine = open_caching(&disks, 0).await;
    let old = engine.view().tree().leaves()[1].guid;
    disks[1].vanish();
    tokio::time::sleep(MINUTE).await;
    replace(&mut world, &engine, old).await;
    assert_eq!(over(&engine).await.errors, 1);
    assert!(!leaves(&engine, old).await, "it has what nobody else has");
    nothing_is_lost(&engine, "until it is back").await;
    disks[1].come_back();
    assert!(leaves_within(&engine, old, 10).await, "nothing is left to wait for");
    settled(&engine).await;
    assert!(content(&*engine.volume(&format!("{POOL}/v")).await.unwrap()).await == expected);
    nothing_is_lost(&engine, "when it was back").await;
    close(engine).await;
    world.media.remove(1);
    world.verify("replaced").await;
    holds_without(&world, &[0], &expected).await;
}

/// Only who left in this import counted as one who may have what others have wrongly: after a restart the only right copy of a
/// block was wiped with a drive that was faulted, or still away, and had been replaced.
#[tokio::test(start_paused = true)]
async fn a_restart_takes_nothing_from_what_a_replacement_waits_for() {
    for is_here in [true, false] {
        let (mut world, expected, _) = rotten("mirror d0 d1").await;
        let disks = pullable(&world);
        let engine = open_caching(&disks, 0).await;
        let old = engine.view().tree().leaves()[1].guid;
        match is_here {
            true => engine.fault(old).await.unwrap(),
            false => disks[1].vanish(),
        }
        tokio::time::sleep(MINUTE).await;
        engine.sync().await.unwrap();
        close(engine).await;
        let engine = open_caching(&disks, 0).await;
        assert!(!engine.view().tree().leaves()[1].is_readable());
        replace(&mut world, &engine, old).await;
        assert_eq!(over(&engine).await.errors, 1, "is here: {is_here}");
        assert!(!leaves(&engine, old).await, "it has what nobody else has; is here: {is_here}");
        match is_here {
            true => {
                nothing_is_lost(&engine, "as long as it is here").await;
                engine.clear(Some(old)).await.unwrap();
            }
            false => disks[1].come_back(),
        }
        assert!(leaves_within(&engine, old, 10).await, "is here: {is_here}");
        settled(&engine).await;
        assert!(content(&*engine.volume(&format!("{POOL}/v")).await.unwrap()).await == expected);
        close(engine).await;
        world.media.remove(1);
        world.verify("replaced").await;
        holds_without(&world, &[0], &expected).await;
    }
}

/// One block that could not be read while the replaced drive was away, and the new one was written from end to end again and
/// again, for ever, and counted as empty all the time.
#[tokio::test(start_paused = true)]
async fn one_lost_block_does_not_have_all_of_a_replacement_copied_again() {
    for is_wrong in [true, false] {
        let what = if is_wrong { "wrong" } else { "refused" };
        let (mut world, running) = World::create("mirror d0 d1", 12, 128 << 20, 5).await;
        let volume = running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, plain()).await;
        for number in 0..64 {
            let blocks = data(noise(number, 128 << 10));
            volume.write(number * (128 << 10), blocks, Durability::Cached).await.unwrap();
            running.engine.sync().await.unwrap();
        }
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        let (_, at) = sector_on(&world.media[0], &expected);
        let disks = pullable(&world);
        match is_wrong {
            true => world.media[0].write(at, vec![0xee; 4096].into()).await.unwrap(),
            false => {
                let refuse = Effect::Error(std::io::ErrorKind::Other);
                disks[0].inject(Fault::new(On::Read, at..at + 4096, refuse));
            }
        }
        let engine = open_caching(&disks, 0).await;
        let old = engine.view().tree().leaves()[1].guid;
        disks[1].vanish();
        tokio::time::sleep(MINUTE).await;
        replace(&mut world, &engine, old).await;
        let first = over(&engine).await;
        assert!(first.errors > 0 && first.processed > 7 * MIB, "{what}: {first:?}");
        let lacking = engine::devices::lacking(&engine.view().tree());
        let ranges = lacking.iter().flat_map(|(_, missed)| missed.ranges());
        let groups: u64 = ranges.map(|(start, end)| end - start).sum();
        assert!(lacking.len() == 1 && (1..4).contains(&groups), "{what}: {lacking:?}");
        tokio::time::sleep(10 * MINUTE).await;
        let again = over(&engine).await;
        assert!(again.errors > 0 && again.processed < MIB, "{what}: {again:?}");
        assert!(engine::devices::find(&engine.view(), &old.to_string()).is_ok(), "{what}: it may come back");
        // What it alone may have is given up.
        engine.detach(old).await.unwrap();
        settled(&engine).await;
        close(engine).await;
    }
}

/// One block without a checksum that could not be read kept leaves that never had anything to do with it from being whole.
#[tokio::test(start_paused = true)]
async fn what_has_no_checksum_and_cannot_be_read_concerns_only_who_should_have_it() {
    let (mut world, running) = World::create("mirror d0 d1 mirror d2 d3", 12, 128 << 20, 5).await;
    let mut unverified = plain();
    unverified.insert("checksum".to_owned(), Stored::Number(2));
    let volume = running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified).await;
    scribble(&volume, 1, 600, 16384).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    let (_, at) = sector_on(&world.media[0], &expected);
    let disks = pullable(&world);
    for disk in &disks[..2] {
        disk.inject(Fault::new(On::Read, at..at + 4096, Effect::Error(std::io::ErrorKind::Other)));
    }
    let engine = open_caching(&disks, 0).await;
    let old = [1, 3].map(|number| engine.view().tree().leaves()[number].guid);
    for old in old {
        replace(&mut world, &engine, old).await;
    }
    assert!(leaves(&engine, old[1]).await, "all that it has is on the new one");
    assert!(!leaves(&engine, old[0]).await, "of this one something is not");
    close(engine).await;
}

/// One block that could be read only from a drive that was away kept a replacement in another mirror from ever being over.
#[tokio::test(start_paused = true)]
async fn what_only_one_that_is_away_may_have_concerns_only_who_should_have_it() {
    let (mut world, running, volume) = filled("mirror d0 d1 mirror d2 d3", 8 * MIB).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    let (_, at) = sector_on(&world.media[0], &expected);
    let disks = pullable(&world);
    disks[0].inject(Fault::new(On::Read, at..at + 4096, Effect::Error(std::io::ErrorKind::Other)));
    let engine = open_caching(&disks, 0).await;
    let old = [1, 3].map(|number| engine.view().tree().leaves()[number].guid);
    disks[1].vanish();
    tokio::time::sleep(MINUTE).await;
    for old in old {
        replace(&mut world, &engine, old).await;
    }
    assert!(leaves(&engine, old[1]).await, "all that it has is on the new one");
    assert!(!leaves(&engine, old[0]).await, "of this one something is not");
    close(engine).await;
}

/// A leaf was called whole without blocks that only one that is away has, as what leads to them was rewritten since, cannot be
/// read, and is younger than all that the leaf lacks.
#[tokio::test(start_paused = true)]
async fn what_a_younger_block_leads_to_is_lacked_still_if_that_cannot_be_read() {
    let (world, running) = World::create("mirror d0 d1", 12, 128 << 20, 5).await;
    let mut unverified = plain();
    unverified.insert("checksum".to_owned(), Stored::Number(2));
    drop(running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified).await);
    running.export().await;
    let write = async |engine: &Arc<Engine>, block: u64| {
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        volume.write(block * 16384, data(noise(block, 16384)), Durability::Cached).await.unwrap();
        engine.sync().await.unwrap();
    };
    let engine = open_without(&world, &[1], quiet()).await;
    write(&engine, 1).await;
    close(engine).await;
    let refuse = Effect::Error(std::io::ErrorKind::Other);
    // All else is given to the one that was away; and then a neighbour is written.
    let (_, at) = sector_on(&world.media[0], &noise(1, 16384));
    let disks = pullable(&world);
    disks[0].inject(Fault::new(On::Read, at..at + 4096, refuse.clone()));
    let engine = open_caching(&disks, 0).await;
    assert!(over(&engine).await.errors > 0);
    engine.sync().await.unwrap();
    assert_eq!(engine::devices::lacking(&engine.view().tree()).len(), 1);
    write(&engine, 100).await;
    close(engine).await;
    // Only that one is here, and does not give what leads to both.
    let disks = pullable(&world);
    let view = world.look().await.unwrap();
    let volume = view.open_volume(&format!("{POOL}/v")).await.unwrap();
    let mut runs = volume.data().runs(1, 0..8 * MIB / 16384);
    while let Some(run) = runs.next().await.unwrap() {
        let Run::Block { pointer, .. } = run else { continue };
        for dva in pointer.dvas() {
            let start = DATA_OFFSET + dva.offset;
            disks[1].inject(Fault::new(On::Read, start..start + dva.asize, refuse.clone()));
        }
    }
    let one = vec![Arc::clone(&disks[1]) as Arc<dyn Disk>];
    let engine = support::start_caching(one, 1, quiet(), 0).await.unwrap();
    engine.sync().await.unwrap();
    assert!(over(&engine).await.errors > 0);
    engine.sync().await.unwrap();
    assert_eq!(engine::devices::lacking(&engine.view().tree()).len(), 1, "nobody knows what is behind it");
    close(engine).await;
}

/// Found by reading: what was known to be lost on both sides was forgotten by the next scrub while one of them was offline, which
/// may have it, and nobody was told that any data is lost.
#[tokio::test(start_paused = true)]
async fn a_scrub_without_one_side_forgets_nothing_that_the_other_has_wrongly() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    let (_, at) = sector_on(&world.media[0], &expected);
    for media in &world.media {
        media.write(at, vec![0xee; 4096].into()).await.unwrap();
    }
    let engine = world.open().await.engine;
    let logged = async || {
        engine.sync().await.unwrap();
        pool::status::error_log(&engine.view()).await.unwrap().len()
    };
    assert_eq!(scrub(&engine).await.errors, 1);
    assert_eq!(logged().await, 1);
    let side = engine.view().tree().leaves()[1].guid;
    engine.offline(side, false).await.unwrap();
    for _ in 0..2 {
        assert_eq!(scrub(&engine).await.errors, 1);
        assert_eq!(logged().await, 1, "it was not found to be whole");
    }
    engine.online(side, None, false).await.unwrap();
    settled(&engine).await;
    assert_eq!(scrub(&engine).await.errors, 1);
    assert_eq!(logged().await, 1);
    close(engine).await;
}

/// The syncing task's flush failed, and what the resilver had written since its own last one went with it. The resilver's
/// next one worked, so the leaf was called whole, and in a replacement the old device would have been let go.
#[tokio::test(start_paused = true)]
async fn what_a_failed_flush_of_somebody_else_cost_the_target_of_a_resilver_is_given_again() {
    let (mut world, mut expected) = half(48 * MIB).await;
    let target = Arc::new(Forgetful::new(&world.media[1]));
    let inner: [Arc<dyn Disk>; 2] = [Arc::clone(&world.media[0]) as _, Arc::clone(&target) as _];
    let profile = Profile::hdd_7200().stretched(4);
    let slow = |(disk, seed)| Arc::new(ModelDisk::new(disk, profile, seed)) as Arc<dyn Disk>;
    let engine = support::start_on(inner.into_iter().zip(1..).map(slow).collect(), 1, quiet()).await.unwrap();
    let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
    until(&engine, 0.5).await;
    volume.write(0, data(noise(5, 16384)), Durability::Cached).await.unwrap();
    expected[..16384].copy_from_slice(&noise(5, 16384));
    target.refuses_next.store(true, Relaxed);
    engine.sync().await.unwrap();
    assert!(!target.refuses_next.load(Relaxed), "it was flushed");
    assert_eq!(engine.scan_progress().unwrap().ended, None, "while the resilver went on");
    settled(&engine).await;
    engine.sync().await.unwrap();
    drop(volume);
    close(engine).await;
    world.media[1] = target.now();
    world.verify("with both").await;
    holds_without(&world, &[0], &expected).await;
}

/// A disk does not give the block of dnodes with a volume's dataset in it, and with others that nobody touches any more.
async fn refuse_dataset(world: &World, volume: &str, disk: &FaultDisk) {
    let view = world.look().await.unwrap();
    let object = view.dsl().await.unwrap().lookup(&format!("{POOL}/{volume}")).await.unwrap().object();
    let mut runs = view.mos().meta().runs(0, object / 32..object / 32 + 1);
    let Some(Run::Block { pointer, .. }) = runs.next().await.unwrap() else { panic!("no block") };
    for dva in pointer.dvas() {
        let start = DATA_OFFSET + dva.offset;
        let refuse = Effect::Error(std::io::ErrorKind::Other);
        disk.inject(Fault::new(On::Read, start..start + dva.asize, refuse));
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
