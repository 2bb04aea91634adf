//! Which leaves the pool cannot do without: what of a top-level device would be unreadable if one of them were gone, and
//! what is, while some are.
//!
//! Facts: docs/format/vdevs.md §6 (OUTAGE, rule 3).

use std::collections::BTreeMap;

use futures_util::future::join_all;
use ondisk::blkptr::BlkPtr;
use pool::vdev::{Kind, Leaf, Tree, TxgSet, Vdev};

use super::{find, probe::answers};

/// Whether data would be lost or unreadable without leaf `guid`: it is the only one that has what was written in some
/// transaction group.
pub(super) fn is_required(tree: &Tree, guid: u64) -> bool {
    let Some(place) = find::locate(tree, guid) else { return false };
    place.parent.is_none() || !outage(place.top, Some(guid)).is_empty()
}

/// Leaves that are away, or do not answer. What cannot be read because of them is not lost.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    /// Those of which only they themselves knew; the others are known by their state.
    found: Vec<u64>,
}

impl Absent {
    /// These, as somebody found.
    pub(crate) fn of(found: Vec<u64>) -> Self {
        Self { found }
    }

    /// Asks the leaves themselves: who watches them may not know yet.
    pub(crate) async fn ask(tree: &Tree) -> Self {
        let leaves = tree.leaves().into_iter().filter(|vdev| vdev.is_readable());
        let probes = leaves.filter_map(|vdev| {
            let (guid, disk) = (vdev.guid, vdev.leaf.as_ref()?.timed()?);
            Some(async move { (!answers(&disk).await).then_some(guid) })
        });
        Self { found: join_all(probes).await.into_iter().flatten().collect() }
    }

    /// Whether so many are that the pool cannot be read.
    pub(crate) fn cuts_off(&self, tree: &Tree) -> bool {
        tree.tops.iter().any(|top| !top.is_log() && self.is_without(top, None))
    }

    /// Whether a block that could not be read is on some that left while the pool was open, and those that stayed do not
    /// have it: they missed what was written then. What was away from the beginning may be gone for good, and to wait for
    /// that would keep from everybody what is there.
    pub(crate) fn hides(&self, tree: &Tree, bp: &BlkPtr) -> bool {
        let birth = bp.physical_birth();
        let left = |vdev: &Vdev| has(vdev, birth) && self.has_left(vdev);
        tops(tree, bp).any(|top| self.is_without(top, Some(birth)) && top.leaves().into_iter().any(left))
    }

    /// Whether a leaf that should have a part of this block left while the pool was open, or is here and not in use: what the
    /// others give wrongly it may have right. Of a gang block only its header is known here, so it may be on any.
    pub(crate) fn may_have(&self, tree: &Tree, bp: &BlkPtr) -> bool {
        let birth = bp.physical_birth();
        let may_give = |vdev: &Vdev| self.has_left(vdev) || is_excluded(vdev);
        tops(tree, bp).flat_map(Vdev::leaves).any(|vdev| has(vdev, birth) && may_give(vdev))
    }

    /// Whether a block that nobody gave is not lost yet: one that left may have it, or has it for sure, as it is [late](is_late)
    /// and those that are here are known to lack it.
    pub(crate) fn may_bring(&self, tree: &Tree, bp: &BlkPtr) -> bool {
        let birth = bp.physical_birth();
        let is_owed = |vdev: &Vdev| has(vdev, birth) && is_late(vdev);
        let is_owner_late =
            |top: &Vdev| self.is_without(top, Some(birth)) && top.leaves().into_iter().any(is_owed);
        self.may_have(tree, bp) || tops(tree, bp).any(is_owner_late)
    }

    /// Leaves that should have a part of this block and are not there now, or owe an answer, whenever they left: as long as
    /// they are part of the pool they may come back. With the generation of each, which is another one when it is back.
    pub(crate) fn awaited(&self, tree: &Tree, bp: &BlkPtr) -> BTreeMap<u64, u64> {
        let birth = bp.physical_birth();
        self.away(tops(tree, bp).flat_map(Vdev::leaves).filter(|vdev| has(vdev, birth)))
    }

