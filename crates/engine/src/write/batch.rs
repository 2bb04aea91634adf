//! Jobs to pointers, many at a time: prepared on other threads where that is worth it, stored in their order.

use std::{collections::VecDeque, sync::Arc};

use codec::compress;
use ondisk::blkptr::BlkPtr;
use tokio::task::JoinError;

use super::{
    BlockWriter, Extents, Job,
    overlay::place_of,
    prepare::{Rules, prepare},
};
use crate::EngineError;

/// Content a worker compresses at a time: long beside the hand-over (some 20 µs), short beside the whole.
pub(super) const COMPRESS_CHUNK: usize = 256 << 10;
/// The same if there is only a checksum to compute, which is ten times as fast.
pub(super) const SUM_CHUNK: usize = 1 << 20;
/// Blocks stored between two looks at what is under way, when there are no workers.
pub(super) const LOOK_EVERY: usize = 32;

impl<S: Extents> BlockWriter<S> {
    /// Stores blocks and returns their pointers in order. A block of zeroes becomes a hole (unless it is data
    /// with compression off), a tiny one is embedded. Metadata waits in memory until [`finish`](Self::finish)
    /// because later passes may write it again; data is on its way to the devices when this returns, up to the
    /// last transfer of each device, which may still grow.
    pub async fn write(&mut self, jobs: Vec<Job>) -> Result<Vec<BlkPtr>, EngineError> {
        let rules = self.rules();
        let mut jobs = jobs;
        for job in &mut jobs {
            self.doubt(job)?;
        }
        let data: usize = jobs.iter().filter(|job| !job.policy.metadata).map(|job| job.content.len()).sum();
        let pointers = self.write_all(jobs, rules).await;
        self.remember();
        let pointers = pointers?;
        if let Some(hear) = self.on_data.as_ref().filter(|_| data > 0) {
            hear(self.txg, data as u64);
        }
        Ok(pointers)
    }

    async fn write_all(&mut self, jobs: Vec<Job>, rules: Rules) -> Result<Vec<BlkPtr>, EngineError> {
        let mut pointers = Vec::with_capacity(jobs.len());
        if self.workers > 0
            && let Some(chunks) = chunks(&jobs)
        {
            self.write_chunks(jobs, chunks, Arc::new(rules), &mut pointers).await?;
            return Ok(pointers);
        }
        for (number, job) in jobs.into_iter().enumerate() {
            let prepared = prepare(&job, self.reuse(&job), &rules)?;
            pointers.push(self.store(job, prepared).await?);
            if number % LOOK_EVERY == LOOK_EVERY - 1 || self.devices.leaves.is_full() {
                self.make_room().await?;
            }
        }
        self.make_room().await?;
        Ok(pointers)
    }

    /// Between two blocks: where too much is under way, or kept until it is secured, that comes first.
    pub(super) async fn make_room(&mut self) -> Result<(), EngineError> {
        self.remember();
        self.devices.leaves.keep_room().await;
        self.secure_some().await
    }

    /// Stored size of the place a block keeps.
    fn reuse(&self, job: &Job) -> Option<usize> {
        if !job.policy.metadata || job.old.birth() != self.txg {
            return None;
        }
        let pending = self.pending.get(&place_of(&job.old)?)?;
        (pending.bp == job.old).then_some(pending.data.len())
    }

    /// Prepares on other threads, a chunk each, and stores in order while they go on.
    async fn write_chunks(
        &mut self,
        jobs: Vec<Job>,
        chunks: Vec<usize>,
        rules: Arc<Rules>,
        pointers: &mut Vec<BlkPtr>,
    ) -> Result<(), EngineError> {
        let (mut jobs, mut chunks) = (jobs.into_iter(), chunks.into_iter());
        let mut running = VecDeque::with_capacity(self.workers);
        loop {
            while running.len() < self.workers
                && let Some(len) = chunks.next()
            {
                let chunk: Vec<(Job, Option<usize>)> = jobs
                    .by_ref()
                    .take(len)
                    .map(|job| {
                        let reuse = self.reuse(&job);
                        (job, reuse)
                    })
                    .collect();
                let rules = Arc::clone(&rules);
                running.push_back(tokio::task::spawn_blocking(move || {
                    let prepared = chunk.into_iter().map(|(job, reuse)| {
                        let prepared = prepare(&job, reuse, &rules);
                        (job, prepared)
                    });
                    prepared.collect::<Vec<_>>()
                }));
            }
            let Some(next) = running.pop_front() else { return Ok(()) };
            for (job, prepared) in from_worker(self.devices.leaves.beside(next).await)? {
                pointers.push(self.store(job, prepared?).await?);
                if self.devices.leaves.is_full() {
                    self.make_room().await?;
                }
            }
            self.make_room().await?;
        }
    }
}

/// What another thread has prepared; a defect there is one here.
pub(super) fn from_worker<T>(outcome: Result<T, JoinError>) -> Result<T, EngineError> {
    outcome.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => EngineError::Suspended("the runtime is shutting down".to_owned()),
    })
}

/// Whether the jobs are worth other threads, and if so, how many go into each chunk.
fn chunks(jobs: &[Job]) -> Option<Vec<usize>> {
    let compresses = |job: &Job| job.policy.compression.algorithm != compress::Algorithm::Off;
    let (mut lens, mut len, mut cost) = (Vec::new(), 0, 0);
    for job in jobs {
        len += 1;
        cost += if job.written.is_some() || job.known_sum().is_some() {
            0
        } else if compresses(job) {
            job.content.len() * (SUM_CHUNK / COMPRESS_CHUNK)
        } else {
            job.content.len()
        };
        if cost >= SUM_CHUNK {
            lens.push(std::mem::take(&mut len));
            cost = 0;
        }
    }
    if len > 0 {
        lens.push(len);
    }
    (lens.len() > 1).then_some(lens)
}
