//! What devices missed, kept on disk: dirty time logs.
//!
//! A leaf that is away, or failed, lacks the blocks of the transaction groups that went by. When it comes back, its
//! bytes in those places are older, and may look plausible; whoever opens the pool then must know which they are,
//! and OpenZFS copies what is missing. So each such leaf has a list of txgs in the MOS, which is brought up to date
//! in the very transaction group that it misses.
//!
//! The list may name more txgs than were missed, never fewer. It is as long as the leaf lacks something: when a
//! resilver has made up for it, it is freed. One that cannot be read counts as a list of all there were, and is replaced.
//! Facts: docs/format/spacemap.md §9, vdevs.md §6.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{
    Order,
    dnode::ObjectType,
    spacemap::{Encoder, Encoding, Header, Kind},
};
use pool::vdev::{Tree, TxgSet, Vdev};

use crate::{EngineError, devices, dmu::NewObject, events::Event, mos::features, sync::Syncer};

/// Bytes of a block of such a list, as OpenZFS has them.
const BLOCK_BYTES: u32 = 4096;
/// Buckets of the histogram that every space map has, used or not.
const BUCKETS: usize = 32;

/// What is known about absent leaves, by guid.
#[derive(Debug, Default)]
pub struct Outages {
    /// What their lists on disk say. None for leaves that have no list.
    logged: BTreeMap<u64, TxgSet>,
    /// Those whose list could not be read.
    unreadable: BTreeSet<u64>,
    /// Those that were away at some time in the transaction group that is being synced.
    away: BTreeSet<u64>,
}

impl Outages {
    /// Those of a pool that was just opened: what its leaves were seen to lack.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        let leaves = tree.leaves();
        let is_unreadable = |vdev: &&&Vdev| vdev.leaf.as_ref().is_some_and(|leaf| leaf.missed.take_assumed());
        let unreadable: BTreeSet<u64> = leaves.iter().filter(is_unreadable).map(|vdev| vdev.guid).collect();
        let lists = leaves.iter().filter_map(|vdev| {
            let leaf = vdev.leaf.as_ref().filter(|leaf| leaf.dtl_object.is_some())?;
            (!unreadable.contains(&vdev.guid)).then(|| (vdev.guid, leaf.missed.get()))
        });
        Self { logged: lists.collect(), unreadable, away: BTreeSet::new() }
    }

    /// A leaf left the tree, and its list was freed.
    pub(crate) fn forget(&mut self, guid: u64) {
        self.logged.remove(&guid);
        self.unreadable.remove(&guid);
        self.away.remove(&guid);
    }

    /// Adds those that are away now.
    fn note(&mut self, tree: &Tree, failed: &[u64]) {
        let is_away = |vdev: &&Vdev| {
            let has_disk = vdev.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_some());
            !has_disk || !vdev.is_readable() || failed.contains(&vdev.guid)
        };
        self.away.extend(tree.leaves().into_iter().filter(is_away).map(|vdev| vdev.guid));
    }
}

/// A transaction group begins: who is away now misses it, even if it comes back before the end.
pub(crate) fn begin(cx: &mut Syncer) {
    cx.outages.away.clear();
    cx.outages.note(&cx.io.tree(), &[]);
}

/// Notes which leaves miss the transaction group that is being synced, and writes the lists that changed. True if
/// one did, so that the MOS is dirty.
pub(crate) async fn sync(cx: &mut Syncer) -> Result<bool, EngineError> {
    let failed: Vec<u64> = cx.out.failed_leaves().into_iter().map(|leaf| leaf.guid).collect();
    let tree = cx.io.tree();
    cx.outages.note(&tree, &failed);
    // One that was away, and was given all it lacked before anybody went on.
    let outages = &mut cx.outages;
    outages.away.retain(|guid| !cx.out.has_caught_up(*guid));
    let mut changed = Vec::new();
    for vdev in tree.leaves() {
        let Some(leaf) = &vdev.leaf else { continue };
        if cx.outages.away.contains(&vdev.guid) {
            leaf.missed.add(cx.txg);
        }
        let missed = leaf.missed.get();
        let logged = cx.outages.logged.get(&vdev.guid);
        if logged.is_some_and(|logged| !logged.without(&missed).is_empty()) {
            leaf.condition.was_refilled(cx.txg);
        }
        // A list that is empty is freed, whoever left it.
        if logged.map_or(!missed.is_empty(), |logged| *logged != missed || missed.is_empty()) {
            changed.push((vdev.guid, missed));
        }
    }
    for guid in std::mem::take(&mut cx.outages.unreadable) {
        let device = devices::name(&tree, guid);
        tracing::warn!(device = device.name, "what it missed is not known: it gets everything anew");
        cx.events.tell(Event::HistoryLost { device });
        replace(cx, guid).await?;
    }
    let any = !changed.is_empty();
    for (guid, missed) in changed {
        if missed.is_empty() {
            remove(cx, guid).await?;
            cx.outages.logged.remove(&guid);
        } else {
            write(cx, guid, &missed).await?;
            cx.outages.logged.insert(guid, missed);
        }
    }
    Ok(any)
}

