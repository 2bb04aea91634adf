//! One NBD connection as a value: bytes in, requests out, outcomes in, bytes out.
//!
//! ```text
//!  handle_bytes / receive ─▶ [rx] ─▶ poll_request ─▶ Request ─▶ (somebody serves it)
//!  transmit / poll_transmit ◀─ [outbox] ◀─ complete(Tag, outcome) ◀───────┘  in any order
//! ```
//!
//! Memory is bounded by admission, not by hope: a header is taken from the receive buffer only when the
//! request's data fits the connection's limits, and the gate that all connections share lets it in, counting what is
//! in flight and what still waits to be sent. Until then nothing is read, and the client's own socket fills up; its
//! turn comes ([`Session::poll_turn`]). One request may exceed the connection's limits.
//!
//! Write payloads land in memory of their own, for each block of the volume; large ones straight from the socket.

use std::{
    fmt,
    io::IoSlice,
    sync::Arc,
    task::{Context, Poll},
};

use block::{Durability, Segment, Segments, detach};
use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use disk::{Ahead, Landings, Place, Site};
use memory::{Client, Gate, Member};

use crate::{
    error::{Errno, NbdError, ProtocolError},
    export::{Export, Exports},
    handshake::{Handshake, OPTION_MAX, Step, greeting},
    outbox::Outbox,
    proto::OPTION_LEN,
    stats::Counters,
    tls::Security,
    transmission::{Headers, Op, Outcome, RawRequest, Request, Tag, Terms, Verdict, reply},
};

/// Receive buffer of a connection, in bytes: holds any option, and some thousand request headers.
const RX: usize = 128 << 10;
const _: () = assert!(OPTION_MAX + OPTION_LEN < RX, "an option must fit the receive buffer whole");

/// The same for a client that has not chosen an export and sent nothing longer: strangers are many, and what they have
/// to say is short.
const RX_STRANGER: usize = 4 << 10;

/// The same while payloads are so long that what comes with their headers is best little: it is copied, and the rest is
/// received where it belongs.
const RX_LONG: usize = 4 << 10;

/// A payload of which a quarter of the room or more is missing is received straight into its buffer.
const DIRECT_PART: usize = 4;

/// The shortest payload of those that are long.
const LONG: usize = RX / DIRECT_PART;

/// Replies to options wait for the client to read them beyond this many bytes: a hundred strangers that read nothing
/// take no room that requests need.
const HANDSHAKE_OUT: usize = 64 << 10;

/// Options answered at a time: however many came together, who serves the client looks between them at what ends strangers,
/// and lets others run.
const OPTIONS_AT_ONCE: u32 = 64;

/// Replies are sent when this much waits, in bytes, though more requests could be answered first: the first of a long
/// batch should not wait for the last.
const BATCH: usize = 512 << 10;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight.
    pub requests: usize,
    /// Bytes of requests in flight and of replies not yet sent. One request may exceed it.
    pub bytes: usize,
}

