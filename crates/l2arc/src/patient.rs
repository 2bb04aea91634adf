//! A device that answers in time, or not at all: reads fall back to the pool, and nothing is asked of a device that owes
//! an answer.
//!
//! Somebody waits for a read, and the pool has the block as well, so a second is all that a device gets for it. The
//! operation itself goes on unheard. Until it has ended the device is *silent*: its reads are the pool's, and nothing is
//! written to it, so that what lands late cannot land on what came after. Facts: none of this is on disk.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf};
use tokio::{sync::Notify, time::timeout};

/// How long a client waits for a cache device.
pub(crate) const READ: Duration = Duration::from_secs(1);
/// The same where nobody waits: log blocks, what is written again.
pub(crate) const READ_LONG: Duration = Duration::from_secs(10);
/// Writes, flushes; trims may be done piece by piece.
const WRITE: Duration = Duration::from_secs(60);
const TRIM: Duration = Duration::from_secs(600);
/// How long what it owes is waited for where nothing is lost by waiting: a device that resets itself takes half a minute.
const SILENCE: Duration = Duration::from_secs(60);

type Op<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// See the module.
pub(crate) struct Patient {
    disk: Arc<dyn Disk>,
    owed: Arc<Owed>,
}

#[derive(Default)]
struct Owed {
    /// Operations that were given up and have not ended.
    operations: AtomicU32,
    /// One of them has.
    answered: Notify,
}

impl fmt::Debug for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patient({:?})", self.disk)
    }
}

impl Patient {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, owed: Arc::default() }
    }

    /// Whether it owes an answer.
    pub(crate) fn is_silent(&self) -> bool {
        self.owed.operations.load(Relaxed) > 0
    }

    /// Waits until it owes nothing.
    pub(crate) async fn answered(&self) {
        loop {
            let answered = self.owed.answered.notified();
            if !self.is_silent() {
                return;
            }
            answered.await;
        }
    }

    /// A read that is worth waiting for until the device is heard again, and is tried twice.
    pub(crate) async fn read_in_the_end(&self, offset: u64, len: usize) -> io::Result<IoBuf> {
        let read = async || {
            let _still_silent = timeout(SILENCE, self.answered()).await;
            self.read_within(offset, IoBuf::with_len(len), READ_LONG).await
        };
        match read().await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => read().await,
            done => done,
        }
    }

    /// A read that may take so long.
    pub(crate) async fn read_within(&self, offset: u64, buf: IoBuf, limit: Duration) -> io::Result<IoBuf> {
        let disk = Arc::clone(&self.disk);
        self.attend(Box::pin(async move { disk.read(offset, buf).await }), limit).await
    }

    async fn attend<T: Send + 'static>(&self, mut op: Op<T>, limit: Duration) -> io::Result<T> {
        if self.is_silent() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
        }
        if let Ok(done) = timeout(limit, &mut op).await {
            return done;
        }
        self.owed.operations.fetch_add(1, Relaxed);
        let owed = Arc::clone(&self.owed);
        tokio::spawn(async move {
            // Whatever it says now: it was taken for failed.
            drop(op.await);
            owed.operations.fetch_sub(1, Relaxed);
            owed.answered.notify_waiters();
        });
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not answer within {limit:?}")))
    }
}

impl Disk for Patient {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(self.read_within(offset, buf, READ_LONG))
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        Box::pin(self.attend(Box::pin(async move { disk.write(offset, data).await }), WRITE))
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        Box::pin(self.attend(Box::pin(async move { disk.flush().await }), WRITE))
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        Box::pin(self.attend(Box::pin(async move { disk.trim(offset, len).await }), TRIM))
    }
}
