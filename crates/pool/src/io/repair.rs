//! What scans ask of the examination of blocks, and get from it: when they may use a leaf, and what has to be written
//! where. `pool` writes nothing itself; the engine does.

use bytes::Bytes;
use smallvec::SmallVec;

use super::Reader;
use crate::{
    BoxFuture,
    vdev::{Kind, Vdev},
};
use ondisk::blkptr::{BlkPtr, Dva};

/// Right bytes of one place of a block, and who should have them and does not.
#[derive(Clone, Debug)]
pub struct Repair {
    /// Top-level device.
    pub vdev: u64,
    /// Offset of the place on it.
    pub offset: u64,
    /// Physical birth of the block: decides how it is laid out.
    pub birth: u64,
    /// Stored bytes from the start of the place; what is behind them up to a whole sector is zeroes.
    pub data: Bytes,
    /// Leaves (guids) that gave something else, or nothing.
    pub wrong: SmallVec<[u64; 2]>,
    /// Leaves (guids) that missed the block's transaction group.
    pub lacking: SmallVec<[u64; 2]>,
}

/// Held while a scan uses a leaf.
pub type Turn = Box<dyn Send>;

/// Says when a scan may use a leaf.
pub trait Turns: Send + Sync {
    /// Waits until `bytes` may be transferred. Turns of one leaf are to be given in the order in which the futures were
    /// polled first: that is the order of the device.
    fn turn<'a>(&'a self, leaf: &'a Vdev, bytes: usize) -> BoxFuture<'a, Turn>;

    /// How many bytes a transfer that is planned now may have at most: whoever else wants the leaf waits for one.
    fn longest(&self, leaf: &Vdev) -> u64;
}

/// How blocks are examined.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    /// Who says when; none: at once, a few at a time.
    pub turns: Option<&'a dyn Turns>,
    /// One good copy is enough: only the content is wanted.
    pub one_copy: bool,
}

impl std::fmt::Debug for How<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("How").field("one_copy", &self.one_copy).finish_non_exhaustive()
    }
}

impl Reader {
    /// Whether a leaf that can be used now should have a part of this block and missed it. Of a gang block only its
    /// header is known here, so the answer is about all its devices.
    pub(super) fn is_lacking(&self, bp: &BlkPtr) -> bool {
        if bp.is_hole() || bp.is_embedded() {
            return false;
        }
        let birth = bp.physical_birth();
        if bp.is_gang() {
            return self.tree.tops.iter().any(|top| lacks(top, birth));
        }
        bp.dvas().any(|dva| self.tree.top(dva.vdev.into()).is_some_and(|top| place_lacks(top, dva, bp)))
    }
}

fn place_lacks(top: &Vdev, dva: Dva, bp: &BlkPtr) -> bool {
    let birth = bp.physical_birth();
    let Kind::Raidz(geometry) = &top.kind else { return lacks(top, birth) };
    if !top.children.iter().any(|child| lacks(child, birth)) {
        return false;
    }
    let Some(layout) = geometry.layout(dva.offset, bp.psize(), birth) else { return false };
    let cells = layout.stripes.iter().flat_map(|stripe| &stripe.cells);
    cells
        .filter(|cell| cell.len > 0)
        .any(|cell| top.children.get(cell.child).is_some_and(|child| lacks(child, birth)))
}

/// Whether a usable leaf below missed this transaction group.
fn lacks(vdev: &Vdev, birth: u64) -> bool {
    match &vdev.leaf {
        Some(leaf) => leaf.missed.contains(birth) && vdev.is_readable(),
        None => vdev.children.iter().any(|child| lacks(child, birth)),
    }
}
