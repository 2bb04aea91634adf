//! Giving up a great many blocks at once: a discard of a whole disk, a volume that is made small.
//!
//! Every block that goes has to be remembered until its transaction group is durable, and one that a snapshot still has is
//! written down, so the amount is spread over groups. What is promised: a discard that was answered reads as zeroes, what
//! is going to be cut off is out of reach from the beginning, the space comes back exactly once, the pool is whole after
//! each of the groups, and a power cut between two of them costs neither space nor anything outside of what was given up.

use std::{ops::Range, sync::Arc, time::Duration};

use block::{BlockVolume, Durability, Extent, VolumeError};
use disk::{Effect, Fault, On};
use engine::{
    create,
    dsl::{self, OpError, Properties, Stored},
    engine::{Engine, Options},
    mos::bptree,
    open,
    sync::{Task, Work},
    txg::Limits,
    volume::LiveVolume,
};
use ondisk::blkptr::Dva;
use pool::dmu::Run;
use tokio::task::JoinHandle;

use crate::{
    crashed::pool_on,
    support::{POOL, Running, World, as_disks, data, going_on, noise, plain, quiet},
};

const VOLUME: &str = "tank/v";
const SNAPSHOT: &str = "tank/v@s";
const BLOCK: u64 = 512;
/// 98,304 blocks.
const SIZE: u64 = 48 << 20;
const CHUNK: u64 = 1 << 20;
/// What is not given up. It ends at no border of anything but a block.
const KEPT: u64 = 3 * CHUNK + 5 * BLOCK;

/// As on a machine with little memory.
fn narrow() -> Options {
    Options { limits: Limits { dirty_max: 8 << 20, ..quiet().limits }, ..quiet() }
}

/// A chunk of the volume.
fn chunk(number: u64) -> Vec<u8> {
    noise(number, CHUNK)
}

/// A volume of which all blocks are stored.
async fn filled(with_snapshot: bool) -> World {
    filled_having(create::features("off").unwrap(), 256 << 20, with_snapshot).await
}

/// The same on a pool with these features, on a disk of so many bytes.
async fn filled_having(features: Vec<&'static str>, disk: u64, with_snapshot: bool) -> World {
    let made = World::create_having(features, "d0", 9, disk, 41, Properties::new());
    let (world, running) = made.await;
    let volume = running.volume(VOLUME, SIZE, BLOCK as u32, plain()).await;
    fill(&running, &volume).await;
    if with_snapshot {
        snapshot(&running.engine).await;
    }
    running.export().await;
    world
}

/// Stores all blocks of the volume.
async fn fill(running: &Running, volume: &LiveVolume) {
    for number in 0..SIZE / CHUNK {
        volume.write(number * CHUNK, data(chunk(number)), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
}

async fn snapshot(engine: &Engine) {
    let names = vec![SNAPSHOT.to_owned()];
    let take = engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }));
    take.await.unwrap();
}

async fn destroy_snapshot(engine: &Engine) {
    let names = vec![SNAPSHOT.to_owned()];
    let gone = engine.run(move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await }));
    gone.await.unwrap();
}

async fn destroy(engine: &Engine) -> Result<(), OpError> {
    engine.run(|cx| Box::pin(async move { dsl::destroy_head(cx, VOLUME).await })).await
}

async fn roll_back(engine: &Engine) -> Result<(), OpError> {
    engine.run(|cx| Box::pin(async move { dsl::rollback(cx, SNAPSHOT).await })).await
}

async fn set_size(engine: &Engine, size: u64) -> Result<(), OpError> {
    let properties = Properties::from([("volsize".to_owned(), Stored::Number(size))]);
    engine.run(move |cx| Box::pin(async move { dsl::set(cx, VOLUME, &properties).await })).await
}

/// Gives up all but [`KEPT`] bytes of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Discard,
    Shrink,
}

impl How {
    async fn give_up(self, engine: Arc<Engine>, volume: Arc<LiveVolume>) {
        match self {
            Self::Discard => volume.unmap(KEPT, SIZE - KEPT, Durability::Cached).await.unwrap(),
            Self::Shrink => set_size(&engine, KEPT).await.unwrap(),
        }
    }
}

