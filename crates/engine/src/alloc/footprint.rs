//! What a block takes of a top-level device, parity and padding included: known here to the allocator, and to the
//! intent log, which cuts its blocks out of runs that were set aside.
//!
//! Facts: docs/format/vdevs.md §3.

use pool::vdev::raidz::Geometry;

/// How blocks lie on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// log2 of its sector.
    pub ashift: u32,
    /// What decides how much parity a block takes.
    pub shapes: Vec<Geometry>,
}

impl Footprint {
    /// Bytes a block of `psize` stored bytes takes.
    #[must_use]
    pub fn asize(&self, psize: u64) -> u64 {
        let width = |shape: &Geometry| shape.allocated(psize, shape.logical_width(u64::MAX));
        let plain = psize.max(1).next_multiple_of(1 << self.ashift);
        self.shapes.iter().map(width).max().unwrap_or(plain)
    }
}
