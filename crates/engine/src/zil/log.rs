//! The log of one volume: commits, and the rounds in which they share log blocks.
//!
//! ```text
//!   commit ─▶ waiting ─┬─▶ round: gather what is not logged ▸ fill blocks ▸ write them ▸ all of it durable?
//!   commit ─▶ waiting ─┘      └─ up to two at once; who comes meanwhile waits for the next one and shares it
//!
//!   none ──wanted──▶ begun in a sync ──its commit──▶ ready ──anything wrong──▶ given up ──synced──▶ none
//! ```
//!
//! A round answers in the order of the chain: a block counts only if all before it do. Whatever goes wrong, nobody
//! is refused: what was to be logged is still in memory, and its transaction group makes it durable. What a failed
//! round had taken is logged nowhere, so a new chain is usable only when the groups of all that are synced.
//!
//! The syncing task calls [`Log::sync`] in every group that touches the log; the mutex keeps both sides apart, and
//! a block taken under it belongs to the group that is open then. Its round holds that group until it is over: space maps
//! that have a block are on the devices only after what leads to the block, or a crash between the two would leave it
//! allocated to nobody.
//!
//! Facts: docs/format/zil.md §4.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Range,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ondisk::{
    blkptr::{BlkPtr, Dva},
    dnode::ObjectType,
    zil::{BLOCK_BYTES_MAX, BLOCK_UNIT, CHAIN_BYTES, HEADER_BYTES},
};
use parking_lot::Mutex;
use pool::Bookmark;
use rand::{RngCore, rngs::StdRng};
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    time::Instant,
};

use super::{
    chain::{self, Block, Chain},
    records::{Batch, Filling, Pending},
    space::{LogSpace, Supply},
    stats::{Fallback, Report, Stats},
};
use crate::{
    EngineError,
    alloc::Allocator,
    policy::{BlockPolicy, SetPolicy},
    suspend::Suspension,
    txg::{Cost, Tx, Txgs},
    write::{ahead::Ahead, direct::Direct},
};

/// Rounds under way at once: one that is on its way to the devices, and one for whoever came just after it. More
/// would make the batches smaller, and devices flush one thing after the other.
const ROUNDS: usize = 2;
/// Log blocks of one round on their way at once.
const IN_FLIGHT: usize = 16;
/// Rounds whose sizes decide how large a place the next one finds.
const REMEMBERED: usize = 7;
/// Bytes of the place a chain begins with, and the least any round finds.
const PLACE_MIN: usize = 2 * BLOCK_UNIT;
/// Blocks of a volume from this size on go to their places at once, and the log only points there, unless there is a
/// log device.
const AHEAD_MIN: u64 = 32 << 10;
/// A volume's data object.
const DATA: u64 = 1;
/// Beyond this, a commit is left to the transaction group: writing it twice would take longer.
const BURST: u64 = 64 << 20;

/// What is to be made durable: blocks of the volume.
pub(crate) type Want = SmallVec<[Range<u64>; 2]>;

/// All of the volume.
pub(crate) const EVERYTHING: Range<u64> = 0..u64::MAX;

/// A volume, as far as its log is concerned.
pub(crate) trait Source: Send + Sync {
    /// Bytes of a block.
    fn block(&self) -> u64;
    /// Bytes that the log lacks of all blocks.
    fn unlogged(&self) -> u64;
    /// Moves what the log lacks of these blocks to `batch`, in order. Whole blocks of transaction group `ahead`, which is
    /// held, may be written to their places.
    fn gather(&self, want: &[Want], ahead: Option<u64>, batch: &mut Batch);
    /// A block of a group that is held was written to its place, with this content.
    fn written_ahead(&self, txg: u64, blkid: u64, content: &Bytes, to: BlkPtr);
    /// Whether the log lacks anything of these blocks.
    fn lacks(&self, want: &Want) -> bool;
}

/// What a log works with.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    pub(crate) txgs: Arc<Txgs>,
    pub(crate) space: Arc<LogSpace>,
    pub(crate) direct: Arc<Direct>,
    pub(crate) ahead: Ahead,
    pub(crate) suspension: Arc<Suspension>,
}

/// Where the chain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none, and nobody asked.
    None,
    /// There is none, and the next sync is to begin one.
    Wanted,
    /// Its header is written in this transaction group.
    Begun(u64),
    /// In use.
    Ready,
    /// It takes no more; its blocks are needed until their groups are synced.
    GivenUp,
    /// The volume closes.
    Ended,
}

