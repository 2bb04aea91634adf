//! The protocol as a value, driven without a socket: what the stock clients do not try.

use std::sync::Arc;

use block::{BlockVolume, Durability, MemVolume, Segment, Segments};
use bytes::Bytes;
use iscsi::{
    Config, Counters, Targets,
    login::Login,
    pdu::{Fatal, Header, NO_TAG, Outbox, op},
};
use memory::Gate;
use proptest::prelude::*;

use crate::initiator::{Initiator, NAME, Reply, now, rw10, send_data, sense, targets, volume};

/// Of its blocks of 8 KiB it has every second one at hand.
struct Half(Arc<MemVolume>, std::sync::Mutex<Vec<usize>>);

impl BlockVolume for Half {
    fn geometry(&self) -> block::Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> block::Identity {
        self.0.identity()
    }
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        (offset / 8192).is_multiple_of(2).then(|| now(self.0.read(offset, len)).ok()).flatten()
    }
    /// Keeps how many came, and answers the last first.
    fn read_cached_each(&self, reads: &[(u64, usize)], found: &mut dyn FnMut(usize, Option<Segments>)) {
        self.1.lock().unwrap().push(reads.len());
        for (number, (offset, len)) in reads.iter().enumerate().rev() {
            found(number, self.read_cached(*offset, *len));
        }
    }
    fn read(&self, offset: u64, len: usize) -> block::VolumeFuture<'_, Segments> {
        self.0.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> block::VolumeFuture<'_, Vec<block::Extent>> {
        self.0.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> block::VolumeFuture<'_, ()> {
        self.0.write(offset, data, durability)
    }
}

/// Its reservation was gone when its connection was, some moments after it had been told that it is out: whoever was told of that
/// and reserved the disk had a conflict.
#[test]
fn what_ends_with_a_session_has_ended_when_its_logout_is_answered() {
    let targets = targets(&volume());
    let [mut first, mut second] =
        ["iqn.first", "iqn.second"].map(|name| Initiator::named(name, Arc::clone(&targets), ""));
    let status = |host: &mut Initiator| host.command(&[0x16, 0, 0, 0, 0, 0], 0, 0, &[])[0].header.0[3];
    assert_eq!((status(&mut first), status(&mut second)), (0, 0x18), "RESERVATION CONFLICT");
    let mut logout = Header::new(op::LOGOUT | 0x40);
    logout.0[1] = 0x80;
    logout.set(16, 99).set(24, first.cmd_sn);
    first.push(logout, &[]).unwrap();
    let answer = first.replies()[0].header;
    assert_eq!((answer.opcode(), answer.0[2]), (op::LOGOUT_RESPONSE, 0));
    assert_eq!(status(&mut second), 0);
    drop(first);
    assert_eq!(status(&mut second), 0);
}

/// It took the place in the line of the one that was aborted, was run without its data, and answered GOOD.
#[test]
fn a_write_under_the_tag_of_an_aborted_command_is_not_run_before_its_data_is_there() {
    let volume = volume();
    let mut host = Initiator::new(&volume, "");
    let flush = host.header(&rw10(0x35, 0, 0), 0, 0);
    let mut abort = Header::new(op::TASK_MANAGEMENT | 0x40);
    abort.0[1] = 0x81;
    abort.set(16, 99).set(20, flush.itt()).set(24, host.cmd_sn).set(32, flush.cmd_sn());
    let mut write = host.header(&rw10(0x2a, 0, 1), 0x20, 512);
    write.set(16, flush.itt());
    // In one piece, so that none of them is run before the last has been taken in.
    let wire = [flush, abort, write].map(|header| host.bytes(header, &[])).concat();
    host.inbox.extend(&wire);
    host.pump().unwrap();
    let replies = host.replies();
    let opcodes: Vec<u8> = replies.iter().map(|reply| reply.header.opcode()).collect();
    assert_eq!(opcodes, [op::TASK_MANAGEMENT_RESPONSE, op::R2T]);
    let mut data = Header::new(op::DATA_OUT);
    data.set(16, write.itt()).set(20, replies[1].header.word20());
    host.push(data, &[7; 512]).unwrap();
    let answer = host.replies().remove(0).header;
    assert_eq!((answer.opcode(), answer.0[3]), (op::RESPONSE, 0));
    assert_eq!(host.read(0, 1), [7; 512]);
}

