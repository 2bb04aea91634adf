//! What the MOS adds to the device tree: mappings of removed devices, the checksum salt, dirty time
//! logs, allocation classes, features, spares and caches.
//!
//! The order matters: mappings before anything that may lie on a removed device, the salt before any
//! block with a salted checksum. Facts: docs/format/mos.md §1–§5.

use std::sync::Arc;

use ondisk::{
    Order,
    indirect::ENTRY_BYTES,
    nvlist::NvList,
    scan::{ErrorScrubPhys, ScanPhys},
    spacemap::{self, MapEntry},
    uberblock::Uberblock,
};

use super::{
    ImportError, UnsupportedFeature,
    open::{CONFIG_MAX, LARGE_GANG_HEADERS, MAPPINGS_MAX},
};
use crate::{
    dmu::{Object, ObjectSet, ReadError, Run},
    features::FeatureState,
    io::{Bookmark, PoolIo},
    pool::Removal,
    status::human,
    vdev::{Class, Expansion, Kind, Mapping, TxgSet, Vdev, indirect},
    zap::Zap,
};

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

/// Calls `f` with the number, the content and the byte order of each of the first `blocks` blocks of an object that has any,
/// one after the other.
async fn each_block(
    object: &Object,
    blocks: u64,
    mut f: impl FnMut(u64, &[u8], Order) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut runs = object.runs(0, 0..blocks);
    let mut batch = Vec::new();
    loop {
        let run = runs.next().await?;
        let done = run.is_none();
        if let Some(Run::Block { blkid, pointer }) = run {
            batch.push((pointer, object.bookmark(0, blkid)));
        }
        if batch.len() >= BATCH || done {
            for (content, (pointer, at)) in object.source().read_many(&batch).await.into_iter().zip(&batch) {
                f(at.blkid, &content?, pointer.order())?;
            }
            batch.clear();
        }
        if done {
            return Ok(());
        }
    }
}

/// The data of an object as words, each block in its own byte order; holes are zeroes.
pub(crate) async fn words(mos: &ObjectSet, number: u64, limit_bytes: u64) -> Result<Vec<u64>, ReadError> {
    let object = mos.object(number).await?;
    if object.bytes() > limit_bytes {
        return Err(ReadError::TooLarge { objset: 0, object: number, limit: limit_bytes });
    }
    let per_block = object.block_bytes() as usize / 8;
    let mut words = vec![0; (object.bytes() / 8) as usize];
    each_block(&object, object.max_block_id() + 1, |blkid, content, order| {
        let place = words.get_mut(blkid as usize * per_block..).unwrap_or_default();
        for (word, value) in place.iter_mut().take(per_block).zip(order.words(content)) {
            *word = value;
        }
        Ok(())
    })
    .await?;
    Ok(words)
}

