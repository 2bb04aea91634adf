//! Copies that a host orders and does not see, byte by byte: EXTENDED COPY, ODX, what they may touch and how they end;
//! reservations that survive a power cut; access states; thin provisioning's threshold.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use block::{BlockVolume, Durability, Keeper, MemKeeper, MemVolume, Segment, Segments, Space};
use bytes::Bytes;
use scsi::{
    Access, Begin, Cancel, Form, LogicalUnit, Naa, Neighbours, Nexus, NexusId, PortGroup, Response, Rest,
    Service, Status,
};

use crate::paced::{Asked, now};

/// Every unit that was let in, for whoever asks.
#[derive(Default)]
struct All(Mutex<Vec<Arc<LogicalUnit>>>);

impl Neighbours for All {
    fn unit(&self, name: &Naa) -> Option<Arc<LogicalUnit>> {
        self.0.lock().unwrap().iter().find(|unit| unit.naa() == *name).cloned()
    }
}

pub(crate) struct Disk {
    volume: Arc<MemVolume>,
    pub(crate) unit: Arc<LogicalUnit>,
}

pub(crate) struct Lab {
    service: Arc<Service>,
    neighbours: Arc<All>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        // Counted, not random: a token of a test is the same in every run.
        let next = AtomicU64::new(1);
        let random = move |bytes: &mut [u8]| {
            let number = next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&number));
        };
        Self { service: Arc::new(Service::new(Arc::new(random))), neighbours: Arc::default() }
    }

    pub(crate) fn disk(&self, volume: MemVolume) -> Disk {
        let volume = Arc::new(volume);
        let unit =
            self.service.unit(Arc::clone(&volume) as Arc<dyn BlockVolume>, "iqn.test", Form::default());
        Disk { volume, unit }
    }

    /// A disk that initiators may name in copies.
    fn shared_disk(&self, name: &str) -> Disk {
        let disk = self.disk(MemVolume::new(name, 8 << 20, 8192));
        self.neighbours.0.lock().unwrap().push(Arc::clone(&disk.unit));
        disk
    }

    pub(crate) fn attach(&self, disk: &Disk, initiator: &str) -> Arc<Nexus> {
        let id = NexusId { initiator: format!("{initiator},i,0x000000000001").into(), port: 1 };
        let nexus = disk.unit.attach_at(id, Some(Arc::clone(&self.neighbours) as Arc<dyn Neighbours>));
        assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x29, 0));
        nexus
    }
}

impl Disk {
    /// A command, with what of it goes on behind its answer.
    fn send(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Response {
        let (response, rest) = self.order(nexus, bytes, data);
        if let Some(rest) = rest {
            now(rest);
        }
        response
    }

    /// The same, as far as its answer.
    fn order(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> (Response, Option<Rest>) {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        match self.unit.begin(nexus, &cdb, data.len() as u32) {
            Begin::Done(response) => (response, None),
            Begin::Job(job) => {
                let mut out = Segments::new();
                if !data.is_empty() {
                    out.push(Segment::Data(Bytes::copy_from_slice(data)));
                }
                now(self.unit.run_until(nexus, job, out, Cancel::default()))
            }
        }
    }

    #[track_caller]
    pub(crate) fn good(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Vec<u8> {
        let response = self.send(nexus, bytes, data);
        assert_eq!(response.status, Status::Good, "{:02x?}", response.sense.as_slice());
        flat(&response.data)
    }

    pub(crate) fn sense(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> (u8, u8, u8) {
        let response = self.send(nexus, bytes, data);
        assert_eq!(response.status, Status::CheckCondition);
        let s = response.sense.as_slice();
        (s[2], s[12], s[13])
    }

    fn fill(&self, block: u64, blocks: usize, byte: u8) {
        let data = [Segment::Data(Bytes::from(vec![byte; blocks * 512]))].into_iter().collect();
        now(self.volume.write(block * 512, data, Durability::Cached)).unwrap();
    }

    fn block(&self, block: u64) -> Vec<u8> {
        flat(&now(self.volume.read(block * 512, 512)).unwrap())
    }

    /// Whether the volume holds nothing there.
    fn is_hole(&self, block: u64, blocks: u64) -> bool {
        now(self.volume.extents(block * 512, blocks * 512, 100)).unwrap().iter().all(|extent| extent.hole)
    }
}

pub(crate) fn flat(data: &Segments) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in data {
        match piece {
            Segment::Data(bytes) => out.extend_from_slice(bytes),
            Segment::Zero(len) => out.resize(out.len() + len, 0),
        }
    }
    out
}

pub(crate) fn by_naa(unit: &LogicalUnit) -> [u8; 32] {
    let mut d = [0; 32];
    (d[0], d[4], d[5], d[7]) = (0xe4, 1, 3, 16);
    d[8..24].copy_from_slice(&unit.naa());
    d[30] = 2;
    d
}

/// (from, to, blocks, source LBA, destination LBA)
pub(crate) fn xcopy(
    list_id: u8,
    targets: &[[u8; 32]],
    segments: &[(u16, u16, u16, u64, u64)],
) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![list_id, 0];
    list.extend((targets.len() as u16 * 32).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32 * 28).to_be_bytes());
    list.extend([0; 4]);
    list.extend(targets.concat());
    for (from, to, blocks, source, destination) in segments {
        list.extend([2, 0, 0, 24]);
        list.extend(from.to_be_bytes());
        list.extend(to.to_be_bytes());
        list.extend([0, 0]);
        list.extend(blocks.to_be_bytes());
        list.extend(source.to_be_bytes());
        list.extend(destination.to_be_bytes());
    }
    let mut cdb = vec![0x83, 0];
    cdb.resize(10, 0);
    cdb.extend((list.len() as u32).to_be_bytes());
    (cdb, list)
}

pub(crate) fn populate(list_id: u32, ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    token_command(0x10, list_id, vec![0; 14], ranges)
}

pub(crate) fn use_token(
    list_id: u32,
    offset: u64,
    token: &[u8],
    ranges: &[(u64, u32)],
) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 8];
    list.extend(offset.to_be_bytes());
    list.extend(token);
    list.extend([0; 6]);
    token_command(0x11, list_id, list, ranges)
}

