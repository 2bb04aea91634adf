//! The pool's history: a ring of records, the first of which stays. Facts: docs/format/mos.md §9.
//!
//! The history is for people. So a record that does not fit, or for which a block cannot be read, is dropped with a
//! warning, and a ring that is damaged starts again empty: none is worth the transaction group they come with.

use ondisk::{
    Order,
    dnode::ObjectType,
    history::{HistoryPhys, RECORD_BYTES_MAX, RING_BYTES_MAX, encode_record},
    nvlist::NvList,
};
use pool::dmu::ReadError;

use super::{DIRECTORY, at, zap};
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
};

/// Smallest ring in bytes, which is also its block size.
const RING_MIN: u64 = 128 << 10;
/// The length in front of each record.
const LENGTH: u64 = 8;
/// Its directory entry.
const ENTRY: &str = "history";

/// Creates the object and its directory entry. `pool_bytes` is the deflated capacity.
pub fn create(mos: &mut MutSet, pool_bytes: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let phys_max_off = (pool_bytes / 1000).clamp(RING_MIN, RING_BYTES_MAX);
        let bonus = HistoryPhys { phys_max_off, ..HistoryPhys::default() }.encode(Order::Little);
        let new = NewObject::of(ObjectType::HISTORY).blocks(RING_MIN as u32);
        let object = mos.allocate(new.bonus(ObjectType::HISTORY_OFFSETS, &bonus)).await?;
        zap::set_u64(mos, DIRECTORY, ENTRY, object).await
    })
}

/// Appends a record, overwriting the oldest where the ring is full. Nothing if the pool has no history object.
pub fn append<'a>(mos: &'a mut MutSet, record: &'a NvList) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        match try_append(mos, record).await {
            Err(EngineError::Read(error)) => {
                tracing::warn!(%error, "the history cannot be read, and a record was dropped");
                Ok(())
            }
            outcome => outcome,
        }
    })
}

async fn try_append(mos: &mut MutSet, record: &NvList) -> Result<(), EngineError> {
    let Some(object) = zap::get_u64(mos, DIRECTORY, ENTRY).await? else { return Ok(()) };
    let record = encode_record(record, Order::Little).map_err(EngineError::encode("a history record"))?;
    let bonus = mos.bonus(object).await?;
    let mut ring =
        HistoryPhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at(mos, object, 0)))?;
    let length = record.len() as u64;
    let room = ring.phys_max_off.saturating_sub(ring.create_len);
    if length >= room || length > RECORD_BYTES_MAX {
        tracing::warn!(length, room, "a history record is too long and was dropped");
        return Ok(());
    }
    while ring.eof.saturating_sub(ring.bof).saturating_add(length) >= room {
        forget_oldest(mos, object, &mut ring).await?;
    }
    write(mos, object, &ring, &record).await?;
    let first = ring.eof == 0;
    ring.eof = ring.eof.saturating_add(length);
    if first {
        // How the pool was made: never overwritten.
        ring.create_len = ring.eof;
        ring.bof = ring.eof;
    }
    mos.set_bonus(object, &ring.encode(Order::Little)).await
}

/// Moves the beginning of the ring past its oldest record.
async fn forget_oldest(mos: &mut MutSet, object: u64, ring: &mut HistoryPhys) -> Result<(), EngineError> {
    let mut length = Vec::new();
    for (offset, len) in ring.extents(ring.bof, LENGTH).into_iter().flatten() {
        match mos.read(object, offset, len as usize).await {
            Ok(piece) => length.extend(piece),
            // Where the next one begins is in it.
            Err(EngineError::Read(error)) => {
                tracing::warn!(%error, object, "the oldest record of the history cannot be read");
                length.clear();
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let length = length.first_chunk().map_or(0, |length| Order::Little.u64(*length));
    let next = ring.bof.saturating_add(LENGTH).saturating_add(length);
    ring.records_lost = ring.records_lost.saturating_add(1);
    if length == 0 || length > RECORD_BYTES_MAX || next > ring.eof {
        tracing::warn!(object, offset = ring.bof, "the history is damaged and starts again");
        ring.bof = ring.eof;
    } else {
        ring.bof = next;
    }
    Ok(())
}

/// Stores a record behind the newest, in two pieces where the ring ends.
async fn write(mos: &mut MutSet, object: u64, ring: &HistoryPhys, record: &[u8]) -> Result<(), EngineError> {
    let extents = ring.extents(ring.eof, record.len() as u64);
    let mut rest = record;
    for (offset, len) in extents.into_iter().flatten() {
        let (piece, behind) = rest.split_at_checked(len as usize).unwrap_or((rest, &[]));
        if !piece.is_empty() {
            mos.write(object, offset, piece).await?;
        }
        rest = behind;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
