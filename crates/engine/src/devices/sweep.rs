//! All free space of a leaf, once: written over, so that a device that is thin or new has it (`zpool initialize`), or
//! trimmed, so that it knows what it need not keep (`zpool trim`).
//!
//! ```text
//!   a command in the syncing task: the last portion is free again; note how far it was, borrow the next ─┐
//!      ▲                                                                                               ▼
//!      └───────────────────────────────── write or trim it, beside everything else ◀───────────────────┘
//! ```
//! What is worked on is nobody's meanwhile ([`crate::alloc::Borrowed`]). How far it is stands in the leaf's ZAP, in
//! OpenZFS's words, so that either goes on where the other was.
//!
//! One whose device is away, or whose pool is suspended, is suspended in memory only: it stays on record as running, and
//! goes on when that is over ([`Sweeps::go_on`]). One whose device is there and refuses a spot goes on behind it. A secure trim of
//! OpenZFS's is suspended in memory as well, until OpenZFS has the pool again: to trim is not to erase.
//!
//! Free space of a pool that was left is the next owner's: nothing is under way any more when the last transaction group is
//! written ([`Gate`]), and what was begun of a portion is done again when the pool is opened. A device that takes too long over
//! something is not waited for ([`Sweeps::halt`]): it stays open, and locked, until it has answered.
//!
//! Facts: docs/format/mos.md §5 (ZAPs of leaves), vdevs.md §3.2.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use disk::{Disk, DiskFuture};
use ondisk::{label::DATA_OFFSET, nvlist::NvList};
use parking_lot::Mutex;
use pool::{
    Pool,
    vdev::{Counted, Kind, Tree, Vdev, Work},
    zap::Zap,
};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{find, refused, shape};
use crate::{
    BoxFuture, EngineError, alloc::Borrowed, dsl::OpError, engine::Engine, mos::zap, sync::Syncer,
    write::ours::Ours,
};

/// Free bytes that are borrowed at a time.
const PORTION: u64 = 64 << 20;
/// Longest single write.
const WRITE: u64 = 1 << 20;
/// What free space is written over with: OpenZFS's word.
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// Writes and trims under way at once in a pool; more leaves than that take turns.
const STEPS: u32 = 1024;
/// Pause before space is asked for again when writers were promised all there is.
const AGAIN: Duration = Duration::from_secs(5);
/// Pause before what a device refused is tried again: long enough to notice that it is gone.
const MOMENT: Duration = Duration::from_secs(10);
/// Steps refused one after the other at which it is no spot of the device, but the device.
const REFUSALS: u32 = 8;

/// How long a pool that is left waits for what is under way: longer than healthy devices take, and less than service managers
/// let a daemon take to its end. A trim may take minutes before its device has failed.
const LEAVING: Duration = Duration::from_secs(40);

/// In a leaf's ZAP: its trim is to erase, so that nothing can be read back.
const SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
/// In a leaf's ZAP: its trim leaves out what was never written to.
const PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// Why a secure trim stands still.
const IS_SECURE: &str = "a secure trim that OpenZFS began, which only OpenZFS can carry on";

/// What is done with free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SweepKind {
    /// `zpool initialize`
    Initialize,
    /// `zpool trim`
    Trim,
}

/// What an administrator wants of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepCommand {
    /// Begin, or go on where it was suspended. `rate` is bytes per second at most; without it, what goes on does so at the
    /// rate it had.
    Start {
        /// Of each leaf; 0 is without limit.
        rate: Option<u64>,
    },
    /// `-s`
    Suspend,
    /// `-c`
    Cancel,
    /// `zpool initialize -u`: forget that it ever was.
    Forget,
}

/// How a sweep stands, with the number it has on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepState {
    /// Running.
    Active = 1,
    /// Stopped for good.
    Cancelled = 2,
    /// To go on later.
    Suspended = 3,
    /// Done.
    Complete = 4,
}

