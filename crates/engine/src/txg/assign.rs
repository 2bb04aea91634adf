//! How a writer joins the open transaction group: there is space for what it announces, it is its turn, and there is room in
//! memory for it, at once or after a delay.
//!
//! What has to be waited for is decided under the lock, a step at a time, and waited for without it: then everything is looked
//! at anew.
//!
//! Who waits for space keeps its place among those who do until it is in, also while it waits for memory: nobody takes in the
//! meantime what it has found.

use std::{sync::Arc, time::Duration};

use block::VolumeError;
use tokio::time::{Instant, sleep_until};

use super::{Cost, State, Tx, Txgs, lines, queue::Ticket, slot, wish};

/// What delayed writers may have slept too long, together, before it is lost: timers go off up to a millisecond late, and
/// what is delayed by microseconds each would be slowed down to a few per millisecond.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// Transaction groups that who finds no space waits for, beyond the one that was open: so that one that was announced a moment
/// before the first was closed is known, too.
const REFUSALS: u64 = 1;

impl Txgs {
    /// Joins the open transaction group. Waits while there is too much dirty data, longer the more there is, behind who
    /// waits for the same volume already and in turns with others.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], or [`VolumeError::NotReady`] when the pool is suspended or closing.
    pub async fn assign(&self, cost: Cost) -> Result<Tx, VolumeError> {
        let arrived = Instant::now();
        let mut waiting = Waiting { txgs: self, ticket: None, short: None };
        let mut refused = None;
        loop {
            // Made before looking, so that no notification is lost in between.
            let space = self.shared.space.notified();
            match self.try_step(cost, arrived, &mut waiting, &mut refused)? {
                Step::Go(tx) => return Ok(tx),
                Step::Sleep(ticket, until) => {
                    tokio::select! {
                        biased;
                        () = ticket.told() => {}
                        () = sleep_until(until) => {}
                    }
                }
                Step::Queue(ticket) => ticket.told().await,
                Step::Space(None) => space.await,
                Step::Space(Some(ticket)) => {
                    tokio::select! {
                        biased;
                        () = ticket.told() => {}
                        () = space => {}
                    }
                }
            }
        }
    }

    /// The same if nothing has to be waited for, and nobody waits already.
    #[must_use]
    pub fn try_assign(&self, cost: Cost) -> Option<Tx> {
        let mut state = self.shared.state.lock();
        let memory @ (takes, _) = state.memory(self.volume, &cost);
        let free = state.refusing.is_none()
            && state.failing.is_none()
            && (takes == 0 || state.queue.is_empty())
            && state.promised().saturating_add(takes) <= self.shared.limits().delay_from();
        (free && self.fits(&state, cost, None)).then(|| self.join(&mut state, cost, memory))
    }

    /// `refused` is the group that was open when there was no space for the first time.
    fn try_step(
        &self,
        cost: Cost,
        arrived: Instant,
        waiting: &mut Waiting<'_>,
        refused: &mut Option<u64>,
    ) -> Result<Step, VolumeError> {
        let mut state = self.shared.state.lock();
        if let Some(error) = state.refusal() {
            return Err(error);
        }
        if !self.fits(&state, cost, waiting.short.as_ref()) {
            // Others go on: there may be space for them.
            waiting.leave_queue(&mut state);
            // What was announced is more than what will be taken: after a sync the truth is known. Others may announce
            // more meanwhile, for as long as they like; this one is not to wait for the end of it, unless what was there at
            // the last commit would do.
            let since = *refused.get_or_insert(state.open);
            let is_known = !state.is_pending(self.volume) || state.synced >= since + REFUSALS;
            let would_do = state.space.fits_alone(self.volume, &cost);
            if is_known && !would_do {
                return Err(VolumeError::NoSpace);
            }
            let place = if would_do {
                waiting.stand(&mut state, cost)
            } else {
                // More than there is: it waits for what is on its way, but nothing is kept for it, and nobody is behind it. Its
                // client may come again as often as it is refused.
                waiting.leave_line(&mut state);
                None
            };
            // Who is behind others is told when one of them is in, and asks then.
            if place.as_ref().is_none_or(|place| state.short.is_first(place)) {
                state.want_space();
                self.shared.reason.notify_one();
            }
            return Ok(Step::Space(place));
        }
        // It is there: what becomes of it while memory is waited for has not been waited for yet.
        *refused = None;
        let memory @ (takes, _) = state.memory(self.volume, &cost);
        if !waiting.is_let_in(&mut state, takes)
            && let Some(step) = self.wait_for_room(&mut state, takes, arrived, waiting)
        {
            return Ok(step);
        }
        let tx = self.join(&mut state, cost, memory);
        waiting.leave(&mut state);
        Ok(Step::Go(tx))
    }

