//! fletcher4: sums of first to fourth order over 32-bit words, all modulo 2^64.
//!
//! ```text
//! for x in words:   a += x   b += a   c += b   d += c        result (a, b, c, d)
//! ```
//! The definition is one long chain of dependent additions. What makes it fast is that it is linear: the
//! word that has `m` words from itself to the end, itself included, contributes
//! `x · (1, T1(m), T2(m), T3(m))`, where T1(m) = m, T2(m) = m(m+1)/2 and T3(m) = m(m+1)(m+2)/6.
//!
//! So the words can be dealt round-robin to `L` independent lanes (a vector register), each lane summed by
//! the definition, and the lanes folded at the end. Word `j` of a round in which its lane has `m` words to go has
//! `M = L·m − j` words to go in the stream, and `T(M)` expands into `T(m)` with integer coefficients:
//!
//! ```text
//! T1(M) =  L·T1 − j
//! T2(M) =  L²·T2 − L(L−1+2j)/2·T1 + j(j−1)/2
//! T3(M) =  L³·T3 − L²(L−1+j)·T2 + (L³ − 3L²(1−j) + 3L·j² − 6L·j + 2L)/6·T1 − j(j−1)(j−2)/6
//! ```
//! The same linearity appends one chunk to another ([`append`]), which is what makes it incremental.
//!
//! `portable` is the definition; `x86` has the lanes. Facts: docs/format/checksums.md, section 3.1.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::words::Carry;
use super::{Checksum, Order};

const WORD: usize = 4;

/// The sums of a chunk that began from zero: a, b, c, d.
type Sums = [u64; 4];

/// fletcher4 of a stream that arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Fletcher4 {
    order: Order,
    sums: Sums,
    carry: Carry<WORD>,
}

impl Fletcher4 {
    /// An empty sum over words in the byte order of the block's writer.
    pub fn new(order: Order) -> Self {
        Self { order, sums: [0; 4], carry: Carry::EMPTY }
    }

    /// Appends bytes to the stream. Any length; words may span calls.
    pub fn update(&mut self, data: &[u8]) {
        let Self { order, sums, carry } = self;
        carry.feed(data, |words| {
            *sums = append(*sums, sum(*order, words), (words.len() / WORD) as u64);
        });
    }

    /// The sum so far. A last incomplete word does not count.
    pub fn finish(&self) -> Checksum {
        Checksum(self.sums)
    }
}

/// Sums whole words with the fastest kernel of this machine.
fn sum(order: Order, words: &[u8]) -> Sums {
    #[cfg(target_arch = "x86_64")]
    if let Some(sums) = x86::sum(order, words) {
        return sums;
    }
    portable::sum(order, words)
}

/// The sums of two chunks laid end to end, the second of `k` words.
fn append([a, b, c, d]: Sums, second: Sums, k: u64) -> Sums {
    // In 128 bits the products are exact up to k = 2^42, which is 16 TiB in one call.
    let wide = u128::from(k);
    let t1 = k;
    let t2 = wide.wrapping_mul(wide + 1) / 2;
    let t3 = (t2.wrapping_mul(wide + 2) / 3) as u64;
    let t2 = t2 as u64;
    let [a2, b2, c2, d2] = second;
    [
        a.wrapping_add(a2),
        b.wrapping_add(a.wrapping_mul(t1)).wrapping_add(b2),
        c.wrapping_add(b.wrapping_mul(t1)).wrapping_add(a.wrapping_mul(t2)).wrapping_add(c2),
        d.wrapping_add(c.wrapping_mul(t1))
            .wrapping_add(b.wrapping_mul(t2))
            .wrapping_add(a.wrapping_mul(t3))
            .wrapping_add(d2),
    ]
}

/// Folds `L` lanes, each summed on its own, into the sums of the stream they were dealt from.
#[cfg(target_arch = "x86_64")] // only vector kernels have lanes
fn fold<const L: usize>(a: &[u64; L], b: &[u64; L], c: &[u64; L], d: &[u64; L]) -> Sums {
    let l = L as i64;
    let mut sums = [0u64; 4];
    let mut add = |order: usize, coefficient: i64, lane: u64| {
        // Two's complement: wrapping arithmetic modulo 2^64 is the same for either sign.
        sums[order] = sums[order].wrapping_add(lane.wrapping_mul(coefficient.cast_unsigned()));
    };
    for lane in 0..L {
        let (a, b, c, d, j) = (a[lane], b[lane], c[lane], d[lane], lane as i64);
        add(0, 1, a);

        add(1, l, b);
        add(1, -j, a);

        add(2, l * l, c);
        add(2, -(l * (l - 1 + 2 * j) / 2), b);
        add(2, j * (j - 1) / 2, a);

        add(3, l * l * l, d);
        add(3, -(l * l * (l - 1 + j)), c);
        add(3, (l * l * l - 3 * l * l * (1 - j) + 3 * l * j * j - 6 * l * j + 2 * l) / 6, b);
        add(3, -(j * (j - 1) * (j - 2) / 6), a);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example worked by hand in docs/format/checksums.md.
    #[test]
    fn words_one_two_three_by_hand() {
        let bytes: Vec<u8> = [1u32, 2, 3].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(sum(Order::Little, &bytes), [6, 10, 15, 21]);
        let bytes: Vec<u8> = [1u32, 2, 3].iter().flat_map(|x| x.to_be_bytes()).collect();
        assert_eq!(sum(Order::Big, &bytes), [6, 10, 15, 21]);
    }

    /// 16 MiB of 0xff: every accumulator wraps many times, and T3 of the word count exceeds 64 bits.
    #[test]
    fn the_largest_block_of_ones_wraps_alike_everywhere() {
        let data = vec![0xff; 16 << 20];
        let whole = portable::sum(Order::Little, &data);
        assert_eq!(sum(Order::Little, &data), whole);
        let (head, tail) = data.split_at(5 << 20);
        let parts = append(
            portable::sum(Order::Little, head),
            portable::sum(Order::Little, tail),
            (tail.len() / WORD) as u64,
        );
        assert_eq!(parts, whole);
    }

    fn order() -> impl Strategy<Value = Order> {
        prop_oneof![Just(Order::Little), Just(Order::Big)]
    }

    proptest! {
        #[test]
        fn every_kernel_equals_the_definition(
            data in proptest::collection::vec(any::<u8>(), 0..3000),
            skip in 0usize..64,
            order in order(),
        ) {
            let data = &data[skip.min(data.len())..];
            let words = &data[..data.len() / WORD * WORD];
            let expected = portable::sum(order, words);
            prop_assert_eq!(sum(order, words), expected);
            #[cfg(target_arch = "x86_64")]
            for kernel in x86::available() {
                prop_assert_eq!(x86::sum_with(kernel, order, words), expected, "{:?}", kernel);
            }
        }

        #[test]
        fn the_split_into_calls_does_not_matter(
            data in proptest::collection::vec(any::<u8>(), 0..2000),
            cuts in proptest::collection::vec(0usize..2000, 0..6),
            order in order(),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(data.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Fletcher4::new(order);
            let mut from = 0;
            for to in cuts.into_iter().chain([data.len()]) {
                pieces.update(&data[from..to]);
                from = to;
            }
            prop_assert_eq!(pieces.finish().0, portable::sum(order, &data[..data.len() / WORD * WORD]));
        }
    }
}