struct Waiter {
    want: Want,
    since: Instant,
    answer: oneshot::Sender<bool>,
}

impl Waiter {
    fn wants_everything(&self) -> bool {
        self.want.contains(&EVERYTHING)
    }
}

struct State {
    phase: Phase,
    chain: Chain,
    waiting: Vec<Waiter>,
    /// A round is taking blocks; others wait for that.
    is_forming: bool,
    /// How many shared a round lately: halves with each that is smaller.
    company: usize,
    /// Rounds that have what they write, and are not over.
    in_flight: usize,
    /// Whether the last formed round succeeded, once it is over.
    last: Option<oneshot::Receiver<bool>>,
    /// Sequence of the last record.
    record: u64,
    /// Newest transaction group of all that rounds have taken.
    newest: u64,
    /// Bytes that the last rounds wrote.
    sizes: VecDeque<usize>,
    /// Blocks with `logbias=throughput` stay off log devices.
    supply: Supply,
    /// How blocks of the volume are written, as of its last sync.
    policy: Option<BlockPolicy>,
    /// The transaction group in which that became another one, 0 if it never did.
    policy_since: u64,
    why: Fallback,
}

/// The intent log of one open volume.
pub struct Log {
    dataset: u64,
    pub(crate) stats: Stats,
    means: Option<Means>,
    source: OnceLock<Weak<dyn Source>>,
    state: Mutex<State>,
    /// It was given up, or has ended: no round waits for space any more.
    is_over: watch::Sender<bool>,
    /// Rounds forming or in flight.
    busy: AtomicUsize,
    /// There are none any more.
    is_idle: Notify,
    /// The object set names a chain of this log, or none.
    is_named: AtomicBool,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({}, {:?})", self.dataset, self.state.lock().phase)
    }
}

/// What a round writes.
#[derive(Default)]
struct Formed {
    blocks: Vec<Sealed>,
    /// Top-level devices that hold what was written ahead.
    tops: SmallVec<[u32; 3]>,
    /// Blocks that leaves lacked before any of it was written.
    lacks: u64,
    /// The groups its blocks were taken in, held.
    held: SmallVec<[Tx; 2]>,
}

/// A log block on its way.
struct Sealed {
    dva: Dva,
    birth: u64,
    sequence: u64,
    data: Bytes,
}

/// The clients' side.
impl Log {
    /// The log of head `dataset`: not begun.
    pub(crate) fn new(dataset: u64, means: Option<Means>) -> Arc<Self> {
        let state = State {
            phase: Phase::None,
            chain: Chain::none(dataset),
            waiting: Vec::new(),
            is_forming: false,
            company: 0,
            in_flight: 0,
            last: None,
            record: 0,
            newest: 0,
            sizes: VecDeque::new(),
            supply: Supply::Log,
            policy: None,
            policy_since: 0,
            why: Fallback::NotBegun,
        };
        Arc::new(Self {
            dataset,
            stats: Stats::default(),
            means,
            source: OnceLock::new(),
            state: Mutex::new(state),
            is_over: watch::Sender::new(false),
            busy: AtomicUsize::new(0),
            is_idle: Notify::new(),
            is_named: AtomicBool::new(false),
        })
    }

    /// A log that is never begun: every commit waits for its transaction group.
    #[must_use]
    pub fn detached(dataset: u64) -> Arc<Self> {
        Self::new(dataset, None)
    }

    /// Tells whose log it is.
    pub(crate) fn attach(&self, source: Weak<dyn Source>) {
        // There is one volume to a log, and this is called when it is made.
        drop(self.source.set(source));
    }

