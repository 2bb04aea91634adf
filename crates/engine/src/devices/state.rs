//! How leaves are, by command: offline, online; and what of it the configuration remembers.
//!
//! A leaf's [`pool::vdev::Condition`] is changed at once by whoever learns something; in each transaction group
//! [`persist`] compares all of them with the configuration, so that nobody has to think of both.
//!
//! Facts: docs/format/vdevs.md §9, §9.2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use disk::Disk;
use ondisk::nvlist::{NvList, Value};
use pool::{
    space::fitting,
    vdev::{Aux, Class, Disks, Standing, Tree, TxgSet, Vdev},
};

use super::{Onlined, find, find::Place, grow, join, leave, refused, replicas, shape, whose};
use crate::{
    BoxFuture,
    create::config::{tops_mut, walk_mut},
    dsl::OpError,
    events::Event,
    sync::Syncer,
};

/// The top-level log device that would be gone without leaf `guid`: intent logs have to leave it first.
pub(super) fn log_of(tree: &Tree, guid: u64) -> Option<u64> {
    let place = find::locate(tree, guid).filter(|place| place.top.class() == Class::Log)?;
    let is_away = place.vdev.leaf.as_ref().is_none_or(|leaf| leaf.condition.get().offline);
    (!is_away && replicas::is_required(tree, guid)).then_some(place.top.guid)
}

/// Takes a leaf offline.
pub(super) fn offline(cx: &mut Syncer, guid: u64, temporary: bool) -> BoxFuture<'_, Result<(), OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        refuse_resting_spare(cx, &tree, guid)?;
        let place = find::leaf(&tree, guid)?;
        let Some(leaf) = &place.vdev.leaf else { return Ok(()) };
        let before = leaf.condition.get().offline;
        if !before && replicas::is_required(&tree, guid) {
            // A log on which nothing lies can be spared.
            let is_log = place.top.class() == Class::Log;
            if !is_log || !cx.out.alloc.retire_unused(place.top.id).await {
                return Err(refused("no valid replicas"));
            }
        }
        change(cx, &tree, place.vdev, "taken offline", |now| {
            now.offline = true;
            now.until_export = temporary && (now.until_export || !before);
        });
        Ok(())
    })
}

/// Excludes a leaf as if it had failed (`zpool offline -f`).
pub(super) fn fault(cx: &mut Syncer, guid: u64) -> Result<(), OpError> {
    let tree = cx.io.tree();
    refuse_resting_spare(cx, &tree, guid)?;
    let place = find::leaf(&tree, guid)?;
    if place.vdev.is_readable() && replicas::is_required(&tree, guid) {
        return Err(refused("no valid replicas"));
    }
    change(cx, &tree, place.vdev, "faulted by an administrator", |now| {
        (now.faulted, now.aux) = (true, Aux::External);
    });
    Ok(())
}

/// Takes a leaf into use again. See [`crate::engine::Engine::online`].
pub(super) fn online(
    cx: &mut Syncer,
    guid: u64,
    disk: Option<Arc<dyn Disk>>,
    expand: bool,
) -> BoxFuture<'_, Result<Onlined, OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        refuse_resting_spare(cx, &tree, guid)?;
        let place = find::leaf(&tree, guid)?;
        let (top, is_spared) = (place.top.id, place.is_spared());
        let Some(leaf) = &place.vdev.leaf else { return Err(refused("no such device in pool")) };
        let was_away = !place.vdev.is_readable();
        // One that came back by itself meanwhile keeps what it has: nobody has looked whose the other is.
        let disk = match leaf.disk() {
            Some(own) if !was_away => Some(own),
            own => disk.or(own),
        };
        let verdict = match &disk {
            Some(disk) if was_away => examine(cx, disk, &place).await.map(Some),
            Some(_) => Ok(None),
            None => Err(Aux::OpenFailed),
        };
        if was_away {
            // Some of this transaction group went by already.
            leaf.missed.add(cx.txg);
        }
        if let Ok(Some(newest)) = verdict {
            note_if_older(&place, newest, cx.txg);
        }
        let usable = verdict.is_ok().then(|| disk.clone()).flatten();
        change(cx, &tree, place.vdev, "taken online", |now| {
            (now.offline, now.until_export) = (false, false);
            if let Some(disk) = &usable {
                now.disk = Some(Arc::clone(disk));
                now.refused = Aux::None;
                (now.faulted, now.degraded, now.removed, now.not_present) = (false, false, false, false);
                (now.aux, now.sits_out) = (Aux::None, false);
                now.unspare |= is_spared && was_away;
            } else if let Err(aux) = verdict {
                now.disk = None;
                (now.refused, now.refused_at) = (aux, disk.as_ref().map(|disk| disk.info().path));
            }
        });
        if let Some(disk) = usable {
            moved(cx, guid, &disk.info().path)?;
            // It gets a full, current label in this transaction group.
            cx.config_dirty = true;
        }
        if expand {
            grow::grow(cx, top).await?;
        } else {
            grow::automatically(cx, top).await?;
        }
        leave::resilvered(cx).await?;
        let is_usable = find::locate(&cx.io.tree(), guid).is_some_and(|place| place.vdev.is_readable());
        Ok(if is_usable { Onlined::Healthy } else { Onlined::StillFaulted })
    })
}

