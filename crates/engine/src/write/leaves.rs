//! The leaves as targets of writes: neighbours are merged into long transfers, many of which are under way at once.
//!
//! ```text
//!   pieces of blocks ──▶ open runs (a few per leaf) ──▶ transfers under way ──▶ flush ──▶ secured: forgotten
//!          │             grow while pieces touch        bounded in bytes                        ▲
//!          └──▶ history: what was given to the leaf since it was last secured ─── catch up ─────┘
//! ```
//! Nobody waits for a single transfer. Where two writes of the same bytes could meet in flight (space that was written
//! and freed in one transaction group, if an allocator does not keep it until the commit) the writer waits for all of them
//! first.
//!
//! A leaf that refuses something, is away, or is another device than it was when something was written to it, is
//! *behind*: it gets nothing more of this transaction group, which is noted among those it missed. If the others hold
//! everything, it stays so. If not, everything since the last flush is still in its history, and can be given to it again
//! when it is back ([`Leaves::catch_up`]): a required leaf does not fail, it waits.
//!
//! Facts: docs/format/txg-and-throttle.md §3, docs/format/vdevs.md §2, §6.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use ondisk::label::DATA_OFFSET;
use parking_lot::Mutex;
use pool::vdev::{Vdev, Work};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    held::Held,
    history::newest,
    layout::{SECTOR_MAX, zeroes},
    overlay::{NOWHERE, Overlay, Place},
    target::{ANOTHER_HOST, Target, Targets},
};
use crate::error::in_full;

/// Runs of one leaf that may grow at the same time: with two copies of everything in two regions, and a third
/// region begun, no run is cut short.
const RUNS: usize = 4;
/// Transfers one leaf carries out at once. More do not make it faster, and readers share its queue.
const LEAF_WRITES: usize = 16;
/// What a transfer counts at least, so that many small ones are bounded as well.
const TRANSFER_COST: usize = 16 << 10;

/// Bytes in histories beyond which everything is flushed and they begin anew: seconds of what devices take, so that the
/// flushes cost little, and a leaf that is back is given no more. What of it is in no other memory has a bound of its own:
/// [`Held`].
const HISTORY_BYTES: usize = 256 << 20;

/// A leaf that lacks a part of the transaction group.
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
    target: Arc<Target>,
    gate: Arc<Semaphore>,
    runs: Vec<Run>,
    /// What it was given since it was last secured: offset behind the labels, bytes. In order.
    history: Vec<(u64, Bytes)>,
    /// What others wrote to it ahead in that time, if that had to be remembered. Before all of the history: its place
    /// may have been freed and given out again since.
    recalled: Vec<(u64, Bytes)>,
    /// The epoch of the target in which its history began.
    since: Option<u64>,
    /// Epochs when the last transaction groups began: (group, epoch).
    epochs: [(u64, u64); 3],
    /// Why it lacks something that is in its history.
    behind: Option<String>,
    /// It was noted that it misses this transaction group, for that.
    noted: bool,
    /// It lacks something of this transaction group that is in no history.
    lacks: bool,
    /// It was behind, and was given everything.
    has_caught_up: bool,
    /// Something was written since the last flush.
    dirty: bool,
}

/// A transfer that is over.
#[derive(Debug)]
struct Done {
    guid: u64,
    cost: u64,
    /// None if it was not even tried: the pool may be another host's.
    result: Option<io::Result<()>>,
    places: Vec<Place>,
}

type Transfer = Pin<Box<dyn Future<Output = Done> + Send>>;

/// All leaves of a pool.
#[derive(Debug)]
pub(crate) struct Leaves {
    leaves: Vec<Leaf>,
    /// In a mutex so that the whole can be shared between threads; it is only ever borrowed exclusively.
    in_flight: Mutex<FuturesUnordered<Transfer>>,
    /// What all that takes in memory.
    held: Arc<Held>,
    /// Bytes of the longest transfer, for all pieces of a block: some are less than a sector, and are not to be parted.
    longest: u64,
    overlay: Arc<Overlay>,
    targets: Arc<Targets>,
    txg: u64,
    /// Bytes sent to devices.
    device_bytes: u64,
    /// Bytes in all histories.
    history_bytes: usize,
    /// So many of them are secured: [`HISTORY_BYTES`], or what a test can write.
    pub(super) history_max: usize,
}

