//! Writing one object's tree, bottom up.
//!
//! ```text
//!   dnode       ┌ update(level n) ─ for each child with changes below it ─┐
//!     │         │                                                         ▼
//!   L2 …        └──── seal: indirect blocks whose children are done ◀─ update(n−1) … leaves(level 1)
//!     │                                                                   │
//!   L1, a group of 8 MiB at a time                         data blocks in batches to the writer
//! ```
//!
//! Indirect blocks are edited as bytes, 128 per pointer: of a block of 1024 pointers only those that change are
//! decoded. At most one indirect block per level is held above the groups of level 1, however large the volume is.
//! Facts: docs/format/dmu.md §2, blkptr.md §1 (fill) and §2 (holes).

use std::collections::BTreeMap;

use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{BlkPtrs, Dnode, ObjectType, SLOT_BYTES, flags},
};
use pool::dmu::ReadError;

use super::{
    commit::{Commit, Shape, Walk},
    object::Staged,
    ranges::Ranges,
    sink::Sink,
};
use crate::{
    EngineError,
    write::{Job, summed::Summed},
};

/// Data handed to the writer at once: enough for several threads to compress, little enough to stream.
const BATCH_BYTES: usize = 4 << 20;
/// The same in blocks, for small ones.
const BATCH_BLOCKS: usize = 4096;

/// A block below this child is to be written.
const DIRTY: u8 = 1;
/// All blocks below this child were punched.
const WHOLE: u8 = 2;
/// Some blocks below this child were punched.
const PART: u8 = 4;
/// This child is new because the tree grew, and takes over what the dnode pointed to.
const GROWN: u8 = 8;

/// A block of pointers that is being changed: an indirect block, or the pointers in the dnode.
struct Node {
    /// Its level; that of the dnode's pointers is the number of levels.
    level: u8,
    id: u64,
    /// Its own pointer so far.
    old: BlkPtr,
    /// Pointers in little endian.
    bytes: Vec<u8>,
    changed: bool,
}

/// What an indirect block says of everything below it.
struct Summary {
    fill: u64,
    all_holes: bool,
    /// Youngest birth of the holes in it.
    hole_birth: u64,
}

impl Node {
    fn count(&self) -> usize {
        self.bytes.len() / BlkPtr::BYTES
    }

    fn set(&mut self, slot: usize, pointer: &BlkPtr) {
        let place = &mut self.bytes[slot * BlkPtr::BYTES..][..BlkPtr::BYTES];
        let new = pointer.encode(Order::Little);
        if place != new {
            place.copy_from_slice(&new);
            self.changed = true;
        }
    }

    /// Looks at the raw words of every entry: most of them are not ours to judge.
    fn summary(&self) -> Summary {
        let mut summary = Summary { fill: 0, all_holes: true, hole_birth: 0 };
        for entry in self.bytes.as_chunks::<{ BlkPtr::BYTES }>().0 {
            let words = entry.as_chunks::<8>().0;
            let word = |index: usize| u64::from_le_bytes(words[index]);
            if word(6) >> 39 & 1 != 0 {
                summary.fill = summary.fill.saturating_add(1);
                summary.all_holes = false;
            } else if word(0) | word(1) != 0 {
                summary.fill = summary.fill.saturating_add(word(11));
                summary.all_holes = false;
            } else {
                summary.hole_birth = summary.hole_birth.max(word(10));
            }
        }
        summary
    }
}

/// What the dnode's pointers were before the tree got more levels.
struct Grown {
    levels: u8,
    pointers: Vec<u8>,
}

struct Tree<'t, 'a, S> {
    commit: &'t mut Commit<'a, S>,
    shape: Shape,
    /// Ascending; contents are taken out as they are written.
    dirty: Vec<(u64, Summed)>,
    /// Where some of them are already.
    ahead: BTreeMap<u64, BlkPtr>,
    punched: Ranges,
    grown: Option<Grown>,
}

/// Blocks on their way to the writer, and where their pointers go.
struct Batch {
    jobs: Vec<Job>,
    /// Node, slot, old pointer.
    places: Vec<(usize, usize, BlkPtr)>,
    bytes: usize,
}

