//! Who waits for whom, as plain data: what is under way on a disk, in the order in which it came.
//!
//! Each that waits knows how many of those before it are in its way, and who goes looks at those that wait. So nobody is
//! passed by another that concerns the same bytes, and who is in nobody's way, as nearly every write, costs a place here and
//! looks at nobody.

use std::task::Waker;

use smallvec::SmallVec;

/// Bytes that a change concerns: (first byte, bytes). One range, but for UNMAP.
pub(super) type Ranges = SmallVec<[(u64, u64); 1]>;

/// As number of what has not begun.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Changes bytes, beside others of its kind that change the same.
    Beside,
    /// Changes bytes that nobody else changes meanwhile.
    Alone,
    /// Changes nothing: waits until all is seen that had begun, and keeps nobody.
    Past,
    /// Changes nothing: waits until all is over that came before, and keeps nobody.
    Drain,
}

/// When somebody is in another's way no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// It changes nothing more.
    Seen,
    Over,
}

/// Somebody who is under way, or waits to be.
pub(super) struct Turn {
    kind: Kind,
    ranges: Ranges,
    /// When it came: of two the later has the higher one.
    number: u64,
    /// When it began, by the same count.
    begun: u64,
    is_seen: bool,
    /// How many are in its way.
    before: usize,
    waker: Option<Waker>,
}

impl Turn {
    /// Until when it waits for `other`, if it does at all. That must not change as long as it waits: whoever is counted when it
    /// comes is taken off by the same rule.
    fn waits_until(&self, other: &Self) -> Option<Until> {
        match (self.kind, other.kind) {
            _ if other.number >= self.number => None,
            (_, Kind::Past | Kind::Drain) => None,
            (Kind::Past, _) => (other.begun < self.number).then_some(Until::Seen),
            (Kind::Drain, _) => Some(Until::Over),
            (Kind::Beside, Kind::Beside) => None,
            _ => meet(&self.ranges, &other.ranges).then_some(Until::Seen),
        }
    }

    /// Whether `other` is in its way now.
    fn waits_for(&self, other: &Self) -> bool {
        match self.waits_until(other) {
            None => false,
            Some(Until::Seen) => !other.is_seen,
            Some(Until::Over) => true,
        }
    }
}

/// Whether they have a byte in common.
fn meet(some: &[(u64, u64)], others: &[(u64, u64)]) -> bool {
    let have_one = |(a, a_len): (u64, u64), (b, b_len): (u64, u64)| {
        a.max(b) < a.saturating_add(a_len).min(b.saturating_add(b_len))
    };
    some.iter().any(|one| others.iter().any(|other| have_one(*one, *other)))
}

/// All that is under way, each at a place that stays its own.
#[derive(Default)]
pub(super) struct Turns {
    /// What comes or begins next has this number.
    next: u64,
    places: Vec<Option<Turn>>,
    free: Vec<usize>,
    /// Of those that change bytes alone, whom a change beside others may have to wait for: few, or none.
    strict: Vec<usize>,
    /// Of those that wait, in the order in which they came.
    waiting: Vec<usize>,
}

impl Turns {
    /// Somebody comes. Returns its place, and whether nobody is in its way.
    pub(super) fn enter(&mut self, kind: Kind, ranges: Ranges) -> (usize, bool) {
        let number = self.next;
        self.next = number.saturating_add(1);
        let mut turn = Turn { kind, ranges, number, begun: NEVER, is_seen: false, before: 0, waker: None };
        turn.before = match kind {
            Kind::Beside => {
                let strict = self.strict.iter().filter_map(|place| self.places.get(*place)?.as_ref());
                strict.filter(|other| turn.waits_for(other)).count()
            }
            Kind::Alone | Kind::Past | Kind::Drain => {
                self.places.iter().flatten().filter(|other| turn.waits_for(other)).count()
            }
        };
        let has_begun = turn.before == 0;
        if has_begun {
            turn.begun = number;
        }
        let place = self.free.pop().unwrap_or(self.places.len());
        match self.places.get_mut(place) {
            Some(free) => *free = Some(turn),
            None => self.places.push(Some(turn)),
        }
        if !has_begun {
            self.waiting.push(place);
        }
        if kind == Kind::Alone {
            self.strict.push(place);
        }
        (place, has_begun)
    }

    /// Where to leave the waker of who has this place; `None` if it has begun.
    pub(super) fn waker(&mut self, place: usize) -> Option<&mut Option<Waker>> {
        let turn = self.places.get_mut(place)?.as_mut()?;
        (turn.begun == NEVER).then_some(&mut turn.waker)
    }

    /// Who has this place changes nothing more. Returns who is to be woken, once nobody looks at this.
    pub(super) fn seen(&mut self, place: usize) -> Vec<Waker> {
        let Some(mut turn) = self.places.get_mut(place).and_then(Option::take) else { return Vec::new() };
        if turn.kind == Kind::Alone {
            self.strict.retain(|other| *other != place);
        }
        let woken = self.tell(&turn, |until| until == Until::Seen);
        turn.is_seen = true;
        if let Some(its_own) = self.places.get_mut(place) {
            *its_own = Some(turn);
        }
        woken
    }

    /// Who has this place is over, or waits no longer. Returns what was there and who is to be woken: to be dropped and done
    /// once nobody looks at this, for a waker is foreign.
    pub(super) fn leave(&mut self, place: usize) -> (Option<Turn>, Vec<Waker>) {
        let Some(turn) = self.places.get_mut(place).and_then(Option::take) else { return (None, Vec::new()) };
        self.free.push(place);
        if turn.begun == NEVER {
            self.waiting.retain(|other| *other != place);
        }
        if turn.kind == Kind::Alone {
            self.strict.retain(|other| *other != place);
        }
        let woken = self.tell(&turn, |until| until == Until::Over || !turn.is_seen);
        (Some(turn), woken)
    }

    /// Those that waited for `gone` until what `ends` says wait for one less.
    fn tell(&mut self, gone: &Turn, ends: impl Fn(Until) -> bool) -> Vec<Waker> {
        let mut woken = Vec::new();
        if self.waiting.is_empty() {
            return woken;
        }
        let Self { next, places, waiting, .. } = self;
        waiting.retain(|place| {
            let Some(turn) = places.get_mut(*place).and_then(Option::as_mut) else { return false };
            if !turn.waits_until(gone).is_some_and(&ends) {
                return true;
            }
            turn.before = turn.before.saturating_sub(1);
            if turn.before > 0 {
                return true;
            }
            turn.begun = *next;
            *next = next.saturating_add(1);
            woken.extend(turn.waker.take());
            false
        });
        woken
    }

    /// Whether nobody is there, and nothing left of those that were.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_free = self.places.iter().all(Option::is_none) && self.free.len() == self.places.len();
        is_free && self.strict.is_empty() && self.waiting.is_empty()
    }
}
