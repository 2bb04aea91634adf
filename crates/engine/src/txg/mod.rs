//! Transaction groups as clients see them: which one is open, who holds it, and how fast they may fill it.
//!
//! ```text
//!   assign ─▶ room? ─▶ its turn? ─▶ dirty below the limit? ─▶ delay by the curve ─▶ Tx: holds the open group
//!                      (queue)                                          │ dropped
//!   syncing task: next() ─▶ close() ─▶ nobody holds it ◀────────────────┘
//!                                         └─▶ … the group is synced … ─▶ synced()
//! ```
//!
//! Memory only, one mutex, held for a few assignments: the syncing task is the only one that ever moves the
//! open group on. Who waits for a group listens to a channel of its own, whose value has a lock, too: neither is taken
//! under the other. The delay curve is hyperbolic in the amount of dirty data, so that writers slow down
//! smoothly to the speed of the devices instead of running into a wall. Who is delayed stands in a queue, of which only the
//! first one's delay runs: it is measured anew whenever something was written. Where it has become so little that nobody is
//! delayed, all who find room there are let in at once.
//!
//! Indirect blocks above what changes count as dirty as well: they are in memory from when they are written anew to the end
//! of their group, and scattered changes have a hundred times more of them than of what was changed.
//!
//! Space is promised before it is taken: every change announces the most it may take, and what all unsynced
//! groups announced must fit into what was available when the last one was synced (`room`). Where that comes to its end the
//! open group is synced early, with half of it, so that writers have the other half meanwhile. Who finds no space
//! waits in order (`lines`), and is refused what would not fit with nothing else announced.
//!
//! Here is the state, and what anybody may ask of it; how a writer gets in is in `assign`, the syncing task's side in `syncing`.
//!
//! Facts: docs/format/txg-and-throttle.md.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use block::VolumeError;
use limits::Pace;
use lines::Lines;
use memory::bell::{Bell, Steps};
use parking_lot::Mutex;
use queue::Queue;
use room::{Ledger, Wish};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

mod assign;
mod limits;
mod lines;
mod queue;
mod room;
mod syncing;
mod tally;
pub use limits::Limits;
pub(crate) use room::WORTH_A_GROUP;
pub use room::{Above, Claim, Room, Supply};

/// Transaction groups that exist at once at most, and more: states are kept by `txg % SLOTS`.
const SLOTS: usize = 4;

fn slot(txg: u64) -> usize {
    (txg % SLOTS as u64) as usize
}

/// Transaction groups of one pool, as one volume (or the engine itself) sees them. Clones for further volumes:
/// [`for_volume`](Self::for_volume).
#[derive(Debug)]
pub struct Txgs {
    shared: Arc<Shared>,
    /// The volume's room; none for the engine.
    volume: Option<usize>,
}

/// What an operation is going to need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Bytes of memory it makes dirty, at most.
    pub dirty: u64,
    /// Bytes of the pool it may take (deflated, copies included); 0 for what only frees.
    pub space: u64,
    /// What is written anew above that.
    pub above: Above,
}

/// Holds a transaction group open: while it lives, `txg` stays quiescing at most.
#[derive(Debug)]
pub struct Tx {
    shared: Arc<Shared>,
    txg: u64,
}

