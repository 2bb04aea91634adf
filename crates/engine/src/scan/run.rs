//! The task that scans, beside the one that syncs.
//!
//! ```text
//!   wait for work ▶ walk the metadata of a committed state ▶ sweep what was found, in the order of the devices
//!                        ▲                                        │ batches, each pinned: read, repair
//!                        └──── more than had room ────────────────┴─▶ flush, then say how far it is
//! ```
//!
//! Nothing here changes the pool's structures: what is to be remembered is left in [`Scans`] for the next transaction
//! group. A scan that is halted, replaced or interrupted stops between two batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use codec::checksum::Algorithm;
use futures_util::FutureExt as _;
use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use pool::{
    BlockErrorKind, Bookmark, Pool,
    dmu::ReadError,
    io::{Examined, How, Repair, Turns},
    vdev::Vdev,
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    logged,
    state::{Position, Run, Scans},
    waiting::{BATCHES, Batch, Key},
    walk,
};
use crate::{
    alloc::Horizon,
    devices::{Absent, comings_and_goings, diagnose::Reports, tops},
    events::{DeviceName, Event, Events, IoError},
    suspend::{Suspension, may_pass},
    txg::Txgs,
    write::repair::{self, Repaired},
};

/// Blocks of a batch.
const BATCH_BLOCKS: usize = 2048;
/// How often is said how far the scan is.
const CHECKPOINT: Duration = Duration::from_secs(20);
/// Pause before something is tried again that cannot be done now.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause after a defect: what it was about may be another by then.
const DEFECT: Duration = Duration::from_secs(600);
/// Pauses in a row while what could not be read is still away: to try costs a walk over all metadata.
const PAUSES: usize = 60;
/// Passes over the pool, at most, if the states that they walk hold: each reads all metadata. With so many a pass over
/// blocks of 8 KiB reads about as much data as metadata, so that a state is not held for much longer than the walk takes.
const PASSES: u64 = 64;
/// Lost blocks whose names are looked up in one import: the rest is in the log.
const NAMED_MAX: u64 = 100;

/// What the task works with.
pub(crate) struct Ground {
    /// The last committed state; none when the pool is closed.
    pub(crate) view: Box<dyn Fn() -> Option<Arc<Pool>> + Send + Sync>,
    pub(crate) is_suspended: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) suspension: Arc<Suspension>,
    pub(crate) txgs: Arc<Txgs>,
    pub(crate) events: Arc<Events>,
    pub(crate) scans: Arc<Scans>,
    pub(crate) horizon: Arc<Horizon>,
    pub(crate) reports: Arc<Reports>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Read, and repaired.
    Over,
    /// To be done again when devices are back.
    CutOff,
    /// To be done again: writers waited for its space.
    GaveWay,
}

/// How a pass ended.
pub(super) enum Ended {
    /// Everything was read.
    Done,
    /// Somebody wants something else.
    Interrupted,
    /// It could not go on just now.
    Later,
    /// The pool is gone.
    Gone,
}

/// A pass over the pool.
pub(super) struct Pass {
    pub(super) ground: Arc<Ground>,
    pub(super) generation: u64,
    pub(super) run: Run,
    /// Leaves that were written to since the last flush.
    written: Mutex<BTreeSet<u64>>,
    named: Mutex<u64>,
    /// What is on devices that are away: there is no use in going on without it.
    awaited: Mutex<Option<Awaited>>,
}

/// What a pass waits for.
enum Awaited {
    /// That this block can be read.
    Block(BlkPtr),
    /// That somebody comes back: these were the [`comings_and_goings`].
    Anybody(u64),
}

