//! From an address to the leaves: mirrors get everything on all sides, RAIDZ gets columns and parity.
//!
//! The counterpart of how `pool::io` reads; where the bytes of a RAIDZ block lie is known in one place for both,
//! `pool::vdev::raidz`. Facts: docs/format/vdevs.md §2–§4.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use codec::parity;
use disk::IoBuf;
use ondisk::blkptr::Dva;
use pool::{
    PoolIo,
    vdev::{Geometry, Kind, Vdev},
};
use smallvec::SmallVec;

use super::{
    leaves::Leaves,
    overlay::{Overlay, Place},
};
use crate::EngineError;

/// The top-level devices that hold a block's copies, ascending, each once.
pub(crate) type Tops = SmallVec<[u32; 3]>;

/// A device as a target.
#[derive(Debug)]
enum Node {
    /// Index among the leaves.
    Leaf(usize),
    /// Mirror, replacing, spare: everything goes everywhere.
    Copies(Vec<Self>),
    Raidz {
        geometry: Geometry,
        children: Vec<Self>,
    },
    /// Nothing can be written here.
    Closed,
}

#[derive(Debug)]
struct Top {
    node: Node,
    /// Smallest write.
    sector: usize,
    name: String,
}

/// The device tree of a pool, for writing.
#[derive(Debug)]
pub(crate) struct Devices {
    tops: Vec<Top>,
    /// See [`Leaves`].
    pub(crate) leaves: Leaves,
    txg: u64,
}

impl Devices {
    pub(crate) fn new(io: &PoolIo, overlay: Arc<Overlay>) -> Self {
        let mut devices = Self { tops: Vec::new(), leaves: Leaves::new(overlay), txg: 0 };
        devices.rebuild(io);
        devices
    }

    /// Takes another tree. What is known of a leaf stays known.
    pub(crate) fn rebuild(&mut self, io: &PoolIo) {
        let mut known = self.leaves.take();
        self.tops.clear();
        for vdev in &io.tree().tops {
            let node = build(vdev, &mut self.leaves, &mut known);
            let sector = 1 << vdev.top.as_ref().map_or(9, |top| top.ashift.min(16));
            self.tops.push(Top { node, sector, name: vdev.display_name() });
        }
    }

    pub(crate) fn begin(&mut self, txg: u64) {
        self.txg = txg;
        self.leaves.begin(txg);
    }

    /// Puts the stored bytes of a block at one of its addresses. Returns the number of pieces on their way.
    pub(crate) fn put(&mut self, dva: &Dva, data: &Bytes, place: Place) -> Result<u32, EngineError> {
        let top = usize::try_from(dva.vdev).ok().and_then(|id| self.tops.get(id));
        let Some(top) = top else {
            return Err(EngineError::Encode { what: "address", detail: format!("no device {}", dva.vdev) });
        };
        if data.len().is_multiple_of(top.sector) {
            return put(&top.node, &mut self.leaves, dva.offset, data, place, self.txg);
        }
        // Gang headers and the smallest blocks: less than a sector of this device.
        let mut padded = IoBuf::zeroed(data.len().next_multiple_of(top.sector));
        padded[..data.len()].copy_from_slice(data);
        put(&top.node, &mut self.leaves, dva.offset, &padded.freeze(), place, self.txg)
    }

    /// Whether each of these blocks was written whole at least once, given the leaves that failed.
    pub(crate) fn check(&self, written: &BTreeSet<Tops>) -> Result<(), EngineError> {
        let lost = written.iter().find(|tops| !tops.iter().any(|&id| self.is_whole(id)));
        let Some(lost) = lost else { return Ok(()) };
        let mut text = String::new();
        for top in lost.iter().filter_map(|&id| self.tops.get(usize::try_from(id).ok()?)) {
            let mut out = Vec::new();
            top.node.missing(&self.leaves, &mut out);
            let separator = if text.is_empty() { "" } else { "; " };
            text.push_str(&format!("{separator}{} lacks {}", top.name, out.join(", ")));
        }
        Err(EngineError::Device(text))
    }

    fn is_whole(&self, id: u32) -> bool {
        let top = usize::try_from(id).ok().and_then(|id| self.tops.get(id));
        top.is_some_and(|top| top.node.is_whole(&self.leaves))
    }
}

