//! Writers that wait for room in memory, in [`Lines`]. The first of all is the only one that looks at how much is dirty, sleeps,
//! and is told when it is less; so room that appears wakes one of them and not all.
//!
//! Where there is room for many without a delay, one after the other would be as slow as their tasks take turns, and as
//! long as somebody waits whoever comes has to wait, too: there would be no end to it. So all who find room there are
//! told together. It is kept for them, as if it were dirty already, and others go on meanwhile.
//!
//! Plain data: the lock is `Txgs`'.

use super::lines::{self, Lines};

/// A place in the queue: bytes of memory, which are kept for it when it is let in.
pub(super) type Ticket = lines::Ticket<u64>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: Lines<u64>,
    /// Bytes of memory for those who were let in and have not gone yet.
    kept: u64,
}

impl Queue {
    /// Nobody stands in a line.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Bytes of memory that are kept for those who were let in.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// A place at the end of the volume's line.
    pub(super) fn join(&mut self, volume: Option<usize>, takes: u64) -> Ticket {
        self.lines.join(volume, takes)
    }

    /// Whether it is this one's turn.
    pub(super) fn is_first(&self, ticket: &Ticket) -> bool {
        self.lines.is_first(ticket)
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
        if !self.lines.stands(volume, ticket) && takes > ticket.wants {
            self.kept -= ticket.wants;
            ticket.wants = takes;
            self.lines.insert(volume, ticket);
            self.tell(free);
        }
        !self.lines.stands(volume, ticket)
    }

    /// Gives up a place, or what is kept, having gone or not. `free` as for [`tell`](Self::tell).
    pub(super) fn leave(&mut self, volume: Option<usize>, ticket: &Ticket, free: u64) {
        let was_first = self.is_first(ticket);
        if !self.lines.remove(volume, ticket) {
            self.kept -= ticket.wants;
        } else if !was_first {
            return;
        }
        self.tell(free);
    }

    /// There may be room for the first one, or less of a delay. All who find room together in `free` bytes, which may be
    /// taken without one, are let in.
    pub(super) fn tell(&mut self, free: u64) {
        while let Some((volume, first)) = self.lines.first() {
            first.tell();
            // Not even who takes nothing if nothing is free: it is delayed like all others.
            if self.kept.saturating_add(first.wants) >= free {
                return;
            }
            let first = first.clone();
            self.kept += first.wants;
            self.lines.remove(volume, &first);
        }
    }

    /// Everybody is to look again. Who was let in does anyway.
    pub(super) fn tell_all(&self) {
        self.lines.tell_all();
    }
}
