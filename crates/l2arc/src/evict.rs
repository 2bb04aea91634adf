//! Room ahead of the write hand: what lies there is forgotten, or written again if it was asked for.
//!
//! Memory knows where blocks lie but not which ones: the device does. So the log blocks of the stretch that is to be
//! overwritten are read, and what they tell of is taken out of the index. A block that was hit since it was written is
//! read and handed to the caller, who writes it again. Where a log block cannot be read, or the device has none, the
//! index is searched for the addresses instead.

use std::{io, ops::Range};

use bytes::Bytes;
use disk::Disk;
use futures_util::{StreamExt, stream::FuturesUnordered};
use ondisk::l2arc::{Content, Entry};

use crate::{
    Block, Key,
    device::Device,
    feed,
    index::Hash,
    ring::{self, Ring, is_frequent, overlap},
    tier::Shared,
};

/// Blocks read at a time to be written again.
const READS: usize = 8;
/// Least distance of trimming.
const TRIM_MIN: u64 = 64 << 20;

/// How many bytes are written again for a byte that is new, at most.
const HOT_PER_FRESH: u64 = 3;

/// Makes room for `blocks` behind the hand, and says so in the header. Blocks in the way that are worth another round
/// join them.
///
/// # Errors
/// The header cannot be written: nothing may be overwritten.
pub(crate) async fn make_room(
    shared: &Shared,
    device: &Device,
    ring: &mut Ring,
    blocks: &mut Vec<(Hash, Block)>,
) -> io::Result<()> {
    let config = shared.config();
    let need = ring.room_for(blocks);
    // A few new blocks may meet a row of wanted ones.
    let hot_min = shared.share().min(ring.geometry.ring() / 8);
    let mut hot_max = if config.reinsert { hot_min.max(HOT_PER_FRESH * need) } else { 0 };
    let ahead = if config.trim_ahead > 0 { TRIM_MIN.max(need * config.trim_ahead / 100) } else { 0 };
    let ahead = ahead.min(ring.geometry.ring() / 4);
    let mut may_wrap = true;
    // What is written again needs room, too: goes on until enough was cold.
    loop {
        let size = ring.room_for(blocks);
        let end = ring.geometry.end;
        let wraps = may_wrap && ring.hand + size > end;
        if ring.first_sweep && !wraps {
            break;
        }
        let target = if wraps { end } else { (ring.hand + size + ahead).min(end) };
        let stretch = ring.evict.max(ring.hand)..target;
        let is_free = ring.first_sweep || stretch.is_empty();
        if !is_free {
            blocks.extend(clear(shared, device, ring, stretch.clone(), &mut hot_max).await?);
            ring.free_until(target);
            if config.trim_ahead > 0 && !stretch.is_empty() {
                // A power cut behind the trim would leave log blocks that are believed, of blocks that are zeroes.
                feed::write_header(shared, device, ring).await?;
                // Advisory: a device that cannot is as good as one that did.
                let _unsupported = device.disk.trim(stretch.start, stretch.end - stretch.start).await;
            }
        }
        if wraps {
            ring.wrap();
            may_wrap = false;
        } else if is_free {
            break;
        }
    }
    if !ring.first_sweep && !ring.announced {
        feed::write_header(shared, device, ring).await?;
    }
    Ok(())
}

