//! Operations on a leaf that end in time, also if its disk answers neither well nor badly.
//!
//! ```text
//!   read, write, flush ──▶ answered in time ───────────────────────────────▶ what the disk said
//!                     └──▶ not ──▶ TimedOut for who asked; the operation itself goes on, unheard
//!                                   └─ until it has ended the leaf is *silent*: nothing more is asked of it
//! ```
//! A write that nobody waits for any more may land at any time, long after its place was given to other data. So a leaf
//! takes no write before all that were given up have ended: what lands late lands on bytes that the leaf lacks anyway,
//! as its writers have noted, and is made good by the resilver, which can begin only afterwards. It is the leaf that
//! remembers this, not the opened disk: it holds for the same device opened again.
//!
//! Until then it keeps its disk, and with that its lock, also if the pool was left meanwhile: nobody else on this host is
//! to write where it may land.
//!
//! Reads come to no harm later; but a disk that swallowed one would swallow the next, and there are others to ask.
//!
//! Nothing of this is on disk. OpenZFS has a deadman that reports; here somebody acts on it (the engine's watch).

use std::{
    collections::BTreeSet,
    fmt, io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf};
use tokio::{sync::watch, time::timeout};

/// How much longer than a write a trim may take: devices may do it piece by piece.
const TRIM_TIMES: u32 = 10;

/// How long a read may take while others can answer: more than a disk takes to try a bad sector again where it is told
/// to hurry.
const READ: Duration = Duration::from_secs(10);

/// How long a write or flush may take before its leaf has failed.
pub const WRITE: Duration = Duration::from_secs(60);

/// How long somebody waits for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A client, as long as others may answer.
    Short,
    /// A scan: nobody waits for it, but it must get on.
    Long,
    /// Nobody else has it: as long as it takes.
    Endless,
}

/// A read that was not answered well.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) error: io::Error,
    /// It took too long; who waits longer may get it.
    pub(crate) is_late: bool,
}

/// What a leaf still owes: shared by whatever disk it has.
#[derive(Debug)]
pub struct Deadline {
    owed: watch::Sender<Owed>,
    /// Somebody has heard that it did not answer.
    is_told: AtomicBool,
    /// Flushes that failed, alone or as parts of writes.
    unflushed: AtomicU64,
    flushing: watch::Sender<Flushing>,
}

/// Flushes that were begun and not heard yet.
#[derive(Debug, Default)]
struct Flushing {
    /// The number of the next one.
    next: u64,
    under_way: BTreeSet<u64>,
}

/// One of them, for as long as it is.
struct Flush<'a> {
    of: &'a Deadline,
    number: u64,
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.of.flushing.send_modify(|flushing| {
            flushing.under_way.remove(&self.number);
        });
    }
}

/// Operations that were given up and have not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    reads: u32,
    writes: u32,
}

impl Owed {
    fn any(self) -> bool {
        self.reads > 0 || self.writes > 0
    }
}

/// An operation that may outlive who asked for it.
type Op<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Default for Deadline {
    fn default() -> Self {
        Self {
            owed: watch::Sender::new(Owed::default()),
            is_told: AtomicBool::new(false),
            unflushed: AtomicU64::new(0),
            flushing: watch::Sender::new(Flushing::default()),
        }
    }
}

