//! Free space that is written over or trimmed (`zpool initialize`, `zpool trim`) while the pool is in use.

use std::{sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    devices::{Onlined, SweepCommand, SweepKind, SweepState, SweepStatus, recorded_sweeps},
    engine::{Ending, Engine},
    mos::zap,
};

use crate::{
    devices::{Case, refused},
    support::{Running, quiet, start_on},
};

const SECOND: Duration = Duration::from_secs(1);

async fn swept(case: &Case, guid: u64, kind: SweepKind) -> SweepStatus {
    loop {
        let all = case.engine().sweep_status();
        let status =
            all.into_iter().find(|status| (status.guid, status.kind) == (guid, kind)).expect("a sweep");
        if status.state != SweepState::Active {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Of 110 places on a disk, how many hold what free space is written over with.
fn patterned(media: &MemDisk) -> usize {
    let holds =
        |at: &u64| media.snapshot(at << 20..(at << 20) + 8) == 0xdead_beef_dead_beee_u64.to_le_bytes();
    (5..115).filter(holds).count()
}

/// Free space is written over and trimmed while the pool is in use: nothing else is.
#[tokio::test(start_paused = true)]
async fn free_space_is_initialized_and_trimmed() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2"] {
        let mut case = Case::new(layout, 10).await;
        let leaf = case.guid("d1");
        let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
        let (start, kind) = (SweepCommand::Start { rate: None }, SweepKind::Initialize);
        assert_eq!(
            refused(engine.sweep(kind, leaf, SweepCommand::Suspend).await),
            "there is no active initialization"
        );
        engine.sweep(kind, leaf, start).await.unwrap();
        assert_eq!(refused(engine.sweep(kind, leaf, start).await), "currently initializing");
        engine.sweep(kind, leaf, SweepCommand::Suspend).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let half = swept(&case, leaf, kind).await;
        assert_eq!(half.state, SweepState::Suspended);
        assert!(half.done < half.total, "{half:?}");
        engine.sweep(kind, leaf, start).await.unwrap();
        case.write(20).await;
        let done = swept(&case, leaf, kind).await;
        assert_eq!((done.state, done.done), (SweepState::Complete, done.total), "{layout}: {done:?}");
        assert!(done.error.is_none() && done.total > 100 << 20);
        assert!(patterned(&case.world.media[1]) > 60, "{layout}: {}", patterned(&case.world.media[1]));
        assert_eq!(engine.view().tree().leaves()[1].counters.get(), pool::vdev::Errors::default());
        drop(engine);
        case.judge(&format!("{layout}, initialized")).await;

        let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
        assert!(engine.sweep_status().is_empty());
        engine.resume_sweeps().await;
        let known = swept(&case, leaf, kind).await;
        assert_eq!((known.state, known.done), (SweepState::Complete, known.total), "the pool knows");
        engine.sweep(kind, leaf, SweepCommand::Forget).await.unwrap();
        assert!(engine.sweep_status().is_empty());
        for word in ["d0", "d1"] {
            engine.sweep(SweepKind::Trim, case.guid(word), start).await.unwrap();
        }
        case.write(20).await;
        assert_eq!(swept(&case, leaf, SweepKind::Trim).await.state, SweepState::Complete);
        swept(&case, case.guid("d0"), SweepKind::Trim).await;
        assert_eq!(patterned(&case.world.media[1]), 0, "{layout}: trimmed");
        drop(engine);
        case.judge(&format!("{layout}, trimmed")).await;
    }
}

/// Free space that is worked on is free again, also if the device or the pool fails meanwhile.
#[tokio::test(start_paused = true)]
async fn free_space_is_given_back_by_a_sweep_that_fails() {
    let mut case = Case::new("mirror d0 d1", 12).await;
    let leaf = case.guid("d1");
    let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
    let aside = async || {
        let look = engine.run(|cx| Box::pin(async move { Ok(cx.out.alloc.totals().aside) }));
        look.await.unwrap()
    };
    let before = aside().await;
    let start = SweepCommand::Start { rate: None };
    let disk = Arc::clone(&case.running.as_ref().unwrap().disks[1]);
    // The first is only to see whether the device can.
    disk.inject(Fault::anywhere(On::Trim, Effect::Error(std::io::ErrorKind::Other)).after(1));
    engine.sweep(SweepKind::Trim, leaf, start).await.unwrap();
    let status = swept(&case, leaf, SweepKind::Trim).await;
    assert_eq!(status.state, SweepState::Suspended, "{status:?}");
    assert!(status.error.is_some());
    assert_eq!(aside().await, before);
    disk.heal();
    engine.sweep(SweepKind::Trim, leaf, start).await.unwrap();
    assert_eq!(swept(&case, leaf, SweepKind::Trim).await.state, SweepState::Complete);
    assert_eq!(aside().await, before);
    drop(engine);
    case.write(5).await;
    case.judge("after a sweep that failed").await;
}

/// The media of `d1` without what only labels say.
fn blocks(case: &Case) -> Vec<u8> {
    case.world.media[1].snapshot(4 << 20..(128 << 20) - (1 << 20)).to_vec()
}

/// Free space of a pool that was left is the next owner's. What was under way is waited for, and goes on when the pool is
/// opened again.
#[tokio::test(start_paused = true)]
async fn nothing_is_swept_any_more_when_the_pool_has_been_left() {
    let seconds = Duration::from_secs;
    for (kind, on, time) in [(SweepKind::Trim, On::Trim, 30), (SweepKind::Initialize, On::Write, 1)] {
        let mut case = Case::new("mirror d0 d1", 13).await;
        let leaf = case.guid("d1");
        let running = case.running.take().unwrap();
        let disk = Arc::clone(&running.disks[1]);
        let time = seconds(time);
        disk.inject(Fault::new(on, 4 << 20..127 << 20, Effect::Delay(time..=time)));
        running.engine.sweep(kind, leaf, SweepCommand::Start { rate: None }).await.unwrap();
        tokio::time::sleep(seconds(8)).await;
        let status = running.engine.sweep_status();
        assert!(status[0].state == SweepState::Active && status[0].done < status[0].total, "{status:?}");
        running.engine.end(Ending::Export).await.unwrap();
        drop(running);
        assert_eq!(disk.unflushed(), 0, "{kind:?}: there is nothing that the last flush did not see");
        let (before, content) = (disk.counts(), blocks(&case));
        tokio::time::sleep(seconds(600)).await;
        assert_eq!(disk.counts(), before, "{kind:?}");
        assert!(blocks(&case) == content, "{kind:?}");

        case.running = Some(case.world.open().await);
        let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
        engine.resume_sweeps().await;
        let status = swept(&case, leaf, kind).await;
        assert_eq!((status.state, status.done), (SweepState::Complete, status.total), "{kind:?}: {status:?}");
        drop(engine);
        case.judge(&format!("{kind:?}, resumed")).await;
    }
}

/// An export, or a daemon that was told to end, waited as long as trims may take, which is ten minutes, while all else went
/// well: service managers kill before that, and pools are left as by a crash.
#[tokio::test(start_paused = true)]
async fn a_trim_that_is_not_answered_does_not_keep_the_pool_from_being_left() {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut case = Case::new("mirror d0 d1", 14).await;
    let leaf = case.guid("d1");
    let running = case.running.take().unwrap();
    let disk = Arc::clone(&running.disks[1]);
    // The first is only to see whether the device can.
    disk.inject(Fault::anywhere(On::Trim, Effect::Delay(HOUR..=HOUR)).after(1).times(1));
    running.engine.sweep(SweepKind::Trim, leaf, SweepCommand::Start { rate: None }).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let status = running.engine.sweep_status();
    assert!(status[0].state == SweepState::Active && status[0].done < status[0].total, "{status:?}");
    let left = tokio::time::timeout(60 * SECOND, running.engine.end(Ending::Export)).await;
    left.expect("it is not waited for").unwrap();
    let tree = running.engine.view().tree();
    let name = tree.leaves().into_iter().find(|vdev| vdev.guid == leaf).unwrap().to_string();
    assert_eq!(running.engine.owing(), [name], "who takes it elsewhere has to know");
    drop(tree);
    drop(running);
    tokio::time::sleep(HOUR / 2).await;
    assert!(Arc::strong_count(&disk) > 1, "it is open, and locked with that, as long as it owes the answer");
    tokio::time::sleep(HOUR).await;
    assert_eq!(Arc::strong_count(&disk), 1, "it has answered");
    case.running = Some(case.world.open().await);
    case.judge("left in the middle of a trim").await;
}

/// Where free space is, every write takes a second.
fn slow(disk: &FaultDisk) {
    disk.inject(Fault::new(On::Write, 4 << 20..127 << 20, Effect::Delay(SECOND..=SECOND)));
}

/// It stood as running for ever: whoever waited for its end did so for ever, it could not be stopped, and nobody went on with
/// it when its device was back.
#[tokio::test(start_paused = true)]
async fn a_sweep_whose_device_is_away_when_the_pool_is_opened_waits_for_it() {
    let kind = SweepKind::Initialize;
    for command in [None, Some(SweepCommand::Suspend), Some(SweepCommand::Cancel)] {
        let mut case = Case::new("mirror d0 d1", 14).await;
        let leaf = case.guid("d1");
        let running = case.running.take().unwrap();
        slow(&running.disks[1]);
        running.engine.sweep(kind, leaf, SweepCommand::Start { rate: None }).await.unwrap();
        tokio::time::sleep(8 * SECOND).await;
        running.engine.end(Ending::Export).await.unwrap();
        drop(running);

        let disk = |media: &Arc<MemDisk>| {
            Arc::new(FaultDisk::with_write_cache(Arc::clone(media) as Arc<dyn Disk>, 14))
        };
        let disks: Vec<_> = case.world.media.iter().map(disk).collect();
        let here = vec![Arc::clone(&disks[0]) as Arc<dyn Disk>];
        let away = Arc::clone(&disks[1]) as Arc<dyn Disk>;
        let engine = start_on(here, 14, quiet()).await.unwrap();
        case.running = Some(Running { engine: Arc::clone(&engine), disks });
        engine.resume_sweeps().await;
        tokio::time::sleep(60 * SECOND).await;
        let status = engine.sweep_status();
        assert_eq!(status[0].state, SweepState::Suspended, "{status:?}");
        if let Some(command) = command {
            engine.sweep(kind, leaf, command).await.unwrap();
        }
        assert_eq!(engine.online(leaf, Some(away), false).await.unwrap(), Onlined::Healthy);
        tokio::time::sleep(60 * SECOND).await;
        let expected = match command {
            Some(SweepCommand::Suspend) => SweepState::Suspended,
            Some(_) => SweepState::Cancelled,
            None => SweepState::Complete,
        };
        assert_eq!(swept(&case, leaf, kind).await.state, expected);
        drop(engine);
        case.judge(&format!("{command:?}, the device is back")).await;
    }
}

/// It was suspended in memory, and went on only when the pool was opened again.
#[tokio::test(start_paused = true)]
async fn a_sweep_goes_on_when_its_device_or_the_pool_does() {
    for away in [&[1][..], &[0, 1]] {
        let mut case = Case::new("mirror d0 d1", 15).await;
        let leaf = case.guid("d1");
        let running = case.running.as_ref().unwrap();
        let (engine, disks) = (Arc::clone(&running.engine), running.disks.clone());
        slow(&disks[1]);
        let start = SweepCommand::Start { rate: None };
        engine.sweep(SweepKind::Initialize, leaf, start).await.unwrap();
        tokio::time::sleep(8 * SECOND).await;
        away.iter().for_each(|disk| disks[*disk].vanish());
        engine.look().await;
        assert_eq!(engine.sync().await.is_ok(), away.len() == 1, "{away:?}");
        tokio::time::sleep(60 * SECOND).await;
        let status = engine.sweep_status();
        assert_eq!(status[0].state, SweepState::Suspended, "{away:?}: {status:?}");
        disks.iter().for_each(|disk| disk.come_back());
        disks[1].heal();
        engine.clear(None).await.unwrap();
        tokio::time::sleep(60 * SECOND).await;
        let status = swept(&case, leaf, SweepKind::Initialize).await;
        assert_eq!((status.state, status.done), (SweepState::Complete, status.total), "{away:?}: {status:?}");
        assert!(status.error.is_none(), "{status:?}");
        drop(engine);
        case.judge(&format!("{away:?} were away")).await;
    }
}

/// It ended at the first error of a device that stays, and at the same spot again whenever it was begun anew.
#[tokio::test(start_paused = true)]
async fn a_sweep_gets_past_a_spot_that_its_device_refuses() {
    for (kind, on) in [(SweepKind::Trim, On::Trim), (SweepKind::Initialize, On::Write)] {
        for times in [1, u64::MAX] {
            let mut case = Case::new("mirror d0 d1", 17).await;
            let leaf = case.guid("d1");
            let running = case.running.as_ref().unwrap();
            let (engine, disk) = (Arc::clone(&running.engine), Arc::clone(&running.disks[1]));
            // In the midst of a metaslab, where nothing else is written.
            let spot = 74 << 20..75 << 20;
            disk.inject(Fault::new(on, spot, Effect::Error(std::io::ErrorKind::Other)).times(times));
            engine.sweep(kind, leaf, SweepCommand::Start { rate: None }).await.unwrap();
            let status = swept(&case, leaf, kind).await;
            assert_eq!((status.state, status.done), (SweepState::Complete, status.total), "{status:?}");
            assert_eq!(status.error.is_some(), times > 1, "{status:?}");
            assert!(disk.counts().faults > 0, "{kind:?}");
            let errors = engine.view().tree().leaves()[1].counters.get();
            assert_eq!(errors, pool::vdev::Errors::default(), "{kind:?}: only the sweep was refused");
            disk.heal();
            drop((engine, disk));
            case.judge(&format!("{kind:?}, refused {times} times")).await;
        }
    }
}

/// What was to keep out of the way of clients went on without a limit when the pool was opened again.
#[tokio::test(start_paused = true)]
async fn a_trim_keeps_its_rate() {
    let mut case = Case::new("mirror d0 d1", 16).await;
    let (leaf, kind) = (case.guid("d1"), SweepKind::Trim);
    let running = case.running.take().unwrap();
    running.engine.sweep(kind, leaf, SweepCommand::Start { rate: Some(4 << 20) }).await.unwrap();
    tokio::time::sleep(4 * SECOND).await;
    running.engine.end(Ending::Export).await.unwrap();
    drop(running);

    case.running = Some(case.world.open().await);
    let engine = Arc::clone(&case.running.as_ref().unwrap().engine);
    let is_under_way = async |what: &str| {
        tokio::time::sleep(4 * SECOND).await;
        let status = engine.sweep_status();
        assert_eq!(status[0].state, SweepState::Active, "{what}: {status:?}");
    };
    engine.resume_sweeps().await;
    is_under_way("resumed").await;
    engine.sweep(kind, leaf, SweepCommand::Suspend).await.unwrap();
    engine.sweep(kind, leaf, SweepCommand::Start { rate: None }).await.unwrap();
    is_under_way("begun again without a word of it").await;
    engine.sweep(kind, leaf, SweepCommand::Suspend).await.unwrap();
    engine.sweep(kind, leaf, SweepCommand::Start { rate: Some(0) }).await.unwrap();
    // The rest would take twice as long with it.
    tokio::time::sleep(5 * SECOND).await;
    let status = engine.sweep_status();
    assert_eq!(status[0].state, SweepState::Complete, "without limit: {status:?}");
    drop(engine);
    case.judge("trimmed").await;
}

const TRIM_STATE: &str = "org.zfsonlinux:vdev_trim_state";
const SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
const PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";

/// The ZAP of the second device of a mirror.
fn zap_of_second(engine: &Engine) -> u64 {
    let view = engine.view();
    let tops = view.config().nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap();
    tops[0].nvlist_array("children").unwrap()[1].u64("com.delphix:vdev_zap_leaf").unwrap()
}

/// Puts numbers into the ZAP of the second device of a mirror.
async fn note(engine: &Engine, numbers: &'static [(&'static str, u64)]) {
    let object = zap_of_second(engine);
    let noting = engine.run(move |cx| {
        Box::pin(async move {
            for (name, value) in numbers {
                zap::set_u64(&mut cx.mos, object, name, *value).await?;
            }
            Ok(())
        })
    });
    noting.await.unwrap();
}

