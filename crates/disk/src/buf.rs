//! Aligned, owned I/O buffers that are recycled instead of zeroed.
//!
//! O_DIRECT wants memory aligned to the device's sector, and a storage engine wants neither an `mmap` nor a
//! `memset` per read. So every buffer is aligned to a page, its capacity is one of 48 size classes, and a
//! dropped buffer goes to its class's free list with its old bytes still in it.
//!
//! * Memory is zeroed once, when it comes from the allocator, and is initialised from then on: recycling
//!   never shows uninitialised memory, only older data. Who needs zeroes asks for [`IoBuf::zeroed`].
//! * [`IoBuf::freeze`] makes it shareable without a copy; the memory comes back when the last clone dies.
//!
//! [`bytes_outstanding`] says how much is held by buffers alive now, for whoever budgets memory; `shelves` is where memory
//! waits.
#![expect(unsafe_code, reason = "slices over memory that is aligned; std has no aligned Vec")]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::shelves::{self, Origin, Piece};

/// An owned buffer whose memory starts on a multiple of [`IoBuf::ALIGN`].
pub struct IoBuf {
    /// All of it is initialised.
    memory: Piece,
    len: usize,
}

// SAFETY: a shared `IoBuf` only gives out `&[u8]`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of the memory, in bytes: a page, and no device in use has larger sectors.
    pub const ALIGN: usize = shelves::ALIGN;

    /// A buffer of `len` bytes whose content is initialised but unspecified: zeroes, or what an earlier
    /// buffer held. For reads, which overwrite all of it or fail.
    pub fn with_len(len: usize) -> Self {
        Self::allocate(len).0
    }

    /// `count` of these, at neighbouring addresses as far as there are such.
    pub(crate) fn row(len: usize, count: usize) -> impl Iterator<Item = Self> {
        let row = if len == 0 { shelves::Row::new() } else { shelves::lend_row(len, count) };
        row.into_iter().map(move |(memory, _)| Self::new(memory, len))
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
        shelves::capacity_for(len)
    }

    /// Bytes the memory behind this buffer has room for; at least `len`, a multiple of [`IoBuf::ALIGN`].
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
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
        self.memory.start()
    }

    /// All initialised bytes behind the buffer, those past `len` included: a direct read may be rounded up
    /// into them.
    pub(crate) fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: `capacity` bytes from `start` are initialised and ours; `&mut self` makes the slice unique.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start(), self.memory.capacity()) }
    }

    fn allocate(len: usize) -> (Self, Origin) {
        if len == 0 {
            return (Self { memory: Piece::EMPTY, len }, Origin::Zeroed);
        }
        let (memory, origin) = shelves::lend(len);
        (Self::new(memory, len), origin)
    }

    fn new(memory: Piece, len: usize) -> Self {
        OUTSTANDING.fetch_add(memory.capacity(), Relaxed);
        Self { memory, len }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Piece::EMPTY);
        if memory.capacity() > 0 {
            OUTSTANDING.fetch_sub(memory.capacity(), Relaxed);
            shelves::take_back(memory);
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialised bytes from `start` (dangling only with `len` 0).
        unsafe { std::slice::from_raw_parts(self.memory.start(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start(), self.len) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

/// Memory held by all `IoBuf`s alive now and by the `Bytes` frozen from them, in bytes of capacity. What
/// waits in the free lists is not counted: see [`bytes_idle`](crate::bytes_idle).
pub fn bytes_outstanding() -> usize {
    OUTSTANDING.load(Relaxed)
}

static OUTSTANDING: AtomicUsize = AtomicUsize::new(0);

#[cfg(test)]
mod tests {
    use super::*;

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
}
