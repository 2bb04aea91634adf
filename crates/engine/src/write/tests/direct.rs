//! Blocks that do not wait for their transaction group: log blocks, and volume blocks written ahead.

use std::{
    future::{Future, poll_fn},
    io::ErrorKind,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use codec::{checksum, compress};
use disk::{Effect, Fault, IoBuf, On};
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
};
use pool::{Bookmark, PoolIo, vdev::Class};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::bench::*;
use crate::{
    EngineError,
    alloc::{Allocator, NewTop},
    policy::BlockPolicy,
    write::{BlockWriter, Job, batch::SUM_CHUNK, direct::Direct},
};

/// The pointer to `data` at these places, born in [`TXG`].
fn pointer(dvas: &[Dva], data: &Bytes) -> BlkPtr {
    let mut places = [Dva::default(); 3];
    places[..dvas.len()].copy_from_slice(dvas);
    let algorithm = checksum::Algorithm::Fletcher4;
    let sum = checksum::compute(algorithm, codec::Order::Little, None, data).unwrap();
    BlkPtr::stored(&Stored {
        dvas: places,
        lsize: data.len() as u64,
        psize: data.len() as u64,
        compression_id: compress::Algorithm::Off.id(),
        checksum_id: algorithm.id(),
        object_type: ObjectType::ZVOL,
        level: 0,
        dedup: false,
        order: Order::Little,
        birth: TXG,
        physical_birth: TXG,
        fill: 1,
        checksum: sum.0,
    })
    .unwrap()
}

/// Bytes in memory as the engine has them, or one byte off.
fn placed(data: &Bytes, aligned: bool) -> Bytes {
    let mut buffer = IoBuf::with_len(data.len() + 1);
    let start = usize::from(!aligned);
    buffer[start..start + data.len()].copy_from_slice(data);
    buffer.freeze().slice(start..start + data.len())
}

async fn reads_back_under_every_erasure(shape: Shape, leaves: usize, tolerated: usize) {
    let bench = Bench::new(&[shape], 12);
    let mut writer = bench.writer();
    let direct = writer.direct();
    let mut blocks = Vec::new();
    for (seed, sectors) in [1, 2, 3, 5, 8, 13, 32, 33, 256].into_iter().enumerate() {
        for durable in [false, true] {
            let data = noise(sectors * 4096, seed as u64 + 1);
            let dva = writer.alloc.set_aside(0, data.len() as u64);
            direct.write(dva, placed(&data, seed % 2 == 0), TXG, durable).await.unwrap();
            blocks.push((pointer(&[dva], &data), data));
        }
    }
    direct.flush(&[0], TXG, direct.lacks()).await.unwrap();
    for erased in erasures(leaves, tolerated) {
        let io = bench.io(&erased, 0);
        for (bp, data) in &blocks {
            assert!(read(&io, bp).await == *data, "{bp} without {erased:?}");
        }
        let errors: u64 = io.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
        assert_eq!(errors, 0, "every column is right, parity too, without {erased:?}");
    }
    assert!(bench.tallies.iter().all(|tally| tally.flushes.load(Relaxed) == 1));
}

#[tokio::test]
async fn what_was_written_directly_reads_back_under_every_erasure() {
    reads_back_under_every_erasure(Shape::Leaf, 1, 0).await;
    reads_back_under_every_erasure(mirror(3), 3, 2).await;
    reads_back_under_every_erasure(raidz(1, 3), 3, 1).await;
    reads_back_under_every_erasure(raidz(2, 5), 5, 2).await;
    reads_back_under_every_erasure(raidz(3, 6), 6, 3).await;
    let replacing = Shape::Replacing(vec![Shape::Leaf; 2]);
    reads_back_under_every_erasure(Shape::Mirror(vec![Shape::Leaf, replacing]), 3, 2).await;
}

#[tokio::test]
async fn one_aligned_block_is_one_write_of_the_same_memory() {
    let bench = Bench::new(&[Shape::Leaf, raidz(1, 3)], 12);
    let direct = bench.writer().direct();
    let place = |vdev| Dva { vdev, offset: 1 << 20, asize: 16_384, gang: false };
    direct.write(place(0), placed(&noise(8192, 1), true), TXG, true).await.unwrap();
    let tally = &bench.tallies[0];
    assert_eq!(
        (tally.through.load(Relaxed), tally.writes.load(Relaxed), tally.flushes.load(Relaxed)),
        (1, 0, 0)
    );
    assert_eq!(tally.bytes.load(Relaxed), 8192, "no more than there is");
    assert!(direct.may_shorten(&place(0)), "the rest of a log block need not be written");
    assert!(!direct.may_shorten(&place(1)), "on RAIDZ its size says where its bytes are");
    assert!(!direct.may_shorten(&place(7)));
    assert!(direct.write(place(7), noise(4096, 1), TXG, true).await.is_err());
    assert!(direct.flush(&[7], TXG, 0).await.is_err());
}

