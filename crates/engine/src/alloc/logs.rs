//! Log space maps of pools that have them: the changes of all metaslabs of a transaction group in one map, instead
//! of an entry in each of dozens.
//!
//! Kept up in the simplest way that is always right: each transaction group begins by writing what the last
//! log says into the metaslabs' own maps, so there is one log, and nothing to weigh. Devices that were
//! never part of the scheme (added by us) stay out of it; their changes go straight to their maps.
//!
//! Facts: docs/format/spacemap.md §6.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    dnode::ObjectType,
    spacemap::{self, Encoder, Encoding, Header, Kind, MapEntry},
};
use pool::{
    Bookmark, Pool,
    dmu::{ObjectSet, ReadError},
    zap::Zap,
};

use super::{
    Allocator, load,
    maps::{PIECE, net},
    netting,
    ranges::Change,
    top::Top,
};
use crate::{
    EngineError,
    dmu::MutSet,
    mos::{self, zap},
};

/// Entry of the MOS directory.
const DIRECTORY_ENTRY: &str = "com.delphix:log_spacemap_zap";
/// Bytes of a log's blocks.
const BLOCK_BYTES: u64 = 128 << 10;
/// log2 of a log's unit.
const SHIFT: u32 = 9;
/// Bytes of an entry of a log.
const ENTRY_BYTES: u64 = 16;
/// Bytes of logs accepted of any pool, all together.
pub(super) const LOGS_MAX: u64 = 1 << 30;
/// Entries accepted for each metaslab, where that comes to more. OpenZFS lets logs grow to four blocks of them for each: this
/// is eight. A metaslab of fewer units counts for those.
const METASLAB_ENTRIES: u64 = 1 << 16;
/// Bytes of logs accepted in any case, 2^30 entries: at so many blocks OpenZFS makes its logs shorter, however large a pool is.
const LOGS_END: u64 = BLOCK_BYTES << 17;
/// Changes accepted of any pool that are only in logs and do not cancel out, all together: each takes memory for as long as the
/// pool is open, or until they are in the maps.
const CHANGES_MAX: u64 = 1 << 24;
/// The same for each metaslab, where that comes to more. A metaslab of fewer units counts for those.
const METASLAB_CHANGES: u64 = 1 << 13;
/// The same in any case: large devices cost whoever forges them nothing. It is 0.8 GB of 24 bytes each, and at times twice that;
/// OpenZFS makes its logs shorter when it has a gigabyte of them in memory.
const CHANGES_END: u64 = 1 << 25;
/// Changes of a metaslab that are too few to look what they come to, however many metaslabs there are.
const FEW: u64 = 64;

/// The logs of a pool.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// ZAP that names them; 0 if there is none yet.
    zap: u64,
    /// Transaction group and object of those that are on disk, ascending.
    old: Vec<(u64, u64)>,
    /// That of the running transaction group: object and header.
    current: Option<(u64, Header)>,
}

impl Logs {
    /// Reads the logs of a pool and gives their changes to the metaslabs.
    pub(super) async fn open(view: &Pool, tops: &mut [Option<Top>]) -> Result<Self, EngineError> {
        match view.directory().get_u64(DIRECTORY_ENTRY).await? {
            Some(object) => Self::read(view.mos(), object, tops).await,
            None => Ok(Self::default()),
        }
    }

    /// Reads those that the ZAP `names` of the MOS names. A forged one is long and takes no room: one block can be all of
    /// its blocks, and it can have many names. So it is known how much there is before any of it is read.
    pub(super) async fn read(
        mos: &ObjectSet,
        names: u64,
        tops: &mut [Option<Top>],
    ) -> Result<Self, EngineError> {
        let mut logs = Self { zap: names, ..Self::default() };
        for (name, object) in Zap::open_in(mos, names).await?.numbers().await? {
            let txg = u64::from_str_radix(&name, 16)
                .map_err(|_| EngineError::Unsupported(format!("log space map {name:?}: not a number")))?;
            logs.old.push((txg, object));
        }
        logs.old.sort_unstable();
        let (mut room, limit) = (Room::of(tops), bytes_max(tops));
        let (mut seen, mut bytes, mut lengths) = (BTreeSet::new(), 0_u64, Vec::new());
        for (_, object) in &logs.old {
            let object = *object;
            let at = Bookmark { object, ..Bookmark::default() };
            if !seen.insert(object) {
                let what = "two transaction groups have one log space map";
                return Err(ReadError::Inconsistent { at, what }.into());
            }
            let found = mos.dnode(object).await?;
            let header = Header::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
            bytes = bytes.saturating_add(header.length);
            if bytes > limit {
                return Err(too_many());
            }
            lengths.push(header.length);
        }
        for ((txg, object), length) in logs.old.iter().zip(lengths) {
            let found = mos.object(*object).await?;
            let at = Bookmark { object: *object, ..Bookmark::default() };
            load::each_block(&found, length, |bytes, order| {
                for entry in spacemap::entries(bytes, order) {
                    let MapEntry::Segment(segment) = entry.map_err(ReadError::malformed(at))? else {
                        continue;
                    };
                    note(tops, *txg, &segment, &mut room)?;
                }
                Ok(())
            })
            .await?;
        }
        for top in tops.iter_mut().flatten() {
            let (id, shift) = (top.id, top.ashift);
            for (index, metaslab) in top.metaslabs.iter_mut().enumerate() {
                let used = (metaslab.header.alloc >> shift) + net(&metaslab.since);
                metaslab.used = u64::try_from(used).map_err(|_| EngineError::SpaceMap {
                    vdev: id,
                    metaslab: index as u64,
                    detail: "more was freed than allocated".to_owned(),
                })?;
            }
        }
        Ok(logs)
    }
}

