//! Volumes and their snapshots as [`BlockVolume`]s: from a byte range to pieces of cached blocks.
//!
//! ```text
//!   read(offset, len) ─▶ blocks ─▶ pointers (cursor over indirect blocks)
//!                                     ├ hole          ─▶ Segment::Zero, no memory
//!                                     ├ in the cache  ─▶ a slice of the cached block, no copy
//!                                     └ elsewhere     ─▶ one read for all of them: neighbours travel together
//! ```
//!
//! A hit is answered by [`read_cached`](BlockVolume::read_cached) in the caller's own task: no allocation, no
//! wait, no lock but those of the cache's shards. A client that reads in order is noticed by [`Readahead`], which
//! keeps the next stretch on its way while this one is being sent.
//!
//! A [`Volume`] is read-only and one committed state: its size and pointers are fixed. Whoever writes puts a
//! [successor](Volume::successor) over each later state, which goes on reading ahead where this one was.
//! Facts: docs/format/zvol.md.

use std::{fmt, ops::Range, sync::Arc};

use block::{BlockVolume, Extent, Geometry, Identity, Segment, Segments, VolumeError, VolumeFuture};
use bytes::Bytes;
use codec::checksum;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType, objset::ObjsetType};
use smallvec::smallvec;

use crate::{
    BoxFuture,
    cache::{Row, Uses},
    dmu::{self, BlockSource, Cursor, Object, ObjectSet, ReadError, Run, Step},
    error::BlockErrorKind,
    io::Bookmark,
    zap::Zap,
};

mod readahead;

use readahead::Readahead;

/// Object with the data.
const DATA: u64 = 1;
/// Indirect blocks fetched ahead of a stream.
const POINTERS_AHEAD: u64 = 8;
/// Object with the size.
const PROPERTIES: u64 = 2;

/// Why a dataset cannot be opened as a volume.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenVolumeError {
    /// It is a file system or something else.
    #[error("'{0}' is not a volume")]
    NotAVolume(String),
    /// Its content is ciphertext and the key is not loaded.
    #[error("'{0}' is encrypted: the key is not loaded, and loading keys is not supported")]
    Encrypted(String),
    /// Only a part of it was received: OpenZFS takes it away, or goes on with it.
    #[error("'{0}' was received in part only: receive the rest of it with OpenZFS, or destroy it")]
    Partial(String),
    /// Its structures cannot be read.
    #[error("cannot open '{name}'")]
    Read {
        /// Dataset name.
        name: String,
        /// What failed.
        #[source]
        source: ReadError,
    },
}

/// Blocks whose content nothing was held against: their numbers, and the pointers they were read by.
pub type Unverified = Vec<(u64, BlkPtr)>;

/// Size and block size of a volume's object set: what `volsize` and `volblocksize` report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u64,
}

/// Reads a volume's size and block size. Works for encrypted volumes too.
///
/// # Errors
/// The two objects of a volume cannot be read or are not what they must be.
pub fn shape(set: &ObjectSet) -> BoxFuture<'_, Result<Shape, ReadError>> {
    Box::pin(async move {
        let data = data_object(set).await?;
        let properties = Zap::open_in(set, PROPERTIES).await?;
        let at = Bookmark { objset: set.id(), object: PROPERTIES, level: 0, blkid: 0 };
        let missing = ReadError::Inconsistent { at, what: "the volume has no size" };
        let size = properties.get_u64("size").await?.ok_or(missing)?;
        Ok(Shape { size, block: data.block_bytes() })
    })
}

async fn data_object(set: &ObjectSet) -> Result<Object, ReadError> {
    let data = set.object(DATA).await?;
    if data.dnode().object_type != ObjectType::ZVOL {
        let at = Bookmark { objset: set.id(), object: DATA, level: 0, blkid: 0 };
        return Err(ReadError::Inconsistent { at, what: "object 1 is no volume data" });
    }
    Ok(data)
}

