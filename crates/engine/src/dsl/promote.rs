//! Promoting a clone: it takes over the snapshots it descends from, and what it was cloned from becomes its clone.
//!
//! ```text
//!   before   O' ◀─ a ◀─ b ◀─ S ◀─ D         after   O' ◀─ a ◀─ b ◀─ S ◀─ C
//!                            ▲─── C                                ▲─── D
//! ```
//!
//! `a`, `b`, `S` move from directory D to directory C with their names, the bookmarks of that time, and all space that is in
//! them and not in O'. Facts: docs/format/mos.md §11.

use std::collections::BTreeSet;

use ondisk::dsl::{BookmarkPhys, dataset_flags};

use super::{
    OpError,
    account::{self, Kind},
    bookmarks, dataset, dir, edit, find,
    limits::{self, Count},
    space,
};
use crate::{
    BoxFuture, EngineError,
    mos::{deadlist, zap},
    scan,
    space::Space,
    sync::{Change, Syncer},
};

/// What is going to move, found before anything is changed.
struct Plan {
    /// Directory and head of the clone.
    clone: find::Head,
    /// Directory and head it was cloned from.
    from: find::Head,
    /// The snapshot between them.
    origin: u64,
    /// Snapshots to move, newest first, with their names.
    snapshots: Vec<(String, u64)>,
    /// Bookmarks to move, with their names.
    bookmarks: Vec<(String, BookmarkPhys)>,
    /// What the oldest of them was itself cloned from; 0 for nothing.
    old_origin: u64,
    /// First dataset of the clone's chain.
    first: u64,
    /// Space that moves.
    space: Space,
}

/// `zfs promote`.
pub fn promote<'a>(cx: &'a mut Syncer, name: &'a str) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let plan = plan(cx, name).await?;
        let txg = dataset::load(&mut cx.mos, plan.origin).await?.creation_txg;
        scan::hand_over(cx, plan.from.object, plan.clone.object, txg).await?;
        move_space(cx, &plan).await?;
        relink(cx, &plan).await?;
        move_names(cx, &plan).await?;
        bookmarks::hand_over(cx, plan.from.object, plan.clone.object, &plan.bookmarks).await?;
        split_space(cx, &plan).await?;
        for head in [plan.clone, plan.from] {
            edit::drop_livelist(cx, head.dir).await?;
            bookmarks::forget_space(cx, head.object).await?;
        }
        Ok(())
    })
}

async fn plan(cx: &mut Syncer, clone_name: &str) -> Result<Plan, OpError> {
    let clone = find::head(cx, clone_name).await?;
    let clone_dir = dir::load(&mut cx.mos, clone.dir).await?;
    let origin = clone_dir.origin;
    if origin == 0 || origin == cx.places.origin_snapshot {
        return Err(OpError::Refused("not a cloned filesystem".into()));
    }
    let clone_phys = dataset::load(&mut cx.mos, clone.object).await?;
    let origin_phys = dataset::load(&mut cx.mos, origin).await?;
    if clone_phys.flags & dataset_flags::NO_PROMOTE != 0 {
        return Err(OpError::Refused("dataset is not to be promoted".into()));
    }
    // With snapshots of its own OpenZFS could not take it away.
    if clone_phys.is_inconsistent() {
        return Err(OpError::Refused("it was received in part only".into()));
    }
    if origin_phys.bp.uses_crypt() {
        return Err(OpError::Refused("encrypted datasets can only be read".into()));
    }
    let from_dir = dir::load(&mut cx.mos, origin_phys.dir).await?;
    let from = find::Head { dir: origin_phys.dir, object: from_dir.head_dataset };
    let from_phys = dataset::load(&mut cx.mos, from.object).await?;
    let names = dataset::snapshots(&mut cx.mos, &from_phys).await?;
    let taken = dataset::snapshots(&mut cx.mos, &clone_phys).await?;

    let mut snapshots = Vec::new();
    let mut dead = Space::ZERO;
    let (mut at, mut seen) = (origin, BTreeSet::new());
    let old_origin = loop {
        if at == 0 {
            break 0;
        }
        let phys = dataset::load(&mut cx.mos, at).await?;
        if phys.dir != from.dir {
            break at;
        }
        if !seen.insert(at) {
            return Err(dir::inconsistent(at, "the chain of snapshots forms a loop").into());
        }
        let Some((name, _)) = names.iter().find(|(_, object)| *object == at) else {
            return Err(dir::inconsistent(at, "a snapshot has no name").into());
        };
        if clone_name.len() + 1 + name.len() > pool::dsl::name::BYTES_MAX {
            return Err(OpError::Refused("name is too long".into()));
        }
        if taken.iter().any(|(other, _)| clone_phys.is_same_name(other, name)) {
            let parent = find_name(cx, from.dir).await?;
            let text = format!("conflicting snapshot '{name}' from parent '{parent}@{name}'");
            return Err(OpError::Refused(text));
        }
        if phys.prev_snap != 0 {
            let list = deadlist::header(&mut cx.mos, phys.deadlist).await?;
            dead += Space {
                used: list.used.cast_signed(),
                compressed: list.compressed_bytes.cast_signed(),
                uncompressed: list.uncompressed_bytes.cast_signed(),
            };
        }
        snapshots.push((name.clone(), at));
        at = phys.prev_snap;
    };
    let bookmarks = bookmarks_to_move(cx, clone_name, clone, from, origin_phys.creation_txg).await?;
    let before = match old_origin {
        0 => Space::ZERO,
        object => account::referenced(&dataset::load(&mut cx.mos, object).await?),
    };
    let space = account::referenced(&origin_phys) + dead - before;

    // The clone's own chain: back to the dataset that follows the origin.
    let mut first = clone.object;
    loop {
        let previous = dataset::load(&mut cx.mos, first).await?.prev_snap;
        if previous == origin {
            break;
        }
        if previous == 0 || !seen.insert(previous) {
            return Err(dir::inconsistent(first, "a clone's chain does not lead to its origin").into());
        }
        first = previous;
    }

    let common = common_ancestor(cx, from.dir, clone.dir).await?;
    let room = space::available_until(cx, clone.dir, common).await?;
    if space.used > 0 && space.used.cast_unsigned() > room {
        return Err(OpError::NoSpace);
    }
    space::need_to_move(cx, from.dir, clone.dir, common, space.used.max(0).cast_unsigned()).await?;
    Ok(Plan { clone, from, origin, snapshots, bookmarks, old_origin, first, space })
}