/// The sweep of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepStatus {
    /// The leaf.
    pub guid: u64,
    /// Which.
    pub kind: SweepKind,
    /// How it stands.
    pub state: SweepState,
    /// Bytes of the leaf that are behind it, used ones included.
    pub done: u64,
    /// Bytes of the leaf for blocks.
    pub total: u64,
    /// When it came into this state, seconds since 1970.
    pub when: u64,
    /// What stopped it, or why a spot was left out.
    pub error: Option<String>,
}

/// All sweeps of an opened pool.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    jobs: Mutex<BTreeMap<(u64, SweepKind), Arc<Job>>>,
    gate: Arc<Gate>,
    under_way: Arc<UnderWay>,
    /// How often a device came back, or the pool went on.
    returns: watch::Sender<u64>,
}

/// Leaves of which something is being written over or trimmed at this moment, with how much. A spare that went back to rest may
/// be one of them: until that is over it is not to stand in elsewhere, where other places are free.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<BTreeMap<u64, u32>>);

impl UnderWay {
    /// Whether something of this leaf is.
    pub(super) fn has(&self, guid: u64) -> bool {
        self.0.lock().contains_key(&guid)
    }

    /// Something of this leaf is as long as what this returns exists. Where the leaf stands is to be asked afterwards.
    fn begin(self: &Arc<Self>, guid: u64) -> Begun {
        *self.0.lock().entry(guid).or_default() += 1;
        Begun { all: Arc::clone(self), guid }
    }
}

/// See [`UnderWay::begin`].
struct Begun {
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
struct Gate {
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
    async fn pass(&self, step: DiskFuture<'_, ()>) -> Option<io::Result<()>> {
        // The semaphore is never closed.
        let _under_way = self.steps.acquire().await;
        if self.is_closed.load(Relaxed) { None } else { Some(step.await) }
    }
}

#[derive(Debug)]
struct Job {
    guid: u64,
    kind: SweepKind,
    rate: Option<u64>,
    status: Mutex<SweepStatus>,
    /// It is to run, and does unless something is in its way: so it is on record. Changes only while `status` is locked.
    is_wanted: AtomicBool,
    /// Offset of the top-level device up to which it is done.
    next: AtomicU64,
    /// It is not for us to carry out: known since the pool was opened.
    is_secure: AtomicBool,
}

impl Job {
    /// How it is to stand from now on.
    fn set(&self, state: SweepState) {
        let mut status = self.status.lock();
        self.is_wanted.store(state == SweepState::Active, Relaxed);
        status.state = state;
    }

    /// Something is in its way, unless nobody wants it any more.
    fn interrupt(&self, error: Option<String>) {
        let mut status = self.status.lock();
        if self.is_wanted.load(Relaxed) {
            (status.state, status.error) = (SweepState::Suspended, error);
        }
    }

    /// Nothing is in its way any more. Whether it runs now.
    fn resume(&self) -> bool {
        let mut status = self.status.lock();
        let is_wanted = self.is_wanted.load(Relaxed);
        if is_wanted {
            (status.state, status.error) = (SweepState::Active, None);
        }
        is_wanted
    }
}

impl SweepKind {
    /// Names in a leaf's ZAP: state, time, offset.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Initialize => [
                "com.delphix:vdev_initialize_state",
                "com.delphix:vdev_initialize_action_time",
                "com.delphix:next_offset_to_initialize",
            ],
            Self::Trim => [
                "org.zfsonlinux:vdev_trim_state",
                "org.zfsonlinux:vdev_trim_action_time",
                "org.zfsonlinux:next_offset_to_trim",
            ],
        }
    }

    /// Name of the rate, of which 0 is none.
    fn rate_name(self) -> Option<&'static str> {
        (self == Self::Trim).then_some("org.zfsonlinux:vdev_trim_rate")
    }

    /// Names of what it may be besides, none of which ours is.
    fn manner_names(self) -> &'static [&'static str] {
        match self {
            Self::Initialize => &[],
            Self::Trim => &[PARTIAL, SECURE],
        }
    }

    fn busy(self) -> &'static str {
        match self {
            Self::Initialize => "currently initializing",
            Self::Trim => "currently trimming",
        }
    }

    fn idle(self) -> &'static str {
        match self {
            Self::Initialize => "there is no active initialization",
            Self::Trim => "there is no active trim",
        }
    }
}

