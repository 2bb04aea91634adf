//! Log devices leave a pool that is in use: clients write on, and what they were promised is kept.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use block::{Asked, BlockVolume, Durability};
use disk::{Disk, Effect, Fault, On};
use engine::{
    create::Removal,
    devices::{self, SweepCommand, SweepKind, SweepState},
    dsl::{self, Properties},
    volume::LiveVolume,
};
use ondisk::{label::DATA_OFFSET, zil::FLAG_REPLAY_NEEDED};
use pool::vdev::State;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    crashed::leave_log,
    files,
    support::{POOL, Running, World, content, data},
};

const FUA: Durability = Durability::Stable(Asked::Fua);

async fn remove(running: &Running, word: &str) -> Result<(), String> {
    let removal = Removal::find(&running.engine.view(), word).map_err(|error| error.to_string())?;
    removal.vacate(&running.engine).await.map_err(|error| error.to_string())?;
    let leaving = removal.clone();
    let done = running.engine.run(move |cx| Box::pin(async move { leaving.finish(cx).await })).await;
    done.map_err(|error| error.to_string())?;
    for disk in removal.disks(&running.engine.view().tree()) {
        engine::write::labels::clear(&disk).await.unwrap();
    }
    Ok(())
}

/// Stable writes, one after the other.
async fn write(volume: &LiveVolume, twin: &mut [u8], random: &mut StdRng, count: usize) {
    for _ in 0..count {
        let at = random.random_range(0..(1 << 20) / 4096) * 4096;
        let bytes = vec![random.random_range(1..=255); random.random_range(1..4) * 4096];
        let end = twin.len().min(at + bytes.len());
        let bytes = bytes[..end - at].to_vec();
        twin[at..end].copy_from_slice(&bytes);
        volume.write(at as u64, data(bytes), FUA).await.unwrap();
    }
}

/// An empty file system.
async fn filesystem(running: &Running, name: &str) {
    let name = name.to_owned();
    let create = running.engine.run(move |cx| {
        Box::pin(async move { dsl::create_filesystem(cx, &name, &Properties::new(), false).await })
    });
    create.await.unwrap();
}

fn logged_on(volume: &LiveVolume) -> Vec<u32> {
    volume.log_report().devices.iter().map(|(vdev, _)| *vdev).collect()
}

#[tokio::test(start_paused = true)]
async fn log_devices_leave_while_clients_write() {
    let mut random = StdRng::seed_from_u64(8);
    let (mut world, running) = World::create("mirror d0 d1 log d2 mirror d3 d4", 12, 96 << 20, 31).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    write(&volume, &mut twin, &mut random, 40).await;
    assert_eq!(logged_on(&volume), [1, 2]);

    let ((), gone) = tokio::join!(write(&volume, &mut twin, &mut random, 200), remove(&running, "d2"));
    gone.unwrap();
    let before = volume.log_report();
    write(&volume, &mut twin, &mut random, 40).await;
    let after = volume.log_report();
    let of = |report: &engine::zil::Report, vdev| {
        report.devices.iter().find(|(id, _)| *id == vdev).map_or(0, |(_, share)| share.blocks)
    };
    assert_eq!(of(&before, 1), of(&after, 1), "nothing goes there any more");
    assert!(of(&after, 2) > of(&before, 2) && of(&after, 0) == 0);
    assert!(remove(&running, "d2").await.is_err());
    world.cut(running).await;
    world.verify("without its first log device").await;

    let running = world.open().await;
    assert_eq!(running.engine.view().tree().tops.len(), 3);
    let volume = running.engine.volume(&name).await.unwrap();
    assert!(content(&*volume).await == twin);
    write(&volume, &mut twin, &mut random, 40).await;
    remove(&running, "mirror-2").await.unwrap();
    assert_eq!(running.engine.view().tree().tops.len(), 2, "the first left a hole, the last nothing");
    write(&volume, &mut twin, &mut random, 40).await;
    assert!(logged_on(&volume).contains(&0), "among the data again");
    world.cut(running).await;
    world.verify("without log devices").await;

    let running = world.open().await;
    let volume: Arc<LiveVolume> = running.engine.volume(&name).await.unwrap();
    assert!(content(&*volume).await == twin);
    running.export().await;
    world.verify("at the end").await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    for gone in ["d2", "d3", "d4"] {
        std::fs::remove_file(dir.path().join(format!("{gone}.img"))).unwrap();
    }
    files::judge(dir.path());
}

/// The second of two is refused, because what is left of the log is there. It was retired all the same, and logs went on among
/// the data until the pool was opened again.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_may_not_go_offline_is_used_as_before() {
    let mut random = StdRng::seed_from_u64(9);
    let (world, running) = World::create("d0 log mirror d1 d2", 12, 96 << 20, 33).await;
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    write(&volume, &mut twin, &mut random, 40).await;
    let side = |word| devices::find(&running.engine.view(), word).unwrap();
    // At once, or the log would leave before.
    let (one, other) =
        tokio::join!(running.engine.offline(side("d1"), false), running.engine.offline(side("d2"), false));
    one.unwrap();
    assert_eq!(other.unwrap_err().to_string(), "no valid replicas");
    write(&volume, &mut twin, &mut random, 40).await;
    assert_eq!(logged_on(&volume), [1], "none of it is among the data");
    assert!(content(&*volume).await == twin);
    drop(volume);
    running.export().await;
    drop(world);
}

