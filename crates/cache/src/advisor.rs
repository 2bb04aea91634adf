//! What more memory, or a cache device, would be worth: miniatures of the live cache on a hashed sample of its blocks.
//!
//! ```text
//!   what the live cache sees of one block in 2^feed ──▶ Curve: LRU at every size, of everything and of each busy group
//!                  └─ one in 2^(feed + rate) ──▶ the live policy at RAM × ½ … 4, each a Model
//!                                                   at RAM × 1: what it evicts ──▶ SecondTiers of RAM × 2 … 16
//! ```
//! A miniature at RAM × 1 runs beside what the real cache made of the same accesses. So what is answered is not what a
//! miniature misses but what it misses *of what the one at RAM × 1 does*, times what is really missed: what they get
//! wrong in the same way cancels. What the one at RAM × 1 is off by is the least that is admitted as error, and so is what
//! the size of the sample allows for.
//!
//! What was seen fades: half of it weighs while as many more accesses are counted as 131 072.
//!
//! Error and cost: `tests/advisor.rs`, `benches/policies.rs`, docs/decisions, "live miss-ratio curves". Pure: no clock, no lock.

use std::collections::BTreeMap;

use crate::{
    Adaptive,
    curve::Curve,
    mix,
    model::{Kept, Model},
    policy_named,
    second::SecondTier,
};

/// Memory that is tried, in parts of what there is.
pub const RAM: [f64; 6] = [0.5, 1.0, 1.25, 1.5, 2.0, 4.0];
/// Which of these is what there is.
const NOW: usize = 1;
/// Cache devices that are tried, in parts of the memory there is.
pub const SECOND: [f64; 4] = [2.0, 4.0, 8.0, 16.0];
/// Counted accesses after which what was counted before weighs half.
const MEMORY: f64 = 131_072.0;
/// Groups told apart at a time; the one that is used least gives way to one that comes.
pub const GROUPS: usize = 256;
/// Groups that have a curve of their own, and how many keys each has.
const CURVES: usize = 8;
const CURVE_KEYS: usize = 4096;
/// Counted accesses of a group before it is judged.
const ENOUGH: f64 = 200.0;
/// Miniatures within the miniatures, which choose their rules: with as many blocks as those of the live cache have they
/// would be eight ninths of the cost; with half as many as this a model is off by more than is stated (tests/advisor.rs).
const MINI_BLOCKS: usize = 256;
/// The miniature at RAM × 1 is not thinned for the sake of time when it holds fewer than this: half of it leaves an error
/// of nine points.
const BLOCKS_MIN: usize = 512;
/// Standard deviations that the stated error is: more than that a sample is rarely off.
const SIGMAS: f64 = 3.0;

/// What happened to a block in the live cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Somebody asked for it, and it was read.
    Miss,
    /// Somebody asked for it, and it was there.
    Hit,
    /// It came in without being asked for: it was written, or read ahead.
    Fill,
}

/// A size, and the share of accesses that would be hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// In the caller's units.
    pub size: u64,
    /// 0 to 1.
    pub hit_ratio: f64,
    /// What that may be off by, 0 to 1: the outlook's, and more of a size whose miniature holds less than that of now.
    pub error: f64,
}

/// What is expected, of everything or of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Sampled accesses it is known from, faded.
    pub accesses: f64,
    /// What they really hit, 0 to 1.
    pub hit_ratio: f64,
    /// What the numbers below may be off by, 0 to 1.
    pub error: f64,
    /// With other amounts of memory, smallest first; what there is among them.
    pub memory: Vec<Point>,
    /// With a cache device of so much below the memory there is: hits of both.
    pub second: Vec<Point>,
    /// What LRU would hit at these sizes, by bytes: of a group as if it were alone.
    pub lru: Vec<Point>,
}

/// Accesses and what became of them.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    accesses: f64,
    missed: f64,
    /// Hits beside these, each at once behind another use of its block.
    merged: f64,
    hits: [f64; RAM.len()],
    second: [f64; SECOND.len()],
}