impl SweepState {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Active, Self::Cancelled, Self::Suspended, Self::Complete]
            .into_iter()
            .find(|state| *state as u64 == number)
    }
}

impl Engine {
    /// Sweeps the free space of leaf `guid`, in the background, or changes how that stands.
    ///
    /// # Errors
    /// It is running already, or is not; the device cannot trim, or has a secure trim that did not end.
    pub fn sweep<'a>(
        self: &'a Arc<Self>,
        kind: SweepKind,
        guid: u64,
        command: SweepCommand,
    ) -> BoxFuture<'a, Result<(), OpError>> {
        Box::pin(async move {
            let view = self.view();
            if find::locate(&view.tree(), guid).is_none()
                && view.spares().iter().any(|spare| spare.guid == guid)
            {
                return Err(refused("device is reserved as a hot spare"));
            }
            let tree = view.tree();
            find::leaf(&tree, guid)?;
            let known = self.sweeps().jobs.lock().get(&(guid, kind)).cloned();
            let state = known.as_ref().map(|job| job.status.lock().state);
            let is_wanted = known.as_ref().is_some_and(|job| job.is_wanted.load(Relaxed));
            match (command, known, state) {
                (SweepCommand::Start { .. }, _, Some(SweepState::Active)) => Err(refused(kind.busy())),
                (SweepCommand::Start { .. }, Some(job), Some(SweepState::Suspended))
                    if job.is_secure.load(Relaxed) =>
                {
                    Err(refused(format!("it has {IS_SECURE}; cancel that first ('zpool trim -c')")))
                }
                (SweepCommand::Start { rate }, known, state) => {
                    let disk = disk(&tree, guid)?;
                    let before = known.filter(|_| state == Some(SweepState::Suspended));
                    let from = before.as_ref().map_or(0, |job| job.next.load(Relaxed));
                    let rate = rate.or(before.and_then(|job| job.rate));
                    if kind == SweepKind::Trim {
                        can_trim(self, guid, &disk).await?;
                    }
                    self.begin_sweep(kind, guid, from, rate).await
                }
                (SweepCommand::Suspend, Some(job), _) if is_wanted => {
                    self.settle_sweep(&job, SweepState::Suspended).await
                }
                (SweepCommand::Cancel, Some(job), Some(SweepState::Active | SweepState::Suspended)) => {
                    self.settle_sweep(&job, SweepState::Cancelled).await
                }
                (SweepCommand::Forget, _, Some(SweepState::Active)) => Err(refused(kind.busy())),
                (SweepCommand::Forget, Some(job), _) => {
                    self.run(move |cx| Box::pin(async move { forget(cx, guid, kind).await })).await?;
                    job.set(SweepState::Cancelled);
                    self.sweeps().jobs.lock().retain(|_, other| !Arc::ptr_eq(other, &job));
                    Ok(())
                }
                (SweepCommand::Forget, None, _) => Ok(()),
                (SweepCommand::Suspend | SweepCommand::Cancel, ..) => Err(refused(kind.idle())),
            }
        })
    }

    /// The sweeps that run or ran, by leaf; from memory.
    #[must_use]
    pub fn sweep_status(&self) -> Vec<SweepStatus> {
        self.sweeps().jobs.lock().values().map(|job| job.status.lock().clone()).collect()
    }

    /// Lets sweeps that were running when the pool was left go on, and learns of those that ended. Those whose device is away
    /// wait for it. Once, when the pool has been opened.
    pub fn resume_sweeps(self: &Arc<Self>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let view = self.view();
            let tree = view.tree();
            for leaf in tree.leaves() {
                for found in on_record(&view, &tree, leaf.guid).await {
                    let OnRecord { kind, state, when, next, progress, rate, is_secure } = found;
                    let job = self.sweeps().job(&tree, leaf.guid, kind, next, rate, when);
                    {
                        let mut status = job.status.lock();
                        (status.done, status.total) = progress;
                    }
                    job.is_secure.store(is_secure, Relaxed);
                    job.set(state);
                    if state != SweepState::Active {
                        continue;
                    }
                    if is_secure {
                        tracing::warn!(device = job.guid, "left to itself: {IS_SECURE}");
                        job.interrupt(Some(IS_SECURE.to_owned()));
                        continue;
                    }
                    if !leaf.is_readable() {
                        job.interrupt(None);
                    }
                    self.carry_out(job);
                }
            }
        })
    }

    /// Notes that it runs, and lets it.
    async fn begin_sweep(
        self: &Arc<Self>,
        kind: SweepKind,
        guid: u64,
        from: u64,
        rate: Option<u64>,
    ) -> Result<(), OpError> {
        let before = self.sweeps().jobs.lock().get(&(guid, kind)).cloned();
        let job = self.sweeps().job(&self.view().tree(), guid, kind, from, rate, 0);
        if let Err(error) = self.settle_sweep(&job, SweepState::Active).await {
            self.sweeps().put_back(&job, before);
            // What was in the way of that one may have gone while it was not in its place.
            self.sweeps().go_on();
            return Err(error);
        }
        if let Some(before) = before.filter(|before| before.is_wanted.load(Relaxed)) {
            before.set(SweepState::Suspended);
        }
        self.carry_out(job);
        Ok(())
    }

    /// Lets it run in the background, at once or when nothing is in its way any more.
    fn carry_out(self: &Arc<Self>, job: Arc<Job>) {
        tokio::spawn(carry_out(Arc::downgrade(self), job, self.sweeps().returns.subscribe()));
    }

    /// Puts a state on record, in memory at once.
    async fn settle_sweep(&self, job: &Job, state: SweepState) -> Result<(), OpError> {
        let (guid, kind, rate) = (job.guid, job.kind, job.rate);
        job.set(state);
        let next = job.next.load(Relaxed);
        let recorded = self.run(move |cx| {
            Box::pin(async move { Ok(record(cx, guid, kind, Some((state, rate)), next).await?) })
        });
        job.status.lock().when = recorded.await?;
        Ok(())
    }
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
    pub(super) fn under_way(&self) -> Arc<UnderWay> {
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

    /// A new job in the place of any other of its kind on that leaf.
    fn job(
        &self,
        tree: &Tree,
        guid: u64,
        kind: SweepKind,
        next: u64,
        rate: Option<u64>,
        when: u64,
    ) -> Arc<Job> {
        let (done, total) = progress(tree, guid, next);
        let state = SweepState::Active;
        let status = SweepStatus { guid, kind, state, done, total, when, error: None };
        let job = Arc::new(Job {
            guid,
            kind,
            rate: rate.filter(|rate| *rate > 0),
            status: Mutex::new(status),
            is_wanted: AtomicBool::new(true),
            next: AtomicU64::new(next),
            is_secure: AtomicBool::new(false),
        });
        self.jobs.lock().insert((guid, kind), Arc::clone(&job));
        job
    }

    /// Whether no other was begun in its place.
    fn has(&self, job: &Arc<Job>) -> bool {
        self.jobs.lock().get(&(job.guid, job.kind)).is_some_and(|now| Arc::ptr_eq(now, job))
    }

    /// What was there before it, in the place of a job that nobody carries out.
    fn put_back(&self, job: &Arc<Job>, before: Option<Arc<Job>>) {
        let (place, mut jobs) = ((job.guid, job.kind), self.jobs.lock());
        if jobs.get(&place).is_some_and(|now| Arc::ptr_eq(now, job)) {
            jobs.remove(&place);
            jobs.extend(before.map(|before| (place, before)));
        }
    }
}

