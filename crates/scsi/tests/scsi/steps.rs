//! Commands that take long go in steps: they can be ended between two of them, and hold up nobody meanwhile. And what has
//! to wait for those that are under way does.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use block::Durability;
use scsi::{Begin, Sense, Service, Status};

use crate::{
    commands::{by_naa, populate, receive, register, use_token, xcopy},
    lab::{Lab, flat},
    paced::{Asked, Disk, Host, Running, now},
};

const STEP: usize = 1 << 20;
const STEPS: usize = 8;
/// That many steps of blocks of 512 bytes.
const BLOCKS: [u8; 4] = (STEPS as u32 * 2048).to_be_bytes();
const ZEROES: [u8; 512] = [0; 512];
const PATTERN: [u8; 512] = [0x5a; 512];

/// VERIFY(16) with this BYTCHK of all steps.
fn verify(check: u8) -> [u8; 16] {
    let [a, b, c, d] = BLOCKS;
    [0x8f, check << 1, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0]
}

/// WRITE SAME(16) of all steps.
fn write_same() -> [u8; 16] {
    let [a, b, c, d] = BLOCKS;
    [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0]
}

fn reads(steps: usize) -> Vec<Asked> {
    (0..steps).map(|step| Asked::Read((step * STEP) as u64, STEP)).collect()
}

fn writes(steps: usize) -> Vec<Asked> {
    (0..steps).map(|step| Asked::Write((step * STEP) as u64, STEP, Durability::Cached)).collect()
}

