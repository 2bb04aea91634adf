//! The second tier of the cache of a pool that is open for writing: its cache devices, as the pool lists them.
//!
//! ```text
//!   ARC ── a block leaves ──▶ Door ──▶ l2arc::L2 ──▶ cache devices
//!       ◀─ stored bytes, to be verified ──┘
//!   every commit, every look at the devices ──▶ follow: devices that came are opened, those that left are let go
//! ```
//! What a device remembers is found out in the background, and what came of it is told in the log. Nothing here can make
//! an operation of the pool fail. A pool that is only read has no second tier.
//!
//! * A block without a checksum that can be verified is never read from here: nobody could tell that it is another's.
//! * The cache holds the door, the engine what is behind it: when that is gone, the door leads nowhere.
//!
//! Facts: docs/format/l2arc.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use codec::compress;
use disk::Disk;
use l2arc::{AddError, Block, Key, L2, Offered, Open};
use ondisk::blkptr::{BlkPtr, Dva};
use parking_lot::Mutex;
use pool::{
    Pool, PoolIo,
    cache::{Below, BelowFuture, BlockCache, Fate, Share, Stored, is_servable},
    vdev::{Counted, Vdev, Work},
};

pub use l2arc::{
    BLOCK_NEEDS, Config, DeviceStatus, L2Stats, Recovered, SettingError, Stopped, memory_needed, reach,
    remembers,
};

use crate::{suspend::Suspension, write::ours::Ours};

/// The second tier of one pool.
#[derive(Debug)]
pub struct Second {
    l2: Arc<L2>,
    cache: Arc<BlockCache>,
    open: Open,
    /// Devices in use, and those that cannot be used as they are: by guid, with the disk it was tried with. `None` once the
    /// pool is left.
    known: Mutex<Option<BTreeMap<u64, Arc<dyn Disk>>>>,
    /// Devices that are being removed from the pool.
    leaving: Mutex<BTreeSet<u64>>,
    /// Its part in the cache's memory, while the pool has cache devices.
    share: Mutex<Option<Share>>,
    suspension: Arc<Suspension>,
}

/// Part of the cache's memory that blocks of all pools may take on their way to the devices, and the bounds of each pool's.
const BUFFER: (usize, u64, u64) = (16, 1 << 20, 16 << 20);
/// Part of the cache's memory that the indexes of all pools may take: OpenZFS's `l2arc_meta_percent`.
const INDEX_PERCENT: u64 = 33;

impl Second {
    /// Nothing but the door, below the pool's cache. `is_rewound`: the pool gave up transaction groups, whose blocks the
    /// devices may remember. Nothing is written to them once the pool may be another host's by `suspension`.
    pub(crate) fn new(io: &PoolIo, is_rewound: bool, config: Config, suspension: Arc<Suspension>) -> Self {
        let l2 = Arc::new(L2::new(io.tree().guid, fitted(config, io.cache())));
        io.set_below(Some(Arc::new(Door(Arc::downgrade(&l2)))));
        Self {
            l2,
            cache: Arc::clone(io.cache()),
            open: if is_rewound { Open::Fresh } else { Open::Remember },
            known: Mutex::new(Some(BTreeMap::new())),
            leaving: Mutex::default(),
            share: Mutex::default(),
            suspension,
        }
    }

    /// Uses the devices that the pool has now. The view is taken behind the lock, so that none is followed after a newer
    /// one.
    pub(crate) fn follow(&self, view: impl FnOnce() -> Arc<Pool>) {
        let mut known = self.known.lock();
        let Some(known) = known.as_mut() else { return };
        let view = view();
        let listed: BTreeSet<u64> = view.l2cache().iter().map(|vdev| vdev.guid).collect();
        if listed.is_empty() {
            *self.share.lock() = None;
        } else {
            // Also for one that is away: it may come back at any moment, full.
            self.share.lock().get_or_insert_with(|| self.cache.share());
        }
        if listed.is_empty() && known.is_empty() {
            return;
        }
        self.fit();
        self.l2.set_home(typical(&view));
        let mut leaving = self.leaving.lock();
        leaving.retain(|guid| listed.contains(guid));
        let gone: Vec<u64> = known.keys().filter(|guid| !listed.contains(guid)).copied().collect();
        for guid in gone {
            known.remove(&guid);
            self.let_go(guid);
        }
        for vdev in view.l2cache() {
            let disk = vdev.leaf.as_ref().and_then(|leaf| leaf.disk());
            let Some(disk) = disk.filter(|_| !leaving.contains(&vdev.guid)) else {
                // It is away.
                if known.remove(&vdev.guid).is_some() {
                    self.let_go(vdev.guid);
                }
                continue;
            };
            match known.get(&vdev.guid) {
                Some(before) if Arc::ptr_eq(before, &disk) => {}
                // It was away, and came back as another.
                Some(_) => {
                    known.remove(&vdev.guid);
                    self.let_go(vdev.guid);
                }
                None => {
                    if self.take(vdev, &disk) {
                        known.insert(vdev.guid, disk);
                    }
                }
            }
        }
    }

