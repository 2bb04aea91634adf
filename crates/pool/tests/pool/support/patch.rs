//! A real pool with one structure changed and every checksum above it made right again: bytes only an attacker
//! (or a bug in another implementation) writes.
//!
//! Changed blocks go uncompressed to free space near the end of the only device; the new root goes into the ring of
//! label 0 as the newest uberblock.

use std::{future::Future, pin::Pin, sync::Arc};

use codec::checksum::{Algorithm, Checksum, compute, embedded};
use disk::{Disk, MemDisk};
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::{BlkPtrs, Dnode, Fanout},
    label::{CONFIG_BYTES, CONFIG_OFFSET, DATA_OFFSET, Geometry, Ring},
    nvlist::{Encoding, NvList},
    objset::ObjsetPhys,
};
use pool::{Bookmark, Pool};

use super::open_disks;

/// Bytes before the end of the device where changed blocks go.
const ROOM: usize = 24 << 20;

/// A pool of one device, being changed.
pub(crate) struct Patch {
    image: Vec<u8>,
    pool: Arc<Pool>,
    next: usize,
}

type Edit<'e> = &'e mut (dyn FnMut(&mut Vec<u8>) + Send);

impl Patch {
    pub(crate) async fn of(fixture: &fixtures::Fixture) -> Self {
        let image = std::fs::read(&fixture.images()[0]).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::from_bytes(&image));
        let next = image.len() - ROOM;
        assert!(image[next..next + (8 << 20)].iter().all(|&byte| byte == 0), "free space");
        Self { pool: open_disks([disk]).await.unwrap(), image, next }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Stores `data` in place of what `old` pointed to.
    fn store(&mut self, old: &BlkPtr, data: &[u8]) -> BlkPtr {
        let dva = self.place(data.len());
        self.write(&dva, data);
        Self::pointer(old, dva, data)
    }

    /// Free space.
    fn place(&mut self, len: usize) -> Dva {
        let (offset, bytes) = (self.next as u64 - DATA_OFFSET, len.next_multiple_of(16 << 10));
        self.next += bytes;
        Dva { vdev: 0, offset, asize: bytes as u64, gang: false }
    }

    fn write(&mut self, dva: &Dva, data: &[u8]) {
        let at = (dva.offset + DATA_OFFSET) as usize;
        self.image[at..at + data.len()].copy_from_slice(data);
    }

