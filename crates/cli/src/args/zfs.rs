//! Subcommands of `zfs` and their options.

use clap::{Args, Subcommand};

use super::{JsonNumbers, Version, sort::SortKeys};

/// Subcommands of `zfs`.
#[derive(Debug, Subcommand)]
pub(crate) enum Zfs {
    /// Create a volume or file system
    Create(ZfsCreate),
    /// Destroy datasets, snapshots or bookmarks
    Destroy(ZfsDestroy),
    /// Take snapshots
    #[command(visible_alias = "snap")]
    Snapshot(ZfsSnapshot),
    /// Go back to a snapshot
    Rollback(ZfsRollback),
    /// Make a dataset of a snapshot
    Clone(ZfsClone),
    /// Make a clone independent of where it is from
    Promote(ZfsPromote),
    /// Give a dataset or snapshot another name
    Rename(ZfsRename),
    /// Make a bookmark of a snapshot
    Bookmark(ZfsBookmark),
    /// Show datasets with their space
    List(ZfsList),
    /// Show properties of datasets
    Get(ZfsGet),
    /// Set properties of datasets
    Set(ZfsSet),
    /// Let datasets inherit a property again
    Inherit(ZfsInherit),
    /// Keep snapshots from being destroyed
    Hold(ZfsHold),
    /// Show holds of snapshots
    Holds(ZfsHolds),
    /// Let go of snapshots
    Release(ZfsHold),
    /// Mount file systems (nothing is ever mounted: -a is accepted for scripts)
    Mount(ZfsMount),
    /// Unmount file systems (likewise)
    #[command(visible_alias = "umount")]
    Unmount(ZfsMount),
    /// Share file systems (likewise; volumes: see 'millpond share')
    Share(ZfsMount),
    /// Share file systems no longer (likewise)
    Unshare(ZfsMount),
    /// Load keys (none is ever handled: accepted for scripts where nothing is encrypted)
    LoadKey(ZfsLoadKey),
    /// Unload keys (likewise)
    UnloadKey(ZfsKeys),
    /// Show which version this is
    Version(Version),
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
    #[command(flatten)]
    pub(crate) order: SortKeys,
    /// filesystem, volume, snapshot, bookmark, all (fs, vol and snap for short)
    #[arg(short = 't', value_name = "TYPE,…", value_delimiter = ',')]
    pub(crate) types: Vec<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) numbers: JsonNumbers,
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
    #[command(flatten)]
    pub(crate) numbers: JsonNumbers,
    /// `all`, or property names; without it, a list of those there are
    #[arg(value_name = "all|PROPERTY,…")]
    pub(crate) properties: Option<String>,
    /// Datasets; all if none is named
    pub(crate) datasets: Vec<String>,
}

/// `zfs create`
#[derive(Debug, Args)]
pub(crate) struct ZfsCreate {
    /// A volume of this size, for example 10G; rounded up to whole blocks
    #[arg(short = 'V', value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Thin: reserve nothing for the volume
    #[arg(short = 's', requires = "size")]
    pub(crate) sparse: bool,
    /// Block of the volume: 512 to 128K, a power of two
    #[arg(short = 'b', value_name = "SIZE", requires = "size")]
    pub(crate) block: Option<String>,
    /// Property (repeatable)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Create missing parents, and be content if it exists
    #[arg(short = 'p')]
    pub(crate) parents: bool,
    /// Do not mount (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'u')]
    pub(crate) no_mount: bool,
    /// Only see whether it could be done; with -v, say what it would be
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Say what is created, with the properties that were given
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// The same for scripts
    #[arg(short = 'P')]
    pub(crate) parsable: bool,
    /// Full name
    #[arg(value_name = "POOL/NAME")]
    pub(crate) name: String,
}

/// `zfs mount`, `unmount`, `share` and `unshare`
#[derive(Debug, Args)]
pub(crate) struct ZfsMount {
    /// All of them, which is nothing to do
    #[arg(short = 'a', conflicts_with = "filesystem")]
    pub(crate) all: bool,
    /// Accepted for scripts
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Accepted for scripts
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// File system
    pub(crate) filesystem: Option<String>,
}

/// `zfs load-key`
#[derive(Debug, Args)]
pub(crate) struct ZfsLoadKey {
    #[command(flatten)]
    pub(crate) keys: ZfsKeys,
    /// Only see whether the key is right (no key is: accepted for scripts)
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Where the key is (accepted for scripts)
    #[arg(short = 'L', value_name = "LOCATION")]
    pub(crate) location: Option<String>,
}

/// `zfs unload-key`, and whose keys `load-key` means
#[derive(Debug, Args)]
pub(crate) struct ZfsKeys {
    /// Of all encryption roots of all pools
    #[arg(short = 'a')]
    pub(crate) all: bool,
    /// Of the encryption roots below it, too
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// File system or volume
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) dataset: Option<String>,
}

