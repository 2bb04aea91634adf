//! Devices that are attached, detached and replaced.

use engine::{
    create::{Ashift, Plan, VdevSpec},
    devices::Onlined,
};
use pool::{
    import::{self, ImportError, OpenOptions, Sources},
    vdev::Tree,
};

use super::*;
use crate::support::file_of;

#[tokio::test(start_paused = true)]
async fn devices_are_attached_and_detached() {
    let mut case = Case::new("d0", 2).await;
    let first = case.guid("d0");
    let new = case.disk(DISK);
    let second = case.engine().attach(first, new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1)");
    assert_eq!(refused(case.engine().detach(first).await), "no valid replicas");
    let found = case.judge("a second side that lacks nearly everything").await;
    assert_eq!(missed(&found, second).span().unwrap().0, 4);
    case.settled().await;
    case.judge("two sides").await;

    let new = case.disk(DISK);
    let third = case.engine().attach(case.guid("mirror-0"), new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1 d2)");
    case.write(10).await;
    case.engine().detach(third).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1)");
    case.write(10).await;
    case.judge("a third side came and went").await;
    case.engine().detach(first).await.unwrap();
    assert_eq!(case.draw(), "d1");
    assert!(case.config(second).u64("metaslab_array").is_some());
    case.write(10).await;
    case.judge("one side is left").await;
    assert_eq!(case.draw(), "d1");
    assert_eq!(refused(case.engine().detach(second).await), "only applicable to mirror and replacing vdevs");
    let attached = case.world.media[0].snapshot(0..1 << 18);
    assert!(attached.iter().all(|byte| *byte == 0), "its labels are cleared");
}

/// All that was wrong was an unplugged drive, of which no word was said: the metadata was called damaged.
#[tokio::test(start_paused = true)]
async fn a_new_side_alone_says_which_device_is_missing() {
    let mut case = Case::new("d0", 33).await;
    let new = case.disk(DISK);
    case.engine().attach(case.guid("d0"), new).await.unwrap();
    // Nothing was copied yet.
    let alone = Arc::new(case.world.media[1].fork()) as Arc<dyn Disk>;
    let found = import::scan(&Sources::disks([alone])).await;
    let options = OpenOptions { force: true, ..OpenOptions::default() };
    let error = import::open(found.find(POOL).unwrap(), &options).await.unwrap_err();
    assert!(matches!(error, ImportError::MissingDevices { .. }), "{error}");
    assert!(error.to_string().contains("was d0\n"), "{error}");
    case.settled().await;
}

/// It counted as a mirror of two, and another disk beside it was refused for its redundancy.
#[tokio::test(start_paused = true)]
async fn a_disk_that_is_being_replaced_is_one_disk_to_who_adds_another() {
    let mut case = Case::new("d0", 22).await;
    let new = case.disk(DISK);
    case.engine().replace(case.guid("d0"), new).await.unwrap();
    assert_eq!(case.draw(), "replacing-0(d0 d1)");
    let spec = VdevSpec::parse(&["d2".to_owned()]).unwrap();
    let facts = file_of(DISK);
    let plan = Plan::new(&spec, &[facts], None, false).unwrap();
    plan.check_like(&case.engine().view().tree(), Ashift::default()).unwrap();
    case.settled().await;
}

