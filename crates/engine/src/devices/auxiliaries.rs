//! Cache devices of an open pool: noticed when they are gone, opened when they are there (again).
//!
//! They are no part of the device tree, nothing waits for them and no transaction group tells of them. So none of what a
//! leaf needs is needed here: their condition says which disk they are, and [`crate::second::Second`] follows it.

use std::{collections::BTreeMap, io, sync::Arc};

use disk::Disk;
use pool::{
    import::Device,
    vdev::{Aux, Kind, Standing, Vdev},
};
use tokio::time::timeout;

use super::{
    Opener,
    watch::{PROBE, Probed, probe},
};
use crate::{
    engine::Engine,
    events::{DeviceName, Event},
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Caches {
    /// Disks of devices that are away, which may be back as they were: where nobody can open them anew.
    parked: BTreeMap<u64, Arc<dyn Disk>>,
}

impl Caches {
    /// Every cache device, and every place where one should be.
    pub(super) async fn look(&mut self, engine: &Engine, opener: Option<&Arc<dyn Opener>>) {
        let view = engine.view();
        for vdev in view.l2cache() {
            let Some(leaf) = &vdev.leaf else { continue };
            let standing = leaf.condition.get();
            match standing.disk.clone() {
                Some(disk) if matches!(probe(&disk).await, Probed::Gone) => {
                    // An open block device keeps its name from whoever comes next; a file has it for good.
                    if opener.is_none() || vdev.kind == Kind::File {
                        self.parked.insert(vdev.guid, disk);
                    }
                    change(engine, vdev, "it is gone", |now| (now.disk, now.removed) = (None, true));
                }
                Some(_) => {}
                None if standing.offline || standing.faulted => {}
                None => self.bring_back(engine, vdev, opener).await,
            }
        }
        engine.second().follow(|| engine.view());
        view.l2cache().iter().for_each(|vdev| tell_if_slow(engine, vdev));
    }

    async fn bring_back(&mut self, engine: &Engine, vdev: &Vdev, opener: Option<&Arc<dyn Opener>>) {
        let name = name(vdev);
        let disk = match (self.parked.get(&vdev.guid), opener) {
            (Some(parked), _) if matches!(probe(parked).await, Probed::Here) => Arc::clone(parked),
            (_, Some(opener)) => match timeout(PROBE, opener.open(&name)).await {
                Ok(Ok(disk)) => disk,
                Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => return,
                Ok(Err(error)) => return tracing::debug!(device = name.name, %error, "cannot be opened"),
                Err(_) => return tracing::debug!(device = name.name, "does not answer"),
            },
            _ => return,
        };
        match is_cache_device(&disk, vdev.guid).await {
            Ok(()) => {
                self.parked.remove(&vdev.guid);
                change(engine, vdev, "it is back", |now| {
                    now.disk = Some(Arc::clone(&disk));
                    (now.refused, now.removed, now.not_present) = (Aux::None, false, false);
                });
            }
            Err(aux) => change(engine, vdev, "another device is there", |now| now.refused = aux),
        }
    }
}

/// Changes how a cache device is, and tells of it.
fn change(engine: &Engine, vdev: &Vdev, why: &str, how: impl Fn(&mut Standing)) {
    let Some(leaf) = &vdev.leaf else { return };
    let before = leaf.state();
    leaf.condition.update(how);
    let (to, aux) = leaf.state();
    if before == (to, aux) {
        return;
    }
    let device = name(vdev);
    tracing::warn!(device = device.name, state = to.word(aux), why, "a cache device changed");
    engine.events().tell(Event::DeviceState { device, from: before.0, to, aux, why: why.to_owned() });
}

/// Tells of one that began to be slow, or is no longer. Its reads are the pool's most of the time.
fn tell_if_slow(engine: &Engine, vdev: &Vdev) {
    let (Some(leaf), slow) = (&vdev.leaf, engine.second().slow(vdev.guid)) else { return };
    let sits_out = slow.is_some();
    if leaf.condition.get().sits_out == sits_out {
        return;
    }
    leaf.condition.update(|now| now.sits_out = sits_out);
    let (device, (latency, peers)) = (name(vdev), slow.unwrap_or_default());
    if sits_out {
        tracing::warn!(device = device.name, ?latency, ?peers, "a slow cache device is left alone");
    }
    engine.events().tell(Event::Slow { device, latency, peers, sits_out });
}

/// What a person finds it by.
fn name(vdev: &Vdev) -> DeviceName {
    DeviceName { guid: vdev.guid, path: vdev.path.clone(), name: vdev.display_name(), parent: None }
}

/// Whether the disk has this guid on its label, which says no pool; if not, what to call that.
async fn is_cache_device(disk: &Arc<dyn Disk>, guid: u64) -> Result<(), Aux> {
    match timeout(PROBE, Device::read(Arc::clone(disk))).await {
        Ok(Ok(Some(device))) if device.guids().is_some_and(|(found, _)| found == guid) => Ok(()),
        Ok(Ok(Some(_))) => Err(Aux::CorruptData),
        Ok(Ok(None)) => Err(Aux::BadLabel),
        Ok(Err(_)) | Err(_) => Err(Aux::OpenFailed),
    }
}
