//! Reading what is not on the devices yet.
//!
//! Metadata of the transaction group being written waits in memory until its end, and data is on its way for a
//! moment. Both are here, found by their first address; everything else is read from the pool.
//!
//! Reading for a transaction group does not fail because devices are away, or do not answer: it waits
//! ([`crate::suspend`]). What healthy devices refuse, or give wrongly, is an error at once.
//!
//! Clients read what is committed through one of their own, in which nothing waits to be written, and by the same rules,
//! whether or not their volume was written to since the import: a device that is back in a moment costs them a moment. But with
//! `failmode=continue` what is on devices that are away is an error of that read, at once, and the pool goes on.
//!
//! A reader shows the whole pointer it follows, so the old pointer of a block that was written again in its place
//! does not get the new content.

#![expect(clippy::disallowed_types, reason = "the map has a fixed hasher and is never iterated")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use codec::compress;
use futures_util::future::join_all;
use ondisk::blkptr::{BlkPtr, Dva};
use parking_lot::Mutex;
use pool::{
    BlockError, Bookmark, Pointers, PoolIo,
    cache::{Caching, Row, Uses},
    dmu::{BlockSource, SourceFuture},
    error::{BlockErrorKind, Evidence},
    vdev::{Vdev, deadline},
};

use crate::{
    devices::{Absent, answers, comings_and_goings, tops},
    suspend::{Suspension, may_pass},
};

/// Where a gang block is: every copy of its headers and members, and within, why a header cannot be read although devices are
/// there. The outer error says that devices are away, and nobody could help, or the pool was given up.
pub(crate) type Parts = Result<Result<Vec<Dva>, BlockError>, BlockError>;

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
    held: Held,
    /// Pieces that are not on their devices yet.
    pieces: u32,
}

/// A block in memory.
#[derive(Clone, Debug)]
enum Held {
    Content(Bytes),
    /// As it goes to the devices, compressed.
    Stored(Bytes),
}

/// See the module. Shared by the writer and everybody who reads what it wrote.
#[derive(Debug)]
pub(crate) struct Overlay {
    io: Arc<PoolIo>,
    suspension: Arc<Suspension>,
    /// Reads are clients', and fail where the pool lets those fail.
    for_clients: bool,
    /// The transaction group whose blocks are here; 0 when there can be none.
    txg: AtomicU64,
    /// Headers of gangs that were read.
    headers: AtomicUsize,
    waiting: Mutex<HashMap<Place, Waiting, BuildHasherDefault<PlaceHasher>>>,
}

impl Overlay {
    pub(crate) fn new(io: Arc<PoolIo>, suspension: Arc<Suspension>) -> Self {
        Self {
            io,
            suspension,
            for_clients: false,
            txg: AtomicU64::new(0),
            headers: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }
    }

    /// What clients read through: only what is committed.
    pub(crate) fn for_clients(io: Arc<PoolIo>, suspension: Arc<Suspension>) -> Self {
        Self { for_clients: true, ..Self::new(io, suspension) }
    }

    /// Whether who reads here waits for devices that are away.
    fn waits(&self) -> bool {
        !(self.for_clients && self.suspension.lets_reads_fail())
    }

    /// Whether a block that could not be read is on devices that are away, just now, and on too few others.
    async fn is_cut_off(&self, bp: &BlkPtr) -> bool {
        let tree = self.io.tree();
        for top in tops(&tree, bp) {
            if !top.is_readable() {
                return true;
            }
            // Its state may not have been noticed yet.
            for leaf in top.leaves().into_iter().filter(|leaf| leaf.is_readable()) {
                let Some(disk) = leaf.leaf.as_ref().and_then(|leaf| leaf.timed()) else { continue };
                if !answers(&disk).await {
                    return true;
                }
            }
        }
        // What is left of them may be readable and lack it.
        Absent::default().hides(&tree, bp)
    }

    /// Whether a block that is wrong on the devices there are may be right on one that left.
    async fn is_elsewhere(&self, bp: &BlkPtr) -> bool {
        let tree = self.io.tree();
        Absent::ask(&tree).await.may_have(&tree, bp)
    }

    /// Reads from the pool.
    async fn read_patiently(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        let read = || deadline::within(self.io.read_block(bp, at), deadline::WRITE);
        self.patiently(bp, at, false, read).await.unwrap_or_else(Err)
    }

