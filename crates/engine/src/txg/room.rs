//! Space that was promised and is not taken yet: who announced how much, and out of what it comes.
//!
//! ```text
//!   volume ── beyond its own ──▶ reservation of its directory ── beyond that ──▶ … of those above ──▶ what all share
//!      └─ all of it ─────────────────────────────────────────────────────────────────────────▶ what devices have free
//! ```
//!
//! A directory's reservation is there once, however many volumes lie below it: each takes of it what it can get, and
//! what the reservation does not hold any more comes out of the one above, at last out of what all share. And all that
//! is announced, reserved or not, must find a place on the devices: a transaction group that finds none is the end of
//! the pool, whatever the accounts said.
//!
//! Where something is changed below an indirect block all of that block is written anew, in another place, and the old one
//! is free only when the transaction group is durable. With small blocks that is a hundred times what was changed, if
//! that is scattered. It is given back, so it counts in no account; but it must be there, and is announced once for each
//! indirect block and group. What only frees may take for it what is kept back from what is written, or nothing could be
//! freed where nothing is free.
//!
//! What there is is known as of the last commit ([`Supply`], [`Room`]), what was announced is kept by transaction group,
//! and forgotten when that is synced: the next supply knows what became of it. A command sets space aside in the group
//! that is being synced, while writers go on announcing against the supply of the commit before: until that group is
//! durable its [`Claim`] stands for it.
//!
//! Plain data: the lock is `Txgs`'. Facts: docs/format/mos.md §7.

use std::collections::BTreeMap;

use super::{Cost, SLOTS, slot};

/// At most one part in so many of what is free is lent to sweeps.
const BORROWED_SHARE: u64 = 8;

/// Indirect blocks of which a volume remembers that they were announced: a power of two. Of two that have the same place each
/// is announced again and again: more than is taken, and never less.
const MARKS: usize = 1 << MARK_BITS;
const MARK_BITS: u32 = 9;

/// Indirect blocks above what an operation changes, which are written anew for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Above {
    /// Bytes that one takes at most (deflated, copies included).
    pub each: u64,
    /// The first and the last by number, if these are two, as far as they are written at all. Whatever else changes below
    /// them in the same transaction group, they are written once.
    pub ends: [Option<u64>; 2],
    /// How many there are between those.
    pub between: u64,
}

/// What there is to be taken, in bytes free of parity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// By anybody: reserved by nobody.
    pub shared: u64,
    /// By all together: free on the devices that data goes to.
    pub free: u64,
    /// Beyond that, for what is written anew above what only frees.
    pub spare: u64,
    /// What directories have reserved and not used.
    pub reserved: BTreeMap<u64, u64>,
}

/// What a volume may take, in bytes free of parity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// All it may take.
    pub limit: u64,
    /// Of that, what is reserved for it alone.
    pub own: u64,
    /// Directories at and above its own that have something reserved, the nearest first.
    pub above: Vec<u64>,
}

/// What a command sets aside for something below these directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As [`Room::above`].
    pub above: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

/// An indirect block that was announced.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    number: u64,
    txg: u64,
    bytes: u64,
}

/// Where an indirect block is remembered. Spread by Fibonacci hashing: volumes are written in several places that lie a power
/// of two apart, and those would have the same place by the low bits of their numbers.
fn place_of_mark(number: u64) -> usize {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - MARK_BITS)) as usize
}

/// A volume's room, and what it announced.
#[derive(Debug)]
struct Place {
    dataset: u64,
    room: Room,
    pending: [u64; SLOTS],
    /// By [`place_of_mark`]; none before the first is announced.
    marks: Vec<Mark>,
}

impl Place {
    fn pending(&self) -> u64 {
        self.pending.iter().sum()
    }

    /// Bytes that were announced in group `txg` for an indirect block.
    fn marked(&self, txg: u64, number: u64) -> u64 {
        let mark = self.marks.get(place_of_mark(number));
        mark.filter(|mark| mark.txg == txg && mark.number == number).map_or(0, |mark| mark.bytes)
    }

