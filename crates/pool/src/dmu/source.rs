//! Where blocks come from: the pool's read path in earnest, a map in memory for hostile trees in tests.

use std::{fmt, future::Future, pin::Pin};

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;

use crate::{
    error::BlockError,
    io::{Bookmark, PoolIo},
};

/// What a [`BlockSource`] operation returns.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Turns block pointers into verified, decompressed bytes.
///
/// A hole gives zeroes; the length is the pointer's `lsize` always.
pub trait BlockSource: Send + Sync + fmt::Debug + 'static {
    /// The block if it is in memory: no wait, no I/O.
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes>;
    /// Reads one block.
    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>>;
    /// Reads many: neighbours on disk travel together. Results in the order asked for.
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>>;
}

impl BlockSource for PoolIo {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.read_cached(bp)
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(self.read_block(bp, at))
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        Box::pin(self.read_blocks(blocks))
    }
}
