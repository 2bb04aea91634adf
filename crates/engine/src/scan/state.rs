//! The scan that runs, in memory: what it is for, how far it is, and what of that is safe to write down.
//!
//! The task that scans moves it on ([`super::run`]); the syncing task begins and ends it, and writes it down
//! ([`super::record`]); everybody else looks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ondisk::scan::{ErrorScrubPhys, ScanPhys, ScanState};
use parking_lot::Mutex;
use pool::{
    Bookmark,
    vdev::{Tree, TxgSet, Vdev},
};
use tokio::{sync::watch, time::Instant};

use super::{
    Logged, Progress,
    errors::Found,
    estimate::Meter,
    pace::Pace,
    waiting::{Key, Waiting},
};
use crate::{devices::generation, events::ScanKind};

/// How long a leaf that refused some of what it lacks is left alone, the first time and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// Words of the `scan` entry.
pub(super) mod word {
    pub(crate) const FUNC: usize = 0;
    pub(crate) const STATE: usize = 1;
    pub(crate) const QUEUE: usize = 2;
    pub(crate) const MIN: usize = 3;
    pub(crate) const MAX: usize = 4;
    pub(crate) const START: usize = 7;
    pub(crate) const END: usize = 8;
    pub(crate) const TO_EXAMINE: usize = 9;
    pub(crate) const EXAMINED: usize = 10;
    pub(crate) const SKIPPED: usize = 11;
    pub(crate) const PROCESSED: usize = 12;
    pub(crate) const ERRORS: usize = 13;
    pub(crate) const DDT_CLASS_MAX: usize = 14;
    pub(crate) const FLAGS: usize = 23;
}

/// The scan waits until it is told to go on.
pub(super) const FLAG_PAUSED: u64 = 2;

/// The 24 words.
pub(super) type Words = [u64; ScanPhys::WORDS];

/// Bytes and errors of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) scanned: u64,
    pub(super) issued: u64,
    pub(super) processed: u64,
    pub(super) errors: u64,
}

/// How far a scan is: everything before it is read, repaired and durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// All metadata is.
    pub(super) metadata: bool,
    /// Data before this is.
    pub(super) key: Key,
}

/// A leaf that is brought up to date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    /// What it lacked when the scan began.
    pub(super) missed: TxgSet,
    /// What could not be made up for.
    pub(super) failed: BTreeSet<u64>,
    /// It was away in between, or a flush failed, so some blocks may be missing on it.
    pub(super) broken: bool,
    /// Some of what it was to get, and leads to nobody knows what, is on devices that are away, or do not answer: it lacks
    /// all of it still, whatever it got.
    pub(super) starved: bool,
    /// Leaves that may have what it did not get, each with its generation when they were found to be away.
    pub(super) awaited: BTreeMap<u64, u64>,
    /// Of its condition when the scan began: it may have been away between two looks, or have lost what it was given when a
    /// flush failed, whoever asked for that one.
    pub(super) epoch: u64,
    /// Somebody looked after it since: what it refused may be tried again at once.
    pub(super) looked_after: bool,
}

impl Target {
    /// What it did not get these leaves may have. Of one that came and went since only the first time counts.
    pub(super) fn awaits(&mut self, leaves: &BTreeMap<u64, u64>) {
        for (&guid, &generation) in leaves {
            self.awaited.entry(guid).or_insert(generation);
        }
    }
}

/// What a leaf refused while it was brought up to date, or could not get. It may be one bad sector, so it is tried again, but
/// at its leisure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) missed: TxgSet,
    /// Leaves that may have it: see [`Target::awaited`]. When one is back there is no reason to wait.
    awaited: BTreeMap<u64, u64>,
    /// No resilver begins because of this alone before then.
    pub(super) again: Instant,
    /// How long it was put off.
    pause: Duration,
}

impl Refusal {
    /// Of a leaf that was not looked after since, lacks `missed` and of which `before` was known.
    pub(super) fn new(missed: TxgSet, target: &Target, before: Option<&Self>) -> Self {
        let pause = before.map_or(PAUSES.0, |before| (before.pause * 2).min(PAUSES.1));
        Self { missed, awaited: target.awaited.clone(), again: Instant::now() + pause, pause }
    }

    /// Whether those that may have it are away as they were. One that left the pool has nothing any more.
    fn still_waits(&self, leaves: &[&Vdev]) -> bool {
        let is_away = |guid: u64, stood: u64| {
            let leaf = leaves.iter().find(|leaf| leaf.guid == guid);
            leaf.is_some_and(|leaf| !leaf.is_readable() || generation(leaf) == stood)
        };
        self.awaited.iter().all(|(&guid, &stood)| is_away(guid, stood))
    }
}

