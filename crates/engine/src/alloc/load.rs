//! From the MOS to memory: metaslab arrays, headers, and whole space maps when a metaslab is needed.
//!
//! Facts: docs/format/spacemap.md §1–§3.

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    spacemap::{self, Header, MapEntry},
};
use pool::{
    Bookmark, Pool,
    dmu::{Object, ReadError, Run},
    zap::Zap,
};

use super::{
    Allocator,
    metaslab::{self, Odds},
    ranges::Change,
    top::Top,
    units::Units,
};
use crate::EngineError;

/// Largest array of metaslabs accepted, in bytes: 131072 of them.
const ARRAY_MAX: u64 = 1 << 20;
/// Bytes of map accepted for each unit of its metaslab: four entries of two words. A map is written anew when it is twice as
/// long as it need be, and at its longest that has an entry for every other unit.
const UNIT_BYTES_MAX: u64 = 64;
/// Headers of maps asked for in one go: a large device has tens of thousands, some dozen of them in a block.
const HEADERS: usize = 4096;
/// Blocks read in one go.
const BATCH: usize = 64;
/// Bytes read in one go, as all of them are in memory together.
const BATCH_BYTES: u64 = 8 << 20;
/// Metaslabs of all devices that are loaded in vain between two commits, half of them with good odds, unless one for each
/// device is more: each costs reads in the way of the commit, and large pools have tens of thousands.
const VAIN_LOADS: u32 = 64;
/// Bytes gone through without a pause: entries of logs are netted on the way, so each of them takes its time.
const PAUSE_BYTES: u64 = 1 << 20;

/// Calls `f` with each block of the first `length` bytes of an object, in order; holes are zeroes.
pub(super) async fn each_block(
    object: &Object,
    length: u64,
    mut f: impl FnMut(&[u8], Order) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let block_bytes = object.block_bytes();
    let blocks = length.div_ceil(block_bytes);
    if blocks > object.max_block_id() + 1 {
        return Err(ReadError::Inconsistent {
            at: object.bookmark(0, object.max_block_id()),
            what: "the object has fewer blocks than its header says",
        }
        .into());
    }
    let valid = |blkid: u64| block_bytes.min(length - blkid * block_bytes) as usize;
    let zeroes = vec![0; block_bytes as usize];
    let mut runs = object.runs(0, 0..blocks);
    let mut batch: Vec<(BlkPtr, Bookmark)> = Vec::with_capacity(BATCH);
    let mut unpaused = 0;
    loop {
        // What is in the cache, and holes, never wait for anything.
        tokio::task::coop::consume_budget().await;
        let run = runs.next().await?;
        let is_full = batch.len() >= BATCH || batch.len() as u64 * block_bytes >= BATCH_BYTES;
        let flush = is_full || !matches!(run, Some(Run::Block { .. }));
        if flush && !batch.is_empty() {
            let contents = object.source().read_many(&batch).await;
            for (content, (pointer, at)) in contents.into_iter().zip(batch.drain(..)) {
                let content: Bytes = content?;
                let bytes = content.get(..valid(at.blkid)).unwrap_or(&content);
                f(bytes, pointer.order())?;
                pause(&mut unpaused, block_bytes).await;
            }
        }
        match run {
            Some(Run::Block { blkid, pointer }) => batch.push((pointer, object.bookmark(0, blkid))),
            Some(Run::Hole { first, count, .. }) => {
                for blkid in first..first.saturating_add(count).min(blocks) {
                    f(&zeroes[..valid(blkid)], Order::Little)?;
                    pause(&mut unpaused, block_bytes).await;
                }
            }
            None => return Ok(()),
        }
    }
}

/// Lets others have their turn when so many bytes more were gone through.
async fn pause(unpaused: &mut u64, bytes: u64) {
    *unpaused += bytes;
    if *unpaused >= PAUSE_BYTES {
        *unpaused = 0;
        tokio::task::yield_now().await;
    }
}

/// The words of an object, of its first `length` bytes.
async fn words(object: &Object, limit: u64) -> Result<Vec<u64>, EngineError> {
    let mut words = Vec::new();
    if object.bytes() > limit {
        return Err(ReadError::TooLarge { objset: 0, object: object.number(), limit }.into());
    }
    each_block(object, object.bytes(), |bytes, order| {
        words.extend(order.words(bytes));
        Ok(())
    })
    .await?;
    Ok(words)
}

/// Reads arrays and headers of a device's metaslabs.
pub(super) async fn read_top(view: &Pool, top: &mut Top) -> Result<(), EngineError> {
    let mos = view.mos();
    let tree = view.tree();
    let Some(config) = tree.top(top.id).and_then(|vdev| vdev.top.as_ref()) else { return Ok(()) };
    top.array = config.metaslab_array;
    if top.array != 0 {
        let array = mos.object(top.array).await?;
        let mut objects = words(&array, ARRAY_MAX).await?;
        // The array is whole blocks, of which the last has room for more.
        objects.truncate(top.metaslabs.len());
        for (metaslabs, objects) in top.metaslabs.chunks_mut(HEADERS).zip(objects.chunks(HEADERS)) {
            let found = mos.dnodes(objects).await;
            for ((metaslab, &object), found) in metaslabs.iter_mut().zip(objects).zip(found) {
                if object == 0 {
                    continue;
                }
                let found = found?;
                let at = Bookmark { object, ..Bookmark::default() };
                let header =
                    Header::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
                check_length(&header, object, metaslab.len)?;
                metaslab.object = object;
                metaslab.block_bytes = found.dnode.data_block_bytes();
                metaslab.fresh = false;
                metaslab.used = u64::try_from(header.alloc).unwrap_or(0) >> top.ashift;
                metaslab.set_header(header);
            }
        }
    }
    if let Some(zap) = config.zap
        && let Some(object) =
            Zap::open_in(mos, zap).await?.get_u64("com.delphix:ms_unflushed_phys_txgs").await?
    {
        let found = mos.object(object).await?;
        top.unflushed_object = object;
        for (metaslab, txg) in top.metaslabs.iter_mut().zip(words(&found, ARRAY_MAX).await?) {
            metaslab.unflushed = txg;
        }
    }
    Ok(())
}

