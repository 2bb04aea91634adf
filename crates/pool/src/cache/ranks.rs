//! Which blocks stay: a replacement policy for data and one for metadata, and how the memory is divided between them.
//!
//! All of it is under one mutex that misses take, and batches of notes. A class that is full grows at the expense of
//! the other: by what the other does not use, always; and beyond that up to its share. The share of metadata is
//! learned. A block that comes in shortly after it was evicted (a ghost) says that its class was too small, and where
//! more of them come per byte of memory for ghosts, a byte is worth more. A miss of metadata counts four times,
//! because many reads wait behind it. As in OpenZFS the share begins with a quarter; it is never under a sixteenth
//! nor over three quarters. Decision: docs/decisions/0012-arc-in-the-engine.md.
//!
//! Sizes here are in units of 64 bytes, because a policy keeps them in 24 bits.

use std::fmt;

use ::cache::{Adaptive, Arc as Classic, Block, GhostHits, Policy, Slot, Usage};
use smallvec::SmallVec;

use super::Class;

/// Bytes of a unit.
pub(super) const UNIT: usize = 64;
/// Capacity moves between the classes in steps of this part of the whole.
const STEPS: u64 = 128;
/// Ghosts that come back before the share is looked at.
const GHOSTS: u64 = 32;
/// The part of what came back before that still counts at the next look. Where few blocks of a class are worth much, 32 ghosts
/// have none of it as often as not, and that says nothing.
const KEPT: f64 = 7.0 / 8.0;
/// What a miss of data and one of metadata weigh.
const WEIGHT: [f64; 2] = [1.0, 4.0];
/// Bounds of metadata's share, and how it begins.
const SHARE_MIN: f64 = 1.0 / 16.0;
const SHARE_MAX: f64 = 3.0 / 4.0;
const SHARE_FIRST: f64 = 1.0 / 4.0;
/// A class is worth more than the other if it is by this factor; otherwise nothing moves.
const CLEARLY: f64 = 1.25;

/// Free places that are worth nobody's while.
const FEW: usize = 1024;

/// A replacement policy by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// ARC as published.
    Arc,
    /// The one that chooses its rules (docs/decisions/0010); in a cache under 16 MiB, where its miniatures would cost
    /// more than they gain, ARC.
    #[default]
    Default,
}

/// A cache for which miniatures are too large, in units.
const SMALL: u64 = (16 << 20) / UNIT as u64;

impl Replacement {
    /// The policy of this name: `arc` or `default`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "arc" => Some(Self::Arc),
            "default" => Some(Self::Default),
            _ => None,
        }
    }

    fn policy(self, whole: u64) -> Box<dyn Policy> {
        match self {
            Self::Default if whole >= SMALL => Box::new(Adaptive::new(0)),
            Self::Default | Self::Arc => Box::new(Classic::new(0)),
        }
    }
}

/// Identities of blocks that must go.
pub(super) type Going = SmallVec<[u64; 16]>;

/// What blocks of a class take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) blocks: u64,
    /// Bytes as they are held, and what goes with each.
    pub(super) charged: u64,
    /// Bytes as they are held.
    pub(super) held: u64,
    /// Bytes of their content.
    pub(super) content: u64,
}

struct Ranked {
    policy: Box<dyn Policy>,
    /// The block in each slot.
    owners: Vec<u64>,
    /// Ghosts that had come back when the share was last looked at.
    ghosts: u64,
    /// What policies before this one counted: ghosts that came back, changes of rules.
    past: (GhostHits, u64),
}

/// See the module.
pub(super) struct Ranks {
    replacement: Replacement,
    /// It was made for a cache too small for miniatures.
    is_small: bool,
    classes: [Ranked; 2],
    /// The share of metadata.
    share: f64,
    /// Ghosts that came back lately, by class.
    lately: [f64; 2],
    pub(super) held: [Held; 2],
    /// Blocks of data that somebody had to wait for while their ghosts were here.
    pub(super) missed: u64,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").field("share", &self.share).field("held", &self.held).finish_non_exhaustive()
    }
}

impl Ranks {
    /// Of no capacity yet; it will be about `whole` units.
    pub(super) fn new(replacement: Replacement, whole: u64) -> Self {
        let ranked = || Ranked {
            policy: replacement.policy(whole),
            owners: Vec::new(),
            ghosts: 0,
            past: (GhostHits::default(), 0),
        };
        Self {
            replacement,
            is_small: whole < SMALL,
            classes: [ranked(), ranked()],
            share: SHARE_FIRST,
            lately: [0.0; 2],
            held: Default::default(),
            missed: 0,
        }
    }

