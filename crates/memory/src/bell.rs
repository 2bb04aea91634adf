//! Told by what grows, heard by whoever makes room.
//!
//! What grows is counted in steps: within a step nobody is told, and when the next one is entered the bell is rung once.
//! So counting costs an addition, and whoever hears the bell may take for held what is to the end of the step.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::sync::Notify;

/// One for a process: somebody grew.
#[derive(Debug, Default)]
pub struct Bell(Notify);

impl Bell {
    /// Something has grown.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Waits until it rings; at once if it did since the last time.
    pub async fn heard(&self) {
        self.0.notified().await;
    }
}

/// A count of bytes that rings a bell when it enters a higher step.
#[derive(Debug, Default)]
pub struct Steps {
    bell: OnceLock<std::sync::Arc<Bell>>,
    /// Bytes of a step; 0: there is no bell.
    step: AtomicU64,
    /// The highest step that was told, less those that were left.
    told: AtomicU64,
}

impl Steps {
    /// From now on `bell` is rung for every `step` bytes. Once.
    pub fn attach(&self, bell: std::sync::Arc<Bell>, step: u64) {
        if self.bell.set(bell).is_ok() {
            self.step.store(step.max(1), Relaxed);
        }
    }

    /// The count is this now.
    #[inline]
    pub fn is_now(&self, bytes: u64) {
        let step = self.step.load(Relaxed);
        if step == 0 {
            return;
        }
        let now = bytes / step;
        let told = self.told.load(Relaxed);
        if now == told {
            return;
        }
        self.told.store(now, Relaxed);
        if now > told
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
    }

    /// What may be held without the bell being rung, when `bytes` are.
    #[must_use]
    pub fn at_most(&self, bytes: u64) -> u64 {
        let step = self.step.load(Relaxed);
        bytes.checked_div(step).map_or(bytes, |whole| (whole + 1) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    };

    fn rang(bell: &Bell) -> bool {
        let mut heard = pin!(bell.heard());
        heard.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn the_bell_rings_once_for_each_step_up_and_never_on_the_way_down() {
        let bell = Arc::new(Bell::default());
        let steps = Steps::default();
        steps.is_now(1 << 40);
        steps.attach(Arc::clone(&bell), 100);
        let mut heard = Vec::new();
        for bytes in [10, 99, 100, 150, 199, 320, 250, 20, 90, 110] {
            steps.is_now(bytes);
            heard.push(rang(&bell));
        }
        assert_eq!(heard, [false, false, true, false, false, true, false, false, false, true]);
        assert_eq!((steps.at_most(0), steps.at_most(199), steps.at_most(200)), (100, 200, 300));
    }
}
