//! Persistent L2ARC: how a cache device remembers its content across imports.
//!
//! ```text
//!   0x400000  header │ payload … log block │ payload … log block │ …      (a ring)
//!   header ─▶ newest log block ─▶ two back ─▶ …      two interleaved chains, so that a reader
//!         └─▶ the one before    ─▶ two back ─▶ …      can fetch one while it checks the other
//! ```
//!
//! Every block here is also in the pool, so everything may be lost: a header that does not fit exactly, a pointer
//! that lies in an overwritten stretch ([`LogPointer::is_intact`]) or a log block with a wrong checksum ends the
//! rebuild early and nothing else. Cached blocks carry no checksum; the pool's block pointer has it.
//!
//! Addresses are absolute byte positions on the device. Not here: compression and checksum of log blocks and the
//! header's embedded checksum (`codec`). Facts: docs/format/l2arc.md.

use crate::blkptr::Dva;
use crate::{Error, Order, Reader, Reason, Result, Writer};

/// Where the header is on the device.
pub const HEADER_OFFSET: u64 = 0x40_0000;
/// Smallest header; it fills one device sector if that is larger.
pub const HEADER_BYTES_MIN: usize = 512;
/// Decompressed bytes of a log block.
pub const LOG_BLOCK_BYTES: usize = 64 << 10;
/// Entries a log block has room for.
pub const LOG_ENTRIES_MAX: u64 = 1022;
/// Below this device end nothing is persisted.
pub const PERSISTENT_BYTES_MIN: u64 = 1 << 30;

const HEADER: &str = "cache device header";
const LOG_BLOCK: &str = "cache log block";
const MAGIC: u64 = 0x5A46_5343_4143_4845;
const LOG_MAGIC: u64 = 0x4C4F_4742_4C4B_4844;
const VERSION: u64 = 1;
const FLAG_FIRST_SWEEP: u64 = 1;
const POINTER_BYTES: usize = 64;
const ENTRIES_OFFSET: usize = 128;
const ENTRY_BYTES: usize = 64;

/// The device header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pool this cache belongs to.
    pub pool_guid: u64,
    /// The cache device's own guid.
    pub vdev_guid: u64,
    /// Entries in each log block; 0: the device is too small to persist anything.
    pub log_entries: u64,
    /// Everything from the write hand up to here is being overwritten.
    pub evict: u64,
    /// Bit 0: the ring was never full. Other bits are kept.
    pub flags: u64,
    /// First byte of the ring.
    pub start: u64,
    /// First byte behind the ring.
    pub end: u64,
    /// The newest log block, and the one before.
    pub newest: [LogPointer; 2],
    /// Sum of the log blocks' aligned sizes.
    pub log_bytes: u64,
    /// Number of log blocks.
    pub log_blocks: u64,
    /// When the device was last trimmed.
    pub trim_action_time: u64,
    /// State of that trim.
    pub trim_state: u64,
}

impl Header {
    /// Reads the header and finds out its byte order. The caller verifies the label checksum at its end.
    ///
    /// # Errors
    /// Too short, another magic or version, more entries than fit, or a ring that ends before it starts.
    pub fn decode(data: &[u8]) -> Result<(Self, Order)> {
        let magic = Reader::new(HEADER, data, Order::Little).array::<8>()?;
        let order = Order::of_magic(magic, MAGIC).ok_or(Error::new(
            HEADER,
            0,
            Reason::BadMagic { found: Order::Little.u64(magic) },
        ))?;
        let mut reader = Reader::new(HEADER, data, order);
        let [_, version, pool_guid, vdev_guid, log_entries, evict, flags, start, end] = reader.words()?;
        let newest = [LogPointer::read(&mut reader)?, LogPointer::read(&mut reader)?];
        let [log_bytes, log_blocks, trim_action_time, trim_state] = reader.words()?;
        if version != VERSION {
            let reason = Reason::Unsupported { field: "cache device version", value: version };
            return Err(Error::new(HEADER, 8, reason));
        }
        if log_entries > LOG_ENTRIES_MAX {
            let reason = Reason::OutOfRange { field: "log entries", value: log_entries };
            return Err(Error::new(HEADER, 32, reason));
        }
        if end < start || evict < start || evict > end {
            return Err(Error::new(
                HEADER,
                40,
                Reason::Inconsistent("start, evict and end are out of order"),
            ));
        }
        let header = Self {
            pool_guid,
            vdev_guid,
            log_entries,
            evict,
            flags,
            start,
            end,
            newest,
            log_bytes,
            log_blocks,
            trim_action_time,
            trim_state,
        };
        Ok((header, order))
    }

