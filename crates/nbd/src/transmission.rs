//! The transmission phase: request headers in, verdicts and reply bytes out.
//!
//! Each request is judged once, against the terms the handshake agreed on ([`Terms`]): served, received
//! first (a write whose payload follows), or refused (its payload is drained, so that the stream stays in
//! step). Replies are encoded in one of three ways ([`Headers`]); whichever it is, a read's data is never
//! copied, and under structured replies a hole travels as a number.
//!
//! A [`Tag`] goes out with each request and must come back with its outcome; it cannot be cloned, so no
//! request is answered twice. Cookies are the client's and may repeat.
//! Facts: NBD `doc/proto.md`, "Transmission phase"; extended headers: its `extension-ext-header` branch.

use block::{Asked, Durability, Extent, Segment, Segments, partly, span};
use bytes::{Buf, BufMut};
use smallvec::SmallVec;

use crate::{
    error::{Errno, NbdError, ProtocolError},
    outbox::Outbox,
    proto::{
        BASE_ALLOCATION_ID, MAGIC_EXTENDED, MAGIC_REQUEST, MAGIC_REQUEST_EXT, MAGIC_SIMPLE, MAGIC_STRUCTURED,
        MAX_PAYLOAD, MAX_STRING, REQUEST_EXT_LEN, REQUEST_LEN, chunk, cmd, cmd_flag, state,
    },
};

/// Extents in one block status reply: 128 KiB of reply at most, far below the protocol's 2^20.
const EXTENTS_MAX: usize = 8192;

/// How far a block status looks, in bytes: what it may read of a volume's indirect blocks for one request is bounded (of a
/// volume of 16 KiB blocks 128 KiB for every 16 GiB, and as much for every extent). Clients go on where an answer ends.
const STATUS_WINDOW: u64 = 1 << 40;

/// What an operation may hold in memory beyond its data, charged to the connection's budget.
const BLOCK_STATUS_CHARGE: usize = EXTENTS_MAX * 16;

/// `CACHE` reads this much at a time, in bytes, and no more than that for one request: it is advice, and may be answered
/// before all of it was followed. A client must not have a whole volume read for the price of a header.
pub(crate) const CACHE_STEP: usize = 1 << 20;
const CACHE_MOST: u64 = 64 << 20;

/// A payload of a refused extended request is followed up to this length; beyond, the connection ends
/// (the protocol says so for anything above the advertised maximum; this is twice that).
const DRAIN_EXT_MAX: u64 = 2 * MAX_PAYLOAD as u64;

/// How requests and replies look on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Headers {
    /// Reads are answered with status and data.
    #[default]
    Simple,
    /// Replies in chunks, 32-bit lengths.
    Structured,
    /// Replies in chunks, 64-bit lengths, both ways.
    Extended,
}

impl Headers {
    /// Bytes of a request without its payload.
    pub(crate) const fn request_len(self) -> usize {
        match self {
            Self::Extended => REQUEST_EXT_LEN,
            Self::Simple | Self::Structured => REQUEST_LEN,
        }
    }
}

/// What the handshake agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes, as told to the client.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Bytes that the volume stores together.
    pub(crate) block: u32,
    pub(crate) headers: Headers,
    /// `base:allocation` was selected for this export.
    pub(crate) base_allocation: bool,
}

/// A request to serve.
#[derive(Debug)]
pub struct Request {
    /// What to do. Its range lies inside the size told to the client.
    pub op: Op,
    /// To be given back with the outcome.
    pub tag: Tag,
}

/// What a request asks for; offsets and lengths in bytes.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the protocol's: offset, length, data, durability")]
pub enum Op {
    /// At most [`MAX_PAYLOAD`] bytes.
    Read { offset: u64, len: usize },
    /// The payload has arrived whole.
    Write { offset: u64, data: Segments, durability: Durability },
    /// `allocate`: the range keeps its space (`NO_HOLE`).
    WriteZeroes { offset: u64, len: u64, allocate: bool, durability: Durability },
    /// Advisory.
    Trim { offset: u64, len: u64, durability: Durability },
    /// Covers every write answered before, of any connection.
    Flush,
    /// The client will read this soon.
    Cache { offset: u64, len: u64 },
    /// Runs of data and hole, at most `max_extents` of them.
    BlockStatus { offset: u64, len: u64, max_extents: usize },
}

