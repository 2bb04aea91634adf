//! What every policy promises its cache, whatever is asked of it in whatever order.
#![allow(
    clippy::unwrap_used,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

use std::collections::BTreeMap;

use cache::{Block, POLICIES, Policy, Slot, mix, policy_named};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// The block is used: a hit if it is here, else it comes in.
    Use {
        block: u64,
        size: u32,
    },
    /// It is freed.
    Free {
        block: u64,
    },
    /// A hit that comes too late, for any slot.
    Late {
        slot: u32,
    },
    Resize {
        capacity: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Squares: small numbers often, so that blocks come back from all lists.
    let block = || (0_u64..40).prop_map(|n| n * n / 8);
    prop_oneof![
        40 => (block(), 1_u32..6).prop_map(|(block, size)| Step::Use { block, size }),
        3 => block().prop_map(|block| Step::Free { block }),
        3 => (0_u32..60).prop_map(|slot| Step::Late { slot }),
        1 => (1_u64..80).prop_map(|capacity| Step::Resize { capacity }),
    ]
}

/// The cache that a policy serves: who is where, and how large.
#[derive(Debug, Default)]
struct Held {
    blocks: BTreeMap<u64, Slot>,
    slots: BTreeMap<Slot, (u64, u64)>,
    /// All that was evicted, in order.
    gone: Vec<Slot>,
}

impl Held {
    fn evict(&mut self, slot: Slot) {
        let (block, _) = self.slots.remove(&slot).expect("only what is here is evicted, and once");
        self.blocks.remove(&block).unwrap();
        self.gone.push(slot);
    }

    fn size(&self) -> u64 {
        self.slots.values().map(|(_, size)| size).sum()
    }
}

/// Plays steps and checks every promise after each; what was evicted.
fn play(name: &str, steps: &[Step]) -> Vec<Slot> {
    let mut policy = policy_named(name, 50).unwrap();
    let mut held = Held::default();
    for step in steps {
        match *step {
            Step::Use { block, size } => match held.blocks.get(&block) {
                Some(slot) => policy.hit(*slot),
                None => {
                    let fits = u64::from(size) <= policy.capacity();
                    let slot = policy.insert(Block { id: mix(block), size }, &mut |slot| held.evict(slot));
                    assert_eq!(slot.is_some(), fits, "{name}: a block comes in unless it is larger than all");
                    if let Some(slot) = slot {
                        assert!(
                            held.slots.insert(slot, (block, u64::from(size))).is_none(),
                            "{name}: it was taken"
                        );
                        held.blocks.insert(block, slot);
                    }
                }
            },
            Step::Free { block } => {
                if let Some(slot) = held.blocks.remove(&block) {
                    held.slots.remove(&slot);
                    policy.remove(slot);
                }
            }
            Step::Late { slot } => {
                if !held.slots.contains_key(&Slot(slot)) {
                    policy.hit(Slot(slot));
                    policy.remove(Slot(slot));
                }
            }
            Step::Resize { capacity } => policy.set_capacity(capacity, &mut |slot| held.evict(slot)),
        }
        let usage = policy.usage();
        assert_eq!(
            usage.recent + usage.frequent,
            held.size(),
            "{name}: it counts what is here, after {step:?}"
        );
        assert!(held.size() <= policy.capacity(), "{name}: over its capacity after {step:?}");
    }
    held.gone
}

/// Caches tell the second tier by it, and count by it.
#[test]
fn a_block_that_comes_back_while_it_is_remembered_was_used_more_than_once() {
    for name in ["arc", "default"] {
        let mut policy = policy_named(name, 100).unwrap();
        let mut held = Held::default();
        let mut insert = |policy: &mut dyn Policy, block: u64| {
            let slot =
                policy.insert(Block { id: mix(block), size: 1 }, &mut |slot| held.evict(slot)).unwrap();
            held.slots.insert(slot, (block, 1));
            held.blocks.insert(block, slot);
            (slot, held.blocks.contains_key(&1000))
        };
        for block in 0..50 {
            let (slot, _) = insert(&mut *policy, block);
            assert!(!policy.is_frequent(slot), "{name}: it is new");
            policy.hit(slot);
            assert!(policy.is_frequent(slot), "{name}: it was used again");
        }
        insert(&mut *policy, 1000);
        let mut next = 2000;
        while insert(&mut *policy, next).1 {
            next += 1;
        }
        let (slot, _) = insert(&mut *policy, 1000);
        assert!(policy.is_frequent(slot), "{name}: it came back");
        policy.remove(slot);
        assert!(!policy.is_frequent(slot), "{name}: nothing is known of what is not here");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn never_over_capacity_and_never_evicts_what_is_not_there(steps in prop::collection::vec(step(), 1..1500)) {
        for name in POLICIES {
            let gone = play(name, &steps);
            prop_assert_eq!(&gone, &play(name, &steps), "{} decides the same every time", name);
        }
    }
}

/// Memory stayed for good what it had been for the most blocks there ever were.
#[test]
fn blocks_that_get_other_places_are_judged_as_before_and_need_less_memory() {
    for name in POLICIES {
        let mut twins = [policy_named(name, 20_000).unwrap(), policy_named(name, 20_000).unwrap()];
        let mut hits = [0, 0];
        for (policy, (hits, is_compacted)) in twins.iter_mut().zip(hits.iter_mut().zip([false, true])) {
            let (mut slots, mut blocks) = (BTreeMap::new(), BTreeMap::new());
            for access in 0..120_000_u64 {
                if access == 60_000 {
                    policy.set_capacity(2000, &mut |slot| {
                        slots.remove(&blocks.remove(&slot).unwrap());
                    });
                    let mut is_more = is_compacted;
                    while is_more {
                        let mut moved = Vec::new();
                        is_more = policy.compact(100, &mut |from, to| moved.push((from, to)));
                        assert!(moved.len() <= 100);
                        for (from, to) in moved {
                            let block = blocks.remove(&from).expect("it is kept");
                            slots.insert(block, to);
                            assert_eq!(blocks.insert(to, block), None, "{name}: nobody is there");
                        }
                    }
                    let places = policy.places();
                    assert!(blocks.keys().all(|slot| (slot.0 as usize) < places), "{name}");
                    // Ghosts of classic ARC have places as well.
                    assert!(!is_compacted || places <= 4000 || places == usize::MAX, "{name}: {places}");
                }
                let block = (mix(access) % 300 * (mix(!access) % 300)) / 3;
                if let Some(slot) = slots.get(&block) {
                    policy.hit(*slot);
                    *hits += u64::from(access > 60_000);
                } else {
                    let new = Block { id: mix(block), size: 1 };
                    let slot = policy.insert(new, &mut |slot| {
                        slots.remove(&blocks.remove(&slot).unwrap());
                    });
                    slots.insert(block, slot.unwrap());
                    blocks.insert(slot.unwrap(), block);
                }
            }
        }
        let [plain, compacted] = hits;
        // Where a cache looks for what to give up hangs on places, under some rules.
        assert!(plain.abs_diff(compacted) * 200 <= plain, "{name}: {plain} {compacted}");
        if name == "arc" {
            assert_eq!(plain, compacted);
        }
    }
}
