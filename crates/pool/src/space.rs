//! How full a pool is: allocated bytes and fragmentation of each top-level device.
//!
//! A metaslab's space map notes in its header how much it has allocated; with log space maps, changes
//! of the last txgs are still only in the logs and are added here. No map is replayed: a sum needs no
//! ranges. Facts: docs/format/spacemap.md §1–§2, §6, docs/format/vdevs.md §10.

use std::{collections::BTreeSet, slice};

use disk::DiskInfo;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva},
    label::Geometry,
    spacemap::{self, Header, Kind as Change, MapEntry},
};

use crate::{
    Pool,
    dmu::{ObjectSet, ReadError},
    import::words,
    io::Bookmark,
    vdev::{Class, Geometry as RaidzGeometry, Kind, Top, Tree, Vdev},
    zap::Zap,
};

/// Largest array of metaslabs accepted, in bytes: 131072 metaslabs, the most OpenZFS makes.
const ARRAY_MAX: u64 = 1 << 20;
/// The most metaslabs of one device: what such an array can name.
const METASLABS_MAX: u64 = ARRAY_MAX / 8;

/// The feature without which no space map says how large the free segments are.
const HISTOGRAM: &str = "com.delphix:spacemap_histogram";

/// How bad free segments of 512 B, 1 KiB, … 512 MiB are, in percent: the figures behind OpenZFS's `FRAG`, as they
/// are in 2.3.2 and later. (Once 16 MiB counted as whole.)
const FRAGMENTATION: [u64; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Size and use of one top-level device, in bytes with parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopSpace {
    /// What its metaslabs hold.
    pub size: u64,
    /// Allocated of it.
    pub allocated: u64,
    /// 0–100, if its space maps say.
    pub fragmentation: Option<u64>,
    /// What it would hold in addition if it grew to what its leaves offer.
    pub expandable: u64,
}

/// What one metaslab contributes to its device's fragmentation.
#[derive(Clone, Copy, Debug)]
struct Slab {
    /// Bytes, with what the logs add.
    allocated: i128,
    /// 0–100; `None` if its space map does not say.
    fragmentation: Option<u64>,
}

/// Size and use of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// By id of the top-level device; zeroes for removed ones.
    pub tops: Vec<TopSpace>,
    /// Sum over all devices but logs.
    pub total: TopSpace,
    /// Sum over those that volumes' data may go to: without devices for metadata and dedup tables, and without what leaves.
    pub data: TopSpace,
}

impl Space {
    /// Percent allocated, of all or of what data may go to, whichever is fuller: clients' writes fail when the latter is full,
    /// however empty a device for metadata is.
    #[must_use]
    pub fn fullest(&self) -> u64 {
        self.total.capacity().max(self.data.capacity())
    }
}

impl TopSpace {
    /// Counts another device in.
    fn add(&mut self, top: &Self) {
        self.size = self.size.saturating_add(top.size);
        self.allocated = self.allocated.saturating_add(top.allocated);
        self.expandable = self.expandable.saturating_add(top.expandable);
    }

    /// Bytes free.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }

    /// Percent allocated, rounded down.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (u128::from(self.allocated) * 100).checked_div(u128::from(self.size)).unwrap_or(0) as u64
    }
}

/// Bytes in the metaslabs of a top-level device.
#[must_use]
pub fn metaslab_bytes(top: &Top) -> u64 {
    match top.metaslab_shift {
        0 => 0,
        shift => top.metaslabs() << shift,
    }
}

/// Bytes for blocks that the leaves of a device offer together, used or not; none if one of them cannot be asked.
#[must_use]
pub fn offered(vdev: &Vdev) -> Option<u64> {
    if let Some(leaf) = &vdev.leaf {
        return Geometry::new(leaf.disk()?.info().size).map(Geometry::asize);
    }
    let mut least = u64::MAX;
    for child in &vdev.children {
        least = least.min(offered(child)?);
    }
    match &vdev.kind {
        _ if vdev.children.is_empty() => None,
        Kind::Mirror | Kind::Replacing | Kind::Spare => Some(least),
        Kind::Raidz(geometry) => least.checked_mul(geometry.children as u64),
        _ => None,
    }
}