/// A successful outcome.
#[derive(Debug)]
pub enum Outcome {
    /// Of a read: exactly the length asked for.
    Data(Segments),
    /// Of a block status.
    Extents(Vec<Extent>),
    /// Of everything else.
    Done,
}

/// Which request an outcome belongs to.
#[derive(Debug)]
pub struct Tag {
    cookie: u64,
    offset: u64,
    pub(crate) len: u64,
    kind: Kind,
    /// `DF` of a read, `REQ_ONE` of a block status.
    one: bool,
    /// Bytes charged to the budget until the outcome is known.
    pub(crate) charge: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    BlockStatus,
    Other,
}

/// A request header, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRequest {
    flags: u16,
    pub(crate) command: u16,
    cookie: u64,
    offset: u64,
    len: u64,
}

/// What to do about a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing follows the header.
    Serve(Request),
    /// A write: this many payload bytes follow.
    Receive { offset: u64, len: usize, durability: Durability, tag: Tag },
    /// Refused; this many payload bytes follow and mean nothing.
    Refuse { payload: u64, tag: Tag, error: NbdError },
    /// The client is leaving.
    Disconnect,
}

impl RawRequest {
    /// The header at the front of `bytes` and its length; `None` if it is not all there.
    pub(crate) fn decode(bytes: &[u8], headers: Headers) -> Result<Option<(Self, usize)>, ProtocolError> {
        let need = headers.request_len();
        let magic = if headers == Headers::Extended { MAGIC_REQUEST_EXT } else { MAGIC_REQUEST };
        let Some(mut bytes) = bytes.get(..need) else { return Ok(None) };
        let found = bytes.get_u32();
        if found != magic {
            return Err(ProtocolError::RequestMagic(found));
        }
        let (flags, command) = (bytes.get_u16(), bytes.get_u16());
        let (cookie, offset) = (bytes.get_u64(), bytes.get_u64());
        let len = if headers == Headers::Extended { bytes.get_u64() } else { u64::from(bytes.get_u32()) };
        Ok(Some((Self { flags, command, cookie, offset, len }, need)))
    }

    /// What the request will hold in memory while it is served, in bytes.
    pub(crate) fn charge(&self, block: u32) -> usize {
        let payload = self.payload();
        match self.command {
            cmd::READ => usize::try_from(span(self.offset, payload as u64, block)).unwrap_or(usize::MAX),
            // Blocks that it covers in part are read before what is new counts as dirty data.
            cmd::WRITE => {
                let beside = partly(self.offset, payload as u64, block);
                payload.saturating_add(usize::try_from(beside).unwrap_or(usize::MAX))
            }
            // The same, of whatever length: it has no payload, and whole blocks become holes.
            cmd::WRITE_ZEROES => usize::try_from(partly(self.offset, self.len, block)).unwrap_or(usize::MAX),
            cmd::BLOCK_STATUS => BLOCK_STATUS_CHARGE,
            cmd::CACHE => payload.min(CACHE_STEP),
            _ => 0,
        }
    }