/// One block was compared at a time, and room was held for 32 MiB for as long as that took.
#[test]
fn a_verify_reads_in_large_steps_whatever_it_compares_with_and_holds_two_of_them() {
    let disk = Disk::new();
    let host = disk.host();
    for (check, data) in [(0, &[][..]), (3, &ZEROES)] {
        assert!(host.job(&verify(check), data).holds as usize <= 2 * STEP);
        let (mut run, _) = host.run(&verify(check), data);
        disk.volume.let_through(STEPS);
        assert_eq!(run.poll().unwrap().status, Status::Good);
        assert_eq!(disk.volume.asked(), reads(STEPS), "{check}");
    }
    // One byte differs, far in: where, is told.
    disk.volume.let_through(STEPS);
    host.send(&[0x2a, 0, 0, 0, 12, 34, 0, 0, 1], &[[0; 200].as_slice(), &[1], &[0; 311]].concat());
    let response = host.send(&verify(3), &ZEROES);
    let sense = response.sense.as_slice();
    assert_eq!((sense[0], sense[2], sense[12]), (0xf0, 0xe, 0x1d));
    let at = u32::from_be_bytes(sense[3..7].try_into().unwrap());
    assert_eq!(at, (12 * 256 + 34) * 512 + 200);
    // And a last step that is none.
    let (mut run, _) = host.run(&[0x2f, 6, 0, 0, 0, 0, 0, 8, 3], &ZEROES);
    disk.volume.asked();
    assert_eq!(run.poll().unwrap().status, Status::Good);
    assert_eq!(disk.volume.asked(), [Asked::Read(0, STEP), Asked::Read(STEP as u64, 3 * 512)]);
    let (mut run, _) = host.run(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!(run.poll().unwrap().status, Status::Good, "of no blocks it needs none");
}

/// What a transport reckons with. 128 of them of a session held two MiB each that were not counted.
#[test]
fn what_is_written_all_over_holds_room_for_two_steps_unless_it_becomes_a_hole() {
    let disk = Disk::new();
    let host = disk.host();
    let data = |bytes: &'static [u8]| [block::Segment::Data(bytes.into())];
    let pattern = host.job(&write_same(), &PATTERN);
    assert_eq!((pattern.holds as usize, pattern.with_data(&data(&PATTERN)).holds), (2 * STEP, pattern.holds));
    assert_eq!(pattern.with_data(&data(&ZEROES)).holds, 0);
    let mut hole = write_same();
    hole[1] = 8;
    assert_eq!(host.job(&hole, &PATTERN).holds, 0);
    let one = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(host.job(&one, &PATTERN).holds, 512);
}

/// An abort, a reset and the next login waited until a whole disk was read.
#[test]
fn a_command_that_takes_long_ends_after_the_step_in_which_it_is_called_back() {
    let disk = Disk::new();
    let host = disk.host();
    let prefetch = [0x34, 0, 0, 0, 0, 0, 0, 0x40, 0];
    let cases: [(&[u8], &[u8], Vec<Asked>); 4] = [
        (&verify(0), &[], reads(3)),
        (&verify(3), &ZEROES, reads(3)),
        (&prefetch, &[], reads(3)),
        (&write_same(), &PATTERN, writes(3)),
    ];
    for (cdb, data, asked) in cases {
        assert!(host.job(cdb, data).is_long(), "{cdb:02x?}");
        let (mut run, cancel) = host.run(cdb, data);
        disk.volume.let_through(2);
        assert_eq!(run.poll(), None, "it waits for its third step");
        cancel.cancel();
        disk.volume.let_through(1);
        assert_eq!(run.poll().unwrap().status, Status::TaskAborted, "{cdb:02x?}");
        assert_eq!(disk.volume.asked(), asked, "{cdb:02x?}");
    }
}

#[test]
fn a_reset_and_a_clearing_wait_for_one_step_and_none_follows() {
    for is_reset in [true, false] {
        for (cdb, data, steps) in [(&verify(0), &[][..], reads(1)), (&write_same(), &PATTERN, writes(1))] {
            let disk = Disk::new();
            let (victim, other) = (disk.host(), disk.host());
            let (mut run, _) = victim.run(cdb, data);
            assert_eq!(run.poll(), None);
            let mut ending = Running(match is_reset {
                true => Box::pin(disk.unit.reset(Sense::DEVICE_RESET)),
                false => Box::pin(disk.unit.clear_task_set(&other.nexus)),
            });
            let writes = data == PATTERN;
            assert_eq!(ending.poll().is_none(), writes, "a write is on its way, or none");
            disk.volume.let_through(1);
            let ended = run.poll();
            assert!(!writes || ending.poll().is_some(), "no longer than for one step");
            let response = ended.or_else(|| run.poll()).unwrap();
            assert_eq!(response.status, Status::TaskAborted);
            assert_eq!(disk.volume.asked(), steps);
        }
    }
}

#[test]
fn others_have_the_disk_between_the_steps_of_a_write_same() {
    let disk = Disk::new();
    let (long, short) = (disk.host(), disk.host());
    let (mut run, _) = long.run(&write_same(), &PATTERN);
    assert_eq!(run.poll(), None);
    // Of a block that the first step writes, and of one that the second does.
    let compare = |lba: u16, old: [u8; 512]| {
        let [high, low] = lba.to_be_bytes();
        short.run(&[0x89, 0, 0, 0, 0, 0, 0, 0, high, low, 0, 0, 0, 1, 0, 0], &[old, [7; 512]].concat()).0
    };
    let (mut first, mut second) = (compare(8, PATTERN), compare(2048, ZEROES));
    assert_eq!(first.poll(), None);
    assert_eq!(disk.volume.asked(), writes(1), "not during that step");
    assert_eq!(second.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Read(STEP as u64, 512)], "it has begun");
    disk.volume.let_through(1);
    assert_eq!(run.poll(), None);
    assert!(disk.volume.asked().is_empty(), "and now that step waits");
    disk.volume.let_through(4);
    for mut swap in [first, second] {
        assert_eq!(swap.poll().unwrap().status, Status::Good);
    }
    assert_eq!([8 * 512, STEP as u64].map(|at| disk.volume.byte(at)), [7, 7]);
    disk.volume.let_through(STEPS - 1);
    assert_eq!(run.poll().unwrap().status, Status::Good);
    assert_eq!([8 * 512, STEP as u64].map(|at| disk.volume.byte(at)), [7, 0x5a]);
}

/// UNMAP(10) of these: (first block, blocks).
pub(crate) fn unmap(ranges: &[(u64, u32)]) -> ([u8; 10], Vec<u8>) {
    let len = ranges.len() * 16;
    let mut list = vec![0, len as u8 + 6, 0, len as u8, 0, 0, 0, 0];
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    ([0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], list)
}

