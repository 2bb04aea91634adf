//! A volume that can be written to: what is dirty in memory over what is committed on disk.
//!
//! ```text
//!   read ──▶ memory: open, quiescing, syncing group ──▶ committed state (pool::Volume over a data object)
//!   write ─▶ memory: open group                              ▲
//!               └── dirty(txg) ──▶ syncing task ──▶ committed(txg, data) ── then the group is forgotten
//! ```
//!
//! * A write is in one transaction group as a whole, up to 1 MiB; a longer one is a sequence of such writes. So is a
//!   discard, up to some thousand blocks that are there.
//! * A block is in memory from the moment its write is acknowledged until a committed state contains it, so
//!   readers never see a gap.
//! * What must be durable at once goes to the intent log as well ([`crate::zil`]); where that cannot help, it waits
//!   for its transaction group.
//!
//! The parts: [`memory`] is the changes themselves, [`piece`] cuts requests into blocks, [`discard`] those that free
//! blocks, [`change`] and [`read`] are the two directions, [`reach`] asks what a change needs of the tree. Locks: `updating`
//! before `memory` before that of [`Txgs`]; under `memory` only map operations, and `update` asks which group is open.
//!
//! Facts: docs/format/zvol.md, txg-and-throttle.md §1.

mod change;
mod content;
mod discard;
mod memory;
mod piece;
mod ranges;
mod reach;
mod read;
pub(crate) mod replay;
#[cfg(test)]
mod tests;
mod unlogged;

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use block::{
    Asked, BlockVolume, Durability, Extent, Geometry, Identity, Keeper, Segments, Space, Tell, VolumeError,
    VolumeFuture,
};
use bytes::Bytes;
use codec::checksum;
use ondisk::blkptr::BlkPtr;
use parking_lot::{Mutex, RwLock};
use pool::{
    dmu::{BlockSource, Object},
    volume::Volume,
};
use smallvec::smallvec;

use crate::{
    dsl::{Dirty, Holding},
    txg::Txgs,
    zil::{
        Log, Report, Supply, Why,
        log::{EVERYTHING, Source, Want},
        records::Batch,
    },
};
pub(crate) use change::FREED_BLOCK_BYTES;
use memory::Memory;
use piece::{Cut, Payload, Piece, Zeroes};
use reach::Reach;

/// How a volume's clients are to be treated; from its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// `sync` property.
    pub sync: SyncMode,
    /// The most that one block counts in the pool, all copies: [`pool::space::block_space`].
    pub block_space: u64,
    /// The same of one indirect block.
    pub indirect_space: u64,
    /// Copies of each block, 1-3.
    pub copies: u8,
    /// A block of zeroes may become a hole (compression is not off).
    pub punch_zeroes: bool,
    /// Blocks will be stored as they are, with this checksum, which is cheap.
    pub sum_early: Option<checksum::Algorithm>,
    /// `logbias=throughput`: the intent log stays off log devices.
    pub throughput: bool,
}

/// The `sync` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Flush and FUA are durable.
    Standard,
    /// Every write is.
    Always,
    /// Nothing is.
    Disabled,
}

/// A volume open for writing. Implements [`BlockVolume`].
pub struct LiveVolume {
    dataset: u64,
    /// Bytes of a block; never changes.
    block: u64,
    /// A block of zeroes.
    zeroes: Bytes,
    txgs: Arc<Txgs>,
    log: Arc<Log>,
    current: ArcSwap<Current>,
    memory: RwLock<Memory>,
    /// Groups in `memory`, so that nobody takes the lock to find it empty.
    groups: AtomicUsize,
    closed: AtomicBool,
    /// What belongs to it besides its content; none where the pool cannot keep it.
    keeper: OnceLock<Arc<dyn Keeper>>,
    /// What it held of the pool at the last commit, and what of that nobody else did: [`Holding`].
    used: AtomicU64,
    unshared: AtomicU64,
    /// Held by whoever replaces `current`.
    updating: Mutex<()>,
    reach: Reach,
    /// Through this clients read, whatever what is committed came from.
    source: OnceLock<Arc<dyn BlockSource>>,
    /// Through this pointers are read, and what else changes need: see [`reach`].
    patient: OnceLock<Arc<dyn BlockSource>>,
}

