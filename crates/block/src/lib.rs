//! The inner seam: what a volume offers to a protocol.
//!
//! Targets (`nbd`, `scsi`) know this trait and nothing of pools; the pool implements it and knows
//! nothing of protocols. Data moves as reference-counted pieces, so that a cache hit travels from the
//! cache to the socket without a copy, and a hole travels as a number.
//!
//! Beside it is what both sides of it need: [`BoxFuture`], and [`Quiet`] and [`shown`] for log lines that a client can cause.
#![forbid(unsafe_code)]

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;

mod keeper;
mod mem;
mod quiet;
pub use keeper::{KEPT_MAX, Keeper, MemKeeper};
pub use mem::MemVolume;
pub use quiet::{Quiet, shown};

/// What operations return that are begun once a command, an import, a connection: boxed by the function that makes it, so that
/// the machinery below is compiled once, with the crate it is in. The body of an `async fn` is compiled again in every module
/// of every crate that awaits it (docs/decisions/0018-build-time.md).
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a [`BlockVolume`] operation returns.
pub type VolumeFuture<'a, T> = BoxFuture<'a, Result<T, VolumeError>>;

/// A piece of what was read.
#[derive(Clone, PartialEq, Eq)]
pub enum Segment {
    /// Bytes, shared with the cache.
    Data(Bytes),
    /// This many zero bytes: a hole in the volume.
    Zero(usize),
}

impl Segment {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Data(bytes) => bytes.len(),
            Self::Zero(len) => *len,
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Self::Zero(len) => write!(f, "Zero({len})"),
        }
    }
}

/// The answer to a read: pieces in order, together exactly the length asked for.
pub type Segments = SmallVec<[Segment; 4]>;

/// All bytes of these pieces, as ones of their own: for parameter lists, single blocks and tests.
#[must_use]
pub fn flatten(data: &[Segment]) -> Vec<u8> {
    let mut flat = Vec::with_capacity(data.iter().map(Segment::len).sum());
    for piece in data {
        match piece {
            Segment::Data(bytes) => flat.extend_from_slice(bytes),
            Segment::Zero(len) => flat.resize(flat.len().saturating_add(*len), 0),
        }
    }
    flat
}

/// Gives pieces that are less than a quarter of a block of `block` bytes memory of their own. As parts of blocks they would
/// keep these for as long as a client takes to fetch them, and what is counted of an answer is its length.
pub fn detach(data: &mut [Segment], block: u32) {
    for piece in data {
        if let Segment::Data(bytes) = piece
            && (bytes.len() as u64).saturating_mul(4) < u64::from(block)
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// Bytes of all blocks of `block` bytes that have a part of the `len` bytes at `offset`: what a read keeps in memory until
/// it is answered, at most.
#[must_use]
pub fn span(offset: u64, len: u64, block: u32) -> u64 {
    // Every read asks, and blocks of volumes are powers of two: no division.
    let within = u64::from(block).next_power_of_two().saturating_sub(1);
    let end = offset.saturating_add(len).saturating_add(within) & !within;
    end.saturating_sub(offset & !within)
}

/// Bytes of the blocks of `block` bytes that a write of `len` bytes at `offset` covers in part: one or two at most. What they
/// have beside it is read before it can be written, and that is memory too.
#[must_use]
pub fn partly(offset: u64, len: u64, block: u32) -> u64 {
    let block = u64::from(block).next_power_of_two();
    let within = block - 1;
    let end = offset.saturating_add(len);
    let is_one = offset & !within == end.saturating_sub(1) & !within;
    match (offset & within != 0, end & within != 0) {
        _ if len == 0 => 0,
        (false, false) => 0,
        (true, true) if !is_one => 2 * block,
        _ => block,
    }
}

/// Size and granularity of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; it may change while the volume is served (see [`BlockVolume::geometry`]).
    pub size: u64,
    /// The block the volume is stored in (`volblocksize`): the best unit and alignment for I/O, and
    /// the granularity at which space is freed.
    pub block: u32,
    /// Writes are refused with [`VolumeError::ReadOnly`].
    pub read_only: bool,
}

/// Who a volume is: stable over restarts, renames of hosts and imports elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Dataset name, `tank/vm1` or `tank/vm1@monday`.
    pub name: String,
    /// Guid of the dataset (unique in the pool).
    pub guid: u64,
    /// Guid of the pool.
    pub pool_guid: u64,
}

