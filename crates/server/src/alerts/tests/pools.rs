//! A pool is missing, destroyed, read for the first time: what is not seen is not over.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use engine::events::{Event, ScanKind, ScanStep};
use pool::vdev::State;

use super::*;
use crate::alerts::offline::Offline;

/// Pools that are open, and those that should be.
#[derive(Debug)]
struct Both(Arc<Mutex<Vec<Facts>>>, Arc<Mutex<Vec<Missing>>>);

impl Source for Both {
    fn facts<'a>(&'a self, _fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
        let facts = self.0.lock().clone();
        Box::pin(async move { Some(facts) })
    }

    fn missing(&self) -> Vec<Missing> {
        self.1.lock().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_could_not_be_opened_is_told_until_it_is() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    let why = "cannot open 'lake': none of its devices is there".to_owned();
    let lake = Missing { name: "lake".into(), guid: 9, is_imported: true, why: why.clone() };
    let (open, gone) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(vec![lake])));
    let source = Both(Arc::clone(&open), Arc::clone(&gone));
    alerts.watch(source, Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(30).await;
    let title = format!("pool 'lake' could not be opened: {why}");
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, &title)]]);
    gone.lock().clear();
    *open.lock() = vec![Facts { name: "lake".into(), guid: 9, ..facts(vec![leaf("sdb", 2)]) }];
    seconds(90).await;
    assert_eq!(lab.got("mail")[1], [told(Occasion::Resolved, &title)]);
    alerts.stop().await;
}

/// The daemon starts again with a broken disk in a pool that does not open any more: then it was told that the disk is well.
#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_pool_is_not_over_because_it_cannot_be_opened() {
    let lab = Lab::new(&[sink("mail")]);
    let mut broken = leaf("sdc", 3);
    broken.state = State::Faulted;
    let mut tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), broken])]);
    (tank.root.state, tank.root.children[0].state) = (State::Degraded, State::Degraded);
    let alerts = lab.start_with(&Arc::new(Mutex::new(vec![tank])), Arc::default());
    seconds(60).await;
    let before = lab.got("mail").concat();
    assert_eq!(before.len(), 2, "disk and pool: {before:?}");
    alerts.stop().await;

    let why = "cannot open 'tank': too few devices".to_owned();
    let missing = Missing { name: "tank".into(), guid: 7, is_imported: true, why };
    let missing = Arc::new(Mutex::new(vec![missing]));
    let alerts = lab.start();
    let none = Arc::new(Mutex::new(Vec::new()));
    let source = Both(Arc::clone(&none), Arc::clone(&missing));
    alerts.watch(source, Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(600).await;
    let told = lab.got("mail").concat().split_off(before.len());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].0 == Occasion::Worse && told[0].1.contains("could not be opened"), "{told:?}");

    // It is open, and the disk was replaced meanwhile: now that is known.
    *none.lock() = vec![facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), leaf("sdd", 4)])])];
    missing.lock().clear();
    seconds(90).await;
    let told = lab.got("mail").concat().split_off(before.len() + 1);
    assert_eq!(told.iter().map(|(occasion, _)| *occasion).collect::<Vec<_>>(), [Occasion::Resolved; 2]);
    alerts.stop().await;
}

