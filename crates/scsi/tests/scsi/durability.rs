//! Which promise each command makes to its client, and that the volume hears of exactly that one: FUA, the write
//! cache switched off, a flush, or nothing but the write itself.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use block::{
    Asked, BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeFuture,
};
use bytes::Bytes;
use scsi::{Begin, LogicalUnit, Response, Sense, Status};

use crate::paced::now;

/// What a volume was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Write(Durability),
    Zeroes(Durability),
    Flush,
}

use Heard::{Flush, Write, Zeroes};
const CACHED: Durability = Durability::Cached;
const FUA: Durability = Durability::Stable(Asked::Fua);
const CACHE_OFF: Durability = Durability::Stable(Asked::CacheOff);

/// A volume in memory that remembers what it was asked for.
struct Listening {
    volume: MemVolume,
    heard: Mutex<Vec<Heard>>,
    is_read_only: AtomicBool,
}

impl Listening {
    fn hear(&self, what: Heard) {
        self.heard.lock().unwrap().push(what);
    }
}

impl BlockVolume for Listening {
    fn geometry(&self) -> Geometry {
        let usual = self.volume.geometry();
        Geometry { read_only: usual.read_only || self.is_read_only.load(Ordering::Relaxed), ..usual }
    }
    fn identity(&self) -> Identity {
        self.volume.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.volume.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.volume.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        self.hear(Write(durability));
        self.volume.write(offset, data, durability)
    }
    fn write_zeroes(&self, offset: u64, len: u64, allocate: bool, to: Durability) -> VolumeFuture<'_, ()> {
        self.hear(Zeroes(to));
        self.volume.write_zeroes(offset, len, allocate, to)
    }
    fn unmap(&self, offset: u64, len: u64, durability: Durability) -> VolumeFuture<'_, ()> {
        self.hear(Zeroes(durability));
        self.volume.unmap(offset, len, durability)
    }
    fn flush(&self) -> VolumeFuture<'_, ()> {
        self.hear(Flush);
        self.volume.flush()
    }
}

/// Two initiators of one logical unit.
struct Bench {
    volume: Arc<Listening>,
    unit: LogicalUnit,
    nexuses: [Arc<scsi::Nexus>; 2],
}

impl Bench {
    fn of(volume: MemVolume) -> Self {
        Self::between(volume, ["iqn.one,i,0x1", "iqn.two,i,0x1"])
    }

    fn between(volume: MemVolume, ports: [&str; 2]) -> Self {
        let volume =
            Arc::new(Listening { volume, heard: Mutex::default(), is_read_only: AtomicBool::new(false) });
        let unit = LogicalUnit::new(Arc::clone(&volume) as Arc<dyn BlockVolume>, "iqn.test");
        let nexuses = ports.map(|port| unit.attach(port));
        let bench = Self { volume, unit, nexuses };
        // The first command of each hears that the unit was reset.
        for who in 0..2 {
            assert_eq!(bench.send(who, &[0], &[]).status, Status::CheckCondition);
        }
        bench
    }

    fn new() -> Self {
        Self::of(MemVolume::new("tank/v", 1 << 20, 8192))
    }

    fn send(&self, who: usize, bytes: &[u8], data: &[u8]) -> Response {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        let nexus = &self.nexuses[who];
        match self.unit.begin(nexus, &cdb, data.len() as u32) {
            Begin::Done(response) => response,
            Begin::Job(job) => {
                let mut out = Segments::new();
                if !data.is_empty() {
                    out.push(Segment::Data(Bytes::copy_from_slice(data)));
                }
                now(self.unit.run(nexus, job, out))
            }
        }
    }

    /// Sends a command that must succeed; what the volume heard of it.
    #[track_caller]
    fn heard(&self, bytes: &[u8], data: &[u8]) -> Vec<Heard> {
        let response = self.send(0, bytes, data);
        assert_eq!(response.status, Status::Good, "{bytes:x?}: {response:?}");
        std::mem::take(&mut self.volume.heard.lock().unwrap())
    }

    /// The flags of the caching page, as MODE SENSE(6) gives them to an initiator.
    fn caching_flags(&self, who: usize) -> u8 {
        let response = self.send(who, &[0x1a, 0x08, 0x08, 0, 255, 0], &[]);
        let [Segment::Data(page), ..] = response.data.as_slice() else { panic!("{response:?}") };
        assert_eq!((page[4], page[5], page[2] & 0x10), (0x08, 0x12, 0x10), "caching page, DPOFUA set");
        page[6]
    }

