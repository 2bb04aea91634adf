//! Bytes of requests in flight, over all connections of all protocols: a bound, and turns.
//!
//! ```text
//!   Member (one for each connection) ── ask ──▶ there is room ──▶ held until given back
//!                                          └──▶ there is none: a place in the queue, woken when its turn has come
//! ```
//!
//! * Whoever asks takes all it needs for a request at once, before the first byte of it is read; a request that holds a
//!   part never waits for the rest. So those who hold can always finish, and those who wait hold nothing for it.
//! * First come, first served, one wish for each member: a connection with a thousand requests gets no more turns than
//!   one with two. While somebody waits, members give back what they do not need.
//! * A request larger than the whole passes when nobody holds anything.
//! * What cannot wait ([`Member::take_anyway`]: data that came unasked) is counted, and others wait longer for it.
//! * Members keep a little that they do not need while there is much room: a batch costs no shared counter.
//!
//! A client that neither takes its answers nor sends what it announced keeps its bytes. If all that is held is held by
//! such, nothing comes back: [`Gate::turns`] stands still, and whoever watches may [`Gate::let_one_pass`].

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use crate::bell::{Bell, Steps};

/// Bytes that a member may keep without need.
const SLACK: u64 = 256 << 10;

/// The bound. Sizes are in bytes.
pub struct Gate {
    max: AtomicU64,
    used: AtomicU64,
    /// Wishes in the queue.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Wish>>>,
    /// How often something was given back.
    turns: AtomicU64,
    /// Wishes that could not be met at once.
    waits: AtomicU64,
    members: AtomicUsize,
    /// What connections hold besides: memory they receive into.
    buffers: AtomicU64,
    steps: Steps,
}

/// A member's place in the queue.
#[derive(Debug)]
struct Wish {
    bytes: u64,
    granted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("max", &self.max())
            .field("used", &self.used())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate for `max` bytes.
    #[must_use]
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicU64::new(max),
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            turns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            members: AtomicUsize::new(0),
            buffers: AtomicU64::new(0),
            steps: Steps::default(),
        })
    }

    /// Rings `bell` for every `step` bytes more.
    pub fn attach(&self, bell: Arc<Bell>, step: u64) {
        self.steps.attach(bell, step);
    }

    /// Bytes that may be held.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Another bound from now on. What is held beyond it stays until it is given back.
    pub fn set_max(&self, max: u64) {
        if self.max.swap(max, SeqCst) < max {
            self.grant();
        }
    }

    /// Bytes held.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most that may be held before the bell is rung again.
    pub fn used_at_most(&self) -> u64 {
        let used = self.used();
        self.steps.at_most(used).min(self.max()).max(used)
    }

    /// Members that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Wishes that had to wait, since the start.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// How often something was given back: as long as this changes, everybody's turn will come.
    pub fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// Members.
    pub fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    /// Memory that members receive into.
    pub fn buffers(&self) -> u64 {
        self.buffers.load(Relaxed)
    }

    /// A member's part if all had the same.
    pub fn share(&self) -> u64 {
        self.max() / self.members().max(1) as u64
    }

    /// Meets the oldest wish although there is no room. False if there is none.
    pub fn let_one_pass(&self) -> bool {
        let wish = self.queue.lock().pop_front();
        wish.is_some_and(|wish| {
            self.add(wish.bytes);
            self.meet(&wish);
            true
        })
    }

    /// The bytes of the wish are taken.
    fn meet(&self, wish: &Wish) {
        self.waiting.fetch_sub(1, SeqCst);
        let mut waker = wish.waker.lock();
        wish.granted.store(true, SeqCst);
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }

    fn add(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, SeqCst).saturating_add(bytes);
        self.steps.is_now(used);
    }

    /// Takes `bytes` if there is room for them, or nobody holds anything.
    fn try_add(&self, bytes: u64) -> bool {
        let max = self.max.load(SeqCst);
        let taken = self.used.fetch_update(SeqCst, SeqCst, |used| {
            let then = used.saturating_add(bytes);
            (then <= max || used == 0).then_some(then)
        });
        if let Ok(before) = taken {
            self.steps.is_now(before.saturating_add(bytes));
        }
        taken.is_ok()
    }

    /// Meets the wishes there is room for, oldest first.
    fn grant(&self) {
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        while let Some(first) = queue.front() {
            if !self.try_add(first.bytes) {
                return;
            }
            if let Some(wish) = queue.pop_front() {
                self.meet(&wish);
            }
        }
    }

    fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let used = self.used.fetch_sub(bytes, SeqCst).saturating_sub(bytes);
        self.steps.is_now(used);
        self.turns.fetch_add(1, Relaxed);
        self.grant();
    }
}

