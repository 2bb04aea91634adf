//! Deadlists: blocks of the previous snapshot that the dataset no longer has, by the age at which they were born.
//!
//! ```text
//!   key:      0            1              12            ∞      one per snapshot before: its prev_snap_txg
//!   bucket:   │ 0 < birth ≤ 1 │ 1 < birth ≤ 12 │ 12 < birth │   each a bpobj
//! ```
//!
//! When a snapshot goes, whole buckets become free or change hands; no block is looked at. Most buckets are
//! empty, so they share one empty bpobj, which feature `empty_bpobj` counts and which goes with its last user.
//!
//! Facts: docs/format/mos.md §8, §11.

mod old;

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{
    Order,
    blkptr::BlkPtr,
    bpobj::DeadlistPhys,
    dnode::ObjectType,
    zap::{OwnedKey, Value},
};
use pool::dmu::ReadError;

pub use self::old::{is_old, moved_singly};
use super::{DIRECTORY, at, bpobj, features, inconsistent, zap};
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
    policy::Traits,
    space::{Deflate, Space},
};

/// Counts the references to the shared empty bpobj.
const FEATURE: &str = "com.delphix:empty_bpobj";

/// A new list with these bucket keys, each bucket empty (the shared empty bpobj where the pool has the feature,
/// counted there; created when it is missing).
pub fn create<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    keys: &'a [u64],
) -> BoxFuture<'a, Result<u64, EngineError>> {
    Box::pin(async move {
        let none = DeadlistPhys { used: 0, compressed_bytes: 0, uncompressed_bytes: 0, pad: [0; 37] };
        let bonus = none.encode(Order::Little);
        let new = NewObject::of(ObjectType::DEADLIST).bonus(ObjectType::DEADLIST_HEADER, &bonus);
        let object = mos.allocate(new).await?;
        zap::init(mos, object, 0).await?;
        let mut entries = Vec::with_capacity(keys.len());
        for (key, bucket) in keys.iter().zip(empty(mos, traits, keys.len()).await?) {
            entries.push((name(*key), Value::from_u64(bucket)));
        }
        zap::set_many(mos, object, entries).await?;
        Ok(object)
    })
}

/// Its totals.
pub fn header(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<DeadlistPhys, EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return old::header(mos, object).await;
        }
        let bonus = mos.bonus(object).await?;
        Ok(DeadlistPhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at(mos, object, 0)))?)
    })
}

/// Its buckets in ascending order of keys: (mintxg, bpobj).
///
/// # Errors
/// It cannot be read, or has the [old form](is_old) and so no buckets.
pub fn buckets(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<Vec<(u64, u64)>, EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            let text = format!("the deadlist {object} is of a pool version before 26");
            return Err(EngineError::Unsupported(text));
        }
        let mut buckets = Vec::new();
        for (key, value) in zap::entries(mos, object).await? {
            let key = key.name().and_then(|name| std::str::from_utf8(name).ok());
            let key = key.and_then(|name| u64::from_str_radix(name, 16).ok());
            let Some(bucket) = key.zip(value.as_u64()) else {
                return Err(inconsistent(mos, object, 0, "a bucket of a deadlist has no txg or no list"));
            };
            buckets.push(bucket);
        }
        buckets.sort_unstable();
        Ok(buckets)
    })
}

/// Inserts blocks, each into the bucket of its birth if there are any.
pub fn insert<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    object: u64,
    deflate: &'a Deflate,
    pointers: &'a [BlkPtr],
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return bpobj::append(mos, object, deflate, pointers).await;
        }
        let buckets = buckets(mos, object).await?;
        let mut sorted: BTreeMap<u64, Vec<BlkPtr>> = BTreeMap::new();
        let mut space = Space::ZERO;
        for bp in pointers.iter().filter(|bp| !bp.is_hole()) {
            // The bucket with the largest key below the birth.
            let place = buckets.partition_point(|(key, _)| *key < bp.space_birth()).checked_sub(1);
            let Some((key, _)) = place.and_then(|place| buckets.get(place)) else {
                return Err(inconsistent(mos, object, 0, "a deadlist has no bucket for a block this old"));
            };
            sorted.entry(*key).or_default().push(*bp);
            space += deflate.space(bp);
        }
        let shared = shared(mos).await?;
        for (key, bucket) in buckets {
            let Some(pointers) = sorted.remove(&key) else { continue };
            let list = if Some(bucket) == shared {
                let own = bpobj::create(mos, traits, bpobj::BLOCK).await?;
                zap::set(mos, object, name(key).as_key(), Value::from_u64(own)).await?;
                release(mos, 1).await?;
                own
            } else {
                bucket
            };
            bpobj::append(mos, list, deflate, &pointers).await?;
        }
        change(mos, object, space).await
    })
}