    /// Remembers what is announced in group `txg`.
    fn mark(&mut self, txg: u64, above: &Above) {
        for number in above.ends.into_iter().flatten() {
            if self.marks.is_empty() {
                self.marks.resize(MARKS, Mark::default());
            }
            let bytes = above.each.max(self.marked(txg, number));
            self.marks[place_of_mark(number)] = Mark { number, txg, bytes };
        }
    }
}

/// What was announced, added up.
#[derive(Debug, Default)]
struct Tally {
    /// All of it.
    total: u64,
    /// Out of what all share.
    shared: u64,
    /// Out of what a directory has reserved, and what that does not hold.
    reserved: BTreeMap<u64, u64>,
}

/// How much of another `bytes` goes beyond `own`, when `taken` were announced before.
fn excess(taken: u64, own: u64, bytes: u64) -> u64 {
    taken.saturating_add(bytes).saturating_sub(own) - taken.saturating_sub(own)
}

impl Tally {
    /// How much of `bytes` comes out of what all share.
    fn passed_on(&self, supply: &Supply, above: &[u64], bytes: u64) -> u64 {
        above.iter().fold(bytes, |bytes, dir| {
            let own = supply.reserved.get(dir).copied().unwrap_or(0);
            excess(self.reserved.get(dir).copied().unwrap_or(0), own, bytes)
        })
    }

    /// Counts `bytes` that nobody has reserved for himself.
    fn add(&mut self, supply: &Supply, above: &[u64], bytes: u64) {
        let mut bytes = bytes;
        for dir in above {
            let own = supply.reserved.get(dir).copied().unwrap_or(0);
            let taken = self.reserved.entry(*dir).or_default();
            let rest = excess(*taken, own, bytes);
            *taken = taken.saturating_add(bytes);
            bytes = rest;
        }
        self.shared = self.shared.saturating_add(bytes);
    }
}

/// All of it for one pool.
#[derive(Debug)]
pub(super) struct Ledger {
    supply: Supply,
    places: Vec<Option<Place>>,
    /// Announced by no volume, or by one that is gone, by slot.
    others: [u64; SLOTS],
    /// Announced for indirect blocks that are written anew, by slot.
    rewritten: [u64; SLOTS],
    claims: Vec<Claim>,
    /// Of what all share, what was set aside for intent logs and sweeps since: beginning with the last time it was looked at how
    /// much there is, and before, which is known to the next supply.
    lent: u64,
    lent_before: u64,
    tally: Tally,
}

impl Ledger {
    /// Nobody is refused anything before it is told what there is.
    pub(super) fn new() -> Self {
        let supply = Supply { shared: u64::MAX, free: u64::MAX, ..Supply::default() };
        Self {
            supply,
            places: Vec::new(),
            others: [0; SLOTS],
            rewritten: [0; SLOTS],
            claims: Vec::new(),
            lent: 0,
            lent_before: 0,
            tally: Tally::default(),
        }
    }

    /// A place for a volume; its number.
    pub(super) fn insert(&mut self, dataset: u64, room: Room) -> usize {
        let index = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        self.places[index] = Some(Place { dataset, room, pending: [0; SLOTS], marks: Vec::new() });
        index
    }

    /// The volume is gone. What it announced may still be written.
    pub(super) fn remove(&mut self, index: usize) {
        let Some(place) = self.places.get_mut(index).and_then(Option::take) else { return };
        for (others, bytes) in self.others.iter_mut().zip(place.pending) {
            *others += bytes;
        }
        self.add_up();
    }

    fn place(&self, volume: Option<usize>) -> Option<&Place> {
        self.places.get(volume?)?.as_ref()
    }

    fn shared_left(&self) -> u64 {
        let taken = self.tally.shared.saturating_add(self.lent + self.lent_before);
        self.supply.shared.saturating_sub(taken)
    }

    /// How much of `free` is left by all that stays where it is put.
    fn left_of(&self, free: u64) -> u64 {
        free.saturating_sub(self.tally.total.saturating_add(self.lent + self.lent_before))
    }

