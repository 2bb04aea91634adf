//! Plays a drill: builds the machine, sets clients to work, acts, measures, judges.

use std::{
    cell::Cell,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BlockVolume, BoxFuture, Durability, Segment, VolumeError};
use engine::{
    create::{CreateOptions, DeviceFacts, Plan, VdevSpec},
    devices::Opener,
    dsl::{self, NewVolume, Properties},
    engine::{Ending, Engine, OpFuture, Options},
    open,
    scan::ScanCommand,
    sync::Syncer,
    txg::Limits,
    volume::LiveVolume,
};
use parking_lot::Mutex;
use pool::{
    Pool,
    cache::BlockCache,
    import::{self, Sources},
    vdev::{Kind, Vdev},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Drill, LabError, Layout,
    layout::Hardware,
    load::{Clients, Load},
    machine::{Bay, Machine},
    report::{Grade, Line, ReportCard, time},
    script::Act,
    watch::{self, Watch, is_whole},
};

/// Name of a simulated pool.
const POOL: &str = "lab";
/// After this long of waiting for a pool to become whole a person helps.
const HELP_AFTER: Duration = Duration::from_secs(60);
/// No command may take longer.
const COMMAND: Duration = Duration::from_secs(600);
/// A pause a user notices, and one after which a guest complains.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(25));

/// Where a drill is played.
#[derive(Clone, Debug)]
pub enum Place {
    /// On a simulated machine.
    Simulated {
        /// Its disks.
        layout: Layout,
        /// What they are like.
        hardware: Hardware,
    },
    /// On copies of a real pool's files, which are written to.
    Files {
        /// The copies.
        files: Vec<PathBuf>,
        /// The pool's name.
        pool: String,
    },
}

/// How far a drill is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Milliseconds of the script that are over, as estimated before.
    pub done: AtomicU64,
    /// Of the whole script.
    pub total: AtomicU64,
    /// What is done now.
    pub now: Mutex<String>,
}

thread_local! {
    /// When the simulated clock of this thread began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Time since 1970 where a simulation runs: the end of 2023 and what passed since it began.
fn simulated_clock() -> Duration {
    Duration::from_secs(1_700_000_000) + BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed())
}

/// Plays a drill on a simulated machine, on a clock of its own. Blocks for as long as the work takes; a seed repeats
/// itself.
///
/// # Errors
/// The pool cannot be created, or bears no failure.
pub fn simulate(
    drill: &Drill,
    layout: &Layout,
    hardware: Hardware,
    seed: u64,
    progress: &Arc<Progress>,
) -> Result<ReportCard, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.map_err(|error| LabError::Open(error.to_string()))?;
    let place = Place::Simulated { layout: layout.clone(), hardware };
    let card = runtime.block_on(rehearse(drill, &place, seed, progress));
    runtime.shutdown_background();
    card
}

/// Plays a drill on the clock of the runtime it is called on.
///
/// # Errors
/// The pool cannot be created or opened, or bears no failure.
pub fn rehearse<'a>(
    drill: &'a Drill,
    place: &'a Place,
    seed: u64,
    progress: &'a Arc<Progress>,
) -> BoxFuture<'a, Result<ReportCard, LabError>> {
    Box::pin(async move {
        let scripts = std::iter::once(drill.script).chain(drill.what_if.map(|(_, script)| script));
        let estimate: Duration = scripts.flatten().map(Act::estimate).sum();
        progress.total.store(estimate.as_millis() as u64, Relaxed);
        BEGAN.set(Some(Instant::now()));
        let mut stage = Box::pin(Stage::set(drill, place, seed, progress)).await?;
        let mut card = Box::pin(stage.carry_out(drill, place)).await;
        // A real pool's copies are spoilt by now.
        if let (Some((what, script)), Place::Simulated { .. }) = (drill.what_if, place) {
            let mut worse = Box::pin(Stage::set(drill, place, seed, progress)).await?;
            let sentence = match Box::pin(worse.play(script)).await {
                Ok(()) if worse.lost == 0 => "nothing would be lost".to_owned(),
                Ok(()) => format!(
                    "{} acknowledged blocks would be lost: no redundancy helps against disks that all lie; the pool \
                 says so by what it can no longer read",
                    worse.lost
                ),
                Err(error) => format!("all would be lost, and it would be noticed at once: {error}"),
            };
            let value = format!("{} lost", worse.lost);
            card.lines.push(Line { what: what.to_owned(), value, grade: Grade::Note, sentence });
            // It may be beyond all use.
            drop(worse.leave().await);
        }
        Ok(card)
    })
}

