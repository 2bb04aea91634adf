//! Which blocks a pool has: from each block of metadata to the pointers in it.
//!
//! ```text
//!   uberblock ─▶ MOS ─▶ every object of it
//!                  └─ every object that is a dataset or snapshot ─▶ its object set, blocks born after
//!                     the previous snapshot only: each block of the pool is met exactly once
//! ```
//!
//! The step from a block to its children is a plain function, [`expand`], without I/O and without a stack:
//! whoever drives the walk decides the order, reads many blocks at a time, and guards against trees that
//! lead back to themselves. The first pointers, and lists of blocks that are on their way to be freed, are
//! found by [`Scopes::read`] and [`pending_frees`].
//!
//! Not here: reading blocks (`io`), the intent log's chains (`zil`). Facts: docs/format/dmu.md §1–§3,
//! docs/format/mos.md §6, §8.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    blkptr::BlkPtr,
    bpobj::{BpobjEntry, BpobjPhys, BptreeEntry, BptreePhys},
    dnode::{Dnode, ObjectType, SLOT_BYTES},
    dsl::DatasetPhys,
    objset::ObjsetPhys,
    zil,
};

use crate::{
    BoxFuture, Pool,
    dmu::{ObjectSet, ReadError, Run},
    import::words,
    io::Bookmark,
    zap::Zap,
};

/// Unreadable places in the object directory after which the rest of it is not looked at.
const FAILURES_MAX: usize = 10_000;
/// Level of an object set block in a bookmark.
pub const LEVEL_OBJSET: i64 = -1;
/// Level of intent log blocks.
pub const LEVEL_LOG: i64 = -2;
/// Block id of a spill block.
pub const SPILL: u64 = u64::MAX;
/// Lists of blocks read for one list that includes others.
const LISTS_MAX: usize = 1 << 20;
/// Destroyed datasets that may wait to be freed.
const DESTROYED_MAX: u64 = 1 << 20;
/// Largest list of sub-lists read, in bytes.
const SUBLISTS_MAX: u64 = 64 << 20;

/// A part of the pool that is walked as one: the MOS, a dataset, a snapshot, or what is left of a
/// destroyed dataset.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Object number of the dataset in the MOS; 0 for the MOS itself.
    pub objset: u64,
    /// Pointer to its object set.
    pub root: BlkPtr,
    /// Blocks born in this txg or before belong to an earlier snapshot.
    pub after: u64,
    /// It is a snapshot, whose intent log is not alive.
    pub is_snapshot: bool,
    /// What is left of a destroyed dataset: nothing else refers to it.
    pub is_destroyed: bool,
    /// Everything before this block was freed already: object and first block id of level 0. Of object 0, the blocks of
    /// dnodes, also all that this one leads to.
    pub resume: Option<Bookmark>,
}

/// A block met on the way.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Where it is.
    pub pointer: BlkPtr,
    /// Which block it is.
    pub at: Bookmark,
    /// Index of its [`Scope`].
    pub scope: u32,
}

/// What a walk of the whole pool starts from.
#[derive(Debug, Default)]
pub struct Scopes {
    /// The MOS first.
    pub all: Vec<Scope>,
    /// Structures that could not be read while they were collected; what is below them is not walked.
    pub failures: Vec<ReadError>,
}

/// What [`expand`] found.
#[derive(Debug, Default)]
pub struct Children {
    /// Pointers, in order; neither holes nor blocks of earlier snapshots.
    pub visits: Vec<Visit>,
    /// Header of the intent log, in the object set block of a live dataset.
    pub log: Option<zil::Header>,
    /// What is malformed in the block.
    pub flaws: Vec<(Bookmark, String)>,
}

