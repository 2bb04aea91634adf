//! Reading what was warm: first what leads to it, then what was in memory, then what was on cache devices.
//!
//! Each top-level device has a lane, which reads its blocks in the order of the device, two batches at a time, so that
//! the next one waits in line when one is done. Leaves are used as a scrub uses them ([`crate::scan`]): as fast as they
//! go while nobody else wants them, in the pauses of clients otherwise. It ends when everything was read, and each part
//! of it as soon as what it fills is full.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream::FuturesOrdered};
use l2arc::{L2, Offered};
use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use pool::{
    Bookmark, Pool, PoolIo,
    io::{How, Turns},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    heat::Heat,
    plan::{Objects, Pass, Want},
};
use crate::{
    engine::{content, describe},
    scan::Ground,
    second,
};

/// Bytes of a batch: at least, at most.
const BATCH: (u64, u64) = (256 << 10, 4 << 20);
/// Batches of a lane under way.
const DEPTH: usize = 2;
/// Blocks read from cache devices at a time, by each batch.
const FETCHES: usize = 16;
/// All batches together may take this part of the cache's memory, the plan that.
const BATCHES_PART: u64 = 8;
const PLAN_PART: usize = 32;
/// Blocks planned at a time, at least.
const PLAN_MIN: usize = 16 << 10;
/// What is left free of the cache's memory: what the classes of blocks keep to pass to each other.
const SPARE_PART: u64 = 64;
/// Memory that was full is worth another beginning when the cache may have such a part more.
const MORE_PART: usize = 4;
/// How long cache devices may take to find out what they have before that is read from the pool instead.
const RECOVERY: Duration = Duration::from_secs(30);
/// How often is looked whether a cache device has taken what waits.
const LOOK: Duration = Duration::from_millis(5);
/// Cache devices that take nothing for so long are not waited for.
const STALLED: Duration = Duration::from_secs(30);

/// How a pre-warming ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was read.
    Complete,
    /// Memory or cache devices are full, or there was no memory for all that was remembered.
    Full,
    /// Somebody wanted that.
    Stopped,
    /// The pool is being closed.
    Closed,
}

/// How far a pre-warming is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// None while it goes on.
    pub ended: Option<Ended>,
    /// Blocks that were in memory: seen to so far, and in all.
    pub memory: (u64, u64),
    /// Blocks that were on cache devices only.
    pub device: (u64, u64),
    /// Blocks that were read into memory, and given to cache devices.
    pub read: (u64, u64),
    /// Bytes read from the pool's devices.
    pub bytes: u64,
    /// How long it has taken.
    pub took: Duration,
}

/// Ends a pre-warming whose task panicked: to whoever asks it would go on for ever.
struct Ends<'a>(&'a Job);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.0.end(Ended::Stopped) {
            tracing::error!("pre-warm: ended abnormally (a defect: please report what stands above)");
        }
    }
}

/// One pre-warming.
pub(super) struct Job {
    ground: Arc<Ground>,
    l2: Arc<L2>,
    began: Instant,
    ended: Mutex<Option<(Ended, Duration)>>,
    stopped: AtomicBool,
    is_full: [AtomicBool; 2],
    /// What the cache might have when it was full.
    budget: AtomicUsize,
    seen: [AtomicU64; 2],
    total: (u64, u64),
    read: [AtomicU64; 2],
    bytes: AtomicU64,
}

