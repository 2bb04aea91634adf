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
//! that is scattered. As a rule it is given back, so it counts in no account; but it must be there, and is announced once for
//! each indirect block and group. What only frees may take for it what is kept back from what is written, or nothing could
//! be freed where nothing is free.
//!
//! If a snapshot has a part of the volume it may keep the old one, and nothing is given back. Then the new one comes out of
//! the same reservations as what is written, and beyond those out of what all share and a margin of what is kept back:
//! never out of what others have reserved. Which of them the snapshot keeps is not known before they are written. So what
//! others announced for them is waited for, and nobody is refused anything for it.
//!
//! Nor is anybody refused anything for what else was announced: what is written over comes back with its group. Who finds no space
//! waits until it is known what became of what was announced before, and for as long as what there is then, with nothing
//! announced beside, would do. They wait in `lines`, and the first of them gets in however many others go on: for that one's
//! sake others are taken for what they ask for and what it waits for together ([`Wish`]). Only who frees goes on before it. Who asks
//! for more than there is waits for the same, but not in a line: nobody leaves it anything, or is behind it.
//!
//! What there is is known as of the last commit ([`Supply`], [`Room`]), what was announced is kept by transaction group,
//! and forgotten when that is synced: the next supply knows what became of it. A command sets space aside in the group
//! that is being synced, while writers go on announcing against the supply of the commit before: until that group is
//! durable its [`Claim`] stands for it.
//!
//! Plain data: the lock is `Txgs`'. Facts: docs/format/mos.md §7.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    Cost, SLOTS, slot,
    tally::{Taken, Tally, excess},
};

/// Bytes that are worth a transaction group of their own.
pub(crate) const WORTH_A_GROUP: u64 = 16 << 20;

/// At most one part in so many of what is free is lent to sweeps.
const BORROWED_SHARE: u64 = 8;

/// Indirect blocks above what an operation changes, which are written anew for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Above {
    /// Bytes that one takes at most (deflated, copies included).
    pub each: u64,
    /// Bytes of memory that one takes from when it is written to the end of its transaction group.
    pub memory: u64,
    /// The first and the last by number, if these are two, as far as they are written at all. Whatever else changes below
    /// them in the same transaction group, they are written once.
    pub ends: [Option<u64>; 2],
    /// How many there are between those.
    pub between: u64,
}

impl Above {
    /// Bytes that all of them take at most.
    fn bytes(&self) -> u64 {
        let ends = self.ends.into_iter().flatten().count() as u64;
        self.each.saturating_mul(self.between.saturating_add(ends))
    }
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
    /// Beyond `shared`, for indirect blocks whose old ones a snapshot keeps: it is free, and reserved by nobody.
    pub margin: u64,
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
    /// Whether a snapshot has a part of it, and may keep the old ones of indirect blocks that are written anew.
    pub is_shared: bool,
}

/// What a command sets aside for something below these directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As [`Room::above`].
    pub above: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

/// What the first of those waits for who wait for space: whoever asks for some beside leaves it that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) volume: Option<usize>,
    pub(super) cost: &'a Cost,
}

/// What was announced for indirect blocks, by their numbers.
type Marks = BTreeMap<u64, u64>;

/// A volume's room, and what it announced.
#[derive(Debug)]
struct Place {
    dataset: u64,
    room: Room,
    /// Whether a commit told of its room since it was opened.
    is_told: bool,
    pending: [u64; SLOTS],
    /// For indirect blocks.
    rewritten: [u64; SLOTS],
    /// Of those, what was announced for each: as many as there is memory for, because each is counted there.
    marks: [Marks; SLOTS],
}

impl Place {
    fn pending(&self) -> u64 {
        self.pending.iter().sum()
    }

    /// What was announced for indirect blocks and may not be given back.
    fn kept(&self) -> [u64; SLOTS] {
        if self.room.is_shared { self.rewritten } else { [0; SLOTS] }
    }

    /// The most that may be taken of what was announced.
    fn pending_at_most(&self) -> u64 {
        self.pending().saturating_add(sum(&self.kept()))
    }

    /// Bytes that were announced in group `txg` for an indirect block, if it was.
    fn marked(&self, txg: u64, number: u64) -> Option<u64> {
        self.marks[slot(txg)].get(&number).copied()
    }

