//! A replay that is cut off itself, by the power or by devices that take no more: until the logs are given back they are
//! replayed again, whatever was done in between.

use std::time::Duration;

use disk::{Effect, Fault, FaultDisk, On};

use super::*;
use crate::{
    commits::{cuts, replay},
    cuts::recorder::{Recording, Tape},
};

/// What was done to the media while the pool on them was opened and its logs were replayed.
async fn recorded(before: &[Arc<MemDisk>]) -> Recording {
    let media: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
    let tape = Tape::new(media.len(), None);
    tape.start();
    let pool = pool_on(tape.disks(&media)).await.unwrap();
    let engine = start(pool).await.unwrap();
    assert!(engine.replayed().records > 0, "there was something to replay");
    tape.stop()
}

/// Until the logs are given back, a power cut leaves them to be replayed again, whatever was done in between.
async fn cut_everywhere(layout: &str, chances: &[u32]) {
    let (world, twins) = cut_off(layout, 5).await;
    let recording = recorded(&world.media).await;
    let mut random = StdRng::seed_from_u64(6);
    let mut replayed = [0; 2];
    for (number, cut) in cuts(&recording).enumerate() {
        for &chance in chances {
            let all = recording.events.len();
            let what = format!("{layout}: cut after {cut} of {all}, {chance} % kept");
            let media = replay(&world.media, &recording, cut, || random.random_range(0..100) < chance).await;
            let engine = start_on(&media).await;
            assert_holds(&engine, &twins, &what).await;
            replayed[usize::from(engine.replayed().records > 0)] += 1;
            engine.end(Ending::Export).await.unwrap();
            if number % 16 == 0 {
                let pool = pool_on(as_disks(&media)).await.unwrap();
                let report = pool::verify::verify(&pool, &Arc::default()).await;
                assert!(report.is_clean(), "{what}: {report:#?}");
                assert!(zil::heads(&pool).await.unwrap().is_empty(), "{what}: a log is left");
            }
        }
    }
    assert!(replayed.iter().all(|count| *count > 0), "{layout}: cut before and after: {replayed:?}");
    println!("{layout}: {} cuts while logs were claimed and replayed", replayed[0] + replayed[1]);
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_are_replayed_changes_nothing() {
    cut_everywhere("d0", &[100, 50, 0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_on_a_log_device_are_replayed_changes_nothing() {
    cut_everywhere("mirror d0 d1 log d2", &[50]).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_on_raidz_are_replayed_changes_nothing() {
    cut_everywhere("raidz d0 d1 d2", &[50]).await;
}

/// A power cut while a log that the real module left is replayed.
#[tokio::test]
async fn a_power_cut_while_a_foreign_log_is_replayed_changes_nothing() {
    const CUTS: usize = 12;
    let fixture = fixtures::pool("crash-main");
    let expected = expected(&fixture);
    let before = in_memory(&fixture);
    let recording = recorded(&before).await;
    let mut random = StdRng::seed_from_u64(7);
    for number in 0..=CUTS {
        let cut = recording.events.len() * number / CUTS;
        let media = replay(&before, &recording, cut, || random.random()).await;
        let engine = start_on(&media).await;
        assert_eq!(sums(&engine, expected.keys()).await, expected, "cut after {cut}");
        engine.end(Ending::Close).await.unwrap();
    }
}

/// Nobody could clear such a pool, for nobody was given it, and its syncing task kept the devices until the process ended:
/// every later attempt to open it was told that they are in use.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_suspended_while_logs_are_replayed_lets_its_devices_go() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let (world, twins) = cut_off("d0", 15).await;
    let disk_of = |world: &World| Arc::new(FaultDisk::new(Arc::clone(&world.media[0]) as Arc<dyn Disk>, 1));
    // What the first transaction group asks of the disk, which is the last that it takes.
    let first = disk_of(&world.fork());
    let pool = pool_on(vec![Arc::clone(&first) as Arc<dyn Disk>]).await.unwrap();
    let mut cx = open::open(pool, going_on()).await.unwrap();
    let txg = cx.txg;
    cx.sync_txg(txg, (quiet().now)(), Work::default()).await.unwrap();
    drop(cx);

    let disk = disk_of(&world);
    let refuses = Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other));
    disk.inject(refuses.after(first.counts().writes));
    let pool = pool_on(vec![Arc::clone(&disk) as Arc<dyn Disk>]).await.unwrap();
    let started = tokio::time::timeout(PATIENCE, start(pool)).await.expect("no import hangs");
    assert!(started.is_err(), "what was replayed cannot be written");
    assert_eq!(world.look().await.unwrap().uberblock().txg, txg, "logs were claimed");
    let let_go = async {
        while Arc::strong_count(&disk) > 1 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, let_go).await.expect("nobody has the disk any more");
    disk.heal();
    let engine = start(pool_on(vec![disk as Arc<dyn Disk>]).await.unwrap()).await.unwrap();
    assert_holds(&engine, &twins, "opened again").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("opened again").await;
}
