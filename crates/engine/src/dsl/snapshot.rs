//! Taking snapshots.
//!
//! The new dataset slides in between the head and the snapshot before it and inherits the head's deadlist; the head
//! begins a new, empty one. No block is touched. What the head has was synced before in this transaction group, so a
//! snapshot of txg T has every block born up to T, and nothing may write to the head in T any more.
//! Facts: docs/format/mos.md §11.

use std::collections::BTreeSet;

use ondisk::dsl::DatasetPhys;
use pool::dsl::name::Part;

use super::{
    OpError, Properties, account, attributes, bookmarks, dataset, dir, encryption,
    find::{self, Head},
    limits, properties, space,
};
use crate::{
    BoxFuture, EngineError,
    mos::{deadlist, zap},
    sync::Syncer,
};

/// `zfs snapshot`: all of them at once. Full names with `@`.
///
/// [`OpError::Again`] if one of the heads already has a snapshot of this transaction group.
pub fn snapshot<'a>(
    cx: &'a mut Syncer,
    names: &'a [String],
    properties: &'a Properties,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        if properties.keys().any(|name| !name.contains(':')) {
            return Err(OpError::Refused("this property can not be modified for snapshots".into()));
        }
        properties::check_possible(cx, properties).await?;
        let mut plan: Vec<(Head, String)> = Vec::with_capacity(names.len());
        let mut seen = BTreeSet::new();
        let mut set_aside = Vec::new();
        for full in names {
            let (path, Part::Snapshot(name)) = find::parse(cx, full)? else {
                return Err(OpError::Refused(format!("'{full}' is not a name of a snapshot")));
            };
            let Some(dir) = dir::walk(cx, &path).await? else { return Err(OpError::NoDataset) };
            let object = dir::load(&mut cx.mos, dir).await?.head_dataset;
            if object == 0 {
                return Err(OpError::NoDataset);
            }
            let head = Head { dir, object };
            if !seen.insert(object) {
                return Err(OpError::Refused("multiple snapshots of same fs not allowed".into()));
            }
            if find::snapshot_of(cx, head, name).await?.is_some() {
                return Err(OpError::Exists);
            }
            let phys = dataset::load(&mut cx.mos, object).await?;
            if phys.is_inconsistent() {
                return Err(OpError::Busy);
            }
            if phys.prev_snap_txg >= cx.txg {
                return Err(OpError::Again);
            }
            // What the head has of its own becomes the snapshot's, and its reservation has to be set aside anew.
            let refreservation = dir::refreservation(&mut cx.mos, dir).await?;
            set_aside.push((dir, phys.unique_bytes.min(refreservation)));
            plan.push((head, name.to_owned()));
        }
        // In a full pool what is left is for freeing.
        if space::available_below(cx, cx.places.root_dir).await? == 0 {
            return Err(OpError::NoSpace);
        }
        space::Draft::default().set_aside(cx, &set_aside).await?;
        for (head, name) in plan {
            take(cx, head, &name, properties).await?;
        }
        Ok(())
    })
}

/// Takes one snapshot.
async fn take(cx: &mut Syncer, head: Head, name: &str, properties: &Properties) -> Result<(), EngineError> {
    let phys = dataset::load(&mut cx.mos, head.object).await?;
    let snapshot = DatasetPhys {
        prev_snap: phys.prev_snap,
        prev_snap_txg: phys.prev_snap_txg,
        next_snap: head.object,
        children: 1,
        deadlist: phys.deadlist,
        referenced_bytes: phys.referenced_bytes,
        compressed_bytes: phys.compressed_bytes,
        uncompressed_bytes: phys.uncompressed_bytes,
        flags: phys.flags,
        bp: phys.bp,
        ..dataset::fresh(cx, head.dir)
    };
    bookmarks::forget_space(cx, head.object).await?;
    let object = dataset::allocate(&mut cx.mos, &snapshot).await?;
    attributes::copy_features(&mut cx.mos, head.object, object).await?;
    encryption::identify_vectors(cx, head.dir, object).await?;
    if phys.prev_snap != 0 {
        replace_in_chain(cx, phys.prev_snap, head.object, object).await?;
    }
    let mut keys = dataset::deadlist_keys(&mut cx.mos, &phys).await?;
    keys.insert(phys.prev_snap_txg);
    let keys: Vec<u64> = keys.into_iter().collect();
    let traits = cx.out.traits();
    let deadlist = deadlist::create(&mut cx.mos, &traits, &keys).await?;
    let txg = cx.txg;
    dataset::update(&mut cx.mos, head.object, |phys| {
        phys.deadlist = deadlist;
        phys.prev_snap = object;
        phys.prev_snap_txg = txg;
    })
    .await?;
    account::set_head_unique(&mut cx.mos, head.object, 0).await?;
    zap::set_u64(&mut cx.mos, phys.snap_names, name, object).await?;
    properties::set_on_snapshot(cx, object, properties).await?;
    limits::snapshots_changed(cx, head.dir, 1).await
}

/// Puts `new` in the place that `old` has after snapshot `before`: as its successor, or, where `old` is the first of
/// a clone's chain, in the list of what was cloned from it.
pub(super) async fn replace_in_chain(
    cx: &mut Syncer,
    before: u64,
    old: u64,
    new: u64,
) -> Result<(), EngineError> {
    if dataset::load(&mut cx.mos, before).await?.next_snap == old {
        return dataset::update(&mut cx.mos, before, |phys| phys.next_snap = new).await;
    }
    dataset::remove_next_clone(&mut cx.mos, before, old).await?;
    dataset::add_next_clone(&mut cx.mos, before, new).await
}