struct Stage {
    machine: Arc<Machine>,
    engine: Option<Arc<Engine>>,
    volume_name: String,
    load: Arc<Load>,
    clients: Option<Clients>,
    watch: Watch,
    watcher: Option<JoinHandle<()>>,
    /// Paths of disks that redundancy can do without, all at once; and of log devices.
    victims: Vec<String>,
    logs: Vec<String>,
    pool: String,
    options: Options,
    random: StdRng,
    seed: u64,
    pace: f64,
    progress: Arc<Progress>,
    /// What a power cut or the end took.
    lost: u64,
    undone: Option<u64>,
    /// From the last repair to wholeness; none while it is not whole.
    whole_after: Option<Duration>,
    by_hand: bool,
    waited_for_whole: bool,
    scrub: Option<(u64, u64)>,
    /// What another program took.
    hogged: Vec<Vec<u8>>,
    skipped: Vec<String>,
}

impl Stage {
    async fn set(
        drill: &Drill,
        place: &Place,
        seed: u64,
        progress: &Arc<Progress>,
    ) -> Result<Self, LabError> {
        let simulated = matches!(place, Place::Simulated { .. });
        let mut options = Options {
            limits: Limits { dirty_max: drill.dirty_max.unwrap_or(256 << 20), ..Limits::default() },
            ..Options::default()
        };
        if simulated {
            (options.now, options.clock) = (|| simulated_clock().as_secs(), simulated_clock);
        }
        let (machine, pool) = match place {
            Place::Simulated { layout, hardware } => {
                let mut profiles = vec![hardware.disk; layout.disks()];
                profiles.extend(vec![hardware.log; drill.log.count()]);
                (Machine::simulated(&profiles, drill.disk_bytes, seed), POOL.to_owned())
            }
            Place::Files { files, pool } => (Machine::of_files(files, seed)?, pool.clone()),
        };
        let mut stage = Self {
            machine,
            engine: None,
            volume_name: format!("{pool}/millpond-drill"),
            load: Load::new(drill.load),
            clients: None,
            watch: watch::new(),
            watcher: None,
            victims: Vec::new(),
            logs: Vec::new(),
            pool,
            options,
            random: StdRng::seed_from_u64(seed ^ 0xd211),
            seed,
            pace: if simulated { 1.0 } else { drill.pace_on_copies },
            progress: Arc::clone(progress),
            lost: 0,
            undone: None,
            whole_after: None,
            by_hand: false,
            waited_for_whole: false,
            scrub: None,
            hogged: Vec::new(),
            skipped: Vec::new(),
        };
        let engine = match place {
            Place::Simulated { layout, .. } => stage.create(layout).await?,
            Place::Files { .. } => stage.open().await?,
        };
        stage.learn_devices(&engine)?;
        if drill.script.contains(&Act::PullLog) && stage.log().is_none() {
            return Err(LabError::Unfit("this drill needs a pool with a log device".to_owned()));
        }
        stage.engine = Some(engine);
        stage.create_volume(&stage.volume_name.clone(), stage.load.bytes()).await?;
        stage.work().await?;
        Ok(stage)
    }

    async fn create(&self, layout: &Layout) -> Result<Arc<Engine>, LabError> {
        let fail = |error: &dyn std::fmt::Display| LabError::Open(error.to_string());
        let paths: Vec<String> = self.machine.bays.iter().map(|bay| bay.path.clone()).collect();
        let (data, logs) = paths.split_at(layout.disks());
        let spec = VdevSpec::parse(&layout.words(data, logs)).map_err(|e| fail(&e))?;
        let devices = self.machine.devices();
        let facts: Vec<DeviceFacts> = devices
            .iter()
            .map(|device| DeviceFacts {
                bytes: device.info().size,
                block_device: false,
                logical_sector: 512,
                physical_sector: 4096,
            })
            .collect();
        let plan = Plan::new(&spec, &facts, Some(12), true).map_err(|e| fail(&e))?;
        let how = CreateOptions {
            name: self.pool.clone(),
            features: engine::create::features("").map_err(|e| fail(&e))?,
            pool_properties: Properties::new(),
            root_properties: Properties::new(),
            hostid: 7,
            hostname: "lab".to_owned(),
            now: (self.options.now)(),
            seed: self.seed,
            cache: cache(),
            workers: 0,
            history: None,
        };
        let syncer = engine::create::create(&plan, &devices, how).await.map_err(|e| fail(&e))?;
        self.start(syncer).await
    }

