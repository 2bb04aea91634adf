//! What the ARC counted and holds.

use pool::cache::ArcStats;
use serde::{Deserialize, Serialize};

/// Answer of `/v1/arc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arc {
    /// Nanoseconds since the daemon was started.
    pub at_ns: u64,
    /// When that was, in nanoseconds since 1970: another daemon's is another. Older ones do not tell.
    #[serde(default)]
    pub started_ns: u64,
    /// The rules that decide now which data stay.
    pub rules_data: String,
    /// The same of metadata.
    pub rules_metadata: String,
    /// `arcstats`.
    pub stats: ArcStats,
}
