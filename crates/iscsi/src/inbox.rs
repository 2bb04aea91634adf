//! What a connection receives, until it is whole PDUs.
//!
//! ```text
//!   socket ─▶ head of the stream: headers, and data as it happens to come along
//!      │            └─copied─▶ data segment: a buffer of its own, of exactly its length ─▶ PDU
//!      └── much of a segment is missing: straight there ─▶┘
//! ```
//!
//! Data of writes stays in memory for long: until its transaction group is on the devices, and in the cache after that.
//! A slice of the receive buffer would keep all of that buffer alive, so that every read from the socket needed fresh
//! memory, which the kernel clears page by page: 40 % of the time of 8 KiB writes. Copying them out costs a tenth of it.
//!
//! Most connections carry reads, or nothing for long, and need room for headers only. One whose client writes much at once
//! gets more as long as that lasts: each turn of the connection costs a read from the socket and an answer to it.

use bytes::{Buf as _, BufMut, Bytes, BytesMut, buf::Limit};
use disk::Landing;

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
    data: Landing,
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
    /// Where the next bytes from the socket go, and how many at most.
    pub fn place(&mut self) -> Limit<&mut (dyn BufMut + Send)> {
        self.fit();
        match &mut self.coming {
            Some(Coming { head, data })
                if self.heads.is_empty() && head.missing(data) >= self.room / DIRECT_PART =>
            {
                let missing = head.missing(data);
                (data as &mut (dyn BufMut + Send)).limit(missing)
            }
            _ => {
                let room = self.room.saturating_sub(self.heads.len()).max(1);
                self.heads.reserve(room);
                (&mut self.heads as &mut (dyn BufMut + Send)).limit(room)
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

    /// The next PDU that is there whole, and its data without padding. Digests are checked here.
    ///
    /// # Errors
    /// The stream cannot be followed any further.
    pub fn next(&mut self, framing: &Framing) -> Result<Option<(Header, Bytes)>, Fatal> {
        let next = self.take(framing)?;
        self.is_starved = next.is_none();
        Ok(next)
    }

    fn take(&mut self, framing: &Framing) -> Result<Option<(Header, Bytes)>, Fatal> {
        let mut coming = match self.coming.take() {
            Some(coming) => coming,
            None => {
                let Some(head) = framing.head(&self.heads)? else { return Ok(None) };
                self.heads.advance(head.len);
                if head.data_len == 0 {
                    return Ok(Some((head.header, Bytes::new())));
                }
                self.longest = self.longest.max(head.data_len);
                Coming { head, data: Landing::new(head.data_len) }
            }
        };
        let Coming { head, data } = &mut coming;
        let here = head.missing(data).min(self.heads.len());
        data.put_slice(self.heads.get(..here).unwrap_or_default());
        self.heads.advance(here);
        let tail = self.heads.get(..head.tail_len());
        let Some(tail) = tail.filter(|_| head.missing(data) == 0) else {
            self.coming = Some(coming);
            return Ok(None);
        };
        head.check(data, tail)?;
        self.heads.advance(head.tail_len());
        let Coming { head, data } = coming;
        Ok(Some((head.header, data.freeze())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::{Outbox, op};

    /// However the stream is cut, and wherever it is put, the same PDUs come out.
    #[test]
    fn a_stream_is_the_same_pdus_however_it_arrives() {
        for digests in [false, true] {
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
                let (mut inbox, mut rest, mut number) = (Inbox::default(), wire.as_slice(), 0);
                while !rest.is_empty() {
                    let mut place = inbox.place();
                    let take = rest.len().min(step).min(place.remaining_mut());
                    place.put_slice(&rest[..take]);
                    rest = &rest[take..];
                    inbox.received();
                    while let Some((header, data)) = inbox.next(&framing).unwrap() {
                        assert_eq!(header.itt(), number as u32);
                        assert!(data == content(number, lengths[number]), "{number} at {step}");
                        number += 1;
                    }
                    assert!(inbox.capacity() < 256 << 10, "{}", inbox.capacity());
                }
                assert_eq!(number, lengths.len());
            }
        }
    }

    /// Feeds all of the stream, as much at once as there is room for: the most there was room for, and what came out.
    fn feed(inbox: &mut Inbox, mut wire: &[u8]) -> (usize, Vec<Bytes>) {
        let framing = Framing { data_max: 1 << 20, ..Framing::default() };
        let (mut most, mut came) = (0, Vec::new());
        while !wire.is_empty() {
            let mut place = inbox.place();
            most = most.max(place.remaining_mut());
            let take = wire.len().min(place.remaining_mut());
            place.put_slice(&wire[..take]);
            wire = &wire[take..];
            inbox.received();
            while let Some((_, data)) = inbox.next(&framing).unwrap() {
                came.push(data);
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
        assert_eq!(feed(&mut inbox, &small), (HEADS, vec![Bytes::new()]));
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
            let mut place = inbox.place();
            let take = rest.len().min(place.remaining_mut());
            place.put_slice(&rest[..take]);
            to_heads += if is_direct { 0 } else { take };
            rest = &rest[take..];
            inbox.received();
            while inbox.next(&framing).unwrap().is_some() {}
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
        let (_, data) = inbox.next(&Framing { data_max: 1 << 20, ..Framing::default() }).unwrap().unwrap();
        assert_eq!((data.len(), data.as_ptr().addr() % disk::IoBuf::ALIGN), (8192, 0));
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
        assert!(matches!(inbox.next(&framing), Err(Fatal::Digest("data"))));
    }
}