    async fn open(&self) -> Result<Arc<Engine>, LabError> {
        let pool = self.look().await?;
        let how = open::OpenOptions {
            rename: None,
            hostid: 7,
            hostname: "lab".to_owned(),
            now: (self.options.now)(),
            seed: self.seed ^ 0xabcd,
            workers: 0,
        };
        let syncer = open::open(pool, how).await.map_err(|error| LabError::Open(error.to_string()))?;
        self.start(syncer).await
    }

    async fn start(&self, syncer: Syncer) -> Result<Arc<Engine>, LabError> {
        let engine = Engine::start(syncer, self.options).await;
        let engine = engine.map_err(|error| LabError::Open(error.to_string()))?;
        engine.watch(self.machine.controller() as Arc<dyn Opener>);
        Ok(engine)
    }

    /// The pool as a reader finds it.
    async fn look(&self) -> Result<Arc<Pool>, LabError> {
        let found = import::scan(&Sources::disks(self.machine.devices())).await;
        let candidate = found.find(&self.pool).map_err(|error| LabError::Open(error.to_string()))?;
        let how = import::OpenOptions {
            // The copy's original may be another host's.
            force: true,
            missing_log: true,
            hostid: 7,
            cache: cache(),
            ..import::OpenOptions::default()
        };
        import::open(candidate, &how).await.map_err(|error| LabError::Open(error.to_string()))
    }

    /// Which disks may be hurt.
    fn learn_devices(&mut self, engine: &Engine) -> Result<(), LabError> {
        let tree = engine.view().tree();
        let path = |vdev: &Vdev| vdev.leaves().first().and_then(|leaf| leaf.path.clone());
        let mut borne: Vec<Vec<String>> = Vec::new();
        for top in &tree.tops {
            if top.is_log() {
                self.logs.extend(top.leaves().into_iter().filter_map(path));
                continue;
            }
            let parity = match &top.kind {
                Kind::Raidz(geometry) => geometry.parity,
                Kind::Mirror => top.children.len().saturating_sub(1),
                _ => 0,
            };
            borne.push(top.children.iter().take(parity).filter_map(path).collect());
        }
        // One of each top-level device before a second of any.
        let deepest = borne.iter().map(Vec::len).max().unwrap_or(0);
        self.victims =
            (0..deepest).flat_map(|n| borne.iter().filter_map(move |top| top.get(n)).cloned()).collect();
        if self.victims.is_empty() {
            return Err(LabError::Unfit(
                "the pool has no redundancy: any failure of a disk loses it".to_owned(),
            ));
        }
        Ok(())
    }

    fn engine(&self) -> Result<Arc<Engine>, LabError> {
        self.engine.clone().ok_or_else(|| LabError::Open("the pool is not open".to_owned()))
    }

