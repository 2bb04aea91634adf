//! Freeing what was destroyed, a bounded number of blocks per transaction group.
//!
//! ```text
//!   free_bpobj   blocks of destroyed snapshots: the list is emptied from its end
//!   bptree       trees of destroyed heads: walked in the order of objects and blocks, each block after all it leads to
//! ```
//!
//! An interrupted walk notes the first data block that is still allocated. Blocks of dnodes and pointers go right
//! after the last block below them, so what lies before that note is free, all of it, and nothing behind is: other
//! software resumes at the same place. Other software may also have stopped at a block of dnodes, with all that its
//! dnodes lead to free ([`Resume::Dnodes`]). Facts: docs/format/mos.md §8.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use ondisk::{
    blkptr::BlkPtr,
    bpobj::BptreeEntry,
    dnode::{Dnode, SLOT_BYTES},
    objset::ObjsetPhys,
};
use pool::{
    Bookmark,
    dmu::{BlockSource, ReadError},
    traverse::LEVEL_OBJSET,
};

use super::account::{self, Kind};
use crate::{
    BoxFuture, EngineError,
    mos::{bpobj, bptree},
    space::{Deflate, Space},
    sync::Syncer,
};

/// Entries taken off a list at once.
const BATCH: usize = 4096;
/// Blocks of pointers read ahead: 2 MiB.
const READ_AHEAD: usize = 16;

/// Frees up to `max` blocks of what is waiting to be freed (free_bpobj and bptree); true if something is left.
pub fn free_some<'a>(cx: &'a mut Syncer, max: usize) -> BoxFuture<'a, Result<bool, EngineError>> {
    Box::pin(async move {
        let deflate = cx.out.alloc.deflate().clone();
        let mut left = max;
        loop {
            let entries = bpobj::take(&mut cx.mos, cx.places.free_bpobj, &deflate, left.min(BATCH)).await?;
            if entries.is_empty() {
                break;
            }
            let mut freed = Space::ZERO;
            for entry in &entries {
                freed += deflate.space(&entry.blkptr);
                cx.out.free(&entry.blkptr).await?;
            }
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, -freed).await?;
            left = left.saturating_sub(entries.len());
            if left == 0 {
                return Ok(true);
            }
        }
        while let Some(mut entry) = bptree::first(&mut cx.mos).await? {
            if left == 0 {
                return Ok(true);
            }
            let walked = walk(cx, &entry, left).await?;
            left = left.saturating_sub(walked.blocks);
            let waiting = bptree::space(&mut cx.mos).await?;
            if let Some((object, blkid)) = walked.stopped {
                entry.resume = [entry.resume[0], object, 0, blkid];
                bptree::progress(&mut cx.mos, walked.freed, Some(&entry)).await?;
                account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, -walked.freed).await?;
                return Ok(true);
            }
            bptree::progress(&mut cx.mos, walked.freed, None).await?;
            // With the last tree everything has come back that ever will: what could not be read is lost.
            let is_last = bptree::first(&mut cx.mos).await?.is_none();
            let freed = if is_last { waiting } else { walked.freed };
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, -freed).await?;
        }
        Ok(false)
    })
}

/// Gives back every block of the tree at `root` that was born after `since`: `space` in all, counted in the head of
/// directory `dir`. Later if the pool can do that, else at once.
pub(super) async fn give_back(
    cx: &mut Syncer,
    root: BlkPtr,
    since: u64,
    space: Space,
    dir: u64,
) -> Result<(), EngineError> {
    if root.is_hole() || root.birth() <= since {
        return Ok(());
    }
    account::dir_add(&mut cx.mos, dir, Kind::Head, -space).await?;
    let entry = BptreeEntry { objset: root, birth_txg: since, resume: [0; 4] };
    if cx.out.traits().async_destroy {
        bptree::push(&mut cx.mos, &entry, space).await?;
        return account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, space).await;
    }
    walk(cx, &entry, usize::MAX).await?;
    Ok(())
}

/// What a walk did.
#[derive(Debug)]
struct Walked {
    freed: Space,
    blocks: usize,
    /// First data block that was left: object and block. None if all is done.
    stopped: Option<(u64, u64)>,
}

/// Frees up to `max` blocks of a destroyed tree.
async fn walk(cx: &mut Syncer, entry: &BptreeEntry, max: usize) -> Result<Walked, EngineError> {
    let deflate = cx.out.alloc.deflate().clone();
    let source = cx.out.source();
    let mut walk = Walk {
        cx,
        source,
        deflate,
        since: entry.birth_txg,
        objset: entry.resume[0],
        resume: Resume::of(entry),
        max,
        walked: Walked { freed: Space::ZERO, blocks: 0, stopped: None },
    };
    walk.object_set(&entry.objset).await?;
    Ok(walk.walked)
}

