//! Scrubs of what the error log names (`zpool scrub -e`), beside the scans of everything that they are told apart from.

use std::collections::BTreeSet;

use disk::{Effect, Fault, On};
use ondisk::scan::ScanState;
use parking_lot::Mutex;

use super::*;

/// Blocks that the volume of an exported pool has at a level: where each copy is on the disk, and its number. By place.
async fn places(world: &World, level: u8) -> Vec<(u64, u64)> {
    let view = world.look().await.unwrap();
    let volume = view.open_volume(&format!("{POOL}/v")).await.unwrap();
    let mut places = Vec::new();
    let mut runs = volume.data().runs(level, 0..8 * MIB / 16384);
    while let Some(run) = runs.next().await.unwrap() {
        let Run::Block { blkid, pointer } = run else { continue };
        places.extend(pointer.dvas().map(|dva| (DATA_OFFSET + dva.offset, blkid)));
    }
    places.sort_unstable();
    places
}

/// An exported pool with a volume.
async fn exported() -> World {
    let (world, running, volume) = filled("d0", 8 * MIB).await;
    drop(volume);
    running.export().await;
    world
}

fn damage(world: &World, at: u64) {
    world.media[0].restore(at, &[0xee; 512]);
}

async fn log(engine: &Engine) -> Vec<pool::status::LoggedError> {
    engine.sync().await.unwrap();
    pool::status::error_log(&engine.view()).await.unwrap()
}

/// In each pass all of the log was offered again, and as it never had room the scrub went round in circles.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_the_error_log_looks_once_at_each_of_more_blocks_than_its_memory_has_room_for() {
    const LOST: usize = 90;
    let world = exported().await;
    let places = places(&world, 0).await;
    // All over the disk.
    let step = places.len() / LOST;
    let places: Vec<u64> = places.into_iter().map(|(at, _)| at).step_by(step).take(LOST).collect();
    places.iter().for_each(|at| damage(&world, *at));
    let (reads, seen) = (Arc::default(), Arc::<Mutex<BTreeSet<u64>>>::default());
    let counting = |media: Arc<MemDisk>| {
        let (places, seen) = (places.clone(), Arc::clone(&seen));
        Counting::over(media, &reads, move |read| {
            let met: Vec<u64> = places.iter().copied().filter(|at| read.contains(at)).collect();
            seen.lock().extend(&met);
            met.len() as u64
        })
    };
    let engine = world.open_over(counting, quiet()).await;
    assert_eq!(scrub(&engine).await.errors, LOST as u64);
    let mut counts = Vec::new();
    for memory in [16 << 20, 0] {
        engine.set_scan_memory(memory);
        seen.lock().clear();
        let before = reads.load(Relaxed);
        engine.scan(ScanCommand::ScrubErrors).await.unwrap();
        over(&engine).await;
        assert_eq!(seen.lock().len(), LOST, "with {memory} bytes");
        counts.push(reads.load(Relaxed) - before);
        assert_eq!(log(&engine).await.len(), LOST, "with {memory} bytes");
        let told = *engine.view().error_scrub().unwrap();
        assert_eq!(told.state(), ScanState::Finished);
        assert_eq!((told.blocks(), told.errors()), ((LOST as u64, LOST as u64), LOST as u64));
    }
    assert!(counts[1] <= counts[0], "{counts:?}");
    close(engine).await;
}

/// What it had met already was dropped when the scrub of the error log began, before that read the log: it looked at nothing,
/// and no error was known any more.
#[tokio::test(start_paused = true)]
async fn what_a_scrub_met_before_it_was_stopped_is_looked_at_by_one_of_the_error_log() {
    let world = exported().await;
    places(&world, 0).await.into_iter().step_by(20).for_each(|(at, _)| damage(&world, at));
    let (engine, _) = slowly(&world, 20).await;
    engine.set_scan_memory(0);
    engine.scan(ScanCommand::Scrub).await.unwrap();
    while engine.scan_progress().unwrap().errors == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // So that it is written down, and there is more to find.
    engine.scan(ScanCommand::Pause).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let met = log(&engine).await;
    let filed = engine.view().directory().get_u64("errlog_scrub").await.unwrap();
    assert!(!met.is_empty() && filed.is_some_and(|object| object != 0), "{met:?}, {filed:?}");
    engine.scan(ScanCommand::Stop).await.unwrap();
    assert_eq!(log(&engine).await, met);
    engine.scan(ScanCommand::ScrubErrors).await.unwrap();
    over(&engine).await;
    assert_eq!(log(&engine).await, met);
    let (told, count) = (*engine.view().error_scrub().unwrap(), met.len() as u64);
    assert_eq!((told.state(), told.blocks(), told.errors()), (ScanState::Finished, (count, count), count));
    close(engine).await;
}