/// A connection, or one direction of it.
#[derive(Debug)]
pub struct Member {
    gate: Arc<Gate>,
    /// Bytes taken of the gate.
    quota: u64,
    wish: Option<Arc<Wish>>,
    buffers: u64,
}

impl Member {
    /// One more.
    #[must_use]
    pub fn new(gate: Arc<Gate>) -> Self {
        gate.members.fetch_add(1, Relaxed);
        Self { gate, quota: 0, wish: None, buffers: 0 }
    }

    /// The gate.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Whether a request of `bytes` may begin, beside the `held` bytes of those that have. If not, the member has a place
    /// in the queue: it asks again when [`poll_turn`](Self::poll_turn) says so.
    pub fn ask(&mut self, held: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        if self.wish.is_some() && !self.has_turn() {
            // What it has finished meanwhile is for whoever is first, which may be itself.
            self.keep(held);
            if !self.has_turn() {
                return false;
            }
        }
        let need = held.saturating_add(bytes);
        if self.turn_came() && need <= self.quota {
            return true;
        }
        if self.gate.waiting.load(SeqCst) > 0 {
            // Others wait: what is not needed is theirs, and the next request takes its turn.
            self.keep(held);
        } else if need <= self.quota {
            return true;
        }
        if self.gate.waiting.load(SeqCst) == 0 {
            let more = need.saturating_sub(self.quota);
            let (used, max) = (self.gate.used.load(SeqCst), self.gate.max.load(SeqCst));
            let slack = if used.saturating_add(more).saturating_add(SLACK) <= max / 2 { SLACK } else { 0 };
            if self.gate.try_add(more.saturating_add(slack)) {
                self.quota = self.quota.saturating_add(more).saturating_add(slack);
                return true;
            }
        }
        // So that the wish is for all of the request, whatever becomes of what is not needed now.
        self.keep(held);
        let more = need.saturating_sub(self.quota);
        let mut queue = self.gate.queue.lock();
        // Counted before looking: whoever gives back in between looks at the queue.
        self.gate.waiting.fetch_add(1, SeqCst);
        if queue.is_empty() && self.gate.try_add(more) {
            self.gate.waiting.fetch_sub(1, SeqCst);
            self.quota = self.quota.saturating_add(more);
            return true;
        }
        let wish = Arc::new(Wish { bytes: more, granted: AtomicBool::new(false), waker: Mutex::default() });
        queue.push_back(Arc::clone(&wish));
        drop(queue);
        self.gate.waits.fetch_add(1, Relaxed);
        self.wish = Some(wish);
        false
    }

    /// The wish, if its turn has come, becomes quota.
    fn turn_came(&mut self) -> bool {
        let came = self.wish.as_ref().is_some_and(|wish| wish.granted.load(SeqCst));
        if came && let Some(wish) = self.wish.take() {
            self.quota = self.quota.saturating_add(wish.bytes);
        }
        came
    }

    /// `bytes` more are held, whether there is room or not.
    pub fn take_anyway(&mut self, bytes: u64) {
        self.gate.add(bytes);
        self.quota = self.quota.saturating_add(bytes);
    }

    /// This is what is held now: what was taken beyond it goes back, what is held beyond that is taken.
    pub fn settle(&mut self, held: u64) {
        if held > self.quota {
            self.take_anyway(held.saturating_sub(self.quota));
        } else if held == 0 || self.quota.saturating_sub(held) > SLACK || self.gate.waiting.load(Relaxed) > 0
        {
            self.keep(held);
        }
    }

