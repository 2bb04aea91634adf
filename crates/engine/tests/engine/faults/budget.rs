//! What may still go wrong: how many leaves of each top-level device are not whole, against what it can do without.
//!
//! A leaf is whole if it is in its bay and nothing is wrong with it that the simulator knows of, and the engine knows
//! of nothing it lacks. What was corrupted silently stays suspect until a scrub went over it. Devices that stand in
//! for one another (a replacement, a spare) are one place, which is whole if one of them is.

use std::collections::BTreeMap;

use pool::vdev::{Kind, State, Tree, Vdev};

use super::world::Bays;

/// What is wrong with the disk in a bay, as the simulator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Harm {
    /// Rules that are in force, in words.
    pub(crate) rules: Vec<String>,
    /// Bytes on it may be wrong without anybody knowing.
    pub(crate) suspect: bool,
    /// It came back without its label.
    pub(crate) empty: bool,
}

/// A leaf and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) guid: u64,
    pub(crate) bay: usize,
    pub(crate) top: usize,
    /// Which child of its top-level device it is, or is a part of.
    pub(crate) slot: usize,
    pub(crate) is_log: bool,
    /// It is one of several that stand in for each other.
    pub(crate) is_paired: bool,
    pub(crate) state: State,
    /// The engine knows of nothing it lacks.
    pub(crate) is_up_to_date: bool,
}

/// All leaves, with the parity of each top-level device.
pub(crate) struct Places {
    pub(crate) all: Vec<Place>,
    parity: Vec<usize>,
}

impl Places {
    pub(crate) fn of(tree: &Tree, bays: &Bays) -> Self {
        let mut places = Self { all: Vec::new(), parity: Vec::new() };
        for (number, top) in tree.tops.iter().enumerate() {
            let (parity, slots): (usize, Vec<&Vdev>) = match &top.kind {
                Kind::Raidz(geometry) => (geometry.parity, top.children.iter().collect()),
                Kind::Mirror => (top.children.len().saturating_sub(1), top.children.iter().collect()),
                _ => (0, vec![top]),
            };
            places.parity.push(parity);
            for (slot, vdev) in slots.into_iter().enumerate() {
                let leaves = vdev.leaves();
                for leaf in &leaves {
                    let Some(own) = &leaf.leaf else { continue };
                    let Some(bay) = leaf.path.as_deref().and_then(|path| bays.find(path)) else { continue };
                    let standing = own.condition.get();
                    let (state, _) = standing.state();
                    places.all.push(Place {
                        guid: leaf.guid,
                        bay,
                        top: number,
                        slot,
                        is_log: top.is_log(),
                        is_paired: leaves.len() > 1,
                        state,
                        is_up_to_date: state.is_readable()
                            && own.missed.get().is_empty()
                            && !standing.resilvering,
                    });
                }
            }
        }
        places
    }

    fn is_whole(place: &Place, bays: &Bays, harm: &BTreeMap<usize, Harm>) -> bool {
        let harm = harm.get(&place.bay).cloned().unwrap_or_default();
        place.is_up_to_date && bays.0[place.bay].is_present() && harm == Harm::default()
    }

    /// Whether everything is still there, and wholly, if the disk in `bay` (none: no other) gets lost.
    pub(crate) fn is_safe(&self, bays: &Bays, harm: &BTreeMap<usize, Harm>, bay: Option<usize>) -> bool {
        (0..self.parity.len()).all(|top| self.lacking(top, bays, harm, bay) <= self.parity[top])
    }

    /// Places of a top-level device that are not whole, if the disk in `bay` gets lost.
    fn lacking(&self, top: usize, bays: &Bays, harm: &BTreeMap<usize, Harm>, bay: Option<usize>) -> usize {
        let mut slots: BTreeMap<usize, (bool, bool)> = BTreeMap::new();
        for place in self.all.iter().filter(|place| place.top == top) {
            let is_lost = Some(place.bay) == bay;
            let (whole, doubtful) = slots.entry(place.slot).or_default();
            *whole |= !is_lost && Self::is_whole(place, bays, harm);
            *doubtful |= is_lost || Self::may_be_left_alone(place, bays, harm);
        }
        slots.values().filter(|(whole, doubtful)| !whole || *doubtful).count()
    }

    /// Of a pair one goes when the other has everything, and that it will not work for long the engine cannot know.
    fn may_be_left_alone(place: &Place, bays: &Bays, harm: &BTreeMap<usize, Harm>) -> bool {
        let is_in_use = place.state.is_readable() && bays.0[place.bay].is_present();
        place.is_paired && is_in_use && harm.get(&place.bay).is_some_and(|harm| *harm != Harm::default())
    }

    /// Whether another leaf in the same place is whole.
    pub(crate) fn is_stood_in_for(&self, place: &Place, bays: &Bays, harm: &BTreeMap<usize, Harm>) -> bool {
        let same =
            |other: &&Place| (other.top, other.slot) == (place.top, place.slot) && other.guid != place.guid;
        self.all.iter().filter(same).any(|other| Self::is_whole(other, bays, harm))
    }

    /// Nothing is amiss, and nothing stands in for anything.
    pub(crate) fn is_all_whole(&self, bays: &Bays, harm: &BTreeMap<usize, Harm>) -> bool {
        self.all.iter().all(|place| !place.is_paired && Self::is_whole(place, bays, harm))
    }

    /// What is amiss, in words.
    pub(crate) fn describe(&self, bays: &Bays, harm: &BTreeMap<usize, Harm>) -> String {
        let odd = self.all.iter().filter(|place| place.is_paired || !Self::is_whole(place, bays, harm));
        let line = |place: &Place| {
            let bay = &bays.0[place.bay];
            let harm = harm.get(&place.bay);
            let here = if bay.is_present() { "there" } else { "pulled" };
            let Place { state, is_up_to_date, is_paired, .. } = place;
            format!("{} {here} {state:?} up to date {is_up_to_date} paired {is_paired} {harm:?}", bay.path)
        };
        odd.map(line).collect::<Vec<_>>().join("; ")
    }

    /// Sides of a mirror; 1 of a device that is none.
    pub(crate) fn sides(&self, top: usize) -> usize {
        let of_it = self.all.iter().filter(|place| place.top == top);
        of_it.map(|place| place.slot + 1).max().unwrap_or(1)
    }

    pub(crate) fn in_bay(&self, bay: usize) -> Option<&Place> {
        self.all.iter().find(|place| place.bay == bay)
    }
}
