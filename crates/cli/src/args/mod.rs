//! The command line: one table of subcommands and options, from which help texts and usage errors come.
//!
//! The grammar of `zpool` and `zfs` is OpenZFS's, because scripts and fingers know it. `millpond zpool …`
//! and a link named `zpool` take the same words; so do `millpond zfs …` and a link named `zfs`, and the other programs. As with
//! `getopt` an option may be given again (`-vvv`, and of `-d 1 -d 2` the last counts): wrappers add theirs to what their caller
//! gave.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use server::{budget::limit::Wish, pool::cache::Replacement};

mod alert;
pub(crate) mod anywhere;
mod drives;
pub(crate) mod lacking;
mod share;
mod sort;
mod zfs;
mod zpool;

pub(crate) use self::{alert::*, drives::*, share::*, zfs::*, zpool::*};

/// The hybrid storage pool in user space: OpenZFS pools, no kernel module, served over iSCSI and NBD
#[derive(Debug, Parser)]
#[command(name = "millpond", version, max_term_width = 110, arg_required_else_help = true)]
pub(crate) struct Millpond {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// `zpool`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "zpool",
    version,
    about = "Create, change and look at storage pools",
    max_term_width = 110,
    args_override_self = true,
    arg_required_else_help = true
)]
pub(crate) struct ZpoolProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Zpool,
}

/// `zfs`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "zfs",
    version,
    about = "Create, change and look at datasets",
    max_term_width = 110,
    args_override_self = true,
    arg_required_else_help = true
)]
pub(crate) struct ZfsProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Zfs,
}

/// `stmfadm`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "stmfadm",
    version,
    about = "Logical units and their LUNs, as COMSTAR's program of this name has them",
    max_term_width = 110,
    args_override_self = true,
    arg_required_else_help = true
)]
pub(crate) struct StmfadmProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Stmfadm,
}

/// `sbdadm`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "sbdadm",
    version,
    about = "Logical units, as COMSTAR's program of this name has them",
    max_term_width = 110,
    args_override_self = true,
    arg_required_else_help = true
)]
pub(crate) struct SbdadmProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Sbdadm,
}

/// `arcstat`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "arcstat",
    version,
    about = "What the cache does, in the columns of OpenZFS's program of this name",
    max_term_width = 110,
    args_override_self = true,
    after_help = crate::arcstat::HELP
)]
pub(crate) struct ArcstatProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(flatten)]
    pub(crate) args: Arcstat,
}

/// `arc_summary`, as a program of its own
#[derive(Debug, Parser)]
#[command(
    name = "arc_summary",
    version,
    about = "The cache on one page, as OpenZFS's program of this name has it",
    max_term_width = 110,
    args_override_self = true
)]
pub(crate) struct ArcSummaryProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(flatten)]
    pub(crate) args: ArcSummary,
}

/// Where pools are looked for, and who is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// Look for pools in this directory, device or image file (repeatable; before the subcommand).
    /// Without it: the pools remembered by `zpool import`, then ZPOOL_IMPORT_PATH, then block devices
    #[arg(short = 'd', value_name = "DIR|DEVICE")]
    pub(crate) search: Vec<PathBuf>,
    /// Where imported pools are remembered (anywhere in the line)
    #[arg(long, value_name = "DIR", env = "MILLPOND_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Control socket of a running daemon (anywhere in the line)
    #[arg(long, value_name = "PATH", env = "MILLPOND_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
}

/// Of the subcommands that are programs of their own, where these are among the options.
const WHERE: &str = "Where pools are looked for, and who is asked: -d before this word, --state and --socket anywhere; see 'millpond -h'.";

