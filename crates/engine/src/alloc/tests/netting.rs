//! Netted lists of changes, beside the lists that they were made of.

use std::ops::Range;

use ondisk::spacemap::Kind;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::super::{metaslab::apply, netting::shorten, ranges::Change, units::Units};

const LEN: u64 = 40;

/// What changes make of a map, if they follow from it.
fn outcome(map: &[bool], changes: &[Change]) -> Option<Vec<Range<u64>>> {
    let mut used = Units::none(LEN);
    for (at, _) in map.iter().enumerate().filter(|(_, used)| **used) {
        used.insert(at as u64..at as u64 + 1).unwrap();
    }
    changes.iter().all(|change| apply(&mut used, change).is_ok()).then(|| used.runs(true).collect())
}

/// A change that follows from the map, which it changes.
fn change(random: &mut StdRng, map: &mut [bool]) -> Change {
    let start = random.random_range(0..map.len());
    let used = map[start];
    let longest = map[start..].iter().take_while(|unit| **unit == used).count();
    let end = start + random.random_range(1..=longest);
    map[start..end].fill(!used);
    Change { kind: if used { Kind::Free } else { Kind::Alloc }, units: start as u64..end as u64 }
}

#[test]
fn a_netted_list_makes_the_same_of_every_map_and_contradicts_the_same() {
    let mut random = StdRng::seed_from_u64(11);
    let (mut shortened, mut followed) = (0, 0);
    for _ in 0..500 {
        let first: Vec<bool> = (0..LEN).map(|_| random.random_bool(0.5)).collect();
        let mut map = first.clone();
        let count = random.random_range(0..200);
        let long: Vec<Change> = (0..count).map(|_| change(&mut random, &mut map)).collect();
        let mut short = long.clone();
        shorten(&mut short).unwrap();
        // Of three kinds of ranges, none of which are adjacent.
        assert!(short.len() <= long.len().min(3 * (LEN as usize).div_ceil(2)), "{long:?}: {short:?}");
        shortened += u32::from(short.len() < long.len());
        assert!(outcome(&first, &short).is_some(), "{long:?}: {short:?}");
        for unit in 0..LEN as usize {
            let mut other = first.clone();
            other[unit] = !other[unit];
            let made = outcome(&other, &long);
            followed += u32::from(made.is_some());
            assert_eq!(outcome(&other, &short), made, "{long:?}: {short:?}");
        }
        assert_eq!(outcome(&first, &short), outcome(&first, &long), "{long:?}: {short:?}");
        // And again, when more have come.
        let more: Vec<Change> = (0..count).map(|_| change(&mut random, &mut map)).collect();
        short.extend(more.iter().cloned());
        shorten(&mut short).unwrap();
        assert_eq!(outcome(&first, &short), outcome(&first, &[long, more].concat()), "{short:?}");
    }
    assert!(shortened > 300 && followed > 300, "{shortened} {followed}");
}

#[test]
fn netting_tells_of_units_that_are_allocated_or_freed_twice() {
    let mut random = StdRng::seed_from_u64(12);
    for _ in 0..500 {
        let mut map = vec![false; LEN as usize];
        let mut changes: Vec<Change> = (0..60).map(|_| change(&mut random, &mut map)).collect();
        let at = random.random_range(0..changes.len());
        let twice = changes[at].clone();
        changes.insert(at, twice.clone());
        let units = shorten(&mut changes).unwrap_err();
        assert!(twice.units.start <= units.start && units.end <= twice.units.end, "{units:?} of {twice:?}");
    }
}
