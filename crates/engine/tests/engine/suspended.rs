//! Pools that lose more devices than they can do without: everything acknowledged waits in memory, nobody hangs, reads go
//! on, and when the devices are back it is all there.

use std::{sync::Arc, time::Duration};

use block::{Asked, BlockVolume, Durability, VolumeError};
use disk::{Effect, Fault, On};
use engine::{
    devices::{SweepCommand, SweepKind, SweepState},
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine},
    events::Event,
    sync::Syncer,
    volume::LiveVolume,
};
use pool::vdev::State;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::support::{DISK, POOL, Running, World, content, data, quiet, start_caching};

const MINUTE: Duration = Duration::from_secs(60);
const BLOCK: usize = 8192;
const FUA: Durability = Durability::Stable(Asked::Fua);

/// A pool whose volume has a block of ones, durable.
async fn pool(layout: &str, seed: u64) -> (World, Running, Arc<LiveVolume>) {
    let (world, running) = World::create(layout, 12, DISK, seed).await;
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, BLOCK as u32, Properties::new()).await;
    write(&volume, 0, 1).await;
    running.engine.sync().await.unwrap();
    (world, running, volume)
}

async fn write(volume: &LiveVolume, block: u64, byte: u8) {
    volume.write(block * BLOCK as u64, data(vec![byte; BLOCK]), Durability::Cached).await.unwrap();
}

async fn set(engine: &Engine, name: &'static str, value: u64) {
    let properties = Properties::from([(name.to_owned(), Stored::Number(value))]);
    engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await })).await.unwrap();
}

fn vanish(running: &Running, disks: &[usize]) {
    disks.iter().for_each(|disk| running.disks[*disk].vanish());
}

fn return_all(running: &Running) {
    running.disks.iter().for_each(|disk| disk.come_back());
}

/// Suspends the pool with acknowledged writes in memory; what a flush says is told later.
async fn suspend(
    running: &Running,
    volume: &Arc<LiveVolume>,
    disks: &[usize],
) -> JoinHandle<Result<(), VolumeError>> {
    for block in 1..9 {
        write(volume, block, block as u8).await;
    }
    vanish(running, disks);
    let flush = tokio::spawn({
        let volume = Arc::clone(volume);
        async move { volume.flush().await }
    });
    // A log device may have taken what was flushed.
    assert!(timeout(MINUTE, running.engine.sync()).await.expect("no command hangs").is_err());
    flush
}

async fn expect_all(volume: &LiveVolume, what: &str) {
    let all = content(volume).await;
    for block in 0..9_usize {
        let byte = if block == 0 { 1 } else { block as u8 };
        assert!(all[block * BLOCK..(block + 1) * BLOCK].iter().all(|b| *b == byte), "{what}: block {block}");
    }
}

/// What is there after a power cut is what [`pool`] made durable.
async fn holds_the_last_commit(mut world: World, running: Running, what: &str) {
    world.cut(running).await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    let all = content(&*volume).await;
    assert!(all[..BLOCK].iter().all(|byte| *byte == 1), "the last commit");
    assert!(all[BLOCK..].iter().all(|byte| *byte == 0), "and nothing else");
    drop(volume);
    running.export().await;
    world.verify(what).await;
}