fn token_command(action: u8, list_id: u32, mut list: Vec<u8>, ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    list.extend((ranges.len() as u16 * 16).to_be_bytes());
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let mut cdb = vec![0x83, action, 0, 0, 0, 0];
    cdb.extend(list_id.to_be_bytes());
    cdb.extend((list.len() as u32).to_be_bytes());
    (cdb, list)
}

pub(crate) fn receive(action: u8, list_id: u32) -> Vec<u8> {
    let mut cdb = vec![0x84, action];
    cdb.extend(list_id.to_be_bytes());
    cdb.extend([0; 4]);
    cdb.extend(4096_u32.to_be_bytes());
    cdb
}

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
    let token = token_of(&a, &nexus, 1, &[(0, 8192)]);
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

#[test]
fn a_cancelled_copy_stops_and_says_so() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 16, 0xaa);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit)], &[(0, 0, 16, 0, 100)]);
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(&cdb);
    let Begin::Job(job) = a.unit.begin(&nexus, &padded, list.len() as u32) else { panic!() };
    assert!(job.is_long());
    let cancel = Cancel::default();
    cancel.cancel();
    let data = [Segment::Data(Bytes::from(list))].into_iter().collect();
    let (response, _) = now(a.unit.run_until(&nexus, job, data, cancel));
    assert_eq!((response.status, response.sense.as_slice()[2]), (Status::CheckCondition, 0xa));
    assert_eq!(a.block(100)[0], 0);
}

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
        let (populate, list) = populate(1, &[(0, 8)]);
        a.good(&nexus, &populate, &list);
        let token = a.good(&nexus, &receive(7, 1), &[])[38..].to_vec();
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
    let (cdb, list) = populate(1, &[(0, 8)]);
    a.good(&nexus, &cdb, &list);
    let token = a.good(&nexus, &receive(7, 1), &[])[38..].to_vec();
    let (cdb, list) = use_token(2, 0, &token, &[(100, 8)]);
    for _ in 0..3 {
        tokio::time::advance(std::time::Duration::from_secs(50)).await;
        a.good(&nexus, &cdb, &list); // each use gives it its time anew
    }
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 7));
}