    /// Whether MODE SENSE says to an initiator that it may switch the cache.
    fn may_switch(&self, who: usize) -> bool {
        let response = self.send(who, &[0x1a, 0x08, 0x48, 0, 255, 0], &[]);
        let [Segment::Data(mask), ..] = response.data.as_slice() else { panic!("{response:?}") };
        assert_eq!((mask[4], mask[5]), (0x08, 0x12));
        mask[6] == 0x04
    }

    /// What an operator sets.
    fn switch_cache(&self, on: bool) -> Vec<Heard> {
        assert_eq!(now(self.unit.set_write_cache(on)), Ok(()));
        std::mem::take(&mut self.volume.heard.lock().unwrap())
    }

    /// What an initiator is told in place of answers, until there is nothing more.
    fn news(&self, who: usize) -> Vec<(u8, u8)> {
        let told = || {
            let response = self.send(who, &[0], &[]);
            let sense = response.sense.as_slice();
            (response.status == Status::CheckCondition).then(|| (sense[12], sense[13]))
        };
        std::iter::from_fn(told).collect()
    }

    /// MODE SELECT(6) or (10) of the caching page with this WCE bit.
    fn set_cache(&self, who: usize, ten: bool, on: bool) -> Response {
        let mut page = vec![0; if ten { 8 } else { 4 }];
        page.extend([0x08, 0x12, if on { 0x04 } else { 0 }]);
        page.extend([0; 17]);
        let length = page.len() as u8;
        match ten {
            true => self.send(who, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, length, 0], &page),
            false => self.send(who, &[0x15, 0x10, 0, 0, length, 0], &page),
        }
    }
}

/// A CDB of ten, twelve or sixteen bytes with these flags, for block 8 and one block.
fn cdb(code: u8, flags: u8) -> Vec<u8> {
    match code {
        0x00..=0x1f => vec![code, 0, 0, 8, 1, 0],
        0x20..=0x5f => vec![code, flags, 0, 0, 0, 8, 0, 0, 1, 0],
        0x80..=0x9f => vec![code, flags, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0],
        _ => vec![code, flags, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0],
    }
}

/// What a command is, and what its Data-Out holds.
const BLOCK: [u8; 512] = [0x5a; 512];
const ZEROES: [u8; 512] = [0; 512];

fn unmap_list() -> Vec<u8> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(8_u64.to_be_bytes());
    list.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    list
}

