//! The pool's history: a ring of records. Facts: docs/format/mos.md §9.

use ondisk::nvlist::NvList;

use crate::{EngineError, dmu::MutSet};

/// Creates the object and its directory entry. `pool_bytes` is the deflated capacity.
pub async fn create(_mos: &mut MutSet, _pool_bytes: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Appends a record, overwriting the oldest where the ring is full. Nothing if the pool has no history object.
pub async fn append(_mos: &mut MutSet, _record: &NvList) -> Result<(), EngineError> {
    todo!("mos")
}