/// Small reads that came together are looked up together; nothing that came after one of them overtakes it.
#[test]
fn reads_that_come_together_are_answered_from_memory_or_begun_each_and_before_what_follows() {
    let volume = volume();
    for block in 0..64_u8 {
        let data = std::iter::once(Segment::Data(Bytes::from(vec![block; 8192]))).collect();
        now(volume.write(u64::from(block) * 8192, data, Durability::Cached)).unwrap();
    }
    let targets = Targets::new(Config { gate: Gate::new(512 << 20), ..Config::default() });
    let half = Arc::new(Half(Arc::clone(&volume), std::sync::Mutex::default()));
    targets.add(NAME, Arc::clone(&half) as Arc<dyn BlockVolume>).unwrap();
    let mut host = Initiator::of(targets, "");
    let mut wire = Vec::new();
    let mut reads = std::collections::BTreeMap::new();
    for n in 0..40_u32 {
        let h = host.header(&rw10(0x28, n * 16 + 3, 8), 0x40, 4096);
        reads.insert(h.itt(), n as u8);
        wire.extend(host.bytes(h, &[]));
        if n == 20 {
            // To a LUN that is not there, a block that was read before, and a read of nothing.
            let mut h = host.header(&rw10(0x28, 0, 8), 0x40, 4096);
            h.0[9] = 5;
            wire.extend(host.bytes(h, &[]));
            let h = host.header(&rw10(0x2a, 3, 8), 0x20, 4096);
            wire.extend(host.bytes(h, &[0xee; 4096]));
            let h = host.header(&rw10(0x28, 16, 0), 0x40, 0);
            wire.extend(host.bytes(h, &[]));
        }
    }
    host.inbox.extend(&wire);
    host.session.handle_bytes(&mut host.inbox).unwrap();
    let at_once = host.replies();
    let hits = at_once.iter().filter(|reply| reply.header.opcode() == op::DATA_IN).count();
    assert_eq!(hits, 20, "what is in memory is answered when the call returns");
    assert_eq!(*half.1.lock().unwrap(), [16, 5, 16, 3], "up to sixteen, and to what is no read of theirs");
    host.pump().unwrap();
    let all: Vec<Reply> = at_once.into_iter().chain(host.replies()).collect();
    assert_eq!(all.len(), 43);
    let mut stat_sn = None;
    for reply in &all {
        let now = u32::from_be_bytes(reply.header.0[24..28].try_into().unwrap());
        assert!(stat_sn.replace(now).is_none_or(|before| now == before.wrapping_add(1)));
        if let Some(n) = reads.get(&reply.header.itt()) {
            assert_eq!((reply.header.opcode(), reply.data.len()), (op::DATA_IN, 4096));
            assert!(reply.data.iter().all(|byte| byte == n), "{n}: {}", reply.data[0]);
        }
    }
    assert_eq!(host.read(3, 8), vec![0xee; 4096]);
    // One that is at hand and fifteen that are not: what is told of the window knows of all.
    let mut wire = Vec::new();
    for n in 0..16 {
        let h = host.header(&rw10(0x28, if n == 0 { 0 } else { n * 32 + 16 }, 8), 0x40, 4096);
        wire.extend(host.bytes(h, &[]));
    }
    host.inbox.extend(&wire);
    host.session.handle_bytes(&mut host.inbox).unwrap();
    let hit = host.replies().remove(0).header;
    let word = |at: usize| u32::from_be_bytes(hit.0[at..at + 4].try_into().unwrap());
    let open = word(32).wrapping_sub(word(28)).wrapping_add(1);
    assert_eq!(open, iscsi::session::WINDOW - 15);
    host.pump().unwrap();
    assert_eq!(host.replies().len(), 15);
    // What would abort a read that is at hand comes too late, and is told so behind it.
    let read = host.header(&rw10(0x28, 0, 8), 0x40, 4096);
    let mut abort = Header::new(op::TASK_MANAGEMENT | 0x40);
    abort.0[1] = 0x81;
    abort.set(16, 9999).set(20, read.itt()).set(24, host.cmd_sn).set(32, read.cmd_sn());
    let wire = [host.bytes(read, &[]), host.bytes(abort, &[])].concat();
    host.inbox.extend(&wire);
    host.pump().unwrap();
    let replies = host.replies();
    assert_eq!(replies.len(), 2, "{replies:?}");
    assert_eq!(replies[0].header.opcode(), op::DATA_IN);
    assert_eq!((replies[1].header.itt(), replies[1].header.0[2]), (9999, 1), "there is no such task");
    // The same tag again, while it may be a task: refused if it is one, and served twice if it was answered.
    for (block, refused) in [(0, 0), (1, 1)] {
        let h = host.header(&rw10(0x28, block * 16, 8), 0x40, 4096);
        let mut again = host.header(&rw10(0x28, block * 16, 8), 0x40, 4096);
        again.set(16, h.itt());
        let wire = [host.bytes(h, &[]), host.bytes(again, &[])].concat();
        host.inbox.extend(&wire);
        host.pump().unwrap();
        let replies = host.replies();
        let rejects = replies.iter().filter(|reply| reply.header.opcode() == op::REJECT).count();
        assert_eq!((replies.len(), rejects), (2, refused), "{replies:?}");
    }
}