/// Runs until the pool is closed.
pub(crate) async fn run(ground: Arc<Ground>) {
    let mut changed = ground.scans.changed.subscribe();
    loop {
        changed.mark_unchanged();
        let Some((generation, run)) = ground.scans.current() else {
            if ground.scans.state.lock().halted || changed.changed().await.is_err() {
                return;
            }
            continue;
        };
        let pass = Arc::new(Pass {
            ground: Arc::clone(&ground),
            generation,
            run,
            written: Mutex::default(),
            named: Mutex::default(),
            awaited: Mutex::default(),
        });
        let carried_out = AssertUnwindSafe(pass.carry_out()).catch_unwind().await;
        let ended = match carried_out {
            Ok(ended) => ended,
            // Without the task a scan would stand as running for ever, and nobody would resilver any more.
            Err(_told_already) => {
                tracing::error!(
                    "a scan ended abnormally (a defect: please report what stands above); it goes on in a while"
                );
                tokio::select! {
                    () = sleep(DEFECT) => {}
                    _ = changed.changed() => {}
                }
                Ended::Interrupted
            }
        };
        match ended {
            Ended::Done => {
                let mut state = ground.scans.state.lock();
                if state.generation == generation {
                    state.finished = Some(generation);
                }
                drop(state);
                ground.txgs.wake();
            }
            Ended::Interrupted => {}
            Ended::Later => pass.pause(&mut changed).await,
            Ended::Gone => return,
        }
    }
}

