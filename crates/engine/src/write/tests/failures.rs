//! Leaves that refuse writes: the group goes on while every block is whole somewhere, and says who failed. Nobody watches
//! in these tests, so what is in the way is an error at once.

use std::{
    io::ErrorKind,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use disk::{Effect, Fault, On};
use pool::Bookmark;

use super::bench::*;
use crate::{
    EngineError,
    policy::BlockPolicy,
    write::{BlockWriter, Job},
};

fn refuse() -> Fault {
    Fault::anywhere(On::Write, Effect::Error(ErrorKind::Other))
}

fn jobs(count: u64) -> Vec<Job> {
    (0..count).map(|n| job(noise(32 << 10, n), if n % 2 == 0 { off() } else { metadata() })).collect()
}

#[tokio::test]
async fn one_refusal_is_forgiven() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    bench.faults[0].inject(refuse().times(1));
    let mut writer = bench.writer();
    let pointers = writer.write(jobs(8)).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(writer.failed_leaves(), []);
    let io = bench.io(&[], 0);
    for (bp, job) in pointers.iter().zip(jobs(8)) {
        assert!(read(&io, bp).await == job.content);
    }
}

#[tokio::test]
async fn a_mirror_goes_on_with_the_side_that_works() {
    let bench = Bench::new(&[mirror(2)], 12);
    bench.faults[1].inject(refuse().after(1));
    let io = bench.io(&[], 0);
    let mut writer = bench.writer_over(io.clone(), 0);
    let pointers = writer.write(jobs(80)).await.unwrap();
    writer.finish().await.unwrap();

    let failed = writer.failed_leaves();
    assert_eq!((failed.len(), failed[0].guid, &failed[0].name[..]), (1, 101, "disk-1"));
    assert!(failed[0].reason.starts_with("write failed"), "{failed:?}");
    let tree = io.tree();
    let leaves = tree.leaves();
    assert!(leaves[1].counters.get().write >= 1);
    assert_eq!(leaves[0].counters.get(), Default::default());
    let missed = |txg| leaves[1].leaf.as_ref().unwrap().missed.contains(txg);
    assert!(missed(TXG), "readers know that it lacks this group");

    let before = bench.tallies[1].writes.load(Relaxed);
    bench.faults[1].heal();
    writer.begin(TXG + 1);
    let later = writer.write(jobs(8)).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(bench.tallies[1].writes.load(Relaxed), before, "it is left alone");
    assert!(missed(TXG + 1));
    for (bp, job) in pointers.iter().zip(jobs(80)).chain(later.iter().zip(jobs(8))) {
        assert!(read(&io, bp).await == job.content);
        assert!(read(&bench.io(&[1], 0), bp).await == job.content);
    }
    assert_eq!(leaves[1].counters.get().checksum, 0, "nobody was sent there");
}

#[tokio::test]
async fn without_any_side_the_group_fails_and_names_them() {
    let bench = Bench::new(&[mirror(2)], 12);
    bench.faults[0].inject(refuse());
    bench.faults[1].vanish();
    let mut writer = bench.writer();
    writer.write(jobs(8)).await.unwrap();
    let error = writer.finish().await.unwrap_err();
    let EngineError::Device(text) = &error else { panic!("{error}") };
    assert!(text.contains("mirror-0") && text.contains("disk-0") && text.contains("disk-1"), "{text}");
    assert!(text.contains("write failed"), "{text}");
}

#[tokio::test]
async fn raidz_goes_on_with_as_many_failures_as_it_has_parity() {
    for parity in 1..=3 {
        for failing in 1..=parity + 1 {
            let bench = Bench::new(&[raidz(parity as u64, 5)], 12);
            for (n, fault) in bench.faults.iter().take(failing).enumerate() {
                fault.inject(refuse().after(n as u64));
            }
            let mut writer = bench.writer();
            let pointers = writer.write(jobs(200)).await.unwrap();
            let outcome = writer.finish().await;
            assert_eq!(outcome.is_ok(), failing <= parity, "raidz{parity}, {failing} failing: {outcome:?}");
            assert_eq!(writer.failed_leaves().len(), failing);
            if outcome.is_ok() {
                let io = bench.io(&(0..failing).collect::<Vec<_>>(), 0);
                for (bp, job) in pointers.iter().zip(jobs(200)) {
                    assert!(read(&io, bp).await == job.content);
                }
            }
        }
    }
}

