//! Whose the disk is that lies where a device of the pool should be, by its labels.

use std::{sync::Arc, time::Duration};

use disk::Disk;
use pool::{
    import::Device,
    vdev::{Aux, Vdev, deadline},
};

/// How long a device may take to show its labels.
const ANSWER: Duration = Duration::from_secs(10);

/// The newest transaction group that all labels of the disk have got to, if it is this leaf of the pool and nobody else went on with it since; if
/// not, what to call that. The leaf learns whether the labels at the end are its own.
pub(super) async fn is_leaf(disk: &Arc<dyn Disk>, vdev: &Vdev, pool: u64) -> Result<u64, Aux> {
    let Some(leaf) = &vdev.leaf else { return Err(Aux::CorruptData) };
    let device = identify(disk, vdev.guid, &[pool], leaf.condition.newest()).await?;
    leaf.condition.found_ends(device.has_ends());
    Ok(device.everywhere)
}

/// What the labels say of a disk that is device `guid` of one of these pools, and got no transaction group behind `newest`; if
/// it is not, what to call that.
pub(super) async fn identify(
    disk: &Arc<dyn Disk>,
    guid: u64,
    pools: &[u64],
    newest: u64,
) -> Result<Device, Aux> {
    let device = match deadline::within(Device::read(Arc::clone(disk)), ANSWER).await {
        Some(Ok(Some(device))) => device,
        Some(Ok(None)) => return Err(Aux::BadLabel),
        Some(Err(_)) | None => return Err(Aux::OpenFailed),
    };
    let is_it = device.guids().is_some_and(|(found, of)| found == guid && pools.contains(&of));
    if !is_it {
        return Err(Aux::CorruptData);
    }
    // Somebody else went on with the pool from this device alone, be it that this one is further by now.
    if device.best().is_some_and(|best| best.txg > newest) {
        return Err(Aux::NewerState);
    }
    Ok(device)
}
