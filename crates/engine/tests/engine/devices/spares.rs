//! Spares that stand in, go back, stay, or are removed.

use engine::create::{self, DeviceFacts, Plan, Removal, VdevSpec};
use pool::status::VdevStatus;

use super::*;
use crate::support::quiet;

#[tokio::test(start_paused = true)]
async fn a_spare_stands_in_and_goes_back() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3 d4", 5).await;
    let (original, spare, other) = (case.guid("d0"), case.guid("d3"), case.guid("d4"));
    assert_eq!(refused(case.engine().offline(spare, false).await), "device is reserved as a hot spare");
    case.engine().offline(original, false).await.unwrap();
    case.write(20).await;
    case.engine().activate_spare(original, spare, None).await.unwrap();
    let spared = "raidz1-0(spare-0(d0 d3) d1 d2)";
    assert_eq!(case.draw(), spared);
    assert!(refused(case.engine().activate_spare(case.guid("d1"), spare, None).await).contains("is busy"));
    assert!(refused(case.engine().activate_spare(original, other, None).await).contains("spare config"));
    let found = case.judge("a spare stands in").await;
    assert_eq!((draw(&found).as_str(), found.spares().len()), (spared, 2));
    assert!(case.leaf(spare, |vdev| vdev.leaf.as_ref().unwrap().is_spare));
    case.settled().await;
    case.write(20).await;
    case.judge("a spare is whole").await;
    assert_eq!(case.draw(), spared, "its device is away");

    // The original is back, and gets what it lacks.
    case.engine().online(original, None, false).await.unwrap();
    assert_eq!((case.draw().as_str(), case.config(original).u64("unspare")), (spared, Some(1)));
    case.settled().await;
    assert_eq!(case.draw(), "raidz1-0(d0 d1 d2)");
    assert!(!case.config(original).contains("unspare"));
    let is_back = |event: &Event| matches!(event, Event::SpareReturned { spare: of } if of.guid == spare);
    assert!(case.events().iter().any(is_back));
    case.judge("the spare went back").await;
    assert_eq!(case.engine().view().spares().len(), 2);

    // Another time it stays for good.
    case.engine().activate_spare(original, spare, None).await.unwrap();
    case.settled().await;
    assert_eq!(case.draw(), spared, "nobody asked it to go back");
    case.engine().detach(original).await.unwrap();
    assert_eq!(case.draw(), "raidz1-0(d3 d1 d2)");
    assert_eq!(case.engine().view().spares().len(), 1);
    case.write(20).await;
    case.judge("the spare is a member").await;
    assert_eq!(case.engine().view().spares()[0].guid, other);
}

/// Nobody takes a device online that was away when another program had the pool, and is there when we open it.
#[tokio::test(start_paused = true)]
async fn a_spare_goes_back_when_its_device_is_there_again_at_an_import() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 15).await;
    let (original, spare) = (case.guid("d1"), case.guid("d3"));
    let (spared, whole) = ("raidz1-0(d0 spare-1(d1 d3) d2)", "raidz1-0(d0 d1 d2)");
    // Until the pool is exported.
    case.engine().offline(original, true).await.unwrap();
    case.engine().activate_spare(original, spare, None).await.unwrap();
    case.settled().await;
    case.write(20).await;
    assert_eq!(case.draw(), spared);
    let found = case.judge("its device is there again").await;
    assert_eq!(draw(&found), spared);
    case.settled().await;
    case.check().await;
    assert_eq!(case.draw(), whole);
    // One that was put beside a healthy device stays there.
    case.engine().activate_spare(original, spare, None).await.unwrap();
    case.settled().await;
    case.judge("beside a healthy one").await;
    case.settled().await;
    assert_eq!(case.draw(), spared);
}

/// A device that was spared is replaced for good: its successor takes its place, and the spare goes back.
#[tokio::test(start_paused = true)]
async fn a_spared_device_is_replaced() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 6).await;
    let (old, spare) = (case.guid("d0"), case.guid("d3"));
    case.engine().offline(old, false).await.unwrap();
    case.engine().activate_spare(old, spare, None).await.unwrap();
    let new = case.disk(DISK);
    let second = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let both = "raidz1-0(spare-0(replacing-0(d0 d4) d3) d1 d2)";
    assert_eq!(case.draw(), both);
    assert!(refused(case.engine().replace(spare, second).await).contains("spare config"));
    let found = case.judge("a spared device is being replaced").await;
    assert_eq!((draw(&found).as_str(), missed(&found, new).span().unwrap().0), (both, 4));
    case.settled().await;
    assert_eq!(case.draw(), "raidz1-0(d4 d1 d2)");
    case.judge("replaced, and the spare was sent back").await;
    assert_eq!(case.engine().view().spares().len(), 1);
}