/// What the ZAP of a leaf says of a sweep.
struct OnRecord {
    kind: SweepKind,
    state: SweepState,
    when: u64,
    /// Offset of the top-level device up to which it is done.
    next: u64,
    /// Bytes of the leaf that are behind it, and in all: `next` may be a row less than what is on record.
    progress: (u64, u64),
    /// Bytes per second.
    rate: Option<u64>,
    is_secure: bool,
}

async fn on_record(view: &Pool, tree: &Tree, guid: u64) -> Vec<OnRecord> {
    let mut found = Vec::new();
    let Some(object) = zap_of(&mut view.config().clone(), guid) else { return found };
    let Ok(zap) = Zap::open_in(view.mos(), object).await else { return found };
    for kind in [SweepKind::Initialize, SweepKind::Trim] {
        let [state, when, offset] = kind.names();
        let number = async |name: &str| zap.get_u64(name).await.ok().flatten();
        let Some(state) = number(state).await.and_then(SweepState::from_number) else { continue };
        let when = number(when).await.unwrap_or(0);
        let done = number(offset).await.unwrap_or(0);
        let next = of_top(tree, guid, done);
        let (_, total) = progress(tree, guid, next);
        let rate = match kind.rate_name() {
            Some(name) => number(name).await,
            None => None,
        };
        let is_secure = kind == SweepKind::Trim && number(SECURE).await.unwrap_or(0) != 0;
        found.push(OnRecord { kind, state, when, next, progress: (done.min(total), total), rate, is_secure });
    }
    found
}

