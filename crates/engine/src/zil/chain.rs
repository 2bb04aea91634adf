//! The chain of log blocks as memory knows it: which are on the devices, which of them are still needed.
//!
//! ```text
//!   header ─▶ block 7   ─▶ block 8    ─▶ block 9     ─▶ block 10
//!             on media     on media      on its way     the tail: has a place, nothing in it
//!             └─ freed when the transaction groups of its records are all synced; the header moves on
//! ```
//!
//! Facts: docs/format/zil.md §2, §4.

use std::collections::VecDeque;

use bytes::Bytes;
use codec::{
    checksum::{self, Checksum, embedded},
    compress,
};
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
    zil::{ChainWords, HEADER_BYTES, Header, write_chain},
};

use super::records::Filling;
use crate::{EngineError, alloc::Allocator};

/// A block of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) dva: Dva,
    /// Transaction group it was taken in.
    pub(super) birth: u64,
    /// Bytes of its place.
    pub(super) bytes: usize,
    pub(super) sequence: u64,
    /// Newest transaction group of its records; 0 while there are none.
    pub(super) max_txg: u64,
    /// It is on stable media, and all before it.
    pub(super) is_durable: bool,
    /// The space maps know it.
    pub(super) is_adopted: bool,
}

/// The chain of one dataset.
#[derive(Debug)]
pub(super) struct Chain {
    /// The two numbers that tell it from all others.
    id: [u64; 2],
    objset: u64,
    /// Oldest first; the last is the tail. Empty: there is no chain.
    blocks: VecDeque<Block>,
}

impl Chain {
    /// No chain.
    pub(super) fn none(objset: u64) -> Self {
        Self { id: [0; 2], objset, blocks: VecDeque::new() }
    }

