//! Writing down what changed: entries appended to space maps, their headers, and maps written anew when they
//! have grown far beyond what they say.
//!
//! Facts: docs/format/spacemap.md §2–§4.

use ondisk::{
    Order,
    dnode::ObjectType,
    spacemap::{Encoder, Header, Kind},
};

use super::{
    Allocator,
    metaslab::BUCKETS,
    ranges::{Change, Ranges},
};
use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
    mos::features,
};

/// Feature that counts space map objects with a histogram.
const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
/// Changes made entries in one go: many that come from logs of others are not to be in memory once more as those.
pub(super) const PIECE: usize = 1 << 16;
/// A map of fewer blocks than this is never worth condensing.
const CONDENSE_BLOCKS: u64 = 4;
/// Maps loaded only to be condensed or counted, per transaction group: each costs reads in the way of the commit.
const CONDENSE_LOADS: u32 = 2;
/// Transaction groups between exact counts of a large metaslab's histogram, not the same for all: a count looks
/// at every bit, and the histogram is only a hint.
const COUNT_EVERY: u64 = 16;
/// Units of a metaslab small enough to be counted every time: 2048 words to look at.
const COUNT_ALWAYS: u64 = 1 << 17;

impl Allocator {
    /// Appends to the space maps (or the log) what was allocated and released since the last call. True if
    /// there was anything, so that the MOS is dirty again. Creates space maps and array entries as needed,
    /// condenses maps that grew too long (in the first call of a transaction group only).
    ///
    /// # Errors
    /// A map cannot be read or written; space was released that was not in use (found by
    /// [`release`](Self::release), told here).
    pub async fn write_maps(&mut self, mos: &mut MutSet) -> Result<bool, EngineError> {
        if let Some(error) = &self.poison {
            return Err(error.clone());
        }
        let mut wrote = self.create_arrays(mos).await?;
        let mut logged = Vec::new();
        for (number, index, changes) in self.drain()? {
            wrote = true;
            if self.tops[number].as_ref().is_some_and(|top| top.metaslabs[index].object == 0) {
                self.create_map(number, index, mos).await?;
            }
            if self.is_logged(number) {
                logged.push((number, index, changes));
            } else {
                self.append(number, index, changes, mos).await?;
            }
        }
        if !logged.is_empty() {
            self.append_log(logged, mos).await?;
        }
        self.first = false;
        Ok(wrote)
    }

