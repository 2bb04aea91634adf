//! Copies past the processor's caches.
//!
//! Data of writes that comes from a socket lies in memory until its transaction group is written, seconds later, and in the
//! cache after that. A usual copy first reads what was in that memory, to overwrite it, and throws out of the processor's
//! caches what will be needed again sooner. On two processors that write 8 KiB blocks it was a sixth of all time; this
//! takes half as long.
#![expect(unsafe_code, reason = "instructions that the language has no words for")]

/// Shorter copies go the usual way: what is that short is a part of a block more often than a block, and is looked at
/// again at once.
const LEAST: usize = 8 << 10;

/// Copies `from` to `to`, which has the same length and is not looked at soon.
///
/// # Panics
/// The lengths differ.
pub fn stream_copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has the length of what is copied");
    if from.len() < LEAST {
        return to.copy_from_slice(from);
    }
    past_the_caches(to, from);
}

#[cfg(target_arch = "x86_64")]
fn past_the_caches(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A line of the processor's caches: only whole ones leave at once.
    const LINE: usize = 64;

    let (head, rest) = to.split_at_mut(to.as_ptr().align_offset(LINE).min(from.len()));
    let (head_from, rest_from) = from.split_at(head.len());
    head.copy_from_slice(head_from);
    let (lines, tail) = rest.as_chunks_mut::<LINE>();
    let (lines_from, tail_from) = rest_from.as_chunks::<LINE>();
    for (line, line_from) in lines.iter_mut().zip(lines_from) {
        let (line, line_from) = (line.as_mut_ptr().cast::<__m128i>(), line_from.as_ptr().cast::<__m128i>());
        for part in 0..LINE / size_of::<__m128i>() {
            // SAFETY: both are 64 bytes long, so that all four parts are within them; `line` is aligned to 64 bytes, as the
            // store needs, because it follows `head` in whole lines; SSE2 is a part of x86-64.
            unsafe { _mm_stream_si128(line.add(part), _mm_loadu_si128(line_from.add(part))) };
        }
    }
    // SAFETY: SSE2 is a part of x86-64.
    //
    // Such stores are not ordered with others: whoever is told of the data afterwards must find it.
    unsafe { _mm_sfence() };
    tail.copy_from_slice(tail_from);
}

#[cfg(not(target_arch = "x86_64"))]
fn past_the_caches(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However both lie in memory, and whatever the length, every byte arrives and none beside it changes.
    #[test]
    fn a_copy_is_the_same_bytes_at_any_alignment() {
        let from: Vec<u8> = (0..40_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for to_at in [0, 1, 15, 16, 63, 64, 100] {
            for from_at in [0, 1, 28, 48, 64] {
                for len in [0, 1, 64, LEAST - 1, LEAST, LEAST + 1, LEAST + 63, 3 * LEAST + 17] {
                    let mut to = vec![0xEE_u8; to_at + len + 70];
                    stream_copy(&mut to[to_at..to_at + len], &from[from_at..from_at + len]);
                    assert!(
                        to[to_at..to_at + len] == from[from_at..from_at + len],
                        "{to_at} {from_at} {len}"
                    );
                    let beside = to[..to_at].iter().chain(&to[to_at + len..]);
                    assert!(beside.copied().all(|byte| byte == 0xEE), "{to_at} {from_at} {len}");
                }
            }
        }
    }
}
