//! Which rule set should run: evidence from the miniature caches, weighed so that being wrong costs little.
//!
//! Two memories of what each rule set hit that another missed. The *short* one says who is best now; a change needs
//! a gain of 1.5 % of the misses and three standard deviations. The *long* one, eight times as long, says who may be
//! trusted. A change costs up to a miss for each block held, so a set that has not gained a part of that on ARC over
//! the long run does not get its turn because of a good moment: a twentieth, and more in a cache that has not been
//! filled often yet. Without it a workload that shifts faster than the short memory is served by yesterday's rules
//! every time.
//!
//! The miniatures do not pay for changes; the real cache does. So it is known what it hits beside what ARC would, in
//! full and not on the sample ([`crate::shadow`]). What it gains is credited up to a limit; once it is behind by a little
//! it has to be ARC until half of that is forgotten.
//!
//! Deterministic: the same accesses lead to the same decisions.

use crate::rules::RULES;

const SETS: usize = RULES.len();
/// The set all others are measured by.
const ARC: usize = 0;

/// Half-life of the short memory, in blocks that a miniature holds; and at least this many sampled accesses.
const SHORT_TURNS: f32 = 2.0;
const SHORT_MIN: f32 = 3000.0;
/// The long memory's half-life is this many short ones.
const LONG: f32 = 8.0;
/// Sampled accesses between two verdicts.
const EVERY: u32 = 64;
/// What a change must promise: standard deviations, and a share of the misses.
const SIGMAS: f32 = 3.0;
const GAIN: f32 = 0.015;
/// Hits that a change must promise at least: a cold cache's first differences are luck.
const GAIN_MIN: f32 = 40.0;
/// What a change between rules of which neither are ARC's must promise in the short run, for each block held: less is
/// mostly lost again by changing.
const CHANGE: f32 = 0.1;
/// What a set must have gained on ARC over the long run, for each block held: so much divided by how often the cache was
/// filled, and this at least.
const PAYS: f32 = 2.3;
const PAYS_MIN: f32 = 0.05;
/// What the real cache is credited for being ahead of ARC, and how far it may be behind, as shares of the accesses
/// that the long memory holds. With a short memory of 3000 accesses: 87 hits and 69.
const CREDIT: f32 = 0.0025;
const BEHIND: f32 = 0.002;

/// Accesses that one of two hit and the other missed.
#[derive(Clone, Copy, Debug, Default)]
struct Duel {
    won: f32,
    lost: f32,
}

impl Duel {
    fn count(&mut self, is_hit: bool, other_is_hit: bool) {
        self.won += f32::from(u8::from(is_hit && !other_is_hit));
        self.lost += f32::from(u8::from(other_is_hit && !is_hit));
    }

    fn lead(self) -> f32 {
        self.won - self.lost
    }

    /// Of the lead, if each of these accesses were a toss.
    fn deviation(self) -> f32 {
        (self.won + self.lost).sqrt()
    }

    fn fade(&mut self, by: f32) {
        self.won *= by;
        self.lost *= by;
    }
}

/// What the real cache has made of the accesses since it was last shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real {
    /// Hits less those that ARC would have had, for one sampled block of each that it holds.
    pub(crate) lead: f32,
    /// It has lost too much to try other rules than ARC's.
    pub(crate) owes: bool,
    /// How often it was filled.
    pub(crate) turns: f32,
}

/// What is remembered, and who runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    running: usize,
    /// Of each two sets, in the short run: `won[a][b]` counts what a hit and b missed.
    won: [[f32; SETS]; SETS],
    misses: [f32; SETS],
    /// Each set against ARC, in the long run.
    long: [Duel; SETS],
    /// Hits of the real cache less ARC's, in the long run.
    real: f32,
    /// The real cache is behind: nobody but ARC may run.
    is_distrusted: bool,
    since: u32,
}

impl Judge {
    /// The set that should run.
    pub(crate) const fn running(&self) -> usize {
        self.running
    }

    /// What the running set has gained on ARC in the long run, on the sample.
    pub(crate) fn gain(&self) -> f32 {
        self.long[self.running].lead().max(0.0)
    }

