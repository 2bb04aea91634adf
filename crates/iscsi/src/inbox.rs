//! What a connection receives, until it is whole PDUs.
//!
//! ```text
//!   socket ─▶ head of the stream: headers, and data as it happens to come along
//!      │            └─copied─▶ data segment: memory of its own, for each block of the volume ─▶ PDU
//!      └── much of a segment is missing: straight there, and the next header with it ─▶┘
//! ```
//!
//! Data of writes stays in memory for long: until its transaction group is on the devices, and in the cache after that.
//! A slice of the receive buffer would keep all of that buffer alive, so that every read from the socket needed fresh
//! memory, which the kernel clears page by page: 40 % of the time of 8 KiB writes. Copying them out costs a tenth of it.
//!
//! What becomes of a segment its header tells ([`Fate`]). One that nobody will look at gets no memory; one that comes
//! unasked gets its memory when there is room for it in the hall of the gate ([`memory::Gate::hall`]), unless it is small:
//! otherwise a thousand connections that each hold back the last byte of theirs would have a thousand times the longest.
//!
//! Most connections carry reads, or nothing for long, and need room for headers only. One whose client writes much at once
//! gets more as long as that lasts: each turn of the connection costs a read from the socket and an answer to it.

use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use disk::{Ahead, Landed, Landings, Place, Site};
use memory::Member;

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

/// Segments up to this need no room in the hall: what the head of the stream may take is more.
const SMALL: usize = 8 << 10;

/// What becomes of a data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was asked for, so that there is room for it; and where in a volume it will go.
    Asked(Option<Site>),
    /// It comes by itself.
    Unasked(Option<Site>),
    /// Nobody will look at it.
    Useless,
}

/// A PDU whose header is there.
#[derive(Debug)]
struct Coming {
    head: Head,
    data: Data,
    /// What was missing at the last look.
    missing: usize,
}

#[derive(Debug)]
enum Data {
    Kept(Landings),
    /// So many bytes are to be skipped.
    Skipped(usize),
}

impl Data {
    fn missing(&self) -> usize {
        match self {
            Self::Kept(data) => data.missing(),
            Self::Skipped(missing) => *missing,
        }
    }

    /// Takes what it can of these bytes; how many.
    fn take_from(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Kept(data) => data.take_from(bytes),
            Self::Skipped(missing) => {
                let here = bytes.len().min(*missing);
                *missing = missing.saturating_sub(here);
                here
            }
        }
    }
}

/// The receiving side of a connection in the full feature phase.
#[derive(Debug)]
pub struct Inbox {
    heads: BytesMut,
    coming: Option<Coming>,
    /// The header behind a data segment, if it came along.
    ahead: Ahead,
    is_starved: bool,
    /// Bytes for which the head of the stream has room.
    room: usize,
    /// Reads in a row for which [`HEADS`] would have done.
    modest: u32,
    /// Bytes that were there after the last read, if it was not looked at yet.
    read: Option<usize>,
    /// The longest data segment that began since then.
    longest: usize,
    /// Its place in the hall, if there is one.
    hall: Option<Member>,
    /// Bytes of data that have arrived, in all.
    arrived: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        BytesMut::new().into()
    }
}

impl From<BytesMut> for Inbox {
    /// Begins with what was received already.
    fn from(heads: BytesMut) -> Self {
        Self {
            heads,
            coming: None,
            ahead: Ahead::default(),
            is_starved: false,
            room: HEADS,
            modest: 0,
            read: None,
            longest: 0,
            hall: None,
            arrived: 0,
        }
    }
}

impl Inbox {
    /// From now on what comes unasked waits for room there.
    pub fn wait_in(&mut self, hall: Member) {
        self.hall = Some(hall);
    }