/// A destroyed tree is broken: nothing else needs it, so the pool goes on without the space below the break.
fn lost(error: &impl std::fmt::Display) {
    tracing::warn!(%error, "space of a destroyed dataset is lost: what led to it cannot be read");
}

/// Where a walk goes on: the first block that is still allocated, in the order in which they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    /// It begins.
    Start,
    /// With this block of dnodes: of those before it nothing is left, and of it nothing but itself.
    Dnodes(u64),
    /// With this data block of this object.
    Data(u64, u64),
}

impl Resume {
    fn of(entry: &BptreeEntry) -> Self {
        match entry.resume {
            [0, 0, 0, 0] => Self::Start,
            // Other software names no object set here, so not even block 0 is the beginning: its dnodes are done with.
            [_, 0, _, blkid] => Self::Dnodes(blkid),
            [_, object, _, blkid] => Self::Data(object, blkid),
        }
    }
}

struct Walk<'a> {
    cx: &'a mut Syncer,
    source: Arc<dyn BlockSource>,
    deflate: Deflate,
    since: u64,
    objset: u64,
    resume: Resume,
    max: usize,
    walked: Walked,
}

/// Which block of which object.
#[derive(Clone, Copy, Debug)]
struct Place {
    object: u64,
    level: u8,
    blkid: u64,
    /// log2 of the pointers in an indirect block.
    fanout_shift: u32,
    /// Dnodes in a block, for the object that holds them.
    dnodes: u64,
}

impl Place {
    /// First and last data block below.
    fn span(&self) -> (u64, u64) {
        let shift = self.fanout_shift.saturating_mul(self.level.into());
        let first = self.blkid.checked_shl(shift).unwrap_or(u64::MAX);
        (first, first.saturating_add(1u64.checked_shl(shift).unwrap_or(0).wrapping_sub(1)))
    }

    fn below(&self, index: u64) -> Self {
        let blkid = (self.blkid << self.fanout_shift.min(63)).saturating_add(index);
        Self { level: self.level - 1, blkid, ..*self }
    }
}

type Step<'a> = Pin<Box<dyn Future<Output = Result<bool, EngineError>> + Send + 'a>>;