#[test]
fn writes_move_the_right_bytes_under_every_combination_of_the_transfer_keys() {
    for initial_r2t in ["Yes", "No"] {
        for immediate in ["Yes", "No"] {
            for (first, burst, segment) in
                [(512, 512, 512), (1024, 4096, 512), (4096, 8192, 8192), (65536, 65536, 3000)]
            {
                for crc in ["None", "CRC32C"] {
                    let keys = format!(
                        "InitialR2T={initial_r2t}|ImmediateData={immediate}|FirstBurstLength={first}|\
                         MaxBurstLength={burst}|HeaderDigest={crc}|DataDigest={crc}|MaxRecvDataSegmentLength={}",
                        segment.max(512)
                    );
                    one_write(&keys, initial_r2t == "No", immediate == "Yes", first, segment);
                }
            }
        }
    }
}

fn one_write(keys: &str, unsolicited: bool, immediate: bool, first: usize, segment: usize) {
    let disk = volume();
    let mut i = Initiator::new(&disk, keys);
    let payload: Vec<u8> = (0..24 * 512_u32).map(|n| (n % 253) as u8).collect();
    let mut h = i.header(&rw10(0x2a, 3, 24), 0x20, payload.len() as u32);
    let itt = h.itt();
    let in_command = if immediate { first.min(segment).min(payload.len()) } else { 0 };
    let by_itself = if unsolicited { first.min(payload.len()) } else { in_command };
    if by_itself > in_command {
        h.0[1] &= 0x7f;
    }
    i.push(h, &payload[..in_command]).unwrap();
    send_data(&mut i, itt, NO_TAG, in_command, by_itself, &payload, segment);
    loop {
        let replies = i.replies();
        assert_eq!(replies.len(), 1, "{keys}: {replies:?}");
        let h = replies[0].header;
        if h.opcode() != op::R2T {
            assert_eq!((h.opcode(), h.0[3], h.0[1]), (op::RESPONSE, 0, 0x80), "{keys}");
            break;
        }
        let word = |at: usize| u32::from_be_bytes(h.0[at..at + 4].try_into().unwrap()) as usize;
        let (at, len) = (word(40), word(44));
        send_data(&mut i, itt, h.word20(), at, at + len, &payload, segment);
    }
    assert!(i.read(3, 24) == payload, "{keys}");
}

