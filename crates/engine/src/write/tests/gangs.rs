//! Blocks in pieces. docs/format/blkptr.md §6.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use codec::{checksum, compress};
use ondisk::{
    blkptr::{BlkPtr, Dva},
    label::DATA_OFFSET,
};
use pool::{
    Bookmark,
    vdev::{Class, Geometry},
};

use super::bench::*;
use crate::{
    EngineError,
    alloc::{Allocator, NewTop},
    policy::BlockPolicy,
    write::{BlockWriter, Job},
};

/// Free space in crumbs: so many of each of these sizes, with gaps between.
fn crumbs(sizes: &[(usize, u64)]) -> Vec<(u64, u64)> {
    let mut extents = Vec::new();
    let mut at = 0x10_0000;
    for &(count, len) in sizes {
        for _ in 0..count {
            extents.push((at, len));
            at += len + 0x3000;
        }
    }
    extents
}

fn crumbled(bench: &Bench, sizes: &[(usize, u64)]) -> BlockWriter<Space> {
    let mut writer = bench.writer();
    writer.alloc.fragment(0, crumbs(sizes));
    writer
}

async fn comes_back_and_goes(bench: &Bench, sizes: &[(usize, u64)], job: Job, erased: &[usize]) -> BlkPtr {
    let mut writer = crumbled(bench, sizes);
    let source = writer.source();
    let bp = writer.write(vec![job.clone()]).await.unwrap()[0];
    assert!(bp.is_gang(), "{bp}");
    assert!(source.read(&bp, Bookmark::default()).await.unwrap() == job.content, "before it is written");
    let written = writer.finish().await.unwrap();
    assert_eq!((written.blocks, written.bytes), (1, bp.psize()));
    let io = bench.io(erased, 0);
    assert!(read(&io, &bp).await == job.content, "after");
    assert_eq!(bp.asize(), writer.alloc.allocated.values().sum::<u64>(), "the pointer counts all of it");

    let came = AtomicUsize::new(0);
    let extents = io.gang_extents(&bp, &came).await.unwrap();
    let mut extents: Vec<_> = extents.iter().map(|dva| ((dva.vdev, dva.offset), dva.asize)).collect();
    extents.sort_unstable();
    assert_eq!(extents, writer.alloc.allocated.clone().into_iter().collect::<Vec<_>>());
    writer.begin(TXG + 1);
    writer.free(&bp).await.unwrap();
    assert!(writer.alloc.allocated.is_empty(), "and all of it comes back");
    bp
}

#[tokio::test]
async fn a_block_that_fits_nowhere_is_written_in_members() {
    for ashift in [9, 12] {
        let bench = Bench::new(&[Shape::Leaf], ashift);
        let job = job(noise(128 << 10, 1), off());
        let bp = comes_back_and_goes(&bench, &[(10, 48 << 10)], job, &[]).await;
        let header = 2 << ashift;
        assert_eq!(
            bp.dvas().map(|dva| dva.asize).collect::<Vec<_>>(),
            [(128 << 10) + header / 2, header / 2]
        );
    }
}

#[tokio::test]
async fn gangs_nest() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    comes_back_and_goes(&bench, &[(120, 8 << 10)], job(noise(128 << 10, 2), off()), &[]).await;
    comes_back_and_goes(&bench, &[(80, 4 << 10)], job(noise(60 << 10, 3), off()), &[]).await;
    comes_back_and_goes(&bench, &[(2000, 16 << 10)], job(noise(1 << 20, 4), off()), &[]).await;
}

#[tokio::test]
async fn gangs_of_metadata_have_copies_and_every_checksum_works() {
    let bench = Bench::new(&[mirror(2)], 12);
    for checksum in (0..=14).filter_map(checksum::Algorithm::from_id).filter(|sum| !sum.is_embedded()) {
        let policy = BlockPolicy { checksum, ..metadata() };
        let bp = comes_back_and_goes(&bench, &[(30, 48 << 10)], job(noise(128 << 10, 5), policy), &[0]).await;
        assert_eq!(bp.dvas().count(), 3, "the header has a copy more");
    }
    let compressed = BlockPolicy { copies: 3, ..policy(compress::Algorithm::Lz4) };
    comes_back_and_goes(&bench, &[(30, 24 << 10)], job(mixed(128 << 10, 6, 60), compressed), &[1]).await;
}

