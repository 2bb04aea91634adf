//! Drives that are there and do not do as they should: they refuse, tear what they are given, take their time, or have lost
//! what was noted about them. Who is the last one is never faulted, and what was refused is tried again.

use engine::events::{IoError, ScanStep};
use ondisk::label::DATA_OFFSET;
use pool::dmu::Run;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_drive_with_too_many_errors_is_faulted_and_the_last_one_never() {
    let mut case = Case::new("mirror d0 d1", 5, true).await;
    let refuse = || Fault::anywhere(On::Write, Effect::Error(io::ErrorKind::Other));
    case.running.disks[0].inject(refuse());
    for _ in 0..30 {
        case.write(10, false).await;
        case.sync().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(case.state(0), State::Faulted);
    let events = case.count(|event| matches!(event, Event::IoFailed { .. }));
    assert!((1..60).contains(&events), "{events} events");
    case.check().await;
    // Now the other one is all there is: its errors do not fault it.
    case.running.disks[1]
        .inject(Fault::anywhere(On::Write, Effect::Error(io::ErrorKind::Other)).chance_ppm(200_000));
    for _ in 0..20 {
        case.write(4, false).await;
        drop(timeout(MINUTE, case.engine().sync()).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(case.state(1), State::Healthy);
    case.running.disks.iter().for_each(|disk| disk.heal());
    timeout(2 * MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
    case.sync().await;
    assert_eq!((case.state(0), case.state(1)), (State::Healthy, State::Healthy));
    case.check().await;
    case.end().await;
}

/// Reads that take a second where others take nothing are no reason to wait for them.
#[tokio::test(start_paused = true)]
async fn a_drive_that_is_slow_sits_out_and_comes_back_when_it_is_fast() {
    for layout in ["raidz2 d0 d1 d2 d3", "mirror d0 d1", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 8, true).await;
        case.write(200, false).await;
        case.sync().await;
        let mut case = case.reopened(|_| ()).await;
        case.engine().watch(Arc::new(Bays(case.running.disks.clone())));
        let second = Duration::from_secs(1);
        case.running.disks[1].inject(Fault::anywhere(On::Read, Effect::Delay(second..=second)));
        let mut waited = 0;
        for _ in 0..1000 {
            let block = case.random.random_range(0..case.twin.len() / BLOCK as usize);
            let right = &case.twin[block * BLOCK as usize..(block + 1) * BLOCK as usize];
            let begun = tokio::time::Instant::now();
            let read = case.volume.read(block as u64 * u64::from(BLOCK), BLOCK as usize).await.unwrap();
            waited += u32::from(begun.elapsed() >= second);
            assert!(block::flatten(&read) == right, "{}: block {block}", case.what);
        }
        assert!((1..60).contains(&waited), "{}: {waited} reads had to wait", case.what);
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: true, .. })),
            1,
            "{}",
            case.what
        );
        assert!(case.is_judged(1), "{}", case.what);
        tokio::time::sleep(11 * MINUTE).await;
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: false, .. })),
            0,
            "it is slow still"
        );
        case.running.disks[1].heal();
        tokio::time::sleep(11 * MINUTE).await;
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: false, .. })),
            1,
            "{}",
            case.what
        );
        case.end().await;
    }
}

/// What is read to open a pool was taken for enough to know that a drive is not slow: so its alert was told as over at each
/// restart.
#[tokio::test(start_paused = true)]
async fn a_drive_that_nobody_reads_from_is_judged_by_a_trial_and_not_because_its_pool_was_opened() {
    let mut case = Case::new("raidz2 d0 d1 d2 d3", 8, false).await;
    case.write(200, false).await;
    case.sync().await;
    let second = Duration::from_secs(1);
    let slow = Fault::anywhere(On::Read, Effect::Delay(second..=second));
    let case = case.reopened(|disks| disks[1].inject(slow)).await;
    // As much as there may be to read where a pool is no toy.
    for offset in (0..VOLUME).step_by(BLOCK as usize) {
        case.volume.read(offset, BLOCK as usize).await.unwrap();
    }
    case.engine().watch(Arc::new(Bays(case.running.disks.clone())));
    let samples = case.leaf(1, |vdev| vdev.leaf.as_ref().unwrap().pulse.samples());
    assert!(samples > 16, "only {samples} reads");
    let judged = || [0, 1, 2, 3].map(|number| case.is_judged(number));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(judged(), [false; 4]);
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(judged(), [true, false, true, true], "that one is not quick");
    case.running.disks[1].heal();
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(judged(), [true; 4]);
    assert_eq!(case.count(|event| matches!(event, Event::Slow { .. })), 0);
    case.end().await;
}

