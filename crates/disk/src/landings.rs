//! Landings in a row: data that will be blocks of a volume lands in memory of its own for each block.
//!
//! Blocks come and go one by one afterwards. If they shared the memory of the request that wrote them, all of it would stay
//! while one of them does, and each size of request would need memory of another size than the one before left behind:
//! fresh pages, which the kernel clears one by one, while it takes others back.

use std::{
    io::{self, IoSliceMut},
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, buf::Limit};
use smallvec::SmallVec;

use crate::{IoBuf, Landing};

/// Pieces that one call to the kernel fills.
const AT_ONCE: usize = 64;

/// What has arrived, in order.
pub type Landed = SmallVec<[Bytes; 1]>;

/// Where data lies in something that is made of blocks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Of its first byte.
    pub offset: u64,
    /// Of a block.
    pub block: u32,
}

impl Site {
    /// Bytes to the end of the block, and of each block behind it; none if these are of no use as buffers.
    fn cut(self) -> Option<(usize, usize)> {
        let block = usize::try_from(self.block).ok().filter(|block| *block > 0)?;
        let before = usize::try_from(self.offset % block as u64).ok()?;
        (IoBuf::capacity_for(block) == block).then_some((block - before, block))
    }
}

/// Where the next bytes of a stream go.
pub enum Place<'a> {
    /// To one buffer, and how many at most.
    One(Limit<&'a mut (dyn BufMut + Send)>),
    /// To a row of them.
    Row(&'a mut Landings),
}

impl<'a> Place<'a> {
    /// At most `room` bytes to the end of `buffer`.
    pub fn one(buffer: &'a mut (impl BufMut + Send), room: usize) -> Self {
        Self::One((buffer as &mut (dyn BufMut + Send)).limit(room))
    }

    /// Takes bytes that somebody else received; how many there was room for.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::One(buffer) => {
                let len = bytes.len().min(buffer.remaining_mut());
                buffer.put_slice(&bytes[..len]);
                len
            }
            Self::Row(row) => row.take_from(bytes),
        }
    }
}

/// Buffers that are filled from the front of the first to the end of the last.
#[derive(Debug)]
pub struct Landings {
    row: SmallVec<[Landing; 1]>,
    /// The first that may not be full.
    at: usize,
    /// Bytes that those behind it have room for.
    behind: usize,
}

impl Landings {
    /// Room for `len` bytes. Those of different blocks of `site` get memory of their own, if blocks are of a size that is
    /// recycled.
    #[must_use]
    pub fn new(len: usize, site: Option<Site>) -> Self {
        let mut row = SmallVec::new();
        let mut rest = len;
        if let Some((upto, block)) = site.and_then(|site| site.cut()).filter(|(upto, _)| *upto < len) {
            if upto < block {
                row.push(Landing::new(upto));
                rest -= upto;
            }
            row.extend(Landing::row(block, rest / block));
            rest %= block;
        }
        if rest > 0 || row.is_empty() {
            row.push(Landing::new(rest));
        }
        let behind = len - row.first().map_or(0, Landing::remaining_mut);
        Self { row, at: 0, behind }
    }

