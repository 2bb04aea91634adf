//! Subcommands of `zpool` and their options.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{
    Rewind, Search, ZpoolAttach, ZpoolClear, ZpoolDetach, ZpoolInitialize, ZpoolOffline, ZpoolOnline,
    ZpoolReopen, ZpoolReplace, ZpoolResilver, ZpoolScrub, ZpoolTrim, ZpoolWait,
};

/// Subcommands of `zpool`.
#[derive(Debug, Subcommand)]
pub(crate) enum Zpool {
    /// Create a pool
    Create(ZpoolCreate),
    /// Destroy a pool
    Destroy(ZpoolDestroy),
    /// Add devices to a pool
    Add(ZpoolAdd),
    /// Remove log, cache and spare devices from a pool
    Remove(ZpoolRemove),
    /// List pools that can be imported, or import one
    Import(ZpoolImport),
    /// Close a pool for good, so that any host may import it
    Export(ZpoolExport),
    /// Take devices offline
    Offline(ZpoolOffline),
    /// Take devices into use again
    Online(ZpoolOnline),
    /// Make a device another side of a mirror
    Attach(ZpoolAttach),
    /// Take a side of a mirror out of the pool
    Detach(ZpoolDetach),
    /// Let a device take another's place
    Replace(ZpoolReplace),
    /// Forget errors of devices, and let a suspended pool go on
    Clear(ZpoolClear),
    /// Look at every device now
    Reopen(ZpoolReopen),
    /// Read everything, verify it, and repair what is wrong
    Scrub(ZpoolScrub),
    /// Begin anew to bring devices up to date
    Resilver(ZpoolResilver),
    /// Write over the free space of devices, once
    Initialize(ZpoolInitialize),
    /// Tell devices which space is free
    Trim(ZpoolTrim),
    /// Wait until something is over
    Wait(ZpoolWait),
    /// Show the health of pools and their devices
    Status(ZpoolStatus),
    /// Show pools with their size, use and health
    List(ZpoolList),
    /// Show what devices do: operations, bytes, times, queues
    Iostat(ZpoolIostat),
    /// Show properties of pools
    Get(ZpoolGet),
    /// Set a property of pools
    Set(ZpoolSet),
    /// Enable the features that new pools have, or show which pools lack some
    Upgrade(ZpoolUpgrade),
    /// Show what was done to pools
    History(ZpoolHistory),
    /// Show what happened to pools and their devices, as far as the daemon saw it
    Events(ZpoolEvents),
    /// Wait until everything written so far is on the devices
    Sync(ZpoolSync),
    /// Remove a pool's labels from a device
    Labelclear(ZpoolLabelclear),
    /// Checkpoints of whole pools (not supported)
    Checkpoint(ZpoolCheckpoint),
    /// Show which version this is
    Version(Version),
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
    /// Alternate root (nothing is ever mounted: it means cachefile=none)
    #[arg(short = 'R', value_name = "ROOT")]
    pub(crate) altroot: Option<PathBuf>,
    /// With -a: only pools that are remembered (they have a file of their own: this one is not read)
    #[arg(short = 'c', value_name = "FILE", conflicts_with = "search_devices")]
    pub(crate) cache_file: Option<PathBuf>,
    /// Search devices in place of a cache file (always so: accepted for scripts)
    #[arg(short = 's')]
    pub(crate) search_devices: bool,
    /// With -F: only say whether it would work
    #[arg(short = 'n', requires = "recover")]
    pub(crate) dry_run: bool,
    /// Destroyed pools, and no others, are listed or imported
    #[arg(short = 'D')]
    pub(crate) destroyed: bool,
    /// Import without log devices that are missing, and without what cannot be read of an intent log: the last
    /// writes that were acknowledged may be lost, and the datasets are named
    #[arg(short = 'm')]
    pub(crate) missing_log: bool,
    /// Pool property to set: comment, failmode, … (repeatable); and readonly=on, for this import, never writes to it.
    /// With cachefile=none it is not opened by itself after a start
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pool name or guid; without it, list what can be imported
    pub(crate) pool: Option<String>,
    /// Another name for it from now on
    #[arg(value_name = "NEWPOOL")]
    pub(crate) new_name: Option<String>,
}

