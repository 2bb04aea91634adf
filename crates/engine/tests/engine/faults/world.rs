//! The machine: bays with disks that are pulled, swapped, come back empty or old, and the pool on them.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    BoxFuture,
    create::{CreateOptions, Plan, VdevSpec},
    devices::{NewLeaf, Opener},
    engine::{Engine, Options},
    events::DeviceName,
    open,
    txg::Limits,
};
use parking_lot::Mutex;
use pool::{
    Pool,
    cache::BlockCache,
    import::{self, Sources},
};

use crate::support::{POOL, creating, file_of, going_on};

/// Bytes of a disk.
pub(crate) const DISK: u64 = 72 << 20;
/// Bays beyond those of the layout: where replacements come from.
pub(crate) const EXTRA: usize = 4;

/// A place for a disk.
#[derive(Debug)]
pub(crate) struct Bay {
    pub(crate) path: String,
    state: Mutex<BayState>,
}

#[derive(Debug)]
struct BayState {
    media: Arc<MemDisk>,
    disk: Arc<FaultDisk>,
    present: bool,
    seed: u64,
}

/// All of them, and how often the power was cut.
#[derive(Debug)]
pub(crate) struct Bays(pub(crate) Vec<Bay>, AtomicU64);

/// What a pool asks when a device is to be opened again. One that was open before a power cut is given nothing.
#[derive(Debug)]
struct Controller {
    bays: Arc<Bays>,
    cuts: u64,
}

thread_local! {
    /// Where the simulated clock of this thread began.
    static BEGAN: Cell<Option<tokio::time::Instant>> = const { Cell::new(None) };
}

/// The wall clock of the simulation.
fn clock() -> Duration {
    let elapsed = BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed());
    Duration::from_secs(1_700_000_000) + elapsed
}

pub(crate) fn start_clock() {
    BEGAN.set(Some(tokio::time::Instant::now()));
}

fn options() -> Options {
    Options { limits: Limits { dirty_max: 16 << 20, ..Limits::default() }, now: || clock().as_secs(), clock }
}

impl Bay {
    fn new(path: String, seed: u64) -> Self {
        let media = Arc::new(MemDisk::new(DISK).named(path.clone()));
        let disk = device(&media, seed);
        Self { path, state: Mutex::new(BayState { media, disk, present: true, seed }) }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.state.lock().present
    }

    /// The disk, pulled or not.
    pub(crate) fn disk(&self) -> Arc<FaultDisk> {
        Arc::clone(&self.state.lock().disk)
    }

    pub(crate) fn media(&self) -> Arc<MemDisk> {
        Arc::clone(&self.state.lock().media)
    }

    /// The cable is pulled; with `cut` the disk's own cache is lost.
    pub(crate) async fn pull(&self, cut: Option<u64>) {
        let disk = self.disk();
        match cut {
            Some(seed) => {
                disk.power_cut(seed).await.unwrap();
            }
            None => disk.vanish(),
        }
        self.state.lock().present = false;
    }

    /// It is back as it was.
    pub(crate) fn plug(&self) {
        let mut state = self.state.lock();
        state.present = true;
        state.disk.come_back();
        calm(&state.disk);
    }

    /// Another disk is put in: whoever has the old one open finds it gone.
    pub(crate) fn put(&self, media: Arc<MemDisk>) {
        let mut state = self.state.lock();
        state.disk.vanish();
        state.seed = state.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        state.disk = device(&media, state.seed);
        state.media = media;
        state.present = true;
    }

    /// Nothing goes wrong in it any more.
    pub(crate) fn heal(&self) {
        calm(&self.disk());
    }

    fn opened(&self) -> Option<Arc<dyn Disk>> {
        let state = self.state.lock();
        state.present.then(|| Arc::clone(&state.disk) as Arc<dyn Disk>)
    }

    /// The machine starts: the same media behind a new controller.
    fn restart(&self) {
        let mut state = self.state.lock();
        state.seed = state.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(3);
        state.disk = device(&state.media, state.seed);
        if !state.present {
            state.disk.vanish();
        }
    }
}

fn device(media: &Arc<MemDisk>, seed: u64) -> Arc<FaultDisk> {
    let disk = Arc::new(FaultDisk::with_write_cache(Arc::clone(media) as Arc<dyn Disk>, seed));
    calm(&disk);
    disk
}

