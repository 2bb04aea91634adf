//! Memory for buffers: size classes, and free lists of what was given back.
//!
//! * Classes are 4 KiB apart up to 64 KiB, then four to a doubling up to 16 MiB, so a cached block wastes at
//!   most a page or a quarter of itself.
//! * Free lists are bounded together ([`set_idle_max`]). When they are full, buffers of a size that is in use now take the
//!   place of those of sizes that are not; what does not fit is freed, and what nobody needs for a while if somebody sees
//!   to that ([`age_idle`]).
//! * Beneath them is the allocator, or for large buffers the kernel directly; in a process that may have much memory the
//!   [`regions`](crate::regions) ([`use_huge_pages`]), and the free lists are only what is warm of it. Whatever is new is zero.
#![expect(unsafe_code, reason = "aligned allocations; std has no aligned Vec")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    collections::VecDeque,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    regions::{REGION, Regions, SLOT_MAX},
    sys,
};

/// Alignment of all memory, in bytes: a page, and no device in use has larger sectors.
pub(crate) const ALIGN: usize = 4096;

/// Most bytes the free lists may be allowed to keep between them.
pub const IDLE_MAX: usize = 1 << 30;

/// What they keep at most until somebody says otherwise: what a few hundred block reads in flight leave behind.
const IDLE_USUAL: usize = 64 << 20;

/// Memory that belongs to whoever has this, all of it initialised. Dropped, it is freed; [`take_back`] may keep it.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Dangling if it is of no bytes.
    start: NonNull<u8>,
    capacity: usize,
    source: Source,
}

/// Where memory is from, and goes in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Allocator,
    /// A mapping of its own.
    Kernel,
    Regions,
}

impl Piece {
    /// None.
    pub(crate) const EMPTY: Self =
        Self { start: NonNull::dangling(), capacity: 0, source: Source::Allocator };

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// It is not to be used again: see [`is_leaving`].
    fn is_leaving(&self) -> bool {
        self.source == Source::Regions && REGIONS.is_leaving(self.start.as_ptr())
    }
}

// SAFETY: whoever has it is the only owner of the memory.
unsafe impl Send for Piece {}

/// Is the memory known to be zero?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Zeroed,
    Recycled,
}

/// Memory for several buffers of a size.
pub(crate) type Row = SmallVec<[(Piece, Origin); 16]>;

/// The free list of a class.
struct Shelf {
    stock: Mutex<Stock>,
    /// How many there are.
    len: AtomicUsize,
    /// What [`Shelves::lent`] was when one of this class was wanted last.
    wanted: AtomicUsize,
}

struct Stock {
    /// The coldest first.
    idle: VecDeque<Piece>,
    /// The fewest there were since the list was aged.
    least: usize,
}