    /// The header, `bytes` long (the device's sector, at least 512); its last 40 bytes are left zero for the
    /// label checksum, whose verifier is [`HEADER_OFFSET`].
    #[must_use]
    pub fn encode(&self, bytes: usize, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(bytes, order);
        writer.words(&[MAGIC, VERSION, self.pool_guid, self.vdev_guid, self.log_entries]);
        writer.words(&[self.evict, self.flags, self.start, self.end]);
        for pointer in &self.newest {
            pointer.write(&mut writer);
        }
        writer.words(&[self.log_bytes, self.log_blocks, self.trim_action_time, self.trim_state]);
        writer.pad_to(bytes.max(HEADER_BYTES_MIN));
        writer.finish()
    }

    /// The ring was never full: nothing behind the write hand was ever written.
    #[must_use]
    pub fn first_sweep(&self) -> bool {
        self.flags & FLAG_FIRST_SWEEP != 0
    }

    /// Where writing goes on.
    #[must_use]
    pub fn hand(&self) -> u64 {
        let [newest, _] = &self.newest;
        newest.daddr.saturating_add(newest.aligned_size()).max(self.start)
    }
}

/// Entries per log block that a device with this ring has, if those that end before `persist_min` (as a rule
/// [`PERSISTENT_BYTES_MIN`]) have none; a header that says otherwise is not used.
#[must_use]
pub fn log_entries_of(start: u64, end: u64, persist_min: u64) -> u64 {
    if end < persist_min { 0 } else { (end.saturating_sub(start) >> 24).min(LOG_ENTRIES_MAX) }
}

/// A pointer to a log block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPointer {
    /// Where the log block is.
    pub daddr: u64,
    /// Bytes of the buffers it lists.
    pub payload_bytes: u64,
    /// Where the first of them is.
    pub payload_start: u64,
    /// Sizes, compression and checksum; zero in an empty pointer.
    pub prop: u64,
    /// Checksum of the stored, aligned bytes.
    pub checksum: [u64; 4],
}

impl LogPointer {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let [daddr, payload_bytes, payload_start, prop] = reader.words()?;
        Ok(Self { daddr, payload_bytes, payload_start, prop, checksum: reader.words()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.words(&[self.daddr, self.payload_bytes, self.payload_start, self.prop]);
        writer.words(&self.checksum);
    }

    /// The `prop` word of a log block stored in `aligned_size` bytes; `None` if that is no multiple of 512 up
    /// to 64 KiB.
    #[must_use]
    pub fn prop_of(aligned_size: u64, compression_id: u8, checksum_id: u8) -> Option<u64> {
        let sectors = (aligned_size <= LOG_BLOCK_BYTES as u64).then(|| sectors_field(aligned_size))??;
        let lsize = (LOG_BLOCK_BYTES as u64 / 512).saturating_sub(1);
        let ids = u64::from(compression_id & 0x7f) << 32 | u64::from(checksum_id) << 40;
        Some(lsize | sectors << 16 | ids)
    }

    /// Stored bytes, with padding to the device's sector; 0 in an empty pointer.
    #[must_use]
    pub fn aligned_size(&self) -> u64 {
        if self.prop == 0 { 0 } else { size_field(self.prop, 16) }
    }

    /// Compression id of the stored bytes (2: none).
    #[must_use]
    pub fn compression_id(&self) -> u8 {
        byte(self.prop, 32) & 0x7f
    }

    /// Checksum id of the stored bytes (7: fletcher4).
    #[must_use]
    pub fn checksum_id(&self) -> u8 {
        byte(self.prop, 40)
    }

    /// Whether block and payload lie inside the ring and outside the stretch being overwritten, as far as the
    /// header tells.
    #[must_use]
    pub fn is_intact(&self, header: &Header) -> bool {
        let size = self.aligned_size();
        let (start, hand, evict) = (self.payload_start, header.hand(), header.evict.max(header.start));
        let Some(last) = self.daddr.checked_add(size).and_then(|end| end.checked_sub(1)) else {
            return false;
        };
        if size == 0 || size > LOG_BLOCK_BYTES as u64 || start < header.start || last > header.end {
            return false;
        }
        if header.first_sweep() {
            return last < hand;
        }
        !in_ring(hand, start, last)
            && !in_ring(evict, start, last)
            && !in_ring(start, hand, evict)
            && !in_ring(last, hand, evict)
    }
}

/// Whether `x` lies in the closed stretch from `low` to `high` of a ring.
#[must_use]
pub fn in_ring(x: u64, low: u64, high: u64) -> bool {
    match low.cmp(&high) {
        std::cmp::Ordering::Less => low <= x && x <= high,
        std::cmp::Ordering::Greater => x <= high || low <= x,
        std::cmp::Ordering::Equal => x == low,
    }
}

/// A decompressed log block.
#[derive(Clone, Copy, Debug)]
pub struct LogBlock<'a> {
    /// The block before it in the same chain (two blocks back in writing order).
    pub previous: LogPointer,
    order: Order,
    entries: &'a [[u8; ENTRY_BYTES]],
}

