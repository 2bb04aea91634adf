//! More fails than redundancy can bear.

use std::time::Duration;

use rand::Rng;
use tokio::time::{sleep, timeout};

use super::{
    load::HANG,
    player::{Player, said},
};

/// Steps before it gets bad, and while it is.
const STEPS: u32 = 20;

/// Things go wrong without limit; then all disks return, and the pool goes on where that is possible.
pub(crate) async fn campaign(player: &mut Player) {
    for _ in 0..STEPS {
        step(player).await;
    }
    player.note("all disks return");
    for bay in 0..player.bays.0.len() {
        if !player.bays.0[bay].is_present() {
            player.bays.0[bay].plug();
        }
        player.bays.0[bay].heal();
    }
    if let Some(engine) = player.engine.clone() {
        player.within("look", engine.look()).await;
        let cleared = player.within("clear", engine.clear(None)).await;
        player.note(format!("clear: {}", said(&cleared)));
        sleep(Duration::from_secs(60)).await;
        player.check();
        player.stop_clients();
        // What is readable is right.
        player.compare(false).await;
        if engine.suspended().is_some() {
            player.within("abandon", engine.abandon()).await;
        }
    }
    if player.engine.is_some() {
        player.power_cut().await;
    }
    player.check();
}

async fn step(player: &mut Player) {
    if player.engine.is_none() {
        return;
    }
    match player.random.random_range(0..10) {
        0..2 => {
            let pause = Duration::from_millis(player.random.random_range(10..20_000));
            player.note(format!("{pause:?} go by"));
            sleep(pause).await;
        }
        2..7 => player.hurt().await,
        7 => player.mend_something().await,
        8 => {
            // Status is answered from memory, whatever the disks do.
            let engine = player.engine();
            let view = engine.view();
            let _state = (view.tree().state(), engine.suspended(), engine.scan_progress());
        }
        _ => {
            let engine = player.engine();
            match timeout(HANG, engine.sync()).await {
                Ok(result) => player.note(format!("sync: {result:?}")),
                // It may wait for as long as the pool is suspended.
                Err(_) => assert!(engine.suspended().is_some(), "a sync hangs"),
            }
        }
    }
    player.check();
}
