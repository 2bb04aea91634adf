//! Labels: the four places on a leaf device from which everything else is found.
//!
//! ```text
//!  0      256K    512K          4M                             end−512K  end−256K
//!  │ L0   │ L1    │ boot area   │ allocatable: DVA offset 0 …  │ L2      │ L3    │
//!  one label:  pad 8K │ boot env 8K │ config 112K │ ring of uberblocks 128K
//! ```
//!
//! Inside a label, three kinds of [`Region`] carry their own checksum in a [`Trailer`] of 40 bytes.
//! It is taken over the region with a *verifier* in the checksum's place, and the verifier is the
//! region's byte offset on the device: a label copied elsewhere is not a label. This crate says where
//! the bytes are; the hash is computed by who has it.
//!
//! Here: geometry, regions, trailers, the boot environment. [`LabelConfig`]: what the config says.
//! Facts: docs/format/labels.md §1–§3.

use std::ops::Range;

use crate::nvlist::NvList;
use crate::{Error, Order, Reason, Result};

mod config;
mod vdev;

pub use config::{AuxConfig, LabelConfig, PoolConfig, PoolState};
pub use vdev::{VdevConfig, VdevKind};

/// Size of one label in bytes; device sizes are rounded down to a multiple of it.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Labels on a leaf.
pub const LABELS: usize = 4;
/// Device byte of DVA offset 0: two labels and the boot area lie before it.
pub const DATA_OFFSET: u64 = 4 << 20;
/// Device byte where the boot area begins (RAIDZ expansion borrows it as scratch space).
pub const BOOT_AREA_OFFSET: u64 = 512 << 10;
/// Smallest device that can be part of a pool, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 64 << 20;
/// What labels and boot area take from a leaf, in bytes.
pub const OVERHEAD_BYTES: u64 = DATA_OFFSET + 2 * LABEL_BYTES;

/// Offset of the boot environment in a label.
pub const BOOT_ENV_OFFSET: u64 = 8 << 10;
/// Size of the boot environment in bytes.
pub const BOOT_ENV_BYTES: u64 = 8 << 10;
/// Offset of the config in a label.
pub const CONFIG_OFFSET: u64 = 16 << 10;
/// Size of the config in bytes, trailer included.
pub const CONFIG_BYTES: u64 = 112 << 10;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Size of the ring in bytes.
pub const RING_BYTES: u64 = 128 << 10;

/// Top-level devices that get the uberblock of a transaction group that changed no configuration: as many as OpenZFS writes.
/// The loss of all three at once would cost the last transaction groups, and with them the pool.
pub const UBERBLOCK_TOPS: usize = 3;

/// Size of a checksum trailer in bytes.
pub const TRAILER_BYTES: usize = 40;
/// First word of a trailer.
pub const TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Where a device of a certain size has its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Device size rounded down to whole labels; at least [`DEVICE_BYTES_MIN`].
    end: u64,
}

impl Geometry {
    /// `None` if the device is too small to hold labels and data.
    #[must_use]
    pub const fn new(device_bytes: u64) -> Option<Self> {
        if device_bytes < DEVICE_BYTES_MIN {
            return None;
        }
        Some(Self { end: device_bytes & !(LABEL_BYTES - 1) })
    }

    /// Device bytes at which L0, L1, L2, L3 begin.
    #[must_use]
    pub const fn labels(self) -> [u64; LABELS] {
        [0, LABEL_BYTES, self.end.saturating_sub(2 * LABEL_BYTES), self.end.saturating_sub(LABEL_BYTES)]
    }

    /// Device bytes that DVAs can reach.
    #[must_use]
    pub const fn allocatable(self) -> Range<u64> {
        DATA_OFFSET..self.end.saturating_sub(2 * LABEL_BYTES)
    }

    /// Allocatable size in bytes: `asize` of a single-leaf top-level vdev.
    #[must_use]
    pub const fn asize(self) -> u64 {
        self.end.saturating_sub(OVERHEAD_BYTES)
    }
}

/// The slots of an uberblock ring, whose size follows the *top-level* vdev's ashift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Log2 of the slot size: 10–13.
    shift: u32,
}

impl Ring {
    /// All that exist, smallest slots first: for reading a ring before the ashift is known.
    pub const ALL: [Self; 4] =
        [Self { shift: 10 }, Self { shift: 11 }, Self { shift: 12 }, Self { shift: 13 }];

    /// For a top-level vdev.
    #[must_use]
    pub fn for_ashift(ashift: u64) -> Self {
        let [smallest, .., largest] = Self::ALL;
        let fits = |ring: &Self| u64::from(ring.shift) >= ashift;
        if ashift <= 10 { smallest } else { Self::ALL.into_iter().find(fits).unwrap_or(largest) }
    }

    /// Size of a slot in bytes.
    #[must_use]
    pub const fn slot_bytes(self) -> u64 {
        1 << self.shift
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(self) -> u64 {
        RING_BYTES >> self.shift
    }

    /// Slot an ordinary commit of `txg` writes. With multihost the last slot is for heartbeats.
    #[must_use]
    pub fn slot_for(self, txg: u64, multihost: Multihost) -> u64 {
        let reserved = u64::from(multihost == Multihost::On);
        txg.checked_rem(self.slots().saturating_sub(reserved)).unwrap_or(0)
    }

    /// The region of slot `index`; `None` beyond the end.
    #[must_use]
    pub fn slot(self, index: u64) -> Option<Region> {
        (index < self.slots()).then_some(Region::Uberblock { ring: self, slot: index })
    }

    /// All slots.
    pub fn regions(self) -> impl Iterator<Item = Region> {
        (0..self.slots()).map(move |slot| Region::Uberblock { ring: self, slot })
    }
}

/// The pool property that lets several hosts see the same devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multihost {
    /// Heartbeats are written.
    On,
    /// They are not.
    Off,
}

