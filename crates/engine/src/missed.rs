//! What devices missed, kept on disk: dirty time logs.
//!
//! A leaf that is away, or failed, lacks the blocks of the transaction groups that went by. When it comes back, its
//! bytes in those places are older, and may look plausible; whoever opens the pool then must know which they are,
//! and OpenZFS copies what is missing. So each such leaf has a list of txgs in the MOS, which is brought up to date
//! in the very transaction group that it misses.
//!
//! The list may name more txgs than were missed, never fewer: while a leaf is away it is one unbroken range.
//! Facts: docs/format/spacemap.md §9, vdevs.md §6.

use std::collections::BTreeMap;

use ondisk::{
    Order,
    dnode::ObjectType,
    spacemap::{Encoder, Encoding, Header, Kind},
};
use pool::vdev::{Tree, TxgSet};

use crate::{EngineError, create::config, dmu::NewObject, mos::features, sync::Syncer};

/// Bytes of a block of such a list, as OpenZFS has them.
const BLOCK_BYTES: u32 = 4096;
/// Buckets of the histogram that every space map has, used or not.
const BUCKETS: usize = 32;

/// What is known about absent leaves, by guid.
#[derive(Debug, Default)]
pub struct Outages {
    /// What their lists on disk say.
    logged: BTreeMap<u64, TxgSet>,
    /// The first transaction group they were away in, of those this program wrote.
    since: BTreeMap<u64, u64>,
}

impl Outages {
    /// Those of a pool that was just opened: what its leaves were seen to lack.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        let lists = tree.leaves().into_iter().filter_map(|vdev| {
            let leaf = vdev.leaf.as_ref().filter(|leaf| leaf.dtl_object.is_some())?;
            Some((vdev.guid, leaf.missed.get()))
        });
        Self { logged: lists.collect(), since: BTreeMap::new() }
    }
}

/// Notes which leaves miss the transaction group that is being synced, and writes the lists that changed. True if
/// one did, so that the MOS is dirty.
pub(crate) async fn sync(cx: &mut Syncer) -> Result<bool, EngineError> {
    let failed: Vec<u64> = cx.out.failed_leaves().into_iter().map(|leaf| leaf.guid).collect();
    let mut changed = Vec::new();
    for vdev in cx.io.tree().leaves() {
        let Some(leaf) = &vdev.leaf else { continue };
        let absent = leaf.disk().is_none() || !vdev.is_readable() || failed.contains(&vdev.guid);
        if absent {
            let since = *cx.outages.since.entry(vdev.guid).or_insert(cx.txg);
            leaf.missed.add_all(&TxgSet::from_ranges(vec![(since, cx.txg + 1)]));
        }
        let missed = leaf.missed.get();
        let logged = cx.outages.logged.get(&vdev.guid);
        if logged.map_or(!missed.is_empty(), |logged| *logged != missed) {
            changed.push((vdev.guid, missed));
        }
    }
    let any = !changed.is_empty();
    for (guid, missed) in changed {
        write(cx, guid, &missed).await?;
        cx.outages.logged.insert(guid, missed);
    }
    Ok(any)
}

/// Replaces the list of one leaf.
async fn write(cx: &mut Syncer, guid: u64, missed: &TxgSet) -> Result<(), EngineError> {
    let mut known = None;
    for top in config::tops_mut(&mut cx.config) {
        config::walk_mut(top, &mut |list| {
            if list.u64("guid") == Some(guid) {
                known = known.or(list.u64("DTL").filter(|object| *object != 0));
            }
        });
    }
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
    for top in config::tops_mut(&mut cx.config) {
        config::walk_mut(top, &mut |list| {
            if list.u64("guid") == Some(guid) && (list.contains("path") || !list.contains("children")) {
                list.set("DTL", object);
            }
        });
    }
    cx.config_dirty = true;
    Ok(object)
}
