//! A volume in memory that goes on when a test says so, and commands that run meanwhile.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, Tell, VolumeFuture,
};
use bytes::Bytes;
use scsi::{Begin, Cancel, Form, Job, LogicalUnit, Nexus, NexusId, Response, Service, Status};
use tokio::sync::Semaphore;

/// More turns than any test takes: a command that gives way between its steps is polled again.
const TURNS: usize = 1000;

/// Runs what waits for nothing but its turn.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    Running(Box::pin(future)).poll().expect("a volume in memory does not wait")
}

/// What runs until it has to wait.
pub(crate) struct Running<'a, T>(pub(crate) Pin<Box<dyn Future<Output = T> + 'a>>);

impl<T> Running<'_, T> {
    /// What came of it; `None` if it waits.
    pub(crate) fn poll(&mut self) -> Option<T> {
        (0..TURNS).find_map(|_| match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    }
}

impl<'a> Running<'a, Response> {
    /// The same, of which only good may come.
    pub(crate) fn good(self) -> Running<'a, ()> {
        Running(Box::pin(async { assert_eq!(self.0.await.status, Status::Good) }))
    }
}

/// What a volume was asked for, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Read(u64, usize),
    Write(u64, usize, Durability),
    Zeroes(u64, u64, Durability),
    Flush,
}

/// Each operation waits for a permit, and what has to be stable for a second one, which counts as a flush.
pub(crate) struct Paced {
    volume: MemVolume,
    permits: Semaphore,
    /// Whatever is asked for, all has to be stable: as with `sync=always`.
    pub(crate) is_always_stable: AtomicBool,
    asked: Mutex<Vec<Asked>>,
    /// Done when next somebody looks at how big it is, which every command does before it begins.
    pub(crate) at_a_look: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Paced {
    /// Lets that many operations through.
    pub(crate) fn let_through(&self, operations: usize) {
        self.permits.add_permits(operations);
    }

    /// What it was asked for since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub(crate) fn byte(&self, offset: u64) -> u8 {
        match now(self.volume.read(offset, 1)).unwrap()[0] {
            Segment::Data(ref bytes) => bytes[0],
            Segment::Zero(_) => 0,
        }
    }

    async fn turn(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
        self.permits.acquire().await.unwrap().forget();
    }

    /// What was changed is seen, and becomes stable if it has to.
    async fn settle(&self, to: Durability, seen: Tell<'_>) {
        if to != Durability::Cached || self.is_always_stable.load(Ordering::Relaxed) {
            seen();
            self.turn(Asked::Flush).await;
        }
    }
}

impl BlockVolume for Paced {
    fn geometry(&self) -> Geometry {
        let todo = self.at_a_look.lock().unwrap().take();
        if let Some(todo) = todo {
            todo();
        }
        self.volume.geometry()
    }
    fn identity(&self) -> Identity {
        self.volume.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move {
            self.turn(Asked::Read(offset, len)).await;
            self.volume.read(offset, len).await
        })
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.volume.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.turn(Asked::Write(offset, scsi::pieces::total_len(&data), durability)).await;
            self.volume.write(offset, data, durability).await
        })
    }
    fn write_telling<'a>(
        &'a self,
        offset: u64,
        data: Segments,
        to: Durability,
        seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        Box::pin(async move {
            self.write(offset, data, to).await?;
            self.settle(to, seen).await;
            Ok(())
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64, allocate: bool, to: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.turn(Asked::Zeroes(offset, len, to)).await;
            self.volume.write_zeroes(offset, len, allocate, to).await
        })
    }
    fn write_zeroes_telling<'a>(
        &'a self,
        offset: u64,
        len: u64,
        allocate: bool,
        to: Durability,
        seen: Tell<'a>,
    ) -> VolumeFuture<'a, ()> {
        Box::pin(async move {
            self.write_zeroes(offset, len, allocate, to).await?;
            self.settle(to, seen).await;
            Ok(())
        })
    }
    fn flush(&self) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.turn(Asked::Flush).await;
            self.volume.flush().await
        })
    }
}

/// A disk whose volume is paced.
pub(crate) struct Disk {
    pub(crate) volume: Arc<Paced>,
    pub(crate) unit: Arc<LogicalUnit>,
    hosts: AtomicU8,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self::of(&Arc::default(), "tank/paced")
    }

    /// Of 16 MiB.
    pub(crate) fn of(service: &Arc<Service>, name: &str) -> Self {
        Self::sized(service, name, 16 << 20)
    }

    pub(crate) fn sized(service: &Arc<Service>, name: &str, size: u64) -> Self {
        let volume = Arc::new(Paced {
            volume: MemVolume::new(name, size, 8192),
            permits: Semaphore::new(0),
            is_always_stable: AtomicBool::new(false),
            asked: Mutex::default(),
            at_a_look: Mutex::default(),
        });
        let unit = service.unit(Arc::clone(&volume) as Arc<dyn BlockVolume>, "iqn.test", Form::default());
        Self { volume, unit, hosts: AtomicU8::new(0) }
    }

    /// A host that has been told that the disk came up.
    pub(crate) fn host(&self) -> Host<'_> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed);
        let id = NexusId { initiator: format!("iqn.{number},i,0x000000000001").into(), port: 1 };
        let host = Host { disk: self, nexus: self.unit.attach_at(id, None) };
        assert_eq!(host.news(), [(0x29, 0)]);
        host
    }
}

pub(crate) struct Host<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) nexus: Arc<Nexus>,
}

impl<'a> Host<'a> {
    pub(crate) fn begin(&self, bytes: &[u8], offered: usize) -> Begin {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        self.disk.unit.begin(&self.nexus, &cdb, offered as u32)
    }

    pub(crate) fn job(&self, bytes: &[u8], data: &[u8]) -> Job {
        match self.begin(bytes, data.len()) {
            Begin::Job(job) => job,
            Begin::Done(response) => panic!("{bytes:02x?}: {response:?}"),
        }
    }

    /// A command that begins to run, and what ends it.
    pub(crate) fn run(&self, bytes: &[u8], data: &[u8]) -> (Running<'a, Response>, Cancel) {
        let job = self.job(bytes, data);
        let (nexus, unit, cancel) = (Arc::clone(&self.nexus), &self.disk.unit, Cancel::default());
        let mut out = Segments::new();
        if !data.is_empty() {
            out.push(Segment::Data(Bytes::copy_from_slice(data)));
        }
        let until = cancel.clone();
        let running = Running(Box::pin(async move {
            let (response, rest) = unit.run_until(&nexus, job, out, until).await;
            if let Some(rest) = rest {
                rest.await;
            }
            response
        }));
        (running, cancel)
    }

    /// A command whose volume need not wait.
    pub(crate) fn send(&self, bytes: &[u8], data: &[u8]) -> Response {
        match self.begin(bytes, data.len()) {
            Begin::Done(response) => response,
            Begin::Job(_) => self.run(bytes, data).0.poll().expect("nothing is in its way"),
        }
    }

    /// What it is told in place of answers, until there is nothing more.
    pub(crate) fn news(&self) -> Vec<(u8, u8)> {
        let told = || {
            let Begin::Done(response) = self.begin(&[0], 0) else { panic!() };
            let sense = response.sense.as_slice();
            (response.status == Status::CheckCondition).then(|| (sense[12], sense[13]))
        };
        std::iter::from_fn(told).collect()
    }
}
