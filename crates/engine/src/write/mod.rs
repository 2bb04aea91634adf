//! Blocks to devices: compress, checksum, allocate, parity, and one write per block per transaction group.
//!
//! ```text
//!   Job ─▶ prepare ─▶ allocate ──▶ data: devices ─▶ leaves         on its way at once
//!          (workers)  (gang)   └─▶ metadata: pending ──finish()──▶ in order of address, then flush
//!                                        └── overlay: read what is not on the devices yet
//! ```
//! A block that is at its place already (`ahead`) only needs its pointer entered, and its place made an allocation.
//!
//! Metadata waits because later passes of the same transaction group may write it again; it keeps its place then.
//!
//! Facts: docs/format/compression.md §2, blkptr.md, vdevs.md.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    future::Future,
    sync::Arc,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use codec::compress;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
};
use pool::{BlockError, Bookmark, PoolIo, WrittenBlock, dmu::BlockSource, vdev::Vdev};
use smallvec::SmallVec;

pub mod ahead;
mod devices;
pub mod direct;
mod gang;
pub mod labels;
mod layout;
mod leaves;
pub(crate) mod ours;
mod overlay;
mod prepare;
pub(crate) mod repair;
pub mod summed;
mod target;
mod urgency;

pub use leaves::FailedLeaf;
pub(crate) use overlay::Parts;
pub(crate) use target::Targets;

use self::{
    devices::{Devices, Tops},
    direct::Direct,
    gang::{Shape, Sums},
    leaves::IN_FLIGHT_BYTES,
    overlay::{NOWHERE, Overlay, Place, place_of},
    prepare::{Prepared, Rules, prepare},
    summed::Sum,
};
use crate::{
    EngineError,
    alloc::{Allocator, Purpose},
    devices::diagnose::Reports,
    policy::{BlockPolicy, Traits},
    suspend::Suspension,
};

/// Largest content that is kept in the read cache when it is written. Larger blocks are streams, which are
/// seldom read again soon.
const CACHED_MAX: usize = 128 << 10;
/// Content a worker compresses at a time: long beside the hand-over (some 20 µs), short beside the whole.
const COMPRESS_CHUNK: usize = 256 << 10;
/// The same if there is only a checksum to compute, which is ten times as fast.
const SUM_CHUNK: usize = 1 << 20;
/// Attempts to write to a device that refuses, before copies elsewhere have to do at the end of a transaction group.
const ROUNDS_TO_LOOK: u32 = 3;
/// Blocks stored between two looks at what is under way, when there are no workers.
const LOOK_EVERY: usize = 32;
/// Headers of gangs that are read at a time to free these: two queues of a disk.
const HEADERS_AT_ONCE: usize = 64;

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
    /// block is metadata, its place is used again; if the block has become too large for it, the place is given
    /// back here. (To [`free`](BlockWriter::free) the old pointer afterwards is harmless.)
    pub old: BlkPtr,
    /// Which block it is, for messages.
    pub at: Bookmark,
    /// It was written [ahead](ahead::Ahead) in this very transaction group: this is its pointer. In a box, because few are.
    pub written: Option<Box<BlkPtr>>,
    /// Checksum of `content`, if it is known already; of use where it is stored as it is.
    pub sum: Option<Sum>,
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

/// Where extents come from: the [`Allocator`], or something simpler in tests.
pub trait Extents: Send {
    /// See [`Allocator::granularity`].
    fn granularity(&self) -> (u64, u64);
    /// See [`Allocator::allocate`].
    fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> impl Future<Output = Result<SmallVec<[Dva; 3]>, EngineError>> + Send;
    /// See [`Allocator::release`].
    fn release(&mut self, dva: Dva);
    /// See [`Allocator::adopt`].
    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError>;
    /// Devices came, went or came back.
    fn devices_changed(&mut self) {}
    /// See [`Allocator::wait_through`].
    fn wait_through(&mut self, _: &Arc<Suspension>) {}
}

impl Extents for Allocator {
    fn granularity(&self) -> (u64, u64) {
        Self::granularity(self)
    }
    fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> impl Future<Output = Result<SmallVec<[Dva; 3]>, EngineError>> + Send {
        Self::allocate(self, psize, copies, purpose)
    }
    fn release(&mut self, dva: Dva) {
        Self::release(self, dva);
    }
    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError> {
        Self::adopt(self, dva)
    }
    fn devices_changed(&mut self) {
        self.log_space().readmit();
    }
    fn wait_through(&mut self, suspension: &Arc<Suspension>) {
        Self::wait_through(self, Arc::clone(suspension));
    }
}

