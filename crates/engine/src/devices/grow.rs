//! A top-level device grows to what its leaves offer: new metaslabs behind the old ones.
//!
//! Facts: docs/format/vdevs.md §1.3, spacemap.md §1, labels.md §1.

use pool::{
    space::{expandable, fitting, offered},
    vdev::{Aux, Disks, Vdev},
};

use super::{shape, state};
use crate::{
    dsl::OpError,
    engine::Engine,
    mos::{DIRECTORY, zap},
    sync::Syncer,
    write::labels,
};

/// `autoexpand`: what offers more than the pool uses, whenever it has grown.
pub(super) async fn look(engine: &Engine) {
    if !engine.conduct().autoexpand || engine.is_ending() {
        return;
    }
    let tree = engine.view().tree();
    for top in tree.tops.iter().filter(|top| expandable(top) > 0) {
        // It is grown the next time.
        if engine.suspension().is_on() {
            return;
        }
        let id = top.id;
        let grown = engine.run(move |cx| Box::pin(async move { automatically(cx, id).await }));
        if let Err(error) = grown.await {
            tracing::warn!(device = %top, %error, "cannot grow");
        }
    }
}

/// Lets top-level device `id` grow if the pool has `autoexpand`.
pub(super) async fn automatically(cx: &mut Syncer, id: u64) -> Result<(), OpError> {
    let Some(object) = zap::get_u64(&mut cx.mos, DIRECTORY, "pool_props").await? else { return Ok(()) };
    if zap::get_u64(&mut cx.mos, object, "autoexpand").await? == Some(1) {
        return grow(cx, id).await;
    }
    Ok(())
}

/// Lets top-level device `id` grow to what its leaves offer, as far as its metaslabs go: their size is that which it was
/// created with. Nothing happens if that is not more than it has, or if one of the leaves is not there to be asked.
pub(super) async fn grow(cx: &mut Syncer, id: u64) -> Result<(), OpError> {
    let tree = cx.io.tree();
    let Some(vdev) = tree.top(id) else { return Ok(()) };
    let (Some(top), Some(offered)) = (&vdev.top, offered(vdev)) else { return Ok(()) };
    let asize = offered.min(cx.out.alloc.limit(id));
    if top.metaslabs_of(asize) <= top.metaslabs() {
        return Ok(());
    }
    let mut config = cx.config.clone();
    shape::edit(&mut config, vdev.guid, |list| list.set("asize", asize));
    let bad = |error: pool::vdev::ConfigError| OpError::Refused(error.to_string());
    let next = tree.reshaped(&shape::tops(&config), &Disks::new()).map_err(bad)?;
    cx.out.alloc.grow(id, asize);
    cx.devices_changed(next);
    (cx.config, cx.config_dirty) = (config, true);
    tracing::info!(pool = cx.name, device = %vdev, bytes = asize, "grown");
    if asize < offered {
        tracing::warn!(
            pool = cx.name,
            device = %vdev,
            offered,
            "grown only as far as its metaslabs go: one that is added with this size has larger ones"
        );
    }
    Ok(())
}

/// Notes how large devices are. One that has become larger has its last two labels elsewhere from now on, whether its
/// top-level device grows or not: they are written anew, as are those of one that grew while nobody had it open. One that no
/// longer has room for what is on it (a logical volume that was reduced by mistake) is out of use until it has: its labels
/// would lie over blocks. True if there was one of either.
pub(crate) async fn note_sizes(cx: &mut Syncer) -> bool {
    let tree = cx.io.tree();
    let (reports, suspension) = (cx.out.reports(), cx.out.suspension());
    let writer = labels::Writer { reports: &reports, suspension: &suspension };
    let mut any = false;
    let leaves: Vec<(&Vdev, &Vdev)> =
        tree.tops.iter().flat_map(|top| top.leaves().into_iter().map(move |vdev| (top, vdev))).collect();
    for (top, vdev) in leaves.into_iter().filter(|(_, vdev)| vdev.is_readable()) {
        let Some(disk) = vdev.leaf.as_ref().and_then(|leaf| leaf.disk()) else { continue };
        let size = disk.info().size;
        if fitting(top, size).is_none() {
            tracing::error!(device = %vdev, size, "the device has shrunk: it is not used before it has its size again");
            state::change(cx, &tree, vdev, "it has shrunk", |now| {
                (now.disk, now.refused) = (None, Aux::TooSmall);
            });
            any = true;
            continue;
        }
        let has_grown = cx.sizes.insert(vdev.guid, size).is_some_and(|before| before < size);
        let has_strange_ends = vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.take_strange_ends());
        if !has_grown && !has_strange_ends {
            continue;
        }
        if !labels::initialize_ends(&tree, vdev.guid, writer).await {
            tracing::warn!(device = %vdev, "labels behind the new end not written");
        }
        any = true;
    }
    if any {
        cx.config_dirty = true;
        cx.config.remove("txg");
    }
    any
}
