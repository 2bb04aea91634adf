//! A volume against its twin: clients with random operations, a syncing task that commits to a store in memory,
//! and checks of what readers see and of what a power cut at any commit would have left.
#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges, of which some are short")]

mod model;
mod store;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use block::{
    Asked, BlockVolume, Durability::Cached, Durability::Stable, Extent, Segment, Segments, VolumeError,
    flatten,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::OwnedRwLockWriteGuard;

use super::{
    change::{FREED_BLOCK_BYTES, FREED_BYTES, INDIRECT_PART},
    read::RETRIES,
    *,
};
use crate::txg::{Limits, Room, Supply};
use store::Store;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 96;
const SIZE: u64 = BLOCK * BLOCKS;
/// Memory that an indirect block of 4 KiB above a change counts for; there is one above 32 blocks.
const ABOVE: u64 = 4096 / INDIRECT_PART;

fn service() -> Service {
    Service {
        size: SIZE,
        block: BLOCK as u32,
        read_only: false,
        sync: SyncMode::Standard,
        block_space: BLOCK,
        indirect_space: 2 * BLOCK,
        copies: 1,
        punch_zeroes: true,
        throughput: false,
        sum_early: None,
    }
}

fn identity() -> Identity {
    Identity { name: "tank/vm".into(), guid: 1, pool_guid: 2 }
}

/// A volume, its transaction groups, and what it is committed to.
struct Lake {
    volume: Arc<LiveVolume>,
    txgs: Arc<Txgs>,
    store: Arc<Store>,
}

impl Lake {
    fn new(service: Service) -> Self {
        Self::limited(service, Limits::default())
    }

    /// One whose groups are closed by nobody but the test.
    fn limited(service: Service, limits: Limits) -> Self {
        let txgs = Txgs::new(4, Limits { timeout: Duration::from_secs(3600), ..limits });
        let store = Store::new(0);
        let volume = LiveVolume::new(
            7,
            identity(),
            service,
            store.object(),
            txgs.for_volume(7, Room { limit: u64::MAX, ..Room::default() }),
            Log::detached(7),
        );
        Self { volume, txgs, store }
    }

    /// Closes the open group; its number.
    async fn close(&self) -> u64 {
        self.txgs.close().await.0
    }

    /// Puts a closed group on disk.
    fn commit(&self, txg: u64) -> Dirty {
        let dirty = self.volume.dirty(txg);
        let (data, freed) = self.store.commit(txg, &dirty);
        self.volume.committed(txg, data);
        self.store.forget(&freed);
        let plenty = Supply { shared: u64::MAX, free: u64::MAX, ..Supply::default() };
        self.txgs.synced(txg, plenty, BTreeMap::new());
        dirty
    }

    async fn sync(&self) -> Dirty {
        let txg = self.close().await;
        self.commit(txg)
    }

    async fn write(&self, offset: u64, data: &[u8]) {
        self.volume.write(offset, segments(data), Cached).await.unwrap();
    }

    async fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        flatten(&self.volume.read(offset, len).await.unwrap())
    }
}

fn segments(data: &[u8]) -> Segments {
    std::iter::once(Segment::Data(Bytes::copy_from_slice(data))).collect()
}

#[tokio::test]
async fn a_write_is_seen_before_during_and_after_its_sync() {
    let lake = Lake::new(service());
    let data = vec![5; 3 * BLOCK as usize];
    lake.write(BLOCK - 10, &data).await;
    assert_eq!(lake.read(BLOCK - 10, data.len()).await, data);
    let txg = lake.close().await;
    assert!(lake.volume.is_dirty(txg) && !lake.volume.is_dirty(txg + 1));
    let dirty = lake.volume.dirty(txg);
    let blocks: Vec<u64> = dirty.blocks.iter().map(|(blkid, _)| *blkid).collect();
    assert_eq!(blocks, [0, 1, 2, 3]);
    assert_eq!(lake.read(BLOCK - 10, data.len()).await, data);
    lake.commit(txg);
    assert!(!lake.volume.is_dirty(txg));
    assert_eq!(lake.read(BLOCK - 10, data.len()).await, data);
    assert_eq!(lake.read(0, BLOCK as usize - 10).await, vec![0; BLOCK as usize - 10]);
}