impl Deadline {
    /// Whether it has let a deadline go by, and has not ended since what it was to do.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.owed.borrow().any()
    }

    /// The same of writes and flushes only: it has failed.
    #[must_use]
    pub fn owes_writes(&self) -> bool {
        self.owed.borrow().writes > 0
    }

    /// Goes up whenever a flush fails, whoever asked for it: what anybody wrote since the last good one may be gone, and a
    /// flush that is tried again and works says nothing of it. Nor does one that was under way beside it: of both, one gets
    /// the error. So who has flushed knows only when those beside it [have been heard](Self::heard).
    #[must_use]
    pub fn unflushed(&self) -> u64 {
        self.unflushed.load(Acquire)
    }

    /// Returns when the flushes that are under way now have been heard: [`unflushed`](Self::unflushed) has counted them if
    /// they failed. One that nobody hears in time has failed.
    ///
    /// A commit waits for this behind its data, its labels and its uberblock. Log rounds do not, or each would last as long
    /// as those of others beside it: of two, the one that worked may be answered before the other is heard.
    pub async fn heard(&self) {
        let mut flushing = self.flushing.subscribe();
        let next = flushing.borrow().next;
        let heard = async {
            // The sender is in `self`.
            drop(flushing.wait_for(|now| now.under_way.first().is_none_or(|first| *first >= next)).await);
        };
        if within(heard, WRITE).await.is_none() {
            self.unflushed.fetch_add(1, Release);
        }
    }

    /// Returns when it is silent, or when it is not.
    pub async fn until(&self, is_silent: bool) {
        let mut owed = self.owed.subscribe();
        // The sender is in `self`.
        drop(owed.wait_for(|owed| owed.any() == is_silent).await);
    }

    /// Whether it has not been told yet that a read is late: however many are, one thing went wrong.
    pub(crate) fn is_news(&self) -> bool {
        !self.is_told.swap(true, Relaxed)
    }

    /// `len` bytes of `disk`, which is the leaf's, from byte `start`.
    pub(crate) async fn read(
        self: &Arc<Self>,
        disk: &Arc<dyn Disk>,
        start: u64,
        len: usize,
        patience: Patience,
    ) -> Result<IoBuf, Unread> {
        let limit = match patience {
            Patience::Short => READ,
            Patience::Long => WRITE,
            Patience::Endless => Duration::MAX,
        };
        if patience != Patience::Endless && self.is_silent() {
            return Err(Unread { error: silent(), is_late: true });
        }
        let disk = Arc::clone(disk);
        let op: Op<IoBuf> = Box::pin(async move {
            let answer = disk.read(start, IoBuf::with_len(len)).await;
            match answer {
                Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                    // Once more: a bus reset looks like a failed read, and giving up here costs redundancy.
                    disk.read(start, IoBuf::with_len(len)).await
                }
                answer => answer,
            }
        });
        match attend(op, limit).await {
            Ok(answer) => answer.map_err(|error| Unread { error, is_late: false }),
            Err(op) => {
                self.owe(op, |owed| &mut owed.reads);
                Err(Unread { error: late("read", limit), is_late: true })
            }
        }
    }

    /// Carries out something that changes the disk.
    async fn write(self: &Arc<Self>, what: &str, op: Op<()>, limit: Duration) -> io::Result<()> {
        if self.owes_writes() {
            return Err(silent());
        }
        match attend(op, limit).await {
            Ok(answer) => answer,
            Err(op) => {
                self.owe(op, |owed| &mut owed.writes);
                Err(late(what, limit))
            }
        }
    }

    fn begin_flush(&self) -> Flush<'_> {
        let mut number = 0;
        self.flushing.send_modify(|flushing| {
            number = flushing.next;
            flushing.next += 1;
            flushing.under_way.insert(number);
        });
        Flush { of: self, number }
    }

    /// The same of what makes the disk's own cache durable.
    async fn flush(self: &Arc<Self>, what: &str, op: Op<()>) -> io::Result<()> {
        let _unheard = self.begin_flush();
        let answer = self.write(what, op, WRITE).await;
        // What was not asked for as it must be was not begun.
        if answer.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput) {
            self.unflushed.fetch_add(1, Release);
        }
        answer
    }

    /// Nobody waits for `op` any more, but somebody must know when it ends.
    fn owe<T: Send + 'static>(self: &Arc<Self>, op: Op<T>, which: fn(&mut Owed) -> &mut u32) {
        self.owed.send_modify(|owed| {
            if !owed.any() {
                self.is_told.store(false, Relaxed);
            }
            *which(owed) += 1;
        });
        let owing = Arc::clone(self);
        tokio::spawn(async move {
            // Whatever it says now: it was taken for failed.
            drop(op.await);
            owing.owed.send_modify(|owed| *which(owed) -= 1);
        });
    }
}

/// What `op` comes to, unless it takes longer than `limit`.
pub async fn within<F: Future>(op: F, limit: Duration) -> Option<F::Output> {
    let mut op = pin!(op);
    // Most of what is asked for is there at once and needs no clock, and where there is none nobody can be late.
    match std::future::poll_fn(|cx| Poll::Ready(op.as_mut().poll(cx))).await {
        Poll::Ready(done) => Some(done),
        Poll::Pending => timeout(limit, op).await.ok(),
    }
}

