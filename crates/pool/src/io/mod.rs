//! Block pointers to verified bytes.
use std::fmt;

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;

use crate::error::BlockError;

/// Which block of the pool something is about: `zbookmark` to OpenZFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// Object number of the dataset in the MOS; 0 is the MOS itself.
    pub objset: u64,
    /// Object in the set; 0 is the meta dnode.
    pub object: u64,
    /// 0 data, above: indirect; -1 the object set block, -2 a block of the intent log.
    pub level: i64,
    /// Block number at that level.
    pub blkid: u64,
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{:x}:{:x}:{:x}:{:x}>", self.objset, self.object, self.level, self.blkid)
    }
}

/// Reads the blocks of one pool. Shared: `Arc<PoolIo>`.
#[derive(Debug)]
pub struct PoolIo {}

impl PoolIo {
    /// The block's content (lsize bytes): from the cache, or read, verified, repaired from redundancy
    /// where needed, decompressed, and cached. A hole gives zeroes (callers that care ask
    /// `bp.is_hole()` first); an embedded block its payload. Byte order inside is `bp.order()`.
    pub async fn read_block(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        let _ = (bp, at);
        unreachable!()
    }
    /// The same without caching: for scans that touch each block once.
    pub async fn read_block_uncached(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        let _ = (bp, at);
        unreachable!()
    }
    /// The block's content if it is in memory already: no wait, no I/O.
    pub fn read_cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        let _ = bp;
        None
    }
    /// The stored bytes (psize): verified, not decompressed. Ciphertext of encrypted blocks too.
    pub async fn read_raw(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        let _ = (bp, at);
        unreachable!()
    }
    /// As `read_block` for many at once, in the order given: neighbours on disk travel in one
    /// transfer of up to 1 MiB, and several transfers are under way at a time.
    pub async fn read_blocks(&self, blocks: &[(BlkPtr, Bookmark)]) -> Vec<Result<Bytes, BlockError>> {
        let _ = blocks;
        Vec::new()
    }
}
