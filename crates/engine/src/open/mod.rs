//! Opening a pool to write to it: what is checked, what is refused, where the first transaction group starts.
//!
//! Facts: docs/format/overview.md §7, features.md.

use std::sync::Arc;

use ondisk::label::PoolState;
use pool::Pool;

use crate::{EngineError, sync::Syncer};

pub mod multihost;

/// How a pool is opened for writing.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Another name for it from now on.
    pub rename: Option<String>,
    /// Id of this host.
    pub hostid: u64,
    /// Name of this host.
    pub hostname: String,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// Decides guids and salts.
    pub seed: u64,
    /// Threads for compression and checksums; 0 does all in the syncing task.
    pub workers: usize,
}

/// Goes on with a pool that was opened over writable, locked disks (`Candidate::reopen` with `import::writable`).
/// Nothing is written yet; the configuration is dirty, so that the first transaction group says whose the pool is.
pub async fn open(_pool: Arc<Pool>, _options: OpenOptions) -> Result<Syncer, EngineError> {
    todo!("life")
}
/// Makes this transaction group the last: its configuration says that the pool is exported or destroyed.
pub fn close(_cx: &mut Syncer, _state: PoolState) {
    todo!("life")
}
