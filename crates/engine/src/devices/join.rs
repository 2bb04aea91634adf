//! A device comes into the tree beside one that is there: as another side of a mirror (attach), as its successor
//! (replace), or to stand in for it (a hot spare).
//!
//! ```text
//!   check ─▶ configuration and tree as they will be ─▶ labels on the new device, which say "not finished" (txg 0)
//!         ─▶ tree and configuration changed, a list of what it lacks: [4, T) ─▶ the transaction group commits
//! ```
//! T lies three transaction groups ahead: until then blocks may be under way that began when the device was not there.
//! A power cut before the commit leaves a device with a label nobody takes for a member.
//!
//! Facts: docs/format/vdevs.md §6 rule 2, §8, labels.md §5.

use std::sync::Arc;

use disk::Disk;
use ondisk::{
    dnode::ObjectType,
    nvlist::{NvList, Value},
};
use pool::{
    space::{addressable, fitting},
    vdev::{Class, Disks, Kind, Tree, TxgSet, Vdev, disk_of},
};
use rand::Rng;

use super::{NewLeaf, find, find::Place, refused, shape, sweep::UnderWay};
use crate::{
    BoxFuture,
    create::{self, FIRST_TXG},
    dsl::OpError,
    events::Event,
    mos::{DIRECTORY, packed, zap},
    sync::Syncer,
    write::labels,
};

/// Transaction groups that may have blocks under way: open, quiescing, syncing.
const CONCURRENT: u64 = 3;
/// What OpenZFS says of a device that is a spare's or a replacement's already.
const BEING_REPLACED: &str = "already in replacing/spare config; wait for completion or use 'zpool detach'";

/// What a new device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Side,
    Successor,
    Spare,
}

/// Makes `new` another side of leaf or mirror `guid`; returns its guid.
pub(super) fn attach(cx: &mut Syncer, guid: u64, new: NewLeaf) -> BoxFuture<'_, Result<u64, OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        let Some(place) = find::locate(&tree, guid) else { return Err(refused("no such device in pool")) };
        let is_leaf = place.vdev.leaf.is_some();
        let beside_top = is_leaf && place.parent.is_none();
        let mirror = if is_leaf { place.parent } else { Some(place.vdev) };
        let mirror = mirror.filter(|vdev| vdev.kind == Kind::Mirror);
        if !beside_top && mirror.is_none() {
            return Err(refused("can only attach to mirrors and top-level disks"));
        }
        check(&tree, place, &new)?;
        let new_guid = cx.random.random_range(1..u64::MAX);
        let list = list(cx, &new, new_guid, Role::Side);
        let mut config = cx.config.clone();
        match mirror {
            Some(mirror) => shape::append(&mut config, mirror.guid, list),
            None => {
                let own = cx.random.random_range(1..u64::MAX);
                shape::wrap(&mut config, guid, "mirror", own, list)
            }
        };
        take_in(cx, config, new_guid, new.disk, None).await?;
        let tree = cx.io.tree();
        let beside = Some(find::name(&tree, guid));
        cx.afterwards.tell(Event::DeviceAttached { device: find::name(&tree, new_guid), beside });
        Ok(new_guid)
    })
}

/// Lets `new` take the place of leaf `guid`; returns its guid.
pub(super) fn replace(cx: &mut Syncer, guid: u64, new: NewLeaf) -> BoxFuture<'_, Result<u64, OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        let place = find::leaf(&tree, guid)?;
        check(&tree, place, &new)?;
        // The stand-in is not what fails the pool: its original is to be replaced, or another spare to be used.
        let is_spare = place.vdev.leaf.as_ref().is_some_and(|leaf| leaf.is_spare);
        if is_spare && place.parent.is_some_and(|parent| parent.kind == Kind::Spare) {
            return Err(refused(BEING_REPLACED));
        }
        let new_guid = cx.random.random_range(1..u64::MAX);
        let list = list(cx, &new, new_guid, Role::Successor);
        let mut config = cx.config.clone();
        if let Some(own) = place.vdev.path.as_deref().filter(|_| takes_place(&new.path, place.vdev)) {
            // In the same slot: both cannot be found under one name.
            shape::edit(&mut config, guid, |old| old.set("path", format!("{own}{OLD}").as_str()));
        }
        match place.parent.filter(|parent| parent.kind == Kind::Replacing) {
            Some(parent) => shape::append(&mut config, parent.guid, list),
            None => {
                let own = cx.random.random_range(1..u64::MAX);
                shape::wrap(&mut config, guid, "replacing", own, list)
            }
        };
        let beside = Some(find::name(&tree, guid));
        take_in(cx, config, new_guid, new.disk, None).await?;
        cx.afterwards.tell(Event::DeviceAttached { device: find::name(&cx.io.tree(), new_guid), beside });
        Ok(new_guid)
    })
}