    /// Whether there is nothing to be tried again.
    fn take(&self, vdev: &Vdev, disk: &Arc<dyn Disk>) -> bool {
        let info = disk.info();
        if info.read_only {
            tracing::warn!(path = info.path, "a cache device that cannot be written to is not used");
            return true;
        }
        let ashift = vdev.top.as_ref().map_or(info.physical_sector.max(512).ilog2(), |top| top.ashift);
        let counted = match &vdev.leaf {
            Some(leaf) => {
                let errors = Arc::clone(&vdev.counters);
                Counted::over(Arc::clone(disk), &leaf.pulse, Work::AsyncWrite, Some(errors))
            }
            None => Arc::clone(disk),
        };
        match self.l2.add(Ours::over(counted, &self.suspension), vdev.guid, ashift, self.open) {
            Ok(()) => {}
            // It is just being let go.
            Err(AddError::Known(_)) => return false,
            Err(error) => tracing::warn!(%error, "a cache device is not used"),
        }
        if let Some(recovery) = self.l2.recovery(vdev.guid) {
            tokio::spawn(async move {
                if let Some(recovered) = recovery.await {
                    tracing::info!(path = info.path, "cache device: {recovered}");
                }
            });
        }
        true
    }

    /// Stops using a device, some time soon.
    fn let_go(&self, guid: u64) {
        let l2 = Arc::clone(&self.l2);
        tokio::spawn(async move { l2.remove(guid).await });
    }

    /// Stops using a device that is to leave the pool: nothing is written to it when this returns. It is not used again
    /// until the pool is opened again, should it stay.
    pub(crate) async fn leave(&self, guid: u64) {
        self.leaving.lock().insert(guid);
        if let Some(known) = self.known.lock().as_mut() {
            known.remove(&guid);
        }
        self.l2.remove(guid).await;
    }

    /// Lets all devices go: others may open them when this returns.
    pub(crate) async fn close(&self, io: &PoolIo) {
        // Who follows has opened what it wants by then, or opens nothing any more.
        *self.known.lock() = None;
        *self.share.lock() = None;
        io.set_below(None);
        self.l2.close().await;
    }

    /// What is behind the door.
    pub(crate) fn l2(&self) -> &Arc<L2> {
        &self.l2
    }

    /// Counters and sizes, by OpenZFS's names.
    #[must_use]
    pub fn stats(&self) -> L2Stats {
        self.l2.stats()
    }

    /// The devices in use.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceStatus> {
        self.l2.devices()
    }

    /// What reads of a device in use typically took, and what those of the pool's own devices take, if it is slow and left alone for
    /// that.
    pub(crate) fn slow(&self, guid: u64) -> Option<(Duration, Duration)> {
        let devices = self.l2.devices();
        let slow = devices.iter().find(|device| device.vdev == guid)?.slow?;
        Some((slow, self.l2.home().unwrap_or_default()))
    }

    /// Bytes of memory that it holds. Whoever asks is who gives the cache its memory: what may be taken of that is looked
    /// at, too, or a pool that is only read from would not know of it.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.fit();
        self.l2.memory()
    }

    /// Bytes of that which it would give up if clients had to wait for memory otherwise.
    #[must_use]
    pub fn beyond(&self) -> u64 {
        self.l2.beyond()
    }

    /// Gives them up.
    pub fn shed(&self) {
        self.fit();
        self.l2.shed();
    }

    fn fit(&self) {
        let config = self.l2.config();
        if config != fitted(config, &self.cache) {
            self.l2.change_config(|config| *config = fitted(*config, &self.cache));
        }
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> Config {
        self.l2.config()
    }

    /// Works differently from now on. What it may take of memory follows the cache's budget all the same.
    pub fn set_config(&self, config: Config) {
        self.l2.set_config(fitted(config, &self.cache));
    }
}

/// What a read of the pool's own devices takes; none if nothing was read yet.
fn typical(view: &Pool) -> Option<Duration> {
    let tree = view.tree();
    let leaves = tree.leaves();
    let mut reads: Vec<Duration> =
        leaves.iter().filter_map(|vdev| vdev.leaf.as_ref()?.pulse.typical()).collect();
    reads.sort_unstable();
    reads.get(reads.len() / 2).copied()
}

