//! What the MOS adds to the device tree: mappings of removed devices, the checksum salt, dirty time
//! logs, allocation classes, features, spares and caches.
//!
//! The order matters: mappings before anything that may lie on a removed device, the salt before any
//! block with a salted checksum. Facts: docs/format/mos.md §1–§5.

use std::sync::Arc;

use ondisk::{
    nvlist::NvList,
    scan::{ErrorScrubPhys, ScanPhys},
    spacemap::{self, MapEntry},
    uberblock::Uberblock,
};

use super::open::{CONFIG_MAX, LARGE_GANG_HEADERS};
use crate::{
    dmu::{ObjectSet, ReadError, Run},
    features::FeatureState,
    io::{Bookmark, PoolIo},
    pool::Removal,
    vdev::{Class, Expansion, Kind, Mapping, TxgSet, Vdev, indirect},
    zap::Zap,
};

/// Largest mapping of a removed device accepted, in bytes: 11 million runs.
const MAPPING_MAX: u64 = 256 << 20;
/// Largest dirty time log accepted, in bytes.
const DTL_MAX: u64 = 64 << 20;
/// Blocks asked for at a time when an object is read as words.
const BATCH: usize = 64;

/// What was learnt.
#[derive(Debug)]
pub(super) struct Learnt {
    pub(super) features: Vec<FeatureState>,
    pub(super) scan: Option<ScanPhys>,
    pub(super) error_scrub: Option<ErrorScrubPhys>,
    pub(super) removal: Option<Removal>,
    pub(super) spares: Vec<NvList>,
    pub(super) l2cache: Vec<NvList>,
}

/// The object a directory entry names, which must be there.
pub(super) async fn required(directory: &Zap, name: &'static str) -> Result<u64, ReadError> {
    let at = Bookmark { object: 1, ..Bookmark::default() };
    directory.get_u64(name).await?.ok_or(ReadError::Inconsistent { at, what: missing_entry(name) })
}

fn missing_entry(name: &str) -> &'static str {
    match name {
        "config" => "the object directory has no entry \"config\"",
        "features_for_read" => "the object directory has no entry \"features_for_read\"",
        _ => "the object directory lacks an entry it must have",
    }
}

/// A packed list in an object: the configuration, spares, caches.
pub(super) async fn packed_nvlist(mos: &ObjectSet, number: u64) -> Result<NvList, ReadError> {
    let at = Bookmark { object: number, ..Bookmark::default() };
    let dnode = mos.dnode(number).await?;
    let data = mos.object(number).await?.read_all(CONFIG_MAX).await?;
    // The bonus holds the length; a list ends by itself, so a wrong length harms nothing.
    let length = dnode.order.u64_at("packed nvlist size", &dnode.dnode.bonus, 0).unwrap_or(data.len() as u64);
    let list = data.get(..length as usize).unwrap_or(&data);
    NvList::decode(list).map_err(ReadError::malformed(at))
}

/// The data of an object as words, each block in its own byte order; holes are zeroes.
pub(crate) async fn words(mos: &ObjectSet, number: u64, limit_bytes: u64) -> Result<Vec<u64>, ReadError> {
    let object = mos.object(number).await?;
    if object.bytes() > limit_bytes {
        return Err(ReadError::TooLarge { objset: 0, object: number, limit: limit_bytes });
    }
    let per_block = object.block_bytes() as usize / 8;
    let mut words = vec![0; (object.bytes() / 8) as usize];
    let mut runs = object.runs(0, 0..object.max_block_id() + 1);
    let mut batch = Vec::new();
    loop {
        let run = runs.next().await?;
        let done = run.is_none();
        if let Some(Run::Block { blkid, pointer }) = run {
            batch.push((pointer, object.bookmark(0, blkid)));
        }
        if batch.len() >= BATCH || done {
            for (content, (pointer, at)) in object.source().read_many(&batch).await.into_iter().zip(&batch) {
                let start = at.blkid as usize * per_block;
                let place = words.get_mut(start..).unwrap_or_default();
                for (word, value) in place.iter_mut().take(per_block).zip(pointer.order().words(&content?)) {
                    *word = value;
                }
            }
            batch.clear();
        }
        if done {
            return Ok(words);
        }
    }
}