/// The sweeps of a pool that nobody here writes to, by leaf. One that was running when the pool was left goes on when it is
/// opened for writing: until then it is suspended.
pub fn recorded_sweeps(view: &Pool) -> BoxFuture<'_, Vec<SweepStatus>> {
    Box::pin(async move {
        let tree = view.tree();
        let mut found = Vec::new();
        for leaf in tree.leaves() {
            for OnRecord { kind, state, when, progress, is_secure, .. } in
                on_record(view, &tree, leaf.guid).await
            {
                let (done, total) = progress;
                let is_active = state == SweepState::Active;
                let error = (is_active && is_secure).then(|| IS_SECURE.to_owned());
                let state = if is_active { SweepState::Suspended } else { state };
                found.push(SweepStatus { guid: leaf.guid, kind, state, done, total, when, error });
            }
        }
        found
    })
}

/// Runs a sweep to its end. While its device is away, or the pool is suspended, it waits.
async fn carry_out(engine: Weak<Engine>, job: Arc<Job>, mut returns: watch::Receiver<u64>) {
    loop {
        let is_free_to_run = job.status.lock().state == SweepState::Active;
        if is_free_to_run {
            let outcome = run(&engine, &job).await;
            let Some(engine) = engine.upgrade() else { return };
            // Whoever stopped it has said so.
            let is_mine = job.status.lock().state == SweepState::Active;
            let settled = match outcome {
                Ok(Ended::Done) if is_mine => engine.settle_sweep(&job, SweepState::Complete).await,
                Ok(Ended::Done) => Ok(()),
                // It goes on when the pool is opened again.
                Ok(Ended::Left) => return,
                Err(error) => {
                    job.interrupt(Some(error.to_string()));
                    Err(error)
                }
            };
            if let Err(error) = settled
                && !engine.is_ending()
            {
                tracing::warn!(device = job.guid, %error, kind = ?job.kind, "stopped");
            }
        }
        if !has_returned(&engine, &job, &mut returns).await {
            return;
        }
    }
}

/// Waits until nothing is in the way of a sweep any more, and lets it run; false if nobody wants it any more.
async fn has_returned(engine: &Weak<Engine>, job: &Arc<Job>, returns: &mut watch::Receiver<u64>) -> bool {
    // The sender goes with the engine.
    while job.is_wanted.load(Relaxed) && returns.changed().await.is_ok() {
        let Some(engine) = engine.upgrade() else { return false };
        if is_usable(&engine, job.guid) && engine.sweeps().has(job) && job.resume() {
            return true;
        }
    }
    false
}

/// How a sweep ended that met no error.
enum Ended {
    /// There is no more, or somebody told it to.
    Done,
    /// The pool is being left: it goes on another time.
    Left,
}

