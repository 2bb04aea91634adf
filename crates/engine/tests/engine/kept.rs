//! What a volume keeps beside its blocks: old or new after every power cut and never a mixture, durable once answered;
//! with the volume through renames, rollbacks, promotions, exports, and with nobody else. And what it says of its room.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use block::{BlockVolume, Durability, KEPT_MAX, Keeper, VolumeError};
use bytes::Bytes;
use engine::{
    dsl::{self, OpError, Properties, Stored},
    engine::{Engine, OpFuture},
    sync::Syncer,
    volume::LiveVolume,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::timeout;

use crate::{
    commits::{cuts, replay},
    cuts::recorder::Tape,
    datasets::complaints,
    support::{self, DISK, POOL, Running, World, data, quiet, start_on},
};

const MINUTE: Duration = Duration::from_secs(60);
const SIZE: u64 = 4 << 20;
const BLOCK: u32 = 8192;
const CSV: &str = "tank/csv";

fn keeper(volume: &LiveVolume) -> Arc<dyn Keeper> {
    volume.keeper().expect("a pool that is written to keeps")
}

/// Bytes that tell which value they are of.
fn value(which: u8, len: usize) -> Bytes {
    (0..len).map(|n| which.wrapping_mul(31).wrapping_add((n / 7) as u8)).collect()
}

async fn kept_of(engine: &Engine, name: &str) -> Option<Bytes> {
    keeper(&engine.volume(name).await.unwrap()).load()
}

async fn run<F>(engine: &Engine, is_snapshot: bool, op: F)
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    support::run(engine, is_snapshot, op).await.unwrap();
}

async fn clone(engine: &Engine, to: &'static str) -> Result<(), OpError> {
    let clone = engine.run(move |cx| {
        Box::pin(async move { dsl::clone(cx, "tank/csv@s", to, &Properties::new(), false).await })
    });
    clone.await
}

/// Our own check of every block, the reference checker's, and zdb's of everything, leaked objects included.
async fn judge(world: &World, what: &str) {
    world.verify(what).await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let complaints = complaints(dir.path());
    assert!(complaints.is_empty(), "{what}: {complaints:#?}");
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], dir.path(), POOL).unwrap_or_else(|text| panic!("{what}: {text}"));
    }
}