/// What must be known before the MOS can be read through `io`: mappings of removed devices.
///
/// They are kept where they can be read without each other, or at least one after the other: whatever
/// cannot be read yet is tried again after the others.
pub(super) async fn before_mos(io: &Arc<PoolIo>, uberblock: &Uberblock) -> Result<(), ReadError> {
    let tree = io.tree();
    let mut open: Vec<&Vdev> =
        tree.tops.iter().filter(|top| matches!(top.kind, Kind::Indirect { .. })).collect();
    while !open.is_empty() {
        let mut failure = None;
        let mut left = Vec::new();
        let before = open.len();
        for top in open {
            if let Err(error) = load_mapping(io, uberblock, top).await {
                left.push(top);
                failure.get_or_insert(error);
            }
        }
        if let Some(error) = failure.filter(|_| left.len() == before) {
            return Err(error);
        }
        open = left;
    }
    Ok(())
}

async fn load_mapping(io: &Arc<PoolIo>, uberblock: &Uberblock, vdev: &Vdev) -> Result<(), ReadError> {
    let (Kind::Indirect { mapping_object, .. }, Some(top)) = (&vdev.kind, &vdev.top) else { return Ok(()) };
    let at = Bookmark { object: *mapping_object, ..Bookmark::default() };
    let bad = |what| ReadError::Inconsistent { at, what };
    let mos = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await?;
    let dnode = mos.dnode(*mapping_object).await?;
    let header = ondisk::indirect::Header::decode(&dnode.dnode.bonus, dnode.order)
        .map_err(ReadError::malformed(at))?;
    let words = words(&mos, *mapping_object, MAPPING_MAX).await?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let entries = ondisk::indirect::Mapping::new(&bytes, ondisk::Order::Little);
    let mut runs = Vec::new();
    for entry in entries.entries().take(header.entries.min(entries.len() as u64) as usize) {
        let entry = entry.map_err(ReadError::malformed(at))?;
        let target = entry.destination;
        runs.push(indirect::Run {
            source: entry.source,
            len: target.asize,
            vdev: target.vdev.into(),
            target: target.offset,
        });
    }
    let mapping = Mapping::new(runs).ok_or_else(|| bad("runs of a removed device overlap"))?;
    let _already_known = top.mapping.set(mapping);
    Ok(())
}

/// Everything else.
pub(super) async fn from_mos(
    io: &Arc<PoolIo>,
    mos: &ObjectSet,
    directory: &Zap,
) -> Result<Learnt, ReadError> {
    if let Some(salt) = directory.get("org.illumos:checksum_salt").await?
        && let Ok(salt) = <[u8; 32]>::try_from(salt.be_bytes())
    {
        io.set_salt(salt);
    }
    let features = features(mos, directory, &[]).await?;
    let active = |guid: &str| features.iter().any(|feature| feature.guid == guid && feature.count > 0);
    io.set_large_gang_headers(active(LARGE_GANG_HEADERS));
    for top in &io.tree().tops {
        load_dtls(mos, top).await;
        load_class(mos, top).await;
    }
    let (scan, error_scrub) = (scan(directory).await?, error_scrub(directory).await?);
    let removal = match directory.get("com.delphix:removing").await? {
        Some(value) => Removal::from_words(&value.integers().collect::<Vec<_>>()),
        None => None,
    };
    Ok(Learnt {
        scan,
        error_scrub,
        removal,
        spares: device_list(mos, directory, "spares").await?,
        l2cache: device_list(mos, directory, "l2cache").await?,
        features,
    })
}

/// The last scrub or resilver.
pub(crate) async fn scan(directory: &Zap) -> Result<Option<ScanPhys>, ReadError> {
    let value = directory.get("scan").await?;
    Ok(value.and_then(|value| ScanPhys::from_words(&value.integers().collect::<Vec<_>>()).ok()))
}

/// The last scrub of the error log.
pub(crate) async fn error_scrub(directory: &Zap) -> Result<Option<ErrorScrubPhys>, ReadError> {
    let value = directory.get("error_scrub").await?;
    Ok(value.and_then(|value| ErrorScrubPhys::from_words(&value.integers().collect::<Vec<_>>()).ok()))
}

