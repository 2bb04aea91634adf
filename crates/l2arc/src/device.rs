//! One cache device, as the task that feeds it and those who read from it share it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use disk::{Disk, IoBuf, nanos};
use futures_util::{StreamExt, stream::FuturesUnordered};
use ondisk::l2arc::Entry;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    header::{Geometry, Identity},
    index::Place,
    patient::{self, Patient},
    rebuild::Recovered,
    ring::is_frequent,
    stats::Sizes,
};

/// A device in use.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) disk: Patient,
    pub(crate) who: Identity,
    pub(crate) geometry: Geometry,
    /// What is added to its addresses in the index: devices lie end to end there.
    pub(crate) base: u64,
    pub(crate) stopping: AtomicBool,
    pub(crate) stop: Notify,
    /// It was let go, and nothing leads to it any more.
    pub(crate) gone: watch::Sender<bool>,
    /// It was never full: everything is taken.
    pub(crate) filling: AtomicBool,
    /// Its last write did not go well, or its header cannot be read yet.
    pub(crate) failing: AtomicBool,
    /// Bytes of blocks that a round under way holds.
    pub(crate) in_flight: AtomicU64,
    /// What the ring's log blocks are, for the statistics: bytes, number.
    pub(crate) logs: (AtomicU64, AtomicU64),
    /// What of it the index knows.
    pub(crate) sizes: Sizes,
    /// The index lacks some of what it tells of, and that was not looked for since.
    pub(crate) short: watch::Sender<Option<Short>>,
    /// Bytes written to it.
    pub(crate) written: AtomicU64,
    pub(crate) recovered: watch::Sender<Option<Recovered>>,
    errors: AtomicU32,
    /// What reads take, on the average of the last ones, in nanoseconds, and how many that knows of.
    typical: (AtomicU64, AtomicU32),
    /// What that was when it was found to be slow, which it has not been found not to be since; 0 if it is not.
    slow: AtomicU64,
    rest: Mutex<Rest>,
}

/// Since when the index lacks what a device tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    /// When it last lost some, or had no memory for it when it was found.
    pub(crate) lost: Instant,
    /// When memory was last too short to look for it.
    pub(crate) cramped: Instant,
}

/// A device that failed again and again, or is slow, is not read from for a while, longer each time.
#[derive(Debug)]
struct Rest {
    until: Option<Instant>,
    /// How long the next one lasts.
    next: Duration,
}

/// Reads that fail in a row until the device is given a rest.
const ERRORS_MAX: u32 = 8;
/// How long that is, at first and at most.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// Reads without which nothing is concluded from what they took: the average knows about as many.
const SAMPLES: u32 = 16;
/// So many times what the pool's own devices take is too slow,
const TIMES: u32 = 8;
/// and what is faster than this is never: what a healthy device has in its queue.
const HARMLESS: Duration = Duration::from_millis(200);
/// One write of a round: long enough for the device's bandwidth, short enough that a read does not wait long behind it.
const WRITE: usize = 256 << 10;
/// Such writes at a time.
const DEPTH: usize = 2;

impl Device {
    pub(crate) fn new(disk: Arc<dyn Disk>, who: Identity, geometry: Geometry, base: u64) -> Self {
        Self {
            disk: Patient::new(disk),
            who,
            geometry,
            base,
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
            gone: watch::Sender::new(false),
            filling: AtomicBool::new(true),
            failing: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            logs: Default::default(),
            sizes: Sizes::default(),
            short: watch::Sender::new(None),
            written: AtomicU64::new(0),
            recovered: watch::Sender::new(None),
            errors: AtomicU32::new(0),
            typical: Default::default(),
            slow: AtomicU64::new(0),
            rest: Mutex::new(Rest { until: None, next: REST.0 }),
        }
    }

    /// `len` bytes at `daddr`, for nobody who waits.
    pub(crate) async fn read(&self, daddr: u64, len: usize) -> io::Result<IoBuf> {
        self.read_within(daddr, len, patient::READ_LONG).await
    }