#[tokio::test]
async fn a_block_dirty_in_a_closed_group_is_the_base_of_the_next_and_both_are_kept() {
    let lake = Lake::new(service());
    lake.write(0, &[1; BLOCK as usize]).await;
    let first = lake.close().await;
    lake.write(100, &[2; 50]).await;
    let second = lake.close().await;
    lake.write(110, &[3; 10]).await;
    let (one, two) = (lake.volume.dirty(first), lake.volume.dirty(second));
    assert_eq!(one.blocks[0].1[..], [1; BLOCK as usize], "a closed group does not change");
    assert_eq!((&two.blocks[0].1[90..100], &two.blocks[0].1[100..150]), (&[1; 10][..], &[2; 50][..]));
    let now = lake.read(0, 200).await;
    assert_eq!((&now[..100], &now[100..110], &now[110..120]), (&[1; 100][..], &[2; 10][..], &[3; 10][..]));
    lake.commit(first);
    lake.commit(second);
    assert_eq!(lake.read(0, 200).await, now);
}

#[tokio::test]
async fn overwriting_what_is_dirty_gives_the_memory_back() {
    let lake = Lake::new(service());
    for value in 0..100 {
        lake.write(BLOCK, &[value; BLOCK as usize]).await;
        lake.write(BLOCK + 7, &[value; 100]).await;
    }
    assert_eq!(lake.txgs.dirty(), BLOCK + ABOVE);
    lake.volume.unmap(0, 3 * BLOCK, Cached).await.unwrap();
    assert_eq!(lake.txgs.dirty(), FREED_BYTES + 3 * FREED_BLOCK_BYTES + ABOVE, "and freeing it too");
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed), (0, vec![0..3]));
}

#[tokio::test]
async fn what_was_read_does_not_change_under_the_reader() {
    let lake = Lake::new(service());
    lake.write(0, &[1; BLOCK as usize]).await;
    let held = lake.volume.read(0, BLOCK as usize).await.unwrap();
    lake.write(5, &[2; 5]).await;
    assert_eq!(flatten(&held), vec![1; BLOCK as usize]);
    drop(held);
    let place = |segments: &Segments| match &segments[0] {
        Segment::Data(bytes) => bytes.as_ptr(),
        Segment::Zero(_) => panic!("data"),
    };
    let before = place(&lake.volume.read_cached(0, 100).unwrap());
    lake.write(6, &[3; 5]).await;
    assert_eq!(before, place(&lake.volume.read_cached(0, 100).unwrap()), "in place when nobody holds it");
    assert_eq!(lake.read(4, 8).await, [1, 2, 3, 3, 3, 3, 3, 1]);
}

#[tokio::test]
async fn freed_and_written_again_and_the_other_way_round() {
    let lake = Lake::new(service());
    lake.write(0, &vec![9; 8 * BLOCK as usize]).await;
    lake.sync().await;
    lake.volume.unmap(10, 6 * BLOCK, Cached).await.unwrap();
    lake.write(3 * BLOCK, &[1; BLOCK as usize]).await;
    lake.write(5 * BLOCK + 1, &[2; 3]).await;
    let txg = lake.close().await;
    lake.volume.unmap(3 * BLOCK, BLOCK, Cached).await.unwrap();
    let dirty = lake.commit(txg);
    assert_eq!(dirty.freed, [1..3, 4..5]);
    assert_eq!(dirty.blocks.iter().map(|(blkid, _)| *blkid).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(dirty.blocks[1].1[..6], [0, 2, 2, 2, 0, 0], "on zeroes, not on what was freed");
    assert_eq!(lake.read(3 * BLOCK, 10).await, [0; 10]);
    assert_eq!(lake.read(0, 20).await, [9; 20], "the partial blocks keep their content");
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed), (0, vec![3..4]));
    assert_eq!(lake.read(3 * BLOCK, 10).await, [0; 10]);
}

#[tokio::test]
async fn zeroes_take_space_only_where_they_must() {
    let lake = Lake::new(Service { punch_zeroes: false, ..service() });
    lake.volume.write_zeroes(100, 3 * BLOCK, false, Cached).await.unwrap();
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed), (0, vec![1..3]), "holes need no zeroes");
    lake.volume.write_zeroes(100, 3 * BLOCK, true, Cached).await.unwrap();
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed.len()), (4, 0));
    let lake = Lake::new(service());
    lake.volume.write_zeroes(0, 3 * BLOCK, true, Cached).await.unwrap();
    lake.volume.write(5 * BLOCK, std::iter::once(Segment::Zero(4096)).collect(), Cached).await.unwrap();
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed), (0, vec![0..3, 5..6]), "compressed: holes");
}

