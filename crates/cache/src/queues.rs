//! The queue engine: two lists, ghosts, and rules that are data.
//!
//! ```text
//!      new ▶ recent ──used again, in the way the rules want──▶ frequent       a ghost that comes back ▶ frequent
//!              └ evicted ▶ ghost                                 └ evicted ▶ ghost (ARC), or recent (by reuse), or gone
//! ```
//! What a block costs: 20 bytes for the links, half its identity, the time of its last use and one word of size, heat
//! and list; 12 for one and a half ghosts.
//!
//! Time is counted in accesses, coarsely: about a thousand ticks while as many accesses pass as blocks are held, so
//! that 31 bits last two million such turns and older blocks merely look a little younger than they are.
//!
//! Not here: which rules are good (`adaptive`).

use crate::{
    ghosts::{From, Ghost, Ghosts, TIME_MASK},
    policy::{Block, GhostHits, Policy, Slot, Usage},
    rules::{Promote, Rules, Share},
    slab::{List, Slab},
};

const RECENT: usize = 0;
const FREQUENT: usize = 1;
/// In place of a list: a free entry.
const FREE: u32 = 3;

/// Bits of an item's size.
const SIZE_BITS: u32 = 24;
/// The largest block, in the caller's units: with sectors of 512 bytes, 8 GiB.
pub(crate) const SIZE_MAX: u32 = (1 << SIZE_BITS) - 1;
const HEAT_MAX: u32 = 3;

/// Ghosts in thousandths of blocks held: what the most forgetful rules need.
const GHOST_PLACES: u64 = 1500;
/// Ticks of the clock while as many accesses pass as blocks are held.
const TICKS: u64 = 1024;
/// Blocks moved from recent to frequent for one eviction, while frequent is being filled: it must not take long.
const FILL_STEPS: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Item {
    /// Upper half of the identity.
    tag: u32,
    /// When it was last used.
    used: u32,
    /// List (2 bits), heat (6), size (24).
    word: u32,
}
const _: () = assert!(size_of::<Item>() == 12, "with its links an item is 20 bytes");

impl Item {
    const fn size(self) -> u64 {
        (self.word & SIZE_MAX) as u64
    }
    const fn list(self) -> u32 {
        self.word >> 30
    }
    const fn heat(self) -> u32 {
        (self.word >> SIZE_BITS) & 0x3f
    }
    const fn set_list(&mut self, list: u32) {
        self.word = self.word & 0x3fff_ffff | list << 30;
    }
    const fn set_heat(&mut self, heat: u32) {
        self.word = self.word & !(0x3f << SIZE_BITS) | heat << SIZE_BITS;
    }
}

/// The engine with the rules it follows now.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    capacity: u64,
    rules: Rules,
    /// Learned share of the recent list, in units of capacity.
    p: f64,
    now: u32,
    /// Accesses since the last tick.
    since_tick: u64,
    lists: [List; 2],
    slab: Slab<Item>,
    ghosts: Ghosts,
    ghost_hits: GhostHits,
}

impl Queues {
    pub(crate) fn new(capacity: u64, rules: Rules) -> Self {
        Self {
            capacity,
            rules,
            p: 0.0,
            now: 0,
            since_tick: 0,
            lists: [List::EMPTY; 2],
            slab: Slab::new(),
            ghosts: Ghosts::default(),
            ghost_hits: GhostHits::default(),
        }
    }

    /// Follows other rules from now on. Nothing moves; evictions bring the lists to their new shares. `learned` is
    /// the share of the recent list that rules which learn it begin with, 0 to 1.
    pub(crate) fn set_rules(&mut self, rules: Rules, learned: f64) {
        if rules.share == Share::Learned && self.rules.share != Share::Learned {
            self.p = learned * self.capacity as f64;
        }
        self.rules = rules;
    }

    /// What it has learned: the share of the recent list, 0 to 1.
    pub(crate) fn learned(&self) -> f64 {
        self.p / self.capacity.max(1) as f64
    }

    /// Units it may hold.
    pub(crate) const fn capacity_units(&self) -> u64 {
        self.capacity
    }

    /// Blocks held.
    pub(crate) const fn len(&self) -> usize {
        self.slab.len()
    }

    /// Half the identity and the size of a block that is here.
    #[inline]
    pub(crate) fn block(&self, slot: Slot) -> Option<(u32, u32)> {
        self.item(slot).map(|item| (item.tag, item.word & SIZE_MAX))
    }