/// The sweep itself; ends early when it is told to.
async fn run(engine: &Weak<Engine>, job: &Job) -> Result<Ended, OpError> {
    let (guid, kind, rate) = (job.guid, job.kind, job.rate);
    let most = rate.map_or(PORTION, |rate| PORTION.min(rate.max(WRITE)));
    // Where the last portion ended, and whether it was the last of all.
    let mut last: Option<(u64, bool)> = None;
    let mut refusals = Refusals::default();
    loop {
        let Some(opened) = engine.upgrade() else { return Ok(Ended::Left) };
        let goes_on = job.status.lock().state == SweepState::Active;
        let before = last.map(|(next, _)| next);
        let from = before.unwrap_or(job.next.load(Relaxed));
        let is_over = last.is_some_and(|(_, is_last)| is_last);
        // Whether a spot refuses or the device is not known before it does something again.
        let behind = refusals.since.filter(|_| !is_over).unwrap_or(from);
        let borrowed: Option<Borrowed> = opened
            .run(move |cx| {
                Box::pin(async move {
                    if before.is_some() {
                        record(cx, guid, kind, None, behind).await?;
                    }
                    if !goes_on || is_over {
                        return Ok(None);
                    }
                    let tree = cx.io.tree();
                    let Some(place) = find::locate(&tree, guid) else { return Ok(None) };
                    Ok(Some(cx.out.alloc.borrow_free(place.top.id, from, most).await?))
                })
            })
            .await?;
        let view = opened.view();
        let (gate, suspension) = (Arc::clone(&opened.sweeps().gate), Arc::clone(opened.suspension()));
        let under_way = opened.sweeps().under_way();
        drop(opened);
        job.next.store(behind, Relaxed);
        {
            let mut status = job.status.lock();
            (status.done, status.total) = progress(&view.tree(), guid, from);
        }
        let Some(borrowed) = borrowed else { return Ok(Ended::Done) };
        if borrowed.runs.is_empty() && borrowed.next == from && !borrowed.is_last {
            tokio::time::sleep(AGAIN).await;
        }
        let disk = Ours::over(disk(&view.tree(), guid)?, &suspension);
        refusals.portion = from;
        let begun = tokio::time::Instant::now();
        let mut bytes = 0;
        for run in &borrowed.runs {
            let _begun = under_way.begin(guid);
            let tree = view.tree();
            // A spare may stand in elsewhere by now.
            if !is_in(&tree, guid, borrowed.vdev) {
                continue;
            }
            let Some(range) = of_leaf(&tree, guid, run) else { continue };
            bytes += range.end - range.start;
            if let Some(ended) = treat_most(engine, job, &*disk, range, &gate, &mut refusals).await? {
                return Ok(ended);
            }
        }
        last = Some((borrowed.next, borrowed.is_last));
        // Before it waits: a log device that is to leave is waited for until it has what it lent.
        drop(borrowed);
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            tokio::time::sleep_until(begun + due).await;
        }
    }
}

/// What a device has refused since it last did something.
#[derive(Default)]
struct Refusals {
    /// Steps.
    count: u32,
    /// Where the portion with the first of them begins.
    since: Option<u64>,
    /// Where the present portion begins.
    portion: u64,
}

impl Refusals {
    /// Another one. Whether it is for the device to be blamed by now.
    fn add(&mut self) -> bool {
        self.count += 1;
        self.since.get_or_insert(self.portion);
        self.count >= REFUSALS
    }

    /// It did something.
    fn end(&mut self) {
        (self.count, self.since) = (0, None);
    }
}

/// Writes over or trims a range of a device. What that refuses twice is noted and left out, as OpenZFS does, unless it or the
/// pool is gone, or it refuses everything. How the sweep ended, if it did.
async fn treat_most(
    engine: &Weak<Engine>,
    job: &Job,
    disk: &dyn Disk,
    mut range: Range<u64>,
    gate: &Gate,
    refusals: &mut Refusals,
) -> Result<Option<Ended>, OpError> {
    let mut refused_at = None;
    loop {
        let begun_at = range.start;
        let error = match treat(disk, job.kind, &mut range, gate).await {
            Some(Err(error)) => error,
            Some(Ok(())) => {
                refusals.end();
                return Ok(None);
            }
            None => return Ok(Some(Ended::Left)),
        };
        if range.start > begun_at {
            refusals.end();
        }
        let is_first = refused_at.replace(range.start) != Some(range.start);
        if is_first {
            tokio::time::sleep(MOMENT).await;
        }
        let Some(engine) = engine.upgrade() else { return Ok(Some(Ended::Left)) };
        if !is_usable(&engine, job.guid) {
            return Err(refused(error.to_string()));
        }
        if job.status.lock().state != SweepState::Active {
            return Ok(Some(Ended::Done));
        }
        if is_first {
            continue;
        }
        if refusals.add() {
            return Err(refused(error.to_string()));
        }
        tracing::warn!(device = job.guid, %error, kind = ?job.kind, at = range.start, "left out");
        job.status.lock().error = Some(error.to_string());
        range.start = match job.kind {
            SweepKind::Initialize => range.end.min(range.start + WRITE),
            SweepKind::Trim => range.end,
        };
        if range.is_empty() {
            return Ok(None);
        }
    }
}

