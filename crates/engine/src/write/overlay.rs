//! Reading what is not on the devices yet.
//!
//! Metadata of the transaction group being written waits in memory until its end, and data is on its way for a
//! moment. Both are here, found by their first address; everything else is read from the pool.
//!
//! A reader shows the whole pointer it follows, so the old pointer of a block that was written again in its place
//! does not get the new content.

#![expect(clippy::disallowed_types, reason = "the map has a fixed hasher and is never iterated")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use pool::{
    BlockError, Bookmark, PoolIo,
    dmu::{BlockSource, SourceFuture},
};

/// The first address of a block: device and byte offset.
pub(crate) type Place = (u32, u64);

/// Of pieces that belong to no block in the overlay.
pub(crate) const NOWHERE: Place = (u32::MAX, u64::MAX);

/// Where a block is found; `None` for holes and embedded blocks.
pub(crate) fn place_of(bp: &BlkPtr) -> Option<Place> {
    bp.dvas().next().map(|dva| (dva.vdev, dva.offset))
}

#[derive(Debug)]
struct Waiting {
    bp: BlkPtr,
    content: Bytes,
    /// Pieces that are not on their devices yet.
    pieces: u32,
}

/// See the module. Shared by the writer and everybody who reads what it wrote.
#[derive(Debug)]
pub(crate) struct Overlay {
    io: Arc<PoolIo>,
    /// The transaction group being written: only its blocks can be here.
    txg: AtomicU64,
    waiting: Mutex<HashMap<Place, Waiting, BuildHasherDefault<PlaceHasher>>>,
}

impl Overlay {
    pub(crate) fn new(io: Arc<PoolIo>) -> Self {
        Self { io, txg: AtomicU64::new(0), waiting: Mutex::default() }
    }

    pub(crate) fn begin(&self, txg: u64) {
        self.txg.store(txg, Relaxed);
        self.clear();
    }

    /// Remembers a block until it was written in `pieces` pieces.
    pub(crate) fn insert(&self, bp: BlkPtr, content: Bytes, pieces: u32) {
        if let Some(place) = place_of(&bp).filter(|_| pieces > 0) {
            self.waiting.lock().insert(place, Waiting { bp, content, pieces });
        }
    }

    pub(crate) fn remove(&self, place: Place) {
        self.waiting.lock().remove(&place);
    }

    /// One piece of each of these blocks is on its device, or never will be.
    pub(crate) fn written(&self, places: &[Place]) {
        let mut waiting = self.waiting.lock();
        for place in places {
            let Some(block) = waiting.get_mut(place) else { continue };
            block.pieces -= 1;
            if block.pieces == 0 {
                waiting.remove(place);
            }
        }
    }

    pub(crate) fn clear(&self) {
        self.waiting.lock().clear();
    }

    fn get(&self, bp: &BlkPtr) -> Option<Bytes> {
        if bp.physical_birth() != self.txg.load(Relaxed) {
            return None;
        }
        let place = place_of(bp)?;
        self.waiting.lock().get(&place).filter(|block| block.bp == *bp).map(|block| block.content.clone())
    }
}

impl BlockSource for Overlay {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.get(bp).or_else(|| self.io.read_cached(bp))
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(async move {
            match self.get(bp) {
                Some(content) => Ok(content),
                None => Arc::clone(&self.io).read_block(bp, at).await,
            }
        })
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        Box::pin(async move {
            let io = Arc::clone(&self.io);
            let here: Vec<Option<Bytes>> = blocks.iter().map(|(bp, _)| self.get(bp)).collect();
            if here.iter().all(Option::is_none) {
                return io.read_blocks(blocks).await;
            }
            let elsewhere: Vec<(BlkPtr, Bookmark)> = blocks
                .iter()
                .zip(&here)
                .filter(|(_, here)| here.is_none())
                .map(|(block, _)| *block)
                .collect();
            let mut read = io.read_blocks(&elsewhere).await.into_iter();
            here.into_iter()
                .map(|here| match here {
                    Some(content) => Ok(content),
                    None => read.next().expect("one answer for each block asked for"),
                })
                .collect()
        })
    }
}

/// Spreads device and offset. Not keyed: nobody but the allocator chooses them.
#[derive(Debug, Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        // The map takes its buckets from the low bits, which a product leaves poor.
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
