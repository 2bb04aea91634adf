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
//! with checksums off, which promise nothing). A copy that turns out wrong is counted on its device
//! and the next one is tried: other sides of a mirror, other columns of a stripe, other copies of the
//! block. Nothing is ever written back.
//!
//! Not here: who may read (encryption keys), what the bytes mean (`dmu`). Facts:
//! docs/format/blkptr.md, checksums.md, vdevs.md §2–4.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use codec::{
    checksum::{self, Checksum, Form, embedded},
    compress,
};
use disk::Disk;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, EmbeddedKind},
    dnode::ObjectType,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    cache::{
        Access, Below, BelowFuture, BlockCache, Caching, Class, EXACT_BELOW, Found, Fresh, Keep, Key, Memory,
        Origin, Row, Uses, Warmth, Wishes, is_servable, mix,
    },
    error::{BlockError, BlockErrorKind},
    vdev::{Disks, Tree},
};

mod batch;
mod device;
mod ear;
mod every;
mod flights;
mod gang;
pub(crate) mod join;
mod repair;
mod stripe;
mod trail;

pub use ear::{Ear, Wrong};
pub use every::Examined;
use flights::{Flights, Followed, Following, Turn as Flight, follow};
pub use repair::{How, Repair, Turn, Turns};
use trail::{Guilty, Trail};

/// A block that was just written.
#[derive(Clone, Debug)]
pub struct WrittenBlock {
    /// Its pointer.
    pub bp: BlkPtr,
    /// Which block it is.
    pub at: Bookmark,
    /// Its content. Like the next, it may be a slice of larger memory, which is not held for long.
    pub content: Bytes,
    /// What went to the devices, if it is at hand.
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
}

/// What stays while devices come and go.
#[derive(Debug)]
pub(crate) struct Shared {
    cache: Arc<BlockCache>,
    /// Whose blocks these are to the cache, and what lies below it.
    origin: Arc<Origin>,
    /// Datasets that do not want everything cached and read ahead, by object number.
    wishes: ArcSwap<BTreeMap<u64, Wishes>>,
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
            wishes: ArcSwap::default(),
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
        Self { shared, reader: ArcSwap::from_pointee(reader) }
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

    /// Tells of a spare or cache device that the pool gets, for later views of it.
    pub fn add_auxiliary(&self, guid: u64, disk: Arc<dyn Disk>) {
        self.shared.auxiliaries.lock().insert(guid, disk);
    }

