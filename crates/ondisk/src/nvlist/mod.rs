//! Name-value lists: how labels, the pool configuration and the history describe themselves.
//!
//! A list is an ordered sequence of named, typed values; lists nest. Two encodings exist on disk:
//! XDR (big-endian, everywhere) and *native* (the writer's memory layout, in the history). Both decode
//! to the same [`NvList`], which keeps order, flags and every type, so that a list can be changed in
//! one pair and written back without losing what we do not understand.
//!
//! Every length in a packed list comes from a stranger: nesting is bounded by [`DEPTH_MAX`], and
//! nothing is allocated beyond a small multiple of the bytes that are really there.
//!
//! Facts: docs/format/labels.md §6.

use std::fmt;

use crate::{Error, Order, Reason, Result};

mod native;
mod print;
mod xdr;

/// Lists nested deeper are refused (a pool's deepest is about 6).
pub const DEPTH_MAX: usize = 32;
/// `flags` of a list whose names are unique: what pools use.
pub const UNIQUE_NAME: u32 = 1;

const STRUCTURE: &str = "nvlist";

/// How a packed list is encoded: byte 0 of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The writer's memory layout, in the writer's byte order.
    Native(Order),
    /// XDR. The stream also says the writer's byte order, without any effect.
    Xdr(Order),
}

/// A string value: bytes that are nearly always text. Paths and properties come from other systems,
/// and a pool must not become unreadable because one of them is not UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NvStr(Vec<u8>);

impl NvStr {
    /// From raw bytes (no NUL inside; what follows one would not be read back).
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The bytes, without a NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for NvStr {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// The text, with U+FFFD for what is not UTF-8.
impl fmt::Display for NvStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for NvStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A value of one of the 26 types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Present, without a value.
    Boolean,
    /// One byte.
    Byte(u8),
    /// Signed, 16 bits.
    Int16(i16),
    /// Unsigned, 16 bits.
    Uint16(u16),
    /// Signed, 32 bits.
    Int32(i32),
    /// Unsigned, 32 bits.
    Uint32(u32),
    /// Signed, 64 bits.
    Int64(i64),
    /// Unsigned, 64 bits: nearly every number.
    Uint64(u64),
    /// A string.
    String(NvStr),
    /// Bytes.
    ByteArray(Vec<u8>),
    /// Signed, 16 bits.
    Int16Array(Vec<i16>),
    /// Unsigned, 16 bits.
    Uint16Array(Vec<u16>),
    /// Signed, 32 bits.
    Int32Array(Vec<i32>),
    /// Unsigned, 32 bits.
    Uint32Array(Vec<u32>),
    /// Signed, 64 bits.
    Int64Array(Vec<i64>),
    /// Unsigned, 64 bits.
    Uint64Array(Vec<u64>),
    /// Strings.
    StringArray(Vec<NvStr>),
    /// Nanoseconds.
    HrTime(i64),
    /// A nested list.
    NvList(NvList),
    /// Nested lists.
    NvListArray(Vec<NvList>),
    /// True or false.
    BooleanValue(bool),
    /// Signed, 8 bits.
    Int8(i8),
    /// Unsigned, 8 bits.
    Uint8(u8),
    /// True or false, each.
    BooleanArray(Vec<bool>),
    /// Signed, 8 bits.
    Int8Array(Vec<i8>),
    /// Unsigned, 8 bits.
    Uint8Array(Vec<u8>),
}

impl Value {
    /// The type's number on disk.
    #[must_use]
    pub const fn type_id(&self) -> u32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::Int16(_) => 3,
            Self::Uint16(_) => 4,
            Self::Int32(_) => 5,
            Self::Uint32(_) => 6,
            Self::Int64(_) => 7,
            Self::Uint64(_) => 8,
            Self::String(_) => 9,
            Self::ByteArray(_) => 10,
            Self::Int16Array(_) => 11,
            Self::Uint16Array(_) => 12,
            Self::Int32Array(_) => 13,
            Self::Uint32Array(_) => 14,
            Self::Int64Array(_) => 15,
            Self::Uint64Array(_) => 16,
            Self::StringArray(_) => 17,
            Self::HrTime(_) => 18,
            Self::NvList(_) => 19,
            Self::NvListArray(_) => 20,
            Self::BooleanValue(_) => 21,
            Self::Int8(_) => 22,
            Self::Uint8(_) => 23,
            Self::BooleanArray(_) => 24,
            Self::Int8Array(_) => 25,
            Self::Uint8Array(_) => 26,
        }
    }

    /// Elements as the pair's `nelem` counts them.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(values) | Self::Uint8Array(values) => values.len(),
            Self::Int16Array(values) => values.len(),
            Self::Uint16Array(values) => values.len(),
            Self::Int32Array(values) => values.len(),
            Self::Uint32Array(values) => values.len(),
            Self::Int64Array(values) => values.len(),
            Self::Uint64Array(values) => values.len(),
            Self::StringArray(values) => values.len(),
            Self::NvListArray(values) => values.len(),
            Self::BooleanArray(values) => values.len(),
            Self::Int8Array(values) => values.len(),
            _ => 1,
        }
    }

    /// Bytes the value takes in OpenZFS's memory; part of each pair's `decoded_size`.
    fn native_bytes(&self) -> usize {
        let each = |size: usize| self.elements().saturating_mul(size);
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::ByteArray(_) | Self::Int8Array(_) | Self::Uint8Array(_) => each(1),
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int16Array(_) | Self::Uint16Array(_) => each(2),
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int32Array(_) | Self::Uint32Array(_) | Self::BooleanArray(_) => each(4),
            Self::Int64(_) | Self::Uint64(_) | Self::HrTime(_) => 8,
            Self::Int64Array(_) | Self::Uint64Array(_) => each(8),
            Self::String(text) => text.0.len().saturating_add(1),
            Self::StringArray(texts) => {
                texts.iter().map(|text| text.0.len().saturating_add(9)).fold(0, usize::saturating_add)
            }
            Self::NvList(_) => 24,
            Self::NvListArray(_) => each(32),
        }
    }
}

