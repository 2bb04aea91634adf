//! Holds: tags that keep a snapshot from being destroyed.
//!
//! Those that OpenZFS's programs place for as long as they run (`zfs send`, `zfs diff`) are in a list of the pool besides, so
//! that whoever imports it releases what a program left that ended with its host. None of ours places such.
//! Facts: docs/format/mos.md §1, §11.

use std::collections::BTreeSet;

use ondisk::dnode::ObjectType;

use super::{OpError, dataset, destroy, dir, find};
use crate::{
    BoxFuture, EngineError,
    mos::{DIRECTORY, zap},
    sync::Syncer,
};

/// Object type of a snapshot's list of holds.
const USER_REFS: ObjectType = ObjectType(41);
/// Directory entry of the list of temporary ones.
const TEMPORARY: &str = "tmp_userrefs";

/// `zfs hold`: all of them or none.
pub fn hold<'a>(cx: &'a mut Syncer, tag: &'a str, names: &'a [String]) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        if tag.len() >= pool::dsl::name::BYTES_MAX {
            return Err(OpError::Refused("tag too long".into()));
        }
        if tag.is_empty() {
            return Err(OpError::Refused("tag is empty".into()));
        }
        let mut objects = Vec::with_capacity(names.len());
        for name in names {
            let object = find::snapshot(cx, name).await?.object;
            let list = dataset::load(&mut cx.mos, object).await?.user_refs;
            let exists = list != 0 && zap::get(&mut cx.mos, list, tag.into()).await?.is_some();
            if exists || objects.contains(&object) {
                return Err(OpError::Refused("tag already exists on this dataset".into()));
            }
            objects.push(object);
        }
        for object in objects {
            let mut list = dataset::load(&mut cx.mos, object).await?.user_refs;
            if list == 0 {
                list = zap::create(&mut cx.mos, USER_REFS, 0).await?;
                dataset::update(&mut cx.mos, object, |phys| phys.user_refs = list).await?;
            }
            zap::set_u64(&mut cx.mos, list, tag, cx.now).await?;
        }
        Ok(())
    })
}

/// `zfs release`: all of them or none. A snapshot whose destruction waited for it is destroyed.
pub fn release<'a>(
    cx: &'a mut Syncer,
    tag: &'a str,
    names: &'a [String],
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let mut objects = Vec::with_capacity(names.len());
        for name in names {
            let object = find::snapshot(cx, name).await?.object;
            let list = dataset::load(&mut cx.mos, object).await?.user_refs;
            let exists = list != 0 && zap::get(&mut cx.mos, list, tag.into()).await?.is_some();
            if !exists || objects.iter().any(|(other, _)| *other == object) {
                return Err(OpError::Refused("no such tag on this dataset".into()));
            }
            objects.push((object, list));
        }
        let snapshots: Vec<u64> = objects.iter().map(|(object, _)| *object).collect();
        destroy::check_deferred(cx, &snapshots, 1, 0).await?;
        for (object, list) in objects {
            zap::remove(&mut cx.mos, list, tag.into()).await?;
            destroy::destroy_if_deferred(cx, object).await?;
        }
        Ok(())
    })
}

/// Releases the temporary holds of programs that ended with the host that had the pool; for the first transaction group of an
/// import. Returns the snapshots whose destruction waited for that, for [`destroy_deferred`]. If the pool goes away before that,
/// no later import thinks of them: they stay until somebody destroys them.
pub(crate) fn release_temporary(cx: &mut Syncer) -> BoxFuture<'_, Vec<u64>> {
    Box::pin(async move {
        let mut due = Vec::new();
        // Nothing depends on it: the pool is opened whatever is in the way.
        if let Err(error) = release_listed(cx, &mut due).await {
            tracing::warn!(pool = cx.name, %error, "temporary holds of another host are not all released");
        }
        due
    })
}

async fn release_listed(cx: &mut Syncer, due: &mut Vec<u64>) -> Result<(), EngineError> {
    let Some(list) = zap::get_u64(&mut cx.mos, DIRECTORY, TEMPORARY).await? else { return Ok(()) };
    let mut released = BTreeSet::new();
    for (entry, _) in dir::numbers(&mut cx.mos, list).await? {
        // Each for itself: one that cannot be read stays in the list, for the next import to try.
        match release_one(cx, list, &entry).await {
            Ok(object) => released.extend(object),
            Err(error) => {
                tracing::warn!(pool = cx.name, entry, %error, "a temporary hold of another host is not released");
            }
        }
    }
    if !released.is_empty() {
        let snapshots = released.len();
        tracing::info!(pool = cx.name, snapshots, "released what programs of another host held");
    }
    for object in released {
        match destroy::is_due(cx, object).await {
            Ok(true) => due.push(object),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(pool = cx.name, object, %error, "whether a snapshot is to be destroyed cannot be read");
            }
        }
    }
    Ok(())
}

/// Releases what an entry of the list stands for, and takes it out. Returns the snapshot, if that had the hold.
async fn release_one(cx: &mut Syncer, list: u64, entry: &str) -> Result<Option<u64>, EngineError> {
    let mut released = None;
    if let Some((object, tag)) = temporary(entry)
        && let Some(holds) = holds_with(cx, object, tag).await?
    {
        zap::remove(&mut cx.mos, holds, tag.into()).await?;
        released = Some(object);
    }
    zap::remove(&mut cx.mos, list, entry.into()).await?;
    Ok(released)
}

/// Snapshot and tag of an entry in the list of temporary holds.
fn temporary(entry: &str) -> Option<(u64, &str)> {
    let (object, tag) = entry.split_once('-')?;
    Some((u64::from_str_radix(object, 16).ok()?, tag))
}

/// The list of a snapshot's holds, if it is one and has this tag. What a list of other software names may be gone.
async fn holds_with(cx: &mut Syncer, object: u64, tag: &str) -> Result<Option<u64>, EngineError> {
    if !cx.mos.exists(object).await? || cx.mos.dnode(object).await?.bonus_type != ObjectType::DSL_DATASET {
        return Ok(None);
    }
    let phys = dataset::load(&mut cx.mos, object).await?;
    let may_have = phys.is_snapshot() && phys.user_refs != 0;
    let has = may_have && zap::get(&mut cx.mos, phys.user_refs, tag.into()).await?.is_some();
    Ok(has.then_some(phys.user_refs))
}

/// Destroys a snapshot whose destruction waited for a hold that is gone, if nothing else keeps it.
pub(crate) fn destroy_deferred(cx: &mut Syncer, snapshot: u64) -> BoxFuture<'_, Result<(), OpError>> {
    Box::pin(async move {
        destroy::check_deferred(cx, &[snapshot], 0, 0).await?;
        Ok(destroy::destroy_if_deferred(cx, snapshot).await?)
    })
}
