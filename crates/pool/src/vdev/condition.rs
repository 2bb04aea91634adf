//! How a leaf is at this moment: the one part of the device tree that changes while the pool is open, and that
//! readers, writers and those who watch devices share.
//!
//! Facts: docs/format/vdevs.md §9.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, Guard};
use disk::Disk;
use ondisk::nvlist::NvList;

use super::{
    deadline::{Deadline, Timed},
    state::{Aux, State},
};

/// See [`Standing`]. Shared by all trees the leaf is in, and, if it is a spare, by the list of spares.
pub struct Condition {
    now: ArcSwap<Standing>,
    deadline: Arc<Deadline>,
    newest: AtomicU64,
    durable: AtomicU64,
    refilled: AtomicU64,
    strange_ends: AtomicBool,
}

/// How a leaf is.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// The device, if it was found and is the one it should be.
    pub disk: Option<Arc<dyn Disk>>,
    /// Why it could not be used, where it is not simply absent.
    pub refused: Aux,
    /// Path of what was last looked at and `refused`, which may be elsewhere than where the leaf was.
    pub refused_at: Option<String>,
    /// An administrator took it offline; persisted unless `until_export`.
    pub offline: bool,
    /// `offline` is forgotten when the pool is opened again (`zpool offline -t`).
    pub until_export: bool,
    /// Persisted: excluded for its faults.
    pub faulted: bool,
    /// Persisted: works with faults.
    pub degraded: bool,
    /// Persisted: went away while the pool was in use.
    pub removed: bool,
    /// Persisted: was not there when the configuration was written.
    pub not_present: bool,
    /// Persisted reason of `faulted` or `degraded`.
    pub aux: Aux,
    /// A resilver of it was begun and has not ended.
    pub resilvering: bool,
    /// Persisted: it was away, a spare stands in for it, which is to go when this one is whole again.
    pub unspare: bool,
    /// Much slower than its peers: not read from while others can answer. Never persisted.
    pub sits_out: bool,
    /// Goes up when the leaf gets or loses its device, or may be used no longer, or again: what was written before and
    /// not flushed may be gone then. Kept up by [`Condition::update`].
    pub generation: u64,
    /// `disk`, for writers. Kept up by [`Condition::update`].
    timed: Option<Arc<dyn Disk>>,
    /// What `disk` was when it was [let go](Self::let_go). Never persisted. Ended by [`Condition::update`].
    closed: Option<Weak<dyn Disk>>,
}

impl Standing {
    /// As a configuration has it.
    pub(super) fn of(nv: &NvList, disk: Option<Arc<dyn Disk>>) -> Self {
        let flag = |name| nv.u64(name).unwrap_or(0) != 0;
        Self {
            disk,
            offline: flag("offline"),
            faulted: flag("faulted"),
            degraded: flag("degraded"),
            removed: flag("removed"),
            not_present: flag("not_present"),
            aux: match nv.str("aux_state") {
                Some("external") => Aux::External,
                Some(_) => Aux::ErrorsExceeded,
                None => Aux::None,
            },
            resilvering: flag("resilver_txg") || flag("rebuild_txg"),
            unspare: flag("unspare"),
            ..Self::default()
        }
    }

    /// State, and why.
    #[must_use]
    pub fn state(&self) -> (State, Aux) {
        match self.disk {
            _ if self.offline => (State::Offline, Aux::None),
            _ if self.faulted => (State::Faulted, self.aux),
            // However it went: that it must not be overwritten is more than that it is back.
            None if self.refused == Aux::NewerState => (State::CantOpen, self.refused),
            None if self.removed => (State::Removed, Aux::None),
            None if self.refused != Aux::None => (State::CantOpen, self.refused),
            None => (State::CantOpen, Aux::OpenFailed),
            Some(_) if self.degraded => (State::Degraded, self.aux),
            Some(_) => (State::Healthy, Aux::None),
        }
    }

    /// The device for whoever writes to it: see [`super::deadline`].
    #[must_use]
    pub fn timed(&self) -> Option<&Arc<dyn Disk>> {
        self.timed.as_ref()
    }

    /// Closes the device, as the leaf is offline or faulted: it counts as here until it is to be taken into use again.
    pub fn let_go(&mut self) {
        if let Some(disk) = self.disk.take() {
            self.closed = Some(Arc::downgrade(&disk));
        }
    }