impl Leaf {
    fn new(vdev: &Vdev, targets: &Targets, txg: u64) -> Option<Self> {
        let target = targets.of(vdev)?;
        let lacks = target.missed.contains(txg);
        let epoch = target.epoch();
        Some(Self {
            target: Arc::new(target),
            gate: Arc::new(Semaphore::new(LEAF_WRITES)),
            runs: Vec::new(),
            history: Vec::new(),
            recalled: Vec::new(),
            since: None,
            // Nothing was written to it before.
            epochs: [(0, epoch); 3],
            behind: None,
            noted: false,
            lacks,
            has_caught_up: false,
            dirty: false,
        })
    }

    /// What it is called, and why it lacks something; none if it lacks nothing.
    pub(crate) fn describe(&self) -> Option<String> {
        match &self.behind {
            Some(why) => Some(format!("{} ({why})", self.target.name)),
            None if self.lacks => {
                Some(format!("{} (it lacks a part of this transaction group)", self.target.name))
            }
            None if !self.target.is_usable() => Some(self.target.describe()),
            None => None,
        }
    }

    /// Whether it has everything that was given to it in this transaction group, as far as is known.
    fn is_whole(&self) -> bool {
        self.behind.is_none() && !self.lacks && self.target.is_usable() && self.is_same()
    }

    fn has_history(&self) -> bool {
        !self.history.is_empty() || !self.recalled.is_empty()
    }

    fn forget_history(&mut self) {
        self.history.clear();
        self.recalled.clear();
    }

    /// Whether nothing happened to it since its history began.
    fn is_same(&self) -> bool {
        self.since.is_none_or(|since| since == self.target.epoch())
    }
}

impl Leaves {
    pub(super) fn new(overlay: Arc<Overlay>, targets: Arc<Targets>) -> Self {
        let held = Arc::<Held>::default();
        Self {
            targets,
            leaves: Vec::new(),
            in_flight: Mutex::default(),
            longest: held.transfer_max(),
            held,
            overlay,
            txg: 0,
            device_bytes: 0,
            history_bytes: 0,
            history_max: HISTORY_BYTES,
        }
    }

    /// Takes a leaf in, with all that is known of it if it was here before; its index.
    pub(crate) fn adopt(&mut self, vdev: &Vdev, known: &mut Vec<Leaf>) -> Option<usize> {
        let mut leaf = Leaf::new(vdev, &self.targets, self.txg)?;
        if let Some(before) = known.iter().position(|leaf| leaf.target.guid == vdev.guid) {
            let before = known.swap_remove(before);
            // Where others look whether it may be read is another place now.
            let is_followed = before.target.follows(&leaf.target);
            // What the same device did not get of this group made it behind, with a history. Log blocks that it lacks were judged
            // one by one: see `begin`.
            let lacks = leaf.lacks && before.behind.is_none() && !is_followed;
            leaf = Leaf { target: leaf.target, lacks: before.lacks || lacks, ..before };
            if !is_followed {
                // Epochs of the one say nothing of the other.
                leaf.epochs = leaf.epochs.map(|(txg, _)| (txg, u64::MAX));
            }
            self.leaves.push(leaf);
            let index = self.leaves.len() - 1;
            if !is_followed && self.leaves[index].has_history() {
                self.fall_behind(index, "it is another device now");
            } else if self.leaves[index].behind.is_some() {
                self.leaves[index].target.missed.add(self.txg);
            }
            return Some(index);
        }
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
        self.leaves[index].is_whole()
    }

    /// Whether nothing happened to it since before this transaction group was opened: what others wrote to it ahead is there,
    /// once it is flushed, and what they could not write they noted.
    pub(crate) fn is_sure(&self, index: usize) -> bool {
        self.epoch_before(index) == Some(self.leaves[index].target.epoch())
    }

    /// Its epoch before this transaction group was opened, if that is on record.
    fn epoch_before(&self, index: usize) -> Option<u64> {
        // A group opens when the one before the last is committed, or was skipped because nothing was in it; that it was
        // begun itself, or the one before it, says nothing of what was written ahead until then.
        let mut epochs = self.leaves[index].epochs.iter().rev();
        epochs.find(|(txg, _)| *txg + 2 <= self.txg).map(|(_, epoch)| *epoch)
    }

