//! Engines that are dropped, and were not ended: their pools are as after a crash, and nobody has their devices any more.

use std::{sync::Arc, time::Duration};

use block::{BlockVolume as _, Durability};
use disk::{Effect, Fault, FaultDisk, On};
use engine::{
    dsl::{self, Properties, Stored},
    engine::Ending,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    crashed::{assert_holds, cut_off, start, start_on},
    support::{DISK, POOL, Running, World, data},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns when nobody else has these disks.
async fn let_go(disks: &[Arc<FaultDisk>], what: &str) {
    let free = async {
        while disks.iter().any(|disk| Arc::strong_count(disk) > 1) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(MINUTE, free).await.unwrap_or_else(|_| panic!("{what}: somebody has them still"));
}

/// It went on for ever: with the devices locked, with heartbeats, and with whatever it had to free.
#[tokio::test(start_paused = true)]
async fn an_engine_that_is_dropped_lets_its_devices_go_and_writes_nothing_more() {
    let (world, running) = World::create("mirror d0 d1", 12, DISK, 80).await;
    let on = Properties::from([("multihost".to_owned(), Stored::Number(1))]);
    let set = running.engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &on).await }));
    set.await.unwrap();
    let volume = running.volume(&format!("{POOL}/v"), 1 << 20, 8192, Properties::new()).await;
    volume.write(0, data(vec![1; 8192]), Durability::Cached).await.unwrap();
    let Running { engine, disks } = running;
    drop((volume, engine));
    let_go(&disks, "dropped").await;
    let counts = || disks.iter().map(|disk| disk.counts()).collect::<Vec<_>>();
    let before = counts();
    sleep(MINUTE).await;
    assert_eq!(counts(), before);
    world.verify("dropped").await;
}

/// A daemon gave up opening a pool that was exported meanwhile, in the middle of its replay: no command could reach what was
/// left of it, and no other host could have the pool.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_dropped_lets_its_devices_go_wherever_it_was() {
    const PARTS: u32 = 12;
    const PAUSE: Duration = Duration::from_millis(10);
    let (world, twins) = cut_off("mirror d0 d1", 81).await;
    let slow = async |world: &World| {
        let (pool, disks) = world.look_through().await.unwrap();
        for (disk, on) in disks.iter().flat_map(|disk| [On::Read, On::Write].map(|on| (disk, on))) {
            disk.inject(Fault::anywhere(on, Effect::Delay(PAUSE..=PAUSE)));
        }
        (pool, disks)
    };
    let (pool, _disks) = slow(&world.fork()).await;
    let begun = Instant::now();
    let engine = start(pool).await.unwrap();
    let took = begun.elapsed();
    assert!(engine.replayed().records > 0, "there was something to replay");
    engine.end(Ending::Close).await.unwrap();
    for part in 1..PARTS {
        let (world, what) = (world.fork(), format!("{part}/{PARTS}"));
        let (pool, disks) = slow(&world).await;
        let started = timeout(took * part / PARTS, start(pool)).await;
        assert!(started.is_err(), "{what}: it is over");
        let_go(&disks, &what).await;
        let engine = start_on(&world.media).await;
        assert_holds(&engine, &twins, &what).await;
        engine.end(Ending::Close).await.unwrap();
    }
}