impl Walk<'_> {
    /// Whether a pointer is of the tree and what is below it was not freed before.
    fn concerns(&self, bp: &BlkPtr, place: &Place) -> bool {
        if bp.is_hole() || bp.is_redacted() || bp.birth().max(bp.space_birth()) <= self.since {
            return false;
        }
        let (_, last) = place.span();
        let is_dnodes = place.object == 0;
        match self.resume {
            Resume::Start => true,
            // Objects come from blocks of dnodes that are left, or after all of them.
            Resume::Dnodes(blkid) => !is_dnodes || last >= blkid,
            // Blocks of dnodes are gone when all their objects are.
            Resume::Data(object, _) if is_dnodes => {
                last.saturating_add(1).saturating_mul(place.dnodes) > object
            }
            Resume::Data(object, blkid) => place.object > object || (place.object == object && last >= blkid),
        }
    }

    /// Whether nothing is left below this block of dnodes.
    fn is_bare(&self, place: &Place) -> bool {
        place.object == 0 && place.level == 0 && self.resume == Resume::Dnodes(place.blkid)
    }

    async fn free(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        // Embedded blocks have sizes, but no place.
        if bp.space_birth() > self.since {
            self.walked.freed += self.deflate.space(bp);
            self.walked.blocks += 1;
            self.cx.out.free(bp).await?;
        }
        Ok(())
    }

    /// A block's content; none if it cannot be read: its space, and what is below it, stays allocated.
    async fn read(&self, bp: &BlkPtr, at: Bookmark) -> Option<Bytes> {
        match self.source.read(bp, at).await {
            Ok(content) => Some(content),
            Err(error) => {
                lost(&error);
                None
            }
        }
    }

    async fn object_set(&mut self, root: &BlkPtr) -> Result<(), EngineError> {
        let at = Bookmark { objset: self.objset, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        if root.is_hole() || root.birth() <= self.since {
            return Ok(());
        }
        let Some(content) = self.read(root, at).await else { return Ok(()) };
        let set = match ObjsetPhys::decode(&content, root.order()) {
            Ok(set) => set,
            Err(error) => {
                lost(&ReadError::malformed(at)(error));
                return Ok(());
            }
        };
        if !self.object(0, &set.meta_dnode).await? {
            return Ok(());
        }
        for (number, dnode) in
            [(u64::MAX - 2, &set.project_used), (u64::MAX - 1, &set.group_used), (u64::MAX, &set.user_used)]
        {
            if let Some(dnode) = dnode
                && !self.object(number, dnode).await?
            {
                return Ok(());
            }
        }
        self.free(root).await
    }

    /// Frees an object; false if the walk has to stop.
    async fn object(&mut self, object: u64, dnode: &Dnode) -> Result<bool, EngineError> {
        let dnodes = (dnode.data_block_bytes() / SLOT_BYTES as u64).max(1);
        for (index, bp) in dnode.blkptrs.iter().enumerate() {
            let place = Place {
                object,
                level: dnode.levels.saturating_sub(1),
                blkid: index as u64,
                fanout_shift: dnode.entries_shift(),
                dnodes,
            };
            if !self.visit(*bp, place, None).await? {
                return Ok(false);
            }
        }
        if let Some(spill) = &dnode.spill
            && !spill.is_hole()
        {
            self.free(spill).await?;
        }
        Ok(true)
    }

    /// Frees what is below a pointer, then its block; false if the walk has to stop.
    fn visit(&mut self, bp: BlkPtr, place: Place, content: Option<Bytes>) -> Step<'_> {
        Box::pin(async move {
            if !self.concerns(&bp, &place) {
                return Ok(true);
            }
            if self.is_bare(&place) {
                self.free(&bp).await?;
                return Ok(true);
            }
            if place.level == 0 && place.object != 0 {
                if self.walked.blocks >= self.max {
                    self.walked.stopped = Some((place.object, place.blkid));
                    return Ok(false);
                }
                self.free(&bp).await?;
                return Ok(true);
            }
            let content = match content {
                Some(content) => Some(content),
                None => self.read(&bp, self.at(&place)).await,
            };
            let Some(content) = content else { return Ok(true) };
            let done = match place.level {
                0 => self.dnodes(&bp, place, &content).await?,
                _ => self.pointers(&bp, place, &content).await?,
            };
            if done {
                self.free(&bp).await?;
            }
            Ok(done)
        })
    }

    fn at(&self, place: &Place) -> Bookmark {
        let level = i64::from(place.level);
        Bookmark { objset: self.objset, object: place.object, level, blkid: place.blkid }
    }

    async fn pointers(&mut self, bp: &BlkPtr, place: Place, content: &[u8]) -> Result<bool, EngineError> {
        let fanout = content.len() / BlkPtr::BYTES;
        let mut todo = Vec::new();
        for index in 0..fanout {
            let child = match BlkPtr::decode_at(content, index, bp.order()) {
                Ok(child) => child,
                Err(error) => {
                    lost(&ReadError::malformed(self.at(&place))(error));
                    continue;
                }
            };
            let below = place.below(index as u64);
            if self.concerns(&child, &below) && child.level() == below.level {
                todo.push((child, below));
            }
        }
        let leads_on = place.level > 1 || place.object == 0;
        for chunk in todo.chunks(READ_AHEAD) {
            let mut contents = vec![None; chunk.len()];
            if leads_on {
                let asked: Vec<_> = chunk.iter().map(|(bp, place)| (*bp, self.at(place))).collect();
                contents = self.source.read_many(&asked).await.into_iter().map(Result::ok).collect();
            }
            for ((child, below), content) in chunk.iter().zip(contents) {
                if !self.visit(*child, *below, content).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn dnodes(&mut self, bp: &BlkPtr, place: Place, content: &[u8]) -> Result<bool, EngineError> {
        let slots = content.len() / SLOT_BYTES;
        let mut slot = 0;
        while slot < slots {
            let rest = &content[slot * SLOT_BYTES..];
            let number = place.blkid.saturating_mul(place.dnodes).saturating_add(slot as u64);
            slot += Dnode::slots_at(rest).max(1);
            if matches!(self.resume, Resume::Data(object, _) if number < object) {
                continue;
            }
            match Dnode::decode(rest, bp.order()) {
                Ok(Some(dnode)) if !self.object(number, &dnode).await? => return Ok(false),
                Ok(_) => {}
                Err(error) => lost(&ReadError::malformed(self.at(&place))(error)),
            }
        }
        Ok(true)
    }
}
