//! Renaming: an entry moves from one list of names to another, and with it, across parents, the space below it.
//!
//! Facts: docs/format/mos.md §11.

use pool::dsl::name::{self, Part};

use super::{
    OpError,
    account::{self, Delta, Kind},
    create, dataset, dir, encryption,
    find::{self, Head, Snapshot},
    limits::{self, Count},
    promote, space,
};
use crate::{
    BoxFuture, EngineError,
    mos::zap,
    space::Space,
    sync::{Change, Syncer},
};

/// `zfs rename` of a head (with `parents`: -p) or of a snapshot (with `recursive`: -r).
pub fn rename<'a>(
    cx: &'a mut Syncer,
    from: &'a str,
    to: &'a str,
    parents: bool,
    recursive: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        match (find::parse(cx, from)?.1, find::parse(cx, to).map_err(other_pool)?.1) {
            (Part::Head, Part::Head) => rename_head(cx, from, to, parents).await,
            (Part::Snapshot(old), Part::Snapshot(new)) => {
                if from.split('@').next() != to.split('@').next() {
                    return Err(OpError::Refused("snapshots must be part of same dataset".into()));
                }
                rename_snapshot(cx, from, old, new, recursive).await
            }
            _ => Err(OpError::Refused("source and target are of different types".into())),
        }
    })
}

fn other_pool(error: OpError) -> OpError {
    match error {
        OpError::NoDataset => OpError::Refused("datasets must be within same pool".into()),
        error => error,
    }
}

async fn rename_head(cx: &mut Syncer, from: &str, to: &str, parents: bool) -> Result<(), OpError> {
    let head = find::head(cx, from).await?;
    if head.dir == cx.places.root_dir {
        return Err(OpError::Refused("operation does not apply to pools".into()));
    }
    if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
        return Err(OpError::Refused(
            "new dataset name cannot be a descendant of current dataset name".into(),
        ));
    }
    let vacancy = find::vacancy(cx, to, parents).await?;
    encryption::check_move(cx, head.dir, vacancy.above).await?;
    let below = dir::tree(cx, head.dir).await?;
    for (rest, dir) in &below {
        let object = dir::load(&mut cx.mos, *dir).await?.head_dataset;
        let phys = dataset::load(&mut cx.mos, object).await?;
        let names = dataset::snapshots(&mut cx.mos, &phys).await?;
        let longest = names.iter().map(|(name, _)| name.len() + 1).max().unwrap_or(0);
        if to.len() + rest.len() + longest > name::BYTES_MAX {
            return Err(OpError::Refused("name is too long".into()));
        }
    }
    let phys = dir::load(&mut cx.mos, head.dir).await?;
    let accounted = phys.used_bytes.max(phys.reserved);
    let common = promote::common_ancestor(cx, phys.parent, vacancy.above).await?;
    if vacancy.above != common || !vacancy.missing.is_empty() {
        let room = space::available_until(cx, vacancy.above, common).await?;
        if vacancy.above != common && accounted > room {
            return Err(OpError::NoSpace);
        }
    }
    space::need_to_move(cx, phys.parent, vacancy.above, common, accounted).await?;
    let above = create::make_parents(cx, &vacancy).await?;
    let old_name = from.rsplit('/').next().unwrap_or_default();
    let old_map = dir::child_map_of(&mut cx.mos, phys.parent).await?;
    zap::remove(&mut cx.mos, old_map, old_name.into()).await?;
    if above != phys.parent {
        limits::count_tree(cx, &below, above).await?;
        move_below(cx, head, above).await?;
    }
    let map = dir::child_map_of(&mut cx.mos, above).await?;
    zap::set_u64(&mut cx.mos, map, &vacancy.name, head.dir).await?;
    for (_, dir) in below {
        let object = dir::load(&mut cx.mos, dir).await?.head_dataset;
        cx.changes.push(Change::Renamed(object));
    }
    Ok(())
}

/// Hangs a directory below another one, with all that is counted for it.
async fn move_below(cx: &mut Syncer, head: Head, above: u64) -> Result<(), EngineError> {
    let phys = dir::load(&mut cx.mos, head.dir).await?;
    let all = Space {
        used: phys.used_bytes.cast_signed(),
        compressed: phys.compressed_bytes.cast_signed(),
        uncompressed: phys.uncompressed_bytes.cast_signed(),
    };
    let set_aside = phys.reserved.saturating_sub(phys.used_bytes).cast_signed();
    let gone = Delta::default().with(Kind::Child, -all).bytes(Kind::ChildReserved, -set_aside);
    account::dir_change(&mut cx.mos, phys.parent, gone).await?;
    let come = Delta::default().with(Kind::Child, all).bytes(Kind::ChildReserved, set_aside);
    account::dir_change(&mut cx.mos, above, come).await?;
    let datasets = limits::of(cx, head.dir, Count::Datasets).await? + 1;
    let snapshots = limits::of(cx, head.dir, Count::Snapshots).await?;
    for (count, number) in [(Count::Datasets, datasets), (Count::Snapshots, snapshots)] {
        limits::adjust(cx, phys.parent, count, -number).await?;
        limits::adjust(cx, above, count, number).await?;
    }
    dir::update(&mut cx.mos, head.dir, |phys| phys.parent = above).await
}

async fn rename_snapshot(
    cx: &mut Syncer,
    from: &str,
    old: &str,
    new: &str,
    recursive: bool,
) -> Result<(), OpError> {
    let first = find::snapshot(cx, from).await?;
    let dataset_name = from.split('@').next().unwrap_or_default();
    let mut dirs = vec![(String::new(), first.head.dir)];
    if recursive {
        dirs = dir::tree(cx, first.head.dir).await?;
    }
    let mut plan = Vec::new();
    for (rest, dir) in dirs {
        let head = Head { dir, object: dir::load(&mut cx.mos, dir).await?.head_dataset };
        let Some(snapshot) = find::snapshot_of(cx, head, old).await? else { continue };
        if find::snapshot_of(cx, head, new).await?.is_some() {
            return Err(OpError::Exists);
        }
        if dataset_name.len() + rest.len() + 1 + new.len() > name::BYTES_MAX {
            return Err(OpError::Refused("name is too long".into()));
        }
        plan.push(snapshot);
    }
    for Snapshot { head, object, name } in plan {
        let map = dataset::load(&mut cx.mos, head.object).await?.snap_names;
        zap::remove(&mut cx.mos, map, name.as_str().into()).await?;
        zap::set_u64(&mut cx.mos, map, new, object).await?;
        limits::snapshots_changed(cx, head.dir, 0).await?;
        cx.changes.push(Change::Renamed(object));
    }
    Ok(())
}