/// What `millpond` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Storage pools: create, import, status, add, export, …
    #[command(subcommand, args_override_self = true, arg_required_else_help = true, after_help = WHERE)]
    Zpool(Zpool),
    /// Datasets, volumes and snapshots: create, set, snapshot, list, …
    #[command(subcommand, args_override_self = true, arg_required_else_help = true, after_help = WHERE)]
    Zfs(Zfs),
    /// How pools and their devices are (`zpool status`), and who holds the daemon's memory
    Status(ZpoolStatus),
    /// Serve every volume (read-write) and volume snapshot over NBD and iSCSI, until SIGTERM or SIGINT
    Serve(Serve),
    /// Who is offered what: targets, LUNs, portals, access, CHAP
    #[command(arg_required_else_help = true)]
    Share(Share),
    /// Who is connected, by which path, and what they do with which disk
    Initiators(Initiators),
    /// COMSTAR's program, for Proxmox's "ZFS over iSCSI"; also by a link of this name
    #[command(subcommand, args_override_self = true, arg_required_else_help = true)]
    Stmfadm(Stmfadm),
    /// COMSTAR's program, likewise
    #[command(subcommand, args_override_self = true, arg_required_else_help = true)]
    Sbdadm(Sbdadm),
    /// Who asked for stable writes, what the intent log did, would a log device help
    Zilstat(Zilstat),
    /// How the ARC does: hits, misses, sizes, once or every few seconds
    Arcstat(Arcstat),
    /// The ARC on one page: sizes, hits and misses by kind, read-ahead, cache devices
    ArcSummary(ArcSummary),
    /// What more memory or a cache device would be worth, by what was used lately
    Advise(Advise),
    /// Read again what was in memory and on cache devices before a restart
    Prewarm(PrewarmArgs),
    /// The daemon's memory: its limit, who holds how much, what is shed and why
    Memory(MemoryArgs),
    /// Who is told when something is wrong, and what is wrong now
    Alert(Alert),
    /// Read and verify every allocated block of a pool, and say what is wrong and where
    Verify(Verify),
    /// Write a volume or volume snapshot as a sparse raw image
    Image(Image),
    /// List a directory of a file system or snapshot
    Ls(Ls),
    /// Write a file of a file system or snapshot to standard output
    Cat(Cat),
    /// Copy a file or directory out of a file system or snapshot
    Get(Get),
    /// Show a pool's structures as they are on disk
    Dump(Dump),
    /// Run the cache's replacement policies over a block trace
    Cachesim(Cachesim),
    /// Measure how fast the engine is on this machine
    Bench(crate::bench::Bench),
    /// Rehearse failures on a simulated machine or a copy of a pool, and print a report card
    Drill(crate::drill::DrillArgs),
    /// Show which version this is
    Version(Version),
}

/// Going back to an earlier state of the pool.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Rewind {
    /// Open the pool as it was at this transaction group or the newest before it
    #[arg(short = 'T', value_name = "TXG")]
    pub(crate) txg: Option<u64>,
    /// If the newest state cannot be opened, go back to the newest that can, which is only read then, and say how far
    #[arg(short = 'F')]
    pub(crate) recover: bool,
}

/// Search directories after the subcommand, where OpenZFS gives `-d` no other meaning.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Search {
    /// Look for pools in this directory, device or image file (repeatable)
    #[arg(short = 'd', id = "search_here", value_name = "DIR|DEVICE")]
    pub(crate) search: Vec<PathBuf>,
}

/// Whether TLS is one way in or the only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TlsMode {
    /// Clients that ask for it have it
    On,
    /// Nobody is served without
    Require,
}

