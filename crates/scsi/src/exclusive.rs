//! Who may change a disk beside whom, and for how long others wait for that.
//!
//! ```text
//!   a write            shares the disk ─────▶ seen: it changes nothing more ─────▶ stable, answered
//!   COMPARE AND WRITE  has it alone ────────▶ seen                          ─────▶ stable, answered
//!                      waits for those before                                 │
//!   POPULATE TOKEN     waits for those before to be seen, and keeps nobody     │
//!   who fences, resets ───────────────────────────────────────────────────────┘ waits for these, too
//! ```
//!
//! To become stable takes as long as a device flushes, or a transaction group. Hosts of a cluster compare and write all the
//! time: if that waited for what others made stable, or kept them while its own became so, the disk would do little else. Who
//! has to know that the commands of another are over does wait for it: the successor of a host that was fenced off takes what
//! it reads for what is there, also after a power cut.
//!
//! What a host copies it copies with a token for every few MiB, while others write: a token needs the blocks as they are once
//! all is seen that had begun before it, and whatever begins later ends it by itself if it concerns it.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
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
    epochs: Mutex<Epochs>,
    /// An epoch that is over has no unseen changes any more.
    passed: Notify,
}

/// Changes that are not seen, by when they began.
#[derive(Default)]
struct Epochs {
    /// The one in which changes begin now.
    now: u64,
    /// How many, of those that have any.
    unseen: BTreeMap<u64, usize>,
}

impl Epochs {
    /// A change begins; returns its epoch.
    fn enter(&mut self) -> u64 {
        let changes = self.unseen.entry(self.now).or_default();
        *changes = changes.saturating_add(1);
        self.now
    }

    /// A change of this epoch is seen, or will never be. True if it was the last one, and the epoch is over.
    fn leave(&mut self, epoch: u64) -> bool {
        let Some(changes) = self.unseen.get_mut(&epoch) else { return false };
        *changes = changes.saturating_sub(1);
        let is_last = *changes == 0;
        if is_last {
            self.unseen.remove(&epoch);
        }
        is_last && epoch < self.now
    }

    /// Begins another epoch.
    fn turn(&mut self) -> u64 {
        self.now = self.now.saturating_add(1);
        self.now
    }

    /// Whether all changes are seen that began before this epoch did.
    fn is_past(&self, epoch: u64) -> bool {
        self.unseen.first_key_value().is_none_or(|(first, _)| *first >= epoch)
    }
}

impl Exclusive {
    /// For a change beside others.
    pub(crate) async fn read(&self) -> Hold<'_> {
        let shared = self.lock.read().await;
        self.begin(Some(shared), None)
    }

    /// For a change that nobody else changes anything beside.
    pub(crate) async fn alone(&self) -> Hold<'_> {
        let alone = self.lock.write().await;
        self.begin(None, Some(alone))
    }

    fn begin<'a>(
        &'a self,
        shared: Option<RwLockReadGuard<'a, ()>>,
        alone: Option<RwLockWriteGuard<'a, ()>>,
    ) -> Hold<'a> {
        Hold { of: self, shared, alone, epoch: self.epochs().enter(), is_settling: false }
    }

    fn epochs(&self) -> MutexGuard<'_, Epochs> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of this epoch changes nothing more.
    fn leave(&self, epoch: u64) {
        let was_waited_for = self.epochs().leave(epoch);
        if was_waited_for {
            self.passed.notify_waiters();
        }
    }

    /// Returns once all changes are seen that had begun before. Nothing waits for that: changes go on beginning.
    pub(crate) async fn past(&self) {
        let epoch = self.epochs().turn();
        loop {
            // Before it is looked: what passes in between is heard.
            let passed = self.passed.notified();
            if self.epochs().is_past(epoch) {
                return;
            }
            passed.await;
        }
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
    /// When it began.
    epoch: u64,
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
            self.of.leave(self.epoch);
        }
    }

    /// The same for so many changes that are made together.
    pub(crate) fn for_several(self, changes: usize) -> Several<'a> {
        Several { hold: Mutex::new(self), unseen: AtomicUsize::new(changes) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if !self.is_settling {
            self.of.leave(self.epoch);
        } else if self.of.settling.fetch_sub(1, Ordering::AcqRel) == 1 {
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
    fn what_had_begun_is_waited_for_and_what_begins_meanwhile_waits_for_nobody() {
        let disk = Exclusive::default();
        assert!(disk.past().now_or_never().is_some());
        let mut one = disk.read().now_or_never().unwrap();
        let mut first = pin!(disk.past());
        assert!(first.as_mut().now_or_never().is_none());
        let other = disk.read().now_or_never().expect("nobody is kept");
        let mut second = pin!(disk.past());
        assert!(second.as_mut().now_or_never().is_none());
        // Who gave up waiting is in the way of nobody.
        assert!(disk.past().now_or_never().is_none());
        one.seen();
        assert!(first.as_mut().now_or_never().is_some(), "the other one began later");
        assert!(second.as_mut().now_or_never().is_none());
        drop(other);
        assert!(second.as_mut().now_or_never().is_some());
        let swap = disk.alone().now_or_never().unwrap();
        assert!(disk.past().now_or_never().is_none());
        drop(swap);
        assert!(disk.past().now_or_never().is_some());
        drop(one);
        assert!(disk.epochs().unseen.is_empty());
    }

    #[test]
    fn an_older_change_is_waited_for_though_a_younger_one_is_over() {
        let disk = Exclusive::default();
        let old = disk.read().now_or_never().unwrap();
        assert!(disk.past().now_or_never().is_none());
        let young = disk.read().now_or_never().unwrap();
        let mut past = pin!(disk.past());
        assert!(past.as_mut().now_or_never().is_none());
        drop(young);
        assert!(past.as_mut().now_or_never().is_none());
        drop(old);
        assert!(past.as_mut().now_or_never().is_some());
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