    /// Remembers what is announced in group `txg`.
    fn mark(&mut self, txg: u64, above: &Above) {
        for number in above.ends.into_iter().flatten() {
            let bytes = self.marks[slot(txg)].entry(number).or_default();
            *bytes = above.each.max(*bytes);
        }
    }
}

fn sum(slots: &[u64; SLOTS]) -> u64 {
    slots.iter().copied().fold(0, u64::saturating_add)
}

/// All of it for one pool.
#[derive(Debug)]
pub(super) struct Ledger {
    supply: Supply,
    places: Vec<Option<Place>>,
    /// Announced by no volume, or by one that is gone, by slot.
    others: [u64; SLOTS],
    /// Announced by anybody, by slot; and what of that came out of what all share.
    announced: [u64; SLOTS],
    out_of_shared: [u64; SLOTS],
    /// Announced for indirect blocks that are written anew, by slot.
    rewritten: [u64; SLOTS],
    /// Of that, what may not be given back, by volumes that are gone.
    kept: [u64; SLOTS],
    claims: Vec<Claim>,
    /// Of what all share, what was set aside for intent logs and sweeps since: beginning with the last time it was looked at how
    /// much there is, and before, which is known to the next supply.
    lent: u64,
    lent_before: u64,
    /// What was set aside for logs among the data since the last group was closed.
    logged: u64,
    tally: Tally,
    /// The same with indirect blocks whose old ones a snapshot may keep; the total is in `tally` alone.
    at_most: Tally,
}

impl Ledger {
    /// Nobody is refused anything before it is told what there is.
    pub(super) fn new() -> Self {
        let supply = Supply { shared: u64::MAX, free: u64::MAX, ..Supply::default() };
        Self {
            supply,
            places: Vec::new(),
            others: [0; SLOTS],
            announced: [0; SLOTS],
            out_of_shared: [0; SLOTS],
            rewritten: [0; SLOTS],
            kept: [0; SLOTS],
            claims: Vec::new(),
            lent: 0,
            lent_before: 0,
            logged: 0,
            tally: Tally::default(),
            at_most: Tally::default(),
        }
    }

    /// A place for a volume; its number. As long as its room is not known it has what all share, and what it does not find there
    /// is waited for.
    pub(super) fn insert(&mut self, dataset: u64, room: Option<Room>) -> usize {
        let index = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        let is_told = room.is_some();
        let room = room.unwrap_or(Room { limit: u64::MAX, ..Room::default() });
        let (pending, rewritten, marks) = ([0; SLOTS], [0; SLOTS], Default::default());
        self.places[index] = Some(Place { dataset, room, is_told, pending, rewritten, marks });
        index
    }

    /// The volume is gone. What it announced may still be written. Returns what nobody needs any more, as
    /// [`synced`](Self::synced).
    pub(super) fn remove(&mut self, index: usize) -> Option<[Marks; SLOTS]> {
        let place = self.places.get_mut(index).and_then(Option::take)?;
        for (others, bytes) in self.others.iter_mut().zip(place.pending) {
            *others += bytes;
        }
        for (kept, bytes) in self.kept.iter_mut().zip(place.kept()) {
            *kept = kept.saturating_add(bytes);
        }
        self.add_up();
        Some(place.marks)
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
        sum(&self.rewritten)
    }

    fn free_left(&self) -> u64 {
        self.left_of(self.supply.free).saturating_sub(self.rewritten())
    }

    /// What `above` takes and was not announced for group `txg` yet.
    fn news(&self, volume: Option<usize>, txg: u64, above: &Above) -> u64 {
        let place = self.place(volume);
        let marked = |number| place.and_then(|place| place.marked(txg, number)).unwrap_or(0);
        let ends = above.ends.into_iter().flatten().map(|number| above.each.saturating_sub(marked(number)));
        ends.fold(above.each.saturating_mul(above.between), u64::saturating_add)
    }

    /// How many indirect blocks of `above` were not announced for group `txg` yet.
    pub(super) fn new_above(&self, volume: Option<usize>, txg: u64, above: &Above) -> u64 {
        let place = self.place(volume);
        let is_new = |number| place.is_none_or(|place| place.marked(txg, number).is_none());
        let ends = above.ends.into_iter().flatten().filter(|number| is_new(*number)).count();
        above.between.saturating_add(ends as u64)
    }

