//! Spares and replacements beside drives that fail: which of them steps in, when it goes back, and what is known of those at
//! rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use engine::create::{self, DeviceFacts, Plan, VdevSpec};
use pool::vdev::Aux;

use super::*;

/// Bays that count how often they are opened.
#[derive(Debug)]
struct Counting {
    bays: Bays,
    opened: AtomicU64,
}

impl Opener for Counting {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        self.opened.fetch_add(1, Relaxed);
        self.bays.open(device)
    }
    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        self.bays.replacement(device)
    }
}

/// What is known of a block device with sectors of so many bytes.
fn block_device(logical_sector: u32) -> DeviceFacts {
    DeviceFacts { bytes: DISK, block_device: true, logical_sector, physical_sector: 4096 }
}

/// What `zpool add` does.
async fn add(engine: &Engine, words: &[&str], facts: &[DeviceFacts], disks: Vec<Arc<dyn Disk>>) {
    let plan = Plan::new(&VdevSpec::parse(words).unwrap(), facts, Some(12), true).unwrap();
    let added = engine.run(move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }));
    added.await.unwrap();
}

/// `autoreplace` did nothing where a spare had stepped in, which takes seconds, nor for a drive that was faulted before it was
/// pulled: its disk stayed open, so that nobody saw it go.
#[tokio::test(start_paused = true)]
async fn a_new_drive_in_the_place_of_a_lost_one_is_taken_whatever_became_of_that() {
    for is_spared in [true, false] {
        let layout = if is_spared { "raidz d0 d1 d2 spare d3" } else { "raidz d0 d1 d2" };
        let mut case = Case::new(layout, 15, false).await;
        let refilled = Refilled::of(&case.running);
        case.engine().watch(Arc::clone(&refilled) as Arc<dyn Opener>);
        let autoreplace = Properties::from([("autoreplace".to_owned(), Stored::Number(1))]);
        let set = case.engine().run(move |cx| Box::pin(async move { dsl::set_pool(cx, &autoreplace).await }));
        set.await.unwrap();
        let old = case.leaf(0, |vdev| vdev.guid);
        if !is_spared {
            case.engine().fault(old).await.unwrap();
        }
        case.running.disks[0].vanish();
        case.write(10, false).await;
        tokio::time::sleep(MINUTE).await;
        assert_eq!(case.is_in_use(3), is_spared, "{}", case.what);
        let media = Arc::new(MemDisk::new(DISK).named("d0"));
        let disk = Arc::clone(&media) as Arc<dyn Disk>;
        let new = NewLeaf { path: "d0".to_owned(), disk, is_file: true, ashift: None };
        *refilled.new.lock().unwrap() = Some(new);
        case.world.media[0] = media;
        tokio::time::sleep(5 * MINUTE).await;
        assert_ne!(case.leaf(0, |vdev| vdev.guid), old, "{}", case.what);
        assert_eq!(case.state(0), State::Healthy, "{}", case.what);
        assert!(!case.lacks_anything(0) && !case.is_in_use(3), "{}", case.what);
        case.write(10, false).await;
        case.check().await;
        case.end().await;
    }
}

