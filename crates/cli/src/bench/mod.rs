//! `millpond bench`: how fast the engine is, measured through the interface the targets use.
//!
//! A pool on files in a directory, a volume in it, and one test after the other, each of which prints one JSON
//! object. [`pool`] makes the pool, [`load`] is what the clients do, [`payload`] the bytes they write,
//! [`measure`] the clocks and counters.

mod load;
mod measure;
mod payload;
mod pool;

use std::{path::PathBuf, process::ExitCode, str::FromStr};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use server::pool::{cache::Replacement, props::parse};

use self::{
    load::{Kind, Load},
    measure::{Counters, Meter},
    payload::Pool as Payload,
    pool::Bed,
};
use crate::context::{Usage, print};

/// `millpond bench`
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a pool on files, load a volume in it, and print one JSON object per test
    Engine(Engine),
}

/// `millpond bench engine`
#[derive(Debug, Args)]
struct Engine {
    /// Directory for the files of the pool
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How the files are arranged
    #[arg(long, value_enum, default_value_t = Layout::Single)]
    layout: Layout,
    /// Files in a RAIDZ
    #[arg(long, default_value_t = 6, value_name = "N")]
    width: usize,
    /// Add a log device: what must be durable at once goes there
    #[arg(long)]
    log: bool,
    /// Add a cache device, fed as by a daemon with its default settings
    #[arg(long)]
    cache: bool,
    /// Size of each file, sparse
    #[arg(long, default_value = "4g", value_name = "SIZE")]
    vdev_size: Size,
    /// Size of the volume
    #[arg(long, default_value = "1g", value_name = "SIZE")]
    vol: Size,
    /// Block size of the volume
    #[arg(long, default_value = "8k", value_name = "SIZE")]
    vbs: Size,
    /// Compression of the volume: off, lz4, zstd, gzip-1, …
    #[arg(long, default_value = "off", value_name = "NAME")]
    compress: String,
    /// Checksum of the volume: on, off, sha256, blake3, …
    #[arg(long, default_value = "on", value_name = "NAME")]
    checksum: String,
    /// When writes are durable: standard, always, disabled
    #[arg(long, default_value = "standard", value_name = "NAME")]
    sync: String,
    /// Memory for cached blocks
    #[arg(long, default_value = "4g", value_name = "SIZE")]
    arc_max: Size,
    /// What decides which blocks stay there: default or arc
    #[arg(long, default_value = "default", value_name = "NAME", value_parser = crate::args::arc_policy)]
    arc_policy: Replacement,
    /// Clients of tests that do not name a number
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Seconds of a test that has no other end
    #[arg(long, default_value_t = 4.0, value_name = "SECONDS")]
    secs: f64,
    /// Size of one read or write; where a volume is gone through in order, its block size if that is larger
    #[arg(long, default_value = "8k", value_name = "SIZE")]
    io: Size,
    /// What is written: half compressible rows of text, random bytes, or the same line over and over
    #[arg(long, value_enum, default_value_t = Data::Text)]
    data: Data,
    /// log2 of the sector of the pool's devices
    #[arg(long, default_value_t = 12, value_name = "N")]
    ashift: u32,
    /// A name to find these results by
    #[arg(long, default_value = "", value_name = "NAME")]
    tag: String,
    /// Leave the pool behind, exported; without it the files are removed
    #[arg(long)]
    keep: bool,
    /// What to do, in order: fill, read, overwrite, sync, seqread, each with `:CLIENTS` if need be
    #[arg(long, value_delimiter = ',', required = true, value_name = "TEST,…")]
    tests: Vec<Test>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layout {
    Single,
    Mirror,
    Raidz1,
    Raidz2,
    Raidz3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    Text,
    Random,
    Repeat,
}

/// Bytes as typed: `8k`, `1g`.
#[derive(Clone, Copy, Debug)]
struct Size(u64);

impl FromStr for Size {
    type Err = parse::ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::number(text).map(Self)
    }
}

/// One test and its number of clients, if it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    kind: Kind,
    clients: Option<usize>,
}