    /// `len` bytes at `daddr`, within `limit`.
    pub(crate) async fn read_within(&self, daddr: u64, len: usize, limit: Duration) -> io::Result<IoBuf> {
        let aligned = self.extent(daddr, len)?;
        let mut buf = self.disk.read_within(daddr, IoBuf::with_len(aligned), limit).await?;
        buf.truncate(len);
        Ok(buf)
    }

    /// `len` bytes at `daddr`, also if the device owes an answer first: what is not read now is never asked for again.
    pub(crate) async fn read_in_the_end(&self, daddr: u64, len: usize) -> io::Result<IoBuf> {
        let aligned = self.extent(daddr, len)?;
        let mut buf = self.disk.read_in_the_end(daddr, aligned).await?;
        buf.truncate(len);
        Ok(buf)
    }

    /// What `len` bytes at `daddr` take, if that lies in the ring.
    fn extent(&self, daddr: u64, len: usize) -> io::Result<usize> {
        let aligned = self.geometry.aligned(len as u64);
        let is_inside = daddr >= self.geometry.start
            && daddr.checked_add(aligned).is_some_and(|end| end <= self.geometry.end);
        if is_inside { Ok(aligned as usize) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Whether it is worth asking: it stays, owes no answer, and neither failed again and again just now nor was slow.
    pub(crate) fn is_usable(&self) -> bool {
        if self.stopping.load(Relaxed) || self.disk.is_silent() {
            return false;
        }
        let is_well = self.errors.load(Relaxed) < ERRORS_MAX && self.slow.load(Relaxed) == 0;
        is_well || self.rest.lock().is_over()
    }

    /// What reads typically took when it was last found to be slow, if it still is.
    pub(crate) fn slow(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.slow.load(Relaxed))).filter(|took| !took.is_zero())
    }

    /// Whether it takes what comes without anything being overwritten.
    pub(crate) fn has_room(&self) -> bool {
        self.filling.load(Relaxed) && !self.failing.load(Relaxed) && self.is_usable()
    }

    /// A read took so long, or failed; `home` is what it would have taken of the pool's own devices, if that is known.
    pub(crate) fn went(&self, took: Option<Duration>, home: Option<Duration>) {
        if let Some(took) = took {
            if self.errors.load(Relaxed) > 0 {
                self.errors.store(0, Relaxed);
            }
            self.compare(took, home);
        } else if self.errors.fetch_add(1, Relaxed) + 1 >= ERRORS_MAX {
            self.errors.store(ERRORS_MAX, Relaxed);
            self.rest.lock().begin();
        }
    }

    /// Gives it a rest if it is so slow that the pool would be asked with profit, and none any more when it is quick again. Reads
    /// that end at the same moment may be left out of the average.
    fn compare(&self, took: Duration, home: Option<Duration>) {
        let (typical, samples) = &self.typical;
        let (took, before) = (nanos(took), typical.load(Relaxed));
        let known = samples.fetch_add(1, Relaxed);
        let part = u64::from(SAMPLES);
        let now = if known == 0 { took } else { before - before / part + took / part };
        typical.store(now, Relaxed);
        let Some(home) = home.filter(|_| known >= SAMPLES - 1) else { return };
        if Duration::from_nanos(now) > (TIMES * home).max(HARMLESS) {
            // Afterwards it is judged by what it does then.
            samples.store(0, Relaxed);
            self.slow.store(now, Relaxed);
            self.rest.lock().begin();
        } else if self.slow.load(Relaxed) > 0 {
            self.slow.store(0, Relaxed);
            self.rest.lock().next = REST.0;
        }
    }