/// The object with the list of one leaf, as the configuration has it.
fn object_of(cx: &mut Syncer, guid: u64) -> Option<u64> {
    let mut known = None;
    devices::edit(&mut cx.config, guid, |list| known = list.u64("DTL").filter(|object| *object != 0));
    known
}

/// A leaf that lacks nothing has no list.
async fn remove(cx: &mut Syncer, guid: u64) -> Result<(), EngineError> {
    let known = object_of(cx, guid);
    devices::edit(&mut cx.config, guid, |list| drop(list.remove("DTL")));
    cx.config_dirty = true;
    // Also if it was written in this transaction group already.
    cx.config.remove("txg");
    match known {
        Some(object) => cx.out.alloc.free_dirty_time_log(object, &mut cx.mos).await,
        None => Ok(()),
    }
}

/// A list that cannot be read makes room for another one.
async fn replace(cx: &mut Syncer, guid: u64) -> Result<(), EngineError> {
    let Some(object) = object_of(cx, guid) else { return Ok(()) };
    devices::edit(&mut cx.config, guid, |list| drop(list.remove("DTL")));
    if let Err(error) = cx.out.alloc.free_dirty_time_log(object, &mut cx.mos).await {
        // What it takes is a few KiB, and nothing leads there any more.
        tracing::warn!(object, %error, "a dirty time log that cannot be read is left where it is");
    }
    Ok(())
}

/// Replaces the list of one leaf.
async fn write(cx: &mut Syncer, guid: u64, missed: &TxgSet) -> Result<(), EngineError> {
    let known = object_of(cx, guid);
    let histogram = cx.out.traits().spacemap_histogram;
    let object = match known {
        Some(object) => object,
        None => create(cx, guid, histogram).await?,
    };
    let encode = EngineError::encode;
    let mut encoder =
        Encoder::new(0, BLOCK_BYTES.into(), Order::Little).map_err(encode("a dirty time log"))?;
    let mut sum = 0;
    for &(start, end) in missed.ranges() {
        encoder.segment(Kind::Alloc, start..end, Encoding::OneWord).map_err(encode("a dirty time log"))?;
        sum += end.saturating_sub(start);
    }
    let words = encoder.finish();
    let long = cx.mos.bonus(object).await?.len() > 24;
    let header = Header {
        object,
        length: words.len() as u64,
        alloc: sum.cast_signed(),
        histogram: long.then_some([0; BUCKETS]),
    };
    cx.mos.truncate(object, 0).await?;
    cx.mos.write(object, 0, &words).await?;
    cx.mos.set_bonus(object, &header.encode(Order::Little)).await
}

/// A new list, named in the configuration of the leaf.
async fn create(cx: &mut Syncer, guid: u64, histogram: bool) -> Result<u64, EngineError> {
    let header = Header { object: 0, length: 0, alloc: 0, histogram: histogram.then_some([0; BUCKETS]) };
    let bonus = header.encode(Order::Little);
    let new = NewObject { indirect_shift: 14, ..NewObject::of(ObjectType::SPACE_MAP) }
        .blocks(BLOCK_BYTES)
        .bonus(ObjectType::SPACE_MAP_HEADER, &bonus);
    let object = cx.mos.allocate(new).await?;
    if histogram {
        features::add(&mut cx.mos, "com.delphix:spacemap_histogram", 1).await?;
    }
    devices::edit(&mut cx.config, guid, |list| list.set("DTL", object));
    cx.config.remove("txg");
    cx.config_dirty = true;
    Ok(object)
}
