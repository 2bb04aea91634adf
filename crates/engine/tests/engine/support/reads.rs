//! A disk that adds up what is read of it.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf};

/// What a read of these bytes counts.
type Worth = Box<dyn Fn(Range<u64>) -> u64 + Send + Sync>;

/// See the module.
pub(crate) struct Counting {
    inner: Arc<dyn Disk>,
    worth: Worth,
    sum: Arc<AtomicU64>,
}

impl Counting {
    /// Adds what each read is worth to `sum`.
    pub(crate) fn over(
        inner: Arc<dyn Disk>,
        sum: &Arc<AtomicU64>,
        worth: impl Fn(Range<u64>) -> u64 + Send + Sync + 'static,
    ) -> Arc<dyn Disk> {
        Arc::new(Self { inner, worth: Box::new(worth), sum: Arc::clone(sum) })
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counting({:?})", self.inner)
    }
}

impl Disk for Counting {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.sum.fetch_add((self.worth)(offset..offset + buf.len() as u64), Relaxed);
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.inner.write(offset, data)
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.inner.write_through(offset, data)
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        self.inner.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.inner.trim(offset, len)
    }
}
