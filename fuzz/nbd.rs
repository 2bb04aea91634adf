//! What the fuzz targets of NBD do with their input: bytes of a client that means no good, in pieces of any size, to a
//! connection without a socket.
//!
//! The same source serves two runners: the libFuzzer targets beside it, and `crates/nbd/tests/nbd/strangers.rs` on a stable
//! toolchain. A body must return on every input, and may panic only to say that a promise is broken. Those are: a
//! connection that has nothing to do and nothing to say wants bytes; what it holds is bounded; what it says can be
//! followed by a client to the last byte.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use block::{BlockVolume, MemVolume, VolumeFuture};
use memory::Gate;
use nbd::{Limits, NbdError, Op, Outcome, Phase, Registry, Request, Session};

/// A target's name and what to do with bytes that claim to be its input.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. The names are those of the libFuzzer binaries.
pub(crate) const TARGETS: &[Target] = &[("nbd_handshake", nbd_handshake), ("nbd_session", nbd_session)];

/// Bytes of the volume that is offered, and of the blocks it has.
const SIZE: u64 = 1 << 20;
const BLOCK: u32 = 4096;

/// Requests and bytes in flight: little, so that most inputs run into the bounds.
const LIMITS: Limits = Limits { requests: 6, bytes: 256 << 10 };

/// What may be held: the bounds, and one request that exceeds them; by a client that has not chosen yet, replies to
/// options. Beside it, what is received into.
const HELD_MAX: u64 = (256 << 10) + SIZE + (128 << 10);
const STRANGER_MAX: usize = 128 << 10;
const BUFFERS_MAX: u64 = 256 << 10;

/// Turns of the loop for each byte of input, and for the end: nothing takes as many that makes progress.
const TURNS: usize = 64;

/// A conversation of the handshake: { mode 1 │ bytes of the client }. The mode says what of TLS there is, and into how
/// many pieces the stream is cut.
fn nbd_handshake(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    let mut talk = Talk::new(*mode);
    if mode & 1 != 0 {
        talk.session.offer_tls(mode & 2 != 0);
    }
    talk.hear(input);
    talk.followed_to_the_end(None);
}

/// Requests after a valid handshake: { mode 1 │ bytes of the client }. The mode says which replies were agreed on, the
/// order in which requests are answered, whether the export goes away in between, and how the stream is cut.
fn nbd_session(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    let mut talk = Talk::new(*mode);
    let mut hello = vec![0, 0, 0, 3];
    let headers = [None, Some(8_u32), Some(11)][usize::from(mode & 3) % 3];
    if let Some(headers) = headers {
        hello.extend(option(headers, &[]));
        hello.extend(option(10, &[&name("tank/fuzz")[..], &[0, 0, 0, 1], &name("base:allocation")].concat()));
    }
    let export = if mode & 4 == 0 { "tank/fuzz" } else { "tank/fuzz@monday" };
    hello.extend(option(7, &[&name(export)[..], &[0, 0]].concat()));
    talk.hear(&hello);
    assert_eq!(talk.session.phase(), Phase::Transmission, "a valid handshake");
    talk.said.clear();
    talk.is_late = mode & 8 != 0;
    let (first, second) = input.split_at(if mode & 0x10 == 0 { input.len() } else { input.len() / 2 });
    talk.hear(first);
    if mode & 0x10 != 0 {
        talk.session.shut_down();
    }
    talk.hear(second);
    talk.followed_to_the_end(headers);
}

