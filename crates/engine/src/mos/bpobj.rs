//! Lists of block pointers (`bpobj`). Facts: docs/format/mos.md §8.

use ondisk::{
    blkptr::BlkPtr,
    bpobj::{BpobjEntry, BpobjPhys},
};

use crate::{
    EngineError,
    dmu::MutSet,
    policy::Traits,
    space::{Deflate, Space},
};

/// A new list with blocks of `block_bytes` (128 KiB; 16 KiB for sync_bplist, with compression off).
pub async fn create(_mos: &mut MutSet, _traits: &Traits, _block_bytes: u32) -> Result<u64, EngineError> {
    todo!("mos")
}
/// Its header.
pub async fn header(_mos: &mut MutSet, _object: u64) -> Result<BpobjPhys, EngineError> {
    todo!("mos")
}
/// Appends pointers.
pub async fn append(
    _mos: &mut MutSet,
    _object: u64,
    _deflate: &Deflate,
    _pointers: &[BlkPtr],
) -> Result<(), EngineError> {
    todo!("mos")
}
/// Appends a whole list as a part; `part` belongs to `object` afterwards. An empty part is freed instead (the
/// shared empty one: only the reference is dropped, which the caller counts).
pub async fn append_list(_mos: &mut MutSet, _object: u64, _part: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Takes up to `max` pointers out of the list, parts included and freed when used up. Empty when the list is.
pub async fn take(
    _mos: &mut MutSet,
    _object: u64,
    _deflate: &Deflate,
    _max: usize,
) -> Result<Vec<BpobjEntry>, EngineError> {
    todo!("mos")
}
/// Every pointer, parts included. For lists known to be small, and tests.
pub async fn all(_mos: &mut MutSet, _object: u64) -> Result<Vec<BpobjEntry>, EngineError> {
    todo!("mos")
}
/// What of the list was born in `(after, until]`.
pub async fn space_in(
    _mos: &mut MutSet,
    _object: u64,
    _deflate: &Deflate,
    _after: u64,
    _until: u64,
) -> Result<Space, EngineError> {
    todo!("mos")
}
/// Frees the list's objects, not the blocks it names.
pub async fn destroy(_mos: &mut MutSet, _object: u64) -> Result<(), EngineError> {
    todo!("mos")
}