    /// Whether it was made for a far smaller cache than one of `whole` units, or for a larger one, so that other policies
    /// would do better.
    pub(super) const fn is_unfit(&self, whole: u64) -> bool {
        if self.is_small { whole >= 2 * SMALL } else { whole < SMALL }
    }

    /// Other policies, for a cache of about `whole` units, which know of no block and have no capacity yet. What was
    /// counted stays, and so does what blocks are charged.
    pub(super) fn begin_anew(&mut self, whole: u64) {
        let past = Class::ALL.map(|class| (self.ghost_hits(class), self.switches(class)));
        let Self { replacement, share, held, missed, .. } = *self;
        *self = Self { share, held, missed, ..Self::new(replacement, whole) };
        for (ranked, past) in self.classes.iter_mut().zip(past) {
            ranked.past = past;
        }
    }

    /// Ghosts that came back since the cache exists.
    pub(super) fn ghost_hits(&self, class: Class) -> GhostHits {
        let Ranked { policy, past: (past, _), .. } = &self.classes[class as usize];
        let now = policy.ghost_hits();
        GhostHits { recent: past.recent + now.recent, frequent: past.frequent + now.frequent }
    }

    /// The same, of both lists, of the policy of now.
    pub(super) fn ghosts_met(&self, class: Class) -> u64 {
        let hits = self.classes[class as usize].policy.ghost_hits();
        hits.recent + hits.frequent
    }

    /// How often rules were changed since then.
    pub(super) fn switches(&self, class: Class) -> u64 {
        let Ranked { policy, past: (_, past), .. } = &self.classes[class as usize];
        past + policy.switches()
    }

    /// Gives back the memory of places that far more blocks had, moving at most `most` blocks of each class: `moved` is
    /// told where each is now. True if there is more to be done.
    pub(super) fn compact(&mut self, most: usize, moved: &mut dyn FnMut(u64, Slot)) -> bool {
        let mut is_more = false;
        for Ranked { policy, owners, .. } in &mut self.classes {
            is_more |= policy.compact(most, &mut |from, to| {
                let id = owners[from.0 as usize];
                owners[to.0 as usize] = id;
                moved(id, to);
            });
            owners.truncate(policy.places());
            if owners.capacity() > owners.len() + owners.len() / 4 + FEW {
                owners.shrink_to_fit();
            }
        }
        is_more
    }

    fn of(&mut self, class: Class) -> &mut Ranked {
        &mut self.classes[class as usize]
    }

    pub(super) fn usage(&self, class: Class) -> Usage {
        self.classes[class as usize].policy.usage()
    }

    pub(super) fn policy(&self, class: Class) -> &dyn Policy {
        &*self.classes[class as usize].policy
    }

    /// Units it may hold.
    pub(super) fn capacity(&self) -> u64 {
        self.classes.iter().map(|ranked| ranked.policy.capacity()).sum()
    }

    /// The share of metadata, 0 to 1.
    pub(super) const fn share(&self) -> f64 {
        self.share
    }

    /// Bytes of memory behind it.
    pub(super) fn memory(&self) -> usize {
        self.classes
            .iter()
            .map(|ranked| ranked.policy.memory() + ranked.owners.capacity() * size_of::<u64>())
            .sum()
    }

    /// Blocks were used, in this order.
    pub(super) fn hits(&mut self, class: Class, slots: &[Slot]) {
        self.of(class).policy.hits(slots);
    }

    /// A block comes in; those that must go for it.
    pub(super) fn insert(&mut self, class: Class, id: u64, units: u32, going: &mut Going) -> Option<Slot> {
        self.make_room(class, u64::from(units), going);
        let ranked = self.of(class);
        let owners = &ranked.owners;
        let slot = ranked
            .policy
            .insert(Block { id, size: units }, &mut |slot| going.push(owners[slot.0 as usize]))?;
        let at = slot.0 as usize;
        if ranked.owners.len() <= at {
            let more = at + 1 - ranked.owners.len();
            if ranked.owners.capacity() < at + 1 {
                ranked.owners.reserve_exact(more.max(ranked.owners.len() / 8 + 16));
            }
            ranked.owners.resize(at + 1, 0);
        }
        ranked.owners[at] = id;
        self.look_at_share();
        Some(slot)
    }

    /// Whether a block that is here was used more than once, as far as that is remembered.
    pub(super) fn is_frequent(&self, class: Class, slot: Slot) -> bool {
        self.policy(class).is_frequent(slot)
    }

    /// A block became worthless.
    pub(super) fn remove(&mut self, class: Class, slot: Slot) {
        self.of(class).policy.remove(slot);
    }

