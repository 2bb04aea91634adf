//! ZAP: the name → value objects that hold every directory, property list and feature count.
//!
//! A ZAP starts life *micro* (one block of fixed 64-byte entries, each value one `u64`) and becomes *fat* (an
//! extensible hash table over many blocks) when a name, a value or the number of entries no longer fits.
//! The first word of a block says which kind it is, see [`BlockKind`].
//!
//! Both forms place an entry by the same hash: CRC-64 over the name, started from the object's salt, of which
//! only the top 28 (or 48) bits count. Objects that fold case or normalise Unicode hash the *folded* name. We
//! can fold ASCII exactly, because every Unicode form leaves it alone; for other names of such an object
//! [`HashRule::hash`] says `None` and the reader walks all entries instead of guessing at tables of Unicode 5.
//!
//! Here: the hash, keys and values. [`micro`] and [`fat`]: the two layouts. Not here: which block holds what
//! (the reader's part; `fat::Header::locate` tells it where to look next).
//! Facts: docs/format/zap.md.

pub mod fat;
mod leaf;
pub mod micro;

use crate::{Error, Order, Reader};

/// Longest name, in bytes without its NUL, with feature `longname` (255 without it).
pub const NAME_BYTES_MAX: usize = 1023;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 8192;
/// `normflags` bit: names compare and hash in upper case.
pub const NORM_UPPER: u64 = 2;

const MICRO: u64 = 0x8000_0000_0000_0003;
const HEADER: u64 = 0x8000_0000_0000_0001;
const LEAF: u64 = 0x8000_0000_0000_0000;

/// What a block of a ZAP object is, told by its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// The only block of a microzap.
    Micro,
    /// Block 0 of a fat ZAP.
    FatHeader,
    /// A leaf of a fat ZAP.
    FatLeaf,
    /// No tag: a block of a fat ZAP's external pointer table, or something that is no ZAP at all.
    Untagged,
}

impl BlockKind {
    /// Reads the tag of `block`.
    ///
    /// # Errors
    /// The block is shorter than the tag.
    pub fn of(block: &[u8], order: Order) -> Result<Self, Error> {
        Ok(match Reader::new("zap block", block, order).u64()? {
            MICRO => Self::Micro,
            HEADER => Self::FatHeader,
            LEAF => Self::FatLeaf,
            _ => Self::Untagged,
        })
    }
}

/// A key as the caller has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// A name, without its NUL.
    Name(&'a [u8]),
    /// An array of words (dedup and block-clone tables).
    Words(&'a [u64]),
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(name: &'a str) -> Self {
        Key::Name(name.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(name: &'a [u8]) -> Self {
        Key::Name(name)
    }
}

/// A key as found in an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnedKey {
    /// A name, without its NUL. Not necessarily UTF-8.
    Name(Vec<u8>),
    /// An array of words.
    Words(Vec<u64>),
}

impl OwnedKey {
    /// The same key, borrowed.
    #[must_use]
    pub fn as_key(&self) -> Key<'_> {
        match self {
            Self::Name(name) => Key::Name(name),
            Self::Words(words) => Key::Words(words),
        }
    }

    /// The name's bytes; `None` for an array of words.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Name(name) => Some(name),
            Self::Words(_) => None,
        }
    }
}

/// Bytes of one integer of a value. It is part of the value: a `u64` is not an array of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntSize {
    /// Bytes: strings (with their NUL) and opaque data.
    One,
    /// 16-bit integers (attribute layouts).
    Two,
    /// 32-bit integers.
    Four,
    /// 64-bit integers: numbers, object ids and arrays of them.
    Eight,
}

impl IntSize {
    /// From the on-disk byte.
    #[must_use]
    pub const fn from_bytes(bytes: u8) -> Option<Self> {
        match bytes {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// Bytes per integer.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// An array of integers of one size, kept as the big-endian bytes the leaf holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    int_size: IntSize,
    bytes: Vec<u8>,
}

impl Value {
    /// One `u64`: the shape of nearly every entry, and the only one a microzap can hold.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        Self { int_size: IntSize::Eight, bytes: value.to_be_bytes().to_vec() }
    }

    /// An array of `u64`.
    #[must_use]
    pub fn from_u64s(values: &[u64]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        Self { int_size: IntSize::Eight, bytes }
    }

    /// An array of `u16`.
    #[must_use]
    pub fn from_u16s(values: &[u16]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        Self { int_size: IntSize::Two, bytes }
    }

    /// A string: its bytes and the NUL that OpenZFS counts as part of it.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        Self { int_size: IntSize::One, bytes }
    }

    /// From big-endian bytes; `None` unless they are a whole number of integers.
    #[must_use]
    pub fn from_be_bytes(int_size: IntSize, bytes: Vec<u8>) -> Option<Self> {
        (bytes.len().checked_rem(int_size.bytes()) == Some(0)).then_some(Self { int_size, bytes })
    }

    /// Size of each integer.
    #[must_use]
    pub const fn int_size(&self) -> IntSize {
        self.int_size
    }

