//! Tokens: what one stands for, how long it does, and what ends it before its time (ODX).

use std::{sync::Arc, time::Duration};

use block::Durability;
use scsi::{Begin, Nexus, NexusId, Response, Service, Status};

use crate::{
    commands::{PATTERN, populate, receive, register, use_token, write},
    lab::{Disk, Lab},
    paced::{self, Asked, Host, Running},
};

#[test]
fn a_token_brings_the_blocks_of_its_moment_to_another_disk() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.shared_disk("tank/b"));
    let (source, destination) = (lab.attach(&a, "iqn.hyperv"), lab.attach(&b, "iqn.hyperv"));
    a.fill(0, 8, 1);
    a.fill(100, 8, 2);
    let (cdb, list) = populate(77, &[(0, 8), (100, 8)]);
    a.good(&source, &cdb, &list);
    let info = a.good(&source, &receive(7, 77), &[]);
    assert_eq!(u32::from_be_bytes(info[..4].try_into().unwrap()) as usize, info.len() - 4);
    assert_eq!((info[4], info[5], info[15]), (0x10, 1, 0xf1));
    assert_eq!(u64::from_be_bytes(info[16..24].try_into().unwrap()), 16, "blocks that it stands for");
    assert_eq!(info[32..38], [0, 0, 2, 2, 0, 0]);
    let token = &info[38..];
    assert_eq!((token.len(), &token[..8]), (512, &[0, 0x80, 0, 1, 0, 0, 1, 0xf8][..]));

    // From its fifth block on, into two ranges that fit the source's nowhere.
    let (cdb, list) = use_token(1, 4, token, &[(500, 2), (600, 10)]);
    b.good(&destination, &cdb, &list);
    let bytes: Vec<u8> = (500..502).chain(600..610).map(|at| b.block(at)[0]).collect();
    assert_eq!(bytes, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    let info = b.good(&destination, &receive(7, 1), &[]);
    assert_eq!((info[5], u64::from_be_bytes(info[16..24].try_into().unwrap())), (1, 12));
    assert_eq!(info[32..36], [0; 4], "no token of its own");

    // More than it stands for is refused, and so are other bits, and tokens that nobody made.
    let (cdb, list) = use_token(2, 5, token, &[(0, 12)]);
    assert_eq!(b.sense(&destination, &cdb, &list), (5, 0x26, 0));
    let mut forged = token.to_vec();
    forged[130] ^= 1;
    let (cdb, list) = use_token(2, 0, &forged, &[(0, 1)]);
    assert_eq!(b.sense(&destination, &cdb, &list), (5, 0x23, 5));
    forged[9] ^= 1;
    let (cdb, list) = use_token(2, 0, &forged, &[(0, 1)]);
    assert_eq!(b.sense(&destination, &cdb, &list), (5, 0x23, 4));
}

/// Windows' MPIO takes its paths in turn, and asks for the token by the next one: of three paths two were told that
/// there is none, and the copy went over the wire.
#[test]
fn a_host_that_takes_its_paths_in_turn_gets_its_token_and_hears_of_its_copies_by_each_of_them() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let path = |isid: u8, port: u16| {
        let initiator = format!("iqn.hyperv,i,0x00000000000{isid}").into();
        let nexus = a.unit.attach_at(NexusId { initiator, port }, None);
        assert_eq!(a.sense(&nexus, &[0], &[]), (6, 0x29, 0));
        nexus
    };
    let [one, two, three] = [path(1, 1), path(2, 1), path(1, 2)];
    let other = lab.attach(&a, "iqn.hyperv2");
    a.fill(0, 16, 4);
    let (cdb, list) = populate(7, &[(0, 16)]);
    a.good(&one, &cdb, &list);
    let token = a.good(&three, &receive(7, 7), &[])[38..].to_vec();
    let (cdb, list) = use_token(8, 0, &token, &[(100, 16)]);
    a.good(&two, &cdb, &list);
    for nexus in [&one, &two, &three] {
        let info = a.good(nexus, &receive(7, 8), &[]);
        assert_eq!((info[5], u64::from_be_bytes(info[16..24].try_into().unwrap())), (1, 16));
        assert_eq!(a.good(nexus, &receive(5, 8), &[])[5], 1, "RECEIVE COPY STATUS");
    }
    // Nobody else hears of it, and only who ordered a copy ends it.
    assert_eq!(a.sense(&other, &receive(7, 7), &[]), (5, 0x24, 0));
    assert_eq!(a.sense(&one, &[0x83, 0x1c, 0, 0, 0, 8], &[]), (5, 0x24, 0));
    // Where two paths have one identifier, each is told of its own.
    let (cdb, list) = populate(8, &[(0, 3)]);
    a.good(&three, &cdb, &list);
    let blocks = |nexus| u64::from_be_bytes(a.good(nexus, &receive(7, 8), &[])[16..24].try_into().unwrap());
    assert_eq!([&two, &three].map(blocks), [16, 3]);
}

