//! A client's request cut at block borders: what becomes of whole blocks, and which bytes of others change.
//!
//! A whole block that arrived in one piece is taken as it is, without a copy: its buffer is given back when the
//! block is on disk. Small blocks are copied, because many of them share one receive buffer with other requests
//! and would keep it alive for the last of them; up to [`COPY_MAX`] that costs less than the bookkeeping of sharing.

use std::ops::Range;

use block::{Segment, Segments};
use bytes::Bytes;
use codec::checksum;
use ondisk::dnode::Fanout;
use smallvec::SmallVec;

use super::content::Content;
use crate::{txg::Above, write::summed::Summed};

/// Blocks up to this many bytes are copied.
const COPY_MAX: usize = 4096;

/// A request becomes several pieces beyond this many bytes. Each piece is in one transaction group as a whole, so
/// that a power cut takes all of it or nothing; and it is what a writer announces at once.
const PIECE_BYTES: u64 = 1 << 20;

/// What one step of a request does to a volume, in one transaction group. The three kinds do not overlap.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Blocks that get this content.
    pub(super) whole: SmallVec<[(u64, Content); 4]>,
    /// Blocks that become holes.
    pub(super) freed: SmallVec<[Range<u64>; 2]>,
    /// Blocks of which a part changes: at most the first and the last of the range.
    pub(super) partial: SmallVec<[Partial; 2]>,
    /// Of `freed`, how many blocks are there and have to go, at most; see [`Portion`](crate::dmu::Portion).
    pub(super) weight: u64,
    /// What leads to the blocks of `freed` was read.
    pub(super) is_reached: bool,
}

/// A change of a part of a block.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) blkid: u64,
    /// First byte in the block.
    pub(super) at: usize,
    /// The new bytes.
    pub(super) data: Segments,
    /// A hole stays one if only zeroes are written to it.
    pub(super) keeps_holes: bool,
    /// The block with the change, made from what is committed.
    pub(super) base: Option<Base>,
}

/// A block made from what was committed in one state of the volume, and good only as long as that is its state.
#[derive(Debug)]
pub(super) struct Base {
    /// Which state.
    pub(super) generation: u64,
    /// The block as it is to be; `None` if it stays a hole.
    pub(super) content: Option<Content>,
}

/// How requests to one volume are cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// Bytes of a block.
    pub(super) block: u64,
    /// Whole blocks of zeroes become holes.
    pub(super) punch_zeroes: bool,
    /// A block of zeroes, shared by all that are stored as such.
    pub(super) zeroes: &'a Bytes,
    /// Whole blocks get this checksum now.
    pub(super) sum: Option<checksum::Algorithm>,
}

/// What to do with the bytes of a range, if they do not bring their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroes {
    /// Whole blocks become holes, the rest keeps its content.
    Unmap,
    /// Whole blocks become holes, the rest becomes zeroes.
    Punch,
    /// All becomes zeroes that are stored.
    Store,
}

impl Zeroes {
    /// Those of a range that is to keep its space, or need not.
    pub(super) fn of(allocate: bool) -> Self {
        if allocate { Self::Store } else { Self::Punch }
    }
}

impl Cut<'_> {
    /// Where the piece that begins at `offset` of a request up to `end` ends: at a block's border.
    pub(super) fn end_of_piece(&self, offset: u64, end: u64) -> u64 {
        let far = offset.saturating_add(PIECE_BYTES.max(self.block));
        if far >= end { end } else { far - far % self.block }
    }

    /// The next `end - offset` bytes of `data`, to be written at `offset`.
    pub(super) fn write(&self, offset: u64, end: u64, data: &mut Payload) -> Piece {
        let mut piece = Piece::default();
        for (blkid, within) in self.blocks(offset, end) {
            let bytes = data.take(within.len());
            if within.len() as u64 != self.block {
                piece.change(blkid, within.start, bytes, false);
            } else if self.punch_zeroes && bytes.iter().all(|segment| matches!(segment, Segment::Zero(_))) {
                piece.free(blkid..blkid + 1);
            } else {
                piece.whole.push((blkid, self.gather(bytes)));
            }
        }
        piece
    }

    /// The piece of a request without data.
    pub(super) fn zero(&self, offset: u64, end: u64, what: Zeroes) -> Piece {
        let mut piece = Piece::default();
        if what == Zeroes::Store {
            for (blkid, within) in self.blocks(offset, end) {
                if within.len() as u64 == self.block {
                    piece.whole.push((blkid, self.zeroes.clone().into()));
                } else {
                    piece.zero_part(blkid, within, false);
                }
            }
            return piece;
        }
        let whole = offset.div_ceil(self.block)..end / self.block;
        if !whole.is_empty() {
            piece.free(whole.clone());
        }
        if what == Zeroes::Punch {
            // Head and tail: the first and the last block, which may be the same.
            let tail = end / self.block;
            let head = self.blocks(offset, end.min(offset / self.block * self.block + self.block)).next();
            let last = self.blocks(offset.max(tail * self.block), end).next();
            for (blkid, within) in head.into_iter().chain(last) {
                let seen = piece.partial.iter().any(|partial| partial.blkid == blkid);
                if !whole.contains(&blkid) && !seen {
                    piece.zero_part(blkid, within, true);
                }
            }
        }
        piece
    }

    /// The blocks a range touches, and which bytes of each.
    fn blocks(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let block = self.block;
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let (blkid, within) = (at / block, at % block);
                let upto = block.min(within + (end - at));
                at += upto - within;
                (blkid, within as usize..upto as usize)
            })
        })
    }

    /// One block's content in one piece.
    fn gather(&self, mut data: Segments) -> Content {
        if data.len() == 1 {
            match data.pop() {
                Some(Segment::Data(bytes)) if bytes.len() > COPY_MAX => {
                    return Summed::at_hand(bytes, self.sum).into();
                }
                Some(Segment::Data(bytes)) => {
                    return Summed::at_hand(Bytes::copy_from_slice(&bytes), self.sum).into();
                }
                Some(Segment::Zero(_)) | None => return self.zeroes.clone().into(),
            }
        }
        Content::joined(self.block as usize, &data)
    }
}