/// `zfs destroy`
#[derive(Debug, Args)]
#[command(after_help = "\
Snapshots may be given as a list and as ranges: tank/vm1@monday,friday  tank/vm1@monday%friday  tank/vm1@%friday")]
pub(crate) struct ZfsDestroy {
    /// All below it, too; of a snapshot: those of its name of everything below
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Clones, too
    #[arg(short = 'R')]
    pub(crate) clones: bool,
    /// Force unmounting (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Snapshots that are held or have clones go as soon as they no longer are
    #[arg(short = 'd')]
    pub(crate) defer: bool,
    /// Only see whether it could be done; with -v, say what it would be
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Say what is destroyed and how much becomes free
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// The same for scripts, in exact numbers
    #[arg(short = 'p')]
    pub(crate) parsable: bool,
    /// Dataset, snapshots, or bookmark
    #[arg(value_name = "DATASET|SNAPSHOTS|BOOKMARK")]
    pub(crate) name: String,
}

/// `zfs snapshot`
#[derive(Debug, Args)]
pub(crate) struct ZfsSnapshot {
    /// Of everything below, too, all at the same moment
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// User property of the snapshots (repeatable)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Names of snapshots
    #[arg(required = true, value_name = "DATASET@NAME")]
    pub(crate) names: Vec<String>,
}

/// `zfs rollback`
#[derive(Debug, Args)]
pub(crate) struct ZfsRollback {
    /// Destroy more recent snapshots and bookmarks
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Destroy clones of those, too
    #[arg(short = 'R')]
    pub(crate) clones: bool,
    /// Force unmounting of clones (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Snapshot to go back to
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
}

/// `zfs clone`
#[derive(Debug, Args)]
pub(crate) struct ZfsClone {
    /// Create missing parents
    #[arg(short = 'p')]
    pub(crate) parents: bool,
    /// Property (repeatable)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Do not mount (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'u')]
    pub(crate) no_mount: bool,
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
    /// Full name of the clone
    #[arg(value_name = "POOL/NAME")]
    pub(crate) name: String,
}

/// `zfs promote`
#[derive(Debug, Args)]
pub(crate) struct ZfsPromote {
    /// Clone
    #[arg(value_name = "CLONE")]
    pub(crate) name: String,
}

/// `zfs rename`
#[derive(Debug, Args)]
pub(crate) struct ZfsRename {
    /// Create missing parents
    #[arg(short = 'p')]
    pub(crate) parents: bool,
    /// The snapshots of this name of everything below, too
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Do not mount again (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'u')]
    pub(crate) no_mount: bool,
    /// Force unmounting (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Dataset or snapshot
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// Its new name; of a snapshot @NAME is enough
    #[arg(value_name = "TO")]
    pub(crate) to: String,
}

/// `zfs bookmark`
#[derive(Debug, Args)]
pub(crate) struct ZfsBookmark {
    /// Snapshot or bookmark
    #[arg(value_name = "SNAPSHOT|BOOKMARK")]
    pub(crate) source: String,
    /// Bookmark; #NAME is enough
    #[arg(value_name = "BOOKMARK")]
    pub(crate) name: String,
}

/// `zfs set`
#[derive(Debug, Args)]
pub(crate) struct ZfsSet {
    /// Do not mount or share (nothing is ever mounted: accepted for scripts)
    #[arg(short = 'u')]
    pub(crate) no_mount: bool,
    /// Although clients lose their disk by it (volmode=none), or get a write cache unawares
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Properties with their values, then datasets
    #[arg(required = true, value_name = "PROPERTY=VALUE… DATASET")]
    pub(crate) words: Vec<String>,
}

/// `zfs inherit`
#[derive(Debug, Args)]
pub(crate) struct ZfsInherit {
    /// Datasets below, too
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Back to the received value
    #[arg(short = 'S')]
    pub(crate) received: bool,
    /// Although clients lose their disk by it (volmode), or get a write cache unawares
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Property
    pub(crate) property: String,
    /// Datasets
    #[arg(required = true)]
    pub(crate) datasets: Vec<String>,
}

/// `zfs hold` and `zfs release`
#[derive(Debug, Args)]
pub(crate) struct ZfsHold {
    /// The snapshots of these names of everything below, too
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// Name of the hold
    pub(crate) tag: String,
    /// Snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
}

/// `zfs holds`
#[derive(Debug, Args)]
pub(crate) struct ZfsHolds {
    /// The snapshots of these names of everything below, too
    #[arg(short = 'r')]
    pub(crate) recursive: bool,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: seconds since 1970
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// Snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
}