#[tokio::test]
async fn leaves_that_were_missing_from_the_start_count_too() {
    let bench = Bench::new(&[raidz(2, 5)], 12);
    let mut writer = bench.writer_over(bench.io(&[0, 3], 0), 0);
    let pointers = writer.write(jobs(20)).await.unwrap();
    writer.finish().await.unwrap();
    let failed: Vec<u64> = writer.failed_leaves().iter().map(|leaf| leaf.guid).collect();
    assert_eq!(failed, [100, 103]);
    assert_eq!(bench.tallies[0].writes.load(Relaxed), 0);
    let io = bench.io(&[0, 3], 0);
    for (bp, job) in pointers.iter().zip(jobs(20)) {
        assert!(read(&io, bp).await == job.content);
    }
    bench.faults[1].inject(refuse());
    writer.begin(TXG + 1);
    writer.write(jobs(20)).await.unwrap();
    let error = writer.finish().await.unwrap_err().to_string();
    assert!(error.contains("disk-0 (cannot open)") && error.contains("disk-1 (write failed"), "{error}");
}

#[tokio::test]
async fn a_flush_that_fails_is_not_tried_again() {
    let broken = || Fault::anywhere(On::Flush, Effect::Error(ErrorKind::Other)).times(1);
    let bench = Bench::new(&[mirror(2)], 12);
    bench.faults[0].inject(broken());
    let mut writer = bench.writer();
    writer.write(jobs(4)).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(bench.tallies[0].flushes.load(Relaxed), 1);
    assert!(writer.failed_leaves()[0].reason.starts_with("flush failed"));

    let bench = Bench::new(&[Shape::Leaf], 12);
    bench.faults[0].inject(broken());
    let mut writer = bench.writer();
    writer.write(jobs(4)).await.unwrap();
    assert!(matches!(writer.finish().await, Err(EngineError::Device(_))));
    writer.begin(TXG + 1);
    writer.write(jobs(1)).await.unwrap();
    assert!(matches!(writer.finish().await, Err(EngineError::Device(_))), "nothing is known of it any more");
}

#[tokio::test]
async fn a_device_may_fail_whole_if_every_block_has_a_copy_elsewhere() {
    let bench = Bench::new(&[Shape::Leaf, Shape::Leaf], 12);
    bench.faults[0].inject(refuse());
    let mut writer = bench.writer();
    let twice = BlockPolicy { copies: 2, ..off() };
    let pointers = writer.write((0..40).map(|n| job(noise(8192, n), twice)).collect()).await.unwrap();
    writer.finish().await.unwrap();
    let io = bench.io(&[0], 0);
    for (n, bp) in pointers.iter().enumerate() {
        assert!(read(&io, bp).await == noise(8192, n as u64));
    }
    // One block with a single copy there, among many with two.
    writer.begin(TXG + 1);
    writer.write(vec![job(noise(8192, 1), twice), job(noise(8192, 2), off())]).await.unwrap();
    assert!(matches!(writer.finish().await, Err(EngineError::Device(_))));
}

