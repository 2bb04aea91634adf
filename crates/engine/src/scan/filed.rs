//! The error log where it is by head (feature `head_errlog`), when a head goes or hands its snapshots over.
//!
//! A lost block is filed under the head of whoever holds it, snapshot or not. Facts: docs/format/mos.md §10.

use std::collections::BTreeSet;

use ondisk::{scan::HeadBookmark, zap::OwnedKey};
use pool::Bookmark;

use super::errors::{LAST, Lost, SCRUB, add, begin_anew, by_head, log};
use crate::{EngineError, mos::zap, sync::Syncer};

/// A head is destroyed that shares nothing of what is filed under it: nobody has that any more, and its number may become
/// another's.
pub(crate) async fn forget(cx: &mut Syncer, head: u64) -> Result<(), EngineError> {
    let Err(error) = take_out(cx, head).await else { return Ok(()) };
    begin_anew(cx, error).await?;
    take_out(cx, head).await
}

async fn take_out(cx: &mut Syncer, head: u64) -> Result<(), EngineError> {
    if !by_head(cx).await? {
        return Ok(());
    }
    let key = format!("{head:x}");
    for name in [LAST, SCRUB] {
        let Some(object) = log(cx, name).await? else { continue };
        if let Some(list) = zap::get_u64(&mut cx.mos, object, &key).await? {
            if cx.mos.exists(list).await? {
                cx.mos.free(list).await?;
            }
            zap::remove(&mut cx.mos, object, key.as_str().into()).await?;
        }
    }
    Ok(())
}

/// What is filed under head `from`, a clone or about to be one, and born until txg `txg`, in which its origin was taken, is
/// that snapshot's as well or was of one before it. It goes to the head of those, `to`.
pub(crate) async fn hand_over(cx: &mut Syncer, from: u64, to: u64, txg: u64) -> Result<(), EngineError> {
    let Err(error) = file_under(cx, from, to, txg).await else { return Ok(()) };
    begin_anew(cx, error).await?;
    file_under(cx, from, to, txg).await
}

async fn file_under(cx: &mut Syncer, from: u64, to: u64, txg: u64) -> Result<(), EngineError> {
    if !by_head(cx).await? {
        return Ok(());
    }
    for name in [LAST, SCRUB] {
        let Some(object) = log(cx, name).await? else { continue };
        let Some(list) = zap::get_u64(&mut cx.mos, object, &format!("{from:x}")).await? else { continue };
        let mut theirs = BTreeSet::new();
        for (key, _) in zap::entries(&mut cx.mos, list).await? {
            if let Some(lost) = lost(&key, to).filter(|(_, birth)| *birth <= txg) {
                zap::remove(&mut cx.mos, list, key.as_key()).await?;
                theirs.insert(lost);
            }
        }
        add(cx, name, &theirs).await?;
    }
    Ok(())
}

/// What an entry says, filed under `head`.
fn lost(key: &OwnedKey, head: u64) -> Option<Lost> {
    let key = std::str::from_utf8(key.name()?).ok()?;
    let HeadBookmark { object, level, block_id, birth } = key.trim_end_matches('\0').parse().ok()?;
    Some((Bookmark { objset: head, object, level, blkid: block_id }, birth))
}
