//! The default policy: the queue engine, under the rules that are best for what it sees.
//!
//! ```text
//!   all accesses ───────────────▶ Queues (full size, current rules) ──▶ what is evicted
//!        └─ one in 2^r, by hash ─▶ eight Minis (1/2^r of the size, one per rule set) ─▶ Judge ─▶ rules
//! ```
//! Each cache-full of accesses the miniatures see about a thousand blocks; they cost under 10 ns an access on average
//! from a hundred thousand blocks on, and less than a megabyte in all. A small cache is sampled whole.
//!
//! A change of rules moves nothing: both lists and the ghosts stay, and evictions bring them to their new shares. What
//! ARC would hold is known all the time ([`crate::shadow`]): under its rules the cache becomes that again, and under others
//! it goes no further from it than they have earned ([`crate::ledger`]).

use crate::{
    judge::{Judge, Real},
    ledger::Ledger,
    mini::{Mini, is_sampled},
    policy::{Block, GhostHits, Policy, Slot, Usage},
    queues::Queues,
    rules::{ARC, RULES},
};

/// A miniature holds this many blocks to twice as many; below, the sample is everything.
const MINI_BLOCKS: usize = 1024;
/// A miniature that became smaller than this part of it is of no use.
const FEW: usize = 4;
/// One block in 65 536 is the thinnest sample: its miniatures belong to a cache of 64 million blocks.
const RATE_MAX: u32 = 16;

/// The queue engine with its judge.
#[derive(Clone, Debug)]
pub struct Adaptive {
    queues: Queues,
    minis: [Mini; RULES.len()],
    judge: Judge,
    /// One block in `2^rate` is sampled.
    rate: u32,
    /// So many blocks to twice as many are enough for a miniature.
    mini_blocks: usize,
    switches: u64,
    /// Blocks that came in.
    inserts: u64,
}

impl Adaptive {
    /// An empty one.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self::with_minis(capacity, MINI_BLOCKS)
    }

    /// The same with other miniatures: of so many blocks to twice as many. Smaller ones cost less and judge less well.
    pub(crate) fn with_minis(capacity: u64, mini_blocks: usize) -> Self {
        Self {
            queues: Queues::shadowed(capacity, ARC),
            minis: RULES.map(|rules| Mini::new(capacity, rules)),
            judge: Judge::default(),
            rate: 0,
            mini_blocks,
            switches: 0,
            inserts: 0,
        }
    }

    /// The name of the rules it follows now.
    #[must_use]
    pub const fn rules(&self) -> &'static str {
        RULES[self.judge.running()].name
    }

    /// How often it changed them.
    #[must_use]
    pub const fn switches(&self) -> u64 {
        self.switches
    }

    /// Shows an access to the miniatures if it is in the sample.
    #[inline]
    fn observe(&mut self, tag: u32, size: u32) {
        if is_sampled(tag, self.rate) {
            self.sample(tag, size);
        }
    }

    fn sample(&mut self, tag: u32, size: u32) {
        let mut hits = 0;
        for (i, mini) in self.minis.iter_mut().enumerate() {
            hits |= u32::from(mini.access(tag, size)) << i;
        }
        let turns = self.inserts as f32 / self.queues.len().max(1) as f32;
        // A hit of one block in 2^rate stands for as many.
        let scale = (self.rate as f32).exp2();
        let ledger = self.queues.ledger();
        let real = Real { lead: ledger.take() as f32 / scale, owes: ledger.owes(), turns };
        ledger.promise((self.judge.gain() * scale) as i64);
        if self.judge.see(hits, real, self.minis[0].len()) {
            self.switches += 1;
            self.queues.set_rules(RULES[self.judge.running()]);
        }
        if self.rate < RATE_MAX && self.queues.len() >> self.rate >= 2 * self.mini_blocks {
            self.rate += 1;
            let capacity = self.mini_capacity();
            self.minis.iter_mut().for_each(|mini| mini.thin(self.rate, capacity));
            self.judge.halve();
        }
    }

    /// The sample is far too thin for what became of the cache, and what is known from it of another.
    fn begin_anew(&mut self) {
        while self.rate > 0 && self.queues.len() >> self.rate < self.mini_blocks {
            self.rate -= 1;
        }
        let capacity = self.mini_capacity();
        self.minis = RULES.map(|rules| Mini::new(capacity, rules));
        self.judge = Judge::default();
        self.inserts = 0;
        *self.queues.ledger() = Ledger::default();
        self.queues.set_rules(RULES[self.judge.running()]);
    }

    const fn mini_capacity(&self) -> u64 {
        self.queues.capacity_units() >> self.rate
    }
}