    /// Something was written to it by others since this transaction group was opened: the next flush is for it too, and finds
    /// out if something happened to the leaf since then, also if that was after [`is_sure`](Self::is_sure).
    pub(crate) fn flush_too(&mut self, index: usize) {
        let before = self.epoch_before(index);
        let leaf = &mut self.leaves[index];
        leaf.dirty = true;
        leaf.since = before.or(leaf.since).or_else(|| Some(leaf.target.epoch()));
    }

    /// Leaves that lack a part of this transaction group.
    pub(crate) fn failed(&self) -> Vec<FailedLeaf> {
        let failed = self.leaves.iter().filter_map(|leaf| Some((leaf, leaf.behind.as_ref()?)));
        failed
            .map(|(leaf, reason)| FailedLeaf {
                guid: leaf.target.guid,
                name: leaf.target.name.clone(),
                reason: reason.clone(),
            })
            .collect()
    }

    /// Whether it was away in this transaction group, and has all of it nevertheless.
    pub(crate) fn has_caught_up(&self, guid: u64) -> bool {
        self.leaves.iter().any(|leaf| leaf.target.guid == guid && leaf.has_caught_up)
    }

    pub(crate) fn begin(&mut self, txg: u64) {
        self.txg = txg;
        self.device_bytes = 0;
        self.history_bytes = 0;
        self.held.forgot();
        for leaf in &mut self.leaves {
            leaf.target.begin(txg);
            leaf.forget_history();
            leaf.since = None;
            (leaf.behind, leaf.noted, leaf.has_caught_up) = (None, false, false);
            // Log blocks of this group that a leaf did not get were judged one by one when they were written, and are noted.
            // Several leaves may lack different ones: that is no reason to do without all of these leaves now.
            leaf.lacks = false;
            leaf.epochs.rotate_left(1);
            leaf.epochs[2] = (txg, leaf.target.epoch());
        }
    }

    /// What histories and transfers take in memory.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Whether histories are so long that they should be secured.
    pub(crate) fn is_history_long(&self) -> bool {
        self.history_bytes >= self.history_max || self.held.is_enough_kept()
    }

    /// Whether something has to be done before the next block.
    pub(crate) fn is_full(&self) -> bool {
        self.is_history_long() || self.held.is_enough_under_way()
    }

    /// All that could be given to leaves again.
    #[cfg(test)]
    pub(super) fn histories(&self) -> impl Iterator<Item = &Bytes> {
        let pieces = self.leaves.iter().flat_map(|leaf| leaf.recalled.iter().chain(&leaf.history));
        pieces.map(|(_, data)| data)
    }

    /// It lacks something from now on.
    fn fall_behind(&mut self, index: usize, why: &str) {
        let leaf = &mut self.leaves[index];
        if leaf.behind.is_none() {
            leaf.behind = Some(why.to_owned());
            (leaf.noted, leaf.has_caught_up) = (true, false);
            leaf.target.missed.add(self.txg);
        }
        for run in std::mem::take(&mut leaf.runs) {
            self.overlay.written(&run.places);
        }
    }

    /// The pieces of a block follow. What may be held can change at any time, also while they come.
    pub(crate) fn begin_block(&mut self) {
        self.longest = self.held.transfer_max();
    }

    /// Puts `data` at `offset` of a leaf (labels not counted); `place` is told when it is there. Returns the number
    /// of pieces it was cut into, none if the leaf takes no writes now.
    pub(crate) fn push(&mut self, index: usize, offset: u64, data: &Bytes, place: Place) -> u32 {
        let leaf = &mut self.leaves[index];
        if !leaf.lacks {
            leaf.history.push((offset, data.clone()));
            self.history_bytes += data.len();
            self.held.entered();
        }
        if leaf.behind.is_some() {
            return 0;
        }
        let Some(epoch) = leaf.target.usable_epoch() else {
            let why = leaf.target.state();
            self.fall_behind(index, &why);
            return 0;
        };
        if *leaf.since.get_or_insert(epoch) != epoch {
            self.fall_behind(index, "it was away");
            return 0;
        }
        self.send_pieces(index, offset, data, place)
    }

