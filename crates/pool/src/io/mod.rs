//! Block pointers to verified bytes.
//!
//! ```text
//!   read_block ── cache ── decompress ── read_raw ── gang ─┐
//!                                          │  each copy    │ members, recursively
//!                                          ▼               ▼
//!                          place: removed devices remapped, pieces joined
//!                                          │
//!                          device: mirror → try each · raidz → stripe · leaf → Disk
//! ```
//!
//! Nothing leaves this module that has not been compared with its checksum (except blocks written
//! with checksums off, which are not read from devices that were away then). A copy that turns out
//! wrong is counted on its device and the next one is tried: other sides of a mirror, other columns
//! of a stripe, other copies of the block. Nothing is ever written back.
//!
//! Not here: who may read (encryption keys), what the bytes mean (`dmu`). Facts:
//! docs/format/blkptr.md, checksums.md, vdevs.md §2–4.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use ::cache::mix;
use arc_swap::ArcSwap;
use bytes::Bytes;
use codec::checksum;
use disk::Disk;
use ondisk::blkptr::{BlkPtr, Dva};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    BoxFuture,
    cache::{Access, Below, BlockCache, Caching, Class, Keep, Key, Memory, Origin, Row, Uses, Warmth},
    error::{BlockError, BlockErrorKind},
    vdev::{Disks, Tree},
};

mod ahead;
mod batch;
mod content;
mod device;
mod ear;
mod every;
mod flights;
mod gang;
mod held;
pub(crate) mod join;
mod pointers;
mod read;
mod rebuild;
mod repair;
mod stripe;
mod trail;
mod wishes;

use ahead::Ahead;
pub(crate) use content::decompress;
use content::is_compressed;
pub use ear::{Ear, Wrong};
pub use every::Examined;
use flights::Flights;
pub use pointers::Pointers;
pub use repair::{How, Repair, Turn, Turns};
use trail::Trail;
use wishes::AllWishes;

/// A block that was just written.
#[derive(Clone, Debug)]
pub struct WrittenBlock {
    /// Its pointer.
    pub bp: BlkPtr,
    /// Which block it is.
    pub at: Bookmark,
    /// Its content, if it is at hand. Like the next, it may be a slice of larger memory, which is not held for long.
    pub content: Option<Bytes>,
    /// What went to the devices, if it is at hand. One of the two is.
    pub stored: Option<Bytes>,
}

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
        let Self { objset, object, level, blkid } = self;
        write!(f, "<{objset:x}:{object:x}:{level}:{blkid:x}>")
    }
}

/// Answers whether bytes are what a pointer promised.
type Check<'a> = dyn Fn(&[u8]) -> bool + Send + Sync + 'a;

/// Bytes of reads that may be under way at once in one pool. With 128 KiB blocks that is a queue of
/// 512, far more than any device profits from, and little beside a cache.
const IN_FLIGHT_BYTES: u32 = 64 << 20;
/// The unit in which they are counted (a semaphore holds 32 bits).
const IN_FLIGHT_UNIT: u32 = 4096;

/// Freed blocks that are remembered without asking whether they are in the cache.
const FREED_UNASKED: usize = 64 << 10;

/// Reads the blocks of one pool. Shared as `Arc<PoolIo>`; all methods may run concurrently. Its devices may come and
/// go meanwhile ([`set_tree`](Self::set_tree)): a read ends on those it began with.
#[derive(Debug)]
pub struct PoolIo {
    shared: Arc<Shared>,
    reader: ArcSwap<Reader>,
    ahead: Ahead,
}

/// What stays while devices come and go.
#[derive(Debug)]
pub(crate) struct Shared {
    cache: Arc<BlockCache>,
    /// Whose blocks these are to the cache, and what lies below it.
    origin: Arc<Origin>,
    wishes: AllWishes,
    salt: OnceLock<checksum::Salt>,
    /// Gang headers may be larger than 512 bytes (feature `dynamic_gang_header`).
    large_gang_headers: AtomicBool,
    /// Errors count. Off while the pool is being opened, when stale devices are not yet known.
    counting: AtomicBool,
    /// Bounds the memory of reads under way, in units of 4 KiB.
    gate: Arc<Semaphore>,
    /// Spares and cache devices that were added while the pool is open, by guid.
    auxiliaries: Mutex<Disks>,
    /// Blocks in the cache that were freed by a transaction group which is not committed yet.
    freed: Mutex<Vec<Key>>,
    /// Who wants to know what goes wrong.
    ear: OnceLock<Arc<dyn Ear>>,
    flights: Flights,
}