#[tokio::test(start_paused = true)]
async fn everything_acknowledged_is_there_when_the_devices_are_back_and_the_pool_is_cleared() {
    let layouts: [(&str, &[usize]); 5] = [
        ("d0", &[0]),
        ("mirror d0 d1", &[0, 1]),
        ("raidz d0 d1 d2 d3", &[0, 1]),
        ("raidz2 d0 d1 d2 d3 d4", &[0, 1, 2, 3, 4]),
        ("mirror d0 d1 mirror d2 d3", &[2, 3]),
    ];
    for (seed, (layout, disks)) in (1..).zip(layouts) {
        let (world, running, volume) = pool(layout, seed).await;
        let engine = Arc::clone(&running.engine);
        let flush = suspend(&running, &volume, disks).await;
        expect_all(&volume, layout).await;
        assert!(!flush.is_finished(), "{layout}: nothing is acknowledged as durable");
        tokio::time::sleep(10 * MINUTE).await;
        assert!(timeout(MINUTE, engine.clear(None)).await.unwrap().is_err(), "{layout}: nothing has changed");
        return_all(&running);
        let cleared = timeout(MINUTE, engine.clear(None)).await.expect("no command hangs");
        cleared.unwrap_or_else(|error| panic!("{layout}: {error}\n{:#?}", engine.view().tree()));
        timeout(MINUTE, flush).await.unwrap().unwrap().unwrap();
        assert!(engine.suspended().is_none());
        let told = engine.events().since(0);
        let is = |wanted: fn(&Event) -> bool| told.iter().filter(|record| wanted(&record.event)).count();
        assert_eq!(is(|event| matches!(event, Event::Suspended { .. })), 1, "{layout}: {told:#?}");
        assert_eq!(is(|event| matches!(event, Event::Resumed)), 1, "{layout}: {told:#?}");
        expect_all(&volume, layout).await;
        drop((volume, engine));
        running.export().await;
        world.verify(layout).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        expect_all(&volume, layout).await;
    }
}

/// "Up to 3605 seconds of writes are lost in a power cut" was said of a pool for good, since it had waited an hour for a disk.
#[tokio::test(start_paused = true)]
async fn the_time_in_which_a_pool_is_suspended_is_no_transaction_groups() {
    let (_world, running, volume) = pool("d0", 46).await;
    let flush = suspend(&running, &volume, &[0]).await;
    tokio::time::sleep(60 * MINUTE).await;
    return_all(&running);
    timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
    flush.await.unwrap().unwrap();
    let statistics = running.engine.statistics();
    assert!(statistics.syncing >= 60 * MINUTE && statistics.longest < MINUTE, "{statistics:?}");
    drop(volume);
    running.export().await;
}

/// A shelf that loses its power loses what its disks had only in their caches, although they had said it was written.
#[tokio::test(start_paused = true)]
async fn disks_that_lost_their_caches_are_given_everything_again() {
    for (layout, disks) in [("d0", 1), ("raidz d0 d1 d2", 3), ("mirror d0 d1", 2)] {
        let (world, running, volume) = pool(layout, 40).await;
        // The flushes fail, and with them goes what was written before.
        for disk in &running.disks {
            disk.inject(Fault::anywhere(On::Flush, Effect::Error(std::io::ErrorKind::Other)));
        }
        for block in 1..9 {
            write(&volume, block, block as u8).await;
        }
        let flush = tokio::spawn({
            let volume = Arc::clone(&volume);
            async move { volume.flush().await }
        });
        timeout(MINUTE, running.engine.suspension().suspended()).await.unwrap();
        for disk in 0..disks {
            running.disks[disk].power_cut(disk as u64).await.unwrap();
            running.disks[disk].heal();
        }
        return_all(&running);
        timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
        flush.await.unwrap().unwrap();
        drop(volume);
        running.export().await;
        world.verify(layout).await;
        let running = world.open().await;
        expect_all(&running.engine.volume(&format!("{POOL}/v")).await.unwrap(), layout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_command_hangs_and_each_says_what_becomes_of_it() {
    let (world, running, volume) = pool("mirror d0 d1", 7).await;
    let engine = Arc::clone(&running.engine);
    let snapshot = |name: &'static str| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            let names = vec![format!("{POOL}/v@{name}")];
            let take = engine.run_snapshot(move |cx| {
                Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
            });
            take.await.unwrap_err().to_string()
        })
    };
    for block in 1..9 {
        write(&volume, block, block as u8).await;
    }
    vanish(&running, &[0, 1]);
    let running_then = snapshot("run");
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let queued = snapshot("queued");
    let said = timeout(MINUTE, running_then).await.expect("no command hangs").unwrap();
    assert!(said.contains("suspended") && said.contains("carried out when the pool is cleared"), "{said}");
    let said = timeout(MINUTE, queued).await.expect("no command hangs").unwrap();
    assert!(said.contains("not carried out"), "{said}");
    let said = timeout(MINUTE, snapshot("late")).await.expect("no command hangs").unwrap();
    assert!(said.contains("suspended"), "{said}");
    assert!(timeout(MINUTE, engine.sync()).await.expect("no command hangs").is_err());
    timeout(MINUTE, engine.look()).await.expect("no command hangs");
    let refused = timeout(MINUTE, engine.end(Ending::Export)).await.expect("no command hangs").unwrap_err();
    assert!(refused.to_string().contains("suspended"), "{refused}");
    expect_all(&volume, "reads go on").await;

    return_all(&running);
    timeout(MINUTE, engine.clear(None)).await.unwrap().unwrap();
    engine.sync().await.unwrap();
    let told = engine.events().since(0);
    assert!(told.iter().any(|record| record.event == Event::CommandDone), "others hear of it: {told:#?}");
    let view = engine.view();
    let dsl = view.dsl().await.unwrap();
    assert!(dsl.lookup(&format!("{POOL}/v@run")).await.is_ok(), "it was carried out");
    assert!(dsl.lookup(&format!("{POOL}/v@queued")).await.is_err(), "it was not");
    drop((volume, engine));
    running.export().await;
    world.verify("cleared").await;
}

