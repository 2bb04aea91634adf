//! Cutting a byte stream into whole words, whatever the caller's buffers look like.
//!
//! The Fletcher sums are defined over words of 4 or 16 bytes, but an incremental caller may hand over any
//! lengths. `Carry` keeps the bytes of an unfinished word between two calls. A word still unfinished at
//! the end is not part of the sum: blocks are multiples of 512 bytes, so none ever is.

/// The first bytes of a word whose end has not arrived yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carry<const WORD: usize> {
    bytes: [u8; WORD],
    len: usize,
}

impl<const WORD: usize> Carry<WORD> {
    pub(super) const EMPTY: Self = Self { bytes: [0; WORD], len: 0 };

    /// Passes `data` on to `sum` as slices of whole words, in order.
    pub(super) fn feed(&mut self, mut data: &[u8], mut sum: impl FnMut(&[u8])) {
        if self.len > 0 {
            let take = data.len().min(WORD - self.len);
            let (head, rest) = data.split_at(take);
            self.bytes[self.len..self.len + take].copy_from_slice(head);
            self.len += take;
            data = rest;
            if self.len < WORD {
                return;
            }
            sum(&self.bytes);
            self.len = 0;
        }
        let (whole, tail) = data.split_at(data.len() - data.len() % WORD);
        if !whole.is_empty() {
            sum(whole);
        }
        self.bytes[..tail.len()].copy_from_slice(tail);
        self.len = tail.len();
    }
}