fn build(vdev: &Vdev, leaves: &mut Leaves, known: &mut Vec<super::leaves::Leaf>) -> Node {
    let mut children =
        || -> Vec<Node> { vdev.children.iter().map(|child| build(child, leaves, known)).collect() };
    match &vdev.kind {
        Kind::Disk | Kind::File => leaves.adopt(vdev, known).map_or(Node::Closed, Node::Leaf),
        Kind::Mirror | Kind::Replacing | Kind::Spare => Node::Copies(children()),
        // While an expansion moves sectors, only it may say where new ones belong.
        Kind::Raidz(geometry) if geometry.reflow.is_none() => {
            Node::Raidz { geometry: geometry.clone(), children: children() }
        }
        _ => Node::Closed,
    }
}

impl Node {
    /// Whether what was written to it can be read back, given the leaves that failed.
    fn is_whole(&self, leaves: &Leaves) -> bool {
        match self {
            Self::Leaf(index) => leaves.is_whole(*index),
            Self::Copies(sides) => sides.iter().any(|side| side.is_whole(leaves)),
            Self::Raidz { geometry, children } => {
                children.iter().filter(|child| !child.is_whole(leaves)).count() <= geometry.parity
            }
            Self::Closed => false,
        }
    }

    /// Names the leaves that take no writes.
    fn missing(&self, leaves: &Leaves, out: &mut Vec<String>) {
        match self {
            Self::Leaf(index) if !leaves.leaf(*index).is_writable() => {
                out.push(leaves.leaf(*index).describe())
            }
            Self::Leaf(_) => {}
            Self::Copies(below) | Self::Raidz { children: below, .. } => {
                below.iter().for_each(|child| child.missing(leaves, out));
            }
            Self::Closed => out.push("a device of a kind that is not written to".to_owned()),
        }
    }
}

/// `data` is a whole number of sectors.
fn put(
    node: &Node,
    leaves: &mut Leaves,
    offset: u64,
    data: &Bytes,
    place: Place,
    txg: u64,
) -> Result<u32, EngineError> {
    match node {
        Node::Leaf(index) => Ok(leaves.push(*index, offset, data, place)),
        Node::Copies(sides) => {
            let mut pieces = 0;
            for side in sides {
                pieces += put(side, leaves, offset, data, place, txg)?;
            }
            Ok(pieces)
        }
        Node::Raidz { geometry, children } => {
            put_stripe(geometry, children, leaves, offset, data, place, txg)
        }
        Node::Closed => Ok(0),
    }
}

/// Columns, their parity, and zeroes in the sectors that only keep free space in usable sizes.
fn put_stripe(
    geometry: &Geometry,
    children: &[Node],
    leaves: &mut Leaves,
    offset: u64,
    data: &Bytes,
    place: Place,
    txg: u64,
) -> Result<u32, EngineError> {
    let impossible = |detail: String| EngineError::Encode {
        what: "RAIDZ block",
        detail: format!("at {offset:#x}: {detail}"),
    };
    let layout = geometry
        .layout(offset, data.len() as u64, txg)
        .ok_or_else(|| impossible(format!("{} bytes cannot lie there", data.len())))?;
    let (mut pieces, mut used) = (0, 0);
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
        let sums = sums.freeze();
        for (row, cell) in parity_cells.iter().enumerate() {
            let sum = sums.slice(row * len..(row + 1) * len);
            pieces += put(&children[cell.child], leaves, cell.offset, &sum, place, txg)?;
        }
        for cell in data_cells.iter().filter(|cell| cell.len > 0) {
            let column = data.slice(cell.start..cell.start + cell.len);
            pieces += put(&children[cell.child], leaves, cell.offset, &column, place, txg)?;
        }
        used += stripe.cells.iter().map(|cell| (cell.len >> geometry.ashift) as u64).sum::<u64>();
    }
    let width = geometry.logical_width(txg);
    let allocated = geometry.allocated(data.len() as u64, width) >> geometry.ashift;
    for sector in (offset >> geometry.ashift) + used..(offset >> geometry.ashift) + allocated {
        let child = (sector % geometry.children as u64) as usize;
        let at = (sector / geometry.children as u64) << geometry.ashift;
        pad(&children[child], leaves, at, 1 << geometry.ashift);
    }
    Ok(pieces)
}

fn pad(node: &Node, leaves: &mut Leaves, offset: u64, len: usize) {
    match node {
        Node::Leaf(index) => leaves.push_padding(*index, offset, len),
        Node::Copies(sides) => sides.iter().for_each(|side| pad(side, leaves, offset, len)),
        Node::Raidz { .. } | Node::Closed => {}
    }
}
