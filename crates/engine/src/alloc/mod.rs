//! Where blocks go: metaslabs, their free space, and the space maps that remember it.
//!
//! Owned by the syncing task. Facts: docs/format/spacemap.md, overview.md §6–7.

use std::sync::Arc;

use ondisk::blkptr::Dva;
use pool::{Pool, dmu::ObjectSet};
use smallvec::SmallVec;

use crate::{EngineError, dmu::MutSet, policy::Traits, space::Deflate};

/// What a block is for; decides the class of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Content of volumes and files.
    Data,
    /// Everything else of the tree.
    Metadata,
    /// Blocks of the intent log.
    Log,
}

/// A top-level device without content, as created or added.
#[derive(Clone, Debug)]
pub struct NewTop {
    /// Its id.
    pub id: u64,
    /// log2 of its sector.
    pub ashift: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of a metaslab.
    pub metaslab_shift: u32,
    /// Shape if it is a RAIDZ.
    pub raidz: Option<pool::vdev::raidz::Geometry>,
    /// It holds the intent log only.
    pub is_log: bool,
}

/// How full the pool is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Metaslabs of the devices for data, deflated: what dataset sizes are measured against.
    pub capacity: u64,
    /// Allocated on them, deflated.
    pub allocated: u64,
    /// Allocatable now on them, raw: neither allocated nor waiting to be reusable.
    pub free_now: u64,
    /// Freed, and waiting for later transaction groups to be reusable, raw.
    pub deferred: u64,
}

/// All free space of a pool.
#[derive(Debug)]
pub struct Allocator {}

impl Allocator {
    /// The allocator of an open pool. Space maps are loaded when first needed.
    pub async fn open(_view: &Pool, _traits: Traits) -> Result<Self, EngineError> {
        todo!("alloc")
    }
    /// The allocator of a pool that is being created.
    pub fn create(_traits: Traits, _tops: &[NewTop]) -> Self {
        todo!("alloc")
    }
    /// Takes a new top-level device into use.
    pub fn add(&mut self, _top: &NewTop) {
        todo!("alloc")
    }
    /// Deflate ratios of its devices.
    pub fn deflate(&self) -> &Deflate {
        todo!("alloc")
    }
    /// Smallest allocation and greatest common divisor of allocations over the devices for data, in bytes.
    pub fn granularity(&self) -> (u64, u64) {
        todo!("alloc")
    }
    /// Begins transaction group `txg`. `committed` is the MOS of the last one, from which space maps are
    /// loaded; none while a pool is created. On pools with log space maps: flushes what is unflushed, starts the
    /// log of `txg`, drops older ones (docs/format/spacemap.md §6, the "simplest" policy).
    pub async fn begin(
        &mut self,
        _txg: u64,
        _committed: Option<Arc<ObjectSet>>,
        _mos: &mut MutSet,
    ) -> Result<(), EngineError> {
        todo!("alloc")
    }
    /// Places for a block of `psize` stored bytes: one DVA per copy, spread over devices, or far apart.
    /// Fewer copies than asked for (but at least one) if there is no room for all.
    pub async fn allocate(
        &mut self,
        _psize: u64,
        _copies: u8,
        _purpose: Purpose,
    ) -> Result<SmallVec<[Dva; 3]>, EngineError> {
        todo!("alloc")
    }
    /// Takes back one extent (a DVA that is no gang: offset and asize as allocated). If it was allocated in this
    /// transaction group, the two cancel out; else it is free on disk from this one on, and in memory after the
    /// defer period.
    pub fn release(&mut self, _dva: Dva) {
        todo!("alloc")
    }
    /// Appends to the space maps (or the log) what was allocated and released since the last call. True if
    /// there was anything, so that the MOS is dirty again. Creates space maps and array entries as needed,
    /// condenses maps that grew too long.
    pub async fn write_maps(&mut self, _mos: &mut MutSet) -> Result<bool, EngineError> {
        todo!("alloc")
    }
    /// The transaction group is durable: deferred frees age.
    pub fn committed(&mut self) {
        todo!("alloc")
    }
    /// How full it is.
    pub fn totals(&self) -> Totals {
        todo!("alloc")
    }
    /// Metaslab array objects by top-level id, for the configuration: (id, object). Changes make it dirty.
    pub fn arrays(&self) -> Vec<(u64, u64)> {
        todo!("alloc")
    }
}
