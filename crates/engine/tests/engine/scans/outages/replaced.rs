//! Replacements beside blocks that cannot be read: whoever alone may have one stays until it is given up, and nobody else waits
//! for that, nor is anything copied again for it.

use super::*;

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
            false => refuse(&disks[0], at, 4096),
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
    let volume = running.volume(&format!("{POOL}/v"), 8 * MIB, 16384, unverified()).await;
    scribble(&volume, 1, 600, 16384).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    let (_, at) = sector_on(&world.media[0], &expected);
    let disks = pullable(&world);
    for disk in &disks[..2] {
        refuse(disk, at, 4096);
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
    refuse(&disks[0], at, 4096);
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