/// `zpool export`
#[derive(Debug, Args)]
pub(crate) struct ZpoolExport {
    /// All imported pools
    #[arg(short = 'a')]
    pub(crate) all: bool,
    /// Although clients are connected: they are cut off
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Give up a pool whose devices are gone for good: what was not flushed is lost
    #[arg(short = 'F', conflicts_with = "all")]
    pub(crate) drop: bool,
    /// Pools
    #[arg(required_unless_present = "all", conflicts_with = "all")]
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
    /// Only devices with a problem
    #[arg(short = 'e')]
    pub(crate) unhealthy_devices: bool,
    /// How many I/Os of each device took too long
    #[arg(short = 's')]
    pub(crate) slow: bool,
    /// How far devices are initialized
    #[arg(short = 'i')]
    pub(crate) initialize: bool,
    /// How far devices are trimmed
    #[arg(short = 't')]
    pub(crate) trim: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Print the time before each report: seconds since 1970 (u), or the date (d)
    #[arg(short = 'T', value_name = "u|d", value_enum, hide_possible_values = true)]
    pub(crate) timestamp: Option<Timestamp>,
    #[command(flatten)]
    pub(crate) names: DeviceNames,
    /// JSON; with an interval, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) numbers: JsonNumbers,
    /// Pools; all if none is named. Then seconds, and how often
    #[arg(value_name = "POOL… [INTERVAL [COUNT]]")]
    pub(crate) words: Vec<String>,
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
    /// Print the time before each report: seconds since 1970 (u), or the date (d)
    #[arg(short = 'T', value_name = "u|d", value_enum, hide_possible_values = true)]
    pub(crate) timestamp: Option<Timestamp>,
    #[command(flatten)]
    pub(crate) names: DeviceNames,
    /// Properties to show
    #[arg(short = 'o', value_name = "PROPERTY,…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) numbers: JsonNumbers,
    /// Pools; all if none is named. Then seconds, and how often
    #[arg(value_name = "POOL… [INTERVAL [COUNT]]")]
    pub(crate) words: Vec<String>,
}

/// How numbers are written in JSON.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct JsonNumbers {
    /// With -j: exact numbers, as numbers and not as texts
    #[arg(long = "json-int", requires = "json")]
    pub(crate) integers: bool,
}

/// `zpool version`, `zfs version`
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
}

/// What is printed before each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Timestamp {
    /// Seconds since 1970
    U,
    /// The date
    D,
}

/// `zpool iostat`
#[derive(Debug, Args)]
#[command(after_help = "\
The first report is of the time since the pool was opened, per second ('-' if that is less than a second ago, as it \
is without a daemon); each later one of the interval. What is counted is what reaches devices: what was joined into \
one transfer counts once, a write to a mirror on each side.

  -l  total_wait  from being wanted to being done
      disk_wait   the part of it that the device took
      syncq_wait asyncq_wait scrub trim rebuild
                  the rest of it, by who wanted it: somebody who waits, nobody
                  yet (read ahead, transaction groups), a scan, a trim
  -q  pend        waiting for their turn now
      activ       with the device now
  -r  ind         transfers of one block
      agg         of several")]
