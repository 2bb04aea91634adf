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
use disk::{Disk, IoBuf};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    header::{Geometry, Identity},
    patient::{self, Patient},
    rebuild::Recovered,
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
    pub(crate) hand: AtomicU64,
    /// Bytes written to it.
    pub(crate) written: AtomicU64,
    pub(crate) recovered: watch::Sender<Option<Recovered>>,
    errors: AtomicU32,
    /// Not read from before this time.
    resting: Mutex<Option<Instant>>,
}

/// Reads that fail in a row until the device is given a rest.
const ERRORS_MAX: u32 = 8;
/// How long that is.
const REST: Duration = Duration::from_secs(1);
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
            hand: AtomicU64::new(geometry.start),
            written: AtomicU64::new(0),
            recovered: watch::Sender::new(None),
            errors: AtomicU32::new(0),
            resting: Mutex::new(None),
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

    /// Whether it is worth asking: it stays, owes no answer, and did not fail again and again just now.
    pub(crate) fn is_usable(&self) -> bool {
        if self.stopping.load(Relaxed) || self.disk.is_silent() {
            return false;
        }
        self.errors.load(Relaxed) < ERRORS_MAX
            || self.resting.lock().is_none_or(|until| Instant::now() >= until)
    }

    /// Whether it takes what comes without anything being overwritten.
    pub(crate) fn has_room(&self) -> bool {
        self.filling.load(Relaxed) && !self.failing.load(Relaxed) && self.is_usable()
    }

    /// A read went well, or failed.
    pub(crate) fn went(&self, well: bool) {
        if well {
            if self.errors.load(Relaxed) > 0 {
                self.errors.store(0, Relaxed);
            }
        } else if self.errors.fetch_add(1, Relaxed) + 1 >= ERRORS_MAX {
            self.errors.store(ERRORS_MAX, Relaxed);
            *self.resting.lock() = Some(Instant::now() + REST);
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
