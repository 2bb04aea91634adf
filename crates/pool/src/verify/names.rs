//! From numbers to names: which dataset an object set is, which file an object is.
//!
//! Only done for what is wrong, and only as far as it can be read: the damage may be in the very structures
//! that hold the names.

use std::{collections::BTreeMap, sync::Arc};

use super::{is_objset, report::Location};
use crate::{
    Pool,
    io::Bookmark,
    traverse::{LEVEL_LOG, SPILL},
    zpl::FileSystem,
};

/// Directories on the way from a file to its root.
const DEPTH_MAX: usize = 256;
/// Files whose paths are looked up; beyond, numbers must do.
const PATHS_MAX: usize = 1000;
/// Entries of a directory that are searched for a name.
const NAMES_MAX: u64 = 100_000;

/// A dataset's name; once asked for, its file system, if it has one that can be read.
type Named = (String, Option<Option<FileSystem>>);

pub(super) struct Names<'p> {
    pool: &'p Arc<Pool>,
    /// By object number in the MOS: name and, once asked for, the file system.
    datasets: Option<BTreeMap<u64, Named>>,
    paths: BTreeMap<(u64, u64), Option<String>>,
}

impl<'p> Names<'p> {
    pub(super) fn new(pool: &'p Arc<Pool>) -> Self {
        Self { pool, datasets: None, paths: BTreeMap::new() }
    }

    /// Where block `at` is.
    pub(super) async fn locate(&mut self, at: Bookmark, block_bytes: u64) -> Location {
        let mut location = Location::default();
        if at.level == 0 && at.blkid != SPILL && block_bytes > 0 && at.object != 0 {
            location.offset = at.blkid.checked_mul(block_bytes);
        }
        if at.objset == 0 {
            return location;
        }
        self.load().await;
        location.dataset = self.datasets.as_ref().and_then(|all| Some(all.get(&at.objset)?.0.clone()));
        if at.object != 0 && !is_objset(&at) && at.level != LEVEL_LOG {
            location.path = self.path(at.objset, at.object).await;
        }
        location
    }

    async fn load(&mut self) {
        if self.datasets.is_some() {
            return;
        }
        let mut all = BTreeMap::new();
        if let Ok(dsl) = self.pool.dsl().await
            && let Ok(root) = dsl.root().await
        {
            for dataset in dsl.tree(root).await.0 {
                if dataset.object() != 0 {
                    all.insert(dataset.object(), (dataset.name().to_owned(), None));
                }
            }
        }
        self.datasets = Some(all);
    }

    async fn path(&mut self, objset: u64, object: u64) -> Option<String> {
        if let Some(known) = self.paths.get(&(objset, object)) {
            return known.clone();
        }
        if self.paths.len() >= PATHS_MAX {
            return None;
        }
        let path = self.find_path(objset, object).await;
        self.paths.insert((objset, object), path.clone());
        path
    }

    async fn find_path(&mut self, objset: u64, object: u64) -> Option<String> {
        let (name, opened) = self.datasets.as_mut()?.get_mut(&objset)?;
        if opened.is_none() {
            let dataset = self.pool.dsl().await.ok()?.lookup(name).await.ok()?;
            *opened = Some(match dataset.objset().await {
                Ok(set) => FileSystem::open(set).await.ok(),
                Err(_) => None,
            });
        }
        let fs = opened.as_ref()?.as_ref()?;
        let mut node = fs.node(object).await.ok()?;
        let root = fs.root().await.ok()?.number();
        let mut parts: Vec<String> = Vec::new();
        while node.number() != root {
            let parent = fs.node(node.parent()).await.ok()?;
            if parts.len() >= DEPTH_MAX || parent.stat().size > NAMES_MAX {
                return None;
            }
            let entries = parent.entries().await.ok()?;
            let entry = entries.into_iter().find(|entry| entry.object == node.number())?;
            parts.push(String::from_utf8_lossy(&entry.name).into_owned());
            node = parent;
        }
        parts.reverse();
        Some(format!("/{}", parts.join("/")))
    }
}