/// It stayed in use for good: only a replacement that ended by itself said that its spare may go.
#[tokio::test(start_paused = true)]
async fn a_spare_goes_back_also_if_the_old_device_was_detached_first() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 23).await;
    let (old, spare) = (case.guid("d0"), case.guid("d3"));
    case.write(20).await;
    case.engine().offline(old, false).await.unwrap();
    case.engine().activate_spare(old, spare, None).await.unwrap();
    case.settled().await;
    let new = case.disk(DISK);
    case.engine().replace(old, new).await.unwrap();
    case.engine().detach(old).await.unwrap();
    assert_eq!(case.draw(), "raidz1-0(spare-0(d4 d3) d1 d2)");
    case.settled().await;
    assert_eq!(case.draw(), "raidz1-0(d4 d1 d2)");
    case.judge("replaced, and the spare was sent back").await;
    assert_eq!(case.engine().view().spares().len(), 1);
}

/// Since it was looked at whether it can be removed, a spare has stepped in: its labels were cleared under the pool, and what
/// was to be removed with it was gone.
#[tokio::test(start_paused = true)]
async fn a_spare_that_has_just_stepped_in_is_not_removed() {
    let mut case = Case::new("raidz d0 d1 d2 log d3 spare d4", 19).await;
    let (original, spare) = (case.guid("d0"), case.guid("d4"));
    let view = case.engine().view();
    let removals = ["d3", "d4"].map(|word| Removal::find(&view, word).unwrap());
    drop(view);
    for removal in &removals {
        removal.vacate(case.engine()).await.unwrap();
    }
    case.engine().activate_spare(original, spare, None).await.unwrap();
    let all = removals.clone();
    let finish = case.engine().run(move |cx| Box::pin(async move { Removal::finish_all(&all, cx).await }));
    assert_eq!(refused(finish.await), "spare d4 is in use");
    assert_eq!(case.draw(), "raidz1-0(spare-0(d0 d4) d1 d2) d3");
    assert!(removals[1].disks(&case.engine().view().tree()).is_empty(), "its labels stay");
    drop(removals);
    case.write(20).await;
    case.settled().await;
    case.judge("a spare has stepped in").await;
    assert_eq!(case.engine().view().spares().len(), 1);
}

/// The first of them was removed, whichever was meant.
#[tokio::test(start_paused = true)]
async fn a_name_that_two_spares_have_removes_neither() {
    let (_world, running) = World::create("mirror d0 d1", 12, DISK, 26).await;
    let paths = ["/dev/sdx", "/dev/mapper/sdx"];
    let disks = paths.map(|path| Arc::new(MemDisk::new(DISK).named(path)) as Arc<dyn Disk>);
    let facts = || DeviceFacts { bytes: DISK, block_device: true, logical_sector: 512, physical_sector: 512 };
    let spec = VdevSpec::parse(&["spare", paths[0], paths[1]]).unwrap();
    let plan = Plan::new(&spec, &[facts(), facts()], None, true).unwrap();
    let adding = running.engine.run(move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }));
    adding.await.unwrap();
    let view = running.engine.view();
    let said = refused(Removal::find(&view, "sdx"));
    assert!(said.contains("'sdx' is more than one device of the pool"), "{said}");
    for (spare, path) in view.spares().iter().zip(paths) {
        let guid = spare.guid.to_string();
        assert!(said.contains(&guid), "{said}");
        let [by_guid, by_path] = [&*guid, path].map(|word| Removal::find(&view, word).unwrap());
        assert!(by_guid.is_same(&by_path));
    }
    drop(view);
    running.export().await;
}

