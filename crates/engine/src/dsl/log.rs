//! The intent log in a dataset's object set: what its header says, and how its blocks are given back.
//!
//! A log that was claimed and holds records stays until they are replayed, or the dataset is rolled back or destroyed.
//! Any other that is found when a dataset is written to is given back: even an empty log has a block or two that are
//! allocated. Snapshots and clones show copies of a header; the blocks belong to the head whose number is in the
//! chain.
//!
//! Of a log that nobody claimed only what is as old as its header is certainly its own. An import that could not read the
//! dataset claims nothing of it: what the log took in groups that were never committed is free space then, and others
//! get it, in that import and in all that follow. But each group that takes blocks for a log and is committed writes the
//! header anew, so nothing that was allocated is younger.
//!
//! Facts: docs/format/zil.md §2, §5.

use ondisk::{
    Order,
    blkptr::BlkPtr,
    objset::ObjsetPhys,
    zil::{FLAG_REPLAY_NEEDED, HEADER_BYTES, Header},
};
use pool::{
    Bookmark,
    dmu::ReadError,
    traverse::LEVEL_LOG,
    zil::{Blocks, Chain, NoBlock, Reader},
};

use super::{dataset, edit::Edit};
use crate::{BoxFuture, EngineError, devices, sync::Syncer};

fn decode(dataset: u64, header: &[u8; HEADER_BYTES]) -> Result<Header, EngineError> {
    let at = Bookmark { objset: dataset, object: 0, level: LEVEL_LOG, blkid: 0 };
    Ok(Header::decode(header, Order::Little).map_err(ReadError::malformed(at))?)
}

/// Whether an object set (little endian) has a log with records that wait to be replayed.
pub(crate) fn waits(phys: &ObjsetPhys) -> bool {
    let header = Header::decode(&phys.zil_header, Order::Little);
    header.is_ok_and(|header| {
        header.claim_txg != 0 && header.flags & FLAG_REPLAY_NEEDED != 0 && !header.log.is_hole()
    })
}

/// Whether head `dataset`, whose object set this is (little endian), has a log of its own that nobody claimed.
pub(crate) fn is_unclaimed(dataset: u64, phys: &ObjsetPhys) -> bool {
    let header = Header::decode(&phys.zil_header, Order::Little);
    header.is_ok_and(|header| header.claim_txg == 0 && Chain::new(dataset, &header).end().is_none())
}

/// Gives back the blocks of the log of head `dataset`, whose object set has this header (little endian) and was written
/// in transaction group `written`. What is behind a block that a device does not give may stay allocated: no log is worth a pool
/// that waits for it, and a device that holds only logs may be gone for good.
pub(super) async fn discard(
    cx: &mut Syncer,
    dataset: u64,
    header: &[u8; HEADER_BYTES],
    written: u64,
) -> Result<(), EngineError> {
    let header = decode(dataset, header)?;
    let (mut reader, mut blocks) = (Reader::new(&cx.io, dataset, &header), Blocks::default());
    while let Some(found) = reader.next().await {
        if header.claim_txg == 0 && found.pointer.birth() > written {
            break;
        }
        blocks.add(&header, &found);
        if let Err(NoBlock::Unreadable(error)) = &found.block {
            tracing::warn!(dataset, %error, "what an intent log has behind a block that cannot be read may stay allocated");
        }
    }
    cx.out.free_all(&blocks.into_pointers()).await
}

/// The object set at `root` of head `dataset`, whose content goes: to be opened before anything changes, and for
/// [`give_up`]. None if it has none, or has lost it. What the log had that was named there stays allocated then.
///
/// # Errors
/// A device is away that may have it, or the pool was given up.
pub(super) async fn of_what_goes(
    cx: &Syncer,
    dataset: u64,
    root: BlkPtr,
) -> Result<Option<Edit>, EngineError> {
    if root.is_hole() {
        return Ok(None);
    }
    match Edit::over(cx, dataset, root).await {
        Ok(edit) => Ok(Some(edit)),
        // What devices refuse that are all there may be refused for ever: nobody could get rid of it.
        Err(EngineError::Read(error)) if !devices::is_away(&cx.io.tree(), &root) => {
            tracing::warn!(dataset, %error, "what an intent log has that is named in a lost object set stays allocated");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Gives back the log that is named in the object set of head `dataset`, whose content goes, whether or not it waits to be
/// replayed. One that is in use stays.
pub(super) async fn give_up(cx: &mut Syncer, dataset: u64, edit: &Edit) -> Result<(), EngineError> {
    let is_in_use = !waits(edit.set.phys()) && cx.logs.get(dataset).is_some_and(|log| !log.takes_over());
    if edit.has_log() && !is_in_use {
        edit.discard_log(cx).await?;
    }
    Ok(())
}

/// Gives the log of head `dataset` another header; none: there is no log any more. Blocks are not touched.
///
/// # Errors
/// The object set cannot be read, or is encrypted.
pub fn set_log<'a>(
    cx: &'a mut Syncer,
    dataset: u64,
    header: Option<&'a Header>,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let mut edit = Edit::open_as_it_is(cx, dataset).await?;
        let bytes = header.map_or_else(|| vec![0; HEADER_BYTES], |header| header.encode(Order::Little));
        edit.set.phys_mut().zil_header.copy_from_slice(&bytes);
        edit.commit(cx).await?;
        Ok(())
    })
}

/// The log of head `dataset` has been replayed: gives back the blocks that were found on the way, and clears its header. They
/// are not looked for again: a device may not give one of them this time, and nobody would know of those behind it any more.
pub(crate) fn end_replayed_log(
    cx: &mut Syncer,
    dataset: u64,
    blocks: Vec<BlkPtr>,
) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        set_log(cx, dataset, None).await?;
        cx.out.free_all(&blocks).await
    })
}

/// Ends the log of head `dataset` if nobody is at work on it and nothing in it waits to be replayed. One of an encrypted dataset
/// stays, and so does one that cannot be read, or whose dataset is gone.
pub(crate) fn end_idle_log(cx: &mut Syncer, dataset: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        if cx.logs.get(dataset).is_some() || !cx.mos.exists(dataset).await? {
            return Ok(());
        }
        let Ok(phys) = dataset::load(&mut cx.mos, dataset).await else { return Ok(()) };
        if phys.is_snapshot() || phys.bp.is_hole() || phys.bp.uses_crypt() {
            return Ok(());
        }
        let mut edit = match Edit::open_as_it_is(cx, dataset).await {
            Err(EngineError::Read(error)) => {
                tracing::warn!(dataset, %error, "an intent log stays where it is");
                return Ok(());
            }
            edit => edit?,
        };
        if waits(edit.set.phys()) || !edit.has_log() {
            return Ok(());
        }
        edit.discard_log(cx).await?;
        edit.set.phys_mut().zil_header.fill(0);
        edit.commit(cx).await?;
        Ok(())
    })
}

/// The log of head `dataset` has nothing to replay: gives back all it has, and clears its header.
pub(crate) fn end_log(cx: &mut Syncer, dataset: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let mut edit = Edit::open_as_it_is(cx, dataset).await?;
        edit.discard_log(cx).await?;
        edit.set.phys_mut().zil_header.fill(0);
        edit.commit(cx).await?;
        Ok(())
    })
}