/// Something came in the way after it was vacated (another device of those to be removed is in use). It got no more logs until
/// the pool was opened again.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_stays_after_all_is_used_as_before() {
    let mut random = StdRng::seed_from_u64(10);
    let (world, running) = World::create("d0 log d1", 12, 96 << 20, 34).await;
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    write(&volume, &mut twin, &mut random, 40).await;
    let on_device = || {
        let report = volume.log_report();
        report.devices.iter().find(|(vdev, _)| *vdev == 1).map_or(0, |(_, share)| share.blocks)
    };
    let removal = Removal::find(&running.engine.view(), "d1").unwrap();
    removal.vacate(&running.engine).await.unwrap();
    let before = on_device();
    for _ in 0..3 {
        write(&volume, &mut twin, &mut random, 40).await;
        running.engine.sync().await.unwrap();
    }
    assert!(before > 0);
    assert_eq!(on_device(), before, "somebody wants it to leave");
    drop(removal);
    for _ in 0..3 {
        write(&volume, &mut twin, &mut random, 40).await;
        running.engine.sync().await.unwrap();
    }
    assert!(on_device() > before, "nobody wants that any more");
    assert!(content(&*volume).await == twin);
    drop(volume);
    running.export().await;
    world.verify("with its log device").await;
}

/// What a sweep was working on counted as in use by logs that wait to be replayed, and as soon as it was given back the next
/// was lent.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_is_swept_goes_offline_and_leaves() {
    let mut random = StdRng::seed_from_u64(11);
    let (world, running) = World::create("d0 log d1", 12, 96 << 20, 35).await;
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    write(&volume, &mut twin, &mut random, 40).await;
    let leaf = devices::find(&running.engine.view(), "d1").unwrap();
    let second = Duration::from_secs(1);
    running.disks[1].inject(Fault::new(On::Write, DATA_OFFSET..95 << 20, Effect::Delay(second..=second)));
    let start = SweepCommand::Start { rate: None };
    running.engine.sweep(SweepKind::Initialize, leaf, start).await.unwrap();
    tokio::time::sleep(3 * second).await;
    running.engine.offline(leaf, false).await.unwrap();
    let before = running.engine.sweep_status();
    running.engine.online(leaf, None, false).await.unwrap();
    tokio::time::sleep(30 * second).await;
    let after = running.engine.sweep_status();
    assert!(after[0].state == SweepState::Active && after[0].done > before[0].done, "{before:?}, {after:?}");
    remove(&running, &leaf.to_string()).await.unwrap();
    write(&volume, &mut twin, &mut random, 40).await;
    assert_eq!(running.engine.view().tree().tops.len(), 1);
    assert!(content(&*volume).await == twin);
    drop(volume);
    running.export().await;
    world.verify("without its log device").await;
}

/// Found by reading: a log device that had failed when the pool was opened gave no places until the pool was opened once more,
/// although it was shown as healthy as soon as its errors were cleared; and a sweep of it never ended.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_had_failed_when_the_pool_was_opened_is_used_once_it_is_cleared() {
    let mut random = StdRng::seed_from_u64(12);
    let (world, running) = World::create("d0 log d1", 12, 96 << 20, 36).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    let leaf = devices::find(&running.engine.view(), "d1").unwrap();
    let state = |running: &Running| {
        let tree = running.engine.view().tree();
        let log = tree.leaves().into_iter().find(|vdev| vdev.guid == leaf).expect("a log device");
        log.state().0
    };
    // It takes its labels, and nothing else.
    let refuse = Effect::Error(ErrorKind::Other);
    running.disks[1].inject(Fault::new(On::Write, DATA_OFFSET..95 << 20, refuse));
    for _ in 0..60 {
        write(&volume, &mut twin, &mut random, 4).await;
        running.engine.sync().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(state(&running), State::Faulted);
    drop(volume);
    running.export().await;

    let running = world.open().await;
    assert_eq!(state(&running), State::Faulted, "as it was left");
    let volume = running.engine.volume(&name).await.unwrap();
    write(&volume, &mut twin, &mut random, 40).await;
    assert_eq!(logged_on(&volume), [0], "among the data");
    running.engine.clear(None).await.unwrap();
    for _ in 0..3 {
        write(&volume, &mut twin, &mut random, 4).await;
        running.engine.sync().await.unwrap();
    }
    assert_eq!(state(&running), State::Healthy);
    write(&volume, &mut twin, &mut random, 40).await;
    assert!(logged_on(&volume).contains(&1), "it is used again");
    let start = SweepCommand::Start { rate: None };
    running.engine.sweep(SweepKind::Initialize, leaf, start).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = running.engine.sweep_status();
    assert_eq!(status[0].state, SweepState::Complete, "{status:?}");
    assert!(content(&*volume).await == twin);
    drop(volume);
    running.export().await;
    world.verify("with its log device").await;
}