    #[inline]
    fn item(&self, slot: Slot) -> Option<Item> {
        let item = *((slot.0 as usize) < self.slab.bound()).then(|| self.slab.get(slot.0))?;
        (item.list() != FREE).then_some(item)
    }

    const fn size(&self, list: usize) -> u64 {
        self.lists[list].size
    }

    const fn held(&self) -> u64 {
        self.size(RECENT) + self.size(FREQUENT)
    }

    #[inline]
    fn tick(&mut self) {
        self.since_tick += 1;
        if self.since_tick * TICKS >= self.slab.len() as u64 {
            self.since_tick = 0;
            self.now = (self.now + 1) & TIME_MASK;
        }
    }

    const fn age(&self, used: u32) -> u32 {
        self.now.wrapping_sub(used) & TIME_MASK
    }

    /// Units the recent list may hold.
    fn recent_target(&self) -> u64 {
        match self.rules.share {
            Share::Fixed(permille) => (u128::from(self.capacity) * u128::from(permille) / 1000).max(1) as u64,
            Share::Learned => self.p as u64,
            Share::Oldest => self.capacity,
        }
    }

    /// Puts an entry to the head of a list, taking it off the one it is on.
    fn put(&mut self, at: u32, list: usize) {
        let size = self.detach(at);
        self.slab.get_mut(at).set_list(list as u32);
        self.slab.push_head(&mut self.lists[list], at, size);
    }

    /// Takes an entry off the list it is on, if any; its size.
    fn detach(&mut self, at: u32) -> u64 {
        let item = *self.slab.get(at);
        if let Some(list) = self.lists.get_mut(item.list() as usize) {
            self.slab.unlink(list, at, item.size());
        }
        item.size()
    }

    /// Takes an entry off its list and frees its place.
    fn forget(&mut self, at: u32) -> Item {
        let item = *self.slab.get(at);
        self.detach(at);
        self.slab.get_mut(at).set_list(FREE);
        self.slab.give(at);
        item
    }

    /// Whether something last used then was used since the tail of the frequent list was.
    fn is_sooner(&self, used: u32) -> bool {
        self.lists[FREQUENT].tail().is_none_or(|tail| self.age(used) < self.age(self.slab.get(tail).used))
    }

    /// Whether the frequent list is below its share by at least this much.
    fn frequent_has_room(&self, size: u64) -> bool {
        self.size(FREQUENT) + size + self.recent_target() <= self.capacity
    }

    /// Whether the next victim is the tail of the recent list. `coming` is what the recent list is about to get.
    fn is_recent_over(&self, of_frequent_ghost: bool, coming: u64) -> bool {
        let (Some(recent), Some(frequent)) = (self.lists[RECENT].tail(), self.lists[FREQUENT].tail()) else {
            return self.lists[RECENT].tail().is_some();
        };
        let size = self.size(RECENT);
        match self.rules.share {
            Share::Oldest => self.age(self.slab.get(recent).used) >= self.age(self.slab.get(frequent).used),
            Share::Learned => size as f64 > self.p || (of_frequent_ghost && size as f64 == self.p),
            Share::Fixed(_) if self.rules.is_by_reuse() => size + coming > self.recent_target(),
            Share::Fixed(_) => size > self.recent_target(),
        }
    }

    /// Evicts one block. `coming` is what the recent list gets afterwards, 0 if it goes to the frequent one.
    ///
    /// Ends: each turn evicts, or cools or moves a block in a direction that the rules do not reverse.
    fn evict_one(&mut self, of_frequent_ghost: bool, coming: u64, evicted: &mut dyn FnMut(Slot)) {
        let mut filled = 0;
        loop {
            if self.is_recent_over(of_frequent_ghost, coming) {
                let Some(at) = self.lists[RECENT].tail() else { return };
                let item = *self.slab.get(at);
                match self.rules.promote {
                    Promote::AtTheEnd(uses) if item.heat() >= uses => {
                        self.slab.get_mut(at).set_heat(0);
                        self.put(at, FREQUENT);
                        continue;
                    }
                    Promote::IfSooner if filled < FILL_STEPS && self.frequent_has_room(item.size()) => {
                        filled += 1;
                        self.fill_frequent(at, item);
                        continue;
                    }
                    Promote::AtOnce | Promote::AtTheEnd(_) | Promote::IfSooner => {}
                }
                self.forget(at);
                evicted(Slot(at));
                self.ghosts.put(item.tag, Ghost { from: From::Recent, time: item.used }, self.now);
            } else {
                let Some(at) = self.lists[FREQUENT].tail() else { return };
                let item = *self.slab.get(at);
                if self.rules.rounds > 0 && item.heat() > 0 {
                    self.slab.get_mut(at).set_heat(item.heat().min(self.rules.rounds) - 1);
                    self.put(at, FREQUENT);
                    continue;
                }
                if self.rules.is_by_reuse() {
                    self.demote(at);
                    continue;
                }
                self.forget(at);
                evicted(Slot(at));
                if self.rules.share == Share::Learned {
                    self.ghosts.put(item.tag, Ghost { from: From::Frequent, time: item.used }, self.now);
                }
            }
            return;
        }
    }