impl Tx {
    /// Its transaction group.
    #[must_use]
    pub fn txg(&self) -> u64 {
        self.txg
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let holds = &mut state.groups[slot(self.txg)].holds;
        *holds -= 1;
        if *holds == 0 && self.txg < state.open {
            self.shared.released.notify_one();
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    limits: Limits,
    /// Of these, what may change: bytes that may be dirty.
    dirty_max: AtomicU64,
    /// Tells of what becomes dirty.
    steps: Steps,
    /// The last hold on a closed group was released.
    released: Notify,
    /// There may be a reason to sync.
    reason: Notify,
    /// Announced space became less.
    space: Notify,
    /// Changes fail from now on.
    refusal: Notify,
    /// Whether there is something in [`State::refusing`], for those who look at `synced`: the value is locked then.
    is_refusing: AtomicBool,
    /// Tells of the last synced group.
    synced: watch::Sender<u64>,
}

impl Shared {
    fn limits(&self) -> Limits {
        Limits { dirty_max: self.dirty_max.load(Relaxed), ..self.limits }
    }
}

#[derive(Debug)]
struct State {
    open: u64,
    opened_at: Instant,
    groups: [Group; SLOTS],
    /// Of all groups, indirect blocks included.
    dirty: u64,
    /// The last synced group.
    synced: u64,
    /// The group that is being synced: since when, and how many bytes were dirty in it then.
    syncing: Option<(Instant, u64)>,
    pace: Pace,
    /// This group and all before it are not to wait for their time: somebody waits for them, or space comes to its end.
    wanted: u64,
    /// When the last delayed writer was let go, or should have been.
    last_wake: Option<Instant>,
    /// Those who are delayed.
    queue: Queue,
    /// Those who wait for space.
    short: Lines<Cost>,
    refusing: Option<String>,
    /// What changes fail with while the pool is suspended, if they are not to wait.
    failing: Option<String>,
    /// Space that was announced.
    space: Ledger,
}

impl State {
    /// Fails once everything is refused.
    fn goes_on(&self) -> Result<(), VolumeError> {
        self.refusing.clone().map_or(Ok(()), |reason| Err(VolumeError::NotReady(reason)))
    }

    /// What changes fail with, if they do.
    fn refusal(&self) -> Option<VolumeError> {
        self.goes_on().err().or_else(|| self.failing.clone().map(VolumeError::Failed))
    }

    /// Somebody waits for the open group.
    fn want_open(&mut self) {
        self.wanted = self.wanted.max(self.open);
    }

    /// Somebody waits for space. If nothing was announced in the open group, what there is to wait for is in the one that is on its
    /// way: who waits looks again when that is over, and joins the open one, which would be committed with nothing in it if it
    /// was asked for now.
    fn want_space(&mut self) {
        let is_on_its_way = self.synced + 1 < self.open;
        if !is_on_its_way || self.groups[slot(self.open)].touched {
            self.want_open();
        }
    }

    /// Whether so much is dirty that the open group is not to wait for its time. Indirect blocks take what they were
    /// counted for only when it is written, so for their sake it begins later; but before anybody is delayed.
    fn is_due(&self, limits: &Limits) -> bool {
        let above: u64 = self.groups.iter().map(|group| group.above).sum();
        self.dirty - above >= limits.sync_from(&self.pace) || self.dirty >= limits.sync_with_above_from()
    }

    /// Tells those who wait that there may be room.
    fn tell(&mut self, limits: &Limits) {
        let free = self.free(limits);
        self.queue.tell(free);
    }

    /// Bytes that may become dirty before anybody is delayed.
    fn free(&self, limits: &Limits) -> u64 {
        limits.delay_from().saturating_sub(self.dirty)
    }

    /// Bytes that are dirty, or are going to be as soon as those who were let in look.
    fn promised(&self) -> u64 {
        self.dirty.saturating_add(self.queue.kept())
    }

    /// Bytes of memory that `cost` takes in the open group, of which `above` for indirect blocks.
    fn memory(&self, volume: Option<usize>, cost: &Cost) -> (u64, u64) {
        let above = self.space.new_above(volume, self.open, &cost.above).saturating_mul(cost.above.memory);
        (cost.dirty.saturating_add(above), above)
    }
}

/// What the first of those waits for who wait for space.
fn wish(short: &Lines<Cost>) -> Option<Wish<'_>> {
    short.first().map(|(volume, ticket)| Wish { volume, cost: &ticket.wants })
}

/// One transaction group.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    holds: u64,
    /// Bytes of memory.
    dirty: u64,
    /// Bytes of memory that indirect blocks take, to the end of it.
    above: u64,
    /// Somebody changed something.
    touched: bool,
}

