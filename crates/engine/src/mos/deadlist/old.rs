//! Deadlists as they were before pool version 26: one list of blocks of all births.
//!
//! Nothing converts them. A head gets a list of the new form with its next snapshot, which keeps the old one, and all that come
//! after that in the chain have the new form, too.
//!
//! Facts: docs/format/mos.md §8.

use ondisk::dnode::ObjectType;

use crate::{BoxFuture, EngineError, dmu::MutSet};

/// Whether a deadlist has the old form.
pub fn is_old(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<bool, EngineError>> {
    Box::pin(async move { Ok(mos.dnode(object).await?.object_type == ObjectType::BPOBJ) })
}