fn refuse(on: On) -> Fault {
    Fault::anywhere(on, Effect::Error(ErrorKind::Other))
}

fn missed(io: &PoolIo, leaf: usize) -> bool {
    io.tree().leaves()[leaf].leaf.as_ref().unwrap().missed.contains(TXG)
}

#[tokio::test]
async fn a_side_that_fails_is_left_alone_until_it_was_looked_at() {
    let bench = Bench::new(&[mirror(2)], 12);
    let io = bench.io(&[], 0);
    let mut writer = bench.writer_over(Arc::clone(&io), 0);
    let direct = writer.direct();
    let data = noise(8192, 4);
    let mut place = || {
        let dva = writer.alloc.set_aside(0, 8192);
        (dva, pointer(&[dva], &data))
    };
    bench.faults[1].inject(refuse(On::Write).times(1));
    let (dva, _) = place();
    direct.write(dva, data.clone(), TXG, true).await.unwrap();
    assert!(!missed(&io, 1), "one refusal is forgiven");

    bench.faults[1].inject(refuse(On::Write));
    let before = io.tree().leaves()[1].counters.get().write;
    let (dva, bp) = place();
    direct.write(dva, data.clone(), TXG, true).await.unwrap();
    assert!(missed(&io, 1) && !missed(&io, 0), "readers know that it lacks this group");
    assert_eq!(io.tree().leaves()[1].counters.get().write, before + 1);
    assert!(read(&io, &bp).await == data);
    bench.faults[1].heal();
    let before = bench.tallies[1].through.load(Relaxed);
    direct.write(place().0, data.clone(), TXG, true).await.unwrap();
    direct.flush(&[0], TXG, direct.lacks()).await.unwrap();
    assert_eq!(bench.tallies[1].through.load(Relaxed), before, "it is left alone");
    assert_eq!(bench.tallies[1].flushes.load(Relaxed), 0);

    bench.faults[0].inject(refuse(On::Write));
    let error = direct.write(place().0, data.clone(), TXG, true).await.unwrap_err();
    let EngineError::Device(text) = &error else { panic!("{error}") };
    assert!(text.contains("mirror-0") && text.contains("disk-0") && text.contains("disk-1"), "{text}");
    assert!(!missed(&io, 0), "nobody will look for a block that was not written");

    bench.faults[0].heal();
    let (dva, bp) = place();
    direct.write(place().0, data.clone(), TXG, true).await.unwrap_err();
    for guid in [100, 101] {
        writer.targets().trust(guid);
    }
    direct.write(dva, data.clone(), TXG, true).await.unwrap();
    for without in [0, 1] {
        assert!(read(&bench.io(&[without], 0), &bp).await == data, "both are written to again");
    }
}

#[tokio::test]
async fn raidz_takes_as_many_failures_as_it_has_parity() {
    for parity in 1..=3_usize {
        for failing in 1..=parity + 1 {
            for on in [On::Write, On::Flush] {
                let bench = Bench::new(&[raidz(parity as u64, 5)], 12);
                let io = bench.io(&[], 0);
                let mut writer = bench.writer_over(Arc::clone(&io), 0);
                let direct = writer.direct();
                bench.faults.iter().take(failing).for_each(|fault| fault.inject(refuse(on)));
                let data = noise(64 << 10, 9);
                let dva = writer.alloc.set_aside(0, data.len() as u64);
                let written = direct.write(dva, data.clone(), TXG, false).await;
                let outcome = match written {
                    Ok(()) => direct.flush(&[0], TXG, direct.lacks()).await,
                    Err(error) => Err(error),
                };
                assert_eq!(
                    outcome.is_ok(),
                    failing <= parity,
                    "raidz{parity}, {failing} failing: {outcome:?}"
                );
                if failing <= parity {
                    assert!((0..failing).all(|leaf| missed(&io, leaf)));
                    let without = bench.io(&(0..failing).collect::<Vec<_>>(), 0);
                    assert!(read(&without, &pointer(&[dva], &data)).await == data);
                }
            }
        }
    }
}