impl Scopes {
    /// The MOS, all datasets and snapshots in it, and what destroyed datasets left.
    pub fn read(pool: &Pool) -> BoxFuture<'_, Self> {
        Box::pin(async move {
            let root = pool.uberblock().rootbp;
            let mos_scope =
                Scope { objset: 0, root, after: 0, is_snapshot: false, is_destroyed: false, resume: None };
            let mut scopes = Self { all: vec![mos_scope], failures: Vec::new() };
            let mut objects = pool.mos().objects();
            loop {
                let found = match objects.next().await {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(error) => {
                        scopes.failures.push(error);
                        // A forged tree of dnodes may repeat one bad block without end.
                        if scopes.failures.len() >= FAILURES_MAX {
                            break;
                        }
                        continue;
                    }
                };
                tokio::task::coop::consume_budget().await;
                if found.dnode.bonus_type != ObjectType::DSL_DATASET {
                    continue;
                }
                let at = Bookmark { object: found.number, ..Bookmark::default() };
                match DatasetPhys::decode(&found.dnode.bonus, found.order) {
                    Ok(phys) => scopes.all.push(Scope {
                        objset: found.number,
                        root: phys.bp,
                        after: phys.prev_snap_txg,
                        is_snapshot: phys.is_snapshot(),
                        is_destroyed: false,
                        resume: None,
                    }),
                    Err(error) => scopes.failures.push(ReadError::malformed(at)(error)),
                }
            }
            if let Err(error) = scopes.add_destroyed(pool).await {
                scopes.failures.push(error);
            }
            scopes
        })
    }

    /// Datasets whose destruction goes on in the background.
    async fn add_destroyed(&mut self, pool: &Pool) -> Result<(), ReadError> {
        let Some(number) = pool.directory().get_u64("bptree_obj").await? else { return Ok(()) };
        let object = pool.mos().object(number).await?;
        let at = object.bookmark(0, 0);
        let tree = BptreePhys::decode(&object.dnode().bonus, object.bonus_order())
            .map_err(ReadError::malformed(at))?;
        let bytes = BptreeEntry::BYTES as u64;
        let end = tree.end.min(object.bytes() / bytes);
        // An object of holes costs nothing to forge and has any number of entries.
        if end.saturating_sub(tree.begin) > DESTROYED_MAX {
            let limit = DESTROYED_MAX * bytes;
            return Err(ReadError::TooLarge { objset: 0, object: number, limit });
        }
        for index in tree.begin..end {
            let data = object.read(index.saturating_mul(bytes), BptreeEntry::BYTES).await?;
            let order = match object.read_block(index.saturating_mul(bytes) / object.block_bytes()).await {
                Ok(block) => block.order,
                Err(error) => return Err(error),
            };
            let entry = BptreeEntry::decode(&data, order).map_err(ReadError::malformed(at))?;
            let [objset, object, level, blkid] = entry.resume;
            let resume = Bookmark { objset, object, level: level.cast_signed(), blkid };
            self.all.push(Scope {
                objset,
                root: entry.objset,
                after: entry.birth_txg,
                is_snapshot: true,
                is_destroyed: true,
                resume: (entry.resume != [0; 4]).then_some(resume),
            });
        }
        Ok(())
    }

    /// The pointers to the object sets themselves.
    #[must_use]
    pub fn roots(&self) -> Vec<Visit> {
        let visit = |(index, scope): (usize, &Scope)| {
            let at = Bookmark { objset: scope.objset, object: 0, level: LEVEL_OBJSET, blkid: 0 };
            let visit = Visit { pointer: scope.root, at, scope: u32::try_from(index).ok()? };
            scope.concerns(&scope.root).then_some(visit)
        };
        self.all.iter().enumerate().filter_map(visit).collect()
    }
}

impl Scopes {
    /// Live datasets that were not written since their last snapshot, by index: all their blocks are the
    /// snapshot's, but the intent log that the shared object set block names is theirs.
    #[must_use]
    pub fn unchanged(&self) -> Vec<u32> {
        let is_unchanged = |scope: &Scope| {
            !scope.is_snapshot && scope.objset != 0 && !scope.root.is_hole() && !scope.concerns(&scope.root)
        };
        let found = self.all.iter().enumerate().filter(|(_, scope)| is_unchanged(scope));
        found.filter_map(|(index, _)| u32::try_from(index).ok()).collect()
    }
}

