//! The intent log as part of a running pool: what it makes durable, what it costs, and what is left of it.
//!
//! That nothing acknowledged is lost is shown in `cuts`; that others can read what we leave, in `crashed`.

use std::{sync::Arc, time::Duration};

use block::{Asked, BlockVolume, Durability};
use codec::checksum;
use disk::{Disk as _, Effect, Fault, On};
use engine::{
    dsl::{self, Properties, Stored},
    engine::Ending,
    volume::LiveVolume,
};
use ondisk::{Order, label::DATA_OFFSET};
use pool::dmu::{Cursor, Step};
use tokio::time::{sleep, timeout};

use crate::{
    files,
    support::{POOL, Running, World, content, data, plain},
};

const FUA: Durability = Durability::Stable(Asked::Fua);
const BLOCK: u32 = 8192;

/// Transaction groups so far.
fn groups(running: &Running) -> u64 {
    running.engine.statistics().txgs
}

async fn volume(running: &Running, name: &str) -> Arc<LiveVolume> {
    let volume = running.volume(&format!("{POOL}/{name}"), 4 << 20, BLOCK, Properties::new()).await;
    // The first demand begins the log, with a transaction group.
    volume.write(0, data(vec![1; 512]), FUA).await.unwrap();
    volume
}

async fn set(running: &Running, name: &str, property: &str, value: u64) {
    let (name, properties) =
        (format!("{POOL}/{name}"), Properties::from([(property.to_owned(), Stored::Number(value))]));
    running
        .engine
        .run(move |cx| Box::pin(async move { dsl::set(cx, &name, &properties).await }))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_is_durable_without_a_transaction_group_and_back_after_a_power_cut() {
    for layout in
        ["d0", "mirror d0 d1", "raidz1 d0 d1 d2", "raidz2 d0 d1 d2 d3", "d0 log d1", "d0 log mirror d1 d2"]
    {
        let (mut world, running) = World::create(layout, 12, 96 << 20, 5).await;
        let (one, two) = (volume(&running, "one").await, volume(&running, "two").await);
        let before = groups(&running);
        one.write(4096, data(vec![2; 20_000]), FUA).await.unwrap();
        one.write(1 << 20, data(vec![3; 300_000]), Durability::Cached).await.unwrap();
        one.unmap(1 << 20, 65_536, Durability::Cached).await.unwrap();
        one.flush().await.unwrap();
        two.write_zeroes(100, 50_000, true, FUA).await.unwrap();
        two.write(2 << 20, data(vec![4; 2 << 20]), FUA).await.unwrap();
        one.write(0, data(vec![9; 512]), Durability::Cached).await.unwrap();
        one.write(3 << 20, data(vec![5; 512]), FUA).await.unwrap();
        assert_eq!(groups(&running), before, "{layout}");
        let (mut first, second) = (content(&*one).await, content(&*two).await);
        let report = one.log_report();
        assert_eq!((report.fua, report.flush, report.commits, report.not_begun), (3, 1, 3, 1), "{report:?}");
        world.cut(running).await;
        world.verify(&format!("{layout} cut off")).await;
        let running = world.open().await;
        let (one, two) = (
            running.engine.volume(&format!("{POOL}/one")).await.unwrap(),
            running.engine.volume(&format!("{POOL}/two")).await.unwrap(),
        );
        // This was not asked for, and nothing asked for shares its block.
        first[..512].fill(1);
        assert!(content(&*one).await == first && content(&*two).await == second, "{layout}");
        running.export().await;
        world.verify(&format!("{layout} replayed")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_gives_back_what_it_took() {
    let (world, running) = World::create("d0 log d1", 12, 96 << 20, 6).await;
    let one = volume(&running, "one").await;
    running.engine.sync().await.unwrap();
    for round in 0..40_u64 {
        for write in 0..10 {
            let offset = (round * 10 + write) * 8192 % (4 << 20);
            one.write(offset, data(vec![round as u8; 8192]), FUA).await.unwrap();
        }
        running.engine.sync().await.unwrap();
        let log = running.engine.view().tree().tops.iter().find(|top| top.id == 1).cloned();
        assert!(log.is_some());
    }
    let report = one.log_report();
    assert!(report.commits > 390 && report.devices.iter().all(|(vdev, _)| *vdev == 1), "{report:?}");
    let expected = content(&*one).await;
    running.export().await;
    world.verify("after the export").await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    files::judge(dir.path());
    // Nothing is left to replay, and the header names nothing.
    let running = world.open().await;
    let one = running.engine.volume(&format!("{POOL}/one")).await.unwrap();
    assert!(content(&*one).await == expected);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn who_fails_the_log_fails_nobody() {
    for (device, effect) in [(1, On::Write), (1, On::Flush), (0, On::Flush)] {
        let (mut world, running) = World::create("d0 log d1", 12, 96 << 20, 7).await;
        let one = volume(&running, "one").await;
        one.write(8192, data(vec![2; 8192]), FUA).await.unwrap();
        if device == 1 {
            let gone = std::io::ErrorKind::BrokenPipe;
            running.disks[1].inject(Fault::anywhere(effect, Effect::Error(gone)));
        }
        for block in 2..20_u64 {
            one.write(block * 8192, data(vec![block as u8; 8192]), FUA).await.unwrap();
        }
        let report = one.log_report();
        assert_eq!(report.device_failed > 0, device == 1, "{report:?}");
        let begun_again = groups(&running);
        one.write(20 * 8192, data(vec![20; 8192]), FUA).await.unwrap();
        assert_eq!(groups(&running), begun_again, "the pool took the log's place");
        let expected = content(&*one).await;
        world.cut(running).await;
        let running = world.open().await;
        let one = running.engine.volume(&format!("{POOL}/one")).await.unwrap();
        assert!(content(&*one).await == expected);
        running.export().await;
        world.verify("at the end").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_sync_property_takes_effect_at_once() {
    let (mut world, running) = World::create("d0", 12, 96 << 20, 8).await;
    let one = volume(&running, "one").await;
    set(&running, "one", "sync", 2).await;
    one.write(8192, data(vec![2; 8192]), FUA).await.unwrap();
    one.flush().await.unwrap();
    let report = one.log_report();
    assert_eq!((report.ignored, report.commits), (2, 0), "{report:?}");
    // What was written while nothing was promised is part of the first promise after that.
    set(&running, "one", "sync", 0).await;
    one.write(16384, data(vec![3; 8192]), Durability::Cached).await.unwrap();
    set(&running, "one", "sync", 1).await;
    one.write(24576, data(vec![4; 8192]), Durability::Cached).await.unwrap();
    one.flush().await.unwrap();
    let report = one.log_report();
    assert_eq!((report.always, report.flush), (1, 2), "{report:?}");
    let expected = content(&*one).await;
    world.cut(running).await;
    let running = world.open().await;
    let one = running.engine.volume(&format!("{POOL}/one")).await.unwrap();
    assert!(content(&*one).await == expected);
    running.export().await;
}

/// When it began it had been told that it need not be durable.
#[tokio::test(start_paused = true)]
async fn what_was_begun_before_sync_became_always_is_durable_when_it_is_acknowledged() {
    let (mut world, running) = World::create("d0", 12, 96 << 20, 18).await;
    let name = format!("{POOL}/one");
    let one = running.volume(&name, 4 << 20, BLOCK, plain()).await;
    one.write(8192, data(vec![2; 8192]), Durability::Cached).await.unwrap();
    drop(one);
    running.export().await;
    // Nothing is in the cache.
    let running = world.open().await;
    let one = running.engine.volume(&name).await.unwrap();
    one.write(1 << 20, data(vec![1; 512]), FUA).await.unwrap();
    let slow = Duration::from_secs(1);
    running.disks[0].inject(Fault::anywhere(On::Read, Effect::Delay(slow..=slow)).times(1));
    let write = {
        let one = Arc::clone(&one);
        tokio::spawn(async move { one.write(8704, data(vec![3; 512]), Durability::Cached).await })
    };
    sleep(Duration::from_millis(10)).await;
    set(&running, "one", "sync", 1).await;
    assert!(!write.is_finished(), "it waits for the rest of its block");
    write.await.unwrap().unwrap();
    let expected = content(&*one).await;
    assert_eq!((expected[8703], expected[8704]), (2, 3));
    world.cut(running).await;
    let running = world.open().await;
    let one = running.engine.volume(&name).await.unwrap();
    assert!(content(&*one).await == expected);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn a_flush_with_nothing_to_flush_costs_nothing() {
    let (_world, running) = World::create("d0", 12, 96 << 20, 13).await;
    let one = running.volume(&format!("{POOL}/one"), 1 << 20, BLOCK, Properties::new()).await;
    running.engine.sync().await.unwrap();
    let before = groups(&running);
    one.flush().await.unwrap();
    assert_eq!((groups(&running), one.log_report().nothing), (before, 1));
    one.write(0, data(vec![1; 512]), Durability::Cached).await.unwrap();
    one.flush().await.unwrap();
    assert!(groups(&running) > before);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn commits_that_come_together_share_log_blocks() {
    let (_world, running) = World::create("d0 log d1", 12, 96 << 20, 9).await;
    let one = volume(&running, "one").await;
    running.disks[1].inject(Fault::anywhere(
        On::Write,
        Effect::Delay(Duration::from_millis(1)..=Duration::from_millis(1)),
    ));
    let writers = (0..32_u64).map(|stream| {
        let one = Arc::clone(&one);
        tokio::spawn(async move {
            for write in 0..20_u8 {
                one.write(stream * 8192, data(vec![write; 4096]), FUA).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let report = one.log_report();
    assert_eq!(report.commits, 640);
    assert!(report.rounds * 8 < report.commits, "{report:?}");
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn snapshots_rollbacks_clones_and_destroys_beside_a_log_lose_nothing_of_it() {
    let (mut world, running) = World::create("mirror d0 d1", 12, 96 << 20, 10).await;
    let one = volume(&running, "one").await;
    let name = format!("{POOL}/one");
    one.write(8192, data(vec![2; 8192]), FUA).await.unwrap();
    let names = vec![format!("{name}@a")];
    running
        .engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }))
        .await
        .unwrap();
    one.write(16384, data(vec![3; 8192]), FUA).await.unwrap();
    let (from, to) = (format!("{name}@a"), format!("{POOL}/clone"));
    running
        .engine
        .run(move |cx| Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await }))
        .await
        .unwrap();
    let clone = running.engine.volume(&format!("{POOL}/clone")).await.unwrap();
    clone.write(0, data(vec![7; 8192]), FUA).await.unwrap();
    clone.write(8192, data(vec![8; 512]), FUA).await.unwrap();
    let to = format!("{name}@a");
    // A rollback while a write is on its way: what is acknowledged behind it stays.
    running.engine.run(move |cx| Box::pin(async move { dsl::rollback(cx, &to).await })).await.unwrap();
    one.write(24576, data(vec![4; 8192]), FUA).await.unwrap();
    let two = volume(&running, "two").await;
    two.write(0, data(vec![5; 65536]), FUA).await.unwrap();
    let gone = format!("{POOL}/two");
    running.engine.run(move |cx| Box::pin(async move { dsl::destroy_head(cx, &gone).await })).await.unwrap();
    let (first, second) = (content(&*one).await, content(&*clone).await);
    assert_eq!((first[8192], first[16384], first[24576], second[0], second[8192]), (2, 0, 4, 7, 8));
    world.cut(running).await;
    world.verify("cut off").await;
    let running = world.open().await;
    let one = running.engine.volume(&name).await.unwrap();
    let clone = running.engine.volume(&format!("{POOL}/clone")).await.unwrap();
    assert!(content(&*one).await == first && content(&*clone).await == second);
    running.export().await;
    world.verify("at the end").await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    files::judge(dir.path());
}

/// Writing so much twice would take longer, which is a reason to wait for the group only for those who want all of it; and none
/// to take the log for broken.
#[tokio::test(start_paused = true)]
async fn more_than_the_log_takes_at_once_harms_neither_it_nor_those_who_want_little() {
    let (_world, running) = World::create("d0", 12, 512 << 20, 9).await;
    let one = running.volume(&format!("{POOL}/one"), 128 << 20, BLOCK, Properties::new()).await;
    one.write(0, data(vec![1; 512]), FUA).await.unwrap();
    let much = async || {
        for mib in 32..100_u64 {
            one.write(mib << 20, data(vec![mib as u8; 1 << 20]), Durability::Cached).await.unwrap();
        }
    };
    much().await;
    one.flush().await.unwrap();
    let before = groups(&running);
    one.write(8192, data(vec![2; 512]), FUA).await.unwrap();
    let report = one.log_report();
    assert_eq!(groups(&running), before, "{report:?}");
    assert_eq!((report.bursts, report.device_failed, report.commits), (1, 0, 1), "{report:?}");

    much().await;
    let slow = Duration::from_millis(100);
    running.disks[0].inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
    let before = groups(&running);
    let fua = async |block: u64| {
        one.write(block * u64::from(BLOCK), data(vec![3; 512]), FUA).await.unwrap();
        groups(&running)
    };
    // The first two are on their way when the others come, which share a round.
    let (_, _, flushed, after) = tokio::join!(fua(10), fua(20), one.flush(), fua(30));
    flushed.unwrap();
    let report = one.log_report();
    assert_eq!((after, report.bursts, report.device_failed), (before, 2, 0), "{report:?}");
    assert!(groups(&running) > before, "the flush had its group");
}

/// After a power cut the log block may be there and the data that it points to not, and nothing would tell.
#[tokio::test(start_paused = true)]
async fn blocks_without_checksums_are_not_written_ahead_of_the_record_that_points_to_them() {
    const LARGE: u64 = 64 << 10;
    for (checksum, indirect) in [(checksum::Algorithm::Fletcher4, 8 * LARGE), (checksum::Algorithm::Off, 0)] {
        let (_world, running) = World::create("d0", 12, 96 << 20, 11).await;
        let properties = Properties::from([("checksum".to_owned(), Stored::Number(checksum.id().into()))]);
        let one = running.volume(&format!("{POOL}/large"), 4 << 20, LARGE as u32, properties).await;
        one.write(0, data(vec![1; 512]), FUA).await.unwrap();
        one.write(LARGE, data((0..8 * LARGE).map(|n| (n % 251) as u8).collect()), FUA).await.unwrap();
        assert_eq!(one.log_report().indirect, indirect, "{checksum:?}");
        drop(one);
        running.export().await;
    }
}

#[tokio::test(start_paused = true)]
async fn large_blocks_go_to_their_places_once_and_the_log_points_there() {
    const LARGE: u64 = 64 << 10;
    for (layout, is_cut) in
        [("d0", false), ("d0", true), ("raidz1 d0 d1 d2", true), ("mirror d0 d1", true), ("d0 log d1", true)]
    {
        let (mut world, running) = World::create(layout, 12, 96 << 20, 11).await;
        let name = format!("{POOL}/large");
        let one = running.volume(&name, 4 << 20, LARGE as u32, Properties::new()).await;
        one.write(0, data(vec![1; 512]), FUA).await.unwrap();
        let noise = |seed: u64, len: u64| {
            let byte = move |i: u64| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            data((0..len).map(byte).collect())
        };
        one.write(LARGE, noise(1, 8 * LARGE), FUA).await.unwrap();
        let report = one.log_report();
        let expected = if layout.contains("log") { 0 } else { 8 * LARGE };
        assert_eq!(report.indirect, expected, "{layout}: {report:?}");
        // Changed again in the same group: wholly, partly, freed, with zeroes; logged again or not.
        one.write(2 * LARGE, noise(2, LARGE), FUA).await.unwrap();
        one.write(3 * LARGE, noise(3, LARGE), Durability::Cached).await.unwrap();
        one.write(4 * LARGE + 4096, noise(4, 4096), FUA).await.unwrap();
        one.unmap(5 * LARGE, LARGE, FUA).await.unwrap();
        one.write(6 * LARGE, data(vec![0; LARGE as usize]), FUA).await.unwrap();
        one.write(3 << 20, noise(5, 100), Durability::Cached).await.unwrap();
        one.flush().await.unwrap();
        let expected = content(&*one).await;
        if is_cut {
            world.cut(running).await;
            world.verify(&format!("{layout} cut off")).await;
        } else {
            running.engine.sync().await.unwrap();
            let on_disk = running.engine.view().open_volume(&name).await.unwrap();
            assert!(content(&*on_disk).await == expected, "what was written ahead is what is in the pool");
            running.export().await;
        }
        let running = world.open().await;
        let one = running.engine.volume(&name).await.unwrap();
        assert!(content(&*one).await == expected, "{layout}");
        running.export().await;
        world.verify(&format!("{layout} at the end")).await;
        let dir = tempfile::tempdir().unwrap();
        world.save(dir.path());
        files::judge(dir.path());
    }
}

/// The block was there, once, and its pointer named two places. Nobody noted that one of them had been refused, so nobody ever
/// wrote it.
#[tokio::test(start_paused = true)]
async fn a_large_block_of_which_a_copy_was_refused_is_logged_with_its_content() {
    const LARGE: u64 = 64 << 10;
    let (world, running) = World::create("d0 d1", 12, 96 << 20, 19).await;
    let name = format!("{POOL}/large");
    let properties = Properties::from([
        ("compression".to_owned(), Stored::Number(2)),
        ("copies".to_owned(), Stored::Number(2)),
    ]);
    let one = running.volume(&name, 4 << 20, LARGE as u32, properties).await;
    one.write(0, data(vec![1; 512]), FUA).await.unwrap();
    for _ in 0..3 {
        running.engine.sync().await.unwrap();
    }
    one.write(LARGE, data(vec![2; LARGE as usize]), FUA).await.unwrap();
    assert_eq!(one.log_report().indirect, LARGE, "both copies went to their places");
    // While one copy is on its way, the device that refused the other is looked at and used again.
    let slow = Duration::from_secs(1);
    running.disks[0].inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)).times(1));
    let refused = Effect::Error(std::io::ErrorKind::Other);
    let before = running.disks[1].counts().faults;
    running.disks[1].inject(Fault::anywhere(On::Write, refused).times(2));
    one.write(2 * LARGE, data(vec![3; LARGE as usize]), FUA).await.unwrap();
    assert_eq!(running.disks[1].counts().faults, before + 2, "it was asked for a copy, and once more");
    assert_eq!(one.log_report().indirect, LARGE, "not for one copy alone");
    let expected = content(&*one).await;
    running.engine.sync().await.unwrap();
    drop(one);
    running.export().await;
    world.verify("a copy was refused").await;
    let running = world.open().await;
    let one = running.engine.volume(&name).await.unwrap();
    assert!(content(&*one).await == expected);
    running.export().await;
}

#[tokio::test(start_paused = true)]
async fn the_log_takes_no_space_that_writers_were_promised() {
    // A pool so small that what is logged, and waits to be free again, does not fit in beside the data many times.
    let (world, running) = World::create("d0", 12, 192 << 20, 12).await;
    let one = running.volume(&format!("{POOL}/one"), 40 << 20, BLOCK, plain()).await;
    let mut random = 1_u64;
    for _ in 0..30_000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let block = (random >> 33) % (40 << 20) / u64::from(BLOCK);
        let bytes =
            (0..u64::from(BLOCK)).map(|i| ((i ^ random).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        one.write(block * u64::from(BLOCK), data(bytes), FUA).await.unwrap();
    }
    assert!(running.engine.suspended().is_none());
    let report = one.log_report();
    assert!(report.commits > 20_000, "{report:?}");
    running.export().await;
    world.verify("at the end").await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_between_a_commit_and_its_group_leaves_no_block_of_the_log_to_nobody() {
    for seed in 0..8 {
        let (mut world, running) = World::create("d0 log d1", 12, 96 << 20, 40 + seed).await;
        let one = volume(&running, "one").await;
        // What is logged takes long; labels, which say that a group is committed, do not.
        let late = Effect::Delay(Duration::from_secs(60)..=Duration::from_secs(61));
        running.disks[1].inject(Fault::new(On::Write, 4 << 20..95 << 20, late));
        let commit = {
            let one = Arc::clone(&one);
            tokio::spawn(async move { one.write(1 << 20, data(vec![7; 1 << 20]), FUA).await })
        };
        sleep(Duration::from_millis(100)).await;
        let synced = timeout(Duration::from_secs(30), running.engine.sync()).await;
        // The group has blocks that nothing leads to yet.
        assert!(synced.is_err() && !commit.is_finished(), "{synced:?}");
        world.cut(running).await;
        commit.abort();
        world.verify("cut off").await;
        let running = world.open().await;
        running.export().await;
        world.verify("at the end").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_device_that_missed_a_group_and_is_back_is_no_reason_to_refuse_the_pool() {
    let (mut world, running) = World::create("d0 log d1", 12, 96 << 20, 71).await;
    let one = volume(&running, "one").await;
    // The chain ends in a place that was taken in a group the device will have missed.
    one.write(1 << 20, data(vec![7; 20_000]), FUA).await.unwrap();
    running.disks[1].vanish();
    one.write(2 << 20, data(vec![8; 20_000]), Durability::Cached).await.unwrap();
    timeout(Duration::from_secs(600), running.engine.sync()).await.expect("a group").unwrap();
    let expected = content(&*one).await;
    running.disks[1].come_back();
    world.cut(running).await;
    let running = world.open().await;
    assert!(content(&*running.engine.volume(&format!("{POOL}/one")).await.unwrap()).await == expected);
    running.export().await;
    world.verify("at the end").await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_rounds_took_belongs_to_nobody_after_a_power_cut_either() {
    for seed in 0..4 {
        let (mut world, running) = World::create("d0 log d1", 12, 96 << 20, 60 + seed).await;
        let one = volume(&running, "one").await;
        let late = Effect::Delay(Duration::from_secs(20)..=Duration::from_secs(21));
        running.disks[1].inject(Fault::new(On::Write, 4 << 20..95 << 20, late));
        let refused = Effect::Error(std::io::ErrorKind::Other);
        running.disks[1].inject(Fault::anywhere(On::Flush, refused).times(2));
        let write = |offset: u64| {
            let one = Arc::clone(&one);
            tokio::spawn(async move { one.write(offset, data(vec![7; 1 << 20]), FUA).await })
        };
        // One round in a group that is being closed, and one in the next.
        let first = write(1 << 20);
        sleep(Duration::from_secs(1)).await;
        let engine = Arc::clone(&running.engine);
        let group = tokio::spawn(async move { engine.sync().await });
        sleep(Duration::from_secs(1)).await;
        let second = write(2 << 20);
        timeout(Duration::from_secs(600), group).await.expect("a group").unwrap().unwrap();
        let report = one.log_report();
        assert!(report.device_failed > 0, "{report:?}");
        world.cut(running).await;
        first.abort();
        second.abort();
        world.verify("cut off").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_is_left_while_commits_wait_for_space() {
    let (world, running) = World::create("d0", 12, 512 << 20, 17).await;
    let mut volumes = Vec::new();
    for name in ["one", "two"] {
        let volume = running.volume(&format!("{POOL}/{name}"), 64 << 20, BLOCK, Properties::new()).await;
        volume.write(0, data(vec![1; 512]), FUA).await.unwrap();
        volumes.push(volume);
    }
    let late = Effect::Delay(Duration::from_secs(5)..=Duration::from_secs(10));
    running.disks[0].inject(Fault::anywhere(On::Write, late));
    // While a group is being written nothing is set aside, and this is more than there is.
    let group = {
        let engine = Arc::clone(&running.engine);
        tokio::spawn(async move { engine.sync().await })
    };
    sleep(Duration::from_secs(1)).await;
    let writers: Vec<_> = (0..16_u64)
        .map(|number| {
            let volume = Arc::clone(&volumes[number as usize % 2]);
            tokio::spawn(async move {
                sleep(Duration::from_millis(number * 10)).await;
                // Refused once the pool is being left, or done: both are answers.
                drop(volume.write(number << 22, data(vec![7; 4 << 20]), FUA).await);
            })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    timeout(Duration::from_secs(3600), running.engine.end(Ending::Close)).await.expect("an end").unwrap();
    group.await.unwrap().unwrap();
    for writer in writers {
        timeout(Duration::from_secs(60), writer).await.expect("an answer").unwrap();
    }
    drop(running);
    world.verify("closed").await;
}

/// Nothing but log blocks is ever placed there, and who has no place for them commits with a transaction group.
#[tokio::test(start_paused = true)]
async fn a_log_device_whose_space_maps_are_lost_does_not_take_the_pool_with_it() {
    let (world, running) = World::create("d0 log d1", 12, 96 << 20, 5).await;
    let one = volume(&running, "one").await;
    for round in 0..40 {
        one.write(4096, data(vec![round; 20_000]), FUA).await.unwrap();
        running.engine.sync().await.unwrap();
    }
    drop(one);
    running.export().await;
    let pool = world.look().await.unwrap();
    let array = pool.tree().top(1).unwrap().top.as_ref().unwrap().metaslab_array;
    let array = pool.mos().object(array).await.unwrap().read_all(1 << 20).await.unwrap();
    let mut lost = 0;
    for number in Order::Little.words(&array).filter(|number| *number != 0) {
        let map = pool.mos().object(number).await.unwrap();
        let Step::Block(pointer) = map.seek(&mut Cursor::default(), 0, 0).await.unwrap() else { continue };
        for dva in pointer.dvas() {
            world.media[0].write(DATA_OFFSET + dva.offset, vec![7; 4096].into()).await.unwrap();
            lost += 1;
        }
    }
    assert!(lost > 0, "it has a map by now");
    drop(pool);
    let running = world.open().await;
    let one = running.engine.volume(&format!("{POOL}/one")).await.unwrap();
    for round in 3..9 {
        // The first demand begins the log, with a transaction group, which writes labels.
        let before = (round > 3).then(|| running.disks[1].counts().writes);
        one.write(8192, data(vec![round; 20_000]), FUA).await.unwrap();
        let after = running.disks[1].counts().writes;
        assert!(before.is_none_or(|before| before == after), "nobody knows what is free there");
        running.engine.sync().await.unwrap();
    }
    assert!(running.engine.suspended().is_none());
    let written = content(&*one).await;
    running.export().await;
    let running = world.open().await;
    let one = running.engine.volume(&format!("{POOL}/one")).await.unwrap();
    assert!(content(&*one).await == written);
    running.export().await;
}