/// A pool with a lost block in its error log, and another one that is lost as well, which nobody has met: where the first
/// is, and the number of the second.
async fn with_two_lost() -> (World, u64, u64) {
    let world = exported().await;
    let all = places(&world, 0).await;
    let ((known, _), (new, block)) = (all[0], all[all.len() - 1]);
    damage(&world, known);
    let running = world.open().await;
    assert_eq!(scrub(&running.engine).await.errors, 1);
    assert_eq!(log(&running.engine).await.len(), 1);
    running.export().await;
    damage(&world, new);
    (world, known, block)
}

/// The log that it had read took the place of the one that had grown.
#[tokio::test(start_paused = true)]
async fn what_a_client_meets_while_the_error_log_is_scrubbed_stays_in_it() {
    let (world, known, block) = with_two_lost().await;
    let running = world.open().await;
    let (engine, late) = (&running.engine, Duration::from_secs(2));
    running.disks[0].inject(Fault::new(On::Read, known..known + 512, Effect::Delay(late..=late)));
    engine.scan(ScanCommand::ScrubErrors).await.unwrap();
    let is_under_way = || {
        let progress = engine.scan_progress().unwrap();
        assert!(progress.ended.is_none(), "it ended before: {progress:?}");
        progress.logged.is_some_and(|logged| logged.total == 1)
    };
    while !is_under_way() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(volume.read(block * 16384, 16384).await.is_err());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(log(engine).await.len(), 2);
    assert!(is_under_way());
    over(engine).await;
    assert_eq!(log(engine).await.len(), 2);
    drop(volume);
    running.export().await;
}

/// What could not be found was taken for what is not there any more.
#[tokio::test(start_paused = true)]
async fn a_lost_block_stays_in_the_error_log_if_what_leads_to_it_is_lost_as_well() {
    let world = exported().await;
    let (at, block) = places(&world, 0).await[0];
    damage(&world, at);
    let running = world.open().await;
    assert_eq!(scrub(&running.engine).await.errors, 1);
    let known = log(&running.engine).await;
    assert_eq!(known.iter().map(|entry| entry.at.blkid).collect::<Vec<_>>(), [block]);
    running.export().await;
    places(&world, 1).await.iter().for_each(|(at, _)| damage(&world, *at));
    let running = world.open().await;
    running.engine.scan(ScanCommand::ScrubErrors).await.unwrap();
    over(&running.engine).await;
    let left = log(&running.engine).await;
    assert!(left.contains(&known[0]), "{left:?}");
    assert_eq!(running.engine.view().error_scrub().unwrap().errors(), 1);
    running.export().await;
}

/// It would stand there as one that runs, for ever.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_the_error_log_that_another_program_left_goes_on_here() {
    // It runs, or is paused and gets this command.
    for command in [None, Some(ScanCommand::ScrubErrors), Some(ScanCommand::Stop)] {
        let (is_paused, is_stopped) = (command.is_some(), command == Some(ScanCommand::Stop));
        let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
        drop(volume);
        scrub(&running.engine).await;
        running
            .engine
            .run(move |cx| {
                Box::pin(async move {
                    use engine::mos::{DIRECTORY, zap};
                    let words = [3, 4, 77, 1_600_000_000, 0, 9, 3, 1, u64::from(is_paused)];
                    let value = ondisk::zap::Value::from_u64s(&words);
                    zap::set(&mut cx.mos, DIRECTORY, "error_scrub".into(), value).await?;
                    Ok(())
                })
            })
            .await
            .unwrap();
        running.export().await;
        let engine = world.open().await.engine;
        if let Some(command) = command {
            let progress = engine.scan_progress().unwrap();
            assert!(progress.logged.is_some() && progress.paused.is_some(), "{progress:?}");
            assert_eq!(engine.view().error_scrub().unwrap().state(), ScanState::ErrorScrubbing);
            engine.scan(command).await.unwrap();
        }
        over(&engine).await;
        engine.sync().await.unwrap();
        let told = *engine.view().error_scrub().unwrap();
        let state = if is_stopped { ScanState::Cancelled } else { ScanState::Finished };
        assert_eq!((told.state(), told.errors(), told.is_paused()), (state, 0, false));
        assert_eq!((told.times().0, told.blocks()), (1_600_000_000, (0, 0)));
        // What was found out about everything stands beside it.
        assert_eq!(engine.view().scan().unwrap().state(), ScanState::Finished);
        close(engine).await;
        judge(&world);
    }
}

