//! How a pool is left: closed when all is durable, given up when it cannot be, or just dropped.
//!
//! What writes beside the syncing task comes to its end before the last transaction group is asked for: as soon as that is
//! durable the devices may be another host's. A device that does not answer in time does not hold this up for ever; it stays
//! locked until it has answered, and whoever leaves the pool hears of it.

use std::time::Duration;

use ondisk::label::PoolState;
use tokio::time::timeout;

use super::{Engine, Shared};
use crate::{BoxFuture, EngineError, sync::Task};

/// How long a scan may take to stop between two batches.
const HELPER_PATIENCE: Duration = Duration::from_secs(10);
/// How long whoever is told that the pool is given up may take to let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the pool is to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In use by this host: the daemon stops, or a command has done its work.
    Close,
    /// Exported.
    Export,
    /// Destroyed.
    Destroy,
}

impl Ending {
    pub(super) fn state(self) -> PoolState {
        match self {
            Self::Close => PoolState::Active,
            Self::Export => PoolState::Exported,
            Self::Destroy => PoolState::Destroyed,
        }
    }
}

impl Engine {
    /// Syncs what is dirty, stops, and leaves the pool as `ending` says. Volumes answer `NotReady` afterwards.
    ///
    /// # Errors
    /// The last transaction groups could not be written; the pool is as of the last one that could. A suspended pool
    /// stays open: it can be cleared and left then, or [given up](Self::abandon). If it is suspended while it is being
    /// left, it is left as soon as it is cleared, and to call this again waits for that, as it does for another call that is
    /// under way.
    pub fn end<'a>(&'a self, ending: Ending) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let has_ended = || self.shared.failed.lock().clone().map_or(Ok(()), Err);
            // Whoever comes while it is being left waits until it is, or goes on where another gave up.
            let mut running = self.task.lock().await;
            let Some(task) = running.as_mut() else { return has_ended() };
            if let Some(why) = self.shared.suspension.why() {
                return Err(EngineError::Suspended(why.to_string()));
            }
            // What is trimmed or written over now may be the next owner's as soon as the last group is durable. Where a device takes
            // too long over it, whoever leaves the pool hears of that.
            let is_swept = tokio::select! {
                biased;
                has_halted = self.shared.sweeps.halt() => !has_halted,
                why = self.shared.suspension.suspended() => {
                    return Err(EngineError::Suspended(why.to_string()));
                }
            };
            self.halt_helpers().await;
            *self.shared.ending.lock() = Some(ending);
            self.shared.txgs.wake();
            let ended = tokio::select! {
                biased;
                ended = task => ended,
                why = self.shared.suspension.suspended() => {
                    return Err(EngineError::Suspended(format!("{why}; it is left when it is cleared")));
                }
            };
            let ended = ended.map(drop);
            *running = None;
            self.release_devices(is_swept).await;
            // That tells more than that the task ended abnormally.
            has_ended()?;
            ended.map_err(|error| EngineError::Suspended(error.to_string()))
        })
    }

    /// What goes on beside the syncing task stops, before the last transaction group: that says how far a scan is.
    async fn halt_helpers(&self) {
        self.prewarm.stop();
        self.shared.scans.halt();
        let helpers = std::mem::take(&mut *self.helpers.lock());
        for mut helper in helpers {
            // A device that does not answer must not keep the pool from being closed.
            let _over = timeout(HELPER_PATIENCE, &mut helper.0).await;
        }
    }

    /// Nothing is written any more: what has the devices lets them go, as far as they answer.
    async fn release_devices(&self, is_swept: bool) {
        self.asks.close();
        let watch = self.watch.lock().take();
        if let Some(watch) = watch {
            // It may be about to open a device that is back.
            let _over = timeout(HELPER_PATIENCE, watch).await;
        }
        let view = self.view();
        self.shared.second.close(view.io()).await;
        view.io().leave_cache().await;
        for vdev in view.tree().leaves() {
            let owes = vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.deadline().owes_writes());
            if owes || is_swept && self.shared.sweeps.is_under_way(vdev.guid) {
                tracing::warn!(
                    device = %vdev,
                    "it owes answers, and what it was given may still land: it stays locked on this host until it has \
                     given them, and is to be used on no other before"
                );
                self.owing.lock().push(vdev.to_string());
            }
        }
    }

    /// Names of the devices that had not answered everything when the pool [was left](Self::end): what they were given may still
    /// land, also on what is another's by then.
    #[must_use]
    pub fn owing(&self) -> Vec<String> {
        self.owing.lock().clone()
    }

    /// Gives a suspended pool up: everything that waits is told so, what was not written is lost, devices are let go.
    /// On the devices is the last committed state.
    pub fn abandon(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            self.asks.close();
            self.prewarm.stop();
            let why = given_up();
            shared.give_up(&why.to_string());
            drop(std::mem::take(&mut *self.helpers.lock()));
            for volume in self.open_volumes() {
                volume.close();
            }
            // Who is about to leave it hears of the suspension, too.
            let task = timeout(PATIENCE, self.task.lock()).await.ok().and_then(|mut running| running.take());
            if let Some(mut task) = task
                && timeout(PATIENCE, &mut task).await.is_err()
            {
                // A device that never answers holds it up.
                task.abort();
                drop(task.await);
            }
            shared.failed.lock().get_or_insert(why.clone());
            // What was begun before is over soon, or was given to a device that never answers.
            let _over = timeout(PATIENCE, shared.sweeps.halt()).await;
            shared.answer_waiting(&why);
            for log in shared.logs.all() {
                drop(timeout(PATIENCE, log.end()).await);
            }
            let view = self.view();
            shared.second.close(view.io()).await;
            for vdev in view.tree().leaves().into_iter().chain(view.spares()).chain(view.l2cache()) {
                if let Some(leaf) = &vdev.leaf {
                    leaf.condition.update(|now| now.disk = None);
                }
            }
            for guid in view.io().auxiliaries().into_keys() {
                view.io().remove_auxiliary(guid);
            }
            view.io().leave_cache().await;
        })
    }
}

impl Drop for Engine {
    /// Whoever starts an engine, or has one, may be dropped anywhere. Its pool is left as by a crash then: the task that syncs
    /// would go on for good, with the devices locked, and with nobody who could end it.
    fn drop(&mut self) {
        let Some(task) = self.task.get_mut().take() else { return };
        let why = given_up();
        self.shared.give_up(&why.to_string());
        for volume in self.open_volumes() {
            volume.close();
        }
        task.abort();
        self.shared.failed.lock().get_or_insert(why.clone());
        self.shared.answer_waiting(&why);
    }
}

impl Shared {
    /// Nothing is begun or taken any more, and whoever waits for a transaction group or for space hears it; `reason` is what
    /// clients are told.
    pub(super) fn give_up(&self, reason: &str) {
        self.suspension.give_up();
        self.txgs.refuse(reason);
        self.means.space.close();
        self.scans.halt();
        self.sweeps.close();
    }

    /// Commands that wait for their turn are not carried out, and hear why.
    pub(super) fn answer_waiting(&self, why: &EngineError) {
        let left: Vec<Task> = self.tasks.lock().drain(..).map(|(_, task)| task).collect();
        left.into_iter().for_each(|task| (task.done)(Err(why.clone())));
    }
}

fn given_up() -> EngineError {
    EngineError::Suspended("the pool was given up".to_owned())
}