#[test]
fn every_kind_of_write_to_its_blocks_ends_a_token_and_others_do_not() {
    let one_block = vec![9; 512];
    let two_blocks = vec![0; 1024];
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend(3_u64.to_be_bytes());
    unmap.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    let writes: [(&[u8], &[u8]); 6] = [
        (&[0x2a, 0, 0, 0, 0, 3, 0, 0, 1], &one_block),
        (&[0x41, 0, 0, 0, 0, 3, 0, 0, 1], &one_block),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 24], &unmap),
        (&[0x2e, 2, 0, 0, 0, 3, 0, 0, 1], &one_block),
        (&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1], &two_blocks),
        (&[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1], &one_block),
    ];
    for (cdb, data) in writes {
        let lab = Lab::new();
        let a = lab.shared_disk("tank/a");
        let nexus = lab.attach(&a, "iqn.hyperv");
        let token = a.token(&nexus, 1, &[(0, 8)]);
        a.good(&nexus, &[0x2a, 0, 0, 0, 0, 8, 0, 0, 1], &one_block); // beside it
        let (copy, list) = use_token(2, 0, &token, &[(100, 8)]);
        a.good(&nexus, &copy, &list);
        a.good(&nexus, cdb, data);
        assert_eq!(a.sense(&nexus, &copy, &list), (5, 0x23, 6), "{cdb:02x?}");
    }
}

#[test]
fn the_zero_token_makes_holes() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 64, 7);
    let mut zero = vec![0xff, 0xff, 0, 1, 0, 0, 1, 0xf8];
    zero.resize(512, 0);
    let (cdb, list) = use_token(1, 0, &zero, &[(16, 32)]);
    a.good(&nexus, &cdb, &list);
    assert!(a.is_hole(16, 32));
    assert_eq!((a.block(15)[0], a.block(48)[0]), (7, 7));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_nobody_uses_expires() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    let token = a.token(&nexus, 1, &[(0, 8)]);
    let (cdb, list) = use_token(2, 0, &token, &[(100, 8)]);
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(50)).await;
        a.good(&nexus, &cdb, &list); // each use gives it its time anew
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 7));
}

/// A disk with `blocks` blocks of 4, a copy of which to another disk waits for its first write, and the token it was ordered
/// with, which lives for a second.
fn slow_copy<'a>(lab: &Lab, a: &Disk, b: &'a paced::Disk, blocks: u32) -> (Running<'a, Response>, Vec<u8>) {
    let nexus = lab.attach(a, "iqn.hyperv");
    a.fill(0, blocks as usize, 4);
    let (cdb, mut list) = populate(1, &[(0, blocks)]);
    list[7] = 1;
    a.good(&nexus, &cdb, &list);
    let token = a.good(&nexus, &receive(7, 1), &[])[38..].to_vec();
    let (cdb, list) = use_token(2, 0, &token, &[(0, blocks)]);
    let (mut run, _) = b.host().run(&cdb, &list);
    assert!(run.poll().is_none());
    (run, token)
}

/// The disk forgot the token when its time was over, and who wrote later revoked nothing: the copy was of old bytes and new
/// ones, and good.
#[tokio::test(start_paused = true)]
async fn a_copy_that_outlasts_its_token_ends_when_what_it_has_yet_to_read_is_written_to() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.paced());
    let (mut run, _) = slow_copy(&lab, &a, &b, 3 * 2048);
    tokio::time::advance(Duration::from_secs(5)).await;
    let writer = lab.attach(&a, "iqn.writer");
    a.good(&writer, &[0x2a, 0, 0, 0, 0x30, 0, 0, 0, 1], &[9; 512]); // beside it
    let (cdb, list) = populate(1, &[(0x3000, 1)]);
    a.good(&writer, &cdb, &list);
    a.good(&writer, &[0x2a, 0, 0, 0, 0x13, 0, 0, 0, 1], &[9; 512]); // its third step
    b.volume.let_through(10);
    let response = run.poll().unwrap();
    assert_eq!(
        (response.status, &response.sense.as_slice()[12..14]),
        (Status::CheckCondition, &[0x23, 6][..])
    );
    assert_eq!(b.volume.byte(0x1300 * 512), 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_token_begins_anew_when_the_last_copy_with_it_ends() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.paced());
    let (mut run, token) = slow_copy(&lab, &a, &b, 16);
    tokio::time::advance(Duration::from_secs(5)).await;
    b.volume.let_through(10);
    assert_eq!(run.poll().unwrap().status, Status::Good);
    let (again, (cdb, list)) = (b.host(), use_token(3, 0, &token, &[(100, 16)]));
    tokio::time::advance(Duration::from_millis(900)).await;
    assert_eq!(again.send(&cdb, &list).status, Status::Good);
    tokio::time::advance(Duration::from_millis(1100)).await;
    assert_eq!(again.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 7]);
}

