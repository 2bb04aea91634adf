//! The walk over the metadata of one committed state: every block that leads to others is read (and examined, the first
//! time), every block that does not is put among those that wait.
//!
//! ```text
//!   roots ─▶ high: object sets, dnodes, pointers to pointers ─▶ low: pointers to data ─▶ waiting
//!              a few at a time: each has many children            many at a time
//! ```
//!
//! What is read together is read in the order of the devices. Memory is bounded: while there is much in `low`, nothing
//! is taken from `high`.
//!
//! The state is pinned, so that nothing in it is overwritten meanwhile. If the pin gives way, what was found so far is
//! of no use and the walk begins again later.

use std::sync::Arc;

use ondisk::{blkptr::BlkPtr, zil::Header};
use pool::{
    Bookmark, Pool,
    dmu::ObjectSet,
    io::Examined,
    traverse::{LEVEL_LOG, Scopes, Visit, expand},
    zil::{self, Chain},
};

use super::{
    run::{Ended, Pass},
    state::Position,
};
use crate::{
    alloc::Pin,
    devices::{Absent, comings_and_goings},
    events::ScanKind,
};

/// Pointers to data read at a time.
const LOW_BATCH: usize = 1024;
/// That many wait before they are read, so that neighbours meet.
const LOW_MAX: usize = 16 << 10;
/// Children that one batch of `high` may have.
const CHILDREN_MAX: u64 = 64 << 10;
/// Children of an object set or a block of dnodes, roughly.
const DNODES: u64 = 64;

struct Walk<'a> {
    pass: &'a Arc<Pass>,
    view: &'a Arc<Pool>,
    pin: &'a Pin,
    position: Position,
    scopes: Scopes,
    high: Vec<Visit>,
    low: Vec<Visit>,
}

/// Walks everything. Data before the position is passed over.
pub(super) async fn walk(
    pass: &Arc<Pass>,
    view: &Arc<Pool>,
    pin: &Pin,
    position: Position,
) -> Result<(), Ended> {
    let scopes = Scopes::read(view).await;
    pass.unlisted(view, &scopes.failures).await?;
    let mut walk = Walk { pass, view, pin, position, scopes, high: Vec::new(), low: Vec::new() };
    walk.check()?;
    for visit in walk.scopes.roots() {
        walk.meet(visit);
    }
    for scope in walk.scopes.unchanged() {
        walk.log_of_unchanged(scope).await?;
    }
    loop {
        walk.check()?;
        let batch = if walk.high.is_empty() || walk.low.len() >= LOW_MAX {
            if walk.low.is_empty() {
                return Ok(());
            }
            walk.low.sort_unstable_by_key(|visit| std::cmp::Reverse(place(&visit.pointer)));
            let from = walk.low.len().saturating_sub(LOW_BATCH);
            walk.low.split_off(from)
        } else {
            let mut children = 0;
            let mut batch = Vec::new();
            while children < CHILDREN_MAX
                && let Some(visit) = walk.high.pop()
            {
                children += if visit.pointer.level() > 0 {
                    visit.pointer.lsize() / BlkPtr::BYTES as u64
                } else {
                    DNODES
                };
                batch.push(visit);
            }
            batch
        };
        walk.open(batch).await?;
    }
}

/// First address.
fn place(pointer: &BlkPtr) -> (u64, u32) {
    pointer.dvas().next().map_or((0, 0), |dva| (dva.offset, dva.vdev))
}