    /// The dataset's object.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.dataset
    }

    /// What was asked of it, and what it did.
    #[must_use]
    pub fn report(&self) -> Report {
        self.stats.report()
    }

    /// Where its blocks are to be from now on (`logbias`).
    pub(crate) fn set_supply(&self, supply: Supply) {
        self.state.lock().supply = supply;
    }

    /// Makes these blocks durable, as they are when this is called or later. False if the log cannot: then the
    /// transaction group has to be waited for.
    pub(crate) async fn commit(self: &Arc<Self>, want: Want) -> bool {
        let Some(source) = self.source.get().and_then(Weak::upgrade) else { return false };
        // What the log says is of no use before the pool can be written to again: the group is waited for.
        if self.means.as_ref().is_some_and(|means| means.suspension.is_on()) || !self.may_write() {
            self.stats.fell_back(Fallback::Device);
            return false;
        }
        let (answer, answered) = oneshot::channel();
        let round = {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Ready => {}
                // No round ever took anything, so what is not listed as lacking is in the pool.
                Phase::None if !source.lacks(&want) => {
                    self.stats.nothing.fetch_add(1, Relaxed);
                    return true;
                }
                Phase::None => {
                    if let Some(means) = &self.means {
                        state.phase = Phase::Wanted;
                        means.space.expect(state.supply);
                    }
                    self.stats.fell_back(Fallback::NotBegun);
                    return false;
                }
                Phase::Wanted | Phase::Begun(_) | Phase::Ended => {
                    self.stats.fell_back(Fallback::NotBegun);
                    return false;
                }
                Phase::GivenUp => {
                    self.stats.fell_back(state.why);
                    return false;
                }
            }
            // Nothing that is not durable, and nothing on its way that this might have to wait for.
            if state.in_flight == 0 && !state.is_forming && state.waiting.is_empty() && !source.lacks(&want) {
                self.stats.nothing.fetch_add(1, Relaxed);
                return true;
            }
            state.waiting.push(Waiter { want, since: Instant::now(), answer });
            self.next_round(&mut state)
        };
        if let Some(round) = round {
            round.await;
        }
        answered.await.unwrap_or(false)
    }

    /// Whether the pool is this host's, as far as it knows.
    fn may_write(&self) -> bool {
        self.means.as_ref().is_none_or(|means| means.suspension.may_write().is_ok())
    }

    /// Another round, if there may be one.
    fn next_round(self: &Arc<Self>, state: &mut State) -> Option<Driven> {
        if state.phase != Phase::Ready {
            self.turn_away(state);
        }
        if state.is_forming || state.in_flight >= ROUNDS || state.waiting.is_empty() {
            return None;
        }
        state.is_forming = true;
        self.busy.fetch_add(1, Relaxed);
        let log = Arc::clone(self);
        Some(Driven(Some(Box::pin(async move {
            log.round().await;
            if log.busy.fetch_sub(1, AcqRel) == 1 {
                log.is_idle.notify_waiters();
            }
        }))))
    }

    /// Those who wait for a round are told that there is none.
    fn turn_away(&self, state: &mut State) {
        for waiter in std::mem::take(&mut state.waiting) {
            self.stats.fell_back(state.why);
            tell(waiter.answer, false);
        }
    }

    /// The chain takes no more.
    fn give_up(&self, state: &mut State, why: Fallback) {
        if state.phase == Phase::Ready {
            state.phase = Phase::GivenUp;
            state.why = why;
            self.is_over.send_replace(true);
        }
    }

    async fn round(self: &Arc<Self>) {
        if self.state.lock().company > 1 {
            // They were answered together, and come again together: let them, or each would have a round of its own.
            tokio::task::yield_now().await;
        }
        let mut waiters = {
            let mut state = self.state.lock();
            let waiters = std::mem::take(&mut state.waiting);
            state.company = waiters.len().max(state.company / 2);
            waiters
        };
        let epoch = self.means.as_ref().map(|means| means.direct.epoch());
        let formed = self.form(&mut waiters).await;
        let (over, is_over) = oneshot::channel();
        let before = {
            let mut state = self.state.lock();
            state.is_forming = false;
            state.in_flight += 1;
            match &formed {
                Ok(_) => {}
                Err(why) => self.give_up(&mut state, *why),
            }
            let before = state.last.replace(is_over);
            // Dropped, it goes on in a task of its own.
            drop(self.next_round(&mut state));
            before
        };
        let issued = Instant::now();
        let written = match &formed {
            // A device that was away meanwhile may have lost what was written before, and flushed nothing.
            Ok(formed) => {
                self.may_write()
                    && self.write(formed).await
                    && (formed.blocks.is_empty()
                        || epoch == self.means.as_ref().map(|means| means.direct.epoch()))
            }
            Err(_) => false,
        };
        // A block counts only if the whole chain up to it does.
        let all_before = match before {
            Some(before) => before.await.unwrap_or(false),
            None => true,
        };
        let done = written && all_before;
        {
            let mut state = self.state.lock();
            state.in_flight -= 1;
            match &formed {
                Ok(formed) if done => {
                    if let Some(last) = formed.blocks.last() {
                        state.chain.durable(last.sequence);
                    }
                }
                Ok(_) => self.give_up(&mut state, Fallback::Device),
                Err(_) => {}
            }
            drop(self.next_round(&mut state));
        }
        // Nobody waits for it if no other round was formed since.
        tell(over, done);
        self.answer(waiters, issued, done, &formed);
    }

    fn answer(&self, waiters: Vec<Waiter>, issued: Instant, done: bool, formed: &Result<Formed, Fallback>) {
        let now = Instant::now();
        if done && formed.as_ref().is_ok_and(|formed| !formed.blocks.is_empty()) {
            self.stats.rounds.fetch_add(1, Relaxed);
            self.stats.device.add(now - issued);
        }
        for Waiter { since, answer, .. } in waiters {
            if done {
                self.stats.commits.fetch_add(1, Relaxed);
                self.stats.queue.add(issued - since);
                self.stats.total.add(now - since);
            } else {
                self.stats.fell_back(formed.as_ref().err().copied().unwrap_or(Fallback::Device));
            }
            tell(answer, done);
        }
    }

    /// Fills blocks with all that `waiters` want and the log lacks. There is one that forms at a time.
    async fn form(&self, waiters: &mut Vec<Waiter>) -> Result<Formed, Fallback> {
        let (Some(means), Some(source)) = (&self.means, self.source.get().and_then(Weak::upgrade)) else {
            return Err(Fallback::NotBegun);
        };
        let has_log_device = means.space.has_log_device();
        let most = if has_log_device { BURST * 8 } else { BURST };
        // A stable write alone has nothing to ask.
        if waiters.iter().any(Waiter::wants_everything) && source.unlogged() > most {
            self.leave_to_the_group(waiters);
        }
        let wants: Vec<Want> = waiters.iter().map(|waiter| waiter.want.clone()).collect();
        let mut batch = Batch::default();
        let (held, policy) = self.hold_to_write_ahead(means, &*source, has_log_device);
        source.gather(&wants, held.as_ref().map(Tx::txg), &mut batch);
        let mut pending = batch.into_pending();
        let mut formed = Formed { lacks: means.direct.lacks(), ..Formed::default() };
        if pending.is_empty() {
            return Ok(formed);
        }
        if let Some(policy) = policy {
            pending = self.write_ahead(means, &*source, &policy, pending, &mut formed.tops).await;
        }
        drop((held, source));
        self.fill(means, pending, &mut formed).await.inspect_err(|_| {
            // Nothing of it was written, so nothing leads there.
            if let Some(first) = formed.blocks.first() {
                let taken = self.state.lock().chain.retract(first.sequence);
                taken.into_iter().for_each(|dva| means.space.give_back(dva));
            }
        })?;
        Ok(formed)
    }

    /// There is so much that whoever wants all of it is better off with the transaction group. Who wants only his own blocks
    /// does not wait for that.
    fn leave_to_the_group(&self, waiters: &mut Vec<Waiter>) {
        for waiter in waiters.extract_if(.., |waiter| waiter.wants_everything()) {
            self.stats.fell_back(Fallback::Burst);
            tell(waiter.answer, false);
        }
    }

    /// Takes places at the end of the chain, and fills those before with `pending`.
    async fn fill(&self, means: &Means, pending: Vec<Pending>, formed: &mut Formed) -> Result<(), Fallback> {
        let mut rest: usize = pending.iter().map(Pending::bytes).sum();
        let place = {
            let mut state = self.state.lock();
            state.newest = pending.iter().map(|pending| pending.txg).fold(state.newest, u64::max);
            state.sizes.push_back(rest);
            if state.sizes.len() > REMEMBERED {
                state.sizes.pop_front();
            }
            usual(&state.sizes)
        };
        let mut pending = pending.into_iter().peekable();
        loop {
            // A flush may fill hundreds of blocks, and whoever drives the round has other things to do as well.
            tokio::task::consume_budget().await;
            let (filling, supply) = {
                let mut state = self.state.lock();
                let Some(tail) = state.chain.tail() else { return Err(Fallback::NotBegun) };
                let mut filling = Filling::new(tail.bytes);
                while let Some(next) = pending.next_if(|next| filling.fits(next)) {
                    rest -= next.bytes();
                    let (payload, indirect) = next.payload();
                    self.stats.payload.fetch_add(payload + indirect, Relaxed);
                    self.stats.indirect.fetch_add(indirect, Relaxed);
                    state.record += 1;
                    filling.push(&next, state.record);
                }
                (filling, state.supply)
            };
            self.stats.records.fetch_add(filling.records, Relaxed);
            let is_last = pending.peek().is_none();
            let bytes = if is_last { place } else { place_for(rest) };
            let taken = match means.space.try_take(bytes as u64, supply) {
                Some(place) => Some(place),
                None => {
                    let mut is_over = self.is_over.subscribe();
                    tokio::select! {
                        biased;
                        taken = means.space.take(bytes as u64, supply) => taken,
                        // Whoever sets space aside may be the one who waits for the log to end.
                        _ = is_over.wait_for(|is_over| *is_over) => None,
                    }
                }
            };
            let dva = taken.ok_or(Fallback::NoSpace)?;
            let (filled, next, verifier) = {
                let mut state = self.state.lock();
                // Under the lock: see the top of this file.
                let held = means.txgs.hold();
                let appended = state.chain.append(dva, bytes, held.txg(), filling.max_txg);
                let (filled, next) = appended.map_err(|_| Fallback::NotBegun)?;
                if formed.held.last().is_none_or(|last| last.txg() != held.txg()) {
                    formed.held.push(held);
                }
                (filled, next, state.chain.seal(filled.sequence))
            };
            let shorten = means.direct.may_shorten(&filled.dva);
            let data = chain::seal(filling, &next, verifier, shorten).map_err(|_| Fallback::Device)?;
            let Block { dva, birth, sequence, .. } = filled;
            formed.blocks.push(Sealed { dva, birth, sequence, data });
            if is_last {
                return Ok(());
            }
        }
    }

    /// Holds the open transaction group if large blocks are to be written to their places instead of the log.
    fn hold_to_write_ahead(
        &self,
        means: &Means,
        source: &dyn Source,
        has_log_device: bool,
    ) -> (Option<Tx>, Option<BlockPolicy>) {
        let (supply, policy) = {
            let state = self.state.lock();
            (state.supply, state.policy)
        };
        let on_log_device = supply == Supply::Log && has_log_device;
        // Only a checksum tells after a power cut whether the block got there: the record that points to it may have.
        let can_tell = policy.is_some_and(|policy| policy.checksum.is_verified());
        if !can_tell || on_log_device || source.block() < AHEAD_MIN {
            return (None, None);
        }
        let held = means.txgs.try_assign(Cost::default());
        let policy = policy.filter(|_| held.is_some());
        (held, policy)
    }

    /// Writes blocks to their places where that can be done now, and notes on which devices.
    async fn write_ahead(
        &self,
        means: &Means,
        source: &dyn Source,
        policy: &BlockPolicy,
        pending: Vec<Pending>,
        tops: &mut SmallVec<[u32; 3]>,
    ) -> Vec<Pending> {
        let write = |mut pending: Pending| {
            let ahead = &means.ahead;
            async move {
                let Some((blkid, content)) = pending.to_write_ahead() else { return (vec![pending], None) };
                let at = Bookmark { objset: self.dataset, object: DATA, level: 0, blkid };
                let content = content.clone();
                let written = ahead.write(content.clone(), policy, ObjectType::ZVOL, pending.txg, at).await;
                match written {
                    Ok(to) if to.is_hole() => {
                        pending.point(to);
                        (vec![pending], None)
                    }
                    Ok(to) if !to.is_embedded() => {
                        let txg = pending.txg;
                        pending.point(to);
                        (vec![pending], Some((txg, blkid, content, to)))
                    }
                    Ok(_) | Err(_) => (pending.inline(), None),
                }
            }
        };
        let writes: Vec<_> = pending.into_iter().map(write).collect();
        let mut writes = stream::iter(writes).buffered(IN_FLIGHT);
        let mut all = Vec::new();
        while let Some((pending, written)) = writes.next().await {
            all.extend(pending);
            if let Some((txg, blkid, content, to)) = written {
                tops.extend(to.dvas().map(|dva| dva.vdev));
                source.written_ahead(txg, blkid, &content, to);
            }
        }
        all
    }

    /// Writes blocks and makes them durable; false if that failed.
    async fn write(&self, formed: &Formed) -> bool {
        let Some(means) = &self.means else { return false };
        let Formed { blocks, tops, lacks, .. } = formed;
        for block in blocks {
            let device = means.direct.device(block.dva.vdev);
            self.stats.block(block.dva.vdev, device, block.data.len() as u64);
        }
        let outcome = match &blocks[..] {
            [] => return true,
            [one] if tops.is_empty() => means.direct.write(one.dva, one.data.clone(), one.birth, true).await,
            _ => self.write_many(means, blocks, tops, *lacks).await,
        };
        if let Err(error) = &outcome {
            tracing::warn!(dataset = self.dataset, %error, "the intent log cannot be written; transaction groups take its place");
            for block in blocks {
                means.space.forget_device(block.dva.vdev);
            }
        }
        outcome.is_ok()
    }

    async fn write_many(
        &self,
        means: &Means,
        blocks: &[Sealed],
        also: &[u32],
        lacks: u64,
    ) -> Result<(), EngineError> {
        let write = |block: &Sealed| {
            let (direct, dva, data, birth) = (&means.direct, block.dva, block.data.clone(), block.birth);
            async move { direct.write(dva, data, birth, false).await }
        };
        let writes: Vec<_> = blocks.iter().map(write).collect();
        let mut writes = stream::iter(writes).buffer_unordered(IN_FLIGHT);
        while let Some(result) = writes.next().await {
            result?;
        }
        let mut tops: SmallVec<[u32; 3]> = blocks.iter().map(|block| block.dva.vdev).collect();
        tops.extend_from_slice(also);
        tops.sort_unstable();
        tops.dedup();
        let txg = blocks.iter().map(|block| block.birth).max().unwrap_or(0);
        means.direct.flush(&tops, txg, lacks).await
    }
}

