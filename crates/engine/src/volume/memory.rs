//! What is changed in memory: per transaction group, which blocks have which content and which are freed.
//!
//! ```text
//!   newest   txg 12  open       blocks 7, 9      freed 100..200
//!            txg 11  quiescing  blocks 7, 150         the newest group that knows a block decides;
//!   oldest   txg 10  syncing    blocks 3              a block none of them knows is as committed
//! ```
//!
//! * Changes enter in the order of their groups: once something is in a newer group, an older one takes nothing
//!   more, or a later change would be hidden behind an earlier one. The writer then tries again in a newer group.
//! * In one group a block is changed or freed, never both.
//! * A group handed out for syncing is sealed: it stays readable and does not change.
//! * Each group knows what of it the intent log lacks; that it may change even when it is sealed.
//!
//! Groups share nothing but contents (reference counted), so forgetting one is dropping one map.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use block::Segment;
use bytes::Bytes;
use ondisk::blkptr::BlkPtr;
use smallvec::SmallVec;

use super::{
    content::{self, Content},
    ranges::Ranges,
    unlogged::Unlogged,
};
use crate::{write::summed::Summed, zil::records::Batch};

/// Contents that were replaced, to be dropped when no lock is held any more.
pub(super) type Replaced = SmallVec<[Content; 4]>;

/// What one transaction group changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    blocks: BTreeMap<u64, Content>,
    freed: Ranges,
}

#[derive(Debug)]
struct Group {
    txg: u64,
    changes: Arc<Changes>,
    sealed: bool,
    unlogged: Unlogged,
    ahead: Ahead,
}

/// Blocks of a group that the log has written to their places already.
#[derive(Debug, Default)]
struct Ahead {
    /// Content as it is now.
    written: BTreeMap<u64, BlkPtr>,
    /// Changed since: only the log still points there.
    unwanted: Vec<BlkPtr>,
}

impl Ahead {
    /// These blocks have another content from now on.
    fn outdate(&mut self, blocks: Range<u64>) {
        if self.written.is_empty() {
            return;
        }
        let gone: Vec<u64> = self.written.range(blocks).map(|(blkid, _)| *blkid).collect();
        self.unwanted.extend(gone.iter().filter_map(|blkid| self.written.remove(blkid)));
    }
}

/// The changes of all groups that are not on disk, oldest first. At most four exist at once.
#[derive(Debug, Default)]
pub(super) struct Memory {
    groups: Vec<Group>,
}

/// A block as memory knows it.
#[derive(Clone, Debug)]
pub(super) enum Version {
    /// With this content.
    Data(Bytes),
    /// Freed: zeroes.
    Hole,
}

/// Neighbouring blocks of one kind.
#[derive(Clone, Debug)]
pub(super) enum Run {
    /// One block in memory.
    Data(u64, Bytes),
    /// Freed in memory.
    Hole(Range<u64>),
    /// As committed.
    Clean(Range<u64>),
}

impl Memory {
    /// Groups with changes.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether a block is changed in any group.
    pub(super) fn knows(&self, blkid: u64) -> bool {
        self.groups.iter().any(|group| group.changes.knows(blkid))
    }

    /// The newest version of a block; `None` if it is as committed.
    pub(super) fn find(&self, blkid: u64) -> Option<Version> {
        self.groups.iter().rev().find_map(|group| group.changes.find(blkid))
    }

    /// The block at `from` and as many of the same kind as follow it below `end`, which is beyond `from`. Data
    /// comes one block at a time.
    pub(super) fn run(&self, from: u64, end: u64) -> Run {
        let mut end = end;
        for group in self.groups.iter().rev() {
            let Changes { blocks, freed } = &*group.changes;
            let mut following = blocks.range(from..end);
            let mut next = following.next();
            if let Some((blkid, content)) = next
                && *blkid == from
            {
                return Run::Data(from, content.bytes());
            }
            // A freed range has no block of its group in it, so only newer groups cut it short.
            if let Some(until) = freed.end_at(from) {
                return Run::Hole(from..until.min(end));
            }
            if let Some((blkid, _)) = next.take() {
                end = *blkid;
            }
            if let Some(start) = freed.next_after(from) {
                end = end.min(start);
            }
        }
        Run::Clean(from..end)
    }

