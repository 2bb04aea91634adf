//! The model again, through the real writer onto a device in memory.

use std::{collections::BTreeMap, sync::Arc};

use disk::{Disk, MemDisk};
use ondisk::{
    blkptr::{BlkPtr, Dva},
    nvlist::NvList,
};
use pool::{
    PoolIo,
    cache::BlockCache,
    dmu::BlockSource,
    vdev::{Disks, Tree},
};
use smallvec::SmallVec;

use super::{memory::Out, model::live};
use crate::{
    EngineError,
    alloc::Purpose,
    write::{BlockWriter, Extents},
};

const LEAF_BYTES: u64 = 512 << 20;

/// First fit, and what is allocated.
#[derive(Debug)]
struct Space {
    free: BTreeMap<u64, u64>,
    allocated: BTreeMap<u64, u64>,
}

impl Extents for Space {
    fn granularity(&self) -> (u64, u64) {
        (4096, 4096)
    }

    async fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        _purpose: Purpose,
    ) -> Result<SmallVec<[Dva; 3]>, EngineError> {
        let asize = psize.next_multiple_of(4096);
        let mut dvas = SmallVec::new();
        for _ in 0..copies {
            let fits = self.free.iter().find(|(_, len)| **len >= asize);
            let (offset, len) =
                fits.map(|(offset, len)| (*offset, *len)).expect("the device is large enough");
            self.free.remove(&offset);
            if len > asize {
                self.free.insert(offset + asize, len - asize);
            }
            assert!(self.allocated.insert(offset, asize).is_none());
            dvas.push(Dva { vdev: 0, offset, asize, gang: false });
        }
        Ok(dvas)
    }

    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError> {
        Err(EngineError::Unsupported(format!("{dva} was not set aside")))
    }

    fn release(&mut self, dva: Dva) {
        assert_eq!(self.allocated.remove(&dva.offset), Some(dva.asize), "{dva} was not allocated like this");
        self.free.insert(dva.offset, dva.asize);
    }
}

impl Out for BlockWriter<Space> {
    fn begin(&mut self, txg: u64) {
        Self::begin(self, txg);
    }

    fn source(&self) -> Arc<dyn BlockSource> {
        Self::source(self)
    }

    async fn settle(&mut self, killed: Vec<BlkPtr>) {
        for bp in killed {
            self.free(&bp).await.unwrap();
        }
        self.finish().await.unwrap();
    }
}

fn writer(workers: usize) -> BlockWriter<Space> {
    let mut leaf = NvList::new();
    leaf.set("type", "disk");
    leaf.set("id", 0_u64);
    leaf.set("guid", 100_u64);
    leaf.set("path", "disk");
    leaf.set("ashift", 12_u64);
    leaf.set("asize", LEAF_BYTES - (5 << 20));
    let disks: Disks = [(100, Arc::new(MemDisk::new(LEAF_BYTES)) as Arc<dyn Disk>)].into_iter().collect();
    let tree = Tree::from_tops(1, &[&leaf], &disks, None).unwrap();
    let io = Arc::new(PoolIo::new(tree, Arc::new(BlockCache::new(1 << 20))));
    io.set_salt([1; 32]);
    let space = Space { free: BTreeMap::from([(0, LEAF_BYTES - (5 << 20))]), allocated: BTreeMap::new() };
    BlockWriter::new(io, space, crate::policy::TRAITS, workers)
}

#[tokio::test]
async fn a_set_on_a_device_holds_what_its_twin_holds() {
    for seed in 0..8 {
        let world = live(writer(0), seed, 6, 50).await;
        let stored: usize = world.books.stored.values().map(|bp| bp.dvas().count()).sum();
        assert_eq!(world.out.alloc.allocated.len(), stored, "all that is allocated is in the set");
    }
}
