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
//! written ([`jobs`]), and what was begun of a portion is done again when the pool is opened. A device that takes too long over
//! something is not waited for ([`Sweeps::halt`]): it stays open, and locked, until it has answered.
//!
//! Facts: docs/format/mos.md §5 (ZAPs of leaves), vdevs.md §3.2.

use std::sync::Arc;

use self::{
    jobs::Job,
    place::progress,
    record::{OnRecord, forget, on_record, record},
    run::{can_trim, carry_out, disk},
};
use super::{find, refused};
use crate::{BoxFuture, dsl::OpError, engine::Engine};

mod jobs;
mod place;
mod record;
mod run;

pub(crate) use jobs::Sweeps;
pub(super) use jobs::UnderWay;
pub use record::recorded_sweeps;

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

impl SweepKind {
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
            let known = self.sweeps().get(guid, kind);
            let state = known.as_ref().map(|job| job.state());
            let is_wanted = known.as_ref().is_some_and(|job| job.is_wanted());
            match (command, known, state) {
                (SweepCommand::Start { .. }, _, Some(SweepState::Active)) => Err(refused(kind.busy())),
                (SweepCommand::Start { .. }, Some(job), Some(SweepState::Suspended)) if job.is_secure => {
                    Err(refused(format!("it has {IS_SECURE}; cancel that first ('zpool trim -c')")))
                }
                (SweepCommand::Start { rate }, known, state) => {
                    let disk = disk(&tree, guid)?;
                    let before = known.filter(|_| state == Some(SweepState::Suspended));
                    let from = before.as_ref().map_or(0, |job| job.next());
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
                    self.sweeps().remove(&job);
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
        self.sweeps().statuses()
    }

    /// Lets sweeps that were running when the pool was left go on, and learns of those that ended. Those whose device is away
    /// wait for it. Once, when the pool has been opened.
    pub fn resume_sweeps(self: &Arc<Self>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let view = self.view();
            let tree = view.tree();
            for leaf in tree.leaves() {
                for OnRecord { status, next, rate, is_secure } in on_record(&view, &tree, leaf.guid).await {
                    let state = status.state;
                    let job = self.sweeps().put(Job::new(status, next, rate, is_secure));
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
        let before = self.sweeps().get(guid, kind);
        let (done, total) = progress(&self.view().tree(), guid, from);
        let state = SweepState::Active;
        let status = SweepStatus { guid, kind, state, done, total, when: 0, error: None };
        let job = self.sweeps().put(Job::new(status, from, rate, false));
        if let Err(error) = self.settle_sweep(&job, SweepState::Active).await {
            self.sweeps().put_back(&job, before);
            // What was in the way of that one may have gone while it was not in its place.
            self.sweeps().go_on();
            return Err(error);
        }
        if let Some(before) = before.filter(|before| before.is_wanted()) {
            before.set(SweepState::Suspended);
        }
        self.carry_out(job);
        Ok(())
    }

    /// Lets it run in the background, at once or when nothing is in its way any more.
    fn carry_out(self: &Arc<Self>, job: Arc<Job>) {
        tokio::spawn(carry_out(Arc::downgrade(self), job, self.sweeps().returns()));
    }

    /// Puts a state on record, in memory at once.
    async fn settle_sweep(&self, job: &Job, state: SweepState) -> Result<(), OpError> {
        let (guid, kind, rate) = (job.guid, job.kind, job.rate);
        job.set(state);
        let next = job.next();
        let recorded = self.run(move |cx| {
            Box::pin(async move { Ok(record(cx, guid, kind, Some((state, rate)), next).await?) })
        });
        job.stands_since(recorded.await?);
        Ok(())
    }
}
