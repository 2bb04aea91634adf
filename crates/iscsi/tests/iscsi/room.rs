//! Memory that sessions share: who waits for it, who passes, and who is sent away for being in the way.

use std::sync::Arc;

use block::{BlockVolume, Extent, Geometry, Identity, Segment, Segments, VolumeFuture};
use bytes::Bytes;
use iscsi::{
    Config, Offer, Targets,
    inbox::Inbox,
    login::Login,
    pdu::{Header, NO_TAG, Outbox, op},
    session::Session,
};
use memory::{Gate, Member};

use crate::initiator::{Initiator, NAME, discovery, login_pdu, now, rw10, send_data, targets_behind, volume};
use crate::support::AtHand;

/// What other connections hold leaves room for a write or a read of 16 KiB, not for both.
fn nearly_full() -> (Arc<Gate>, Member) {
    let gate = Gate::new(64 << 10);
    let mut others = Member::new(Arc::clone(&gate));
    assert!(others.ask(0, 40 << 10));
    (gate, others)
}

fn turn(i: &mut Initiator) -> bool {
    i.session.settle(0);
    i.session.poll_turn(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
}

/// Both would wait for ever: the read for room that the write has, the write for its place behind the read.
#[test]
fn a_read_that_has_no_room_does_not_hold_up_a_write_whose_data_is_there() {
    let (gate, _others) = nearly_full();
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "ImmediateData=No");
    let h = i.header(&rw10(0x2a, 0, 32), 0x20, 16 << 10);
    i.push(h, &[]).unwrap();
    let r2t = i.replies()[0].header;
    assert_eq!((r2t.opcode(), gate.used()), (op::R2T, 56 << 10));
    let h = i.header(&rw10(0x28, 0, 32), 0x40, 16 << 10);
    i.push(h, &[]).unwrap();
    assert_eq!((i.replies(), gate.waiting()), (vec![], 1), "there is no room for what it reads");
    assert!(!turn(&mut i));
    let payload = vec![7; 16 << 10];
    send_data(&mut i, r2t.itt(), r2t.word20(), 0, payload.len(), &payload, 8192);
    let written = i.replies();
    assert_eq!((written.len(), written[0].header.opcode(), written[0].header.0[3]), (1, op::RESPONSE, 0));
    assert!(turn(&mut i), "what the write had is there for the read");
    i.pump().unwrap();
    assert_eq!(i.replies().into_iter().flat_map(|reply| reply.data).collect::<Vec<u8>>(), payload);
    turn(&mut i);
    assert_eq!(gate.used(), 40 << 10, "all of it was given back");
}

#[test]
fn data_is_asked_for_when_there_is_room_for_all_of_it() {
    let (gate, others) = nearly_full();
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "ImmediateData=No");
    for _ in 0..2 {
        let h = i.header(&rw10(0x2a, 0, 32), 0x20, 16 << 10);
        i.push(h, &[]).unwrap();
    }
    assert_eq!(i.replies().len(), 1, "one of two");
    assert!(!turn(&mut i));
    drop(others);
    assert!(turn(&mut i));
    assert_eq!(i.replies()[0].header.opcode(), op::R2T);
    assert_eq!(gate.used(), 32 << 10);
    drop(i);
    assert_eq!((gate.used(), gate.waiting(), gate.members()), (0, 0, 0));
}

