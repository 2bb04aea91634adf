//! Pools whose space is all reserved: what is reserved is there for whom it is, whatever is in flight and however early.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use block::{BlockVolume as _, Durability, VolumeError};
use disk::{Effect, Fault, On};
use engine::{
    dsl::{self, Properties, Stored},
    engine::Engine,
    volume::LiveVolume,
};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::support::{Running, World, data, noise};

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 16 << 10;
const SIZE: u64 = 32 * MIB;

/// Properties of a volume that has so much reserved and whose bytes are stored as they are.
fn reserving(bytes: u64) -> Properties {
    let all = [("compression", 2), ("refreservation", bytes)];
    all.into_iter().map(|(name, value)| (name.to_owned(), Stored::Number(value))).collect()
}

/// What a thick volume of `size` bytes reserves.
fn thick(size: u64) -> u64 {
    dsl::default_refreservation(size, BLOCK, 1, BLOCK.into())
}

/// A pool with a thick volume; another one has reserved the rest, but for less than `left`.
async fn reserved(seed: u64, left: u64) -> (World, Running, Arc<LiveVolume>) {
    let (world, running) = World::create("d0", 12, 256 * MIB, seed).await;
    let volume = running.volume("tank/thick", SIZE, BLOCK, reserving(thick(SIZE))).await;
    running.engine.sync().await.unwrap();
    let rest = running.engine.txgs().available() - left;
    drop(running.volume("tank/rest", 1 << 30, BLOCK, reserving(rest)).await);
    running.engine.sync().await.unwrap();
    assert!(running.engine.txgs().available() <= left);
    (world, running, volume)
}

async fn write(volume: &LiveVolume, at: u64, bytes: u64) -> Result<(), VolumeError> {
    volume.write(at, data(noise(at, bytes)), Durability::Cached).await
}

async fn set(engine: &Engine, name: &'static str, properties: &[(&str, u64)]) {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), Stored::Number(*value)));
    let properties: Properties = properties.collect();
    engine.run(move |cx| Box::pin(async move { dsl::set(cx, name, &properties).await })).await.unwrap();
}

/// Commits take as long as on disks.
fn slow(running: &Running, time: RangeInclusive<Duration>) {
    running.disks[0].inject(Fault::anywhere(On::Flush, Effect::Delay(time)));
}

/// What had announced as much as was left of its reservation was waited for twice, and then most of the rest was refused.
#[tokio::test(start_paused = true)]
async fn a_full_thick_volume_is_written_over_with_more_in_flight_than_its_reservation_has_left() {
    let (world, running, volume) = reserved(61, MIB / 2).await;
    for at in (0..SIZE).step_by(MIB as usize) {
        write(&volume, at, MIB).await.expect("what is reserved is there");
    }
    running.engine.sync().await.unwrap();
    slow(&running, Duration::from_millis(20)..=Duration::from_millis(20));
    let writers = (0..32).map(async |writer| {
        let mut longest = Duration::ZERO;
        for turn in 0..8 {
            let start = Instant::now();
            let at = (writer * 7 + turn * 5) % 32 * MIB;
            write(&volume, at, MIB).await.unwrap_or_else(|error| panic!("{writer}, {turn}: {error}"));
            longest = longest.max(start.elapsed());
        }
        longest
    });
    let longest = join_all(writers).await.into_iter().max().unwrap();
    assert!(longest < Duration::from_secs(5), "nobody is passed by others: {longest:?}");
    // What does not fit is refused all the same.
    let thin = running.engine.volume("tank/rest").await.unwrap();
    set(&running.engine, "tank/rest", &[("refreservation", 0)]).await;
    set(&running.engine, "tank/rest", &[("refquota", MIB)]).await;
    let mut refused = join_all((0..16).map(|piece| write(&thin, piece * MIB, MIB))).await;
    refused.retain(Result::is_err);
    assert!(
        refused.len() >= 15 && refused.iter().all(|error| *error == Err(VolumeError::NoSpace)),
        "{refused:?}"
    );
    drop((volume, thin));
    running.export().await;
    world.verify("written over").await;
}

/// To the end of one commit after it was opened a volume was taken to have nothing reserved.
#[tokio::test(start_paused = true)]
async fn a_thick_volume_takes_what_it_has_reserved_as_soon_as_it_is_there() {
    let time = Duration::from_millis(500);
    let (mut world, running, volume) = reserved(62, MIB / 2).await;
    write(&volume, 0, MIB).await.unwrap();
    running.engine.sync().await.unwrap();
    drop(volume);
    // Opened: after a crash, and after an export.
    world.cut(running).await;
    for what in ["crashed", "exported"] {
        let running = world.open().await;
        slow(&running, time..=time);
        let volume = running.engine.volume("tank/thick").await.unwrap();
        let writes = join_all((0..12).map(|piece| write(&volume, piece * MIB, MIB))).await;
        assert!(writes.iter().all(Result::is_ok), "{what}: {writes:?}");
        drop(volume);
        running.export().await;
    }
    // Created, and made larger.
    let running = world.open().await;
    set(&running.engine, "tank/rest", &[("refreservation", 16 * MIB)]).await;
    slow(&running, time..=time);
    let new = running.volume("tank/new", SIZE, BLOCK, reserving(thick(SIZE))).await;
    write(&new, 0, MIB).await.expect("created");
    running.engine.sync().await.unwrap();
    let grown = SIZE + 16 * MIB;
    let left = running.engine.txgs().available() - (thick(grown) - thick(SIZE));
    set(&running.engine, "tank/rest", &[("refreservation", 16 * MIB + left - MIB / 2)]).await;
    let growing = tokio::spawn({
        let engine = Arc::clone(&running.engine);
        async move { set(&engine, "tank/new", &[("volsize", grown), ("refreservation", thick(grown))]).await }
    });
    while new.geometry().size == SIZE {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let writes = join_all((0..grown / MIB).map(|piece| write(&new, piece * MIB, MIB))).await;
    assert!(writes.iter().all(Result::is_ok), "{writes:?}");
    growing.await.unwrap();
    drop(new);
    running.export().await;
    world.verify("at the end").await;
}