#[tokio::test]
async fn gangs_on_raidz() {
    let bench = Bench::new(&[raidz(2, 5)], 12);
    for erased in erasures(5, 2) {
        comes_back_and_goes(&bench, &[(12, 96 << 10)], job(noise(128 << 10, 7), off()), &erased).await;
    }
}

/// Members were multiples of the smallest allocation, parity included. So a block of a few sectors was not split into what
/// has room where one sector has, and a fragmented pool was suspended for good while much of it was free.
#[tokio::test]
async fn a_raidz_where_only_single_sectors_have_room_takes_larger_blocks() {
    const METASLAB: u64 = 4 << 20;
    /// A sector and its parity.
    const HOLE: u64 = 12 << 10;
    let bench = Bench::new(&[raidz(2, 6)], 12);
    let geometry = Geometry { children: 6, parity: 2, ashift: 12, expand_txgs: Vec::new(), reflow: None };
    let top = NewTop {
        id: 0,
        ashift: 12,
        asize: 4 * METASLAB,
        metaslab_shift: METASLAB.ilog2(),
        raidz: Some(geometry),
        class: Class::Normal,
    };
    let mut alloc = Allocator::create(TRAITS, &[top]);
    for metaslab in 0..4 {
        for at in (0..METASLAB - HOLE).step_by(2 * HOLE as usize) {
            let taken = Dva { vdev: 0, offset: metaslab * METASLAB + at, asize: HOLE, gang: false };
            alloc.claim(taken).await.unwrap();
        }
    }
    let used = alloc.used();
    let mut writer = BlockWriter::new(bench.io(&[], 0), alloc, TRAITS, 0);
    for (n, len, policy) in [(0, 8 << 10, off()), (1, 16 << 10, off()), (2, 16 << 10, metadata())] {
        writer.begin(TXG + 2 * n);
        let content = noise(len, n);
        let bp = writer.write(vec![job(content.clone(), policy)]).await.unwrap()[0];
        assert!(bp.is_gang(), "{bp}");
        writer.finish().await.unwrap();
        assert_eq!(writer.alloc.used(), used + bp.asize());
        for erased in erasures(6, 2) {
            assert!(read(&bench.io(&erased, 0), &bp).await == content, "{bp} without {erased:?}");
        }
        writer.begin(TXG + 2 * n + 1);
        writer.free(&bp).await.unwrap();
        assert_eq!(writer.alloc.used(), used, "and all of it comes back");
    }
}

#[tokio::test]
async fn a_gang_of_metadata_keeps_its_place_when_it_is_written_again() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
    let first = writer.write(vec![job(noise(128 << 10, 8), metadata())]).await.unwrap()[0];
    assert!(first.is_gang());
    let held = writer.alloc.allocated.clone();
    let content = noise(128 << 10, 9);
    let again = writer.write(vec![Job { old: first, ..job(content.clone(), metadata()) }]).await.unwrap()[0];
    assert!(again.dvas().eq(first.dvas()));
    assert_eq!(writer.alloc.allocated, held);
    writer.finish().await.unwrap();
    assert!(read(&bench.io(&[], 0), &again).await == content);
}

#[tokio::test]
async fn a_gang_freed_in_its_own_group_is_not_read() {
    for policy in [off(), metadata()] {
        let bench = Bench::new(&[Shape::Leaf], 12);
        let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
        let bp = writer.write(vec![job(noise(128 << 10, 8), policy)]).await.unwrap()[0];
        assert!(bp.is_gang());
        bench.faults[0]
            .inject(disk::Fault::anywhere(disk::On::Read, disk::Effect::Error(std::io::ErrorKind::Other)));
        writer.free(&bp).await.unwrap();
        assert!(writer.alloc.allocated.is_empty());
        writer.finish().await.unwrap();
    }
}

