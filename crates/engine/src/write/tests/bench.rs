//! The vocabulary of these tests: pools in memory, free space in a list, jobs, readers.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use codec::{checksum, compress};
use disk::{Disk, DiskFuture, DiskInfo, FaultDisk, IoBuf, MemDisk};
use ondisk::{
    blkptr::{BlkPtr, Dva},
    dnode::ObjectType,
    nvlist::NvList,
};
use pool::{
    Bookmark, PoolIo,
    cache::BlockCache,
    vdev::{Disks, Kind, Tree, Vdev},
};
use smallvec::SmallVec;

use crate::{
    EngineError,
    alloc::Purpose,
    policy::{BlockPolicy, Compression, Traits},
    write::{BlockWriter, Extents, Job},
};

pub(super) const LEAF_BYTES: u64 = 80 << 20;
pub(super) const SALT: checksum::Salt = [0x5a; 32];
pub(super) const TXG: u64 = 7;

pub(super) const TRAITS: Traits = Traits { livelist: true, ..crate::policy::TRAITS };

/// A top-level device to build.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Leaf,
    Mirror(Vec<Self>),
    Replacing(Vec<Self>),
    Raidz(u64, Vec<Self>),
}

pub(super) fn mirror(sides: usize) -> Shape {
    Shape::Mirror(vec![Shape::Leaf; sides])
}

pub(super) fn raidz(parity: u64, width: usize) -> Shape {
    Shape::Raidz(parity, vec![Shape::Leaf; width])
}

/// A memory disk that counts, and that can hold writes back for a while before they happen.
#[derive(Debug)]
pub(super) struct Tally {
    inner: Arc<dyn Disk>,
    pub(super) writes: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) flushes: AtomicU64,
    /// Writes that were durable at once.
    pub(super) through: AtomicU64,
    /// Milliseconds the next write sleeps before it does anything.
    pub(super) hold: AtomicU64,
    /// Milliseconds each read takes, one after the other.
    pub(super) pace: AtomicU64,
    turn: tokio::sync::Mutex<()>,
}

impl Disk for Tally {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            let pace = self.pace.load(Relaxed);
            if pace > 0 {
                let _turn = self.turn.lock().await;
                tokio::time::sleep(Duration::from_millis(pace)).await;
            }
            self.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.writes.fetch_add(1, Relaxed);
        self.bytes.fetch_add(data.len() as u64, Relaxed);
        Box::pin(async move {
            let hold = self.hold.swap(0, Relaxed);
            if hold > 0 {
                tokio::time::sleep(Duration::from_millis(hold)).await;
            }
            self.inner.write(offset, data).await
        })
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.through.fetch_add(1, Relaxed);
        self.bytes.fetch_add(data.len() as u64, Relaxed);
        self.inner.write_through(offset, data)
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        self.flushes.fetch_add(1, Relaxed);
        self.inner.flush()
    }
    fn trim(&self, _: u64, _: u64) -> DiskFuture<'_, ()> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// Disks and configuration of a pool.
pub(super) struct Bench {
    tops: Vec<NvList>,
    pub(super) tallies: Vec<Arc<Tally>>,
    pub(super) faults: Vec<Arc<FaultDisk>>,
    ashift: u32,
}

impl Bench {
    pub(super) fn new(tops: &[Shape], ashift: u32) -> Self {
        let mut bench = Self { tops: Vec::new(), tallies: Vec::new(), faults: Vec::new(), ashift };
        for (id, top) in tops.iter().enumerate() {
            let mut nv = bench.build(top, id as u64);
            let leaves = u64::try_from(match top {
                Shape::Raidz(_, children) => children.len(),
                _ => 1,
            });
            nv.set("ashift", u64::from(ashift));
            nv.set("asize", leaves.unwrap() * (LEAF_BYTES - (5 << 20)));
            bench.tops.push(nv);
        }
        bench
    }