#[tokio::test(start_paused = true)]
async fn flush_and_stable_writes_wait_for_their_group() {
    let lake = Lake::new(service());
    lake.volume.flush().await.unwrap();
    let flush = {
        let volume = Arc::clone(&lake.volume);
        tokio::spawn(async move { volume.write(0, segments(&[1; 10]), Stable(Asked::Fua)).await })
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!flush.is_finished());
    assert_eq!(lake.read(0, 10).await, [1; 10], "but readers see it");
    lake.txgs.next().await;
    lake.sync().await;
    flush.await.unwrap().unwrap();
    // Nothing to wait for with sync=disabled, everything with sync=always.
    lake.volume.update(identity(), Service { sync: SyncMode::Disabled, ..service() });
    lake.volume.write(0, segments(&[2; 10]), Stable(Asked::Fua)).await.unwrap();
    lake.volume.flush().await.unwrap();
    lake.volume.update(identity(), Service { sync: SyncMode::Always, ..service() });
    let write = lake.volume.write(0, segments(&[2; 10]), Cached);
    assert!(tokio::time::timeout(Duration::from_secs(60), write).await.is_err());
}

/// Who compares and writes has the disk alone, and let go of it only when what it wrote was stable.
#[tokio::test(start_paused = true)]
async fn who_keeps_others_waiting_hears_when_a_change_is_seen_and_others_hear_nothing() {
    let limit = Duration::from_secs(60);
    for (sync, durability) in [(SyncMode::Standard, Stable(Asked::Fua)), (SyncMode::Always, Cached)] {
        let lake = Lake::new(Service { sync, ..service() });
        let volume = &lake.volume;
        let told = AtomicUsize::new(0);
        let mut seen = || {
            told.fetch_add(1, Ordering::Relaxed);
        };
        {
            let mut write = volume.write_telling(10, segments(&[5; 20]), durability, &mut seen);
            assert!(tokio::time::timeout(limit, &mut write).await.is_err(), "it is not stable");
            assert_eq!((told.load(Ordering::Relaxed), lake.read(10, 20).await), (1, vec![5; 20]));
            lake.sync().await;
            write.await.unwrap();
        }
        // One that has to read the rest of its block first.
        lake.store.never_cache();
        {
            let gate = lake.store.hold_reads();
            let mut write = volume.write_telling(100, segments(&[6; 20]), durability, &mut seen);
            assert!(tokio::time::timeout(limit, &mut write).await.is_err());
            assert_eq!(told.load(Ordering::Relaxed), 1, "nothing is written");
            drop(gate);
            assert!(tokio::time::timeout(limit, &mut write).await.is_err(), "it is not stable");
            assert_eq!((told.load(Ordering::Relaxed), lake.read(100, 20).await), (2, vec![6; 20]));
            lake.sync().await;
            write.await.unwrap();
        }
        {
            let mut zeroes = volume.write_zeroes_telling(0, 3 * BLOCK, false, durability, &mut seen);
            assert!(tokio::time::timeout(limit, &mut zeroes).await.is_err(), "it is not stable");
            assert_eq!((told.load(Ordering::Relaxed), lake.read(10, 20).await), (3, vec![0; 20]));
            lake.sync().await;
            zeroes.await.unwrap();
        }
        let report = volume.log_report();
        assert_eq!((report.writes, report.fua + report.always), (3, 3), "each is counted once: {report:?}");
        // Nothing is waited for.
        volume.update(identity(), Service { sync: SyncMode::Disabled, ..service() });
        volume.write_telling(0, segments(&[7; BLOCK as usize]), durability, &mut seen).await.unwrap();
        volume.write_zeroes_telling(0, BLOCK, false, durability, &mut seen).await.unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 3);
    }
}