impl Shelf {
    const fn new() -> Self {
        Self {
            stock: Mutex::new(Stock { idle: VecDeque::new(), least: 0 }),
            len: AtomicUsize::new(0),
            wanted: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<Piece> {
        let mut stock = self.stock.lock();
        let piece = stock.idle.pop_back()?;
        stock.least = stock.least.min(stock.idle.len());
        self.len.store(stock.idle.len(), Relaxed);
        Some(piece)
    }

    /// As many of them as there are, by address.
    fn take_row(&self, count: usize) -> Row {
        let mut stock = self.stock.lock();
        let rest = stock.idle.len().saturating_sub(count);
        let mut row: Row = stock.idle.drain(rest..).map(|piece| (piece, Origin::Recycled)).collect();
        stock.least = stock.least.min(rest);
        self.len.store(rest, Relaxed);
        drop(stock);
        row.sort_unstable_by_key(|(piece, _)| piece.start);
        row
    }

    fn coldest(&self) -> Option<Piece> {
        let mut stock = self.stock.lock();
        let piece = stock.idle.pop_front()?;
        stock.least = stock.least.min(stock.idle.len());
        self.len.store(stock.idle.len(), Relaxed);
        Some(piece)
    }

    fn keep(&self, piece: Piece) {
        let mut stock = self.stock.lock();
        stock.idle.push_back(piece);
        self.len.store(stock.idle.len(), Relaxed);
    }

    /// What is not to be used again.
    fn leaving(&self) -> Vec<Piece> {
        let mut stock = self.stock.lock();
        let (leaving, idle) = stock.idle.drain(..).partition::<Vec<Piece>, _>(Piece::is_leaving);
        stock.idle = idle.into();
        stock.least = stock.least.min(stock.idle.len());
        self.len.store(stock.idle.len(), Relaxed);
        leaving
    }

    /// What nobody has needed since this was called last.
    fn spare(&self) -> Vec<Piece> {
        let mut stock = self.stock.lock();
        let spare = stock.least.min(stock.idle.len());
        let spare = stock.idle.drain(..spare).collect();
        stock.least = stock.idle.len();
        self.len.store(stock.idle.len(), Relaxed);
        spare
    }
}

/// All free lists.
struct Shelves {
    classes: [Shelf; CLASSES],
    /// Bytes in all of them, about: a bound between threads, not a ledger.
    idle: AtomicUsize,
    limit: AtomicUsize,
    /// Bytes ever lent: the clock by which a class is in use or not.
    lent: AtomicUsize,
}

impl Shelves {
    const fn new(limit: usize) -> Self {
        Self {
            classes: [const { Shelf::new() }; CLASSES],
            idle: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            lent: AtomicUsize::new(0),
        }
    }

    fn lend(&self, len: usize) -> (Piece, Origin) {
        let Some(class) = class_of(len) else { return (obtain(capacity_for(len)), Origin::Zeroed) };
        let capacity = class_size(class);
        if let Some(piece) = self.wanted(class, 1).take() {
            self.idle.fetch_sub(capacity, Relaxed);
            return (piece, Origin::Recycled);
        }
        let mut slot = None;
        lend_slots(class, 1, |piece, origin| slot = Some((piece, origin)));
        slot.unwrap_or_else(|| (obtain(capacity), Origin::Zeroed))
    }

    fn lend_row(&self, len: usize, count: usize) -> Row {
        let class = class_of(len);
        let mut row = class.map_or_else(Row::new, |class| self.wanted(class, count).take_row(count));
        let capacity = capacity_for(len);
        self.idle.fetch_sub(capacity * row.len(), Relaxed);
        if let Some(class) = class {
            let missing = count - row.len();
            lend_slots(class, missing, |piece, origin| row.push((piece, origin)));
        }
        row.resize_with(count, || (obtain(capacity), Origin::Zeroed));
        row
    }

    /// The free list of a class of which `count` are wanted. It is in use, also if there is none.
    fn wanted(&self, class: usize, count: usize) -> &Shelf {
        let bytes = class_size(class) * count;
        self.classes[class].wanted.store(self.lent.fetch_add(bytes, Relaxed) + bytes, Relaxed);
        &self.classes[class]
    }

    fn take_back(&self, piece: Piece) {
        let capacity = piece.capacity;
        if let Some(class) = class_of(capacity)
            && !piece.is_leaving()
            && (self.has_room(capacity) || self.make_room(class))
        {
            self.idle.fetch_add(capacity, Relaxed);
            self.classes[class].keep(piece);
        }
    }

    fn has_room(&self, capacity: usize) -> bool {
        self.idle.load(Relaxed) + capacity <= self.limit.load(Relaxed)
    }

    /// Frees buffers of classes that are not in use, so that one of `class` can be kept; false if all are. A class is
    /// not in use when more was lent since than all lists may keep.
    fn make_room(&self, class: usize) -> bool {
        let (limit, now) = (self.limit.load(Relaxed), self.lent.load(Relaxed));
        let capacity = class_size(class);
        for (other, shelf) in self.classes.iter().enumerate() {
            let is_cold = || now.saturating_sub(shelf.wanted.load(Relaxed)) > limit;
            if capacity <= limit && other != class && shelf.len.load(Relaxed) > 0 && is_cold() {
                self.thin_out(shelf, || self.has_room(capacity));
                if self.has_room(capacity) {
                    return true;
                }
            }
        }
        false
    }

    /// Frees buffers, the coldest first, until it is `enough` or none is left.
    fn thin_out(&self, shelf: &Shelf, enough: impl Fn() -> bool) {
        while !enough() {
            let Some(coldest) = shelf.coldest() else { return };
            self.idle.fetch_sub(coldest.capacity, Relaxed);
        }
    }

    fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
        // The largest first: they are the fewest.
        for shelf in self.classes.iter().rev() {
            self.thin_out(shelf, || self.idle.load(Relaxed) <= bytes);
        }
    }

    fn age(&self) {
        self.drop_all(Shelf::spare);
    }

    fn drop_all(&self, which: impl Fn(&Shelf) -> Vec<Piece>) {
        for piece in self.classes.iter().flat_map(which) {
            self.idle.fetch_sub(piece.capacity, Relaxed);
        }
    }
}

/// Memory with room for `len` bytes, which is not 0.
pub(crate) fn lend(len: usize) -> (Piece, Origin) {
    SHELVES.lend(len)
}

/// `count` times memory with room for `len` bytes, which is not 0. What was used before is in the order of its addresses:
/// what left the cache in the order in which it came lies in a row again, and is faster to read one behind the other than
/// here and there.
pub(crate) fn lend_row(len: usize, count: usize) -> Row {
    SHELVES.lend_row(len, count)
}

/// Keeps what was lent, to be lent again, or frees it.
pub(crate) fn take_back(piece: Piece) {
    SHELVES.take_back(piece);
}

/// Bytes of memory for `len` bytes.
pub(crate) fn capacity_for(len: usize) -> usize {
    class_of(len).filter(|_| len > 0).map_or_else(|| len.next_multiple_of(ALIGN), class_size)
}

/// Memory waiting in the free lists to be used again, in bytes. At most [`IDLE_MAX`], or what was set.
pub fn bytes_idle() -> usize {
    SHELVES.idle.load(Relaxed) + REGIONS.idle()
}

/// Memory for blocks is in huge pages from now on, as far as the kernel has some. For processes that may have so much
/// memory that some MiB of each size in use do not matter; `addresses` is how many bytes of address space may be reserved.
/// False, and nothing changes, where the system has no such pages for those who ask, or others than of 2 MiB. Followed by
/// [`set_idle_max`].
pub fn use_huge_pages(addresses: usize) -> bool {
    sys::has_huge_pages(REGION, ALIGN) && REGIONS.turn_on(addresses)
}

/// The free lists keep at most `bytes` between them from now on, and no more than [`IDLE_MAX`]; what they have beyond
/// that is freed.
pub fn set_idle_max(bytes: usize) {
    let bytes = bytes.min(IDLE_MAX);
    let warm = if REGIONS.is_on() { bytes / WARM } else { bytes };
    SHELVES.set_limit(warm);
    REGIONS.set_limit(bytes - warm);
}

/// Frees of each free list what nobody has needed since this was called last. Whoever calls it every few seconds lets
/// memory that comes and goes with transaction groups be used again, and gives back what was left by a burst. True if
/// memory is in use that is better moved, so that more can be given back the next time: see [`is_leaving`].
pub fn age_idle() -> bool {
    SHELVES.age();
    let are_leaving = REGIONS.age();
    if are_leaving {
        SHELVES.drop_all(Shelf::leaving);
    }
    are_leaving
}

/// Makes a huge page of memory that is all in use, if some of it is in usual pages: about a millisecond's work, longer where the
/// kernel has to make room. Whether it became one; `None` if nothing was left to be done. For whoever has time, and may wait
/// ([`use_huge_pages`]).
pub fn collapse_one() -> Option<bool> {
    REGIONS.collapse()
}

/// Whether memory lies where nearly all is free and is to be given back: who copies it to an [`IoBuf`](crate::IoBuf) and
/// lets go of it helps with that.
#[must_use]
pub fn is_leaving(memory: &[u8]) -> bool {
    REGIONS.is_leaving(memory.as_ptr())
}

/// Whether an [`IoBuf`](crate::IoBuf) of `len` bytes would have just that much memory, a slot in a huge page.
#[must_use]
pub fn has_slots(len: usize) -> bool {
    REGIONS.is_on()
        && len > 0
        && class_of(len).is_some_and(|class| class < SLOTTED && class_size(class) == len)
}

/// Whether an [`IoBuf`](crate::IoBuf) has just this memory, in a huge page: it wastes nothing, and is better kept than
/// copied.
#[must_use]
pub fn is_slot(memory: &[u8]) -> bool {
    REGIONS.is_slot(memory)
}

/// Largest class: the format's largest block is 16 MiB.
const POOLED_MAX: usize = 16 << 20;
/// Classes 4 KiB … 64 KiB in steps of a page.
const LINEAR: usize = 16;
const CLASSES: usize = LINEAR + 4 * 8;
const _: () = assert!(class_size(LINEAR - 1) == 64 << 10);
const _: () = assert!(class_size(CLASSES - 1) == POOLED_MAX);

/// Sizes that are slots of regions.
const SLOTTED: usize = LINEAR + 4 * 2;
const _: () = assert!(class_size(SLOTTED - 1) == SLOT_MAX);
/// The part of what may be idle that the free lists have when there are regions.
const WARM: usize = 16;

static SHELVES: Shelves = Shelves::new(IDLE_USUAL);
static REGIONS: Regions<SLOTTED> = Regions::new(IDLE_USUAL);
/// Buffers whose memory is from the kernel directly.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The smallest class with room for `len` bytes, or `None` if a buffer of that size is not kept.
fn class_of(len: usize) -> Option<usize> {
    if len > POOLED_MAX {
        return None;
    }
    let pages = len.div_ceil(ALIGN);
    if pages <= LINEAR {
        return Some(pages.saturating_sub(1));
    }
    // `len` lies in (2^k, 2^(k+1)], cut in four.
    let doubling = (pages - 1).ilog2();
    let quarter = (1 << doubling) / 4;
    let step = (pages - (1 << doubling)).div_ceil(quarter);
    Some(LINEAR + (doubling as usize - 4) * 4 + step - 1)
}

/// Capacity of the buffers of a class, in bytes.
const fn class_size(class: usize) -> usize {
    if class < LINEAR {
        return (class + 1) * ALIGN;
    }
    let (doubling, step) = ((class - LINEAR) / 4, (class - LINEAR) % 4 + 1);
    let base = (64 << 10) << doubling;
    base + base / 4 * step
}

/// From this capacity on, memory comes from the kernel directly. Its pages are zero already and are first touched by
/// the device's transfer; the allocator would fault each of them in to zero it a second time. Measured: a seventh
/// of the processor time of a cold sequential read.
const MAPPED_MIN: usize = 128 << 10;

/// No more than so many buffers have memory from the kernel directly. A process may have 65530 mappings (Linux's
/// `vm.max_map_count`), and each such buffer between two that were freed is one: past that nothing can be allocated, and not
/// even freed, any more. A cache of many large blocks would get there.
const MAPPED_MAX: usize = 16 << 10;

/// `capacity` zero bytes, aligned. `capacity` is not 0.
fn obtain(capacity: usize) -> Piece {
    if capacity >= MAPPED_MIN
        && let Some(start) = map(capacity)
    {
        return Piece { start, capacity, source: Source::Kernel };
    }
    let layout = layout(capacity);
    // SAFETY: `layout` is not empty: `capacity` is at least ALIGN here.
    let start = unsafe { alloc_zeroed(layout) };
    let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
    Piece { start, capacity, source: Source::Allocator }
}

/// Slots of regions, as far as there are such.
fn lend_slots(class: usize, count: usize, mut put: impl FnMut(Piece, Origin)) {
    if class < SLOTTED {
        let capacity = class_size(class);
        REGIONS.lend(class, capacity, count, |start, origin| {
            put(Piece { start, capacity, source: Source::Regions }, origin);
        });
    }
}

/// The same from the kernel directly, if there are not too many of those.
fn map(capacity: usize) -> Option<NonNull<u8>> {
    MAPPED
        .fetch_update(Relaxed, Relaxed, |mapped| Some(mapped + 1).filter(|mapped| *mapped <= MAPPED_MAX))
        .ok()?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping where the kernel likes; it touches no memory of ours.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), capacity, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        MAPPED.fetch_sub(1, Relaxed);
        return None;
    }
    NonNull::new(start.cast())
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Self { start, capacity, source } = *self;
        match source {
            Source::Regions => {
                if let Some(class) = class_of(capacity) {
                    REGIONS.take_back(class, start);
                }
            }
            Source::Kernel => {
                MAPPED.fetch_sub(1, Relaxed);
                // SAFETY: `obtain` had a mapping of this length from the kernel, and its only owner gives it up here. That
                // cannot fail.
                let ended = unsafe { libc::munmap(start.as_ptr().cast(), capacity) };
                debug_assert_eq!(ended, 0, "the mapping was ours");
            }
            Source::Allocator if capacity > 0 => {
                // SAFETY: `obtain` allocated it with this very layout, and its owner gives it up here.
                unsafe { dealloc(start.as_ptr(), layout(capacity)) }
            }
            Source::Allocator => {}
        }
    }
}

