//! What a device remembers.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, ModelDisk, On, Profile};
use l2arc::{Config, L2, Open, Stopped};
use ondisk::l2arc::HEADER_OFFSET;
use tokio::time::sleep;

use crate::support::{
    ASHIFT, POOL, SIZE, VDEV, block, content, eager, fill, hit, hits, key, memory, opened, rebuilt,
};

/// A device of 1.25 GiB, 79 blocks to a log block as on the real one in docs/format/l2arc.md, with these blocks.
async fn filled(blocks: u64) -> Arc<MemDisk> {
    let disk = memory(1280);
    let (l2, recovered) = opened(disk.clone(), Config { persist_min: 1 << 30, ..eager() }).await;
    assert_eq!(recovered.log_blocks, 0);
    fill(&l2, 0..blocks, SIZE).await;
    assert_eq!(l2.stats().l2_log_blk_count, blocks / 79);
    disk
}

#[tokio::test(start_paused = true)]
async fn nearly_everything_is_back_after_a_crash() {
    let disk = filled(10_000).await;
    let (l2, recovered) = opened(disk.clone(), Config::default()).await;
    assert_eq!((recovered.log_blocks, recovered.of_log_blocks), (126, 126));
    assert_eq!((recovered.blocks, recovered.because.clone()), (9954, Stopped::End));
    assert_eq!(
        recovered.to_string(),
        "recovered 9954 of 9954 blocks (126 of 126 log blocks, 163086336 bytes), because there are no more"
    );
    assert_eq!(hits(&l2, 0..10_000, SIZE).await, 9954);
    let stats = l2.stats();
    assert_eq!((stats.l2_rebuild_success, stats.l2_rebuild_bufs, stats.l2_cksum_bad), (1, 9954, 0));
    assert_eq!((stats.l2_size, stats.l2_mru_asize), (9954 << 14, 9954 << 14));
    // It goes on where it was, and both parts are there the next time.
    fill(&l2, 20_000..22_000, SIZE).await;
    drop(l2);
    let (l2, recovered) = opened(disk.clone(), Config::default()).await;
    assert_eq!(recovered.log_blocks, 126 + 2000 / 79, "{recovered}");
    assert!(hit(&l2, 20_000, SIZE).await && hit(&l2, 0, SIZE).await);
    drop(l2);

    // Not if nobody wants it: and then never again.
    let l2 = L2::new(POOL, Config::default());
    l2.add(disk.clone(), VDEV, ASHIFT, Open::Fresh).unwrap();
    let recovered = rebuilt(&l2).await;
    assert!(recovered.because == Stopped::Fresh && l2.stats().l2_bufs == 0);
    drop(l2);
    let (l2, _) = opened(disk, Config::default()).await;
    assert_eq!(l2.stats().l2_bufs, 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_comes_back_empty_says_why_and_a_new_one_has_nothing_to_say() {
    let because = async |disk: &Arc<MemDisk>, config: Config| opened(disk.clone(), config).await.1.because;
    // Never written, or another device's.
    let disk = memory(1280);
    assert_eq!(because(&disk, Config::default()).await, Stopped::Fresh);
    let l2 = L2::new(POOL, Config::default());
    l2.add(disk.clone(), VDEV + 1, ASHIFT, Open::Remember).unwrap();
    assert!(matches!(rebuilt(&l2).await.because, Stopped::Foreign(_)));
    drop(l2);
    // Its own header, of which a byte is another.
    let disk = filled(1000).await;
    let mut header = disk.read(HEADER_OFFSET, disk::IoBuf::with_len(512)).await.unwrap();
    header[200] ^= 1;
    disk.write(HEADER_OFFSET, header.to_vec().into()).await.unwrap();
    let why = because(&disk, Config::default()).await;
    assert!(matches!(&why, Stopped::Refused(why) if why.contains("header is not valid")), "{why}");
    // Without log blocks it remembers nothing, from the second time on.
    let disk = memory(512);
    assert_eq!(because(&disk, Config::default()).await, Stopped::Fresh);
    assert_eq!(because(&disk, Config::default()).await, Stopped::TooSmall);
}

#[tokio::test(start_paused = true)]
async fn hits_are_served_while_it_is_being_found_out() {
    let disk = filled(10_000).await;
    let device = Arc::new(ModelDisk::new(disk, Profile::ssd().stretched(1000), 5));
    let l2 = L2::new(POOL, Config::default());
    l2.add(device, VDEV, ASHIFT, Open::Remember).unwrap();
    let mut early = 0;
    for _ in 0..20 {
        sleep(Duration::from_millis(250)).await;
        if l2.devices()[0].recovered.is_none() && hit(&l2, 9950, SIZE).await {
            early += 1;
        }
    }
    assert!(early > 2, "{early} hits before the device was known");
    let recovered = rebuilt(&l2).await;
    assert_eq!(recovered.log_blocks, 126);
}

/// A client's read that took longer than clients wait ended the rebuild, and all that was older was lost for good.
#[tokio::test(start_paused = true)]
async fn a_slow_read_does_not_end_the_search_for_what_is_there() {
    let disk = filled(10_000).await;
    let newest = content(9950, SIZE).slice(..16);
    let at = (0x40_1000..1280 << 20).step_by(4096).find(|at| disk.snapshot(*at..*at + 16)[..] == newest[..]);
    let at = at.unwrap();
    let model = Arc::new(ModelDisk::new(disk, Profile::ssd().stretched(1000), 5));
    let slow = Arc::new(FaultDisk::new(model, 1));
    let delay = Duration::from_millis(1500);
    slow.inject(Fault::new(On::Read, at..at + u64::from(SIZE), Effect::Delay(delay..=delay)).times(1));
    let l2 = L2::new(POOL, Config::default());
    l2.add(slow.clone(), VDEV, ASHIFT, Open::Remember).unwrap();
    while !l2.holds(&key(9950)) {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(!hit(&l2, 9950, SIZE).await, "nobody waits that long");
    assert!(l2.devices()[0].recovered.is_none(), "it was early");
    // And a log block that takes longer itself.
    let delay = Duration::from_secs(15);
    slow.inject(Fault::anywhere(On::Read, Effect::Delay(delay..=delay)).times(1));
    let recovered = rebuilt(&l2).await;
    assert_eq!((recovered.log_blocks, recovered.because), (126, Stopped::End));
}

/// A device that was busy with itself when the pool was opened, or failed once, was taken for empty, and its header overwritten.
#[tokio::test(start_paused = true)]
async fn a_header_that_cannot_be_read_at_once_is_waited_for() {
    let disk = filled(10_000).await;
    let (delay, hour) = (Duration::from_secs(15), Duration::from_secs(3600));
    let error = Effect::Error(ErrorKind::Other);
    let found = async |effect: &Effect, times: u64| {
        let slow = Arc::new(FaultDisk::new(Arc::new(disk.fork()), 1));
        let header = HEADER_OFFSET..HEADER_OFFSET + 4096;
        slow.inject(Fault::new(On::Read, header, effect.clone()).times(times));
        let (l2, recovered) = opened(slow, eager()).await;
        fill(&l2, 20_000..20_100, SIZE).await;
        assert_eq!(hits(&l2, 20_000..20_100, SIZE).await, 100);
        (recovered, l2.stats().l2_rebuild_dh_errors)
    };
    for (effect, times, errors) in [
        (Effect::Delay(delay..=delay), 1, 0),
        (Effect::Delay(hour..=hour), 1, 1),
        (error.clone(), 1, 1),
        (error.clone(), 6, 1),
    ] {
        let (recovered, counted) = found(&effect, times).await;
        assert_eq!((recovered.log_blocks, recovered.because), (126, Stopped::End), "{effect:?}");
        assert_eq!(counted, errors, "{effect:?}");
    }
    // A place that can never be read is written to in the end.
    let (recovered, counted) = found(&error, u64::MAX).await;
    let why = &recovered.because;
    assert!(matches!(why, Stopped::Refused(why) if why.contains("cannot be read")), "{recovered}");
    assert_eq!(counted, 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_for_others_is_not_used() {
    let disk = filled(1000).await;
    for (pool, vdev, why) in [(POOL + 1, VDEV, "the pool"), (POOL, VDEV + 1, "the device")] {
        let l2 = L2::new(pool, Config::default());
        l2.add(Arc::new(disk.fork()), vdev, ASHIFT, Open::Remember).unwrap();
        let recovered = rebuilt(&l2).await;
        assert!(recovered.to_string().contains(why), "{recovered}");
        assert_eq!((l2.stats().l2_rebuild_unsupported, l2.stats().l2_bufs), (1, 0));
    }
    let grown = disk.fork();
    grown.resize(1281 << 20);
    let (l2, recovered) = opened(Arc::new(grown), Config::default()).await;
    assert!(recovered.to_string().contains("a device that ends at"), "{recovered}");
    fill(&l2, 0..100, SIZE).await;
    assert_eq!(hits(&l2, 0..100, SIZE).await, 100);
    let (_, recovered) = opened(Arc::new(disk.fork()), Config { trim_ahead: 100, ..Config::default() }).await;
    assert!(recovered.to_string().contains("it was not trimmed"), "{recovered}");
    let (_, recovered) = opened(Arc::new(disk.fork()), Config { rebuild: false, ..Config::default() }).await;
    assert_eq!(recovered.blocks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_trimmed_device_is_trimmed_ahead_of_the_hand_and_believed_again() {
    let disk = Arc::new(FaultDisk::new(memory(64), 1));
    let config = Config { trim_ahead: 50, ..eager() };
    let (l2, _) = opened(disk.clone(), config).await;
    let whole = disk.counts().trims;
    assert!(whole > 0, "all of it at first");
    fill(&l2, 0..8000, SIZE).await;
    assert!(disk.counts().trims > whole + 2, "{:?}", disk.counts());
    assert_eq!(l2.stats().l2_cksum_bad, 0);
    drop(l2);
    let (l2, recovered) = opened(disk, config).await;
    assert!(recovered.blocks > 500, "{recovered}");
    assert_eq!(hits(&l2, 7900..7990, SIZE).await, 90);
}

#[tokio::test(start_paused = true)]
async fn a_rotten_log_block_ends_it_early_and_says_so() {
    let disk = filled(10_000).await;
    let rotten = Arc::new(FaultDisk::new(disk.clone(), 3));
    // Somewhere in the middle; a log block of 79 entries takes a sector or two after each 79 blocks.
    let payload = 79 * u64::from(SIZE);
    rotten.rot(0x40_1000 + 60 * payload..0x40_1000 + 62 * payload, 60_000).await.unwrap();
    let (l2, recovered) = opened(rotten, Config::default()).await;
    assert!((50..80).contains(&recovered.log_blocks), "{recovered}");
    assert!(recovered.to_string().ends_with("has a wrong checksum"), "{recovered}");
    assert_eq!(l2.stats().l2_rebuild_cksum_lb_errors, 1);
    // What lies behind it is not known, and is as good as free.
    let used = l2.devices()[0].used;
    assert_eq!(used, recovered.bytes + l2.stats().l2_log_blk_asize);
    assert_eq!(hits(&l2, 9000..9954, SIZE).await, 954, "the newest are here");
    assert!(!hit(&l2, 10, SIZE).await);
    let bad = l2.stats().l2_cksum_bad;
    let _in_the_rot = hits(&l2, 0..10_000, SIZE).await;
    assert!(l2.stats().l2_cksum_bad >= bad, "noticed by the reader");
}

/// The header that was written next told only of what there had been memory for, and the next import found more blocks than
/// it had been told of.
#[tokio::test(start_paused = true)]
async fn what_there_was_no_memory_for_is_told_of_by_the_next_header() {
    let disk = filled(10_000).await;
    let config = Config { persist_min: 1 << 30, ..eager() };
    let (l2, recovered) = opened(disk.clone(), Config { index_max: 90_000, ..config }).await;
    assert!(recovered.because == Stopped::Memory && recovered.log_blocks < 100, "{recovered}");
    assert_eq!((recovered.of_log_blocks, recovered.of_blocks), (126, 9954));
    l2.set_config(config);
    fill(&l2, 20_000..20_800, SIZE).await;
    drop(l2);
    let (l2, recovered) = opened(disk.clone(), Config::default()).await;
    assert_eq!((recovered.log_blocks, recovered.of_log_blocks), (136, 136), "{recovered}");
    assert_eq!((recovered.blocks, recovered.of_blocks), (136 * 79, 136 * 79), "{recovered}");
    assert_eq!(hits(&l2, 0..9954, SIZE).await, 9954);
}

/// It was found by the next import only, if what was written meanwhile had not cut it off.
#[tokio::test(start_paused = true)]
async fn what_there_was_no_memory_for_is_found_when_there_is() {
    let disk = filled(10_000).await;
    let config = Config { persist_min: 1 << 30, ..eager() };
    let (l2, recovered) = opened(disk, Config { index_max: 90_000, ..config }).await;
    assert!(recovered.because == Stopped::Memory && recovered.log_blocks < 100, "{recovered}");
    // More than the index takes leaves memory, for minutes.
    fill(&l2, 20_000..24_000, SIZE).await;
    sleep(Duration::from_secs(300)).await;
    fill(&l2, 24_000..25_000, SIZE).await;
    assert!(l2.stats().l2_abort_lowmem > 1000 && l2.devices()[0].filling, "{:?}", l2.stats());
    l2.set_config(config);
    sleep(Duration::from_secs(60)).await;
    let found = l2.devices()[0].recovered.clone().unwrap();
    let log_blocks = l2.stats().l2_log_blk_count;
    assert!(log_blocks >= 126, "{found}");
    assert_eq!((found.log_blocks, found.of_log_blocks), (log_blocks, log_blocks), "{found}");
    assert_eq!((found.blocks, found.because), (found.of_blocks, Stopped::End));
    assert_eq!(hits(&l2, 0..9954, SIZE).await, 9954);
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

/// Once the index had lacked something for ten minutes nothing protected the device any more, and the first bad moment after that
/// took it for full.
#[tokio::test(start_paused = true)]
async fn a_dip_long_after_a_walk_without_memory_turns_no_hand() {
    let disk = filled(10_000).await;
    let config = |index_max| Config { index_max, persist_min: 1 << 30, ..eager() };
    let long = Duration::from_secs(700);
    for sheds in [false, true] {
        let (l2, recovered) = opened(Arc::new(disk.fork()), config(90_000)).await;
        assert_eq!(recovered.because, Stopped::Memory, "{recovered}");
        // Room for what comes, and not for what it lacks.
        l2.set_config(config(110_000));
        fill(&l2, 20_000..20_100, SIZE).await;
        sleep(long).await;
        fill(&l2, 20_100..20_200, SIZE).await;
        assert!(l2.devices()[0].filling && l2.stats().l2_abort_lowmem < 100, "{:?}", l2.stats());
        l2.set_config(config(60_000));
        if sheds {
            l2.shed();
        }
        fill(&l2, 20_200..26_000, SIZE).await;
        assert!(l2.stats().l2_abort_lowmem > 1000, "{:?}", l2.stats());
        assert!(l2.devices()[0].filling, "sheds: {sheds}");
        // Unless it lasts.
        sleep(long).await;
        fill(&l2, 26_000..27_000, SIZE).await;
        assert!(!l2.devices()[0].filling, "sheds: {sheds}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_header_makes_it_fall_over() {
    let disk = filled(2000).await;
    let header = disk.snapshot(HEADER_OFFSET..HEADER_OFFSET + 4096);
    let mut seed = 1u64;
    for _ in 0..300 {
        let copy = Arc::new(disk.fork());
        let mut bytes = header.clone();
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (seed >> 33) as usize % 232;
        bytes[at] ^= 1 << (seed >> 61);
        if seed & 1 << 40 != 0 {
            bytes[at / 8 * 8..at / 8 * 8 + 8].fill((seed >> 50) as u8);
        }
        // With a right checksum: whoever wrote it meant it.
        let verifier = codec::checksum::Checksum([HEADER_OFFSET, 0, 0, 0]);
        codec::checksum::embedded::seal(
            codec::checksum::embedded::Kind::Label,
            &mut bytes,
            verifier,
            codec::Order::Little,
        )
        .unwrap();
        copy.write(HEADER_OFFSET, bytes.into()).await.unwrap();
        let (l2, recovered) = opened(copy, Config::default()).await;
        assert!(recovered.blocks <= 2000, "{recovered}");
        l2.offer(block(5000, SIZE));
        let _some = hits(&l2, (0..2000).step_by(100), SIZE).await;
        assert_eq!(l2.stats().l2_cksum_bad, 0, "byte {at} of the header: {recovered}");
    }
}
