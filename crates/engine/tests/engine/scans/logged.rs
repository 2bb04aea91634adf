//! Scrubs of what the error log names (`zpool scrub -e`), beside the scans of everything that they are told apart from.

use ondisk::scan::ScanState;

use super::*;

/// In each pass all of the log was offered again, and as it never had room the scrub went round in circles.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_the_error_log_looks_once_at_each_of_more_blocks_than_its_memory_has_room_for() {
    const LOST: usize = 90;
    let (world, running, volume) = filled("d0", 8 * MIB).await;
    drop(volume);
    running.export().await;
    let view = world.look().await.unwrap();
    let volume = view.open_volume(&format!("{POOL}/v")).await.unwrap();
    let mut places = Vec::new();
    let mut runs = volume.data().runs(0, 0..8 * MIB / 16384);
    while let Some(run) = runs.next().await.unwrap() {
        let Run::Block { pointer, .. } = run else { continue };
        places.extend(pointer.dvas().map(|dva| LABEL_START + dva.offset));
    }
    drop(runs);
    drop((volume, view));
    // All over the disk.
    let step = places.len() / LOST;
    places.sort_unstable();
    let places: Vec<u64> = places.into_iter().step_by(step).take(LOST).collect();
    places.iter().for_each(|at| world.media[0].restore(*at, &[0xee; 512]));
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
        engine.sync().await.unwrap();
        assert_eq!(pool::status::error_log(&engine.view()).await.unwrap().len(), LOST, "with {memory} bytes");
        let told = *engine.view().error_scrub().unwrap();
        assert_eq!(told.state(), ScanState::Finished);
        assert_eq!((told.blocks(), told.errors()), ((LOST as u64, LOST as u64), LOST as u64));
    }
    assert!(counts[1] <= counts[0], "{counts:?}");
    close(engine).await;
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
            .run(false, move |cx| {
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
