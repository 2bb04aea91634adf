//! Copies that a host orders and does not see, byte by byte: what is written where, which disks they may touch, what of them
//! goes on behind their answer, and how they end.

use std::sync::Arc;

use block::{BlockVolume as _, Durability, MemVolume, Segment};
use bytes::Bytes;
use scsi::{Cancel, Nexus, Rest, Sense, Status};

use crate::{
    commands::{PATTERN, ZEROES, by_naa, copy, populate, receive, use_token, xcopy},
    lab::{Disk, Lab},
    paced::{self, Asked, Running, now},
};

#[test]
fn a_copy_between_two_disks_moves_the_bytes_and_keeps_the_holes() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.shared_disk("tank/b"));
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 16, 0xaa); // one volume block
    a.fill(3000, 3000, 0xbb); // more than one step, and no multiple of any
    b.fill(0, 10_000, 0xee);
    let (cdb, list) =
        xcopy(5, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 9000, 0, 0), (0, 1, 16, 0, 9500)]);
    a.good(&nexus, &cdb, &list);
    assert!(b.block(0).iter().all(|byte| *byte == 0xaa));
    assert!(b.is_hole(16, 2960), "what was a hole is one");
    assert!((3000..6000).all(|at| b.block(at)[0] == 0xbb));
    assert_eq!((b.block(2999)[511], b.block(6000)[0], b.block(8999)[0]), (0, 0, 0));
    assert_eq!((b.block(9000)[0], b.block(9500)[0], b.block(9516)[0]), (0xee, 0xaa, 0xee));
    // The host may ask how it went, by its own identifier only.
    let status = a.good(&nexus, &[0x84, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12], &[]);
    assert_eq!(status[..8], [0, 0, 0, 8, 1, 0, 2, 0]);
    assert_eq!(u32::from_be_bytes(status[8..12].try_into().unwrap()), 9016 * 512);
    assert_eq!(a.sense(&nexus, &[0x84, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12], &[]), (5, 0x24, 0));
}

#[test]
fn a_copy_onto_itself_reads_nothing_that_it_has_overwritten() {
    for (from, to) in [(0_u64, 100_u64), (100, 0)] {
        let lab = Lab::new();
        let a = lab.shared_disk("tank/a");
        let nexus = lab.attach(&a, "iqn.esx");
        for block in 0..6000 {
            a.fill(from + block, 1, (block % 251) as u8 + 1);
        }
        let (cdb, list) = xcopy(1, &[by_naa(&a.unit)], &[(0, 0, 6000, from, to)]);
        a.good(&nexus, &cdb, &list);
        assert!((0..6000).all(|block| a.block(to + block)[0] == (block % 251) as u8 + 1), "{from} to {to}");
    }
}

/// It told what it had written at the end for the first blocks: a host that went on behind those left old data there.
#[test]
fn a_copy_that_goes_from_the_end_has_done_nothing_before_it_is_whole() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 8192, 1);
    let moved = |list_id: u32| {
        let info = a.good(&nexus, &receive(7, list_id), &[]);
        (info[5], u64::from_be_bytes(info[16..24].try_into().unwrap()))
    };
    // Its third step is to the blocks of the token, which ends there.
    let token = a.token(&nexus, 1, &[(0, 8192)]);
    let (cdb, list) = use_token(2, 0, &token, &[(4096, 8192)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 6));
    assert_eq!((a.block(12_287)[0], moved(2)), (1, (0x02, 0)));
    let (cdb, list) = xcopy(3, &[by_naa(&a.unit)], &[(0, 0, 6000, 0, 100), (0, 0, 16, 0, 14_000)]);
    a.good(&nexus, &cdb, &list);
    let status = a.good(&nexus, &[0x84, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12], &[]);
    assert_eq!(u32::from_be_bytes(status[8..12].try_into().unwrap()), 6016 * 512);
}