    /// Its length, as long as that is allowed.
    fn payload(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX).min(MAX_PAYLOAD as usize)
    }

    /// Judges the request. Its charge goes into the tag.
    pub(crate) fn judge(&self, terms: &Terms) -> Result<Verdict, ProtocolError> {
        let extended = terms.headers == Headers::Extended;
        let has_payload =
            if extended { self.flags & cmd_flag::PAYLOAD_LEN != 0 } else { self.command == cmd::WRITE };
        let payload = if has_payload { self.len } else { 0 };
        if extended && payload > DRAIN_EXT_MAX {
            return Err(ProtocolError::PayloadTooLong(payload));
        }
        let mut tag = Tag {
            cookie: self.cookie,
            offset: self.offset,
            len: self.len,
            kind: match self.command {
                cmd::READ => Kind::Read,
                cmd::BLOCK_STATUS => Kind::BlockStatus,
                _ => Kind::Other,
            },
            one: self.flags & (cmd_flag::DF | cmd_flag::REQ_ONE) != 0,
            charge: 0,
        };
        match self.refusal(terms, has_payload) {
            Some(error) => return Ok(Verdict::Refuse { payload, tag, error }),
            None if self.command == cmd::DISC => return Ok(Verdict::Disconnect),
            None => {}
        }
        tag.charge = self.charge(terms.block);
        let (offset, len) = (self.offset, self.len);
        let durability = match self.flags & cmd_flag::FUA {
            0 => Durability::Cached,
            _ => Durability::Stable(Asked::Fua),
        };
        let op = match self.command {
            cmd::WRITE => return Ok(Verdict::Receive { offset, len: self.payload(), durability, tag }),
            cmd::READ => Op::Read { offset, len: self.payload() },
            cmd::FLUSH => Op::Flush,
            cmd::TRIM => Op::Trim { offset, len, durability },
            cmd::CACHE => Op::Cache { offset, len: len.min(CACHE_MOST) },
            cmd::WRITE_ZEROES => {
                Op::WriteZeroes { offset, len, allocate: self.flags & cmd_flag::NO_HOLE != 0, durability }
            }
            // BLOCK_STATUS: all else was refused above.
            _ => Op::BlockStatus {
                offset,
                len: len.min(STATUS_WINDOW),
                max_extents: if tag.one { 1 } else { EXTENTS_MAX },
            },
        };
        Ok(Verdict::Serve(Request { op, tag }))
    }

    /// Whether some block lies within its range.
    fn has_whole_block(&self, block: u32) -> bool {
        let block = u64::from(block.max(1));
        let first = self.offset.checked_next_multiple_of(block);
        let end = first.and_then(|first| first.checked_add(block));
        end.is_some_and(|end| end <= self.offset.saturating_add(self.len))
    }

    /// Why the request cannot be served, if so.
    fn refusal(&self, terms: &Terms, has_payload: bool) -> Option<NbdError> {
        const fn refuse(errno: Errno, why: &'static str) -> Option<NbdError> {
            Some(NbdError::new(errno, why))
        }
        let (changes, flags_allowed) = match self.command {
            cmd::READ if terms.headers == Headers::Simple => (false, 0),
            cmd::READ => (false, cmd_flag::DF),
            cmd::WRITE => (true, if terms.headers == Headers::Extended { cmd_flag::PAYLOAD_LEN } else { 0 }),
            cmd::TRIM => (true, 0),
            cmd::WRITE_ZEROES => (true, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO),
            cmd::DISC | cmd::FLUSH | cmd::CACHE => (false, 0),
            cmd::BLOCK_STATUS => (false, cmd_flag::REQ_ONE),
            _ => return refuse(Errno::Invalid, "unknown command"),
        };
        if changes && terms.read_only {
            return refuse(Errno::Perm, "the export is read-only");
        }
        // FUA is legal on every command; clients are known to set it on reads.
        if self.flags & !(flags_allowed | cmd_flag::FUA) != 0 {
            return refuse(Errno::Invalid, "a flag that this command does not have");
        }
        if self.command == cmd::WRITE && !has_payload {
            return refuse(Errno::Invalid, "a write without payload");
        }
        if self.command == cmd::DISC {
            return None;
        }
        if self.command == cmd::FLUSH {
            return match (self.offset, self.len) {
                (0, 0) => None,
                _ => refuse(Errno::Invalid, "a flush has neither offset nor length"),
            };
        }
        if self.offset.checked_add(self.len).is_none_or(|end| end > terms.size) {
            let no_space = matches!(self.command, cmd::WRITE | cmd::WRITE_ZEROES);
            let errno = if no_space { Errno::NoSpace } else { Errno::Invalid };
            return refuse(errno, "beyond the end of the export");
        }
        match self.command {
            cmd::READ if self.len > u64::from(MAX_PAYLOAD) => {
                refuse(Errno::Overflow, "a read longer than the maximum payload")
            }
            cmd::WRITE if self.len > u64::from(MAX_PAYLOAD) => {
                refuse(Errno::Invalid, "a write longer than the maximum payload")
            }
            // Taking space for zeroes costs what writing costs, and so does changing parts of blocks; leaving holes does not.
            cmd::WRITE_ZEROES
                if self.flags & cmd_flag::FAST_ZERO != 0
                    && (self.flags & cmd_flag::NO_HOLE != 0 || !self.has_whole_block(terms.block)) =>
            {
                refuse(Errno::NotSupported, "this is not faster than writing zeroes")
            }
            cmd::BLOCK_STATUS if !terms.base_allocation => {
                refuse(Errno::Invalid, "no metadata context was selected")
            }
            cmd::BLOCK_STATUS if self.len == 0 => refuse(Errno::Invalid, "block status of nothing"),
            _ => None,
        }
    }
}

