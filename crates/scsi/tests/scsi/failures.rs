//! What a volume's troubles look like to a host: each must lead it to the right remedy.

use std::{pin::pin, sync::Arc, task::Poll};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeError,
    VolumeFuture,
};
use bytes::Bytes;
use scsi::{Begin, LogicalUnit, Nexus, Response, Status};

use crate::{commands::unmap, paced::now};

/// Fails everything in one way.
struct Failing(VolumeError);

impl BlockVolume for Failing {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 20, block: 8192, read_only: false }
    }
    fn identity(&self) -> Identity {
        Identity { name: "tank/bad".into(), guid: 1, pool_guid: 2 }
    }
    fn read(&self, _: u64, _: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async { Err(self.0.clone()) })
    }
    fn extents(&self, _: u64, _: u64, _: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async { Err(self.0.clone()) })
    }
}

fn read_after_attention(error: VolumeError) -> Response {
    read(error, 0x10, 1)
}

/// What becomes of a read of so many blocks.
fn read(error: VolumeError, lba: u8, blocks: u8) -> Response {
    let unit = LogicalUnit::new(Arc::new(Failing(error)), "iqn.test");
    let nexus = unit.attach("iqn.host,i,0x1");
    assert!(matches!(unit.begin(&nexus, &[0; 16], 0), Begin::Done(r) if r.status == Status::CheckCondition));
    let mut cdb = [0; 16];
    (cdb[0], cdb[5], cdb[8]) = (0x28, lba, blocks);
    let Begin::Job(job) = unit.begin(&nexus, &cdb, 0) else { panic!("nothing of it is cached") };
    let mut run = pin!(unit.run(&nexus, job, Segments::new()));
    match run.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(response) => response,
        Poll::Pending => panic!("this volume does not wait"),
    }
}

#[test]
fn an_unreadable_block_is_a_medium_error_that_names_it() {
    let response =
        read_after_attention(VolumeError::Unreadable { offset: 0x2000, detail: "disk gone".into() });
    let sense = response.sense.as_slice();
    assert_eq!((sense[2], sense[12], sense[13]), (3, 0x11, 0));
    assert_eq!((sense[0], &sense[3..7]), (0xf0, &[0, 0, 0, 0x10][..]), "the LBA is in INFORMATION");
    assert!(response.data.is_empty(), "no bytes that might be taken for the real ones");
}

/// Hosts mark a block that a medium error names as bad, and do not forget it when the devices are back that have it.
#[test]
fn what_fails_while_devices_are_away_is_no_medium_error() {
    let response = read_after_attention(VolumeError::Failed("its devices are away".into()));
    let sense = response.sense.as_slice();
    assert_eq!((sense[0], sense[2], sense[12], sense[13]), (0x70, 4, 0x44, 0), "no LBA either");
}

/// Blocks of volumes are larger than those of disks, and what leads to many of them may be unreadable as a whole: hosts were
/// told of blocks that they had not asked for.
#[test]
fn a_medium_error_names_the_first_bad_block_of_those_that_were_asked_for_or_none() {
    for (offset, named) in [(0, Some(0x13)), (0x2000, Some(0x13)), (0x2800, Some(0x14)), (0x2a00, None)] {
        let response = read(VolumeError::Unreadable { offset, detail: "disk gone".into() }, 0x13, 2);
        let sense = response.sense.as_slice();
        assert_eq!((sense[2], sense[12], sense[13]), (3, 0x11, 0), "{offset:#x}");
        let information = (sense[0] == 0xf0).then_some(sense[6]);
        assert_eq!((information, &sense[3..6]), (named, &[0; 3][..]), "{offset:#x}");
    }
}

#[test]
fn a_pool_that_is_not_ready_asks_for_a_retry_and_never_for_giving_up_the_disk() {
    let sense = |error| {
        let response = read_after_attention(error);
        let s = response.sense.as_slice().to_vec();
        (s[2], s[12], s[13])
    };
    assert_eq!(sense(VolumeError::NotReady("suspended".into())), (2, 4, 1));
    assert_eq!(sense(VolumeError::Unsupported("no key".into())), (2, 4, 3));
    assert_eq!(sense(VolumeError::NoSpace), (7, 0x27, 7));
    assert_eq!(sense(VolumeError::ReadOnly), (7, 0x27, 0));
}