    /// Moves the tail of the recent list to the frequent list, to the end where its age belongs.
    fn fill_frequent(&mut self, at: u32, item: Item) {
        let head = self.lists[FREQUENT].head();
        if head.is_none_or(|head| self.age(self.slab.get(head).used) >= self.age(item.used)) {
            self.put(at, FREQUENT);
        } else {
            let size = self.detach(at);
            self.slab.get_mut(at).set_list(FREQUENT as u32);
            self.slab.push_tail(&mut self.lists[FREQUENT], at, size);
        }
    }

    fn demote(&mut self, at: u32) {
        self.slab.get_mut(at).set_heat(0);
        self.put(at, RECENT);
    }

    /// Where blocks leave by reuse, the frequent list never has more than its share.
    fn demote_excess(&mut self) {
        if self.rules.is_by_reuse() {
            let limit = self.capacity.saturating_sub(self.recent_target());
            while self.size(FREQUENT) > limit
                && let Some(at) = self.lists[FREQUENT].tail()
            {
                self.demote(at);
            }
        }
    }

    /// ARC's adaptation; `before` is how many ghosts there were of each list.
    fn learn(&mut self, from: From, before: [u64; 2], size: u64) {
        let [recent, frequent] = before.map(|count| count as f64);
        self.p = match from {
            From::Recent => (self.p + (frequent / recent).max(1.0) * size as f64).min(self.capacity as f64),
            From::Frequent => (self.p - (recent / frequent).max(1.0) * size as f64).max(0.0),
        };
    }

    /// Gives the ghosts places in proportion to the blocks held, and forgets those beyond what the rules want.
    fn bound_ghosts(&mut self) {
        let blocks = self.slab.len() as u64;
        let wanted = blocks * GHOST_PLACES / 1000;
        let places = self.ghosts.places() as u64;
        // Small steps, because every ghost moves; 64 at the least, one bucket being too few for its hashes.
        if places * 8 < wanted * 7 || places > wanted * 2 + 128 {
            let most = self.capacity.saturating_mul(GHOST_PLACES) / 1000;
            self.ghosts.resize((wanted + wanted / 8).min(most).max(64) as usize, self.now);
        }
        let mean = (self.held() as f64 / blocks.max(1) as f64).max(1.0);
        let full = self.capacity as f64 / mean;
        let learned = self.rules.share == Share::Learned;
        let recent = if learned {
            full - self.size(RECENT) as f64 / mean
        } else {
            full * f64::from(self.rules.ghosts) / 1000.0
        };
        while self.ghosts.count(From::Recent) as f64 > recent && self.ghosts.drop_oldest(From::Recent) {}
        if learned {
            let all = 2.0 * full - blocks as f64;
            let count = |ghosts: &Ghosts| (ghosts.count(From::Recent) + ghosts.count(From::Frequent)) as f64;
            while count(&self.ghosts) > all && self.ghosts.drop_oldest(From::Frequent) {}
        }
    }
}

