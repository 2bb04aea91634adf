//! Lists of block pointers (`bpobj`), and lists of such lists. Facts: docs/format/mos.md §8.
//!
//! ```text
//!   list ── own pointers: an array that grows and shrinks at its end
//!     └──── parts: an array of lists, each the same again
//! ```
//!
//! A list's totals include its parts, so taking something out of a part changes the totals of every list above.
//! Parts are kept one level deep where that is cheap: what a new part has of parts moves up, and a short part is
//! copied. Otherwise destroying a thousand snapshots one by one would make a thousand levels.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    blkptr::BlkPtr,
    bpobj::{BpobjEntry, BpobjPhys},
    dnode::ObjectType,
};
use pool::dmu::ReadError;

use super::{DIRECTORY, at, inconsistent, zap};
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
    policy::Traits,
    space::{Deflate, Space},
};

/// Directory entry of the one empty list that deadlists share.
pub(super) const SHARED_EMPTY: &str = "empty_bpobj";

/// Bytes of a block of the lists we make, `sync_bplist` excepted.
pub(super) const BLOCK: u32 = 128 << 10;
/// Bytes read or written at once; a whole number of pointers.
const PIECE: usize = 1 << 20;
/// Pointers of a part that are copied rather than linked: one block.
const COPIED_MAX: u64 = BLOCK as u64 / BlkPtr::BYTES as u64;
/// Parts of a part that are moved up rather than left: one block.
const LIFTED_MAX: u64 = BLOCK as u64 / 8;
/// Parts believed to be in one list.
const PARTS_MAX: u64 = 1 << 24;
/// Compression id `off`, which `sync_bplist` has.
const COMPRESS_OFF: u8 = 2;

/// A new list with blocks of `block_bytes` (128 KiB; 16 KiB for sync_bplist, with compression off).
pub fn create<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    block_bytes: u32,
) -> BoxFuture<'a, Result<u64, EngineError>> {
    Box::pin(async move {
        let bonus = [0; 56];
        let (short, _) = bonus.split_at(48);
        let bonus = if traits.livelist { &bonus } else { short };
        let compression_id = if block_bytes < BLOCK { COMPRESS_OFF } else { 0 };
        let new = NewObject { compression_id, ..NewObject::of(ObjectType::BPOBJ) };
        mos.allocate(new.blocks(block_bytes).bonus(ObjectType::BPOBJ_HEADER, bonus)).await
    })
}

/// Its header.
pub fn header(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<BpobjPhys, EngineError>> {
    Box::pin(async move {
        let bonus = mos.bonus(object).await?;
        Ok(BpobjPhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at(mos, object, 0)))?)
    })
}

/// What the list holds, parts included.
pub fn space(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<Space, EngineError>> {
    Box::pin(async move { Ok(totals(&header(mos, object).await?)) })
}

/// Appends pointers. Holes take no space and are left out.
pub fn append<'a>(
    mos: &'a mut MutSet,
    object: u64,
    deflate: &'a Deflate,
    pointers: &'a [BlkPtr],
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let mut list = header(mos, object).await?;
        let mut space = Space::ZERO;
        for piece in pointers.chunks(PIECE / BlkPtr::BYTES) {
            let mut bytes = Vec::with_capacity(piece.len().saturating_mul(BlkPtr::BYTES));
            for bp in piece.iter().filter(|bp| !bp.is_hole()) {
                space += deflate.space(bp);
                let entry = BpobjEntry::strip(bp, false).map_err(EngineError::encode("a bpobj entry"))?;
                bytes.extend(entry.encode(Order::Little));
            }
            append_bytes(mos, object, &mut list, &bytes).await?;
        }
        change(&mut list, space);
        set_header(mos, object, &list).await
    })
}

/// Appends a whole list as a part; `part` belongs to `object` afterwards. An empty part is freed instead (the
/// shared empty one: only the reference is dropped, which the caller counts).
pub fn append_list(mos: &mut MutSet, object: u64, part: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        if part == object {
            return Err(inconsistent(mos, object, 0, "a list of blocks is part of itself"));
        }
        if zap::get_u64(mos, DIRECTORY, SHARED_EMPTY).await? == Some(part) {
            return Ok(());
        }
        let mut list = header(mos, object).await?;
        let mut added = header(mos, part).await?;
        if added.blkptrs == 0 && added.subobj_count == 0 {
            return free(mos, part, &added).await;
        }
        change(&mut list, totals(&added));
        list.freed = list.freed.saturating_add(added.freed);
        if (1..=LIFTED_MAX).contains(&added.subobj_count) {
            let lifted = parts(mos, part, &added).await?;
            for id in &lifted {
                let below = header(mos, *id).await?;
                change(&mut added, -totals(&below));
                added.freed = added.freed.saturating_sub(below.freed);
            }
            append_parts(mos, &mut list, &lifted).await?;
            mos.free(added.subobjs).await?;
            (added.subobjs, added.subobj_count) = (0, 0);
            set_header(mos, part, &added).await?;
        }
        if added.subobj_count == 0 && added.blkptrs <= COPIED_MAX {
            let bytes = read_entries(mos, part, 0, added.blkptrs).await?;
            append_bytes(mos, object, &mut list, &bytes).await?;
            free(mos, part, &added).await?;
        } else {
            append_parts(mos, &mut list, &[part]).await?;
        }
        set_header(mos, object, &list).await
    })
}