    /// What was written ahead by others belongs to what a leaf is to have.
    pub(crate) fn recall(&mut self, index: usize, offset: u64, data: &Bytes) {
        let leaf = &mut self.leaves[index];
        if !leaf.lacks {
            leaf.recalled.push((offset, data.clone()));
            self.history_bytes += data.len();
            self.held.entered();
        }
    }

    fn send_pieces(&mut self, index: usize, offset: u64, data: &Bytes, place: Place) -> u32 {
        let longest = self.longest as usize;
        if data.len() <= longest {
            self.push_piece(index, offset, data.clone(), place);
            return 1;
        }
        let mut pieces = 0;
        for start in (0..data.len()).step_by(longest) {
            let end = data.len().min(start + longest);
            self.push_piece(index, offset + start as u64, data.slice(start..end), place);
            pieces += 1;
        }
        pieces
    }

    fn push_piece(&mut self, index: usize, offset: u64, data: Bytes, place: Place) {
        let longest = self.longest;
        let runs = &mut self.leaves[index].runs;
        let len = data.len() as u64;
        let end = offset + len;
        let open = runs
            .iter()
            .rposition(|run| run.end == offset)
            .filter(|&open| runs[open].end - runs[open].start + len <= longest);
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
        if run.end - run.start >= longest {
            let run = runs.remove(at);
            self.send(index, run);
        }
    }

    /// Padding nobody reads: written as zeroes if that joins what is before to what comes behind, else not at all.
    pub(crate) fn push_padding(&mut self, index: usize, offset: u64, len: usize) {
        let longest = self.longest;
        let runs = &mut self.leaves[index].runs;
        let room = |run: &Run| run.end - run.start + (len as u64) < longest;
        if len <= SECTOR_MAX
            && let Some(run) = runs.iter_mut().rev().find(|run| run.end == offset && room(run))
        {
            run.pieces.push(zeroes(len));
            run.end += len as u64;
        }
    }

