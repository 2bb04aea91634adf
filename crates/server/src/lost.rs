//! What a pool's error log names, by name: objects of datasets, and of volumes the bytes.
//!
//! A scrub reads a block that several share only once, for the oldest snapshot that has it, and that is where the log has
//! it. Clients use what lives; so the live dataset of that snapshot and the snapshot's clones are named as well where they
//! still have the same block.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use pool::{
    Bookmark, Pool,
    dmu::{Cursor, Step},
    dsl::{Dataset, DatasetKind},
    ondisk::blkptr::BlkPtr,
    status::LoggedError,
};

use crate::api::LostBytes;

/// Entries of the log that are named at most.
const ENTRIES_MAX: usize = 1000;

/// Clones of one snapshot that are looked at at most.
const CLONES_MAX: usize = 16;

/// The objects that have lost blocks, and of volumes which bytes; neighbours are one.
pub(crate) async fn named(pool: &Pool, log: &[LoggedError]) -> (Vec<String>, Vec<LostBytes>) {
    let (mut sharers, mut names) = (BTreeMap::new(), BTreeMap::new());
    // By object set and object: blocks of data.
    let mut found = BTreeMap::<(u64, u64), BTreeSet<u64>>::new();
    for entry in log.iter().take(ENTRIES_MAX) {
        let at = entry.at;
        if let Entry::Vacant(vacant) = sharers.entry(at.objset) {
            let all = sharing(pool, at.objset).await;
            vacant.insert(all);
        }
        for (objset, dataset) in having(&sharers[&at.objset], at).await {
            if let Entry::Vacant(vacant) = names.entry(objset) {
                let called = called(objset, dataset).await;
                vacant.insert(called);
            }
            found.entry((objset, at.object)).or_default().extend((at.level == 0).then_some(at.blkid));
        }
    }
    let (mut lines, mut ranges) = (Vec::new(), Vec::<LostBytes>::new());
    for ((objset, object), blocks) in found {
        let (name, block) = &names[&objset];
        let line = format!("{name}:<0x{object:x}>");
        // A volume's data are its object 1.
        if let Some(length) = block.filter(|_| object == 1) {
            for offset in blocks.iter().filter_map(|blkid| blkid.checked_mul(length)) {
                match ranges.last_mut() {
                    Some(last)
                        if last.object == line && last.offset.checked_add(last.length) == Some(offset) =>
                    {
                        last.length += length;
                    }
                    _ => ranges.push(LostBytes { object: line.clone(), offset, length }),
                }
            }
        }
        lines.push(line);
    }
    (lines, ranges)
}

/// The dataset with this number first; of a snapshot then those in use that may share its blocks. Empty if it is not there
/// any more, or is no dataset.
async fn sharing(pool: &Pool, objset: u64) -> Vec<Dataset> {
    let Ok(dsl) = pool.dsl().await else { return Vec::new() };
    let Ok(Some(dataset)) = dsl.by_object(objset).await else { return Vec::new() };
    let mut all = vec![dataset.clone()];
    if dataset.kind() == DatasetKind::Snapshot {
        all.push(dataset.live().clone());
        for clone in dataset.clones().await.unwrap_or_default().iter().take(CLONES_MAX) {
            all.extend(dsl.lookup(clone).await.ok());
        }
    }
    all
}

/// Which object sets have the block that is logged as `at`, of these: always the one that the log names.
async fn having(sharers: &[Dataset], at: Bookmark) -> Vec<(u64, Option<&Dataset>)> {
    let Some((logged, others)) = sharers.split_first() else { return vec![(at.objset, None)] };
    let mut having = vec![(at.objset, Some(logged))];
    if others.is_empty() {
        return having;
    }
    if let Some(lost) = pointer(logged, at).await {
        for other in others {
            if pointer(other, at).await == Some(lost) {
                having.push((other.object(), Some(other)));
            }
        }
    }
    having
}

/// What leads to the block that this dataset has at that place.
async fn pointer(dataset: &Dataset, at: Bookmark) -> Option<BlkPtr> {
    let level = u8::try_from(at.level).ok()?;
    let object = dataset.objset().await.ok()?.object(at.object).await.ok()?;
    match object.seek(&mut Cursor::default(), level, at.blkid).await.ok()? {
        Step::Block(pointer) => Some(pointer),
        Step::Hole { .. } | Step::Need { .. } => None,
    }
}

/// What an object set is called, and of a volume the size of its blocks.
async fn called(objset: u64, dataset: Option<&Dataset>) -> (String, Option<u64>) {
    match dataset {
        Some(dataset) => {
            // A snapshot has that of its volume.
            let properties = dataset.live().properties().await.ok();
            (dataset.name().to_owned(), properties.and_then(|properties| properties.number("volblocksize")))
        }
        None if objset == 0 => ("<metadata>".to_owned(), None),
        None => (format!("<0x{objset:x}>"), None),
    }
}