/// A scan.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Another one for each scan.
    pub(super) id: u64,
    pub(super) kind: ScanKind,
    /// Only blocks of the error log, and how far it is there; nothing of it is written down but what became of it and of them.
    pub(super) logged: Option<Logged>,
    /// Births: greater than this …
    pub(super) min: u64,
    /// … and at most this.
    pub(super) max: u64,
    pub(super) started: u64,
    pub(super) paused: Option<u64>,
    /// Since when it moves, in this import and after its last rest, and what had been found by then.
    pub(super) moving: (Instant, u64),
    pub(super) targets: BTreeMap<u64, Target>,
    pub(super) position: Position,
    /// Allocated in the pool when it began.
    pub(super) total: u64,
    /// What there is to read, once that is known.
    pub(super) known: Option<u64>,
    pub(super) counts: Counts,
    /// Counts as of `position`.
    pub(super) settled: Counts,
    /// How often the state that was walked gave way to writers.
    pub(super) narrowed: u32,
    /// How often batches did, as a device was slow.
    pub(super) hurried: u32,
    /// From start to end in this import.
    pub(super) whole: bool,
    pub(super) meter: Meter,
}

impl Run {
    /// Whether it reads every block that the error log may name, so that it begins a new log. One of what is new only adds to
    /// the log, and one of the log only takes from it.
    pub(super) fn is_full_scrub(&self) -> bool {
        self.kind == ScanKind::Scrub && self.min == 0 && self.logged.is_none()
    }
}

/// Scans of one pool.
#[derive(Debug, Default)]
pub struct Scans {
    pub(super) state: Mutex<State>,
    /// Changes when the task that scans has to look again.
    pub(super) changed: watch::Sender<u64>,
    pub(super) waiting: OnceLock<Arc<Waiting>>,
    pub(super) pace: Arc<Pace>,
    pub(super) found: Found,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// As it is in the pool, or will be.
    pub(super) words: Option<Words>,
    /// To be written.
    pub(super) dirty: bool,
    /// The last scrub of the error log, to be written.
    pub(super) error_scrub: Option<ErrorScrubPhys>,
    /// The same as it was when it ended, and the transaction group that says so.
    pub(super) ending: Option<(Run, u64)>,
    /// Its queue of datasets may be another program's.
    pub(super) foreign_queue: bool,
    pub(super) run: Option<Run>,
    /// Another number for each scan, and after each interruption of one.
    pub(super) generation: u64,
    /// The scan of this generation has read everything.
    pub(super) finished: Option<u64>,
    /// What leaves refused while they were brought up to date.
    pub(super) refusals: BTreeMap<u64, Refusal>,
    /// The pool is being closed.
    pub(super) halted: bool,
    /// Scrubs wait: there is too little memory.
    pub(super) scrubs_held: bool,
}

impl State {
    /// Whether what there is to do has to wait for memory.
    fn is_held(&self) -> bool {
        self.scrubs_held && self.run.as_ref().is_some_and(|run| run.kind == ScanKind::Scrub)
    }
}

impl Scans {
    /// Whether there is a pool to scan.
    pub(super) fn is_open(&self) -> bool {
        self.waiting.get().is_some()
    }

    /// The task that scans has to look again.
    pub(super) fn wake(&self, state: &mut State) {
        state.generation += 1;
        self.changed.send_replace(state.generation);
    }

    /// The scan that is to be carried out now.
    pub(super) fn current(&self) -> Option<(u64, Run)> {
        let state = self.state.lock();
        let run =
            state.run.as_ref().filter(|run| run.paused.is_none() && !state.halted && !state.is_held())?;
        (state.finished != Some(state.generation)).then(|| (state.generation, run.clone()))
    }

    /// Whether the scan of this generation is still to be carried out.
    pub(super) fn goes_on(&self, generation: u64) -> bool {
        let state = self.state.lock();
        state.generation == generation && !state.halted && !state.is_held()
    }

    /// Scrubs stop where they are until they are let go on.
    pub(crate) fn hold_scrubs(&self, held: bool) {
        let mut state = self.state.lock();
        let before = state.is_held();
        state.scrubs_held = held;
        if state.is_held() != before {
            self.wake(&mut state);
        }
    }

    /// What blocks that wait to be read may take of memory, in bytes.
    pub(crate) fn set_memory(&self, bytes: usize) {
        if let Some(waiting) = self.waiting.get() {
            waiting.set_memory(bytes);
        }
    }

    /// What they take.
    pub(crate) fn memory(&self) -> u64 {
        self.waiting.get().map_or(0, |waiting| waiting.memory())
    }

