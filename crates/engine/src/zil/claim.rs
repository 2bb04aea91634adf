//! The first step after a crash: every block that a log refers to is allocated before anything else is.
//!
//! ```text
//!   heads that name a log ─▶ follow each chain ─▶ all their blocks into the space maps ─▶ headers say so
//!                              (nothing changes)     (before anything is allocated)
//! ```
//!
//! Log blocks, and data that records point to, were given places in transaction groups that never got to the disk, so
//! no space map knows of them. Where a chain ends is decided here, once: at the first place that holds no block
//! of it, or at a record whose data is not there. The header then says how far the log goes, and everybody who
//! replays it, here or elsewhere, sees the same log, however often that is tried. So what a device does not give for now
//! is no end: the pool is not opened then.
//!
//! Volumes are replayed next ([`super::replay`]). Logs of file systems stay as they are for OpenZFS. A header that
//! shows another dataset's log (a clone of a snapshot may) is cleared.
//!
//! Facts: docs/format/zil.md §5.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicUsize},
};

use futures_util::future::join_all;
use ondisk::{
    blkptr::{BlkPtr, Dva},
    zil::{ChainWords, FLAG_CLAIM_RECORD_SEQ, FLAG_REPLAY_NEEDED, TxType},
};
use pool::{
    BlockError, BlockErrorKind, Bookmark, PoolIo,
    dsl::HeadKind,
    traverse::LEVEL_LOG,
    zil::{self, End, Found, Head, LogBlock, LogRecord, NoBlock, Reader, Waiting},
};

use super::outside::{Budget, portions};
use crate::{
    EngineError, dsl,
    suspend::{may_pass, may_pass_of},
    sync::Syncer,
};

/// Chains followed at a time.
const CHAINS_AT_ONCE: usize = 16;

/// What helps where devices do not answer.
pub(crate) const AGAIN: &str = "Import the pool read-only, or try again when its devices answer.";

/// The logs that a pool had when it was opened, and what is to become of them.
#[derive(Debug, Default)]
pub struct Crashed {
    /// To be claimed: all of them, until that is done.
    pub(crate) unclaimed: Vec<Head>,
    /// The pool was exported: a log that nobody had claimed has nothing that is not in the pool.
    pub(crate) was_exported: bool,
    /// What of them is given up if it cannot be read.
    pub(crate) gives_up: GivenUp,
    /// Volumes with a claimed log.
    pub(crate) volumes: Vec<Head>,
    /// What only OpenZFS can replay.
    pub(crate) kept: Vec<Waiting>,
    /// The last transaction group before.
    pub(crate) txg: u64,
    /// Datasets of which writes are lost, with the reason.
    pub(crate) lost: Vec<(String, String)>,
    /// Datasets of which nobody can tell whether they have a log, with the reason: what it has is not kept.
    pub(crate) untold: Vec<(String, String)>,
}

/// Blocks that are given up if they cannot be read. Others may be given the next time.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// All of them: whoever opens the pool says so.
    pub(crate) all: bool,
    /// Those that are on these top-level devices only: log devices that are missing, and the pool was opened all the same.
    pub(crate) tops: BTreeSet<u32>,
}

impl GivenUp {
    /// Whether the block of this pointer is one of them.
    pub(crate) fn has(&self, pointer: &BlkPtr) -> bool {
        self.all || pointer.dvas().all(|dva| self.tops.contains(&dva.vdev))
    }
}

/// What a chain is made of, found without changing anything.
#[derive(Debug, Default)]
struct Scan {
    /// Places that no space map knows.
    claims: Vec<BlkPtr>,
    /// Highest sequences.
    last_block: u64,
    last_record: u64,
    blocks: u64,
    records: u64,
    /// Records that are not in the pool, and bytes they write.
    pending: u64,
    bytes: u64,
    /// Whose log it is.
    is_foreign: bool,
    /// Why it could not be followed to its end.
    lost: Option<String>,
    /// It could not be, and had nothing there that is not in the pool.
    is_out_of_reach: bool,
}

impl Scan {
    /// Whether the header has to say something new.
    fn matters(&self) -> bool {
        self.is_foreign || self.pending > 0 || !self.claims.is_empty() || self.lost.is_some()
    }
}

