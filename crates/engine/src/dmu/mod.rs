//! An object set as it will be: dnodes and blocks that differ from what is on disk, and how they get there.
//!
//! Reads see every change at once. Nothing is allocated or written before [`MutSet::sync`]. After it the set is
//! clean, and stands for the state its new root pointer describes, so it can live on into the next transaction
//! group.
//!
//! ```text
//!   set      MutSet: the changed objects over the last root; sync from objects to the root block
//!   dnodes   which numbers are free, dnodes on disk          content   blocks and bytes of an object
//!   object   one changed object                              ranges    what was punched out of it
//!   tree     one object's blocks, bottom up                  commit    what trees share; freeing subtrees
//!   portion  how much of it is freed in one go
//! ```
//!
//! Facts: docs/format/dmu.md.

mod commit;
mod content;
mod dnodes;
mod object;
mod portion;
mod ranges;
mod set;
mod sink;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use ondisk::{blkptr::BlkPtr, dnode::ObjectType};

pub(crate) use portion::{Portion, portion};
pub use set::MutSet;

use crate::{BoxFuture, EngineError};

/// Hears of every block that appears in and disappears from an object set.
///
/// A block written again in its place is neither. Holes are not reported; embedded blocks are.
pub trait Account: Send {
    /// A new block.
    fn born(&mut self, bp: &BlkPtr);
    /// A block that is no longer part of the set. Whether it can be freed is the listener's business.
    fn killed(&mut self, bp: &BlkPtr);
    /// Killed blocks that are to be freed now. Asked often, so that a listener need not remember a million of them; the
    /// last ones stay with it.
    fn to_free(&mut self) -> Vec<BlkPtr> {
        Vec::new()
    }
    /// Work to be done before more is killed, for the same reason.
    fn to_do(&mut self) -> Option<BoxFuture<'_, Result<(), EngineError>>> {
        None
    }
}

/// What a new object is to be.
#[derive(Clone, Debug)]
pub struct NewObject<'a> {
    /// Its type.
    pub object_type: ObjectType,
    /// Bytes of a data block; a multiple of 512.
    pub block_bytes: u32,
    /// log2 of an indirect block: 17 unless the object is a space map (14).
    pub indirect_shift: u8,
    /// What the bonus is; [`ObjectType::NONE`] without one.
    pub bonus_type: ObjectType,
    /// The bonus.
    pub bonus: &'a [u8],
    /// Compression of its own, 0 to inherit (sync_bplist has 2, off).
    pub compression_id: u8,
}

impl<'a> NewObject<'a> {
    /// An object of 512-byte blocks without bonus.
    #[must_use]
    pub fn of(object_type: ObjectType) -> Self {
        Self {
            object_type,
            block_bytes: 512,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: &[],
            compression_id: 0,
        }
    }
    /// With blocks of this many bytes.
    #[must_use]
    pub fn blocks(self, block_bytes: u32) -> Self {
        Self { block_bytes, ..self }
    }
    /// With a bonus.
    #[must_use]
    pub fn bonus(self, bonus_type: ObjectType, bonus: &'a [u8]) -> Self {
        Self { bonus_type, bonus, ..self }
    }
}
