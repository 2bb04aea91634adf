//! How far a range reaches that is to be freed in one go.
//!
//! What it costs to free blocks goes by those that are there: a range of an exabyte may have three of them, and one of a
//! gigabyte a million. So it is cut by what the tree says: the fill count in the pointer to each indirect block above the
//! data. Holes are passed over at the level that says so.
//!
//! Those indirect blocks are read as well. Whoever frees what is below them has to, in a transaction group, where it would be
//! too late to find out that it cannot be done.

use std::ops::Range;

use ondisk::blkptr::BlkPtr;
use pool::{
    Bookmark,
    dmu::{Cursor, Object, ReadError, Step},
};

/// The least that what lies below one indirect block weighs: it is read to free any of it. And blocks that are not counted:
/// as many may be there.
const SMALL: u64 = 64;

/// Indirect blocks that are read at a time, and held in memory.
const AT_ONCE: usize = 16;

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
/// An indirect block above any of its blocks cannot be read.
pub(crate) async fn portion(object: &Object, blocks: Range<u64>, max: u64) -> Result<Portion, ReadError> {
    let len = blocks.end.saturating_sub(blocks.start);
    if object.levels() < 2 {
        return Ok(Portion { end: blocks.end, weight: len.min(SMALL) });
    }
    let mut unread = Vec::new();
    let fanout = object.fanout();
    let last = blocks.end.min(object.max_block_id().saturating_add(1));
    let mut cursor = Cursor::default();
    let (mut at, mut weight) = (blocks.start, 0_u64);
    while at < last {
        let parent = fanout.ancestor(at, 1);
        match object.seek(&mut cursor, 1, parent).await? {
            Step::Block(pointer) => {
                let next = fanout.first_descendant(parent.saturating_add(1), 1);
                // The count may be a lie, but not more than the place has room for.
                let here = pointer.fill().min(next.min(last) - at).max(SMALL);
                if weight > 0 && weight + here > max {
                    read(object, &mut unread).await?;
                    return Ok(Portion { end: at, weight });
                }
                unread.push((pointer, object.bookmark(1, parent)));
                if unread.len() == AT_ONCE {
                    read(object, &mut unread).await?;
                }
                weight += here;
                at = next;
            }
            Step::Hole { until, .. } => {
                at = fanout.first_descendant(until.max(parent.saturating_add(1)), 1);
            }
            // `seek` does not return it.
            Step::Need { .. } => break,
        }
    }
    read(object, &mut unread).await?;
    Ok(Portion { end: blocks.end, weight: if len <= SMALL { len } else { weight } })
}

/// Reads what was not read yet.
async fn read(object: &Object, unread: &mut Vec<(BlkPtr, Bookmark)>) -> Result<(), ReadError> {
    let contents = object.source().read_many(unread).await;
    unread.clear();
    contents.into_iter().try_for_each(|content| content.map(drop).map_err(ReadError::from))
}