impl Counts {
    /// Share of all uses that missed; 0 of none.
    fn missed_share(&self) -> f64 {
        let uses = self.accesses + self.merged;
        if uses > 0.0 { self.missed / uses } else { 0.0 }
    }

    fn fade(&mut self) {
        let all = [&mut self.accesses, &mut self.missed, &mut self.merged].into_iter();
        all.chain(&mut self.hits).chain(&mut self.second).for_each(|count| *count *= 0.5);
    }

    fn add(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.missed += other.missed;
        self.merged += other.merged;
        self.hits.iter_mut().zip(other.hits).for_each(|(mine, theirs)| *mine += theirs);
        self.second.iter_mut().zip(other.second).for_each(|(mine, theirs)| *mine += theirs);
    }
}

#[derive(Default)]
struct Group {
    counts: Counts,
    /// Accesses to the sample, faded: who is busy.
    fed: f64,
    /// What it stays for: the same, and what the one had that gave way to it. Else all that come while others are known
    /// would only ever take the place of each other.
    standing: f64,
    curve: Option<Box<Curve>>,
}

/// See the module.
pub struct Advisor {
    policy: String,
    capacity: u64,
    /// One block in 2^feed is fed, one in 2^(feed + rate) is looked at.
    feed: u32,
    rate: u32,
    /// Blocks that the miniature at RAM × 1 holds at most are twice as many.
    blocks: usize,
    memory: Vec<Model>,
    second: Vec<SecondTier>,
    curve: Curve,
    groups: BTreeMap<u32, Group>,
    whole: Counts,
    halvings: u64,
    gone: Vec<Kept>,
}

impl std::fmt::Debug for Advisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Advisor")
            .field("capacity", &self.capacity)
            .field("rate", &(self.feed + self.rate))
            .field("whole", &self.whole)
            .finish_non_exhaustive()
    }
}

impl Advisor {
    /// For a live cache of so many units under this policy (a name of [`crate::POLICIES`]; the default for others), of
    /// whose blocks one in 2^`feed` is shown. The miniature at RAM × 1 holds `blocks` to twice as many; curves remember
    /// `keys`.
    #[must_use]
    pub fn new(policy: &str, capacity: u64, feed: u32, blocks: usize, keys: usize) -> Self {
        let mut advisor = Self {
            policy: policy.to_owned(),
            capacity,
            feed,
            rate: 0,
            blocks,
            memory: Vec::new(),
            second: Vec::new(),
            curve: Curve::new(keys),
            groups: BTreeMap::new(),
            whole: Counts::default(),
            halvings: 0,
            gone: Vec::new(),
        };
        advisor.memory = RAM.iter().map(|part| Model::new(advisor.live(advisor.scaled(*part)))).collect();
        advisor.second = SECOND.iter().map(|part| SecondTier::miniature(advisor.scaled(*part))).collect();
        advisor
    }

    fn live(&self, capacity: u64) -> Box<dyn crate::Policy> {
        match self.policy.as_str() {
            "default" => Box::new(Adaptive::with_minis(capacity, MINI_BLOCKS)),
            other => policy_named(other, capacity).unwrap_or_else(|| Box::new(Adaptive::new(capacity))),
        }
    }

    /// What a part of the live cache is in the sample.
    fn scaled(&self, part: f64) -> u64 {
        ((self.capacity as f64 * part) / f64::from(self.feed + self.rate).exp2()).max(1.0) as u64
    }

    /// How often what was counted was halved.
    #[must_use]
    pub const fn halvings(&self) -> u64 {
        self.halvings
    }

    /// One block in so many is looked at.
    #[must_use]
    pub const fn one_in(&self) -> u64 {
        1 << (self.feed + self.rate)
    }