/// Bytes of logs accepted of a pool with these devices: what was written to a large one lies in many metaslabs, each with
/// entries of its own.
pub(super) fn bytes_max(tops: &[Option<Top>]) -> u64 {
    of_metaslabs(tops, METASLAB_ENTRIES).saturating_mul(ENTRY_BYTES).clamp(LOGS_MAX, LOGS_END)
}

/// So many of something for each metaslab, but not more than that has units.
fn of_metaslabs(tops: &[Option<Top>], most: u64) -> u64 {
    let metaslabs = tops.iter().flatten().flat_map(|top| &top.metaslabs);
    metaslabs.map(|metaslab| metaslab.len.min(most)).sum()
}

/// How much can still be taken from logs.
#[derive(Debug)]
pub(super) struct Room {
    /// Changes, of all metaslabs together.
    pub(super) left: u64,
    /// Changes of one metaslab that are not looked at for what they come to.
    piece: usize,
}

impl Room {
    /// In a pool with these devices, of which nothing was taken yet.
    pub(super) fn of(tops: &[Option<Top>]) -> Self {
        let left = of_metaslabs(tops, METASLAB_CHANGES).clamp(CHANGES_MAX, CHANGES_END);
        let metaslabs: usize = tops.iter().flatten().map(|top| top.metaslabs.len()).sum();
        // Of each up to twice as many are not looked at: of all together, a half of what any pool may have.
        let piece = CHANGES_MAX / 4 / (metaslabs as u64).max(1);
        Self { left, piece: piece.clamp(FEW, PIECE as u64) as usize }
    }
}

/// Gives one entry of the log of `txg` to its metaslab, if there is room for one more.
pub(super) fn note(
    tops: &mut [Option<Top>],
    txg: u64,
    segment: &spacemap::Segment,
    room: &mut Room,
) -> Result<(), EngineError> {
    let id = segment.vdev.unwrap_or(u32::MAX);
    // Entries of devices that were removed since may linger.
    let Some(top) = usize::try_from(id).ok().and_then(|id| tops.get_mut(id)).and_then(Option::as_mut) else {
        return Ok(());
    };
    let place = segment.range(SHIFT).and_then(|range| top.locate(range.start, range.end - range.start));
    let Some((index, units)) = place else {
        let metaslab = segment.offset.checked_shl(SHIFT).unwrap_or(0) >> top.shift;
        let detail = format!("the log of transaction group {txg} has an entry that no metaslab can have");
        return Err(EngineError::SpaceMap { vdev: id.into(), metaslab, detail });
    };
    let metaslab = &mut top.metaslabs[index];
    if metaslab.unflushed != 0 && txg >= metaslab.unflushed {
        let since = &mut metaslab.since;
        // It is about to take more memory: a part of what is there may have cancelled out.
        if since.len() == since.capacity() && since.len() >= room.piece {
            let before = since.len();
            netting::shorten(since).map_err(|units| {
                let detail = format!(
                    "the log space maps up to transaction group {txg} contradict themselves about units {units:?}"
                );
                EngineError::SpaceMap { vdev: id.into(), metaslab: index as u64, detail }
            })?;
            room.left += (before - since.len()) as u64;
            // Not again before it is twice as long, so that an entry costs the same however many there are.
            since.reserve(since.len());
        }
        room.left = room.left.checked_sub(1).ok_or_else(too_many)?;
        since.push(Change { kind: segment.kind, units });
    }
    Ok(())
}

/// Only who writes has to know what the logs say: the pool can still be read.
fn too_many() -> EngineError {
    EngineError::Unsupported(
        "the log space maps hold more changes than can be managed: export the pool once where it was written, which \
         empties them"
            .to_owned(),
    )
}

impl Allocator {
    /// Whether changes of a device's metaslabs go to the log.
    pub(super) fn is_logged(&self, number: usize) -> bool {
        let known = self.tops[number].as_ref().is_some_and(|top| top.unflushed_object != 0);
        self.logs.is_some() && known
    }

    /// Begins a transaction group: writes what is only in logs to the maps, replaces all logs by a new one.
    pub(super) async fn begin_log(&mut self, mos: &mut MutSet) -> Result<(), EngineError> {
        if self.logs.is_none() {
            return Ok(());
        }
        for number in 0..self.tops.len() {
            self.flush_top(number, mos).await?;
        }
        let txg = self.txg;
        let Some(mut logs) = self.logs.take() else { return Ok(()) };
        let done = self.replace_logs(txg, &mut logs, mos).await;
        self.logs = Some(logs);
        done
    }

