//! DSL datasets in the MOS: one state of the data each, live or frozen, and the chain they form.
//!
//! ```text
//!   head ── prev_snap ─▶ newest ── prev_snap ─▶ … ─▶ oldest ── prev_snap ─▶ origin (another directory's snapshot)
//!        ◀─ next_snap ──        ◀─ next_snap ──                 ◀─ next_clones ──
//! ```
//!
//! As with directories, changes load and store in one step ([`update`]). Facts: docs/format/mos.md §6.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    dnode::ObjectType,
    dsl::{DatasetPhys, dataset_flags},
    objset::ObjsetType,
};
use pool::{
    Bookmark,
    dmu::{ObjectSet, ReadError},
};
use rand::RngCore;

use super::{attributes, dir};
use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
    mos::{deadlist, zap},
    sync::Syncer,
};

/// Reads a dataset.
pub(crate) async fn load(mos: &mut MutSet, object: u64) -> Result<DatasetPhys, EngineError> {
    if mos.dnode(object).await?.bonus_type != ObjectType::DSL_DATASET {
        return Err(dir::inconsistent(object, "an object that should be a dataset is none"));
    }
    let bonus = mos.bonus(object).await?;
    let at = Bookmark { object, ..Bookmark::default() };
    Ok(DatasetPhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at))?)
}

/// Changes a dataset; what `change` returns is passed on.
pub(super) async fn update<R>(
    mos: &mut MutSet,
    object: u64,
    change: impl FnOnce(&mut DatasetPhys) -> R + Send,
) -> Result<R, EngineError> {
    let mut phys = load(mos, object).await?;
    let before = phys;
    let result = change(&mut phys);
    if phys != before {
        mos.set_bonus(object, &phys.encode(Order::Little)).await?;
    }
    Ok(result)
}

/// A new dataset object.
pub(super) async fn allocate(mos: &mut MutSet, phys: &DatasetPhys) -> Result<u64, EngineError> {
    let bonus = phys.encode(Order::Little);
    mos.allocate(NewObject::of(ObjectType::DSL_DATASET).bonus(ObjectType::DSL_DATASET, &bonus)).await
}

/// A fresh dataset record: new guids, nothing in it.
pub(super) fn fresh(cx: &mut Syncer, dir: u64) -> DatasetPhys {
    let guid = |cx: &mut Syncer| cx.random.next_u64().max(1);
    DatasetPhys {
        dir,
        prev_snap: 0,
        prev_snap_txg: 0,
        next_snap: 0,
        snap_names: 0,
        children: 0,
        creation_time: cx.now,
        creation_txg: cx.txg,
        deadlist: 0,
        referenced_bytes: 0,
        compressed_bytes: 0,
        uncompressed_bytes: 0,
        unique_bytes: 0,
        fsid_guid: (guid(cx) >> 8).max(1),
        guid: guid(cx),
        flags: dataset_flags::UNIQUE_ACCURATE,
        bp: ondisk::blkptr::BlkPtr::EMPTY,
        next_clones: 0,
        props: 0,
        user_refs: 0,
        pad: [0; 5],
    }
}

/// Makes the head of directory `dir`, as a clone of snapshot `origin` (ordinary datasets: `$ORIGIN@$ORIGIN`).
/// Its content is the origin's.
pub(super) async fn create_head(cx: &mut Syncer, dir: u64, origin: u64) -> Result<u64, EngineError> {
    let from = load(&mut cx.mos, origin).await?;
    let from_head = dir::load(&mut cx.mos, from.dir).await?.head_dataset;
    let from_head = load(&mut cx.mos, from_head).await?;
    let keys = deadlist_keys(&mut cx.mos, &from_head).await?;
    let keys: Vec<u64> = keys.range(..from.creation_txg).copied().collect();
    let traits = cx.out.traits();
    let deadlist = deadlist::create(&mut cx.mos, &traits, &keys).await?;
    let snap_names =
        zap::create(&mut cx.mos, ObjectType::DSL_DATASET_SNAP_MAP, ondisk::zap::NORM_UPPER).await?;
    let phys = DatasetPhys {
        prev_snap: origin,
        prev_snap_txg: from.creation_txg,
        snap_names,
        deadlist,
        referenced_bytes: from.referenced_bytes,
        compressed_bytes: from.compressed_bytes,
        uncompressed_bytes: from.uncompressed_bytes,
        flags: dataset_flags::UNIQUE_ACCURATE | (from.flags & dataset_flags::CASE_INSENSITIVE),
        bp: from.bp,
        ..fresh(cx, dir)
    };
    let head = allocate(&mut cx.mos, &phys).await?;
    attributes::copy_features(&mut cx.mos, origin, head).await?;
    add_next_clone(&mut cx.mos, origin, head).await?;
    update(&mut cx.mos, origin, |phys| phys.children += 1).await?;
    add_clone(&mut cx.mos, from.dir, head).await?;
    dir::update(&mut cx.mos, dir, |phys| {
        phys.origin = origin;
        phys.head_dataset = head;
    })
    .await?;
    Ok(head)
}

