//! One taker of a gate: what it holds, and its place in the queue.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll},
};

use parking_lot::Mutex;

use super::{Client, Gate, SLACK, Wish, watch::Seat};

/// A connection, or one direction of it.
#[derive(Debug)]
pub struct Member {
    gate: Arc<Gate>,
    client: Arc<Client>,
    /// Where those who watch find what it holds.
    seat: Arc<Seat>,
    /// Bytes taken of the gate.
    quota: u64,
    wish: Option<Arc<Wish>>,
    buffers: u64,
    /// It is one of those among whom the gate is shared.
    has_share: bool,
}

impl Member {
    /// One more, of a client of whom nothing is known.
    #[must_use]
    pub fn new(gate: Arc<Gate>) -> Self {
        Self::of(gate, &Client::new(None, "somebody"))
    }

    /// One more, of that client.
    #[must_use]
    pub fn of(gate: Arc<Gate>, client: &Arc<Client>) -> Self {
        let mut member = Self::guest(gate, client);
        member.join();
        member
    }

    /// The same of one that has nothing to do here, or not yet: nobody's [share](Gate::share) is smaller for it. Strangers can
    /// be many.
    #[must_use]
    pub fn guest(gate: Arc<Gate>, client: &Arc<Client>) -> Self {
        let seat = gate.seats.lock().enter(Arc::clone(client));
        Self { gate, client: Arc::clone(client), seat, quota: 0, wish: None, buffers: 0, has_share: false }
    }

    /// A guest is one of the others from now on.
    pub fn join(&mut self) {
        if !std::mem::replace(&mut self.has_share, true) {
            self.gate.members.fetch_add(1, Relaxed);
        }
    }

    /// Whose it is.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Writes down, for those who watch, how far the client is: of what is held, `owed` bytes wait for it (it is to send
    /// them, or to take them), and `moved` have come and gone in all.
    pub fn note(&self, owed: u64, moved: u64) {
        self.seat.note(owed, moved);
    }

    fn set_quota(&mut self, bytes: u64) {
        self.quota = bytes;
        self.seat.holds(bytes);
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
        if let Some(wished) = self.turn_came()
            && (need <= self.quota || bytes <= wished)
        {
            // The turn is for this request: what is held has become more while it waited (answers that have no room of their
            // own, as headers), and who would send it to the end of the queue for that never let it pass.
            self.take_anyway(need.saturating_sub(self.quota));
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
            if self.gate.try_add(more.saturating_add(slack), &self.client) {
                self.set_quota(self.quota.saturating_add(more).saturating_add(slack));
                return true;
            }
        }
        // So that the wish is for all of the request, whatever becomes of what is not needed now.
        self.keep(held);
        let more = need.saturating_sub(self.quota);
        let mut queue = self.gate.queue.lock();
        // Counted before looking: whoever gives back in between looks at the queue.
        self.gate.waiting.fetch_add(1, SeqCst);
        if queue.wishes.is_empty() && self.gate.try_add(more, &self.client) {
            self.gate.waiting.fetch_sub(1, SeqCst);
            drop(queue);
            self.set_quota(self.quota.saturating_add(more));
            return true;
        }
        let wish = Arc::new(Wish {
            bytes: more,
            client: Arc::clone(&self.client),
            granted: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        let is_first = queue.wishes.is_empty();
        let may_pass = !is_first && (self.gate.aside() > 0 || !queue.held.is_empty());
        queue.wishes.push_back(Arc::clone(&wish));
        drop(queue);
        if may_pass {
            // There may be room that those before it must not have.
            self.gate.grant();
        }
        self.gate.waits.fetch_add(1, Relaxed);
        self.wish = Some(wish);
        self.turn_came().is_some()
    }

    /// The wish, if its turn has come, becomes quota: so many bytes.
    fn turn_came(&mut self) -> Option<u64> {
        let wish = self.wish.take_if(|wish| wish.granted.load(SeqCst))?;
        self.set_quota(self.quota.saturating_add(wish.bytes));
        Some(wish.bytes)
    }

    /// `bytes` more are held, whether there is room or not.
    pub fn take_anyway(&mut self, bytes: u64) {
        self.gate.add(bytes);
        self.set_quota(self.quota.saturating_add(bytes));
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

    /// What was taken beyond what is held goes back. The bytes of a wish that was met are no part of that yet: they wait for
    /// [`ask`](Self::ask).
    fn keep(&mut self, held: u64) {
        let back = self.quota.saturating_sub(held);
        if back > 0 {
            self.set_quota(held);
            self.seat.gave(back);
            self.gate.give(back, &self.client);
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
        if self.turn_came().is_some() {
            return; // given back when it is settled
        }
        let Some(wish) = self.wish.take() else { return };
        let mut queue = self.gate.queue.lock();
        if let Some(at) = queue.wishes.iter().position(|other| Arc::ptr_eq(other, &wish)) {
            queue.wishes.remove(at);
            self.gate.waiting.fetch_sub(1, SeqCst);
            drop(queue);
            // It may have been in the way of a smaller one.
            self.gate.grant();
        } else {
            drop(queue);
            self.set_quota(self.quota.saturating_add(wish.bytes));
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
        if self.has_share {
            self.gate.members.fetch_sub(1, Relaxed);
        }
        self.gate.seats.lock().leave(&self.seat);
        self.gate.give(std::mem::take(&mut self.quota), &self.client);
    }
}
