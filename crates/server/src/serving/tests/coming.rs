//! A start: whose a pool is, and what is said of its disks until all of it could be read. Hosts that are told too early that
//! there is no such target or disk give it up.

use engine::{
    dsl::{self, Stored},
    engine::OpenError,
};
use tokio::sync::watch;

use super::*;
use crate::{
    host::{self, Foreign},
    hostid,
    late::{Late, Missing},
    opening::IN_USE_PATIENCE,
    ops::LOCK_PATIENCE,
    state::Remembered,
};

/// An id that a host got while its pools were open, as is advised, made all of them another's: none came at the next start, for
/// their labels gave the id from before.
#[tokio::test]
async fn a_pool_is_ours_by_the_id_that_this_host_had_when_it_was_written() {
    let world = World::new().await;
    let held = world.host.find("tank").unwrap();
    world.host.remember(&held, &Settings::default(), None).unwrap();
    let remembered = world.host.places().state().pools().unwrap().remove(0);
    assert_eq!(remembered.hostid, Some(7), "what is in its labels");
    world.engine.end(Ending::Close).await.unwrap();
    let found = import::scan(&Sources::disks([Arc::clone(&world.media) as Arc<dyn Disk>])).await;
    let mut candidate = found.pools[0].clone();
    candidate.hostname = Some(hostid::hostname());
    let settings = Settings { foreign: Foreign::Refuse, ..Settings::default() };
    assert!(host::open(&candidate, Some(&remembered), &settings).await.is_ok());
    for hostid in [Some(8), None] {
        let other = Remembered { hostid, ..remembered.clone() };
        assert!(host::open(&candidate, Some(&other), &settings).await.is_err(), "{hostid:?}");
    }
    assert!(host::open(&candidate, None, &settings).await.is_err(), "it was not imported here");
    // A clone of the host that has it remembers the same, and opened it under that host for writing.
    candidate.hostname = Some("the-host-that-was-cloned".to_owned());
    let error = host::open(&candidate, Some(&remembered), &settings).await.unwrap_err();
    assert!(error.to_string().contains("previously in use from another system"), "{error}");
}

/// A daemon that started was never ready, and could not even be told to end, while one pool's devices did not answer.
#[tokio::test(start_paused = true)]
async fn a_pool_that_does_not_answer_is_waited_for_a_while_at_the_start_and_offered_later() {
    let world = World::with_volumes().await;
    let held = Arc::new(world.reopened().await);
    let serving = serving();
    world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)));
    let (began, mut told) = (tokio::time::Instant::now(), Vec::new());
    serving.begin(vec![held], |sentence| told.push(sentence)).await;
    assert_eq!((began.elapsed(), told.len()), (PATIENCE, 1));
    assert!(told[0].contains("takes long to read"), "{told:?}");
    world.disk.heal();
    tokio::time::sleep(10 * LONG).await;
    assert_eq!(serving.targets.list().len(), 2);
}

/// For each pool whose disks did not answer all others waited for as long again, and nobody listened for their hosts.
#[tokio::test(start_paused = true)]
async fn pools_that_do_not_answer_are_waited_for_together() {
    let (one, other) = (World::with_volumes().await, World::of(3).await.and_volumes().await);
    one.lake().await;
    one.volume("lake/v").await;
    let lake = one.host.find("lake").unwrap();
    let mut pools = Vec::new();
    for world in [&one, &other] {
        pools.push(Arc::new(world.reopened().await));
        world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)));
    }
    pools.push(lake);
    let serving = serving();
    let (began, mut told) = (tokio::time::Instant::now(), Vec::new());
    serving.begin(pools, |sentence| told.push(sentence)).await;
    assert_eq!((began.elapsed(), told.len()), (PATIENCE, 2), "{told:?}");
    assert!(told.iter().all(|sentence| sentence.contains("'tank' takes long to read")), "{told:?}");
    let own = target(&serving, &iscsi::iqn::for_dataset("lake/v"));
    assert!(own.is_some_and(|target| target.is_ready()), "it is offered by then");
}