/// Found by reading: a device that refused writes for a second in the middle of a large transaction group was done without,
/// as all that had been written there until then had copies. What it lacked was forgotten, so that blocks written later,
/// whose only copies were to be there, could never be: the pool stayed suspended with all its devices there.
#[tokio::test(start_paused = true)]
async fn a_device_that_refuses_in_the_middle_of_a_group_is_waited_for_as_more_may_be_written_there() {
    let bench = Bench::new(&[Shape::Leaf, Shape::Leaf], 12);
    let mut writer = bench.writer();
    writer.devices.leaves.history_max = 1 << 20;
    let (suspension, targets) = (writer.suspension(), writer.targets());
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    // Who watches devices finds that it answers.
    let watch = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            targets.trust(100);
            suspension.kick();
        }
    });
    bench.faults[0].inject(refuse());
    let refusing = Arc::clone(&bench.faults[0]);
    let works_again = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        refusing.heal();
    });
    let minute = Duration::from_secs(60);
    let twice = BlockPolicy { copies: 2, ..off() };
    let copied = writer.write((0..40).map(|n| job(noise(32 << 10, n), twice)).collect());
    let copied = tokio::time::timeout(minute, copied).await.expect("it takes writes again").unwrap();
    let alone = writer.write((40..80).map(|n| job(noise(32 << 10, n), off())).collect());
    let alone = tokio::time::timeout(minute, alone).await.expect("it takes writes").unwrap();
    tokio::time::timeout(minute, writer.finish()).await.expect("nothing is in the way").unwrap();
    works_again.await.unwrap();
    watch.abort();
    assert_eq!(writer.failed_leaves(), []);
    for without in [&[][..], &[1]] {
        let io = bench.io(without, 0);
        for (n, bp) in (0..).zip(copied.iter().chain(&alone)) {
            assert!(read(&io, bp).await == noise(32 << 10, n), "block {n} without {without:?}");
        }
    }
}

#[tokio::test]
async fn a_new_tree_knows_the_leaves_of_the_old_one() {
    let bench = Bench::new(&[mirror(2)], 12);
    bench.faults[1].inject(refuse());
    let mut writer = bench.writer();
    writer.write(jobs(2)).await.unwrap();
    writer.finish().await.unwrap();
    bench.faults[1].heal();
    follow(&mut writer, &bench.io(&[], 0));
    assert_eq!(writer.failed_leaves().len(), 1);
    let before = bench.tallies[1].writes.load(Relaxed);
    writer.begin(TXG + 1);
    writer.write(jobs(2)).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(bench.tallies[1].writes.load(Relaxed), before);
}

#[tokio::test]
async fn a_leaf_that_was_away_is_written_when_a_new_tree_has_it_but_not_trusted_with_that_group() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = bench.writer_over(bench.io(&[1], 0), 0);
    writer.write(jobs(2)).await.unwrap();
    follow(&mut writer, &bench.io(&[], 0));
    let pointers = writer.write(jobs(4)).await.unwrap();
    writer.finish().await.unwrap();
    let io = bench.io(&[0], 0);
    for (bp, job) in pointers.iter().zip(jobs(4)) {
        assert!(read(&io, bp).await == job.content);
    }
    bench.faults[0].inject(refuse());
    writer.begin(TXG + 1);
    writer.write(jobs(2)).await.unwrap();
    writer.finish().await.expect("the side that came back has all of this one");

    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = bench.writer_over(bench.io(&[1], 0), 0);
    let first = writer.write(jobs(2)).await.unwrap();
    follow(&mut writer, &bench.io(&[], 0));
    bench.faults[0].inject(refuse());
    let later = writer.write(jobs(2)).await.unwrap();
    writer.finish().await.expect("the side that is back was given what it lacked");
    let io = bench.io(&[0], 0);
    for (bp, job) in first.iter().zip(jobs(2)).chain(later.iter().zip(jobs(2))) {
        assert!(read(&io, bp).await == job.content);
    }
}

/// A leaf is away for a moment, while log blocks of the next group are written that it may do without.
async fn miss_log_blocks(bench: &Bench, writer: &mut BlockWriter<Space>, leaf: usize) {
    let direct = writer.direct();
    bench.faults[leaf].inject(refuse());
    for n in 0..6 {
        let dva = writer.alloc.set_aside(0, 4096);
        direct.write(dva, noise(4096, n), TXG + 1, true).await.unwrap();
    }
    bench.faults[leaf].heal();
    writer.targets().trust(100 + leaf as u64);
}

/// Found by drives that were pulled from under a client who flushes: the pool stayed suspended though all were back.
#[tokio::test]
async fn leaves_that_lack_different_log_blocks_of_a_group_take_the_group_itself() {
    let bench = Bench::new(&[raidz(2, 6)], 12);
    let io = bench.io(&[], 0);
    let mut writer = bench.writer_over(io.clone(), 0);
    writer.finish().await.unwrap();
    let tree = io.tree();
    let leaves = tree.leaves();
    let missed = |leaf: usize| leaves[leaf].leaf.as_ref().unwrap().missed.contains(TXG + 1);
    for leaf in 0..4 {
        miss_log_blocks(&bench, &mut writer, leaf).await;
    }
    assert!((0..4).all(missed), "more than there is parity for");
    writer.begin(TXG + 1);
    let pointers = writer.write(jobs(8)).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(writer.failed_leaves(), []);
    assert!((0..4).all(missed), "the log blocks are still to be made up for");
    for (bp, job) in pointers.iter().zip(jobs(8)) {
        for without in [[0, 1], [2, 3], [4, 5]] {
            assert!(read(&bench.io(&without, 0), bp).await == job.content);
        }
    }
}

