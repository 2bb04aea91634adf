//! What the watch is asked for by whoever holds the pool. It does one thing after the other, so an answer may have to wait for a
//! device that does not; one that has ended answers nobody.

use std::{sync::Arc, time::Duration};

use disk::Disk;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    BoxFuture,
    devices::{Opener, probe::PROBE},
    dsl::OpError,
    engine::Engine,
};

/// How long a suspended pool is given to find out whether it can go on.
const ATTEMPT: Duration = Duration::from_secs(60);

/// What the watch is asked for.
pub(crate) enum Ask {
    Look(oneshot::Sender<()>),
    Clear(Option<u64>, oneshot::Sender<Result<(), OpError>>),
    /// The disk of a leaf that is not in use, wherever it is now.
    Find(u64, oneshot::Sender<Option<Arc<dyn Disk>>>),
    /// A leaf was taken out of use: its disk is to be closed.
    LetGo(oneshot::Sender<()>),
    Watch(Arc<dyn Opener>),
    Close,
}

/// To the watch of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Asks(mpsc::UnboundedSender<Ask>);

/// A channel to a watch, and its end.
pub(crate) fn asks() -> (Asks, mpsc::UnboundedReceiver<Ask>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Asks(sender), receiver)
}

impl Asks {
    /// The pool is left: devices are let alone.
    pub(crate) fn close(&self) {
        self.tell(Ask::Close);
    }

    fn tell(&self, ask: Ask) {
        if self.0.send(ask).is_err() {
            tracing::trace!("nobody watches any more");
        }
    }

    /// What the watch answers; none if it has ended.
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.tell(ask(answer));
        answered.await.ok()
    }
}

/// An answer of the watch.
pub(super) fn answer<T>(who: oneshot::Sender<T>, what: T) {
    if who.send(what).is_err() {
        tracing::trace!("nobody waits for the watch any more");
    }
}

impl Engine {
    /// Forgets the errors of one device or of all, opens again what failed, and lets a suspended pool go on
    /// (`zpool clear`).
    ///
    /// # Errors
    /// What suspended the pool is still in the way.
    pub fn clear(&self, guid: Option<u64>) -> BoxFuture<'_, Result<(), OpError>> {
        Box::pin(async move {
            let cleared = self.asks().ask(|answer| Ask::Clear(guid, answer)).await;
            cleared.ok_or_else(|| OpError::Refused("the pool is being closed".to_owned()))??;
            if let Some(why) = self.suspension().why()
                && self.suspension().retry(ATTEMPT).await.is_some()
            {
                let why = self.suspended().unwrap_or(why);
                return Err(OpError::Refused(format!("I/O error: {why}")));
            }
            match self.suspended() {
                Some(why) => Err(OpError::Refused(format!("I/O error: {why}"))),
                None => Ok(()),
            }
        })
    }

    /// Looks at every device now: those that are gone are noticed, those that are back are opened (`zpool reopen`, an
    /// event of the system).
    pub fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // A watch that has ended has nothing to look at.
            self.asks().ask(Ask::Look).await;
        })
    }

    /// The disk of a leaf that is not in use, opened anew; none if it is not found.
    pub(in crate::devices) fn find(&self, guid: u64) -> BoxFuture<'_, Option<Arc<dyn Disk>>> {
        Box::pin(async move { self.asks().ask(|answer| Ask::Find(guid, answer)).await.flatten() })
    }

    /// Closes the disks of leaves that are offline or faulted. One that the watch does not get to, as another hangs, is
    /// closed later.
    pub(in crate::devices) fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(timeout(PROBE, self.asks().ask(Ask::LetGo)).await) })
    }

    /// Begins to watch the devices, with `opener` for those that are away. Without it nothing comes back by itself.
    pub fn watch(&self, opener: Arc<dyn Opener>) {
        self.asks().tell(Ask::Watch(opener));
    }
}