/// No faults; a command takes a moment now and then, so that things happen at the same time.
fn calm(disk: &FaultDisk) {
    disk.heal();
    for on in [On::Read, On::Write, On::Flush] {
        let moment = Effect::Delay(Duration::from_millis(1)..=Duration::from_millis(3));
        disk.inject(Fault::anywhere(on, moment).chance_ppm(200_000));
    }
}

impl Opener for Controller {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(async move {
            let is_now = self.cuts == self.bays.1.load(Relaxed);
            let bay = self.bays.0.iter().find(|bay| is_now && Some(&bay.path) == device.path.as_ref());
            bay.and_then(Bay::opened).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

impl Bays {
    /// A pool of `layout` on new disks.
    pub(crate) async fn create(layout: &str, ashift: u32, seed: u64) -> (Arc<Self>, Arc<Engine>) {
        let path = |word: &str| match word.strip_prefix('d') {
            Some(number) => format!("/disks/d{number}"),
            None => word.to_owned(),
        };
        let words: Vec<String> = layout.split_whitespace().map(path).collect();
        let spec = VdevSpec::parse(&words).unwrap();
        let count = spec.paths().len();
        let bay = |n: usize| Bay::new(format!("/disks/d{n}"), seed << 8 | n as u64);
        let bays = Arc::new(Self((0..count + EXTRA).map(bay).collect(), AtomicU64::new(0)));
        let facts = file_of(DISK);
        let plan = Plan::new(&spec, &vec![facts; count], Some(ashift), true).unwrap();
        let how = CreateOptions {
            features: engine::create::features("").unwrap(),
            now: clock().as_secs(),
            cache: Arc::new(BlockCache::new(1 << 20)),
            ..creating(POOL, seed)
        };
        let disks: Vec<Arc<dyn Disk>> = bays.0.iter().take(count).filter_map(Bay::opened).collect();
        let syncer = engine::create::create(&plan, &disks, how).await.unwrap();
        let engine = Engine::start(syncer, options()).await.unwrap();
        engine.watch(bays.controller());
        (bays, engine)
    }

    /// Opens the pool on what is in the bays.
    pub(crate) async fn open(self: &Arc<Self>, seed: u64) -> Result<Arc<Engine>, String> {
        let pool = self.look().await?;
        let how = open::OpenOptions { now: clock().as_secs(), seed: seed ^ 0xabcd, ..going_on() };
        let syncer = open::open(pool, how).await.map_err(|error| error.to_string())?;
        let engine = Engine::start(syncer, options()).await.map_err(|error| error.to_string())?;
        engine.watch(self.controller());
        engine.resume_sweeps().await;
        Ok(engine)
    }

    fn controller(self: &Arc<Self>) -> Arc<dyn Opener> {
        Arc::new(Controller { bays: Arc::clone(self), cuts: self.1.load(Relaxed) })
    }

    /// The pool as a reader finds it. A small cache, so that reads reach the disks.
    pub(crate) async fn look(&self) -> Result<Arc<Pool>, String> {
        let found = import::scan(&Sources::disks(self.0.iter().filter_map(Bay::opened))).await;
        let candidate = found.find(POOL).map_err(|error| error.to_string())?;
        let how = import::OpenOptions {
            force: true,
            missing_log: true,
            hostid: 7,
            cache: Arc::new(BlockCache::new(1 << 20)),
            ..import::OpenOptions::default()
        };
        import::open(candidate, &how).await.map_err(|error| error.to_string())
    }

    /// The power goes and comes back: of what was not flushed each disk keeps what `seed` chooses.
    pub(crate) async fn power_cut(&self, seed: u64) {
        self.1.fetch_add(1, Relaxed);
        for (n, bay) in (0_u64..).zip(&self.0) {
            bay.disk().power_cut(seed ^ n << 32).await.unwrap();
            bay.restart();
        }
    }

    pub(crate) fn find(&self, path: &str) -> Option<usize> {
        self.0.iter().position(|bay| bay.path == path)
    }

    /// Writes the media in these bays as image files.
    pub(crate) fn save(&self, bays: &[usize], dir: &std::path::Path) {
        let media = bays.iter().map(|bay| self.0[*bay].media()).collect();
        crate::support::World::on(media).save(dir);
    }
}
