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
use pool::Bookmark;

use super::{
    BlockWriter, COMPRESS_CHUNK, Job,
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
        match tokio::task::spawn_blocking(move || prepare(&job, None, &rules)).await {
            Ok(prepared) => prepared,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(EngineError::Suspended("the runtime is shutting down".to_owned())),
        }
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
