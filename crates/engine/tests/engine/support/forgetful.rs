//! A disk that loses what it was given since the last flush when it refuses one, and then goes on as if nothing had been.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, MemDisk};
use parking_lot::Mutex;
use pool::vdev::Condition;

/// See the module.
#[derive(Debug)]
pub(crate) struct Forgetful {
    now: Mutex<Arc<MemDisk>>,
    durable: Mutex<Arc<MemDisk>>,
    pub(crate) refuses_next: AtomicBool,
    /// It takes its time to say so.
    is_slow: AtomicBool,
    trap: Mutex<Option<Trap>>,
}

/// Somebody who flushes in vain behind each write in a range.
#[derive(Debug)]
struct Trap {
    range: Range<u64>,
    leaf: Arc<Condition>,
    times: u32,
    /// What comes next does not wait until they have heard of it.
    beside: bool,
}

impl Forgetful {
    /// One that holds the same for now.
    pub(crate) fn new(media: &MemDisk) -> Self {
        let fork = || Mutex::new(Arc::new(media.fork()));
        let (refuses_next, is_slow) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { now: fork(), durable: fork(), refuses_next, is_slow, trap: Mutex::default() }
    }

    /// What is read of it.
    pub(crate) fn now(&self) -> Arc<MemDisk> {
        Arc::clone(&self.now.lock())
    }

    /// What a power cut leaves.
    pub(crate) fn durable(&self) -> Arc<MemDisk> {
        Arc::clone(&self.durable.lock())
    }

    /// Behind each of the next `times` writes in `range` it refuses a flush that somebody else asks `leaf` for, whose disk it
    /// is. If that is `beside` what comes next, they hear of it when that has been answered.
    pub(crate) fn refuse_behind(&self, range: Range<u64>, leaf: Arc<Condition>, times: u32, beside: bool) {
        *self.trap.lock() = Some(Trap { range, leaf, times, beside });
    }

    /// Whether it refused as often as it was to.
    pub(crate) fn is_through(&self) -> bool {
        self.trap.lock().as_ref().is_some_and(|trap| trap.times == 0)
    }

    fn sprung(&self, offset: u64) -> Option<(Arc<Condition>, bool)> {
        let mut set = self.trap.lock();
        let trap = set.as_mut().filter(|trap| trap.times > 0 && trap.range.contains(&offset))?;
        trap.times -= 1;
        Some((Arc::clone(&trap.leaf), trap.beside))
    }
}

impl Disk for Forgetful {
    fn info(&self) -> DiskInfo {
        self.now().info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        let now = self.now();
        Box::pin(async move { now.read(offset, buf).await })
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let now = self.now();
        Box::pin(async move {
            now.write(offset, data).await?;
            if let Some((leaf, beside)) = self.sprung(offset) {
                self.refuses_next.store(true, Relaxed);
                self.is_slow.store(beside, Relaxed);
                let timed = leaf.get().timed().cloned().expect("it is in use");
                let refused = async move { timed.flush().await.expect_err("it is refused") };
                if beside {
                    tokio::spawn(refused);
                    // It begins, before anybody else does.
                    while self.refuses_next.load(Relaxed) {
                        tokio::task::yield_now().await;
                    }
                } else {
                    refused.await;
                }
            }
            Ok(())
        })
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let (now, durable) = (self.now(), self.durable());
        Box::pin(async move {
            durable.write(offset, data.clone()).await?;
            now.write(offset, data).await
        })
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            if self.refuses_next.swap(false, Relaxed) {
                let durable = self.durable().fork();
                *self.now.lock() = Arc::new(durable);
                let pauses = if self.is_slow.load(Relaxed) { 100 } else { 0 };
                for _ in 0..pauses {
                    tokio::task::yield_now().await;
                }
                return Err(io::ErrorKind::Other.into());
            }
            let now = self.now().fork();
            *self.durable.lock() = Arc::new(now);
            Ok(())
        })
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        let now = self.now();
        Box::pin(async move { now.trim(offset, len).await })
    }
}
