//! The second tier of the cache: blocks that leave memory go to a ring on a fast device, in OpenZFS's on-disk form.
//!
//! ```text
//!   eviction ─▶ offer: admission ─▶ queue, bounded, by value ─▶ a task per device: one sequential write
//!                                                                  ├ room ahead of the hand: cold blocks forgotten,
//!                                                                  │ hot ones written again with the next
//!                                                                  └ index: 11 bytes a block
//!   miss     ─▶ read: index ─▶ one read at the device ─▶ bytes, which the caller verifies
//!   import   ─▶ rebuild: header ─▶ log blocks, newest first ─▶ index; hits are served meanwhile
//!   memory is there again ─▶ the same: what was shed is found
//! ```
//!
//! Every block here is also in the pool, so nothing here may fail: a device that is gone, rotten or torn costs hits.
//! What [`L2::read`] gives is unverified, and only the caller, who has the block pointer, can tell.
//!
//! * A block is in the index when it is on the device, and leaves the index before it is overwritten. A read looks again
//!   when it is done: what left the index meanwhile is not given out.
//! * The header tells of log blocks that are on the device, and before anything is overwritten, that it will be.
//! * One task owns a device's ring; what others see of it is the index and numbers.
//!
//! One [`L2`] per pool. Locks: each is taken alone. Not here: which blocks are eligible, and the pool's side of reading.
//! Facts: docs/format/l2arc.md.
#![forbid(unsafe_code)]

mod budget;
mod device;
mod evict;
mod feed;
mod header;
mod index;
mod patient;
mod queue;
mod read;
mod rebuild;
mod ring;
mod settings;
mod stats;
mod tier;

use bytes::Bytes;

pub use self::{
    header::{Geometry, Identity, Mismatch, Refused, reach},
    index::{Full, Hash, Index, Place},
    rebuild::{Recovered, Stopped},
    settings::SettingError,
    stats::L2Stats,
    tier::{AddError, DeviceStatus, Found, L2, Offered, Open},
};

/// What a block of the pool is found by: its first copy, as the two words in a block pointer, and when that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// DVA 0.
    pub dva: [u64; 2],
    /// Physical birth txg.
    pub birth: u64,
}

impl Key {
    /// What the index knows it by.
    #[must_use]
    pub fn hash(&self) -> Hash {
        let [first, second] = self.dva;
        Hash(cache::mix(cache::mix(cache::mix(first) ^ second) ^ self.birth))
    }
}

/// A block that leaves memory, as it lies in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// DVA 0, as the two words in a block pointer.
    pub dva: [u64; 2],
    /// Physical birth txg.
    pub birth: u64,
    /// Logical bytes.
    pub lsize: u32,
    /// Stored bytes.
    pub psize: u32,
    /// Compression id.
    pub compress: u8,
    /// Compression level code.
    pub level: u8,
    /// Metadata, not data.
    pub metadata: bool,
    /// It was used more than once.
    pub frequent: bool,
    /// It came by prefetch, and nobody asked for it.
    pub prefetched: bool,
    /// Its dataset wants it to be cached (`secondarycache`), and its checksum can be verified.
    pub eligible: bool,
    /// `data` is a slice of memory that other blocks lie in.
    pub is_part: bool,
    /// The stored bytes.
    pub data: Bytes,
}

impl Block {
    /// What it is found by.
    #[must_use]
    pub fn key(&self) -> Key {
        Key { dva: self.dva, birth: self.birth }
    }
}

/// How the second tier works; OpenZFS's names where it has them. Everything may change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// `l2arc_dwpd_limit`, there in percent: how often a device may be written over in a day, once it is full; 0: as fast
    /// as it can.
    pub dwpd_limit: f64,
    /// `l2arc_write_boost`: bytes per second and device until it is full; 0: as fast as it can.
    pub fill_rate: u64,
    /// `l2arc_write_max`: bytes per second and device at most once it is full, whatever its endurance allows; 0: no more
    /// than that.
    pub write_max: u64,
    /// `l2arc_mfuonly`: 1, only what was used more than once; 2, that and metadata.
    pub mfuonly: u8,
    /// `l2arc_noprefetch`: not what came by prefetch and was not asked for.
    pub noprefetch: bool,
    /// `l2arc_trim_ahead`: percent of a round that is trimmed ahead of it (64 MiB at least); 0: no trimming.
    pub trim_ahead: u64,
    /// `l2arc_rebuild_enabled`: what a device remembers is used.
    pub rebuild: bool,
    /// `l2arc_rebuild_blocks_min_l2size`: devices that are smaller without the labels at their end remember nothing. A
    /// device whose header disagrees is begun afresh. Takes effect when a device is opened.
    pub persist_min: u64,
    /// Only blocks that leave memory for the second time are written to devices that are full.
    pub second_eviction: bool,
    /// Blocks that were hit are written again instead of being overwritten.
    pub reinsert: bool,
    /// Bytes that wait to be written, at most; also the most that one round writes.
    pub buffer: u64,
    /// Bytes of memory that the index may take.
    pub index_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dwpd_limit: 1.0,
            fill_rate: 256 << 20,
            write_max: 64 << 20,
            mfuonly: 0,
            noprefetch: true,
            trim_ahead: 0,
            rebuild: true,
            persist_min: ondisk::l2arc::PERSISTENT_BYTES_MIN,
            second_eviction: true,
            reinsert: true,
            buffer: 16 << 20,
            index_max: u64::MAX,
        }
    }
}

/// Bytes of memory that the index of a device of `size` bytes takes when it is full of blocks of `block` bytes, and what
/// is remembered for admission: to be told to whoever adds one.
#[must_use]
pub fn memory_needed(size: u64, block: u64) -> u64 {
    let blocks = size / block.max(512);
    blocks.saturating_mul(BLOCK_NEEDS_TENTHS) / 10
}

/// Memory that a block on a cache device takes, in tenths of bytes. 11.3: the index at its emptiest; 2.5: the memory of
/// evictions. The goal is 24 bytes at most: docs/decisions/0011.
const BLOCK_NEEDS_TENTHS: u64 = 138;
const _: () = assert!(BLOCK_NEEDS_TENTHS <= 240);

/// The same for one block, rounded up.
pub const BLOCK_NEEDS: u64 = BLOCK_NEEDS_TENTHS.div_ceil(10);

/// Whether a device of `size` bytes remembers what it holds when its pool is opened again.
#[must_use]
pub fn remembers(size: u64, ashift: u32, config: &Config) -> bool {
    Geometry::of(size, ashift, config.persist_min).is_some_and(|geometry| geometry.log_entries > 0)
}
