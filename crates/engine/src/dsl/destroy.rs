//! Destroying snapshots and heads.
//!
//! A snapshot goes by whole lists: what only it had is in its successor's deadlist, in the buckets of blocks born
//! after the snapshot before it; those move to the list of blocks to be freed, the rest changes hands. A head goes by
//! handing its tree to the list of destroyed datasets, which is walked later. Facts: docs/format/mos.md §11.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use ondisk::{
    dsl::{DatasetPhys, dataset_flags, keys},
    objset::ObjsetType,
};

use super::{
    OpError,
    account::{self, Delta, Kind},
    attributes, bookmarks, dataset, dir, edit, find, free,
    limits::{self, Count},
    log, properties,
    snapshot::replace_in_chain,
};
use crate::{
    BoxFuture, EngineError,
    mos::{deadlist, zap},
    scan,
    space::Space,
    sync::{Change, Syncer},
};

/// Blocks of deadlists of the old form that one transaction group writes anew: 128 MiB of pointers.
const MOVED_MAX: u64 = 1 << 20;

/// Destroys snapshots, all or none; with `defer` (`-d`) those that are held or have clones go with the last of them.
pub fn destroy_snapshots<'a>(
    cx: &'a mut Syncer,
    names: &'a [String],
    defer: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let (mut now, mut later) = (BTreeMap::new(), BTreeSet::new());
        for name in names {
            let snapshot = find::snapshot(cx, name).await?;
            let phys = dataset::load(&mut cx.mos, snapshot.object).await?;
            if snapshot.head.dir == cx.places.origin_dir {
                return Err(OpError::Busy);
            }
            let holds = dataset::holds(&mut cx.mos, &phys).await?;
            if holds == 0 && phys.children == 1 {
                now.insert(snapshot.object, snapshot.name);
            } else if defer {
                later.insert(snapshot.object);
            } else if holds > 0 {
                let text = format!("it's being held. Run 'zfs holds -r {name}' to see holders.");
                return Err(OpError::Refused(text));
            } else {
                return Err(OpError::Refused("snapshot has dependent clones".into()));
            }
        }
        let order: Vec<u64> = now.keys().rev().copied().collect();
        check_lists(cx, &order).await?;
        for object in later {
            dataset::update(&mut cx.mos, object, |phys| phys.flags |= dataset_flags::DEFER_DESTROY).await?;
        }
        let mut keys = Vec::with_capacity(now.len());
        // The newest first: the one before each is still there then, and the list after it has next to nothing to forget. With the
        // oldest gone each would be emptied of nearly all.
        for (object, name) in now.into_iter().rev() {
            keys.extend(destroy_snapshot(cx, object, &name).await?);
        }
        // Together: each list is read once for all of them.
        forget_keys(cx, &keys).await?;
        Ok(())
    })
}

/// Refuses to destroy these snapshots, in this order, if that writes too much of deadlists of the old form anew. Changes nothing.
async fn check_lists(cx: &mut Syncer, order: &[u64]) -> Result<(), OpError> {
    let mut moved = 0_u64;
    // Lists as long as they are by then, and what comes after each snapshot that is gone.
    let (mut lengths, mut after) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
    for object in order {
        let phys = dataset::load(&mut cx.mos, *object).await?;
        let mut next = phys.next_snap;
        while let Some(later) = after.get(&next) {
            next = *later;
        }
        if next == *object {
            return Err(dir::inconsistent(next, "the chain of snapshots forms a loop").into());
        }
        after.insert(*object, next);
        let list = dataset::load(&mut cx.mos, next).await?.deadlist;
        for list in [phys.deadlist, list] {
            if let Entry::Vacant(place) = lengths.entry(list) {
                place.insert(deadlist::moved_singly(&mut cx.mos, list).await?);
            }
        }
        let length = |list: u64| lengths.get(&list).copied().unwrap_or(0);
        let (own, others) = (length(phys.deadlist), length(list));
        // To move some blocks out of the next one takes all of it off, and puts the rest back.
        moved = moved.saturating_add(others.saturating_mul(2)).saturating_add(own);
        if deadlist::is_old(&mut cx.mos, list).await? {
            lengths.insert(list, others.saturating_add(own));
        }
    }
    if moved <= MOVED_MAX {
        return Ok(());
    }
    Err(OpError::Refused(
        "the deadlists of the snapshots that would go are of a pool version before 26, and too long for one transaction group: \
         let fewer go at once, or do it with OpenZFS"
            .into(),
    ))
}