/// Whether a leaf is there, and the pool not suspended.
fn is_usable(engine: &Engine, guid: u64) -> bool {
    let is_here = find::locate(&engine.view().tree(), guid).is_some_and(|place| place.vdev.is_readable());
    is_here && engine.suspended().is_none()
}

/// Writes over or trims a range of a device, which begins with what was refused if that fails; none if the pool is left
/// meanwhile.
async fn treat(
    disk: &dyn Disk,
    kind: SweepKind,
    range: &mut Range<u64>,
    gate: &Gate,
) -> Option<io::Result<()>> {
    if kind == SweepKind::Trim {
        return gate.pass(disk.trim(range.start, range.end - range.start)).await;
    }
    let pattern: Bytes = PATTERN.to_le_bytes().repeat((WRITE / 8) as usize).into();
    while range.start < range.end {
        let len = WRITE.min(range.end - range.start);
        let written = gate.pass(disk.write(range.start, pattern.slice(..len as usize))).await?;
        if written.is_err() {
            return Some(written);
        }
        range.start += len;
    }
    Some(Ok(()))
}

/// Tries it on a little free space, before anything is promised.
async fn can_trim(engine: &Engine, guid: u64, disk: &Arc<dyn Disk>) -> Result<(), OpError> {
    let borrow = engine.run(move |cx| {
        Box::pin(async move {
            let tree = cx.io.tree();
            let Some(place) = find::locate(&tree, guid) else {
                return Err(refused("no such device in pool"));
            };
            Ok(cx.out.alloc.borrow_free(place.top.id, 0, WRITE).await?)
        })
    });
    let borrowed = borrow.await?;
    let begun = engine.sweeps().under_way().begin(guid);
    let tree = engine.view().tree();
    let run = borrowed.runs.first().filter(|_| is_in(&tree, guid, borrowed.vdev));
    let range = run.and_then(|run| of_leaf(&tree, guid, run));
    let Some(mut range) = range else { return Ok(()) };
    let gate = Arc::clone(&engine.sweeps().gate);
    let disk = Ours::over(Arc::clone(disk), engine.suspension());
    // In a task of its own: whoever asked may go away, and what is being trimmed must be nobody's until that is over.
    let trimming = tokio::spawn(async move {
        let outcome = treat(&*disk, SweepKind::Trim, &mut range, &gate).await;
        drop((borrowed, begun));
        outcome.unwrap_or_else(|| Err(io::Error::other("the pool is being closed")))
    });
    match trimming.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(refused("trim operations are not supported by this device"))
        }
        Err(error) => Err(refused(error.to_string())),
        Ok(()) => Ok(()),
    }
}