/// Each of the two blocks is on one side, and only one side says that it is durable there.
#[tokio::test]
async fn a_side_that_lacks_a_block_does_not_vouch_for_it_when_it_takes_writes_again() {
    for other_fails in [false, true] {
        let bench = Bench::new(&[mirror(2)], 12);
        let mut writer = bench.writer();
        let (direct, targets) = (writer.direct(), writer.targets());
        let before = direct.lacks();
        let mut write = async |leaf: Option<usize>, n| {
            let dva = writer.alloc.set_aside(0, 8192);
            leaf.into_iter().for_each(|leaf| bench.faults[leaf].inject(refuse(On::Write)));
            direct.write(dva, noise(8192, n), TXG, false).await.unwrap();
            leaf.into_iter().for_each(|leaf| bench.faults[leaf].heal());
        };
        write(Some(0), 1).await;
        // It was looked at, and answers.
        targets.trust(100);
        write(other_fails.then_some(1), 2).await;
        let durable = direct.flush(&[0], TXG, before).await;
        assert_eq!(durable.is_err(), other_fails, "{durable:?}");
        assert!(
            direct.flush(&[0], TXG, direct.lacks()).await.is_ok(),
            "it is asked about what comes later, too"
        );
    }
}

/// Nobody waits for anybody: four blocks of ten seconds each take ten.
#[tokio::test(start_paused = true)]
async fn writes_of_many_tasks_go_side_by_side() {
    let bench = Bench::new(&[raidz(1, 3)], 12);
    let mut writer = bench.writer();
    let direct = writer.direct();
    let slow = Duration::from_secs(10);
    bench
        .faults
        .iter()
        .for_each(|fault| fault.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow))));
    let begin = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            let (direct, dva) = (Arc::clone(&direct), writer.alloc.set_aside(0, 8192));
            tokio::spawn(async move { direct.write(dva, noise(8192, n), TXG, true).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(begin.elapsed(), slow);
}

#[tokio::test]
async fn a_block_that_is_there_already_is_entered_not_written() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = bench.writer();
    let direct: Arc<Direct> = writer.direct();
    let data = noise(16_384, 3);
    let dva = writer.alloc.set_aside(0, 16_384);
    direct.write(dva, data.clone(), TXG, false).await.unwrap();
    let bp = pointer(&[dva], &data);
    let unwanted = writer.alloc.set_aside(0, 16_384);
    writer.discard(&pointer(&[unwanted], &data)).unwrap();
    let before = bench.device_bytes();
    let job = Job { written: Some(Box::new(bp)), ..job(data.clone(), off()) };
    assert_eq!(writer.write(vec![job.clone()]).await.unwrap(), [bp]);
    let written = writer.finish().await.unwrap();
    assert_eq!((written.blocks, written.bytes), (1, 16_384));
    assert_eq!(bench.device_bytes(), before);
    assert!(
        bench.tallies.iter().all(|tally| tally.flushes.load(Relaxed) == 1),
        "it is durable with its group"
    );
    assert!(writer.alloc.aside.is_empty() && writer.alloc.allocated.contains_key(&(0, dva.offset)));
    writer.free(&bp).await.unwrap();
    assert!(writer.alloc.allocated.is_empty());

    writer.begin(TXG + 1);
    let late = writer.write(vec![job.clone()]).await.unwrap_err();
    assert!(late.to_string().contains("written ahead"), "{late}");
    writer.begin(TXG - 2);
    writer.begin(TXG);
    let other = writer.write(vec![Job { content: noise(8192, 1), ..job }]).await.unwrap_err();
    assert!(other.to_string().contains("written ahead"), "{other}");
}

/// Groups in which nothing happened are never begun, so how a leaf was then is not on record.
#[tokio::test]
async fn what_was_written_ahead_of_a_flush_that_failed_is_written_anew_after_idle_groups_too() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let direct: Arc<Direct> = writer.direct();
    for fails in [false, true] {
        (0..3).for_each(|_| writer.begin(TXG - 3));
        let data = noise(16_384, 3);
        let dva = writer.alloc.set_aside(0, 16_384);
        direct.write(dva, data.clone(), TXG, false).await.unwrap();
        if fails {
            bench.faults[0].inject(refuse(On::Flush).times(1));
            direct.flush(&[0], TXG, direct.lacks()).await.unwrap_err();
            // It is looked at, and answers again.
            let targets = writer.targets();
            targets.suspects().into_iter().for_each(|guid| targets.trust(guid));
        }
        writer.begin(TXG);
        let bp = pointer(&[dva], &data);
        let job = Job { written: Some(Box::new(bp)), ..job(data, off()) };
        let before = bench.device_bytes();
        writer.write(vec![job]).await.unwrap();
        writer.finish().await.unwrap();
        assert_eq!(bench.device_bytes() > before, fails);
    }
}

