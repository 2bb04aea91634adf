//! Blocks of volumes at their final places before their transaction group is synced: what the intent log points to,
//! instead of holding it, when a block is large.
//!
//! ```text
//!   any task      write: compress ▶ checksum ▶ place from LogSpace ▶ devices ─▶ pointer ─▶ log record
//!   syncing task  Job::written: the pointer goes into the tree, its places become allocations of the group
//!                 discard: nobody wants it any more; its places wait like those of any freed block
//! ```
//!
//! A pointer belongs to one transaction group, its birth. In that group it must end in one of the two: its places are
//! nobody's otherwise, and a crash gives them to whoever comes first.
//!
//! Facts: docs/format/zil.md §3.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use codec::compress;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
};
use pool::{Bookmark, WrittenBlock};

use super::{
    BlockWriter, Extents, Job,
    batch::{COMPRESS_CHUNK, from_worker},
    devices::tops_of,
    direct::Direct,
    prepare::{Prepared, Rules, prepare},
};
use crate::{
    EngineError,
    alloc::Allocator,
    policy::BlockPolicy,
    zil::{LogSpace, Supply},
};

/// Writes blocks of volumes before their transaction group is synced, from any task.
#[derive(Clone, Debug)]
pub struct Ahead {
    direct: Arc<Direct>,
    space: Arc<LogSpace>,
    /// As of the transaction group being synced.
    rules: Arc<ArcSwap<Rules>>,
    /// There are other threads to compress on.
    has_workers: bool,
}

impl Ahead {
    /// Writes `content` as a block of a volume, born in transaction group `txg`, which must be open or quiescing; `at`
    /// says which one it is. Durable after [`Direct::flush`] of the pointer's devices. A block of zeroes is a hole and
    /// a tiny one embedded: those need no flush.
    ///
    /// # Errors
    /// [`EngineError::NoSpace`]: there is no place at hand. Else one of its copies cannot be written.
    pub async fn write(
        &self,
        content: Bytes,
        policy: &BlockPolicy,
        object_type: ObjectType,
        txg: u64,
        at: Bookmark,
    ) -> Result<BlkPtr, EngineError> {
        let lsize = content.len() as u64;
        let job = Job {
            content,
            policy: *policy,
            object_type,
            level: 0,
            fill: 1,
            old: BlkPtr::EMPTY,
            at,
            written: None,
            sum: None,
        };
        let (data, compression, checksum) = match self.prepare(job, txg).await? {
            Prepared::Stored { data, compression, checksum } => (data, compression, checksum),
            Prepared::Embedded(bp) | Prepared::Written(bp) => return Ok(*bp),
            Prepared::Hole => return Ok(BlkPtr::EMPTY),
        };
        let dvas = self.places(data.len() as u64, policy.copies)?;
        let bp = BlkPtr::stored(&Stored {
            dvas,
            lsize,
            psize: data.len() as u64,
            compression_id: compression.id(),
            checksum_id: policy.checksum.id(),
            object_type,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: txg,
            physical_birth: txg,
            fill: 1,
            checksum,
        })
        .map_err(EngineError::encode("block pointer"))?;
        let writes = bp.dvas().map(|dva| self.direct.write(dva, data.clone(), txg, false));
        let outcomes = futures_util::future::join_all(writes).await;
        // One copy would be enough to read it. But of one that could not be written nobody notes that it is missing, as a
        // transaction group does: all of them, or none.
        if let Some(error) = outcomes.into_iter().find_map(Result::err) {
            bp.dvas().for_each(|dva| self.space.give_back(dva));
            return Err(error);
        }
        Ok(bp)
    }

    async fn prepare(&self, job: Job, txg: u64) -> Result<Prepared, EngineError> {
        let rules = Rules { txg, ..Rules::clone(&self.rules.load()) };
        let is_long = job.content.len() >= COMPRESS_CHUNK
            && job.policy.compression.algorithm != compress::Algorithm::Off;
        if !self.has_workers || !is_long {
            return prepare(&job, None, &rules);
        }
        from_worker(tokio::task::spawn_blocking(move || prepare(&job, None, &rules)).await)?
    }

