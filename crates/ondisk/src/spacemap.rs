//! Space maps: the log of allocations and frees that says which parts of a device are in use.
//!
//! A metaslab's space map starts as "all free"; replaying its entries in order gives its present state. The
//! same words serve three more uses: *log space maps* (one per txg for the whole pool, applied on top of the
//! metaslabs' own maps), *DTLs* (ranges of txgs a leaf missed) and the maps of checkpoints and removals.
//!
//! ```text
//!   one word    0 | offset 47 | type 1 | run-1 15
//!   two words   11 00 | run-1 36 | vdev 24        type 1 | offset 63
//!   debug       10 | action 2 | pass 10 | txg 50         (all zero after the 10: padding)
//! ```
//!
//! Offsets and runs count units of `1 << shift` bytes (ashift for metaslabs, 9 for logs, 0 for DTLs and a removed
//! vdev's obsolete map), see
//! [`Segment::range`]. Decoding ([`entries`]) allocates nothing. The object's blocks can be decoded one by one,
//! because no entry straddles a block; [`Encoder`] keeps that promise.
//!
//! Not here: replaying into a set of ranges, and the rule that an overlap means damage (the allocator's part).
//! Facts: docs/format/spacemap.md.

use std::ops::Range;

use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "space map";
const HISTOGRAM_BUCKETS: usize = 32;
/// Bonus bytes without and with the histogram.
const BONUS_SHORT: usize = 24;
const BONUS_LONG: usize = 320;
const HISTOGRAM_OFFSET: usize = 64;

/// Longest space map believed in any case, in bytes, and by whoever has all of one in memory: that of a metaslab of many units
/// may be longer.
pub const MAP_BYTES_MAX: u64 = 256 << 20;

/// The bonus of a space map object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The object's own number, as some writers note it; informative only.
    pub object: u64,
    /// Valid bytes of the word array; replay stops here.
    pub length: u64,
    /// Bytes allocated minus bytes freed over all entries (negative in a checkpoint's map).
    pub alloc: i64,
    /// Free segments by size: bucket i counts those of `1 << (i + shift)` bytes up to twice that. A hint only.
    /// `None` where the pool does not keep it (24-byte bonus).
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl Header {
    /// Reads the bonus.
    ///
    /// # Errors
    /// Shorter than its first three fields, or a length that is not whole words.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("space map header", bonus, order);
        let [object, length, alloc] = reader.words()?;
        if !length.is_multiple_of(8) {
            return Err(Error::new(
                "space map header",
                8,
                Reason::OutOfRange { field: "length", value: length },
            ));
        }
        let histogram = if bonus.len() >= BONUS_LONG {
            reader.seek(HISTOGRAM_OFFSET)?;
            Some(reader.words()?)
        } else {
            None
        };
        Ok(Self { object, length, alloc: alloc.cast_signed(), histogram })
    }

    /// The bonus: 24 bytes without histogram, 320 with.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(BONUS_LONG, order);
        writer.words(&[self.object, self.length, self.alloc.cast_unsigned()]);
        if let Some(histogram) = &self.histogram {
            writer.pad_to(HISTOGRAM_OFFSET);
            writer.words(histogram);
            debug_assert_eq!(writer.position(), BONUS_LONG);
        } else {
            debug_assert_eq!(writer.position(), BONUS_SHORT);
        }
        writer.finish()
    }
}

/// What an entry does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The range is in use from here on. (In a DTL: these txgs are missing.)
    Alloc,
    /// The range is free from here on.
    Free,
}

impl Kind {
    const fn from_bit(bit: u64) -> Self {
        if bit == 0 { Self::Alloc } else { Self::Free }
    }

    const fn bit(self) -> u64 {
        match self {
            Self::Alloc => 0,
            Self::Free => 1,
        }
    }
}

/// A range that changes state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Allocated or freed.
    pub kind: Kind,
    /// First unit.
    pub offset: u64,
    /// Number of units, at least 1.
    pub run: u64,
    /// The vdev field of a two-word entry: the top-level vdev in a log map, meaningless (0) in a metaslab's.
    pub vdev: Option<u32>,
}

