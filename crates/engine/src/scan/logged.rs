//! A scrub of the error log reads only the blocks that are named there.
//!
//! ```text
//!   an entry ─▶ who has the block? ─┬─ somebody ─▶ read ─┬─ whole ─▶ forgotten when the scrub is over
//!                                   │                    └─ lost ─▶ stays
//!                                   ├─ nobody any more ─▶ forgotten
//!                                   └─ that cannot be told ─▶ stays
//! ```
//!
//! With feature `head_errlog` the log has a block under the live dataset, whoever of it and its snapshots holds it, and says
//! when it was born: one of that birth is looked for in the live dataset and, back in time, in what it was before. Without,
//! the log says in what it was met, and what is there now is read.
//!
//! Of a dataset that is gone nothing can be told: what several share was filed under one of them, and the others may have
//! it still. The same is true of blocks of intent logs. A scrub of everything begins a new log, without them if they are
//! whole.
//!
//! Facts: docs/format/mos.md §10.

use std::sync::Arc;

use ondisk::{blkptr::BlkPtr, dnode::ObjectType, dsl::DatasetPhys};
use pool::{Bookmark, Pool, dmu::ReadError, status::LoggedError, traverse::LEVEL_LOG};

use super::{
    Logged,
    run::{Ended, Pass},
};
use crate::{
    alloc::Pin,
    devices::Absent,
    heal::{self, Unread},
    suspend::may_pass,
};

/// A dataset as it is, or one of its snapshots.
#[derive(Clone, Copy, Debug)]
struct State {
    objset: u64,
    root: BlkPtr,
    /// When it was taken; the end of time for a live one.
    txg: u64,
}

/// Finds and offers what the log names.
pub(super) async fn offer(pass: &Arc<Pass>, view: &Arc<Pool>, pin: &Pin) -> Result<(), Ended> {
    let log = match pool::status::error_log(view).await {
        Ok(log) => log,
        Err(ReadError::Block(error)) if may_pass(&error) => return Err(Ended::Later),
        Err(error) => {
            tracing::warn!(
                pool = view.name(),
                %error,
                "the error log cannot be read; 'zpool scrub' begins a new one"
            );
            pass.update(|run| run.counts.errors += 1);
            return Ok(());
        }
    };
    pass.update(|run| {
        run.logged = Some(Logged { total: log.len() as u64, examined: 0 });
        // Whatever an earlier attempt had found is found again.
        run.total = run.counts.scanned;
    });
    let scans = &pass.ground.scans;
    let mut is_any_unread = false;
    // Entries of one dataset follow each other.
    let mut last: Option<(u64, Result<Vec<State>, Unread>)> = None;
    for entry in log {
        let dataset = entry.at.objset;
        let states = match last.take() {
            Some((of, states)) if of == dataset => states,
            _ => states_of(view, dataset, entry.birth.is_some()).await,
        };
        let blocks = match &states {
            Ok(states) => blocks_of(view, states, &entry).await,
            Err(Unread) => Err(Unread),
        };
        last = Some((dataset, states));
        match blocks {
            Ok(blocks) => {
                scans.found.named(entry, blocks.iter().map(|(pointer, _)| pointer));
                for (pointer, objset) in blocks {
                    let Some(waiting) = scans.waiting.get() else { continue };
                    waiting.offer(&pointer, Bookmark { objset, ..entry.at });
                    pass.update(|run| {
                        run.counts.scanned += pointer.asize();
                        run.total += pointer.asize();
                    });
                    pass.make_room().await?;
                }
            }
            Err(Unread) => is_any_unread = true,
        }
        if !pass.goes_on() {
            return Err(Ended::Interrupted);
        }
        if pin.is_broken() {
            return Err(Ended::Later);
        }
    }
    if is_any_unread && is_cut_off(view).await {
        return Err(Ended::Later);
    }
    Ok(())
}

/// A dataset, and if it is `with_past` what it was before, newest first: its snapshots, then its origin and what that was
/// before.
async fn states_of(view: &Pool, dataset: u64, with_past: bool) -> Result<Vec<State>, Unread> {
    if dataset == 0 {
        return Ok(vec![State { objset: 0, root: view.uberblock().rootbp, txg: u64::MAX }]);
    }
    let mut states: Vec<State> = Vec::new();
    let mut next = dataset;
    while next != 0 {
        let found = view.mos().dnode(next).await.map_err(|_| Unread)?;
        if found.dnode.bonus_type != ObjectType::DSL_DATASET {
            return Err(Unread);
        }
        let phys = DatasetPhys::decode(&found.dnode.bonus, found.order).map_err(|_| Unread)?;
        let txg = if phys.is_snapshot() { phys.creation_txg } else { u64::MAX };
        // A chain that does not go back in time is forged, and may have no end.
        if states.last().is_some_and(|later| later.txg <= txg) {
            return Err(Unread);
        }
        states.push(State { objset: next, root: phys.bp, txg });
        next = if with_past { phys.prev_snap } else { 0 };
    }
    Ok(states)
}

/// The blocks that an entry may be about, each with an object set that has it: mostly one, and none if nobody has it any
/// more.
async fn blocks_of(view: &Pool, states: &[State], entry: &LoggedError) -> Result<Vec<(BlkPtr, u64)>, Unread> {
    if entry.at.level == LEVEL_LOG {
        return Err(Unread);
    }
    let mut blocks = Vec::new();
    // From then on there is nothing but what was seen.
    let mut seen_from = None;
    for state in states {
        if entry.birth.is_some_and(|birth| state.txg < birth) {
            break;
        }
        if seen_from.is_some_and(|txg| state.txg >= txg) {
            continue;
        }
        let at = Bookmark { objset: state.objset, ..entry.at };
        let Some(pointer) = heal::seek(view, state.root, at).await? else { continue };
        // Which of its births is logged depends on who wrote the log.
        let births = [pointer.birth(), pointer.physical_birth()];
        if entry.birth.is_none_or(|birth| births.contains(&birth)) {
            blocks.push((pointer, state.objset));
        }
        // What was rewritten had the same birth in another place before.
        if !pointer.is_rewritten() {
            seen_from = Some(pointer.birth());
        }
    }
    Ok(blocks)
}

/// Whether so many devices are away that nothing can be said of what was not found.
async fn is_cut_off(view: &Pool) -> bool {
    let tree = view.tree();
    Absent::ask(&tree).await.cuts_off(&tree)
}