impl Batch {
    /// For `blocks` blocks of `bytes` bytes, or as many as make a batch.
    fn with_room(blocks: usize, bytes: u64) -> Self {
        let full = BATCH_BYTES.div_ceil(usize::try_from(bytes).unwrap_or(usize::MAX).max(1));
        let room = blocks.min(full).min(BATCH_BLOCKS);
        Self { jobs: Vec::with_capacity(room), places: Vec::with_capacity(room), bytes: 0 }
    }
}

/// Writes what changed in an object and returns its dnode with the new pointers, levels and space.
pub(super) async fn write_object<S: Sink>(
    commit: &mut Commit<'_, S>,
    number: u64,
    staged: Staged,
) -> Result<Dnode, EngineError> {
    let Staged { mut dnode, blocks, ahead, punched, .. } = staged;
    commit.delta = 0;
    if !blocks.is_empty() || !punched.is_empty() {
        Staged::settle_indirect_shift(&mut dnode);
        let old_levels = dnode.levels;
        let fanout = dnode.fanout();
        let count = dnode.blkptrs.len();
        while fanout.ancestor(dnode.max_block_id, dnode.levels - 1) >= count as u64 {
            dnode.levels += 1;
        }
        let mut pointers = Vec::with_capacity(count * BlkPtr::BYTES);
        for pointer in dnode.blkptrs.iter() {
            pointers.extend_from_slice(&pointer.encode(Order::Little));
        }
        let mut grown = None;
        if dnode.levels > old_levels && pointers.iter().any(|byte| *byte != 0) {
            let empty = vec![0; pointers.len()];
            grown = Some(Grown { levels: old_levels, pointers: std::mem::replace(&mut pointers, empty) });
        }
        let shape = Shape::of(number, &dnode);
        let mut tree = Tree { commit, shape, dirty: blocks.into_iter().collect(), ahead, punched, grown };
        let mut top =
            Node { level: dnode.levels, id: 0, old: BlkPtr::EMPTY, bytes: pointers, changed: false };
        tree.update(&mut top).await?;
        let mut pointers = Vec::with_capacity(count);
        for slot in 0..count {
            pointers.push(tree.entry(&top, slot)?);
        }
        dnode.blkptrs = BlkPtrs::new(&pointers).map_err(EngineError::encode("dnode"))?;
    }
    // Old software counts sectors; from now on it is bytes.
    let used = dnode.used_bytes().unwrap_or(0);
    dnode.used = used.saturating_add_signed(commit.delta);
    dnode.flags |= flags::USED_BYTES;
    Ok(dnode)
}

impl<S: Sink> Tree<'_, '_, S> {
    /// The pointer in a slot.
    fn entry(&self, node: &Node, slot: usize) -> Result<BlkPtr, EngineError> {
        let at = self.commit.at(&self.shape, node.level, node.id);
        Ok(BlkPtr::decode_at(&node.bytes, slot, Order::Little).map_err(ReadError::malformed(at))?)
    }

    /// The data blocks a node covers.
    fn span(&self, node: &Node) -> std::ops::Range<u64> {
        let (fanout, level) = (self.shape.fanout, node.level - 1);
        let first = fanout.first_descendant(node.id, 1);
        let end = first.saturating_add(node.count() as u64);
        fanout.first_descendant(first, level)..fanout.first_descendant(end, level)
    }

    /// Which staged blocks lie in a range of block ids.
    fn dirty_in(&self, span: &std::ops::Range<u64>) -> std::ops::Range<usize> {
        let start = self.dirty.partition_point(|(blkid, _)| *blkid < span.start);
        let count = self.dirty[start..].partition_point(|(blkid, _)| *blkid < span.end);
        start..start + count
    }

