//! Aligned, owned I/O buffers that are recycled instead of zeroed.
//!
//! O_DIRECT wants memory aligned to the device's sector, and a storage engine wants neither an `mmap` nor a
//! `memset` per read. So every buffer is aligned to a page, its capacity is one of 48 size classes, and a
//! dropped buffer goes to its class's free list with its old bytes still in it.
//!
//! * Memory is zeroed once, when it comes from the allocator, and is initialised from then on: recycling
//!   never shows uninitialised memory, only older data. Who needs zeroes asks for [`IoBuf::zeroed`].
//! * [`IoBuf::freeze`] makes it shareable without a copy; the memory comes back when the last clone dies.
//! * Classes are 4 KiB apart up to 64 KiB, then four to a doubling up to 16 MiB, so a cached block wastes at
//!   most a page or a quarter of itself.
//! * Free lists are bounded together (see [`set_idle_max`]); what does not fit is freed, and what nobody needs for a while
//!   if somebody sees to that ([`age_idle`]).
//!
//! [`bytes_outstanding`] says how much is held by buffers alive now, for whoever budgets memory.
#![expect(unsafe_code, reason = "aligned allocations and slices over them; std has no aligned Vec")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::Mutex;

/// An owned buffer whose memory starts on a multiple of [`IoBuf::ALIGN`].
pub struct IoBuf {
    /// Start of `capacity` initialised bytes, or dangling when `capacity` is 0.
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// From the kernel directly, not from the allocator.
    is_mapped: bool,
}

