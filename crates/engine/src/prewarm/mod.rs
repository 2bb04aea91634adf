//! Pre-warm: what was warm is read again after a restart, in the order of the devices instead of the order in which
//! clients miss it.
//!
//! ```text
//!   now and then ─▶ sample: which blocks are in memory, which on cache devices ─▶ Heat ─▶ a file (whoever holds the pool)
//!   restart ─▶ Heat ─▶ plan: names ▶ pointers of now, sorted by device and offset
//!                        └▶ run: a lane per top-level device, neighbours merged, clients first ─▶ memory, then cache devices
//! ```
//!
//! Only what is free is filled: nothing is evicted, in memory or on a device. Blocks are found through the pointers of
//! the last commit, which are pinned while they are read, and verified by their checksums: what is remembered can be as
//! wrong as it likes and costs reads in vain, never a wrong byte. Decision: docs/decisions/0014-prewarm.md.

mod heat;
mod plan;
mod run;
mod sample;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};

pub use heat::{Heat, HeatError};
pub use run::{Ended, Progress};

use crate::{BoxFuture, engine::Engine, scan::Ground};
use run::Job;
use sample::{Effort, sample};

/// The pre-warming of one pool.
pub(crate) struct Prewarm {
    ground: Arc<Ground>,
    /// The one that goes on, or the last one.
    job: Mutex<Option<(Arc<Job>, Task)>>,
}

/// Ends with its owner: it only reads.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Prewarm {
    pub(crate) fn new(ground: Arc<Ground>) -> Self {
        Self { ground, job: Mutex::default() }
    }

    /// Ends what goes on; whether something did.
    pub(crate) fn stop(&self) -> bool {
        let job = self.job.lock();
        let Some((job, task)) = &*job else { return false };
        let was_under_way = job.stop();
        task.0.abort();
        was_under_way
    }
}

impl Engine {
    /// Finds out what is warm, in passing: takes its time, at most one two-hundredth of a core, and so many bytes of `memory`.
    pub fn sample_heat(&self, memory: usize) -> BoxFuture<'_, Heat> {
        Box::pin(async move { self.sampled(memory, Effort::Gentle).await.unwrap_or_else(|part| part) })
    }

    /// The same as fast as it goes.
    ///
    /// # Errors
    /// It took longer than `limit`: what was seen until then.
    pub fn sample_heat_within(&self, memory: usize, limit: Duration) -> BoxFuture<'_, Result<Heat, Heat>> {
        Box::pin(async move { self.sampled(memory, Effort::Until(Instant::now() + limit)).await })
    }

    async fn sampled(&self, memory: usize, effort: Effort) -> Result<Heat, Heat> {
        let view = self.view();
        let heat = Heat::new(view.guid(), view.uberblock().txg, self.now()).within(memory);
        sample(self.open_volumes(), view.io(), self.second().l2(), heat, effort).await
    }

    /// Begins to read what was warm, instead of what was being read before.
    pub fn prewarm(&self, heat: Heat) {
        let prewarm = self.prewarming();
        prewarm.stop();
        let job = Job::new(Arc::clone(&prewarm.ground), Arc::clone(self.second().l2()), &heat);
        let task = tokio::spawn(Arc::clone(&job).run(heat));
        *prewarm.job.lock() = Some((job, Task(task)));
    }

    /// Ends it where it is; whether it was under way.
    pub fn stop_prewarm(&self) -> bool {
        self.prewarming().stop()
    }

    /// Whether the last one ended because memory was full, or had none for all that was remembered, and the cache may have so
    /// much more by now that it is worth beginning again: what is in memory is not read twice.
    #[must_use]
    pub fn prewarm_may_go_on(&self) -> bool {
        self.prewarming().job.lock().as_ref().is_some_and(|(job, _)| job.may_go_on())
    }

    /// How far it is, or how the last one ended; none if there was none.
    #[must_use]
    pub fn prewarm_progress(&self) -> Option<Progress> {
        self.prewarming().job.lock().as_ref().map(|(job, _)| job.progress())
    }
}