/// A new disk in the place of one that OpenZFS had partitioned was called as that, and neither could be named.
#[tokio::test(start_paused = true)]
async fn a_disk_in_the_place_of_its_partition_is_told_from_it() {
    let mut case = Case::new("mirror d0 d1", 34).await;
    let partition = NewLeaf { path: "/dev/disk/by-id/x-part1".to_owned(), ..case.disk(DISK) };
    let old = case.engine().replace(case.guid("d0"), partition).await.unwrap();
    case.settled().await;
    made_by_openzfs(&case, old).await;
    let whole = NewLeaf { path: "/dev/disk/by-id/x".to_owned(), ..case.disk(DISK) };
    let new = case.engine().replace(old, whole).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(replacing-0(/dev/disk/by-id/x-part1/old /dev/disk/by-id/x) d1)");
    case.engine().detach(new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(/dev/disk/by-id/x-part1 d1)");
    case.settled().await;
}

/// From now on a side of a mirror is the partition of a disk that OpenZFS was given whole.
async fn made_by_openzfs(case: &Case, guid: u64) {
    let mark = case.engine().run(move |cx| {
        Box::pin(async move {
            let mut tree = Tree::clone(&cx.io.tree());
            for side in &mut tree.tops[0].children {
                if side.guid == guid
                    && let Some(leaf) = &mut side.leaf
                {
                    leaf.whole_disk = true;
                }
            }
            cx.devices_changed(tree);
            Ok(())
        })
    });
    mark.await.unwrap();
}

/// Logical volumes may be called `data1` and `data`. Both were there, and the path of the one that was replaced became one that
/// nothing is at.
#[tokio::test(start_paused = true)]
async fn what_is_only_called_like_a_partition_keeps_its_path() {
    let mut case = Case::new("mirror d0 d1", 35).await;
    let volume = NewLeaf { path: "/dev/mapper/vg-data1".to_owned(), ..case.disk(DISK) };
    let old = case.engine().replace(case.guid("d0"), volume).await.unwrap();
    case.settled().await;
    let other = NewLeaf { path: "/dev/mapper/vg-data".to_owned(), ..case.disk(DISK) };
    let new = case.engine().replace(old, other).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(replacing-0(/dev/mapper/vg-data1 /dev/mapper/vg-data) d1)");
    case.engine().detach(new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(/dev/mapper/vg-data1 d1)");
    case.settled().await;
}

/// A file that went away is kept open, as nothing else can be known to be the same when it is back. Not for ever: it was
/// locked until the pool was closed.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_detached_while_it_is_away_is_let_go() {
    for is_back in [false, true] {
        let mut case = Case::new("mirror d0 d1", 17).await;
        let second = case.guid("d1");
        let disk = case.running.as_mut().unwrap().disks.remove(1);
        disk.vanish();
        case.engine().look().await;
        assert_eq!(case.state(second), State::Removed);
        case.engine().detach(second).await.unwrap();
        assert!(Arc::strong_count(&disk) > 1, "it might have come back");
        if is_back {
            disk.come_back();
        }
        case.engine().look().await;
        assert_eq!(Arc::strong_count(&disk), 1, "back: {is_back}");
        disk.come_back();
        let label = disk.read(0, disk::IoBuf::with_len(256 << 10)).await.unwrap();
        assert_eq!(
            label.iter().all(|byte| *byte == 0),
            is_back,
            "its labels are cleared if that can be done"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_raidz_leaf_is_replaced() {
    let mut case = Case::new("raidz2 d0 d1 d2 d3 d4", 3).await;
    let old = case.guid("d1");
    let new = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let replacing = "raidz2-0(d0 replacing-1(d1 d5) d2 d3 d4)";
    assert_eq!(case.draw(), replacing);
    // The new one, another one and the old one go away, one after the other.
    let other = case.guid("d3");
    for leaf in [new, other, old] {
        case.engine().offline(leaf, false).await.unwrap();
        case.write(10).await;
    }
    assert_eq!(refused(case.engine().offline(case.guid("d0"), false).await), "no valid replicas");
    let found = case.judge("a replacement of an absent leaf, and another away").await;
    assert_eq!((draw(&found).as_str(), missed(&found, new).span().unwrap().0), (replacing, 4));
    assert!(case.engine().online(old, None, false).await.unwrap() == Onlined::Healthy);
    case.judge("the old one is back").await;
    case.settled().await;
    case.engine().detach(new).await.unwrap();
    assert_eq!(case.draw(), "raidz2-0(d0 d1 d2 d3 d4)");
    case.engine().online(other, None, false).await.unwrap();
    case.settled().await;
    case.judge("a replacement was given up").await;

    let new = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let found = case.judge("another has begun").await;
    assert_eq!(draw(&found), "raidz2-0(d0 replacing-1(d1 d6) d2 d3 d4)");
    assert!(!missed(&found, new).is_empty());
    case.settled().await;
    assert_eq!(case.draw(), "raidz2-0(d0 d6 d2 d3 d4)");
    case.judge("replaced").await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_whole_takes_the_place() {
    let mut case = Case::new("mirror d0 d1 mirror d2 d3 log d4", 4).await;
    let old = case.guid("d1");
    let new = case.disk(DISK + (8 << 20));
    let new = case.engine().replace(old, new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 replacing-1(d1 d5)) mirror-1(d2 d3) d4");
    case.write(20).await;
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(d0 d5) mirror-1(d2 d3) d4");
    assert!(case.missed(new).is_empty());
    let is_gone = |event: &Event| matches!(event, Event::DeviceDetached { device } if device.guid == old);
    assert!(case.events().iter().any(is_gone));
    case.write(20).await;
    case.judge("replaced").await;
    assert_eq!(case.draw(), "mirror-0(d0 d5) mirror-1(d2 d3) d4");

    // Two after the other in the same place, the first of which is not waited for.
    let (one, two) = (case.disk(DISK), case.disk(DISK));
    let old = case.guid("d0");
    let one = case.engine().replace(old, one).await.unwrap();
    case.engine().offline(one, false).await.unwrap();
    let two = case.engine().replace(one, two).await.unwrap();
    case.engine().offline(two, true).await.unwrap();
    let found = case.judge("replaced twice").await;
    assert_eq!(draw(&found), "mirror-0(replacing-0(d0 d6 d7) d5) mirror-1(d2 d3) d4");
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(d7 d5) mirror-1(d2 d3) d4");
    // The log gets a side.
    let side = case.disk(DISK);
    let log = case.guid("d4");
    case.engine().attach(log, side).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d7 d5) mirror-1(d2 d3) mirror-2(d4 d8)");
    case.write(10).await;
    case.settled().await;
    case.judge("a mirrored log").await;
}

/// The first of two successors was whole and the second given up: nobody looked, and the old device stayed until some scan
/// was over.
#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_whole_takes_the_place_when_a_later_one_is_given_up() {
    let mut case = Case::new("mirror d0 d1", 32).await;
    let (one, two) = (case.disk(DISK), case.disk(DISK));
    let one = case.engine().replace(case.guid("d0"), one).await.unwrap();
    let two = case.engine().replace(one, two).await.unwrap();
    case.engine().offline(two, false).await.unwrap();
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(replacing-0(d0 d2 d3) d1)");
    assert!(case.missed(one).is_empty());
    case.engine().detach(two).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d2 d1)");
    case.write(10).await;
    case.judge("what came later was given up").await;
}

/// Its path is how it is found again. The first of them was given it back, others were not.
#[tokio::test(start_paused = true)]
async fn a_device_has_its_path_back_when_what_took_it_is_detached() {
    let mut case = Case::new("mirror d0 d1", 31).await;
    let one = case.disk(DISK);
    let path = one.path.clone();
    let one = case.engine().replace(case.guid("d0"), one).await.unwrap();
    case.engine().offline(one, false).await.unwrap();
    let two = NewLeaf { path: path.clone(), ..case.disk(DISK) };
    let two = case.engine().replace(one, two).await.unwrap();
    let path_of = |case: &Case, guid| case.leaf(guid, |vdev| vdev.path.clone().unwrap());
    assert_eq!((path_of(&case, one), path_of(&case, two)), (format!("{path}/old"), path.clone()));
    case.engine().detach(two).await.unwrap();
    assert_eq!(path_of(&case, one), path);
}
