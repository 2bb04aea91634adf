//! The command line: one table of subcommands and options, from which help texts and usage errors come.
//!
//! The grammar of `zpool` and `zfs` is OpenZFS's, because scripts and fingers know it. `millpond zpool …`
//! and a link named `zpool` take the same words; so do `millpond zfs …` and a link named `zfs`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

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
    about = "Look at storage pools",
    max_term_width = 110,
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
    about = "Look at datasets",
    max_term_width = 110,
    arg_required_else_help = true
)]
pub(crate) struct ZfsProgram {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Zfs,
}

/// Where pools are looked for, and who is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// Look for pools in this directory, device or image file (repeatable; before the subcommand).
    /// Without it: the pools remembered by `zpool import`, then ZPOOL_IMPORT_PATH, then block devices
    #[arg(short = 'd', value_name = "DIR|DEVICE")]
    pub(crate) search: Vec<PathBuf>,
    /// Where imported pools are remembered
    #[arg(long, value_name = "DIR", env = "MILLPOND_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Control socket of a running daemon
    #[arg(long, value_name = "PATH", env = "MILLPOND_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
}

/// What `millpond` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Storage pools: import, status, list, get
    #[command(subcommand, arg_required_else_help = true)]
    Zpool(Zpool),
    /// Datasets, volumes and snapshots: list, get
    #[command(subcommand, arg_required_else_help = true)]
    Zfs(Zfs),
    /// Serve every volume and volume snapshot over NBD and iSCSI, until SIGTERM or SIGINT
    Serve(Serve),
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
}

/// Subcommands of `zpool`.
#[derive(Debug, Subcommand)]
pub(crate) enum Zpool {
    /// List pools that can be imported, or remember one
    Import(ZpoolImport),
    /// Forget an imported pool
    Export(ZpoolExport),
    /// Show the health of pools and their devices
    Status(ZpoolStatus),
    /// Show pools with their size, use and health
    List(ZpoolList),
    /// Show properties of pools
    Get(ZpoolGet),
}

/// Subcommands of `zfs`.
#[derive(Debug, Subcommand)]
pub(crate) enum Zfs {
    /// Show datasets with their space
    List(ZfsList),
    /// Show properties of datasets
    Get(ZfsGet),
}

/// Going back to an earlier state of the pool.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Rewind {
    /// Open the pool as it was at this transaction group or the newest before it
    #[arg(short = 'T', value_name = "TXG")]
    pub(crate) txg: Option<u64>,
    /// If the newest state cannot be opened, go back to the newest that can, and say how far
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

/// `zpool import`
#[derive(Debug, Args)]
pub(crate) struct ZpoolImport {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// Import all pools found
    #[arg(short = 'a')]
    pub(crate) all: bool,
    /// Import although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Do not mount file systems (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'N')]
    pub(crate) no_mount: bool,
    /// Alternate root for mount points (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'R', value_name = "ROOT")]
    pub(crate) altroot: Option<PathBuf>,
    /// Search devices in place of a cache file (always so: accepted for scripts)
    #[arg(short = 's')]
    pub(crate) search_devices: bool,
    /// With -F: only say whether it would work
    #[arg(short = 'n', requires = "recover")]
    pub(crate) dry_run: bool,
    /// Also list destroyed pools
    #[arg(short = 'D')]
    pub(crate) destroyed: bool,
    /// Import without log devices that are missing
    #[arg(short = 'm')]
    pub(crate) missing_log: bool,
    /// Pool property for this import; only readonly=on is known
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pool name or guid; without it, list what can be imported
    pub(crate) pool: Option<String>,
}

/// `zpool export`
#[derive(Debug, Args)]
pub(crate) struct ZpoolExport {
    /// Pools to forget
    #[arg(required = true)]
    pub(crate) pools: Vec<String>,
}

/// How device names are shown.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct DeviceNames {
    /// Guids in place of device names
    #[arg(short = 'g')]
    pub(crate) guids: bool,
    /// Follow symbolic links
    #[arg(short = 'L')]
    pub(crate) follow: bool,
    /// Full paths
    #[arg(short = 'P')]
    pub(crate) full: bool,
}

/// `zpool status`
#[derive(Debug, Args)]
pub(crate) struct ZpoolStatus {
    /// List every file or object with an error
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Only pools with a problem
    #[arg(short = 'x')]
    pub(crate) unhealthy: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) names: DeviceNames,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool list`
#[derive(Debug, Args)]
pub(crate) struct ZpoolList {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes, not 1.21T
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// The devices of each pool too
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) names: DeviceNames,
    /// Properties to show
    #[arg(short = 'o', value_name = "PROPERTY,…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool get`
#[derive(Debug, Args)]
pub(crate) struct ZpoolGet {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes, not 1.21T
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Fields to show: name, property, value, source
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// `all`, or property names
    #[arg(value_name = "all|PROPERTY,…")]
    pub(crate) properties: String,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zfs list`
#[derive(Debug, Args)]
pub(crate) struct ZfsList {
    /// Children too, at any depth
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Children too, down to this depth
    #[arg(short = 'd', value_name = "DEPTH")]
    pub(crate) depth: Option<usize>,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes, not 1.21T
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Properties to show; `space` is a set of them
    #[arg(short = 'o', value_name = "PROPERTY,…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Sort by this property, ascending (repeatable)
    #[arg(short = 's', value_name = "PROPERTY")]
    pub(crate) ascending: Vec<String>,
    /// Sort by this property, descending (repeatable)
    #[arg(short = 'S', value_name = "PROPERTY")]
    pub(crate) descending: Vec<String>,
    /// filesystem, volume, snapshot, bookmark, all (fs, vol and snap for short)
    #[arg(short = 't', value_name = "TYPE,…", value_delimiter = ',')]
    pub(crate) types: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Datasets; all if none is named
    pub(crate) datasets: Vec<String>,
}

/// `zfs get`
#[derive(Debug, Args)]
pub(crate) struct ZfsGet {
    /// Children too, at any depth
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Children too, down to this depth
    #[arg(short = 'd', value_name = "DEPTH")]
    pub(crate) depth: Option<usize>,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes, not 1.21T
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Fields to show: name, property, value, received, source, all
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Only values from these sources: local, default, inherited, received, temporary, none
    #[arg(short = 's', value_name = "SOURCE,…", value_delimiter = ',')]
    pub(crate) sources: Vec<String>,
    /// filesystem, volume, snapshot, bookmark, all (fs, vol and snap for short)
    #[arg(short = 't', value_name = "TYPE,…", value_delimiter = ',')]
    pub(crate) types: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// `all`, or property names
    #[arg(value_name = "all|PROPERTY,…")]
    pub(crate) properties: String,
    /// Datasets; all if none is named
    pub(crate) datasets: Vec<String>,
}

/// `millpond serve`
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) rewind: Rewind,
    /// NBD on this address; none if only --iscsi is given
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:10809")]
    pub(crate) nbd: Vec<String>,
    /// iSCSI portal on this address (repeatable); none if only --nbd is given
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:3260")]
    pub(crate) iscsi: Vec<String>,
    /// Open although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Print what is served as JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools by name or guid; all that are found if none is named
    pub(crate) pools: Vec<String>,
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
    /// Open although another host seems to have the pool
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// File to write; `-` for standard output
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
