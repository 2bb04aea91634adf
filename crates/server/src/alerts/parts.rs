//! The devices of a pool one by one, each with where it is in the tree: what it is for, what goes on without it, what shares its
//! place; and what a person calls it.

use std::collections::BTreeMap;

use engine::devices::{OLD, is_in_place};
use pool::{
    status::VdevStatus,
    vdev::{Class, State},
};

use super::facts::Facts;
use crate::{api::alerts::AlertDevice, disks::Identity};

/// A device and where it is.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) vdev: &'a VdevStatus,
    pub(super) role: Role,
    /// The mirror or RAIDZ device it is a part of.
    pub(super) parent: Option<&'a VdevStatus>,
    /// The `replacing` or `spare` device it is in.
    pub(super) within: Option<&'a VdevStatus>,
}

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Data.
    Data,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
    /// The intent log.
    Log,
    /// A hot spare.
    Spare,
    /// A read cache.
    Cache,
}

impl Role {
    fn of(class: Class) -> Self {
        match class {
            Class::Log => Self::Log,
            Class::Special => Self::Special,
            Class::Dedup => Self::Dedup,
            _ => Self::Data,
        }
    }

    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Data => "disk",
            Self::Special => "special device",
            Self::Dedup => "dedup device",
            Self::Log => "log device",
            Self::Spare => "hot spare",
            Self::Cache => "cache device",
        }
    }

    /// Whether it is beside the pool's data: no scrub reads it, and no other takes its place by a resilver.
    pub(super) fn is_beside(self) -> bool {
        matches!(self, Self::Spare | Self::Cache)
    }
}

impl Facts {
    /// All leaves of a pool with what is above them; spares and cache devices, too.
    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        let alone = |vdev, role| Part { vdev, role, parent: None, within: None };
        let mut found = Vec::new();
        for top in &self.root.children {
            alone(top, Role::of(top.class)).leaves(&mut found);
        }
        found.extend(self.spares.iter().map(|vdev| alone(vdev, Role::Spare)));
        found.extend(self.cache.iter().map(|vdev| alone(vdev, Role::Cache)));
        found
    }

    /// A device that is there, if nothing worse is told of it than errors.
    pub(super) fn no_worse(&self, guid: u64) -> Option<Part<'_>> {
        self.parts().into_iter().find(|Part { vdev, .. }| {
            vdev.guid == guid && matches!(vdev.state, State::Healthy | State::Offline | State::Closed)
        })
    }

    /// Whether a device is another one, or below it.
    pub(super) fn is_within(&self, guid: u64, whole: u64) -> bool {
        fn find(vdev: &VdevStatus, guid: u64) -> Option<&VdevStatus> {
            if vdev.guid == guid {
                Some(vdev)
            } else {
                vdev.children.iter().find_map(|child| find(child, guid))
            }
        }
        let mut all = [&self.root].into_iter().chain(&self.spares).chain(&self.cache);
        all.find_map(|vdev| find(vdev, whole)).is_some_and(|vdev| find(vdev, guid).is_some())
    }
}

impl<'a> Part<'a> {
    fn leaves(self, found: &mut Vec<Self>) {
        if self.vdev.children.is_empty() {
            found.push(self);
            return;
        }
        let is_inner = matches!(self.vdev.type_word.as_str(), "replacing" | "spare");
        // A spare in use, and a disk being replaced, are part of what they are in for.
        let parent = self.parent.filter(|_| is_inner).or(Some(self.vdev));
        let within = if is_inner { Some(self.vdev) } else { self.within };
        for vdev in &self.vdev.children {
            Self { vdev, parent, within, ..self }.leaves(found);
        }
    }

    /// What shares its place, itself too, if that is more than itself.
    pub(super) fn beside(&self) -> &'a [VdevStatus] {
        self.within.map(|within| within.children.as_slice()).unwrap_or_default()
    }

    /// Whether its successor has its place: then its path, and what `zpool status` calls it, end in a mark that is nothing a
    /// person finds in the machine.
    pub(super) fn is_superseded(&self) -> bool {
        let place = self.vdev.path.as_deref().and_then(|path| path.strip_suffix(OLD));
        let succeeds = |other: &VdevStatus, place: &str| {
            other.path.as_deref().is_some_and(|path| is_in_place(path, place))
        };
        place.is_some_and(|place| self.beside().iter().any(|other| succeeds(other, place)))
    }

    fn unmarked<'t>(&self, text: &'t str) -> &'t str {
        if self.is_superseded() { text.strip_suffix(OLD).unwrap_or(text) } else { text }
    }

    /// What it is a part of, if that goes on without it.
    pub(super) fn rest(&self) -> Option<&'a VdevStatus> {
        self.parent.filter(|parent| parent.state.is_readable())
    }

    /// What a person calls it: by where it is or was, though commands may know it by its guid only.
    pub(super) fn called(&self) -> String {
        self.unmarked(&self.vdev.import_name()).to_owned()
    }

    /// It with what is known about the disk.
    pub(super) fn described(
        &self,
        identity: Option<&Identity>,
        labels: &BTreeMap<String, String>,
    ) -> AlertDevice {
        let vdev = self.vdev;
        let known = identity.cloned().unwrap_or_default();
        let (name, path) = (self.called(), vdev.path.as_deref().map(|path| self.unmarked(path).to_owned()));
        let names = [known.serial.as_ref(), known.by_id.as_ref(), known.by_path.as_ref(), path.as_ref()];
        let label = names.into_iter().flatten().chain([&name, &vdev.name]).find_map(|name| labels.get(name));
        AlertDevice {
            name,
            guid: vdev.guid.to_string(),
            path: path.or_else(|| (!known.path.is_empty()).then_some(known.path)),
            by_id: known.by_id,
            model: known.model,
            serial: known.serial,
            bytes: known.bytes.or(vdev.device_bytes),
            bay: label.cloned().or(known.bay),
            part_of: self.parent.map(|parent| parent.name.clone()),
        }
    }
}

/// Where descriptions of disks come from.
pub(super) trait Catalog {
    /// The device of a part.
    fn device(&self, part: &Part<'_>) -> AlertDevice;
}