    async fn flush_top(&mut self, number: usize, mos: &mut MutSet) -> Result<(), EngineError> {
        let txg = self.txg;
        let count = self.tops[number].as_ref().map_or(0, |top| top.metaslabs.len());
        for index in 0..count {
            let Some(top) = &mut self.tops[number] else { continue };
            let id = top.id;
            let metaslab = &mut top.metaslabs[index];
            if metaslab.unflushed != 0 {
                metaslab.unflushed = txg;
            }
            if metaslab.since.is_empty() {
                continue;
            }
            if metaslab.object == 0 || !metaslab.taken.is_empty() || !metaslab.given.is_empty() {
                let detail =
                    "it changed outside a transaction group, or is in a log but has no map".to_owned();
                return Err(EngineError::SpaceMap { vdev: id, metaslab: index as u64, detail });
            }
            let changes = std::mem::take(&mut metaslab.since);
            self.append(number, index, changes, mos).await?;
        }
        self.write_unflushed(number, mos).await
    }

    /// Writes the unflushed transaction groups of a device's metaslabs.
    async fn write_unflushed(&self, number: usize, mos: &mut MutSet) -> Result<(), EngineError> {
        let Some(top) = self.tops[number].as_ref().filter(|top| top.unflushed_object != 0) else {
            return Ok(());
        };
        let bytes: Vec<u8> =
            top.metaslabs.iter().flat_map(|metaslab| metaslab.unflushed.to_le_bytes()).collect();
        mos.write(top.unflushed_object, 0, &bytes).await
    }

    async fn replace_logs(&self, txg: u64, logs: &mut Logs, mos: &mut MutSet) -> Result<(), EngineError> {
        if logs.zap == 0 {
            logs.zap = zap::create(mos, ObjectType::ZAP_METADATA, 0).await?;
            zap::set_u64(mos, mos::DIRECTORY, DIRECTORY_ENTRY, logs.zap).await?;
        }
        for (old, object) in std::mem::take(&mut logs.old) {
            self.free_map(object, mos).await?;
            zap::remove(mos, logs.zap, format!("{old:x}").as_str().into()).await?;
        }
        let (object, mut header) = self.new_map(BLOCK_BYTES, mos).await?;
        // A log must have a block, also if nothing follows.
        let mut encoder = encoder(0)?;
        encoder.debug(Kind::Alloc, 1, txg);
        let bytes = encoder.finish();
        mos.write(object, 0, &bytes).await?;
        header.length = bytes.len() as u64;
        mos.set_bonus(object, &header.encode(Order::Little)).await?;
        zap::set_u64(mos, logs.zap, &format!("{txg:x}"), object).await?;
        logs.current = Some((object, header));
        logs.old.push((txg, object));
        Ok(())
    }

    /// Appends changes of metaslabs to the log of the running transaction group.
    pub(super) async fn append_log(
        &mut self,
        changed: Vec<(usize, usize, Vec<Change>)>,
        mos: &mut MutSet,
    ) -> Result<(), EngineError> {
        let Some((object, mut header)) = self.logs.as_mut().and_then(|logs| logs.current.take()) else {
            return Err(EngineError::Suspended("no log of space maps was begun".to_owned()));
        };
        let mut encoder = encoder(header.length)?;
        let mut first_seen = Vec::new();
        for (number, index, changes) in changed {
            let Some(top) = &mut self.tops[number] else { continue };
            let (base, shift) = ((index as u64) << top.shift, top.ashift);
            let vdev = u32::try_from(top.id).unwrap_or(u32::MAX);
            for change in &changes {
                let sectors = |unit: u64| (base + (unit << shift)) >> SHIFT;
                let units = sectors(change.units.start)..sectors(change.units.end);
                encoder
                    .segment(change.kind, units, Encoding::Log { vdev })
                    .map_err(EngineError::encode("a log space map"))?;
            }
            header.alloc += net(&changes) << shift;
            let metaslab = &mut top.metaslabs[index];
            if metaslab.unflushed == 0 {
                metaslab.unflushed = self.txg;
                first_seen.push(number);
            }
            metaslab.since.extend(changes);
        }
        let bytes = encoder.finish();
        mos.write(object, header.length, &bytes).await?;
        header.length += bytes.len() as u64;
        mos.set_bonus(object, &header.encode(Order::Little)).await?;
        if let Some(logs) = &mut self.logs {
            logs.current = Some((object, header));
        }
        first_seen.dedup();
        for number in first_seen {
            self.write_unflushed(number, mos).await?;
        }
        Ok(())
    }
}

fn encoder(length: u64) -> Result<Encoder, EngineError> {
    Encoder::new(length, BLOCK_BYTES, Order::Little).map_err(EngineError::encode("a log space map"))
}
