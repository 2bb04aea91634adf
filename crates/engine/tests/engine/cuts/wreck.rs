//! What is on the media after a power cut, decided only where somebody looks.
//!
//! Of each write that was not flushed a power cut keeps all, nothing, or some sectors, and of two that overlap
//! either may be on top. All combinations for all writes would be far too many, and nearly all of them alike: an
//! import reads labels, what the uberblock leads to, and logs, not the blocks of a transaction group that never
//! was. So a [`Wreck`] decides the fate of a write when a sector of it is read for the first time. One import then
//! stands for every state of the media that agrees in what it read ([`Looked`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, MemDisk};
use parking_lot::Mutex;

use super::recorder::{SECTOR, Write};

/// Unit in which is noted what was read, in bytes.
const PAGE: u64 = 4096;
const SECTORS: usize = (PAGE / SECTOR) as usize;

/// Something a power cut decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// What is left of a write: see [`Fate`].
    Write(usize),
    /// Which of two overlapping writes is on top: 0 the later, 1 the earlier.
    Order(usize, usize),
}

/// What is left of a write, as numbers of answers.
pub struct Fate;

impl Fate {
    pub const LOST: u8 = 0;
    pub const KEPT: u8 = 1;
    /// Its first sectors; how many is a hash of its number. (3: its last ones.)
    pub const HEAD: u8 = 2;
}

/// The writes that a power cut may still take, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    pub writes: BTreeMap<usize, Write>,
    /// Per disk and page, the writes that touch it.
    by_page: BTreeMap<(usize, u64), Vec<usize>>,
}

pub fn pages(write: &Write) -> impl Iterator<Item = u64> + use<> {
    write.offset / PAGE..(write.offset + write.data.len() as u64).div_ceil(PAGE)
}

impl Pending {
    pub fn add(&mut self, id: usize, write: Write) {
        for page in pages(&write) {
            self.by_page.entry((write.disk, page)).or_default().push(id);
        }
        self.writes.insert(id, write);
    }

    pub fn remove(&mut self, id: usize) -> Option<Write> {
        let write = self.writes.remove(&id)?;
        for page in pages(&write) {
            if let Some(ids) = self.by_page.get_mut(&(write.disk, page)) {
                ids.retain(|other| *other != id);
            }
        }
        self.by_page.retain(|_, ids| !ids.is_empty());
        Some(write)
    }

    /// Whether other pending writes touch a sector of this one.
    pub fn overlaps(&self, id: usize) -> bool {
        let Some(write) = self.writes.get(&id) else { return false };
        pages(write).any(|page| self.by_page[&(write.disk, page)].iter().any(|other| *other != id))
    }

    /// How many answers a question has.
    pub fn answers(&self, question: Question) -> u8 {
        match question {
            Question::Order(..) => 2,
            Question::Write(id) => match self.writes.get(&id) {
                Some(write) if write.data.len() as u64 > SECTOR && write.through => 4,
                Some(write) if write.data.len() as u64 > SECTOR => 3,
                _ => 2,
            },
        }
    }
}

/// What one import asked, and was answered.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// In the order it was asked.
    pub answers: Vec<(Question, u8)>,
    /// Pages (disk, page) that were read as the crash left them.
    pub pages: BTreeSet<(usize, u64)>,
}

impl Looked {
    pub fn answer(&self, question: Question) -> Option<u8> {
        self.answers.iter().find(|(asked, _)| *asked == question).map(|(_, answer)| *answer)
    }
}

/// The disks of a world after a power cut.
#[derive(Debug)]
pub struct Crash {
    media: Vec<Arc<MemDisk>>,
    pending: Arc<Pending>,
    /// Answers that are given when asked for; all others are 0.
    given: BTreeMap<Question, u8>,
    looked: Mutex<Looked>,
}

impl Crash {
    /// `media` hold what is durable. They are not changed.
    pub fn new(media: Vec<Arc<MemDisk>>, pending: Arc<Pending>, given: BTreeMap<Question, u8>) -> Arc<Self> {
        Arc::new(Self { media, pending, given, looked: Mutex::default() })
    }

    pub fn disks(self: &Arc<Self>) -> Vec<Arc<dyn Disk>> {
        let disk = |number| {
            Arc::new(Wreck { crash: Arc::clone(self), number, written: Mutex::default() }) as Arc<dyn Disk>
        };
        (0..self.media.len()).map(disk).collect()
    }

    pub fn looked(&self) -> Looked {
        self.looked.lock().clone()
    }

    fn ask(&self, question: Question) -> u8 {
        let mut looked = self.looked.lock();
        if let Some(answer) = looked.answer(question) {
            return answer;
        }
        let answer = self.given.get(&question).copied().unwrap_or(0);
        looked.answers.push((question, answer));
        answer
    }

