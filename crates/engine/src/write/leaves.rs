//! The leaves as targets of writes: neighbours are merged into long transfers, many of which are under way at once,
//! and a leaf that refuses one is left alone from then on.
//!
//! ```text
//!   pieces of blocks ──▶ open runs (a few per leaf) ──▶ transfers under way ──▶ flush
//!                        grow while pieces touch        bounded in bytes        every leaf written to
//! ```
//! Nobody waits for a single transfer. Where two writes of the same bytes could meet in flight (space that was
//! written and freed in one transaction group and is given out again) the writer waits for all of them first.
//!
//! Facts: docs/format/txg-and-throttle.md §3, docs/format/vdevs.md §2.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use disk::{Disk, IoBuf};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use parking_lot::Mutex;
use pool::vdev::{Counters, LABEL_START, Missed, Vdev};
use tokio::sync::Semaphore;

use super::{
    overlay::{Overlay, Place},
    urgency::{Urgencies, Urgency},
};

/// Longest transfer. Beyond 1 MiB no device gains, and readers wait behind it.
const RUN_BYTES: usize = 1 << 20;
/// Runs of one leaf that may grow at the same time: with two copies of everything in two regions, and a third
/// region begun, no run is cut short.
const RUNS: usize = 4;
/// Transfers one leaf carries out at once. More do not make it faster, and readers share its queue.
const LEAF_WRITES: usize = 16;
/// Bytes under way in all, beyond which whoever makes more has to wait: half a second of a slow disk, and
/// enough for the queues of a dozen fast ones.
pub(crate) const IN_FLIGHT_BYTES: usize = 32 << 20;
/// What a transfer counts at least, so that many small ones are bounded as well.
const TRANSFER_COST: usize = 16 << 10;

/// Zeroes for padding; the largest sector.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A leaf to which nothing is written any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLeaf {
    /// Its guid.
    pub guid: u64,
    /// Its path, or what stands for it.
    pub name: String,
    /// What it said.
    pub reason: String,
}

/// Bytes for one leaf, next to each other.
#[derive(Debug)]
struct Run {
    start: u64,
    /// First byte behind it.
    end: u64,
    /// First byte behind the last one that has to be written; up to `end` it is padding.
    needed: u64,
    pieces: Vec<Bytes>,
    places: Vec<Place>,
}

/// One leaf.
#[derive(Debug)]
pub(crate) struct Leaf {
    guid: u64,
    name: String,
    disk: Option<Arc<dyn Disk>>,
    counters: Arc<Counters>,
    missed: Arc<Missed>,
    gate: Arc<Semaphore>,
    urgency: Arc<Urgency>,
    /// Why nothing is written to it any more.
    failed: Option<String>,
    runs: Vec<Run>,
    /// Something was written since the last flush.
    dirty: bool,
}

/// A transfer that is over.
#[derive(Debug)]
struct Done {
    guid: u64,
    cost: usize,
    result: io::Result<()>,
    places: Vec<Place>,
}

type Transfer = Pin<Box<dyn Future<Output = Done> + Send>>;

/// All leaves of a pool.
#[derive(Debug)]
pub(crate) struct Leaves {
    leaves: Vec<Leaf>,
    /// In a mutex so that the whole can be shared between threads; it is only ever borrowed exclusively.
    in_flight: Mutex<FuturesUnordered<Transfer>>,
    cost_in_flight: usize,
    overlay: Arc<Overlay>,
    urgencies: Arc<Urgencies>,
    txg: u64,
    /// Bytes sent to devices.
    device_bytes: u64,
}

impl Leaf {
    fn new(vdev: &Vdev, urgencies: &Urgencies) -> Option<Self> {
        let leaf = vdev.leaf.as_ref()?;
        Some(Self {
            guid: vdev.guid,
            name: vdev.path.clone().unwrap_or_else(|| vdev.display_name()),
            disk: leaf.disk().filter(|_| vdev.is_readable()),
            counters: Arc::clone(&vdev.counters),
            missed: Arc::clone(&leaf.missed),
            gate: Arc::new(Semaphore::new(LEAF_WRITES)),
            urgency: urgencies.of(vdev.guid),
            failed: None,
            runs: Vec::new(),
            dirty: false,
        })
    }

    /// What it is called, and why it does not take writes.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name, self.failed.as_deref().unwrap_or("unavailable"))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.disk.is_some() && self.failed.is_none()
    }
}

impl Leaves {
    pub(super) fn new(overlay: Arc<Overlay>, urgencies: Arc<Urgencies>) -> Self {
        Self {
            urgencies,
            leaves: Vec::new(),
            in_flight: Mutex::default(),
            cost_in_flight: 0,
            overlay,
            txg: 0,
            device_bytes: 0,
        }
    }