/// Bytes for blocks that each leaf of a top-level device must have room for.
fn leaf_bytes(top: &Vdev) -> u64 {
    let whole = top.top.as_ref().map_or(0, metaslab_bytes);
    match &top.kind {
        Kind::Raidz(geometry) => whole.div_ceil(geometry.children as u64),
        _ => whole,
    }
}

/// Where things are on a leaf of `top` of `size` bytes. `None` if it is too small: where its last labels would be there are
/// blocks.
#[must_use]
pub fn fitting(top: &Vdev, size: u64) -> Option<Geometry> {
    Geometry::new(size).filter(|geometry| geometry.asize() >= leaf_bytes(top))
}

/// The smallest piece that a device can be written to in, in bytes.
#[must_use]
pub fn addressable(is_file: bool, info: &DiskInfo) -> u32 {
    if is_file { 512 } else { info.logical_sector.max(1) }
}

/// Why a device can stand in for no leaf of some of a pool's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// In words that follow its name.
    pub why: String,
    /// Nor for any other: it is of no use.
    pub everywhere: bool,
}

/// Why a device of `size` bytes that can be written to in pieces of `sector` bytes can be no leaf of a top-level device.
#[must_use]
pub fn misfit_in(top: &Vdev, size: u64, sector: u32) -> Option<String> {
    if fitting(top, size).is_none() {
        return Some(format!("too small for {top}"));
    }
    let unit = top.top.as_ref().map_or(0, |of_top| 1_u64 << of_top.ashift.min(63));
    (u64::from(sector) > unit)
        .then(|| format!("with sectors of {sector} bytes, which are too large for {top} ({unit})"))
}

/// The same in a tree: for which of its devices that are no logs it is nothing, if there are such.
#[must_use]
pub fn misfit(tree: &Tree, size: u64, sector: u32) -> Option<Misfit> {
    let takes_spares =
        |top: &&Vdev| !top.is_log() && !top.leaves().is_empty() && !matches!(top.kind, Kind::Draid { .. });
    let tops = tree.tops.iter().filter(takes_spares);
    let judged: Vec<Option<String>> = tops.map(|top| misfit_in(top, size, sector)).collect();
    let everywhere = judged.iter().all(Option::is_some);
    let mut reasons = judged.into_iter().flatten();
    let first = reasons.next()?;
    let why = match reasons.count() {
        0 => first,
        more => format!("{first}, nor for {more} more"),
    };
    Some(Misfit { why, everywhere })
}

/// Bytes in the metaslabs that a top-level device would have in addition if it grew (`zpool online -e`).
#[must_use]
pub fn expandable(vdev: &Vdev) -> u64 {
    let Some(top) = vdev.top.as_ref().filter(|top| top.metaslab_shift > 0 && !top.removing) else { return 0 };
    // One more device of a RAIDZ is counted when all blocks have been moved.
    if matches!(&vdev.kind, Kind::Raidz(geometry) if geometry.reflow.is_some()) {
        return 0;
    }
    let metaslabs = |asize: u64| top.metaslabs_of(asize).min(METASLABS_MAX);
    let more = offered(vdev).map_or(0, |offered| metaslabs(offered).saturating_sub(metaslabs(top.asize)));
    more.checked_shl(top.metaslab_shift).unwrap_or(0)
}

/// Whether a top-level device would have more metaslabs if each of its parts had room for so many bytes of blocks.
#[must_use]
pub fn would_grow(top: &Vdev, bytes: u64) -> bool {
    let parts = if let Kind::Raidz(geometry) = &top.kind { geometry.children as u64 } else { 1 };
    top.top
        .as_ref()
        .is_some_and(|of_top| of_top.metaslabs_of(bytes.saturating_mul(parts)) > of_top.metaslabs())
}