/// The bookmarks of `from` that go to the clone, with the snapshots until transaction group `txg` that they are of: what goes
/// on from them is the clone's. Refused if the clone cannot have one of them.
async fn bookmarks_to_move(
    cx: &mut Syncer,
    clone_name: &str,
    clone: find::Head,
    from: find::Head,
    txg: u64,
) -> Result<Vec<(String, BookmarkPhys)>, OpError> {
    let mut moved = bookmarks::all(cx, from.object).await?;
    moved.retain(|(_, bookmark)| bookmark.creation_txg <= txg);
    let taken = bookmarks::all(cx, clone.object).await?;
    let clone_phys = dataset::load(&mut cx.mos, clone.object).await?;
    for (name, _) in &moved {
        if clone_name.len() + 1 + name.len() > pool::dsl::name::BYTES_MAX {
            return Err(OpError::Refused("name is too long".into()));
        }
        if bookmarks::named(&taken, &clone_phys, name).is_some() {
            let parent = find_name(cx, from.dir).await?;
            let text = format!("conflicting bookmark '{name}' from parent '{parent}#{name}'");
            return Err(OpError::Refused(text));
        }
    }
    Ok(moved)
}

/// Full name of a directory.
async fn find_name(cx: &mut Syncer, dir: u64) -> Result<String, EngineError> {
    let mut parts = Vec::new();
    let mut at = dir;
    while at != cx.places.root_dir && at != 0 && parts.len() < pool::dsl::name::BYTES_MAX {
        let parent = dir::load(&mut cx.mos, at).await?.parent;
        let above = dir::load(&mut cx.mos, parent).await?;
        let children = dir::children(&mut cx.mos, &above).await?;
        parts.extend(children.into_iter().find(|(_, object)| *object == at).map(|(name, _)| name));
        at = parent;
    }
    parts.push(cx.name.clone());
    parts.reverse();
    Ok(parts.join("/"))
}

/// The deepest directory that is above (or is) both.
pub(super) async fn common_ancestor(cx: &mut Syncer, one: u64, other: u64) -> Result<u64, EngineError> {
    let one = ancestors(cx, one).await?;
    let other = ancestors(cx, other).await?;
    Ok(one.into_iter().find(|dir| other.contains(dir)).unwrap_or(0))
}

/// The directory and all above it.
async fn ancestors(cx: &mut Syncer, dir: u64) -> Result<Vec<u64>, EngineError> {
    let mut path = Vec::new();
    let mut at = dir;
    while at != 0 {
        path.push(at);
        at = dir::load(&mut cx.mos, at).await?.parent;
        if path.len() > pool::dsl::name::BYTES_MAX {
            return Err(dir::inconsistent(dir, "the directories above it form a loop"));
        }
    }
    Ok(path)
}

/// Moves the space of the snapshots between the directories, all of it counted as the snapshots' for now.
async fn move_space(cx: &mut Syncer, plan: &Plan) -> Result<(), EngineError> {
    account::dir_add(&mut cx.mos, plan.clone.dir, Kind::Snap, plan.space).await?;
    account::dir_add(&mut cx.mos, plan.from.dir, Kind::Head, -plan.space).await
}

