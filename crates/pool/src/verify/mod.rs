//! Is the pool all right? Every allocated block is read from every place it is in, and verified.
//!
//! ```text
//!   stack of metadata (newest first)   queue of data
//!            │ 16 blocks                  │ up to 4 MiB
//!            ▼                            ▼
//!        batch task ─── batch task ─── batch task …    a few at a time, on all threads
//!            │ read all copies, verify, claim space, decompress, find pointers
//!            ▼
//!        back to the driver: counts, problems, more pointers
//! ```
//!
//! What is checked: all DVAs of each block, all sides of mirrors, every RAIDZ cell with its parity, gang
//! headers and members; every pointer's level; that trees do not meet; that the space maps say exactly what
//! was found. Counts per object type are those of `zdb -bcc`: one for each pointer that is not a hole.
//! Blocks on lists of what is being freed are counted and claimed, and cannot be read (their checksums
//! are gone). Logical content is not judged: a file system whose blocks are all right passes.
//!
//! The queue of data is emptied before metadata is opened further, so memory is bounded by a few thousand
//! pointers per level of the deepest tree, plus two bits for each smallest unit of the pool ([`claims`]).
//! Metadata is never walked twice, so that a forged tree ends.
//!
//! Repairs are in memory only: nothing is written. Facts: docs/format/blkptr.md, dmu.md, zil.md §2.

mod claims;
mod kept;
mod log;
mod names;
mod report;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    BoxFuture, Pool,
    error::Evidence,
    io::{Bookmark, Examined, decompress},
    traverse::{LEVEL_OBJSET, Scope, Scopes, Visit, expand, pending_frees},
};
use claims::{Claims, Conflict};
use kept::Kept;

pub use claims::TopClaims;
pub use report::{Count, Counts, Kind, Location, ObjectTypeId, Problem, Report, Row, SpaceReport};

/// Metadata blocks of one batch. Each may hold 1024 pointers or more, which wait in memory.
const META_BLOCKS: usize = 16;
/// Data blocks of one batch.
const DATA_BLOCKS: usize = 1024;
/// Data bytes of one batch.
const DATA_BYTES: u64 = 4 << 20;
/// Batches under way: enough for two threads to be busy while others wait for devices.
const BATCHES: usize = 8;
/// Problems kept; the rest is only counted.
const PROBLEMS_MAX: usize = 10_000;

/// Where a block is, in words, as far as that can be read. `block_bytes` tells the offset in its object.
pub fn locate(pool: &Arc<Pool>, at: Bookmark, block_bytes: u64) -> BoxFuture<'_, Location> {
    Box::pin(async move { names::Names::new(pool).locate(at, block_bytes).await })
}

/// How far a verification is, for whoever watches.
#[derive(Debug, Default)]
pub struct Progress {
    /// Allocated bytes verified.
    pub done: AtomicU64,
    /// Allocated bytes in all, once known.
    pub total: AtomicU64,
    /// Blocks verified.
    pub blocks: AtomicU64,
    /// Problems found.
    pub problems: AtomicU64,
}

/// What all batches share.
struct Job {
    pool: Arc<Pool>,
    scopes: Vec<Scope>,
    claims: Claims,
    /// Metadata that was walked: by first address.
    walked: Mutex<BTreeSet<(u32, u64)>>,
    progress: Arc<Progress>,
}

/// What a batch found.
#[derive(Default)]
struct Outcome {
    counts: Counts,
    visits: Vec<Visit>,
    findings: Vec<Finding>,
    thin: u64,
}

/// Something wrong, not yet with names.
struct Finding {
    kind: Kind,
    at: Option<Bookmark>,
    /// Bytes of a data block, to tell the offset in the file.
    block_bytes: u64,
    what: String,
    evidence: Vec<Evidence>,
}

