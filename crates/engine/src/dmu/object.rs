//! One object with changes: its dnode as it will be, blocks that wait to be written, holes to be made.
//!
//! The pointers in the dnode are those of the last sync; blocks and punched ranges lie over that tree. A block in a
//! punched range counts: it was put there after the punch.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use ondisk::{
    blkptr::{BLOCK_BYTES_MAX, BlkPtr},
    dnode::{BlkPtrs, Bonus, Dnode, ObjectType, SLOT_BYTES, flags},
};

use super::{NewObject, ranges::Ranges};
use crate::{EngineError, write::summed::Summed};

/// Bytes of a dnode before its pointers.
const HEADER_BYTES: usize = 64;
/// Default log2 of an indirect block.
const INDIRECT_SHIFT: u8 = 17;
/// Range of that for new objects.
const INDIRECT_SHIFTS: std::ops::RangeInclusive<u8> = 12..=17;

/// An object that differs from the one on disk.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    /// As it will be, except for its pointers, levels and space, which are those of the last sync.
    pub(super) dnode: Dnode,
    /// Blocks to be written.
    pub(super) blocks: BTreeMap<u64, Summed>,
    /// Where those of them are that were written ahead, in this transaction group, with just this content.
    pub(super) ahead: BTreeMap<u64, BlkPtr>,
    /// Blocks to be made holes, unless they are in `blocks`.
    pub(super) punched: Ranges,
    /// The block size changed: all that counts is staged, and the tree on disk must not be read.
    pub(super) resized: bool,
}

/// What is known of a block without looking into the tree.
pub(super) enum Known {
    /// It waits to be written.
    Content(Bytes),
    /// It was punched.
    Hole,
    /// The tree on disk has it.
    OnDisk,
}

fn encode(detail: impl Into<String>) -> EngineError {
    EngineError::Encode { what: "dnode", detail: detail.into() }
}

/// Sectors of a legal data block.
fn sectors(bytes: u32) -> Result<u16, EngineError> {
    let legal = bytes > 0 && bytes.is_multiple_of(512) && u64::from(bytes) <= BLOCK_BYTES_MAX;
    let sectors = u16::try_from(bytes / 512).ok().filter(|_| legal);
    sectors.ok_or_else(|| encode(format!("{bytes} bytes is no size for a data block")))
}

impl Staged {
    /// An object with these changes, so far none.
    pub(super) fn new(dnode: Dnode) -> Self {
        Self {
            dnode,
            blocks: BTreeMap::new(),
            ahead: BTreeMap::new(),
            punched: Ranges::default(),
            resized: false,
        }
    }

    /// A new object.
    pub(super) fn create(new: &NewObject<'_>) -> Result<Self, EngineError> {
        let room = SLOT_BYTES - HEADER_BYTES - BlkPtr::BYTES;
        let Some(spare) = room.checked_sub(new.bonus.len()) else {
            return Err(encode(format!("a bonus of {} bytes does not fit into a dnode", new.bonus.len())));
        };
        if new.bonus_type == ObjectType::NONE && !new.bonus.is_empty() {
            return Err(encode("a bonus needs a type"));
        }
        if !INDIRECT_SHIFTS.contains(&new.indirect_shift) {
            return Err(encode(format!("indirect blocks of 2^{} bytes", new.indirect_shift)));
        }
        let pointers = if new.bonus_type == ObjectType::SA { 1 } else { (1 + spare / BlkPtr::BYTES).min(3) };
        let pointers = vec![BlkPtr::EMPTY; pointers];
        Ok(Self::new(Dnode {
            object_type: new.object_type,
            indirect_shift: new.indirect_shift,
            levels: 1,
            bonus_type: new.bonus_type,
            checksum_id: 0,
            compression_id: new.compression_id,
            flags: flags::USED_BYTES,
            data_sectors: sectors(new.block_bytes)?,
            extra_slots: 0,
            max_block_id: 0,
            used: 0,
            reserved: ([0; 3], [0; 32]),
            blkptrs: BlkPtrs::new(&pointers).map_err(EngineError::encode("dnode"))?,
            bonus: Bonus::new(new.bonus),
            spill: None,
        }))
    }

    /// What is known of a block from memory.
    pub(super) fn known(&self, blkid: u64) -> Known {
        match self.blocks.get(&blkid) {
            Some(content) => Known::Content(content.bytes().clone()),
            None if self.resized || self.punched.contains(blkid) => Known::Hole,
            None => Known::OnDisk,
        }
    }