impl Piece {
    /// Gives up the contents that were made of partial blocks.
    pub(super) fn forget_bases(&mut self) {
        self.partial.iter_mut().for_each(|partial| partial.base = None);
    }

    fn free(&mut self, blocks: Range<u64>) {
        self.weight = self.weight.saturating_add(blocks.end - blocks.start);
        match self.freed.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.freed.push(blocks),
        }
    }

    fn change(&mut self, blkid: u64, at: usize, data: Segments, keeps_holes: bool) {
        self.partial.push(Partial { blkid, at, data, keeps_holes, base: None });
    }

    fn zero_part(&mut self, blkid: u64, within: Range<usize>, keeps_holes: bool) {
        let data = std::iter::once(Segment::Zero(within.len())).collect();
        self.change(blkid, within.start, data, keeps_holes);
    }

    /// Nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.freed.is_empty() && self.partial.is_empty()
    }

    /// Blocks that may become dirty.
    pub(super) fn blocks(&self) -> u64 {
        (self.whole.len() + self.partial.len()) as u64
    }

    /// Indirect blocks that are written anew for it, if each takes `each` bytes at most.
    pub(super) fn above(&self, fanout: Fanout, each: u64) -> Above {
        let firsts = [
            self.whole.first().map(|(blkid, _)| *blkid),
            self.partial.first().map(|partial| partial.blkid),
            self.freed.first().map(|blocks| blocks.start),
        ];
        let lasts = [
            self.whole.last().map(|(blkid, _)| *blkid),
            self.partial.last().map(|partial| partial.blkid),
            self.freed.last().map(|blocks| blocks.end - 1),
        ];
        let first = firsts.into_iter().flatten().min();
        let last = lasts.into_iter().flatten().max();
        let Some((first, last)) = first.zip(last) else { return Above::default() };
        let (first, last) = (fanout.ancestor(first, 1), fanout.ancestor(last, 1));
        // With all that is below it, it becomes a hole.
        let is_gone = |number: u64| {
            let (start, end) = (fanout.first_descendant(number, 1), fanout.first_descendant(number + 1, 1));
            self.freed.iter().any(|blocks| blocks.start <= start && end <= blocks.end)
        };
        let ends = [Some(first), (last > first).then_some(last)];
        // A piece is one range: what is below those in between is written, or all of it is freed.
        let between = if self.whole.is_empty() { 0 } else { last.saturating_sub(first + 1) };
        let ends = ends.map(|end| end.filter(|number| !is_gone(*number)));
        Above { each, ends, between, ..Above::default() }
    }
}

/// The pieces of a request, to be taken from the front without copying.
#[derive(Debug)]
pub(super) struct Payload {
    rest: smallvec::IntoIter<[Segment; 4]>,
    front: Option<Segment>,
}

impl Payload {
    pub(super) fn new(data: Segments) -> Self {
        Self { rest: data.into_iter(), front: None }
    }