/// Reads and verifies everything in the pool.
///
/// Damage is no error here: it is in the report. Uses as many threads as the runtime has.
pub fn verify<'a>(pool: &'a Arc<Pool>, progress: &'a Arc<Progress>) -> BoxFuture<'a, Report> {
    Box::pin(async move {
        let started = tokio::time::Instant::now();
        let scopes = Scopes::read(pool).await;
        let (roots, unchanged) = (scopes.roots(), scopes.unchanged());
        let Scopes { all, failures } = scopes;
        let claims = Claims::read(pool).await;
        if let Ok(space) = pool.space().await {
            progress.total.store(space.tops.iter().map(|top| top.allocated).sum(), Relaxed);
        }
        let job = Arc::new(Job {
            pool: Arc::clone(pool),
            scopes: all,
            claims,
            walked: Mutex::default(),
            progress: Arc::clone(progress),
        });
        let mut total = Outcome::default();
        // A dnode block of the MOS that cannot be read turns up again in the walk; structures in it do not.
        for failure in failures {
            if !matches!(failure, crate::dmu::ReadError::Block(_)) {
                total.findings.push(Finding::malformed(None, failure.to_string()));
            }
        }
        job.count_frees(&mut total).await;
        for scope in unchanged {
            job.log_of_unchanged(scope, &mut total).await;
        }
        let mut kept = Kept::new(PROBLEMS_MAX);
        kept.add(std::mem::take(&mut total.findings));
        let visits = std::mem::take(&mut total.visits);
        drive(&job, roots.into_iter().chain(visits).collect(), &mut total, &mut kept).await;
        report::conclude(&job, total, kept, started.elapsed()).await
    })
}