#[test]
fn a_copy_reaches_only_what_its_initiator_may_name() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let hidden = lab.disk(MemVolume::new("tank/hidden", 8 << 20, 8192));
    let nexus = lab.attach(&a, "iqn.esx");
    hidden.fill(0, 16, 0x55);
    let (cdb, list) = xcopy(1, &[by_naa(&hidden.unit), by_naa(&a.unit)], &[(0, 1, 16, 0, 0)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (0xa, 0x0d, 0x02));
    assert_eq!(a.block(0)[0], 0);
    // Nor beyond the end, nor with blocks of another size than the disk has, nor an index of nobody.
    let mut big = by_naa(&a.unit);
    big[30] = 0x10;
    for (targets, segment) in [
        (vec![by_naa(&a.unit)], (0, 0, 16, 0, 16_383)),
        (vec![big], (0, 0, 16, 0, 0)),
        (vec![by_naa(&a.unit)], (0, 1, 16, 0, 0)),
    ] {
        let (cdb, list) = xcopy(2, &targets, &[segment]);
        assert_eq!(a.sense(&nexus, &cdb, &list).0, 0xa, "{segment:?}");
    }
}

/// Whether its host may name them was asked when it began, and it wrote for as long as it had something to write.
#[test]
fn a_copy_takes_no_further_step_when_its_host_may_not_reach_a_disk_of_it_any_more() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.paced());
    lab.share(&b.unit);
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 3 * 2048, 4);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 3 * 2048, 0, 0)]);
    let (mut run, _) = a.run(&nexus, &cdb, &list);
    assert!(run.poll().is_none(), "its first write waits");
    lab.hide(&b.unit);
    b.volume.let_through(10);
    let (response, _) = run.poll().unwrap();
    let sense = response.sense.as_slice();
    assert_eq!((response.status, sense[2], &sense[12..14]), (Status::CheckCondition, 0xa, &[0x0d, 2][..]));
    assert_eq!(b.volume.asked(), [Asked::Write(0, 1 << 20, Durability::Cached)]);
}

#[test]
fn a_copy_obeys_the_reservations_of_both_disks() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.shared_disk("tank/b"));
    let ours = lab.attach(&a, "iqn.esx");
    let theirs = lab.attach(&b, "iqn.other");
    a.fill(0, 16, 0xaa);
    let reserve = |service_action: u8, kind: u8, key: u64, service_key: u64| {
        let mut list = key.to_be_bytes().to_vec();
        list.extend(service_key.to_be_bytes());
        list.extend([0; 8]);
        b.good(&theirs, &[0x5f, service_action, kind, 0, 0, 0, 0, 0, 24], &list);
    };
    reserve(0, 0, 0, 7);
    reserve(1, 1, 7, 0); // write exclusive
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 16, 0, 0)]);
    assert_eq!(a.sense(&ours, &cdb, &list), (0xa, 0x0d, 0x01));
    assert_eq!(b.block(0)[0], 0);
    let (from_b, list_b) = xcopy(2, &[by_naa(&b.unit), by_naa(&a.unit)], &[(0, 1, 16, 0, 32)]);
    a.good(&ours, &from_b, &list_b); // reads pass
    reserve(2, 1, 7, 0);
    a.good(&ours, &cdb, &list);
    assert_eq!(b.block(0)[0], 0xaa);
}

/// Whoever had begun a copy could not ask what became of it once another had reserved the disk.
#[test]
fn what_became_of_a_copy_and_what_copies_may_be_is_told_under_every_reservation() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/a");
    let (ours, theirs) = (lab.attach(&disk, "iqn.esx"), lab.attach(&disk, "iqn.other"));
    let reserve = |service_action: u8, key: u64, service_key: u64| {
        let mut list = key.to_be_bytes().to_vec();
        list.extend(service_key.to_be_bytes());
        list.extend([0; 8]);
        disk.good(&theirs, &[0x5f, service_action, 3, 0, 0, 0, 0, 0, 24], &list);
    };
    reserve(0, 0, 7);
    reserve(1, 7, 0); // exclusive access
    let limits = [0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    disk.good(&ours, &limits, &[]);
    for service_action in [0x05, 0x07] {
        // Of a copy that nobody knows: it is looked for.
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[5], cdb[12]) = (0x84, service_action, 99, 4);
        assert_eq!(disk.sense(&ours, &cdb, &[]).0, 5, "{service_action:#x}");
    }
}