/// Refuses what takes so many holds and clones from each of these snapshots, in this order, if those that
/// [go with them](destroy_if_deferred) are too much for one transaction group. Changes nothing.
pub(super) async fn check_deferred(
    cx: &mut Syncer,
    snapshots: &[u64],
    holds: usize,
    clones: u64,
) -> Result<(), OpError> {
    let mut order = Vec::new();
    for object in snapshots {
        let phys = dataset::load(&mut cx.mos, *object).await?;
        let due = phys.flags & dataset_flags::DEFER_DESTROY != 0 && phys.children == 1 + clones;
        if due && dataset::holds(&mut cx.mos, &phys).await? == holds {
            order.push(*object);
        }
    }
    check_lists(cx, &order).await
}

/// Whether it is a snapshot that was to go with its last hold and clone, and has none any more.
pub(super) async fn is_due(cx: &mut Syncer, object: u64) -> Result<bool, EngineError> {
    let phys = dataset::load(&mut cx.mos, object).await?;
    let due = phys.flags & dataset_flags::DEFER_DESTROY != 0 && phys.children == 1;
    Ok(due && dataset::holds(&mut cx.mos, &phys).await? == 0)
}

/// Destroys a snapshot that was to go with its last hold and clone, if that is now.
pub(super) async fn destroy_if_deferred(cx: &mut Syncer, object: u64) -> Result<(), EngineError> {
    if is_due(cx, object).await? {
        let phys = dataset::load(&mut cx.mos, object).await?;
        let head = dir::load(&mut cx.mos, phys.dir).await?.head_dataset;
        let head = dataset::load(&mut cx.mos, head).await?;
        let names = dataset::snapshots(&mut cx.mos, &head).await?;
        let Some((name, _)) = names.into_iter().find(|(_, snapshot)| *snapshot == object) else {
            return Err(dir::inconsistent(object, "a snapshot has no name"));
        };
        let key = destroy_snapshot(cx, object, &name).await?;
        forget_keys(cx, key.as_slice()).await?;
    }
    Ok(())
}

/// A transaction group that deadlists tell blocks apart at for the sake of a snapshot of this directory.
#[derive(Clone, Copy, Debug)]
struct DeadKey {
    dir: u64,
    txg: u64,
}

/// Destroys snapshot `object` of this name, which has no clones and no holds. What its heads' deadlists need not tell apart any
/// more is for [`forget_keys`]; until then they only have finer buckets than they need.
async fn destroy_snapshot(cx: &mut Syncer, object: u64, name: &str) -> Result<Option<DeadKey>, EngineError> {
    let traits = cx.out.traits();
    let deflate = cx.out.alloc.deflate().clone();
    let phys = dataset::load(&mut cx.mos, object).await?;
    let next = phys.next_snap;
    let next_list = dataset::load(&mut cx.mos, next).await?.deadlist;
    let next_is_snapshot = dataset::load(&mut cx.mos, next).await?.is_snapshot();
    for head in heads_after(cx, phys.dir, phys.creation_txg).await? {
        bookmarks::forget_space(cx, head).await?;
    }

    if phys.prev_snap != 0 {
        let previous = dataset::load(&mut cx.mos, phys.prev_snap).await?;
        if previous.next_snap == object {
            // Blocks that this snapshot shared with the one before, and the next does not have.
            let shared = deadlist::space_range(
                &mut cx.mos,
                next_list,
                &deflate,
                previous.prev_snap_txg,
                phys.prev_snap_txg,
            )
            .await?;
            dataset::update(&mut cx.mos, phys.prev_snap, |phys| {
                phys.unique_bytes = phys.unique_bytes.saturating_add_signed(shared.used);
            })
            .await?;
        }
        replace_in_chain(cx, phys.prev_snap, object, next).await?;
    }
    dataset::update(&mut cx.mos, next, |next| {
        next.prev_snap = phys.prev_snap;
        next.prev_snap_txg = phys.prev_snap_txg;
    })
    .await?;

    let target = cx.places.free_bpobj;
    // The buckets that go told blocks apart that no list can hold any more.
    let since = phys.prev_snap_txg;
    let freed = deadlist::move_to_bpobj(&mut cx.mos, &traits, next_list, &deflate, since, target).await?;
    account::dir_add(&mut cx.mos, phys.dir, Kind::Snap, -freed).await?;
    account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, freed).await?;
    if since > 0 {
        // Lists made here once lacked it where `$ORIGIN` has one of the old form.
        deadlist::add_key(&mut cx.mos, &traits, next_list, 0).await?;
    }
    deadlist::merge(&mut cx.mos, &traits, next_list, &deflate, phys.deadlist).await?;

    let mut key = None;
    if next_is_snapshot {
        let after = dataset::load(&mut cx.mos, next).await?.next_snap;
        let after_list = dataset::load(&mut cx.mos, after).await?.deadlist;
        let inherited =
            deadlist::space_range(&mut cx.mos, after_list, &deflate, phys.prev_snap_txg, phys.creation_txg)
                .await?;
        dataset::update(&mut cx.mos, next, |next| {
            next.unique_bytes = next.unique_bytes.saturating_add_signed(inherited.used);
        })
        .await?;
        if !bookmarks::is_marked(cx, phys.dir, phys.creation_txg).await? {
            key = Some(DeadKey { dir: phys.dir, txg: phys.creation_txg });
        }
    } else {
        let head = dataset::load(&mut cx.mos, next).await?;
        let unique = own_space(cx, &head).await?.used;
        let unique = u64::try_from(unique).unwrap_or(0);
        account::set_head_unique(&mut cx.mos, next, unique).await?;
    }

    let head = dir::load(&mut cx.mos, phys.dir).await?.head_dataset;
    let names = dataset::load(&mut cx.mos, head).await?.snap_names;
    zap::remove(&mut cx.mos, names, name.into()).await?;
    for list in [phys.props, phys.user_refs, phys.next_clones] {
        if list != 0 {
            cx.mos.free(list).await?;
        }
    }
    attributes::free_object(&mut cx.mos, object).await?;
    limits::snapshots_changed(cx, phys.dir, -1).await?;
    cx.changes.push(Change::Destroyed(object));
    Ok(key)
}

