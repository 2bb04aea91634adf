//! From an address to the bytes each leaf gets: mirrors get everything on all sides, RAIDZ gets columns and parity.
//!
//! The counterpart of how `pool::io` reads; where the bytes of a RAIDZ block lie is known in one place for both,
//! `pool::vdev::raidz`. Who carries the pieces to the leaves is a [`Sink`]: the writer of transaction groups, which
//! merges neighbours, or [`Direct`](super::direct::Direct), which sends a block at once.
//!
//! Facts: docs/format/vdevs.md §2–§4.

use bytes::Bytes;
use codec::parity;
use disk::IoBuf;
use pool::vdev::{Geometry, Kind, Vdev};
use smallvec::SmallVec;

use crate::EngineError;

/// Zeroes to fill sectors up with. Aligned, so that a run with padding in it goes out as it is.
static ZEROES: Zeroes = Zeroes([0; SECTOR_MAX]);

#[repr(align(4096))]
struct Zeroes([u8; SECTOR_MAX]);

/// The largest sector.
pub(super) const SECTOR_MAX: usize = 64 << 10;

/// So many zeroes, no more than a sector has.
pub(super) fn zeroes(len: usize) -> Bytes {
    Bytes::from_static(&ZEROES.0[..len])
}

/// Takes the pieces of a block. Offsets in bytes from the end of a leaf's front labels.
pub(crate) trait Sink {
    /// Whether pieces that lie next to each other go to a leaf together, so that each by itself may be less than a sector.
    fn joins(&self) -> bool {
        false
    }
    /// A buffer of `len` bytes was made for pieces that follow: parity, or what was filled up to a sector. Of interest to those
    /// who keep it for longer than a request takes.
    fn made(&mut self, _len: usize) {}
    /// Bytes for a leaf, a whole number of sectors with the pieces that follow at once.
    fn piece(&mut self, leaf: usize, offset: u64, data: &Bytes);
    /// Sectors that nobody reads: they only keep free space in usable sizes.
    fn padding(&mut self, leaf: usize, offset: u64, len: usize);
}

/// A device as a target.
#[derive(Debug)]
pub(crate) enum Node {
    /// Index among the leaves.
    Leaf(usize),
    /// Mirror, replacing, spare: everything goes everywhere.
    Copies(Vec<Self>),
    /// Columns and parity.
    Raidz { geometry: Geometry, children: Vec<Self> },
    /// Nothing can be written here.
    Closed,
}

/// A top-level device.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) node: Node,
    /// Smallest write.
    sector: usize,
    pub(crate) name: String,
}

impl Top {
    /// `leaf` takes each leaf in and tells its index, if it can be written to.
    pub(crate) fn new(vdev: &Vdev, leaf: &mut impl FnMut(&Vdev) -> Option<usize>) -> Self {
        Self {
            node: Node::new(vdev, leaf),
            sector: vdev.top.as_ref().map_or(512, |top| 1 << top.ashift.min(16)).min(SECTOR_MAX),
            name: vdev.display_name(),
        }
    }

    /// Deals out the stored bytes of a block at `offset`, written in `txg`.
    pub(crate) fn put(
        &self,
        offset: u64,
        data: &Bytes,
        txg: u64,
        sink: &mut impl Sink,
    ) -> Result<(), EngineError> {
        if data.len().is_multiple_of(self.sector) {
            return self.node.put(offset, data, txg, sink);
        }
        // Gang headers and the smallest blocks: less than a sector of this device.
        let whole = data.len().next_multiple_of(self.sector);
        if sink.joins() && self.node.is_plain() {
            // Without a copy: of these many are kept until their transaction group is durable.
            self.node.put(offset, data, txg, sink)?;
            return self.node.put(offset + data.len() as u64, &zeroes(whole - data.len()), txg, sink);
        }
        let mut padded = IoBuf::zeroed(whole);
        padded[..data.len()].copy_from_slice(data);
        sink.made(whole);
        self.node.put(offset, &padded.freeze(), txg, sink)
    }
}

impl Node {
    fn new(vdev: &Vdev, leaf: &mut impl FnMut(&Vdev) -> Option<usize>) -> Self {
        let mut children =
            || -> Vec<Self> { vdev.children.iter().map(|child| Self::new(child, leaf)).collect() };
        match &vdev.kind {
            Kind::Disk | Kind::File => leaf(vdev).map_or(Self::Closed, Self::Leaf),
            Kind::Mirror | Kind::Replacing | Kind::Spare => Self::Copies(children()),
            // While an expansion moves sectors, only it may say where new ones belong.
            Kind::Raidz(geometry) if geometry.reflow.is_none() => {
                Self::Raidz { geometry: geometry.clone(), children: children() }
            }
            _ => Self::Closed,
        }
    }

