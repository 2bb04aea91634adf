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
//! Here is what the writer knows of its transaction group. What it does is in `batch` (jobs come, pointers go), `store` (one
//! block), `free`, and `finish` (all of it durable).
//!
//! Facts: docs/format/compression.md §2, blkptr.md, vdevs.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType};
use pool::{Bookmark, PoolIo, WrittenBlock, dmu::BlockSource};
use smallvec::SmallVec;

pub mod ahead;
mod batch;
mod devices;
pub mod direct;
mod extents;
mod finish;
mod free;
mod gang;
pub(crate) mod held;
mod history;
pub mod labels;
mod layout;
mod leaves;
pub(crate) mod ours;
mod overlay;
mod prepare;
pub(crate) mod repair;
mod store;
pub mod summed;
mod target;
mod urgency;

pub use extents::Extents;
pub use leaves::FailedLeaf;
pub(crate) use overlay::Parts;
pub(crate) use target::Targets;

use self::{
    devices::{Devices, Tops},
    direct::Direct,
    gang::Shape,
    held::Held,
    overlay::{Overlay, Place},
    prepare::Rules,
    store::Pending,
    summed::Sum,
};
use crate::{
    alloc::Allocator,
    devices::diagnose::Reports,
    policy::{BlockPolicy, Traits},
    suspend::Suspension,
};

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

    /// What it takes in memory beside what is written.
    pub(crate) fn held(&self) -> Arc<Held> {
        Arc::clone(self.devices.leaves.held())
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

    fn rules(&self) -> Rules {
        rules(&self.alloc, &self.io, self.traits, self.txg)
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

#[cfg(test)]
mod tests;
