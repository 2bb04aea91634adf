//! A sweep while it runs: it borrows a portion of the free space of its top-level device, writes over or trims what of that is the
//! leaf's, and notes how far it was with the next.
//!
//! What a device refuses is tried again after a moment, and if it is refused again left out: unless the device or the pool is gone,
//! or refuses everything. The engine is held only while the syncing task is asked, so that a slow device keeps no pool open.

use std::{
    io,
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use disk::Disk;
use pool::vdev::{Counted, Tree, Work};
use tokio::sync::watch;

use super::{
    SweepKind, SweepState,
    jobs::{Gate, Job},
    place::{is_in, of_leaf, progress},
    record::record,
};
use crate::{
    alloc::Borrowed,
    devices::{find, refused},
    dsl::OpError,
    engine::Engine,
    sync::Syncer,
    write::ours::Ours,
};

/// Free bytes that are borrowed at a time.
const PORTION: u64 = 64 << 20;
/// Longest single write.
const WRITE: u64 = 1 << 20;
/// What free space is written over with: OpenZFS's word.
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// Pause before space is asked for again when writers were promised all there is.
const AGAIN: Duration = Duration::from_secs(5);
/// Pause before what a device refused is tried again: long enough to notice that it is gone.
const MOMENT: Duration = Duration::from_secs(10);
/// Steps refused one after the other at which it is no spot of the device, but the device.
const REFUSALS: u32 = 8;

/// Runs a sweep to its end. While its device is away, or the pool is suspended, it waits.
pub(super) async fn carry_out(engine: Weak<Engine>, job: Arc<Job>, mut returns: watch::Receiver<u64>) {
    loop {
        if job.is_active() {
            let outcome = run(&engine, &job).await;
            let Some(engine) = engine.upgrade() else { return };
            // Whoever stopped it has said so.
            let is_mine = job.is_active();
            let settled = match outcome {
                Ok(Ended::Done) if is_mine => engine.settle_sweep(&job, SweepState::Complete).await,
                Ok(Ended::Done) => Ok(()),
                // It goes on when the pool is opened again.
                Ok(Ended::Left) => return,
                Err(error) => {
                    job.interrupt(Some(error.to_string()));
                    Err(error)
                }
            };
            if let Err(error) = settled
                && !engine.is_ending()
            {
                tracing::warn!(device = job.guid, %error, kind = ?job.kind, "stopped");
            }
        }
        if !has_returned(&engine, &job, &mut returns).await {
            return;
        }
    }
}

/// Waits until nothing is in the way of a sweep any more, and lets it run; false if nobody wants it any more.
async fn has_returned(engine: &Weak<Engine>, job: &Arc<Job>, returns: &mut watch::Receiver<u64>) -> bool {
    // The sender goes with the engine.
    while job.is_wanted() && returns.changed().await.is_ok() {
        let Some(engine) = engine.upgrade() else { return false };
        if is_usable(&engine, job.guid) && engine.sweeps().has(job) && job.resume() {
            return true;
        }
    }
    false
}

/// How a sweep ended that met no error.
enum Ended {
    /// There is no more, or somebody told it to.
    Done,
    /// The pool is being left: it goes on another time.
    Left,
}

/// The sweep itself; ends early when it is told to.
async fn run(engine: &Weak<Engine>, job: &Job) -> Result<Ended, OpError> {
    let (guid, kind, rate) = (job.guid, job.kind, job.rate);
    let most = rate.map_or(PORTION, |rate| PORTION.min(rate.max(WRITE)));
    // Where the last portion ended, and whether it was the last of all.
    let mut last: Option<(u64, bool)> = None;
    let mut refusals = Refusals::default();
    loop {
        let Some(opened) = engine.upgrade() else { return Ok(Ended::Left) };
        let goes_on = job.is_active();
        let before = last.map(|(next, _)| next);
        let from = before.unwrap_or(job.next());
        let is_over = last.is_some_and(|(_, is_last)| is_last);
        // Whether a spot refuses or the device is not known before it does something again.
        let behind = refusals.since.filter(|_| !is_over).unwrap_or(from);
        let borrowed: Option<Borrowed> = opened
            .run(move |cx| {
                Box::pin(async move {
                    if before.is_some() {
                        record(cx, guid, kind, None, behind).await?;
                    }
                    if !goes_on || is_over {
                        return Ok(None);
                    }
                    borrow(cx, guid, from, most).await
                })
            })
            .await?;
        let view = opened.view();
        let (gate, suspension) = (opened.sweeps().gate(), Arc::clone(opened.suspension()));
        let under_way = opened.sweeps().under_way();
        drop(opened);
        job.advance(behind, progress(&view.tree(), guid, from));
        let Some(borrowed) = borrowed else { return Ok(Ended::Done) };
        if borrowed.runs.is_empty() && borrowed.next == from && !borrowed.is_last {
            tokio::time::sleep(AGAIN).await;
        }
        let disk = Ours::over(disk(&view.tree(), guid)?, &suspension);
        refusals.portion = from;
        let begun = tokio::time::Instant::now();
        let mut bytes = 0;
        for run in &borrowed.runs {
            let _begun = under_way.begin(guid);
            let tree = view.tree();
            // A spare may stand in elsewhere by now.
            if !is_in(&tree, guid, borrowed.vdev) {
                continue;
            }
            let Some(range) = of_leaf(&tree, guid, run) else { continue };
            bytes += range.end - range.start;
            if let Some(ended) = treat_most(engine, job, &*disk, range, &gate, &mut refusals).await? {
                return Ok(ended);
            }
        }
        last = Some((borrowed.next, borrowed.is_last));
        // Before it waits: a log device that is to leave is waited for until it has what it lent.
        drop(borrowed);
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            tokio::time::sleep_until(begun + due).await;
        }
    }
}