    /// Lays what is left of pending writes over `page` of a disk; only the sectors in `wanted` count.
    fn lay(&self, disk: usize, page: u64, wanted: u8, out: &mut [u8; PAGE as usize]) {
        let Some(ids) = self.pending.by_page.get(&(disk, page)) else { return };
        let mut left = Vec::new();
        for &id in ids {
            let write = &self.pending.writes[&id];
            if sectors_in(write, page) & wanted != 0 {
                let answer = self.ask(Question::Write(id));
                let kept = sectors_in(write, page) & wanted & survivors(id, write, answer, page);
                if kept != 0 {
                    left.push((id, kept));
                }
            }
        }
        for later in 1..left.len() {
            for earlier in 0..later {
                let ((a, sectors), (b, others)) = (left[earlier], left[later]);
                if sectors & others != 0 && self.ask(Question::Order(a, b)) == 1 {
                    left[later].1 &= !sectors;
                }
            }
        }
        for (id, sectors) in left {
            let write = &self.pending.writes[&id];
            for sector in (0..SECTORS).filter(|sector| sectors >> sector & 1 == 1) {
                let at = (page * PAGE + sector as u64 * SECTOR - write.offset) as usize;
                out[sector * SECTOR as usize..][..SECTOR as usize]
                    .copy_from_slice(&write.data[at..at + SECTOR as usize]);
            }
        }
    }
}

/// Which sectors of a page a write touches, as bits.
fn sectors_in(write: &Write, page: u64) -> u8 {
    let (from, to) = (write.offset, write.offset + write.data.len() as u64);
    let inside = |sector: &usize| {
        let at = page * PAGE + *sector as u64 * SECTOR;
        from <= at && at < to
    };
    (0..SECTORS).filter(inside).fold(0, |bits, sector| bits | 1 << sector)
}

/// Which sectors of a page are left of a write with this fate, as bits.
fn survivors(id: usize, write: &Write, fate: u8, page: u64) -> u8 {
    match fate {
        Fate::LOST => 0,
        Fate::KEPT => 0xff,
        _ => {
            let count = write.data.len() as u64 / SECTOR;
            let cut =
                1 + (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % (count - 1).max(1);
            let cut = write.offset + cut * SECTOR;
            // An ordinary write is torn in one way, which may be either.
            let head = fate == Fate::HEAD && (write.through || id.is_multiple_of(2));
            let survives = |sector: &usize| (page * PAGE + *sector as u64 * SECTOR < cut) == head;
            (0..SECTORS).filter(survives).fold(0, |bits, sector| bits | 1 << sector)
        }
    }
}

/// What was written to a page after the crash: its bytes, and which sectors.
type Written = BTreeMap<u64, (Box<[u8; PAGE as usize]>, u8)>;

/// One disk after the power cut. What is written to it stays in it.
#[derive(Debug)]
struct Wreck {
    crash: Arc<Crash>,
    number: usize,
    written: Mutex<Written>,
}

impl Wreck {
    fn see(&self, offset: u64, buf: &mut [u8]) {
        let written = self.written.lock();
        let end = offset + buf.len() as u64;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let start = page * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            let wanted = (from - start) / SECTOR..(to - start).div_ceil(SECTOR);
            let wanted = wanted.fold(0_u8, |bits, sector| bits | 1 << sector);
            let mine = written.get(&page);
            let old = wanted & !mine.map_or(0, |(_, sectors)| *sectors);
            if old != 0 {
                self.crash.looked.lock().pages.insert((self.number, page));
            }
            let is_plain = mine.is_none() && !self.crash.pending.by_page.contains_key(&(self.number, page));
            if is_plain {
                continue;
            }
            let target = &mut buf[(from - offset) as usize..(to - offset) as usize];
            let mut whole = Box::new([0; PAGE as usize]);
            let (first, last) = ((from - start) as usize, (to - start) as usize);
            whole[first..last].copy_from_slice(target);
            self.crash.lay(self.number, page, old, &mut whole);
            if let Some((bytes, sectors)) = mine {
                for sector in (0..SECTORS).filter(|sector| sectors >> sector & 1 == 1) {
                    let range = sector * SECTOR as usize..(sector + 1) * SECTOR as usize;
                    whole[range.clone()].copy_from_slice(&bytes[range]);
                }
            }
            target.copy_from_slice(&whole[first..last]);
        }
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        assert!(offset.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR), "whole sectors are written");
        let mut written = self.written.lock();
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let start = page * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            let (bytes, sectors) = written.entry(page).or_insert_with(|| (Box::new([0; PAGE as usize]), 0));
            bytes[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            for sector in (from - start) / SECTOR..(to - start) / SECTOR {
                *sectors |= 1 << sector;
            }
        }
    }
}

impl Disk for Wreck {
    fn info(&self) -> DiskInfo {
        self.crash.media[self.number].info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            let mut buf = self.crash.media[self.number].read(offset, buf).await?;
            self.see(offset, &mut buf);
            Ok(buf)
        })
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.store(offset, &data);
            Ok(())
        })
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn trim(&self, _: u64, _: u64) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// All of these disks as they read now, on media of their own.
pub async fn materialise(disks: &[Arc<dyn Disk>]) -> Vec<Arc<MemDisk>> {
    const STEP: u64 = 1 << 20;
    let mut media = Vec::new();
    for disk in disks {
        let info = disk.info();
        let copy = MemDisk::new(info.size).named(info.path);
        for offset in (0..info.size).step_by(STEP as usize) {
            let len = STEP.min(info.size - offset) as usize;
            let data = disk.read(offset, IoBuf::with_len(len)).await.unwrap();
            for (page, bytes) in (0..).zip(data.chunks(PAGE as usize)) {
                if bytes.iter().any(|byte| *byte != 0) {
                    copy.write(offset + page * PAGE, Bytes::copy_from_slice(bytes)).await.unwrap();
                }
            }
        }
        media.push(Arc::new(copy));
    }
    media
}