/// A round, driven by the first who waits for it: nobody has to be woken for a single writer. Others wait for the
/// same blocks, so if that one goes away, a task of its own takes over.
struct Driven(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for Driven {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(round) = &mut self.0 else { return Poll::Ready(()) };
        if round.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.0 = None;
        Poll::Ready(())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let (Some(round), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(round);
        }
    }
}

/// Answers somebody who may have gone away.
fn tell(who: oneshot::Sender<bool>, done: bool) {
    if who.send(done).is_err() {
        tracing::trace!("nobody waits for a commit that is over");
    }
}

/// Bytes of a place for `rest` bytes of records, or as much of them as a block takes.
fn place_for(rest: usize) -> usize {
    (rest + CHAIN_BYTES).next_multiple_of(BLOCK_UNIT).clamp(PLACE_MIN, BLOCK_BYTES_MAX)
}

/// A place for a usual round: the median of the last ones.
fn usual(sizes: &VecDeque<usize>) -> usize {
    let mut sorted: SmallVec<[usize; REMEMBERED]> = sizes.iter().copied().collect();
    sorted.sort_unstable();
    place_for(sorted.get(sorted.len() / 2).copied().unwrap_or(0))
}

/// The syncing task's side.
impl Log {
    /// Whether syncing `txg` has something to do here.
    pub(crate) fn needs_sync(&self, txg: u64) -> bool {
        let state = self.state.lock();
        match state.phase {
            Phase::Wanted | Phase::GivenUp => true,
            Phase::Ended => !state.chain.is_empty(),
            _ => state.chain.is_touched_by(txg),
        }
    }