/// Encodes the reply to a request. Whether it was a success: a volume that answers a read with another
/// length than was asked for is answered with `EIO`, for the client would lose step.
pub(crate) fn reply(
    out: &mut Outbox,
    headers: Headers,
    tag: &Tag,
    outcome: Result<Outcome, NbdError>,
) -> Result<(), Errno> {
    let outcome = outcome.and_then(|outcome| {
        let fits = match (&outcome, tag.kind) {
            (Outcome::Data(segments), Kind::Read) => {
                let total = segments.iter().try_fold(0_usize, |sum, segment| sum.checked_add(segment.len()));
                total.and_then(|total| u64::try_from(total).ok()) == Some(tag.len)
            }
            (Outcome::Extents(extents), Kind::BlockStatus) => extents.iter().any(|extent| extent.len > 0),
            (Outcome::Done, Kind::Other) => true,
            _ => false,
        };
        if fits { Ok(outcome) } else { Err(NbdError::new(Errno::Io, "the volume gave another length")) }
    });
    match outcome {
        Ok(Outcome::Data(segments)) if headers == Headers::Simple => {
            simple(out, tag, 0);
            for segment in segments {
                push(out, segment);
            }
        }
        Ok(Outcome::Data(segments)) => read_chunks(out, headers, tag, segments),
        Ok(Outcome::Extents(extents)) => status_chunk(out, headers, tag, &extents),
        Ok(Outcome::Done) if headers == Headers::Extended => {
            chunk_head(out, headers, tag, chunk::DONE, chunk::NONE, 0);
        }
        Ok(Outcome::Done) => simple(out, tag, 0),
        Err(error) => {
            error_reply(out, headers, tag, &error);
            return Err(error.errno);
        }
    }
    Ok(())
}

fn push(out: &mut Outbox, segment: Segment) {
    match segment {
        Segment::Data(bytes) => out.data(bytes),
        Segment::Zero(len) => out.zeroes(len),
    }
}

fn simple(out: &mut Outbox, tag: &Tag, errno: u32) {
    let mut head = [0; 16];
    let mut w = head.as_mut_slice();
    w.put_u32(MAGIC_SIMPLE);
    w.put_u32(errno);
    w.put_u64(tag.cookie);
    out.head(&head);
}

fn chunk_head(out: &mut Outbox, headers: Headers, tag: &Tag, flags: u16, kind: u16, len: usize) {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let mut head = [0; 32];
    let mut w = head.as_mut_slice();
    let extended = headers == Headers::Extended;
    w.put_u32(if extended { MAGIC_EXTENDED } else { MAGIC_STRUCTURED });
    w.put_u16(flags);
    w.put_u16(kind);
    w.put_u64(tag.cookie);
    if extended {
        w.put_u64(tag.offset);
        w.put_u64(u64::from(len));
    } else {
        w.put_u32(len);
    }
    let unused = w.len();
    out.head(head.get(..head.len().saturating_sub(unused)).unwrap_or_default());
}

