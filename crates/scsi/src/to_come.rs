//! A volume that cannot be had at the moment: who it is, and nothing else. What else hosts learn of it is not true; when it
//! comes they are told so ([`LogicalUnit::succeed`](crate::LogicalUnit::succeed)).

use block::{BlockVolume, Extent, Geometry, Identity, Segments, VolumeError, VolumeFuture};

pub(crate) struct ToCome(pub(crate) Identity);

impl BlockVolume for ToCome {
    fn geometry(&self) -> Geometry {
        Geometry { size: 0, block: 4096, read_only: false }
    }
    fn identity(&self) -> Identity {
        self.0.clone()
    }
    fn read(&self, _: u64, _: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async { Err(not_yet()) })
    }
    fn extents(&self, _: u64, _: u64, _: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async { Err(not_yet()) })
    }
}

fn not_yet() -> VolumeError {
    VolumeError::NotReady("it could not be opened yet".to_owned())
}
