//! Writes down which alerts are open and what waits, a moment after it changed; and reads it, if that was not possible at the start.
//! Until it is, nothing is written over it.
//!
//! Blocking calls are made on threads of their own: a state directory may lie on a server that is away.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Alerts,
    ledger::{Ledger, STATE_FILE},
};
use crate::state;

/// How often what could not be read at the start is tried again.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// How long changes are collected before they are written down.
const WRITE_AFTER: Duration = Duration::from_millis(100);

impl Alerts {
    /// Writes down what changes, and reads what could not be read so far.
    pub(super) async fn write_changes(self: Arc<Self>) {
        loop {
            if self.is_unread.load(Relaxed) {
                // Also if nothing changes: something may wait in it.
                let _changed = timeout(READ_AGAIN, self.dirty.notified()).await;
            } else {
                self.dirty.notified().await;
            }
            sleep(WRITE_AFTER).await;
            self.write().await;
        }
    }

    pub(super) async fn write(&self) {
        let mut before = self.written.lock().await;
        if self.is_unread.load(Relaxed) && !self.read_late().await {
            return;
        }
        let now = self.ledger.lock().kept();
        let written = match now {
            Ok(now) if now == *before => return,
            Ok(now) => {
                let (dir, content) = (self.files.dir.clone(), now.clone());
                let written = spawn_blocking(move || state::replace_json(&dir, STATE_FILE, &content)).await;
                if matches!(written, Ok(Ok(()))) {
                    *before = now;
                }
                written
            }
            Err(error) => Ok(Err(error.into())),
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "open alerts and queues cannot be kept in {STATE_FILE}")
            }
            Err(error) => tracing::error!(%error, "open alerts and queues were not kept"),
        }
    }

    /// Reads what could not be read when the daemon started; whether that succeeds, or nothing is there any more.
    async fn read_late(&self) -> bool {
        let dir = self.files.dir.clone();
        let Ok(Ok(kept)) = spawn_blocking(move || Ledger::open(&dir)).await else {
            return false;
        };
        if let Some(kept) = kept {
            self.ledger.lock().join(kept);
            tracing::info!("open alerts, and what waits, are known again");
        }
        self.is_unread.store(false, Relaxed);
        self.running.lock().values().for_each(|sink| sink.wake.notify_one());
        true
    }
}
