//! A world of a few small disks in memory, and pools on them that are created, opened, cut off and judged.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod forgetful;
pub mod reads;

use std::{path::Path, sync::Arc, time::Duration};

use block::{BlockVolume, Segment};
use bytes::Bytes;
use disk::{Disk, FaultDisk, MemDisk};
use engine::{
    BoxFuture,
    create::{CreateOptions, DeviceFacts, Plan, VdevSpec},
    dsl::{NewVolume, OpError, Properties},
    engine::{Ending, Engine, OpFuture, Options},
    open,
    sync::Syncer,
    txg::Limits,
};
use pool::{
    Pool,
    cache::BlockCache,
    import::{self, Sources},
};

/// Name of the pool.
pub const POOL: &str = "tank";
/// Bytes of a disk unless told otherwise.
pub const DISK: u64 = 128 << 20;

/// Disks that can be pulled.
type Pulled = Vec<Arc<FaultDisk>>;

/// The machine: what survives a power cut.
pub struct World {
    pub media: Vec<Arc<MemDisk>>,
    pub seed: u64,
    cuts: u64,
}

/// What is in memory: lost by a power cut.
pub struct Running {
    pub engine: Arc<Engine>,
    pub disks: Vec<Arc<FaultDisk>>,
}

/// Transaction groups only when somebody asks: commands, flushes, limits.
pub fn quiet() -> Options {
    Options {
        limits: Limits { timeout: Duration::from_secs(1 << 30), ..Limits::default() },
        now: || 1_700_000_000,
        clock: || Duration::from_secs(1_700_000_000),
    }
}

fn words(layout: &str) -> Vec<String> {
    layout.split_whitespace().map(str::to_owned).collect()
}

impl World {
    /// Disks for `layout` (`mirror d0 d1 log d2`), and a pool on them.
    pub fn create(layout: &str, ashift: u32, size: u64, seed: u64) -> BoxFuture<'_, (Self, Running)> {
        Self::create_with(layout, ashift, size, seed, Properties::new())
    }

    pub fn create_with(
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
    pub fn create_having<'a>(
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
            let facts = vec![
                DeviceFacts {
                    bytes: size,
                    block_device: false,
                    logical_sector: 512,
                    physical_sector: 512
                };
                count
            ];
            let plan = Plan::new(&spec, &facts, Some(ashift), true).unwrap();
            let options = CreateOptions {
                name: POOL.to_owned(),
                features,
                pool_properties: Properties::new(),
                root_properties,
                hostid: 7,
                hostname: "simulation".to_owned(),
                now: 1_700_000_000,
                seed,
                cache: Arc::new(BlockCache::new(16 << 20)),
                workers: 0,
                history: None,
            };
            let as_disks: Vec<Arc<dyn Disk>> = disks.iter().map(|d| Arc::clone(d) as Arc<dyn Disk>).collect();
            let syncer = engine::create::create(&plan, &as_disks, options).await.unwrap();
            let engine = Engine::start(syncer, quiet()).await.unwrap();
            (world, Running { engine, disks })
        })
    }

    /// A world that was there before.
    pub fn on(media: Vec<Arc<MemDisk>>) -> Self {
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
    pub fn open(&self) -> BoxFuture<'_, Running> {
        Box::pin(async move {
            self.try_open(quiet()).await.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
        })
    }

    pub fn try_open(&self, options: Options) -> BoxFuture<'_, Result<Running, String>> {
        Box::pin(async move {
            let disks = self.power_on();
            let as_disks: Vec<Arc<dyn Disk>> = disks.iter().map(|d| Arc::clone(d) as Arc<dyn Disk>).collect();
            let engine = self.start(as_disks, options).await?;
            Ok(Running { engine, disks })
        })
    }

    /// Another world with the same content on its media.
    pub fn fork(&self) -> Self {
        Self { media: self.media.iter().map(|media| Arc::new(media.fork())).collect(), ..*self }
    }

    /// Opens the pool for writing over disks made from the media.
    pub async fn open_over(
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
    pub fn look(&self) -> BoxFuture<'_, Result<Arc<Pool>, String>> {
        Box::pin(async move {
            let disks = self.media.iter().map(|d| Arc::clone(d) as Arc<dyn Disk>).collect();
            import_from(disks).await
        })
    }

    /// The same, through disks that can be pulled.
    pub fn look_through(&self) -> BoxFuture<'_, Result<(Arc<Pool>, Pulled), String>> {
        Box::pin(async move {
            let disks = self.power_on();
            let pool = import_from(disks.iter().map(|d| Arc::clone(d) as Arc<dyn Disk>).collect()).await?;
            Ok((pool, disks))
        })
    }

    /// Cuts the power of a running pool: un-flushed writes are kept, lost or torn.
    pub fn cut(&mut self, running: Running) -> BoxFuture<'_, ()> {
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
    pub fn verify<'a>(&'a self, what: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let pool =
                self.look().await.unwrap_or_else(|error| panic!("seed {}: {what}: {error}", self.seed));
            let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
            assert!(report.is_clean(), "seed {}: {what}: {report:#?}", self.seed);
        })
    }

    /// Writes the media as image files.
    pub fn save(&self, dir: &Path) {
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
pub fn start_on(
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
) -> BoxFuture<'static, Result<Arc<Engine>, String>> {
    start_caching(disks, seed, options, 16 << 20)
}

