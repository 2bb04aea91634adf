//! One side has something wrongly, refuses it, or lost it with a flush, while another is away that may have it right: that is not
//! lost, nor taken from who missed it, nor forgotten.

use super::*;
use crate::support::forgetful::Forgetful;

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
        refuse(&disks[0], at, 4096);
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
        let read = block::flatten(&volume.read(block * 16384, 16384).await.unwrap());
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
        let volume = running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified()).await;
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
        refuse(&disks[0], at, 4096);
        let engine = open_caching(&disks, 0).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let read = timeout(MINUTE, volume.read(block * 16384, 16384)).await.expect("it does not hang");
        assert!(read.is_err(), "{layout}: who has it does not give it");
        assert!(over(&engine).await.errors > 0, "{layout}");
        engine.sync().await.unwrap();
        assert!(world.media[0].snapshot(at..at + 4096) == right, "{layout}: it is written over");
        disks[0].heal();
        let read = block::flatten(&volume.read(block * 16384, 16384).await.unwrap());
        assert!(read == expected[block as usize * 16384..][..16384], "{layout}");
        drop(volume);
        // It gets it later, and is not trusted with it before.
        settled(&engine).await;
        close(engine).await;
        world.verify(layout).await;
        holds_without(&world, &[0], &expected).await;
    }
}

/// A leaf was called whole without blocks that only one that is away has, as what leads to them was rewritten since, cannot be
/// read, and is younger than all that the leaf lacks.
#[tokio::test(start_paused = true)]
async fn what_a_younger_block_leads_to_is_lacked_still_if_that_cannot_be_read() {
    let (world, running) = World::create("mirror d0 d1", 12, 128 << 20, 5).await;
    drop(running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified()).await);
    running.export().await;
    let write = async |engine: &Arc<Engine>, block: u64| {
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        volume.write(block * 16384, data(noise(block, 16384)), Durability::Cached).await.unwrap();
        engine.sync().await.unwrap();
    };
    let engine = open_without(&world, &[1], quiet()).await;
    write(&engine, 1).await;
    close(engine).await;
    // All else is given to the one that was away; and then a neighbour is written.
    let (_, at) = sector_on(&world.media[0], &noise(1, 16384));
    let disks = pullable(&world);
    refuse(&disks[0], at, 4096);
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
            refuse(&disks[1], start, dva.asize);
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