#[test]
fn what_waits_too_long_for_room_is_to_be_sent_again_and_what_has_room_goes_on() {
    let (gate, others) = nearly_full();
    let disk = volume();
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &disk), "FirstBurstLength=512");
    assert_eq!(i.session.room_due(), None);
    let writes = [0, 64].map(|lba| {
        let h = i.header(&rw10(0x2a, lba, 32), 0x20, 16 << 10);
        i.push(h, &[9; 512]).unwrap();
        h
    });
    let r2t = i.replies()[0].header;
    assert_eq!((r2t.opcode(), r2t.itt()), (op::R2T, writes[0].itt()));
    let read = i.header(&rw10(0x28, 0, 32), 0x40, 16 << 10);
    i.push(read, &[]).unwrap();
    let due = i.session.room_due().unwrap();
    i.session.give_up(due - std::time::Duration::from_millis(1));
    assert_eq!(i.replies(), [], "not yet");
    i.session.give_up(due + std::time::Duration::from_secs(1));
    let given_up: Vec<_> = i.replies().iter().map(|reply| (reply.header.itt(), reply.header.0[3])).collect();
    assert_eq!(given_up, [(writes[1].itt(), 0x28), (read.itt(), 0x28)], "TASK SET FULL");
    assert_eq!(i.session.room_due(), None);
    i.pump().unwrap();
    assert_eq!(gate.waiting(), 0);
    send_data(&mut i, r2t.itt(), r2t.word20(), 512, 16 << 10, &[7; 16 << 10], 8192);
    assert_eq!(i.replies()[0].header.0[3], 0);
    drop(others);
    let both = [i.read(0, 2), i.read(64, 1)];
    assert_eq!(
        both,
        [[[9; 512], [7; 512]].concat(), vec![0; 512]],
        "of the other one not a byte was written"
    );
}

/// A host of a disk that is in memory.
fn host_of_cached(gate: &Arc<Gate>) -> Initiator {
    let targets = Targets::new(Config { gate: Arc::clone(gate), ..Config::default() });
    targets.add(NAME, AtHand::volume()).unwrap();
    let mut i = Initiator::of(targets, "");
    turn(&mut i);
    i
}

/// They were answered at once, whatever others held: up to 32 MiB each.
#[test]
fn long_reads_that_are_in_memory_wait_for_room_and_short_ones_do_not() {
    let gate = Gate::new(1 << 20);
    let mut i = host_of_cached(&gate);
    let mut others = Member::new(Arc::clone(&gate));
    assert!(others.ask(0, 1 << 20));
    for _ in 0..2 {
        let h = i.header(&rw10(0x28, 0, 256), 0x40, 128 << 10);
        i.push(h, &[]).unwrap();
        assert_eq!((i.replies(), gate.waiting()), (vec![], 1));
    }
    assert_eq!(i.read(0, 128).len(), 64 << 10);
    assert!(!turn(&mut i));
    drop(others);
    assert!(turn(&mut i));
    i.pump().unwrap();
    let replies = i.replies();
    assert_eq!(replies.iter().map(|reply| reply.data.len()).sum::<usize>(), 256 << 10);
    turn(&mut i);
    assert_eq!((gate.used(), gate.waiting()), (0, 0));
}

/// A volume that lends parts of one block.
struct Lender(Bytes);

impl Lender {
    fn lend(&self, len: usize) -> Segments {
        std::iter::once(Segment::Data(self.0.slice(..len))).collect()
    }
}

impl BlockVolume for Lender {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 20, block: 16 << 10, read_only: false }
    }
    fn identity(&self) -> Identity {
        Identity { name: "tank/lender".into(), guid: 1, pool_guid: 2 }
    }
    fn read_cached(&self, _: u64, len: usize) -> Option<Segments> {
        Some(self.lend(len))
    }
    fn read(&self, _: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move { Ok(self.lend(len)) })
    }
    fn extents(&self, _: u64, len: u64, _: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}

/// Each kept a block for its few bytes, and nobody had counted more than these.
#[test]
fn answers_that_are_cut_short_keep_no_blocks() {
    let disk = Arc::new(Lender(Bytes::from(vec![7; 16 << 10])));
    let targets = Targets::new(Config { gate: Gate::new(512 << 20), ..Config::default() });
    targets.add(NAME, Arc::clone(&disk) as Arc<dyn BlockVolume>).unwrap();
    let mut i = Initiator::of(targets, "");
    turn(&mut i);
    let read = |i: &mut Initiator, expected: u32| {
        let h = i.header(&rw10(0x28, 0, 8), 0x40, expected);
        i.push(h, &[]).unwrap();
    };
    (0..100).for_each(|_| read(&mut i, 300));
    assert!(disk.0.is_unique(), "copied");
    let replies = i.replies();
    assert!(replies.len() == 100 && replies.iter().all(|reply| reply.data == [7; 300]));
    read(&mut i, 4096);
    assert!(!disk.0.is_unique(), "a quarter of a block that is wanted as it is goes out as it is");
    assert_eq!(i.replies()[0].data, [7; 4096]);
    assert!(disk.0.is_unique());
}