impl FromStr for Test {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, clients) = match text.split_once(':') {
            Some((name, clients)) => (name, Some(clients)),
            None => (text, None),
        };
        let kind = Kind::of(name).ok_or("tests are fill, read, overwrite, sync and seqread")?;
        let clients = clients.map(|clients| match clients.parse() {
            Ok(clients @ 1..=4096) => Ok(clients),
            _ => Err("the number of clients is one of 1 to 4096"),
        });
        Ok(Self { kind, clients: clients.transpose()? })
    }
}

pub(crate) async fn run(args: Bench) -> anyhow::Result<ExitCode> {
    let Command::Engine(args) = args.command;
    check(&args)?;
    let counters = Counters::default();
    let bed = Box::pin(Bed::make(&args, &counters)).await?;
    let outcome = Box::pin(run_tests(&args, &bed, &counters)).await;
    bed.leave(args.keep, outcome.is_ok()).await?;
    outcome.map(|()| ExitCode::SUCCESS)
}

/// What can be known to be wrong before a file is made.
fn check(args: &Engine) -> Result<(), Usage> {
    let wrong = |text: &str| Err(Usage(format!("millpond bench engine: {text}")));
    let (io, vol) = (args.io.0, args.vol.0);
    if io == 0 || io > 64 << 20 {
        return wrong("--io is between 1 byte and 64M");
    }
    if vol < io.max(args.vbs.0) || args.vbs.0 == 0 || !vol.is_multiple_of(args.vbs.0) {
        return wrong("--vol is a multiple of --vbs and holds at least one --io");
    }
    if !(args.secs > 0.0 && args.secs <= 86_400.0) {
        return wrong("--secs is between 0 and a day");
    }
    if !(1..=4096).contains(&args.threads) {
        return wrong("--threads is between 1 and 4096");
    }
    Ok(())
}

async fn run_tests(args: &Engine, bed: &Bed, counters: &Counters) -> anyhow::Result<()> {
    let payload = match args.data {
        Data::Text => Payload::text(),
        Data::Random => Payload::random(),
        Data::Repeat => Payload::repeat(),
    };
    let volume = bed.engine.volume(pool::VOLUME).await?;
    // What went before, the making of the pool included, is on the devices and not this test's.
    let settle = || async { bed.engine.sync().await.map_err(anyhow::Error::from) };
    for (number, test) in args.tests.iter().enumerate() {
        settle().await?;
        // What goes through the volume in order does it in whole blocks at least.
        let io = if test.kind.is_in_order() { args.io.0.max(args.vbs.0) } else { args.io.0 };
        let load = Load {
            volume: volume.clone(),
            payload: payload.clone(),
            kind: test.kind,
            io,
            size: args.vol.0,
            clients: if test.kind == Kind::SeqRead { 1 } else { test.clients.unwrap_or(args.threads) },
            secs: args.secs,
            seed: number as u64 + 1,
        };
        let meter = Meter::start(counters);
        let latencies = load.run().await?;
        if test.kind.writes() {
            settle().await?;
        }
        let used = meter.stop(counters);
        let ops = latencies.count();
        let bytes = (ops * io).max(1) as f64;
        let each = ops.max(1) as f64;
        let line = json!({
            "tag": args.tag,
            "test": test.kind.name(),
            "layout": args.layout.to_possible_value().map(|value| value.get_name().to_owned()),
            "compress": args.compress,
            "vbs": args.vbs.0,
            "io": io,
            "threads": load.clients,
            "ops": ops,
            "secs": round(used.seconds, 6),
            "iops": round(ops as f64 / used.seconds, 1),
            "mbps": round(bytes / used.seconds / 1e6, 2),
            "p50_us": round(latencies.percentile(50.0), 2),
            "p99_us": round(latencies.percentile(99.0), 2),
            "cpu_us_op": round(used.cpu_seconds * 1e6 / each, 3),
            "written_per_payload": round(used.written as f64 / bytes, 4),
            "read_per_payload": round(used.read as f64 / bytes, 4),
            "rss_mb": round(measure::resident_bytes() as f64 / 1e6, 1),
        });
        print(&format!("{line}\n"))?;
    }
    Ok(())
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
