//! Devices that break their promises: hits are lost, bytes never wrong.

use std::{io::ErrorKind, ops::Range, sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, On};
use l2arc::{Config, L2};
use ondisk::l2arc::HEADER_OFFSET;
use tokio::time::{Instant, sleep};

use crate::support::{SIZE, block, content, eager, fill, hit, hits, key, memory, opened};

const HEADER: Range<u64> = HEADER_OFFSET..HEADER_OFFSET + 4096;

#[tokio::test(start_paused = true)]
async fn a_header_torn_at_any_write_costs_the_cache_at_most() {
    let mut survived = 0;
    for torn in 0..24 {
        let media = memory(40);
        let disk = Arc::new(FaultDisk::new(media.clone(), torn));
        let (l2, _) = opened(disk.clone(), eager()).await;
        disk.inject(
            Fault::new(On::Write, HEADER, Effect::Tear(ErrorKind::NotConnected)).after(torn).times(1),
        );
        for portion in 0..12 {
            for n in portion * 256..(portion + 1) * 256 {
                l2.offer(block(n, SIZE));
            }
            sleep(Duration::from_millis(300)).await;
            // The power goes where the tear was.
            if l2.stats().l2_writes_error > 0 {
                break;
            }
        }
        drop(l2);
        disk.heal();
        let (l2, recovered) = opened(disk, eager()).await;
        survived += u64::from(recovered.blocks > 0);
        let _old = hits(&l2, 0..3072, SIZE).await;
        assert_eq!(l2.stats().l2_cksum_bad, 0, "torn write {torn}: {recovered}");
        fill(&l2, 5000..6000, SIZE).await;
        assert_eq!(hits(&l2, 5000..6000, SIZE).await, 1000, "torn write {torn}: it works afterwards");
    }
    assert!(survived > 3, "a tear after the fields is none");
}

/// The header said nothing of a stretch that was trimmed already: after a power cut between the two, log blocks behind
/// it were believed, and blocks in it were zeroes.
#[tokio::test(start_paused = true)]
async fn a_power_cut_behind_a_trim_leaves_no_block_that_is_not_there() {
    let config = Config { trim_ahead: 50, ..eager() };
    let mut recovered_some = 0;
    for cut in 0..24 {
        let disk = Arc::new(FaultDisk::new(memory(40), cut));
        let (l2, _) = opened(disk.clone(), config).await;
        // Once around, or no trim would be in the way of anything.
        fill(&l2, 0..2600, SIZE).await;
        disk.inject(Fault::new(On::Write, HEADER, Effect::Error(ErrorKind::NotConnected)).after(cut));
        let mut next = 2600;
        while l2.stats().l2_writes_error == 0 {
            for n in next..next + 200 {
                l2.offer(block(n, SIZE));
            }
            next += 200;
            sleep(Duration::from_millis(500)).await;
        }
        drop(l2);
        disk.heal();
        let (l2, recovered) = opened(disk, config).await;
        recovered_some += u64::from(recovered.blocks > 200);
        let found = hits(&l2, 0..next, SIZE).await;
        assert_eq!(l2.stats().l2_cksum_bad, 0, "cut {cut}: {found} hits, {recovered}");
    }
    assert!(recovered_some > 16, "{recovered_some} of 24");
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_at_any_time_leaves_a_device_that_can_be_used() {
    let (mut recovered_some, mut stale) = (0, 0);
    for seed in 0..30u64 {
        let disk = Arc::new(FaultDisk::with_write_cache(memory(40), seed));
        let (l2, _) = opened(disk.clone(), Config { reinsert: true, ..eager() }).await;
        let mut next = 0;
        for _ in 0..6 + seed % 12 {
            for n in next..next + 200 {
                l2.offer(block(n, SIZE));
            }
            next += 200;
            sleep(Duration::from_millis(230 + seed)).await;
            if seed % 3 == 0 {
                // Now and then the device's own cache is emptied.
                disk.flush().await.unwrap();
            }
            let _hot = hits(&l2, next - 50..next, SIZE).await;
        }
        disk.power_cut(seed).await.unwrap();
        drop(l2);
        disk.come_back();
        let (l2, recovered) = opened(disk, eager()).await;
        recovered_some += u64::from(recovered.blocks > 0);
        // Nothing waits for a flush: log blocks may be there without what they tell of. The reader notices.
        let _old = hits(&l2, 0..next, SIZE).await;
        stale += l2.stats().l2_cksum_bad;
        let before = l2.stats().l2_cksum_bad;
        fill(&l2, 50_000..52_500, SIZE).await;
        assert_eq!(hits(&l2, 51_500..52_500, SIZE).await, 1000, "seed {seed}");
        assert_eq!(l2.stats().l2_cksum_bad, before, "seed {seed}: what is written now is right");
    }
    assert!(recovered_some > 5, "{recovered_some} of 30");
    println!("{recovered_some} of 30 remembered something; {stale} blocks were stale");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_vanishes_during_a_read_costs_the_read() {
    let disk = Arc::new(FaultDisk::new(memory(64), 1));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..500, SIZE).await;
    let delay = Duration::from_millis(50);
    disk.inject(Fault::anywhere(On::Read, Effect::Delay(delay..=delay)));
    let read = tokio::spawn(l2.read(&key(7), SIZE).unwrap());
    sleep(Duration::from_millis(20)).await;
    disk.vanish();
    assert_eq!(read.await.unwrap(), None);
    assert_eq!(l2.stats().l2_io_error, 1);
    assert_eq!(hits(&l2, 0..100, SIZE).await, 0);
    let errors = l2.stats().l2_io_error;
    assert!(errors < 12, "a device that is gone is soon left alone: {errors}");
    for n in 600..700 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(2)).await;
    assert!(l2.stats().l2_writes_error > 0 && !l2.holds(&key(600)));
    disk.come_back();
    disk.heal();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(hits(&l2, 0..100, SIZE).await, 100, "it is as it was");
    fill(&l2, 600..700, SIZE).await;
    assert_eq!(hits(&l2, 600..700, SIZE).await, 100);
}