/// Refuses a map that is longer than any of a metaslab of `len` units: holes cost whoever forges it nothing.
fn check_length(header: &Header, object: u64, len: u64) -> Result<(), ReadError> {
    let limit = spacemap::MAP_BYTES_MAX.max(len.saturating_mul(UNIT_BYTES_MAX));
    if header.length > limit {
        return Err(ReadError::TooLarge { objset: 0, object, limit });
    }
    Ok(())
}

/// Replays the own map of metaslab `index` of device `vdev`, which has `len` units.
pub(super) async fn replay(map: &Object, vdev: u64, index: u64, len: u64) -> Result<Units, EngineError> {
    let object = map.number();
    let at = Bookmark { object, ..Bookmark::default() };
    let header = Header::decode(&map.dnode().bonus, map.bonus_order()).map_err(ReadError::malformed(at))?;
    check_length(&header, object, len)?;
    let mut used = Units::none(len);
    each_block(map, header.length, |bytes, order| {
        for entry in spacemap::entries(bytes, order) {
            let MapEntry::Segment(segment) = entry.map_err(ReadError::malformed(at))? else { continue };
            let end = segment.offset.saturating_add(segment.run);
            let change = Change { kind: segment.kind, units: segment.offset..end };
            // What is behind the first contradiction is of no use, however much it is.
            if metaslab::apply(&mut used, &change).is_err() {
                let detail = format!(
                    "space map {object} does not replay: {:?} of units {:?} contradicts what is before it",
                    change.kind, change.units
                );
                return Err(EngineError::SpaceMap { vdev, metaslab: index, detail });
            }
        }
        Ok(())
    })
    .await?;
    Ok(used)
}

impl Allocator {
    /// Makes sure a metaslab is loaded.
    pub(super) async fn load(&mut self, top: usize, index: usize) -> Result<(), EngineError> {
        let Some(device) = &mut self.tops[top] else { return Ok(()) };
        let metaslab = &mut device.metaslabs[index];
        metaslab.last_use = self.txg;
        if metaslab.loaded.is_some() {
            return Ok(());
        }
        let vdev = device.id;
        let wrong = |detail: String| EngineError::SpaceMap { vdev, metaslab: index as u64, detail };
        let committed = match &self.committed {
            _ if metaslab.fresh => Units::none(metaslab.len),
            Some(mos) => {
                let map = mos.object(metaslab.object).await?;
                replay(&map, vdev, index as u64, metaslab.len).await?
            }
            None => return Err(wrong("there is no committed state to load it from".to_owned())),
        };
        metaslab.load(committed).map_err(|detail| wrong(detail.to_owned()))?;
        self.bits.loaded(metaslab.bytes());
        Ok(())
    }

    /// Forgets the bits of metaslabs that were not used for longest, until the others fit the memory for them.
    pub(super) fn unload(&mut self) {
        let most = self.bits.most();
        let mut loaded = Vec::new();
        let mut bytes = 0;
        for (number, top) in self.tops.iter().enumerate() {
            let Some(top) = top else { continue };
            for (index, metaslab) in top.metaslabs.iter().enumerate() {
                if metaslab.loaded.is_none() {
                    continue;
                }
                let size = metaslab.bytes();
                bytes += size;
                let active = top.lanes.iter().any(|lane| lane.metaslab == Some(index));
                if metaslab.can_unload() && !active {
                    loaded.push((metaslab.last_use, number, index, size));
                }
            }
        }
        if bytes > most {
            loaded.sort_unstable();
        }
        for (_, number, index, size) in loaded {
            if bytes <= most {
                break;
            }
            if let Some(top) = &mut self.tops[number] {
                top.metaslabs[index].unload();
                bytes -= size;
            }
        }
        self.bits.counted(bytes);
    }

    /// As many metaslabs as in any transaction group may be loaded in vain.
    pub(super) fn renew_looks(&mut self) {
        let tops = self.tops.iter().flatten().count() as u32;
        let share = (VAIN_LOADS / 2 / tops.max(1)).max(1);
        for top in self.tops.iter_mut().flatten() {
            (top.looks, top.long_shots) = (share, share);
        }
    }

    /// A metaslab was loaded, and has no run of `run` units. Its bits stay as long as those of all that were loaded in vain in
    /// this transaction group fit the memory for them: in a large fragmented pool there are many, and it is remembered what
    /// they lack, and that it was looked for.
    pub(super) fn loaded_in_vain(&mut self, top: usize, index: usize, run: u64, odds: Odds) {
        let Some(device) = &mut self.tops[top] else { return };
        let metaslab = &mut device.metaslabs[index];
        let looks = if odds == Odds::Good { &mut device.looks } else { &mut device.long_shots };
        *looks = looks.saturating_sub(1);
        metaslab.vain = self.txg;
        let bytes = metaslab.bytes();
        // What has one where this allocation may not look would be loaded again for the next.
        let is_short = metaslab.promise() < run;
        let is_active = device.lanes.iter().any(|lane| lane.metaslab == Some(index));
        if self.in_vain + bytes > self.bits.most() && is_short && metaslab.can_unload() && !is_active {
            metaslab.unload();
            self.bits.unloaded(bytes);
        } else {
            self.in_vain += bytes;
        }
    }
}
