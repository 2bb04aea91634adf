//! Bytes that belong to a dataset and are not its content: what [`block::Keeper`] keeps, persistent reservations first
//! of all.
//!
//! They are attributes of the dataset's *directory* in the MOS, `org.millpond:kept.0`, `.1`, …, each an array of at most
//! [`PART_BYTES`] bytes. A directory is what stays when a dataset is renamed, rolled back or promoted, what travels with
//! the pool, and what a clone or a received dataset has anew; its attributes are no properties, so nobody inherits them.
//! OpenZFS looks only for attributes that it knows, and frees all with the directory.
//!
//! ```text
//!   "MPkept" 6 │ version 2 │ guid of the dataset 8 │ bytes 4 │ first word of their SHA-256 8 │ the bytes
//! ```
//!
//! Big-endian. One value is written in one transaction group, so a reader finds the old one or the new one. Guid and sum
//! tell of what was copied or changed by others all the same.
//!
//! Facts: docs/decisions/0016-reservations-in-the-pool.md, docs/format/mos.md §6.

use std::collections::BTreeMap;

use bytes::Bytes;
use codec::checksum::{self, Algorithm};
use ondisk::zap::{IntSize, Value};
use pool::Pool;

use super::{OpError, attributes, dataset};
use crate::{BoxFuture, sync::Syncer};

/// Attributes are named after this.
const NAME: &str = "org.millpond:kept";
/// Bytes of one attribute at most: a few of them fit into a leaf of a ZAP, and the usual value is a single one.
const PART_BYTES: usize = 2048;
/// What the first attribute begins with: magic and version.
const HEAD: [u8; 8] = *b"MPkept\0\x01";
/// Bytes before the value itself.
const FRAME_BYTES: usize = 28;

fn name(part: usize) -> String {
    format!("{NAME}.{part}")
}

/// First word of the SHA-256.
fn sum(value: &[u8]) -> u64 {
    let sum = checksum::compute(Algorithm::Sha256, codec::Order::Little, None, value).unwrap_or_default();
    sum.0[0]
}

fn framed(guid: u64, value: &[u8]) -> Vec<u8> {
    let mut frame = HEAD.to_vec();
    frame.extend(guid.to_be_bytes());
    frame.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(sum(value).to_be_bytes());
    frame.extend(value);
    frame
}

/// What stands in a frame, and whose it is. `None` if it is none, or not as it was written.
fn unframed(frame: &[u8]) -> Option<(u64, &[u8])> {
    let (guid, rest) = frame.strip_prefix(&HEAD)?.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (expected, value) = rest.split_first_chunk::<8>()?;
    let is_whole = value.len() == u32::from_be_bytes(*len) as usize;
    (is_whole && sum(value) == u64::from_be_bytes(*expected)).then(|| (u64::from_be_bytes(*guid), value))
}

/// Whether a pool can keep anything: its directories can have attributes.
pub(crate) fn is_possible(view: &Pool) -> bool {
    view.features().iter().any(|feature| feature.guid == attributes::EXTENSIBLE)
}

/// What is kept for the dataset with this guid, of whose directory these are the attributes. What is not as it was
/// written is given as it is, frame and all: whoever understands values will not take it for one, and knows better what
/// it means that there was something.
pub(crate) fn of_directory(attributes: &BTreeMap<String, Value>, guid: u64) -> Bytes {
    let parts = (0..).map_while(|part| attributes.get(&name(part)));
    let frame: Vec<u8> = parts.flat_map(|part| part.be_bytes().iter().copied()).collect();
    match unframed(&frame) {
        Some((of, value)) if of == guid => Bytes::copy_from_slice(value),
        // Another dataset's, copied here by whoever copies attributes.
        Some(_) => Bytes::new(),
        None => frame.into(),
    }
}

/// Keeps `value` for a dataset in place of what was kept; nothing, if it is empty.
///
/// # Errors
/// The dataset is gone.
pub(crate) fn keep<'a>(
    cx: &'a mut Syncer,
    object: u64,
    guid: u64,
    value: &'a [u8],
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        if !cx.mos.exists(object).await? {
            return Err(OpError::NoDataset);
        }
        let phys = dataset::load(&mut cx.mos, object).await?;
        // Another one may have its number by now.
        if phys.guid != guid {
            return Err(OpError::NoDataset);
        }
        let frame = if value.is_empty() { Vec::new() } else { framed(guid, value) };
        let mut parts = 0;
        for part in frame.chunks(PART_BYTES) {
            if let Some(part) = Value::from_be_bytes(IntSize::One, part.to_vec()) {
                attributes::set(&mut cx.mos, phys.dir, &name(parts), part).await?;
            }
            parts += 1;
        }
        while attributes::get(&mut cx.mos, phys.dir, &name(parts)).await?.is_some() {
            attributes::remove(&mut cx.mos, phys.dir, &name(parts)).await?;
            parts += 1;
        }
        Ok(())
    })
}

const _: () = assert!(FRAME_BYTES < PART_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(frame: &[u8]) -> BTreeMap<String, Value> {
        let parts = frame.chunks(PART_BYTES).enumerate();
        parts
            .map(|(part, bytes)| (name(part), Value::from_be_bytes(IntSize::One, bytes.to_vec()).unwrap()))
            .chain([("com.joyent:snapshot_count".to_owned(), Value::from_u64(3))])
            .collect()
    }

    #[test]
    fn what_was_kept_comes_back_for_the_dataset_it_was_kept_for_only() {
        for len in [1, 100, PART_BYTES - FRAME_BYTES, PART_BYTES - FRAME_BYTES + 1, 70_000] {
            let value: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let kept = attributes(&framed(7, &value));
            assert_eq!(kept.len(), (len + FRAME_BYTES).div_ceil(PART_BYTES) + 1);
            assert_eq!(of_directory(&kept, 7), value);
            assert!(of_directory(&kept, 8).is_empty());
        }
        assert!(of_directory(&attributes(&[]), 7).is_empty());
    }

    #[test]
    fn what_was_torn_is_not_taken_for_nothing_nor_for_a_value() {
        let (old, new) = (framed(7, &[1; 5000]), framed(7, &[2; 5000]));
        let mut torn = old.clone();
        torn[PART_BYTES..].copy_from_slice(&new[PART_BYTES..]);
        for frame in [&torn[..], &old[..2 * PART_BYTES], &old[..FRAME_BYTES - 1], b"what is this?"] {
            let found = of_directory(&attributes(frame), 7);
            assert_eq!(found, frame);
        }
    }
}