/// Nobody got a token any more until one of them had not been used for minutes.
#[test]
fn who_makes_tokens_without_end_loses_its_own() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let (greedy, other) = (lab.attach(&a, "iqn.greedy"), lab.attach(&a, "iqn.other"));
    a.fill(0, 16, 4);
    let kept = a.token(&other, 1, &[(0, 16)]);
    let mut tokens: Vec<Vec<u8>> = (0..1025).map(|n| a.token(&greedy, n, &[(0, 16)])).collect();
    let paste = |nexus: &Arc<Nexus>, token: &[u8]| {
        let (cdb, list) = use_token(2000, 0, token, &[(100, 16)]);
        let response = a.send(nexus, &cdb, &list);
        (response.status == Status::CheckCondition).then(|| response.sense.as_slice()[12..14].to_vec())
    };
    assert_eq!(paste(&greedy, &tokens[0]), Some(vec![0x23, 4]), "its oldest is unknown");
    assert_eq!(paste(&greedy, &tokens.pop().unwrap()), None);
    assert_eq!(paste(&other, &kept), None);
}

/// A rollback changes blocks behind the disk's back.
#[test]
fn tokens_stand_for_nothing_once_the_content_was_replaced() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    let token = a.token(&nexus, 1, &[(0, 16)]);
    a.unit.revoke_tokens();
    let (cdb, list) = use_token(2, 0, &token, &[(100, 16)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 6));
    assert_eq!(a.token(&nexus, 3, &[(0, 16)]).len(), 512, "and new ones may be made");
}

/// The disk was as large as before again, and they brought the zeroes that were there now.
#[test]
fn tokens_stand_for_nothing_that_was_cut_off() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    let kept = a.token(&nexus, 1, &[(0, 16)]);
    let cut = a.token(&nexus, 2, &[(16, 16), (8184, 16)]);
    for size in [4 << 20, 8 << 20] {
        a.volume.resize(size);
        a.unit.announce();
    }
    assert_eq!(a.sense(&nexus, &[0], &[]), (6, 0x2a, 9));
    let (cdb, list) = use_token(3, 0, &cut, &[(100, 32)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 6));
    let (cdb, list) = use_token(4, 0, &kept, &[(100, 16)]);
    a.good(&nexus, &cdb, &list);
}

fn token_of(host: &Host<'_>, id: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
    let (cdb, list) = populate(id, ranges);
    assert_eq!(host.send(&cdb, &list).status, Status::Good);
    fetched(host, id)
}

/// The token that a POPULATE TOKEN with this identifier made.
fn fetched(host: &Host<'_>, id: u32) -> Vec<u8> {
    let response = host.send(&receive(7, id), &[]);
    let block::Segment::Data(info) = &response.data[0] else { panic!() };
    info[38..].to_vec()
}

/// Every writer stood still for each part of a file that a host copied, until the slowest write under way was done.
#[test]
fn others_write_while_a_token_waits_for_a_write_that_is_not_seen_yet() {
    let disk = paced::Disk::new();
    let [one, other, third] = [(); 3].map(|()| disk.host());
    let (mut slow, _) = one.run(&write(3), &PATTERN);
    assert_eq!(slow.poll(), None);
    let (cdb, list) = populate(1, &[(0, 8)]);
    let (mut making, _) = other.run(&cdb, &list);
    assert_eq!(making.poll(), None, "what it is to stand for is not there");
    disk.volume.asked();
    let (mut beside, _) = third.run(&write(64), &PATTERN);
    assert_eq!(beside.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Write(64 * 512, 512, Durability::Cached)], "it has begun");
    disk.volume.let_through(1);
    assert_eq!(slow.poll().unwrap().status, Status::Good);
    assert_eq!(making.poll().unwrap().status, Status::Good, "whatever began later");
    disk.volume.let_through(100);
    assert_eq!(beside.poll().unwrap().status, Status::Good);
    let (cdb, list) = use_token(2, 0, &fetched(&other, 1), &[(100, 8)]);
    assert_eq!(other.send(&cdb, &list).status, Status::Good);
    assert_eq!([103, 104].map(|block| disk.volume.byte(block * 512)), [0x5a, 0]);
}