/// Runs batches until nothing is left. What they find goes to `kept`, the rest to `total`.
async fn drive(job: &Arc<Job>, roots: Vec<Visit>, total: &mut Outcome, kept: &mut Kept) {
    let (mut meta, mut data): (Vec<Visit>, VecDeque<Visit>) = (roots, VecDeque::new());
    meta.reverse();
    let mut running: JoinSet<Outcome> = JoinSet::new();
    let mut waiting_bytes = 0u64;
    loop {
        while running.len() < BATCHES {
            let enough = data.len() >= DATA_BLOCKS || waiting_bytes >= DATA_BYTES;
            let batch: Vec<Visit> = if enough || (meta.is_empty() && !data.is_empty()) {
                let mut batch = Vec::with_capacity(DATA_BLOCKS.min(data.len()));
                let mut bytes = 0;
                while batch.len() < DATA_BLOCKS
                    && bytes < DATA_BYTES
                    && let Some(visit) = data.pop_front()
                {
                    bytes += visit.pointer.psize();
                    batch.push(visit);
                }
                waiting_bytes -= bytes;
                batch
            } else {
                let from = meta.len().saturating_sub(META_BLOCKS);
                let mut batch = meta.split_off(from);
                batch.reverse();
                batch
            };
            if batch.is_empty() {
                break;
            }
            let job = Arc::clone(job);
            running.spawn(async move { job.batch(batch).await });
        }
        let Some(finished) = running.join_next().await else { return };
        let outcome = match finished {
            Ok(outcome) => outcome,
            // Not cancelled by anybody, so a bug: pass it on instead of reporting a pool as verified.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        total.counts.merge(&outcome.counts);
        total.thin += outcome.thin;
        job.progress.problems.fetch_add(outcome.findings.len() as u64, Relaxed);
        kept.add(outcome.findings);
        let first_meta = meta.len();
        for visit in outcome.visits {
            if visit.has_children() {
                meta.push(visit);
            } else {
                waiting_bytes += visit.pointer.psize();
                data.push_back(visit);
            }
        }
        meta[first_meta..].reverse();
    }
}

impl Job {
    fn scope(&self, visit: &Visit) -> &Scope {
        &self.scopes[visit.scope as usize]
    }

    async fn batch(&self, mut visits: Vec<Visit>) -> Outcome {
        let mut outcome = Outcome::default();
        visits.retain(|visit| self.is_new(visit, &mut outcome));
        let blocks: Vec<(BlkPtr, Bookmark)> = visits.iter().map(|visit| (visit.pointer, visit.at)).collect();
        let examined = self.pool.io().examine(&blocks, |index| visits[index].has_children()).await;
        let (mut bytes, mut logs) = (0, Vec::new());
        for (visit, examined) in visits.iter().zip(examined) {
            bytes += visit.pointer.asize();
            outcome.counts.add(&visit.pointer);
            self.claim(visit, &examined.gang, &mut outcome);
            let raw = outcome.take(visit, examined);
            if let (Some(raw), true) = (raw, visit.has_children()) {
                logs.extend(self.open(visit, raw, &mut outcome));
            }
        }
        self.progress.done.fetch_add(bytes, Relaxed);
        self.progress.blocks.fetch_add(blocks.len() as u64, Relaxed);
        for (scope, header) in logs {
            self.walk_log(scope, &header, &mut outcome).await;
        }
        outcome
    }

    /// Whether a block of metadata was not walked before; data may be shared.
    fn is_new(&self, visit: &Visit, outcome: &mut Outcome) -> bool {
        let first = visit.pointer.dvas().next().filter(|_| visit.has_children());
        let Some(dva) = first else { return true };
        let new = self.walked.lock().insert((dva.vdev, dva.offset));
        if !new {
            outcome.findings.push(Finding {
                block_bytes: visit.pointer.lsize(),
                ..Finding::malformed(Some(visit.at), "the block belongs to another tree as well".to_owned())
            });
        }
        new
    }

    /// Decompresses a block of metadata and finds the pointers in it.
    fn open(
        &self,
        visit: &Visit,
        raw: bytes::Bytes,
        outcome: &mut Outcome,
    ) -> Option<(u32, ondisk::zil::Header)> {
        let content = match decompress(&visit.pointer, raw) {
            Ok(content) => content,
            Err(kind) => {
                outcome.findings.push(Finding::malformed(Some(visit.at), kind.to_string()));
                return None;
            }
        };
        let children = expand(visit, self.scope(visit), &content);
        for (at, what) in children.flaws {
            outcome.findings.push(Finding::malformed(Some(at), what));
        }
        outcome.visits.extend(children.visits);
        Some((visit.scope, children.log?))
    }

    fn claim(&self, visit: &Visit, gang: &[(u64, u64, u64)], outcome: &mut Outcome) {
        let pointer = &visit.pointer;
        if pointer.is_embedded() || self.claims.skipped().is_some() {
            return;
        }
        let tree = self.pool.tree();
        let mut claim = |vdev: u64, offset: u64, asize: u64| {
            if let Some(conflict) = self.claims.claim(&tree, vdev, offset, asize, pointer.is_dedup()) {
                let what = match conflict {
                    Conflict::Twice => "the space belongs to another block as well",
                    Conflict::Free => "the space maps say that the block's space is free",
                    Conflict::Outside => "the block's space is outside its device",
                };
                outcome.findings.push(Finding {
                    kind: Kind::Space,
                    at: Some(visit.at),
                    block_bytes: pointer.lsize(),
                    what: format!("{what} ({vdev:x}:{offset:x}:{asize:x})"),
                    evidence: Vec::new(),
                });
            }
        };
        if pointer.is_gang() {
            gang.iter().for_each(|(vdev, offset, asize)| claim(*vdev, *offset, *asize));
        } else {
            pointer.dvas().for_each(|dva| claim(dva.vdev.into(), dva.offset, dva.asize));
        }
    }

    /// Counts and claims what waits to be freed.
    async fn count_frees(&self, outcome: &mut Outcome) {
        let mut gangs = Vec::new();
        let tree = self.pool.tree();
        let counted = pending_frees(&self.pool, |pointer| {
            outcome.counts.add_deferred(pointer);
            self.progress.done.fetch_add(pointer.asize(), Relaxed);
            if pointer.is_gang() {
                gangs.push(*pointer);
            } else if self.claims.skipped().is_none() && !pointer.is_dedup() {
                for dva in pointer.dvas() {
                    // Freed twice or not allocated: would show as a difference of the totals.
                    let _shown_in_totals =
                        self.claims.claim(&tree, dva.vdev.into(), dva.offset, dva.asize, false);
                }
            }
        })
        .await;
        if let Err(error) = counted {
            outcome
                .findings
                .push(Finding::malformed(None, format!("what waits to be freed cannot be read: {error}")));
        }
        for pointer in gangs {
            for (vdev, offset, asize) in self.pool.io().gang_segments(&pointer).await {
                let _shown_in_totals = self.claims.claim(&tree, vdev, offset, asize, false);
            }
        }
    }
}

impl Outcome {
    /// Notes what was wrong with a block; returns its stored bytes.
    fn take(&mut self, visit: &Visit, examined: Examined) -> Option<bytes::Bytes> {
        let Examined { raw, lost, evidence, thin, .. } = examined;
        self.thin += u64::from(thin);
        let (kind, what) = match &lost {
            Some(error) => (Kind::Lost, error.to_string()),
            None if evidence.is_empty() => return raw,
            None => (Kind::Repairable, "a copy is wrong, the data is intact".to_owned()),
        };
        self.findings.push(Finding {
            kind,
            at: Some(visit.at),
            block_bytes: visit.pointer.lsize(),
            what,
            evidence,
        });
        raw
    }
}

impl Finding {
    fn malformed(at: Option<Bookmark>, what: String) -> Self {
        Self { kind: Kind::Malformed, at, block_bytes: 0, what, evidence: Vec::new() }
    }
}

/// Whether a bookmark is of an object set block.
fn is_objset(at: &Bookmark) -> bool {
    at.level == LEVEL_OBJSET
}
