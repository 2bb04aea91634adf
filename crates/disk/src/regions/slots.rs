//! Which slots of a region: a bit for each.

use std::ops::Range;

use super::REGION;
use crate::shelves::ALIGN;

/// Words of a set of slots: the smallest have a page.
const WORDS: usize = REGION / ALIGN / 64;

/// A set of the slots of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots([u64; WORDS]);

impl Slots {
    pub(super) fn first(count: usize) -> Self {
        let mut all = Self::default();
        (0..count).for_each(|slot| all.insert(slot));
        all
    }

    pub(super) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, slot: usize) -> bool {
        let (word, bit) = (&mut self.0[slot / 64], 1 << (slot % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    pub(super) fn lowest(&self) -> Option<usize> {
        self.0
            .iter()
            .enumerate()
            .find(|(_, word)| **word != 0)
            .map(|(n, word)| n * 64 + word.trailing_zeros() as usize)
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Neighbours together.
    pub(super) fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut rest = *self;
        while let Some(slot) = rest.lowest() {
            rest.remove(slot);
            match runs.last_mut().filter(|run| run.end == slot) {
                Some(run) => run.end += 1,
                None => runs.push(slot..slot + 1),
            }
        }
        runs
    }
}