impl Job {
    /// To [run](Self::run) with this.
    pub(super) fn new(ground: Arc<Ground>, l2: Arc<L2>, heat: &Heat) -> Arc<Self> {
        let total = heat.blocks();
        Arc::new(Self {
            ground,
            l2,
            began: Instant::now(),
            ended: Mutex::default(),
            stopped: AtomicBool::new(false),
            is_full: Default::default(),
            budget: AtomicUsize::new(0),
            seen: Default::default(),
            total,
            read: Default::default(),
            bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn view(&self) -> Option<Arc<Pool>> {
        (self.ground.view)()
    }

    pub(super) fn l2(&self) -> &L2 {
        &self.l2
    }

    /// Nothing more is begun; whether something was under way.
    pub(super) fn stop(&self) -> bool {
        self.stopped.store(true, Relaxed);
        self.end(Ended::Stopped)
    }

    fn end(&self, how: Ended) -> bool {
        let mut ended = self.ended.lock();
        let is_news = ended.is_none();
        ended.get_or_insert((how, self.began.elapsed()));
        is_news
    }

    /// Whether it ended because memory was full, and the cache may have much more by now.
    pub(super) fn may_go_on(&self) -> bool {
        let is_full = matches!(*self.ended.lock(), Some((Ended::Full, _))) && self.is_full[0].load(Relaxed);
        let had = self.budget.load(Relaxed);
        is_full && self.view().is_some_and(|view| view.io().cache().budget() >= had + had / MORE_PART)
    }

    pub(super) fn progress(&self) -> Progress {
        let ended = *self.ended.lock();
        let [memory, device] = [0, 1].map(|which| self.seen[which].load(Relaxed));
        let [into_memory, to_devices] = [0, 1].map(|which| self.read[which].load(Relaxed));
        Progress {
            ended: ended.map(|(how, _)| how),
            memory: (memory.min(self.total.0), self.total.0),
            device: (device.min(self.total.1), self.total.1),
            read: (into_memory, to_devices),
            bytes: self.bytes.load(Relaxed),
            took: ended.map_or_else(|| self.began.elapsed(), |(_, took)| took),
        }
    }

    /// So many blocks that need not be read.
    pub(super) fn passed(&self, pass: Pass, blocks: u64) {
        // What is read in two passes is seen in the second.
        match pass {
            Pass::Memory => self.seen[0].fetch_add(blocks, Relaxed),
            Pass::Device => self.seen[1].fetch_add(blocks, Relaxed),
            Pass::Level(_) | Pass::Frequent => 0,
        };
    }

    /// What was warm is forgotten when this ends: it may be large, and how the job went is asked for much longer.
    pub(super) async fn run(self: Arc<Self>, heat: Heat) {
        let ends = Ends(&self);
        let ended = self.carry_out(&heat).await;
        drop((ends, heat));
        if self.end(ended) {
            let Progress { read, bytes, took, .. } = self.progress();
            tracing::info!(memory = read.0, devices = read.1, bytes, ?took, ?ended, "pre-warm");
        }
    }

    async fn carry_out(self: &Arc<Self>, heat: &Heat) -> Ended {
        let Some(view) = self.view() else { return Ended::Closed };
        if heat.is_cut() {
            self.memory_is_full(view.io().cache().budget());
        }
        self.learn_caching(&view, heat).await;
        // What is on a cache device already is read from there.
        let devices = self.l2.devices();
        let recoveries = devices.iter().filter_map(|device| self.l2.recovery(device.vdev));
        let _in_time = timeout(RECOVERY, join_all(recoveries)).await;
        let mut objects = Objects::of(Arc::clone(&view));
        let (mut levels, mut bytes) = (1, 0);
        for (volume, stretches) in heat.volumes() {
            let Some(object) = objects.get(volume).await else { continue };
            levels = object.levels().max(levels);
            let blocks: u32 = stretches.values().map(|stretch| stretch.memory.count_ones()).sum();
            bytes += u64::from(blocks) * object.block_bytes();
        }
        let mut passes: Vec<Pass> = (1..levels).rev().map(Pass::Level).collect();
        if bytes > view.io().cache().unfilled() {
            passes.push(Pass::Frequent);
        }
        passes.extend([Pass::Memory, Pass::Device]);
        drop((view, objects));
        for pass in passes {
            let mut from = (0, 0);
            while self.has_room(pass) {
                let Some(view) = self.view() else { return Ended::Closed };
                let most = (view.io().cache().budget() / PLAN_PART / size_of::<Want>()).max(PLAN_MIN);
                drop(view);
                let Some((wants, next)) = self.plan(heat, pass, from, most).await else {
                    return Ended::Closed;
                };
                self.read(pass, wants).await;
                if self.stopped.load(Relaxed) {
                    return Ended::Stopped;
                }
                let Some(next) = next else { break };
                from = next;
            }
        }
        if !self.l2.is_used() {
            // There is nothing to read it for.
            self.passed(Pass::Device, self.total.1);
        }
        if self.is_full.iter().any(|full| full.load(Relaxed)) { Ended::Full } else { Ended::Complete }
    }

    /// Datasets say what they want to be cached; nobody may have asked for these yet.
    async fn learn_caching(&self, view: &Arc<Pool>, heat: &Heat) {
        let Ok(dsl) = view.dsl().await else { return };
        for (volume, _) in heat.volumes() {
            let Ok((_, name)) = content(view, volume).await else { continue };
            if let Ok(dataset) = dsl.lookup(&name).await {
                let _unreadable = describe(view, &dataset).await;
            }
        }
    }

    /// Whether a pass may go on: notes what is full.
    fn has_room(&self, pass: Pass) -> bool {
        if self.stopped.load(Relaxed) {
            return false;
        }
        if pass == Pass::Device {
            let has_room = self.l2.is_used() && self.l2.is_filling();
            if self.l2.is_used() && !has_room {
                self.is_full[1].store(true, Relaxed);
            }
            return has_room;
        }
        let Some(view) = self.view() else { return false };
        let cache = view.io().cache();
        let has_room = cache.unfilled() > cache.budget() as u64 / SPARE_PART;
        if !has_room {
            self.memory_is_full(cache.budget());
        }
        has_room
    }

    /// There is more than memory has room for while the cache may have so much.
    fn memory_is_full(&self, budget: usize) {
        self.is_full[0].store(true, Relaxed);
        self.budget.store(budget, Relaxed);
    }

    /// Reads what a plan says: a lane for each top-level device.
    async fn read(self: &Arc<Self>, pass: Pass, wants: Vec<Want>) {
        let lanes: Vec<Vec<Want>> = wants.chunk_by(|a, b| a.vdev == b.vdev).map(<[Want]>::to_vec).collect();
        let Some(view) = self.view() else { return };
        let part = view.io().cache().budget() as u64 / BATCHES_PART / (DEPTH * lanes.len().max(1)) as u64;
        drop(view);
        let most = part.clamp(BATCH.0, BATCH.1);
        let mut running = JoinSet::new();
        for lane in lanes {
            let this = Arc::clone(self);
            running.spawn(async move { this.lane(pass, lane, most).await });
        }
        while let Some(ended) = running.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    async fn lane(&self, pass: Pass, wants: Vec<Want>, most: u64) {
        let mut batches: Vec<&[Want]> = Vec::new();
        let (mut first, mut bytes) = (0, 0);
        for (at, want) in wants.iter().enumerate() {
            if bytes > 0 && bytes + u64::from(want.bytes) > most {
                batches.push(&wants[first..at]);
                (first, bytes) = (at, 0);
            }
            bytes += u64::from(want.bytes);
        }
        batches.push(&wants[first..]);
        let (mut batches, mut running) = (batches.into_iter(), FuturesOrdered::new());
        loop {
            while running.len() < DEPTH
                && let Some(batch) = batches.next()
            {
                running.push_back(self.batch(pass, batch));
            }
            if running.next().await != Some(true) {
                return;
            }
        }
    }

    /// Reads some blocks; false if there is no point in going on.
    async fn batch(&self, pass: Pass, wants: &[Want]) -> bool {
        if !self.has_room(pass) {
            return false;
        }
        let Some(view) = self.view() else { return false };
        // From here on what the last commit leads to stays what it is until it is read.
        let pin = self.ground.horizon.pin_view(view.uberblock().txg);
        let mut objects = Objects::of(Arc::clone(&view));
        let mut blocks = self.resolve(&mut objects, wants).await;
        let io = view.io();
        let on_device = |bp: &BlkPtr| second::key(bp).is_some_and(|key| self.l2.holds(&key));
        blocks.retain(|(bp, _)| io.warmth(bp).is_none() && !(pass == Pass::Device && on_device(bp)));
        let (near, mut far): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(bp, _)| on_device(bp));
        let mut goes_on = self.fetch(pass, io, &near, &mut far).await;
        // Space may be so short that nothing is held back: then whoever wants these blocks reads them.
        if goes_on && let Some(firm) = pin.and_then(|pin| pin.firm()) {
            let how = How { turns: Some(self.ground.scans.pace() as &dyn Turns), one_copy: true };
            let examined = io.examine_for_scan(&far, how).await;
            // A commit that is short of space waits for this, and cache devices may take their time. A block that is freed
            // from here on is one that nobody will ask for.
            drop(firm);
            for ((bp, at), outcome) in far.iter().zip(examined) {
                let Some(raw) = outcome.raw else { continue };
                self.bytes.fetch_add(raw.len() as u64, Relaxed);
                goes_on = self.give(pass, io, bp, *at, raw).await;
                if !goes_on {
                    break;
                }
            }
        }
        if pass != Pass::Frequent {
            self.passed(pass, wants.iter().filter(|want| want.level == 0).count() as u64);
        }
        goes_on
    }

    /// Takes what cache devices have into memory; what they do not give after all joins `far`. False if there is no point in
    /// going on.
    async fn fetch(
        &self,
        pass: Pass,
        io: &PoolIo,
        near: &[(BlkPtr, Bookmark)],
        far: &mut Vec<(BlkPtr, Bookmark)>,
    ) -> bool {
        for blocks in near.chunks(FETCHES) {
            let reads: Vec<_> = blocks.iter().map(|(bp, _)| self.stored_near(io, bp)).collect();
            for ((bp, at), raw) in blocks.iter().zip(join_all(reads).await) {
                let Some(raw) = raw else {
                    far.push((*bp, *at));
                    continue;
                };
                if !self.give(pass, io, bp, *at, raw).await {
                    return false;
                }
            }
        }
        true
    }

    /// A block's stored bytes from a cache device. Nobody asked for them: it is no hit there, and no reading ahead here.
    async fn stored_near(&self, io: &PoolIo, bp: &BlkPtr) -> Option<Bytes> {
        let key = second::key(bp)?;
        let raw = self.l2.glance(&key, u32::try_from(bp.psize()).ok()?)?.await?;
        if io.is_right(bp, &raw) {
            return Some(raw);
        }
        self.l2.lied(&key);
        None
    }

    async fn give(&self, pass: Pass, io: &PoolIo, bp: &BlkPtr, at: Bookmark, raw: Bytes) -> bool {
        if !self.has_room(pass) {
            return false;
        }
        if pass != Pass::Device {
            io.admit(bp, at, raw);
            self.read[0].fetch_add(1, Relaxed);
            return true;
        }
        // Nearly full, so that no device waits for more; what does not fit would be dropped.
        let (mut came, mut since) = (self.l2.stats().l2_bufs, Instant::now());
        while self.l2.waiting() > self.l2.config().buffer / 8 * 7 {
            sleep(LOOK).await;
            if !self.has_room(pass) {
                return false;
            }
            let now = self.l2.stats().l2_bufs;
            if now != came {
                (came, since) = (now, Instant::now());
            } else if since.elapsed() > STALLED {
                self.is_full[1].store(true, Relaxed);
                return false;
            }
        }
        let wanted = io.caching(at.objset).secondary.wants(at.level > 0);
        let block = second::block(bp, raw).filter(|_| wanted);
        if block.and_then(|block| self.l2.offer(block)) == Some(Offered::Queued) {
            self.read[1].fetch_add(1, Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        events::Events,
        txg::{Limits, Txgs},
    };

    /// To whoever asked, it went on for ever: nothing was sampled any more, and no other could be begun.
    #[tokio::test]
    async fn a_pre_warming_that_panics_has_ended() {
        let ground = Ground {
            view: Box::new(|| -> Option<Arc<Pool>> { panic!("a defect") }),
            is_suspended: Box::new(|| false),
            suspension: Arc::default(),
            txgs: Txgs::new(4, Limits::default()),
            events: Events::new(|| Duration::ZERO),
            scans: Arc::default(),
            horizon: Arc::default(),
            reports: Arc::default(),
        };
        let (heat, l2) = (Heat::new(1, 4, 0), L2::new(1, l2arc::Config::default()));
        let job = Job::new(Arc::new(ground), Arc::new(l2), &heat);
        let ended = tokio::spawn(Arc::clone(&job).run(heat)).await;
        assert!(ended.unwrap_err().is_panic());
        assert_eq!(job.progress().ended, Some(Ended::Stopped));
    }
}