/// Metadata that waits for the end of the transaction group.
#[derive(Debug)]
struct Pending {
    bp: BlkPtr,
    at: Bookmark,
    /// None if the stored form has to do.
    content: Option<Bytes>,
    /// Of that, what counts in [`BlockWriter::contents`].
    counted: u64,
    /// Stored form.
    data: Bytes,
    policy: BlockPolicy,
    shape: Shape,
}

/// Hears how many logical bytes of data of a transaction group need no memory of their writers any more.
pub type OnData = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Writes the blocks of one transaction group after another.
pub struct BlockWriter<S = Allocator> {
    /// Where blocks go.
    pub alloc: S,
    io: Arc<PoolIo>,
    traits: Traits,
    workers: usize,
    txg: u64,
    devices: Devices,
    direct: Arc<Direct>,
    targets: Arc<Targets>,
    suspension: Arc<Suspension>,
    overlay: Arc<Overlay>,
    pending: BTreeMap<Place, Pending>,
    /// Bytes of contents of volumes' indirect blocks that wait beside their stored forms, and how many there may be.
    contents: u64,
    contents_max: u64,
    /// Metadata of this transaction group whose place was given back when it was written anew.
    moved: BTreeMap<Place, SmallVec<[BlkPtr; 1]>>,
    /// Data of this transaction group that lies in pieces.
    gangs: BTreeMap<Place, Shape>,
    /// Blocks that were written ahead, since everything was last secured.
    entered: Vec<Job>,
    /// Which sets of top-level devices hold the copies of something written in this transaction group.
    touched: BTreeSet<Tops>,
    /// Data that was stored and is not in the read cache yet: never any between two calls.
    kept: Vec<WrittenBlock>,
    written: Written,
    on_data: Option<OnData>,
    /// For blocks written ahead: as [`begin`](Self::begin) found them.
    rules: Arc<ArcSwap<Rules>>,
    /// The transaction group in which they changed last.
    rules_since: Option<u64>,
}

impl<S: fmt::Debug> fmt::Debug for BlockWriter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockWriter")
            .field("alloc", &self.alloc)
            .field("txg", &self.txg)
            .finish_non_exhaustive()
    }
}

