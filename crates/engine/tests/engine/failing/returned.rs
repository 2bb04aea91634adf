//! What comes back is not what went: another disk, an older or a newer state, a smaller drive, drives in each other's bays. None
//! is taken for what it is not, and none is overwritten that has more than the pool.

use ondisk::label::LABEL_BYTES;
use pool::vdev::Aux;

use super::*;

#[tokio::test(start_paused = true)]
async fn another_disk_in_the_same_bay_is_not_taken_for_the_leaf() {
    let mut case = Case::new("mirror d0 d1", 6, true).await;
    case.running.disks[1].vanish();
    case.write(20, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    case.running.disks[1].come_back_as(Arc::new(MemDisk::new(DISK).named("/disks/d1")));
    tokio::time::sleep(MINUTE).await;
    assert!(!case.state(1).is_readable(), "{:?}", case.state(1));
    case.running.disks[1].vanish();
    case.running.disks[1].come_back_as(Arc::clone(&case.world.media[1]) as Arc<dyn Disk>);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(1), State::Healthy);
    case.check().await;
    case.end().await;
}

/// Once the pool had got further than the drive that was gone on with alone, it was taken for one that is behind, and what was
/// acknowledged there was overwritten.
#[tokio::test(start_paused = true)]
async fn a_drive_with_a_newer_state_of_the_pool_is_never_overwritten_by_itself() {
    let mut case = Case::new("mirror d0 d1", 15, true).await;
    case.running.disks[1].vanish();
    case.write(20, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    // Another machine has it meanwhile, and gets further.
    let media = Arc::clone(&case.world.media[1]);
    let theirs = World::on(vec![Arc::clone(&media)]);
    let elsewhere = theirs.open().await;
    for _ in 0..20 {
        elsewhere.engine.sync().await.unwrap();
    }
    elsewhere.engine.end(Ending::Close).await.unwrap();
    drop(elsewhere);
    let newest = theirs.look().await.unwrap().uberblock().txg;
    let txg = |case: &Case| case.engine().view().uberblock().txg;
    assert!(newest > txg(&case), "{newest}");
    let before = media.snapshot(0..DISK);
    // Whoever is to decide is told where it is now.
    let media = Arc::new(media.fork().named("/disks/elsewhere"));
    case.running.disks[1].come_back_as(Arc::clone(&media) as Arc<dyn Disk>);
    tokio::time::sleep(MINUTE).await;
    let newer_at = |vdev: &Vdev| VdevStatus::of(vdev, None).newer_at;
    let is_left_alone = |case: &Case| {
        assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::NewerState));
        assert_eq!(case.leaf(1, newer_at).as_deref(), Some("/disks/elsewhere"));
        assert!(media.snapshot(0..DISK) == before, "it was written to");
    };
    is_left_alone(&case);
    while txg(&case) <= newest + 2 {
        case.write(1, false).await;
        case.sync().await;
    }
    tokio::time::sleep(5 * MINUTE).await;
    is_left_alone(&case);
    // Nor by who only says that it is there.
    case.engine().clear(None).await.unwrap();
    is_left_alone(&case);
    case.check().await;
    case.engine().end(Ending::Close).await.unwrap();
}

/// Found by reading: what a drive lacked was reckoned from when it went, also where an image from before that came back. It
/// counted as whole without what was written in between. So did a copy of it that was made meanwhile, front to back, as the
/// labels at its end are as it went.
#[tokio::test(start_paused = true)]
async fn a_drive_that_comes_back_older_than_it_went_gets_all_that_it_lacks() {
    let layouts = ["mirror d0 d1", "raidz d0 d1 d2"];
    for (layout, is_copied) in layouts.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        let mut case = Case::new(layout, 21, true).await;
        case.what = format!("{}, copied: {is_copied}", case.what);
        let image = Arc::new(case.world.media[1].fork());
        for _ in 0..3 {
            case.write(40, false).await;
            case.sync().await;
        }
        if is_copied {
            let end = DISK - 2 * LABEL_BYTES;
            image.restore(end, &case.world.media[1].snapshot(end..DISK));
        }
        case.running.disks[1].vanish();
        case.write(10, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        assert_eq!(case.state(1), State::Removed, "{}", case.what);
        case.running.disks[1].come_back_as(Arc::clone(&image) as Arc<dyn Disk>);
        tokio::time::sleep(MINUTE).await;
        crate::scans::over(case.engine()).await;
        case.sync().await;
        assert!(case.state(1) == State::Healthy && !case.lacks_anything(1), "{}", case.what);
        let Case { mut world, running, volume, twin, what, .. } = case;
        drop(volume);
        running.export().await;
        world.media[1] = image;
        let (pool, disks) = world.look_through().await.unwrap();
        let volume = pool.open_volume(&format!("{POOL}/v")).await.unwrap();
        disks[0].vanish();
        for (at, expected) in twin.chunks(BLOCK as usize).enumerate() {
            let read = volume.read(at as u64 * u64::from(BLOCK), BLOCK as usize).await;
            let segments = read.unwrap_or_else(|error| panic!("{what}: block {at}: {error}"));
            assert!(block::flatten(&segments) == expected, "{what}: block {at}");
        }
    }
}

