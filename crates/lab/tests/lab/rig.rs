//! What a second tier of cache is worth: machines of modelled disks and flash, clients that read at random, and the very
//! pool, cache and engine that serve, on a clock that stands still while there is something to do.
//!
//! ```text
//!   Preset ─▶ Rig: media ─▶ start: the same media behind models of devices ─▶ Engine ─▶ clients ─▶ Run
//! ```
//! Sizes are those of a real machine divided by a number, times are not: a scaled cache is as warm after a thousandth of
//! the misses, which take a thousandth of the time. Where a model's microseconds matter, devices and clients are slowed
//! down by a factor, because timers tick in milliseconds, and what is measured is divided by it.
//!
//! The machines and their figures: two field reports, of 2008 and 2014 (docs/decisions/0014).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BlockVolume, BoxFuture, Durability, Segment};
use bytes::Bytes;
use disk::{Disk, MemDisk, ModelDisk, Profile};
use engine::{
    create::{self, CreateOptions, DeviceFacts, Plan, VdevSpec},
    dsl::{self, NewVolume, Properties, Stored},
    engine::{Ending, Engine, Options},
    open,
    second::Config,
    txg::Limits,
    volume::LiveVolume,
};
use lab::LabError;
use pool::{
    cache::BlockCache,
    import::{self, Sources},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const POOL: &str = "lab";
const VOLUME: &str = "lab/v";

/// A machine, and who uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preset {
    /// Disks for data, and how many make a top-level device.
    pub(crate) disks: (usize, usize),
    /// What a top-level device is: `mirror`, `raidz2`, …
    pub(crate) shape: &'static str,
    /// How fast a disk is.
    pub(crate) disk: Profile,
    /// Bytes of a disk at least.
    pub(crate) disk_bytes: u64,
    /// Sectors are `1 << ashift` bytes.
    pub(crate) ashift: u32,
    /// Cache devices.
    pub(crate) ssds: usize,
    /// How fast one is.
    pub(crate) ssd: Profile,
    /// Bytes that one can hold.
    pub(crate) ssd_bytes: u64,
    /// Bytes for the ARC.
    pub(crate) memory: usize,
    /// Bytes of a volume's block.
    pub(crate) block: u32,
    /// Bytes that clients read from.
    pub(crate) data: u64,
    /// Clients, each with one request at a time.
    pub(crate) clients: usize,
    /// What a client and the network take for each request.
    pub(crate) think: Duration,
}

impl Preset {
    /// The lab server of 2008, a thousandth of it: 120 GB of ARC, 44 disks with 7200 turns in mirrors (9 to 10 ms for a
    /// random read), six SSDs of that year (2600 reads a second at 0.4 to 0.6 ms each, 530 GB together), 20 NFS clients that
    /// read 8 KiB at random from 500 GB.
    #[must_use]
    pub(crate) fn walu() -> Self {
        Self {
            disks: (44, 2),
            shape: "mirror",
            disk: Profile {
                seek: (Duration::from_micros(2000), Duration::from_micros(7500)),
                ..Profile::hdd_7200()
            },
            disk_bytes: 0,
            ashift: 9,
            ssds: 6,
            ssd: Profile {
                lanes: 4,
                latency: Duration::from_micros(360),
                bandwidth: 100_000_000,
                ..Profile::ssd()
            },
            // An eighth more: rounds of writing and bursts are not a thousandth of what they are on a real device, and take
            // so much of a ring this small.
            ssd_bytes: 530_000_000 / 6 * 9 / 8,
            memory: 120_000_000,
            block: 8192,
            data: 500_000_000 / 8192 * 8192,
            clients: 20,
            think: Duration::from_micros(600),
        }
    }

    /// The home lab of 2014, a thousandth of it: 24 GB of memory, six disks with 5400 turns in a RAIDZ2, two SATA SSDs of
    /// 128 GB. Its client is a virtual machine that boots: 16 KiB here and there in an image, and work in between.
    #[must_use]
    pub(crate) fn san2() -> Self {
        Self {
            disks: (6, 6),
            shape: "raidz2",
            disk: Profile::hdd_5400(),
            disk_bytes: 0,
            ashift: 12,
            ssds: 2,
            ssd: Profile::ssd(),
            ssd_bytes: 128_000_000,
            memory: 24_000_000,
            block: 16384,
            data: 256 << 20,
            clients: 1,
            think: Duration::from_micros(2460),
        }
    }
}

impl Preset {
    /// A single device of this kind, one client, and little memory.
    #[must_use]
    pub(crate) fn single(disk: Profile) -> Self {
        Self {
            disks: (1, 1),
            shape: "",
            disk,
            // Large enough that its metaslabs are.
            disk_bytes: 4 << 30,
            memory: 48 << 20,
            data: 192 << 20,
            clients: 1,
            think: Duration::ZERO,
            ..Self::san2()
        }
    }
}

