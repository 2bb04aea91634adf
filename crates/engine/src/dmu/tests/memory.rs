//! A writer and a source without devices: blocks in a map, each protected by its pointer.
//!
//! A pointer that is stale, freed, or of another block does not read. Blocks of zeroes become holes, and blocks
//! that end in zeroes early are embedded, so that trees meet all kinds of pointers.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, EMBEDDED_BYTES_MAX, Stored},
    dnode::ObjectType,
};
use parking_lot::Mutex;
use pool::{
    Bookmark,
    dmu::{BlockSource, SourceFuture},
    error::{BlockError, BlockErrorKind},
};

use super::super::{Account, sink::Sink};
use crate::{
    EngineError,
    policy::{SetPolicy, TRAITS},
    write::Job,
};

const SECTOR: u64 = 4096;

#[derive(Debug, Default)]
struct Blocks(Mutex<BTreeMap<u64, (BlkPtr, Bytes)>>, AtomicUsize);

/// A writer that a history can be played on.
pub(crate) trait Out: Sink {
    fn begin(&mut self, txg: u64);
    fn source(&self) -> Arc<dyn BlockSource>;
    /// Stores a block before its set is synced, if that can be done here.
    fn write_ahead(&mut self, _content: Bytes, _object_type: ObjectType) -> Option<BlkPtr> {
        None
    }
    /// The end of a transaction group: these blocks are dead.
    fn settle(&mut self, killed: Vec<BlkPtr>) -> impl Future<Output = ()> + Send;
}

impl Blocks {
    fn get(&self, bp: &BlkPtr, at: Option<Bookmark>) -> Result<Bytes, BlockError> {
        let lsize = bp.lsize() as usize;
        if let Some(embedded) = bp.embedded() {
            let mut content = embedded.payload().to_vec();
            content.resize(lsize, 0);
            return Ok(content.into());
        }
        let blocks = self.0.lock();
        let Some(dva) = bp.dvas().next() else { return Ok(vec![0; lsize].into()) };
        match blocks.get(&dva.offset) {
            Some((stored, content)) if stored.checksum() == bp.checksum() => Ok(content.clone()),
            Some(_) => Err(BlockError::new(BlockErrorKind::Checksum, bp, at, Vec::new())),
            None => Err(BlockError::new(BlockErrorKind::Device, bp, at, Vec::new())),
        }
    }
}

impl BlockSource for Blocks {
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
        // Half of the blocks, so that both ways are taken.
        let even = bp.dvas().next().is_some_and(|dva| (dva.offset / SECTOR).is_multiple_of(2));
        self.get(bp, None).ok().filter(|_| even)
    }
    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(ready(self.get(bp, Some(at))))
    }
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        self.1.fetch_max(blocks.len(), Relaxed);
        Box::pin(ready(blocks.iter().map(|(bp, at)| self.get(bp, Some(*at))).collect()))
    }
}

/// Stores blocks in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) txg: u64,
    blocks: Arc<Blocks>,
    next: u64,
    /// Places of blocks written ahead that no tree has yet.
    ahead: BTreeSet<u64>,
    /// Blocks that came into trees like that.
    pub(crate) ahead_used: u64,
    /// Blocks written, holes and embedded ones included.
    pub(crate) written: u64,
    /// Most bytes that came in one call.
    pub(crate) largest: usize,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { txg: 4, next: SECTOR, ..Self::default() }
    }

    /// Puts another content behind a pointer.
    pub(crate) fn forge(&mut self, bp: BlkPtr, content: Bytes) {
        self.blocks.0.lock().insert(address(&bp), (bp, content));
    }

    /// Most blocks that were read in one call.
    pub(crate) fn most_read(&self) -> usize {
        self.blocks.1.load(Relaxed)
    }

    /// All blocks.
    pub(crate) fn all(&self) -> Vec<(BlkPtr, Bytes)> {
        self.blocks.0.lock().values().cloned().collect()
    }

    fn store(&mut self, job: &Job) -> BlkPtr {
        if let Some(bp) = job.written.as_deref().copied() {
            assert!(bp.dvas().all(|dva| self.ahead.remove(&dva.offset)), "used once");
            self.ahead_used += 1;
            // A hole is made by whoever knows what was there before.
            return if bp.is_hole() {
                self.hole(&job.old, job.content.len() as u64, job.object_type, 0)
            } else {
                bp
            };
        }
        self.written += 1;
        let lsize = job.content.len() as u64;
        let used = job.content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if used == 0 {
            return self.hole(&job.old, lsize, job.object_type, job.level);
        }
        let special = [ObjectType::DNODE, ObjectType::OBJSET].contains(&job.object_type);
        if used <= EMBEDDED_BYTES_MAX && job.level == 0 && !special {
            let payload = &job.content[..used];
            return BlkPtr::embed(payload, lsize, 15, job.object_type, Order::Little, self.txg).unwrap();
        }
        let again = job
            .old
            .dvas()
            .next()
            .filter(|_| job.policy.metadata && job.old.birth() == self.txg && job.old.psize() >= lsize);
        let psize = if again.is_some() { job.old.psize() } else { lsize };
        let asize = psize.next_multiple_of(SECTOR);
        let dva = again.unwrap_or(Dva { vdev: 0, offset: self.next, asize, gang: false });
        self.next = self.next.max(dva.offset + asize);
        let bp = BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize,
            psize,
            compression_id: 2,
            checksum_id: 7,
            object_type: job.object_type,
            level: job.level,
            dedup: false,
            order: Order::Little,
            birth: self.txg,
            physical_birth: self.txg,
            fill: job.fill,
            checksum: [self.written, 0, 0, 1],
        });
        let bp = bp.unwrap();
        self.blocks.0.lock().insert(dva.offset, (bp, job.content.clone()));
        bp
    }
}