    /// How blocks of the volume are written from now on, as of transaction group `txg`, which is being synced. Whether all
    /// that was written ahead in that group was written so: the next one is open already, and may have been told too late.
    pub(crate) fn set_policy(&self, policy: &SetPolicy, txg: u64) -> bool {
        let mut state = self.state.lock();
        let policy = policy.block(ObjectType::ZVOL, 0, 0, 0);
        if state.policy.replace(policy).is_some_and(|before| before != policy) {
            state.policy_since = txg;
        }
        txg > state.policy_since + 1
    }

    /// True the first time: what the object set names until then is not this log's.
    pub(crate) fn takes_over(&self) -> bool {
        !self.is_named.swap(true, Relaxed)
    }

    /// Nothing of it is to be on top-level device `vdev` any more: if its chain is, another one is begun.
    pub(crate) fn leave(&self, vdev: u64) {
        let mut state = self.state.lock();
        if state.chain.is_on(vdev) {
            self.give_up(&mut state, Fallback::NotBegun);
        }
    }

    /// The header as it is to be once `txg`, which is being synced, is committed. What was taken up to `txg` is
    /// entered in the space maps, what is over is freed. May be called more than once in a group.
    pub(crate) fn sync(
        &self,
        txg: u64,
        alloc: &mut Allocator,
        random: &mut StdRng,
    ) -> Result<[u8; HEADER_BYTES], EngineError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let idle = state.in_flight == 0 && !state.is_forming;
        match state.phase {
            // Whatever else there is, nothing of it is needed: what a failed round wrote, or did not, leads nowhere.
            Phase::GivenUp | Phase::Ended if idle && state.chain.is_needless(txg) => {
                state.chain.free(alloc)?;
                if state.phase == Phase::GivenUp && state.newest <= txg {
                    state.phase = Phase::Wanted;
                }
            }
            _ => {
                state.chain.adopt(txg, alloc)?;
                state.chain.advance(txg, alloc);
            }
        }
        if state.phase == Phase::Wanted
            && let Some(means) = &self.means
            && let Some(dva) = means.space.try_take(PLACE_MIN as u64, state.supply)
        {
            let id = [random.next_u64(), random.next_u64()];
            state.chain.begin(id, dva, PLACE_MIN, txg);
            state.chain.adopt(txg, alloc)?;
            state.record = 0;
            state.last = None;
            state.phase = Phase::Begun(txg);
            self.is_over.send_replace(false);
        }
        state.chain.header()
    }

    /// `txg` is committed.
    pub(crate) fn committed(&self, txg: u64) {
        let mut state = self.state.lock();
        if let Phase::Begun(begun) = state.phase
            && begun <= txg
        {
            state.phase = Phase::Ready;
        }
    }

    /// Takes nothing more, and waits until nothing of it is on its way.
    pub(crate) async fn end(&self) {
        self.state.lock().phase = Phase::Ended;
        self.is_over.send_replace(true);
        self.idle().await;
        self.turn_away(&mut self.state.lock());
    }

    /// Waits until nothing of a log that was given up is on its way: then the group that its last round held leaves
    /// nothing of it in the space maps.
    pub(crate) async fn settle(&self) {
        if self.state.lock().phase == Phase::GivenUp {
            self.idle().await;
        }
    }

    async fn idle(&self) {
        loop {
            // Before the look, so that what ends right after it is heard.
            let is_idle = self.is_idle.notified();
            if self.busy.load(Acquire) == 0 {
                return;
            }
            is_idle.await;
        }
    }

    /// Frees all of it in the group being synced, whatever it holds: the dataset goes. To be called after
    /// [`end`](Self::end).
    pub(crate) fn free(&self, alloc: &mut Allocator) -> Result<(), EngineError> {
        self.state.lock().chain.free(alloc)
    }
}

