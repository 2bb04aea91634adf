//! How far a range reaches that is to be freed in one go.
//!
//! What it costs to free blocks goes by those that are there: a range of an exabyte may have three of them, and one of a
//! gigabyte a million. So it is cut by what the tree says. The indirect blocks above the data are not read for that: the
//! fill count in the pointer to each is enough. Holes are passed over at the level that says so.

use std::ops::Range;

use pool::dmu::{Cursor, Object, ReadError, Step};

use super::tree::up_to;

/// Blocks that are not looked for: that many are freed as quickly as counted.
const SMALL: u64 = 64;

/// The first part of a range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// One past its last block.
    pub(crate) end: u64,
    /// Blocks in it that are there, at most; and at least so many that indirect blocks count which have hardly any
    /// below them, for each of them is read.
    pub(crate) weight: u64,
}

/// The first part of `blocks`, as long as its weight is up to `max`. At least what lies below one indirect block.
///
/// # Errors
/// An indirect block cannot be read.
pub(crate) async fn portion(object: &Object, blocks: Range<u64>, max: u64) -> Result<Portion, ReadError> {
    let len = blocks.end.saturating_sub(blocks.start);
    let is_flat = object.levels() < 2;
    if len <= SMALL || is_flat {
        return Ok(Portion { end: blocks.end, weight: len.min(SMALL) });
    }
    let shift = object.dnode().entries_shift();
    let last = blocks.end.min(object.max_block_id().saturating_add(1));
    let mut cursor = Cursor::default();
    let (mut at, mut weight) = (blocks.start, 0_u64);
    while at < last {
        let parent = object.above(at, 1);
        match object.seek(&mut cursor, 1, parent).await? {
            Step::Block(pointer) => {
                let next = up_to(parent.saturating_add(1), shift);
                // The count may be a lie, but not more than the place has room for.
                let here = pointer.fill().min(next.min(last) - at).max(SMALL);
                if weight > 0 && weight + here > max {
                    return Ok(Portion { end: at, weight });
                }
                weight += here;
                at = next;
            }
            Step::Hole { until, .. } => at = up_to(until.max(parent.saturating_add(1)), shift),
            // `seek` does not return it.
            Step::Need { .. } => break,
        }
    }
    Ok(Portion { end: blocks.end, weight })
}