/// The media of a machine, and a pool with a volume on them.
#[derive(Debug)]
pub(crate) struct Rig {
    /// What it is.
    pub(crate) preset: Preset,
    disks: Vec<Arc<MemDisk>>,
    ssds: Vec<Arc<MemDisk>>,
    has_cache: AtomicBool,
    seed: u64,
}

/// A machine that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// The engine.
    pub(crate) engine: Arc<Engine>,
    /// The volume.
    pub(crate) volume: Arc<LiveVolume>,
    /// What it is, and who uses it.
    pub(crate) preset: Preset,
    disks: Vec<Arc<ModelDisk>>,
    /// Everything takes so many times as long.
    factor: u32,
    seed: u64,
}

/// What clients saw. Times are the machine's own, not slowed down.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Run {
    /// Requests a second.
    pub(crate) ops: f64,
    /// Milliseconds that requests took which did not come from memory: the median.
    pub(crate) latency_ms: f64,
    /// Share of the requests that came from memory.
    pub(crate) memory: f64,
    /// From cache devices.
    pub(crate) device: f64,
}

impl Run {
    /// Share of the requests for which no disk had to move.
    #[must_use]
    pub(crate) fn warm(&self) -> f64 {
        self.memory + self.device
    }
}

fn open_error(error: &dyn std::fmt::Display) -> LabError {
    LabError::Open(error.to_string())
}

fn options() -> Options {
    Options {
        limits: Limits { timeout: Duration::from_secs(1 << 30), ..Limits::default() },
        now: || 1_700_000_000,
        clock: || Duration::from_secs(1_700_000_000),
    }
}

/// How the second tier works here: as ever, and small devices remember, too.
fn tier() -> Config {
    Config { persist_min: 0, ..Config::default() }
}