    /// The space a gang block takes. With `waits_for_better` a header that is wrong is waited for as well, while it may be
    /// right on a device that left.
    pub(super) async fn gang_extents(&self, bp: &BlkPtr, waits_for_better: bool) -> Parts {
        self.patiently(bp, Bookmark::default(), waits_for_better, || self.extents_in_time(bp)).await
    }

    /// The same of several, side by side.
    pub(super) async fn all_gang_extents(&self, blocks: &[BlkPtr], waits_for_better: bool) -> Vec<Parts> {
        join_all(blocks.iter().map(|bp| self.gang_extents(bp, waits_for_better))).await
    }

    /// The same of one, once. None if devices do not answer: for that long no header came, of this gang or of those beside it.
    /// A gang may have hundreds, and a disk that is busy with them all does answer.
    async fn extents_in_time(&self, bp: &BlkPtr) -> Option<Result<Vec<Dva>, BlockError>> {
        let mut reading = self.io.gang_extents(bp, &self.headers);
        loop {
            let before = self.headers_read();
            match deadline::within(&mut reading, deadline::WRITE).await {
                None if self.headers_read() != before => {}
                told => return told,
            }
        }
    }

    /// How many headers of gangs were read since the pool was opened.
    pub(super) fn headers_read(&self) -> usize {
        self.headers.load(Relaxed)
    }