    /// Bytes of `cost` that may stay taken: 0 for what only frees.
    pub(super) fn stays(&self, volume: Option<usize>, txg: u64, cost: &Cost) -> u64 {
        self.staying(volume, cost.space, self.news(volume, txg, &cost.above))
    }

    fn staying(&self, volume: Option<usize>, bytes: u64, news: u64) -> u64 {
        let is_shared = self.place(volume).is_some_and(|place| place.room.is_shared);
        if is_shared { bytes.saturating_add(news) } else { bytes }
    }

    /// Whether group `txg`, which is open, may take another `cost`, and what `first` waits for beside it, of another volume.
    pub(super) fn fits(&self, volume: Option<usize>, txg: u64, cost: &Cost, first: Option<Wish<'_>>) -> bool {
        let news = self.news(volume, txg, &cost.above);
        self.fits_beside(&self.taken(volume, first), volume, cost.space, news)
    }

    /// Whether it would if all that was announced, and is lent, were given back.
    pub(super) fn fits_alone(&self, volume: Option<usize>, cost: &Cost) -> bool {
        let mut claimed = Tally::default();
        self.claims.iter().for_each(|claim| claimed.add(&self.supply, &claim.above, claim.bytes));
        let claimed = Cow::Borrowed(&claimed);
        let taken = Taken { tally: claimed.clone(), at_most: claimed, ..Taken::default() };
        self.fits_beside(&taken, volume, cost.space, cost.above.bytes())
    }

