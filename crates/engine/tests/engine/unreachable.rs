//! Indirect blocks that no device has any more: what lies below them is lost, and nothing else is. Whoever asks for a change
//! that goes through one is told so; the rest of the volume, other volumes and the pool go on, also after a crash.

use std::sync::Arc;

use block::{Asked, BlockVolume, Durability, VolumeError};
use disk::Disk;
use engine::{
    dsl::{self, OpError, Properties, Stored},
    volume::LiveVolume,
};
use ondisk::label::DATA_OFFSET;
use pool::dmu::{Cursor, Step};

use crate::support::{DISK, POOL, Running, World, data, noise, plain};

const VOLUME: &str = "tank/v";
const OTHER: &str = "tank/w";
const BLOCK: u64 = 4096;
/// Bytes below an indirect block.
const BELOW: u64 = 1024 * BLOCK;
const SIZE: u64 = 6 * BELOW;
/// Which one is lost.
const LOST: u64 = 3;
const FUA: Durability = Durability::Stable(Asked::Fua);

async fn filled() -> (World, Running) {
    let (world, running) = World::create("d0", 12, DISK, 51).await;
    let volume = running.volume(VOLUME, SIZE, BLOCK as u32, plain()).await;
    for at in (0..SIZE).step_by(BELOW as usize) {
        volume.write(at, data(noise(at, BELOW)), Durability::Cached).await.unwrap();
    }
    running.volume(OTHER, 1 << 20, BLOCK as u32, plain()).await;
    running.engine.sync().await.unwrap();
    (world, running)
}

/// All copies of an indirect block of level 1.
async fn lose(world: &World, number: u64) {
    let pool = world.look().await.unwrap();
    let volume = pool.open_volume(VOLUME).await.unwrap();
    let found = volume.data().seek(&mut Cursor::default(), 1, number).await.unwrap();
    let Step::Block(pointer) = found else { panic!("{found:?}") };
    assert!(pointer.dvas().count() >= 2);
    for dva in pointer.dvas() {
        world.media[0].write(DATA_OFFSET + dva.offset, noise(1, pointer.psize()).into()).await.unwrap();
    }
}

async fn set_size(running: &Running, size: u64) -> Result<(), OpError> {
    let properties = Properties::from([("volsize".to_owned(), Stored::Number(size))]);
    running.engine.run(move |cx| Box::pin(async move { dsl::set(cx, VOLUME, &properties).await })).await
}

/// The pool commits, and other volumes are served.
async fn goes_on(running: &Running, what: &str) {
    let other = running.engine.volume(OTHER).await.unwrap();
    other.write(0, data(noise(7, BLOCK)), FUA).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    running.engine.sync().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(block::flatten(&other.read(0, BLOCK as usize).await.unwrap()) == noise(7, BLOCK), "{what}");
}

