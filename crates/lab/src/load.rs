//! Clients of one volume: each owns a part of it, writes blocks that say what they are, reads them back and compares.
//!
//! A block's versions only go up. While the pool is open a read gives the last acknowledged version or one that is
//! under way; after a power cut it gives at least the last one whose write was acknowledged as stable.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{Asked, BlockVolume, Durability, Segment, Segments, VolumeError};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// Bytes of a block of the load.
pub(crate) const BLOCK: usize = 8192;
/// A request that takes longer is lost to its client: initiators give a disk 30 seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const MAGIC: u64 = 0x6d69_6c6c_706f_6e64;
/// Complaints that are kept word by word.
const KEPT: usize = 4;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadShape {
    /// Clients.
    pub clients: usize,
    /// Bytes they use together.
    pub bytes: u64,
    /// Mean pause between two requests of a client.
    pub think: Duration,
    /// Of 100 requests, how many write.
    pub writes: u32,
    /// Of 100 writes, how many ask for stability.
    pub stable: u32,
}

impl Default for LoadShape {
    /// A few machines that are neither idle nor in a hurry.
    fn default() -> Self {
        Self { clients: 6, bytes: 32 << 20, think: Duration::from_millis(120), writes: 40, stable: 40 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    stable: u32,
    acknowledged: u32,
    begun: u32,
    /// It was found lost, and counted. Nobody wrote it since.
    is_lost: bool,
}

/// What clients went through.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) requests: u64,
    /// Acknowledged.
    pub(crate) writes: u64,
    /// Refused, or not answered in time.
    pub(crate) dropped: u64,
    pub(crate) no_space: u64,
    /// Wrong bytes in answers.
    pub(crate) wrong: u64,
    pub(crate) complaints: Vec<String>,
    /// Microseconds of each request, before anything went wrong and after.
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    /// The longest, and when it began.
    pub(crate) longest: Option<(Duration, Instant)>,
}

/// The load on one volume.
pub(crate) struct Load {
    shape: LoadShape,
    blocks: Mutex<Vec<Versions>>,
    pub(crate) account: Mutex<Account>,
    stopping: AtomicBool,
    /// Something has gone wrong by now.
    pub(crate) in_trouble: AtomicBool,
}

/// Clients at work.
#[derive(Default)]
pub(crate) struct Clients(Vec<JoinHandle<()>>);

impl Load {
    pub(crate) fn new(shape: LoadShape) -> Arc<Self> {
        let blocks = (shape.bytes / BLOCK as u64) as usize;
        Arc::new(Self {
            shape,
            blocks: Mutex::new(vec![Versions::default(); blocks]),
            account: Mutex::default(),
            stopping: AtomicBool::new(false),
            in_trouble: AtomicBool::new(false),
        })
    }

    /// Sets the clients to work.
    pub(crate) fn start(self: &Arc<Self>, volume: &Arc<dyn BlockVolume>, seed: u64) -> Clients {
        self.stopping.store(false, Relaxed);
        let share = self.blocks.lock().len() / self.shape.clients.max(1);
        let client = |number: usize| {
            let client = Client {
                load: Arc::clone(self),
                volume: Arc::clone(volume),
                first: number * share,
                blocks: share,
                random: StdRng::seed_from_u64(seed ^ (number as u64) << 32),
            };
            tokio::spawn(client.work())
        };
        Clients((0..self.shape.clients).map(client).collect())
    }

    /// Lets them finish what they are about.
    pub(crate) async fn stop(&self, clients: Clients) {
        self.stopping.store(true, Relaxed);
        for client in clients.0 {
            // Each request has an end, and so has each client.
            drop(client.await);
        }
    }

    /// The power goes: nobody hears an answer any more.
    pub(crate) fn cut(&self, clients: Clients) {
        clients.0.iter().for_each(JoinHandle::abort);
    }

