//! Volumes that wait: for reads, or for writes, until a test lets them go on.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeFuture,
};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::support::until;

/// Reads at offset 0 wait for a permit; others are in memory.
pub(crate) struct Gated {
    pub(crate) gate: Semaphore,
    /// So many have come that have to wait.
    reads: AtomicUsize,
}

impl Gated {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { gate: Semaphore::new(0), reads: AtomicUsize::new(0) })
    }

    /// Until a read waits, or has waited.
    pub(crate) async fn begun(&self) {
        until("a read is begun", || self.reads.load(Relaxed) > 0).await;
    }
}

/// Sevens up to the second block, and other bytes in each behind it.
fn bytes(offset: u64, len: usize) -> Segments {
    let byte = if offset < 8192 { 7 } else { 7 + (offset >> 12) as u8 };
    std::iter::once(Segment::Data(Bytes::from(vec![byte; len]))).collect()
}

impl BlockVolume for Gated {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 30, block: 4096, read_only: true }
    }
    fn identity(&self) -> Identity {
        Identity { name: "gated".into(), guid: 1, pool_guid: 1 }
    }
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        (offset > 0).then(|| bytes(offset, len))
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.reads.fetch_add(1, Relaxed);
        Box::pin(async move {
            self.gate.acquire().await.expect("never closed").forget();
            Ok(bytes(offset, len))
        })
    }
    fn extents(&self, _offset: u64, len: u64, _max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}

/// The first writes wait for a permit before they change anything.
pub(crate) struct Slow {
    inner: MemVolume,
    pub(crate) gate: Semaphore,
    /// So many.
    first: usize,
    writes: AtomicUsize,
    /// Writes that have neither ended nor been given up.
    under_way: AtomicUsize,
}

/// A write under way, of so many.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Slow {
    pub(crate) fn new(first: usize) -> Arc<Self> {
        let (inner, gate) = (MemVolume::new("slow", 1 << 20, 4096), Semaphore::new(0));
        Arc::new(Self { inner, gate, first, writes: AtomicUsize::new(0), under_way: AtomicUsize::new(0) })
    }

    /// Until they have begun.
    pub(crate) async fn begun(&self) {
        until("the first writes are begun", || self.writes.load(Relaxed) >= self.first).await;
    }

    /// Until no more than so many writes are under way: of none nothing can land any more.
    pub(crate) async fn left(&self, writes: usize) {
        until("writes end", || self.under_way.load(Relaxed) <= writes).await;
    }
}

impl BlockVolume for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.inner.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.inner.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        let is_first = self.writes.fetch_add(1, Relaxed) < self.first;
        let under_way = UnderWay::new(&self.under_way);
        Box::pin(async move {
            let _under_way = under_way;
            if is_first {
                self.gate.acquire().await.expect("never closed").forget();
            }
            self.inner.write(offset, data, durability).await
        })
    }
}
