//! DSL directories in the MOS: one name of the tree each, with its properties and its share of the space.
//!
//! A directory is the bonus of an object; whoever changes one loads, changes and stores it in one step
//! ([`update`]), because accounting changes directories behind everybody's back. Facts: docs/format/mos.md §6.

use ondisk::{Order, dnode::ObjectType, dsl::DirPhys};
use pool::{Bookmark, dmu::ReadError};

use super::{OpError, dataset};
use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
    mos::zap,
    sync::Syncer,
};

/// A contradiction found at an object of the MOS.
pub(super) fn inconsistent(object: u64, what: &'static str) -> EngineError {
    let at = Bookmark { object, ..Bookmark::default() };
    ReadError::Inconsistent { at, what }.into()
}

/// Reads a directory.
pub(crate) async fn load(mos: &mut MutSet, object: u64) -> Result<DirPhys, EngineError> {
    if mos.dnode(object).await?.bonus_type != ObjectType::DSL_DIR {
        return Err(inconsistent(object, "an object that should be a DSL directory is none"));
    }
    let bonus = mos.bonus(object).await?;
    let at = Bookmark { object, ..Bookmark::default() };
    Ok(DirPhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at))?)
}

/// Changes a directory; what `change` returns is passed on.
pub(super) async fn update<R>(
    mos: &mut MutSet,
    object: u64,
    change: impl FnOnce(&mut DirPhys) -> R + Send,
) -> Result<R, EngineError> {
    let mut phys = load(mos, object).await?;
    let before = phys;
    let result = change(&mut phys);
    if phys != before {
        mos.set_bonus(object, &phys.encode(Order::Little)).await?;
    }
    Ok(result)
}

/// A new directory with empty lists of properties and children; it is entered in its parent's list unless it is
/// the root (`parent` 0).
pub(super) async fn create(cx: &mut Syncer, parent: u64, name: &str) -> Result<u64, EngineError> {
    let mos = &mut cx.mos;
    let props = zap::create(mos, ObjectType::DSL_PROPS, 0).await?;
    let child_map = zap::create(mos, ObjectType::DSL_DIR_CHILD_MAP, 0).await?;
    let phys = DirPhys {
        creation_time: cx.now,
        parent,
        child_map,
        props,
        flags: ondisk::dsl::DIR_USED_BREAKDOWN,
        ..DirPhys::default()
    };
    let bonus = phys.encode(Order::Little);
    let new = NewObject::of(ObjectType::DSL_DIR).bonus(ObjectType::DSL_DIR, &bonus);
    let object = mos.allocate(new).await?;
    if parent != 0 {
        let map = child_map_of(mos, parent).await?;
        zap::set_u64(mos, map, name, object).await?;
    }
    Ok(object)
}

/// The list of children of a directory, made if it has none yet.
pub(super) async fn child_map_of(mos: &mut MutSet, object: u64) -> Result<u64, EngineError> {
    let phys = load(mos, object).await?;
    if phys.child_map != 0 {
        return Ok(phys.child_map);
    }
    let map = zap::create(mos, ObjectType::DSL_DIR_CHILD_MAP, 0).await?;
    update(mos, object, |phys| phys.child_map = map).await?;
    Ok(map)
}

/// The directory called `name` right below.
pub(super) async fn child(mos: &mut MutSet, phys: &DirPhys, name: &str) -> Result<Option<u64>, EngineError> {
    match phys.child_map {
        0 => Ok(None),
        map => zap::get_u64(mos, map, name).await,
    }
}

/// All directories right below, those of the pool itself and of interrupted receives included: (name, object).
pub(super) async fn children(mos: &mut MutSet, phys: &DirPhys) -> Result<Vec<(String, u64)>, EngineError> {
    numbers(mos, phys.child_map).await
}

/// The entries of a ZAP whose values are single numbers, by name; none for object 0.
pub(super) async fn numbers(mos: &mut MutSet, object: u64) -> Result<Vec<(String, u64)>, EngineError> {
    if object == 0 {
        return Ok(Vec::new());
    }
    let entries = zap::entries(mos, object).await?;
    let number = |(key, value): (ondisk::zap::OwnedKey, ondisk::zap::Value)| {
        let name = String::from_utf8(key.name()?.to_vec()).ok()?;
        Some((name, value.as_u64()?))
    };
    let mut numbers: Vec<_> = entries.into_iter().filter_map(number).collect();
    numbers.sort();
    Ok(numbers)
}

/// The `refreservation` of a directory's head, in bytes; 0 for none.
pub(super) async fn refreservation(mos: &mut MutSet, object: u64) -> Result<u64, EngineError> {
    let props = load(mos, object).await?.props;
    Ok(own_number(mos, props, "refreservation").await?.unwrap_or(0))
}

/// A number set in a `props` ZAP itself: a local value, or a received one that nothing overrides.
pub(super) async fn own_number(mos: &mut MutSet, props: u64, name: &str) -> Result<Option<u64>, EngineError> {
    use ondisk::dsl::keys::{SUFFIX_INHERIT, SUFFIX_RECEIVED};
    if props == 0 {
        return Ok(None);
    }
    if let Some(value) = zap::get_u64(mos, props, name).await? {
        return Ok(Some(value));
    }
    if zap::get(mos, props, format!("{name}{SUFFIX_INHERIT}").as_str().into()).await?.is_some() {
        return Ok(None);
    }
    zap::get_u64(mos, props, &format!("{name}{SUFFIX_RECEIVED}")).await
}

/// Txg of the snapshot a directory is a clone of: older blocks are not its own.
pub(super) async fn origin_txg(mos: &mut MutSet, phys: &DirPhys) -> Result<u64, EngineError> {
    match phys.origin {
        0 => Ok(0),
        origin => Ok(dataset::load(mos, origin).await?.creation_txg),
    }
}

/// The directory `path` (without the pool's name; empty for the root) leads to.
pub(super) async fn walk(cx: &mut Syncer, path: &[&str]) -> Result<Option<u64>, EngineError> {
    let mut at = cx.places.root_dir;
    for name in path {
        let phys = load(&mut cx.mos, at).await?;
        match child(&mut cx.mos, &phys, name).await? {
            Some(object) => at = object,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Every directory at and below `object` that has a head and is not the pool's own, parents first:
/// (name below `object` beginning with a slash, or empty; directory).
pub(super) async fn tree(cx: &mut Syncer, object: u64) -> Result<Vec<(String, u64)>, OpError> {
    let mut found = Vec::new();
    let mut todo = vec![(String::new(), object)];
    while let Some((name, object)) = todo.pop() {
        let phys = load(&mut cx.mos, object).await?;
        if name.len() > pool::dsl::name::BYTES_MAX {
            return Err(inconsistent(object, "the directories below it form a loop").into());
        }
        let children = children(&mut cx.mos, &phys).await?;
        let shown = children.into_iter().filter(|(name, _)| !name.starts_with('$')).rev();
        todo.extend(shown.map(|(child, object)| (format!("{name}/{child}"), object)));
        if phys.head_dataset != 0 {
            found.push((name, object));
        }
    }
    Ok(found)
}
