//! How long freed space is held back for those who may still read or repair what was there.
//!
//! ```text
//!   commit 7          commit 8          commit 9          commit 10
//!      │ a view is pinned │ released here   │ released here     │
//!      └── nothing released from here on is handed out while the pin is held ──▶
//! ```
//!
//! A block that could be reached when a pin was taken keeps its bytes while the pin is held: whatever is released later
//! waits. A *view* pin lasts as long as somebody walks the trees of a committed state, perhaps an hour, so it gives way
//! when the pool has hardly any other space left, and its holder starts again: not as long as blocks that find no place
//! can be put in pieces, or in a fragmented pool no walk would ever come to an end. A *firm* pin is held during a handful of
//! transfers, repairs among them, and whoever needs space waits for it. If that takes long, as a device is slow, its
//! holder is told, and lets go where it only reads.
//!
//! Facts: docs/format/vdevs.md §7, overview.md §6.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, OnceLock},
};

use ondisk::blkptr::Dva;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Committed states remembered.
const STATES: usize = 8;

/// Hears of every extent that is released, in the syncing task.
pub trait Releases: fmt::Debug + Send + Sync {
    /// What was at `dva` is no longer.
    fn released(&self, dva: &Dva);
}

/// The pins of one pool.
#[derive(Debug, Default)]
pub struct Horizon {
    state: Mutex<State>,
    unpinned: Notify,
    wanted: Notify,
    hears: OnceLock<Arc<dyn Releases>>,
}

#[derive(Debug, Default)]
struct State {
    /// Commits so far.
    commits: u64,
    /// Transaction group and number of commits of the last committed states.
    states: VecDeque<(u64, u64)>,
    /// What was released before there had been this many commits may be handed out already.
    handed_out: u64,
    next: u64,
    /// By number.
    pins: BTreeMap<u64, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// Commits there had been.
    commits: u64,
    /// It holds whatever happens.
    firm: bool,
    /// What it holds back is waited for.
    wanted: bool,
}

/// Holds space back; see the module.
#[derive(Debug)]
pub struct Pin {
    horizon: Arc<Horizon>,
    number: u64,
}

impl Horizon {
    /// Tells `hears` of everything that is released from now on. Later calls change nothing.
    pub fn watch(&self, hears: Arc<dyn Releases>) {
        let _somebody_hears_already = self.hears.set(hears);
    }

    /// Commits so far.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }

    /// Commits there had been when the state of `txg` was committed; none if that is long ago.
    #[must_use]
    pub fn commits_of(&self, txg: u64) -> Option<u64> {
        self.state.lock().states.iter().find(|state| state.0 == txg).map(|state| state.1)
    }

    /// Holds back what is released from now on, firmly.
    #[must_use]
    pub fn pin(self: &Arc<Self>) -> Pin {
        let mut state = self.state.lock();
        let commits = state.commits;
        self.insert(&mut state, commits, true)
    }

    /// Holds back what is released after the commit of `txg`, until space is short. None if that was handed out already,
    /// or the commit was too long ago.
    #[must_use]
    pub fn pin_view(self: &Arc<Self>, txg: u64) -> Option<Pin> {
        let mut state = self.state.lock();
        let commits = state.states.iter().find(|state| state.0 == txg)?.1;
        (state.handed_out <= commits).then(|| self.insert(&mut state, commits, false))
    }

    fn insert(self: &Arc<Self>, state: &mut State, commits: u64, firm: bool) -> Pin {
        state.next += 1;
        let number = state.next;
        state.pins.insert(number, Held { commits, firm, wanted: false });
        Pin { horizon: Arc::clone(self), number }
    }

    pub(super) fn released(&self, dva: &Dva) {
        if let Some(hears) = self.hears.get() {
            hears.released(dva);
        }
    }

    pub(super) fn committed(&self, txg: u64, commits: u64) {
        let mut state = self.state.lock();
        state.commits = commits;
        state.states.push_back((txg, commits));
        if state.states.len() > STATES {
            state.states.pop_front();
        }
    }

    /// What was released before there had been `before` commits is wanted: how much of that may be handed out.
    pub(super) fn grant(&self, before: u64) -> u64 {
        let mut state = self.state.lock();
        let oldest = state.pins.values().map(|pin| pin.commits).min().unwrap_or(u64::MAX);
        let granted = before.min(oldest);
        state.handed_out = state.handed_out.max(granted);
        granted
    }

    /// Space is short: those who walk old states have to start again.
    pub(super) fn give_way(&self) {
        self.state.lock().pins.retain(|_, pin| pin.firm);
    }

    /// It takes long: whoever can do again what he is doing should let go.
    pub(super) fn demand(&self) {
        self.state.lock().pins.values_mut().for_each(|pin| pin.wanted = true);
        self.wanted.notify_waiters();
    }

    /// Returns when nothing is pinned firmly from before the last commit.
    pub(super) async fn unpinned(&self) {
        loop {
            let mut unpinned = std::pin::pin!(self.unpinned.notified());
            unpinned.as_mut().enable();
            {
                let state = self.state.lock();
                if state.pins.values().all(|pin| pin.commits >= state.commits) {
                    return;
                }
            }
            unpinned.await;
        }
    }
}

impl Pin {
    /// It gave way: what was there may be something else by now.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        !self.horizon.state.lock().pins.contains_key(&self.number)
    }

    /// Returns when what it holds back has been waited for longer than a transfer should take, or it gave way.
    pub async fn wanted(&self) {
        loop {
            let mut wanted = std::pin::pin!(self.horizon.wanted.notified());
            wanted.as_mut().enable();
            if self.horizon.state.lock().pins.get(&self.number).is_none_or(|pin| pin.wanted) {
                return;
            }
            wanted.await;
        }
    }

    /// Another pin of the same age that holds whatever happens; none if this one gave way.
    #[must_use]
    pub fn firm(&self) -> Option<Self> {
        let mut state = self.horizon.state.lock();
        let commits = state.pins.get(&self.number)?.commits;
        Some(self.horizon.insert(&mut state, commits, true))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.horizon.state.lock().pins.remove(&self.number);
        self.horizon.unpinned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_released_after_a_pin_waits_for_it_and_view_pins_give_way() {
        let horizon = Arc::new(Horizon::default());
        for commit in 1..=9 {
            horizon.committed(100 + commit, commit);
        }
        assert_eq!(horizon.grant(7), 7);
        assert!(horizon.pin_view(101).is_none() && horizon.pin_view(106).is_none(), "handed out already");
        let view = horizon.pin_view(107).unwrap();
        assert_eq!((horizon.grant(9), view.is_broken()), (7, false));
        let firm = view.firm().unwrap();
        horizon.give_way();
        assert!(view.is_broken() && view.firm().is_none());
        assert_eq!(horizon.grant(9), 7, "the firm one holds");
        let waiting = tokio::spawn({
            let horizon = Arc::clone(&horizon);
            async move { horizon.unpinned().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let second = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(second, firm.wanted()).await.is_err(), "nobody is in need");
        horizon.demand();
        firm.wanted().await;
        drop(firm);
        waiting.await.unwrap();
        assert_eq!(horizon.grant(9), 9);
        let now = horizon.pin();
        horizon.committed(110, 10);
        assert_eq!(horizon.grant(10), 9, "pinned when there had been nine");
        drop(now);
        assert_eq!(horizon.grant(10), 10);
    }
}