#[test]
fn as_many_bursts_are_asked_for_at_once_as_was_agreed() {
    const BURST: usize = 1024;
    let disk = volume();
    for (agreed, at_once) in [(1, 1), (3, 3), (100, 8)] {
        let keys =
            format!("ImmediateData=No|InitialR2T=Yes|MaxBurstLength={BURST}|MaxOutstandingR2T={agreed}");
        let mut i = Initiator::new(&disk, &keys);
        let payload: Vec<u8> = (0..24 * 512_u32).map(|n| (n % 251 + agreed) as u8).collect();
        let h = i.header(&rw10(0x2a, 3, 24), 0x20, payload.len() as u32);
        i.push(h, &[]).unwrap();
        let word = |h: &Header, at: usize| u32::from_be_bytes(h.0[at..at + 4].try_into().unwrap()) as usize;
        let (mut asked, mut next) = (std::collections::VecDeque::new(), 0);
        let answered = loop {
            for reply in i.replies() {
                asked.push_back(reply.header);
            }
            let left = (payload.len() - next) / BURST;
            if left == 0 {
                break asked.pop_front().unwrap();
            }
            assert_eq!(asked.len(), left.min(at_once), "{keys}: {left} left");
            let r2t = asked.pop_front().unwrap();
            assert_eq!((r2t.opcode(), word(&r2t, 36)), (op::R2T, next / BURST), "{keys}: in order");
            assert_eq!((word(&r2t, 40), word(&r2t, 44)), (next, BURST), "{keys}");
            send_data(&mut i, h.itt(), r2t.word20(), next, next + BURST, &payload, 512);
            next += BURST;
        };
        assert_eq!((answered.opcode(), answered.0[3]), (op::RESPONSE, 0), "{keys}");
        assert!(i.read(3, 24) == payload, "{keys}");
    }
    // The data of the second burst before that of the first.
    let mut i =
        Initiator::new(&disk, "ImmediateData=No|InitialR2T=Yes|MaxBurstLength=512|MaxOutstandingR2T=2");
    let before = i.read(3, 2);
    let h = i.header(&rw10(0x2a, 3, 2), 0x20, 1024);
    i.push(h, &[]).unwrap();
    let second = i.replies()[1].header;
    let mut d = Header::new(op::DATA_OUT);
    d.0[1] = 0x80;
    d.set(16, h.itt()).set(20, second.word20()).set(40, 512);
    i.push(d, &[9; 512]).unwrap();
    assert_eq!(i.replies()[0].header.0[3], 2, "ABORTED COMMAND");
    assert!(i.read(3, 2) == before);
}

#[test]
fn data_out_of_order_ends_the_command_and_not_a_byte_is_written() {
    for (sn, offset, ttt_wrong) in [(1, 0, false), (0, 512, false), (0, 0, true)] {
        let disk = volume();
        let mut i = Initiator::new(&disk, "ImmediateData=No|InitialR2T=Yes");
        let h = i.header(&rw10(0x2a, 0, 2), 0x20, 1024);
        i.push(h, &[]).unwrap();
        let r2t = i.replies()[0].header;
        let mut d = Header::new(op::DATA_OUT);
        let ttt = if ttt_wrong { r2t.word20() + 1 } else { r2t.word20() };
        d.set(16, h.itt()).set(20, ttt).set(36, sn).set(40, offset);
        i.push(d, &[9; 512]).unwrap();
        assert_eq!(sense(&i.replies()[0]), (0xb, 0x4b, 0), "{sn} {offset} {ttt_wrong}");
        assert_eq!(i.read(0, 2), vec![0; 1024]);
    }
}

#[test]
fn the_window_closes_behind_unanswered_writes_and_opens_again() {
    let mut i = Initiator::new(&volume(), "ImmediateData=No");
    for _ in 0..128 {
        let h = i.header(&rw10(0x2a, 0, 1), 0x20, 512);
        i.push(h, &[]).unwrap();
    }
    let r2ts = i.replies();
    assert_eq!(r2ts.len(), 128);
    let beyond = i.header(&[0], 0, 0);
    i.push(beyond, &[]).unwrap();
    assert_eq!(i.replies(), [], "a command beyond the window is ignored");
    let mut d = Header::new(op::DATA_OUT);
    d.set(16, r2ts[0].header.itt()).set(20, r2ts[0].header.word20());
    i.push(d, &[1; 512]).unwrap();
    let answer = i.replies()[0].header;
    let max_cmd_sn = u32::from_be_bytes(answer.0[32..36].try_into().unwrap());
    assert_eq!(max_cmd_sn, beyond.cmd_sn(), "one answered, one more may come");
    i.push(beyond, &[]).unwrap();
    assert_eq!(i.replies().len(), 1);
}