/// A write that waited for room, or was long, was acknowledged without being stable after `zfs set sync=always` had returned: how
/// it is served was what it had found when it came.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_under_way_when_sync_becomes_always_waits_for_its_group() {
    let lake = Lake::limited(service(), Limits { dirty_max: 8 * BLOCK, ..Limits::default() });
    let mut blkid = 0;
    let waiting = loop {
        assert!(blkid < BLOCKS, "there is always room");
        let (volume, data) = (Arc::clone(&lake.volume), segments(&[1; BLOCK as usize]));
        let write = tokio::spawn(async move { volume.write(blkid * BLOCK, data, Cached).await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        if !write.is_finished() {
            break write;
        }
        blkid += 1;
    };
    lake.volume.update(identity(), Service { sync: SyncMode::Always, ..service() });
    lake.sync().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(lake.read(blkid * BLOCK, 3).await, [1; 3], "there was room");
    assert!(!waiting.is_finished(), "it is not stable");
    lake.sync().await;
    waiting.await.unwrap().unwrap();
}

/// A disk that was written to again and again in one place had its pool commit as though it were filling it.
#[tokio::test]
async fn what_is_written_over_before_it_is_synced_takes_no_more_space_than_once() {
    let lake = Lake::new(service());
    let plenty = Supply { shared: 1 << 30, free: 1 << 30, ..Supply::default() };
    lake.txgs.set_supply(plenty);
    let left = || (lake.volume.txgs.available(), lake.txgs.dirty());
    let untouched = left();
    let block = vec![1; BLOCK as usize];
    lake.write(0, &block).await;
    let once = left();
    assert!(once.0 < untouched.0 && once.1 >= BLOCK);
    for round in 0..10 {
        lake.write(0, &block).await;
        lake.write(100, &[round; 5]).await;
        lake.volume.write_zeroes(0, 200, false, Cached).await.unwrap();
        assert_eq!(left(), once, "round {round}");
    }
    // A part of two blocks, of which one is dirty.
    lake.write(BLOCK - 1, &[2; 2]).await;
    let twice = left();
    assert_eq!((untouched.0 - twice.0, twice.1 - once.1), (2 * (untouched.0 - once.0), BLOCK));
    lake.write(0, &[block.clone(), block.clone()].concat()).await;
    assert_eq!(left(), twice);
    // What is zero stays zero, and takes nothing.
    lake.volume.write_zeroes(5 * BLOCK + 1, 10, false, Cached).await.unwrap();
    assert_eq!(left(), twice);
    // What is freed takes no memory any more; what was announced for it stays to the end of the group, at least.
    lake.volume.unmap(0, BLOCK, Cached).await.unwrap();
    assert!(left().0 <= twice.0 && left().1 < twice.1);
    // In the next group it is another block.
    let txg = lake.close().await;
    let before = left();
    lake.write(BLOCK, &block).await;
    assert_eq!(before.0 - left().0, untouched.0 - once.0);
    lake.commit(txg);
}

#[tokio::test]
async fn a_read_of_what_was_replaced_and_written_over_meanwhile_begins_again() {
    let lake = Lake::new(service());
    lake.write(0, &vec![1; 4 * BLOCK as usize]).await;
    lake.sync().await;
    lake.store.never_cache();
    let gate = lake.store.hold_reads();
    let (volume, other) = (Arc::clone(&lake.volume), Arc::clone(&lake.volume));
    let reader = tokio::spawn(async move { volume.read(100, 2 * BLOCK as usize).await });
    // A partial write whose base is being read meanwhile.
    let writer = tokio::spawn(async move { other.write(10, segments(&[3; 5]), Cached).await });
    while lake.store.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    // New content, on disk, and the old blocks are gone before the reads come to them.
    lake.write(0, &vec![2; 4 * BLOCK as usize]).await;
    lake.sync().await;
    drop(gate);
    assert_eq!(flatten(&reader.await.unwrap().unwrap()), vec![2; 2 * BLOCK as usize]);
    writer.await.unwrap().unwrap();
    assert_eq!(lake.read(9, 8).await, [2, 3, 3, 3, 3, 3, 2, 2]);
    // What cannot be read at all is an error, not a loop.
    lake.sync().await;
    lake.store.lose_everything();
    let lost = lake.volume.read(BLOCK, 10).await;
    assert!(matches!(lost, Err(VolumeError::Unreadable { .. })), "{lost:?}");
}

/// With `checksum=off` nothing but the commits tells that a place was given to another block.
#[tokio::test]
async fn a_read_without_checksums_that_a_commit_overtook_begins_again() {
    let lake = Lake::new(service());
    lake.store.without_checksums();
    lake.write(0, &vec![1; 4 * BLOCK as usize]).await;
    lake.sync().await;
    assert_eq!(lake.read(5, 3).await, [1; 3]);
    let gate = lake.store.hold_reads();
    let volume = Arc::clone(&lake.volume);
    let reader = tokio::spawn(async move { volume.read(100, 2 * BLOCK as usize).await });
    while lake.store.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    lake.write(0, &vec![2; 4 * BLOCK as usize]).await;
    lake.sync().await;
    drop(gate);
    assert_eq!(flatten(&reader.await.unwrap().unwrap()), vec![2; 2 * BLOCK as usize]);
}

/// A read that took longer than the time between commits was done nine times, and then the host was told of a bad block at that
/// address. No commit had touched it; and of one that is replaced each time nobody knows that it is bad, either.
#[tokio::test]
async fn a_read_without_checksums_that_takes_longer_than_commits_names_no_bad_block() {
    for (changed, is_good) in [(64, true), (0, false)] {
        let lake = Lake::new(service());
        lake.store.without_checksums();
        lake.write(0, &vec![1; 4 * BLOCK as usize]).await;
        lake.sync().await;
        let mut gate = lake.store.hold_reads();
        let volume = Arc::clone(&lake.volume);
        let reader = tokio::spawn(async move { volume.read(100, 10).await });
        for attempt in 0..=RETRIES {
            while lake.store.waiting() < 1 && !reader.is_finished() {
                tokio::task::yield_now().await;
            }
            lake.write(changed * BLOCK, &vec![2 + attempt as u8; BLOCK as usize]).await;
            lake.sync().await;
            let next = lake.store.hold_reads_next();
            drop(gate);
            gate = next.await.unwrap();
        }
        drop(gate);
        match reader.await.unwrap() {
            Ok(read) => assert!(is_good && flatten(&read) == [1; 10], "block {changed} was replaced"),
            Err(error) => assert!(!is_good && matches!(error, VolumeError::Failed(_)), "{changed}: {error}"),
        }
    }
}

/// From the third attempt on the group is held while the rest of a block is read. If nobody else has it, that may take for
/// ever; the group would neither end nor be found out to be stuck.
#[tokio::test(start_paused = true)]
async fn a_device_that_answers_nobody_does_not_keep_a_group_open() {
    async fn next(lake: &Lake, gate: OwnedRwLockWriteGuard<()>) -> OwnedRwLockWriteGuard<()> {
        let next = lake.store.hold_reads_next();
        drop(gate);
        let gate = next.await.unwrap();
        while lake.store.waiting() < 1 {
            tokio::task::yield_now().await;
        }
        gate
    }
    let lake = Lake::new(service());
    lake.write(0, &vec![1; BLOCK as usize]).await;
    for round in 0..2 {
        // Its pointer has been read then.
        lake.write(64 * BLOCK, &vec![round; BLOCK as usize]).await;
        lake.sync().await;
    }
    lake.store.never_cache();
    let mut gate = lake.store.hold_reads();
    let volume = Arc::clone(&lake.volume);
    let writer = tokio::spawn(async move { volume.write(10, segments(&[3; 5]), Cached).await });
    while lake.store.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    for round in 0..2 {
        // Under another indirect block, so that what is being read stays good and is only out of date.
        lake.write(64 * BLOCK, &vec![round; BLOCK as usize]).await;
        lake.sync().await;
        // The indirect block, and the block.
        gate = next(&lake, gate).await;
        gate = next(&lake, gate).await;
    }
    let closed = tokio::time::timeout(Duration::from_secs(600), lake.close()).await;
    let txg = closed.expect("the group ends");
    lake.commit(txg);
    drop(gate);
    writer.await.unwrap().unwrap();
    assert_eq!(lake.read(9, 7).await, [1, 3, 3, 3, 3, 3, 1]);
}

/// Connections drop the writes of clients that are gone, wherever those are.
#[tokio::test]
async fn a_write_that_is_dropped_while_its_base_is_read_changes_nothing_and_holds_nothing() {
    let lake = Lake::new(service());
    for round in 0..2 {
        lake.write(0, &vec![round; BLOCK as usize]).await;
        lake.sync().await;
    }
    lake.store.never_cache();
    let gate = lake.store.hold_reads();
    let mut given_up = lake.volume.write(10, segments(&[3; 5]), Cached);
    assert!(given_up.as_mut().now_or_never().is_none(), "its base is not at hand");
    lake.write(0, &[4; BLOCK as usize]).await;
    drop(given_up);
    drop(gate);
    assert_eq!(lake.txgs.dirty(), BLOCK + ABOVE);
    lake.sync().await;
    assert_eq!(lake.txgs.dirty(), 0);
    assert!(lake.read(0, BLOCK as usize).await == [4; BLOCK as usize]);
}

/// Who waits for room gives up what it made of partial blocks: they come out right all the same, each once.
#[tokio::test(start_paused = true)]
async fn parts_of_blocks_that_wait_for_room_are_put_together_when_there_is_some() {
    let lake = Lake::limited(service(), Limits { dirty_max: 8 * BLOCK, ..Limits::default() });
    for blkid in 0..BLOCKS {
        lake.write(blkid * BLOCK, &[blkid as u8; BLOCK as usize]).await;
        if blkid % 4 == 3 {
            lake.sync().await;
        }
    }
    let mut writers = tokio::task::JoinSet::new();
    for pair in 0..BLOCKS / 2 {
        let volume = Arc::clone(&lake.volume);
        // The end of one block and the beginning of the next.
        writers.spawn(async move {
            volume.write(pair * 2 * BLOCK + BLOCK - 1, segments(&[0xaa; 2]), Cached).await
        });
    }
    let mut groups = 0;
    while !writers.is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        while let Some(done) = writers.try_join_next() {
            done.unwrap().unwrap();
        }
        lake.sync().await;
        groups += 1;
        assert!(groups < 1000, "it ends");
    }
    assert!(groups > 8, "they had to wait: {groups}");
    for blkid in 0..BLOCKS {
        let mut expected = vec![blkid as u8; BLOCK as usize];
        expected[if blkid % 2 == 0 { BLOCK as usize - 1 } else { 0 }] = 0xaa;
        assert!(lake.read(blkid * BLOCK, BLOCK as usize).await == expected, "block {blkid}");
    }
}

