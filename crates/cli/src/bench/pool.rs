//! The pool a bench runs on: files in a directory, created with it, and removed or left exported afterwards.

use std::{
    fs::{self, File},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context as _;
use clap::ValueEnum as _;
use server::{
    budget::{limit::limit, machine::Machine, plan::Terms},
    disk::{Disk, FileDisk, OpenOptions},
    engine::{
        create::{self, CreateOptions, DeviceFacts, Plan, VdevSpec},
        dsl::{self, NewVolume, Properties, Stored},
        engine::{Ending, Engine, Options},
        txg::Limits,
    },
    governor::pages,
    hostid,
    pool::{
        cache::BlockCache,
        props::{Types, Value, parse},
    },
};

use super::{Layout, measure::Counters};
use crate::output::{self, May};

/// The volume.
pub(super) const VOLUME: &str = "bench/volume";
const POOL: &str = "bench";

/// A pool on files, open for writing.
pub(super) struct Bed {
    pub(super) engine: Arc<Engine>,
    files: Vec<PathBuf>,
}

impl Bed {
    /// Makes the files, the pool and the volume. Files of an earlier bench in the directory are replaced.
    pub(super) async fn make(args: &super::Engine, counters: &Counters) -> anyhow::Result<Self> {
        let mut files = Files { dir: args.dir.clone(), size: args.vdev_size.0, made: Vec::new() };
        match Box::pin(files.pool(args, counters)).await {
            Ok(engine) => Ok(Self { engine, files: files.made }),
            Err(error) => {
                files.made.iter().for_each(|path| drop(fs::remove_file(path)));
                Err(error)
            }
        }
    }

    /// Exports the pool, or destroys it and removes its files. What failed is left as it is, to be looked at, if
    /// it was to be kept.
    pub(super) async fn leave(self, keep: bool, is_good: bool) -> anyhow::Result<()> {
        let ending = if keep { Ending::Export } else { Ending::Destroy };
        let ended = self.engine.end(ending).await;
        if !keep {
            for path in &self.files {
                fs::remove_file(path).with_context(|| format!("cannot remove '{}'", path.display()))?;
            }
        }
        match ended {
            Err(error) if is_good => Err(error).context("cannot finish the pool"),
            _ => Ok(()),
        }
    }
}

struct Files {
    dir: PathBuf,
    size: u64,
    made: Vec<PathBuf>,
}

impl Files {
    /// Words for a specification: the paths of `count` new files.
    async fn add(&mut self, name: &str, count: usize) -> anyhow::Result<Vec<String>> {
        let mut words = Vec::new();
        for number in 0..count {
            let path = self.dir.join(format!("bench-{name}{number}.img"));
            let fail = || format!("cannot create '{}'", path.display());
            output::check(&path, May { replace: Some(POOL), ..May::default() }).await?;
            // Not truncated but new: whoever still has the old one open keeps it.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(fail);
                }
                _ => {}
            }
            let file = File::create_new(&path).with_context(fail)?;
            self.made.push(path.clone());
            file.set_len(self.size).with_context(fail)?;
            words.push(path.to_str().context("the directory's name is not UTF-8")?.to_owned());
        }
        Ok(words)
    }

    async fn words(&mut self, args: &super::Engine) -> anyhow::Result<Vec<String>> {
        let shape = args.layout.to_possible_value().map(|value| value.get_name().to_owned());
        let (shape, count) = match args.layout {
            Layout::Single => (None, 1),
            Layout::Mirror => (shape, 2),
            Layout::Raidz1 | Layout::Raidz2 | Layout::Raidz3 => (shape, args.width),
        };
        let mut words: Vec<String> = shape.into_iter().collect();
        words.extend(self.add("", count).await?);
        for (wanted, name) in [(args.log, "log"), (args.cache, "cache")] {
            if wanted {
                words.push(name.to_owned());
                words.extend(self.add(name, 1).await?);
            }
        }
        Ok(words)
    }

    async fn pool(&mut self, args: &super::Engine, counters: &Counters) -> anyhow::Result<Arc<Engine>> {
        let mut properties = Properties::new();
        for (name, text) in
            [("compression", &args.compress), ("checksum", &args.checksum), ("sync", &args.sync)]
        {
            let parsed = parse::dataset(name, text, Types::VOLUME, parse::Moment::Creating)?;
            if let parse::Parsed::Value(name, Value::Number(number)) = parsed {
                properties.insert(name, Stored::Number(number));
            }
        }
        self.dir = fs::canonicalize(&args.dir)
            .with_context(|| format!("cannot use '{}' as a directory", args.dir.display()))?;
        let spec = VdevSpec::parse(&self.words(args).await?)?;
        let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
        for path in spec.paths() {
            let options = OpenOptions { lock: true, ..OpenOptions::default() };
            let disk = FileDisk::open(path, options).with_context(|| format!("cannot open '{path}'"))?;
            disks.push(counters.count(Arc::new(disk)));
        }
        let facts: Vec<DeviceFacts> = disks.iter().map(|disk| facts(disk.as_ref())).collect();
        let plan = Plan::new(&spec, &facts, Some(args.ashift), false)?;
        // As a daemon on this machine has it.
        let machine = Machine::default();
        let memory = limit(None, &machine)?.bytes;
        pages::furnish(&Terms::new(memory, Some(args.arc_max.0), machine.total()));
        let cache = usize::try_from(args.arc_max.0).unwrap_or(usize::MAX);
        let now = (Options::default().now)();
        let options = CreateOptions {
            name: POOL.to_owned(),
            features: create::features("")?,
            pool_properties: Properties::new(),
            root_properties: Properties::new(),
            hostid: hostid::hostid(),
            hostname: "bench".to_owned(),
            now,
            // Two pools of this program are never the same pool.
            seed: now << 22 ^ u64::from(std::process::id()),
            cache: Arc::new(BlockCache::with_replacement(cache, args.arc_policy)),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            history: None,
        };
        let syncer = Box::pin(create::create(&plan, &disks, options)).await?;
        let limits = Limits::for_memory(memory);
        let engine = Box::pin(Engine::start(syncer, Options { limits, ..Options::default() })).await?;
        let block = u32::try_from(args.vbs.0).context("--vbs is too large")?;
        let new = NewVolume { name: VOLUME.to_owned(), size: args.vol.0, block, properties, parents: false };
        engine
            .run(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }))
            .await
            .with_context(|| format!("cannot create '{VOLUME}'"))?;
        Ok(engine)
    }
}

fn facts(disk: &dyn Disk) -> DeviceFacts {
    let info = disk.info();
    DeviceFacts {
        bytes: info.size,
        block_device: false,
        logical_sector: info.logical_sector,
        physical_sector: info.physical_sector,
    }
}
