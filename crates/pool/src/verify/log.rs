//! Intent logs: chains of blocks, each naming the next.
//!
//! The last block of a chain was allocated and perhaps never written, so that a block that does not verify
//! is how a log ends and no damage, unless the log was claimed and should go on, or a device did not answer. Which blocks
//! count is as in `zdb`: those of a claimed log up to where the claim ended, and of an unclaimed one those that were
//! allocated in a txg that is on disk. Facts: docs/format/zil.md §2.

use std::sync::Arc;

use bytes::Bytes;
use ondisk::{blkptr::BlkPtr, label::PoolState, zil::Header};

use super::{Finding, Job, Kind, Outcome};
use crate::{
    dmu::{BlockSource, ObjectSet},
    io::Bookmark,
    traverse::{LEVEL_LOG, Scope, Visit},
    zil::{self, Chain, End, LogBlock},
};

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
        let mut chain = Chain::new(objset, header);
        while let Some((pointer, at)) = chain.next() {
            // What no claim has seen and was allocated after the last transaction group is allocated nowhere.
            if header.claim_txg == 0 && pointer.birth() > synced {
                return;
            }
            let examined = self.pool.io().examine(&[(pointer, at)], |_| true).await.pop().unwrap_or_default();
            outcome.counts.add(&pointer);
            self.claim(&Visit { pointer, at, scope }, &examined.gang, outcome);
            self.progress.done.fetch_add(pointer.asize(), std::sync::atomic::Ordering::Relaxed);
            outcome.thin += u64::from(examined.thin);
            let evidence = examined.evidence;
            let (raw, may_be_there) = match examined.raw {
                Some(raw) => (Some(raw), false),
                None => self.unread(&pointer, at).await,
            };
            let block = chain.follow(raw);
            let (kind, what) = match (&block, chain.is_cut()) {
                (None, true) => (Kind::Lost, "a block of the claimed intent log cannot be read"),
                (None, false) if may_be_there => {
                    (Kind::Lost, "whether the intent log goes on cannot be told: its devices do not answer")
                }
                (Some(_), _) if !evidence.is_empty() => {
                    (Kind::Repairable, "a copy is wrong, the data is intact")
                }
                _ => (Kind::Repairable, ""),
            };
            if !what.is_empty() {
                let (at, what) = (Some(at), what.to_owned());
                outcome.findings.push(Finding { kind, at, block_bytes: 0, what, evidence });
            }
            if chain.end() == Some(End::Loop) {
                let what = "the intent log leads back to itself".to_owned();
                outcome.findings.push(Finding::malformed(Some(at), what));
            }
            let Some(block) = block else { return };
            if !self.log_records(scope, header, &block, outcome) {
                return;
            }
        }
    }

    /// What is in a place that gave no block of the log: that after all, or nothing, and then whether there may be one.
    async fn unread(&self, pointer: &BlkPtr, at: Bookmark) -> (Option<Bytes>, bool) {
        let io = self.pool.io();
        match io.read_tentative(pointer, at).await {
            Ok(raw) => (Some(raw), false),
            // What was exported has nothing in its logs that is not in the pool.
            Err(_) if self.pool.label_state() == PoolState::Exported => (None, false),
            Err(error) => (None, zil::may_be_there(io, pointer, &error)),
        }
    }

    /// Blocks that were written outside the log and wait for its replay. False at the end of the claim.
    fn log_records(&self, scope: u32, header: &Header, block: &LogBlock, outcome: &mut Outcome) -> bool {
        for record in block.records() {
            if !header.admits_record(record.sequence) {
                return false;
            }
            if let Some(pointer) = record.indirect().filter(|pointer| zil::is_owned(header, pointer)) {
                let objset = self.scopes[scope as usize].objset;
                let at = Bookmark { objset, object: 1, level: LEVEL_LOG, blkid: record.sequence };
                outcome.visits.push(Visit { pointer, at, scope });
            }
        }
        true
    }
}