/// A host may be logged in at the source only: who asks at the destination whether somebody uses it has to hear of it.
#[test]
fn a_disk_knows_that_it_is_copied_to_whoever_ordered_that() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.paced());
    lab.share(&b.unit);
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 16, 4);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 16, 0, 0)]);
    let (mut run, _) = a.run(&nexus, &cdb, &list);
    assert!(run.poll().is_none(), "its write waits");
    assert!(a.unit.is_in_copy() && b.unit.is_in_copy());
    b.volume.let_through(1);
    assert_eq!(run.poll().unwrap().0.status, Status::Good);
    assert!(!a.unit.is_in_copy() && !b.unit.is_in_copy());
}

#[test]
fn a_cancelled_copy_stops_and_says_so() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 16, 0xaa);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit)], &[(0, 0, 16, 0, 100)]);
    assert!(a.job(&nexus, &cdb, &list).is_long());
    let (mut run, cancel) = a.run(&nexus, &cdb, &list);
    cancel.cancel();
    let (response, _) = run.poll().unwrap();
    assert_eq!((response.status, response.sense.as_slice()[2]), (Status::CheckCondition, 0xa));
    assert_eq!(a.block(100)[0], 0);
}

/// Orders a copy of 16 blocks from 0 to `to` that goes on behind its answer.
fn immediate(a: &Disk, nexus: &Arc<Nexus>, token: &[u8], list_id: u32, to: u64) -> Rest {
    let (cdb, mut list) = use_token(list_id, 0, token, &[(to, 16)]);
    list[2] |= 1;
    let (response, rest) = a.order(nexus, &cdb, &list);
    assert_eq!(response.status, Status::Good);
    assert_eq!(a.good(nexus, &receive(7, list_id), &[])[5], 0x11, "under way");
    assert_eq!(a.sense(nexus, &cdb, &list), (5, 0, 0x16), "not twice at a time");
    rest.unwrap()
}

#[test]
fn an_immediate_copy_answers_first_and_is_done_later() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 16, 4);
    let token = a.token(&nexus, 1, &[(0, 16)]);
    now(immediate(&a, &nexus, &token, 2, 100));
    assert_eq!(a.good(&nexus, &receive(7, 2), &[])[5], 0x01);
    assert_eq!(a.block(115)[0], 4);
}

/// It went on in a task of its own, and overwrote what the host's next session wrote.
#[test]
fn an_immediate_copy_ends_with_its_nexus_and_when_nobody_runs_it() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 16, 4);
    let token = a.token(&nexus, 1, &[(0, 16)]);
    drop(immediate(&a, &nexus, &token, 2, 100));
    assert_eq!(a.good(&nexus, &receive(7, 2), &[])[5], 0x02, "given up, it does not seem to run");
    let rest = immediate(&a, &nexus, &token, 2, 100);
    a.unit.detach(&nexus);
    let id = nexus.id().clone();
    let next = a.unit.attach_at(id, None);
    now(rest);
    assert_eq!(a.block(100)[0], 0);
    assert_eq!(a.sense(&next, &[0], &[]), (6, 0x29, 7));
    assert_eq!(a.good(&next, &receive(7, 2), &[])[5], 0x60, "ended from outside");
    assert!(!a.unit.is_in_copy());
}

