//! Lists of ranges of units: what a transaction group allocated and freed of one metaslab, on its way to the map.

use std::ops::Range;

use ondisk::spacemap::Kind;

/// Ranges, in the order they came or sorted, as the owner says.
pub(super) type Ranges = Vec<Range<u64>>;

/// A change of a metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) kind: Kind,
    pub(super) units: Range<u64>,
}

/// Adds a range behind the others; one that continues the last is merged with it.
pub(super) fn push(list: &mut Ranges, range: Range<u64>) {
    match list.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => list.push(range),
    }
}

/// Adds a range to a sorted list. False if it overlaps one that is there.
pub(super) fn insert(list: &mut Ranges, range: Range<u64>) -> bool {
    let at = list.partition_point(|other| other.end <= range.start);
    if list.get(at).is_some_and(|next| next.start < range.end) {
        return false;
    }
    let joins_next = list.get(at).is_some_and(|next| next.start == range.end);
    match at.checked_sub(1).filter(|&before| list[before].end == range.start) {
        Some(before) if joins_next => list[before].end = list.remove(at).end,
        Some(before) => list[before].end = range.end,
        None if joins_next => list[at].start = range.start,
        None => list.insert(at, range),
    }
    true
}

/// Takes a range out of a sorted list. False if not all of it is there.
pub(super) fn remove(list: &mut Ranges, range: Range<u64>) -> bool {
    let at = list.partition_point(|other| other.end <= range.start);
    let Some(found) =
        list.get(at).filter(|found| found.start <= range.start && range.end <= found.end).cloned()
    else {
        return false;
    };
    let parts = [found.start..range.start, range.end..found.end];
    list.splice(at..=at, parts.into_iter().filter(|part| part.start < part.end));
    true
}

/// Sorts and merges. False if two of the ranges overlap.
pub(super) fn normalise(list: &mut Ranges) -> bool {
    if !list.is_sorted_by_key(|range| range.start) {
        list.sort_unstable_by_key(|range| range.start);
    }
    let mut disjoint = true;
    list.dedup_by(|next, last| {
        disjoint &= next.start >= last.end;
        let joined = next.start == last.end;
        if joined {
            last.end = next.end;
        }
        joined
    });
    disjoint
}

/// What of `from` is not in `what`; both are normalised.
pub(super) fn subtract(from: &[Range<u64>], what: &[Range<u64>]) -> Ranges {
    let mut left = Vec::with_capacity(from.len());
    let mut what = what.iter().peekable();
    for range in from {
        let mut start = range.start;
        while let Some(cut) = what.peek() {
            if cut.end <= start {
                what.next();
                continue;
            }
            if cut.start >= range.end {
                break;
            }
            if cut.start > start {
                left.push(start..cut.start);
            }
            start = cut.end.min(range.end);
            if cut.end > range.end {
                break;
            }
            what.next();
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// Units in all of them.
pub(super) fn total(list: &[Range<u64>]) -> u64 {
    list.iter().map(|range| range.end - range.start).sum()
}
