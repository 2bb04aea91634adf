//! The log of one volume: who commits, what the syncing task does with the chain, and where that is in its life.
//!
//! ```text
//!   commit ─▶ waiting ─┬─▶ round: gather what is not logged ▸ fill blocks ▸ write them ▸ all of it durable?
//!   commit ─▶ waiting ─┘      └─ up to two at once; who comes meanwhile waits for the next one and shares it
//!
//!   none ──wanted──▶ begun in a sync ──its commit──▶ ready ──anything wrong──▶ given up ──synced──▶ none
//! ```
//!
//! Whatever goes wrong, nobody is refused: what was to be logged is still in memory, and its transaction group makes it
//! durable. What a failed round had taken is logged nowhere, so a new chain is usable only when the groups of all that are
//! synced.
//!
//! The syncing task calls [`Log::sync`] in every group that touches the log; the mutex keeps both sides apart, and
//! a block taken under it belongs to the group that is open then. Its round holds that group until it is over: space maps
//! that have a block are on the devices only after what leads to the block, or a crash between the two would leave it
//! allocated to nobody.
//!
//! Not here: how commits share a round (`round`), and what it writes (`formed`).
//!
//! Facts: docs/format/zil.md §4.

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Relaxed},
        },
    },
};

use bytes::Bytes;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType, zil::HEADER_BYTES};
use parking_lot::Mutex;
use rand::{RngCore, rngs::StdRng};
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};

use super::{
    chain::Chain,
    records::Batch,
    space::{LogSpace, Supply},
    stats::{Fallback, Report, Stats},
};
use crate::{
    EngineError,
    alloc::Allocator,
    policy::{BlockPolicy, SetPolicy},
    suspend::Suspension,
    txg::Txgs,
    write::{ahead::Ahead, direct::Direct},
};

mod formed;
mod round;

use self::{formed::PLACE_MIN, round::Waiter};

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
    #[cfg(test)]
    pub(crate) fn detached(dataset: u64) -> Arc<Self> {
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
            match self.answer_at_once(&mut state, &*source, &want) {
                Some(Ok(())) => {
                    self.stats.nothing.fetch_add(1, Relaxed);
                    return true;
                }
                Some(Err(why)) => {
                    self.stats.fell_back(why);
                    return false;
                }
                None => {}
            }
            state.waiting.push(Waiter { want, since: Instant::now(), answer });
            self.next_round(&mut state)
        };
        if let Some(round) = round {
            round.await;
        }
        answered.await.unwrap_or(false)
    }

    /// What is known without a round: that there is nothing to be made durable, or why the log cannot.
    fn answer_at_once(
        &self,
        state: &mut State,
        source: &dyn Source,
        want: &Want,
    ) -> Option<Result<(), Fallback>> {
        match state.phase {
            // Nothing that is not durable, and nothing on its way that this might have to wait for.
            Phase::Ready => {
                let is_still = state.in_flight == 0 && !state.is_forming && state.waiting.is_empty();
                (is_still && !source.lacks(want)).then_some(Ok(()))
            }
            // No round ever took anything, so what is not listed as lacking is in the pool.
            Phase::None if !source.lacks(want) => Some(Ok(())),
            Phase::None => {
                if let Some(means) = &self.means {
                    state.phase = Phase::Wanted;
                    means.space.expect(state.supply);
                }
                Some(Err(Fallback::NotBegun))
            }
            Phase::Wanted | Phase::Begun(_) | Phase::Ended => Some(Err(Fallback::NotBegun)),
            Phase::GivenUp => Some(Err(state.why)),
        }
    }

    /// Whether the pool is this host's, as far as it knows.
    fn may_write(&self) -> bool {
        self.means.as_ref().is_none_or(|means| means.suspension.may_write().is_ok())
    }

    /// The chain takes no more.
    fn give_up(&self, state: &mut State, why: Fallback) {
        if state.phase == Phase::Ready {
            state.phase = Phase::GivenUp;
            state.why = why;
            self.is_over.send_replace(true);
        }
    }
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
        if !state.chain.is_on(vdev) {
            return;
        }
        // One that was begun in the group that is being synced is in use with its commit, which may say that nothing there is
        // needed.
        if matches!(state.phase, Phase::Begun(_)) {
            state.phase = Phase::Ready;
        }
        self.give_up(&mut state, Fallback::NotBegun);
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

#[cfg(test)]
mod tests {
    use codec::compress;
    use ondisk::blkptr::Dva;

    use super::*;
    use crate::policy::{Compression, TRAITS};

    /// It was in use as soon as the group was committed that excludes its device. What was acknowledged there before a group said
    /// otherwise was lost in a crash: whoever opened the pool passed over the log.
    #[test]
    fn a_log_that_is_begun_in_the_group_that_excludes_its_device_leaves_it() {
        let log = Log::detached(7);
        {
            let mut state = log.state.lock();
            let place = Dva { vdev: 3, ..Dva::default() };
            state.chain.begin([1, 2], place, PLACE_MIN, 10);
            state.phase = Phase::Begun(10);
        }
        log.leave(4);
        assert_eq!(log.state.lock().phase, Phase::Begun(10));
        log.leave(3);
        log.committed(10);
        assert_eq!(log.state.lock().phase, Phase::GivenUp);
        assert!(log.needs_sync(11), "another one is begun");
    }

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