#[tokio::test(start_paused = true)]
async fn what_is_overwritten_during_a_read_is_not_given_out() {
    let disk = Arc::new(FaultDisk::new(memory(40), 1));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..500, SIZE).await;
    // Less than anybody waits for.
    let delay = Duration::from_millis(990);
    disk.inject(Fault::anywhere(On::Read, Effect::Delay(delay..=delay)).times(1));
    let read = tokio::spawn(l2.read(&key(7), SIZE).unwrap());
    sleep(Duration::from_millis(1)).await;
    for first in (1000..4000).step_by(600) {
        for n in first..first + 600 {
            l2.offer(block(n, SIZE));
        }
        sleep(Duration::from_millis(150)).await;
    }
    assert!(!l2.holds(&key(7)));
    assert_eq!(read.await.unwrap(), None);
    assert_eq!(l2.stats().l2_evict_reading, 1);
}

#[tokio::test(start_paused = true)]
async fn bits_that_rot_are_the_readers_to_notice_and_a_lie_is_told_once() {
    let disk = Arc::new(FaultDisk::new(memory(64), 9));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..2000, SIZE).await;
    disk.rot(0x40_1000..0x40_1000 + (24 << 20), 400).await.unwrap();
    let right = hits(&l2, 0..2000, SIZE).await;
    let bad = l2.stats().l2_cksum_bad;
    assert!((100..=400).contains(&bad) && right == 2000 - bad, "{bad} of 2000");
    assert_eq!(hits(&l2, 0..2000, SIZE).await, right);
    assert_eq!(l2.stats().l2_cksum_bad, bad, "what lied is not asked again");
    // Log blocks are rotten, too: the ring goes on all the same, and the index forgets what is overwritten.
    fill(&l2, 10_000..16_000, SIZE).await;
    let _all = hits(&l2, 0..16_000, SIZE).await;
    assert_eq!(l2.stats().l2_cksum_bad, bad);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_leaves_no_trace() {
    for effect in [Effect::Error(ErrorKind::Other), Effect::Tear(ErrorKind::Other)] {
        let disk = Arc::new(FaultDisk::new(memory(40), 4));
        let (l2, _) = opened(disk.clone(), eager()).await;
        disk.inject(Fault::anywhere(On::Write, effect).chance_ppm(60_000));
        let mut next = 0;
        for _ in 0..60 {
            fill(&l2, next..next + 100, SIZE).await;
            next += 100;
        }
        let stats = l2.stats();
        assert!(stats.l2_writes_error > 10, "{stats:?}");
        let right = hits(&l2, 0..next, SIZE).await;
        assert!(right > 500, "{right}");
        assert_eq!(l2.stats().l2_cksum_bad, 0, "what failed is not in the index");
        drop(l2);
        disk.heal();
        let (l2, recovered) = opened(disk, eager()).await;
        let again = hits(&l2, 0..next, SIZE).await;
        assert_eq!(l2.stats().l2_cksum_bad, 0);
        assert!(again * 100 >= right * 90, "{again} of {right}: {recovered}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_loses_or_misplaces_writes_gives_no_wrong_bytes() {
    for effect in [Effect::Lose, Effect::Misdirect(1 << 20), Effect::FlipBits(3)] {
        let disk = Arc::new(FaultDisk::new(memory(40), 4));
        let (l2, _) = opened(disk.clone(), eager()).await;
        disk.inject(Fault::anywhere(On::Write, effect.clone()).chance_ppm(100_000));
        fill(&l2, 0..3000, SIZE).await;
        let mut wrong = 0;
        for n in 0..3000 {
            let Some(read) = l2.read(&key(n), SIZE) else { continue };
            wrong += u64::from(read.await.is_some_and(|bytes| bytes != content(n, SIZE)));
        }
        assert!(wrong > 0, "{effect:?} does something");
        drop(l2);
        disk.heal();
        // What it remembers may be wrong; it stays in use.
        let (l2, _) = opened(disk, eager()).await;
        let _some = hits(&l2, 0..3000, SIZE).await;
        fill(&l2, 9000..10_000, SIZE).await;
        assert_eq!(hits(&l2, 9000..10_000, SIZE).await, 1000);
        assert!(hit(&l2, 9500, SIZE).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_never_answers_holds_up_a_read_for_a_second_and_only_one() {
    let disk = Arc::new(FaultDisk::new(memory(64), 1));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..500, SIZE).await;
    let hour = Duration::from_secs(3600);
    disk.inject(Fault::anywhere(On::Read, Effect::Delay(hour..=hour)).times(1));
    let begin = Instant::now();
    assert_eq!(l2.read(&key(7), SIZE).unwrap().await, None, "the pool is asked");
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
    // It owes an answer: nothing is asked of it, and nothing is written to it; what comes waits.
    let (written, misses) = (l2.stats().l2_write_bytes, l2.stats().l2_misses);
    assert!((0..500).all(|n| l2.read(&key(n), SIZE).is_none()));
    assert_eq!(l2.stats().l2_misses, misses + 500);
    assert!((0..500).all(|n| l2.find(&key(n), SIZE).is_none()));
    assert_eq!(l2.stats().l2_misses, misses + 500, "not of what should not be here");
    for n in 600..700 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!((l2.stats().l2_write_bytes, l2.waiting()), (written, 100 * u64::from(SIZE)));
    // The answer comes after all.
    sleep(hour).await;
    assert_eq!(hits(&l2, 0..500, SIZE).await, 500);
    assert_eq!(hits(&l2, 600..700, SIZE).await, 100);
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

/// Reads so many blocks at the same time; how many of them were asked for at the device.
async fn at_once(l2: &L2, blocks: u64) -> u64 {
    let reads: Vec<_> = (0..blocks).filter_map(|n| l2.read(&key(n), SIZE)).map(tokio::spawn).collect();
    let asked = reads.len() as u64;
    for read in reads {
        read.await.unwrap();
    }
    asked
}

/// One that took half a second for what the pool's disks do in ten milliseconds was asked first for ever, and one that took more
/// than a second every other time.
#[tokio::test(start_paused = true)]
async fn a_device_that_is_much_slower_than_the_pool_is_left_alone_ever_longer() {
    for (slow, is_told) in [(Duration::from_millis(600), true), (Duration::from_millis(1100), false)] {
        let disk = Arc::new(FaultDisk::new(memory(64), 1));
        let (l2, _) = opened(disk.clone(), eager()).await;
        fill(&l2, 0..500, SIZE).await;
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(slow..=slow)));
        assert_eq!(at_once(&l2, 32).await, 32, "nobody knows what the pool takes");
        disk.heal();
        sleep(Duration::from_secs(30)).await;
        l2.set_home(Some(Duration::from_millis(10)));
        assert!(at_once(&l2, 200).await == 200 && l2.devices()[0].slow.is_none());
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(slow..=slow)));
        let mut asked = 0;
        for _ in 0..3600 {
            asked += at_once(&l2, 32).await;
            sleep(Duration::from_secs(1)).await;
        }
        assert!(asked < 32 * 20, "{asked} in an hour");
        assert_eq!(l2.devices()[0].slow.is_some(), is_told);
        // It is quick again.
        disk.heal();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(at_once(&l2, 200).await, 200);
        assert!(l2.devices()[0].slow.is_none());
        assert_eq!(hits(&l2, 0..500, SIZE).await, 500);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_never_ends_is_the_last_one_until_it_does() {
    let disk = Arc::new(FaultDisk::new(memory(64), 1));
    let (l2, _) = opened(disk.clone(), eager()).await;
    fill(&l2, 0..500, SIZE).await;
    let hour = Duration::from_secs(3600);
    disk.inject(Fault::anywhere(On::Write, Effect::Delay(hour..=hour)).times(1));
    for n in 600..700 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(90)).await;
    assert!(l2.stats().l2_writes_error > 0 && !l2.holds(&key(600)));
    assert!(l2.read(&key(7), SIZE).is_none(), "nor is it read from");
    sleep(hour).await;
    fill(&l2, 800..900, SIZE).await;
    assert_eq!(hits(&l2, (0..500).chain(800..900), SIZE).await, 600);
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

/// A device that is busy with itself for a while has lost nothing, but all that was next in the ring was forgotten.
#[tokio::test(start_paused = true)]
async fn what_is_next_in_the_ring_is_not_given_up_while_the_device_does_not_answer() {
    // It is a reader who notices, or the feeder itself.
    for by_reader in [true, false] {
        let disk = Arc::new(FaultDisk::new(memory(64), 1));
        let (l2, _) = opened(disk.clone(), eager()).await;
        fill(&l2, 0..6000, SIZE).await;
        assert!(!l2.devices()[0].filling);
        let held: Vec<u64> = (0..6000).filter(|n| l2.holds(&key(*n))).collect();
        let blocks = l2.stats().l2_bufs;
        assert_eq!(held.len() as u64, blocks);
        let hour = Duration::from_secs(3600);
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(hour..=hour)).times(1));
        let silent_from = Instant::now();
        if by_reader {
            assert!(!hit(&l2, held[0], SIZE).await);
        }
        for portion in 0..40 {
            for n in 0..100 {
                l2.offer(block(10_000 + 100 * portion + n, SIZE));
            }
            sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(l2.stats().l2_bufs, blocks, "by a reader: {by_reader}");
        assert!(l2.read(&key(held[0]), SIZE).is_none(), "it still owes an answer");
        sleep(hour.saturating_sub(silent_from.elapsed()) + Duration::from_secs(11)).await;
        // What waited may have been written by now, and overwritten as much.
        let before = hits(&l2, held.iter().copied(), SIZE).await;
        let came = hits(&l2, 10_000..14_000, SIZE).await;
        assert!(came > 500 && before + came + 100 > blocks, "{before} + {came} of {blocks}");
        assert_eq!(l2.stats().l2_cksum_bad, 0);
    }
}