impl<'a> LogBlock<'a> {
    /// Reads a log block; its byte order is found out from the magic.
    ///
    /// # Errors
    /// Too short, or another magic.
    pub fn decode(data: &'a [u8]) -> Result<Self> {
        let magic = Reader::new(LOG_BLOCK, data, Order::Little).array::<8>()?;
        let order = Order::of_magic(magic, LOG_MAGIC).ok_or(Error::new(
            LOG_BLOCK,
            0,
            Reason::BadMagic { found: Order::Little.u64(magic) },
        ))?;
        let mut reader = Reader::new(LOG_BLOCK, data, order);
        reader.skip(8)?;
        let previous = LogPointer::read(&mut reader)?;
        reader.seek(ENTRIES_OFFSET)?;
        Ok(Self { previous, order, entries: reader.rest().as_chunks().0 })
    }

    /// The first `log_entries` entries (a header's [`Header::log_entries`]), oldest first; fewer if the block is
    /// shorter.
    ///
    /// # Errors
    /// (Per item) a DVA or type that no block has.
    pub fn entries(&self, log_entries: u64) -> impl DoubleEndedIterator<Item = Result<Entry>> + use<'a> {
        let order = self.order;
        let count = usize::try_from(log_entries.min(LOG_ENTRIES_MAX)).unwrap_or(0);
        let entries = self.entries.get(..count).unwrap_or(self.entries);
        entries.iter().enumerate().map(move |(index, entry)| {
            Entry::decode(entry, order).map_err(|mut error| {
                let start = index.saturating_mul(ENTRY_BYTES).saturating_add(ENTRIES_OFFSET);
                error.offset = error.offset.saturating_add(start);
                error
            })
        })
    }
}

/// A decompressed log block of 64 KiB with these entries.
///
/// # Errors
/// More entries than fit, or one that has no encoding.
pub fn encode_log_block(previous: &LogPointer, entries: &[Entry], order: Order) -> Result<Vec<u8>> {
    if entries.len() as u64 > LOG_ENTRIES_MAX {
        let limit = usize::try_from(LOG_ENTRIES_MAX).unwrap_or(usize::MAX);
        return Err(Error::new(LOG_BLOCK, 0, Reason::TooLarge { limit, unit: "entries" }));
    }
    let mut writer = Writer::with_capacity(LOG_BLOCK_BYTES, order);
    writer.u64(LOG_MAGIC);
    previous.write(&mut writer);
    debug_assert_eq!(writer.position(), 8 + POINTER_BYTES);
    writer.pad_to(ENTRIES_OFFSET);
    for entry in entries {
        entry.write(&mut writer)?;
    }
    writer.pad_to(LOG_BLOCK_BYTES);
    Ok(writer.finish())
}

/// What a cached block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// File or volume data.
    Data,
    /// Metadata.
    Metadata,
}