/// Claims the logs of all heads, in the first transaction group, before anything is allocated in it.
///
/// # Errors
/// A block of a log is in use by something else, a device did not give one, or the pool's structures cannot be read.
pub(crate) async fn claim(cx: &mut Syncer) -> Result<(), EngineError> {
    let heads = std::mem::take(&mut cx.crashed.unclaimed);
    if heads.is_empty() {
        return Ok(());
    }
    let first = cx.uberblock.txg + 1;
    let (mut scanned, budget) = (Vec::new(), Budget::new());
    for some in heads.chunks(CHAINS_AT_ONCE) {
        let scans = some.iter().map(|head| scan(&cx.io, &budget, head, first, &cx.crashed));
        for (head, scan) in some.iter().zip(join_all(scans).await) {
            scanned.push((head.clone(), scan?));
        }
    }
    let mut taken = BTreeSet::new();
    for (head, scan) in &scanned {
        for pointer in &scan.claims {
            take(cx, pointer, &mut taken).await.map_err(|error| {
                let what = format!("the intent log of '{}' cannot be claimed: {error}", head.name);
                match may_pass_of(&error) {
                    true => EngineError::Unanswered(format!("{what}\n{AGAIN}")),
                    false => EngineError::Unsupported(format!(
                        "{what}\nImport the pool read-only to copy what is in it."
                    )),
                }
            })?;
        }
    }
    // Only now: writing a header allocates.
    for (head, scan) in scanned {
        settle(cx, head, scan, first).await?;
    }
    Ok(())
}

/// Writes down what became of a log.
async fn settle(cx: &mut Syncer, mut head: Head, scan: Scan, first: u64) -> Result<(), EngineError> {
    if let Some(why) = &scan.lost {
        tracing::warn!(dataset = head.name, why, "writes that were acknowledged are lost");
        cx.crashed.lost.push((head.name.clone(), why.clone()));
    }
    let is_gone = scan.is_foreign || (scan.lost.is_some() && scan.records == 0);
    if is_gone {
        // Allocated before, or just now.
        if !scan.is_foreign {
            cx.out.free(&head.header.log).await?;
        }
        return dsl::set_log(cx, head.objset, None).await;
    }
    if head.header.claim_txg == 0 {
        if !scan.matters() {
            // All of it is in the pool. A volume begins a log of its own; others keep what they have, unless it cannot be read:
            // for whoever opens the pool next that would be a loss.
            let is_volume = head.kind == HeadKind::Volume && !head.encrypted;
            let ends = is_volume || scan.is_out_of_reach;
            return if ends { dsl::end_log(cx, head.objset).await } else { Ok(()) };
        }
        head.header.claim_txg = first;
        head.header.replay_seq = 0;
        head.header.claim_block_seq = scan.last_block;
        head.header.claim_record_seq = scan.last_record;
        head.header.flags |= FLAG_CLAIM_RECORD_SEQ;
        if scan.records > 0 || scan.blocks > 1 {
            head.header.flags |= FLAG_REPLAY_NEEDED;
        }
        dsl::set_log(cx, head.objset, Some(&head.header)).await?;
        tracing::info!(
            dataset = head.name,
            txg = first,
            blocks = scan.blocks,
            records = scan.records,
            "claimed an intent log"
        );
    }
    if head.kind == HeadKind::Volume && !head.encrypted {
        cx.crashed.volumes.push(head);
    } else if scan.pending > 0 {
        let Head { name, kind, encrypted, .. } = head;
        let Scan { pending: records, bytes, .. } = scan;
        cx.crashed.kept.push(Waiting { name, kind, encrypted, records, bytes });
    }
    Ok(())
}

/// Enters a block in the space maps, all copies of it, unless another pointer to it came before.
async fn take(
    cx: &mut Syncer,
    pointer: &BlkPtr,
    taken: &mut BTreeSet<(u32, u64)>,
) -> Result<(), EngineError> {
    if pointer.is_dedup() {
        return Err(EngineError::Unsupported("a record points to a deduplicated block".into()));
    }
    let places: Vec<Dva> = match pointer.is_gang() {
        true => cx.io.gang_extents(pointer, &AtomicUsize::default()).await?,
        false => pointer.dvas().collect(),
    };
    for dva in places {
        if taken.insert((dva.vdev, dva.offset)) {
            cx.out.alloc.claim(dva).await?;
        }
    }
    Ok(())
}

/// Follows a chain. `first` is the first transaction group that the pool does not have.
async fn scan(
    io: &Arc<PoolIo>,
    budget: &Budget,
    head: &Head,
    first: u64,
    crashed: &Crashed,
) -> Result<Scan, EngineError> {
    let gives_up = &crashed.gives_up;
    let mut scan = Scan::default();
    let mut reader = Reader::new(io, head.objset, &head.header);
    if reader.chain().end() == Some(End::Foreign) {
        scan.is_foreign = true;
        return Ok(scan);
    }
    let is_claimed = head.header.claim_txg != 0;
    // What a claimed volume's log has is counted when it is replayed, and what of it cannot be read is told then.
    if is_claimed && head.kind == HeadKind::Volume && !head.encrypted {
        return Ok(scan);
    }
    while let Some(Found { pointer, block, .. }) = reader.next().await {
        scan.blocks += 1;
        scan.last_block = ChainWords::from_words(pointer.checksum()).sequence;
        if !is_claimed && pointer.birth() >= first {
            scan.claims.push(pointer);
        }
        let block = match block {
            Ok(block) => block,
            // A log that was claimed may wait in a pool that was exported, too. One that is encrypted cannot be ended here, and
            // whoever opens the pool next does not know that it was exported.
            Err(NoBlock::Unreadable(_))
                if crashed.was_exported && !is_claimed && !head.encrypted && pointer.birth() < first =>
            {
                scan.is_out_of_reach = true;
                break;
            }
            Err(NoBlock::Unreadable(error)) => {
                scan.lost = Some(lost(head, &error, gives_up.has(&pointer))?);
                break;
            }
            Err(NoBlock::Unwritten) => break,
        };
        if !records(io, budget, head, &block, first, gives_up, &mut scan).await? {
            break;
        }
    }
    if head.encrypted && !is_claimed && scan.matters() {
        return Err(EngineError::Unsupported(format!(
            "the intent log of '{}' would have to be claimed, and it is encrypted: this version only reads encrypted \
             datasets.\nImport and export the pool once with OpenZFS.",
            head.name
        )));
    }
    Ok(scan)
}

