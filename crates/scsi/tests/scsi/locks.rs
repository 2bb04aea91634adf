//! COMPARE AND WRITE and ORWRITE read and write as one: hosts have their locks on it. They have the blocks they are about for
//! themselves, in their turn, and wait for nothing else; nor does anybody wait for them while they become stable.

use std::sync::atomic::Ordering;

use block::Durability;
use scsi::Status;

use crate::{
    commands::{PATTERN, STABLE_WRITE, ZEROES, copy, unmap, write},
    lab::Lab,
    paced::{Asked, Disk},
    steps::{STEPS, write_same},
};

/// COMPARE AND WRITE of a block of zeroes far from the first ones, and its data.
const LOCK: ([u8; 16], [[u8; 512]; 2]) =
    ([0x89, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], [ZEROES, [7; 512]]);

/// ORWRITE of the same block.
const OR: ([u8; 16], [u8; 512]) = ([0x8b, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], [7; 512]);

/// Every write of the other hosts stood still for as long as a device takes to flush, whenever one took a lock.
#[test]
fn others_write_while_a_compare_and_write_becomes_stable() {
    let disk = Disk::new();
    let (one, other) = (disk.host(), disk.host());
    let stable = [0x89, 0x08, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
    let (mut swap, _) = one.run(&stable, &[ZEROES, [7; 512]].concat());
    assert_eq!(swap.poll(), None);
    disk.volume.asked();
    let (mut beside, _) = other.run(&write(8), &[9; 512]);
    assert_eq!(beside.poll(), None);
    assert!(disk.volume.asked().is_empty(), "not before it is written");
    // It reads, and writes.
    disk.volume.let_through(2);
    assert_eq!(swap.poll(), None, "nothing is answered before it is stable");
    assert_eq!(disk.volume.byte(8 * 512), 7);
    // The first of these is the flush's: it came first.
    disk.volume.let_through(1);
    assert_eq!(beside.poll(), None);
    disk.volume.let_through(1);
    assert_eq!(
        beside.poll().unwrap().status,
        Status::Good,
        "while the flush has not been heard to have ended"
    );
    assert_eq!(disk.volume.byte(8 * 512), 9);
    assert_eq!(swap.poll().unwrap().status, Status::Good);
}

/// With `sync=always` the write itself waited, and the disk was let go of after that.
#[test]
fn others_write_while_a_compare_and_write_becomes_stable_on_a_disk_that_makes_all_stable() {
    let disk = Disk::new();
    disk.volume.is_always_stable.store(true, Ordering::Relaxed);
    let (one, other) = (disk.host(), disk.host());
    let (mut swap, _) = one.run(&LOCK.0, &LOCK.1.concat());
    assert_eq!(swap.poll(), None);
    let (mut beside, _) = other.run(&[0x2a, 0, 0, 0, 0x40, 0, 0, 0, 1, 0], &PATTERN);
    assert_eq!(beside.poll(), None);
    // It reads, and writes.
    disk.volume.let_through(2);
    assert_eq!(swap.poll(), None, "nothing is answered before it is stable");
    assert_eq!(disk.volume.byte(0x4000 * 512), 7);
    disk.volume.asked();
    assert_eq!(beside.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Write(0x4000 * 512, 512, Durability::Cached)], "it has begun");
    disk.volume.let_through(1);
    assert_eq!(swap.poll().unwrap().status, Status::Good);
    disk.volume.let_through(2);
    assert_eq!(beside.poll().unwrap().status, Status::Good);
}

/// The heartbeats of a datastore waited for the slowest write of any block, and every write of all hosts for them.
#[test]
fn a_compare_and_write_waits_for_no_write_of_other_blocks_and_keeps_none() {
    let (free, ranges) = unmap(&[(0, 16), (0x5000, 16)]);
    let slow_ones: [(&[u8], &[u8], usize); 3] =
        [(&write(0), &PATTERN, 1), (&free, &ranges, 2), (&write_same(), &PATTERN, 1)];
    let swaps = [(LOCK.0, LOCK.1.concat()), (OR.0, OR.1.to_vec())];
    for (cdb, data, operations) in slow_ones {
        for (swap, operand) in &swaps {
            let disk = Disk::new();
            let [one, other, third] = [(); 3].map(|()| disk.host());
            let (mut slow, _) = one.run(cdb, data);
            assert_eq!(slow.poll(), None);
            disk.volume.asked();
            let (mut swap, _) = other.run(swap, operand);
            assert_eq!(swap.poll(), None);
            assert_eq!(disk.volume.asked(), [Asked::Read(0x80_0000, 512)], "it has begun");
            let (mut beside, _) = third.run(&write(64), &PATTERN);
            assert_eq!(beside.poll(), None);
            assert_eq!(disk.volume.asked(), [Asked::Write(64 * 512, 512, Durability::Cached)], "so has this");
            // The first of these are for the slow one, which has not heard of them.
            disk.volume.let_through(operations + 3);
            assert_eq!(swap.poll().unwrap().status, Status::Good);
            assert_eq!(beside.poll().unwrap().status, Status::Good);
            assert_eq!(disk.volume.byte(0x80_0000), 7);
            disk.volume.let_through(STEPS);
            assert_eq!(slow.poll().unwrap().status, Status::Good);
        }
    }
}

