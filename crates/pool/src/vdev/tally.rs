//! What a leaf was asked to do, how much of it is under way, and how long it took: what `zpool iostat` shows.
//!
//! ```text
//!   enqueue ──▶ pending ──issue──▶ active ──end──▶ counted: operations, bytes, waits and sizes as powers of two
//!                  └───────────────────┴── dropped: it failed, or nobody waits for it any more; not counted
//! ```
//! Counted is what reaches a device, once: of what was joined into one transfer the transfer, not its parts. Only leaves
//! count; what is above them is the sum. Everything is a relaxed atomic, some ten additions for each operation of a
//! device, and no lock. The numbers of one moment may therefore differ by an operation from each other.
//!
//! Facts: docs/format/arc.md §5.3.

use std::{
    fmt,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, nanos};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Counters, Pulse};

/// Buckets of times: up to 2^n - 1 ns, the last one 137 s and more.
pub const TIMES: usize = 37;
/// Buckets of sizes: from 2^n bytes on, the last one 16 MiB and more.
pub const SIZES: usize = 25;

/// What somebody wants of a leaf, and who. OpenZFS's queues, and one for what it has no column for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read that somebody waits for.
    SyncRead,
    /// A write that somebody waits for: of the intent log, of labels.
    SyncWrite,
    /// A read ahead.
    AsyncRead,
    /// A write of a transaction group, or a repair.
    AsyncWrite,
    /// A read of a scrub or a resilver.
    Scrub,
    /// A trim.
    Trim,
    /// A sequential rebuild: there is none here.
    Rebuild,
    /// A write of `zpool initialize`.
    Initialize,
}

impl Work {
    /// All, in the order of OpenZFS's columns.
    pub const ALL: [Self; 8] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Trim,
        Self::Rebuild,
        Self::Initialize,
    ];

    /// 0 reads, 1 writes; trims are neither.
    const fn direction(self) -> Option<usize> {
        match self {
            Self::SyncRead | Self::AsyncRead | Self::Scrub => Some(0),
            Self::SyncWrite | Self::AsyncWrite | Self::Rebuild | Self::Initialize => Some(1),
            Self::Trim => None,
        }
    }
}

/// Counts by powers of two.
#[derive(Debug)]
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, value: u64) {
        self.0[(value.max(1).ilog2() as usize).min(N - 1)].fetch_add(1, Relaxed);
    }

    fn get(&self) -> Vec<u64> {
        self.0.iter().map(|count| count.load(Relaxed)).collect()
    }
}

/// One kind of work.
#[derive(Debug, Default)]
struct Queue {
    pending: AtomicU32,
    active: AtomicU32,
    operations: AtomicU64,
    bytes: AtomicU64,
    wait: Histogram<TIMES>,
    alone: Histogram<SIZES>,
    joined: Histogram<SIZES>,
}

/// See the module. Shared by all trees the leaf is in.
#[derive(Debug)]
pub struct Tally {
    since: Instant,
    queues: [Queue; Work::ALL.len()],
    /// From when it was wanted to when it was done, of reads and writes.
    total: [Histogram<TIMES>; 2],
    /// Of that, what the device took.
    disk: [Histogram<TIMES>; 2],
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            queues: Default::default(),
            total: Default::default(),
            disk: Default::default(),
        }
    }
}

/// An operation that is wanted, or under way.
#[derive(Debug)]
pub struct Job<'a> {
    tally: &'a Tally,
    work: Work,
    wanted: Instant,
    issued: Option<Instant>,
}

impl Tally {
    /// Somebody wants this, and waits for their turn.
    #[must_use]
    pub fn enqueue(&self, work: Work) -> Job<'_> {
        self.queues[work as usize].pending.fetch_add(1, Relaxed);
        Job { tally: self, work, wanted: Instant::now(), issued: None }
    }

    /// Carries out what is in nobody's way: `bytes` of it, or none of what fails.
    ///
    /// # Errors
    /// Those of `op`.
    pub async fn time<T>(
        &self,
        work: Work,
        bytes: u64,
        op: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let mut job = self.enqueue(work);
        job.issue();
        let done = op.await?;
        job.end(bytes, false);
        Ok(done)
    }

    /// Reads that somebody wants or may want soon and that are not done yet; and reads of all kinds that were done: who
    /// answers, if slowly, is told by the second from who does not.
    #[must_use]
    pub fn reads(&self) -> (u64, u64) {
        let sum = |works: &[Work], of: fn(&Queue) -> u64| -> u64 {
            works.iter().map(|work| of(&self.queues[*work as usize])).sum()
        };
        let under_way = |queue: &Queue| u64::from(queue.pending.load(Relaxed) + queue.active.load(Relaxed));
        let done = |queue: &Queue| queue.operations.load(Relaxed);
        (
            sum(&[Work::SyncRead, Work::AsyncRead], under_way),
            sum(&[Work::SyncRead, Work::AsyncRead, Work::Scrub], done),
        )
    }

    /// What was counted so far.
    #[must_use]
    pub fn get(&self) -> Tallied {
        let queues = Work::ALL.map(|work| &self.queues[work as usize]);
        let mut found = Tallied {
            age_ns: nanos(self.since.elapsed()),
            total: self.total.iter().map(Histogram::get).collect(),
            disk: self.disk.iter().map(Histogram::get).collect(),
            waits: queues.iter().map(|queue| queue.wait.get()).collect(),
            alone: queues.iter().map(|queue| queue.alone.get()).collect(),
            joined: queues.iter().map(|queue| queue.joined.get()).collect(),
            pending: queues.iter().map(|queue| queue.pending.load(Relaxed).into()).collect(),
            active: queues.iter().map(|queue| queue.active.load(Relaxed).into()).collect(),
            ..Tallied::default()
        };
        for (work, queue) in Work::ALL.into_iter().zip(queues) {
            if let Some(direction) = work.direction() {
                found.operations[direction] += queue.operations.load(Relaxed);
                found.bytes[direction] += queue.bytes.load(Relaxed);
            }
        }
        found
    }
}