    /// A pointer to `data` that is like `old`.
    fn pointer(old: &BlkPtr, dva: Dva, data: &[u8]) -> BlkPtr {
        let checksum = compute(Algorithm::Fletcher4, codec::Order::Little, None, data).unwrap();
        BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize: data.len() as u64,
            psize: data.len() as u64,
            compression_id: 2,
            checksum_id: 7,
            object_type: old.object_type(),
            level: old.level(),
            dedup: false,
            order: Order::Little,
            birth: old.birth(),
            physical_birth: old.birth(),
            fill: old.fill(),
            checksum: checksum.0,
        })
        .unwrap()
    }

    /// Changes block `blkid` below `old` and every block on the way to it.
    fn below<'a>(
        &'a mut self,
        old: BlkPtr,
        blkid: u64,
        fanout: Fanout,
        edit: Edit<'a>,
    ) -> Pin<Box<dyn Future<Output = BlkPtr> + Send + 'a>> {
        Box::pin(async move {
            let mut data = self.pool.io().read_block(&old, Bookmark::default()).await.unwrap().to_vec();
            match old.level() {
                0 => edit(&mut data),
                level => {
                    let index = fanout.slot(fanout.ancestor(blkid, level - 1));
                    let child = BlkPtr::decode_at(&data, index, Order::Little).unwrap();
                    let new = self.below(child, blkid, fanout, edit).await;
                    data[index * 128..][..128].copy_from_slice(&new.encode(Order::Little));
                }
            }
            self.store(&old, &data)
        })
    }

    /// Changes a block of an object.
    async fn block(&mut self, dnode: &mut Dnode, blkid: u64, edit: Edit<'_>) {
        let fanout = dnode.fanout();
        let mut pointers = dnode.blkptrs.to_vec();
        let top = fanout.ancestor(blkid, dnode.levels - 1) as usize;
        pointers[top] = self.below(pointers[top], blkid, fanout, edit).await;
        dnode.blkptrs = BlkPtrs::new(&pointers).unwrap();
    }

    /// Changes the dnode of an object of the MOS, and commits.
    pub(crate) async fn dnode(mut self, number: u64, mut change: impl FnMut(&mut Dnode) + Send) -> Vec<u8> {
        let root = self.pool.uberblock().rootbp;
        let data = self.pool.io().read_block(&root, Bookmark::default()).await.unwrap();
        let mut objset = ObjsetPhys::decode(&data, Order::Little).unwrap();
        let (blkid, offset) = objset.locate(number).unwrap();
        let mut meta = objset.meta_dnode.clone();
        self.block(&mut meta, blkid, &mut |block| {
            let mut dnode = Dnode::decode(&block[offset..], Order::Little).unwrap().unwrap();
            change(&mut dnode);
            let bytes = dnode.encode(Order::Little).unwrap();
            block[offset..offset + bytes.len()].copy_from_slice(&bytes);
        })
        .await;
        objset.meta_dnode = meta;
        let mut data = data.to_vec();
        let bytes = objset.encode(Order::Little).unwrap();
        data[..bytes.len()].copy_from_slice(&bytes);
        let rootbp = self.store(&root, &data);
        self.commit(rootbp)
    }

    /// Changes a block of an object of the MOS, and commits.
    pub(crate) async fn data(
        mut self,
        number: u64,
        blkid: u64,
        mut edit: impl FnMut(&mut Vec<u8>) + Send,
    ) -> Vec<u8> {
        let mut dnode = self.pool.mos().dnode(number).await.unwrap().dnode;
        self.block(&mut dnode, blkid, &mut edit).await;
        self.dnode(number, |place| *place = dnode.clone()).await
    }

    /// Puts the root into a gang whose header is as large as a sector of the device, and commits.
    pub(crate) async fn root_in_gang(mut self) -> Vec<u8> {
        let root = self.pool.uberblock().rootbp;
        let data = self.pool.io().read_block(&root, Bookmark::default()).await.unwrap();
        let member = self.store(&root, &data);
        let ashift = self.pool.tree().tops[0].top.as_ref().unwrap().ashift;
        let mut header = vec![0; 1 << ashift];
        header[..BlkPtr::BYTES].copy_from_slice(&member.encode(Order::Little));
        let dva = self.place(header.len());
        let verifier = Checksum([0, dva.offset, root.birth(), 0]);
        embedded::seal(embedded::Kind::GangHeader, &mut header, verifier, codec::Order::Little).unwrap();
        self.write(&dva, &header);
        self.commit(Self::pointer(&root, Dva { gang: true, ..dva }, &data))
    }

    fn commit(mut self, rootbp: BlkPtr) -> Vec<u8> {
        let mut uberblock = *self.pool.uberblock();
        uberblock.rootbp = rootbp;
        uberblock.timestamp += 1;
        let ashift = self.pool.tree().tops[0].top.as_ref().unwrap().ashift;
        let ring = Ring::for_ashift(ashift.into());
        let region = ring.slot(0).unwrap();
        let start = region.offset() as usize;
        let slot = &mut self.image[start..start + region.bytes() as usize];
        slot.fill(0);
        let bytes = uberblock.encode();
        slot[..bytes.len()].copy_from_slice(&bytes);
        let verifier = Checksum([start as u64, 0, 0, 0]);
        embedded::seal(embedded::Kind::Label, slot, verifier, codec::Order::Little).unwrap();
        self.image
    }
}

/// Changes the configuration in all labels of a device.
pub(crate) fn relabel(image: &mut [u8], mut change: impl FnMut(&mut NvList)) {
    for label in Geometry::new(image.len() as u64).unwrap().labels() {
        let start = (label + CONFIG_OFFSET) as usize;
        let region = &mut image[start..start + CONFIG_BYTES as usize];
        let mut config = NvList::decode(region).unwrap();
        change(&mut config);
        let bytes = config.encode(Encoding::Xdr(Order::Little)).unwrap();
        region.fill(0);
        region[..bytes.len()].copy_from_slice(&bytes);
        let verifier = Checksum([start as u64, 0, 0, 0]);
        embedded::seal(embedded::Kind::Label, region, verifier, codec::Order::Little).unwrap();
    }
}