    /// All that was announced and is lent, and what `first` waits for.
    fn taken(&self, volume: Option<usize>, first: Option<Wish<'_>>) -> Taken<'_> {
        let lent = self.lent + self.lent_before;
        let place = self.place(volume);
        let mut taken = Taken {
            devices: self.tally.total.saturating_add(lent).saturating_add(self.rewritten()),
            lent,
            own: place.map_or(0, Place::pending),
            own_at_most: place.map_or(0, Place::pending_at_most),
            tally: Cow::Borrowed(&self.tally),
            at_most: Cow::Borrowed(&self.at_most),
        };
        if let Some(Wish { volume, cost }) = first {
            // In the group in which there will be space for it all of it may be new.
            let (bytes, news) = (cost.space, cost.above.bytes());
            let stays = self.staying(volume, bytes, news);
            taken.devices = taken.devices.saturating_add(bytes).saturating_add(news);
            let (beyond, at_most, above) = self.place(volume).map_or((bytes, stays, &[][..]), |place| {
                let beyond = excess(place.pending(), place.room.own, bytes);
                (beyond, excess(place.pending_at_most(), place.room.own, stays), &place.room.above)
            });
            taken.tally.to_mut().add(&self.supply, above, beyond);
            taken.at_most.to_mut().add(&self.supply, above, at_most);
        }
        taken
    }

    fn fits_beside(&self, taken: &Taken<'_>, volume: Option<usize>, bytes: u64, news: u64) -> bool {
        let (supply, stays) = (&self.supply, self.staying(volume, bytes, news));
        let spare = if stays == 0 { supply.spare } else { 0 };
        if bytes.saturating_add(news) > supply.free.saturating_add(spare).saturating_sub(taken.devices) {
            return false;
        }
        if stays == 0 {
            return true;
        }
        let (shared, unreserved) = (taken.shared_left(supply), taken.unreserved_left(supply));
        let Some(place) = self.place(volume) else { return bytes <= shared.min(unreserved) };
        let Room { limit, own, above, .. } = &place.room;
        let beyond = excess(taken.own, *own, bytes);
        let is_there = taken.own.saturating_add(bytes) <= *limit
            && taken.tally.passed_on(supply, above, beyond) <= shared;
        // What only frees is not bound by quotas.
        if bytes > 0 && !is_there {
            return false;
        }
        let at_most = excess(taken.own_at_most, *own, stays);
        taken.at_most.passed_on(supply, above, at_most) <= unreserved
    }

    /// Whether less is left than was announced for group `txg`, which is open, and taken for logs meanwhile (on the devices, for
    /// all, or for this volume), and that is worth to be synced: if it begins now, writers go on meanwhile with what is left, and
    /// do not stand still to its end.
    pub(super) fn is_scarce(&self, volume: Option<usize>, txg: u64) -> bool {
        let slot = slot(txg);
        let all = self.announced[slot].saturating_add(self.rewritten[slot]).saturating_add(self.logged);
        let shared = self.out_of_shared[slot].saturating_add(self.logged);
        let own = self.place(volume).map_or(self.others[slot], |place| place.pending[slot]);
        // First what costs nothing: this is asked for each write, and the others are parts of it.
        all >= WORTH_A_GROUP
            && (all >= self.free_left()
                || shared >= WORTH_A_GROUP.max(self.shared_left())
                || own >= WORTH_A_GROUP && own >= self.available(volume))
    }

    /// Another group is open from now on.
    pub(super) fn next_group(&mut self) {
        self.logged = 0;
    }

    /// Bytes that may be taken, some of them after the next commit.
    pub(super) fn available(&self, volume: Option<usize>) -> u64 {
        let (anybody, free) = (self.shared_left(), self.left_of(self.supply.free));
        let taken = |dir: &u64| self.tally.reserved.get(dir).copied().unwrap_or(0);
        let Some(place) = self.place(volume) else { return anybody.min(free) };
        self.limited(place, place.pending(), &taken, anybody).min(free)
    }

    /// The same by what there was at the last commit, whatever was announced since.
    pub(super) fn committed(&self, volume: Option<usize>) -> u64 {
        let Supply { shared, free, .. } = self.supply;
        self.place(volume).map_or(shared, |place| self.limited(place, 0, &|_| 0, shared)).min(free)
    }

    /// What a volume may take of which `pending` bytes are announced, and `taken` of what its directories have reserved, when
    /// `anybody` may take so many.
    fn limited(&self, place: &Place, pending: u64, taken: &dyn Fn(&u64) -> u64, anybody: u64) -> u64 {
        let left_of = |dir| self.supply.reserved.get(dir).copied().unwrap_or(0).saturating_sub(taken(dir));
        let reserved = place.room.above.iter().map(left_of).fold(0, u64::saturating_add);
        let own = place.room.own.saturating_sub(pending).saturating_add(reserved);
        place.room.limit.saturating_sub(pending).min(own.saturating_add(anybody))
    }

    /// Announces `cost` in group `txg`.
    pub(super) fn announce(&mut self, volume: Option<usize>, txg: u64, cost: &Cost) {
        let shared = self.tally.shared;
        self.promise(volume, txg, cost);
        let out_of_shared = &mut self.out_of_shared[slot(txg)];
        *out_of_shared = out_of_shared.saturating_add(self.tally.shared.saturating_sub(shared));
    }

    fn promise(&mut self, volume: Option<usize>, txg: u64, cost: &Cost) {
        let (slot, bytes) = (slot(txg), cost.space);
        let news = self.news(volume, txg, &cost.above);
        self.rewritten[slot] = self.rewritten[slot].saturating_add(news);
        self.announced[slot] = self.announced[slot].saturating_add(bytes);
        self.tally.total = self.tally.total.saturating_add(bytes);
        let place = volume.and_then(|volume| self.places.get_mut(volume)?.as_mut());
        let Some(place) = place else {
            self.others[slot] += bytes;
            self.tally.add(&self.supply, &[], bytes);
            self.at_most.add(&self.supply, &[], bytes);
            return;
        };
        place.mark(txg, &cost.above);
        let stays = if place.room.is_shared { bytes.saturating_add(news) } else { bytes };
        let beyond = excess(place.pending(), place.room.own, bytes);
        let beyond_at_most = excess(place.pending_at_most(), place.room.own, stays);
        place.pending[slot] += bytes;
        place.rewritten[slot] = place.rewritten[slot].saturating_add(news);
        self.tally.add(&self.supply, &place.room.above, beyond);
        self.at_most.add(&self.supply, &place.room.above, beyond_at_most);
    }

    /// `bytes` of what was [announced](Self::announce) in group `txg`, which is not synced yet, are not needed.
    pub(super) fn take_back(&mut self, volume: Option<usize>, txg: u64, bytes: u64) {
        let (slot, shared) = (slot(txg), self.tally.shared);
        let place = volume.and_then(|volume| self.places.get_mut(volume)?.as_mut());
        let bytes = match place {
            None => {
                let bytes = bytes.min(self.others[slot]);
                self.others[slot] -= bytes;
                self.tally.take_back(&self.supply, &[], bytes);
                self.at_most.take_back(&self.supply, &[], bytes);
                bytes
            }
            Some(place) => {
                let bytes = bytes.min(place.pending[slot]);
                place.pending[slot] -= bytes;
                let beyond = excess(place.pending(), place.room.own, bytes);
                let beyond_at_most = excess(place.pending_at_most(), place.room.own, bytes);
                self.tally.take_back(&self.supply, &place.room.above, beyond);
                self.at_most.take_back(&self.supply, &place.room.above, beyond_at_most);
                bytes
            }
        };
        self.tally.total = self.tally.total.saturating_sub(bytes);
        self.announced[slot] = self.announced[slot].saturating_sub(bytes);
        let given = shared.saturating_sub(self.tally.shared);
        // Which group it was that took it out of what all share is not known any more.
        let out_of_shared = self.out_of_shared[slot].saturating_sub(given);
        self.out_of_shared[slot] = out_of_shared.min(self.announced[slot]);
    }

    /// Whether something is taken that may turn out to be free at the next commit, or what the volume may take is not known
    /// before that.
    pub(super) fn is_pending(&self, volume: Option<usize>) -> bool {
        let lent = self.lent + self.lent_before;
        lent > 0
            || !self.claims.is_empty()
            || self.tally.total > 0
            || self.rewritten() > 0
            || self.place(volume).is_some_and(|place| !place.is_told)
    }

    /// Datasets of the volumes that have a place.
    pub(super) fn datasets(&self) -> Vec<u64> {
        self.places.iter().flatten().map(|place| place.dataset).collect()
    }

    /// The group with this slot is durable, and this is what there is now. Volumes that nothing is told of keep what
    /// they had. Returns what nobody needs any more: it may be much, and is not to be dropped under the lock that all
    /// writers need.
    pub(super) fn synced(&mut self, slot: usize, supply: Supply, rooms: BTreeMap<u64, Room>) -> Vec<Marks> {
        let mut forgotten = Vec::with_capacity(self.places.len());
        self.supply = supply;
        self.lent_before = 0;
        self.claims.clear();
        self.others[slot] = 0;
        self.announced[slot] = 0;
        self.out_of_shared[slot] = 0;
        self.rewritten[slot] = 0;
        self.kept[slot] = 0;
        for place in self.places.iter_mut().flatten() {
            place.pending[slot] = 0;
            place.rewritten[slot] = 0;
            forgotten.push(std::mem::take(&mut place.marks[slot]));
            if let Some(room) = rooms.get(&place.dataset) {
                place.room = room.clone();
                place.is_told = true;
            }
        }
        self.add_up();
        forgotten
    }

    fn add_up(&mut self) {
        let mut tally = self.add_up_but(None, &self.supply, &BTreeMap::new());
        let mut at_most = Tally::default();
        for place in self.places.iter().flatten() {
            let beyond = place.pending_at_most().saturating_sub(place.room.own);
            at_most.add(&self.supply, &place.room.above, beyond);
        }
        at_most.add(&self.supply, &[], sum(&self.others).saturating_add(sum(&self.kept)));
        for claim in &self.claims {
            tally.add(&self.supply, &claim.above, claim.bytes);
            at_most.add(&self.supply, &claim.above, claim.bytes);
        }
        (self.tally, self.at_most) = (tally, at_most);
    }

    /// What was announced, but for one group, measured against `supply` and `rooms`.
    fn add_up_but(&self, slot: Option<usize>, supply: &Supply, rooms: &BTreeMap<u64, Room>) -> Tally {
        let sum_but = |pending: &[u64; SLOTS]| {
            let all = pending.iter().enumerate().filter(|(other, _)| Some(*other) != slot);
            all.map(|(_, bytes)| *bytes).sum::<u64>()
        };
        let mut tally = Tally::default();
        for place in self.places.iter().flatten() {
            let room = rooms.get(&place.dataset).unwrap_or(&place.room);
            let pending = sum_but(&place.pending);
            tally.total += pending;
            tally.add(supply, &room.above, pending.saturating_sub(room.own));
        }
        tally.total += sum_but(&self.others);
        tally.add(supply, &[], sum_but(&self.others));
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
            self.at_most.add(&self.supply, &claim.above, claim.bytes);
            self.claims.push(claim.clone());
        }
        true
    }