/// All were answered when the one before them came, however much waited for the host already.
#[test]
fn commands_that_came_early_are_served_as_far_as_their_host_takes_its_answers() {
    const READS: u32 = 24;
    let mut i = host_of_cached(&Gate::new(512 << 20));
    let missing = i.header(&[0], 0, 0);
    for _ in 0..READS {
        let h = i.header(&rw10(0x28, 0, 2048), 0x40, 1 << 20);
        i.push(h, &[]).unwrap();
    }
    assert_eq!((i.replies(), i.session.is_behind()), (vec![], false));
    i.push(missing, &[]).unwrap();
    let mut served = Vec::new();
    while served.len() <= READS as usize {
        let len = i.session.outbox().len();
        assert!((1..6 << 20).contains(&len), "{len} bytes at a time");
        let replies = i.replies();
        let with_status = |header: &Header| header.opcode() == op::RESPONSE || header.0[1] & 1 != 0;
        served.extend(replies.iter().map(|reply| reply.header).filter(with_status).map(|h| h.itt()));
        i.pump().unwrap();
    }
    assert!(served.iter().copied().eq(missing.itt()..=missing.itt() + READS), "in their order: {served:?}");
    assert!(!i.session.is_behind());
}

/// WRITE SAME(16) of the whole disk.
fn write_same(flags: u8) -> [u8; 16] {
    [0x93, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]
}

/// Their data was there, so they were run at once: 128 of a session, with a MiB or two each that nobody had counted.
#[test]
fn what_is_written_or_compared_all_over_waits_for_room_and_holes_need_none() {
    let gate = Gate::new(8 << 20);
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "");
    turn(&mut i);
    for _ in 0..16 {
        let h = i.header(&write_same(0), 0x20, 512);
        let bytes = i.bytes(h, &[7; 512]);
        i.inbox.extend(&bytes);
    }
    i.session.handle_bytes(&mut i.inbox).unwrap();
    let works: Vec<_> = std::iter::from_fn(|| i.session.poll_work()).collect();
    assert_eq!((works.len(), gate.used(), gate.waiting()), (8, 8 << 20, 1), "a MiB each");
    for work in works {
        let (ticket, came) = now(work.run());
        i.session.complete(ticket, came);
    }
    assert!(turn(&mut i));
    i.pump().unwrap();
    let statuses: Vec<u8> = i.replies().iter().map(|reply| reply.header.0[3]).collect();
    assert_eq!(statuses, [0; 16]);
    turn(&mut i);
    assert_eq!((gate.used(), gate.waiting()), (0, 0));

    let mut others = Member::new(Arc::clone(&gate));
    assert!(others.ask(0, 8 << 20));
    for (flags, block) in [(0, [0; 512]), (8, [7; 512])] {
        let reply = i.command(&write_same(flags), 0x20, 512, &block);
        assert_eq!(reply[0].header.0[3], 0, "{flags}: it becomes a hole");
    }
    let verify = [0x2f, 6, 0, 0, 0, 0, 0, 8, 0, 0];
    for cdb in [&write_same(0)[..], &verify] {
        assert_eq!(i.command(cdb, 0x20, 512, &[7; 512]), [], "{cdb:02x?}");
    }
    assert_eq!(gate.waiting(), 1);
    // A host that hears nothing sends it again.
    let due = i.session.room_due().unwrap();
    i.session.give_up(due + std::time::Duration::from_secs(1));
    let statuses: Vec<u8> = i.replies().iter().map(|reply| reply.header.0[3]).collect();
    assert_eq!(statuses, [0x28, 0x08], "TASK SET FULL, and BUSY for the last one");
    drop(others);
    assert_eq!(i.read(0, 1), [0; 512], "nothing of them was done");
}

/// Its few bytes would have been in the way of what it waited for.
#[test]
fn a_pattern_that_waits_for_room_holds_none() {
    let gate = Gate::new(1 << 20);
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "ImmediateData=No");
    turn(&mut i);
    let h = i.header(&write_same(0), 0x20, 512);
    i.push(h, &[]).unwrap();
    let r2t = i.replies()[0].header;
    assert_eq!(r2t.opcode(), op::R2T);
    let mut others = Member::new(Arc::clone(&gate));
    assert!(others.ask(0, 1 << 19));
    send_data(&mut i, h.itt(), r2t.word20(), 0, 512, &[7; 512], 512);
    assert_eq!(i.replies(), [], "it wants all there is");
    assert!(!turn(&mut i));
    drop(others);
    assert!(turn(&mut i));
    i.pump().unwrap();
    assert_eq!(i.replies()[0].header.0[3], 0);
}