    /// Writes `pieces` from `at` on, each padded with zeroes to a whole sector; in order, a few writes at a time. Nothing
    /// is written outside of the ring.
    pub(crate) async fn write(&self, at: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let len: u64 = pieces.iter().map(|piece| self.geometry.aligned(piece.len() as u64)).sum();
        self.extent(at, usize::try_from(len).unwrap_or(usize::MAX))?;
        let mut bufs =
            Joined { pieces: pieces.into_iter(), rest: Bytes::new(), sector: self.geometry.sector };
        let (mut at, mut writes, mut result) = (at, FuturesUnordered::new(), Ok(()));
        loop {
            // After a failure nothing new is begun, and what is under way is waited for: its place is written again.
            while result.is_ok()
                && writes.len() < DEPTH
                && let Some(buf) = bufs.next()
            {
                let begin = at;
                at += buf.len() as u64;
                writes.push(self.disk.write(begin, buf.freeze()));
            }
            match writes.next().await {
                Some(written) => result = result.and(written),
                None => return result,
            }
        }
    }

    /// The place in the index of a block that it tells of.
    pub(crate) fn place(&self, entry: &Entry) -> Place {
        Place {
            address: self.base + entry.daddr,
            heat: 0,
            frequent: is_frequent(entry),
            prefetched: entry.prefetched,
        }
    }

    /// The index lacks more of what it tells of than before. That is looked for when there has been memory for a while.
    pub(crate) fn falls_short(&self) {
        let now = Instant::now();
        self.short.send_replace(Some(Short { lost: now, cramped: now }));
    }

    /// There is no memory yet to look for what is lacking.
    pub(crate) fn stays_short(&self) {
        self.short.send_if_modified(|short| {
            if let Some(short) = short {
                short.cramped = Instant::now();
            }
            // Nobody waits for that.
            false
        });
    }

    /// A block is held at this place of it, or no longer.
    pub(crate) fn holds(&self, entry: &Entry, place: &Place, comes: bool) {
        self.sizes.holds(entry, place, self.geometry.aligned(entry.psize), comes);
    }

    /// Bytes of it that hold what is known: blocks, and log blocks.
    pub(crate) fn used(&self) -> u64 {
        (self.sizes.taken() + self.logs.0.load(Relaxed)).min(self.geometry.ring())
    }

    /// Waits until somebody wants the task to end.
    pub(crate) async fn stopped(&self) {
        while !self.stopping.load(Relaxed) {
            self.stop.notified().await;
        }
    }

    /// Waits until it was let go.
    pub(crate) async fn let_go(&self) {
        let mut gone = self.gone.subscribe();
        // The sender is this device's own.
        let _sent = gone.wait_for(|gone| *gone).await;
    }

    pub(crate) fn end(&self) {
        self.stopping.store(true, Relaxed);
        self.stop.notify_one();
    }

    /// The addresses in the index that are this device's.
    pub(crate) fn addresses(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.geometry.end
    }
}

impl Rest {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// Those who find out at the same time, or that one is needed while there is one, mean the same.
    fn begin(&mut self) {
        if !self.is_over() {
            return;
        }
        let now = Instant::now();
        if self.until.is_some_and(|until| now.duration_since(until) > REST.1) {
            // It was well for long.
            self.next = REST.0;
        }
        self.until = Some(now + self.next);
        self.next = (2 * self.next).min(REST.1);
    }
}

/// Pieces of any length as buffers of [`WRITE`] bytes: made one by one, so that a round takes little memory of its own.
struct Joined {
    pieces: std::vec::IntoIter<Bytes>,
    /// What is left of the piece that did not fit.
    rest: Bytes,
    sector: u64,
}

impl Iterator for Joined {
    type Item = IoBuf;

    fn next(&mut self) -> Option<IoBuf> {
        let mut buf = IoBuf::with_len(WRITE);
        let mut filled = 0;
        while filled < WRITE {
            if self.rest.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.rest = piece,
                    None => break,
                }
            }
            let part = self.rest.split_to(self.rest.len().min(WRITE - filled));
            buf[filled..filled + part.len()].copy_from_slice(&part);
            filled += part.len();
            if self.rest.is_empty() {
                // A buffer begins and ends at whole sectors, so the padding lies in this one.
                let padded = (filled as u64).next_multiple_of(self.sector) as usize;
                buf[filled..padded].fill(0);
                filled = padded;
            }
        }
        buf.truncate(filled);
        (filled > 0).then_some(buf)
    }
}