/// A part of a label with its own checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The boot environment.
    BootEnv,
    /// The packed config.
    Config,
    /// One uberblock.
    Uberblock {
        /// Slot geometry.
        ring: Ring,
        /// Slot number, less than `ring.slots()`.
        slot: u64,
    },
}

impl Region {
    /// Byte offset in the label.
    #[must_use]
    pub const fn offset(self) -> u64 {
        match self {
            Self::BootEnv => BOOT_ENV_OFFSET,
            Self::Config => CONFIG_OFFSET,
            Self::Uberblock { ring, slot } => {
                RING_OFFSET.saturating_add(slot.saturating_mul(ring.slot_bytes()))
            }
        }
    }

    /// Size in bytes, trailer included.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::BootEnv => BOOT_ENV_BYTES,
            Self::Config => CONFIG_BYTES,
            Self::Uberblock { ring, .. } => ring.slot_bytes(),
        }
    }

    /// What stands in the checksum's place while hashing, for the label at device byte
    /// `label_offset`.
    #[must_use]
    pub const fn verifier(self, label_offset: u64) -> [u64; 4] {
        [label_offset.saturating_add(self.offset()), 0, 0, 0]
    }
}

/// The last 40 bytes of a region: magic and checksum. Gang headers end in one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Byte order of the writer, told by the magic.
    pub order: Order,
    /// SHA-256 as four numbers: the digest's bytes read big-endian.
    pub checksum: [u64; 4],
}

impl Trailer {
    /// Reads the trailer at the end of `region`.
    ///
    /// # Errors
    /// The region is shorter than a trailer, or there is no magic.
    pub fn read(region: &[u8]) -> Result<Self> {
        let Some(trailer) = region.last_chunk::<TRAILER_BYTES>() else {
            let reason = Reason::Truncated { need: TRAILER_BYTES, have: region.len() };
            return Err(Error::new("checksum trailer", 0, reason));
        };
        let [magic, a, b, c, d] =
            [0, 8, 16, 24, 32].map(|at| Order::Little.u64_at("", trailer, at).unwrap_or(0));
        let (order, checksum) = if magic == TRAILER_MAGIC {
            (Order::Little, [a, b, c, d])
        } else if magic.swap_bytes() == TRAILER_MAGIC {
            (Order::Big, [a, b, c, d].map(u64::swap_bytes))
        } else {
            let at = region.len().saturating_sub(TRAILER_BYTES);
            return Err(Error::new("checksum trailer", at, Reason::BadMagic { found: magic }));
        };
        Ok(Self { order, checksum })
    }

    /// Writes magic and `words` (a verifier before hashing, the checksum after) to the end of
    /// `region`. A region shorter than a trailer is left alone.
    pub fn place(region: &mut [u8], order: Order, words: [u64; 4]) {
        let [a, b, c, d] = words;
        if let Some(trailer) = region.last_chunk_mut::<TRAILER_BYTES>() {
            let places = trailer.as_chunks_mut::<8>().0;
            for (place, word) in places.iter_mut().zip([TRAILER_MAGIC, a, b, c, d]) {
                *place = order.put_u64(word);
            }
        }
    }
}

/// The bytes of one label.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a>(&'a [u8]);

impl<'a> Label<'a> {
    /// A view of at least [`LABEL_BYTES`] bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn new(data: &'a [u8]) -> Result<Self> {
        match data.get(..LABEL_BYTES as usize) {
            Some(label) => Ok(Self(label)),
            None => {
                let reason = Reason::Truncated { need: LABEL_BYTES as usize, have: data.len() };
                Err(Error::new("label", 0, reason))
            }
        }
    }

    /// The bytes of a region, trailer included.
    #[must_use]
    pub fn region(self, region: Region) -> &'a [u8] {
        let (start, len) = (region.offset() as usize, region.bytes() as usize);
        self.0.get(start..).and_then(|rest| rest.get(..len)).unwrap_or_default()
    }

    /// What the config says. Its checksum is not looked at.
    ///
    /// # Errors
    /// As [`LabelConfig::decode`].
    pub fn config(self) -> Result<LabelConfig> {
        LabelConfig::decode(self.region(Region::Config))
    }
}

/// What a boot loader left in the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootEnv {
    /// Text up to the first NUL; empty on fresh pools.
    Raw(Vec<u8>),
    /// A list.
    NvList(NvList),
}

impl BootEnv {
    /// Reads the boot environment region (trailer included); `order` is the trailer's.
    ///
    /// # Errors
    /// Short input, an unknown version, or a bad list.
    pub fn decode(region: &[u8], order: Order) -> Result<Self> {
        const STRUCTURE: &str = "boot environment";
        let version = order.u64_at(STRUCTURE, region, 0)?;
        let end = region.len().saturating_sub(TRAILER_BYTES);
        let payload = region.get(8..end).unwrap_or_default();
        match version {
            0 => Ok(Self::Raw(payload.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())),
            1 => NvList::decode(payload).map(Self::NvList),
            value => Err(Error::new(STRUCTURE, 0, Reason::Unsupported { field: "version", value })),
        }
    }
}

#[cfg(test)]
mod tests;