/// The logs of all open volumes, by dataset.
#[derive(Debug, Default)]
pub struct Logs(Mutex<BTreeMap<u64, Arc<Log>>>);

impl Logs {
    /// The log of an open volume.
    #[must_use]
    pub fn get(&self, dataset: u64) -> Option<Arc<Log>> {
        self.0.lock().get(&dataset).cloned()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Log>> {
        self.0.lock().values().cloned().collect()
    }

    /// Takes in the log of a volume that is opened.
    pub(crate) fn insert(&self, log: Arc<Log>) {
        self.0.lock().insert(log.dataset, log);
    }

    /// Takes out the log of a volume that goes.
    pub(crate) fn take(&self, dataset: u64) -> Option<Arc<Log>> {
        self.0.lock().remove(&dataset)
    }
}

#[cfg(test)]
mod tests {
    use codec::compress;

    use super::*;
    use crate::policy::{Compression, TRAITS};

    /// What a device has to be given again is made a second time, and must come out the same. The group that is open while
    /// another policy is told may have blocks of both.
    #[test]
    fn what_was_written_ahead_under_another_policy_is_not_taken_for_what_would_be_written_now() {
        let before = SetPolicy::mos(&TRAITS);
        let level = compress::Level::DEFAULT;
        let compression = Compression { algorithm: compress::Algorithm::Off, level };
        let after = SetPolicy { compression, ..before };
        let log = Log::detached(7);
        assert!(log.set_policy(&before, 10) && log.set_policy(&before, 11));
        let told: Vec<bool> = (12..16).map(|txg| log.set_policy(&after, txg)).collect();
        assert_eq!(told, [false, false, true, true]);
        assert!(!log.set_policy(&before, 16));
    }
}
