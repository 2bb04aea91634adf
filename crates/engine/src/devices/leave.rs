//! A device leaves the tree: a side of a mirror is detached, a replacement is complete, a spare goes back to rest.
//!
//! Its list of what it missed and its ZAP go with it; if only one device is left in what it was part of, that one takes
//! the place of both. Its labels are written when the transaction group is durable: a power cut before leaves a member,
//! one after leaves a label of a device that the pool does not know any more.
//!
//! Facts: docs/format/vdevs.md §8.

use pool::vdev::{Aux, Kind, State, Tree, Vdev};

use super::{
    Farewell, find, grow,
    join::{self, OLD},
    refused, replicas, shape,
};
use crate::{
    BoxFuture,
    create::VDEV_ZAP_MAP,
    dsl::OpError,
    events::Event,
    mos::{DIRECTORY, zap},
    sync::Syncer,
};

/// Takes a side of a mirror, a replacement or a spare in use out of the tree.
pub(super) fn detach(cx: &mut Syncer, guid: u64) -> BoxFuture<'_, Result<(), OpError>> {
    Box::pin(async move {
        let tree = cx.io.tree();
        let place = find::leaf(&tree, guid)?;
        let parent = place.parent.filter(|parent| is_copies(parent));
        let Some(parent) = parent else {
            return Err(refused("only applicable to mirror and replacing vdevs"));
        };
        if parent.children.first().is_some_and(|old| old.guid == guid) {
            relieve(&tree, parent);
        }
        match take_out(cx, &tree, parent, place.vdev).await? {
            // What was cancelled may have been all that a replacement that is whole waited for.
            true => resilvered(cx).await,
            false => Err(refused("no valid replicas")),
        }
    })
}

/// Where it was until the device at `path` took that.
fn former<'a>(vdev: &'a Vdev, path: &str) -> Option<&'a str> {
    let former = vdev.path.as_deref()?.strip_suffix(OLD)?;
    join::is_in_place(path, former).then_some(former)
}

fn is_copies(vdev: &Vdev) -> bool {
    matches!(vdev.kind, Kind::Mirror | Kind::Replacing | Kind::Spare)
}

/// Whether the leaf is out of the tree: if the pool cannot do without it, nothing has changed.
async fn take_out(cx: &mut Syncer, tree: &Tree, parent: &Vdev, leaf: &Vdev) -> Result<bool, OpError> {
    let device = find::name(tree, leaf.guid);
    let is_spare = |vdev: &Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.is_spare);
    let mut config = cx.config.clone();
    // What the leaf has in the MOS.
    let (mut zap_object, mut list_object) = (None, None);
    shape::edit(&mut config, leaf.guid, |list| {
        let object = |name: &str| list.u64(name).filter(|object| *object != 0);
        (zap_object, list_object) = (object("com.delphix:vdev_zap_leaf"), object("DTL"));
    });
    shape::take_out(&mut config, parent.guid, leaf.guid);
    let mut promoted = None;
    if parent.kind == Kind::Spare && leaf.id == 0 && !is_spare(leaf) {
        // The stand-in stays for good.
        promoted = parent.children.iter().rev().find(|child| is_spare(child)).map(|child| child.guid);
        if let Some(guid) = promoted {
            shape::edit(&mut config, guid, |list| drop(list.remove("is_spare")));
        }
    }
    if parent.kind == Kind::Replacing
        && leaf.id != 0
        && let Some(path) = leaf.path.as_deref()
        // Not always the first: what replaces it may have been replaced itself.
        && let Some((old, former)) =
            parent.children.iter().find_map(|child| Some((child.guid, former(child, path)?)))
    {
        shape::edit(&mut config, old, |list| list.set("path", former));
    }
    let bad = |error: pool::vdev::ConfigError| OpError::Refused(error.to_string());
    let next = tree.reshaped(&shape::tops(&config), &pool::vdev::Disks::new()).map_err(bad)?;

    // Between this question and the other tree nothing is waited for: log blocks are written all the while, and what another
    // side refuses of them counts as written as long as this leaf has it.
    if replicas::is_required(tree, leaf.guid) {
        return Ok(false);
    }
    cx.devices_changed(next);
    (cx.config, cx.config_dirty) = (config, true);

    // From here on only a failing pool can stop it.
    if let Some(object) = zap_object {
        if let Some(map) = zap::get_u64(&mut cx.mos, DIRECTORY, VDEV_ZAP_MAP).await? {
            zap::remove_int(&mut cx.mos, map, object).await?;
        }
        cx.mos.free(object).await?;
    }
    if let Some(object) = list_object {
        cx.out.alloc.free_dirty_time_log(object, &mut cx.mos).await?;
    }
    cx.outages.forget(leaf.guid);
    if let Some(guid) = promoted {
        join::no_longer_spare(cx, guid).await?;
    }
    // Which top-level device may have more room now.
    let top = find::locate(tree, leaf.guid).map(|place| place.top.id);
    let disk = leaf.leaf.as_ref().and_then(|leaf| leaf.timed());
    if parent.kind == Kind::Spare && parent.children.len() == 2 {
        let left = parent.children.iter().filter_map(|child| child.leaf.as_ref());
        left.for_each(|left| left.condition.update(|now| now.unspare = false));
    }
    if is_spare(leaf) {
        if let Some(leaf) = &leaf.leaf {
            // What became of it while it stood in is over; whether it is there is not.
            leaf.condition.update(|now| {
                (now.offline, now.until_export, now.faulted, now.degraded) = (false, false, false, false);
                (now.resilvering, now.unspare, now.sits_out, now.not_present) = (false, false, false, false);
                now.aux = Aux::None;
            });
        }
        cx.afterwards.labels.extend(disk.map(|disk| (disk, Farewell::Spare(leaf.guid))));
        cx.afterwards.tell(Event::SpareReturned { spare: device });
    } else {
        cx.afterwards.labels.extend(disk.map(|disk| (disk, Farewell::Gone)));
        cx.afterwards.tell(Event::DeviceDetached { device });
    }
    if let Some(top) = top {
        grow::automatically(cx, top).await?;
    }
    Ok(true)
}