/// What it may take of memory depends on what the cache has, and on how many pools take of that.
fn fitted(config: Config, cache: &BlockCache) -> Config {
    let (part, least, most) = BUFFER;
    let budget = cache.budget() / cache.shares();
    Config {
        buffer: ((budget / part) as u64).clamp(least, most),
        index_max: (budget as u64 / 100).saturating_mul(INDEX_PERCENT),
        ..config
    }
}

/// What the cache sees of it.
#[derive(Debug)]
struct Door(Weak<L2>);

impl Below for Door {
    fn evicted(&self, block: Stored) -> Fate {
        let unknown = block.fate();
        let Some(l2) = self.0.upgrade().filter(|l2| l2.is_used()) else { return unknown };
        let Some(dva) = Dva::from_words(block.dva).to_words() else { return Fate::Ineligible };
        let offered = l2.offer(Block {
            dva,
            birth: block.birth,
            lsize: block.lsize,
            psize: block.psize,
            compress: block.compress,
            level: compression_level(block.compress, &block.data),
            metadata: block.metadata,
            frequent: block.frequent,
            prefetched: block.prefetched,
            eligible: block.eligible,
            is_part: block.is_part,
            data: block.data,
        });
        match offered {
            Some(Offered::Cached) => Fate::Cached,
            Some(Offered::Queued | Offered::Eligible) => Fate::Eligible,
            Some(Offered::Ineligible) => Fate::Ineligible,
            None => unknown,
        }
    }

    fn read(&self, _pool: u64, bp: &BlkPtr, is_eligible: bool) -> Option<BelowFuture> {
        let l2 = self.0.upgrade().filter(|l2| l2.is_used())?;
        let (key, psize) = (key(bp)?, u32::try_from(bp.psize()).ok()?);
        if is_eligible { l2.read(&key, psize) } else { l2.find(&key, psize) }
    }

    fn lied(&self, _pool: u64, bp: &BlkPtr) {
        if let (Some(l2), Some(key)) = (self.0.upgrade(), key(bp)) {
            l2.lied(&key);
        }
    }
}

/// What a block is found by in the second tier; none of one that cannot be served from there.
pub(crate) fn key(bp: &BlkPtr) -> Option<Key> {
    let dva = bp.dvas().next().filter(|_| is_servable(bp))?;
    Some(Key { dva: dva.to_words()?, birth: bp.physical_birth() })
}

/// A block for the second tier that was there before a restart; `stored` are its verified bytes. None if it cannot be
/// served from there.
pub(crate) fn block(bp: &BlkPtr, stored: Bytes) -> Option<Block> {
    let Key { dva, birth } = key(bp)?;
    Some(Block {
        dva,
        birth,
        lsize: u32::try_from(bp.lsize()).ok()?,
        psize: u32::try_from(stored.len()).ok()?,
        compress: bp.compression_id(),
        level: compression_level(bp.compression_id(), &stored),
        metadata: bp.level() > 0 || bp.object_type().is_metadata(),
        // It was found worth a place then: `l2arc_mfuonly` does not keep it out now.
        frequent: true,
        prefetched: false,
        eligible: true,
        // Neighbours were read in one piece.
        is_part: true,
        data: stored,
    })
}

/// The level that a block was compressed with, as log blocks want it: zstd's stands in the header of the stored bytes
/// (docs/format/compression.md), the others have none.
fn compression_level(compress: u8, stored: &[u8]) -> u8 {
    let (true, Some([first, .., last])) = (compress == compress::Algorithm::Zstd.id(), stored.get(4..8))
    else {
        return 0;
    };
    // Which end it is at depends on the writer's byte order.
    if *first == 0 { *last } else { *first }
}

#[cfg(test)]
mod tests {
    use tokio::{runtime::Handle, task::block_in_place, time::sleep};

    use super::*;
    use crate::{create::testing, sync::Work};

    /// It was opened after all others had been let go, and stayed open when the pool was another host's.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_device_that_is_followed_while_the_pool_is_left_is_let_go() {
        let mut syncer = testing::in_memory(&["d0", "cache", "d1"]).await;
        let first = syncer.txg;
        syncer.sync_txg(first, 1_700_000_000, Work::default()).await.unwrap();
        let view = syncer.view.clone().unwrap();
        let second = Arc::new(Second::new(view.io(), false, Config::default(), Arc::default()));
        let mut closing = None;
        second.follow(|| {
            let (leaving, left) = (Arc::clone(&second), Arc::clone(&view));
            closing = Some(tokio::spawn(async move { leaving.close(left.io()).await }));
            // More than it takes.
            block_in_place(|| Handle::current().block_on(sleep(Duration::from_millis(300))));
            Arc::clone(&view)
        });
        closing.unwrap().await.unwrap();
        assert!(second.devices().is_empty());
        second.follow(|| view);
        assert!(second.devices().is_empty());
    }
}