/// Each was looked up when the one before it was free, and meanwhile nothing could be committed: a second for a hundred of them
/// on a disk that turns.
#[tokio::test(start_paused = true)]
async fn gangs_are_looked_up_side_by_side_when_they_are_freed() {
    const BLOCKS: u64 = 256;
    let moment = Duration::from_millis(10);
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = crumbled(&bench, &[(800, 8 << 10)]);
    let jobs = (0..BLOCKS).map(|seed| job(noise(12 << 10, seed), off())).collect();
    let pointers = writer.write(jobs).await.unwrap();
    assert!(pointers.iter().all(BlkPtr::is_gang));
    writer.finish().await.unwrap();
    bench.faults[0].inject(disk::Fault::anywhere(disk::On::Read, disk::Effect::Delay(moment..=moment)));
    // Of one that is to be freed later than it was looked up, too.
    let (first, others) = pointers.split_at(BLOCKS as usize / 2);
    writer.begin(TXG + 1);
    let began = tokio::time::Instant::now();
    let parts = writer.parts(first).await;
    for (bp, parts) in first.iter().zip(parts) {
        assert!(writer.try_free(bp, Some(parts.unwrap())).await.unwrap().is_none());
    }
    writer.free_all(others).await.unwrap();
    assert!(began.elapsed() < moment * BLOCKS as u32 / 16, "{:?}", began.elapsed());
    assert!(writer.alloc.allocated.is_empty(), "all of it comes back");
}

/// All headers of 64 gangs had to come within the minute that a device has for an answer, on a disk that gives one after the
/// other: the pool was suspended for good, or could not be opened, and the disk was well.
#[tokio::test(start_paused = true)]
async fn gangs_of_many_headers_are_freed_however_long_those_take_all_together() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    // Many that take two minutes together, and one that takes as long alone.
    for (blocks, len, pace) in [(48, 128 << 10, 150), (1, 4 << 20, 200)] {
        let mut writer = crumbled(&bench, &[(4000, 4 << 10)]);
        let jobs = (0..blocks).map(|seed| job(noise(len, seed), off())).collect();
        let pointers = writer.write(jobs).await.unwrap();
        assert!(pointers.iter().all(BlkPtr::is_gang));
        writer.finish().await.unwrap();
        bench.tallies[0].pace.store(pace, Relaxed);
        writer.begin(TXG + 1);
        let began = tokio::time::Instant::now();
        writer.free_all(&pointers).await.unwrap();
        assert!(began.elapsed() > Duration::from_secs(100), "{:?}", began.elapsed());
        assert!(writer.alloc.allocated.is_empty(), "all of it comes back");
        bench.tallies[0].pace.store(0, Relaxed);
    }
}

/// A disk that was late with one header and had it a moment later was taken for one that has lost it, and with it all gangs that
/// were looked up beside.
#[tokio::test(start_paused = true)]
async fn a_gang_whose_header_comes_late_is_freed() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
    let bp = writer.write(vec![job(noise(128 << 10, 2), off())]).await.unwrap()[0];
    assert!(bp.is_gang());
    writer.finish().await.unwrap();
    let late = Duration::from_secs(15);
    bench.faults[0].inject(disk::Fault::anywhere(disk::On::Read, disk::Effect::Delay(late..=late)).times(1));
    writer.begin(TXG + 1);
    writer.free(&bp).await.unwrap();
    assert!(writer.alloc.allocated.is_empty());
}

#[tokio::test]
async fn no_space_is_said_when_even_crumbs_are_gone_and_leaves_none_behind() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    for (sizes, len) in [(vec![(3, 16 << 10)], 128 << 10), (vec![], 4096), (vec![(2, 4096)], 8192)] {
        let mut writer = crumbled(&bench, &sizes);
        let error = writer.write(vec![job(noise(len, 1), off())]).await.unwrap_err();
        assert!(matches!(error, EngineError::NoSpace { .. }), "{error}");
        assert!(writer.alloc.allocated.is_empty());
    }
}

