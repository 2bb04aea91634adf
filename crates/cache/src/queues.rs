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
//! Not here: which rules are good (`adaptive`).

use crate::{
    ghosts::{From, Ghost, Ghosts},
    ledger::Ledger,
    mix,
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
/// Blocks looked at for one eviction, to find some that ARC would not hold, and how many of these are enough.
const SEARCH_STEPS: u32 = 64;
const SEARCH_FINDS: u32 = 8;
/// Places for each block of which so many or more are free are not searched.
const SPARSE: usize = 4;

/// Blocks that are moved, cooled or passed over for one eviction, and that leave the frequent list for one access: others
/// wait meanwhile, and after a change of rules it could be the whole list.
const EVICT_STEPS: u32 = 64;

/// Blocks that ARC would not hold.
#[derive(Debug, Default)]
struct Finds {
    count: u32,
    /// Age and place of the youngest.
    youngest: Option<(u32, u32)>,
}

impl Finds {
    fn youngest(self) -> Option<u32> {
        self.youngest.map(|(_, at)| at)
    }
}
/// Blocks moved from recent to frequent for one eviction, while frequent is being filled: it must not take long.
const FILL_STEPS: u32 = 8;

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

    /// Whether the cache is to hold what its shadow does.
    fn follows_shadow(&self) -> bool {
        self.shadow.is_some() && self.rules.share == Share::Learned
    }

    /// The block to evict so that what is here becomes what ARC would hold; `coming` is how often it has seen the one
    /// that comes in. `None` if there is nothing to evict.
    ///
    /// Once it is that, the block that ARC has just given up is the tail of one of the lists. After other rules it may be
    /// anywhere, and is searched for.
    fn as_shadow(&mut self, coming: Option<Seen>) -> Option<u32> {
        let shadow = self.shadow.as_ref()?;
        let is_near = shadow.missing() <= self.slab.len() as u64 / TICKS;
        let recent = self.lists[RECENT].len + u64::from(coming == Some(Seen::Once));
        let over = usize::from(recent <= shadow.len(Seen::Once));
        if let Some(at) = self.unwanted_tail() {
            return Some(at);
        }
        let tail = self.lists[over].tail().or(self.lists[1 - over].tail())?;
        let is_next =
            self.shadow.as_ref().is_some_and(|shadow| shadow.is_next(self.slab.get(tail).known(), self.now));
        if is_near && is_next {
            return Some(tail);
        }
        Some(self.unwanted().unwrap_or(tail))
    }

    /// Under other rules: the block that they would evict, or another if ARC would hold it and too many of these are
    /// missing already.
    fn affordable(&mut self, at: u32) -> u32 {
        let Some(shadow) = &self.shadow else { return at };
        if self.follows_shadow() || self.ledger.affords(shadow.missing()) || self.is_unwanted(at) {
            return at;
        }
        let tail = self.lists[RECENT].tail().filter(|tail| self.is_unwanted(*tail));
        tail.or_else(|| self.unwanted()).unwrap_or(at)
    }

    /// Whether ARC would not hold it.
    fn is_unwanted(&self, at: u32) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| !shadow.holds(self.slab.get(at).known(), self.now))
    }

    fn unwanted_tail(&self) -> Option<u32> {
        self.lists.iter().filter_map(List::tail).find(|at| self.is_unwanted(*at))
    }

    /// Looks here and there, at a few, because somebody waits: the one that ARC gave up last of those found. The others
    /// are what the rules have kept against ARC's advice: to give up one of these for each miss would leave none by the
    /// time a loop comes back to them.
    ///
    /// There is one to be found: ARC holds what comes in, and as many blocks as this cache did before.
    fn unwanted(&mut self) -> Option<u32> {
        let mut finds = Finds::default();
        if self.slab.bound() > SPARSE * self.slab.len() {
            // It was far larger: at most places there is nothing. In order is worse than scattered and better than none.
            for list in &self.lists {
                let mut next = list.tail();
                for _ in 0..SEARCH_STEPS / 2 {
                    let Some(at) = next else { break };
                    self.look(at, &mut finds);
                    next = self.slab.newer(at);
                }
            }
            return finds.youngest();
        }
        for _ in 0..SEARCH_STEPS {
            self.searched = self.searched.wrapping_add(1);
            // Blocks that came in together lie together: steps from one to the next would find all or none.
            let at = ((u128::from(mix(self.searched)) * self.slab.bound() as u128) >> 64) as u32;
            if self.slab.get(at).list() != FREE {
                self.look(at, &mut finds);
            }
            if finds.count == SEARCH_FINDS {
                break;
            }
        }
        finds.youngest()
    }

    /// Notes a block that ARC would not hold.
    fn look(&self, at: u32, finds: &mut Finds) {
        if self.is_unwanted(at) {
            let found = (self.age(self.slab.get(at).used), at);
            finds.youngest = Some(finds.youngest.map_or(found, |other| other.min(found)));
            finds.count += 1;
        }
    }

    /// Evicts one block. `coming` is what the recent list gets afterwards, 0 if it goes to the frequent one.
    ///
    /// Ends: each turn evicts, or cools or moves a block in a direction that the rules do not reverse; and of more than a
    /// few of these the coldest has to go.
    fn evict_one(
        &mut self,
        of_frequent_ghost: bool,
        coming: u64,
        seen: Option<Seen>,
        evicted: &mut dyn FnMut(Slot),
    ) {
        if self.follows_shadow() {
            let Some(at) = self.as_shadow(seen) else { return };
            let from =
                if self.slab.get(at).list() as usize == RECENT { From::Recent } else { From::Frequent };
            return self.evict(at, from, evicted);
        }
        let (mut filled, mut steps) = (0, 0);
        // Heat, place, and the list it was on.
        let mut coldest: Option<(u32, u32, From)> = None;
        loop {
            if steps == EVICT_STEPS
                && let Some((_, at, from)) = coldest
            {
                let at = self.affordable(at);
                return self.evict(at, from, evicted);
            }
            steps += 1;
            let mut pass = |heat: u32, at: u32, from: From| {
                if coldest.is_none_or(|(least, ..)| heat < least) {
                    coldest = Some((heat, at, from));
                }
            };
            if self.is_recent_over(of_frequent_ghost, coming) {
                let Some(at) = self.lists[RECENT].tail() else { return };
                let item = *self.slab.get(at);
                match self.rules.promote {
                    Promote::AtTheEnd(uses) if item.heat() >= uses => {
                        pass(item.heat(), at, From::Recent);
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
                let at = self.affordable(at);
                self.evict(at, From::Recent, evicted);
            } else {
                let Some(at) = self.lists[FREQUENT].tail() else { return };
                let item = *self.slab.get(at);
                if self.rules.rounds > 0 && item.heat() > 0 {
                    pass(item.heat(), at, From::Nowhere);
                    self.slab.get_mut(at).set_heat(item.heat().min(self.rules.rounds) - 1);
                    self.put(at, FREQUENT);
                    continue;
                }
                if self.rules.is_by_reuse() {
                    pass(0, at, From::Recent);
                    self.demote(at);
                    continue;
                }
                let is_arc = self.rules.share == Share::Learned;
                let at = self.affordable(at);
                self.evict(at, if is_arc { From::Frequent } else { From::Nowhere }, evicted);
            }
            return;
        }
    }

    fn evict(&mut self, at: u32, from: From, evicted: &mut dyn FnMut(Slot)) {
        let item = self.forget(at);
        evicted(Slot(at));
        if let Some(shadow) = &mut self.shadow
            && shadow.holds(item.known(), self.now)
        {
            shadow.miss(item.known(), self.now);
        }
        self.ghosts.put(item.tag, Ghost { from, known: item.known() }, self.now, self.shadow.as_ref());
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

    /// Where blocks leave by reuse, the frequent list never has more than its share; if other rules have left it more,
    /// soon no more.
    fn demote_excess(&mut self) {
        if self.rules.is_by_reuse() {
            let limit = self.capacity.saturating_sub(self.recent_target());
            for _ in 0..EVICT_STEPS {
                let Some(at) = self.lists[FREQUENT].tail().filter(|_| self.size(FREQUENT) > limit) else {
                    return;
                };
                self.demote(at);
            }
        }
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

    /// Whole lists went round, up to three times, while others waited for the policies.
    #[test]
    fn one_eviction_looks_at_a_few_blocks_however_hot_the_list_is() {
        let capacity = 4000;
        for rules in RULES.into_iter().filter(|rules| *rules != ARC) {
            let mut engine = Queues::new(capacity, ARC);
            let mut slots = Vec::new();
            for id in 0..capacity {
                slots.extend(engine.insert(Block { id: mix(id), size: 1 }, &mut |_| {}));
            }
            // All on the frequent list, and all as hot as can be.
            slots.iter().for_each(|slot| engine.hit(*slot));
            engine.set_rules(rules);
            slots.iter().for_each(|slot| engine.slab.get_mut(slot.0).set_heat(HEAT_MAX));
            let state = |engine: &Queues| -> Vec<(u32, u32)> {
                slots
                    .iter()
                    .map(|slot| *engine.slab.get(slot.0))
                    .map(|item| (item.heat(), item.list()))
                    .collect()
            };
            for id in 0..200 {
                let before = state(&engine);
                let mut gone = 0;
                engine.insert(Block { id: mix(capacity + id), size: 1 }, &mut |_| gone += 1);
                let changed =
                    state(&engine).iter().zip(&before).filter(|(now, before)| now != before).count();
                assert!(
                    gone == 1 && changed <= 2 * EVICT_STEPS as usize + 1,
                    "{}: {gone}, {changed}",
                    rules.name
                );
            }
        }
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