    /// What is to be done with each child of a node, as flags.
    fn plan(&self, node: &Node) -> Vec<u8> {
        let (fanout, level) = (self.shape.fanout, node.level - 1);
        let first = fanout.first_descendant(node.id, 1);
        let span = self.span(node);
        let mut plan = vec![0; node.count()];
        let mut mark = |child: u64, flag: u8| {
            let slot = usize::try_from(child.wrapping_sub(first)).ok();
            if let Some(place) = slot.and_then(|slot| plan.get_mut(slot)) {
                *place |= flag;
            }
        };
        let std::ops::Range { mut start, end } = self.dirty_in(&span);
        while start < end {
            let child = fanout.ancestor(self.dirty[start].0, level);
            mark(child, DIRTY);
            let next = fanout.first_descendant(child + 1, level);
            start += self.dirty[start..end].partition_point(|(blkid, _)| *blkid < next);
        }
        for range in self.punched.overlapping(span.clone()) {
            let leftmost = fanout.ancestor(range.start.max(span.start), level);
            let rightmost = fanout.ancestor(range.end.min(span.end) - 1, level);
            for child in leftmost..=rightmost {
                let whole = range.start <= fanout.first_descendant(child, level)
                    && range.end >= fanout.first_descendant(child + 1, level);
                mark(child, if whole { WHOLE } else { PART });
            }
        }
        if self.grown.as_ref().is_some_and(|grown| node.id == 0 && level >= grown.levels) {
            mark(0, GROWN);
        }
        plan
    }

    /// Brings everything below a node up to date, and the node's bytes.
    fn update<'b>(&'b mut self, node: &'b mut Node) -> Walk<'b> {
        Box::pin(async move {
            if node.level == 1 {
                return self.leaves(std::slice::from_mut(node)).await;
            }
            let level = node.level - 1;
            let first = self.shape.fanout.first_descendant(node.id, 1);
            let (mut dead, mut touched) = (Vec::new(), Vec::new());
            for (slot, flags) in self.plan(node).into_iter().enumerate() {
                if flags == 0 {
                    continue;
                }
                let old = self.entry(node, slot)?;
                if flags & (DIRTY | GROWN) != 0 || (flags & PART != 0 && !old.is_hole()) {
                    touched.push((first + slot as u64, old));
                } else if flags & WHOLE != 0 && !old.is_hole() {
                    dead.push((first + slot as u64, old));
                }
            }
            for (id, old) in &dead {
                let hole = self.hole(old, level);
                node.set((id - first) as usize, &hole);
            }
            let shape = self.shape;
            self.commit.kill_all(&shape, level, dead).await?;
            let group = if level == 1 { self.shape.group() } else { 1 };
            for chunk in touched.chunks(group) {
                let mut children = self.load(level, chunk).await?;
                if level == 1 {
                    self.leaves(&mut children).await?;
                } else {
                    for child in &mut children {
                        self.update(child).await?;
                    }
                }
                self.seal(children, node).await?;
            }
            Ok(())
        })
    }

    fn hole(&self, old: &BlkPtr, level: u8) -> BlkPtr {
        self.commit.out.hole(old, self.shape.bytes(level), self.shape.object_type, level)
    }