    /// The same of what may be on any leaf.
    pub(crate) fn awaited_anywhere(&self, tree: &Tree) -> BTreeMap<u64, u64> {
        self.away(tree.leaves().into_iter())
    }

    fn away<'a>(&self, leaves: impl Iterator<Item = &'a Vdev>) -> BTreeMap<u64, u64> {
        let away = leaves.filter(|vdev| self.found.contains(&vdev.guid) || is_out(vdev));
        away.map(|vdev| (vdev.guid, generation(vdev))).collect()
    }

    /// Whether some left while the pool was open, so that what could not be read may come back. For one that is here and not
    /// in use an administrator has to do something, be it in a year.
    pub(crate) fn any(&self, tree: &Tree) -> bool {
        let tops = tree.tops.iter().filter(|top| !top.is_log());
        tops.flat_map(Vdev::leaves).any(|vdev| self.has_left(vdev) && !is_excluded(vdev))
    }

    fn has_left(&self, vdev: &Vdev) -> bool {
        self.found.contains(&vdev.guid) || (generation(vdev) > 0 && !vdev.is_readable())
    }

    /// Whether nothing can be read from `vdev` without those that are absent; or nothing that was born then.
    fn is_without(&self, vdev: &Vdev, birth: Option<u64>) -> bool {
        if let Some(leaf) = &vdev.leaf {
            return self.found.contains(&vdev.guid)
                || !vdev.is_readable()
                || birth.is_some_and(|birth| leaf.missed.contains(birth));
        }
        let without = vdev.children.iter().filter(|child| self.is_without(child, birth)).count();
        is_beyond(vdev, without)
    }
}

/// Leaves without which some of a pool that was just opened cannot be read, although they were there until the last
/// transaction group: they may be late. With the transaction groups of which each has what those that are here lack. None where
/// the pool was gone on with without them before, or what they have is redundant. Logs do not count.
#[must_use]
pub fn late(tree: &Tree) -> Vec<(u64, TxgSet)> {
    let mut late = Vec::new();
    for top in tree.tops.iter().filter(|top| !top.is_log() && top.is_readable()) {
        let lacking = outage(top, None);
        for vdev in top.leaves().into_iter().filter(|vdev| is_late(vdev)) {
            let Some(leaf) = &vdev.leaf else { continue };
            let alone = lacking.without(&leaf.missed.get());
            if !alone.is_empty() {
                late.push((vdev.guid, alone));
            }
        }
    }
    late
}

/// Another number than before if a leaf came or went meanwhile: what could not be read may be there now.
pub(crate) fn comings_and_goings(tree: &Tree) -> u64 {
    // Asked at every read of the writer, so without a list of the leaves.
    fn of(vdev: &Vdev) -> u64 {
        match &vdev.leaf {
            Some(_) => generation(vdev),
            None => vdev.children.iter().map(of).sum(),
        }
    }
    tree.tops.iter().map(of).sum()
}

/// Whether a leaf that should have a part of this block is not there now, or owes an answer.
pub(crate) fn is_away(tree: &Tree, bp: &BlkPtr) -> bool {
    let birth = bp.physical_birth();
    tops(tree, bp).flat_map(Vdev::leaves).any(|vdev| has(vdev, birth) && is_out(vdev))
}

/// How often a leaf came or went while the pool was open.
pub(crate) fn generation(vdev: &Vdev) -> u64 {
    vdev.leaf.as_ref().map_or(0, |leaf| leaf.condition.get().generation)
}

/// Whether a leaf is not there now, or owes an answer.
fn is_out(vdev: &Vdev) -> bool {
    !vdev.is_readable() || vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.deadline().is_silent())
}

/// Whether a leaf is here, and is offline or has failed.
fn is_excluded(vdev: &Vdev) -> bool {
    !vdev.is_readable() && vdev.leaf.as_ref().is_some_and(is_here)
}

/// Whether a leaf has its disk, or had it when that was closed.
fn is_here(leaf: &Leaf) -> bool {
    let now = leaf.condition.get();
    now.disk.is_some() || now.is_let_go()
}

