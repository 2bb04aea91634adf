//! Object numbers and the dnodes behind them: which slots are free, what is in the others.
//!
//! A slot may be the inside of a large dnode of another writer, where anything can stand, so a block is always
//! looked at from its start. Facts: docs/format/dmu.md §1, §4.

use bytes::Bytes;
use ondisk::{
    Order,
    dnode::{Dnode, SLOT_BYTES},
};
use pool::dmu::{Cursor, ReadError, Step};

use super::{MutSet, object::Staged};
use crate::{BoxFuture, EngineError};

/// Highest object number.
const NUMBER_MAX: u64 = 1 << 48;
/// Dnodes kept decoded, about 1 KiB each.
const CLEAN_MAX: usize = 1024;
/// Blocks of dnodes kept, usually 16 KiB each.
const BLOCKS_MAX: usize = 64;
/// Full blocks passed over before it goes on behind the last one: two million objects, or a forged tree in which
/// one block stands everywhere.
const SEARCH_MAX: usize = 1 << 16;
/// Free numbers remembered.
const SPARE_MAX: usize = 1 << 16;

impl MutSet {
    pub(super) fn slots_per_block(&self) -> u64 {
        (self.phys.meta_dnode.data_block_bytes() / SLOT_BYTES as u64).max(1)
    }

    pub(super) fn missing(&self, number: u64) -> EngineError {
        EngineError::Read(ReadError::NoObject { objset: self.id, object: number })
    }

    /// A block of dnodes as of the last sync; `None` for a hole.
    pub(super) async fn dnode_block(&mut self, block: u64) -> Result<Option<Bytes>, EngineError> {
        if let Some(found) = self.dnode_blocks.get(&block) {
            return Ok(found.clone());
        }
        let found = self.meta()?.read_block(block).await?;
        if found.content.is_some() && found.order == Order::Big {
            let what = "the pool has big-endian metadata: it can be read, but not written to";
            return Err(EngineError::Unsupported(what.into()));
        }
        self.keep_block(block, found.content.clone());
        self.bound_caches();
        Ok(found.content)
    }

    pub(super) fn keep_block(&mut self, block: u64, content: Option<Bytes>) {
        self.dnode_blocks.insert(block, content);
    }

    /// Forgets everything clean rather than choosing: what is in use comes back from the block cache.
    pub(super) fn bound_caches(&mut self) {
        if self.dnode_blocks.len() > BLOCKS_MAX {
            self.dnode_blocks.clear();
        }
        if self.clean.len() > CLEAN_MAX {
            self.clean.clear();
        }
    }

    /// The dnode of an object as of the last sync.
    pub(super) async fn committed(&mut self, number: u64) -> Result<Option<Dnode>, EngineError> {
        if let Some(found) = self.clean.get(&number) {
            return Ok(Some(found.clone()));
        }
        self.decoded(number).await
    }