/// Whether its leaf was away is asked when the block's batch begins, which then takes as long as its sums.
#[tokio::test]
async fn what_was_written_ahead_is_given_again_if_its_leaf_was_away_while_the_batch_was_summed() {
    for comes_first in [false, true] {
        let bench = Bench::new(&[Shape::Leaf], 12);
        let mut writer = bench.writer_over(bench.io(&[], 0), 2);
        let direct: Arc<Direct> = writer.direct();
        let targets = writer.targets();
        (0..3).for_each(|_| writer.begin(TXG - 3));
        let data = noise(16_384, 3);
        let dva = writer.alloc.set_aside(0, 16_384);
        direct.write(dva, data.clone(), TXG, false).await.unwrap();
        writer.begin(TXG);
        let ahead = Job { written: Some(Box::new(pointer(&[dva], &data))), ..job(data.clone(), off()) };
        let mut jobs: Vec<Job> = (0..4).map(|n| job(noise(SUM_CHUNK, n), off())).collect();
        jobs.insert(if comes_first { 0 } else { 4 }, ahead);
        let mut batch = Box::pin(writer.write(jobs));
        // Sums are made elsewhere.
        let begun = poll_fn(|cx| Poll::Ready(batch.as_mut().poll(cx))).await;
        // What it had not stored is gone, and it answers again.
        direct.write(dva, noise(16_384, 4), TXG, false).await.unwrap();
        bench.faults[0].inject(refuse(On::Flush).times(1));
        direct.flush(&[0], TXG, direct.lacks()).await.unwrap_err();
        targets.suspects().into_iter().for_each(|guid| targets.trust(guid));
        match begun {
            Poll::Ready(ended) => drop((batch, ended.unwrap())),
            Poll::Pending => drop(batch.await.unwrap()),
        }
        writer.finish().await.unwrap();
        assert!(read(&bench.io(&[], 0), &pointer(&[dva], &data)).await == data, "{comes_first}");
    }
}

/// The device may have dropped all that it had not stored yet, and said so just once.
#[tokio::test]
async fn what_came_before_a_stable_write_that_failed_at_first_is_written_anew() {
    for fails in [false, true] {
        let bench = Bench::new(&[Shape::Leaf], 12);
        let mut writer = bench.writer();
        let direct: Arc<Direct> = writer.direct();
        (0..3).for_each(|_| writer.begin(TXG - 3));
        let data = noise(16_384, 3);
        let (dva, log_block) = (writer.alloc.set_aside(0, 16_384), writer.alloc.set_aside(0, 4096));
        direct.write(dva, data.clone(), TXG, false).await.unwrap();
        if fails {
            bench.faults[0].inject(refuse(On::Write).times(1));
        }
        direct.write(log_block, noise(4096, 9), TXG, true).await.unwrap();
        assert_eq!(bench.tallies[0].through.load(Relaxed), 1 + u64::from(fails), "it is tried again");
        writer.begin(TXG);
        let job = Job { written: Some(Box::new(pointer(&[dva], &data))), ..job(data, off()) };
        let before = bench.device_bytes();
        writer.write(vec![job]).await.unwrap();
        writer.finish().await.unwrap();
        assert_eq!(bench.device_bytes() > before, fails);
    }
}

/// Others gave a device again what that had cost, or let it be resilvered, and nothing said why.
#[tokio::test]
async fn a_stable_write_that_failed_at_first_is_counted() {
    let bench = Bench::new(&[mirror(2)], 12);
    let io = bench.io(&[], 0);
    let mut writer = bench.writer_over(Arc::clone(&io), 0);
    let direct = writer.direct();
    for (durable, counted) in [(false, 0), (true, 1)] {
        bench.faults[1].inject(refuse(On::Write).times(1));
        direct.write(writer.alloc.set_aside(0, 8192), noise(8192, 4), TXG, durable).await.unwrap();
        let errors: Vec<u64> = io.tree().leaves().iter().map(|leaf| leaf.counters.get().write).collect();
        assert_eq!(errors, [0, counted], "durable: {durable}");
    }
    assert!(writer.reports().take().is_empty(), "it takes more than that to be faulted");
}