impl Scope {
    /// Whether a pointer belongs to this scope: not a hole, and not of an earlier snapshot.
    #[must_use]
    pub fn concerns(&self, pointer: &BlkPtr) -> bool {
        // What was rewritten keeps its logical birth in another place, of which no earlier snapshot knows.
        let birth = pointer.birth().max(pointer.space_birth());
        !pointer.is_hole() && !pointer.is_redacted() && birth > self.after
    }

    /// Whether everything below this block was freed before the destruction of the dataset was interrupted.
    /// `last` is the last data block below it.
    fn is_past(&self, object: u64, last: u64) -> bool {
        const DNODES: u64 = 32;
        let Some(resume) = self.resume else { return false };
        match object {
            // It stopped at a block of dnodes, to which nothing belongs any more but itself.
            0 if resume.object == 0 => last < resume.blkid,
            _ if resume.object == 0 => object / DNODES <= resume.blkid,
            // Blocks of dnodes are freed right after the last object in them.
            0 => last.saturating_add(1).saturating_mul(DNODES) <= resume.object,
            _ if object == resume.object => resume.level == 0 && last < resume.blkid,
            _ => object < resume.object,
        }
    }
}

impl Visit {
    /// Whether the block holds pointers, so that its content is needed to go on.
    #[must_use]
    pub fn has_children(&self) -> bool {
        self.pointer.level() > 0 || self.at.level == LEVEL_OBJSET || self.is_dnodes()
    }

    /// A block of dnodes: data of the meta dnode.
    fn is_dnodes(&self) -> bool {
        self.at.object == 0 && self.at.level == 0 && self.pointer.object_type() == ObjectType::DNODE
    }
}

/// The pointers in `content`, the decompressed bytes of `visit`.
#[must_use]
pub fn expand(visit: &Visit, scope: &Scope, content: &[u8]) -> Children {
    let mut children = Children::default();
    let order = visit.pointer.order();
    if visit.pointer.level() > 0 {
        expand_indirect(visit, scope, content, order, &mut children);
    } else if visit.at.level == LEVEL_OBJSET {
        expand_objset(visit, scope, content, order, &mut children);
    } else if visit.is_dnodes() {
        expand_dnodes(visit, scope, content, order, &mut children);
    }
    children
}

fn expand_indirect(visit: &Visit, scope: &Scope, content: &[u8], order: Order, children: &mut Children) {
    let (fanout, level) = (content.len() / BlkPtr::BYTES, visit.pointer.level() - 1);
    for index in 0..fanout {
        let blkid = visit.at.blkid.saturating_mul(fanout as u64).saturating_add(index as u64);
        let at = Bookmark { level: i64::from(level), blkid, ..visit.at };
        match BlkPtr::decode_at(content, index, order) {
            Ok(pointer) if pointer.is_hole() => {}
            Ok(pointer) if pointer.level() != level => {
                children.flaws.push((
                    at,
                    "the block pointer is of another level than its place in the tree".to_owned(),
                ));
            }
            Ok(pointer) => children.add(visit, scope, pointer, at, fanout as u64),
            Err(error) => children.flaws.push((visit.at, error.to_string())),
        }
    }
}

fn expand_objset(visit: &Visit, scope: &Scope, content: &[u8], order: Order, children: &mut Children) {
    let set = match ObjsetPhys::decode(content, order) {
        Ok(set) => set,
        Err(error) => return children.flaws.push((visit.at, error.to_string())),
    };
    children.add_dnode(visit, scope, 0, &set.meta_dnode);
    // The numbers OpenZFS gives these objects.
    for (number, dnode) in
        [(u64::MAX, &set.user_used), (u64::MAX - 1, &set.group_used), (u64::MAX - 2, &set.project_used)]
    {
        if let Some(dnode) = dnode {
            children.add_dnode(visit, scope, number, dnode);
        }
    }
    if !scope.is_snapshot && scope.objset != 0 {
        match zil::Header::decode(&set.zil_header, order) {
            Ok(header) => children.log = (!header.log.is_hole()).then_some(header),
            Err(error) => children.flaws.push((visit.at, error.to_string())),
        }
    }
}