/// An open volume or volume snapshot.
pub struct Volume {
    /// Shared with the tasks that read ahead.
    data: Arc<Object>,
    identity: Identity,
    geometry: Geometry,
    /// Shared with successors.
    readahead: Arc<Readahead>,
    /// Knows what may be read ahead: what the first of all successors reads from, which is the pool's. That of later ones
    /// may be a writer's view of it.
    policy: Arc<dyn BlockSource>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Volume({})", self.identity.name)
    }
}

impl Volume {
    /// Opens the volume in `set`.
    ///
    /// # Errors
    /// It is not a volume, is encrypted, or cannot be read.
    pub fn open(set: &ObjectSet, identity: Identity) -> BoxFuture<'_, Result<Self, OpenVolumeError>> {
        Box::pin(async move {
            if set.kind() != ObjsetType::Volume {
                return Err(OpenVolumeError::NotAVolume(identity.name));
            }
            if set.pointer().uses_crypt() {
                return Err(OpenVolumeError::Encrypted(identity.name));
            }
            let opened = async { Ok((shape(set).await?, data_object(set).await?)) }.await;
            let (shape, data) = match opened {
                Ok(opened) => opened,
                Err(source) => return Err(OpenVolumeError::Read { name: identity.name, source }),
            };
            // A legal block is at most 16 MiB, so it fits.
            let block = u32::try_from(shape.block).unwrap_or(u32::MAX);
            let geometry = Geometry { size: shape.size, block, read_only: true };
            Ok(Self::over(Arc::new(data), identity, geometry))
        })
    }

    /// The volume whose data is this object. What lies beyond the object's end is a hole.
    #[must_use]
    pub fn over(data: Arc<Object>, identity: Identity, geometry: Geometry) -> Self {
        let readahead = Arc::new(Readahead::new(data.block_bytes()));
        let policy = Arc::clone(data.source());
        Self { data, identity, geometry, readahead, policy }
    }

    /// The same volume in a later state; streams that are being read go on.
    #[must_use]
    pub fn successor(&self, data: Arc<Object>, identity: Identity, geometry: Geometry) -> Self {
        let (readahead, policy) = (Arc::clone(&self.readahead), Arc::clone(&self.policy));
        Self { data, identity, geometry, readahead, policy }
    }

    /// The object that holds the data, for whoever walks its blocks.
    #[must_use]
    pub fn data(&self) -> &Arc<Object> {
        &self.data
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let size = self.geometry.size;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(VolumeError::OutOfRange { offset, len, size }),
        }
    }

    fn blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let block = self.data.block_bytes();
        offset / block..offset.saturating_add(len).div_ceil(block)
    }

    /// The part of block `blkid` that lies in the range, as bytes of the block.
    fn part(&self, blkid: u64, offset: u64, len: u64) -> Range<usize> {
        let block = self.data.block_bytes();
        let start = blkid.saturating_mul(block);
        let from = offset.saturating_sub(start);
        let to = offset.saturating_add(len).saturating_sub(start).min(block);
        from as usize..to as usize
    }

    /// Translates an error about a block of this volume.
    fn explain(&self, error: &ReadError) -> VolumeError {
        let at = match error {
            ReadError::Block(error) if *error.kind() == BlockErrorKind::Encrypted => {
                return VolumeError::Unsupported(error.to_string());
            }
            // Of no block: hosts take one that is named for bad, and do not forget that when its devices are back.
            ReadError::Block(error) if *error.kind() == BlockErrorKind::Away => {
                return VolumeError::Failed(error.to_string());
            }
            ReadError::Block(error) => error.bookmark(),
            ReadError::Malformed { at, .. } | ReadError::Inconsistent { at, .. } => Some(*at),
            ReadError::NoObject { .. } | ReadError::TooLarge { .. } => None,
        };
        let first = at.and_then(|at| Some((u8::try_from(at.level).ok()?, at.blkid)));
        let first = first.map_or(0, |(level, blkid)| self.data.fanout().first_descendant(blkid, level));
        VolumeError::Unreadable {
            offset: first.saturating_mul(self.data.block_bytes()),
            detail: error.to_string(),
        }
    }

    /// Reads a range of bytes, and says which blocks of it nothing verified: those that were written without checksums. If
    /// the place of one was given to another block meanwhile, a later state tells: it does not [have](Self::has) it any more.
    ///
    /// # Errors
    /// As [`BlockVolume::read`].
    pub async fn read_judged(&self, offset: u64, len: usize) -> Result<(Segments, Unverified), VolumeError> {
        self.check(offset, len as u64)?;
        let source = self.data.source();
        let blocks = self.blocks(offset, len as u64);
        self.readahead.wait(&blocks).await;
        let mut segments = Segments::new();
        // Blocks to read, and which segment each will become.
        let mut wanted: Vec<(BlkPtr, Bookmark)> = Vec::new();
        let mut places: Vec<usize> = Vec::new();
        let mut unverified = Unverified::new();
        let mut cursor = Cursor::default();
        let mut blkid = blocks.start;
        while blkid < blocks.end {
            let step = self.data.seek(&mut cursor, 0, blkid).await.map_err(|e| self.explain(&e))?;
            let part = self.part(blkid, offset, len as u64);
            let next = match step {
                Step::Block(pointer) => {
                    if !is_verifiable(&pointer) {
                        unverified.push((blkid, pointer));
                    }
                    if let Some(content) = source.cached(&pointer) {
                        segments.push(self.slice(&content, blkid, part)?);
                    } else {
                        wanted.push((pointer, self.data.bookmark(0, blkid)));
                        places.push(segments.len());
                        segments.push(Segment::Zero(part.len()));
                    }
                    blkid + 1
                }
                Step::Hole { until, .. } => {
                    let until = until.clamp(blkid + 1, blocks.end);
                    let last = self.part(until - 1, offset, len as u64);
                    let bytes = (until - 1 - blkid).saturating_mul(self.data.block_bytes()) as usize;
                    push_zero(&mut segments, bytes + last.end - part.start, places.last().copied());
                    until
                }
                // `seek` does not return it.
                Step::Need { .. } => {
                    return Err(VolumeError::NotReady("an indirect block is missing".into()));
                }
            };
            blkid = next;
        }
        if !wanted.is_empty() {
            self.readahead.missed();
        }
        self.read_ahead(blocks);
        if !wanted.is_empty() {
            let contents = source.read_many(&wanted).await;
            for ((content, (_, at)), place) in contents.into_iter().zip(&wanted).zip(places) {
                let content = content.map_err(|e| self.explain(&e.into()))?;
                segments[place] = self.slice(&content, at.blkid, self.part(at.blkid, offset, len as u64))?;
            }
        }
        Ok((segments, unverified))
    }

    /// Whether it has all of these blocks. Then nobody else had their places since they were written, up to when this state
    /// was committed.
    ///
    /// # Errors
    /// What leads to them cannot be read.
    pub async fn has(&self, blocks: &[(u64, BlkPtr)]) -> Result<bool, VolumeError> {
        let mut cursor = Cursor::default();
        for (blkid, pointer) in blocks {
            let step = self.data.seek(&mut cursor, 0, *blkid).await.map_err(|e| self.explain(&e))?;
            if !matches!(step, Step::Block(found) if found.same_block(pointer)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts blocks in their places (segment, block) of a request, if all of them are in memory.
    fn put_cached(
        &self,
        segments: &mut Segments,
        pointers: &[BlkPtr],
        places: &[(usize, u64)],
        offset: u64,
        len: usize,
        uses: &mut Uses,
    ) -> Option<()> {
        if pointers.is_empty() {
            return Some(());
        }
        for (content, &(place, blkid)) in self.data.source().all_cached(pointers, uses)?.iter().zip(places) {
            segments[place] = self.slice(content, blkid, self.part(blkid, offset, len as u64)).ok()?;
        }
        Some(())
    }

    /// Reads of a block, or a part of one, each: request, its block, bytes of that.
    fn read_blocks_cached(
        &self,
        reads: &[(usize, u64, Range<usize>)],
        found: &mut dyn FnMut(usize, Option<Segments>),
    ) {
        let blocks: Row<u64> = reads.iter().map(|(_, blkid, _)| *blkid).collect();
        let mut ways: Row<Uses> = smallvec![Uses::default(); blocks.len()];
        let leads = dmu::pointers(&self.data, &blocks, &mut ways);
        let pointers: Row<BlkPtr> = leads.iter().flatten().copied().collect();
        let mut ends: Row<Uses> = smallvec![Uses::default(); pointers.len()];
        let contents = self.data.source().each_cached(&pointers, &mut ends);
        let mut contents = contents.into_iter().zip(&ends);
        // Of those that are answered.
        let mut uses = Uses::default();
        for (((number, blkid, part), lead), way) in reads.iter().zip(&leads).zip(&ways) {
            if lead.is_none() {
                // A hole, or something that is to be looked at more closely.
                let offset = self.byte(*blkid).saturating_add(part.start as u64);
                found(*number, self.read_cached(offset, part.len()));
                continue;
            }
            let (content, end) = contents.next().unwrap_or((None, way));
            let segment = content.and_then(|content| self.slice(&content, *blkid, part.clone()).ok());
            if segment.is_some() {
                [way, end].into_iter().for_each(|found| uses.join(found));
                self.read_ahead(*blkid..blkid + 1);
            }
            found(*number, segment.map(|segment| Segments::from_iter([segment])));
        }
        self.data.source().count(&uses);
    }

    fn slice(&self, content: &Bytes, blkid: u64, part: Range<usize>) -> Result<Segment, VolumeError> {
        if content.len() as u64 == self.data.block_bytes() {
            return Ok(Segment::Data(content.slice(part)));
        }
        let what = "the block's content is of another size than the volume's blocks";
        Err(self.explain(&ReadError::Inconsistent { at: self.data.bookmark(0, blkid), what }))
    }

    /// Notes that `blocks` were asked for and, if that continues a sequence, fetches what comes next.
    fn read_ahead(&self, blocks: Range<u64>) {
        let (next, followed) = self.readahead.observe(blocks.clone(), || self.policy.memory_ahead());
        if let Some(followed) = followed {
            self.policy.count_followed(followed);
        }
        if next.is_empty() {
            return;
        }
        // Asked each time there is something to fetch: properties change while a volume is open.
        let is_wanted = |metadata: bool| self.policy.reads_ahead(self.data.objset(), metadata);
        if is_wanted(true) {
            self.read_ahead_pointers(&blocks, &next);
        }
        if !is_wanted(false) {
            return;
        }
        let end = self.geometry.size.div_ceil(self.data.block_bytes());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for piece in self.readahead.start(&next, end) {
            // Without a task, which would wake another thread.
            if self.readahead.is_warm() && self.is_at_hand(piece.blocks.end.saturating_sub(1)) {
                continue;
            }
            let (data, readahead) = (Arc::clone(&self.data), Arc::clone(&self.readahead));
            runtime.spawn(async move {
                let was_idle = !fetch(&data, 0, piece.blocks.clone()).await;
                readahead.ended(was_idle);
                drop(piece);
            });
        }
    }

    /// Whether there is nothing to fetch for a block.
    fn is_at_hand(&self, blkid: u64) -> bool {
        let source = self.data.source();
        // Nobody asked for it: what is found on the way is not counted.
        let mut uses = Uses::default();
        match Cursor::default().step(&self.data, 0, blkid, |pointer| source.pointers_for(pointer, &mut uses))
        {
            Ok(Step::Block(pointer)) => source.has(&pointer),
            Ok(Step::Hole { .. }) => true,
            Ok(Step::Need { .. }) | Err(_) => false,
        }
    }

    /// Fetches the pointers to what a stream will come to, several indirect blocks at once: an arm that has to move for
    /// each of them loses a sixth of its time.
    fn read_ahead_pointers(&self, asked: &Range<u64>, next: &[Range<u64>]) {
        let fanout = self.data.fanout().entries();
        // A stream fetches one stretch, a stride several.
        let [next] = next else { return };
        if self.data.levels() < 2 {
            return;
        }
        let (row, nearest) = if next.start >= asked.start {
            let first = next.end / fanout + 1;
            let end = self.data.max_block_id() / fanout + 1;
            (first..first.saturating_add(POINTERS_AHEAD).min(end), first)
        } else {
            let end = next.start / fanout;
            (end.saturating_sub(POINTERS_AHEAD)..end, end.saturating_sub(1))
        };
        if !self.readahead.wants_pointers(&row, nearest) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let data = Arc::clone(&self.data);
        runtime.spawn(async move {
            fetch(&data, 1, row).await;
        });
    }

    async fn list_extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, len)?;
        let mut extents = Extents { list: Vec::new(), max, offset, end: offset + len, at: offset };
        let blocks = self.blocks(offset, len);
        // Level 1 first: an indirect block whose fill says "all written" need not be read.
        let fanout = self.data.fanout().entries();
        if self.data.levels() == 1 {
            self.extents_of_blocks(blocks, &mut extents).await?;
            return Ok(extents.list);
        }
        let mut runs = self.data.runs(1, blocks.start / fanout..blocks.end.div_ceil(fanout));
        while let Some(run) = runs.next().await.map_err(|e| self.explain(&e))? {
            // As long as indirect blocks are in the cache nothing waits: others have their turn in between.
            tokio::task::coop::consume_budget().await;
            match run {
                Run::Hole { first, count, .. } => {
                    extents.push(self.byte(first.saturating_add(count).saturating_mul(fanout)), true);
                }
                Run::Block { blkid, pointer } if pointer.fill() >= fanout => {
                    extents.push(self.byte((blkid + 1).saturating_mul(fanout)), false);
                }
                Run::Block { blkid, .. } => {
                    let within = blkid * fanout..(blkid + 1).saturating_mul(fanout);
                    let within = within.start.max(blocks.start)..within.end.min(blocks.end);
                    self.extents_of_blocks(within, &mut extents).await?;
                }
            }
            if extents.is_full() {
                break;
            }
        }
        Ok(extents.list)
    }

    async fn extents_of_blocks(&self, blocks: Range<u64>, extents: &mut Extents) -> Result<(), VolumeError> {
        let mut runs = self.data.runs(0, blocks);
        while let Some(run) = runs.next().await.map_err(|e| self.explain(&e))? {
            match run {
                Run::Hole { first, count, .. } => extents.push(self.byte(first.saturating_add(count)), true),
                Run::Block { blkid, .. } => extents.push(self.byte(blkid + 1), false),
            }
            if extents.is_full() {
                break;
            }
        }
        Ok(())
    }

    fn byte(&self, blkid: u64) -> u64 {
        blkid.saturating_mul(self.data.block_bytes())
    }
}