/// A writer with a real allocator, which takes what was written ahead into its maps.
#[tokio::test]
async fn blocks_written_ahead_are_what_the_group_would_have_written() {
    let mut random = StdRng::seed_from_u64(5);
    for shapes in [vec![Shape::Leaf], vec![mirror(2), mirror(2)], vec![raidz(1, 4)]] {
        let bench = Bench::new(&shapes, 12);
        let io = bench.io(&[], 0);
        let tops: Vec<NewTop> = io.tree().tops.iter().map(top_of).collect();
        let mut writer = BlockWriter::new(Arc::clone(&io), Allocator::create(TRAITS, &tops), TRAITS, 0);
        writer.begin(TXG);
        let ahead = writer.ahead();
        let object_type = ObjectType::ZVOL;
        let mut made = Vec::new();
        for n in 0..60 {
            let content = match random.random_range(0..5) {
                0 => Bytes::from(vec![0; 16_384]),
                1 => Bytes::from([vec![7; 20], vec![0; 16_364]].concat()),
                2 => noise(131_072, n),
                _ => mixed(16_384, n, 50),
            };
            let algorithm = [compress::Algorithm::Off, compress::Algorithm::Lz4][random.random_range(0..2)];
            let policy = BlockPolicy { copies: random.random_range(1..3), ..policy(algorithm) };
            let bp = loop {
                match ahead.write(content.clone(), &policy, object_type, TXG, Bookmark::default()).await {
                    Ok(bp) => break bp,
                    // The syncing task comes by: it was asked to.
                    Err(EngineError::NoSpace { .. }) => {
                        writer.alloc.log_space().asked().await;
                        writer.alloc.restock().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            made.push((content, policy, bp));
        }
        let keep = made.split_off(6);
        let free = writer.alloc.totals().free_now;
        made.iter().for_each(|(_, _, bp)| writer.discard(bp).unwrap());
        let dropped: u64 = made.iter().flat_map(|(_, _, bp)| bp.dvas()).map(|dva| dva.asize).sum();
        assert_eq!(writer.alloc.totals().free_now + dropped, free, "their places wait");
        let jobs = |written: bool| -> Vec<Job> {
            let job = |(content, policy, bp): &(Bytes, BlockPolicy, BlkPtr)| Job {
                written: written.then(|| Box::new(*bp)),
                ..job(content.clone(), *policy)
            };
            keep.iter().map(job).collect()
        };
        let pointers = writer.write(jobs(true)).await.unwrap();
        let twins = writer.write(jobs(false)).await.unwrap();
        writer.finish().await.unwrap();
        let fresh = bench.io(&[], 0);
        let mut allocated = 0;
        for ((pointer, twin), (content, ..)) in pointers.iter().zip(&twins).zip(&keep) {
            let shape = |bp: &BlkPtr| {
                (bp.is_hole(), bp.is_embedded(), bp.lsize(), bp.checksum(), bp.dvas().count(), bp.fill())
            };
            assert_eq!(shape(pointer), shape(twin));
            if pointer.is_hole() {
                assert!(content.iter().all(|byte| *byte == 0));
                continue;
            }
            assert_eq!((pointer.birth(), pointer.psize()), (TXG, twin.psize()));
            assert!(read(&fresh, pointer).await == *content);
            allocated += pointer.dvas().chain(twin.dvas()).map(|dva| dva.asize).sum::<u64>();
        }
        assert_eq!(allocated_raw(&writer.alloc, &tops), allocated);
        for bp in pointers.iter().chain(&twins) {
            writer.free(bp).await.unwrap();
        }
        assert_eq!(allocated_raw(&writer.alloc, &tops), 0);
    }
}

/// Bytes in use, as they lie on the devices.
fn allocated_raw(alloc: &Allocator, tops: &[NewTop]) -> u64 {
    let totals = alloc.totals();
    let capacity: u64 = tops.iter().map(|top| top.asize >> top.metaslab_shift << top.metaslab_shift).sum();
    capacity - totals.free_now - totals.deferred
}

fn top_of(vdev: &pool::vdev::Vdev) -> NewTop {
    let top = vdev.top.as_ref().unwrap();
    let raidz = match &vdev.kind {
        pool::vdev::Kind::Raidz(geometry) => Some(geometry.clone()),
        _ => None,
    };
    NewTop {
        id: vdev.id,
        ashift: top.ashift,
        asize: top.asize,
        metaslab_shift: 24,
        raidz,
        class: Class::Normal,
    }
}