impl<S: Extents> BlockWriter<S> {
    /// A writer over the devices of `io`. `workers` bounds the blocks being compressed at once on other
    /// threads; 0 does all in the caller's task (simulation).
    pub fn new(io: Arc<PoolIo>, mut alloc: S, traits: Traits, workers: usize) -> Self {
        let suspension = Arc::<Suspension>::default();
        alloc.wait_through(&suspension);
        let targets = Targets::new(Arc::default(), Arc::clone(&suspension));
        let overlay = Arc::new(Overlay::new(Arc::clone(&io), Arc::clone(&suspension)));
        let rules = Arc::new(ArcSwap::from_pointee(rules(&alloc, &io, traits, 0)));
        let direct = Direct::new(&io, Arc::clone(&targets));
        Self {
            alloc,
            rules,
            rules_since: None,
            traits,
            workers,
            txg: 0,
            devices: Devices::new(&io, Arc::clone(&overlay), Arc::clone(&targets)),
            direct,
            targets,
            suspension,
            io,
            overlay,
            pending: BTreeMap::new(),
            contents: 0,
            contents_max: u64::MAX,
            moved: BTreeMap::new(),
            gangs: BTreeMap::new(),
            entered: Vec::new(),
            touched: BTreeSet::new(),
            kept: Vec::new(),
            written: Written::default(),
            on_data: None,
        }
    }
    /// From now on contents of volumes' indirect blocks may take so many bytes beside their stored forms. They are final when
    /// they are written, and of changes that are scattered there are gigabytes.
    pub(crate) fn keep_contents(&mut self, bytes: u64) {
        self.contents_max = bytes;
    }
    /// `hear` is told (transaction group, bytes) whenever data was handed to the devices.
    pub fn on_data_written(&mut self, hear: OnData) {
        self.on_data = Some(hear);
    }
    /// The pool's device tree is another one. What is known of leaves stays known.
    pub fn devices_changed(&mut self) {
        self.devices.rebuild(&self.io);
        self.direct.devices_changed(&self.io);
        self.alloc.devices_changed();
        self.renew_rules();
    }
    /// Features changed.
    pub fn set_traits(&mut self, traits: Traits) {
        self.traits = traits;
        self.renew_rules();
    }
    fn renew_rules(&mut self) {
        let rules = self.rules();
        if !rules.agree(&self.rules.load()) {
            self.rules_since = Some(self.txg);
        }
        self.rules.store(Arc::new(rules));
    }
    /// Whether all that was written ahead in this transaction group was written under the rules of now: the next one was open
    /// already when they changed.
    pub(crate) fn has_had_its_rules(&self) -> bool {
        self.rules_since.is_none_or(|since| self.txg > since + 1)
    }
    /// What the pool allows.
    pub fn traits(&self) -> Traits {
        self.traits
    }
    /// Reads blocks, those included that wait to be written. Follows [`devices_changed`](Self::devices_changed).
    pub fn source(&self) -> Arc<dyn BlockSource> {
        Arc::clone(&self.overlay) as Arc<dyn BlockSource>
    }
    /// Reads what is committed, for clients: as the pool says while devices are away.
    pub fn clients_source(&self) -> Arc<dyn BlockSource> {
        Arc::new(Overlay::for_clients(Arc::clone(&self.io), Arc::clone(&self.suspension)))
    }
    /// Writes single blocks to the same devices, from any task. Follows [`devices_changed`](Self::devices_changed).
    pub fn direct(&self) -> Arc<Direct> {
        Arc::clone(&self.direct)
    }
    /// What was noticed about devices while they were written to, and what others notice.
    pub fn reports(&self) -> Arc<Reports> {
        Arc::clone(self.targets.reports())
    }
    /// Who waits when too few devices take what is to be written, or give what is to be read.
    pub fn suspension(&self) -> Arc<Suspension> {
        Arc::clone(&self.suspension)
    }
    /// What all writers know of the leaves.
    pub(crate) fn targets(&self) -> Arc<Targets> {
        Arc::clone(&self.targets)
    }
    /// Leaves that lack a part of this transaction group.
    pub fn failed_leaves(&self) -> Vec<FailedLeaf> {
        self.devices.leaves.failed()
    }
    /// Whether the leaf was away in this transaction group, and has all of it nevertheless.
    pub(crate) fn has_caught_up(&self, guid: u64) -> bool {
        self.devices.leaves.has_caught_up(guid)
    }
    /// Begins transaction group `txg`. What an earlier one left behind without a [`finish`](Self::finish) is
    /// forgotten.
    pub fn begin(&mut self, txg: u64) {
        self.txg = txg;
        self.devices.begin(txg);
        self.overlay.clear();
        self.pending.clear();
        self.contents = 0;
        self.moved.clear();
        self.gangs.clear();
        self.entered.clear();
        self.touched.clear();
        self.kept.clear();
        self.written = Written::default();
        self.rules.store(Arc::new(self.rules()));
    }
    /// The transaction group being written.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// Stores blocks and returns their pointers in order. A block of zeroes becomes a hole (unless it is data
    /// with compression off), a tiny one is embedded. Metadata waits in memory until [`finish`](Self::finish)
    /// because later passes may write it again; data is on its way to the devices when this returns, up to the
    /// last transfer of each device, which may still grow.
    pub async fn write(&mut self, jobs: Vec<Job>) -> Result<Vec<BlkPtr>, EngineError> {
        let rules = self.rules();
        let mut jobs = jobs;
        for job in &mut jobs {
            self.doubt(job)?;
        }
        let data: usize = jobs.iter().filter(|job| !job.policy.metadata).map(|job| job.content.len()).sum();
        let pointers = self.write_all(jobs, rules).await;
        self.remember();
        let pointers = pointers?;
        if let Some(hear) = self.on_data.as_ref().filter(|_| data > 0) {
            hear(self.txg, data as u64);
        }
        Ok(pointers)
    }