/// Says anew, for both directories, what of their space is the head's and what the snapshots'.
async fn split_space(cx: &mut Syncer, plan: &Plan) -> Result<(), EngineError> {
    let deflate = cx.out.alloc.deflate().clone();
    for head in [plan.clone, plan.from] {
        let phys = dir::load(&mut cx.mos, head.dir).await?;
        let origin_txg = dir::origin_txg(&mut cx.mos, &phys).await?;
        let head_phys = dataset::load(&mut cx.mos, head.object).await?;
        let mut lists = vec![head_phys.deadlist];
        for (_, snapshot) in dataset::snapshots(&mut cx.mos, &head_phys).await? {
            lists.push(dataset::load(&mut cx.mos, snapshot).await?.deadlist);
        }
        let mut in_snapshots = 0;
        for list in lists {
            in_snapshots +=
                deadlist::space_range(&mut cx.mos, list, &deflate, origin_txg, u64::MAX).await?.used;
        }
        // The parts are kept as unsigned numbers, and either may have gone below zero on the way.
        dir::update(&mut cx.mos, head.dir, |phys| {
            let [_, _, child, child_reserved, refreserved] = phys.used_breakdown;
            let own = phys.used_bytes.saturating_sub(child + child_reserved + refreserved);
            let in_snapshots = in_snapshots.cast_unsigned().min(own);
            if phys.flags & ondisk::dsl::DIR_USED_BREAKDOWN != 0 {
                phys.used_breakdown = [own - in_snapshots, in_snapshots, child, child_reserved, refreserved];
            }
        })
        .await?;
    }
    // What the origin has alone is now what the clone's side gave up.
    let origin = dataset::load(&mut cx.mos, plan.origin).await?;
    let list = dataset::load(&mut cx.mos, plan.first).await?.deadlist;
    let unique =
        deadlist::space_range(&mut cx.mos, list, &deflate, origin.prev_snap_txg, u64::MAX).await?.used;
    dataset::update(&mut cx.mos, plan.origin, |phys| phys.unique_bytes = unique.cast_unsigned()).await
}

/// Successors, origins and lists of clones.
async fn relink(cx: &mut Syncer, plan: &Plan) -> Result<(), EngineError> {
    let old_next = dataset::load(&mut cx.mos, plan.origin).await?.next_snap;
    dataset::remove_next_clone(&mut cx.mos, plan.origin, plan.first).await?;
    dataset::add_next_clone(&mut cx.mos, plan.origin, old_next).await?;
    dataset::update(&mut cx.mos, plan.origin, |phys| phys.next_snap = plan.first).await?;

    // Other clones of the snapshots that move follow them.
    let moved: BTreeSet<u64> = plan.snapshots.iter().map(|(_, object)| *object).collect();
    let from = dir::load(&mut cx.mos, plan.from.dir).await?;
    for head in dataset::clones_of(&mut cx.mos, &from).await? {
        let clone_dir = dataset::load(&mut cx.mos, head).await?.dir;
        if moved.contains(&dir::load(&mut cx.mos, clone_dir).await?.origin) {
            dataset::remove_clone(&mut cx.mos, plan.from.dir, head).await?;
            if head != plan.clone.object {
                dataset::add_clone(&mut cx.mos, plan.clone.dir, head).await?;
            }
        }
    }
    if plan.old_origin != 0 {
        let above = dataset::load(&mut cx.mos, plan.old_origin).await?.dir;
        dataset::remove_clone(&mut cx.mos, above, plan.from.object).await?;
        dataset::add_clone(&mut cx.mos, above, plan.clone.object).await?;
    }
    dataset::add_clone(&mut cx.mos, plan.clone.dir, plan.from.object).await?;
    dir::update(&mut cx.mos, plan.clone.dir, |phys| phys.origin = plan.old_origin).await?;
    dir::update(&mut cx.mos, plan.from.dir, |phys| phys.origin = plan.origin).await
}

/// The snapshots' directory and names.
async fn move_names(cx: &mut Syncer, plan: &Plan) -> Result<(), EngineError> {
    let from = dataset::load(&mut cx.mos, plan.from.object).await?.snap_names;
    let to = dataset::load(&mut cx.mos, plan.clone.object).await?.snap_names;
    for (name, object) in &plan.snapshots {
        zap::remove(&mut cx.mos, from, name.as_str().into()).await?;
        zap::set_u64(&mut cx.mos, to, name, *object).await?;
        dataset::update(&mut cx.mos, *object, |phys| phys.dir = plan.clone.dir).await?;
        cx.changes.push(Change::Renamed(*object));
    }
    let count = plan.snapshots.len() as i64;
    limits::adjust(cx, plan.from.dir, Count::Snapshots, -count).await?;
    limits::adjust(cx, plan.clone.dir, Count::Snapshots, count).await
}
