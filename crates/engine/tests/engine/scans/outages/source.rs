//! A leaf that is still to get what only another has, its source: while that is away a pool waits or fails as it was told, nobody
//! is called whole, nothing is lost, and a start knows whom it has to wait for.

use block::VolumeError;

use super::*;

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

async fn fail_what_cannot_be_done(engine: &Engine) {
    let failmode = Properties::from([("failmode".to_owned(), Stored::Number(1))]);
    let set = engine.run(move |cx| Box::pin(async move { engine::dsl::set_pool(cx, &failmode).await }));
    set.await.unwrap();
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
            false => assert!(block::flatten(&read.unwrap()) == expected[at as usize..][..16384], "{what}"),
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