/// Nobody knew of its targets when its properties could not be read, and their hosts were told so.
#[tokio::test]
async fn a_pool_that_cannot_be_read_at_first_has_targets_that_may_come() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    world.break_reads();
    assert_eq!(serving.follow(&held).await.len(), 1);
    for (iqn, may_come) in
        [(TARGET, true), ("iqn.2026-11.io.millpond:tank:b", true), ("iqn.2026-11.io.millpond:tanks:b", false)]
    {
        assert_eq!(serving.is_awaited(iqn), may_come, "{iqn}");
    }
    world.disk.heal();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!serving.is_awaited(TARGET) && target(&serving, TARGET).is_some());
}

/// Hosts found it without the disk that they had there, and took that for removed.
#[tokio::test]
async fn a_target_that_was_set_up_takes_logins_when_its_disks_are_there() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let address = listen(&serving.targets).await;
    let shares = PoolShares::read(&held.view()).await.unwrap();
    assert_eq!(serving.follow_targets(&held, &shares), Vec::<String>::new());
    assert_eq!(log_in(address, TARGET).await.1, (3, 1), "try again");
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert_eq!(log_in(address, TARGET).await.1, (0, 0));
    // Those that are in do not suffer when there is more to come.
    serving.follow_targets(&held, &shares);
    assert_eq!(log_in(address, TARGET).await.1, (0, 0));
}

/// Hosts were told to try again until each of some ten thousand snapshots had been opened, those that nobody gets too, and had
/// given up their disks by then.
#[tokio::test(start_paused = true)]
async fn volumes_do_not_wait_for_snapshots_and_those_that_nobody_gets_are_not_opened() {
    let world = World::with_volumes().await;
    let snapshots = ["tank/a@s", "tank/b@s"];
    world.snapshot(&snapshots).await;
    // From here on the snapshot has another object set than its volume.
    let volume = world.engine.volume("tank/b").await.unwrap();
    let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    let held = Arc::new(world.reopened().await);
    let of_snapshot = world.root_block("tank/b@s").await;
    assert_ne!(of_snapshot, world.root_block("tank/b").await);
    let serving = serving();
    world.hang_block(&of_snapshot);
    let following = begun(&serving, &held);
    tokio::time::sleep(LONG / 2).await;
    assert!(!following.is_finished(), "a snapshot hangs");
    assert!(target(&serving, TARGET).is_some_and(|target| target.is_ready()));
    assert!(target(&serving, &iscsi::iqn::for_dataset("tank/b")).is_some());
    assert_eq!(following.await.unwrap(), Vec::<String>::new());
    // The first is of a volume of whose disks somebody decides.
    let is_open = |name: &str| serving.entries.lock().get(name).map(|entry| entry.opened.is_some());
    assert_eq!(snapshots.map(is_open), [Some(false), Some(true)]);
    assert!(target(&serving, &iscsi::iqn::for_dataset("tank/b@s")).is_some());
}

/// They stood behind the list of all snapshots and the settings of each: with some ten thousand, hosts had given up their disks
/// before the first was read. A target that was set up waits for them, as they may be disks of it.
#[tokio::test(start_paused = true)]
async fn volumes_do_not_wait_for_the_list_of_snapshots() {
    let world = World::with_volumes().await;
    let backwards: String = LETTERS.chars().rev().collect();
    let volume = format!("tank/b@{LETTERS}");
    world.snapshot(&[&volume]).await;
    world.snapshot(&[&format!("tank/b@{backwards}")]).await;
    let change = ShareChange::LunAdd { target: TARGET.to_owned(), volume, lun: Some(1) };
    world.run(Operation::Share { pool: "tank".to_owned(), change }).await.unwrap();
    let held = Arc::new(world.reopened().await);
    world.hang_block(&world.snapshots_block("tank/b").await);
    let (serving, own) = (serving(), iscsi::iqn::for_dataset("tank/b"));
    let following = begun(&serving, &held);
    tokio::time::sleep(LONG / 2).await;
    assert!(!following.is_finished(), "the list hangs");
    assert!(target(&serving, &own).is_some_and(|target| target.is_ready()));
    assert!(target(&serving, TARGET).is_some_and(|target| !target.is_ready()));
    assert_eq!(following.await.unwrap(), Vec::<String>::new());
    let shelf = target(&serving, TARGET).unwrap();
    assert!(shelf.is_ready() && shelf.unit(0).is_some() && shelf.unit(1).is_some());
}