#[tokio::test]
async fn what_becomes_a_hole_has_its_price_in_memory() {
    let lake = Lake::new(service());
    let unmap = |blkid: u64, blocks: u64| lake.volume.unmap(blkid * BLOCK, blocks * BLOCK, Cached);
    for blkid in (0..BLOCKS).step_by(2) {
        unmap(blkid, 1).await.unwrap();
    }
    let dirty = lake.txgs.dirty();
    assert_eq!(dirty, BLOCKS / 2 * (FREED_BYTES + FREED_BLOCK_BYTES) + 3 * ABOVE);
    unmap(0, BLOCKS).await.unwrap();
    assert_eq!(lake.txgs.dirty(), dirty, "one range by now");
    lake.sync().await;
    assert_eq!(lake.txgs.dirty(), 0);
}

/// Indirect blocks above scattered changes were in no account, and took a hundred times the memory of what was: beyond any
/// limit, and the daemon was killed.
#[tokio::test]
async fn indirect_blocks_above_a_change_count_once_in_a_group_until_it_is_synced() {
    let lake = Lake::new(service());
    for blkid in [0, 32, 64, 1, 33, 31] {
        lake.write(blkid * BLOCK, &[1; BLOCK as usize]).await;
    }
    assert_eq!(lake.txgs.dirty(), 6 * BLOCK + 3 * ABOVE);
    let txg = lake.close().await;
    lake.write(0, &[2; BLOCK as usize]).await;
    assert_eq!(lake.txgs.dirty(), 7 * BLOCK + 4 * ABOVE, "and in the next one");
    // As the writer says when blocks are on their way; what is above them is not.
    lake.txgs.undirty(txg, 6 * BLOCK);
    assert_eq!(lake.txgs.dirty(), BLOCK + 4 * ABOVE);
    lake.commit(txg);
    assert_eq!(lake.txgs.dirty(), BLOCK + ABOVE);
    lake.sync().await;
    assert_eq!(lake.txgs.dirty(), 0);
}