/// Takes up to `max` pointers out of the list, parts included and freed when used up. Empty when the list is.
pub fn take<'a>(
    mos: &'a mut MutSet,
    object: u64,
    deflate: &'a Deflate,
    max: usize,
) -> BoxFuture<'a, Result<Vec<BpobjEntry>, EngineError>> {
    Box::pin(async move {
        let mut taken: Vec<BpobjEntry> = Vec::new();
        // From the list down to the part being emptied, with their headers as they will be.
        let mut path = vec![(object, header(mos, object).await?)];
        while let Some((current, mut list)) = path.pop() {
            let wanted = max.saturating_sub(taken.len()) as u64;
            if list.blkptrs > 0 {
                if wanted == 0 {
                    path.push((current, list));
                    break;
                }
                let count = list.blkptrs.min(wanted).min((PIECE / BlkPtr::BYTES) as u64);
                list.blkptrs -= count;
                let bytes = read_entries(mos, current, list.blkptrs, count).await?;
                let mut space = Space::ZERO;
                for index in 0..count as usize {
                    let entry = BpobjEntry::decode_at(&bytes, index, Order::Little);
                    let entry = entry.map_err(ReadError::malformed(at(mos, current, 0)))?;
                    space += deflate.space(&entry.blkptr);
                    taken.push(entry);
                }
                let block = mos.dnode(current).await?.data_block_bytes().max(1);
                let bytes_left = list.blkptrs.saturating_mul(BlkPtr::BYTES as u64);
                mos.truncate(current, bytes_left.div_ceil(block)).await?;
                path.push((current, list));
                for (_, list) in &mut path {
                    change(list, -space);
                }
                continue;
            }
            if let Some(last) = list.subobj_count.checked_sub(1) {
                if wanted == 0 {
                    path.push((current, list));
                    break;
                }
                let id = mos.read(list.subobjs, last.saturating_mul(8), 8).await?;
                let part = Order::Little.words(&id).next().unwrap_or(0);
                if part == current || path.iter().any(|(above, _)| *above == part) {
                    return Err(inconsistent(mos, current, 0, "a list of blocks is part of itself"));
                }
                let below = header(mos, part).await?;
                path.push((current, list));
                path.push((part, below));
                continue;
            }
            // Used up: no pointers, no parts.
            match path.last_mut() {
                None => {
                    // Nothing is in it, so nothing is counted, whatever the totals of a foreign list said.
                    let counted = totals(&list);
                    change(&mut list, -counted);
                    path.push((current, list));
                    break;
                }
                Some((above, list)) => {
                    list.subobj_count = list.subobj_count.saturating_sub(1);
                    if list.subobj_count == 0 {
                        mos.free(list.subobjs).await?;
                        list.subobjs = 0;
                    } else {
                        let block = mos.dnode(list.subobjs).await?.data_block_bytes().max(1);
                        mos.truncate(list.subobjs, list.subobj_count.saturating_mul(8).div_ceil(block))
                            .await?;
                    }
                    set_header(mos, *above, list).await?;
                    mos.free(current).await?;
                }
            }
        }
        for (object, list) in &path {
            set_header(mos, *object, list).await?;
        }
        Ok(taken)
    })
}

/// Every pointer, parts included. For lists known to be small, and tests.
pub fn all(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<Vec<BpobjEntry>, EngineError>> {
    Box::pin(async move {
        let mut all = Vec::new();
        walk(mos, object, &mut |entry| all.push(entry)).await?;
        Ok(all)
    })
}

/// What of the list was born in `(after, until]`.
pub fn space_in<'a>(
    mos: &'a mut MutSet,
    object: u64,
    deflate: &'a Deflate,
    after: u64,
    until: u64,
) -> BoxFuture<'a, Result<Space, EngineError>> {
    Box::pin(async move {
        let mut space = Space::ZERO;
        let mut add = |entry: BpobjEntry| {
            let birth = entry.blkptr.space_birth();
            if after < birth && birth <= until {
                space += deflate.space(&entry.blkptr);
            }
        };
        walk(mos, object, &mut add).await?;
        Ok(space)
    })
}

/// Frees the list's objects, not the blocks it names.
pub fn destroy(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let mut waiting = vec![object];
        let mut seen = BTreeSet::new();
        while let Some(object) = waiting.pop() {
            let list = once(mos, object, &mut seen).await?;
            waiting.extend(parts(mos, object, &list).await?);
            free(mos, object, &list).await?;
        }
        Ok(())
    })
}