/// Each was listed, its settings read and it opened after the one before: of more than a thousand the last came a minute later,
/// on disks that turn, and on slow ones an hour.
#[tokio::test(start_paused = true)]
async fn volumes_are_read_and_opened_side_by_side() {
    let mut took = Vec::new();
    for count in [3, 18] {
        let world = World::new().await;
        for number in 0..count {
            world.volume(&format!("tank/{number}")).await;
        }
        let held = world.reopened().await;
        let serving = serving();
        let slow = Effect::Delay(Duration::from_millis(10)..=Duration::from_millis(10));
        world.disk.inject(Fault::anywhere(On::Read, slow));
        let began = tokio::time::Instant::now();
        assert_eq!(serving.follow(&held).await, Vec::<String>::new());
        took.push(began.elapsed());
        assert_eq!(serving.targets.list().len(), count);
    }
    assert!(took[1] < 3 * took[0], "{took:?}");
}

/// They are opened side by side: the place would be that one's which is read first.
#[tokio::test(start_paused = true)]
async fn of_two_that_want_one_place_the_first_in_the_tree_gets_it_however_long_it_takes() {
    let world = World::with_volumes().await;
    // No command does that.
    let same = Properties::from([(property::LUN.to_owned(), Stored::Text(format!("{TARGET} 0")))]);
    let set = world.engine.run(move |cx| Box::pin(async move { dsl::set(cx, "tank/b", &same).await }));
    set.await.unwrap();
    let held = world.reopened().await;
    for slow in ["tank/a", "tank/b"] {
        let serving = serving();
        world.hang_block(&world.objects_block(slow).await);
        assert_eq!(serving.follow(&held).await, Vec::<String>::new());
        let refused = |name: &str| serving.entries.lock()[name].served.refused.clone();
        assert_eq!(refused("tank/a"), None, "{slow} is slow");
        assert!(refused("tank/b").is_some_and(|why| why.contains("has a LUN 0 already")), "{slow} is slow");
        world.disk.heal();
    }
}

/// Its hosts were told for half a minute that there is no such disk, or no such target, and gave it up.
#[tokio::test]
async fn a_volume_that_cannot_be_read_at_first_is_not_taken_for_removed() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let own = |name: &str| iscsi::iqn::for_dataset(name);
    let break_all = async || {
        for name in ["tank/a", "tank/b"] {
            world.break_block(&world.objects_block(name).await);
        }
    };
    break_all().await;
    serving.follow(&held).await;
    let unit = || target(&serving, TARGET).unwrap().unit(0).expect("a disk");
    let before = unit();
    assert!(before.is_coming() && target(&serving, TARGET).unwrap().is_ready());
    assert!(target(&serving, &own("tank/b")).is_none() && serving.is_awaited(&own("tank/b")));
    assert!(!serving.is_awaited(&own("tank/c")) && !serving.is_awaited("iqn.2026-11.com.example:other"));
    let refused = serving.list().served;
    assert!(refused.len() == 2 && refused.iter().all(|served| served.refused.is_some()), "{refused:?}");
    serving.follow(&held).await;
    assert!(Arc::ptr_eq(&unit(), &before), "its place is kept");
    world.disk.heal();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!unit().is_coming() && unit().naa() == before.naa());
    assert!(target(&serving, &own("tank/b")).is_some() && !serving.is_awaited(&own("tank/b")));
    // Of a disk that is there, nothing changes.
    let now = unit();
    break_all().await;
    serving.follow(&held).await;
    assert!(Arc::ptr_eq(&unit(), &now));
}