    /// Takes a leaf in, with all that is known of it if it was here before; its index.
    pub(crate) fn adopt(&mut self, vdev: &Vdev, known: &mut Vec<Leaf>) -> Option<usize> {
        let before = known.iter().position(|leaf| leaf.guid == vdev.guid);
        let leaf = match before.map(|index| known.swap_remove(index)) {
            Some(leaf) if leaf.disk.is_some() => leaf,
            Some(_) => {
                // One that was away may be back: without what was written so far.
                let leaf = Leaf::new(vdev, &self.urgencies)?;
                leaf.missed.add(self.txg);
                leaf
            }
            None => Leaf::new(vdev, &self.urgencies)?,
        };
        self.leaves.push(leaf);
        Some(self.leaves.len() - 1)
    }

    /// Gives all leaves away, to be taken in again.
    pub(crate) fn take(&mut self) -> Vec<Leaf> {
        std::mem::take(&mut self.leaves)
    }

    pub(crate) fn leaf(&self, index: usize) -> &Leaf {
        &self.leaves[index]
    }

    /// Whether it has everything that was written to it in this transaction group.
    pub(crate) fn is_whole(&self, index: usize) -> bool {
        let leaf = &self.leaves[index];
        leaf.is_writable() && !leaf.missed.contains(self.txg)
    }

    /// Something was written to it by others: the next flush is for it too.
    pub(crate) fn flush_too(&mut self, index: usize) {
        self.leaves[index].dirty = true;
    }

    pub(crate) fn failed(&self) -> Vec<FailedLeaf> {
        let failed = self.leaves.iter().filter_map(|leaf| Some((leaf, leaf.failed.as_ref()?)));
        failed
            .map(|(leaf, reason)| FailedLeaf {
                guid: leaf.guid,
                name: leaf.name.clone(),
                reason: reason.clone(),
            })
            .collect()
    }

    pub(crate) fn begin(&mut self, txg: u64) {
        self.txg = txg;
        self.device_bytes = 0;
        for leaf in self.leaves.iter().filter(|leaf| leaf.failed.is_some()) {
            leaf.missed.add(txg);
        }
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Puts `data` at `offset` of a leaf (labels not counted); `place` is told when it is there. Returns the number
    /// of pieces it was cut into, none if the leaf takes no writes.
    pub(crate) fn push(&mut self, index: usize, offset: u64, data: &Bytes, place: Place) -> u32 {
        if !self.leaves[index].is_writable() {
            return 0;
        }
        if data.len() <= RUN_BYTES {
            self.push_piece(index, offset, data.clone(), place);
            return 1;
        }
        let mut pieces = 0;
        for start in (0..data.len()).step_by(RUN_BYTES) {
            let end = data.len().min(start + RUN_BYTES);
            self.push_piece(index, offset + start as u64, data.slice(start..end), place);
            pieces += 1;
        }
        pieces
    }

    fn push_piece(&mut self, index: usize, offset: u64, data: Bytes, place: Place) {
        let runs = &mut self.leaves[index].runs;
        let len = data.len() as u64;
        let end = offset + len;
        let open = runs
            .iter()
            .rposition(|run| run.end == offset)
            .filter(|&open| runs[open].end - runs[open].start + len <= RUN_BYTES as u64);
        let at = match open {
            Some(at) => at,
            None => {
                if runs.len() >= RUNS {
                    let oldest = runs.remove(0);
                    self.send(index, oldest);
                }
                let runs = &mut self.leaves[index].runs;
                runs.push(Run {
                    start: offset,
                    end: offset,
                    needed: offset,
                    pieces: Vec::new(),
                    places: Vec::new(),
                });
                runs.len() - 1
            }
        };
        let runs = &mut self.leaves[index].runs;
        let run = &mut runs[at];
        run.pieces.push(data);
        run.places.push(place);
        (run.end, run.needed) = (end, end);
        if run.end - run.start >= RUN_BYTES as u64 {
            let run = runs.remove(at);
            self.send(index, run);
        }
    }

    /// Padding nobody reads: written as zeroes if that joins what is before to what comes behind, else not at all.
    pub(crate) fn push_padding(&mut self, index: usize, offset: u64, len: usize) {
        let runs = &mut self.leaves[index].runs;
        let room = |run: &Run| run.end - run.start + (len as u64) < RUN_BYTES as u64;
        if len <= ZEROES.len()
            && let Some(run) = runs.iter_mut().rev().find(|run| run.end == offset && room(run))
        {
            run.pieces.push(Bytes::from_static(&ZEROES[..len]));
            run.end += len as u64;
        }
    }

    /// Ends all runs: they are on their way.
    pub(crate) fn send_all(&mut self) {
        for index in 0..self.leaves.len() {
            for run in std::mem::take(&mut self.leaves[index].runs) {
                self.send(index, run);
            }
        }
    }

    fn send(&mut self, index: usize, run: Run) {
        let leaf = &mut self.leaves[index];
        let Some(disk) = leaf.disk.clone().filter(|_| leaf.failed.is_none()) else {
            return self.overlay.written(&run.places);
        };
        let (guid, start, places) = (leaf.guid, LABEL_START + run.start, run.places);
        let data = join(run.pieces, (run.needed - run.start) as usize);
        let cost = data.len().max(TRANSFER_COST);
        let (gate, urgency) = (Arc::clone(&leaf.gate), Arc::clone(&leaf.urgency));
        leaf.dirty = true;
        self.device_bytes += data.len() as u64;
        self.cost_in_flight += cost;
        self.in_flight.get_mut().push(Box::pin(async move {
            // The gate is never closed.
            let _turn = gate.acquire_many(urgency.weight()).await;
            let mut result = disk.write(start, data.clone()).await;
            if result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput) {
                // Once more: a bus reset looks like a failed write, and giving up here costs redundancy.
                result = disk.write(start, data).await;
            }
            Done { guid, cost, result, places }
        }));
    }

