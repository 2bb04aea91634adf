//! fletcher4 by its definition: the twin every vector kernel must equal, and the path of other machines.

use super::Sums;
use crate::Order;

pub(super) fn sum(order: Order, words: &[u8]) -> Sums {
    match order {
        Order::Little => sum_words(words, u32::from_le_bytes),
        Order::Big => sum_words(words, u32::from_be_bytes),
    }
}

fn sum_words(words: &[u8], word: impl Fn([u8; 4]) -> u32) -> Sums {
    let (mut a, mut b, mut c, mut d) = (0u64, 0u64, 0u64, 0u64);
    for &bytes in words.as_chunks::<4>().0 {
        a = a.wrapping_add(u64::from(word(bytes)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}
