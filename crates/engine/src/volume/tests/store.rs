//! A committed state in memory: blocks by address, a two-level tree of pointers to them, and reads that can be
//! made to wait.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::{BlkPtrs, Bonus, Dnode, ObjectType},
};
use parking_lot::Mutex;
use pool::{
    BlockError, BlockErrorKind, Bookmark,
    dmu::{BlockSource, DnodeAt, Object, SourceFuture},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use super::{BLOCK, BLOCKS};
use crate::dsl::Dirty;

/// Pointers in an indirect block of 4 KiB; three of them cover the volume.
const FANOUT: usize = 32;
/// Checksums by their numbers on disk.
const OFF: u8 = 2;
const FLETCHER4: u8 = 7;

#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    never_cached: AtomicBool,
    unverified: AtomicBool,
    waiting: AtomicUsize,
    gate: Arc<RwLock<()>>,
}

#[derive(Debug)]
struct State {
    random: StdRng,
    blocks: BTreeMap<u64, Bytes>,
    next: u64,
    pointers: Vec<BlkPtr>,
    top: [BlkPtr; 3],
}

impl Store {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            blocks: BTreeMap::new(),
            next: 0,
            pointers: vec![BlkPtr::EMPTY; BLOCKS as usize],
            top: [BlkPtr::EMPTY; 3],
        };
        Arc::new(Self {
            state: Mutex::new(state),
            never_cached: AtomicBool::new(false),
            unverified: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            gate: Arc::default(),
        })
    }

    /// The data object as of the last commit.
    pub(super) fn object(self: &Arc<Self>) -> Object {
        let dnode = Dnode {
            object_type: ObjectType::ZVOL,
            indirect_shift: 12,
            levels: 2,
            bonus_type: ObjectType::NONE,
            checksum_id: 0,
            compression_id: 0,
            flags: 0,
            data_sectors: (BLOCK / 512) as u16,
            extra_slots: 0,
            max_block_id: BLOCKS - 1,
            used: 0,
            reserved: ([0; 3], [0; 32]),
            blkptrs: BlkPtrs::new(&self.state.lock().top).unwrap(),
            bonus: Bonus::new(&[]),
            spill: None,
        };
        let source: Arc<dyn BlockSource> = Arc::<Self>::clone(self);
        Object::new(source, 7, DnodeAt { number: 1, dnode, order: Order::Little }).unwrap()
    }

    /// Puts changes in new places. Returns the object, and the addresses that are no longer part of it.
    pub(super) fn commit(self: &Arc<Self>, txg: u64, dirty: &Dirty) -> (Object, Vec<u64>) {
        let mut freed = Vec::new();
        {
            let checksum = if self.unverified.load(Ordering::Relaxed) { OFF } else { FLETCHER4 };
            let mut state = self.state.lock();
            let ascending = dirty.blocks.windows(2).all(|pair| pair[0].0 < pair[1].0);
            assert!(ascending, "blocks come in order, once each");
            for range in &dirty.freed {
                assert!(dirty.blocks.iter().all(|(blkid, _)| !range.contains(blkid)));
                for blkid in range.clone() {
                    freed.push(std::mem::replace(&mut state.pointers[blkid as usize], BlkPtr::EMPTY));
                }
            }
            for (blkid, content) in &dirty.blocks {
                assert_eq!(content.len() as u64, BLOCK);
                let pointer = state.put(content.bytes().clone(), 0, txg, checksum);
                freed.push(std::mem::replace(&mut state.pointers[*blkid as usize], pointer));
            }
            for index in 0..3 {
                let below = &state.pointers[index * FANOUT..(index + 1) * FANOUT];
                let content: Vec<u8> = below.iter().flat_map(|bp| bp.encode(Order::Little)).collect();
                let pointer = state.put(content.into(), 1, txg, FLETCHER4);
                freed.push(std::mem::replace(&mut state.top[index], pointer));
            }
        }
        let freed = freed.iter().flat_map(BlkPtr::dvas).map(|dva| dva.offset).collect();
        (self.object(), freed)
    }

    /// From now on these addresses hold something else.
    pub(super) fn forget(&self, addresses: &[u64]) {
        let mut state = self.state.lock();
        for address in addresses {
            assert!(state.blocks.remove(address).is_some());
        }
    }

    pub(super) fn lose_everything(&self) {
        self.state.lock().blocks.clear();
    }

    pub(super) fn never_cache(&self) {
        self.never_cached.store(true, Ordering::Relaxed);
    }

    /// From now on blocks of data have no checksum and are never cached, pointers always, and what was forgotten is read as
    /// something else.
    pub(super) fn without_checksums(&self) {
        self.unverified.store(true, Ordering::Relaxed);
    }

    /// Reads wait as long as the guard lives.
    pub(super) fn hold_reads(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.gate).try_write_owned().unwrap()
    }

    /// The same, after those that wait now.
    pub(super) fn hold_reads_next(&self) -> tokio::task::JoinHandle<OwnedRwLockWriteGuard<()>> {
        let mut gate = Box::pin(Arc::clone(&self.gate).write_owned());
        assert!(gate.as_mut().now_or_never().is_none(), "they are held");
        tokio::spawn(gate)
    }

    /// Reads that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    async fn read_one(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.read().await);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.take_time().await;
        let address = bp.dvas().next().unwrap().offset;
        let found = self.state.lock().blocks.get(&address).cloned();
        // What a device has read is as of then, whenever the reader gets to see it.
        self.take_time().await;
        if found.is_none() && bp.checksum_id() == OFF {
            return Ok(vec![0xee; bp.lsize() as usize].into());
        }
        found.ok_or_else(|| BlockError::new(BlockErrorKind::Checksum, bp, Some(at), Vec::new()))
    }
}

impl Store {
    async fn take_time(&self) {
        let turns = self.state.lock().random.random_range(0..8);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

impl State {
    fn put(&mut self, content: Bytes, level: u8, txg: u64, checksum_id: u8) -> BlkPtr {
        self.next += BLOCK;
        let dva = Dva { vdev: 0, offset: self.next, asize: BLOCK, gang: false };
        let lsize = content.len() as u64;
        self.blocks.insert(self.next, content);
        BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize,
            psize: lsize,
            compression_id: 2,
            checksum_id,
            object_type: ObjectType::ZVOL,
            level,
            dedup: false,
            order: Order::Little,
            birth: txg,
            physical_birth: txg,
            fill: 1,
            checksum: [txg, self.next, 3, 4],
        })
        .unwrap()
    }
}

impl BlockSource for Store {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        let mut state = self.state.lock();
        let luck = if self.unverified.load(Ordering::Relaxed) {
            bp.level() > 0
        } else {
            !self.never_cached.load(Ordering::Relaxed) && state.random.random_bool(0.5)
        };
        let address = bp.dvas().next()?.offset;
        luck.then(|| state.blocks.get(&address).cloned())?
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(self.read_one(bp, at))
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        Box::pin(async move {
            let mut contents = Vec::new();
            for (bp, at) in blocks {
                contents.push(self.read_one(bp, *at).await);
            }
            contents
        })
    }
}
