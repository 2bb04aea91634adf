//! Free space that is written over or trimmed (`zpool initialize`, `zpool trim`) while the pool is in use.

use std::sync::Arc;

use disk::{Effect, Fault, MemDisk, On};
use engine::{
    devices::{SweepCommand, SweepKind, SweepState, SweepStatus},
    engine::Ending,
};

use crate::devices::{Case, refused};

async fn swept(case: &Case, guid: u64, kind: SweepKind) -> SweepStatus {
    loop {
        let all = case.engine().sweep_status();
        let status =
            all.into_iter().find(|status| (status.guid, status.kind) == (guid, kind)).expect("a sweep");
        if status.state != SweepState::Active {
            return status;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
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
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
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
        assert_eq!(swept(&case, leaf, kind).await.state, SweepState::Complete, "the pool knows");
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
        let look = engine.run(false, |cx| Box::pin(async move { Ok(cx.out.alloc.totals().aside) }));
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
    let seconds = std::time::Duration::from_secs;
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
