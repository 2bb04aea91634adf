//! What happened to pools, as `/v1/events` tells it: OpenZFS's classes and names of values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zevent {
    /// Counts from 1 in each life of a daemon.
    pub eid: u64,
    /// `ereport.fs.zfs.checksum`, `resource.fs.zfs.statechange`, `sysevent.fs.zfs.scrub_finish`, …
    pub class: String,
    /// Seconds and nanoseconds since 1970.
    pub time: (u64, u32),
    /// Name of the pool.
    pub pool: String,
    /// What is known about it, by OpenZFS's names, in its order: texts and numbers. Guids are texts.
    pub pairs: Map<String, Value>,
}

/// Answer of `/v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// Oldest first.
    pub events: Vec<Zevent>,
    /// Number of the newest event there was; what to ask with next (`since=`).
    pub newest: u64,
}

/// Answer of `POST /v1/events/clear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsCleared {
    /// How many events were forgotten.
    pub cleared: u64,
}

/// Question to `/v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventQuery {
    /// Only those with a greater number.
    #[serde(default)]
    pub since: u64,
    /// Only those of this pool, by name or guid.
    #[serde(default)]
    pub pool: Option<String>,
    /// Do not end: one JSON object a line, as events happen.
    #[serde(default)]
    pub follow: bool,
}