#[test]
fn each_write_carries_the_promise_its_command_asked_for() {
    let bench = Bench::new();
    assert_eq!(bench.heard(&cdb(0x0a, 0), &BLOCK), [Write(CACHED)], "WRITE(6) has no FUA");
    for code in [0x2a, 0xaa, 0x8a] {
        assert_eq!(bench.heard(&cdb(code, 0), &BLOCK), [Write(CACHED)], "{code:x}");
        assert_eq!(bench.heard(&cdb(code, 0x10), &BLOCK), [Write(CACHED)], "{code:x}: DPO is not FUA");
        assert_eq!(bench.heard(&cdb(code, 0x08), &BLOCK), [Write(FUA)], "{code:x}");
    }
    for code in [0x2e, 0xae, 0x8e] {
        assert_eq!(bench.heard(&cdb(code, 0), &BLOCK), [Write(FUA)], "{code:x}: verified on the medium");
    }
    for code in [0x41, 0x93] {
        assert_eq!(bench.heard(&cdb(code, 0), &BLOCK), [Write(CACHED)], "{code:x}");
        assert_eq!(bench.heard(&cdb(code, 0x08), &ZEROES), [Zeroes(CACHED)], "{code:x}: unmaps");
    }
    assert_eq!(bench.heard(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap_list()), [Zeroes(CACHED)]);
    // COMPARE AND WRITE of what is there: zeroes.
    let caw = |flags| [0x89, flags, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
    assert_eq!(bench.heard(&caw(0), &[ZEROES, BLOCK].concat()), [Write(CACHED)]);
    assert_eq!(bench.heard(&caw(0x08), &[BLOCK, BLOCK].concat()), [Write(FUA)]);
    for (code, flags) in [(0x35, 0), (0x35, 0x02), (0x91, 0), (0x91, 0x02)] {
        assert_eq!(bench.heard(&cdb(code, flags), &[]), [Flush], "{code:x} {flags:x}: IMMED too");
    }
}

#[test]
fn without_a_write_cache_every_change_is_stable_and_the_page_says_so_to_all() {
    for ten in [false, true] {
        let bench = Bench::new();
        assert_eq!(bench.caching_flags(0), 0x04);
        assert_eq!(bench.set_cache(0, ten, false).status, Status::Good);
        let heard = std::mem::take(&mut *bench.volume.heard.lock().unwrap());
        assert_eq!(heard, [Flush], "what was cached before is not left in a cache that is off");
        let told = bench.send(1, &[0], &[]);
        assert_eq!(&told.sense.as_slice()[12..14], [0x2a, 0x01], "MODE PARAMETERS CHANGED");
        assert_eq!((bench.caching_flags(0), bench.caching_flags(1)), (0, 0));

        for code in [0x0a, 0x2a, 0xaa, 0x8a, 0x41, 0x93] {
            assert_eq!(bench.heard(&cdb(code, 0), &BLOCK), [Write(CACHE_OFF)], "{code:x}");
        }
        assert_eq!(bench.heard(&cdb(0x8a, 0x08), &BLOCK), [Write(FUA)], "what the command says comes first");
        assert_eq!(bench.heard(&cdb(0x8e, 0), &BLOCK), [Write(FUA)]);
        assert_eq!(bench.heard(&cdb(0x93, 0x08), &ZEROES), [Zeroes(CACHE_OFF)]);
        assert_eq!(bench.heard(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap_list()), [Zeroes(CACHE_OFF)]);
        let caw = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
        assert_eq!(bench.heard(&caw, &[ZEROES, BLOCK].concat()), [Write(CACHE_OFF)]);
        assert_eq!(bench.heard(&cdb(0x91, 0), &[]), [Flush], "not wrong, only needless");
    }
}

/// Hosts look once, when they start the disk. One that had found no cache went on without flushes when another one had
/// switched it on, and its writes were answered from memory.
#[test]
fn nobody_takes_a_disk_for_uncached_that_another_initiator_makes_cached() {
    for (by_operator, ten) in [(true, false), (true, true), (false, false), (false, true)] {
        let bench = Bench::new();
        assert!(bench.may_switch(1));
        match by_operator {
            true => drop(bench.switch_cache(false)),
            false => assert_eq!(bench.set_cache(0, ten, false).status, Status::Good),
        }
        drop((bench.news(0), bench.news(1)));
        assert_eq!(bench.caching_flags(0), 0, "it starts the disk, and will not flush");
        // Whose driver is told to switch it on whenever it is off. A session that was lost leaves no other host than that.
        for is_gone in [false, true] {
            if is_gone {
                bench.unit.detach(&bench.nexuses[0]);
            }
            assert!(!bench.may_switch(1), "{is_gone}");
            let refused = bench.set_cache(1, ten, true);
            let sense = refused.sense.as_slice();
            assert_eq!((refused.status, sense[2], sense[12]), (Status::CheckCondition, 5, 0x26));
            assert_eq!(sense[15..18], [0x80, 0, if ten { 10 } else { 6 }], "the flags of the page");
            assert_eq!(bench.set_cache(1, ten, false).status, Status::Good, "that is so");
        }
        bench.volume.heard.lock().unwrap().clear();
        assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHE_OFF)]);
    }
}

#[test]
fn a_host_that_has_a_disk_for_itself_switches_its_cache_by_any_of_its_paths() {
    let volume = MemVolume::new("tank/v", 1 << 20, 8192);
    let bench = Bench::between(volume, ["iqn.one,i,0x1", "iqn.one,i,0x2"]);
    // Who left before it was off found it on, and flushes.
    bench.unit.detach(&bench.unit.attach("iqn.two,i,0x1"));
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    assert_eq!(bench.news(1), [(0x2a, 0x01)]);
    assert!(bench.may_switch(0) && bench.may_switch(1));
    assert_eq!(bench.set_cache(1, true, true).status, Status::Good);
    assert_eq!(bench.news(0), [(0x2a, 0x01)]);
    assert_eq!((bench.caching_flags(0), bench.caching_flags(1)), (0x04, 0x04));
    bench.volume.heard.lock().unwrap().clear();
    assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHED)], "nothing is flushed");

    // Who came when it was off may have looked, and be back after its session was lost.
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    bench.unit.detach(&bench.unit.attach("iqn.two,i,0x1"));
    assert_eq!(bench.set_cache(0, false, true).sense.as_slice()[12], 0x26);
    // An operator may know better, and then it is anew.
    bench.switch_cache(false);
    bench.switch_cache(true);
    bench.news(0);
    assert_eq!(bench.caching_flags(0), 0x04);
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    assert!(bench.may_switch(0));
}

#[test]
fn setting_the_cache_to_what_it_is_changes_nothing() {
    let bench = Bench::new();
    assert_eq!(bench.set_cache(0, false, true).status, Status::Good);
    assert!(bench.volume.heard.lock().unwrap().is_empty());
    assert_eq!(bench.send(1, &[0], &[]).status, Status::Good, "nobody is told");
}