/// `millpond serve`
#[derive(Debug, Args)]
#[command(after_help = "\
What happens goes to standard error, by default warnings, and what an operator wants to know of memory, alerts, \
cache devices and intent logs. MILLPOND_LOG says otherwise, by module (iscsi, nbd, engine, pool, server, \
millpond::memory, millpond::alert):

  MILLPOND_LOG=info                    who connects, devices that come and go
  MILLPOND_LOG=warn,iscsi=debug        one part in detail")]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// NBD on this address, or on the Unix socket unix:PATH (repeatable); none if only --iscsi is given. Sockets that
    /// systemd opened for it (socket activation) are used as well
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:10809")]
    pub(crate) nbd: Vec<String>,
    /// TLS for NBD: server-cert.pem, server-key.pem and ca-cert.pem in this directory, as for qemu-nbd and nbdkit
    #[arg(long, value_name = "DIR", group = "nbd_tls_proof")]
    pub(crate) nbd_tls_certificates: Option<PathBuf>,
    /// TLS for NBD with keys agreed on beforehand instead: lines USER:HEXKEY in this file, as for qemu-nbd and nbdkit
    #[arg(long, value_name = "FILE", group = "nbd_tls_proof")]
    pub(crate) nbd_tls_psk: Option<PathBuf>,
    /// Whether NBD clients may do without
    #[arg(
        long,
        value_name = "on|require",
        default_value = "require",
        requires = "nbd_tls_proof",
        hide_possible_values = true
    )]
    pub(crate) nbd_tls: TlsMode,
    /// NBD clients need a certificate of the authority in ca-cert.pem
    #[arg(long, requires = "nbd_tls_certificates")]
    pub(crate) nbd_tls_verify_peer: bool,
    /// iSCSI portal on this address (repeatable); none if only --nbd is given
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:3260")]
    pub(crate) iscsi: Vec<String>,
    /// What decides which blocks stay in memory: `default`, which chooses its rules by what it sees, or `arc`
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = arc_policy)]
    pub(crate) arc_policy: Replacement,
    /// How cache devices are used, by OpenZFS's names (repeatable): l2arc_dwpd_limit, l2arc_write_max,
    /// l2arc_write_boost, l2arc_mfuonly, l2arc_noprefetch, l2arc_trim_ahead, l2arc_rebuild_enabled,
    /// l2arc_rebuild_blocks_min_l2size
    #[arg(long = "l2arc", value_name = "NAME=VALUE")]
    pub(crate) l2arc: Vec<String>,
    /// Memory of the whole daemon: a size, or a share of what there is. By default what its cgroup allows, or three
    /// quarters of the machine's
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub(crate) memory_limit: Option<Wish>,
    /// Of that, the cache at most; it has what the rest leaves
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) arc_max: Option<u64>,
    /// Never write to a device: volumes are served read-only
    #[arg(long)]
    pub(crate) readonly: bool,
    /// Open although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Who is told of alerts (default: alerts.json in the state directory; see 'millpond alert')
    #[arg(long, value_name = "FILE")]
    pub(crate) alerts: Option<PathBuf>,
    /// Print what is served as JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools by name or guid; if none is named, those that are imported, or all where -d says
    pub(crate) pools: Vec<String>,
}

/// `millpond zilstat`
#[derive(Debug, Args)]
#[command(after_help = "\
Without INTERVAL: totals since each volume was opened, and one sentence about each.
With INTERVAL: what happens per second, every INTERVAL seconds, COUNT times or until interrupted.

  FUA FLUSH           requests for stability: with the command itself, flushes
  NOCACHE ALWAYS      writes with the client's write cache off, under sync=always
  IGNORED             of those: acknowledged, not durable (sync=disabled)
  COMMITS WRITES C/W  commits by the log, log writes, commits that share one
  DATA LOG            bytes of clients in the log's records, of log blocks
  P50 P99             from a request to its acknowledgement
  QUEUE50 QUEUE99     of that, until its records were on their way
  DEV50 DEV99         of that, devices with their flush
  WHERE               devices that took the log blocks: log devices, or others
  WAITED              commits that waited for their transaction group, and why")]
pub(crate) struct Zilstat {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes and nanoseconds
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// How long commits took, as a histogram
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Volumes, or pools for all of theirs; everything if none is named. Then seconds, and how often
    #[arg(value_name = "VOLUME|POOL… [INTERVAL [COUNT]]")]
    pub(crate) words: Vec<String>,
}

/// A policy of the ARC by its name.
pub(crate) fn arc_policy(name: &str) -> Result<Replacement, &'static str> {
    Replacement::named(name).ok_or("the policies are default and arc")
}

