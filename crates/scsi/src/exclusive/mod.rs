//! Who may change which bytes of a disk beside whom, and for how long others wait for that.
//!
//! ```text
//!   a write            [who has its bytes alone] ──▶ changes them ───▶ seen: it changes nothing more ──▶ stable, answered
//!   COMPARE AND WRITE  [who changes its bytes] ────▶ has them alone ─▶ seen                          ──▶ stable, answered
//!   POPULATE TOKEN     [all that had begun: seen], and keeps nobody
//!   who fences, resets [all that came: answered], and keeps nobody
//!                      [what it waits for]
//! ```
//!
//! Hosts of a cluster compare and write all the time, and take a disk for lost where that takes some seconds (ATS heartbeats
//! of ESXi). What they compare is a lock of their own, and what others write beside it may wait for a device or for room: so
//! only what concerns the same bytes is in the way, in the order in which it came. Writes of the same bytes are not in each
//! other's way: which one stays is up to the hosts, as with any disk.
//!
//! To become stable takes as long as a device flushes, or a transaction group. If a lock waited for what others made stable,
//! or kept them while its own became so, the disk would do little else. Who has to know that the commands of another are over
//! does wait for it: the successor of a host that was fenced off takes what it reads for what is there, also after a power cut.
//!
//! What a host copies it copies with a token for every few MiB, while others write: a token needs the blocks as they are once
//! all is seen that had begun before it, and whatever begins later ends it by itself if it concerns it.

#[cfg(test)]
mod model;
mod turns;

use std::{
    future::poll_fn,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

use self::turns::{Kind, Ranges, Turns};

/// What is under way on a disk. Nobody waits while this is locked.
#[derive(Default)]
pub(crate) struct Exclusive {
    turns: Mutex<Turns>,
}

impl Exclusive {
    /// For a change of these bytes, each (first byte, bytes), beside others of the same.
    pub(crate) async fn beside(&self, ranges: &[(u64, u64)]) -> Hold<'_> {
        self.begin(Kind::Beside, ranges).await
    }

    /// For a change of these bytes that nobody else changes any of beside.
    pub(crate) async fn alone(&self, ranges: &[(u64, u64)]) -> Hold<'_> {
        self.begin(Kind::Alone, ranges).await
    }

    /// Returns once all changes are seen that had begun before. Nothing waits for that: changes go on beginning.
    pub(crate) async fn past(&self) {
        drop(self.begin(Kind::Past, &[]).await);
    }

    /// Returns once all changes are over that came before. Nothing waits for that either: one of them may hang in a device, and
    /// locks of other hosts are not to hang with it.
    pub(crate) async fn drained(&self) {
        drop(self.begin(Kind::Drain, &[]).await);
    }

    async fn begin(&self, kind: Kind, ranges: &[(u64, u64)]) -> Hold<'_> {
        let ranges = Ranges::from_slice(ranges);
        let (place, has_begun) = self.turns().enter(kind, ranges);
        // From here on: who gives up waiting is to be in nobody's way.
        let hold = Hold { of: self, place, is_seen: false };
        if !has_begun {
            poll_fn(|context| self.poll(place, context.waker())).await;
        }
        hold
    }

    fn poll(&self, place: usize, waker: &Waker) -> Poll<()> {
        let old = match self.turns().waker(place) {
            Some(left) => left.replace(waker.clone()),
            None => return Poll::Ready(()),
        };
        // Not before the lock is let go: what goes with it may come here.
        drop(old);
        Poll::Pending
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change under way: to be dropped when its command is over.
#[must_use]
pub(crate) struct Hold<'a> {
    of: &'a Exclusive,
    place: usize,
    is_seen: bool,
}

