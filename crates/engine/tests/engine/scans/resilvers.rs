//! Resilvers: a device that was away, or is new, gets what it lacks, whatever happens meanwhile, and nobody else anything.

use engine::events::ScanStep;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_leaf_that_was_away_gets_what_it_missed_and_no_more() {
    for (layout, away) in [
        ("mirror d0 d1", &[1][..]),
        ("raidz2 d0 d1 d2 d3 d4", &[0, 3]),
        ("raidz d0 d1 d2 mirror d3 d4 d5 special mirror d6 d7", &[1, 4, 7]),
    ] {
        let (world, running, volume) = filled(layout, 16 * MIB).await;
        drop(volume);
        running.export().await;
        let engine = open_without(&world, away, quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        scribble(&volume, 2, 60, 16384).await;
        engine.sync().await.unwrap();
        let expected = content(&*volume).await;
        drop(volume);
        close(engine).await;

        let before: Vec<_> = world.media.iter().map(|media| media.fork()).collect();
        let running = world.open().await;
        let done = over(&running.engine).await;
        assert_eq!((done.kind, done.errors), (ScanKind::Resilver, 0), "{layout}");
        assert!(done.processed > 0 && done.processed < 8 * MIB, "{layout}: {done:?}");
        assert!(done.issued < 12 * MIB, "{layout}: only the delta is read: {done:?}");
        let lacking = engine::devices::lacking(&running.engine.view().tree());
        assert!(lacking.is_empty(), "{layout}: {lacking:?}");
        let steps: Vec<ScanStep> = running
            .engine
            .events()
            .since(0)
            .iter()
            .filter_map(|record| match record.event {
                Event::Scan { step, .. } => Some(step),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [ScanStep::Started, ScanStep::Finished], "{layout}");
        running.engine.sync().await.unwrap();
        running.export().await;
        world.verify(layout).await;
        // Alone, they are as good as the others.
        let others: Vec<usize> = match layout {
            "mirror d0 d1" => vec![0],
            "raidz2 d0 d1 d2 d3 d4" => vec![1, 2],
            _ => vec![0, 3, 6],
        };
        drop(before);
        let engine = open_without(&world, &others, quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        close(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resilver_goes_on_where_it_was_when_the_pool_was_closed() {
    let (world, expected) = half(48 * MIB).await;
    let (engine, first) = slowly(&world, 4).await;
    let progress = until(&engine, 0.5).await;
    assert_eq!(progress.kind, ScanKind::Resilver);
    close(engine).await;
    let (engine, second) = slowly(&world, 4).await;
    let continued = engine.scan_progress().unwrap();
    assert!(continued.issued >= progress.issued, "{continued:?} after {progress:?}");
    let done = over(&engine).await;
    assert_eq!((done.errors, done.started), (0, progress.started));
    let (first, second) = (first[0].load(Relaxed), second[0].load(Relaxed));
    assert!(first >= 24 * MIB && second < 32 * MIB, "{first} bytes read before, {second} after");
    assert!(first + second < 66 * MIB, "{first} and {second}");
    close(engine).await;
    world.verify("in two parts").await;
    judge(&world);
    holds_without(&world, &[0], &expected).await;
}

/// Found by reading: what a resilver wrote is older than an image that was taken in the middle of it. The device counted as whole
/// without it when it came back as that.
#[tokio::test(start_paused = true)]
async fn a_drive_that_comes_back_as_it_was_in_the_middle_of_a_resilver_gets_all_of_it() {
    let (mut world, expected) = half(16 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    until(&engine, 0.3).await;
    engine.sync().await.unwrap();
    let image = Arc::new(world.media[1].fork());
    assert_eq!(over(&engine).await.errors, 0);
    engine.sync().await.unwrap();
    let guid = engine.view().tree().leaves()[1].guid;
    engine.offline(guid, false).await.unwrap();
    engine.sync().await.unwrap();
    engine.online(guid, Some(Arc::clone(&image) as Arc<dyn Disk>), false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(over(&engine).await.errors, 0);
    engine.sync().await.unwrap();
    let lacking = engine::devices::lacking(&engine.view().tree());
    assert!(lacking.is_empty(), "{lacking:?}");
    close(engine).await;
    world.media[1] = image;
    holds_without(&world, &[0], &expected).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_in_the_middle_of_a_resilver_costs_nothing() {
    let (mut world, expected) = half(24 * MIB).await;
    for round in 0..6u64 {
        let running = world.open().await;
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        if round % 2 == 1 {
            running.engine.sync().await.unwrap();
        }
        world.cut(running).await;
    }
    let running = world.open().await;
    let done = over(&running.engine).await;
    assert_eq!(done.errors, 0);
    running.export().await;
    world.verify("after power cuts").await;
    holds_without(&world, &[0], &expected).await;
}

/// Space of blocks that the resilver has found and not yet copied is freed and given to other blocks all the time. A
/// repair that came late would destroy these, and a read that came late would be taken for damage.
#[tokio::test(start_paused = true)]
async fn blocks_freed_and_replaced_under_a_resilver_are_neither_harmed_nor_missed() {
    for (layout, away) in [("mirror d0 d1", 1), ("raidz d0 d1 d2", 2)] {
        let (world, running) = World::create(layout, 12, 72 << 20, 9).await;
        running.export().await;
        let engine = open_without(&world, &[away], quiet()).await;
        let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
        let volume = running.volume(&format!("{POOL}/v"), 20 * MIB, 8192, plain()).await;
        scribble(&volume, 1, 3000, 8192).await;
        drop((volume, running));
        close(engine).await;
        let (engine, _) = slowly(&world, 2).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        let mut rounds = 0;
        while engine.scan_progress().is_none_or(|progress| progress.ended.is_none()) {
            scribble(&volume, 100 + rounds, 300, 8192).await;
            engine.sync().await.unwrap();
            rounds += 1;
            assert!(rounds < 2000, "{layout}: it does not end");
        }
        assert!(rounds > 5, "{layout}: {rounds}");
        let done = over(&engine).await;
        assert_eq!((done.kind, done.errors), (ScanKind::Resilver, 0), "{layout}");
        assert!(checksum_errors(&engine).values().all(|count| *count == 0), "{layout}");
        let expected = content(&*volume).await;
        let lost = engine.events().since(0).iter().any(|r| matches!(r.event, Event::DataLost { .. }));
        assert!(!lost, "{layout}");
        drop(volume);
        close(engine).await;
        world.verify(layout).await;
        judge(&world);
        let engine = open_without(&world, &[0], quiet()).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        assert!(checksum_errors(&engine).values().all(|count| *count == 0), "{layout}");
        close(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn snapshots_clones_copies_and_small_blocks_are_resilvered_too() {
    let (world, running) = World::create("raidz d0 d1 d2", 12, 128 << 20, 4).await;
    running.export().await;
    let engine = open_without(&world, &[0], quiet()).await;
    let running = Running { engine: Arc::clone(&engine), disks: Vec::new() };
    let mut expected = BTreeMap::new();
    for (name, block, properties) in [
        ("a", 4096, plain()),
        ("b", 65536, Properties::from([("copies".to_owned(), Stored::Number(2))])),
        ("c", 16384, Properties::from([("checksum".to_owned(), Stored::Number(8))])),
    ] {
        let name = format!("{POOL}/{name}");
        let volume = running.volume(&name, 4 * MIB, block, properties).await;
        scribble(&volume, 1, 60, block as usize).await;
        take_snapshot(&engine, format!("{name}@one")).await;
        scribble(&volume, 2, 30, block as usize).await;
        engine.sync().await.unwrap();
        let (of, clone) = (format!("{name}@one"), format!("{name}-clone"));
        let as_clone = clone.clone();
        engine
            .run(move |cx| {
                Box::pin(
                    async move { engine::dsl::clone(cx, &of, &as_clone, &Properties::new(), false).await },
                )
            })
            .await
            .unwrap();
        let copy = engine.volume(&clone).await.unwrap();
        scribble(&copy, 3, 20, block as usize).await;
        engine.sync().await.unwrap();
        expected.insert(name, content(&*volume).await);
        expected.insert(clone, content(&*copy).await);
    }
    drop(running);
    close(engine).await;
    let running = world.open().await;
    assert_eq!(over(&running.engine).await.errors, 0);
    running.export().await;
    world.verify("all kinds").await;
    judge(&world);
    let engine = open_without(&world, &[1], quiet()).await;
    for (name, expected) in expected {
        let volume = engine.volume(&name).await.unwrap();
        assert!(content(&*volume).await == expected, "{name}");
    }
    close(engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_is_filled_and_takes_its_place_while_clients_write() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let (mut world, running, volume) = filled(layout, 8 * MIB).await;
        let path = format!("/disks/d{}", world.media.len());
        let media = Arc::new(MemDisk::new(128 << 20).named(path.clone()));
        world.media.push(Arc::clone(&media));
        let view = running.engine.view();
        let find = |word| engine::devices::find(&view, word);
        let old = find("/disks/d1").or_else(|_| find("d1")).unwrap();
        let new = engine::devices::NewLeaf { path, disk: media, is_file: true, ashift: None };
        running.engine.replace(old, new).await.unwrap();
        let mut rounds = 0;
        while engine::devices::find(&running.engine.view(), &old.to_string()).is_ok() {
            scribble(&volume, 50 + rounds, 40, 16384).await;
            running.engine.sync().await.unwrap();
            rounds += 1;
            assert!(rounds < 500, "{layout}: the old one does not go: {:?}", running.engine.scan_progress());
        }
        at_rest(&running.engine).await;
        assert_eq!(scrub(&running.engine).await.processed, 0, "{layout}");
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        world.media.remove(1);
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == expected, "{layout}");
        drop(volume);
        running.export().await;
        world.verify(layout).await;
        judge(&world);
    }
}