    async fn write_all(&mut self, jobs: Vec<Job>, rules: Rules) -> Result<Vec<BlkPtr>, EngineError> {
        let mut pointers = Vec::with_capacity(jobs.len());
        if self.workers > 0
            && let Some(chunks) = chunks(&jobs)
        {
            self.write_chunks(jobs, chunks, Arc::new(rules), &mut pointers).await?;
            return Ok(pointers);
        }
        for (number, job) in jobs.into_iter().enumerate() {
            let prepared = prepare(&job, self.reuse(&job), &rules)?;
            pointers.push(self.store(job, prepared).await?);
            if number % LOOK_EVERY == LOOK_EVERY - 1 {
                self.remember();
                self.devices.leaves.keep_below(IN_FLIGHT_BYTES).await;
                self.secure_some().await?;
            }
        }
        self.remember();
        self.devices.leaves.keep_below(IN_FLIGHT_BYTES).await;
        self.secure_some().await?;
        Ok(pointers)
    }

    /// The pointer of a block that becomes a hole: remembers its birth if the pool has `hole_birth` and the
    /// block existed.
    pub fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr {
        if !self.traits.hole_birth || old.birth() == 0 {
            return BlkPtr::EMPTY;
        }
        // A size that no pointer can tell (a dnode may claim it) leaves a hole without birth: it reads as zeroes too.
        BlkPtr::punched(lsize, object_type, level, self.txg).unwrap_or(BlkPtr::EMPTY)
    }

    /// Gives back the places of a block that was written [ahead](ahead::Ahead) in this transaction group, and is not
    /// part of any tree. They wait as if it had been: a log record may name it.
    ///
    /// # Errors
    /// It was not.
    pub fn discard(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        for dva in bp.dvas() {
            self.alloc.adopt(dva)?;
            self.alloc.release(dva);
        }
        Ok(())
    }

    /// Gives back the space of a block: all copies, all members of a gang. Embedded blocks and holes have none. A gang
    /// whose parts nobody can tell any more stays allocated: it is lost to the pool, which goes on. As long as a device that
    /// left may tell, it is waited for: nobody comes back to this block. One that was deduplicated is like any other: a pool with
    /// dedup tables is not written to, and what no table has an entry of nobody shares.
    ///
    /// # Errors
    /// The pool was given up while devices were waited for.
    pub async fn free(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        self.free_all(std::slice::from_ref(bp)).await
    }

