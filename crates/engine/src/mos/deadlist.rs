//! Deadlists: blocks of the previous snapshot that the dataset no longer has, by the age at which they were born.
//! Facts: docs/format/mos.md §8, §11.

use ondisk::{blkptr::BlkPtr, bpobj::DeadlistPhys};

use crate::{
    EngineError,
    dmu::MutSet,
    policy::Traits,
    space::{Deflate, Space},
};

/// A new list with these bucket keys, each bucket empty (the shared empty bpobj where the pool has the feature,
/// counted there; created when it is missing).
pub async fn create(_mos: &mut MutSet, _traits: &Traits, _keys: &[u64]) -> Result<u64, EngineError> {
    todo!("mos")
}
/// Its totals.
pub async fn header(_mos: &mut MutSet, _object: u64) -> Result<DeadlistPhys, EngineError> {
    todo!("mos")
}
/// Its buckets in ascending order of keys: (mintxg, bpobj).
pub async fn buckets(_mos: &mut MutSet, _object: u64) -> Result<Vec<(u64, u64)>, EngineError> {
    todo!("mos")
}
/// Inserts blocks, each into the bucket of its birth.
pub async fn insert(
    _mos: &mut MutSet,
    _traits: &Traits,
    _object: u64,
    _deflate: &Deflate,
    _pointers: &[BlkPtr],
) -> Result<(), EngineError> {
    todo!("mos")
}
/// Adds an empty bucket.
pub async fn add_key(
    _mos: &mut MutSet,
    _traits: &Traits,
    _object: u64,
    _mintxg: u64,
) -> Result<(), EngineError> {
    todo!("mos")
}
/// Removes a key; its bucket joins that of the next smaller key.
pub async fn remove_key(
    _mos: &mut MutSet,
    _traits: &Traits,
    _object: u64,
    _mintxg: u64,
) -> Result<(), EngineError> {
    todo!("mos")
}
/// Takes every bucket with key ≥ `mintxg` out of the list, moves its blocks into the bpobj `target` and leaves
/// it empty. Returns what moved. Totals are kept.
pub async fn move_to_bpobj(
    _mos: &mut MutSet,
    _traits: &Traits,
    _object: u64,
    _mintxg: u64,
    _target: u64,
) -> Result<Space, EngineError> {
    todo!("mos")
}
/// Moves all of `other` into `object`, bucket by bucket, and frees `other`.
pub async fn merge(
    _mos: &mut MutSet,
    _traits: &Traits,
    _object: u64,
    _other: u64,
) -> Result<(), EngineError> {
    todo!("mos")
}
/// What of the list lies in buckets whose keys are in `mintxg..maxtxg` (`u64::MAX` for no end): by whole buckets.
pub async fn space_range(
    _mos: &mut MutSet,
    _object: u64,
    _deflate: &Deflate,
    _mintxg: u64,
    _maxtxg: u64,
) -> Result<Space, EngineError> {
    todo!("mos")
}
/// Empties the list, keeping keys: the blocks live again (rollback).
pub async fn clear(_mos: &mut MutSet, _traits: &Traits, _object: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Frees the list's objects, not the blocks it names; references to the shared empty bpobj are dropped.
pub async fn destroy(_mos: &mut MutSet, _traits: &Traits, _object: u64) -> Result<(), EngineError> {
    todo!("mos")
}
