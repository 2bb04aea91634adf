//! Drives that are offline or faulted: they are closed, and opened anew, wherever they are by then, when they are to be used
//! again.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use disk::IoBuf;
use engine::devices::Onlined;
use ondisk::label::DATA_OFFSET;

use super::*;

/// Bays whose disks are locked as long as more have them than so many.
#[derive(Debug)]
struct Locks {
    bays: Bays,
    owners: AtomicUsize,
}

impl Opener for Locks {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(async move {
            let disk = self.bays.open(device).await?;
            // One more by what was just got.
            match Arc::strong_count(&disk) > self.owners.load(Relaxed) + 1 {
                true => Err(io::ErrorKind::ResourceBusy.into()),
                false => Ok(disk),
            }
        })
    }
    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        self.bays.replacement(device)
    }
}

fn has_disk(case: &Case, number: usize) -> bool {
    case.leaf(number, |vdev| vdev.leaf.as_ref().unwrap().disk().is_some())
}

/// A drive that is in use again gets what it missed, and what is read is right.
async fn is_whole_again(case: &Case) {
    tokio::time::sleep(MINUTE).await;
    assert!(case.state(1) == State::Healthy && !case.lacks_anything(1), "{}", case.what);
    case.check().await;
}

/// It stayed open and locked: an encrypted or a logical volume below it could not be closed, a file system not be unmounted. And
/// whoever had pulled it, put it back and took it online was told to replace it: what was open was what had gone.
#[tokio::test(start_paused = true)]
async fn an_excluded_drive_is_nobodys_until_it_is_to_be_used_again() {
    for is_offline in [true, false] {
        let mut case = Case::new("mirror d0 d1", 19, true).await;
        let guid = case.leaf(1, |vdev| vdev.guid);
        let owners = |case: &Case| Arc::strong_count(&case.running.disks[1]);
        let before = owners(&case);
        let state = match is_offline {
            true => case.engine().offline(guid, false).await.map(|()| State::Offline),
            false => case.engine().fault(guid).await.map(|()| State::Faulted),
        };
        let state = state.unwrap();
        assert_eq!((case.state(1), has_disk(&case, 1)), (state, false));
        assert!(owners(&case) < before, "{}: {} of {before}", case.what, owners(&case));
        case.running.disks[1].vanish();
        case.engine().look().await;
        case.write(10, false).await;
        case.sync().await;
        case.running.disks[1].come_back();
        tokio::time::sleep(MINUTE).await;
        assert_eq!((case.state(1), has_disk(&case, 1)), (state, false), "an administrator decides");
        assert_eq!(case.engine().online(guid, None, false).await.unwrap(), Onlined::Healthy);
        is_whole_again(&case).await;
        case.end().await;
    }
}