    /// As many places as there are copies, or none: the transaction group finds room for all.
    fn places(&self, psize: u64, copies: u8) -> Result<[Dva; 3], EngineError> {
        let mut dvas = [Dva::default(); 3];
        for number in 0..usize::from(copies.clamp(1, 3)) {
            // Without waiting: whoever writes ahead holds the transaction group, for which the space's owner may wait.
            let Some(dva) = self.space.try_take(psize, Supply::Pool) else {
                dvas[..number].iter().for_each(|dva| self.space.give_back(*dva));
                return Err(EngineError::NoSpace { psize });
            };
            dvas[number] = dva;
        }
        Ok(dvas)
    }
}

impl BlockWriter<Allocator> {
    /// Writes blocks ahead of their transaction group; follows this writer's devices and features.
    pub fn ahead(&self) -> Ahead {
        Ahead {
            direct: self.direct(),
            space: Arc::clone(self.alloc.log_space()),
            rules: Arc::clone(&self.rules),
            has_workers: self.workers > 0,
        }
    }
}

/// The syncing task's side.
impl<S: Extents> BlockWriter<S> {
    /// A block that was written ahead to leaves to which something happened since may not be there: it is written anew.
    pub(super) fn doubt(&mut self, job: &mut Job) -> Result<(), EngineError> {
        let doubtful = job
            .written
            .as_ref()
            .filter(|bp| bp.birth() == self.txg && bp.dvas().any(|dva| !self.devices.is_sure(dva.vdev)));
        if doubtful.is_some()
            && let Some(bp) = job.written.take()
        {
            self.discard(&bp)?;
        }
        Ok(())
    }

    /// Makes what was written ahead a block of this transaction group.
    pub(super) fn enter(&mut self, job: &Job, bp: BlkPtr) -> Result<BlkPtr, EngineError> {
        if bp.is_hole() {
            return Ok(self.hole(&job.old, job.content.len() as u64, job.object_type, job.level));
        }
        let is_this_block = bp.lsize() == job.content.len() as u64
            && (bp.object_type(), bp.level()) == (job.object_type, job.level);
        if !is_this_block || bp.birth() != self.txg || bp.is_gang() {
            let detail = format!("{bp} was not written ahead as block {} of this transaction group", job.at);
            return Err(EngineError::Encode { what: "block", detail });
        }
        if bp.is_embedded() {
            return Ok(bp);
        }
        for dva in bp.dvas() {
            self.alloc.adopt(dva)?;
            // Whoever wrote it may not have come to flush it.
            self.devices.flush_too(dva.vdev);
        }
        self.touched.insert(tops_of(bp.dvas()));
        self.entered.push(Job { written: Some(Box::new(bp)), ..job.clone() });
        self.written.blocks += 1;
        self.written.bytes += bp.psize();
        self.kept.push(WrittenBlock { bp, at: job.at, content: Some(job.content.clone()), stored: None });
        Ok(bp)
    }

    /// Adds what was written ahead to what leaves can be given again.
    pub(super) fn recall(&mut self) -> Result<(), EngineError> {
        let rules = self.rules();
        for job in std::mem::take(&mut self.entered) {
            let Some(bp) = job.written else { continue };
            match prepare(&Job { written: None, ..job }, None, &rules)? {
                Prepared::Stored { data, checksum, .. } if checksum == bp.checksum() => {
                    if bp.psize() < bp.lsize() {
                        self.devices.leaves.held().made(data.len());
                    }
                    for dva in bp.dvas() {
                        self.devices.recall(&dva, &data)?;
                    }
                }
                _ => {
                    let detail = format!("{bp} is another one now");
                    return Err(EngineError::Encode { what: "block", detail });
                }
            }
        }
        Ok(())
    }

    /// Gives back the places of a block that was written [ahead](Ahead) in this transaction group, and is not
    /// part of any tree. They wait as if it had been: a log record may name it.
    ///
    /// # Errors
    /// It was not.
    pub fn discard(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        for dva in bp.dvas() {
            self.alloc.adopt(dva)?;
            self.alloc.release(dva);
        }
        Ok(())
    }
}
