//! A destroy that other software began and we finish, and one that cannot go on for a while.
//!
//! It may have stopped at any block that is no pointer block: at a data block, as we do, or at a block of dnodes of which
//! all that its dnodes lead to is free already. The note it left is then object 0, which looks like the beginning. Whoever
//! takes it for that frees everything below a second time, and what is there by now belongs to others.

use std::{sync::Arc, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    EngineError,
    dmu::{Account, MutSet, NewObject},
    dsl::{
        self,
        account::{self, Kind},
    },
    mos::bptree,
    policy::SetPolicy,
    space::{Deflate, Space},
    sync::Syncer,
};
use ondisk::{blkptr::BlkPtr, bpobj::BptreeEntry, dnode::ObjectType, label::DATA_OFFSET, objset::ObjsetType};
use pool::{
    Bookmark,
    dmu::{BlockSource, Object, ObjectSet, Run},
    traverse::{LEVEL_OBJSET, Scope, Visit, expand},
    verify,
};

use crate::{
    datasets::complaints,
    support::{Running, World, quiet, start_caching, start_named},
};

const BLOCK: u32 = 4096;
/// Blocks of dnodes: 32 each.
const OBJECTS: u64 = 100;

/// What a new tree takes.
struct Born<'a>(&'a Deflate, Space);

impl Account for Born<'_> {
    fn born(&mut self, bp: &BlkPtr) {
        self.1 += self.0.space(bp);
    }
    fn killed(&mut self, _: &BlkPtr) {}
}

/// A tree of 100 objects of one to seven blocks, which nothing in the pool points to.
async fn plant(cx: &mut Syncer) -> Result<(BlkPtr, Space), EngineError> {
    let mut set = MutSet::create(cx.out.source(), 7, ObjsetType::FileSystem);
    for number in 1..OBJECTS {
        set.claim(number, NewObject::of(ObjectType::PLAIN_FILE).blocks(BLOCK)).await?;
        for blkid in 0..=number % 7 {
            let words = (0..u64::from(BLOCK) / 8).flat_map(|i| {
                (i ^ number << 32 ^ blkid << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
            });
            set.put_block(number, blkid, words.collect()).await?;
        }
    }
    store(cx, set).await
}

/// A tree of files without data.
async fn plant_empty(cx: &mut Syncer, files: u64) -> Result<(BlkPtr, Space), EngineError> {
    let mut set = MutSet::create(cx.out.source(), 7, ObjsetType::FileSystem);
    for number in 1..=files {
        set.claim(number, NewObject::of(ObjectType::PLAIN_FILE)).await?;
    }
    store(cx, set).await
}

async fn store(cx: &mut Syncer, mut set: MutSet) -> Result<(BlkPtr, Space), EngineError> {
    let deflate = cx.out.alloc.deflate().clone();
    let mut born = Born(&deflate, Space::ZERO);
    let policy = SetPolicy::mos(&cx.out.traits());
    let root = set.sync(&mut cx.out, &policy, &deflate, &mut born).await?;
    Ok((root, born.1))
}

/// Frees all blocks of an object, of data and of pointers.
async fn free_object(cx: &mut Syncer, object: &Object) -> Result<Space, EngineError> {
    let mut freed = Space::ZERO;
    for level in 0..object.levels() {
        let mut runs = object.runs(level, 0..object.fanout().ancestor(object.max_block_id(), level) + 1);
        while let Some(run) = runs.next().await? {
            if let Run::Block { pointer, .. } = run {
                freed += cx.out.alloc.deflate().space(&pointer);
                cx.out.free(&pointer).await?;
            }
        }
    }
    Ok(freed)
}

/// Frees what lies before block `blkid` of dnodes, and all that its dnodes lead to.
async fn free_before(cx: &mut Syncer, root: BlkPtr, blkid: u64) -> Result<Space, EngineError> {
    let set = ObjectSet::open(cx.out.source(), 7, root).await?;
    let mut freed = Space::ZERO;
    for number in 1..((blkid + 1) * 32).min(OBJECTS) {
        freed += free_object(cx, &set.object(number).await?).await?;
    }
    let mut runs = set.meta().runs(0, 0..blkid);
    while let Some(run) = runs.next().await? {
        if let Run::Block { pointer, .. } = run {
            freed += cx.out.alloc.deflate().space(&pointer);
            cx.out.free(&pointer).await?;
        }
    }
    Ok(freed)
}

async fn planted(running: &Running) -> (BlkPtr, Space) {
    let plant = running.engine.run(|cx| Box::pin(async move { plant(cx).await.map_err(dsl::OpError::from) }));
    plant.await.unwrap()
}

/// What a walk over the blocks of the pool meets of a tree that is freed up to there.
async fn met(source: &Arc<dyn BlockSource>, deflate: &Deflate, root: BlkPtr, resume: Bookmark) -> Space {
    let objset = resume.objset;
    let scope = Scope { objset, root, after: 0, is_snapshot: true, is_destroyed: true, resume: Some(resume) };
    let at = Bookmark { objset, object: 0, level: LEVEL_OBJSET, blkid: 0 };
    let (mut stack, mut met) = (vec![Visit { pointer: root, at, scope: 0 }], Space::ZERO);
    while let Some(visit) = stack.pop() {
        met += deflate.space(&visit.pointer);
        if visit.has_children() {
            let content = source.read(&visit.pointer, visit.at).await.unwrap();
            stack.extend(expand(&visit, &scope, &content).visits);
        }
    }
    met
}

/// Lets a destroy have stopped at block `blkid` of dnodes, and finishes it a few blocks at a time.
async fn stop_and_finish(running: &Running, objset: u64, blkid: u64) {
    let (root, space) = planted(running).await;
    let finished = running.engine.run(move |cx| {
        Box::pin(async move {
            let freed = free_before(cx, root, blkid).await?;
            let (source, deflate) = (cx.out.source(), cx.out.alloc.deflate().clone());
            let left = met(&source, &deflate, root, Bookmark { objset, object: 0, level: 0, blkid }).await;
            assert_eq!(left, space - freed, "a walk meets what is left after {objset:x}, {blkid}");
            let entry = BptreeEntry { objset: root, birth_txg: 0, resume: [objset, 0, 0, blkid] };
            bptree::push(&mut cx.mos, &entry, space - freed).await?;
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space - freed).await?;
            while dsl::free_some(cx, 5).await? {}
            Ok(())
        })
    });
    finished.await.unwrap();
}

