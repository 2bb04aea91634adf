//! Commands: each is run inside a transaction group by the syncing task, and answered when that is durable.
//!
//! A suspended pool answers at once and says why. What still waited for its turn then is not carried out; what was
//! being run is, when the pool is cleared, and so is the rest of what is done in several transaction groups.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{OpFuture, Shared};
use crate::{
    BoxFuture, EngineError,
    dsl::OpError,
    events::Event,
    sync::{Syncer, Task, TaskFuture},
};

impl Shared {
    /// Why nothing is written.
    pub(super) fn suspended(&self) -> Option<EngineError> {
        let failed = self.failed.lock().clone();
        failed.or_else(|| self.suspension.why())
    }

    /// See [`Engine::run`](super::Engine::run).
    pub(super) fn run<T, F>(self: &Arc<Self>, op: F) -> BoxFuture<'_, Result<T, OpError>>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
    {
        self.carry_out(false, Box::new(move || Box::new(op.clone())))
    }

    /// `is_snapshot`: see [`Engine::run_snapshot`](super::Engine::run_snapshot).
    pub(super) fn carry_out<T: Send + 'static>(
        self: &Arc<Self>,
        is_snapshot: bool,
        op: Turns<T>,
    ) -> BoxFuture<'_, Result<T, OpError>> {
        Box::pin(async move {
            if let Some(error) = self.suspended() {
                return Err(EngineError::Suspended(error.to_string()).into());
            }
            if self.ending.lock().is_some() {
                return Err(is_closing());
            }
            let (answer, mut answered) = oneshot::channel::<Result<T, OpError>>();
            let number = self.numbers.fetch_add(1, Relaxed);
            let has_begun = Arc::new(AtomicBool::new(false));
            self.queue(Command { number, is_snapshot, op, answer, has_begun: Arc::clone(&has_begun) });
            let why = tokio::select! {
                biased;
                result = &mut answered => {
                    return result
                        .unwrap_or_else(|_| Err(EngineError::Suspended("the pool was closed".into()).into()));
                }
                why = self.suspension.suspended() => why,
            };
            // From here on who carries it out knows that nobody waits; what was answered until now is the answer.
            answered.close();
            if let Ok(result) = answered.try_recv() {
                return result;
            }
            let mut queue = self.tasks.lock();
            let waiting =
                queue.iter().position(|(task, _)| *task == number).filter(|_| !has_begun.load(Relaxed));
            let text = match waiting.map(|position| drop(queue.remove(position))) {
                Some(()) => format!("{why}; the command was not carried out"),
                None => format!("{why}; the command is carried out when the pool is cleared"),
            };
            Err(EngineError::Suspended(text).into())
        })
    }

    /// Puts a command behind those that wait.
    fn queue<T: Send + 'static>(self: &Arc<Self>, command: Command<T>) {
        let number = command.number;
        let task = command.task(Arc::downgrade(self));
        self.tasks.lock().push_back((number, task));
        self.txgs.wake();
        // Whoever takes them may have taken the last ones since it was asked whether there will be more.
        let failed = self.failed.lock().clone();
        let Some(why) = failed.or_else(|| self.ending.lock().map(|_| closing())) else { return };
        let waiting = {
            let mut tasks = self.tasks.lock();
            let position = tasks.iter().position(|(task, _)| *task == number);
            position.and_then(|position| tasks.remove(position))
        };
        if let Some((_, task)) = waiting {
            (task.done)(Err(why));
        }
    }
}

/// What a command does in a transaction group.
type Op<T> = Box<dyn for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Send>;

/// A command's work for each of its turns. Boxed, so that what waits for them is compiled once for a type of answer, and not
/// for each command.
type Turns<T> = Box<dyn Fn() -> Op<T> + Send>;