impl Txgs {
    /// Transaction groups from `open` on.
    #[must_use]
    pub fn new(open: u64, limits: Limits) -> Arc<Self> {
        let synced = open.saturating_sub(1);
        let state = State {
            open,
            opened_at: Instant::now(),
            groups: [Group::default(); SLOTS],
            dirty: 0,
            synced,
            syncing: None,
            pace: Pace::default(),
            wanted: 0,
            last_wake: None,
            queue: Queue::default(),
            short: Lines::default(),
            refusing: None,
            failing: None,
            space: Ledger::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            limits,
            dirty_max: AtomicU64::new(limits.dirty_max),
            steps: Steps::default(),
            released: Notify::new(),
            reason: Notify::new(),
            space: Notify::new(),
            refusal: Notify::new(),
            is_refusing: AtomicBool::new(false),
            synced: watch::Sender::new(synced),
        });
        Arc::new(Self { shared, volume: None })
    }

    /// The same groups for a volume, a dataset that may take so much; without a room, what the next commit tells.
    #[must_use]
    pub fn for_volume(&self, dataset: u64, room: impl Into<Option<Room>>) -> Arc<Self> {
        let volume = Some(self.shared.state.lock().space.insert(dataset, room.into()));
        Arc::new(Self { shared: Arc::clone(&self.shared), volume })
    }

    /// Bytes of the pool that may still be taken, all that was promised since the last commit taken off, but for what is
    /// going to be there again.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.shared.state.lock().space.available(self.volume)
    }

    /// The same as of the last commit: what is written over what is committed is announced in full, and the place of what was there
    /// comes back with the next commit, so a disk that is written over fast would seem to have next to nothing left.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.shared.state.lock().space.committed(self.volume)
    }

    /// Holds the open group without announcing anything: it is not synced before this is dropped.
    pub(crate) fn hold(&self) -> Tx {
        let mut state = self.shared.state.lock();
        let txg = state.open;
        state.groups[slot(txg)].holds += 1;
        Tx { shared: Arc::clone(&self.shared), txg }
    }

    /// `bytes` that were announced as dirty are not any more: they are on their way to the devices, or gone.
    pub fn undirty(&self, txg: u64, bytes: u64) {
        self.give_back(txg, bytes, 0);
    }

    /// Of what was announced in group `txg`, which is held or being synced, `bytes` of memory and `space` are not needed: it
    /// overwrote what was announced before, or was not done. Who waits for space is not told: a commit is on its way to them.
    pub(crate) fn give_back(&self, txg: u64, bytes: u64, space: u64) {
        let mut state = self.shared.state.lock();
        if space > 0 {
            state.space.take_back(self.volume, txg, space);
        }
        let group = &mut state.groups[slot(txg)];
        let bytes = bytes.min(group.dirty);
        group.dirty -= bytes;
        state.dirty -= bytes;
        self.shared.steps.is_now(state.dirty);
        state.tell(&self.shared.limits());
    }

    /// Waits until everything done before the call is durable.
    ///
    /// # Errors
    /// The pool was suspended before that.
    pub async fn wait_synced(&self) -> Result<(), VolumeError> {
        let target = {
            let mut state = self.shared.state.lock();
            state.goes_on()?;
            let open = state.open;
            let newest = (open.saturating_sub(2)..=open).rev();
            let Some(target) =
                newest.take_while(|txg| *txg > state.synced).find(|txg| state.groups[slot(*txg)].touched)
            else {
                return Ok(());
            };
            state.wanted = state.wanted.max(target);
            target
        };
        self.shared.reason.notify_one();
        self.wait_for(target).await
    }

    /// Waits until group `txg` is synced.
    async fn wait_for(&self, txg: u64) -> Result<(), VolumeError> {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives in `shared`; an error cannot happen while we hold it.
        drop(synced.wait_for(|done| *done >= txg || self.shared.is_refusing.load(Relaxed)).await);
        let state = self.shared.state.lock();
        if state.synced < txg { state.goes_on() } else { Ok(()) }
    }

    /// Does what has to be done before a change, as long as changes are taken.
    ///
    /// # Errors
    /// Its own, and why changes fail: `what` may be waiting for the very devices they fail for.
    pub(crate) async fn as_long_as_taken<T>(
        &self,
        what: impl Future<Output = Result<T, VolumeError>>,
    ) -> Result<T, VolumeError> {
        tokio::select! {
            biased;
            why = self.refusal() => Err(why),
            result = what => result,
        }
    }

    /// Returns when changes fail, with what they fail with.
    async fn refusal(&self) -> VolumeError {
        loop {
            let refusal = self.shared.refusal.notified();
            tokio::pin!(refusal);
            refusal.as_mut().enable();
            let why = self.shared.state.lock().refusal();
            match why {
                Some(why) => return why,
                None => refusal.await,
            }
        }
    }

    /// Changes fail from now on, those that wait included, or no longer. What was acknowledged stays, and can be waited
    /// for.
    pub(crate) fn fail_changes(&self, reason: Option<String>) {
        {
            let mut state = self.shared.state.lock();
            state.failing = reason;
            state.queue.tell_all();
        }
        self.shared.refusal.notify_waiters();
        self.shared.space.notify_waiters();
    }

    /// Refuses everything from now on: the pool failed, or closes.
    pub(crate) fn refuse(&self, reason: &str) {
        {
            let mut state = self.shared.state.lock();
            state.refusing = Some(reason.to_owned());
            state.queue.tell_all();
        }
        self.shared.is_refusing.store(true, Relaxed);
        self.shared.refusal.notify_waiters();
        self.shared.space.notify_waiters();
        self.shared.reason.notify_one();
        // Wakes those who wait for a group that will not come.
        self.shared.synced.send_modify(|_| {});
    }

    /// The group that is open.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.shared.state.lock().open
    }

    /// Bytes of memory that are dirty in all groups.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.shared.state.lock().dirty
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits()
    }

    /// From now on so many bytes may be dirty. What is beyond that stays; writers wait until it has become less.
    pub fn set_dirty_max(&self, bytes: u64) {
        let before = self.shared.dirty_max.swap(bytes, Relaxed);
        if before == bytes {
            return;
        }
        // More room for those who wait, or a reason to sync.
        self.shared.state.lock().tell(&self.shared.limits());
        self.shared.reason.notify_one();
    }

    /// Rings `bell` for every `step` bytes that become dirty. Once.
    pub fn attach(&self, bell: Arc<Bell>, step: u64) {
        self.shared.steps.attach(bell, step);
    }

    /// The most that may be dirty before the bell is rung again.
    #[must_use]
    pub fn dirty_at_most(&self) -> u64 {
        self.shared.steps.at_most(self.dirty())
    }
}

impl Drop for Txgs {
    fn drop(&mut self) {
        if let Some(volume) = self.volume {
            // Dropped when the lock is not held any more.
            let _forgotten = self.shared.state.lock().space.remove(volume);
        }
    }
}

#[cfg(test)]
mod tests;