/// Another spare lay at rest beside one that had failed while it stood in, or beside a successor that had.
#[tokio::test(start_paused = true)]
async fn what_stands_in_for_another_and_fails_is_stood_in_for_itself() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3 d4", 16, true).await;
    case.running.disks[0].vanish();
    tokio::time::sleep(MINUTE).await;
    let (one, other) = if case.is_in_use(3) { (3, 4) } else { (4, 3) };
    assert!(case.is_in_use(one) && !case.is_in_use(other), "{}", case.what);
    case.write(10, false).await;
    case.running.disks[one].vanish();
    tokio::time::sleep(5 * MINUTE).await;
    assert!(case.is_in_use(other) && !case.lacks_anything(other), "{}", case.what);
    case.write(10, false).await;
    case.check().await;
    case.end().await;

    let mut case = Case::new("raidz d0 d1 d2 spare d3", 17, true).await;
    let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(DISK).named("/disks/d9")), 1));
    // It is not filled before it fails.
    let slow = Duration::from_millis(20);
    disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
    let as_disk = Arc::clone(&disk) as Arc<dyn Disk>;
    let new = NewLeaf { path: "/disks/d9".to_owned(), disk: as_disk, is_file: true, ashift: None };
    let old = case.leaf(0, |vdev| vdev.guid);
    case.engine().replace(old, new).await.unwrap();
    disk.vanish();
    case.running.disks[0].vanish();
    tokio::time::sleep(5 * MINUTE).await;
    assert!(case.is_in_use(3) && !case.lacks_anything(3), "{}", case.what);
    case.write(10, false).await;
    case.check().await;
    case.end().await;
}

/// A drive that gave wrong bytes was DEGRADED for ever, and its spare at rest.
#[tokio::test(start_paused = true)]
async fn a_spare_stands_in_for_a_drive_that_gives_wrong_bytes_until_that_is_cleared() {
    let mut case = Case::new("mirror d0 d1 spare d2", 18, true).await;
    case.write(200, false).await;
    case.sync().await;
    crate::scans::corrupt(&case.world.media[1], 2, 18).await;
    crate::scans::scrub(case.engine()).await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(case.state(1), State::Degraded);
    assert!(case.is_in_use(2) && !case.lacks_anything(2), "{}", case.what);
    // The resilver of the spare may have come before the end of the scrub.
    crate::scans::scrub(case.engine()).await;
    tokio::time::sleep(MINUTE).await;
    assert!(case.is_in_use(2), "as long as nobody says that it is well");
    let guid = case.leaf(1, |vdev| vdev.guid);
    case.engine().clear(Some(guid)).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(1), State::Healthy);
    assert!(!case.is_in_use(2), "it lacks nothing, so no resilver ends that would send the spare back");
    case.check().await;
    case.end().await;
}

/// Found by reading: the smallest spare was tried again and again, whatever lay beside it, and one that swallowed its labels
/// held up the transaction group for a minute each time.
#[tokio::test(start_paused = true)]
async fn a_spare_that_takes_no_writes_keeps_no_other_from_standing_in() {
    let hour = 60 * MINUTE;
    for effect in [Effect::Error(io::ErrorKind::Other), Effect::Delay(hour..=hour)] {
        let mut case = Case::new("raidz d0 d1 d2 spare d3 d4", 22, true).await;
        let view = case.engine().view();
        let first = view.spares().iter().min_by_key(|spare| spare.guid).unwrap();
        let (bad, good) = if first.path.as_ref().unwrap().ends_with("d3") { (3, 4) } else { (4, 3) };
        drop(view);
        case.running.disks[bad].inject(Fault::anywhere(On::Write, effect));
        case.running.disks[0].vanish();
        case.write(10, false).await;
        for _ in 0..12 {
            let synced = timeout(MINUTE / 4, case.engine().sync()).await;
            synced.unwrap_or_else(|_| panic!("{}: a sync waits for a spare", case.what)).unwrap();
            tokio::time::sleep(MINUTE / 4).await;
        }
        assert!(case.is_in_use(good) && !case.is_in_use(bad), "{}", case.what);
        assert!(!case.lacks_anything(good), "{}", case.what);
        case.check().await;
        case.end().await;
    }
}

