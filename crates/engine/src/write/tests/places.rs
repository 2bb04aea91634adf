//! Where the bytes go: mirrors, RAIDZ, nested devices, long transfers.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use codec::compress::Algorithm::Lz4;
use ondisk::blkptr::BlkPtr;
use pool::Bookmark;

use super::bench::*;
use crate::write::Job;

/// Blocks of many sizes.
fn assortment(sector: usize) -> Vec<Bytes> {
    let mut blocks = Vec::new();
    for (seed, sectors) in [1usize, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 33, 1, 2].into_iter().enumerate() {
        blocks.push(noise(sectors * sector, seed as u64 + 1));
        blocks.push(mixed(sectors * sector, seed as u64 + 100, 40));
    }
    blocks.push(noise(1 << 20, 77));
    blocks.push(noise(512, 78));
    blocks
}

async fn reads_back_under_every_erasure(top: Shape, leaves: usize, tolerated: usize, ashift: u32) {
    let bench = Bench::new(&[top], ashift);
    let mut writer = bench.writer();
    let blocks = assortment(1 << ashift);
    let jobs = |policy| -> Vec<Job> { blocks.iter().map(|block| job(block.clone(), policy)).collect() };
    let mut pointers = writer.write(jobs(off())).await.unwrap();
    pointers.extend(writer.write(jobs(metadata())).await.unwrap());
    let written = writer.finish().await.unwrap();
    assert_eq!(written.blocks as usize, pointers.iter().filter(|bp| !bp.is_embedded()).count());
    assert_eq!(written.bytes, pointers.iter().map(BlkPtr::psize).sum::<u64>());
    assert_eq!(written.device_bytes, bench.device_bytes());
    for erased in erasures(leaves, tolerated) {
        let io = bench.io(&erased, 0);
        for (bp, block) in pointers.iter().zip(blocks.iter().chain(&blocks)) {
            assert!(read(&io, bp).await == *block, "{bp} without {erased:?}");
        }
        let errors: u64 = io.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
        assert_eq!(errors, 0, "every column is right, parity too, without {erased:?}");
    }
}

#[tokio::test]
async fn a_single_leaf() {
    for ashift in [9, 12] {
        reads_back_under_every_erasure(Shape::Leaf, 1, 0, ashift).await;
    }
}

#[tokio::test]
async fn any_side_of_a_mirror_has_everything() {
    for ashift in [9, 12] {
        reads_back_under_every_erasure(mirror(3), 3, 2, ashift).await;
    }
}

#[tokio::test]
async fn raidz_survives_as_many_leaves_as_it_has_parity() {
    for (parity, width) in [(1, 2), (1, 3), (1, 4), (2, 3), (2, 6), (3, 4), (3, 7)] {
        for ashift in [9, 12] {
            reads_back_under_every_erasure(raidz(parity, width), width, parity as usize, ashift).await;
        }
    }
}

#[tokio::test]
async fn both_sides_of_a_replacement_are_written() {
    let replacing = Shape::Replacing(vec![Shape::Leaf; 2]);
    let top = Shape::Raidz(1, vec![Shape::Leaf, replacing.clone(), Shape::Leaf]);
    let bench = Bench::new(&[top, Shape::Mirror(vec![Shape::Leaf, replacing])], 12);
    let mut writer = bench.writer();
    let blocks: Vec<Bytes> = (0..40).map(|seed| noise(12 << 10, seed)).collect();
    let copies = |copies| crate::policy::BlockPolicy { copies, ..off() };
    let jobs = blocks.iter().map(|block| job(block.clone(), copies(2))).collect();
    let pointers = writer.write(jobs).await.unwrap();
    writer.finish().await.unwrap();
    // Either side of each, and with the other top-level device gone altogether.
    for without in [[1, 4, 5, 6], [2, 4, 5, 6], [0, 1, 2, 4], [0, 1, 2, 5], [0, 2, 3, 6]] {
        let io = bench.io(&without, 0);
        for (bp, block) in pointers.iter().zip(&blocks) {
            assert!(read(&io, bp).await == *block, "without {without:?}");
        }
    }
}

#[tokio::test]
async fn neighbours_travel_in_transfers_of_a_mebibyte() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    for start in (0..256).step_by(16) {
        writer.write((start..start + 16).map(|n| job(noise(8192, n), off())).collect()).await.unwrap();
    }
    writer.finish().await.unwrap();
    assert_eq!(bench.tallies[0].writes.load(Relaxed), 2, "2 MiB");
    assert_eq!(bench.tallies[0].flushes.load(Relaxed), 1);
}

