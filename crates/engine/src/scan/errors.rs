//! The error log: blocks that no device gives, remembered across imports until a scrub finds them no more.
//!
//! ```text
//!   errlog_last    what reads and resilvers met, and the last scrub that ended
//!   errlog_scrub   what the running scrub meets; takes the other's place when it ends, and joins it when it is stopped, or
//!                  did not find out of everything whether it is lost
//! ```
//!
//! A scrub of the log itself ([`super::logged`]) reads nothing else, so it begins no new list: when it is over it takes from
//! both what it found whole, and what nobody has any more.
//!
//! The log is for people: one that is damaged begins anew.
//!
//! Two forms: one ZAP of `objset:object:level:block`, or, with feature `head_errlog`, a ZAP of ZAPs by head dataset,
//! whose keys carry the block's birth. Facts: docs/format/mos.md §10.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::ObjectType,
    dsl::{DatasetPhys, DirPhys},
    scan::{BlockBookmark, HeadBookmark},
    zap::{OwnedKey, Value},
};
use parking_lot::Mutex;
use pool::{Bookmark, status::LoggedError};

use super::waiting::Key;
use crate::{
    BoxFuture, EngineError,
    mos::{DIRECTORY, features, zap},
    suspend::may_pass_of,
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

/// What tells a block from all others: where it is, and when it was written there.
type Block = (Key, u64);

fn block(bp: &BlkPtr) -> Option<Block> {
    bp.dvas().next().map(|dva| ((dva.offset, dva.vdev), bp.physical_birth()))
}

/// What was found and is not written down yet.
#[derive(Debug, Default)]
pub(crate) struct Found(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: BTreeSet<Lost>,
    scrub: BTreeSet<Lost>,
    scrubbing: bool,
    /// Of something the scrub did not find out whether it is lost.
    is_left_open: bool,
    /// What is to become of the lists in the pool.
    then: Option<Then>,
    /// What a scrub of the log finds out, while one runs.
    check: Option<Check>,
    /// To be taken out of both lists.
    forgotten: BTreeSet<LoggedError>,
    /// Told of in this import already.
    known: BTreeSet<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The scrub's list takes the place of the other.
    Rotate,
    /// It joins the other: what it has is true, but not all there is.
    Merge,
}

/// What a scrub of the log finds out.
#[derive(Debug, Default)]
struct Check {
    /// The blocks that an entry is about, as far as somebody has them.
    named: BTreeMap<LoggedError, BTreeSet<Block>>,
    /// Those that were read and are whole.
    whole: BTreeSet<Block>,
    /// What others met in a bad state meanwhile: object, level, block.
    lost: BTreeSet<(u64, i64, u64)>,
}

impl Check {
    /// Entries of which nothing is lost.
    fn over(self) -> BTreeSet<LoggedError> {
        let Self { named, whole, lost } = self;
        let is_over = |at: Bookmark, blocks: &BTreeSet<Block>| {
            blocks.is_subset(&whole) && !lost.contains(&(at.object, at.level, at.blkid))
        };
        let over = named.into_iter().filter(|(entry, blocks)| is_over(entry.at, blocks));
        over.map(|(entry, _)| entry).collect()
    }
}

impl Waiting {
    fn is_news(&mut self, lost: Lost) -> bool {
        self.known.len() < WAITING_MAX && self.known.insert(lost)
    }

    /// What the scrub found joins what was known, of which it found out less than everything.
    fn join(&mut self) {
        // It is true all the same.
        let found = std::mem::take(&mut self.scrub);
        self.last.extend(found);
        self.scrubbing = false;
        self.then = self.then.or(Some(Then::Merge));
    }
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
        if let Some(check) = &mut waiting.check {
            if check.lost.len() < WAITING_MAX {
                check.lost.insert((at.object, at.level, at.blkid));
            } else {
                // Of more than is remembered nothing is called whole.
                check.whole.clear();
            }
        }
        waiting.is_news((at, birth))
    }

    /// A block is lost that the log has already; true if that is news.
    pub(super) fn is_news(&self, at: Bookmark, birth: u64) -> bool {
        self.0.lock().is_news((at, birth))
    }

    pub(super) fn scrub_begins(&self) {
        let mut waiting = self.0.lock();
        (waiting.scrubbing, waiting.is_left_open) = (true, false);
        waiting.scrub.clear();
        // One that was stopped by others may have left what it met.
        waiting.then = waiting.then.or(Some(Then::Merge));
    }

    /// A scrub of another import goes on, which met errors or not: of which kind these were is not known any more.
    pub(super) fn scrub_goes_on(&self, with_errors: bool) {
        let mut waiting = self.0.lock();
        (waiting.scrubbing, waiting.is_left_open) = (true, with_errors);
    }

    /// Of something it is not known whether it is lost, as those are not here, or not in use, who may have it: what was known
    /// outlives the scrub that runs, if one does.
    pub(super) fn left_open(&self) {
        self.0.lock().is_left_open = true;
    }

    pub(super) fn scrub_ended(&self) {
        let mut waiting = self.0.lock();
        match waiting.is_left_open {
            true => waiting.join(),
            false => (waiting.scrubbing, waiting.then) = (false, Some(Then::Rotate)),
        }
        waiting.known.clear();
    }

    pub(super) fn scrub_cancelled(&self) {
        self.0.lock().join();
    }

    /// A scrub of the log begins.
    pub(super) fn check_begins(&self) {
        self.0.lock().check = Some(Check::default());
    }

    /// An entry is about these blocks; about none if nobody has what it was about.
    pub(super) fn named<'a>(&self, entry: LoggedError, blocks: impl Iterator<Item = &'a BlkPtr>) {
        if let Some(check) = &mut self.0.lock().check {
            check.named.insert(entry, blocks.filter_map(block).collect());
        }
    }

    /// The scrub of the log has read a block, and it is whole.
    pub(super) fn whole(&self, bp: &BlkPtr) {
        if let Some(check) = &mut self.0.lock().check
            && check.lost.len() < WAITING_MAX
        {
            check.whole.extend(block(bp));
        }
    }

    /// The scrub of the log is over. Says how many entries are forgotten.
    pub(super) fn check_ended(&self) -> u64 {
        let mut waiting = self.0.lock();
        let over = waiting.check.take().map(Check::over).unwrap_or_default();
        let count = over.len() as u64;
        waiting.forgotten.extend(over);
        waiting.known.clear();
        count
    }
}

