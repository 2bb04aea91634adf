//! Which block goes: one eviction of the queue engine.
//!
//! ```text
//!   under ARC's rules, with a shadow: what ARC has given up, wherever it is
//!   under others: the tail of one of the lists; or another, if it costs too much of what ARC would hold
//! ```
//! Somebody waits for every eviction, so each looks at a few blocks only, however hot they are and however many would have
//! to move to where new rules want them: the next ones go on.

use super::{FREE, FREQUENT, Item, Queues, RECENT, TICKS};
use crate::{
    ghosts::{From, Ghost},
    mix,
    policy::Slot,
    rules::{Promote, Share},
    shadow::Seen,
    slab::List,
};

/// Blocks that are moved, cooled or passed over for one eviction, and that leave the frequent list for one access: others
/// wait meanwhile, and after a change of rules it could be the whole list.
const EVICT_STEPS: u32 = 64;
/// Blocks moved from recent to frequent for one eviction, while frequent is being filled: it must not take long.
const FILL_STEPS: u32 = 8;
/// Blocks looked at for one eviction, to find some that ARC would not hold, and how many of these are enough.
const SEARCH_STEPS: u32 = 64;
const SEARCH_FINDS: u32 = 8;
/// Places for each block of which so many or more are free are not searched.
const SPARSE: usize = 4;

impl Queues {
    /// Evicts one block. `coming` is what the recent list gets afterwards, 0 if it goes to the frequent one.
    ///
    /// Ends: each turn evicts, or cools or moves a block in a direction that the rules do not reverse; and of more than a
    /// few of these the coldest has to go.
    pub(super) fn evict_one(
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

    fn unwanted_tail(&self) -> Option<u32> {
        self.lists.iter().filter_map(List::tail).find(|at| self.is_unwanted(*at))
    }

    /// Whether ARC would not hold it.
    fn is_unwanted(&self, at: u32) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| !shadow.holds(self.slab.get(at).known(), self.now))
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

    /// Where blocks leave by reuse, the frequent list never has more than its share; if other rules have left it more,
    /// soon no more.
    pub(super) fn demote_excess(&mut self) {
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

    fn demote(&mut self, at: u32) {
        self.slab.get_mut(at).set_heat(0);
        self.put(at, RECENT);
    }
}

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

#[cfg(test)]
mod tests {
    use super::{super::HEAT_MAX, *};
    use crate::{
        policy::{Block, Policy as _},
        rules::{ARC, RULES},
    };

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
}
