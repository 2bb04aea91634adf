//! The device tree as the writer of transaction groups sees it: blocks go in, the leaves merge them, and at the end it
//! is asked whether each can be read back.
//!
//! Facts: docs/format/vdevs.md §2–§4.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use ondisk::blkptr::Dva;
use pool::PoolIo;
use smallvec::SmallVec;

use super::{
    layout::{Sink, Top},
    leaves::Leaves,
    overlay::{Overlay, Place},
    target::Targets,
};
use crate::EngineError;

/// The top-level devices that hold a block's copies, ascending, each once.
pub(crate) type Tops = SmallVec<[u32; 3]>;

/// Those that hold these copies.
pub(super) fn tops_of(copies: impl Iterator<Item = Dva>) -> Tops {
    let mut tops: Tops = copies.map(|dva| dva.vdev).collect();
    tops.sort_unstable();
    tops.dedup();
    tops
}

/// The device tree of a pool, for writing.
#[derive(Debug)]
pub(crate) struct Devices {
    tops: Vec<Top>,
    /// See [`Leaves`].
    pub(crate) leaves: Leaves,
    txg: u64,
}

/// Takes the pieces of one block to the leaves, and counts them.
struct Pushing<'a> {
    leaves: &'a mut Leaves,
    place: Place,
    pieces: u32,
}

/// Takes the pieces of a block that was written ahead to what the leaves are to have.
struct Recalling<'a>(&'a mut Leaves);

impl Sink for Recalling<'_> {
    fn joins(&self) -> bool {
        true
    }
    fn made(&mut self, len: usize) {
        self.0.held().made(len);
    }
    fn piece(&mut self, leaf: usize, offset: u64, data: &Bytes) {
        self.0.recall(leaf, offset, data);
    }
    fn padding(&mut self, _: usize, _: u64, _: usize) {}
}

impl Sink for Pushing<'_> {
    fn joins(&self) -> bool {
        true
    }
    fn made(&mut self, len: usize) {
        self.leaves.held().made(len);
    }
    fn piece(&mut self, leaf: usize, offset: u64, data: &Bytes) {
        self.pieces += self.leaves.push(leaf, offset, data, self.place);
    }
    fn padding(&mut self, leaf: usize, offset: u64, len: usize) {
        self.leaves.push_padding(leaf, offset, len);
    }
}

impl Devices {
    pub(crate) fn new(io: &PoolIo, overlay: Arc<Overlay>, targets: Arc<Targets>) -> Self {
        let mut devices = Self { tops: Vec::new(), leaves: Leaves::new(overlay, targets), txg: 0 };
        devices.rebuild(io);
        devices
    }

    /// Takes another tree. What is known of a leaf stays known.
    pub(crate) fn rebuild(&mut self, io: &PoolIo) {
        let mut known = self.leaves.take();
        let leaves = &mut self.leaves;
        let tree = io.tree();
        self.tops =
            tree.tops.iter().map(|vdev| Top::new(vdev, &mut |leaf| leaves.adopt(leaf, &mut known))).collect();
    }

    pub(crate) fn begin(&mut self, txg: u64) {
        self.txg = txg;
        self.leaves.begin(txg);
    }

    /// Puts the stored bytes of a block at one of its addresses. Returns the number of pieces on their way.
    pub(crate) fn put(&mut self, dva: &Dva, data: &Bytes, place: Place) -> Result<u32, EngineError> {
        let Some(top) = top(&self.tops, dva.vdev) else {
            return Err(EngineError::Encode { what: "address", detail: format!("no device {}", dva.vdev) });
        };
        self.leaves.begin_block();
        let mut pushing = Pushing { leaves: &mut self.leaves, place, pieces: 0 };
        top.put(dva.offset, data, self.txg, &mut pushing)?;
        Ok(pushing.pieces)
    }

    /// The stored bytes of a block that was written ahead, should a leaf have to be given them again.
    pub(crate) fn recall(&mut self, dva: &Dva, data: &Bytes) -> Result<(), EngineError> {
        let Some(top) = top(&self.tops, dva.vdev) else { return Ok(()) };
        top.put(dva.offset, data, self.txg, &mut Recalling(&mut self.leaves))
    }

    /// Whether what was written there ahead is on the leaves that were said to have it, once they are flushed.
    pub(crate) fn is_sure(&self, id: u32) -> bool {
        let mut sure = true;
        if let Some(top) = top(&self.tops, id) {
            top.node.leaves(&mut |leaf| sure &= self.leaves.is_sure(leaf));
        }
        sure
    }

    /// Something was written there by others: the next flush is for it too.
    pub(crate) fn flush_too(&mut self, id: u32) {
        if let Some(top) = top(&self.tops, id) {
            top.node.leaves(&mut |leaf| self.leaves.flush_too(leaf));
        }
    }

    /// Whether each of these blocks was written whole at least once, given the leaves that failed.
    pub(crate) fn check(&self, written: &BTreeSet<Tops>) -> Result<(), EngineError> {
        let is_whole = |&id: &u32| {
            top(&self.tops, id).is_some_and(|top| top.node.is_whole(&|leaf| self.leaves.is_whole(leaf)))
        };
        let Some(lost) = written.iter().find(|tops| !tops.iter().any(is_whole)) else { return Ok(()) };
        let describe = |leaf: usize| self.leaves.leaf(leaf).describe();
        Err(EngineError::Device(lacking(lost.iter().filter_map(|&id| top(&self.tops, id)), &describe)))
    }
}

fn top(tops: &[Top], id: u32) -> Option<&Top> {
    usize::try_from(id).ok().and_then(|id| tops.get(id))
}

/// What stands in the way of writing to these devices.
pub(crate) fn lacking<'a>(
    tops: impl Iterator<Item = &'a Top>,
    describe: &impl Fn(usize) -> Option<String>,
) -> String {
    let words = tops.map(|top| {
        let mut out = Vec::new();
        top.node.missing(describe, &mut out);
        format!("{} lacks {}", top.name, out.join(", "))
    });
    words.collect::<Vec<_>>().join("; ")
}
