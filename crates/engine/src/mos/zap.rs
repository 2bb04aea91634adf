//! Changing ZAPs. A new one is a microzap; it becomes fat when an entry does not fit.
//! Facts: docs/format/zap.md.

use ondisk::{
    dnode::ObjectType,
    zap::{Key, OwnedKey, Value},
};

use crate::{EngineError, dmu::MutSet};

/// A new, empty ZAP. `normflags` as in `ondisk::zap` (snapshot names: `NORM_UPPER`).
pub async fn create(
    _set: &mut MutSet,
    _object_type: ObjectType,
    _normflags: u64,
) -> Result<u64, EngineError> {
    todo!("mos")
}
/// Makes an object without blocks an empty ZAP (zapified DSL objects, fixed numbers).
pub async fn init(_set: &mut MutSet, _object: u64, _normflags: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// The value of a key.
pub async fn get(_set: &mut MutSet, _object: u64, _key: Key<'_>) -> Result<Option<Value>, EngineError> {
    todo!("mos")
}
/// The value of a name that is one `u64`.
pub async fn get_u64(_set: &mut MutSet, _object: u64, _name: &str) -> Result<Option<u64>, EngineError> {
    todo!("mos")
}
/// Sets a key, new or not.
pub async fn set(_set: &mut MutSet, _object: u64, _key: Key<'_>, _value: Value) -> Result<(), EngineError> {
    todo!("mos")
}
/// Sets a name to one `u64`.
pub async fn set_u64(_set: &mut MutSet, _object: u64, _name: &str, _value: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Removes a key; false if it was not there.
pub async fn remove(_set: &mut MutSet, _object: u64, _key: Key<'_>) -> Result<bool, EngineError> {
    todo!("mos")
}
/// All entries.
pub async fn entries(_set: &mut MutSet, _object: u64) -> Result<Vec<(OwnedKey, Value)>, EngineError> {
    todo!("mos")
}
/// `zap_add_int`: key = lower-case hex of `value`, value itself.
pub async fn set_int(_set: &mut MutSet, _object: u64, _value: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Removes what [`set_int`] set; false if it was not there.
pub async fn remove_int(_set: &mut MutSet, _object: u64, _value: u64) -> Result<bool, EngineError> {
    todo!("mos")
}
