//! Where blocks come from: the pool's read path in earnest, a map in memory for hostile trees in tests.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;

use crate::{
    cache::{Caching, Followed, Keep, Row, Uses},
    error::BlockError,
    io::{Bookmark, Pointers, PoolIo},
};

/// The part of the cache's memory that may be read ahead of the readers of one volume: beside it there is room for those
/// of others, for what was read before, and for what it takes to know of it.
const AHEAD: usize = 4;

/// What a [`BlockSource`] operation returns.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Turns block pointers into verified, decompressed bytes.
///
/// A hole gives zeroes; the length is the pointer's `lsize` always.
pub trait BlockSource: Send + Sync + fmt::Debug + 'static {
    /// The block if it is in memory: no wait, no I/O.
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes>;
    /// The same for a part of a request that may lack another: its use is added to `uses`, and [counted](Self::count) when
    /// the request is answered.
    fn cached_for(&self, bp: &BlkPtr, _uses: &mut Uses) -> Option<Bytes> {
        self.cached(bp)
    }
    /// The pointers of an indirect block that is in memory.
    fn pointers(&self, bp: &BlkPtr) -> Option<Pointers> {
        self.cached(bp).map(Pointers::from)
    }
    /// The same for a part of a request, as [`cached_for`](Self::cached_for).
    fn pointers_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Pointers> {
        self.cached_for(bp, uses).map(Pointers::from)
    }
    /// Several blocks if all of them are in memory, in order; to be counted likewise.
    fn all_cached(&self, pointers: &[BlkPtr], uses: &mut Uses) -> Option<Row<Bytes>> {
        pointers.iter().map(|bp| self.cached_for(bp, uses)).collect()
    }
    /// Several blocks of different requests, in order: each that is in memory, with a place in `uses` for each.
    fn each_cached(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Bytes>> {
        pointers.iter().zip(uses).map(|(bp, uses)| self.cached_for(bp, uses)).collect()
    }
    /// The pointers of several indirect blocks of different requests, each that is in memory, likewise.
    fn each_pointers(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Pointers>> {
        pointers.iter().zip(uses).map(|(bp, uses)| self.pointers_for(bp, uses)).collect()
    }
    /// Counts what was found for a request that is answered.
    fn count(&self, _uses: &Uses) {}
    /// Reads one block.
    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>>;
    /// Reads many: neighbours on disk travel together. Results in the order asked for.
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>>;

    /// Says which blocks of a dataset (by object number) caches may keep from now on.
    fn set_caching(&self, _objset: u64, _caching: Caching) {}

    /// Says which blocks of a dataset may be read ahead from now on (`prefetch`).
    fn set_prefetch(&self, _objset: u64, _prefetch: Keep) {}

    /// Whether a dataset's metadata, or its data, are worth reading ahead now: memory keeps them, and it wants that.
    fn reads_ahead(&self, _objset: u64, _metadata: bool) -> bool {
        true
    }

    /// Bytes that what is read ahead of one volume's readers may take of memory until it is asked for.
    fn memory_ahead(&self) -> u64 {
        u64::MAX
    }

    /// Counts what a request is to the streams of its volume's readers.
    fn count_followed(&self, _followed: Followed) {}

    /// Whether a block is in memory. Not a use of it.
    fn has(&self, bp: &BlkPtr) -> bool {
        self.cached(bp).is_some()
    }

    /// Reads blocks into memory that somebody is expected to ask for.
    fn read_ahead<'a>(&'a self, blocks: &'a [(BlkPtr, Bookmark)]) -> SourceFuture<'a, ()> {
        Box::pin(async move { drop(self.read_many(blocks).await) })
    }
}

impl BlockSource for PoolIo {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.read_cached(bp)
    }

    fn pointers(&self, bp: &BlkPtr) -> Option<Pointers> {
        self.pointers_cached(bp)
    }

    fn pointers_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Pointers> {
        self.pointers_cached_for(bp, uses)
    }

    fn cached_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Bytes> {
        self.read_cached_for(bp, uses)
    }

    fn all_cached(&self, pointers: &[BlkPtr], uses: &mut Uses) -> Option<Row<Bytes>> {
        self.read_all_cached(pointers, uses)
    }

    fn each_cached(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Bytes>> {
        self.read_each_cached(pointers, uses)
    }

    fn each_pointers(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Pointers>> {
        self.each_pointers_cached(pointers, uses)
    }

    fn count(&self, uses: &Uses) {
        Self::count(self, uses);
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

    fn set_caching(&self, objset: u64, caching: Caching) {
        Self::set_caching(self, objset, caching);
    }

    fn set_prefetch(&self, objset: u64, prefetch: Keep) {
        Self::set_prefetch(self, objset, prefetch);
    }

    fn reads_ahead(&self, objset: u64, metadata: bool) -> bool {
        Self::reads_ahead(self, objset, metadata)
    }

    fn memory_ahead(&self) -> u64 {
        (self.cache().budget() / AHEAD) as u64
    }

    fn count_followed(&self, followed: Followed) {
        self.cache().count_followed(followed);
    }

    fn has(&self, bp: &BlkPtr) -> bool {
        self.is_cached(bp)
    }

    fn read_ahead<'a>(&'a self, blocks: &'a [(BlkPtr, Bookmark)]) -> SourceFuture<'a, ()> {
        Box::pin(Self::read_ahead(self, blocks))
    }
}

/// The same for who only looks: see [`PoolIo::read_unblamed`].
#[derive(Debug)]
pub struct Unblamed(pub Arc<PoolIo>);

impl BlockSource for Unblamed {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.0.read_cached(bp)
    }

    fn pointers(&self, bp: &BlkPtr) -> Option<Pointers> {
        self.0.pointers_cached(bp)
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(self.0.read_unblamed(bp, at))
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        Box::pin(async move {
            let mut contents = Vec::with_capacity(blocks.len());
            for (bp, at) in blocks {
                contents.push(self.0.read_unblamed(bp, *at).await);
            }
            contents
        })
    }
}