/// Hosts that trim a file system trim the same free space over and over, and waited for room in memory for it.
#[tokio::test]
async fn what_is_discarded_again_before_a_commit_costs_nothing() {
    let lake = Lake::new(service());
    lake.write(0, &vec![1; SIZE as usize]).await;
    lake.sync().await;
    let unmap = |blkid: u64, blocks: u64| lake.volume.unmap(blkid * BLOCK, blocks * BLOCK, Cached);
    unmap(0, BLOCKS).await.unwrap();
    let dirty = lake.txgs.dirty();
    assert!(dirty >= FREED_BYTES + BLOCKS * FREED_BLOCK_BYTES, "{dirty}");
    unmap(0, BLOCKS).await.unwrap();
    unmap(7, 20).await.unwrap();
    lake.close().await;
    unmap(0, BLOCKS).await.unwrap();
    assert_eq!(lake.txgs.dirty(), dirty, "also in the next group");
    // What is written in between is freed all the same.
    lake.write(9 * BLOCK, &[1; BLOCK as usize]).await;
    unmap(0, BLOCKS).await.unwrap();
    let all = lake.volume.extents(0, SIZE, 9).await.unwrap();
    assert_eq!(all, [Extent { len: SIZE, hole: true }]);
}

#[tokio::test]
async fn extents_are_those_of_memory_over_those_of_the_committed_state() {
    let lake = Lake::new(service());
    lake.write(2 * BLOCK, &vec![1; 6 * BLOCK as usize]).await;
    lake.sync().await;
    lake.volume.unmap(3 * BLOCK, 2 * BLOCK, Cached).await.unwrap();
    lake.write(4 * BLOCK, &[1; BLOCK as usize]).await;
    let txg = lake.close().await;
    lake.write(9 * BLOCK, &[1; 1]).await;
    lake.volume.unmap(6 * BLOCK, BLOCK, Cached).await.unwrap();
    let expected: Vec<Extent> = [(2, true), (1, false), (1, true), (2, false), (1, true), (1, false)]
        .into_iter()
        .chain([(1, true), (1, false), (86, true)])
        .map(|(blocks, hole)| Extent { len: blocks * BLOCK, hole })
        .collect();
    assert_eq!(lake.volume.extents(0, SIZE, 100).await.unwrap(), expected);
    assert_eq!(lake.volume.extents(0, SIZE, 3).await.unwrap(), expected[..3]);
    let cut = lake.volume.extents(BLOCK + 1, 2 * BLOCK, 9).await.unwrap();
    assert_eq!(
        cut.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>(),
        [(4095, true), (4096, false), (1, true)]
    );
    lake.commit(txg);
    lake.sync().await;
    assert_eq!(lake.volume.extents(0, SIZE, 100).await.unwrap(), expected, "the same when all is on disk");
}

