//! Space maps against what is really in use: leaks, and space that two blocks claim.
//!
//! Two bits for each smallest unit of a top-level device: *allocated* (what the space maps say, logs
//! applied) and *claimed* (what blocks that can be reached occupy). At the end both must be equal. Claiming
//! is one atomic operation per 64 units, so all workers claim at once without a lock.
//!
//! Blocks that several pointers share on purpose (deduplication, block cloning) are claimed once. A removed
//! device has no space of its own: claims go through its mapping.
//! Facts: docs/format/spacemap.md, docs/format/mos.md §8.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use ondisk::{
    Order, brt,
    spacemap::{self, Header, Kind as Change, MapEntry},
    zap::OwnedKey,
};
use parking_lot::Mutex;

use crate::{
    Pool,
    dmu::{ObjectSet, ReadError},
    import::words,
    io::Bookmark,
    space::metaslab_bytes,
    vdev::{Kind, Tree},
    zap::Zap,
};

/// Largest array of metaslabs accepted, in bytes.
const ARRAY_MAX: u64 = 1 << 20;
/// Memory for the bits of all devices, in bytes: enough for 2 TiB in units of 4 KiB. Larger pools are
/// verified without this comparison.
const BITS_MAX: u64 = 128 << 20;
/// Removed devices that lead to removed devices.
const REMAP_DEPTH_MAX: usize = 32;
/// Shared blocks remembered.
const SHARED_MAX: usize = 1 << 24;

/// The comparison for one top-level device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopClaims {
    /// Its id.
    pub vdev: u64,
    /// Allocated, say the space maps.
    pub allocated: u64,
    /// Occupied by blocks that can be reached.
    pub claimed: u64,
    /// Allocated and not reachable.
    pub leaked: u64,
    /// Reachable, yet free for the next writer.
    pub unallocated: u64,
}

/// A claim that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Another block is there.
    Twice,
    /// The space maps say it is free.
    Free,
    /// No device has this range.
    Outside,
}

#[derive(Debug)]
struct Bits {
    shift: u32,
    units: u64,
    allocated: Vec<u64>,
    claimed: Vec<AtomicU64>,
}

/// Bits of all devices.
#[derive(Debug)]
pub(super) struct Claims {
    tops: Vec<Option<Bits>>,
    /// Why nothing is compared.
    skipped: Option<String>,
    /// First bytes of blocks that clones share.
    cloned: BTreeSet<(u64, u64)>,
    /// First bytes of shared blocks that have been claimed.
    shared: Mutex<BTreeSet<(u64, u64)>>,
}

impl Claims {
    /// Reads the space maps.
    pub(super) async fn read(pool: &Pool) -> Self {
        let mut claims =
            Self { tops: Vec::new(), skipped: None, cloned: BTreeSet::new(), shared: Mutex::default() };
        let bytes: u64 = pool
            .tree()
            .tops
            .iter()
            .filter_map(units)
            .fold(0, |sum, (_, units)| sum.saturating_add(units / 4));
        if bytes > BITS_MAX {
            claims.skipped =
                Some("the pool is too large to compare its space maps with its blocks".to_owned());
            return claims;
        }
        if pool.tree().tops.iter().filter_map(|top| top.top.as_ref()).any(|top| top.removing) {
            claims.skipped =
                Some("a device is being removed: what it has in two places is not compared".to_owned());
        }
        claims.tops = pool
            .tree()
            .tops
            .iter()
            .map(|top| units(top).map(|(shift, units)| Bits::new(shift, units)))
            .collect();
        if let Err(error) = claims.load(pool).await {
            claims.skipped = Some(format!("the space maps cannot be read: {error}"));
        }
        claims
    }

