//! A hypervisor's session with a disk: one that says exactly what it is told, command by command, and shows whole answers,
//! reservations, unit attentions and sense data included. For tests of what clusters do; `wire.rs` is for tests of data.
//!
//! Facts: RFC 7143 §11, SPC-4 §6.13, §6.14, SBC-3 §5.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses a part of it, and a test may panic"
)]

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reservation type: write exclusive, registrants only, which is what Windows clusters use.
pub(crate) const WERO: u8 = 5;
/// Status RESERVATION CONFLICT.
pub(crate) const CONFLICT: u8 = 0x18;
/// Status TASK ABORTED.
pub(crate) const ABORTED: u8 = 0x40;
/// Activate persistence through power loss.
pub(crate) const APTPL: u8 = 1;

/// Service actions of PERSISTENT RESERVE OUT.
pub(crate) mod action {
    pub(crate) const REGISTER: u8 = 0;
    pub(crate) const RESERVE: u8 = 1;
    pub(crate) const RELEASE: u8 = 2;
    pub(crate) const CLEAR: u8 = 3;
    pub(crate) const PREEMPT: u8 = 4;
    pub(crate) const PREEMPT_AND_ABORT: u8 = 5;
    pub(crate) const REGISTER_AND_IGNORE: u8 = 6;
}

/// The first eight bytes as a number.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

fn word(header: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

/// A host's session with a disk.
pub(crate) struct Host {
    stream: TcpStream,
    tag: u32,
    command: u32,
    expected_status: u32,
    /// Unit attentions that came in place of answers.
    pub(crate) news: Vec<(u8, u8)>,
}

/// What a disk answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) status: u8,
    pub(crate) data: Vec<u8>,
    /// Key, code, qualifier.
    pub(crate) sense: (u8, u8, u8),
    /// The whole of it.
    pub(crate) bytes: Vec<u8>,
}

