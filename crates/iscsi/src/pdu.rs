//! PDUs as bytes: framing what comes in, building what goes out (RFC 7143 §11).
//!
//! [`Framing`] finds one PDU at the head of a buffer and says how much is missing otherwise; it never
//! believes a length beyond what was negotiated. [`Outbox`] is the other way: small parts (headers,
//! padding, digests, sense) are collected in one arena, payloads stay where they are, and the socket
//! takes both as one vector of slices.

use std::{collections::VecDeque, io::IoSlice};

use block::Segment;
use bytes::{Buf as _, Bytes};

/// Basic header segment, in bytes.
pub const BHS: usize = 48;
/// A tag that stands for none.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes.
#[expect(missing_docs, reason = "the names are the standard's")]
pub mod op {
    pub const NOP_OUT: u8 = 0x00;
    pub const COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// Reasons of a Reject PDU (RFC 7143 §11.17.1).
#[expect(missing_docs, reason = "the names are the standard's")]
pub mod reject {
    pub const SNACK: u8 = 0x03;
    pub const PROTOCOL_ERROR: u8 = 0x04;
    pub const COMMAND_NOT_SUPPORTED: u8 = 0x05;
    pub const TOO_MANY_IMMEDIATE: u8 = 0x06;
    pub const TASK_IN_PROGRESS: u8 = 0x07;
    pub const INVALID_FIELD: u8 = 0x09;
}

/// A basic header segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; BHS]);

impl Header {
    /// A header to be sent, with the final bit.
    pub fn new(opcode: u8) -> Self {
        let mut h = [0; BHS];
        h[0] = opcode;
        h[1] = 0x80;
        Self(h)
    }
    /// Opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }
    /// Delivered outside the command window.
    pub fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }
    /// Byte 1: flags, which differ by opcode.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }
    /// F bit.
    pub fn is_final(&self) -> bool {
        self.0[1] & 0x80 != 0
    }
    fn ahs_len(&self) -> usize {
        usize::from(self.0[4]).saturating_mul(4)
    }
    /// Bytes of its data segment, as it says.
    pub fn data_len(&self) -> usize {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]]) as usize
    }
    /// Logical unit number.
    pub fn lun(&self) -> [u8; 8] {
        let h = &self.0;
        [h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]
    }
    /// Initiator task tag.
    pub fn itt(&self) -> u32 {
        u32::from_be_bytes([self.0[16], self.0[17], self.0[18], self.0[19]])
    }
    /// Bytes 20–23: target transfer tag, expected length or referenced task tag.
    pub fn word20(&self) -> u32 {
        u32::from_be_bytes([self.0[20], self.0[21], self.0[22], self.0[23]])
    }
    /// Command sequence number.
    pub fn cmd_sn(&self) -> u32 {
        u32::from_be_bytes([self.0[24], self.0[25], self.0[26], self.0[27]])
    }
    /// Bytes 28–31: the StatSN the initiator expects.
    pub fn exp_stat_sn(&self) -> u32 {
        u32::from_be_bytes([self.0[28], self.0[29], self.0[30], self.0[31]])
    }
    /// Bytes 32–35: RefCmdSN of a task management request.
    pub fn word32(&self) -> u32 {
        u32::from_be_bytes([self.0[32], self.0[33], self.0[34], self.0[35]])
    }
    /// Data sequence number.
    pub fn data_sn(&self) -> u32 {
        u32::from_be_bytes([self.0[36], self.0[37], self.0[38], self.0[39]])
    }
    /// Buffer offset.
    pub fn offset(&self) -> u32 {
        u32::from_be_bytes([self.0[40], self.0[41], self.0[42], self.0[43]])
    }
    /// The CDB of a command.
    pub fn cdb(&self) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&self.0[32..48]);
        cdb
    }
    /// Sets four bytes, at 16, 20, 24, 28, 32, 36, 40 or 44.
    pub fn set(&mut self, at: usize, value: u32) -> &mut Self {
        if let Some(word) = self.0.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *word = value.to_be_bytes();
        }
        self
    }
}

/// Why a connection's bytes make no sense any more: it is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// A data segment above what we declared.
    #[error("data segment of {len} bytes, {max} allowed")]
    TooLong {
        /// Bytes claimed.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Header or data digest.
    #[error("{0} digest mismatch")]
    Digest(&'static str),
    /// A PDU that has no place here, after which the state is unclear.
    #[error("{0}")]
    Protocol(&'static str),
}

/// What the bytes at the head of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A PDU that is not all there.
    Partial,
    /// A whole PDU.
    Whole {
        /// Its header.
        header: Header,
        /// First byte of its data segment.
        data_at: usize,
        /// Bytes of data, without padding.
        data_len: usize,
        /// Bytes of the PDU with padding and digests.
        total: usize,
    },
}

/// How PDUs are cut out of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// CRC32C after the header.
    pub header_digest: bool,
    /// CRC32C after the data.
    pub data_digest: bool,
    /// Longest data segment taken.
    pub data_max: usize,
}