/// A walk took the note for the beginning as well: who verified the pool heard of lost blocks, and of blocks that belong to
/// two, in what was free already.
#[tokio::test(start_paused = true)]
async fn a_destroy_that_stopped_at_a_block_of_dnodes_goes_on_behind_it() {
    let (world, running) = World::create("d0", 12, 96 << 20, 31).await;
    for objset in [u64::MAX, 0, 60] {
        for blkid in 0..=OBJECTS / 32 {
            // All zeroes is the beginning.
            if objset == 0 && blkid == 0 {
                continue;
            }
            stop_and_finish(&running, objset, blkid).await;
            judge(&world, &format!("stopped at {objset:x}, {blkid}"));
        }
    }
    running.export().await;
    world.verify("at the end").await;
}

/// Only blocks of data counted, and files without any were all freed in one transaction group: of some millions it read
/// gigabytes of dnodes.
#[tokio::test(start_paused = true)]
async fn files_without_data_are_freed_in_portions_and_each_once() {
    let (world, running) = World::create("d0", 12, 96 << 20, 34).await;
    let planted = running
        .engine
        .run(|cx| Box::pin(async move { plant_empty(cx, 3000).await.map_err(dsl::OpError::from) }));
    let (root, space) = planted.await.unwrap();
    let freed = running.engine.run(move |cx| {
        Box::pin(async move {
            let entry = BptreeEntry { objset: root, birth_txg: 0, resume: [0; 4] };
            bptree::push(&mut cx.mos, &entry, space).await?;
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space).await?;
            let mut rounds = 0;
            while dsl::free_some(cx, 10).await? {
                rounds += 1;
                assert!(rounds < 1000, "it never ends");
            }
            Ok::<u32, dsl::OpError>(rounds)
        })
    });
    let rounds = freed.await.unwrap();
    // 94 blocks of dnodes, each of which is read and freed.
    assert!((15..50).contains(&rounds), "{rounds} rounds");
    judge(&world, "freed in portions");
    running.export().await;
    world.verify("at the end").await;
}

