//! Scans at an administrator's word: begun, paused, stopped and refused, and what they say of themselves while they stand still.

use super::*;

/// A mirror with something to read that nobody has open.
async fn left() -> World {
    let (world, running, volume) = filled("mirror d0 d1", 32 * MIB).await;
    scribble(&volume, 8, 1500, 16384).await;
    running.engine.sync().await.unwrap();
    drop(volume);
    running.export().await;
    world
}

#[tokio::test(start_paused = true)]
async fn scans_are_begun_halted_and_refused_in_openzfs_words() {
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    let refused = |answer: Result<(), engine::dsl::OpError>| answer.unwrap_err().to_string();
    assert_eq!(refused(engine.scan(ScanCommand::Stop).await), "there is no active scrub");
    assert_eq!(refused(engine.scan(ScanCommand::Pause).await), "there is no active scrub");
    engine.scan(ScanCommand::Scrub).await.unwrap();
    assert_eq!(
        refused(engine.scan(ScanCommand::Scrub).await),
        "currently scrubbing; use 'zpool scrub -s' to cancel scrub"
    );
    until(&engine, 0.2).await;
    engine.scan(ScanCommand::Pause).await.unwrap();
    assert_eq!(
        refused(engine.scan(ScanCommand::Pause).await),
        "scrub is paused; use 'zpool scrub' to resume scrub"
    );
    close(engine).await;
    // Paused it stays, in the eyes of OpenZFS too.
    let (engine, _) = slowly(&world, 20).await;
    let progress = engine.scan_progress().unwrap();
    assert!(!progress.running && progress.paused.is_some(), "{progress:?}");
    assert_eq!(engine.view().scan().unwrap().flags() & 2, 2);
    engine.scan(ScanCommand::Scrub).await.unwrap();
    until(&engine, 0.5).await;
    engine.scan(ScanCommand::Stop).await.unwrap();
    let progress = engine.scan_progress().unwrap();
    assert!(progress.ended.is_some() && !progress.running);
    assert_eq!(engine.view().scan().unwrap().state(), ondisk::scan::ScanState::Cancelled);
    engine.scan(ScanCommand::Scrub).await.unwrap();
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
    world.verify("begun and halted").await;
    judge(&world);
}

/// It seemed to run, with a time to go, for as long as memory was short.
#[tokio::test(start_paused = true)]
async fn a_scrub_that_waits_for_memory_says_so() {
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    until(&engine, 0.2).await;
    engine.hold_scrubs(true);
    let progress = engine.scan_progress().unwrap();
    assert!(progress.held && progress.remaining.is_none(), "{progress:?}");
    engine.hold_scrubs(false);
    assert!(!engine.scan_progress().unwrap().held);
    assert_eq!(over(&engine).await.errors, 0);
    close(engine).await;
}

/// One that was halted over night, or whose daemon was not running, seemed to creep: all the time since its beginning counted.
#[tokio::test(start_paused = true)]
async fn a_rest_makes_no_scan_look_slow() {
    const NIGHT: Duration = Duration::from_secs(8 * 3600);
    let world = left().await;
    let (engine, _) = slowly(&world, 20).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    let at_first = until(&engine, 0.2).await;
    assert!(at_first.scanned_rate > 0.0, "{at_first:?}");
    // Whose walk is over finds nothing more.
    let is_like_before =
        |now: &Progress| now.scanned_rate == 0.0 || now.scanned_rate > at_first.scanned_rate / 20.0;
    engine.scan(ScanCommand::Pause).await.unwrap();
    tokio::time::sleep(NIGHT).await;
    engine.scan(ScanCommand::Scrub).await.unwrap();
    let resumed = until(&engine, 0.5).await;
    assert!(is_like_before(&resumed), "{resumed:?} after {at_first:?}");
    close(engine).await;
    tokio::time::sleep(NIGHT).await;
    let (engine, _) = slowly(&world, 20).await;
    let continued = until(&engine, 0.7).await;
    assert_eq!(continued.started, at_first.started);
    assert!(is_like_before(&continued), "{continued:?} after {at_first:?}");
    close(engine).await;
}