/// Appends zeroes, to the last segment where that is zeroes as well and not a place being read into.
fn push_zero(segments: &mut Segments, len: usize, last_wanted: Option<usize>) {
    let last = segments.len().checked_sub(1);
    match segments.last_mut() {
        Some(Segment::Zero(zeroes)) if last != last_wanted => *zeroes += len,
        _ => segments.push(Segment::Zero(len)),
    }
}

/// Brings blocks into the cache; what cannot be read is left for whoever really asks for it. False if there was nothing
/// to bring.
async fn fetch(data: &Object, level: u8, blocks: Range<u64>) -> bool {
    let mut runs = data.runs(level, blocks);
    let mut wanted = Vec::new();
    while let Ok(Some(run)) = runs.next().await {
        if let Run::Block { blkid, pointer } = run
            && !data.source().has(&pointer)
        {
            wanted.push((pointer, data.bookmark(level, blkid)));
        }
    }
    if wanted.is_empty() {
        return false;
    }
    data.source().read_ahead(&wanted).await;
    true
}

/// Whether a block has something that its content can be held against.
fn is_verifiable(pointer: &BlkPtr) -> bool {
    let algorithm = checksum::Algorithm::from_id(pointer.checksum_id());
    pointer.is_embedded() || algorithm.is_none_or(checksum::Algorithm::is_verified)
}

