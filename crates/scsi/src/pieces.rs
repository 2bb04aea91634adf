//! Arithmetic on [`Segments`]: the pieces a read gave or the wire brought, never flattened unless small.

use block::{Segment, Segments};
use bytes::Bytes;

/// Total length in bytes.
pub fn total_len(data: &[Segment]) -> usize {
    data.iter().fold(0, |sum, piece| sum.saturating_add(piece.len()))
}

/// Drops everything after the first `len` bytes. What is left of a piece that is cut gets memory of its own: as a part it would
/// keep all of a block for as long as a host takes to fetch it, and what is counted of an answer is its length.
pub fn truncate(data: &mut Segments, len: usize) {
    if shorten(data, len)
        && let Some(Segment::Data(bytes)) = data.last_mut()
    {
        *bytes = Bytes::copy_from_slice(bytes);
    }
}

/// Drops everything after the first `len` bytes; whether the last piece that is left was cut for it.
fn shorten(data: &mut Segments, len: usize) -> bool {
    let mut left = len;
    let mut keep = 0_usize;
    let mut is_cut = false;
    for piece in data.iter_mut() {
        if left == 0 {
            break;
        }
        if piece.len() > left {
            is_cut = true;
            match piece {
                Segment::Data(bytes) => bytes.truncate(left),
                Segment::Zero(zeroes) => *zeroes = left,
            }
        }
        left = left.saturating_sub(piece.len());
        keep = keep.saturating_add(1);
    }
    data.truncate(keep);
    is_cut
}

/// Splits off what follows the first `at` bytes. Nothing is copied: both parts are in use.
pub(crate) fn split_off(data: &mut Segments, at: usize) -> Segments {
    let mut left = at;
    let mut tail = Segments::new();
    for piece in data.iter() {
        let len = piece.len();
        if left >= len {
            left = left.saturating_sub(len);
            continue;
        }
        tail.push(match piece {
            Segment::Data(bytes) => Segment::Data(bytes.slice(left..)),
            Segment::Zero(_) => Segment::Zero(len.saturating_sub(left)),
        });
        left = 0;
    }
    shorten(data, at);
    tail
}

/// Whether every byte is zero.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

/// Offset of the first byte in which two equally long runs differ.
pub(crate) fn first_difference(a: &[Segment], b: &[Segment]) -> Option<u64> {
    // Compared in stretches that lie in one piece of each side.
    static ZEROES: [u8; 4096] = [0; 4096];
    fn head(piece: &Segment, from: usize) -> &[u8] {
        match piece {
            Segment::Data(bytes) => bytes.get(from..).unwrap_or(&[]),
            Segment::Zero(len) => ZEROES.get(..len.saturating_sub(from).min(ZEROES.len())).unwrap_or(&ZEROES),
        }
    }
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    let (mut left_at, mut right_at, mut offset) = (0_usize, 0_usize, 0_u64);
    loop {
        while left.next_if(|piece| left_at >= piece.len()).is_some() {
            left_at = 0;
        }
        while right.next_if(|piece| right_at >= piece.len()).is_some() {
            right_at = 0;
        }
        let (x, y) = match (left.peek(), right.peek()) {
            (Some(x), Some(y)) => (head(x, left_at), head(y, right_at)),
            (None, None) => return None,
            _ => return Some(offset),
        };
        let both = x.len().min(y.len());
        let (x, y) = (x.get(..both).unwrap_or(x), y.get(..both).unwrap_or(y));
        if x != y {
            let same = x.iter().zip(y).take_while(|(p, q)| p == q).count();
            return Some(offset.saturating_add(same as u64));
        }
        left_at = left_at.saturating_add(both);
        right_at = right_at.saturating_add(both);
        offset = offset.saturating_add(both as u64);
    }
}

/// One piece out of owned bytes.
pub(crate) fn one(bytes: Vec<u8>) -> Segments {
    let mut out = Segments::new();
    if !bytes.is_empty() {
        out.push(Segment::Data(Bytes::from(bytes)));
    }
    out
}

#[cfg(test)]
mod tests {
    use block::flatten;

    use super::*;

    fn pieces(parts: &[&[u8]]) -> Segments {
        parts.iter().map(|p| Segment::Data(Bytes::copy_from_slice(p))).collect()
    }

    #[test]
    fn split_and_truncate_cut_inside_a_piece() {
        let mut data = pieces(&[b"abc", b"def"]);
        data.push(Segment::Zero(3));
        let tail = split_off(&mut data, 4);
        assert_eq!(flatten(&data), b"abcd");
        assert_eq!(flatten(&tail), b"ef\0\0\0");
        truncate(&mut data, 3);
        assert_eq!((data.len(), flatten(&data)), (1, b"abc".to_vec()));
    }

    #[test]
    fn what_is_cut_short_keeps_no_block() {
        let block = Bytes::from(vec![7; 128 << 10]);
        let part = || -> Segments { std::iter::once(Segment::Data(block.slice(..64 << 10))).collect() };
        for (len, is_shared) in [(300, false), (60 << 10, false), (64 << 10, true)] {
            let mut data = part();
            truncate(&mut data, len);
            assert_eq!(block.is_unique(), !is_shared, "{len} bytes");
            assert_eq!(flatten(&data), vec![7_u8; len]);
        }
        let mut data = part();
        drop(split_off(&mut data, 300));
        assert!(!block.is_unique(), "what is split is not copied");
    }

    #[test]
    fn the_first_difference_is_found_across_uneven_pieces_and_holes() {
        let mut zeroes = pieces(&[b"ab"]);
        zeroes.push(Segment::Zero(9000));
        let mut long = b"ab".to_vec();
        long.resize(9002, 0);
        assert_eq!(first_difference(&zeroes, &pieces(&[&long])), None);
        long[9001] = 1;
        assert_eq!(first_difference(&zeroes, &pieces(&[&long[..5], &long[5..]])), Some(9001));
        assert_eq!(first_difference(&pieces(&[b"ab"]), &pieces(&[b"abc"])), Some(2));
    }
}
