//! Addresses for regions, and the memory behind them: asked of the kernel, made huge pages of, and given back.

use std::{ops::Range, ptr::NonNull, sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::REGION;
use crate::shelves::ALIGN;

/// Regions whose addresses become usable together.
pub(super) const GROUP: usize = 64;
/// A huge page that is there takes a quarter of a millisecond, most of it to clear it. One for which memory has to be compacted
/// first takes ten times that, and is dearer than usual pages (measured: 0.2–0.4, 7, and 1.1 ms for 2 MiB).
const QUICK: Duration = Duration::from_millis(1);

/// Regions that were begun together, and what is known of each.
type Group<R> = Box<[Mutex<R>]>;

/// Address space for regions, by number.
#[derive(Debug)]
pub(super) struct Arena<R> {
    base: NonNull<u8>,
    groups: Box<[OnceLock<Group<R>>]>,
}

/// What the kernel did about a huge page for a region that is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Huge {
    /// There is one.
    Is,
    /// There is one, and it took so long that it is better not asked for the next ones.
    IsSlow,
    /// There is none.
    Not,
}

// SAFETY: `base` is only calculated with; who may touch which part of it is up to `Regions`.
unsafe impl<R: Send> Send for Arena<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for Arena<R> {}

impl<R: Default> Arena<R> {
    /// Reserves addresses for so many regions, if it may.
    pub(super) fn new(regions: usize) -> Option<Self> {
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

    /// How many there can be.
    pub(super) fn regions(&self) -> usize {
        self.groups.len() * GROUP
    }

    pub(super) fn start(&self, number: usize) -> NonNull<u8> {
        // SAFETY: numbers are below `regions`, so this is inside of the addresses that were reserved.
        unsafe { self.base.add(number * REGION) }
    }

    /// Whether the addresses of this region can be used, from now on.
    pub(super) fn begin(&self, number: usize) -> bool {
        let Some(group) = self.groups.get(number / GROUP) else { return false };
        if group.get().is_none() {
            let start = self.start(number / GROUP * GROUP).as_ptr();
            // SAFETY: a group's addresses are reserved and nobody's yet. Done twice it changes nothing.
            unsafe {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                if libc::mprotect(start.cast(), GROUP * REGION, access) != 0 {
                    return false;
                }
                libc::madvise(start.cast(), GROUP * REGION, libc::MADV_NOHUGEPAGE);
            }
        }
        group.get_or_init(|| (0..GROUP).map(|_| Mutex::default()).collect());
        true
    }

    /// What is known of a region that was begun.
    pub(super) fn region(&self, number: usize) -> &Mutex<R> {
        self.groups
            .get(number / GROUP)
            .and_then(OnceLock::get)
            .and_then(|group| group.get(number % GROUP))
            .expect("it was begun")
    }

    /// The number of the region at this address, and the bytes before it there; none if it is not one of these.
    pub(super) fn place(&self, address: *const u8) -> Option<(usize, usize)> {
        let offset = address.addr().checked_sub(self.base.addr().get())?;
        Some((offset / REGION, offset % REGION)).filter(|(number, _)| *number < self.regions())
    }

    /// Asks for a huge page behind a region of which nothing is in use, and has no memory.
    pub(super) fn fill(&self, number: usize) -> Huge {
        let start = self.start(number).as_ptr();
        let mut is_there = 0u8;
        let since = Instant::now();
        // SAFETY: the region is usable memory that belongs to nobody but us at this time: the byte is ours to write (and
        // stays 0, what memory from the kernel is), advice changes no content, and the answer has room for the one page
        // that is asked for.
        unsafe {
            libc::madvise(start.cast(), REGION, libc::MADV_HUGEPAGE);
            start.write_volatile(0);
            libc::madvise(start.cast(), REGION, libc::MADV_NOHUGEPAGE);
            libc::mincore(start.add(REGION - ALIGN).cast(), ALIGN, &raw mut is_there);
        }
        match (is_there & 1 != 0, since.elapsed() < QUICK) {
            (false, _) => Huge::Not,
            (true, true) => Huge::Is,
            (true, false) => Huge::IsSlow,
        }
    }

    /// Makes a huge page of the usual ones behind a region. Whoever has something in it may use it meanwhile, and waits for a
    /// moment if he does; none of its memory may be given back meanwhile. Whether it is one then.
    pub(super) fn collapse(&self, number: usize) -> bool {
        let start = self.start(number).as_ptr();
        // SAFETY: the region is usable memory of ours, and none of this changes what is in it.
        let done = unsafe {
            libc::madvise(start.cast(), REGION, libc::MADV_HUGEPAGE);
            let done = libc::madvise(start.cast(), REGION, libc::MADV_COLLAPSE);
            libc::madvise(start.cast(), REGION, libc::MADV_NOHUGEPAGE);
            done
        };
        done == 0
    }

    /// Whether the kernel can make huge pages of usual ones (Linux 6.1).
    pub(super) fn can_collapse(&self) -> bool {
        // SAFETY: advice about no memory at all does nothing, or is an error where it is not known.
        unsafe { libc::madvise(self.base.as_ptr().cast(), 0, libc::MADV_COLLAPSE) == 0 }
    }

    /// Makes usual pages of the huge one behind a region, of which this part is not in use. Else the kernel would keep all of
    /// it, and charge it to us, until it is itself short of memory.
    pub(super) fn split(&self, number: usize, part: Range<usize>) {
        let start = self.start(number).as_ptr();
        // SAFETY: the part is inside of what `begin` made usable; this says how soon it is used, and changes no content. For
        // a part of a huge page the kernel has to split it first.
        unsafe { libc::madvise(start.add(part.start).cast(), part.len(), libc::MADV_COLD) };
    }

    /// Gives the memory behind a part of a region back, which is zero from then on.
    pub(super) fn empty(&self, number: usize, part: Range<usize>) {
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
