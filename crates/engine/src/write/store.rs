//! What becomes of a prepared block: it gets its place and its pointer, and is sent, or waits.

use std::collections::BTreeSet;

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Stored},
    dnode::ObjectType,
};
use pool::{Bookmark, WrittenBlock};

use super::{
    BlockWriter, Extents, Job,
    devices::{Tops, tops_of},
    gang::{self, Shape, Sums},
    overlay::{Place, place_of},
    prepare::Prepared,
};
use crate::{EngineError, alloc::Purpose, policy::BlockPolicy};

/// Largest content that is kept in the read cache when it is written. Larger blocks are streams, which are
/// seldom read again soon.
const CACHED_MAX: usize = 128 << 10;

/// Metadata that waits for the end of the transaction group.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) bp: BlkPtr,
    pub(super) at: Bookmark,
    /// None if the stored form has to do.
    pub(super) content: Option<Bytes>,
    /// Of that, what counts in [`BlockWriter::contents`].
    counted: u64,
    /// Stored form.
    pub(super) data: Bytes,
    pub(super) policy: BlockPolicy,
    pub(super) shape: Shape,
}

impl<S: Extents> BlockWriter<S> {
    /// Gives a prepared block its place and sends it there, or keeps it.
    pub(super) async fn store(&mut self, job: Job, prepared: Prepared) -> Result<BlkPtr, EngineError> {
        let old = place_of(&job.old).filter(|place| {
            let pending = self.pending.get(place);
            pending.is_some_and(|pending| job.old.birth() == self.txg && pending.bp == job.old)
        });
        let (data, compression, checksum) = match prepared {
            Prepared::Stored { data, compression, checksum } => (data, compression, checksum),
            Prepared::Hole => {
                old.into_iter().for_each(|place| self.forget(place));
                return Ok(self.hole(&job.old, job.content.len() as u64, job.object_type, job.level));
            }
            Prepared::Embedded(bp) => {
                old.into_iter().for_each(|place| self.forget(place));
                return Ok(*bp);
            }
            Prepared::Written(bp) => return self.enter(&job, *bp),
        };
        let shape = self.place(&job.policy, old, data.len()).await?;
        let bp = BlkPtr::stored(&Stored {
            dvas: shape.dvas(),
            lsize: job.content.len() as u64,
            psize: data.len() as u64,
            compression_id: compression.id(),
            checksum_id: job.policy.checksum.id(),
            object_type: job.object_type,
            level: job.level,
            dedup: false,
            order: Order::Little,
            birth: self.txg,
            physical_birth: self.txg,
            fill: job.fill,
            checksum,
        })
        .map_err(EngineError::encode("block pointer"))?;
        if job.policy.metadata {
            self.keep(job, bp, data, shape);
        } else {
            self.send(job, bp, data, shape)?;
        }
        Ok(bp)
    }

    /// A place for `len` stored bytes: of metadata that waits at `old` the same one, if they fit it.
    async fn place(
        &mut self,
        policy: &BlockPolicy,
        old: Option<Place>,
        len: usize,
    ) -> Result<Shape, EngineError> {
        let kept = old.filter(|place| {
            policy.metadata && self.pending.get(place).is_some_and(|pending| pending.data.len() == len)
        });
        if let Some(pending) = kept.and_then(|place| self.pending.remove(&place)) {
            self.contents -= pending.counted;
            return Ok(pending.shape);
        }
        // The new place first: it must not be the old one, or a caller that compares would see no change.
        let shape = self.allocate(len as u64, policy).await?;
        old.into_iter().for_each(|place| self.forget(place));
        Ok(shape)
    }