    /// See [`Txgs::lend`](super::Txgs::lend).
    pub(super) fn lend(&mut self, bytes: u64, first: Option<Wish<'_>>) -> bool {
        let taken = self.taken(None, first);
        let shared = (taken.shared_left(&self.supply) / 2).min(taken.unreserved_left(&self.supply));
        let is_there = bytes <= shared.min(self.supply.free.saturating_sub(taken.devices));
        if is_there {
            self.lent += bytes;
            self.logged += bytes;
        }
        is_there
    }

    /// See [`Txgs::unlend`](super::Txgs::unlend).
    pub(super) fn unlend(&mut self, bytes: u64) {
        self.logged = self.logged.saturating_sub(bytes);
        self.lent = self.lent.saturating_sub(bytes);
    }

    /// See [`Txgs::lend_for_a_while`](super::Txgs::lend_for_a_while).
    pub(super) fn lend_for_a_while(&mut self, bytes: u64, out: u64, first: Option<Wish<'_>>) -> bool {
        let free = self.supply.free.saturating_sub(self.taken(None, first).devices);
        let most = free.saturating_add(out) / BORROWED_SHARE;
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

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    /// What a ledger counts as it goes along, without directories that nothing is taken of.
    fn tallies(ledger: &Ledger) -> [(u64, u64, BTreeMap<u64, u64>); 2] {
        [&ledger.tally, &ledger.at_most].map(|tally| {
            let reserved = tally.reserved.iter().filter(|(_, bytes)| **bytes > 0);
            (tally.total, tally.shared, reserved.map(|(dir, bytes)| (*dir, *bytes)).collect())
        })
    }

    #[test]
    fn what_is_announced_and_taken_back_in_any_order_is_the_sum_of_what_is_left() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut ledger = Ledger::new();
            let reserved = BTreeMap::from([(70, 300), (71, 100), (72, 0)]);
            let supply = Supply { shared: 10_000, free: 20_000, reserved, ..Supply::default() };
            ledger.set_supply(supply.clone());
            let rooms = [
                Room { limit: 5000, own: 200, above: vec![71, 70], is_shared: true },
                Room { limit: 5000, own: 0, above: vec![70], is_shared: false },
                Room { limit: 5000, own: 50, above: vec![72], is_shared: true },
                Room { limit: 5000, own: 0, above: vec![], is_shared: false },
            ];
            for (dataset, room) in rooms.iter().enumerate() {
                ledger.insert(dataset as u64, Some(room.clone()));
            }
            // What was announced and not taken back, by group.
            let mut announced: Vec<(Option<usize>, u64, u64)> = Vec::new();
            let mut open = 4;
            for step in 0..400 {
                match random.random_range(0..10) {
                    0..5 => {
                        let volume = random.random_range(0..5usize).checked_sub(1);
                        let (bytes, number) = (random.random_range(0..300), random.random_range(0..9));
                        let above = Above { each: 20, ends: [Some(number), None], ..Above::default() };
                        ledger.announce(volume, open, &Cost { dirty: 0, space: bytes, above });
                        announced.push((volume, open, bytes));
                    }
                    5..9 if !announced.is_empty() => {
                        let place = random.random_range(0..announced.len());
                        let (volume, txg, bytes) = &mut announced[place];
                        let back = random.random_range(0..=*bytes);
                        *bytes -= back;
                        ledger.take_back(*volume, *txg, back);
                    }
                    9 => {
                        // The group before the open one is durable.
                        ledger.synced(slot(open - 1), supply.clone(), BTreeMap::new());
                        announced.retain(|(_, txg, _)| *txg == open);
                        open += 1;
                    }
                    _ => {}
                }
                let by_the_way = tallies(&ledger);
                ledger.add_up();
                assert_eq!(by_the_way, tallies(&ledger), "seed {seed}, step {step}");
                let all: u64 = announced.iter().map(|(_, _, bytes)| bytes).sum();
                assert_eq!(
                    (ledger.tally.total, sum(&ledger.announced)),
                    (all, all),
                    "seed {seed}, step {step}"
                );
                for (out_of_shared, announced) in ledger.out_of_shared.iter().zip(ledger.announced) {
                    assert!(*out_of_shared <= announced, "seed {seed}, step {step}");
                }
            }
        }
    }
}
