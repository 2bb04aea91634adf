//! `FaultDisk` keeps its promises: it breaks exactly what it was told to, and a seed repeats it.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use bytes::Bytes;
use disk::{Disk, Effect, Fault, FaultDisk, IoBuf, MemDisk, On};

const SIZE: u64 = 1 << 20;
const SECTOR: usize = 512;

fn disk() -> (Arc<MemDisk>, FaultDisk) {
    let inner = Arc::new(MemDisk::new(SIZE).named("lake0"));
    (Arc::clone(&inner), FaultDisk::new(inner, 1))
}

fn cached(seed: u64) -> (Arc<MemDisk>, FaultDisk) {
    let inner = Arc::new(MemDisk::new(SIZE));
    (Arc::clone(&inner), FaultDisk::with_write_cache(inner, seed))
}

async fn read(disk: &impl Disk, offset: u64, len: usize) -> IoBuf {
    disk.read(offset, IoBuf::with_len(len)).await.unwrap()
}

async fn write(disk: &impl Disk, offset: u64, byte: u8, len: usize) {
    disk.write(offset, Bytes::from(vec![byte; len])).await.unwrap();
}

#[tokio::test]
async fn an_error_strikes_where_when_and_as_often_as_told() {
    let (_, disk) = disk();
    disk.inject(Fault::new(On::Read, 4096..8192, Effect::Error(ErrorKind::TimedOut)).after(1).times(2));
    let mut outcomes = Vec::new();
    for offset in [0, 4096, 8192, 4095, 8191, 4096, 8191] {
        let result = disk.read(offset, IoBuf::with_len(2)).await;
        outcomes.push(result.map_err(|error| error.kind()).is_ok());
    }
    assert_eq!(outcomes, [true, true, true, false, false, true, true]);
    assert_eq!((disk.counts().reads, disk.counts().faults), (7, 2));
    write(&disk, 4096, 1, 10).await;
    let error = {
        disk.inject(Fault::anywhere(On::Write, Effect::Error(ErrorKind::StorageFull)));
        disk.write(0, Bytes::from_static(b"x")).await.unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.to_string().contains("lake0"), "{error}");
    assert_eq!(read(&disk, 0, 1).await[0], 0, "a failed write did nothing");
    disk.heal();
    write(&disk, 0, 1, 1).await;
}

#[tokio::test]
async fn the_same_seed_gives_the_same_faults_and_about_as_many_as_the_chance_says() {
    let outcomes = async |seed| {
        let disk = FaultDisk::new(Arc::new(MemDisk::new(SIZE)), seed);
        disk.inject(Fault::anywhere(On::Read, Effect::Error(ErrorKind::Other)).chance_ppm(250_000));
        let mut outcomes = Vec::new();
        for _ in 0..1000 {
            outcomes.push(disk.read(0, IoBuf::with_len(1)).await.is_ok());
        }
        outcomes
    };
    let (one, again, other) = (outcomes(1).await, outcomes(1).await, outcomes(2).await);
    assert_eq!(one, again);
    assert_ne!(one, other);
    let failed = one.iter().filter(|&&ok| !ok).count();
    assert!((200..300).contains(&failed), "{failed} of 1000");
}

fn ones(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| byte.count_ones()).sum()
}