/// What is on disk, and how it is served.
struct Current {
    service: Service,
    volume: Volume,
    /// The same through what waits for devices that are away, for changes. Made once: every small write over a larger block
    /// reads through it.
    patient: Volume,
    /// Goes up when the content is replaced.
    generation: u64,
    earlier: Earlier,
}

/// Transaction groups that are not synced yet, at most.
const GROUPS: u64 = 3;

/// What was announced before the volume's blocks got more copies pays for no more than those there were.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    /// The last transaction group for which that holds.
    until: u64,
    copies: u8,
}

impl Current {
    /// Copies of each block that is written in `txg`, at most.
    fn copies_in(&self, txg: u64) -> u8 {
        let Earlier { until, copies } = self.earlier;
        if txg <= until { copies.min(self.service.copies) } else { self.service.copies }
    }

    /// Checks the blocks of a piece of a request that was checked when it came: the size may have changed since.
    fn check_blocks(&self, piece: &Piece, block: u64) -> Result<(), VolumeError> {
        let size = self.service.size;
        let whole = piece.whole.iter().map(|(blkid, _)| blkid + 1);
        let partial = piece.partial.iter().map(|partial| partial.blkid + 1);
        let freed = piece.freed.iter().map(|blocks| blocks.end);
        let end = whole.chain(partial).chain(freed).max().unwrap_or(0);
        if end <= size.div_ceil(block) {
            return Ok(());
        }
        Err(VolumeError::OutOfRange { offset: (end - 1).saturating_mul(block), len: block, size })
    }
}

impl Service {
    /// Where log blocks are to be.
    fn supply(&self) -> Supply {
        if self.throughput { Supply::Pool } else { Supply::Log }
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, block: self.block, read_only: self.read_only }
    }
}

impl fmt::Debug for LiveVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveVolume({})", self.current.load().volume.identity().name)
    }
}

/// The engine's side.
impl LiveVolume {
    /// A volume over its committed data object.
    #[must_use]
    pub fn new(
        dataset: u64,
        identity: Identity,
        service: Service,
        data: Object,
        txgs: Arc<Txgs>,
        log: Arc<Log>,
    ) -> Arc<Self> {
        let block = data.block_bytes();
        let data = Arc::new(data);
        let volume = Volume::over(Arc::clone(&data), identity.clone(), service.geometry());
        let patient = volume.successor(data, identity, service.geometry());
        log.set_supply(service.supply());
        let this = Arc::new(Self {
            dataset,
            block,
            zeroes: Bytes::from(vec![0; block as usize]),
            txgs,
            log,
            current: ArcSwap::from_pointee(Current {
                service,
                volume,
                patient,
                generation: 0,
                earlier: Earlier { until: 0, copies: service.copies },
            }),
            memory: RwLock::default(),
            groups: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            keeper: OnceLock::new(),
            used: AtomicU64::new(0),
            unshared: AtomicU64::new(0),
            updating: Mutex::new(()),
            reach: Reach::default(),
            source: OnceLock::new(),
            patient: OnceLock::new(),
        });
        let source: Weak<Self> = Arc::downgrade(&this);
        this.log.attach(source);
        this
    }

    /// Where what belongs to it survives power loss; for good.
    pub(crate) fn keep_in(&self, keeper: Arc<dyn Keeper>) {
        let _first = self.keeper.set(keeper);
    }

    /// Reads for clients through `source`, and what changes need through what waits for devices that are away as transaction
    /// groups do; for good.
    pub(crate) fn read_through(&self, source: Arc<dyn BlockSource>, patient: Arc<dyn BlockSource>) {
        let _first = (self.source.set(source), self.patient.set(patient));
        let _updating = self.updating.lock();
        let old = self.current.load();
        self.show(&old, old.volume.data(), old.generation);
    }

    /// What it holds of the pool as of the last commit.
    pub(crate) fn set_holding(&self, holding: Holding) {
        self.used.store(holding.all, Ordering::Relaxed);
        self.unshared.store(holding.alone, Ordering::Relaxed);
    }

    /// Who asked for stability, and what it took.
    #[must_use]
    pub fn log_report(&self) -> Report {
        self.log.report()
    }

