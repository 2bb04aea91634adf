//! What all writers know of a leaf beside its condition: that it was refused something lately, and that what was written
//! to it may be gone.
//!
//! A leaf that refuses a write or a flush is *suspect*: nobody writes to it until whoever watches devices has looked, or
//! it has another device. A flush that fails leaves everything doubtful that was written since the last good one, by
//! whichever writer; [`Target::epoch`] tells them. And nobody writes to any of them once the pool may be another host's.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use disk::Disk;
use parking_lot::Mutex;
use pool::vdev::{Condition, Counters, Missed, Pulse, Standing, TxgSet, Vdev};

use super::urgency::Urgency;
use crate::{devices::diagnose::Reports, error::in_full, events::IoError, suspend::Suspension};

/// Why nothing is written once this host was not heard of for too long.
pub(super) const ANOTHER_HOST: &str = "another host may have imported the pool";

/// A leaf as a target of writes. The same for all writers.
pub(crate) struct Target {
    pub(crate) guid: u64,
    /// Its path, or what stands for it.
    pub(crate) name: String,
    condition: Arc<Condition>,
    counters: Arc<Counters>,
    pub(crate) missed: Arc<Missed>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) urgency: Arc<Urgency>,
    shared: Arc<Doubts>,
    /// Blocks that a leaf lacks, of those that somebody else than the syncing task wrote: numbered over all leaves.
    lacks: Arc<AtomicU64>,
    reports: Arc<Reports>,
    suspension: Arc<Suspension>,
}

/// What outlives a change of the device tree.
#[derive(Debug, Default)]
struct Doubts {
    /// One more than the generation of the condition in which it was refused something; 0: it was not.
    suspect: AtomicU64,
    /// Transaction groups that somebody else than the syncing task noted as missed.
    noted: Mutex<TxgSet>,
    /// The number of the last block it lacks, of those that somebody else wrote; 0: none.
    lacked: AtomicU64,
}

impl Target {
    /// The device, while it takes writes, and the epoch it is in.
    pub(crate) fn usable(&self) -> Option<(Arc<dyn Disk>, u64)> {
        let standing = self.condition.get();
        let epoch = self.epoch_in(&standing)?;
        Some((Arc::clone(standing.timed()?), epoch))
    }

    /// The epoch it is in, while it takes writes.
    pub(crate) fn usable_epoch(&self) -> Option<u64> {
        self.epoch_in(&self.condition.get())
    }

    fn epoch_in(&self, standing: &Standing) -> Option<u64> {
        let is_suspect = self.shared.suspect.load(Relaxed) == standing.generation.wrapping_add(1);
        let takes_writes =
            standing.disk.is_some() && standing.state().0.is_readable() && !is_suspect && self.may_write();
        takes_writes.then(|| standing.generation + self.condition.deadline().unflushed())
    }

    /// Whether this host may write to it at all: to be asked again by whoever had to wait after it was
    /// [usable](Self::usable).
    pub(crate) fn may_write(&self) -> bool {
        self.suspension.may_write().is_ok()
    }

    /// Whether it takes writes.
    pub(crate) fn is_usable(&self) -> bool {
        self.usable_epoch().is_some()
    }

    /// Another number than before: what was written and not flushed may be gone.
    pub(crate) fn epoch(&self) -> u64 {
        self.condition.epoch()
    }

    /// Returns when the epoch says what became of flushes under way.
    pub(crate) async fn heard(&self) {
        self.condition.deadline().heard().await;
    }

    /// It refused to do `what`: counted, told, and left alone for now.
    pub(crate) fn refused(&self, what: &str, error: &std::io::Error) {
        self.counters.count_write();
        let (generation, is_here) = {
            let standing = self.condition.get();
            (standing.generation, standing.disk.is_some())
        };
        // Nothing new about one that was taken out meanwhile.
        if !is_here {
            return;
        }
        if self.shared.suspect.swap(generation.wrapping_add(1), Relaxed) == 0 {
            tracing::warn!(device = self.name, error = in_full(error), what, "a device refused");
        }
        self.reports.note(self.guid, IoError::Write, None, &format!("{what} failed: {}", in_full(error)));
    }

    /// It took a write only when asked again, and may have lost what others wrote to it: counted, so that there is a reason
    /// for what they do about that. No part of the diagnosis: one bus reset is met by all writes under way.
    pub(crate) fn stumbled(&self, error: &std::io::Error) {
        self.counters.count_write();
        tracing::warn!(
            device = self.name,
            error = in_full(error),
            "a device took a write only the second time"
        );
    }