fn expand_dnodes(visit: &Visit, scope: &Scope, content: &[u8], order: Order, children: &mut Children) {
    let slots = content.len() / SLOT_BYTES;
    let mut slot = 0;
    while slot < slots {
        let rest = &content[slot * SLOT_BYTES..];
        let number = visit.at.blkid.saturating_mul(slots as u64).saturating_add(slot as u64);
        match Dnode::decode(rest, order) {
            Ok(Some(dnode)) => children.add_dnode(visit, scope, number, &dnode),
            Ok(None) => {}
            Err(error) => children.flaws.push((visit.at, format!("object {number}: {error}"))),
        }
        slot += Dnode::slots_at(rest).max(1);
    }
}

impl Children {
    fn add_dnode(&mut self, visit: &Visit, scope: &Scope, object: u64, dnode: &Dnode) {
        let level = dnode.levels.saturating_sub(1);
        let fanout = dnode.fanout().entries();
        for (index, pointer) in dnode.blkptrs.iter().enumerate() {
            let at = Bookmark { objset: scope.objset, object, level: i64::from(level), blkid: index as u64 };
            if pointer.is_hole() {
                continue;
            }
            if pointer.level() != level {
                self.flaws.push((
                    at,
                    "the block pointer is of another level than its place in the tree".to_owned(),
                ));
                continue;
            }
            self.add(visit, scope, *pointer, at, fanout);
        }
        if let Some(spill) = dnode.spill {
            let at = Bookmark { objset: scope.objset, object, level: 0, blkid: SPILL };
            if spill.level() == 0 {
                self.add(visit, scope, spill, at, fanout);
            } else {
                self.flaws.push((at, "the spill block's pointer is not of level 0".to_owned()));
            }
        }
    }

    fn add(&mut self, visit: &Visit, scope: &Scope, pointer: BlkPtr, at: Bookmark, fanout: u64) {
        if !scope.concerns(&pointer) {
            return;
        }
        let below = fanout.checked_pow(u32::from(pointer.level())).unwrap_or(u64::MAX);
        let first = at.blkid.saturating_mul(below);
        if scope.is_past(at.object, first.saturating_add(below - 1)) {
            return;
        }
        let child = Visit { pointer, at, scope: visit.scope };
        if pointer.is_embedded() && child.has_children() {
            // OpenZFS never embeds these; following them would let 112 bytes stand for millions of blocks.
            self.flaws.push((at, "a block of metadata is embedded in its pointer".to_owned()));
            return;
        }
        self.visits.push(child);
    }
}

/// Calls `each` for every block that is allocated only because freeing it is not finished: `sync_bplist`,
/// `free_bpobj`, and lists of destroyed clones.
///
/// # Errors
/// A list cannot be read; what is behind it is missing.
pub async fn pending_frees(pool: &Pool, mut each: impl FnMut(&BlkPtr)) -> Result<(), ReadError> {
    for name in ["sync_bplist", "free_bpobj"] {
        if let Some(object) = pool.directory().get_u64(name).await? {
            list(pool.mos(), object, &mut |entry| each(&entry.blkptr)).await?;
        }
    }
    let Some(deleted) = pool.directory().get_u64("com.delphix:deleted_clones").await? else { return Ok(()) };
    for (_, livelist) in Zap::open_in(pool.mos(), deleted).await?.numbers().await? {
        for (_, sublist) in Zap::open_in(pool.mos(), livelist).await?.numbers().await? {
            // A block that was allocated and freed again is in the list twice.
            let mut live = std::collections::BTreeMap::new();
            let mut freed = BTreeSet::new();
            list(pool.mos(), sublist, &mut |entry: &BpobjEntry| {
                let Some(dva) = entry.blkptr.dvas().next() else { return };
                let key = (dva.vdev, dva.offset, entry.blkptr.birth());
                if entry.freed {
                    freed.insert(key);
                } else {
                    live.insert(key, entry.blkptr);
                }
            })
            .await?;
            live.iter().filter(|(key, _)| !freed.contains(key)).for_each(|(_, pointer)| each(pointer));
        }
    }
    Ok(())
}