    fn send(&mut self, index: usize, run: Run) {
        let leaf = &mut self.leaves[index];
        let Some((disk, epoch)) = leaf.target.usable().filter(|_| leaf.behind.is_none()) else {
            self.overlay.written(&run.places);
            let why = self.leaves[index].target.state();
            return self.fall_behind(index, &why);
        };
        if leaf.since != Some(epoch) {
            self.overlay.written(&run.places);
            return self.fall_behind(index, "it was away");
        }
        let (start, places) = (DATA_OFFSET + run.start, run.places);
        let is_joined = run.pieces.len() > 1;
        let len = (run.needed - run.start) as usize;
        let parts = trimmed(run.pieces, len);
        let cost = len.max(TRANSFER_COST) as u64;
        let (gate, target) = (Arc::clone(&leaf.gate), Arc::clone(&leaf.target));
        leaf.dirty = true;
        self.device_bytes += len as u64;
        self.held.begins(cost);
        self.in_flight.get_mut().push(Box::pin(async move {
            let mut job = target.pulse.tally.enqueue(Work::AsyncWrite);
            // The gate is never closed.
            let _turn = gate.acquire_many(target.urgency.weight()).await;
            if !target.may_write() {
                return Done { guid: target.guid, cost, result: None, places };
            }
            job.issue();
            let begun = Instant::now();
            let mut result = disk.write_parts(start, Arc::clone(&parts)).await;
            let is_refused = result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput);
            if is_refused && target.may_write() {
                // Once more: a bus reset looks like a failed write, and giving up here costs redundancy.
                result = disk.write_parts(start, parts).await;
            }
            target.took(begun.elapsed());
            if result.is_ok() {
                job.end(len as u64, is_joined);
            } else {
                drop(job);
            }
            Done { guid: target.guid, cost, result: Some(result), places }
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
        self.held.ends(done.cost);
        self.overlay.written(&done.places);
        if matches!(done.result, Some(Ok(()))) {
            return;
        }
        let Some(index) = self.leaves.iter().position(|leaf| leaf.target.guid == done.guid) else { return };
        match done.result {
            Some(Err(error)) => {
                self.leaves[index].target.refused("write", &error);
                self.fall_behind(index, &format!("write failed: {}", in_full(&error)));
            }
            _ => self.fall_behind(index, ANOTHER_HOST),
        }
    }

    /// Waits until no more is under way than may be.
    pub(crate) async fn keep_room(&mut self) {
        poll_fn(|context| {
            if self.advance(context) || !self.held.is_enough_under_way() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
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
        for index in 0..self.leaves.len() {
            while !self.leaves[index].runs.is_empty() {
                let oldest = self.leaves[index].runs.remove(0);
                self.send(index, oldest);
                if self.held.is_enough_under_way() {
                    self.keep_room().await;
                }
            }
        }
        poll_fn(|context| if self.advance(context) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Makes durable what was written; a leaf that cannot say so is behind.
    pub(crate) async fn flush(&mut self) {
        let mut asked = Vec::new();
        let mut flushes = Vec::new();
        for (index, leaf) in self.leaves.iter_mut().enumerate() {
            if leaf.dirty
                && leaf.behind.is_none()
                && let Some((disk, _)) = leaf.target.usable()
            {
                leaf.dirty = false;
                asked.push(index);
                flushes.push(async move { disk.flush().await });
            }
        }
        let answers = disk::plugged(join_all(flushes)).await;
        for (index, answer) in asked.iter().zip(answers) {
            if let Err(error) = answer {
                self.leaves[*index].target.refused("flush", &error);
                self.fall_behind(*index, &format!("flush failed: {}", in_full(&error)));
            }
        }
        // The error of a flush that somebody else had under way may be about what was written here.
        let whole = asked.iter().map(|index| &self.leaves[*index]).filter(|leaf| leaf.behind.is_none());
        join_all(whole.map(|leaf| leaf.target.heard())).await;
        // One that went away meanwhile, and one that is back as if nothing had happened.
        for index in 0..self.leaves.len() {
            let leaf = &self.leaves[index];
            if leaf.behind.is_none() && leaf.since.is_some() && !leaf.is_whole() && !leaf.lacks {
                let why =
                    if leaf.target.is_usable() { "it was away".to_owned() } else { leaf.target.state() };
                self.fall_behind(index, &why);
            }
        }
    }

    /// Whether any leaf is behind that could be given what it lacks now.
    pub(crate) fn can_catch_up(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.behind.is_some() && !leaf.lacks && leaf.target.is_usable())
    }

    /// Gives leaves that are back what they lack, and waits for that. To be followed by a [`flush`](Self::flush).
    pub(crate) async fn catch_up(&mut self) {
        for index in 0..self.leaves.len() {
            let leaf = &mut self.leaves[index];
            let Some(epoch) = leaf.target.usable_epoch().filter(|_| leaf.behind.is_some() && !leaf.lacks)
            else {
                continue;
            };
            let pieces = newest(leaf.recalled.iter().chain(&leaf.history));
            tracing::info!(
                device = leaf.target.name,
                txg = self.txg,
                pieces = pieces.len(),
                "is given what it lacks"
            );
            (leaf.behind, leaf.since, leaf.dirty) = (None, Some(epoch), true);
            for (offset, data) in pieces {
                if self.leaves[index].behind.is_some() {
                    break;
                }
                self.send_pieces(index, offset, &data, NOWHERE);
                self.keep_room().await;
            }
        }
        self.drain().await;
    }

    /// Everything is on stable media, on as many leaves as are needed: histories are over. Leaves that are behind stay
    /// so for the rest of the transaction group, those that are not have all of it.
    pub(crate) fn secured(&mut self) {
        let txg = self.txg;
        self.history_bytes = 0;
        self.held.forgot();
        for leaf in &mut self.leaves {
            leaf.forget_history();
            match &leaf.behind {
                Some(_) => leaf.lacks = true,
                None if !leaf.lacks => {
                    leaf.since = None;
                    if std::mem::take(&mut leaf.noted) {
                        leaf.target.has_all_of(txg);
                        leaf.has_caught_up = true;
                    }
                }
                None => {}
            }
        }
    }
}

/// The first `len` bytes of the pieces: padding behind the last one that is needed is left out.
fn trimmed(mut pieces: Vec<Bytes>, mut len: usize) -> Arc<[Bytes]> {
    for piece in &mut pieces {
        piece.truncate(len);
        len -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces.into()
}
