//! Blocks to devices: compress, checksum, allocate, parity, and one write per block per transaction group.
//!
//! Facts: docs/format/compression.md §2, blkptr.md, vdevs.md.

pub mod labels;

use std::sync::Arc;

use bytes::Bytes;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType};
use pool::{Bookmark, PoolIo, dmu::BlockSource};

use crate::{
    EngineError,
    alloc::Allocator,
    policy::{BlockPolicy, Traits},
};

/// A block to be written.
#[derive(Clone, Debug)]
pub struct Job {
    /// Content: `lsize` bytes.
    pub content: Bytes,
    /// How.
    pub policy: BlockPolicy,
    /// Type of its object.
    pub object_type: ObjectType,
    /// 0 data; above: indirect.
    pub level: u8,
    /// Fill count of the new pointer.
    pub fill: u64,
    /// The pointer it replaces, or [`BlkPtr::EMPTY`]. If that was born in this very transaction group and the
    /// block is metadata, its place is used again.
    pub old: BlkPtr,
    /// Which block it is, for messages.
    pub at: Bookmark,
}

/// What was written since the last [`BlockWriter::begin`], in bytes that reached devices and in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks stored (holes and embedded ones not).
    pub blocks: u64,
    /// Stored bytes, one copy.
    pub bytes: u64,
    /// Bytes sent to devices, parity and copies included.
    pub device_bytes: u64,
}

/// Writes the blocks of one transaction group after another.
#[derive(Debug)]
pub struct BlockWriter {
    /// Where blocks go.
    pub alloc: Allocator,
}

impl BlockWriter {
    /// A writer over the devices of `io`. `workers` bounds the blocks being compressed at once on other
    /// threads; 0 does all in the caller's task (simulation).
    pub fn new(_io: Arc<PoolIo>, _alloc: Allocator, _traits: Traits, _workers: usize) -> Self {
        todo!("write")
    }
    /// Uses another device tree from now on: one that was extended.
    pub fn set_io(&mut self, _io: Arc<PoolIo>) {
        todo!("write")
    }
    /// Features changed.
    pub fn set_traits(&mut self, _traits: Traits) {
        todo!("write")
    }
    /// What the pool allows.
    pub fn traits(&self) -> Traits {
        todo!("write")
    }
    /// Reads blocks, those included that wait to be written.
    pub fn source(&self) -> Arc<dyn BlockSource> {
        todo!("write")
    }
    /// Begins transaction group `txg`.
    pub fn begin(&mut self, _txg: u64) {
        todo!("write")
    }
    /// The transaction group being written.
    pub fn txg(&self) -> u64 {
        todo!("write")
    }
    /// Stores blocks and returns their pointers in order. A block of zeroes becomes a hole (unless it is data
    /// with compression off), a tiny one is embedded. Metadata waits in memory until [`finish`](Self::finish)
    /// because later passes may write it again; data is on its way to the devices when this returns.
    pub async fn write(&mut self, _jobs: Vec<Job>) -> Result<Vec<BlkPtr>, EngineError> {
        todo!("write")
    }
    /// The pointer of a block that becomes a hole: remembers its birth if the pool has `hole_birth` and the
    /// block existed.
    pub fn hole(&self, _old: &BlkPtr, _lsize: u64, _object_type: ObjectType, _level: u8) -> BlkPtr {
        todo!("write")
    }
    /// Gives back the space of a block: all copies, all members of a gang. Embedded blocks and holes have none.
    pub async fn free(&mut self, _bp: &BlkPtr) -> Result<(), EngineError> {
        todo!("write")
    }
    /// Everything written is on stable media when this returns.
    pub async fn finish(&mut self) -> Result<Written, EngineError> {
        todo!("write")
    }
}
