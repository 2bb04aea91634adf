//! Transaction groups as clients see them: which one is open, who holds it, and how fast they may fill it.
//!
//! ```text
//!   assign ─▶ room? ─▶ its turn? ─▶ dirty below the limit? ─▶ delay by the curve ─▶ Tx: holds the open group
//!                      (queue)                                          │ dropped
//!   syncing task: next() ─▶ close() ─▶ quiesced() ◀─────────────────────┘
//!                               └─▶ … the group is synced … ─▶ synced()
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
//! open group is synced early, with half of it, so that writers have the other half meanwhile.
//!
//! Facts: docs/format/txg-and-throttle.md.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::VolumeError;
use memory::bell::{Bell, Steps};
use parking_lot::Mutex;
use queue::{Queue, Ticket};
use room::Ledger;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

mod limits;
mod queue;
mod room;
pub use limits::Limits;
pub use room::{Above, Claim, Room, Supply};

/// What delayed writers may have slept too long, together, before it is lost: timers go off up to a millisecond late, and
/// what is delayed by microseconds each would be slowed down to a few per millisecond.
const LATE: Duration = Duration::from_millis(2);

/// Transaction groups that who finds no space waits for, beyond the one that was open: so that one that was announced a moment
/// before the first was closed is known, too.
const REFUSALS: u64 = 1;

/// Transaction groups that exist at once at most, and more: states are kept by `txg % SLOTS`.
const SLOTS: usize = 4;