fn digest_at(buf: &[u8], at: usize) -> Option<u32> {
    let digest = buf.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*digest)) // the wire's order, RFC 7143 §13.1
}

/// What is known of a PDU once its header is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) header: Header,
    /// Bytes before the data: the header, what extends it, and their digest.
    pub(crate) len: usize,
    /// Bytes of data, without padding.
    pub(crate) data_len: usize,
    /// A digest follows the data.
    has_digest: bool,
}

impl Head {
    /// Bytes behind the data: padding and digest.
    pub(crate) fn tail_len(&self) -> usize {
        let padding = self.data_len.next_multiple_of(4).saturating_sub(self.data_len);
        padding.saturating_add(if self.has_digest { 4 } else { 0 })
    }

    /// Compares the digest of the data, which is in these parts, and its padding with the one in `tail`.
    pub(crate) fn check<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a [u8]>,
        tail: &'a [u8],
    ) -> Result<(), Fatal> {
        if !self.has_digest {
            return Ok(());
        }
        let padding = tail.len().saturating_sub(4);
        let parts = parts.into_iter().chain(tail.get(..padding));
        let sum = parts.fold(0, crc32c::crc32c_append);
        if digest_at(tail, padding) == Some(sum) { Ok(()) } else { Err(Fatal::Digest("data")) }
    }
}

impl Framing {
    /// Bytes before the data, of most PDUs: none has extended its header.
    pub(crate) const fn head_len(&self) -> usize {
        if self.header_digest { BHS + 4 } else { BHS }
    }

    /// What the head of `buf` says, if all of it is there. Its digest is checked here.
    pub(crate) fn head(&self, buf: &[u8]) -> Result<Option<Head>, Fatal> {
        let Some(head) = buf.first_chunk::<BHS>() else { return Ok(None) };
        let header = Header(*head);
        let data_len = header.data_len();
        if data_len > self.data_max {
            return Err(Fatal::TooLong { len: data_len, max: self.data_max });
        }
        // Below 1 KiB and 16 MiB, so that none of these sums overflows.
        let head_len = BHS.saturating_add(header.ahs_len());
        let len = head_len.saturating_add(if self.header_digest { 4 } else { 0 });
        let Some(bytes) = buf.get(..head_len).filter(|_| buf.len() >= len) else { return Ok(None) };
        if self.header_digest && digest_at(buf, head_len) != Some(crc32c::crc32c(bytes)) {
            return Err(Fatal::Digest("header"));
        }
        Ok(Some(Head { header, len, data_len, has_digest: self.data_digest && data_len > 0 }))
    }

    /// Looks at the head of `buf` for a whole PDU. Digests are checked here.
    ///
    /// # Errors
    /// The stream cannot be followed any further.
    pub fn next(&self, buf: &[u8]) -> Result<Frame, Fatal> {
        let Some(head) = self.head(buf)? else { return Ok(Frame::Partial) };
        let data_end = head.len.saturating_add(head.data_len);
        let total = data_end.saturating_add(head.tail_len());
        let (Some(data), Some(tail)) = (buf.get(head.len..data_end), buf.get(data_end..total)) else {
            return Ok(Frame::Partial);
        };
        head.check([data], tail)?;
        Ok(Frame::Whole { header: head.header, data_at: head.len, data_len: head.data_len, total })
    }
}

/// Payloads up to this are copied beside their header: a slice of their own costs more.
const COPY_MAX: usize = 256;
/// Arena bytes already sent that are worth moving the rest for.
const ARENA_SLACK: usize = 64 << 10;
/// What an empty outbox keeps for what comes next, in bytes and items: what 4 MiB need in PDUs of 8 KiB or blocks of 4 KiB, and
/// not what one long answer in many small parts needed once. Nobody counts it, and it is there as often as there are sessions.
const ARENA_KEPT: usize = 32 << 10;
const ITEMS_KEPT: usize = 2048;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
enum Item {
    /// This many bytes of the arena.
    Small(usize),
    Data(Bytes),
    Zero(usize),
}

/// PDUs on their way to the socket.
#[derive(Debug, Default)]
pub struct Outbox {
    arena: Vec<u8>,
    /// Arena bytes sent.
    arena_at: usize,
    items: VecDeque<Item>,
    bytes: usize,
    /// Bytes that have left, in all.
    gone: u64,
    /// Digests to append.
    pub header_digest: bool,
    /// Digests to append.
    pub data_digest: bool,
}

