//! What is taken, and how much of it.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use disk::{Effect, Fault, FaultDisk, On};
use l2arc::{Block, Config, L2, Offered, Open};
use tokio::time::{Instant, sleep};

use crate::support::{
    ASHIFT, POOL, SIZE, block, content, eager, fill, hits, key, memory, opened, rebuilt, settle,
};

#[tokio::test(start_paused = true)]
async fn no_more_is_written_than_the_endurance_allows() {
    let config = Config { dwpd_limit: 20.0, reinsert: true, ..eager() };
    let (l2, _) = opened(memory(128), config).await;
    let ring = l2.devices()[0].size;
    let capacity = ring / u64::from(SIZE);
    let mut next = 0;
    while l2.devices()[0].filling {
        fill(&l2, next..next + capacity / 4, SIZE).await;
        next += capacity / 4;
    }
    let (begin, filled) = (Instant::now(), l2.devices()[0].written);
    let rate = ring as f64 * 20.0 / 86_400.0;
    let mut checked = 0;
    // Six hours in which three times as much leaves memory as may be written, and half of what is here is asked for.
    for minute in 0..360 {
        for _ in 0..(3.0 * rate * 60.0 / f64::from(SIZE)) as u64 {
            l2.offer(block(next, SIZE));
            next += 1;
        }
        sleep(Duration::from_secs(60)).await;
        if minute % 10 == 0 {
            checked += hits(&l2, (next - capacity..next).step_by(2), SIZE).await;
            let written = l2.devices()[0].written - filled;
            let allowed = rate * begin.elapsed().as_secs_f64() + ring as f64 / 8.0 + 8e6;
            assert!(written as f64 <= allowed, "minute {minute}: {written} bytes of {allowed}");
        }
    }
    let written = (l2.devices()[0].written - filled) as f64;
    let allowed = rate * begin.elapsed().as_secs_f64();
    assert!(written > 0.8 * allowed, "{written} of {allowed}: the budget is used");
    let stats = l2.stats();
    assert!(checked > 0 && stats.l2_skip_over_budget > 0 && stats.l2_cksum_bad == 0, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn over_budget_the_most_valuable_is_written() {
    let config = Config { fill_rate: 100_000, buffer: 4 << 20, ..eager() };
    let (l2, _) = opened(memory(64), config).await;
    // The burst is used up.
    fill(&l2, 0..1000, SIZE).await;
    for n in 10_000..14_000 {
        let frequent = n % 20 == 0;
        l2.offer(Block { frequent, metadata: n % 40 == 0, ..block(n, SIZE) });
    }
    settle(&l2).await;
    let often = hits(&l2, (10_000..14_000).filter(|n| n % 20 == 0), SIZE).await;
    let once = hits(&l2, (10_000..14_000).filter(|n| n % 20 != 0), SIZE).await;
    assert_eq!((often, once), (200, 56), "4 MiB are 256 blocks");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_wanted_is_taken() {
    let (l2, _) = opened(memory(128), eager()).await;
    let offer = async |n: u64, change: fn(&mut Block)| {
        let mut block = block(n, SIZE);
        change(&mut block);
        l2.offer(block);
        settle(&l2).await;
        l2.holds(&key(n))
    };
    assert!(offer(1, |_| ()).await);
    assert!(!offer(2, |block| block.eligible = false).await);
    assert!(!offer(3, |block| block.prefetched = true).await);
    assert!(!offer(4, |block| block.data = block.data.slice(1..)).await, "not the bytes it says");
    assert!(!offer(5, |block| block.psize = 0).await);
    l2.set_config(Config { mfuonly: 1, noprefetch: false, ..eager() });
    assert!(!offer(6, |block| block.metadata = true).await);
    assert!(offer(7, |block| block.frequent = true).await);
    l2.set_config(Config { mfuonly: 2, noprefetch: false, ..eager() });
    assert!(offer(8, |block| block.metadata = true).await);
    assert!(!offer(9, |block| block.prefetched = true).await);
    l2.set_config(Config { noprefetch: false, ..eager() });
    assert!(offer(9, |block| block.prefetched = true).await);
    let stats = l2.stats();
    assert_eq!(stats.l2_prefetch_asize, u64::from(SIZE));
    assert_eq!(stats.l2_bufc_metadata_asize, u64::from(SIZE));
    l2.offer(block(1, SIZE));
    assert_eq!(l2.stats().evict_l2_cached, u64::from(SIZE), "it is here already");
    // What a setting does not want now is eligible all the same, as OpenZFS counts.
    l2.set_config(Config { mfuonly: 1, ..eager() });
    let offered = [
        (block(1, SIZE), Offered::Cached),
        (block(20, SIZE), Offered::Eligible),
        (Block { prefetched: true, ..block(21, SIZE) }, Offered::Ineligible),
        (Block { eligible: false, ..block(22, SIZE) }, Offered::Ineligible),
        (Block { eligible: false, ..block(1, SIZE) }, Offered::Cached),
    ];
    for (block, is) in offered {
        assert_eq!(l2.offer(block), Some(is));
    }
    assert_eq!(l2.waiting(), 0);
    assert_eq!(l2.offer(Block { frequent: true, ..block(23, SIZE) }), Some(Offered::Queued));
}

#[tokio::test(start_paused = true)]
async fn once_it_is_full_a_block_has_to_leave_memory_twice() {
    let config = Config { second_eviction: true, ..eager() };
    let (l2, _) = opened(memory(64), config).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    fill(&l2, 0..capacity, SIZE).await;
    assert!(!l2.devices()[0].filling);
    let written = l2.stats().l2_write_bytes;
    let once = 100_000..100_000 + capacity;
    fill(&l2, once.clone(), SIZE).await;
    let passed = l2.stats().l2_write_bytes - written;
    assert!(passed < capacity * u64::from(SIZE) / 5, "{passed} bytes of blocks that came once");
    fill(&l2, once.clone(), SIZE).await;
    let kept = hits(&l2, once.end - capacity / 2..once.end, SIZE).await;
    assert!(kept * 100 > capacity / 2 * 95, "{kept} of {} that came twice", capacity / 2);
}

#[tokio::test(start_paused = true)]
async fn an_index_that_may_not_grow_costs_hits_and_no_writes() {
    let config = Config { index_max: 70_000, ..eager() };
    let (l2, _) = opened(memory(64), config).await;
    fill(&l2, 0..6000, 4096).await;
    let stats = l2.stats();
    assert!(stats.l2_hdr_size <= 70_000 && stats.l2_abort_lowmem > 0, "{stats:?}");
    let found = hits(&l2, 0..6000, 4096).await;
    assert!(found > 300 && found == stats.l2_bufs, "{found}");
    assert_eq!(l2.stats().l2_cksum_bad, 0);
    // Most of what nobody would find is not written. (Of a table with so few places several take the last one.)
    assert!(stats.l2_write_bytes < 4096 * 6000 * 2 / 3, "{stats:?}");
    let sizes = (stats.l2_asize, stats.l2_size);
    assert_eq!(sizes, (4096 * found, 4096 * found), "what is counted is there");
    // It is taken for full, and shown as what it holds.
    let device = &l2.devices()[0];
    assert_eq!(device.used, 4096 * found + stats.l2_log_blk_asize, "{device:?}");
    assert!(!device.filling && device.used < device.size / 4, "{device:?}");
    // What comes takes the place of what is oldest here, though the device was never full.
    let newest = hits(&l2, 5000..6000, 4096).await;
    let oldest = hits(&l2, 0..1000, 4096).await;
    assert!(newest > 2 * oldest, "{newest} of the last thousand, {oldest} of the first");
}

/// As far as the index goes a ring that is shorter than its device is one like others: after a restart, too.
#[tokio::test(start_paused = true)]
async fn a_ring_that_turns_where_memory_ends_never_gives_a_wrong_block() {
    let config = Config { index_max: 240_000, ..eager() };
    let (size, disk) = (4096, memory(128));
    let (mut l2, _) = opened(disk.clone(), config).await;
    let mut next = 0;
    for round in 0..8_u64 {
        fill(&l2, next..next + 6000, size).await;
        next += 6000;
        let (found, newest) = (hits(&l2, 0..next, size).await, hits(&l2, next - 3000..next, size).await);
        let stats = l2.stats();
        assert_eq!((found, stats.l2_cksum_bad, stats.l2_io_error), (stats.l2_bufs, 0, 0), "round {round}");
        // After a restart the table is fuller than it may become by itself: less is taken at first.
        assert!(newest > 1000, "round {round}: {newest} of the last 3000, {found} in all");
        assert!(
            stats.l2_asize.abs_diff(4096 * found) < 4096 * found / 50,
            "round {round}: {stats:?}, {found}"
        );
        if round % 3 == 2 {
            drop(l2);
            let (again, recovered) = opened(disk.clone(), config).await;
            l2 = again;
            assert!(l2.stats().l2_bufs > found / 2, "round {round}: {recovered}");
            // Memory may be short for the moment only: for a while nothing is passed over.
            fill(&l2, next..next + 100, size).await;
            next += 100;
            sleep(Duration::from_secs(700)).await;
        }
    }
    // With more memory it is as long as its device again.
    l2.set_config(Config { index_max: u64::MAX, ..config });
    let capacity = l2.devices()[0].size / u64::from(size);
    fill(&l2, next..next + 3 * capacity / 2, size).await;
    next += 3 * capacity / 2;
    assert_eq!(hits(&l2, next - capacity / 2..next, size).await, capacity / 2);
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

/// What admission remembers was as large as for all that had been known, and nobody heard of it.
#[tokio::test(start_paused = true)]
async fn what_is_shed_is_what_admission_remembers_too() {
    let (l2, _) = opened(memory(256), eager()).await;
    fill(&l2, 0..30_000, 4096).await;
    sleep(Duration::from_secs(1)).await;
    let admission = || l2.memory() - l2.stats().l2_hdr_size;
    assert!(admission() > 30_000 && l2.beyond() == 0, "{} bytes, {}", admission(), l2.beyond());
    let max = 70_000;
    l2.set_config(Config { index_max: max, ..eager() });
    let index = l2.stats().l2_hdr_size - max;
    assert!(l2.beyond() > index + 20_000, "{} of which the index has {index}", l2.beyond());
    l2.shed();
    assert_eq!((admission(), l2.beyond()), (0, 0));
    assert!(l2.stats().l2_hdr_size <= max);
    // It begins anew, and is as large as what is known now needs.
    fill(&l2, 30_000..60_000, 4096).await;
    sleep(Duration::from_secs(1)).await;
    assert!(admission() < 12_000 && l2.beyond() == 0, "{} bytes, {}", admission(), l2.beyond());
}

/// What was shed in a bad moment was found again only when the pool was opened the next time.
#[tokio::test(start_paused = true)]
async fn what_was_shed_is_found_again_when_there_is_memory() {
    let max = 1_000_000;
    let (l2, _) = opened(memory(256), Config { index_max: max, ..eager() }).await;
    fill(&l2, 0..30_000, 4096).await;
    let before = l2.stats();
    assert_eq!(before.l2_bufs, 30_000);
    l2.set_config(Config { index_max: 70_000, ..eager() });
    l2.shed();
    let known = || (0..30_000).filter(|n| l2.holds(&key(*n))).count() as u64;
    let few = known();
    assert!(few < 3000 && l2.stats().l2_asize == 4096 * few, "{few}: {:?}", l2.stats());
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(known(), few, "there is no memory");
    // It grows no faster than whoever looks after memory can follow.
    l2.set_config(Config { index_max: max, ..eager() });
    let mut memory = l2.stats().l2_hdr_size;
    for second in 0..60 {
        assert!(second >= 5 || known() == few, "after {second} s there may be none again");
        sleep(Duration::from_secs(1)).await;
        let now = l2.stats().l2_hdr_size;
        assert!(now - memory <= max / 16, "{} in second {second}", now - memory);
        memory = now;
    }
    assert_eq!(hits(&l2, 0..30_000, 4096).await, 30_000);
    let after = l2.stats();
    assert_eq!((after.l2_bufs, after.l2_asize), (before.l2_bufs, before.l2_asize));
    assert_eq!((after.l2_log_blk_count, after.l2_cksum_bad), (before.l2_log_blk_count, 0));
    assert!(l2.devices()[0].filling);
}

/// A tier that shed most of what it held, on a device that does what it is told to.
async fn shed() -> (L2, Arc<FaultDisk>) {
    let disk = Arc::new(FaultDisk::new(memory(256), 1));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..30_000, 4096).await;
    l2.set_config(Config { index_max: 70_000, ..eager() });
    l2.shed();
    (l2, disk)
}

/// One read that failed ended the search for what was shed, for good.
#[tokio::test(start_paused = true)]
async fn a_log_block_that_cannot_be_read_once_does_not_lose_the_others() {
    let (l2, disk) = shed().await;
    disk.inject(Fault::anywhere(On::Read, Effect::Error(ErrorKind::Other)).times(1));
    l2.set_config(eager());
    sleep(Duration::from_secs(700)).await;
    assert_eq!(l2.stats().l2_rebuild_io_errors, 1);
    assert_eq!(hits(&l2, 0..30_000, 4096).await, 30_000);
}

/// What lay behind one of them was lost, though the ring knew where.
#[tokio::test(start_paused = true)]
async fn log_blocks_that_can_never_be_read_cost_what_they_tell_of_and_are_given_up() {
    let (l2, disk) = shed().await;
    disk.inject(Fault::new(On::Read, 64 << 20..65 << 20, Effect::Error(ErrorKind::Other)));
    l2.set_config(eager());
    let hour = Duration::from_secs(3600);
    sleep(hour).await;
    let known = (0..30_000).filter(|n| l2.holds(&key(*n))).count();
    assert!((29_500..30_000).contains(&known), "{known}");
    let stats = l2.stats();
    let looked = stats.l2_rebuild_log_blks.div_ceil(stats.l2_log_blk_count);
    assert!((2..10).contains(&looked), "{looked} times: a device may come back by itself");
    sleep(hour).await;
    assert_eq!(l2.stats().l2_rebuild_log_blks, stats.l2_rebuild_log_blks);
}

/// Each time memory comes back the device tells of all that it holds, and it does not always stay.
#[tokio::test(start_paused = true)]
async fn memory_that_goes_up_and_down_does_not_keep_a_device_busy() {
    let (l2, _) = opened(memory(256), eager()).await;
    fill(&l2, 0..20_000, 4096).await;
    let of_all = l2.stats().l2_log_blk_count;
    let (half_a_minute, while_short) = (Duration::from_secs(30), Duration::from_secs(10));
    for _ in 0..120 {
        l2.set_config(Config { index_max: 70_000, ..eager() });
        l2.shed();
        sleep(while_short).await;
        l2.set_config(eager());
        sleep(half_a_minute - while_short).await;
    }
    let looked = l2.stats().l2_rebuild_log_blks / of_all;
    assert!((1..=20).contains(&looked), "{looked} times in an hour");
    // In the end it stays.
    sleep(Duration::from_secs(700)).await;
    assert_eq!(hits(&l2, 0..20_000, 4096).await, 20_000);
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

/// What a transfer of neighbours was read into; counts those that are gone.
struct Transfer {
    bytes: Vec<u8>,
    freed: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Transfer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Relaxed);
    }
}

/// A block of a transfer is a slice of a megabyte, and the queue counts 16 KiB for it.
#[tokio::test(start_paused = true)]
async fn what_waits_holds_no_more_memory_than_it_counts() {
    let (l2, _) = opened(memory(64), eager()).await;
    let freed = Arc::new(AtomicU64::new(0));
    for n in 0..50 {
        let mut bytes = vec![0; 1 << 20];
        bytes[4096..4096 + SIZE as usize].copy_from_slice(&content(n, SIZE));
        let transfer = Bytes::from_owner(Transfer { bytes, freed: Arc::clone(&freed) });
        let data = transfer.slice(4096..4096 + SIZE as usize);
        l2.offer(Block { is_part: true, data, ..block(n, SIZE) });
    }
    assert_eq!((l2.waiting(), freed.load(Relaxed)), (50 * u64::from(SIZE), 50));
    settle(&l2).await;
    assert_eq!(hits(&l2, 0..50, SIZE).await, 50);
}

/// The cache's memory comes and goes. A device of which a tenth was used counted as full for good after one bad moment.
#[tokio::test(start_paused = true)]
async fn memory_that_is_short_for_a_while_does_not_end_the_filling() {
    let (l2, _) = opened(memory(256), eager()).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    fill(&l2, 0..capacity / 10, SIZE).await;
    l2.set_config(Config { index_max: 70_000, ..eager() });
    fill(&l2, 100_000..110_000, SIZE).await;
    assert!(l2.stats().l2_abort_lowmem > 3000, "{:?}", l2.stats());
    l2.set_config(eager());
    fill(&l2, capacity / 10..capacity / 2, SIZE).await;
    assert!(l2.devices()[0].filling && l2.is_filling());
    assert_eq!(hits(&l2, 0..capacity / 2, SIZE).await, capacity / 2);
    // If it stays like that the oldest go.
    l2.set_config(Config { index_max: 70_000, ..eager() });
    fill(&l2, 200_000..201_000, SIZE).await;
    sleep(Duration::from_secs(700)).await;
    fill(&l2, 201_000..208_000, SIZE).await;
    assert!(!l2.devices()[0].filling);
}

/// An index that was small yet grew to the lowered limit in that moment, which is when most leaves memory: the device counted as
/// full for good, and was filled at one device write a day.
#[tokio::test(start_paused = true)]
async fn memory_that_is_short_while_the_index_is_small_does_not_end_the_filling() {
    let (l2, _) = opened(memory(256), eager()).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    let lowered = Config { index_max: 110_000, ..eager() };
    fill(&l2, 0..300, SIZE).await;
    assert!(l2.stats().l2_hdr_size < lowered.index_max / 4 * 3);
    l2.set_config(lowered);
    fill(&l2, 100_000..110_000, SIZE).await;
    let stats = l2.stats();
    assert!(stats.l2_abort_lowmem > 3000 && stats.l2_hdr_size > lowered.index_max / 20 * 19, "{stats:?}");
    l2.set_config(eager());
    fill(&l2, 300..capacity / 2, SIZE).await;
    assert!(l2.devices()[0].filling && l2.is_filling());
    assert_eq!(hits(&l2, 0..capacity / 2, SIZE).await, capacity / 2);
    // It goes down by steps, and stays there: the ten minutes are the last one's.
    for index_max in [1_000_000, 400_000, 110_000] {
        l2.set_config(Config { index_max, ..eager() });
        sleep(Duration::from_secs(300)).await;
    }
    fill(&l2, 200_000..201_000, SIZE).await;
    assert!(l2.devices()[0].filling);
    sleep(Duration::from_secs(400)).await;
    fill(&l2, 201_000..208_000, SIZE).await;
    assert!(!l2.devices()[0].filling);
}

/// The limit follows the cache, which is never quite the same: a little less than the index takes was taken for a limit that had
/// just been lowered, for ever, and nothing was written to the device any more.
#[tokio::test(start_paused = true)]
async fn a_limit_that_trembles_below_what_the_index_takes_is_no_limit_that_was_just_lowered() {
    let (l2, _) = opened(memory(256), eager()).await;
    fill(&l2, 100_000..105_000, SIZE).await;
    let takes = l2.stats().l2_hdr_size;
    l2.set_config(Config { index_max: takes, ..eager() });
    for minute in 0..60 {
        l2.set_config(Config { index_max: takes - 1 - minute % 2, ..eager() });
        sleep(Duration::from_secs(60)).await;
    }
    fill(&l2, 201_000..208_000, SIZE).await;
    assert!(!l2.devices()[0].filling);
}

/// Blocks on their way to a device that hangs are in memory as much as those that wait.
#[tokio::test(start_paused = true)]
async fn what_is_being_written_is_counted_and_bounded() {
    let hour = Duration::from_secs(3600);
    let l2 = L2::new(POOL, eager());
    let disks = [1, 2].map(|n| Arc::new(FaultDisk::new(memory(256), n)));
    for (disk, vdev) in disks.iter().zip(1..) {
        l2.add(disk.clone(), vdev, ASHIFT, Open::Remember).unwrap();
    }
    rebuilt(&l2).await;
    sleep(Duration::from_secs(1)).await;
    let idle = l2.memory();
    for disk in &disks {
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(hour..=hour)).times(2));
    }
    let offered = 1000 * u64::from(SIZE);
    for n in 0..1000 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(10)).await;
    let taken = offered - l2.waiting();
    assert!(taken > offered / 2 && taken <= l2.config().buffer, "{taken} of {offered}");
    // What is remembered of evictions takes some, too.
    let more = l2.memory() - idle;
    assert!(more >= offered && more < offered + (1 << 20), "{more} for {offered}");
    sleep(hour).await;
    sleep(hour).await;
    assert_eq!(l2.waiting(), 0);
    assert!(l2.memory() < idle + (1 << 20), "{} of {idle}", l2.memory());
}

