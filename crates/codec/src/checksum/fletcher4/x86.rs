//! fletcher4 in vector registers: 4 lanes with SSE2, 8 with AVX2, 16 with AVX-512.
//!
//! Each 32-bit word is widened to 64 bits and added down the chain a → b → c → d, lane by lane. Two
//! registers per order keep two chains in flight, because each addition waits for the one before it.
//! Words of a foreign byte order are turned around on the way in: one shuffle per load.
//!
//! A tail shorter than one round of the lanes is summed by the portable twin and appended.

#![expect(unsafe_code, reason = "vector loads; benches/kernels.rs shows what the portable twin costs")]

use super::{Sums, append, fold, portable};
use crate::Order;
use std::arch::x86_64::*;

/// A vector kernel, named by what the processor must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Sse2,
    Avx2,
    Avx512,
}

/// The kernels this processor can run, slowest first.
pub(super) fn available() -> impl DoubleEndedIterator<Item = Kernel> {
    // SSE2 is part of x86-64; its kernel has no byte shuffle, so foreign words go to the twin.
    [
        (Kernel::Sse2, true),
        (Kernel::Avx2, is_x86_feature_detected!("avx2")),
        (Kernel::Avx512, is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2")),
    ]
    .into_iter()
    .filter_map(|(kernel, has)| has.then_some(kernel))
}

/// Sums `words` with the best kernel; `None` where the portable twin is as good.
pub(super) fn sum(order: Order, words: &[u8]) -> Option<Sums> {
    available().next_back().map(|kernel| sum_with(kernel, order, words))
}

/// Sums `words` with one kernel of [`available`]; with one that is not, falls back to the twin.
pub(super) fn sum_with(kernel: Kernel, order: Order, words: &[u8]) -> Sums {
    let (head, tail) = match (kernel, order) {
        (Kernel::Sse2, Order::Big) => ([0; 4], words),
        (Kernel::Sse2, Order::Little) => {
            let (rounds, tail) = words.as_chunks::<16>();
            // SAFETY: SSE2 is part of x86-64.
            (unsafe { sse2(rounds) }, tail)
        }
        (Kernel::Avx2, _) if is_x86_feature_detected!("avx2") => {
            let (rounds, tail) = words.as_chunks::<32>();
            // SAFETY: AVX2 was detected on the line above.
            (unsafe { avx2(rounds, order) }, tail)
        }
        (Kernel::Avx512, _) if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") => {
            let (rounds, tail) = words.as_chunks::<64>();
            // SAFETY: AVX-512F and AVX2 were detected on the line above.
            (unsafe { avx512(rounds, order) }, tail)
        }
        (Kernel::Avx2 | Kernel::Avx512, _) => ([0; 4], words),
    };
    append(head, portable::sum(order, tail), (tail.len() / 4) as u64)
}

/// Four lanes: words 0 and 1 of a round in one register of each order, words 2 and 3 in the other.
#[target_feature(enable = "sse2")]
fn sse2(rounds: &[[u8; 16]]) -> Sums {
    let zero = _mm_setzero_si128();
    let mut lanes = [[zero; 2]; 4];
    for round in rounds {
        // SAFETY: `round` is 16 readable bytes, and the load has no alignment.
        let words = unsafe { _mm_loadu_si128(round.as_ptr().cast()) };
        let mut carry = [_mm_unpacklo_epi32(words, zero), _mm_unpackhi_epi32(words, zero)];
        for order in &mut lanes {
            for (sum, x) in order.iter_mut().zip(&mut carry) {
                *sum = _mm_add_epi64(*sum, *x);
                *x = *sum;
            }
        }
    }
    let [a, b, c, d] = lanes.map(|order| {
        let mut out = [0u64; 4];
        for (half, register) in out.as_chunks_mut::<2>().0.iter_mut().zip(order) {
            // SAFETY: `half` is 16 writable bytes, and the store has no alignment.
            unsafe { _mm_storeu_si128(half.as_mut_ptr().cast(), register) };
        }
        out
    });
    fold(&a, &b, &c, &d)
}

/// For each 32-bit word of a register, the byte positions that turn it around.
#[target_feature(enable = "avx2")]
#[inline]
fn reversal() -> __m128i {
    _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12)
}

#[target_feature(enable = "avx2")]
fn avx2(rounds: &[[u8; 32]], order: Order) -> Sums {
    match order {
        Order::Little => avx2_lanes::<false>(rounds),
        Order::Big => avx2_lanes::<true>(rounds),
    }
}

#[target_feature(enable = "avx2")]
fn avx2_lanes<const FOREIGN: bool>(rounds: &[[u8; 32]]) -> Sums {
    let mut lanes = [[_mm256_setzero_si256(); 2]; 4];
    for round in rounds {
        let mut carry = [_mm256_setzero_si256(); 2];
        for (x, half) in carry.iter_mut().zip(round.as_chunks::<16>().0) {
            // SAFETY: `half` is 16 readable bytes, and the load has no alignment.
            let mut words = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            if FOREIGN {
                words = _mm_shuffle_epi8(words, reversal());
            }
            *x = _mm256_cvtepu32_epi64(words);
        }
        for order in &mut lanes {
            for (sum, x) in order.iter_mut().zip(&mut carry) {
                *sum = _mm256_add_epi64(*sum, *x);
                *x = *sum;
            }
        }
    }
    let mut out = [[0u64; 8]; 4];
    for (out, order) in out.iter_mut().zip(lanes) {
        for (half, register) in out.as_chunks_mut::<4>().0.iter_mut().zip(order) {
            // SAFETY: `half` is 32 writable bytes, and the store has no alignment.
            unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), register) };
        }
    }
    let [a, b, c, d] = out;
    fold(&a, &b, &c, &d)
}

#[target_feature(enable = "avx512f,avx2")]
fn avx512(rounds: &[[u8; 64]], order: Order) -> Sums {
    match order {
        Order::Little => avx512_lanes::<false>(rounds),
        Order::Big => avx512_lanes::<true>(rounds),
    }
}

#[target_feature(enable = "avx512f,avx2")]
fn avx512_lanes<const FOREIGN: bool>(rounds: &[[u8; 64]]) -> Sums {
    let mut lanes = [[_mm512_setzero_si512(); 2]; 4];
    let reversal = _mm256_broadcastsi128_si256(reversal());
    for round in rounds {
        let mut carry = [_mm512_setzero_si512(); 2];
        for (x, half) in carry.iter_mut().zip(round.as_chunks::<32>().0) {
            // SAFETY: `half` is 32 readable bytes, and the load has no alignment.
            let mut words = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            if FOREIGN {
                words = _mm256_shuffle_epi8(words, reversal);
            }
            *x = _mm512_cvtepu32_epi64(words);
        }
        for order in &mut lanes {
            for (sum, x) in order.iter_mut().zip(&mut carry) {
                *sum = _mm512_add_epi64(*sum, *x);
                *x = *sum;
            }
        }
    }
    let mut out = [[0u64; 16]; 4];
    for (out, order) in out.iter_mut().zip(lanes) {
        for (half, register) in out.as_chunks_mut::<8>().0.iter_mut().zip(order) {
            // SAFETY: `half` is 64 writable bytes, and the store has no alignment.
            unsafe { _mm512_storeu_si512(half.as_mut_ptr().cast(), register) };
        }
    }
    let [a, b, c, d] = out;
    fold(&a, &b, &c, &d)
}