/// Blocks of a cache that is simulated. No trace has more, and policies reckon with multiples of it, and in bytes.
fn blocks(text: &str) -> Result<u64, String> {
    const MOST: u64 = 1 << 40;
    match text.parse() {
        Ok(0) => Err("0 blocks hold nothing".to_owned()),
        Ok(blocks) if blocks <= MOST => Ok(blocks),
        Ok(_) => Err(format!("a cache has {MOST} blocks at most")),
        Err(error) => Err(format!("{error}")),
    }
}

/// A size in bytes.
fn size(text: &str) -> Result<u64, String> {
    match text.parse()? {
        Wish::Bytes(bytes) => Ok(bytes),
        Wish::Percent(_) => Err("give a size, not a share".to_owned()),
    }
}

/// `millpond memory`
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
}

/// `millpond arcstat`
#[derive(Debug, Args)]
#[command(after_help = crate::arcstat::HELP)]
pub(crate) struct Arcstat {
    /// Only say which columns there are
    #[arg(short = 'v', conflicts_with = "json")]
    pub(crate) list: bool,
    /// All columns
    #[arg(short = 'a', conflicts_with_all = ["extended", "streams", "fields"])]
    pub(crate) all: bool,
    /// The columns of what the lists do
    #[arg(short = 'x', conflicts_with_all = ["streams", "fields"])]
    pub(crate) extended: bool,
    /// The columns of reading ahead
    #[arg(short = 'z', conflicts_with = "fields")]
    pub(crate) streams: bool,
    /// These columns
    #[arg(short = 'f', value_name = "COLUMN,…", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// This between columns, in place of two spaces
    #[arg(short = 's', value_name = "TEXT", conflicts_with_all = ["scripted", "json"])]
    pub(crate) separator: Option<String>,
    /// Into this file, not to standard output
    #[arg(short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// JSON, one object a line; all columns unless some are named
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Seconds between reports, and how many
    #[arg(value_name = "INTERVAL [COUNT]")]
    pub(crate) words: Vec<String>,
}

/// `millpond arc-summary`
#[derive(Debug, Args)]
pub(crate) struct ArcSummary {
    /// JSON: every number by its name
    #[arg(short = 'j', long = "json", conflicts_with_all = ["raw", "section"])]
    pub(crate) json: bool,
    /// Every number by its name, a line each
    #[arg(short = 'r', long = "raw", conflicts_with = "section")]
    pub(crate) raw: bool,
    /// Only this section
    #[arg(short = 's', long = "section", value_name = "SECTION")]
    pub(crate) section: Option<ArcSection>,
}

/// A section of the page, as `arc_summary` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArcSection {
    /// Sizes, and what is in memory
    Arc,
    /// Hits and misses
    Archits,
    /// Cache devices
    L2arc,
}

/// `millpond advise`
#[derive(Debug, Args)]
#[command(after_help = "\
Hit ratios are of data that somebody asked for, in memory or, with an SSD, in either. What would happen with other \
sizes is found out by miniature caches that follow a sample of what is really used; what is said of them may be off \
by the points behind '±'. What was used long ago counts less and less.")]
pub(crate) struct Advise {
    /// The whole curve as a table, and what plain LRU would do
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools or volumes; everything if none is named
    #[arg(value_name = "POOL|VOLUME")]
    pub(crate) names: Vec<String>,
}

/// `millpond prewarm`
#[derive(Debug, Args)]
#[command(after_help = "\
A daemon remembers what is warm every five minutes and when it stops, and reads it again when it starts, in the \
order of the devices and in the pauses of clients. This begins it by hand (after a cache device was replaced, say), \
or shows how far it is.")]
pub(crate) struct PrewarmArgs {
    /// Wait until it is over
    #[arg(short = 'w')]
    pub(crate) wait: bool,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// End it where it is
    #[arg(long, conflicts_with = "wait")]
    pub(crate) stop: bool,
    /// Pool by name or guid; all if none is named
    pub(crate) pool: Option<String>,
}

/// `millpond verify`
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// Open although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pool name or guid
    pub(crate) pool: String,
}

