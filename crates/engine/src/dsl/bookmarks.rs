//! Bookmarks: where a snapshot was, to send increments from after it is gone.
//!
//! They live in a ZAP that is an attribute of the head; feature `bookmarks` counts heads that have one. Ours have the
//! three words of version 1, or, where the snapshot is of an encrypted dataset, all words for the sake of the last: the
//! identity of its initialisation vectors, without which no raw increment is received. Those of other software may count
//! what was freed between their snapshot and the next; that is not kept up here, so a bookmark forgets it as soon as its
//! dataset changes.
//! Facts: docs/format/mos.md §6, features.md.

use ondisk::{
    dnode::ObjectType,
    dsl::{BookmarkPhys, DatasetPhys, keys},
    zap::{NORM_UPPER, OwnedKey, Value},
};
use pool::{Bookmark as At, dmu::ReadError, dsl::name::Part};

use super::{OpError, attributes, dataset, destroy, dir, find};
use crate::{
    BoxFuture, EngineError,
    mos::{features, zap},
    sync::Syncer,
};

const FEATURE: &str = "com.delphix:bookmarks";
/// Counts bookmarks of more than three words.
pub(super) const LONG: &str = "com.datto:bookmark_v2";
/// Counts bookmarks that know what was written since.
const WRITTEN: &str = "com.delphix:bookmark_written";
/// Of the words behind the first three: which has the flags, the flag for space figures, those figures, the identity of the
/// initialisation vectors, and how many there are.
const FLAGS: usize = 1;
const HAS_SPACE: u64 = 1;
const SPACE: std::ops::Range<usize> = 2..8;
const VECTORS: usize = 8;
const EXTRA: usize = 9;

/// Whether a bookmark has space figures.
fn has_space(bookmark: &BookmarkPhys) -> bool {
    bookmark.extra.get(FLAGS).is_some_and(|flags| flags & HAS_SPACE != 0)
}

/// The words behind the first three of a bookmark whose snapshot has this identity of its initialisation vectors.
async fn extra(cx: &mut Syncer, vectors: Option<u64>) -> Result<Vec<u64>, EngineError> {
    let mut extra = Vec::new();
    if let Some(vectors) = vectors.filter(|vectors| *vectors != 0)
        && features::count(&mut cx.mos, LONG).await?.is_some()
    {
        extra.resize(EXTRA, 0);
        extra[VECTORS] = vectors;
    }
    Ok(extra)
}

/// Counts a bookmark out of the features it is in.
async fn uncount(cx: &mut Syncer, bookmark: &BookmarkPhys) -> Result<(), EngineError> {
    if !bookmark.extra.is_empty() {
        features::add(&mut cx.mos, LONG, -1).await?;
    }
    if has_space(bookmark) {
        features::add(&mut cx.mos, WRITTEN, -1).await?;
    }
    Ok(())
}

/// Takes the space figures out of the bookmarks of a head, because blocks or snapshots they count are changing.
pub(super) async fn forget_space(cx: &mut Syncer, head: u64) -> Result<(), EngineError> {
    if features::count(&mut cx.mos, WRITTEN).await?.is_none_or(|count| count == 0) {
        return Ok(());
    }
    let Some(map) = attributes::get_u64(&mut cx.mos, head, keys::BOOKMARKS).await? else { return Ok(()) };
    for (name, mut bookmark) in all(cx, head).await? {
        if has_space(&bookmark) {
            bookmark.extra[FLAGS] &= !HAS_SPACE;
            let figures = SPACE.start..SPACE.end.min(bookmark.extra.len());
            bookmark.extra[figures].fill(0);
            let value = Value::from_u64s(&bookmark.to_words());
            zap::set(&mut cx.mos, map, name.as_str().into(), value).await?;
            features::add(&mut cx.mos, WRITTEN, -1).await?;
        }
    }
    Ok(())
}

/// The bookmarks of a head: (name, what it says).
pub(super) async fn all(cx: &mut Syncer, head: u64) -> Result<Vec<(String, BookmarkPhys)>, EngineError> {
    let Some(map) = attributes::get_u64(&mut cx.mos, head, keys::BOOKMARKS).await? else {
        return Ok(Vec::new());
    };
    let mut bookmarks = Vec::new();
    for (key, value) in zap::entries(&mut cx.mos, map).await? {
        let Some(name) = key.name().and_then(|name| String::from_utf8(name.to_vec()).ok()) else { continue };
        let words: Vec<u64> = value.integers().collect();
        let at = At { object: map, ..At::default() };
        bookmarks.push((name, BookmarkPhys::from_words(&words).map_err(ReadError::malformed(at))?));
    }
    Ok(bookmarks)
}