/// Writes down what was found.
pub(super) async fn sync(cx: &mut Syncer, found: &Found) -> Result<(), EngineError> {
    let (then, forgotten, last, scrub) = {
        let mut waiting = found.0.lock();
        let waiting = &mut *waiting;
        (
            waiting.then.take(),
            std::mem::take(&mut waiting.forgotten),
            std::mem::take(&mut waiting.last),
            std::mem::take(&mut waiting.scrub),
        )
    };
    let Err(error) = write(cx, then, &forgotten, &last, &scrub).await else { return Ok(()) };
    begin_anew(cx, error).await?;
    write(cx, then, &forgotten, &last, &scrub).await
}

async fn write(
    cx: &mut Syncer,
    then: Option<Then>,
    forgotten: &BTreeSet<LoggedError>,
    last: &BTreeSet<Lost>,
    scrub: &BTreeSet<Lost>,
) -> Result<(), EngineError> {
    // Before what was met since is added.
    forget(cx, forgotten).await?;
    match then {
        Some(Then::Merge) => merge(cx).await?,
        Some(Then::Rotate) => {
            add(cx, SCRUB, scrub).await?;
            drop_log(cx, LAST).await?;
            merge(cx).await?;
            return add(cx, LAST, last).await;
        }
        None => {}
    }
    add(cx, LAST, last).await?;
    add(cx, SCRUB, scrub).await
}

/// What was to be done with the logs failed. Others take the places of those that are damaged, so that it can be done again:
/// what these say is not worth the pool.
///
/// # Errors
/// That is not what is wrong.
pub(super) fn begin_anew(cx: &mut Syncer, error: EngineError) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        if !is_damage(&error) {
            return Err(error);
        }
        let mut is_any_damaged = false;
        for name in [LAST, SCRUB] {
            let Some(object) = log(cx, name).await? else { continue };
            let Err(error) = read_through(cx, object).await else { continue };
            if !is_damage(&error) {
                return Err(error);
            }
            tracing::warn!(pool = cx.name, log = name, %error, "an error log cannot be read and begins anew");
            zap::set_u64(&mut cx.mos, DIRECTORY, name, 0).await?;
            free_damaged(cx, object).await;
            is_any_damaged = true;
        }
        if is_any_damaged { Ok(()) } else { Err(error) }
    })
}

/// Frees a log as far as that can be done.
async fn free_damaged(cx: &mut Syncer, object: u64) {
    let lists = match by_head(cx).await {
        Ok(true) => zap::numbers(&mut cx.mos, object).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    for object in lists.into_iter().map(|(_, list)| list).chain([object]) {
        if let Err(error) = free_if_led_to(cx, object).await {
            // What it takes is a few KiB, and nothing leads there any more.
            tracing::warn!(object, %error, "an error log that cannot be read is left where it is");
        }
    }
}

/// Frees an object whose blocks can all be found: else the transaction group would fail later, when they are freed.
async fn free_if_led_to(cx: &mut Syncer, object: u64) -> Result<(), EngineError> {
    if !cx.mos.exists(object).await? {
        return Ok(());
    }
    let found = cx.mos.object(object).await?;
    let mut runs = found.runs(0, 0..found.max_block_id().saturating_add(1));
    while runs.next().await?.is_some() {}
    cx.mos.free(object).await
}

/// Whether something cannot be read, and will not be some other time either.
fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::Read(_)) && !may_pass_of(error)
}

