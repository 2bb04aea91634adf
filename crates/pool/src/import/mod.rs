//! From devices to an open pool.
//!
//! ```text
//!   scan ─▶ labels of every device ─▶ candidates (by pool guid) ─▶ open:
//!       best uberblock ─▶ tree from labels ─▶ MOS ─▶ the pool's own configuration
//!                      ─▶ tree again, with what it says ─▶ salt, mappings, dirty time logs ─▶ Pool
//! ```
//!
//! Labels are only trusted as far as needed to read the MOS: each knows its own top-level device, and
//! may be stale. Who is a member, and how devices are arranged, is what the MOS says.
//!
//! Everything here reads; who wants to write opens the devices again for that ([`Candidate::reopen`]). A pool that another host may have open is refused unless forced: not because
//! reading would harm it, but because what is read would change underfoot.
//!
//! Facts: docs/format/labels.md §3–§5, docs/format/overview.md §5.

mod device;
mod examine;
mod learn;
mod open;
mod opening;
mod scan;

pub use device::{Device, is_sealed, uberblocks};
pub use examine::{Report, examine};
pub(crate) use learn::{device_list, error_scrub as last_error_scrub, features, scan as last_scan, words};
pub use open::{MAPPINGS_MAX, OpenOptions, Rewind, open};
pub use opening::{look_up_in_time, look_up_within, open_in_time};
pub use scan::{Candidate, Found, Opener, Refused, Sources, scan, writable};

use crate::{dmu::ReadError, vdev::ConfigError};

/// A feature this implementation lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedFeature {
    /// `org.openzfs:draid`
    pub guid: String,
    /// What the pool itself says about it.
    pub description: Option<String>,
}

/// Why a pool could not be opened. The text of each is what `zpool import` would say after
/// `cannot import 'tank': `, remedy included.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No device holds this pool.
    #[error("no such pool available")]
    NoSuchPool,
    /// Several pools have this name.
    #[error("more than one matching pool\nimport by numeric ID instead")]
    Ambiguous {
        /// Their guids.
        guids: Vec<u64>,
    },
    /// Another host used it last and did not export it.
    #[error(
        "pool was previously in use from another system.\nLast accessed by {hostname} (hostid={hostid:x}) at {when}\n\
         The pool can be imported, use 'zpool import -f' to import the pool."
    )]
    InUse {
        /// Name of that host.
        hostname: String,
        /// Its id.
        hostid: u64,
        /// When it last committed, UTC.
        when: String,
        /// The same, in seconds since 1970.
        timestamp: u64,
    },
    /// Another host has it open right now: its heartbeat goes on.
    #[error(
        "pool is imported on host '{hostname}' (hostid={hostid:x})\nExport the pool on the other system, then run 'zpool import'."
    )]
    Active {
        /// Name of that host.
        hostname: String,
        /// Its id.
        hostid: u64,
    },
    /// It was destroyed.
    #[error("the pool was destroyed\nuse the '-Df' flags to import it")]
    Destroyed,
    /// It needs features this implementation lacks.
    #[error("unsupported version or feature\nThis pool uses the following feature(s) not supported by this system:\n{}\n\
         Without them its data cannot be read; name, state and devices are still listed by 'zpool import'.", feature_list(.features))]
    Unsupported {
        /// Which.
        features: Vec<UnsupportedFeature>,
    },
    /// It has a version without feature flags.
    #[error(
        "unsupported version or feature\nthe pool has on-disk version {0}; only version 5000 (feature flags) is supported"
    )]
    Version(u64),
    /// Devices are missing without which nothing can be read; or others make up for them, and the pool's own metadata cannot be
    /// read, which they may have.
    #[error("one or more devices is currently unavailable\n{}", .missing.join("\n"))]
    MissingDevices {
        /// What is missing, by name, and what else there is to say of it, a line each.
        missing: Vec<String>,
    },
    /// Log devices are missing; the rest is there.
    #[error(
        "one or more devices is currently unavailable\nThe devices below are missing or corrupted, use '-m' to import the pool anyway:\n{}",
        .missing.join("\n")
    )]
    MissingLog {
        /// What is missing, by name.
        missing: Vec<String>,
    },
    /// The devices found are not those the pool was made of.
    #[error("the devices found do not add up to the pool (guid sum {found:x}, expected {expected:x})")]
    GuidSum {
        /// Sum over the configuration.
        found: u64,
        /// Sum the uberblock records.
        expected: u64,
    },
    /// There is no uberblock in the range asked for.
    #[error("no uberblock at or before txg {0}; the oldest is of txg {1}")]
    NoUberblock(u64, u64),
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The pool's own metadata cannot be read.
    #[error(
        "I/O error\nthe pool metadata of txg {txg} is damaged: {source}\nRecovery to an earlier txg may be possible: try -F, or -T TXG"
    )]
    Metadata {
        /// Of which uberblock.
        txg: u64,
        /// What could not be read.
        source: ReadError,
    },
}

fn feature_list(features: &[UnsupportedFeature]) -> String {
    let line = |feature: &UnsupportedFeature| match &feature.description {
        Some(description) => format!("\t{} ({description})", feature.guid),
        None => format!("\t{}", feature.guid),
    };
    features.iter().map(line).collect::<Vec<_>>().join("\n")
}
