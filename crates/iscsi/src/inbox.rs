//! What a connection receives, until it is whole PDUs.
//!
//! ```text
//!   socket ─▶ head of the stream: headers, and data as it happens to come along
//!      │            └─copied─▶ data segment: memory of its own, for each block of the volume ─▶ PDU
//!      └── much of a segment is missing: straight there ─▶┘
//! ```
//!
//! Data of writes stays in memory for long: until its transaction group is on the devices, and in the cache after that.
//! A slice of the receive buffer would keep all of that buffer alive, so that every read from the socket needed fresh
//! memory, which the kernel clears page by page: 40 % of the time of 8 KiB writes. Copying them out costs a tenth of it.
//!
//! Most connections carry reads, or nothing for long, and need room for headers only. One whose client writes much at once
//! gets more as long as that lasts: each turn of the connection costs a read from the socket and an answer to it.

use bytes::{Buf as _, BytesMut};
use disk::{Landed, Landings, Place, Site};

use crate::pdu::{Fatal, Framing, Head, Header};

/// Room for headers: 680 commands, or some that carry little data.
const HEADS: usize = 32 << 10;
/// Room while a client sends more than that at once: sixteen writes of 8 KiB.
const HEADS_MAX: usize = 128 << 10;
/// Room while data segments are so long that what comes with their headers is best little: it is copied, and the rest is
/// received where it belongs.
const HEADS_MIN: usize = 4 << 10;
/// A data segment of which a quarter of the room or more is missing is received where it belongs.
const DIRECT_PART: usize = 4;
/// So many reads in a row that less room would have done for: it is given up.
const PATIENCE: u32 = 64;

/// A PDU whose header is there.
#[derive(Debug)]
struct Coming {
    head: Head,
    data: Landings,
}

/// The receiving side of a connection in the full feature phase.
#[derive(Debug)]
pub struct Inbox {
    heads: BytesMut,
    coming: Option<Coming>,
    is_starved: bool,
    /// Bytes for which the head of the stream has room.
    room: usize,
    /// Reads in a row for which [`HEADS`] would have done.
    modest: u32,
    /// Bytes that were there after the last read, if it was not looked at yet.
    read: Option<usize>,
    /// The longest data segment that began since then.
    longest: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        BytesMut::new().into()
    }
}

impl From<BytesMut> for Inbox {
    /// Begins with what was received already.
    fn from(heads: BytesMut) -> Self {
        Self { heads, coming: None, is_starved: false, room: HEADS, modest: 0, read: None, longest: 0 }
    }
}