    /// Bytes that have not arrived.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.behind + self.row[self.at].remaining_mut()
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.row.iter().map(Landing::capacity).sum()
    }

    /// Where what is missing goes: a part of a block that fills no recycled buffer by itself, the rest together.
    pub fn place(&mut self) -> Place<'_> {
        if self.next_mut().room().is_some() && self.behind > 0 {
            return Place::Row(self);
        }
        let next = &mut self.row[self.at];
        let missing = next.remaining_mut();
        Place::one(next, missing)
    }

    /// What has arrived, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.row.iter().map(|landing| &**landing)
    }

    /// The next that is to be filled; full if all are.
    pub fn next_mut(&mut self) -> &mut Landing {
        while self.behind > 0 && self.row[self.at].remaining_mut() == 0 {
            self.at += 1;
            self.behind -= self.row[self.at].remaining_mut();
        }
        &mut self.row[self.at]
    }

    /// Where the next bytes go, as far as one call to the kernel reaches: up to memory that is not initialised. What was put
    /// there is to be [`advance`](Self::advance)d over.
    pub fn slices(&mut self) -> SmallVec<[IoSliceMut<'_>; 16]> {
        self.next_mut();
        let rest = self.row.iter_mut().skip(self.at).take(AT_ONCE);
        rest.map_while(Landing::room).map(IoSliceMut::new).collect()
    }

    /// `count` bytes were put into the [`slices`](Self::slices).
    ///
    /// # Panics
    /// If they have no room for as many.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let next = self.next_mut();
            let step = count.min(next.remaining_mut());
            assert!(step > 0, "more than there is room for");
            next.advance(step);
            count -= step;
        }
    }

    /// Receives what is there, by one call to the kernel; 0 at the end. `readable` says when there may be something, and
    /// `read` takes it.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        readable: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
        read: impl Fn(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(readable(cx))?;
            let received = read(&mut self.slices());
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    self.advance(*received.as_ref().unwrap_or(&0));
                    return Poll::Ready(received);
                }
            }
        }
    }

    /// Copies as much of `data` as is missing; how much that was.
    pub fn take_from(&mut self, data: &[u8]) -> usize {
        let mut rest = data;
        while !rest.is_empty() {
            let next = self.next_mut();
            let (here, later) = rest.split_at(rest.len().min(next.remaining_mut()));
            if here.is_empty() {
                break;
            }
            next.put_slice(here);
            rest = later;
        }
        data.len() - rest.len()
    }

    /// All that has arrived, to be shared.
    #[must_use]
    pub fn freeze(self) -> Landed {
        self.row.into_iter().map(Landing::freeze).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(offset: u64, block: u32) -> Option<Site> {
        Some(Site { offset, block })
    }

    #[test]
    fn each_block_has_memory_of_its_own() {
        let lengths = |len, site| {
            let landings = Landings::new(len, site);
            landings.row.iter().map(Landing::remaining_mut).collect::<Vec<_>>()
        };
        assert_eq!(lengths(16384, None), [16384]);
        assert_eq!(lengths(16384, site(8192, 8192)), [8192, 8192]);
        assert_eq!(lengths(16384, site(512, 8192)), [7680, 8192, 512]);
        assert_eq!(lengths(8192, site(8192, 16384)), [8192]);
        assert_eq!(lengths(8192, site(12288, 16384)), [4096, 4096]);
        // Blocks that recycled memory would be too large for, and what no volume has.
        for block in [0, 512, 2048, 160 << 10, 5000] {
            let expected = if block == 160 << 10 { vec![160 << 10, 40 << 10] } else { vec![200 << 10] };
            assert_eq!(lengths(200 << 10, site(0, block)), expected, "{block}");
        }
        assert_eq!(lengths(0, site(0, 8192)), [0]);
    }

    /// No place at all would be taken for the end of the stream.
    #[test]
    fn there_is_a_place_until_nothing_is_missing() {
        for (offset, block) in [(0, 8192), (512, 8192), (7680, 8192), (4096, 16384), (100, 4096)] {
            let mut landings = Landings::new(50_000, site(offset, block));
            while landings.missing() > 0 {
                let room = match landings.place() {
                    Place::One(buffer) => buffer.remaining_mut(),
                    Place::Row(row) => row.slices().iter().map(|slice| slice.len()).sum(),
                };
                assert!(room > 0 && room <= landings.missing(), "{offset} {block}");
                let taken = landings.place().put(&vec![1; room.min(3000)]);
                assert_eq!(taken, room.min(3000), "{offset} {block}");
            }
        }
    }

    #[test]
    fn what_lands_in_a_row_is_whole_however_it_comes() {
        let content: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        for place in [None, site(0, 4096), site(8192, 8192), site(4096, 16384), site(1024, 8192)] {
            for step in [1, 700, 8192, 9000, 65536, 200_000] {
                let mut landings = Landings::new(content.len(), place);
                let mut rest = content.as_slice();
                let mut turn = 0;
                while !rest.is_empty() {
                    assert_eq!(landings.missing(), rest.len());
                    turn += 1;
                    let mut taken = 0;
                    if turn % 2 == 0 && matches!(landings.place(), Place::Row(_)) {
                        for slice in &mut landings.slices() {
                            let len = slice.len().min(rest.len() - taken).min(step - taken);
                            slice[..len].copy_from_slice(&rest[taken..taken + len]);
                            taken += len;
                        }
                        landings.advance(taken);
                    }
                    if taken == 0 {
                        taken = landings.take_from(&rest[..step.min(rest.len())]);
                    }
                    rest = &rest[taken..];
                }
                assert_eq!((landings.missing(), landings.take_from(b"more")), (0, 0));
                assert_eq!(landings.parts().collect::<Vec<_>>().concat(), content);
                assert!(landings.capacity() <= content.len());
                assert_eq!(landings.freeze().concat(), content, "{place:?} {step}");
            }
        }
    }
}