#[tokio::test]
async fn flipped_bits_are_exactly_as_many_and_in_the_range() {
    let (inner, disk) = disk();
    disk.inject(Fault::new(On::Read, 1000..1010, Effect::FlipBits(5)).times(1));
    let seen = read(&disk, 512, 1024).await;
    assert_eq!((ones(&seen), ones(&seen[488..498])), (5, 5));
    assert_eq!(ones(&read(&disk, 512, 1024).await), 0, "only the wire was bad");

    disk.inject(Fault::new(On::Write, 1000..1010, Effect::FlipBits(80)).times(1));
    write(&disk, 990, 0, 40).await;
    assert_eq!(inner.snapshot(1000..1010), [0xff; 10]);
    assert_eq!(ones(&inner.snapshot(0..SIZE)), 80, "all bits of the range and no other");

    disk.rot(4096..8192, 9).await.unwrap();
    assert_eq!(ones(&inner.snapshot(4096..8192)), 9);
    assert_eq!(disk.rot(0..1, 9).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.rot(SIZE..SIZE + 1, 1).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_virtual_time_and_no_other() {
    let (_, disk) = disk();
    let second = Duration::from_secs(1);
    disk.inject(Fault::anywhere(On::Read, Effect::Delay(second..=second)));
    let begin = tokio::time::Instant::now();
    read(&disk, 0, 1).await;
    assert_eq!(begin.elapsed(), second);
    write(&disk, 0, 1, 1).await;
    assert_eq!(begin.elapsed(), second);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_vanishes_fails_what_is_under_way_and_comes_back_with_its_data() {
    let (_, disk) = disk();
    write(&disk, 0, 7, 4096).await;
    disk.inject(Fault::anywhere(On::Read, Effect::Delay(Duration::from_secs(1)..=Duration::from_secs(9))));
    let (under_way, ()) = tokio::join!(disk.read(0, IoBuf::with_len(1)), async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        disk.vanish();
    });
    assert_eq!(under_way.unwrap_err().kind(), ErrorKind::NotConnected);
    disk.heal();
    for error in [
        disk.read(0, IoBuf::with_len(1)).await.err(),
        disk.write(0, Bytes::from_static(b"x")).await.err(),
        disk.flush().await.err(),
        disk.trim(0, 1).await.err(),
    ] {
        assert_eq!(error.unwrap().kind(), ErrorKind::NotConnected);
    }
    disk.come_back();
    assert_eq!(&read(&disk, 0, 4096).await[..], &[7; 4096]);
}

#[tokio::test]
async fn writes_get_lost_misdirected_or_torn() {
    let (inner, disk) = disk();
    disk.inject(Fault::anywhere(On::Write, Effect::Lose).times(1));
    write(&disk, 0, 1, 512).await;
    assert_eq!(ones(&inner.snapshot(0..SIZE)), 0);
    disk.heal();

    disk.inject(Fault::anywhere(On::Write, Effect::Misdirect(4096)).times(2));
    write(&disk, 0, 1, 512).await;
    assert_eq!((ones(&inner.snapshot(0..512)), inner.snapshot(4096..4097)), (0, vec![1]));
    write(&disk, SIZE - 512, 1, 512).await;
    assert_eq!(ones(&inner.snapshot(SIZE - 512..SIZE)), 0, "it went off the disk");
    disk.heal();

    disk.inject(Fault::anywhere(On::Read, Effect::Misdirect(-4096)).times(1));
    assert_eq!(read(&disk, 8192, 1).await[0], 1, "what is at 4096");

    let mut lengths = std::collections::BTreeSet::new();
    for _ in 0..50 {
        write(&disk, 65_536, 0, 8 * SECTOR).await;
        disk.inject(Fault::anywhere(On::Write, Effect::Tear(ErrorKind::Other)).times(1));
        assert!(disk.write(65_536, Bytes::from(vec![9; 8 * SECTOR])).await.is_err());
        let image = inner.snapshot(65_536..65_536 + 8 * SECTOR as u64);
        let stored = image.iter().take_while(|&&byte| byte == 9).count();
        assert!(image[stored..].iter().all(|&byte| byte == 0) && stored % SECTOR == 0, "a prefix of sectors");
        lengths.insert(stored / SECTOR);
        disk.heal();
    }
    assert_eq!(lengths, (0..8).collect(), "every tear is possible, and none is whole");
}

#[tokio::test]
async fn a_flushed_write_survives_a_power_cut_and_later_ones_end_in_every_legal_way() {
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let (inner, disk) = cached(1);
        write(&disk, 0, 1, 4096).await;
        assert_eq!(ones(&inner.snapshot(0..SIZE)), 0, "only in the cache");
        assert_eq!(disk.unflushed(), 4096);
        disk.flush().await.unwrap();
        write(&disk, 0, 2, 4096).await;
        assert_eq!(&read(&disk, 0, 4096).await[..], &[2; 4096], "reads see the cache");
        disk.power_cut(seed).await.unwrap();
        assert_eq!(disk.read(0, IoBuf::with_len(1)).await.unwrap_err().kind(), ErrorKind::NotConnected);
        disk.come_back();
        let image = read(&disk, 0, 4096).await;
        assert_eq!(&image[..], inner.snapshot(0..4096), "the cache is empty");
        for sector in image.chunks(SECTOR) {
            assert!(sector == [1; SECTOR] || sector == [2; SECTOR], "flushed bytes are gone: seed {seed}");
        }
        match image.chunks(SECTOR).filter(|sector| sector[0] == 2).count() {
            0 => old += 1,
            8 => new += 1,
            _ => torn += 1,
        }
    }
    assert!(old > 20 && new > 20 && torn > 20, "{old} old, {new} new, {torn} torn");
}

#[tokio::test]
async fn unflushed_writes_reach_the_media_in_any_order() {
    let (mut first_only, mut second_only) = (0, 0);
    for seed in 0..100 {
        let (inner, disk) = cached(1);
        write(&disk, 0, 1, 512).await;
        write(&disk, 8192, 1, 512).await;
        let cut = disk.power_cut(seed).await.unwrap();
        assert_eq!(cut.kept + cut.torn + cut.lost, 2);
        match (inner.snapshot(0..1)[0], inner.snapshot(8192..8193)[0]) {
            (1, 0) => first_only += 1,
            (0, 1) => second_only += 1,
            _ => {}
        }
    }
    assert!(first_only > 5 && second_only > 5, "{first_only} {second_only}");
}

#[tokio::test]
async fn a_power_cut_repeats_with_its_seed() {
    let image = async |seed| {
        let (inner, disk) = cached(1);
        for block in 0..64 {
            write(&disk, block * 3000, block as u8 + 1, 5000).await;
        }
        disk.trim(10_000, 20_000).await.unwrap();
        let cut = disk.power_cut(seed).await.unwrap();
        (cut, inner.snapshot(0..SIZE))
    };
    let (one, again, other) = (image(5).await, image(5).await, image(6).await);
    assert!(one == again);
    assert!(one != other);
}

#[tokio::test]
async fn what_was_written_through_survives_and_what_was_cached_before_stays_volatile() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..100 {
        let (inner, disk) = cached(1);
        write(&disk, 0, 1, 8192).await;
        write(&disk, 16_384, 1, 512).await;
        disk.trim(2048, 1024).await.unwrap();
        // Over the middle of the first write, which may not come back over it.
        disk.write_through(1024, Bytes::from(vec![2; 4096])).await.unwrap();
        assert_eq!(inner.snapshot(1024..5120), [2; 4096], "on the media");
        assert_eq!(ones(&inner.snapshot(0..1024)) + ones(&inner.snapshot(5120..SIZE)), 0, "and nothing else");
        assert_eq!(disk.unflushed(), 4096 + 512);
        write(&disk, 1024, 3, 512).await;
        assert_eq!(read(&disk, 1024, 513).await[511..], [3, 2], "later writes lie above it");
        disk.power_cut(seed).await.unwrap();
        assert_eq!(inner.snapshot(1536..5120), [2; 3584], "seed {seed}");
        match inner.snapshot(16_384..16_385)[0] {
            0 => lost += 1,
            _ => kept += 1,
        }
    }
    assert!(lost > 10 && kept > 10, "{lost} lost, {kept} kept");
}

