//! The syncing task: one transaction group after the other, until the pool is left.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::Arc,
};

use futures_util::FutureExt as _;

use super::{
    Ending, Shared,
    command::closing,
    publish::{Took, publish},
};
use crate::{
    EngineError,
    events::Event,
    open::multihost::Heartbeats,
    sync::{Syncer, Task, Work},
    volume::LiveVolume,
};

/// The syncing task. A defect ends the pool, as a group does that cannot be written: who waits for a task that is gone would
/// do so for ever.
pub(super) async fn run(shared: Arc<Shared>, syncer: Box<Syncer>, heartbeats: Heartbeats) -> Box<Syncer> {
    let name = syncer.name.clone();
    let syncing = AssertUnwindSafe(Box::pin(sync(Arc::clone(&shared), syncer, heartbeats)));
    match syncing.catch_unwind().await {
        Ok(syncer) => syncer,
        Err(panic) => {
            let error = EngineError::Defect(said(&*panic));
            tracing::error!(pool = name, %error, "the pool is suspended: please report what stands above");
            fail(&shared, &name, &error);
            resume_unwind(panic)
        }
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "it does not say why".to_owned())
}

/// Nothing is written any more for good, and whoever waits hears why.
fn fail(shared: &Shared, name: &str, error: &EngineError) {
    *shared.failed.lock() = Some(error.clone());
    // Nobody is to wait for it to be cleared, and nothing is to be written beside it.
    shared.give_up(&format!("pool '{name}' is suspended: {error}"));
    shared.events.tell(Event::Suspended { why: error.to_string() });
    shared.answer_waiting(error);
}

async fn sync(shared: Arc<Shared>, mut syncer: Box<Syncer>, mut heartbeats: Heartbeats) -> Box<Syncer> {
    loop {
        serving(&shared, &mut syncer, shared.txgs.next(), true).await;
        if shared.suspension.is_given_up() {
            return syncer;
        }
        let ending = *shared.ending.lock();
        if ending.is_some() {
            shared.txgs.refuse("the pool is being closed");
            for volume in shared.volumes.lock().values() {
                volume.close();
            }
            for log in shared.logs.all() {
                log.end().await;
            }
        }
        // Before the group is closed: a write that was acknowledged before a command was given must be in the
        // command's group or an earlier one, or a snapshot would lack it.
        let tasks = take_tasks(&shared);
        // Only the last group says that the pool was left: after that it may be another host's.
        let is_last = ending.is_some() && shared.tasks.lock().is_empty();
        let (txg, touched) = serving(&shared, &mut syncer, shared.txgs.close(), false).await;
        shared.means.space.next_group();
        for log in shared.logs.all() {
            log.settle().await;
        }
        if !shared.tasks.lock().is_empty() {
            shared.txgs.wake();
        }
        let volumes: Vec<Arc<LiveVolume>> = shared.volumes.lock().values().cloned().collect();
        let concerned = |volume: &&Arc<LiveVolume>| {
            volume.is_dirty(txg) || shared.logs.get(volume.dataset()).is_some_and(|log| log.needs_sync(txg))
        };
        let dirty: Vec<Arc<LiveVolume>> = volumes.iter().filter(concerned).cloned().collect();
        let wanted = touched || !tasks.is_empty() || shared.txgs.is_wanted(txg) || ending.is_some();
        if !wanted {
            shared.txgs.skipped(txg);
            continue;
        }
        if let Some(state) = ending.map(Ending::state).filter(|_| is_last) {
            crate::open::close(&mut syncer, state);
        }
        let mut answers = Vec::new();
        let mut work = Work {
            rooms: volumes.iter().map(|volume| volume.dataset()).collect(),
            is_closing: ending.is_some(),
            ..Work::default()
        };
        for volume in &dirty {
            work.volumes.push((volume.dataset(), volume.dirty(txg)));
        }
        for task in tasks {
            let Task { is_snapshot, run, done } = task;
            answers.push(done);
            work.tasks.push(Task { is_snapshot, run, done: Box::new(|_| {}) });
        }
        if shared.means.space.is_wanted() {
            // A log that is to begin in this group needs a place in it.
            syncer.out.alloc.restock().await;
        }
        syncer.dirty_max = shared.txgs.limits().dirty_max;
        let (start, waits) = (tokio::time::Instant::now(), shared.suspension.waits());
        let outcome = match shared.suspension.may_write() {
            Err(error) => Err(error),
            Ok(()) => syncer.sync_txg(txg, (shared.options.now)(), work).await,
        };
        match outcome {
            Ok(done) => {
                let was_suspended = shared.suspension.waits() != waits;
                publish(&shared, &syncer, txg, done, Took { elapsed: start.elapsed(), was_suspended }).await;
                if is_last {
                    // Not before: while something is written, others must see that somebody is here, and it is to be
                    // written no more once they may have thought otherwise.
                    heartbeats.stop();
                } else {
                    heartbeats.committed(&syncer, shared.options.now);
                }
                answers.into_iter().for_each(|answer| answer(Ok(())));
            }
            Err(error) => {
                tracing::error!(pool = syncer.name, txg, %error, "the pool is suspended: a transaction group cannot be written");
                fail(&shared, &syncer.name, &error);
                answers.into_iter().for_each(|answer| answer(Err(error.clone())));
                return syncer;
            }
        }
        if is_last {
            // Who came after the last group was closed is told that there is no other.
            shared.answer_waiting(&closing());
            // A volume of the last group may still be read from; that it is closed keeps it from lying.
            return syncer;
        }
        if ending.is_some() {
            shared.txgs.wake();
        }
    }
}

/// Waits for `what`, and gives logs the space they ask for meanwhile: a round may hold the group that is being closed
/// while it waits for space. If log devices come to their end, a group that is open and `may_wait` for its time does not.
async fn serving<T>(
    shared: &Shared,
    syncer: &mut Syncer,
    what: impl Future<Output = T>,
    may_wait: bool,
) -> T {
    let mut what = pin!(what);
    loop {
        tokio::select! {
            biased;
            done = &mut what => return done,
            () = shared.means.space.asked() => {
                syncer.out.alloc.restock().await;
                if may_wait && syncer.out.alloc.is_log_running_out() {
                    shared.txgs.wake();
                }
            }
        }
    }
}

/// Commands for one transaction group: up to the first that may not follow a snapshot.
fn take_tasks(shared: &Shared) -> Vec<Task> {
    let mut queue = shared.tasks.lock();
    let mut taken: Vec<Task> = Vec::new();
    while let Some((_, next)) = queue.front() {
        if taken.last().is_some_and(|last| last.is_snapshot) && !next.is_snapshot {
            break;
        }
        taken.extend(queue.pop_front().map(|(_, task)| task));
    }
    taken
}