/// In one transaction group nobody sees in the last committed state what the other has done.
#[tokio::test(start_paused = true)]
async fn a_spare_is_removed_or_stands_in_but_not_both() {
    for is_removed_first in [true, false] {
        let mut case = Case::new("raidz d0 d1 d2 spare d3", 20).await;
        let (original, spare) = (case.guid("d0"), case.guid("d3"));
        let removal = Removal::find(&case.engine().view(), "d3").unwrap();
        let leaving = removal.clone();
        let remove = case.engine().run(move |cx| Box::pin(async move { leaving.finish(cx).await }));
        let activate = case.engine().activate_spare(original, spare, None);
        let tree = if is_removed_first {
            let (removed, activated) = tokio::join!(remove, activate);
            removed.unwrap();
            assert_eq!(refused(activated), "no such device in pool");
            "raidz1-0(d0 d1 d2)"
        } else {
            let (activated, removed) = tokio::join!(activate, remove);
            activated.unwrap();
            assert_eq!(refused(removed), "spare d3 is in use");
            "raidz1-0(spare-0(d0 d3) d1 d2)"
        };
        for disk in removal.disks(&case.engine().view().tree()) {
            engine::write::labels::clear(&disk).await.unwrap();
        }
        case.write(20).await;
        case.settled().await;
        case.judge(tree).await;
        assert_eq!(case.draw(), tree);
        assert_eq!(case.engine().view().spares().is_empty(), is_removed_first);
    }
}

/// Spares at rest are taken when a pool is imported for writing, as its members are: locked, and fit to stand in.
#[tokio::test]
async fn spares_of_an_imported_pool_can_stand_in() {
    let (world, running) = World::create("mirror d0 d1 spare d2", 12, DISK, 12).await;
    running.export().await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let syncer = files::reopen(dir.path(), 1).await.unwrap();
    let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
    let spare = engine.view().spares()[0].guid;
    let original = engine.view().tree().leaves()[1].guid;
    let lock = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    let taken = disk::FileDisk::open(dir.path().join("d2.img"), lock);
    assert!(taken.is_err(), "nobody else can take it");
    engine.activate_spare(original, spare, None).await.unwrap();
    engine.end(engine::engine::Ending::Export).await.unwrap();
    drop(engine);
    let syncer = files::reopen(dir.path(), 2).await.unwrap();
    assert_eq!(syncer.io.tree().leaves().len(), 3);
}

/// It was open only to be read from for as long as the pool was: shown as available, and busy for whoever wanted it.
#[tokio::test]
async fn a_spare_that_somebody_else_has_at_an_import_is_not_available() {
    let (world, running) = World::create("mirror d0 d1 spare d2 cache d3", 12, DISK, 29).await;
    running.export().await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let lock = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    let others = ["d2.img", "d3.img"].map(|name| disk::FileDisk::open(dir.path().join(name), lock).unwrap());
    let syncer = files::reopen(dir.path(), 1).await.unwrap();
    let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
    let view = engine.view();
    let devices: Vec<_> = view.spares().iter().chain(view.l2cache()).collect();
    assert_eq!(devices.len(), 2);
    for device in devices {
        assert_eq!(device.state().0, State::CantOpen, "{}", device.display_name());
    }
    drop(others);
    engine.end(engine::engine::Ending::Export).await.unwrap();
}

/// Found by reading: of a disk with several paths each after the first is busy, by the first, and that one was given back for it.
#[tokio::test]
async fn a_spare_that_is_there_by_two_names_is_had_by_one_though_the_other_is_busy() {
    let (world, running) = World::create("mirror d0 d1 spare d2", 12, DISK, 30).await;
    running.export().await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let other = dir.path().join("d2.img.other");
    std::fs::copy(dir.path().join("d2.img"), &other).unwrap();
    let lock = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    let busy = disk::FileDisk::open(&other, lock).unwrap();
    let syncer = files::reopen(dir.path(), 1).await.unwrap();
    let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
    assert_eq!(engine.view().spares()[0].state().0, State::Healthy);
    let free = disk::FileDisk::open(dir.path().join("d2.img"), lock);
    assert!(free.is_err(), "it is locked, and fit to stand in");
    engine.end(engine::engine::Ending::Export).await.unwrap();
    drop(busy);
}

/// Found by reading: the file stayed open, and locked, until the pool was exported.
#[tokio::test]
async fn a_spare_that_was_moved_away_is_let_go_when_it_leaves_the_pool() {
    let (world, running) = World::create("mirror d0 d1 spare d2", 12, DISK, 25).await;
    running.export().await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let syncer = files::reopen(dir.path(), 1).await.unwrap();
    let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
    let moved = dir.path().join("moved");
    std::fs::rename(dir.path().join("d2.img"), &moved).unwrap();
    engine.look().await;
    let spare = engine.view().spares()[0].guid;
    assert_eq!(engine.view().spares()[0].state().0, State::Removed);
    let lock = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    assert!(disk::FileDisk::open(&moved, lock).is_err(), "it may be put back");
    let removal = Removal::find(&engine.view(), &spare.to_string()).unwrap();
    removal.vacate(&engine).await.unwrap();
    let finish = engine.run(move |cx| Box::pin(async move { removal.finish(cx).await }));
    finish.await.unwrap();
    engine.look().await;
    disk::FileDisk::open(&moved, lock).expect("nobody has it");
    engine.end(engine::engine::Ending::Export).await.unwrap();
}

