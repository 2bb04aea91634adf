//! Removed devices: where the data of a removed top-level vdev went.
//!
//! Block pointers keep naming the removed vdev. Its *mapping* object is a sorted list of runs: source offset,
//! and the DVA the run was copied to (on a vdev that may itself have been removed later). A read of a removed
//! vdev is cut at the runs' borders ([`Mapping::split`]). The *births* object says from which txg on a stretch of
//! the mapping was in force; the *counts* object (if any) how many bytes of each run nobody needs any more.
//! Facts: docs/format/spacemap.md §9b.

use std::ops::Range;

use crate::blkptr::Dva;
use crate::{Error, Order, Reader, Reason, Result, Writer};

const HEADER: &str = "indirect mapping header";
const MAPPING: &str = "indirect mapping";
/// Bytes of a run in the mapping object.
pub const ENTRY_BYTES: usize = 24;
const OFFSET_MASK: u64 = (1 << 63) - 1;

/// The mapping object's bonus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// End of the highest source run, in bytes.
    pub max_offset: u64,
    /// Sum of all runs.
    pub bytes_mapped: u64,
    /// Number of runs.
    pub entries: u64,
    /// Object with a `u32` of obsolete bytes per run; 0 or absent: none.
    pub counts_object: Option<u64>,
}

impl Header {
    /// Reads the bonus; the fourth word exists where feature `obsolete_counts` was enabled.
    ///
    /// # Errors
    /// Shorter than three words.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(HEADER, bonus, order);
        let [max_offset, bytes_mapped, entries] = reader.words()?;
        let counts_object = reader.u64().ok().filter(|object| *object != 0);
        Ok(Self { max_offset, bytes_mapped, entries, counts_object })
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingEntry {
    /// Byte offset on the removed vdev.
    pub source: u64,
    /// Where the run is now; its `asize` is the run's length.
    pub destination: Dva,
}

impl MappingEntry {
    fn decode(data: &[u8; ENTRY_BYTES], order: Order) -> Result<Self> {
        let [source, low, high] = Reader::new(MAPPING, data, order).words()?;
        let source = (source & OFFSET_MASK).checked_mul(512);
        let destination = Dva::from_words([low, high]);
        let source = source.filter(|offset| *offset <= Dva::END_MAX && destination.offset <= Dva::END_MAX);
        match source {
            Some(source) if destination.asize != 0 => Ok(Self { source, destination }),
            _ => Err(Error::new(MAPPING, 0, Reason::Inconsistent("a run has no length or ends nowhere"))),
        }
    }

    /// The 24 bytes of the run; `None` if an offset or length is no multiple of 512 or does not fit.
    #[must_use]
    pub fn encode(&self, order: Order) -> Option<Vec<u8>> {
        let sector = self.source.is_multiple_of(512).then_some(self.source >> 9)?;
        let mut writer = Writer::with_capacity(ENTRY_BYTES, order);
        writer.u64(sector);
        writer.words(&self.destination.to_words()?);
        Some(writer.finish())
    }

    /// Source bytes of the run.
    #[must_use]
    pub fn source_range(&self) -> Range<u64> {
        self.source..self.source.saturating_add(self.destination.asize)
    }
}

/// A mapping, or any contiguous part of it, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    entries: &'a [[u8; ENTRY_BYTES]],
    order: Order,
}