/// Found by reading: it took log blocks before the group that brings it back was committed. After a power cut whoever opened the
/// pool took it that nothing on it is needed, and what had been acknowledged was gone.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_comes_back_takes_no_blocks_before_that_is_committed() {
    let mut random = StdRng::seed_from_u64(13);
    let (mut world, running) = World::create("d0 log d1", 12, 96 << 20, 37).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 1 << 20, 4096, Properties::new()).await;
    let mut twin = vec![0; 1 << 20];
    let blocks_on = |volume: &LiveVolume, top: u32| {
        let report = volume.log_report();
        report.devices.iter().find(|(vdev, _)| *vdev == top).map_or(0, |(_, share)| share.blocks)
    };
    let leaf = devices::find(&running.engine.view(), "d1").unwrap();
    running.engine.offline(leaf, false).await.unwrap();
    for _ in 0..3 {
        write(&volume, &mut twin, &mut random, 4).await;
        running.engine.sync().await.unwrap();
    }
    let late = Duration::from_secs(5);
    running.disks[0].inject(Fault::anywhere(On::Flush, Effect::Delay(late..=late)).times(1));
    let onlining = tokio::spawn({
        let engine = Arc::clone(&running.engine);
        async move { engine.online(leaf, None, false).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = (blocks_on(&volume, 0), blocks_on(&volume, 1));
    write(&volume, &mut twin, &mut random, 8).await;
    assert!(!onlining.is_finished(), "its group is not committed");
    assert!(blocks_on(&volume, 0) > before.0, "among the data");
    assert_eq!(blocks_on(&volume, 1), before.1, "nothing goes there yet");
    onlining.abort();
    drop(volume);
    world.cut(running).await;

    let running = world.open().await;
    let volume = running.engine.volume(&name).await.unwrap();
    assert!(content(&*volume).await == twin, "what was acknowledged is there");
    running.engine.online(leaf, None, false).await.unwrap();
    for _ in 0..3 {
        write(&volume, &mut twin, &mut random, 4).await;
        running.engine.sync().await.unwrap();
    }
    assert!(logged_on(&volume).contains(&1), "it is used again");
    drop(volume);
    running.export().await;
    world.verify("with its log device").await;
}

/// It could never leave: the block that OpenZFS leaves allocated for each file system was called a log that waits.
#[tokio::test(start_paused = true)]
async fn a_log_device_leaves_that_a_file_system_names_with_nothing_in_it() {
    let (world, running) = World::create("mirror d0 d1 log d2", 12, 96 << 20, 38).await;
    let name = format!("{POOL}/nfs");
    filesystem(&running, &name).await;
    leave_log(&running, &name, FLAG_REPLAY_NEEDED).await;
    let refused = remove(&running, "d2").await.unwrap_err();
    assert!(refused.contains(&format!("the intent log of '{name}'")), "{refused}");
    running.export().await;

    let running = world.open().await;
    let destroy = running.engine.run({
        let name = name.clone();
        move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await })
    });
    destroy.await.unwrap();
    filesystem(&running, &name).await;
    leave_log(&running, &name, 0).await;
    running.export().await;

    let running = world.open().await;
    let log = running.engine.view().tree().tops[1].guid.to_string();
    remove(&running, &log).await.unwrap();
    running.export().await;
    world.verify("without its log device").await;
}

/// No log was known as soon as one dataset could not be read, whatever it had: each device stayed, and nobody was named.
#[tokio::test(start_paused = true)]
async fn a_dataset_that_cannot_be_read_keeps_no_log_device_but_its_own() {
    let (idle, damaged) = (format!("{POOL}/nfs"), format!("{POOL}/old"));
    for is_logged in [false, true] {
        let (world, running) = World::create("mirror d0 d1 log d2", 12, 96 << 20, 39).await;
        filesystem(&running, &idle).await;
        leave_log(&running, &idle, 0).await;
        filesystem(&running, &damaged).await;
        if is_logged {
            leave_log(&running, &damaged, 0).await;
        }
        running.export().await;
        let pool = world.look().await.unwrap();
        let set = pool.dsl().await.unwrap().lookup(&damaged).await.unwrap().objset().await.unwrap();
        for dva in set.pointer().dvas() {
            for side in &world.media[..2] {
                let noise = vec![0xa5; set.pointer().psize() as usize];
                side.write(DATA_OFFSET + dva.offset, noise.into()).await.unwrap();
            }
        }
        drop(pool);

        let running = world.open().await;
        let log = running.engine.view().tree().tops[1].guid.to_string();
        let removed = remove(&running, &log).await;
        match is_logged {
            false => removed.unwrap(),
            true => {
                let refused = removed.unwrap_err();
                assert!(refused.contains("4096 bytes"), "what is idle was ended: {refused}");
                assert!(
                    refused.contains(&format!("perhaps of '{damaged}', which cannot be read")),
                    "{refused}"
                );
            }
        }
        running.export().await;
    }
}
