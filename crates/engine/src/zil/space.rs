//! Places for log blocks, at hand while the allocator's owner is busy.
//!
//! The syncing task sets runs of free space aside (in memory only: no space map knows of them) and tops them up when
//! it is idle, between transaction groups, and while it allocates. Whoever writes a log takes places from the front
//! of a run. A place becomes an allocation when the syncing task enters it in the space maps of the transaction
//! group it belongs to ([`Allocator::adopt`](crate::alloc::Allocator::adopt)); a crash before that is what claiming
//! is for.

use ondisk::blkptr::Dva;

/// Where a place may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// On a log device; in the pool if there is none, or it is full or gone.
    Log,
    /// Among the data, log device or not (`logbias=throughput`, data that records point to).
    Pool,
}

/// Space set aside for logs.
#[derive(Debug, Default)]
pub struct LogSpace {}

impl LogSpace {
    /// A place for a block of `psize` stored bytes. Waits until the syncing task has set more aside; `None` if there
    /// is no more, and only the transaction group can help.
    pub async fn take(&self, psize: u64, supply: Supply) -> Option<Dva> {
        let _ = (psize, supply);
        None
    }

    /// The same without waiting.
    #[must_use]
    pub fn try_take(&self, psize: u64, supply: Supply) -> Option<Dva> {
        let _ = (psize, supply);
        None
    }

    /// Nothing of this device is handed out any more.
    pub fn forget_device(&self, vdev: u32) {
        let _ = vdev;
    }

    /// The pool has a log device that takes blocks.
    #[must_use]
    pub fn has_log_device(&self) -> bool {
        false
    }

    /// Returns when somebody wants more than is set aside.
    pub async fn asked(&self) {
        std::future::pending().await
    }
}
