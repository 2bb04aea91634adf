//! A set of block numbers as ranges that neither touch nor overlap.

use std::{collections::BTreeMap, ops::Range};

/// Sorted ranges with gaps between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ranges.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds all of `range`, merging what it touches.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.0.insert(start, end);
    }

    /// Takes all of `range` away.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&from, &to)) = self.0.range(..range.end).next_back()
            && to > range.start
        {
            self.0.remove(&from);
            if to > range.end {
                self.0.insert(range.end, to);
            }
            if from < range.start {
                self.0.insert(from, range.start);
            }
        }
    }

    /// The end of the range that `at` lies in.
    pub(super) fn end_at(&self, at: u64) -> Option<u64> {
        self.0.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// Where the first range after `at` begins.
    pub(super) fn next_after(&self, at: u64) -> Option<u64> {
        self.0.range(at.checked_add(1)?..).next().map(|(start, _)| *start)
    }

    /// What of `range` is in the set, in order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let Range { start, end } = range;
        let first = self.0.range(..=start).next_back().map_or(start, |(from, _)| *from);
        let clipped =
            self.0.range(first..end.max(first)).map(move |(from, to)| start.max(*from)..end.min(*to));
        clipped.filter(|range| !range.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_the_set_they_stand_for(
            steps in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u64..12), 0..60),
        ) {
            let (mut ranges, mut twin) = (Ranges::default(), [false; 80]);
            for (add, start, len) in steps {
                let range = start..start + len;
                twin[start as usize..(start + len) as usize].fill(add);
                if add { ranges.insert(range) } else { ranges.remove(range) }
                let list: Vec<_> = ranges.within(0..u64::MAX).collect();
                prop_assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start), "{list:?}");
                prop_assert!(list.iter().all(|range| !range.is_empty()));
                prop_assert_eq!(ranges.len(), list.len());
                for (from, to) in [(0, 80), (start, start + 9), (start, start), (70, 80)] {
                    let within: Vec<u64> = ranges.within(from..to).flatten().collect();
                    let of_twin: Vec<u64> = (from..to).filter(|at| twin.get(*at as usize) == Some(&true)).collect();
                    prop_assert_eq!(within, of_twin);
                }
                for at in 0..80 {
                    let inside = list.iter().find(|range| range.contains(&at));
                    prop_assert_eq!(inside.is_some(), twin[at as usize]);
                    prop_assert_eq!(ranges.end_at(at), inside.map(|range| range.end));
                    let next = list.iter().map(|range| range.start).find(|start| *start > at);
                    prop_assert_eq!(ranges.next_after(at), next);
                }
            }
        }
    }
}
