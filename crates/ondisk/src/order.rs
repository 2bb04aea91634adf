//! Byte order as a value, and the bounded cursors every decoder and encoder is made of.
//!
//! OpenZFS writes numbers in the order of the machine that wrote them and tags each block with that
//! order, so order is data, not a property of the build. A [`Reader`] never reads past its slice:
//! a short structure is an [`Error`] naming the structure and the byte. A [`Writer`] only appends.
//!
//! Facts: docs/format/overview.md §4.

use crate::{Error, Reason, Result};

/// The byte order of the host that wrote a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// Least significant byte first: every pool made on x86 or ARM.
    Little,
    /// Most significant byte first: SPARC, s390x; and XDR always.
    Big,
}

impl Order {
    /// The other one.
    #[must_use]
    pub const fn swapped(self) -> Self {
        match self {
            Self::Little => Self::Big,
            Self::Big => Self::Little,
        }
    }

    /// Which order makes `bytes` read as `magic`; `None` if neither does.
    #[must_use]
    pub fn of_magic(bytes: [u8; 8], magic: u64) -> Option<Self> {
        [Self::Little, Self::Big].into_iter().find(|order| order.u64(bytes) == magic)
    }

    /// A `u16` from its bytes.
    #[must_use]
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A `u32` from its bytes.
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A `u64` from its bytes.
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of a `u16`.
    #[must_use]
    pub const fn put_u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a `u32`.
    #[must_use]
    pub const fn put_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a `u64`.
    #[must_use]
    pub const fn put_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The `u32` at byte `offset` of `data`, for fields at fixed places.
    ///
    /// # Errors
    /// [`Reason::Truncated`], naming `structure`, if it lies beyond the end.
    #[inline]
    pub fn u32_at(self, structure: &'static str, data: &[u8], offset: usize) -> Result<u32> {
        array_at(structure, data, offset).map(|bytes| self.u32(bytes))
    }

    /// The `u64` at byte `offset` of `data`.
    ///
    /// # Errors
    /// [`Reason::Truncated`], naming `structure`, if it lies beyond the end.
    #[inline]
    pub fn u64_at(self, structure: &'static str, data: &[u8], offset: usize) -> Result<u64> {
        array_at(structure, data, offset).map(|bytes| self.u64(bytes))
    }

    /// The whole 8-byte words of `data`, in this order; a trailing partial word is left out.
    pub fn words(self, data: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
        data.as_chunks::<8>().0.iter().map(move |word| self.u64(*word))
    }
}

/// The `N` bytes at `offset` of `data`.
#[inline]
fn array_at<const N: usize>(structure: &'static str, data: &[u8], offset: usize) -> Result<[u8; N]> {
    let rest = data.get(offset..).unwrap_or_default();
    let truncated = || Error::new(structure, offset, Reason::Truncated { need: N, have: rest.len() });
    rest.first_chunk::<N>().copied().ok_or_else(truncated)
}

/// A cursor over a structure's bytes that refuses to leave them.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    structure: &'static str,
    data: &'a [u8],
    /// Always `<= data.len()`.
    position: usize,
    order: Order,
}

impl<'a> Reader<'a> {
    /// Starts at byte 0 of `data`; `structure` is what errors will name.
    #[must_use]
    pub fn new(structure: &'static str, data: &'a [u8], order: Order) -> Self {
        Self { structure, data, position: 0, order }
    }