impl Segment {
    /// The range in bytes, for units of `1 << shift` bytes; `None` beyond 2^64.
    #[must_use]
    pub fn range(&self, shift: u32) -> Option<Range<u64>> {
        let scale = |units: u64| units.checked_mul(1u64.checked_shl(shift)?);
        Some(scale(self.offset)?..scale(self.offset.checked_add(self.run)?)?)
    }
}

/// One decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapEntry {
    /// A range changes state.
    Segment(Segment),
    /// Who wrote the entries that follow.
    Debug {
        /// What they mostly are.
        action: Kind,
        /// Sync pass (10 bits).
        pass: u16,
        /// Transaction group (50 bits).
        txg: u64,
    },
    /// One word to reach the end of a block.
    Padding,
}

const TAG_DEBUG: u64 = 0b10;
const TAG_TWO_WORDS: u64 = 0b11;
const RUN_ONE_WORD_MAX: u64 = 1 << 15;
const OFFSET_ONE_WORD_MAX: u64 = (1 << 47) - 1;
const RUN_TWO_WORDS_MAX: u64 = 1 << 36;
const VDEV_MAX: u32 = (1 << 24) - 1;
const PASS_MAX: u16 = (1 << 10) - 1;
const TXG_MAX: u64 = (1 << 50) - 1;

/// The entries in `data`: the valid bytes of the object, or of one of its blocks.
///
/// After the first error there are no more.
#[must_use]
pub fn entries(data: &[u8], order: Order) -> Entries<'_> {
    Entries { reader: Reader::new(STRUCTURE, data, order), failed: false }
}

/// Iterator of [`entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl Entries<'_> {
    fn step(&mut self) -> Result<MapEntry> {
        let word = self.reader.u64()?;
        match word >> 62 {
            TAG_DEBUG => {
                let [pass, txg] = [(word >> 50) & u64::from(PASS_MAX), word & TXG_MAX];
                let action = (word >> 60) & 3;
                if [action, pass, txg] == [0, 0, 0] {
                    return Ok(MapEntry::Padding);
                }
                // Two bits for two actions; the upper one has never been seen set, and a reader skips anyway.
                let pass = u16::try_from(pass).unwrap_or(PASS_MAX);
                Ok(MapEntry::Debug { action: Kind::from_bit(action & 1), pass, txg })
            }
            TAG_TWO_WORDS => {
                let second = self.reader.u64()?;
                let vdev = u32::try_from(word & u64::from(VDEV_MAX)).ok();
                let run = ((word >> 24) & (RUN_TWO_WORDS_MAX - 1)).saturating_add(1);
                let offset = second & !(1 << 63);
                Ok(MapEntry::Segment(Segment { kind: Kind::from_bit(second >> 63), offset, run, vdev }))
            }
            _ => {
                let run = (word & (RUN_ONE_WORD_MAX - 1)).saturating_add(1);
                let kind = Kind::from_bit((word >> 15) & 1);
                Ok(MapEntry::Segment(Segment { kind, offset: word >> 16, run, vdev: None }))
            }
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<MapEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.remaining() == 0 {
            return None;
        }
        let item = self.step();
        self.failed = item.is_err();
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.reader.remaining().div_ceil(8)))
    }
}

/// Which entries a writer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// One-word entries only: the pool lacks feature `spacemap_v2`.
    OneWord,
    /// The shorter form that fits: metaslab maps with `spacemap_v2`.
    Shortest,
    /// Always two words, with this top-level vdev: log space maps.
    Log {
        /// Id of the top-level vdev.
        vdev: u32,
    },
}

/// Appends entries to a space map whose blocks are `block_bytes` long.
#[derive(Clone, Debug)]
pub struct Encoder {
    words: Writer,
    block_bytes: u64,
    /// Position of the first new word in the object, in bytes.
    start: u64,
}

