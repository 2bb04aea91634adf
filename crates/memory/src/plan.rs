//! How large the cache may be now, and what is shed: numbers in, numbers out, no clock and no files of its own.
//!
//! ```text
//!   limit = reserve + parts (dirty data, requests, buffers, …) + what is about to come + overhead + cache
//!                                                                                          │        └ what is left
//!       what the process has in memory beyond what is counted: program, stacks, the allocator's gaps
//! ```
//!
//! * Down at once, up slowly: what lacks is taken from the cache in the same look, what is there again is given back over
//!   ten seconds or so. Overhead goes the other way: up at once, down slowly.
//! * Memory that the cache gave up a moment ago may be with the allocator still. It is not taken for overhead before it
//!   has had the time to go; otherwise each reduction would cause the next.
//! * Three more voices may ask for less: the cgroup (whoever else is in it counts), the machine's available memory, and
//!   pressure, which is somebody waiting for memory now. Where pressure is told of the whole machine only, it may be for the
//!   limit of a stranger's cgroup, and what we give up would be of no use to him: it counts while the machine has little.
//! * Below a floor the cache is not made smaller by itself: first others have to give way, in [`Stage`]s, one a look; if
//!   what lacks cannot wait, all at once. What was shed last comes back first, when there has been room for a while.
//! * If even that is not enough clients are slowed down: less may be in flight and less dirty. Nothing is refused.

use std::{collections::VecDeque, time::Duration};

use crate::machine::Stall;

/// How long freed memory may take to reach the kernel.
const RETURNING: Duration = Duration::from_millis(1500);
/// How long there must be room before what was shed comes back, a stage at a time.
const BACK_AFTER: Duration = Duration::from_secs(5);
/// From nothing to the whole limit takes the cache at least this long.
const GROW_WITHIN: f64 = 12.0;
/// How long overhead that is gone is still reckoned with.
const FORGET: f64 = 20.0;
/// Percent of time in which somebody waits for memory, from which on the cache gives way, and does not grow.
const STALL: f64 = 10.0;
const STALL_LOW: f64 = 1.0;
/// The machine has little memory for somebody to wait for it, when less than so many times [`Terms::low`] is available.
const SCARCE: u64 = 4;

/// What is shed, in this order. The last is no end to anything: clients are slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing.
    #[default]
    Nothing,
    /// Statistics that are kept for people.
    Statistics,
    /// Scans wait.
    Scans,
    /// The cache gets as small as it must.
    Cache,
    /// What is known of cache devices gets as small as the cache. By itself that would take minutes.
    Index,
    /// Less in flight, less dirty: clients wait longer.
    Clients,
}

impl Stage {
    /// All that is shed at this stage, in order, as people call it.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        const NAMES: [&str; 5] =
            ["statistics", "scans", "cache", "index of cache devices", "speed of clients"];
        NAMES.get(..self as usize).unwrap_or(&NAMES)
    }

    const fn next(self) -> Self {
        match self {
            Self::Nothing => Self::Statistics,
            Self::Statistics => Self::Scans,
            Self::Scans => Self::Cache,
            Self::Cache => Self::Index,
            Self::Index | Self::Clients => Self::Clients,
        }
    }

    const fn before(self) -> Self {
        match self {
            Self::Nothing | Self::Statistics => Self::Nothing,
            Self::Scans => Self::Statistics,
            Self::Cache => Self::Scans,
            Self::Index => Self::Cache,
            Self::Clients => Self::Index,
        }
    }
}

/// Who asks for the cache to be as small as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Nobody: it may have all that is left of the limit.
    #[default]
    Limit,
    /// The cgroup: others in it take a part.
    Cgroup,
    /// The machine has little left.
    Machine,
    /// Somebody waits for memory.
    Pressure,
    /// The size that was given for it.
    Cap,
}

impl Why {
    /// In a sentence: "because of …".
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Limit => "the limit",
            Self::Cgroup => "others in the cgroup",
            Self::Machine => "little free memory of the machine",
            Self::Pressure => "pressure on memory",
            Self::Cap => "the size given for it",
        }
    }
}

/// What follows from the limit, and changes with it only. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What may be resident.
    pub limit: u64,
    /// Never planned with: what may come between two looks that nobody rings a bell for.
    pub reserve: u64,
    /// The cache at most.
    pub cap: u64,
    /// It is not smaller than this while there is anything else to shed.
    pub floor: u64,
    /// Nor than this at all.
    pub least: u64,
    /// The machine's memory.
    pub total: Option<u64>,
}