impl Rig {
    /// The machine, and a volume on its disks that is written from end to end.
    ///
    /// # Errors
    /// The pool cannot be made.
    pub(crate) fn build(preset: Preset, seed: u64) -> BoxFuture<'static, Result<Self, LabError>> {
        Box::pin(async move {
            let (count, width) = preset.disks;
            // Room for twice the data.
            let share = 2 * preset.data * width as u64 / count as u64;
            let size = (share + (64 << 20)).max(preset.disk_bytes).next_multiple_of(1 << 20);
            let disk = |n| Arc::new(MemDisk::new(size).named(format!("/lab/d{n}")));
            // Labels and a header come on top of what a cache device holds.
            let ssd = |n| Arc::new(MemDisk::new(preset.ssd_bytes + (5 << 20)).named(format!("/lab/s{n}")));
            let rig = Self {
                preset,
                disks: (0..count).map(disk).collect(),
                ssds: (0..preset.ssds).map(ssd).collect(),
                has_cache: AtomicBool::new(false),
                seed,
            };
            let words: Vec<String> = (0..count)
                .flat_map(|n| {
                    let top = (width > 1 && n.is_multiple_of(width)).then(|| preset.shape.to_owned());
                    top.into_iter().chain([format!("/lab/d{n}")])
                })
                .collect();
            let spec = VdevSpec::parse(&words).map_err(|error| open_error(&error))?;
            let plan = Plan::new(&spec, &vec![facts(size); count], Some(preset.ashift), true)
                .map_err(|error| open_error(&error))?;
            let how = CreateOptions {
                name: POOL.to_owned(),
                features: create::features("").map_err(|error| open_error(&error))?,
                pool_properties: Properties::new(),
                root_properties: Properties::new(),
                hostid: 7,
                hostname: "lab".to_owned(),
                now: 1_700_000_000,
                seed,
                cache: Arc::new(BlockCache::new(16 << 20)),
                workers: 0,
                history: None,
            };
            let disks: Vec<Arc<dyn Disk>> = rig.disks.iter().map(|disk| Arc::clone(disk) as _).collect();
            let syncer = create::create(&plan, &disks, how).await.map_err(|error| open_error(&error))?;
            let engine = Engine::start(syncer, options()).await.map_err(|error| open_error(&error))?;
            let mut properties = Properties::new();
            properties.insert("compression".to_owned(), Stored::Number(2));
            let volume = NewVolume {
                name: VOLUME.to_owned(),
                size: preset.data,
                block: preset.block,
                properties,
                parents: false,
            };
            let made = engine.run(move |cx| Box::pin(async move { dsl::create_volume(cx, &volume).await }));
            made.await.map_err(|error| open_error(&error))?;
            let volume = engine.volume(VOLUME).await.map_err(|error| open_error(&error))?;
            let block = u64::from(preset.block);
            for number in 0..preset.data / block {
                let data = [Segment::Data(content(number, preset.block))].into_iter().collect();
                let written = volume.write(number * block, data, Durability::Cached).await;
                written.map_err(|error| open_error(&error))?;
            }
            drop(volume);
            engine.end(Ending::Close).await.map_err(|error| open_error(&error))?;
            Ok(rig)
        })
    }

    /// Empties the cache devices, as if they were new: their labels stay.
    pub(crate) fn wipe_ssds(&self) {
        const LABELS: u64 = 512 << 10;
        for ssd in &self.ssds {
            let size = ssd.info().size;
            let labels = [0..LABELS, size / (256 << 10) * (256 << 10) - LABELS..size];
            let kept = labels.clone().map(|range| ssd.snapshot(range));
            ssd.resize(0);
            ssd.resize(size);
            for (range, bytes) in labels.into_iter().zip(kept) {
                ssd.restore(range.start, &bytes);
            }
        }
    }

    fn models(&self, media: &[Arc<MemDisk>], profile: Profile, factor: u32) -> Vec<Arc<ModelDisk>> {
        let model = |(media, n): (&Arc<MemDisk>, u64)| {
            let inner = Arc::clone(media) as Arc<dyn Disk>;
            Arc::new(ModelDisk::new(inner, profile.stretched(factor), self.seed ^ n << 32))
        };
        media.iter().zip(1..).map(model).collect()
    }

    /// Switches it on, with nothing in memory. Everything takes `factor` times as long.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub(crate) fn start(&self, factor: u32) -> BoxFuture<'_, Result<Running, LabError>> {
        Box::pin(async move {
            let Preset { disk, ssd, memory, .. } = self.preset;
            let disks = self.models(&self.disks, disk, factor);
            let ssds =
                if self.has_cache.load(Relaxed) { self.models(&self.ssds, ssd, factor) } else { Vec::new() };
            let devices: Vec<_> =
                disks.iter().chain(&ssds).map(|device| Arc::clone(device) as Arc<dyn Disk>).collect();
            let found = import::scan(&Sources::disks(devices)).await;
            let candidate = found.find(POOL).map_err(|error| open_error(&error))?;
            let cache = Arc::new(BlockCache::new(memory));
            let how = import::OpenOptions { force: true, hostid: 7, cache, ..import::OpenOptions::default() };
            let pool = import::open(candidate, &how).await.map_err(|error| open_error(&error))?;
            let how = open::OpenOptions {
                rename: None,
                hostid: 7,
                hostname: "lab".to_owned(),
                now: 1_700_000_000,
                seed: self.seed ^ 0xabcd,
                workers: 0,
            };
            let syncer = open::open(pool, how).await.map_err(|error| open_error(&error))?;
            let engine = Engine::start_caching(syncer, options(), tier()).await;
            let engine = engine.map_err(|error| open_error(&error))?;
            let volume = engine.volume(VOLUME).await.map_err(|error| open_error(&error))?;
            Ok(Running { engine, volume, preset: self.preset, disks, factor, seed: self.seed })
        })
    }

    /// `zpool add cache`: all of them.
    ///
    /// # Errors
    /// They cannot be added.
    pub(crate) fn add_cache<'a>(&'a self, running: &'a Running) -> BoxFuture<'a, Result<(), LabError>> {
        Box::pin(async move {
            let words = (0..self.preset.ssds).map(|n| format!("/lab/s{n}"));
            let words: Vec<String> = std::iter::once("cache".to_owned()).chain(words).collect();
            let spec = VdevSpec::parse(&words).map_err(|error| open_error(&error))?;
            let facts: Vec<_> = self.ssds.iter().map(|ssd| facts(ssd.info().size)).collect();
            let plan = Plan::new(&spec, &facts, None, true).map_err(|error| open_error(&error))?;
            let new = self.models(&self.ssds, self.preset.ssd, running.factor);
            let new: Vec<Arc<dyn Disk>> = new.into_iter().map(|ssd| ssd as Arc<dyn Disk>).collect();
            let added = running.engine.run(move |cx| {
                let (plan, new) = (plan.clone(), new.clone());
                Box::pin(async move { create::add(cx, &plan, &new).await })
            });
            added.await.map_err(|error| open_error(&error))?;
            self.has_cache.store(true, Relaxed);
            Ok(())
        })
    }
}

fn facts(bytes: u64) -> DeviceFacts {
    DeviceFacts { bytes, block_device: false, logical_sector: 512, physical_sector: 512 }
}

/// What block `number` holds.
fn content(number: u64, bytes: u32) -> Bytes {
    let word = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.repeat(bytes as usize / 8).into()
}

