//! The sweeps of an opened pool, in memory: which there are and how each stands, what is under way, and the gate that all of it
//! passes, so that there is an end when the pool is left.
//!
//! A job is suspended because somebody said so, or because something is in its way: then it is wanted still. There is one of each
//! kind for each leaf, and what is begun anew takes the place of the last.

use std::{
    collections::BTreeMap,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use disk::DiskFuture;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{SweepKind, SweepState, SweepStatus};

/// Writes and trims under way at once in a pool; more leaves than that take turns.
const STEPS: u32 = 1024;
/// How long a pool that is left waits for what is under way: longer than healthy devices take, and less than service managers
/// let a daemon take to its end. A trim may take minutes before its device has failed.
const LEAVING: Duration = Duration::from_secs(40);

/// All sweeps of an opened pool.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    jobs: Mutex<BTreeMap<(u64, SweepKind), Arc<Job>>>,
    gate: Arc<Gate>,
    under_way: Arc<UnderWay>,
    /// How often a device came back, or the pool went on.
    returns: watch::Sender<u64>,
}

impl Sweeps {
    /// Nothing is begun any more when this returns. Whether nothing is under way either: what a device does not answer for long
    /// goes on by itself, and keeps that device, and the space, until it has ended.
    pub(crate) async fn halt(&self) -> bool {
        // They are served in turn: from here on whoever wants to begin something waits. (It is never closed.)
        let mut none_under_way = pin!(self.gate.steps.acquire_many(STEPS));
        let halted = timeout(LEAVING, none_under_way.as_mut()).await;
        // Before those that wait have their turn.
        self.close();
        halted.is_ok()
    }

    /// Whether something of this leaf is being written over or trimmed.
    pub(crate) fn is_under_way(&self, guid: u64) -> bool {
        self.under_way.has(guid)
    }

    /// What is being written over or trimmed.
    pub(in crate::devices) fn under_way(&self) -> Arc<UnderWay> {
        Arc::clone(&self.under_way)
    }

    /// Nothing is begun any more.
    pub(crate) fn close(&self) {
        self.gate.is_closed.store(true, Relaxed);
    }

    /// A device came back, or the pool goes on: what waited for that does, too.
    pub(crate) fn go_on(&self) {
        self.returns.send_modify(|returns| *returns += 1);
    }

    /// Tells when something has come back: see [`go_on`](Self::go_on).
    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.returns.subscribe()
    }

    /// What each single write and trim is to pass.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// How all of them stand, by leaf.
    pub(super) fn statuses(&self) -> Vec<SweepStatus> {
        self.jobs.lock().values().map(|job| job.status()).collect()
    }

    /// The one of this kind on this leaf.
    pub(super) fn get(&self, guid: u64, kind: SweepKind) -> Option<Arc<Job>> {
        self.jobs.lock().get(&(guid, kind)).cloned()
    }

    /// Puts it in the place of any other of its kind on that leaf.
    pub(super) fn put(&self, job: Job) -> Arc<Job> {
        let job = Arc::new(job);
        self.jobs.lock().insert((job.guid, job.kind), Arc::clone(&job));
        job
    }

    /// Whether no other was begun in its place.
    pub(super) fn has(&self, job: &Arc<Job>) -> bool {
        self.jobs.lock().get(&(job.guid, job.kind)).is_some_and(|now| Arc::ptr_eq(now, job))
    }

    /// Forgets it.
    pub(super) fn remove(&self, job: &Arc<Job>) {
        self.put_back(job, None);
    }

    /// What was there before it, in the place of a job that nobody carries out.
    pub(super) fn put_back(&self, job: &Arc<Job>, before: Option<Arc<Job>>) {
        let (place, mut jobs) = ((job.guid, job.kind), self.jobs.lock());
        if jobs.get(&place).is_some_and(|now| Arc::ptr_eq(now, job)) {
            jobs.remove(&place);
            jobs.extend(before.map(|before| (place, before)));
        }
    }
}

/// The sweep of one leaf.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) guid: u64,
    pub(super) kind: SweepKind,
    /// Bytes per second.
    pub(super) rate: Option<u64>,
    /// It is not for us to carry out.
    pub(super) is_secure: bool,
    status: Mutex<SweepStatus>,
    /// It is to run, and does unless something is in its way: so it is on record. Changes only while `status` is locked.
    is_wanted: AtomicBool,
    /// Offset of the top-level device up to which it is done.
    next: AtomicU64,
}