/// Of a volume with a gigabyte that was not on disk yet a worker did nothing else for a third of a second, for each time that
/// somebody asked.
#[tokio::test]
async fn asking_what_is_dirty_leaves_others_their_turn() {
    let lake = Lake::new(service());
    lake.write(0, &vec![1; SIZE as usize]).await;
    // More in all than one turn has room for.
    let mut left = Vec::new();
    for _ in 0..4 {
        let mut asked = lake.volume.extents(0, SIZE, 9);
        if asked.as_mut().now_or_never().is_none() {
            left.push(asked);
        }
    }
    assert!(!left.is_empty(), "{} blocks at once", 4 * BLOCKS);
    for asked in left {
        assert_eq!(asked.await.unwrap(), [Extent { len: SIZE, hole: false }]);
    }
}

/// Space is announced for as many copies as there are to be; more of them would find no place.
#[tokio::test]
async fn more_copies_are_written_of_what_was_announced_at_their_price_only() {
    let lake = Lake::new(service());
    lake.write(0, &[1; 10]).await;
    lake.volume.update(identity(), Service { copies: 3, block_space: 3 * BLOCK, ..service() });
    lake.write(BLOCK, &[1; 10]).await;
    let fewer = |copies| Service { copies, block_space: u64::from(copies) * BLOCK, ..service() };
    let first = lake.close().await;
    lake.volume.update(identity(), fewer(2));
    lake.write(2 * BLOCK, &[1; 10]).await;
    lake.volume.update(identity(), fewer(3));
    assert_eq!(lake.commit(first).copies_max, Some(1));
    let second = lake.close().await;
    lake.write(3 * BLOCK, &[1; 10]).await;
    assert_eq!(lake.commit(second).copies_max, Some(1), "as long as that is not synced");
    assert_eq!(lake.sync().await.copies_max, Some(3));
}