impl Outbox {
    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes that have left, in all.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn small(&mut self, bytes: &[u8]) {
        self.arena.extend_from_slice(bytes);
        self.bytes = self.bytes.saturating_add(bytes.len());
        match self.items.back_mut() {
            Some(Item::Small(len)) => *len = len.saturating_add(bytes.len()),
            _ => self.items.push_back(Item::Small(bytes.len())),
        }
    }

    fn piece(&mut self, piece: Segment) {
        let len = piece.len();
        match piece {
            Segment::Data(bytes) if len <= COPY_MAX => return self.small(&bytes),
            Segment::Data(bytes) => self.items.push_back(Item::Data(bytes)),
            Segment::Zero(len) => self.items.push_back(Item::Zero(len)),
        }
        self.bytes = self.bytes.saturating_add(len);
    }

    fn header(&mut self, mut header: Header, data_len: usize) {
        let [_, a, b, c] = u32::try_from(data_len).unwrap_or(0).to_be_bytes();
        (header.0[5], header.0[6], header.0[7]) = (a, b, c);
        self.small(&header.0);
        if self.header_digest {
            self.small(&crc32c::crc32c(&header.0).to_le_bytes());
        }
    }

    fn close(&mut self, data_len: usize, mut crc: u32) {
        let pad = data_len.next_multiple_of(4).saturating_sub(data_len);
        let padding = [0_u8; 3];
        let padding = padding.get(..pad).unwrap_or(&[]);
        if pad > 0 {
            self.small(padding);
        }
        if self.data_digest && data_len > 0 {
            crc = crc32c::crc32c_append(crc, padding);
            self.small(&crc.to_le_bytes());
        }
    }

    /// Queues a PDU with a small data segment.
    pub fn push(&mut self, header: Header, data: &[u8]) {
        self.header(header, data.len());
        if !data.is_empty() {
            self.small(data);
            let crc = if self.data_digest { crc32c::crc32c(data) } else { 0 };
            self.close(data.len(), crc);
        }
    }

    /// Queues a PDU whose payload stays where it is.
    pub fn push_pieces(&mut self, header: Header, data_len: usize, pieces: impl Iterator<Item = Segment>) {
        self.header(header, data_len);
        let mut crc = 0;
        for piece in pieces {
            if self.data_digest {
                crc = match &piece {
                    Segment::Data(bytes) => crc32c::crc32c_append(crc, bytes),
                    Segment::Zero(len) => zero_slices(*len).fold(crc, crc32c::crc32c_append),
                };
            }
            self.piece(piece);
        }
        self.close(data_len, crc);
    }

    /// Fills `slices` with what comes next; returns how many are filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut arena_at = self.arena_at;
        let mut count = 0_usize;
        let mut room = slices.iter_mut();
        let mut put = |bytes: &'a [u8]| {
            room.next().is_some_and(|slot| {
                *slot = IoSlice::new(bytes);
                count = count.saturating_add(1);
                true
            })
        };
        'all: for item in &self.items {
            let fits = match item {
                Item::Small(len) => {
                    let end = arena_at.saturating_add(*len);
                    let bytes = self.arena.get(arena_at..end).unwrap_or(&[]);
                    arena_at = end;
                    put(bytes)
                }
                Item::Data(bytes) => put(bytes),
                Item::Zero(len) => {
                    for zeroes in zero_slices(*len) {
                        if !put(zeroes) {
                            break 'all;
                        }
                    }
                    true
                }
            };
            if !fits {
                break;
            }
        }
        count
    }

    /// The socket took this many bytes.
    pub fn sent(&mut self, mut n: usize) {
        self.bytes = self.bytes.saturating_sub(n);
        self.gone = self.gone.wrapping_add(n as u64);
        while n > 0 {
            let Some(front) = self.items.front_mut() else { break };
            let left = match front {
                Item::Small(len) => {
                    let take = n.min(*len);
                    self.arena_at = self.arena_at.saturating_add(take);
                    *len = len.saturating_sub(take);
                    n = n.saturating_sub(take);
                    *len
                }
                Item::Data(bytes) => {
                    let take = n.min(bytes.len());
                    bytes.advance(take);
                    n = n.saturating_sub(take);
                    bytes.len()
                }
                Item::Zero(len) => {
                    let take = n.min(*len);
                    *len = len.saturating_sub(take);
                    n = n.saturating_sub(take);
                    *len
                }
            };
            if left == 0 {
                self.items.pop_front();
            }
        }
        if self.items.is_empty() {
            self.arena.clear();
            self.arena_at = 0;
            self.arena.shrink_to(ARENA_KEPT);
            self.items.shrink_to(ITEMS_KEPT);
            return;
        }
        if self.arena_at > ARENA_SLACK {
            self.arena.drain(..self.arena_at);
            self.arena_at = 0;
        }
        // An initiator may always leave a little. Only what is four times too large is given back: steady traffic allocates nothing.
        let (arena, items) = (self.arena.len().max(ARENA_SLACK), self.items.len().max(ITEMS_KEPT));
        if self.arena.capacity() / 4 > arena {
            self.arena.shrink_to(arena.saturating_mul(2));
        }
        if self.items.capacity() / 4 > items {
            self.items.shrink_to(items.saturating_mul(2));
        }
    }

    /// All of it in one piece, as the wire sees it: for tests.
    pub fn drain(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let n = self.slices(&mut slices);
            let before = out.len();
            slices.iter().take(n).for_each(|slice| out.extend_from_slice(slice));
            let sent = out.len().saturating_sub(before);
            self.sent(sent);
        }
        out
    }
}