impl Policy for Adaptive {
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot> {
        self.inserts += 1;
        let slot = self.queues.insert(block, evicted);
        self.observe((block.id >> 32) as u32, block.size);
        slot
    }

    #[inline]
    fn hit(&mut self, slot: Slot) {
        if let Some((tag, size)) = self.queues.block(slot) {
            self.queues.hit(slot);
            self.observe(tag, size);
        }
    }

    fn hits(&mut self, slots: &[Slot]) {
        self.queues.ask_for(slots);
        slots.iter().for_each(|slot| self.hit(*slot));
    }

    fn is_frequent(&self, slot: Slot) -> bool {
        self.queues.is_frequent(slot)
    }

    fn remove(&mut self, slot: Slot) {
        let block = self.queues.block(slot);
        self.queues.remove(slot);
        // In the miniatures, too: where blocks are written over and over, what is dead would fill them to their capacity, many
        // times what the cache holds.
        if let Some((tag, _)) = block.filter(|(tag, _)| is_sampled(*tag, self.rate)) {
            self.minis.iter_mut().for_each(|mini| mini.remove(tag));
        }
    }

    fn compact(&mut self, most: usize, moved: &mut dyn FnMut(Slot, Slot)) -> bool {
        self.queues.compact(most, moved)
    }

    fn places(&self) -> usize {
        self.queues.places()
    }

    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        self.queues.set_capacity(capacity, evicted);
        if self.rate > 0 && self.queues.len() >> self.rate < self.mini_blocks / FEW {
            self.begin_anew();
        }
        let capacity = self.mini_capacity();
        self.minis.iter_mut().for_each(|mini| mini.resize(capacity));
    }

    fn capacity(&self) -> u64 {
        self.queues.capacity()
    }

    fn usage(&self) -> Usage {
        self.queues.usage()
    }

    fn ghost_hits(&self) -> GhostHits {
        self.queues.ghost_hits()
    }

    fn rules(&self) -> &'static str {
        self.rules()
    }

    fn switches(&self) -> u64 {
        self.switches
    }

    fn memory(&self) -> usize {
        self.queues.memory() + self.minis.iter().map(Mini::memory).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    /// Each block that is written takes the place of one that nobody will ask for again, under another identity: the
    /// miniatures held a thousand times what the cache did.
    #[test]
    fn what_became_worthless_leaves_the_miniatures() {
        let mut policy = Adaptive::new(1 << 20);
        let mut live = std::collections::VecDeque::new();
        for n in 0..200_000_u64 {
            let slot = policy.insert(Block { id: mix(n), size: 1 }, &mut |_| panic!("there is room for all"));
            live.push_back(slot.unwrap());
            if live.len() > 5000 {
                policy.remove(live.pop_front().unwrap());
            }
        }
        let sampled = 5000 >> policy.rate;
        assert_eq!(policy.rate, 2);
        for mini in &policy.minis {
            assert!((sampled / 2..2 * sampled).contains(&mini.len()), "{} of {sampled}", mini.len());
        }
        assert!(policy.minis.iter().map(Mini::memory).sum::<usize>() < 1 << 20, "as the module says");
    }
}
