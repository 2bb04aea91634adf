//! Scrubs: what is wrong on some device is made right and counted, and what nobody has any more is listed.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_scrub_repairs_what_is_wrong_and_says_how_much() {
    for (layout, bad) in [
        ("mirror d0 d1", &[1][..]),
        ("raidz d0 d1 d2", &[2]),
        ("raidz2 d0 d1 d2 d3 d4", &[0, 3]),
        ("raidz3 d0 d1 d2 d3 d4 d5", &[1, 2, 5]),
        ("mirror d0 d1 special mirror d2 d3 log d4", &[0, 3]),
    ] {
        let (world, running, volume) = filled(layout, 8 * MIB).await;
        let expected = content(&*volume).await;
        let clean = scrub(&running.engine).await;
        assert_eq!((clean.kind, clean.errors, clean.processed), (ScanKind::Scrub, 0, 0), "{layout}");
        running.export().await;
        for &disk in bad {
            corrupt(&world.media[disk], 3, 7).await;
        }
        let running = world.open().await;
        let repaired = scrub(&running.engine).await;
        assert_eq!(repaired.errors, 0, "{layout}");
        assert!(repaired.processed > MIB / 4, "{layout}: {repaired:?}");
        let errors = checksum_errors(&running.engine);
        for (n, count) in errors.values().enumerate() {
            assert_eq!(*count > 0, bad.contains(&n), "{layout}: {errors:?}");
        }
        let again = scrub(&running.engine).await;
        assert_eq!((again.errors, again.processed), (0, 0), "{layout}");
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        drop(volume);
        running.export().await;
        world.verify(layout).await;
    }
}