    /// Indirect blocks to be changed: read, or made because they are holes.
    async fn load(&mut self, level: u8, wanted: &[(u64, BlkPtr)]) -> Result<Vec<Node>, EngineError> {
        let stored = wanted.iter().copied().filter(|(_, old)| !old.is_hole());
        let mut contents = self.commit.indirects(&self.shape, level, stored).await?.into_iter();
        let mut nodes = Vec::with_capacity(wanted.len());
        for &(id, old) in wanted {
            let mut node = Node { level, id, old, bytes: Vec::new(), changed: false };
            if !old.is_hole() {
                node.bytes = contents.next().unwrap_or_default();
                nodes.push(node);
                continue;
            }
            node.bytes = vec![0; self.shape.indirect_bytes];
            if old.birth() > 0 {
                // Whoever compares with an older snapshot must still learn when these blocks became holes.
                let bytes = self.shape.bytes(level - 1);
                let hole = BlkPtr::punched(bytes, self.shape.object_type, level - 1, old.birth());
                let hole = hole.map_err(EngineError::encode("block pointer"))?;
                for slot in 0..node.count() {
                    node.set(slot, &hole);
                }
                node.changed = false;
            }
            if id == 0
                && let Some(grown) = &self.grown
                && level == grown.levels
            {
                node.bytes[..grown.pointers.len()].copy_from_slice(&grown.pointers);
                node.changed = true;
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// Writes the data blocks below nodes of level 1 (or the dnode's pointers, if they lead to data).
    async fn leaves(&mut self, nodes: &mut [Node]) -> Result<(), EngineError> {
        let mut left: usize = nodes.iter().map(|node| self.dirty_in(&self.span(node)).len()).sum();
        let mut batch = Batch::with_room(left, self.shape.block_bytes);
        for index in 0..nodes.len() {
            let span = self.span(&nodes[index]);
            let dirty = self.dirty_in(&span);
            let mut punches = Vec::new();
            for range in self.punched.overlapping(span.clone()) {
                punches.push(range.start.max(span.start)..range.end.min(span.end));
            }
            if !punches.is_empty() {
                let mut written = self.dirty[dirty.clone()].iter().map(|(blkid, _)| *blkid).peekable();
                for blkid in punches.into_iter().flatten() {
                    while written.next_if(|next| *next < blkid).is_some() {}
                    let slot = (blkid - span.start) as usize;
                    let old = self.entry(&nodes[index], slot)?;
                    if written.peek() == Some(&blkid) || old.is_hole() {
                        continue;
                    }
                    let hole = self.hole(&old, 0);
                    self.commit.kill(&old);
                    nodes[index].set(slot, &hole);
                }
            }
            self.commit.relieve().await?;
            for place in dirty {
                let (blkid, content) = &mut self.dirty[place];
                let (blkid, (content, sum)) = (*blkid, std::mem::take(content).into_parts());
                let slot = (blkid - span.start) as usize;
                let old = self.entry(&nodes[index], slot)?;
                let fill = if self.shape.object_type == ObjectType::DNODE { dnodes_in(&content) } else { 1 };
                batch.bytes += content.len();
                batch.places.push((index, slot, old));
                let mut job = self.commit.job(&self.shape, 0, blkid, content, fill, old);
                job.written = self.ahead.remove(&blkid).map(Box::new);
                job.sum = sum;
                batch.jobs.push(job);
                left -= 1;
                if batch.bytes >= BATCH_BYTES || batch.jobs.len() >= BATCH_BLOCKS {
                    let full = std::mem::replace(&mut batch, Batch::with_room(left, self.shape.block_bytes));
                    self.flush(full, nodes).await?;
                }
            }
        }
        self.flush(batch, nodes).await
    }

    async fn flush(&mut self, batch: Batch, nodes: &mut [Node]) -> Result<(), EngineError> {
        let Batch { jobs, places, .. } = batch;
        if jobs.is_empty() {
            return Ok(());
        }
        let pointers = self.commit.write(jobs).await?;
        for ((index, slot, old), new) in places.into_iter().zip(pointers) {
            // Zeroes over a hole change nothing, not even its birth.
            if !(new.is_hole() && old.is_hole()) {
                self.commit.replace(&old, &new);
                nodes[index].set(slot, &new);
            }
        }
        self.commit.relieve().await
    }

    /// Writes indirect blocks whose children are done, and sets their pointers in the parent.
    async fn seal(&mut self, nodes: Vec<Node>, parent: &mut Node) -> Result<(), EngineError> {
        let first = self.shape.fanout.first_descendant(parent.id, 1);
        let (mut jobs, mut places) = (Vec::new(), Vec::new());
        for node in nodes.into_iter().filter(|node| node.changed) {
            let slot = (node.id - first) as usize;
            let summary = node.summary();
            if !summary.all_holes {
                places.push((slot, node.old));
                let content = node.bytes.into();
                jobs.push(self.commit.job(&self.shape, node.level, node.id, content, summary.fill, node.old));
                continue;
            }
            let hole = if !node.old.is_hole() {
                self.hole(&node.old, node.level)
            } else if summary.hole_birth > node.old.birth() {
                // A tree that grew over holes.
                let bytes = self.shape.bytes(node.level);
                BlkPtr::punched(bytes, self.shape.object_type, node.level, summary.hole_birth)
                    .map_err(EngineError::encode("block pointer"))?
            } else {
                node.old
            };
            self.commit.kill(&node.old);
            parent.set(slot, &hole);
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let pointers = self.commit.write(jobs).await?;
        for ((slot, old), new) in places.into_iter().zip(pointers) {
            self.commit.replace(&old, &new);
            parent.set(slot, &new);
        }
        Ok(())
    }
}

/// Allocated dnodes in a block of them.
pub(super) fn dnodes_in(block: &[u8]) -> u64 {
    let (mut count, mut slot) = (0, 0);
    while let Some(rest) = block.get(slot * SLOT_BYTES..).filter(|rest| rest.len() >= SLOT_BYTES) {
        count += u64::from(rest[0] != 0);
        slot += Dnode::slots_at(rest);
    }
    count
}
