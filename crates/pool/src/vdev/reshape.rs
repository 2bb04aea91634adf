//! Another arrangement of devices that are open: a mirror gets a side, a spare steps in, a replacement takes over.
//!
//! The new tree is built from the new configuration, and whatever it has in common with the old one is the very same:
//! how a leaf is, what it missed, errors counted, what was learnt of top-level devices. So readers and writers of both
//! trees see one pool while they move from the old to the new.

use std::{collections::BTreeMap, sync::Arc};

use ondisk::nvlist::NvList;

use super::{Condition, ConfigError, Disks, Tree, Vdev};

impl Tree {
    /// The devices of this tree arranged as `tops` says. `disks` are those of leaves that are new.
    ///
    /// # Errors
    /// The configuration is no possible tree.
    pub fn reshaped(&self, tops: &[&NvList], disks: &Disks) -> Result<Self, ConfigError> {
        let mut tree = Self::from_tops(self.guid, tops, disks, None)?;
        tree.counters = self.counters.clone();
        let mut known = BTreeMap::new();
        self.tops.iter().for_each(|top| collect(top, &mut known));
        for (top, old) in tree.tops.iter_mut().zip(&self.tops) {
            if let (Some(top), Some(old)) = (&mut top.top, &old.top) {
                top.bias = old.bias.clone();
                top.mapping = old.mapping.clone();
                top.expansion = old.expansion.clone();
            }
        }
        tree.tops.iter_mut().for_each(|top| keep(top, &known));
        Ok(tree)
    }

    /// Lets the leaf with the guid of `device`, which was no part of a tree so far, be as that is from now on: a spare at rest
    /// steps in. Its disk, and what that still owes, is the same in both.
    pub fn share_condition(&mut self, device: &Vdev) {
        if let Some(leaf) = &device.leaf {
            self.tops.iter_mut().for_each(|top| share(top, device.guid, &leaf.condition));
        }
    }
}

fn share(vdev: &mut Vdev, guid: u64, condition: &Arc<Condition>) {
    if vdev.guid == guid
        && let Some(leaf) = &mut vdev.leaf
    {
        leaf.condition = Arc::clone(condition);
    }
    vdev.children.iter_mut().for_each(|child| share(child, guid, condition));
}

fn collect<'a>(vdev: &'a Vdev, known: &mut BTreeMap<u64, &'a Vdev>) {
    // Holes have no guid.
    if vdev.guid != 0 {
        known.insert(vdev.guid, vdev);
    }
    vdev.children.iter().for_each(|child| collect(child, known));
}

fn keep(vdev: &mut Vdev, known: &BTreeMap<u64, &Vdev>) {
    if let Some(old) = known.get(&vdev.guid) {
        vdev.counters = old.counters.clone();
        if let (Some(leaf), Some(old)) = (&mut vdev.leaf, &old.leaf) {
            leaf.condition = old.condition.clone();
            leaf.missed = old.missed.clone();
            leaf.gate = old.gate.clone();
            leaf.pulse = old.pulse.clone();
        }
    }
    vdev.children.iter_mut().for_each(|child| keep(child, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(id: u64, guid: u64) -> NvList {
        let mut nv = NvList::new();
        nv.set("type", "file");
        nv.set("id", id);
        nv.set("guid", guid);
        nv
    }

    #[test]
    fn what_stays_in_the_tree_stays_the_same() {
        let old = Tree::from_tops(1, &[&leaf(0, 11)], &Disks::new(), None).unwrap();
        let mut mirror = leaf(0, 20);
        mirror.set("type", "mirror");
        mirror.set("children", vec![leaf(0, 11), leaf(1, 12)]);
        let new = old.reshaped(&[&mirror], &Disks::new()).unwrap();
        let of = |tree: &Tree| tree.leaves()[0].leaf.as_ref().unwrap().missed.clone();
        of(&old).add(5);
        old.tops[0].counters.count_read();
        assert!(of(&new).contains(5) && new.leaves()[0].counters.get().read == 1);
        assert_eq!(new.leaves()[1].counters.get().read, 0);
        assert_eq!(new.guid_sum(), 1 + 11 + 12 + 20);
    }
}