impl Job {
    /// One that stands like this, is done up to `next` of its top-level device, and has this rate, of which 0 is none.
    pub(super) fn new(status: SweepStatus, next: u64, rate: Option<u64>, is_secure: bool) -> Self {
        Self {
            guid: status.guid,
            kind: status.kind,
            rate: rate.filter(|rate| *rate > 0),
            is_secure,
            is_wanted: AtomicBool::new(status.state == SweepState::Active),
            status: Mutex::new(status),
            next: AtomicU64::new(next),
        }
    }

    pub(super) fn status(&self) -> SweepStatus {
        self.status.lock().clone()
    }

    pub(super) fn state(&self) -> SweepState {
        self.status.lock().state
    }

    /// Whether it runs at this moment.
    pub(super) fn is_active(&self) -> bool {
        self.state() == SweepState::Active
    }

    /// Whether it is to run.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed)
    }

    pub(super) fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Another time it would go on at `next`; so many bytes of the leaf are behind it, of so many.
    pub(super) fn advance(&self, next: u64, (done, total): (u64, u64)) {
        self.next.store(next, Relaxed);
        let mut status = self.status.lock();
        (status.done, status.total) = (done, total);
    }

    /// A spot was left out.
    pub(super) fn left_out(&self, error: String) {
        self.status.lock().error = Some(error);
    }

    /// When it came into its state, as is on record.
    pub(super) fn stands_since(&self, when: u64) {
        self.status.lock().when = when;
    }

    /// How it is to stand from now on.
    pub(super) fn set(&self, state: SweepState) {
        let mut status = self.status.lock();
        self.is_wanted.store(state == SweepState::Active, Relaxed);
        status.state = state;
    }

    /// Something is in its way, unless nobody wants it any more.
    pub(super) fn interrupt(&self, error: Option<String>) {
        let mut status = self.status.lock();
        if self.is_wanted.load(Relaxed) {
            (status.state, status.error) = (SweepState::Suspended, error);
        }
    }

    /// Nothing is in its way any more. Whether it runs now.
    pub(super) fn resume(&self) -> bool {
        let mut status = self.status.lock();
        let is_wanted = self.is_wanted.load(Relaxed);
        if is_wanted {
            (status.state, status.error) = (SweepState::Active, None);
        }
        is_wanted
    }
}

/// Leaves of which something is being written over or trimmed at this moment, with how much. A spare that went back to rest may
/// be one of them: until that is over it is not to stand in elsewhere, where other places are free.
#[derive(Debug, Default)]
pub(in crate::devices) struct UnderWay(Mutex<BTreeMap<u64, u32>>);

impl UnderWay {
    /// Whether something of this leaf is.
    pub(in crate::devices) fn has(&self, guid: u64) -> bool {
        self.0.lock().contains_key(&guid)
    }

    /// Something of this leaf is as long as what this returns exists. Where the leaf stands is to be asked afterwards.
    pub(super) fn begin(self: &Arc<Self>, guid: u64) -> Begun {
        *self.0.lock().entry(guid).or_default() += 1;
        Begun { all: Arc::clone(self), guid }
    }
}

/// See [`UnderWay::begin`].
pub(super) struct Begun {
    all: Arc<UnderWay>,
    guid: u64,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.guid) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.guid);
            }
        }
    }
}

/// What every single write and trim passes, so that none is begun when the pool is left.
#[derive(Debug)]
pub(super) struct Gate {
    steps: Semaphore,
    is_closed: AtomicBool,
}

impl Default for Gate {
    fn default() -> Self {
        Self { steps: Semaphore::new(STEPS as usize), is_closed: AtomicBool::new(false) }
    }
}

impl Gate {
    /// Carries out `step`, which has not begun; none if the pool is being left.
    pub(super) async fn pass(&self, step: DiskFuture<'_, ()>) -> Option<io::Result<()>> {
        // The semaphore is never closed.
        let _under_way = self.steps.acquire().await;
        if self.is_closed.load(Relaxed) { None } else { Some(step.await) }
    }
}
