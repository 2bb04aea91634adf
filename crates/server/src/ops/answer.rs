//! What came of an operation, as a value.

use serde::{Deserialize, Serialize};

use super::Assignment;

/// What came of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// For standard output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Done, but the user should know this. A sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What [`Operation::CreateVolume`](super::Operation::CreateVolume) made of sizes, in bytes, and what it set aside for
    /// the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Assignment>,
    /// What [`Operation::Destroy`](super::Operation::Destroy) destroyed or would destroy, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroyed: Vec<String>,
    /// Bytes that become free by that, as far as snapshots and volumes hold them alone, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<u64>,
    /// The pool's history, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
    /// What [`Operation::Holds`](super::Operation::Holds) found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldEntry>,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldEntry {
    /// Which snapshot.
    pub snapshot: String,
    /// Its tag.
    pub tag: String,
    /// Since when, in seconds since 1970.
    pub time: u64,
}

/// A record of a pool's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Seconds since 1970.
    pub time: u64,
    /// The command as it was typed; for internal events what was done.
    pub text: String,
    /// Internal events: the transaction group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txg: Option<u64>,
    /// User id of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u64>,
    /// Host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `linux`, for commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}