/// How far a sweep is, and how it stands and at which rate if that changed, into the leaf's ZAP; the time that was noted.
async fn record(
    cx: &mut Syncer,
    guid: u64,
    kind: SweepKind,
    change: Option<(SweepState, Option<u64>)>,
    next: u64,
) -> Result<u64, EngineError> {
    let now = cx.now;
    let Some(object) = zap_of(&mut cx.config, guid) else { return Ok(now) };
    let [state_name, time_name, offset_name] = kind.names();
    let offset = of_leaf(&cx.io.tree(), guid, &(next..next)).map_or(0, |range| range.start - DATA_OFFSET);
    zap::set_u64(&mut cx.mos, object, offset_name, offset).await?;
    if let Some((state, rate)) = change {
        zap::set_u64(&mut cx.mos, object, state_name, state as u64).await?;
        zap::set_u64(&mut cx.mos, object, time_name, now).await?;
        if let Some(name) = kind.rate_name() {
            zap::set_u64(&mut cx.mos, object, name, rate.unwrap_or(0)).await?;
        }
        // What an earlier one of OpenZFS's was is not what this is: whoever goes on with it would take it for that.
        if state == SweepState::Active {
            for name in kind.manner_names() {
                zap::set_u64(&mut cx.mos, object, name, 0).await?;
            }
        }
    }
    Ok(now)
}

async fn forget(cx: &mut Syncer, guid: u64, kind: SweepKind) -> Result<(), OpError> {
    if let Some(object) = zap_of(&mut cx.config, guid) {
        let names = kind.names().into_iter().chain(kind.rate_name());
        for name in names.chain(kind.manner_names().iter().copied()) {
            zap::remove(&mut cx.mos, object, name.into()).await?;
        }
    }
    Ok(())
}

/// The ZAP of a leaf, if it has one.
fn zap_of(config: &mut NvList, guid: u64) -> Option<u64> {
    let mut object = None;
    shape::edit(config, guid, |list| {
        object = list.u64("com.delphix:vdev_zap_leaf").filter(|object| *object != 0);
    });
    object
}

/// The device of a leaf that is in use.
fn disk(tree: &Tree, guid: u64) -> Result<Arc<dyn Disk>, OpError> {
    let place = find::leaf(tree, guid)?;
    let leaf = place.vdev.leaf.as_ref().filter(|_| place.vdev.is_readable());
    let disk = leaf.and_then(|leaf| Some(Counted::over(leaf.timed()?, &leaf.pulse, Work::Initialize, None)));
    disk.ok_or_else(|| refused("device is unavailable"))
}

/// Bytes done and in all, of a leaf.
fn progress(tree: &Tree, guid: u64, next: u64) -> (u64, u64) {
    let Some(place) = find::locate(tree, guid) else { return (0, 0) };
    let asize = place.top.top.as_ref().map_or(0, pool::space::metaslab_bytes);
    let of =
        |offset: u64| of_leaf(tree, guid, &(offset..offset)).map_or(0, |range| range.start - DATA_OFFSET);
    (of(next.min(asize)), of(asize))
}

/// Whether a leaf is a part of this top-level device.
fn is_in(tree: &Tree, guid: u64, top: u64) -> bool {
    find::locate(tree, guid).is_some_and(|place| place.top.id == top)
}

/// The bytes of a leaf's device that hold a range of its top-level device.
fn of_leaf(tree: &Tree, guid: u64, range: &Range<u64>) -> Option<Range<u64>> {
    let place = find::locate(tree, guid)?;
    let Kind::Raidz(geometry) = &place.top.kind else {
        return Some(DATA_OFFSET + range.start..DATA_OFFSET + range.end);
    };
    let holds = |child: &Vdev| child.leaves().iter().any(|leaf| leaf.guid == guid);
    let column = place.top.children.iter().position(holds)? as u64;
    let width = geometry.children as u64;
    // Sectors are dealt out in turn: the first at or behind an offset that falls to this column.
    let row =
        |offset: u64| (offset >> geometry.ashift).saturating_sub(column).div_ceil(width) << geometry.ashift;
    Some(DATA_OFFSET + row(range.start)..DATA_OFFSET + row(range.end))
}

/// The offset of the top-level device up to which all is done if a leaf is done up to `offset`.
fn of_top(tree: &Tree, guid: u64, offset: u64) -> u64 {
    match find::locate(tree, guid).map(|place| &place.top.kind) {
        Some(Kind::Raidz(geometry)) => {
            let width = geometry.children as u64;
            // A row less, as columns do not begin in the same.
            offset.saturating_sub(1 << geometry.ashift).saturating_mul(width)
        }
        _ => offset,
    }
}