#[test]
fn commands_out_of_turn_wait_for_theirs() {
    let mut i = Initiator::new(&volume(), "");
    let first = i.header(&[0], 0, 0);
    let second = i.header(&[0], 0, 0);
    i.push(second, &[]).unwrap();
    assert_eq!(i.replies(), []);
    i.push(first, &[]).unwrap();
    let order: Vec<u32> = i.replies().iter().map(|reply| reply.header.itt()).collect();
    assert_eq!(order, [first.itt(), second.itt()]);
}

/// They would be counted nowhere: 128 of 256 KiB each for every session.
#[test]
fn commands_ahead_of_a_missing_one_bring_no_more_data_than_one_may() {
    let mut i = Initiator::new(&volume(), "InitialR2T=No|FirstBurstLength=65536");
    let missing = i.header(&[0], 0, 0);
    for _ in 0..4 {
        let h = i.header(&rw10(0x2a, 0, 128), 0x20, 64 << 10);
        i.push(h, &vec![7; 64 << 10]).unwrap();
        i.push(h, &vec![7; 64 << 10]).unwrap(); // once more is no more
    }
    let without = i.header(&[0], 0, 0);
    i.push(without, &[]).unwrap();
    let h = i.header(&rw10(0x2a, 0, 1), 0x20, 512);
    assert!(matches!(i.push(h, &[7; 512]), Err(Fatal::Protocol(why)) if why.contains("ahead")));
    assert_eq!(i.replies(), []);
    i.push(missing, &[]).unwrap();
    assert_eq!(i.replies().len(), 6, "what was kept is served");
    let early = i.header(&rw10(0x2a, 0, 1), 0x20, 512);
    i.push(early, &[7; 512]).unwrap();
    assert_eq!(i.replies(), []);
    i.push(h, &[7; 512]).unwrap();
    assert_eq!(i.replies().len(), 2, "there is room again");
}

#[test]
fn data_that_was_not_agreed_on_is_refused_by_its_header() {
    for keys in [
        "FirstBurstLength=4096",
        "ImmediateData=No",
        "FirstBurstLength=4096|DataDigest=CRC32C|HeaderDigest=CRC32C",
    ] {
        let mut i = Initiator::new(&volume(), keys);
        for ahead in [false, true] {
            let (first, h) = (i.header(&[0], 0, 0), i.header(&rw10(0x2a, 0, 256), 0x20, 128 << 10));
            let bytes = i.bytes(h, &vec![7; 128 << 10]);
            if !ahead {
                i.push(first, &[]).unwrap();
                i.replies();
            }
            for piece in bytes.chunks(16 << 10) {
                i.inbox.extend(piece);
                i.pump().unwrap();
                assert!(i.inbox.capacity() <= 48 << 10, "{keys}: {}", i.inbox.capacity());
            }
            if ahead {
                i.push(first, &[]).unwrap();
                i.replies().remove(0);
                continue;
            }
            assert_eq!(sense(&i.replies()[0]), (0xb, 0x0c, 0x0c), "{keys}");
        }
        assert_eq!(i.read(0, 1), [0; 512], "{keys}");
    }
}

#[test]
fn a_missing_command_that_is_aborted_is_waited_for_no_longer() {
    let abort = |i: &Initiator, missing: &Header, itt: u32| {
        let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
        h.0[1] = 0x81;
        h.set(16, itt).set(20, missing.itt()).set(24, i.cmd_sn).set(32, missing.cmd_sn());
        h
    };
    let itts = |i: &mut Initiator| i.replies().iter().map(|reply| reply.header.itt()).collect::<Vec<_>>();
    // It never came: those behind it are served.
    let mut i = Initiator::new(&volume(), "");
    let (missing, next) = (i.header(&[0], 0, 0), i.header(&[0], 0, 0));
    i.push(next, &[]).unwrap();
    let h = abort(&i, &missing, 900);
    i.push(h, &[]).unwrap();
    assert_eq!(itts(&mut i), [900, next.itt()]);
    i.push(missing, &[]).unwrap();
    assert_eq!(itts(&mut i), [0; 0], "too late");
    let h = i.header(&[0], 0, 0);
    i.push(h, &[]).unwrap();
    assert_eq!(itts(&mut i), [h.itt()]);
    // Another one is missing before it; it came early, or not at all.
    for came in [true, false] {
        let [missing, aborted, last] = [0; 3].map(|_| i.header(&[0], 0, 0));
        if came {
            i.push(aborted, &[]).unwrap();
        }
        i.push(last, &[]).unwrap();
        let h = abort(&i, &aborted, 901);
        i.push(h, &[]).unwrap();
        let reply = i.replies();
        assert_eq!((reply.len(), reply[0].header.itt(), reply[0].header.0[2]), (1, 901, 0));
        i.push(missing, &[]).unwrap();
        assert_eq!(itts(&mut i), [missing.itt(), last.itt()], "{came}");
    }
}