#[tokio::test]
async fn padding_joins_the_columns_of_neighbours() {
    // 8 KiB on three leaves: two data sectors, one of parity, and one skipped.
    let bench = Bench::new(&[raidz(1, 3)], 12);
    let mut writer = bench.writer();
    writer.write((0..384).map(|n| job(noise(8192, n), off())).collect()).await.unwrap();
    writer.finish().await.unwrap();
    for tally in &bench.tallies {
        // 384 · 16 KiB over three leaves.
        assert_eq!(tally.writes.load(Relaxed), 2);
        let lacking = (2 << 20) - tally.bytes.load(Relaxed);
        assert!(lacking <= 2 * 4096, "padding at the end of a transfer joins nothing: {lacking}");
    }
}

#[tokio::test]
async fn metadata_is_written_in_order_of_address_with_its_copies_apart() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    for n in 0..64 {
        writer.write(vec![job(noise(16 << 10, n), metadata())]).await.unwrap();
    }
    assert_eq!(bench.tallies[0].writes.load(Relaxed), 0, "it waits");
    writer.finish().await.unwrap();
    assert_eq!(bench.tallies[0].writes.load(Relaxed), 2, "two copies of 1 MiB, next to each other here");
}

#[tokio::test]
async fn what_is_not_on_the_devices_yet_can_be_read() {
    let bench = Bench::new(&[mirror(2)], 12);
    let mut writer = bench.writer();
    let source = writer.source();
    let contents = [noise(8192, 1), mixed(16384, 2, 30), noise(1 << 20, 3)];
    let mut blocks = Vec::new();
    for policy in [off(), metadata(), policy(Lz4)] {
        let jobs = contents.iter().map(|content| job(content.clone(), policy)).collect();
        blocks.extend(writer.write(jobs).await.unwrap().into_iter().zip(&contents));
    }
    let wanted: Vec<(BlkPtr, Bookmark)> = blocks.iter().map(|(bp, _)| (*bp, Bookmark::default())).collect();
    for finished in [false, true] {
        if finished {
            writer.finish().await.unwrap();
        }
        for (bp, content) in &blocks {
            assert!(source.read(bp, Bookmark::default()).await.unwrap() == **content, "{bp}");
        }
        for ((_, content), got) in blocks.iter().zip(source.read_many(&wanted).await) {
            assert!(got.unwrap() == **content);
        }
    }
}

#[tokio::test]
async fn what_was_written_is_in_the_cache() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let io = bench.io(&[], 64 << 20);
    let mut writer = bench.writer_over(std::sync::Arc::clone(&io), 0);
    let jobs =
        vec![job(noise(8192, 1), off()), job(noise(8192, 2), metadata()), job(noise(1 << 20, 3), off())];
    let contents: Vec<Bytes> = jobs.iter().map(|job| job.content.clone()).collect();
    let pointers = writer.write(jobs).await.unwrap();
    writer.finish().await.unwrap();
    assert!(io.read_cached(&pointers[0]).unwrap() == contents[0]);
    assert!(io.read_cached(&pointers[1]).unwrap() == contents[1]);
    assert!(io.read_cached(&pointers[2]).is_none(), "long blocks would push out too much");
}

#[tokio::test(start_paused = true)]
async fn space_written_and_freed_in_one_group_never_gets_its_old_bytes_back() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    bench.tallies[0].hold.store(60_000, Relaxed);
    // A whole transfer, so that it is on its way, and held up there.
    let first = writer.write(vec![job(noise(1 << 20, 1), off())]).await.unwrap()[0];
    writer.free(&first).await.unwrap();
    let content = noise(1 << 20, 2);
    let second = writer.write(vec![job(content.clone(), off())]).await.unwrap()[0];
    assert!(second.dvas().eq(first.dvas()), "the same place");
    writer.finish().await.unwrap();
    assert!(read(&bench.io(&[], 0), &second).await == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_change_nothing_but_the_time() {
    let jobs = || -> Vec<Job> {
        (0..200)
            .map(|n| match n % 4 {
                0 => job(Bytes::from(vec![0; 16 << 10]), policy(Lz4)),
                1 => job(noise(16 << 10, n), off()),
                2 => job(mixed(128 << 10, n, 50), metadata()),
                _ => job(mixed(16 << 10, n, 60), policy(Lz4)),
            })
            .collect()
    };
    let mut pointers = Vec::new();
    for workers in [0, 3] {
        let bench = Bench::new(&[raidz(1, 3)], 12);
        let mut writer = bench.writer_over(bench.io(&[], 0), workers);
        let mut got = writer.write(jobs()).await.unwrap();
        // Written again in place, by workers too.
        let again = jobs().into_iter().zip(&got).map(|(job, bp)| Job { old: *bp, ..job });
        got.extend(writer.write(again.filter(|job| job.policy.metadata).collect()).await.unwrap());
        writer.finish().await.unwrap();
        let io = bench.io(&[1], 0);
        for (bp, job) in got.iter().zip(jobs()) {
            if !bp.is_hole() {
                assert!(read(&io, bp).await == job.content);
            }
        }
        pointers.push(got);
    }
    assert_eq!(pointers[0], pointers[1]);
}