    /// Whether what was written to it can be read back, if the leaves that `has` names have it.
    pub(crate) fn is_whole(&self, has: &impl Fn(usize) -> bool) -> bool {
        match self {
            Self::Leaf(index) => has(*index),
            Self::Copies(sides) => sides.iter().any(|side| side.is_whole(has)),
            Self::Raidz { geometry, children } => {
                children.iter().filter(|child| !child.is_whole(has)).count() <= geometry.parity
            }
            Self::Closed => false,
        }
    }

    /// A block's bytes lie on every leaf from the start to the end, so that a part of them can be written alone.
    pub(crate) fn is_plain(&self) -> bool {
        match self {
            Self::Leaf(_) => true,
            Self::Copies(sides) => sides.iter().all(Self::is_plain),
            Self::Raidz { .. } | Self::Closed => false,
        }
    }

    /// Every leaf below.
    pub(crate) fn leaves(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Leaf(index) => visit(*index),
            Self::Copies(below) | Self::Raidz { children: below, .. } => {
                below.iter().for_each(|child| child.leaves(visit));
            }
            Self::Closed => {}
        }
    }

    /// Names what takes no writes; `describe` has words for a leaf that does not.
    pub(crate) fn missing(&self, describe: &impl Fn(usize) -> Option<String>, out: &mut Vec<String>) {
        match self {
            Self::Leaf(index) => out.extend(describe(*index)),
            Self::Copies(below) | Self::Raidz { children: below, .. } => {
                below.iter().for_each(|child| child.missing(describe, out));
            }
            Self::Closed => out.push("a device of a kind that is not written to".to_owned()),
        }
    }

    /// `data` is a whole number of sectors, or a part of one where that may be.
    fn put(&self, offset: u64, data: &Bytes, txg: u64, sink: &mut impl Sink) -> Result<(), EngineError> {
        match self {
            Self::Leaf(index) => sink.piece(*index, offset, data),
            Self::Copies(sides) => {
                for side in sides {
                    side.put(offset, data, txg, sink)?;
                }
            }
            Self::Raidz { geometry, children } => put_stripe(geometry, children, (offset, txg), data, sink)?,
            Self::Closed => {}
        }
        Ok(())
    }

    fn pad(&self, offset: u64, len: usize, sink: &mut impl Sink) {
        match self {
            Self::Leaf(index) => sink.padding(*index, offset, len),
            Self::Copies(sides) => sides.iter().for_each(|side| side.pad(offset, len, sink)),
            Self::Raidz { .. } | Self::Closed => {}
        }
    }
}

/// Columns, their parity, and the sectors that only keep free space in usable sizes.
fn put_stripe(
    geometry: &Geometry,
    children: &[Node],
    (offset, txg): (u64, u64),
    data: &Bytes,
    sink: &mut impl Sink,
) -> Result<(), EngineError> {
    let impossible = |detail: String| EngineError::Encode {
        what: "RAIDZ block",
        detail: format!("at {offset:#x}: {detail}"),
    };
    let layout = geometry
        .layout(offset, data.len() as u64, txg)
        .ok_or_else(|| impossible(format!("{} bytes cannot lie there", data.len())))?;
    let mut used = 0;
    for stripe in &layout.stripes {
        let (parity_cells, data_cells) = stripe.cells.split_at(layout.parity);
        let len = parity_cells.first().map_or(0, |cell| cell.len);
        let columns: SmallVec<[&[u8]; 12]> = data_cells
            .iter()
            .map(|cell| if cell.len == 0 { &[][..] } else { &data[cell.start..cell.start + cell.len] })
            .collect();
        let mut sums = IoBuf::with_len(len * layout.parity);
        {
            let mut rows: SmallVec<[&mut [u8]; 3]> = sums.chunks_mut(len.max(1)).collect();
            parity::generate(&columns, &mut rows).map_err(|error| impossible(error.to_string()))?;
        }
        sink.made(sums.len());
        let sums = sums.freeze();
        for (row, cell) in parity_cells.iter().enumerate() {
            let sum = sums.slice(row * len..(row + 1) * len);
            children[cell.child].put(cell.offset, &sum, txg, sink)?;
        }
        for cell in data_cells.iter().filter(|cell| cell.len > 0) {
            let column = data.slice(cell.start..cell.start + cell.len);
            children[cell.child].put(cell.offset, &column, txg, sink)?;
        }
        used += stripe.cells.iter().map(|cell| (cell.len >> geometry.ashift) as u64).sum::<u64>();
    }
    let width = geometry.logical_width(txg);
    let allocated = geometry.allocated(data.len() as u64, width) >> geometry.ashift;
    for sector in (offset >> geometry.ashift) + used..(offset >> geometry.ashift) + allocated {
        let child = (sector % geometry.children as u64) as usize;
        let at = (sector / geometry.children as u64) << geometry.ashift;
        children[child].pad(at, 1 << geometry.ashift, sink);
    }
    Ok(())
}