#[tokio::test(start_paused = true)]
async fn a_write_through_under_way_at_the_cut_ends_in_every_legal_way() {
    let (mut old, mut new, mut torn) = (0, 0, 0);
    let slow = Duration::from_secs(1);
    for on in [On::Write, On::Flush] {
        for seed in 0..100 {
            let (inner, disk) = cached(1);
            disk.inject(Fault::anywhere(on, Effect::Delay(slow..=slow)));
            let (result, _) = tokio::join!(disk.write_through(0, Bytes::from(vec![1; 4096])), async {
                tokio::time::sleep(slow / 2).await;
                disk.power_cut(seed).await.unwrap();
            });
            assert_eq!(result.unwrap_err().kind(), ErrorKind::NotConnected);
            match inner.snapshot(0..4096).chunks(SECTOR).filter(|sector| sector[0] == 1).count() {
                0 => old += 1,
                8 => new += 1,
                _ => torn += 1,
            }
        }
    }
    assert!(old > 20 && new > 20 && torn > 20, "{old} old, {new} new, {torn} torn");
}

#[tokio::test(start_paused = true)]
async fn what_strikes_writes_and_flushes_strikes_a_write_through() {
    let (inner, disk) = cached(1);
    let data = || Bytes::from(vec![1; 4096]);
    disk.inject(Fault::anywhere(On::Write, Effect::Error(ErrorKind::Other)).times(1));
    disk.inject(Fault::anywhere(On::Flush, Effect::Error(ErrorKind::TimedOut)).times(1));
    assert_eq!(disk.write_through(0, data()).await.unwrap_err().kind(), ErrorKind::Other);
    assert_eq!(disk.unflushed(), 0, "it did nothing");
    assert_eq!(disk.write_through(0, data()).await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!((disk.unflushed(), ones(&inner.snapshot(0..SIZE))), (4096, 0), "written, not durable");
    let second = Duration::from_secs(1);
    disk.inject(Fault::anywhere(On::Flush, Effect::Delay(second..=second)).times(1));
    let begin = tokio::time::Instant::now();
    disk.write_through(0, data()).await.unwrap();
    assert_eq!(begin.elapsed(), second);
    assert_eq!((disk.unflushed(), inner.snapshot(0..4096)), (0, vec![1; 4096]));
    disk.inject(Fault::anywhere(On::Flush, Effect::Lose).times(1));
    disk.write_through(8192, data()).await.unwrap();
    assert_eq!((disk.unflushed(), ones(&inner.snapshot(8192..SIZE))), (4096, 0), "it lied");
    disk.inject(Fault::anywhere(On::Write, Effect::Tear(ErrorKind::Other)).times(1));
    assert!(disk.write_through(16_384, data()).await.is_err());
    assert_eq!((disk.counts().writes, disk.counts().flushes, disk.counts().faults), (5, 0, 5));

    let (inner, disk) = self::disk();
    disk.write_through(0, data()).await.unwrap();
    assert_eq!(inner.snapshot(0..4096), vec![1; 4096], "without a cache it goes straight to the disk");
}

/// A disk that says "flushed" and lies.
#[tokio::test]
async fn a_lost_flush_leaves_everything_volatile() {
    let (inner, disk) = cached(1);
    disk.inject(Fault::anywhere(On::Flush, Effect::Lose));
    write(&disk, 0, 1, 512).await;
    disk.flush().await.unwrap();
    assert_eq!(ones(&inner.snapshot(0..512)), 0);
    assert_eq!(disk.unflushed(), 512);
}

#[tokio::test(start_paused = true)]
async fn a_write_under_way_at_the_cut_fails_but_may_be_there() {
    let mut there = 0;
    for seed in 0..50 {
        let (inner, disk) = cached(1);
        let slow = Duration::from_secs(1);
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
        let (result, _) = tokio::join!(disk.write(0, Bytes::from(vec![1; 512])), async {
            tokio::time::sleep(slow / 2).await;
            disk.power_cut(seed).await.unwrap();
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotConnected);
        there += u32::from(inner.snapshot(0..1)[0]);
    }
    assert!((1..50).contains(&there), "{there} of 50");
}

/// A cache that is never flushed stays bounded, as a real one does.
#[tokio::test]
async fn the_cache_writes_back_when_it_is_full() {
    let inner = Arc::new(MemDisk::new(128 << 20));
    let disk = FaultDisk::with_write_cache(inner.clone(), 1);
    for chunk in 0..80 {
        write(&disk, chunk << 20, 1, 1 << 20).await;
        assert!(disk.unflushed() <= 65 << 20);
    }
    assert!(inner.resident() >= 64 << 20);
    assert_eq!(read(&disk, 79 << 20, 1).await[0], 1);
}

#[tokio::test]
async fn a_probe_tells_what_is_gone_from_what_fails_and_what_returns_may_be_something_else() {
    let (inner, disk) = cached(3);
    write(&disk, 0, 1, SECTOR).await;
    disk.flush().await.unwrap();
    disk.probe().await.unwrap();
    let older = Arc::new(inner.fork());
    write(&disk, 0, 2, SECTOR).await;
    disk.vanish();
    assert_eq!(disk.probe().await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(disk.read(0, IoBuf::with_len(1)).await.unwrap_err().kind(), ErrorKind::NotConnected);
    disk.come_back();
    assert_eq!(read(&disk, 0, 1).await[0], 2, "a cable loses nothing");
    disk.vanish();
    disk.come_back_as(older);
    disk.probe().await.unwrap();
    assert_eq!((read(&disk, 0, 1).await[0], disk.unflushed()), (1, 0));
    disk.inject(Fault::anywhere(On::Read, Effect::Error(ErrorKind::Other)));
    let reads = disk.counts().reads;
    assert_eq!(disk.probe().await.unwrap_err().kind(), ErrorKind::Other);
    assert_eq!(disk.counts().reads, reads);
    disk.presence().await.expect("it is not asked");
    disk.vanish();
    assert_eq!(disk.presence().await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_gone_although_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("d0"), dir.path().join("d1"));
    std::fs::write(&path, vec![0; 1 << 16]).unwrap();
    let disk = disk::FileDisk::open(&path, disk::OpenOptions::default()).unwrap();
    disk.probe().await.unwrap();
    std::fs::rename(&path, &elsewhere).unwrap();
    for error in [disk.probe().await.unwrap_err(), disk.presence().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("d0"), "{error}");
    }
    write(&disk, 0, 1, SECTOR).await;
    std::fs::write(&path, vec![0; 1 << 16]).unwrap();
    assert_eq!(disk.probe().await.unwrap_err().kind(), ErrorKind::NotFound, "another file");
    std::fs::rename(&elsewhere, &path).unwrap();
    disk.probe().await.unwrap();
}