async fn defect(_: &mut Syncer) -> Result<(), dsl::OpError> {
    panic!("a defect of this test")
}

/// It was a line in the log: the pool stood as online, and whoever wrote, flushed or gave a command waited for ever.
#[tokio::test(start_paused = true)]
async fn a_pool_whose_syncing_task_panics_is_suspended_for_good_and_nobody_waits() {
    let (world, running, volume) = pool("mirror d0 d1", 71).await;
    let engine = Arc::clone(&running.engine);
    write(&volume, 1, 2).await;
    let command = || engine.run(|cx| Box::pin(defect(cx)));
    timeout(MINUTE, command()).await.expect("no command hangs").unwrap_err();
    let why = engine.suspended().expect("nothing is written any more").to_string();
    assert!(why.contains("a defect of Millpond") && why.contains("a defect of this test"), "{why}");
    let flush = timeout(MINUTE, volume.flush()).await.expect("it does not hang");
    assert!(matches!(flush, Err(VolumeError::NotReady(_))), "{flush:?}");
    let late = volume.write(0, data(vec![9; BLOCK]), Durability::Cached);
    assert!(timeout(MINUTE, late).await.expect("it does not hang").is_err());
    let refused = timeout(MINUTE, command()).await.expect("no command hangs").unwrap_err().to_string();
    assert!(refused.contains("a defect of this test"), "{refused}");
    assert!(timeout(MINUTE, engine.sync()).await.expect("no command hangs").is_err());
    let told = engine.events().since(0);
    let suspensions = told.iter().filter(|record| matches!(record.event, Event::Suspended { .. }));
    assert_eq!(suspensions.count(), 1, "{told:#?}");
    assert!(content(&*volume).await[..BLOCK].iter().all(|byte| *byte == 1), "reads go on");
    let left = timeout(MINUTE, engine.end(Ending::Close)).await.expect("it does not hang").unwrap_err();
    assert!(left.to_string().contains("a defect of this test"), "{left}");
    timeout(MINUTE, engine.abandon()).await.expect("it is let go");
    drop((volume, engine));
    holds_the_last_commit(world, running, "after a defect").await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_given_up_lets_everybody_and_its_devices_go() {
    let (world, running, volume) = pool("raidz d0 d1 d2", 8).await;
    let engine = Arc::clone(&running.engine);
    let flush = suspend(&running, &volume, &[0, 1]).await;
    timeout(MINUTE, engine.abandon()).await.expect("it is let go");
    assert!(matches!(timeout(MINUTE, flush).await.unwrap().unwrap(), Err(VolumeError::NotReady(_))));
    assert!(volume.write(0, data(vec![9; BLOCK]), Durability::Cached).await.is_err());
    assert!(engine.suspended().is_some());
    assert!(timeout(MINUTE, engine.clear(None)).await.unwrap().is_err());
    assert!(timeout(MINUTE, engine.end(Ending::Close)).await.unwrap().is_err());
    assert!(engine.view().tree().leaves().iter().all(|leaf| leaf.leaf.as_ref().unwrap().disk().is_none()));
    drop((volume, engine));
    holds_the_last_commit(world, running, "given up").await;
}

/// The second one took the pool for closed, and a daemon that was told to end during an export left without its last group.
#[tokio::test(start_paused = true)]
async fn an_end_that_is_asked_for_while_another_is_under_way_waits_for_it() {
    let (mut world, running, volume) = pool("mirror d0 d1", 8).await;
    let engine = Arc::clone(&running.engine);
    volume.write(0, data(vec![7; BLOCK]), Durability::Cached).await.unwrap();
    let slow = Duration::from_secs(1);
    for disk in &running.disks {
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
    }
    let ended = async |ending| {
        engine.end(ending).await.unwrap();
        Instant::now()
    };
    let begun = Instant::now();
    let (export, close) = tokio::join!(ended(Ending::Export), ended(Ending::Close));
    assert!(export >= begun + slow && close >= export, "{begun:?} {export:?} {close:?}");
    drop((volume, engine));
    world.cut(running).await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(content(&*volume).await[..BLOCK].iter().all(|byte| *byte == 7));
    drop(volume);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn writes_wait_or_fail_as_the_pool_says() {
    for failmode in [0, 1] {
        let (_world, running, volume) = pool("mirror d0 d1", 9).await;
        set(&running.engine, "failmode", failmode).await;
        let flush = suspend(&running, &volume, &[0, 1]).await;
        let late = volume.write(40 * BLOCK as u64, data(vec![4; BLOCK]), FUA);
        let late = timeout(MINUTE, late).await;
        match failmode {
            0 => assert!(late.is_err(), "it waits"),
            _ => assert!(matches!(late, Ok(Err(VolumeError::Failed(_)))), "{late:?}"),
        }
        expect_all(&volume, "reads go on").await;
        return_all(&running);
        timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
        flush.await.unwrap().unwrap();
        volume.write(41 * BLOCK as u64, data(vec![4; BLOCK]), FUA).await.unwrap();
        drop(volume);
        running.export().await;
    }
}

/// Bytes below an indirect block.
const BELOW: u64 = 1024 * BLOCK as u64;

/// A pool whose volume has a block below each of six indirect blocks, just opened: nothing of it was read yet.
async fn opened(seed: u64) -> (World, Running, Arc<LiveVolume>) {
    let (world, running) = World::create("mirror d0 d1", 12, DISK, seed).await;
    let volume = running.volume(&format!("{POOL}/v"), 6 * BELOW, BLOCK as u32, Properties::new()).await;
    for number in 0..6 {
        volume.write(number * BELOW, data(vec![1; BLOCK]), Durability::Cached).await.unwrap();
    }
    drop(volume);
    running.export().await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    (world, running, volume)
}

/// A volume that has not been written to since the import reads from the pool itself, which waits for nothing.
#[tokio::test(start_paused = true)]
async fn changes_wait_for_devices_that_are_away_for_a_moment_from_the_import_on() {
    let (world, running, volume) = opened(60).await;
    vanish(&running, &[0, 1]);
    let change = |discards: bool, at: u64| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            match discards {
                true => volume.unmap(at, BELOW, Durability::Cached).await,
                false => volume.write(at, data(vec![4; BLOCK]), Durability::Cached).await,
            }
        })
    };
    let (write, discard) = (change(false, 3 * BELOW), change(true, 4 * BELOW));
    tokio::time::sleep(Duration::from_millis(500)).await;
    return_all(&running);
    timeout(MINUTE, running.engine.clear(None)).await.expect("no command hangs").unwrap();
    for change in [write, discard] {
        timeout(MINUTE, change).await.expect("it does not hang").unwrap().expect("it waited");
    }
    running.engine.sync().await.unwrap();
    for (number, byte) in [1, 1, 1, 4, 0, 1].into_iter().enumerate() {
        let found = block::flatten(&volume.read(number as u64 * BELOW, BLOCK).await.unwrap());
        assert!(found.iter().all(|b| *b == byte), "{number}");
    }
    // Both sides are there again, and have everything.
    tokio::time::sleep(MINUTE).await;
    assert_eq!(running.engine.view().tree().state().0, State::Healthy);
    drop(volume);
    running.export().await;
    world.verify("away for a moment").await;
}