/// What `op` comes to, or itself if it takes longer.
async fn attend<T>(mut op: Op<T>, limit: Duration) -> Result<io::Result<T>, Op<T>> {
    match within(&mut op, limit).await {
        Some(done) => Ok(done),
        None => Err(op),
    }
}

/// Says that `what` took longer than that.
pub(crate) fn late(what: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("a {what} was not answered within {limit:?}"))
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer")
}

/// The disk of a leaf, for whoever writes to it: writes, flushes and trims end in time. Reads and
/// [`probe`](Disk::probe) are the disk's own.
pub(super) struct Timed {
    disk: Arc<dyn Disk>,
    deadline: Arc<Deadline>,
}

impl Timed {
    pub(super) fn over(disk: Arc<dyn Disk>, deadline: Arc<Deadline>) -> Arc<dyn Disk> {
        Arc::new(Self { disk, deadline })
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timed({:?})", self.disk)
    }
}

impl Disk for Timed {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        let op = Box::pin(async move { disk.write(offset, data).await });
        Box::pin(self.deadline.write("write", op, WRITE))
    }

    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        let op = Box::pin(async move { disk.write_parts(offset, parts).await });
        Box::pin(self.deadline.write("write", op, WRITE))
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        let op = Box::pin(async move { disk.write_through(offset, data).await });
        Box::pin(self.deadline.flush("write", op))
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        let op = Box::pin(async move { disk.flush().await });
        Box::pin(self.deadline.flush("flush", op))
    }

    fn probe(&self) -> DiskFuture<'_, ()> {
        if self.deadline.owes_writes() {
            return Box::pin(async { Err(silent()) });
        }
        self.disk.probe()
    }

    fn presence(&self) -> DiskFuture<'_, ()> {
        self.disk.presence()
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.disk);
        let op = Box::pin(async move { disk.trim(offset, len).await });
        Box::pin(self.deadline.write("trim", op, WRITE.saturating_mul(TRIM_TIMES)))
    }
}