    /// Its dataset object in the MOS.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.dataset
    }

    /// How it is served at the moment.
    #[must_use]
    pub fn service(&self) -> Service {
        self.current.load().service
    }

    /// Whether something is dirty in `txg`.
    #[must_use]
    pub fn is_dirty(&self, txg: u64) -> bool {
        self.memory.read().has(txg)
    }

    /// What is to be synced in `txg`, which takes no more changes. It stays readable.
    #[must_use]
    pub fn dirty(&self, txg: u64) -> Dirty {
        let (changes, (ahead, unwanted)) = {
            let mut memory = self.memory.write();
            let Some(changes) = memory.seal(txg) else { return Dirty::default() };
            (changes, memory.ahead(txg))
        };
        // The list is made without the lock: a hundred thousand blocks take milliseconds.
        let current = self.current.load();
        let end = current.service.size.div_ceil(self.block);
        Dirty {
            blocks: changes.blocks(end),
            freed: changes.freed(end),
            ahead: ahead.into_iter().collect(),
            unwanted,
            copies_max: Some(current.copies_in(txg)),
        }
    }

    /// `txg` is on disk: `data` replaces what was read from before, the dirty blocks of `txg` are forgotten.
    pub fn committed(&self, txg: u64, data: Object) {
        self.read_from(data);
        let forgotten = {
            let mut memory = self.memory.write();
            let forgotten = memory.forget(txg);
            self.groups.store(memory.len(), Ordering::Release);
            forgotten
        };
        drop(forgotten);
    }

    /// What is committed of its content.
    pub(crate) fn data(&self) -> Arc<Object> {
        Arc::clone(self.current.load().volume.data())
    }

    /// Another size, name or way to treat clients; takes effect at once. The block size never changes.
    pub fn update(&self, identity: Identity, service: Service) {
        let _updating = self.updating.lock();
        let old = self.current.load_full();
        let renewed = |old: &Volume, identity| {
            let data = Arc::clone(old.data());
            old.successor(data, identity, service.geometry())
        };
        let (volume, patient) = (renewed(&old.volume, identity.clone()), renewed(&old.patient, identity));
        {
            // Under the lock: what is inserted afterwards was announced at the new price.
            let _memory = self.memory.write();
            let open = self.txgs.open();
            let earlier = if service.copies <= old.service.copies {
                old.earlier
            } else if open.saturating_sub(old.earlier.until) < GROUPS {
                // A group of then may not be synced yet.
                Earlier { until: open, copies: old.service.copies.min(old.earlier.copies) }
            } else {
                Earlier { until: open, copies: old.service.copies }
            };
            let generation = old.generation;
            self.current.store(Arc::new(Current { service, volume, patient, generation, earlier }));
        }
        self.log.set_supply(service.supply());
        if service.size < old.service.size {
            let cut = self.memory.write().shrink(service.size.div_ceil(self.block));
            for (txg, blocks) in cut.into_iter().filter(|(_, blocks)| *blocks > 0) {
                self.txgs.undirty(txg, blocks * self.block);
            }
        }
    }

    /// The dataset is gone or the pool closes: every further operation is `NotReady`. What was acknowledged
    /// before can still be synced.
    pub fn close(&self) {
        // Under the lock, so that no change enters after this returns.
        let _memory = self.memory.write();
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether it is closed, and nothing of it is left to be synced.
    pub(crate) fn is_over(&self) -> bool {
        let memory = self.memory.read();
        self.is_closed() && memory.len() == 0
    }

    /// The committed content was replaced (rollback). Changes of transaction groups that are not committed stay.
    pub fn replaced(&self, data: Object) {
        self.read_from(data);
        self.reach.forget();
    }

    /// `data` is what is committed.
    fn read_from(&self, data: Object) {
        let _updating = self.updating.lock();
        let old = self.current.load();
        self.show(&old, &data, old.generation + 1);
    }

    /// Puts `data` in the place of what `old` has, while `updating` is held.
    fn show(&self, old: &Current, data: &Object, generation: u64) {
        let (service, earlier) = (old.service, old.earlier);
        let through = |source: &OnceLock<Arc<dyn BlockSource>>| {
            let data = match source.get() {
                Some(source) => data.over(Arc::clone(source)),
                None => data.clone(),
            };
            old.volume.successor(Arc::new(data), old.volume.identity(), service.geometry())
        };
        let (volume, patient) = (through(&self.source), through(&self.patient));
        self.current.store(Arc::new(Current { service, volume, patient, generation, earlier }));
    }
}