/// What keeps a top-level device from using what leaf `guid` has beyond what is used; none if it has nothing.
#[must_use]
pub fn held_back(top: &Vdev, guid: u64) -> Option<String> {
    let parts = if top.children.is_empty() { slice::from_ref(top) } else { top.children.as_slice() };
    let is_larger = |part: &Vdev| offered(part).is_some_and(|bytes| would_grow(top, bytes));
    let own = parts.iter().find(|part| part.leaves().iter().any(|leaf| leaf.guid == guid))?;
    if !is_larger(own) || expandable(top) > 0 {
        return None;
    }
    let told = |part: &Vdev| match offered(part) {
        Some(_) => format!("{part} is no larger"),
        None => format!("{part} is away"),
    };
    let others: Vec<String> = parts.iter().filter(|part| !is_larger(part)).map(told).collect();
    Some(match others.is_empty() {
        true => format!("{top} has as many metaslabs as it can have; 'zpool add' makes the pool larger"),
        false => others.join(", "),
    })
}

/// What the devices hold that data may go to, free of parity: the unit of dataset sizes. Devices for metadata and
/// dedup tables are none of them, nor are those that take no more allocations. (`zpool list` has them all in `SIZE`.)
#[must_use]
pub fn deflated_size(tree: &Tree) -> u64 {
    let of = |vdev: &Vdev| match (&vdev.top, vdev.class(), &vdev.kind) {
        (_, _, Kind::Indirect { .. }) => 0,
        (Some(top), Class::Normal, _) if !top.removing && !top.non_allocating => {
            deflate(vdev, metaslab_bytes(top))
        }
        _ => 0,
    };
    tree.tops.iter().map(of).fold(0, u64::saturating_add)
}

/// Whether a device is for metadata or dedup tables only.
pub(crate) fn is_beside(vdev: &Vdev) -> bool {
    matches!(vdev.class(), Class::Special | Class::Dedup)
}

/// Bytes of a device as accounted to datasets: for RAIDZ less the parity a 128 KiB block would take.
#[must_use]
pub fn deflate(vdev: &Vdev, bytes: u64) -> u64 {
    (bytes >> 9).saturating_mul(deflate_ratio(vdev))
}

/// Accounted bytes per 512 allocated ones. It never changes: an expanded RAIDZ keeps that of its first width.
#[must_use]
pub fn deflate_ratio(vdev: &Vdev) -> u64 {
    match &vdev.kind {
        Kind::Raidz(geometry) => {
            (128 << 10) / (geometry.allocated(128 << 10, geometry.original_width()) >> 9).max(1)
        }
        // A stress tester's mirror of RAIDZ takes what its children take.
        _ => vdev.children.iter().map(deflate_ratio).min().unwrap_or(512),
    }
}

/// The [ratio](deflate_ratio) of each top-level device.
#[must_use]
pub fn deflate_ratios(tree: &Tree) -> Vec<u64> {
    tree.tops.iter().map(deflate_ratio).collect()
}

/// Accounted bytes of a block, all its copies, on devices with these [ratios](deflate_ratios).
#[must_use]
pub fn dsize(ratios: &[u64], bp: &BlkPtr) -> u64 {
    let ratio = |vdev: u32| usize::try_from(vdev).ok().and_then(|vdev| ratios.get(vdev)).copied();
    let of = |dva: Dva| (dva.asize >> 9).saturating_mul(ratio(dva.vdev).unwrap_or(512));
    bp.dvas().map(of).fold(0, u64::saturating_add)
}

/// The most that one block of `block` bytes counts, in accounted bytes, on whichever device for data it comes to
/// lie: whole sectors, on RAIDZ with parity and padding.
#[must_use]
pub fn block_space(tree: &Tree, block: u64) -> u64 {
    let on = |vdev: &Vdev| {
        let allocated = match (&vdev.kind, &vdev.top) {
            (Kind::Indirect { .. }, _) | (_, None) => 0,
            (Kind::Raidz(geometry), _) => geometry.allocated(block, geometry.children),
            (_, Some(top)) => block.next_multiple_of(1 << top.ashift.min(24)),
        };
        deflate(vdev, allocated)
    };
    tree.tops.iter().filter(|top| top.class() != Class::Log).map(on).fold(block, u64::max)
}

