//! Scans that go from hand to hand: what OpenZFS left of one, what it left in one of ours, and what it is to find.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_that_openzfs_left_damaged_or_degraded_are_scrubbed_here() {
    for (name, options) in [
        ("corrupt-mirror2", &[][..]),
        ("corrupt-raidz2x6", &[]),
        ("degraded-raidz2x6", &["--degraded"]),
        ("missing-mirror2", &["--degraded"]),
        ("missing-raidz2x6", &["--degraded"]),
        ("missing-raidz3x8", &["--degraded"]),
    ] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let copy = fixture.copy();
        let syncer = crate::files::reopen(copy.path(), 1).await.unwrap();
        let pool = syncer.name.clone();
        let engine = Engine::start(syncer, Options::default()).await.unwrap();
        at_rest(&engine).await;
        let done = scrub(&engine).await;
        assert_eq!(done.errors, 0, "{name}");
        assert_eq!(done.processed > 0, name.starts_with("corrupt"), "{name}: {done:?}");
        let again = scrub(&engine).await;
        assert_eq!((again.errors, again.processed), (0, 0), "{name}");
        close(engine).await;
        if fixtures::tool("zdb").is_some() {
            fixtures::zdb_check(options, copy.path(), &pool).unwrap_or_else(|text| panic!("{name}: {text}"));
        }
    }
}

/// OpenZFS takes a leaf for whole only if its list ends at or before the last transaction group of the scan, and counts
/// both by the end of the list. With one less it went through our resilvers and never let the old device go.
#[tokio::test(start_paused = true)]
async fn the_scan_entry_covers_the_lists_of_its_leaves_as_openzfs_counts() {
    let (world, _) = half(32 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    until(&engine, 0.3).await;
    close(engine).await;
    let view = world.look().await.unwrap();
    let lacking = engine::devices::lacking(&view.tree());
    let [(_, missed)] = &lacking[..] else { panic!("one leaf lacks something: {lacking:?}") };
    let (start, end) = missed.span().unwrap();
    let words = *view.scan().unwrap().words();
    assert_eq!((words[0], words[1]), (2, 1), "a resilver that goes on: {words:?}");
    assert_eq!((words[3], words[4]), (start - 1, end), "{missed:?} {words:?}");
}

/// OpenZFS remembers which datasets it has still to visit, and where it is in one: we begin again.
#[tokio::test(start_paused = true)]
async fn a_scrub_that_another_program_left_goes_on_here_from_the_start() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    running
        .engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let queue = zap::create(&mut cx.mos, ondisk::dnode::ObjectType::SCAN_QUEUE, 0).await?;
                zap::set_u64(&mut cx.mos, queue, "36", 5).await?;
                let mut words = [0u64; 24];
                words[..10].copy_from_slice(&[1, 1, queue, 0, cx.txg, 0, cx.txg, 1_600_000_000, 0, 9 << 20]);
                words[10] = 3 << 20;
                words[14..24].copy_from_slice(&[1, 2, 0, 8, 0, 0x36, 1, 0, 77, 0]);
                zap::set(&mut cx.mos, DIRECTORY, "scan".into(), ondisk::zap::Value::from_u64s(&words))
                    .await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    running.export().await;
    corrupt(&world.media[1], 5, 3).await;
    let (engine, _) = slowly(&world, 3).await;
    let progress = engine.scan_progress().unwrap();
    assert_eq!((progress.started, progress.issued, progress.ended), (1_600_000_000, 0, None));
    close(engine).await;
    // In the middle, and as OpenZFS would take it over: a queue of its own kind, and a bookmark at the start.
    let dir = tempfile::tempdir_in(fixtures::scratch()).unwrap();
    world.save(dir.path());
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&["--degraded"], dir.path(), POOL).unwrap_or_else(|text| panic!("zdb: {text}"));
    }
    let view = world.look().await.unwrap();
    let scan = *view.scan().unwrap();
    assert!(scan.queue_object() != 0 && scan.words()[15..23].iter().all(|word| *word == 0), "{scan:?}");
    let running = world.open().await;
    let done = over(&running.engine).await;
    assert_eq!((done.kind, done.started, done.errors), (ScanKind::Scrub, 1_600_000_000, 0));
    assert!(done.processed > 0);
    running.export().await;
    world.verify("taken over").await;
    judge(&world);
}

/// OpenZFS keeps our cursor when it goes on with a scan, so its queue was taken for ours and left beside a bookmark at the start:
/// the next OpenZFS that imported the pool came to a dataset that was in the queue already, and panicked.
#[tokio::test(start_paused = true)]
async fn what_another_program_left_in_the_queue_of_a_scan_of_ours_is_taken_out() {
    let (world, expected) = half(48 * MIB).await;
    let (engine, _) = slowly(&world, 4).await;
    let progress = until(&engine, 0.3).await;
    engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let words = zap::get(&mut cx.mos, DIRECTORY, "scan".into()).await?.expect("a scan runs");
                let queue = words.integers().nth(2).expect("it has a queue");
                Ok(zap::set_u64(&mut cx.mos, queue, "36", 5).await?)
            })
        })
        .await
        .unwrap();
    close(engine).await;
    let (engine, _) = slowly(&world, 4).await;
    let continued = engine.scan_progress().unwrap();
    assert_eq!((continued.started, continued.ended), (progress.started, None));
    assert!(continued.issued >= progress.issued, "{continued:?} after {progress:?}");
    close(engine).await;
    let view = world.look().await.unwrap();
    let scan = *view.scan().unwrap();
    assert!(scan.words()[15..23].iter().all(|word| *word == 0), "{scan:?}");
    assert_eq!(scan.state(), ondisk::scan::ScanState::Scanning);
    let queue = pool::zap::Zap::open_in(view.mos(), scan.queue_object()).await.unwrap();
    assert!(queue.numbers().await.unwrap().is_empty());
    drop((queue, view));
    let engine = open_without(&world, &[], quiet()).await;
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
    world.verify("without what was in the queue").await;
    judge(&world);
    holds_without(&world, &[0], &expected).await;
}

/// Its number is not all that is asked for.
#[tokio::test(start_paused = true)]
async fn what_a_damaged_scan_entry_takes_for_its_queue_is_not_freed() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    let history = running
        .engine
        .run(|cx| {
            Box::pin(async move {
                use engine::mos::{DIRECTORY, zap};
                let history =
                    zap::get_u64(&mut cx.mos, DIRECTORY, "history").await?.expect("each pool has one");
                let mut words = [0u64; 24];
                words[..8].copy_from_slice(&[1, 1, history, 0, cx.txg, 0, cx.txg, 1_600_000_000]);
                zap::set(&mut cx.mos, DIRECTORY, "scan".into(), ondisk::zap::Value::from_u64s(&words))
                    .await?;
                Ok(history)
            })
        })
        .await
        .unwrap();
    running.export().await;
    let engine = world.open().await.engine;
    over(&engine).await;
    close(engine).await;
    let view = world.look().await.unwrap();
    let kept = view.mos().dnode(history).await.unwrap();
    assert_eq!(kept.dnode.object_type, ondisk::dnode::ObjectType::HISTORY);
    judge(&world);
}
