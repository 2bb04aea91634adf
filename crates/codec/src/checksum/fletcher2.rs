//! fletcher2: two interleaved lanes of first- and second-order 64-bit sums.
//!
//! ```text
//! words x0 y0 x1 y1 …      a0 += x   a1 += y   b0 += a0   b1 += a1      result (a0, a1, b0, b1)
//! ```
//! Weak (nothing but old pools uses it, and log blocks before pool version 26) and cheap: four additions
//! per 16 bytes, which the compiler vectorises by itself, so there is no kernel of our own here.
//!
//! Facts: docs/format/checksums.md, section 3.2.

use super::words::Carry;
use super::{Checksum, Order};

const PAIR: usize = 16;

/// fletcher2 of a stream that arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Fletcher2 {
    order: Order,
    sums: [u64; 4],
    carry: Carry<PAIR>,
}

impl Fletcher2 {
    /// An empty sum over words in the byte order of the block's writer.
    pub fn new(order: Order) -> Self {
        Self { order, sums: [0; 4], carry: Carry::EMPTY }
    }

    /// Appends bytes to the stream. Any length; words may span calls.
    pub fn update(&mut self, data: &[u8]) {
        let Self { order, sums, carry } = self;
        carry.feed(data, |pairs| match order {
            Order::Little => add(sums, pairs, u64::from_le_bytes),
            Order::Big => add(sums, pairs, u64::from_be_bytes),
        });
    }

    /// The sum so far. A last incomplete pair of words does not count.
    pub fn finish(&self) -> Checksum {
        Checksum(self.sums)
    }
}

fn add(sums: &mut [u64; 4], pairs: &[u8], word: impl Fn([u8; 8]) -> u64) {
    let [mut a0, mut a1, mut b0, mut b1] = *sums;
    let (words, _) = pairs.as_chunks::<8>();
    for [x, y] in words.as_chunks::<2>().0 {
        a0 = a0.wrapping_add(word(*x));
        a1 = a1.wrapping_add(word(*y));
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    *sums = [a0, a1, b0, b1];
}