/// Whether a leaf is not here, and has the newest transaction group that it may have got: the pool was never opened without it
/// before.
fn is_late(vdev: &Vdev) -> bool {
    let has_newest = |leaf: &Leaf| !leaf.missed.contains(leaf.condition.newest());
    vdev.leaf.as_ref().is_some_and(|leaf| !is_here(leaf) && has_newest(leaf))
}

/// Top-level devices that a block is on. Of a gang block only its header is known here, so it may be on any.
pub(crate) fn tops<'a>(tree: &'a Tree, bp: &'a BlkPtr) -> impl Iterator<Item = &'a Vdev> {
    let has_it = |top: &&Vdev| match bp.is_gang() {
        true => !top.is_log(),
        false => bp.dvas().any(|dva| u64::from(dva.vdev) == top.id),
    };
    tree.tops.iter().filter(has_it)
}

/// Whether a leaf has what was written in this transaction group, wherever it is now.
fn has(vdev: &Vdev, birth: u64) -> bool {
    vdev.leaf.as_ref().is_some_and(|leaf| !leaf.missed.contains(birth))
}

/// Whether it cannot do without so many of its children.
fn is_beyond(vdev: &Vdev, without: usize) -> bool {
    match vdev.kind {
        Kind::Hole | Kind::Indirect { .. } => false,
        _ => tolerated(vdev).is_none_or(|tolerated| without > tolerated),
    }
}

/// How many of its children it can do without; none where nothing can be read at all.
fn tolerated(vdev: &Vdev) -> Option<usize> {
    match &vdev.kind {
        Kind::Raidz(geometry) => Some(geometry.parity),
        Kind::Mirror | Kind::Replacing | Kind::Spare => Some(vdev.children.len().saturating_sub(1)),
        _ => None,
    }
}

/// The transaction groups of which something cannot be read from `vdev`. `gone` is a leaf to be counted as absent.
pub(super) fn outage(vdev: &Vdev, gone: Option<u64>) -> TxgSet {
    let everything = || TxgSet::from_ranges(vec![(0, u64::MAX)]);
    if let Some(leaf) = &vdev.leaf {
        let absent = gone == Some(vdev.guid) || !vdev.is_readable();
        return if absent { everything() } else { leaf.missed.get() };
    }
    if matches!(vdev.kind, Kind::Hole | Kind::Indirect { .. }) {
        return TxgSet::default();
    }
    let Some(tolerated) = tolerated(vdev) else { return everything() };
    let children: Vec<TxgSet> = vdev.children.iter().map(|child| outage(child, gone)).collect();
    beyond(&children, tolerated)
}

/// The transaction groups that are in more than `tolerated` of the sets.
fn beyond(sets: &[TxgSet], tolerated: usize) -> TxgSet {
    let mut edges: Vec<(u64, bool)> = Vec::new();
    for &(start, end) in sets.iter().flat_map(TxgSet::ranges) {
        edges.push((start, true));
        edges.push((end, false));
    }
    // At the same place ends come before beginnings, as the ranges are half open.
    edges.sort_unstable();
    let (mut depth, mut since, mut found) = (0, None, Vec::new());
    for (txg, begins) in edges {
        if begins {
            depth += 1;
            if depth == tolerated + 1 {
                since = Some(txg);
            }
        } else {
            if depth == tolerated + 1
                && let Some(since) = since.take()
            {
                found.push((since, txg));
            }
            depth -= 1;
        }
    }
    TxgSet::from_ranges(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_missing_on_too_many_are_found() {
        let set = |ranges: &[(u64, u64)]| TxgSet::from_ranges(ranges.to_vec());
        let sets = [set(&[(4, 10), (12, 14)]), set(&[(8, 13)]), set(&[(9, 10), (13, 20)])];
        assert_eq!(beyond(&sets, 0).ranges(), [(4, 20)]);
        assert_eq!(beyond(&sets, 1).ranges(), [(8, 10), (12, 14)]);
        assert_eq!(beyond(&sets, 2).ranges(), [(9, 10)]);
        assert!(beyond(&sets, 3).is_empty());
        assert_eq!(beyond(&[set(&[(0, u64::MAX)])], 0).ranges(), [(0, u64::MAX)]);
    }
}
