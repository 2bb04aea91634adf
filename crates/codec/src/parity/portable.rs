//! The parity kernels without vector instructions: the twins the others must equal, the path of other
//! machines, and what finishes the bytes behind the last whole vector.
//!
//! Multiplication by two works on eight bytes at once in a 64-bit word. A line of eight words is in flight
//! so that the compiler can use whatever vectors the target always has (SSE2, NEON).

use super::Term;
use super::field::NIBBLES;

const LINE: usize = 64;
type Line = [u64; LINE / 8];

/// Parity of bytes `from..` of columns of one length.
pub(super) fn generate<const P: usize>(columns: &[&[u8]], parity: &mut [&mut [u8]; P], from: usize) {
    let size = parity[0].len();
    for at in (from..size).step_by(LINE) {
        let end = size.min(at + LINE);
        let mut sums = [[0u64; LINE / 8]; P];
        for column in columns {
            let line = load(&column[at..end]);
            for (row, sum) in sums.iter_mut().enumerate() {
                // Horner: times 1, 2 or 4, plus the column.
                for (word, byte8) in sum.iter_mut().zip(line) {
                    for _ in 0..row {
                        *word = double(*word);
                    }
                    *word ^= byte8;
                }
            }
        }
        for (column, sum) in parity.iter_mut().zip(sums) {
            store(&mut column[at..end], &sum);
        }
    }
}

/// Sums of bytes `from..` of the terms, all of one length.
pub(super) fn combine<const M: usize>(terms: &[Term<'_>], outputs: &mut [&mut [u8]; M], from: usize) {
    for (index, output) in outputs.iter_mut().enumerate() {
        let output = &mut output[from..];
        output.fill(0);
        for term in terms {
            let [low, high] = &NIBBLES[usize::from(term.coefficients[index])];
            for (out, byte) in output.iter_mut().zip(&term.bytes[from..]) {
                *out ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
            }
        }
    }
}

/// Eight bytes times two: shift each, and reduce those that had their top bit set.
fn double(word: u64) -> u64 {
    let top = word & 0x8080_8080_8080_8080;
    let mask = (top << 1).wrapping_sub(top >> 7);
    (word << 1) & 0xfefe_fefe_fefe_fefe ^ mask & 0x1d1d_1d1d_1d1d_1d1d
}

/// Up to one line of bytes; what is missing is zero.
fn load(bytes: &[u8]) -> Line {
    let mut line = [0u8; LINE];
    line[..bytes.len()].copy_from_slice(bytes);
    let mut words = Line::default();
    for (word, bytes) in words.iter_mut().zip(line.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn store(bytes: &mut [u8], words: &Line) {
    let mut line = [0u8; LINE];
    for (bytes, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes.copy_from_slice(&line[..bytes.len()]);
}