impl Pass {
    pub(super) fn goes_on(&self) -> bool {
        self.ground.scans.goes_on(self.generation)
    }

    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Run) -> T) -> Option<T> {
        self.ground.scans.update(self.run.id, change)
    }

    pub(super) fn how(&self, one_copy: bool) -> How<'_> {
        How { turns: Some(&*self.ground.scans.pace as &dyn Turns), one_copy }
    }

    /// Returns when it is worth while to try again, or somebody wants something else.
    async fn pause(&self, changed: &mut watch::Receiver<u64>) {
        let awaited = self.awaited.lock().take();
        for _ in 0..PAUSES {
            tokio::select! {
                () = sleep(AGAIN) => {}
                _ = changed.changed() => return,
            }
            let (Some(awaited), Some(view)) = (&awaited, (self.ground.view)()) else { return };
            let tree = view.tree();
            let is_over = match awaited {
                Awaited::Block(bp) => !Absent::ask(&tree).await.hides(&tree, bp),
                Awaited::Anybody(stood) => comings_and_goings(&tree) != *stood,
            };
            if is_over {
                return;
            }
        }
    }

    async fn carry_out(self: &Arc<Self>) -> Ended {
        let Some(waiting) = self.ground.scans.waiting.get() else { return Ended::Gone };
        loop {
            if !self.goes_on() {
                return Ended::Interrupted;
            }
            if (self.ground.is_suspended)() {
                return Ended::Later;
            }
            let position = self.update(|run| run.position).unwrap_or_default();
            let Some(span) = self.span() else { return Ended::Gone };
            waiting.begin(position.key, span);
            let view = match self.fresh_view().await {
                Ok(view) => view,
                Err(ended) => return ended,
            };
            if !view.tree().state().0.is_readable() {
                // Too many devices are away: what cannot be read now is not lost.
                return Ended::Later;
            }
            let Some(pin) = self.ground.horizon.pin_view(view.uberblock().txg) else { return Ended::Later };
            let walked = match self.run.logged.is_some() {
                true => logged::offer(self, &view, &pin).await,
                false => walk::walk(self, &view, &pin, position).await,
            };
            if let Err(ended) = walked {
                waiting.clear();
                let is_broken = pin.is_broken();
                self.update(|run| {
                    // All of it will be met again.
                    run.counts = run.settled;
                    run.narrowed += u32::from(is_broken);
                });
                return ended;
            }
            let limit = waiting.end();
            drop(pin);
            let bytes = waiting.bytes();
            self.update(|run| {
                run.known = limit.is_none().then_some(run.counts.issued + bytes);
                // Finding the way says nothing about how fast it is gone.
                run.meter.start();
            });
            if !self.checkpoint(Position { metadata: true, ..position }).await {
                return Ended::Later;
            }
            if let Err(ended) = self.sweep(true).await {
                waiting.clear();
                return ended;
            }
            // Also at the end: what was written must be durable before it is said of anybody that he lacks nothing.
            let key = limit.unwrap_or((u64::MAX, u32::MAX));
            if !self.checkpoint(Position { metadata: true, key }).await {
                return Ended::Later;
            }
            if limit.is_none() {
                return Ended::Done;
            }
        }
    }

    /// A state that was committed after now, and after everything the scan is about.
    async fn fresh_view(&self) -> Result<Arc<Pool>, Ended> {
        let before = self.ground.horizon.commits();
        loop {
            if self.ground.txgs.sync_open().await.is_err() {
                return Err(Ended::Later);
            }
            if !self.goes_on() {
                return Err(Ended::Interrupted);
            }
            let Some(view) = (self.ground.view)() else { return Err(Ended::Gone) };
            let txg = view.uberblock().txg;
            if self.ground.horizon.commits_of(txg).is_some_and(|commits| commits > before)
                && txg >= self.run.max
            {
                return Ok(view);
            }
        }
    }

    /// Bytes of the devices that a pass is over at least, however many blocks are there; fewer after states gave way.
    fn span(&self) -> Option<u64> {
        let tree = (self.ground.view)()?.tree();
        let sizes = tree.tops.iter().filter_map(|top| Some(top.top.as_ref()?.asize));
        let narrowed = self.update(|run| run.narrowed).unwrap_or(0);
        Some((sizes.max().unwrap_or(0) / PASSES).checked_shr(narrowed).unwrap_or(0))
    }

    /// Reads what waits if there is no room for more. How far the scan is does not change by that: the walk goes on.
    pub(super) async fn make_room(self: &Arc<Self>) -> Result<(), Ended> {
        match self.ground.scans.waiting.get() {
            Some(waiting) if waiting.is_full() => self.sweep(false).await,
            _ => Ok(()),
        }
    }

    /// Reads everything that waits, in the order of the devices, and says how far the scan is if that `counts`.
    async fn sweep(self: &Arc<Self>, counts: bool) -> Result<(), Ended> {
        let Some(waiting) = self.ground.scans.waiting.get() else { return Err(Ended::Gone) };
        let mut running: JoinSet<(u64, Outcome)> = JoinSet::new();
        let (mut is_cut_off, mut is_wanted) = (false, false);
        let hurried = self.update(|run| run.hurried).unwrap_or(0);
        // First blocks of batches that are not over, by number.
        let mut open: BTreeMap<u64, Key> = BTreeMap::new();
        let (mut number, mut behind) = (0, self.update(|run| run.position.key).unwrap_or_default());
        let mut said = Instant::now();
        loop {
            is_cut_off |= self.ground.suspension.may_write().is_err();
            while running.len() < BATCHES && self.goes_on() && !is_cut_off {
                let Some(batch) = waiting.take(waiting.batch_bytes(hurried), BATCH_BLOCKS) else { break };
                number += 1;
                open.insert(number, batch.first);
                behind = batch.first;
                let (queued, is_queued) = oneshot::channel();
                let (this, own) = (Arc::clone(self), number);
                running.spawn(async move { (own, this.batch(batch, queued).await) });
                // The next one must not get ahead of this one on any leaf.
                let _over_already = is_queued.await;
            }
            match running.join_next().await {
                None => break,
                Some(Ok((number, Outcome::Over))) => {
                    open.remove(&number);
                }
                // It is to be done again, and stays among those that are not over.
                Some(Ok((_, again))) => {
                    is_cut_off = true;
                    is_wanted |= again == Outcome::GaveWay;
                }
                // Not cancelled by anybody, so a bug: pass it on instead of reporting a pool as scanned.
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Some(Err(_)) => return Err(Ended::Gone),
            }
            if counts && said.elapsed() >= CHECKPOINT {
                said = Instant::now();
                let key = open.values().min().copied().unwrap_or(behind);
                if !self.checkpoint(Position { metadata: true, key }).await {
                    return Err(Ended::Later);
                }
            }
        }
        if is_wanted {
            self.update(|run| run.hurried += 1);
        }
        if self.goes_on() && !is_cut_off {
            return Ok(());
        }
        let ended = if is_cut_off { Ended::Later } else { Ended::Interrupted };
        if !counts {
            return Err(ended);
        }
        // All that was begun is over: the rest begins behind it, or with what has to be done again.
        let next = waiting.take(1, 1).map_or(behind, |batch| batch.first);
        let key = open.into_values().min().unwrap_or(next);
        self.settle(Position { metadata: true, key }).await;
        Err(ended)
    }

    /// Reads the blocks of a batch and repairs them; says through `queued` when all its reads are in their lines. Reads that
    /// take so long that writers wait for the space are given up.
    async fn batch(&self, batch: Batch, queued: oneshot::Sender<()>) -> Outcome {
        let Some(view) = (self.ground.view)() else { return Outcome::Over };
        let io = view.io();
        // Before and after: a leaf that is away for a moment lacks what is read in that moment.
        self.ground.scans.look_at(&io.tree());
        let stood = comings_and_goings(&io.tree());
        let mut examine = std::pin::pin!(io.examine_for_scan(&batch.blocks, self.how(false)));
        let mut queued = Some(queued);
        let read = std::future::poll_fn(|context| {
            let answer = examine.as_mut().poll(context);
            if let Some(queued) = queued.take() {
                // Nobody waits any more if the scan was interrupted.
                let _nobody_waits = queued.send(());
            }
            answer
        });
        let examined = tokio::select! {
            biased;
            examined = read => examined,
            () = batch.pin.wanted() => return Outcome::GaveWay,
        };
        self.ground.scans.look_at(&io.tree());
        let Some(absent) = self.absent(&view, stood, &batch.blocks, &examined).await else {
            return Outcome::CutOff;
        };
        let bytes = batch.blocks.iter().map(|(bp, _)| bp.asize()).sum();
        self.conclude(&view, &batch.blocks, examined, &absent).await;
        self.update(|run| {
            run.counts.issued += bytes;
            run.meter.add(bytes);
            if let Some(logged) = &mut run.logged {
                logged.examined += batch.blocks.len() as u64;
            }
        });
        Outcome::Over
    }

    /// Who is absent, as far as it matters for what these reads did not find. None if so much went away under them that it is
    /// not lost: nothing is known of it, and the scan has to wait. `stood` are the [`comings_and_goings`] before. Who watches
    /// the devices hears of those that refuse.
    pub(super) async fn absent(
        &self,
        view: &Pool,
        stood: u64,
        blocks: &[(BlkPtr, Bookmark)],
        examined: &[Examined],
    ) -> Option<Absent> {
        // What is there may be another host's by now.
        if self.ground.suspension.may_write().is_err() {
            return None;
        }
        let is_unread = |outcome: &Examined| outcome.lost.as_ref().is_some_and(is_unread);
        if !examined.iter().any(is_unread) {
            return Some(Absent::default());
        }
        let tree = view.tree();
        let absent = Absent::ask(&tree).await;
        let mut unread = blocks.iter().zip(examined).filter(|(_, outcome)| is_unread(outcome));
        let hidden = unread.find_map(|((bp, _), _)| absent.hides(&tree, bp).then_some(*bp));
        // One that was away when they were read may be back by now.
        let is_same = comings_and_goings(&tree) == stood;
        if is_same && hidden.is_none() && !absent.cuts_off(&tree) {
            return Some(absent);
        }
        *self.awaited.lock() = hidden.map(Awaited::Block);
        let refused: BTreeSet<u64> = examined.iter().flat_map(|outcome| &outcome.refused).copied().collect();
        for guid in refused {
            self.ground.reports.note(guid, IoError::Read, None, "a read was refused");
        }
        None
    }

    /// Counts what was wrong with some blocks and writes what has to be written; their space is pinned.
    pub(super) async fn conclude(
        &self,
        view: &Arc<Pool>,
        blocks: &[(BlkPtr, Bookmark)],
        examined: Vec<Examined>,
        absent: &Absent,
    ) {
        let mut repairs: Vec<Repair> = Vec::new();
        for ((bp, at), outcome) in blocks.iter().zip(examined) {
            for &guid in &outcome.corrupt {
                self.ground.reports.note(guid, IoError::Checksum, Some(*at), "checksum mismatch");
            }
            for &guid in &outcome.refused {
                self.ground.reports.note(guid, IoError::Read, Some(*at), "a read was refused");
            }
            match &outcome.lost {
                Some(why) => self.lost(view, bp, *at, why, absent).await,
                None if self.run.logged.is_some() => self.ground.scans.found.whole(bp),
                None => {}
            }
            repairs.extend(outcome.repairs);
        }
        if repairs.is_empty() {
            return;
        }
        let turns = &*self.ground.scans.pace;
        let repaired = repair::write(view.io(), &repairs, turns, &self.ground.suspension).await;
        self.repaired(view, &repairs, &repaired);
    }

    fn repaired(&self, view: &Pool, repairs: &[Repair], repaired: &Repaired) {
        self.written.lock().extend(repaired.bytes.keys().copied());
        let sum: u64 = repaired.bytes.values().sum();
        self.update(|run| {
            run.counts.processed += sum;
            for &(guid, birth) in &repaired.failed {
                if let Some(target) = run.targets.get_mut(&guid) {
                    target.failed.insert(birth);
                }
            }
        });
        repaired.report(&self.ground.reports);
        for (&guid, &bytes) in &repaired.bytes {
            if repairs.iter().any(|repair| repair.wrong.contains(&guid)) {
                let device = device(view, guid);
                self.ground.events.tell(Event::Repaired { device, bytes });
            }
        }
    }

    /// No place has this block.
    pub(super) async fn lost(
        &self,
        view: &Arc<Pool>,
        bp: &BlkPtr,
        at: Bookmark,
        why: &BlockErrorKind,
        absent: &Absent,
    ) {
        let (tree, birth) = (view.tree(), bp.physical_birth());
        // Those that are here may have it wrongly, or not at all. Who is away may have it right, and come back: nobody takes
        // his place before.
        let awaited = match is_unread(why) {
            true => absent.awaited(&tree, bp),
            false => BTreeMap::new(),
        };
        // Without a checksum only that they are known to lack it keeps what they have there from being taken for it.
        if !awaited.is_empty() || !can_be_told(bp) {
            let is_starving = !awaited.is_empty() && leads_on(at);
            let places: BTreeSet<u64> =
                tops(&tree, bp).flat_map(Vdev::leaves).map(|leaf| leaf.guid).collect();
            // Nothing is younger than what leads to it, but much of it may be older.
            let newest = bp.birth().max(birth);
            self.update(|run| {
                for (guid, target) in &mut run.targets {
                    let lacks_this = target.missed.contains(birth) && (is_starving || places.contains(guid));
                    let starves =
                        is_starving && target.missed.span().is_some_and(|(start, _)| start <= newest);
                    if lacks_this {
                        target.failed.insert(birth);
                    }
                    target.starved |= starves;
                    if lacks_this || starves {
                        target.awaits(&awaited);
                    }
                }
            });
        }
        self.update(|run| run.counts.errors += 1);
        let found = &self.ground.scans.found;
        if is_unread(why) && absent.may_bring(&tree, bp) {
            found.left_open();
            return;
        }
        let is_news = match self.run.logged {
            // It stays in the log as it is there.
            Some(_) => found.is_news(at, bp.birth()),
            None => found.note(at, bp.birth(), self.run.is_full_scrub()),
        };
        if !is_news {
            return;
        }
        let is_named = {
            let mut named = self.named.lock();
            *named += 1;
            *named <= NAMED_MAX
        };
        let what = if is_named { super::describe(view, at, bp.lsize()).await } else { at.to_string() };
        self.ground.events.tell(Event::DataLost { at, what });
    }

    /// What datasets there are, or what one of them has, could not be read in full: all that is behind these failures, if
    /// there are any, was not met.
    pub(super) async fn unlisted(&self, view: &Pool, failures: &[ReadError]) -> Result<(), Ended> {
        if failures.is_empty() {
            return Ok(());
        }
        let is_device = |error: &ReadError| matches!(error, ReadError::Block(error) if may_pass(error));
        let may_pass = failures.iter().any(is_device);
        let mut awaited = BTreeMap::new();
        if may_pass {
            let tree = view.tree();
            let absent = Absent::ask(&tree).await;
            if absent.cuts_off(&tree) || absent.any(&tree) {
                *self.awaited.lock() = Some(Awaited::Anybody(comings_and_goings(&tree)));
                return Err(Ended::Later);
            }
            awaited = absent.awaited_anywhere(&tree);
        }
        for error in failures {
            tracing::warn!(%error, "a scan cannot read what leads to others");
        }
        self.ground.scans.found.left_open();
        self.update(|run| {
            run.counts.errors += failures.len() as u64;
            // Nobody refuses it for good, it is hoped: then they get it later.
            for target in run.targets.values_mut() {
                target.starved |= may_pass;
                target.awaits(&awaited);
            }
        });
        Ok(())
    }

    /// Makes durable what was written, and then says how far the scan is. False if it cannot be said.
    async fn checkpoint(&self, position: Position) -> bool {
        let settled = self.settle(position).await;
        self.ground.txgs.wake();
        settled
    }

    /// The same without asking for a transaction group to write it down.
    async fn settle(&self, position: Position) -> bool {
        let counts = self.ground.scans.state.lock().run.as_ref().map(|run| run.counts);
        let written = std::mem::take(&mut *self.written.lock());
        if !written.is_empty() {
            let Some(view) = (self.ground.view)() else { return false };
            let failed = repair::flush(view.io(), &written).await;
            if !failed.is_empty() {
                // Nobody knows what of it is there: they lack all of it.
                self.update(|run| {
                    for guid in failed {
                        if let Some(target) = run.targets.get_mut(&guid) {
                            target.broken = true;
                        }
                    }
                });
            }
            // A flush of somebody else may have failed before, and with it gone what this one did not find.
            self.ground.scans.look_at(&view.io().tree());
        }
        let mut state = self.ground.scans.state.lock();
        // Whoever interrupted it wants to know as well, as long as it is the same scan.
        if let Some(run) = state.run.as_mut().filter(|run| run.id == self.run.id) {
            run.position = position;
            run.settled = counts.unwrap_or(run.counts);
            state.dirty = true;
        }
        true
    }
}