fn slot(txg: u64) -> usize {
    (txg % SLOTS as u64) as usize
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

#[derive(Debug)]
struct State {
    open: u64,
    opened_at: Instant,
    groups: [Group; SLOTS],
    /// Of all groups, indirect blocks included.
    dirty: u64,
    /// The last synced group.
    synced: u64,
    /// Somebody waits for this group and all before it.
    wanted: u64,
    /// When the last delayed writer was let go, or should have been.
    last_wake: Option<Instant>,
    /// Those who are delayed.
    queue: Queue,
    refusing: Option<String>,
    /// What changes fail with while the pool is suspended, if they are not to wait.
    failing: Option<String>,
    /// Space that was announced.
    space: Ledger,
}

impl State {
    /// What changes fail with, if they do.
    fn refusal(&self) -> Option<VolumeError> {
        let refusing = self.refusing.clone().map(VolumeError::NotReady);
        refusing.or_else(|| self.failing.clone().map(VolumeError::Failed))
    }

    /// Whether so much is dirty that the open group is not to wait for its time. Indirect blocks take what they were
    /// counted for only when it is written, so for their sake it begins later; but before anybody is delayed.
    fn is_due(&self, limits: &Limits) -> bool {
        let from = limits.sync_from();
        let above: u64 = self.groups.iter().map(|group| group.above).sum();
        self.dirty - above >= from || self.dirty >= 2 * from
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

impl Shared {
    fn limits(&self) -> Limits {
        Limits { dirty_max: self.dirty_max.load(Relaxed), ..self.limits }
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

/// Transaction groups of one pool, as one volume (or the engine itself) sees them. Clones for further volumes:
/// [`for_volume`](Self::for_volume).
#[derive(Debug)]
pub struct Txgs {
    shared: Arc<Shared>,
    /// The volume's room; none for the engine.
    volume: Option<usize>,
}

impl Drop for Txgs {
    fn drop(&mut self) {
        if let Some(volume) = self.volume {
            // Dropped when the lock is not held any more.
            let _forgotten = self.shared.state.lock().space.remove(volume);
        }
    }
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
            wanted: 0,
            last_wake: None,
            queue: Queue::default(),
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

    /// The same groups for a volume, a dataset that may take so much.
    #[must_use]
    pub fn for_volume(&self, dataset: u64, room: Room) -> Arc<Self> {
        let volume = Some(self.shared.state.lock().space.insert(dataset, room));
        Arc::new(Self { shared: Arc::clone(&self.shared), volume })
    }

    /// Joins the open transaction group. Waits while there is too much dirty data, longer the more there is, behind who
    /// waits for the same volume already and in turns with others.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], or [`VolumeError::NotReady`] when the pool is suspended or closing.
    pub async fn assign(&self, cost: Cost) -> Result<Tx, VolumeError> {
        let arrived = Instant::now();
        let mut waiting = Waiting { txgs: self, ticket: None };
        let mut refused = None;
        loop {
            // Made before looking, so that no notification is lost in between.
            let space = self.shared.space.notified();
            match self.try_step(cost, arrived, &mut waiting, &mut refused)? {
                Step::Go(tx) => return Ok(tx),
                Step::Sleep(ticket, until) => {
                    tokio::select! {
                        biased;
                        () = ticket.told() => {}
                        () = sleep_until(until) => {}
                    }
                }
                Step::Queue(ticket) => ticket.told().await,
                Step::Space => space.await,
            }
        }
    }

    /// The same if nothing has to be waited for, and nobody waits already.
    #[must_use]
    pub fn try_assign(&self, cost: Cost) -> Option<Tx> {
        let mut state = self.shared.state.lock();
        let memory @ (takes, _) = state.memory(self.volume, &cost);
        let free = state.refusing.is_none()
            && state.failing.is_none()
            && (takes == 0 || state.queue.is_empty())
            && state.promised().saturating_add(takes) <= self.shared.limits().delay_from();
        (free && self.fits(&state, cost)).then(|| self.join(&mut state, cost, memory))
    }

    /// `refused` is the group that was open when there was no space for the first time.
    fn try_step(
        &self,
        cost: Cost,
        arrived: Instant,
        waiting: &mut Waiting<'_>,
        refused: &mut Option<u64>,
    ) -> Result<Step, VolumeError> {
        let mut state = self.shared.state.lock();
        if let Some(error) = state.refusal() {
            return Err(error);
        }
        if !self.fits(&state, cost) {
            // Others go on: there may be space for them.
            waiting.leave(&mut state);
            // What was announced is more than what will be taken: after a sync the truth is known. Others may announce
            // more meanwhile, for as long as they like; this one is not to wait for the end of it.
            let since = *refused.get_or_insert(state.open);
            // Unless it is space that comes back with every group: few at a time have enough of it where the pool is full.
            let is_refused =
                state.synced >= since + REFUSALS && !state.space.will_fit(self.volume, state.open, &cost);
            if !is_pending(&state) || is_refused {
                return Err(VolumeError::NoSpace);
            }
            state.wanted = state.wanted.max(state.open);
            self.shared.reason.notify_one();
            return Ok(Step::Space);
        }
        // It was there: who takes it from now on has not been waited for yet.
        *refused = None;
        let memory @ (takes, _) = state.memory(self.volume, &cost);
        if !waiting.is_let_in(&mut state, takes)
            && let Some(step) = self.wait_for_room(&mut state, takes, arrived, waiting)
        {
            return Ok(step);
        }
        let tx = self.join(&mut state, cost, memory);
        waiting.leave(&mut state);
        Ok(Step::Go(tx))
    }

    /// What has to be waited for before so much memory can be taken, if anything.
    fn wait_for_room(
        &self,
        state: &mut State,
        takes: u64,
        arrived: Instant,
        waiting: &mut Waiting<'_>,
    ) -> Option<Step> {
        // Under the lock: who changes them tells the first one afterwards.
        let limits = self.shared.limits();
        let is_first = match &waiting.ticket {
            Some(ticket) => state.queue.is_first(ticket),
            None => state.queue.is_empty(),
        };
        // Who takes no memory does not wait for others to get theirs.
        if takes > 0 && !is_first {
            return Some(Step::Queue(waiting.join(state, takes)));
        }
        let dirty = state.promised();
        if dirty > 0 && dirty.saturating_add(takes) > limits.dirty_max {
            // A large one that waits for little: nothing else would end its group before time is up.
            if !state.is_due(&limits) && state.groups[slot(state.open)].touched {
                state.wanted = state.wanted.max(state.open);
            }
            self.shared.reason.notify_one();
            return Some(Step::Queue(waiting.join(state, takes)));
        }
        if let Some(delay) = limits.delay(dirty) {
            // One after the other over all writers of the pool; time already spent counts, as does what the last ones
            // spent beyond their delay.
            let spent = |since: Instant| since.checked_sub(LATE).unwrap_or(since);
            let earliest = state.last_wake.map_or(arrived, |last| last.max(spent(arrived))) + delay;
            let now = Instant::now();
            if earliest > now {
                return Some(Step::Sleep(waiting.join(state, takes), earliest));
            }
            // Who waited long at the limit pays with that for himself, not for all behind him.
            state.last_wake = Some(earliest.max(spent(now)));
        }
        None
    }

    /// Whether the space `cost` announces is there.
    fn fits(&self, state: &State, cost: Cost) -> bool {
        state.space.fits(self.volume, state.open, &cost)
    }

    /// Bytes of the pool that may still be taken, all that was promised since the last commit taken off, but for what is
    /// going to be there again.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.shared.state.lock().space.available(self.volume)
    }

    /// The same as of the last commit: what is announced for a block that is dirty already is announced once more, so a disk that
    /// is written to fast in one place would seem to have next to nothing left.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.shared.state.lock().space.committed(self.volume)
    }

    /// `takes` and `above` as of [`State::memory`].
    fn join(&self, state: &mut State, cost: Cost, (takes, above): (u64, u64)) -> Tx {
        let (txg, limits) = (state.open, self.shared.limits());
        let was_due = state.is_due(&limits);
        state.space.announce(self.volume, txg, &cost);
        let group = &mut state.groups[slot(txg)];
        group.holds += 1;
        group.dirty += cost.dirty;
        group.above += above;
        group.touched = true;
        state.dirty += takes;
        let is_due = !was_due && state.is_due(&limits);
        let is_scarce = state.wanted < txg && state.space.is_scarce(self.volume, txg);
        if is_scarce {
            state.wanted = txg;
        }
        if is_due || is_scarce {
            self.shared.reason.notify_one();
        }
        self.shared.steps.is_now(state.dirty);
        Tx { shared: Arc::clone(&self.shared), txg }
    }

    /// Holds the open group without announcing anything: it is not synced before this is dropped.
    pub(crate) fn hold(&self) -> Tx {
        let mut state = self.shared.state.lock();
        let txg = state.open;
        state.groups[slot(txg)].holds += 1;
        Tx { shared: Arc::clone(&self.shared), txg }
    }

    /// `bytes` that were announced as dirty are not (overwrote what was dirty already), or no longer: they are
    /// on their way to the devices.
    pub fn undirty(&self, txg: u64, bytes: u64) {
        let mut state = self.shared.state.lock();
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
            if let Some(reason) = &state.refusing {
                return Err(VolumeError::NotReady(reason.clone()));
            }
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
        match &state.refusing {
            Some(reason) if state.synced < txg => Err(VolumeError::NotReady(reason.clone())),
            _ => Ok(()),
        }
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

/// The syncing task's side.
impl Txgs {
    /// Waits until the open group should be synced: enough is dirty, somebody waits, or time is up.
    pub(crate) async fn next(&self) {
        loop {
            let reason = self.shared.reason.notified();
            let until = {
                let state = self.shared.state.lock();
                let group = &state.groups[slot(state.open)];
                let full = state.is_due(&self.shared.limits()) && group.touched;
                if full || state.wanted >= state.open || state.refusing.is_some() {
                    return;
                }
                state.opened_at + self.shared.limits.timeout
            };
            tokio::select! {
                () = reason => {}
                () = sleep_until(until) => return,
            }
        }
    }

    /// Closes the open group, opens the next one, waits until nobody holds the closed one. Returns the closed
    /// group and whether anybody changed anything in it.
    pub(crate) async fn close(&self) -> (u64, bool) {
        let txg = {
            let mut state = self.shared.state.lock();
            let txg = state.open;
            state.open += 1;
            state.opened_at = Instant::now();
            state.groups[slot(txg + 1)] = Group::default();
            txg
        };
        loop {
            let released = self.shared.released.notified();
            {
                let state = self.shared.state.lock();
                if state.groups[slot(txg)].holds == 0 {
                    return (txg, state.groups[slot(txg)].touched);
                }
            }
            released.await;
        }
    }

    /// The open group is to be synced soon, even if nobody changes anything in it: there are commands to run, or
    /// work of the pool's own goes on in it.
    pub(crate) fn wake(&self) {
        let mut state = self.shared.state.lock();
        state.wanted = state.wanted.max(state.open);
        drop(state);
        self.shared.reason.notify_one();
    }

    /// Syncs the open group soon, and waits for it.
    pub(crate) async fn sync_open(&self) -> Result<(), VolumeError> {
        let target = {
            let mut state = self.shared.state.lock();
            if let Some(reason) = &state.refusing {
                return Err(VolumeError::NotReady(reason.clone()));
            }
            state.wanted = state.wanted.max(state.open);
            state.open
        };
        self.shared.reason.notify_one();
        self.wait_for(target).await
    }

    /// `txg` is durable. `supply` is what there is to be taken from now on, `rooms` what volumes, by their datasets, may
    /// take of it.
    pub(crate) fn synced(&self, txg: u64, supply: Supply, rooms: BTreeMap<u64, Room>) {
        let forgotten = {
            let mut state = self.shared.state.lock();
            let group = std::mem::take(&mut state.groups[slot(txg)]);
            state.dirty -= group.dirty + group.above;
            self.shared.steps.is_now(state.dirty);
            let forgotten = state.space.synced(slot(txg), supply, rooms);
            state.synced = txg;
            state.tell(&self.shared.limits());
            forgotten
        };
        self.shared.synced.send_replace(txg);
        self.shared.space.notify_waiters();
        drop(forgotten);
    }

    /// Whether somebody waits for `txg` itself, not only for what is in it.
    pub(crate) fn is_wanted(&self, txg: u64) -> bool {
        self.shared.state.lock().wanted >= txg
    }

    /// Nothing was in `txg`: it counts as synced, and nothing was written.
    pub(crate) fn skipped(&self, txg: u64) {
        {
            let mut state = self.shared.state.lock();
            state.groups[slot(txg)] = Group::default();
            state.synced = txg;
        }
        self.shared.synced.send_replace(txg);
    }

    /// Sets `bytes` aside for intent logs, of what anybody may take who has nothing reserved: not more than half of
    /// what is left, so that logs neither starve writers nor take what they were promised.
    pub(crate) fn lend(&self, bytes: u64) -> bool {
        self.shared.state.lock().space.lend(bytes)
    }

    /// Takes back `bytes` that were [lent](Self::lend) and not set aside. Only before the next supply is worked out, so by the
    /// task that does that: what it knows of comes back with it.
    pub(crate) fn unlend(&self, bytes: u64) {
        self.shared.state.lock().space.unlend(bytes);
    }

    /// Sets `bytes` aside for those who work on free space, and have `out` of it already: not more in all than a small
    /// part of what devices have free and nobody has announced. Where everything is reserved, they get of that, too:
    /// they give it back.
    pub(crate) fn lend_for_a_while(&self, bytes: u64, out: u64) -> bool {
        self.shared.state.lock().space.lend_for_a_while(bytes, out)
    }

    /// The next supply is being worked out: it knows of all that was lent up to now.
    pub(crate) fn counted(&self) {
        self.shared.state.lock().space.counted();
    }

    /// What there is to be taken, before anybody has announced anything.
    pub(crate) fn set_supply(&self, supply: Supply) {
        self.shared.state.lock().space.set_supply(supply);
    }

    /// Datasets of the volumes that write.
    pub(crate) fn datasets(&self) -> Vec<u64> {
        self.shared.state.lock().space.datasets()
    }

    /// A command sets space aside in group `txg`, which is being synced: all of `claims`, or nothing if what was
    /// announced for later groups needs it. `supply` and `rooms` say what there is after all that was done in the group
    /// so far. From now on nobody is promised what was claimed.
    pub(crate) fn claim(
        &self,
        txg: u64,
        supply: &Supply,
        rooms: &BTreeMap<u64, Room>,
        claims: &[Claim],
    ) -> bool {
        self.shared.state.lock().space.claim(slot(txg), supply, rooms, claims)
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
}

/// Whether a sync could make room: something is announced and not yet synced.
fn is_pending(state: &State) -> bool {
    state.space.is_pending() || state.groups.iter().any(|group| group.touched)
}

enum Step {
    Go(Tx),
    /// It is this one's turn, then or when less is dirty.
    Sleep(Ticket, Instant),
    /// It is not, or there is no room.
    Queue(Ticket),
    /// There is no space.
    Space,
}

/// One who waits to be assigned. Whoever stops waiting gives up the place in the queue.
struct Waiting<'a> {
    txgs: &'a Txgs,
    ticket: Option<Ticket>,
}

impl Waiting<'_> {
    /// Its place, a new one if it has none.
    fn join(&mut self, state: &mut State, takes: u64) -> Ticket {
        let volume = self.txgs.volume;
        self.ticket.get_or_insert_with(|| state.queue.join(volume, takes)).clone()
    }

    /// Whether room for so much is kept for it.
    fn is_let_in(&mut self, state: &mut State, takes: u64) -> bool {
        let free = state.free(&self.txgs.shared.limits());
        let Some(ticket) = &mut self.ticket else { return false };
        state.queue.is_let_in(self.txgs.volume, ticket, takes, free)
    }

    fn leave(&mut self, state: &mut State) {
        if let Some(ticket) = self.ticket.take() {
            let free = state.free(&self.txgs.shared.limits());
            state.queue.leave(self.txgs.volume, &ticket, free);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let txgs = self.txgs;
            self.leave(&mut txgs.shared.state.lock());
        }
    }
}

/// How long one delayed writer may be delayed at most.
const DELAY_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
