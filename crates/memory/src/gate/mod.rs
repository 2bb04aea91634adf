//! Bytes of requests in flight, over all connections of all protocols: a bound, and turns.
//!
//! ```text
//!   Member (one for each connection) ── ask ──▶ there is room ──▶ held until given back
//!                                          └──▶ there is none: a place in the queue, woken when its turn has come
//!   watch (ten times a second while somebody waits): who holds bytes and does not go on ──▶ set aside ──▶ expelled
//! ```
//!
//! * Whoever asks takes all it needs for a request at once, before the first byte of it is read; a request that holds a
//!   part never waits for the rest. So those who hold can always finish, and those who wait hold nothing for it.
//! * First come, first served, one wish for each member: a connection with a thousand requests gets no more turns than
//!   one with two. While somebody waits, members give back what they do not need.
//! * A request larger than the whole passes when nobody holds anything, but for what is set aside (below).
//! * What cannot wait ([`Member::take_anyway`]) is counted, and others wait longer for it.
//! * Members keep a little that they do not need while there is much room: a batch costs no shared counter.
//!
//! A client that neither takes its answers nor sends what it announced keeps its bytes. So that it is in nobody's way,
//! whoever watches calls [`Gate::watch`] (`watch.rs`): what does not move for a second others may use once more, who owes
//! something for ten is expelled, and one address does not get more than half while others wait. All of that is found
//! out by looking at what members write down for themselves: nobody else's memory is touched by a request. If nothing
//! comes back even so, [`Gate::turns`] stands still, and there is [`Gate::let_one_pass`].
//!
//! [`Gate::hall`] is a smaller gate, for what cannot wait at the large one: data that comes unasked, while it is received.
//! A connection that waits there reads nothing, also not what others, or itself, wait for at the large one; but who has
//! passed the hall needs nothing more than the bytes that follow, so that the hall is never in want of the large one.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::Waker,
};

use parking_lot::Mutex;

use self::{client::Standing, watch::Seats};
use crate::bell::{Bell, Steps};

mod client;
mod member;
mod watch;

pub use self::{
    client::Client,
    member::Member,
    watch::{Expelled, Watched},
};

/// Bytes that a member may keep without need.
const SLACK: u64 = 256 << 10;

/// Of the large gate, what the hall has.
const HALL_PART: u64 = 4;
/// And at least: some of the longest segments.
const HALL_MIN: u64 = 1 << 20;

/// The bound. Sizes are in bytes.
pub struct Gate {
    max: AtomicU64,
    /// Of what is held, what counts as not held: that much more may be.
    aside: AtomicU64,
    used: AtomicU64,
    /// Wishes in the queue.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    /// How often something was given back.
    turns: AtomicU64,
    /// Wishes that could not be met at once.
    waits: AtomicU64,
    members: AtomicUsize,
    /// What connections hold besides: memory they receive into.
    buffers: AtomicU64,
    steps: Steps,
    seats: Mutex<Seats>,
    /// See the module; a hall has none of its own.
    hall: Option<Arc<Self>>,
}

/// Who waits, in the order of arrival.
#[derive(Debug, Default)]
struct Queue {
    wishes: VecDeque<Arc<Wish>>,
    /// While members of several addresses wait: what each address held at the last look, and got and gave since.
    held: BTreeMap<IpAddr, u64>,
}

impl Queue {
    /// The client holds that much less.
    fn give(&mut self, bytes: u64, client: &Client) {
        if let Some(held) = client.peer().and_then(|peer| self.held.get_mut(&peer)) {
            *held = held.saturating_sub(bytes);
        }
    }

    /// Takes out the wish at `at`: it is met.
    fn take(&mut self, at: usize) -> Option<Arc<Wish>> {
        let wish = self.wishes.remove(at)?;
        if let Some(held) = wish.client.peer().and_then(|peer| self.held.get_mut(&peer)) {
            *held = held.saturating_add(wish.bytes);
        }
        Some(wish)
    }
}

