//! What all trees of one sync share: where blocks come from and go to, who hears of them, and how a subtree dies.
//!
//! Subtrees are freed by walking them on disk: every pointer in them is reported. A group of indirect blocks is read
//! at a time, and whoever hears of dead blocks is relieved of them after each, so a walk over any number of them takes a
//! few MiB of memory. What the allocator and lists of dead blocks keep of them is bounded by whoever frees a
//! [`Portion`](super::Portion) at a time.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{Dnode, Fanout, ObjectType},
};
use pool::{
    Bookmark,
    dmu::{BlockSource, ReadError},
};

use super::{Account, sink::Sink};
use crate::{EngineError, policy::SetPolicy, space::Deflate, write::Job};

/// Bytes of indirect blocks that are held at once at one level.
const GROUP_BYTES: usize = 8 << 20;

/// A future that needs a box because it calls itself.
pub(super) type Walk<'a> = Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>>;

/// What the blocks of one object have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) number: u64,
    pub(super) object_type: ObjectType,
    pub(super) checksum_id: u8,
    pub(super) compression_id: u8,
    /// Bytes of a data block.
    pub(super) block_bytes: u64,
    /// Bytes of an indirect block.
    pub(super) indirect_bytes: usize,
    pub(super) fanout: Fanout,
}

impl Shape {
    pub(super) fn of(number: u64, dnode: &Dnode) -> Self {
        Self {
            number,
            object_type: dnode.object_type,
            checksum_id: dnode.checksum_id,
            compression_id: dnode.compression_id,
            block_bytes: dnode.data_block_bytes(),
            indirect_bytes: dnode.indirect_block_bytes() as usize,
            fanout: dnode.fanout(),
        }
    }

    /// Bytes of a block at a level.
    pub(super) fn bytes(&self, level: u8) -> u64 {
        if level == 0 { self.block_bytes } else { self.indirect_bytes as u64 }
    }

    /// Indirect blocks that are held at once.
    pub(super) fn group(&self) -> usize {
        (GROUP_BYTES / self.indirect_bytes.max(1)).max(1)
    }
}

/// One sync of one object set.
pub(super) struct Commit<'a, S> {
    pub(super) source: &'a Arc<dyn BlockSource>,
    pub(super) objset: u64,
    pub(super) out: &'a mut S,
    pub(super) policy: &'a SetPolicy,
    pub(super) deflate: &'a Deflate,
    pub(super) account: &'a mut dyn Account,
    /// Accounted bytes that appeared minus those that disappeared, since it was last set to 0.
    pub(super) delta: i64,
}