    async fn command<F>(&self, op: F) -> Result<(), LabError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        let engine = self.engine()?;
        match timeout(COMMAND, engine.run(op)).await {
            Ok(result) => result.map_err(|error| LabError::Open(error.to_string())),
            Err(_) => Err(LabError::Open("a command hangs".to_owned())),
        }
    }

    async fn create_volume(&self, name: &str, size: u64) -> Result<(), LabError> {
        let properties = Properties::new();
        let new = NewVolume { name: name.to_owned(), size, block: 16 << 10, properties, parents: false };
        self.command(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await
    }

    async fn volume(&self) -> Result<Arc<LiveVolume>, LabError> {
        self.engine()?.volume(&self.volume_name).await.map_err(|error| LabError::Open(error.to_string()))
    }

    /// Clients begin, or go on; the pool is watched.
    async fn work(&mut self) -> Result<(), LabError> {
        let volume: Arc<dyn BlockVolume> = self.volume().await?;
        self.clients = Some(self.load.start(&volume, self.random.random()));
        let engine = self.engine()?;
        self.watcher = Some(tokio::spawn(watch::run(engine, Arc::clone(&self.watch))));
        Ok(())
    }

    fn tell(&self, text: impl Into<String>) {
        let text = text.into();
        self.progress.now.lock().clone_from(&text);
        self.watch.lock().tell(text);
    }

    /// Plays the script and says what came of it. What keeps it from being played to its end is among that.
    async fn carry_out(&mut self, drill: &Drill, place: &Place) -> ReportCard {
        let played = Box::pin(self.play(drill.script)).await;
        Box::pin(self.judge(drill, place, played.err().map(|error| error.to_string()))).await
    }

    async fn play(&mut self, script: &[Act]) -> Result<(), LabError> {
        for act in script {
            let before = self.progress.done.load(Relaxed);
            let estimate = act.estimate();
            if act.is_trouble() {
                self.load.in_trouble.store(true, Relaxed);
                let mut seen = self.watch.lock();
                let now = seen.elapsed();
                seen.trouble.get_or_insert(now);
            }
            Box::pin(self.act(*act, before)).await?;
            self.progress.done.store(before + estimate.as_millis() as u64, Relaxed);
        }
        Ok(())
    }

    async fn act(&mut self, act: Act, before: u64) -> Result<(), LabError> {
        match act {
            Act::Wait(duration) => self.wait(duration.mul_f64(self.pace), before).await,
            Act::Pull(n) => self.on_victim(n, "is pulled out", Bay::pull),
            Act::Return(n) => {
                self.on_victim(n, "is put back", Bay::plug);
                // The system tells the daemon that a device came.
                self.bounded(self.engine()?.look()).await;
            }
            Act::Slow(n, by) => {
                self.on_victim(n, &format!("takes {} longer for every command", time(by)), |bay| {
                    bay.slow(by)
                });
            }
            Act::Corrupt(n, every) => {
                let text =
                    format!("gives wrong bytes in one of {every} reads, and rots in {} places", every * 10);
                self.on_victim(n, &text, |bay| bay.misread(every));
                if let Some(bay) = self.victims.get(n).and_then(|path| self.machine.find(path)) {
                    let hit = bay.rot(every as usize * 10, &mut self.random).await;
                    hit.map_err(|source| LabError::File { path: bay.path.clone(), source })?;
                }
            }
            Act::Lie(n) => self.on_victim(n, "acknowledges flushes and does nothing", Bay::lie),
            Act::AllLie => {
                self.tell("all disks acknowledge flushes and do nothing");
                self.machine.bays.iter().for_each(Bay::lie);
            }
            Act::Heal(n) => self.on_victim(n, "works again", Bay::heal),
            Act::PullLog => self.on_log("dies", Bay::pull),
            Act::ReturnLog => {
                self.on_log("is back", Bay::plug);
                self.bounded(self.engine()?.look()).await;
            }
            Act::PowerCut => self.power_cut().await?,
            Act::UntilWhole(patience) => self.until_whole(patience).await?,
            Act::Scrub(patience) => self.scrub(patience).await?,
            Act::Fill => self.fill().await?,
            Act::MakeRoom => {
                self.tell("what filled the pool is destroyed");
                let name = self.ballast();
                self.command(move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await })).await?;
            }
            Act::Hog(bytes) => {
                self.tell(format!("another program takes {} of memory", pool::status::human(bytes as u64)));
                // Written to, or it would be no more than a promise.
                self.hogged.push(vec![0x5a; bytes]);
            }
        }
        Ok(())
    }

    async fn wait(&self, duration: Duration, before: u64) {
        let start = Instant::now();
        while start.elapsed() < duration {
            sleep((duration - start.elapsed()).min(Duration::from_millis(200))).await;
            let done = start.elapsed().as_millis() as f64 / self.pace;
            self.progress.done.store(before + done as u64, Relaxed);
        }
    }

    fn on_victim(&mut self, n: usize, what: &str, act: impl FnOnce(&Bay)) {
        match self.victims.get(n).and_then(|path| self.machine.find(path)) {
            Some(bay) => {
                self.tell(format!("{} {what}", bay.path));
                self.watch.lock().hurt.insert(bay.path.clone());
                act(bay);
            }
            None => self.skipped.push(format!("redundancy does not bear that disk {} {what}", n + 1)),
        }
    }

    fn log(&self) -> Option<&Bay> {
        self.logs.first().and_then(|path| self.machine.find(path))
    }

    fn on_log(&self, what: &str, act: impl FnOnce(&Bay)) {
        // What needs one does not begin without.
        let Some(bay) = self.log() else { return };
        self.tell(format!("log device {} {what}", bay.path));
        self.watch.lock().hurt.insert(bay.path.clone());
        act(bay);
    }

    /// A command that is not to hang, and if it does is part of the story.
    async fn bounded<T>(&self, command: impl Future<Output = T>) -> Option<T> {
        let result = timeout(COMMAND, command).await.ok();
        if result.is_none() {
            self.tell("a command hangs");
        }
        result
    }

    async fn power_cut(&mut self) -> Result<(), LabError> {
        self.tell("the power goes");
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        if let Some(clients) = self.clients.take() {
            self.load.cut(clients);
        }
        let cut = self.machine.power_cut().await;
        cut.map_err(|source| LabError::File { path: self.pool.clone(), source })?;
        if let Some(engine) = self.engine.take() {
            // It finds its disks gone for good.
            self.bounded(engine.abandon()).await;
        }
        tokio::task::yield_now().await;
        match self.open().await {
            Ok(engine) => self.engine = Some(engine),
            Err(error) => {
                self.lost += self.load.written();
                self.tell(error.to_string());
                return Err(error);
            }
        }
        let volume = match self.volume().await {
            Ok(volume) => volume,
            Err(error) => {
                self.lost += self.load.written();
                return Err(error);
            }
        };
        let (lost, undone) = self.load.settle(&*volume).await;
        self.tell(format!("the power is back, the pool is open; {lost} blocks lost"));
        self.lost += lost;
        self.undone = Some(self.undone.unwrap_or(0) + undone);
        self.work().await
    }

    async fn until_whole(&mut self, patience: Duration) -> Result<(), LabError> {
        let patience = patience.mul_f64(self.pace);
        self.waited_for_whole = true;
        let engine = self.engine()?;
        let start = Instant::now();
        let mut helped = start;
        self.progress.now.lock().clone_from(&"until the pool is whole".to_owned());
        while start.elapsed() < patience {
            if is_whole(&engine) {
                let took = start.elapsed();
                self.whole_after = Some(took);
                self.tell(format!("the pool is whole, {} after the last repair", time(took)));
                return Ok(());
            }
            if helped.elapsed() > HELP_AFTER.mul_f64(self.pace)
                && engine.scan_progress().is_none_or(|scan| !scan.running)
            {
                helped = Instant::now();
                if !std::mem::replace(&mut self.by_hand, true) {
                    self.tell("a person types zpool clear and zpool online");
                }
                self.help(&engine).await;
            }
            sleep(Duration::from_millis(500)).await;
        }
        self.whole_after = None;
        self.tell(format!("after {} the pool is not whole yet", time(patience)));
        Ok(())
    }

    /// What a person does with a pool that does not become well by itself.
    async fn help(&self, engine: &Arc<Engine>) {
        self.bounded(engine.clear(None)).await;
        for vdev in engine.view().tree().leaves() {
            let here = vdev.path.as_deref().and_then(|path| self.machine.find(path));
            if let Some(bay) = here.filter(|bay| bay.is_present() && !vdev.is_readable()) {
                self.bounded(engine.online(vdev.guid, Some(bay.device()), false)).await;
            }
        }
    }

    async fn scrub(&mut self, patience: Duration) -> Result<(), LabError> {
        let patience = patience.mul_f64(self.pace);
        let engine = self.engine()?;
        self.tell("a scrub is asked for");
        let start = Instant::now();
        // A resilver that runs comes first.
        loop {
            match self.bounded(engine.scan(ScanCommand::Scrub)).await {
                Some(Ok(())) => break,
                Some(Err(error))
                    if start.elapsed() > patience / 4 || error.to_string() == "not supported" =>
                {
                    self.tell(format!("no scrub: {error}"));
                    return Ok(());
                }
                _ => sleep(Duration::from_secs(2)).await,
            }
        }
        while start.elapsed() < patience {
            sleep(Duration::from_millis(200)).await;
            if let Some(scan) = engine.scan_progress().filter(|scan| scan.ended.is_some()) {
                self.scrub = Some((scan.processed, scan.errors));
                return Ok(());
            }
        }
        self.tell(format!("the scrub is not done after {}", time(patience)));
        Ok(())
    }

    fn ballast(&self) -> String {
        format!("{}/millpond-ballast", self.pool)
    }

    async fn fill(&mut self) -> Result<(), LabError> {
        const PIECE: usize = 256 << 10;
        self.tell("the pool is being filled");
        let name = self.ballast();
        self.create_volume(&name, 1 << 40).await?;
        let ballast =
            self.engine()?.volume(&name).await.map_err(|error| LabError::Open(error.to_string()))?;
        let mut piece = vec![0; PIECE];
        for offset in (0..1_u64 << 40).step_by(PIECE) {
            self.random.fill(&mut piece[..]);
            let data = std::iter::once(Segment::Data(piece.clone().into())).collect();
            match timeout(COMMAND, ballast.write(offset, data, Durability::Cached)).await {
                Ok(Ok(())) => {}
                Ok(Err(VolumeError::NoSpace)) => break,
                Ok(Err(error)) => return Err(LabError::Open(error.to_string())),
                Err(_) => {
                    self.tell("a write hangs");
                    break;
                }
            }
        }
        self.tell("the pool is full");
        Ok(())
    }

    /// Ends it all, and says what came of it. `unfinished` is why the script was not played to its end.
    async fn judge(&mut self, drill: &Drill, place: &Place, unfinished: Option<String>) -> ReportCard {
        self.progress.now.lock().clone_from(&"everything is read again".to_owned());
        if let Some(clients) = self.clients.take() {
            self.load.stop(clients).await;
        }
        match self.volume().await {
            Ok(volume) => self.lost += self.load.check(&*volume).await,
            Err(error) => {
                // A power cut after which nothing could be opened may have counted them already.
                self.lost = self.lost.max(self.load.written());
                self.tell(format!("the volume cannot be opened: {error}"));
            }
        }
        let seconds = self.watch.lock().elapsed().as_secs_f64();
        let clean = self.leave().await;
        let mut lines = Vec::new();
        if let Some(why) = &unfinished {
            let (what, value) = ("drill".to_owned(), "broken off".to_owned());
            lines.push(Line { what, value, grade: Grade::Bad, sentence: why.clone() });
        }
        self.judge_clients(drill, &mut lines);
        self.judge_pool(drill, &mut lines);
        let (value, grade, sentence) = match clean {
            Ok(()) => (
                "clean".to_owned(),
                Grade::Good,
                "every block, every checksum and every space map is right".to_owned(),
            ),
            Err(what) => ("not clean".to_owned(), Grade::Bad, what),
        };
        lines.push(Line { what: "check of the whole pool".to_owned(), value, grade, sentence });
        for skipped in &self.skipped {
            let (what, value) = ("left out".to_owned(), "-".to_owned());
            lines.push(Line { what, value, grade: Grade::Note, sentence: skipped.clone() });
        }
        if let Some(caveat) = drill.caveat {
            let (what, value) = ("not judged".to_owned(), "-".to_owned());
            lines.push(Line { what, value, grade: Grade::Note, sentence: caveat.to_owned() });
        }
        let machine = match place {
            Place::Simulated { layout, .. } => {
                let logs = ["", " with a log device", " with mirrored log devices"][drill.log.count().min(2)];
                format!("{layout}{logs}, simulated")
            }
            Place::Files { files, pool } => format!("a copy of pool '{pool}' ({} files)", files.len()),
        };
        let account = self.load.account.lock();
        let seen = self.watch.lock();
        ReportCard {
            drill: drill.name.to_owned(),
            about: drill.about.to_owned(),
            machine,
            story: seen.story.iter().map(|(at, text)| (round(at.as_secs_f64()), text.clone())).collect(),
            lines,
            lost: self.lost + account.wrong,
            dropped: account.dropped,
            unfinished,
            seconds: round(seconds),
            seed: self.seed,
        }
    }

    fn judge_clients(&self, drill: &Drill, lines: &mut Vec<Line>) {
        let mut account = self.load.account.lock();
        let mut add = |what: &str, value: String, grade: Grade, sentence: String| {
            lines.push(Line { what: what.to_owned(), value, grade, sentence });
        };
        let complaints = account.complaints.join("; ");
        let lost = self.lost + account.wrong;
        let (grade, sentence) = match lost {
            0 => (Grade::Good, kept(account.writes, self.undone)),
            _ => (Grade::Bad, format!("acknowledged data is gone or wrong: {complaints}")),
        };
        add("lost", format!("{lost} blocks"), grade, sentence);
        let (grade, sentence) = match account.dropped {
            0 => (Grade::Good, format!("each of {} requests was answered", account.requests)),
            _ => (Grade::Bad, format!("clients saw errors or no answer: {complaints}")),
        };
        add("dropped", format!("{} requests", account.dropped), grade, sentence);
        if drill.fills {
            let sentence = match account.no_space {
                0 => "no write met the full pool".to_owned(),
                _ => "writes were told that there is no space; reads went on, and so did writes when there was room"
                    .to_owned(),
            };
            add("no space", format!("{} requests", account.no_space), Grade::Note, sentence);
        }
        if let Some((longest, _)) = account.longest {
            let (grade, sentence) = match longest {
                pause if pause <= PAUSES.0 => (Grade::Good, "no guest would complain"),
                pause if pause <= PAUSES.1 => {
                    (Grade::Fair, "users notice, guests bear it: they wait for 30 seconds")
                }
                _ => (Grade::Bad, "guests give up a disk that does not answer for 30 seconds"),
            };
            add("longest pause of a client", time(longest), grade, sentence.to_owned());
        }
        let (before, after) = (percentile(&mut account.before), percentile(&mut account.after));
        if let (Some(before), Some(after)) = (before, after) {
            let sentence =
                format!("of 100 requests 99 were faster; {} before anything went wrong", time(before));
            add("p99 in trouble", time(after), Grade::Note, sentence);
        }
        if let Some(undone) = self.undone {
            let sentence =
                "writes nobody had asked to be stable: a power cut may take them, as from any disk";
            add("rolled back by the power cut", format!("{undone} blocks"), Grade::Note, sentence.to_owned());
        }
    }

    fn judge_pool(&self, drill: &Drill, lines: &mut Vec<Line>) {
        let seen = self.watch.lock();
        let mut add = |what: &str, value: String, grade: Grade, sentence: String| {
            lines.push(Line { what: what.to_owned(), value, grade, sentence });
        };
        if !seen.suspended.is_zero() {
            let sentence = "nothing could be written meanwhile".to_owned();
            add("suspended", time(seen.suspended), Grade::Bad, sentence);
        }
        add(
            "degraded",
            time(seen.degraded),
            Grade::Note,
            "with less redundancy than it should have".to_owned(),
        );
        if self.waited_for_whole {
            let (value, grade, sentence) = match self.whole_after {
                Some(after) if self.by_hand => {
                    (time(after), Grade::Fair, "after zpool clear and zpool online".to_owned())
                }
                Some(after) => {
                    (time(after), Grade::Good, "by itself, counted from the last repair".to_owned())
                }
                None => ("not".to_owned(), Grade::Bad, "it did not get its redundancy back".to_owned()),
            };
            add("whole again", value, grade, sentence);
        }
        if seen.resilvered > 0 {
            let bytes = pool::status::human(seen.resilvered);
            add("resilvered", bytes, Grade::Note, "what the disks had missed".to_owned());
        }
        if let Some((repaired, errors)) = self.scrub {
            let grade = if errors == 0 { Grade::Good } else { Grade::Bad };
            let sentence = format!("found by the scrub and written again; {errors} blocks beyond repair");
            add("repaired by the scrub", pool::status::human(repaired), grade, sentence);
        } else if drill.script.iter().any(|act| matches!(act, Act::Scrub(_))) {
            add("scrub", "none".to_owned(), Grade::Bad, "it could not be done".to_owned());
        }
        if seen.repaired > 0 {
            let bytes = pool::status::human(seen.repaired);
            add("healed while reading", bytes, Grade::Note, "wrong bytes replaced by right ones".to_owned());
        }
        if let Some(trouble) = seen.trouble {
            let (value, grade, sentence) = match &seen.noticed {
                Some((at, text)) => (format!("after {}", time(*at - trouble)), Grade::Good, text.clone()),
                None if drill.caveat.is_some() => {
                    ("-".to_owned(), Grade::Note, "no alert was due".to_owned())
                }
                None => ("never".to_owned(), Grade::Fair, "nobody would have been told".to_owned()),
            };
            add("noticed", value, grade, sentence);
        }
    }

    /// Closes the pool and checks all of it.
    async fn leave(&mut self) -> Result<(), String> {
        if let Some(clients) = self.clients.take() {
            self.load.stop(clients).await;
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        let Some(engine) = self.engine.take() else { return Err("the pool is not open".to_owned()) };
        if let Some(why) = engine.suspended() {
            self.bounded(engine.abandon()).await;
            return Err(format!("it is suspended: {why}"));
        }
        match self.bounded(engine.end(Ending::Export)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(format!("it cannot be exported: {error}")),
            None => return Err("it cannot be exported".to_owned()),
        }
        drop(engine);
        let pool = self.look().await.map_err(|error| error.to_string())?;
        let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
        match report.problems.first() {
            None if report.is_clean() => Ok(()),
            None if report.thin > 0 => {
                Err(format!("{} blocks have less redundancy than they should", report.thin))
            }
            None => Err("space is accounted wrongly".to_owned()),
            Some(first) => Err(format!("{} problems, the first: {first:?}", report.problems_total)),
        }
    }
}