/// A disk with `blocks` blocks of 4, a copy of which to another disk waits for its first write, and the token it was ordered
/// with, which lives for a second.
fn slow_copy<'a>(
    lab: &Lab,
    a: &Disk,
    b: &'a crate::paced::Disk,
    blocks: u32,
) -> (crate::paced::Running<'a, Response>, Vec<u8>) {
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
    let (a, b) = (lab.shared_disk("tank/a"), crate::paced::Disk::sized(&lab.service, "tank/b", 8 << 20));
    let (mut run, _) = slow_copy(&lab, &a, &b, 3 * 2048);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
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
    let (a, b) = (lab.shared_disk("tank/a"), crate::paced::Disk::sized(&lab.service, "tank/b", 8 << 20));
    let (mut run, token) = slow_copy(&lab, &a, &b, 16);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    b.volume.let_through(10);
    assert_eq!(run.poll().unwrap().status, Status::Good);
    let (again, (cdb, list)) = (b.host(), use_token(3, 0, &token, &[(100, 16)]));
    tokio::time::advance(std::time::Duration::from_millis(900)).await;
    assert_eq!(again.send(&cdb, &list).status, Status::Good);
    tokio::time::advance(std::time::Duration::from_millis(1100)).await;
    assert_eq!(again.send(&cdb, &list).sense.as_slice()[12..14], [0x23, 7]);
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

fn token_of(a: &Disk, nexus: &Arc<Nexus>, list_id: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
    let (cdb, list) = populate(list_id, ranges);
    a.good(nexus, &cdb, &list);
    a.good(nexus, &receive(7, list_id), &[])[38..].to_vec()
}

#[test]
fn an_immediate_copy_answers_first_and_is_done_later() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 16, 4);
    let token = token_of(&a, &nexus, 1, &[(0, 16)]);
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
    let token = token_of(&a, &nexus, 1, &[(0, 16)]);
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
    let (a, b) = (lab.shared_disk("tank/a"), crate::paced::Disk::sized(&lab.service, "tank/b", 8 << 20));
    lab.neighbours.0.lock().unwrap().push(Arc::clone(&b.unit));
    let (here, there) = (lab.attach(&a, "iqn.hyperv"), b.host());
    a.fill(0, 16, 4);
    b.volume.let_through(1);
    let data = [Segment::Data(Bytes::from(vec![4; 16 * 512]))].into_iter().collect();
    now(b.volume.write(0, data, Durability::Cached)).unwrap();
    let at_b = |cdb: &[u8], list: &[u8]| {
        let response = there.send(cdb, list);
        assert_eq!(response.status, Status::Good);
        flat(&response.data)
    };
    // COPY OPERATION ABORT
    let abort = |list_id: u8| [0x83, 0x1c, 0, 0, 0, list_id];
    let (cdb, list) = populate(1, &[(0, 16)]);
    at_b(&cdb, &list);
    let token = at_b(&receive(7, 1), &[])[38..].to_vec();
    let mut rest = crate::paced::Running(Box::pin(immediate(&a, &here, &token, 2, 100)));
    assert!(rest.poll().is_none(), "its read waits");
    a.good(&here, &abort(2), &[]);
    let status = a.good(&here, &receive(7, 2), &[]);
    assert_eq!((status[5], &status[8..12]), (0x60, &[0; 4][..]), "ended, and nothing to ask again for");
    b.volume.let_through(1);
    assert!(rest.poll().is_some());
    assert_eq!((a.good(&here, &receive(7, 2), &[])[5], a.block(100)[0]), (0x60, 0));

    let token = token_of(&a, &here, 3, &[(0, 16)]);
    let (cdb, mut list) = use_token(4, 0, &token, &[(100, 16)]);
    list[2] |= 1;
    let job = there.job(&cdb, &list);
    let data = [Segment::Data(Bytes::from(list))].into_iter().collect();
    let (response, rest) = now(b.unit.run_until(&there.nexus, job, data, Cancel::default()));
    assert_eq!(response.status, Status::Good);
    let mut rest = crate::paced::Running(Box::pin(rest.unwrap()));
    assert!(rest.poll().is_none(), "its write waits");
    at_b(&abort(4), &[]);
    assert_eq!(at_b(&receive(7, 4), &[])[5], 0x11, "it may land yet");
    b.volume.let_through(10);
    assert!(rest.poll().is_some());
    assert_ne!(at_b(&receive(7, 4), &[])[5], 0x11);
}