async fn cut_everywhere(layout: &str, seed: u64, chances: &[u32]) {
    let (world, running) = World::create(layout, 12, 64 << 20, seed).await;
    let volume = running.volume(CSV, SIZE, BLOCK, Properties::new()).await;
    keeper(&volume).store(value(0, 300)).await.unwrap();
    drop(volume);
    running.export().await;

    // What is stored one after the other: short, long, none, long, short; and when each was asked for and answered.
    let values =
        [value(0, 300), value(1, 200), value(2, 9000), Bytes::new(), value(4, 30_000), value(5, 4000)];
    let media: Vec<_> = world.media.iter().map(|disk| Arc::new(disk.fork())).collect();
    let tape = Tape::new(media.len(), None);
    let engine = start_on(tape.disks(&media), seed, quiet()).await.unwrap();
    let opened: Vec<_> = media.iter().map(|disk| Arc::new(disk.fork())).collect();
    let volume = engine.volume(CSV).await.unwrap();
    let mut times = vec![(0, 0)];
    tape.start();
    for value in &values[1..] {
        volume.write(0, data(vec![7; BLOCK as usize]), Durability::Cached).await.unwrap();
        let asked = tape.mark();
        let before = tokio::time::Instant::now();
        keeper(&volume).store(value.clone()).await.unwrap();
        assert!(before.elapsed() < Duration::from_secs(1), "a store does not wait for the time of a group");
        times.push((asked, tape.mark()));
    }
    let recording = tape.stop();
    drop((volume, engine));

    let mut random = StdRng::seed_from_u64(seed);
    let mut seen = BTreeSet::new();
    for (number, cut) in cuts(&recording).enumerate() {
        let answered = times.iter().rposition(|(_, answered)| *answered <= cut).unwrap();
        let asked = times.iter().rposition(|(asked, _)| *asked <= cut).unwrap();
        for &chance in chances {
            let what = format!("{layout}: cut after {cut} events, {chance} % kept");
            let media = replay(&opened, &recording, cut, || random.random_range(0..100) < chance).await;
            let world = World::on(media);
            let running = world.open().await;
            let found = kept_of(&running.engine, CSV).await.unwrap_or_default();
            let which = (answered..=asked).find(|which| values[*which] == found);
            let which = which.unwrap_or_else(|| {
                panic!("{what}: {} bytes, and {answered} was answered, {asked} asked for", found.len())
            });
            seen.insert((which, which == asked));
            if number % 24 == 0 {
                running.export().await;
                world.verify(&what).await;
            }
        }
    }
    for which in 1..values.len() {
        assert!(seen.contains(&(which, true)), "{layout}: {which} was never found: {seen:?}");
        assert!(seen.contains(&(which - 1, false)), "{layout}: no cut came before {which}: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_leaves_what_was_kept_or_what_is_to_be_kept() {
    cut_everywhere("d0", 21, &[100, 50, 0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_leaves_what_was_kept_or_what_is_to_be_kept_on_mirrors_with_a_log() {
    cut_everywhere("mirror d0 d1 log d2", 22, &[50]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_goes_with_its_volume_and_with_nobody_else() {
    let (world, running) = World::create("raidz d0 d1 d2", 12, 96 << 20, 23).await;
    let engine = Arc::clone(&running.engine);
    let volume = running.volume(CSV, SIZE, BLOCK, Properties::new()).await;
    assert_eq!(keeper(&volume).load(), None);
    let (old, new) = (value(1, 120), value(2, 50_000));
    keeper(&volume).store(old.clone()).await.unwrap();
    run(&engine, true, |cx| {
        Box::pin(async move { dsl::snapshot(cx, &[format!("{CSV}@s")], &Properties::new()).await })
    })
    .await;
    clone(&engine, "tank/clone").await.unwrap();
    assert_eq!(kept_of(&engine, "tank/clone").await, None, "a clone has its own");
    keeper(&volume).store(new.clone()).await.unwrap();

    // Back to a time when something else was kept.
    run(&engine, false, |cx| Box::pin(async move { dsl::rollback(cx, "tank/csv@s").await })).await;
    assert_eq!(keeper(&volume).load(), Some(new.clone()));
    run(&engine, false, |cx| {
        Box::pin(async move { dsl::rename(cx, CSV, "tank/renamed", false, false).await })
    })
    .await;
    run(&engine, false, |cx| Box::pin(async move { dsl::promote(cx, "tank/clone").await })).await;
    assert_eq!(keeper(&volume).load(), Some(new.clone()));
    // Nobody inherits it, and no property shows it.
    let dataset = engine.view().dsl().await.unwrap().lookup("tank/renamed").await.unwrap();
    let shown = dataset.properties().await.unwrap();
    assert!(shown.list().iter().all(|property| !property.name.contains("millpond")), "{shown:#?}");
    drop((dataset, shown, volume, engine));
    running.export().await;
    judge(&world, "exported").await;

    let running = world.open().await;
    let engine = Arc::clone(&running.engine);
    assert_eq!(kept_of(&engine, "tank/renamed").await, Some(new));
    assert_eq!(kept_of(&engine, "tank/clone").await, None);
    let volume = engine.volume("tank/renamed").await.unwrap();
    // The most there may be, and then nothing.
    let most = value(3, KEPT_MAX);
    keeper(&volume).store(most.clone()).await.unwrap();
    let too_much = keeper(&volume).store(value(4, KEPT_MAX + 1)).await;
    assert!(matches!(too_much, Err(VolumeError::Unsupported(_))), "{too_much:?}");
    drop((volume, engine));
    running.export().await;
    judge(&world, "with the most that can be kept").await;
    let running = world.open().await;
    let engine = Arc::clone(&running.engine);
    assert_eq!(kept_of(&engine, "tank/renamed").await, Some(most));
    let volume = engine.volume("tank/renamed").await.unwrap();
    keeper(&volume).store(Bytes::new()).await.unwrap();
    keeper(&volume).store(value(5, 3000)).await.unwrap();
    run(&engine, false, |cx| Box::pin(async move { dsl::destroy_head(cx, "tank/renamed").await })).await;
    assert!(matches!(keeper(&volume).store(value(6, 10)).await, Err(VolumeError::NotReady(_))));
    let refused = clone(&engine, "tank/renamed").await;
    assert!(matches!(refused, Err(OpError::NoDataset)), "the snapshot is the clone's now: {refused:?}");
    let again = running.volume("tank/renamed", SIZE, BLOCK, Properties::new()).await;
    assert_eq!(keeper(&again).load(), None, "another volume of that name has nothing");
    drop((volume, again, engine));
    running.export().await;
    judge(&world, "destroyed").await;
}

#[tokio::test(start_paused = true)]
async fn many_volumes_keep_at_once_and_in_the_order_they_were_told() {
    let (world, running) = World::create("d0", 12, 64 << 20, 24).await;
    let mut volumes = Vec::new();
    for n in 0..4 {
        volumes.push(running.volume(&format!("tank/v{n}"), SIZE, BLOCK, Properties::new()).await);
    }
    let stores = volumes.iter().enumerate().flat_map(|(n, volume)| {
        (0..5).map(move |turn| {
            let keeper = keeper(volume);
            async move { keeper.store(value((n * 10 + turn) as u8, 100 + turn)).await.unwrap() }
        })
    });
    futures_util::future::join_all(stores).await;
    drop(volumes);
    running.export().await;
    let running = world.open().await;
    for n in 0..4 {
        let found = kept_of(&running.engine, &format!("tank/v{n}")).await;
        assert_eq!(found, Some(value((n * 10 + 4) as u8, 104)), "v{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pool_refuses_to_keep_at_once_and_keeps_again_when_it_is_cleared() {
    let (mut world, running) = World::create("mirror d0 d1", 12, 64 << 20, 25).await;
    let volume = running.volume(CSV, SIZE, BLOCK, Properties::new()).await;
    keeper(&volume).store(value(1, 100)).await.unwrap();
    running.disks.iter().for_each(|disk| disk.vanish());
    for turn in 2..4 {
        let refused =
            timeout(MINUTE, keeper(&volume).store(value(turn, 100))).await.expect("it does not hang");
        assert!(matches!(refused, Err(VolumeError::NotReady(_))), "{refused:?}");
        assert_eq!(keeper(&volume).load(), Some(value(1, 100)), "what was acknowledged");
    }
    running.disks.iter().for_each(|disk| disk.come_back());
    timeout(MINUTE, running.engine.clear(None)).await.unwrap().unwrap();
    keeper(&volume).store(value(9, 5000)).await.unwrap();
    drop(volume);
    world.cut(running).await;
    let running = world.open().await;
    assert_eq!(kept_of(&running.engine, CSV).await, Some(value(9, 5000)));
}

#[tokio::test(start_paused = true)]
async fn a_volume_says_how_much_it_holds_and_may_still_take() {
    let (_world, running) = World::create("d0", 12, DISK, 26).await;
    let thin = running.volume("tank/thin", 256 << 20, BLOCK, Properties::new()).await;
    let reserved = Properties::from([("refreservation".to_owned(), Stored::Number(16 << 20))]);
    let thick = running.volume("tank/thick", 16 << 20, BLOCK, reserved).await;
    running.engine.sync().await.unwrap();
    let (before, own) = (thin.space().unwrap(), thick.space().unwrap());
    assert!(before.available > 24 << 20 && before.available < 64 << 20, "{before:?}");
    assert!(own.available > before.available + (15 << 20), "what is reserved for it comes on top: {own:?}");
    let mut random = StdRng::seed_from_u64(1);
    let noise: Vec<u8> = (0..8 << 20).map(|_| random.random()).collect();
    thin.write(0, data(noise), Durability::Cached).await.unwrap();
    assert_eq!(thin.space(), Some(before), "as of the last commit");
    running.engine.sync().await.unwrap();
    let after = thin.space().unwrap();
    assert!((8 << 20..9 << 20).contains(&after.used), "{after:?}");
    assert!(after.available + (8 << 20) <= before.available, "{after:?}");
    assert!(thick.space().unwrap().available < own.available, "and for everybody");
    // To the last byte: what it says is there can be written, and then there is nothing.
    let mut at = 8 << 20;
    let refused = loop {
        let noise: Vec<u8> = (0..1 << 20).map(|_| random.random()).collect();
        match thin.write(at, data(noise), Durability::Cached).await {
            Ok(()) => at += 1 << 20,
            Err(error) => break error,
        }
        assert!(at < DISK, "more than the disk holds");
    };
    assert_eq!(refused, VolumeError::NoSpace);
    running.engine.sync().await.unwrap();
    assert!(thin.space().unwrap().available < 2 << 20, "{:?}", thin.space());
    assert!(thick.space().unwrap().available > 15 << 20, "{:?}", thick.space());
    drop(thin);
    let _running: Running = running;
}

/// What was held was taken for what was had of the size: hosts of a disk that snapshots share were not warned, nor those of one
/// whose blocks count more than they hold.
#[tokio::test(start_paused = true)]
async fn a_volume_says_what_it_would_take_to_write_all_of_it() {
    const LITTLE: u64 = 1 << 20; // metadata
    let mut random = StdRng::seed_from_u64(2);
    let mut half = || data((0..SIZE / 2).map(|_| random.random()).collect());
    let (_world, running) = World::create("d0", 12, DISK, 27).await;
    let volume = running.volume(CSV, SIZE, BLOCK, Properties::new()).await;
    let wanted = |volume: &LiveVolume| volume.space().unwrap().wanted;
    let about = |bytes: u64| bytes - LITTLE..=bytes;
    running.engine.sync().await.unwrap();
    assert!(about(SIZE).contains(&wanted(&volume)), "{:?}", volume.space());
    for offset in [0, SIZE / 2] {
        volume.write(offset, half(), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    assert_eq!(wanted(&volume), 0, "{:?}", volume.space());
    run(&running.engine, true, |cx| {
        Box::pin(async move { dsl::snapshot(cx, &[format!("{CSV}@s")], &Properties::new()).await })
    })
    .await;
    running.engine.sync().await.unwrap();
    assert!(about(SIZE).contains(&wanted(&volume)), "nothing is given back: {:?}", volume.space());
    volume.write(0, half(), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    assert!(about(SIZE / 2).contains(&wanted(&volume)), "{:?}", volume.space());
    run(&running.engine, false, |cx| {
        Box::pin(async move { dsl::destroy_snapshots(cx, &[format!("{CSV}@s")], false).await })
    })
    .await;
    running.engine.sync().await.unwrap();
    assert_eq!(wanted(&volume), 0, "{:?}", volume.space());

    // Six sectors for two of data, and a third of them is what is deducted for parity.
    let (_world, running) = World::create("raidz2 d0 d1 d2 d3 d4 d5", 12, DISK, 28).await;
    let volume = running.volume(CSV, SIZE, BLOCK, Properties::new()).await;
    volume.write(0, half(), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    assert!(
        (SIZE - LITTLE..=SIZE).contains(&wanted(&volume)),
        "there is as much to come: {:?}",
        volume.space()
    );
    volume.write(SIZE / 2, half(), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    assert_eq!(wanted(&volume), 0, "{:?}", volume.space());
}
