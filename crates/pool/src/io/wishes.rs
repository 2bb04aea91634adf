//! What datasets want of the caches, by object number.
//!
//! It is looked up for each block that comes in, and told for each dataset that is opened, of which there may be tens of
//! thousands. Whoever looks takes no lock, so whoever tells copies: a part of it, and nothing where nothing is new.

use std::collections::BTreeMap;

use ::cache::mix;
use arc_swap::ArcSwap;

use crate::cache::Wishes;

/// Parts that are copied each for itself.
const PARTS: usize = 64;

type Part = ArcSwap<BTreeMap<u64, Wishes>>;

/// See the module.
#[derive(Debug)]
pub(super) struct AllWishes(Vec<Part>);

impl Default for AllWishes {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Part::default()).collect())
    }
}

impl AllWishes {
    fn part(&self, objset: u64) -> &Part {
        &self.0[(mix(objset) % PARTS as u64) as usize]
    }

    /// What a dataset wants: everything, if nobody told.
    pub(super) fn of(&self, objset: u64) -> Wishes {
        self.part(objset).load().get(&objset).copied().unwrap_or_default()
    }

    /// It wants something else from now on. Also if that is nothing special: it is open, and may some day.
    pub(super) fn change(&self, objset: u64, change: impl Fn(&mut Wishes)) {
        let part = self.part(objset);
        let changed = |before: Option<&Wishes>| {
            let mut wishes = before.copied().unwrap_or_default();
            change(&mut wishes);
            wishes
        };
        let known = part.load().get(&objset).copied();
        if known.is_some() && known == Some(changed(known.as_ref())) {
            return;
        }
        part.rcu(|before| {
            let mut all = BTreeMap::clone(before);
            all.insert(objset, changed(before.get(&objset)));
            all
        });
    }

    /// It is gone.
    pub(super) fn forget(&self, objset: u64) {
        let part = self.part(objset);
        if part.load().contains_key(&objset) {
            part.rcu(|before| {
                let mut all = BTreeMap::clone(before);
                all.remove(&objset);
                all
            });
        }
    }

    /// Datasets that were told of, ascending.
    pub(super) fn told(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for part in &self.0 {
            all.extend(part.load().keys().copied());
        }
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::Keep;

    /// All of them were copied, twice, for each that was opened.
    #[test]
    fn what_is_told_of_one_dataset_copies_few_others_and_nothing_the_second_time() {
        let all = AllWishes::default();
        // Datasets have every few object numbers.
        for objset in (0..64_000).step_by(8) {
            all.change(objset, |wishes| wishes.prefetch = Keep::Metadata);
        }
        assert!(all.0.iter().all(|part| (50..250).contains(&part.load().len())));
        let before = all.part(8).load_full();
        all.change(8, |wishes| wishes.prefetch = Keep::Metadata);
        assert!(Arc::ptr_eq(&before, &all.part(8).load_full()));
        all.change(8, |wishes| wishes.prefetch = Keep::None);
        assert_eq!((all.of(8).prefetch, all.of(16).prefetch), (Keep::None, Keep::Metadata));
    }

    #[test]
    fn those_that_want_nothing_special_are_known_until_they_are_gone() {
        let all = AllWishes::default();
        for objset in [70, 3, 900] {
            all.change(objset, |wishes| wishes.prefetch = Keep::All);
        }
        assert_eq!(all.told(), [3, 70, 900]);
        all.forget(70);
        all.forget(71);
        assert_eq!(all.told(), [3, 900]);
        assert_eq!(all.of(70), Wishes::default());
    }
}