/// What a head has that its previous snapshot has not: what it references less what of the snapshot is left in it.
pub(super) async fn own_space(cx: &mut Syncer, head: &DatasetPhys) -> Result<Space, EngineError> {
    let dead = deadlist::header(&mut cx.mos, head.deadlist).await?;
    let dead = Space {
        used: dead.used.cast_signed(),
        compressed: dead.compressed_bytes.cast_signed(),
        uncompressed: dead.uncompressed_bytes.cast_signed(),
    };
    let before = match head.prev_snap {
        0 => Space::ZERO,
        previous => account::referenced(&dataset::load(&mut cx.mos, previous).await?),
    };
    Ok(account::referenced(head) - (before - dead))
}

/// Removes a snapshot's txg from the deadlist of its head, and of the heads of all clones made after it.
pub(super) async fn forget_key(cx: &mut Syncer, dir: u64, txg: u64) -> Result<(), EngineError> {
    forget_keys(cx, &[DeadKey { dir, txg }]).await
}

/// The same for many.
async fn forget_keys(cx: &mut Syncer, keys: &[DeadKey]) -> Result<(), EngineError> {
    let traits = cx.out.traits();
    let mut by_head: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for key in keys {
        for head in heads_after(cx, key.dir, key.txg).await? {
            by_head.entry(head).or_default().insert(key.txg);
        }
    }
    for (head, txgs) in by_head {
        let list = dataset::load(&mut cx.mos, head).await?.deadlist;
        deadlist::remove_keys(&mut cx.mos, &traits, list, &txgs).await?;
    }
    Ok(())
}

/// Heads whose chain leads through a snapshot of `dir` made in `txg`: its own, and those of clones made after it.
async fn heads_after(cx: &mut Syncer, dir: u64, txg: u64) -> Result<Vec<u64>, EngineError> {
    let phys = dir::load(&mut cx.mos, dir).await?;
    let mut heads = vec![phys.head_dataset];
    let mut seen = BTreeSet::new();
    let mut todo = vec![dir];
    while let Some(dir) = todo.pop() {
        if !seen.insert(dir) {
            continue;
        }
        let phys = dir::load(&mut cx.mos, dir).await?;
        for clone in dataset::clones_of(&mut cx.mos, &phys).await? {
            let clone_dir = dataset::load(&mut cx.mos, clone).await?.dir;
            let clone_phys = dir::load(&mut cx.mos, clone_dir).await?;
            if dir::origin_txg(&mut cx.mos, &clone_phys).await? > txg {
                heads.push(clone);
                todo.push(clone_dir);
            }
        }
    }
    Ok(heads)
}