/// Hands every pointer to `visit`.
async fn walk(
    mos: &mut MutSet,
    object: u64,
    visit: &mut (dyn FnMut(BpobjEntry) + Send),
) -> Result<(), EngineError> {
    let mut waiting = vec![object];
    let mut seen = BTreeSet::new();
    while let Some(object) = waiting.pop() {
        let list = once(mos, object, &mut seen).await?;
        let mut first = 0;
        while first < list.blkptrs {
            let count = (list.blkptrs - first).min((PIECE / BlkPtr::BYTES) as u64);
            let bytes = read_entries(mos, object, first, count).await?;
            for index in 0..count as usize {
                let entry = BpobjEntry::decode_at(&bytes, index, Order::Little);
                visit(entry.map_err(ReadError::malformed(at(mos, object, 0)))?);
            }
            first += count;
        }
        waiting.extend(parts(mos, object, &list).await?);
    }
    Ok(())
}

/// The header of a list that is met on a way through lists and their parts: each once.
async fn once(mos: &mut MutSet, object: u64, seen: &mut BTreeSet<u64>) -> Result<BpobjPhys, EngineError> {
    if !seen.insert(object) {
        return Err(inconsistent(mos, object, 0, "a list of blocks is part of two others"));
    }
    header(mos, object).await
}

/// The parts of a list.
async fn parts(mos: &mut MutSet, object: u64, list: &BpobjPhys) -> Result<Vec<u64>, EngineError> {
    if list.subobj_count == 0 {
        return Ok(Vec::new());
    }
    if list.subobj_count > PARTS_MAX || list.subobjs == 0 {
        return Err(inconsistent(mos, object, 0, "a list of blocks has an impossible number of parts"));
    }
    let bytes = mos.read(list.subobjs, 0, list.subobj_count as usize * 8).await?;
    Ok(Order::Little.words(&bytes).collect())
}

/// Appends parts without touching the totals.
async fn append_parts(mos: &mut MutSet, list: &mut BpobjPhys, parts: &[u64]) -> Result<(), EngineError> {
    if list.subobjs == 0 {
        list.subobjs = mos.allocate(NewObject::of(ObjectType::BPOBJ_SUBOBJ).blocks(BLOCK)).await?;
        list.subobj_count = 0;
    }
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    mos.write(list.subobjs, list.subobj_count.saturating_mul(8), &bytes).await?;
    list.subobj_count = list.subobj_count.saturating_add(parts.len() as u64);
    Ok(())
}

/// Appends encoded pointers without touching the totals.
async fn append_bytes(
    mos: &mut MutSet,
    object: u64,
    list: &mut BpobjPhys,
    bytes: &[u8],
) -> Result<(), EngineError> {
    if bytes.is_empty() {
        return Ok(());
    }
    mos.write(object, list.blkptrs.saturating_mul(BlkPtr::BYTES as u64), bytes).await?;
    list.blkptrs = list.blkptrs.saturating_add((bytes.len() / BlkPtr::BYTES) as u64);
    Ok(())
}

async fn read_entries(mos: &mut MutSet, object: u64, first: u64, count: u64) -> Result<Vec<u8>, EngineError> {
    let offset = first.saturating_mul(BlkPtr::BYTES as u64);
    mos.read(object, offset, (count as usize).saturating_mul(BlkPtr::BYTES)).await
}

/// Frees one list, not its parts.
async fn free(mos: &mut MutSet, object: u64, list: &BpobjPhys) -> Result<(), EngineError> {
    if list.subobjs != 0 {
        mos.free(list.subobjs).await?;
    }
    mos.free(object).await
}

/// Stores a header in as many bytes as it has, or as it now needs.
async fn set_header(mos: &mut MutSet, object: u64, list: &BpobjPhys) -> Result<(), EngineError> {
    let len = mos.bonus(object).await?.len();
    let mut lengths = BpobjPhys::LENGTHS.into_iter().filter(|other| *other >= len);
    let bonus = lengths.find_map(|len| list.encode(len, Order::Little).ok());
    match bonus {
        Some(bonus) => mos.set_bonus(object, &bonus).await,
        None => Err(inconsistent(mos, object, 0, "the header of a list of blocks has an unknown length")),
    }
}

fn totals(list: &BpobjPhys) -> Space {
    Space {
        used: list.bytes as i64,
        compressed: list.compressed_bytes as i64,
        uncompressed: list.uncompressed_bytes as i64,
    }
}

fn change(list: &mut BpobjPhys, by: Space) {
    list.bytes = list.bytes.saturating_add_signed(by.used);
    list.compressed_bytes = list.compressed_bytes.saturating_add_signed(by.compressed);
    list.uncompressed_bytes = list.uncompressed_bytes.saturating_add_signed(by.uncompressed);
}

#[cfg(test)]
mod tests;