/// What a change needs of the tree, or of the block of which it is a part, is waited for only as long as changes are.
#[tokio::test(start_paused = true)]
async fn changes_that_fail_while_the_pool_is_suspended_do_not_wait_for_what_they_need() {
    let (world, running, volume) = opened(61).await;
    set(&running.engine, "failmode", 1).await;
    write(&volume, 0, 1).await;
    running.engine.sync().await.unwrap();
    let flush = suspend(&running, &volume, &[0, 1]).await;
    for (what, late) in [
        ("a block", volume.write(2 * BELOW, data(vec![4; BLOCK]), Durability::Cached)),
        ("a part of one", volume.write(3 * BELOW, data(vec![4; 512]), Durability::Cached)),
        ("a discard", volume.unmap(4 * BELOW, BELOW, Durability::Cached)),
    ] {
        let late = timeout(MINUTE, late).await;
        assert!(matches!(late, Ok(Err(VolumeError::Failed(_)))), "{what}: {late:?}");
    }
    return_all(&running);
    timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
    timeout(MINUTE, flush).await.unwrap().unwrap().unwrap();
    volume.write(2 * BELOW, data(vec![4; BLOCK]), FUA).await.unwrap();
    drop(volume);
    running.export().await;
    world.verify("failed for a while").await;
}