/// How much room there is for a volume, in bytes, as of the last transaction group that is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Held by the volume.
    pub used: u64,
    /// What it may still take: what the pool has left, its quota and its reservation considered.
    pub available: u64,
    /// What it would take to write all of it, beyond what nobody else holds: what a snapshot shares has to be found once more.
    pub wanted: u64,
}

/// A run of a volume that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Reads as zeroes and holds no space.
    pub hole: bool,
}

/// When a write may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As the volume's `sync` property says for an ordinary write.
    Cached,
    /// Only when a power cut can no longer take it.
    Stable(Asked),
}

/// How a client asked for stability: the pool counts it, because it is what users ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// With this very command (FUA, WRITE AND VERIFY).
    Fua,
    /// Once for all: it switched the write cache off (WCE bit of the caching mode page).
    CacheOff,
}

/// Who is told, once, that every read sees a change.
pub type Tell<'a> = &'a mut (dyn FnMut() + Send + 'a);

/// Why a volume operation failed, grouped by what the client can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The range does not lie in the volume: the client's mistake.
    #[error("{len} bytes at {offset} lie outside the volume of {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// A snapshot, a read-only volume, or a pool opened read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The pool has no room; everything acknowledged before stays.
    #[error("the pool is out of space")]
    NoSpace,
    /// No copy of a block could be read: its bytes are lost unless a device comes back.
    #[error("unreadable block at byte {offset}: {detail}")]
    Unreadable {
        /// First byte of the bad block in the volume.
        offset: u64,
        /// Which block on which devices, and what was wrong.
        detail: String,
    },
    /// It was refused and nothing was changed: the pool is suspended, or devices are away that have what is to be read, and the
    /// pool is to fail what needs them instead of keeping it waiting. Or what is read was replaced faster than it could be.
    #[error("input/output error: {0}")]
    Failed(String),
    /// The pool is suspended or closing: try again later.
    #[error("the volume is not ready: {0}")]
    NotReady(String),
    /// This volume cannot do that at all (for example an encrypted one without its key).
    #[error("{0}")]
    Unsupported(String),
}

