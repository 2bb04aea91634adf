//! A pool with `multihost=on` whose host is not heard of for too long: another one may have it by then, so nothing that waited
//! for its turn meanwhile is written, however well the devices are. And as long as something is written it is heard. Of hosts
//! that take a pool at the same moment one at most gets it.

use std::{io::ErrorKind, ops::Range, sync::Arc, time::Duration};

use block::{BlockVolume, Durability};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    create::{self, Plan, VdevSpec},
    devices::{self, NewLeaf, SweepCommand, SweepKind},
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine},
    open,
    sync::Syncer,
};
use ondisk::{
    label::{Geometry, Region, Ring},
    uberblock::Rank,
};
use pool::import::{self, Sources};
use tokio::time::timeout;

use crate::support::{
    DISK, NOW, POOL, Running, World, as_disks, content, data, file_of, going_on, noise, plain, quiet,
};

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Bytes of a disk for blocks: what is written there is no heartbeat.
const BLOCKS: Range<u64> = 4 * MIB..DISK - MIB;
/// Longer than another host waits before it takes this one for dead.
const TOO_LONG: Duration = Duration::from_secs(25);

/// A mirror that beats, with an empty volume of as many bytes.
async fn beating(size: u64, seed: u64) -> (World, Running) {
    beating_on("mirror d0 d1", size, seed).await
}

/// The same on other devices.
async fn beating_on(layout: &str, size: u64, seed: u64) -> (World, Running) {
    let (world, running) = World::create(layout, 12, DISK, seed).await;
    running.volume(&format!("{POOL}/v"), size, 128 << 10, plain()).await;
    let on = Properties::from([("multihost".to_owned(), Stored::Number(1))]);
    let set = running.engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &on).await }));
    set.await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    (world, running)
}

/// What another host goes by.
async fn rank(world: &World) -> Rank {
    import::scan(&Sources::disks(as_disks(&world.media))).await.pools[0].uberblocks[0].rank()
}

/// From now on each write of blocks takes so long, and is counted.
fn slow(running: &Running, seconds: u64) {
    let time = Duration::from_secs(seconds);
    for disk in &running.disks {
        disk.inject(Fault::new(On::Write, BLOCKS, Effect::Delay(time..=time)));
    }
}

/// Writes of blocks that were begun.
fn begun(running: &Running) -> u64 {
    running.disks.iter().map(|disk| disk.counts().faults).sum()
}

fn leaf(running: &Running, word: &str) -> u64 {
    devices::find(&running.engine.view(), word).unwrap()
}

/// A new disk that takes seconds for each write.
fn new_disk(running: &mut Running) -> NewLeaf {
    let path = format!("/disks/d{}", running.disks.len());
    let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(DISK).named(&path)), 9));
    let time = Duration::from_secs(5);
    disk.inject(Fault::anywhere(On::Write, Effect::Delay(time..=time)));
    running.disks.push(Arc::clone(&disk));
    NewLeaf { path, disk, is_file: true, ashift: None }
}