// SAFETY: an `IoBuf` is the only owner of its memory, as a `Vec<u8>` is.
unsafe impl Send for IoBuf {}
// SAFETY: a shared `IoBuf` only gives out `&[u8]`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of the memory, in bytes: a page, and no device in use has larger sectors.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` bytes whose content is initialised but unspecified: zeroes, or what an earlier
    /// buffer held. For reads, which overwrite all of it or fail.
    pub fn with_len(len: usize) -> Self {
        Self::allocate(len).0
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let (mut buf, origin) = Self::allocate(len);
        if origin == Origin::Recycled {
            buf.fill(0);
        }
        buf
    }

    /// A copy of `data`.
    pub fn from_slice(data: &[u8]) -> Self {
        let mut buf = Self::with_len(data.len());
        buf.copy_from_slice(data);
        buf
    }

    /// Bytes of memory a buffer of `len` bytes takes.
    #[must_use]
    pub fn capacity_for(len: usize) -> usize {
        class_of(len).filter(|_| len > 0).map_or_else(|| len.next_multiple_of(Self::ALIGN), class_size)
    }

    /// Bytes the memory behind this buffer has room for; at least `len`, a multiple of [`IoBuf::ALIGN`].
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keeps the first `len` bytes; does nothing if there are fewer. The memory stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The shared, immutable form: no copy. The memory is recycled when the last clone or slice is dropped.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 {
            return Bytes::new();
        }
        Bytes::from_owner(self)
    }

    /// Where the kernel reads or writes: valid for `capacity` bytes as long as the buffer lives, and unmoved
    /// when the `IoBuf` itself moves.
    pub(crate) fn as_raw(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// All initialised bytes behind the buffer, those past `len` included: a direct read may be rounded up
    /// into them.
    pub(crate) fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: `capacity` bytes from `start` are initialised and ours; `&mut self` makes the slice unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    fn allocate(len: usize) -> (Self, Origin) {
        if len == 0 {
            let start = NonNull::dangling();
            return (Self { start, len, capacity: 0, is_mapped: false }, Origin::Zeroed);
        }
        let class = class_of(len);
        let capacity = class.map_or_else(|| len.next_multiple_of(Self::ALIGN), class_size);
        OUTSTANDING.fetch_add(capacity, Relaxed);
        if let Some(Idle { start, is_mapped }) = class.and_then(|class| POOL[class].lock().take()) {
            IDLE.fetch_sub(capacity, Relaxed);
            return (Self { start, len, capacity, is_mapped }, Origin::Recycled);
        }
        let Idle { start, is_mapped } = obtain(capacity);
        (Self { start, len, capacity, is_mapped }, Origin::Zeroed)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        OUTSTANDING.fetch_sub(self.capacity, Relaxed);
        let memory = Idle { start: self.start, is_mapped: self.is_mapped };
        // The global sum is approximate between threads: a bound, not a ledger.
        if let Some(class) = class_of(self.capacity)
            && IDLE.load(Relaxed) + self.capacity <= IDLE_LIMIT.load(Relaxed)
        {
            IDLE.fetch_add(self.capacity, Relaxed);
            POOL[class].lock().idle.push(memory);
            return;
        }
        // SAFETY: `allocate` had it from `obtain` with this very capacity, and nobody else has it.
        unsafe { give_back(memory, self.capacity) }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialised bytes from `start` (dangling only with `len` 0).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

/// Memory held by all `IoBuf`s alive now and by the `Bytes` frozen from them, in bytes of capacity. What
/// waits in the free lists is not counted: see [`bytes_idle`].
pub fn bytes_outstanding() -> usize {
    OUTSTANDING.load(Relaxed)
}

/// Memory waiting in the free lists to be used again, in bytes. At most [`IDLE_MAX`], or what was set.
pub fn bytes_idle() -> usize {
    IDLE.load(Relaxed)
}

/// The free lists keep at most `bytes` between them from now on, and no more than [`IDLE_MAX`]; what they have beyond
/// that is freed.
pub fn set_idle_max(bytes: usize) {
    let most = bytes.min(IDLE_MAX);
    IDLE_LIMIT.store(most, Relaxed);
    // The largest first: they are the fewest.
    for class in (0..CLASSES).rev() {
        let capacity = class_size(class);
        while IDLE.load(Relaxed) > most {
            let Some(idle) = POOL[class].lock().take() else { break };
            IDLE.fetch_sub(capacity, Relaxed);
            // SAFETY: it was in the list of this class, so it has this capacity, and nobody else has it.
            unsafe { give_back(idle, capacity) }
        }
    }
}

/// Frees of each free list what nobody has needed since this was called last. Whoever calls it every few seconds lets
/// memory that comes and goes with transaction groups be used again, and gives back what was left by a burst.
pub fn age_idle() {
    (0..CLASSES).for_each(age);
}

fn age(class: usize) {
    let spare: Vec<Idle> = {
        let mut shelf = POOL[class].lock();
        let spare = shelf.least.min(shelf.idle.len());
        // The first are the coldest.
        let spare = shelf.idle.drain(..spare).collect();
        shelf.least = shelf.idle.len();
        spare
    };
    let capacity = class_size(class);
    for idle in spare {
        IDLE.fetch_sub(capacity, Relaxed);
        // SAFETY: it was in the list of this class, so it has this capacity, and nobody else has it.
        unsafe { give_back(idle, capacity) }
    }
}

/// Most bytes the free lists may be allowed to keep between them.
pub const IDLE_MAX: usize = 1 << 30;

/// What they keep at most until somebody says otherwise: what a few hundred block reads in flight leave behind.
const IDLE_USUAL: usize = 64 << 20;

/// Is the memory known to be zero?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Zeroed,
    Recycled,
}

/// The memory of a buffer, of its list's class if it is in one.
struct Idle {
    start: NonNull<u8>,
    is_mapped: bool,
}
// SAFETY: whoever has it is the only owner of the memory.
unsafe impl Send for Idle {}

/// The free list of a class.
struct Shelf {
    idle: Vec<Idle>,
    /// The fewest there were since the list was aged.
    least: usize,
}

impl Shelf {
    fn take(&mut self) -> Option<Idle> {
        let idle = self.idle.pop()?;
        self.least = self.least.min(self.idle.len());
        Some(idle)
    }
}

/// Largest class: the format's largest block is 16 MiB.
const POOLED_MAX: usize = 16 << 20;
/// Classes 4 KiB … 64 KiB in steps of a page.
const LINEAR: usize = 16;
const CLASSES: usize = LINEAR + 4 * 8;
const _: () = assert!(class_size(LINEAR - 1) == 64 << 10);
const _: () = assert!(class_size(CLASSES - 1) == POOLED_MAX);

static POOL: [Mutex<Shelf>; CLASSES] = [const { Mutex::new(Shelf { idle: Vec::new(), least: 0 }) }; CLASSES];
static OUTSTANDING: AtomicUsize = AtomicUsize::new(0);
static IDLE: AtomicUsize = AtomicUsize::new(0);
static IDLE_LIMIT: AtomicUsize = AtomicUsize::new(IDLE_USUAL);
/// Buffers whose memory is from the kernel directly.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The smallest class with room for `len` bytes, or `None` if a buffer of that size is not kept.
fn class_of(len: usize) -> Option<usize> {
    if len > POOLED_MAX {
        return None;
    }
    let pages = len.div_ceil(IoBuf::ALIGN);
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
        return (class + 1) * IoBuf::ALIGN;
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
fn obtain(capacity: usize) -> Idle {
    if capacity >= MAPPED_MIN
        && let Some(start) = map(capacity)
    {
        return Idle { start, is_mapped: true };
    }
    let layout = layout(capacity);
    // SAFETY: `layout` is not empty: `capacity` is at least ALIGN here.
    let start = unsafe { alloc_zeroed(layout) };
    Idle { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), is_mapped: false }
}

/// The same from the kernel directly, if there are not too many of those.
fn map(capacity: usize) -> Option<NonNull<u8>> {
    if MAPPED.fetch_add(1, Relaxed) < MAPPED_MAX {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping where the kernel likes; it touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), capacity, protection, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            return NonNull::new(start.cast());
        }
    }
    MAPPED.fetch_sub(1, Relaxed);
    None
}

