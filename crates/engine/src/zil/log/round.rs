//! Rounds: who shares one, who drives it, and in which order they answer.
//!
//! A round takes all who wait, forms the blocks for them, and writes them; while it writes, the next one may form. It
//! answers in the order of the chain: a block counts only if all before it do.
//!
//! What it writes, and how: [`formed`](super::formed).

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{EVERYTHING, Log, Phase, State, Want, formed::Formed};
use crate::zil::stats::Fallback;

/// Rounds under way at once: one that is on its way to the devices, and one for whoever came just after it. More
/// would make the batches smaller, and devices flush one thing after the other.
const ROUNDS: usize = 2;

/// One who waits to hear whether what he wants is durable.
pub(super) struct Waiter {
    pub(super) want: Want,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<bool>,
}

impl Waiter {
    pub(super) fn wants_everything(&self) -> bool {
        self.want.contains(&EVERYTHING)
    }
}

impl Log {
    /// Another round, if there may be one.
    pub(super) fn next_round(self: &Arc<Self>, state: &mut State) -> Option<Driven> {
        if state.phase != Phase::Ready {
            self.turn_away(state);
        }
        if state.is_forming || state.in_flight >= ROUNDS || state.waiting.is_empty() {
            return None;
        }
        state.is_forming = true;
        self.busy.fetch_add(1, Relaxed);
        let log = Arc::clone(self);
        Some(Driven(Some(Box::pin(async move {
            log.round().await;
            if log.busy.fetch_sub(1, AcqRel) == 1 {
                log.is_idle.notify_waiters();
            }
        }))))
    }

    /// Those who wait for a round are told that there is none.
    pub(super) fn turn_away(&self, state: &mut State) {
        for waiter in std::mem::take(&mut state.waiting) {
            self.stats.fell_back(state.why);
            tell(waiter.answer, false);
        }
    }

    async fn round(self: &Arc<Self>) {
        if self.state.lock().company > 1 {
            // They were answered together, and come again together: let them, or each would have a round of its own.
            tokio::task::yield_now().await;
        }
        let mut waiters = {
            let mut state = self.state.lock();
            let waiters = std::mem::take(&mut state.waiting);
            state.company = waiters.len().max(state.company / 2);
            waiters
        };
        let epoch = self.epoch();
        let formed = self.form(&mut waiters).await;
        let (over, is_over) = oneshot::channel();
        let before = {
            let mut state = self.state.lock();
            state.is_forming = false;
            state.in_flight += 1;
            if let Err(why) = &formed {
                self.give_up(&mut state, *why);
            }
            let before = state.last.replace(is_over);
            // Dropped, it goes on in a task of its own.
            drop(self.next_round(&mut state));
            before
        };
        let issued = Instant::now();
        let written = match &formed {
            // A device that was away meanwhile may have lost what was written before, and flushed nothing.
            Ok(formed) => {
                self.may_write()
                    && self.write(formed).await
                    && (formed.blocks.is_empty() || epoch == self.epoch())
            }
            Err(_) => false,
        };
        // A block counts only if the whole chain up to it does.
        let all_before = match before {
            Some(before) => before.await.unwrap_or(false),
            None => true,
        };
        let done = written && all_before;
        {
            let mut state = self.state.lock();
            state.in_flight -= 1;
            match &formed {
                Ok(formed) if done => {
                    if let Some(last) = formed.blocks.last() {
                        state.chain.durable(last.sequence);
                    }
                }
                Ok(_) => self.give_up(&mut state, Fallback::Device),
                Err(_) => {}
            }
            drop(self.next_round(&mut state));
        }
        // Nobody waits for it if no other round was formed since.
        tell(over, done);
        self.answer(waiters, issued, done, &formed);
    }

    /// Which devices there are, and how often they came back.
    fn epoch(&self) -> Option<(u64, u64)> {
        self.means.as_ref().map(|means| means.direct.epoch())
    }

    fn answer(&self, waiters: Vec<Waiter>, issued: Instant, done: bool, formed: &Result<Formed, Fallback>) {
        let now = Instant::now();
        if done && formed.as_ref().is_ok_and(|formed| !formed.blocks.is_empty()) {
            self.stats.rounds.fetch_add(1, Relaxed);
            self.stats.device.add(now - issued);
        }
        for Waiter { since, answer, .. } in waiters {
            if done {
                self.stats.commits.fetch_add(1, Relaxed);
                self.stats.queue.add(issued - since);
                self.stats.total.add(now - since);
            } else {
                self.stats.fell_back(formed.as_ref().err().copied().unwrap_or(Fallback::Device));
            }
            tell(answer, done);
        }
    }
}

/// A round, driven by the first who waits for it: nobody has to be woken for a single writer. Others wait for the
/// same blocks, so if that one goes away, a task of its own takes over.
pub(super) struct Driven(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for Driven {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(round) = &mut self.0 else { return Poll::Ready(()) };
        if round.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.0 = None;
        Poll::Ready(())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let (Some(round), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(round);
        }
    }
}

/// Answers somebody who may have gone away.
pub(super) fn tell(who: oneshot::Sender<bool>, done: bool) {
    if who.send(done).is_err() {
        tracing::trace!("nobody waits for a commit that is over");
    }
}