/// Reads blocks from one tree of devices.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    tree: Arc<Tree>,
}

impl Deref for Reader {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl PoolIo {
    /// A reader over `tree`. The salt, mappings of removed devices and dirty time logs are learnt later,
    /// by reading through it; until [`start_counting`](Self::start_counting) no error is counted.
    #[must_use]
    pub fn new(tree: Tree, cache: Arc<BlockCache>) -> Self {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            cache,
            origin: Arc::new(Origin::new(tree.guid, mix(OPENINGS.fetch_add(1, Relaxed)))),
            wishes: AllWishes::default(),
            salt: OnceLock::new(),
            large_gang_headers: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            gate: Arc::new(Semaphore::new((IN_FLIGHT_BYTES / IN_FLIGHT_UNIT) as usize)),
            auxiliaries: Mutex::default(),
            freed: Mutex::default(),
            ear: OnceLock::new(),
            flights: Flights::default(),
        });
        let reader = Reader { shared: Arc::clone(&shared), tree: Arc::new(tree) };
        Self { shared, reader: ArcSwap::from_pointee(reader), ahead: Ahead::default() }
    }

    /// Reads from other devices from now on: one came or left. Everything that is open on this pool follows.
    pub fn set_tree(&self, tree: Tree) {
        self.reader.store(Arc::new(Reader { shared: Arc::clone(&self.shared), tree: Arc::new(tree) }));
    }

    /// Tells `ear` what goes wrong from now on. Later calls change nothing.
    pub fn listen(&self, ear: Arc<dyn Ear>) {
        let _somebody_listens_already = self.shared.ear.set(ear);
    }

    /// Puts a second tier below the cache, or takes it away: it gets the blocks of this pool that leave the cache, and
    /// is asked before the devices.
    pub fn set_below(&self, below: Option<Arc<dyn Below>>) {
        self.shared.origin.set_below(below);
    }

    /// Tells of a spare or cache device that the pool gets, for the first view that lists it.
    pub fn add_auxiliary(&self, guid: u64, disk: Arc<dyn Disk>) {
        self.shared.auxiliaries.lock().insert(guid, disk);
    }

    /// A view has it, or there will be none.
    pub fn remove_auxiliary(&self, guid: u64) {
        self.shared.auxiliaries.lock().remove(&guid);
    }

    /// What [`add_auxiliary`](Self::add_auxiliary) told of.
    #[must_use]
    pub fn auxiliaries(&self) -> Disks {
        self.shared.auxiliaries.lock().clone()
    }

    /// Puts blocks that were just written into the cache: they are as good as read.
    pub fn remember(&self, written: impl IntoIterator<Item = WrittenBlock>) {
        let fresh = written.into_iter().filter_map(|WrittenBlock { bp, at, content, stored }| {
            let is_metadata = Class::of(&bp) == Class::Metadata;
            let (stored, content) = match stored {
                stored if !is_compressed(&bp) => (content.or(stored), None),
                // An indirect block is needed for the next read, data may never be.
                Some(stored) => (Some(stored), content.filter(|_| is_metadata)),
                None => (None, content),
            };
            let caching = self.shared.wishes.of(at.objset).caching;
            self.shared.fresh(&bp, at, caching, Access::Demand, (stored, content), Memory::Writer)
        });
        self.shared.cache.insert_all(fresh);
    }

    /// Takes a block out of the cache: it was freed, and nobody will ask for it.
    pub fn forget(&self, bp: &BlkPtr) {
        if let Some(key) = self.shared.key(bp) {
            self.shared.cache.forget(&[key]);
        }
    }

    /// The same for a block that is freed by the transaction group under way: whoever reads meanwhile reads the last
    /// commit, of which it is a part, and if devices go away before this one is committed the cache may be all there is.
    pub fn forget_later(&self, bp: &BlkPtr) {
        let Some(key) = self.shared.key(bp) else { return };
        // Asking costs more than remembering, unless there is much to remember: a destroyed dataset is rarely in memory.
        let mut freed = self.shared.freed.lock();
        if freed.len() < FREED_UNASKED || self.shared.cache.has(&key) {
            freed.push(key);
        }
    }

    /// The transaction group is committed, and nobody reads the state before it any more.
    pub fn forget_freed(&self) {
        let freed = std::mem::take(&mut *self.shared.freed.lock());
        self.shared.cache.forget(&freed);
    }

    /// Says which blocks of a dataset (by object number) the caches may keep from now on.
    pub fn set_caching(&self, objset: u64, caching: Caching) {
        self.shared.wishes.change(objset, |wishes| wishes.caching = caching);
    }

    /// Says which blocks of a dataset may be read ahead from now on (`prefetch`).
    pub fn set_prefetch(&self, objset: u64, prefetch: Keep) {
        self.shared.wishes.change(objset, |wishes| wishes.prefetch = prefetch);
    }

    /// Forgets what a dataset wants, which is gone: another may get its number.
    pub fn forget_wishes(&self, objset: u64) {
        self.shared.wishes.forget(objset);
    }

    /// Datasets that it was told of: those that are open, or were, and are not gone.
    #[must_use]
    pub fn told_of(&self) -> Vec<u64> {
        self.shared.wishes.told()
    }

    /// The pool's salt, if it is known.
    #[must_use]
    pub fn salt(&self) -> Option<&checksum::Salt> {
        self.shared.salt.get()
    }

    /// The devices as they are now.
    #[must_use]
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.reader.load().tree)
    }

    /// The cache it fills.
    #[must_use]
    pub fn cache(&self) -> &Arc<BlockCache> {
        &self.shared.cache
    }

    /// Sets the pool's salt, without which blocks with salted checksums cannot be verified. Later calls
    /// change nothing.
    pub fn set_salt(&self, salt: checksum::Salt) {
        let _already_known = self.shared.salt.set(salt);
    }

    /// Says whether gang headers may be larger than 512 bytes.
    pub fn set_large_gang_headers(&self, large: bool) {
        self.shared.large_gang_headers.store(large, Relaxed);
    }

    /// From here on errors are counted on the devices that cause them.
    pub fn start_counting(&self) {
        self.tree().reset_errors();
        self.shared.counting.store(true, Relaxed);
    }

    /// The block's content (lsize bytes): from the cache, or read, verified, repaired from redundancy
    /// where needed, decompressed, and cached. A hole gives zeroes (callers that care ask
    /// `bp.is_hole()` first); an embedded block its payload. Byte order inside is `bp.order()`.
    ///
    /// # Errors
    /// No copy could be read and verified, the pointer lies, or the content is ciphertext.
    pub async fn read_block(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        if let Some(found) = self.read_cached(bp) {
            return Ok(found);
        }
        self.reader.load_full().read_block(bp, at).await
    }

    /// The same for who only looks at what may be known to be damaged: nothing that goes wrong is counted or told of, and
    /// nothing is healed, so that looking again changes nothing.
    ///
    /// # Errors
    /// As [`read_block`](Self::read_block).
    pub async fn read_unblamed(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        if let Some(found) = self.read_cached(bp) {
            return Ok(found);
        }
        self.reader.load_full().read_unblamed(bp, at).await
    }

    /// As [`read_block`](Self::read_block) without the cache: for scans that touch each block once, and must touch the
    /// device.
    ///
    /// # Errors
    /// As [`read_block`](Self::read_block).
    pub async fn read_block_uncached(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.reader.load_full().read_block_uncached(bp, at).await
    }

    /// The block's content if it is in memory already: no wait, no I/O. Not counted as a miss if the
    /// pointer itself holds the content.
    #[must_use]
    pub fn read_cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.shared.find(bp, Access::Demand)
    }

    /// The same for a part of a request that looks all of it up once more if it lacks another: `uses` is to be
    /// [counted](Self::count) when all was found.
    #[must_use]
    pub fn read_cached_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Bytes> {
        self.shared.find_for(bp, Access::Demand, uses)
    }

    /// The same of an indirect block, whose pointers are wanted.
    #[must_use]
    pub fn pointers_cached(&self, bp: &BlkPtr) -> Option<Pointers> {
        self.shared.find_pointers(bp, Access::Demand)
    }

    /// The same as a part of a request, as [`read_cached_for`](Self::read_cached_for).
    #[must_use]
    pub fn pointers_cached_for(&self, bp: &BlkPtr, uses: &mut Uses) -> Option<Pointers> {
        self.shared.find_pointers_for(bp, Access::Demand, uses)
    }

    /// The same for several blocks, if all of them are.
    #[must_use]
    pub fn read_all_cached(&self, pointers: &[BlkPtr], uses: &mut Uses) -> Option<Row<Bytes>> {
        self.shared.find_all(pointers, Access::Demand, uses)
    }

    /// The same for blocks of different requests: each that is, with a place in `uses` for each.
    #[must_use]
    pub fn read_each_cached(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Bytes>> {
        self.shared.find_each(pointers, Access::Demand, uses)
    }

    /// The pointers of indirect blocks of different requests, each that is in memory, likewise.
    #[must_use]
    pub fn each_pointers_cached(&self, pointers: &[BlkPtr], uses: &mut [Uses]) -> Row<Option<Pointers>> {
        self.shared.find_each_pointers(pointers, Access::Demand, uses)
    }

    /// Counts what was found for a request that is answered.
    pub fn count(&self, uses: &Uses) {
        self.shared.cache.count(Access::Demand, uses);
    }

    /// Gives up all that the cache has of this pool, in steps between which others get their turn: the pool is being
    /// closed, and whoever drops the last of it would do so in one go.
    pub fn leave_cache(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut place = (0, usize::MAX);
            while self.shared.cache.forget_some(&self.shared.origin, &mut place) {
                tokio::task::yield_now().await;
            }
        })
    }

    /// As [`read_cached`](Self::read_cached), for a scan that comes by once: not a use of the block.
    #[must_use]
    pub fn peek(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.shared.find(bp, Access::Prefetch)
    }

    /// The pointers of an indirect block for whoever looks around: neither a use of it nor counted.
    #[must_use]
    pub fn glance(&self, bp: &BlkPtr) -> Option<Pointers> {
        let key = self.shared.key(bp)?;
        self.shared.pointers(bp, &key, Access::Prefetch, self.shared.cache.glance(&key))
    }

    /// Whether the block is in memory. Not a use of it.
    #[must_use]
    pub fn is_cached(&self, bp: &BlkPtr) -> bool {
        self.shared.key(bp).is_some_and(|key| self.shared.cache.has(&key))
    }

    /// How the block is in memory, if it is. Not a use of it.
    #[must_use]
    pub fn warmth(&self, bp: &BlkPtr) -> Option<Warmth> {
        self.shared.key(bp).and_then(|key| self.shared.cache.warmth(&key))
    }

    /// Whether these stored bytes are the block's, by its checksum.
    #[must_use]
    pub fn is_right(&self, bp: &BlkPtr, raw: &[u8]) -> bool {
        raw.len() as u64 == bp.psize() && self.reader.load().is_right(bp, raw)
    }

    /// Puts stored bytes, which were verified, into the cache, because somebody had asked for them before.
    pub fn admit(&self, bp: &BlkPtr, at: Bookmark, raw: Bytes) {
        self.shared.keep(bp, at, Access::Demand, Some(raw), None, Memory::Warmed);
    }

    /// Which caches a dataset (by object number) wants its blocks to be in.
    #[must_use]
    pub fn caching(&self, objset: u64) -> Caching {
        self.shared.wishes.of(objset).caching
    }

    /// Whether a dataset's metadata, or its data, are worth reading ahead now: memory keeps them, and it wants that.
    #[must_use]
    pub fn reads_ahead(&self, objset: u64, metadata: bool) -> bool {
        self.shared.wishes.of(objset).ahead(metadata)
    }

    /// Bytes of blocks that may be [read ahead](Self::read_ahead) at a time, of all that is open on this pool.
    pub fn set_ahead_max(&self, bytes: u64) {
        self.ahead.set_max(bytes);
    }

    /// Reads blocks into the cache that somebody is expected to ask for. What cannot be read, or finds no
    /// [room](Self::set_ahead_max), is left to whoever does.
    pub async fn read_ahead(&self, blocks: &[(BlkPtr, Bookmark)]) {
        let bytes: u64 = blocks.iter().map(|(bp, _)| bp.lsize()).sum();
        // Before any of them is begun: who asks for one would wait for a read that waits itself.
        let Some(_room) = self.ahead.take(bytes).await else { return };
        let _under_way = self.shared.cache.count_ahead(blocks.len() as u64);
        drop(self.reader.load_full().read_batch(blocks, Some(Access::Prefetch)).await);
    }

    /// As [`read_block`](Self::read_block) for many blocks, with results in the order given: neighbours
    /// on disk travel in one transfer of up to 1 MiB, and several transfers are under way at a time.
    pub async fn read_blocks(&self, blocks: &[(BlkPtr, Bookmark)]) -> Vec<Result<Bytes, BlockError>> {
        self.reader.load_full().read_batch(blocks, Some(Access::Demand)).await
    }

    /// The same without the cache: for scans that touch each block once.
    pub async fn read_blocks_uncached(
        &self,
        blocks: &[(BlkPtr, Bookmark)],
    ) -> Vec<Result<Bytes, BlockError>> {
        self.reader.load_full().read_batch(blocks, None).await
    }

    /// The stored bytes (psize): verified, not decompressed; of encrypted blocks the ciphertext. A hole
    /// has none.
    ///
    /// # Errors
    /// No copy could be read and verified, or the pointer lies.
    pub async fn read_raw(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.reader.load_full().read_raw_along(bp, at, Trail::default()).await
    }

    /// The same for a block that may never have been written, the next one of an intent log: if it is not there
    /// nobody is to blame, and no checksum error is counted.
    ///
    /// # Errors
    /// As [`read_raw`](Self::read_raw); but if a device that was asked did not answer, it is that
    /// ([`BlockErrorKind::Device`]), whatever others gave: only who knows what all of them have may say that it was never
    /// written.
    pub async fn read_tentative(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.reader.load_full().read_raw_along(bp, at, Trail::tentative()).await
    }

    /// The space a gang block takes: every copy of its headers and members, as they were allocated. `came` goes up with each
    /// header that is read.
    ///
    /// # Errors
    /// A header cannot be read, or does not add up to the block.
    pub fn gang_extents<'a>(
        &'a self,
        bp: &'a BlkPtr,
        came: &'a AtomicUsize,
    ) -> BoxFuture<'a, Result<Vec<Dva>, BlockError>> {
        Box::pin(async move { self.reader.load_full().gang_extents(bp, came).await })
    }

    /// Reads all copies of `blocks` and verifies each. `want` says whose bytes are to be returned.
    pub async fn examine(
        &self,
        blocks: &[(BlkPtr, Bookmark)],
        want: impl Fn(usize) -> bool + Send + Sync,
    ) -> Vec<Examined> {
        self.reader.load_full().examine(blocks, &want, How::default()).await
    }

    /// The same for a scan: `how` says when it may use a leaf, and all bytes and repairs are returned.
    pub async fn examine_for_scan(&self, blocks: &[(BlkPtr, Bookmark)], how: How<'_>) -> Vec<Examined> {
        self.reader.load_full().examine(blocks, &|_| true, how).await
    }

    /// The content of stored bytes that were verified.
    ///
    /// # Errors
    /// They cannot be decompressed.
    pub fn content(&self, bp: &BlkPtr, raw: Bytes) -> Result<Bytes, BlockErrorKind> {
        decompress(bp, raw)
    }

    /// Whether a leaf that can be used now should have a part of this block and missed its transaction group: whether a
    /// resilver has to look at it.
    #[must_use]
    pub fn is_lacking(&self, bp: &BlkPtr) -> bool {
        self.reader.load().is_lacking(bp)
    }

    /// What a gang block takes on the devices, as far as its headers can be read.
    pub(crate) async fn gang_segments(&self, bp: &BlkPtr) -> Vec<(u64, u64, u64)> {
        self.reader.load_full().gang_segments(bp, 0).await
    }
}
