//! Freeing what was destroyed, a bounded number of blocks per transaction group, and for a bounded number of reads: of what is
//! sparse each block may have a block of pointers of its own.
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
//!
//! A block of dnodes at which enough was done, named by its first object, is such a place as well, and so is a block that
//! cannot be read just now ([`Stuck`]). What lies below one that can never be read is lost to the pool.
//!
//! Without feature `async_destroy` there is no list of trees, and all of one goes in the transaction group that destroys it. One
//! that is too large for that is counted before, and refused.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use ondisk::{
    blkptr::BlkPtr,
    bpobj::BptreeEntry,
    dnode::{Dnode, Fanout, SLOT_BYTES},
    objset::ObjsetPhys,
};
use pool::{
    BlockError, BlockErrorKind, Bookmark,
    dmu::{BlockSource, ReadError},
    traverse::LEVEL_OBJSET,
};
use tokio::time::Instant;

use super::{
    OpError,
    account::{self, Kind},
};
use crate::{
    BoxFuture, EngineError, devices,
    mos::{bpobj, bptree},
    space::{Deflate, Space},
    suspend::may_pass,
    sync::Syncer,
    write::Parts,
};

/// Entries taken off a list at once.
const BATCH: usize = 512;
/// Blocks, headers of gangs among them, that one transaction group reads for those it frees, and how long it does that where
/// disks are slow: nothing else is committed meanwhile. One disk gives as many in some five seconds.
const PER_TXG: (usize, Duration) = (1024, Duration::from_secs(1));
/// Blocks of pointers read ahead: 2 MiB.
const READ_AHEAD: usize = 16;
/// Blocks of a tree that are given back in one transaction group where no other can go on with it: clients wait for that.
const GIVEN_AT_ONCE: u64 = 4 << 20;
/// Blocks of pointers and dnodes that are read for that: as many as lead to so many blocks where all of them are in use. One disk
/// gives them in some twenty seconds, and of what is sparse, or has small files, many more can lead to far fewer blocks.
const READ_AT_ONCE: usize = 4096;
/// What one of them takes of the memory for what is dirty until it is in space maps, in bytes.
const BYTES_PER_BLOCK: u64 = 128;
/// Pause before a block is read again that could not be read, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// Times that devices which are there may refuse a block: a quarter of an hour.
const TRIES: u32 = 8;

/// A block of a destroyed tree that could not be read, and may be later: nothing behind it is freed before.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    at: Option<BlkPtr>,
    tries: u32,
    again: Option<Instant>,
}

impl Stuck {
    /// How long it is still to be let alone.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let pause = self.again?.saturating_duration_since(Instant::now());
        (!pause.is_zero()).then_some(pause)
    }

    /// A block could not be read; whether it is to be tried again. As long as a device is away that should have it
    /// (`is_away`) it is; if not it is given up at last, as all other destroyed datasets wait behind it.
    fn failed(&mut self, bp: &BlkPtr, is_away: bool) -> bool {
        if self.at != Some(*bp) {
            *self = Self { at: Some(*bp), ..Self::default() };
        }
        if self.tries >= TRIES && !is_away {
            *self = Self::default();
            return false;
        }
        self.again = Some(Instant::now() + PAUSES.0.saturating_mul(1 << self.tries).min(PAUSES.1));
        // One that is back is asked more than once.
        self.tries = if is_away { (self.tries + 1).min(TRIES / 2) } else { self.tries + 1 };
        true
    }
}

/// What may still be done.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// Blocks that are freed, or read for that.
    blocks: usize,
    /// Those that are read.
    reads: usize,
    /// When it ends at the latest.
    until: Option<Instant>,
}

impl Allowance {
    /// Everything.
    const ALL: Self = Self { blocks: usize::MAX, reads: usize::MAX, until: None };

    fn spend(&mut self, freed: usize, read: usize) {
        self.blocks = self.blocks.saturating_sub(freed + read);
        self.reads = self.reads.saturating_sub(read);
    }

    /// Whether nothing more may be read, or freed.
    fn is_used_up(&self) -> bool {
        self.reads == 0 || self.is_over()
    }

