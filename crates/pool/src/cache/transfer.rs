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
    wounded: Mutex<Wounded>,
}

/// Transfers that lost blocks, the oldest first.
#[derive(Debug, Default)]
struct Wounded {
    queue: VecDeque<Arc<Transfer>>,
    /// When there are so many, those of which nothing is left are looked for.
    look_at: usize,
}

/// Transfers in the queue that are not worth a look.
const FEW: usize = 64;

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
        wounded.queue.push_back(Arc::clone(transfer));
        // Most die soon, behind one that a hot block keeps alive.
        if wounded.queue.len() > wounded.look_at {
            wounded.queue.retain(|transfer| transfer.alive() > 0);
            wounded.look_at = 2 * wounded.queue.len() + FEW;
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
        self.wounded.lock().queue.pop_front()
    }

    /// How many transfers wait for their survivors to be given memory of their own.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.wounded.lock().queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were taken out only in front of it: some gigabytes a day, which nobody counted.
    #[test]
    fn transfers_of_which_nothing_is_left_do_not_pile_up_behind_one_that_stays() {
        let pinned = Pinned::default();
        let two_blocks = |stays: bool| {
            let transfer = Transfer::new();
            [0, 1].into_iter().for_each(|id| pinned.attach(&transfer, id, 4096));
            pinned.close(&transfer, 8192);
            pinned.detach(&transfer, 4096);
            if !stays {
                pinned.detach(&transfer, 4096);
            }
            transfer
        };
        let hot = two_blocks(true);
        for _ in 0..100_000 {
            two_blocks(false);
        }
        assert!(pinned.waiting() <= 2 * FEW, "{}", pinned.waiting());
        assert!(Arc::ptr_eq(&pinned.oldest().unwrap(), &hot) && pinned.bytes() == 4096);
    }
}
