//! Attributes of DSL objects, and the features that are counted by them.
//!
//! An object with an attribute becomes a ZAP while its bonus stays. Feature `extensible_dataset` counts such objects,
//! and a per-dataset feature counts the datasets that carry its guid as a key. A dataset takes up a feature when the
//! first block that needs it is written. Facts: docs/format/mos.md §3, §6, features.md.

use std::collections::BTreeSet;

use ondisk::{
    blkptr::BlkPtr,
    dnode::ObjectType,
    features::Feature,
    zap::{OwnedKey, Value},
};

use crate::{
    EngineError,
    dmu::MutSet,
    mos::{features, zap},
};

/// Counts objects with attributes.
pub(super) const EXTENSIBLE: &str = "com.delphix:extensible_dataset";
/// Blocks of more than 128 KiB.
pub(super) const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
/// Largest block without that feature, in bytes.
pub(super) const PLAIN_BLOCK_MAX: u64 = 128 << 10;

/// Whether the object has become a ZAP.
async fn is_zap(mos: &mut MutSet, object: u64) -> Result<bool, EngineError> {
    Ok(mos.dnode(object).await?.object_type == ObjectType::ZAP_METADATA)
}

/// The value of an attribute.
pub(super) async fn get(mos: &mut MutSet, object: u64, key: &str) -> Result<Option<Value>, EngineError> {
    if !is_zap(mos, object).await? {
        return Ok(None);
    }
    zap::get(mos, object, key.into()).await
}

/// The value of an attribute that is a number.
pub(super) async fn get_u64(mos: &mut MutSet, object: u64, key: &str) -> Result<Option<u64>, EngineError> {
    Ok(get(mos, object, key).await?.and_then(|value| value.as_u64()))
}

/// All attributes whose names are text.
pub(super) async fn all(mos: &mut MutSet, object: u64) -> Result<Vec<(String, Value)>, EngineError> {
    if !is_zap(mos, object).await? {
        return Ok(Vec::new());
    }
    let entries = zap::entries(mos, object).await?;
    let named =
        |(key, value): (OwnedKey, Value)| Some((String::from_utf8(key.name()?.to_vec()).ok()?, value));
    Ok(entries.into_iter().filter_map(named).collect())
}

/// Sets an attribute.
pub(super) async fn set(mos: &mut MutSet, object: u64, key: &str, value: Value) -> Result<(), EngineError> {
    if !is_zap(mos, object).await? {
        mos.set_type(object, ObjectType::ZAP_METADATA).await?;
        zap::init(mos, object, 0).await?;
        features::add(mos, EXTENSIBLE, 1).await?;
    }
    zap::set(mos, object, key.into(), value).await
}

/// Removes an attribute; the object stays a ZAP.
pub(super) async fn remove(mos: &mut MutSet, object: u64, key: &str) -> Result<(), EngineError> {
    if is_zap(mos, object).await? {
        zap::remove(mos, object, key.into()).await?;
    }
    Ok(())
}

/// Whether the key is the guid of a feature that datasets count.
fn is_feature(key: &str) -> bool {
    Feature::by_guid(key).is_some_and(|feature| feature.per_dataset)
}

/// Gives `to` the features of `from`, and counts them.
pub(super) async fn copy_features(mos: &mut MutSet, from: u64, to: u64) -> Result<(), EngineError> {
    for (key, value) in all(mos, from).await? {
        if is_feature(&key) {
            set(mos, to, &key, value).await?;
            features::add(mos, &key, 1).await?;
        }
    }
    Ok(())
}

/// Marks a dataset as using `guids`, counting those it did not use before.
pub(super) async fn activate(
    mos: &mut MutSet,
    object: u64,
    guids: &BTreeSet<&'static str>,
) -> Result<(), EngineError> {
    for guid in guids {
        if get(mos, object, guid).await?.is_none() {
            set(mos, object, guid, Value::from_u64(0)).await?;
            features::add(mos, guid, 1).await?;
        }
    }
    Ok(())
}

/// Frees an object with its attributes, which have to be free of references already, and counts it out.
pub(super) async fn free_object(mos: &mut MutSet, object: u64) -> Result<(), EngineError> {
    for (key, _) in all(mos, object).await? {
        if is_feature(&key) {
            features::add(mos, &key, -1).await?;
        }
    }
    if is_zap(mos, object).await? {
        features::add(mos, EXTENSIBLE, -1).await?;
    }
    mos.free(object).await
}

/// The feature that a checksum needs, by its id; none for those every pool has.
pub(super) fn of_checksum(id: u8) -> Option<&'static str> {
    match id {
        11 => Some("org.illumos:sha512"),
        12 => Some("org.illumos:skein"),
        13 => Some("org.illumos:edonr"),
        14 => Some("org.openzfs:blake3"),
        _ => None,
    }
}

/// The feature that a compression needs, by its id; lz4's counts pool-wide and is not meant.
pub(super) fn of_compression(id: u8) -> Option<&'static str> {
    (id == codec::compress::Algorithm::Zstd.id()).then_some("org.freebsd:zstd_compress")
}

/// The features a block needs in the dataset it belongs to.
pub(super) fn of_block(bp: &BlkPtr) -> impl Iterator<Item = &'static str> {
    let large = (bp.lsize() > PLAIN_BLOCK_MAX).then_some(LARGE_BLOCKS);
    let checksum = of_checksum(bp.checksum_id());
    [large, checksum, of_compression(bp.compression_id())].into_iter().flatten()
}