/// One content chunk per run of data or zeroes; all in one if the client said `DF` and there is any data.
fn read_chunks(out: &mut Outbox, headers: Headers, tag: &Tag, segments: Segments) {
    let mut runs: SmallVec<[(bool, usize); 4]> = SmallVec::new();
    let mut any_data = false;
    for segment in &segments {
        let hole = matches!(segment, Segment::Zero(_));
        any_data |= !hole && !segment.is_empty();
        match runs.last_mut() {
            _ if segment.is_empty() => {}
            Some((last, len)) if *last == hole => *len = len.saturating_add(segment.len()),
            _ => runs.push((hole, segment.len())),
        }
    }
    if tag.one && any_data {
        runs.clear();
        runs.push((false, usize::try_from(tag.len).unwrap_or(usize::MAX)));
    }
    if runs.is_empty() {
        chunk_head(out, headers, tag, chunk::DONE, chunk::NONE, 0);
        return;
    }
    let mut rest = segments.into_iter().filter(|segment| !segment.is_empty());
    let mut at = tag.offset;
    let last = runs.len().saturating_sub(1);
    for (index, (hole, len)) in runs.into_iter().enumerate() {
        let flags = if index == last { chunk::DONE } else { 0 };
        if hole {
            chunk_head(out, headers, tag, flags, chunk::OFFSET_HOLE, 12);
            out.head(&at.to_be_bytes());
            out.head(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        } else {
            chunk_head(out, headers, tag, flags, chunk::OFFSET_DATA, len.saturating_add(8));
            out.head(&at.to_be_bytes());
        }
        at = at.saturating_add(len as u64);
        let mut left = len;
        while left > 0 {
            let Some(segment) = rest.next() else { break };
            left = left.saturating_sub(segment.len());
            if !hole {
                push(out, segment);
            }
        }
    }
}

/// Extents are cut to the range asked for, so that neither a client nor `REQ_ONE` sees more than it asked.
fn status_chunk(out: &mut Outbox, headers: Headers, tag: &Tag, extents: &[Extent]) {
    let mut body = Vec::with_capacity(extents.len().saturating_mul(16).saturating_add(8));
    body.put_u32(BASE_ALLOCATION_ID);
    let mut left = tag.len;
    let mut runs: Vec<(u64, u32)> = Vec::with_capacity(extents.len());
    for extent in extents {
        let len = extent.len.min(left);
        left = left.saturating_sub(len);
        let status = if extent.hole { state::HOLE | state::ZERO } else { 0 };
        match runs.last_mut() {
            _ if len == 0 => {}
            Some((sum, last)) if *last == status => *sum = sum.saturating_add(len),
            _ => runs.push((len, status)),
        }
    }
    runs.truncate(if tag.one { 1 } else { EXTENTS_MAX });
    if headers == Headers::Extended {
        body.put_u32(u32::try_from(runs.len()).unwrap_or(u32::MAX));
        for (len, status) in runs {
            body.put_u64(len);
            body.put_u64(u64::from(status));
        }
        chunk_head(out, headers, tag, chunk::DONE, chunk::BLOCK_STATUS_EXT, body.len());
    } else {
        for (len, status) in runs {
            // A compact request asks for less than 4 GiB, and so do its parts.
            body.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
            body.put_u32(status);
        }
        chunk_head(out, headers, tag, chunk::DONE, chunk::BLOCK_STATUS, body.len());
    }
    out.data(body.into());
}

fn error_reply(out: &mut Outbox, headers: Headers, tag: &Tag, error: &NbdError) {
    let errno = error.errno as u32;
    if headers == Headers::Simple {
        simple(out, tag, errno);
        return;
    }
    let mut text = error.message.as_ref();
    if text.len() > MAX_STRING {
        // A character of UTF-8 has at most four bytes, so one of these cuts lies between two.
        text =
            (MAX_STRING.saturating_sub(3)..=MAX_STRING).rev().find_map(|cut| text.get(..cut)).unwrap_or("");
    }
    // An offset is told only where it lies in the request, as the protocol demands.
    let end = tag.offset.saturating_add(tag.len);
    let offset = error.offset.map(|at| at.max(tag.offset)).filter(|at| *at < end);
    let fixed = if offset.is_some() { 14 } else { 6 };
    let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
    chunk_head(out, headers, tag, chunk::DONE, kind, text.len().saturating_add(fixed));
    out.head(&errno.to_be_bytes());
    out.head(&u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
    out.head(text.as_bytes());
    if let Some(offset) = offset {
        out.head(&offset.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of one byte to a cold block held all of that block, and was charged with the byte.
    #[test]
    fn a_write_is_charged_with_the_blocks_it_covers_in_part() {
        let charge = |command: u16, offset: u64, len: u64| {
            RawRequest { flags: 0, command, cookie: 1, offset, len }.charge(128 << 10)
        };
        let write = |offset, len| charge(cmd::WRITE, offset, len);
        assert_eq!(write(5, 1), 1 + (128 << 10));
        assert_eq!(write(100, 128 << 10), 3 * (128 << 10));
        assert_eq!(write(0, 256 << 10), 256 << 10, "nothing beside it");
        let zero = |offset, len| charge(cmd::WRITE_ZEROES, offset, len);
        assert_eq!(zero(5, 1), 128 << 10);
        assert_eq!(zero(100, 1 << 30), 2 * (128 << 10));
        assert_eq!(zero(0, 1 << 40), 0, "whole blocks become holes");
    }
}