/// Numbers and strings convert, so that building a list reads well.
macro_rules! from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}
from!(u64 => Uint64, &str => String, NvStr => String, NvList => NvList, Vec<NvList> => NvListArray,
    Vec<u64> => Uint64Array);

/// Unpacked size of a pair rounded as OpenZFS rounds it: it refuses lists where this is not exact.
fn decoded_bytes(name: &str, value: &Value) -> usize {
    let align8 = |size: usize| size.checked_next_multiple_of(8).unwrap_or(usize::MAX);
    align8(name.len().saturating_add(17)).saturating_add(align8(value.native_bytes()))
}

/// An ordered list of named values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvList {
    /// [`UNIQUE_NAME`], or 2 if name and type together are unique.
    pub flags: u32,
    /// The pairs, in the order of the packed form.
    pub pairs: Vec<(String, Value)>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

impl NvList {
    /// An empty list with unique names.
    #[must_use]
    pub const fn new() -> Self {
        Self { flags: UNIQUE_NAME, pairs: Vec::new() }
    }

    /// Reads a packed list; what follows it in `data` is padding and ignored.
    ///
    /// # Errors
    /// Unknown encoding or type, lengths that contradict each other, names that are not UTF-8,
    /// nesting beyond [`DEPTH_MAX`], or short input.
    pub fn decode(data: &[u8]) -> Result<Self> {
        Self::decode_stream(data).map(|(list, ..)| list)
    }

