//! What a volume keeps beside its blocks ([`block::Keeper`]): a command that writes it into the volume's directory, and
//! waits until that is durable.
//!
//! A command asks for its transaction group at once, so a store takes as long as one group does. A suspended pool
//! refuses it ([`VolumeError::NotReady`]), and what it had not begun to write by then is never written: an answer
//! of "not done" is then nearly always true, though nobody may count on it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use block::{KEPT_MAX, Keeper, VolumeError, VolumeFuture};
use bytes::Bytes;
use parking_lot::Mutex;

use super::Shared;
use crate::dsl::{OpError, kept};

/// Keeps a value for one volume of a pool.
pub(super) struct PoolKeeper {
    dataset: u64,
    guid: u64,
    value: Mutex<Bytes>,
    /// One store at a time.
    turn: tokio::sync::Mutex<()>,
    pool: Weak<Shared>,
}

/// Whether somebody still waits for a store.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl PoolKeeper {
    /// With what was found for dataset `dataset`, whose guid is `guid`.
    pub(super) fn new(dataset: u64, guid: u64, value: Bytes, pool: &Arc<Shared>) -> Arc<Self> {
        let (value, pool) = (Mutex::new(value), Arc::downgrade(pool));
        Arc::new(Self { dataset, guid, value, turn: tokio::sync::Mutex::new(()), pool })
    }

    async fn replace(&self, value: Bytes) -> Result<(), VolumeError> {
        if value.len() > KEPT_MAX {
            return Err(VolumeError::Unsupported(format!(
                "{} bytes are to be kept for the volume, and {KEPT_MAX} can be",
                value.len()
            )));
        }
        let _turn = self.turn.lock().await;
        let Some(pool) = self.pool.upgrade() else {
            return Err(VolumeError::NotReady("the pool is closed".into()));
        };
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let (dataset, guid) = (self.dataset, self.guid);
        let (bytes, is_wanted) = (value.clone(), Arc::clone(&wanted.0));
        let stored = pool.run(move |cx| {
            Box::pin(async move {
                match is_wanted.load(Ordering::Acquire) {
                    true => kept::keep(cx, dataset, guid, &bytes).await,
                    false => Ok(()),
                }
            })
        });
        stored.await.map_err(|error| match error {
            OpError::NoSpace => VolumeError::NoSpace,
            error => VolumeError::NotReady(error.to_string()),
        })?;
        *self.value.lock() = value;
        Ok(())
    }
}

impl Keeper for PoolKeeper {
    fn load(&self) -> Option<Bytes> {
        let value = self.value.lock().clone();
        Some(value).filter(|value| !value.is_empty())
    }

    fn store(&self, value: Bytes) -> VolumeFuture<'_, ()> {
        Box::pin(self.replace(value))
    }
}
