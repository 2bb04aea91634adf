//! Deadlists as they were before pool version 26: one list of blocks of all births.
//!
//! Nothing converts them. A head gets a list of the new form with its next snapshot, which keeps the old one, and all that come
//! after that in the chain have the new form, too. Nothing is told apart in one by keys, so its blocks are looked at one by one.
//!
//! Facts: docs/format/mos.md §8.

use ondisk::{blkptr::BlkPtr, bpobj::DeadlistPhys, dnode::ObjectType};

use super::{bpobj, insert};
use crate::{
    BoxFuture, EngineError,
    dmu::MutSet,
    policy::Traits,
    space::{Deflate, Space},
};

/// Blocks taken off a list at once: 1 MiB of pointers.
const AT_ONCE: usize = 8192;

/// Whether a deadlist has the old form.
pub fn is_old(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<bool, EngineError>> {
    Box::pin(async move { Ok(mos.dnode(object).await?.object_type == ObjectType::BPOBJ) })
}

/// Number of blocks that are written anew where a list is merged, or blocks are moved out of it: none if it has the new form.
pub fn moved_singly(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move {
        match is_old(mos, object).await? {
            // They have no parts: when those came, deadlists had the new form.
            true => Ok(bpobj::header(mos, object).await?.blkptrs),
            false => Ok(0),
        }
    })
}

/// What the header of a list of the new form with the same blocks would say.
pub(super) async fn header(mos: &mut MutSet, object: u64) -> Result<DeadlistPhys, EngineError> {
    let list = bpobj::header(mos, object).await?;
    let (used, pad) = (list.bytes, [0; 37]);
    let (compressed_bytes, uncompressed_bytes) = (list.compressed_bytes, list.uncompressed_bytes);
    Ok(DeadlistPhys { used, compressed_bytes, uncompressed_bytes, pad })
}

/// Moves the blocks of list `object` that were born after `mintxg` into the bpobj `target`. Returns what moved.
pub(super) async fn move_to_bpobj(
    mos: &mut MutSet,
    traits: &Traits,
    object: u64,
    deflate: &Deflate,
    mintxg: u64,
    target: u64,
) -> Result<Space, EngineError> {
    let stays = bpobj::create(mos, traits, bpobj::BLOCK).await?;
    let mut moved = Space::ZERO;
    loop {
        let pointers = take(mos, object, deflate).await?;
        if pointers.is_empty() {
            break;
        }
        let (go, stay): (Vec<BlkPtr>, Vec<BlkPtr>) =
            pointers.into_iter().partition(|bp| bp.space_birth() > mintxg);
        for bp in &go {
            moved += deflate.space(bp);
        }
        bpobj::append(mos, target, deflate, &go).await?;
        bpobj::append(mos, stays, deflate, &stay).await?;
    }
    pour(mos, traits, object, deflate, stays).await?;
    Ok(moved)
}

/// Moves all blocks of the bpobj `from` into list `object` of either form, and frees `from`.
pub(super) async fn pour(
    mos: &mut MutSet,
    traits: &Traits,
    object: u64,
    deflate: &Deflate,
    from: u64,
) -> Result<(), EngineError> {
    loop {
        let pointers = take(mos, from, deflate).await?;
        if pointers.is_empty() {
            return bpobj::destroy(mos, from).await;
        }
        insert(mos, traits, object, deflate, &pointers).await?;
    }
}

/// Takes some blocks off a bpobj; none when it is empty.
async fn take(mos: &mut MutSet, object: u64, deflate: &Deflate) -> Result<Vec<BlkPtr>, EngineError> {
    let entries = bpobj::take(mos, object, deflate, AT_ONCE).await?;
    Ok(entries.into_iter().map(|entry| entry.blkptr).collect())
}
