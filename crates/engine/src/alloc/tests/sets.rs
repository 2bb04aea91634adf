//! The sets of units and lists of ranges against plain vectors of booleans.

use proptest::prelude::*;

use super::super::{ranges, units::Units};

/// Three pages and a bit: uniform pages, page borders, a short last page.
const LEN: usize = 3 * 4096 + 777;

fn runs_of(model: &[bool], like: bool) -> Vec<std::ops::Range<u64>> {
    let mut runs = Vec::new();
    for (at, _) in model.iter().enumerate().filter(|(_, member)| **member == like) {
        ranges::push(&mut runs, at as u64..at as u64 + 1);
    }
    runs
}

fn naive_find(model: &[bool], window: std::ops::Range<usize>, need: usize) -> Option<u64> {
    let mut run = 0;
    for at in window {
        run = if model[at] { run + 1 } else { 0 };
        if run == need {
            return Some((at + 1 - need) as u64);
        }
    }
    None
}

#[derive(Clone, Debug)]
enum Step {
    Flip(usize, usize),
    Find(usize, usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![1usize..8, 1usize..200, 1usize..9000];
    let step = prop_oneof![
        3 => (0..LEN, length.clone()).prop_map(|(at, len)| Step::Flip(at, len)),
        1 => (0..LEN, 0..LEN, length).prop_map(|(a, b, need)| Step::Find(a.min(b), a.max(b), need)),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_set_of_units_is_a_vector_of_booleans(steps in steps()) {
        let mut set = Units::searched(LEN as u64);
        let mut model = vec![false; LEN];
        for step in steps {
            match step {
                Step::Flip(at, len) => {
                    let end = (at + len).min(LEN);
                    let range = at as u64..end as u64;
                    let before = model[at..end].iter().filter(|member| **member).count();
                    prop_assert_eq!(set.contains(range.clone()), before == end - at);
                    if before == end - at {
                        prop_assert!(set.remove(range).is_ok());
                        model[at..end].fill(false);
                    } else if before == 0 {
                        prop_assert!(set.insert(range).is_ok());
                        model[at..end].fill(true);
                    } else {
                        prop_assert!(set.clone().remove(range.clone()).is_err());
                        prop_assert!(set.clone().insert(range).is_err());
                    }
                }
                Step::Find(from, to, need) => {
                    let found = set.find(from as u64..to as u64, need as u64);
                    prop_assert_eq!(found, naive_find(&model, from..to, need));
                    let whole = set.find(0..LEN as u64, need as u64);
                    prop_assert_eq!(whole, naive_find(&model, 0..LEN, need));
                }
            }
            let longest = runs_of(&model, true).iter().map(|run| run.end - run.start).max().unwrap_or(0);
            prop_assert!(set.longest() >= longest);
            prop_assert_eq!(set.count(), model.iter().filter(|member| **member).count() as u64);
        }
        prop_assert_eq!(set.runs(true).collect::<Vec<_>>(), runs_of(&model, true));
        prop_assert_eq!(set.runs(false).collect::<Vec<_>>(), runs_of(&model, false));
    }

    #[test]
    fn subtracting_ranges_leaves_what_is_only_in_the_first(
        a in prop::collection::vec(any::<bool>(), 300),
        b in prop::collection::vec(any::<bool>(), 300),
    ) {
        let only: Vec<bool> = a.iter().zip(&b).map(|(a, b)| *a && !*b).collect();
        let left = ranges::subtract(&runs_of(&a, true), &runs_of(&b, true));
        prop_assert_eq!(ranges::total(&left), only.iter().filter(|x| **x).count() as u64);
        let mut left = left;
        prop_assert!(ranges::normalise(&mut left));
        prop_assert_eq!(left, runs_of(&only, true));
    }
}

#[test]
fn overlapping_ranges_are_noticed() {
    assert!(ranges::normalise(&mut vec![8..9, 0..4, 4..8]));
    assert!(!ranges::normalise(&mut vec![8..9, 0..5, 4..8]));
    assert!(!ranges::normalise(&mut vec![3..4, 3..4]));
    let mut merged = vec![8..9, 0..4, 4..8, 20..21];
    assert!(ranges::normalise(&mut merged));
    assert_eq!(merged, [0..9, 20..21]);
}

#[test]
fn uniform_pages_take_no_memory_for_bits() {
    let mut set = Units::none(1 << 20);
    let pages = set.bytes();
    assert_eq!(pages, 256 * 16);
    set.insert(0..1 << 20).unwrap();
    assert_eq!(set.bytes(), pages);
    set.remove(5..6).unwrap();
    assert_eq!(set.bytes(), pages + 512);
    set.insert(5..6).unwrap();
    assert_eq!(set.bytes(), pages);
    assert!(set.insert((1 << 20) - 1..(1 << 20) + 1).is_err(), "beyond the end");
}