/// A host that had ended one was told for as long as the source did not answer that it is under way, and asked ten times a
/// second.
#[test]
fn a_copy_that_was_ended_is_told_as_ended_unless_it_is_writing() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), lab.paced());
    lab.share(&b.unit);
    let (here, there) = (lab.attach(&a, "iqn.hyperv"), b.host());
    a.fill(0, 16, 4);
    b.volume.let_through(1);
    let data = [Segment::Data(Bytes::from(vec![4; 16 * 512]))].into_iter().collect();
    now(b.volume.write(0, data, Durability::Cached)).unwrap();
    let at_b = |cdb: &[u8], list: &[u8]| {
        let response = there.send(cdb, list);
        assert_eq!(response.status, Status::Good);
        block::flatten(&response.data)
    };
    // COPY OPERATION ABORT
    let abort = |list_id: u8| [0x83, 0x1c, 0, 0, 0, list_id];
    let (cdb, list) = populate(1, &[(0, 16)]);
    at_b(&cdb, &list);
    let token = at_b(&receive(7, 1), &[])[38..].to_vec();
    let mut rest = Running(Box::pin(immediate(&a, &here, &token, 2, 100)));
    assert!(rest.poll().is_none(), "its read waits");
    a.good(&here, &abort(2), &[]);
    let status = a.good(&here, &receive(7, 2), &[]);
    assert_eq!((status[5], &status[8..12]), (0x60, &[0; 4][..]), "ended, and nothing to ask again for");
    b.volume.let_through(1);
    assert!(rest.poll().is_some());
    assert_eq!((a.good(&here, &receive(7, 2), &[])[5], a.block(100)[0]), (0x60, 0));

    let token = a.token(&here, 3, &[(0, 16)]);
    let (cdb, mut list) = use_token(4, 0, &token, &[(100, 16)]);
    list[2] |= 1;
    let job = there.job(&cdb, &list);
    let data = [Segment::Data(Bytes::from(list))].into_iter().collect();
    let (response, rest) = now(b.unit.run_until(&there.nexus, job, data, Cancel::default()));
    assert_eq!(response.status, Status::Good);
    let mut rest = Running(Box::pin(rest.unwrap()));
    assert!(rest.poll().is_none(), "its write waits");
    at_b(&abort(4), &[]);
    assert_eq!(at_b(&receive(7, 4), &[])[5], 0x11, "it may land yet");
    b.volume.let_through(10);
    assert!(rest.poll().is_some());
    assert_ne!(at_b(&receive(7, 4), &[])[5], 0x11);
}

/// It was refused because copies ran, when the token was there already.
#[test]
fn a_token_is_made_beside_as_many_copies_as_may_run() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 16, 4);
    let token = a.token(&nexus, 1, &[(0, 16)]);
    let copies: Vec<Rest> =
        (0..16).map(|n| immediate(&a, &nexus, &token, 100 + n, 1000 + 16 * u64::from(n))).collect();
    let (cdb, list) = use_token(200, 0, &token, &[(5000, 16)]);
    assert_eq!(a.send(&nexus, &cdb, &list).status, Status::Busy, "no further copy");
    assert_eq!(a.token(&nexus, 2, &[(0, 16)]).len(), 512);
    copies.into_iter().for_each(now);
    assert_eq!(a.block(1255)[0], 4);
}

/// It was refused as an illegal request, and Windows held both disks for unable to copy for minutes.
#[test]
fn one_copy_more_than_may_run_is_good_when_it_is_sent_again() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let (nexus, other) = (lab.attach(&a, "iqn.hyperv"), lab.attach(&a, "iqn.esx"));
    a.fill(0, 16, 4);
    let token = a.token(&nexus, 1, &[(0, 16)]);
    let mut copies: Vec<Rest> =
        (0..16).map(|n| immediate(&a, &nexus, &token, 100 + n, 1000 + 16 * u64::from(n))).collect();
    let paste = use_token(200, 0, &token, &[(5000, 16)]);
    let full_copy = xcopy(5, &[by_naa(&a.unit)], &[(0, 0, 16, 0, 6000)]);
    let more = [(&nexus, &paste, 5000), (&other, &full_copy, 6000)];
    for (nexus, (cdb, list), _) in more {
        let response = a.send(nexus, cdb, list);
        assert_eq!((response.status, response.sense.as_slice().len()), (Status::Busy, 0));
    }
    assert_eq!(a.sense(&nexus, &receive(7, 200), &[]), (5, 0x24, 0), "it never began");
    now(copies.pop().unwrap());
    for (nexus, (cdb, list), at) in more {
        a.good(nexus, cdb, list);
        assert_eq!(a.block(at + 15)[0], 4);
    }
}

