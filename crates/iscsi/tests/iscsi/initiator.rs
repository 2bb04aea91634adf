//! An initiator in memory.
//!
//! `Initiator` speaks to a `Login` and then a `Session` without a socket and runs the jobs itself, so a test can cut the
//! stream where it likes, send what no client sends, and look at every byte that comes back.

use std::{pin::pin, sync::Arc, task::Poll};

use block::{BlockVolume, MemVolume};
use iscsi::{
    Config, Targets,
    inbox::Inbox,
    login::{Login, Step},
    pdu::{Fatal, Frame, Framing, Header, Outbox, op},
    session::Session,
};
use memory::Gate;

pub(crate) const NAME: &str = "iqn.2026-11.io.millpond:tank:vm";

/// `MemVolume` never waits, so neither do its jobs.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a memory volume does not wait"),
    }
}

pub(crate) fn targets(volume: &Arc<MemVolume>) -> Arc<Targets> {
    targets_behind(Gate::new(512 << 20), volume)
}

pub(crate) fn targets_behind(gate: Arc<Gate>, volume: &Arc<MemVolume>) -> Arc<Targets> {
    let targets = Targets::new(Config { gate, ..Config::default() });
    targets.add(NAME, Arc::clone(volume) as Arc<dyn BlockVolume>).unwrap();
    targets
}

pub(crate) fn login_pdu(stages: u8, text: &str) -> (Header, Vec<u8>) {
    let mut h = Header::new(op::LOGIN | 0x40);
    h.0[1] = stages;
    h.0[8] = 0x80;
    h.set(24, 1).set(28, 0);
    (h, text.replace('|', "\0").into_bytes())
}

pub(crate) fn try_login(targets: &Targets, stages: u8, text: &str) -> (Result<Step, Fatal>, Header) {
    let (header, data) = login_pdu(stages, text);
    let mut outbox = Outbox::default();
    let step = Login::default().handle(&header, &data, targets, &mut outbox);
    let reply = outbox.drain();
    (step, Header(reply.first_chunk().copied().unwrap_or([0; 48])))
}

/// A session that only discovers.
pub(crate) fn discovery(targets: &Arc<Targets>, keys: &str) -> Session {
    let text = format!("InitiatorName=iqn.a|SessionType=Discovery|{keys}|");
    let (header, data) = login_pdu(0x87, &text);
    let (mut login, mut outbox) = (Login::default(), Outbox::default());
    login.handle(&header, &data, targets, &mut outbox).unwrap();
    let accepted = login.finish(1, &mut outbox).unwrap();
    Session::new(accepted, Arc::clone(targets), ([127, 0, 0, 1], 3260).into(), Outbox::default())
}

/// What came back for one PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Initiator {
    pub(crate) session: Session,
    framing: Framing,
    crc: bool,
    pub(crate) inbox: Inbox,
    pub(crate) cmd_sn: u32,
    next_itt: u32,
}

impl Initiator {
    pub(crate) fn new(volume: &Arc<MemVolume>, keys: &str) -> Self {
        Self::of(targets(volume), keys)
    }

    pub(crate) fn of(targets: Arc<Targets>, keys: &str) -> Self {
        Self::named("iqn.test", targets, keys)
    }

    pub(crate) fn named(name: &str, targets: Arc<Targets>, keys: &str) -> Self {
        let text = format!("InitiatorName={name}|TargetName={NAME}|{keys}|");
        let (header, data) = login_pdu(0x87, &text);
        let mut login = Login::default();
        let mut outbox = Outbox::default();
        let step = login.handle(&header, &data, &targets, &mut outbox).unwrap();
        assert!(matches!(step, Step::Accepted), "{step:?}");
        let accepted = login.finish(7, &mut outbox).unwrap();
        let session = Session::new(accepted, targets, ([127, 0, 0, 1], 3260).into(), outbox);
        let plain = Framing { data_max: 1 << 24, ..Framing::default() };
        let mut this =
            Self { session, framing: plain, crc: false, inbox: Inbox::default(), cmd_sn: 1, next_itt: 1 };
        assert_eq!(this.replies().len(), 1, "the login response");
        if keys.contains("CRC32C") {
            this.crc = true;
            this.framing = Framing { header_digest: true, data_digest: true, ..plain };
        }
        let power_on = this.command(&[0], 0, 0, &[]);
        assert_eq!(power_on.last().unwrap().header.0[3], 2, "a new nexus starts with a unit attention");
        this
    }