/// Hosts that used a token at once were told that it had expired, where a write under way had stood for longer.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_token_begins_when_it_is_made() {
    let disk = paced::Disk::new();
    let [one, other] = [(); 2].map(|()| disk.host());
    let (mut slow, _) = one.run(&write(3), &PATTERN);
    assert_eq!(slow.poll(), None);
    let (cdb, mut list) = populate(1, &[(0, 8)]);
    list[7] = 1; // second
    let (mut making, _) = other.run(&cdb, &list);
    assert_eq!(making.poll(), None);
    tokio::time::advance(Duration::from_secs(2)).await;
    disk.volume.let_through(100);
    for run in [&mut slow, &mut making] {
        assert_eq!(run.poll().unwrap().status, Status::Good);
    }
    let token = fetched(&other, 1);
    let (cdb, list) = use_token(2, 0, &token, &[(100, 8)]);
    assert_eq!(other.send(&cdb, &list).status, Status::Good);
    assert_eq!(disk.volume.byte(103 * 512), 0x5a);
    tokio::time::advance(Duration::from_secs(2)).await;
    let (cdb, list) = use_token(3, 0, &token, &[(100, 8)]);
    assert_eq!(other.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 7], "its time was asked for");
}

#[test]
fn a_write_to_the_blocks_of_a_token_that_begins_while_that_is_made_ends_it() {
    let disk = paced::Disk::new();
    let [one, other, third] = [(); 3].map(|()| disk.host());
    let (mut slow, _) = one.run(&write(64), &PATTERN);
    assert_eq!(slow.poll(), None);
    let (cdb, list) = populate(1, &[(0, 8)]);
    let (mut making, _) = other.run(&cdb, &list);
    assert_eq!(making.poll(), None);
    let (mut late, _) = third.run(&write(3), &PATTERN);
    assert_eq!(late.poll(), None);
    disk.volume.let_through(100);
    for run in [&mut slow, &mut making, &mut late] {
        assert_eq!(run.poll().unwrap().status, Status::Good);
    }
    let (cdb, list) = use_token(2, 0, &fetched(&other, 1), &[(100, 8)]);
    assert_eq!(other.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 6]);
    assert_eq!(disk.volume.byte(103 * 512), 0);
}

/// An operator offers the volume in another way; sessions hold what was offered before until their next command.
#[test]
fn a_token_and_a_copy_are_of_the_unit_they_were_ordered_at_and_not_of_another_over_its_volume() {
    let service = Arc::<Service>::default();
    let (old, other) = (paced::Disk::of(&service, "tank/a"), paced::Disk::of(&service, "tank/b"));
    let new = paced::Disk::of(&service, "tank/a");
    [&old, &new, &other].iter().for_each(|disk| disk.volume.let_through(100));
    assert_eq!(old.unit.naa(), new.unit.naa());
    let (before, host, elsewhere) = (old.host(), new.host(), other.host());
    let stale = token_of(&before, 1, &[(0, 8)]);
    let token = token_of(&host, 1, &[(0, 8)]);
    // A copy that goes on behind its answer writes by way of the unit that was asked, and so ends that one's token.
    let (cdb, mut list) = use_token(2, 0, &token_of(&host, 3, &[(100, 8)]), &[(0, 8)]);
    list[2] |= 1;
    assert_eq!(host.send(&cdb, &list).status, Status::Good);
    let (cdb, list) = use_token(4, 0, &token, &[(50, 8)]);
    assert_eq!(elsewhere.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 6]);
    // Who may not read from it may not by a token.
    let token = token_of(&host, 5, &[(0, 8)]);
    let owner = new.host();
    for (action, key, service_key) in [(0, 0, 7), (1, 7, 0)] {
        let (mut cdb, list) = register(action, key, service_key, 0);
        cdb[2] = 3; // exclusive access
        assert_eq!(owner.send(&cdb, &list).status, Status::Good);
    }
    let (cdb, list) = use_token(6, 0, &token, &[(50, 8)]);
    assert_eq!(elsewhere.send(&cdb, &list).status, Status::ReservationConflict);
    // What the old one promised it cannot keep once it is not the only one.
    old.unit.retire();
    let (cdb, list) = use_token(7, 0, &stale, &[(50, 8)]);
    assert_eq!(elsewhere.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 6]);
    assert!(matches!(before.begin(&[0], 0), Begin::Done(response) if response.status == Status::Good));
}
