//! A top-level device grows to what its leaves offer: new metaslabs behind the old ones.
//!
//! Facts: docs/format/vdevs.md §1.3, spacemap.md §1, labels.md §1.

use ondisk::label::Geometry;
use pool::vdev::{Disks, Kind, Vdev};

use super::shape;
use crate::{
    dsl::OpError,
    mos::{DIRECTORY, zap},
    sync::Syncer,
    write::labels,
};

/// Lets top-level device `id` grow if the pool has `autoexpand`.
pub(super) async fn automatically(cx: &mut Syncer, id: u64) -> Result<(), OpError> {
    let Some(object) = zap::get_u64(&mut cx.mos, DIRECTORY, "pool_props").await? else { return Ok(()) };
    if zap::get_u64(&mut cx.mos, object, "autoexpand").await? == Some(1) {
        return grow(cx, id).await;
    }
    Ok(())
}

/// Lets top-level device `id` grow to what its leaves offer. Nothing happens if that is not more than it has, or if one
/// of them is not there to be asked.
pub(super) async fn grow(cx: &mut Syncer, id: u64) -> Result<(), OpError> {
    let tree = cx.io.tree();
    let Some(vdev) = tree.top(id) else { return Ok(()) };
    let (Some(top), Some(offered)) = (&vdev.top, offered(vdev)) else { return Ok(()) };
    let more = offered.checked_shr(top.metaslab_shift).unwrap_or(0)
        > top.asize.checked_shr(top.metaslab_shift).unwrap_or(u64::MAX);
    if !more {
        return Ok(());
    }
    // Where labels are now there may be anything.
    let emptied = labels::initialize_ends(&tree, id as usize).await;
    emptied.map_err(|error| OpError::Refused(error.to_string()))?;
    let mut config = cx.config.clone();
    shape::edit(&mut config, vdev.guid, |list| list.set("asize", offered));
    let bad = |error: pool::vdev::ConfigError| OpError::Refused(error.to_string());
    let next = tree.reshaped(&shape::tops(&config), &Disks::new()).map_err(bad)?;
    cx.out.alloc.grow(id, offered)?;
    cx.devices_changed(next);
    (cx.config, cx.config_dirty) = (config, true);
    tracing::info!(pool = cx.name, device = %vdev, bytes = offered, "grown");
    Ok(())
}

/// Bytes for blocks that the leaves of a device offer together; none if one of them cannot be asked.
fn offered(vdev: &Vdev) -> Option<u64> {
    if let Some(leaf) = &vdev.leaf {
        return Geometry::new(leaf.disk()?.info().size).map(Geometry::asize);
    }
    let mut least = u64::MAX;
    for child in &vdev.children {
        least = least.min(offered(child)?);
    }
    match &vdev.kind {
        _ if vdev.children.is_empty() => None,
        Kind::Mirror | Kind::Replacing | Kind::Spare => Some(least),
        Kind::Raidz(geometry) => least.checked_mul(geometry.children as u64),
        _ => None,
    }
}
