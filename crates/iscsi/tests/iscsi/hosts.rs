//! Hosts at one target, without a socket: a login as far as a test takes it, and a session over any of the target's disks.

use std::{net::SocketAddr, sync::Arc};

use block::{BlockVolume, MemVolume};
use bytes::BytesMut;
use iscsi::{
    Config, Form, Offer, Portal, Targets,
    inbox::Inbox,
    login::{Login, Status, Step},
    pdu::{Frame, Framing, Header, NO_TAG, Outbox, op},
    session::Session,
};

use crate::initiator::now;

pub(crate) const NAME: &str = "iqn.2026-11.io.millpond:cluster";

pub(crate) fn disk(name: &str) -> Arc<dyn BlockVolume> {
    Arc::new(MemVolume::new(name, 1 << 20, 8192))
}

pub(crate) fn cluster(luns: &[u16]) -> Arc<Targets> {
    let targets = Targets::new(Config::default());
    let target = targets.create(NAME, Offer::default()).unwrap();
    for lun in luns {
        target.add_lun(*lun, disk(&format!("tank/{lun}")), Form::default()).unwrap();
    }
    targets
}

/// No targets yet, behind two portals: the first at 192.0.2.10 in group 1, the second at 192.0.2.11 in group 2.
pub(crate) fn two_portals() -> Arc<Targets> {
    let portal = |text, group| Portal { address: address(text), group };
    let portals = vec![portal("192.0.2.10:3260", 1), portal("192.0.2.11:3260", 2)];
    Targets::new(Config { portals, ..Config::default() })
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A login that has begun.
pub(crate) struct Entering {
    login: Login,
    local: SocketAddr,
    text: String,
    pub(crate) flags: u8,
    pub(crate) status: (u8, u8),
}

impl Entering {
    pub(crate) fn new(local: &str, peer: &str) -> Self {
        let (local, peer) = (address(local), address(peer));
        Self { login: Login::new(local, peer), local, text: String::new(), flags: 0, status: (0, 0) }
    }

    /// One request; `|` stands between keys.
    pub(crate) fn say(&mut self, targets: &Targets, stages: u8, text: &str) -> Step {
        let mut h = Header::new(op::LOGIN | 0x40);
        h.0[1] = stages;
        h.0[8] = 0x80;
        h.set(24, 1);
        let mut out = Outbox::default();
        let step = self.login.handle(&h, text.replace('|', "\0").as_bytes(), targets, &mut out).unwrap();
        let reply = out.drain();
        if let Some(head) = reply.first_chunk::<48>() {
            self.flags = head[1];
            self.status = (head[36], head[37]);
            self.text = String::from_utf8_lossy(&reply[48..]).trim_end_matches('\0').replace('\0', "|");
        }
        step
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let start = format!("{key}=");
        self.text.split('|').find_map(|pair| pair.strip_prefix(&start)).map(str::to_owned)
    }
}

/// A host that has logged in.
pub(crate) struct Host {
    pub(crate) session: Session,
    pub(crate) cmd_sn: u32,
    pub(crate) itt: u32,
    /// How it writes numbers of disks.
    pub(crate) form: fn(u16) -> [u8; 8],
}

/// Status and data, or sense.
pub(crate) type Answer = (u8, Vec<u8>);

impl Host {
    pub(crate) fn log_in(targets: &Arc<Targets>, name: &str) -> Self {
        Self::log_in_at(targets, name, "127.0.0.1:3260").unwrap()
    }

    pub(crate) fn log_in_at(targets: &Arc<Targets>, name: &str, local: &str) -> Result<Self, Status> {
        let mut entering = Entering::new(local, "192.0.2.1:1000");
        match entering.say(targets, 0x87, &format!("InitiatorName={name}|TargetName={NAME}|")) {
            Step::Accepted => {}
            Step::Refused(status) => return Err(status),
            Step::Continue => panic!("not at once"),
        }
        Ok(Self::entered(entering, targets))
    }

    /// Whoever was let in.
    pub(crate) fn entered(entering: Entering, targets: &Arc<Targets>) -> Self {
        let accepted = entering.login.finish(1, &mut Outbox::default()).unwrap();
        let session = Session::new(accepted, Arc::clone(targets), entering.local, Outbox::default());
        Self { session, cmd_sn: 1, itt: 1, form: scsi::lun_bytes }
    }

    pub(crate) fn push(&mut self, header: Header, data: &[u8]) {
        let mut out = Outbox::default();
        out.push(header, data);
        self.session.handle_bytes(&mut Inbox::from(BytesMut::from(&out.drain()[..]))).unwrap();
    }

    pub(crate) fn run(&mut self) -> Vec<(Header, Vec<u8>)> {
        while let Some(work) = self.session.poll_work() {
            let (itt, answer) = now(work.run());
            self.session.complete(itt, answer);
        }
        self.replies()
    }

    pub(crate) fn replies(&mut self) -> Vec<(Header, Vec<u8>)> {
        let wire = self.session.outbox().drain();
        let framing = Framing { data_max: 1 << 24, ..Framing::default() };
        let (mut rest, mut out) = (&wire[..], Vec::new());
        while !rest.is_empty() {
            let Frame::Whole { header, data_at, data_len, total } = framing.next(rest).unwrap() else {
                panic!()
            };
            out.push((header, rest[data_at..data_at + data_len].to_vec()));
            rest = &rest[total..];
        }
        out
    }

    pub(crate) fn start(&mut self, lun: u16, cdb: &[u8], flags: u8, expected: u32, data: &[u8]) {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = flags | 0x81;
        h.0[8..16].copy_from_slice(&(self.form)(lun));
        h.set(16, self.itt).set(20, expected).set(24, self.cmd_sn);
        h.0[32..32 + cdb.len()].copy_from_slice(cdb);
        (self.itt, self.cmd_sn) = (self.itt + 1, self.cmd_sn + 1);
        self.push(h, data);
    }

    pub(crate) fn send(&mut self, lun: u16, cdb: &[u8], out: &[u8], expected_in: u32) -> Answer {
        let (flags, expected) = if out.is_empty() { (0x40, expected_in) } else { (0x20, out.len() as u32) };
        self.start(lun, cdb, flags, expected, out);
        let replies = self.run();
        let status = replies.last().unwrap().0.0[3];
        (status, replies.into_iter().flat_map(|(_, data)| data).collect())
    }

    /// Key, code and qualifier of a check condition.
    pub(crate) fn sense(&mut self, lun: u16, cdb: &[u8]) -> (u8, u8, u8) {
        let (status, data) = self.send(lun, cdb, &[], 512);
        assert_eq!(status, 2, "{cdb:02x?}");
        (data[4], data[14], data[15])
    }

    /// Takes every unit attention that waits.
    pub(crate) fn settle(&mut self, lun: u16) -> Vec<(u8, u8)> {
        let mut seen = Vec::new();
        loop {
            let (status, data) = self.send(lun, &[0], &[], 0);
            if status == 0 {
                return seen;
            }
            seen.push((data[14], data[15]));
        }
    }

    pub(crate) fn manage(&mut self, function: u8, lun: u16, tag: u32) -> Header {
        let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
        h.0[1] = 0x80 | function;
        h.0[8..16].copy_from_slice(&(self.form)(lun));
        h.set(16, 0x8000_0000 + self.itt).set(20, tag).set(24, self.cmd_sn);
        self.itt += 1;
        self.push(h, &[]);
        let replies = self.run();
        replies.into_iter().map(|(h, _)| h).find(|h| h.opcode() == op::TASK_MANAGEMENT_RESPONSE).unwrap()
    }

    pub(crate) fn luns(&mut self) -> Vec<u16> {
        let (status, data) = self.send(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[], 1024);
        assert_eq!(status, 0);
        data[8..].chunks(8).map(|lun| scsi::lun_number(lun.try_into().unwrap()).unwrap()).collect()
    }

    /// What it is told of targets before it has asked for anything else; `|` stands between keys.
    pub(crate) fn send_targets(&mut self, which: &str) -> String {
        let mut h = Header::new(op::TEXT | 0x40);
        h.set(16, 5).set(20, NO_TAG).set(24, 1);
        self.push(h, format!("SendTargets={which}\0").as_bytes());
        String::from_utf8(self.replies().remove(0).1).unwrap().replace('\0', "|")
    }
}

pub(crate) fn write10(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0]
}