    fn set_capacity(&mut self, class: Class, units: u64, going: &mut Going) {
        let ranked = self.of(class);
        let owners = &ranked.owners;
        ranked.policy.set_capacity(units, &mut |slot| going.push(owners[slot.0 as usize]));
    }

    /// Changes the capacity of both together, each in proportion; but none gives blocks up for room that the other does not
    /// use. Metadata keeps a little for its next blocks, though: this is called again and again, and data would have it all.
    pub(super) fn set_whole(&mut self, units: u64, going: &mut Going) {
        let before = self.capacity();
        let metadata = self.policy(Class::Metadata).capacity();
        let metadata = match before {
            0 => units / 16,
            _ => (u128::from(metadata) * u128::from(units) / u128::from(before)) as u64,
        };
        let [data, own] =
            Class::ALL.map(|class| self.usage(class)).map(|usage| usage.recent + usage.frequent);
        let left = units.saturating_sub(data);
        let slack = own + 2 * units / STEPS;
        let metadata = metadata.min(left.max(slack)).max(own.min(left));
        self.set_capacity(Class::Metadata, metadata, going);
        self.set_capacity(Class::Data, units - metadata, going);
    }

    /// Lets a full class have more, if it may.
    fn make_room(&mut self, class: Class, units: u64, going: &mut Going) {
        let used = |usage: Usage| usage.recent + usage.frequent;
        let (mine, theirs) = (self.policy(class).capacity(), self.policy(class.other()).capacity());
        if used(self.usage(class)) + units <= mine {
            return;
        }
        let whole = mine + theirs;
        let step = (whole / STEPS).max(units).min(theirs);
        let metadata = (whole as f64 * self.share) as u64;
        let share = if class == Class::Metadata { metadata } else { whole - metadata };
        let unused = theirs - used(self.usage(class.other())).min(theirs);
        // A whole step of slack stays, or both would hand the last block's room to and fro.
        if unused > step || mine + step <= share {
            self.set_capacity(class.other(), theirs - step, going);
            self.set_capacity(class, mine + step, going);
        }
    }