    /// As [`decode`](Self::decode), but also tells the encoding and how many bytes the list took.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_stream(data: &[u8]) -> Result<(Self, Encoding, usize)> {
        let Some([encoding, endian, _, _]) = data.first_chunk::<4>() else {
            return Err(Error::new(STRUCTURE, 0, Reason::Truncated { need: 4, have: data.len() }));
        };
        let order = match endian {
            0 => Order::Big,
            1 => Order::Little,
            _ => return Err(unsupported(1, "byte order", u64::from(*endian))),
        };
        match encoding {
            0 => native::decode(data, order).map(|(list, len)| (list, Encoding::Native(order), len)),
            1 => xdr::decode(data).map(|(list, len)| (list, Encoding::Xdr(order), len)),
            _ => Err(unsupported(0, "encoding", u64::from(*encoding))),
        }
    }

    /// Packs the list, stream header included.
    ///
    /// # Errors
    /// A list nested beyond [`DEPTH_MAX`], or lengths beyond what the format's 32 (names in native
    /// encoding: 16) bits can say.
    pub fn encode(&self, encoding: Encoding) -> Result<Vec<u8>> {
        match encoding {
            Encoding::Native(order) => native::encode(self, order),
            Encoding::Xdr(order) => xdr::encode(self, order),
        }
    }

    /// The value called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Whether a pair called `name` exists, of whatever type.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Takes the pair called `name` out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let index = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.remove(index).1)
    }

    /// Sets `name`: in place if it exists, else at the end.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.pairs.iter_mut().find(|(key, _)| key == name) {
            Some((_, place)) => *place = value,
            None => self.pairs.push((name.to_owned(), value)),
        }
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number called `name`.
    #[must_use]
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Uint64(value)) => Some(*value),
            _ => None,
        }
    }

    /// The string called `name`, if it is UTF-8.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        self.string(name).and_then(NvStr::as_str)
    }

    /// The string called `name`, whatever its bytes.
    #[must_use]
    pub fn string(&self, name: &str) -> Option<&NvStr> {
        match self.get(name) {
            Some(Value::String(value)) => Some(value),
            _ => None,
        }
    }

    /// The nested list called `name`.
    #[must_use]
    pub fn nvlist(&self, name: &str) -> Option<&Self> {
        match self.get(name) {
            Some(Value::NvList(value)) => Some(value),
            _ => None,
        }
    }

    /// The nested lists called `name`.
    #[must_use]
    pub fn nvlist_array(&self, name: &str) -> Option<&[Self]> {
        match self.get(name) {
            Some(Value::NvListArray(values)) => Some(values),
            _ => None,
        }
    }

    /// The numbers called `name`.
    #[must_use]
    pub fn u64_array(&self, name: &str) -> Option<&[u64]> {
        match self.get(name) {
            Some(Value::Uint64Array(values)) => Some(values),
            _ => None,
        }
    }

    /// Whether `name` is set: a pair without value, `true`, or a number that is not 0.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        match self.get(name) {
            Some(Value::Boolean | Value::BooleanValue(true)) => true,
            Some(Value::Uint64(value)) => *value != 0,
            _ => false,
        }
    }

    /// The number called `name`, which must be there.
    ///
    /// # Errors
    /// [`Reason::Missing`] or [`Reason::WrongType`].
    pub fn require_u64(&self, name: &'static str) -> Result<u64> {
        self.u64(name).ok_or_else(|| self.lacks(name, "number"))
    }

    /// The string called `name`, which must be there.
    ///
    /// # Errors
    /// [`Reason::Missing`] or [`Reason::WrongType`].
    pub fn require_string(&self, name: &'static str) -> Result<&NvStr> {
        self.string(name).ok_or_else(|| self.lacks(name, "string"))
    }

    /// The nested list called `name`, which must be there.
    ///
    /// # Errors
    /// [`Reason::Missing`] or [`Reason::WrongType`].
    pub fn require_nvlist(&self, name: &'static str) -> Result<&Self> {
        self.nvlist(name).ok_or_else(|| self.lacks(name, "nvlist"))
    }

    #[cold]
    fn lacks(&self, name: &'static str, expected: &'static str) -> Error {
        let reason = match self.get(name) {
            None => Reason::Missing { name },
            Some(_) => Reason::WrongType { name, expected },
        };
        Error::new(STRUCTURE, 0, reason)
    }
}

/// `nvlist` from pairs, in order, with unique names expected.
impl<N: Into<String>> FromIterator<(N, Value)> for NvList {
    fn from_iter<T: IntoIterator<Item = (N, Value)>>(pairs: T) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Self { flags: UNIQUE_NAME, pairs }
    }
}

#[cold]
fn unsupported(offset: usize, field: &'static str, value: u64) -> Error {
    Error::new(STRUCTURE, offset, Reason::Unsupported { field, value })
}

#[cold]
fn too_deep(offset: usize) -> Error {
    Error::new(STRUCTURE, offset, Reason::TooDeep { limit: DEPTH_MAX })
}

#[cold]
fn too_large() -> Error {
    Error::new(STRUCTURE, 0, Reason::TooLarge { limit: i32::MAX as usize, unit: "bytes" })
}

#[cfg(test)]
mod tests;