#[tokio::test]
async fn another_size_takes_effect_at_once() {
    let lake = Lake::new(Service { size: 10 * BLOCK, ..service() });
    lake.write(0, &vec![1; 10 * BLOCK as usize]).await;
    lake.volume.update(identity(), service());
    assert_eq!(lake.volume.geometry().size, SIZE);
    lake.write(20 * BLOCK, &[1; 10]).await;
    assert_eq!(lake.read(10 * BLOCK, 10).await, [0; 10]);
    lake.volume.unmap(60 * BLOCK, 20 * BLOCK, Cached).await.unwrap();
    lake.volume.update(identity(), Service { size: 5 * BLOCK, ..service() });
    assert_eq!(lake.txgs.dirty(), 5 * BLOCK + FREED_BYTES + 20 * FREED_BLOCK_BYTES + 3 * ABOVE);
    let outside = lake.volume.read(5 * BLOCK, 1).await;
    assert!(matches!(outside, Err(VolumeError::OutOfRange { .. })));
    let outside = lake.volume.write(5 * BLOCK - 1, segments(&[0; 2]), Cached).await;
    assert!(matches!(outside, Err(VolumeError::OutOfRange { .. })));
    lake.volume.update(identity(), service());
    assert_eq!(lake.read(4 * BLOCK, 8192).await[4090..4100], [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
    let dirty = lake.sync().await;
    assert_eq!((dirty.blocks.len(), dirty.freed.len()), (5, 0), "what was cut off is not written");
}

/// What is dirty, what is committed and what is both at once.
#[tokio::test]
async fn reads_that_are_looked_up_together_see_what_was_written_last() {
    let lake = Lake::new(service());
    for (round, from) in [(1_u8, 0), (2, 7), (3, 13), (4, 30)] {
        for block in (from..BLOCKS).step_by(usize::from(round) + 1) {
            lake.write(block * BLOCK, &vec![round; BLOCK as usize]).await;
        }
        if round == 3 {
            lake.volume.unmap(20 * BLOCK, 9 * BLOCK, Cached).await.unwrap();
        }
        let mut hits = 0;
        let mut check = async |when: &str| {
            let reads: Vec<(u64, usize)> =
                (0..BLOCKS).map(|n| (n * 37 % BLOCKS * BLOCK + 100, 300)).collect();
            let mut seen = 0;
            let mut together = vec![None; reads.len()];
            lake.volume.read_cached_each(&reads, &mut |number, found| {
                seen += 1;
                together[number] = found;
            });
            assert_eq!(seen, reads.len());
            for ((offset, len), found) in reads.into_iter().zip(together) {
                // The store has some of its blocks at hand, by chance; what is dirty is at hand always.
                let Some(found) = found else { continue };
                assert_eq!(flatten(&found), lake.read(offset, len).await, "{when} {round}: {offset}");
                hits += 1;
            }
        };
        check("dirty").await;
        let txg = lake.close().await;
        lake.write(5 * BLOCK, &vec![round + 100; BLOCK as usize]).await;
        check("being written").await;
        lake.commit(txg);
        check("committed").await;
        assert!(hits > BLOCKS / 2, "{hits} in round {round}");
    }
    lake.volume.close();
    lake.volume.read_cached_each(&[(0, 1), (4096, 1)], &mut |_, found| assert!(found.is_none()));
}

#[tokio::test]
async fn refusals() {
    let lake = Lake::new(Service { read_only: true, ..service() });
    assert!(lake.volume.geometry().read_only);
    assert_eq!(lake.volume.write(0, segments(&[1]), Cached).await, Err(VolumeError::ReadOnly));
    assert_eq!(lake.volume.unmap(0, 4096, Cached).await, Err(VolumeError::ReadOnly));
    assert_eq!(lake.volume.write_zeroes(0, 4096, true, Cached).await, Err(VolumeError::ReadOnly));
    lake.volume.update(identity(), service());
    lake.write(0, &[1; 10]).await;
    let beyond = lake.volume.write(u64::MAX, segments(&[1; 10]), Cached).await;
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
    lake.volume.write(SIZE, Segments::new(), Cached).await.unwrap();
    lake.volume.close();
    assert!(matches!(lake.volume.write(0, segments(&[1]), Cached).await, Err(VolumeError::NotReady(_))));
    assert!(matches!(lake.volume.read(0, 1).await, Err(VolumeError::NotReady(_))));
    assert!(lake.volume.read_cached(0, 1).is_none());
    assert!(matches!(lake.volume.flush().await, Err(VolumeError::NotReady(_))));
    assert_eq!(lake.sync().await.blocks.len(), 1, "what was acknowledged is still synced");
    // No room: nothing of the write is done.
    let lake = Lake::new(service());
    let small = LiveVolume::new(
        8,
        identity(),
        service(),
        lake.store.object(),
        lake.txgs.for_volume(8, Room { limit: BLOCK, ..Room::default() }),
        Log::detached(8),
    );
    let full = small.write(0, segments(&vec![1; 3 * BLOCK as usize]), Cached).await;
    assert_eq!(full, Err(VolumeError::NoSpace));
    let zeroed = small.write_zeroes(BLOCK / 2, 2 * BLOCK, false, Cached).await;
    assert_eq!(zeroed, Err(VolumeError::NoSpace), "the blocks at its ends are stored anew");
    small.unmap(BLOCK / 2, 2 * BLOCK, Cached).await.unwrap();
    small.unmap(0, SIZE, Cached).await.unwrap();
    assert_eq!(flatten(&small.read(0, 10).await.unwrap()), [0; 10]);
}