    /// Reads everything after a restart, and takes what is found for what is. Returns how many blocks are older than
    /// what was acknowledged as stable, wrong or unreadable, those left out that were already found so and not written since,
    /// and how many are older than what was acknowledged at all.
    pub(crate) async fn settle(&self, volume: &dyn BlockVolume) -> (u64, u64) {
        let (mut lost, mut undone) = (0, 0);
        let count = self.blocks.lock().len();
        for number in 0..count {
            let found = read(volume, number).await;
            let mut blocks = self.blocks.lock();
            let versions = &mut blocks[number];
            let version = found.ok().and_then(|bytes| version_of(number, &bytes));
            let Some(version) =
                version.filter(|version| (versions.stable..=versions.begun).contains(version))
            else {
                lost += u64::from(!std::mem::replace(&mut versions.is_lost, true));
                continue;
            };
            undone += u64::from(version < versions.acknowledged);
            *versions =
                Versions { stable: version, acknowledged: version, begun: versions.begun, is_lost: false };
        }
        (lost, undone)
    }

    /// Reads everything and compares; how many blocks are wrong or missing.
    pub(crate) async fn check(&self, volume: &dyn BlockVolume) -> u64 {
        let mut lost = 0;
        let count = self.blocks.lock().len();
        for number in 0..count {
            let versions = self.blocks.lock()[number];
            if versions.is_lost {
                continue;
            }
            let found = read(volume, number).await;
            let fits = |bytes: &[u8]| {
                version_of(number, bytes)
                    .is_some_and(|v| (versions.acknowledged..=versions.begun).contains(&v))
            };
            if !found.as_ref().is_ok_and(|bytes| fits(bytes)) {
                lost += 1;
                let what = found.err().map_or_else(|| "wrong bytes".to_owned(), |error| error.to_string());
                self.complain(format!("block {number}: {what}"));
            }
        }
        lost
    }

    /// Blocks that somebody wrote.
    pub(crate) fn written(&self) -> u64 {
        self.blocks.lock().iter().filter(|versions| versions.acknowledged > 0).count() as u64
    }

    /// Bytes the clients use.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.bytes
    }

    fn complain(&self, text: String) {
        let mut account = self.account.lock();
        if account.complaints.len() < KEPT {
            account.complaints.push(text);
        }
    }
}

struct Client {
    load: Arc<Load>,
    volume: Arc<dyn BlockVolume>,
    first: usize,
    blocks: usize,
    random: StdRng,
}

impl Client {
    async fn work(mut self) {
        while !self.load.stopping.load(Relaxed) && self.blocks > 0 {
            let think = self.load.shape.think.mul_f64(self.random.random_range(0.0..2.0));
            sleep(think).await;
            let number = self.first + self.random.random_range(0..self.blocks);
            let began = Instant::now();
            let outcome = if self.random.random_range(0..100) < self.load.shape.writes {
                self.write(number).await
            } else {
                self.read(number).await
            };
            self.account(began, outcome);
        }
    }

    async fn read(&self, number: usize) -> Result<(), Option<VolumeError>> {
        let Versions { acknowledged: least, is_lost, .. } = self.load.blocks.lock()[number];
        if is_lost {
            return Ok(());
        }
        let bytes = match timeout(PATIENCE, read(&*self.volume, number)).await {
            Ok(answer) => answer.map_err(Some)?,
            Err(_) => return Err(None),
        };
        let most = self.load.blocks.lock()[number].begun;
        if version_of(number, &bytes).is_none_or(|version| !(least..=most).contains(&version)) {
            self.load.account.lock().wrong += 1;
            self.load.complain(format!("a read of block {number} gave wrong bytes"));
        }
        Ok(())
    }

    async fn write(&mut self, number: usize) -> Result<(), Option<VolumeError>> {
        let stable = self.random.random_range(0..100) < self.load.shape.stable;
        let version = {
            let mut blocks = self.load.blocks.lock();
            blocks[number].begun += 1;
            blocks[number].begun
        };
        let durability = if stable { Durability::Stable(Asked::Fua) } else { Durability::Cached };
        let data: Segments = std::iter::once(Segment::Data(bytes_of(number, version))).collect();
        match timeout(PATIENCE, self.volume.write((number * BLOCK) as u64, data, durability)).await {
            Ok(answer) => answer.map_err(Some)?,
            Err(_) => return Err(None),
        }
        self.load.account.lock().writes += 1;
        let versions = &mut self.load.blocks.lock()[number];
        (versions.acknowledged, versions.is_lost) = (version, false);
        if stable {
            versions.stable = version;
        }
        Ok(())
    }

