//! lzjb: LZ77 with a window of 1023 bytes and matches of 3–66 bytes, the compressor of the first pools.
//!
//! A control byte announces eight items, from its lowest bit up: 0 is a literal byte, 1 a match in two
//! bytes, `len−3` in the high six bits and the distance back in the low ten.
//!
//! The stream has no end mark, so the decoder stops when the block is full (cutting a last match), and
//! trailing padding is never looked at. Facts: docs/format/compression.md, section 4.1.

use super::Corrupt;

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
/// Slots of the encoder's memory of where three bytes were last seen. 8 KiB on the stack; four times the
/// window, so that few entries are lost to collisions before they are out of reach anyway.
const SLOTS: usize = 4096;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), Corrupt> {
    let mut input = src.iter().copied();
    let mut at = 0;
    while at < dst.len() {
        let control = input.next().ok_or(Corrupt)?;
        for bit in 0..8 {
            if at == dst.len() {
                break;
            }
            let first = input.next().ok_or(Corrupt)?;
            if control >> bit & 1 == 0 {
                dst[at] = first;
                at += 1;
                continue;
            }
            let second = input.next().ok_or(Corrupt)?;
            let len = MATCH_MIN + usize::from(first >> 2);
            let distance = usize::from(first & 3) << 8 | usize::from(second);
            if distance == 0 || distance > at {
                return Err(Corrupt);
            }
            let end = dst.len().min(at + len);
            copy_match(dst, at, distance, end);
            at = end;
        }
    }
    Ok(())
}

/// Repeats the bytes `distance` back (at most `at`) over `at..end`.
#[inline]
fn copy_match(dst: &mut [u8], at: usize, distance: usize, end: usize) {
    // Matches are short, so calling a copy routine costs more than copying. Eight bytes at a time may run
    // past `end`: into bytes that come later anyway.
    if distance >= 8 && end + 8 <= dst.len() {
        for to in (at..end).step_by(8) {
            let from = to - distance;
            if let Some(&eight) = dst[from..].first_chunk::<8>()
                && let Some(out) = dst[to..].first_chunk_mut::<8>()
            {
                *out = eight;
            }
        }
        return;
    }
    // It overlaps what it produces (a repetition), or the block ends here.
    for to in at..end {
        dst[to] = dst[to - distance];
    }
}

pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // Positions modulo 2^16, which is all a window of 1023 needs: a stale one fails the comparison.
    let mut last_seen = [0u16; SLOTS];
    let mut out = 0;
    let mut at = 0;
    while at < src.len() {
        let control_at = out;
        *dst.get_mut(control_at)? = 0;
        out += 1;
        for bit in 0..8 {
            if at == src.len() {
                break;
            }
            match find_match(src, at, &mut last_seen) {
                Some((distance, len)) => {
                    let code = ((len - MATCH_MIN) << 10 | distance) as u16;
                    dst.get_mut(out..out + 2)?.copy_from_slice(&code.to_be_bytes());
                    dst[control_at] |= 1 << bit;
                    out += 2;
                    at += len;
                }
                None => {
                    *dst.get_mut(out)? = src[at];
                    out += 1;
                    at += 1;
                }
            }
        }
    }
    Some(out)
}

/// The match at `at`, if its three bytes were last seen within the window: (distance, length).
fn find_match(src: &[u8], at: usize, last_seen: &mut [u16; SLOTS]) -> Option<(usize, usize)> {
    let &[a, b, c] = src.get(at..at + MATCH_MIN)?.first_chunk::<3>()?;
    let key = u32::from_le_bytes([a, b, c, 0]);
    let slot = (key.wrapping_mul(0x9E37_79B1) >> 20) as usize % SLOTS;
    let distance = usize::from((at as u16).wrapping_sub(last_seen[slot]));
    last_seen[slot] = at as u16;
    if distance == 0 || distance > DISTANCE_MAX || distance > at {
        return None;
    }
    let old = &src[at - distance..];
    let new = &src[at..src.len().min(at + MATCH_MAX)];
    let len = old.iter().zip(new).take_while(|(x, y)| x == y).count();
    (len >= MATCH_MIN).then_some((distance, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of the worked example in docs/format/compression.md: three literals, then 21 bytes from
    /// three back.
    #[test]
    fn the_documents_example_decodes() {
        let mut dst = [0; 24];
        assert_eq!(decompress(&[0x08, b'a', b'b', b'c', 0x48, 0x03], &mut dst), Ok(()));
        assert_eq!(&dst, b"abcabcabcabcabcabcabcabc");
    }

    #[test]
    fn distances_that_point_nowhere_are_corrupt() {
        let mut dst = [0; 24];
        assert_eq!(decompress(&[0x01, 0x00, 0x01], &mut dst), Err(Corrupt)); // before the start
        assert_eq!(decompress(&[0x02, b'a', 0x00, 0x00], &mut dst), Err(Corrupt)); // zero
        assert_eq!(decompress(&[0x00, b'a'], &mut dst), Err(Corrupt)); // cut off
    }
}