impl Terms {
    /// For this limit.
    #[must_use]
    pub fn new(limit: u64, cap: Option<u64>, total: Option<u64>) -> Self {
        // Who asks for a small cache gets it: some MiB of metadata is all that a pool cannot do without.
        let cap = cap.unwrap_or(limit).clamp(4 << 20, limit.max(4 << 20));
        let least = (limit / 64).clamp(4 << 20, 64 << 20).min(cap);
        let floor = (limit / 12).max(least).min(cap);
        Self { limit, reserve: (limit / 12).clamp(12 << 20, 1 << 30), cap, floor, least, total }
    }

    /// Bytes of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        (self.limit / 8).clamp(16 << 20, 4 << 30)
    }

    /// Bytes of dirty data, over all pools.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        (self.limit / 10).clamp(16 << 20, 4 << 30)
    }

    /// Bytes that transaction groups may take beside dirty data until they are durable (parity, what is compressed, what is on its
    /// way to the devices), over all pools.
    #[must_use]
    pub fn beside(&self) -> u64 {
        (self.limit / 8).clamp(16 << 20, 1 << 30)
    }

    /// Bytes of I/O buffers kept for use again.
    #[must_use]
    pub fn idle(&self) -> u64 {
        (self.limit / 16).clamp(4 << 20, 1 << 30)
    }

    /// The machine's memory below which the cache gives way to others.
    fn low(&self) -> u64 {
        self.total.map_or(0, |total| (total / 64).clamp(32 << 20, 1 << 30))
    }
}

/// What is seen at one look. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sight {
    /// What the process has in memory.
    pub resident: u64,
    /// What the cache holds.
    pub cache: u64,
    /// What all others hold that are counted.
    pub parts: u64,
    /// Part of that which is known of cache devices beyond what a cache of this size may know.
    pub beyond: u64,
    /// What may come before the next look.
    pub coming: u64,
    /// What the cgroup has left.
    pub cgroup: Option<i64>,
    /// What the machine has available.
    pub available: Option<u64>,
    /// How long somebody waits for memory.
    pub stall: Stall,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Bytes the cache may hold.
    pub target: u64,
    /// Who asks for that.
    pub why: Why,
    /// What is shed.
    pub stage: Stage,
    /// How far clients are slowed down: 0 not at all; each step halves what may be in flight and dirty.
    pub squeeze: u32,
    /// Bytes in memory beyond what is counted.
    pub overhead: u64,
    /// Memory is short now: look again soon, and let the allocator give back what it keeps.
    pub is_short: bool,
    /// The cache may have more than it gets now: look again soon.
    pub is_growing: bool,
    /// Nothing keeps the cache from growing but what it may have.
    pub may_grow: bool,
    /// Bytes that the cache held and others need.
    pub lacks: u64,
}

/// Steps of slowing down at most.
pub const SQUEEZE_MAX: u32 = 3;

/// What is remembered between two looks.
#[derive(Debug)]
pub struct Plan {
    terms: Terms,
    target: u64,
    overhead: f64,
    /// What the cache gave up, and how long ago.
    returning: VecDeque<(Duration, u64)>,
    stage: Stage,
    squeeze: u32,
    /// How long there has been room for what was shed.
    room_for: Duration,
    started: bool,
}