/// The host stands still while something is being written, and goes on too late.
async fn stand_still(world: &World, running: &Running, what: &str) {
    let (before, beat) = (begun(running), rank(world).await);
    assert!(before > 0, "{what}");
    tokio::time::advance(TOO_LONG).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(begun(running), before, "{what}");
    assert_eq!(rank(world).await, beat, "{what}");
    running.engine.end(Ending::Export).await.unwrap_err();
    assert_eq!(begun(running), before, "{what}");
    assert_eq!(rank(world).await, beat, "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_within_a_group_writes_nothing_more_of_it() {
    let (world, running) = beating(40 * MIB, 61).await;
    slow(&running, 5);
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    for at in 0..40 {
        volume.write(at * MIB, data(vec![0xa5; MIB as usize]), Durability::Cached).await.unwrap();
    }
    let syncing = tokio::spawn({
        let engine = Arc::clone(&running.engine);
        async move { engine.sync().await }
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    stand_still(&world, &running, "a group").await;
    let error = syncing.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("another host may have imported the pool"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_within_a_sweep_writes_over_nothing_more() {
    let (world, running) = beating(MIB, 62).await;
    slow(&running, 1);
    let start = SweepCommand::Start { rate: None };
    running.engine.sweep(SweepKind::Initialize, leaf(&running, "d1"), start).await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    stand_still(&world, &running, "a sweep").await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_within_a_resilver_repairs_nothing_more() {
    let (world, running) = beating(MIB, 63).await;
    let lacking = leaf(&running, "d1");
    running.engine.offline(lacking, false).await.unwrap();
    let volume = running.volume(&format!("{POOL}/w"), 40 * MIB, 128 << 10, plain()).await;
    for at in 0..40 {
        volume.write(at * MIB, data(vec![0xa5; MIB as usize]), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    slow(&running, 3);
    running.engine.online(lacking, None, false).await.unwrap();
    let is_under_way = || running.engine.scan_progress().is_some_and(|progress| progress.processed > MIB);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if is_under_way() {
            break;
        }
    }
    assert!(is_under_way(), "{:?}", running.engine.scan_progress());
    stand_still(&world, &running, "a resilver").await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_while_a_device_was_labelled_labels_it_no_further() {
    for what in ["attach", "zpool add", "zpool add cache"] {
        let (world, mut running) = beating(MIB, 66).await;
        let new = new_disk(&mut running);
        let (engine, beside) = (Arc::clone(&running.engine), leaf(&running, "d1"));
        let labelling = tokio::spawn(async move {
            if what == "attach" {
                return engine.attach(beside, new).await.map(drop);
            }
            let words: Vec<&str> = what.split(' ').skip(2).chain([new.path.as_str()]).collect();
            let facts = file_of(DISK);
            let plan = Plan::new(&VdevSpec::parse(&words).unwrap(), &[facts], None, true).unwrap();
            let add =
                engine.run(move |cx| Box::pin(async move { create::add(cx, &plan, &[new.disk]).await }));
            add.await
        });
        tokio::time::sleep(Duration::from_secs(8)).await;
        stand_still(&world, &running, what).await;
        labelling.await.unwrap().unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_while_a_device_grew_writes_no_labels_behind_its_end() {
    let (world, running) = beating(MIB, 67).await;
    world.media[0].resize(2 * DISK);
    let (time, end) = (Duration::from_secs(5), 2 * DISK - MIB..2 * DISK);
    running.disks[0].inject(Fault::new(On::Write, end, Effect::Delay(time..=time)));
    let syncing = tokio::spawn({
        let engine = Arc::clone(&running.engine);
        async move { engine.sync().await }
    });
    tokio::time::sleep(Duration::from_secs(8)).await;
    stand_still(&world, &running, "growing").await;
    syncing.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_feeds_its_cache_devices_no_more() {
    let (world, running) = beating_on("mirror d0 d1 cache d2", 48 * MIB, 68).await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    for at in 0..48 {
        volume.write(at * MIB, data(noise(at, MIB)), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    let time = Duration::from_secs(5);
    running.disks[2].inject(Fault::anywhere(On::Write, Effect::Delay(time..=time)));
    // Most of it leaves memory.
    content(&*volume).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    stand_still(&world, &running, "a cache device").await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_until_the_last_group_is_durable() {
    let (world, running) = beating(MIB, 64).await;
    slow(&running, 30);
    let ending = tokio::spawn({
        let engine = Arc::clone(&running.engine);
        async move { engine.end(Ending::Export).await }
    });
    let mut before = rank(&world).await;
    for second in 0..12 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!ending.is_finished());
        let now = rank(&world).await;
        assert!(now > before, "{second}: {now:?}");
        before = now;
    }
    ending.await.unwrap().unwrap();
    let left = rank(&world).await;
    assert!(left > before);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(rank(&world).await, left, "nobody is here any more");
    world.verify("left").await;
}

/// Its devices go while the last group is written, so that it is left when they are back. Until then another host may have
/// taken them.
#[tokio::test(start_paused = true)]
async fn a_pool_that_could_not_be_left_in_time_is_not_left_later() {
    let (world, running) = beating(MIB, 65).await;
    slow(&running, 5);
    let engine: Arc<Engine> = Arc::clone(&running.engine);
    let ending = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.end(Ending::Export).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.disks.iter().for_each(|disk| disk.vanish());
    let error = timeout(MINUTE, ending).await.unwrap().unwrap().unwrap_err().to_string();
    assert!(error.contains("it is left when it is cleared"), "{error}");
    tokio::time::sleep(TOO_LONG).await;
    running.disks.iter().for_each(|disk| {
        disk.heal();
        disk.come_back();
    });
    let content = || world.media.iter().map(|media| media.snapshot(0..DISK)).collect::<Vec<_>>();
    let before = content();
    let error = timeout(MINUTE, engine.clear(None)).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("another host may have imported the pool"), "{error}");
    tokio::time::sleep(MINUTE).await;
    assert!(content() == before, "written after another host may have taken it");
    engine.end(Ending::Export).await.unwrap_err();
    assert!(content() == before);
}

/// The disks, as host `id` has them.
fn disks_of(world: &World, id: u64) -> Vec<Arc<FaultDisk>> {
    let disk = |media: &Arc<MemDisk>| Arc::new(FaultDisk::new(Arc::clone(media) as Arc<dyn Disk>, id));
    world.media.iter().map(disk).collect()
}

/// Takes the pool over as host `id`. Each of its writes lasts so many seconds, and so does what it has to read before.
async fn take(world: &World, id: u64, writes: u64, reads: u64) -> Result<Arc<Engine>, String> {
    let (time, disks) = (Duration::from_secs(writes), disks_of(world, id));
    for disk in &disks {
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(time..=time)));
    }
    take_from(&disks, id, reads).await
}

/// The same with these disks.
async fn take_from(disks: &[Arc<FaultDisk>], id: u64, reads: u64) -> Result<Arc<Engine>, String> {
    let syncer = Box::pin(open_from(disks, id, reads)).await?;
    Engine::start(syncer, quiet()).await.map_err(|error| error.to_string())
}

/// Opens the pool on these disks as host `id`, which nobody knows of so far.
async fn open_from(disks: &[Arc<FaultDisk>], id: u64, reads: u64) -> Result<Syncer, String> {
    let found = import::scan(&Sources::disks(as_disks(disks))).await;
    let options = import::OpenOptions { force: true, hostid: id, ..import::OpenOptions::default() };
    let pool = import::open(&found.pools[0], &options).await.map_err(|error| error.to_string())?;
    tokio::time::sleep(Duration::from_secs(reads)).await;
    let how = open::OpenOptions { hostid: id, now: NOW, seed: id, ..going_on() };
    open::open(pool, how).await.map_err(|error| error.to_string())
}

/// All of them had waited for heartbeats, and none heard another that waited as well, or was reading the pool: all got it.
#[tokio::test(start_paused = true)]
async fn of_hosts_that_take_a_pool_at_the_same_moment_one_gets_it() {
    let (mut before, running) = beating(MIB, 69).await;
    before.cut(running).await;
    // The second begins so much later than the first, and reads for so long. 7 had the pool, and waits for nobody.
    for (first, second, later, reads) in [
        (8, 9, 1, 0),
        (8, 9, 3, 0),
        (8, 9, 7, 0),
        (8, 9, 1, 60),
        (8, 7, 22, 0),
        (8, 7, 30, 0),
        (8, 7, 40, 0),
        (8, 7, 50, 0),
    ] {
        let (world, case) = (before.fork(), format!("{first}, and {second} after {later} s for {reads} s"));
        let (one, other) = tokio::join!(take(&world, first, 3, 0), async {
            tokio::time::sleep(Duration::from_secs(later)).await;
            take(&world, second, 3, reads).await
        });
        let (taken, refused): (Vec<_>, Vec<_>) = [one, other].into_iter().partition(Result::is_ok);
        assert_eq!(taken.len(), 1, "{case}: {refused:?}");
        for engine in taken.into_iter().flatten() {
            engine.end(Ending::Export).await.unwrap();
        }
        world.verify(&case).await;
    }
}

/// Found by reading: a host that had looked already wrote over its claim, and its own devices were said to lose what they are given.
#[tokio::test(start_paused = true)]
async fn a_host_whose_claim_another_one_wrote_over_is_told_of_that_one() {
    let (mut world, running) = beating(MIB, 74).await;
    world.cut(running).await;
    let disks = disks_of(&world, 8);
    let syncer = Box::pin(open_from(&disks, 8, 0)).await.unwrap();
    // Of one disk it waits for the labels as long as it may, has looked at the other one by then, and then writes for long.
    let time = Duration::from_secs(6);
    disks[1].inject(Fault::new(On::Read, 0..MIB / 2, Effect::Delay(time..=time)));
    disks.iter().for_each(|disk| disk.inject(Fault::anywhere(On::Write, Effect::Delay(time..=time))));
    let (taken, ()) = tokio::join!(Engine::start(syncer, quiet()), async {
        while disks[1].counts().faults == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let refused = take(&world, 7, 0, 0).await.map(drop).unwrap_err();
        assert!(refused.contains("no device gives back the uberblock that claims it"), "{refused}");
        assert!(refused.contains("another host may be importing it at this moment"), "{refused}");
        disks.iter().for_each(|disk| disk.heal());
    });
    taken.unwrap().end(Ending::Export).await.unwrap();
    world.verify("taken by the other one").await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_starts_again_has_its_pool_within_seconds() {
    let (mut world, running) = beating(MIB, 70).await;
    world.cut(running).await;
    for _ in 0..2 {
        let start = tokio::time::Instant::now();
        let engine = take(&world, 7, 0, 0).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        engine.end(Ending::Close).await.unwrap();
    }
    world.verify("started twice").await;
}

/// Each attempt of a host whose devices refused its writes left a claim, which others took for a host that lives: as long as it
/// tried, nobody could take the pool over.
#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_commit_keeps_nobody_from_taking_its_pool() {
    let (mut world, running) = beating_on("raidz d0 d1 d2", MIB, 72).await;
    world.cut(running).await;
    let disks = disks_of(&world, 7);
    for disk in &disks[1..] {
        disk.inject(Fault::anywhere(On::Write, Effect::Error(ErrorKind::Other)));
    }
    let before = rank(&world).await;
    take_from(&disks, 7, 0).await.unwrap_err();
    assert_eq!(rank(&world).await, before, "nobody is there");
    let (taken, ()) = tokio::join!(take(&world, 8, 0, 0), async {
        for _ in 0..24 {
            take_from(&disks, 7, 0).await.unwrap_err();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    taken.unwrap().end(Ending::Export).await.unwrap();
    world.verify("taken over").await;
}

/// What hung was waited for as long as a heartbeat may take, and then twice that time for those who might hang there as well:
/// half a minute, at each start.
#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_no_heartbeats_is_not_waited_for_at_a_start() {
    let (mut world, running) = beating(MIB, 73).await;
    world.cut(running).await;
    let disks = disks_of(&world, 7);
    let (ring, time) = (Ring::for_ashift(12), Duration::from_secs(600));
    for start in Geometry::new(DISK).unwrap().labels() {
        let slot = start + Region::Uberblock { ring, slot: ring.slots() - 1 }.offset();
        let slot = slot..slot + ring.slot_bytes();
        disks[1].inject(Fault::new(On::Write, slot, Effect::Delay(time..=time)));
    }
    let start = tokio::time::Instant::now();
    let engine = take_from(&disks, 7, 0).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(disks[1].counts().faults > 0);
    engine.end(Ending::Close).await.unwrap();
    world.verify("started").await;
}

/// It had the pool for itself and stood still before its first group was durable: another one had time to import it.
#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_within_its_first_group_writes_nothing_more_of_it() {
    let (mut world, running) = beating(MIB, 71).await;
    world.cut(running).await;
    let before = rank(&world).await;
    // It tries for three seconds whether it can write, claims for three, waits for seventeen, and then writes.
    let (taken, ()) = tokio::join!(take(&world, 7, 3, 0), async {
        tokio::time::sleep(Duration::from_secs(24)).await;
        tokio::time::advance(TOO_LONG).await;
    });
    let error = taken.map(drop).unwrap_err();
    assert!(error.contains("another host may have imported the pool"), "{error}");
    tokio::time::sleep(MINUTE).await;
    assert_eq!(rank(&world).await.txg, before.txg, "nothing was committed");
}