impl<S: Sink> Commit<'_, S> {
    pub(super) fn at(&self, shape: &Shape, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: shape.number, level: i64::from(level), blkid }
    }

    /// A block that is to be written.
    pub(super) fn job(
        &self,
        shape: &Shape,
        level: u8,
        blkid: u64,
        content: Bytes,
        fill: u64,
        old: BlkPtr,
    ) -> Job {
        Job {
            content,
            policy: self.policy.block(shape.object_type, level, shape.checksum_id, shape.compression_id),
            object_type: shape.object_type,
            level,
            fill,
            old,
            at: self.at(shape, level, blkid),
            written: None,
            sum: None,
        }
    }

    /// Stores blocks.
    pub(super) async fn write(&mut self, jobs: Vec<Job>) -> Result<Vec<BlkPtr>, EngineError> {
        let asked = jobs.len();
        let pointers = self.out.write(jobs).await?;
        assert_eq!(pointers.len(), asked, "one pointer for each block");
        Ok(pointers)
    }

    /// One pointer takes the place of another.
    pub(super) fn replace(&mut self, old: &BlkPtr, new: &BlkPtr) {
        let stored = |bp: &BlkPtr| !bp.is_hole() && !bp.is_embedded();
        // Written again in its place. (With another stored size it is the same place by chance: given back, and
        // handed out again.)
        if stored(old) && stored(new) && old.dvas().eq(new.dvas()) && old.psize() == new.psize() {
            return;
        }
        self.kill(old);
        if !new.is_hole() {
            self.delta += self.deflate.dsize(new) as i64;
            self.account.born(new);
        }
    }

    /// A block is gone.
    pub(super) fn kill(&mut self, old: &BlkPtr) {
        if !old.is_hole() {
            self.delta -= self.deflate.dsize(old) as i64;
            self.account.killed(old);
        }
    }

    /// Takes from the listener what has piled up. Nothing that is freed here is read by the walk any more: what is below
    /// a block was read before that is reported.
    pub(super) async fn relieve(&mut self) -> Result<(), EngineError> {
        let dead = self.account.to_free();
        self.out.free_all(&dead).await?;
        match self.account.to_do() {
            Some(work) => work.await,
            None => Ok(()),
        }
    }

    /// The contents of indirect blocks, as little-endian words.
    pub(super) async fn indirects(
        &mut self,
        shape: &Shape,
        level: u8,
        blocks: impl Iterator<Item = (u64, BlkPtr)>,
    ) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut asked = Vec::new();
        for (blkid, pointer) in blocks {
            let at = self.at(shape, level, blkid);
            let wrong = |what| EngineError::Read(ReadError::Inconsistent { at, what });
            if pointer.level() != level {
                return Err(wrong("the block pointer is of another level than its place in the tree"));
            }
            if pointer.lsize() != shape.indirect_bytes as u64 {
                return Err(wrong("the block pointer is of another size than its object's blocks"));
            }
            asked.push((pointer, at));
        }
        let read = match asked.as_slice() {
            [] => return Ok(Vec::new()),
            [(pointer, at)] => vec![match self.source.cached(pointer) {
                Some(found) => Ok(found),
                None => self.source.read(pointer, *at).await,
            }],
            _ => self.source.read_many(&asked).await,
        };
        let mut contents = Vec::with_capacity(read.len());
        for (content, (pointer, at)) in read.into_iter().zip(&asked) {
            // A copy, because the original is shared with the cache.
            let mut content = content?.to_vec();
            if content.len() != shape.indirect_bytes {
                let what = "the indirect block is of another size than its pointer says";
                return Err(EngineError::Read(ReadError::Inconsistent { at: *at, what }));
            }
            if pointer.order() == Order::Big {
                to_little(&mut content);
            }
            contents.push(content);
        }
        Ok(contents)
    }

    /// Reports all blocks of an object; its dnode has just gone.
    pub(super) async fn bury(&mut self, number: u64, dnode: &Dnode) -> Result<(), EngineError> {
        let shape = Shape::of(number, dnode);
        let pointers = (0..).zip(dnode.blkptrs.iter().copied()).filter(|(_, pointer)| !pointer.is_hole());
        self.kill_all(&shape, dnode.levels - 1, pointers.collect()).await?;
        if let Some(spill) = &dnode.spill {
            self.kill(spill);
        }
        Ok(())
    }

    /// Reports blocks of one level and everything below them. No holes among them.
    pub(super) fn kill_all<'b>(
        &'b mut self,
        shape: &'b Shape,
        level: u8,
        blocks: Vec<(u64, BlkPtr)>,
    ) -> Walk<'b> {
        Box::pin(async move {
            // Blocks of level 1 are read in groups: what is below them is only looked at. Those above one by one,
            // so that the depth of the tree and not its width says how much is held.
            let group = match level {
                0 => blocks.len().max(1),
                1 => shape.group(),
                _ => 1,
            };
            for chunk in blocks.chunks(group) {
                if level > 0 {
                    let contents = self.indirects(shape, level, chunk.iter().copied()).await?;
                    for ((blkid, _), content) in chunk.iter().zip(contents) {
                        let first = shape.fanout.first_descendant(*blkid, 1);
                        let mut below = Vec::new();
                        for index in 0..content.len() / BlkPtr::BYTES {
                            let pointer = BlkPtr::decode_at(&content, index, Order::Little)
                                .map_err(ReadError::malformed(self.at(shape, level, *blkid)))?;
                            if pointer.is_hole() {
                                continue;
                            }
                            if level == 1 {
                                self.kill(&pointer);
                            } else {
                                below.push((first.wrapping_add(index as u64), pointer));
                            }
                        }
                        if !below.is_empty() {
                            self.kill_all(shape, level - 1, below).await?;
                        }
                        self.relieve().await?;
                    }
                }
                for (_, pointer) in chunk {
                    self.kill(pointer);
                }
            }
            Ok(())
        })
    }
}

/// Turns big-endian words into little-endian ones.
pub(super) fn to_little(words: &mut [u8]) {
    for word in words.as_chunks_mut::<8>().0 {
        word.reverse();
    }
}
