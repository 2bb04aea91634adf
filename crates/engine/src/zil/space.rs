//! Places for log blocks, at hand while the allocator's owner is busy.
//!
//! The syncing task sets runs of free space aside (in memory only: no space map knows of them) and tops them up when
//! it is idle, between transaction groups, and while it allocates. Whoever writes a log takes places from the front
//! of a run. A place becomes an allocation when the syncing task enters it in the space maps of the transaction
//! group it belongs to ([`Allocator::adopt`](crate::alloc::Allocator::adopt)); a crash before that is what claiming
//! is for.
//!
//! ```text
//!   any task                              syncing task
//!   take ──▶ cut off a run                restock ──▶ new runs, waiting takers go on
//!     └─ dry: asked ─────────────────────▶   └──▶ no room: they get none until a commit has freed some
//! ```
//!
//! Each [`Supply`] has a shelf of its own. How much lies there follows demand: twice as much when it ran dry or half of
//! it went in one transaction group, half when little was taken for a while.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Acquire, Ordering::Release},
    },
};

use ondisk::blkptr::Dva;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::shelf::Shelf;
pub(crate) use super::shelf::{BLOCK_MAX, Run};
use crate::txg::Txgs;

/// Where a place may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// On a log device; in the pool if there is none, or it is full or gone.
    Log,
    /// Among the data, log device or not (`logbias=throughput`, data that records point to).
    Pool,
}

/// What a shelf wants.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) supply: Supply,
    /// Bytes that should lie on it, in runs that hold any log block.
    pub(crate) target: u64,
    /// Bytes that do.
    pub(crate) good: u64,
    /// Bytes on it, short runs included.
    pub(crate) held: u64,
    /// Stored bytes of the largest block that somebody waits for; 0 if nobody does.
    pub(crate) need: u64,
    /// Where to begin among the devices.
    pub(crate) first: usize,
    /// Devices to leave alone.
    pub(crate) barred: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct State {
    log: Shelf,
    pool: Shelf,
    /// Log devices that take blocks.
    log_devices: BTreeSet<u32>,
    /// Devices that get no more log blocks.
    barred: BTreeSet<u32>,
    /// To be given back to the allocator.
    returned: Vec<Run>,
    closed: bool,
}

impl State {
    fn shelf(&mut self, supply: Supply) -> &mut Shelf {
        match supply {
            Supply::Log => &mut self.log,
            Supply::Pool => &mut self.pool,
        }
    }

    fn has_log_device(&self) -> bool {
        self.log_devices.iter().any(|vdev| !self.barred.contains(vdev))
    }
}

/// Space set aside for logs.
#[derive(Debug, Default)]
pub struct LogSpace {
    state: Mutex<State>,
    /// The allocator's owner is wanted.
    wanted: AtomicBool,
    /// Who knows what writers were promised; without one, all that is free may be set aside.
    promises: OnceLock<Arc<Txgs>>,
    asked: Notify,
    stocked: Notify,
}

/// What there is for somebody who wants a place.
enum Answer {
    Place(Dva),
    /// Not before the syncing task has set more aside.
    Wait,
    Never,
}

impl LogSpace {
    /// A place for a block of `psize` stored bytes. Waits until the syncing task has set more aside; `None` if there
    /// is no more, and only the transaction group can help.
    pub async fn take(&self, psize: u64, supply: Supply) -> Option<Dva> {
        loop {
            let mut stocked = pin!(self.stocked.notified());
            // Before the look, so that what is stocked right after it is heard.
            stocked.as_mut().enable();
            match self.look(psize, supply) {
                Answer::Place(dva) => return Some(dva),
                Answer::Never => return None,
                Answer::Wait => stocked.await,
            }
        }
    }

    /// The same, if that needs no waiting.
    #[must_use]
    pub fn try_take(&self, psize: u64, supply: Supply) -> Option<Dva> {
        match self.look(psize, supply) {
            Answer::Place(dva) => Some(dva),
            Answer::Wait | Answer::Never => None,
        }
    }