/// Whether devices that are away may have what those that are here did not give. Some of these may have answered wrongly while
/// others did not answer.
fn is_unread(why: &BlockErrorKind) -> bool {
    matches!(why, BlockErrorKind::Device | BlockErrorKind::Checksum)
}

/// Whether others may be met only by way of this block: all but data. In the MOS there are objects that name others.
fn leads_on(at: Bookmark) -> bool {
    at.objset == 0 || at.object == 0 || at.level != 0
}

/// Whether anything tells the bytes of a block from older ones.
fn can_be_told(bp: &BlkPtr) -> bool {
    Algorithm::from_id(bp.checksum_id()).is_none_or(Algorithm::is_verified)
}

/// A device as a person finds it.
pub(crate) fn device(view: &Pool, guid: u64) -> DeviceName {
    fn find<'a>(vdev: &'a Vdev, parent: Option<&'a Vdev>, guid: u64) -> Option<DeviceName> {
        if vdev.guid == guid {
            return Some(DeviceName {
                guid,
                path: vdev.path.clone(),
                name: vdev.display_name(),
                parent: parent.map(ToString::to_string),
            });
        }
        vdev.children.iter().find_map(|child| find(child, Some(vdev), guid))
    }
    let tree = view.tree();
    let found = tree.tops.iter().find_map(|top| find(top, None, guid));
    found.unwrap_or_else(|| DeviceName { guid, name: guid.to_string(), ..DeviceName::default() })
}
