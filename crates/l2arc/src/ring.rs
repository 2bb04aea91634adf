//! One device's ring, as numbers: where writing goes on, what is written next, and what tells of it.
//!
//! ```text
//!    … newest │ free to write │ oldest …      address ▶ (wraps)
//!           hand            evict
//!
//!    payload of a log block ── log block ── payload of the next ── log block ── …
//! ```
//! No I/O here. A round of writing is a [`Draft`] made from the ring as it is, and becomes the ring's state when all of
//! it is on the device: a write that failed leaves no trace.
//!
//! * Blocks and log blocks of a round lie one behind the other, so that a round is one sequential write.
//! * Every block of the ring is told of by exactly one of: `pending` (no log block yet), a log block in `logs`, `victims`
//!   (its log block is being overtaken). So whoever frees space knows what lies there.

use std::{collections::VecDeque, ops::Range};

use bytes::Bytes;
use codec::{
    checksum::{self, Fletcher4},
    compress::{self, Level},
};
use ondisk::{
    Order,
    blkptr::Dva,
    l2arc::{self, Content, Entry, Header, LOG_BLOCK_BYTES, LogPointer},
};

use crate::{
    Block,
    header::{Geometry, Identity},
    index::Hash,
};

/// States of a block in memory, as log blocks have them.
const MRU: u8 = 1;
const MFU: u8 = 3;
/// Of a log block: what comes before the entries, and what each takes.
const ENTRIES_OFFSET: u64 = 128;
const ENTRY_BYTES: u64 = 64;

/// The ring of one device.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) geometry: Geometry,
    /// Next write.
    pub(crate) hand: u64,
    /// Free up to here.
    pub(crate) evict: u64,
    /// It was never full: behind the hand nothing was ever written.
    pub(crate) first_sweep: bool,
    /// The newest log block, and the one before.
    pub(crate) newest: [LogPointer; 2],
    /// Log blocks on the device, oldest first.
    pub(crate) logs: VecDeque<LogPointer>,
    /// Older ones that the chain leads to and memory was too short for, in number and bytes: the next import may find them,
    /// until the hand goes to where they may lie.
    pub(crate) unread: (u64, u64),
    /// Blocks on the device that no log block tells of yet.
    pub(crate) pending: Vec<Entry>,
    /// Where the first of them is.
    pub(crate) payload_start: u64,
    /// Entries of log blocks that are being overtaken.
    pub(crate) victims: Vec<Entry>,
    /// A log block to be overtaken that was not read in time once.
    pub(crate) unanswered: Option<u64>,
    /// When the device was trimmed, and how far that got.
    pub(crate) trim: (u64, u64),
    /// The header on the device says what will be overwritten next.
    pub(crate) announced: bool,
}

/// A round of writing that is not done yet.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Where it begins.
    pub(crate) at: u64,
    /// What is written, one behind the other, each padded to a whole sector.
    pub(crate) pieces: Vec<Bytes>,
    /// The blocks among them.
    pub(crate) blocks: Vec<(Hash, Entry)>,
    /// The log blocks among them.
    pub(crate) logs: Vec<LogPointer>,
    end: u64,
    newest: [LogPointer; 2],
    pending: Vec<Entry>,
    payload_start: u64,
}

