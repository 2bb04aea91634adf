//! What is done to the disks of a world, written down in one order: each write and flush, where it begins and where
//! it ends. From that, any moment at which the power could have gone can be rebuilt (`states`).
//!
//! The recorder also decides how long things take, so that several are under way at once; holds ordinary writes
//! while its gate is closed (a transaction group that does not get on, while log writes do); and lets a disk fail.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, MemDisk};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::sync::Notify;

/// Smallest unit that is written wholly or not at all, in bytes.
pub const SECTOR: u64 = 512;
/// Longest time a recorded write or flush takes.
const SLOWEST: Duration = Duration::from_micros(300);

/// One moment of the tape. Numbers are indexes of [`Tape::writes`] and [`Tape::flushes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The write is on its way: from here on it may be on the media.
    WriteBegin(usize),
    /// It returned.
    WriteEnd(usize),
    /// It returned an error: it may be on the media or not, for ever.
    WriteFailed(usize),
    /// The flush was asked for.
    FlushBegin(usize),
    /// It returned.
    FlushEnd(usize),
    /// It returned an error.
    FlushFailed(usize),
    /// Something that is not of the disks: a client asked, or was answered.
    Mark,
}

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Number of the disk.
    pub disk: usize,
    /// Byte of the disk.
    pub offset: u64,
    /// What was written.
    pub data: Bytes,
    /// Durable when it returns.
    pub through: bool,
}

/// What a disk does from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Good,
    /// Writes and flushes fail, after they may have reached the media.
    RefusesWrites,
    /// It is not there.
    Gone,
}

/// Everything that was done, while it recorded.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In order.
    pub events: Vec<Event>,
    /// All writes that began.
    pub writes: Vec<Write>,
    /// All flushes that were asked for: which disk.
    pub flushes: Vec<usize>,
}

#[derive(Debug)]
struct State {
    on: bool,
    recording: Recording,
    health: Vec<Health>,
    closed: bool,
    /// Writes that a closed gate still lets pass.
    allowance: u32,
    /// How long things take; none: no time at all.
    chance: Option<StdRng>,
}

/// The tape that all disks of a world share.
#[derive(Debug)]
pub struct Tape {
    state: Mutex<State>,
    opened: Notify,
}

impl Tape {
    /// For `disks` disks. With `seed`, writes and flushes take times drawn from it.
    pub fn new(disks: usize, seed: Option<u64>) -> Arc<Self> {
        let state = State {
            on: false,
            recording: Recording::default(),
            health: vec![Health::Good; disks],
            closed: false,
            allowance: 0,
            chance: seed.map(StdRng::seed_from_u64),
        };
        Arc::new(Self { state: Mutex::new(state), opened: Notify::new() })
    }

    /// Disks over `media` that write to this tape.
    pub fn disks(self: &Arc<Self>, media: &[Arc<MemDisk>]) -> Vec<Arc<dyn Disk>> {
        let disk = |(number, inner): (usize, &Arc<MemDisk>)| {
            Arc::new(Recorder { inner: Arc::clone(inner), number, tape: Arc::clone(self) }) as Arc<dyn Disk>
        };
        media.iter().enumerate().map(disk).collect()
    }

    /// Records from here on.
    pub fn start(&self) {
        self.state.lock().on = true;
    }

    /// Records no more, and lets everything pass; returns what was recorded.
    pub fn stop(&self) -> Recording {
        let mut state = self.state.lock();
        state.on = false;
        state.health.fill(Health::Good);
        state.chance = None;
        let recording = std::mem::take(&mut state.recording);
        drop(state);
        self.open();
        recording
    }

    /// Notes that something happens now, and returns its place: how many events there were, this one included.
    pub fn mark(&self) -> usize {
        let mut state = self.state.lock();
        if state.on {
            state.recording.events.push(Event::Mark);
        }
        state.recording.events.len()
    }