/// Whether what is at `path` is put where a leaf was: at the same path, or the disk of which OpenZFS had made its partition. What is
/// only called like such a partition lies beside it.
fn takes_place(path: &str, leaf: &Vdev) -> bool {
    leaf.path.as_deref() == Some(path) || leaf.disk_path() == Some(path)
}

/// What the path of a leaf ends in whose successor was put in the same place.
pub const OLD: &str = "/old";

/// Whether what is at `path` is where another was, whose path was `former` (it ends in [`OLD`] now, which says that one of them
/// took the other's place): at the same, or the disk of which OpenZFS had made that partition.
#[must_use]
pub fn is_in_place(path: &str, former: &str) -> bool {
    path == former || disk_of(former) == Some(path)
}

/// In the place of an ashift that was asked for: as small as the device can write. What comes because another failed may be
/// slow for its larger physical sectors, and is better than none.
pub(super) const SMALLEST: u32 = 0;

/// Lets spare `spare` stand in for leaf `guid`. `under_way` are the sweeps of its former place.
pub(super) fn activate_spare(
    cx: &mut Syncer,
    guid: u64,
    spare: u64,
    ashift: Option<u32>,
    under_way: Arc<UnderWay>,
) -> BoxFuture<'_, Result<(), OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        let place = find::leaf(&tree, guid)?;
        let spares: Vec<Vdev> = cx.view.as_ref().map(|view| view.spares().to_vec()).unwrap_or_default();
        let Some(vdev) = spares.into_iter().find(|vdev| vdev.guid == spare) else {
            return Err(refused("no such device in pool"));
        };
        let name = vdev.path.clone().unwrap_or_else(|| spare.to_string());
        if find::locate(&tree, spare).is_some() {
            return Err(refused(format!("{name} is busy, or device removal is in progress")));
        }
        // It may have left the pool in this transaction group.
        create::listed(cx, "spares", spare).await?;
        if place.top.class() == Class::Log {
            return Err(refused("cannot replace a log with a spare"));
        }
        let Some(disk) = vdev.leaf.as_ref().and_then(|leaf| leaf.disk()) else {
            return Err(refused(format!("{name} cannot be opened")));
        };
        if vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.deadline().owes_writes()) {
            return Err(refused(format!("{name} does not answer")));
        }
        if under_way.has(spare) {
            let why = "is still being initialized or trimmed where it stood in before: try again later";
            return Err(refused(format!("{name} {why}")));
        }
        if disk.info().read_only {
            // It could not be taken when the pool was opened.
            return Err(refused(format!("{name} is busy, or device removal is in progress")));
        }
        let ashift = ashift.or(Some(SMALLEST));
        let new = NewLeaf { path: name, disk, is_file: vdev.kind == Kind::File, ashift };
        check(&tree, place, &new)?;
        let is_spare = place.vdev.leaf.as_ref().is_some_and(|leaf| leaf.is_spare);
        let spare_parent = place.parent.filter(|parent| parent.kind == Kind::Spare);
        let list = list(cx, &new, spare, Role::Spare);
        let mut config = cx.config.clone();
        match spare_parent {
            Some(parent) if is_spare => shape::append(&mut config, parent.guid, list),
            Some(_) => return Err(refused(BEING_REPLACED)),
            None => {
                let own = cx.random.random_range(1..u64::MAX);
                shape::wrap(&mut config, guid, "spare", own, list)
            }
        };
        take_in(cx, config, spare, new.disk, Some(&vdev)).await?;
        let tree = cx.io.tree();
        let (spare, device) = (find::name(&tree, spare), find::name(&tree, guid));
        cx.afterwards.tell(Event::SpareActivated { spare, device });
        Ok(())
    })
}

