//! Several hosts at several disks, without a socket: who is let in and with which proof, what each sees when disks come
//! and go, and what one host's task management and reservations do to the others.

use std::{net::SocketAddr, pin::pin, sync::Arc, task::Poll};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segments, VolumeError, VolumeFuture,
};
use bytes::BytesMut;
use iscsi::{
    Access, Auth, Config, Counters, Form, Offer, Portal, Targets,
    inbox::Inbox,
    login::{Login, Status, Step},
    pdu::{Frame, Framing, Header, NO_TAG, Outbox, op},
    session::{Session, Work},
};
use sha2::Digest as _;

const NAME: &str = "iqn.2026-11.io.millpond:cluster";

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a memory volume does not wait"),
    }
}

fn disk(name: &str) -> Arc<dyn BlockVolume> {
    Arc::new(MemVolume::new(name, 1 << 20, 8192))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A login that has begun.
struct Entering {
    login: Login,
    local: SocketAddr,
    text: String,
    flags: u8,
    status: (u8, u8),
}

impl Entering {
    fn new(local: &str, peer: &str) -> Self {
        let (local, peer) = (address(local), address(peer));
        Self { login: Login::new(local, peer), local, text: String::new(), flags: 0, status: (0, 0) }
    }

    /// One request; `|` stands between keys.
    fn say(&mut self, targets: &Targets, stages: u8, text: &str) -> Step {
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

    fn value(&self, key: &str) -> Option<String> {
        let start = format!("{key}=");
        self.text.split('|').find_map(|pair| pair.strip_prefix(&start)).map(str::to_owned)
    }
}

/// A host that has logged in.
struct Host {
    session: Session,
    cmd_sn: u32,
    itt: u32,
    /// How it writes numbers of disks.
    form: fn(u16) -> [u8; 8],
}

/// Status and data, or sense.
type Answer = (u8, Vec<u8>);

impl Host {
    fn log_in(targets: &Arc<Targets>, name: &str) -> Self {
        Self::log_in_at(targets, name, "127.0.0.1:3260").unwrap()
    }

    fn log_in_at(targets: &Arc<Targets>, name: &str, local: &str) -> Result<Self, Status> {
        let mut entering = Entering::new(local, "192.0.2.1:1000");
        match entering.say(targets, 0x87, &format!("InitiatorName={name}|TargetName={NAME}|")) {
            Step::Accepted => {}
            Step::Refused(status) => return Err(status),
            Step::Continue => panic!("not at once"),
        }
        let accepted = entering.login.finish(1, &mut Outbox::default()).unwrap();
        let session = Session::new(accepted, Arc::clone(targets), entering.local, Outbox::default());
        Ok(Self { session, cmd_sn: 1, itt: 1, form: scsi::lun_bytes })
    }

    fn push(&mut self, header: Header, data: &[u8]) {
        let mut out = Outbox::default();
        out.push(header, data);
        self.session.handle_bytes(&mut Inbox::from(BytesMut::from(&out.drain()[..]))).unwrap();
    }

    fn run(&mut self) -> Vec<(Header, Vec<u8>)> {
        while let Some(work) = self.session.poll_work() {
            let (itt, answer) = now(work.run());
            self.session.complete(itt, answer);
        }
        self.replies()
    }

    fn replies(&mut self) -> Vec<(Header, Vec<u8>)> {
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

    fn start(&mut self, lun: u16, cdb: &[u8], flags: u8, expected: u32, data: &[u8]) {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = flags | 0x81;
        h.0[8..16].copy_from_slice(&(self.form)(lun));
        h.set(16, self.itt).set(20, expected).set(24, self.cmd_sn);
        h.0[32..32 + cdb.len()].copy_from_slice(cdb);
        (self.itt, self.cmd_sn) = (self.itt + 1, self.cmd_sn + 1);
        self.push(h, data);
    }

    fn send(&mut self, lun: u16, cdb: &[u8], out: &[u8], expected_in: u32) -> Answer {
        let (flags, expected) = if out.is_empty() { (0x40, expected_in) } else { (0x20, out.len() as u32) };
        self.start(lun, cdb, flags, expected, out);
        let replies = self.run();
        let status = replies.last().unwrap().0.0[3];
        (status, replies.into_iter().flat_map(|(_, data)| data).collect())
    }

    /// Key, code and qualifier of a check condition.
    fn sense(&mut self, lun: u16, cdb: &[u8]) -> (u8, u8, u8) {
        let (status, data) = self.send(lun, cdb, &[], 512);
        assert_eq!(status, 2, "{cdb:02x?}");
        (data[4], data[14], data[15])
    }

    /// Takes every unit attention that waits.
    fn settle(&mut self, lun: u16) -> Vec<(u8, u8)> {
        let mut seen = Vec::new();
        loop {
            let (status, data) = self.send(lun, &[0], &[], 0);
            if status == 0 {
                return seen;
            }
            seen.push((data[14], data[15]));
        }
    }

    fn manage(&mut self, function: u8, lun: u16, tag: u32) -> Header {
        let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
        h.0[1] = 0x80 | function;
        h.0[8..16].copy_from_slice(&(self.form)(lun));
        h.set(16, 0x8000_0000 + self.itt).set(20, tag).set(24, self.cmd_sn);
        self.itt += 1;
        self.push(h, &[]);
        let replies = self.run();
        replies.into_iter().map(|(h, _)| h).find(|h| h.opcode() == op::TASK_MANAGEMENT_RESPONSE).unwrap()
    }

    fn luns(&mut self) -> Vec<u16> {
        let (status, data) = self.send(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[], 1024);
        assert_eq!(status, 0);
        data[8..].chunks(8).map(|lun| scsi::lun_number(lun.try_into().unwrap()).unwrap()).collect()
    }
}

fn write10(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0]
}

fn cluster(luns: &[u16]) -> Arc<Targets> {
    let targets = Targets::new(Config::default());
    let target = targets.create(NAME, Offer::default()).unwrap();
    for lun in luns {
        target.add_lun(*lun, disk(&format!("tank/{lun}")), Form::default()).unwrap();
    }
    targets
}

#[test]
fn disks_are_told_apart_by_their_numbers_also_above_255_whichever_form_these_have() {
    // As REPORT LUNS tells them, and as libiscsi writes them.
    let forms: [fn(u16) -> [u8; 8]; 2] = [scsi::lun_bytes, |lun| {
        let [high, low] = lun.to_be_bytes();
        [high, low, 0, 0, 0, 0, 0, 0]
    }];
    for form in forms {
        let targets = cluster(&[1, 5, 300]);
        let mut host = Host { form, ..Host::log_in(&targets, "iqn.one") };
        assert_eq!(host.luns(), [1, 5, 300], "asked of a LUN that has no disk");
        for lun in [1, 5, 300] {
            assert_eq!(host.settle(lun), [(0x29, 0)], "{lun}");
            assert_eq!(host.send(lun, &write10(0), &[lun as u8; 512], 0).0, 0);
        }
        for lun in [1, 5, 300] {
            let (_, data) = host.send(lun, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512);
            assert!(data == [lun as u8; 512], "{lun}");
        }
        let (_, inquiry) = host.send(0, &[0x12, 0, 0, 0, 96, 0], &[], 96);
        assert_eq!(inquiry[0], 0x7f);
        assert_eq!([2, 256].map(|lun| host.sense(lun, &[0])), [(5, 0x25, 0); 2]);
        // LOGICAL UNIT RESET.
        assert_eq!([300, 256].map(|lun| host.manage(5, lun, NO_TAG).0[2]), [0, 2]);
        assert_eq!((host.settle(300), host.settle(5)), (vec![(0x29, 3)], vec![]));
    }
}

#[test]
fn disks_come_and_go_under_hosts_that_are_logged_in() {
    let targets = cluster(&[0]);
    let target = targets.list().remove(0);
    let (mut asks, mut works) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
    asks.settle(0);
    works.settle(0);
    target.add_lun(7, disk("tank/new"), Form { block_size: 4096, ..Form::default() }).unwrap();
    assert!(target.add_lun(7, disk("tank/other"), Form::default()).is_err());
    assert_eq!(works.sense(0, &write10(0)), (6, 0x3f, 0x0e), "told with its next command");
    assert_eq!(works.luns(), [0, 7]);
    assert_eq!(asks.luns(), [0, 7], "who asks of its own accord");
    assert_eq!(asks.settle(0), [], "need not be told");
    assert_eq!(asks.settle(7), [(0x29, 0)]);
    let (_, capacity) = asks.send(7, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8);
    assert_eq!(capacity, [0, 0, 0, 255, 0, 0, 0x10, 0]);
    assert!(target.remove_lun(7) && !target.remove_lun(7));
    assert_eq!(asks.sense(7, &[0]), (5, 0x25, 0));
    assert_eq!(asks.settle(0), [(0x3f, 0x0e)]);
    // Idle hosts hear of it, too.
    asks.session.announce_luns();
    let (h, body) = asks.replies().remove(0);
    assert_eq!((h.opcode(), h.0[36], body[4], body[14], body[15]), (op::ASYNC, 0, 6, 0x3f, 0x0e));
}

/// Hosts took it for removed (5/25/00), and gave up what was on it.
#[test]
fn a_disk_that_cannot_be_had_yet_is_known_by_its_name_and_not_ready_until_it_comes() {
    let targets = cluster(&[0]);
    let target = targets.list().remove(0);
    let volume = disk("tank/late");
    let kept = target.keep_lun(3, volume.identity(), Form::default()).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    assert_eq!(host.luns(), [0, 3]);
    assert_eq!(host.sense(3, &[0]), (6, 0x29, 0));
    let not_ready = (2, 4, 1);
    for cdb in [&[0][..], &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &write10(0), &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]]
    {
        assert_eq!(host.sense(3, cdb), not_ready, "{cdb:02x?}");
    }
    let name = |host: &mut Host| host.send(3, &[0x12, 1, 0x83, 1, 0, 0], &[], 256);
    let before = name(&mut host);
    assert!(before.0 == 0 && before.1[0] == 0, "a disk");
    // Nobody else has its place.
    assert!(target.add_lun(3, disk("tank/other"), Form::default()).is_err());
    assert_eq!(host.sense(3, &[0]), not_ready);
    let (status, asked) = host.send(3, &[3, 0, 0, 0, 252, 0], &[], 252);
    assert_eq!(
        (status, asked[2], asked[12], asked[13]),
        (0, 2, 4, 1),
        "who asks what it is like hears the same"
    );
    let unit = target.add_lun(3, Arc::clone(&volume), Form::default()).unwrap();
    assert!(unit.naa() == kept.naa() && !unit.is_coming());
    assert_eq!(host.settle(0), [(0x3f, 0x0e)], "told");
    assert_eq!(
        host.settle(3),
        [(0x29, 0), (0x2a, 9), (0x3f, 3)],
        "what it has seen of it is not true any more"
    );
    assert_eq!(Host::log_in(&targets, "iqn.two").settle(3), [(0x29, 0)], "who never saw it need not be told");
    assert_eq!(name(&mut host), before);
    assert_eq!(host.send(3, &write10(0), &[7; 512], 0).0, 0);
    assert!(target.add_lun(3, volume, Form::default()).is_err(), "it is there");
}

/// It was offered with the cache on and then switched: what was written in between was not stable, and hosts were told of a
/// change that was none.
#[test]
fn a_disk_without_write_cache_has_none_from_the_beginning() {
    let targets = cluster(&[]);
    let form = Form { write_cache: false, ..Form::default() };
    targets.list()[0].add_lun(0, disk("tank/safe"), form).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    assert_eq!(host.settle(0), [(0x29, 0)], "and nobody is told of a change");
    let (_, page) = host.send(0, &[0x1a, 8, 8, 0, 64, 0], &[], 64);
    assert_eq!((page[4], page[6] & 4), (8, 0), "WCE");
}

#[test]
fn a_disk_taken_away_while_data_comes_gets_none_of_it_nor_does_the_next_of_its_number() {
    for (comes_another, is_told) in [(false, true), (false, false), (true, true), (true, false)] {
        let targets = cluster(&[0, 1]);
        let target = &targets.list()[0];
        let mut host = Host::log_in(&targets, "iqn.one");
        host.settle(1);
        host.start(1, &write10(0), 0x20, 512, &[]);
        let (r2t, _) = host.replies().remove(0);
        target.remove_lun(1);
        if comes_another {
            target.add_lun(1, disk("tank/other"), Form::default()).unwrap();
        }
        if is_told {
            host.luns();
        }
        let mut d = Header::new(op::DATA_OUT);
        d.set(16, r2t.itt()).set(20, r2t.word20());
        host.push(d, &[9; 512]);
        let (h, sense) = host.run().remove(0);
        let answer = (h.opcode(), h.0[3], sense[4], sense[14]);
        assert_eq!(answer, (op::RESPONSE, 2, 5, 0x25), "{comes_another} {is_told}");
        if comes_another {
            host.settle(1);
            assert_eq!(host.send(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512).1, [0; 512]);
        }
    }
}

/// The old command's place in the line was taken for the new one's: it was no longer running for whoever aborted it.
#[test]
fn a_tag_used_again_is_not_the_command_that_waited_under_it() {
    let targets = cluster(&[]);
    let volume = Arc::new(MemVolume::new("tank/big", 64 << 20, 8192));
    targets.list()[0].add_lun(0, volume, Form::default()).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    let first = host.itt;
    let write = |blocks: u16| {
        let [high, low] = blocks.to_be_bytes();
        [0x2a, 0, 0, 0, 0, 0, 0, high, low, 0]
    };
    let abort = |host: &mut Host, tag: u32| {
        let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
        h.0[1] = 0x81;
        h.set(16, 1000 + tag).set(20, tag).set(24, host.cmd_sn).set(32, host.cmd_sn - 1);
        host.push(h, &[]);
        host.replies().iter().filter(|(h, _)| h.opcode() == op::TASK_MANAGEMENT_RESPONSE).count()
    };
    // The first may ask for all that there is room for; the others wait.
    host.start(0, &write(u16::MAX), 0x20, 512 * u32::from(u16::MAX), &[]);
    host.start(0, &write(2048), 0x20, 1 << 20, &[]);
    host.start(0, &write(2048), 0x20, 1 << 20, &[]);
    let asked: Vec<u32> = host.replies().iter().map(|(h, _)| h.itt()).collect();
    assert!(asked.iter().all(|itt| *itt == first), "{asked:?}");
    assert_eq!(abort(&mut host, first + 2), 1);
    host.itt = first + 2;
    host.start(0, &write(1), 0x20, 512, &[7; 512]);
    let work = host.session.poll_work().unwrap();
    assert_eq!((work.ticket.itt, abort(&mut host, first)), (first + 2, 1));
    assert_eq!(abort(&mut host, first + 2), 0, "it runs: nothing is said before it has ended");
    let (itt, answer) = now(work.run());
    host.session.complete(itt, answer);
    let told = host.replies();
    assert_eq!(
        told.iter().filter(|(h, _)| h.opcode() == op::TASK_MANAGEMENT_RESPONSE).count(),
        1,
        "{told:?}"
    );
}

/// What was written to the volume afterwards by another disk would not have ended it.
#[test]
fn a_token_of_a_disk_that_was_taken_away_stands_for_nothing() {
    let targets = cluster(&[0, 1]);
    let (mut host, mut idle) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
    for lun in [0, 1] {
        host.settle(lun);
        idle.settle(lun); // and holds what it was offered until its next command
    }
    let range = [0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0];
    let populate = [[0; 14].as_slice(), &range].concat();
    let command = |action: u8, list: &[u8]| {
        let [high, low] = (list.len() as u16).to_be_bytes();
        [0x83, action, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, high, low, 0, 0]
    };
    assert_eq!(host.send(1, &command(0x10, &populate), &populate, 0).0, 0);
    let (_, info) = host.send(1, &[0x84, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[], 1024);
    let paste = [[0; 16].as_slice(), &info[38..], &[0; 6], &range].concat();
    assert_eq!(host.send(0, &command(0x11, &paste), &paste, 0).0, 0);
    assert!(targets.list()[0].remove_lun(1));
    host.settle(0);
    let (status, sense) = host.send(0, &command(0x11, &paste), &paste, 0);
    assert_eq!((status, sense[4], sense[14], sense[15]), (2, 5, 0x23, 6), "revoked");
}

#[test]
fn clearing_and_resetting_reach_the_commands_of_others_and_of_that_disk_only() {
    for function in [4, 5, 6] {
        let targets = cluster(&[0, 1]);
        let (mut one, mut two) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
        for lun in [0, 1] {
            one.settle(lun);
            two.settle(lun);
        }
        // Both hosts have begun writes to both disks; none has run.
        let mut begun: Vec<Work> = Vec::new();
        for lun in [0, 1] {
            two.start(lun, &write10(lun as u8), 0x20, 512, &[7; 512]);
            begun.push(two.session.poll_work().unwrap());
            one.start(lun, &write10(10 + lun as u8), 0x20, 512, &[7; 512]);
        }
        let (own_tags, answer) = ([one.itt - 2, one.itt - 1], one.manage(function, 0, NO_TAG));
        assert_eq!(answer.0[2], 0, "{function}");
        let statuses: Vec<u8> = begun
            .into_iter()
            .map(|work| {
                let (itt, answer) = now(work.run());
                two.session.complete(itt, answer);
                two.replies().remove(0).0.0[3]
            })
            .collect();
        let other_disk = if function == 6 { 0x40 } else { 0 };
        assert_eq!(statuses, [0x40, other_disk], "{function}: TASK ABORTED, so that the host need not wait");
        let told = match function {
            4 => vec![],
            5 => vec![(0x29, 3)],
            _ => vec![(0x29, 2)],
        };
        assert_eq!(two.settle(0), told, "{function}");
        assert_eq!(two.settle(1), if function == 6 { told.clone() } else { vec![] }, "{function}");
        assert!(own_tags[0] != own_tags[1]);
    }
    let targets = cluster(&[0]);
    let mut host = Host::log_in(&targets, "iqn.one");
    assert_eq!(host.manage(5, 3, NO_TAG).0[2], 2, "no such LUN");
    assert_eq!(host.manage(3, 0, NO_TAG).0[2], 5, "there is no ACA to clear");
    assert_eq!(host.manage(8, 0, NO_TAG).0[2], 4, "tasks are not reassigned");
    assert_eq!(host.manage(1, 0, 77).0[2], 1, "no such task");
}

/// A reset went to the disk that had been there before: it ended nothing, and nobody was told.
#[test]
fn a_reset_reaches_the_disk_that_is_there_now() {
    let targets = cluster(&[1]);
    let target = targets.list().remove(0);
    let mut resets = Host::log_in(&targets, "iqn.one");
    resets.settle(1);
    assert!(target.remove_lun(1));
    target.add_lun(1, disk("tank/next"), Form::default()).unwrap();
    let mut works = Host::log_in(&targets, "iqn.two");
    works.settle(1);
    assert_eq!(resets.manage(5, 1, NO_TAG).0[2], 0);
    assert_eq!(works.settle(1), [(0x29, 3)]);
    assert!(target.remove_lun(1));
    assert_eq!(resets.manage(5, 1, NO_TAG).0[2], 2, "there is none");
}

/// A host that had the disk before a rollback kept what it had read of it.
#[test]
fn a_host_that_comes_back_to_other_content_is_told_that_the_medium_may_have_changed() {
    let targets = cluster(&[0]);
    let told = |name: &str| Host::log_in(&targets, name).settle(0);
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    drop(host);
    targets.list()[0].unit(0).unwrap().content_replaced();
    assert_eq!(told("iqn.one"), [(0x29, 7), (0x28, 0)]);
    assert_eq!(told("iqn.one"), [(0x29, 7)], "once");
    assert_eq!(told("iqn.two"), [(0x29, 0)], "who never saw it need not be told");
}

#[test]
fn a_host_that_comes_back_is_told_that_its_nexus_was_lost() {
    let targets = cluster(&[0]);
    let told = |name: &str| Host::log_in(&targets, name).settle(0);
    assert_eq!(told("iqn.one"), [(0x29, 0)], "never seen before");
    assert_eq!(told("iqn.one"), [(0x29, 7)], "its connection went away");
    assert_eq!(told("iqn.two"), [(0x29, 0)], "another host");
    let mut host = Host::log_in(&targets, "iqn.one");
    let target = targets.list().remove(0);
    target.add_lun(1, disk("tank/1"), Form::default()).unwrap();
    assert_eq!(host.settle(0), [(0x29, 7), (0x3f, 0x0e)]);
    assert_eq!(host.settle(1), [(0x29, 0)], "a disk that has just come up");
    drop(host);
    let mut host = Host::log_in(&targets, "iqn.one");
    assert_eq!((host.settle(0), host.settle(1)), (vec![(0x29, 7)], vec![(0x29, 7)]));
    // TARGET COLD RESET is as good as power on.
    assert_eq!(host.manage(7, 0, NO_TAG).0[2], 0);
    drop(host);
    assert_eq!(told("iqn.one"), [(0x29, 0)]);
}

#[test]
fn a_registration_is_of_one_port_of_one_host_and_outlives_its_session() {
    let config = Config {
        portals: vec![
            Portal { address: address("192.0.2.10:3260"), group: 1 },
            Portal { address: address("192.0.2.11:3260"), group: 2 },
        ],
        ..Config::default()
    };
    let targets = Targets::new(config);
    targets.add(NAME, disk("tank/csv")).unwrap();
    let path = |portal: &str| {
        let mut host = Host::log_in_at(&targets, "iqn.one", portal).unwrap();
        host.settle(0);
        host
    };
    let (mut first, mut second) = (path("192.0.2.10:3260"), path("192.0.2.11:3260"));
    let register = |flags: u8| {
        let mut list = [0; 24];
        (list[15], list[20]) = (9, flags);
        list
    };
    let out = |action: u8| [0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(first.send(0, &out(0), &register(0), 0).0, 0);
    let mut reserve = [0; 24];
    reserve[7] = 9;
    assert_eq!(first.send(0, &out(1), &reserve, 0).0, 0);
    assert_eq!(second.send(0, &write10(0), &[1; 512], 0).0, 0x18, "the other path is another nexus");
    drop(first);
    let mut first = path("192.0.2.10:3260");
    assert_eq!(first.send(0, &write10(0), &[1; 512], 0).0, 0, "the same nexus came back");
    // Each path names the port that it is.
    for (host, port) in [(&mut first, 1), (&mut second, 2)] {
        let (_, page) = host.send(0, &[0x12, 1, 0x83, 1, 0, 0], &[], 256);
        assert!(page.windows(8).any(|d| d == [0x51, 0x94, 0, 4, 0, 0, 0, port]), "{port}");
    }
}

/// A host that was fenced off seemed to read from memory, all of it.
#[test]
fn what_a_reservation_refuses_is_counted_as_no_read_and_no_write() {
    let targets = cluster(&[0]);
    let (mut holder, mut fenced) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
    holder.settle(0);
    fenced.settle(0);
    // Registers, and reserves with exclusive access.
    for (action, key_at) in [(0, 15), (1, 7)] {
        let mut list = [0; 24];
        list[key_at] = 9;
        assert_eq!(holder.send(0, &[0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0], &list, 0).0, 0);
    }
    let counters = Arc::<Counters>::default();
    fenced.session.count_in(Arc::clone(&counters));
    let tally = counters.luns.list().remove(0).1;
    let before = tally.get().others;
    assert_eq!(fenced.send(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512).0, 0x18);
    assert_eq!(fenced.send(0, &write10(0), &[1; 512], 0).0, 0x18);
    let now = tally.get();
    assert_eq!((now.reads, now.from_memory, now.writes, now.others - before), (0, 0, 0, 2));
}

/// A disk whose pool has no space left.
struct Full(MemVolume);

impl BlockVolume for Full {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.0.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.0.extents(offset, len, max)
    }
    fn write(&self, _: u64, _: Segments, _: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async { Err(VolumeError::NoSpace) })
    }
}

/// Who wrote to a full pool seemed to write at full speed.
#[test]
fn a_write_that_fails_is_counted_without_its_bytes() {
    let targets = cluster(&[]);
    let full = Full(MemVolume::new("tank/full", 1 << 20, 8192));
    targets.list().remove(0).add_lun(0, Arc::new(full), Form::default()).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    let counters = Arc::<Counters>::default();
    host.session.count_in(Arc::clone(&counters));
    assert_ne!(host.send(0, &write10(0), &[1; 512], 0).0, 0);
    let now = counters.luns.list().remove(0).1.get();
    assert_eq!((now.writes, now.write_bytes, now.under_way), (1, 0, 0));
}

#[test]
fn portals_and_targets_are_listed_to_those_who_may_use_them() {
    let config = Config {
        portals: vec![
            Portal { address: address("192.0.2.10:3260"), group: 1 },
            Portal { address: address("192.0.2.11:3260"), group: 2 },
        ],
        ..Config::default()
    };
    let targets = Targets::new(config);
    let offer = |initiators: &[&str], groups: Option<Vec<u16>>| Offer {
        access: Access {
            initiators: initiators.iter().map(ToString::to_string).collect(),
            ..Access::default()
        },
        groups,
        ..Offer::default()
    };
    targets.create("iqn.t:all", offer(&[], None)).unwrap();
    targets.create("iqn.t:second", offer(&["iqn.one"], Some(vec![2]))).unwrap();
    targets.create("iqn.t:hidden", offer(&["iqn.two"], None)).unwrap();
    let mut entering = Entering::new("192.0.2.11:3260", "192.0.2.1:1000");
    assert!(matches!(
        entering.say(&targets, 0x87, "InitiatorName=iqn.one|SessionType=Discovery|"),
        Step::Accepted
    ));
    let accepted = entering.login.finish(1, &mut Outbox::default()).unwrap();
    let session = Session::new(accepted, Arc::clone(&targets), entering.local, Outbox::default());
    let mut host = Host { session, cmd_sn: 1, itt: 1, form: scsi::lun_bytes };
    let mut h = Header::new(op::TEXT | 0x40);
    h.set(16, 5).set(20, NO_TAG).set(24, 1);
    host.push(h, b"SendTargets=All\0");
    let text = String::from_utf8(host.replies().remove(0).1).unwrap().replace('\0', "|");
    assert_eq!(
        text,
        "TargetName=iqn.t:all|TargetAddress=192.0.2.11:3260,2|TargetAddress=192.0.2.10:3260,1|\
         TargetName=iqn.t:second|TargetAddress=192.0.2.11:3260,2|"
    );
    let enter = |local: &str, target: &str| {
        let mut entering = Entering::new(local, "192.0.2.1:1000");
        entering.say(&targets, 0x87, &format!("InitiatorName=iqn.one|TargetName={target}|"));
        (entering.status, entering.value("TargetPortalGroupTag"))
    };
    assert_eq!(
        enter("192.0.2.11:3260", "iqn.t:second"),
        ((0, 0), None),
        "the tag comes with the last answer"
    );
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:second").0, (2, 3), "not in this group");
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:hidden").0, (2, 2), "not for this one");
    targets.remove("iqn.t:hidden");
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:hidden").0, (2, 4), "removed");
}

/// Hosts that log in to all that they are told of had every snapshot as a disk.
#[test]
fn what_is_unlisted_is_named_to_those_who_name_it_and_reached_as_ever() {
    let targets = Targets::new(Config::default());
    let unlisted = Offer { is_unlisted: true, ..Offer::default() };
    targets.create("iqn.t:disk", Offer::default()).unwrap();
    targets.create("iqn.t:disk::snapshot", unlisted.clone()).unwrap();
    let told = |login: &str, asked: &str| {
        let mut entering = Entering::new("192.0.2.11:3260", "192.0.2.1:1000");
        let step = entering.say(&targets, 0x87, &format!("InitiatorName=iqn.one|{login}|"));
        assert!(matches!(step, Step::Accepted), "{login}");
        let accepted = entering.login.finish(1, &mut Outbox::default()).unwrap();
        let session = Session::new(accepted, Arc::clone(&targets), entering.local, Outbox::default());
        let mut host = Host { session, cmd_sn: 1, itt: 1, form: scsi::lun_bytes };
        let mut h = Header::new(op::TEXT | 0x40);
        h.set(16, 5).set(20, NO_TAG).set(24, 1);
        host.push(h, format!("SendTargets={asked}\0").as_bytes());
        String::from_utf8(host.replies().remove(0).1).unwrap().replace('\0', "|")
    };
    let disk = "TargetName=iqn.t:disk|TargetAddress=192.0.2.11:3260,1|";
    let snapshot = "TargetName=iqn.t:disk::snapshot|TargetAddress=192.0.2.11:3260,1|";
    assert_eq!(told("SessionType=Discovery", "All"), disk);
    assert_eq!(told("SessionType=Discovery", "iqn.t:disk::snapshot"), snapshot);
    assert_eq!(told("TargetName=iqn.t:disk::snapshot", ""), snapshot);
    assert!(targets.remove("iqn.t:disk"));
    assert_eq!(told("SessionType=Discovery", "All"), "");
    targets.create("iqn.t:disk", unlisted).unwrap();
    assert_eq!(told("SessionType=Discovery", "All"), "", "one of that name is another");
}

fn secured() -> Arc<Targets> {
    let targets = cluster(&[0]);
    let auth =
        Auth::new("host", b"a secret of hosts").unwrap().mutual("pond", b"secret of the pond").unwrap();
    targets.list()[0].set_access(Access { auth: vec![auth], ..Access::default() });
    targets
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".into(), |text, byte| format!("{text}{byte:02x}"))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").unwrap();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn proof(id: &str, secret: &[u8], challenge: &[u8]) -> String {
    hex(&sha2::Sha256::digest([&[id.parse().unwrap()], secret, challenge].concat()))
}

#[test]
fn a_secured_target_lets_in_who_proves_itself_and_proves_itself_to_who_asks() {
    let targets = secured();
    let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
    host.say(&targets, 0x81, &format!("InitiatorName=iqn.a|TargetName={NAME}|AuthMethod=CHAP,None|"));
    assert_eq!((host.flags & 0x80, host.value("AuthMethod").as_deref()), (0, Some("CHAP")), "not yet");
    host.say(&targets, 0x00, "CHAP_A=6,7,5|");
    assert_eq!(host.value("CHAP_A").as_deref(), Some("7"));
    let (id, challenge) = (host.value("CHAP_I").unwrap(), unhex(&host.value("CHAP_C").unwrap()));
    let response = proof(&id, b"a secret of hosts", &challenge);
    let step = host.say(&targets, 0x81, &format!("CHAP_N=host|CHAP_R={response}|CHAP_I=7|CHAP_C=0x0102|"));
    assert!(matches!(step, Step::Continue));
    assert_eq!(host.flags, 0x81, "on to the next stage");
    assert_eq!(host.value("CHAP_N").as_deref(), Some("pond"));
    assert_eq!(host.value("CHAP_R"), Some(proof("7", b"secret of the pond", &[1, 2])));
    assert!(matches!(host.say(&targets, 0x87, ""), Step::Accepted));
}

#[test]
fn nobody_gets_around_the_proof() {
    let targets = secured();
    let start = format!("InitiatorName=iqn.a|TargetName={NAME}|");
    let refused = |requests: &[(u8, String)]| {
        let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
        for (stages, text) in requests {
            if let Step::Refused(status) = host.say(&targets, *stages, text) {
                return Some(status);
            }
        }
        None
    };
    let failed = Some(Status::AuthenticationFailed);
    assert_eq!(refused(&[(0x87, start.clone())]), failed, "the stage skipped");
    assert_eq!(refused(&[(0x81, format!("{start}AuthMethod=None|"))]), failed);
    assert_eq!(refused(&[(0x83, start.clone())]), failed, "no method at all");
    let chap = (0x00, format!("{start}AuthMethod=CHAP|"));
    assert_eq!(refused(&[chap.clone(), (0x83, String::new())]), failed, "the exchange left out");
    assert_eq!(refused(&[chap.clone(), (0x00, "CHAP_A=6,8|".into())]), failed, "no algorithm in common");
    let asked = [chap, (0x00, "CHAP_A=7|".into())];
    for text in ["", "CHAP_N=host|", "CHAP_N=host|CHAP_R=0x00|", "CHAP_N=host|CHAP_R=nonsense|"] {
        let requests: Vec<_> = asked.iter().cloned().chain([(0x83, text.to_owned())]).collect();
        assert_eq!(refused(&requests), failed, "{text}");
    }
    // Our own challenge comes back as theirs: to be refused even with the right answer.
    let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
    for (stages, text) in &asked {
        host.say(&targets, *stages, text);
    }
    let (id, theirs) = (host.value("CHAP_I").unwrap(), host.value("CHAP_C").unwrap());
    let response = proof(&id, b"a secret of hosts", &unhex(&theirs));
    host.say(&targets, 0x81, &format!("CHAP_N=host|CHAP_R={response}|CHAP_I={id}|CHAP_C={theirs}|"));
    assert_eq!(host.status, (2, 1));
    assert_eq!(host.value("CHAP_R"), None);
}

#[test]
fn a_copy_may_name_disks_of_targets_that_would_let_its_host_in() {
    let targets = cluster(&[0]);
    let other = |name: &str, access: Access| {
        let target = targets.create(name, Offer { access, ..Offer::default() }).unwrap();
        target.add_lun(0, disk(name), Form::default()).unwrap().naa()
    };
    let open = other("iqn.t:open", Access::default());
    let closed = other("iqn.t:closed", Access { initiators: vec!["iqn.two".into()], ..Access::default() });
    let auth = vec![Auth::new("host", b"a secret of hosts").unwrap()];
    let secured = other("iqn.t:secured", Access { auth, ..Access::default() });
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    for (naa, status) in [(open, 0), (closed, 2), (secured, 2)] {
        let mut list = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
        list.extend([0xe4, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(naa);
        list.extend([0, 0, 0, 0, 0, 0, 2, 0]);
        list.extend([2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 1]);
        list.extend([0; 16]);
        let cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
        let (got, sense) = host.send(0, &cdb, &list, 0);
        assert_eq!(got, status, "{sense:02x?}");
    }
}
