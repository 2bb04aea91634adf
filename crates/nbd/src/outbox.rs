//! Bytes on their way to the socket, never copied out of the cache.
//!
//! Headers are written one after another into one arena; data stays where it is, as a counted reference;
//! zeroes are a number. A vectored write then sees `header, data, header, data, …` in order. When
//! everything left, the arena starts over, so that a steady stream of batches allocates nothing.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes};

/// What holes are sent from where the client wants bytes.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The arena is compacted when this much of its head has left (a client that never lets it run empty).
const ARENA_SLACK: usize = 64 << 10;

/// What an empty queue keeps for the next batch, in bytes and pieces: all that steady traffic needs, and not what a large
/// read of many small holes needed once.
const ARENA_KEPT: usize = 128 << 10;
const PIECES_KEPT: usize = 4096;

#[derive(Debug)]
enum Piece {
    /// The next so many bytes of the arena.
    Head(usize),
    Data(Bytes),
    Zeroes(usize),
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    arena: Vec<u8>,
    /// Bytes of the arena that have left.
    arena_sent: usize,
    pieces: VecDeque<Piece>,
    len: usize,
}

impl Outbox {
    /// Bytes waiting.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends header bytes.
    #[inline]
    pub(crate) fn head(&mut self, bytes: &[u8]) {
        self.arena.extend_from_slice(bytes);
        self.len = self.len.saturating_add(bytes.len());
        match self.pieces.back_mut() {
            Some(Piece::Head(len)) => *len = len.saturating_add(bytes.len()),
            _ if bytes.is_empty() => {}
            _ => self.pieces.push_back(Piece::Head(bytes.len())),
        }
    }

    /// Appends a reference to data.
    #[inline]
    pub(crate) fn data(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len = self.len.saturating_add(bytes.len());
            self.pieces.push_back(Piece::Data(bytes));
        }
    }

    /// Appends zeroes.
    pub(crate) fn zeroes(&mut self, len: usize) {
        if len > 0 {
            self.len = self.len.saturating_add(len);
            self.pieces.push_back(Piece::Zeroes(len));
        }
    }

    /// Fills `slices` with what comes next; how many were filled.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut arena = self.arena.get(self.arena_sent..).unwrap_or_default();
        let mut places = slices.iter_mut();
        let mut filled = 0_usize;
        'pieces: for piece in &self.pieces {
            let mut zeroes = 0;
            let first = match piece {
                Piece::Head(len) => {
                    let (head, rest) = arena.split_at_checked(*len).unwrap_or((arena, &[]));
                    arena = rest;
                    head
                }
                Piece::Data(bytes) => bytes,
                Piece::Zeroes(len) => {
                    zeroes = *len;
                    &[]
                }
            };
            let mut next = first;
            loop {
                if next.is_empty() {
                    if zeroes == 0 {
                        break;
                    }
                    let take = zeroes.min(ZEROES.len());
                    next = ZEROES.get(..take).unwrap_or(&ZEROES);
                    zeroes = zeroes.saturating_sub(take);
                }
                let Some(place) = places.next() else { break 'pieces };
                *place = IoSlice::new(next);
                filled = filled.saturating_add(1);
                next = &[];
            }
        }
        filled
    }

    /// `n` bytes have left.
    pub(crate) fn sent(&mut self, mut n: usize) {
        self.len = self.len.saturating_sub(n);
        while n > 0 {
            let Some(piece) = self.pieces.front_mut() else { break };
            let had = match piece {
                Piece::Head(len) | Piece::Zeroes(len) => *len,
                Piece::Data(bytes) => bytes.len(),
            };
            let take = had.min(n);
            n = n.saturating_sub(take);
            match piece {
                Piece::Head(len) => {
                    *len = len.saturating_sub(take);
                    self.arena_sent = self.arena_sent.saturating_add(take);
                }
                Piece::Zeroes(len) => *len = len.saturating_sub(take),
                Piece::Data(bytes) => bytes.advance(take),
            }
            if take == had {
                self.pieces.pop_front();
            }
        }
        if self.pieces.is_empty() {
            self.arena.clear();
            self.arena.shrink_to(ARENA_KEPT);
            self.pieces.shrink_to(PIECES_KEPT);
            self.arena_sent = 0;
        } else if self.arena_sent > ARENA_SLACK {
            self.arena.drain(..self.arena_sent);
            self.arena_sent = 0;
        }
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flatten(outbox: &Outbox, places: usize) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); places];
        let filled = outbox.slices(&mut slices);
        slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    fn filled(zeroes: usize) -> (Outbox, Vec<u8>) {
        let mut outbox = Outbox::default();
        outbox.head(b"abc");
        outbox.head(b"def");
        outbox.data(Bytes::from_static(b"DATA"));
        outbox.zeroes(zeroes);
        outbox.head(b"ghi");
        outbox.data(Bytes::new());
        outbox.data(Bytes::from_static(b"MORE"));
        let mut want = b"abcdefDATA".to_vec();
        want.resize(want.len() + zeroes, 0);
        want.extend_from_slice(b"ghiMORE");
        (outbox, want)
    }

    #[test]
    fn pieces_leave_in_order_whatever_the_sizes_the_socket_takes() {
        let small = [1_usize, 2, 3, 5, 7].map(|step| (step, 40));
        let large = [4096_usize, 65_536, 65_537, 100_000].map(|step| (step, 70_000));
        for (step, zeroes) in small.into_iter().chain(large) {
            let (mut outbox, want) = filled(zeroes);
            let mut got = Vec::new();
            while !outbox.is_empty() {
                let next = flatten(&outbox, 3);
                let take = next.len().min(step);
                got.extend_from_slice(&next[..take]);
                outbox.sent(take);
                assert_eq!(outbox.len(), want.len() - got.len());
            }
            assert_eq!(got, want, "step {step}");
            assert!(outbox.arena.is_empty());
        }
    }

    #[test]
    fn an_empty_queue_keeps_little_of_what_it_held_once() {
        let mut outbox = Outbox::default();
        for _ in 0..100_000 {
            outbox.head(&[7; 28]);
            outbox.data(Bytes::from_static(b"x"));
        }
        outbox.sent(outbox.len());
        assert!(outbox.arena.capacity() <= ARENA_KEPT && outbox.pieces.capacity() <= 2 * PIECES_KEPT);
    }

    #[test]
    fn the_arena_does_not_grow_while_the_queue_never_runs_empty() {
        let mut outbox = Outbox::default();
        outbox.head(&[7; 16]);
        for _ in 0..100_000 {
            outbox.head(&[7; 16]);
            outbox.sent(16);
        }
        assert!(outbox.arena.capacity() < 4 * ARENA_SLACK);
    }
}
