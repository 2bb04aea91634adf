//! Plays a drill: builds the machine, sets clients to work, acts, measures, judges.
//!
//! * What the pool does wrong is no error: it is in the report, as is why a script was not played to its end.
//! * Only what redundancy bears is hurt, but where a drill asks what more would do. What it leaves out for that is in the report, too.
//! * No command is waited for without end: one that hangs is part of the story, or an error.
//! * On a simulated machine a seed repeats itself: all chance comes from it, and all time from the runtime's clock.
//!
//! Here: the pool, opened and opened again, with its clients. What is done to it is in `acts`, what came of that in `judge`.

mod acts;
mod judge;

use std::{
    cell::Cell,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BlockVolume, BoxFuture};
use engine::{
    create::{CreateOptions, DeviceFacts, Plan, VdevSpec},
    devices::Opener,
    dsl::{self, NewVolume, Properties},
    engine::{Engine, OpFuture, Options},
    open,
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
    time::{Instant, timeout},
};

use crate::{
    Drill, LabError, Layout,
    layout::Hardware,
    load::{Clients, Load},
    machine::Machine,
    report::{Grade, Line, ReportCard},
    script::Act,
    watch::{self, Watch},
};

/// Name of a simulated pool.
const POOL: &str = "lab";
/// No command may take longer.
const COMMAND: Duration = Duration::from_secs(600);

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
    let runtime = runtime.map_err(cannot_open)?;
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
            card.lines.push(Line::new(what, format!("{} lost", worse.lost), Grade::Note, sentence));
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
        let paths: Vec<String> = self.machine.bays.iter().map(|bay| bay.path.clone()).collect();
        let (data, logs) = paths.split_at(layout.disks());
        let spec = VdevSpec::parse(&layout.words(data, logs)).map_err(cannot_open)?;
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
        let plan = Plan::new(&spec, &facts, Some(12), true).map_err(cannot_open)?;
        let how = CreateOptions {
            name: self.pool.clone(),
            features: engine::create::features("").map_err(cannot_open)?,
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
        let syncer = engine::create::create(&plan, &devices, how).await.map_err(cannot_open)?;
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
        let syncer = open::open(pool, how).await.map_err(cannot_open)?;
        self.start(syncer).await
    }

    async fn start(&self, syncer: Syncer) -> Result<Arc<Engine>, LabError> {
        let engine = Engine::start(syncer, self.options).await;
        let engine = engine.map_err(cannot_open)?;
        engine.watch(self.machine.controller() as Arc<dyn Opener>);
        Ok(engine)
    }

    /// The pool as a reader finds it.
    async fn look(&self) -> Result<Arc<Pool>, LabError> {
        let found = import::scan(&Sources::disks(self.machine.devices())).await;
        let candidate = found.find(&self.pool).map_err(cannot_open)?;
        let how = import::OpenOptions {
            // The copy's original may be another host's.
            force: true,
            missing_log: true,
            hostid: 7,
            cache: cache(),
            ..import::OpenOptions::default()
        };
        import::open(candidate, &how).await.map_err(cannot_open)
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
            Ok(result) => result.map_err(cannot_open),
            Err(_) => Err(LabError::Open("a command hangs".to_owned())),
        }
    }

    async fn create_volume(&self, name: &str, size: u64) -> Result<(), LabError> {
        let properties = Properties::new();
        let new = NewVolume { name: name.to_owned(), size, block: 16 << 10, properties, parents: false };
        self.command(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await
    }

    async fn volume(&self) -> Result<Arc<LiveVolume>, LabError> {
        self.engine()?.volume(&self.volume_name).await.map_err(cannot_open)
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
}

fn cannot_open(error: impl std::fmt::Display) -> LabError {
    LabError::Open(error.to_string())
}

fn cache() -> Arc<BlockCache> {
    // Small, so that reads reach the disks.
    Arc::new(BlockCache::new(4 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Bay;

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
}