/// Adds an empty bucket. Nothing if the key is there, or the list has no keys.
pub fn add_key<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    object: u64,
    mintxg: u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        if !is_old(mos, object).await? && zap::get(mos, object, name(mintxg).as_key()).await?.is_none() {
            for bucket in empty(mos, traits, 1).await? {
                zap::set(mos, object, name(mintxg).as_key(), Value::from_u64(bucket)).await?;
            }
        }
        Ok(())
    })
}

/// Removes these keys, as far as they are there; their buckets join that of the next smaller key that stays.
pub fn remove_keys<'a>(
    mos: &'a mut MutSet,
    _traits: &'a Traits,
    object: u64,
    keys: &'a BTreeSet<u64>,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return Ok(());
        }
        let mut stays = None;
        for (key, bucket) in buckets(mos, object).await? {
            if !keys.contains(&key) {
                stays = Some((key, bucket));
                continue;
            }
            let Some((below, into)) = stays else {
                return Err(inconsistent(mos, object, 0, "the first bucket of a deadlist has none to join"));
            };
            zap::remove(mos, object, name(key).as_key()).await?;
            stays = Some((below, join(mos, object, below, into, bucket).await?));
        }
        Ok(())
    })
}

/// Takes every bucket with key ≥ `mintxg` out of the list, its key included, and moves its blocks into the bpobj `target`.
/// Returns what moved.
pub fn move_to_bpobj<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    object: u64,
    deflate: &'a Deflate,
    mintxg: u64,
    target: u64,
) -> BoxFuture<'a, Result<Space, EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return old::move_to_bpobj(mos, traits, object, deflate, mintxg, target).await;
        }
        let (mut moved, mut dropped) = (Space::ZERO, 0);
        let shared = shared(mos).await?;
        for (key, bucket) in buckets(mos, object).await? {
            if key < mintxg {
                continue;
            }
            zap::remove(mos, object, name(key).as_key()).await?;
            if Some(bucket) == shared {
                dropped += 1;
                continue;
            }
            moved += bpobj::space(mos, bucket).await?;
            bpobj::append_list(mos, target, bucket).await?;
        }
        release(mos, dropped).await?;
        change(mos, object, -moved).await?;
        Ok(moved)
    })
}

/// Moves all of `other` into `object`, bucket by bucket if it has any, and frees `other`.
pub fn merge<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    object: u64,
    deflate: &'a Deflate,
    other: u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        if is_old(mos, other).await? {
            return old::pour(mos, traits, object, deflate, other).await;
        }
        let space = totals(&header(mos, other).await?);
        let mut into = buckets(mos, object).await?;
        for (key, bucket) in buckets(mos, other).await? {
            // A key that `object` does not have joins the next smaller one, as if it had been removed.
            let place = into.partition_point(|(other, _)| *other <= key).checked_sub(1);
            let Some((key, list)) = place.and_then(|place| into.get_mut(place)) else {
                return Err(inconsistent(
                    mos,
                    object,
                    0,
                    "a deadlist has no bucket for another's oldest blocks",
                ));
            };
            *list = join(mos, object, *key, *list, bucket).await?;
        }
        mos.free(other).await?;
        change(mos, object, space).await
    })
}

/// What of the list lies in buckets whose keys are in `mintxg..maxtxg` (`u64::MAX` for no end): by whole buckets if there are any.
pub fn space_range<'a>(
    mos: &'a mut MutSet,
    object: u64,
    deflate: &'a Deflate,
    mintxg: u64,
    maxtxg: u64,
) -> BoxFuture<'a, Result<Space, EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return bpobj::space_in(mos, object, deflate, mintxg, maxtxg).await;
        }
        let mut space = Space::ZERO;
        for (key, bucket) in buckets(mos, object).await? {
            if key >= mintxg && (key < maxtxg || maxtxg == u64::MAX) {
                space += bpobj::space(mos, bucket).await?;
            }
        }
        Ok(space)
    })
}