    /// The runs of a range; `None` if all of it is as committed.
    pub(super) fn runs(&self, blocks: Range<u64>) -> Option<SmallVec<[Run; 4]>> {
        let mut runs = SmallVec::new();
        // The usual request is one block: no need to know how far the next change is.
        if blocks.end - blocks.start == 1 {
            runs.push(match self.find(blocks.start)? {
                Version::Data(content) => Run::Data(blocks.start, content),
                Version::Hole => Run::Hole(blocks),
            });
            return Some(runs);
        }
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.run(at, blocks.end);
            at = run.end();
            runs.push(run);
        }
        match &runs[..] {
            [] | [Run::Clean(_)] => None,
            _ => Some(runs),
        }
    }

    /// The changes of group `txg`, to change in `blocks`. The caller holds the group open, and no newer one has changes.
    fn open(&mut self, txg: u64, blocks: Range<u64>) -> (&mut Changes, &mut Unlogged) {
        let newest = self.groups.last().map_or(0, |newest| newest.txg);
        assert!(newest <= txg, "a change in transaction group {txg} after one in {newest}");
        if newest != txg || self.groups.is_empty() {
            self.groups.push(Group {
                txg,
                changes: Arc::default(),
                sealed: false,
                unlogged: Unlogged::default(),
                ahead: Ahead::default(),
            });
        }
        let last = self.groups.len() - 1;
        let group = &mut self.groups[last];
        // The pair of this is in `seal`: a write that came after it would be acknowledged and lost.
        assert!(!group.sealed, "a change in transaction group {txg}, which is being synced");
        group.ahead.outdate(blocks);
        (Arc::make_mut(&mut group.changes), &mut group.unlogged)
    }

    /// Gives a block this content in group `txg`, of which bytes `within` are new; true if the group had none for
    /// it. The rules of [`open`](Self::open) hold.
    pub(super) fn put(
        &mut self,
        txg: u64,
        blkid: u64,
        content: Content,
        within: Range<usize>,
        replaced: &mut Replaced,
    ) -> bool {
        let (changes, unlogged) = self.open(txg, blkid..blkid + 1);
        // Its being freed may not be logged yet: then the rest of it is news, too.
        let was_freed = !changes.freed.is_empty() && changes.freed.end_at(blkid).is_some();
        unlogged.wrote(blkid, if was_freed { 0..content.len() } else { within });
        changes.put(blkid, content, replaced)
    }

    /// Frees blocks in group `txg`; returns how many had content in it, and whether there is one more range to remember.
    pub(super) fn free(&mut self, txg: u64, blocks: Range<u64>, replaced: &mut Replaced) -> (u64, bool) {
        let (changes, unlogged) = self.open(txg, blocks.clone());
        unlogged.freed(blocks.clone());
        let before = changes.freed.len();
        let gone = changes.free(blocks, replaced);
        (gone, changes.freed.len() > before)
    }

    /// Changes a part of a block if group `txg` has content for it; false if not.
    pub(super) fn patch(
        &mut self,
        txg: u64,
        blkid: u64,
        at: usize,
        data: &[Segment],
        replaced: &mut Replaced,
    ) -> bool {
        if !self.has(txg) {
            return false;
        }
        let (changes, unlogged) = self.open(txg, blkid..blkid + 1);
        let done = changes.patch(blkid, at, data, replaced);
        if done {
            unlogged.wrote(blkid, at..at + content::bytes(data));
        }
        done
    }

    /// Bytes of content that the log lacks, in all groups.
    pub(super) fn unlogged_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.unlogged.bytes()).sum()
    }

    /// Whether the log lacks anything of these blocks.
    pub(super) fn is_unlogged(&self, blocks: &Range<u64>) -> bool {
        self.groups.iter().any(|group| group.unlogged.touches(blocks))
    }

    /// Moves what the log lacks of these blocks (of `block` bytes each) to `batch`, in the order in which it must be
    /// logged. Whole blocks of group `ahead` may be written to their places first.
    pub(super) fn gather(&mut self, blocks: &Range<u64>, block: u64, ahead: Option<u64>, batch: &mut Batch) {
        for group in &mut self.groups {
            if group.unlogged.is_empty() {
                continue;
            }
            let (freed, written) = group.unlogged.take(blocks);
            for range in freed {
                batch.zero(group.txg, range.start * block, (range.end - range.start) * block);
            }
            for (blkid, within) in written {
                let Some(content) = group.changes.blocks.get(&blkid) else { continue };
                if ahead == Some(group.txg) && within.len() as u64 == block {
                    batch.ahead(group.txg, blkid, content.bytes());
                } else {
                    batch.write(
                        group.txg,
                        blkid * block + within.start as u64,
                        content.bytes().slice(within),
                    );
                }
            }
        }
    }

    /// Whether a group newer than `txg` has changes.
    pub(super) fn is_ahead_of(&self, txg: u64) -> bool {
        self.groups.last().is_some_and(|newest| newest.txg > txg)
    }

    pub(super) fn has(&self, txg: u64) -> bool {
        self.groups.iter().any(|group| group.txg == txg)
    }

    /// A block of group `txg`, which somebody holds, was written to its place with this content. If it has another
    /// one by now, only the log needs it.
    pub(super) fn written_ahead(&mut self, txg: u64, blkid: u64, content: &Bytes, to: BlkPtr) {
        let Some(group) = self.groups.iter_mut().find(|group| group.txg == txg) else { return };
        let now = group.changes.blocks.get(&blkid);
        if now.is_some_and(|now| now.is(content)) {
            group.ahead.unwanted.extend(group.ahead.written.insert(blkid, to));
        } else {
            group.ahead.unwanted.push(to);
        }
    }

    /// What of group `txg` was written ahead: blocks that are as they are there, and blocks that nobody wants.
    pub(super) fn ahead(&mut self, txg: u64) -> (BTreeMap<u64, BlkPtr>, Vec<BlkPtr>) {
        let group = self.groups.iter_mut().find(|group| group.txg == txg);
        group
            .map(|group| std::mem::take(&mut group.ahead))
            .map_or_else(Default::default, |ahead| (ahead.written, ahead.unwanted))
    }

    /// Closes group `txg` for changes, and shares what is in it.
    pub(super) fn seal(&mut self, txg: u64) -> Option<Arc<Changes>> {
        let group = self.groups.iter_mut().find(|group| group.txg == txg)?;
        group.sealed = true;
        Some(Arc::clone(&group.changes))
    }

    /// Takes out group `txg` and all before it.
    pub(super) fn forget(&mut self, txg: u64) -> Vec<Arc<Changes>> {
        let kept = self.groups.partition_point(|group| group.txg <= txg);
        self.groups.drain(..kept).map(|group| group.changes).collect()
    }

    /// Forgets what lies at or beyond block `end`. Returns how many blocks each group lost.
    pub(super) fn shrink(&mut self, end: u64) -> Vec<(u64, u64)> {
        let cut = self.groups.iter_mut().map(|group| {
            let changes = Arc::make_mut(&mut group.changes);
            changes.freed.remove(end..u64::MAX);
            group.unlogged.shrink(end);
            group.ahead.outdate(end..u64::MAX);
            (group.txg, changes.blocks.split_off(&end).len() as u64)
        });
        cut.collect()
    }
}