/// Bytes a volume of `size` bytes in blocks of `block` needs if every block is written: what `refreservation=auto`
/// reserves, to the byte as OpenZFS computes it.
///
/// Blocks on RAIDZ are counted with parity and padding, relative to a block of 128 KiB as all dataset sizes are;
/// indirect blocks and the volume's own metadata as if nothing of them were compressed.
/// Facts: docs/format/zvol.md §2, and what real pools reserved for their volumes.
#[must_use]
pub fn volume_reservation(tree: &Tree, size: u64, block: u64, copies: u64) -> u64 {
    volume_reservation_beside(tree, &[], size, block, copies)
}

/// The same in a pool that has such RAIDZ devices for data as well.
#[must_use]
pub fn volume_reservation_beside(
    tree: &Tree,
    more: &[RaidzGeometry],
    size: u64,
    block: u64,
    copies: u64,
) -> u64 {
    reservation(tree, more, 0, size, block, copies)
}

/// Bytes that such a volume takes of the pool: as [`volume_reservation`], and where sectors of devices for data without parity are
/// larger than its blocks, whole ones, which OpenZFS does not reserve. `more` are RAIDZ devices to come, `on_plain` is what a
/// block takes at the most on others to come; 0 if there are none.
#[must_use]
pub fn volume_space(
    tree: &Tree,
    more: &[RaidzGeometry],
    on_plain: u64,
    size: u64,
    block: u64,
    copies: u64,
) -> u64 {
    let on = |vdev: &Vdev| match (&vdev.kind, &vdev.top) {
        (Kind::Raidz(_) | Kind::Indirect { .. }, _) | (_, None) => 0,
        (_, Some(top)) => block.checked_next_multiple_of(1 << top.ashift.min(24)).unwrap_or(block),
    };
    let tops = tree.tops.iter().filter(|top| top.class() == Class::Normal);
    reservation(tree, more, tops.map(on).fold(on_plain, u64::max), size, block, copies)
}

/// What a volume's blocks and metadata come to, where a block takes `on_plain` bytes on devices without parity.
fn reservation(
    tree: &Tree,
    more: &[RaidzGeometry],
    on_plain: u64,
    size: u64,
    block: u64,
    copies: u64,
) -> u64 {
    /// Block pointers in an indirect block of 128 KiB.
    const POINTERS: u64 = 1024;
    /// Metadata blocks of the smallest volume.
    const LEAST: u64 = 7;
    let block = block.max(1);
    let mut blocks = size / block;
    let on = |geometry: &RaidzGeometry| {
        let stored = geometry.allocated(block, geometry.children);
        let reference = geometry.allocated(128 << 10, geometry.children) >> 9;
        blocks.saturating_mul(stored) / reference.max(1) * 256
    };
    let raidz = tree.tops.iter().filter_map(|top| match &top.kind {
        Kind::Raidz(geometry) if top.class() == Class::Normal => Some(geometry),
        _ => None,
    });
    let data = raidz.chain(more).map(on).fold(size.max(blocks.saturating_mul(on_plain)), u64::max);
    let mut metadata = LEAST;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    let metadata = metadata.saturating_mul((copies + 1).min(3)) << 17;
    data.saturating_mul(copies).saturating_add(metadata)
}

impl Space {
    /// What lies on the devices of `tree` for metadata and dedup tables, in accounted bytes.
    pub(crate) fn elsewhere(&self, tree: &Tree) -> u64 {
        let tops = tree.tops.iter().zip(&self.tops).filter(|(vdev, _)| is_beside(vdev));
        tops.map(|(vdev, top)| deflate(vdev, top.allocated)).fold(0, u64::saturating_add)
    }