/// Found by reading: nobody looked at spares, so that one was AVAIL until it was needed, whatever had become of it; and one that
/// was gone for a while could not be used before the next import.
#[tokio::test(start_paused = true)]
async fn a_spare_at_rest_is_missed_when_it_is_gone_and_stands_in_when_it_is_back() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 23, true).await;
    let state = |case: &Case| case.engine().view().spares()[0].state().0;
    case.running.disks[3].vanish();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(state(&case), State::Removed);
    case.running.disks[3].come_back();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(state(&case), State::Healthy);
    case.running.disks[0].vanish();
    case.write(10, false).await;
    tokio::time::sleep(MINUTE).await;
    assert!(case.is_in_use(3) && !case.lacks_anything(3), "{}", case.what);
    // It goes back to rest while it is away, and nothing can be written to it.
    case.running.disks[3].vanish();
    case.write(10, false).await;
    tokio::time::sleep(MINUTE).await;
    let spare = case.leaf(3, |vdev| vdev.guid);
    case.engine().detach(spare).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert!(!case.is_in_use(3) && !state(&case).is_readable(), "{:?}", state(&case));
    case.running.disks[3].come_back();
    tokio::time::sleep(2 * MINUTE).await;
    assert!(case.is_in_use(3) && !case.lacks_anything(3), "{}", case.what);
    case.check().await;
    case.end().await;
}

/// Found by reading: what told the pool of a spare that was added kept its disk, and with that the lock on it, until the spare
/// was removed. Once let go it could not be opened again, and was UNAVAIL for good.
#[tokio::test(start_paused = true)]
async fn a_spare_that_was_added_is_held_by_nobody_once_it_is_let_go() {
    let (_world, running) = World::create("mirror d0 d1", 12, DISK, 24).await;
    let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(DISK).named("/disks/d2")), 24));
    let held = Arc::downgrade(&disk);
    let disks = vec![Arc::clone(&disk) as Arc<dyn Disk>];
    add(&running.engine, &["spare", "/disks/d2"], &[block_device(512)], disks).await;
    running.engine.watch(Arc::new(Bays(running.disks.clone())));
    running.engine.look().await;
    assert_eq!(running.engine.view().spares()[0].state(), (State::Healthy, Aux::None));
    disk.inject(Fault::anywhere(On::Read, Effect::Error(io::ErrorKind::Other)));
    drop(disk);
    assert!(held.strong_count() > 0, "the pool has it");
    for _ in 0..3 {
        running.engine.look().await;
    }
    assert_eq!(running.engine.view().spares()[0].state(), (State::CantOpen, Aux::OpenFailed));
    assert_eq!(held.strong_count(), 0, "who opens it again has to lock it");
    running.export().await;
}

/// Found by reading: after a restart nobody knew that the spare had ever been given anything, so that it was refused as one with
/// a newer state. One that has a newer state was opened for writing at every look.
#[tokio::test(start_paused = true)]
async fn a_spare_that_went_back_to_rest_while_it_was_away_is_known_after_a_restart() {
    for is_ahead in [false, true] {
        let case = Case::new("mirror d0 d1 spare d2", 25, false).await;
        let (original, spare) = (case.leaf(1, |vdev| vdev.guid), case.engine().view().spares()[0].guid);
        case.engine().activate_spare(original, spare, None).await.unwrap();
        tokio::time::sleep(MINUTE).await;
        assert!(case.is_in_use(2), "{}", case.what);
        let Case { world, running, volume, .. } = case;
        drop(volume);
        running.export().await;
        let ahead = world.fork();
        if is_ahead {
            let elsewhere = ahead.open().await;
            for _ in 0..100 {
                elsewhere.engine.sync().await.unwrap();
            }
            elsewhere.export().await;
        }
        let without = World::on(world.media[..2].to_vec());
        let running = without.open().await;
        running.engine.detach(spare).await.unwrap();
        running.export().await;
        let running = without.open().await;
        let mut disks = running.disks.clone();
        disks.push(Arc::new(FaultDisk::new(Arc::clone(&ahead.media[2]) as Arc<dyn Disk>, 25)));
        let opener = Arc::new(Counting { bays: Bays(disks), opened: AtomicU64::new(0) });
        running.engine.watch(Arc::clone(&opener) as Arc<dyn Opener>);
        tokio::time::sleep(5 * MINUTE).await;
        let state = running.engine.view().spares()[0].state();
        let expected = match is_ahead {
            true => (State::CantOpen, Aux::NewerState),
            false => (State::Healthy, Aux::None),
        };
        assert_eq!((state, opener.opened.load(Relaxed)), (expected, 1), "ahead: {is_ahead}");
        running.export().await;
    }
}

