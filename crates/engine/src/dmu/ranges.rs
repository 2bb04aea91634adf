//! A set of block numbers as disjoint ranges: what was punched out of an object.
//!
//! Neighbours are merged, so that a subtree is punched as a whole exactly if one range covers it.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
};

/// Disjoint ranges that do not touch each other: start → end.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, merging it with those it overlaps or touches.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((&left, &left_end)) = self.0.range(..start).next_back()
            && left_end >= start
        {
            start = left;
            end = end.max(left_end);
        }
        while let Some((&right, &right_end)) = self.0.range(start..=end).next() {
            self.0.remove(&right);
            end = end.max(right_end);
        }
        self.0.insert(start, end);
    }

    /// Whether a number is in the set.
    pub(super) fn contains(&self, at: u64) -> bool {
        self.0.range(..=at).next_back().is_some_and(|(_, end)| *end > at)
    }

    /// Nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges that overlap `window`, whole, in ascending order.
    pub(super) fn overlapping(&self, window: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let Range { start, end } = window;
        let left =
            self.0.range(..=start).next_back().filter(|(_, left_end)| **left_end > start && start < end);
        // A window of one number or none has nothing that begins inside it behind its start.
        let inside = (end > start.saturating_add(1))
            .then(|| self.0.range((Bound::Excluded(start), Bound::Excluded(end))));
        left.into_iter().chain(inside.into_iter().flatten()).map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    #[test]
    fn ranges_hold_what_a_set_of_numbers_holds() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..200 {
            let (mut ranges, mut twin) = (Ranges::default(), BTreeSet::new());
            for _ in 0..random.random_range(0..12) {
                let start = random.random_range(0..60);
                let range = start..start + random.random_range(0..9);
                ranges.insert(range.clone());
                twin.extend(range);
            }
            assert_eq!(ranges.is_empty(), twin.is_empty());
            for at in 0..70 {
                assert_eq!(ranges.contains(at), twin.contains(&at));
            }
            for start in 0..70 {
                for end in start..70 {
                    let found: Vec<_> = ranges.overlapping(start..end).collect();
                    let clipped = found.iter().flat_map(|range| range.start.max(start)..range.end.min(end));
                    assert!(clipped.eq(twin.range(start..end).copied()), "{ranges:?} {start}..{end}");
                    assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "merged and in order");
                }
            }
        }
    }
}
