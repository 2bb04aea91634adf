//! Commands that take long go in steps: they can be ended between two of them, and hold up nobody meanwhile.

use std::sync::Arc;

use block::Durability;
use scsi::{Sense, Status};

use crate::{
    commands::{PATTERN, ZEROES, register, unmap},
    paced::{Asked, Disk, Running},
};

const STEP: usize = 1 << 20;
pub(crate) const STEPS: usize = 8;
/// That many steps of blocks of 512 bytes.
const BLOCKS: [u8; 4] = (STEPS as u32 * 2048).to_be_bytes();

/// VERIFY(16) with this BYTCHK of all steps.
fn verify(check: u8) -> [u8; 16] {
    let [a, b, c, d] = BLOCKS;
    [0x8f, check << 1, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0]
}

/// WRITE SAME(16) of all steps.
pub(crate) fn write_same() -> [u8; 16] {
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

#[test]
fn what_is_not_one_block_for_each_is_refused_before_anything_is_written() {
    let disk = Disk::new();
    let host = disk.host();
    let response = host.send(&[0x2e, 0x06, 0, 0, 0, 0, 0, 0, 8, 0], &[9; 512]);
    assert_eq!((response.status, response.sense.as_slice()[2] & 0xf), (Status::CheckCondition, 5));
    assert!(disk.volume.asked().is_empty());
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