impl Default for Limits {
    /// 1024 requests and 64 MiB: twice the largest payload, so that one can be sent while the next is read.
    fn default() -> Self {
        Self { requests: 1024, bytes: 64 << 20 }
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Options are being haggled over.
    Handshake,
    /// What waits to be sent is the last that is sent in the clear: then TLS begins, and [`Session::secured`] goes on.
    Securing,
    /// Requests are served.
    Transmission,
    /// No more is read; what is in flight is finished and sent.
    Leaving,
}

#[derive(Debug)]
enum State {
    Handshake(Handshake),
    Transmission(Terms),
}

/// A payload on its way in.
#[derive(Debug)]
enum Incoming {
    /// Of a write that will be served.
    Payload { offset: u64, durability: Durability, tag: Tag, data: Landings },
    /// Of a request that was refused; the answer follows the last byte.
    Drain { missing: u64, tag: Tag, error: NbdError },
}

/// One connection. Owns no socket, task or clock.
pub struct Session {
    exports: Arc<dyn Exports>,
    limits: Limits,
    gate: Member,
    state: State,
    export: Option<Export>,
    rx: BytesMut,
    incoming: Option<Incoming>,
    /// The header behind a payload, if it came along.
    ahead: Ahead,
    /// The last payload was [`LONG`].
    is_long: bool,
    out: Outbox,
    /// Requests handed out and not completed.
    in_flight: usize,
    /// Their charges.
    charged: usize,
    /// The parser can do nothing before more bytes come.
    starved: bool,
    /// Nor before this export comes, which the client asked for.
    awaiting: Option<String>,
    leaving: bool,
    /// The client is gone: see [`Session::hear_out`].
    hearing_out: bool,
    /// The client said good-bye: what it asked for before that is to be done.
    has_disconnected: bool,
    /// Nothing is said any more: see [`Session::discard_output`].
    is_mute: bool,
    securing: bool,
    /// New requests get `ESHUTDOWN`.
    refusing: bool,
    /// Memory that whatever its bytes come from held when it was last said.
    below: usize,
    counters: Counters,
}

impl Session {
    /// A connection at its first byte; the greeting is ready to be sent.
    pub fn new(exports: Arc<dyn Exports>, limits: Limits, gate: Arc<Gate>) -> Self {
        let mut out = Outbox::default();
        greeting(&mut out);
        Self {
            exports,
            limits,
            gate: Member::guest(gate, &Client::new(None, "somebody")),
            state: State::Handshake(Handshake::default()),
            export: None,
            rx: BytesMut::new(),
            incoming: None,
            ahead: Ahead::default(),
            is_long: false,
            out,
            in_flight: 0,
            charged: 0,
            starved: true,
            awaiting: None,
            leaving: false,
            hearing_out: false,
            has_disconnected: false,
            is_mute: false,
            securing: false,
            refusing: false,
            below: 0,
            counters: Counters::default(),
        }
    }

    /// How those know it who watch the gate; when they expel it, it is to be ended.
    pub fn known_as(&mut self, client: &Arc<Client>) {
        self.gate = Member::guest(Arc::clone(self.gate.gate()), client);
    }

    /// See [`known_as`](Self::known_as).
    pub fn client(&self) -> &Arc<Client> {
        self.gate.client()
    }

    /// Clients may ask for TLS, or have to.
    pub fn offer_tls(&mut self, is_required: bool) {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.security = if is_required { Security::Required } else { Security::Offered };
        }
    }

    /// TLS is on: what comes from now on is what was said under it.
    pub fn secured(&mut self) {
        self.securing = false;
        self.starved = true;
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        match self.state {
            _ if self.leaving => Phase::Leaving,
            _ if self.securing => Phase::Securing,
            State::Handshake(_) => Phase::Handshake,
            State::Transmission(_) => Phase::Transmission,
        }
    }

    /// Options answered so far, without those that only lead into TLS.
    pub(crate) fn answered(&self) -> u64 {
        match &self.state {
            State::Handshake(handshake) => handshake.answered,
            State::Transmission(_) => 0,
        }
    }

    /// The export the client chose.
    pub fn export(&self) -> Option<&Export> {
        self.export.as_ref()
    }

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Requests handed out and not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether bytes from the socket are welcome. Call [`Self::poll_request`] first.
    pub fn wants_bytes(&self) -> bool {
        (self.starved || self.hearing_out) && !self.leaving
    }

    /// The export that the client asked for: it goes on when that is there, or known not to come.
    pub(crate) fn awaited(&self) -> Option<&str> {
        self.awaiting.as_deref()
    }

