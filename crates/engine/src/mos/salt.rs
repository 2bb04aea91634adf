//! The pool's salt, without which no checksum is made that has a key: skein, Edon-R, BLAKE3.
//!
//! Pools that no software since 2016 has written to have none. It is made up once and never changes.
//! Facts: docs/format/checksums.md §3.5.

use codec::checksum::Salt;
use ondisk::zap::{IntSize, Value};

use super::{DIRECTORY, zap};
use crate::{BoxFuture, EngineError, dmu::MutSet};

const ENTRY: &str = "org.illumos:checksum_salt";

/// Whether there is one, legal or not.
pub(crate) fn is_there(mos: &mut MutSet) -> BoxFuture<'_, Result<bool, EngineError>> {
    Box::pin(async move { Ok(zap::get(mos, DIRECTORY, ENTRY.into()).await?.is_some()) })
}

/// Notes it.
pub(crate) fn set(mos: &mut MutSet, salt: Salt) -> BoxFuture<'_, Result<(), EngineError>> {
    let salt = Value::from_be_bytes(IntSize::One, salt.to_vec()).expect("any bytes are integers of one byte");
    zap::set(mos, DIRECTORY, ENTRY.into(), salt)
}
