//! What goes round and round stays right.

use std::{sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, IoBuf, MemDisk, ModelDisk, On, Profile};
use l2arc::{Config, L2, Open};
use tokio::time::{Instant, sleep};

use crate::support::{
    ASHIFT, POOL, SIZE, VDEV, block, content, eager, fill, hits, key, memory, opened, rebuilt, settle,
};

#[tokio::test(start_paused = true)]
async fn a_ring_that_wraps_many_times_never_gives_a_wrong_block() {
    let disk = memory(64);
    let (mut l2, _) = opened(disk.clone(), eager()).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    let mut written = 0;
    for round in 0..16u64 {
        let more = capacity / 2 - round;
        fill(&l2, written..written + more, SIZE).await;
        written += more;
        // Log blocks take a quarter as much as their three blocks: some three in four of the capacity are blocks.
        let recent = capacity / 2;
        let from = written.saturating_sub(recent);
        assert_eq!(
            hits(&l2, from..written, SIZE).await,
            written - from,
            "round {round}: the newest are here"
        );
        let _old = hits(&l2, (0..written).step_by(17), SIZE).await;
        let stats = l2.stats();
        assert_eq!((stats.l2_cksum_bad, stats.l2_io_error), (0, 0), "round {round}: a wrong block");
        assert!(stats.l2_bufs <= capacity && stats.l2_asize == stats.l2_bufs * u64::from(SIZE), "{stats:?}");
        if round % 5 == 4 {
            // As after a crash: nothing is said to the device.
            let before = l2.stats();
            drop(l2);
            let (again, recovered) = opened(disk.clone(), eager()).await;
            l2 = again;
            let after = l2.stats();
            assert!(after.l2_bufs * 100 >= before.l2_bufs * 95, "{recovered}");
            assert_eq!(after.l2_asize, after.l2_bufs * u64::from(SIZE));
            let _all = hits(&l2, 0..written, SIZE).await;
            assert_eq!(l2.stats().l2_cksum_bad, 0, "round {round}: a wrong block after a restart");
        }
    }
    assert!(!l2.devices()[0].filling && written > 7 * capacity);
}