    /// Begins one at `first`, with numbers no other has.
    pub(super) fn begin(&mut self, id: [u64; 2], dva: Dva, bytes: usize, birth: u64) {
        self.id = id;
        let first =
            Block { dva, birth, bytes, sequence: 1, max_txg: 0, is_durable: false, is_adopted: false };
        self.blocks = VecDeque::from([first]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether one of its blocks lies on this top-level device.
    pub(super) fn is_on(&self, vdev: u64) -> bool {
        self.blocks.iter().any(|block| u64::from(block.dva.vdev) == vdev)
    }

    /// The block that is to be filled next.
    pub(super) fn tail(&self) -> Option<Block> {
        self.blocks.back().copied()
    }

    /// Adds the successor of the tail, whose records are of groups up to `max_txg`. Returns the pointers to both.
    pub(super) fn append(
        &mut self,
        dva: Dva,
        bytes: usize,
        birth: u64,
        max_txg: u64,
    ) -> Result<(Block, BlkPtr), EngineError> {
        let Some(tail) = self.blocks.back_mut() else {
            return Err(EngineError::Encode { what: "intent log", detail: "it was not begun".to_owned() });
        };
        tail.max_txg = max_txg;
        let (filled, sequence) = (*tail, tail.sequence + 1);
        let next = Block { dva, birth, bytes, sequence, max_txg: 0, is_durable: false, is_adopted: false };
        self.blocks.push_back(next);
        Ok((filled, self.pointer(&next)?))
    }

    /// Takes back what was appended behind the block with this sequence, none of which was written or entered in a
    /// space map: it is the tail again.
    pub(super) fn retract(&mut self, sequence: u64) -> Vec<Dva> {
        let kept = self.blocks.partition_point(|block| block.sequence <= sequence);
        let taken = self.blocks.split_off(kept);
        if let Some(tail) = self.blocks.back_mut() {
            tail.max_txg = 0;
        }
        taken.into_iter().map(|block| block.dva).collect()
    }

    /// Blocks up to this sequence are on stable media.
    pub(super) fn durable(&mut self, sequence: u64) {
        // From the new end: a chain may have thousands, of which all but the last few are known to be.
        let unknown = self.blocks.iter_mut().rev().skip_while(|block| block.sequence > sequence);
        for block in unknown.take_while(|block| !block.is_durable) {
            block.is_durable = true;
        }
    }

    /// Whether syncing `txg` changes anything here.
    pub(super) fn is_touched_by(&self, txg: u64) -> bool {
        let enters = |block: &Block| !block.is_adopted && block.birth <= txg;
        self.blocks.iter().any(enters) || (self.blocks.len() > 1 && self.front_is_over(txg))
    }

    fn front_is_over(&self, txg: u64) -> bool {
        let over = |block: &Block| block.is_durable && block.birth <= txg && block.max_txg <= txg;
        self.blocks.front().is_some_and(over)
    }

    /// Enters what was taken up to `txg` in its space maps.
    pub(super) fn adopt(&mut self, txg: u64, alloc: &mut Allocator) -> Result<(), EngineError> {
        for block in self.blocks.iter_mut().filter(|block| !block.is_adopted && block.birth <= txg) {
            alloc.adopt(block.dva)?;
            block.is_adopted = true;
        }
        Ok(())
    }

    /// Frees the blocks at the front whose records are all of groups up to `txg`; never the tail.
    pub(super) fn advance(&mut self, txg: u64, alloc: &mut Allocator) {
        while self.blocks.len() > 1 && self.front_is_over(txg) {
            if let Some(block) = self.blocks.pop_front() {
                alloc.release(block.dva);
            }
        }
    }

    /// Whether nothing that is on stable media of it is needed once `txg` is synced.
    pub(super) fn is_needless(&self, txg: u64) -> bool {
        self.blocks.iter().all(|block| !block.is_durable || block.max_txg <= txg)
    }

    /// Frees all of it.
    pub(super) fn free(&mut self, alloc: &mut Allocator) -> Result<(), EngineError> {
        for block in self.blocks.drain(..) {
            if !block.is_adopted {
                alloc.adopt(block.dva)?;
            }
            alloc.release(block.dva);
        }
        Ok(())
    }

    /// The header that names its first block, or nothing.
    pub(super) fn header(&self) -> Result<[u8; HEADER_BYTES], EngineError> {
        let Some(front) = self.blocks.front() else { return Ok([0; HEADER_BYTES]) };
        let header = Header {
            claim_txg: 0,
            replay_seq: 0,
            log: self.pointer(front)?,
            claim_block_seq: 0,
            flags: 0,
            claim_record_seq: 0,
        };
        let bytes = header.encode(Order::Little);
        bytes
            .try_into()
            .map_err(|_| EngineError::Encode { what: "intent log header", detail: "its size".to_owned() })
    }

    fn words(&self, sequence: u64) -> ChainWords {
        ChainWords { chain: self.id, objset: self.objset, sequence }
    }

    fn pointer(&self, block: &Block) -> Result<BlkPtr, EngineError> {
        let stored = Stored {
            dvas: [block.dva, Dva::default(), Dva::default()],
            lsize: block.bytes as u64,
            psize: block.bytes as u64,
            compression_id: compress::Algorithm::Off.id(),
            checksum_id: checksum::Algorithm::Zilog2.id(),
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: block.birth,
            physical_birth: block.birth,
            fill: 0,
            checksum: self.words(block.sequence).to_words(),
        };
        BlkPtr::stored(&stored).map_err(EngineError::encode("a pointer to a log block"))
    }

    /// What a filled block needs to be sealed.
    pub(super) fn seal(&self, sequence: u64) -> Checksum {
        Checksum(self.words(sequence).to_words())
    }
}

/// The bytes of a block that names `next`; only the used part if `shorten`.
pub(super) fn seal(
    filling: Filling,
    next: &BlkPtr,
    verifier: Checksum,
    shorten: bool,
) -> Result<Bytes, EngineError> {
    let (mut buf, used) = filling.into_parts();
    let encode = EngineError::encode("a log block");
    let hashed = write_chain(&mut buf, next, used, Order::Little).map_err(encode)?;
    if shorten {
        buf.truncate(hashed);
    } else {
        buf[hashed..].fill(0);
    }
    embedded::seal(embedded::Kind::Zilog2, &mut buf, verifier, codec::Order::Little)
        .map_err(|error| EngineError::Encode { what: "a log block", detail: error.to_string() })?;
    Ok(buf.freeze())
}
