//! zle: run-length encoding of zeros, and nothing else.
//!
//! A token below 64 is followed by `token + 1` literal bytes; a token `t` of 64 and more stands for `t − 63` zeros.
//! One zero between literals is cheaper left among them, two are not: so a literal run ends where two
//! zeros follow, or one at the end of the block. With that rule there is one encoding of each block, and
//! ours equals OpenZFS's. Facts: docs/format/compression.md, section 4.2.

use super::Corrupt;

/// Longest run of literals; tokens from here up are zeros.
const LITERALS_MAX: usize = 64;
/// Longest run of zeros in one token.
const ZEROS_MAX: usize = 192;

pub(super) fn decompress(src: &[u8], mut dst: &mut [u8]) -> Result<(), Corrupt> {
    let mut src = src;
    while !dst.is_empty() {
        let (&token, rest) = src.split_first().ok_or(Corrupt)?;
        let token = usize::from(token);
        let len = if token < LITERALS_MAX { token + 1 } else { token + 1 - LITERALS_MAX };
        let (run, unfilled) = std::mem::take(&mut dst).split_at_mut_checked(len).ok_or(Corrupt)?;
        if token < LITERALS_MAX {
            let (literals, after) = rest.split_at_checked(len).ok_or(Corrupt)?;
            run.copy_from_slice(literals);
            src = after;
        } else {
            run.fill(0);
            src = rest;
        }
        dst = unfilled;
    }
    Ok(())
}

pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut rest = src;
    let mut out = 0;
    while !rest.is_empty() {
        let zeros = rest.iter().take(ZEROS_MAX).take_while(|byte| **byte == 0).count();
        if zeros > 0 {
            *dst.get_mut(out)? = (LITERALS_MAX + zeros - 1) as u8;
            out += 1;
            rest = &rest[zeros..];
        } else {
            let (literals, after) = rest.split_at(literal_run(rest));
            *dst.get_mut(out)? = (literals.len() - 1) as u8;
            dst.get_mut(out + 1..out + 1 + literals.len())?.copy_from_slice(literals);
            out += 1 + literals.len();
            rest = after;
        }
    }
    Some(out)
}

/// How many bytes to keep as literals, from a start that is not zero.
fn literal_run(bytes: &[u8]) -> usize {
    let window = &bytes[..bytes.len().min(LITERALS_MAX)];
    let ends = |at: usize| bytes[at] == 0 && bytes.get(at + 1).is_none_or(|next| *next == 0);
    match (0..window.len()).find(|at| ends(*at)) {
        Some(len) => len,
        // A full run does not end in a zero: that zero may begin a longer run.
        None if window.len() == LITERALS_MAX && window.last() == Some(&0) => LITERALS_MAX - 1,
        None => window.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example in docs/format/compression.md.
    #[test]
    fn the_documents_example_both_ways() {
        let plain = [0, 0, 0, 0, 0, b'A', b'B', 0, b'C', 0, 0, 0];
        let packed = [0x44, 0x03, 0x41, 0x42, 0x00, 0x43, 0x42];
        let mut dst = [0; 12];
        assert_eq!(compress(&plain, &mut dst), Some(7));
        assert_eq!(dst[..7], packed);
        let mut back = [1; 12];
        assert_eq!(decompress(&packed, &mut back), Ok(()));
        assert_eq!(back, plain);
    }

    #[test]
    fn runs_that_overshoot_the_block_are_corrupt() {
        assert_eq!(decompress(&[0x44], &mut [0; 4]), Err(Corrupt)); // 5 zeros into 4
        assert_eq!(decompress(&[0x03, 1, 2, 3], &mut [0; 4]), Err(Corrupt)); // 4 literals, 3 there
        assert_eq!(decompress(&[0x40], &mut [0; 4]), Err(Corrupt)); // ends early
    }
}