/// Takes what lies in a stretch out of the index; what was hit comes back, `hot_max` bytes at most.
///
/// # Errors
/// The device does not answer. It may in a while, and then what it tells of is known and can be served: nothing is
/// given up for a round that cannot be written anyway.
async fn clear(
    shared: &Shared,
    device: &Device,
    ring: &mut Ring,
    stretch: Range<u64>,
    hot_max: &mut u64,
) -> io::Result<Vec<(Hash, Block)>> {
    if stretch.is_empty() {
        return Ok(Vec::new());
    }
    if ring.geometry.log_entries == 0 {
        search(shared, device, stretch).await;
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    while let Some(log) = ring.logs.front().copied() {
        let extent = ring.extent(&log);
        if !extent.iter().any(|part| overlap(part, &stretch)) {
            break;
        }
        let was_silent = device.disk.is_silent();
        let read = device.read(log.daddr, log.aligned_size() as usize).await;
        // One that was never read in time is given up the second time, or the ring would stand still before it.
        if device.disk.is_silent()
            && read.is_err()
            && (was_silent || ring.unanswered.replace(log.daddr) != Some(log.daddr))
        {
            return Err(silent());
        }
        ring.logs.pop_front();
        let decoded = read
            .map_err(|error| error.to_string())
            .and_then(|stored| ring::decode_log(&log, &stored, ring.geometry.log_entries));
        match decoded {
            // It may be somebody's who wants the hand elsewhere: only what is known to lie in it counts.
            Ok((_, found)) => ring.victims.extend(found.into_iter().filter(|entry| {
                extent.iter().any(|part| part.contains(&entry.daddr)) && is_known(shared, device, entry)
            })),
            Err(_) => {
                for part in extent {
                    search(shared, device, part).await;
                }
            }
        }
    }
    ring.victims.retain(|entry| {
        let goes = stretch.contains(&entry.daddr);
        if goes {
            entries.push(*entry);
        }
        !goes
    });
    entries.extend(ring.take_pending(&stretch));
    let hot =
        if shared.config().reinsert { hot_ones(shared, device, &entries, hot_max).await } else { Vec::new() };
    if device.disk.is_silent() {
        ring.victims.append(&mut entries);
        return Err(silent());
    }
    entries.iter().for_each(|entry| forget(shared, device, entry));
    Ok(hot)
}

/// Whether the index has the block where this entry says.
fn is_known(shared: &Shared, device: &Device, entry: &Entry) -> bool {
    let place = shared.index.peek(hash_of(entry));
    place.is_some_and(|place| Some(place.address) == device.base.checked_add(entry.daddr))
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer")
}

fn forget(shared: &Shared, device: &Device, entry: &Entry) {
    if let Some(place) = shared.index.remove(hash_of(entry), device.base + entry.daddr) {
        device.holds(entry, &place, false);
    }
}

/// Takes whatever lies in a stretch out of the index.
pub(crate) async fn search(shared: &Shared, device: &Device, stretch: Range<u64>) {
    if stretch.is_empty() {
        return;
    }
    let removed = shared.index.remove_range(device.base + stretch.start..device.base + stretch.end).await;
    device.sizes.forget(removed, device.sizes.blocks());
}

/// The blocks that were asked for since they were written, the most wanted first, as far as there is room.
async fn hot_ones(
    shared: &Shared,
    device: &Device,
    entries: &[Entry],
    hot_max: &mut u64,
) -> Vec<(Hash, Block)> {
    let mut wanted: Vec<(u8, Entry)> = entries
        .iter()
        .filter_map(|entry| {
            let place = shared.index.peek(hash_of(entry))?;
            let is_hot = place.heat > 0 && place.address == device.base + entry.daddr;
            is_hot.then_some((place.heat, *entry))
        })
        .collect();
    wanted.sort_by_key(|(heat, _)| std::cmp::Reverse(*heat));
    wanted.retain(|(_, entry)| {
        let size = device.geometry.aligned(entry.psize);
        let fits = size <= *hot_max;
        if fits {
            *hot_max -= size;
        }
        fits
    });
    let mut wanted = wanted.into_iter();
    let (mut reads, mut hot) = (FuturesUnordered::new(), Vec::new());
    loop {
        while reads.len() < READS
            && let Some((_, entry)) = wanted.next()
        {
            reads.push(read_again(shared, device, entry));
        }
        match reads.next().await {
            Some(read) => {
                feed::hold(device, read.as_slice());
                hot.extend(read);
            }
            None => return hot,
        }
    }
}

async fn read_again(shared: &Shared, device: &Device, entry: Entry) -> Option<(Hash, Block)> {
    if device.disk.is_silent() {
        return None;
    }
    let Ok(read) = device.read(entry.daddr, entry.psize as usize).await else {
        // What it does not give now is not waited for at each round to come.
        forget(shared, device, &entry);
        return None;
    };
    Some((hash_of(&entry), block_of(&entry, read.freeze())?))
}

/// What the index knows a block by.
pub(crate) fn hash_of(entry: &Entry) -> Hash {
    // A DVA that was decoded has words.
    Key { dva: entry.dva.to_words().unwrap_or_default(), birth: entry.birth }.hash()
}

fn block_of(entry: &Entry, data: Bytes) -> Option<Block> {
    Some(Block {
        dva: entry.dva.to_words()?,
        birth: entry.birth,
        lsize: u32::try_from(entry.lsize).ok()?,
        psize: u32::try_from(entry.psize).ok()?,
        compress: entry.compression_id,
        level: entry.compression_level,
        metadata: entry.content == Content::Metadata,
        // It was asked for again.
        frequent: is_frequent(entry) || !entry.prefetched,
        prefetched: false,
        eligible: true,
        is_part: false,
        data,
    })
}
