//! Where data of a known length lands while it arrives, piece by piece, and from where it goes on without a copy.
//!
//! What clients write stays in memory for long: until its transaction group is on the devices, and in the cache after that.
//! So it gets memory of its own, of its size; and as that memory comes and goes by the hundred megabytes with each
//! transaction group, it is recycled ([`IoBuf`]) rather than given back to the kernel and cleared page by page again.
#![expect(unsafe_code, reason = "`BufMut` is an unsafe trait")]

use std::ops::Deref;

use bytes::{BufMut, Bytes, BytesMut, buf::UninitSlice};

use crate::{IoBuf, stream_copy};

/// A buffer of fixed length that is filled from its front.
#[derive(Debug)]
pub struct Landing {
    memory: Memory,
    len: usize,
    /// What lands here is copied to somewhere else at once: it is best kept in the processor's caches.
    passes: bool,
}

#[derive(Debug)]
enum Memory {
    /// How much of it is filled.
    Recycled(IoBuf, usize),
    /// Of lengths for which a recycled buffer would be too large.
    Exact(BytesMut),
}

impl Landing {
    /// Room for `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let memory = match IoBuf::capacity_for(len) == len {
            true => Memory::Recycled(IoBuf::with_len(len), 0),
            false => Memory::Exact(BytesMut::with_capacity(len)),
        };
        Self { memory, len, passes: false }
    }

    /// The same for what is about to be copied to somewhere else.
    pub(crate) fn passing(len: usize) -> Self {
        Self { passes: true, ..Self::new(len) }
    }

    /// `count` of these, in recycled memory whatever it has room for, at neighbouring addresses as far as there is such.
    pub(crate) fn row(len: usize, count: usize) -> impl Iterator<Item = Self> {
        IoBuf::row(len, count).map(move |buf| Self { memory: Memory::Recycled(buf, 0), len, passes: false })
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Recycled(buf, _) => buf.capacity(),
            Memory::Exact(bytes) => bytes.capacity(),
        }
    }

    /// What is to be filled, where that is initialised memory; [`advance`](Self::advance) is to follow.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        match &mut self.memory {
            Memory::Recycled(buf, filled) => buf.get_mut(*filled..),
            Memory::Exact(_) => None,
        }
    }

    /// `count` bytes were put into the [`room`](Self::room).
    ///
    /// # Panics
    /// If it has less.
    pub(crate) fn advance(&mut self, count: usize) {
        match &mut self.memory {
            Memory::Recycled(buf, filled) => {
                assert!(count <= buf.len() - *filled, "more than there is room for");
                *filled += count;
            }
            Memory::Exact(_) => panic!("more than there is room for"),
        }
    }

    /// What has arrived, to be shared.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        match self.memory {
            Memory::Recycled(mut buf, filled) => {
                buf.truncate(filled);
                buf.freeze()
            }
            Memory::Exact(bytes) => bytes.freeze(),
        }
    }
}

/// What has arrived.
impl Deref for Landing {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Recycled(buf, filled) => buf.get(..*filled).unwrap_or_default(),
            Memory::Exact(bytes) => bytes,
        }
    }
}

// SAFETY: `chunk_mut` is memory of ours behind what is filled, never more than `remaining_mut`, and `advance_mut` moves on
// by what was written there; the memory of `IoBuf` is initialised whatever is claimed.
unsafe impl BufMut for Landing {
    fn remaining_mut(&self) -> usize {
        self.len - self.deref().len()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        match &mut self.memory {
            Memory::Recycled(..) => self.advance(count),
            // SAFETY: the caller's promise, and `BytesMut` checks its capacity.
            Memory::Exact(bytes) => unsafe { bytes.advance_mut(count) },
        }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        let room = self.remaining_mut();
        match &mut self.memory {
            Memory::Recycled(buf, filled) => UninitSlice::new(&mut buf[*filled..]),
            Memory::Exact(bytes) => {
                // Without room left it would grow.
                if room == 0 {
                    return UninitSlice::new(&mut []);
                }
                let chunk = bytes.chunk_mut();
                let room = room.min(chunk.len());
                &mut chunk[..room]
            }
        }
    }

    fn put_slice(&mut self, piece: &[u8]) {
        assert!(piece.len() <= self.remaining_mut(), "more than there is room for");
        match &mut self.memory {
            Memory::Recycled(buf, filled) => {
                let place = &mut buf[*filled..*filled + piece.len()];
                if self.passes {
                    place.copy_from_slice(piece)
                } else {
                    stream_copy(place, piece)
                }
                *filled += piece.len();
            }
            Memory::Exact(bytes) => bytes.extend_from_slice(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lands_in_pieces_is_whole_and_no_more_than_fits_lands() {
        for len in [0, 1, 512, 4096, 8192, 70_000, 131_072, 1 << 20] {
            let content: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            for (mut landing, piece) in [
                (Landing::new(len), 3000),
                (Landing::new(len), 20_000),
                (Landing::passing(len), 3000),
                (Landing::passing(len), 20_000),
            ] {
                for piece in content.chunks(piece) {
                    assert!(landing.remaining_mut() >= piece.len());
                    landing.put_slice(piece);
                }
                assert_eq!((landing.remaining_mut(), landing.len()), (0, len));
                assert_eq!(landing.chunk_mut().len(), 0, "{len}");
                assert!(landing.capacity() <= len.max(64), "{len}: {}", landing.capacity());
                assert!(landing.freeze() == content, "{len}");
            }
        }
    }

    #[test]
    fn what_did_not_arrive_is_not_shown() {
        for len in [4096, 5000] {
            drop(IoBuf::from_slice(&[9; 4096]));
            let mut landing = Landing::new(len);
            landing.put_slice(b"some");
            assert_eq!(landing.freeze(), b"some"[..], "{len}");
        }
    }
}
