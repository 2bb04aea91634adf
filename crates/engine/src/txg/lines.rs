//! Those who wait for something there is too little of: each volume's in the order in which they came, and the volumes in
//! turns.
//!
//! ```text
//!   volume a: 7 8 9 …  ──┐
//!   volume b: 12       ──┼─▶ the first of all: when it leaves, the first of the next volume is that
//!   volume c: 3 20     ──┘
//! ```
//!
//! So whoever has a single request is not behind a thousand of somebody else's, and a large one is not passed by small ones for
//! ever.
//!
//! Plain data: the lock is `Txgs`'.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tokio::sync::Notify;

/// A place in a line.
#[derive(Clone, Debug)]
pub(super) struct Ticket<T> {
    number: u64,
    /// What it waits for.
    pub(super) wants: T,
    /// Wakes who waits in it. What is told while nobody waits is not lost.
    told: Arc<Notify>,
}

impl<T> Ticket<T> {
    /// Waits until there is a reason to look again.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// There is a reason to look again.
    pub(super) fn tell(&self) {
        self.told.notify_one();
    }
}

/// See the module. Volumes go by their places in the ledger of space; the engine has none.
#[derive(Debug)]
pub(super) struct Lines<T> {
    lines: BTreeMap<Option<usize>, BTreeMap<u64, Ticket<T>>>,
    /// Those that have a line; it is the first one's turn.
    turns: VecDeque<Option<usize>>,
    next: u64,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), turns: VecDeque::new(), next: 0 }
    }
}

impl<T: Clone> Lines<T> {
    /// Nobody stands in a line.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether somebody waits for this volume.
    pub(super) fn has(&self, volume: Option<usize>) -> bool {
        self.lines.contains_key(&volume)
    }

    /// A place at the end of the volume's line.
    pub(super) fn join(&mut self, volume: Option<usize>, wants: T) -> Ticket<T> {
        let ticket = Ticket { number: self.next, wants, told: Arc::default() };
        self.next += 1;
        self.insert(volume, &ticket);
        ticket
    }

    /// It stands where it stood before.
    pub(super) fn insert(&mut self, volume: Option<usize>, ticket: &Ticket<T>) {
        let line = self.lines.entry(volume).or_default();
        if line.is_empty() {
            self.turns.push_back(volume);
        }
        line.insert(ticket.number, ticket.clone());
    }

    /// Takes it out of its line, and returns whether it stood there. If it was the first one it is the next volume's turn.
    pub(super) fn remove(&mut self, volume: Option<usize>, ticket: &Ticket<T>) -> bool {
        let was_first = self.is_first(ticket);
        let Some(line) = self.lines.get_mut(&volume) else { return false };
        let stood = line.remove(&ticket.number).is_some();
        let is_over = line.is_empty();
        if is_over {
            self.lines.remove(&volume);
        }
        if was_first {
            self.turns.pop_front();
            if !is_over {
                self.turns.push_back(volume);
            }
        } else if is_over {
            self.turns.retain(|other| *other != volume);
        }
        stood
    }

    /// The first of all, and its volume.
    pub(super) fn first(&self) -> Option<(Option<usize>, &Ticket<T>)> {
        let volume = *self.turns.front()?;
        Some((volume, self.first_of(volume)?))
    }

    /// The first of a volume.
    pub(super) fn first_of(&self, volume: Option<usize>) -> Option<&Ticket<T>> {
        self.lines.get(&volume)?.first_key_value().map(|(_, ticket)| ticket)
    }

    /// Whether it is this one's turn.
    pub(super) fn is_first(&self, ticket: &Ticket<T>) -> bool {
        self.first().is_some_and(|(_, first)| first.number == ticket.number)
    }

    /// Whether it is the first of its volume.
    pub(super) fn is_first_of(&self, volume: Option<usize>, ticket: &Ticket<T>) -> bool {
        self.first_of(volume).is_some_and(|first| first.number == ticket.number)
    }

    /// Whether it stands in its line.
    pub(super) fn stands(&self, volume: Option<usize>, ticket: &Ticket<T>) -> bool {
        self.lines.get(&volume).is_some_and(|line| line.contains_key(&ticket.number))
    }

    /// Everybody is to look again.
    pub(super) fn tell_all(&self) {
        self.lines.values().flat_map(BTreeMap::values).for_each(Ticket::tell);
    }
}