/// A host may be logged in at the source only: who asks at the destination whether somebody uses it has to hear of it.
#[test]
fn a_disk_knows_that_it_is_copied_to_whoever_ordered_that() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), crate::paced::Disk::sized(&lab.service, "tank/b", 8 << 20));
    lab.neighbours.0.lock().unwrap().push(Arc::clone(&b.unit));
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 16, 4);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 16, 0, 0)]);
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(&cdb);
    let Begin::Job(job) = a.unit.begin(&nexus, &padded, list.len() as u32) else { panic!() };
    let data = [Segment::Data(Bytes::from(list))].into_iter().collect();
    let mut run = crate::paced::Running(Box::pin(a.unit.run_until(&nexus, job, data, Cancel::default())));
    assert!(run.poll().is_none(), "its write waits");
    assert!(a.unit.is_in_copy() && b.unit.is_in_copy());
    b.volume.let_through(1);
    assert_eq!(run.poll().unwrap().0.status, Status::Good);
    assert!(!a.unit.is_in_copy() && !b.unit.is_in_copy());
}

/// Whether its host may name them was asked when it began, and it wrote for as long as it had something to write.
#[test]
fn a_copy_takes_no_further_step_when_its_host_may_not_reach_a_disk_of_it_any_more() {
    let lab = Lab::new();
    let (a, b) = (lab.shared_disk("tank/a"), crate::paced::Disk::sized(&lab.service, "tank/b", 8 << 20));
    lab.neighbours.0.lock().unwrap().push(Arc::clone(&b.unit));
    let nexus = lab.attach(&a, "iqn.esx");
    a.fill(0, 3 * 2048, 4);
    let (cdb, list) = xcopy(1, &[by_naa(&a.unit), by_naa(&b.unit)], &[(0, 1, 3 * 2048, 0, 0)]);
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(&cdb);
    let Begin::Job(job) = a.unit.begin(&nexus, &padded, list.len() as u32) else { panic!() };
    let data = [Segment::Data(Bytes::from(list))].into_iter().collect();
    let mut run = crate::paced::Running(Box::pin(a.unit.run_until(&nexus, job, data, Cancel::default())));
    assert!(run.poll().is_none(), "its first write waits");
    lab.neighbours.0.lock().unwrap().retain(|unit| !Arc::ptr_eq(unit, &b.unit));
    b.volume.let_through(10);
    let (response, _) = run.poll().unwrap();
    let sense = response.sense.as_slice();
    assert_eq!((response.status, sense[2], &sense[12..14]), (Status::CheckCondition, 0xa, &[0x0d, 2][..]));
    assert_eq!(b.volume.asked(), [Asked::Write(0, 1 << 20, Durability::Cached)]);
}

/// It was refused because copies ran, when the token was there already.
#[test]
fn a_token_is_made_beside_as_many_copies_as_may_run() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    a.fill(0, 16, 4);
    let token = token_of(&a, &nexus, 1, &[(0, 16)]);
    let copies: Vec<Rest> =
        (0..16).map(|n| immediate(&a, &nexus, &token, 100 + n, 1000 + 16 * u64::from(n))).collect();
    let (cdb, list) = use_token(200, 0, &token, &[(5000, 16)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x55, 3), "no further copy");
    assert_eq!(token_of(&a, &nexus, 2, &[(0, 16)]).len(), 512);
    copies.into_iter().for_each(now);
    assert_eq!(a.block(1255)[0], 4);
}

/// Nobody got a token any more until one of them had not been used for minutes.
#[test]
fn who_makes_tokens_without_end_loses_its_own() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let (greedy, other) = (lab.attach(&a, "iqn.greedy"), lab.attach(&a, "iqn.other"));
    a.fill(0, 16, 4);
    let kept = token_of(&a, &other, 1, &[(0, 16)]);
    let mut tokens: Vec<Vec<u8>> = (0..1025).map(|n| token_of(&a, &greedy, n, &[(0, 16)])).collect();
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
    let token = token_of(&a, &nexus, 1, &[(0, 16)]);
    a.unit.revoke_tokens();
    let (cdb, list) = use_token(2, 0, &token, &[(100, 16)]);
    assert_eq!(a.sense(&nexus, &cdb, &list), (5, 0x23, 6));
    assert_eq!(token_of(&a, &nexus, 3, &[(0, 16)]).len(), 512, "and new ones may be made");
}