/// Damages all copies of the list of what a leaf missed.
async fn damage_list(world: &World) {
    let pool = world.look().await.unwrap();
    let list = pool.tree().leaves().iter().find_map(|leaf| leaf.leaf.as_ref().unwrap().dtl_object);
    let object = pool.mos().object(list.expect("a list")).await.unwrap();
    let mut runs = object.runs(0, 0..object.max_block_id() + 1);
    let mut damaged = 0;
    while let Some(run) = runs.next().await.unwrap() {
        let Run::Block { pointer, .. } = run else { continue };
        for (dva, media) in pointer.dvas().flat_map(|dva| world.media.iter().map(move |m| (dva, m))) {
            let at = DATA_OFFSET + dva.offset;
            media.write(at, vec![0x55; 512].into()).await.unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the list is in a block");
}

/// Damage to the list of what a drive missed costs time, not data.
#[tokio::test(start_paused = true)]
async fn a_drive_whose_list_of_what_it_missed_cannot_be_read_gets_everything() {
    for layout in ["mirror d0 d1", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 9, false).await;
        case.write(200, false).await;
        case.sync().await;
        // A list so long that it does not fit into its dnode.
        for _ in 0..200 {
            case.write(1, false).await;
            case.sync().await;
        }
        case.running.disks[1].vanish();
        case.write(20, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        let newest = case.engine().view().uberblock().txg;
        let some: Vec<u64> = (5..newest).filter(|_| case.random.random_range(0..3) == 0).collect();
        case.leaf(1, |vdev| some.iter().for_each(|txg| vdev.leaf.as_ref().unwrap().missed.add(*txg)));
        case.sync().await;
        let case = case.again(damage_list).await;
        assert_eq!(case.count(|event| matches!(event, Event::HistoryLost { .. })), 1, "{}", case.what);
        case.check().await;
        let done = crate::scans::over(case.engine()).await;
        assert!(done.processed >= VOLUME * 3 / 4, "{}: only {} bytes", case.what, done.processed);
        case.sync().await;
        assert!(!case.lacks_anything(1), "{}", case.what);
        case.check().await;
        // Once is enough.
        let case = case.again(async |world| world.verify("with everything").await).await;
        assert_eq!(case.count(|event| matches!(event, Event::HistoryLost { .. })), 0, "{}", case.what);
        assert!(!case.lacks_anything(1), "{}", case.what);
        case.end().await;
    }
}

/// Found by random faults, seed 1013: all four labels of a drive that tore every write were torn, and nobody knew it again.
#[tokio::test(start_paused = true)]
async fn a_drive_that_tears_every_write_keeps_labels_by_which_it_is_known_again() {
    let mut case = Case::new("mirror d0 d1", 10, false).await;
    case.write(40, false).await;
    case.sync().await;
    for round in 0..4 {
        case.running.disks[1].inject(Fault::anywhere(On::Write, Effect::Tear(io::ErrorKind::Other)));
        let comment = Properties::from([("comment".to_owned(), Stored::Text(format!("round {round}")))]);
        // What the configuration says changes: labels are written.
        let set = case.engine().run(move |cx| {
            Box::pin(async move {
                cx.config_dirty = true;
                dsl::set_pool(cx, &comment).await
            })
        });
        set.await.unwrap();
        case.write(5, false).await;
        case.sync().await;
    }
    let case = case.again(async |_| ()).await;
    assert_ne!(case.state(1), State::CantOpen, "{}", case.what);
    timeout(MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
    assert_eq!(case.state(1), State::Healthy, "{}", case.what);
    case.check().await;
    crate::scans::over(case.engine()).await;
    case.sync().await;
    assert!(!case.lacks_anything(1), "{}", case.what);
    case.end().await;
}

/// Found by random faults, seed 80920: what a drive refused while it was resilvered was never tried again, so that it
/// lacked redundancy for ever although it worked.
#[tokio::test(start_paused = true)]
async fn what_a_drive_refused_while_it_was_resilvered_is_tried_again() {
    for (layout, is_cleared) in [("mirror d0 d1", true), ("mirror d0 d1", false), ("mirror d0 d1 d2", false)]
    {
        let mut case = Case::new(layout, 12, true).await;
        case.running.disks[1].vanish();
        case.write(60, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        // It refuses what a resilver has to write there, and nothing else.
        let [has, lacks] = [0, 1].map(|n| case.world.media[n].snapshot(0..DISK));
        let bad = case.twin.chunks(BLOCK as usize).find_map(|block| {
            let at = (0..has.len() - block.len()).step_by(4096);
            let mut at = at.filter(|at| has[*at..].starts_with(block) && !lacks[*at..].starts_with(block));
            at.next().filter(|_| block.iter().any(|byte| *byte != 0))
        });
        let bad = bad.expect("a block that it lacks") as u64;
        let refuses = Effect::Error(io::ErrorKind::Other);
        case.running.disks[1].inject(Fault::new(On::Write, bad..bad + u64::from(BLOCK), refuses));
        case.running.disks[1].come_back();
        tokio::time::sleep(MINUTE / 2).await;
        let done = crate::scans::over(case.engine()).await;
        assert!(done.processed > 0, "{}: {done:?}", case.what);
        assert_eq!(case.state(1), State::Healthy, "{}", case.what);
        assert!(case.lacks_anything(1), "{}: it was refused", case.what);
        // Not again and again: a bad sector does not keep the pool busy.
        tokio::time::sleep(10 * MINUTE).await;
        let begun = case.count(|event| matches!(event, Event::Scan { step: ScanStep::Started, .. }));
        assert!((2..8).contains(&begun), "{}: {begun} resilvers", case.what);
        assert!(case.lacks_anything(1), "{}: it was refused", case.what);
        case.running.disks[1].heal();
        let wait = if is_cleared {
            let guid = case.leaf(1, |vdev| vdev.guid);
            case.engine().clear(Some(guid)).await.unwrap();
            MINUTE / 4
        } else {
            20 * MINUTE
        };
        tokio::time::sleep(wait).await;
        assert!(!case.lacks_anything(1), "{}: it has everything", case.what);
        case.check().await;
        let refused = |event: &Event| matches!(event, Event::IoFailed { error: IoError::Write, .. });
        assert!(case.count(refused) > 0, "{}: refused repairs are told", case.what);
        case.end().await;
    }
}
