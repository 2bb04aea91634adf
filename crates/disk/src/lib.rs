//! The seam to the outside: one leaf device as the pool sees it, and the buffers that travel to and from it.
//!
//! The engine never opens a file. It is handed `Arc<dyn Disk>` values, so that the same engine runs on
//! block devices, sparse files, memory, and on devices that lose, tear or refuse things on purpose.
#![deny(unsafe_code)]

use std::{fmt, future::Future, io, ops::Range, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

mod buf;
mod fault;
mod file;
mod landing;
mod landings;
mod mem;
mod model;
mod regions;
mod request;
mod shelves;
mod stream;
mod sys;
mod threads;
mod uring;
mod window;

pub use buf::{IoBuf, bytes_outstanding};
pub use fault::{Cut, Effect, Fault, FaultCounts, FaultDisk, On};
pub use file::{Backend, Direct, Engine, FileDisk, OpenOptions};
pub use landing::Landing;
pub use landings::{Ahead, Landed, Landings, Place, Site};
pub use mem::MemDisk;
pub use model::{ModelCounts, ModelDisk, Profile};
pub use shelves::{
    IDLE_MAX, age_idle, bytes_idle, collapse_one, has_slots, is_leaving, is_slot, set_idle_max,
    use_huge_pages,
};
pub use stream::stream_copy;
pub use threads::{give_way, is_usual};
pub use uring::{Plug, plug, plugged};
pub use window::{set_window_clamp, window_clamp};

/// What a [`Disk`] operation returns: boxed, so that backends mix behind one `dyn Disk`.
/// The allocation is about 50 ns beside an I/O of several microseconds.
pub type DiskFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// What a device says about itself. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Usable bytes now; a device may grow while it is open. Of a file, as far as is known without asking its file system:
    /// a [`probe`](Disk::probe) finds out, and so does a transfer behind the end.
    pub size: u64,
    /// Smallest unit the device addresses (512, or 4096 on 4Kn).
    pub logical_sector: u32,
    /// Smallest unit it writes without read-modify-write (4096 on 512e).
    pub physical_sector: u32,
    /// Seeks cost something.
    pub rotational: bool,
    /// Opened without permission to write: every `write` and `trim` fails with `PermissionDenied`.
    pub read_only: bool,
    /// How a person would find it: a path, or a name a test chose.
    pub path: String,
}

/// One leaf device.
///
/// * Any offset and length is legal; a backend that needs alignment bounces what is not aligned
///   (slow, correct). Callers on the hot path keep to `logical_sector`.
/// * A range that is not wholly inside the device ends in `InvalidInput`, never in a panic or a short
///   transfer: block pointers may lie and devices may shrink.
/// * Until the next `flush` returns, a finished `write` may be lost, reordered with its neighbours, or
///   torn at any sector. After a failed `flush` nothing written since the last good one is known.
/// * Dropping the future may or may not have carried the operation out; the buffer stays alive
///   until the device is done with it.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Size, sectors, name.
    fn info(&self) -> DiskInfo;
    /// Fills all of `buf` or fails. `buf` is owned so that the kernel can hold it in flight.
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf>;
    /// Writes all of `data`. Says nothing about durability: that is `flush`.
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()>;
    /// Writes the parts one behind the other from `offset` on, as one write of all of them. A device that takes its data
    /// from several places at once needs no copy; for the others they are joined.
    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        self.write(offset, join(&parts))
    }
    /// Writes all of `data`, which is on stable media when this returns; says nothing of other writes. What the
    /// intent log waits for: devices do it in one step where they can.
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.write(offset, data).await?;
            self.flush().await
        })
    }
    /// All writes that finished before this call are on stable media when it returns.
    fn flush(&self) -> DiskFuture<'_, ()>;
    /// Whether it is still there and still what was opened: answers at once, from what the system knows and at most one
    /// small read, never from a cache. `NotFound` if it is gone (a file that was moved away, a disk that was pulled).
    fn probe(&self) -> DiskFuture<'_, ()> {
        Box::pin(async {
            let len = self.info().logical_sector as usize;
            self.read(0, IoBuf::with_len(len)).await.map(drop)
        })
    }
    /// What the system knows of that without asking the device, where it can tell: one that sleeps is not woken. Says nothing
    /// of whether it works.
    fn presence(&self) -> DiskFuture<'_, ()> {
        self.probe()
    }
    /// The range's content is no longer needed and reads as anything until written again. Advisory:
    /// `Unsupported` where the device cannot.
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()>;
}

/// A time in nanoseconds, as they are counted and stored: all above 584 years is one.
#[inline]
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The parts as one: without a copy if it is one aligned part.
fn join(parts: &[Bytes]) -> Bytes {
    if let [part] = parts
        && part.as_ptr().addr().is_multiple_of(IoBuf::ALIGN)
    {
        return part.clone();
    }
    let mut joined = IoBuf::with_len(parts.iter().map(Bytes::len).sum());
    let mut rest = &mut joined[..];
    for part in parts {
        let (front, behind) = rest.split_at_mut(part.len());
        front.copy_from_slice(part);
        rest = behind;
    }
    joined.freeze()
}

/// `offset..offset + len` if that is inside a device of `size` bytes.
fn checked_range(name: &str, offset: u64, len: u64, size: u64) -> io::Result<Range<u64>> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name}: {len} bytes at {offset} are not inside its {size} bytes"),
        )),
    }
}

/// What a write to a read-only disk gets.
fn refuse_write(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{name}: opened read-only"))
}