/// COMPARE AND WRITE waited for all of it, and every other write for that, be it of other blocks; nor could it be ended.
#[test]
fn others_have_the_disk_between_the_steps_in_which_a_long_range_is_freed_and_it_can_be_ended() {
    /// Command, data, and what its first two steps are.
    type Case<'a> = (&'a [u8], &'a [u8], Vec<Asked>, Vec<Asked>);
    const MIB: u64 = 1 << 20;
    const MIB_BLOCKS: u32 = 2048;
    let hole = |offset: u64, len: u64| Asked::Zeroes(offset, len, Durability::Cached);
    let [a, b, c, d] = (200 * MIB_BLOCKS).to_be_bytes();
    let same = [0x93, 8, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0];
    // From the middle of a volume block on: it ends there as well, and what is between are whole ones.
    let half = 4096;
    let (freeing, list) = unmap(&[(8, 100 * MIB_BLOCKS), (150 * u64::from(MIB_BLOCKS), 8), (0, 0)]);
    let cases: [Case<'_>; 2] = [
        (&same, &ZEROES, vec![hole(0, 64 * MIB)], vec![hole(64 * MIB, 64 * MIB)]),
        (
            &freeing,
            &list,
            vec![hole(half, 64 * MIB - half)],
            vec![hole(64 * MIB, 36 * MIB + half), hole(150 * MIB, half)],
        ),
    ];
    for (cdb, data, first, second) in cases {
        let disk = Disk::sized(&Arc::default(), "tank/large", 256 * MIB);
        let (long, other) = (disk.host(), disk.host());
        assert!(long.job(cdb, data).is_long());
        let (mut run, cancel) = long.run(cdb, data);
        assert_eq!(run.poll(), None);
        assert_eq!(disk.volume.asked(), first);
        let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
        let (mut swap, _) = other.run(&compare, &[ZEROES, [7; 512]].concat());
        let (mut beside, _) = other.run(&[0x2a, 0, 0, 0, 0, 64, 0, 0, 1, 0], &[9; 512]);
        assert_eq!((swap.poll(), beside.poll()), (None, None));
        assert_eq!(disk.volume.asked(), [Asked::Write(64 * 512, 512, Durability::Cached)]);
        disk.volume.let_through(1);
        assert_eq!(run.poll(), None);
        assert_eq!(disk.volume.asked(), second, "it does not wait for a lock of blocks that it is done with");
        // For what was asked before, and for the lock.
        disk.volume.let_through(1 + second.len() + 2);
        assert_eq!(swap.poll().unwrap().status, Status::Good, "after one step");
        assert_eq!(beside.poll().unwrap().status, Status::Good);
        disk.volume.asked();
        cancel.cancel();
        let ended = run.poll().unwrap().status;
        let is_last = cdb[0] == 0x42;
        assert_eq!(ended, if is_last { Status::Good } else { Status::TaskAborted });
        assert!(disk.volume.asked().is_empty());
    }
}

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

/// COMPARE AND WRITE of a block of zeroes far from the first ones, and its data.
const LOCK: ([u8; 16], [[u8; 512]; 2]) =
    ([0x89, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], [ZEROES, [7; 512]]);

/// WRITE(10) of the first block with FUA.
const STABLE_WRITE: [u8; 10] = [0x2a, 0x08, 0, 0, 0, 0, 0, 0, 1, 0];

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

/// ORWRITE of the same block.
const OR: ([u8; 16], [u8; 512]) = ([0x8b, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], [7; 512]);

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
                let (cdb, list) = copy(&disk, Some(1));
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
        let mut preempts = other.run(&cdb, &list).0;
        let mut ending: Running<'_, ()> = Running(match by {
            "reset" => Box::pin(disk.unit.reset(Sense::DEVICE_RESET)),
            "clearing" => Box::pin(disk.unit.clear_task_set(&other.nexus)),
            _ => Box::pin(std::future::poll_fn(move |_| match preempts.poll() {
                Some(response) => {
                    assert_eq!(response.status, Status::Good);
                    std::task::Poll::Ready(())
                }
                None => std::task::Poll::Pending,
            })),
        });
        assert!(ending.poll().is_none(), "{by}");
        let third = disk.host();
        let (mut beside, _) = third.run(&[0x2a, 0, 0, 0, 0, 64, 0, 0, 1, 0], &PATTERN);
        disk.volume.asked();
        assert_eq!(beside.poll(), None);
        assert!(disk.volume.asked().is_empty(), "{by}: what comes behind waits for it");
        disk.volume.let_through(1);
        assert_eq!(run.poll().unwrap().status, Status::Good, "{by}: it was written before");
        assert!(ending.poll().is_some(), "{by}");
    }
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