impl Running {
    /// Clients that read at random until there were `requests` of them.
    ///
    /// # Errors
    /// A read failed or gave wrong bytes.
    pub(crate) fn read_at_random(&self, requests: u64) -> BoxFuture<'_, Result<Run, LabError>> {
        Box::pin(async move {
            let before = self.counted();
            let begin = Instant::now();
            let left = Arc::new(AtomicU64::new(requests));
            let mut clients = JoinSet::new();
            for client in 0..self.preset.clients {
                let mut random = StdRng::seed_from_u64(self.seed ^ before.0 << 8 ^ client as u64);
                let (volume, left) = (Arc::clone(&self.volume), Arc::clone(&left));
                let Preset { block, data, think, .. } = self.preset;
                let think = think * self.factor;
                clients.spawn(async move {
                    let mut waited = Vec::new();
                    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                        sleep(think).await;
                        let number = random.random_range(0..data / u64::from(block));
                        let begin = Instant::now();
                        read(&volume, number, block).await?;
                        let took = begin.elapsed();
                        if took > Duration::ZERO {
                            waited.push(took);
                        }
                    }
                    Ok::<_, LabError>(waited)
                });
            }
            let mut waited = Vec::new();
            while let Some(client) = clients.join_next().await {
                waited.extend(client.map_err(|error| open_error(&error))??);
            }
            waited.sort_unstable();
            let median = waited.get(waited.len() / 2).copied().unwrap_or_default();
            let took = begin.elapsed().as_secs_f64() / f64::from(self.factor);
            let after = self.counted();
            let from_devices = (after.1 - before.1).min(requests) as f64 / requests as f64;
            let missed = (after.0 - before.0).min(requests) as f64 / requests as f64;
            Ok(Run {
                ops: requests as f64 / took,
                latency_ms: median.as_secs_f64() * 1e3 / f64::from(self.factor),
                memory: 1.0 - missed,
                device: from_devices.min(missed),
            })
        })
    }

    /// One client reads everything in order, `len` bytes at a time, the next when the last has come: bytes a second.
    ///
    /// # Errors
    /// A read failed.
    pub(crate) fn read_in_order(&self, len: usize) -> BoxFuture<'_, Result<f64, LabError>> {
        Box::pin(async move {
            let begin = Instant::now();
            for offset in (0..self.preset.data / len as u64).map(|n| n * len as u64) {
                if self.volume.read_cached(offset, len).is_none() {
                    self.volume.read(offset, len).await.map_err(|error| open_error(&error))?;
                }
            }
            let took = begin.elapsed().as_secs_f64() / f64::from(self.factor);
            Ok((self.preset.data / len as u64 * len as u64) as f64 / took)
        })
    }

    /// A guest boots: it reads `reads` blocks here and there, the same each time, and works in between.
    ///
    /// # Errors
    /// A read failed or gave wrong bytes.
    pub(crate) fn boot(&self, reads: u64) -> BoxFuture<'_, Result<Duration, LabError>> {
        Box::pin(async move {
            let Preset { block, data, think, .. } = self.preset;
            let mut random = StdRng::seed_from_u64(self.seed ^ 0xb007);
            let begin = Instant::now();
            for _ in 0..reads {
                sleep(think * self.factor).await;
                read(&self.volume, random.random_range(0..data / u64::from(block)), block).await?;
            }
            Ok(begin.elapsed() / self.factor)
        })
    }

    /// What the disks were asked for so far: reads, and of those and writes how many moved an arm.
    #[must_use]
    pub(crate) fn moves(&self) -> (u64, u64) {
        let counts = self.disks.iter().map(|disk| disk.counts());
        counts.fold((0, 0), |(reads, seeks), counts| (reads + counts.reads, seeks + counts.seeks))
    }

    /// Data that was not in memory, and what of it came from cache devices.
    fn counted(&self) -> (u64, u64) {
        let view = self.engine.view();
        (view.io().cache().stats().demand_data_misses, self.engine.second().stats().l2_hits)
    }

    /// Switches it off in good order.
    ///
    /// # Errors
    /// The pool cannot be closed.
    pub(crate) fn stop(self) -> BoxFuture<'static, Result<(), LabError>> {
        Box::pin(async move { self.engine.end(Ending::Close).await.map_err(|error| open_error(&error)) })
    }
}

async fn read(volume: &LiveVolume, number: u64, block: u32) -> Result<(), LabError> {
    let (offset, len) = (number * u64::from(block), block as usize);
    let segments = match volume.read_cached(offset, len) {
        Some(segments) => segments,
        None => volume.read(offset, len).await.map_err(|error| open_error(&error))?,
    };
    match &segments[..] {
        [Segment::Data(data)] if *data == content(number, block) => Ok(()),
        _ => Err(LabError::Open(format!("block {number} is not what was written"))),
    }
}
