//! Rewriting the object set of a live dataset, with everything that counts its blocks kept in step.
//!
//! ```text
//!   open ─▶ changes in memory ─▶ commit: blocks born │ blocks killed
//!                                            │       ├─ younger than the last snapshot ─▶ freed
//!                                            │       └─ older ─▶ deadlist: the snapshot's alone from now on
//!                                            └─▶ referenced, unique, directories up to the root, features in use
//! ```
//!
//! Facts: docs/format/mos.md §7 (block_born, block_kill), §11.

use std::collections::BTreeSet;

use ondisk::{blkptr::BlkPtr, dsl::keys, objset::ObjsetType, zil::HEADER_BYTES};

use super::{
    Dirty, SyncedVolume,
    account::{self, Delta, Kind},
    attributes, bookmarks, dataset, dir, log,
    policy::policy,
};
use crate::{
    BoxFuture, EngineError,
    dmu::{Account, MutSet},
    mos::{deadlist, features},
    policy::{SetPolicy, Traits},
    space::{Deflate, Space},
    sync::Syncer,
};

/// The volume's data.
pub(super) const VOLUME_DATA: u64 = 1;
/// The volume's properties.
pub(super) const VOLUME_PROPERTIES: u64 = 2;
/// Counts clones with a livelist.
const LIVELIST: &str = "com.delphix:livelist";

/// A live dataset's object set, open to be changed in this transaction group.
#[derive(Debug)]
pub(crate) struct Edit {
    /// The object set.
    pub(crate) set: Box<MutSet>,
    dataset: u64,
    /// See [`Dirty::copies_max`].
    copies_max: Option<u8>,
}

impl Edit {
    /// Opens the object set of head `dataset`, with its intent log brought up to this transaction group. A log that
    /// waits to be replayed stays as it is.
    pub(crate) async fn open(cx: &mut Syncer, dataset: u64) -> Result<Self, EngineError> {
        let mut edit = Self::open_as_it_is(cx, dataset).await?;
        if log::waits(edit.set.phys()) {
            return Ok(edit);
        }
        let is_foreign = cx.logs.get(dataset).is_none_or(|log| log.takes_over());
        if is_foreign && edit.has_log() {
            edit.discard_log(cx).await?;
        }
        edit.name_log(cx)?;
        Ok(edit)
    }

    /// Names the intent log that the dataset has while it is open, or none. True if that was another one before.
    pub(super) fn name_log(&mut self, cx: &mut Syncer) -> Result<bool, EngineError> {
        let header = match cx.logs.get(self.dataset) {
            Some(log) => log.sync(cx.txg, &mut cx.out.alloc, &mut cx.random)?,
            None => [0; HEADER_BYTES],
        };
        let is_other = self.set.phys().zil_header != header;
        if is_other {
            self.set.phys_mut().zil_header = header;
        }
        Ok(is_other)
    }

    /// Gives back the blocks of the intent log that the object set names. Its header is the caller's.
    pub(super) async fn discard_log(&self, cx: &mut Syncer) -> Result<(), EngineError> {
        log::discard(cx, self.dataset, &self.set.phys().zil_header, self.set.root().birth()).await
    }

    /// Whether the object set names an intent log.
    pub(super) fn has_log(&self) -> bool {
        self.set.phys().zil_header.iter().any(|byte| *byte != 0)
    }

    /// Opens the object set of head `dataset` with whatever intent log it shows.
    pub(super) async fn open_as_it_is(cx: &mut Syncer, dataset: u64) -> Result<Self, EngineError> {
        let phys = dataset::load(&mut cx.mos, dataset).await?;
        if phys.is_snapshot() {
            return Err(dir::inconsistent(dataset, "a snapshot was to be changed"));
        }
        if phys.bp.uses_crypt() {
            return Err(EngineError::Unsupported(format!("dataset {dataset} is encrypted")));
        }
        Self::over(cx, dataset, phys.bp).await
    }

    /// Opens the object set at `root`, which is head `dataset`'s or is about to be.
    pub(super) async fn over(cx: &Syncer, dataset: u64, root: BlkPtr) -> Result<Self, EngineError> {
        let set = Box::pin(MutSet::open(cx.out.source(), dataset, root)).await?;
        Ok(Self { set: Box::new(set), dataset, copies_max: None })
    }

    /// How its blocks are written.
    async fn policy(&self, cx: &mut Syncer, dir: u64) -> Result<SetPolicy, EngineError> {
        Ok(policy(cx, dir).await?.with_copies_up_to(self.copies_max))
    }

