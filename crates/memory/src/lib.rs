//! One memory budget: what the process may hold, what it holds, and what gives way when that is too much.
//!
//! ```text
//!   limit    what this process may have: a cgroup's limit, a share of the machine, or what somebody said
//!   machine  what is read of it: cgroups (v1 and v2), /proc, pressure
//!   plan     numbers in, numbers out: how large the cache may be now, and what is shed
//!   gate     bytes of requests in flight, over all connections: who wants more waits its turn, who stalls is in nobody's way
//!   bell     rung by what grows, so that the cache gives way within milliseconds and nobody polls
//! ```
//!
//! Nothing here knows a cache, a pool or a protocol: the daemon reads the parts, asks the plan, and does what it says.
//! Why so, and what was measured: docs/decisions/0015-memory.md.
#![forbid(unsafe_code)]

pub mod bell;
pub mod gate;
pub mod limit;
pub mod machine;
pub mod plan;

pub use bell::Bell;
pub use gate::{Client, Gate, Member};

/// Bytes as people write them: `240M`, `1.5G`.
#[must_use]
pub fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G", "T"] {
        if value < 1024.0 || unit == "T" {
            let digits = usize::from(value < 10.0 && unit != "B" && value.fract() >= 0.05);
            return format!("{value:.digits$}{unit}");
        }
        value /= 1024.0;
    }
    String::new()
}