impl Encoder {
    /// Continues an object that has `length` valid bytes in blocks of `block_bytes`.
    ///
    /// # Errors
    /// A length or block size that is not whole words, or an empty block.
    pub fn new(length: u64, block_bytes: u64, order: Order) -> Result<Self> {
        for (field, value) in [("length", length), ("block size", block_bytes)] {
            if !value.is_multiple_of(8) || (field == "block size" && value < 16) {
                return Err(Error::new(STRUCTURE, 0, Reason::OutOfRange { field, value }));
            }
        }
        Ok(Self { words: Writer::new(order), block_bytes, start: length })
    }

    /// Says who writes what follows; fields are cut to their widths.
    pub fn debug(&mut self, action: Kind, pass: u16, txg: u64) {
        let pass = u64::from(pass & PASS_MAX);
        self.words.u64((TAG_DEBUG << 62) | (action.bit() << 60) | (pass << 50) | (txg & TXG_MAX));
    }

    /// Appends a range of units, as as many entries as it takes.
    ///
    /// # Errors
    /// The range ends beyond what the encoding can name, or the vdev id is wider than 24 bits. Nothing is
    /// appended then.
    pub fn segment(&mut self, kind: Kind, units: Range<u64>, encoding: Encoding) -> Result<()> {
        let offset_max = match encoding {
            Encoding::OneWord => OFFSET_ONE_WORD_MAX,
            Encoding::Shortest | Encoding::Log { .. } => u64::MAX >> 1,
        };
        if units.end.saturating_sub(1) > offset_max {
            let value = units.end;
            return Err(Error::new(STRUCTURE, 0, Reason::OutOfRange { field: "offset", value }));
        }
        if let Encoding::Log { vdev } = encoding
            && vdev > VDEV_MAX
        {
            return Err(Error::new(STRUCTURE, 0, Reason::OutOfRange { field: "vdev", value: vdev.into() }));
        }
        let mut offset = units.start;
        while offset < units.end {
            let left = units.end.saturating_sub(offset);
            let one_word_fits = left <= RUN_ONE_WORD_MAX && offset <= OFFSET_ONE_WORD_MAX;
            let run = match encoding {
                Encoding::OneWord => left.min(RUN_ONE_WORD_MAX),
                Encoding::Shortest if one_word_fits => left,
                Encoding::Shortest | Encoding::Log { .. } => left.min(RUN_TWO_WORDS_MAX),
            };
            match encoding {
                Encoding::Log { vdev } => self.two_words(kind, offset, run, vdev),
                Encoding::Shortest if !one_word_fits => self.two_words(kind, offset, run, 0),
                Encoding::OneWord | Encoding::Shortest => {
                    self.words.u64((offset << 16) | (kind.bit() << 15) | run.saturating_sub(1));
                }
            }
            offset = offset.saturating_add(run);
        }
        Ok(())
    }