/// `millpond image`
#[derive(Debug, Args)]
pub(crate) struct Image {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// Open although another host seems to have the pool, and replace a file that exists
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// File to write, or block device to fill, but never a device of a pool; `-` for standard output
    #[arg(short = 'o', value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Volume or volume snapshot, for example tank/vm1@monday
    #[arg(value_name = "POOL/VOLUME[@SNAPSHOT]")]
    pub(crate) volume: String,
}

/// `millpond ls`
#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) search: Search,
    /// Mode, links, owner, size and time of each entry
    #[arg(short = 'l')]
    pub(crate) long: bool,
    /// Whole tree
    #[arg(short = 'R')]
    pub(crate) recursive: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// File system or snapshot
    #[arg(value_name = "POOL/FS[@SNAPSHOT]")]
    pub(crate) dataset: String,
    /// Path below its root
    #[arg(default_value = "/")]
    pub(crate) path: String,
}

/// `millpond cat`
#[derive(Debug, Args)]
pub(crate) struct Cat {
    #[command(flatten)]
    pub(crate) search: Search,
    /// File system or snapshot
    #[arg(value_name = "POOL/FS[@SNAPSHOT]")]
    pub(crate) dataset: String,
    /// File
    pub(crate) path: String,
}

/// `millpond get`
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) search: Search,
    /// Where to put it (default: the same name in the working directory)
    #[arg(short = 'o', value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// File system or snapshot
    #[arg(value_name = "POOL/FS[@SNAPSHOT]")]
    pub(crate) dataset: String,
    /// File or directory
    pub(crate) path: String,
}

/// `millpond dump`
#[derive(Debug, Args)]
#[command(after_help = "Without a letter: -C -u and the list of datasets, as zdb does.")]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// Open although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// The pool's configuration
    #[arg(short = 'C')]
    pub(crate) config: bool,
    /// The labels of a device: give its path in place of a pool
    #[arg(short = 'l')]
    pub(crate) labels: bool,
    /// The uberblock in use; twice: every valid one
    #[arg(short = 'u', action = clap::ArgAction::Count)]
    pub(crate) uberblock: u8,
    /// Datasets (-D), their objects (-DD), each with its blocks (-DDD)
    #[arg(short = 'D', action = clap::ArgAction::Count)]
    pub(crate) datasets: u8,
    /// Metaslabs and their space maps
    #[arg(short = 'm', action = clap::ArgAction::Count)]
    pub(crate) metaslabs: u8,
    /// Intent logs
    #[arg(short = 'i')]
    pub(crate) intent_logs: bool,
    /// Pool history
    #[arg(short = 'H')]
    pub(crate) history: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pool, dataset, or device with -l
    pub(crate) target: String,
    /// Objects to show
    pub(crate) objects: Vec<u64>,
}

/// `millpond cachesim`
#[derive(Debug, Args)]
#[command(after_help = "\
A trace is text, zstd-compressed or not: the line 'time_us,op,offset,length', then one request a line; op is R or W, \
offset and length are bytes. A request touches every block of 4 KiB it overlaps; reads and writes both look up, and \
both bring in what is missing. The cache starts empty. The footprint is the number of distinct blocks.

  lru fifo  as named
  arc       as published (Megiddo and Modha, 2003)
  default   what this software uses: of eight rule sets, the one that is best
            now, as miniature caches show")]
pub(crate) struct Cachesim {
    /// Policy (repeatable, or several with commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["lru", "arc", "default"])]
    pub(crate) policy: Vec<String>,
    /// Blocks of 4 KiB the cache holds (repeatable, or several with commas)
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', value_parser = blocks)]
    pub(crate) size: Vec<u64>,
    /// The same in thousandths of the footprint. Without either: 1,3,10,30,100,200,400
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) permille: Vec<u64>,
    /// A cache device of so many blocks below the cache, which gets what that evicts: what it takes and keeps follows the
    /// product's rules (repeatable, or several with commas)
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', value_parser = blocks)]
    pub(crate) l2: Vec<u64>,
    /// The same in thousandths of the footprint
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) l2_permille: Vec<u64>,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Trace: CSV, or CSV compressed with zstd
    #[arg(value_name = "TRACE.csv[.zst]")]
    pub(crate) trace: PathBuf,
}