    /// Where the next bytes from the socket go, and how many at most.
    pub fn receive(&mut self) -> Place<'_> {
        let usual = if self.is_long { RX_LONG } else { RX };
        match &mut self.incoming {
            Some(Incoming::Payload { data, .. })
                if data.missing() >= usual / DIRECT_PART && self.rx.is_empty() =>
            {
                data.place(&mut self.ahead)
            }
            _ => {
                let most = match self.state {
                    // The socket has no room for as much, as a rule.
                    _ if self.hearing_out => self.rx.len().saturating_add(RX).min(self.limits.bytes.max(RX)),
                    State::Handshake(_) if self.rx.len() < RX_STRANGER => RX_STRANGER,
                    State::Handshake(_) => RX,
                    State::Transmission(_) => usual,
                };
                // None where enough of a client was heard that is gone: as if nothing more came.
                let room = most.saturating_sub(self.rx.len());
                self.rx.reserve(room);
                Place::one(&mut self.rx, room)
            }
        }
    }

    /// `n` bytes were put where [`Self::receive`] said.
    pub fn received(&mut self, n: usize) {
        self.starved = false;
        self.rx.extend_from_slice(self.ahead.take());
        self.counters.rx_bytes = self.counters.rx_bytes.saturating_add(n as u64);
    }

    /// Takes as many of the bytes as there is room for, and says how many. However the stream was split
    /// into calls, the same requests come out.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        if !self.wants_bytes() {
            return 0;
        }
        let take = self.receive().put(bytes);
        self.received(take);
        take
    }

    /// The next request to serve; call until `None` after bytes came, output left or a request completed.
    pub fn poll_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        let request = self.next_request();
        if !matches!(request, Ok(Some(_))) {
            self.settle();
        }
        request
    }

    fn next_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        self.starved = false;
        self.awaiting = None;
        let mut options = 0_u32;
        while !self.leaving && !self.securing && !self.hearing_out {
            if self.incoming.is_some() {
                match self.take_payload() {
                    Some(request) => return Ok(Some(request)),
                    None if self.incoming.is_some() => {
                        self.starved = true;
                        return Ok(None);
                    }
                    None => continue,
                }
            }
            let terms = match &mut self.state {
                State::Transmission(terms) => *terms,
                State::Handshake(handshake) => {
                    if self.out.len() > HANDSHAKE_OUT || options == OPTIONS_AT_ONCE {
                        return Ok(None);
                    }
                    options = options.saturating_add(1);
                    match handshake.step(&self.rx, &*self.exports, &mut self.out)? {
                        Step::Used(n) => self.rx.advance(n),
                        Step::Starved => {
                            self.starved = true;
                            return Ok(None);
                        }
                        Step::Awaited(name) => {
                            self.awaiting = Some(name);
                            return Ok(None);
                        }
                        Step::Abort(n) => {
                            self.rx.advance(n);
                            self.leave();
                        }
                        Step::Secure(n) => {
                            self.rx.advance(n);
                            if !self.rx.is_empty() {
                                return Err(ProtocolError::Injected(self.rx.len()));
                            }
                            self.securing = true;
                        }
                        Step::Go(n, export, terms) => {
                            self.rx.advance(n);
                            self.export = Some(*export);
                            self.state = State::Transmission(terms);
                            self.gate.join();
                        }
                    }
                    continue;
                }
            };
            let Some((raw, used)) = RawRequest::decode(&self.rx, terms.headers)? else {
                self.starved = true;
                return Ok(None);
            };
            if !self.admits(raw.charge(terms.block)) {
                return Ok(None);
            }
            let verdict = raw.judge(&terms)?;
            self.rx.advance(used);
            if let Some(request) = self.act(verdict, &terms) {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// Whether a request that will hold `charge` bytes may start now.
    fn admits(&mut self, charge: usize) -> bool {
        let held = self.held();
        let is_lone = self.in_flight == 0 && self.out.is_empty();
        let fits = self.in_flight < self.limits.requests && held.saturating_add(charge) <= self.limits.bytes;
        // What it has the turn for fitted when it asked.
        (is_lone || fits || self.gate.has_turn()) && self.gate.ask(held as u64, charge as u64)
    }

    /// Ready when a request that had to wait for others may begin: go on with [`Self::poll_request`].
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.gate.poll_turn(cx)
    }

    fn held(&self) -> usize {
        self.charged.saturating_add(self.out.len())
    }

    /// Tells the gate what this connection holds, and so many bytes are held below it. To be called before who serves it waits for something, or what has been sent
    /// counted as held, and owed, until the client says something more.
    pub(crate) fn settle_above(&mut self, below: usize) {
        self.below = below;
        self.settle();
    }

    fn settle(&mut self) {
        if self.is_full() {
            // Nothing is begun before the client has taken some, and a turn that came meanwhile would be kept from others.
            self.gate.withdraw();
        }
        self.gate.settle(self.held() as u64);
        let coming = match &self.incoming {
            Some(Incoming::Payload { tag, .. }) => usize::try_from(tag.len).unwrap_or(usize::MAX),
            Some(Incoming::Drain { .. }) | None => 0,
        };
        let owed = coming.saturating_add(self.out.len()) as u64;
        self.gate.note(owed, self.counters.rx_bytes.wrapping_add(self.counters.tx_bytes));
        self.gate.set_buffers(self.rx.capacity().saturating_add(self.below) as u64);
    }

    fn act(&mut self, verdict: Verdict, terms: &Terms) -> Option<Request> {
        let down = || NbdError::new(Errno::Shutdown, "the server is shutting down");
        match verdict {
            Verdict::Disconnect => {
                self.has_disconnected = true;
                self.leave();
            }
            Verdict::Serve(request) if self.refusing => self.refuse(0, request.tag, down()),
            Verdict::Serve(request) => return Some(self.hand_out(request)),
            Verdict::Refuse { payload, tag, error } => self.refuse(payload, tag, error),
            Verdict::Receive { len, tag, .. } if self.refusing => self.refuse(len as u64, tag, down()),
            Verdict::Receive { offset, len, durability, tag } => {
                // Charged from here on: the buffer exists before the request does.
                self.charged = self.charged.saturating_add(tag.charge);
                self.is_long = len >= LONG;
                let data = Landings::new(len, Some(Site { offset, block: terms.block }));
                self.ahead.want(terms.headers.request_len());
                self.incoming = Some(Incoming::Payload { offset, durability, tag, data });
            }
        }
        None
    }

    fn refuse(&mut self, payload: u64, tag: Tag, error: NbdError) {
        self.incoming = Some(Incoming::Drain { missing: payload, tag, error });
    }

    /// Moves payload bytes from the receive buffer to where they belong.
    fn take_payload(&mut self) -> Option<Request> {
        match self.incoming.take()? {
            Incoming::Drain { missing, tag, error } => {
                let skip = usize::try_from(missing).unwrap_or(usize::MAX).min(self.rx.len());
                self.rx.advance(skip);
                let missing = missing.saturating_sub(skip as u64);
                if missing == 0 {
                    self.answer(&tag, Err(error));
                } else {
                    self.incoming = Some(Incoming::Drain { missing, tag, error });
                }
                None
            }
            Incoming::Payload { offset, durability, tag, mut data } => {
                let take = data.take_from(&self.rx);
                self.rx.advance(take);
                if data.missing() > 0 {
                    self.incoming = Some(Incoming::Payload { offset, durability, tag, data });
                    return None;
                }
                self.charged = self.charged.saturating_sub(tag.charge);
                let data = data.freeze().into_iter().map(Segment::Data).collect();
                let op = Op::Write { offset, data, durability };
                Some(self.hand_out(Request { op, tag }))
            }
        }
    }

    fn hand_out(&mut self, request: Request) -> Request {
        self.in_flight = self.in_flight.saturating_add(1);
        self.charged = self.charged.saturating_add(request.tag.charge);
        let counter = match &request.op {
            Op::Read { .. } => &mut self.counters.reads,
            Op::Write { data, .. } => {
                let len: usize = data.iter().map(Segment::len).sum();
                self.counters.write_bytes = self.counters.write_bytes.saturating_add(len as u64);
                &mut self.counters.writes
            }
            Op::Flush => &mut self.counters.flushes,
            Op::Trim { .. } | Op::WriteZeroes { .. } => &mut self.counters.discards,
            Op::Cache { .. } | Op::BlockStatus { .. } => &mut self.counters.others,
        };
        *counter = counter.saturating_add(1);
        request
    }

    /// A request is done. Outcomes may come in any order.
    pub fn complete(&mut self, tag: Tag, outcome: Result<Outcome, NbdError>) {
        self.forget(&tag);
        if let Ok(Outcome::Data(segments)) = &outcome {
            let bytes = segments.iter().map(Segment::len).fold(0_usize, usize::saturating_add);
            self.counters.read_bytes = self.counters.read_bytes.saturating_add(bytes as u64);
        }
        self.answer(&tag, outcome);
    }

    /// A request was given up: it is over, and has no answer.
    pub(crate) fn forget(&mut self, tag: &Tag) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.charged = self.charged.saturating_sub(tag.charge);
    }

    /// A read is done, and its data was in memory.
    pub fn complete_hit(&mut self, tag: Tag, segments: Segments) {
        self.counters.read_hits = self.counters.read_hits.saturating_add(1);
        self.complete(tag, Ok(Outcome::Data(segments)));
    }

    fn answer(&mut self, tag: &Tag, mut outcome: Result<Outcome, NbdError>) {
        if self.is_mute {
            self.counters.errors = self.counters.errors.saturating_add(outcome.is_err().into());
            return;
        }
        let (headers, block) = match &self.state {
            State::Transmission(terms) => (terms.headers, terms.block),
            State::Handshake(_) => (Headers::Simple, 0),
        };
        if let Ok(Outcome::Data(data)) = &mut outcome {
            detach(data, block);
        }
        if reply(&mut self.out, headers, tag, outcome).is_err() {
            self.counters.errors = self.counters.errors.saturating_add(1);
        }
    }

    /// Bytes waiting to be sent.
    pub fn output_len(&self) -> usize {
        self.out.len()
    }

    /// Whether so much waits to be sent that nothing more is begun before the client has taken some.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() >= BATCH
    }

    /// The next bytes for the socket, in place; how many slices were filled.
    pub fn transmit<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.out.slices(slices)
    }

    /// The socket took `n` bytes.
    pub fn transmitted(&mut self, n: usize) {
        self.out.sent(n);
        self.counters.tx_bytes = self.counters.tx_bytes.saturating_add(n as u64);
    }

    /// The next bytes for the socket as one copy, where vectored writes are of no use (tests, TLS).
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = self.out.slices(&mut slices);
        let mut bytes = BytesMut::new();
        for slice in slices.iter().take(filled) {
            bytes.put_slice(slice);
        }
        self.transmitted(bytes.len());
        Some(bytes.freeze()).filter(|bytes| !bytes.is_empty())
    }

    /// Whether the client said good-bye (`DISC`).
    pub(crate) fn has_disconnected(&self) -> bool {
        self.has_disconnected
    }

    /// The client is gone: nothing more is begun for it before all that it sent was received, to its
    /// [end](Self::heard_out).
    pub(crate) fn hear_out(&mut self) {
        self.hearing_out = true;
        // A turn that came meanwhile would be kept from others.
        self.gate.withdraw();
    }

    /// See [`hear_out`](Self::hear_out).
    pub(crate) fn is_hearing_out(&self) -> bool {
        self.hearing_out
    }

    /// Nothing more comes of the client. Whether it said good-bye, behind what is not begun yet too: that is to be done then.
    pub(crate) fn heard_out(&mut self) -> bool {
        self.hearing_out = false;
        self.has_disconnected |= self.ends_with_goodbye();
        self.has_disconnected
    }

    fn ends_with_goodbye(&self) -> bool {
        let State::Transmission(terms) = &self.state else { return false };
        let mut at = match &self.incoming {
            Some(Incoming::Payload { data, .. }) => data.missing(),
            Some(Incoming::Drain { missing, .. }) => usize::try_from(*missing).unwrap_or(usize::MAX),
            None => 0,
        };
        while let Some(rest) = self.rx.get(at..)
            && let Ok(Some((raw, used))) = RawRequest::decode(rest, terms.headers)
        {
            let payload = match raw.judge(terms) {
                Ok(Verdict::Disconnect) => return true,
                Ok(Verdict::Serve(_)) => 0,
                Ok(Verdict::Receive { len, .. }) => len,
                Ok(Verdict::Refuse { payload, .. }) => usize::try_from(payload).unwrap_or(usize::MAX),
                Err(_) => return false,
            };
            at = at.saturating_add(used).saturating_add(payload);
        }
        false
    }

    /// The export is gone: from now on, new requests are answered with `ESHUTDOWN`; those in flight are finished.
    pub fn shut_down(&mut self) {
        self.refusing = true;
        if let State::Handshake(handshake) = &mut self.state {
            handshake.shutdown = true;
        }
    }

    /// Reads nothing more (the client left, or is out of step); what is in flight is finished and sent.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.hearing_out = false;
        self.gate.withdraw();
        self.rx = BytesMut::new();
        if let Some(Incoming::Payload { tag, .. }) = self.incoming.take() {
            self.charged = self.charged.saturating_sub(tag.charge);
        }
    }

    /// Forgets what waits to be sent (nobody is there to read it), and says nothing more. A part of a reply may have left
    /// already: whatever came behind it, the client would take for the rest.
    pub fn discard_output(&mut self) {
        self.out.clear();
        self.is_mute = true;
    }

    /// Nothing in flight and nothing to send.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.out.is_empty()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("phase", &self.phase())
            .field("export", &self.export)
            .field("in_flight", &self.in_flight)
            .field("output", &self.out.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
