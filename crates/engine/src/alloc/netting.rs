//! Netting: a list of changes of a metaslab is made as short as what it comes to.
//!
//! The changes of a unit alternate, or they contradict each other. So of all that a list says of it, two are enough: the
//! first, which has to follow from the map, and the last. If they are the same, one is; if not, it is as it was before, and
//! both are kept. A list without them would follow from any map: nobody would notice that what was allocated and freed again
//! is in use there, or that what was freed and allocated again is free there and will be given to somebody else. As it is, the
//! short list contradicts the same maps as the long one, and makes the same of the others. What it comes to are ranges, which
//! the units of many changes share.

use std::ops::Range;

use ondisk::spacemap::Kind;

use super::{
    maps::in_order,
    ranges::{self, Change, Ranges},
};

/// What happened to units.
#[derive(Clone)]
struct Past {
    units: Range<u64>,
    first: Kind,
    last: Kind,
}

/// Shortens a list to what it comes to, if that is shorter.
///
/// # Errors
/// Units that were allocated when they were, or freed when they were not.
pub(super) fn shorten(changes: &mut Vec<Change>) -> Result<(), Range<u64>> {
    // The allocations of a transaction group are sorted already, and its frees.
    let sorted = changes.chunk_by(|one, next| one.units.end <= next.units.start);
    // All in one list: of a forged log each change is a run of its own.
    let mut ends: Vec<usize> = sorted
        .scan(0, |end, run| {
            *end += run.len();
            Some(*end)
        })
        .collect();
    let mut pasts: Vec<Past> = changes.iter().map(Past::of).collect();
    while ends.len() > 1 {
        let (mut joined, mut start) = (Vec::with_capacity(pasts.len()), 0);
        let mut joined_ends = Vec::with_capacity(ends.len().div_ceil(2));
        for pair in ends.chunks(2) {
            let (middle, end) = (pair[0], pair[pair.len() - 1]);
            join(&pasts[start..middle], &pasts[middle..end], &mut joined)?;
            joined_ends.push(joined.len());
            start = end;
        }
        (pasts, ends) = (joined, joined_ends);
    }
    // Allocations between the frees: what was free and what was freed have one, often side by side.
    let (mut freed, mut allocated, mut undone) = (Ranges::new(), Ranges::new(), Ranges::new());
    for Past { units, first, last } in pasts {
        if first == Kind::Free {
            ranges::push(&mut freed, units.clone());
        }
        if first == Kind::Alloc || last == Kind::Alloc {
            ranges::push(&mut allocated, units.clone());
        }
        if first == Kind::Alloc && last == Kind::Free {
            ranges::push(&mut undone, units);
        }
    }
    if freed.len() + allocated.len() + undone.len() < changes.len() {
        *changes = in_order(Ranges::new(), freed);
        changes.append(&mut in_order(allocated, undone));
    }
    Ok(())
}

impl Past {
    fn of(change: &Change) -> Self {
        Self { units: change.units.clone(), first: change.kind, last: change.kind }
    }
}

/// Adds what happened when both did, one after the other. Each is sorted.
fn join(earlier: &[Past], later: &[Past], list: &mut Vec<Past>) -> Result<(), Range<u64>> {
    let from = list.len();
    let mut add = |past| push(list, from, past);
    let (mut earlier, mut later) = (earlier.iter().cloned(), later.iter().cloned());
    let (mut before, mut after) = (earlier.next(), later.next());
    while let (Some(one), Some(other)) = (&mut before, &mut after) {
        if one.units.start == other.units.start {
            let units = one.units.start..one.units.end.min(other.units.end);
            if one.last == other.first {
                return Err(units);
            }
            (one.units.start, other.units.start) = (units.end, units.end);
            add(Past { units, first: one.first, last: other.last });
        } else {
            // As far as only one of them has any.
            let (past, border) = if one.units.start < other.units.start {
                (&mut *one, other.units.start)
            } else {
                (&mut *other, one.units.start)
            };
            let units = past.units.start..past.units.end.min(border);
            past.units.start = units.end;
            add(Past { units, first: past.first, last: past.last });
        }
        if one.units.is_empty() {
            before = earlier.next();
        }
        if other.units.is_empty() {
            after = later.next();
        }
    }
    before.into_iter().chain(earlier).chain(after).chain(later).for_each(add);
    Ok(())
}

/// Adds what is behind the others of its run, which begins at `from`: to the last if that is adjacent and had the same past.
fn push(list: &mut Vec<Past>, from: usize, past: Past) {
    match list[from..].last_mut() {
        Some(last)
            if last.units.end == past.units.start && (last.first, last.last) == (past.first, past.last) =>
        {
            last.units.end = past.units.end;
        }
        _ => list.push(past),
    }
}
