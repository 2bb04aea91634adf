//! Options of the subcommands of `zpool` that are about devices and scans.

use clap::{Args, ValueEnum};

/// `zpool offline`
#[derive(Debug, Args)]
pub(crate) struct ZpoolOffline {
    /// Only until the pool is opened again
    #[arg(short = 't')]
    pub(crate) temporary: bool,
    /// As if it had failed: FAULTED, until `zpool online` or `zpool clear`
    #[arg(short = 'f', conflicts_with = "temporary")]
    pub(crate) fault: bool,
    /// Pool
    pub(crate) pool: String,
    /// Devices, as `zpool status` names them, or their paths
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool online`
#[derive(Debug, Args)]
pub(crate) struct ZpoolOnline {
    /// Use all of it, if it has grown
    #[arg(short = 'e')]
    pub(crate) expand: bool,
    /// Pool
    pub(crate) pool: String,
    /// Devices, as `zpool status` names them, or their paths
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool attach`
#[derive(Debug, Args)]
pub(crate) struct ZpoolAttach {
    /// Use the new device although it holds another pool or file system
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Wait until it is filled
    #[arg(short = 'w')]
    pub(crate) wait: bool,
    /// Property of the new device: ashift
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Pool
    pub(crate) pool: String,
    /// A device that is single, or part of a mirror
    pub(crate) device: String,
    /// The one that joins it: a device or file with its full path
    #[arg(value_name = "NEW_DEVICE")]
    pub(crate) new: String,
}

/// `zpool detach`
#[derive(Debug, Args)]
pub(crate) struct ZpoolDetach {
    /// Pool
    pub(crate) pool: String,
    /// A side of a mirror, of a replacement, or a spare in use
    pub(crate) device: String,
}

/// `zpool replace`
#[derive(Debug, Args)]
pub(crate) struct ZpoolReplace {
    /// Use the new device although it holds another pool or file system
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Wait until it has taken the other's place
    #[arg(short = 'w')]
    pub(crate) wait: bool,
    /// Property of the new device: ashift
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Pool
    pub(crate) pool: String,
    /// The device that goes
    pub(crate) device: String,
    /// The one that comes: a device or file with its full path, or a hot spare; without it, what is in its place now
    #[arg(value_name = "NEW_DEVICE")]
    pub(crate) new: Option<String>,
}

/// `zpool clear`
#[derive(Debug, Args)]
pub(crate) struct ZpoolClear {
    /// Pool
    pub(crate) pool: String,
    /// Only of these devices
    #[arg(value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool reopen`
#[derive(Debug, Args)]
pub(crate) struct ZpoolReopen {
    /// Do not begin a scrub anew (none is: accepted for scripts)
    #[arg(short = 'n')]
    pub(crate) keep_scrub: bool,
    /// Pools; all if none is named
    pub(crate) pools: Vec<String>,
}

/// `zpool scrub`
#[derive(Debug, Args)]
#[command(after_help = "\
A paused scrub goes on where it was. Pools that a daemon has open are scrubbed there, and the command is back at \
once (without -w). A pool that nobody has open is scrubbed by the command itself, which takes as long as that takes; \
if it is interrupted, the scrub goes on when the pool is opened next.")]
pub(crate) struct ZpoolScrub {
    /// Stop it
    #[arg(short = 's', group = "act")]
    pub(crate) stop: bool,
    /// Pause it
    #[arg(short = 'p', group = "act")]
    pub(crate) pause: bool,
    /// Only blocks that are known to be damaged
    #[arg(short = 'e')]
    pub(crate) errors: bool,
    /// Only what was written since the last scrub that went through
    #[arg(short = 'C', group = "act")]
    pub(crate) continue_from_last: bool,
    /// Wait until it is over
    #[arg(short = 'w', conflicts_with_all = ["stop", "pause"])]
    pub(crate) wait: bool,
    /// All imported pools
    #[arg(short = 'a', conflicts_with = "pools")]
    pub(crate) all: bool,
    /// Pools
    #[arg(required_unless_present = "all")]
    pub(crate) pools: Vec<String>,
}

/// `zpool resilver`
#[derive(Debug, Args)]
pub(crate) struct ZpoolResilver {
    /// Pools
    #[arg(required = true)]
    pub(crate) pools: Vec<String>,
}

/// `zpool initialize`
#[derive(Debug, Args)]
pub(crate) struct ZpoolInitialize {
    /// Cancel it
    #[arg(short = 'c', group = "act")]
    pub(crate) cancel: bool,
    /// Suspend it; it goes on when it is asked for again
    #[arg(short = 's', group = "act")]
    pub(crate) suspend: bool,
    /// Forget that devices were initialized
    #[arg(short = 'u', group = "act")]
    pub(crate) forget: bool,
    /// Wait until it is over
    #[arg(short = 'w', conflicts_with = "act")]
    pub(crate) wait: bool,
    /// All imported pools
    #[arg(short = 'a', conflicts_with = "pool")]
    pub(crate) all: bool,
    /// Pool
    #[arg(required_unless_present = "all")]
    pub(crate) pool: Option<String>,
    /// Devices; all if none is named
    #[arg(value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// `zpool trim`
#[derive(Debug, Args)]
pub(crate) struct ZpoolTrim {
    /// Bytes per second of each device at most
    #[arg(short = 'r', value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// Cancel it
    #[arg(short = 'c', group = "act")]
    pub(crate) cancel: bool,
    /// Suspend it; it goes on when it is asked for again
    #[arg(short = 's', group = "act")]
    pub(crate) suspend: bool,
    /// Wait until it is over
    #[arg(short = 'w', conflicts_with = "act")]
    pub(crate) wait: bool,
    /// All imported pools
    #[arg(short = 'a', conflicts_with = "pool")]
    pub(crate) all: bool,
    /// Pool
    #[arg(required_unless_present = "all")]
    pub(crate) pool: Option<String>,
    /// Devices; all that can, if none is named
    #[arg(value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
}

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Activity {
    /// A checkpoint is discarded
    Discard,
    /// What destroyed datasets held is freed
    Free,
    /// Devices are initialized
    Initialize,
    /// Devices are replaced
    Replace,
    /// Devices are removed
    Remove,
    /// Devices are brought up to date
    Resilver,
    /// A scrub
    Scrub,
    /// Devices are trimmed
    Trim,
    /// A RAIDZ device is expanded
    RaidzExpand,
}

/// `zpool wait`
#[derive(Debug, Args)]
pub(crate) struct ZpoolWait {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes, not 1.21T
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// What to wait for; everything if not said
    #[arg(short = 't', value_name = "ACTIVITY,…", value_delimiter = ',', value_enum)]
    pub(crate) activities: Vec<Activity>,
    /// Pool
    pub(crate) pool: String,
    /// Report what is left, every so many seconds
    #[arg(value_name = "INTERVAL")]
    pub(crate) interval: Option<String>,
}
