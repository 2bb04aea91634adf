//! Several hosts at one target: what task management and reservations of one do to the others, what each is told when it comes
//! back, and what is counted of what was refused.

use std::sync::Arc;

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segments, VolumeError, VolumeFuture,
};
use iscsi::{
    Counters, Form,
    pdu::{Header, NO_TAG, op},
    session::Work,
};

use crate::{
    hosts::{Host, NAME, cluster, disk, two_portals, write10},
    initiator::now,
};

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
    let targets = two_portals();
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