/// A daemon that started on slow disks took what it had not read yet for nothing: "over" was told of lost blocks, and a
/// minute later they were told of as new.
#[tokio::test(start_paused = true)]
async fn what_takes_a_read_of_the_pool_is_not_over_before_there_was_one() {
    let lab = Lab::new(&[sink("mail")]);
    let tank = |capacity, lost| Facts { capacity, lost, ..facts(vec![leaf("sdb", 2)]) };
    let pools = Arc::new(Mutex::new(vec![tank(Some(96), Some(3))]));
    let start = || lab.start_with(&pools, Arc::default());
    let alerts = start();
    seconds(60).await;
    let before = lab.got("mail").concat();
    assert_eq!(before.len(), 2, "space and lost blocks: {before:?}");
    alerts.stop().await;

    *pools.lock() = vec![tank(None, None)];
    let alerts = start();
    seconds(120).await;
    *pools.lock() = vec![tank(None, Some(3))];
    seconds(120).await;
    *pools.lock() = vec![tank(Some(96), Some(3))];
    seconds(120).await;
    assert_eq!(lab.got("mail").concat(), before);
    assert!(alerts.status().open.iter().all(|alert| alert.returned == 0), "they never went");
    *pools.lock() = vec![tank(Some(10), Some(0))];
    seconds(120).await;
    let told = lab.got("mail").concat().split_off(before.len());
    assert_eq!(told.iter().map(|(occasion, _)| *occasion).collect::<Vec<_>>(), [Occasion::Resolved; 2]);
    alerts.stop().await;
}

/// They were listed as critical for good if the daemon ended before it looked again: nobody sees a pool that is no more.
#[tokio::test(start_paused = true)]
async fn what_was_wrong_with_a_pool_is_over_when_it_is_destroyed_although_the_daemon_ends_at_once() {
    let lab = Lab::new(&[sink("mail")]);
    let mut broken = leaf("sdc", 3);
    broken.state = State::Faulted;
    let tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), broken])]);
    let (open, journal) = (Arc::new(Mutex::new(vec![tank])), Arc::new(Journal::default()));
    let alerts = lab.start_with(&open, Arc::clone(&journal));
    seconds(60).await;
    let before = lab.got("mail").concat().len();
    assert!(before > 0 && !alerts.status().open.is_empty());
    open.lock().clear();
    let say = |name: &str| {
        let (class, pairs) = names::sysevent(name, serde_json::Map::new());
        journal.add(&About { pool: "tank".into(), guid: 7 }, &class, (0, 0), pairs, None);
    };
    say(names::DESTROYED);
    alerts.stop().await;
    let files = Files::new(lab.dir.path(), None);
    assert_eq!(Offline::new(files).status().unwrap().open, []);
    // Whoever was told of it hears that it is over, after the next start.
    let alerts = lab.start();
    seconds(60).await;
    let told = lab.got("mail").concat().split_off(before);
    assert!(!told.is_empty() && told.iter().all(|(occasion, _)| *occasion == Occasion::Resolved), "{told:?}");
    alerts.stop().await;
}

/// `zpool events -c` within a moment of it made what a scrub had found no news.
#[tokio::test(start_paused = true)]
async fn what_somebody_clears_before_it_was_looked_at_is_told_all_the_same() {
    let lab = Lab::new(&[sink("mail")]);
    let journal = Arc::new(Journal::default());
    let tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), leaf("sdc", 3)])]);
    let alerts = lab.start_with(&Arc::new(Mutex::new(vec![tank])), Arc::clone(&journal));
    seconds(60).await;
    let (kind, step) = (ScanKind::Scrub, ScanStep::Finished);
    happen(&journal, Event::Scan { kind, step, processed: 4096, errors: 2 });
    assert!(journal.clear() > 0 && journal.since(0, None).is_empty());
    seconds(60).await;
    let title = "scrub of 'tank' ended with 2 errors it could not repair (4K repaired)";
    assert_eq!(lab.got("mail").concat(), [told(Occasion::Notice, title)]);
    alerts.stop().await;
}

/// A look that fails is a defect, and the next one is taken all the same: else nobody would hear of anything any more.
#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_not_the_last_one() {
    #[derive(Debug)]
    struct Panics(AtomicBool);
    impl Source for Panics {
        fn facts<'a>(&'a self, _fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
            assert!(self.0.swap(true, Relaxed), "the first look");
            let mut disk = leaf("sdc", 3);
            disk.state = State::Faulted;
            let all = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
            Box::pin(async move { Some(vec![all]) })
        }
    }
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    alerts.watch(Panics(false.into()), Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    assert_eq!(lab.got("mail").len(), 1);
    alerts.stop().await;
}
