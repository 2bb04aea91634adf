//! Memory for buffers in regions of 2 MiB, a huge page each, cut into slots of one size.
//!
//! A cache of many gigabytes in pages of 4 KiB misses the processor's translation buffer with every page it copies from, and
//! in a virtual machine each miss is a walk of two page tables: a third of what sending or receiving 128 KiB costs. So large
//! caches ([`Regions::turn_on`]) have their blocks in huge pages. A huge page whose parts are given back is none any more, so
//! whole regions go back as soon as nobody needs them, and parts only when they have to.
//!
//! * A region is *ready* as long as it has free slots with memory behind them, *hollow* when it has free slots without. The
//!   ready one with the lowest address is lent from, so that others become empty.
//! * A region that is empty is *spare*, for any size; without memory it is *bare*.
//! * Where much more is free than is asked for, the emptiest regions are *leaving*: nothing is lent from them, and whoever
//!   has something in them is asked to move it ([`Regions::is_leaving`]). What did not move in time stays, in usual pages.
//! * The kernel is asked for a huge page when a region is begun, as long as it has some at hand. Else a region begins hollow,
//!   in usual pages, and when it is full somebody with time makes a huge page of them ([`Regions::collapse`]). It is told not
//!   to make any by itself: it would put memory behind what was given back.
//!
//! Lock order: a class, then a region of that class, or the lists of those that have none.
#![expect(unsafe_code, reason = "address space is reserved, filled and emptied in pieces")]

