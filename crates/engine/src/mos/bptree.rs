//! The list of destroyed datasets whose blocks are still to be freed. Facts: docs/format/mos.md §8.

use ondisk::bpobj::BptreeEntry;

use crate::{EngineError, dmu::MutSet, space::Space};

/// Puts a dataset on the list (creating it, directory entry `bptree_obj` and feature `async_destroy` included).
/// `space` is what it is going to free.
pub async fn push(_mos: &mut MutSet, _entry: &BptreeEntry, _space: Space) -> Result<(), EngineError> {
    todo!("mos")
}
/// The entry to work on, if there is one.
pub async fn first(_mos: &mut MutSet) -> Result<Option<BptreeEntry>, EngineError> {
    todo!("mos")
}
/// Notes progress: `freed` came back; `next` is the entry with its new resume point, or none if it is finished
/// (the list itself goes away when it is empty).
pub async fn progress(
    _mos: &mut MutSet,
    _freed: Space,
    _next: Option<&BptreeEntry>,
) -> Result<(), EngineError> {
    todo!("mos")
}