impl Job<'_> {
    /// It goes to the device now.
    pub fn issue(&mut self) {
        if self.issued.is_none() {
            let queue = &self.tally.queues[self.work as usize];
            queue.pending.fetch_sub(1, Relaxed);
            queue.active.fetch_add(1, Relaxed);
            self.issued = Some(Instant::now());
        }
    }

    /// It was done: `bytes` in one transfer, in which several were joined or not.
    pub fn end(self, bytes: u64, is_joined: bool) {
        let now = Instant::now();
        let issued = self.issued.unwrap_or(self.wanted);
        let queue = &self.tally.queues[self.work as usize];
        queue.operations.fetch_add(1, Relaxed);
        queue.bytes.fetch_add(bytes, Relaxed);
        queue.wait.add(nanos(issued.saturating_duration_since(self.wanted)));
        if is_joined {
            queue.joined.add(bytes)
        } else {
            queue.alone.add(bytes)
        }
        if let Some(direction) = self.work.direction() {
            self.tally.total[direction].add(nanos(now.saturating_duration_since(self.wanted)));
            self.tally.disk[direction].add(nanos(now.saturating_duration_since(issued)));
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let queue = &self.tally.queues[self.work as usize];
        let gauge = if self.issued.is_some() { &queue.active } else { &queue.pending };
        gauge.fetch_sub(1, Relaxed);
    }
}

/// What a leaf has done, or several together. Where there is one list for each kind of work, its order is that of
/// [`Work::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tallied {
    /// For how long it has been counted, nanoseconds.
    pub age_ns: u64,
    /// Reads and writes.
    pub operations: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Of reads and writes: how many took up to 2^(n+1) - 1 ns, from when they were wanted.
    pub total: Vec<Vec<u64>>,
    /// The same from when the device was asked.
    pub disk: Vec<Vec<u64>>,
    /// By kind of work: the same from when they were wanted to when the device was asked.
    pub waits: Vec<Vec<u64>>,
    /// By kind of work: transfers of at least 2^n bytes.
    pub alone: Vec<Vec<u64>>,
    /// The same of those in which several were joined.
    pub joined: Vec<Vec<u64>>,
    /// By kind of work: waiting for their turn now.
    pub pending: Vec<u64>,
    /// By kind of work: with the device now.
    pub active: Vec<u64>,
}

impl Tallied {
    /// Adds what another one did.
    pub fn add(&mut self, other: &Self) {
        self.age_ns = self.age_ns.max(other.age_ns);
        self.combine(other, &u64::saturating_add);
        put(&mut self.pending, &other.pending, &u64::saturating_add);
        put(&mut self.active, &other.active, &u64::saturating_add);
    }

    /// What was done since an earlier look. What is under way is as it is now. If it was opened anew in between it counts
    /// from there.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if self.age_ns < before.age_ns {
            return self.clone();
        }
        let mut found = self.clone();
        found.age_ns = self.age_ns.saturating_sub(before.age_ns);
        found.combine(before, &u64::saturating_sub);
        found
    }

    fn combine(&mut self, other: &Self, how: &dyn Fn(u64, u64) -> u64) {
        put(&mut self.operations, &other.operations, how);
        put(&mut self.bytes, &other.bytes, how);
        let lists = [
            (&mut self.total, &other.total),
            (&mut self.disk, &other.disk),
            (&mut self.waits, &other.waits),
            (&mut self.alone, &other.alone),
            (&mut self.joined, &other.joined),
        ];
        for (mine, theirs) in lists {
            if mine.len() < theirs.len() {
                mine.resize(theirs.len(), Vec::new());
            }
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                if mine.len() < theirs.len() {
                    mine.resize(theirs.len(), 0);
                }
                put(mine, theirs, how);
            }
        }
    }
}

fn put(mine: &mut (impl AsMut<[u64]> + Grow), theirs: &[u64], how: &dyn Fn(u64, u64) -> u64) {
    mine.grow(theirs.len());
    for (mine, theirs) in mine.as_mut().iter_mut().zip(theirs) {
        *mine = how(*mine, *theirs);
    }
}

