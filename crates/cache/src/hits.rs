//! Hits, noted without a lock.
//!
//! A policy is changed under its cache's lock, by misses, which wait for a disk anyway. A hit must not take that
//! lock. So whoever serves hits (a connection's task) has a buffer of its own and notes the [`Slot`] there: one
//! addition and one store to memory that no other core writes. When half of it is full somebody who gets the lock
//! without waiting plays the notes to the policy in their order; misses do so too.
//!
//! What can be lost: a note that is overwritten before anybody had time for it, and a note for a slot that has gone to
//! another block meanwhile. Both cost a policy a little knowledge and nobody a wrong byte.

use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::policy::Slot;

const NOTES: usize = 128;
/// No note. Slots are below.
const NONE: u32 = u32::MAX;

/// One noter's hits.
#[derive(Debug)]
#[repr(align(128))] // two cache lines: neighbours in an array do not share one
pub struct HitBuffer {
    notes: [AtomicU32; NOTES],
    /// Notes ever made.
    made: AtomicUsize,
    /// Notes ever played.
    played: AtomicUsize,
}

impl Default for HitBuffer {
    fn default() -> Self {
        Self {
            notes: std::array::from_fn(|_| AtomicU32::new(NONE)),
            made: AtomicUsize::new(0),
            played: AtomicUsize::new(0),
        }
    }
}

impl HitBuffer {
    /// Notes it holds: half of it is a batch worth taking a lock for.
    pub const NOTES: usize = NOTES;

    /// Notes a hit. True if it is time to [`drain`](Self::drain), should the policy's lock be free.
    #[inline]
    pub fn note(&self, slot: Slot) -> bool {
        let at = self.made.fetch_add(1, Relaxed);
        self.notes[at % NOTES].store(slot.0, Release);
        at.wrapping_sub(self.played.load(Relaxed)) >= NOTES / 2
    }

    /// Takes the notes out, oldest first. For whoever holds the policy's lock: two at a time would mix their order.
    pub fn drain(&self, mut each: impl FnMut(Slot)) {
        let made = self.made.load(Relaxed);
        let waiting = made.wrapping_sub(self.played.load(Relaxed)).min(NOTES);
        for back in (1..=waiting).rev() {
            let slot = self.notes[made.wrapping_sub(back) % NOTES].swap(NONE, Relaxed);
            if slot != NONE {
                each(Slot(slot));
            }
        }
        self.played.store(made, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(buffer: &HitBuffer) -> Vec<u32> {
        let mut slots = Vec::new();
        buffer.drain(|slot| slots.push(slot.0));
        slots
    }

    #[test]
    fn notes_come_out_once_and_in_order() {
        let buffer = HitBuffer::default();
        assert_eq!(drained(&buffer), []);
        for round in 0..1000 {
            let noted: Vec<u32> = (0..round % NOTES as u32).map(|n| n * 7 + round).collect();
            noted.iter().for_each(|slot| {
                buffer.note(Slot(*slot));
            });
            assert_eq!(drained(&buffer), noted);
        }
    }

    #[test]
    fn it_asks_to_be_drained_in_time_and_forgets_the_oldest_otherwise() {
        let buffer = HitBuffer::default();
        let asked = (0..NOTES as u32).position(|n| buffer.note(Slot(n)));
        assert_eq!(asked, Some(NOTES / 2));
        (asked.unwrap() as u32 + 1..300).for_each(|n| {
            buffer.note(Slot(n));
        });
        assert_eq!(drained(&buffer), (300 - NOTES as u32..300).collect::<Vec<_>>());
    }
}
