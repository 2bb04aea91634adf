//! What tests of other modules begin with: a pool on disks in memory.

use std::sync::Arc;

use disk::{Disk, MemDisk};
use pool::cache::BlockCache;

use super::{CreateOptions, DeviceFacts, Plan, VdevSpec, create, features};
use crate::{
    dsl::{OpError, Properties},
    sync::Syncer,
};

/// Bytes of a disk.
const DISK: u64 = 128 << 20;

/// A pool of the devices that `words` ask for, which exists once its first transaction group is synced.
pub(crate) async fn in_memory(words: &[&str]) -> Syncer {
    try_in_memory(words).await.unwrap()
}

/// The same, if such a pool can be.
pub(super) async fn try_in_memory(words: &[&str]) -> Result<Syncer, OpError> {
    let spec = VdevSpec::parse(words).unwrap();
    let count = spec.paths().len();
    let facts = DeviceFacts { bytes: DISK, block_device: false, logical_sector: 512, physical_sector: 512 };
    let plan = Plan::new(&spec, &vec![facts; count], Some(12), true).unwrap();
    let disks: Vec<_> = (0..count).map(|_| Arc::new(MemDisk::new(DISK)) as Arc<dyn Disk>).collect();
    let options = CreateOptions {
        name: "tank".to_owned(),
        features: features("off").unwrap(),
        pool_properties: Properties::new(),
        root_properties: Properties::new(),
        hostid: 7,
        hostname: "host".to_owned(),
        now: 1_700_000_000,
        seed: 1,
        cache: Arc::new(BlockCache::new(16 << 20)),
        workers: 0,
        history: None,
    };
    create(&plan, &disks, options).await
}
