//! An end: who takes a pool elsewhere has its devices, or is told that something may still land on them.

use super::*;
use crate::ops::{SweepAction, SweepWish};

/// Who exported it heard nothing, and the next host had what it wrote first where the trim was.
#[tokio::test(start_paused = true)]
async fn who_exports_a_pool_is_told_of_a_trim_that_is_not_answered() {
    const HOUR: Duration = Duration::from_secs(3600);
    let world = World::new().await;
    // The first is only to see whether the device can.
    world.disk.inject(Fault::anywhere(On::Trim, Effect::Delay(HOUR..=HOUR)).after(1).times(1));
    let trim = Operation::DeviceSweep {
        pool: "tank".to_owned(),
        devices: Vec::new(),
        sweep: SweepWish::Trim,
        action: SweepAction::Start,
        rate: None,
    };
    world.run(trim).await.unwrap();
    eventually("it is asked", async || world.disk.counts().trims > 1).await;
    let export = Operation::PoolExport { pool: "tank".to_owned(), force: false };
    let answer = world.run(export).await.unwrap();
    let [warning] = &answer.warnings[..] else { panic!("{:?}", answer.warnings) };
    assert_eq!(
        warning,
        "/disks/a owes answers, and what it was given may still land there: use it on no other host before 'fuser -v DEVICE' \
         shows that nobody has it"
    );
}