fn name(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A connection, and who serves it.
struct Talk {
    session: Session,
    gate: Arc<Gate>,
    /// All it said so far.
    said: Vec<u8>,
    /// Requests begun and not answered.
    waiting: Vec<(Request, Arc<dyn BlockVolume>)>,
    /// Requests are answered when nothing else can be done, the last one first.
    is_late: bool,
    /// The stream comes in so many bytes at a time.
    piece: usize,
    pieces: usize,
    is_over: bool,
}

impl Talk {
    fn new(mode: u8) -> Self {
        let registry = Registry::new();
        let volume = MemVolume::new("tank/fuzz", SIZE, BLOCK);
        registry.insert("tank/fuzz", "a disk", Arc::new(volume)).expect("a valid name, once");
        let snapshot = MemVolume::new("tank/fuzz@monday", SIZE, BLOCK).read_only();
        registry.insert("tank/fuzz@monday", "", Arc::new(snapshot)).expect("a valid name, once");
        for n in 0..100 {
            let volume = MemVolume::new("v", SIZE, BLOCK);
            registry.insert(&format!("tank/{n:0>200}"), "", Arc::new(volume)).expect("a valid name, once");
        }
        let gate = Gate::new(LIMITS.bytes as u64);
        let session = Session::new(Arc::new(registry), LIMITS, Arc::clone(&gate));
        // From one byte to 16 KiB.
        let piece = 1 << (2 * u32::from(mode >> 5));
        let (said, waiting) = (Vec::new(), Vec::new());
        Self { session, gate, said, waiting, is_late: false, piece, pieces: 0, is_over: false }
    }

    /// Does all there is to do with these bytes.
    fn hear(&mut self, mut input: &[u8]) {
        let mut turns = TURNS.saturating_mul(input.len().saturating_add(TURNS));
        while !self.is_over {
            turns = turns.checked_sub(1).expect("it makes progress");
            match self.session.poll_request() {
                Err(_) => {
                    self.session.leave();
                    self.is_over = true;
                }
                Ok(Some(request)) => {
                    let export = self.session.export().expect("requests are of an export");
                    self.waiting.push((request, Arc::clone(&export.volume)));
                    assert!(self.waiting.len() <= LIMITS.requests, "more requests than are allowed");
                    if !self.is_late {
                        self.answer();
                    }
                    continue;
                }
                Ok(None) => {}
            }
            assert!(self.gate.used() <= HELD_MAX, "{} bytes are held", self.gate.used());
            let is_stranger = self.session.phase() == Phase::Handshake;
            let waits = self.session.output_len();
            assert!(!is_stranger || waits <= STRANGER_MAX, "{waits} bytes wait for a stranger");
            assert!(self.gate.buffers() <= BUFFERS_MAX, "{} bytes to receive into", self.gate.buffers());
            if let Some(bytes) = self.session.poll_transmit() {
                self.said.extend_from_slice(&bytes);
                continue;
            }
            if self.session.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready() || self.answer() {
                continue;
            }
            match self.session.phase() {
                Phase::Leaving => self.is_over = true,
                Phase::Securing => self.session.secured(),
                Phase::Handshake | Phase::Transmission => {
                    assert!(self.session.wants_bytes(), "nothing to do, nothing to say, and no bytes wanted");
                    if input.is_empty() {
                        return;
                    }
                    self.pieces += 1;
                    // Small pieces tell where headers are cut, not in the middle of megabytes.
                    let piece = if self.pieces < 300 { self.piece } else { self.piece.max(16 << 10) };
                    let (now, _) = input.split_at(piece.min(input.len()));
                    let taken = self.session.handle_bytes(now);
                    assert!(taken > 0, "bytes are wanted and not taken");
                    input = &input[taken..];
                }
            }
        }
        // What was begun is finished and sent, however it ended.
        while self.answer() {}
        while let Some(bytes) = self.session.poll_transmit() {
            self.said.extend_from_slice(&bytes);
        }
        assert!(self.session.is_idle(), "{:?}", self.session);
    }

    /// Answers the request that came last; false if there is none.
    fn answer(&mut self) -> bool {
        let Some((Request { op, tag }, volume)) = self.waiting.pop() else { return false };
        self.session.complete(tag, serve(&*volume, op));
        true
    }

    /// A client that agreed on these headers, or is at the first word, can follow what was said.
    fn followed_to_the_end(self, headers: Option<u32>) {
        let mut rest = self.said.as_slice();
        match headers {
            Some(headers) => {
                while !rest.is_empty() {
                    rest = reply(rest, headers == 11).expect("a whole reply");
                }
            }
            // A handshake; what comes after it is in the other body's.
            None if self.session.export().is_none() && !rest.is_empty() && rest.starts_with(b"NBDMAGIC") => {
                rest = &rest[18..];
                while !rest.is_empty() {
                    rest = option_reply(rest).expect("a whole reply to an option");
                }
            }
            // Simple replies can only be followed by who knows what was asked.
            None => {}
        }
        let Self { session, gate, .. } = self;
        drop(session);
        assert_eq!((gate.used(), gate.buffers(), gate.members()), (0, 0, 0), "something is held by nobody");
    }
}

/// What follows the reply at the front.
fn reply(said: &[u8], is_extended: bool) -> Option<&[u8]> {
    let magic = u32::from_be_bytes(*said.first_chunk()?);
    let (head, len) = match magic {
        0x6744_6698 if !is_extended => (16, 0),
        0x668e_33ef if !is_extended => (20, u64::from(u32::from_be_bytes(*said.get(16..)?.first_chunk()?))),
        0x6e8a_278c if is_extended => (32, u64::from_be_bytes(*said.get(24..)?.first_chunk()?)),
        _ => return None,
    };
    said.get(head..)?.get(usize::try_from(len).ok()?..)
}

/// What follows the reply to an option at the front.
fn option_reply(said: &[u8]) -> Option<&[u8]> {
    let magic = u64::from_be_bytes(*said.first_chunk()?);
    let len = u32::from_be_bytes(*said.get(16..)?.first_chunk()?) as usize;
    said.get(20..).filter(|_| magic == 0x0003_e889_0455_65a9)?.get(len..)
}

fn serve(volume: &dyn BlockVolume, op: Op) -> Result<Outcome, NbdError> {
    let unit = |future: VolumeFuture<'_, ()>| now(future).map(|()| Outcome::Done);
    Ok(match op {
        Op::Read { offset, len } => now(volume.read(offset, len)).map(Outcome::Data),
        Op::BlockStatus { offset, len, max_extents } => {
            now(volume.extents(offset, len, max_extents)).map(Outcome::Extents)
        }
        Op::Write { offset, data, durability } => unit(volume.write(offset, data, durability)),
        Op::WriteZeroes { offset, len, allocate, durability } => {
            unit(volume.write_zeroes(offset, len, allocate, durability))
        }
        Op::Trim { offset, len, durability } => unit(volume.unmap(offset, len, durability)),
        Op::Flush => unit(volume.flush()),
        Op::Cache { offset, len } => {
            assert!(offset.checked_add(len).is_some_and(|end| end <= SIZE), "beyond the end");
            Ok(Outcome::Done)
        }
    }?)
}

/// A volume in memory never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a request waits for nothing"),
    }
}
