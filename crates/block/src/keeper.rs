//! A place for the few bytes of a volume that are not its blocks and must survive power loss all the same:
//! persistent reservations (SPC-4 §5.13.5) are the first of them.
//!
//! The bytes belong to the volume, not to the server: they travel with the pool, so that the host that takes the
//! pool over fences the same initiators. What they mean is known to who keeps them only.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::VolumeFuture;

/// Longest value a keeper is asked to store, in bytes.
pub const KEPT_MAX: usize = 512 << 10;

/// Keeps one value through power loss.
///
/// Stores come one after the other, never two at a time. A store that failed, or that was cut off before it returned,
/// may have left the old value or the new one, never a mixture and never nothing.
pub trait Keeper: Send + Sync + 'static {
    /// The value as it was when the volume was opened, or as it was last stored. `None` if there never was one, or
    /// an empty one was stored. Does not wait: the volume reads it when it opens.
    fn load(&self) -> Option<Bytes>;
    /// Replaces the value; when this returns, no power cut takes it back. At most [`KEPT_MAX`] bytes; empty
    /// removes it.
    fn store(&self, value: Bytes) -> VolumeFuture<'_, ()>;
}

/// Keeps a value in memory: for tests, which cut the power by building a new target over the same keeper.
#[derive(Debug, Default)]
pub struct MemKeeper {
    value: Mutex<Bytes>,
    failing: std::sync::atomic::AtomicBool,
}

impl MemKeeper {
    /// From now on every store fails (or, with `false`, works again).
    pub fn fail(&self, failing: bool) {
        self.failing.store(failing, std::sync::atomic::Ordering::Release);
    }
}

impl Keeper for MemKeeper {
    fn load(&self) -> Option<Bytes> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(value).filter(|value| !value.is_empty())
    }

    fn store(&self, value: Bytes) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            if self.failing.load(std::sync::atomic::Ordering::Acquire) {
                return Err(crate::VolumeError::NotReady("the pool is suspended".into()));
            }
            *self.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
            Ok(())
        })
    }
}