    fn keep(&mut self, held: u64) {
        if self.wish.as_ref().is_some_and(|wish| wish.granted.load(SeqCst)) {
            return; // it is just about to be used
        }
        let back = self.quota.saturating_sub(held);
        if back > 0 {
            self.quota = held;
            self.gate.give(back);
        }
    }

    /// Whether its turn has come: it holds what it wished for, and should ask again.
    pub fn has_turn(&self) -> bool {
        self.wish.as_ref().is_some_and(|wish| wish.granted.load(SeqCst))
    }

    /// Whether it is in the queue.
    pub fn is_waiting(&self) -> bool {
        self.wish.is_some()
    }

    /// Ready when the wish can be had: ask again. Pending as well when there is none.
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(wish) = &self.wish else { return Poll::Pending };
        let mut waker = wish.waker.lock();
        if wish.granted.load(SeqCst) {
            return Poll::Ready(());
        }
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Gives up its place in the queue: it wants nothing more.
    pub fn withdraw(&mut self) {
        if self.turn_came() {
            return; // given back when it is settled
        }
        let Some(wish) = self.wish.take() else { return };
        let mut queue = self.gate.queue.lock();
        if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, &wish)) {
            queue.remove(at);
            self.gate.waiting.fetch_sub(1, SeqCst);
            drop(queue);
            // It may have been in the way of a smaller one.
            self.gate.grant();
        } else {
            drop(queue);
            self.quota = self.quota.saturating_add(wish.bytes);
        }
    }

    /// Memory it receives into, in bytes.
    pub fn set_buffers(&mut self, bytes: u64) {
        if bytes != self.buffers {
            self.gate.buffers.fetch_add(bytes.wrapping_sub(self.buffers), Relaxed);
            self.buffers = bytes;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.withdraw();
        self.set_buffers(0);
        self.gate.members.fetch_sub(1, Relaxed);
        self.gate.give(std::mem::take(&mut self.quota));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(member: &mut Member) -> bool {
        member.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn who_waits_gets_its_turn_in_order_and_nobody_holds_a_part() {
        let gate = Gate::new(1000);
        let mut members: Vec<Member> = (0..4).map(|_| Member::new(Arc::clone(&gate))).collect();
        assert!(members[0].ask(0, 900));
        assert!(!members[1].ask(0, 500), "there is no room");
        assert!(!members[2].ask(0, 50), "there is, but somebody came before");
        assert!(!members[3].ask(0, 600));
        assert_eq!((gate.used(), gate.waiting(), gate.waits()), (900, 3, 3));
        assert!(!turn(&mut members[1]));
        members[0].settle(0);
        assert!(turn(&mut members[1]) && turn(&mut members[2]) && !turn(&mut members[3]));
        assert!(members[1].ask(0, 500) && members[2].ask(0, 50));
        assert_eq!((gate.used(), gate.waiting()), (550, 1));
        assert!(!members[0].ask(0, 1), "behind the last one");
        members[1].settle(0);
        assert!(members[3].ask(0, 600) && members[0].ask(0, 1));
        drop(members);
        assert_eq!((gate.used(), gate.waiting(), gate.members()), (0, 0, 0));
    }

    #[test]
    fn while_others_wait_nobody_lives_on_what_it_has_had() {
        let gate = Gate::new(1000);
        let mut greedy = Member::new(Arc::clone(&gate));
        let mut other = Member::new(Arc::clone(&gate));
        assert!(greedy.ask(0, 500) && greedy.ask(500, 500));
        assert!(!other.ask(0, 400));
        // One of the two is done, and the next is asked for before anything was settled.
        assert!(!greedy.ask(500, 500), "the other one is first");
        assert!(turn(&mut other) && other.ask(0, 400));
        assert_eq!(gate.used(), 900);
        other.settle(0);
        assert!(greedy.ask(500, 500));
        // Who waits itself does not go on with what it has done meanwhile, either.
        assert!(!greedy.ask(1000, 500) && !other.ask(0, 300));
        assert!(greedy.ask(500, 500), "now it is first in the queue, with room");
        assert!(!greedy.ask(1000, 500));
        assert!(!greedy.ask(600, 100), "room for the other one");
        assert!(turn(&mut other) && other.ask(0, 300));
        assert_eq!((gate.used(), gate.waiting()), (900, 1));
        assert!(greedy.ask(600, 0), "what takes nothing never waits");
    }

    #[test]
    fn a_request_larger_than_all_passes_alone() {
        let gate = Gate::new(1000);
        let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
        assert!(two.ask(0, 10));
        assert!(!one.ask(0, 5000));
        assert!(!two.ask(10, 10), "it cannot be overtaken for ever");
        two.settle(0);
        assert!(one.ask(0, 5000), "nobody holds anything");
        one.settle(0);
        assert!(two.ask(0, 10), "its wish was met");
        two.settle(0);
        assert_eq!(gate.used(), 0);
    }

    #[test]
    fn what_came_unasked_is_counted_and_others_wait_for_it() {
        let gate = Gate::new(1000);
        let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
        one.take_anyway(1500);
        assert!(!two.ask(0, 100));
        one.settle(1000);
        assert!(!turn(&mut two), "less is not yet room enough");
        one.settle(0);
        assert!(turn(&mut two));
    }

    #[test]
    fn if_nothing_comes_back_one_may_be_let_through() {
        let gate = Gate::new(1000);
        let (mut stalled, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
        assert!(stalled.ask(0, 1000) && !two.ask(0, 300));
        let turns = gate.turns();
        assert_eq!(gate.turns(), turns);
        assert!(gate.let_one_pass() && !gate.let_one_pass());
        assert!(turn(&mut two) && two.ask(0, 300));
        assert_eq!(gate.used(), 1300);
    }

    #[test]
    fn a_larger_bound_lets_those_in_who_wait() {
        let gate = Gate::new(100);
        let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
        assert!(one.ask(0, 100) && !two.ask(0, 100));
        gate.set_max(50);
        assert!(!turn(&mut two));
        gate.set_max(200);
        assert!(turn(&mut two));
        two.withdraw();
        two.settle(0);
        assert_eq!(gate.used(), 100);
    }

    #[test]
    fn whoever_leaves_the_queue_makes_way() {
        let gate = Gate::new(1000);
        let mut members: Vec<Member> = (0..3).map(|_| Member::new(Arc::clone(&gate))).collect();
        assert!(members[0].ask(0, 900));
        assert!(!members[1].ask(0, 500) && !members[2].ask(0, 100));
        drop(members.remove(1));
        assert!(turn(&mut members[1]));
        drop(members);
        assert_eq!((gate.used(), gate.waiting(), gate.members()), (0, 0, 0));
    }

    /// Threads that take and give back as fast as they can: none is left waiting, and the bound holds.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "races are what is tested")]
    fn nobody_is_forgotten_however_they_meet() {
        use std::{sync::mpsc, task::Wake, time::Duration};
        struct Tell(mpsc::Sender<()>);
        impl Wake for Tell {
            fn wake(self: Arc<Self>) {
                // Nobody listens any more: it has its turn.
                let _gone = self.0.send(());
            }
        }
        let gate = Gate::new(1000);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let gate = Arc::clone(&gate);
                scope.spawn(move || {
                    let (tell, hear) = mpsc::channel();
                    let waker = Waker::from(Arc::new(Tell(tell)));
                    let mut member = Member::new(Arc::clone(&gate));
                    for round in 0..2000_u64 {
                        let bytes = (round * 37 + thread * 101) % 700 + 1;
                        while !member.ask(0, bytes) {
                            if member.poll_turn(&mut Context::from_waker(&waker)).is_pending() {
                                hear.recv_timeout(Duration::from_secs(30)).expect("its turn comes");
                            }
                        }
                        assert!(gate.used() <= 1000);
                        member.settle(0);
                    }
                });
            }
        });
        assert_eq!((gate.used(), gate.waiting()), (0, 0));
    }
}