#[test]
fn an_aborted_write_is_never_answered_nor_written() {
    let mut i = Initiator::new(&volume(), "ImmediateData=No");
    let write = i.header(&rw10(0x2a, 0, 1), 0x20, 512);
    i.push(write, &[]).unwrap();
    let r2t = i.replies()[0].header;
    let abort = |tag: u32, itt: u32, cmd_sn: u32| {
        let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
        h.0[1] = 0x81;
        h.set(16, itt).set(20, tag).set(24, cmd_sn).set(32, write.cmd_sn());
        h
    };
    let h = abort(write.itt(), 900, i.cmd_sn);
    i.push(h, &[]).unwrap();
    let reply = i.replies();
    assert_eq!(
        (reply.len(), reply[0].header.opcode(), reply[0].header.0[2]),
        (1, op::TASK_MANAGEMENT_RESPONSE, 0)
    );
    let mut d = Header::new(op::DATA_OUT);
    d.set(16, write.itt()).set(20, r2t.word20());
    i.push(d, &[1; 512]).unwrap();
    assert_eq!(i.replies(), []);
    let h = abort(write.itt(), 901, i.cmd_sn);
    i.push(h, &[]).unwrap();
    assert_eq!(i.replies()[0].header.0[2], 1, "the task does not exist any more");
    assert_eq!(i.read(0, 1), vec![0; 512]);
}

#[test]
fn reads_are_cut_by_the_peers_segment_and_the_burst_with_status_in_the_last() {
    let disk = volume();
    let mut data = Segments::new();
    data.push(Segment::Data(Bytes::from((0..16_384_u32).map(|n| (n / 100) as u8).collect::<Vec<_>>())));
    now(disk.write(0, data, Durability::Cached)).unwrap();
    let mut i = Initiator::new(&disk, "MaxRecvDataSegmentLength=3000|MaxBurstLength=8192");
    let replies = i.command(&rw10(0x28, 0, 40), 0x40, 40 * 512, &[]);
    let mut at = 0;
    for (n, reply) in replies.iter().enumerate() {
        let h = reply.header;
        assert_eq!((h.opcode(), h.data_sn(), h.offset()), (op::DATA_IN, n as u32, at));
        at += reply.data.len() as u32;
        let ends_burst = at % 8192 == 0 || at == 40 * 512;
        assert_eq!((h.is_final(), h.0[1] & 1 == 1), (ends_burst, at == 40 * 512));
    }
    assert_eq!(at, 40 * 512);
    let bytes: Vec<u8> = replies.into_iter().flat_map(|reply| reply.data).collect();
    assert!(bytes[..16_384].iter().zip(0..16_384_u32).all(|(b, n)| *b == (n / 100) as u8));
    assert!(bytes[16_384..].iter().all(|b| *b == 0));
}

#[test]
fn residuals_tell_both_ways_and_no_byte_beyond_the_expected_length_is_sent() {
    let mut i = Initiator::new(&volume(), "");
    for (expected, sent, flag, residual) in [(512, 512, 4, 512), (2048, 1024, 2, 1024), (1024, 1024, 0, 0)] {
        let reply = i.command(&rw10(0x28, 0, 2), 0x40, expected, &[]).remove(0);
        let h = reply.header.0;
        assert_eq!((reply.data.len(), h[1] & 6, h[47]), (sent, flag, residual as u8), "{expected}");
        assert_eq!(u32::from_be_bytes([h[44], h[45], h[46], h[47]]), residual);
    }
}