impl Run {
    /// One past its last block.
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Data(blkid, _) => blkid + 1,
            Self::Hole(blocks) | Self::Clean(blocks) => blocks.end,
        }
    }
}

impl Changes {
    fn find(&self, blkid: u64) -> Option<Version> {
        match self.blocks.get(&blkid) {
            Some(content) => Some(Version::Data(content.bytes())),
            None if !self.freed.is_empty() && self.freed.end_at(blkid).is_some() => Some(Version::Hole),
            None => None,
        }
    }

    fn knows(&self, blkid: u64) -> bool {
        self.blocks.contains_key(&blkid) || self.freed.end_at(blkid).is_some()
    }

    /// Gives a block this content; true if the group had none for it.
    pub(super) fn put(&mut self, blkid: u64, content: Content, replaced: &mut Replaced) -> bool {
        if !self.freed.is_empty() {
            self.freed.remove(blkid..blkid + 1);
        }
        let old = self.blocks.insert(blkid, content);
        let new = old.is_none();
        replaced.extend(old);
        new
    }

    /// Changes a part of a block that this group has content for; false if it has none. In place if nobody else
    /// holds the content.
    fn patch(&mut self, blkid: u64, at: usize, data: &[Segment], replaced: &mut Replaced) -> bool {
        let Some(content) = self.blocks.get_mut(&blkid) else { return false };
        replaced.extend(content.patch(at, data));
        true
    }

    /// Frees blocks; returns how many had content in this group.
    pub(super) fn free(&mut self, blocks: Range<u64>, replaced: &mut Replaced) -> u64 {
        let gone: Vec<u64> = self.blocks.range(blocks.clone()).map(|(blkid, _)| *blkid).collect();
        replaced.extend(gone.iter().filter_map(|blkid| self.blocks.remove(blkid)));
        self.freed.insert(blocks);
        gone.len() as u64
    }

    /// The blocks below `end`, ascending.
    pub(super) fn blocks(&self, end: u64) -> Vec<(u64, Summed)> {
        // Nearly always all of them, and there are hundreds of thousands: a list that grows is copied again and again.
        let mut found = Vec::with_capacity(self.blocks.len());
        found.extend(self.blocks.range(..end).map(|(blkid, content)| (*blkid, content.summed())));
        found
    }

    /// The freed ranges below `end`, ascending.
    pub(super) fn freed(&self, end: u64) -> Vec<Range<u64>> {
        self.freed.within(0..end).collect()
    }
}
