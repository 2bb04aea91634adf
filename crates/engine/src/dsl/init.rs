//! The datasets of a new pool: its root file system, and the three directories that are the pool's own.
//!
//! ```text
//!   root ─┬─ $MOS      what the meta object set takes
//!         ├─ $FREE     what waits to be freed
//!         └─ $ORIGIN   head and snapshot $ORIGIN@$ORIGIN: empty, and the formal origin of every dataset
//! ```
//!
//! Facts: docs/format/mos.md §2, §11.

use ondisk::{
    dnode::ObjectType,
    dsl::keys::{DIR_FREE, DIR_MOS, DIR_ORIGIN},
    objset::ObjsetType,
    zap::NORM_UPPER,
};

use super::{OpError, Properties, dataset, dir, edit::Edit, filesystem, find::Head, properties};
use crate::{
    BoxFuture, EngineError,
    mos::{DIRECTORY, bpobj, deadlist, zap},
    sync::{Places, Syncer},
};

/// What a pool is made with counts as made in txg 1, however late the first txg is.
const CREATION_TXG: u64 = 1;
/// Blocks of the list of blocks to be freed, in bytes.
const FREE_BLOCK_BYTES: u32 = 128 << 10;
/// Blocks of the list of deferred frees, in bytes.
const DEFERRED_BLOCK_BYTES: u32 = 16 << 10;

/// Everything a new pool needs below its directory: root, `$MOS`, `$FREE`, `$ORIGIN`, root file system, free_bpobj,
/// sync_bplist. `properties` are those of the root dataset. The directory (object 1) and the feature lists exist.
pub fn init<'a>(cx: &'a mut Syncer, properties: &'a Properties) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        properties::check_possible(cx, properties).await?;
        let root_dir = dir::create(cx, 0, "").await?;
        zap::set_u64(&mut cx.mos, DIRECTORY, "root_dataset", root_dir).await?;
        let mos_dir = dir::create(cx, root_dir, DIR_MOS).await?;
        let free_dir = dir::create(cx, root_dir, DIR_FREE).await?;
        let origin_dir = dir::create(cx, root_dir, DIR_ORIGIN).await?;
        let traits = cx.out.traits();
        let free_bpobj = bpobj::create(&mut cx.mos, &traits, FREE_BLOCK_BYTES).await?;
        zap::set_u64(&mut cx.mos, DIRECTORY, "free_bpobj", free_bpobj).await?;
        let sync_bplist = bpobj::create(&mut cx.mos, &traits, DEFERRED_BLOCK_BYTES).await?;
        zap::set_u64(&mut cx.mos, DIRECTORY, "sync_bplist", sync_bplist).await?;
        let origin_snapshot = init_origin(cx, origin_dir).await?;
        let config = cx.places.config;
        cx.places = Places {
            root_dir,
            mos_dir,
            free_dir,
            origin_dir,
            origin_snapshot,
            free_bpobj,
            sync_bplist,
            config,
        };

        let object = dataset::create_head(cx, root_dir, origin_snapshot).await?;
        dataset::update(&mut cx.mos, object, |phys| phys.creation_txg = CREATION_TXG).await?;
        let head = Head { dir: root_dir, object };
        properties::apply(cx, head, properties).await?;
        let mut edit = Edit::create(cx, object, ObjsetType::FileSystem);
        filesystem::init(&mut edit.set, cx.txg, cx.now).await?;
        edit.commit(cx).await?;
        Ok(())
    })
}

/// The head of `$ORIGIN` and its snapshot, which is returned.
async fn init_origin(cx: &mut Syncer, dir: u64) -> Result<u64, EngineError> {
    let traits = cx.out.traits();
    let mut snapshot = dataset::fresh(cx, dir);
    snapshot.creation_txg = CREATION_TXG;
    snapshot.children = 1;
    snapshot.deadlist = deadlist::create(&mut cx.mos, &traits, &[]).await?;
    let mut head = dataset::fresh(cx, dir);
    head.creation_txg = CREATION_TXG;
    head.prev_snap_txg = CREATION_TXG;
    head.deadlist = deadlist::create(&mut cx.mos, &traits, &[0]).await?;
    head.snap_names = zap::create(&mut cx.mos, ObjectType::DSL_DATASET_SNAP_MAP, NORM_UPPER).await?;
    let head_object = dataset::allocate(&mut cx.mos, &head).await?;
    snapshot.next_snap = head_object;
    let object = dataset::allocate(&mut cx.mos, &snapshot).await?;
    dataset::update(&mut cx.mos, head_object, |phys| phys.prev_snap = object).await?;
    zap::set_u64(&mut cx.mos, head.snap_names, DIR_ORIGIN, object).await?;
    dir::update(&mut cx.mos, dir, |phys| phys.head_dataset = head_object).await?;
    Ok(object)
}