    /// Number of integers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len().checked_div(self.int_size.bytes()).unwrap_or(0)
    }

    /// The integers, big-endian, back to back.
    #[must_use]
    pub fn be_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value if it is exactly one `u64`.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self.int_size {
            IntSize::Eight => Some(u64::from_be_bytes(self.bytes.as_slice().try_into().ok()?)),
            IntSize::One | IntSize::Two | IntSize::Four => None,
        }
    }

    /// All integers, widened, whatever their size.
    pub fn integers(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.bytes
            .chunks_exact(self.int_size.bytes())
            .map(|int| int.iter().fold(0u64, |value, byte| (value << 8) | u64::from(*byte)))
    }

    /// The bytes of a one-byte-integer value before its first NUL: what a string property holds.
    #[must_use]
    pub fn as_text_bytes(&self) -> Option<&[u8]> {
        if self.int_size != IntSize::One {
            return None;
        }
        self.bytes.split(|byte| *byte == 0).next()
    }

    /// The string, if it is one and UTF-8.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(self.as_text_bytes()?).ok()
    }
}

/// How an object turns keys into hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRule {
    /// Start value of the CRC, random per object.
    pub salt: u64,
    /// Folding of names before hashing: 0 none, [`NORM_UPPER`], or Unicode forms of `casesensitivity` and
    /// `normalization` file systems.
    pub normflags: u64,
    /// 48 significant bits instead of 28.
    pub wide: bool,
    /// The first word of the key already is the hash (dedup tables: it is a checksum).
    pub prehashed: bool,
}

impl HashRule {
    /// The rule of a microzap, and of a fat ZAP without flags.
    #[must_use]
    pub const fn plain(salt: u64, normflags: u64) -> Self {
        Self { salt, normflags, wide: false, prehashed: false }
    }

    /// Where `key` belongs, or `None` if this object folds names by Unicode tables and the name is not ASCII:
    /// then it can only be found by walking all entries.
    #[must_use]
    pub fn hash(&self, key: Key<'_>) -> Option<u64> {
        let full = match key {
            Key::Words(words) if self.prehashed => words.first().copied().unwrap_or(0),
            Key::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).fold(self.salt, crc64_step),
            Key::Name(name) if self.normflags == 0 => name.iter().copied().fold(self.salt, crc64_step),
            Key::Name(name) if name.is_ascii() => {
                let upper = self.normflags & NORM_UPPER != 0;
                name.iter()
                    .map(|byte| if upper { byte.to_ascii_uppercase() } else { *byte })
                    .fold(self.salt, crc64_step)
            }
            Key::Name(_) => return None,
        };
        let significant = if self.wide { 48u32 } else { 28 };
        Some(full & !(u64::MAX >> significant))
    }
}

/// Reflected polynomial of CRC-64 (ECMA-182 mirrored).
const CRC64_POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;

static CRC64_TABLE: [u64; 256] = crc64_table();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated by the compiler: a wrong index would not build"
)]
const fn crc64_table() -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ CRC64_POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

fn crc64_step(crc: u64, byte: u8) -> u64 {
    let [low, ..] = crc.to_le_bytes();
    (crc >> 8) ^ CRC64_TABLE.get(usize::from(low ^ byte)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_real_objects() {
        let plain = |salt, name: &str| HashRule::plain(salt, 0).hash(name.into());
        assert_eq!(plain(0x4003, "root_dataset"), Some(0xaef7_a610_0000_0000));
        assert_eq!(plain(0x4003, "config"), Some(0x9641_8550_0000_0000));
        assert_eq!(plain(1, "a"), Some(0x9f81_69b0_0000_0000));
        assert_eq!(plain(1, "size"), Some(0x5e01_cff0_0000_0000));
        let words = HashRule { wide: true, ..HashRule::plain(0x12_3457, 0) };
        assert_eq!(words.hash(Key::Words(&[1, 2])), Some(0x085e_b5ac_bcfd_0000));
        let narrow = HashRule::plain(0x12_3457, 0);
        assert_eq!(narrow.hash(Key::Words(&[1, 2])), Some(0x085e_b5a0_0000_0000));
    }

    #[test]
    fn a_folding_object_hashes_upper_case_and_admits_what_it_cannot_fold() {
        let fold = HashRule::plain(99, NORM_UPPER);
        assert_eq!(fold.hash("Monday".into()), fold.hash("MONDAY".into()));
        assert_ne!(fold.hash("Monday".into()), HashRule::plain(99, 0).hash("Monday".into()));
        assert_eq!(fold.hash("Zoë".into()), None);
        assert!(HashRule::plain(99, 0).hash("Zoë".into()).is_some());
    }

    #[test]
    fn a_prehashed_key_is_its_own_hash() {
        let rule = HashRule { prehashed: true, ..HashRule::plain(5, 0) };
        assert_eq!(rule.hash(Key::Words(&[0x1234_5678_9abc_def0, 7])), Some(0x1234_5670_0000_0000));
        assert_eq!(rule.hash(Key::Words(&[])), Some(0));
    }

    #[test]
    fn integer_size_is_part_of_a_value() {
        assert_eq!(Value::from_u64(7).as_u64(), Some(7));
        assert_eq!(Value::from_u64s(&[7, 8]).as_u64(), None);
        let eight_bytes = Value::from_be_bytes(IntSize::One, vec![0, 0, 0, 0, 0, 0, 0, 7]).unwrap();
        assert_eq!(eight_bytes.as_u64(), None);
        assert_eq!(Value::from_text("lz4").be_bytes(), b"lz4\0");
        assert_eq!(Value::from_text("lz4").as_text(), Some("lz4"));
        assert_eq!(Value::from_u16s(&[5, 0x1234]).integers().collect::<Vec<_>>(), [5, 0x1234]);
        assert_eq!(Value::from_be_bytes(IntSize::Four, vec![0; 6]), None);
    }
}