    /// The next `len` bytes.
    fn take(&mut self, mut len: usize) -> Segments {
        let mut taken = Segments::new();
        while len > 0 {
            let Some(mut segment) = self.front.take().or_else(|| self.rest.next()) else { break };
            if segment.len() > len {
                let front = match &mut segment {
                    Segment::Data(bytes) => Segment::Data(bytes.split_to(len)),
                    Segment::Zero(zeroes) => {
                        *zeroes -= len;
                        Segment::Zero(len)
                    }
                };
                self.front = Some(segment);
                segment = front;
            }
            len -= segment.len();
            if !segment.is_empty() {
                taken.push(segment);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 8192;

    fn cut(zeroes: &Bytes) -> Cut<'_> {
        Cut { block: BLOCK, punch_zeroes: true, zeroes, sum: None }
    }

    fn partials(piece: &Piece) -> Vec<(u64, Range<usize>)> {
        let part = |p: &Partial| (p.blkid, p.at..p.at + p.data.iter().map(Segment::len).sum::<usize>());
        piece.partial.iter().map(part).collect()
    }

    #[test]
    fn whole_blocks_of_one_segment_are_taken_without_a_copy() {
        let zeroes = Bytes::from(vec![0; BLOCK as usize]);
        let data = Bytes::from(vec![7; 3 * BLOCK as usize]);
        let address = data.as_ptr();
        let mut payload = Payload::new(std::iter::once(Segment::Data(data)).collect());
        let piece = cut(&zeroes).write(BLOCK - 100, 4 * BLOCK - 100, &mut payload);
        assert_eq!(partials(&piece), [(0, 8092..8192), (3, 0..8092)]);
        let at: Vec<_> =
            piece.whole.iter().map(|(blkid, content)| (*blkid, content.bytes().as_ptr())).collect();
        assert_eq!(at, [(1, address.wrapping_add(100)), (2, address.wrapping_add(8292))]);
    }

    /// Offset, end, parts of blocks, blocks that become holes.
    type Case<'a> = (u64, u64, &'a [(u64, Range<usize>)], &'a [Range<u64>]);

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, of which some are short")]
    fn the_ends_of_a_range_of_zeroes_keep_what_lies_outside() {
        let zeroes = Bytes::from(vec![0; BLOCK as usize]);
        let cut = cut(&zeroes);
        let cases: [Case<'_>; 6] = [
            (0, 2 * BLOCK, &[], &[0..2]),
            (10, 20, &[(0, 10..20)], &[]),
            (10, BLOCK + 20, &[(0, 10..8192), (1, 0..20)], &[]),
            (10, BLOCK, &[(0, 10..8192)], &[]),
            (BLOCK, BLOCK + 20, &[(1, 0..20)], &[]),
            (10, 5 * BLOCK + 20, &[(0, 10..8192), (5, 0..20)], &[1..5]),
        ];
        for (offset, end, parts, freed) in cases {
            let piece = cut.zero(offset, end, Zeroes::Punch);
            assert_eq!((&partials(&piece)[..], &piece.freed[..]), (parts, freed), "{offset}..{end}");
            let piece = cut.zero(offset, end, Zeroes::Unmap);
            assert_eq!((&partials(&piece)[..], &piece.freed[..]), (&[][..], freed), "{offset}..{end}");
        }
    }

    #[test]
    fn indirect_blocks_are_written_for_what_changes_below_them_unless_all_of_it_goes() {
        let zeroes = Bytes::from(vec![0; BLOCK as usize]);
        let cut = cut(&zeroes);
        let above = |piece: Piece| {
            let Above { each, ends, between, .. } = piece.above(Fanout::from_shift(2), 100);
            assert_eq!(each, 100);
            (ends, between)
        };
        let blocks = |from: u64, to: u64| (from * BLOCK, to * BLOCK);
        for ((from, to), expected) in [
            (blocks(4, 5), ([Some(1), None], 0)),
            (blocks(5, 7), ([Some(1), None], 0)),
            (blocks(4, 8), ([None, None], 0)),
            (blocks(4, 16), ([None, None], 0)),
            (blocks(5, 16), ([Some(1), None], 0)),
            (blocks(4, 17), ([None, Some(4)], 0)),
            (blocks(7, 9), ([Some(1), Some(2)], 0)),
        ] {
            assert_eq!(above(cut.zero(from, to, Zeroes::Unmap)), expected, "{from}..{to}");
        }
        // Parts of blocks at both ends of what is freed.
        let piece = cut.zero(4 * BLOCK + 10, 16 * BLOCK + 10, Zeroes::Punch);
        assert_eq!(above(piece), ([Some(1), Some(4)], 0));
        assert_eq!(above(cut.zero(4 * BLOCK, 17 * BLOCK, Zeroes::Store)), ([Some(1), Some(4)], 2));
        assert_eq!(Piece::default().above(Fanout::from_shift(2), 100), Above::default());
    }

    #[test]
    fn long_requests_are_cut_at_blocks() {
        let zeroes = Bytes::from(vec![0; BLOCK as usize]);
        let cut = cut(&zeroes);
        let (mut at, mut ends) = (100, Vec::new());
        while at < (3 << 20) + 100 {
            at = cut.end_of_piece(at, (3 << 20) + 100);
            ends.push(at);
        }
        assert_eq!(ends, [1 << 20, 2 << 20, 3 << 20, (3 << 20) + 100]);
        let large = Cut { block: 4 << 20, ..cut };
        assert_eq!(large.end_of_piece(1, 100 << 20), 4 << 20);
    }
}