/// Found by reading: a spare with sectors of 4096 bytes that emulates smaller ones was taken into a pool of older disks, and
/// refused whenever it was needed. Its logical sectors forbid what cannot be written, and its physical ones nothing.
#[tokio::test(start_paused = true)]
async fn a_spare_with_larger_physical_sectors_stands_in() {
    let (_world, running) = World::create("raidz d0 d1 d2", 9, DISK, 23).await;
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(DISK).named("/disks/d3"));
    let info = disk.info();
    let (logical_sector, physical_sector) = (info.logical_sector, info.physical_sector);
    assert_eq!((logical_sector, physical_sector), (512, 4096));
    let leaf = running.engine.view().tree().leaves()[0].guid;
    let new = NewLeaf { path: info.path, disk: Arc::clone(&disk), is_file: false, ashift: None };
    let remedy = "use the option '-o ashift=N' to override";
    let why = refused(running.engine.replace(leaf, new).await);
    assert!(why.contains(remedy), "an administrator chooses: {why}");
    let facts = DeviceFacts { bytes: DISK, block_device: true, logical_sector, physical_sector };
    let plan = Plan::new(&VdevSpec::parse(&["spare", "/disks/d3"]).unwrap(), &[facts], None, true).unwrap();
    let disks = [disk];
    let adding = running.engine.run(move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }));
    adding.await.unwrap();
    let spare = running.engine.view().spares()[0].guid;
    let why = refused(running.engine.activate_spare(leaf, spare, Some(12)).await);
    assert!(why.contains(remedy), "what was asked for counts: {why}");
    running.engine.activate_spare(leaf, spare, None).await.unwrap();
    assert_eq!(running.engine.view().tree().leaves().len(), 4);
    running.export().await;
}

/// It was AVAIL, and no word was said, also when a disk failed.
#[tokio::test(start_paused = true)]
async fn a_spare_that_a_pool_has_outgrown_is_told_of() {
    let mut case = Case::new("mirror d0 d1 spare d2", 25).await;
    let status = |case: &Case| {
        let view = case.engine().view();
        VdevStatus::of_spare(&view.spares()[0], &view.tree())
    };
    for word in ["d0", "d1"] {
        let new = case.disk(2 * DISK);
        case.engine().replace(case.guid(word), new).await.unwrap();
        case.settled().await;
    }
    assert_eq!((status(&case).misfit, status(&case).note), (None, None));
    let leaf = case.guid("d4");
    case.engine().online(leaf, None, true).await.unwrap();
    let spare = status(&case);
    assert_eq!(spare.note.as_deref(), Some("too small for mirror-0"));
    assert!(spare.misfit.unwrap().everywhere);
    let why = refused(case.engine().activate_spare(leaf, spare.guid, None).await);
    assert_eq!(why, "device is too small");
}

/// Found by reading: a spare that went back to rest stood in elsewhere at once, while a trim of what had been free in its former
/// place was under way.
#[tokio::test(start_paused = true)]
async fn a_spare_stands_in_elsewhere_once_nothing_of_it_is_swept() {
    let mut case = Case::new("mirror d0 d1 mirror d2 d3 spare d4", 24).await;
    let (one, other, spare) = (case.guid("d0"), case.guid("d2"), case.guid("d4"));
    let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
    let disk = Arc::clone(&case.running.as_ref().unwrap().disks[4]);
    engine.activate_spare(one, spare, None).await.unwrap();
    case.settled().await;
    let seconds = std::time::Duration::from_secs;
    disk.inject(Fault::new(On::Trim, 4 << 20..127 << 20, Effect::Delay(seconds(30)..=seconds(30))));
    let start = devices::SweepCommand::Start { rate: None };
    engine.sweep(devices::SweepKind::Trim, spare, start).await.unwrap();
    tokio::time::sleep(seconds(8)).await;
    engine.detach(spare).await.unwrap();
    let why = refused(engine.activate_spare(other, spare, None).await);
    assert!(why.contains("is still being initialized or trimmed"), "{why}");
    disk.heal();
    tokio::time::sleep(seconds(600)).await;
    engine.activate_spare(other, spare, None).await.unwrap();
    drop(engine);
    case.settled().await;
    case.write(20).await;
    case.judge("a spare that was trimmed stands in elsewhere").await;
}