/// Undoes [`obtain`].
///
/// # Safety
/// `memory` came from `obtain(capacity)` and is not used again.
unsafe fn give_back(memory: Idle, capacity: usize) {
    let Idle { start, is_mapped } = memory;
    if is_mapped {
        MAPPED.fetch_sub(1, Relaxed);
        // SAFETY: a mapping of this length, the caller's to end. It cannot fail for a range that is mapped.
        let ended = unsafe { libc::munmap(start.as_ptr().cast(), capacity) };
        debug_assert_eq!(ended, 0, "the mapping was ours");
    } else {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(start.as_ptr(), layout(capacity)) }
    }
}

fn layout(capacity: usize) -> Layout {
    // Only a length beyond isize::MAX fails here, which no allocator could serve either.
    Layout::from_size_align(capacity, IoBuf::ALIGN).expect("a buffer fits the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_with_room_for_it() {
        for pages in 1..=POOLED_MAX / IoBuf::ALIGN {
            for len in [pages * IoBuf::ALIGN - 1, pages * IoBuf::ALIGN] {
                let class = class_of(len).unwrap();
                assert!(class_size(class) >= len, "{len}");
                assert!(class == 0 || class_size(class - 1) < len, "{len}");
            }
        }
        assert_eq!(class_of(POOLED_MAX + 1), None);
    }

    #[test]
    fn memory_is_aligned_whatever_the_length() {
        for len in [1, 511, 4096, 4097, 70_000, 131_072, (16 << 20) + 1] {
            let buf = IoBuf::zeroed(len);
            assert_eq!(buf.as_ptr().addr() % IoBuf::ALIGN, 0);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|&byte| byte == 0));
        }
        assert!(IoBuf::with_len(0).is_empty());
        assert!(IoBuf::with_len(0).freeze().is_empty());
    }

    /// 11 MiB is a class nobody else in this test binary uses, so the one idle buffer is ours.
    #[test]
    fn frozen_memory_comes_back_when_the_last_slice_is_dropped() {
        const LEN: usize = 11 << 20;
        let mut buf = IoBuf::with_len(LEN);
        buf.fill(7);
        let start = buf.as_ptr().addr();
        buf.truncate(LEN - 1);
        let whole = buf.freeze();
        assert_eq!((whole.as_ptr().addr(), whole.len()), (start, LEN - 1));
        let tail = whole.slice(LEN - 2..);
        drop(whole);
        assert!(bytes_outstanding() >= LEN, "a slice holds all of it");
        assert_eq!(&tail[..], [7]);
        drop(tail);
        let again = IoBuf::with_len(LEN);
        assert_eq!((again.as_ptr().addr(), again[0]), (start, 7));
        drop(again);
        assert!(IoBuf::zeroed(LEN).iter().all(|&byte| byte == 0), "zeroed means zeroed");
    }

    /// 9 MiB is another such class.
    #[test]
    fn what_nobody_needs_is_freed_in_time() {
        const LEN: usize = 9 << 20;
        const CLASS: usize = LINEAR + 4 * 7;
        let lent: Vec<IoBuf> = (0..3).map(|_| IoBuf::with_len(LEN)).collect();
        assert_eq!(lent[0].capacity(), class_size(CLASS));
        drop(lent);
        age(CLASS);
        assert_eq!(POOL[CLASS].lock().idle.len(), 3, "they were needed lately");
        drop(IoBuf::with_len(LEN));
        age(CLASS);
        assert_eq!(POOL[CLASS].lock().idle.len(), 1, "one of them was");
        age(CLASS);
        assert_eq!(POOL[CLASS].lock().idle.len(), 0);
    }

    /// A cache of 16 GiB in blocks of 128 KiB came to 65530 mappings when every second of them was evicted, and the next
    /// allocation was the end.
    #[test]
    fn many_large_buffers_do_not_use_up_the_mappings_of_the_process() {
        const MANY: usize = MAPPED_MAX + 2000;
        let mut lent: Vec<Option<IoBuf>> = (0..MANY).map(|_| Some(IoBuf::with_len(MAPPED_MIN))).collect();
        assert!(MAPPED.load(Relaxed) <= MAPPED_MAX, "{}", MAPPED.load(Relaxed));
        let exact = lent.iter().flatten().filter(|buf| buf.is_mapped).count();
        assert!(exact > MAPPED_MAX / 2 && exact <= MAPPED_MAX, "{exact}");
        lent.iter_mut().step_by(2).for_each(|buf| drop(buf.take()));
        let more = IoBuf::with_len(MAPPED_MIN);
        assert_eq!(more.len(), MAPPED_MIN);
        drop(lent);
        assert!(MAPPED.load(Relaxed) < MAPPED_MAX / 2, "what is freed makes room");
    }
}
