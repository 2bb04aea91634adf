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
//! * The kernel is asked for a huge page when a region is begun, and told at once not to make any by itself afterwards:
//!   it would put memory behind what was given back.
//!
//! Lock order: a class, then a region of that class, or the lists of those that have none.
#![expect(unsafe_code, reason = "address space is reserved, filled and emptied in pieces")]

use std::{
    collections::BTreeSet,
    ops::Range,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use crate::shelves::{ALIGN, Origin};

/// Bytes of a region: a huge page of this and most other machines.
pub(crate) const REGION: usize = 2 << 20;
/// Most bytes of a slot: of these a region has eight, and wastes little by any size in between.
pub(crate) const SLOT_MAX: usize = 256 << 10;
/// Words of a set of slots: the smallest have a page.
const WORDS: usize = REGION / ALIGN / 64;
/// Regions whose addresses become usable together.
const GROUP: usize = 64;
/// Bytes of a size that are to be moved at once, at most: a tenth of a second's work.
const MOVED_AT_ONCE: usize = 256 << 20;
/// Regions of a class that are looked at for the emptiest when memory has to be given back at once.
const LOOKED_AT: usize = 8;

/// A set of the slots of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slots([u64; WORDS]);

impl Slots {
    fn first(count: usize) -> Self {
        let mut all = Self::default();
        (0..count).for_each(|slot| all.insert(slot));
        all
    }

    fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// Whether it was there.
    fn remove(&mut self, slot: usize) -> bool {
        let (word, bit) = (&mut self.0[slot / 64], 1 << (slot % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    fn lowest(&self) -> Option<usize> {
        self.0
            .iter()
            .enumerate()
            .find(|(_, word)| **word != 0)
            .map(|(n, word)| n * 64 + word.trailing_zeros() as usize)
    }

    fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Neighbours together.
    fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut rest = *self;
        while let Some(slot) = rest.lowest() {
            rest.remove(slot);
            match runs.last_mut().filter(|run| run.end == slot) {
                Some(run) => run.end += 1,
                None => runs.push(slot..slot + 1),
            }
        }
        runs
    }
}

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
    /// Which lists of its class it is in: the ready ones, the hollow ones, those that are leaving.
    lists: [bool; 3],
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

/// Regions that were begun together.
type Group = Box<[Mutex<Region>]>;

/// Address space for regions, by number.
#[derive(Debug)]
struct Arena {
    base: NonNull<u8>,
    groups: Box<[OnceLock<Group>]>,
}

// SAFETY: `base` is only calculated with; who may touch which part of it is up to `Regions`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves addresses for so many regions, if it may.
    fn new(regions: usize) -> Option<Self> {
        let regions = regions.next_multiple_of(GROUP);
        let bytes = regions.checked_mul(REGION)?.checked_add(REGION)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping where the kernel likes; it touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let skipped = start.cast::<u8>().align_offset(REGION);
        let base = NonNull::new(start.cast::<u8>().wrapping_add(skipped))?;
        Some(Self { base, groups: (0..regions / GROUP).map(|_| OnceLock::new()).collect() })
    }

    fn regions(&self) -> usize {
        self.groups.len() * GROUP
    }

    fn start(&self, number: usize) -> NonNull<u8> {
        // SAFETY: numbers are below `regions`, so this is inside of the addresses that were reserved.
        unsafe { self.base.add(number * REGION) }
    }

    /// The region of this number, if its addresses can be made usable.
    fn begin(&self, number: usize) -> Option<&Mutex<Region>> {
        let group = self.groups.get(number / GROUP)?;
        if group.get().is_none() {
            let start = self.start(number / GROUP * GROUP);
            // SAFETY: a group's addresses are reserved and nobody's yet. Done twice it changes nothing.
            let done = unsafe {
                libc::mprotect(start.as_ptr().cast(), GROUP * REGION, libc::PROT_READ | libc::PROT_WRITE)
            };
            if done != 0 {
                return None;
            }
        }
        group.get_or_init(|| (0..GROUP).map(|_| Mutex::default()).collect()).get(number % GROUP)
    }

    /// A region that was begun.
    fn region(&self, number: usize) -> &Mutex<Region> {
        self.groups
            .get(number / GROUP)
            .and_then(OnceLock::get)
            .and_then(|group| group.get(number % GROUP))
            .expect("it was begun")
    }

    /// The number of the region at this address, and the bytes before it there; none if it is not one of these.
    fn place(&self, address: *const u8) -> Option<(usize, usize)> {
        let offset = address.addr().checked_sub(self.base.addr().get())?;
        Some((offset / REGION, offset % REGION)).filter(|(number, _)| *number < self.regions())
    }

    /// Asks for a huge page behind a region of which nothing is in use, and has no memory; whether there is one.
    fn fill(&self, number: usize) -> bool {
        let start = self.start(number).as_ptr();
        let mut is_there = 0u8;
        // SAFETY: the region is usable memory that belongs to nobody but us at this time: the byte is ours to write (and
        // stays 0, what memory from the kernel is), advice changes no content, and the answer has room for the one page
        // that is asked for.
        unsafe {
            libc::madvise(start.cast(), REGION, libc::MADV_HUGEPAGE);
            start.write_volatile(0);
            libc::madvise(start.cast(), REGION, libc::MADV_NOHUGEPAGE);
            libc::mincore(start.add(REGION - ALIGN).cast(), ALIGN, &raw mut is_there);
        }
        is_there & 1 != 0
    }

    /// Makes usual pages of the huge one behind a region, of which this part is not in use. Else the kernel would keep all of
    /// it, and charge it to us, until it is itself short of memory.
    fn split(&self, number: usize, part: Range<usize>) {
        let start = self.start(number).as_ptr();
        // SAFETY: the part is inside of what `begin` made usable; this says how soon it is used, and changes no content. For
        // a part of a huge page the kernel has to split it first.
        unsafe { libc::madvise(start.add(part.start).cast(), part.len(), libc::MADV_COLD) };
    }

    /// Gives the memory behind a part of a region back, which is zero from then on.
    fn empty(&self, number: usize, part: Range<usize>) {
        let start = self.start(number).as_ptr();
        // SAFETY: the part belongs to nobody but us at this time, and is inside of what `begin` made usable. Memory that is
        // locked cannot be given back, and is made zero instead.
        unsafe {
            let part = (start.add(part.start), part.len());
            if libc::madvise(part.0.cast(), part.1, libc::MADV_DONTNEED) != 0 {
                part.0.write_bytes(0, part.1);
            }
        }
    }
}

/// The regions of a size.
#[derive(Debug)]
struct Class {
    ready: BTreeSet<usize>,
    hollow: BTreeSet<usize>,
    leaving: BTreeSet<usize>,
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
    /// The last region that was begun has a huge page.
    gets_huge: AtomicBool,
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
            gets_huge: AtomicBool::new(true),
            are_leaving: AtomicBool::new(false),
            arena: OnceLock::new(),
            classes: [const {
                Mutex::new(Class {
                    ready: BTreeSet::new(),
                    hollow: BTreeSet::new(),
                    leaving: BTreeSet::new(),
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
            if region.is_unused() && (region.is_leaving || stock.ready.len() > 1) {
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
    /// asked for since, beyond an eighth of what is in use, the emptiest regions are leaving from now on, and those that were
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
            let needed = std::mem::take(&mut stock.asked).max(stock.lent / 8);
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
            capacity == memory.len() && offset % capacity == 0
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
        self.gets_huge.load(Relaxed) && self.has_room()
    }

    /// A region for slots of this capacity, all free.
    fn adopt<'a>(&self, arena: &'a Arena, capacity: usize) -> Option<(usize, &'a Mutex<Region>)> {
        let slots = Slots::first(REGION / capacity);
        let spare = {
            let mut spare = self.spare.lock();
            let number = spare.regions.pop();
            spare.least = spare.least.min(spare.regions.len());
            number
        };
        let (number, hollow, zero) = match spare {
            Some(number) => {
                self.idle.fetch_sub(REGION, Relaxed);
                (number, Slots::default(), Slots::default())
            }
            None => {
                let number = {
                    let mut bare = self.bare.lock();
                    bare.regions.pop().or_else(|| {
                        let next = Some(bare.next).filter(|next| *next < arena.regions())?;
                        arena.begin(next)?;
                        bare.next += 1;
                        Some(next)
                    })?
                };
                let is_tried = self.has_room();
                let is_huge = is_tried && arena.fill(number);
                if is_tried {
                    self.gets_huge.store(is_huge, Relaxed);
                }
                (number, if is_huge { Slots::default() } else { slots }, slots)
            }
        };
        let region = arena.region(number);
        {
            let mut region = region.lock();
            *region =
                Region { capacity, slots: REGION / capacity, free: slots, hollow, zero, ..Region::default() };
            self.idle.fetch_add(region.ready_bytes(), Relaxed);
        }
        Some((number, region))
    }

    /// A region of which nothing is in use leaves its class: with all of its memory, or none.
    fn leave(&self, arena: &Arena, stock: &mut Class, number: usize, region: &mut Region) {
        self.idle.fetch_sub(region.ready_bytes(), Relaxed);
        let is_whole = region.hollow.is_empty() && !region.is_leaving;
        let lists = region.lists;
        *region = Region { lists, ..Region::default() };
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

    /// Gives back the memory of the free slots of a region; how many bytes.
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
            if nth == 0 && region.hollow.is_empty() {
                arena.split(number, part.clone());
            }
            arena.empty(number, part);
        }
        region.hollow = region.free;
        region.zero = region.free;
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
            let emptiest =
                looked_at.max_by_key(|number| arena.region(**number).lock().ready_bytes()).copied();
            match emptiest {
                Some(number) => {
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
    let has_ready = !region.ready().is_empty() && !region.is_leaving;
    let is_hollow = !region.hollow.is_empty() && !region.is_leaving;
    let now = [has_ready, is_hollow, region.is_leaving];
    let sets = [&mut stock.ready, &mut stock.hollow, &mut stock.leaving];
    for ((set, is_in), was_in) in sets.into_iter().zip(now).zip(region.lists) {
        match (was_in, is_in) {
            (false, true) => drop(set.insert(number)),
            (true, false) => drop(set.remove(&number)),
            (false, false) | (true, true) => {}
        }
    }
    region.lists = now;
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    const SIZES: [usize; 3] = [4 << 10, 12 << 10, 256 << 10];

    /// Regions of a test of its own. Address space that a test reserved stays reserved until the program ends.
    fn regions(limit: usize) -> Regions<3> {
        let regions = Regions::new(limit);
        assert!(regions.turn_on(GROUP * REGION));
        regions
    }

    fn lend(regions: &Regions<3>, class: usize, count: usize) -> Vec<(NonNull<u8>, Origin)> {
        let mut lent = Vec::new();
        regions.lend(class, SIZES[class], count, |start, origin| lent.push((start, origin)));
        lent
    }

    fn content<'a>(start: NonNull<u8>, class: usize) -> &'a mut [u8] {
        // SAFETY: what was lent is ours until it is taken back, and as large as that.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), SIZES[class]) }
    }

    /// What is idle, added up.
    fn counted(regions: &Regions<3>) -> usize {
        let arena = regions.arena.get().unwrap().as_ref().unwrap();
        let ready = |class: &Mutex<Class>| -> usize {
            let stock = class.lock();
            stock.ready.union(&stock.leaving).map(|number| arena.region(*number).lock().ready_bytes()).sum()
        };
        regions.classes.iter().map(ready).sum::<usize>() + regions.spare.lock().regions.len() * REGION
    }

    /// Pages that have memory, of all that were ever used.
    fn resident(regions: &Regions<3>) -> usize {
        let arena = regions.arena.get().unwrap().as_ref().unwrap();
        let used = regions.bare.lock().next;
        let mut pages = vec![0u8; used * REGION / ALIGN];
        // SAFETY: asks about addresses of ours; the answer has room for each page.
        let asked = unsafe { libc::mincore(arena.base.as_ptr().cast(), used * REGION, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 != 0).count() * ALIGN
    }

    /// Everything that can be done, in any order: nobody is given what another has, what is said to be zero is, what is in
    /// use keeps its content, and what is said to be idle is.
    #[test]
    fn slots_are_nobody_elses_and_keep_what_is_in_them() {
        let seed = 0x4_c0ffee;
        let mut random = StdRng::seed_from_u64(seed);
        let regions = regions(12 << 20);
        let mut lent: Vec<(usize, NonNull<u8>, u8)> = Vec::new();
        let mut begun = 0u32;
        for step in 0..8_000 {
            match random.random_range(0..100) {
                0..48 => {
                    let class = random.random_range(0..3);
                    let room =
                        (48usize << 20).saturating_sub(lent.iter().map(|(class, ..)| SIZES[*class]).sum());
                    let count = random.random_range(1..12).min(room / SIZES[class]);
                    for (start, origin) in lend(&regions, class, count) {
                        let content = content(start, class);
                        if origin == Origin::Zeroed {
                            assert!(content.iter().all(|byte| *byte == 0), "seed {seed:#x}, step {step}");
                            begun += 1;
                        }
                        let stamp = random.random_range(1..=255);
                        content.fill(stamp);
                        lent.push((class, start, stamp));
                    }
                }
                48..98 => {
                    for _ in 0..random.random_range(1..14).min(lent.len()) {
                        let (class, start, stamp) = lent.swap_remove(random.random_range(0..lent.len()));
                        assert!(
                            content(start, class).iter().all(|byte| *byte == stamp),
                            "seed {seed:#x}, step {step}"
                        );
                        regions.take_back(class, start);
                    }
                }
                98 => {
                    if regions.age() {
                        // Whoever has something there moves it, if he wants to.
                        for (class, start, stamp) in &mut lent {
                            if regions.is_leaving(start.as_ptr()) && random.random_range(0..3) > 0 {
                                let (other, _) = lend(&regions, *class, 1)[0];
                                assert!(!regions.is_leaving(other.as_ptr()), "seed {seed:#x}, step {step}");
                                content(other, *class).fill(*stamp);
                                regions.take_back(*class, *start);
                                *start = other;
                            }
                        }
                    }
                }
                _ => {
                    regions.set_limit(0);
                    assert_eq!(regions.idle(), 0, "seed {seed:#x}, step {step}");
                    regions.set_limit(12 << 20);
                }
            }
            assert!(regions.idle() <= 12 << 20);
            if step % 512 == 0 {
                assert_eq!(regions.idle(), counted(&regions), "seed {seed:#x}, step {step}");
                let in_use: usize = lent.iter().map(|(class, ..)| SIZES[*class]).sum();
                // What is left at the end of a region by slots of 12 KiB is nobody's.
                let left = (REGION % SIZES[1]) * regions.bare.lock().next;
                assert!(resident(&regions) <= in_use + regions.idle() + left, "seed {seed:#x}, step {step}");
            }
        }
        assert!(begun > 40, "memory was given back and asked for again");
    }

    /// Giving back a part of a huge page is its end. So what is left in half-empty ones is moved together.
    #[test]
    fn only_whole_regions_go_back_as_long_as_there_is_room_for_what_is_idle() {
        const SLOTS: usize = REGION / SIZES[0];
        let regions = regions(8 << 20);
        let mut lent = lend(&regions, 0, 4 * SLOTS);
        assert_eq!(resident(&regions), 4 * REGION);
        let give_back = |lent: &mut Vec<(NonNull<u8>, Origin)>, goes: &dyn Fn(usize) -> bool| {
            let (gone, stay) = lent.drain(..).enumerate().partition::<Vec<_>, _>(|(number, _)| goes(*number));
            gone.into_iter().for_each(|(_, (start, _))| regions.take_back(0, start));
            lent.extend(stay.into_iter().map(|(_, slot)| slot));
        };
        give_back(&mut lent, &|number| !(number % SLOTS).is_multiple_of(4));
        assert!(!regions.age(), "it was asked for lately");
        assert_eq!(resident(&regions), 4 * REGION);
        assert!(regions.age());
        let leaving = |(start, _): &(NonNull<u8>, Origin)| regions.is_leaving(start.as_ptr());
        let stay = lent.iter().filter(|slot| !leaving(slot)).count();
        assert_eq!((stay, lent.len()), (SLOTS / 2, SLOTS), "two of them have room for what is in the others");
        for slot in &mut lent {
            if leaving(slot) {
                let moved = lend(&regions, 0, 1)[0];
                regions.take_back(0, std::mem::replace(slot, moved).0);
            }
        }
        assert_eq!(resident(&regions), 2 * REGION);
        assert!(regions.is_slot(content(lent[0].0, 0)) && !regions.is_slot(&content(lent[0].0, 0)[1..]));
    }

    /// The kernel kept all of a huge page of which a part was given back, and charged it to the cgroup.
    #[test]
    fn a_huge_page_is_split_before_a_part_of_it_goes_back() {
        let split = || -> Option<u64> {
            let counters = std::fs::read_to_string("/proc/vmstat").ok()?;
            counters.lines().find_map(|line| line.strip_prefix("thp_split_page ")?.parse().ok())
        };
        let regions = regions(64 << 20);
        let lent = lend(&regions, 2, 8 * REGION / SIZES[2]);
        // Nothing was written there yet: what is resident came with huge pages.
        let (Some(before), true) = (split(), resident(&regions) == 8 * REGION) else {
            eprintln!("not run: no huge page, or no counter of those that are split");
            return;
        };
        lent.iter().step_by(2).for_each(|(start, _)| regions.take_back(2, *start));
        regions.set_limit(0);
        assert!(split().is_some_and(|after| after >= before + 8), "of eight, half is free");
    }

    #[test]
    fn another_size_has_what_is_empty() {
        let regions = regions(64 << 20);
        let lent = lend(&regions, 0, 8 * REGION / SIZES[0]);
        lent.into_iter().for_each(|(start, _)| regions.take_back(0, start));
        let others = lend(&regions, 2, 7 * REGION / SIZES[2]);
        assert!(others.iter().all(|(_, origin)| *origin == Origin::Recycled), "no new memory");
        assert_eq!(regions.bare.lock().next, 8);
    }

    #[test]
    fn without_address_space_nothing_is_lent() {
        assert_eq!(lend(&Regions::new(0), 0, 1).len(), 0);
        let regions = regions(0);
        let all = lend(&regions, 2, GROUP * REGION / SIZES[2] + 5);
        assert_eq!(all.len(), GROUP * REGION / SIZES[2]);
    }
}