    /// Somebody will want places soon.
    pub fn expect(&self, supply: Supply) {
        let is_stocked = {
            let mut state = self.state.lock();
            let on_log = supply == Supply::Log && state.has_log_device();
            let shelf = if on_log { &mut state.log } else { &mut state.pool };
            shelf.held > 0
        };
        if !is_stocked {
            self.want();
        }
    }

    /// The pool has a log device that takes blocks.
    #[must_use]
    pub fn has_log_device(&self) -> bool {
        self.state.lock().has_log_device()
    }

    /// Returns when somebody wants more than is set aside.
    pub async fn asked(&self) {
        loop {
            let mut asked = pin!(self.asked.notified());
            asked.as_mut().enable();
            if self.is_wanted() {
                return;
            }
            asked.await;
        }
    }

    /// A device failed, or is to be removed: its runs are given back, and it gets no more log blocks until
    /// [`readmit`](Self::readmit). Places taken from it before are their takers' affair.
    pub fn forget_device(&self, vdev: u32) {
        {
            let mut state = self.state.lock();
            let State { log, pool, returned, barred, .. } = &mut *state;
            log.forget(vdev, returned);
            pool.forget(vdev, returned);
            barred.insert(vdev);
        }
        self.want();
    }

    /// Devices that get no more log blocks.
    #[must_use]
    pub fn barred(&self) -> BTreeSet<u32> {
        self.state.lock().barred.clone()
    }

    /// A device that failed works again.
    pub fn readmit_device(&self, vdev: u32) {
        self.state.lock().barred.remove(&vdev);
        self.want();
    }

    /// The device tree was replaced: all devices are tried again.
    pub fn readmit(&self) {
        self.state.lock().barred.clear();
        self.want();
    }

    /// A place that was taken, and that nothing on disk refers to, is not needed: for those who do not own the
    /// allocator.
    pub fn give_back(&self, dva: Dva) {
        let Dva { vdev, offset, asize: len, .. } = dva;
        self.state.lock().returned.push(Run { vdev, offset, len, footprint: Arc::default() });
        self.want();
    }