    /// Lets transfers begin and end, without waiting. True if none is left.
    fn advance(&mut self, context: &mut Context<'_>) -> bool {
        // What is submitted now goes to the kernel together.
        let _plug = disk::plug();
        loop {
            match self.in_flight.get_mut().poll_next_unpin(context) {
                Poll::Ready(Some(done)) => self.end(done),
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }

    fn end(&mut self, done: Done) {
        self.cost_in_flight -= done.cost;
        self.overlay.written(&done.places);
        if let Err(error) = done.result
            && let Some(index) = self.leaves.iter().position(|leaf| leaf.guid == done.guid)
        {
            self.fail(index, &format!("write failed: {error}"));
        }
    }

    /// Nothing is written to this leaf any more: one that lacks a block is as good as one that lacks many, and
    /// waiting for each of its errors would cost the pool its pace.
    fn fail(&mut self, index: usize, reason: &str) {
        let leaf = &mut self.leaves[index];
        leaf.counters.count_write();
        leaf.missed.add(self.txg);
        if leaf.failed.is_none() {
            tracing::warn!(device = leaf.name, txg = self.txg, reason, "no more writes to this device");
            leaf.failed = Some(reason.to_owned());
        }
        for run in std::mem::take(&mut leaf.runs) {
            self.overlay.written(&run.places);
        }
    }

    /// Waits until at most `cost` bytes are under way.
    pub(crate) async fn keep_below(&mut self, cost: usize) {
        poll_fn(|context| {
            if self.advance(context) || self.cost_in_flight <= cost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Waits for something else while transfers go on.
    pub(crate) async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|context| {
            self.advance(context);
            other.as_mut().poll(context)
        })
        .await
    }

    /// Everything that was pushed is on its device, or the device has failed.
    pub(crate) async fn drain(&mut self) {
        self.send_all();
        poll_fn(|context| if self.advance(context) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Makes durable what was written; a leaf that cannot say so has failed.
    pub(crate) async fn flush(&mut self) {
        let mut asked = Vec::new();
        let mut flushes = Vec::new();
        for (index, leaf) in self.leaves.iter_mut().enumerate() {
            if std::mem::take(&mut leaf.dirty)
                && leaf.failed.is_none()
                && let Some(disk) = leaf.disk.clone()
            {
                asked.push(index);
                flushes.push(async move { disk.flush().await });
            }
        }
        let answers = disk::plugged(join_all(flushes)).await;
        for (index, answer) in asked.into_iter().zip(answers) {
            if let Err(error) = answer {
                self.fail(index, &format!("flush failed: {error}"));
            }
        }
    }
}

/// The first `len` bytes of the pieces as one: without a copy if it is one aligned piece.
fn join(mut pieces: Vec<Bytes>, len: usize) -> Bytes {
    if let Some(first) = pieces.first_mut()
        && first.len() == len
        && first.as_ptr().addr().is_multiple_of(IoBuf::ALIGN)
    {
        return std::mem::take(first);
    }
    let mut joined = IoBuf::with_len(len);
    let mut at = 0;
    for piece in &pieces {
        let part = &piece[..piece.len().min(len - at)];
        joined[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    joined.freeze()
}