#[test]
fn writes_to_a_read_only_volume_are_refused_even_with_data_on_its_way() {
    let disk = Arc::new(MemVolume::new("tank/vm@monday", 1 << 20, 8192).read_only());
    let mut i = Initiator::new(&disk, "InitialR2T=No|ImmediateData=Yes|FirstBurstLength=4096");
    for opcode in [0x2a, 0x2e, 0x41] {
        let expected = if opcode == 0x41 { 512 } else { 1024 };
        let replies = i.command(&rw10(opcode, 0, 2), 0x20, expected, &vec![1; expected as usize]);
        assert_eq!(sense(&replies[0]), (7, 0x27, 0), "{opcode:#x}");
    }
    let mut h = i.header(&rw10(0x2a, 0, 2), 0x20, 1024);
    h.0[1] &= 0x7f;
    i.push(h, &[1; 512]).unwrap();
    assert_eq!(i.replies(), [], "the rest of its data comes first");
    let mut d = Header::new(op::DATA_OUT);
    d.set(16, h.itt()).set(20, NO_TAG).set(36, 0).set(40, 512);
    i.push(d, &[1; 512]).unwrap();
    assert_eq!(sense(&i.replies()[0]), (7, 0x27, 0));
}

/// Of a host that was fenced off nothing showed at the disk if it sent a write's data behind the command.
#[test]
fn a_refused_write_is_counted_whether_its_data_comes_with_it_or_behind_it() {
    let disk = Arc::new(MemVolume::new("tank/vm@monday", 1 << 20, 8192).read_only());
    let mut i = Initiator::new(&disk, "InitialR2T=No|ImmediateData=Yes|FirstBurstLength=4096");
    let counters = Arc::<Counters>::default();
    i.session.count_in(Arc::clone(&counters));
    let tally = counters.luns.list().remove(0).1;
    let before = tally.get().others;
    i.command(&rw10(0x2a, 0, 2), 0x20, 1024, &[1; 1024]);
    assert_eq!(tally.get().others - before, 1);
    let mut h = i.header(&rw10(0x2a, 0, 2), 0x20, 1024);
    h.0[1] &= 0x7f;
    i.push(h, &[1; 512]).unwrap();
    let mut d = Header::new(op::DATA_OUT);
    d.set(16, h.itt()).set(20, NO_TAG).set(36, 0).set(40, 512);
    i.push(d, &[1; 512]).unwrap();
    assert_eq!(sense(&i.replies()[0]), (7, 0x27, 0));
    let now = tally.get();
    assert_eq!((now.others - before, now.writes, now.under_way), (2, 0, 0));
}