    /// One sampled access: who hit it (bit i for set i), and what the real cache has done. `blocks` is what a miniature
    /// holds. True if another set should run from now on.
    pub(crate) fn see(&mut self, hits: u32, real: Real, blocks: usize) -> bool {
        let hit = |set: usize| hits >> set & 1 == 1;
        for loser in (0..SETS).filter(|set| !hit(*set)) {
            self.misses[loser] += 1.0;
            for winner in (0..SETS).filter(|set| hit(*set)) {
                self.won[winner][loser] += 1.0;
            }
        }
        for (set, duel) in self.long.iter_mut().enumerate() {
            duel.count(hit(set), hit(ARC));
        }
        self.real += real.lead;
        self.since += 1;
        if self.since < EVERY {
            return false;
        }
        let before = self.running;
        let short = (SHORT_TURNS * blocks as f32).max(SHORT_MIN);
        self.decide(LONG * short / std::f32::consts::LN_2, blocks as f32, real);
        self.fade(0.5_f32.powf(EVERY as f32 / short), 0.5_f32.powf(EVERY as f32 / (LONG * short)));
        self.since = 0;
        self.running != before
    }

    /// The sample became half as large: so does what is known from it.
    pub(crate) fn halve(&mut self) {
        self.fade(0.5, 0.5);
    }

    /// `memory` is how many accesses the long memory holds.
    fn decide(&mut self, memory: f32, blocks: f32, real: Real) {
        self.real = self.real.min(CREDIT * memory);
        if self.is_distrusted {
            self.is_distrusted = self.real < -0.5 * BEHIND * memory;
        } else if self.real < -BEHIND * memory {
            self.is_distrusted = true;
            self.running = ARC;
        }
        let now = self.running;
        let pays = blocks * (PAYS / real.turns.max(1.0)).max(PAYS_MIN);
        let may_leave = !self.is_distrusted && !real.owes;
        let duel = |set: usize| Duel { won: self.won[set][now], lost: self.won[now][set] };
        let best = (0..SETS)
            .filter(|set| *set != now && (*set == ARC || may_leave && self.long[*set].lead() >= pays))
            .filter(|set| {
                let least = if *set == ARC || now == ARC { GAIN_MIN } else { GAIN_MIN.max(CHANGE * blocks) };
                let gain = (GAIN * self.misses[now]).max(least);
                duel(*set).lead() > SIGMAS * duel(*set).deviation() + gain
            })
            .max_by(|a, b| duel(*a).lead().total_cmp(&duel(*b).lead()));
        self.running = best.unwrap_or(now);
    }

    fn fade(&mut self, short: f32, long: f32) {
        self.won.as_flattened_mut().iter_mut().chain(&mut self.misses).for_each(|count| *count *= short);
        self.long.iter_mut().for_each(|duel| duel.fade(long));
        self.real *= long;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows `times` accesses of which these sets hit every one.
    fn show(judge: &mut Judge, times: u32, hits: u32) {
        for _ in 0..times {
            let lead = (hits >> judge.running() & 1) as f32 - (hits & 1) as f32;
            judge.see(hits, Real { lead, owes: false, turns: 100.0 }, 1000);
        }
    }

    #[test]
    fn the_better_set_runs_soon_and_luck_is_not_enough() {
        let mut judge = Judge::default();
        show(&mut judge, 1000, 0);
        show(&mut judge, 5, 1 << 3);
        show(&mut judge, EVERY, 0);
        assert_eq!(judge.running(), ARC, "five hits are luck");
        show(&mut judge, 3 * EVERY, 1 << 3);
        assert_eq!(judge.running(), 3);
    }

    #[test]
    fn who_lost_to_arc_in_the_long_run_waits() {
        let mut judge = Judge::default();
        show(&mut judge, 10_000, 1 << ARC);
        show(&mut judge, 4_000, 1 << 2);
        assert_eq!(judge.running(), ARC, "4000 do not outweigh 10 000");
        show(&mut judge, 20_000, 1 << 2);
        assert_eq!(judge.running(), 2, "but nothing is for ever");
    }

    #[test]
    fn a_real_cache_behind_arc_has_to_be_arc() {
        let mut judge = Judge::default();
        show(&mut judge, 1000, 1 << 5);
        assert_eq!(judge.running(), 5);
        for _ in 0..1000 {
            // The miniature of set 5 promises what the real cache does not get.
            judge.see(1 << 5 | 1 << ARC, Real { lead: -1.0, owes: false, turns: 100.0 }, 1000);
        }
        assert_eq!(judge.running(), ARC);
        show(&mut judge, 200, 1 << 5);
        assert_eq!(judge.running(), ARC, "promises do not count while it is behind");
    }
}
