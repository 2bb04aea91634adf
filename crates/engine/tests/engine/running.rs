//! What a running engine owes its clients between two transaction groups.

use std::time::Duration;

use block::{BlockVolume, Durability, VolumeError};
use engine::{
    dsl::{self, Properties, Stored},
    engine::OpenError,
    txg::Cost,
};

use crate::support::{POOL, World, content, data, plain};

const BLOCK: u32 = 128 << 10;

#[tokio::test(start_paused = true)]
async fn a_snapshot_has_every_write_acknowledged_before_it_was_asked_for() {
    let (_world, running) = World::create("d0", 12, 96 << 20, 1).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 1 << 20, BLOCK, Properties::new()).await;
    let engine = running.engine.clone();
    // Somebody holds the group that is being closed; whoever comes now is in the next one.
    let held = engine.txgs().assign(Cost::default()).await.unwrap();
    let syncing = tokio::spawn({
        let engine = engine.clone();
        async move { engine.sync().await }
    });
    while engine.txgs().open() == held.txg() {
        tokio::task::yield_now().await;
    }
    volume.write(0, data(vec![7; BLOCK as usize]), Durability::Cached).await.unwrap();
    let snapshot = tokio::spawn({
        let (engine, names) = (engine.clone(), vec![format!("{name}@s")]);
        async move {
            engine
                .run_snapshot(move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await
        }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(held);
    syncing.await.unwrap().unwrap();
    snapshot.await.unwrap().unwrap();
    let frozen = engine.view().open_volume(&format!("{name}@s")).await.unwrap();
    assert!(content(&*frozen).await == content(&*volume).await, "the write is missing");
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_reserved_is_there_after_a_restart_into_a_full_pool() {
    let (world, running) = World::create("d0", 12, 96 << 20, 2).await;
    let mut properties = plain();
    let thin = running.volume(&format!("{POOL}/thin"), 1 << 30, BLOCK, properties.clone()).await;
    properties.insert("refreservation".to_owned(), Stored::Number(5 << 20));
    drop(running.volume(&format!("{POOL}/thick"), 4 << 20, BLOCK, properties).await);
    let mut full = false;
    for block in 0..1024 {
        let written =
            thin.write(block * u64::from(BLOCK), data(vec![1; BLOCK as usize]), Durability::Cached).await;
        full = written == Err(VolumeError::NoSpace);
        if full {
            break;
        }
    }
    assert!(full, "the pool is smaller than that");
    running.export().await;
    let running = world.open().await;
    let thick = running.engine.volume(&format!("{POOL}/thick")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for block in 0..32 {
        let offset = block * u64::from(BLOCK);
        thick.write(offset, data(vec![2; BLOCK as usize]), Durability::Cached).await.unwrap();
    }
    running.export().await;
    world.verify("with a full pool").await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_pool_goes_on_freeing_what_was_destroyed() {
    let (world, running) = World::create("d0", 9, 96 << 20, 3).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 60_000 * 512, 512, plain()).await;
    for piece in 0..60 {
        let bytes =
            (0..512_000).map(|i| (i as u32 ^ piece).wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
        volume.write(u64::from(piece) * 512_000, data(bytes), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    running.engine.run(move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await })).await.unwrap();
    let freeing = async |running: &crate::support::Running| {
        running.engine.view().dsl().await.unwrap().internal_used("$FREE").await.unwrap()
    };
    assert!(freeing(&running).await > 0, "more than one transaction group frees");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(freeing(&running).await, 0);
    running.export().await;
    world.verify("at the end").await;
}

/// Clients were offered the one that answers nothing any more, and nobody tried again.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_closed_is_not_handed_out_and_is_opened_anew_when_what_it_has_is_synced() {
    let (_world, running) = World::create("d0", 12, 96 << 20, 4).await;
    let name = format!("{POOL}/v");
    let volume = running.volume(&name, 1 << 20, BLOCK, Properties::new()).await;
    running.engine.sync().await.unwrap();
    volume.write(0, data(vec![7; BLOCK as usize]), Durability::Cached).await.unwrap();
    // As when it cannot be read after a command.
    volume.close();
    let refused = running.engine.volume(&name).await.unwrap_err();
    assert!(matches!(refused, OpenError::Closed(_)), "{refused}");
    running.engine.sync().await.unwrap();
    let anew = running.engine.volume(&name).await.unwrap();
    assert_eq!(content(&*anew).await[..BLOCK as usize], vec![7; BLOCK as usize]);
    anew.write(0, data(vec![8; BLOCK as usize]), Durability::Cached).await.unwrap();
}
