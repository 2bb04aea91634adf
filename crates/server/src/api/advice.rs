//! What more memory or a cache device would be worth.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/advice`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdviceList {
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Bytes that data has of the ARC, and bytes of the cache devices of all pools.
    pub memory: u64,
    /// See `memory`.
    pub second: u64,
    /// One block in so many is looked at.
    pub one_in: u64,
    /// Bytes of memory that looking takes.
    pub cost_bytes: u64,
    /// Share of one processor that looking took, 0 to 1.
    pub cost_cpu: f64,
    /// Of all data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Outlook>,
    /// What the ghost lists say beside it: share of the accesses that missed a block evicted shortly before, and so would be
    /// hits with up to about twice the memory.
    pub ghosts: f64,
    /// By name.
    pub pools: Vec<Named>,
    /// Busy datasets, by name.
    pub datasets: Vec<Named>,
    /// What is not known, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A pool or a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Bytes of the cache devices of its pool, which serve no other.
    #[serde(default)]
    pub second: u64,
    /// What is expected of it.
    pub outlook: Outlook,
}

/// What is expected. Shares are 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// Sampled accesses that it is known from; those of long ago count less.
    pub accesses: f64,
    /// What they hit in memory.
    pub hit_ratio: f64,
    /// What the ratio now, and those below of larger sizes, may be off by.
    pub error: f64,
    /// With other amounts of memory, smallest first; what there is among them.
    pub memory: Vec<Point>,
    /// With a cache device of so many bytes below the memory there is: hits of both.
    pub second: Vec<Point>,
    /// What LRU would hit, by bytes; of a dataset, if it were alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lru: Vec<Point>,
}

/// A size and what it would hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes.
    pub size: u64,
    /// 0 to 1.
    pub hit_ratio: f64,
    /// What that may be off by, 0 to 1; nothing from a daemon that does not tell.
    #[serde(default)]
    pub error: f64,
}
