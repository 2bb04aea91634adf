//! What a pool promises of its space: whoever is told that there is room gets it, whoever asks for more is told so, and
//! the pool goes on. A transaction group that finds no place for what was acknowledged would take every volume with it.

use std::{sync::Arc, time::Duration};

use block::{BlockVolume, Durability, VolumeError};
use disk::{Disk, MemDisk};
use engine::{
    alloc::Purpose,
    create::{self, Plan, VdevSpec},
    devices::{SweepCommand, SweepKind, SweepState},
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::OpFuture,
    sync::Syncer,
    txg::Cost,
    volume::LiveVolume,
};
use ondisk::blkptr::Dva;
use pool::vdev::Tree;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::sync::Notify;

use crate::support::{POOL, Running, World, data, file_of};

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 128 << 10;

/// Properties of a volume whose bytes are stored as they are.
fn plain(more: &[(&str, u64)]) -> Properties {
    let all = [("compression", 2)].into_iter().chain(more.iter().copied());
    all.map(|(name, value)| (name.to_owned(), Stored::Number(value))).collect()
}

async fn write(volume: &LiveVolume, at: u64, bytes: u64) -> Result<(), VolumeError> {
    volume.write(at, data(vec![0x5a; bytes as usize]), Durability::Cached).await
}

/// Writes until there is no more room. Bytes written.
async fn fill(volume: &LiveVolume) -> u64 {
    let mut at = 0;
    loop {
        match write(volume, at, MIB).await {
            Ok(()) => at += MIB,
            Err(error) => {
                assert_eq!(error, VolumeError::NoSpace);
                return at;
            }
        }
    }
}

async fn command<F>(running: &Running, op: F) -> Result<(), OpError>
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    running.engine.run(op).await
}

/// The pool does all it did before: it commits, takes commands, is left, and everything in it is whole.
async fn goes_on(world: &World, running: Running, what: &str) {
    running.engine.sync().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    command(&running, |cx| {
        let sync = Properties::from([("sync".to_owned(), Stored::Number(2))]);
        Box::pin(async move { dsl::set(cx, POOL, &sync).await })
    })
    .await
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    running.export().await;
    world.verify(what).await;
}

async fn usable(running: &Running) -> u64 {
    running.engine.view().dsl().await.unwrap().space().usable()
}

#[tokio::test(start_paused = true)]
async fn devices_for_metadata_and_dedup_tables_are_no_room_for_volumes() {
    let mut offered = Vec::new();
    for layout in ["d0", "d0 special d1", "d0 special d1 dedup d2"] {
        let (world, running) = World::create(layout, 12, 256 * MIB, 31).await;
        let volume = running.volume("tank/thin", 1 << 30, BLOCK, plain(&[])).await;
        running.engine.sync().await.unwrap();
        let capacity = running
            .engine
            .run(|cx| Box::pin(async move { Ok(cx.out.alloc.totals().capacity) }))
            .await
            .unwrap();
        offered.push([usable(&running).await, capacity, volume.space().unwrap().available]);
        let written = fill(&volume).await;
        assert!((96 * MIB..128 * MIB).contains(&written), "{layout}: {written}");
        running.engine.sync().await.unwrap();
        let space = running.engine.view().space().await.unwrap().clone();
        let (of_data, all) = (space.data.capacity(), space.total.capacity());
        assert_eq!((space.fullest(), all < of_data), (of_data, layout != "d0"), "{layout}: {space:?}");
        goes_on(&world, running, layout).await;
    }
    // What lies there may make a difference, and that is next to nothing.
    let is_same = |room: &[u64; 3]| room.iter().zip(&offered[0]).all(|(a, b)| a.abs_diff(*b) < 4 * MIB);
    assert!(offered.iter().all(is_same), "{offered:?}");
}

