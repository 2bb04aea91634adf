//! A world of a few small disks in memory, and pools on them that are created, opened, cut off and judged.

pub(crate) mod forgetful;
pub(crate) mod reads;
pub(crate) mod seeds;

use std::{ops::Range, path::Path, sync::Arc, time::Duration};

use block::{BlockVolume, Segment};
use bytes::Bytes;
use disk::{Disk, FaultDisk, MemDisk};
use engine::{
    BoxFuture,
    create::{CreateOptions, DeviceFacts, Plan, VdevSpec},
    dsl::{NewVolume, OpError, Properties, Stored},
    engine::{Ending, Engine, OpFuture, Options},
    open::{self, OpenOptions},
    sync::Syncer,
    txg::Limits,
};
use pool::{
    Pool,
    cache::BlockCache,
    import::{self, Sources},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// Name of the pool.
pub(crate) const POOL: &str = "tank";
/// Bytes of a disk unless told otherwise.
pub(crate) const DISK: u64 = 128 << 20;
/// The time by the clock, seconds since 1970.
pub(crate) const NOW: u64 = 1_700_000_000;

/// Disks that can be pulled.
type Pulled = Vec<Arc<FaultDisk>>;

/// The machine: what survives a power cut.
pub(crate) struct World {
    pub(crate) media: Vec<Arc<MemDisk>>,
    pub(crate) seed: u64,
    cuts: u64,
}

/// What is in memory: lost by a power cut.
pub(crate) struct Running {
    pub(crate) engine: Arc<Engine>,
    pub(crate) disks: Vec<Arc<FaultDisk>>,
}

/// Transaction groups only when somebody asks: commands, flushes, limits.
pub(crate) fn quiet() -> Options {
    Options {
        limits: Limits { timeout: Duration::from_secs(1 << 30), ..Limits::default() },
        now: || NOW,
        clock: || Duration::from_secs(NOW),
    }
}

/// What is known of a file of so many bytes.
pub(crate) fn file_of(bytes: u64) -> DeviceFacts {
    DeviceFacts { bytes, block_device: false, logical_sector: 512, physical_sector: 512 }
}

/// How a pool is created, unless told otherwise.
pub(crate) fn creating(name: &str, seed: u64) -> CreateOptions {
    CreateOptions {
        name: name.to_owned(),
        features: engine::create::features("off").unwrap(),
        pool_properties: Properties::new(),
        root_properties: Properties::new(),
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: NOW,
        seed,
        cache: Arc::new(BlockCache::new(16 << 20)),
        workers: 0,
        history: None,
    }
}

/// How the same host goes on with a pool, unless told otherwise: when all that are in the repository had been made.
pub(crate) fn going_on() -> OpenOptions {
    OpenOptions {
        rename: None,
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: 1_800_000_000,
        seed: 3,
        workers: 0,
    }
}

/// Properties of a volume whose bytes are stored as they are.
pub(crate) fn plain() -> Properties {
    Properties::from([("compression".to_owned(), Stored::Number(2))])
}

/// Bytes that no compression makes smaller, the same ones for each seed.
pub(crate) fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// What somebody asks of this run by the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The seeds to play: these, or as many as `MILLPOND_SEEDS` says, from `MILLPOND_SEED` on.
pub(crate) fn seeds(ordinary: Range<u64>) -> Range<u64> {
    let first = number("MILLPOND_SEED").unwrap_or(ordinary.start);
    let count = number("MILLPOND_SEEDS").unwrap_or(ordinary.end - ordinary.start);
    first..first + count
}

/// Disks of one kind as disks.
pub(crate) fn as_disks<D: Disk>(disks: &[Arc<D>]) -> Vec<Arc<dyn Disk>> {
    disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Disk>).collect()
}

fn words(layout: &str) -> Vec<String> {
    layout.split_whitespace().map(str::to_owned).collect()
}