/// The keys of a head's deadlist, for what continues it. There are none in one of the old form: they are those of the chain then.
pub(super) async fn deadlist_keys(
    mos: &mut MutSet,
    head: &DatasetPhys,
) -> Result<BTreeSet<u64>, EngineError> {
    // Every list has it: of the snapshot before all others.
    let mut keys = BTreeSet::from([0]);
    if !deadlist::is_old(mos, head.deadlist).await? {
        keys.extend(deadlist::buckets(mos, head.deadlist).await?.into_iter().map(|(key, _)| key));
        return Ok(keys);
    }
    let (mut at, mut txg) = (head.prev_snap, head.prev_snap_txg);
    while at != 0 {
        let phys = load(mos, at).await?;
        // Each is older than the one after it, so the walk ends.
        if phys.prev_snap_txg >= txg {
            return Err(dir::inconsistent(at, "the chain of snapshots forms a loop"));
        }
        keys.insert(phys.prev_snap_txg);
        (at, txg) = (phys.prev_snap, phys.prev_snap_txg);
    }
    Ok(keys)
}

/// Enters `clone`, the first dataset of a clone's chain, in the list of snapshot `origin`.
pub(super) async fn add_next_clone(mos: &mut MutSet, origin: u64, clone: u64) -> Result<(), EngineError> {
    let mut list = load(mos, origin).await?.next_clones;
    if list == 0 {
        list = zap::create(mos, ObjectType::NEXT_CLONES, 0).await?;
        update(mos, origin, |phys| phys.next_clones = list).await?;
    }
    zap::set_int(mos, list, clone).await
}

/// Removes `clone` from the list of snapshot `origin`.
pub(super) async fn remove_next_clone(mos: &mut MutSet, origin: u64, clone: u64) -> Result<(), EngineError> {
    match load(mos, origin).await?.next_clones {
        // Clones made by very old software are not listed.
        0 => Ok(()),
        list => zap::remove_int(mos, list, clone).await.map(drop),
    }
}

/// Enters `head` in the list of heads that were cloned from snapshots of `dir`.
pub(super) async fn add_clone(mos: &mut MutSet, dir: u64, head: u64) -> Result<(), EngineError> {
    let mut list = dir::load(mos, dir).await?.clones;
    if list == 0 {
        list = zap::create(mos, DSL_CLONES, 0).await?;
        dir::update(mos, dir, |phys| phys.clones = list).await?;
    }
    zap::set_int(mos, list, head).await
}

/// Removes `head` from that list.
pub(super) async fn remove_clone(mos: &mut MutSet, dir: u64, head: u64) -> Result<(), EngineError> {
    match dir::load(mos, dir).await?.clones {
        0 => Ok(()),
        list => zap::remove_int(mos, list, head).await.map(drop),
    }
}

/// Heads cloned from snapshots of the directory `phys`.
pub(super) async fn clones_of(
    mos: &mut MutSet,
    phys: &ondisk::dsl::DirPhys,
) -> Result<Vec<u64>, EngineError> {
    Ok(dir::numbers(mos, phys.clones).await?.into_iter().map(|(_, head)| head).collect())
}

/// Object type of the list of clones of a directory.
const DSL_CLONES: ObjectType = ObjectType(52);

/// The snapshots of a head: (name, object), by name.
pub(super) async fn snapshots(
    mos: &mut MutSet,
    head: &DatasetPhys,
) -> Result<Vec<(String, u64)>, EngineError> {
    dir::numbers(mos, head.snap_names).await
}

/// Number of tags that hold a snapshot.
pub(super) async fn holds(mos: &mut MutSet, phys: &DatasetPhys) -> Result<usize, EngineError> {
    Ok(dir::numbers(mos, phys.user_refs).await?.len())
}

/// What a dataset holds.
pub(super) async fn kind(cx: &Syncer, object: u64, phys: &DatasetPhys) -> Result<ObjsetType, EngineError> {
    if phys.bp.is_hole() {
        return Ok(ObjsetType::Other);
    }
    Ok(ObjectSet::open(cx.out.source(), object, phys.bp).await?.kind())
}