/// Whatever stage its turn is at: all that was known is known again, and right.
#[tokio::test(start_paused = true)]
async fn a_ring_that_is_shed_on_its_way_round_never_gives_a_wrong_block() {
    for reinsert in [false, true] {
        let config = Config { reinsert, ..eager() };
        let (l2, _) = opened(memory(64), config).await;
        let capacity = l2.devices()[0].size / u64::from(SIZE);
        let (mut next, mut others) = (0, 1_000_000);
        for round in 0..9 {
            let more = capacity / 3 + 7 * round;
            fill(&l2, next..next + more, SIZE).await;
            next += more;
            let before = l2.stats().l2_bufs;
            l2.set_config(Config { index_max: 60_000, ..config });
            l2.shed();
            assert!(l2.stats().l2_bufs < before / 2, "round {round}: {:?}", l2.stats());
            // The oldest log block may lie where writing goes on; and a round that is tried makes room for itself.
            let mut gone = 10;
            if round % 3 == 1 {
                fill(&l2, others..others + 200, SIZE).await;
                others += 200;
                gone += 500;
            }
            l2.set_config(config);
            sleep(Duration::from_secs(1800)).await;
            let _some = hits(&l2, (round % 3..next).step_by(3).chain(1_000_000..others), SIZE).await;
            let stats = l2.stats();
            let found = stats.l2_bufs;
            assert!(found + gone >= before, "reinserting: {reinsert}, round {round}: {found} of {before}");
            assert_eq!(stats.l2_asize, found * u64::from(SIZE), "round {round}: {stats:?}");
            assert_eq!((stats.l2_cksum_bad, stats.l2_io_error), (0, 0), "round {round}: a wrong block");
        }
        assert!(!l2.devices()[0].filling && next > 2 * capacity);
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_too_small_to_remember_works_and_says_so_to_the_next_reader() {
    let disk = memory(64);
    let small = Config { persist_min: 1 << 30, ..eager() };
    let (l2, _) = opened(disk.clone(), small).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    fill(&l2, 0..2 * capacity, SIZE).await;
    let newest = 2 * capacity - capacity / 2..2 * capacity;
    assert_eq!(hits(&l2, newest, SIZE).await, capacity / 2);
    let _old = hits(&l2, 0..capacity, SIZE).await;
    let stats = l2.stats();
    assert_eq!((stats.l2_cksum_bad, stats.l2_log_blk_count), (0, 0));
    assert!(stats.l2_bufs <= capacity);
    drop(l2);
    let (l2, recovered) = opened(disk, small).await;
    assert_eq!((recovered.blocks, recovered.of_blocks, l2.stats().l2_bufs), (0, 0, 0), "{recovered}");
}

#[tokio::test(start_paused = true)]
async fn blocks_of_all_sizes_lie_where_they_should() {
    let (l2, _) = opened(memory(256), eager()).await;
    let size = |n: u64| [512, 1024, 4096, 4608, 16384, 131_072, 1 << 20, 2 << 20][n as usize % 8];
    for portion in (0..800).collect::<Vec<u64>>().chunks(16) {
        for n in portion {
            l2.offer(block(*n, size(*n)));
        }
        settle(&l2).await;
    }
    let mut found = 0;
    for n in 0..800 {
        if let Some(read) = l2.read(&key(n), size(n)) {
            assert_eq!(read.await.unwrap(), content(n, size(n)), "{n}");
            found += 1;
        }
    }
    // 800 blocks are 340 MiB, on 251.
    assert!(found > 500 && !l2.devices()[0].filling, "{found}");
    assert_eq!(l2.stats().l2_cksum_bad, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_hit_is_written_again_instead_of_being_overwritten() {
    let config = Config { reinsert: true, ..eager() };
    let (l2, _) = opened(memory(64), config).await;
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    let hot = 0..capacity / 10;
    fill(&l2, hot.clone(), SIZE).await;
    let mut next = hot.end;
    for _ in 0..40 {
        assert_eq!(hits(&l2, hot.clone(), SIZE).await, hot.end, "what is asked for all the time stays");
        fill(&l2, next..next + capacity / 8, SIZE).await;
        next += capacity / 8;
    }
    let stats = l2.stats();
    assert!(stats.l2_reinserted >= 3 * hot.end * u64::from(SIZE), "{stats:?}");
    assert_eq!(stats.l2_cksum_bad, 0);
    // Not asked for any more, it goes like everything else.
    fill(&l2, next..next + 3 * capacity, SIZE).await;
    assert_eq!(hits(&l2, hot.clone(), SIZE).await, 0);
}

#[tokio::test(start_paused = true)]
async fn devices_come_and_go_while_it_works() {
    let l2 = L2::new(POOL, eager());
    l2.offer(block(1, SIZE));
    assert!(l2.read(&key(1), SIZE).is_none() && l2.waiting() == 0, "without devices nothing is kept");
    let (first, second) = (memory(64), memory(256));
    l2.add(first.clone(), 1, ASHIFT, Open::Remember).unwrap();
    l2.add(second, 2, ASHIFT, Open::Remember).unwrap();
    assert!(l2.add(first.clone(), 1, ASHIFT, Open::Remember).is_err(), "it is in use");
    assert!(l2.add(Arc::new(MemDisk::new(9 << 20)), 3, ASHIFT, Open::Remember).is_err(), "too small");
    rebuilt(&l2).await;
    fill(&l2, 0..4000, SIZE).await;
    let on_each: Vec<u64> = l2.devices().iter().map(|device| device.used).collect();
    assert!(on_each.iter().all(|used| *used > 1 << 20), "both are fed: {on_each:?}");
    assert_eq!(hits(&l2, 0..4000, SIZE).await, 4000);
    let memory_before = l2.memory();
    assert!(l2.remove(2).await && !l2.remove(2).await);
    let left = hits(&l2, 0..4000, SIZE).await;
    assert!(left > 0 && left < 4000, "{left} of the first device are still here");
    assert_eq!(l2.stats().l2_bufs, left);
    assert!(l2.memory() < memory_before);
    l2.close().await;
    assert_eq!(hits(&l2, 0..4000, SIZE).await, 0);
    // Somebody else may have the device now: nothing is written to it any more.
    let image = first.snapshot(0..64 << 20);
    for n in 5000..6000 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(60)).await;
    assert!(first.snapshot(0..64 << 20) == image);
}

/// A device took a part of all sizes along by the number of its blocks, and brought back what they really are: each time more
/// was held than the devices have room for.
#[tokio::test(start_paused = true)]
async fn sizes_are_those_of_what_is_held_when_one_of_two_devices_leaves() {
    let (few, many) = (0..400, 10_000..14_000);
    let l2 = L2::new(POOL, eager());
    let disk = memory(128);
    l2.add(disk.clone(), 1, ASHIFT, Open::Remember).unwrap();
    rebuilt(&l2).await;
    fill(&l2, few.clone(), 131_072).await;
    l2.add(memory(128), 2, ASHIFT, Open::Remember).unwrap();
    l2.recovery(2).unwrap().await.unwrap();
    fill(&l2, many.clone(), 4096).await;
    let held = || -> u64 {
        let sized = few.clone().map(|n| (n, 131_072)).chain(many.clone().map(|n| (n, 4096)));
        sized.filter(|(n, _)| l2.holds(&key(*n))).map(|(_, size)| size).sum()
    };
    let agree = |when: &str| {
        let stats = l2.stats();
        assert_eq!((stats.l2_asize, stats.l2_size), (held(), held()), "{when}: {stats:?}");
        assert_eq!((stats.l2_mru_asize, stats.l2_bufc_data_asize), (held(), held()), "{when}: {stats:?}");
        let used: u64 = l2.devices().iter().map(|device| device.used).sum();
        assert_eq!(used, held() + stats.l2_log_blk_asize, "{when}: {stats:?}");
    };
    assert_eq!(held(), 400 * 131_072 + 4000 * 4096);
    agree("with both");
    for _ in 0..3 {
        l2.remove(1).await;
        assert!((4096..50 << 20).contains(&held()), "{} of the other", held());
        agree("without the first");
        l2.add(disk.clone(), 1, ASHIFT, Open::Remember).unwrap();
        let recovered = l2.recovery(1).unwrap().await.unwrap();
        assert!(recovered.blocks > 300, "{recovered}");
        agree("with the first again");
    }
}

/// The addresses of a device that is still being let go were given to one that came, and what the new one remembered was
/// forgotten with the old one's.
#[tokio::test(start_paused = true)]
async fn a_device_that_comes_while_another_leaves_keeps_what_it_remembers() {
    let filled = memory(64);
    let l2 = L2::new(POOL, eager());
    l2.add(filled.clone(), 2, ASHIFT, Open::Remember).unwrap();
    fill(&l2, 0..1000, SIZE).await;
    l2.close().await;
    let l2 = Arc::new(L2::new(POOL, eager()));
    let slow = Arc::new(FaultDisk::new(memory(64), 1));
    l2.add(slow.clone(), 1, ASHIFT, Open::Remember).unwrap();
    rebuilt(&l2).await;
    let delay = Duration::from_secs(4);
    slow.inject(Fault::anywhere(On::Write, Effect::Delay(delay..=delay)).times(1));
    for n in 5000..5100 {
        l2.offer(block(n, SIZE));
    }
    sleep(Duration::from_secs(1)).await;
    let removal = tokio::spawn({
        let l2 = Arc::clone(&l2);
        async move { l2.remove(1).await }
    });
    sleep(Duration::from_millis(1)).await;
    assert!(!removal.is_finished());
    l2.add(filled, 2, ASHIFT, Open::Remember).unwrap();
    let recovered = rebuilt(&l2).await;
    assert!(removal.await.unwrap());
    assert!(recovered.blocks > 900, "{recovered}");
    assert_eq!(hits(&l2, 0..1000, SIZE).await, recovered.blocks);
    let status = l2.devices();
    assert_eq!((status.len(), status[0].vdev, l2.stats().l2_ndev), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn without_devices_it_takes_no_memory() {
    let l2 = L2::new(POOL, eager());
    let nothing = l2.memory();
    l2.add(memory(64), 1, ASHIFT, Open::Remember).unwrap();
    rebuilt(&l2).await;
    fill(&l2, 0..5000, SIZE).await;
    l2.offer(block(6000, SIZE));
    assert!(l2.memory() > nothing + 10_000 && l2.waiting() > 0);
    l2.remove(1).await;
    assert_eq!((l2.memory(), l2.waiting()), (nothing, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hit_takes_no_longer_than_the_device() {
    // Microseconds as milliseconds: tokio's timers tick in those.
    let device = Arc::new(ModelDisk::new(memory(128), Profile::ssd().stretched(1000), 5));
    let (l2, _) = opened(device.clone(), eager()).await;
    fill(&l2, 0..500, SIZE).await;
    let begin = Instant::now();
    for n in 0..100 {
        device.read((5 << 20) + n * 65536, IoBuf::with_len(SIZE as usize)).await.unwrap();
    }
    let own = begin.elapsed();
    let begin = Instant::now();
    assert_eq!(hits(&l2, 100..200, SIZE).await, 100);
    let hit = begin.elapsed();
    assert!(hit <= own * 12 / 10, "100 hits take {hit:?}, the device {own:?}");
}

#[tokio::test(start_paused = true)]
async fn the_devices_are_fed_by_their_speed() {
    let l2 = L2::new(POOL, eager());
    let fast = Arc::new(ModelDisk::new(memory(1024), Profile::ssd(), 1));
    let slow = Profile { bandwidth: 50_000_000, ..Profile::ssd() };
    let slow = Arc::new(ModelDisk::new(memory(1024), slow, 2));
    l2.add(fast, VDEV, ASHIFT, Open::Fresh).unwrap();
    l2.add(slow, VDEV + 1, ASHIFT, Open::Fresh).unwrap();
    rebuilt(&l2).await;
    // More than both can take.
    for n in 0..12_000 {
        l2.offer(block(n, 65536));
        if n % 16 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let devices = l2.devices();
    let (fast, slow) = (&devices[0], &devices[1]);
    assert!(
        fast.written > 4 * slow.written && slow.written > 16 << 20,
        "{} and {}",
        fast.written,
        slow.written
    );
}

/// Nothing in a log block is secret: who hands over a cache device can make it say anything. The hand went where it said:
/// into the labels.
#[tokio::test(start_paused = true)]
async fn log_blocks_that_tell_of_places_outside_of_the_ring_lead_nobody_there() {
    use codec::{
        Order as Bytewise,
        checksum::{Checksum, Fletcher4, embedded},
        compress::{self, Algorithm, Level},
    };
    use ondisk::{Order, l2arc as format};
    let config = Config { index_max: 70_000, ..eager() };
    let disk = memory(64);
    let (l2, _) = opened(disk.clone(), config).await;
    fill(&l2, 0..60, SIZE).await;
    settle(&l2).await;
    drop(l2);
    // Its newest log block, with other addresses.
    let at = format::HEADER_OFFSET;
    let (mut header, order) = format::Header::decode(&disk.snapshot(at..at + 4096)).unwrap();
    let mut newest = header.newest[0];
    let place = newest.daddr..newest.daddr + newest.aligned_size();
    let mut plain = vec![0; format::LOG_BLOCK_BYTES];
    compress::decompress(Algorithm::Lz4, &disk.snapshot(place.clone()), &mut plain).unwrap();
    let log = format::LogBlock::decode(&plain).unwrap();
    let mut entries: Vec<format::Entry> = log.entries(header.log_entries).map(Result::unwrap).collect();
    for (number, entry) in entries.iter_mut().enumerate() {
        entry.daddr = [0, 1 << 50, header.end][number % 3];
    }
    let plain = format::encode_log_block(&log.previous, &entries, Order::Little).unwrap();
    let mut stored = vec![0; (place.end - place.start) as usize];
    compress::compress(Algorithm::Lz4, Level::DEFAULT, &plain, &mut stored).unwrap();
    let mut sum = Fletcher4::new(Bytewise::Little);
    sum.update(&stored);
    newest.checksum = sum.finish().0;
    newest.payload_start = header.start;
    header.newest[0] = newest;
    let mut sealed = header.encode(4096, order);
    let verifier = Checksum([at, 0, 0, 0]);
    embedded::seal(embedded::Kind::Label, &mut sealed, verifier, Bytewise::Little).unwrap();
    for (at, bytes) in [(place.start, stored), (at, sealed)] {
        disk.write(at, IoBuf::from_slice(&bytes).freeze()).await.unwrap();
    }
    let labels = disk.snapshot(0..at);

    let (l2, recovered) = opened(disk.clone(), config).await;
    assert!(recovered.log_blocks > 0, "{recovered}");
    let capacity = l2.devices()[0].size / u64::from(SIZE);
    for round in 1..6 {
        fill(&l2, round * capacity..(round + 1) * capacity, SIZE).await;
        settle(&l2).await;
    }
    let stats = l2.stats();
    assert!(stats.l2_writes_error == 0 && stats.l2_cksum_bad == 0, "{recovered}: {stats:?}");
    assert!(disk.snapshot(0..at) == labels, "it wrote over the labels");
    assert!(hits(&l2, 5 * capacity..6 * capacity, SIZE).await > 0, "it goes on");
}
