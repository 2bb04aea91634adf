//! Feature counts: which features the pool has, and how many things in it need each.
//!
//! An entry in `features_for_read` or `features_for_write` means *enabled*, a value above 0 *active*. Software
//! that does not know an active feature refuses the pool, so a count that is wrong is a pool that is lost or
//! one that is misread: [`add`] is called with every object that begins or ceases to need a feature.
//!
//! What this writer can keep up is in [`writing`]. Facts: docs/format/features.md, mos.md §3.

mod writing;

use ondisk::{dnode::ObjectType, features::Feature, zap::Value};

pub use self::writing::refusal;
use super::{DIRECTORY, inconsistent, zap};
use crate::{BoxFuture, EngineError, dmu::MutSet, policy::Traits};

/// Features that are active from the moment they are enabled: they change what is written everywhere.
const ACTIVE_AT_ONCE: [&str; 5] = [
    "org.illumos:lz4_compress",
    "com.delphix:hole_birth",
    "com.delphix:embedded_data",
    "com.delphix:spacemap_v2",
    HEAD_ERRLOG,
];
/// The error log has another form with it.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// Directory entries of the error log.
const ERROR_LOGS: [&str; 2] = ["errlog_last", "errlog_scrub"];

const ENABLED_TXG: &str = "com.delphix:enabled_txg";
const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const TXGS: &str = "feature_enabled_txg";

/// Creates the objects that list features, where they are missing, with their directory entries.
pub fn create(mos: &mut MutSet) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
            list(mos, name).await?;
        }
        Ok(())
    })
}

/// Whether a feature is enabled, and its count.
pub fn count<'a>(mos: &'a mut MutSet, guid: &'a str) -> BoxFuture<'a, Result<Option<u64>, EngineError>> {
    Box::pin(async move { Ok(find(mos, guid).await?.map(|(_, count)| count)) })
}

/// Adds to the count of an enabled feature. Returns the new count. (Whether the label must list it is
/// [`in_label`]'s business: the caller compares before and after.)
pub fn add<'a>(mos: &'a mut MutSet, guid: &'a str, change: i64) -> BoxFuture<'a, Result<u64, EngineError>> {
    Box::pin(async move {
        let Some((object, count)) = find(mos, guid).await? else {
            return Err(EngineError::Unsupported(format!("feature {guid} is not enabled in this pool")));
        };
        let Some(count) = count.checked_add_signed(change) else {
            return Err(inconsistent(mos, object, 0, "a feature is used more often than it is counted"));
        };
        if change != 0 {
            zap::set_u64(mos, object, guid, count).await?;
        }
        Ok(count)
    })
}

/// Why a feature that is not enabled cannot be in the pool as it is now, with the remedy; `None` if it can.
pub fn obstacle<'a>(
    mos: &'a mut MutSet,
    guid: &'a str,
) -> BoxFuture<'a, Result<Option<&'static str>, EngineError>> {
    Box::pin(async move {
        if guid != HEAD_ERRLOG {
            return Ok(None);
        }
        // What is in the log would not be found there any more, and what comes would be put beside it in the other form.
        for name in ERROR_LOGS {
            if let Some(log) = zap::get_u64(mos, DIRECTORY, name).await?.filter(|&log| log != 0)
                && !zap::entries(mos, log).await?.is_empty()
            {
                return Ok(Some(
                    "the error log, which has another form with feature 'head_errlog', is not empty\n                     to empty it: restore or destroy what 'zpool status -v' names, then 'zpool scrub'",
                ));
            }
        }
        Ok(None)
    })
}

/// Enables a feature in txg `txg`, and those it depends on: entries, description, enabled_txg. Nothing for one
/// that is enabled.
pub fn enable<'a>(mos: &'a mut MutSet, guid: &'a str, txg: u64) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        // Dependencies have no circles (ondisk tests that), so this ends.
        let mut waiting = vec![guid];
        while let Some(&guid) = waiting.last() {
            let Some(feature) = Feature::by_guid(guid) else {
                return Err(EngineError::Unsupported(format!("feature {guid} is not known to this version")));
            };
            let mut ready = true;
            for needed in feature.depends {
                if count(mos, needed).await?.is_none() {
                    waiting.push(needed);
                    ready = false;
                }
            }
            if ready {
                waiting.pop();
                if count(mos, guid).await?.is_none() {
                    enable_one(mos, feature, txg).await?;
                }
            }
        }
        Ok(())
    })
}

