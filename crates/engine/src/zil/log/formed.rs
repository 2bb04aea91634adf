//! What a round writes: what is not logged, into blocks, onto devices.
//!
//! ```text
//!   gather ─▶ large blocks to their places ─▶ the tail of the chain is filled, its successor gets a place ─▶ sealed
//!                                                  └─────────────── until all is in a block ───────────────┘
//!   all blocks to their devices, in any order ─▶ one flush
//! ```
//!
//! One round forms at a time, so the tail is its own; the lock is held for a block, not for all of them. A block names
//! its successor, which is why that has a place before the block is written, and the last one taken stays empty: how
//! large it should be is a guess at what the next round will have.
//!
//! Facts: docs/format/zil.md §2-4.

use std::{
    collections::VecDeque,
    iter::Peekable,
    sync::{Weak, atomic::Ordering::Relaxed},
    vec::IntoIter,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ondisk::{
    blkptr::Dva,
    dnode::ObjectType,
    zil::{BLOCK_BYTES_MAX, BLOCK_UNIT, CHAIN_BYTES},
};
use pool::Bookmark;
use smallvec::SmallVec;

use super::{
    Log, Means, Source, Want,
    round::{Waiter, tell},
};
use crate::{
    EngineError,
    policy::BlockPolicy,
    txg::{Cost, Tx},
    write::direct::Direct,
    zil::{
        chain::{self, Block},
        records::{Batch, DATA, Filling, Pending},
        space::Supply,
        stats::Fallback,
    },
};

/// Log blocks of one round on their way at once.
const IN_FLIGHT: usize = 16;
/// Rounds whose sizes decide how large a place the next one finds.
const REMEMBERED: usize = 7;
/// Bytes of the place a chain begins with, and the least any round finds.
pub(super) const PLACE_MIN: usize = 2 * BLOCK_UNIT;
/// Blocks of a volume from this size on go to their places at once, and the log only points there, unless there is a
/// log device.
const AHEAD_MIN: u64 = 32 << 10;
/// Beyond this, a commit is left to the transaction group: writing it twice would take longer.
const BURST: u64 = 64 << 20;

/// What a round writes.
#[derive(Default)]
pub(super) struct Formed {
    pub(super) blocks: Vec<Sealed>,
    /// Top-level devices that hold what was written ahead.
    tops: SmallVec<[u32; 3]>,
    /// Blocks that leaves lacked before any of it was written.
    lacks: u64,
    /// The groups its blocks were taken in, held.
    held: SmallVec<[Tx; 2]>,
}

/// A log block on its way.
pub(super) struct Sealed {
    dva: Dva,
    birth: u64,
    pub(super) sequence: u64,
    data: Bytes,
}

impl Formed {
    /// All of it durable: a block alone in one go, more of them side by side before one flush.
    async fn write(&self, direct: &Direct) -> Result<(), EngineError> {
        match &self.blocks[..] {
            [] => return Ok(()),
            [one] if self.tops.is_empty() => {
                return direct.write(one.dva, one.data.clone(), one.birth, true).await;
            }
            _ => {}
        }
        let write = |block: &Sealed| {
            let (dva, data, birth) = (block.dva, block.data.clone(), block.birth);
            async move { direct.write(dva, data, birth, false).await }
        };
        let writes: Vec<_> = self.blocks.iter().map(write).collect();
        let mut writes = stream::iter(writes).buffer_unordered(IN_FLIGHT);
        while let Some(result) = writes.next().await {
            result?;
        }
        let mut tops: SmallVec<[u32; 3]> = self.blocks.iter().map(|block| block.dva.vdev).collect();
        tops.extend_from_slice(&self.tops);
        tops.sort_unstable();
        tops.dedup();
        let txg = self.blocks.iter().map(|block| block.birth).max().unwrap_or(0);
        direct.flush(&tops, txg, self.lacks).await
    }
}

impl Log {
    /// Fills blocks with all that `waiters` want and the log lacks. There is one that forms at a time.
    pub(super) async fn form(&self, waiters: &mut Vec<Waiter>) -> Result<Formed, Fallback> {
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

    /// Takes places at the end of the chain, and fills those before with `pending`.
    async fn fill(&self, means: &Means, pending: Vec<Pending>, formed: &mut Formed) -> Result<(), Fallback> {
        let mut rest: usize = pending.iter().map(Pending::bytes).sum();
        let usual = self.note_taken(&pending, rest);
        let mut pending = pending.into_iter().peekable();
        loop {
            // A flush may fill hundreds of blocks, and whoever drives the round has other things to do as well.
            tokio::task::consume_budget().await;
            let (filling, supply) = self.fill_tail(&mut pending)?;
            rest -= filling.bytes();
            self.stats.records.fetch_add(filling.records, Relaxed);
            let is_last = pending.peek().is_none();
            let bytes = if is_last { usual } else { place_for(rest) };
            let dva = self.place(means, bytes as u64, supply).await.ok_or(Fallback::NoSpace)?;
            let (filled, next, verifier) = {
                let mut state = self.state.lock();
                // Under the lock: see the top of log.rs.
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

    /// A round took `pending`, so many bytes of records. Returns the bytes of a place for a usual round after it.
    fn note_taken(&self, pending: &[Pending], bytes: usize) -> usize {
        let mut state = self.state.lock();
        state.newest = pending.iter().map(|pending| pending.txg).fold(state.newest, u64::max);
        state.sizes.push_back(bytes);
        if state.sizes.len() > REMEMBERED {
            state.sizes.pop_front();
        }
        usual(&state.sizes)
    }

    /// Fills the last block of the chain, as far as there is something to fill it with; and where its successor is to be.
    fn fill_tail(&self, pending: &mut Peekable<IntoIter<Pending>>) -> Result<(Filling, Supply), Fallback> {
        let mut state = self.state.lock();
        let Some(tail) = state.chain.tail() else { return Err(Fallback::NotBegun) };
        let mut filling = Filling::new(tail.bytes);
        while let Some(next) = pending.next_if(|next| filling.fits(next)) {
            let (payload, indirect) = next.payload();
            self.stats.payload.fetch_add(payload + indirect, Relaxed);
            self.stats.indirect.fetch_add(indirect, Relaxed);
            state.record += 1;
            filling.push(&next, state.record);
        }
        Ok((filling, state.supply))
    }

    /// A place, which is waited for as long as the log is in use.
    async fn place(&self, means: &Means, bytes: u64, supply: Supply) -> Option<Dva> {
        if let Some(place) = means.space.try_take(bytes, supply) {
            return Some(place);
        }
        let mut is_over = self.is_over.subscribe();
        tokio::select! {
            biased;
            taken = means.space.take(bytes, supply) => taken,
            // Whoever sets space aside may be the one who waits for the log to end.
            _ = is_over.wait_for(|is_over| *is_over) => None,
        }
    }

    /// Writes blocks and makes them durable; false if that failed.
    pub(super) async fn write(&self, formed: &Formed) -> bool {
        let Some(means) = &self.means else { return false };
        for block in &formed.blocks {
            let device = means.direct.device(block.dva.vdev);
            self.stats.block(block.dva.vdev, device, block.data.len() as u64);
        }
        let Err(error) = formed.write(&means.direct).await else { return true };
        tracing::warn!(dataset = self.dataset, %error, "the intent log cannot be written; transaction groups take its place");
        for block in &formed.blocks {
            means.space.forget_device(block.dva.vdev);
        }
        false
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
