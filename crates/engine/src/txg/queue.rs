//! Writers that wait for room: each volume's in the order in which they came, and the volumes in turns.
//!
//! ```text
//!   volume a: 7 8 9 …  ──┐
//!   volume b: 12       ──┼─▶ first: the only one that looks at how much is dirty, sleeps, and is told when it is less
//!   volume c: 3 20     ──┘      └── leaves ──▶ the first of the next volume is told
//! ```
//!
//! So room that appears wakes one of them and not all, whoever has a single request is not behind a thousand of somebody
//! else's, and a large one is not passed by small ones for ever.
//!
//! Plain data: the lock is `Txgs`'.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tokio::sync::Notify;

/// A place in the queue.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    number: u64,
    /// Wakes who waits in it. What is told while nobody waits is not lost.
    told: Arc<Notify>,
}

impl Ticket {
    /// Waits until there is a reason to look again.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }
}

/// See the module. Volumes go by their places in the ledger of space; the engine has none.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: BTreeMap<Option<usize>, BTreeMap<u64, Ticket>>,
    /// Those that have a line; it is the first one's turn.
    turns: VecDeque<Option<usize>>,
    next: u64,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// A place at the end of the volume's line.
    pub(super) fn join(&mut self, volume: Option<usize>) -> Ticket {
        let ticket = Ticket { number: self.next, told: Arc::default() };
        self.next += 1;
        let line = self.lines.entry(volume).or_default();
        if line.is_empty() {
            self.turns.push_back(volume);
        }
        line.insert(ticket.number, ticket.clone());
        ticket
    }

    fn first(&self) -> Option<&Ticket> {
        self.lines.get(self.turns.front()?)?.first_key_value().map(|(_, ticket)| ticket)
    }

    /// Whether it is this one's turn.
    pub(super) fn is_first(&self, ticket: &Ticket) -> bool {
        self.first().is_some_and(|first| first.number == ticket.number)
    }

    /// Gives up a place, having gone or not. If it was the first one it is the next volume's turn.
    pub(super) fn leave(&mut self, volume: Option<usize>, ticket: &Ticket) {
        let was_first = self.is_first(ticket);
        let Some(line) = self.lines.get_mut(&volume) else { return };
        line.remove(&ticket.number);
        if line.is_empty() {
            self.lines.remove(&volume);
            self.turns.retain(|other| *other != volume);
        } else if was_first {
            self.turns.rotate_left(1);
        }
        if was_first {
            self.tell_first();
        }
    }

    /// There may be room for the first one, or less of a delay.
    pub(super) fn tell_first(&self) {
        if let Some(first) = self.first() {
            first.told.notify_one();
        }
    }

    /// Everybody is to look again.
    pub(super) fn tell_all(&self) {
        self.lines.values().flat_map(BTreeMap::values).for_each(|ticket| ticket.told.notify_one());
    }
}