#[test]
fn copies_that_nobody_wants_to_ask_about_run_side_by_side_and_cannot_be_asked_about() {
    let disk = paced::Disk::new();
    let host = disk.host();
    disk.volume.let_through(1);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let (cdb, list) = copy(&disk.unit, None);
    let mut copies = [(); 3].map(|()| host.run(&cdb, &list).0);
    assert!(copies.iter_mut().all(|copy| copy.poll().is_none()), "none is refused");
    for id in [0_u32, u32::MAX] {
        let status = [[0x84, 5].as_slice(), &id.to_be_bytes(), &[0; 6], &[255, 0, 0]].concat();
        assert_eq!(host.send(&status, &[]).sense.as_slice()[12], 0x24, "{id:x}");
    }
    // One that has an identifier has it for itself.
    let (cdb, list) = copy(&disk.unit, Some(0));
    let (mut named, _) = host.run(&cdb, &list);
    assert_eq!(named.poll(), None);
    assert_eq!(host.send(&cdb, &list).sense.as_slice()[12..14], [0, 0x16]);
    disk.volume.let_through(8);
    for mut copy in copies.into_iter().chain([named]) {
        assert_eq!(copy.poll().unwrap().status, Status::Good);
    }
    assert_eq!(disk.volume.byte(512), 0x5a);
    let status = [0x84, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12];
    assert_eq!(host.send(&status, &[]).status, Status::Good);
}

/// It looked before it waited for the block, and wrote once it had it.
#[test]
fn a_copy_that_was_ended_while_it_waited_for_its_block_writes_nothing() {
    let disk = paced::Disk::new();
    let host = disk.host();
    disk.volume.let_through(1);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    let (mut swap, _) = host.run(&compare, &[ZEROES, ZEROES].concat());
    assert_eq!(swap.poll(), None, "it has the block for itself");
    let (cdb, list) = copy(&disk.unit, Some(1));
    let (mut run, cancel) = host.run(&cdb, &list);
    assert_eq!(run.poll(), None);
    // Both read.
    disk.volume.let_through(2);
    disk.volume.asked();
    assert_eq!(run.poll(), None);
    assert!(disk.volume.asked().is_empty(), "it waits for that block");
    disk.volume.let_through(1);
    assert_eq!(swap.poll().unwrap().status, Status::Good);
    cancel.cancel();
    assert_eq!(run.poll().unwrap().sense.as_slice()[2], 0xa);
    assert_eq!(disk.volume.byte(512), 0);
}

/// It was not among those that the reset ended, and had been let in before.
#[test]
fn a_copy_that_a_reset_meets_before_it_is_listed_ends_like_all_others() {
    let disk = paced::Disk::new();
    let host = disk.host();
    disk.volume.let_through(8);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let (cdb, list) = copy(&disk.unit, Some(1));
    let (mut run, _) = host.run(&cdb, &list);
    let unit = Arc::clone(&disk.unit);
    let reset = move || now(unit.reset(Sense::DEVICE_RESET));
    *disk.volume.at_a_look.lock().unwrap() = Some(Box::new(reset));
    assert_eq!(run.poll().unwrap().status, Status::TaskAborted);
    assert_eq!(disk.volume.byte(512), 0);
}