/// The clients' side.
impl LiveVolume {
    fn check_open(&self) -> Result<(), VolumeError> {
        if self.is_closed() {
            return Err(VolumeError::NotReady("the volume is closed".into()));
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        self.check_open()?;
        let size = self.current.load().service.size;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(VolumeError::OutOfRange { offset, len, size }),
        }
    }

    /// Checks a change; returns how it is served.
    fn check_change(&self, offset: u64, len: u64) -> Result<Service, VolumeError> {
        let service = self.service();
        self.check_open()?;
        if service.read_only {
            return Err(VolumeError::ReadOnly);
        }
        self.check(offset, len)?;
        Ok(service)
    }

    fn cut(&self, service: &Service) -> Cut<'_> {
        Cut {
            block: self.block,
            punch_zeroes: service.punch_zeroes,
            zeroes: &self.zeroes,
            sum: service.sum_early,
        }
    }

    /// Why a change has to be durable before it is acknowledged, if so; counts who asked.
    fn must_be_durable(&self, service: &Service, durability: Durability) -> bool {
        self.log.stats.writes.fetch_add(1, Ordering::Relaxed);
        let why = match (service.sync, durability) {
            (SyncMode::Always, _) => Why::Always,
            (_, Durability::Cached) => return false,
            (_, Durability::Stable(Asked::Fua)) => Why::Fua,
            (_, Durability::Stable(Asked::CacheOff)) => Why::CacheOff,
        };
        self.is_demanded(service, why)
    }

    /// Counts a demand for stability; true if it is to be met.
    fn is_demanded(&self, service: &Service, why: Why) -> bool {
        self.log.stats.asked(why);
        if service.sync == SyncMode::Disabled {
            self.log.stats.ignored.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Whether a change that was just made is acknowledged only when it is durable: that was clear from the beginning, or
    /// somebody has said `sync=always` since, and relies on it for whatever is acknowledged from then on.
    fn must_wait(&self, is_stable: bool) -> bool {
        is_stable || self.service().sync == SyncMode::Always
    }

    /// The blocks of a range of bytes.
    fn blocks_of(&self, offset: u64, end: u64) -> Want {
        smallvec![offset / self.block..end.div_ceil(self.block)]
    }

    /// Waits until these blocks are durable as they are now: in the log, or with their transaction group.
    async fn make_durable(&self, want: Want) -> Result<(), VolumeError> {
        if self.log.commit(want).await { Ok(()) } else { self.txgs.wait_synced().await }
    }

    /// A change of these bytes was made: returns when it may be acknowledged, and tells before it waits for that.
    async fn made(
        &self,
        is_stable: bool,
        offset: u64,
        end: u64,
        seen: Option<Tell<'_>>,
    ) -> Result<(), VolumeError> {
        if !self.must_wait(is_stable) {
            return Ok(());
        }
        tell(seen);
        self.make_durable(self.blocks_of(offset, end)).await
    }

    fn change<'a>(
        &'a self,
        offset: u64,
        data: Segments,
        durability: Durability,
        seen: Option<Tell<'a>>,
    ) -> VolumeFuture<'a, ()> {
        let len: u64 = data.iter().map(|segment| segment.len() as u64).sum();
        let service = match self.check_change(offset, len) {
            Ok(service) => service,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let end = offset + len;
        let cut = self.cut(&service);
        if len == 0 || cut.end_of_piece(offset, end) < end {
            return Box::pin(self.write_pieces(service, offset, end, data, durability, seen));
        }
        // The usual write: one piece, at once.
        let piece = cut.write(offset, end, &mut Payload::new(data));
        let is_stable = self.must_be_durable(&service, durability);
        match self.apply_now(piece) {
            Err(error) => Box::pin(std::future::ready(Err(error))),
            Ok(None) if !self.must_wait(is_stable) => Box::pin(std::future::ready(Ok(()))),
            Ok(None) => {
                tell(seen);
                Box::pin(self.make_durable(self.blocks_of(offset, end)))
            }
            Ok(Some(piece)) => Box::pin(async move {
                self.apply(piece).await?;
                self.made(is_stable, offset, end, seen).await
            }),
        }
    }

    async fn write_pieces(
        &self,
        service: Service,
        offset: u64,
        end: u64,
        data: Segments,
        durability: Durability,
        seen: Option<Tell<'_>>,
    ) -> Result<(), VolumeError> {
        let is_stable = self.must_be_durable(&service, durability);
        let cut = self.cut(&service);
        let mut payload = Payload::new(data);
        let mut at = offset;
        while at < end {
            let until = cut.end_of_piece(at, end);
            let piece = cut.write(at, until, &mut payload);
            self.apply(piece).await?;
            at = until;
        }
        self.made(is_stable, offset, end, seen).await
    }

    async fn zero_pieces(
        &self,
        offset: u64,
        len: u64,
        what: Zeroes,
        durability: Durability,
        seen: Option<Tell<'_>>,
    ) -> Result<(), VolumeError> {
        let service = self.check_change(offset, len)?;
        let is_stable = self.must_be_durable(&service, durability);
        // A block of zeroes that is written to a compressed volume becomes a hole anyway.
        let what = if what == Zeroes::Store && service.punch_zeroes { Zeroes::Punch } else { what };
        let end = offset + len;
        self.become_zeroes(&self.cut(&service), offset..end, what).await?;
        self.made(is_stable, offset, end, seen).await
    }
}