    /// Nobody will set more aside: whoever waits gets nothing, and so does everybody who comes later.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.stocked.notify_waiters();
    }

    /// From now on what is set aside among the data comes out of what writers may be promised.
    pub(crate) fn set_promises(&self, txgs: Arc<Txgs>) {
        // There is one to a pool.
        drop(self.promises.set(txgs));
    }

    /// Who knows what clients were promised.
    pub(crate) fn promises(&self) -> Option<&Arc<Txgs>> {
        self.promises.get()
    }

    /// Whether so many bytes, free of parity, may be set aside among the data.
    pub(crate) fn lend(&self, bytes: u64) -> bool {
        self.promises.get().is_none_or(|txgs| txgs.lend(bytes))
    }

    /// What was lent just now was found nowhere.
    pub(crate) fn unlend(&self, bytes: u64) {
        if let Some(txgs) = self.promises.get() {
            txgs.unlend(bytes);
        }
    }

    /// Whether so many may be set aside for a sweep, when sweeps have `out` already.
    pub(crate) fn lend_for_a_while(&self, bytes: u64, out: u64) -> bool {
        self.promises.get().is_none_or(|txgs| txgs.lend_for_a_while(bytes, out))
    }

    /// What may be promised is being worked out anew.
    pub(crate) fn counted(&self) {
        if let Some(txgs) = self.promises.get() {
            txgs.counted();
        }
    }

    fn look(&self, psize: u64, supply: Supply) -> Answer {
        let (answer, low) = {
            let mut state = self.state.lock();
            if state.closed {
                return Answer::Never;
            }
            let on_log = supply == Supply::Log && state.has_log_device() && !state.log.refuses(psize);
            let shelf = if on_log { &mut state.log } else { &mut state.pool };
            match shelf.cut(psize) {
                Some(dva) => (Answer::Place(dva), shelf.good < shelf.mark),
                None if shelf.refuses(psize) => (Answer::Never, false),
                None => {
                    shelf.need = shelf.need.max(psize);
                    shelf.ran_dry = true;
                    (Answer::Wait, true)
                }
            }
        };
        if low {
            self.want();
        }
        answer
    }

    fn want(&self) {
        if !self.wanted.swap(true, Release) {
            self.asked.notify_waiters();
        }
    }

    /// Whether [`asked`](Self::asked) would return.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Acquire)
    }

    /// What each shelf wants now. From here on, who asks again is heard again.
    pub(crate) fn begin_restock(&self) -> Vec<Order> {
        self.wanted.store(false, Release);
        let mut state = self.state.lock();
        let barred = state.barred.clone();
        let mut supplies: SmallVec<[Supply; 2]> = SmallVec::new();
        if state.has_log_device() {
            supplies.push(Supply::Log);
        }
        // Unless it was needed for something else just now.
        if state.pool.refused != Some(0) {
            supplies.push(Supply::Pool);
        }
        let mut surplus = Vec::new();
        let order = |supply: Supply| {
            let shelf = state.shelf(supply);
            shelf.heed_drought();
            shelf.surplus(&mut surplus);
            let (target, good, held, need) =
                (shelf.target, shelf.good, shelf.held, std::mem::take(&mut shelf.need));
            let first = shelf.restocked;
            shelf.restocked += 1;
            Order { supply, target, good, held, need, first, barred: barred.clone() }
        };
        let orders = supplies.into_iter().map(order).collect();
        state.returned.append(&mut surplus);
        orders
    }

    /// A transaction group was closed: what is taken from now on is another one's.
    pub(crate) fn next_group(&self) {
        self.state.lock().log.of_open_group = 0;
    }

    /// Bytes taken of log devices for the open transaction group, and bytes that are at hand there.
    pub(crate) fn of_log_devices(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.log.of_open_group, state.log.held)
    }

    /// Runs to be given back to the allocator.
    pub(crate) fn returned(&self) -> Vec<Run> {
        std::mem::take(&mut self.state.lock().returned)
    }

    /// New runs; blocks of `refused` stored bytes or more cannot be had.
    pub(crate) fn stock(&self, supply: Supply, runs: Vec<Run>, refused: Option<u64>) {
        {
            let mut state = self.state.lock();
            let State { log, pool, barred, returned, .. } = &mut *state;
            let shelf = if supply == Supply::Log { log } else { pool };
            for run in runs {
                // One that was forgotten meanwhile.
                if barred.contains(&run.vdev) { returned.push(run) } else { shelf.put(run) }
            }
            shelf.mark = shelf.good.min(shelf.target) / 2;
            shelf.refused = match (shelf.refused, refused) {
                (Some(before), Some(now)) => Some(before.min(now)),
                (before, now) => before.or(now),
            };
        }
        self.stocked.notify_waiters();
    }

    /// Everything on the shelf of the pool; nothing is set aside there again before the next commit.
    pub(crate) fn take_back(&self) -> Vec<Run> {
        let mut state = self.state.lock();
        let mut runs = std::mem::take(&mut state.returned);
        state.pool.clear(&mut runs);
        if !runs.is_empty() {
            state.pool.refused = Some(0);
        }
        drop(state);
        self.stocked.notify_waiters();
        runs
    }

    /// Log devices that may be used.
    pub(crate) fn set_log_devices(&self, devices: BTreeSet<u32>) {
        self.state.lock().log_devices = devices;
    }

    /// A transaction group is durable: space may have become free, and demand is looked at.
    pub(crate) fn committed(&self) {
        let wanted = {
            let mut state = self.state.lock();
            let log = state.log.committed();
            state.pool.committed() | log
        };
        if wanted {
            self.want();
        }
    }
}