    /// Announced for indirect blocks.
    fn rewritten(&self) -> u64 {
        self.rewritten.iter().copied().fold(0, u64::saturating_add)
    }

    fn free_left(&self) -> u64 {
        self.left_of(self.supply.free).saturating_sub(self.rewritten())
    }

    /// What `above` takes and was not announced for group `txg` yet.
    fn news(&self, volume: Option<usize>, txg: u64, above: &Above) -> u64 {
        let place = self.place(volume);
        let marked = |number| place.map_or(0, |place| place.marked(txg, number));
        let ends = above.ends.into_iter().flatten().map(|number| above.each.saturating_sub(marked(number)));
        ends.fold(above.each.saturating_mul(above.between), u64::saturating_add)
    }

    /// Whether group `txg`, which is open, may take another `cost`.
    pub(super) fn fits(&self, volume: Option<usize>, txg: u64, cost: &Cost) -> bool {
        self.fits_beside(self.rewritten(), volume, txg, cost)
    }

    /// Whether it could but for indirect blocks that others announced, for which the space is going to be there again.
    pub(super) fn will_fit(&self, volume: Option<usize>, txg: u64, cost: &Cost) -> bool {
        self.fits_beside(0, volume, txg, cost)
    }

    fn fits_beside(&self, rewritten: u64, volume: Option<usize>, txg: u64, cost: &Cost) -> bool {
        let bytes = cost.space;
        let spare = if bytes == 0 { self.supply.spare } else { 0 };
        let left = self.left_of(self.supply.free.saturating_add(spare)).saturating_sub(rewritten);
        if bytes.saturating_add(self.news(volume, txg, &cost.above)) > left {
            return false;
        }
        if bytes == 0 {
            return true;
        }
        let Some(place) = self.place(volume) else { return bytes <= self.shared_left() };
        let (pending, Room { limit, own, above }) = (place.pending(), &place.room);
        let beyond = excess(pending, *own, bytes);
        pending.saturating_add(bytes) <= *limit
            && self.tally.passed_on(&self.supply, above, beyond) <= self.shared_left()
    }

    /// Bytes that may be taken, some of them after the next commit.
    pub(super) fn available(&self, volume: Option<usize>) -> u64 {
        let (anybody, free) = (self.shared_left(), self.left_of(self.supply.free));
        let Some(place) = self.place(volume) else { return anybody.min(free) };
        let pending = place.pending();
        let left_of = |dir: &u64| {
            let taken = self.tally.reserved.get(dir).copied().unwrap_or(0);
            self.supply.reserved.get(dir).copied().unwrap_or(0).saturating_sub(taken)
        };
        let reserved = place.room.above.iter().map(left_of).fold(0, u64::saturating_add);
        let own = place.room.own.saturating_sub(pending).saturating_add(reserved);
        place.room.limit.saturating_sub(pending).min(own.saturating_add(anybody)).min(free)
    }

    /// Announces `cost` in group `txg`.
    pub(super) fn announce(&mut self, volume: Option<usize>, txg: u64, cost: &Cost) {
        let (slot, bytes) = (slot(txg), cost.space);
        let rewritten = self.rewritten[slot].saturating_add(self.news(volume, txg, &cost.above));
        self.rewritten[slot] = rewritten;
        self.tally.total = self.tally.total.saturating_add(bytes);
        let place = volume.and_then(|volume| self.places.get_mut(volume)?.as_mut());
        let Some(place) = place else {
            self.others[slot] += bytes;
            self.tally.add(&self.supply, &[], bytes);
            return;
        };
        place.mark(txg, &cost.above);
        let beyond = excess(place.pending(), place.room.own, bytes);
        place.pending[slot] += bytes;
        self.tally.add(&self.supply, &place.room.above, beyond);
    }

    /// Whether something is taken that may turn out to be free at the next commit.
    pub(super) fn is_pending(&self) -> bool {
        let lent = self.lent + self.lent_before;
        lent > 0 || !self.claims.is_empty() || self.tally.total > 0 || self.rewritten() > 0
    }

