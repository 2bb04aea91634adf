//! The error log: blocks that no device gives, remembered across imports until a scrub finds them no more.
//!
//! ```text
//!   errlog_last    what reads and resilvers met, and the last scrub that ended
//!   errlog_scrub   what the running scrub meets; takes the other's place when it ends
//! ```
//!
//! Two forms: one ZAP of `objset:object:level:block`, or, with feature `head_errlog`, a ZAP of ZAPs by head dataset,
//! whose keys carry the block's birth. Facts: docs/format/mos.md §10.

use std::collections::BTreeSet;

use ondisk::{
    Order,
    dnode::ObjectType,
    dsl::{DatasetPhys, DirPhys},
    scan::{BlockBookmark, HeadBookmark},
    zap::{OwnedKey, Value},
};
use parking_lot::Mutex;
use pool::Bookmark;

use crate::{
    EngineError,
    mos::{DIRECTORY, features, zap},
    sync::Syncer,
};

/// Of the last scrub, and since.
pub(super) const LAST: &str = "errlog_last";
/// Of the scrub that runs.
pub(super) const SCRUB: &str = "errlog_scrub";
/// Lost blocks that wait to be written down: more are a list nobody reads.
const WAITING_MAX: usize = 100_000;

/// A block that is lost: which, and when it was born.
pub(crate) type Lost = (Bookmark, u64);

/// What was found and is not written down yet.
#[derive(Debug, Default)]
pub(crate) struct Found(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: BTreeSet<Lost>,
    scrub: BTreeSet<Lost>,
    scrubbing: bool,
    /// What is to become of the lists in the pool.
    then: Option<Then>,
    /// Told of in this import already.
    known: BTreeSet<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The scrub's list takes the place of the other.
    Rotate,
    /// The scrub's list is of no use.
    DropScrub,
}

impl Found {
    /// A block is lost; true if that is news.
    pub(crate) fn note(&self, at: Bookmark, birth: u64, by_scan: bool) -> bool {
        let mut waiting = self.0.lock();
        let waiting = &mut *waiting;
        let list = if by_scan && waiting.scrubbing { &mut waiting.scrub } else { &mut waiting.last };
        if list.len() < WAITING_MAX {
            list.insert((at, birth));
        }
        waiting.known.len() < WAITING_MAX && waiting.known.insert((at, birth))
    }

    pub(super) fn scrub_begins(&self) {
        let mut waiting = self.0.lock();
        waiting.scrubbing = true;
        waiting.scrub.clear();
        waiting.then = waiting.then.or(Some(Then::DropScrub));
    }

    pub(super) fn scrub_goes_on(&self) {
        self.0.lock().scrubbing = true;
    }

    pub(super) fn scrub_ended(&self) {
        let mut waiting = self.0.lock();
        (waiting.scrubbing, waiting.then) = (false, Some(Then::Rotate));
        waiting.known.clear();
    }

    pub(super) fn scrub_cancelled(&self) {
        let mut waiting = self.0.lock();
        // What it found is true all the same.
        let found = std::mem::take(&mut waiting.scrub);
        waiting.last.extend(found);
        waiting.scrubbing = false;
    }
}

/// Writes down what was found.
pub(super) async fn sync(cx: &mut Syncer, found: &Found) -> Result<(), EngineError> {
    let (then, last, scrub) = {
        let mut waiting = found.0.lock();
        let waiting = &mut *waiting;
        (waiting.then.take(), std::mem::take(&mut waiting.last), std::mem::take(&mut waiting.scrub))
    };
    match then {
        Some(Then::DropScrub) => drop_log(cx, SCRUB).await?,
        Some(Then::Rotate) => {
            add(cx, SCRUB, scrub).await?;
            drop_log(cx, LAST).await?;
            if let Some(object) = log(cx, SCRUB).await? {
                zap::set_u64(&mut cx.mos, DIRECTORY, LAST, object).await?;
                zap::set_u64(&mut cx.mos, DIRECTORY, SCRUB, 0).await?;
            }
            return add(cx, LAST, last).await;
        }
        None => {}
    }
    add(cx, LAST, last).await?;
    add(cx, SCRUB, scrub).await
}

/// Its object, if there is one.
pub(super) async fn log(cx: &mut Syncer, name: &str) -> Result<Option<u64>, EngineError> {
    Ok(zap::get_u64(&mut cx.mos, DIRECTORY, name).await?.filter(|&object| object != 0))
}

pub(super) async fn by_head(cx: &mut Syncer) -> Result<bool, EngineError> {
    Ok(features::count(&mut cx.mos, "com.delphix:head_errlog").await?.unwrap_or(0) > 0)
}

async fn drop_log(cx: &mut Syncer, name: &str) -> Result<(), EngineError> {
    let Some(object) = log(cx, name).await? else { return Ok(()) };
    if by_head(cx).await? {
        for (_, list) in zap::numbers(&mut cx.mos, object).await? {
            if cx.mos.exists(list).await? {
                cx.mos.free(list).await?;
            }
        }
    }
    cx.mos.free(object).await?;
    zap::set_u64(&mut cx.mos, DIRECTORY, name, 0).await
}

pub(super) async fn add(cx: &mut Syncer, name: &str, lost: BTreeSet<Lost>) -> Result<(), EngineError> {
    if lost.is_empty() {
        return Ok(());
    }
    let object = match log(cx, name).await? {
        Some(object) => object,
        None => {
            let object = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
            zap::set_u64(&mut cx.mos, DIRECTORY, name, object).await?;
            object
        }
    };
    let by_head = by_head(cx).await?;
    for (at, birth) in lost {
        let Bookmark { objset, object: number, level, blkid } = at;
        let (list, key) = if by_head {
            let head = head(cx, objset).await?;
            let list = match zap::get_u64(&mut cx.mos, object, &format!("{head:x}")).await? {
                Some(list) => list,
                None => {
                    let list = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
                    zap::set_u64(&mut cx.mos, object, &format!("{head:x}"), list).await?;
                    list
                }
            };
            (list, HeadBookmark { object: number, level, block_id: blkid, birth }.to_string())
        } else {
            (object, BlockBookmark { objset, object: number, level, block_id: blkid }.to_string())
        };
        let entry = (OwnedKey::Name(key.into_bytes()), Value::from_text(""));
        zap::set_many(&mut cx.mos, list, vec![entry]).await?;
    }
    Ok(())
}

/// The head that a dataset or snapshot belongs to.
async fn head(cx: &mut Syncer, objset: u64) -> Result<u64, EngineError> {
    if objset == 0 || !cx.mos.exists(objset).await? {
        return Ok(objset);
    }
    let bonus = cx.mos.bonus(objset).await?;
    let Ok(phys) = DatasetPhys::decode(&bonus, Order::Little) else { return Ok(objset) };
    if !phys.is_snapshot() || !cx.mos.exists(phys.dir).await? {
        return Ok(objset);
    }
    let bonus = cx.mos.bonus(phys.dir).await?;
    Ok(DirPhys::decode(&bonus, Order::Little).map_or(objset, |dir| dir.head_dataset))
}
