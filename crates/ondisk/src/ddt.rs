//! Dedup tables: which stored block a checksum already has, and how many pointers share it.
//!
//! A table is a fat ZAP whose keys are five words, the checksum and the sizes ([`Key`]), and whose values are
//! bytes: one that tells order and compression ([`Stored`]), then the entry itself, in one of two forms
//! ([`Phys`]). Reading a pool needs none of this, since block pointers carry their own DVAs; verifying one and
//! freeing blocks does.
//!
//! The dedup log of feature `fast_dedup` is not decoded. Facts: docs/format/mos.md §1, docs/format/blkptr.md
//! (dedup bit); the layout of entries was read off a pool of OpenZFS 2.4 (tests/ondisk/vectors.rs holds one).

use crate::blkptr::Dva;
use crate::{Error, Order, Reader, Reason, Result};

const STRUCTURE: &str = "dedup table entry";
const COPIES: usize = 3;
const FLAT_BYTES: usize = 72;
const TRADITIONAL_PHYS: usize = 4;
const TRADITIONAL_BYTES: usize = 64 * TRADITIONAL_PHYS;

/// The key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Checksum words of the block.
    pub checksum: [u64; 4],
    /// Logical bytes.
    pub lsize: u64,
    /// Stored bytes.
    pub psize: u64,
    /// Compression id.
    pub compression_id: u8,
    /// The block is ciphertext.
    pub encrypted: bool,
}

impl Key {
    /// From the words of the ZAP key.
    ///
    /// # Errors
    /// Not five words.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let [a, b, c, d, prop] = *words else {
            return Err(Error::new("dedup table key", 0, Reason::Inconsistent("a key is not five words")));
        };
        let size = |field: u64| (field & 0xffff).saturating_add(1) << 9;
        let [_, _, _, compression, ..] = prop.to_be_bytes();
        Ok(Self {
            checksum: [a, b, c, d],
            lsize: size(prop),
            psize: size(prop >> 16),
            compression_id: compression & 0x7f,
            encrypted: compression & 0x80 != 0,
        })
    }
}

/// The value of an entry as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    /// Byte order of the entry.
    pub order: Order,
    /// Compression id of `payload`: 2 none, 14 zle.
    pub compression_id: u8,
    /// The entry, perhaps compressed; at most [`Phys::BYTES_MAX`] bytes when it is not.
    pub payload: &'a [u8],
}

impl<'a> Stored<'a> {
    /// From the bytes of the ZAP value.
    ///
    /// # Errors
    /// No bytes at all.
    pub fn decode(value: &'a [u8]) -> Result<Self> {
        let (first, payload) =
            value.split_first().ok_or(Error::new(STRUCTURE, 0, Reason::Truncated { need: 1, have: 0 }))?;
        let order = if first & 0x80 == 0 { Order::Big } else { Order::Little };
        Ok(Self { order, compression_id: first & 0x7f, payload })
    }
}

/// One stored copy set of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Where the block is; unused ones have no size.
    pub dvas: [Dva; COPIES],
    /// Block pointers that share it.
    pub refcount: u64,
    /// Txg in which it was written.
    pub physical_birth: u64,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phys {
    /// Four variants: ditto, and one, two or three copies.
    Traditional(Box<[Copies; TRADITIONAL_PHYS]>),
    /// Feature `fast_dedup`: one variant, and when (in seconds) the entry came into its class.
    Flat {
        /// The block.
        copies: Copies,
        /// Unix time.
        class_start: u64,
    },
}

impl Phys {
    /// Decompressed bytes of the larger form.
    pub const BYTES_MAX: usize = TRADITIONAL_BYTES;

    /// Reads a decompressed entry; the length tells the form.
    ///
    /// # Errors
    /// Neither 72 nor 256 bytes.
    pub fn decode(data: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        match data.len() {
            FLAT_BYTES => Ok(Self::Flat { copies: copies(&mut reader)?, class_start: reader.u64()? }),
            TRADITIONAL_BYTES => {
                let mut next = || copies(&mut reader);
                Ok(Self::Traditional(Box::new([next()?, next()?, next()?, next()?])))
            }
            len => {
                let reason = Reason::OutOfRange { field: "entry length", value: len as u64 };
                Err(Error::new(STRUCTURE, 0, reason))
            }
        }
    }

    /// All variants.
    #[must_use]
    pub fn variants(&self) -> &[Copies] {
        match self {
            Self::Traditional(variants) => variants.as_slice(),
            Self::Flat { copies, .. } => std::slice::from_ref(copies),
        }
    }
}

fn copies(reader: &mut Reader<'_>) -> Result<Copies> {
    let [a, b, c, d, e, f, refcount, physical_birth] = reader.words()?;
    Ok(Copies { dvas: [[a, b], [c, d], [e, f]].map(Dva::from_words), refcount, physical_birth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_told_apart_by_length() {
        for order in [Order::Little, Order::Big] {
            let bytes: Vec<u8> = (1..=32u64).flat_map(|word| order.put_u64(word)).collect();
            let Ok(Phys::Flat { copies, class_start }) = Phys::decode(&bytes[..72], order) else { panic!() };
            assert_eq!((copies.refcount, copies.physical_birth, class_start), (7, 8, 9));
            let traditional = Phys::decode(&bytes, order).unwrap();
            assert_eq!(traditional.variants().len(), 4);
            assert_eq!(traditional.variants()[3].refcount, 31);
            assert!(Phys::decode(&bytes[..64], order).is_err());
        }
    }

    #[test]
    fn a_key_is_five_words() {
        let key = Key::from_words(&[1, 2, 3, 4, 0x8f_0007_001f]).unwrap();
        assert_eq!((key.lsize, key.psize, key.compression_id, key.encrypted), (16384, 4096, 15, true));
        assert!(Key::from_words(&[1, 2, 3, 4]).is_err());
    }
}
