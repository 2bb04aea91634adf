//! Logs that are damaged, or whose device is gone or does not answer again: what is lost with them is given up only by who says
//! so, is named, and is no more than that.

use std::ops::Range;

use disk::{Effect, Fault, FaultDisk, On};

use super::*;

/// Where the block in the middle of a log is: its top-level device, and the bytes of a leaf.
async fn middle_of(world: &World, name: &str) -> (u32, Range<u64>) {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (head, blocks) = chain_of(&pool, name).await;
    assert!(head.header.claim_txg != 0 && blocks.len() > 4, "{} blocks", blocks.len());
    let dva = blocks[blocks.len() / 2].0.dvas().next().unwrap();
    (dva.vdev, dva.offset + DATA_OFFSET..dva.offset + DATA_OFFSET + dva.asize)
}

/// Whoever says `-m` gives up what is damaged, and was not told of which volume that was.
#[tokio::test(start_paused = true)]
async fn a_claimed_log_that_is_damaged_is_replayed_up_to_there_with_m_and_its_volume_is_named() {
    let (world, twins) = cut_off("d0", 17).await;
    only_claim(&world).await;
    let (_, range) = middle_of(&world, "tank/a").await;
    let len = (range.end - range.start) as usize;
    world.media[0].write(range.start, vec![0xa5_u8; len].into()).await.unwrap();
    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    let failed: Vec<&String> = replayed.failed.values().collect();
    let is_told = |why: &str| why.contains("tank/a") && why.contains("damaged behind block");
    assert!(failed.len() == 1 && is_told(failed[0]) && failed[0].contains("with -m"), "{replayed:?}");
    engine.end(Ending::Export).await.unwrap();

    let found = import::scan(&Sources::disks(as_disks(&world.media))).await;
    let asked = import::OpenOptions {
        force: true,
        missing_log: true,
        unreadable_log: true,
        ..import::OpenOptions::default()
    };
    let engine = start(import::open(&found.pools[0], &asked).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.failed.is_empty() && replayed.records > 0, "{replayed:?}");
    let [(name, why)] = &replayed.lost[..] else { panic!("{replayed:?}") };
    assert!(name == "tank/a" && why.contains("damaged behind block"), "{replayed:?}");
    assert!(replayed.notes().iter().any(|note| note.contains("tank/a") && note.contains("lost")));
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await != twins["tank/a"], "there was something to lose");
    let other = engine.volume("tank/b").await.unwrap();
    assert!(content(&*other).await == twins["tank/b"], "nothing of others");
    drop((volume, other));
    engine.end(Ending::Export).await.unwrap();
}

/// A log was read once more to be given back. What was behind a block that its device did not give then stayed allocated for
/// good, and with it a log device could never be removed.
#[tokio::test(start_paused = true)]
async fn a_replayed_log_is_given_back_even_if_it_cannot_be_read_again() {
    let (world, twins) = cut_off("mirror d0 d1 log d2", 18).await;
    only_claim(&world).await;
    let (top, range) = middle_of(&world, "tank/a").await;
    assert_eq!(top, 1, "it is on the log device");
    let disk = FaultDisk::new(Arc::clone(&world.media[2]) as Arc<dyn Disk>, 1);
    let refused = Fault::new(On::Read, range, Effect::Error(std::io::ErrorKind::Other));
    disk.inject(refused.after(1));
    let mut disks = as_disks(&world.media);
    disks[2] = Arc::new(disk) as Arc<dyn Disk>;
    let engine = start(pool_on(disks).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.volumes == 2 && replayed.failed.is_empty() && replayed.lost.is_empty(), "{replayed:?}");
    assert_holds(&engine, &twins, "read once").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("read once").await;
}

/// Without its log device a pool is opened only if that is asked for, and then says what is lost.
#[tokio::test(start_paused = true)]
async fn without_its_log_device_a_pool_goes_on_as_of_its_last_transaction_group() {
    let (world, twins) = cut_off("mirror d0 d1 log d2", 10).await;
    let rest: Vec<Arc<dyn Disk>> = as_disks(&world.media[..2]);
    let error = pool_on(rest.clone()).await.unwrap_err();
    assert!(error.contains("'-m'"), "{error}");
    let found = import::scan(&Sources::disks(rest)).await;
    let options = import::OpenOptions { force: true, missing_log: true, ..import::OpenOptions::default() };
    let pool = import::open(&found.pools[0], &options).await.unwrap();
    let engine = start(pool).await.unwrap();
    let replayed = engine.replayed();
    let lost: Vec<&str> = replayed.lost.iter().map(|(name, _)| name.as_str()).collect();
    assert!(lost.contains(&"tank/a") && lost.contains(&"tank/b"), "{replayed:?}");
    assert!(replayed.notes().iter().any(|note| note.contains("tank/a") && note.contains("lost")));
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await != twins["tank/a"], "there was something to lose");
    volume.write(0, data(vec![9; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    volume.write(0, data(vec![8; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    drop(volume);
    engine.end(Ending::Export).await.unwrap();
    // The device is back.
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let report = pool::verify::verify(&pool, &Arc::default()).await;
    assert!(report.is_clean(), "{report:#?}");
    let engine = start(pool).await.unwrap();
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await[..8192] == [8; 8192], "it went on without the device");
}

/// What was exported was called damaged: each dataset with a log on the device that stayed behind had lost writes, it was said.
#[tokio::test(start_paused = true)]
async fn a_pool_that_was_exported_has_lost_nothing_with_its_log_device() {
    let (world, running) = World::create("mirror d0 d1 log d2", 12, 64 << 20, 20).await;
    let create = running.engine.run(|cx| {
        Box::pin(async move { dsl::create_filesystem(cx, "tank/f", &Properties::new(), false).await })
    });
    create.await.unwrap();
    let volume = running.volume("tank/v", 1 << 20, 8192, Properties::new()).await;
    for _ in 0..3 {
        volume.write(0, data(vec![7; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    }
    drop(volume);
    leave_log(&running, "tank/f", 0).await;
    running.export().await;
    world.verify("with its log device").await;

    let found = import::scan(&Sources::disks(as_disks(&world.media[..2]))).await;
    let options = import::OpenOptions { force: true, missing_log: true, ..import::OpenOptions::default() };
    let engine = start(import::open(&found.pools[0], &options).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.lost.is_empty() && replayed.notes().is_empty(), "{replayed:?}");
    let logs = zil::heads(&engine.view()).await.unwrap();
    assert!(
        logs.iter().all(|head| head.name != "tank/f"),
        "the next crash would make a loss of it: {logs:?}"
    );
    let volume = engine.volume("tank/v").await.unwrap();
    assert!(content(&*volume).await[..8192] == [7; 8192]);
    drop(volume);
    exported(engine).await;
    world.verify("its log device is back").await;
}