    /// The new words, to be written behind the object's old length.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.words.finish()
    }

    fn two_words(&mut self, kind: Kind, offset: u64, run: u64, vdev: u32) {
        let position = self.start.saturating_add(self.words.position() as u64);
        // Both words must lie in one block, because readers take the object block by block.
        if position.checked_rem(self.block_bytes) == self.block_bytes.checked_sub(8) {
            self.words.u64(TAG_DEBUG << 62);
        }
        self.words.u64((TAG_TWO_WORDS << 62) | (run.saturating_sub(1) << 24) | u64::from(vdev));
        self.words.u64((kind.bit() << 63) | offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: [u8; 32] = [
        0x04, 0, 0, 0, 0, 0, 0x04, 0x80, 0x01, 0, 0, 0, 0, 0, 0, 0, 0x06, 0, 0, 0, 0, 0, 0x08, 0x90, 0, 0x80,
        1, 0, 0, 0, 0, 0,
    ];

    fn segment(kind: Kind, offset: u64, run: u64, vdev: Option<u32>) -> MapEntry {
        MapEntry::Segment(Segment { kind, offset, run, vdev })
    }

    #[test]
    fn a_real_map_decodes_and_encodes_to_its_bytes() {
        let expected = [
            MapEntry::Debug { action: Kind::Alloc, pass: 1, txg: 4 },
            segment(Kind::Alloc, 0, 2, None),
            MapEntry::Debug { action: Kind::Free, pass: 2, txg: 6 },
            segment(Kind::Free, 1, 1, None),
        ];
        let decoded: Vec<_> = entries(&REAL, Order::Little).map(Result::unwrap).collect();
        assert_eq!(decoded, expected);
        let mut encoder = Encoder::new(0, 16384, Order::Little).unwrap();
        encoder.debug(Kind::Alloc, 1, 4);
        encoder.segment(Kind::Alloc, 0..2, Encoding::Shortest).unwrap();
        encoder.debug(Kind::Free, 2, 6);
        encoder.segment(Kind::Free, 1..2, Encoding::OneWord).unwrap();
        assert_eq!(encoder.finish(), REAL);
    }

    #[test]
    fn a_two_word_entry_never_straddles_a_block() {
        let mut encoder = Encoder::new(24, 32, Order::Big).unwrap();
        encoder.segment(Kind::Free, 5..1_000_000, Encoding::Log { vdev: 3 }).unwrap();
        let decoded: Vec<_> = entries(&encoder.finish(), Order::Big).map(Result::unwrap).collect();
        assert_eq!(decoded, [MapEntry::Padding, segment(Kind::Free, 5, 999_995, Some(3))]);
    }

    #[test]
    fn long_runs_are_split_where_two_words_are_not_allowed() {
        let mut encoder = Encoder::new(0, 4096, Order::Little).unwrap();
        encoder.segment(Kind::Alloc, 10..10 + 40_000, Encoding::OneWord).unwrap();
        let decoded: Vec<_> = entries(&encoder.finish(), Order::Little).map(Result::unwrap).collect();
        assert_eq!(
            decoded,
            [segment(Kind::Alloc, 10, 32_768, None), segment(Kind::Alloc, 32_778, 7232, None)]
        );
        let mut encoder = Encoder::new(0, 4096, Order::Little).unwrap();
        assert!(encoder.segment(Kind::Alloc, 0..1 << 48, Encoding::OneWord).is_err());
        assert!(encoder.segment(Kind::Alloc, 0..1, Encoding::Log { vdev: 1 << 24 }).is_err());
        assert!(encoder.finish().is_empty());
    }

    #[test]
    fn half_a_two_word_entry_is_an_error_and_the_end() {
        let mut entries = entries(&[0, 0, 0, 0, 0, 0, 0, 0xc0, 9, 9], Order::Little);
        assert!(entries.next().unwrap().is_err());
        assert_eq!(entries.next(), None);
    }

    #[test]
    fn both_bonus_sizes_round_trip() {
        for histogram in [None, Some(std::array::from_fn(|bucket| bucket as u64))] {
            let header = Header { object: 71, length: 0x20, alloc: -4096, histogram };
            for order in [Order::Little, Order::Big] {
                let bonus = header.encode(order);
                assert_eq!(bonus.len(), if histogram.is_some() { 320 } else { 24 });
                assert_eq!(Header::decode(&bonus, order), Ok(header.clone()));
            }
        }
        let odd = Header { object: 0, length: 7, alloc: 0, histogram: None }.encode(Order::Little);
        assert!(Header::decode(&odd, Order::Little).is_err());
    }

    #[test]
    fn a_range_beyond_the_address_space_is_none() {
        let segment = Segment { kind: Kind::Alloc, offset: u64::MAX >> 1, run: 1 << 36, vdev: None };
        assert_eq!(segment.range(9), None);
        assert_eq!(Segment { offset: 3, run: 2, ..segment }.range(12), Some(12288..20480));
        assert_eq!(segment.range(64), None);
    }
}
