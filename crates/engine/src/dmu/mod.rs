//! An object set as it will be: dnodes and blocks that differ from what is on disk, and how they get there.
//!
//! Reads see every change at once. Nothing is allocated or written before [`MutSet::sync`]. After it the set is
//! clean, and stands for the state its new root pointer describes, so it can live on into the next transaction
//! group. Facts: docs/format/dmu.md.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use ondisk::{
    blkptr::BlkPtr,
    dnode::{Dnode, ObjectType},
    objset::{ObjsetPhys, ObjsetType},
};
use pool::dmu::{BlockSource, Object};

use crate::{EngineError, policy::SetPolicy, space::Deflate, write::BlockWriter};

/// Hears of every block that appears in and disappears from an object set.
///
/// A block written again in its place is neither. Holes are not reported; embedded blocks are.
pub trait Account: Send {
    /// A new block.
    fn born(&mut self, bp: &BlkPtr);
    /// A block that is no longer part of the set. Whether it can be freed is the listener's business.
    fn killed(&mut self, bp: &BlkPtr);
}

/// What a new object is to be.
#[derive(Clone, Debug)]
pub struct NewObject<'a> {
    /// Its type.
    pub object_type: ObjectType,
    /// Bytes of a data block; a multiple of 512.
    pub block_bytes: u32,
    /// log2 of an indirect block: 17 unless the object is a space map (14).
    pub indirect_shift: u8,
    /// What the bonus is; [`ObjectType::NONE`] without one.
    pub bonus_type: ObjectType,
    /// The bonus.
    pub bonus: &'a [u8],
    /// Compression of its own, 0 to inherit (sync_bplist has 2, off).
    pub compression_id: u8,
}

impl<'a> NewObject<'a> {
    /// An object of 512-byte blocks without bonus.
    #[must_use]
    pub fn of(object_type: ObjectType) -> Self {
        Self {
            object_type,
            block_bytes: 512,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: &[],
            compression_id: 0,
        }
    }
    /// With blocks of this many bytes.
    #[must_use]
    pub fn blocks(self, block_bytes: u32) -> Self {
        Self { block_bytes, ..self }
    }
    /// With a bonus.
    #[must_use]
    pub fn bonus(self, bonus_type: ObjectType, bonus: &'a [u8]) -> Self {
        Self { bonus_type, bonus, ..self }
    }
}

/// An object set that can be changed.
#[derive(Debug)]
pub struct MutSet {}

impl MutSet {
    /// The set `root` points to. `id` is its dataset's object in the MOS, 0 for the MOS.
    pub async fn open(_source: Arc<dyn BlockSource>, _id: u64, _root: BlkPtr) -> Result<Self, EngineError> {
        todo!("dmu")
    }
    /// A new, empty set.
    pub fn create(_source: Arc<dyn BlockSource>, _id: u64, _kind: ObjsetType) -> Self {
        todo!("dmu")
    }
    /// Reads through another source from now on (the device tree was extended).
    pub fn set_source(&mut self, _source: Arc<dyn BlockSource>) {
        todo!("dmu")
    }
    /// Its root block's fields (flags, log header, kind).
    pub fn phys(&self) -> &ObjsetPhys {
        todo!("dmu")
    }
    /// Changes fields of the root block (not the dnodes in it); makes the set dirty.
    pub fn phys_mut(&mut self) -> &mut ObjsetPhys {
        todo!("dmu")
    }
    /// The pointer of the last [`sync`](Self::sync), or what it was opened from.
    pub fn root(&self) -> &BlkPtr {
        todo!("dmu")
    }
    /// Something changed since the last sync.
    pub fn is_dirty(&self) -> bool {
        todo!("dmu")
    }
    /// Allocates an object with any free number.
    pub async fn allocate(&mut self, _new: NewObject<'_>) -> Result<u64, EngineError> {
        todo!("dmu")
    }
    /// Allocates the object `number`, which must be free.
    pub async fn claim(&mut self, _number: u64, _new: NewObject<'_>) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Frees an object and all its blocks.
    pub async fn free(&mut self, _number: u64) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Whether the object is allocated.
    pub async fn exists(&mut self, _number: u64) -> Result<bool, EngineError> {
        todo!("dmu")
    }
    /// Its dnode as it is now (its pointers are those of the last sync).
    pub async fn dnode(&mut self, _number: u64) -> Result<&Dnode, EngineError> {
        todo!("dmu")
    }
    /// Its bonus.
    pub async fn bonus(&mut self, _number: u64) -> Result<Vec<u8>, EngineError> {
        todo!("dmu")
    }
    /// Replaces its bonus; it may be longer than before if it fits.
    pub async fn set_bonus(&mut self, _number: u64, _bonus: &[u8]) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Changes its type (DSL objects become ZAPs when they get attributes, and back).
    pub async fn set_type(&mut self, _number: u64, _object_type: ObjectType) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Changes its block size; it must have at most one block.
    pub async fn set_block_bytes(&mut self, _number: u64, _bytes: u32) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// One data block as it is now; a hole is `None`. Its length is the object's block size.
    pub async fn block(&mut self, _number: u64, _blkid: u64) -> Result<Option<Bytes>, EngineError> {
        todo!("dmu")
    }
    /// Replaces a data block.
    pub async fn put_block(&mut self, _number: u64, _blkid: u64, _content: Bytes) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Replaces many data blocks of one object, in ascending order: the way of a volume's transaction group.
    pub async fn put_blocks(&mut self, _number: u64, _blocks: Vec<(u64, Bytes)>) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Makes blocks holes.
    pub async fn punch(&mut self, _number: u64, _blocks: Range<u64>) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Bytes of an object; holes and what lies beyond the end are zeroes.
    pub async fn read(&mut self, _number: u64, _offset: u64, _len: usize) -> Result<Vec<u8>, EngineError> {
        todo!("dmu")
    }
    /// Changes bytes of an object.
    pub async fn write(&mut self, _number: u64, _offset: u64, _data: &[u8]) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Frees all blocks from `blkid` on and lowers the highest block id.
    pub async fn truncate(&mut self, _number: u64, _blkid: u64) -> Result<(), EngineError> {
        todo!("dmu")
    }
    /// Writes everything that changed, bottom up, and returns the new root. Blocks of this set that were born in
    /// this transaction group are written again in their places (MOS, later passes).
    pub async fn sync(
        &mut self,
        _out: &mut BlockWriter,
        _policy: &SetPolicy,
        _deflate: &Deflate,
        _account: &mut dyn Account,
    ) -> Result<BlkPtr, EngineError> {
        todo!("dmu")
    }
    /// An object as of the last sync, for reading.
    pub async fn object(&mut self, _number: u64) -> Result<Object, EngineError> {
        todo!("dmu")
    }
}