    /// Whether the device was here, and was closed for that.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.closed.is_some()
    }

    /// The device that was let go, as long as something that was under way on it has it open: nobody can open it anew until that
    /// has ended, and it never left.
    #[must_use]
    pub fn still_open(&self) -> Option<Arc<dyn Disk>> {
        self.closed.as_ref()?.upgrade()
    }

    /// Whether its path means something on this host.
    #[must_use]
    pub fn is_known_here(&self) -> bool {
        !self.not_present || self.disk.is_some()
    }
}

impl Condition {
    /// Of a leaf that is like this.
    #[must_use]
    pub fn new(mut standing: Standing) -> Self {
        let deadline = Arc::<Deadline>::default();
        standing.timed = standing.disk.clone().map(|disk| Timed::over(disk, Arc::clone(&deadline)));
        Self {
            now: ArcSwap::from_pointee(standing),
            deadline,
            newest: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            refilled: AtomicU64::new(0),
            strange_ends: AtomicBool::new(false),
        }
    }

    /// What the leaf still owes, whichever disk it has.
    #[must_use]
    pub fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Another number than before: what was written and not flushed may be gone, as it has or had another device, or a
    /// flush failed.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.get().generation + self.deadline.unflushed()
    }

    /// The newest transaction group whose uberblock the pool may have given it. A device that comes back with a newer one
    /// was gone on with elsewhere, and what was acknowledged there is on it alone.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest.load(Relaxed)
    }

    /// The pool is about to give it the uberblock of `txg`, or may have.
    pub fn may_have(&self, txg: u64) {
        self.newest.fetch_max(txg, Relaxed);
    }

    /// The newest transaction group whose uberblock the pool knows to be in each of its labels, on stable media; 0 as long as
    /// there was none since the pool was opened. A device that comes back without is not as it went.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable.load(Relaxed)
    }

    /// The uberblock of `txg` is there.
    pub fn has_durably(&self, txg: u64) {
        self.durable.fetch_max(txg, Relaxed);
    }

    /// The newest transaction group in which something was taken off the list of what it lacks, as it had been given that; 0 as
    /// long as there was none since the pool was opened. A device as it was before may lack what is far older than itself.
    #[must_use]
    pub fn refilled(&self) -> u64 {
        self.refilled.load(Relaxed)
    }

    /// Something is taken off that list in `txg`.
    pub fn was_refilled(&self, txg: u64) {
        self.refilled.fetch_max(txg, Relaxed);
    }

    /// Its device was read: whether the labels at the end are this leaf's. They are not if it has grown since they were
    /// written; what lies there instead may have been another pool's.
    pub fn found_ends(&self, are_own: bool) {
        self.strange_ends.store(!are_own, Relaxed);
    }

    /// Whether the labels at the end of its device are to be emptied before they get a configuration, which would vouch for
    /// the uberblocks beside it. True once for each time that was found.
    #[must_use]
    pub fn take_strange_ends(&self) -> bool {
        self.strange_ends.swap(false, Relaxed)
    }

    /// How it is now.
    #[must_use]
    pub fn get(&self) -> Guard<Arc<Standing>> {
        self.now.load()
    }

    /// Changes it. `change` may run more than once.
    pub fn update(&self, change: impl Fn(&mut Standing)) {
        self.now.rcu(|now| {
            let mut next = Standing::clone(now);
            change(&mut next);
            if next.disk.is_some() || !(next.offline || next.faulted) {
                next.closed = None;
            }
            let same = match (&now.disk, &next.disk) {
                (Some(before), Some(after)) => Arc::ptr_eq(before, after),
                (None, None) => true,
                _ => false,
            };
            if !same {
                next.timed = next.disk.clone().map(|disk| Timed::over(disk, Arc::clone(&self.deadline)));
            }
            // One that is let go, out of use as it is, comes or goes only when that is over.
            let moved = !next.is_let_go() && (!same || now.is_let_go());
            let changed = moved || now.state().0.is_readable() != next.state().0.is_readable();
            next.generation = now.generation + u64::from(changed);
            next
        });
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.now.load(), f)
    }
}
