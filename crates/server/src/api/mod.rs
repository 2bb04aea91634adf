//! What commands and the control socket show, as values: the one shape that text, JSON and HTTP are made of.
//!
//! Numbers that do not fit 53 bits (guids) are texts. Every property comes twice: as people read it and exactly.
//! Documented for other programs in `docs/api.md`; fields are only ever added.

use pool::vdev::Tallied;
use serde::{Deserialize, Serialize};

pub mod advice;
pub mod alerts;
pub mod arc;
pub mod events;
pub mod initiators;
pub mod iostat;
pub mod log;
pub mod memory;
pub mod prewarm;
pub mod share;

/// The version of this API, in every path.
pub const VERSION: &str = "v1";

/// Answer of `/v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Version of the program.
    pub millpond: String,
    /// Version of the API: `v1`.
    pub api: String,
    /// Process id of the daemon.
    pub pid: u32,
}

/// Where a property's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Computed.
    None,
    /// Nobody set it.
    Default,
    /// Set on this dataset or pool.
    Local,
    /// Set on an ancestor.
    Inherited,
    /// Came with a received stream.
    Received,
    /// For this mount or import only.
    Temporary,
}

impl SourceKind {
    /// The word `zfs get -s` takes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Default => "default",
            Self::Local => "local",
            Self::Inherited => "inherited",
            Self::Received => "received",
            Self::Temporary => "temporary",
        }
    }
}

/// One property of a pool or dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// Full name, never an alias.
    pub name: String,
    /// As people read it: `1.21T`, `3.01x`, dates in the daemon's local time.
    pub value: String,
    /// Exactly: bytes, seconds since 1970.
    pub exact: String,
    /// Where it comes from.
    pub source: SourceKind,
    /// The ancestor it is inherited from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited_from: Option<String>,
    /// What a received stream had for it, as people read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<String>,
}

impl Property {
    /// The value: exact (`-p`) or for people.
    #[must_use]
    pub fn shown(&self, exact: bool) -> &str {
        if exact { &self.exact } else { &self.value }
    }

    /// The source in the SOURCE column.
    #[must_use]
    pub fn source_text(&self) -> String {
        match (self.source, &self.inherited_from) {
            (SourceKind::None, _) => "-".to_owned(),
            (SourceKind::Inherited, Some(from)) => format!("inherited from {from}"),
            (kind, _) => kind.word().to_owned(),
        }
    }
}

/// Size and use of a pool or top-level device, in bytes with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// What it holds.
    pub size: u64,
    /// Allocated of it.
    pub allocated: u64,
    /// Free of it.
    pub free: u64,
    /// 0–100: how scattered what is free is, if the pool knows.
    pub fragmentation: Option<u64>,
    /// 0–100: percent allocated.
    pub capacity: u64,
    /// What it would hold in addition if it grew to what its devices offer (`zpool online -e`).
    #[serde(default)]
    pub expandable: u64,
}

/// How far a device's free space is initialized or trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// `ACTIVE`, `CANCELED`, `SUSPENDED` or `COMPLETE`.
    pub state: String,
    /// Bytes of the device that are behind it.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// When it came into this state, seconds since 1970.
    pub when: u64,
    /// What stopped it, or why a spot was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// As `zpool status` names it.
    pub name: String,
    /// `root`, `mirror`, `raidz`, `disk`, `file`, …
    pub kind: String,
    /// Guid.
    pub guid: String,
    /// Full path of a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What a top-level device is for: `normal`, `dedup`, `special`, `log`; `spare` and `l2cache` beside the tree.
    pub class: String,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `OFFLINE`, `REMOVED`, `UNAVAIL`; of hot spares `AVAIL`, not `ONLINE`, and
    /// `INUSE`.
    pub state: String,
    /// What stands behind the counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether a leaf is there.
    pub present: bool,
    /// Reads it refused since the pool was opened.
    pub read_errors: u64,
    /// Writes it refused.
    pub write_errors: u64,
    /// Wrong bytes it gave.
    pub checksum_errors: u64,
    /// I/O that took much longer than it should have, of leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_ios: Option<u64>,
    /// A resilver brings it up to date, or a scrub has repaired something of it.
    #[serde(default)]
    pub repairing: bool,
    /// Far slower than its peers, and not read from while they can answer.
    #[serde(default)]
    pub sits_out: bool,
    /// How far `zpool initialize` is, if it ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Sweep>,
    /// How far `zpool trim` is, if it ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<Sweep>,
    /// Size and use, of the root and top-level devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// Size of the device itself, of leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// What it has done, of `/v1/iostat`: of what has devices below, what these have done together; of the root also what
    /// those did that left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<Tallied>,
    /// Devices below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
}

/// What is wrong with a pool and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong. Lines after the first begin with a tab.
    pub status: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Where to read more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub see: Option<String>,
    /// Id of the message, `ZFS-8000-2Q`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Whether `zpool status -x` leaves the pool out all the same.
    #[serde(default)]
    pub harmless: bool,
}

/// The scrub or resilver that runs, or the last one. Bytes are as allocated, parity included; times are seconds since
/// 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanStats {
    /// `SCRUB` or `RESILVER`.
    pub function: String,
    /// `SCANNING`, `FINISHED` or `CANCELED`.
    pub state: String,
    /// Begun.
    pub start_time: u64,
    /// Ended; 0 while it runs.
    pub end_time: u64,
    /// Halted since then; 0 if it is not.
    pub paused: u64,
    /// Bytes to be read in all.
    pub to_examine: u64,
    /// Bytes found so far.
    pub examined: u64,
    /// Bytes read so far.
    pub issued: u64,
    /// Bytes left out.
    pub skipped: u64,
    /// Bytes written again.
    pub processed: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Bytes found per second.
    pub examined_rate: u64,
    /// Bytes read per second lately.
    pub issued_rate: u64,
    /// Seconds it will take from now: not less and not more than these, if that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<(u64, u64)>,
    /// It stands still until there is more memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_memory: bool,
}