    /// A spare or cache device left the pool.
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
        let wishes = self.shared.wishes.load();
        let fresh = written.into_iter().filter_map(|WrittenBlock { bp, at, content, stored }| {
            let is_metadata = Class::of(&bp) == Class::Metadata;
            let (stored, content) = match stored {
                _ if !is_compressed(&bp) => (Some(content), None),
                // An indirect block is needed for the next read, data may never be.
                Some(stored) => (Some(stored), is_metadata.then_some(content)),
                None => (None, Some(content)),
            };
            let caching = wishes.get(&at.objset).copied().unwrap_or_default().caching;
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
        self.wish(objset, |wishes| wishes.caching = caching);
    }

    /// Says which blocks of a dataset may be read ahead from now on (`prefetch`).
    pub fn set_prefetch(&self, objset: u64, prefetch: Keep) {
        self.wish(objset, |wishes| wishes.prefetch = prefetch);
    }

    fn wish(&self, objset: u64, change: impl Fn(&mut Wishes)) {
        self.shared.wishes.rcu(|before| {
            let mut all = BTreeMap::clone(before);
            let mut wishes = all.remove(&objset).unwrap_or_default();
            change(&mut wishes);
            // Also if it wants nothing special: it is open, and may some day.
            all.insert(objset, wishes);
            all
        });
    }

    /// Forgets what a dataset wants, which is gone: another may get its number.
    pub fn forget_wishes(&self, objset: u64) {
        if self.shared.wishes.load().contains_key(&objset) {
            self.shared.wishes.rcu(|before| {
                let mut all = BTreeMap::clone(before);
                all.remove(&objset);
                all
            });
        }
    }

    /// Datasets that it was told of: those that are open, or were, and are not gone.
    #[must_use]
    pub fn told_of(&self) -> Vec<u64> {
        self.shared.wishes.load().keys().copied().collect()
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

    /// The same without the cache: for scans that touch each block once, and must touch the device.
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

    /// Counts what was found for a request that is answered.
    pub fn count(&self, uses: &Uses) {
        self.shared.cache.count(Access::Demand, uses);
    }

    /// Gives up all that the cache has of this pool, in steps between which others get their turn: the pool is being
    /// closed, and whoever drops the last of it would do so in one go.
    pub async fn leave_cache(&self) {
        let mut place = (0, usize::MAX);
        while self.shared.cache.forget_some(&self.shared.origin, &mut place) {
            tokio::task::yield_now().await;
        }
    }

    /// As [`read_cached`](Self::read_cached), for a scan that comes by once: not a use of the block.
    #[must_use]
    pub fn peek(&self, bp: &BlkPtr) -> Option<Bytes> {
        self.shared.find(bp, Access::Prefetch)
    }

    /// As [`peek`](Self::peek), for whoever looks around: not even counted.
    #[must_use]
    pub fn glance(&self, bp: &BlkPtr) -> Option<Bytes> {
        match self.shared.cache.glance(&self.shared.key(bp)?) {
            Found::Content(content) => Some(content),
            Found::Stored(raw) => decompress(bp, raw).ok(),
            Found::Nothing => None,
        }
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

    /// Puts stored bytes, which were verified, into the cache, because somebody had asked for them before.
    pub fn admit(&self, bp: &BlkPtr, at: Bookmark, raw: Bytes) {
        self.shared.keep(bp, at, Access::Demand, Some(raw), None, Memory::Foreign);
    }

    /// Which caches a dataset (by object number) wants its blocks to be in.
    #[must_use]
    pub fn caching(&self, objset: u64) -> Caching {
        self.shared.wishes(objset).caching
    }

    /// Whether a dataset's metadata, or its data, are worth reading ahead now: memory keeps them, and it wants that.
    #[must_use]
    pub fn reads_ahead(&self, objset: u64, metadata: bool) -> bool {
        self.shared.wishes(objset).ahead(metadata)
    }

    /// Reads blocks into the cache that somebody is expected to ask for. What cannot be read is left to whoever does.
    pub async fn read_ahead(&self, blocks: &[(BlkPtr, Bookmark)]) {
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
    /// As [`read_raw`](Self::read_raw).
    pub async fn read_tentative(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.reader.load_full().read_raw_along(bp, at, Trail::tentative()).await
    }

    /// The space a gang block takes: every copy of its headers and members, as they were allocated.
    ///
    /// # Errors
    /// A header cannot be read, or does not add up to the block.
    pub async fn gang_extents(&self, bp: &BlkPtr) -> Result<Vec<Dva>, BlockError> {
        self.reader.load_full().gang_extents(bp).await
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

impl Shared {
    fn counts(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// What the content is cached under; `None` for what needs no device.
    fn key(&self, bp: &BlkPtr) -> Option<Key> {
        Key::of(bp, &self.origin)
    }

    /// The content, if it is in memory, in whatever form.
    fn find(&self, bp: &BlkPtr, access: Access) -> Option<Bytes> {
        let key = self.key(bp)?;
        self.content(bp, &key, access, self.cache.find(&key, access))
    }

    /// The same, to be counted later.
    fn find_for(&self, bp: &BlkPtr, access: Access, uses: &mut Uses) -> Option<Bytes> {
        let key = self.key(bp)?;
        self.content(bp, &key, access, self.cache.find_for(&key, access, uses))
    }

    /// The same for several, if all of them are.
    fn find_all(&self, pointers: &[BlkPtr], access: Access, uses: &mut Uses) -> Option<Row<Bytes>> {
        let keys = pointers.iter().map(|bp| self.key(bp)).collect::<Option<Row<Key>>>()?;
        let found = self.cache.find_all(&keys, access, uses)?.into_iter();
        let blocks = pointers.iter().zip(&keys).zip(found);
        blocks.map(|((bp, key), found)| self.content(bp, key, access, found)).collect()
    }

    /// The same for several, each that is.
    fn find_each(&self, pointers: &[BlkPtr], access: Access, uses: &mut [Uses]) -> Row<Option<Bytes>> {
        let Some(keys) = pointers.iter().map(|bp| self.key(bp)).collect::<Option<Row<Key>>>() else {
            let each = pointers.iter().zip(uses);
            return each.map(|(bp, uses)| self.find_for(bp, access, uses)).collect();
        };
        let mut contents: Row<Option<Bytes>> = Row::with_capacity(keys.len());
        for ((bp, key), found) in pointers.iter().zip(&keys).zip(self.cache.find_each(&keys, access, uses)) {
            // Of several reads of one compressed block the first decompresses it.
            let before = match found {
                Found::Stored(_) => keys[..contents.len()].iter().position(|before| before == key),
                Found::Content(_) | Found::Nothing => None,
            };
            let known = before.and_then(|before| contents[before].clone());
            contents.push(known.or_else(|| self.content(bp, key, access, found)));
        }
        contents
    }

    fn content(&self, bp: &BlkPtr, key: &Key, access: Access, found: Found) -> Option<Bytes> {
        match found {
            Found::Content(content) => Some(content),
            Found::Stored(raw) => {
                // It was verified when it came in.
                let content = decompress(bp, raw).ok()?;
                if access == Access::Demand {
                    self.cache.warm(key, Class::of(bp), content.clone());
                }
                Some(content)
            }
            Found::Nothing => None,
        }
    }

    fn wishes(&self, objset: u64) -> Wishes {
        self.wishes.load().get(&objset).copied().unwrap_or_default()
    }

    /// Puts a verified block into the cache, if its dataset wants that.
    fn keep(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        stored: Option<Bytes>,
        content: Option<Bytes>,
        memory: Memory<'_>,
    ) {
        let caching = self.wishes(at.objset).caching;
        if let Some(fresh) = self.fresh(bp, at, caching, access, (stored, content), memory) {
            self.cache.insert(fresh);
        }
    }

    /// A block for the cache, if its dataset wants that.
    fn fresh<'a>(
        &'a self,
        bp: &BlkPtr,
        at: Bookmark,
        caching: Caching,
        access: Access,
        (stored, content): (Option<Bytes>, Option<Bytes>),
        memory: Memory<'a>,
    ) -> Option<Fresh<'a>> {
        let class = Class::of(bp);
        let is_metadata = class == Class::Metadata;
        caching.primary.wants(is_metadata).then_some(())?;
        Some(Fresh {
            key: self.key(bp)?,
            origin: &self.origin,
            class,
            // A block has at most 16 MiB.
            lsize: bp.lsize() as u32,
            compress: bp.compression_id(),
            is_compressed: is_compressed(bp),
            level: bp.level(),
            objset: at.objset,
            access,
            is_eligible: caching.secondary.wants(is_metadata) && is_servable(bp),
            stored,
            content,
            memory,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody else can ask for them: the next opening has another salt.
        self.cache.forget_all(&self.origin);
    }
}

impl Reader {
    async fn read_block(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.read_missing(bp, at, Access::Demand).await
    }

    /// Reads a block that is not in the cache, and puts it there; or waits for somebody who is doing that.
    async fn read_missing(&self, bp: &BlkPtr, at: Bookmark, access: Access) -> Result<Bytes, BlockError> {
        let Some(key) = self.key(bp) else { return self.read_now(bp, at, access, None).await };
        loop {
            match self.flights.join(key) {
                Flight::Lead(lead) => {
                    // Another's read may have landed since the cache was asked.
                    if let Some(found) = self.cache.has(&key).then(|| self.find(bp, access)).flatten() {
                        return Ok(found);
                    }
                    let answer = self.read_now(bp, at, access, self.ask_below(bp)).await;
                    lead.landed(&answer);
                    return answer;
                }
                Flight::Follow(following) => {
                    if let Some(answer) = self.read_following(bp, at, access, following).await {
                        return answer;
                    }
                }
            }
        }
    }

    /// What another's read comes to, or one's own if that takes too long. None: it was given up.
    async fn read_following(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        following: Following,
    ) -> Option<Result<Bytes, BlockError>> {
        match follow(following).await {
            Followed::Answer(answer) => {
                self.cache.count_wait(access, Class::of(bp));
                Some(answer)
            }
            Followed::Gone => None,
            Followed::Late => Some(self.read_now(bp, at, access, self.ask_below(bp)).await),
        }
    }

    /// Reads a block from the second tier, if that has an `answer`, or from the devices, and puts it into the cache.
    async fn read_now(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        answer: Option<BelowFuture>,
    ) -> Result<Bytes, BlockError> {
        if bp.is_hole() {
            return Ok(zeroes(bp.lsize()));
        }
        self.readable(bp, at)?;
        if !bp.is_embedded() {
            self.cache.count_miss(access, Class::of(bp));
        }
        if let Some(answer) = answer
            && let Some((raw, content)) = self.read_below(bp, answer).await
        {
            self.keep_read(bp, at, access, raw, &content, Memory::Foreign);
            return Ok(content);
        }
        let trail = Trail::default().ahead(access == Access::Prefetch);
        let raw = self.read_raw_along(bp, at, trail).await?;
        let content = self.content(bp, at, &raw)?;
        self.keep_read(bp, at, access, raw, &content, Memory::Own);
        Ok(content)
    }

    /// Puts what was read into the cache.
    fn keep_read(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        raw: Bytes,
        content: &Bytes,
        memory: Memory<'_>,
    ) {
        let content = is_compressed(bp).then(|| content.clone());
        self.keep(bp, at, access, Some(raw), content, memory);
    }

    /// The answer of the second tier, on its way, if it has the block.
    fn ask_below(&self, bp: &BlkPtr) -> Option<BelowFuture> {
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        self.origin.below()?.read(self.origin.guid, bp)
    }

    /// Stored bytes and content from the second tier, if it gives them and they are right.
    async fn read_below(&self, bp: &BlkPtr, answer: BelowFuture) -> Option<(Bytes, Bytes)> {
        let raw = answer.await?;
        if raw.len() as u64 == bp.psize()
            && self.is_right(bp, &raw)
            && let Ok(content) = decompress(bp, raw.clone())
        {
            return Some((raw, content));
        }
        if let Some(below) = self.origin.below() {
            below.lied(self.origin.guid, bp);
        }
        None
    }

    async fn read_block_uncached(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        if bp.is_hole() {
            return Ok(zeroes(bp.lsize()));
        }
        self.readable(bp, at)?;
        let raw = self.read_raw_along(bp, at, Trail::default()).await?;
        self.content(bp, at, &raw)
    }

    fn content(&self, bp: &BlkPtr, at: Bookmark, raw: &Bytes) -> Result<Bytes, BlockError> {
        decompress(bp, raw.clone()).map_err(|kind| BlockError::new(kind, bp, Some(at), Vec::new()))
    }

    async fn read_raw_along(&self, bp: &BlkPtr, at: Bookmark, trail: Trail) -> Result<Bytes, BlockError> {
        let tell = |is_lost| {
            if let Some(ear) = self.ear.get()
                && let Some(Guilty { corrupt, refused }) = trail.take_guilty()
            {
                let (corrupt, refused) = (corrupt.into_vec(), refused.into_vec());
                ear.wrong(Wrong { bp: *bp, at, corrupt, refused, is_lost });
            }
        };
        let mut found = self.read_stored_once(bp, 0, &trail).await;
        if found.is_none() && trail.has_to_wait() {
            tell(false);
            found = self.read_stored_once(bp, 0, &trail).await;
        }
        tell(found.is_none());
        if let Some(raw) = found {
            return Ok(raw);
        }
        let counts = self.counts() && trail.counts();
        let (kind, evidence) = trail.conclude();
        if counts {
            let count = |counters: &crate::vdev::Counters| match kind {
                BlockErrorKind::Checksum => counters.count_checksum(),
                BlockErrorKind::Device => counters.count_read(),
                _ => {}
            };
            count(&self.tree.counters);
            for dva in bp.dvas() {
                // A leaf at the top has counted already.
                if let Some(top) = self.tree.top(dva.vdev.into()).filter(|top| top.leaf.is_none()) {
                    count(&top.counters);
                }
            }
        }
        Err(BlockError::new(kind, bp, Some(at), evidence))
    }

    /// Refuses what cannot be decompressed, because it is ciphertext. (Blocks of dnodes are an
    /// exception: only their bonus areas are encrypted.)
    fn readable(&self, bp: &BlkPtr, at: Bookmark) -> Result<(), BlockError> {
        if bp.is_encrypted() && bp.object_type() != ObjectType::DNODE {
            return Err(BlockError::new(BlockErrorKind::Encrypted, bp, Some(at), Vec::new()));
        }
        Ok(())
    }

    /// The stored bytes from wherever they can be had; devices that do not answer are waited for only if nobody else has
    /// them. `depth` counts gangs inside gangs.
    async fn read_stored(&self, bp: &BlkPtr, depth: usize, trail: &Trail) -> Option<Bytes> {
        match self.read_stored_once(bp, depth, trail).await {
            None if depth == 0 && trail.has_to_wait() => self.read_stored_once(bp, depth, trail).await,
            found => found,
        }
    }

    async fn read_stored_once(&self, bp: &BlkPtr, depth: usize, trail: &Trail) -> Option<Bytes> {
        if bp.is_hole() {
            return Some(Bytes::new());
        }
        if let Some(embedded) = bp.embedded() {
            if embedded.kind != EmbeddedKind::Data {
                trail.unsupported("the block was redacted");
                return None;
            }
            return Some(Bytes::copy_from_slice(embedded.payload()));
        }
        let algorithm = self.algorithm(bp, trail)?;
        let check = |data: &[u8]| self.verifies(bp, algorithm, data);
        if bp.is_gang() {
            return self.read_gang(bp, depth, &check, trail).await;
        }
        for dva in self.by_preference(bp) {
            if let Some(data) = self
                .read_place(dva.vdev.into(), dva.offset, bp.psize(), bp.physical_birth(), &check, trail)
                .await
            {
                return Some(data);
            }
        }
        None
    }

    /// The copies, those on devices in good order first.
    fn by_preference(&self, bp: &BlkPtr) -> smallvec::SmallVec<[Dva; 3]> {
        let mut dvas: smallvec::SmallVec<[_; 3]> = bp.dvas().collect();
        if dvas.len() > 1 {
            let birth = bp.physical_birth();
            dvas.sort_by_key(|dva| {
                self.tree.top(dva.vdev.into()).is_none_or(|top| !top.is_readable() || top.missed(birth))
            });
        }
        dvas
    }

    fn algorithm(&self, bp: &BlkPtr, trail: &Trail) -> Option<checksum::Algorithm> {
        let Some(algorithm) = checksum::Algorithm::from_id(bp.checksum_id()) else {
            trail.malformed(format!("checksum id {}", bp.checksum_id()));
            return None;
        };
        if algorithm.is_salted() && self.salt.get().is_none() {
            trail.malformed(format!("checksum {} in a pool without a salt", algorithm.name()));
            return None;
        }
        Some(algorithm)
    }

    /// Whether `data` is what `bp` points to.
    fn verifies(&self, bp: &BlkPtr, algorithm: checksum::Algorithm, data: &[u8]) -> bool {
        let expected = Checksum(bp.checksum());
        let form = form(bp);
        let kind = match algorithm {
            checksum::Algorithm::Zilog => embedded::Kind::Zilog,
            checksum::Algorithm::Zilog2 => embedded::Kind::Zilog2,
            _ => {
                return checksum::verify(
                    algorithm,
                    codec_order(bp.order()),
                    self.salt.get(),
                    form,
                    data,
                    expected,
                )
                .is_ok();
            }
        };
        embedded::verify(kind, data, expected, form).is_ok()
    }
}

/// Whether a block is stored in another form than its content.
fn is_compressed(bp: &BlkPtr) -> bool {
    bp.compression_id() != compress::Algorithm::Off.id()
}

/// How the checksum words of an encrypted dataset's blocks are shortened.
fn form(bp: &BlkPtr) -> Form {
    if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET { Form::Truncated } else { Form::Whole }
}

fn codec_order(order: Order) -> codec::Order {
    match order {
        Order::Little => codec::Order::Little,
        Order::Big => codec::Order::Big,
    }
}

/// Zero bytes, without allocating for the usual sizes.
fn zeroes(len: u64) -> Bytes {
    static ZEROES: [u8; 128 << 10] = [0; 128 << 10];
    match usize::try_from(len) {
        Ok(len) if len <= ZEROES.len() => Bytes::from_static(&ZEROES[..len]),
        // A block pointer holds at most 32 MiB.
        _ => Bytes::from(vec![0; len.min(32 << 20) as usize]),
    }
}

/// The content of verified stored bytes.
pub(crate) fn decompress(bp: &BlkPtr, raw: Bytes) -> Result<Bytes, BlockErrorKind> {
    let malformed = |what: String| BlockErrorKind::Malformed(what);
    let id = bp.compression_id();
    let algorithm =
        compress::Algorithm::from_id(id).ok_or_else(|| malformed(format!("compression id {id}")))?;
    let lsize = bp.lsize() as usize;
    if algorithm == compress::Algorithm::Off {
        if raw.len() == lsize {
            return Ok(raw);
        }
        return Err(malformed(format!("{} stored bytes for {lsize} uncompressed", raw.len())));
    }
    if lsize < EXACT_BELOW {
        // It may be kept for long.
        let mut content = vec![0; lsize];
        compress::decompress(algorithm, &raw, &mut content).map_err(|error| malformed(error.to_string()))?;
        return Ok(content.into());
    }
    let mut content = disk::IoBuf::with_len(lsize);
    compress::decompress(algorithm, &raw, &mut content).map_err(|error| malformed(error.to_string()))?;
    Ok(content.freeze())
}
