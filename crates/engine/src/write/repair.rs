//! Right bytes to the leaves that lack them, and to no others: what was just read well is never written again, because a
//! power cut in the middle could cost the only copy.
//!
//! Pieces of many blocks go together: neighbours on a leaf in one transfer, in the order of the device, so that a leaf
//! that lacks everything is filled in one sweep. Nothing is durable before [`flush`].
//!
//! Whoever calls this holds the space back ([`crate::alloc::Pin`]): what is written must still belong to the block.
//! Facts: docs/format/vdevs.md §6, §7.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use bytes::Bytes;
use disk::Disk;
use futures_util::future::join_all;
use ondisk::label::DATA_OFFSET;
use pool::{
    PoolIo,
    io::{Repair, Turns},
    vdev::{Job, Vdev, Work},
};

use super::layout::{Sink, Top};
use crate::{devices::diagnose::Reports, events::IoError, suspend::Suspension};

/// Longest transfer.
const RUN_BYTES: usize = 1 << 20;

/// What became of some repairs.
#[derive(Debug, Default)]
pub(crate) struct Repaired {
    /// Bytes written, by leaf (guid).
    pub(crate) bytes: BTreeMap<u64, u64>,
    /// Leaves that did not take what they should have, with the births of the blocks.
    pub(crate) failed: BTreeSet<(u64, u64)>,
}

impl Repaired {
    /// Whoever judges devices hears of those that refused, once each.
    pub(crate) fn report(&self, reports: &Reports) {
        let refused: BTreeSet<u64> = self.failed.iter().map(|(guid, _)| *guid).collect();
        for guid in refused {
            reports.note(guid, IoError::Write, None, "a repair was refused");
        }
    }
}

/// Some bytes for one leaf.
struct Piece {
    offset: u64,
    data: Bytes,
    birth: u64,
}

/// Picks the pieces of those leaves that need them.
struct Picking<'a> {
    guids: &'a [u64],
    wanted: &'a [u64],
    birth: u64,
    pieces: &'a mut BTreeMap<usize, Vec<Piece>>,
}

impl Sink for Picking<'_> {
    fn piece(&mut self, leaf: usize, offset: u64, data: &Bytes) {
        if self.wanted.contains(&self.guids[leaf]) {
            self.pieces.entry(leaf).or_default().push(Piece {
                offset,
                data: data.clone(),
                birth: self.birth,
            });
        }
    }
    /// Free space belongs to the writer of transaction groups.
    fn padding(&mut self, _: usize, _: u64, _: usize) {}
}

/// Writes what `repairs` say, as long as the pool is this host's by `suspension`.
pub(crate) async fn write(
    io: &PoolIo,
    repairs: &[Repair],
    turns: &dyn Turns,
    suspension: &Suspension,
) -> Repaired {
    let mut repaired = Repaired::default();
    if repairs.is_empty() {
        return repaired;
    }
    let tree = io.tree();
    let (mut guids, mut leaves): (Vec<u64>, Vec<&Vdev>) = (Vec::new(), Vec::new());
    let mut pieces: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
    for vdev in &tree.tops {
        let mine: Vec<&Repair> = repairs.iter().filter(|repair| repair.vdev == vdev.id).collect();
        if mine.is_empty() {
            continue;
        }
        let known = vdev.leaves();
        let top = Top::new(vdev, &mut |leaf: &Vdev| {
            let found = known.iter().find(|known| known.guid == leaf.guid)?;
            guids.push(found.guid);
            leaves.push(found);
            Some(guids.len() - 1)
        });
        for repair in mine {
            let wanted: Vec<u64> = repair.wrong.iter().chain(&repair.lacking).copied().collect();
            let mut picking =
                Picking { guids: &guids, wanted: &wanted, birth: repair.birth, pieces: &mut pieces };
            if top.put(repair.offset, &repair.data, repair.birth, &mut picking).is_err() {
                repaired.failed.extend(wanted.iter().map(|guid| (*guid, repair.birth)));
            }
        }
    }
    let mut writes = Vec::new();
    for (leaf, mut pieces) in pieces {
        pieces.sort_by_key(|piece| piece.offset);
        let vdev = leaves[leaf];
        for run in runs(pieces) {
            writes.push(transfer(vdev, run, turns, suspension));
        }
    }
    for (guid, len, births, written) in join_all(writes).await {
        match written {
            Some(true) => *repaired.bytes.entry(guid).or_default() += len,
            Some(false) => repaired.failed.extend(births.into_iter().map(|birth| (guid, birth))),
            None => {}
        }
    }
    repaired
}