    /// The same for many. Where the parts of gangs are is read side by side: a group may free thousands of them.
    ///
    /// # Errors
    /// As those of [`free`](Self::free).
    pub async fn free_all(&mut self, blocks: &[BlkPtr]) -> Result<(), EngineError> {
        let mut gangs = Vec::new();
        for bp in blocks {
            if !self.free_if_known(bp).await {
                gangs.push(*bp);
            }
        }
        let mut rest = &gangs[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.at_once(rest));
            rest = others;
            let told = self.overlay.all_gang_extents(some, true).await;
            for (bp, parts) in some.iter().zip(told) {
                match parts? {
                    Ok(parts) => parts.into_iter().for_each(|part| self.alloc.release(part)),
                    Err(error) => tracing::error!(
                        %error,
                        bytes = bp.asize(),
                        "space of a freed block is lost: what says where its parts are cannot be read"
                    ),
                }
            }
        }
        Ok(())
    }

    /// Of how many of these blocks, the first, the parts may be looked up side by side: of one at least. A gang of a megabyte
    /// may have more headers than two queues of a disk hold, and disks have clients.
    pub(crate) fn at_once<'a>(&self, blocks: impl IntoIterator<Item = &'a BlkPtr>) -> usize {
        let sector = self.alloc.granularity().0;
        let mut headers = 0;
        let fit = blocks.into_iter().take_while(|bp| {
            headers += gang::headers(bp, sector);
            headers <= HEADERS_AT_ONCE
        });
        fit.count().max(1)
    }

    /// How many headers of gangs were read to free them since the pool was opened.
    pub(crate) fn headers_read(&self) -> usize {
        self.overlay.headers_read()
    }

    /// What is read to free these blocks with [`try_free`](Self::try_free), side by side, as many as [go](Self::at_once): for
    /// each where its parts are, if that has to be read.
    pub(crate) async fn parts(&self, blocks: &[BlkPtr]) -> Vec<Option<Parts>> {
        let is_asked = |bp: &BlkPtr| bp.is_gang() && bp.physical_birth() != self.txg;
        let asked: Vec<BlkPtr> = blocks.iter().filter(|bp| is_asked(bp)).copied().collect();
        let mut told = self.overlay.all_gang_extents(&asked, false).await.into_iter();
        blocks.iter().map(|bp| if is_asked(bp) { told.next() } else { None }).collect()
    }

    /// As [`free`](Self::free); `parts` if they were [read](Self::parts) already. Returns why nothing of it was given back, if
    /// what says where its parts are cannot be read although devices are there.
    ///
    /// # Errors
    /// As those of [`free`](Self::free).
    pub(crate) async fn try_free(
        &mut self,
        bp: &BlkPtr,
        parts: Option<Parts>,
    ) -> Result<Option<BlockError>, EngineError> {
        if self.free_if_known(bp).await {
            return Ok(None);
        }
        let parts = match parts {
            Some(parts) => parts,
            None => self.overlay.gang_extents(bp, false).await,
        };
        match parts? {
            Ok(parts) => parts.into_iter().for_each(|part| self.alloc.release(part)),
            Err(error) => return Ok(Some(error)),
        }
        Ok(None)
    }

    /// Gives back a block if it is known where all of it is: false for a gang of another transaction group.
    async fn free_if_known(&mut self, bp: &BlkPtr) -> bool {
        let Some(place) = place_of(bp) else { return true };
        if bp.physical_birth() == self.txg {
            self.io.forget(bp);
            if self.pending.get(&place).is_some_and(|pending| pending.bp == *bp) {
                self.forget(place);
                return true;
            }
            if self.moved.get(&place).is_some_and(|moved| moved.contains(bp)) {
                return true;
            }
            // The pool's allocator keeps its space until the commit; what would give it out again at once must not make new
            // bytes meet the old ones on the way.
            self.devices.leaves.drain().await;
            self.overlay.remove(place);
            if let Some(shape) = self.gangs.remove(&place) {
                shape.release(&mut self.alloc);
                return true;
            }
        } else {
            self.io.forget_later(bp);
        }
        if bp.is_gang() {
            return false;
        }
        bp.dvas().for_each(|dva| self.alloc.release(dva));
        true
    }

    /// Everything written is on stable media when this returns.
    pub async fn finish(&mut self) -> Result<Written, EngineError> {
        let pending = std::mem::take(&mut self.pending);
        self.contents = 0;
        let salt = self.io.salt().copied();
        let mut extents: Vec<(Dva, Bytes)> = Vec::with_capacity(pending.len() * 2);
        for block in pending.values() {
            self.written.blocks += 1;
            self.written.bytes += block.data.len() as u64;
            touch(&mut self.touched, &block.shape);
            let sums = Sums { algorithm: block.policy.checksum, salt: salt.as_ref(), txg: self.txg };
            block.shape.fill(&block.data, sums, &mut |dva, data| {
                extents.push((*dva, data.clone()));
                Ok(())
            })?;
        }
        extents.sort_unstable_by_key(|(dva, _)| (dva.vdev, dva.offset));
        for (number, (dva, data)) in extents.into_iter().enumerate() {
            self.devices.put(&dva, &data, NOWHERE)?;
            if number % LOOK_EVERY == LOOK_EVERY - 1 {
                self.devices.leaves.keep_below(IN_FLIGHT_BYTES).await;
            }
        }
        self.secure(true).await?;
        let kept = pending.into_values().map(|Pending { bp, at, content, data, .. }| WrittenBlock {
            bp,
            at,
            content,
            stored: Some(data),
        });
        self.io.remember(kept.filter(is_kept));
        self.overlay.clear();
        self.moved.clear();
        self.gangs.clear();
        self.written.device_bytes = self.devices.leaves.device_bytes();
        Ok(self.written)
    }

    /// Waits until everything that was written is on stable media, on as many leaves as are needed to read it back. A
    /// top-level device that is away as a whole is waited for even if all its blocks have copies elsewhere: without it
    /// the pool could not be opened again. One that is there and refuses may be done without when nothing more of the
    /// transaction group is to come (`is_all`): what is forgotten here it can never be given again, and the only copy of a
    /// later block may have its place there.
    async fn secure(&mut self, is_all: bool) -> Result<(), EngineError> {
        for round in 0_u32.. {
            let before = self.suspension.before();
            self.devices.leaves.drain().await;
            self.devices.leaves.flush().await;
            let Some(_) = self.stands_in_the_way(false) else { break };
            self.recall()?;
            if self.devices.leaves.can_catch_up() {
                self.devices.leaves.catch_up().await;
                self.devices.leaves.flush().await;
            }
            let Some(why) = self.stands_in_the_way(is_all && round >= ROUNDS_TO_LOOK) else { break };
            self.suspension.wait(before, why).await?;
        }
        self.entered.clear();
        self.devices.leaves.secured();
        Ok(())
    }

    /// Why what was written is not safe yet. `have_tried`: devices that are there and refuse may be done without.
    fn stands_in_the_way(&self, have_tried: bool) -> Option<EngineError> {
        if let Err(lost) = self.devices.check(&self.touched) {
            return Some(lost);
        }
        if !self.suspension.is_patient() {
            return None;
        }
        let tree = self.io.tree();
        let is_missed = |id: u32| {
            // Whether it is away is known only after somebody has looked.
            !have_tried || !tree.top(id.into()).is_some_and(Vdev::is_readable)
        };
        let tops: BTreeSet<u32> = self.touched.iter().flatten().copied().collect();
        let one = |id: u32| BTreeSet::from([Tops::from_slice(&[id])]);
        tops.into_iter().find_map(|id| self.devices.check(&one(id)).err().filter(|_| is_missed(id)))
    }

    /// Secures what was written so far if it has become much.
    async fn secure_some(&mut self) -> Result<(), EngineError> {
        if self.devices.leaves.is_history_long() { self.secure(false).await } else { Ok(()) }
    }

    /// Adds what was written ahead to what leaves can be given again.
    fn recall(&mut self) -> Result<(), EngineError> {
        let rules = self.rules();
        for job in std::mem::take(&mut self.entered) {
            let Some(bp) = job.written else { continue };
            let Prepared::Stored { data, checksum, .. } =
                prepare(&Job { written: None, ..job }, None, &rules)?
            else {
                return Err(EngineError::Encode {
                    what: "block",
                    detail: format!("{bp} is another one now"),
                });
            };
            if checksum != bp.checksum() {
                return Err(EngineError::Encode {
                    what: "block",
                    detail: format!("{bp} is another one now"),
                });
            }
            for dva in bp.dvas() {
                self.devices.recall(&dva, &data)?;
            }
        }
        Ok(())
    }

    /// A block that was written ahead to leaves to which something happened since may not be there: it is written anew.
    fn doubt(&mut self, job: &mut Job) -> Result<(), EngineError> {
        let doubtful = job
            .written
            .as_ref()
            .filter(|bp| bp.birth() == self.txg && bp.dvas().any(|dva| !self.devices.is_sure(dva.vdev)));
        if doubtful.is_some()
            && let Some(bp) = job.written.take()
        {
            self.discard(&bp)?;
        }
        Ok(())
    }

    fn rules(&self) -> Rules {
        rules(&self.alloc, &self.io, self.traits, self.txg)
    }

    /// Stored size of the place a block keeps.
    fn reuse(&self, job: &Job) -> Option<usize> {
        if !job.policy.metadata || job.old.birth() != self.txg {
            return None;
        }
        let pending = self.pending.get(&place_of(&job.old)?)?;
        (pending.bp == job.old).then_some(pending.data.len())
    }

    /// Prepares on other threads, a chunk each, and stores in order while they go on.
    async fn write_chunks(
        &mut self,
        jobs: Vec<Job>,
        chunks: Vec<usize>,
        rules: Arc<Rules>,
        pointers: &mut Vec<BlkPtr>,
    ) -> Result<(), EngineError> {
        let (mut jobs, mut chunks) = (jobs.into_iter(), chunks.into_iter());
        let mut running = VecDeque::with_capacity(self.workers);
        loop {
            while running.len() < self.workers
                && let Some(len) = chunks.next()
            {
                let chunk: Vec<(Job, Option<usize>)> = jobs
                    .by_ref()
                    .take(len)
                    .map(|job| {
                        let reuse = self.reuse(&job);
                        (job, reuse)
                    })
                    .collect();
                let rules = Arc::clone(&rules);
                running.push_back(tokio::task::spawn_blocking(move || {
                    let prepared = chunk.into_iter().map(|(job, reuse)| {
                        let prepared = prepare(&job, reuse, &rules);
                        (job, prepared)
                    });
                    prepared.collect::<Vec<_>>()
                }));
            }
            let Some(next) = running.pop_front() else { return Ok(()) };
            let prepared = match self.devices.leaves.beside(next).await {
                Ok(prepared) => prepared,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => return Err(EngineError::Suspended("the runtime is shutting down".to_owned())),
            };
            for (job, prepared) in prepared {
                pointers.push(self.store(job, prepared?).await?);
            }
            self.remember();
            self.devices.leaves.keep_below(IN_FLIGHT_BYTES).await;
            self.secure_some().await?;
        }
    }

    /// Gives a prepared block its place and sends it there, or keeps it.
    async fn store(&mut self, job: Job, prepared: Prepared) -> Result<BlkPtr, EngineError> {
        let old = place_of(&job.old).filter(|place| {
            let pending = self.pending.get(place);
            pending.is_some_and(|pending| job.old.birth() == self.txg && pending.bp == job.old)
        });
        let (data, compression, checksum) = match prepared {
            Prepared::Stored { data, compression, checksum } => (data, compression, checksum),
            Prepared::Hole => {
                old.into_iter().for_each(|place| self.forget(place));
                return Ok(self.hole(&job.old, job.content.len() as u64, job.object_type, job.level));
            }
            Prepared::Embedded(bp) => {
                old.into_iter().for_each(|place| self.forget(place));
                return Ok(*bp);
            }
            Prepared::Written(bp) => return self.enter(&job, *bp),
        };
        let kept = old.filter(|place| {
            job.policy.metadata
                && self.pending.get(place).is_some_and(|pending| pending.data.len() == data.len())
        });
        let shape = match kept.and_then(|place| self.pending.remove(&place)) {
            Some(pending) => {
                self.contents -= pending.counted;
                pending.shape
            }
            None => {
                // The new place first: it must not be the old one, or a caller that compares would see no change.
                let shape = self.allocate(data.len() as u64, &job.policy).await?;
                old.into_iter().for_each(|place| self.forget(place));
                shape
            }
        };
        let bp = BlkPtr::stored(&Stored {
            dvas: shape.dvas(),
            lsize: job.content.len() as u64,
            psize: data.len() as u64,
            compression_id: compression.id(),
            checksum_id: job.policy.checksum.id(),
            object_type: job.object_type,
            level: job.level,
            dedup: false,
            order: Order::Little,
            birth: self.txg,
            physical_birth: self.txg,
            fill: job.fill,
            checksum,
        })
        .map_err(EngineError::encode("block pointer"))?;
        let place = place_of(&bp).expect("a stored block has an address");
        if job.policy.metadata {
            let is_above = job.level > 0 && job.object_type == ObjectType::ZVOL;
            // What is stored as it is has one memory.
            let is_beside = is_above && data.len() < job.content.len();
            let counted = if is_beside { job.content.len() as u64 } else { 0 };
            let fits = counted == 0 || self.contents + counted <= self.contents_max;
            let (content, counted) = if fits { (Some(job.content), counted) } else { (None, 0) };
            self.contents += counted;
            match &content {
                Some(content) => self.overlay.insert(bp, content.clone(), u32::MAX),
                None => self.overlay.insert_stored(bp, data.clone()),
            }
            let pending = Pending { bp, at: job.at, content, counted, data, policy: job.policy, shape };
            self.pending.insert(place, pending);
            return Ok(bp);
        }
        self.written.blocks += 1;
        self.written.bytes += data.len() as u64;
        touch(&mut self.touched, &shape);
        let (devices, mut pieces) = (&mut self.devices, 0);
        let sums = Sums { algorithm: job.policy.checksum, salt: self.io.salt(), txg: self.txg };
        shape.fill(&data, sums, &mut |dva, data| {
            pieces += devices.put(dva, data, place)?;
            Ok(())
        })?;
        self.overlay.insert(bp, job.content.clone(), pieces);
        self.kept.push(WrittenBlock { bp, at: job.at, content: Some(job.content), stored: Some(data) });
        if matches!(shape, Shape::Gang { .. }) {
            self.gangs.insert(place, shape);
        }
        Ok(bp)
    }

    /// Makes what was written ahead a block of this transaction group.
    fn enter(&mut self, job: &Job, bp: BlkPtr) -> Result<BlkPtr, EngineError> {
        if bp.is_hole() {
            return Ok(self.hole(&job.old, job.content.len() as u64, job.object_type, job.level));
        }
        let is_this_block = bp.lsize() == job.content.len() as u64
            && (bp.object_type(), bp.level()) == (job.object_type, job.level);
        if !is_this_block || bp.birth() != self.txg || bp.is_gang() {
            let detail = format!("{bp} was not written ahead as block {} of this transaction group", job.at);
            return Err(EngineError::Encode { what: "block", detail });
        }
        if bp.is_embedded() {
            return Ok(bp);
        }
        let mut tops: Tops = SmallVec::new();
        for dva in bp.dvas() {
            self.alloc.adopt(dva)?;
            // Whoever wrote it may not have come to flush it.
            self.devices.flush_too(dva.vdev);
            tops.push(dva.vdev);
        }
        tops.sort_unstable();
        tops.dedup();
        self.touched.insert(tops);
        self.entered.push(Job { written: Some(Box::new(bp)), ..job.clone() });
        self.written.blocks += 1;
        self.written.bytes += bp.psize();
        self.kept.push(WrittenBlock { bp, at: job.at, content: Some(job.content.clone()), stored: None });
        Ok(bp)
    }

    /// Puts what was stored into the read cache: it is as good as read.
    fn remember(&mut self) {
        self.io.remember(self.kept.drain(..).filter(is_kept));
    }

    async fn allocate(&mut self, psize: u64, policy: &BlockPolicy) -> Result<Shape, EngineError> {
        let purpose = if policy.metadata { Purpose::Metadata } else { Purpose::Data };
        match self.alloc.allocate(psize, policy.copies, purpose).await {
            Ok(copies) => Ok(Shape::Whole(copies)),
            Err(EngineError::NoSpace { .. }) => {
                gang::allocate(&mut self.alloc, psize, policy.copies, purpose).await
            }
            Err(error) => Err(error),
        }
    }

    /// Gives back the place of metadata that waits.
    fn forget(&mut self, place: Place) {
        if let Some(pending) = self.pending.remove(&place) {
            self.contents -= pending.counted;
            self.overlay.remove(place);
            pending.shape.release(&mut self.alloc);
            self.moved.entry(place).or_default().push(pending.bp);
        }
    }
}