    /// Its name and how it stands, for an error message.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name, self.state())
    }

    /// Why it takes no writes.
    pub(crate) fn state(&self) -> String {
        let (state, aux) = self.condition.get().state();
        match aux.note() {
            _ if !self.may_write() => ANOTHER_HOST,
            _ if self.is_usable() => "it was away",
            _ if state.is_readable() => "I/O error",
            Some(note) => note,
            None => state.word(aux),
        }
        .to_owned()
    }

    /// An I/O took so long.
    pub(crate) fn took(&self, time: Duration) {
        self.pulse.took(time);
    }

    /// It lacks a block of `txg` that is no part of what the syncing task writes.
    pub(crate) fn note_missed(&self, txg: u64) {
        {
            let mut noted = self.shared.noted.lock();
            *noted = noted.union(&TxgSet::from_ranges(vec![(txg, txg.saturating_add(1))]));
        }
        self.missed.add(txg);
        self.shared.lacked.fetch_max(1 + self.lacks.fetch_add(1, Relaxed), Relaxed);
    }

    /// Whether it lacks a block written after [`Targets::lacks`] was that, by somebody else than the syncing task.
    pub(crate) fn lacks_since(&self, before: u64) -> bool {
        self.shared.lacked.load(Relaxed) > before
    }

    /// It has all of `txg` after all, unless others know better.
    pub(crate) fn has_all_of(&self, txg: u64) {
        let noted = self.shared.noted.lock();
        if !noted.contains(txg) {
            self.missed.subtract(&TxgSet::from_ranges(vec![(txg, txg.saturating_add(1))]));
        }
    }

    /// Nobody asks about groups before `txg` any more.
    pub(crate) fn begin(&self, txg: u64) {
        let mut noted = self.shared.noted.lock();
        if !noted.is_empty() {
            *noted = noted.without(&TxgSet::from_ranges(vec![(0, txg)]));
        }
    }

    /// The condition it follows.
    pub(crate) fn follows(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.condition, &other.condition)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}, {:?})", self.name, self.shared)
    }
}

/// What all targets of one leaf share.
type Known = (Arc<Doubts>, Arc<Urgency>);

/// The targets of a pool, by guid.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    known: Mutex<BTreeMap<u64, Known>>,
    lacks: Arc<AtomicU64>,
    reports: Arc<Reports>,
    suspension: Arc<Suspension>,
}

impl Targets {
    /// Those that tell `reports`, and take nothing when `suspension` says so.
    pub(crate) fn new(reports: Arc<Reports>, suspension: Arc<Suspension>) -> Arc<Self> {
        Arc::new(Self { reports, suspension, ..Self::default() })
    }

    /// A leaf; none if `vdev` is none.
    pub(crate) fn of(&self, vdev: &Vdev) -> Option<Target> {
        let leaf = vdev.leaf.as_ref()?;
        let (shared, urgency) = {
            let mut known = self.known.lock();
            let entry = known.entry(vdev.guid).or_insert_with(|| (Arc::default(), Urgency::new()));
            (Arc::clone(&entry.0), Arc::clone(&entry.1))
        };
        Some(Target {
            guid: vdev.guid,
            name: vdev.path.clone().unwrap_or_else(|| vdev.display_name()),
            condition: Arc::clone(&leaf.condition),
            counters: Arc::clone(&vdev.counters),
            missed: Arc::clone(&leaf.missed),
            pulse: Arc::clone(&leaf.pulse),
            urgency,
            shared,
            lacks: Arc::clone(&self.lacks),
            reports: Arc::clone(&self.reports),
            suspension: Arc::clone(&self.suspension),
        })
    }

    /// Blocks that a leaf lacks so far, of those that somebody else than the syncing task wrote.
    pub(crate) fn lacks(&self) -> u64 {
        self.lacks.load(Relaxed)
    }

    /// Leaf `guid` was looked at, and answers: it is written to again.
    pub(crate) fn trust(&self, guid: u64) {
        if let Some((doubts, _)) = self.known.lock().get(&guid) {
            doubts.suspect.store(0, Relaxed);
        }
    }

    /// Whether leaf `guid`, in this generation of its condition, is not written to until it was looked at.
    pub(crate) fn is_suspect(&self, guid: u64, generation: u64) -> bool {
        let known = self.known.lock();
        let doubts = known.get(&guid).map(|(doubts, _)| doubts);
        doubts.is_some_and(|doubts| doubts.suspect.load(Relaxed) == generation.wrapping_add(1))
    }

    /// Leaves that are not written to until they were looked at.
    pub(crate) fn suspects(&self) -> Vec<u64> {
        let known = self.known.lock();
        known
            .iter()
            .filter(|(_, (doubts, _))| doubts.suspect.load(Relaxed) != 0)
            .map(|(guid, _)| *guid)
            .collect()
    }

    /// Where it is noted that leaves refused labels or uberblocks.
    pub(crate) fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }
}