/// Pieces that touch, together.
fn runs(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut runs: Vec<(u64, usize, Vec<Piece>)> = Vec::new();
    for piece in pieces {
        let len = piece.data.len();
        match runs.last_mut() {
            Some((end, bytes, run)) if *end == piece.offset && *bytes + len <= RUN_BYTES => {
                (*end, *bytes) = (*end + len as u64, *bytes + len);
                run.push(piece);
            }
            _ => runs.push((piece.offset + len as u64, len, vec![piece])),
        }
    }
    runs.into_iter().map(|run| run.2).collect()
}

/// Leaf, bytes, births of the blocks, and whether they are written; none if nobody was asked, as the pool may be another
/// host's.
async fn transfer(
    vdev: &Vdev,
    run: Vec<Piece>,
    turns: &dyn Turns,
    suspension: &Suspension,
) -> (u64, u64, Vec<u64>, Option<bool>) {
    let len: usize = run.iter().map(|piece| piece.data.len()).sum();
    let births: Vec<u64> = run.iter().map(|piece| piece.birth).collect();
    let start = DATA_OFFSET + run.first().map_or(0, |piece| piece.offset);
    let is_joined = run.len() > 1;
    let parts: Arc<[Bytes]> = run.into_iter().map(|piece| piece.data).collect();
    let leaf = vdev.leaf.as_ref();
    let mut job = leaf.map(|leaf| leaf.pulse.tally.enqueue(Work::AsyncWrite));
    let _turn = turns.turn(vdev, len).await;
    let Some(disk) = leaf.and_then(|leaf| leaf.timed()).filter(|_| vdev.is_readable()) else {
        return (vdev.guid, len as u64, births, Some(false));
    };
    // It may have waited long for its turn.
    if suspension.may_write().is_err() {
        return (vdev.guid, len as u64, births, None);
    }
    job.iter_mut().for_each(Job::issue);
    let mut result = disk.write_parts(start, Arc::clone(&parts)).await;
    let is_refused = result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput);
    if is_refused && suspension.may_write().is_ok() {
        // Once more: a bus reset looks like a failed write.
        result = disk.write_parts(start, parts).await;
    }
    if result.is_ok()
        && let Some(job) = job
    {
        job.end(len as u64, is_joined);
    }
    if let Err(error) = &result {
        vdev.counters.count_write();
        tracing::warn!(device = %vdev, %error, "a repair was refused");
    }
    (vdev.guid, len as u64, births, Some(result.is_ok()))
}

/// Makes durable what was written to these leaves (guids); those that cannot say so.
pub(crate) async fn flush(io: &PoolIo, guids: &BTreeSet<u64>) -> Vec<u64> {
    let tree = io.tree();
    let mut flushes = Vec::new();
    for vdev in tree.leaves().into_iter().filter(|vdev| guids.contains(&vdev.guid)) {
        let disk: Option<Arc<dyn Disk>> = vdev.leaf.as_ref().and_then(|leaf| leaf.timed());
        let condition = vdev.leaf.as_ref().map(|leaf| Arc::clone(&leaf.condition));
        let (guid, counters) = (vdev.guid, Arc::clone(&vdev.counters));
        flushes.push(async move {
            match disk {
                Some(disk) if disk.flush().await.is_ok() => {
                    // The epoch, which the caller looks at, has to say what became of those beside it.
                    if let Some(condition) = condition {
                        condition.deadline().heard().await;
                    }
                    None
                }
                Some(_) => {
                    counters.count_write();
                    Some(guid)
                }
                None => Some(guid),
            }
        });
    }
    join_all(flushes).await.into_iter().flatten().collect()
}
