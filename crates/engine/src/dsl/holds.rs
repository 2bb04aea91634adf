//! Holds: tags that keep a snapshot from being destroyed.
//!
//! Facts: docs/format/mos.md §11.

use ondisk::dnode::ObjectType;

use super::{OpError, dataset, destroy, find};
use crate::{BoxFuture, mos::zap, sync::Syncer};

/// Object type of a snapshot's list of holds.
const USER_REFS: ObjectType = ObjectType(41);

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
