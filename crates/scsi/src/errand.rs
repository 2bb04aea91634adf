//! A command that goes in steps, and who may end it between two of them: its own initiator (an abort, the end of its
//! session), or whoever clears what its nexus had begun (a reset, a preemption).
//!
//! What may take minutes has to look before each step, with the locks held under which it does the step: whoever has ended
//! it then waits for one step at most, and finds that nothing follows. A copy says besides when a step changes something:
//! nobody waits for one that stands in a read, whose device may be that of another pool and never answer.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use crate::{
    nexus::Nexus,
    unit::{Job, LogicalUnit, Refusal},
};

/// Ends a long command early: whoever holds a clone may ask, the command looks between its steps.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicU8>);

/// Bits of a [`Cancel`], in one place: of who ends a copy and the copy that is about to change something, at least one sees
/// what the other says.
const CANCELLED: u8 = 1;
const CHANGING: u8 = 2;

impl Cancel {
    /// The command is to end as soon as it can; what it has done stays done.
    pub fn cancel(&self) {
        self.0.fetch_or(CANCELLED, Ordering::AcqRel);
    }

    /// Whether it was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Of a copy ([`Job::is_copy`]): whether it was asked to end, and nothing of it that changes anything is on its way, nor
    /// will be. What it reads may go on, and keeps nobody.
    pub fn keeps_nobody(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }

    /// A copy is about to change something, until this is dropped. To be said before it looks whether it was ended.
    pub(crate) fn change(&self) -> Change<'_> {
        self.0.fetch_or(CHANGING, Ordering::AcqRel);
        Change(self)
    }
}

/// A step of a copy that changes something is on its way.
#[must_use = "dropped, it says that nothing is changed"]
pub(crate) struct Change<'a>(&'a Cancel);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_and(!CHANGING, Ordering::AcqRel);
    }
}

/// What goes on after its command was answered (a copy that was ordered with IMMED), to be run by whoever ran the command:
/// it is part of the nexus's work still, and must not change anything when the nexus has ended. Cancelling the command ends it
/// within a step ([`Cancel::keeps_nobody`]); dropped, it ends where it is.
pub struct Rest(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Rest {
    pub(crate) fn new(rest: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(rest))
    }
}

impl Future for Rest {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rest").finish_non_exhaustive()
    }
}

/// A job that runs, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) job: Job,
    /// The transport's.
    pub(crate) cancel: Cancel,
}

impl Errand {
    /// Whether others have cleared it.
    pub(crate) fn is_cleared(&self) -> bool {
        self.job.generation != self.nexus.generation()
    }

    /// Whether there is to be no further step.
    pub(crate) fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.is_cleared()
    }
}

impl LogicalUnit {
    /// Whether the next step may be done here: what was true when the command began may have changed since.
    pub(crate) fn go_on(&self, errand: &Errand) -> Result<(), Refusal> {
        if errand.is_over() {
            return Err(Refusal::Cleared);
        }
        self.admit(&errand.nexus, &errand.job.command, &self.geometry())
    }
}

/// Between two steps: others have their turn. Where all is in memory nothing else would make them wait, and the connection
/// that an abort comes by would not be read before the last step.
pub(crate) async fn pause() {
    tokio::task::yield_now().await;
}