    /// Metadata: later passes may write it again, so it waits.
    fn keep(&mut self, job: Job, bp: BlkPtr, data: Bytes, shape: Shape) {
        let is_above = job.level > 0 && job.object_type == ObjectType::ZVOL;
        // What is stored as it is has one memory.
        let is_beside = is_above && data.len() < job.content.len();
        let counted = if is_beside { job.content.len() as u64 } else { 0 };
        let fits = counted == 0 || self.contents + counted <= self.contents_max;
        let (content, counted) = if fits { (Some(job.content), counted) } else { (None, 0) };
        self.contents += counted;
        match &content {
            Some(content) => self.overlay.insert(bp, content.clone(), u32::MAX),
            None => self.overlay.insert_stored(bp, data.clone()),
        }
        let pending = Pending { bp, at: job.at, content, counted, data, policy: job.policy, shape };
        self.pending.insert(address(&bp), pending);
    }

    /// Data: on its way to the devices at once.
    fn send(&mut self, job: Job, bp: BlkPtr, data: Bytes, shape: Shape) -> Result<(), EngineError> {
        let place = address(&bp);
        self.written.blocks += 1;
        self.written.bytes += data.len() as u64;
        touch(&mut self.touched, &shape);
        let (devices, mut pieces) = (&mut self.devices, 0);
        // What is stored as it is has one memory, which is the volume's.
        if data.as_ptr() != job.content.as_ptr() {
            devices.leaves.held().made(data.len());
        }
        let sums = Sums { algorithm: job.policy.checksum, salt: self.io.salt(), txg: self.txg };
        shape.fill(&data, sums, &mut |dva, data| {
            pieces += devices.put(dva, data, place)?;
            Ok(())
        })?;
        self.overlay.insert(bp, job.content.clone(), pieces);
        self.kept.push(WrittenBlock { bp, at: job.at, content: Some(job.content), stored: Some(data) });
        if matches!(shape, Shape::Gang { .. }) {
            self.gangs.insert(place, shape);
        }
        Ok(())
    }

    /// The pointer of a block that becomes a hole: remembers its birth if the pool has `hole_birth` and the
    /// block existed.
    pub fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr {
        if !self.traits.hole_birth || old.birth() == 0 {
            return BlkPtr::EMPTY;
        }
        // A size that no pointer can tell (a dnode may claim it) leaves a hole without birth: it reads as zeroes too.
        BlkPtr::punched(lsize, object_type, level, self.txg).unwrap_or(BlkPtr::EMPTY)
    }

    async fn allocate(&mut self, psize: u64, policy: &BlockPolicy) -> Result<Shape, EngineError> {
        let purpose = if policy.metadata { Purpose::Metadata } else { Purpose::Data };
        match self.alloc.allocate(psize, policy.copies, purpose).await {
            Ok(copies) => Ok(Shape::Whole(copies)),
            Err(EngineError::NoSpace { .. }) => {
                gang::allocate(&mut self.alloc, psize, policy.copies, purpose).await
            }
            Err(error) => Err(error),
        }
    }

    /// Gives back the place of metadata that waits.
    pub(super) fn forget(&mut self, place: Place) {
        if let Some(pending) = self.pending.remove(&place) {
            self.contents -= pending.counted;
            self.overlay.remove(place);
            pending.shape.release(&mut self.alloc);
            self.moved.entry(place).or_default().push(pending.bp);
        }
    }

    /// Puts what was stored into the read cache: it is as good as read.
    pub(super) fn remember(&mut self) {
        self.io.remember(self.kept.drain(..).filter(is_kept));
    }
}

/// Where a stored block lies.
fn address(bp: &BlkPtr) -> Place {
    place_of(bp).expect("a stored block has an address")
}

/// Notes on which devices the parts of a block are.
pub(super) fn touch(touched: &mut BTreeSet<Tops>, shape: &Shape) {
    shape.each(&mut |copies| {
        let tops = tops_of(copies.iter().copied());
        // A handful of sets in any pool, and the same one nearly always.
        if !touched.contains(&tops) {
            touched.insert(tops);
        }
    });
}

/// Whether a block that is written is worth being kept.
pub(super) fn is_kept(block: &WrittenBlock) -> bool {
    block.bp.lsize() <= CACHED_MAX as u64
}