/// A piece of a read of a removed vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Vdev to read from (possibly removed, too).
    pub vdev: u32,
    /// Byte offset there.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl<'a> Mapping<'a> {
    /// Over the data of the mapping object; a partial entry at the end is left out.
    #[must_use]
    pub fn new(data: &'a [u8], order: Order) -> Self {
        Self { entries: data.as_chunks().0, order }
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All runs, in order.
    ///
    /// # Errors
    /// (Per item) a run without length.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Result<MappingEntry>> + use<'a> {
        let order = self.order;
        self.entries.iter().map(move |entry| MappingEntry::decode(entry, order))
    }

    /// Where the bytes `range` of the removed vdev are now, in pieces in order.
    ///
    /// # Errors
    /// A part of the range was never mapped, or a run is malformed.
    pub fn split(&self, range: Range<u64>) -> Result<Vec<Piece>> {
        let unmapped = Error::new(MAPPING, 0, Reason::Inconsistent("an offset was never mapped"));
        let source = |entry: &[u8; ENTRY_BYTES]| match entry.first_chunk::<8>() {
            Some(word) => (self.order.u64(*word) & OFFSET_MASK).saturating_mul(512),
            None => 0,
        };
        // The last run that starts at or before the range.
        let first = self.entries.partition_point(|entry| source(entry) <= range.start).saturating_sub(1);
        let mut pieces = Vec::new();
        let mut at = range.start;
        for entry in self.entries.get(first..).unwrap_or_default() {
            if at >= range.end {
                break;
            }
            let run = MappingEntry::decode(entry, self.order)?;
            let source = run.source_range();
            if !source.contains(&at) {
                return Err(unmapped);
            }
            let end = source.end.min(range.end);
            pieces.push(Piece {
                vdev: run.destination.vdev,
                offset: run.destination.offset.saturating_add(at.saturating_sub(source.start)),
                length: end.saturating_sub(at),
            });
            at = end;
        }
        if at < range.end { Err(unmapped) } else { Ok(pieces) }
    }
}

/// Number of records in a births object, from its bonus.
///
/// # Errors
/// Shorter than a word.
pub fn birth_count(bonus: &[u8], order: Order) -> Result<u64> {
    Reader::new("indirect births header", bonus, order).u64()
}

/// Up to `offset`, from the record before it on, the mapping was made in `txg`: of the births object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// End of the stretch, in bytes on the removed vdev.
    pub offset: u64,
    /// Txg.
    pub txg: u64,
}

/// The records of a births object.
pub fn births(data: &[u8], order: Order) -> impl ExactSizeIterator<Item = Birth> + '_ {
    data.as_chunks::<16>().0.iter().map(move |record| {
        let mut words = order.words(record);
        Birth { offset: words.next().unwrap_or(0), txg: words.next().unwrap_or(0) }
    })
}

/// Obsolete bytes per run, of the counts object.
pub fn obsolete_counts(data: &[u8], order: Order) -> impl ExactSizeIterator<Item = u32> + '_ {
    data.as_chunks::<4>().0.iter().map(move |count| order.u32(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(order: Order) -> Vec<u8> {
        let run = |source, vdev, offset, asize| {
            let destination = Dva { vdev, offset, asize, gang: false };
            MappingEntry { source, destination }.encode(order).unwrap()
        };
        [run(0x1000, 1, 0x8000, 0x1000), run(0x2000, 2, 0x40000, 0x2000), run(0x9000, 1, 0, 0x1000)].concat()
    }

    #[test]
    fn a_read_is_cut_at_the_borders_of_runs() {
        for order in [Order::Little, Order::Big] {
            let data = mapping(order);
            let map = Mapping::new(&data, order);
            let piece = |vdev, offset, length| Piece { vdev, offset, length };
            assert_eq!(map.split(0x1200..0x1400), Ok(vec![piece(1, 0x8200, 0x200)]));
            let both = vec![piece(1, 0x8800, 0x800), piece(2, 0x40000, 0x1000)];
            assert_eq!(map.split(0x1800..0x3000), Ok(both));
            assert_eq!(map.split(0x9000..0xa000), Ok(vec![piece(1, 0, 0x1000)]));
            for hole in [0..0x200, 0x3000..0x5000, 0x9800..0xa200, 0xb000..0xb200] {
                assert!(map.split(hole.clone()).is_err(), "{hole:x?}");
            }
        }
    }

    #[test]
    fn an_old_header_has_no_counts() {
        let words: Vec<u8> = [0x9000u64, 0x3000, 3].iter().flat_map(|word| word.to_be_bytes()).collect();
        let header = Header::decode(&words, Order::Big).unwrap();
        assert_eq!(
            header,
            Header { max_offset: 0x9000, bytes_mapped: 0x3000, entries: 3, counts_object: None }
        );
    }
}
