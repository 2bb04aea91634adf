//! Volumes that take their time, or never answer, and count what was begun on them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeFuture,
};
use tokio::{sync::Semaphore, time::sleep};

use crate::support::until;

/// Operations of one kind.
#[derive(Default)]
pub(crate) struct Count {
    begun: AtomicUsize,
    /// Those that have neither ended nor been given up.
    under_way: AtomicUsize,
}

struct UnderWay<'a>(&'a Count);

impl Count {
    fn begin(&self) -> UnderWay<'_> {
        self.begun.fetch_add(1, Relaxed);
        self.under_way.fetch_add(1, Relaxed);
        UnderWay(self)
    }

    /// How many were begun.
    pub(crate) fn so_far(&self) -> usize {
        self.begun.load(Relaxed)
    }

    /// Until so many were begun.
    pub(crate) async fn begun(&self, count: usize) {
        until("operations are begun", || self.so_far() >= count).await;
    }

    /// Until no more than so many are under way.
    pub(crate) async fn left(&self, count: usize) {
        until("operations end", || self.under_way.load(Relaxed) <= count).await;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// Four tebibytes of nothing.
pub(crate) struct Endless {
    /// For each step; `None`: it is there at once, and no command ever waits.
    pace: Option<Duration>,
    pub(crate) steps: Count,
}

impl Endless {
    pub(crate) fn new(pace: Option<Duration>) -> Self {
        Self { pace, steps: Count::default() }
    }

    async fn step(&self) {
        let _under_way = self.steps.begin();
        if let Some(pace) = self.pace {
            sleep(pace).await;
        }
    }
}

impl BlockVolume for Endless {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 42, block: 8192, read_only: false }
    }
    fn identity(&self) -> Identity {
        Identity { name: "tank/endless".into(), guid: 1, pool_guid: 2 }
    }
    fn read(&self, _: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move {
            self.step().await;
            Ok([Segment::Zero(len)].into_iter().collect())
        })
    }
    fn extents(&self, _: u64, len: u64, _: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: true }]) })
    }
    fn write(&self, _: u64, _: Segments, _: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.step().await;
            Ok(())
        })
    }
    fn write_zeroes(&self, offset: u64, _: u64, _: bool, to: Durability) -> VolumeFuture<'_, ()> {
        self.write(offset, Segments::new(), to)
    }
}

/// Reads that nobody answers; everything else is done.
pub(crate) struct Mute {
    volume: MemVolume,
    pub(crate) reading: Count,
}

impl Mute {
    /// Of four MiB.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { volume: MemVolume::new("tank/mute", 4 << 20, 8192), reading: Count::default() })
    }
}

impl BlockVolume for Mute {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }
    fn identity(&self) -> Identity {
        self.volume.identity()
    }
    fn read(&self, _: u64, _: usize) -> VolumeFuture<'_, Segments> {
        let under_way = self.reading.begin();
        Box::pin(async move {
            let _under_way = under_way;
            std::future::pending().await
        })
    }
    fn read_cached(&self, _: u64, _: usize) -> Option<Segments> {
        None
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.volume.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, to: Durability) -> VolumeFuture<'_, ()> {
        self.volume.write(offset, data, to)
    }
}

/// Reads and writes that wait until they are let through.
pub(crate) struct Held {
    volume: MemVolume,
    pub(crate) reads: Semaphore,
    pub(crate) writes: Semaphore,
    pub(crate) reading: Count,
    pub(crate) writing: Count,
}

impl Held {
    /// Two MiB of data, and as much again of nothing.
    pub(crate) async fn filled(name: &str) -> Arc<Self> {
        let volume = MemVolume::new(name, 4 << 20, 8192);
        let data = [Segment::Data(vec![7; 2 << 20].into())].into_iter().collect();
        volume.write(0, data, Durability::Cached).await.unwrap();
        Self::over(volume)
    }

    pub(crate) fn over(volume: MemVolume) -> Arc<Self> {
        Arc::new(Self {
            volume,
            reads: Semaphore::new(0),
            writes: Semaphore::new(0),
            reading: Count::default(),
            writing: Count::default(),
        })
    }

    /// Bytes of the first two MiB that something was written to.
    pub(crate) async fn written(&self) -> u64 {
        let extents = self.volume.extents(0, 2 << 20, 1000).await.unwrap();
        extents.iter().filter(|extent| !extent.hole).map(|extent| extent.len).sum()
    }
}

impl BlockVolume for Held {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }
    fn identity(&self) -> Identity {
        self.volume.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        let under_way = self.reading.begin();
        Box::pin(async move {
            let _under_way = under_way;
            self.reads.acquire().await.unwrap().forget();
            self.volume.read(offset, len).await
        })
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.volume.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, to: Durability) -> VolumeFuture<'_, ()> {
        let under_way = self.writing.begin();
        Box::pin(async move {
            let _under_way = under_way;
            self.writes.acquire().await.unwrap().forget();
            self.volume.write(offset, data, to).await
        })
    }
}
