//! Intent logs that hold what was acknowledged and is not in the pool yet. Writing on without replaying them would
//! undo it, so such pools are refused.
//!
//! A log that was never written to, or whose records are all in the pool already, is no obstacle: its header stays
//! as it is, and its blocks stay allocated. That holds for blocks that are known to be allocated only: a log with
//! a block younger than the pool would have to be claimed first, or its space could be given to others.
//! Facts: docs/format/zil.md §2, §5.

use std::{collections::BTreeSet, sync::Arc};

use ondisk::zil::{Block, ChainWords, Format, Header};
use pool::{Bookmark, Pool, dmu::ReadError, dsl::DatasetKind};

use crate::EngineError;

/// Level that stands for a block of the intent log.
const LEVEL_LOG: i64 = -2;
/// Names of datasets that a refusal lists.
const NAMED_MAX: usize = 5;
/// Blocks of one log looked at for the first record: more than any log can begin with without one.
const BLOCKS_MAX: usize = 1 << 16;

/// Looks at the log of every head.
///
/// # Errors
/// [`EngineError::Unsupported`] if one holds records.
pub(super) async fn check(pool: &Arc<Pool>) -> Result<(), EngineError> {
    let (datasets, _unreadable) = pool.datasets().await?;
    let mut waiting = Vec::new();
    for dataset in datasets.iter().filter(|dataset| dataset.kind() == DatasetKind::Head) {
        let objset = match dataset.objset().await {
            Ok(objset) => objset,
            // A dataset without an object set has no log, and one that cannot be read is found out when it is used.
            Err(ReadError::Inconsistent { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let header = &objset.phys().zil_header;
        if let Ok(header) = Header::decode(header, objset.pointer().order())
            && has_records(pool, dataset.object(), &header).await
        {
            waiting.push(dataset.name().to_owned());
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let more = match waiting.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    waiting.truncate(NAMED_MAX);
    Err(EngineError::Unsupported(format!(
        "the intent log of {}{more} holds writes that were acknowledged and are not in the pool yet; this version \
         cannot replay them.\nImport the pool read-only, or import and export it once with OpenZFS, which replays them.",
        waiting.join(", ")
    )))
}

/// Whether a log has a record that is still to be replayed, or a block that is not allocated on disk.
async fn has_records(pool: &Pool, objset: u64, header: &Header) -> bool {
    let synced = pool.uberblock().txg;
    // What is older is in the pool already.
    let from = if header.claim_txg == 0 { synced + 1 } else { header.claim_txg };
    let mut pointer = header.log;
    let mut seen = BTreeSet::new();
    for _ in 0..BLOCKS_MAX {
        let words = ChainWords::from_words(pointer.checksum());
        let Some(dva) = pointer.dvas().next() else { return false };
        if pointer.is_hole() || !header.admits_block(words.sequence) || !seen.insert((dva.vdev, dva.offset)) {
            return false;
        }
        if header.claim_txg == 0 && pointer.birth() > synced {
            return true;
        }
        let at = Bookmark { objset, object: 0, level: LEVEL_LOG, blkid: words.sequence };
        // A block that does not verify is how a log ends, unless it was claimed and should go on.
        let claimed = header.claim_txg != 0 && words.sequence < header.claim_block_seq;
        let Ok(raw) = pool.io().read_raw(&pointer, at).await else { return claimed };
        let Some(format) = Format::from_checksum_id(pointer.checksum_id()) else { return claimed };
        let Ok(block) = Block::decode(&raw, format, pointer.order()) else { return claimed };
        for record in block.records() {
            match record {
                Ok(record) if !header.admits_record(record.sequence) => return false,
                Ok(record) if record.sequence > header.replay_seq && record.txg >= from => return true,
                Ok(_) => {}
                Err(_) => return claimed,
            }
        }
        if !block.continues(words) {
            return false;
        }
        pointer = block.next;
    }
    true
}
