//! The structures of the MOS, as edits of a [`MutSet`](crate::dmu::MutSet): name → value objects, lists of block
//! pointers, deadlists, packed lists, history, feature counts. In memory only; `MutSet::sync` writes.
//!
//! Facts: docs/format/mos.md, zap.md, features.md.

pub mod bpobj;
pub mod bptree;
pub mod deadlist;
pub mod features;
pub mod history;
pub mod packed;
pub(crate) mod salt;
#[cfg(test)]
pub(crate) mod testing;
pub mod zap;

use pool::{Bookmark, dmu::ReadError};

use crate::{EngineError, dmu::MutSet};

/// The object directory of the MOS.
pub const DIRECTORY: u64 = 1;

/// A data block, for messages.
fn at(set: &MutSet, object: u64, blkid: u64) -> Bookmark {
    Bookmark { objset: set.id(), object, level: 0, blkid }
}

/// Structures that are each legal contradict each other.
fn inconsistent(set: &MutSet, object: u64, blkid: u64, what: &'static str) -> EngineError {
    ReadError::Inconsistent { at: at(set, object, blkid), what }.into()
}