/// Reads all of a log.
async fn read_through(cx: &mut Syncer, object: u64) -> Result<(), EngineError> {
    if !by_head(cx).await? {
        zap::entries(&mut cx.mos, object).await?;
        return Ok(());
    }
    for (_, list) in zap::numbers(&mut cx.mos, object).await? {
        if cx.mos.exists(list).await? {
            zap::entries(&mut cx.mos, list).await?;
        }
    }
    Ok(())
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

/// What the scrub's list has is in the other one from now on.
async fn merge(cx: &mut Syncer) -> Result<(), EngineError> {
    let Some(scrub) = log(cx, SCRUB).await? else { return Ok(()) };
    let Some(last) = log(cx, LAST).await? else {
        zap::set_u64(&mut cx.mos, DIRECTORY, LAST, scrub).await?;
        return zap::set_u64(&mut cx.mos, DIRECTORY, SCRUB, 0).await;
    };
    let mut lists = Vec::new();
    if by_head(cx).await? {
        for (head, list) in zap::numbers(&mut cx.mos, scrub).await? {
            if cx.mos.exists(list).await? {
                lists.push((list, list_of(cx, last, &head).await?));
            }
        }
    } else {
        lists.push((scrub, last));
    }
    for (from, into) in lists {
        let entries = zap::entries(&mut cx.mos, from).await?;
        zap::set_many(&mut cx.mos, into, entries).await?;
    }
    drop_log(cx, SCRUB).await
}

/// Takes entries out of both lists.
async fn forget(cx: &mut Syncer, entries: &BTreeSet<LoggedError>) -> Result<(), EngineError> {
    if entries.is_empty() {
        return Ok(());
    }
    let by_head = by_head(cx).await?;
    for name in [LAST, SCRUB] {
        let Some(object) = log(cx, name).await? else { continue };
        let mut lists = BTreeMap::new();
        if by_head {
            for (head, list) in zap::numbers(&mut cx.mos, object).await? {
                if cx.mos.exists(list).await? {
                    lists.insert(head, list);
                }
            }
        }
        // The log may have changed its form since they were read.
        for entry in entries.iter().filter(|entry| entry.birth.is_some() == by_head) {
            let Bookmark { objset, object: number, level, blkid } = entry.at;
            let (list, key) = match entry.birth {
                Some(birth) => {
                    let key = HeadBookmark { object: number, level, block_id: blkid, birth }.to_string();
                    (lists.get(&format!("{objset:x}")).copied(), key)
                }
                None => {
                    let key = BlockBookmark { objset, object: number, level, block_id: blkid }.to_string();
                    (Some(object), key)
                }
            };
            if let Some(list) = list {
                zap::remove(&mut cx.mos, list, key.as_str().into()).await?;
            }
        }
        for (head, list) in lists {
            if zap::entries(&mut cx.mos, list).await?.is_empty() {
                cx.mos.free(list).await?;
                zap::remove(&mut cx.mos, object, head.as_str().into()).await?;
            }
        }
        if zap::entries(&mut cx.mos, object).await?.is_empty() {
            drop_log(cx, name).await?;
        }
    }
    Ok(())
}

pub(super) async fn add(cx: &mut Syncer, name: &str, lost: &BTreeSet<Lost>) -> Result<(), EngineError> {
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
    for &(at, birth) in lost {
        let Bookmark { objset, object: number, level, blkid } = at;
        let (list, key) = if by_head {
            let head = head(cx, objset).await?;
            let list = list_of(cx, object, &format!("{head:x}")).await?;
            (list, HeadBookmark { object: number, level, block_id: blkid, birth }.to_string())
        } else {
            (object, BlockBookmark { objset, object: number, level, block_id: blkid }.to_string())
        };
        let entry = (OwnedKey::Name(key.into_bytes()), Value::from_text(""));
        zap::set_many(&mut cx.mos, list, vec![entry]).await?;
    }
    Ok(())
}

/// The list that the log `object` has of this head.
async fn list_of(cx: &mut Syncer, object: u64, head: &str) -> Result<u64, EngineError> {
    if let Some(list) = zap::get_u64(&mut cx.mos, object, head).await? {
        return Ok(list);
    }
    let list = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
    zap::set_u64(&mut cx.mos, object, head, list).await?;
    Ok(list)
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