/// The disk was as large as before again, and they brought the zeroes that were there now.
#[test]
fn tokens_stand_for_nothing_that_was_cut_off() {
    let lab = Lab::new();
    let a = lab.shared_disk("tank/a");
    let nexus = lab.attach(&a, "iqn.hyperv");
    let kept = token_of(&a, &nexus, 1, &[(0, 16)]);
    let cut = token_of(&a, &nexus, 2, &[(16, 16), (8184, 16)]);
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

pub(crate) fn register(action: u8, key: u64, service_key: u64, flags: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(service_key.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    (vec![0x5f, action, 5, 0, 0, 0, 0, 0, 24], list)
}

#[test]
fn reservations_that_were_to_survive_power_loss_do() {
    let lab = Lab::new();
    let keeper = Arc::new(MemKeeper::default());
    let start = || lab.disk(MemVolume::new("tank/csv", 8 << 20, 8192).with_keeper(Arc::clone(&keeper) as _));
    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    for (nexus, key) in [(&one, 1), (&two, 2)] {
        let (cdb, list) = register(0, 0, key, 1);
        disk.good(nexus, &cdb, &list);
    }
    let (cdb, list) = register(1, 1, 0, 0);
    disk.good(&one, &cdb, &list);
    drop((disk, one, two));

    // The power is gone. Another server has the pool.
    let disk = start();
    let [one, two, three] = ["iqn.node1", "iqn.node2", "iqn.node3"].map(|name| lab.attach(&disk, name));
    let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
    disk.good(&one, write, &[1; 512]);
    disk.good(&two, write, &[2; 512]);
    assert_eq!(disk.send(&three, write, &[3; 512]).status, Status::ReservationConflict);
    assert_eq!(disk.block(0)[0], 2);
    let keys = disk.good(&one, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!((&keys[..8], keys[15], keys[23]), (&[0, 0, 0, 0, 0, 0, 0, 16][..], 1, 2));
    let capabilities = disk.good(&one, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8], &[]);
    assert_eq!((capabilities[2] & 1, capabilities[3] & 1), (1, 1), "capable, and active");
    // A preemption is durable before it is answered, too.
    let (cdb, list) = register(5, 2, 1, 0);
    disk.good(&two, &cdb, &list);
    let disk = start();
    let one = lab.attach(&disk, "iqn.node1");
    assert_eq!(disk.send(&one, write, &[1; 512]).status, Status::ReservationConflict);
}

#[test]
fn a_reservation_that_cannot_be_kept_is_not_granted() {
    let lab = Lab::new();
    let keeper = Arc::new(MemKeeper::default());
    let disk = lab.disk(MemVolume::new("tank/csv", 8 << 20, 8192).with_keeper(Arc::clone(&keeper) as _));
    let nexus = lab.attach(&disk, "iqn.node1");
    keeper.fail(true);
    let (cdb, list) = register(0, 0, 1, 1);
    assert_eq!(disk.sense(&nexus, &cdb, &list), (2, 4, 1), "to be tried again");
    let read_keys: &[u8] = &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.good(&nexus, read_keys, &[]), [0; 8], "neither key nor generation");
    keeper.fail(false);
    disk.good(&nexus, &cdb, &list);
}

/// Keeps what it is given, and says that it did not: what a pool does whose devices go while it writes.
#[derive(Default)]
struct Doubtful {
    kept: MemKeeper,
    fails: AtomicBool,
}

impl Keeper for Doubtful {
    fn load(&self) -> Option<Bytes> {
        self.kept.load()
    }

    fn store(&self, value: Bytes) -> block::VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.kept.store(value).await?;
            match self.fails.load(Ordering::Relaxed) {
                true => Err(block::VolumeError::NotReady("the pool is suspended".into())),
                false => Ok(()),
            }
        })
    }
}