fn refuse_resting_spare(cx: &Syncer, tree: &Tree, guid: u64) -> Result<(), OpError> {
    let listed = |list: &[Vdev]| list.iter().any(|vdev| vdev.guid == guid);
    let Some(view) = cx.view.as_ref().filter(|_| find::locate(tree, guid).is_none()) else { return Ok(()) };
    if listed(view.spares()) {
        return Err(refused("device is reserved as a hot spare"));
    }
    if listed(view.l2cache()) {
        return Err(refused("device is in use as a cache"));
    }
    Ok(())
}

/// The newest transaction group that all labels of a device have got to, if it is the leaf at this place of this pool and large enough for it; if
/// not, what to call that.
async fn examine(cx: &Syncer, disk: &Arc<dyn Disk>, place: &Place<'_>) -> Result<u64, Aux> {
    let newest = whose::is_leaf(disk, place.vdev, cx.guid).await?;
    fitting(place.top, disk.info().size).map(|_| newest).ok_or(Aux::TooSmall)
}

/// A device that is back without what was on its stable media is not as it went: an image of it was restored, or it is a copy
/// that somebody made while it was in use. So it lacks more than what went by since: all that was born behind what it has, and if
/// it is from before it was made whole, whatever it was given then as well. But what only it may have is not to be beyond reach
/// for that.
fn note_if_older(place: &Place<'_>, newest: u64, txg: u64) {
    let Some(leaf) = &place.vdev.leaf else { return };
    let durable = leaf.condition.durable();
    if newest >= durable {
        return;
    }
    tracing::warn!(device = %place.vdev, newest, durable, "it is older than it went: it gets all that was written since");
    let first = if newest < leaf.condition.refilled() { 1 } else { newest + 1 };
    let lacks = TxgSet::from_ranges(vec![(first, txg)]);
    leaf.missed.add_all(&lacks.without(&replicas::outage(place.top, Some(place.vdev.guid))));
}

/// Changes how a leaf is, lets writers follow and tells of it.
pub(super) fn change(cx: &mut Syncer, tree: &Tree, vdev: &Vdev, why: &str, change: impl Fn(&mut Standing)) {
    let Some(leaf) = &vdev.leaf else { return };
    let (from, _) = leaf.state();
    leaf.condition.update(change);
    cx.out.devices_changed();
    let (to, aux) = leaf.state();
    if from != to {
        // Clients may wait for it although transaction groups do not.
        cx.out.suspension().kick();
        let device = find::name(tree, vdev.guid);
        cx.afterwards.tell(Event::DeviceState { device, from, to, aux, why: why.to_owned() });
    }
}

/// A leaf is known by where its disk is, however that was put there.
pub(super) fn follow(cx: &mut Syncer, guid: u64) -> Result<(), OpError> {
    let tree = cx.io.tree();
    let disk = find::locate(&tree, guid).and_then(|place| place.vdev.leaf.as_ref()?.disk());
    disk.map_or(Ok(()), |disk| moved(cx, guid, &disk.info().path))
}

/// A leaf is at another path than before.
fn moved(cx: &mut Syncer, guid: u64, path: &str) -> Result<(), OpError> {
    let tree = cx.io.tree();
    // Of two that were at one path only the newer is called so.
    let is_known = |own: &str| own == path || own.strip_suffix(join::OLD) == Some(path);
    if find::locate(&tree, guid).is_none_or(|place| place.vdev.path.as_deref().is_some_and(is_known)) {
        return Ok(());
    }
    let mut config = cx.config.clone();
    shape::edit(&mut config, guid, |list| list.set("path", path));
    let bad = |error: pool::vdev::ConfigError| OpError::Refused(error.to_string());
    let tree = tree.reshaped(&shape::tops(&config), &Disks::new()).map_err(bad)?;
    cx.devices_changed(tree);
    (cx.config, cx.config_dirty) = (config, true);
    Ok(())
}