async fn is_there(volume: &LiveVolume, at: u64) -> bool {
    block::flatten(&volume.read(at, BELOW as usize).await.unwrap()) == noise(at, BELOW)
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_reach_its_pointers_is_an_error_of_its_own_and_not_the_end_of_the_pool() {
    let (world, running) = filled().await;
    running.export().await;
    lose(&world, LOST).await;
    let running = world.open().await;
    let volume = running.engine.volume(VOLUME).await.unwrap();
    let at = LOST * BELOW;
    for (what, change) in [
        ("a discard", volume.unmap(at, BELOW, Durability::Cached)),
        ("a discard of a block", volume.unmap(at + BLOCK, BLOCK, Durability::Cached)),
        ("a discard of all", volume.unmap(0, SIZE, Durability::Cached)),
        ("zeroes", volume.write_zeroes(at, 16 * BLOCK, true, Durability::Cached)),
        ("whole blocks", volume.write(at, data(noise(2, 16 * BLOCK)), Durability::Cached)),
        ("a part of a block", volume.write(at, data(noise(2, 512)), Durability::Cached)),
        ("a write through", volume.write(at, data(noise(2, BLOCK)), FUA)),
        ("a write across", volume.write(at - BLOCK, data(noise(2, 2 * BLOCK)), Durability::Cached)),
    ] {
        let outcome = change.await;
        assert!(matches!(outcome, Err(VolumeError::Unreadable { .. })), "{what}: {outcome:?}");
        goes_on(&running, what).await;
    }
    let refused = set_size(&running, BELOW).await.unwrap_err();
    assert!(!refused.to_string().contains("given up already"), "{refused}");
    goes_on(&running, "made small").await;
    assert_eq!(volume.geometry().size, SIZE);
    for number in (0..6).filter(|number| *number != LOST) {
        assert!(is_there(&volume, number * BELOW).await, "{number}");
    }
    // What lies beyond it can go, and comes back.
    set_size(&running, (LOST + 1) * BELOW).await.unwrap();
    set_size(&running, SIZE).await.unwrap();
    let five = 5 * BELOW;
    volume.write(five, data(noise(five, BELOW)), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    assert!(is_there(&volume, five).await);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_replayed_for_lack_of_pointers_holds_up_no_other_volume() {
    let (mut world, running) = filled().await;
    let volume = running.engine.volume(VOLUME).await.unwrap();
    // The log is there from the second group on.
    for round in 0..3 {
        volume.write(0, data(noise(round, BLOCK)), FUA).await.unwrap();
    }
    let open = running.engine.txgs().open();
    volume.write(LOST * BELOW, data(noise(3, BLOCK)), FUA).await.unwrap();
    assert_eq!(running.engine.txgs().open(), open, "it is in the log");
    drop(volume);
    world.cut(running).await;
    lose(&world, LOST).await;
    for time in ["once", "again"] {
        let running = world.open().await;
        goes_on(&running, time).await;
        let refused = running.engine.volume(VOLUME).await.err();
        assert!(refused.is_some(), "{time}: what was acknowledged is not there");
        world.cut(running).await;
    }
}

/// A block below each of more indirect blocks than one transaction group gives up, and the last but one is lost.
#[tokio::test(start_paused = true)]
async fn a_volume_that_could_be_made_small_only_in_part_has_its_size_and_says_what_is_gone() {
    const SMALL: u64 = 512;
    const SPAN: u64 = 1024 * SMALL;
    const COUNT: u64 = 2100;
    let (world, running) = World::create("d0", 9, DISK, 52).await;
    let volume = running.volume(VOLUME, COUNT * SPAN, SMALL as u32, plain()).await;
    for number in 0..COUNT {
        volume.write(number * SPAN, data(noise(number, SMALL)), Durability::Cached).await.unwrap();
    }
    running.volume(OTHER, 1 << 20, BLOCK as u32, plain()).await;
    drop(volume);
    running.export().await;
    lose(&world, COUNT - 2).await;
    let running = world.open().await;
    let volume: Arc<LiveVolume> = running.engine.volume(VOLUME).await.unwrap();
    let refused = set_size(&running, SPAN).await.unwrap_err();
    assert!(refused.to_string().contains("given up already"), "{refused}");
    goes_on(&running, "made small in part").await;
    assert_eq!(volume.geometry().size, COUNT * SPAN, "clients have what the property says");
    let read = async |number| block::flatten(&volume.read(number * SPAN, SMALL as usize).await.unwrap());
    assert!(read(0).await == noise(0, SMALL) && read(COUNT - 1).await == noise(COUNT - 1, SMALL));
    assert!(read(1).await.iter().all(|byte| *byte == 0), "the message is true");
    let pool = running.engine.view();
    let found = pool.dsl().await.unwrap().lookup(VOLUME).await.unwrap();
    assert_eq!(found.properties().await.unwrap().number("volsize"), Some(COUNT * SPAN), "{POOL}");
}