    /// The byte order numbers are read in.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Bytes consumed so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes not yet consumed.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.data.len().saturating_sub(self.position)
    }

    /// What is not yet consumed.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    /// An error at the current position.
    #[cold]
    #[must_use]
    pub fn error(&self, reason: Reason) -> Error {
        Error::new(self.structure, self.position, reason)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`Reason::Truncated`] if fewer are left.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some(taken) = self.rest().get(..len) else {
            return Err(self.error(Reason::Truncated { need: len, have: self.remaining() }));
        };
        self.position = self.position.saturating_add(len);
        Ok(taken)
    }

    /// The next `N` bytes, as an array.
    ///
    /// # Errors
    /// [`Reason::Truncated`] if fewer are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some(taken) = self.rest().first_chunk::<N>() else {
            return Err(self.error(Reason::Truncated { need: N, have: self.remaining() }));
        };
        self.position = self.position.saturating_add(N);
        Ok(*taken)
    }

    /// Skips `len` bytes.
    ///
    /// # Errors
    /// [`Reason::Truncated`] if fewer are left.
    #[inline]
    pub fn skip(&mut self, len: usize) -> Result<()> {
        self.bytes(len).map(drop)
    }

    /// Moves on to byte `position` of the structure (backwards is allowed).
    ///
    /// # Errors
    /// [`Reason::Truncated`] if the structure is shorter than that.
    pub fn seek(&mut self, position: usize) -> Result<()> {
        if position > self.data.len() {
            let need = position.saturating_sub(self.position);
            return Err(self.error(Reason::Truncated { need, have: self.remaining() }));
        }
        self.position = position;
        Ok(())
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Reason::Truncated`] at the end.
    #[inline]
    pub fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A `u16` in the reader's order.
    ///
    /// # Errors
    /// [`Reason::Truncated`] at the end.
    #[inline]
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(|bytes| self.order.u16(bytes))
    }

    /// A `u32` in the reader's order.
    ///
    /// # Errors
    /// [`Reason::Truncated`] at the end.
    #[inline]
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(|bytes| self.order.u32(bytes))
    }

    /// A `u64` in the reader's order.
    ///
    /// # Errors
    /// [`Reason::Truncated`] at the end.
    #[inline]
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(|bytes| self.order.u64(bytes))
    }

    /// The next `N` words of 8 bytes.
    ///
    /// # Errors
    /// [`Reason::Truncated`] at the end.
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N]> {
        let Some(taken) = self.rest().as_chunks::<8>().0.first_chunk::<N>() else {
            let need = N.saturating_mul(8);
            return Err(self.error(Reason::Truncated { need, have: self.remaining() }));
        };
        self.position = self.position.saturating_add(N.saturating_mul(8));
        Ok(taken.map(|word| self.order.u64(word)))
    }
}

/// The other direction: appends fields to a growing buffer.
#[derive(Clone, Debug)]
pub struct Writer {
    data: Vec<u8>,
    order: Order,
}

impl Writer {
    /// An empty buffer whose numbers will be in `order`.
    #[must_use]
    pub fn new(order: Order) -> Self {
        Self { data: Vec::new(), order }
    }

    /// The same, with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize, order: Order) -> Self {
        Self { data: Vec::with_capacity(capacity), order }
    }

    /// The byte order numbers are written in.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Bytes written so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.data.len()
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.data.push(value);
    }

    /// Appends a `u16`.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&self.order.put_u16(value));
    }

    /// Appends a `u32`.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&self.order.put_u32(value));
    }

    /// Appends a `u64`.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&self.order.put_u64(value));
    }

    /// Appends words of 8 bytes.
    pub fn words(&mut self, values: &[u64]) {
        for &value in values {
            self.u64(value);
        }
    }

    /// Appends `len` zero bytes.
    pub fn zeros(&mut self, len: usize) {
        self.data.resize(self.data.len().saturating_add(len), 0);
    }

    /// Appends zeros until the buffer is `len` bytes long; does nothing if it already is.
    pub fn pad_to(&mut self, len: usize) {
        self.zeros(len.saturating_sub(self.data.len()));
    }

    /// Appends zeros until the length is a multiple of `unit` bytes (`unit` 0 means none).
    pub fn align(&mut self, unit: usize) {
        self.zeros(
            self.data.len().checked_next_multiple_of(unit).unwrap_or(0).saturating_sub(self.data.len()),
        );
    }

    /// Overwrites `bytes.len()` bytes at `position`: for a length known only afterwards.
    ///
    /// Does nothing unless all of that range has been written.
    pub fn patch(&mut self, position: usize, bytes: &[u8]) {
        if let Some(end) = position.checked_add(bytes.len())
            && let Some(place) = self.data.get_mut(position..end)
        {
            place.copy_from_slice(bytes);
        }
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_alike_from_either_order() {
        let little = [8, 0, 0, 0, 1, 0, 0, 0];
        let big = [0, 0, 0, 1, 0, 0, 0, 8];
        assert_eq!(Order::Little.u64(little), 0x1_0000_0008);
        assert_eq!(Order::Big.u64(big), 0x1_0000_0008);
        assert_eq!(Order::of_magic(little, 0x1_0000_0008), Some(Order::Little));
        assert_eq!(Order::of_magic(big, 0x1_0000_0008), Some(Order::Big));
        assert_eq!(Order::of_magic(big, 7), None);
    }

    #[test]
    fn a_reader_stops_at_the_end_and_says_where() {
        let mut reader = Reader::new("thing", &[1, 2, 3, 4, 5], Order::Big);
        assert_eq!(reader.u32(), Ok(0x0102_0304));
        let error = reader.u16().unwrap_err();
        assert_eq!(error, Error::new("thing", 4, Reason::Truncated { need: 2, have: 1 }));
        assert_eq!(error.to_string(), "thing, byte 4: needs 2 more bytes, 1 left");
        assert_eq!(reader.bytes(usize::MAX).unwrap_err().offset, 4);
        assert_eq!(reader.u8(), Ok(5));
        assert!(reader.seek(6).is_err());
        assert!(reader.seek(5).is_ok());
    }

    #[test]
    fn what_a_writer_writes_a_reader_reads() {
        for order in [Order::Little, Order::Big] {
            let mut writer = Writer::new(order);
            writer.u8(1);
            writer.u16(2);
            writer.align(4);
            writer.u32(0);
            writer.words(&[4, u64::MAX]);
            writer.patch(4, &order.put_u32(3));
            writer.patch(22, &[9; 8]); // past the end: ignored
            writer.pad_to(32);
            let bytes = writer.finish();
            let mut reader = Reader::new("thing", &bytes, order);
            assert_eq!((reader.u8(), reader.u16()), (Ok(1), Ok(2)));
            reader.skip(1).unwrap();
            assert_eq!(reader.u32(), Ok(3));
            assert_eq!(reader.words::<2>(), Ok([4, u64::MAX]));
            assert_eq!(reader.rest(), &[0; 8]);
        }
    }
}
