//! A disk in memory: for tests, simulations and pools that may be forgotten.
//!
//! Sparse: only pages that were ever written exist, so a disk of 10 TiB costs what is on it. Every operation
//! is carried out when its future is first polled and never waits, which is what a deterministic simulation
//! on tokio's paused clock needs. Faults and power cuts are [`FaultDisk`](crate::FaultDisk)'s, around this.
//!
//! A flush has nothing to do: finished writes are as durable as the process.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::{Disk, DiskFuture, DiskInfo, IoBuf, checked_range};

/// A sparse, growable disk in memory.
pub struct MemDisk {
    name: String,
    size: AtomicU64,
    logical_sector: u32,
    read_only: AtomicBool,
    /// Page number → its bytes; absent pages read as zeroes.
    pages: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

/// Unit of sparseness, in bytes.
const PAGE: u64 = 4096;

impl MemDisk {
    /// An empty (all zero) disk of `size` bytes; costs nothing until written.
    pub fn new(size: u64) -> Self {
        Self {
            name: "memory".to_owned(),
            size: AtomicU64::new(size),
            logical_sector: 512,
            read_only: AtomicBool::new(false),
            pages: RwLock::default(),
        }
    }

    /// A disk that holds `bytes`. Pages of zeroes are not stored.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let disk = Self::new(bytes.len() as u64);
        {
            let mut pages = disk.pages.write();
            for (number, chunk) in (0..).zip(bytes.chunks(PAGE as usize)) {
                if chunk.iter().any(|&byte| byte != 0) {
                    let mut page = vec![0; PAGE as usize];
                    page[..chunk.len()].copy_from_slice(chunk);
                    pages.insert(number, page.into());
                }
            }
        }
        disk
    }

    /// Gives it a name for messages (`DiskInfo::path`).
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Lets it say that it addresses sectors of so many bytes. It takes smaller transfers all the same.
    #[must_use]
    pub fn with_sectors(mut self, logical: u32) -> Self {
        self.logical_sector = logical;
        self
    }

    /// Refuses writes and trims from now on.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.read_only.store(true, Relaxed);
        self
    }

    /// Grows, or shrinks and forgets what was beyond, while the disk is in use.
    pub fn resize(&self, size: u64) {
        let mut pages = self.pages.write();
        let old = self.size.swap(size, Relaxed);
        if size < old {
            forget(&mut pages, size..old.next_multiple_of(PAGE));
        }
    }

    /// All content from `range`, for tests that compare images. Panics if the range is not inside the disk.
    pub fn snapshot(&self, range: Range<u64>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end <= self.size.load(Relaxed), "inside the disk");
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.copy_out(range.start, &mut bytes);
        bytes
    }

    /// Puts bytes back at `offset`, for tests that make images. Panics if they do not fit.
    pub fn restore(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.size.load(Relaxed), "inside the disk");
        self.copy_in(offset, bytes);
    }

    /// Another disk with the same content, size and name: what happens to one does not touch the other.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            name: self.name.clone(),
            size: AtomicU64::new(self.size.load(Relaxed)),
            logical_sector: self.logical_sector,
            read_only: AtomicBool::new(self.read_only.load(Relaxed)),
            pages: RwLock::new(self.pages.read().clone()),
        }
    }

    /// Bytes of memory the content takes.
    pub fn resident(&self) -> u64 {
        self.pages.read().len() as u64 * PAGE
    }

    /// `range` is inside the disk in all of these.
    fn copy_out(&self, offset: u64, out: &mut [u8]) {
        let pages = self.pages.read();
        for piece in pieces(offset, out.len()) {
            let target = &mut out[piece.of_caller];
            match pages.get(&piece.page) {
                Some(page) => target.copy_from_slice(&page[piece.of_page]),
                None => target.fill(0),
            }
        }
    }

    fn copy_in(&self, offset: u64, data: &[u8]) {
        let mut pages = self.pages.write();
        for piece in pieces(offset, data.len()) {
            let page = pages.entry(piece.page).or_insert_with(|| vec![0; PAGE as usize].into());
            page[piece.of_page].copy_from_slice(&data[piece.of_caller]);
        }
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<Range<u64>> {
        checked_range(&self.name, offset, len, self.size.load(Relaxed))
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only.load(Relaxed) { Err(crate::refuse_write(&self.name)) } else { Ok(()) }
    }
}

impl Disk for MemDisk {
    fn info(&self) -> DiskInfo {
        DiskInfo {
            size: self.size.load(Relaxed),
            logical_sector: self.logical_sector,
            physical_sector: 4096,
            rotational: false,
            read_only: self.read_only.load(Relaxed),
            path: self.name.clone(),
        }
    }

    fn read(&self, offset: u64, mut buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            self.check(offset, buf.len() as u64)?;
            self.copy_out(offset, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.check_writable()?;
            self.check(offset, data.len() as u64)?;
            self.copy_in(offset, &data);
            Ok(())
        })
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.write(offset, data)
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// It is always there.
    fn probe(&self) -> DiskFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.check_writable()?;
            let range = self.check(offset, len)?;
            forget(&mut self.pages.write(), range);
            Ok(())
        })
    }
}

impl fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemDisk").field("name", &self.name).field("size", &self.size).finish_non_exhaustive()
    }
}

/// The part of a transfer that lies in one page.
struct Piece {
    page: u64,
    of_page: Range<usize>,
    of_caller: Range<usize>,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % PAGE) as usize;
        let part = (PAGE as usize - start).min(len - done);
        let piece = Piece { page: at / PAGE, of_page: start..start + part, of_caller: done..done + part };
        done += part;
        Some(piece)
    })
}

/// Zeroes `range`: whole pages leave the map, the edges are cleared in place.
fn forget(pages: &mut BTreeMap<u64, Box<[u8]>>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (range.start / PAGE, (range.end - 1) / PAGE);
    let mut gone = Vec::new();
    for (&number, page) in pages.range_mut(first..=last) {
        let base = number * PAGE;
        let (start, end) = (range.start.max(base) - base, (range.end - base).min(PAGE));
        if (start, end) == (0, PAGE) {
            gone.push(number);
        } else {
            page[start as usize..end as usize].fill(0);
        }
    }
    for number in gone {
        pages.remove(&number);
    }
}