/// Looks at the gate for as many seconds, twice in each; who was expelled.
fn watch(gate: &Gate, seconds: u32, mut each: impl FnMut()) -> Vec<String> {
    let second = |_| {
        each();
        [(); 2].map(|()| gate.watch(std::time::Duration::from_millis(500), false).expelled)
    };
    (0..seconds).flat_map(second).flatten().map(|one| one.name).collect()
}

#[test]
fn who_is_asked_for_data_and_only_says_that_it_is_alive_is_expelled() {
    let gate = Gate::new(64 << 10);
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "ImmediateData=No");
    let h = i.header(&rw10(0x2a, 0, 128), 0x20, 64 << 10);
    i.push(h, &[]).unwrap();
    assert_eq!(i.replies()[0].header.opcode(), op::R2T);
    let mut other = Member::new(Arc::clone(&gate));
    assert!(!other.ask(0, 1000));
    let expelled = watch(&gate, 12, || {
        let mut h = Header::new(op::NOP_OUT | 0x40);
        h.set(16, 77).set(20, NO_TAG).set(24, i.cmd_sn);
        i.push(h, &[]).unwrap();
        i.replies();
        assert!(!turn(&mut i));
    });
    assert_eq!(expelled, ["iqn.test at 127.0.0.1:0"]);
    drop(i);
    assert!(other.poll_turn(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready());
}

#[test]
fn who_sends_what_it_is_asked_for_and_waits_for_the_disk_stays() {
    let gate = Gate::new(64 << 10);
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "ImmediateData=No");
    let h = i.header(&rw10(0x2a, 0, 128), 0x20, 64 << 10);
    i.push(h, &[]).unwrap();
    let r2t = i.replies()[0].header;
    let mut other = Member::new(Arc::clone(&gate));
    assert!(!other.ask(0, 1000));
    // Not slower than a sixth of it in eight seconds.
    for part in 0..8_usize {
        let mut d = Header::new(op::DATA_OUT);
        d.0[1] = if part == 7 { 0x80 } else { 0 };
        d.set(16, h.itt()).set(20, r2t.word20()).set(36, part as u32).set(40, part as u32 * 8192);
        let bytes = i.bytes(d, &[7; 8192]);
        i.inbox.extend(&bytes);
        // Taken in, and not run: the disk takes its time.
        i.session.handle_bytes(&mut i.inbox).unwrap();
        assert!(!turn(&mut i));
        assert_eq!(watch(&gate, 1, || {}), [""; 0]);
    }
    assert_eq!(watch(&gate, 60, || {}), [""; 0]);
    i.pump().unwrap();
    assert_eq!(i.replies()[0].header.0[3], 0, "written");
}

#[test]
fn who_does_not_take_its_answers_is_expelled() {
    let gate = Gate::new(1 << 20);
    let mut i = Initiator::of(targets_behind(Arc::clone(&gate), &volume()), "");
    let h = i.header(&rw10(0x28, 0, 2048), 0x40, 1 << 20);
    i.push(h, &[]).unwrap();
    i.session.settle(0);
    let mut other = Member::new(Arc::clone(&gate));
    assert!(!other.ask(0, 1000));
    let expelled = watch(&gate, 12, || assert!(!turn(&mut i)));
    assert_eq!(expelled, ["iqn.test at 127.0.0.1:0"]);
}