    /// Datasets of the volumes that have a place.
    pub(super) fn datasets(&self) -> Vec<u64> {
        self.places.iter().flatten().map(|place| place.dataset).collect()
    }

    /// The group with this slot is durable, and this is what there is now. Volumes that nothing is told of keep what
    /// they had.
    pub(super) fn synced(&mut self, slot: usize, supply: Supply, rooms: BTreeMap<u64, Room>) {
        self.supply = supply;
        self.lent_before = 0;
        self.claims.clear();
        self.others[slot] = 0;
        self.rewritten[slot] = 0;
        for place in self.places.iter_mut().flatten() {
            place.pending[slot] = 0;
            if let Some(room) = rooms.get(&place.dataset) {
                place.room = room.clone();
            }
        }
        self.add_up();
    }

    fn add_up(&mut self) {
        let mut tally = self.add_up_but(None, &self.supply, &BTreeMap::new());
        self.claims.iter().for_each(|claim| tally.add(&self.supply, &claim.above, claim.bytes));
        self.tally = tally;
    }

    /// What was announced, but for one group, measured against `supply` and `rooms`.
    fn add_up_but(&self, slot: Option<usize>, supply: &Supply, rooms: &BTreeMap<u64, Room>) -> Tally {
        let sum = |pending: &[u64; SLOTS]| {
            let all = pending.iter().enumerate().filter(|(other, _)| Some(*other) != slot);
            all.map(|(_, bytes)| *bytes).sum::<u64>()
        };
        let mut tally = Tally::default();
        for place in self.places.iter().flatten() {
            let room = rooms.get(&place.dataset).unwrap_or(&place.room);
            let pending = sum(&place.pending);
            tally.total += pending;
            tally.add(supply, &room.above, pending.saturating_sub(room.own));
        }
        tally.total += sum(&self.others);
        tally.add(supply, &[], sum(&self.others));
        tally
    }

    /// See [`Txgs::claim`](super::Txgs::claim).
    pub(super) fn claim(
        &mut self,
        slot: usize,
        supply: &Supply,
        rooms: &BTreeMap<u64, Room>,
        claims: &[Claim],
    ) -> bool {
        // What was announced for this group has been taken by now.
        let mut later = self.add_up_but(Some(slot), supply, rooms);
        let announced = later.shared;
        claims.iter().for_each(|claim| later.add(supply, &claim.above, claim.bytes));
        // What takes nothing out of what all share is fine, even if that is overdrawn.
        if later.shared > announced && later.shared > supply.shared {
            return false;
        }
        for claim in claims {
            self.tally.add(&self.supply, &claim.above, claim.bytes);
            self.claims.push(claim.clone());
        }
        true
    }

    /// See [`Txgs::lend`](super::Txgs::lend).
    pub(super) fn lend(&mut self, bytes: u64) -> bool {
        let is_there = bytes <= self.shared_left() / 2 && bytes <= self.free_left();
        if is_there {
            self.lent += bytes;
        }
        is_there
    }

    /// See [`Txgs::unlend`](super::Txgs::unlend).
    pub(super) fn unlend(&mut self, bytes: u64) {
        self.lent = self.lent.saturating_sub(bytes);
    }

    /// See [`Txgs::lend_for_a_while`](super::Txgs::lend_for_a_while).
    pub(super) fn lend_for_a_while(&mut self, bytes: u64, out: u64) -> bool {
        let most = self.free_left().saturating_add(out) / BORROWED_SHARE;
        let is_there = out.saturating_add(bytes) <= most;
        if is_there {
            self.lent += bytes;
        }
        is_there
    }

    /// See [`Txgs::counted`](super::Txgs::counted).
    pub(super) fn counted(&mut self) {
        self.lent_before += std::mem::take(&mut self.lent);
    }

    /// What there is, before anybody announced anything.
    pub(super) fn set_supply(&mut self, supply: Supply) {
        self.supply = supply;
        self.add_up();
    }
}