    /// Moves the share of metadata when enough ghosts have come back.
    fn look_at_share(&mut self) {
        let came = |ranked: &Ranked| {
            let hits = ranked.policy.ghost_hits();
            (hits.recent + hits.frequent).saturating_sub(ranked.ghosts)
        };
        let [data, metadata] = [came(&self.classes[0]), came(&self.classes[1])];
        if data + metadata < GHOSTS {
            return;
        }
        for (lately, came) in self.lately.iter_mut().zip([data, metadata]) {
            *lately = *lately * KEPT + came as f64;
        }
        let [of_data, of_metadata] = Class::ALL.map(|class| {
            let usage = self.usage(class);
            let room = (usage.recent_ghosts + usage.frequent_ghosts).max(1);
            self.lately[class as usize] * WEIGHT[class as usize] / room as f64
        });
        let step = 1.0 / STEPS as f64;
        // What came back before keeps a class its share, and gains it none: if none came back since the last look it has room for
        // all it needs, and the few ghosts it still has would be worth anything.
        if metadata > 0 && of_metadata > of_data * CLEARLY {
            self.share = (self.share + step).min(SHARE_MAX);
        } else if data > 0 && of_data > of_metadata * CLEARLY {
            self.share = (self.share - step).max(SHARE_MIN);
        }
        for ranked in &mut self.classes {
            let hits = ranked.policy.ghost_hits();
            ranked.ghosts = hits.recent + hits.frequent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `n` accesses to `blocks` blocks of a class in turn, as a cache without a map would: all of them misses
    /// that are not here.
    fn cycle(
        ranks: &mut Ranks,
        here: &mut std::collections::BTreeMap<u64, (Class, Slot)>,
        class: Class,
        ids: impl Iterator<Item = u64>,
    ) {
        for id in ids {
            if let Some((class, slot)) = here.get(&id) {
                ranks.hits(*class, &[*slot]);
                continue;
            }
            let mut going = Going::new();
            let slot = ranks.insert(class, id, 65, &mut going).unwrap();
            for gone in going {
                here.remove(&gone).expect("what goes was here");
            }
            here.insert(id, (class, slot));
            let used: u64 =
                Class::ALL.map(|class| ranks.usage(class)).iter().map(|u| u.recent + u.frequent).sum();
            assert!(used <= ranks.capacity());
        }
    }

    fn ids(class: Class, range: std::ops::Range<u64>) -> std::ops::Range<u64> {
        let base = (class as u64) << 40;
        base + range.start..base + range.end
    }

    #[test]
    fn a_class_may_have_what_the_other_does_not_use_and_metadata_gets_its_share_back() {
        let mut ranks = Ranks::new(Replacement::Arc, 65 * 1000);
        ranks.set_whole(65 * 1000, &mut Going::new());
        let mut here = std::collections::BTreeMap::new();
        cycle(&mut ranks, &mut here, Class::Data, ids(Class::Data, 0..2000));
        assert!(ranks.policy(Class::Data).capacity() >= 65 * 970, "data has nearly all");
        cycle(&mut ranks, &mut here, Class::Metadata, ids(Class::Metadata, 0..600));
        let metadata = ranks.usage(Class::Metadata).recent / 65;
        assert!((200..=260).contains(&metadata), "a quarter, and no more: {metadata}");
        assert_eq!(ranks.capacity(), 65 * 1000);
    }

    #[test]
    fn the_share_of_metadata_follows_the_ghosts_within_bounds() {
        let mut ranks = Ranks::new(Replacement::Arc, 65 * 1000);
        ranks.set_whole(65 * 1000, &mut Going::new());
        let mut here = std::collections::BTreeMap::new();
        // One class is asked for what it had lately, the other for what is new.
        let again = |turn: u64, class: Class, of: u64| {
            (0..400).map(move |n| ids(class, 0..1).start + ::cache::mix(turn << 20 | n) % of)
        };
        let new = |turn: u64, class: Class| ids(class, 10_000 + turn * 400..10_400 + turn * 400);
        for turn in 0..200 {
            cycle(&mut ranks, &mut here, Class::Metadata, again(turn, Class::Metadata, 500));
            cycle(&mut ranks, &mut here, Class::Data, new(turn, Class::Data));
        }
        assert!(ranks.share() > 0.35, "metadata comes back, data does not: {}", ranks.share());
        for turn in 0..400 {
            cycle(&mut ranks, &mut here, Class::Data, again(turn, Class::Data, 1500));
            cycle(&mut ranks, &mut here, Class::Metadata, new(turn, Class::Metadata));
        }
        assert!((SHARE_MIN..0.2).contains(&ranks.share()), "the other way round: {}", ranks.share());
    }

    /// Each read of data by chance needs one of few blocks of metadata, which take 45 % of the cache. Where the share was judged
    /// by 32 ghosts alone, it fell each time there was no metadata among them, until some were missing again. Where those before
    /// made it rise as well, it went up to its bound once all was there, and a scan could have that.
    #[test]
    fn metadata_that_all_reads_go_by_stays_although_it_is_seldom_missed() {
        let (whole, pointers) = (65 * 16 * 1000, 60);
        let mut ranks = Ranks::new(Replacement::Arc, whole);
        ranks.set_whole(whole, &mut Going::new());
        let mut here = std::collections::BTreeMap::new();
        let (mut missed, mut most) = (0, 0.0_f64);
        for n in 0..400_000 {
            let chance = ::cache::mix(n);
            let (pointer, block) = (chance % pointers, (chance >> 32) % 100_000);
            let at = [(Class::Metadata, pointer, 65 * 120), (Class::Data, block, 65)];
            for (class, id, units) in
                at.map(|(class, id, units)| (class, ids(class, id..id + 1).start, units))
            {
                if let Some((class, slot)) = here.get(&id) {
                    ranks.hits(*class, &[*slot]);
                    continue;
                }
                missed += u64::from(n >= 200_000 && class == Class::Metadata);
                let mut going = Going::new();
                let slot = ranks.insert(class, id, units, &mut going).unwrap();
                for gone in going {
                    here.remove(&gone).expect("what goes was here");
                }
                here.insert(id, (class, slot));
            }
            most = most.max(ranks.share());
        }
        assert!(most < 0.5, "more than it has use for: {most}");
        assert!(missed < 150, "{missed} of 200000 reads had to read a pointer, share {}", ranks.share());
    }

    #[test]
    fn a_smaller_whole_pushes_out_at_once() {
        let mut ranks = Ranks::new(Replacement::Default, 65 * 10_000);
        let mut going = Going::new();
        ranks.set_whole(65 * 1000, &mut going);
        let mut here = std::collections::BTreeMap::new();
        cycle(&mut ranks, &mut here, Class::Data, ids(Class::Data, 0..1000));
        ranks.set_whole(65 * 100, &mut going);
        let usage = ranks.usage(Class::Data);
        assert!(usage.recent + usage.frequent <= 65 * 100);
        assert!(going.len() >= 890, "{}", going.len());
        assert_eq!(ranks.capacity(), 65 * 100);
    }
}