/// What must be known before the MOS can be read through `io`: mappings of removed devices.
///
/// They are kept where they can be read without each other, or at least one after the other: whatever
/// cannot be read yet is tried again after the others. All of them may take `most` bytes of memory.
pub(super) async fn before_mos(
    io: &Arc<PoolIo>,
    uberblock: &Uberblock,
    most: u64,
) -> Result<(), ImportError> {
    let tree = io.tree();
    let mut open: Vec<&Vdev> =
        tree.tops.iter().filter(|top| matches!(top.kind, Kind::Indirect { .. })).collect();
    while !open.is_empty() {
        let mut failure = None;
        let mut left = Vec::new();
        let before = open.len();
        for top in open {
            match load_mapping(io, uberblock, top, most).await {
                Ok(()) => {}
                // Nor are others read that lie behind it: that would look like damage.
                Err(error @ ImportError::Unsupported { .. }) => return Err(error),
                Err(error) => {
                    left.push(top);
                    failure.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failure.filter(|_| left.len() == before) {
            return Err(error);
        }
        open = left;
    }
    Ok(())
}

async fn load_mapping(
    io: &Arc<PoolIo>,
    uberblock: &Uberblock,
    vdev: &Vdev,
    most: u64,
) -> Result<(), ImportError> {
    let (Kind::Indirect { mapping_object, .. }, Some(top)) = (&vdev.kind, &vdev.top) else { return Ok(()) };
    let damaged = |source: ReadError| ImportError::Metadata { txg: uberblock.txg, source };
    let at = Bookmark { object: *mapping_object, ..Bookmark::default() };
    let mos = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await.map_err(damaged)?;
    let object = mos.object(*mapping_object).await.map_err(damaged)?;
    let header = ondisk::indirect::Header::decode(&object.dnode().bonus, object.bonus_order())
        .map_err(ReadError::malformed(at))
        .map_err(damaged)?;
    let entries = header.entries.min(object.bytes() / ENTRY_BYTES as u64);
    let tree = io.tree();
    let others = tree.tops.iter().filter_map(|top| top.top.as_ref()?.mapping.get());
    let others: u64 = others.map(|mapping| mapping.len() as u64).sum();
    let needs = others.saturating_add(entries).saturating_mul(size_of::<indirect::Run>() as u64);
    if needs > most {
        return Err(too_much(vdev, needs, most));
    }
    let runs = mapping_runs(&object, entries).await.map_err(damaged)?;
    let bad = ReadError::Inconsistent { at, what: "runs of a removed device overlap" };
    let mapping = Mapping::new(runs).ok_or(bad).map_err(damaged)?;
    let _already_known = top.mapping.set(mapping);
    Ok(())
}

/// What is the matter with a pool whose mappings, with that of `vdev`, take more memory than they may.
fn too_much(vdev: &Vdev, needs: u64, most: u64) -> ImportError {
    let description = format!(
        "with that of {}, the mappings of its removed devices take {} of memory, more than the {} that they may have (a \
         quarter of the daemon's limit, {} at most); nothing is wrong with them",
        vdev.display_name(),
        human(needs),
        human(most),
        human(MAPPINGS_MAX)
    );
    let guid = "com.delphix:device_removal".to_owned();
    ImportError::Unsupported { features: vec![UnsupportedFeature { guid, description: Some(description) }] }
}

/// The first `entries` runs of a mapping object.
async fn mapping_runs(object: &Object, entries: u64) -> Result<Vec<indirect::Run>, ReadError> {
    let mut runs = MappingRuns::new(entries as usize);
    let missing =
        |blkid| ReadError::Inconsistent { at: object.bookmark(0, blkid), what: "a mapping has a hole" };
    let mut next = 0;
    let blocks = entries.saturating_mul(ENTRY_BYTES as u64).div_ceil(object.block_bytes());
    each_block(object, blocks, |blkid, content, order| {
        if blkid != next {
            return Err(missing(next));
        }
        next += 1;
        runs.take(content, order).map_err(ReadError::malformed(object.bookmark(0, blkid)))
    })
    .await?;
    if (runs.found.len() as u64) < entries { Err(missing(next)) } else { Ok(runs.found) }
}

/// Runs out of the blocks of a mapping object, one block after the other: all of it beside them would be as much again.
struct MappingRuns {
    entries: usize,
    found: Vec<indirect::Run>,
    /// What is in the blocks so far of the next one, least significant byte of each word first.
    rest: Vec<u8>,
}

impl MappingRuns {
    fn new(entries: usize) -> Self {
        Self { entries, found: Vec::with_capacity(entries), rest: Vec::new() }
    }

    fn take(&mut self, block: &[u8], order: Order) -> Result<(), ondisk::Error> {
        self.rest.extend(order.words(block).flat_map(u64::to_le_bytes));
        let left = self.entries - self.found.len();
        for entry in ondisk::indirect::Mapping::new(&self.rest, Order::Little).entries().take(left) {
            let ondisk::indirect::MappingEntry { source, destination } = entry?;
            self.found.push(indirect::Run {
                source,
                target: destination.offset,
                // Of 24 bits on disk.
                sectors: (destination.asize >> 9) as u32,
                vdev: destination.vdev,
            });
        }
        self.rest.drain(..self.rest.len() / ENTRY_BYTES * ENTRY_BYTES);
        Ok(())
    }
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
    for entry in spacemap::entries(valid, Order::Little) {
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

#[cfg(test)]
mod tests {
    use ondisk::{blkptr::Dva, indirect::MappingEntry};

    use super::*;

    #[test]
    fn runs_of_a_mapping_that_lie_in_two_blocks_are_found_in_either_order() {
        let run = |n: u32| indirect::Run {
            source: u64::from(n) << 20,
            target: u64::from(n) << 30,
            sectors: n + 1,
            vdev: n % 2,
        };
        for order in [Order::Little, Order::Big] {
            let entry = |n: u32| {
                let indirect::Run { source, target, sectors, vdev } = run(n);
                let asize = u64::from(sectors) << 9;
                let destination = Dva { vdev, offset: target, asize, gang: false };
                MappingEntry { source, destination }.encode(order).unwrap()
            };
            // What is behind the last entry is nobody's.
            let data: Vec<u8> = (0..9).flat_map(entry).chain([0; 40]).collect();
            for bytes in [8, 16, 40, 64, 512] {
                let mut runs = MappingRuns::new(9);
                data.chunks(bytes).for_each(|block| runs.take(block, order).unwrap());
                assert_eq!(runs.found, (0..9).map(run).collect::<Vec<_>>(), "blocks of {bytes} bytes");
                assert_eq!(runs.found.capacity(), 9, "no more memory than they take");
            }
        }
        assert_eq!(size_of::<indirect::Run>(), ENTRY_BYTES);
    }
}