/// A number in the ZAP of the second device of a mirror.
async fn noted(engine: &Engine, name: &'static str) -> Option<u64> {
    let object = zap_of_second(engine);
    let look =
        engine.run(move |cx| Box::pin(async move { Ok(zap::get_u64(&mut cx.mos, object, name).await?) }));
    look.await.unwrap()
}

/// It was carried on with ordinary discards, and said to be complete: what was to be erased could be read from the drive. And
/// what is begun here was a secure one for OpenZFS, if the last one of OpenZFS's had been.
#[tokio::test(start_paused = true)]
async fn a_secure_trim_of_another_program_is_not_carried_on_as_another() {
    let kind = SweepKind::Trim;
    let start = SweepCommand::Start { rate: None };
    // As it was left running, and suspended.
    for state in [SweepState::Active, SweepState::Suspended] {
        let mut case = Case::new("mirror d0 d1", 18).await;
        let leaf = case.guid("d1");
        note(case.engine(), &[(SECURE, 1), (PARTIAL, 1)]).await;
        let running = case.running.take().unwrap();
        let left: &[(&str, u64)] = match state {
            SweepState::Active => &[(TRIM_STATE, 1)],
            _ => &[(TRIM_STATE, 3)],
        };
        note(&running.engine, left).await;
        running.export().await;
        let view = case.world.look().await.unwrap();
        let shown = recorded_sweeps(&view).await;
        assert_eq!((shown.len(), shown[0].state), (1, SweepState::Suspended), "{shown:?}");
        drop(view);

        case.running = Some(case.world.open().await);
        let running = case.running.as_ref().unwrap();
        let (engine, disk) = (Arc::clone(&running.engine), Arc::clone(&running.disks[1]));
        engine.resume_sweeps().await;
        tokio::time::sleep(60 * SECOND).await;
        let status = engine.sweep_status();
        assert_eq!((status.len(), status[0].state), (1, SweepState::Suspended), "{status:?}");
        if state == SweepState::Active {
            let error = status[0].error.as_deref().unwrap_or_default();
            assert!(error.starts_with("a secure trim"), "{status:?}");
        }
        let why = refused(engine.sweep(kind, leaf, start).await);
        assert!(why.starts_with("it has a secure trim"), "{why}");
        assert_eq!(disk.counts().trims, 0);
        assert_eq!(noted(&engine, TRIM_STATE).await, Some(state as u64), "OpenZFS goes on with it");
        assert_eq!(noted(&engine, SECURE).await, Some(1));

        engine.sweep(kind, leaf, SweepCommand::Cancel).await.unwrap();
        engine.sweep(kind, leaf, start).await.unwrap();
        assert_eq!((noted(&engine, SECURE).await, noted(&engine, PARTIAL).await), (Some(0), Some(0)));
        let status = swept(&case, leaf, kind).await;
        assert_eq!((status.state, status.error), (SweepState::Complete, None));
        drop((engine, disk));
        case.judge("trimmed after a secure trim was cancelled").await;
    }
}