#[test]
fn a_grown_volume_is_told_once() {
    let disk = volume();
    let mut i = Initiator::new(&disk, "");
    disk.resize(2 << 20);
    assert_eq!(
        i.command(&[0], 0, 0, &[]).remove(0).header.0[3],
        0,
        "the command that notices is not the one told"
    );
    assert_eq!(sense(&i.command(&[0], 0, 0, &[]).remove(0)), (6, 0x2a, 9));
    assert_eq!(i.command(&[0], 0, 0, &[]).remove(0).header.0[3], 0);
    let reply = i.command(&[0x25], 0x40, 8, &[]).remove(0);
    assert_eq!(reply.data, [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
}

#[test]
fn a_broken_digest_ends_the_connection_and_its_data_is_not_used() {
    let disk = volume();
    let mut i = Initiator::new(&disk, "HeaderDigest=CRC32C|DataDigest=CRC32C");
    let h = i.header(&rw10(0x2a, 0, 1), 0x20, 512);
    let mut bytes = i.bytes(h, &[1; 512]);
    let at = bytes.len() - 10;
    bytes[at] ^= 1;
    i.inbox.extend(&bytes);
    assert_eq!(i.pump(), Err(Fatal::Digest("data")));
    assert_eq!(now(disk.read(0, 512)).unwrap()[0], Segment::Zero(512));
}

/// A PDU that is nearly right: a valid one with some bytes of its header overwritten.
fn nearly_valid() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(vec![0x00, 0x01, 0x01, 0x01, 0x02, 0x04, 0x05, 0x05, 0x06, 0x10, 0x3f]);
    let cdb = prop::sample::select(vec![
        0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x28, 0x2a, 0x2e, 0x2f, 0x35, 0x41, 0x42, 0x55, 0x5a, 0x5e,
        0x5f, 0x88, 0x89, 0x8a, 0x93, 0x9e, 0xa0, 0xa3, 0xff,
    ]);
    let noise = prop::collection::vec((1_usize..48, any::<u8>()), 0..6);
    (opcode, any::<bool>(), any::<u8>(), 0_u32..8, 0_u32..200, cdb, noise, 0_usize..700).prop_map(
        |(opcode, immediate, flags, itt, sn, cdb, noise, len)| {
            let mut h = Header::new(opcode | if immediate { 0x40 } else { 0 });
            h.0[1] = flags;
            h.set(16, itt).set(20, 1024).set(24, sn);
            (h.0[32], h.0[40]) = (cdb, 1);
            for (at, byte) in noise {
                h.0[at] = byte;
            }
            h.0[5] = 0;
            h.0[4] &= 3;
            let mut out = Outbox::default();
            out.push(h, &vec![0x5a; len]);
            out.drain()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_stream_of_nearly_valid_requests_breaks_a_session(
        pdus in prop::collection::vec(nearly_valid(), 1..60),
        crc in any::<bool>(),
    ) {
        let keys = if crc { "InitialR2T=No|HeaderDigest=None" } else { "InitialR2T=Yes" };
        let mut i = Initiator::new(&volume(), keys);
        for pdu in pdus {
            i.inbox.extend(&pdu);
            if i.pump().is_err() || i.session.ended() {
                break;
            }
            i.replies(); // panics on anything malformed
        }
    }

    #[test]
    fn noise_never_breaks_login_or_session(noise in prop::collection::vec(any::<u8>(), 0..4096)) {
        let targets = targets(&volume());
        if let Some(head) = noise.first_chunk::<48>() {
            let mut h = Header(*head);
            h.0[0] = op::LOGIN;
            let mut outbox = Outbox::default();
            drop(Login::default().handle(&h, &noise[48..], &targets, &mut outbox));
        }
        let mut i = Initiator::new(&volume(), "");
        i.inbox.extend(&noise);
        drop(i.pump());
        i.replies();
    }

    #[test]
    fn however_the_stream_is_cut_the_same_answers_come_out(cuts in prop::collection::vec(1_usize..200, 1..80)) {
        let run = |cuts: &[usize]| {
            let mut i = Initiator::new(&volume(), "InitialR2T=No");
            let mut wire = Vec::new();
            for n in 0..20 {
                let (opcode, flags, data) = if n % 2 == 0 { (0x2a, 0x20, vec![n as u8; 512]) } else { (0x28, 0x40, vec![]) };
                let h = i.header(&rw10(opcode, n / 2, 1), flags, 512);
                wire.extend(i.bytes(h, &data));
            }
            let mut rest = wire.as_slice();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                i.inbox.extend(now);
                i.pump().unwrap();
                rest = later;
            }
            i.replies().into_iter().map(|r| (r.header.itt(), r.header.0[3], r.data)).collect::<std::collections::BTreeSet<_>>()
        };
        prop_assert_eq!(run(&cuts), run(&[usize::MAX]));
    }
}

/// It was taken for a command to a disk that is not there, and the disk's own format of sense data not minded.
#[test]
fn a_list_of_luns_that_is_asked_for_wrongly_is_refused_as_the_disk_would() {
    let mut i = Initiator::new(&volume(), "");
    // D_SENSE, by the control mode page.
    let mut page = i.command(&[0x1a, 0x08, 0x0a, 0, 16, 0], 0x40, 16, &[]).remove(0).data;
    page[0] = 0;
    page[6] |= 0x04;
    let naca = [0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0x04];
    let short = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    for cdb in [naca, short] {
        let reply = i.command(&cdb, 0x40, 1024, &[]).remove(0);
        assert_eq!(sense(&reply), (5, 0x24, 0), "{cdb:02x?}");
    }
    let set = i.command(&[0x15, 0x10, 0, 0, 16, 0], 0x20, 16, &page);
    assert_eq!(set.last().unwrap().header.0[3], 0, "{set:?}");
    for cdb in [naca, short] {
        let reply = i.command(&cdb, 0x40, 1024, &[]).remove(0);
        assert_eq!(reply.data[2..6], [0x72, 5, 0x24, 0], "{cdb:02x?}");
    }
}