impl Inbox {
    /// Where the next bytes from the socket go.
    pub fn place(&mut self) -> Place<'_> {
        self.fit();
        match &mut self.coming {
            Some(Coming { data, .. })
                if self.heads.is_empty() && data.missing() >= self.room / DIRECT_PART =>
            {
                data.place()
            }
            _ => {
                let room = self.room.saturating_sub(self.heads.len()).max(1);
                self.heads.reserve(room);
                Place::one(&mut self.heads, room)
            }
        }
    }

    /// Looks at the last read, of which all whole PDUs were taken: how much room the next one should have.
    fn fit(&mut self) {
        let longest = std::mem::take(&mut self.longest);
        let Some(read) = self.read.take() else { return };
        if longest >= HEADS {
            self.rest();
            self.room = HEADS_MIN;
        } else if read >= self.room {
            self.room = if self.room < HEADS { HEADS } else { HEADS_MAX };
            self.modest = 0;
        } else if self.room > HEADS {
            let is_modest = read < HEADS;
            self.modest = if is_modest { self.modest.saturating_add(1) } else { 0 };
            if self.modest >= PATIENCE {
                self.rest();
            }
        }
    }

    /// Nothing is expected soon: gives up room beyond what headers need, and the memory.
    pub fn rest(&mut self) {
        if self.room > HEADS {
            (self.room, self.modest) = (HEADS, 0);
            self.heads = BytesMut::from(&self.heads[..]);
        }
    }

    /// Bytes of memory it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let coming = self.coming.as_ref().map_or(0, |coming| coming.data.capacity());
        // What is consumed of the head of the stream counts: it is used again.
        self.room.max(self.heads.capacity()).saturating_add(coming)
    }

    /// Whether there was no whole PDU at the last look.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Takes in bytes that somebody else received.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
    }

    /// Bytes were put into the [`place`](Self::place).
    pub fn received(&mut self) {
        self.read = Some(self.heads.len());
    }

    /// The next PDU that is there whole, and its data without padding. Digests are checked here. `site` knows of a header
    /// where in a volume its data will go: that of different blocks comes in different pieces.
    ///
    /// # Errors
    /// The stream cannot be followed any further.
    pub fn next(
        &mut self,
        framing: &Framing,
        site: impl FnOnce(&Header) -> Option<Site>,
    ) -> Result<Option<(Header, Landed)>, Fatal> {
        let next = self.take(framing, site)?;
        self.is_starved = next.is_none();
        Ok(next)
    }

    fn take(
        &mut self,
        framing: &Framing,
        site: impl FnOnce(&Header) -> Option<Site>,
    ) -> Result<Option<(Header, Landed)>, Fatal> {
        let mut coming = match self.coming.take() {
            Some(coming) => coming,
            None => {
                let Some(head) = framing.head(&self.heads)? else { return Ok(None) };
                self.heads.advance(head.len);
                if head.data_len == 0 {
                    return Ok(Some((head.header, Landed::new())));
                }
                self.longest = self.longest.max(head.data_len);
                let site = site(&head.header);
                Coming { head, data: Landings::new(head.data_len, site) }
            }
        };
        let Coming { head, data } = &mut coming;
        let here = data.take_from(&self.heads);
        self.heads.advance(here);
        let tail = self.heads.get(..head.tail_len());
        let Some(tail) = tail.filter(|_| data.missing() == 0) else {
            self.coming = Some(coming);
            return Ok(None);
        };
        head.check(data.parts(), tail)?;
        self.heads.advance(head.tail_len());
        let Coming { head, data } = coming;
        Ok(Some((head.header, data.freeze())))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::pdu::{Outbox, op};

    fn anywhere(_: &Header) -> Option<Site> {
        None
    }

    /// However the stream is cut, and wherever it is put, the same PDUs come out.
    #[test]
    fn a_stream_is_the_same_pdus_however_it_arrives() {
        let blocks = |_: &Header| Some(Site { offset: 3 * 512, block: 8192 });
        for (digests, site, expected) in
            [(false, anywhere as fn(&Header) -> Option<Site>, 7), (true, blocks, 33)]
        {
            let mut out = Outbox::default();
            (out.header_digest, out.data_digest) = (digests, digests);
            let lengths = [0, 1, 512, 8192, 3, 0, 100_001, 65_536, 40_000, 0];
            let content = |number: usize, len: usize| -> Vec<u8> {
                (0..len).map(|at| (at * 7 + number) as u8).collect()
            };
            for (number, len) in lengths.into_iter().enumerate() {
                let mut header = Header::new(op::DATA_OUT);
                header.set(16, number as u32);
                out.push(header, &content(number, len));
            }
            let wire = out.drain();
            let framing = Framing { header_digest: digests, data_digest: digests, data_max: 1 << 20 };
            for step in [1, 47, 48, 4096, 33_000, wire.len()] {
                let (mut inbox, mut rest, mut number, mut pieces) = (Inbox::default(), wire.as_slice(), 0, 0);
                while !rest.is_empty() {
                    let taken = inbox.place().put(&rest[..rest.len().min(step)]);
                    rest = &rest[taken..];
                    inbox.received();
                    while let Some((header, data)) = inbox.next(&framing, site).unwrap() {
                        assert_eq!(header.itt(), number as u32);
                        assert!(data.concat() == content(number, lengths[number]), "{number} at {step}");
                        pieces += data.len();
                        number += 1;
                    }
                    assert!(inbox.capacity() < 256 << 10, "{}", inbox.capacity());
                }
                assert_eq!((number, pieces), (lengths.len(), expected));
            }
        }
    }

    /// Feeds all of the stream, as much at once as there is room for: the most there was room for, and what came out.
    fn feed(inbox: &mut Inbox, mut wire: &[u8]) -> (usize, Vec<Vec<u8>>) {
        let framing = Framing { data_max: 1 << 20, ..Framing::default() };
        let (mut most, mut came) = (0, Vec::new());
        while !wire.is_empty() {
            let taken = inbox.place().put(wire);
            most = most.max(taken);
            wire = &wire[taken..];
            inbox.received();
            while let Some((_, data)) = inbox.next(&framing, anywhere).unwrap() {
                came.push(data.concat());
            }
        }
        (most, came)
    }

    fn wire(writes: usize, len: usize) -> Vec<u8> {
        let mut out = Outbox::default();
        (0..writes).for_each(|n| out.push(Header::new(op::DATA_OUT), &vec![n as u8; len]));
        out.drain()
    }

    #[test]
    fn there_is_more_room_while_much_comes_at_once() {
        let mut inbox = Inbox::default();
        let small = wire(1, 0);
        assert_eq!(feed(&mut inbox, &small), (small.len(), vec![Vec::new()]));
        for _ in 0..2 {
            let (most, came) = feed(&mut inbox, &wire(64, 8192));
            assert!(most > 3 * HEADS, "{most}");
            assert!((0..64).zip(&came).all(|(n, data)| *data == vec![n as u8; 8192]) && came.len() == 64);
            assert!(inbox.capacity() >= HEADS_MAX, "what is consumed counts");
            // Small commands, of which each read ends in the middle of one: nothing is lost when the room goes.
            let commands = wire(200, 100);
            let mut came = Vec::new();
            for piece in commands.chunks(500) {
                came.extend(feed(&mut inbox, piece).1);
            }
            assert!((0..200).zip(&came).all(|(n, data)| *data == vec![n as u8; 100]) && came.len() == 200);
            for _ in 0..PATIENCE {
                feed(&mut inbox, &small);
            }
            assert!(feed(&mut inbox, &small).0 <= HEADS && inbox.capacity() <= HEADS, "{}", inbox.capacity());
        }
    }

    /// They are copied as far as they come along with headers, which is little.
    #[test]
    fn long_segments_are_received_where_they_belong() {
        let mut inbox = Inbox::default();
        let stream = wire(40, 128 << 10);
        let mut to_heads = 0;
        let framing = Framing { data_max: 1 << 20, ..Framing::default() };
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let is_direct = inbox.coming.is_some() && inbox.heads.is_empty();
            let taken = inbox.place().put(rest);
            to_heads += if is_direct { 0 } else { taken };
            rest = &rest[taken..];
            inbox.received();
            while inbox.next(&framing, |_| Some(Site { offset: 0, block: 8192 })).unwrap().is_some() {}
        }
        assert!(to_heads <= HEADS + 40 * HEADS_MIN, "{to_heads}");
        // Many short ones get more again.
        assert!(feed(&mut inbox, &wire(64, 8192)).0 > 3 * HEADS);
    }

    #[test]
    fn a_silent_connection_gives_room_up() {
        let mut inbox = Inbox::default();
        feed(&mut inbox, &wire(64, 8192));
        inbox.rest();
        assert!(inbox.capacity() <= HEADS, "{}", inbox.capacity());
    }

    #[test]
    fn data_is_kept_in_memory_of_its_own() {
        let mut out = Outbox::default();
        out.push(Header::new(op::DATA_OUT), &[7; 8192]);
        let mut inbox = Inbox::default();
        inbox.extend(&out.drain());
        let framing = Framing { data_max: 1 << 20, ..Framing::default() };
        let (_, data) = inbox.next(&framing, |_| Some(Site { offset: 4096, block: 4096 })).unwrap().unwrap();
        assert_eq!(data.iter().map(Bytes::len).collect::<Vec<_>>(), [4096, 4096]);
        assert!(data.iter().all(|piece| piece.as_ptr().addr() % disk::IoBuf::ALIGN == 0));
    }

    #[test]
    fn a_wrong_digest_ends_the_stream() {
        let framing = Framing { data_digest: true, data_max: 1 << 20, ..Framing::default() };
        let mut out = Outbox::default();
        out.data_digest = true;
        out.push(Header::new(op::DATA_OUT), &[7; 8191]);
        let mut wire = out.drain();
        let last = wire.len() - 5; // the padding counts, too
        wire[last] ^= 1;
        let mut inbox = Inbox::default();
        inbox.extend(&wire);
        assert!(matches!(inbox.next(&framing, anywhere), Err(Fatal::Digest("data"))));
    }
}
