//! Which device is meant: words of an administrator, guids, and where a device stands in the tree.

use std::collections::BTreeSet;

use pool::{
    Pool,
    status::VdevStatus,
    vdev::{Kind, Tree, Vdev},
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

impl Place<'_> {
    /// Whether spares stand in for it, or did: it is who they stand in for.
    pub(super) fn is_spared(&self) -> bool {
        self.vdev.id == 0 && self.parent.is_some_and(|parent| parent.kind == Kind::Spare)
    }
}

/// The guid of the device that `word` names in `view`: a leaf, a spare, a cache device or an interior device, by its
/// name in `zpool status`, its path or its guid; a partition that OpenZFS made, by the path of its disk as well. One that is
/// away may have had the path that another has by now: one that is shown by its guid for that it was not found is not meant by
/// it; of one that was removed or failed while it was in use the path was told to people.
///
/// # Errors
/// `no such device in pool`, in OpenZFS's words, or which guids there are to choose from.
pub fn find(view: &Pool, word: &str) -> Result<u64, OpError> {
    let beside: Vec<&Vdev> = view.spares().iter().chain(view.l2cache()).collect();
    find_among(&view.tree(), &beside, word)
}

fn find_among(tree: &Tree, beside: &[&Vdev], word: &str) -> Result<u64, OpError> {
    let is_at = |path: Option<&str>| {
        path.is_some_and(|path| path == word || path.strip_prefix("/dev/") == Some(word))
    };
    let mut meant = those(tree, beside, |vdev| {
        is_at(vdev.path.as_deref()) || vdev.guid.to_string() == word || vdev.display_name() == word
    });
    if meant.is_empty() {
        meant = those(tree, beside, |vdev| is_at(vdev.disk_path()));
    }
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

/// Each device of a tree, and of those beside it, of which `is_meant` is true.
fn those<'a>(tree: &'a Tree, beside: &[&'a Vdev], is_meant: impl Fn(&Vdev) -> bool) -> Vec<&'a Vdev> {
    let mut meant: Vec<&Vdev> = Vec::new();
    for top in &tree.tops {
        each(top, None, &mut |vdev, _| meant.push(vdev));
    }
    meant.extend(beside);
    // A spare in use is in the tree and in their list.
    let mut seen = BTreeSet::new();
    meant.retain(|vdev| vdev.guid != 0 && is_meant(vdev) && seen.insert(vdev.guid));
    meant
}

fn each<'a>(vdev: &'a Vdev, parent: Option<&'a Vdev>, visit: &mut impl FnMut(&'a Vdev, Option<&'a Vdev>)) {
    visit(vdev, parent);
    vdev.children.iter().for_each(|child| each(child, Some(vdev), visit));
}

#[cfg(test)]
mod tests {
    use ondisk::nvlist::{NvList, Value};
    use pool::vdev::Disks;

    use super::*;

    /// A mirror of leaves at these paths, the first of which is of a whole disk: their guids are 2, 3, …
    fn mirror(paths: &[&str]) -> Tree {
        let leaves = paths.iter().zip(0_u64..).map(|(path, id)| {
            let mut leaf = NvList::new();
            leaf.set("type", "disk");
            leaf.set("path", *path);
            for (name, value) in [("id", id), ("guid", id + 2), ("whole_disk", u64::from(id == 0))] {
                leaf.set(name, value);
            }
            leaf
        });
        let leaves = leaves.collect();
        let mut top = NvList::new();
        top.set("type", "mirror");
        for (name, value) in [("id", 0_u64), ("guid", 1), ("ashift", 12)] {
            top.set(name, value);
        }
        top.set("children", Value::NvListArray(leaves));
        Tree::from_tops(9, &[&top], &Disks::new(), None).unwrap()
    }

    /// `zpool offline tank /dev/disk/by-id/X` found nothing, although `X` was shown.
    #[test]
    fn a_disk_that_was_partitioned_by_others_is_found_by_its_own_name() {
        let tree = mirror(&["/dev/disk/by-id/x-part1", "/dev/disk/by-id/y-part1"]);
        let find = |word: &str| find_among(&tree, &[], word).ok();
        for word in ["/dev/disk/by-id/x-part1", "/dev/disk/by-id/x", "disk/by-id/x"] {
            assert_eq!(find(word), Some(2), "{word}");
        }
        assert_eq!(find("/dev/disk/by-id/y"), None, "that partition somebody else made");
        let tree = mirror(&["/dev/sdc1", "/dev/sdc"]);
        assert_eq!(find_among(&tree, &[], "/dev/sdc").ok(), Some(3), "its own path comes first");
    }
}
