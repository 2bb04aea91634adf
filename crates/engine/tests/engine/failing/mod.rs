//! Devices that are pulled, return and fail under load, within redundancy: clients notice nothing, states say what
//! happened, and what a device missed is known wherever it was pulled.
//!
//! ```text
//!   Bays      where disks are found again                Refilled   and what somebody put into a bay
//!   Case      a pool with a volume and its twin in memory, written to at random, compared, and opened anew at the end
//! ```

mod closed;
mod faulty;
mod pulled;
mod returned;
mod spares;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use block::{Asked, BlockVolume, Durability};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    BoxFuture,
    devices::{NewLeaf, Opener},
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine},
    events::{DeviceName, Event},
    volume::LiveVolume,
};
use pool::{
    status::VdevStatus,
    vdev::{State, Vdev},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::timeout;

use crate::support::{DISK, POOL, Running, World, as_disks, content, data, quiet, start_caching};

const VOLUME: u64 = 4 << 20;
const BLOCK: u32 = 8192;
const MINUTE: Duration = Duration::from_secs(60);

/// Where disks are found again: in their bays, by path.
#[derive(Debug)]
pub(crate) struct Bays(pub(crate) Vec<Arc<FaultDisk>>);

impl Opener for Bays {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(async move {
            let name = device.path.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
            let number: usize = name.trim_start_matches('d').parse().map_err(io::Error::other)?;
            match self.0.get(number).filter(|disk| disk.is_present()) {
                Some(disk) => Ok(Arc::clone(disk) as Arc<dyn Disk>),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }
    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

/// The same, and what somebody put into a bay: a new drive, or one that was in another.
#[derive(Debug)]
struct Refilled {
    bays: Bays,
    new: Mutex<Option<NewLeaf>>,
    /// Guid of a leaf, and its disk.
    elsewhere: Mutex<Vec<(u64, Arc<dyn Disk>)>>,
}

impl Refilled {
    fn of(running: &Running) -> Arc<Self> {
        let bays = Bays(running.disks.clone());
        Arc::new(Self { bays, new: Mutex::default(), elsewhere: Mutex::default() })
    }
}

impl Opener for Refilled {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        let elsewhere = self.elsewhere.lock().unwrap();
        let found = elsewhere.iter().find(|(guid, _)| *guid == device.guid).map(|(_, disk)| Arc::clone(disk));
        match found {
            Some(disk) => Box::pin(async move { Ok(disk) }),
            None => self.bays.open(device),
        }
    }
    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        let mut new = self.new.lock().unwrap();
        let fits = new.as_ref().is_some_and(|new| device.path.as_ref() == Some(&new.path));
        let new = if fits { new.take() } else { None };
        Box::pin(async move { new })
    }
}

struct Case {
    world: World,
    running: Running,
    volume: Arc<LiveVolume>,
    twin: Vec<u8>,
    random: StdRng,
    what: String,
}

impl Case {
    async fn new(layout: &str, seed: u64, watched: bool) -> Self {
        let (world, running) = World::create(layout, 12, DISK, seed).await;
        let volume = running.volume(&format!("{POOL}/v"), VOLUME, BLOCK, Properties::new()).await;
        if watched {
            running.engine.watch(Arc::new(Bays(running.disks.clone())));
        }
        let what = format!("{layout}, seed {seed}, watched: {watched}");
        let twin = vec![0; VOLUME as usize];
        let mut this = Self { world, running, volume, twin, random: StdRng::seed_from_u64(seed), what };
        this.write(40, false).await;
        this.engine().sync().await.unwrap();
        this
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.running.engine
    }

    async fn write(&mut self, count: usize, stable: bool) {
        let durability = if stable { Durability::Stable(Asked::Fua) } else { Durability::Cached };
        for _ in 0..count {
            let at = self.random.random_range(0..VOLUME as usize / 4096) * 4096;
            let end = self.twin.len().min(at + self.random.random_range(1..8) * 4096);
            let bytes: Vec<u8> = (at..end).map(|_| self.random.random()).collect();
            self.twin[at..end].copy_from_slice(&bytes);
            let write = self.volume.write(at as u64, data(bytes), durability);
            timeout(MINUTE, write).await.unwrap_or_else(|_| panic!("{}: a write hangs", self.what)).unwrap();
        }
    }

    async fn sync(&self) {
        let synced = timeout(MINUTE, self.engine().sync()).await;
        synced.unwrap_or_else(|_| panic!("{}: a sync hangs", self.what)).unwrap();
    }

    async fn check(&self) {
        assert!(content(&*self.volume).await == self.twin, "{}: content", self.what);
    }

    fn leaf<T>(&self, number: usize, of: impl Fn(&Vdev) -> T) -> T {
        let tree = self.engine().view().tree();
        let path = format!("d{number}");
        let is_it = |leaf: &&&Vdev| leaf.path.as_deref().is_some_and(|p| p.rsplit('/').next() == Some(&path));
        of(tree.leaves().iter().find(is_it).expect("a leaf"))
    }

    /// Whether it is a part of the tree, which a spare at rest is not.
    fn is_in_use(&self, number: usize) -> bool {
        let path = format!("d{number}");
        let is_it = |leaf: &Vdev| leaf.path.as_deref().is_some_and(|p| p.rsplit('/').next() == Some(&path));
        self.engine().view().tree().leaves().into_iter().any(is_it)
    }

    fn state(&self, number: usize) -> State {
        self.leaf(number, |vdev| vdev.state().0)
    }

    /// Whether it was found out how fast it is.
    fn is_judged(&self, number: usize) -> bool {
        self.leaf(number, |vdev| VdevStatus::of(vdev, None).judged)
    }

    fn lacks_anything(&self, number: usize) -> bool {
        self.leaf(number, |vdev| !vdev.leaf.as_ref().unwrap().missed.get().is_empty())
    }

    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.engine().events().since(0).iter().filter(|record| wanted(&record.event)).count()
    }

    /// The same pool opened anew, unwatched; `between` sees its media before.
    async fn again(self, between: impl AsyncFnOnce(&World)) -> Self {
        let Self { world, running, volume, twin, random, what } = self;
        drop(volume);
        running.export().await;
        between(&world).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        Self { world, running, volume, twin, random, what }
    }

    /// The same pool opened anew, unwatched, on disks that `prepare` sees before. Nothing is cached: whatever is read is read
    /// from them.
    async fn reopened(self, prepare: impl FnOnce(&[Arc<FaultDisk>])) -> Self {
        let Self { world, running, volume, twin, random, what } = self;
        drop(volume);
        running.export().await;
        let disk = |media: &Arc<MemDisk>| Arc::new(FaultDisk::new(Arc::clone(media) as Arc<dyn Disk>, 8));
        let disks: Vec<_> = world.media.iter().map(disk).collect();
        prepare(&disks);
        let engine = start_caching(as_disks(&disks), 8, quiet(), 0).await.unwrap();
        let running = Running { engine, disks };
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        Self { world, running, volume, twin, random, what }
    }

    /// Everything is readable from the devices alone, without those that are away.
    async fn end(self) {
        let Self { world, running, volume, twin, what, .. } = self;
        drop(volume);
        timeout(MINUTE, running.engine.end(Ending::Export)).await.unwrap().unwrap();
        drop(running);
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == twin, "{what}: content after a restart");
    }
}
