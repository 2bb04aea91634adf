//! Block reference tables: how many *extra* pointers share a cloned block.
//!
//! One table per top-level vdev, named `com.fudosecurity:brt:vdev:N` in the MOS directory. Nothing in a block
//! pointer says that a block is cloned, so whoever frees a block must ask here first; readers need not. The
//! table's object says in its bonus where the entries are: a ZAP from one word, the block's byte offset on the
//! vdev, to a count. Pools before feature `block_cloning_endian` store the count as eight bytes in the order of
//! the machine that wrote them.
//!
//! No pool at hand has such tables; this was not checked against one. Facts: docs/format/mos.md §1,
//! docs/format/blkptr.md (block cloning), docs/format/features.md.

use crate::zap::{IntSize, Value};
use crate::{Error, Order, Reader, Reason, Result};

/// Prefix of the tables' names in the MOS directory; the top-level vdev's id follows in decimal.
pub const DIRECTORY_PREFIX: &str = "com.fudosecurity:brt:vdev:";

/// The bonus of a vdev's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdevTable {
    /// ZAP object with the entries.
    pub entries_object: u64,
    /// Number of ranges the object's data (a `u16` of entries each) covers.
    pub ranges: u64,
    /// Byte order tag of that data, as stored.
    pub byte_order: u64,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of each range.
    pub range_bytes: u64,
    /// Bytes that cloned blocks take.
    pub used_bytes: u64,
    /// Bytes that cloning saved.
    pub saved_bytes: u64,
}

impl VdevTable {
    /// Reads the bonus.
    ///
    /// # Errors
    /// Shorter than seven words.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let [entries_object, ranges, byte_order, entries, range_bytes, used_bytes, saved_bytes] =
            Reader::new("block reference table", bonus, order).words()?;
        Ok(Self { entries_object, ranges, byte_order, entries, range_bytes, used_bytes, saved_bytes })
    }
}

/// One cloned block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset of the block's DVA on the vdev.
    pub offset: u64,
    /// Pointers to it beyond the first.
    pub references: u64,
}

impl Entry {
    /// From a ZAP entry; `order` is that of the pool, for counts stored as bytes.
    ///
    /// # Errors
    /// The key is not one word, or the value no count.
    pub fn from_zap(key: &[u64], value: &Value, order: Order) -> Result<Self> {
        let error = |what| Error::new("block reference table entry", 0, Reason::Inconsistent(what));
        let [offset] = *key else { return Err(error("a key is not one word")) };
        let references = match (value.int_size(), <[u8; 8]>::try_from(value.be_bytes())) {
            (IntSize::Eight, Ok(bytes)) => u64::from_be_bytes(bytes),
            (IntSize::One, Ok(bytes)) => order.u64(bytes),
            _ => return Err(error("a value is no count")),
        };
        Ok(Self { offset, references })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_one_integer_or_eight_bytes() {
        let one = Value::from_u64(3);
        assert_eq!(Entry::from_zap(&[512], &one, Order::Little), Ok(Entry { offset: 512, references: 3 }));
        let eight = Value::from_be_bytes(IntSize::One, vec![3, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(Entry::from_zap(&[512], &eight, Order::Little), Ok(Entry { offset: 512, references: 3 }));
        assert!(Entry::from_zap(&[512, 0], &one, Order::Little).is_err());
        assert!(Entry::from_zap(&[512], &Value::from_u16s(&[3]), Order::Little).is_err());
    }
}
