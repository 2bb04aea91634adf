//! Doing again what an intent log says, before anybody is served: like a client's changes, but neither `readonly=on`
//! nor a size that has become smaller is in the way, and nothing has to be made durable.
//!
//! Facts: docs/format/zil.md §3, §5.

use std::collections::BTreeSet;

use block::{Segments, VolumeError};
use futures_util::future::join_all;

use super::{
    LiveVolume,
    piece::{Payload, Zeroes},
};

/// A change of a range, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Redo {
    pub(crate) offset: u64,
    pub(crate) what: Content,
}

/// What a range becomes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// These bytes.
    Data(bytes::Bytes),
    /// This many zeroes.
    Zeroes(u64),
}

impl Redo {
    fn len(&self) -> u64 {
        match &self.what {
            Content::Data(data) => data.len() as u64,
            Content::Zeroes(len) => *len,
        }
    }

    /// What of it lies below `size`.
    fn end(&self, size: u64) -> u64 {
        self.offset.saturating_add(self.len()).min(size)
    }
}

impl LiveVolume {
    /// Reads what changes of parts of blocks will need, all at once; what fails shows when it is needed.
    pub(crate) async fn prepare(&self, changes: &[Redo]) {
        let (size, block) = (self.service().size, self.block);
        let mut bases = BTreeSet::new();
        for change in changes {
            let (start, end) = (change.offset, change.end(size));
            if start >= end {
                continue;
            }
            bases.extend((!start.is_multiple_of(block)).then_some(start / block));
            bases.extend((!end.is_multiple_of(block)).then_some(end / block));
        }
        bases.retain(|blkid| !self.memory.read().knows(*blkid));
        let reads = bases.into_iter().map(|blkid| self.read_committed(blkid * block, block as usize));
        drop(join_all(reads).await);
    }

    /// Makes a change in the open transaction group; what lies beyond the volume is left out. Returns the bytes
    /// changed.
    ///
    /// # Errors
    /// As a client's write.
    pub(crate) async fn redo(&self, change: &Redo) -> Result<u64, VolumeError> {
        self.check_open()?;
        let service = self.service();
        let (offset, end) = (change.offset, change.end(service.size));
        if offset >= end {
            return Ok(0);
        }
        let cut = self.cut(&service);
        match &change.what {
            Content::Data(data) => {
                let data = data.slice(..(end - offset) as usize);
                let segments: Segments = std::iter::once(block::Segment::Data(data)).collect();
                let (mut payload, mut at) = (Payload::new(segments), offset);
                while at < end {
                    let until = cut.end_of_piece(at, end);
                    self.apply(cut.write(at, until, &mut payload)).await?;
                    at = until;
                }
            }
            Content::Zeroes(_) => {
                self.become_zeroes(&cut, offset..end, Zeroes::Punch).await?;
            }
        }
        Ok(end - offset)
    }
}