impl Policy for Queues {
    fn insert(&mut self, block: Block, evicted: &mut dyn FnMut(Slot)) -> Option<Slot> {
        assert!((1..=SIZE_MAX).contains(&block.size), "a block's size has 24 bits and is not 0");
        let size = u64::from(block.size);
        if size > self.capacity {
            return None;
        }
        self.tick();
        let tag = (block.id >> 32) as u32;
        let before = [From::Recent, From::Frequent].map(|from| self.ghosts.count(from));
        let ghost = self.ghosts.take(tag, self.now);
        match ghost.map(|ghost| ghost.from) {
            Some(From::Recent) => self.ghost_hits.recent += 1,
            Some(From::Frequent) => self.ghost_hits.frequent += 1,
            None => {}
        }
        if let Some(ghost) = ghost
            && self.rules.share == Share::Learned
        {
            self.learn(ghost.from, before, size);
        }
        let is_proven = ghost.is_some_and(|ghost| {
            !self.rules.is_by_reuse() || self.is_sooner(ghost.time) || self.frequent_has_room(size)
        });
        let of_frequent_ghost = ghost.is_some_and(|ghost| ghost.from == From::Frequent);
        while self.held() + size > self.capacity {
            self.evict_one(of_frequent_ghost, if is_proven { 0 } else { size }, evicted);
        }
        let at = self.slab.take(Item { tag, used: self.now, word: block.size | FREE << 30 });
        self.put(at, if is_proven { FREQUENT } else { RECENT });
        self.demote_excess();
        self.bound_ghosts();
        Some(Slot(at))
    }

    #[inline]
    fn hit(&mut self, slot: Slot) {
        let Some(item) = self.item(slot) else { return };
        self.tick();
        let at = slot.0;
        self.slab.get_mut(at).used = self.now;
        let warmer = (item.heat() + 1).min(HEAT_MAX);
        if item.list() as usize == RECENT {
            match self.rules.promote {
                Promote::AtOnce => self.put(at, FREQUENT),
                Promote::IfSooner if self.is_sooner(item.used) || self.frequent_has_room(item.size()) => {
                    self.put(at, FREQUENT);
                    self.demote_excess();
                }
                Promote::IfSooner => self.put(at, RECENT),
                Promote::AtTheEnd(_) => self.slab.get_mut(at).set_heat(warmer),
            }
        } else if self.rules.rounds > 0 {
            self.slab.get_mut(at).set_heat(warmer);
        } else {
            self.put(at, FREQUENT);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if self.item(slot).is_some() {
            self.forget(slot.0);
        }
    }

    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        self.capacity = capacity;
        self.p = self.p.min(capacity as f64);
        while self.held() > capacity {
            self.evict_one(false, 0, evicted);
        }
        self.bound_ghosts();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn usage(&self) -> Usage {
        let mean = self.held() / (self.slab.len() as u64).max(1);
        Usage {
            recent: self.size(RECENT),
            frequent: self.size(FREQUENT),
            recent_ghosts: self.ghosts.count(From::Recent) * mean,
            frequent_ghosts: self.ghosts.count(From::Frequent) * mean,
            recent_target: self.recent_target(),
        }
    }

    fn ghost_hits(&self) -> GhostHits {
        self.ghost_hits
    }

    fn rules(&self) -> &'static str {
        self.rules.name
    }

    fn memory(&self) -> usize {
        self.slab.memory() + self.ghosts.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arc, mix, rules::ARC, trace::Simulation};

    /// Whether a loop that is a little larger than the cache takes the place of a hot set hangs on single ghosts: the
    /// engine's must be forgotten in the order in which ARC's are, and none before its time.
    #[test]
    fn under_arcs_rules_it_misses_what_arc_misses() {
        let capacity = 3000;
        for (name, length) in [("1.01", 3030), ("1.03", 3090), ("1.25", 3750)] {
            let mut engine = Simulation::new(Queues::new(capacity, ARC));
            let mut arc = Simulation::new(Arc::new(capacity));
            for k in 0..108_000 {
                // Small numbers often, then the loop, then beside blocks that never come back.
                let popular = ((mix(k) % 8192) * (mix(!k) % 8192)) >> 13;
                let block = match k / (3 * capacity) % 3 {
                    1 => (1 << 32) + k % length,
                    2 if k % 2 == 0 => (1 << 40) + k,
                    _ => popular,
                };
                engine.access(block);
                arc.access(block);
            }
            let points = [engine.score(), arc.score()].map(|score| score.block_miss_ratio() * 100.0);
            assert!((points[0] - points[1]).abs() <= 0.5, "a loop of {name} times the cache: {points:.2?}");
        }
        let mut engine = Simulation::new(Queues::new(2000, ARC));
        let mut arc = Simulation::new(Arc::new(2000));
        for k in 0..300_000 {
            let block = k / 10 + (0..3).map(|draw| mix(3 * k + draw) % 8000).sum::<u64>();
            engine.access(block);
            arc.access(block);
        }
        let points = [engine.score(), arc.score()].map(|score| score.block_miss_ratio() * 100.0);
        assert!((points[0] - points[1]).abs() <= 0.5, "a working set that moves: {points:.2?}");
    }
}