    pub(crate) async fn read(pool: &Pool) -> Result<Self, ReadError> {
        let mos = pool.mos();
        let mut space = Self::default();
        let mut slabs = Vec::new();
        let mut unflushed = Vec::new();
        for vdev in &pool.tree().tops {
            let (top, of_top, since) = match &vdev.top {
                Some(top) if !matches!(vdev.kind, Kind::Indirect { .. }) => {
                    let (space, slabs) = read_top(mos, top).await?;
                    let space = TopSpace { expandable: expandable(vdev), ..space };
                    (space, slabs, unflushed_txgs(mos, top).await?)
                }
                _ => (TopSpace::default(), Vec::new(), Vec::new()),
            };
            space.tops.push(top);
            slabs.push(of_top);
            unflushed.push(since);
        }
        if let Some(object) = pool.directory().get_u64("com.delphix:log_spacemap_zap").await? {
            add_logs(mos, object, &pool.tree(), &unflushed, &mut space.tops, &mut slabs).await?;
        }
        if pool.features().iter().any(|feature| feature.guid == HISTOGRAM) {
            for ((vdev, space), slabs) in pool.tree().tops.iter().zip(&mut space.tops).zip(&slabs) {
                space.fragmentation = vdev.top.as_ref().and_then(|top| of_device(top, space.size, slabs));
            }
        }
        let mut normal = Vec::new();
        for (vdev, top) in pool.tree().tops.iter().zip(&space.tops) {
            if vdev.class() == Class::Log {
                continue;
            }
            space.total.add(top);
            if vdev.class() == Class::Normal {
                normal.push(*top);
                if vdev.top.as_ref().is_some_and(|top| !top.removing && !top.non_allocating) {
                    space.data.add(top);
                }
            }
        }
        space.total.fragmentation = of_class(&normal);
        Ok(space)
    }
}

async fn read_top(mos: &ObjectSet, top: &Top) -> Result<(TopSpace, Vec<Slab>), ReadError> {
    let mut space = TopSpace { size: metaslab_bytes(top), ..TopSpace::default() };
    let mut slabs = Vec::new();
    if top.metaslab_array == 0 {
        return Ok((space, slabs));
    }
    // The array is whole blocks, of which the last has room for more.
    let count = space.size >> top.metaslab_shift;
    let mut allocated = 0i64;
    for (index, object) in (0..).zip(words(mos, top.metaslab_array, ARRAY_MAX).await?) {
        // One without a map was never written to: all of it is free, in one piece.
        let mut slab = Slab { allocated: 0, fragmentation: Some(0) };
        if object != 0 {
            let at = Bookmark { object, ..Bookmark::default() };
            let dnode = mos.dnode(object).await?;
            let header = Header::decode(&dnode.dnode.bonus, dnode.order).map_err(ReadError::malformed(at))?;
            allocated = allocated.saturating_add(header.alloc);
            slab.allocated = header.alloc.into();
            slab.fragmentation = header.histogram.map(|histogram| of_metaslab(&histogram, top.ashift));
        }
        if index < count {
            slabs.push(slab);
        }
    }
    space.allocated = u64::try_from(allocated).unwrap_or(0);
    Ok((space, slabs))
}

/// Mean badness of a metaslab's free segments, weighted by bytes; 0 if nothing is free.
fn of_metaslab(histogram: &[u64], ashift: u32) -> u64 {
    let (mut weighted, mut total) = (0u128, 0u128);
    for (bucket, &count) in histogram.iter().enumerate() {
        let shift = bucket as u32 + ashift.min(24);
        let bytes = u128::from(count) << shift;
        let index = (shift.saturating_sub(9) as usize).min(FRAGMENTATION.len() - 1);
        weighted = weighted.saturating_add(bytes * u128::from(FRAGMENTATION[index]));
        total = total.saturating_add(bytes);
    }
    weighted.checked_div(total).map_or(0, |percent| percent as u64)
}