/// What may have to become as long as something else.
trait Grow {
    fn grow(&mut self, len: usize);
}

impl Grow for Vec<u64> {
    fn grow(&mut self, len: usize) {
        if self.len() < len {
            self.resize(len, 0);
        }
    }
}

impl Grow for [u64; 2] {
    fn grow(&mut self, _: usize) {}
}

/// A device whose user has no queues of its own: every operation is counted.
pub struct Counted {
    disk: Arc<dyn Disk>,
    pulse: Arc<Pulse>,
    writes: Work,
    errors: Option<Arc<Counters>>,
}

impl Counted {
    /// What is done to `disk` is counted in `pulse`; writes are of this kind. What it refuses is counted in `errors`,
    /// unless its user does that.
    #[must_use]
    pub fn over(
        disk: Arc<dyn Disk>,
        pulse: &Arc<Pulse>,
        writes: Work,
        errors: Option<Arc<Counters>>,
    ) -> Arc<dyn Disk> {
        Arc::new(Self { disk, pulse: Arc::clone(pulse), writes, errors })
    }

    async fn count<T>(
        &self,
        work: Work,
        bytes: u64,
        op: DiskFuture<'_, T>,
        error: fn(&Counters),
    ) -> io::Result<T> {
        let result = self.pulse.tally.time(work, bytes, op).await;
        if let (Err(_), Some(errors)) = (&result, &self.errors) {
            error(errors);
        }
        result
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({:?})", self.disk)
    }
}

impl Disk for Counted {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        let (len, read) = (buf.len() as u64, self.disk.read(offset, buf));
        Box::pin(self.count(Work::SyncRead, len, read, Counters::count_read))
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let (len, write) = (data.len() as u64, self.disk.write(offset, data));
        Box::pin(self.count(self.writes, len, write, Counters::count_write))
    }
    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let write = self.disk.write_parts(offset, parts);
        Box::pin(self.count(self.writes, len, write, Counters::count_write))
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let (len, write) = (data.len() as u64, self.disk.write_through(offset, data));
        Box::pin(self.count(Work::SyncWrite, len, write, Counters::count_write))
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        self.disk.flush()
    }
    fn probe(&self) -> DiskFuture<'_, ()> {
        self.disk.probe()
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        // Advisory: that a device cannot is no error of it.
        Box::pin(self.count(Work::Trim, len, self.disk.trim(offset, len), |_| ()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_waits_what_is_under_way_and_what_was_done_are_told_apart() {
        let tally = Tally::default();
        let mut first = tally.enqueue(Work::AsyncWrite);
        let second = tally.enqueue(Work::AsyncWrite);
        let at = Work::AsyncWrite as usize;
        tokio::time::sleep(Duration::from_micros(3)).await;
        // Paused time has milliseconds.
        first.issue();
        let now = tally.get();
        assert_eq!((now.pending[at], now.active[at], now.operations), (1, 1, [0, 0]));
        tokio::time::sleep(Duration::from_millis(8)).await;
        first.end(12 << 10, true);
        drop(second);
        let now = tally.get();
        assert_eq!((now.pending[at], now.active[at]), (0, 0));
        assert_eq!((now.operations, now.bytes), ([0, 1], [0, 12 << 10]), "what was given up is not counted");
        assert_eq!(now.joined[at][13], 1);
        assert_eq!(now.alone[at].iter().sum::<u64>(), 0);
        let eight_ms = 8_000_000_u64.ilog2() as usize;
        assert_eq!(now.disk[1][eight_ms], 1, "{:?}", now.disk[1]);
        assert_eq!(now.total[1].iter().sum::<u64>(), 1);
        assert_eq!(now.waits[at].iter().sum::<u64>(), 1);
        assert_eq!(now.total[0].iter().sum::<u64>(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn trims_are_neither_reads_nor_writes_and_failures_nothing() {
        let tally = Tally::default();
        tally.time(Work::Trim, 1 << 30, async { Ok(()) }).await.unwrap();
        let failed = tally.time(Work::SyncRead, 512, async { Err::<(), _>(io::ErrorKind::Other.into()) });
        failed.await.unwrap_err();
        tally.time(Work::Scrub, 512, async { Ok(()) }).await.unwrap();
        let before = tally.get();
        assert_eq!((before.operations, before.bytes), ([1, 0], [512, 0]));
        assert_eq!(before.alone[Work::Trim as usize][SIZES - 1], 1);
        tally.time(Work::SyncRead, 1024, async { Ok(()) }).await.unwrap();
        let since = tally.get().since(&before);
        assert_eq!((since.operations, since.bytes), ([1, 0], [1024, 0]));
        let opened_anew = Tallied { age_ns: before.age_ns + 1, operations: [9, 9], ..Tallied::default() };
        assert_eq!(before.since(&opened_anew), before, "not nothing in no time");
        let mut both = Tallied::default();
        both.add(&since);
        both.add(&before);
        assert_eq!((both.operations, both.bytes, &both.alone), ([2, 0], [1536, 0], &tally.get().alone));
    }
}