#[test]
fn writes_and_locks_of_the_same_blocks_have_them_in_the_order_in_which_they_came() {
    let disk = Disk::new();
    let [one, other, third, fourth] = [(); 4].map(|()| disk.host());
    let (mut slow, _) = one.run(&[0x2a, 0, 0, 0, 0, 8, 0, 0, 8, 0], &[0x5a; 8 * 512]);
    assert_eq!(slow.poll(), None);
    disk.volume.asked();
    // Of the last of these blocks; and of the one behind it as well.
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 2, 0, 0];
    let (mut swap, _) = other.run(&compare, &[PATTERN, ZEROES, [7; 512], [7; 512]].concat());
    let (mut late, _) = third.run(&write(16), &[9; 512]);
    assert_eq!((swap.poll(), late.poll()), (None, None));
    assert!(disk.volume.asked().is_empty());
    let (mut beside, _) = fourth.run(&write(8), &PATTERN);
    assert_eq!(beside.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Write(8 * 512, 512, Durability::Cached)], "as writes do");
    disk.volume.let_through(2);
    assert_eq!(slow.poll().unwrap().status, Status::Good);
    assert_eq!(beside.poll().unwrap().status, Status::Good);
    assert_eq!((late.poll(), swap.poll()), (None, None));
    assert_eq!(disk.volume.asked(), [Asked::Read(15 * 512, 1024)]);
    disk.volume.let_through(2);
    assert_eq!(swap.poll().unwrap().status, Status::Good);
    assert_eq!([15, 16].map(|block| disk.volume.byte(block * 512)), [7, 7]);
    disk.volume.let_through(1);
    assert_eq!(late.poll().unwrap().status, Status::Good);
    assert_eq!([15, 16].map(|block| disk.volume.byte(block * 512)), [7, 9]);
}

/// The end of its connection.
#[test]
fn a_compare_and_write_that_is_dropped_while_it_waits_or_runs_lets_others_have_its_blocks() {
    for runs in [false, true] {
        let disk = Disk::new();
        let [one, other, third] = [(); 3].map(|()| disk.host());
        let slow = (!runs).then(|| {
            let (mut slow, _) = one.run(&[0x2a, 0, 0, 0, 0x3f, 0xff, 0, 0, 2, 0], &[0x5a; 1024]);
            assert_eq!(slow.poll(), None);
            slow
        });
        let (mut swap, _) = other.run(&LOCK.0, &LOCK.1.concat());
        let (mut behind, _) = third.run(&[0x2a, 0, 0, 0, 0x40, 0, 0, 0, 1, 0], &PATTERN);
        assert_eq!((swap.poll(), behind.poll()), (None, None));
        disk.volume.asked();
        drop(swap);
        assert_eq!(behind.poll(), None);
        assert_eq!(disk.volume.asked(), [Asked::Write(0x80_0000, 512, Durability::Cached)], "{runs}");
        drop(slow);
    }
}

/// It waited for the slowest commit of all hosts, and every other write behind it.
#[test]
fn a_compare_and_write_waits_for_no_write_that_becomes_stable() {
    let disk = Disk::new();
    let [one, other, third] = [(); 3].map(|()| disk.host());
    let (mut slow, _) = one.run(&STABLE_WRITE, &PATTERN);
    assert_eq!(slow.poll(), None);
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let (mut swap, _) = other.run(&compare, &[PATTERN, [7; 512]].concat());
    assert_eq!(swap.poll(), None);
    assert_eq!(
        disk.volume.asked(),
        [Asked::Write(0, 512, Durability::Stable(block::Asked::Fua))],
        "not before that is written"
    );
    disk.volume.let_through(1);
    assert_eq!(slow.poll(), None);
    // The first of these is the flush's, which is not heard to have ended.
    disk.volume.let_through(1);
    assert_eq!(swap.poll(), None);
    disk.volume.let_through(2);
    assert_eq!(swap.poll().unwrap().status, Status::Good);
    disk.volume.let_through(1);
    let (mut beside, _) = third.run(&[0x2a, 0, 0, 0, 0, 64, 0, 0, 1, 0], &PATTERN);
    assert_eq!(beside.poll().unwrap().status, Status::Good);
    assert_eq!(slow.poll().unwrap().status, Status::Good);
}

/// Full copies, zeroed ranges and freed ones are as many on such disks as locks.
#[test]
fn a_compare_and_write_waits_for_no_step_that_becomes_stable() {
    // Of a block that each of them changes.
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    let begun = |disk: &Disk| disk.volume.asked().contains(&Asked::Read(512, 512));
    for what in ["same", "holes", "copy"] {
        let disk = Disk::new();
        let (one, other) = (disk.host(), disk.host());
        disk.volume.let_through(1);
        assert_eq!(one.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &PATTERN).status, Status::Good);
        disk.volume.is_always_stable.store(true, Ordering::Relaxed);
        let (cdb, data, changes) = match what {
            "same" => (write_same().to_vec(), PATTERN.to_vec(), 1),
            "holes" => {
                let (cdb, list) = unmap(&[(0, 16), (64, 16)]);
                (cdb.to_vec(), list, 2)
            }
            _ => {
                disk.volume.let_through(1); // what it reads
                let (cdb, list) = copy(&disk.unit, Some(1));
                (cdb, list, 1)
            }
        };
        let (mut run, _) = one.run(&cdb, &data);
        assert_eq!(run.poll(), None, "{what}");
        let (mut swap, _) = other.run(&compare, &LOCK.1.concat());
        for _ in 0..changes {
            assert_eq!(swap.poll(), None, "{what}");
            assert!(!begun(&disk), "{what}: not before all that is on its way is written");
            disk.volume.let_through(1);
            assert_eq!(run.poll(), None, "{what}");
        }
        assert_eq!(swap.poll(), None, "{what}");
        assert!(begun(&disk), "{what}");
    }
}

#[test]
fn orwrite_adds_bits() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/a");
    let nexus = lab.attach(&disk, "iqn.node1");
    disk.fill(3, 1, 0x0f);
    disk.good(&nexus, &[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1], &[0xa0; 512]);
    assert_eq!(disk.block(3), [0xaf; 512]);
}