pub(crate) struct ZpoolIostat {
    /// The devices of each pool too
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// How long things took on average
    #[arg(short = 'l')]
    pub(crate) latency: bool,
    /// What waits and what is under way now
    #[arg(short = 'q')]
    pub(crate) queues: bool,
    /// Histograms of sizes
    #[arg(short = 'r')]
    pub(crate) size_histogram: bool,
    /// Histograms of times
    #[arg(short = 'w')]
    pub(crate) latency_histogram: bool,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes and nanoseconds
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Leave out the report of the time since the pool was opened
    #[arg(short = 'y')]
    pub(crate) skip: bool,
    /// Headers once only
    #[arg(short = 'n')]
    pub(crate) header_once: bool,
    /// Print the time before each report: seconds since 1970 (u), or the date (d)
    #[arg(short = 'T', value_name = "u|d", value_enum, hide_possible_values = true)]
    pub(crate) timestamp: Option<Timestamp>,
    #[command(flatten)]
    pub(crate) names: DeviceNames,
    /// JSON, one object a line: counts, and the seconds in which they were counted
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools, or devices; all pools if none is named. Then seconds, and how often
    #[arg(value_name = "POOL|DEVICE… [INTERVAL [COUNT]]")]
    pub(crate) words: Vec<String>,
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
    #[command(flatten)]
    pub(crate) numbers: JsonNumbers,
    /// `all`, or property names; without it, a list of those there are
    #[arg(value_name = "all|PROPERTY,…")]
    pub(crate) properties: Option<String>,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool create`
#[derive(Debug, Args)]
#[command(after_help = "\
DEVICE… is a list of groups:
  DEVICE…                    each a device of its own: fast, no redundancy
  mirror DEVICE DEVICE…      copies on each
  raidz1|raidz2|raidz3 DEVICE…   1, 2 or 3 of them may fail
  log …                      intent log: devices or mirrors
  cache DEVICE…, spare DEVICE…
A device is a block device (/dev/sdb, or sdb for short) or a file with its full path. With --size, files that do not \
exist are created, sparse, of that size; smaller ones grow to it, with -f if something is in them.")]
pub(crate) struct ZpoolCreate {
    /// Use devices that hold another pool or file system, and groups of different redundancy
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Only show the layout, and what volumes it would hold by block size
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Enable no features but those given with -o feature@NAME=enabled
    #[arg(short = 'd')]
    pub(crate) no_features: bool,
    /// Pool property: ashift, compatibility, comment, failmode, … (repeatable)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Property of the root file system (repeatable)
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    pub(crate) root_options: Vec<String>,
    /// Mount point of the root file system (nothing is ever mounted here: kept for hosts that do)
    #[arg(short = 'm', value_name = "PATH")]
    pub(crate) mountpoint: Option<String>,
    /// Alternate root (nothing is ever mounted: it means cachefile=none)
    #[arg(short = 'R', value_name = "ROOT")]
    pub(crate) altroot: Option<PathBuf>,
    /// Create files that do not exist, sparse, of this size; smaller ones grow to it, with -f if something is in them
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Name of the pool
    pub(crate) pool: String,
    /// Devices
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool destroy`
#[derive(Debug, Args)]
pub(crate) struct ZpoolDestroy {
    /// Although clients are connected: they are cut off
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Pool
    pub(crate) pool: String,
}

/// `zpool add`
#[derive(Debug, Args)]
pub(crate) struct ZpoolAdd {
    /// Use devices that hold another pool or file system, and groups of different redundancy or sector size
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Only show what would be added, and what volumes it would hold by block size
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Property of the new devices: ashift
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Create files that do not exist, sparse, of this size; smaller ones grow to it, with -f if something is in them
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Pool
    pub(crate) pool: String,
    /// Devices, as for `zpool create`
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool remove`
#[derive(Debug, Args)]
pub(crate) struct ZpoolRemove {
    /// Only say what the mapping tables of removed devices would take of memory: nothing, for those that can be removed
    #[arg(short = 'n', conflicts_with = "wait")]
    pub(crate) dry_run: bool,
    /// With -n: exact numbers
    #[arg(short = 'p', requires = "dry_run")]
    pub(crate) exact: bool,
    /// Wait until they are gone (always so: accepted for scripts)
    #[arg(short = 'w')]
    pub(crate) wait: bool,
    /// Pool
    pub(crate) pool: String,
    /// Log, cache and spare devices, as `zpool status` names them
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool set`
#[derive(Debug, Args)]
pub(crate) struct ZpoolSet {
    /// Property and value
    #[arg(value_name = "PROPERTY=VALUE")]
    pub(crate) property: String,
    /// Pools
    #[arg(required = true)]
    pub(crate) pools: Vec<String>,
}

/// `zpool history`
#[derive(Debug, Args)]
pub(crate) struct ZpoolHistory {
    /// Internal events too: those of OpenZFS, if it had the pool (none are recorded here)
    #[arg(short = 'i')]
    pub(crate) internal: bool,
    /// User, host and zone of each command
    #[arg(short = 'l')]
    pub(crate) long: bool,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool events`
#[derive(Debug, Args)]
pub(crate) struct ZpoolEvents {
    /// All that is known of each event
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Go on with events as they happen
    #[arg(short = 'f')]
    pub(crate) follow: bool,
    /// Forget all events so far
    #[arg(short = 'c', conflicts_with_all = ["verbose", "follow", "pool"])]
    pub(crate) clear: bool,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Only of this pool
    pub(crate) pool: Option<String>,
}

/// `zpool upgrade`
#[derive(Debug, Args)]
pub(crate) struct ZpoolUpgrade {
    /// Enable them on all pools
    #[arg(short = 'a', conflicts_with = "pools")]
    pub(crate) all: bool,
    /// Show the features that this program can write
    #[arg(short = 'v', conflicts_with_all = ["all", "pools"])]
    pub(crate) verbose: bool,
    /// Pools; without any, pools that lack features are listed
    pub(crate) pools: Vec<String>,
}

/// `zpool sync`
#[derive(Debug, Args)]
pub(crate) struct ZpoolSync {
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool labelclear`
#[derive(Debug, Args)]
pub(crate) struct ZpoolLabelclear {
    /// Although it is part of an exported pool, or of one that may be in use
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Device or file
    #[arg(value_name = "DEVICE")]
    pub(crate) device: PathBuf,
}

/// `zpool checkpoint`
#[derive(Debug, Args)]
pub(crate) struct ZpoolCheckpoint {
    /// Discard the checkpoint
    #[arg(short = 'd', long = "discard")]
    pub(crate) discard: bool,
    /// Wait for that
    #[arg(short = 'w', long = "wait", requires = "discard")]
    pub(crate) wait: bool,
    /// Pool
    pub(crate) pool: String,
}
