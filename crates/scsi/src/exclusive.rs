//! Who may change a disk beside whom, and for how long others wait for that.
//!
//! ```text
//!   a write            shares the disk ─────▶ seen: it changes nothing more ─────▶ stable, answered
//!   COMPARE AND WRITE  has it alone ────────▶ seen                          ─────▶ stable, answered
//!                      waits for those before                                 │
//!   who fences, resets ───────────────────────────────────────────────────────┘ waits for these, too
//! ```
//!
//! To become stable takes as long as a device flushes, or a transaction group. Hosts of a cluster compare and write all the
//! time: if that waited for what others made stable, or kept them while its own became so, the disk would do little else. Who
//! has to know that the commands of another are over does wait for it: the successor of a host that was fenced off takes what
//! it reads for what is there, also after a power cut.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock of a disk. Whoever asks for it has it in turn.
#[derive(Default)]
pub(crate) struct Exclusive {
    lock: RwLock<()>,
    /// Changes that are seen, and whose commands are not over.
    settling: AtomicUsize,
    /// There are none any more. Only who has the lock alone waits for that.
    settled: Notify,
}

impl Exclusive {
    /// For a change beside others.
    pub(crate) async fn read(&self) -> Hold<'_> {
        Hold { of: self, shared: Some(self.lock.read().await), alone: None, is_settling: false }
    }

    /// For a change that nobody else changes anything beside.
    pub(crate) async fn alone(&self) -> Hold<'_> {
        Hold { of: self, shared: None, alone: Some(self.lock.write().await), is_settling: false }
    }

    /// Alone, and all changes are over that began before.
    pub(crate) async fn write(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.lock.write().await;
        while self.settling.load(Ordering::Acquire) > 0 {
            self.settled.notified().await;
        }
        alone
    }
}

/// A change under way: to be dropped when its command is over.
#[must_use]
pub(crate) struct Hold<'a> {
    of: &'a Exclusive,
    shared: Option<RwLockReadGuard<'a, ()>>,
    alone: Option<RwLockWriteGuard<'a, ()>>,
    is_settling: bool,
}

impl<'a> Hold<'a> {
    /// What was to be changed is, for all who read, and others need not wait until it is stable.
    pub(crate) fn seen(&mut self) {
        if !self.is_settling {
            // Said before the lock is let go: who has it next must find it said.
            self.of.settling.fetch_add(1, Ordering::AcqRel);
            self.is_settling = true;
            drop((self.shared.take(), self.alone.take()));
        }
    }

    /// The same for so many changes that are made together.
    pub(crate) fn for_several(self, changes: usize) -> Several<'a> {
        Several { hold: Mutex::new(self), unseen: AtomicUsize::new(changes) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.is_settling && self.of.settling.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.of.settled.notify_one();
        }
    }
}

/// Changes under way that are seen when the last of them is.
#[must_use]
pub(crate) struct Several<'a> {
    hold: Mutex<Hold<'a>>,
    unseen: AtomicUsize,
}

impl Several<'_> {
    /// One of them is: to be said once for each.
    pub(crate) fn seen(&self) {
        if self.unseen.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.hold.lock().unwrap_or_else(PoisonError::into_inner).seen();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_becomes_stable_is_in_the_way_of_nobody_but_who_has_to_know_that_it_is_over() {
        let disk = Exclusive::default();
        for is_alone in [false, true] {
            let begun = if is_alone { disk.alone().now_or_never() } else { disk.read().now_or_never() };
            let mut change = begun.unwrap();
            assert!(disk.alone().now_or_never().is_none(), "it may change something yet");
            assert_eq!(disk.read().now_or_never().is_some(), !is_alone);
            change.seen();
            let other = disk.alone().now_or_never().expect("it changes nothing more");
            assert!(disk.read().now_or_never().is_none());
            drop(other);
            let mut fence = pin!(disk.write());
            assert!(fence.as_mut().now_or_never().is_none(), "it is not over");
            assert!(disk.read().now_or_never().is_none(), "and nothing begins");
            drop(change);
            let fence = fence.as_mut().now_or_never().expect("it is over");
            assert!(disk.alone().now_or_never().is_none());
            drop(fence);
        }
        // One that was seen and is over while nobody waited is no reason not to wait for the next.
        let mut one = disk.read().now_or_never().unwrap();
        one.seen();
        drop(one);
        let mut next = disk.read().now_or_never().unwrap();
        next.seen();
        assert!(disk.write().now_or_never().is_none());
    }

    #[test]
    fn several_changes_are_seen_when_the_last_of_them_is() {
        let disk = Exclusive::default();
        let several = disk.read().now_or_never().unwrap().for_several(2);
        several.seen();
        assert!(disk.alone().now_or_never().is_none());
        several.seen();
        assert!(disk.alone().now_or_never().is_some());
        assert!(disk.write().now_or_never().is_none());
        drop(several);
        assert!(disk.write().now_or_never().is_some());
    }
}