/// Makes transaction groups take some time, so that there is a time between two of them.
fn slow_down(running: &Running) {
    let moment = Duration::from_millis(10);
    for disk in &running.disks {
        disk.inject(Fault::anywhere(On::Flush, Effect::Delay(moment..=moment)));
    }
}

/// Waits until there were `groups` more transaction groups than `before`.
async fn wait_for(running: &Running, before: u64, groups: u64) {
    while running.engine.statistics().txgs < before + groups {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Begins to make the volume small on slow disks, and lets so many transaction groups pass.
async fn asked_to_shrink(running: &Running, groups: u64) -> JoinHandle<Result<(), OpError>> {
    slow_down(running);
    let before = running.engine.statistics().txgs;
    let engine = Arc::clone(&running.engine);
    let asking = tokio::spawn(async move { set_size(&engine, KEPT).await });
    wait_for(running, before, groups).await;
    asking
}

async fn number(running: &Running, property: &str) -> u64 {
    let view = running.engine.view();
    let dataset = view.dsl().await.unwrap().lookup(VOLUME).await.unwrap();
    dataset.properties().await.unwrap().number(property).unwrap()
}

/// Reads a volume, and compares it with what was written outside of `hole`.
async fn check(volume: &dyn BlockVolume, hole: Range<u64>, what: &str) {
    for number in 0..volume.geometry().size.div_ceil(CHUNK) {
        let start = number * CHUNK;
        let len = (volume.geometry().size - start).min(CHUNK);
        let found = block::flatten(&volume.read(start, len as usize).await.unwrap());
        let mut expected = chunk(number);
        let within = |at: u64| (at.clamp(start, start + CHUNK) - start) as usize;
        expected[within(hole.start)..within(hole.end)].fill(0);
        assert!(found == expected[..len as usize], "{what}: chunk {number}");
    }
}

async fn check_snapshot(running: &Running, with_snapshot: bool, what: &str) {
    if with_snapshot {
        let snapshot = running.engine.view().open_volume(SNAPSHOT).await.unwrap();
        check(&*snapshot, 0..0, what).await;
    }
}

fn check_with_zdb(world: &World, what: &str) {
    if fixtures::tool("zdb").is_some() {
        let dir = tempfile::tempdir().unwrap();
        world.save(dir.path());
        fixtures::zdb_check(&[], dir.path(), POOL).unwrap_or_else(|text| panic!("{what}: {text}"));
    }
}

/// Gives up the blocks without an incident.
async fn play(world: &World, how: How, with_snapshot: bool) {
    let what = format!("{how:?}, snapshot: {with_snapshot}");
    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    let before = running.engine.statistics().txgs;
    how.give_up(Arc::clone(&running.engine), Arc::clone(&volume)).await;
    let holes = [Extent { len: KEPT, hole: false }, Extent { len: SIZE - KEPT, hole: true }];
    let size = volume.geometry().size;
    let expected = if how == How::Shrink { &holes[..1] } else { &holes[..] };
    assert_eq!(volume.extents(0, size, 9).await.unwrap(), expected, "{what}: at once");
    running.engine.sync().await.unwrap();
    let groups = running.engine.statistics().txgs - before;
    assert!((3..20).contains(&groups), "{what}: {groups} transaction groups");
    check(&*volume, KEPT..SIZE, &what).await;
    check_snapshot(&running, with_snapshot, &what).await;
    if how == How::Shrink {
        set_size(&running.engine, SIZE).await.unwrap();
        check(&*volume, KEPT..SIZE, "nothing of what was cut off comes back").await;
    }
    let used = number(&running, "referenced").await;
    assert!((KEPT..KEPT * 3 / 2).contains(&used), "{what}: {used} bytes are referenced");
    running.export().await;
    world.verify(&what).await;
    check_with_zdb(world, &what);
}

/// Cuts the power after `groups` of the transaction groups that it takes.
async fn cut_off(mut world: World, how: How, groups: u64, with_snapshot: bool) {
    let what = format!("{how:?}, snapshot: {with_snapshot}, cut off after {groups} groups");
    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    slow_down(&running);
    let before = running.engine.statistics().txgs;
    let giving_up = tokio::spawn(how.give_up(Arc::clone(&running.engine), Arc::clone(&volume)));
    wait_for(&running, before, groups).await;
    assert!(!giving_up.is_finished(), "{what}: it takes more groups");
    if how == How::Shrink {
        // A group that was closed when the command came has nothing of it.
        while volume.geometry().size != KEPT {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!giving_up.is_finished(), "{what}: it takes more groups");
        let outside = volume.write(KEPT, data(vec![1; 512]), Durability::Cached).await;
        assert!(matches!(outside, Err(VolumeError::OutOfRange { .. })), "{what}: {outside:?}");
        assert_eq!(number(&running, "volsize").await, SIZE, "{what}");
    }
    giving_up.abort();
    drop(volume);
    world.cut(running).await;
    world.verify(&what).await;
    check_with_zdb(&world, &what);
    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    assert_eq!(volume.geometry().size, SIZE, "{what}");
    let extents = volume.extents(0, SIZE, 9).await.unwrap();
    // Likewise for the discard.
    let hole = match extents[..] {
        [Extent { hole: false, .. }] if how == How::Discard => 0,
        [Extent { len: KEPT, hole: false }, Extent { len, hole: true }, Extent { hole: false, .. }] => len,
        _ => panic!("{what}: {extents:?}"),
    };
    check(&*volume, KEPT..KEPT + hole, &what).await;
    check_snapshot(&running, with_snapshot, &what).await;
    // Done again, it is all done.
    how.give_up(Arc::clone(&running.engine), Arc::clone(&volume)).await;
    running.engine.sync().await.unwrap();
    check(&*volume, KEPT..SIZE, &what).await;
    let used = number(&running, "referenced").await;
    assert!((KEPT..KEPT * 3 / 2).contains(&used), "{what}: {used} bytes are referenced");
    running.export().await;
    world.verify(&what).await;
}

#[tokio::test(start_paused = true)]
async fn a_great_many_blocks_are_given_up_over_several_transaction_groups() {
    for (with_snapshot, groups) in [(false, 1), (true, 2)] {
        let world = filled(with_snapshot).await;
        for how in [How::Discard, How::Shrink] {
            play(&world.fork(), how, with_snapshot).await;
            cut_off(world.fork(), how, groups, with_snapshot).await;
        }
    }
}

/// Whoever asked for it has gone away: it is done all the same, and nothing stays closed.
#[tokio::test(start_paused = true)]
async fn a_volume_is_made_small_though_nobody_waits_for_it() {
    let world = filled(false).await;
    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    slow_down(&running);
    let before = running.engine.statistics().txgs;
    let asking = tokio::spawn(How::Shrink.give_up(Arc::clone(&running.engine), Arc::clone(&volume)));
    wait_for(&running, before, 1).await;
    assert!(!asking.is_finished());
    asking.abort();
    while number(&running, "volsize").await != KEPT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(volume.geometry().size, KEPT);
    check(&*volume, 0..0, "what is left").await;
    running.export().await;
    world.verify("at the end").await;
}

async fn set_number(engine: &Engine, name: &'static str, property: &str, value: u64) -> Result<(), OpError> {
    let properties = Properties::from([(property.to_owned(), Stored::Number(value))]);
    engine.run(move |cx| Box::pin(async move { dsl::set(cx, name, &properties).await })).await
}

/// A command that failed meanwhile was taken for the end of it, and one above it gave clients all of the volume back for a
/// while: what they wrote then was cut off.
#[tokio::test(start_paused = true)]
async fn what_others_set_while_a_volume_becomes_small_neither_ends_it_nor_opens_what_goes() {
    let world = filled(false).await;
    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    slow_down(&running);
    let asking = tokio::spawn(How::Shrink.give_up(Arc::clone(&running.engine), Arc::clone(&volume)));
    while volume.geometry().size != KEPT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (property, value, sync) in [("refreservation", 1 << 50, 1), ("volsize", KEPT + 1, 2)] {
        assert!(!asking.is_finished(), "it takes more groups");
        let refused = set_number(&running.engine, VOLUME, property, value).await.unwrap_err().to_string();
        assert!(!refused.contains("given up already"), "{property}: {refused}");
        assert_eq!(volume.geometry().size, KEPT, "{property}");
        set_number(&running.engine, POOL, "sync", sync).await.unwrap();
        assert_eq!(volume.geometry().size, KEPT, "above it");
    }
    asking.await.unwrap();
    assert_eq!((volume.geometry().size, number(&running, "volsize").await), (KEPT, KEPT));
    running.export().await;
    world.verify("at the end").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_opened_while_it_becomes_small_has_nothing_of_what_goes() {
    let world = filled(false).await;
    let running = world.try_open(narrow()).await.unwrap();
    let asking = asked_to_shrink(&running, 2).await;
    let volume = running.engine.volume(VOLUME).await.unwrap();
    assert!(!asking.is_finished(), "it takes more groups");
    assert_eq!(volume.geometry().size, KEPT);
    asking.await.unwrap().unwrap();
    assert_eq!(volume.geometry().size, KEPT);
    check(&*volume, 0..0, "what is left").await;
    running.export().await;
    world.verify("at the end").await;
}

/// One that was to have all that may be dirty waited until nothing was, and beside a writer that is never.
#[tokio::test(start_paused = true)]
async fn a_discard_goes_on_beside_a_writer_however_little_may_be_dirty() {
    let world = filled(false).await;
    let options = Options { limits: Limits { dirty_max: 4 << 20, ..quiet().limits }, ..quiet() };
    let running = world.try_open(options).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    slow_down(&running);
    let writer = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move {
            for at in (0..3 * CHUNK).step_by(4096).cycle() {
                volume.write(at, data(vec![7; 4096]), Durability::Cached).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    let before = running.engine.statistics().txgs;
    wait_for(&running, before, 2).await;
    // Blocks below sixteen indirect blocks.
    let dense = 16 * 1024 * BLOCK;
    let discard = volume.unmap(SIZE - dense, dense, Durability::Cached);
    tokio::time::timeout(Duration::from_secs(60), discard).await.expect("it ends").unwrap();
    let groups = running.engine.statistics().txgs - before;
    assert!(groups < 20, "{groups} transaction groups");
    writer.abort();
    let whole = volume.extents(SIZE - dense, dense, 9).await.unwrap();
    assert_eq!(whole, [Extent { len: dense, hole: true }]);
    running.export().await;
    world.verify("at the end").await;
}

/// The pool is left in the middle of it, and nothing of the command is done afterwards.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_closed_does_not_wait_for_a_volume_to_become_small() {
    let world = filled(false).await;
    let running = world.try_open(narrow()).await.unwrap();
    let asking = asked_to_shrink(&running, 1).await;
    running.export().await;
    assert!(asking.await.unwrap().unwrap_err().to_string().contains("being closed"));
    world.verify("in the middle").await;
    let running = world.open().await;
    assert_eq!(running.engine.volume(VOLUME).await.unwrap().geometry().size, SIZE);
    running.export().await;
}

/// What is not there costs nothing: neither groups nor time.
#[tokio::test(start_paused = true)]
async fn a_sparse_volume_is_given_up_at_once_whatever_its_size() {
    const HUGE: u64 = 1 << 58;
    let (world, running) = World::create("d0", 12, 96 << 20, 43).await;
    let volume = running.volume(VOLUME, HUGE, 8192, plain()).await;
    let places = [0, 1 << 30, 1 << 40, (1 << 57) + 8192, HUGE - 8192];
    for place in places {
        volume.write(place, data(chunk(1)[..8192].to_vec()), Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
    let before = running.engine.statistics().txgs;
    volume.unmap(8192, (1 << 57) - 8192, Durability::Cached).await.unwrap();
    volume.write_zeroes(1 << 57, 1 << 40, false, Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    assert_eq!(running.engine.statistics().txgs, before + 1);
    let hole = |len| Extent { len, hole: true };
    let block = Extent { len: 8192, hole: false };
    assert_eq!(volume.extents(0, HUGE, 9).await.unwrap(), [block, hole(HUGE - 2 * 8192), block]);
    set_size(&running.engine, 1 << 20).await.unwrap();
    assert_eq!(running.engine.statistics().txgs, before + 2);
    assert_eq!(volume.extents(0, 1 << 20, 9).await.unwrap(), [block, hole((1 << 20) - 8192)]);
    running.export().await;
    world.verify("at the end").await;
}

/// Without feature `async_destroy` all goes in one transaction group, however much that is: the daemon ran out of memory, or its
/// clients out of patience.
#[tokio::test(start_paused = true)]
async fn what_one_group_cannot_free_is_refused_where_no_other_could_go_on() {
    // With room for all blocks twice.
    let world = filled_having(create::features("legacy").unwrap(), 512 << 20, false).await;
    let spacious = world.fork();
    let running = spacious.open().await;
    destroy(&running.engine).await.unwrap();
    running.export().await;
    spacious.verify("destroyed with memory for it").await;

    let running = world.try_open(narrow()).await.unwrap();
    let volume = running.engine.volume(VOLUME).await.unwrap();
    let is_told = |refused: OpError| {
        let refused = refused.to_string();
        assert!(refused.contains("zpool set feature@async_destroy=enabled tank"), "{refused}");
        assert!(refused.contains("zfs set volsize"), "{refused}");
    };
    is_told(destroy(&running.engine).await.unwrap_err());
    check(&*volume, 0..0, "not destroyed").await;
    snapshot(&running.engine).await;
    // Nothing that only the volume has: nothing is freed.
    roll_back(&running.engine).await.unwrap();
    fill(&running, &volume).await;
    is_told(roll_back(&running.engine).await.unwrap_err());
    check(&*volume, 0..0, "not rolled back").await;
    set_size(&running.engine, KEPT).await.unwrap();
    roll_back(&running.engine).await.unwrap();
    assert_eq!(volume.geometry().size, SIZE);
    check(&*volume, 0..0, "rolled back").await;
    destroy_snapshot(&running.engine).await;
    set_size(&running.engine, KEPT).await.unwrap();
    destroy(&running.engine).await.unwrap();
    running.export().await;
    world.verify("destroyed after it was made small").await;
}

/// A volume with blocks that are so far from each other that an indirect block leads to each of them.
async fn scattered(features: &str) -> World {
    const PLACES: u64 = 4500;
    const APART: u64 = 1024 * BLOCK;
    let features = create::features(features).unwrap();
    let made = World::create_having(features, "d0", 9, 256 << 20, 44, Properties::new());
    let (world, running) = made.await;
    let volume = running.volume(VOLUME, PLACES * APART, BLOCK as u32, plain()).await;
    for place in 0..PLACES {
        let block = data(vec![1; BLOCK as usize]);
        volume.write(place * APART, block, Durability::Cached).await.unwrap();
        if place % 128 == 127 {
            running.engine.sync().await.unwrap();
        }
    }
    running.export().await;
    world
}

/// Bytes of what was destroyed and is not free yet.
async fn waiting(running: &Running) -> u64 {
    let view = running.engine.view();
    let dsl = view.dsl().await.unwrap();
    dsl.internal_used("$FREE").await.unwrap()
}

async fn until_all_is_free(running: &Running, patience: Duration) {
    let all = async {
        while waiting(running).await > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(patience, all).await.expect("it ends");
}

/// Blocks that are read weighed no more than those that are freed: of such a volume a group read tens of thousands, for
/// minutes, and nothing was committed meanwhile.
#[tokio::test(start_paused = true)]
async fn what_is_sparse_is_freed_over_several_transaction_groups() {
    let world = scattered("off").await;
    let running = world.open().await;
    let before = running.engine.statistics().txgs;
    destroy(&running.engine).await.unwrap();
    assert!(waiting(&running).await > 0, "all was looked up in one group");
    until_all_is_free(&running, Duration::from_secs(60)).await;
    let groups = running.engine.statistics().txgs - before;
    assert!((4..12).contains(&groups), "{groups} transaction groups");
    running.export().await;
    world.verify("at the end").await;
    check_with_zdb(&world, "at the end");
}

/// The same reads take slow disks far longer than others.
#[tokio::test(start_paused = true)]
async fn what_is_freed_in_a_transaction_group_is_less_where_disks_are_slow() {
    let world = scattered("off").await;
    let running = world.open().await;
    destroy(&running.engine).await.unwrap();
    let moment = Duration::from_millis(500);
    running.disks[0].inject(Fault::anywhere(On::Read, Effect::Delay(moment..=moment)));
    until_all_is_free(&running, Duration::from_secs(3600)).await;
    let longest = running.engine.statistics().longest;
    // Sixteen are read at a time.
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    running.disks[0].heal();
    running.export().await;
    world.verify("at the end").await;
}

/// The last transaction groups did as much of it as any: whoever stopped the daemon waited for that.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_left_leaves_what_was_destroyed_to_whoever_opens_it_next() {
    let world = scattered("off").await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let mut cx = open::open(pool, going_on()).await.unwrap();
    let task = Task {
        is_snapshot: false,
        run: Box::new(|cx| {
            Box::pin(async move {
                dsl::destroy_head(cx, VOLUME).await.unwrap();
                Ok(())
            })
        }),
        done: Box::new(|outcome| outcome.unwrap()),
    };
    let (txg, now) = (cx.txg, cx.now);
    let work = Work { tasks: vec![task], is_closing: true, ..Work::default() };
    cx.sync_txg(txg, now, work).await.unwrap();
    let all = bptree::space(&mut cx.mos).await.unwrap().used;
    let done = cx.sync_txg(txg + 1, now, Work { is_closing: true, ..Work::default() }).await.unwrap();
    assert!(all > 0 && done.more_to_do.is_none());
    assert_eq!(bptree::space(&mut cx.mos).await.unwrap().used, all, "nothing was freed");
    let done = cx.sync_txg(txg + 2, now, Work::default()).await.unwrap();
    assert!(done.more_to_do.is_some());
    assert!(bptree::space(&mut cx.mos).await.unwrap().used < all);
    drop(cx);
    world.verify("in the middle").await;
}

/// That many places are looked up for minutes, however little lies there, and meanwhile nothing is committed.
#[tokio::test(start_paused = true)]
async fn what_one_group_cannot_look_up_is_refused_before_it_is_looked_up() {
    let world = scattered("legacy").await;
    let running = world.open().await;
    let before = running.disks[0].counts().reads;
    let refused = destroy(&running.engine).await.unwrap_err().to_string();
    assert!(refused.contains("zpool set feature@async_destroy=enabled tank"), "{refused}");
    let reads = running.disks[0].counts().reads - before;
    assert!(reads < 4096 + 200, "{reads} reads");
    set_size(&running.engine, CHUNK).await.unwrap();
    destroy(&running.engine).await.unwrap();
    running.export().await;
    world.verify("destroyed after it was made small").await;
}

/// Leaves free no more than two sectors beside each other, so that what is larger goes in pieces. What was taken for that.
async fn crumble(engine: &Engine, bytes: u64) -> Vec<Dva> {
    const SECTOR: u64 = 4096;
    let take = engine.run(move |cx| {
        Box::pin(async move {
            let mut taken: Vec<Dva> = Vec::new();
            for offset in (0..bytes).step_by(3 * SECTOR as usize) {
                let place = Dva { vdev: 0, offset, asize: SECTOR, gang: false };
                // One that is in use does as well, and the last ones are no places.
                if cx.out.alloc.claim(place).await.is_ok() {
                    taken.push(place);
                }
            }
            Ok(taken)
        })
    });
    take.await.unwrap()
}

/// Stores so many blocks of `len` bytes of the volume.
async fn store(running: &Running, volume: &LiveVolume, blocks: u64, len: u64) {
    for number in 0..blocks {
        let block = data(vec![1; len as usize]);
        volume.write(number * len, block, Durability::Cached).await.unwrap();
    }
    running.engine.sync().await.unwrap();
}

/// A volume of so many blocks of `len` bytes, nearly all of which lie in pieces, on a disk of so many bytes; and what is taken
/// of that for nothing.
async fn in_pieces(features: &str, disk: u64, blocks: u64, len: u64) -> (World, Vec<Dva>) {
    let features = create::features(features).unwrap();
    let made = World::create_having(features, "d0", 12, disk, 45, Properties::new());
    let (world, running) = made.await;
    let volume = running.volume(VOLUME, blocks * len, len as u32, plain()).await;
    let mut taken = Vec::new();
    // What was in use while the first were taken is free when the others are.
    for _ in 0..2 {
        taken.extend(crumble(&running.engine, disk).await);
        for _ in 0..4 {
            running.engine.sync().await.unwrap();
        }
    }
    store(&running, &volume, blocks, len).await;
    let stored = running.engine.view().open_volume(VOLUME).await.unwrap();
    let (mut runs, mut gangs) = (stored.data().runs(0, 0..blocks), 0);
    while let Some(run) = runs.next().await.unwrap() {
        gangs += u64::from(matches!(&run, Run::Block { pointer, .. } if pointer.is_gang()));
    }
    assert!(gangs > blocks * 3 / 4, "{gangs} of {blocks} blocks lie in pieces");
    running.export().await;
    (world, taken)
}

/// The pool is whole when what was taken of it for nothing is given back.
async fn ends_whole(world: &World, running: Running, taken: Vec<Dva>) {
    let give = running.engine.run(move |cx| {
        Box::pin(async move {
            taken.iter().for_each(|place| cx.out.alloc.release(*place));
            Ok(())
        })
    });
    give.await.unwrap();
    running.export().await;
    world.verify("at the end").await;
}

/// When the time was over that a group has, all that had been looked up in it but one block was looked up again in the next.
#[tokio::test(start_paused = true)]
async fn what_was_looked_up_is_freed_however_long_that_took() {
    const BLOCKS: u64 = 400;
    let (world, taken) = in_pieces("off", 256 << 20, BLOCKS, 64 << 10).await;
    let running = world.open().await;
    let before = running.engine.statistics().txgs;
    let moment = Duration::from_millis(300);
    running.disks[0].inject(Fault::anywhere(On::Read, Effect::Delay(moment..=moment)));
    destroy(&running.engine).await.unwrap();
    until_all_is_free(&running, Duration::from_secs(3600)).await;
    let groups = running.engine.statistics().txgs - before;
    assert!(groups < BLOCKS / 4, "{groups} transaction groups");
    running.disks[0].heal();
    ends_whole(&world, running, taken).await;
}

/// A block in pieces weighed as one read, however many say where these are, and of those of snapshots hundreds were looked up
/// before anybody looked at that or at the clock.
#[tokio::test(start_paused = true)]
async fn what_snapshots_had_in_pieces_is_freed_over_several_transaction_groups() {
    let (world, taken) = in_pieces("off", 256 << 20, 400, 64 << 10).await;
    let running = world.open().await;
    let volume = running.engine.volume(VOLUME).await.unwrap();
    snapshot(&running.engine).await;
    store(&running, &volume, 400, 64 << 10).await;
    let before = running.engine.statistics().txgs;
    destroy_snapshot(&running.engine).await;
    assert!(waiting(&running).await > 0, "all was looked up in one group");
    until_all_is_free(&running, Duration::from_secs(60)).await;
    let groups = running.engine.statistics().txgs - before;
    assert!((2..8).contains(&groups), "{groups} transaction groups");
    ends_whole(&world, running, taken).await;
}

/// Each block in pieces counted as one that is read to count it, and was not: more than 4,096 of them could not be destroyed, nor
/// rolled back.
#[tokio::test(start_paused = true)]
async fn what_lies_in_pieces_is_not_refused_for_what_counting_it_does_not_read() {
    let (world, taken) = in_pieces("legacy", 512 << 20, 6000, 16 << 10).await;
    let running = world.open().await;
    destroy(&running.engine).await.unwrap();
    ends_whole(&world, running, taken).await;
}