    /// Whether what comes next has to wait for room: nothing is to be received before its turn comes.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.hall.as_ref().is_some_and(Member::is_waiting)
    }

    /// Ready when it has: go on with [`next`](Self::next).
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.hall.as_mut().map_or(Poll::Pending, |hall| hall.poll_turn(cx))
    }

    /// Where the next bytes from the socket go.
    pub fn place(&mut self) -> Place<'_> {
        self.fit();
        match &mut self.coming {
            Some(Coming { data: Data::Kept(data), .. })
                if self.heads.is_empty() && data.missing() >= self.room / DIRECT_PART =>
            {
                data.place(&mut self.ahead)
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
        let coming = match &self.coming {
            Some(Coming { data: Data::Kept(data), .. }) => data.capacity(),
            _ => 0,
        };
        // What is consumed of the head of the stream counts: it is used again.
        self.room.max(self.heads.capacity()).saturating_add(coming)
    }

    /// Whether there was no whole PDU at the last look.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Of a data segment that is received where it belongs: bytes of it that are missing, and all that it has.
    #[must_use]
    pub fn coming(&self) -> Option<(usize, usize)> {
        let Coming { head, missing, .. } = self.coming.as_ref().filter(|_| self.is_starved)?;
        (*missing >= self.room / DIRECT_PART).then_some((*missing, head.data_len))
    }

    /// Takes in bytes that somebody else received.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
    }

    /// Bytes were put into the [`place`](Self::place).
    pub fn received(&mut self) {
        self.heads.extend_from_slice(self.ahead.take());
        self.read = Some(self.heads.len());
    }

    /// The next PDU that is there whole, and its data without padding, or without data if that was useless. Digests are
    /// checked here. `fate` knows of a header what becomes of its data: that of different blocks comes in different pieces.
    ///
    /// # Errors
    /// The stream cannot be followed any further.
    pub fn next(
        &mut self,
        framing: &Framing,
        fate: impl FnOnce(&Header) -> Fate,
    ) -> Result<Option<(Header, Landed)>, Fatal> {
        let next = self.take(framing, fate)?;
        self.is_starved = next.is_none() && !self.is_held_up();
        Ok(next)
    }

    fn take(
        &mut self,
        framing: &Framing,
        fate: impl FnOnce(&Header) -> Fate,
    ) -> Result<Option<(Header, Landed)>, Fatal> {
        let mut coming = match self.coming.take() {
            Some(coming) => coming,
            None => {
                let Some(head) = framing.head(&self.heads)? else { return Ok(None) };
                if head.data_len == 0 {
                    self.heads.advance(head.len);
                    return Ok(Some((head.header, Landed::new())));
                }
                let (site, waits) = match fate(&head.header) {
                    Fate::Asked(site) => (Some(site), false),
                    Fate::Unasked(site) => (Some(site), true),
                    Fate::Useless => (None, false),
                };
                let is_here = self.heads.len() >= head.len.saturating_add(head.data_len);
                if waits && !is_here && head.data_len > SMALL && !self.enters(head.data_len) {
                    return Ok(None);
                }
                self.heads.advance(head.len);
                self.longest = self.longest.max(head.data_len);
                self.ahead.want(head.tail_len().saturating_add(framing.head_len()));
                let data = match site {
                    Some(site) => Data::Kept(Landings::new(head.data_len, site)),
                    None => Data::Skipped(head.data_len),
                };
                Coming { head, data, missing: head.data_len }
            }
        };
        let Coming { head, data, missing } = &mut coming;
        let here = data.take_from(&self.heads);
        self.heads.advance(here);
        let now = data.missing();
        self.arrived = self.arrived.wrapping_add(std::mem::replace(missing, now).saturating_sub(now) as u64);
        let tail = self.heads.get(..head.tail_len());
        let Some(tail) = tail.filter(|_| now == 0) else {
            if let Some(hall) = &self.hall {
                hall.note(now as u64, self.arrived);
            }
            self.coming = Some(coming);
            return Ok(None);
        };
        if let Data::Kept(data) = data {
            head.check(data.parts(), tail)?;
        }
        self.heads.advance(head.tail_len());
        if let Some(hall) = &mut self.hall {
            hall.settle(0);
        }
        let Coming { head, data, .. } = coming;
        let data = match data {
            Data::Kept(data) => data.freeze(),
            Data::Skipped(_) => Landed::new(),
        };
        Ok(Some((head.header, data)))
    }

    /// Whether there is room in the hall for so many bytes that come unasked.
    fn enters(&mut self, len: usize) -> bool {
        self.hall.as_mut().is_none_or(|hall| hall.ask(0, len as u64))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::pdu::{Outbox, op};

    fn anywhere(_: &Header) -> Fate {
        Fate::Asked(None)
    }

    /// However the stream is cut, and wherever it is put, the same PDUs come out.
    #[test]
    fn a_stream_is_the_same_pdus_however_it_arrives() {
        let blocks = |_: &Header| Fate::Unasked(Some(Site { offset: 3 * 512, block: 8192 }));
        for (digests, site, expected) in [(false, anywhere as fn(&Header) -> Fate, 7), (true, blocks, 33)] {
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
            while inbox
                .next(&framing, |_| Fate::Asked(Some(Site { offset: 0, block: 8192 })))
                .unwrap()
                .is_some()
            {}
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
        let (_, data) =
            inbox.next(&framing, |_| Fate::Asked(Some(Site { offset: 4096, block: 4096 }))).unwrap().unwrap();
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

    #[test]
    fn data_that_nobody_will_look_at_gets_no_memory() {
        let mut out = Outbox::default();
        out.data_digest = true;
        out.push(Header::new(op::DATA_OUT), &vec![7; 100_001]);
        out.push(Header::new(op::NOP_OUT), b"");
        let framing = Framing { data_digest: true, data_max: 1 << 20, ..Framing::default() };
        let (mut inbox, wire, mut came) = (Inbox::default(), out.drain(), Vec::new());
        let mut rest = &wire[..];
        while !rest.is_empty() {
            rest = &rest[inbox.place().put(&rest[..rest.len().min(5000)])..];
            inbox.received();
            while let Some((header, data)) = inbox.next(&framing, |_| Fate::Useless).unwrap() {
                came.push((header.opcode(), header.data_len(), data.len()));
            }
            assert!(inbox.capacity() <= HEADS, "{}", inbox.capacity());
        }
        assert_eq!(came, [(op::DATA_OUT, 100_001, 0), (op::NOP_OUT, 0, 0)]);
    }

    /// Each of a thousand connections could have all but the last byte of a segment of its own.
    #[test]
    fn segments_that_come_unasked_take_turns_and_what_was_asked_for_does_not_wait() {
        let gate = memory::Gate::new(4 << 20); // with a hall of 1 MiB
        let framing = Framing { data_max: 1 << 20, ..Framing::default() };
        let wire = wire(1, 256 << 10);
        let mut inboxes: Vec<Inbox> = (0..100).map(|_| Inbox::default()).collect();
        let unasked = |_: &Header| Fate::Unasked(None);
        for inbox in &mut inboxes {
            inbox.wait_in(Member::new(std::sync::Arc::clone(gate.hall())));
            let mut rest = &wire[..wire.len() - 1];
            while !rest.is_empty() && !inbox.is_held_up() {
                rest = &rest[inbox.place().put(rest)..];
                inbox.received();
                assert!(inbox.next(&framing, unasked).unwrap().is_none());
            }
            assert_eq!(inbox.is_starved(), rest.is_empty());
        }
        let next = inboxes.iter().position(Inbox::is_held_up).unwrap();
        assert!((1..=4).contains(&next) && inboxes[next..].iter().all(Inbox::is_held_up));
        assert!(inboxes.iter().map(Inbox::capacity).sum::<usize>() < (1 << 20) + 101 * HEADS);
        let turn = |inbox: &mut Inbox| inbox.poll_turn(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(turn(&mut inboxes[next]).is_pending());
        // The last byte of the first: its turn goes to the next in the queue.
        assert_eq!(inboxes[0].place().put(&wire[wire.len() - 1..]), 1);
        assert!(inboxes[0].next(&framing, unasked).unwrap().is_some());
        assert!(turn(&mut inboxes[next]).is_ready());
        assert!(inboxes[next].next(&framing, unasked).unwrap().is_none() && !inboxes[next].is_held_up());
        // What was asked for has room already.
        let mut asked = Inbox::default();
        asked.wait_in(Member::new(std::sync::Arc::clone(gate.hall())));
        asked.extend(&wire[..1000]);
        assert!(asked.next(&framing, |_| Fate::Asked(None)).unwrap().is_none() && asked.is_starved());
        drop(asked);
        drop(inboxes);
        assert_eq!((gate.hall().used(), gate.waiting()), (0, 0));
    }
}