impl Host {
    /// Logs in as `name` at `iscsi://ADDRESS/IQN/0`; `isid` tells the paths of one host apart. What a new nexus is told
    /// first is forgotten.
    pub(crate) fn at(url: &str, name: &str, isid: u8) -> Self {
        let (address, rest) = url.strip_prefix("iscsi://").unwrap().split_once('/').unwrap();
        let iqn = rest.strip_suffix("/0").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut host = Self { stream, tag: 1, command: 1, expected_status: 0, news: Vec::new() };
        let keys = format!(
            "InitiatorName=iqn.2026-11.test:{name}\0TargetName={iqn}\0SessionType=Normal\0ImmediateData=Yes\0\
             FirstBurstLength=262144\0MaxBurstLength=262144\0MaxRecvDataSegmentLength=262144\0"
        );
        let mut login = [0; 48];
        (login[0], login[1]) = (0x43, 0x87);
        login[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, isid]);
        host.send(login, keys.as_bytes());
        let (reply, _) = host.receive();
        assert_eq!((reply[0] & 0x3f, reply[36], reply[37]), (0x23, 0, 0), "{name} at {url}: login");
        host.settle();
        host
    }

    fn send(&mut self, mut header: [u8; 48], data: &[u8]) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&self.tag.to_be_bytes());
        header[24..28].copy_from_slice(&self.command.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        let mut bytes = [&header, data].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next PDU that is not about the connection itself.
    fn receive(&mut self) -> ([u8; 48], Vec<u8>) {
        loop {
            let mut header = [0; 48];
            self.stream.read_exact(&mut header).unwrap();
            let len = (word(&header, 4) & 0x00ff_ffff) as usize;
            let mut data = vec![0; len.next_multiple_of(4)];
            self.stream.read_exact(&mut data).unwrap();
            data.truncate(len);
            // Signs of life are asked for after seconds of silence, which no test has.
            if !matches!(header[0] & 0x3f, 0x20 | 0x32) {
                return (header, data);
            }
        }
    }

    /// One command, with its data in the command PDU, as it is answered.
    pub(crate) fn once(&mut self, cdb: &[u8], out: &[u8], back: usize) -> Said {
        let mut header = [0; 48];
        header[0] = 0x01;
        header[1] = 0x81 | if back > 0 { 0x40 } else { 0 } | if out.is_empty() { 0 } else { 0x20 };
        header[20..24].copy_from_slice(&(out.len().max(back) as u32).to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.tag += 1;
        self.send(header, out);
        self.command += 1;
        let (mut data, mut bytes) = (Vec::new(), Vec::new());
        let status = loop {
            let (reply, more) = self.receive();
            let is_last = match reply[0] & 0x3f {
                0x25 => {
                    assert_eq!(word(&reply, 40) as usize, data.len(), "Data-In comes in order");
                    data.extend(more);
                    reply[1] & 1 != 0
                }
                0x21 => {
                    bytes = more.get(2..).unwrap_or_default().to_vec();
                    true
                }
                other => panic!("PDU {other:#x} in place of an answer"),
            };
            if is_last {
                self.expected_status = word(&reply, 24).wrapping_add(1);
                break reply[3];
            }
        };
        let at = |n: usize| bytes.get(n).copied().unwrap_or_default();
        Said { status, data, sense: (at(2) & 0x0f, at(12), at(13)), bytes }
    }

    /// One command, sent again after news.
    pub(crate) fn say(&mut self, cdb: &[u8], out: &[u8], back: usize) -> Said {
        for _ in 0..8 {
            let said = self.once(cdb, out, back);
            if said.status != 2 || said.sense.0 != 6 {
                return said;
            }
            self.news.push((said.sense.1, said.sense.2));
        }
        panic!("news without end: {:x?}", self.news)
    }

    #[track_caller]
    pub(crate) fn good(&mut self, cdb: &[u8], out: &[u8], back: usize) -> Vec<u8> {
        let said = self.say(cdb, out, back);
        assert_eq!(said.status, 0, "{cdb:02x?}: {said:02x?}");
        said.data
    }

    /// What it was told since it was asked last.
    pub(crate) fn settle(&mut self) -> Vec<(u8, u8)> {
        self.good(&[0], &[], 0);
        std::mem::take(&mut self.news)
    }

    pub(crate) fn pr_out(&mut self, action: u8, kind: u8, key: u64, service: u64, flags: u8) -> u8 {
        let mut list = [key.to_be_bytes(), service.to_be_bytes(), [0; 8]].concat();
        list[20] = flags;
        self.say(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
    }

    pub(crate) fn pr_in(&mut self, action: u8) -> Vec<u8> {
        self.good(&[0x5e, action, 0, 0, 0, 0, 0, 4, 0, 0], &[], 1024)
    }

    pub(crate) fn keys(&mut self) -> Vec<u64> {
        self.pr_in(0)[8..].chunks(8).map(number).collect()
    }

    /// Key and type of the reservation.
    pub(crate) fn holder(&mut self) -> Option<(u64, u8)> {
        let data = self.pr_in(1);
        (data.len() >= 24).then(|| (number(&data[8..16]), data[21]))
    }

    /// Of every registration: initiator port, key, and type if it holds the disk.
    pub(crate) fn full_status(&mut self) -> Vec<(String, u64, Option<u8>)> {
        let data = self.pr_in(3);
        let (mut rest, mut all) = (&data[8..], Vec::new());
        while !rest.is_empty() {
            let len = u32::from_be_bytes(rest[20..24].try_into().unwrap()) as usize;
            let name = String::from_utf8(rest[28..24 + len].to_vec()).unwrap();
            let name = name.trim_end_matches('\0').to_owned();
            all.push((name, number(&rest[..8]), (rest[12] & 1 != 0).then_some(rest[13])));
            rest = &rest[24 + len..];
        }
        all.sort();
        all
    }

    pub(crate) fn write(&mut self, lba: u32, byte: u8) -> u8 {
        let at = lba.to_be_bytes();
        self.say(&[0x2a, 0, at[0], at[1], at[2], at[3], 0, 0, 1, 0], &[byte; 512], 0).status
    }

    pub(crate) fn read(&mut self, lba: u32, blocks: u16) -> Said {
        let (at, n) = (lba.to_be_bytes(), blocks.to_be_bytes());
        self.say(&[0x28, 0, at[0], at[1], at[2], at[3], 0, n[0], n[1], 0], &[], usize::from(blocks) * 512)
    }

    /// Compares a block with `old` and writes `new`.
    pub(crate) fn compare_and_write(&mut self, lba: u8, old: &[u8], new: &[u8]) -> Said {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (0x89, lba, 1);
        self.say(&cdb, &[old, new].concat(), 0)
    }

    /// The disk's NAA name.
    pub(crate) fn naa(&mut self) -> Vec<u8> {
        let page = self.good(&[0x12, 1, 0x83, 1, 0, 0], &[], 256);
        let mut rest = &page[4..];
        while rest[1] & 0x3f != 3 {
            rest = &rest[4 + usize::from(rest[3])..];
        }
        rest[4..20].to_vec()
    }

    /// Whether the run of blocks at `lba` is deallocated, and how many blocks it has.
    pub(crate) fn lba_status(&mut self, lba: u64) -> (bool, u32) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x12, 24);
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        let data = self.good(&cdb, &[], 24);
        assert_eq!(number(&data[8..16]), lba);
        (data[20] & 0x0f == 1, u32::from_be_bytes(data[16..20].try_into().unwrap()))
    }

    /// WRITE(16) of as much as there is.
    pub(crate) fn put(&mut self, lba: u64, data: &[u8]) -> Said {
        let mut cdb = [0; 16];
        cdb[0] = 0x8a;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&((data.len() / 512) as u32).to_be_bytes());
        self.say(&cdb, data, 0)
    }
}