    /// Whether its log wrote blocks of this transaction group ahead as they are to be written now. What was written otherwise
    /// could not be made a second time, for a device that has to be given it again.
    async fn has_policy_of_log(&self, cx: &mut Syncer) -> Result<bool, EngineError> {
        let phys = dataset::load(&mut cx.mos, self.dataset).await?;
        let policy = self.policy(cx, phys.dir).await?;
        let same = cx.logs.get(self.dataset).is_some_and(|log| log.set_policy(&policy, cx.txg));
        Ok(same && cx.out.has_had_its_rules())
    }

    /// A new object set for head `dataset`, which has none yet.
    pub(crate) fn create(cx: &Syncer, dataset: u64, kind: ObjsetType) -> Self {
        let set = Box::new(MutSet::create(cx.out.source(), dataset, kind));
        Self { set, dataset, copies_max: None }
    }

    /// Writes what changed and accounts for it. The set is what is on disk then.
    pub(crate) async fn commit(&mut self, cx: &mut Syncer) -> Result<BlkPtr, EngineError> {
        let object = self.dataset;
        let phys = dataset::load(&mut cx.mos, object).await?;
        let dir_phys = dir::load(&mut cx.mos, phys.dir).await?;
        let policy = self.policy(cx, phys.dir).await?;
        if let Some(log) = cx.logs.get(object) {
            log.set_policy(&policy, cx.txg);
        }
        let deflate = cx.out.alloc.deflate().clone();
        // The previous snapshot's unique bytes grow only if this dataset is its successor, not a clone of it.
        let shared_after = match phys.prev_snap {
            0 => u64::MAX,
            previous => {
                let previous = dataset::load(&mut cx.mos, previous).await?;
                if previous.next_snap == object { previous.prev_snap_txg } else { u64::MAX }
            }
        };
        let mut ledger = Ledger {
            deflate: &deflate,
            prev_snap_txg: phys.prev_snap_txg,
            shared_after,
            origin_txg: dir::origin_txg(&mut cx.mos, &dir_phys).await?,
            sums: Sums::default(),
            mos: &mut cx.mos,
            traits: cx.out.traits(),
            deadlist: phys.deadlist,
        };
        let sync = self.set.sync(&mut cx.out, &policy, &deflate, &mut ledger);
        let root = Box::pin(sync).await?;
        ledger.put_deads().await?;
        let sums = ledger.sums;
        if root != phys.bp {
            dataset::update(&mut cx.mos, object, |phys| phys.bp = root).await?;
            drop_livelist(cx, phys.dir).await?;
        }
        settle(cx, object, sums).await?;
        Ok(root)
    }
}

/// What happened to the blocks of one object set.
#[derive(Debug, Default)]
struct Sums {
    born: Space,
    /// Killed, and nobody else's.
    freed: Space,
    /// Of those the ones that are not given back yet.
    frees: Vec<BlkPtr>,
    /// Killed, and still in the previous snapshot.
    dead: Space,
    /// Of those the ones that are not on the deadlist yet.
    deads: Vec<BlkPtr>,
    /// Something was killed.
    lost_any: bool,
    /// Of the dead: what from now on only the previous snapshot has.
    left_to_snapshot: i64,
    /// Of the dead: what is not of the snapshot this directory is a clone of.
    own_dead: i64,
    features: BTreeSet<&'static str>,
}

/// Killed blocks that are remembered at once: half a MiB of pointers. A discard kills millions.
const KILLED_AT_ONCE: usize = 4096;

/// Sorts born and killed blocks.
struct Ledger<'a> {
    deflate: &'a Deflate,
    prev_snap_txg: u64,
    shared_after: u64,
    origin_txg: u64,
    sums: Sums,
    mos: &'a mut MutSet,
    traits: Traits,
    deadlist: u64,
}

impl Ledger<'_> {
    /// Puts dead blocks on the deadlist.
    async fn put_deads(&mut self) -> Result<(), EngineError> {
        let deads = std::mem::take(&mut self.sums.deads);
        if deads.is_empty() {
            return Ok(());
        }
        deadlist::insert(self.mos, &self.traits, self.deadlist, self.deflate, &deads).await
    }
}

