//! An open pool gets features: they are in effect in the very transaction group that enables them.
//!
//! What is written from then on follows them, and labels list those without which the MOS cannot be read. Others count on it:
//! a hole without a birth, for one, is taken to be older than the transaction group that enabled `hole_birth`.
//!
//! Facts: docs/format/features.md, mos.md §3.

use ondisk::nvlist::{NvList, Value};

use crate::{BoxFuture, dsl::OpError, mos::features, sync::Syncer};

/// Enables features and those they depend on. Nothing for those that are enabled.
///
/// # Errors
/// The pool cannot have one of them as it is now. Nothing has changed then.
pub fn enable<'a>(cx: &'a mut Syncer, guids: &'a [&'a str]) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let mut lacking = Vec::new();
        for guid in guids {
            if features::count(&mut cx.mos, guid).await?.is_some() {
                continue;
            }
            if let Some(why) = features::obstacle(&mut cx.mos, guid).await? {
                return Err(OpError::Refused(why.to_owned()));
            }
            lacking.push(*guid);
        }
        if lacking.is_empty() {
            return Ok(());
        }
        for guid in lacking {
            features::enable(&mut cx.mos, guid, cx.txg).await?;
        }
        let traits = features::traits(&mut cx.mos).await?;
        cx.out.alloc.set_traits(traits);
        cx.out.set_traits(traits);
        let listed = features::in_label(&mut cx.mos).await?.into_iter();
        let listed: NvList = listed.map(|guid| (guid.to_owned(), Value::Boolean)).collect();
        if cx.config.nvlist("features_for_read") != Some(&listed) {
            cx.config.set("features_for_read", listed);
            cx.config_dirty = true;
        }
        Ok(())
    })
}