/// What the pool says about all blocks of a transaction group.
fn rules(alloc: &impl Extents, io: &PoolIo, traits: Traits, txg: u64) -> Rules {
    let (min_alloc, gcd_alloc) = alloc.granularity();
    Rules {
        min_alloc: usize::try_from(min_alloc).unwrap_or(usize::MAX).max(512),
        gcd_alloc: usize::try_from(gcd_alloc).unwrap_or(usize::MAX).max(512),
        embedded_data: traits.embedded_data,
        salt: io.salt().copied(),
        txg,
    }
}

/// Whether the jobs are worth other threads, and if so, how many go into each chunk.
fn chunks(jobs: &[Job]) -> Option<Vec<usize>> {
    let compresses = |job: &Job| job.policy.compression.algorithm != compress::Algorithm::Off;
    let (mut lens, mut len, mut cost) = (Vec::new(), 0, 0);
    for job in jobs {
        len += 1;
        cost += if job.written.is_some() || job.known_sum().is_some() {
            0
        } else if compresses(job) {
            job.content.len() * (SUM_CHUNK / COMPRESS_CHUNK)
        } else {
            job.content.len()
        };
        if cost >= SUM_CHUNK {
            lens.push(std::mem::take(&mut len));
            cost = 0;
        }
    }
    if len > 0 {
        lens.push(len);
    }
    (lens.len() > 1).then_some(lens)
}

/// Notes on which devices the parts of a block are.
fn touch(touched: &mut BTreeSet<Tops>, shape: &Shape) {
    shape.each(&mut |copies| {
        let mut tops: Tops = copies.iter().map(|dva| dva.vdev).collect();
        tops.sort_unstable();
        tops.dedup();
        // A handful of sets in any pool, and the same one nearly always.
        if !touched.contains(&tops) {
            touched.insert(tops);
        }
    });
}

/// Whether a block that is written is worth being kept.
fn is_kept(block: &WrittenBlock) -> bool {
    block.bp.lsize() <= CACHED_MAX as u64
}

#[cfg(test)]
mod tests;
