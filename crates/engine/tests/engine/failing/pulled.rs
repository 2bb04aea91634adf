//! Drives that are pulled, with a watch and without, once and again and again: it is noticed, what they miss is known, and they
//! are used again when they are back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;

const LAYOUTS: [(&str, usize); 4] =
    [("mirror d0 d1", 1), ("raidz d0 d1 d2 d3", 1), ("raidz2 d0 d1 d2 d3 d4", 2), ("mirror d0 d1 d2", 2)];

#[tokio::test(start_paused = true)]
async fn pulled_drives_are_noticed_and_return_by_themselves() {
    for (layout, most) in LAYOUTS {
        let mut case = Case::new(layout, 3, true).await;
        for round in 0..3 {
            for pulled in 0..most {
                case.running.disks[pulled].vanish();
                case.write(20, round == 1).await;
            }
            case.sync().await;
            case.check().await;
            tokio::time::sleep(MINUTE).await;
            assert!((0..most).all(|disk| case.state(disk) == State::Removed), "{}", case.what);
            assert!((0..most).all(|disk| case.lacks_anything(disk)), "{}", case.what);
            assert_eq!(case.engine().view().tree().state().0, State::Degraded);
            for pulled in 0..most {
                case.running.disks[pulled].come_back();
                case.write(10, false).await;
            }
            tokio::time::sleep(MINUTE).await;
            case.sync().await;
            assert!((0..most).all(|disk| case.state(disk) == State::Healthy), "{}", case.what);
            case.check().await;
            // Without a resilver another round would go beyond redundancy.
            if round == 0 && (0..most).any(|disk| case.lacks_anything(disk)) {
                break;
            }
        }
        let removed = case.count(|event| matches!(event, Event::DeviceState { to: State::Removed, .. }));
        let back = case.count(|event| matches!(event, Event::DeviceState { to: State::Healthy, .. }));
        assert!(removed >= most && back >= most, "{}: {removed} {back}", case.what);
        case.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_a_pulled_drive_is_noticed_by_its_errors_and_is_back_after_a_clear() {
    for (layout, most) in LAYOUTS {
        let mut case = Case::new(layout, 4, false).await;
        (0..most).for_each(|disk| case.running.disks[disk].vanish());
        case.write(20, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        assert!((0..most).all(|disk| case.state(disk) == State::Removed), "{}", case.what);
        assert!((0..most).all(|disk| case.lacks_anything(disk)), "{}", case.what);
        (0..most).for_each(|disk| case.running.disks[disk].come_back());
        timeout(MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
        assert!((0..most).all(|disk| case.state(disk) == State::Healthy), "{}", case.what);
        case.write(20, true).await;
        case.sync().await;
        case.check().await;
        case.end().await;
    }
}

/// Wherever in a transaction group a drive is pulled and put back: what it lacks is known.
#[tokio::test(start_paused = true)]
async fn a_flapping_drive_never_gives_old_bytes() {
    for seed in 0..6 {
        let mut case = Case::new("raidz d0 d1 d2 d3", 100 + seed, true).await;
        let disk = Arc::clone(&case.running.disks[1]);
        for step in 0..24 {
            match case.random.random_range(0..4) {
                0 => disk.vanish(),
                1 => disk.come_back(),
                2 => tokio::time::sleep(Duration::from_millis(case.random.random_range(1..9000))).await,
                _ => case.sync().await,
            }
            case.write(4, step % 5 == 0).await;
        }
        disk.come_back();
        tokio::time::sleep(MINUTE).await;
        case.sync().await;
        case.check().await;
        assert_eq!(
            case.leaf(1, |vdev| vdev.counters.get().checksum),
            0,
            "{}: old bytes were read",
            case.what
        );
        case.end().await;
    }
}

/// Bays in which nothing answers any more that was pulled.
#[derive(Debug, Default)]
struct Hanging(AtomicU64);

impl Opener for Hanging {
    fn open<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        self.0.fetch_add(1, Relaxed);
        Box::pin(std::future::pending())
    }
    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

/// Found by reading: places that did not answer were looked into one after the other, for ten seconds each, and as long nobody
/// watched the devices that were left.
#[tokio::test(start_paused = true)]
async fn places_that_do_not_answer_keep_nobody_from_watching_the_others() {
    let mut case = Case::new("mirror d0 d1 d2 d3 d4", 21, false).await;
    let bays = Arc::new(Hanging::default());
    case.engine().watch(Arc::clone(&bays) as Arc<dyn Opener>);
    case.running.disks[1..4].iter().for_each(|disk| disk.vanish());
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((1..4).all(|number| !case.state(number).is_readable()));
    // As soon as the next look into them begins.
    let before = bays.0.load(Relaxed);
    while bays.0.load(Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let looked = bays.0.load(Relaxed) - before;
    assert_eq!(looked, 3, "into all of them together");
    case.running.disks[4].vanish();
    case.write(4, false).await;
    case.sync().await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(!case.state(4).is_readable(), "it was seen to be gone");
    case.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_device_that_failed_is_used_again_when_it_is_back() {
    let mut case = Case::new("mirror d0 d1 log d2", 7, true).await;
    for _ in 0..3 {
        case.write(3, true).await;
        case.sync().await;
    }
    case.running.disks[2].vanish();
    case.write(10, true).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(2), State::Removed);
    assert_eq!(case.count(|event| matches!(event, Event::LogDeviceFailed { .. })), 1);
    case.running.disks[2].come_back();
    tokio::time::sleep(MINUTE).await;
    for _ in 0..4 {
        case.write(3, true).await;
        case.sync().await;
    }
    let before = case.running.disks[2].counts().writes;
    case.write(10, true).await;
    assert!(case.running.disks[2].counts().writes >= before + 10, "{}", case.what);
    case.check().await;
    case.end().await;
}
