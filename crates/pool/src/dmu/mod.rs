//! Objects: from a block pointer of an object set to the bytes of any object in it.
//!
//! ```text
//!   objset block ─▶ meta dnode ─▶ … ─▶ dnode block ─▶ dnode N ─▶ indirect ─▶ … ─▶ data block
//!                   (object 0: its data are the dnodes)         level n-1        level 0
//! ```
//!
//! An [`ObjectSet`] finds dnodes, an [`Object`] is a dnode whose geometry has been checked, and a
//! [`Cursor`] walks down its tree one block at a time. The walk itself never waits: it names the block it
//! needs, and whoever drives it decides whether to take that from memory only (the path of a cache hit) or
//! to read it. Everything a dnode says is a claim by a stranger: levels, sizes and block ids are checked
//! against each other before they are used, so a hostile tree ends in a [`ReadError`] that names the block.
//!
//! Not here: how blocks are read and cached (`io`), what objects mean (`zap`, `dsl`, `volume`, `zpl`).
//! Facts: docs/format/dmu.md.

mod cursor;
mod object;
mod objset;
mod source;
mod together;

pub use cursor::{Cursor, Step};
pub use object::{Block, DnodeAt, Object, Run, Runs};
pub use objset::{ObjectSet, Objects};
pub use source::{BlockSource, SourceFuture, Unblamed};
pub(crate) use together::pointers;

use crate::{error::BlockError, io::Bookmark};

/// Why something could not be read from an object.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A block on the way could not be read.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A block was read, with the right checksum, and cannot be what its parent says it is.
    #[error("block {at}: {source}")]
    Malformed {
        /// Which block.
        at: Bookmark,
        /// What is wrong in it.
        source: ondisk::Error,
    },
    /// Structures that are each legal contradict each other.
    #[error("block {at}: {what}")]
    Inconsistent {
        /// The block that holds the claim.
        at: Bookmark,
        /// The contradiction.
        what: &'static str,
    },
    /// Something points to an object that is not allocated.
    #[error("object {object} of object set {objset} does not exist")]
    NoObject {
        /// Object number of the dataset in the MOS; 0 is the MOS.
        objset: u64,
        /// The object.
        object: u64,
    },
    /// An object is larger than what can sensibly be read in one piece.
    #[error("object {object} of object set {objset} is larger than {limit} bytes")]
    TooLarge {
        /// Object number of the dataset in the MOS; 0 is the MOS.
        objset: u64,
        /// The object.
        object: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl ReadError {
    /// Shorthand for [`ReadError::Malformed`] in a `map_err`.
    pub fn malformed(at: Bookmark) -> impl FnOnce(ondisk::Error) -> Self {
        move |source| Self::Malformed { at, source }
    }
}