    pub(crate) fn bytes(&self, header: Header, data: &[u8]) -> Vec<u8> {
        let mut out = Outbox::default();
        (out.header_digest, out.data_digest) = (self.crc, self.crc);
        out.push(header, data);
        out.drain()
    }

    pub(crate) fn push(&mut self, header: Header, data: &[u8]) -> Result<(), Fatal> {
        let bytes = self.bytes(header, data);
        self.inbox.extend(&bytes);
        self.pump()
    }

    /// Takes in what is there and runs every job.
    pub(crate) fn pump(&mut self) -> Result<(), Fatal> {
        self.session.handle_bytes(&mut self.inbox)?;
        while let Some(work) = self.session.poll_work() {
            let (itt, answer) = now(work.run());
            self.session.complete(itt, answer);
        }
        Ok(())
    }

    pub(crate) fn replies(&mut self) -> Vec<Reply> {
        let wire = self.session.outbox().drain();
        let mut rest = wire.as_slice();
        let mut out = Vec::new();
        while !rest.is_empty() {
            let Frame::Whole { header, data_at, data_len, total } = self.framing.next(rest).unwrap() else {
                panic!("half a PDU was sent")
            };
            out.push(Reply { header, data: rest[data_at..data_at + data_len].to_vec() });
            rest = &rest[total..];
        }
        out
    }

    pub(crate) fn header(&mut self, cdb: &[u8], flags: u8, expected: u32) -> Header {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = flags | 0x80 | 1;
        h.set(16, self.next_itt).set(20, expected).set(24, self.cmd_sn);
        h.0[32..32 + cdb.len()].copy_from_slice(cdb);
        self.next_itt += 1;
        self.cmd_sn += 1;
        h
    }

    pub(crate) fn command(&mut self, cdb: &[u8], flags: u8, expected: u32, immediate: &[u8]) -> Vec<Reply> {
        let h = self.header(cdb, flags, expected);
        self.push(h, immediate).unwrap();
        self.replies()
    }

    pub(crate) fn read(&mut self, lba: u32, blocks: u16) -> Vec<u8> {
        let replies = self.command(&rw10(0x28, lba, blocks), 0x40, u32::from(blocks) * 512, &[]);
        assert!(replies.last().unwrap().header.0[1] & 1 == 1, "status in the last Data-In");
        replies.into_iter().flat_map(|reply| reply.data).collect()
    }
}

pub(crate) fn rw10(opcode: u8, lba: u32, blocks: u16) -> Vec<u8> {
    let mut cdb = vec![opcode, 0];
    cdb.extend(lba.to_be_bytes());
    cdb.push(0);
    cdb.extend(blocks.to_be_bytes());
    cdb.push(0);
    cdb
}

pub(crate) fn volume() -> Arc<MemVolume> {
    Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))
}

pub(crate) fn sense(reply: &Reply) -> (u8, u8, u8) {
    assert_eq!((reply.header.opcode(), reply.header.0[3]), (op::RESPONSE, 2), "{reply:?}");
    (reply.data[4], reply.data[14], reply.data[15])
}

/// Sends bytes `from` to `to` of a command in PDUs of `segment` bytes.
pub(crate) fn send_data(
    i: &mut Initiator,
    itt: u32,
    ttt: u32,
    from: usize,
    to: usize,
    payload: &[u8],
    segment: usize,
) {
    let mut at = from;
    let mut sn = 0;
    while at < to {
        let end = (at + segment).min(to);
        let mut h = Header::new(op::DATA_OUT);
        h.0[1] = if end == to { 0x80 } else { 0 };
        h.set(16, itt).set(20, ttt).set(36, sn).set(40, at as u32);
        i.push(h, &payload[at..end]).unwrap();
        (at, sn) = (end, sn + 1);
    }
}