    async fn load(&mut self, pool: &Pool) -> Result<(), ReadError> {
        let mos = pool.mos();
        let mut since = Vec::new();
        for (vdev, bits) in pool.tree().tops.iter().zip(&mut self.tops) {
            let mut unflushed = Vec::new();
            if let (Some(top), Some(bits)) = (&vdev.top, bits.as_mut()) {
                if top.metaslab_array != 0 {
                    let array = words(mos, top.metaslab_array, ARRAY_MAX).await?;
                    for (index, object) in array.into_iter().enumerate().filter(|(_, object)| *object != 0) {
                        let start = (index as u64).checked_shl(top.metaslab_shift).unwrap_or(u64::MAX);
                        for segment in segments(mos, object).await? {
                            bits.set_allocated(segment.range(bits.shift), start, segment.kind);
                        }
                    }
                }
                if let Some(zap) = top.zap
                    && let Some(object) =
                        Zap::open_in(mos, zap).await?.get_u64("com.delphix:ms_unflushed_phys_txgs").await?
                {
                    unflushed = words(mos, object, ARRAY_MAX).await?;
                }
            }
            since.push(unflushed);
        }
        if let Some(object) = pool.directory().get_u64("com.delphix:log_spacemap_zap").await? {
            let mut logs: Vec<(u64, u64)> = Vec::new();
            for (txg, log) in Zap::open_in(mos, object).await?.numbers().await? {
                logs.extend(u64::from_str_radix(&txg, 16).ok().map(|txg| (txg, log)));
            }
            logs.sort_unstable();
            let tree = pool.tree();
            for (txg, log) in logs {
                for segment in segments(mos, log).await? {
                    let id = segment.vdev.map_or(usize::MAX, |vdev| vdev as usize);
                    let Some(top) = tree.tops.get(id).and_then(|vdev| vdev.top.as_ref()) else {
                        continue;
                    };
                    let Some(range) = segment.range(9) else { continue };
                    let metaslab = range.start >> top.metaslab_shift.max(1);
                    let from = since[id].get(metaslab as usize).copied().unwrap_or(0);
                    if from != 0
                        && txg >= from
                        && let Some(Some(bits)) = self.tops.get_mut(id)
                    {
                        bits.set_allocated(Some(range), 0, segment.kind);
                    }
                }
            }
        }
        self.load_checkpoint(pool).await?;
        self.load_clones(pool).await
    }

    /// Blocks that only a checkpoint still holds stay allocated; they are not part of what is walked.
    async fn load_checkpoint(&mut self, pool: &Pool) -> Result<(), ReadError> {
        for (vdev, bits) in pool.tree().tops.iter().zip(&mut self.tops) {
            let (Some(zap), Some(bits)) = (vdev.top.as_ref().and_then(|top| top.zap), bits) else { continue };
            let zap = Zap::open_in(pool.mos(), zap).await?;
            let Some(object) = zap.get_u64("com.delphix:pool_checkpoint_sm").await? else { continue };
            for segment in segments(pool.mos(), object).await? {
                bits.set_allocated(segment.range(bits.shift), 0, Change::Free);
            }
        }
        Ok(())
    }

    async fn load_clones(&mut self, pool: &Pool) -> Result<(), ReadError> {
        for id in 0..self.tops.len() as u64 {
            let name = format!("{}{id}", brt::DIRECTORY_PREFIX);
            let Some(object) = pool.directory().get_u64(&name).await? else { continue };
            let found = pool.mos().dnode(object).await?;
            let at = Bookmark { object, ..Bookmark::default() };
            let table =
                brt::VdevTable::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
            if table.entries_object == 0 {
                continue;
            }
            let zap = Zap::open_in(pool.mos(), table.entries_object).await?;
            let mut entries = zap.entries();
            while let Some((key, value)) = entries.next().await? {
                if let OwnedKey::Words(key) = key
                    && let Ok(entry) = brt::Entry::from_zap(&key, &value, Order::Little)
                    && self.cloned.len() < SHARED_MAX
                {
                    self.cloned.insert((id, entry.offset));
                }
            }
        }
        Ok(())
    }

    /// Why there is no comparison, if there is none.
    pub(super) fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    /// Claims `asize` bytes for a block. `shared`: other pointers may lead to it as well.
    pub(super) fn claim(
        &self,
        tree: &Tree,
        vdev: u64,
        offset: u64,
        asize: u64,
        shared: bool,
    ) -> Option<Conflict> {
        if (shared || self.cloned.contains(&(vdev, offset))) && !self.claim_shared(vdev, offset) {
            return None;
        }
        self.claim_range(tree, vdev, offset, asize, 0)
    }

    fn claim_shared(&self, vdev: u64, offset: u64) -> bool {
        let mut shared = self.shared.lock();
        shared.len() >= SHARED_MAX || shared.insert((vdev, offset))
    }

    fn claim_range(&self, tree: &Tree, vdev: u64, offset: u64, asize: u64, depth: usize) -> Option<Conflict> {
        let top = tree.top(vdev)?;
        if let Kind::Indirect { .. } = top.kind {
            let mapping =
                top.top.as_ref().and_then(|top| top.mapping.get()).filter(|_| depth < REMAP_DEPTH_MAX)?;
            let Some(pieces) = mapping.lookup(offset, asize) else { return Some(Conflict::Outside) };
            let claim = |piece: &crate::vdev::indirect::Piece| {
                self.claim_range(tree, piece.vdev, piece.offset, piece.len, depth + 1)
            };
            return pieces.iter().filter_map(claim).next();
        }
        let bits = self.tops.get(usize::try_from(vdev).ok()?)?.as_ref()?;
        bits.claim(offset, asize)
    }