    /// Bytes of memory behind it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let curves = self.groups.values().filter_map(|group| group.curve.as_ref());
        self.memory.iter().map(Model::memory).sum::<usize>()
            + self.second.iter().map(SecondTier::memory).sum::<usize>()
            + self.curve.memory()
            + curves.map(|curve| curve.memory()).sum::<usize>()
            + self.groups.len() * size_of::<(u32, Group)>()
    }

    /// The live cache has another size.
    pub fn resize(&mut self, capacity: u64) {
        // A little to and fro between its classes is not worth moving everything.
        if capacity.abs_diff(self.capacity) > self.capacity / 32 {
            self.capacity = capacity;
            self.fit();
        }
    }

    fn fit(&mut self) {
        let sizes = RAM.map(|part| self.scaled(part));
        self.memory.iter_mut().zip(sizes).for_each(|(model, size)| model.resize(size));
        let sizes = SECOND.map(|part| self.scaled(part));
        self.second.iter_mut().zip(sizes).for_each(|(tier, size)| tier.resize(size));
    }

    /// The miniature at RAM × 1 is to hold so many blocks to twice as many from now on.
    pub const fn aim_at(&mut self, blocks: usize) {
        self.blocks = blocks;
    }

    /// Whether anything is known of a group.
    #[must_use]
    pub fn knows(&self, group: u32) -> bool {
        self.groups.contains_key(&group)
    }

    /// A group is gone: another may have its place.
    pub fn forget_group(&mut self, group: u32) {
        self.groups.remove(&group);
    }

    /// A block of the sample came into the live cache; `is_eligible`: a cache device may have it. Groups are numbers that
    /// the caller gives out.
    pub fn came(&mut self, id: u64, size: u32, group: u32, kind: Kind, is_eligible: bool) {
        self.see(Kept { id, size, group, is_eligible }, kind);
    }

    /// A block of the sample was used that was there; of one that is not remembered nothing is learnt.
    pub fn hit(&mut self, id: u64) {
        if let Some(block) = self.known(id) {
            self.see(Kept { id, ..block }, Kind::Hit);
        }
    }

    /// The same, so many times and each at once behind another use of it: hits at every size, of which a policy is not told.
    pub fn merged(&mut self, id: u64, times: u32) {
        let Some(block) = self.known(id) else { return };
        let times = f64::from(times);
        self.whole.merged += times;
        if let Some(group) = self.groups.get_mut(&block.group) {
            group.counts.merged += times;
        }
    }

    /// A block that is looked at and remembered.
    fn known(&self, id: u64) -> Option<Kept> {
        let id = spread(id);
        if !is_sampled(id, self.rate) {
            return None;
        }
        // The largest remembers most.
        self.memory.iter().rev().find_map(|model| model.find(id))
    }

    /// A block of the sample became worthless.
    pub fn gone(&mut self, id: u64) {
        let id = spread(id);
        if !is_sampled(id, self.rate) {
            return;
        }
        self.memory.iter_mut().for_each(|model| model.remove(id));
        let curves = self.groups.values_mut().filter_map(|group| group.curve.as_deref_mut());
        curves.chain([&mut self.curve]).for_each(|curve| curve.remove(id));
    }

    fn see(&mut self, block: Kept, kind: Kind) {
        // The caller chose by the identity; policies look at its upper half.
        let block = Kept { id: spread(block.id), ..block };
        // Of the others only those that come in would be known: a hit is of a block that a miniature remembers.
        if !is_sampled(block.id, self.rate) {
            return;
        }
        self.show_curves(block, kind);
        let (mut hits, mut second) = ([0.0; RAM.len()], [0.0; SECOND.len()]);
        let gone = &mut self.gone;
        for (at, (model, hit)) in self.memory.iter_mut().zip(&mut hits).enumerate() {
            let is_hit = model.access(block, &mut |evicted| {
                if at == NOW {
                    gone.push(evicted);
                }
            });
            *hit = f64::from(u8::from(is_hit));
        }
        if hits[NOW] == 0.0 && kind != Kind::Fill {
            for (tier, hit) in self.second.iter_mut().zip(&mut second) {
                *hit = f64::from(u8::from(tier.get(block.id)));
            }
        }
        for evicted in self.gone.drain(..).filter(|evicted| evicted.is_eligible) {
            self.second.iter_mut().for_each(|tier| tier.offer(evicted.id, evicted.size));
        }
        if kind != Kind::Fill {
            let missed = f64::from(u8::from(kind == Kind::Miss));
            let counts = Counts { accesses: 1.0, missed, merged: 0.0, hits, second };
            self.whole.add(&counts);
            if let Some(group) = self.groups.get_mut(&block.group) {
                group.counts.add(&counts);
            }
            if self.whole.accesses >= 2.0 * MEMORY {
                self.fade();
            }
        }
        if self.memory[NOW].len() > 2 * self.blocks {
            self.thin();
        }
    }

    fn show_curves(&mut self, block: Kept, kind: Kind) {
        let is_use = kind != Kind::Fill;
        let show = |curve: &mut Curve| match is_use {
            true => curve.access(block.id, block.size),
            false => curve.fill(block.id, block.size),
        };
        show(&mut self.curve);
        if is_use {
            self.make_known(block.group);
        }
        let Some(group) = self.groups.get_mut(&block.group) else { return };
        let uses = f64::from(u8::from(is_use));
        (group.fed, group.standing) = (group.fed + uses, group.standing + uses);
        if let Some(curve) = &mut group.curve {
            show(curve);
            return;
        }
        // Busy enough for a curve, if there is one left, or somebody has one who is far less so.
        let fed = group.fed;
        if fed < ENOUGH {
            return;
        }
        let with = |group: &&mut Group| group.curve.is_some();
        if self.groups.values_mut().filter(with).count() >= CURVES {
            let least = self.groups.values_mut().filter(with).min_by(|a, b| a.fed.total_cmp(&b.fed));
            match least.filter(|least| least.fed * 2.0 < fed) {
                Some(least) => least.curve = None,
                None => return,
            }
        }
        if let Some(group) = self.groups.get_mut(&block.group) {
            group.curve = Some(Box::new(Curve::new(CURVE_KEYS)));
        }
    }

    /// Gives a group a place, if it has none.
    fn make_known(&mut self, group: u32) {
        if self.groups.contains_key(&group) {
            return;
        }
        let mut standing = 0.0;
        if self.groups.len() >= GROUPS {
            let least = self.groups.iter().min_by(|(_, a), (_, b)| a.standing.total_cmp(&b.standing));
            let least = least.map(|(number, _)| *number);
            standing = least.and_then(|least| self.groups.remove(&least)).map_or(0.0, |gone| gone.standing);
        }
        self.groups.insert(group, Group { standing, ..Group::default() });
    }

    fn fade(&mut self) {
        self.halvings += 1;
        self.whole.fade();
        self.curve.fade(0.5);
        for group in self.groups.values_mut() {
            group.counts.fade();
            (group.fed, group.standing) = (group.fed * 0.5, group.standing * 0.5);
            if let Some(curve) = &mut group.curve {
                curve.fade(0.5);
            }
        }
    }

    /// Half of the sample has to do from now on, because it costs too much; false if it is as thin as can be judged by.
    /// The error that is stated grows with it.
    pub fn economise(&mut self) -> bool {
        let can = self.memory[NOW].len() >= BLOCKS_MIN;
        if can {
            self.thin();
        }
        can
    }

    /// The miniatures hold enough: half of the sample will do.
    fn thin(&mut self) {
        self.rate += 1;
        let rate = self.rate;
        let keep = move |id: u64| is_sampled(id, rate);
        let sizes = RAM.map(|part| self.scaled(part));
        self.memory.iter_mut().zip(sizes).for_each(|(model, size)| model.thin(size, &keep));
        let sizes = SECOND.map(|part| self.scaled(part));
        self.second.iter_mut().zip(sizes).for_each(|(tier, size)| tier.thin(size, keep));
        // Distances between other blocks are others.
        self.curve.begin_anew();
        let curves = self.groups.values_mut().filter_map(|group| group.curve.as_deref_mut());
        curves.for_each(Curve::begin_anew);
    }

    /// What is expected of everything. `missed` is the share of all accesses that is really missed, sampled or not, if
    /// that is known.
    #[must_use]
    pub fn outlook(&self, missed: Option<f64>) -> Outlook {
        self.outlook_of(&self.whole, missed, Some(&self.curve), 0.0)
    }

    /// The same of some groups together; none if there is too little to judge by. `missed` is of all accesses here, too: what
    /// the sample of everything is off from it a group may be off by.
    #[must_use]
    pub fn outlook_of_groups(&self, groups: &[u32], missed: Option<f64>) -> Option<Outlook> {
        let mut counts = Counts::default();
        let known = groups.iter().filter_map(|group| self.groups.get(group));
        known.clone().for_each(|group| counts.add(&group.counts));
        let curve = match groups {
            [_] => known.clone().find_map(|group| group.curve.as_deref()),
            _ => None,
        };
        // Few accesses are a sample of their own: two deviations.
        let luck = 1.0 / counts.accesses.max(1.0).sqrt();
        // Of which group the hot blocks are that the sample lacks, or has too many of, nobody knows.
        let off = missed.map_or(0.0, |missed| (self.whole.missed_share() - missed).abs());
        (counts.accesses >= ENOUGH).then(|| self.outlook_of(&counts, None, curve, luck.max(off)))
    }

    /// `least` is an error that is admitted in any case.
    fn outlook_of(&self, counts: &Counts, missed: Option<f64>, curve: Option<&Curve>, least: f64) -> Outlook {
        let share = |count: f64| if counts.accesses > 0.0 { count / counts.accesses } else { 0.0 };
        let really = missed.unwrap_or_else(|| counts.missed_share()).clamp(0.0, 1.0);
        let of_now = 1.0 - share(counts.hits[NOW]);
        let scale = |miniature: f64| match of_now > 0.0 {
            true => 1.0 - (really * miniature / of_now).clamp(0.0, 1.0),
            false => 1.0 - really,
        };
        let sizes = |parts: &[f64]| -> Vec<u64> {
            parts.iter().map(|part| (self.capacity as f64 * part) as u64).collect()
        };
        let memory = sizes(&RAM).into_iter().zip(counts.hits);
        let second = sizes(&SECOND).into_iter().zip(counts.second);
        // Of a share of accesses that is known from so many blocks, if it is a half, where it deviates most. Accesses to
        // one block, and the rules that a miniature chooses, hang together: so it is not the accesses that count.
        let of_sample = |model: &Model| (SIGMAS * 0.5 / (model.len().max(1) as f64).sqrt()).min(1.0);
        let residual = (of_now - share(counts.missed)).abs();
        let error = of_sample(&self.memory[NOW]).max(residual).max(least);
        let errors = self.memory.iter().map(|model| error.max(of_sample(model)));
        let lru = |curve: &Curve| -> Vec<Point> {
            let sizes = (-4..=5).map(|power| (self.capacity as f64 * f64::from(power).exp2()) as u64);
            let ratio = |size: u64| 1.0 - curve.miss_ratio(size >> (self.feed + self.rate));
            sizes.map(|size| Point { size, hit_ratio: ratio(size), error }).collect()
        };
        Outlook {
            accesses: counts.accesses,
            hit_ratio: 1.0 - really,
            error,
            memory: memory
                .zip(errors)
                .map(|((size, hits), error)| Point { size, hit_ratio: scale(1.0 - share(hits)), error })
                .collect(),
            second: second
                .map(|(size, hits)| {
                    let hit_ratio = scale((of_now - share(hits)).max(0.0));
                    Point { size, hit_ratio, error }
                })
                .collect(),
            lru: curve.map_or_else(Vec::new, lru),
        }
    }
}

/// An identity whose upper bits are as good as any: the caller chose what is fed by them.
const fn spread(id: u64) -> u64 {
    mix(id ^ 0x9e6c_63d0_676a_9a99)
}

const fn is_sampled(id: u64, rate: u32) -> bool {
    // Not the bits that policies and their own miniatures choose by, which are the upper ones.
    rate == 0 || mix(id) >> (u64::BITS - rate) == 0
}
