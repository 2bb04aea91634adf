//! Commands: each is run inside a transaction group by the syncing task, and answered when that is durable.
//!
//! A suspended pool answers at once and says why. What still waited for its turn then is not carried out; what was
//! being run is, when the pool is cleared.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{OpFuture, Shared};
use crate::{
    EngineError,
    alloc::Totals,
    dsl::OpError,
    sync::{Syncer, Task, TaskFuture},
};

impl Shared {
    /// Why nothing is written.
    pub(super) fn suspended(&self) -> Option<EngineError> {
        let failed = self.failed.lock().clone();
        failed.or_else(|| self.suspension.why())
    }

    /// See [`Engine::run`](super::Engine::run).
    pub(super) async fn run<T, F>(&self, is_snapshot: bool, op: F) -> Result<T, OpError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
    {
        loop {
            match self.run_once(is_snapshot, op.clone()).await {
                // Two snapshots of one dataset need two transaction groups.
                Err(OpError::Again) => {}
                result => return result,
            }
        }
    }

    async fn run_once<T, F>(&self, is_snapshot: bool, op: F) -> Result<T, OpError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Send + 'static,
    {
        if let Some(error) = self.suspended() {
            return Err(EngineError::Suspended(error.to_string()).into());
        }
        if self.ending.lock().is_some() {
            return Err(EngineError::Suspended("the pool is being closed".into()).into());
        }
        let (answer, answered) = oneshot::channel::<Result<T, OpError>>();
        let slot = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&slot);
        let run = boxed(move |cx| {
            Box::pin(async move {
                let before = state(cx);
                let result = op(cx).await;
                // What fails underneath a command before it has changed anything is only the command's misfortune.
                let fatal = match &result {
                    Err(OpError::Engine(error)) if state(cx) != before => Some(error.clone()),
                    _ => None,
                };
                *kept.lock() = Some(result);
                fatal.map_or(Ok(()), Err)
            })
        });
        let done = Box::new(move |outcome: Result<(), EngineError>| {
            let result = match (outcome, slot.lock().take()) {
                (Ok(()), Some(result)) => result,
                (Err(error), _) => Err(EngineError::Suspended(error.to_string()).into()),
                (Ok(()), None) => Err(EngineError::Suspended("the command was not run".into()).into()),
            };
            // Whoever asked may have gone away; the command is done all the same.
            drop(answer.send(result));
        });
        let number = self.numbers.fetch_add(1, Relaxed);
        self.tasks.lock().push_back((number, Task { is_snapshot, run, done }));
        self.txgs.wake();
        let why = tokio::select! {
            biased;
            result = answered => {
                return result
                    .unwrap_or_else(|_| Err(EngineError::Suspended("the pool was closed".into()).into()));
            }
            why = self.suspension.suspended() => why,
        };
        let mut queue = self.tasks.lock();
        let waiting = queue.iter().position(|(task, _)| *task == number);
        let text = match waiting.map(|position| drop(queue.remove(position))) {
            Some(()) => format!("{why}; the command was not carried out"),
            None => format!("{why}; the command is carried out when the pool is cleared"),
        };
        Err(EngineError::Suspended(text).into())
    }
}

/// The same as before: a command has changed nothing, whatever others changed in this transaction group before it.
fn state(cx: &Syncer) -> (u64, Totals, bool, usize) {
    (cx.mos.changes(), cx.out.alloc.totals(), cx.config_dirty, cx.changes.len())
}

/// Tells the compiler that a closure's future lives as long as the syncer it is lent.
fn boxed<F>(run: F) -> Box<dyn for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send>
where
    F: for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send + 'static,
{
    Box::new(run)
}