    /// The comparison, by device.
    pub(super) fn compare(&self) -> Vec<TopClaims> {
        let mut all = Vec::new();
        for (id, bits) in self.tops.iter().enumerate() {
            let Some(bits) = bits else { continue };
            let mut found = TopClaims { vdev: id as u64, ..TopClaims::default() };
            for (&allocated, claimed) in bits.allocated.iter().zip(&bits.claimed) {
                let claimed = claimed.load(Relaxed);
                let bytes = |word: u64| u64::from(word.count_ones()) << bits.shift;
                found.allocated += bytes(allocated);
                found.claimed += bytes(claimed);
                found.leaked += bytes(allocated & !claimed);
                found.unallocated += bytes(claimed & !allocated);
            }
            all.push(found);
        }
        all
    }
}

/// Unit (as a shift) and number of units of a top-level device that has space of its own.
fn units(vdev: &crate::vdev::Vdev) -> Option<(u32, u64)> {
    let top = vdev.top.as_ref()?;
    let has_space =
        !matches!(vdev.kind, Kind::Indirect { .. } | Kind::Hole | Kind::Missing | Kind::Unknown(_));
    has_space.then(|| (top.ashift, metaslab_bytes(top) >> top.ashift))
}

async fn segments(mos: &ObjectSet, object: u64) -> Result<Vec<spacemap::Segment>, ReadError> {
    let at = Bookmark { object, ..Bookmark::default() };
    let found = mos.dnode(object).await?;
    let header = Header::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
    let words = words(mos, object, spacemap::MAP_BYTES_MAX).await?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let valid = bytes.get(..header.length as usize).unwrap_or(&bytes);
    let mut segments = Vec::new();
    for entry in spacemap::entries(valid, Order::Little) {
        if let MapEntry::Segment(segment) = entry.map_err(ReadError::malformed(at))? {
            segments.push(segment);
        }
    }
    Ok(segments)
}

impl Bits {
    fn new(shift: u32, units: u64) -> Self {
        let words = units.div_ceil(64) as usize;
        let claimed = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Self { shift, units, allocated: vec![0; words], claimed }
    }

    fn set_allocated(&mut self, bytes: Option<Range<u64>>, base: u64, kind: Change) {
        let Some(bytes) = bytes else { return };
        let (start, end) = (base.saturating_add(bytes.start), base.saturating_add(bytes.end));
        for (word, mask) in masks(start >> self.shift, (end >> self.shift).min(self.units)) {
            match kind {
                Change::Alloc => self.allocated[word] |= mask,
                Change::Free => self.allocated[word] &= !mask,
            }
        }
    }

    fn claim(&self, offset: u64, asize: u64) -> Option<Conflict> {
        let end = offset.saturating_add(asize).div_ceil(1 << self.shift);
        if end > self.units {
            return Some(Conflict::Outside);
        }
        let mut conflict = None;
        for (word, mask) in masks(offset >> self.shift, end) {
            let before = self.claimed[word].fetch_or(mask, Relaxed);
            if before & mask != 0 {
                conflict = Some(Conflict::Twice);
            } else if self.allocated[word] & mask != mask {
                conflict = conflict.or(Some(Conflict::Free));
            }
        }
        conflict
    }
}

/// The words of a bitmap that a range of bits touches, with the bits in each.
fn masks(start: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, bit) = (at / 64, at % 64);
        let count = (64 - bit).min(end - at);
        at += count;
        let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << bit };
        Some((word as usize, mask))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_find_leaks_doubles_and_free_space() {
        let mut bits = Bits::new(12, 200);
        bits.set_allocated(Some(0..100 << 12), 0, Change::Alloc);
        bits.set_allocated(Some(10 << 12..20 << 12), 0, Change::Free);
        assert_eq!(bits.claim(0, 10 << 12), None);
        assert_eq!(bits.claim(5 << 12, 4096), Some(Conflict::Twice));
        assert_eq!(bits.claim(15 << 12, 4096), Some(Conflict::Free));
        assert_eq!(bits.claim(20 << 12, 70 << 12), None);
        assert_eq!(bits.claim(199 << 12, 2 << 12), Some(Conflict::Outside));
        let claims = Claims {
            tops: vec![Some(bits)],
            skipped: None,
            cloned: BTreeSet::new(),
            shared: Mutex::default(),
        };
        let expected = TopClaims {
            vdev: 0,
            allocated: 90 << 12,
            claimed: 81 << 12,
            leaked: 10 << 12,
            unallocated: 1 << 12,
        };
        assert_eq!(claims.compare(), [expected]);
    }
}