/// The features of the pool. Descriptions of those in `known` are not read again: they never change.
pub(crate) async fn features(
    mos: &ObjectSet,
    directory: &Zap,
    known: &[FeatureState],
) -> Result<Vec<FeatureState>, ReadError> {
    let descriptions = match directory.get_u64("feature_descriptions").await? {
        Some(object) => Some(Zap::open_in(mos, object).await?),
        None => None,
    };
    let mut all = Vec::new();
    for (entry, for_read) in [("features_for_read", true), ("features_for_write", false)] {
        let object = required(directory, entry).await?;
        for (guid, count) in Zap::open_in(mos, object).await?.numbers().await? {
            let description = match (&descriptions, known.iter().find(|feature| feature.guid == guid)) {
                (_, Some(feature)) => feature.description.clone(),
                (Some(zap), None) => {
                    zap.get(guid.as_str()).await?.and_then(|value| value.as_text().map(str::to_owned))
                }
                (None, None) => None,
            };
            all.push(FeatureState {
                guid,
                for_read,
                count,
                description: description.filter(|text| !text.is_empty()),
            });
        }
    }
    all.sort_by(|a, b| a.guid.cmp(&b.guid));
    Ok(all)
}

/// The configurations of spares or caches at rest.
pub(crate) async fn device_list(
    mos: &ObjectSet,
    directory: &Zap,
    name: &str,
) -> Result<Vec<NvList>, ReadError> {
    let Some(object) = directory.get_u64(name).await?.filter(|&object| object != 0) else {
        return Ok(Vec::new());
    };
    let list = packed_nvlist(mos, object).await?;
    Ok(list.nvlist_array(name).unwrap_or_default().to_vec())
}

/// The txgs the leaves of a top-level device missed. A leaf whose log cannot be read may have missed anything, and so is
/// taken to have missed everything; unless too many are like that: then what they have is all there is, and checksums have
/// to find what is old.
async fn load_dtls(mos: &ObjectSet, top: &Vdev) {
    let (leaves, mut unknown) = (top.leaves(), Vec::new());
    for vdev in &leaves {
        let Some((leaf, object)) = vdev.leaf.as_ref().and_then(|leaf| Some((leaf, leaf.dtl_object?))) else {
            continue;
        };
        match missed_txgs(mos, object).await {
            Ok(set) => leaf.missed.add_all(&set),
            Err(error) => {
                tracing::warn!(device = %vdev, %error, "dirty time log not readable");
                unknown.push(leaf);
            }
        }
    }
    let tolerated = match &top.kind {
        Kind::Mirror | Kind::Replacing | Kind::Spare => leaves.len().saturating_sub(1),
        Kind::Raidz(geometry) => geometry.parity,
        _ => 0,
    };
    if unknown.len() <= tolerated {
        let newest = mos.pointer().physical_birth().max(mos.pointer().birth());
        unknown.into_iter().for_each(|leaf| leaf.missed.assume_all(newest + 1));
    }
}

async fn missed_txgs(mos: &ObjectSet, number: u64) -> Result<TxgSet, ReadError> {
    let at = Bookmark { object: number, ..Bookmark::default() };
    let dnode = mos.dnode(number).await?;
    let header =
        spacemap::Header::decode(&dnode.dnode.bonus, dnode.order).map_err(ReadError::malformed(at))?;
    let words = words(mos, number, DTL_MAX).await?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let valid = bytes.get(..header.length as usize).unwrap_or(&bytes);
    let mut ranges = Vec::new();
    for entry in spacemap::entries(valid, ondisk::Order::Little) {
        if let MapEntry::Segment(segment) = entry.map_err(ReadError::malformed(at))?
            && segment.kind == spacemap::Kind::Alloc
        {
            ranges.push((segment.offset, segment.offset.saturating_add(segment.run)));
        }
    }
    Ok(TxgSet::from_ranges(ranges))
}

/// Which allocations a top-level device is for, and how it was expanded. Only for show, so failing to
/// read it fails nothing.
async fn load_class(mos: &ObjectSet, vdev: &Vdev) {
    let Some((top, object)) = vdev.top.as_ref().and_then(|top| Some((top, top.zap?))) else { return };
    let Ok(zap) = Zap::open_in(mos, object).await else { return };
    if let Ok(Some(state)) = zap.get_u64("org.openzfs:raidz_expand_state").await {
        let number = async |name: &str| zap.get_u64(name).await.ok().flatten().unwrap_or(0);
        let expansion = Expansion {
            state,
            start: number("org.openzfs:raidz_expand_start_time").await,
            end: number("org.openzfs:raidz_expand_end_time").await,
            copied: number("org.openzfs:raidz_expand_bytes_copied").await,
        };
        let _already_known = top.expansion.set(expansion);
    }
    if let Ok(Some(value)) = zap.get("org.zfsonlinux:allocation_bias").await {
        let class = match value.as_text() {
            Some("special") => Class::Special,
            Some("dedup") => Class::Dedup,
            Some("log") => Class::Log,
            _ => Class::Normal,
        };
        let _already_known = top.bias.set(class);
    }
}
