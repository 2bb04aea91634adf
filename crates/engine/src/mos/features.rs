//! Feature counts. Facts: docs/format/features.md.

use crate::{EngineError, dmu::MutSet, policy::Traits};

/// What we enable in pools we create, by guid (docs/format/features.md, "Recommended set"), dependencies first.
pub const CREATED_WITH: &[&str] = &[];

/// Whether a feature is enabled, and its count.
pub async fn count(_mos: &mut MutSet, _guid: &str) -> Result<Option<u64>, EngineError> {
    todo!("mos")
}
/// Adds to the count of an enabled feature. Returns the new count. (Whether the label must list it is
/// [`in_label`]'s business: the caller compares before and after.)
pub async fn add(_mos: &mut MutSet, _guid: &str, _change: i64) -> Result<u64, EngineError> {
    todo!("mos")
}
/// Enables a feature in txg `txg`: entries, description, enabled_txg.
pub async fn enable(_mos: &mut MutSet, _guid: &str, _txg: u64) -> Result<(), EngineError> {
    todo!("mos")
}
/// Guids that labels must list: active features without which the MOS cannot be read.
pub async fn in_label(_mos: &mut MutSet) -> Result<Vec<&'static str>, EngineError> {
    todo!("mos")
}
/// What the enabled features allow.
pub async fn traits(_mos: &mut MutSet) -> Result<Traits, EngineError> {
    todo!("mos")
}
/// Guids of active features that this writer cannot keep up: the pool may only be opened read-only.
pub async fn unwritable(_mos: &mut MutSet) -> Result<Vec<String>, EngineError> {
    todo!("mos")
}
