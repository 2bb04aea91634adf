//! Packed lists in objects: the configuration, spares, cache devices. Facts: docs/format/mos.md §4.

use ondisk::nvlist::NvList;

use crate::{EngineError, dmu::MutSet};

/// A new object for a packed list.
pub async fn create(_mos: &mut MutSet) -> Result<u64, EngineError> {
    todo!("mos")
}
/// Replaces the list.
pub async fn write(_mos: &mut MutSet, _object: u64, _list: &NvList) -> Result<(), EngineError> {
    todo!("mos")
}
/// Reads the list.
pub async fn read(_mos: &mut MutSet, _object: u64) -> Result<NvList, EngineError> {
    todo!("mos")
}