/// Mean of a device's metaslabs, weighted by the bytes free in each: a full one matters to no allocation. `None` if
/// nothing is free, or if most of them do not say.
///
/// OpenZFS leaves out the metaslab that it sets aside for the intent log, at import, on devices of more than 64.
fn of_device(top: &Top, size: u64, slabs: &[Slab]) -> Option<u64> {
    let count = size >> top.metaslab_shift;
    let silent = slabs.iter().filter(|slab| slab.fragmentation.is_none()).count() as u64;
    if count.saturating_sub(silent) < count.div_ceil(2) {
        return None;
    }
    let bytes = 1i128 << top.metaslab_shift;
    // Those beyond the array were never written to.
    let unused = count.saturating_sub(slabs.len() as u64);
    let (mut weighted, mut free) = (0i128, i128::from(unused) * bytes);
    for slab in slabs {
        if let Some(percent) = slab.fragmentation {
            let of_slab = (bytes - slab.allocated).clamp(0, bytes);
            weighted += of_slab * i128::from(percent);
            free += of_slab;
        }
    }
    weighted.checked_div(free).map(|percent| percent as u64)
}

/// Mean of a class's devices, weighted by their sizes: what a pool shows. `None` if one of them does not say.
fn of_class(tops: &[TopSpace]) -> Option<u64> {
    let (mut weighted, mut size) = (0u128, 0u128);
    // One that was removed has no size.
    for top in tops.iter().filter(|top| top.size > 0) {
        weighted += u128::from(top.fragmentation?) * u128::from(top.size);
        size += u128::from(top.size);
    }
    weighted.checked_div(size).map(|percent| percent as u64)
}

/// Per metaslab, the txg from which on changes are only in the logs; empty without log space maps.
async fn unflushed_txgs(mos: &ObjectSet, top: &Top) -> Result<Vec<u64>, ReadError> {
    let Some(zap) = top.zap else { return Ok(Vec::new()) };
    match Zap::open_in(mos, zap).await?.get_u64("com.delphix:ms_unflushed_phys_txgs").await? {
        Some(object) => words(mos, object, ARRAY_MAX).await,
        None => Ok(Vec::new()),
    }
}

