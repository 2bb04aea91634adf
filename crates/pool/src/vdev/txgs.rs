//! A set of transaction groups, kept as ranges: what a dirty time log (DTL) says.
//!
//! A leaf's log lists the txgs whose writes it missed while it was away. A block born in one of them
//! must not be read from that leaf: its bytes there are older, and may even look plausible.
//! Facts: docs/format/vdevs.md §6.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::RwLock;

/// What a leaf missed so far. Asked before every read, and nearly always empty.
#[derive(Debug, Default)]
pub struct Missed {
    any: AtomicBool,
    /// Nobody knows: everything is assumed.
    is_assumed: AtomicBool,
    set: RwLock<TxgSet>,
}

impl Missed {
    /// Whether writes of `txg` are missing on the leaf.
    #[must_use]
    pub fn contains(&self, txg: u64) -> bool {
        self.any.load(Relaxed) && self.set.read().contains(txg)
    }

    /// Adds what a dirty time log says.
    pub fn add_all(&self, other: &TxgSet) {
        let mut set = self.set.write();
        let ranges = set.ranges.iter().chain(&other.ranges).copied().collect();
        *set = TxgSet::from_ranges(ranges);
        self.any.store(!set.is_empty(), Relaxed);
    }

    /// It is not known what was missed: everything before `txg`, then.
    pub fn assume_all(&self, txg: u64) {
        self.add_all(&TxgSet::from_ranges(vec![(1, txg)]));
        self.is_assumed.store(true, Relaxed);
    }

    /// Whether all was assumed. True once.
    pub fn take_assumed(&self) -> bool {
        self.is_assumed.swap(false, Relaxed)
    }

    /// A write of `txg` failed.
    pub fn add(&self, txg: u64) {
        if !self.contains(txg) {
            self.add_all(&TxgSet::from_ranges(vec![(txg, txg.saturating_add(1))]));
        }
    }

    /// All of it, as it is now.
    #[must_use]
    pub fn get(&self) -> TxgSet {
        self.set.read().clone()
    }

    /// Forgets `made_up`: a resilver has brought it up to date with them. What was missed meanwhile stays.
    pub fn subtract(&self, made_up: &TxgSet) {
        let mut set = self.set.write();
        *set = set.without(made_up);
        self.any.store(!set.is_empty(), Relaxed);
    }
}

/// Half-open ranges of txgs, ascending, disjoint and not touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgSet {
    ranges: Vec<(u64, u64)>,
}

impl TxgSet {
    /// The union of half-open ranges given in any order.
    #[must_use]
    pub fn from_ranges(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self { ranges: merged }
    }

    /// Whether `txg` is in the set.
    #[must_use]
    pub fn contains(&self, txg: u64) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= txg);
        after.checked_sub(1).is_some_and(|i| txg < self.ranges[i].1)
    }

    /// Whether nothing was missed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Those in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from_ranges(self.ranges.iter().chain(&other.ranges).copied().collect())
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::with_capacity(self.ranges.len());
        let mut cuts = other.ranges.iter().peekable();
        for &(mut start, end) in &self.ranges {
            while cuts.next_if(|cut| cut.1 <= start).is_some() {}
            while let Some(&&(from, to)) = cuts.peek()
                && from < end
            {
                left.push((start, from));
                start = to;
                if to > end {
                    break;
                }
                cuts.next();
            }
            left.push((start, end));
        }
        Self::from_ranges(left)
    }

    /// The first, and the first behind the last; none if there are none.
    #[must_use]
    pub fn span(&self) -> Option<(u64, u64)> {
        Some((self.ranges.first()?.0, self.ranges.last()?.1))
    }

    /// The ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_answer() {
        let set = TxgSet::from_ranges(vec![(10, 12), (5, 5), (69, 78), (11, 15), (15, 16), (3, 2)]);
        assert_eq!(set.ranges(), [(10, 16), (69, 78)]);
        for (txg, inside) in
            [(0, false), (9, false), (10, true), (15, true), (16, false), (69, true), (77, true), (78, false)]
        {
            assert_eq!(set.contains(txg), inside, "{txg}");
        }
        assert!(!TxgSet::default().contains(0));
    }

    #[test]
    fn sets_are_joined_and_taken_apart_as_their_members_are() {
        let sets = [
            vec![],
            vec![(0, u64::MAX)],
            vec![(3, 7)],
            vec![(0, 2), (4, 5), (9, 12)],
            vec![(1, 4), (5, 9), (11, 20)],
            vec![(2, 3), (7, 9), (30, 31)],
        ];
        for a in &sets {
            for b in &sets {
                let (a, b) = (TxgSet::from_ranges(a.clone()), TxgSet::from_ranges(b.clone()));
                let (or, not) = (a.union(&b), a.without(&b));
                for txg in 0..40 {
                    let (in_a, in_b) = (a.contains(txg), b.contains(txg));
                    assert_eq!(or.contains(txg), in_a || in_b, "{a:?} {b:?} {txg}");
                    assert_eq!(not.contains(txg), in_a && !in_b, "{a:?} {b:?} {txg}");
                }
            }
        }
        let missed = Missed::default();
        missed.add_all(&TxgSet::from_ranges(vec![(4, 20)]));
        missed.subtract(&TxgSet::from_ranges(vec![(0, 18)]));
        assert_eq!((missed.get().span(), missed.contains(17)), (Some((18, 20)), false));
        missed.subtract(&missed.get());
        assert!(missed.get().span().is_none() && !missed.contains(18));
    }
}