/// Whether a device can stand beside one of the pool.
fn check(tree: &Tree, place: Place<'_>, new: &NewLeaf) -> Result<(), OpError> {
    let info = new.disk.info();
    if info.read_only {
        return Err(refused(format!("{} was opened read-only", new.path)));
    }
    let is_same = |disk: &Arc<dyn Disk>| Arc::ptr_eq(disk, &new.disk);
    if tree
        .leaves()
        .iter()
        .any(|leaf| leaf.leaf.as_ref().and_then(|leaf| leaf.disk()).is_some_and(|disk| is_same(&disk)))
    {
        return Err(refused(format!("{} is busy, or device removal is in progress", new.path)));
    }
    let Some(top) = &place.top.top else { return Err(refused("no such device in pool")) };
    if fitting(place.top, info.size).is_none() {
        return Err(refused("device is too small"));
    }
    let sector = addressable(new.is_file, &info);
    if sector.ilog2() > top.ashift {
        let written = 1_u64 << top.ashift.min(63);
        let why = format!("has sectors of {sector} bytes, and is to be written to in pieces of {written}");
        return Err(refused(format!("{} {why}: use one with smaller sectors", new.path)));
    }
    let ashift = match new.ashift {
        Some(ashift) => ashift.max(sector.ilog2()),
        // Above 64 KiB it is a stripe of some array, not a sector.
        None if new.is_file || info.physical_sector > 64 << 10 => sector.ilog2(),
        None => sector.max(info.physical_sector).ilog2(),
    };
    if ashift > top.ashift {
        return Err(refused(
            "new device has a different optimal sector size; use the option '-o ashift=N' to override the optimal size",
        ));
    }
    Ok(())
}

/// The configuration of a new leaf; who puts it into the tree gives it its number.
fn list(cx: &Syncer, new: &NewLeaf, guid: u64, role: Role) -> NvList {
    let mut list = NvList::new();
    list.set("type", if new.is_file { "file" } else { "disk" });
    list.set("id", 0_u64);
    list.set("guid", guid);
    list.set("path", new.path.as_str());
    if !new.is_file {
        list.set("whole_disk", 0_u64);
    }
    if role == Role::Spare {
        list.set("is_spare", 1_u64);
    }
    list.set("create_txg", cx.txg);
    list.set("resilver_txg", cx.txg);
    list
}

/// Labels on the new leaf, then everything follows the new configuration. `rested` is what it was among the spares.
async fn take_in(
    cx: &mut Syncer,
    mut config: NvList,
    guid: u64,
    disk: Arc<dyn Disk>,
    rested: Option<&Vdev>,
) -> Result<(), OpError> {
    let disks = Disks::from([(guid, disk)]);
    let bad = |error: pool::vdev::ConfigError| OpError::Refused(error.to_string());
    let mut tree = cx.io.tree().reshaped(&shape::tops(&config), &disks).map_err(bad)?;
    if let Some(rested) = rested {
        tree.share_condition(rested);
    }
    let labelled = labels::initialize_leaf(&tree, &config, guid, &cx.out.suspension()).await;
    // The new device's failure, not the pool's.
    labelled.map_err(|error| refused(error.to_string()))?;

    // From here on only a failing pool can stop it.
    if let Some(map) = create::vdev_zap_map(cx).await? {
        let object = zap::create(&mut cx.mos, ObjectType::ZAP_METADATA, 0).await?;
        zap::set_int(&mut cx.mos, map, object).await?;
        shape::edit(&mut config, guid, |list| list.set("com.delphix:vdev_zap_leaf", object));
    }
    let lacks = TxgSet::from_ranges(vec![(FIRST_TXG, cx.txg + CONCURRENT)]);
    if let Some(leaf) = find::locate(&tree, guid).and_then(|place| place.vdev.leaf.as_ref()) {
        leaf.missed.add_all(&lacks);
        leaf.condition.update(|now| now.resilvering = true);
    }
    cx.devices_changed(tree);
    (cx.config, cx.config_dirty) = (config, true);
    Ok(())
}

/// Takes spare `guid` out of the pool's list of spares: it is an ordinary device from now on.
pub(super) async fn no_longer_spare(cx: &mut Syncer, guid: u64) -> Result<(), OpError> {
    let object = zap::get_u64(&mut cx.mos, DIRECTORY, "spares").await?.filter(|object| *object != 0);
    let Some(object) = object else { return Ok(()) };
    let mut list = packed::read(&mut cx.mos, object).await?;
    let all = list.nvlist_array("spares").unwrap_or_default();
    let rest: Vec<NvList> = all.iter().filter(|device| device.u64("guid") != Some(guid)).cloned().collect();
    list.set("spares", Value::NvListArray(rest));
    packed::write(&mut cx.mos, object, &list).await?;
    Ok(())
}
