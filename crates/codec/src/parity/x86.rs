//! The parity kernels in vector registers: AVX2, and AVX-512 with GFNI.
//!
//! Both walk all columns side by side, a few registers of each at a time, and keep the sums of every
//! parity column in registers: each byte is read once, each parity byte written once, which is what memory
//! bandwidth allows at best.
//!
//! * Times two with AVX2: add the byte to itself, and XOR 0x1d where it was negative. With GFNI: one
//!   affine instruction, for any constant, which makes times four as cheap.
//! * Times a constant with AVX2: two table look-ups by half bytes (`field::NIBBLES`); with GFNI the bit
//!   matrix of the constant (`field::MATRICES`).
//!
//! AVX-512 without GFNI (Skylake-X to Cascade Lake) uses the AVX2 kernels, which are bound by memory
//! there anyway. Every function returns how many bytes it did; the portable twin does the rest.

#![expect(unsafe_code, reason = "vector loads and stores; benches/kernels.rs shows what the twin costs")]

use super::Term;
use super::field::{MATRICES, NIBBLES};
use std::arch::x86_64::*;

/// A set of kernels, named by what the processor must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Avx2,
    Avx512,
}

impl Kernel {
    /// The kernels this processor can run, slowest first.
    pub(super) fn available() -> impl DoubleEndedIterator<Item = Self> {
        [Self::Avx2, Self::Avx512].into_iter().filter(|kernel| kernel.is_available())
    }

    pub(super) fn best() -> Option<Self> {
        Self::available().next_back()
    }

    fn is_available(self) -> bool {
        match self {
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni"),
        }
    }
}

/// Parity of the first bytes of columns of one length. Returns how many.
pub(super) fn generate<const P: usize>(
    kernel: Kernel,
    columns: &[&[u8]],
    parity: &mut [&mut [u8]; P],
) -> usize {
    match kernel {
        _ if !kernel.is_available() => 0,
        // SAFETY: AVX2 was detected on the line above.
        Kernel::Avx2 => unsafe { generate_avx2(columns, parity) },
        // SAFETY: AVX-512F and GFNI were detected above.
        Kernel::Avx512 => unsafe { generate_avx512(columns, parity) },
    }
}

