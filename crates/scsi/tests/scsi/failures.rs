//! What a volume's troubles look like to a host: each must lead it to the right remedy.

use std::{pin::pin, sync::Arc, task::Poll};

use block::{BlockVolume, Extent, Geometry, Identity, Segments, VolumeError, VolumeFuture};
use scsi::{Begin, LogicalUnit, Response, Status};

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