/// Replacements that are whole take their places, spares whose device is whole again go back to rest.
pub(super) fn resilvered(cx: &mut Syncer) -> BoxFuture<'_, Result<(), OpError>> {
    Box::pin(async move {
        loop {
            let tree = cx.io.tree();
            let mut done = None;
            tree.tops.iter().for_each(|top| hunt(&tree, top, &mut done));
            let Some((parent, leaf)) = done else { return Ok(()) };
            relieve(&tree, parent);
            if !take_out(cx, &tree, parent, leaf).await? {
                // What it is needed for is resilvered first.
                return Ok(());
            }
        }
    })
}

/// The old device of a replacement leaves: what stood in for it is not needed once a new one is whole.
fn relieve(tree: &Tree, parent: &Vdev) {
    if parent.kind == Kind::Replacing && tree.tops.iter().any(|top| has_stand_in(top, parent.guid)) {
        let heirs = parent.children[1..].iter().filter_map(|child| child.leaf.as_ref());
        heirs.for_each(|heir| heir.condition.update(|now| now.unspare = true));
    }
}

/// Whether a spare stands in for the device with this guid, in or below `vdev`.
fn has_stand_in(vdev: &Vdev, guid: u64) -> bool {
    let is_first = vdev.children.first().is_some_and(|first| first.guid == guid);
    vdev.kind == Kind::Spare && is_first || vdev.children.iter().any(|child| has_stand_in(child, guid))
}

/// A pool was opened: a device that is there again, and lacks what was written in the meantime, lets the spare that stands
/// in for it go as soon as it is whole. Nobody took it online, which would have said so. One that gave wrong bytes keeps its
/// spare until somebody says that it is well.
pub(super) fn returned(tree: &Tree) {
    fn each(vdev: &Vdev) {
        vdev.children.iter().for_each(each);
        if vdev.kind == Kind::Spare
            && let Some(first) = vdev.children.first()
            && let Some(leaf) = first.leaf.as_ref().filter(|leaf| !leaf.is_spare)
            && first.state().0 == State::Healthy
            && !leaf.missed.get().is_empty()
        {
            leaf.condition.update(|now| now.unspare = true);
        }
    }
    tree.tops.iter().for_each(each);
}

/// A leaf that has done its duty, and its parent.
fn hunt<'a>(tree: &Tree, vdev: &'a Vdev, done: &mut Option<(&'a Vdev, &'a Vdev)>) {
    vdev.children.iter().for_each(|child| hunt(tree, child, done));
    let (Some(first), Some(last)) = (vdev.children.first(), vdev.children.last()) else { return };
    let is_whole = |vdev: &Vdev| replicas::outage(vdev, None).is_empty();
    let is_spare = |vdev: &Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.is_spare);
    let back = |vdev: &Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.get().unspare);
    let leaving = match &vdev.kind {
        _ if done.is_some() || vdev.children.len() < 2 => None,
        // The last one is the newest.
        Kind::Replacing if is_whole(last) => Some(newest_leaf(vdev, first)),
        // A stand-in goes when its device is back, not if an administrator put it beside a healthy one.
        Kind::Spare if is_whole(first) && back(first) => {
            vdev.children[1..].iter().rev().find(|child| is_spare(child)).map(|spare| (vdev, spare))
        }
        _ => None,
    };
    if let Some((_, leaf)) = leaving
        && !replicas::is_required(tree, leaf.guid)
    {
        *done = leaving;
    }
}

/// The last leaf of what is to go, which may be spared itself, and its parent.
fn newest_leaf<'a>(parent: &'a Vdev, vdev: &'a Vdev) -> (&'a Vdev, &'a Vdev) {
    vdev.children.last().map_or((parent, vdev), |last| newest_leaf(vdev, last))
}
