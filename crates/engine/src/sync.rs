//! One transaction group, from dirty to durable.

use std::sync::Arc;

use ondisk::{nvlist::NvList, uberblock::Uberblock};
use pool::{Pool, PoolIo};
use rand::rngs::StdRng;

use crate::{dmu::MutSet, write::BlockWriter};

/// Objects of the MOS that every transaction group needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Directory of the root dataset.
    pub root_dir: u64,
    /// Directory `$MOS`.
    pub mos_dir: u64,
    /// Directory `$FREE`.
    pub free_dir: u64,
    /// Directory `$ORIGIN`.
    pub origin_dir: u64,
    /// Snapshot `$ORIGIN@$ORIGIN`, a dataset; 0 on pools so old that they have none.
    pub origin_snapshot: u64,
    /// Lists of blocks to be freed.
    pub free_bpobj: u64,
    /// Deferred frees of other writers; ours stays empty.
    pub sync_bplist: u64,
    /// Object with the packed configuration.
    pub config: u64,
}

/// What happened to datasets in this transaction group that open volumes must hear of once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The dataset (object) has another content: rolled back, resized.
    Content(u64),
    /// It has another name.
    Renamed(u64),
    /// It is gone.
    Destroyed(u64),
    /// Properties that concern serving changed (readonly, sync).
    Properties(u64),
}

/// The state of a pool as the syncing task sees it.
#[derive(Debug)]
pub struct Syncer {
    /// The pool's name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The transaction group being synced.
    pub txg: u64,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// For guids and salts; seeded.
    pub random: StdRng,
    /// Writes blocks; the allocator is in it.
    pub out: BlockWriter,
    /// The MOS as it will be.
    pub mos: MutSet,
    /// Where things are.
    pub places: Places,
    /// The pool's configuration (what the MOS object `config` holds; labels are made from it).
    pub config: NvList,
    /// Configuration or label features changed: rewrite both in this transaction group.
    pub config_dirty: bool,
    /// The last committed uberblock.
    pub uberblock: Uberblock,
    /// Devices and cache.
    pub io: Arc<PoolIo>,
    /// The view of the last commit; none while a pool is created.
    pub view: Option<Arc<Pool>>,
    /// See [`Change`].
    pub changes: Vec<Change>,
}
