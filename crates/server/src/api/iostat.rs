//! What the devices of pools have done.

use serde::{Deserialize, Serialize};

use super::{Device, share::SilentPool};

/// Answer of `/v1/iostat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IostatList {
    /// By name.
    pub pools: Vec<PoolIo>,
    /// Of all pools: what the list goes without, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The same with the names of these pools, which are those that are not open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<SilentPool>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolIo {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: String,
    /// When whoever counts opened it, nanoseconds since 1970: what was counted before another such time is not in these
    /// numbers. 0 from older daemons.
    #[serde(default)]
    pub opened_ns: u64,
    /// Its devices; each says what it has done in `io`.
    pub root: Device,
    /// Cache devices, which are not part of the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<Device>,
}