    /// The same from its block of dnodes. Boxed, because so much of this crate asks for dnodes.
    fn decoded(&mut self, number: u64) -> BoxFuture<'_, Result<Option<Dnode>, EngineError>> {
        Box::pin(async move {
            let per_block = self.slots_per_block();
            let (block, wanted) = (number / per_block, (number % per_block) as usize);
            if number == 0 || number > NUMBER_MAX {
                return Ok(None);
            }
            let Some(content) = self.dnode_block(block).await? else { return Ok(None) };
            let mut slot = 0;
            while let Some(rest) = content.get(slot * SLOT_BYTES..).filter(|rest| !rest.is_empty()) {
                if slot == wanted {
                    let at = self.meta()?.bookmark(0, block);
                    return Ok(Dnode::decode(rest, Order::Little).map_err(ReadError::malformed(at))?);
                }
                if slot > wanted {
                    break;
                }
                slot += Dnode::slots_at(rest);
            }
            Ok(None)
        })
    }

    /// Its dnode as it is now (its pointers are those of the last sync).
    pub async fn dnode(&mut self, number: u64) -> Result<&Dnode, EngineError> {
        if !self.objects.contains_key(&number) && !self.clean.contains_key(&number) {
            let dnode = self.committed(number).await?.ok_or_else(|| self.missing(number))?;
            self.bound_caches();
            self.clean.insert(number, dnode);
        }
        let missing = self.missing(number);
        match self.objects.get(&number) {
            Some(Some(staged)) => Ok(&staged.dnode),
            Some(None) => Err(missing),
            None => self.clean.get(&number).ok_or(missing),
        }
    }

    /// The object, ready to be changed.
    pub(super) async fn staged(&mut self, number: u64) -> Result<&mut Staged, EngineError> {
        if !self.objects.contains_key(&number) {
            let dnode = self.committed(number).await?.ok_or_else(|| self.missing(number))?;
            self.objects.insert(number, Some(Box::new(Staged::new(dnode))));
        }
        self.changes += 1;
        let missing = self.missing(number);
        self.objects.get_mut(&number).and_then(Option::as_deref_mut).ok_or(missing)
    }

    /// Whether the object is allocated.
    pub async fn exists(&mut self, number: u64) -> Result<bool, EngineError> {
        match self.objects.get(&number) {
            Some(staged) => Ok(staged.is_some()),
            None => Ok(self.committed(number).await?.is_some()),
        }
    }

    /// Which slots of a block are taken now.
    async fn taken(&mut self, block: u64) -> Result<Vec<bool>, EngineError> {
        let per_block = self.slots_per_block();
        let first = block * per_block;
        let mut taken = vec![false; per_block as usize];
        let mut mark = |slot: usize, slots: usize| {
            let end = (slot + slots).min(taken.len());
            taken[slot..end].fill(true);
        };
        if first == 0 {
            mark(0, 1); // object 0 is the array itself
        }
        if let Some(content) = self.dnode_block(block).await? {
            let mut slot = 0;
            while let Some(rest) = content.get(slot * SLOT_BYTES..).filter(|rest| !rest.is_empty()) {
                let slots = Dnode::slots_at(rest);
                if rest[0] != 0 && !self.objects.contains_key(&(first + slot as u64)) {
                    mark(slot, slots);
                }
                slot += slots;
            }
        }
        for (number, staged) in self.objects.range(first..first + per_block) {
            if let Some(staged) = staged {
                mark((number - first) as usize, staged.dnode.slots());
            }
        }
        Ok(taken)
    }

    /// A free number, no longer free.
    ///
    /// Blocks of dnodes are searched once, in order; numbers freed since then are remembered.
    pub(super) async fn take_number(&mut self) -> Result<u64, EngineError> {
        let meta = self.meta()?;
        let (mut cursor, mut searched) = (Cursor::default(), 0);
        loop {
            if let Some(number) = self.spare.pop_first() {
                let per_block = self.slots_per_block();
                if !self.taken(number / per_block).await?[(number % per_block) as usize] {
                    return Ok(number);
                }
                continue;
            }
            let (block, per_block) = (self.cursor, self.slots_per_block());
            if block >= NUMBER_MAX / per_block {
                return Err(EngineError::Encode {
                    what: "dnode",
                    detail: format!("object set {} has no free object number", self.id),
                });
            }
            self.cursor += 1;
            // A full block need not be read.
            if let Step::Block(pointer) = meta.seek(&mut cursor, 0, block).await?
                && pointer.fill() >= per_block
            {
                searched += 1;
                if block > meta.max_block_id() {
                    let at = meta.bookmark(0, block);
                    let what = "there are dnodes behind the highest block of dnodes";
                    return Err(ReadError::Inconsistent { at, what }.into());
                }
                if searched >= SEARCH_MAX {
                    self.cursor = self.cursor.max(meta.max_block_id() + 1);
                }
                continue;
            }
            let taken = self.taken(block).await?;
            let free = (block * per_block..).zip(taken).filter(|(_, taken)| !taken);
            self.spare.extend(free.map(|(number, _)| number));
        }
    }

    /// Takes one number, if it is free.
    pub(super) async fn take_this_number(&mut self, number: u64) -> Result<(), EngineError> {
        let per_block = self.slots_per_block();
        if number == 0
            || number > NUMBER_MAX
            || self.taken(number / per_block).await?[(number % per_block) as usize]
        {
            return Err(EngineError::Encode {
                what: "dnode",
                detail: format!("object {number} of object set {} is not free", self.id),
            });
        }
        self.spare.remove(&number);
        Ok(())
    }

    /// Frees an object and all its blocks.
    pub async fn free(&mut self, number: u64) -> Result<(), EngineError> {
        let dnode = self.staged(number).await?.dnode.clone();
        if dnode.spill.is_some() || dnode.blkptrs.iter().any(|pointer| !pointer.is_hole()) {
            self.dying.push((number, dnode));
        }
        self.changes += 1;
        self.objects.insert(number, None);
        if self.spare.len() < SPARE_MAX {
            self.spare.insert(number);
        } else {
            self.cursor = self.cursor.min(number / self.slots_per_block());
        }
        Ok(())
    }
}