fn zero_slices(len: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut left = len;
    std::iter::from_fn(move || {
        let take = left.min(ZEROES.len());
        left = left.saturating_sub(take);
        ZEROES.get(..take).filter(|zeroes| !zeroes.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_standards_own_examples() {
        // RFC 7143 appendix A.4: 32 bytes of zeroes.
        assert_eq!(crc32c::crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn what_the_outbox_writes_the_framing_reads() {
        for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut out = Outbox { header_digest, data_digest, ..Outbox::default() };
            out.push(Header::new(op::NOP_IN), b"ping!");
            let pieces = [Segment::Data(Bytes::from(vec![7; 5000])), Segment::Zero(100_001)];
            out.push_pieces(Header::new(op::DATA_IN), 105_001, pieces.into_iter());
            let wire = out.drain();
            let framing = Framing { header_digest, data_digest, data_max: 1 << 20 };
            let Frame::Whole { data_at, data_len, total, .. } = framing.next(&wire).unwrap() else {
                panic!()
            };
            assert_eq!(&wire[data_at..data_at + data_len], b"ping!");
            let rest = &wire[total..];
            let Frame::Whole { data_at, data_len, total, .. } = framing.next(rest).unwrap() else { panic!() };
            assert_eq!((data_len, total), (105_001, rest.len()));
            assert_eq!((rest[data_at + 4999], rest[data_at + 5000]), (7, 0));
            if data_digest {
                let mut bad = rest.to_vec();
                bad[data_at + 60_000] ^= 1;
                assert_eq!(framing.next(&bad), Err(Fatal::Digest("data")));
            }
        }
    }

    /// Some 8 MiB each, for as long as a session lasted.
    #[test]
    fn an_outbox_keeps_little_of_what_it_held_once() {
        let with_much = || {
            let mut out = Outbox::default();
            for _ in 0..1 << 16 {
                out.push_pieces(Header::new(op::DATA_IN), 512, std::iter::once(Segment::Zero(512)));
            }
            assert!(out.arena.capacity() >= 3 << 20 && out.items.capacity() >= 1 << 17);
            out
        };
        let mut out = with_much();
        out.sent(out.len());
        assert!(out.is_empty());
        assert!(out.arena.capacity() <= ARENA_KEPT && out.items.capacity() <= 2 * ITEMS_KEPT);

        let mut out = with_much();
        while out.len() > 512 {
            let next = (out.len() - 512).min(8192);
            out.sent(next);
        }
        let kept = (out.arena.capacity(), out.items.capacity());
        assert!(kept.0 < 5 * ARENA_SLACK && kept.1 < 5 * ITEMS_KEPT, "{kept:?}");
        assert_eq!(out.drain(), [0; 512]);
    }

    #[test]
    fn what_an_outbox_keeps_serves_steady_traffic() {
        let mut out = Outbox::default();
        let push = |out: &mut Outbox| {
            out.push_pieces(Header::new(op::DATA_IN), 8192, std::iter::once(Segment::Zero(8192)));
        };
        let take = |out: &mut Outbox, len: usize| {
            let room = (out.arena.capacity(), out.items.capacity());
            out.sent(len);
            assert_eq!((out.arena.capacity(), out.items.capacity()), room);
        };
        for _ in 0..3 {
            (0..512).for_each(|_| push(&mut out));
            let all = out.len();
            take(&mut out, all);
        }
        push(&mut out);
        for _ in 0..10_000 {
            push(&mut out);
            take(&mut out, BHS + 8192);
        }
    }

    #[test]
    fn a_length_beyond_the_declared_one_is_refused_before_anything_is_stored() {
        let mut header = Header::new(op::DATA_OUT);
        (header.0[5], header.0[6], header.0[7]) = (0xff, 0xff, 0xff);
        let framing = Framing { data_max: 8192, ..Framing::default() };
        assert!(matches!(framing.next(&header.0), Err(Fatal::TooLong { .. })));
    }
}
