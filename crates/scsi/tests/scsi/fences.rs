//! Who is kept from a disk, because another has it for himself or because it is gone: what they had begun is waited for where it
//! may land, and nothing of theirs begins after that.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use scsi::{Sense, Service, Status};

use crate::{
    commands::{PATTERN, STABLE_WRITE, register, unmap},
    lab::Lab,
    paced::{Disk, Host, Running},
};

/// Who has a host fenced off goes by what it reads, and that would not have been there any more after a power cut.
#[test]
fn who_fences_or_resets_waits_until_what_was_written_is_stable() {
    for by in ["reset", "clearing", "preemption"] {
        let disk = Disk::new();
        let (writer, other) = (disk.host(), disk.host());
        for (host, key) in [(&writer, 1), (&other, 2)] {
            let (cdb, list) = register(0, 0, key, 0);
            assert_eq!(host.send(&cdb, &list).status, Status::Good);
        }
        let (mut run, _) = writer.run(&STABLE_WRITE, &PATTERN);
        assert_eq!(run.poll(), None);
        disk.volume.let_through(1);
        assert_eq!(run.poll(), None);
        assert_eq!(disk.volume.byte(0), 0x5a);
        // PREEMPT AND ABORT.
        let (cdb, list) = register(5, 2, 1, 0);
        let preempts = other.run(&cdb, &list).0;
        let mut ending: Running<'_, ()> = match by {
            "reset" => Running(Box::pin(disk.unit.reset(Sense::DEVICE_RESET))),
            "clearing" => Running(Box::pin(disk.unit.clear_task_set(&other.nexus))),
            _ => preempts.good(),
        };
        assert!(ending.poll().is_none(), "{by}");
        let third = disk.host();
        let (mut beside, _) = third.run(&[0x2a, 0, 0, 0, 0, 64, 0, 0, 1, 0], &PATTERN);
        disk.volume.asked();
        assert_eq!(beside.poll(), None);
        assert_eq!(
            disk.volume.asked().len(),
            1,
            "{by}: what comes behind is not kept, for the flush may hang in a device"
        );
        assert!(ending.poll().is_none(), "{by}");
        disk.volume.let_through(1);
        assert_eq!(run.poll().unwrap().status, Status::Good, "{by}: it was written before");
        assert!(ending.poll().is_some(), "{by}");
        assert_eq!(beside.poll(), None, "{by}: nor waited for");
    }
}

#[test]
fn preempt_and_abort_ends_what_the_victim_had_begun() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/csv");
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    for (nexus, key) in [(&one, 1), (&two, 2)] {
        let (cdb, list) = register(0, 0, key, 0);
        disk.good(nexus, &cdb, &list);
    }
    let (mut write, _) = disk.run(&one, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &[1; 512]);
    let (cdb, list) = register(5, 2, 1, 0);
    disk.good(&two, &cdb, &list);
    assert_eq!(write.poll().unwrap().0.status, Status::TaskAborted);
    assert_eq!(disk.block(0)[0], 0);
    assert_eq!(disk.sense(&one, &[0], &[]), (6, 0x2a, 5), "registrations preempted");
}

/// Some wait half a minute for room, and one may be fenced off for good reason meanwhile.
#[test]
fn who_is_fenced_off_while_its_read_waits_reads_nothing() {
    let disk = Disk::new();
    let (fenced, owner) = (disk.host(), disk.host());
    let (mut run, _) = fenced.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]);
    for (action, key, service_key) in [(0, 0, 7), (1, 7, 0)] {
        let (mut cdb, list) = register(action, key, service_key, 0);
        cdb[2] = 3; // exclusive access
        assert_eq!(owner.send(&cdb, &list).status, Status::Good);
    }
    disk.volume.let_through(1);
    assert_eq!(run.poll().unwrap().status, Status::ReservationConflict);
    assert!(disk.volume.asked().is_empty());
}