#[test]
fn ranges_beyond_the_end_are_refused_before_the_volume_is_asked() {
    let unit = LogicalUnit::new(Arc::new(Failing(VolumeError::NoSpace)), "iqn.test");
    let nexus = unit.attach("iqn.host,i,0x1");
    drop(unit.begin(&nexus, &[0; 16], 0));
    for (lba, blocks) in [(2048_u64, 1_u32), (2047, 2), (u64::MAX, 1), (u64::MAX, u32::MAX), (2049, 0)] {
        let mut cdb = [0; 16];
        cdb[0] = 0x88;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        let Begin::Done(response) = unit.begin(&nexus, &cdb, 0) else { panic!("{lba} {blocks}") };
        assert_eq!(response.sense.as_slice()[12], 0x21, "{lba} {blocks}");
    }
}

/// A thin volume in a full pool: nothing is stored any more, not even a part of a block that is there.
struct Full(MemVolume);

const BLOCK: u64 = 8192;

impl BlockVolume for Full {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.0.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.0.extents(offset, len, max)
    }
    fn write_zeroes(&self, offset: u64, len: u64, allocate: bool, to: Durability) -> VolumeFuture<'_, ()> {
        match offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) {
            true => self.0.write_zeroes(offset, len, allocate, to),
            false => Box::pin(async { Err(VolumeError::NoSpace) }),
        }
    }
    fn unmap(&self, offset: u64, len: u64, to: Durability) -> VolumeFuture<'_, ()> {
        self.0.unmap(offset, len, to)
    }
}

/// A disk of 256 MiB with four volume blocks of data at its beginning, and one 100 MiB further on.
fn full_disk() -> (LogicalUnit, Arc<Nexus>) {
    let volume = MemVolume::new("tank/thin", 256 << 20, BLOCK as u32);
    for (at, blocks) in [(0, 4), (100 << 20, 1)] {
        let data = [Segment::Data(Bytes::from(vec![7; blocks * BLOCK as usize]))].into_iter().collect();
        now(volume.write(at, data, Durability::Cached)).unwrap();
    }
    let unit = LogicalUnit::new(Arc::new(Full(volume)), "iqn.test");
    let nexus = unit.attach("iqn.host,i,0x1");
    drop(unit.begin(&nexus, &[0; 16], 0));
    (unit, nexus)
}

/// How a command ends: nothing, or its sense.
fn send(unit: &LogicalUnit, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Option<(u8, u8, u8)> {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    let Begin::Job(job) = unit.begin(nexus, &cdb, data.len() as u32) else { panic!("{bytes:02x?}") };
    let data = [Segment::Data(Bytes::copy_from_slice(data))].into_iter().collect();
    let response = now(unit.run(nexus, job, data));
    let sense = response.sense.as_slice();
    (response.status != Status::Good).then(|| (sense[2], sense[12], sense[13]))
}

/// Which of these volume blocks hold nothing.
fn holes<const N: usize>(unit: &LogicalUnit, blocks: [u64; N]) -> [bool; N] {
    blocks.map(|block| now(unit.volume().extents(block * BLOCK, BLOCK, 1)).unwrap()[0].hole)
}

/// It had to store half a block first, for which there was no room: hosts could not make any.
#[test]
fn unmapping_in_a_full_pool_frees_the_whole_blocks_wherever_it_begins_and_ends() {
    let (unit, nexus) = full_disk();
    // From the middle of the first block to the middle of the fourth, and within the last.
    let (cdb, list) = unmap(&[(8, 48), (100 * 2048 + 3, 2)]);
    assert_eq!(send(&unit, &nexus, &cdb, &list), None);
    assert_eq!(holes(&unit, [0, 1, 2, 3, 100 << 7]), [false, true, true, false, false]);
    let (cdb, list) = unmap(&[(8, 120 * 2048)]);
    assert_eq!(send(&unit, &nexus, &cdb, &list), None);
    assert_eq!(holes(&unit, [0, 3, 100 << 7]), [false, true, true]);
}

/// Whoever writes zeroes has to know that they are there; what they need no room for is done all the same.
#[test]
fn zeroes_without_room_for_their_ends_are_refused_when_all_between_is_freed() {
    let (unit, nexus) = full_disk();
    let same = |lba: u8, mib: u32| {
        let [a, b, c, d] = (mib * 2048).to_be_bytes();
        [0x93, 8, 0, 0, 0, 0, 0, 0, 0, lba, a, b, c, d, 0, 0]
    };
    assert_eq!(send(&unit, &nexus, &same(8, 150), &[0; 512]), Some((7, 0x27, 7)));
    assert_eq!(holes(&unit, [0, 1, 3, 100 << 7]), [false, true, true, true]);
    assert_eq!(send(&unit, &nexus, &same(0, 150), &[0; 512]), None);
    assert_eq!(holes(&unit, [0]), [true]);
}