/// A member's place in the queue.
#[derive(Debug)]
struct Wish {
    bytes: u64,
    client: Arc<Client>,
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
        let hall = Arc::new(Self::with_hall(hall_of(max), None));
        Arc::new(Self::with_hall(max, Some(hall)))
    }

    fn with_hall(max: u64, hall: Option<Arc<Self>>) -> Self {
        Self {
            max: AtomicU64::new(max),
            aside: AtomicU64::new(0),
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            turns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            members: AtomicUsize::new(0),
            buffers: AtomicU64::new(0),
            steps: Steps::default(),
            seats: Mutex::default(),
            hall,
        }
    }

    /// The gate for what is received unasked; see the module.
    #[must_use]
    pub fn hall(self: &Arc<Self>) -> &Arc<Self> {
        self.hall.as_ref().unwrap_or(self)
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
        if let Some(hall) = &self.hall {
            hall.set_max(hall_of(max));
        }
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
        self.steps.at_most(used).min(self.max().saturating_add(self.aside())).max(used)
    }

    /// Bytes that are held and set aside.
    pub fn aside(&self) -> u64 {
        self.aside.load(Relaxed)
    }

    /// Members that wait, in the hall as well.
    pub fn waiting(&self) -> usize {
        let hall = self.hall.as_ref().map_or(0, |hall| hall.waiting());
        self.waiting.load(Relaxed).saturating_add(hall)
    }

    /// Wishes that had to wait, since the start.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// How often something was given back: as long as this changes, everybody's turn will come.
    pub fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// Members, without guests.
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
        let mut queue = self.queue.lock();
        let Some(wish) = self.next_of(&queue).and_then(|at| queue.take(at)) else { return false };
        self.add(wish.bytes);
        self.meet(&wish);
        true
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

    /// How a client stands here.
    fn standing<'c>(&self, client: &'c Client) -> &'c Standing {
        match &self.hall {
            Some(_) => &client.at_large,
            None => &client.in_hall,
        }
    }

    /// Whose turn it is: the oldest wish's, unless its address has its half or what its client holds is set aside, and
    /// somebody else waits of whom neither is true.
    fn next_of(&self, queue: &Queue) -> Option<usize> {
        let (half, lends) = (self.half(), self.aside() > 0);
        let first = queue.wishes.front()?;
        let is_heavy = |wish: &Wish| {
            let held = wish.client.peer().and_then(|peer| queue.held.get(&peer)).copied().unwrap_or(0);
            (held > 0 && held.saturating_add(wish.bytes) > half)
                || (lends && self.standing(&wish.client).is_heavy())
        };
        let waits = |wish: &Wish| is_heavy(wish) || self.standing(&wish.client).is_aside();
        if !waits(first) {
            return Some(0);
        }
        // A smaller wish of the same address does not go past a larger one.
        let is_heavy = is_heavy(first);
        let is_alike = |wish: &Wish| is_heavy && wish.client.peer() == first.client.peer();
        queue.wishes.iter().position(|wish| !waits(wish) && !is_alike(wish)).or(Some(0))
    }

    /// What one address may hold while others wait.
    fn half(&self) -> u64 {
        self.max() / 2
    }

    /// Takes `bytes` if there is room for them, or nobody holds more than is set aside. That is for others than those whose it
    /// is, and half of it for other addresses than one that holds much: if some of its clients stall, the next may, too.
    fn try_add(&self, bytes: u64, client: &Client) -> bool {
        let standing = self.standing(client);
        let aside = match (standing.is_aside(), standing.is_heavy()) {
            (true, _) => 0,
            (false, true) => self.aside.load(SeqCst) / 2,
            (false, false) => self.aside.load(SeqCst),
        };
        let max = self.max.load(SeqCst).saturating_add(aside);
        let taken = self.used.fetch_update(SeqCst, SeqCst, |used| {
            let then = used.saturating_add(bytes);
            (then <= max || used <= aside).then_some(then)
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
        while let Some(at) = self.next_of(&queue) {
            if !queue.wishes.get(at).is_some_and(|wish| self.try_add(wish.bytes, &wish.client)) {
                return;
            }
            if let Some(wish) = queue.take(at) {
                self.meet(&wish);
            }
        }
    }

    fn give(&self, bytes: u64, client: &Client) {
        if bytes == 0 {
            return;
        }
        let used = self.used.fetch_sub(bytes, SeqCst).saturating_sub(bytes);
        self.steps.is_now(used);
        self.turns.fetch_add(1, Relaxed);
        if self.waiting.load(SeqCst) > 0 {
            self.queue.lock().give(bytes, client);
            self.grant();
        }
    }
}

/// What the hall of a gate has.
fn hall_of(max: u64) -> u64 {
    (max / HALL_PART).max(HALL_MIN)
}

#[cfg(test)]
mod tests;