/// Sums of the first bytes of the terms, all of one length. Returns how many.
pub(super) fn combine<const M: usize>(
    kernel: Kernel,
    terms: &[Term<'_>],
    outputs: &mut [&mut [u8]; M],
) -> usize {
    match kernel {
        _ if !kernel.is_available() => 0,
        // SAFETY: AVX2 was detected on the line above.
        Kernel::Avx2 => unsafe { combine_avx2(terms, outputs) },
        // SAFETY: AVX-512F and GFNI were detected above.
        Kernel::Avx512 => unsafe { combine_avx512(terms, outputs) },
    }
}

/// Bytes of each column in flight: two AVX2 registers. With three parity columns and the constants that
/// fills the sixteen there are.
const STEP_AVX2: usize = 64;
/// Bytes of each column in flight: four AVX-512 registers, of 32.
const STEP_AVX512: usize = 256;

#[target_feature(enable = "avx2")]
#[inline]
fn load_avx2(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the load has no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_avx2(bytes: &mut [u8; 32], value: __m256i) {
    // SAFETY: 32 writable bytes; the store has no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn double_avx2(x: __m256i) -> __m256i {
    let negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
    _mm256_xor_si256(_mm256_add_epi8(x, x), _mm256_and_si256(negative, _mm256_set1_epi8(0x1d)))
}

#[target_feature(enable = "avx2")]
fn generate_avx2<const P: usize>(columns: &[&[u8]], parity: &mut [&mut [u8]; P]) -> usize {
    let columns: Vec<&[[u8; STEP_AVX2]]> = columns.iter().map(|column| column.as_chunks().0).collect();
    let steps = parity[0].len() / STEP_AVX2;
    for step in 0..steps {
        let mut sums = [[_mm256_setzero_si256(); 2]; P];
        for column in &columns {
            let halves = column[step].as_chunks::<32>().0;
            for (i, half) in halves.iter().enumerate() {
                let bytes = load_avx2(half);
                for (row, sum) in sums.iter_mut().enumerate() {
                    for _ in 0..row {
                        sum[i] = double_avx2(sum[i]);
                    }
                    sum[i] = _mm256_xor_si256(sum[i], bytes);
                }
            }
        }
        for (column, sum) in parity.iter_mut().zip(sums) {
            let out = &mut column.as_chunks_mut::<STEP_AVX2>().0[step];
            for (half, value) in out.as_chunks_mut::<32>().0.iter_mut().zip(sum) {
                store_avx2(half, value);
            }
        }
    }
    steps * STEP_AVX2
}

#[target_feature(enable = "avx2")]
fn combine_avx2<const M: usize>(terms: &[Term<'_>], outputs: &mut [&mut [u8]; M]) -> usize {
    let steps = outputs[0].len() / STEP_AVX2;
    let low_half = _mm256_set1_epi8(15);
    for step in 0..steps {
        let mut sums = [[_mm256_setzero_si256(); 2]; M];
        for term in terms {
            let halves = term.bytes.as_chunks::<STEP_AVX2>().0[step].as_chunks::<32>().0;
            let mut low = [_mm256_setzero_si256(); 2];
            let mut high = low;
            for (i, half) in halves.iter().enumerate() {
                let bytes = load_avx2(half);
                low[i] = _mm256_and_si256(bytes, low_half);
                high[i] = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), low_half);
            }
            for (sum, coefficient) in sums.iter_mut().zip(term.coefficients) {
                let [low_table, high_table] = &NIBBLES[usize::from(coefficient)];
                let (low_table, high_table) = (table_avx2(low_table), table_avx2(high_table));
                for i in 0..2 {
                    let product = _mm256_xor_si256(
                        _mm256_shuffle_epi8(low_table, low[i]),
                        _mm256_shuffle_epi8(high_table, high[i]),
                    );
                    sum[i] = _mm256_xor_si256(sum[i], product);
                }
            }
        }
        for (column, sum) in outputs.iter_mut().zip(sums) {
            let out = &mut column.as_chunks_mut::<STEP_AVX2>().0[step];
            for (half, value) in out.as_chunks_mut::<32>().0.iter_mut().zip(sum) {
                store_avx2(half, value);
            }
        }
    }
    steps * STEP_AVX2
}

/// A look-up table of 16 bytes in both halves of a register.
#[target_feature(enable = "avx2")]
#[inline]
fn table_avx2(table: &[u8; 16]) -> __m256i {
    // SAFETY: 16 readable bytes; the load has no alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(table)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_avx512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the load has no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store_avx512(bytes: &mut [u8; 64], value: __m512i) {
    // SAFETY: 64 writable bytes; the store has no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) }
}

/// Multiplication by `constant`, for the affine instruction.
#[target_feature(enable = "avx512f")]
#[inline]
fn matrix_avx512(constant: u8) -> __m512i {
    _mm512_set1_epi64(MATRICES[usize::from(constant)].cast_signed())
}

#[target_feature(enable = "avx512f,gfni")]
fn generate_avx512<const P: usize>(columns: &[&[u8]], parity: &mut [&mut [u8]; P]) -> usize {
    let columns: Vec<&[[u8; STEP_AVX512]]> = columns.iter().map(|column| column.as_chunks().0).collect();
    let steps = parity[0].len() / STEP_AVX512;
    let (by_2, by_4) = (matrix_avx512(2), matrix_avx512(4));
    for step in 0..steps {
        let mut sums = [[_mm512_setzero_si512(); 4]; P];
        for column in &columns {
            let quarters = column[step].as_chunks::<64>().0;
            for (i, quarter) in quarters.iter().enumerate() {
                let bytes = load_avx512(quarter);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let scaled = match row {
                        0 => sum[i],
                        1 => _mm512_gf2p8affine_epi64_epi8::<0>(sum[i], by_2),
                        _ => _mm512_gf2p8affine_epi64_epi8::<0>(sum[i], by_4),
                    };
                    sum[i] = _mm512_xor_si512(scaled, bytes);
                }
            }
        }
        for (column, sum) in parity.iter_mut().zip(sums) {
            let out = &mut column.as_chunks_mut::<STEP_AVX512>().0[step];
            for (quarter, value) in out.as_chunks_mut::<64>().0.iter_mut().zip(sum) {
                store_avx512(quarter, value);
            }
        }
    }
    steps * STEP_AVX512
}

#[target_feature(enable = "avx512f,gfni")]
fn combine_avx512<const M: usize>(terms: &[Term<'_>], outputs: &mut [&mut [u8]; M]) -> usize {
    let steps = outputs[0].len() / STEP_AVX512;
    for step in 0..steps {
        let mut sums = [[_mm512_setzero_si512(); 4]; M];
        for term in terms {
            let quarters = term.bytes.as_chunks::<STEP_AVX512>().0[step].as_chunks::<64>().0;
            let mut matrices = [_mm512_setzero_si512(); M];
            for (matrix, constant) in matrices.iter_mut().zip(term.coefficients) {
                *matrix = matrix_avx512(constant);
            }
            for (i, quarter) in quarters.iter().enumerate() {
                let bytes = load_avx512(quarter);
                for (sum, matrix) in sums.iter_mut().zip(matrices) {
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix);
                    sum[i] = _mm512_xor_si512(sum[i], product);
                }
            }
        }
        for (column, sum) in outputs.iter_mut().zip(sums) {
            let out = &mut column.as_chunks_mut::<STEP_AVX512>().0[step];
            for (quarter, value) in out.as_chunks_mut::<64>().0.iter_mut().zip(sum) {
                store_avx512(quarter, value);
            }
        }
    }
    steps * STEP_AVX512
}