    /// Changes this scan, if it is still the one: what was begun before an interruption counts all the same.
    pub(super) fn update<T>(&self, id: u64, change: impl FnOnce(&mut Run) -> T) -> Option<T> {
        self.state.lock().run.as_mut().filter(|run| run.id == id).map(change)
    }

    /// No more of this: the pool is being closed.
    pub(crate) fn halt(&self) {
        let mut state = self.state.lock();
        state.halted = true;
        self.wake(&mut state);
    }

    /// Changes when there is something new to look at.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether the pool is being closed.
    pub(crate) fn is_halted(&self) -> bool {
        self.state.lock().halted
    }

    /// When devices may be used by what can wait.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// A reader met a block that is lost; true if that is news.
    pub(crate) fn note_lost(&self, at: Bookmark, birth: u64) -> bool {
        self.found.note(at, birth, false)
    }

    /// Notes which leaves are away, or have lost something: they will lack it when all is over.
    pub(super) fn look_at(&self, tree: &Tree) {
        let mut state = self.state.lock();
        let State { run, refusals, .. } = &mut *state;
        let leaves = tree.leaves();
        let epoch = |guid: u64| {
            let leaf = leaves.iter().find(|leaf| leaf.guid == guid && leaf.is_readable())?;
            Some(leaf.leaf.as_ref()?.condition.epoch())
        };
        refusals.retain(|guid, refusal| epoch(*guid).is_some() && refusal.still_waits(&leaves));
        if let Some(run) = run {
            for (guid, target) in &mut run.targets {
                target.broken |= epoch(*guid) != Some(target.epoch);
            }
        }
    }

    /// Somebody looked after leaf `guid`: what it refused is tried again as soon as no resilver runs.
    pub(crate) fn forgive(&self, guid: u64) {
        let mut state = self.state.lock();
        state.refusals.remove(&guid);
        if let Some(target) = state.run.as_mut().and_then(|run| run.targets.get_mut(&guid)) {
            target.looked_after = true;
        }
    }

    /// Whether some leaf has waited long enough for what it refused.
    pub(crate) fn has_waited(&self) -> bool {
        let state = self.state.lock();
        state.run.is_none() && state.refusals.values().any(|refusal| refusal.again <= Instant::now())
    }

    /// See [`crate::engine::Engine::scan_progress`]; as of the commit of `txg` if it is said, see
    /// [`crate::engine::Engine::scan_beside`].
    pub(crate) fn progress(&self, txg: Option<u64>) -> Option<Progress> {
        let state = self.state.lock();
        let ending = state.ending.as_ref().filter(|(_, ended)| txg.is_some_and(|txg| txg < *ended));
        if let Some(run) = state.run.as_ref().or(ending.map(|(run, _)| run)) {
            let known = run.known.unwrap_or(run.total).max(run.counts.issued);
            let total = if run.is_full_scrub() { run.total.max(run.counts.issued) } else { known };
            let left = known.saturating_sub(run.counts.issued);
            let (is_running, is_held) = (run.paused.is_none(), state.is_held());
            let (since, before) = run.moving;
            let found = run.counts.scanned.saturating_sub(before);
            return Some(Progress {
                kind: run.kind,
                running: is_running,
                held: is_held,
                paused: run.paused,
                started: run.started,
                ended: None,
                total,
                scanned: run.counts.scanned.min(total),
                issued: run.counts.issued,
                processed: run.counts.processed,
                errors: run.counts.errors,
                // Of less than a second it would say little.
                scanned_rate: found as f64 / since.elapsed().as_secs_f64().max(1.0),
                rate: run.meter.rate().unwrap_or(0.0),
                remaining: run.meter.remaining(left, run.known.is_some()).filter(|_| is_running && !is_held),
                targets: run.targets.keys().copied().collect(),
                logged: run.logged,
            });
        }
        let words = state.words?;
        let phys = ScanPhys::from_words(&words).ok()?;
        let kind = if words[word::FUNC] == 2 { ScanKind::Resilver } else { ScanKind::Scrub };
        let [total, scanned, _, processed] = phys.bytes();
        matches!(phys.state(), ScanState::Finished | ScanState::Cancelled).then(|| Progress {
            kind,
            running: false,
            held: false,
            paused: None,
            started: phys.times().0,
            ended: Some(phys.times().1),
            total,
            scanned,
            issued: scanned,
            processed,
            errors: phys.errors(),
            scanned_rate: 0.0,
            rate: 0.0,
            remaining: None,
            targets: Vec::new(),
            logged: None,
        })
    }
}
