//! Where a sweep is: offsets of a top-level device, in whose space it goes, as bytes of the leaf that is swept, and back.

use std::ops::Range;

use ondisk::label::DATA_OFFSET;
use pool::vdev::{Kind, Tree, Vdev};

use crate::devices::find;

/// Bytes done and in all, of a leaf.
pub(super) fn progress(tree: &Tree, guid: u64, next: u64) -> (u64, u64) {
    let Some(place) = find::locate(tree, guid) else { return (0, 0) };
    let asize = place.top.top.as_ref().map_or(0, pool::space::metaslab_bytes);
    (up_to(tree, guid, next.min(asize)), up_to(tree, guid, asize))
}

/// How far a leaf is done, in bytes for blocks, if its top-level device is done up to `offset`.
pub(super) fn up_to(tree: &Tree, guid: u64, offset: u64) -> u64 {
    of_leaf(tree, guid, &(offset..offset)).map_or(0, |range| range.start - DATA_OFFSET)
}

/// Whether a leaf is a part of this top-level device.
pub(super) fn is_in(tree: &Tree, guid: u64, top: u64) -> bool {
    find::locate(tree, guid).is_some_and(|place| place.top.id == top)
}

/// The bytes of a leaf's device that hold a range of its top-level device.
pub(super) fn of_leaf(tree: &Tree, guid: u64, range: &Range<u64>) -> Option<Range<u64>> {
    let place = find::locate(tree, guid)?;
    let Kind::Raidz(geometry) = &place.top.kind else {
        return Some(DATA_OFFSET + range.start..DATA_OFFSET + range.end);
    };
    let holds = |child: &Vdev| child.leaves().iter().any(|leaf| leaf.guid == guid);
    let column = place.top.children.iter().position(holds)? as u64;
    let width = geometry.children as u64;
    // Sectors are dealt out in turn: the first at or behind an offset that falls to this column.
    let row =
        |offset: u64| (offset >> geometry.ashift).saturating_sub(column).div_ceil(width) << geometry.ashift;
    Some(DATA_OFFSET + row(range.start)..DATA_OFFSET + row(range.end))
}

/// The offset of the top-level device up to which all is done if a leaf is done up to `offset`.
pub(super) fn of_top(tree: &Tree, guid: u64, offset: u64) -> u64 {
    match find::locate(tree, guid).map(|place| &place.top.kind) {
        Some(Kind::Raidz(geometry)) => {
            let width = geometry.children as u64;
            // A row less, as columns do not begin in the same.
            offset.saturating_sub(1 << geometry.ashift).saturating_mul(width)
        }
        _ => offset,
    }
}
