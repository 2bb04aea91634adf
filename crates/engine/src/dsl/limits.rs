//! Counts of datasets and snapshots, on pools where limits on them are in use, and the date of the last change.
//!
//! Once feature `filesystem_limits` is active directories carry two counts of what is below them; whoever makes or
//! destroys datasets keeps them. Those that OpenZFS had before have them at and below a limit only. `snapshots_changed` is
//! kept where other software began to.
//! Facts: docs/format/mos.md §6, features.md.

use std::collections::BTreeMap;

use ondisk::{
    dsl::keys::{FILESYSTEM_COUNT, SNAPSHOT_COUNT, SNAPSHOTS_CHANGED},
    zap::Value,
};

use super::{attributes, dataset, dir};
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

/// Counts a tree of directories, parents first, that comes below one that has counts and has none itself.
pub(super) async fn count_tree(
    cx: &mut Syncer,
    tree: &[(String, u64)],
    above: u64,
) -> Result<(), EngineError> {
    let Some((_, top)) = tree.first() else { return Ok(()) };
    if !is_active(cx).await? {
        return Ok(());
    }
    for count in [Count::Datasets, Count::Snapshots] {
        let counts_above = attributes::get(&mut cx.mos, above, count.key()).await?.is_some();
        if !counts_above || attributes::get(&mut cx.mos, *top, count.key()).await?.is_some() {
            continue;
        }
        // What is below each, as its children come before it.
        let mut below: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, object) in tree.iter().rev() {
            let phys = dir::load(&mut cx.mos, *object).await?;
            let mut number = below.remove(object).unwrap_or(0);
            let itself = match count {
                Count::Datasets => 1,
                Count::Snapshots => {
                    let head = dataset::load(&mut cx.mos, phys.head_dataset).await?;
                    number += dataset::snapshots(&mut cx.mos, &head).await?.len() as u64;
                    0
                }
            };
            attributes::set(&mut cx.mos, *object, count.key(), Value::from_u64(number)).await?;
            *below.entry(phys.parent).or_default() += number + itself;
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