    /// Holds writes and flushes that are not write-through, after `allowance` more of them.
    pub fn close(&self, allowance: u32) {
        let mut state = self.state.lock();
        (state.closed, state.allowance) = (true, allowance);
    }

    /// Lets go what is held.
    pub fn open(&self) {
        self.state.lock().closed = false;
        self.opened.notify_waiters();
    }

    /// What a disk does from now on.
    pub fn set_health(&self, disk: usize, health: Health) {
        self.state.lock().health[disk] = health;
    }

    async fn pass(&self) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            {
                let mut state = self.state.lock();
                if !state.closed {
                    return;
                }
                if state.allowance > 0 {
                    state.allowance -= 1;
                    return;
                }
            }
            opened.await;
        }
    }

    async fn take_time(&self) {
        let time = match &mut self.state.lock().chance {
            Some(chance) => Duration::from_micros(chance.random_range(0..SLOWEST.as_micros() as u64)),
            None => return,
        };
        tokio::time::sleep(time).await;
    }

    fn check(&self, disk: usize) -> io::Result<()> {
        match self.state.lock().health[disk] {
            Health::Gone => Err(io::Error::new(io::ErrorKind::NotConnected, format!("disk {disk} is gone"))),
            Health::Good | Health::RefusesWrites => Ok(()),
        }
    }

    fn begin_write(&self, write: Write) -> Option<usize> {
        let mut state = self.state.lock();
        state.on.then(|| {
            let id = state.recording.writes.len();
            state.recording.writes.push(write);
            state.recording.events.push(Event::WriteBegin(id));
            id
        })
    }

    fn begin_flush(&self, disk: usize) -> Option<usize> {
        let mut state = self.state.lock();
        state.on.then(|| {
            let id = state.recording.flushes.len();
            state.recording.flushes.push(disk);
            state.recording.events.push(Event::FlushBegin(id));
            id
        })
    }

    /// Notes the end of something, and says how it ended.
    fn end(&self, disk: usize, good: Option<Event>, bad: Option<Event>) -> io::Result<()> {
        let mut state = self.state.lock();
        let (event, result) = match state.health[disk] {
            Health::Good => (good, Ok(())),
            Health::RefusesWrites | Health::Gone => {
                (bad, Err(io::Error::other(format!("disk {disk} failed"))))
            }
        };
        if state.on {
            state.recording.events.extend(event);
        }
        result
    }
}

/// One disk.
#[derive(Debug)]
struct Recorder {
    inner: Arc<MemDisk>,
    number: usize,
    tape: Arc<Tape>,
}

impl Recorder {
    async fn store(&self, offset: u64, data: Bytes, through: bool) -> io::Result<()> {
        let aligned = offset.is_multiple_of(SECTOR) && (data.len() as u64).is_multiple_of(SECTOR);
        assert!(aligned, "{} bytes at {offset} are not whole sectors", data.len());
        self.tape.check(self.number)?;
        if !through {
            self.tape.pass().await;
        }
        self.tape.check(self.number)?;
        let write = Write { disk: self.number, offset, data: data.clone(), through };
        let id = self.tape.begin_write(write);
        self.inner.write(offset, data).await?;
        self.tape.take_time().await;
        self.tape.end(self.number, id.map(Event::WriteEnd), id.map(Event::WriteFailed))
    }
}

impl Disk for Recorder {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            self.tape.check(self.number)?;
            self.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(self.store(offset, data, false))
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(self.store(offset, data, true))
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.tape.check(self.number)?;
            // Before the gate: what finishes while this is held is none of its business.
            let id = self.tape.begin_flush(self.number);
            self.tape.pass().await;
            self.tape.take_time().await;
            self.tape.end(self.number, id.map(Event::FlushEnd), id.map(Event::FlushFailed))
        })
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        // Nothing trims yet. When something does, what a trim leaves behind must be among the states.
        panic!("disk {}: a trim of {len} bytes at {offset} is not recorded", self.number)
    }
}
