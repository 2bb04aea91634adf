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

/// As many without an allocation: 128 KiB in blocks of 8 KiB, and what comes ahead.
const INLINE: usize = 17;

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
    /// To a row of them, and what comes behind.
    Row(&'a mut Landings, &'a mut Ahead),
}

impl<'a> Place<'a> {
    /// At most `room` bytes to the end of `buffer`.
    pub fn one(buffer: &'a mut (impl BufMut + Send), room: usize) -> Self {
        Self::One((buffer as &mut (dyn BufMut + Send)).limit(room))
    }

    /// Bytes there is room for, unless they belong to somewhere where nobody should put them by copying.
    #[must_use]
    pub fn room(&self) -> usize {
        match self {
            Self::One(buffer) => buffer.remaining_mut(),
            Self::Row(..) => 0,
        }
    }

    /// Takes bytes that somebody else received; how many there was room for.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::One(buffer) => {
                let len = bytes.len().min(buffer.remaining_mut());
                buffer.put_slice(&bytes[..len]);
                len
            }
            Self::Row(row, _) => row.take_from(bytes),
        }
    }
}

/// Room for the first bytes behind a row: the next header comes with the last of the data, for one call to the kernel less.
///
/// What would come of the data behind that is left where it is, because it would have to be copied.
#[derive(Debug)]
pub struct Ahead {
    bytes: [u8; Self::MAX],
    /// How many are wanted, and how many have come.
    wanted: usize,
    came: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { bytes: [0; Self::MAX], wanted: 0, came: 0 }
    }
}

impl Ahead {
    /// Most bytes that may be wanted.
    pub const MAX: usize = 64;

    /// So many are wanted from now on, or [`MAX`](Self::MAX).
    pub fn want(&mut self, len: usize) {
        self.wanted = len.min(Self::MAX);
    }

    /// What has come.
    #[must_use]
    pub fn take(&mut self) -> &[u8] {
        &self.bytes[..std::mem::take(&mut self.came)]
    }

    fn room(&mut self) -> &mut [u8] {
        let came = self.came.min(self.wanted);
        &mut self.bytes[came..self.wanted]
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
        let cut = site.and_then(|site| site.cut());
        if let Some((upto, block)) = cut.filter(|(upto, _)| *upto < len) {
            if upto < block {
                row.push(Landing::passing(upto));
                rest -= upto;
            }
            row.extend(Landing::row(block, rest / block));
            rest %= block;
        }
        if rest > 0 || row.is_empty() {
            // A part of a block goes into what is there of that block.
            let is_part = cut.is_some_and(|(_, block)| rest < block);
            row.push(if is_part { Landing::passing(rest) } else { Landing::new(rest) });
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

    /// Where what is missing goes: a part of a block that fills no recycled buffer by itself, the rest together and with
    /// what comes `ahead`.
    pub fn place<'a>(&'a mut self, ahead: &'a mut Ahead) -> Place<'a> {
        if self.next_mut().room().is_some() && (self.behind > 0 || ahead.wanted > 0) {
            return Place::Row(self, ahead);
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
    pub fn slices(&mut self) -> SmallVec<[IoSliceMut<'_>; INLINE]> {
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

    /// Receives what is there, and what comes `ahead`, by one call to the kernel; 0 at the end. `readable` says when there
    /// may be something, and `read` takes it.
    pub fn poll_fill(
        &mut self,
        ahead: &mut Ahead,
        cx: &mut Context<'_>,
        readable: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
        read: impl Fn(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(readable(cx))?;
            let missing = self.missing();
            let mut slices = self.slices();
            // Not behind a gap.
            if slices.iter().map(|slice| slice.len()).sum::<usize>() == missing {
                slices.push(IoSliceMut::new(ahead.room()));
            }
            let received = read(&mut slices);
            drop(slices);
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(received) => {
                    let here = received.min(missing);
                    self.advance(here);
                    ahead.came += received - here;
                    return Poll::Ready(Ok(received));
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
                let mut ahead = Ahead::default();
                let room = match landings.place(&mut ahead) {
                    Place::One(buffer) => buffer.remaining_mut(),
                    Place::Row(row, _) => row.slices().iter().map(|slice| slice.len()).sum(),
                };
                assert!(room > 0 && room <= landings.missing(), "{offset} {block}");
                let taken = landings.place(&mut ahead).put(&vec![1; room.min(3000)]);
                assert_eq!(taken, room.min(3000), "{offset} {block}");
            }
        }
    }

    /// However much the kernel has, what belongs to the row is there, and what comes behind it is ahead, no more than wanted.
    #[test]
    fn what_comes_behind_a_row_comes_with_it() {
        let content: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let cases = [
            (7680 + 5 * 8192, site(512, 8192), 48),
            (16384, site(0, 16384), 48),
            (90 * 8192, site(0, 8192), 48),
            // The end of the last block is memory that is not initialised: nothing can come behind it.
            (50_000, site(512, 8192), 0),
        ];
        for (len, place, most) in cases {
            let content: Vec<u8> = content.iter().copied().cycle().take(len + 1000).collect();
            for step in [1, 8191, 16384, 16400, usize::MAX] {
                let (mut landings, mut ahead) = (Landings::new(len, place), Ahead::default());
                ahead.want(48);
                let mut rest = content.as_slice();
                while landings.missing() > 0 {
                    let received = match landings.place(&mut ahead) {
                        mut one @ Place::One(_) => one.put(&rest[..rest.len().min(step)]),
                        Place::Row(row, ahead) => {
                            let read = |slices: &mut [IoSliceMut<'_>]| {
                                let mut left = rest.len().min(step);
                                let mut source = rest;
                                for slice in slices {
                                    let here = slice.len().min(left);
                                    slice[..here].copy_from_slice(&source[..here]);
                                    (source, left) = (&source[here..], left - here);
                                }
                                Ok(rest.len().min(step) - left)
                            };
                            let mut cx = Context::from_waker(std::task::Waker::noop());
                            let Poll::Ready(received) =
                                row.poll_fill(ahead, &mut cx, |_| Poll::Ready(Ok(())), read)
                            else {
                                panic!("there is something");
                            };
                            received.unwrap()
                        }
                    };
                    assert!(received > 0);
                    rest = &rest[received..];
                }
                let behind = ahead.take().to_vec();
                assert!(behind.len() <= most && ahead.take().is_empty());
                assert!(step < usize::MAX || behind.len() == most, "{len}: {}", behind.len());
                assert_eq!([landings.freeze().concat(), behind, rest.to_vec()].concat(), content);
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
                    if turn % 2 == 0 && matches!(landings.place(&mut Ahead::default()), Place::Row(..)) {
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