/// Between its end and the commit that says how it ended it was neither under way nor over: `zpool scrub -e -w` came back, and
/// status told of the scrub before it.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_the_error_log_is_under_way_until_a_commit_says_how_it_ended() {
    let (world, ..) = with_two_lost().await;
    let (engine, _) = slowly(&world, 10).await;
    engine.scan(ScanCommand::ScrubErrors).await.unwrap();
    let mut between = 0;
    loop {
        let view = engine.view();
        let shown = engine.scan_beside(&view);
        if !shown.is_some_and(|scan| scan.logged.is_some() && scan.ended.is_none()) {
            assert_eq!(view.error_scrub().map(|scrub| scrub.state()), Some(ScanState::Finished));
            break;
        }
        between += u32::from(engine.scan_progress().is_none_or(|scan| scan.ended.is_some()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(between > 0, "it was not looked at between");
    close(engine).await;
}

/// It stood there as one that runs, with a queue that was somebody else's object by the time it was freed.
#[tokio::test(start_paused = true)]
async fn a_scrub_that_was_stopped_is_over_although_one_of_the_error_log_begins_in_the_same_group() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    running.export().await;
    let (engine, _) = slowly(&world, 3).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    until(&engine, 0.2).await;
    let (stopped, begun) =
        tokio::join!(engine.scan(ScanCommand::Stop), engine.scan(ScanCommand::ScrubErrors));
    stopped.unwrap();
    begun.unwrap();
    over(&engine).await;
    close(engine).await;
    let view = world.look().await.unwrap();
    let scan = view.scan().unwrap();
    assert_eq!((scan.state(), scan.words()[2]), (ScanState::Cancelled, 0));
    judge(&world);
}

/// A pool with a block in its error log that cannot be read, and another one that is lost as well, which nobody has met: its
/// number.
async fn with_damaged_log() -> (World, u64) {
    let (world, _, block) = with_two_lost().await;
    let view = world.look().await.unwrap();
    let object = view.directory().get_u64("errlog_last").await.unwrap().unwrap();
    let object = view.mos().object(object).await.unwrap();
    let mut runs = object.runs(0, 0..1);
    let Some(Run::Block { pointer, .. }) = runs.next().await.unwrap() else { panic!("no block") };
    pointer.dvas().for_each(|dva| damage(&world, DATA_OFFSET + dva.offset));
    (world, block)
}

/// Found by reading: the next block that was lost was the end of the pool, after each import again, as it was to be added to what
/// cannot be read.
#[tokio::test(start_paused = true)]
async fn an_error_log_that_is_damaged_begins_anew() {
    let (world, block) = with_damaged_log().await;
    let running = world.open().await;
    let engine = &running.engine;
    let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(volume.read(block * 16384, 16384).await.is_err());
    let met = log(engine).await;
    assert_eq!(met.iter().map(|entry| entry.at.blkid).collect::<Vec<_>>(), [block]);
    assert_eq!(scrub(engine).await.errors, 2);
    assert_eq!(log(engine).await.len(), 2);
    assert!(engine.suspended().is_none());
    drop(volume);
    running.export().await;
}

/// Found by reading: it began again each second, each time with a transaction group, and never ended.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_an_error_log_that_is_damaged_ends() {
    let (world, _) = with_damaged_log().await;
    let running = world.open().await;
    let engine = &running.engine;
    engine.scan(ScanCommand::ScrubErrors).await.unwrap();
    over(engine).await;
    engine.sync().await.unwrap();
    let told = *engine.view().error_scrub().unwrap();
    assert_eq!((told.state(), told.errors()), (ScanState::Finished, 1));
    let damaged = engine.view().directory().get_u64("errlog_last").await.unwrap();
    let errors = scrub(engine).await.errors;
    assert!(
        (2..=3).contains(&errors),
        "with a block of the log, if that is met before it makes room: {errors}"
    );
    assert_ne!(engine.view().directory().get_u64("errlog_last").await.unwrap(), damaged);
    assert_eq!(scrub(engine).await.errors, 2);
    assert_eq!(log(engine).await.len(), 2);
    running.export().await;
}