/// All that was on them was taken out of what volumes may use, for ever.
#[tokio::test(start_paused = true)]
async fn what_lies_on_devices_for_metadata_takes_no_room_from_volumes() {
    let (world, running) = World::create("d0 special d1", 9, 256 * MIB, 38).await;
    let volume = running.volume("tank/thin", 1 << 30, 512, plain(&[])).await;
    let mut random = StdRng::seed_from_u64(38);
    for piece in 0..32 {
        let mut bytes = vec![0; MIB as usize];
        random.fill_bytes(&mut bytes);
        volume.write(piece * MIB, data(bytes), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    let look = running.engine.run(|cx| {
        Box::pin(async move {
            let root = cx.places.root_dir;
            let available = dsl::available_below(cx, root).await?;
            Ok((cx.out.alloc.totals(), available))
        })
    });
    let (totals, available) = look.await.unwrap();
    assert!(totals.elsewhere > 2 * MIB, "{totals:?}");
    let view = running.engine.view();
    let of_view = view.dsl().await.unwrap();
    let left = totals.capacity - of_view.space().slop() - totals.allocated;
    let shown = of_view.root().await.unwrap().available_in_dir();
    drop(view);
    drop(volume);
    goes_on(&world, running, "with much on its special device").await;
    let closed = world.look().await.unwrap();
    let closed = closed.dsl().await.unwrap().root().await.unwrap().available_in_dir();
    for (available, of) in [(available, "commands"), (shown, "the open pool"), (closed, "the closed pool")] {
        assert!(available.abs_diff(left) < MIB, "{of}: {available} of {left}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_above_many_volumes_is_promised_once_and_kept_for_others() {
    let (world, running) = World::create("d0", 12, 256 * MIB, 32).await;
    command(&running, |cx| {
        Box::pin(async move {
            let reserved = Properties::from([("reservation".to_owned(), Stored::Number(48 * MIB))]);
            dsl::create_filesystem(cx, "tank/p", &reserved, false).await
        })
    })
    .await
    .unwrap();
    let mut below = Vec::new();
    for number in 0..6 {
        below.push(running.volume(&format!("tank/p/v{number}"), 1 << 30, BLOCK, plain(&[])).await);
    }
    let thick = running.volume("tank/thick", 1 << 30, BLOCK, plain(&[("refreservation", 24 * MIB)])).await;
    let thin = running.volume("tank/thin", 1 << 30, BLOCK, plain(&[])).await;
    running.engine.sync().await.unwrap();
    let written = fill(&thin).await;
    assert!((32 * MIB..64 * MIB).contains(&written), "what nobody reserved: {written}");
    // All at once, and all of them within what each of them could have alone.
    let writers: Vec<_> = below
        .iter()
        .map(|volume| {
            let volume = Arc::clone(volume);
            tokio::spawn(async move {
                let mut written = 0;
                while written < 40 * MIB && write(&volume, written, MIB).await.is_ok() {
                    written += MIB;
                }
                written
            })
        })
        .collect();
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert!((40 * MIB..=48 * MIB).contains(&written), "what is reserved for them: {written}");
    for piece in 0..22 {
        write(&thick, piece * MIB, MIB).await.expect("what is reserved for another one is there");
    }
    goes_on(&world, running, "with all reservations used").await;
}

/// Writes until there is no more room, in small groups; halfway what a block takes of the pool grows.
async fn fill_while<F>(world: World, running: Running, block: u32, what: &str, grow: F)
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    let volume = running.volume("tank/thin", 4 << 30, block, plain(&[])).await;
    running.engine.sync().await.unwrap();
    let (mut at, mut grow) = (0, Some(grow));
    loop {
        if at >= 24 * MIB
            && let Some(grow) = grow.take()
        {
            let engine = Arc::clone(&running.engine);
            let growing = tokio::spawn(async move { engine.run(grow).await });
            // There is always something announced that was not written yet.
            while !growing.is_finished() {
                write(&volume, at, MIB).await.unwrap();
                at += MIB;
                tokio::task::yield_now().await;
            }
            growing.await.unwrap().unwrap();
        }
        match write(&volume, at, MIB).await {
            Ok(()) => at += MIB,
            Err(error) => break assert_eq!(error, VolumeError::NoSpace, "{what}"),
        }
    }
    assert!(grow.is_none(), "{what}: {at}");
    goes_on(&world, running, what).await;
}

#[tokio::test(start_paused = true)]
async fn more_copies_of_what_is_being_written_leave_the_pool_alive() {
    for name in [POOL, "tank/thin"] {
        let (world, running) = World::create("d0", 12, 256 * MIB, 34).await;
        fill_while(world, running, BLOCK, name, move |cx| {
            let copies = Properties::from([("copies".to_owned(), Stored::Number(3))]);
            Box::pin(async move { dsl::set(cx, name, &copies).await })
        })
        .await;
    }
}

/// On the devices that come a block counts for more than on those that are there.
#[tokio::test(start_paused = true)]
async fn devices_with_another_price_that_are_added_under_load_leave_the_pool_alive() {
    for (layout, ashift, block) in [("raidz d1 d2 d3", 12, 8192), ("d1", 13, 4096)] {
        let (mut world, running) = World::create("d0", 12, 128 * MIB, 35).await;
        let before = running.engine.view().tree();
        let words: Vec<String> = layout.split_whitespace().map(str::to_owned).collect();
        let spec = VdevSpec::parse(&words).unwrap();
        let size = 96 * MIB;
        let facts = file_of(size);
        let plan = Plan::new(&spec, &vec![facts; spec.paths().len()], Some(ashift), true).unwrap();
        let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
        for path in spec.paths() {
            let media = Arc::new(MemDisk::new(size).named(format!("/disks/{path}")));
            world.media.push(Arc::clone(&media));
            disks.push(media);
        }
        let engine = Arc::clone(&running.engine);
        fill_while(world, running, block, layout, move |cx| {
            Box::pin(async move { create::add(cx, &plan, &disks).await })
        })
        .await;
        let price = |tree: &Tree| pool::space::block_space(tree, block.into());
        assert!(price(&engine.view().tree()) > price(&before), "{layout}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_sets_nothing_aside_that_clients_were_promised() {
    let (world, running) = World::create("d0", 12, 256 * MIB, 33).await;
    drop(running.volume("tank/thin", 1 << 30, BLOCK, plain(&[])).await);
    running.engine.sync().await.unwrap();
    let available = running.engine.txgs().available();
    let promised = 16 * MIB;
    assert!(available > 4 * promised);
    for (name, bytes, fits) in [
        ("tank/large", available - promised / 2, false),
        ("tank/small", available - promised - 4 * MIB, true),
    ] {
        // The command's group is held until something was announced for the next one.
        let held = running.engine.txgs().assign(Cost::default()).await.unwrap();
        let creating = tokio::spawn({
            let engine = Arc::clone(&running.engine);
            async move {
                let properties = plain(&[("refreservation", bytes)]);
                let (name, size, parents) = (name.to_owned(), 8 * MIB, false);
                let new = NewVolume { name, size, block: BLOCK, properties, parents };
                engine.run(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await
            }
        });
        while running.engine.txgs().open() == held.txg() {
            tokio::task::yield_now().await;
        }
        let cost = Cost { space: promised, ..Cost::default() };
        let announced = running.engine.txgs().assign(cost).await.unwrap();
        drop(held);
        let created = creating.await.unwrap();
        drop(announced);
        assert_eq!(created.is_ok(), fits, "{name}: {created:?}");
        assert!(fits || matches!(created, Err(OpError::NoSpace)));
        running.engine.sync().await.unwrap();
    }
    goes_on(&world, running, "after commands among writers").await;
}

/// All leaves of a wide mirror are initialized and trimmed at once: each of these takes free space out of the pool for a
/// while, also between the moment in which it is promised and the one in which it is used.
#[tokio::test(start_paused = true)]
async fn what_sweeps_work_on_was_promised_to_nobody() {
    for is_promised_first in [true, false] {
        let (world, running) = World::create("d0", 12, 256 * MIB, 36).await;
        let volume = running.volume("tank/thin", 1 << 30, BLOCK, plain(&[])).await;
        running.engine.sync().await.unwrap();
        let (asks, filled) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let borrowing = tokio::spawn({
            let engine = Arc::clone(&running.engine);
            let (asks, filled) = (Arc::clone(&asks), Arc::clone(&filled));
            async move {
                let borrow = engine.run(move |cx| {
                    Box::pin(async move {
                        let wait = async || {
                            asks.notify_one();
                            filled.notified().await;
                        };
                        if is_promised_first {
                            wait().await;
                        }
                        let (mut all, mut from) = (Vec::new(), 0);
                        for _ in 0..16 {
                            let borrowed = cx.out.alloc.borrow_free(0, from, 64 * MIB).await?;
                            from = if borrowed.is_last { 0 } else { borrowed.next };
                            all.push(borrowed);
                        }
                        if !is_promised_first {
                            wait().await;
                        }
                        Ok(all)
                    })
                });
                borrow.await.unwrap()
            }
        });
        // All there is is announced for the group behind the one in which that is borrowed.
        asks.notified().await;
        let mut at = 0;
        while running.engine.txgs().available() >= 2 * MIB {
            write(&volume, at, MIB).await.unwrap();
            at += MIB;
        }
        assert!(at > 64 * MIB, "{at}");
        filled.notify_one();
        let borrowed = borrowing.await.unwrap();
        let bytes: u64 =
            borrowed.iter().flat_map(|borrowed| &borrowed.runs).map(|run| run.end - run.start).sum();
        assert!(bytes >= MIB, "there is something that nobody was promised: {bytes}");
        goes_on(&world, running, &format!("promised first: {is_promised_first}")).await;
        drop(borrowed);
    }
}

/// What sweeps had loaded stayed in memory for as long as the pool was open, however short that was.
#[tokio::test(start_paused = true)]
async fn a_pool_that_does_nothing_gives_back_the_memory_of_what_it_knows_of_free_space() {
    // Fifteen metaslabs, each with 128 pages of units in each of its sets.
    let (world, running) = World::create("d0", 9, 4096 * MIB, 39).await;
    let borrow = running.engine.run(|cx| {
        Box::pin(async move {
            for from in (0..4096 * MIB).step_by(64 << 20) {
                cx.out.alloc.borrow_free(0, from, MIB).await?;
            }
            Ok(())
        })
    });
    borrow.await.unwrap();
    let held = running.engine.space_memory();
    assert!(held >= 15 * 2 * 128 * 16, "{held}");
    running.engine.set_space_memory(0);
    let gives_back = async {
        while running.engine.space_memory() >= held {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), gives_back).await.unwrap();
    goes_on(&world, running, "with little memory").await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_space_is_all_reserved_can_be_initialized() {
    let (world, running) = World::create("mirror d0 d1", 12, 256 * MIB, 37).await;
    let room = usable(&running).await / MIB - 4;
    let thick = running.volume("tank/thick", 1 << 30, BLOCK, plain(&[("refreservation", room * MIB)])).await;
    running.engine.sync().await.unwrap();
    let leaves = running.engine.view().tree().leaves().iter().map(|leaf| leaf.guid).collect::<Vec<_>>();
    for leaf in leaves {
        let start = SweepCommand::Start { rate: None };
        running.engine.sweep(SweepKind::Initialize, leaf, start).await.unwrap();
    }
    let mut written = 0;
    for _ in 0..1000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if written < (room - 4) * MIB {
            write(&thick, written, MIB).await.expect("what is reserved is there");
            written += MIB;
        }
    }
    assert_eq!(written, (room - 4) * MIB);
    for status in running.engine.sweep_status() {
        assert_eq!(status.state, SweepState::Complete, "{status:?}");
    }
    goes_on(&world, running, "initialized").await;
}

/// Indirect blocks of a volume with small blocks, in a pool whose sectors are so large that few blocks fill what is left.
const SCATTERED: u64 = 3600;
/// Bytes of a volume with blocks of 512 bytes below each of them.
const BELOW: u64 = 512 << 10;
/// What is kept back in a pool of up to 4 GiB.
const SLOP: u64 = 128 * MIB;

/// A volume with two blocks below each indirect block, in a pool of so many bytes that has room.
async fn scattered(bytes: u64, seed: u64) -> (World, Running, Arc<LiveVolume>) {
    let (world, running) = World::create("d0", 14, bytes, seed).await;
    let volume = running.volume("tank/small", SCATTERED * BELOW, 512, plain(&[])).await;
    for number in 0..SCATTERED {
        write(&volume, number * BELOW, 1024).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    (world, running, volume)
}

/// Takes places on the devices, as what no dataset knows of does, until no more than this is free.
async fn leave_free(running: &Running, bytes: u64) -> Vec<Dva> {
    let take = running.engine.run(move |cx| {
        Box::pin(async move {
            let mut taken: Vec<Dva> = Vec::new();
            loop {
                let totals = cx.out.alloc.totals();
                if totals.capacity - totals.allocated - totals.aside < bytes + MIB {
                    return Ok(taken);
                }
                taken.extend(cx.out.alloc.allocate(MIB, 1, Purpose::Data).await?);
            }
        })
    });
    take.await.unwrap()
}

/// The places are free again, and the pool goes on.
async fn goes_on_without(taken: Vec<Dva>, world: &World, running: Running, what: &str) {
    running.engine.sync().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    command(&running, move |cx| {
        Box::pin(async move {
            taken.iter().for_each(|place| cx.out.alloc.release(*place));
            Ok(())
        })
    })
    .await
    .unwrap();
    goes_on(world, running, what).await;
}

/// Each block was announced with a share of the indirect block above it. All of that is written anew, and what was there
/// before is free a transaction group later: it found no place, and the pool was given up.
#[tokio::test(start_paused = true)]
async fn small_blocks_far_apart_that_are_written_again_leave_a_nearly_full_pool_alive() {
    let (world, running, volume) = scattered(4 << 30, 38).await;
    let taken = leave_free(&running, SLOP / 2 + 64 * MIB).await;
    for number in 0..SCATTERED {
        write(&volume, number * BELOW, 512).await.expect("as much as was there before");
    }
    goes_on_without(taken, &world, running, "written again").await;
}

/// The same of what only frees, which was not announced at all.
#[tokio::test(start_paused = true)]
async fn small_blocks_far_apart_that_are_discarded_leave_a_full_pool_alive() {
    let (world, running, volume) = scattered(4 << 30, 39).await;
    let taken = leave_free(&running, SLOP / 2 - 4 * MIB).await;
    assert_eq!(write(&volume, 0, 512).await, Err(VolumeError::NoSpace));
    for number in 0..SCATTERED {
        let discarded = volume.unmap(number * BELOW, 512, Durability::Cached).await;
        discarded.expect("there is always room to free something");
    }
    goes_on_without(taken, &world, running, "discarded").await;
}

/// What a snapshot keeps of the blocks above them is not free with the next transaction group. That was taken out of what other
/// volumes had reserved, and when it was gone nothing could be freed any more.
#[tokio::test(start_paused = true)]
async fn small_blocks_of_a_snapshot_that_are_discarded_leave_others_what_they_reserved() {
    let (world, running, volume) = scattered(512 * MIB, 40).await;
    let other = running.volume("tank/other", 64 * BELOW, 512, plain(&[])).await;
    for number in 0..64 {
        write(&other, number * BELOW, 1024).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    let room = running.engine.txgs().available() / MIB - 8;
    assert!(room > SLOP / MIB / 2, "more than is kept back: {room} MiB");
    let thick = running.volume("tank/thick", 1 << 30, BLOCK, plain(&[("refreservation", room * MIB)])).await;
    command(&running, |cx| {
        Box::pin(async move { dsl::snapshot(cx, &["tank/small@s".to_owned()], &Properties::new()).await })
    })
    .await
    .unwrap();
    let mut discarded = 0;
    let refused = loop {
        assert!(discarded < SCATTERED, "the snapshot keeps more than what nobody reserved");
        match volume.unmap(discarded * BELOW, 512, Durability::Cached).await {
            Ok(()) => discarded += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, VolumeError::NoSpace);
    assert!(discarded > SCATTERED / 8, "there is a margin for it: {discarded}");
    for number in 0..64 {
        let freed = other.unmap(number * BELOW, 512, Durability::Cached).await;
        freed.expect("no snapshot keeps anything of this one");
    }
    for piece in 0..room - 4 {
        write(&thick, piece * MIB, MIB).await.expect("what is reserved is there");
    }
    goes_on(&world, running, "discarded below a snapshot").await;
}