/// A disk whose root block did not come for a moment was taken for no volume: it was taken from its guest when anything at all
/// was done to the pool, and its number was given to the next disk. When all that is known of it is where it is, hosts that came
/// at a start did not find it there.
#[tokio::test]
async fn a_volume_of_which_it_cannot_be_read_that_it_is_one_is_not_taken_for_removed() {
    let volumes = ["tank/a", "tank/b"];
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    let (shelf, own) =
        (|| target(&world.serving, TARGET).unwrap().unit(0), iscsi::iqn::for_dataset("tank/b"));
    let before = shelf().unwrap();
    for name in volumes {
        world.break_block(&world.root_block(name).await);
    }
    let refused = world.engine.volume("tank/a").await.map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Lookup(LookupError::Read { .. })), "{refused}");
    // What is done to another makes all of the pool be followed.
    world.volume("tank/c").await;
    for name in ["tank/b", "tank/b@s"] {
        assert!(target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some(), "{name}");
    }
    assert!(shelf().is_some_and(|now| Arc::ptr_eq(&now, &before)));
    let lun = |volume: &str, lun| {
        let (target, volume) = (TARGET.to_owned(), volume.to_owned());
        Operation::Share { pool: "tank".to_owned(), change: ShareChange::LunAdd { target, volume, lun } }
    };
    world.run(lun("tank/c", None)).await.expect("it is known which numbers are free");
    assert!(target(&world.serving, TARGET).unwrap().unit(1).is_some());
    let said = world.run(lun("tank/b", Some(7))).await.unwrap_err().message;
    assert!(said.contains("cannot open 'tank/b': I/O error"), "{said}");
    world.disk.heal();
    // A start.
    let held = world.reopened().await;
    for name in volumes {
        world.break_block(&world.root_block(name).await);
    }
    let serving = serving();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    let refused =
        |name: &str| serving.entries.lock().get(name).and_then(|entry| entry.served.refused.clone());
    for name in volumes {
        assert!(
            refused(name).is_some_and(|why| why.starts_with(&format!("cannot open '{name}': "))),
            "{name}"
        );
    }
    assert!(serving.is_awaited(&own) && target(&serving, TARGET).is_some_and(|target| target.is_ready()));
    let unit = || target(&serving, TARGET).unwrap().unit(0).expect("its place");
    assert!(unit().is_coming());
    world.disk.heal();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(target(&serving, &own).is_some() && !unit().is_coming());
}

/// Nothing was known of the pool's volumes as long as it was there: at each start hosts waited for the second try, the old names
/// of snapshots were offered beside the new ones, logins to targets that are gone were told to try again, and no number was
/// free.
#[tokio::test]
async fn a_file_system_that_is_lost_is_in_no_volumes_way() {
    const JUNK: &str = "tank/junk";
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    let (name, properties) = (JUNK.to_owned(), Vec::new());
    let create = Operation::CreateFilesystem { name, properties, parents: false, dry_run: false };
    world.run(create).await.unwrap();
    let world = world.restarted().await;
    world.break_block(&world.root_block(JUNK).await);
    let (serving, held) = (&world.serving, world.host.find("tank").unwrap());
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    let shelf = target(serving, TARGET).unwrap();
    assert!(shelf.is_ready() && shelf.unit(0).is_some_and(|unit| !unit.is_coming()));
    let own = iscsi::iqn::for_dataset;
    assert!(serving.is_awaited(&own(JUNK)), "it may be a volume");
    assert!(!serving.is_awaited(&own("tank/gone")) && !serving.is_export_awaited("tank/gone"));
    let report = crate::shares::report(&held.view()).await;
    let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
    assert!(problem.starts_with("cannot open 'tank/junk': I/O error: "), "{problem}");
    assert!(report.volumes.iter().all(|volume| volume.name != JUNK));
    let (from, to) = ("tank/b@s".to_owned(), "tank/b@t".to_owned());
    world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
    let is_known = |name: &str| serving.entries.lock().contains_key(name);
    assert!(!is_known("tank/b@s") && target(serving, &own("tank/b@s")).is_none());
    assert!(target(serving, &own("tank/b@t")).is_some());
    world.volume("tank/c").await;
    let (target, volume) = (TARGET.to_owned(), "tank/c".to_owned());
    let change = ShareChange::LunAdd { target, volume, lun: None };
    world.run(Operation::Share { pool: "tank".to_owned(), change }).await.unwrap();
    assert!(shelf.unit(1).is_some());
    // It is read again, and is none, before the list says so.
    let junk = world.dataset(JUNK).await.unwrap();
    assert!(junk.unread().is_some() && is_known(JUNK));
    world.disk.heal();
    let plan = VolumeShare::read(&junk).await.unwrap().plan();
    assert_eq!(serving.offer(&held, &junk, plan, &Mutex::default()).await, None);
    assert!(!is_known(JUNK));
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!serving.is_awaited(&own(JUNK)));
}