async fn enable_one(mos: &mut MutSet, feature: &Feature, txg: u64) -> Result<(), EngineError> {
    let name = if feature.read_only_compatible { FOR_WRITE } else { FOR_READ };
    let counts = list(mos, name).await?;
    let active = ACTIVE_AT_ONCE.contains(&feature.guid);
    zap::set_u64(mos, counts, feature.guid, u64::from(active)).await?;
    let descriptions = list(mos, DESCRIPTIONS).await?;
    let description = Value::from_text(feature.description);
    zap::set(mos, descriptions, feature.guid.into(), description).await?;
    if count(mos, ENABLED_TXG).await?.is_some() {
        let txgs = list(mos, TXGS).await?;
        zap::set_u64(mos, txgs, feature.guid, txg).await?;
        add(mos, ENABLED_TXG, 1).await?;
    }
    Ok(())
}

/// Guids that labels must list: active features without which the MOS cannot be read.
pub fn in_label(mos: &mut MutSet) -> BoxFuture<'_, Result<Vec<&'static str>, EngineError>> {
    Box::pin(async move {
        let active = active(mos).await?;
        let known = active.iter().filter_map(|guid| Feature::by_guid(guid));
        Ok(known.filter(|feature| feature.in_label).map(|feature| feature.guid).collect())
    })
}

/// What the enabled features allow.
pub fn traits(mos: &mut MutSet) -> BoxFuture<'_, Result<Traits, EngineError>> {
    Box::pin(async move {
        let all = counts(mos).await?;
        let count = |guid: &str| all.iter().find(|(other, _)| other == guid).map(|(_, count)| *count);
        let enabled = |guid| count(guid).is_some();
        let active = |guid| count(guid).is_some_and(|count| count > 0);
        Ok(Traits {
            lz4: enabled("org.illumos:lz4_compress"),
            embedded_data: enabled("com.delphix:embedded_data"),
            hole_birth: enabled("com.delphix:hole_birth"),
            spacemap_v2: enabled("com.delphix:spacemap_v2"),
            spacemap_histogram: enabled("com.delphix:spacemap_histogram"),
            // Once active it is so for ever; until then the pool gets by without logs.
            log_spacemap: active("com.delphix:log_spacemap"),
            empty_bpobj: enabled("com.delphix:empty_bpobj"),
            extensible_dataset: enabled("com.delphix:extensible_dataset"),
            async_destroy: enabled("com.delphix:async_destroy"),
            livelist: active("com.delphix:livelist"),
        })
    })
}

/// Guids of active features that this writer cannot keep up: the pool may only be opened read-only. Pools with
/// dedup tables older than any feature have the table's directory entry here. [`refusal`] says why.
pub fn unwritable(mos: &mut MutSet) -> BoxFuture<'_, Result<Vec<String>, EngineError>> {
    Box::pin(async move {
        let mut refused = active(mos).await?;
        refused.retain(|guid| refusal(guid).is_some());
        let tables = zap::entries(mos, DIRECTORY).await?.into_iter();
        let names = tables.filter_map(|(key, _)| String::from_utf8(key.name()?.to_vec()).ok());
        refused.extend(names.filter(|name| writing::is_dedup_table(name)));
        refused.sort_unstable();
        Ok(refused)
    })
}

/// The object with this directory entry, created if need be.
async fn list(mos: &mut MutSet, name: &str) -> Result<u64, EngineError> {
    if let Some(object) = zap::get_u64(mos, DIRECTORY, name).await? {
        return Ok(object);
    }
    let object = zap::create(mos, ObjectType::ZAP_METADATA, 0).await?;
    zap::set_u64(mos, DIRECTORY, name, object).await?;
    Ok(object)
}

/// The object that counts a feature, and the count.
async fn find(mos: &mut MutSet, guid: &str) -> Result<Option<(u64, u64)>, EngineError> {
    for name in [FOR_READ, FOR_WRITE] {
        if let Some(object) = zap::get_u64(mos, DIRECTORY, name).await?
            && let Some(count) = zap::get_u64(mos, object, guid).await?
        {
            return Ok(Some((object, count)));
        }
    }
    Ok(None)
}

/// All enabled features with their counts.
async fn counts(mos: &mut MutSet) -> Result<Vec<(String, u64)>, EngineError> {
    let mut all = Vec::new();
    for name in [FOR_READ, FOR_WRITE] {
        if let Some(object) = zap::get_u64(mos, DIRECTORY, name).await? {
            all.extend(zap::numbers(mos, object).await?);
        }
    }
    Ok(all)
}

async fn active(mos: &mut MutSet) -> Result<Vec<String>, EngineError> {
    Ok(counts(mos).await?.into_iter().filter(|(_, count)| *count > 0).map(|(guid, _)| guid).collect())
}

#[cfg(test)]
mod tests;
