//! Blocks that share the memory of one transfer.
//!
//! Neighbours on a device are read in one piece of up to 1 MiB, and each block is a slice of it, without a copy. The
//! memory is free when the last of them is forgotten: one hot block of 4 KiB would hold a megabyte that nobody
//! counts. So what is held beyond the blocks that are still here is counted as *pinned*, and when that is too much the
//! survivors of the oldest transfers get memory of their own.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// The memory of one transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of blocks in the cache that lie in it.
    alive: usize,
    /// Identities of all blocks that ever did.
    ids: SmallVec<[u64; 8]>,
    /// Bytes of the whole, when nothing more comes in; from then on it is counted.
    total: Option<usize>,
    /// It is in the queue of those that lost blocks.
    wounded: bool,
}

/// What transfers hold beyond the blocks in them.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    bytes: AtomicUsize,
    wounded: Mutex<VecDeque<Arc<Transfer>>>,
}

impl Transfer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default() })
    }

    pub(super) fn ids(&self) -> SmallVec<[u64; 8]> {
        self.state.lock().ids.clone()
    }

    /// Bytes of blocks in the cache that lie in it.
    pub(super) fn alive(&self) -> usize {
        self.state.lock().alive
    }
}

impl State {
    fn pinned(&self) -> usize {
        self.total.filter(|_| self.alive > 0).map_or(0, |total| total.saturating_sub(self.alive))
    }
}

impl Pinned {
    /// Bytes held that are of no use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn change(&self, transfer: &Arc<Transfer>, change: impl FnOnce(&mut State)) {
        let mut state = transfer.state.lock();
        let before = state.pinned();
        change(&mut state);
        let after = state.pinned();
        self.bytes.fetch_add(after.wrapping_sub(before), Relaxed);
        if after == 0 || state.wounded {
            return;
        }
        state.wounded = true;
        drop(state);
        let mut wounded = self.wounded.lock();
        wounded.push_back(Arc::clone(transfer));
        // Those that died meanwhile, mostly the oldest, are not waited for.
        while wounded.front().is_some_and(|oldest| oldest.alive() == 0) {
            wounded.pop_front();
        }
    }

    /// A block of the transfer came into the cache.
    pub(super) fn attach(&self, transfer: &Arc<Transfer>, id: u64, len: usize) {
        self.change(transfer, |state| {
            state.alive += len;
            state.ids.push(id);
        });
    }

    /// It left, or has memory of its own.
    pub(super) fn detach(&self, transfer: &Arc<Transfer>, len: usize) {
        self.change(transfer, |state| state.alive = state.alive.saturating_sub(len));
    }

    /// All blocks of the transfer have come in, which is of so many bytes.
    pub(super) fn close(&self, transfer: &Arc<Transfer>, total: usize) {
        self.change(transfer, |state| state.total = Some(total));
    }

    /// The oldest transfer that lost blocks.
    pub(super) fn oldest(&self) -> Option<Arc<Transfer>> {
        self.wounded.lock().pop_front()
    }
}