/// A served volume.
///
/// Offsets and lengths are bytes and need no alignment; a range that is not wholly inside the volume
/// is [`VolumeError::OutOfRange`]. Operations may run concurrently and finish in any order. A write is
/// seen by every later read of any client as soon as it is acknowledged.
pub trait BlockVolume: Send + Sync + 'static {
    /// Size and granularity, as of now.
    fn geometry(&self) -> Geometry;
    /// Name and guids.
    fn identity(&self) -> Identity;
    /// The answer if it is wholly in memory, without waiting: the path of a cache hit.
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        let _ = (offset, len);
        None
    }
    /// The same for several reads, each (offset, length): `found` gets the number of each and its answer, once, in any order.
    /// Who asks for many at a time may have them found together, which is faster than one after the other.
    fn read_cached_each(&self, reads: &[(u64, usize)], found: &mut dyn FnMut(usize, Option<Segments>)) {
        for (number, (offset, len)) in reads.iter().enumerate() {
            found(number, self.read_cached(*offset, *len));
        }
    }
    /// Reads `len` bytes.
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments>;
    /// How the range is made of data and holes: runs in order, together exactly `len` bytes, unless
    /// there would be more than `max_extents`, then the first of them. Reads indirect blocks only.
    fn extents(&self, offset: u64, len: u64, max_extents: usize) -> VolumeFuture<'_, Vec<Extent>>;
    /// Writes the pieces in order at `offset`.
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        let _ = (offset, data, durability);
        Box::pin(async { Err(VolumeError::ReadOnly) })
    }
    /// The same for who keeps others waiting meanwhile: `_seen` is called when all of it is written, and what is waited for from
    /// there on only makes it stable. It is not called where there is nothing to wait for, or the write is refused, or the volume
    /// does not know.
    fn write_telling<'a>(
        &'a self,
        offset: u64,
        data: Segments,
        durability: Durability,
        _seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        self.write(offset, data, durability)
    }
    /// The range reads as zeroes afterwards. With `allocate` it keeps or takes the space; without, the
    /// space is freed where whole blocks are covered.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocate: bool,
        durability: Durability,
    ) -> VolumeFuture<'_, ()> {
        let _ = (offset, len, allocate, durability);
        Box::pin(async { Err(VolumeError::ReadOnly) })
    }
    /// The same, and calls `_seen` as [`write_telling`](Self::write_telling) does.
    fn write_zeroes_telling<'a>(
        &'a self,
        offset: u64,
        len: u64,
        allocate: bool,
        durability: Durability,
        _seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        self.write_zeroes(offset, len, allocate, durability)
    }
    /// Frees the whole blocks of the range; they read as zeroes afterwards, and the partial ones at
    /// head and tail keep their content.
    fn unmap(&self, offset: u64, len: u64, durability: Durability) -> VolumeFuture<'_, ()> {
        let _ = (offset, len, durability);
        Box::pin(async { Err(VolumeError::ReadOnly) })
    }
    /// Where protocols keep what belongs to the volume and must survive power loss; `None` if there is no such place
    /// (a snapshot, a pool opened read-only). Always the same one.
    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        None
    }
    /// How much room there is, as of now, without waiting; `None` if that is not known.
    fn space(&self) -> Option<Space> {
        None
    }
    /// Every write acknowledged before this call, of any client, survives a power cut when it returns.
    fn flush(&self) -> VolumeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_spans_the_blocks_that_it_touches() {
        for (offset, len, block, bytes) in [
            (0, 4096, 4096, 4096),
            (4095, 2, 4096, 8192),
            (100, 10, 131_072, 131_072),
            (8192, 0, 4096, 0),
            (512, 512, 512, 512),
        ] {
            assert_eq!(span(offset, len, block), bytes, "{len} at {offset}, blocks of {block}");
        }
        assert!(span(u64::MAX - 1, 1, 4096) <= 4096 && span(0, 1, 0) <= 4096, "whatever is asked");
    }

    #[test]
    fn a_write_covers_its_first_and_its_last_block_in_part_if_it_does_not_end_with_them() {
        for (offset, len, block, bytes) in [
            (0, 4096, 4096, 0),
            (0, 0, 4096, 0),
            (7, 0, 4096, 0),
            (4096, 8192, 4096, 0),
            (0, 1, 131_072, 131_072),
            (5, 1, 131_072, 131_072),
            (131_071, 1, 131_072, 131_072),
            (131_071, 2, 131_072, 262_144),
            (100, 131_072, 131_072, 262_144),
            (0, 200_000, 131_072, 131_072),
            (100, 131_072 - 100, 131_072, 131_072),
        ] {
            assert_eq!(partly(offset, len, block), bytes, "{len} at {offset}, blocks of {block}");
        }
        assert!(partly(u64::MAX - 1, 9, u32::MAX) <= 2 << 32 && partly(0, 1, 0) == 0, "whatever is asked");
    }

    #[test]
    fn small_parts_of_blocks_get_memory_of_their_own_and_others_are_shared() {
        let block = Bytes::from(vec![7; 4096]);
        for (len, is_shared) in [(1, false), (1023, false), (1024, true), (4096, true)] {
            let mut data = [Segment::Data(block.slice(..len)), Segment::Zero(9)];
            detach(&mut data, 4096);
            assert_eq!(block.is_unique(), !is_shared, "{len} bytes");
            assert_eq!(data, [Segment::Data(block.slice(..len)), Segment::Zero(9)]);
        }
    }
}
