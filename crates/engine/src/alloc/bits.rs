//! How much memory the bits of loaded metaslabs may take, and do: between the syncing task, which loads and forgets them,
//! and whoever watches over the memory of the process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Until somebody says otherwise, in bytes: both sets of 4 TiB of 4 KiB units, all fragmented.
const MOST: u64 = 256 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct BitsMemory {
    /// Bytes of those that stay loaded.
    most: AtomicU64,
    /// Bytes, counted when a transaction group begins, and what was loaded since.
    held: AtomicU64,
}

impl Default for BitsMemory {
    fn default() -> Self {
        Self { most: AtomicU64::new(MOST), held: AtomicU64::new(0) }
    }
}

impl BitsMemory {
    /// Bytes that they take.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// They may take so many bytes from now on. True if that is less than before, and less than they take: something goes when
    /// the next transaction group begins.
    pub(crate) fn set_most(&self, most: u64) -> bool {
        let before = self.most.swap(most, Relaxed);
        most < before && most < self.held()
    }

    pub(super) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    // Only the syncing task counts.

    pub(super) fn counted(&self, held: u64) {
        self.held.store(held, Relaxed);
    }

    pub(super) fn loaded(&self, bytes: u64) {
        self.counted(self.held().saturating_add(bytes));
    }

    pub(super) fn unloaded(&self, bytes: u64) {
        self.counted(self.held().saturating_sub(bytes));
    }
}