/// A spare stands in for a third drive, or one comes back: the tree is another one, and the drives are those that they were.
#[tokio::test]
async fn leaves_that_lack_different_log_blocks_of_a_group_take_it_also_if_the_tree_changes_in_it() {
    for shape in [mirror(2), raidz(1, 3)] {
        let bench = Bench::new(&[shape], 12);
        let mut writer = bench.writer();
        writer.finish().await.unwrap();
        for leaf in 0..2 {
            miss_log_blocks(&bench, &mut writer, leaf).await;
        }
        writer.begin(TXG + 1);
        writer.devices_changed();
        let pointers = writer.write(jobs(8)).await.unwrap();
        writer.finish().await.unwrap();
        assert_eq!(writer.failed_leaves(), []);
        for (bp, job) in pointers.iter().zip(jobs(8)) {
            for without in [[0], [1]] {
                assert!(read(&bench.io(&without, 0), bp).await == job.content);
            }
        }
    }
}

/// It had no history from there on, and so could not be given what it lacked: the pool stayed suspended though it was back.
#[tokio::test(start_paused = true)]
async fn a_leaf_that_is_away_while_the_tree_changes_is_given_what_is_written_after_that() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = bench.writer();
    writer.finish().await.unwrap();
    let (suspension, targets) = (writer.suspension(), writer.targets());
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    bench.faults[0].inject(refuse());
    let dva = writer.alloc.set_aside(0, 4096);
    writer.direct().write(dva, noise(4096, 0), TXG + 1, true).await.unwrap();
    writer.begin(TXG + 1);
    writer.devices_changed();
    bench.faults[1].inject(refuse());
    let pointers = writer.write(jobs(8)).await.unwrap();
    let first = Arc::clone(&bench.faults[0]);
    let comes_back = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        first.heal();
        targets.trust(100);
        suspension.kick();
    });
    let minute = Duration::from_secs(60);
    tokio::time::timeout(minute, writer.finish()).await.expect("one side is back").unwrap();
    comes_back.await.unwrap();
    let failed: Vec<u64> = writer.failed_leaves().iter().map(|leaf| leaf.guid).collect();
    assert_eq!(failed, [101]);
    for (bp, job) in pointers.iter().zip(jobs(8)) {
        assert!(read(&bench.io(&[1], 0), bp).await == job.content);
    }
}

/// With `failmode=continue` other reads are answered, and the pool is not suspended for one that cannot be.
#[tokio::test(start_paused = true)]
async fn clients_wait_for_what_is_on_devices_that_are_away_or_are_told_at_once() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let content = noise(64 << 10, 4);
    let bp = writer.write(vec![job(content.clone(), off())]).await.unwrap()[0];
    writer.finish().await.unwrap();
    let (suspension, clients) = (writer.suspension(), writer.clients_source());
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    bench.faults[0].vanish();
    let minute = Duration::from_secs(60);
    suspension.let_reads_fail(true);
    let block = [(bp, Bookmark::default())];
    let told = tokio::time::timeout(minute, clients.read_many(&block)).await.expect("it waits");
    assert!(told[0].is_err() && !suspension.is_on());
    assert!(
        tokio::time::timeout(minute, writer.source().read(&bp, block[0].1)).await.is_err(),
        "it does not"
    );
    suspension.over();
    suspension.let_reads_fail(false);
    let back = async {
        tokio::time::sleep(minute).await;
        assert!(suspension.is_on());
        bench.faults[0].come_back();
        suspension.kick();
    };
    let (read, ()) = tokio::join!(clients.read(&bp, block[0].1), back);
    assert!(read.unwrap() == content);
}