impl<'a> Hold<'a> {
    /// What was to be changed is, for all who read, and others need not wait until it is stable.
    pub(crate) fn seen(&mut self) {
        if !self.is_seen {
            self.is_seen = true;
            let woken = self.of.turns().seen(self.place);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// The same for so many changes that are made together.
    pub(crate) fn for_several(self, changes: usize) -> Several<'a> {
        Several { hold: Mutex::new(self), unseen: AtomicUsize::new(changes) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let (turn, woken) = self.of.turns().leave(self.place);
        drop(turn);
        woken.into_iter().for_each(Waker::wake);
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

    const HERE: &[(u64, u64)] = &[(0, 8)];
    const THERE: &[(u64, u64)] = &[(8, 8)];
    /// Has bytes of both.
    const ACROSS: &[(u64, u64)] = &[(7, 2)];

    #[test]
    fn what_becomes_stable_is_in_the_way_of_nobody_but_who_has_to_know_that_it_is_over() {
        let disk = Exclusive::default();
        for is_alone in [false, true] {
            let begun =
                if is_alone { disk.alone(HERE).now_or_never() } else { disk.beside(HERE).now_or_never() };
            let mut change = begun.unwrap();
            assert!(disk.alone(HERE).now_or_never().is_none(), "it may change something yet");
            assert_eq!(disk.beside(HERE).now_or_never().is_some(), !is_alone);
            change.seen();
            let other = disk.alone(HERE).now_or_never().expect("it changes nothing more");
            assert!(disk.beside(HERE).now_or_never().is_none());
            drop(other);
            let mut drained = pin!(disk.drained());
            assert!(drained.as_mut().now_or_never().is_none(), "it is not over");
            let later = disk.alone(THERE).now_or_never().expect("nobody is kept");
            assert!(drained.as_mut().now_or_never().is_none());
            drop(change);
            assert!(drained.as_mut().now_or_never().is_some(), "it is over, and the other one came later");
            drop(later);
        }
        assert!(disk.turns().is_empty());
    }

    #[test]
    fn who_changes_bytes_alone_and_who_changes_others_keep_nobody_waiting() {
        let disk = Exclusive::default();
        let write = disk.beside(HERE).now_or_never().unwrap();
        let swap = disk.alone(THERE).now_or_never().expect("it has nothing in common with that");
        let other = disk.beside(HERE).now_or_never().expect("nor has this");
        assert!(disk.beside(ACROSS).now_or_never().is_none());
        assert!(disk.alone(ACROSS).now_or_never().is_none());
        assert!(disk.alone(&[(5, 0), (12, 0)]).now_or_never().is_some(), "of no bytes");
        drop(swap);
        assert!(disk.beside(ACROSS).now_or_never().is_some());
        assert!(disk.alone(ACROSS).now_or_never().is_none());
        drop((write, other));
        assert!(disk.alone(ACROSS).now_or_never().is_some());
        assert!(disk.turns().is_empty());
    }

    /// What is freed in many places is in the way of what lies between them no more than other writes are.
    #[test]
    fn a_change_of_several_ranges_is_in_the_way_in_each_of_them_and_between_them_in_nobodys() {
        let disk = Exclusive::default();
        let holes = disk.beside(&[(0, 8), (16, 8), (u64::MAX, 1)]).now_or_never().unwrap();
        assert!(disk.alone(THERE).now_or_never().is_some());
        for bytes in [(0, 1), (7, 1), (15, 2), (23, 1), (0, 32)] {
            assert!(disk.alone(&[bytes]).now_or_never().is_none(), "{bytes:?}");
            assert!(disk.alone(&[(8, 8), bytes]).now_or_never().is_none(), "{bytes:?}");
        }
        drop(holes);
        assert!(disk.turns().is_empty());
    }

    #[test]
    fn who_comes_later_passes_nobody_that_waits_for_the_same_bytes() {
        let disk = Exclusive::default();
        let write = disk.beside(HERE).now_or_never().unwrap();
        let mut swap = pin!(disk.alone(ACROSS));
        let mut beside = pin!(disk.beside(THERE));
        let mut other = pin!(disk.alone(HERE));
        assert!(swap.as_mut().now_or_never().is_none());
        assert!(beside.as_mut().now_or_never().is_none(), "behind who came first");
        assert!(other.as_mut().now_or_never().is_none());
        drop(write);
        assert!(beside.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        drop(swap.as_mut().now_or_never().expect("the first"));
        drop(other.as_mut().now_or_never().expect("the third has nothing in common with the second"));
        assert!(beside.as_mut().now_or_never().is_some());
        assert!(disk.turns().is_empty());
    }

    /// An abort, or the end of a connection.
    #[test]
    fn who_gives_up_waiting_is_in_the_way_of_nobody() {
        let disk = Exclusive::default();
        let mut write = disk.beside(HERE).now_or_never();
        assert!(write.is_some());
        for has_its_turn in [false, true] {
            let mut swap = Box::pin(disk.alone(ACROSS));
            assert!(swap.as_mut().now_or_never().is_none());
            let mut behind = pin!(disk.beside(THERE));
            assert!(behind.as_mut().now_or_never().is_none());
            let mut last = pin!(disk.drained());
            assert!(last.as_mut().now_or_never().is_none());
            if has_its_turn {
                // It has the bytes, and has not heard of it.
                drop(write.take());
            }
            drop(swap);
            assert!(behind.as_mut().now_or_never().is_some());
            assert_eq!(last.as_mut().now_or_never().is_some(), has_its_turn);
        }
        assert!(disk.turns().is_empty());
    }

    #[test]
    fn what_had_begun_is_waited_for_and_what_begins_meanwhile_waits_for_nobody() {
        let disk = Exclusive::default();
        assert!(disk.past().now_or_never().is_some());
        let mut one = disk.beside(HERE).now_or_never().unwrap();
        let mut first = pin!(disk.past());
        assert!(first.as_mut().now_or_never().is_none());
        let other = disk.beside(HERE).now_or_never().expect("nobody is kept");
        let mut second = pin!(disk.past());
        assert!(second.as_mut().now_or_never().is_none());
        // Who gave up waiting is in the way of nobody.
        assert!(disk.past().now_or_never().is_none());
        one.seen();
        assert!(first.as_mut().now_or_never().is_some(), "the other one began later");
        assert!(second.as_mut().now_or_never().is_none());
        drop(other);
        assert!(second.as_mut().now_or_never().is_some());
        let swap = disk.alone(HERE).now_or_never().unwrap();
        // It had come, and begins later.
        let mut waits = pin!(disk.beside(HERE));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut third = pin!(disk.past());
        assert!(third.as_mut().now_or_never().is_none());
        drop(swap);
        assert!(third.as_mut().now_or_never().is_some());
        drop(waits.as_mut().now_or_never().unwrap());
        let mut drained = pin!(disk.drained());
        assert!(drained.as_mut().now_or_never().is_none());
        assert!(disk.past().now_or_never().is_some(), "all is seen");
        drop(one);
        assert!(drained.as_mut().now_or_never().is_some());
        assert!(disk.turns().is_empty());
    }

    #[test]
    fn an_older_change_is_waited_for_though_a_younger_one_is_over() {
        let disk = Exclusive::default();
        let old = disk.beside(HERE).now_or_never().unwrap();
        assert!(disk.past().now_or_never().is_none());
        let young = disk.beside(HERE).now_or_never().unwrap();
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
        let several = disk.beside(HERE).now_or_never().unwrap().for_several(2);
        several.seen();
        assert!(disk.alone(HERE).now_or_never().is_none());
        several.seen();
        assert!(disk.alone(HERE).now_or_never().is_some());
        assert!(disk.drained().now_or_never().is_none());
        drop(several);
        assert!(disk.drained().now_or_never().is_some());
    }
}
