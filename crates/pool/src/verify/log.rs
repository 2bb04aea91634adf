//! Intent logs: chains of blocks, each naming the next.
//!
//! The last block of a chain was allocated and perhaps never written, so that a block that does not verify
//! is how a log ends and no damage, unless the log was claimed and should go on. Which blocks count is
//! as in `zdb`: those of a claimed log up to where the claim ended, and of an unclaimed one those that were
//! allocated in a txg that is on disk. Facts: docs/format/zil.md §2.

use std::{collections::BTreeSet, sync::Arc};

use ondisk::zil::{Block, Body, ChainWords, Format, Header, WriteData};

use super::{Finding, Job, Kind, Outcome};
use crate::{
    dmu::{BlockSource, ObjectSet},
    io::Bookmark,
    traverse::{LEVEL_LOG, Scope, Visit},
};

/// Blocks of one chain: at 4 KiB each, more than any pool lets a log grow to.
const BLOCKS_MAX: usize = 1 << 22;

impl Job {
    /// The log of a dataset whose object set block belongs to its snapshot, with which it is verified.
    pub(super) async fn log_of_unchanged(&self, scope: u32, outcome: &mut Outcome) {
        let Scope { objset, root, .. } = self.scopes[scope as usize];
        let source: Arc<dyn BlockSource> = self.pool.io().clone();
        let Ok(set) = ObjectSet::open(source, objset, root).await else { return };
        if let Ok(header) = Header::decode(&set.phys().zil_header, root.order()) {
            self.walk_log(scope, &header, outcome).await;
        }
    }

    /// Verifies the chain and adds data blocks that only the log refers to.
    pub(super) async fn walk_log(&self, scope: u32, header: &Header, outcome: &mut Outcome) {
        let objset = self.scopes[scope as usize].objset;
        let synced = self.pool.uberblock().txg;
        let mut pointer = header.log;
        let mut seen = BTreeSet::new();
        for _ in 0..BLOCKS_MAX {
            let words = ChainWords::from_words(pointer.checksum());
            let at = Bookmark { objset, object: 0, level: LEVEL_LOG, blkid: words.sequence };
            let unsynced = header.claim_txg == 0 && pointer.birth() > synced;
            if pointer.is_hole() || !header.admits_block(words.sequence) || unsynced {
                return;
            }
            let Some(dva) = pointer.dvas().next() else { return };
            if !seen.insert((dva.vdev, dva.offset)) {
                outcome
                    .findings
                    .push(Finding::malformed(Some(at), "the intent log leads back to itself".to_owned()));
                return;
            }
            let visit = Visit { pointer, at, scope };
            let block = (pointer, at);
            let examined = self.pool.io().examine(&[block], |_| true).await.pop().unwrap_or_default();
            outcome.counts.add(&pointer);
            self.claim(&visit, &examined.gang, outcome);
            self.progress.done.fetch_add(pointer.asize(), std::sync::atomic::Ordering::Relaxed);
            outcome.thin += u64::from(examined.thin);
            let Some(raw) = examined.raw else {
                if header.claim_txg != 0 && words.sequence < header.claim_block_seq {
                    let what = "a block of the claimed intent log cannot be read".to_owned();
                    let evidence = examined.evidence;
                    outcome.findings.push(Finding {
                        kind: Kind::Lost,
                        at: Some(at),
                        block_bytes: 0,
                        what,
                        evidence,
                    });
                }
                return;
            };
            if !examined.evidence.is_empty() {
                let what = "a copy is wrong, the data is intact".to_owned();
                let evidence = examined.evidence;
                outcome.findings.push(Finding {
                    kind: Kind::Repairable,
                    at: Some(at),
                    block_bytes: 0,
                    what,
                    evidence,
                });
            }
            let Some(format) = Format::from_checksum_id(pointer.checksum_id()) else { return };
            let Ok(block) = Block::decode(&raw, format, pointer.order()) else { return };
            if !self.log_records(scope, header, &block, outcome) || !block.continues(words) {
                return;
            }
            pointer = block.next;
        }
    }

    /// Blocks that were written outside the log and wait for its replay. False at the end of the claim.
    fn log_records(&self, scope: u32, header: &Header, block: &Block<'_>, outcome: &mut Outcome) -> bool {
        for record in block.records() {
            let Ok(record) = record else { return false };
            if !header.admits_record(record.sequence) {
                return false;
            }
            let Body::Write { object, data: WriteData::Indirect(pointer), .. } = record.body else {
                continue;
            };
            let is_data = pointer.level() == 0 && object != 0;
            if header.claim_txg != 0 && pointer.birth() >= header.claim_txg && !pointer.is_hole() && is_data {
                let objset = self.scopes[scope as usize].objset;
                let at = Bookmark { objset, object, level: LEVEL_LOG, blkid: record.sequence };
                outcome.visits.push(Visit { pointer, at, scope });
            }
        }
        true
    }
}