#[test]
fn what_is_not_one_block_for_each_is_refused_before_anything_is_written() {
    let disk = Disk::new();
    let host = disk.host();
    let response = host.send(&[0x2e, 0x06, 0, 0, 0, 0, 0, 0, 8, 0], &[9; 512]);
    assert_eq!((response.status, response.sense.as_slice()[2] & 0xf), (Status::CheckCondition, 5));
    assert!(disk.volume.asked().is_empty());
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

#[test]
fn who_is_fenced_off_during_a_write_same_does_no_further_step_of_it() {
    let disk = Disk::new();
    let (fenced, owner) = (disk.host(), disk.host());
    let (mut run, _) = fenced.run(&write_same(), &PATTERN);
    disk.volume.let_through(2);
    assert_eq!(run.poll(), None);
    for (action, key, service_key) in [(0, 0, 7), (1, 7, 0)] {
        let (cdb, list) = register(action, key, service_key, 0);
        assert_eq!(owner.send(&cdb, &list).status, Status::Good);
    }
    disk.volume.let_through(STEPS);
    assert_eq!(run.poll().unwrap().status, Status::ReservationConflict);
    assert_eq!(disk.volume.asked(), writes(3));
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

/// MODE SELECT(6) of the caching page, with WCE=0.
fn write_cache_off() -> ([u8; 6], Vec<u8>) {
    let mut list = vec![0, 0, 0, 0, 0x08, 0x12, 0];
    list.resize(24, 0);
    ([0x15, 0x10, 0, 0, 24, 0], list)
}

/// Whoever finds it off takes all it wrote for stable.
#[test]
fn a_write_cache_is_off_for_others_when_all_that_was_cached_is_stable_whoever_switched_it() {
    #[derive(Clone, Copy, Debug)]
    enum By {
        ModeSelect,
        Operator,
    }
    for by in [By::ModeSelect, By::Operator] {
        let disk = Disk::new();
        let (writer, other) = (disk.host(), disk.host());
        let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
        let (mut cached, _) = writer.run(write, &PATTERN);
        assert_eq!(cached.poll(), None);
        let mut off: Running<'_, ()> = match by {
            By::ModeSelect => {
                let (cdb, list) = write_cache_off();
                let (mut run, _) = writer.run(&cdb, &list);
                Running(Box::pin(std::future::poll_fn(move |_| match run.poll() {
                    Some(response) => {
                        assert_eq!(response.status, Status::Good);
                        std::task::Poll::Ready(())
                    }
                    None => std::task::Poll::Pending,
                })))
            }
            By::Operator => Running(Box::pin(async { disk.unit.set_write_cache(false).await.unwrap() })),
        };
        assert!(off.poll().is_none());
        let written = [Asked::Write(0, 512, Durability::Cached)];
        assert_eq!(disk.volume.asked(), written, "{by:?}: nothing is flushed before what has to be");
        disk.volume.let_through(1);
        assert_eq!(cached.poll().unwrap().status, Status::Good);
        assert!(off.poll().is_none());
        assert_eq!(disk.volume.asked(), [Asked::Flush], "{by:?}");
        assert_eq!(other.news(), [], "{by:?}: not yet");
        disk.volume.let_through(1);
        assert!(off.poll().is_some());
        assert_eq!(other.news(), [(0x2a, 1)], "{by:?}");
    }
}

/// Whoever switched it off as the second was told so at once, and what it had written before was not stable yet.
#[test]
fn a_write_cache_that_somebody_is_switching_off_is_not_off_yet_for_others_who_do() {
    let disk = Disk::new();
    let (first, second) = (disk.host(), disk.host());
    let is_on = || {
        let response = second.send(&[0x1a, 0x08, 0x08, 0, 255, 0], &[]);
        flat(&response.data)[6] == 0x04
    };
    let (cdb, list) = write_cache_off();
    let (mut switched, _) = first.run(&cdb, &list);
    assert_eq!(switched.poll(), None);
    let (mut again, _) = second.run(&cdb, &list);
    assert_eq!(again.poll(), None);
    let mut by_operator: Running<'_, Result<(), block::VolumeError>> =
        Running(Box::pin(disk.unit.set_write_cache(false)));
    assert_eq!(by_operator.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Flush]);
    assert!(is_on(), "not all is stable");
    // What is written from here on is.
    let (mut write, _) = second.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    assert_eq!(write.poll(), None);
    let stable = Durability::Stable(block::Asked::CacheOff);
    assert_eq!(disk.volume.asked(), [Asked::Write(0, 512, stable)]);
    disk.volume.let_through(1);
    for mut run in [switched, again] {
        assert_eq!(run.poll().unwrap().status, Status::Good);
    }
    assert_eq!(by_operator.poll(), Some(Ok(())));
    assert!(disk.volume.asked().is_empty(), "once is enough");
    assert_eq!(second.news(), [(0x2a, 1)]);
    assert!(!is_on());
}

