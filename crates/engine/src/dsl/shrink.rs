//! Making a volume small, a bounded number of blocks per transaction group.
//!
//! ```text
//!   group 1:  the size that was ├──────── kept ────────┤ freed │ … │ … │     closed to clients from here on
//!   group 2:                    ├──────── kept ────────┤ freed │ freed │ … │
//!   group 3:  the size to be    ├──────── kept ────────┤  the rest is cut off
//! ```
//!
//! The size changes last. Whatever ends this in between (a power cut, the pool being closed) leaves a volume that is as
//! large as it was, with holes where blocks were given up: nothing lies beyond its size, where neither this nor other
//! software would ever look for it, and who asks again goes on where it stopped. Meanwhile clients have no access to what
//! is going to be cut off, so nothing grows there again.

use super::{
    OpError, Properties, Stored,
    edit::{Edit, VOLUME_DATA},
    find::{self, Head},
    properties,
};
use crate::{
    BoxFuture, EngineError,
    dmu::{Portion, portion},
    sync::{Change, Syncer},
    volume::FREED_BLOCK_BYTES,
};

/// Blocks that one transaction group frees, at most. With a snapshot behind them that takes some 30 MiB of memory, and as
/// each group is a few seeks long at least, fewer would make hours of a volume of terabytes.
const BLOCKS_PER_TXG: u64 = 128 << 10;

/// What a block that goes has of the memory for what is dirty, in bytes: half of that is for this.
const BYTES_PER_BLOCK: u64 = 2 * FREED_BLOCK_BYTES;

/// `zfs set`. A snapshot can only have properties of users. A volume that becomes smaller may take several transaction
/// groups: [`OpError::Again`].
pub fn set<'a>(
    cx: &'a mut Syncer,
    name: &'a str,
    properties: &'a Properties,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let before = cx.state();
        let done = properties::set(cx, name, properties).await;
        // An error in the middle of a change: the group fails, and the pool with it.
        let is_fatal = matches!(done, Err(OpError::Engine(_))) && cx.state() != before;
        if is_fatal || matches!(done, Err(OpError::Again)) || cx.shrinking.is_empty() {
            return done;
        }
        // Others may set something else meanwhile, or ask for another size.
        let Some(Stored::Number(size)) = properties.get("volsize") else { return done };
        let Ok(head) = find::head(cx, name).await else { return done };
        if cx.shrinking.get(&head.object) != Some(size) {
            return done;
        }
        cx.shrinking.remove(&head.object);
        let Err(error) = done else { return Ok(()) };
        // It is not going to be finished: clients have all of the volume again.
        cx.changes.push(Change::Properties(head.object));
        Err(OpError::Refused(format!(
            "{error}; a part of what lies beyond the new size has been given up already, and reads as zeroes"
        )))
    })
}

/// Frees blocks beyond `size` bytes of a volume with blocks of `block` bytes, until what is left of them can go with the
/// rest of the command.
///
/// # Errors
/// [`OpError::Again`] if there are more: a part of them is freed.
pub(super) async fn make_way(cx: &mut Syncer, head: Head, size: u64, block: u64) -> Result<(), OpError> {
    // To open it for a change would move its intent log on.
    let mut edit = Edit::open_as_it_is(cx, head.object).await?;
    let data = edit.set.object(VOLUME_DATA).await?;
    let blocks = size.div_ceil(block.max(1))..data.max_block_id().saturating_add(1);
    let most = (cx.dirty_max / BYTES_PER_BLOCK).clamp(1, BLOCKS_PER_TXG);
    let Portion { end, .. } = portion(&data, blocks.clone(), most).await.map_err(EngineError::from)?;
    if end >= blocks.end {
        return Ok(());
    }
    let mut edit = Edit::open(cx, head.object).await?;
    edit.set.punch(VOLUME_DATA, blocks.start..end).await?;
    edit.commit(cx).await?;
    cx.changes.push(Change::Content(head.object));
    cx.shrinking.entry(head.object).and_modify(|least| *least = size.min(*least)).or_insert(size);
    Err(OpError::Again)
}