fn tell(seen: Option<Tell<'_>>) {
    if let Some(seen) = seen {
        seen();
    }
}

impl Source for LiveVolume {
    fn block(&self) -> u64 {
        self.block
    }

    fn unlogged(&self) -> u64 {
        self.memory.read().unlogged_bytes()
    }

    fn gather(&self, want: &[Want], ahead: Option<u64>, batch: &mut Batch) {
        let mut memory = self.memory.write();
        for blocks in want.iter().flatten() {
            memory.gather(blocks, self.block, ahead, batch);
        }
    }

    fn written_ahead(&self, txg: u64, blkid: u64, content: &Bytes, to: BlkPtr) {
        self.memory.write().written_ahead(txg, blkid, content, to);
    }

    fn lacks(&self, want: &Want) -> bool {
        let memory = self.memory.read();
        want.iter().any(|blocks| memory.is_unlogged(blocks))
    }
}

impl BlockVolume for LiveVolume {
    fn geometry(&self) -> Geometry {
        self.current.load().service.geometry()
    }

    fn identity(&self) -> Identity {
        self.current.load().volume.identity()
    }

    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        self.read_at_hand(offset, len)
    }

    fn read_cached_each(&self, reads: &[(u64, usize)], found: &mut dyn FnMut(usize, Option<Segments>)) {
        self.read_each_at_hand(reads, found);
    }

    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(self.read_pieces(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, max_extents: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(self.list_extents(offset, len, max_extents))
    }

    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        self.change(offset, data, durability, None)
    }

    fn write_telling<'a>(
        &'a self,
        offset: u64,
        data: Segments,
        durability: Durability,
        seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        self.change(offset, data, durability, Some(seen))
    }

    /// With `allocate` zeroes are stored if the volume is not compressed; if it is they become holes, as any block
    /// of zeroes does there, and the space is kept by the reservation, if there is one.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocate: bool,
        durability: Durability,
    ) -> VolumeFuture<'_, ()> {
        Box::pin(self.zero_pieces(offset, len, Zeroes::of(allocate), durability, None))
    }

    fn write_zeroes_telling<'a>(
        &'a self,
        offset: u64,
        len: u64,
        allocate: bool,
        durability: Durability,
        seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        Box::pin(self.zero_pieces(offset, len, Zeroes::of(allocate), durability, Some(seen)))
    }

    fn unmap(&self, offset: u64, len: u64, durability: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(self.zero_pieces(offset, len, Zeroes::Unmap, durability, None))
    }

    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.get().cloned()
    }

    /// Wanted is what the data counts: that of indirect blocks, which compress well, is not known before.
    fn space(&self) -> Option<Space> {
        let service = self.service();
        let full = service.size.div_ceil(self.block).saturating_mul(service.block_space);
        Some(Space {
            used: self.used.load(Ordering::Relaxed),
            available: self.txgs.committed(),
            wanted: full.saturating_sub(self.unshared.load(Ordering::Relaxed)),
        })
    }

    fn flush(&self) -> VolumeFuture<'_, ()> {
        let service = self.service();
        Box::pin(async move {
            self.check_open()?;
            if self.is_demanded(&service, Why::Flush) {
                self.make_durable(smallvec![EVERYTHING]).await?;
            }
            Ok(())
        })
    }
}
