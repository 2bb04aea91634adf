//! The intent log that another implementation left in a dataset: given back when the dataset is rewritten or goes.
//!
//! We keep no log, and open only pools whose logs have nothing left to replay; but even an empty log has a block or
//! two that are allocated, named by the header in the object set. Snapshots and clones show copies of that header;
//! the blocks belong to the head whose number is in the chain. Facts: docs/format/zil.md §2.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    zil::{Block, ChainWords, Format, HEADER_BYTES, Header},
};
use pool::{Bookmark, dmu::ReadError, traverse::LEVEL_LOG};

use crate::{EngineError, sync::Syncer};

/// More blocks than a log without records can have; a longer chain bites its tail.
const BLOCKS_MAX: usize = 1 << 16;

/// Gives back the blocks of the log of head `dataset`, whose object set has this header (little endian).
pub(super) async fn discard(
    cx: &mut Syncer,
    dataset: u64,
    header: &[u8; HEADER_BYTES],
) -> Result<(), EngineError> {
    let at = Bookmark { objset: dataset, object: 0, level: LEVEL_LOG, blkid: 0 };
    let header = Header::decode(header, Order::Little).map_err(ReadError::malformed(at))?;
    let mut pointer = header.log;
    let mut seen = BTreeSet::new();
    for _ in 0..BLOCKS_MAX {
        let words = ChainWords::from_words(pointer.checksum());
        let Some(dva) = pointer.dvas().next() else { break };
        // What is as young as this transaction group was written ahead of it and is allocated nowhere.
        let is_own = words.objset == dataset && pointer.birth() < cx.txg;
        if !is_own || !header.admits_block(words.sequence) || !seen.insert((dva.vdev, dva.offset)) {
            break;
        }
        cx.out.free(&pointer).await?;
        let at = Bookmark { blkid: words.sequence, ..at };
        // The end of a log is a block that was never written.
        let Ok(raw) = cx.io.read_raw(&pointer, at).await else { break };
        let Some(format) = Format::from_checksum_id(pointer.checksum_id()) else { break };
        let Ok(block) = Block::decode(&raw, format, pointer.order()) else { break };
        if !block.continues(words) {
            break;
        }
        pointer = block.next;
    }
    Ok(())
}