/// The lists of a copy within the disk: a block to the one behind.
fn copy(disk: &Disk, id: Option<u8>) -> (Vec<u8>, Vec<u8>) {
    let (cdb, mut list) = xcopy(id.unwrap_or(0), &[by_naa(&disk.unit)], &[(0, 0, 1, 0, 1)]);
    if id.is_none() {
        list[1] = 0x18; // 11b: the list identifier means nothing
    }
    (cdb, list)
}

#[test]
fn copies_that_nobody_wants_to_ask_about_run_side_by_side_and_cannot_be_asked_about() {
    let disk = Disk::new();
    let host = disk.host();
    disk.volume.let_through(1);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let (cdb, list) = copy(&disk, None);
    let mut copies = [(); 3].map(|()| host.run(&cdb, &list).0);
    assert!(copies.iter_mut().all(|copy| copy.poll().is_none()), "none is refused");
    for id in [0_u32, u32::MAX] {
        let status = [[0x84, 5].as_slice(), &id.to_be_bytes(), &[0; 6], &[255, 0, 0]].concat();
        assert_eq!(host.send(&status, &[]).sense.as_slice()[12], 0x24, "{id:x}");
    }
    // One that has an identifier has it for itself.
    let (cdb, list) = copy(&disk, Some(0));
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
    let disk = Disk::new();
    let host = disk.host();
    disk.volume.let_through(1);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    let (mut swap, _) = host.run(&compare, &[ZEROES, ZEROES].concat());
    assert_eq!(swap.poll(), None, "it has the block for itself");
    let (cdb, list) = copy(&disk, Some(1));
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
    let disk = Disk::new();
    let host = disk.host();
    disk.volume.let_through(8);
    host.send(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    let (cdb, list) = copy(&disk, Some(1));
    let (mut run, _) = host.run(&cdb, &list);
    let unit = Arc::clone(&disk.unit);
    let reset = move || now(unit.reset(Sense::DEVICE_RESET));
    *disk.volume.at_a_look.lock().unwrap() = Some(Box::new(reset));
    assert_eq!(run.poll().unwrap().status, Status::TaskAborted);
    assert_eq!(disk.volume.byte(512), 0);
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

/// WRITE(10) of this block.
fn write(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0]
}

/// Every writer stood still for each part of a file that a host copied, until the slowest write under way was done.
#[test]
fn others_write_while_a_token_waits_for_a_write_that_is_not_seen_yet() {
    let disk = Disk::new();
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
    let disk = Disk::new();
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
    let disk = Disk::new();
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
    let (old, other) = (Disk::of(&service, "tank/a"), Disk::of(&service, "tank/b"));
    let new = Disk::of(&service, "tank/a");
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

#[test]
fn orwrite_adds_bits() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/a");
    let nexus = lab.attach(&disk, "iqn.node1");
    disk.fill(3, 1, 0x0f);
    disk.good(&nexus, &[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1], &[0xa0; 512]);
    assert_eq!(disk.block(3), [0xaf; 512]);
}
