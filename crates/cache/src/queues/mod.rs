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
//! that 29 bits last half a million such turns and older blocks merely look a little younger than they are.
//!
//! Not here: which block goes (`victim`), and which rules are good (`adaptive`).

mod victim;

use crate::{
    ghosts::{From, Ghosts},
    ledger::Ledger,
    order::{TIME_MASK, age},
    policy::{Block, GhostHits, Policy, Slot, Usage},
    rules::{Promote, Rules, Share},
    shadow::{Known, Seen, Shadow},
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
const SEEN_AGAIN: u32 = 1 << 29;

/// Ghosts in thousandths of blocks held: what the most forgetful rules need.
const GHOST_PLACES: u64 = 1500;
/// Ticks of the clock while as many accesses pass as blocks are held.
const TICKS: u64 = 1024;

#[derive(Clone, Copy, Debug)]
struct Item {
    /// Upper half of the identity.
    tag: u32,
    /// When it was last used.
    used: u32,
    /// List (2 bits), whether ARC has seen it again (1), heat (5), size (24).
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
        (self.word >> SIZE_BITS) & 0x1f
    }
    const fn set_list(&mut self, list: u32) {
        self.word = self.word & 0x3fff_ffff | list << 30;
    }
    const fn set_heat(&mut self, heat: u32) {
        self.word = self.word & !(0x1f << SIZE_BITS) | heat << SIZE_BITS;
    }
    const fn known(self) -> Known {
        let seen = if self.word & SEEN_AGAIN == 0 { Seen::Once } else { Seen::Again };
        Known { seen, time: self.used }
    }
    fn set_seen(&mut self, seen: Seen) {
        self.word = if seen == Seen::Again { self.word | SEEN_AGAIN } else { self.word & !SEEN_AGAIN };
    }
}