impl Out for Memory {
    fn begin(&mut self, txg: u64) {
        self.txg = txg;
    }

    fn source(&self) -> Arc<dyn BlockSource> {
        Arc::clone(&self.blocks) as Arc<dyn BlockSource>
    }

    fn write_ahead(&mut self, content: Bytes, object_type: ObjectType) -> Option<BlkPtr> {
        let (policy, old, at) = (policy().block(object_type, 0, 0, 0), BlkPtr::EMPTY, Bookmark::default());
        let job = Job { content, policy, object_type, level: 0, fill: 1, old, at, written: None, sum: None };
        let bp = self.store(&job);
        self.ahead.extend(bp.dvas().map(|dva| dva.offset));
        Some(bp)
    }

    /// Whoever reads them from now on fails. (A place is not used twice here.)
    async fn settle(&mut self, killed: Vec<BlkPtr>) {
        for bp in killed {
            self.blocks.0.lock().remove(&address(&bp));
        }
    }
}

impl Sink for Memory {
    fn write(&mut self, jobs: Vec<Job>) -> impl Future<Output = Result<Vec<BlkPtr>, EngineError>> + Send {
        self.largest = self.largest.max(jobs.iter().map(|job| job.content.len()).sum());
        ready(Ok(jobs.iter().map(|job| self.store(job)).collect()))
    }
    fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr {
        if old.birth() == 0 {
            return BlkPtr::EMPTY;
        }
        BlkPtr::punched(lsize, object_type, level, self.txg).unwrap()
    }
    /// Whoever reads them from now on fails.
    async fn free_all(&mut self, blocks: &[BlkPtr]) -> Result<(), EngineError> {
        let mut stored = self.blocks.0.lock();
        for bp in blocks {
            stored.remove(&address(bp));
        }
        Ok(())
    }
}

/// How the MOS is written.
pub(crate) fn policy() -> SetPolicy {
    SetPolicy::mos(&TRAITS)
}

/// Keeps the books: every block that is part of the set, by its address.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) stored: BTreeMap<u64, BlkPtr>,
    pub(crate) embedded: i64,
    /// Killed since this was last emptied.
    pub(crate) killed: Vec<BlkPtr>,
    /// They are freed while the set is being synced.
    pub(crate) frees_early: bool,
    /// Most that were in `killed`.
    pub(crate) most_killed: usize,
}

/// Where a stored block is.
pub(crate) fn address(bp: &BlkPtr) -> u64 {
    bp.dvas().next().expect("a stored block").offset
}

impl Account for Books {
    fn born(&mut self, bp: &BlkPtr) {
        assert!(!bp.is_hole(), "holes are not born");
        if bp.is_embedded() {
            self.embedded += 1;
        } else {
            assert!(self.stored.insert(address(bp), *bp).is_none(), "born twice: {bp}");
        }
    }
    fn killed(&mut self, bp: &BlkPtr) {
        assert!(!bp.is_hole(), "holes do not die");
        if bp.is_embedded() {
            self.embedded -= 1;
        } else {
            assert!(self.stored.remove(&address(bp)).is_some(), "killed and never born: {bp}");
            self.killed.push(*bp);
            self.most_killed = self.most_killed.max(self.killed.len());
        }
    }
    fn to_free(&mut self) -> Vec<BlkPtr> {
        if self.frees_early { std::mem::take(&mut self.killed) } else { Vec::new() }
    }
}
