//! What the pool must hold, and what commands do to it.

use std::collections::BTreeMap;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) bytes: Vec<u8>,
    /// Snapshots taken later have a greater number.
    pub(crate) age: u32,
    pub(crate) held: bool,
    /// It goes with its last hold or clone.
    pub(crate) deferred: bool,
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Twin {
    pub(crate) volumes: BTreeMap<String, Vec<u8>>,
    /// Block sizes of volumes.
    pub(crate) blocks: BTreeMap<String, u32>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    /// Clone to snapshot.
    pub(crate) origins: BTreeMap<String, String>,
    /// By full name.
    pub(crate) bookmarks: Vec<String>,
}

/// The volume of a snapshot or bookmark.
pub(crate) fn head(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or_default()
}

impl Twin {
    pub(crate) fn snapshots_of(&self, volume: &str) -> Vec<String> {
        self.snapshots.keys().filter(|name| head(name) == volume).cloned().collect()
    }

    pub(crate) fn newest_of(&self, volume: &str) -> Option<String> {
        self.snapshots_of(volume).into_iter().max_by_key(|name| self.snapshots[name].age)
    }

    pub(crate) fn has_clones(&self, snapshot: &str) -> bool {
        self.origins.values().any(|origin| origin == snapshot)
    }

    /// Snapshots whose destruction waited for what is gone now go as well.
    pub(crate) fn settle(&mut self) {
        let origins = &self.origins;
        self.snapshots.retain(|name, snapshot| {
            !snapshot.deferred || snapshot.held || origins.values().any(|origin| origin == name)
        });
    }

    pub(crate) fn destroy_volume(&mut self, name: &str) {
        self.volumes.remove(name);
        self.blocks.remove(name);
        self.origins.remove(name);
        self.bookmarks.retain(|bookmark| head(bookmark) != name);
        self.settle();
    }

    /// A snapshot gets another full name.
    fn move_snapshot(&mut self, from: &str, to: &str) {
        if let Some(snapshot) = self.snapshots.remove(from) {
            self.snapshots.insert(to.to_owned(), snapshot);
        }
        for origin in self.origins.values_mut().filter(|origin| *origin == from) {
            to.clone_into(origin);
        }
    }

    pub(crate) fn rename_snapshot(&mut self, from: &str, to: &str) {
        self.move_snapshot(from, to);
    }

    pub(crate) fn rename_volume(&mut self, from: &str, to: &str) {
        for snapshot in self.snapshots_of(from) {
            self.move_snapshot(&snapshot, &snapshot.replacen(from, to, 1));
        }
        if let Some(bytes) = self.volumes.remove(from) {
            self.volumes.insert(to.to_owned(), bytes);
        }
        if let Some(block) = self.blocks.remove(from) {
            self.blocks.insert(to.to_owned(), block);
        }
        if let Some(origin) = self.origins.remove(from) {
            self.origins.insert(to.to_owned(), origin);
        }
        for bookmark in self.bookmarks.iter_mut().filter(|bookmark| head(bookmark) == from) {
            *bookmark = bookmark.replacen(from, to, 1);
        }
    }

    /// Snapshots up to the origin change hands; the origin of the old one becomes the clone's.
    pub(crate) fn promote(&mut self, clone: &str) {
        let Some(origin) = self.origins.remove(clone) else { return };
        let old = head(&origin).to_owned();
        let age = self.snapshots[&origin].age;
        let inherited = self.origins.remove(&old);
        for moved in self.snapshots_of(&old) {
            if self.snapshots[&moved].age <= age {
                self.move_snapshot(&moved, &moved.replacen(&old, clone, 1));
            }
        }
        self.origins.insert(old.clone(), origin.replacen(&old, clone, 1));
        if let Some(inherited) = inherited {
            self.origins.insert(clone.to_owned(), inherited);
        }
    }
}