/// Devices did not give something that a log may have: the reason for which the log ends before it, if that is given up.
/// If not, they may give it the next time.
fn lost(head: &Head, error: &BlockError, is_given_up: bool) -> Result<String, EngineError> {
    if is_given_up {
        return Ok(format!("the intent log cannot be read: {error}"));
    }
    Err(EngineError::Unanswered(format!(
        "the intent log of '{}' cannot be read: {error}\n{AGAIN} To go on without what they do not give, import the pool \
         with -m: the last writes to it may be lost then.",
        head.name
    )))
}

/// Whether a record has blocks that it shares with what they were cloned from, as far as can be told.
fn clones_blocks(record: &LogRecord) -> bool {
    if record.tx() != Some(TxType::CloneRange) {
        return false;
    }
    let Ok(decoded) = record.decode() else { return true };
    let mut blocks = decoded.body.cloned_blocks(record.order());
    blocks.any(|pointer| pointer.map_or(true, |pointer| !pointer.is_hole() && !pointer.is_embedded()))
}

/// Looks at the records of a block; false if the log ends in it.
async fn records(
    io: &Arc<PoolIo>,
    budget: &Budget,
    head: &Head,
    block: &LogBlock,
    first: u64,
    gives_up: &GivenUp,
    scan: &mut Scan,
) -> Result<bool, EngineError> {
    let header = &head.header;
    let is_claimed = header.claim_txg != 0;
    // Data that is on no space map yet must be there, or the log ends before it.
    let wanted = |pointer: &BlkPtr| {
        !is_claimed && pointer.birth() >= first && !pointer.is_hole() && !pointer.is_embedded()
    };
    let with_data = |record: LogRecord| {
        let outside = record.indirect().filter(wanted);
        (record, outside)
    };
    let records: Vec<(LogRecord, Option<BlkPtr>)> = block.records().map(with_data).collect();
    let at = Bookmark { objset: head.objset, object: 1, level: LEVEL_LOG, blkid: block.words.sequence };
    for (some, bytes) in portions(&records, |(_, outside)| outside.map_or(0, |pointer| pointer.lsize())) {
        let blocks: Vec<(BlkPtr, Bookmark)> =
            some.iter().filter_map(|(_, outside)| outside.map(|pointer| (pointer, at))).collect();
        let _held = budget.take(bytes).await;
        let mut data = io.read_blocks(&blocks).await.into_iter();
        for (record, outside) in some {
            if !header.admits_record(record.sequence) {
                return Ok(false);
            }
            if let Some(pointer) = outside {
                let found = match data.next() {
                    // Once more: all that matters now is whether everybody who may have it has answered.
                    Some(Err(error))
                        if matches!(error.kind(), BlockErrorKind::Checksum | BlockErrorKind::Device) =>
                    {
                        io.read_tentative(pointer, at).await
                    }
                    Some(found) => found,
                    None => return Ok(false),
                };
                match found {
                    Ok(_) => scan.claims.push(*pointer),
                    Err(error) if may_pass(&error) => {
                        scan.lost = Some(lost(head, &error, gives_up.has(pointer))?);
                        return Ok(false);
                    }
                    Err(error) => {
                        tracing::warn!(dataset = head.name, %error, "the intent log ends at data that is not there");
                        return Ok(false);
                    }
                }
            }
            // OpenZFS counts references of all of them when it claims a log, and gives as many up with it, also of records that
            // are in the pool: those of a log that was claimed without are somebody's only ones.
            if !is_claimed && clones_blocks(record) {
                return Err(EngineError::Unsupported(format!(
                    "the intent log of '{}' holds cloned blocks, whose references this version cannot count.\nImport the \
                     pool with OpenZFS, which replays them, and export it. As long as a clone of them is left then (feature \
                     block_cloning is active) the pool can only be opened read-only here.",
                    head.name
                )));
            }
            let is_pending = zil::is_pending(header, record, first - 1);
            scan.records += 1;
            scan.last_record = scan.last_record.max(record.sequence);
            if is_pending {
                scan.pending += 1;
                scan.bytes += zil::written(record);
            }
        }
    }
    Ok(true)
}