/// The engine with the rules it follows now.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    capacity: u64,
    rules: Rules,
    /// Learned share of the recent list, in units of capacity; a shadow has its own.
    p: f64,
    now: u32,
    /// Accesses since the last tick.
    since_tick: u64,
    lists: [List; 2],
    slab: Slab<Item>,
    ghosts: Ghosts,
    ghost_hits: GhostHits,
    /// What ARC would hold: that is what is kept under ARC's rules. Without it they are followed by the lists.
    shadow: Option<Shadow>,
    ledger: Ledger,
    /// Blocks looked at so far, in search of some that ARC would not hold.
    searched: u64,
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
            shadow: None,
            ledger: Ledger::default(),
            searched: 0,
        }
    }

    /// The same with a shadow of ARC.
    pub(crate) fn shadowed(capacity: u64, rules: Rules) -> Self {
        Self { shadow: Some(Shadow::default()), ..Self::new(capacity, rules) }
    }

    /// What it has hit beside what its shadow would have.
    pub(crate) const fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Follows other rules from now on. Nothing moves; evictions bring the lists to their new shares.
    pub(crate) const fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
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

    /// Blocks that are about to be used.
    pub(crate) fn ask_for(&self, slots: &[Slot]) {
        self.slab.ask_for(slots.iter().map(|slot| slot.0));
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
        age(used, self.now)
    }

    /// Units the recent list may hold.
    fn recent_target(&self) -> u64 {
        match self.rules.share {
            Share::Fixed(permille) => (u128::from(self.capacity) * u128::from(permille) / 1000).max(1) as u64,
            Share::Learned => match &self.shadow {
                Some(shadow) => (shadow.learned() * self.capacity as f64) as u64,
                None => self.p as u64,
            },
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

    /// Whether the cache is to hold what its shadow does.
    fn follows_shadow(&self) -> bool {
        self.shadow.is_some() && self.rules.share == Share::Learned
    }

    /// Tells the shadow how many blocks a full cache holds, if one of this size comes in: by the mean of all.
    fn fit_shadow(&mut self, size: u64) {
        let (blocks, held) = (self.slab.len() as u64 + u64::from(size > 0), self.held() + size);
        if let Some(shadow) = &mut self.shadow {
            let full = match self.capacity.checked_mul(blocks) {
                Some(product) => product / held.max(1),
                None => (u128::from(self.capacity) * u128::from(blocks) / u128::from(held.max(1))) as u64,
            };
            shadow.resize(full, self.now);
        }
    }

    /// Shows an access to the shadow, if there is one, with what is known of the block: how often it has seen it now.
    #[inline]
    fn show(&mut self, known: Option<Known>, is_hit: bool) -> Seen {
        let is_like_arc = self.follows_shadow();
        let Some(shadow) = &mut self.shadow else { return Seen::Once };
        let (would_hit, seen) = shadow.access(known, is_hit, is_like_arc, self.now);
        self.ledger.count(is_hit, would_hit, self.slab.len() as u64);
        seen
    }

    /// ARC's adaptation; `before` is how many ghosts there were of each list.
    fn learn(&mut self, from: From, before: [u64; 2], size: u64) {
        let [recent, frequent] = before.map(|count| count as f64);
        self.p = match from {
            From::Recent => (self.p + (frequent / recent).max(1.0) * size as f64).min(self.capacity as f64),
            From::Frequent => (self.p - (recent / frequent).max(1.0) * size as f64).max(0.0),
            From::Nowhere => self.p,
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
            let places = (wanted + wanted / 8).min(most).max(64);
            self.ghosts.resize(places as usize, self.now, self.shadow.as_ref());
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
        let taken = self.ghosts.take(tag, self.now);
        let ghost = taken.filter(|ghost| ghost.from != From::Nowhere);
        match ghost.map(|ghost| ghost.from) {
            Some(From::Recent) => self.ghost_hits.recent += 1,
            Some(From::Frequent) => self.ghost_hits.frequent += 1,
            Some(From::Nowhere) | None => {}
        }
        if let Some(ghost) = ghost
            && self.rules.share == Share::Learned
            && self.shadow.is_none()
        {
            self.learn(ghost.from, before, size);
        }
        self.fit_shadow(size);
        let seen = self.show(taken.map(|ghost| ghost.known), false);
        let is_proven = if self.follows_shadow() {
            seen == Seen::Again
        } else {
            ghost.is_some_and(|ghost| {
                !self.rules.is_by_reuse() || self.is_sooner(ghost.known.time) || self.frequent_has_room(size)
            })
        };
        let of_frequent_ghost = ghost.is_some_and(|ghost| ghost.from == From::Frequent);
        while self.held() + size > self.capacity {
            self.evict_one(of_frequent_ghost, if is_proven { 0 } else { size }, Some(seen), evicted);
        }
        let at = self.slab.take(Item { tag, used: self.now, word: block.size | FREE << 30 });
        self.slab.get_mut(at).set_seen(seen);
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
        let seen = self.show(Some(item.known()), true);
        let entry = self.slab.get_mut(at);
        entry.used = self.now;
        entry.set_seen(seen);
        if self.follows_shadow() {
            return self.put(at, if seen == Seen::Again { FREQUENT } else { RECENT });
        }
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

    fn is_frequent(&self, slot: Slot) -> bool {
        // Some rules put a block that came back on the recent list all the same.
        let is_it = |item: Item| item.list() as usize == FREQUENT || item.known().seen == Seen::Again;
        self.item(slot).is_some_and(is_it)
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(item) = self.item(slot) {
            if let Some(shadow) = &mut self.shadow {
                shadow.remove(item.known(), self.now);
            }
            self.forget(slot.0);
        }
    }

    fn compact(&mut self, most: usize, moved: &mut dyn FnMut(Slot, Slot)) -> bool {
        if !self.slab.is_loose() {
            return false;
        }
        let list_of = |item: &Item| Some(item.list() as usize).filter(|list| *list <= FREQUENT);
        let moved = |_: &Item, from, to| moved(Slot(from), Slot(to));
        let is_done = self.slab.compact(&mut self.lists, most, list_of, moved);
        if is_done {
            self.bound_ghosts();
        }
        !is_done
    }

    fn places(&self) -> usize {
        self.slab.bound()
    }

    fn set_capacity(&mut self, capacity: u64, evicted: &mut dyn FnMut(Slot)) {
        self.capacity = capacity;
        self.p = self.p.min(capacity as f64);
        self.fit_shadow(0);
        while self.held() > capacity {
            self.evict_one(false, 0, None, evicted);
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
        self.slab.memory() + self.ghosts.memory() + self.shadow.as_ref().map_or(0, Shadow::memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Arc, mix,
        rules::{ARC, RULES},
        trace::Simulation,
    };

    /// Small numbers often, then a loop, then beside blocks that never come back, three cache-fulls of each.
    fn phases(capacity: u64, length: u64) -> impl Iterator<Item = u64> {
        (0..36 * capacity).map(move |k| {
            let popular = ((mix(k) % 8192) * (mix(!k) % 8192)) >> 13;
            match k / (3 * capacity) % 3 {
                1 => (1 << 32) + k % length,
                2 if k % 2 == 0 => (1 << 40) + k,
                _ => popular,
            }
        })
    }

    /// A working set that moves.
    fn drifting() -> impl Iterator<Item = u64> {
        (0..300_000).map(|k| k / 10 + (0..3).map(|draw| mix(3 * k + draw) % 8000).sum::<u64>())
    }

    /// Points of miss ratio by which the engine is behind ARC, and by how much its shadow is if it has one.
    fn behind(engine: Queues, blocks: impl Iterator<Item = u64>) -> (f64, f64) {
        let mut arc = Simulation::new(Arc::new(engine.capacity()));
        let mut engine = Simulation::new(engine);
        for block in blocks {
            engine.access(block);
            arc.access(block);
        }
        let points = |misses: f64| misses * 100.0 / arc.score().accesses as f64;
        let behind = engine.score().block_misses as f64 - arc.score().block_misses as f64;
        (points(behind), points(behind + engine.policy().ledger.clone().take() as f64))
    }

    /// Whether a loop that is a little larger than the cache takes the place of a hot set hangs on single ghosts: the
    /// engine's must be forgotten in the order in which ARC's are, and none before its time.
    #[test]
    fn under_arcs_rules_it_misses_what_arc_misses() {
        for length in [3030, 3090, 3750] {
            let (points, _) = behind(Queues::new(3000, ARC), phases(3000, length));
            assert!(points.abs() <= 0.5, "a loop of {length} in 3000: {points:.2}");
        }
        let (points, _) = behind(Queues::new(2000, ARC), drifting());
        assert!(points.abs() <= 0.5, "a working set that moves: {points:.2}");
    }

    #[test]
    fn the_shadow_misses_what_arc_misses_and_under_arcs_rules_so_does_the_cache() {
        for (capacity, length) in [(1000, 1030), (3000, 2910), (3000, 3030), (3000, 3750), (12_000, 12_360)] {
            let (points, shadow) = behind(Queues::shadowed(capacity, ARC), phases(capacity, length));
            assert!(
                points.abs() <= 0.1 && shadow.abs() <= 0.1,
                "{length} in {capacity}: {points:.3} {shadow:.3}"
            );
        }
        let (points, shadow) = behind(Queues::shadowed(2000, ARC), drifting());
        assert!(
            points.abs() <= 0.1 && shadow.abs() <= 0.1,
            "a working set that moves: {points:.3} {shadow:.3}"
        );
    }

    /// What the cache has done under other rules does not change what the shadow is; and back under ARC's rules it costs
    /// no more than the cache-full that is read again.
    #[test]
    fn back_from_other_rules_the_cache_becomes_what_arc_is() {
        let capacity = 3000;
        let mut engine = Simulation::new(Queues::shadowed(capacity, RULES[2]));
        let mut arc = Simulation::new(Arc::new(capacity));
        let mut back = 0;
        for (k, block) in phases(capacity, 3090).chain(phases(capacity, 3090)).enumerate() {
            if k as u64 == 36 * capacity {
                engine.policy_mut().set_rules(ARC);
                back = engine.score().block_misses as i64 - arc.score().block_misses as i64;
            }
            engine.access(block);
            arc.access(block);
        }
        let ahead = arc.score().block_misses as i64 - engine.score().block_misses as i64;
        let shadow = ahead - engine.policy_mut().ledger.take();
        assert!(shadow.abs() <= 200, "of 216 000 accesses the shadow judges {shadow} otherwise than ARC");
        assert!(-ahead - back <= capacity as i64, "{} misses to become ARC again", -ahead - back);
    }
}