    /// Replaces the bonus.
    pub(super) fn set_bonus(&mut self, bonus: &[u8]) -> Result<(), EngineError> {
        let spill = if self.dnode.spill.is_some() { BlkPtr::BYTES } else { 0 };
        let taken = HEADER_BYTES + self.dnode.blkptrs.len() * BlkPtr::BYTES + spill;
        if bonus.len() > (self.dnode.slots() * SLOT_BYTES).saturating_sub(taken) {
            return Err(encode(format!("a bonus of {} bytes does not fit into its dnode", bonus.len())));
        }
        if self.dnode.bonus_type == ObjectType::NONE && !bonus.is_empty() {
            return Err(encode("a bonus needs a type"));
        }
        self.dnode.bonus = Bonus::new(bonus);
        Ok(())
    }

    /// Checks that a block can be put there.
    fn admit(&self, blkid: u64, len: usize) -> Result<(), EngineError> {
        let bytes = self.dnode.data_block_bytes();
        if len as u64 != bytes {
            return Err(encode(format!("a block of {len} bytes for an object with blocks of {bytes}")));
        }
        if blkid > 0 && !bytes.is_power_of_two() {
            return Err(encode(format!("an object with blocks of {bytes} bytes can have only one")));
        }
        if blkid.checked_add(1).and_then(|blocks| blocks.checked_mul(bytes)).is_none() {
            return Err(encode(format!("block {blkid} lies beyond 2^64 bytes")));
        }
        Ok(())
    }

    /// Replaces a block.
    pub(super) fn put(&mut self, blkid: u64, content: Bytes) -> Result<(), EngineError> {
        self.admit(blkid, content.len())?;
        self.dnode.max_block_id = self.dnode.max_block_id.max(blkid);
        self.ahead.remove(&blkid);
        self.blocks.insert(blkid, content.into());
        Ok(())
    }

    /// Replaces many blocks.
    pub(super) fn put_many(&mut self, blocks: Vec<(u64, Summed)>) -> Result<(), EngineError> {
        for (blkid, content) in &blocks {
            self.admit(*blkid, content.len())?;
        }
        let Some(last) = blocks.iter().map(|(blkid, _)| *blkid).max() else { return Ok(()) };
        self.dnode.max_block_id = self.dnode.max_block_id.max(last);
        if !self.ahead.is_empty() {
            for (blkid, _) in &blocks {
                self.ahead.remove(blkid);
            }
        }
        if self.blocks.is_empty() {
            // Sorted input is packed into nodes without searching: 60,000 blocks in 2 ms instead of 6.
            self.blocks = blocks.into_iter().collect();
        } else {
            self.blocks.extend(blocks);
        }
        Ok(())
    }

    /// Makes blocks holes.
    pub(super) fn punch(&mut self, blocks: Range<u64>) {
        let end = blocks.end.min(self.dnode.max_block_id.saturating_add(1));
        if blocks.start >= end {
            return;
        }
        let staged: Vec<u64> = self.blocks.range(blocks.start..end).map(|(blkid, _)| *blkid).collect();
        for blkid in staged {
            self.blocks.remove(&blkid);
            self.ahead.remove(&blkid);
        }
        self.punched.insert(blocks.start..end);
    }

    /// Frees all blocks from `blkid` on.
    pub(super) fn truncate(&mut self, blkid: u64) {
        self.punch(blkid..u64::MAX);
        self.dnode.max_block_id = self.dnode.max_block_id.min(blkid.saturating_sub(1));
    }

    /// Changes the block size; `first` is the one block there is.
    pub(super) fn resize(&mut self, bytes: u32, first: Option<Bytes>) -> Result<(), EngineError> {
        if self.dnode.max_block_id > 0 {
            return Err(encode("the block size of an object with several blocks cannot change"));
        }
        self.dnode.data_sectors = sectors(bytes)?;
        let mut pointers = [BlkPtr::EMPTY; 3];
        for (place, pointer) in pointers.iter_mut().zip(self.dnode.blkptrs.iter()) {
            *place = *pointer;
            // A hole that remembers its birth says how large it is.
            if pointer.is_hole() && pointer.level() == 0 && pointer.birth() > 0 {
                let hole = BlkPtr::punched(bytes.into(), pointer.object_type(), 0, pointer.birth());
                *place = hole.map_err(EngineError::encode("block pointer"))?;
            }
        }
        let count = self.dnode.blkptrs.len();
        self.dnode.blkptrs = BlkPtrs::new(&pointers[..count]).map_err(EngineError::encode("dnode"))?;
        self.resized = true;
        self.blocks.clear();
        self.ahead.clear();
        if let Some(first) = first {
            let mut content = Vec::from(first);
            content.resize(bytes as usize, 0);
            self.put(0, content.into())?;
        }
        Ok(())
    }

    /// Makes sure that the indirect blocks to come have a legal size.
    pub(super) fn settle_indirect_shift(dnode: &mut Dnode) {
        if dnode.levels == 1 && !INDIRECT_SHIFTS.contains(&dnode.indirect_shift) {
            dnode.indirect_shift = INDIRECT_SHIFT;
        }
    }
}