impl World {
    /// Disks for `layout` (`mirror d0 d1 log d2`), and a pool on them.
    pub(crate) fn create(layout: &str, ashift: u32, size: u64, seed: u64) -> BoxFuture<'_, (Self, Running)> {
        Self::create_with(layout, ashift, size, seed, Properties::new())
    }

    pub(crate) fn create_with(
        layout: &str,
        ashift: u32,
        size: u64,
        seed: u64,
        root_properties: Properties,
    ) -> BoxFuture<'_, (Self, Running)> {
        let features = engine::create::features("off").unwrap();
        Self::create_having(features, layout, ashift, size, seed, root_properties)
    }

    /// The same with these features instead of those that a new pool has.
    pub(crate) fn create_having<'a>(
        features: Vec<&'static str>,
        layout: &'a str,
        ashift: u32,
        size: u64,
        seed: u64,
        root_properties: Properties,
    ) -> BoxFuture<'a, (Self, Running)> {
        Box::pin(async move {
            let spec = VdevSpec::parse(&words(layout)).unwrap();
            let count = spec.paths().len();
            let media: Vec<_> =
                (0..count).map(|n| Arc::new(MemDisk::new(size).named(format!("/disks/d{n}")))).collect();
            let world = Self { media, seed, cuts: 0 };
            let disks = world.power_on();
            let plan = Plan::new(&spec, &vec![file_of(size); count], Some(ashift), true).unwrap();
            let options = CreateOptions { features, root_properties, ..creating(POOL, seed) };
            let syncer = engine::create::create(&plan, &as_disks(&disks), options).await.unwrap();
            let engine = Engine::start(syncer, quiet()).await.unwrap();
            (world, Running { engine, disks })
        })
    }

    /// A world that was there before.
    pub(crate) fn on(media: Vec<Arc<MemDisk>>) -> Self {
        Self { media, seed: 1, cuts: 0 }
    }

    fn power_on(&self) -> Vec<Arc<FaultDisk>> {
        let disk = |(n, media): (usize, &Arc<MemDisk>)| {
            let seed = self.seed ^ self.cuts << 8 ^ n as u64;
            Arc::new(FaultDisk::with_write_cache(Arc::clone(media) as Arc<dyn Disk>, seed))
        };
        self.media.iter().enumerate().map(disk).collect()
    }

    /// Opens the pool for writing.
    pub(crate) fn open(&self) -> BoxFuture<'_, Running> {
        Box::pin(async move {
            self.try_open(quiet()).await.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
        })
    }

    pub(crate) fn try_open(&self, options: Options) -> BoxFuture<'_, Result<Running, String>> {
        Box::pin(async move {
            let disks = self.power_on();
            let engine = self.start(as_disks(&disks), options).await?;
            Ok(Running { engine, disks })
        })
    }

    /// Another world with the same content on its media.
    pub(crate) fn fork(&self) -> Self {
        Self { media: self.media.iter().map(|media| Arc::new(media.fork())).collect(), ..*self }
    }

    /// Opens the pool for writing over disks made from the media.
    pub(crate) async fn open_over(
        &self,
        wrap: impl Fn(Arc<MemDisk>) -> Arc<dyn Disk>,
        options: Options,
    ) -> Arc<Engine> {
        let disks = self.media.iter().map(|media| wrap(Arc::clone(media))).collect();
        self.start(disks, options).await.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
    }

    async fn start(&self, disks: Vec<Arc<dyn Disk>>, options: Options) -> Result<Arc<Engine>, String> {
        start_on(disks, self.seed, options).await
    }

    /// The pool as a reader finds it on the media now.
    pub(crate) fn look(&self) -> BoxFuture<'_, Result<Arc<Pool>, String>> {
        Box::pin(async move { import_from(as_disks(&self.media)).await })
    }

    /// The same, through disks that can be pulled.
    pub(crate) fn look_through(&self) -> BoxFuture<'_, Result<(Arc<Pool>, Pulled), String>> {
        Box::pin(async move {
            let disks = self.power_on();
            let pool = import_from(as_disks(&disks)).await?;
            Ok((pool, disks))
        })
    }

    /// Cuts the power of a running pool: un-flushed writes are kept, lost or torn.
    pub(crate) fn cut(&mut self, running: Running) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.cuts += 1;
            for (n, disk) in running.disks.iter().enumerate() {
                disk.power_cut(self.seed ^ self.cuts << 20 ^ n as u64).await.unwrap();
            }
            drop(running);
            // What was under way notices that its disks are gone.
            tokio::task::yield_now().await;
        })
    }

    /// Our own full check of what is on the media: every block, every space map.
    pub(crate) fn verify<'a>(&'a self, what: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let pool =
                self.look().await.unwrap_or_else(|error| panic!("seed {}: {what}: {error}", self.seed));
            let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
            assert!(report.is_clean(), "seed {}: {what}: {report:#?}", self.seed);
        })
    }

    /// Writes the media as image files.
    pub(crate) fn save(&self, dir: &Path) {
        // Holes stay holes: writing zeroes took a third of the tests that ask zdb.
        const PIECE: usize = 16 << 10;
        for (n, media) in self.media.iter().enumerate() {
            let file = std::fs::File::create(dir.join(format!("d{n}.img"))).unwrap();
            let size = media.info().size;
            file.set_len(size).unwrap();
            for start in (0..size).step_by(1 << 20) {
                let data = media.snapshot(start..(start + (1 << 20)).min(size));
                for (at, piece) in (start..).step_by(PIECE).zip(data.chunks(PIECE)) {
                    if *piece != [0; PIECE][..piece.len()] {
                        std::os::unix::fs::FileExt::write_all_at(&file, piece, at).unwrap();
                    }
                }
            }
        }
    }
}