/// What zdb says of the pool as it is on its devices now.
fn judge(world: &World, what: &str) {
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let wrong = complaints(dir.path());
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// The pool, and nothing that was read is kept.
async fn opened(world: &World) -> Running {
    let disk = Arc::new(FaultDisk::new(Arc::clone(&world.media[0]) as Arc<dyn Disk>, 1));
    let engine = start_caching(vec![Arc::clone(&disk) as Arc<dyn Disk>], 1, quiet(), 0).await.unwrap();
    Running { engine, disks: vec![disk] }
}

/// All blocks of a tree that lead to others.
async fn leading(running: &Running, root: BlkPtr) -> Vec<BlkPtr> {
    let scope = Scope { objset: 0, root, after: 0, is_snapshot: true, is_destroyed: true, resume: None };
    let at = Bookmark { level: LEVEL_OBJSET, ..Bookmark::default() };
    let mut stack = vec![Visit { pointer: root, at, scope: 0 }];
    let mut found = Vec::new();
    let view = running.engine.view();
    while let Some(visit) = stack.pop() {
        if visit.has_children() {
            let content = view.io().read_block(&visit.pointer, visit.at).await.unwrap();
            stack.extend(expand(&visit, &scope, &content).visits);
            found.push(visit.pointer);
        }
    }
    found
}

/// From now on the disk gives no copy of this block.
fn refuse(running: &Running, block: &BlkPtr) {
    for dva in block.dvas() {
        let start = DATA_OFFSET + dva.offset;
        let error = Effect::Error(std::io::ErrorKind::Other);
        running.disks[0].inject(Fault::new(On::Read, start..start + dva.asize, error));
    }
}

/// Whether destroyed datasets wait to be freed.
async fn is_waiting(running: &Running) -> bool {
    running.engine.view().directory().get_u64("bptree_obj").await.unwrap().is_some()
}

/// One refused read was enough: what lay below the block stayed allocated for good, in a pool without a fault.
#[tokio::test(start_paused = true)]
async fn blocks_that_cannot_be_read_for_a_while_hold_up_a_destroy_and_cost_no_space() {
    let (world, running) = World::create("d0", 12, 96 << 20, 32).await;
    running.export().await;
    let running = opened(&world).await;
    let mut number = 0;
    loop {
        let (root, space) = planted(&running).await;
        let mut refused = leading(&running, root).await;
        let all = refused.len();
        let chosen = refused.swap_remove(number.min(all - 1));
        refuse(&running, &chosen);
        let begun = running.engine.run(move |cx| {
            Box::pin(async move {
                let entry = BptreeEntry { objset: root, birth_txg: 0, resume: [0; 4] };
                bptree::push(&mut cx.mos, &entry, space).await?;
                account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space).await?;
                // In parts, so that it does not get there from the beginning.
                for _ in 0..400 {
                    dsl::free_some(cx, 5).await?;
                }
                Ok(())
            })
        });
        begun.await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(is_waiting(&running).await, "{number} of {all}: level {}", chosen.level());
        running.disks[0].heal();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!is_waiting(&running).await, "{number} of {all}: level {}", chosen.level());
        if number + 1 >= all {
            break;
        }
        // The first ones are those high up.
        number += if number < 8 { 1 } else { 7 };
    }
    judge(&world, "freed in portions");
    running.export().await;
    world.verify("at the end").await;
}

/// All other destroyed datasets wait behind it.
#[tokio::test(start_paused = true)]
async fn a_block_that_a_device_refuses_for_good_holds_up_a_destroy_for_no_longer_than_an_hour() {
    let (world, running) = World::create("d0", 12, 96 << 20, 33).await;
    running.export().await;
    let running = opened(&world).await;
    let (root, space) = planted(&running).await;
    refuse(&running, &root);
    let begun = running.engine.run(move |cx| {
        Box::pin(async move {
            let entry = BptreeEntry { objset: root, birth_txg: 0, resume: [0; 4] };
            bptree::push(&mut cx.mos, &entry, space).await?;
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space).await?;
            Ok(())
        })
    });
    begun.await.unwrap();
    let before = running.engine.statistics().txgs;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(is_waiting(&running).await);
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert!(!is_waiting(&running).await);
    let groups = running.engine.statistics().txgs - before;
    assert!(groups < 40, "{groups} transaction groups");
    running.export().await;
}

/// A pool of OpenZFS's with a volume of blocks in pieces, and the pointer of one of these.
async fn in_pieces() -> Option<(Running, BlkPtr)> {
    let image = std::fs::read(&fixtures::try_pool("gang")?.images()[0]).unwrap();
    let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::from_bytes(&image).named("/disks/d0")), 1));
    let engine = start_named("pgang", vec![Arc::clone(&disk) as Arc<dyn Disk>], 1, quiet(), 0).await.unwrap();
    let volume = engine.view().open_volume("pgang/v").await.unwrap();
    let data = volume.data();
    let mut runs = data.runs(0, 0..128);
    let mut found = Vec::new();
    while let Some(run) = runs.next().await.unwrap() {
        if let Run::Block { pointer, .. } = run {
            found.push(pointer);
        }
    }
    let gang = found.into_iter().filter(BlkPtr::is_gang).nth(3).unwrap();
    Some((Running { engine, disks: vec![disk] }, gang))
}

async fn destroy(running: &Running, name: &'static str) {
    running.engine.run(move |cx| Box::pin(async move { dsl::destroy_head(cx, name).await })).await.unwrap();
}

/// One refused read of what says where its parts are was the end of the pool.
#[tokio::test(start_paused = true)]
async fn a_block_in_pieces_whose_header_cannot_be_read_is_freed_later_or_lost_and_the_pool_goes_on() {
    for is_for_good in [false, true] {
        let Some((running, gang)) = in_pieces().await else { return };
        for dva in gang.dvas() {
            let start = DATA_OFFSET + dva.offset;
            let error = Effect::Error(std::io::ErrorKind::Other);
            running.disks[0].inject(Fault::new(On::Read, start..start + 512, error));
        }
        destroy(&running, "pgang/v").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(is_waiting(&running).await, "for good: {is_for_good}");
        if !is_for_good {
            running.disks[0].heal();
        }
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!is_waiting(&running).await, "for good: {is_for_good}");
        running.disks[0].heal();
        destroy(&running, "pgang/w").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!is_waiting(&running).await);
        let report = verify::verify(&running.engine.view(), &Arc::default()).await;
        let lost = if is_for_good { gang.asize() } else { 0 };
        assert_eq!((report.leaked(), report.problems_total), (lost, 0), "{report:#?}");
        running.export().await;
    }
}