fn layout(capacity: usize) -> Layout {
    // Only a length beyond isize::MAX fails here, which no allocator could serve either.
    Layout::from_size_align(capacity, ALIGN).expect("a buffer fits the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_with_room_for_it() {
        for pages in 1..=POOLED_MAX / ALIGN {
            for len in [pages * ALIGN - 1, pages * ALIGN] {
                let class = class_of(len).unwrap();
                assert!(class_size(class) >= len, "{len}");
                assert!(class == 0 || class_size(class - 1) < len, "{len}");
            }
        }
        assert_eq!(class_of(POOLED_MAX + 1), None);
    }

    #[test]
    fn what_nobody_needs_is_freed_in_time() {
        let shelves = Shelves::new(1 << 20);
        let lent: Vec<Piece> = (0..3).map(|_| shelves.lend(9000).0).collect();
        assert_eq!(lent[0].capacity, 12 << 10);
        lent.into_iter().for_each(|piece| shelves.take_back(piece));
        let idle = || shelves.idle.load(Relaxed) >> 10;
        shelves.age();
        assert_eq!(idle(), 36, "they were needed lately");
        shelves.take_back(shelves.lend(9000).0);
        shelves.age();
        assert_eq!(idle(), 12, "one of them was");
        shelves.age();
        assert_eq!(idle(), 0);
    }

    #[test]
    fn a_row_lies_in_the_order_of_its_addresses_and_is_never_short() {
        let shelves = Shelves::new(1 << 20);
        let mut first = shelves.lend_row(8192, 5);
        assert!(first.iter().all(|(piece, origin)| (piece.capacity, *origin) == (8192, Origin::Zeroed)));
        first.rotate_left(2);
        first.into_iter().rev().for_each(|(piece, _)| shelves.take_back(piece));
        let row = shelves.lend_row(8192, 3);
        assert!(row.iter().all(|(_, origin)| *origin == Origin::Recycled));
        assert!(row.is_sorted_by_key(|(piece, _)| piece.start), "{row:?}");
        assert_eq!(shelves.idle.load(Relaxed), 2 * 8192);
        let origins: Vec<Origin> = shelves.lend_row(8192, 4).iter().map(|(_, origin)| *origin).collect();
        assert_eq!(origins, [[Origin::Recycled; 2], [Origin::Zeroed; 2]].concat());
        assert_eq!(shelves.idle.load(Relaxed), 0);
        assert!(shelves.lend_row(8192, 0).is_empty());
        assert_eq!(shelves.lend_row(POOLED_MAX + 1, 1)[0].0.capacity, POOLED_MAX + ALIGN);
    }

    #[test]
    fn full_lists_keep_the_sizes_that_are_in_use() {
        let shelves = Shelves::new(64 << 10);
        let in_turns = |len: usize, count: usize| {
            let lent: Vec<(Piece, Origin)> = (0..count).map(|_| shelves.lend(len)).collect();
            let fresh = lent.iter().filter(|(_, origin)| *origin == Origin::Zeroed).count();
            lent.into_iter().for_each(|(piece, _)| shelves.take_back(piece));
            assert!(shelves.idle.load(Relaxed) <= 64 << 10);
            fresh
        };
        assert_eq!([in_turns(4096, 16), in_turns(4096, 16)], [16, 0]);
        // The small ones were in use a moment ago: they stay.
        assert_eq!([in_turns(16384, 4), in_turns(4096, 16)], [4, 0]);
        // Not for ever.
        assert_eq!([in_turns(16384, 4), in_turns(16384, 4), in_turns(16384, 4)], [4, 4, 0]);
        assert_eq!(in_turns(4096, 16), 16);
        shelves.set_limit(20 << 10);
        assert!(shelves.idle.load(Relaxed) <= 20 << 10);
    }

    /// A cache of 16 GiB in blocks of 128 KiB would be 65530 mappings when every second of them is evicted, and the next
    /// allocation the end.
    #[test]
    fn many_large_buffers_do_not_use_up_the_mappings_of_the_process() {
        const MANY: usize = MAPPED_MAX + 2000;
        let mut lent: Vec<Option<Piece>> = (0..MANY).map(|_| Some(obtain(MAPPED_MIN))).collect();
        assert!(MAPPED.load(Relaxed) <= MAPPED_MAX, "{}", MAPPED.load(Relaxed));
        let exact = lent.iter().flatten().filter(|piece| piece.source == Source::Kernel).count();
        assert!(exact > MAPPED_MAX / 2 && exact <= MAPPED_MAX, "{exact}");
        lent.iter_mut().step_by(2).for_each(|piece| drop(piece.take()));
        assert_eq!(obtain(MAPPED_MIN).capacity, MAPPED_MIN);
        drop(lent);
        assert!(MAPPED.load(Relaxed) < MAPPED_MAX / 2, "what is freed makes room");
    }

    /// Buffers of the whole process: what was moved once was moved into what had just become free where it came from, and
    /// nothing was ever given back. The size is one that no other test here uses.
    #[test]
    fn what_moves_out_of_a_region_does_not_come_back_to_it() {
        const LEN: usize = 224 << 10;
        if !use_huge_pages(1 << 30) {
            eprintln!("not run: this system has no huge pages of 2 MiB for those who ask");
            return;
        }
        set_idle_max(64 << 20);
        let mut lent: Vec<Piece> = (0..8 * (REGION / LEN)).map(|_| lend(LEN).0).collect();
        assert!(lent.iter().all(|piece| piece.source == Source::Regions));
        let mut number = 0usize;
        lent.retain(|_| {
            number += 1;
            number.is_multiple_of(4)
        });
        age_idle();
        assert!(age_idle(), "three of four are free");
        let leaving = |piece: &&mut Piece| piece.is_leaving();
        assert!(lent.iter_mut().filter(leaving).count() > lent.len() / 2);
        for piece in lent.iter_mut().filter(leaving) {
            take_back(std::mem::replace(piece, lend(LEN).0));
        }
        assert_eq!(lent.iter_mut().filter(leaving).count(), 0);
    }
}