/// Imports the pool on these disks for writing.
pub(crate) fn start_on(
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
) -> BoxFuture<'static, Result<Arc<Engine>, String>> {
    start_caching(disks, seed, options, 16 << 20)
}

/// The same with a cache of so many bytes.
pub(crate) fn start_caching(
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: usize,
) -> BoxFuture<'static, Result<Arc<Engine>, String>> {
    start_named(POOL, disks, seed, options, cache)
}

/// The same of a pool with another name.
pub(crate) fn start_named(
    name: &str,
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: usize,
) -> BoxFuture<'_, Result<Arc<Engine>, String>> {
    start_beside(name, disks, seed, options, Arc::new(BlockCache::new(cache)))
}

/// The same with a cache that other pools may have, too.
pub(crate) fn start_beside(
    name: &str,
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: Arc<BlockCache>,
) -> BoxFuture<'_, Result<Arc<Engine>, String>> {
    Box::pin(async move {
        let pool = import_caching(name, disks, cache).await?;
        let how = OpenOptions { now: NOW, seed: seed ^ 0xabcd, ..going_on() };
        let syncer = open::open(pool, how).await.map_err(|e| e.to_string())?;
        Engine::start(syncer, options).await.map_err(|e| e.to_string())
    })
}

async fn import_from(disks: Vec<Arc<dyn Disk>>) -> Result<Arc<Pool>, String> {
    import_caching(POOL, disks, Arc::new(BlockCache::new(16 << 20))).await
}

fn import_caching(
    name: &str,
    disks: Vec<Arc<dyn Disk>>,
    cache: Arc<BlockCache>,
) -> BoxFuture<'_, Result<Arc<Pool>, String>> {
    Box::pin(async move {
        let found = import::scan(&Sources::disks(disks)).await;
        let candidate = found.find(name).map_err(|e| e.to_string())?;
        let options = import::OpenOptions { force: true, hostid: 7, cache, ..import::OpenOptions::default() };
        import::open(candidate, &options).await.map_err(|e| e.to_string())
    })
}

/// Runs a command, which may be one that takes snapshots.
pub(crate) fn run<T, F>(engine: &Engine, is_snapshot: bool, op: F) -> BoxFuture<'_, Result<T, OpError>>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
{
    if is_snapshot { engine.run_snapshot(op) } else { engine.run(op) }
}

impl Running {
    /// A thin volume.
    pub(crate) fn volume<'a>(
        &'a self,
        name: &'a str,
        size: u64,
        block: u32,
        properties: Properties,
    ) -> BoxFuture<'a, Arc<engine::volume::LiveVolume>> {
        Box::pin(async move {
            let new = NewVolume { name: name.to_owned(), size, block, properties, parents: false };
            self.engine
                .run(move |cx| Box::pin(async move { engine::dsl::create_volume(cx, &new).await }))
                .await
                .unwrap();
            self.engine.volume(name).await.unwrap()
        })
    }

    /// Leaves the pool exported.
    pub(crate) fn export(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.engine.end(Ending::Export).await.unwrap();
        })
    }
}

/// All of a volume as bytes.
pub(crate) fn content(volume: &dyn BlockVolume) -> BoxFuture<'_, Vec<u8>> {
    Box::pin(async move {
        let size = volume.geometry().size;
        let mut all = Vec::with_capacity(size as usize);
        let step = 1 << 20;
        for offset in (0..size).step_by(step) {
            let len = step.min((size - offset) as usize);
            all.extend(block::flatten(&volume.read(offset, len).await.unwrap()));
        }
        all
    })
}

/// One write's worth of segments.
pub(crate) fn data(bytes: Vec<u8>) -> block::Segments {
    [Segment::Data(Bytes::from(bytes))].into_iter().collect()
}