    fn account(&self, began: Instant, outcome: Result<(), Option<VolumeError>>) {
        let took = began.elapsed();
        let mut account = self.load.account.lock();
        account.requests += 1;
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let troubled = self.load.in_trouble.load(Relaxed);
        if troubled { &mut account.after } else { &mut account.before }.push(micros);
        if account.longest.is_none_or(|(longest, _)| took > longest) {
            account.longest = Some((took, began));
        }
        let complaint = match outcome {
            Ok(()) => return,
            Err(Some(VolumeError::NoSpace)) => {
                account.no_space += 1;
                return;
            }
            Err(Some(error)) => error.to_string(),
            Err(None) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        account.dropped += 1;
        drop(account);
        self.load.complain(complaint);
    }
}

async fn read(volume: &dyn BlockVolume, number: usize) -> Result<Vec<u8>, VolumeError> {
    Ok(block::flatten(&volume.read((number * BLOCK) as u64, BLOCK).await?))
}

/// A block that says which it is, and that no compressor makes much smaller.
fn bytes_of(number: usize, version: u32) -> Bytes {
    let mut bytes = Vec::with_capacity(BLOCK);
    for word in [MAGIC, number as u64, u64::from(version)] {
        bytes.extend(word.to_le_bytes());
    }
    let mut state = ((number as u64) << 32 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.into()
}

/// The version of block `number` that these bytes are, if they are one. Version 0 is zeroes.
fn version_of(number: usize, bytes: &[u8]) -> Option<u32> {
    let word =
        |at: usize| -> Option<u64> { Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)) };
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let version = u32::try_from(word(16)?).ok()?;
    (word(0)? == MAGIC && bytes_of(number, version) == bytes).then_some(version)
}

#[cfg(test)]
mod tests {
    use block::MemVolume;

    use super::*;

    #[test]
    fn a_block_says_what_it_is_and_nothing_else_does() {
        let bytes = bytes_of(7, 3);
        assert_eq!(version_of(7, &bytes), Some(3));
        assert_eq!(version_of(8, &bytes), None, "another block's bytes");
        assert_eq!(version_of(7, &[0; BLOCK]), Some(0));
        let mut torn = bytes.to_vec();
        torn[5000] ^= 1;
        assert_eq!(version_of(7, &torn), None, "a torn block");
    }

    /// Those that were refused, or under way when the power went, were called acknowledged.
    #[tokio::test]
    async fn only_writes_that_were_acknowledged_are_counted() {
        let shape = LoadShape { clients: 1, bytes: 2 * BLOCK as u64, ..LoadShape::default() };
        let load = Load::new(shape);
        let volume: Arc<dyn BlockVolume> = Arc::new(MemVolume::new("v", BLOCK as u64, BLOCK as u32));
        let random = StdRng::seed_from_u64(1);
        let mut client = Client { load: Arc::clone(&load), volume, first: 0, blocks: 2, random };
        client.write(1).await.unwrap_err();
        assert_eq!(load.account.lock().writes, 0, "it is behind the end");
        client.write(0).await.unwrap();
        assert_eq!(load.account.lock().writes, 1);
    }

    /// Each power cut of a drill counted the same block, though nobody had written it in between.
    #[tokio::test]
    async fn a_block_is_lost_once_until_somebody_writes_it_again() {
        const LOST: usize = 1;
        let shape = LoadShape { clients: 1, bytes: 4 * BLOCK as u64, stable: 100, ..LoadShape::default() };
        let load = Load::new(shape);
        let volume: Arc<dyn BlockVolume> = Arc::new(MemVolume::new("v", shape.bytes, BLOCK as u32));
        let (random, blocks) = (StdRng::seed_from_u64(1), 4);
        let mut client =
            Client { load: Arc::clone(&load), volume: Arc::clone(&volume), first: 0, blocks, random };
        for round in 0..2 {
            client.write(LOST).await.unwrap();
            assert_eq!(load.settle(&*volume).await, (0, 0), "round {round}: it is there");
            let garbage = std::iter::once(Segment::Data(vec![0xee; BLOCK].into())).collect();
            volume.write((LOST * BLOCK) as u64, garbage, Durability::Cached).await.unwrap();
            assert_eq!(load.settle(&*volume).await, (1, 0), "round {round}: it is lost");
            assert_eq!(load.settle(&*volume).await, (0, 0), "round {round}: that is known");
            assert_eq!(load.check(&*volume).await, 0, "round {round}: that is known");
            client.read(LOST).await.unwrap();
            assert_eq!(load.account.lock().wrong, 0, "round {round}: clients do not tell of it again");
        }
    }
}
