//! How far pools are with reading again what was warm.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/prewarm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmList {
    /// By name.
    pub pools: Vec<Prewarm>,
}

/// The pre-warming of a pool that goes on, or the last one since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prewarm {
    /// Name.
    pub pool: String,
    /// Guid.
    pub guid: String,
    /// `none`, `running`; ended: `complete`, `full` (memory or cache devices; or memory for what was remembered), `stopped`.
    pub state: String,
    /// Blocks that were in memory: seen to so far.
    pub memory_done: u64,
    /// All of them.
    pub memory_total: u64,
    /// Blocks that were on cache devices only: seen to so far.
    pub device_done: u64,
    /// All of them.
    pub device_total: u64,
    /// Blocks read into memory.
    pub read_memory: u64,
    /// Blocks given to cache devices.
    pub read_device: u64,
    /// Bytes read from the pool's devices.
    pub bytes: u64,
    /// How long it has taken.
    pub ms: u64,
}

/// What is asked for with `POST /v1/prewarm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrewarmWish {
    /// Pool by name or guid; all if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// End it instead.
    #[serde(default)]
    pub stop: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"pol": "tank", "stop": true}` ended it in all pools.
    #[test]
    fn a_pool_that_is_misspelt_is_not_all_pools() {
        let error = serde_json::from_str::<PrewarmWish>(r#"{"pol": "tank", "stop": true}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `pol`"), "{error}");
    }
}
