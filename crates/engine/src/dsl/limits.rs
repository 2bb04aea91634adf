//! Counts of datasets and snapshots, on pools where limits on them are in use, and the date of the last change.
//!
//! Once feature `filesystem_limits` is active every directory carries two counts of what is below it; whoever
//! makes or destroys datasets keeps them. `snapshots_changed` is kept where other software began to.
//! Facts: docs/format/mos.md §6, features.md.

use ondisk::{
    dsl::keys::{FILESYSTEM_COUNT, SNAPSHOT_COUNT, SNAPSHOTS_CHANGED},
    zap::Value,
};

use super::{attributes, dir};
use crate::{EngineError, mos::features, sync::Syncer};

const FILESYSTEM_LIMITS: &str = "com.joyent:filesystem_limits";

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// File systems and volumes below a directory.
    Datasets,
    /// Snapshots in a directory and below it.
    Snapshots,
}

impl Count {
    const fn key(self) -> &'static str {
        match self {
            Self::Datasets => FILESYSTEM_COUNT,
            Self::Snapshots => SNAPSHOT_COUNT,
        }
    }
}

async fn is_active(cx: &mut Syncer) -> Result<bool, EngineError> {
    Ok(features::count(&mut cx.mos, FILESYSTEM_LIMITS).await?.is_some_and(|count| count > 0))
}

/// Gives a new directory its counts.
pub(super) async fn begin(cx: &mut Syncer, dir: u64) -> Result<(), EngineError> {
    if is_active(cx).await? {
        for count in [Count::Datasets, Count::Snapshots] {
            attributes::set(&mut cx.mos, dir, count.key(), Value::from_u64(0)).await?;
        }
    }
    Ok(())
}

/// Adds to the count of `dir` and all directories above.
pub(super) async fn adjust(cx: &mut Syncer, dir: u64, count: Count, change: i64) -> Result<(), EngineError> {
    if change == 0 || !is_active(cx).await? {
        return Ok(());
    }
    let mut at = dir;
    for _ in 0..pool::dsl::name::BYTES_MAX {
        if at == 0 {
            break;
        }
        if let Some(value) = attributes::get_u64(&mut cx.mos, at, count.key()).await? {
            let value = Value::from_u64(value.saturating_add_signed(change));
            attributes::set(&mut cx.mos, at, count.key(), value).await?;
        }
        at = dir::load(&mut cx.mos, at).await?.parent;
    }
    Ok(())
}

/// The count that `dir` carries.
pub(super) async fn of(cx: &mut Syncer, dir: u64, count: Count) -> Result<i64, EngineError> {
    let value = attributes::get_u64(&mut cx.mos, dir, count.key()).await?;
    Ok(value.and_then(|value| i64::try_from(value).ok()).unwrap_or(0))
}

/// Notes that the snapshots of `dir` changed: how many more there are, and when.
pub(super) async fn snapshots_changed(cx: &mut Syncer, dir: u64, change: i64) -> Result<(), EngineError> {
    adjust(cx, dir, Count::Snapshots, change).await?;
    if attributes::get(&mut cx.mos, dir, SNAPSHOTS_CHANGED).await?.is_some() {
        // Seconds and nanoseconds.
        let now = Value::from_u64s(&[cx.now, 0]);
        attributes::set(&mut cx.mos, dir, SNAPSHOTS_CHANGED, now).await?;
    }
    Ok(())
}