    /// Whether not even that may be freed for which nothing is read.
    fn is_over(&self) -> bool {
        self.blocks == 0 || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Frees what is waiting to be freed (free_bpobj and bptree), for which up to `max` blocks are freed or read, and no more
/// are read, and for no longer, than others may wait for; true if something is left.
pub fn free_some<'a>(cx: &'a mut Syncer, max: usize) -> BoxFuture<'a, Result<bool, EngineError>> {
    Box::pin(async move {
        let deflate = cx.out.alloc.deflate().clone();
        let until = Some(Instant::now() + PER_TXG.1);
        let mut left = Allowance { blocks: max, reads: PER_TXG.0, until };
        loop {
            let most = BATCH.min(left.blocks);
            let entries = bpobj::take(&mut cx.mos, cx.places.free_bpobj, &deflate, most).await?;
            if entries.is_empty() {
                break;
            }
            let blocks: Vec<BlkPtr> = entries.iter().map(|entry| entry.blkptr).collect();
            let (mut freed, mut rest) = (Space::ZERO, &blocks[..]);
            while !rest.is_empty() {
                let (some, others) = rest.split_at(cx.out.at_once(rest));
                rest = others;
                let before = cx.out.headers_read();
                cx.out.free_all(some).await?;
                left.spend(some.len(), cx.out.headers_read() - before);
                for bp in some {
                    freed += deflate.space(bp);
                }
                if left.is_used_up() {
                    break;
                }
            }
            // How many headers gangs have is known when they were read.
            if !rest.is_empty() {
                bpobj::append(&mut cx.mos, cx.places.free_bpobj, &deflate, rest).await?;
            }
            account::dir_add(&mut cx.mos, cx.places.free_dir, Kind::Head, -freed).await?;
            if left.is_used_up() {
                return Ok(true);
            }
        }
        while let Some(mut entry) = bptree::first(&mut cx.mos).await? {
            if left.is_used_up() || cx.stuck.pause().is_some() {
                return Ok(true);
            }
            let walked = walk(cx, &entry, left, Way::Portion).await?;
            left = walked.left;
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
    // Nobody would come back for what was left.
    walk(cx, &entry, Allowance::ALL, Way::All).await?;
    Ok(())
}

/// Refuses what is too much for one transaction group to [give back](give_back), if it would have to be done in one. Changes
/// nothing.
pub(super) async fn check(cx: &mut Syncer, root: BlkPtr, since: u64) -> Result<(), OpError> {
    if cx.out.traits().async_destroy || root.is_hole() || root.birth() <= since {
        return Ok(());
    }
    let most = (cx.dirty_max / BYTES_PER_BLOCK).clamp(1, GIVEN_AT_ONCE);
    let entry = BptreeEntry { objset: root, birth_txg: since, resume: [0; 4] };
    // Counting must not take longer than what it is to allow.
    let left = Allowance { blocks: most as usize, reads: READ_AT_ONCE, until: None };
    if walk(cx, &entry, left, Way::Count).await?.stopped.is_none() {
        return Ok(());
    }
    Err(OpError::Refused(format!(
        "more blocks would be freed, or read for that, than fit one transaction group, and only feature async_destroy spreads \
         them over several\n\
         to allow it: 'zpool set feature@async_destroy=enabled {}'; a volume can be made small first ('zfs set volsize=…')",
        cx.name
    )))
}

/// What a walk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To free a part: another walk goes on, and what cannot be read just now is left to it.
    Portion,
    /// To free all at once.
    All,
    /// To count only.
    Count,
}

/// What a walk did.
#[derive(Debug)]
struct Walked {
    freed: Space,
    /// What may be done after it.
    left: Allowance,
    /// Where the next one has to go on: object and block, as in [`Resume`]. None if all is done.
    stopped: Option<(u64, u64)>,
}

/// Frees of a destroyed tree what may be, or counts it.
async fn walk(
    cx: &mut Syncer,
    entry: &BptreeEntry,
    left: Allowance,
    way: Way,
) -> Result<Walked, EngineError> {
    let deflate = cx.out.alloc.deflate().clone();
    let source = cx.out.source();
    let mut walk = Walk {
        cx,
        source,
        deflate,
        since: entry.birth_txg,
        objset: entry.resume[0],
        resume: Resume::of(entry),
        begin: (entry.resume[1], entry.resume[3]),
        way,
        walked: Walked { freed: Space::ZERO, left, stopped: None },
    };
    walk.object_set(&entry.objset).await?;
    Ok(walk.walked)
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
    /// The same as it is in the list.
    begin: (u64, u64),
    way: Way,
    walked: Walked,
}

/// What reading a block came to.
enum Content {
    Here(Bytes),
    /// It, and what is below it, stays allocated.
    Lost,
    /// The walk has to stop.
    NotNow,
}

/// Which block of which object.
#[derive(Clone, Copy, Debug)]
struct Place {
    object: u64,
    level: u8,
    blkid: u64,
    fanout: Fanout,
    /// Dnodes in a block, for the object that holds them.
    dnodes: u64,
}

impl Place {
    /// First and last data block below.
    fn span(&self) -> (u64, u64) {
        let first = self.fanout.first_descendant(self.blkid, self.level);
        (first, first.saturating_add(self.fanout.first_descendant(1, self.level) - 1))
    }

    fn below(&self, index: u64) -> Self {
        let blkid = self.fanout.first_descendant(self.blkid, 1).saturating_add(index);
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

    /// Whether the walk stops before this block, for which something `is_read` or not: of data, of dnodes, as objects without
    /// data are work, too, and a file system may have millions, or of pointers, below which there may be nothing to free. One
    /// that stopped where it began would never end.
    fn has_done_enough(&self, place: &Place, is_read: bool) -> bool {
        let left = &self.walked.left;
        let is_enough = if is_read { left.is_used_up() } else { left.is_over() };
        is_enough && self.stop_at(place) != self.begin
    }

    /// Counts a block that is freed.
    fn count(&mut self, bp: &BlkPtr) {
        self.walked.freed += self.deflate.space(bp);
        self.walked.left.spend(1, 0);
    }

    /// Counts headers of gangs that were read since there had been `before`.
    fn count_headers(&mut self, before: usize) {
        self.walked.left.spend(0, self.cx.out.headers_read() - before);
    }

    async fn free(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        // Embedded blocks have sizes, but no place.
        if bp.space_birth() > self.since {
            self.count(bp);
            if self.way != Way::Count {
                let before = self.cx.out.headers_read();
                self.cx.out.free(bp).await?;
                self.count_headers(before);
            }
        }
        Ok(())
    }

    async fn read(&mut self, bp: &BlkPtr, at: Bookmark) -> Content {
        match self.source.read(bp, at).await {
            Ok(content) => Content::Here(content),
            Err(error) if self.is_stuck(bp, &error) => Content::NotNow,
            Err(_) => Content::Lost,
        }
    }

    /// Frees data blocks in their order; false if the walk has to stop. Where those are that lie in pieces is read side by side,
    /// and all are freed of which it was read: they may have taken all the time there is, and the next walk would read the same.
    async fn data(&mut self, blocks: &[(BlkPtr, Place)]) -> Result<bool, EngineError> {
        let mut rest = blocks;
        while let Some((first, place)) = rest.first() {
            // Who only counts looks up nothing.
            let is_read = first.is_gang() && self.way != Way::Count;
            if self.has_done_enough(place, is_read) {
                self.walked.stopped = Some(self.stop_at(place));
                return Ok(false);
            }
            let count = if is_read { self.cx.out.at_once(rest.iter().map(|(bp, _)| bp)) } else { 1 };
            let (some, others) = rest.split_at(count);
            rest = others;
            let parts = if is_read { self.parts(some).await } else { Vec::new() };
            let mut parts = parts.into_iter();
            for (bp, place) in some {
                if !self.free_data(bp, parts.next().flatten()).await? {
                    self.walked.stopped = Some((place.object, place.blkid));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Where the parts are of those of these blocks that are gangs.
    async fn parts(&mut self, blocks: &[(BlkPtr, Place)]) -> Vec<Option<Parts>> {
        let pointers: Vec<BlkPtr> = blocks.iter().map(|(bp, _)| *bp).collect();
        let before = self.cx.out.headers_read();
        let parts = self.cx.out.parts(&pointers).await;
        self.count_headers(before);
        parts
    }

    /// Frees a data block; false if the walk has to stop.
    async fn free_data(&mut self, bp: &BlkPtr, parts: Option<Parts>) -> Result<bool, EngineError> {
        if bp.space_birth() > self.since {
            let failed = match self.way {
                Way::Count => None,
                Way::Portion | Way::All => self.cx.out.try_free(bp, parts).await?,
            };
            match failed {
                Some(error) if self.is_stuck(bp, &error) => return Ok(false),
                // It stays allocated.
                Some(_) => self.walked.left.spend(0, 1),
                None => self.count(bp),
            }
        }
        Ok(true)
    }

    /// A block cannot be read: whether the walk has to stop until it can be. If not it is lost.
    fn is_stuck(&mut self, bp: &BlkPtr, error: &BlockError) -> bool {
        let is_away = devices::is_away(&self.cx.io.tree(), bp);
        // What others have in a bad state is as it should be on one that is away.
        let may_pass = may_pass(error) || (is_away && *error.kind() == BlockErrorKind::Checksum);
        if self.way == Way::Portion && may_pass && self.cx.stuck.failed(bp, is_away) {
            tracing::debug!(%error, "a destroyed dataset waits to be freed");
            return true;
        }
        self.lost(error);
        false
    }

    /// A destroyed tree is broken: nothing else needs it, so the pool goes on without the space below the break.
    fn lost(&self, error: &impl std::fmt::Display) {
        if self.way != Way::Count {
            tracing::warn!(%error, "space of a destroyed dataset is lost: what led to it cannot be read");
        }
    }

    /// Where a walk goes on that stops before it looked below `place`. Blocks of dnodes are named by their first object.
    fn stop_at(&self, place: &Place) -> (u64, u64) {
        let (first, last) = place.span();
        let is_dnodes = place.object == 0;
        let objects = |blkid: u64| blkid.saturating_mul(place.dnodes);
        // Some of what is below may be free.
        let is_begun = match self.resume {
            Resume::Start => false,
            Resume::Dnodes(blkid) => is_dnodes && (first..=last).contains(&blkid),
            Resume::Data(object, _) if is_dnodes => object >= objects(first),
            Resume::Data(object, blkid) => object == place.object && blkid >= first,
        };
        match is_begun {
            true => self.begin,
            // There is no object 0, and another program takes all zeroes for the beginning of everything.
            false if is_dnodes => (objects(first).max(1), 0),
            false => (place.object, first),
        }
    }

    async fn object_set(&mut self, root: &BlkPtr) -> Result<(), EngineError> {
        let at = Bookmark { objset: self.objset, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        if root.is_hole() || root.birth() <= self.since {
            return Ok(());
        }
        let content = match self.read(root, at).await {
            Content::Here(content) => content,
            Content::Lost => return Ok(()),
            Content::NotNow => {
                self.walked.stopped = Some(self.begin);
                return Ok(());
            }
        };
        let set = match ObjsetPhys::decode(&content, root.order()) {
            Ok(set) => set,
            Err(error) => {
                self.lost(&ReadError::malformed(at)(error));
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
                fanout: dnode.fanout(),
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
                return self.data(&[(bp, place)]).await;
            }
            if self.has_done_enough(&place, true) {
                self.walked.stopped = Some(self.stop_at(&place));
                return Ok(false);
            }
            self.walked.left.spend(0, 1);
            let content = match content {
                Some(content) => Content::Here(content),
                None => self.read(&bp, self.at(&place)).await,
            };
            let content = match content {
                Content::Here(content) => content,
                Content::Lost => return Ok(true),
                Content::NotNow => {
                    self.walked.stopped = Some(self.stop_at(&place));
                    return Ok(false);
                }
            };
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
                    self.lost(&ReadError::malformed(self.at(&place))(error));
                    continue;
                }
            };
            let below = place.below(index as u64);
            if self.concerns(&child, &below) && child.level() == below.level {
                todo.push((child, below));
            }
        }
        if place.level == 1 && place.object != 0 {
            return self.data(&todo).await;
        }
        for chunk in todo.chunks(READ_AHEAD) {
            let asked: Vec<_> = chunk.iter().map(|(bp, place)| (*bp, self.at(place))).collect();
            let contents = self.source.read_many(&asked).await;
            for ((child, below), content) in chunk.iter().zip(contents) {
                if !self.visit(*child, *below, content.ok()).await? {
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
                Err(error) => self.lost(&ReadError::malformed(self.at(&place))(error)),
            }
        }
        Ok(true)
    }
}