impl Walk<'_> {
    fn check(&self) -> Result<(), Ended> {
        if !self.pass.goes_on() {
            return Err(Ended::Interrupted);
        }
        if self.pin.is_broken() || (self.pass.ground.is_suspended)() {
            return Err(Ended::Later);
        }
        Ok(())
    }

    /// The same after something was read; who is absent.
    async fn check_read(
        &self,
        stood: u64,
        blocks: &[(BlkPtr, Bookmark)],
        answers: &[Examined],
    ) -> Result<Absent, Ended> {
        let absent = self.pass.absent(self.view, stood, blocks, answers).await.ok_or(Ended::Later)?;
        self.check()?;
        Ok(absent)
    }

    /// Whether the scan is about this block itself.
    fn concerns(&self, pointer: &BlkPtr) -> bool {
        let run = &self.pass.run;
        let birth = pointer.physical_birth();
        match run.kind {
            _ if pointer.is_embedded() || birth > run.max => false,
            ScanKind::Scrub => birth > run.min,
            ScanKind::Resilver => self.view.io().is_lacking(pointer),
        }
    }

    /// A pointer was found.
    fn meet(&mut self, visit: Visit) {
        let pointer = &visit.pointer;
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        // No child is younger than its parent. Either birth may be the later one: of what was cloned the logical one, of
        // what was rewritten the physical one.
        if visit.has_children() {
            if pointer.birth().max(pointer.physical_birth()) <= self.pass.run.min {
                return;
            }
            let is_low = pointer.level() == 1 && visit.at.object != 0;
            if is_low { &mut self.low } else { &mut self.high }.push(visit);
        } else if place(pointer) >= self.position.key && self.concerns(pointer) {
            self.offer(pointer, visit.at);
        }
    }

    fn offer(&self, pointer: &BlkPtr, at: Bookmark) {
        if let Some(waiting) = self.pass.ground.scans.waiting.get() {
            waiting.offer(pointer, at);
            self.pass.update(|run| run.counts.scanned += pointer.asize());
        }
    }

    /// Reads blocks of metadata, and meets their children.
    async fn open(&mut self, mut batch: Vec<Visit>) -> Result<(), Ended> {
        batch.sort_unstable_by_key(|visit| place(&visit.pointer));
        let (mut examined, mut opened) = (Vec::new(), Vec::new());
        for visit in batch {
            let all = !self.position.metadata && self.concerns(&visit.pointer);
            if all { &mut examined } else { &mut opened }.push(visit);
        }
        let mut contents: Vec<(Visit, Option<bytes::Bytes>)> = Vec::new();
        self.examine(examined, &mut contents).await?;
        let mut unread = Vec::new();
        for visit in opened {
            match self.view.io().peek(&visit.pointer) {
                Some(content) => contents.push((visit, Some(content))),
                None => unread.push(visit),
            }
        }
        let blocks: Vec<(BlkPtr, Bookmark)> = unread.iter().map(|visit| (visit.pointer, visit.at)).collect();
        let stood = comings_and_goings(&self.view.tree());
        let answers = self.view.io().examine_for_scan(&blocks, self.pass.how(true)).await;
        let absent = self.check_read(stood, &blocks, &answers).await?;
        for (visit, outcome) in unread.into_iter().zip(answers) {
            if let Some(why) = &outcome.lost {
                self.pass.lost(self.view, &visit.pointer, visit.at, why, &absent).await;
            }
            contents.push((visit, self.content(&visit, outcome.raw)));
        }
        let mut logs = Vec::new();
        for (visit, content) in contents {
            let Some(content) = content else { continue };
            let children = expand(&visit, &self.scopes.all[visit.scope as usize], &content);
            for (at, what) in children.flaws {
                tracing::warn!(%at, what, "a scan met metadata that makes no sense");
            }
            for child in children.visits {
                self.meet(child);
            }
            self.pass.make_room().await?;
            logs.extend(children.log.map(|header| (visit.scope, header)));
            tokio::task::coop::consume_budget().await;
        }
        for (scope, header) in logs {
            self.log(scope, &header).await?;
        }
        Ok(())
    }

    /// Reads all copies, and repairs them.
    async fn examine(
        &mut self,
        visits: Vec<Visit>,
        contents: &mut Vec<(Visit, Option<bytes::Bytes>)>,
    ) -> Result<(), Ended> {
        let blocks: Vec<(BlkPtr, Bookmark)> = visits.iter().map(|visit| (visit.pointer, visit.at)).collect();
        if blocks.is_empty() {
            return Ok(());
        }
        let stood = comings_and_goings(&self.view.tree());
        let mut answers = self.view.io().examine_for_scan(&blocks, self.pass.how(false)).await;
        self.pass.ground.scans.look_at(&self.view.tree());
        let absent = self.check_read(stood, &blocks, &answers).await?;
        // Only now is it known that what was read is what was to be read; and so it stays until it is repaired.
        let Some(_firm) = self.pin.firm() else { return Err(Ended::Later) };
        for (visit, outcome) in visits.into_iter().zip(&mut answers) {
            contents.push((visit, self.content(&visit, outcome.raw.take())));
        }
        self.pass.conclude(self.view, &blocks, answers, &absent).await;
        let bytes = blocks.iter().map(|(bp, _)| bp.asize()).sum::<u64>();
        self.pass.update(|run| {
            run.counts.scanned += bytes;
            run.counts.issued += bytes;
        });
        Ok(())
    }

    fn content(&self, visit: &Visit, raw: Option<bytes::Bytes>) -> Option<bytes::Bytes> {
        match self.view.io().content(&visit.pointer, raw?) {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::warn!(at = %visit.at, %error, "a scan met metadata that makes no sense");
                None
            }
        }
    }

    /// The log of a dataset whose object set block belongs to its snapshot.
    async fn log_of_unchanged(&mut self, scope: u32) -> Result<(), Ended> {
        let pool::traverse::Scope { objset, root, .. } = self.scopes.all[scope as usize];
        let set = match ObjectSet::open(self.view.io().clone(), objset, root).await {
            Ok(set) => set,
            Err(error) => return self.pass.unlisted(self.view, &[error]).await,
        };
        match Header::decode(&set.phys().zil_header, root.order()) {
            Ok(header) => self.log(scope, &header).await,
            Err(error) => {
                tracing::warn!(objset, %error, "a scan met metadata that makes no sense");
                Ok(())
            }
        }
    }

    /// Blocks of an intent log that waits for its replay. One that is being written has nothing older than a few
    /// seconds, and every leaf that is there gets all of it.
    async fn log(&mut self, scope: u32, header: &Header) -> Result<(), Ended> {
        if header.claim_txg == 0 || self.position.metadata {
            return Ok(());
        }
        let objset = self.scopes.all[scope as usize].objset;
        let mut chain = Chain::new(objset, header);
        while let Some((pointer, at)) = chain.next() {
            let asked = [(pointer, at)];
            let stood = comings_and_goings(&self.view.tree());
            let mut contents = self.view.io().examine_for_scan(&asked, self.pass.how(false)).await;
            let absent = self.check_read(stood, &asked, &contents).await?;
            let Some(_firm) = self.pin.firm() else { return Err(Ended::Later) };
            let Some(mut outcome) = contents.pop() else { break };
            let block = chain.follow(outcome.raw.take());
            if block.is_none() && !chain.is_cut() {
                break;
            }
            self.pass.conclude(self.view, &asked, vec![outcome], &absent).await;
            let Some(block) = block else { break };
            for record in block.records() {
                if !header.admits_record(record.sequence) {
                    return Ok(());
                }
                if let Some(pointer) = record.indirect().filter(|pointer| zil::is_owned(header, pointer)) {
                    let at = Bookmark { objset, object: 1, level: LEVEL_LOG, blkid: record.sequence };
                    self.meet(Visit { pointer, at, scope });
                }
            }
            self.pass.make_room().await?;
            self.check()?;
        }
        Ok(())
    }
}