    /// What has to be waited for before so much memory can be taken, if anything.
    fn wait_for_room(
        &self,
        state: &mut State,
        takes: u64,
        arrived: Instant,
        waiting: &mut Waiting<'_>,
    ) -> Option<Step> {
        // Under the lock: who changes them tells the first one afterwards.
        let limits = self.shared.limits();
        let is_first = match &waiting.ticket {
            Some(ticket) => state.queue.is_first(ticket),
            None => state.queue.is_empty(),
        };
        // Who takes no memory does not wait for others to get theirs.
        if takes > 0 && !is_first {
            return Some(Step::Queue(waiting.join(state, takes)));
        }
        let dirty = state.promised();
        if dirty > 0 && dirty.saturating_add(takes) > limits.dirty_max {
            // A large one that waits for little: nothing else would end its group before time is up.
            if !state.is_due(&limits) && state.groups[slot(state.open)].touched {
                state.want_open();
            }
            self.shared.reason.notify_one();
            return Some(Step::Queue(waiting.join(state, takes)));
        }
        if let Some(delay) = limits.delay(dirty) {
            // One after the other over all writers of the pool; time already spent counts, as does what the last ones
            // spent beyond their delay.
            let spent = |since: Instant| since.checked_sub(LATE).unwrap_or(since);
            let earliest = state.last_wake.map_or(arrived, |last| last.max(spent(arrived))) + delay;
            let now = Instant::now();
            if earliest > now {
                return Some(Step::Sleep(waiting.join(state, takes), earliest));
            }
            // Who waited long at the limit pays with that for himself, not for all behind him.
            state.last_wake = Some(earliest.max(spent(now)));
        }
        None
    }

    /// Whether the space `cost` announces is there, and it is the turn of who has this place among those who wait for some.
    fn fits(&self, state: &State, cost: Cost, place: Option<&Short>) -> bool {
        let (space, short) = (&state.space, &state.short);
        // Who takes nothing makes room for those who wait.
        if short.is_empty() || space.stays(self.volume, state.open, &cost) == 0 {
            return space.fits(self.volume, state.open, &cost, None);
        }
        let is_next = match place {
            Some(place) => short.is_first_of(self.volume, place),
            None => !short.has(self.volume),
        };
        let first = wish(short).filter(|first| first.volume != self.volume);
        is_next && space.fits(self.volume, state.open, &cost, first)
    }

    /// `takes` and `above` as of [`State::memory`].
    fn join(&self, state: &mut State, cost: Cost, (takes, above): (u64, u64)) -> Tx {
        let (txg, limits) = (state.open, self.shared.limits());
        let was_due = state.is_due(&limits);
        state.space.announce(self.volume, txg, &cost);
        let group = &mut state.groups[slot(txg)];
        group.holds += 1;
        group.dirty += cost.dirty;
        group.above += above;
        group.touched = true;
        state.dirty += takes;
        let is_due = !was_due && state.is_due(&limits);
        let is_scarce = state.wanted < txg && state.space.is_scarce(self.volume, txg);
        if is_scarce {
            state.wanted = txg;
        }
        if is_due || is_scarce {
            self.shared.reason.notify_one();
        }
        self.shared.steps.is_now(state.dirty);
        Tx { shared: Arc::clone(&self.shared), txg }
    }
}

impl State {
    /// Whether a sync could make room: something is announced and not yet synced, or nothing is known yet.
    fn is_pending(&self, volume: Option<usize>) -> bool {
        self.space.is_pending(volume) || self.groups.iter().any(|group| group.touched)
    }
}

/// A place among those who wait for space.
type Short = lines::Ticket<Cost>;

enum Step {
    Go(Tx),
    /// It is this one's turn, then or when less is dirty.
    Sleep(Ticket, Instant),
    /// It is not, or there is no room.
    Queue(Ticket),
    /// There is no space. Who only frees, or asks for more than there is, has no place among those who wait for some.
    Space(Option<Short>),
}

/// One who waits to be assigned. Whoever stops waiting gives up its places.
struct Waiting<'a> {
    txgs: &'a Txgs,
    ticket: Option<Ticket>,
    /// Among those who wait for space.
    short: Option<Short>,
}

impl Waiting<'_> {
    /// Its place, a new one if it has none.
    fn join(&mut self, state: &mut State, takes: u64) -> Ticket {
        let volume = self.txgs.volume;
        self.ticket.get_or_insert_with(|| state.queue.join(volume, takes)).clone()
    }

    /// Whether room for so much is kept for it.
    fn is_let_in(&mut self, state: &mut State, takes: u64) -> bool {
        let free = state.free(&self.txgs.shared.limits());
        let Some(ticket) = &mut self.ticket else { return false };
        state.queue.is_let_in(self.txgs.volume, ticket, takes, free)
    }

    /// Its place among those who wait for space, a new one if it has none.
    fn stand(&mut self, state: &mut State, cost: Cost) -> Option<Short> {
        let volume = self.txgs.volume;
        if self.short.is_none() && state.space.stays(volume, state.open, &cost) > 0 {
            self.short = Some(state.short.join(volume, cost));
        }
        self.short.clone()
    }

    fn leave_queue(&mut self, state: &mut State) {
        if let Some(ticket) = self.ticket.take() {
            let free = state.free(&self.txgs.shared.limits());
            state.queue.leave(self.txgs.volume, &ticket, free);
        }
    }

    fn leave(&mut self, state: &mut State) {
        self.leave_queue(state);
        self.leave_line(state);
    }

    /// Gives up its place among those who wait for space.
    fn leave_line(&mut self, state: &mut State) {
        let Some(place) = self.short.take() else { return };
        let volume = self.txgs.volume;
        state.short.remove(volume, &place);
        // There may be enough for the next one, and for whoever is the first of all by now.
        let next = state.short.first_of(volume);
        let first = state.short.first().map(|(_, first)| first);
        next.into_iter().chain(first).for_each(lines::Ticket::tell);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() || self.short.is_some() {
            let txgs = self.txgs;
            self.leave(&mut txgs.shared.state.lock());
        }
    }
}