/// Of these bookmarks of a head the one with this name: with just this, or with one that is the same for the head.
pub(super) fn named<'a>(
    known: &'a [(String, BookmarkPhys)],
    head: &DatasetPhys,
    name: &str,
) -> Option<&'a (String, BookmarkPhys)> {
    let exactly = known.iter().find(|(other, _)| other == name);
    exactly.or_else(|| known.iter().find(|(other, _)| head.is_same_name(other, name)))
}

/// The list that a bookmark of a head is entered in.
async fn map_for_more(cx: &mut Syncer, head: u64, phys: &DatasetPhys) -> Result<u64, EngineError> {
    let old = attributes::get_u64(&mut cx.mos, head, keys::BOOKMARKS).await?;
    if let Some(map) = old
        && (!phys.ignores_case() || zap::normflags(&mut cx.mos, map).await? != 0)
    {
        return Ok(map);
    }
    let map = zap::create(&mut cx.mos, ObjectType::ZAP_METADATA, NORM_UPPER).await?;
    match old {
        // Made here once: OpenZFS finds nothing in any case where names are not hashed so.
        Some(old) => {
            let entries = zap::entries(&mut cx.mos, old).await?;
            zap::set_many(&mut cx.mos, map, entries).await?;
            cx.mos.free(old).await?;
        }
        None => {
            features::add(&mut cx.mos, FEATURE, 1).await?;
        }
    }
    attributes::set(&mut cx.mos, head, keys::BOOKMARKS, Value::from_u64(map)).await?;
    Ok(map)
}

/// Whether a bookmark of the head of `dir` stands where a snapshot of txg `txg` was.
pub(super) async fn is_marked(cx: &mut Syncer, dir: u64, txg: u64) -> Result<bool, EngineError> {
    let head = dir::load(&mut cx.mos, dir).await?.head_dataset;
    Ok(all(cx, head).await?.iter().any(|(_, bookmark)| bookmark.creation_txg == txg))
}

/// Gives bookmarks of head `from`, as they are and counted as they are, to head `to`, which has none of these names.
pub(super) async fn hand_over(
    cx: &mut Syncer,
    from: u64,
    to: u64,
    bookmarks: &[(String, BookmarkPhys)],
) -> Result<(), EngineError> {
    let Some(old) = attributes::get_u64(&mut cx.mos, from, keys::BOOKMARKS).await? else { return Ok(()) };
    if bookmarks.is_empty() {
        return Ok(());
    }
    let phys = dataset::load(&mut cx.mos, to).await?;
    let map = map_for_more(cx, to, &phys).await?;
    let entry = |(name, bookmark): &(String, BookmarkPhys)| {
        (OwnedKey::Name(name.clone().into_bytes()), Value::from_u64s(&bookmark.to_words()))
    };
    zap::set_many(&mut cx.mos, map, bookmarks.iter().map(entry).collect()).await?;
    for (name, _) in bookmarks {
        zap::remove(&mut cx.mos, old, name.as_str().into()).await?;
    }
    if zap::entries(&mut cx.mos, old).await?.is_empty() {
        forget_map(cx, from, old).await?;
    }
    Ok(())
}

/// Removes the list of bookmarks of a head that is being destroyed.
pub(super) async fn forget_all(cx: &mut Syncer, head: u64) -> Result<(), EngineError> {
    if let Some(map) = attributes::get_u64(&mut cx.mos, head, keys::BOOKMARKS).await? {
        for (_, bookmark) in all(cx, head).await? {
            uncount(cx, &bookmark).await?;
        }
        forget_map(cx, head, map).await?;
    }
    Ok(())
}

/// Removes the list itself, whose bookmarks are counted out or another head's.
async fn forget_map(cx: &mut Syncer, head: u64, map: u64) -> Result<(), EngineError> {
    cx.mos.free(map).await?;
    attributes::remove(&mut cx.mos, head, keys::BOOKMARKS).await?;
    features::add(&mut cx.mos, FEATURE, -1).await?;
    Ok(())
}

/// The head and last name that a bookmark's full name means.
async fn place(cx: &mut Syncer, full: &str) -> Result<(find::Head, String), OpError> {
    let (_, Part::Bookmark(last)) = find::parse(cx, full)? else {
        return Err(OpError::Refused(format!("'{full}' is not a name of a bookmark")));
    };
    let dataset = full.split('#').next().unwrap_or_default();
    Ok((find::head(cx, dataset).await?, last.to_owned()))
}