/// A dead device takes everything that comes as long as it was never full, and no other was asked to be choosy.
#[tokio::test(start_paused = true)]
async fn a_dead_device_is_not_one_that_has_room() {
    let l2 = L2::new(POOL, Config { second_eviction: true, ..eager() });
    let dead = Arc::new(FaultDisk::new(memory(256), 1));
    l2.add(memory(64), 1, ASHIFT, Open::Remember).unwrap();
    l2.add(dead.clone(), 2, ASHIFT, Open::Remember).unwrap();
    rebuilt(&l2).await;
    fill(&l2, 0..2000, SIZE).await;
    dead.vanish();
    fill(&l2, 2000..9000, SIZE).await;
    let [full, gone] = &l2.devices()[..] else { panic!("there are two") };
    assert!(!full.filling && gone.filling && !l2.is_filling());
    let before = l2.stats();
    fill(&l2, 20_000..22_000, SIZE).await;
    let after = l2.stats();
    assert!(after.l2_skip_first_eviction > 20 << 20, "{after:?}");
    assert_eq!(after.l2_writes_error, before.l2_writes_error, "nothing is taken for it");
    // It comes back, and takes what comes.
    dead.come_back();
    sleep(Duration::from_secs(120)).await;
    assert!(l2.is_filling());
    fill(&l2, 30_000..31_000, SIZE).await;
    assert_eq!(hits(&l2, 30_000..31_000, SIZE).await, 1000);
}