/// Whether an export may come was asked of the list of targets: one that has none was unknown, and its client gave it up, and
/// one for initiators alone was waited for.
#[tokio::test]
async fn an_export_that_cannot_be_read_at_first_is_awaited_and_no_other() {
    let world = World::with_volumes().await;
    world.volume("tank/c").await;
    world.offer("tank/a", "all").await;
    world.offer("tank/b", "nbd").await;
    world.offer("tank/c", "iscsi").await;
    let held = world.reopened().await;
    let serving = serving_over(door().await);
    for name in ["tank/a", "tank/b", "tank/c"] {
        world.break_block(&world.objects_block(name).await);
    }
    serving.follow(&held).await;
    for (name, may_come) in [("tank/a", true), ("tank/b", true), ("tank/c", false), ("tank/d", false)] {
        assert_eq!(exported(&serving, name), None, "{name}");
        assert_eq!(serving.is_export_awaited(name), may_come, "{name}");
    }
    assert!(serving.is_awaited(&iscsi::iqn::for_dataset("tank/c")));
}

/// It was opened read-only: its hosts had their disks as of before the last writes that were acknowledged to them, and nobody
/// tried again.
#[tokio::test]
async fn a_pool_of_whose_log_a_disk_does_not_give_a_block_comes_when_it_does() {
    static DISK: OnceLock<Arc<FaultDisk>> = OnceLock::new();
    fn writable() -> import::Opener {
        Arc::new(|_| Ok(Arc::clone(DISK.get().unwrap()) as Arc<dyn Disk>))
    }
    let world = World::with_volumes().await;
    let media = world.cut_off(&["tank/a", "tank/b"]).await;
    let disk = DISK.get_or_init(|| Arc::new(FaultDisk::new(media, 1)));
    let candidate = found(Arc::clone(disk) as Arc<dyn Disk>).await;
    let pool = looked_at(&candidate).await;
    let ends = ends_of_logs(&pool).await;
    assert_eq!(ends.len(), 2);
    for place in ends {
        disk.inject(Fault::new(On::Read, place, Effect::Error(std::io::ErrorKind::Other)));
    }
    let (state, serving, stop) = (tempfile::tempdir().unwrap(), serving(), watch::Sender::new(false));
    let places = Places::new(Vec::new(), State::at(state.path()));
    let host = Host::new(places, Mode::Daemon, Settings::default()).with_serving(Arc::clone(&serving));
    let host = Arc::new(host.with_writable(writable));
    let missing = Missing {
        name: "tank".to_owned(),
        guid: candidate.guid,
        is_imported: false,
        why: "its disk came late".to_owned(),
    };
    let late = Late::new(Arc::downgrade(&host), vec![missing.clone()]);
    late.open(&missing, &candidate, None, &stop.subscribe()).await;
    assert!(host.find("tank").is_none() && serving.targets.list().is_empty());
    let [waiting] = &late.list()[..] else { panic!("it is awaited") };
    assert!(waiting.why.contains("try again when its devices answer"), "{}", waiting.why);
    assert!(late.is_awaited(TARGET));
    disk.heal();
    late.open(&missing, &candidate, None, &stop.subscribe()).await;
    let held = host.find("tank").unwrap();
    let engine = held.engine().expect("it is open for writing");
    assert_eq!(engine.replayed().volumes, 2, "{:?}", engine.replayed());
    let read = engine.volume("tank/a").await.unwrap().read(0, 8192).await.unwrap();
    let is_new =
        |piece: &block::Segment| matches!(piece, block::Segment::Data(data) if data.iter().all(|b| *b == 2));
    assert!(read.iter().all(is_new), "{read:?}");
    assert!(serving.targets.list().len() == 2 && late.list().is_empty());
}