    fn build(&mut self, shape: &Shape, id: u64) -> NvList {
        let mut nv = NvList::new();
        let (word, children) = match shape {
            Shape::Leaf => ("disk", None),
            Shape::Mirror(children) => ("mirror", Some(children)),
            Shape::Replacing(children) => ("replacing", Some(children)),
            Shape::Raidz(parity, children) => {
                nv.set("nparity", *parity);
                ("raidz", Some(children))
            }
        };
        nv.set("type", word);
        nv.set("id", id);
        match children {
            Some(children) => {
                nv.set("guid", 5000 + id);
                let children: Vec<NvList> =
                    (0..).zip(children).map(|(id, child)| self.build(child, id)).collect();
                nv.set("children", children);
            }
            None => {
                let number = self.tallies.len();
                nv.set("guid", 100 + number as u64);
                nv.set("path", format!("disk-{number}").as_str());
                let memory = Arc::new(MemDisk::new(LEAF_BYTES).named(format!("disk-{number}")));
                let fault = Arc::new(FaultDisk::new(memory, number as u64));
                self.faults.push(Arc::clone(&fault));
                self.tallies.push(Arc::new(Tally {
                    inner: fault,
                    writes: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    flushes: AtomicU64::new(0),
                    through: AtomicU64::new(0),
                    hold: AtomicU64::new(0),
                    pace: AtomicU64::new(0),
                    turn: tokio::sync::Mutex::default(),
                }));
            }
        }
        nv
    }

    /// An opened pool that lacks some of the leaves, with a cache of that size.
    pub(super) fn io(&self, without: &[usize], cache: usize) -> Arc<PoolIo> {
        let disks: Disks = self
            .tallies
            .iter()
            .enumerate()
            .filter(|(number, _)| !without.contains(number))
            .map(|(number, disk)| (100 + number as u64, Arc::clone(disk) as Arc<dyn Disk>))
            .collect();
        let tops: Vec<&NvList> = self.tops.iter().collect();
        let io =
            PoolIo::new(Tree::from_tops(1, &tops, &disks, None).unwrap(), Arc::new(BlockCache::new(cache)));
        io.set_salt(SALT);
        io.start_counting();
        Arc::new(io)
    }

    pub(super) fn writer_over(&self, io: Arc<PoolIo>, workers: usize) -> BlockWriter<Space> {
        let space = Space::new(&io.tree(), self.ashift);
        let mut writer = BlockWriter::new(io, space, TRAITS, workers);
        writer.begin(TXG);
        writer
    }

    pub(super) fn writer(&self) -> BlockWriter<Space> {
        self.writer_over(self.io(&[], 0), 0)
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.bytes.load(Relaxed)).sum()
    }
}

/// First fit over free extents, and what is allocated of each.
#[derive(Debug)]
pub(super) struct Space {
    free: Vec<BTreeMap<u64, u64>>,
    pub(super) allocated: BTreeMap<(u32, u64), u64>,
    /// Taken for others, as the intent log takes it.
    pub(super) aside: BTreeMap<(u32, u64), u64>,
    tops: Vec<Vdev>,
    ashift: u32,
}

impl Space {
    fn new(tree: &Tree, ashift: u32) -> Self {
        let free =
            tree.tops.iter().map(|top| BTreeMap::from([(0, top.top.as_ref().unwrap().asize)])).collect();
        Self { free, allocated: BTreeMap::new(), aside: BTreeMap::new(), tops: tree.tops.clone(), ashift }
    }

    /// Leaves only these extents of a device free.
    pub(super) fn fragment(&mut self, top: usize, extents: impl IntoIterator<Item = (u64, u64)>) {
        self.free[top] = extents.into_iter().collect();
    }

    pub(super) fn asize(&self, top: usize, psize: u64) -> u64 {
        match &self.tops[top].kind {
            Kind::Raidz(geometry) => geometry.allocated(psize, geometry.children),
            _ => psize.next_multiple_of(1 << self.ashift),
        }
    }

