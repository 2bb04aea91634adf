//! Disks over volumes in memory that never wait, and hosts at them: what may be said between several of them.
//!
//! Where a volume has to wait, and a test to look at what happens meanwhile, it is one of [`paced`].

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use block::{BlockVolume, Durability, Keeper, MemVolume, Segment, Segments};
use bytes::Bytes;
use scsi::{
    Begin, Cancel, Form, Job, LogicalUnit, Naa, Neighbours, Nexus, NexusId, Response, Rest, Service, Status,
};

use crate::{
    commands::{populate, receive},
    paced::{self, Running, now},
};

/// What disks have in common, and those of them that initiators may name in copies.
pub(crate) struct Lab {
    pub(crate) service: Arc<Service>,
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
    pub(crate) fn shared_disk(&self, name: &str) -> Disk {
        let disk = self.disk(MemVolume::new(name, 8 << 20, 8192));
        self.share(&disk.unit);
        disk
    }

    /// A disk whose reservations that are to survive power loss are kept there.
    pub(crate) fn kept(&self, keeper: Arc<dyn Keeper>) -> Disk {
        self.disk(MemVolume::new("tank/csv", 8 << 20, 8192).with_keeper(keeper))
    }

    /// A disk whose volume waits, and that nobody may name.
    pub(crate) fn paced(&self) -> paced::Disk {
        paced::Disk::sized(&self.service, "tank/b", 8 << 20)
    }

    /// From now on initiators may name it in copies.
    pub(crate) fn share(&self, unit: &Arc<LogicalUnit>) {
        self.neighbours.0.lock().unwrap().push(Arc::clone(unit));
    }

    /// And now they may not any more.
    pub(crate) fn hide(&self, unit: &Arc<LogicalUnit>) {
        self.neighbours.0.lock().unwrap().retain(|other| !Arc::ptr_eq(other, unit));
    }

    pub(crate) fn attach(&self, disk: &Disk, initiator: &str) -> Arc<Nexus> {
        let id = NexusId { initiator: format!("{initiator},i,0x000000000001").into(), port: 1 };
        let nexus = disk.unit.attach_at(id, Some(Arc::clone(&self.neighbours) as Arc<dyn Neighbours>));
        assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x29, 0));
        nexus
    }
}

pub(crate) struct Disk {
    pub(crate) volume: Arc<MemVolume>,
    pub(crate) unit: Arc<LogicalUnit>,
}

impl Disk {
    /// A command, with what of it goes on behind its answer.
    pub(crate) fn send(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Response {
        let (response, rest) = self.order(nexus, bytes, data);
        if let Some(rest) = rest {
            now(rest);
        }
        response
    }

    /// The same, as far as its answer.
    pub(crate) fn order(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> (Response, Option<Rest>) {
        match self.begin(nexus, bytes, data) {
            Begin::Done(response) => (response, None),
            Begin::Job(job) => now(self.carry_out(nexus, job, data, Cancel::default())),
        }
    }

    /// A command that has to run.
    pub(crate) fn job(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Job {
        match self.begin(nexus, bytes, data) {
            Begin::Job(job) => job,
            Begin::Done(response) => panic!("{bytes:02x?}: {response:?}"),
        }
    }

    /// A command that is yet to run, and what ends it.
    pub(crate) fn run(
        &self,
        nexus: &Arc<Nexus>,
        bytes: &[u8],
        data: &[u8],
    ) -> (Running<'_, (Response, Option<Rest>)>, Cancel) {
        let (job, cancel) = (self.job(nexus, bytes, data), Cancel::default());
        (Running(Box::pin(self.carry_out(nexus, job, data, cancel.clone()))), cancel)
    }

    fn begin(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Begin {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        self.unit.begin(nexus, &cdb, data.len() as u32)
    }

    fn carry_out(
        &self,
        nexus: &Arc<Nexus>,
        job: Job,
        data: &[u8],
        cancel: Cancel,
    ) -> impl Future<Output = (Response, Option<Rest>)> + use<'_> {
        let (nexus, mut out) = (Arc::clone(nexus), Segments::new());
        if !data.is_empty() {
            out.push(Segment::Data(Bytes::copy_from_slice(data)));
        }
        async move { self.unit.run_until(&nexus, job, out, cancel).await }
    }

    #[track_caller]
    pub(crate) fn good(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Vec<u8> {
        let response = self.send(nexus, bytes, data);
        assert_eq!(response.status, Status::Good, "{:02x?}", response.sense.as_slice());
        block::flatten(&response.data)
    }

    pub(crate) fn sense(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> (u8, u8, u8) {
        let response = self.send(nexus, bytes, data);
        assert_eq!(response.status, Status::CheckCondition);
        let s = response.sense.as_slice();
        (s[2], s[12], s[13])
    }

    pub(crate) fn fill(&self, block: u64, blocks: usize, byte: u8) {
        let data = [Segment::Data(Bytes::from(vec![byte; blocks * 512]))].into_iter().collect();
        now(self.volume.write(block * 512, data, Durability::Cached)).unwrap();
    }

    pub(crate) fn block(&self, block: u64) -> Vec<u8> {
        block::flatten(&now(self.volume.read(block * 512, 512)).unwrap())
    }

    /// Whether the volume holds nothing there.
    pub(crate) fn is_hole(&self, block: u64, blocks: u64) -> bool {
        now(self.volume.extents(block * 512, blocks * 512, 100)).unwrap().iter().all(|extent| extent.hole)
    }

    /// The token that stands for these blocks.
    pub(crate) fn token(&self, nexus: &Arc<Nexus>, list_id: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
        let (cdb, list) = populate(list_id, ranges);
        self.good(nexus, &cdb, &list);
        self.good(nexus, &receive(7, list_id), &[])[38..].to_vec()
    }
}

/// Every unit that was let in, for whoever asks.
#[derive(Default)]
struct All(Mutex<Vec<Arc<LogicalUnit>>>);

impl Neighbours for All {
    fn unit(&self, name: &Naa) -> Option<Arc<LogicalUnit>> {
        self.0.lock().unwrap().iter().find(|unit| unit.naa() == *name).cloned()
    }
}
