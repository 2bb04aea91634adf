//! Many datasets at once: all that are below one, and the snapshots of many. A large pool has thousands of each, and hosts
//! wait for their disks while it is listed at a start. So what does not hang on each other is read side by side: one after
//! the other it is minutes on disks that turn.

use std::collections::BTreeSet;

use super::{Dataset, DatasetKind, Dsl, LookupError, Reached};
use crate::{
    BoxFuture,
    dmu::ReadError,
    io::{Bookmark as At, join::join_all},
    zap::Numbers,
};

/// Datasets that are read at a time.
const AT_ONCE: usize = 64;
/// Those that wait in memory for their turn.
const PORTION: usize = 16 * AT_ONCE;

impl Dsl {
    /// `from` and everything below it: each dataset, then its snapshots oldest first, then its bookmarks, then its
    /// children by name.
    ///
    /// Datasets whose structures cannot be read are left out and reported in the second list.
    pub fn tree(&self, from: Dataset) -> BoxFuture<'_, Reached> {
        Box::pin(async move {
            if from.kind() != DatasetKind::Head {
                return (vec![from], Vec::new());
            }
            let (heads, mut errors) = self.heads(from).await;
            let (snapshots, failed) = self.snapshots_of(&heads).await;
            errors.extend(failed);
            let bookmarks = heads.iter().map(Dataset::bookmarks).collect();
            let bookmarks = join_all(bookmarks, AT_ONCE).await;
            let mut all = Vec::new();
            for ((head, snapshots), bookmarks) in heads.into_iter().zip(snapshots).zip(bookmarks) {
                let bookmarks = bookmarks.unwrap_or_else(|error| {
                    errors.push(unreadable(&head, error));
                    Vec::new()
                });
                all.push(head);
                all.extend(snapshots);
                all.extend(bookmarks);
            }
            (all, errors)
        })
    }

    /// The live dataset `from` and those below it, in the order of [`tree`](Self::tree). Those whose structures cannot be
    /// read are left out, with all below them, and reported in the second list.
    pub fn heads(&self, from: Dataset) -> BoxFuture<'_, Reached> {
        self.heads_within(from, u64::MAX)
    }

    /// The same, no more than `depth` steps below `from`.
    pub fn heads_within(&self, from: Dataset, depth: u64) -> BoxFuture<'_, Reached> {
        Box::pin(async move {
            let (mut all, mut errors) = (Vec::new(), Vec::new());
            // A forged child map may lead back to an ancestor.
            let mut seen = BTreeSet::new();
            let (mut level, mut steps) = (vec![from], 0);
            while !level.is_empty() {
                level.retain(|head: &Dataset| {
                    let object = head.dir().object();
                    let is_new = seen.insert(object);
                    if !is_new {
                        let at = At { object, ..At::default() };
                        let what = "two child maps lead to this dataset";
                        errors.push(unreadable(head, ReadError::Inconsistent { at, what }));
                    }
                    is_new
                });
                let below = match steps < depth {
                    true => children_of(&level).await,
                    false => Vec::new(),
                };
                let mut next = Vec::new();
                for (head, found) in level.iter().zip(below) {
                    match found {
                        Ok((children, failed)) => {
                            next.extend(children);
                            errors.extend(failed);
                        }
                        Err(error) => errors.push(unreadable(head, error)),
                    }
                }
                all.append(&mut level);
                (level, steps) = (next, steps + 1);
            }
            // Each before what is below it, and that before its next sibling: `a`, `a/b`, `a-b`.
            all.sort_by(|one: &Dataset, other: &Dataset| one.name().split('/').cmp(other.name().split('/')));
            (all, errors)
        })
    }

    /// For each of these live datasets, in their order, its snapshots, oldest first. Those that cannot be read are left out,
    /// and reported in the second list.
    pub fn snapshots_of<'a>(
        &'a self,
        heads: &'a [Dataset],
    ) -> BoxFuture<'a, (Vec<Vec<Dataset>>, Vec<LookupError>)> {
        Box::pin(async move {
            let (mut all, mut failed) = (Vec::with_capacity(heads.len()), Vec::new());
            for some in heads.chunks(AT_ONCE) {
                let lists =
                    some.iter().map(|head| Box::pin(head.snapshot_numbers()) as BoxFuture<'_, _>).collect();
                let lists: Vec<Result<Numbers, ReadError>> = join_all(lists, AT_ONCE).await;
                let objects: Vec<u64> = lists.iter().flatten().flatten().map(|(_, object)| *object).collect();
                let mut found = self.mos().dnodes(&objects).await.into_iter();
                for (head, list) in some.iter().zip(lists) {
                    let list = list.unwrap_or_else(|error| {
                        failed.push(unreadable(head, error));
                        Vec::new()
                    });
                    let mut snapshots = Vec::with_capacity(list.len());
                    for ((name, _), dnode) in list.into_iter().zip(found.by_ref()) {
                        match dnode.and_then(|dnode| head.snapshot_in(&name, dnode)) {
                            Ok(snapshot) => snapshots.push(snapshot),
                            Err(source) => {
                                let name = format!("{}@{name}", head.name());
                                failed.push(LookupError::Read { name, source });
                            }
                        }
                    }
                    snapshots.sort_by_key(Dataset::create_txg);
                    all.push(snapshots);
                }
            }
            (all, failed)
        })
    }
}

/// For each of these, in their order, the live datasets right below it, by name, and those that cannot be read. An error: the
/// list of them cannot be.
pub(super) async fn children_of(parents: &[Dataset]) -> Vec<Result<Reached, ReadError>> {
    let mut lists: Vec<Result<Numbers, ReadError>> = Vec::with_capacity(parents.len());
    for some in parents.chunks(PORTION) {
        let reads = some.iter().map(|parent| Box::pin(parent.child_numbers()) as BoxFuture<'_, _>).collect();
        lists.extend(join_all(reads, AT_ONCE).await);
    }
    let mut wanted: Vec<(&Dataset, &str, u64)> = Vec::new();
    for (parent, list) in parents.iter().zip(&lists) {
        wanted.extend(list.iter().flatten().map(|(name, object)| (parent, name.as_str(), *object)));
    }
    let mut heads: Vec<Result<Dataset, ReadError>> = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(PORTION) {
        let reads = some
            .iter()
            .map(|(parent, name, object)| Box::pin(parent.child(name, *object)) as BoxFuture<'_, _>)
            .collect();
        heads.extend(join_all(reads, AT_ONCE).await);
    }
    let mut heads = heads.into_iter();
    let mut all = Vec::with_capacity(parents.len());
    for (parent, list) in parents.iter().zip(lists) {
        all.push(list.map(|list| {
            let (mut children, mut failed) = (Vec::new(), Vec::new());
            for ((name, _), head) in list.into_iter().zip(heads.by_ref()) {
                match head {
                    Ok(head) => children.push(head),
                    Err(source) => {
                        failed.push(LookupError::Read { name: format!("{}/{name}", parent.name()), source });
                    }
                }
            }
            (children, failed)
        }));
    }
    all
}

fn unreadable(dataset: &Dataset, source: ReadError) -> LookupError {
    LookupError::Read { name: dataset.name().to_owned(), source }
}
