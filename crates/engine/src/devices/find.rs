//! Which device is meant: words of an administrator, guids, and where a device stands in the tree.

use pool::{
    Pool,
    vdev::{Tree, Vdev},
};

use crate::{dsl::OpError, events::DeviceName};

/// A device and what it is part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) top: &'a Vdev,
    /// None if it is a top-level device.
    pub(super) parent: Option<&'a Vdev>,
    pub(super) vdev: &'a Vdev,
}

/// The guid of the device that `word` names in `view`: a leaf, a spare, a cache device or an interior device, by its
/// name in `zpool status`, its path or its guid. One that is away may have had the path that another has by now: those that
/// are there come first.
///
/// # Errors
/// `no such device in pool`, in OpenZFS's words.
pub fn find(view: &Pool, word: &str) -> Result<u64, OpError> {
    let is_meant = |vdev: &Vdev| {
        vdev.guid != 0
            && (vdev.path.as_deref() == Some(word)
                || vdev.guid.to_string() == word
                || vdev.display_name() == word
                || vdev.path.as_deref().and_then(|path| path.strip_prefix("/dev/")) == Some(word))
    };
    let is_away = |vdev: &Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_none());
    let tree = view.tree();
    let mut meant: Vec<&Vdev> = Vec::new();
    for top in &tree.tops {
        each(top, None, &mut |vdev, _| {
            if is_meant(vdev) {
                meant.push(vdev);
            }
        });
    }
    meant.extend(view.spares().iter().chain(view.l2cache()).filter(|vdev| is_meant(vdev)));
    let best = meant.into_iter().min_by_key(|vdev| (vdev.guid.to_string() != word, is_away(vdev)));
    best.map(|vdev| vdev.guid).ok_or_else(|| OpError::Refused("no such device in pool".to_owned()))
}

/// The device with this guid, as a person finds it.
#[must_use]
pub fn name(tree: &Tree, guid: u64) -> DeviceName {
    let Some(place) = locate(tree, guid) else {
        return DeviceName { guid, name: guid.to_string(), ..DeviceName::default() };
    };
    DeviceName {
        guid,
        path: place.vdev.path.clone(),
        name: place.vdev.display_name(),
        parent: place.parent.map(Vdev::display_name),
    }
}

/// The device with this guid.
pub(super) fn locate(tree: &Tree, guid: u64) -> Option<Place<'_>> {
    let mut found = None;
    for top in tree.tops.iter().filter(|_| guid != 0) {
        each(top, None, &mut |vdev, parent| {
            if vdev.guid == guid {
                found = Some(Place { top, parent, vdev });
            }
        });
    }
    found
}

/// The leaf with this guid.
///
/// # Errors
/// There is none.
pub(super) fn leaf(tree: &Tree, guid: u64) -> Result<Place<'_>, OpError> {
    match locate(tree, guid) {
        Some(place) if place.vdev.leaf.is_some() => Ok(place),
        Some(_) => Err(OpError::Refused("operation not supported on this type of device".to_owned())),
        None => Err(OpError::Refused("no such device in pool".to_owned())),
    }
}

fn each<'a>(vdev: &'a Vdev, parent: Option<&'a Vdev>, visit: &mut impl FnMut(&'a Vdev, Option<&'a Vdev>)) {
    visit(vdev, parent);
    vdev.children.iter().for_each(|child| each(child, Some(vdev), visit));
}