/// A stripe that its parity could not help was left as it was, though the block has a second copy.
#[tokio::test(start_paused = true)]
async fn a_stripe_beyond_repair_is_written_anew_from_the_other_copy() {
    let (world, running) = World::create("raidz d0 d1 d2", 12, 128 << 20, 5).await;
    let mut twice = plain();
    twice.insert("copies".to_owned(), Stored::Number(2));
    let volume = running.volume(&format!("{POOL}/v"), 4 * MIB, 16384, twice).await;
    scribble(&volume, 1, 300, 16384).await;
    running.engine.sync().await.unwrap();
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    // Both copies of each sector of the first block, the lower one first: (disk, offset).
    let sectors: Vec<Vec<(usize, u64)>> = expected[..16384]
        .chunks(4096)
        .map(|sector| {
            let mut found = Vec::new();
            for (disk, media) in world.media.iter().enumerate() {
                let all = media.snapshot(0..media.info().size);
                let places = all.chunks_exact(4096).enumerate().filter(|(_, bytes)| *bytes == sector);
                found.extend(places.map(|(number, _)| (disk, number as u64 * 4096)));
            }
            found.sort_unstable_by_key(|(_, offset)| *offset);
            found
        })
        .collect();
    // Two cells of one row: more than parity can make good.
    let harm = async |copy: usize| {
        for number in [0, 2] {
            let [.., (disk, offset)] = sectors[number][..=copy] else { panic!("{sectors:?}") };
            world.media[disk].write(offset, vec![0xee; 4096].into()).await.unwrap();
        }
    };
    harm(0).await;
    let running = world.open().await;
    let done = scrub(&running.engine).await;
    assert_eq!(done.errors, 0);
    assert!(done.processed >= 16384, "{done:?}");
    assert_eq!(scrub(&running.engine).await.processed, 0, "all is right now");
    running.export().await;
    harm(1).await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(content(&*volume).await == expected, "the first copy is there again");
    scrub(&running.engine).await;
    drop(volume);
    running.export().await;
    world.verify("written anew").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_listed_and_everything_else_is_right() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let expected = content(&*volume).await;
    drop(volume);
    running.export().await;
    // A few of the volume's blocks, on both sides.
    let mut lost = Vec::new();
    for media in &world.media {
        let all = media.snapshot(0..media.info().size);
        for block in [3usize, 77, 200] {
            let bytes = &expected[block * 16384..(block + 1) * 16384];
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let places: Vec<usize> = (0..all.len() / 4096 - 4)
                .map(|n| n * 4096)
                .filter(|at| all[*at..*at + 16384] == *bytes)
                .collect();
            for at in places {
                media.write(at as u64 + 512, vec![0xee; 512].into()).await.unwrap();
                lost.push(block as u64);
            }
        }
    }
    lost.sort_unstable();
    lost.dedup();
    assert!(!lost.is_empty());
    let running = world.open().await;
    let done = scrub(&running.engine).await;
    assert_eq!(done.errors, lost.len() as u64);
    running.engine.sync().await.unwrap();
    let log = pool::status::error_log(&running.engine.view()).await.unwrap();
    let blocks: Vec<u64> = log.iter().map(|entry| entry.at.blkid).collect();
    assert_eq!(blocks, lost, "{log:?}");
    let told: Vec<String> = running
        .engine
        .events()
        .since(0)
        .iter()
        .filter_map(|record| match &record.event {
            Event::DataLost { what, .. } => Some(what.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), lost.len());
    assert!(told[0].starts_with(&format!("{POOL}/v:<0x1> offset ")), "{told:?}");
    // It is remembered, and forgotten when the blocks were written anew and a scrub finds nothing.
    running.export().await;
    let running = world.open().await;
    assert_eq!(pool::status::error_log(&running.engine.view()).await.unwrap().len(), lost.len());
    // Nor does a scrub that does not look at them forget them.
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    assert_eq!(over(&running.engine).await.errors, 0);
    running.engine.sync().await.unwrap();
    assert_eq!(pool::status::error_log(&running.engine.view()).await.unwrap().len(), lost.len());
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    for (number, bytes) in expected.chunks(16384).enumerate() {
        let at = number as u64 * 16384;
        if lost.contains(&(number as u64)) {
            assert!(volume.read(at, 16384).await.is_err(), "block {number} is lost");
            volume.write(at, data(bytes.to_vec()), Durability::Cached).await.unwrap();
        }
    }
    running.engine.sync().await.unwrap();
    assert_eq!(content(&*volume).await, expected);
    assert_eq!(scrub(&running.engine).await.errors, 0);
    running.engine.sync().await.unwrap();
    assert!(pool::status::error_log(&running.engine.view()).await.unwrap().is_empty());
    drop(volume);
    running.export().await;
    world.verify("written anew").await;
    judge(&world);
}

#[tokio::test(start_paused = true)]
async fn a_scrub_of_what_is_new_reads_only_that() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let scrubbed = async |engine: &Engine| {
        engine.sync().await.unwrap();
        engine.view().directory().get_u64("last_scrubbed_txg").await.unwrap()
    };
    assert_eq!(scrubbed(&running.engine).await, None);
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    let full = over(&running.engine).await;
    assert_eq!((full.kind, full.errors), (ScanKind::Scrub, 0), "the first is of everything");
    assert!(full.issued > 4 * MIB, "{full:?}");
    let first = scrubbed(&running.engine).await.unwrap();
    assert_eq!(first, running.engine.view().scan().unwrap().words()[4]);
    scribble(&volume, 2, 40, 16384).await;
    running.engine.sync().await.unwrap();
    running.engine.scan(ScanCommand::ScrubNew).await.unwrap();
    let new = over(&running.engine).await;
    assert_eq!((new.kind, new.errors), (ScanKind::Scrub, 0));
    assert!(new.issued > 30 * 16384 && new.issued < full.issued / 2, "{new:?} after {full:?}");
    assert!(scrubbed(&running.engine).await.unwrap() > first);
    // A scrub of everything is one still.
    let again = scrub(&running.engine).await;
    assert!(again.issued >= full.issued, "{again:?} after {full:?}");
    drop(volume);
    running.export().await;
    world.verify("scrubbed in part").await;
}

/// The pool's own disks are nearly full, and the view that a walk pinned gives way to writers.
#[tokio::test(start_paused = true)]
async fn writers_of_a_full_pool_do_not_wait_for_scans() {
    let (world, running) = World::create("mirror d0 d1", 12, 72 << 20, 2).await;
    let volume = running.volume(&format!("{POOL}/v"), 40 * MIB, 8192, plain()).await;
    let mut random = StdRng::seed_from_u64(1);
    let mut full = 0;
    running.engine.scan(ScanCommand::Scrub).await.unwrap();
    for round in 0..400u64 {
        for number in 0..60u64 {
            let at = random.random_range(0..40 * MIB / 8192) * 8192;
            let bytes = noise(round << 20 | number, 8192);
            full += u32::from(volume.write(at, data(bytes), Durability::Cached).await.is_err());
        }
        running.engine.sync().await.unwrap();
        if round % 40 == 39 {
            // Refused while one runs: then that one is enough.
            drop(running.engine.scan(ScanCommand::Scrub).await);
        }
    }
    println!("{full} writes found no room");
    assert!(running.engine.suspended().is_none());
    assert_eq!(over(&running.engine).await.errors, 0);
    drop(volume);
    running.export().await;
    world.verify("full").await;
}