/// `zfs bookmark`: from a snapshot or another bookmark.
pub fn bookmark<'a>(cx: &'a mut Syncer, from: &'a str, name: &'a str) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        if features::count(&mut cx.mos, FEATURE).await?.is_none() {
            return Err(OpError::Refused("bookmark feature not enabled".into()));
        }
        let (head, last) = place(cx, name).await?;
        let head_phys = dataset::load(&mut cx.mos, head.object).await?;
        let foreign = || OpError::Refused("source is not an ancestor of the new bookmark's dataset".into());
        let mark = match find::parse(cx, from)?.1 {
            Part::Snapshot(_) => {
                let snapshot = find::snapshot(cx, from).await?;
                let phys = dataset::load(&mut cx.mos, snapshot.object).await?;
                if !comes_before(cx, head.dir, phys.dir, phys.creation_txg).await? {
                    return Err(foreign());
                }
                let vectors = attributes::get_u64(&mut cx.mos, snapshot.object, keys::IVSET_GUID).await?;
                BookmarkPhys {
                    guid: phys.guid,
                    creation_txg: phys.creation_txg,
                    creation_time: phys.creation_time,
                    extra: extra(cx, vectors).await?,
                }
            }
            Part::Bookmark(_) => {
                let (source, source_name) = place(cx, from).await?;
                let source_phys = dataset::load(&mut cx.mos, source.object).await?;
                let known = all(cx, source.object).await?;
                let (_, found) = named(&known, &source_phys, &source_name).ok_or(OpError::NoDataset)?;
                if !comes_before(cx, head.dir, source.dir, found.creation_txg).await? {
                    return Err(foreign());
                }
                BookmarkPhys { extra: extra(cx, found.extra.get(VECTORS).copied()).await?, ..*found }
            }
            Part::Head => return Err(OpError::Refused("invalid argument".into())),
        };
        if named(&all(cx, head.object).await?, &head_phys, &last).is_some() {
            return Err(OpError::Refused("bookmark exists".into()));
        }
        let map = map_for_more(cx, head.object, &head_phys).await?;
        if !mark.extra.is_empty() {
            features::add(&mut cx.mos, LONG, 1).await?;
        }
        let value = Value::from_u64s(&mark.to_words());
        Ok(zap::set(&mut cx.mos, map, last.as_str().into(), value).await?)
    })
}

/// Whether what a snapshot of directory `dir` had in transaction group `txg` is in the chain of the directory `head`, that of its
/// origin included, be the snapshot itself there or not.
async fn comes_before(cx: &mut Syncer, head: u64, dir: u64, txg: u64) -> Result<bool, EngineError> {
    let (mut at, mut until) = (head, u64::MAX);
    while at != dir {
        let origin = dir::load(&mut cx.mos, at).await?.origin;
        if origin == 0 {
            return Ok(false);
        }
        let phys = dataset::load(&mut cx.mos, origin).await?;
        // Each is older than the one after it, so the walk ends.
        if phys.creation_txg >= until {
            return Err(dir::inconsistent(origin, "the chain of origins forms a loop"));
        }
        (at, until) = (phys.dir, phys.creation_txg);
    }
    Ok(txg <= until)
}

/// Destroys a bookmark.
pub fn destroy_bookmark<'a>(cx: &'a mut Syncer, name: &'a str) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let (head, last) = place(cx, name).await?;
        let head_phys = dataset::load(&mut cx.mos, head.object).await?;
        let known = all(cx, head.object).await?;
        let Some((stored, gone)) = named(&known, &head_phys, &last) else {
            return Err(OpError::Refused(format!("bookmark '{name}' does not exist")));
        };
        if gone.redaction_object().is_some() {
            return Err(OpError::Refused("redaction bookmarks can only be read".into()));
        }
        let txg = gone.creation_txg;
        if known.len() == 1 {
            forget_all(cx, head.object).await?;
        } else if let Some(map) = attributes::get_u64(&mut cx.mos, head.object, keys::BOOKMARKS).await? {
            uncount(cx, gone).await?;
            zap::remove(&mut cx.mos, map, stored.as_str().into()).await?;
        }
        // The deadlists told blocks apart at the snapshot's txg for the bookmark's sake, if the snapshot is gone.
        let mut lives = head_phys.prev_snap_txg == txg;
        for (_, snapshot) in dataset::snapshots(&mut cx.mos, &head_phys).await? {
            lives |= dataset::load(&mut cx.mos, snapshot).await?.creation_txg == txg;
        }
        let dir_phys = dir::load(&mut cx.mos, head.dir).await?;
        let is_own = txg > dir::origin_txg(&mut cx.mos, &dir_phys).await?;
        if is_own && !lives && !is_marked(cx, head.dir, txg).await? {
            destroy::forget_key(cx, head.dir, txg).await?;
        }
        Ok(())
    })
}
