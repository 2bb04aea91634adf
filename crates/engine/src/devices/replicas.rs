//! Which leaves the pool cannot do without: what of a top-level device would be unreadable if one of them were gone.
//!
//! Facts: docs/format/vdevs.md §6 (OUTAGE, rule 3).

use futures_util::future::join_all;
use pool::vdev::{Kind, Tree, TxgSet, Vdev};

use super::{
    find,
    watch::{Probed, probe},
};

/// Whether data would be lost or unreadable without leaf `guid`: it is the only one that has what was written in some
/// transaction group.
pub(super) fn is_required(tree: &Tree, guid: u64) -> bool {
    let Some(place) = find::locate(tree, guid) else { return false };
    place.parent.is_none() || !outage(place.top, Some(guid)).is_empty()
}

/// Whether so many devices are away, or do not answer, that the pool cannot be read: asked of themselves, as who watches
/// them may not know yet. What cannot be read then is not lost.
pub(crate) async fn is_cut_off(tree: &Tree) -> bool {
    let leaves = tree.leaves().into_iter().filter(|vdev| vdev.is_readable());
    let probes = leaves.filter_map(|vdev| {
        let (guid, disk) = (vdev.guid, vdev.leaf.as_ref()?.timed()?);
        Some(async move { (!matches!(probe(&disk).await, Probed::Here)).then_some(guid) })
    });
    let absent: Vec<u64> = join_all(probes).await.into_iter().flatten().collect();
    let is_log = |top: &Vdev| top.top.as_ref().is_some_and(|top| top.is_log);
    tree.tops.iter().any(|top| !is_log(top) && is_without(top, &absent))
}

/// Whether nothing can be read from `vdev` without the leaves of `absent` and those that are known to be away.
fn is_without(vdev: &Vdev, absent: &[u64]) -> bool {
    if vdev.leaf.is_some() {
        return absent.contains(&vdev.guid) || !vdev.is_readable();
    }
    let without = vdev.children.iter().filter(|child| is_without(child, absent)).count();
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