#[test]
fn a_pattern_longer_than_one_step_is_stable_in_every_part() {
    let bench = Bench::of(MemVolume::new("tank/v", 8 << 20, 8192));
    assert_eq!(bench.set_cache(0, true, false).status, Status::Good);
    bench.volume.heard.lock().unwrap().clear();
    let heard = bench.heard(&[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0], &BLOCK);
    assert_eq!(heard, vec![Write(CACHE_OFF); 4], "8192 blocks in mebibytes");
}

#[test]
fn a_read_only_unit_has_nothing_to_flush_and_that_is_no_error() {
    let bench = Bench::of(MemVolume::new("tank/v@s", 1 << 20, 8192).read_only());
    assert_eq!(bench.heard(&cdb(0x91, 0), &[]), [Flush]);
    let refused = bench.send(0, &cdb(0x8a, 0x08), &BLOCK);
    assert_eq!((refused.sense.as_slice()[2], refused.sense.as_slice()[12]), (7, 0x27));
    assert!(bench.volume.heard.lock().unwrap().is_empty());
}

#[test]
fn what_an_operator_does_to_the_cache_is_true_first_and_then_told_to_everybody_once() {
    let bench = Bench::new();
    assert!(bench.switch_cache(true).is_empty());
    assert_eq!((bench.news(0), bench.news(1)), (vec![], vec![]), "it is on");
    for _ in 0..2 {
        assert_eq!(bench.switch_cache(false), [Flush], "hosts will take what they wrote before for stable");
        assert!(bench.switch_cache(false).is_empty(), "set to what it is: nothing to do, nothing to tell");
        for who in 0..2 {
            assert_eq!(bench.news(who), [(0x2a, 0x01)], "MODE PARAMETERS CHANGED");
            assert_eq!(bench.caching_flags(who), 0);
        }
        assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHE_OFF)]);
        assert!(bench.switch_cache(true).is_empty(), "on again: nothing is flushed");
        assert_eq!((bench.news(0), bench.news(1)), (vec![(0x2a, 0x01)], vec![(0x2a, 0x01)]));
        assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHED)]);
    }
    // What an initiator chose is not undone by an operator who sets what was set.
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    bench.volume.heard.lock().unwrap().clear();
    assert!(bench.switch_cache(true).is_empty());
    assert_eq!(bench.news(1), [(0x2a, 0x01)]);
    assert_eq!(bench.caching_flags(1), 0);
}

/// It was on again after any host's error handler had reset the disk, and who had switched it off sent no more flushes.
#[test]
fn a_cache_that_a_host_switched_off_is_off_after_a_reset() {
    let bench = Bench::new();
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    assert_eq!(bench.news(1), [(0x2a, 0x01)]);
    now(bench.unit.reset(Sense::DEVICE_RESET));
    assert_eq!((bench.news(0), bench.news(1)), (vec![(0x29, 0x03)], vec![(0x29, 0x03)]));
    assert_eq!(bench.caching_flags(0), 0);
    bench.volume.heard.lock().unwrap().clear();
    assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHE_OFF)]);
}

#[test]
fn a_disk_that_may_not_be_written_to_any_more_says_so_and_finds_its_cache_as_it_was() {
    for chosen in [true, false] {
        let bench = Bench::new();
        assert_eq!(bench.set_cache(0, false, chosen).status, Status::Good);
        bench.news(1);
        for is_read_only in [true, false] {
            bench.volume.is_read_only.store(is_read_only, Ordering::Relaxed);
            bench.unit.announce();
            for who in 0..2 {
                // WP is in mode pages, what can be freed in vital product data.
                assert_eq!(bench.news(who), [(0x2a, 0x01), (0x3f, 0x03)], "{is_read_only}");
                let caching = if chosen { 0x04 } else { 0 };
                assert_eq!(bench.caching_flags(who), caching, "read-only: {is_read_only}, chosen: {chosen}");
            }
            // What it was told it may tell back, without that being a choice.
            assert_eq!(bench.set_cache(0, false, chosen).status, Status::Good);
            assert_eq!(bench.news(1), []);
        }
        bench.volume.heard.lock().unwrap().clear();
        let promise = if chosen { CACHED } else { CACHE_OFF };
        assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(promise)], "as the page says");
    }
}