/// A host would have been told that it released the disk, and everybody else been kept out until it logged out.
#[test]
fn reservations_of_the_two_kinds_do_not_mix() {
    let disk = Disk::new();
    let (one, other) = (disk.host(), disk.host());
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[15] = 1;
    assert_eq!(one.send(&[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(one.send(&register, &list).status, Status::ReservationConflict);
    assert_eq!(one.send(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[]).status, Status::ReservationConflict);
    assert_eq!(one.send(&[0x17, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(other.send(&[0; 6], &[]).status, Status::Good);
    assert_eq!(one.send(&register, &list).status, Status::Good);
}

/// Everybody who was registered got GOOD for RESERVE(6), though nothing was reserved: two could have the disk for themselves.
#[test]
fn reserve_6_is_good_only_to_who_may_do_what_a_holder_may() {
    let disk = Disk::new();
    let (holder, registered, stranger) = (disk.host(), disk.host(), disk.host());
    for (host, key) in [(&holder, 1), (&registered, 2)] {
        let (cdb, list) = register(0, 0, key, 0);
        assert_eq!(host.send(&cdb, &list).status, Status::Good);
    }
    let answers = || {
        let ask = |host: &Host<'_>, op: u8| host.send(&[op, 0, 0, 0, 0, 0], &[]).status == Status::Good;
        [0x16, 0x17].map(|op| [&holder, &registered, &stranger].map(|host| ask(host, op)))
    };
    assert_eq!(answers(), [[false; 3]; 2], "nothing is reserved");
    for (kind, passes) in [(1, false), (3, false), (5, true), (6, true), (7, true), (8, true)] {
        let reserve = |action: u8| {
            let (mut cdb, list) = register(action, 1, 0, 0);
            cdb[2] = kind;
            assert_eq!(holder.send(&cdb, &list).status, Status::Good);
        };
        reserve(1);
        assert_eq!(answers(), [[true, passes, false]; 2], "type {kind}");
        reserve(2);
        while registered.send(&[0; 6], &[]).status != Status::Good {} // reservations released
    }
}

/// By the time it runs the volume may be another unit's, which knows nothing of it.
#[test]
fn a_write_that_begins_when_its_disk_is_gone_is_none() {
    let disk = Disk::new();
    let host = disk.host();
    let (mut run, _) = host.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[9; 512]);
    disk.unit.retire();
    disk.volume.let_through(1);
    let response = run.poll().unwrap();
    assert_eq!((response.status, response.sense.as_slice()[12]), (Status::CheckCondition, 0x25));
    assert!(disk.volume.asked().is_empty());
}

/// They landed in what the volume was to others by then.
#[tokio::test(start_paused = true)]
async fn the_last_writes_of_a_disk_that_is_gone_are_waited_for_but_not_for_ever() {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (free, ranges) = unmap(&[(0, 16)]);
    let writes: [(&[u8], &[u8]); 2] = [(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[9; 512]), (&free, &ranges)];
    for (cdb, data) in writes {
        let service = Arc::<Service>::default();
        let (disk, other) = (Disk::of(&service, "tank/a"), Disk::of(&service, "tank/b"));
        disk.volume.is_always_stable.store(true, Ordering::Relaxed);
        let host = disk.host();
        let ended_within = |disk: &Disk, patience| {
            let (service, volume) = (Arc::clone(&service), Arc::clone(disk.unit.volume()));
            Running(Box::pin(async move { service.last_writes_ended(&volume, patience).await }))
        };
        let ended = |disk: &Disk| ended_within(disk, PATIENCE);
        let (mut write, _) = host.run(cdb, data);
        assert_eq!(write.poll(), None);
        assert_eq!(ended(&disk).poll(), Some(true), "its host is there");
        disk.unit.retire();
        let mut next = ended(&disk);
        assert_eq!((next.poll(), ended(&other).poll()), (None, Some(true)));
        disk.volume.let_through(1);
        assert_eq!((write.poll(), next.poll()), (None, None), "it is seen, and not stable");
        tokio::time::advance(PATIENCE / 2).await;
        assert_eq!(next.poll(), None);
        tokio::time::advance(PATIENCE).await;
        assert_eq!((next.poll(), ended(&disk).poll()), (Some(false), Some(false)));
        let mut patient = ended_within(&disk, Duration::MAX);
        assert_eq!(patient.poll(), None);
        disk.volume.let_through(1);
        assert_eq!(write.poll().unwrap().status, Status::Good);
        assert_eq!(patient.poll(), Some(true));
        assert_eq!(ended(&disk).poll(), Some(true), "however long ago");
    }
}