/// One cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First copy in the pool: with `birth`, the key.
    pub dva: Dva,
    /// Physical birth txg.
    pub birth: u64,
    /// Where it is on the cache device.
    pub daddr: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Stored bytes, as in the pool (the cache device adds padding to its own sector).
    pub psize: u64,
    /// Compression id.
    pub compression_id: u8,
    /// Compression level code.
    pub compression_level: u8,
    /// It came in by prefetch and was not asked for yet.
    pub prefetched: bool,
    /// Data or metadata.
    pub content: Content,
    /// It is ciphertext.
    pub protected: bool,
    /// ARC list it was on when it was written (1 most recently used, 3 most frequently used).
    pub arc_state: u8,
}

impl Entry {
    fn decode(data: &[u8], order: Order) -> Result<Self> {
        let [dva0, dva1, birth, prop, daddr, level] = Reader::new(LOG_BLOCK, data, order).words()?;
        let dva = Dva::from_words([dva0, dva1]);
        if dva.asize == 0 || dva.to_words() != Some([dva0 & DVA_MASK, dva1]) {
            let reason = Reason::OutOfRange { field: "DVA", value: dva1 };
            return Err(Error::new(LOG_BLOCK, 0, reason));
        }
        let content = match byte(prop, 48) {
            1 => Content::Data,
            2 => Content::Metadata,
            other => {
                let reason = Reason::OutOfRange { field: "buffer type", value: other.into() };
                return Err(Error::new(LOG_BLOCK, 24, reason));
            }
        };
        Ok(Self {
            dva,
            birth,
            daddr,
            lsize: size_field(prop, 0),
            psize: size_field(prop, 16),
            compression_id: byte(prop, 32) & 0x7f,
            compression_level: byte(level, 0),
            prefetched: byte(prop, 39) & 1 != 0,
            content,
            protected: byte(prop, 56) & 1 != 0,
            arc_state: byte(prop, 57) & 15,
        })
    }

    fn write(&self, writer: &mut Writer) -> Result<()> {
        let position = writer.position();
        let bad = |field, value| Error::new(LOG_BLOCK, position, Reason::OutOfRange { field, value });
        let dva = self.dva.to_words().ok_or(bad("DVA", self.dva.offset))?;
        let lsize = sectors_field(self.lsize).ok_or(bad("lsize", self.lsize))?;
        let psize = sectors_field(self.psize).ok_or(bad("psize", self.psize))?;
        let content: u64 = match self.content {
            Content::Data => 1,
            Content::Metadata => 2,
        };
        let prop = lsize
            | psize << 16
            | u64::from(self.compression_id & 0x7f) << 32
            | u64::from(self.prefetched) << 39
            | content << 48
            | u64::from(self.protected) << 56
            | u64::from(self.arc_state & 15) << 57;
        writer.words(&dva);
        writer.words(&[self.birth, prop, self.daddr, self.compression_level.into(), 0, 0]);
        Ok(())
    }
}

/// Bits of a DVA's first word that mean something to us; the rest is padding.
const DVA_MASK: u64 = 0x00ff_ffff_00ff_ffff;

/// Bytes from a 16-bit field that counts sectors, less one.
const fn size_field(prop: u64, shift: u32) -> u64 {
    (prop >> shift & 0xffff).saturating_add(1) << 9
}

/// The other way; `None` unless it is 1 to 65536 whole sectors.
fn sectors_field(bytes: u64) -> Option<u64> {
    (bytes.is_multiple_of(512) && bytes <= 512 << 16).then(|| (bytes >> 9).checked_sub(1)).flatten()
}

/// Eight bits of a word, from bit `shift` up.
const fn byte(word: u64, shift: u32) -> u8 {
    (word >> shift & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_intervals_wrap() {
        assert!(in_ring(5, 3, 9));
        assert!(!in_ring(2, 3, 9));
        assert!(in_ring(1, 9, 3));
        assert!(!in_ring(5, 9, 3));
        assert!(in_ring(4, 4, 4));
        assert!(!in_ring(5, 4, 4));
    }

    #[test]
    fn a_small_device_persists_nothing() {
        let of = |end| log_entries_of(0x40_0200, end, PERSISTENT_BYTES_MIN);
        assert_eq!((of(0x13f8_0000), of(0x4ff8_0000), of(1 << 44)), (0, 79, 1022));
    }
}
