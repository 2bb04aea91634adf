//! The pool's history: a ring of packed lists, of which the first (how the pool was made) stays.
//!
//! ```text
//!  0          create_len                       bof ▼        eof ▼            phys_max_off
//!  │ zpool create … │ …wrapped records │ gap │ oldest … newest │ free …       │
//! ```
//!
//! `bof` and `eof` are *logical* offsets that only grow; [`HistoryPhys::physical`] folds them into the
//! ring. Each record is a little-endian length and an nvlist in native encoding.
//!
//! Facts: docs/format/mos.md §9.

use crate::nvlist::NvList;
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "history";

/// Longest record believed, in bytes: OpenZFS limits what it logs to far less.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Longest first part believed, in bytes: it is the one record of how the pool was made.
const CREATE_MAX: u64 = 16 << 20;
/// Largest ring believed, in bytes: OpenZFS makes none beyond it. An object of holes costs nothing to forge, and who
/// reads it goes through all of it.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// The bonus of the history object (type 30). Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HistoryPhys {
    /// Length of what is kept for ever at the start.
    pub create_len: u64,
    /// Where the ring wraps.
    pub phys_max_off: u64,
    /// Logical offset of the oldest record.
    pub bof: u64,
    /// Logical offset behind the newest record.
    pub eof: u64,
    /// Records overwritten so far.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// Size in bytes.
    pub const BYTES: usize = 40;

    /// Reads a bonus.
    ///
    /// # Errors
    /// Fewer than 40 bytes, offsets no ring can have, or a ring larger than any is made.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, bonus, order);
        let [create_len, phys_max_off, bof, eof, records_lost] = reader.words()?;
        let bad =
            |offset, field, value| Err(Error::new(STRUCTURE, offset, Reason::OutOfRange { field, value }));
        if phys_max_off > RING_BYTES_MAX {
            return bad(8, "end of the ring", phys_max_off);
        }
        if create_len > phys_max_off.min(CREATE_MAX) {
            return bad(0, "create length", create_len);
        }
        if eof < bof || eof.saturating_sub(bof) > phys_max_off {
            return bad(24, "end of records", eof);
        }
        Ok(Self { create_len, phys_max_off, bof, eof, records_lost })
    }

    /// The bonus.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        writer.words(&[self.create_len, self.phys_max_off, self.bof, self.eof, self.records_lost]);
        writer.finish()
    }

    /// Byte of the object where logical offset `logical` lies; `None` in a ring without room.
    #[must_use]
    pub fn physical(&self, logical: u64) -> Option<u64> {
        match logical.checked_sub(self.create_len) {
            None => Some(logical),
            Some(behind) => {
                let ring = self.phys_max_off.checked_sub(self.create_len)?;
                self.create_len.checked_add(behind.checked_rem(ring)?)
            }
        }
    }

    /// The physical byte ranges (offset, length) that hold the `len` logical bytes from `logical` on:
    /// one, or two where they wrap. `None` in a ring without room for them.
    #[must_use]
    pub fn extents(&self, logical: u64, len: u64) -> Option<[(u64, u64); 2]> {
        let start = self.physical(logical)?;
        let first = len.min(self.phys_max_off.checked_sub(start)?);
        let second = len.checked_sub(first)?;
        let fits = second <= self.phys_max_off.saturating_sub(self.create_len);
        fits.then_some([(start, first), (self.create_len, second)])
    }
}

/// Reads records one after the other from `data`, logical bytes put together by the caller. Ends at
/// the end of `data` or after the first error.
pub fn records(data: &[u8]) -> impl Iterator<Item = Result<NvList>> + '_ {
    let mut reader = Some(Reader::new(STRUCTURE, data, Order::Little));
    std::iter::from_fn(move || {
        let open = reader.as_mut()?;
        if open.remaining() == 0 {
            return None;
        }
        let record = read_record(open);
        if record.is_err() {
            reader = None;
        }
        Some(record)
    })
}

fn read_record(reader: &mut Reader<'_>) -> Result<NvList> {
    let len = reader.u64()?;
    if len > RECORD_BYTES_MAX {
        return Err(reader.error(Reason::OutOfRange { field: "record length", value: len }));
    }
    NvList::decode(reader.bytes(len as usize)?)
}

/// A record as it is stored.
///
/// # Errors
/// The list has no native encoding.
pub fn encode_record(list: &NvList, order: Order) -> Result<Vec<u8>> {
    let packed = list.encode(crate::nvlist::Encoding::Native(order))?;
    let mut writer = Writer::with_capacity(packed.len().saturating_add(8), Order::Little);
    writer.u64(packed.len() as u64);
    writer.bytes(&packed);
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: HistoryPhys =
        HistoryPhys { create_len: 100, phys_max_off: 1000, bof: 950, eof: 1800, records_lost: 3 };

    #[test]
    fn offsets_wrap_behind_the_creation_record() {
        assert_eq!(RING.physical(0), Some(0));
        assert_eq!(RING.physical(999), Some(999));
        assert_eq!(RING.physical(1000), Some(100));
        assert_eq!(RING.physical(1900), Some(100));
        assert_eq!(RING.extents(950, 60), Some([(950, 50), (100, 10)]));
        assert_eq!(RING.extents(950, 50), Some([(950, 50), (100, 0)]));
        assert_eq!(RING.extents(950, 951), None, "longer than the ring");
        let full = HistoryPhys { create_len: 1000, ..RING };
        assert_eq!(full.physical(1000), None);
    }

    #[test]
    fn the_bonus_reads_back_and_nonsense_is_refused() {
        for order in [Order::Little, Order::Big] {
            assert_eq!(HistoryPhys::decode(&RING.encode(order), order), Ok(RING));
        }
        let backwards = HistoryPhys { bof: 5, eof: 4, ..RING };
        assert!(HistoryPhys::decode(&backwards.encode(Order::Big), Order::Big).is_err());
    }

    /// `zpool history` went through 8 EiB of a forged one, of which nothing was there.
    #[test]
    fn a_ring_larger_than_any_is_refused() {
        let decoded = |ring: HistoryPhys| HistoryPhys::decode(&ring.encode(Order::Little), Order::Little);
        let largest = HistoryPhys { phys_max_off: 1 << 30, ..RING };
        assert_eq!(decoded(largest), Ok(largest));
        for forged in [
            HistoryPhys { create_len: 1 << 63, phys_max_off: 1 << 63, ..RING },
            HistoryPhys { phys_max_off: (1 << 30) + 1, ..RING },
            HistoryPhys { create_len: (16 << 20) + 1, ..largest },
        ] {
            assert!(decoded(forged).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn records_follow_each_other_and_stop_at_the_first_bad_one() {
        let mut list = NvList::new();
        list.set("history command", "zpool create lake");
        list.set("history time", 1_700_000_000_u64);
        let mut data = encode_record(&list, Order::Little).unwrap();
        data.extend(encode_record(&list, Order::Big).unwrap());
        assert_eq!(records(&data).collect::<Vec<_>>(), [Ok(list.clone()), Ok(list)]);
        data.truncate(data.len() - 1);
        assert_eq!(records(&data).map(|record| record.is_ok()).collect::<Vec<_>>(), [true, false]);
        assert_eq!(records(&[0xff; 64]).count(), 1);
    }
}
