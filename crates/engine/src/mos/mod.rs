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
pub mod zap;

/// The object directory of the MOS.
pub const DIRECTORY: u64 = 1;