/// Data that comes unasked cannot wait, so fewer commands may bring some where many share little.
#[test]
fn many_sessions_that_share_little_have_narrow_windows_and_short_first_bursts() {
    let gate = Gate::new(32 << 20);
    let targets = targets_behind(Arc::clone(&gate), &volume());
    let text = format!("InitiatorName=iqn.a|TargetName={NAME}|FirstBurstLength=262144|");
    let (header, data) = login_pdu(0x87, &text);
    let window = |members: usize| {
        let _others: Vec<Member> = (0..members).map(|_| Member::new(Arc::clone(&gate))).collect();
        let mut outbox = Outbox::default();
        let mut login = Login::default();
        login.handle(&header, &data, &targets, &mut outbox).unwrap();
        let accepted = login.finish(7, &mut outbox).unwrap();
        let wire = outbox.drain();
        let text = String::from_utf8_lossy(&wire).into_owned();
        assert!(text.contains("FirstBurstLength=32768"), "{text}");
        drop(accepted);
        let response: [u8; 48] = *wire.first_chunk().unwrap();
        let word = |at: usize| u32::from_be_bytes(response[at..at + 4].try_into().unwrap());
        word(32) - word(28) + 1
    };
    assert_eq!([window(1), window(20), window(200)], [128, 25, 8]);
}

/// Whoever reached the server left all hosts eight commands each, with sessions that can have none.
#[test]
fn who_only_discovers_narrows_no_window() {
    let gate = Gate::new(32 << 20);
    let targets = targets_behind(Arc::clone(&gate), &volume());
    let strangers: Vec<Session> = (0..100).map(|_| discovery(&targets, "")).collect();
    assert_eq!(gate.members(), 0);
    let mut host = Initiator::of(targets, "FirstBurstLength=32768");
    let answer = host.command(&[0], 0, 0, &[]).remove(0).header;
    let word = |at: usize| u32::from_be_bytes(answer.0[at..at + 4].try_into().unwrap());
    assert_eq!(word(32) - word(28) + 1, 128);
    drop(strangers);
    assert_eq!(gate.members(), 2);
}

/// They have no share that would be a measure for it: hundreds of them, with answers of some MiB each.
#[test]
fn who_only_discovers_is_not_served_before_it_takes_its_answers() {
    let gate = Gate::new(512 << 20);
    let mut stranger = discovery(&targets_behind(gate, &volume()), "MaxRecvDataSegmentLength=262144");
    let mut ping = Header::new(op::NOP_OUT | 0x40);
    ping.set(16, 77).set(20, NO_TAG).set(24, 1);
    let mut bytes = Outbox::default();
    bytes.push(ping, &b"x".repeat(64 << 10));
    let bytes = bytes.drain();
    let mut inbox = Inbox::default();
    (0..16).for_each(|_| inbox.extend(&bytes));
    stranger.handle_bytes(&mut inbox).unwrap();
    let len = stranger.outbox().len();
    assert!(stranger.is_full() && (256 << 10..512 << 10).contains(&len), "{len}");
}

/// Megabytes of each answer lay there that was not fetched, and of each request that went on, and nobody had counted them.
#[test]
fn what_is_kept_of_text_is_little_and_counted() {
    let gate = Gate::new(512 << 20);
    let targets = targets_behind(Arc::clone(&gate), &volume());
    for n in 0..5000 {
        targets.create(&format!("{NAME}{n}"), Offer::default()).unwrap();
    }
    let mut stranger = discovery(&targets, "MaxRecvDataSegmentLength=512");
    let mut say = |flags: u8, text: &[u8]| {
        let mut h = Header::new(op::TEXT | 0x40);
        h.0[1] = flags;
        h.set(16, 5).set(20, NO_TAG).set(24, 1);
        let (mut out, mut inbox) = (Outbox::default(), Inbox::default());
        out.push(h, text);
        inbox.extend(&out.drain());
        stranger.handle_bytes(&mut inbox).unwrap();
        let reply = Header(*stranger.outbox().drain().first_chunk().unwrap());
        stranger.settle(0);
        (reply.opcode(), reply.is_final(), gate.buffers())
    };
    let (opcode, is_final, kept) = say(0x80, b"SendTargets=All\0");
    assert!((opcode, is_final) == (op::TEXT_RESPONSE, false) && (1..1024).contains(&kept), "{kept}");
    let (opcode, is_final, kept) = say(0x40, &b"x".repeat(40 << 10));
    assert!(
        (opcode, is_final) == (op::TEXT_RESPONSE, false) && (40 << 10..82 << 10).contains(&kept),
        "{kept}"
    );
    drop(stranger);
    assert_eq!(gate.buffers(), 0);
}