impl Ring {
    /// An empty ring.
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            hand: geometry.start,
            evict: geometry.start,
            first_sweep: true,
            newest: [LogPointer::default(); 2],
            logs: VecDeque::new(),
            unread: (0, 0),
            pending: Vec::new(),
            payload_start: geometry.start,
            victims: Vec::new(),
            unanswered: None,
            trim: (0, 0),
            announced: false,
        }
    }

    /// The ring as its header tells of it; its log blocks are still to be found.
    pub(crate) fn of_header(geometry: Geometry, header: &Header) -> Self {
        let hand = header.hand().min(geometry.end);
        Self {
            hand,
            evict: header.evict.max(geometry.start).min(geometry.end),
            first_sweep: header.first_sweep(),
            newest: header.newest,
            payload_start: hand,
            trim: (header.trim_action_time, header.trim_state),
            ..Self::new(geometry)
        }
    }

    /// What the header has to say now.
    pub(crate) fn header(&self, who: Identity) -> Header {
        Header {
            pool_guid: who.pool,
            vdev_guid: who.vdev,
            log_entries: self.geometry.log_entries,
            evict: self.evict,
            flags: u64::from(self.first_sweep),
            start: self.geometry.start,
            end: self.geometry.end,
            newest: self.newest,
            log_bytes: self.log_bytes().saturating_add(self.unread.1),
            log_blocks: (self.logs.len() as u64).saturating_add(self.unread.0),
            trim_action_time: self.trim.0,
            trim_state: self.trim.1,
        }
    }

    /// Bytes of the log blocks.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.logs.iter().map(LogPointer::aligned_size).sum()
    }

    /// The most that these blocks may take, with the log blocks that come between.
    pub(crate) fn room_for(&self, blocks: &[(Hash, Block)]) -> u64 {
        let payload: u64 = blocks.iter().map(|(_, block)| self.geometry.aligned(block.psize.into())).sum();
        let entries = (self.pending.len() + blocks.len()) as u64;
        payload + entries.checked_div(self.geometry.log_entries).unwrap_or(0) * self.log_block_max()
    }

    /// What a log block takes: its entries as they are, should they not compress, and next to nothing for the zeroes
    /// behind them. (If it takes more all the same, the round is made smaller.)
    fn log_block_max(&self) -> u64 {
        let told = ENTRIES_OFFSET + self.geometry.log_entries * ENTRY_BYTES;
        self.geometry.aligned((told + told / 128 + 1024).min(LOG_BLOCK_BYTES as u64))
    }

    /// Blocks behind the hand, and the log blocks that they fill.
    pub(crate) fn draft(&self, blocks: &[(Hash, Block)]) -> Draft {
        let mut draft = Draft {
            at: self.hand,
            pieces: Vec::with_capacity(blocks.len() + 1),
            blocks: Vec::with_capacity(blocks.len()),
            logs: Vec::new(),
            end: self.hand,
            newest: self.newest,
            pending: self.pending.clone(),
            payload_start: self.payload_start,
        };
        for (hash, block) in blocks {
            let Some(entry) = entry_of(block, draft.end) else { continue };
            if draft.pending.is_empty() {
                draft.payload_start = draft.end;
            }
            draft.end += self.geometry.aligned(entry.psize);
            draft.blocks.push((*hash, entry));
            draft.pieces.push(block.data.clone());
            if self.geometry.log_entries == 0 {
                continue;
            }
            draft.pending.push(entry);
            if draft.pending.len() as u64 >= self.geometry.log_entries {
                self.add_log_block(&mut draft);
            }
        }
        draft
    }

    fn add_log_block(&self, draft: &mut Draft) {
        // Entries came from `entry_of`, and there are as many as fit: this cannot fail, and if it did, these blocks would
        // be forgotten at the next import.
        let entries = std::mem::take(&mut draft.pending);
        let [newest, before] = draft.newest;
        let Ok(plain) = l2arc::encode_log_block(&before, &entries, Order::Little) else { return };
        let (stored, algorithm) = self.stored(plain);
        let Some(prop) =
            LogPointer::prop_of(stored.len() as u64, algorithm.id(), checksum::Algorithm::Fletcher4.id())
        else {
            return;
        };
        let mut sum = Fletcher4::new(codec::Order::Little);
        sum.update(&stored);
        let pointer = LogPointer {
            daddr: draft.end,
            payload_bytes: entries.iter().map(|entry| self.geometry.aligned(entry.psize)).sum(),
            payload_start: draft.payload_start,
            prop,
            checksum: sum.finish().0,
        };
        draft.end += stored.len() as u64;
        draft.pieces.push(stored.into());
        draft.logs.push(pointer);
        draft.newest = [pointer, newest];
    }

    /// A log block as it is stored: compressed if that saves a sector.
    fn stored(&self, plain: Vec<u8>) -> (Vec<u8>, compress::Algorithm) {
        let mut small = vec![0; plain.len()];
        let used = compress::compress(compress::Algorithm::Lz4, Level::DEFAULT, &plain, &mut small);
        match used.map(|used| self.geometry.aligned(used as u64) as usize) {
            Some(aligned) if aligned < plain.len() => {
                small.truncate(aligned);
                if let Some(rest) = used.and_then(|used| small.get_mut(used..)) {
                    rest.fill(0);
                }
                (small, compress::Algorithm::Lz4)
            }
            _ => (plain, compress::Algorithm::Off),
        }
    }

    /// All of it is on the device.
    pub(crate) fn commit(&mut self, draft: Draft) -> Vec<(Hash, Entry)> {
        self.hand = draft.end;
        self.newest = draft.newest;
        self.logs.extend(draft.logs);
        self.pending = draft.pending;
        self.payload_start = draft.payload_start;
        draft.blocks
    }

    /// Writing goes on at the start of the ring.
    pub(crate) fn wrap(&mut self) {
        self.hand = self.geometry.start;
        self.evict = self.geometry.start;
        self.first_sweep = false;
        self.unread = (0, 0);
        self.announced = false;
    }

    /// Whether nothing is known to lie here.
    pub(crate) fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.pending.is_empty() && self.victims.is_empty()
    }

    /// Writing goes on where the next block lies that is known: the oldest. What is passed over was freed, or never written.
    pub(crate) fn go_to_oldest(&mut self) {
        let Geometry { start, end, .. } = self.geometry;
        let ahead = |daddr: u64| match daddr.checked_sub(self.evict) {
            Some(ahead) => ahead,
            None => end.saturating_sub(self.evict).saturating_add(daddr.saturating_sub(start)),
        };
        let told = self.victims.iter().chain(&self.pending).map(|entry| entry.daddr);
        let told = told.chain(self.logs.front().map(|log| log.payload_start));
        let oldest = told.min_by_key(|daddr| ahead(*daddr)).unwrap_or(self.evict);
        (self.hand, self.evict) = (oldest, oldest);
        self.first_sweep = false;
        self.unread = (0, 0);
        self.announced = false;
    }

    /// Nothing is kept up to `target` any more.
    pub(crate) fn free_until(&mut self, target: u64) {
        self.evict = target;
        self.unread = (0, 0);
        self.announced = false;
    }

    /// Bytes that may be written from the hand on.
    pub(crate) fn room(&self) -> u64 {
        let end = if self.first_sweep { self.geometry.end } else { self.evict };
        end.saturating_sub(self.hand)
    }

    /// The stretches that a log block and its payload take: two if they go over the end.
    pub(crate) fn extent(&self, log: &LogPointer) -> [Range<u64>; 2] {
        let last = log.daddr.saturating_add(log.aligned_size());
        if log.payload_start <= log.daddr {
            [log.payload_start..last, 0..0]
        } else {
            [log.payload_start..self.geometry.end, self.geometry.start..last]
        }
    }

    /// Takes out what no log block tells of in this stretch: it is overwritten before one could.
    pub(crate) fn take_pending(&mut self, stretch: &Range<u64>) -> Vec<Entry> {
        let (gone, kept) = self.pending.drain(..).partition(|entry| stretch.contains(&entry.daddr));
        self.pending = kept;
        if let Some(first) = self.pending.first() {
            self.payload_start = first.daddr;
        }
        gone
    }
}