    /// A place that is neither free nor allocated.
    pub(super) fn set_aside(&mut self, top: usize, psize: u64) -> Dva {
        let asize = self.asize(top, psize);
        let dva = self.take(top, asize).unwrap();
        self.allocated.remove(&(dva.vdev, dva.offset));
        self.aside.insert((dva.vdev, dva.offset), asize);
        dva
    }

    fn take(&mut self, top: usize, asize: u64) -> Option<Dva> {
        let (&offset, &len) = self.free[top].iter().find(|(_, len)| **len >= asize)?;
        self.free[top].remove(&offset);
        if len > asize {
            self.free[top].insert(offset + asize, len - asize);
        }
        assert!(self.allocated.insert((top as u32, offset), asize).is_none());
        Some(Dva { vdev: top as u32, offset, asize, gang: false })
    }
}

impl Extents for Space {
    fn granularity(&self) -> (u64, u64) {
        (1 << self.ashift, 1 << self.ashift)
    }

    async fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        _purpose: Purpose,
    ) -> Result<SmallVec<[Dva; 3]>, EngineError> {
        let mut dvas = SmallVec::new();
        for copy in 0..usize::from(copies) {
            let tops = self.tops.len();
            let asize = (0..tops).map(|i| (copy + i) % tops).find_map(|top| {
                let asize = self.asize(top, psize);
                self.take(top, asize)
            });
            dvas.extend(asize);
        }
        if dvas.is_empty() { Err(EngineError::NoSpace { psize }) } else { Ok(dvas) }
    }

    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError> {
        let held = self.aside.remove(&(dva.vdev, dva.offset));
        assert_eq!(held, Some(dva.asize), "{dva} was not set aside");
        self.allocated.insert((dva.vdev, dva.offset), dva.asize);
        Ok(())
    }

    fn release(&mut self, dva: Dva) {
        let held = self.allocated.remove(&(dva.vdev, dva.offset));
        assert_eq!(held, Some(dva.asize), "{dva} was not allocated like this");
        self.free[dva.vdev as usize].insert(dva.offset, dva.asize);
    }
}

pub(super) fn policy(compression: compress::Algorithm) -> BlockPolicy {
    BlockPolicy {
        checksum: checksum::Algorithm::Fletcher4,
        compression: Compression { algorithm: compression, level: compress::Level::DEFAULT },
        copies: 1,
        metadata: false,
    }
}

pub(super) fn off() -> BlockPolicy {
    policy(compress::Algorithm::Off)
}

pub(super) fn metadata() -> BlockPolicy {
    BlockPolicy { metadata: true, copies: 2, ..policy(compress::Algorithm::Lz4) }
}

pub(super) fn job(content: Bytes, policy: BlockPolicy) -> Job {
    let object_type = if policy.metadata { ObjectType::ZAP_METADATA } else { ObjectType::ZVOL };
    Job {
        content,
        policy,
        object_type,
        level: 0,
        fill: 1,
        old: BlkPtr::EMPTY,
        at: Bookmark::default(),
        written: None,
        sum: None,
    }
}

/// Bytes no compressor shrinks, different for each seed.
pub(super) fn noise(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Bytes of which about that many percent are noise, in short runs.
pub(super) fn mixed(len: usize, seed: u64, percent: usize) -> Bytes {
    let noise = noise(len, seed);
    (0..len).map(|i| if i % 100 < percent { noise[i] } else { b'=' }).collect()
}

/// What a pool says a block holds.
pub(super) async fn read(io: &PoolIo, bp: &BlkPtr) -> Bytes {
    io.read_block_uncached(bp, Bookmark::default()).await.unwrap()
}

/// All sets of up to `most` of `count` leaves.
pub(super) fn erasures(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0..1u32 << count)
        .filter(|set| set.count_ones() as usize <= most)
        .map(|set| (0..count).filter(|leaf| set >> leaf & 1 == 1).collect())
        .collect()
}

/// The writer's pool has the devices of `io` from now on.
pub(super) fn follow(writer: &mut BlockWriter<Space>, io: &PoolIo) {
    writer.io.set_tree(Tree::clone(&io.tree()));
    writer.devices_changed();
}