use std::{
    collections::BTreeSet,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use self::{arena::Huge, slots::Slots};
use crate::shelves::Origin;

mod arena;
mod slots;
#[cfg(test)]
mod tests;

type Arena = arena::Arena<Region>;

/// Bytes of a region: a huge page of this and most other machines.
pub(crate) const REGION: usize = 2 << 20;
/// Most bytes of a slot: of these a region has eight, and wastes little by any size in between.
pub(crate) const SLOT_MAX: usize = 256 << 10;
/// Bytes of a size that are to be moved at once, at most: a tenth of a second's work.
const MOVED_AT_ONCE: usize = 256 << 20;
/// Regions of a class that are looked at for the emptiest when memory has to be given back at once.
const LOOKED_AT: usize = 8;
/// Regions that are begun in usual pages after a huge one was dear, at least and, if it is again, at most.
const UNTRIED: (usize, usize) = (16, 1024);

/// What a region is used for.
#[derive(Debug, Default)]
struct Region {
    /// Bytes of a slot.
    capacity: usize,
    /// How many there are.
    slots: usize,
    free: Slots,
    /// Those of the free ones that have no memory.
    hollow: Slots,
    /// Those of the free ones that are known to be zero; all hollow ones are.
    zero: Slots,
    is_leaving: bool,
    /// It is one page, as far as we know.
    is_huge: bool,
    /// It is about to become one: all of its memory has to stay.
    is_busy: bool,
    /// Which lists of its class it is in: the ready ones, the hollow ones, those that are leaving, the usual ones.
    lists: [bool; 4],
}

impl Region {
    fn ready(&self) -> Slots {
        self.free.without(&self.hollow)
    }

    fn ready_bytes(&self) -> usize {
        self.ready().len() * self.capacity
    }

    fn is_unused(&self) -> bool {
        self.free.len() == self.slots
    }
}

/// The regions of a size.
#[derive(Debug)]
struct Class {
    ready: BTreeSet<usize>,
    hollow: BTreeSet<usize>,
    leaving: BTreeSet<usize>,
    /// Those that have all of their memory, in usual pages.
    usual: BTreeSet<usize>,
    /// Bytes asked for since [`Regions::age`].
    asked: usize,
    /// Bytes lent.
    lent: usize,
}

/// Whole regions with memory, the coldest first.
#[derive(Debug)]
struct Spare {
    regions: Vec<usize>,
    /// The fewest there were since [`Regions::age`].
    least: usize,
}

/// Whole regions without memory.
#[derive(Debug)]
struct Bare {
    regions: Vec<usize>,
    /// The first that was never used.
    next: usize,
}

/// All regions.
#[derive(Debug)]
pub(crate) struct Regions<const CLASSES: usize> {
    is_on: AtomicBool,
    /// How many are to be begun in usual pages until a huge one is asked for, and how many if that is dear.
    untried: AtomicUsize,
    untried_next: AtomicUsize,
    /// Class and number from which on usual ones are looked for.
    place: Mutex<(usize, usize)>,
    /// Some are leaving.
    are_leaving: AtomicBool,
    arena: OnceLock<Option<Arena>>,
    classes: [Mutex<Class>; CLASSES],
    spare: Mutex<Spare>,
    bare: Mutex<Bare>,
    /// Bytes of memory in free slots and spare regions, about: a bound between threads, not a ledger.
    idle: AtomicUsize,
    limit: AtomicUsize,
    /// The class that gives memory back next.
    hand: AtomicUsize,
}

impl<const CLASSES: usize> Regions<CLASSES> {
    /// None, and none made.
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            untried: AtomicUsize::new(0),
            untried_next: AtomicUsize::new(UNTRIED.0),
            place: Mutex::new((0, 0)),
            are_leaving: AtomicBool::new(false),
            arena: OnceLock::new(),
            classes: [const {
                Mutex::new(Class {
                    ready: BTreeSet::new(),
                    hollow: BTreeSet::new(),
                    leaving: BTreeSet::new(),
                    usual: BTreeSet::new(),
                    asked: 0,
                    lent: 0,
                })
            }; CLASSES],
            spare: Mutex::new(Spare { regions: Vec::new(), least: 0 }),
            bare: Mutex::new(Bare { regions: Vec::new(), next: 0 }),
            idle: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            hand: AtomicUsize::new(0),
        }
    }

    /// From now on there are regions, of `bytes` in all at most; false if there cannot be any.
    pub(crate) fn turn_on(&self, bytes: usize) -> bool {
        let arena = self.arena.get_or_init(|| Arena::new(bytes / REGION));
        self.is_on.store(arena.is_some(), Relaxed);
        arena.is_some()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Bytes of memory that wait to be used again.
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Relaxed)
    }

    /// Lends up to `count` slots of a class, whose slots have `capacity` bytes: the lowest there are, so neighbours where
    /// there are such.
    pub(crate) fn lend(
        &self,
        class: usize,
        capacity: usize,
        count: usize,
        mut put: impl FnMut(NonNull<u8>, Origin),
    ) {
        let Some(arena) = self.arena.get().and_then(Option::as_ref).filter(|_| self.is_on()) else { return };
        let mut stock = self.classes[class].lock();
        stock.asked = stock.asked.saturating_add(count * capacity);
        let mut missing = count;
        while missing > 0 {
            // What has memory comes before what needs some, and a huge page before many small ones.
            let ready = stock.ready.first().copied();
            let is_ready = ready.is_some();
            if !is_ready
                && (stock.hollow.is_empty() || self.may_be_huge() || !self.spare.lock().regions.is_empty())
                && let Some((number, region)) = self.adopt(arena, capacity)
            {
                note(&mut stock, number, &mut region.lock());
                continue;
            }
            let Some(number) = ready.or_else(|| stock.hollow.first().copied()) else { break };
            let mut region = arena.region(number).lock();
            let mut from = if is_ready { region.ready() } else { region.hollow };
            while missing > 0
                && let Some(slot) = from.lowest()
            {
                from.remove(slot);
                region.free.remove(slot);
                region.hollow.remove(slot);
                let origin = if region.zero.remove(slot) { Origin::Zeroed } else { Origin::Recycled };
                // SAFETY: slots lie inside of their region.
                put(unsafe { arena.start(number).add(slot * capacity) }, origin);
                missing -= 1;
                stock.lent += capacity;
                if is_ready {
                    self.idle.fetch_sub(capacity, Relaxed);
                }
            }
            note(&mut stock, number, &mut region);
        }
    }

    /// Takes a slot of this class back.
    pub(crate) fn take_back(&self, class: usize, start: NonNull<u8>) {
        let arena = self.arena.get().and_then(Option::as_ref).expect("it is where the slot is from");
        let (number, offset) = arena.place(start.as_ptr()).expect("it is of this arena");
        let capacity = {
            let mut stock = self.classes[class].lock();
            let mut region = arena.region(number).lock();
            let capacity = region.capacity;
            region.free.insert(offset / capacity);
            stock.lent -= capacity;
            self.idle.fetch_add(capacity, Relaxed);
            note(&mut stock, number, &mut region);
            // The last one is kept: another one would be begun at once.
            if region.is_unused() && !region.is_busy && (region.is_leaving || stock.ready.len() > 1) {
                self.leave(arena, &mut stock, number, &mut region);
            }
            capacity
        };
        if self.idle() > self.limit.load(Relaxed) {
            self.shrink(2 * capacity);
        }
    }

    /// No more than `bytes` wait to be used again from now on.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
        self.shrink(usize::MAX);
    }

    /// Gives back whole regions that nobody has needed since this was called last. Of sizes of which more is free than was
    /// asked for since, beyond a sixteenth of what is in use, the emptiest regions are leaving from now on, and those that were
    /// give back what is free in them. Whether any are leaving.
    pub(crate) fn age(&self) -> bool {
        let Some(arena) = self.arena.get().and_then(Option::as_ref) else { return false };
        let spare: Vec<usize> = {
            let mut spare = self.spare.lock();
            let count = spare.least.min(spare.regions.len());
            let old = spare.regions.drain(..count).collect();
            spare.least = spare.regions.len();
            old
        };
        spare.into_iter().for_each(|number| self.strip(arena, number));
        let mut are_leaving = false;
        for class in &self.classes {
            // One at a time: others want memory of this size meanwhile.
            while let mut stock = class.lock()
                && let Some(number) = stock.leaving.first().copied()
            {
                self.hollow_out(arena, &mut stock, number);
            }
            let mut stock = class.lock();
            let needed = std::mem::take(&mut stock.asked).max(stock.lent / 16);
            let mut ready: Vec<(usize, usize)> = stock
                .ready
                .iter()
                .map(|number| (arena.region(*number).lock().ready_bytes(), *number))
                .collect();
            ready.sort_unstable();
            let mut left: usize = ready.iter().map(|(bytes, _)| bytes).sum();
            let mut moving = 0;
            while left > needed
                && let Some((bytes, number)) = ready.pop()
            {
                let mut region = arena.region(number).lock();
                if region.is_busy {
                    continue;
                }
                if region.is_unused() {
                    self.leave(arena, &mut stock, number, &mut region);
                    left -= bytes;
                    continue;
                }
                let in_use = (region.slots - region.free.len()) * region.capacity;
                // What is moved has to find a place.
                if left < bytes + in_use + needed || moving + in_use > MOVED_AT_ONCE {
                    break;
                }
                region.is_leaving = true;
                note(&mut stock, number, &mut region);
                (left, moving, are_leaving) = (left - bytes - in_use, moving + in_use, true);
            }
        }
        self.are_leaving.store(are_leaving, Relaxed);
        are_leaving
    }

    /// Whether memory at this address lies in a region that is leaving: a copy of it would not.
    pub(crate) fn is_leaving(&self, start: *const u8) -> bool {
        self.are_leaving.load(Relaxed)
            && self.region_of(start).is_some_and(|(region, _)| region.lock().is_leaving)
    }

    /// Whether memory is a slot, all of it.
    pub(crate) fn is_slot(&self, memory: &[u8]) -> bool {
        self.region_of(memory.as_ptr()).is_some_and(|(region, offset)| {
            let capacity = region.lock().capacity;
            capacity == memory.len() && offset.checked_rem(capacity) == Some(0)
        })
    }

    fn region_of(&self, address: *const u8) -> Option<(&Mutex<Region>, usize)> {
        let arena = self.arena.get()?.as_ref()?;
        let (number, offset) = arena.place(address)?;
        Some((arena.region(number), offset))
    }

    /// Whether what is left of a huge page may be idle.
    fn has_room(&self) -> bool {
        self.idle() + REGION <= self.limit.load(Relaxed)
    }

    /// Whether a region that is begun now has a huge page, as far as one can know.
    fn may_be_huge(&self) -> bool {
        self.untried.load(Relaxed) == 0 && self.has_room()
    }

    /// Asks for a huge page behind a region that is begun, if they are not dear; whether there is one.
    fn fill(&self, arena: &Arena, number: usize) -> bool {
        if !self.has_room() {
            return false;
        }
        if self.untried.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return false;
        }
        let huge = arena.fill(number);
        self.heed(huge);
        matches!(huge, Huge::Is | Huge::IsSlow)
    }

    /// Decides by the last huge page that was asked for whether the next regions ask.
    fn heed(&self, huge: Huge) {
        if huge == Huge::Is {
            self.untried_next.store(UNTRIED.0, Relaxed);
        } else {
            let next = self.untried_next.load(Relaxed);
            self.untried.store(next, Relaxed);
            self.untried_next.store((2 * next).min(UNTRIED.1), Relaxed);
        }
    }

    /// Makes a huge page of a region that has all of its memory in usual ones; a millisecond's work. Whether the kernel did.
    /// `None` if no region was left since the first one, with which it begins again.
    pub(crate) fn collapse(&self) -> Option<bool> {
        let arena = self.arena.get().and_then(Option::as_ref).filter(|arena| arena.can_collapse())?;
        self.collapse_with(arena, |number| arena.collapse(number))
    }

    /// The same; `make` does it.
    fn collapse_with(&self, arena: &Arena, make: impl FnOnce(usize) -> bool) -> Option<bool> {
        let mut place = self.place.lock();
        while let Some(stock) = self.classes.get(place.0) {
            let mut class = stock.lock();
            let Some(number) = class.usual.range(place.1..).next().copied() else {
                *place = (place.0 + 1, 0);
                continue;
            };
            place.1 = number + 1;
            let region = arena.region(number);
            let set_busy = |class: &mut Class, is_busy, is_huge| {
                let mut region = region.lock();
                (region.is_busy, region.is_huge) = (is_busy, is_huge);
                note(class, number, &mut region);
            };
            set_busy(&mut class, true, false);
            drop(class);
            let is_huge = make(number);
            set_busy(&mut stock.lock(), false, is_huge);
            return Some(is_huge);
        }
        *place = (0, 0);
        None
    }

    /// A region for slots of this capacity, all free.
    fn adopt<'a>(&self, arena: &'a Arena, capacity: usize) -> Option<(usize, &'a Mutex<Region>)> {
        let spare = {
            let mut spare = self.spare.lock();
            let number = spare.regions.pop();
            spare.least = spare.least.min(spare.regions.len());
            number
        };
        let slots = Slots::first(REGION / capacity);
        let (number, is_huge, hollow, zero) = if let Some(number) = spare {
            self.idle.fetch_sub(REGION, Relaxed);
            (number, arena.region(number).lock().is_huge, Slots::default(), Slots::default())
        } else {
            let number = {
                let mut bare = self.bare.lock();
                bare.regions.pop().or_else(|| {
                    let next = bare.next;
                    (next < arena.regions() && arena.begin(next)).then(|| {
                        bare.next += 1;
                        next
                    })
                })?
            };
            let is_huge = self.fill(arena, number);
            (number, is_huge, if is_huge { Slots::default() } else { slots }, slots)
        };
        let region = arena.region(number);
        {
            let mut region = region.lock();
            *region = Region {
                capacity,
                slots: REGION / capacity,
                free: slots,
                hollow,
                zero,
                is_huge,
                ..Region::default()
            };
            self.idle.fetch_add(region.ready_bytes(), Relaxed);
        }
        Some((number, region))
    }

    /// A region of which nothing is in use leaves its class: with all of its memory, or none.
    fn leave(&self, arena: &Arena, stock: &mut Class, number: usize, region: &mut Region) {
        self.idle.fetch_sub(region.ready_bytes(), Relaxed);
        let is_whole = region.hollow.is_empty() && !region.is_leaving;
        let (lists, is_huge) = (region.lists, region.is_huge && is_whole);
        *region = Region { lists, is_huge, ..Region::default() };
        note(stock, number, region);
        self.idle.fetch_add(REGION, Relaxed);
        if is_whole {
            self.spare.lock().regions.push(number);
        } else {
            self.strip(arena, number);
        }
    }

    /// Gives back the memory of a whole region, which was counted as idle.
    fn strip(&self, arena: &Arena, number: usize) {
        arena.empty(number, 0..REGION);
        self.idle.fetch_sub(REGION, Relaxed);
        self.bare.lock().regions.push(number);
    }

    /// Gives back the memory of the free slots of a region that is not busy; how many bytes.
    fn hollow_out(&self, arena: &Arena, stock: &mut Class, number: usize) -> usize {
        let mut region = arena.region(number).lock();
        region.is_leaving = false;
        let (ready, bytes) = (region.ready(), region.ready_bytes());
        if region.is_unused() {
            // Not as a spare one: it is to have no memory.
            region.hollow = region.free;
            self.idle.fetch_sub(bytes, Relaxed);
            self.leave(arena, stock, number, &mut region);
            return bytes;
        }
        let parts =
            ready.runs().into_iter().map(|run| run.start * region.capacity..run.end * region.capacity);
        for (nth, part) in parts.enumerate() {
            if nth == 0 && region.is_huge {
                arena.split(number, part.clone());
            }
            arena.empty(number, part);
        }
        (region.hollow, region.zero, region.is_huge) = (region.free, region.free, false);
        self.idle.fetch_sub(bytes, Relaxed);
        note(stock, number, &mut region);
        bytes
    }

    /// Gives memory back until no more is idle than may be, or it is `enough`.
    fn shrink(&self, enough: usize) {
        let Some(arena) = self.arena.get().and_then(Option::as_ref) else { return };
        let mut given = 0;
        let mut fruitless = 0;
        while self.idle() > self.limit.load(Relaxed) && given < enough && fruitless < 2 * CLASSES {
            let spare = {
                let mut spare = self.spare.lock();
                let coldest = (!spare.regions.is_empty()).then(|| spare.regions.remove(0));
                spare.least = spare.least.min(spare.regions.len());
                coldest
            };
            if let Some(number) = spare {
                self.strip(arena, number);
                given += REGION;
                continue;
            }
            let class = &self.classes[self.hand.fetch_add(1, Relaxed) % CLASSES];
            let mut stock = class.lock();
            // The first time around, sizes that nobody wants.
            let may = if fruitless >= CLASSES || stock.asked == 0 { LOOKED_AT } else { 0 };
            let looked_at = stock.leaving.iter().chain(stock.ready.iter().rev()).take(may);
            let free = looked_at.filter_map(|number| {
                let region = arena.region(*number).lock();
                (!region.is_busy).then(|| (region.ready_bytes(), *number))
            });
            match free.max() {
                Some((_, number)) => {
                    given += self.hollow_out(arena, &mut stock, number);
                    fruitless = if fruitless < CLASSES { 0 } else { CLASSES };
                }
                None => fruitless += 1,
            }
        }
    }
}

/// Where a region is listed follows from what it has.
fn note(stock: &mut Class, number: usize, region: &mut Region) {
    let stays = region.slots > 0 && !region.is_leaving;
    let has_ready = stays && !region.ready().is_empty();
    let is_hollow = stays && !region.hollow.is_empty();
    let is_usual = stays && !is_hollow && !region.is_huge && !region.is_busy;
    let now = [has_ready, is_hollow, region.is_leaving, is_usual];
    let sets = [&mut stock.ready, &mut stock.hollow, &mut stock.leaving, &mut stock.usual];
    for ((set, is_in), was_in) in sets.into_iter().zip(now).zip(region.lists) {
        match (was_in, is_in) {
            (false, true) => drop(set.insert(number)),
            (true, false) => drop(set.remove(&number)),
            (false, false) | (true, true) => {}
        }
    }
    region.lists = now;
}