/// Destroys one head without snapshots and children. Its blocks are freed later where the pool can do that.
pub fn destroy_head<'a>(cx: &'a mut Syncer, name: &'a str) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let head = find::head(cx, name).await?;
        if head.dir == cx.places.root_dir {
            return Err(OpError::Refused("operation does not apply to pools".into()));
        }
        let dir_phys = dir::load(&mut cx.mos, head.dir).await?;
        let phys = dataset::load(&mut cx.mos, head.object).await?;
        let children = dir::children(&mut cx.mos, &dir_phys).await?;
        if !children.is_empty() || !dataset::snapshots(&mut cx.mos, &phys).await?.is_empty() {
            let kind = dataset::kind(cx, head.object, &phys).await?;
            let word = if kind == ObjsetType::Volume { "volume" } else { "filesystem" };
            return Err(OpError::Refused(format!("{word} has children")));
        }
        if attributes::get(&mut cx.mos, head.dir, keys::CRYPTO_KEY).await?.is_some() {
            return Err(OpError::Refused("encrypted datasets can only be read".into()));
        }
        free::check(cx, phys.bp, phys.prev_snap_txg).await?;
        if phys.prev_snap != 0 {
            check_deferred(cx, &[phys.prev_snap], 0, 1).await?;
        }
        let last = name.rsplit('/').next().unwrap_or_default();
        destroy(cx, head, &phys, last).await?;
        if phys.prev_snap != 0 {
            destroy_if_deferred(cx, phys.prev_snap).await?;
        }
        Ok(())
    })
}

async fn destroy(
    cx: &mut Syncer,
    head: find::Head,
    phys: &DatasetPhys,
    name: &str,
) -> Result<(), EngineError> {
    // First what may be unreadable for itself: nothing has changed yet.
    let set = log::of_what_goes(cx, head.object, phys.bp).await?;
    properties::forget_bootfs(cx, head.object).await?;
    if phys.prev_snap != 0 {
        let origin = dataset::load(&mut cx.mos, phys.prev_snap).await?;
        let above = dir::load(&mut cx.mos, origin.dir).await?.head_dataset;
        scan::hand_over(cx, head.object, above, phys.prev_snap_txg).await?;
    }
    scan::forget(cx, head.object).await?;
    let traits = cx.out.traits();
    let dir = head.dir;
    let refreservation = dir::refreservation(&mut cx.mos, dir).await?;
    let set_aside = account::unused_refreservation(refreservation, phys.unique_bytes);
    account::dir_change(&mut cx.mos, dir, Delta::default().bytes(Kind::RefReserved, -set_aside)).await?;
    account::set_reservation(&mut cx.mos, dir, 0).await?;
    edit::drop_livelist(cx, dir).await?;
    if let Some(set) = &set {
        log::give_up(cx, head.object, set).await?;
    }
    if let Some(log) = cx.logs.take(head.object) {
        log.end().await;
        log.free(&mut cx.out.alloc)?;
    }
    let own = own_space(cx, phys).await?;
    free::give_back(cx, phys.bp, phys.prev_snap_txg, own, dir).await?;
    // Nothing is left to be counted; what rounding of other software left over must not stay above.
    let rest = dir::load(&mut cx.mos, dir).await?;
    let rest = Space {
        used: rest.used_bytes.cast_signed(),
        compressed: rest.compressed_bytes.cast_signed(),
        uncompressed: rest.uncompressed_bytes.cast_signed(),
    };
    account::dir_add(&mut cx.mos, dir, Kind::Head, -rest).await?;

    if phys.prev_snap != 0 {
        dataset::remove_next_clone(&mut cx.mos, phys.prev_snap, head.object).await?;
        let origin_dir = dataset::update(&mut cx.mos, phys.prev_snap, |origin| {
            origin.children = origin.children.saturating_sub(1);
            origin.dir
        })
        .await?;
        dataset::remove_clone(&mut cx.mos, origin_dir, head.object).await?;
    }
    deadlist::destroy(&mut cx.mos, &traits, phys.deadlist).await?;
    bookmarks::forget_all(cx, head.object).await?;
    for list in [phys.snap_names, phys.props, phys.user_refs, phys.next_clones] {
        if list != 0 {
            cx.mos.free(list).await?;
        }
    }
    attributes::free_object(&mut cx.mos, head.object).await?;

    let dir_phys = dir::load(&mut cx.mos, dir).await?;
    for (_, permissions) in dir::numbers(&mut cx.mos, dir_phys.delegation).await? {
        cx.mos.free(permissions).await?;
    }
    for list in [dir_phys.delegation, dir_phys.props, dir_phys.child_map, dir_phys.clones] {
        if list != 0 {
            cx.mos.free(list).await?;
        }
    }
    limits::adjust(cx, dir_phys.parent, Count::Datasets, -1).await?;
    attributes::free_object(&mut cx.mos, dir).await?;
    let map = dir::child_map_of(&mut cx.mos, dir_phys.parent).await?;
    zap::remove(&mut cx.mos, map, name.into()).await?;
    cx.shrinking.remove(&head.object);
    cx.changes.push(Change::Destroyed(head.object));
    Ok(())
}
