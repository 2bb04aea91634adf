//! What destroying snapshots would give back: blocks that no other snapshot and no live dataset holds.
//!
//! ```text
//!   … kept ── [ s1 ── s2 ── s3 ] ── next …      a block goes with the run if it was born behind `kept` and died
//!                                               before `next`: it is on the deadlist of s2, s3 or next
//! ```
//!
//! A deadlist is split by birth at the transaction groups of earlier snapshots, so its parts can be added up
//! without reading a block pointer. Most parts are empty and share one list, which is not looked at for each of them. A
//! deadlist of before pool version 26 has no parts: all its block pointers are read.
//! Facts: docs/format/mos.md §7, §8.

use std::collections::BTreeSet;

use ondisk::{
    blkptr::BlkPtr,
    bpobj::{BpobjEntry, BpobjPhys},
    dnode::ObjectType,
};

use super::{Dataset, Dsl};
use crate::{
    BoxFuture,
    dmu::{Block, ReadError},
    io::Bookmark as At,
    zap::Zap,
};

impl Dataset {
    /// Bytes that would become free if the snapshots `doomed` of this dataset were destroyed.
    ///
    /// # Errors
    /// A snapshot or deadlist cannot be read.
    pub fn reclaimed<'a>(&'a self, doomed: &'a [Self]) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(async move {
            let head = self.live();
            let mut chain = head.snapshots().await?;
            chain.sort_by_key(Self::create_txg);
            chain.push(head.clone());
            let doomed: BTreeSet<u64> = doomed.iter().map(Self::object).collect();
            let empty = self.dsl().directory().get_u64("empty_bpobj").await?;
            let mut total = 0_u64;
            // Birth from which on blocks belong to the run that is open.
            let mut since = None;
            for dataset in &chain {
                let Some(phys) = dataset.phys() else { continue };
                if let Some(since) = since {
                    total =
                        total.saturating_add(killed_since(self.dsl(), phys.deadlist, since, empty).await?);
                }
                since = match (doomed.contains(&dataset.object()), since) {
                    (true, None) => Some(phys.prev_snap_txg),
                    (true, since) => since,
                    (false, _) => None,
                };
            }
            Ok(total)
        })
    }
}

/// Bytes on a deadlist that were born after transaction group `since`; `empty` is the list that empty parts share.
pub(super) async fn killed_since(
    dsl: &Dsl,
    object: u64,
    since: u64,
    empty: Option<u64>,
) -> Result<u64, ReadError> {
    if object == 0 {
        return Ok(0);
    }
    let mos = dsl.mos();
    if mos.dnode(object).await?.dnode.object_type == ObjectType::BPOBJ {
        return killed_singly(dsl, object, since).await;
    }
    let mut total = 0_u64;
    for (key, value) in Zap::open_in(mos, object).await?.to_vec().await? {
        let at = At { objset: 0, object, level: 0, blkid: 0 };
        let broken = ReadError::Inconsistent { at, what: "a deadlist has an entry that is no list" };
        let birth = key.name().and_then(|name| std::str::from_utf8(name).ok());
        let birth = birth.and_then(|name| u64::from_str_radix(name, 16).ok());
        let (Some(birth), Some(list)) = (birth, value.as_u64()) else { return Err(broken) };
        if birth < since || Some(list) == empty {
            continue;
        }
        let found = mos.dnode(list).await?;
        let at = At { objset: 0, object: list, level: 0, blkid: 0 };
        let phys = BpobjPhys::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
        total = total.saturating_add(phys.bytes);
    }
    Ok(total)
}

/// The same of a deadlist of before pool version 26, one list of blocks of all births. It has no lists below it: when those came,
/// deadlists had parts.
async fn killed_singly(dsl: &Dsl, object: u64, since: u64) -> Result<u64, ReadError> {
    let list = dsl.mos().object(object).await?;
    let bonus = &list.dnode().bonus;
    let phys =
        BpobjPhys::decode(bonus, list.bonus_order()).map_err(ReadError::malformed(list.bookmark(0, 0)))?;
    let in_block = list.block_bytes() / BlkPtr::BYTES as u64;
    let (mut total, mut left) = (0_u64, phys.blkptrs);
    for blkid in 0..=list.max_block_id() {
        if left == 0 {
            break;
        }
        let here = left.min(in_block);
        left -= here;
        let Block { content, order } = list.read_block(blkid).await?;
        let Some(content) = content else { continue };
        for index in 0..here as usize {
            let entry = BpobjEntry::decode_at(&content, index, order);
            let bp = entry.map_err(ReadError::malformed(list.bookmark(0, blkid)))?.blkptr;
            if bp.space_birth() > since {
                total = total.saturating_add(dsl.dsize(&bp));
            }
        }
    }
    Ok(total)
}