/// Empties the list, keeping keys: the blocks live again (rollback).
pub fn clear<'a>(
    mos: &'a mut MutSet,
    traits: &'a Traits,
    object: u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let space = totals(&header(mos, object).await?);
        let shared = shared(mos).await?;
        for (key, bucket) in buckets(mos, object).await? {
            if Some(bucket) == shared {
                continue;
            }
            for fresh in empty(mos, traits, 1).await? {
                zap::set(mos, object, name(key).as_key(), Value::from_u64(fresh)).await?;
            }
            bpobj::destroy(mos, bucket).await?;
        }
        change(mos, object, -space).await
    })
}

/// Frees the list's objects, not the blocks it names; references to the shared empty bpobj are dropped.
pub fn destroy<'a>(
    mos: &'a mut MutSet,
    _traits: &'a Traits,
    object: u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        if is_old(mos, object).await? {
            return bpobj::destroy(mos, object).await;
        }
        let shared = shared(mos).await?;
        let mut dropped = 0;
        for (_, bucket) in buckets(mos, object).await? {
            if Some(bucket) == shared {
                dropped += 1;
            } else {
                bpobj::destroy(mos, bucket).await?;
            }
        }
        mos.free(object).await?;
        release(mos, dropped).await
    })
}

/// Puts `bucket`, which is in no list any more, into bucket `key` of `object`, which is `into`; what that is then, because
/// `bucket` takes the place of an empty one.
async fn join(mos: &mut MutSet, object: u64, key: u64, into: u64, bucket: u64) -> Result<u64, EngineError> {
    let shared = shared(mos).await?;
    if Some(bucket) == shared {
        release(mos, 1).await?;
        return Ok(into);
    }
    if Some(into) == shared {
        zap::set(mos, object, name(key).as_key(), Value::from_u64(bucket)).await?;
        release(mos, 1).await?;
        return Ok(bucket);
    }
    bpobj::append_list(mos, into, bucket).await?;
    Ok(into)
}

/// The shared empty bpobj, if there is one.
async fn shared(mos: &mut MutSet) -> Result<Option<u64>, EngineError> {
    zap::get_u64(mos, DIRECTORY, bpobj::SHARED_EMPTY).await
}

/// Bpobjs for `count` empty buckets.
async fn empty(mos: &mut MutSet, traits: &Traits, count: usize) -> Result<Vec<u64>, EngineError> {
    let mut lists = Vec::with_capacity(count);
    if count == 0 {
        return Ok(lists);
    }
    if !traits.empty_bpobj {
        for _ in 0..count {
            lists.push(bpobj::create(mos, traits, bpobj::BLOCK).await?);
        }
        return Ok(lists);
    }
    let object = match shared(mos).await? {
        Some(object) => object,
        None => {
            let object = bpobj::create(mos, traits, bpobj::BLOCK).await?;
            zap::set_u64(mos, DIRECTORY, bpobj::SHARED_EMPTY, object).await?;
            object
        }
    };
    features::add(mos, FEATURE, count as i64).await?;
    lists.resize(count, object);
    Ok(lists)
}

/// Drops references to the shared empty bpobj, and it with the last of them.
async fn release(mos: &mut MutSet, references: i64) -> Result<(), EngineError> {
    if references == 0 || features::add(mos, FEATURE, -references).await? > 0 {
        return Ok(());
    }
    if let Some(object) = shared(mos).await? {
        zap::remove(mos, DIRECTORY, bpobj::SHARED_EMPTY.into()).await?;
        bpobj::destroy(mos, object).await?;
    }
    Ok(())
}

fn name(key: u64) -> OwnedKey {
    OwnedKey::Name(format!("{key:x}").into_bytes())
}

fn totals(list: &DeadlistPhys) -> Space {
    Space {
        used: list.used as i64,
        compressed: list.compressed_bytes as i64,
        uncompressed: list.uncompressed_bytes as i64,
    }
}

async fn change(mos: &mut MutSet, object: u64, by: Space) -> Result<(), EngineError> {
    if by == Space::ZERO {
        return Ok(());
    }
    let mut list = header(mos, object).await?;
    list.used = list.used.saturating_add_signed(by.used);
    list.compressed_bytes = list.compressed_bytes.saturating_add_signed(by.compressed);
    list.uncompressed_bytes = list.uncompressed_bytes.saturating_add_signed(by.uncompressed);
    mos.set_bonus(object, &list.encode(Order::Little)).await
}

#[cfg(test)]
mod tests;
