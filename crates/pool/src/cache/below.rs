//! The seam to a second tier: what leaves the cache may go there, and what is not in the cache may be there.
//!
//! Blocks cross it in their stored form, as they lie on the pool's devices. So nothing is trusted: what comes back
//! is verified with the checksum in the block pointer, as if a device had given it, and if it is wrong the pool is
//! read. Facts about the tier that OpenZFS has: docs/format/l2arc.md.

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use codec::checksum;
use ondisk::blkptr::BlkPtr;

/// What a tier's read gives, if it has anything to say about a block: the stored bytes, or nothing after all.
pub type BelowFuture = Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'static>>;

/// A block as it lies on disk, and what a second tier must know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Guid of its pool.
    pub pool: u64,
    /// The first address, in the two words of a block pointer.
    pub dva: [u64; 2],
    /// Physical birth.
    pub birth: u64,
    /// Bytes of the content.
    pub lsize: u32,
    /// Stored bytes.
    pub psize: u32,
    /// Compression id.
    pub compress: u8,
    /// Level in the object's tree; 0 is data.
    pub level: u8,
    /// It is metadata.
    pub metadata: bool,
    /// It was used more than once.
    pub frequent: bool,
    /// Nobody asked for it: it was read ahead.
    pub prefetched: bool,
    /// Its dataset wants it to be kept here (`secondarycache`), and it [can be served](is_servable).
    pub eligible: bool,
    /// `data` is a slice of memory that other blocks lie in: whoever keeps it keeps all of that.
    pub is_part: bool,
    /// `psize` bytes as on disk.
    pub data: Bytes,
}

impl Stored {
    /// What it is to a tier that knows nothing of it and has OpenZFS's defaults; or would be, if there was one.
    #[must_use]
    pub const fn fate(&self) -> Fate {
        if self.eligible && !self.prefetched { Fate::Eligible } else { Fate::Ineligible }
    }
}

/// What becomes of a block that leaves, as `evict_l2_cached` and its like tell it: one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The tier has it already.
    Cached,
    /// It may have it, and may be too busy for it.
    Eligible,
    /// It may not, or does not want such blocks.
    Ineligible,
}

/// A second tier.
pub trait Below: Send + Sync + Debug {
    /// A block leaves the cache. Called once per eviction, without a lock of the cache; must not block nor allocate
    /// much, and drops the block if it has no room for it.
    fn evicted(&self, block: Stored) -> Fate;

    /// The stored form of a block if it is here and can be read now; the caller verifies it against its pointer.
    /// `None`, at once or in the end: ask the pool. `is_eligible`: its dataset wants it to be kept here (`secondarycache`);
    /// of others there may be some from before, and it is no miss that they are not here.
    fn read(&self, pool: u64, bp: &BlkPtr, is_eligible: bool) -> Option<BelowFuture>;

    /// The bytes that [`read`](Self::read) gave do not verify.
    fn lied(&self, pool: u64, bp: &BlkPtr);
}

/// Whether whoever reads a block from a second tier can tell that it is the right one: there may be another's at that
/// place by now.
#[must_use]
pub fn is_servable(bp: &BlkPtr) -> bool {
    let algorithm = checksum::Algorithm::from_id(bp.checksum_id());
    algorithm.is_some_and(checksum::Algorithm::is_verified) && !bp.is_encrypted()
}

/// A pool's part in what second tiers may take of the cache's memory, until it is dropped.
#[derive(Debug)]
pub struct Share(Arc<AtomicUsize>);

impl Share {
    /// One more of them.
    pub(super) fn of(shares: &Arc<AtomicUsize>) -> Self {
        shares.fetch_add(1, Relaxed);
        Self(Arc::clone(shares))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The pool that blocks are of, and the tier below it. One for each time a pool is opened.
#[derive(Debug)]
pub(crate) struct Origin {
    /// Guid of the pool.
    pub(crate) guid: u64,
    /// Different for each opened pool of this process, so that pools may share a cache.
    pub(crate) salt: u64,
    below: ArcSwapOption<Arc<dyn Below>>,
}

impl Origin {
    pub(crate) fn new(guid: u64, salt: u64) -> Self {
        Self { guid, salt, below: ArcSwapOption::empty() }
    }

    pub(crate) fn set_below(&self, below: Option<Arc<dyn Below>>) {
        self.below.store(below.map(Arc::new));
    }

    /// The tier, if there is one now.
    pub(crate) fn below(&self) -> Option<Arc<dyn Below>> {
        self.below.load().as_deref().map(Arc::clone)
    }
}