    /// What changed since the last call: device, metaslab, changes.
    pub(super) fn drain(&mut self) -> Result<Vec<(usize, usize, Vec<Change>)>, EngineError> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        let mut drained = Vec::with_capacity(changed.len());
        for (number, index) in changed {
            let Some(top) = &mut self.tops[number] else { continue };
            let metaslab = &mut top.metaslabs[index];
            metaslab.listed = false;
            let Ok((allocs, frees)) = metaslab.changes(self.commits) else {
                let (vdev, detail) = (top.id, "space was released twice".to_owned());
                return Err(self.fail(EngineError::SpaceMap { vdev, metaslab: index as u64, detail }));
            };
            if !allocs.is_empty() || !frees.is_empty() {
                drained.push((number, index, in_order(allocs, frees)));
            }
        }
        Ok(drained)
    }

    /// Gives every device its metaslab array.
    async fn create_arrays(&mut self, mos: &mut MutSet) -> Result<bool, EngineError> {
        let mut created = false;
        for top in self.tops.iter_mut().flatten().filter(|top| top.array == 0) {
            top.array = mos.allocate(NewObject::of(ObjectType::OBJECT_ARRAY).blocks(512)).await?;
            created = true;
        }
        Ok(created)
    }

    /// A new space map object; returns it and its header, not written yet.
    pub(super) async fn new_map(
        &self,
        block_bytes: u64,
        mos: &mut MutSet,
    ) -> Result<(u64, Header), EngineError> {
        let histogram = self.traits.spacemap_histogram.then_some([0; BUCKETS]);
        let mut header = Header { object: 0, length: 0, alloc: 0, histogram };
        let bonus = header.encode(Order::Little);
        let new = NewObject { indirect_shift: 14, ..NewObject::of(ObjectType::SPACE_MAP) }
            .blocks(block_bytes as u32)
            .bonus(ObjectType::SPACE_MAP_HEADER, &bonus);
        let object = mos.allocate(new).await?;
        header.object = object;
        mos.set_bonus(object, &header.encode(Order::Little)).await?;
        if header.histogram.is_some() {
            features::add(mos, HISTOGRAM, 1).await?;
        }
        Ok((object, header))
    }

    /// Frees a space map object.
    pub(super) async fn free_map(&self, object: u64, mos: &mut MutSet) -> Result<(), EngineError> {
        // What was counted is whether it has the long bonus, not whether the feature is enabled now.
        let counted = mos.bonus(object).await?.len() > 24;
        mos.free(object).await?;
        if counted && self.traits.spacemap_histogram {
            features::add(mos, HISTOGRAM, -1).await?;
        }
        Ok(())
    }

    async fn create_map(&mut self, number: usize, index: usize, mos: &mut MutSet) -> Result<(), EngineError> {
        let block_bytes = if self.traits.log_spacemap { 128 << 10 } else { 16 << 10 };
        let (object, header) = self.new_map(block_bytes, mos).await?;
        let Some(top) = &mut self.tops[number] else { return Ok(()) };
        let metaslab = &mut top.metaslabs[index];
        metaslab.object = object;
        metaslab.header = header;
        metaslab.block_bytes = block_bytes;
        mos.write(top.array, index as u64 * 8, &object.to_le_bytes()).await
    }

    /// Appends changes to a metaslab's own map, or writes that anew.
    pub(super) async fn append(
        &mut self,
        number: usize,
        index: usize,
        mut changes: Vec<Change>,
        mos: &mut MutSet,
    ) -> Result<(), EngineError> {
        let Some(top) = &mut self.tops[number] else { return Ok(()) };
        // First of all: should the metaslab be loaded below, these are part of its state.
        let flushed = &mut top.metaslabs[index].flushed;
        let (from, count) = (flushed.len(), changes.len() as u64);
        if flushed.is_empty() {
            *flushed = changes;
        } else {
            flushed.append(&mut changes);
        }
        let condensed = if self.first { self.condensed(number, index, 16 * count).await? } else { None };
        let (txg, two_words) = (self.txg, self.traits.spacemap_v2);
        let Some(top) = &mut self.tops[number] else { return Ok(()) };
        let (encoding, ashift) = (top.encoding(two_words), top.ashift);
        let metaslab = &mut top.metaslabs[index];
        let object = metaslab.object;
        if let Some(bytes) = condensed {
            mos.truncate(object, 0).await?;
            mos.write(object, 0, &bytes).await?;
            metaslab.header.length = bytes.len() as u64;
            metaslab.header.alloc = (metaslab.used << ashift) as i64;
            metaslab.look_at = 0;
        } else {
            for changes in metaslab.flushed[from..].chunks(PIECE) {
                let length = metaslab.header.length;
                let mut encoder = Encoder::new(length, metaslab.block_bytes, Order::Little)
                    .map_err(EngineError::encode("a space map"))?;
                for change in changes {
                    encoder
                        .segment(change.kind, change.units.clone(), encoding)
                        .map_err(EngineError::encode("a space map"))?;
                }
                let bytes = encoder.finish();
                mos.write(object, length, &bytes).await?;
                metaslab.header.length = length + bytes.len() as u64;
                metaslab.header.alloc += net(changes) << ashift;
            }
        }
        let due = metaslab.len <= COUNT_ALWAYS
            || metaslab.fresh
            || (txg + index as u64).is_multiple_of(COUNT_EVERY);
        if due && metaslab.loaded.is_some() {
            metaslab.count_histogram();
        } else {
            metaslab.guess_histogram(from);
            if metaslab.is_doubtful() {
                self.doubtful.insert((number, index));
            }
        }
        let bonus = metaslab.header.encode(Order::Little);
        mos.set_bonus(object, &bonus).await
    }

    /// Looks for histograms that were guessed for too long by whoever had the pool before.
    pub(super) fn doubt(&mut self) {
        for (number, top) in self.tops.iter().enumerate() {
            let metaslabs = top.iter().flat_map(|top| &top.metaslabs).enumerate();
            let doubtful = metaslabs.filter(|(_, metaslab)| metaslab.is_doubtful());
            self.doubtful.extend(doubtful.map(|(index, _)| (number, index)));
        }
    }

    /// Counts histograms that were guessed for too long, a few of those that have to be loaded for it: a command that frees
    /// loads nothing, and what it leaves nobody may change again.
    pub(super) async fn recount(&mut self, mos: &mut MutSet) -> Result<(), EngineError> {
        for place in std::mem::take(&mut self.doubtful) {
            let (number, index) = place;
            let top = self.tops.get(number).and_then(Option::as_ref);
            let metaslab = top.and_then(|top| top.metaslabs.get(index));
            let Some(metaslab) = metaslab.filter(|metaslab| metaslab.is_doubtful()) else { continue };
            // The bits know of what is not in its own map, too.
            let is_settled =
                metaslab.taken.is_empty() && metaslab.given.is_empty() && metaslab.since.is_empty();
            let is_loaded = metaslab.loaded.is_some();
            if !is_settled || !is_loaded && self.condense_loads >= CONDENSE_LOADS {
                self.doubtful.insert(place);
                continue;
            }
            if !is_loaded {
                self.condense_loads += 1;
                // Whoever needs it will say why it cannot be had: a histogram is only a hint.
                if self.load(number, index).await.is_err() {
                    continue;
                }
            }
            let Some(top) = &mut self.tops[number] else { continue };
            let metaslab = &mut top.metaslabs[index];
            metaslab.count_histogram();
            let bonus = metaslab.header.encode(Order::Little);
            mos.set_bonus(metaslab.object, &bonus).await?;
        }
        Ok(())
    }

    /// The shortest map that says what is in use now, if it is worth replacing the present one by it.
    async fn condensed(
        &mut self,
        number: usize,
        index: usize,
        more: u64,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let Some(top) = &self.tops[number] else { return Ok(None) };
        let metaslab = &top.metaslabs[index];
        let length = metaslab.header.length + more;
        let long = length > CONDENSE_BLOCKS * metaslab.block_bytes && length >= metaslab.look_at;
        // The bits know of what has no entries yet, which would be entered twice.
        let settled = metaslab.taken.is_empty() && metaslab.given.is_empty();
        if !settled || !long {
            return Ok(None);
        }
        if metaslab.loaded.is_none() {
            if self.condense_loads >= CONDENSE_LOADS {
                return Ok(None);
            }
            self.condense_loads += 1;
            self.load(number, index).await?;
        }
        let two_words = self.traits.spacemap_v2;
        let Some(top) = &mut self.tops[number] else { return Ok(None) };
        let encoding = top.encoding(two_words);
        let metaslab = &mut top.metaslabs[index];
        let Some(loaded) = &metaslab.loaded else { return Ok(None) };
        let mut encoder = Encoder::new(0, metaslab.block_bytes, Order::Little)
            .map_err(EngineError::encode("a space map"))?;
        for run in loaded.used.runs(true) {
            encoder.segment(Kind::Alloc, run, encoding).map_err(EngineError::encode("a space map"))?;
        }
        let bytes = encoder.finish();
        if length > 2 * bytes.len() as u64 {
            return Ok(Some(bytes));
        }
        metaslab.look_at = length + length / 4;
        Ok(None)
    }
}

/// Allocations, then frees.
pub(super) fn in_order(allocs: Ranges, frees: Ranges) -> Vec<Change> {
    let allocs = allocs.into_iter().map(|units| Change { kind: Kind::Alloc, units });
    let frees = frees.into_iter().map(|units| Change { kind: Kind::Free, units });
    allocs.chain(frees).collect()
}

/// Units allocated minus units freed.
pub(super) fn net(changes: &[Change]) -> i64 {
    changes
        .iter()
        .map(|change| {
            let units = (change.units.end - change.units.start) as i64;
            if change.kind == Kind::Alloc { units } else { -units }
        })
        .sum()
}
