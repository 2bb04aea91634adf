//! Pools from nothing, and new devices for pools there are: what goes on the labels, which devices may be used.
//!
//! [`VdevSpec`] is what the user typed, [`Plan`] what becomes of it on devices of certain sizes; nothing is touched
//! before [`create`] or [`add`].
//!
//! Facts: docs/format/labels.md, zvol.md §3, spacemap.md §1.

use std::sync::Arc;

use disk::Disk;
use ondisk::nvlist::NvList;
use pool::cache::BlockCache;

use crate::{
    dsl::{OpError, Properties},
    sync::Syncer,
};

/// What a pool is created with.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its name.
    pub name: String,
    /// Guids of the features to enable ([`features`]).
    pub features: Vec<&'static str>,
    /// Pool properties (`-o`), except `ashift`.
    pub pool_properties: Properties,
    /// Properties of the root dataset (`-O`).
    pub root_properties: Properties,
    /// Id of this host.
    pub hostid: u64,
    /// Name of this host.
    pub hostname: String,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// Decides guids and salts.
    pub seed: u64,
    /// Where its blocks are cached.
    pub cache: Arc<BlockCache>,
    /// Threads for compression and checksums; 0 does all in the syncing task.
    pub workers: usize,
    /// First record of its history.
    pub history: Option<NvList>,
}

/// Features of a new pool by the value of the property `compatibility`.
///
/// # Errors
/// No such set.
pub fn features(_compatibility: &str) -> Result<Vec<&'static str>, OpError> {
    todo!("life")
}
/// Creates a pool on `disks`, which are those of [`Plan::paths`], in that order. The labels are written; the pool
/// exists once the first transaction group (4, which the returned syncer is in) has been synced.
pub async fn create(
    _plan: &Plan,
    _disks: &[Arc<dyn Disk>],
    _options: CreateOptions,
) -> Result<Syncer, OpError> {
    todo!("life")
}
/// `zpool add`: takes the devices of `plan` into the pool, in this transaction group. `disks` as in [`create`].
pub async fn add(_cx: &mut Syncer, _plan: &Plan, _disks: &[Arc<dyn Disk>]) -> Result<(), OpError> {
    todo!("life")
}

/// What devices are to be, as on the command line of `zpool create`.
#[derive(Clone, Debug)]
pub struct VdevSpec {}

impl VdevSpec {
    /// Reads `mirror a b log c` and the like.
    ///
    /// # Errors
    /// As OpenZFS words it, with "invalid vdev specification: " in front.
    pub fn parse(_words: &[String]) -> Result<Self, OpError> {
        todo!("life")
    }
    /// The leaves, in the order in which [`create`] wants their disks.
    pub fn paths(&self) -> Vec<&str> {
        todo!("life")
    }
}

/// Devices of known sizes, arranged.
#[derive(Clone, Debug)]
pub struct Plan {}

/// What is known of a device before it is used.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    /// Bytes.
    pub bytes: u64,
    /// A block device, not a file.
    pub block_device: bool,
    /// Smallest unit it can address.
    pub logical_sector: u32,
    /// Smallest unit it writes at once.
    pub physical_sector: u32,
}

impl Plan {
    /// Arranges devices. `facts` are of the paths of `spec`, in order. `force` accepts mixed redundancy.
    ///
    /// # Errors
    /// Devices too small, mixed redundancy without `force`, an impossible ashift.
    pub fn new(
        _spec: &VdevSpec,
        _facts: &[DeviceFacts],
        _ashift: Option<u32>,
        _force: bool,
    ) -> Result<Self, OpError> {
        todo!("life")
    }
    /// The leaves, in the order in which [`create`] wants their disks.
    pub fn paths(&self) -> Vec<&str> {
        todo!("life")
    }
    /// Bytes of volumes that fit, by volblocksize (4K … 128K): parity, padding and slop space taken off.
    pub fn capacity(&self) -> Vec<(u32, u64)> {
        todo!("life")
    }
}