/// Found with real drives, three of six pulled and put back: the first that came back had an older state of what was read,
/// and so those that had never been away were charged with checksum errors, and the block counted as damaged.
#[tokio::test(start_paused = true)]
async fn what_a_returned_drive_missed_is_not_blamed_on_those_that_stayed() {
    for layout in ["raidz2 d0 d1 d2 d3 d4 d5", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 11, false).await;
        [0, 1].iter().for_each(|&n| case.running.disks[n].vanish());
        case.write(60, false).await;
        case.sync().await;
        let Case { world, running, volume, twin, .. } = case;
        drop(volume);
        running.export().await;
        let (pool, disks) = world.look_through().await.unwrap();
        let volume = pool.open_volume(&format!("{POOL}/v")).await.unwrap();
        disks[2].vanish();
        let mut out_of_reach = 0;
        for (at, expected) in twin.chunks(BLOCK as usize).enumerate() {
            match volume.read(at as u64 * u64::from(BLOCK), BLOCK as usize).await {
                Ok(segments) => assert!(block::flatten(&segments) == expected, "{layout}: block {at}"),
                Err(_) => out_of_reach += 1,
            }
        }
        assert!(out_of_reach > 0, "{layout}");
        let tree = pool.tree();
        for leaf in tree.leaves() {
            assert_eq!(leaf.counters.get().checksum, 0, "{layout}: {leaf}");
        }
        assert_eq!(tree.counters.get().checksum, 0, "{layout}: the pool");
    }
}

/// Found by reading: who watches looked whose it was, and not how large. To take it online was refused, but wrote down what it
/// lacked by then: a transaction group every five seconds for as long as it was too small.
#[tokio::test(start_paused = true)]
async fn a_drive_that_has_shrunk_is_let_alone_until_it_has_its_size_again() {
    let mut case = Case::new("mirror d0 d1", 14, true).await;
    let media = Arc::clone(&case.world.media[1]);
    let tail = media.snapshot(DISK / 2..DISK);
    media.resize(DISK / 2);
    case.write(10, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::TooSmall));
    let newest = |case: &Case| case.engine().view().uberblock().txg;
    let before = newest(&case);
    tokio::time::sleep(5 * MINUTE).await;
    let groups = newest(&case) - before;
    assert!(groups < 5, "{groups} transaction groups of a pool at rest");
    assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::TooSmall));
    media.resize(DISK);
    media.restore(DISK / 2, &tail);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(1), State::Healthy);
    case.check().await;
    case.end().await;
}

/// After a shelf had lost its power and its drives came back in each other's places, each was called what the other was, until
/// the pool was imported again.
#[tokio::test(start_paused = true)]
async fn drives_that_change_places_while_the_pool_is_suspended_are_known_by_their_new_ones() {
    let mut case = Case::new("mirror d0 d1", 20, false).await;
    let refilled = Refilled::of(&case.running);
    case.engine().watch(Arc::clone(&refilled) as Arc<dyn Opener>);
    let guids = [0, 1].map(|number| case.leaf(number, |vdev| vdev.guid));
    case.write(10, false).await;
    case.running.disks.iter().for_each(|disk| disk.vanish());
    let synced = timeout(MINUTE, case.engine().sync()).await.expect("no command hangs");
    assert!(synced.is_err() && case.engine().suspended().is_some(), "{}", case.what);
    tokio::time::sleep(MINUTE).await;
    for (number, guid) in guids.into_iter().enumerate() {
        let media = Arc::new(case.world.media[number].fork().named(format!("/disks/d{}", 1 - number)));
        refilled.elsewhere.lock().unwrap().push((guid, Arc::clone(&media) as Arc<dyn Disk>));
        case.world.media[number] = media;
    }
    tokio::time::sleep(5 * MINUTE).await;
    assert!(case.engine().suspended().is_none(), "{}", case.what);
    case.sync().await;
    assert_eq!([1, 0].map(|number| case.leaf(number, |vdev| vdev.guid)), guids, "{}", case.what);
    case.check().await;
    case.end().await;
}
