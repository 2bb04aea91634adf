//! A destroy that other software began and we finish.
//!
//! It may have stopped at any block that is no pointer block: at a data block, as we do, or at a block of dnodes of which
//! all that its dnodes lead to is free already. The note it left is then object 0, which looks like the beginning. Whoever
//! takes it for that frees everything below a second time, and what is there by now belongs to others.

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
use ondisk::{blkptr::BlkPtr, bpobj::BptreeEntry, dnode::ObjectType, objset::ObjsetType};
use pool::dmu::{Object, ObjectSet, Run};

use crate::{
    datasets::complaints,
    support::{Running, World},
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
        let mut runs = object.runs(level, 0..object.above(object.max_block_id(), level) + 1);
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

/// Lets a destroy have stopped at block `blkid` of dnodes, and finishes it a few blocks at a time.
async fn stop_and_finish(running: &Running, objset: u64, blkid: u64) {
    let planted =
        running.engine.run(false, |cx| Box::pin(async move { plant(cx).await.map_err(dsl::OpError::from) }));
    let (root, space) = planted.await.unwrap();
    let finished = running.engine.run(false, move |cx| {
        Box::pin(async move {
            let freed = free_before(cx, root, blkid).await?;
            let entry = BptreeEntry { objset: root, birth_txg: 0, resume: [objset, 0, 0, blkid] };
            bptree::push(&mut cx.mos, &entry, space - freed).await?;
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space - freed).await?;
            while dsl::free_some(cx, 5).await? {}
            Ok(())
        })
    });
    finished.await.unwrap();
}

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
            let dir = tempfile::tempdir().unwrap();
            world.save(dir.path());
            let wrong = complaints(dir.path());
            assert!(wrong.is_empty(), "stopped at {objset:x}, {blkid}:\n{}", wrong.join("\n"));
        }
    }
    running.export().await;
    world.verify("at the end").await;
}