/// It was said to be running from then on, could not be begun again, and nobody carried it out.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_a_suspended_pool_refuses_is_none() {
    let (world, running, volume) = pool("mirror d0 d1 mirror d2 d3", 11).await;
    let engine = Arc::clone(&running.engine);
    let leaf = engine.view().tree().leaves()[0].guid;
    let (kind, start) = (SweepKind::Initialize, SweepCommand::Start { rate: None });
    let flush = suspend(&running, &volume, &[2, 3]).await;
    let refused = timeout(MINUTE, engine.sweep(kind, leaf, start)).await.expect("no command hangs");
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("suspended"), "{refused}");
    assert!(engine.sweep_status().is_empty(), "{:?}", engine.sweep_status());
    return_all(&running);
    timeout(MINUTE, engine.clear(None)).await.unwrap().unwrap();
    timeout(MINUTE, flush).await.unwrap().unwrap().unwrap();

    // One that was stopped before can still be gone on with.
    engine.sweep(kind, leaf, start).await.unwrap();
    engine.sweep(kind, leaf, SweepCommand::Suspend).await.unwrap();
    let flush = suspend(&running, &volume, &[2, 3]).await;
    timeout(MINUTE, engine.sweep(kind, leaf, start)).await.unwrap().unwrap_err();
    let states: Vec<SweepState> = engine.sweep_status().into_iter().map(|status| status.state).collect();
    assert_eq!(states, [SweepState::Suspended]);
    return_all(&running);
    timeout(MINUTE, engine.clear(None)).await.unwrap().unwrap();
    timeout(MINUTE, flush).await.unwrap().unwrap().unwrap();
    engine.sweep(kind, leaf, start).await.unwrap();
    drop((volume, engine));
    running.export().await;
    world.verify("swept").await;
}