#[test]
fn what_a_failed_store_may_have_left_is_put_right_by_the_next_command() {
    let lab = Lab::new();
    let keeper = Arc::new(Doubtful::default());
    let start = || lab.disk(MemVolume::new("tank/csv", 8 << 20, 8192).with_keeper(Arc::clone(&keeper) as _));
    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    let (cdb, list) = register(0, 0, 1, 1);
    disk.good(&one, &cdb, &list);
    keeper.fails.store(true, Ordering::Relaxed);
    let (cdb, list) = register(0, 0, 2, 1);
    assert_eq!(disk.sense(&two, &cdb, &list), (2, 4, 1));
    keeper.fails.store(false, Ordering::Relaxed);
    // Registers as it is registered: the state is what it was, and what is kept is not.
    let (cdb, list) = register(0, 1, 1, 1);
    disk.good(&one, &cdb, &list);
    let disk = start();
    let one = lab.attach(&disk, "iqn.node1");
    let keys = disk.good(&one, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!((keys[7], keys[15], keys.len()), (8, 1, 16), "whoever was refused is not registered");
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
    let mut write = [0; 16];
    (write[0], write[8]) = (0x2a, 1);
    let Begin::Job(job) = disk.unit.begin(&one, &write, 512) else { panic!() };
    let (cdb, list) = register(5, 2, 1, 0);
    disk.good(&two, &cdb, &list);
    let data = [Segment::Data(Bytes::from(vec![1; 512]))].into_iter().collect();
    assert_eq!(now(disk.unit.run(&one, job, data)).status, Status::TaskAborted);
    assert_eq!(disk.block(0)[0], 0);
    assert_eq!(disk.sense(&one, &[0], &[]), (6, 0x2a, 5), "registrations preempted");
}

#[test]
fn a_standby_port_tells_who_it_is_and_takes_no_data() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/csv");
    let here = lab.attach(&disk, "iqn.node1");
    let there_id = NexusId { initiator: "iqn.node1,i,0x000000000002".into(), port: 2 };
    let there = disk.unit.attach_at(there_id, None);
    disk.sense(&there, &[0], &[]);
    let head = |id, access, port| PortGroup { id, access, preferred: false, ports: vec![port] };
    lab.service.set_port_groups(vec![head(1, Access::ActiveOptimized, 1), head(2, Access::Standby, 2)]);
    for nexus in [&here, &there] {
        assert_eq!(disk.sense(nexus, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], &[]), (6, 0x2a, 6));
    }
    let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
    disk.good(&here, write, &[1; 512]);
    assert_eq!(disk.sense(&there, write, &[1; 512]), (2, 4, 0x0b));
    assert_eq!(disk.sense(&there, &[0], &[]), (2, 4, 0x0b));
    disk.good(&there, &[0x12, 0, 0, 0, 96], &[]);
    let groups: &[u8] = &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.good(&there, groups, &[]).len(), 4 + 12 + 12);
    let (cdb, list) = register(6, 0, 9, 0);
    disk.good(&there, &cdb, &list); // reservations are made by every path
    // It takes over.
    lab.service.set_port_groups(vec![head(1, Access::Unavailable, 1), head(2, Access::ActiveOptimized, 2)]);
    for nexus in [&here, &there] {
        assert_eq!(disk.sense(nexus, groups, &[]), (6, 0x2a, 6));
    }
    disk.good(&there, write, &[2; 512]);
    assert_eq!(disk.sense(&here, write, &[1; 512]), (2, 4, 0x0c));
    // States change here implicitly: a host cannot set them.
    assert_eq!(disk.sense(&there, &[0xa4, 0x0a], &[]), (5, 0x20, 0));
}

#[test]
fn falling_below_the_threshold_is_told_once() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/thin");
    let nexus = lab.attach(&disk, "iqn.node1");
    let space = |available| {
        disk.volume.set_space(Space { used: 1 << 20, available, wanted: 0 });
        disk.unit.announce();
    };
    space(100 << 20);
    disk.unit.set_threshold(50 << 20);
    disk.good(&nexus, &[0], &[]);
    space(49 << 20);
    space(48 << 20);
    assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x38, 7));
    disk.good(&nexus, &[0], &[]);
    space(60 << 20);
    disk.good(&nexus, &[0], &[]);
    space(1 << 20);
    assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x38, 7), "each crossing anew");
    let page = disk.good(&nexus, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!(page[8..12], [0, 0, 0, 1], "MiB that are left");
    let provisioning = disk.good(&nexus, &[0x12, 1, 0xb2, 0, 64], &[]);
    assert_eq!(provisioning[4], 11);
}

#[test]
fn a_threshold_that_was_chosen_is_told_to_all_and_one_that_follows_the_volume_to_nobody() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/thin");
    let hosts = [lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2")];
    disk.unit.threshold_chosen();
    hosts.iter().for_each(|host| drop(disk.good(host, &[0], &[])));
    // It has room that can run short, and a page that says so.
    disk.volume.set_space(Space { used: 1 << 20, available: 100 << 20, wanted: 0 });
    disk.unit.set_threshold(50 << 20);
    hosts.iter().for_each(|host| drop(disk.good(host, &[0], &[])));
    disk.unit.set_threshold(20 << 20);
    disk.unit.threshold_chosen();
    for host in &hosts {
        assert_eq!(disk.sense(host, &[0], &[]), (6, 0x2a, 1));
        disk.good(host, &[0], &[]);
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
