//! Pools that the daemon opens by itself, beside all operations: whoever exports one meanwhile ends that, and knows when nothing
//! of it has its devices any more.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::Host;

/// How long one that is given up is waited for: it may be closing what it has open.
const LAST_STEPS: Duration = Duration::from_secs(15);

/// An attempt to open a pool, as long as this lives: nothing of it is left afterwards.
pub(crate) struct Attempt {
    host: Arc<Host>,
    guid: u64,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.host.attempts.send_modify(|attempts| {
            attempts.remove(&self.guid);
        });
    }
}

impl Host {
    /// An attempt to open this pool begins, which is the only one.
    pub(crate) fn attempt(self: &Arc<Self>, guid: u64) -> Attempt {
        self.attempts.send_modify(|attempts| {
            attempts.insert(guid, false);
        });
        Attempt { host: Arc::clone(self), guid }
    }

    /// What a `step` of such an attempt comes to; none if the attempt is given up before that, and the step with it.
    pub(crate) async fn unless_given_up<T>(&self, guid: u64, step: impl Future<Output = T>) -> Option<T> {
        let mut attempts = self.attempts.subscribe();
        tokio::select! {
            biased;
            // The sender is ours: it is not gone.
            _given_up = attempts.wait_for(|attempts| attempts.get(&guid) == Some(&true)) => None,
            done = step => Some(done),
        }
    }

    /// The attempt to open this pool is to end, if there is one.
    pub(crate) fn give_up_attempt(&self, guid: u64) {
        self.attempts.send_if_modified(|attempts| match attempts.get_mut(&guid) {
            Some(is_given_up) => !std::mem::replace(is_given_up, true),
            None => false,
        });
    }

    /// The same, and waits for that; whether it has ended.
    pub(crate) async fn end_attempt(&self, guid: u64) -> bool {
        self.give_up_attempt(guid);
        let mut attempts = self.attempts.subscribe();
        let ended = attempts.wait_for(|attempts| !attempts.contains_key(&guid));
        timeout(LAST_STEPS, ended).await.is_ok()
    }
}