/// Hosts look once, when they start the disk. They found no cache while it was read-only, and sent no flushes when it was not.
#[test]
fn who_found_a_disk_read_only_knows_of_the_cache_it_has_when_it_is_not() {
    let bench = Bench::new();
    bench.volume.is_read_only.store(true, Ordering::Relaxed);
    bench.unit.announce();
    bench.news(0);
    assert_eq!(bench.caching_flags(0), 0x04);
    let extended = bench.send(0, &[0x12, 1, 0x86, 0, 64, 0], &[]);
    let [Segment::Data(extended), ..] = extended.data.as_slice() else { panic!("{extended:?}") };
    assert_eq!(extended[6] & 0x01, 0x01, "V_SUP");
    // Whoever switches it off while that is of no account means it.
    assert_eq!(bench.set_cache(0, false, false).status, Status::Good);
    bench.volume.is_read_only.store(false, Ordering::Relaxed);
    bench.unit.announce();
    bench.news(0);
    assert_eq!(bench.caching_flags(0), 0);
    bench.volume.heard.lock().unwrap().clear();
    assert_eq!(bench.heard(&cdb(0x8a, 0), &BLOCK), [Write(CACHE_OFF)]);
}

/// The descriptors of GET LBA STATUS at a block: first block, number, whether it is a hole.
fn status(bench: &Bench, lba: u64) -> Vec<(u64, u32, bool)> {
    let mut cdb = vec![0x9e, 0x12];
    cdb.extend(lba.to_be_bytes());
    cdb.extend([0, 0, 1, 0, 0, 0]);
    let response = bench.send(0, &cdb, &[]);
    assert_eq!(response.status, Status::Good, "{response:?}");
    let [Segment::Data(data), ..] = response.data.as_slice() else { panic!("{response:?}") };
    data[8..]
        .chunks_exact(16)
        .map(|d| {
            let first = u64::from_be_bytes(d[..8].try_into().unwrap());
            (first, u32::from_be_bytes(d[8..12].try_into().unwrap()), d[12] == 1)
        })
        .collect()
}

/// What libiscsi's `GetLBAStatus.UnmapSingle` does. Everything else is told from the very block that was asked for, wherever
/// that lies: QEMU takes any other answer for an error.
#[test]
fn what_is_unmapped_in_physical_blocks_is_told_apart() {
    let bench = Bench::of(MemVolume::new("tank/v", 1 << 20, 4096));
    let unmap = |lba: u64, blocks: u32| {
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
        bench.heard(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
    };
    let fill = || bench.heard(&[0x2a, 0, 0, 0, 0, 0, 0, 1, 8, 0], &vec![0x41; 264 * 512]);
    fill();
    let end = (1 << 20) / 512;
    for lba in (0..256).step_by(8) {
        unmap(lba, 8);
        let next = lba + 8;
        assert_eq!(status(&bench, lba)[0], (lba, 8, true));
        assert_eq!(status(&bench, next)[0], (next, 264 - next as u32, false), "the next is mapped still");
        assert_eq!(status(&bench, lba + 3)[0], (lba + 3, 5, true), "asked in the middle of it");
    }
    assert_eq!(status(&bench, 0), [(0, 256, true), (256, 8, false), (264, end - 264, true)]);
    for blocks in [8_u32, 16, 128, 248] {
        fill();
        unmap(0, blocks);
        let first = u64::from(blocks);
        assert_eq!(
            status(&bench, first + 1)[0],
            (first + 8, 256 - blocks, false),
            "from the next physical block on"
        );
        assert_eq!(status(&bench, first)[0], (first, 264 - blocks, false));
    }
    assert_eq!(status(&bench, 257)[0], (257, 7, false), "the next one is not mapped");
    assert_eq!(status(&bench, 255)[0], (255, 9, false), "no hole ends before it");
    fill();
    unmap(0, 8);
    for lba in [10, 17, 63, 100] {
        assert_eq!(status(&bench, lba)[0], (lba, 264 - lba as u32, false));
    }
    // Part of a volume block stays: it reads as zeroes and holds its space.
    fill();
    unmap(4, 8);
    assert_eq!(status(&bench, 0)[0], (0, 264, false));
}

/// `qemu-img` got an error where data began at the second logical block of a physical one.
#[test]
fn of_a_volume_of_logical_blocks_the_first_descriptor_is_always_of_the_block_that_was_asked_for() {
    let bench = Bench::of(MemVolume::new("tank/v", 1 << 20, 512));
    bench.heard(&[0x2a, 0, 0, 0, 0, 17, 0, 0, 100, 0], &vec![0x41; 100 * 512]);
    assert_eq!(status(&bench, 0)[..2], [(0, 17, true), (17, 100, false)]);
    assert_eq!(status(&bench, 17)[0], (17, 100, false));
}