impl Account for Ledger<'_> {
    fn born(&mut self, bp: &BlkPtr) {
        self.sums.born += self.deflate.space(bp);
        self.sums.features.extend(attributes::of_block(bp));
    }

    fn killed(&mut self, bp: &BlkPtr) {
        if bp.is_hole() {
            return;
        }
        let space = self.deflate.space(bp);
        let birth = bp.space_birth();
        self.sums.lost_any = true;
        if birth > self.prev_snap_txg {
            self.sums.freed += space;
            self.sums.frees.push(*bp);
            return;
        }
        self.sums.dead += space;
        self.sums.deads.push(*bp);
        if birth > self.shared_after {
            self.sums.left_to_snapshot += space.used;
        }
        if birth > self.origin_txg {
            self.sums.own_dead += space.used;
        }
    }

    fn to_free(&mut self) -> Vec<BlkPtr> {
        let is_much = self.sums.frees.len() >= KILLED_AT_ONCE;
        if is_much { std::mem::take(&mut self.sums.frees) } else { Vec::new() }
    }

    fn to_do(&mut self) -> Option<BoxFuture<'_, Result<(), EngineError>>> {
        let is_much = self.sums.deads.len() >= KILLED_AT_ONCE;
        is_much.then(|| -> BoxFuture<'_, _> { Box::pin(self.put_deads()) })
    }
}

/// Carries the sums of a rewritten head into the MOS, and gives back the last of what it lost.
async fn settle(cx: &mut Syncer, object: u64, sums: Sums) -> Result<(), EngineError> {
    cx.out.free_all(&sums.frees).await?;
    let phys = dataset::load(&mut cx.mos, object).await?;
    if sums.left_to_snapshot != 0 {
        dataset::update(&mut cx.mos, phys.prev_snap, |previous| {
            previous.unique_bytes = previous.unique_bytes.saturating_add_signed(sums.left_to_snapshot);
        })
        .await?;
    }
    if sums.lost_any {
        bookmarks::forget_space(cx, object).await?;
    }
    let unique = phys.unique_bytes.saturating_add_signed(sums.born.used - sums.freed.used);
    dataset::update(&mut cx.mos, object, |phys| {
        account::add_referenced(phys, sums.born - sums.freed - sums.dead);
        phys.unique_bytes = unique;
    })
    .await?;
    let refreservation = dir::refreservation(&mut cx.mos, phys.dir).await?;
    let change = Delta::default()
        .with(Kind::Head, sums.born - sums.freed)
        .bytes(Kind::Head, -sums.own_dead)
        .bytes(Kind::Snap, sums.own_dead)
        .bytes(Kind::RefReserved, account::refreserved_change(refreservation, phys.unique_bytes, unique));
    account::dir_change(&mut cx.mos, phys.dir, change).await?;
    for guid in sums.features {
        if features::count(&mut cx.mos, guid).await?.is_some() {
            attributes::activate(&mut cx.mos, object, &BTreeSet::from([guid])).await?;
        }
    }
    Ok(())
}

/// Removes the livelist of a clone: it has to name exactly the clone's own blocks, and nothing here keeps it up.
/// Without one the clone is destroyed by walking it.
pub(super) async fn drop_livelist(cx: &mut Syncer, dir: u64) -> Result<(), EngineError> {
    let Some(list) = attributes::get_u64(&mut cx.mos, dir, keys::LIVELIST).await? else { return Ok(()) };
    let traits = cx.out.traits();
    deadlist::destroy(&mut cx.mos, &traits, list).await?;
    attributes::remove(&mut cx.mos, dir, keys::LIVELIST).await?;
    features::add(&mut cx.mos, LIVELIST, -1).await?;
    Ok(())
}

/// Writes a volume's changes and accounts for them: new `bp` and counters of the dataset, directories up to the
/// root, deadlist, frees.
pub fn sync_volume<'a>(
    cx: &'a mut Syncer,
    dataset: u64,
    dirty: Dirty,
) -> BoxFuture<'a, Result<SyncedVolume, EngineError>> {
    Box::pin(async move {
        let mut edit = Edit::open(cx, dataset).await?;
        edit.copies_max = dirty.copies_max;
        for range in dirty.freed {
            edit.set.punch(VOLUME_DATA, range).await?;
        }
        edit.set.put_blocks(VOLUME_DATA, dirty.blocks).await?;
        if !dirty.ahead.is_empty() && edit.has_policy_of_log(cx).await? {
            edit.set.put_ahead(VOLUME_DATA, dirty.ahead).await?;
        } else {
            dirty.ahead.iter().try_for_each(|(_, bp)| cx.out.discard(bp))?;
        }
        dirty.unwanted.iter().try_for_each(|bp| cx.out.discard(bp))?;
        // Its log may have been all there was to do, and nothing came of it.
        let root = if edit.set.is_dirty() { edit.commit(cx).await? } else { *edit.set.root() };
        Ok(SyncedVolume { data: edit.set.object(VOLUME_DATA).await?, root })
    })
}