#[cfg(test)]
mod tests {
    use disk::{Effect, Engine, Fault, FaultDisk, FileDisk, MemDisk, On, OpenOptions};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn leaf(on: On) -> (Arc<dyn Disk>, Arc<FaultDisk>, Arc<Deadline>) {
        let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(1 << 20)), 1));
        disk.inject(Fault::anywhere(on, Effect::Delay(HOUR..=HOUR)).times(1));
        let deadline = Arc::<Deadline>::default();
        (Timed::over(Arc::clone(&disk) as Arc<dyn Disk>, Arc::clone(&deadline)), disk, deadline)
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_before_what_was_given_up_has_ended() {
        for on in [On::Write, On::Flush] {
            let (timed, disk, deadline) = leaf(on);
            let begun = tokio::time::Instant::now();
            let first = match on {
                On::Write => timed.write(0, Bytes::from_static(b"old")).await,
                _ => timed.flush().await,
            };
            assert_eq!(first.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed(), WRITE);
            assert!(deadline.owes_writes() && deadline.is_silent());
            // Also through another handle.
            let again = Timed::over(Arc::clone(&disk) as Arc<dyn Disk>, Arc::clone(&deadline));
            assert!(again.write(0, Bytes::from_static(b"new")).await.is_err());
            assert!(timed.flush().await.is_err() && timed.probe().await.is_err());
            assert_eq!(begun.elapsed(), WRITE, "that took no time");
            deadline.until(false).await;
            assert_eq!(begun.elapsed(), HOUR);
            again.write(0, Bytes::from_static(b"new")).await.unwrap();
            timed.probe().await.unwrap();
            let read = timed.read(0, IoBuf::with_len(3)).await.unwrap();
            assert_eq!(&read[..], b"new");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_keeps_its_device_locked_until_it_has_ended() {
        let path = fixtures::scratch().join(format!("millpond-owed-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let options = OpenOptions { engine: Engine::Blocking, lock: true, ..OpenOptions::default() };
        let open = || FileDisk::open(&path, options);
        for on in [On::Trim, On::Write] {
            let disk = FaultDisk::new(Arc::new(open().unwrap()), 1);
            disk.inject(Fault::anywhere(on, Effect::Delay(HOUR..=HOUR)));
            let deadline = Arc::<Deadline>::default();
            let timed = Timed::over(Arc::new(disk), Arc::clone(&deadline));
            let late = match on {
                On::Trim => timed.trim(0, 4096).await,
                _ => timed.write(0, Bytes::from_static(b"old")).await,
            };
            assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(timed);
            assert_eq!(open().unwrap_err().kind(), io::ErrorKind::ResourceBusy, "{on:?}");
            deadline.until(false).await;
            open().unwrap();
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn a_flush_that_failed_is_known_whatever_comes_after() {
        for on in [On::Write, On::Flush] {
            let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(1 << 20)), 1));
            disk.inject(Fault::anywhere(on, Effect::Error(io::ErrorKind::Other)).times(1));
            let deadline = Arc::<Deadline>::default();
            let timed = Timed::over(disk as Arc<dyn Disk>, Arc::clone(&deadline));
            let ask = || match on {
                On::Write => timed.write_through(0, Bytes::from_static(b"new")),
                _ => timed.flush(),
            };
            ask().await.unwrap_err();
            assert_eq!(deadline.unflushed(), 1);
            ask().await.unwrap();
            assert_eq!(deadline.unflushed(), 1, "the second says nothing of what the first lost");
        }
    }

    /// Of two flushes at once one gets the error of both. Who had got the other took what it had written for durable.
    #[tokio::test(start_paused = true)]
    async fn who_has_flushed_can_wait_for_those_that_were_under_way_beside_it() {
        let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(1 << 20)), 1));
        let deadline = Arc::<Deadline>::default();
        let timed = Timed::over(Arc::clone(&disk) as Arc<dyn Disk>, Arc::clone(&deadline));
        let slow = |secs| Effect::Delay(Duration::from_secs(secs)..=Duration::from_secs(secs));
        let spawn = || {
            let timed = Arc::clone(&timed);
            tokio::spawn(async move { timed.flush().await })
        };
        disk.inject(Fault::anywhere(On::Flush, slow(5)).times(1));
        disk.inject(Fault::anywhere(On::Flush, Effect::Error(io::ErrorKind::Other)).times(1));
        let begun = tokio::time::Instant::now();
        let beside = spawn();
        tokio::task::yield_now().await;
        timed.flush().await.unwrap();
        assert_eq!((begun.elapsed(), deadline.unflushed()), (Duration::ZERO, 0), "it was not heard yet");
        let heard = deadline.heard();
        // Those that come later are no concern.
        disk.inject(Fault::anywhere(On::Flush, slow(30)).times(1));
        let mut later = None;
        tokio::join!(heard, async {
            tokio::task::yield_now().await;
            later = Some(spawn());
        });
        assert_eq!((begun.elapsed(), deadline.unflushed()), (Duration::from_secs(5), 1));
        beside.await.unwrap().unwrap_err();
        later.unwrap().await.unwrap().unwrap();
        deadline.heard().await;
        assert_eq!(deadline.unflushed(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_late_read_is_enough_to_ask_others() {
        let (_, disk, deadline) = leaf(On::Read);
        let disk = disk as Arc<dyn Disk>;
        let begun = tokio::time::Instant::now();
        let first = deadline.read(&disk, 0, 512, Patience::Short).await.unwrap_err();
        assert!(first.is_late && deadline.is_news(), "{first:?}");
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(30), "{waited:?}");
        let second = deadline.read(&disk, 0, 512, Patience::Long).await.unwrap_err();
        assert!(second.is_late && !deadline.is_news(), "{second:?}");
        assert_eq!(begun.elapsed(), waited);
        // Who has nobody else to ask does ask.
        deadline.read(&disk, 0, 512, Patience::Endless).await.unwrap();
        assert!(!deadline.owes_writes(), "it can be written to");
        deadline.until(false).await;
        deadline.read(&disk, 0, 512, Patience::Short).await.unwrap();
    }
}
