//! What a block counts: allocated bytes free of parity, stored bytes, logical bytes.
//!
//! Every born and killed block moves these three numbers in its dataset and in all directories above, and
//! other software recomputes them, so there is one place that says how they are counted.
//! Facts: docs/format/mos.md §7.

use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use ondisk::blkptr::BlkPtr;
use pool::vdev::Tree;

/// A change, or a sum of changes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Allocated, deflated: `dsize`.
    pub used: i64,
    /// Stored: psize; embedded blocks 0.
    pub compressed: i64,
    /// Logical: lsize of data, psize of metadata.
    pub uncompressed: i64,
}

impl Space {
    /// Nothing.
    pub const ZERO: Self = Self { used: 0, compressed: 0, uncompressed: 0 };
}

impl Add for Space {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            compressed: self.compressed + other.compressed,
            uncompressed: self.uncompressed + other.uncompressed,
        }
    }
}
impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
impl Neg for Space {
    type Output = Self;
    fn neg(self) -> Self {
        Self { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }
}
impl Sub for Space {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}
impl SubAssign for Space {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// The deflate ratio of each top-level device.
#[derive(Clone, Debug, Default)]
pub struct Deflate(Vec<u64>);

impl Deflate {
    /// The ratios of a pool's devices. They never change; a device that is added is pushed behind.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        Self(pool::space::deflate_ratios(tree))
    }

    /// Sets the ratio of a new device.
    pub(crate) fn set(&mut self, vdev: u64, ratio: u64) {
        let index = vdev as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 512);
        }
        self.0[index] = ratio;
    }

    /// Accounted bytes of `asize` allocated ones on a device.
    #[must_use]
    pub fn bytes(&self, vdev: u64, asize: u64) -> u64 {
        let ratio = usize::try_from(vdev).ok().and_then(|vdev| self.0.get(vdev)).copied().unwrap_or(512);
        (asize >> 9) * ratio
    }

    /// Accounted bytes of a block: all its copies.
    #[must_use]
    pub fn dsize(&self, bp: &BlkPtr) -> u64 {
        pool::space::dsize(&self.0, bp)
    }

    /// All three numbers of a block.
    #[must_use]
    pub fn space(&self, bp: &BlkPtr) -> Space {
        if bp.is_hole() {
            return Space::ZERO;
        }
        let metadata = bp.level() > 0 || bp.object_type().is_metadata();
        let stored = if bp.is_embedded() { 0 } else { bp.psize() };
        let logical = if metadata { stored } else { bp.lsize() };
        Space { used: self.dsize(bp) as i64, compressed: stored as i64, uncompressed: logical as i64 }
    }
}