#[tokio::test]
async fn a_gang_whose_header_is_gone_is_not_half_freed_and_ends_nothing() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
    let once = BlockPolicy { copies: 1, ..off() };
    let bp = writer.write(vec![job(Bytes::from(vec![9; 128 << 10]), once)]).await.unwrap()[0];
    writer.finish().await.unwrap();
    let held = writer.alloc.allocated.clone();
    for dva in bp.dvas() {
        let at = DATA_OFFSET + dva.offset;
        bench.faults[0].rot(at..at + 512, 3).await.unwrap();
    }
    writer.begin(TXG + 1);
    assert!(writer.try_free(&bp, None).await.unwrap().is_some());
    writer.free(&bp).await.unwrap();
    assert_eq!(writer.alloc.allocated, held, "nobody knows whose the rest is");
    writer.finish().await.unwrap();
}

/// Its own header could be read, and those further in count as refused by devices that are there.
#[tokio::test(start_paused = true)]
async fn a_gang_is_freed_when_a_device_is_back_that_has_headers_further_in() {
    let bench = Bench::new(&[Shape::Leaf, Shape::Leaf, Shape::Leaf], 12);
    let mut writer = bench.writer();
    for top in [0, 1] {
        writer.alloc.fragment(top, crumbs(&[(1, 4 << 10)]));
    }
    writer.alloc.fragment(2, crumbs(&[(120, 8 << 10)]));
    let bp = writer.write(vec![job(noise(128 << 10, 2), off())]).await.unwrap()[0];
    assert_eq!(bp.dvas().map(|dva| dva.vdev).collect::<Vec<_>>(), [0, 1]);
    writer.finish().await.unwrap();
    let suspension = writer.suspension();
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    bench.faults[2].vanish();
    writer.begin(TXG + 1);
    let back = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(suspension.is_on());
        bench.faults[2].come_back();
        suspension.kick();
    };
    let (freed, ()) = tokio::join!(writer.free(&bp), back);
    freed.unwrap();
    assert!(writer.alloc.allocated.is_empty());
}

/// Nobody comes back to a block that was freed, so what it led to stayed allocated for good.
#[tokio::test(start_paused = true)]
async fn a_gang_is_freed_when_a_side_is_back_that_has_the_header_which_the_other_holds_wrongly() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
    let bp = writer.write(vec![job(noise(128 << 10, 2), off())]).await.unwrap()[0];
    writer.finish().await.unwrap();
    for dva in bp.dvas() {
        let at = DATA_OFFSET + dva.offset;
        bench.faults[1].rot(at..at + 512, 3).await.unwrap();
    }
    let suspension = writer.suspension();
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    bench.faults[0].vanish();
    writer.begin(TXG + 1);
    let now = tokio::time::timeout(Duration::from_secs(60), writer.try_free(&bp, None)).await;
    assert!(now.expect("who comes back later waits for nothing").unwrap().is_some());
    let back = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(suspension.is_on());
        bench.faults[0].come_back();
        suspension.kick();
    };
    let (freed, ()) = tokio::join!(writer.free(&bp), back);
    freed.unwrap();
    assert!(writer.alloc.allocated.is_empty());
}

/// What is wrong on all devices, and none of them left, is nothing to wait for.
#[tokio::test(start_paused = true)]
async fn a_gang_whose_header_both_sides_hold_wrongly_is_waited_for_by_nobody() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = crumbled(&bench, &[(40, 24 << 10)]);
    let bp = writer.write(vec![job(noise(128 << 10, 2), off())]).await.unwrap()[0];
    writer.finish().await.unwrap();
    for (dva, fault) in bp.dvas().flat_map(|dva| bench.faults.iter().map(move |fault| (dva, fault))) {
        let at = DATA_OFFSET + dva.offset;
        fault.rot(at..at + 512, 3).await.unwrap();
    }
    let suspension = writer.suspension();
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Default::default());
    writer.begin(TXG + 1);
    tokio::time::timeout(Duration::from_secs(60), writer.free(&bp)).await.expect("it waits").unwrap();
    assert!(!suspension.is_on() && !writer.alloc.allocated.is_empty());
}