/// Whether two stretches have a byte in common.
pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

impl Draft {
    /// Bytes from the first to the last.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.at
    }
}

/// How a log block tells of a block at `daddr`; `None` for one that no log block can describe.
pub(crate) fn entry_of(block: &Block, daddr: u64) -> Option<Entry> {
    let describable = |size: u32| size > 0 && size.is_multiple_of(512) && size <= 512 << 16;
    let dva = Dva::from_words(block.dva);
    let is_whole = dva.to_words() == Some(block.dva) && block.data.len() == block.psize as usize;
    (is_whole && describable(block.psize) && describable(block.lsize)).then(|| Entry {
        dva,
        birth: block.birth,
        daddr,
        lsize: block.lsize.into(),
        psize: block.psize.into(),
        compression_id: block.compress,
        compression_level: block.level,
        prefetched: block.prefetched,
        content: if block.metadata { Content::Metadata } else { Content::Data },
        protected: false,
        arc_state: if block.frequent { MFU } else { MRU },
    })
}

/// Whether a block had been used more than once when it was written.
pub(crate) fn is_frequent(entry: &Entry) -> bool {
    entry.arc_state == MFU
}

/// The entries of a log block as it was read, oldest first, and what it leads to. It may be of either byte order: a ring that
/// another host began goes on in this one's.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn decode_log(
    pointer: &LogPointer,
    stored: &[u8],
    log_entries: u64,
) -> Result<(LogPointer, Vec<Entry>), String> {
    let has_sum_of = |order| {
        let mut sum = Fletcher4::new(order);
        sum.update(stored);
        sum.finish().0 == pointer.checksum
    };
    let is_right = pointer.checksum_id() == checksum::Algorithm::Fletcher4.id()
        && (has_sum_of(codec::Order::Little) || has_sum_of(codec::Order::Big));
    if !is_right {
        return Err("has a wrong checksum".to_owned());
    }
    let mut plain = vec![0; LOG_BLOCK_BYTES];
    let algorithm = compress::Algorithm::from_id(pointer.compression_id())
        .filter(|algorithm| matches!(algorithm, compress::Algorithm::Lz4 | compress::Algorithm::Off))
        .ok_or_else(|| format!("is compressed in an unknown way ({})", pointer.compression_id()))?;
    compress::decompress(algorithm, stored, &mut plain).map_err(|error| format!("is damaged: {error}"))?;
    let log = l2arc::LogBlock::decode(&plain).map_err(|error| format!("is damaged: {error}"))?;
    // An entry that makes no sense costs one block.
    let entries = log.entries(log_entries).filter_map(Result::ok).collect();
    Ok((log.previous, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was shed of a ring that a host of the other byte order had written was never found again.
    #[test]
    fn log_blocks_are_read_in_either_byte_order() {
        let entry = Entry {
            dva: Dva::from_words([8, 64]),
            birth: 7,
            daddr: 0x40_1000,
            lsize: 4096,
            psize: 4096,
            compression_id: 2,
            compression_level: 0,
            prefetched: false,
            content: Content::Data,
            protected: false,
            arc_state: MRU,
        };
        let (off, fletcher4) = (compress::Algorithm::Off.id(), checksum::Algorithm::Fletcher4.id());
        for (order, of_sum) in [(Order::Little, codec::Order::Little), (Order::Big, codec::Order::Big)] {
            let mut stored = l2arc::encode_log_block(&LogPointer::default(), &[entry], order).unwrap();
            let mut sum = Fletcher4::new(of_sum);
            sum.update(&stored);
            let pointer = LogPointer {
                daddr: 0x40_2000,
                payload_bytes: 4096,
                payload_start: 0x40_1000,
                prop: LogPointer::prop_of(stored.len() as u64, off, fletcher4).unwrap(),
                checksum: sum.finish().0,
            };
            assert_eq!(decode_log(&pointer, &stored, 1), Ok((LogPointer::default(), vec![entry])));
            stored[200] ^= 1;
            assert_eq!(decode_log(&pointer, &stored, 1), Err("has a wrong checksum".to_owned()));
        }
    }
}