    /// Reads something of a block; waits while too few devices are there. `read` says nothing where they do not answer. The
    /// outer error says that this had no end.
    async fn patiently<T, F: Future<Output = Option<Result<T, BlockError>>>>(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        waits_for_better: bool,
        read: impl Fn() -> F,
    ) -> Result<Result<T, BlockError>, BlockError> {
        loop {
            let before = self.suspension.before();
            let stood = comings_and_goings(&self.io.tree());
            let waits = self.waits();
            let error = match read().await {
                Some(Err(error)) => {
                    let may_pass = may_pass(&error);
                    let is_wrong = *error.kind() == BlockErrorKind::Checksum;
                    // Where nobody could help it is as good as lost.
                    let may_be_right = waits_for_better && is_wrong && self.suspension.is_patient();
                    let is_away = may_pass && self.is_cut_off(bp).await;
                    let is_hopeful = match may_pass {
                        true => waits && is_away,
                        false => may_be_right && self.is_elsewhere(bp).await,
                    };
                    // One that has it came back while the others were asked.
                    let is_back = (may_pass || may_be_right) && comings_and_goings(&self.io.tree()) != stood;
                    match (is_hopeful, is_back) {
                        (true, _) => error,
                        (false, true) => continue,
                        (false, false) => return Ok(Err(if is_away { error.away() } else { error })),
                    }
                }
                Some(found) => return Ok(found),
                None if !waits => return Ok(Err(self.unanswered(bp, at).away())),
                None => self.unanswered(bp, at),
            };
            if self.suspension.wait(before, error.clone().into()).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Nobody but devices that do not answer has the block.
    fn unanswered(&self, bp: &BlkPtr, at: Bookmark) -> BlockError {
        let tree = self.io.tree();
        let leaves = tops(&tree, bp).flat_map(Vdev::leaves);
        let silent = leaves
            .filter(|vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.deadline().is_silent()));
        let evidence = silent.map(|vdev| Evidence {
            device: vdev.path.clone().unwrap_or_else(|| vdev.display_name()),
            offset: 0,
            fault: "it does not answer".to_owned(),
        });
        BlockError::new(BlockErrorKind::Device, bp, Some(at), evidence.collect())
    }

    /// Remembers a block of the transaction group being written until it was written in `pieces` pieces.
    pub(crate) fn insert(&self, bp: BlkPtr, content: Bytes, pieces: u32) {
        if let Some(place) = place_of(&bp).filter(|_| pieces > 0) {
            self.txg.store(bp.physical_birth(), Relaxed);
            self.waiting.lock().insert(place, Waiting { bp, held: Held::Content(content), pieces });
        }
    }

    /// The same for one that waits for the end of the transaction group, and whose content nobody holds.
    pub(crate) fn insert_stored(&self, bp: BlkPtr, data: Bytes) {
        if let Some(place) = place_of(&bp) {
            self.txg.store(bp.physical_birth(), Relaxed);
            self.waiting.lock().insert(place, Waiting { bp, held: Held::Stored(data), pieces: u32::MAX });
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
        // Who reads what was committed last must not look here for each block.
        self.txg.store(0, Relaxed);
    }

    /// Whether the block can be here.
    pub(super) fn may_have(&self, bp: &BlkPtr) -> bool {
        bp.physical_birth() == self.txg.load(Relaxed)
    }

    fn held(&self, bp: &BlkPtr) -> Option<Held> {
        if !self.may_have(bp) {
            return None;
        }
        let place = place_of(bp)?;
        self.waiting.lock().get(&place).filter(|block| block.bp == *bp).map(|block| block.held.clone())
    }

    fn get(&self, bp: &BlkPtr) -> Option<Bytes> {
        match self.held(bp)? {
            Held::Content(content) => Some(content),
            Held::Stored(data) => content_of(bp, &data),
        }
    }
}

/// The content of what this very transaction group compressed.
fn content_of(bp: &BlkPtr, data: &[u8]) -> Option<Bytes> {
    let algorithm = compress::Algorithm::from_id(bp.compression_id())?;
    let mut content = vec![0; usize::try_from(bp.lsize()).ok()?];
    compress::decompress(algorithm, data, &mut content).ok()?;
    Some(content.into())
}

impl BlockSource for Overlay {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.get(bp).or_else(|| self.io.read_cached(bp))
    }

    fn cached_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Bytes> {
        self.get(bp).or_else(|| self.io.read_cached_for(bp, uses))
    }

    fn pointers(&self, bp: &BlkPtr) -> Option<Pointers> {
        self.get(bp).map(Pointers::from).or_else(|| self.io.pointers_cached(bp))
    }

    fn pointers_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Pointers> {
        self.get(bp).map(Pointers::from).or_else(|| self.io.pointers_cached_for(bp, uses))
    }

    fn all_cached(&self, pointers: &[BlkPtr], uses: &mut Uses) -> Option<Row<Bytes>> {
        // Clients read what is committed: nothing of it waits here.
        if !pointers.iter().any(|bp| self.may_have(bp)) {
            return self.io.read_all_cached(pointers, uses);
        }
        pointers.iter().map(|bp| self.cached_for(bp, uses)).collect()
    }

    fn each_cached(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Bytes>> {
        if !pointers.iter().any(|bp| self.may_have(bp)) {
            return self.io.read_each_cached(pointers, uses);
        }
        pointers.iter().zip(uses).map(|(bp, uses)| self.cached_for(bp, uses)).collect()
    }

    fn each_pointers(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Pointers>> {
        if !pointers.iter().any(|bp| self.may_have(bp)) {
            return self.io.each_pointers_cached(pointers, uses);
        }
        pointers.iter().zip(uses).map(|(bp, uses)| self.pointers_for(bp, uses)).collect()
    }

    fn count(&self, uses: &Uses) {
        self.io.count(uses);
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(async move {
            match self.get(bp) {
                Some(content) => Ok(content),
                None => self.read_patiently(bp, at).await,
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
            let elsewhere: Vec<(BlkPtr, Bookmark)> = blocks
                .iter()
                .zip(&here)
                .filter(|(_, here)| here.is_none())
                .map(|(block, _)| *block)
                .collect();
            let read = deadline::within(io.read_blocks(&elsewhere), deadline::WRITE).await;
            let unanswered = || elsewhere.iter().map(|(bp, at)| Err(self.unanswered(bp, *at))).collect();
            let mut read: Vec<Result<Bytes, BlockError>> = read.unwrap_or_else(unanswered);
            for (answer, (bp, at)) in read.iter_mut().zip(&elsewhere) {
                if answer.as_ref().is_err_and(may_pass) {
                    *answer = self.read_patiently(bp, *at).await;
                }
            }
            let mut read = read.into_iter();
            here.into_iter()
                .map(|here| match here {
                    Some(content) => Ok(content),
                    None => read.next().expect("one answer for each block asked for"),
                })
                .collect()
        })
    }

    fn set_caching(&self, objset: u64, caching: Caching) {
        self.io.set_caching(objset, caching);
    }

    fn has(&self, bp: &BlkPtr) -> bool {
        self.held(bp).is_some() || self.io.is_cached(bp)
    }

    fn read_ahead<'a>(&'a self, blocks: &'a [(BlkPtr, Bookmark)]) -> SourceFuture<'a, ()> {
        Box::pin(async move {
            let elsewhere: Vec<(BlkPtr, Bookmark)> =
                blocks.iter().filter(|(bp, _)| self.held(bp).is_none()).copied().collect();
            self.io.read_ahead(&elsewhere).await;
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