/// A log that can be written to says nothing while the pool cannot.
#[tokio::test(start_paused = true)]
async fn the_intent_log_of_a_suspended_pool_acknowledges_nothing() {
    let (world, running, volume) = pool("mirror d0 d1 log d2", 10).await;
    for _ in 0..3 {
        volume.write(0, data(vec![1; BLOCK]), FUA).await.unwrap();
        running.engine.sync().await.unwrap();
    }
    let flush = suspend(&running, &volume, &[0, 1]).await;
    let fua = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move { volume.write(40 * BLOCK as u64, data(vec![4; BLOCK]), FUA).await }
    });
    tokio::time::sleep(MINUTE).await;
    assert!(!fua.is_finished());
    return_all(&running);
    timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
    timeout(MINUTE, fua).await.unwrap().unwrap().unwrap();
    drop(flush);
    drop(volume);
    running.export().await;
    world.verify("with a log").await;
}

/// A disk that hiccups is asked again, and nobody hears of it.
#[tokio::test(start_paused = true)]
async fn a_moment_of_refusal_suspends_nothing() {
    let (world, running, volume) = pool("d0", 11).await;
    for (on, times) in [(On::Write, 3), (On::Flush, 2)] {
        running.disks[0].inject(Fault::anywhere(on, Effect::Error(std::io::ErrorKind::Other)).times(times));
        write(&volume, 3, 3).await;
        timeout(MINUTE, running.engine.sync()).await.expect("it goes on").unwrap();
        running.disks[0].heal();
    }
    let told = running.engine.events().since(0);
    assert!(told.iter().all(|record| !matches!(record.event, Event::Suspended { .. })), "{told:#?}");
    assert_eq!(running.engine.view().tree().state().0, State::Healthy);
    drop(volume);
    running.export().await;
    world.verify("after a hiccup").await;
}

/// Refusals that do not end are no moment: the pool says that it is suspended, and does not try all the time.
#[tokio::test(start_paused = true)]
async fn a_disk_that_answers_and_refuses_suspends_the_pool_and_is_not_asked_all_the_time() {
    let (world, running, volume) = pool("d0", 12).await;
    running.disks[0].inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other)));
    write(&volume, 3, 3).await;
    let refused = timeout(MINUTE, running.engine.sync()).await.expect("no command hangs");
    assert!(refused.is_err());
    let before = running.disks[0].counts().writes;
    tokio::time::sleep(10 * MINUTE).await;
    let tries = running.disks[0].counts().writes - before;
    assert!(tries < 100, "{tries} writes");
    running.disks[0].heal();
    tokio::time::sleep(10 * MINUTE).await;
    assert!(running.engine.suspended().is_none(), "it found out by itself");
    drop(volume);
    running.export().await;
    world.verify("after refusals").await;
}

/// What the allocator has to look up before it can give out space is waited for like everything else.
#[tokio::test(start_paused = true)]
async fn space_maps_that_cannot_be_read_just_now_are_waited_for() {
    let layouts: [(&str, &[usize]); 3] =
        [("d0", &[0]), ("mirror d0 d1", &[0, 1]), ("raidz d0 d1 d2 d3", &[1, 2])];
    for (seed, (layout, away)) in (50..).zip(layouts) {
        let (world, running, volume) = pool(layout, seed).await;
        drop(volume);
        running.export().await;
        let disk = |media: &Arc<disk::MemDisk>| {
            Arc::new(disk::FaultDisk::with_write_cache(Arc::clone(media) as Arc<dyn disk::Disk>, seed))
        };
        let disks: Vec<_> = world.media.iter().map(disk).collect();
        let as_disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn disk::Disk>).collect();
        // Nothing that was read is kept.
        let engine = start_caching(as_disks, seed, quiet(), 0).await.unwrap();
        let running = Running { engine, disks };
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        let flush = suspend(&running, &volume, away).await;
        tokio::time::sleep(MINUTE).await;
        assert!(running.engine.suspended().is_some(), "{layout}");
        return_all(&running);
        timeout(MINUTE, running.engine.clear(None)).await.expect("no command hangs").unwrap();
        timeout(MINUTE, flush).await.unwrap().unwrap().unwrap();
        expect_all(&volume, layout).await;
        drop(volume);
        running.export().await;
        world.verify(layout).await;
    }
}