impl ScanStats {
    /// Whether it is not over, paused or not.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.state == "SCANNING"
    }
}

/// The scrub of the error log that runs (`zpool scrub -e`), or the last one. It is counted in blocks; times are seconds since
/// 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorScrubStats {
    /// `SCANNING`, `FINISHED` or `CANCELED`.
    pub state: String,
    /// Begun.
    pub start_time: u64,
    /// Ended; 0 while it runs.
    pub end_time: u64,
    /// Halted since then; 0 if it is not.
    pub paused: u64,
    /// What the error log names.
    pub to_examine: u64,
    /// Looked at so far.
    pub examined: u64,
    /// Could not be repaired.
    pub errors: u64,
}

impl ErrorScrubStats {
    /// Whether it is not over, paused or not.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.state == "SCANNING"
    }
}

/// Bytes of a volume that are lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostBytes {
    /// As in [`Pool::lost`]: `tank/vm1:<0x1>`.
    pub object: String,
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: String,
    /// State of the whole; `SUSPENDED` while nothing can be written.
    pub state: String,
    /// The transaction group that is open; 0 if the pool could not be opened.
    pub txg: u64,
    /// Properties, in the order of `zpool get all`.
    pub properties: Vec<Property>,
    /// What is wrong, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// The `scan:` line, about what began last; lines after the first begin with a tab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan: Option<String>,
    /// As numbers: the scrub or resilver of all that there is, whichever line is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_stats: Option<ScanStats>,
    /// As numbers: the scrub of the error log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_scrub: Option<ErrorScrubStats>,
    /// Why nothing can be written, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// Why nothing is written to it, if that is so and nobody wished it. Lines after the first begin with a tab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// The `remove:` line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<String>,
    /// The `expand:` line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expansion: Option<String>,
    /// Its devices.
    pub root: Device,
    /// Cache devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<Device>,
    /// Hot spares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<Device>,
    /// Number of blocks known to be lost, up to 100 000: if it is that many there may be more.
    pub errors: u64,
    /// The error log has not been read so far, or cannot be: `errors` says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub errors_unread: bool,
    /// The transaction group of which is what has to be read: properties, space, errors. None: nothing has been read so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_txg: Option<u64>,
    /// What is lost: `tank/vm1:<0x1>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Of volumes, which bytes that is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_bytes: Vec<LostBytes>,
    /// Of `errors`, blocks that nobody looked up, as there are too many: of objects in `lost`, and perhaps of others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost_more: u64,
    /// Volumes with `sync=disabled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sync_disabled: Vec<String>,
    /// What was replayed from intent logs when the pool was opened, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<log::Replayed>,
    /// What could not be found out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Whether there is nothing to tell.
fn is_none(number: &u64) -> bool {
    *number == 0
}

impl Pool {
    /// Whether it is open, and not only known to be missing.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.txg > 0
    }

    /// The property of this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.iter().find(|property| property.name == name)
    }
}

/// Kinds of dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Files.
    Filesystem,
    /// A block device.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark of either.
    Bookmark,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Filesystem, Self::Volume, Self::Snapshot, Self::Bookmark];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Bookmark => "bookmark",
        }
    }

    /// The kind of this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// A dataset, snapshot or bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Full name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Transaction group of its creation.
    pub createtxg: u64,
    /// The properties that were asked for and that it has, in the order of `zfs get all`.
    pub properties: Vec<Property>,
}

impl Dataset {
    /// The property of this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.iter().find(|property| property.name == name)
    }

    /// Name of the pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        self.name.split(['/', '@', '#']).next().unwrap_or_default()
    }
}

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetQuery {
    /// Where to begin; the root of every pool if absent.
    pub name: Option<String>,
    /// How far down from there: 0 is only that. No bound if absent.
    pub depth: Option<u64>,
    /// Which kinds, separated by commas; all if absent.
    pub types: Option<String>,
    /// Which properties, separated by commas; all if absent.
    pub properties: Option<String>,
}

/// Answer of `/v1/datasets`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datasets {
    /// Sorted by name, snapshots behind their dataset, oldest first.
    pub datasets: Vec<Dataset>,
    /// What could not be read, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Of all pools: those that are not open, which the list goes without. Each is among the problems, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<share::SilentPool>,
}

/// Something served, or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Dataset name.
    pub dataset: String,
    /// Guid of the volume or snapshot.
    pub guid: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Where it can be reached, by protocol.
    pub urls: Vec<Url>,
    /// Why it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Where something can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Url {
    /// `nbd` or `iscsi`.
    pub protocol: String,
    /// The address, as clients take it.
    pub url: String,
}

/// Answer of `/v1/served`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedList {
    /// By pool and name.
    pub served: Vec<Served>,
    /// NBD connections now.
    pub nbd_connections: u64,
    /// iSCSI sessions now.
    pub iscsi_sessions: u64,
}

/// Body of every answer that is not 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A sentence; of an operation it may have several lines.
    pub error: String,
    /// Of an operation: the exit code of a command that gets this answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}