/// The entries of a list of blocks and of all lists it includes.
async fn list(mos: &ObjectSet, object: u64, each: &mut impl FnMut(&BpobjEntry)) -> Result<(), ReadError> {
    let mut seen = BTreeSet::new();
    // A set: many lists may name the same sub-lists, and what waits must not grow with each of them.
    let mut todo = BTreeSet::from([object]);
    while let Some(number) = todo.pop_last() {
        if !seen.insert(number) {
            continue;
        }
        let object = mos.object(number).await?;
        let at = object.bookmark(0, 0);
        let phys = BpobjPhys::decode(&object.dnode().bonus, object.bonus_order())
            .map_err(ReadError::malformed(at))?;
        let per_block = object.block_bytes() / BlkPtr::BYTES as u64;
        let blocks = phys.blkptrs.div_ceil(per_block.max(1)).min(object.max_block_id().saturating_add(1));
        let mut runs = object.runs(0, 0..blocks);
        while let Some(run) = runs.next().await? {
            let Run::Block { blkid, pointer } = run else { continue };
            let content = object.source().read(&pointer, object.bookmark(0, blkid)).await?;
            let left = phys.blkptrs.saturating_sub(blkid.saturating_mul(per_block)).min(per_block);
            for index in 0..left as usize {
                let entry = BpobjEntry::decode_at(&content, index, pointer.order());
                let entry = entry.map_err(ReadError::malformed(object.bookmark(0, blkid)))?;
                if !entry.blkptr.is_hole() {
                    each(&entry);
                }
            }
        }
        if phys.subobjs != 0 {
            let sublists = words(mos, phys.subobjs, SUBLISTS_MAX).await?;
            let count = usize::try_from(phys.subobj_count).unwrap_or(usize::MAX);
            for number in sublists.into_iter().take(count).filter(|&number| number != 0) {
                if seen.len() + todo.len() > LISTS_MAX {
                    return Err(ReadError::Inconsistent {
                        at,
                        what: "the list of blocks includes too many others",
                    });
                }
                if !seen.contains(&number) {
                    todo.insert(number);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ondisk::blkptr::{Dva, Stored};

    use super::*;

    /// `zfs rewrite -P`: the head has a place of its own that the snapshot does not know, under the birth it had.
    #[test]
    fn a_block_that_was_rewritten_after_a_snapshot_is_the_heads() {
        let stored = BlkPtr::stored(&Stored {
            dvas: [Dva { vdev: 0, offset: 0, asize: 4096, gang: false }, Dva::default(), Dva::default()],
            lsize: 4096,
            psize: 4096,
            compression_id: 2,
            checksum_id: 7,
            object_type: ObjectType::ZVOL,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: 10,
            physical_birth: 30,
            fill: 1,
            checksum: [1; 4],
        })
        .unwrap();
        let head = |after| Scope {
            objset: 5,
            root: BlkPtr::EMPTY,
            after,
            is_snapshot: false,
            is_destroyed: false,
            resume: None,
        };
        assert!(head(9).concerns(&stored));
        // A later physical birth alone is that of an ordinary block.
        assert!(!head(20).concerns(&stored));
        let mut words = *stored.words();
        words[7] |= 1 << 63;
        let rewritten = BlkPtr::from_words(words).unwrap();
        assert!(rewritten.is_rewritten());
        assert!(head(20).concerns(&rewritten));
        assert!(!head(30).concerns(&rewritten));
    }
}