/// The same with a cache of so many bytes.
pub fn start_caching(
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: usize,
) -> BoxFuture<'static, Result<Arc<Engine>, String>> {
    start_named(POOL, disks, seed, options, cache)
}

/// The same of a pool with another name.
pub fn start_named(
    name: &str,
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: usize,
) -> BoxFuture<'_, Result<Arc<Engine>, String>> {
    start_beside(name, disks, seed, options, Arc::new(BlockCache::new(cache)))
}

/// The same with a cache that other pools may have, too.
pub fn start_beside(
    name: &str,
    disks: Vec<Arc<dyn Disk>>,
    seed: u64,
    options: Options,
    cache: Arc<BlockCache>,
) -> BoxFuture<'_, Result<Arc<Engine>, String>> {
    Box::pin(async move {
        let pool = import_caching(name, disks, cache).await?;
        let how = open::OpenOptions {
            rename: None,
            hostid: 7,
            hostname: "simulation".to_owned(),
            now: 1_700_000_000,
            seed: seed ^ 0xabcd,
            workers: 0,
        };
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
pub fn run<T, F>(engine: &Engine, is_snapshot: bool, op: F) -> BoxFuture<'_, Result<T, OpError>>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, T> + Clone + Send + 'static,
{
    if is_snapshot { engine.run_snapshot(op) } else { engine.run(op) }
}

impl Running {
    /// A thin volume.
    pub fn volume<'a>(
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
    pub fn export(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.engine.end(Ending::Export).await.unwrap();
        })
    }
}

/// All of a volume as bytes.
pub fn content(volume: &dyn BlockVolume) -> BoxFuture<'_, Vec<u8>> {
    Box::pin(async move {
        let size = volume.geometry().size;
        let mut all = Vec::with_capacity(size as usize);
        let step = 1 << 20;
        for offset in (0..size).step_by(step) {
            let len = step.min((size - offset) as usize);
            all.extend(joined(volume.read(offset, len).await.unwrap()));
        }
        all
    })
}

/// What was read, as bytes.
pub fn joined(segments: block::Segments) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in segments {
        match segment {
            Segment::Data(bytes) => all.extend_from_slice(&bytes),
            Segment::Zero(len) => all.resize(all.len() + len, 0),
        }
    }
    all
}

/// One write's worth of segments.
pub fn data(bytes: Vec<u8>) -> block::Segments {
    [Segment::Data(Bytes::from(bytes))].into_iter().collect()
}
