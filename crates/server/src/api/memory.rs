//! What `/v1/memory` answers. Sizes are in bytes.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/memory`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// What may be resident.
    pub limit: u64,
    /// Where that comes from, a phrase.
    pub limit_from: String,
    /// What is resident.
    pub resident: u64,
    /// The most that ever was.
    pub resident_max: u64,
    /// Of the limit, what is never planned with.
    pub reserve: u64,
    /// What is resident beyond what is counted, as the plan reckons with it: it remembers peaks for a while.
    pub overhead: u64,
    /// Who holds what; together what is resident.
    pub parts: Vec<Part>,
    /// What the ARC holds.
    pub arc_size: u64,
    /// What it may hold now.
    pub arc_target: u64,
    /// What it may hold at most.
    pub arc_max: u64,
    /// Who bounds it now, a phrase.
    pub arc_bound_by: String,
    /// Connections that share what may be in flight, those that only discover or have chosen no export not among them; an iSCSI
    /// session counts twice, for each direction.
    pub connections: u64,
    /// Of these, those that wait for their turn.
    pub waiting: u64,
    /// Requests that had to wait, since the start.
    pub waits: u64,
    /// What is shed, in the order in which it was.
    pub shed: Vec<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed_why: Option<String>,
    /// Since when, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed_since: Option<u64>,
    /// How often something was shed.
    pub shed_times: u64,
    /// The nearest limit of a cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Cgroup>,
    /// The machine's memory.
    pub machine_total: u64,
    /// What of it can be had without anybody suffering.
    pub machine_available: u64,
    /// Percent of the last ten seconds in which somebody waited for memory.
    pub stall_percent: f64,
    /// The kernel kills those with high numbers first; -1000 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// The allocator, if it says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<Allocator>,
}

/// Somebody who holds memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Who.
    pub name: String,
    /// How much.
    pub bytes: u64,
    /// How much at most, where that is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// A cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its path.
    pub name: String,
    /// The file with the limit.
    pub file: String,
    /// The limit.
    pub limit: u64,
    /// What it uses, pages of files not counted.
    pub used: u64,
    /// How often the limit was hit.
    pub limit_hits: u64,
    /// Processes killed in it for want of memory.
    pub kills: u64,
}

/// A memory allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocator {
    /// Its name.
    pub name: String,
    /// What was asked of it and not given back.
    pub in_use: u64,
    /// What it has of the kernel for that.
    pub held: u64,
}