/// A command that waits for its turn, for the first time or again.
struct Command<T> {
    number: u64,
    is_snapshot: bool,
    op: Turns<T>,
    answer: oneshot::Sender<Result<T, OpError>>,
    /// It has had its turn, and may have done a part of its work.
    has_begun: Arc<AtomicBool>,
}

impl<T: Send + 'static> Command<T> {
    /// What is to be done in the next transaction group. If that is not all, the command waits for the one after it
    /// (two snapshots of one dataset need two, a volume that is made small may need hundreds), whether or not somebody
    /// still waits for its end.
    fn task(self, shared: Weak<Shared>) -> Task {
        let slot = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&slot);
        let (is_snapshot, op) = (self.is_snapshot, (self.op)());
        let run = boxed(move |cx| {
            Box::pin(async move {
                let before = cx.state();
                let result = op(cx).await;
                // What fails underneath a command before it has changed anything is only the command's misfortune.
                let fatal = match &result {
                    Err(OpError::Engine(error)) if cx.state() != before => Some(error.clone()),
                    _ => None,
                };
                *kept.lock() = Some(result);
                fatal.map_or(Ok(()), Err)
            })
        });
        let done = Box::new(move |outcome: Result<(), EngineError>| {
            let is_synced = outcome.is_ok();
            let result = match (outcome, slot.lock().take()) {
                (Ok(()), Some(result)) => result,
                (Err(error), _) => Err(EngineError::Suspended(error.to_string()).into()),
                (Ok(()), None) => Err(EngineError::Suspended("the command was not run".into()).into()),
            };
            let shared = shared.upgrade();
            let result = match (result, &shared) {
                (Err(OpError::Again), Some(shared)) if shared.ending.lock().is_none() => {
                    self.has_begun.store(true, Relaxed);
                    return shared.queue(self);
                }
                (Err(OpError::Again), _) => Err(is_closing()),
                (result, _) => result,
            };
            // Whoever asked may have gone away; the command is done all the same, and others see to what follows from it.
            let is_heard = self.answer.send(result).is_ok();
            if let Some(shared) = shared.filter(|_| is_synced && !is_heard) {
                shared.events.tell(Event::CommandDone);
            }
        });
        Task { is_snapshot, run, done }
    }
}

fn is_closing() -> OpError {
    closing().into()
}

/// What a command is told that comes when the pool is being left.
pub(super) fn closing() -> EngineError {
    EngineError::Suspended("the pool is being closed".into())
}

/// Tells the compiler that a closure's future lives as long as the syncer it is lent.
fn boxed<F>(run: F) -> Box<dyn for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send>
where
    F: for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send + 'static,
{
    Box::new(run)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::{
        create::testing,
        engine::{Ending, Engine, Options},
    };

    fn nothing(_cx: &mut Syncer) -> OpFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Found by reading: between the question whether there will be more transaction groups and the queue the last could be over.
    /// The command waited for ever then, and with it whoever wanted the pool's turn.
    #[tokio::test(start_paused = true)]
    async fn a_command_that_comes_behind_the_last_ones_is_answered() {
        for is_given_up in [false, true] {
            let syncer = testing::in_memory(&["d0"]).await;
            let engine = Engine::start(syncer, Options::default()).await.unwrap();
            match is_given_up {
                true => engine.abandon().await,
                false => engine.end(Ending::Close).await.unwrap(),
            }
            // It has asked before.
            let (answer, answered) = oneshot::channel();
            let op: Turns<()> = Box::new(|| Box::new(nothing));
            let (number, has_begun) = (u64::MAX, Arc::default());
            engine.shared.queue(Command { number, is_snapshot: false, op, answer, has_begun });
            let answer = timeout(Duration::from_secs(60), answered).await.expect("it does not wait");
            let refused = answer.unwrap().unwrap_err().to_string();
            let why = if is_given_up { "the pool was given up" } else { "the pool is being closed" };
            assert!(refused.contains(why), "{refused}");
            assert!(engine.shared.tasks.lock().is_empty());
        }
    }
}