impl Plan {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            target: terms.least,
            overhead: 0.0,
            returning: VecDeque::new(),
            stage: Stage::Nothing,
            squeeze: 0,
            room_for: Duration::ZERO,
            started: false,
        }
    }

    /// What follows from the limit.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// The limit is another one from now on: what was seen under the one before holds all the same.
    pub const fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// Looks: `elapsed` since the last time.
    pub fn look(&mut self, sight: &Sight, elapsed: Duration) -> Verdict {
        let terms = self.terms;
        let seconds = elapsed.as_secs_f64().min(60.0);
        for (age, _) in &mut self.returning {
            *age += elapsed;
        }
        self.returning.retain(|(age, _)| *age < RETURNING);
        let returning: u64 = self.returning.iter().map(|(_, bytes)| *bytes).sum();

        let counted = sight.cache.saturating_add(sight.parts);
        let beyond = sight.resident.saturating_sub(counted).saturating_sub(returning) as f64;
        if beyond >= self.overhead {
            self.overhead = beyond;
        } else {
            self.overhead -= (self.overhead - beyond) * (seconds / FORGET).min(1.0);
        }
        let overhead = self.overhead as u64;

        let taken = [terms.reserve, sight.parts, sight.coming, overhead];
        let taken = taken.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
        let mut wanted = signed(terms.limit) - signed(taken);
        let mut why = Why::Limit;
        let mut less = |other: i64, reason: Why| {
            if other < wanted {
                (wanted, why) = (other, reason);
            }
        };
        let mut may_grow = true;
        if let Some(left) = sight.cgroup {
            // What is coming is not there yet; what is returning is still counted there.
            let other = signed(sight.cache) + left + signed(returning)
                - signed(terms.reserve / 2)
                - signed(sight.coming);
            less(other, Why::Cgroup);
        }
        if let Some(available) = sight.available {
            let low = terms.low();
            let available = available.saturating_add(returning);
            if available < low {
                less(signed(sight.cache) - signed(low - available), Why::Machine);
            }
            may_grow &= available >= 2 * low;
        }
        let is_scarce = sight.available.is_none_or(|available| available < SCARCE * terms.low());
        let stall = if sight.stall.is_ours || is_scarce { sight.stall.percent } else { 0.0 };
        if stall >= STALL {
            // By a quarter of what it holds in a second.
            less(signed(sight.cache) - (sight.cache as f64 * 0.25 * seconds.min(1.0)) as i64, Why::Pressure);
        }
        may_grow &= stall < STALL_LOW;
        // A small cache is what somebody wished, and no shortage: there is room if it may have more than that.
        let room = wanted;
        if signed(terms.cap) < wanted {
            (wanted, why) = (signed(terms.cap), Why::Cap);
        }

        self.shed(room, sight.beyond, elapsed);
        let bound = if self.stage < Stage::Cache { terms.floor } else { terms.least };
        let most = u64::try_from(wanted).unwrap_or(0).max(bound);
        let before = self.target;
        if !self.started {
            (self.started, self.target) = (true, most);
        } else if most < self.target {
            self.target = most;
        } else if may_grow {
            let step = terms.limit as f64 * (seconds / GROW_WITHIN).min(1.0);
            self.target = most.min(self.target.saturating_add(step as u64));
        }
        if self.target < before.min(sight.cache) {
            self.returning.push_back((Duration::ZERO, before.min(sight.cache) - self.target));
        }
        Verdict {
            target: self.target,
            why,
            stage: self.stage,
            squeeze: self.squeeze,
            overhead,
            is_short: room < signed(terms.floor) || self.target < sight.cache,
            is_growing: self.target < most,
            may_grow: may_grow && room >= signed(terms.floor),
            lacks: sight.cache.saturating_sub(u64::try_from(room).unwrap_or(0)),
        }
    }

    /// `room`: what the cache may have of others, whatever size was given for it.
    fn shed(&mut self, room: i64, beyond: u64, elapsed: Duration) {
        let terms = self.terms;
        if room < signed(terms.floor) {
            self.room_for = Duration::ZERO;
            let is_urgent = room < signed(terms.least);
            if is_urgent && self.stage < Stage::Cache {
                self.stage = Stage::Cache;
            } else if self.stage < Stage::Cache {
                self.stage = self.stage.next();
            } else if room < 0 && self.stage < Stage::Index && beyond > 0 {
                self.stage = Stage::Index;
            } else if room < 0 {
                self.stage = Stage::Clients;
                self.squeeze = (self.squeeze + 1).min(SQUEEZE_MAX);
            }
            return;
        }
        if self.stage == Stage::Nothing {
            return;
        }
        // What comes back takes a part of it.
        let is_room = room >= signed(terms.floor.saturating_add(terms.reserve / 2));
        self.room_for = if is_room { self.room_for + elapsed } else { Duration::ZERO };
        if self.room_for >= BACK_AFTER {
            self.room_for = Duration::ZERO;
            if self.squeeze > 1 {
                self.squeeze -= 1;
            } else {
                self.squeeze = 0;
                self.stage = self.stage.before();
                if self.stage == Stage::Index && beyond == 0 {
                    self.stage = Stage::Cache;
                }
            }
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;
    const TICK: Duration = Duration::from_millis(100);

    /// A process as the plan sees it: a cache that takes all it may, an allocator that keeps what is freed for a while.
    struct World {
        plan: Plan,
        base: u64,
        dirty: u64,
        flight: u64,
        cache: u64,
        /// What the allocator keeps, with the time that it will.
        kept: VecDeque<(u32, u64)>,
        keeps_for: u32,
        cgroup: Option<u64>,
        strangers: u64,
        available: Option<u64>,
        stall: Stall,
        /// What is known of cache devices.
        index: u64,
    }

    impl World {
        fn new(limit: u64) -> Self {
            Self {
                plan: Plan::new(Terms::new(limit, None, Some(16 << 30))),
                base: 30 * M,
                dirty: 0,
                flight: 0,
                cache: 0,
                kept: VecDeque::new(),
                keeps_for: 10,
                cgroup: None,
                strangers: 0,
                available: None,
                stall: Stall::default(),
                index: 0,
            }
        }

        fn resident(&self) -> u64 {
            let kept: u64 = self.kept.iter().map(|(_, bytes)| bytes).sum();
            self.base + self.dirty + self.flight + self.index + self.cache + kept
        }

        fn look(&mut self) -> Verdict {
            self.kept.iter_mut().for_each(|(left, _)| *left -= 1);
            self.kept.retain(|(left, _)| *left > 0);
            let parts = self.dirty + self.flight;
            let sight = Sight {
                resident: self.resident(),
                cache: self.cache,
                parts: parts + self.index,
                beyond: self.index.saturating_sub(self.cache / 3),
                coming: 4 * M,
                cgroup: self.cgroup.map(|limit| limit as i64 - (self.resident() + self.strangers) as i64),
                available: self.available,
                stall: self.stall,
            };
            let verdict = self.plan.look(&sight, TICK);
            if verdict.stage >= Stage::Index {
                self.index = self.index.min(verdict.target / 3);
            }
            if verdict.target < self.cache {
                self.kept.push_back((self.keeps_for, self.cache - verdict.target));
                self.cache = verdict.target;
            } else {
                // New memory is first what the allocator keeps.
                let more = (verdict.target - self.cache).min(20 * M);
                self.cache += more;
                let mut reused = more;
                for (_, bytes) in &mut self.kept {
                    let now = reused.min(*bytes);
                    *bytes -= now;
                    reused -= now;
                }
            }
            verdict
        }

        fn looks(&mut self, n: u32) -> Verdict {
            (0..n).map(|_| self.look()).last().unwrap()
        }
    }

    #[test]
    fn the_cache_has_what_the_others_leave_and_gives_way_in_one_look() {
        let mut world = World::new(512 * M);
        let all = world.looks(300);
        assert_eq!((all.stage, all.why), (Stage::Nothing, Why::Limit));
        assert_eq!((all.may_grow, all.lacks), (true, 0));
        assert!((400 * M..450 * M).contains(&all.target), "{}", all.target / M);
        (world.dirty, world.flight) = (50 * M, 60 * M);
        let less = world.look();
        assert!(less.target + 105 * M <= all.target, "{} {}", less.target / M, all.target / M);
        assert_eq!(less.stage, Stage::Nothing, "that is what a cache is for");
        (world.dirty, world.flight) = (0, 0);
        assert!(world.look().target < less.target + 10 * M, "it comes back slowly");
        assert!(world.looks(300).target > all.target - 8 * M);
    }

    #[test]
    fn what_the_allocator_keeps_for_a_while_does_not_shrink_the_cache_again_and_again() {
        let mut world = World::new(512 * M);
        world.looks(300);
        world.dirty = 100 * M;
        let once = world.look().target;
        let least = (0..60).map(|_| world.look().target).min().unwrap();
        assert!(least + 8 * M >= once, "{} after {}", least / M, once / M);
    }

    #[test]
    fn what_nobody_counts_is_charged_and_forgotten_slowly() {
        let mut world = World::new(512 * M);
        let before = world.looks(300).target;
        world.base += 100 * M;
        let after = world.looks(20);
        assert!(after.overhead >= 130 * M && after.target + 98 * M <= before, "{}", after.target / M);
        assert!(world.resident() <= 512 * M);
        world.base -= 100 * M;
        assert!(world.looks(10).overhead > 120 * M, "it may come again");
        assert!(world.looks(1000).target + 8 * M > before);
    }

    /// Everything at once, at random: what is resident stays within the limit.
    #[test]
    fn the_limit_holds_whatever_comes() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for limit in [160 * M, 240 * M, 512 * M, 2048 * M, 64 << 30] {
            let mut world = World::new(limit);
            world.looks(200);
            let terms = world.plan.terms();
            for step in 0..3000 {
                let verdict = world.look();
                // Dirty data and requests come in steps of which the bell tells.
                let most = |bytes: u64| bytes >> verdict.squeeze;
                let step_bytes = 4 * M / 2;
                let (dirty, flight) = (random(most(terms.dirty()) + 1), random(most(terms.in_flight()) + 1));
                world.dirty = if dirty > world.dirty { (world.dirty + step_bytes).min(dirty) } else { dirty };
                world.flight =
                    if flight > world.flight { (world.flight + step_bytes).min(flight) } else { flight };
                world.base = 30 * M + random(8 * M);
                world.keeps_for = 1 + random(12) as u32;
                let kept: u64 = world.kept.iter().map(|(_, bytes)| bytes).sum();
                assert!(
                    world.resident() - kept <= limit,
                    "step {step}: {} of {}, kept {}",
                    world.resident() / M,
                    limit / M,
                    kept / M
                );
            }
        }
    }

    /// The index of large cache devices kept a third of the limit for ten minutes while clients waited for memory.
    #[test]
    fn what_is_known_of_cache_devices_goes_before_clients_wait() {
        let mut world = World::new(512 * M);
        world.looks(300);
        for _ in 0..15 {
            world.index += 10 * M; // the cache makes room for it
            world.looks(3);
        }
        assert_eq!(world.looks(1).stage, Stage::Nothing);
        let mut seen = Vec::new();
        for _ in 0..25 {
            world.dirty += 12 * M;
            seen.push(world.look());
        }
        let last = seen.last().unwrap();
        assert_eq!((last.stage, last.squeeze), (Stage::Index, 0), "{seen:?}");
        assert!(world.index < 10 * M && world.resident() < 512 * M);
        world.dirty = 0;
        assert_eq!(world.looks(600).stage, Stage::Nothing);
        // Where there is nothing of the kind, clients wait at once.
        world.index = 0;
        world.dirty = 500 * M;
        world.looks(2);
        assert_eq!(world.look().stage, Stage::Clients);
    }

    #[test]
    fn others_in_the_cgroup_and_a_machine_that_runs_out_make_it_smaller_and_it_comes_back() {
        let mut world = World::new(1024 * M);
        world.looks(300);
        let before = world.cache;
        world.cgroup = Some(1100 * M);
        world.strangers = 400 * M;
        let verdict = world.looks(20);
        assert_eq!(verdict.why, Why::Cgroup);
        assert!(world.resident() + world.strangers <= 1100 * M);
        world.strangers = 0;
        world.looks(300);
        assert!(world.cache + 50 * M > before);
        world.cgroup = None;
        world.available = Some(100 * M);
        let verdict = world.look();
        assert_eq!(verdict.why, Why::Machine);
        assert!(verdict.target + 150 * M <= before, "156 M are lacking there");
        assert!((150 * M..160 * M).contains(&verdict.lacks) && !verdict.may_grow, "{verdict:?}");
        world.available = Some(4 << 30);
        world.looks(300);
        assert!(world.cache + 50 * M > before);
        world.stall = Stall { percent: 30.0, is_ours: true };
        assert_eq!(world.look().why, Why::Pressure);
        world.looks(9);
        assert!(world.cache < before * 9 / 10 && world.cache > before / 2, "a quarter in a second");
        world.stall.percent = 5.0;
        let small = world.cache;
        world.looks(10);
        assert!(world.cache <= small, "it does not grow while anybody waits");
    }

    /// A stranger in a cgroup that is too small for him took the whole cache on machines with cgroups of version 1.
    #[test]
    fn strangers_who_wait_for_memory_matter_when_the_machine_has_little_of_it() {
        let mut world = World::new(1024 * M);
        world.available = Some(8 << 30);
        let before = world.looks(300).target;
        world.stall = Stall { percent: 60.0, is_ours: false };
        let verdict = world.looks(100);
        assert_eq!((verdict.target, verdict.why), (before, Why::Limit));
        (world.dirty, world.flight) = (100 * M, 0);
        world.looks(20);
        world.dirty = 0;
        assert!(world.looks(300).target > before - 8 * M, "it grows again");
        // A 64th of 16 GiB is what it gives way for by itself; four times as much is little.
        world.available = Some(1000 * M);
        let verdict = world.looks(10);
        assert!(verdict.why == Why::Pressure && verdict.target < before * 9 / 10, "{verdict:?}");
        (world.available, world.stall.is_ours) = (Some(8 << 30), true);
        let smaller = world.look().target;
        assert!(smaller < verdict.target, "our own cgroup's always do");
        world.available = None;
        world.stall.is_ours = false;
        assert!(world.look().target < smaller, "and so they do where nobody says what the machine has");
    }

    /// The floor stayed that of the limit at the start, more than the whole cgroup had left: scrubs waited for good.
    #[test]
    fn a_limit_that_is_lowered_is_no_lasting_shortage() {
        let mut world = World::new(15 << 30);
        world.looks(300);
        world.cgroup = Some(2 << 30);
        world.plan.set_terms(Terms::new(1920 * M, None, Some(16 << 30)));
        let verdict = world.looks(600);
        assert_eq!((verdict.stage, verdict.squeeze), (Stage::Nothing, 0), "{verdict:?}");
        assert!(world.resident() <= 2 << 30);
    }

    #[test]
    fn what_is_shed_goes_in_order_and_comes_back_in_the_other() {
        let mut world = World::new(512 * M);
        world.looks(300);
        world.cgroup = Some(600 * M);
        // Little by little: each stage is seen.
        use Stage::{Cache, Clients, Nothing, Scans, Statistics};
        let mut stages = vec![Nothing];
        for step in 0..400_u64 {
            world.strangers = step * 2 * M;
            let stage = world.look().stage;
            if stages.last() != Some(&stage) {
                stages.push(stage);
            }
        }
        assert_eq!(stages, [Nothing, Statistics, Scans, Cache, Clients]);
        assert_eq!(Cache.names(), ["statistics", "scans", "cache"]);
        world.strangers = 0;
        let mut back = vec![];
        for _ in 0..1000 {
            let stage = world.look().stage;
            if back.last() != Some(&stage) {
                back.push(stage);
            }
        }
        assert_eq!(back, [Clients, Cache, Scans, Statistics, Nothing]);
        // All at once, if it cannot wait.
        world.strangers = 560 * M;
        let verdict = world.look();
        assert!(verdict.stage >= Cache, "{verdict:?}");
    }

    /// It was never more than the size given for the cache, which was less than what had to be there for it to come back.
    #[test]
    fn what_was_shed_comes_back_to_a_cache_of_a_small_size_too() {
        let limit = 1024 * M;
        let mut world = World::new(limit);
        world.plan = Plan::new(Terms::new(limit, Some(limit / 20), Some(16 << 30)));
        for _ in 0..300 {
            let calm = world.look();
            assert_eq!(
                (calm.stage, calm.lacks),
                (Stage::Nothing, 0),
                "small as it is, nobody is short of memory"
            );
        }
        assert_eq!(world.cache, limit / 20);
        world.stall = Stall { percent: 30.0, is_ours: true };
        assert!(world.looks(10).stage > Stage::Nothing);
        world.stall = Stall::default();
        let after = world.looks(400);
        assert_eq!((after.stage, after.why, world.cache), (Stage::Nothing, Why::Cap, limit / 20));
        assert!(!after.is_short && after.may_grow, "{after:?}");
    }

    #[test]
    fn the_size_given_for_the_cache_is_a_bound_only() {
        let mut plan = Plan::new(Terms::new(1024 * M, Some(100 * M), None));
        let sight = Sight { resident: 30 * M, ..Sight::default() };
        let verdict = plan.look(&sight, TICK);
        assert_eq!((verdict.target, verdict.why), (100 * M, Why::Cap));
    }

    /// Found by `cli/tests/alone/warm.rs`: on a large machine a cache of 16 MiB was one of 64 MiB.
    #[test]
    fn a_small_cap_is_kept_on_a_large_machine() {
        let terms = Terms::new(64 << 30, Some(16 * M), Some(96 << 30));
        assert_eq!((terms.cap, terms.floor, terms.least), (16 * M, 16 * M, 16 * M));
        assert_eq!(Terms::new(64 << 30, Some(1), None).cap, 4 * M);
    }
}
