//! Writers that wait for room: each volume's in the order in which they came, and the volumes in turns.
//!
//! ```text
//!   volume a: 7 8 9 …  ──┐
//!   volume b: 12       ──┼─▶ first: the only one that looks at how much is dirty, sleeps, and is told when it is less
//!   volume c: 3 20     ──┘      ├── leaves ──▶ the first of the next volume is told
//!                               └── finds room where nobody is delayed ──▶ let in, and the next one, and so on
//! ```
//!
//! So room that appears wakes one of them and not all, whoever has a single request is not behind a thousand of somebody
//! else's, and a large one is not passed by small ones for ever.
//!
//! Where there is room for many without a delay, one after the other would be as slow as their tasks take turns, and as
//! long as somebody waits whoever comes has to wait, too: there would be no end to it. So all who find room there are
//! told together. It is kept for them, as if it were dirty already, and others go on meanwhile.
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
    /// Bytes of memory, which are kept for it when it is let in.
    takes: u64,
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
    /// Bytes of memory for those who were let in and have not gone yet.
    kept: u64,
}

impl Queue {
    /// Nobody stands in a line.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Bytes of memory that are kept for those who were let in.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// A place at the end of the volume's line.
    pub(super) fn join(&mut self, volume: Option<usize>, takes: u64) -> Ticket {
        let ticket = Ticket { number: self.next, takes, told: Arc::default() };
        self.next += 1;
        self.insert(volume, &ticket);
        ticket
    }

    fn insert(&mut self, volume: Option<usize>, ticket: &Ticket) {
        let line = self.lines.entry(volume).or_default();
        if line.is_empty() {
            self.turns.push_back(volume);
        }
        line.insert(ticket.number, ticket.clone());
    }

    /// Takes it out of its line, and returns whether it stood there. If it was the first one it is the next volume's turn.
    fn remove(&mut self, volume: Option<usize>, ticket: &Ticket) -> bool {
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

    fn first(&self) -> Option<&Ticket> {
        self.lines.get(self.turns.front()?)?.first_key_value().map(|(_, ticket)| ticket)
    }

    /// Whether it is this one's turn.
    pub(super) fn is_first(&self, ticket: &Ticket) -> bool {
        self.first().is_some_and(|first| first.number == ticket.number)
    }

    fn stands(&self, volume: Option<usize>, ticket: &Ticket) -> bool {
        self.lines.get(&volume).is_some_and(|line| line.contains_key(&ticket.number))
    }

    /// Whether it was let in, and may take so much. If less is kept for it, because it takes more in a later transaction
    /// group, it stands where it stood before. `free` as for [`tell`](Self::tell).
    pub(super) fn is_let_in(
        &mut self,
        volume: Option<usize>,
        ticket: &mut Ticket,
        takes: u64,
        free: u64,
    ) -> bool {
        if !self.stands(volume, ticket) && takes > ticket.takes {
            self.kept -= ticket.takes;
            ticket.takes = takes;
            self.insert(volume, ticket);
            self.tell(free);
        }
        !self.stands(volume, ticket)
    }

    /// Gives up a place, or what is kept, having gone or not. `free` as for [`tell`](Self::tell).
    pub(super) fn leave(&mut self, volume: Option<usize>, ticket: &Ticket, free: u64) {
        let was_first = self.is_first(ticket);
        if !self.remove(volume, ticket) {
            self.kept -= ticket.takes;
        } else if !was_first {
            return;
        }
        self.tell(free);
    }

    /// There may be room for the first one, or less of a delay. All who find room together in `free` bytes, which may be
    /// taken without one, are let in.
    pub(super) fn tell(&mut self, free: u64) {
        while let (Some(&volume), Some(first)) = (self.turns.front(), self.first()) {
            first.told.notify_one();
            // Not even who takes nothing if nothing is free: it is delayed like all others.
            if self.kept.saturating_add(first.takes) >= free {
                return;
            }
            let first = first.clone();
            self.kept += first.takes;
            self.remove(volume, &first);
        }
    }

    /// Everybody is to look again. Who was let in does anyway.
    pub(super) fn tell_all(&self) {
        self.lines.values().flat_map(BTreeMap::values).for_each(|ticket| ticket.told.notify_one());
    }
}