/// Found by reading: a spare that the first of two failed drives could not have was not tried for the other either.
#[tokio::test(start_paused = true)]
async fn a_spare_that_fits_one_of_two_failed_drives_stands_in_for_that() {
    let (_world, running) = World::create("mirror d0 d1", 9, DISK, 26).await;
    let disk = |name: &str| Arc::new(FaultDisk::new(Arc::new(MemDisk::new(DISK).named(name)), 26));
    let second = disk("/disks/d2");
    let native = MemDisk::new(DISK).named("/disks/d4").with_sectors(4096);
    let disks: Vec<Arc<dyn Disk>> =
        vec![Arc::clone(&second) as Arc<dyn Disk>, disk("/disks/d3"), Arc::new(native)];
    let words = ["mirror", "/disks/d2", "/disks/d3", "spare", "/disks/d4"];
    add(&running.engine, &words, &[block_device(512), block_device(512), block_device(4096)], disks).await;
    let spare = running.engine.view().spares()[0].guid;
    running.engine.watch(Arc::new(Bays(running.disks.clone())));
    running.disks[0].vanish();
    second.vanish();
    tokio::time::sleep(5 * MINUTE).await;
    let tree = running.engine.view().tree();
    let stands_in = |top: usize| tree.tops[top].leaves().iter().any(|leaf| leaf.guid == spare);
    assert_eq!([stands_in(0), stands_in(1)], [false, true]);
    running.export().await;
}

/// Found by reading: it was let go for what a probe said, and taken back for its labels, which could be read: with two events
/// and an alert three times a minute.
#[tokio::test(start_paused = true)]
async fn a_spare_whose_first_sector_cannot_be_read_is_told_of_once() {
    let case = Case::new("mirror d0 d1 spare d2", 27, true).await;
    let guid = case.engine().view().spares()[0].guid;
    let state = |case: &Case| case.engine().view().spares()[0].state().0;
    let told = |case: &Case| {
        case.count(|event| matches!(event, Event::DeviceState { device, .. } if device.guid == guid))
    };
    case.running.disks[2].inject(Fault::new(On::Read, 0..512, Effect::Error(io::ErrorKind::Other)));
    for _ in 0..8 {
        case.engine().look().await;
    }
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!((state(&case), told(&case)), (State::CantOpen, 1), "{}", case.what);
    case.running.disks[2].heal();
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!((state(&case), told(&case)), (State::Healthy, 2), "{}", case.what);
    case.end().await;
}

/// Found by reading: a read every few seconds kept all spares from spinning down.
#[tokio::test(start_paused = true)]
async fn a_spare_at_rest_is_read_from_once_an_hour_unless_somebody_asks() {
    let case = Case::new("mirror d0 d1 spare d2", 28, true).await;
    let state = |case: &Case| case.engine().view().spares()[0].state().0;
    // Whoever reads from it finds that it fails.
    let spare = Arc::clone(&case.running.disks[2]);
    let fail = || spare.inject(Fault::anywhere(On::Read, Effect::Error(io::ErrorKind::Other)));
    tokio::time::sleep(MINUTE).await;
    fail();
    tokio::time::sleep(30 * MINUTE).await;
    assert_eq!(state(&case), State::Healthy, "nobody woke it");
    tokio::time::sleep(35 * MINUTE).await;
    assert_eq!(state(&case), State::CantOpen);
    spare.heal();
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(state(&case), State::Healthy);
    fail();
    for _ in 0..3 {
        case.engine().look().await;
    }
    assert_eq!(state(&case), State::CantOpen);
    spare.heal();
    case.engine().clear(None).await.unwrap();
    assert_eq!(state(&case), State::Healthy);
    case.end().await;
}