/// Adds what the logs say beyond each metaslab's own map.
async fn add_logs(
    mos: &ObjectSet,
    object: u64,
    tree: &Tree,
    unflushed: &[Vec<u64>],
    tops: &mut [TopSpace],
    slabs: &mut [Vec<Slab>],
) -> Result<(), ReadError> {
    let mut net = vec![0i128; tops.len()];
    let mut seen = BTreeSet::new();
    for (txg, log) in Zap::open_in(mos, object).await?.numbers().await? {
        let Ok(txg) = u64::from_str_radix(&txg, 16) else { continue };
        let at = Bookmark { object: log, ..Bookmark::default() };
        if !seen.insert(log) {
            return Err(ReadError::Inconsistent {
                at,
                what: "two transaction groups have one log space map",
            });
        }
        let dnode = mos.dnode(log).await?;
        let header = Header::decode(&dnode.dnode.bonus, dnode.order).map_err(ReadError::malformed(at))?;
        let words = words(mos, log, spacemap::MAP_BYTES_MAX).await?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let valid = bytes.get(..header.length as usize).unwrap_or(&bytes);
        for entry in spacemap::entries(valid, Order::Little) {
            tokio::task::coop::consume_budget().await;
            let MapEntry::Segment(segment) = entry.map_err(ReadError::malformed(at))? else { continue };
            let id = segment.vdev.map_or(usize::MAX, |vdev| vdev as usize);
            let Some(top) = tree.tops.get(id).and_then(|vdev| vdev.top.as_ref()) else { continue };
            // Log maps count in 512 bytes whatever the ashift.
            let metaslab = segment.offset.checked_shl(9).unwrap_or(0) >> top.metaslab_shift.max(1);
            let since = unflushed[id].get(metaslab as usize).copied().unwrap_or(0);
            if since != 0 && txg >= since {
                let bytes = i128::from(segment.run) << 9;
                let change = if segment.kind == Change::Alloc { bytes } else { -bytes };
                net[id] += change;
                if let Some(slab) = slabs[id].get_mut(metaslab as usize) {
                    slab.allocated += change;
                }
            }
        }
    }
    for (top, net) in tops.iter_mut().zip(net) {
        top.allocated = u64::try_from(i128::from(top.allocated) + net).unwrap_or(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use disk::{Disk, MemDisk};
    use ondisk::nvlist::{NvList, Value};

    use super::*;
    use crate::vdev::Disks;

    /// A mirror of leaves that were whole disks, at these paths and of so many MiB (0: away), that uses 96 MiB of each. Their
    /// guids are 2, 3, …
    fn mirror(leaves: &[(&str, u64)]) -> Tree {
        let mut disks = Disks::new();
        let mut lists = Vec::new();
        for ((path, size), id) in leaves.iter().zip(0_u64..) {
            let mut list = NvList::new();
            list.set("type", "disk");
            list.set("path", *path);
            for (name, value) in [("id", id), ("guid", id + 2), ("whole_disk", 1)] {
                list.set(name, value);
            }
            lists.push(list);
            if *size > 0 {
                disks.insert(id + 2, Arc::new(MemDisk::new(size << 20)) as Arc<dyn Disk>);
            }
        }
        let mut top = NvList::new();
        top.set("type", "mirror");
        let sizes = [("ashift", 12), ("asize", 96 << 20), ("metaslab_array", 1), ("metaslab_shift", 24)];
        for (name, value) in [("id", 0_u64), ("guid", 1)].into_iter().chain(sizes) {
            top.set(name, value);
        }
        top.set("children", Value::NvListArray(lists));
        Tree::from_tops(9, &[&top], &disks, None).unwrap()
    }

    /// A device for metadata of larger sectors hid that volumes need more than they have reserved.
    #[test]
    fn only_the_sectors_of_devices_for_data_count_for_volumes() {
        let devices = [(0_u64, 9_u64), (1, 12)].map(|(id, ashift)| {
            let mut list = NvList::new();
            list.set("type", "disk");
            for (name, value) in [("id", id), ("guid", id + 1), ("ashift", ashift)] {
                list.set(name, value);
            }
            list
        });
        let tops: Vec<&NvList> = devices.iter().collect();
        let tree = Tree::from_tops(9, &tops, &Disks::new(), None).unwrap();
        let (size, block) = (1 << 20, 512);
        let auto = volume_reservation(&tree, size, block, 1);
        let padded = auto + 7 * size;
        assert_eq!(volume_space(&tree, &[], 0, size, block, 1), padded);
        let special = tree.tops[1].top.as_ref().unwrap();
        special.bias.set(Class::Special).unwrap();
        assert_eq!(volume_space(&tree, &[], 0, size, block, 1), auto);
        assert_eq!(volume_space(&tree, &[], 4096, size, block, 1), padded);
        assert_eq!(volume_space(&tree, &[], 4096, size, 4096, 1), volume_reservation(&tree, size, 4096, 1));
    }

    /// `zpool online -e` ended without a word, and nothing had grown.
    #[test]
    fn what_keeps_a_vdev_from_growing_is_told() {
        let told = |leaves: &[(&str, u64)]| held_back(&mirror(leaves).tops[0], 2);
        assert_eq!(told(&[("/dev/sda1", 101), ("/dev/sdb1", 101)]), None, "it uses all that it has");
        assert_eq!(told(&[("/dev/sda1", 101), ("/dev/sdb1", 201)]), None, "it is not this one that grew");
        assert_eq!(told(&[("/dev/sda1", 201), ("/dev/sdb1", 201)]), None, "it can grow");
        let small = told(&[("/dev/sda1", 201), ("/dev/sdb1", 101)]);
        assert_eq!(small.as_deref(), Some("sdb is no larger"));
        assert_eq!(told(&[("/dev/sda1", 201), ("/dev/sdb1", 0)]).as_deref(), Some("sdb is away"));
    }
}