/// With multihost on each command has the pool for seconds: of those that were begun together the fourth gave up.
#[tokio::test(start_paused = true)]
async fn a_command_waits_as_long_as_others_have_the_pool_one_after_the_other() {
    static DISK: OnceLock<Arc<MemDisk>> = OnceLock::new();
    fn disk() -> Arc<dyn Disk> {
        let made = DISK.get_or_init(|| Arc::new(MemDisk::new(SIZE).named("/disks/in-turns".to_owned())));
        Arc::clone(made) as Arc<dyn Disk>
    }
    fn writable() -> import::Opener {
        Arc::new(|_| Ok(disk()))
    }
    created("tank", 1, disk()).await.end(Ending::Close).await.unwrap();
    let candidate = found(disk()).await;
    let state = tempfile::tempdir().unwrap();
    let places = Places::new(Vec::new(), State::at(state.path()));
    let host = Host::new(places, Mode::Command, Settings::default()).with_writable(writable);
    let path = state.path().join(format!("turn-{}", candidate.guid));
    let turn = || {
        let turn = std::fs::File::create(&path).unwrap();
        turn.try_lock().unwrap();
        turn
    };
    let (settings, begun, theirs) = (Settings::default(), tokio::time::Instant::now(), turn());
    let others = async {
        for process in 1001..1005 {
            std::fs::write(&path, format!("{process}\n")).unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        drop(theirs);
    };
    let (opened, ()) = tokio::join!(host.open(&candidate, None, &settings, None, LOCK_PATIENCE), others);
    let (held, _notes) = opened.unwrap();
    assert!(begun.elapsed() > 2 * IN_USE_PATIENCE, "{:?}", begun.elapsed());
    assert!(path.exists(), "it is its turn as long as it has the pool");
    held.engine().unwrap().end(Ending::Close).await.unwrap();
    drop(held);
    // One that does not end is not waited for as long.
    let (_theirs, begun) = (turn(), tokio::time::Instant::now());
    std::fs::write(&path, "1005\n").unwrap();
    let opened = host.open(&candidate, None, &settings, None, LOCK_PATIENCE).await;
    let refused = opened.map(drop).unwrap_err();
    assert!(refused.contains("pool is in use: another command has it (process 1005)"), "{refused}");
    assert!((IN_USE_PATIENCE..2 * IN_USE_PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// Its hosts were told that there is no such disk, or no such target, and gave one up for good that comes back when it is
/// rolled back.
#[tokio::test]
async fn a_volume_whose_log_cannot_be_replayed_is_not_taken_for_removed() {
    let world = World::with_volumes().await;
    let engine = world.with_damaged_logs(&["tank/a", "tank/b"]).await;
    assert_eq!(engine.replayed().failed.len(), 2, "{:?}", engine.replayed());
    let held = Held::writing(Arc::clone(&engine));
    let (serving, own) = (serving(), iscsi::iqn::for_dataset("tank/b"));
    serving.follow(&held).await;
    let unit = || target(&serving, TARGET).unwrap().unit(0).expect("a disk");
    let before = unit();
    assert!(before.is_coming() && target(&serving, TARGET).unwrap().is_ready());
    assert!(target(&serving, &own).is_none() && serving.is_awaited(&own));
    let served = serving.list().served;
    let is_told = |served: &Served| served.refused.as_ref().is_some_and(|why| why.contains("be replayed"));
    assert!(served.len() == 2 && served.iter().all(is_told), "{served:?}");
    for name in ["tank/a", "tank/b"] {
        let snapshot = format!("{name}@s");
        let names = vec![snapshot.clone()];
        let taken = engine.run_snapshot(move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
        });
        taken.await.unwrap();
        let back = engine.run(move |cx| Box::pin(async move { dsl::rollback(cx, &snapshot).await }));
        back.await.unwrap();
    }
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!unit().is_coming() && unit().naa() == before.naa());
    assert!(target(&serving, &own).is_some() && !serving.is_awaited(&own));
    engine.end(Ending::Close).await.unwrap();
}

/// Where the list of volumes could not be read to its end, hosts found their targets without the disks that were becoming
/// ready there, and without snapshots.
#[tokio::test]
async fn a_list_that_is_not_complete_takes_away_what_was_destroyed_and_nothing_else() {
    let world = World::with_volumes().await;
    let nothing = BTreeSet::new();
    let held = world.host.find("tank").unwrap();
    world.engine.run(|cx| dsl::destroy_head(cx, "tank/b")).await.unwrap();
    while world.engine.open_volumes().len() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.serving.follow_names(&held, &nothing, false);
    let names: Vec<String> = world.serving.entries.lock().keys().cloned().collect();
    assert_eq!(names, ["tank/a"]);
    drop(held);
    // Of a pool that is only read, nothing is open as a volume is that is written to.
    let held = world.reopened().await;
    let serving = serving();
    let unit = || target(&serving, TARGET).unwrap().unit(0);
    for is_coming in [true, false] {
        if is_coming {
            world.break_block(&world.objects_block("tank/a").await);
        }
        serving.follow(&held).await;
        world.disk.heal();
        let before = unit().expect("a disk");
        assert_eq!(before.is_coming(), is_coming);
        serving.follow_names(&held, &nothing, false);
        assert!(unit().is_some_and(|now| Arc::ptr_eq(&now, &before)), "{is_coming}");
    }
    serving.follow_names(&held, &nothing, true);
    assert!(unit().is_none() && serving.entries.lock().is_empty());
}

/// A volume whose settings cannot be read may be any disk: once, its hosts wait for it. They do not for ever.
#[tokio::test]
async fn disks_wait_for_one_whose_settings_cannot_be_read_until_it_was_tried_again() {
    let world = World::with_volumes().await;
    for name in ["tank/a", "tank/b"] {
        world.set_much(name).await;
    }
    let held = world.reopened().await;
    let (serving, kept) = (serving(), tempfile::tempdir().unwrap());
    let host =
        Host::new(Places::new(Vec::new(), State::at(kept.path())), Mode::ReadOnly, Settings::default());
    let host = Arc::new(host.with_serving(Arc::clone(&serving)));
    let held = host.keep(held);
    for name in ["tank/a", "tank/b"] {
        world.break_block(&world.settings_block(name).await);
    }
    serving.follow(&held).await;
    let shelf = target(&serving, TARGET).unwrap();
    assert!(!shelf.is_ready() && shelf.unit(0).is_none());
    let own = iscsi::iqn::for_dataset("tank/b");
    assert!(serving.is_awaited(&own) && serving.is_export_awaited("tank/b"));
    let task = tokio::spawn(Arc::clone(&serving).try_again(Arc::downgrade(&host)));
    serving.again.hurry(None);
    for _ in 0..200 {
        if shelf.is_ready() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(shelf.is_ready());
    assert!(serving.is_awaited(&own), "whom nobody keeps waiting by it");
    task.abort();
}

/// Its host found no write cache, and took for stable what was written before and was not.
#[tokio::test(start_paused = true)]
async fn a_disk_without_write_cache_comes_when_what_it_holds_is_stable() {
    let world = World::with_volumes().await;
    let properties = vec![(property::WRITE_CACHE.to_owned(), "off".to_owned())];
    world.run(Operation::Set { name: "tank/a".to_owned(), properties, force: false }).await.unwrap();
    let volume = world.engine.volume("tank/a").await.unwrap();
    world.disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::TimedOut)));
    let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    let (serving, held) = (serving(), world.host.find("tank").unwrap());
    let following = tokio::spawn({
        let serving = Arc::clone(&serving);
        async move { serving.follow(&held).await }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!following.is_finished(), "it waits for the flush");
    world.engine.abandon().await;
    following.await.unwrap();
    let refused = serving.entries.lock()["tank/a"].served.refused.clone();
    assert!(refused.is_some_and(|why| why.contains("what was written before is not stable")));
    assert!(target(&serving, TARGET).unwrap().unit(0).expect("its place").is_coming());
}

/// Because a number led nowhere nothing of the pool was offered after the next start, and no share could be changed.
#[tokio::test]
async fn a_boot_file_system_that_is_not_there_is_in_no_volumes_way() {
    let world = World::with_volumes().await;
    let gone = Properties::from([("bootfs".to_owned(), Stored::Number(1 << 20))]);
    let set = world.engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &gone).await }));
    set.await.unwrap();
    let held = world.reopened().await;
    let serving = serving();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(target(&serving, TARGET).unwrap().unit(0).is_some_and(|unit| !unit.is_coming()));
    let properties = held.view().properties().await.unwrap();
    let shown = properties.get("bootfs").map(|property| property.value.clone());
    assert_eq!(shown, Some(pool::props::Value::Text("-".to_owned())));
}
