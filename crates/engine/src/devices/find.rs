//! Which device is meant: words of an administrator, guids, and where a device stands in the tree.

use std::collections::BTreeSet;

use pool::{
    Pool,
    status::VdevStatus,
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
/// name in `zpool status`, its path or its guid. One that is away may have had the path that another has by now: one that is
/// shown by its guid for that it was not found is not meant by it; of one that was removed or failed while it was in use the
/// path was told to people.
///
/// # Errors
/// `no such device in pool`, in OpenZFS's words, or which guids there are to choose from.
pub fn find(view: &Pool, word: &str) -> Result<u64, OpError> {
    let is_meant = |vdev: &Vdev| {
        vdev.guid != 0
            && (vdev.path.as_deref() == Some(word)
                || vdev.guid.to_string() == word
                || vdev.display_name() == word
                || vdev.path.as_deref().and_then(|path| path.strip_prefix("/dev/")) == Some(word))
    };
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
    // A spare in use is in the tree and in their list.
    let mut seen = BTreeSet::new();
    meant.retain(|vdev| seen.insert(vdev.guid));
    if let Some(vdev) = meant.iter().find(|vdev| vdev.guid.to_string() == word) {
        return Ok(vdev.guid);
    }
    let is_called_so = |vdev: &&Vdev| !VdevStatus::of(vdev, None).not_present;
    if meant.iter().any(is_called_so) {
        meant.retain(is_called_so);
    }
    match meant[..] {
        [] => Err(OpError::Refused("no such device in pool".to_owned())),
        [vdev] => Ok(vdev.guid),
        _ => {
            let state = |vdev: &&Vdev| {
                let (state, aux) = vdev.state();
                format!("{} ({})", vdev.guid, state.word(aux))
            };
            let all: Vec<String> = meant.iter().map(state).collect();
            Err(OpError::Refused(format!(
                "'{word}' is more than one device of the pool: {}; name it by its guid",
                all.join(", ")
            )))
        }
    }
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