/// Borrows free space of the top-level device that a leaf is part of; none if there is no such leaf any more.
async fn borrow(cx: &mut Syncer, guid: u64, from: u64, most: u64) -> Result<Option<Borrowed>, OpError> {
    let tree = cx.io.tree();
    let Some(place) = find::locate(&tree, guid) else { return Ok(None) };
    Ok(Some(cx.out.alloc.borrow_free(place.top.id, from, most).await?))
}

/// What a device has refused since it last did something.
#[derive(Default)]
struct Refusals {
    /// Steps.
    count: u32,
    /// Where the portion with the first of them begins.
    since: Option<u64>,
    /// Where the present portion begins.
    portion: u64,
}

impl Refusals {
    /// Another one. Whether it is for the device to be blamed by now.
    fn add(&mut self) -> bool {
        self.count += 1;
        self.since.get_or_insert(self.portion);
        self.count >= REFUSALS
    }

    /// It did something.
    fn end(&mut self) {
        (self.count, self.since) = (0, None);
    }
}

/// Writes over or trims a range of a device. What that refuses twice is noted and left out, as OpenZFS does, unless it or the
/// pool is gone, or it refuses everything. How the sweep ended, if it did.
async fn treat_most(
    engine: &Weak<Engine>,
    job: &Job,
    disk: &dyn Disk,
    mut range: Range<u64>,
    gate: &Gate,
    refusals: &mut Refusals,
) -> Result<Option<Ended>, OpError> {
    let mut refused_at = None;
    loop {
        let begun_at = range.start;
        let error = match treat(disk, job.kind, &mut range, gate).await {
            Some(Err(error)) => error,
            Some(Ok(())) => {
                refusals.end();
                return Ok(None);
            }
            None => return Ok(Some(Ended::Left)),
        };
        if range.start > begun_at {
            refusals.end();
        }
        let is_first = refused_at.replace(range.start) != Some(range.start);
        if is_first {
            tokio::time::sleep(MOMENT).await;
        }
        let Some(engine) = engine.upgrade() else { return Ok(Some(Ended::Left)) };
        if !is_usable(&engine, job.guid) {
            return Err(refused(error.to_string()));
        }
        if !job.is_active() {
            return Ok(Some(Ended::Done));
        }
        if is_first {
            continue;
        }
        if refusals.add() {
            return Err(refused(error.to_string()));
        }
        tracing::warn!(device = job.guid, %error, kind = ?job.kind, at = range.start, "left out");
        job.left_out(error.to_string());
        range.start = match job.kind {
            SweepKind::Initialize => range.end.min(range.start + WRITE),
            SweepKind::Trim => range.end,
        };
        if range.is_empty() {
            return Ok(None);
        }
    }
}

/// Whether a leaf is there, and the pool not suspended.
fn is_usable(engine: &Engine, guid: u64) -> bool {
    let is_here = find::locate(&engine.view().tree(), guid).is_some_and(|place| place.vdev.is_readable());
    is_here && engine.suspended().is_none()
}

/// Writes over or trims a range of a device, which begins with what was refused if that fails; none if the pool is left
/// meanwhile.
async fn treat(
    disk: &dyn Disk,
    kind: SweepKind,
    range: &mut Range<u64>,
    gate: &Gate,
) -> Option<io::Result<()>> {
    if kind == SweepKind::Trim {
        return gate.pass(disk.trim(range.start, range.end - range.start)).await;
    }
    let pattern: Bytes = PATTERN.to_le_bytes().repeat((WRITE / 8) as usize).into();
    while range.start < range.end {
        let len = WRITE.min(range.end - range.start);
        let written = gate.pass(disk.write(range.start, pattern.slice(..len as usize))).await?;
        if written.is_err() {
            return Some(written);
        }
        range.start += len;
    }
    Some(Ok(()))
}

/// Tries it on a little free space, before anything is promised.
pub(super) async fn can_trim(engine: &Engine, guid: u64, disk: &Arc<dyn Disk>) -> Result<(), OpError> {
    let borrow = engine.run(move |cx| {
        Box::pin(async move {
            let borrowed = borrow(cx, guid, 0, WRITE).await?;
            borrowed.ok_or_else(|| refused("no such device in pool"))
        })
    });
    let borrowed = borrow.await?;
    let begun = engine.sweeps().under_way().begin(guid);
    let tree = engine.view().tree();
    let run = borrowed.runs.first().filter(|_| is_in(&tree, guid, borrowed.vdev));
    let range = run.and_then(|run| of_leaf(&tree, guid, run));
    let Some(mut range) = range else { return Ok(()) };
    let gate = engine.sweeps().gate();
    let disk = Ours::over(Arc::clone(disk), engine.suspension());
    // In a task of its own: whoever asked may go away, and what is being trimmed must be nobody's until that is over.
    let trimming = tokio::spawn(async move {
        let outcome = treat(&*disk, SweepKind::Trim, &mut range, &gate).await;
        drop((borrowed, begun));
        outcome.unwrap_or_else(|| Err(io::Error::other("the pool is being closed")))
    });
    match trimming.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(refused("trim operations are not supported by this device"))
        }
        Err(error) => Err(refused(error.to_string())),
        Ok(()) => Ok(()),
    }
}

/// The device of a leaf that is in use.
pub(super) fn disk(tree: &Tree, guid: u64) -> Result<Arc<dyn Disk>, OpError> {
    let place = find::leaf(tree, guid)?;
    let leaf = place.vdev.leaf.as_ref().filter(|_| place.vdev.is_readable());
    let disk = leaf.and_then(|leaf| Some(Counted::over(leaf.timed()?, &leaf.pulse, Work::Initialize, None)));
    disk.ok_or_else(|| refused("device is unavailable"))
}