/// Collects extents of a byte range.
struct Extents {
    list: Vec<Extent>,
    max: usize,
    offset: u64,
    end: u64,
    /// Everything below is in the list.
    at: u64,
}

impl Extents {
    /// What follows the last extent, up to byte `until`, is a hole or data.
    fn push(&mut self, until: u64, hole: bool) {
        let until = until.clamp(self.offset, self.end);
        let len = until.saturating_sub(self.at);
        if len == 0 {
            return;
        }
        self.at = until;
        let room = self.list.len() < self.max;
        match self.list.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ if room => self.list.push(Extent { len, hole }),
            // One too many: the list is complete, and is_full says so.
            _ => self.at = self.end,
        }
    }

    fn is_full(&self) -> bool {
        self.at >= self.end
    }
}

impl BlockVolume for Volume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        self.check(offset, len as u64).ok()?;
        let source = self.data.source();
        let blocks = self.blocks(offset, len as u64);
        let mut segments = Segments::new();
        let mut pointers: Row<BlkPtr> = Row::new();
        let mut places: Row<(usize, u64)> = Row::new();
        let mut cursor = Cursor::default();
        // Counted when all is here: what is found of another is looked up again by who reads it.
        let mut uses = Uses::default();
        let mut blkid = blocks.start;
        while blkid < blocks.end {
            let part = self.part(blkid, offset, len as u64);
            match cursor.step(&self.data, 0, blkid, |pointer| source.pointers_for(pointer, &mut uses)).ok()? {
                // The usual request of random reads: nothing to gather.
                Step::Block(pointer) if blocks.end - blocks.start == 1 => {
                    segments.push(self.slice(&source.cached_for(&pointer, &mut uses)?, blkid, part).ok()?);
                    blkid += 1;
                }
                Step::Block(pointer) => {
                    pointers.push(pointer);
                    places.push((segments.len(), blkid));
                    segments.push(Segment::Zero(part.len()));
                    blkid += 1;
                    // No further than to the first row with a block that has to be read.
                    if pointers.len() == pointers.inline_size() {
                        self.put_cached(&mut segments, &pointers, &places, offset, len, &mut uses)?;
                        pointers.clear();
                        places.clear();
                    }
                }
                Step::Hole { until, .. } => {
                    let until = until.clamp(blkid + 1, blocks.end);
                    let last = self.part(until - 1, offset, len as u64);
                    let bytes = (until - 1 - blkid).saturating_mul(self.data.block_bytes()) as usize;
                    // A placeholder, and what has taken the place of one, are no zeroes to go on with.
                    let before = places.last().map(|(place, _)| *place);
                    push_zero(&mut segments, bytes + last.end - part.start, before);
                    blkid = until;
                }
                Step::Need { .. } => return None,
            }
        }
        self.put_cached(&mut segments, &pointers, &places, offset, len, &mut uses)?;
        source.count(&uses);
        self.read_ahead(blocks);
        Some(segments)
    }

    fn read_cached_each(&self, reads: &[(u64, usize)], found: &mut dyn FnMut(usize, Option<Segments>)) {
        let mut single: Row<(usize, u64, Range<usize>)> = Row::new();
        for (number, (offset, len)) in reads.iter().enumerate() {
            let blocks = self.blocks(*offset, *len as u64);
            if self.check(*offset, *len as u64).is_ok() && blocks.end - blocks.start == 1 {
                single.push((number, blocks.start, self.part(blocks.start, *offset, *len as u64)));
                if single.len() == single.inline_size() {
                    self.read_blocks_cached(&single, found);
                    single.clear();
                }
            } else {
                found(number, self.read_cached(*offset, *len));
            }
        }
        match &single[..] {
            [] => {}
            [(number, ..)] => {
                let (offset, len) = reads[*number];
                found(*number, self.read_cached(offset, len));
            }
            several => self.read_blocks_cached(several, found),
        }
    }

    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move { Ok(self.read_judged(offset, len).await?.0) })
    }

    fn extents(&self, offset: u64, len: u64, max_extents: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(self.list_extents(offset, len, max_extents))
    }
}