/// A path that stays while the drive is elsewhere by now, as an iSCSI LUN under another name: the flag was cleared, the next I/O
/// failed on what was open, and the drive was never looked for.
#[tokio::test(start_paused = true)]
async fn a_faulted_drive_whose_old_path_is_dead_is_found_where_it_is_now() {
    for is_cleared in [true, false] {
        let mut case = Case::new("mirror d0 d1", 29, false).await;
        let refilled = Refilled::of(&case.running);
        case.engine().watch(Arc::clone(&refilled) as Arc<dyn Opener>);
        let guid = case.leaf(1, |vdev| vdev.guid);
        for on in [On::Read, On::Write] {
            case.running.disks[1].inject(Fault::anywhere(on, Effect::Error(io::ErrorKind::Other)));
        }
        for _ in 0..30 {
            case.write(10, false).await;
            case.sync().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((case.state(1), has_disk(&case, 1)), (State::Faulted, false), "{}", case.what);
        let media = Arc::clone(&case.world.media[1]) as Arc<dyn Disk>;
        refilled.elsewhere.lock().unwrap().push((guid, media));
        match is_cleared {
            true => timeout(MINUTE, case.engine().clear(Some(guid))).await.unwrap().unwrap(),
            false => assert_eq!(case.engine().online(guid, None, false).await.unwrap(), Onlined::Healthy),
        }
        assert_eq!(case.state(1), State::Healthy, "{}", case.what);
        case.write(10, false).await;
        case.sync().await;
        is_whole_again(&case).await;
        let faulted = case.count(|event| matches!(event, Event::DeviceState { to: State::Faulted, .. }));
        assert_eq!(faulted, 1, "{}", case.what);
        case.end().await;
    }
}

/// Found by reading: what was under way on it has its lock until it ends, a minute perhaps, and as long the drive was in use by
/// another process, which was the daemon: it became unavailable when it was cleared, and could not be taken online.
#[tokio::test(start_paused = true)]
async fn a_drive_that_was_closed_while_something_was_under_way_on_it_is_in_use_at_once() {
    for is_offline in [true, false] {
        let mut case = Case::new("mirror d0 d1", 34, false).await;
        let bays = Bays(case.running.disks.clone());
        let locks = Arc::new(Locks { bays, owners: AtomicUsize::new(0) });
        case.engine().watch(Arc::clone(&locks) as Arc<dyn Opener>);
        let guid = case.leaf(1, |vdev| vdev.guid);
        let disk = Arc::clone(&case.running.disks[1]);
        // With nothing under way it is only this test that has it.
        case.engine().offline(guid, false).await.unwrap();
        tokio::time::sleep(MINUTE).await;
        locks.owners.store(Arc::strong_count(&disk), Relaxed);
        assert_eq!(case.engine().online(guid, None, false).await.unwrap(), Onlined::Healthy);
        tokio::time::sleep(MINUTE).await;

        let (slow, before) = (10 * MINUTE, disk.counts().faults);
        // Between labels and blocks, where nobody else reads.
        let (at, len) = (DATA_OFFSET - (1 << 20), 4096);
        disk.inject(Fault::new(On::Read, at..at + len, Effect::Delay(slow..=slow)));
        let own = case.leaf(1, |vdev| vdev.leaf.as_ref().unwrap().disk().unwrap());
        let reading =
            tokio::spawn(async move { own.read(at, IoBuf::with_len(len as usize)).await.map(drop) });
        while disk.counts().faults == before {
            tokio::task::yield_now().await;
        }
        match is_offline {
            true => {
                case.engine().offline(guid, false).await.unwrap();
                assert!(!has_disk(&case, 1));
                assert_eq!(case.engine().online(guid, None, false).await.unwrap(), Onlined::Healthy);
            }
            false => {
                case.engine().fault(guid).await.unwrap();
                assert!(!has_disk(&case, 1));
                timeout(MINUTE, case.engine().clear(Some(guid))).await.unwrap().unwrap();
            }
        }
        assert!(!reading.is_finished());
        assert_eq!(case.state(1), State::Healthy);
        let away = case.count(|event| matches!(event, Event::DeviceState { to: State::CantOpen, .. }));
        assert_eq!(away, 0, "{}", case.what);
        reading.await.unwrap().unwrap();
        case.write(10, false).await;
        case.sync().await;
        is_whole_again(&case).await;
        case.end().await;
    }
}

/// What a drive owes may land at any time, and nobody else is to have it open then.
#[tokio::test(start_paused = true)]
async fn an_excluded_drive_is_not_closed_before_all_that_it_owes_has_ended() {
    let mut case = Case::new("mirror d0 d1", 31, true).await;
    let guid = case.leaf(1, |vdev| vdev.guid);
    let late = 10 * MINUTE;
    case.running.disks[1].inject(Fault::anywhere(On::Write, Effect::Delay(late..=late)).times(1));
    case.write(10, false).await;
    timeout(3 * MINUTE, case.engine().sync()).await.expect("it is not waited for").unwrap();
    case.engine().offline(guid, false).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert_eq!((case.state(1), has_disk(&case, 1)), (State::Offline, true));
    tokio::time::sleep(late).await;
    assert_eq!((case.state(1), has_disk(&case, 1)), (State::Offline, false));
    assert_eq!(case.engine().online(guid, None, false).await.unwrap(), Onlined::Healthy);
    is_whole_again(&case).await;
    case.end().await;
}

/// What detaching a drive promises is made good for one that is closed, too.
#[tokio::test(start_paused = true)]
async fn a_drive_that_is_detached_while_it_is_closed_loses_its_labels() {
    let (world, running) = World::create("mirror d0 d1 d2", 12, DISK, 32).await;
    running.export().await;
    let running = world.open().await;
    running.engine.watch(Arc::new(Bays(running.disks.clone())));
    let guid = running.engine.view().tree().leaves()[2].guid;
    running.engine.offline(guid, false).await.unwrap();
    running.engine.detach(guid).await.unwrap();
    running.engine.look().await;
    let disk = Arc::clone(&running.disks[2]) as Arc<dyn Disk>;
    assert!(pool::import::Device::read(disk).await.unwrap().is_none(), "it is free");
    running.export().await;
}