/// Puts into the configuration how leaves are now. True if that changed it.
///
/// That a log device failed is written down only behind the transaction group that was open when it was seen: whoever
/// opens the pool then, we or others, takes it that nothing on that device is needed any more, and until that group is
/// committed it may hold the only copy of what was acknowledged.
pub(crate) fn persist(cx: &mut Syncer) -> bool {
    let tree = cx.io.tree();
    let leaves: BTreeMap<u64, &Vdev> = tree.leaves().into_iter().map(|leaf| (leaf.guid, leaf)).collect();
    let (mut changed, txg) = (false, cx.txg);
    let logs: BTreeSet<u64> = tree
        .tops
        .iter()
        .filter(|top| top.class() == Class::Log)
        .flat_map(Vdev::leaves)
        .map(|leaf| leaf.guid)
        .collect();
    let was_failing = std::mem::take(&mut cx.failing_logs);
    for top in tops_mut(&mut cx.config) {
        walk_mut(top, &mut |list| {
            if let Some(vdev) = list.u64("guid").and_then(|guid| leaves.get(&guid))
                && let Some(leaf) = &vdev.leaf
            {
                let lacks = !leaf.missed.get().is_empty();
                let resilvering = lacks && vdev.is_readable();
                if leaf.condition.get().resilvering != resilvering {
                    leaf.condition.update(|now| now.resilvering = resilvering);
                }
                let mut now = Standing::clone(&leaf.condition.get());
                if now.faulted && logs.contains(&vdev.guid) && list.u64("faulted").unwrap_or(0) == 0 {
                    let seen = was_failing.get(&vdev.guid).copied().unwrap_or(txg);
                    if txg <= seen {
                        cx.failing_logs.insert(vdev.guid, seen);
                        now.faulted = false;
                    }
                }
                changed |= describe(list, &now, lacks);
            }
        });
    }
    if changed {
        cx.config_dirty = true;
        // Also if it was written in this transaction group already.
        cx.config.remove("txg");
    }
    exclude_logs(cx, &tree);
    changed
}

/// Log devices that the configuration excludes give no more places before one is committed that does not, and logs leave
/// them: they may work again sooner, and whoever opened the pool then would not look for what is there.
fn exclude_logs(cx: &mut Syncer, tree: &Tree) {
    for top in tree.tops.iter().filter(|top| top.class() == Class::Log && !top.is_readable()) {
        if excludes(&mut cx.config, &top.leaves()) && cx.out.alloc.exclude(top.id) {
            cx.logs.all().iter().for_each(|log| log.leave(top.id));
        }
    }
}

/// Whether the configuration excludes one of these leaves.
fn excludes(config: &mut NvList, leaves: &[&Vdev]) -> bool {
    let mut any = false;
    for leaf in leaves {
        shape::edit(config, leaf.guid, |list| {
            any |= ["offline", "faulted"].iter().any(|name| list.u64(name).unwrap_or(0) != 0);
        });
    }
    any
}

/// Log devices that were excluded, or not there when the pool was opened, give places as soon as they are there, however they
/// came back. To be called when a transaction group is committed: as long as the configuration excludes a device, whoever
/// opens the pool takes it that nothing on it is needed.
pub(crate) fn reinstate_logs(cx: &mut Syncer) {
    let tree = cx.io.tree();
    for id in cx.out.alloc.absent_logs() {
        let Some(top) = tree.top(id).filter(|top| top.is_readable()) else { continue };
        let here: Vec<&Vdev> = top.leaves().into_iter().filter(|leaf| leaf.is_readable()).collect();
        if !excludes(&mut cx.config, &here) {
            cx.out.alloc.reinstate(id);
        }
    }
}

/// The part of a leaf's list that says how it is.
fn describe(list: &mut NvList, now: &Standing, lacks: bool) -> bool {
    let away = now.disk.is_none();
    let aux = match now.aux {
        _ if !now.faulted && !now.degraded => None,
        Aux::External => Some("external"),
        _ => Some("err_exceeded"),
    };
    let flag = |on: bool| on.then_some(Value::Uint64(1));
    let wanted = [
        ("offline", flag(now.offline && !now.until_export)),
        ("faulted", flag(now.faulted)),
        ("degraded", flag(now.degraded)),
        ("removed", flag(now.removed && away)),
        ("not_present", flag(now.not_present && away)),
        ("unspare", flag(now.unspare)),
        ("aux_state", aux.map(|word| word.into())),
        // Only a device that has joined has it: one that came back may be let off piece by piece.
        ("resilver_txg", list.get("resilver_txg").filter(|_| lacks).cloned()),
        // Only a sequential rebuild has it, which ends with what is missing.
        ("rebuild_txg", list.get("rebuild_txg").filter(|_| lacks).cloned()),
    ];
    let mut changed = false;
    for (name, value) in wanted {
        let is = list.get(name);
        if is == value.as_ref() || (value.is_none() && list.u64(name) == Some(0)) {
            continue;
        }
        changed = true;
        match value {
            Some(value) => list.set(name, value),
            None => drop(list.remove(name)),
        }
    }
    changed
}