/// What can be said where nothing is lost: of so many acknowledged writes, a power cut may have taken some back.
fn kept(writes: u64, undone: Option<u64>) -> String {
    match undone {
        None | Some(0) => format!("all of {writes} acknowledged writes are there, byte for byte"),
        Some(_) => "all writes that were acknowledged as stable are there, byte for byte; what else the power cut took \
                    stands below"
            .to_owned(),
    }
}

fn cache() -> Arc<BlockCache> {
    // Small, so that reads reach the disks.
    Arc::new(BlockCache::new(4 << 20))
}

fn percentile(micros: &mut [u32]) -> Option<Duration> {
    micros.sort_unstable();
    let at = (micros.len() * 99 / 100).min(micros.len().checked_sub(1)?);
    Some(Duration::from_micros(micros[at].into()))
}

fn round(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was an error of the command, which told neither what was lost nor what had happened.
    #[tokio::test(start_paused = true)]
    async fn a_pool_that_does_not_come_back_gets_a_card_that_says_so() {
        BEGAN.set(Some(Instant::now()));
        let drill = Drill { script: &[Act::PowerCut], ..*crate::find("double-pull").unwrap() };
        let place = Place::Simulated { layout: "mirror:2".parse().unwrap(), hardware: Hardware::san2() };
        let mut stage = Box::pin(Stage::set(&drill, &place, 1, &Arc::default())).await.unwrap();
        Box::pin(stage.play(&[Act::Wait(Duration::from_secs(20))])).await.unwrap();
        stage.machine.bays.iter().for_each(Bay::pull);
        let card = Box::pin(stage.carry_out(&drill, &place)).await;
        assert!(!card.passed() && card.grade() == Grade::Bad, "{card:#?}");
        assert_eq!(card.lost, stage.load.written(), "once, and not none: {card:#?}");
        assert!(card.lost > 0, "{card:#?}");
        let first = &card.lines[0];
        assert!(first.value == "broken off" && first.sentence.contains("cannot be opened"), "{card:#?}");
        assert!(!ReportCard { lost: 0, dropped: 0, ..card }.passed(), "what is not known is not well");
    }

    /// A card said that every acknowledged write was there, and three lines below how many were not.
    #[test]
    fn a_card_does_not_say_that_what_was_rolled_back_is_there() {
        for undone in [None, Some(0)] {
            assert_eq!(kept(7, undone), "all of 7 acknowledged writes are there, byte for byte");
        }
        let said = kept(7, Some(2));
        assert!(said.starts_with("all writes that were acknowledged as stable are there"), "{said}");
    }
}
