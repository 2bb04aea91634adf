//! Datasets: file systems, volumes, their snapshots, clones and bookmarks, as a tree of names.
//!
//! ```text
//!   DSL dir "a/b" ── head ──▶ dataset (live) ── prev ──▶ @newest ── prev ──▶ … ──▶ $ORIGIN@$ORIGIN
//!     │  └ props, space      │ └ snapshot map: name ─▶ dataset
//!     └ child map: name ─▶ DSL dir
//! ```
//!
//! A *dir* has the name, the place in the tree, the properties and the space of everything below; a *dataset* is
//! one point in time of its content. [`Dsl`] finds them by name and caches the dirs it met: the pool is open
//! read-only, so nothing it read becomes wrong.
//!
//! Dirs whose names begin with `$` are the pool's own, those with `%` belong to receives that were interrupted;
//! neither is listed. Encrypted datasets are: only their content is out of reach.
//!
//! Not here: properties as users see them (`props`), content (`volume`, `zpl`). Facts: docs/format/mos.md §6.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ondisk::{blkptr::BlkPtr, bpobj::BpobjPhys, dnode::ObjectType};
use parking_lot::Mutex;

use crate::{
    BoxFuture,
    dmu::{DnodeAt, ObjectSet, ReadError},
    io::Bookmark as At,
    space::{deflate_ratios, deflated_size, dsize},
    vdev::Tree,
    zap::Zap,
};

mod dataset;
mod dir;
pub mod name;
mod reclaim;
mod sharing;
mod space;
mod volumes;
mod walk;

pub use dataset::{Dataset, DatasetKind, HeadKind, Hold};
pub use dir::Dir;
pub use name::{LookupError, NameError};
pub use sharing::Sharing;
pub use space::PoolSpace;
pub use volumes::{CACHING, VolumeLookupError};

/// Datasets that could be read, and those that could not.
pub type Reached = (Vec<Dataset>, Vec<LookupError>);

/// Names of snapshots, without what they are of, each with the transaction group of its creation; and those that could not
/// be read.
pub type Named = (Vec<(String, u64)>, Vec<LookupError>);

/// The object directory of the MOS.
const OBJECT_DIRECTORY: u64 = 1;
/// Deeper than any legal name (255 bytes, a slash each): a chain of parents this long is a loop.
const DEPTH_MAX: usize = 256;

/// The datasets of one pool. Cheap to clone.
#[derive(Clone)]
pub struct Dsl(Arc<Inner>);

struct Inner {
    pool: String,
    pool_guid: u64,
    mos: Arc<ObjectSet>,
    directory: Zap,
    root: u64,
    space: PoolSpace,
    /// What bytes on each top-level device count.
    ratios: Vec<u64>,
    sharing: Sharing,
    dirs: Mutex<BTreeMap<u64, Arc<Dir>>>,
}

impl fmt::Debug for Dsl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dsl({})", self.0.pool)
    }
}

impl Dsl {
    /// Opens the tree of datasets of the pool with these devices whose meta object set is `mos`. `elsewhere` is what lies on
    /// devices for metadata and dedup tables, in accounted bytes.
    ///
    /// # Errors
    /// The object directory cannot be read or names no root dataset.
    pub fn open<'a>(
        pool: &'a str,
        pool_guid: u64,
        mos: Arc<ObjectSet>,
        tree: &Tree,
        elsewhere: u64,
    ) -> BoxFuture<'a, Result<Self, ReadError>> {
        let (devices, ratios) = (deflated_size(tree), deflate_ratios(tree));
        Box::pin(async move {
            let directory = Zap::open_in(&mos, OBJECT_DIRECTORY).await?;
            let at = At { objset: 0, object: OBJECT_DIRECTORY, level: 0, blkid: 0 };
            let missing = ReadError::Inconsistent { at, what: "the object directory has no root dataset" };
            let root = directory.get_u64("root_dataset").await?.ok_or(missing)?;
            let sharing = Sharing::read(&mos, &directory).await?;
            let deferred = deferred_bytes(&mos, &directory).await?;
            let space = PoolSpace { devices, shared: sharing.saved(), elsewhere, deferred };
            let dirs = Mutex::default();
            Ok(Self(Arc::new(Inner {
                pool: pool.to_owned(),
                pool_guid,
                mos,
                directory,
                root,
                space,
                ratios,
                sharing,
                dirs,
            })))
        })
    }

    /// Name of the pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.0.pool
    }

    /// Guid of the pool.
    #[must_use]
    pub fn pool_guid(&self) -> u64 {
        self.0.pool_guid
    }

    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.0.mos
    }

    /// The object directory of the meta object set.
    #[must_use]
    pub fn directory(&self) -> &Zap {
        &self.0.directory
    }

    /// How much the pool holds in all.
    #[must_use]
    pub fn space(&self) -> PoolSpace {
        self.0.space
    }

    /// What a block counts in the space of datasets, in bytes.
    fn dsize(&self, bp: &BlkPtr) -> u64 {
        dsize(&self.0.ratios, bp)
    }

    /// What deduplication and block cloning save.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.0.sharing
    }

    /// The root dataset.
    ///
    /// # Errors
    /// Its structures cannot be read.
    pub fn root(&self) -> BoxFuture<'_, Result<Dataset, ReadError>> {
        Box::pin(async move {
            let dir = self.dir(self.0.root).await?;
            Dataset::head(self, dir).await
        })
    }

    /// The dataset, snapshot or bookmark of this name.
    ///
    /// # Errors
    /// The name is no legal one, nothing has it, or what leads to it cannot be read.
    pub fn lookup<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Dataset, LookupError>> {
        Box::pin(async move {
            let parsed =
                name::parse(name).map_err(|reason| LookupError::BadName { name: name.to_owned(), reason })?;
            let unreadable = |source| LookupError::Read { name: name.to_owned(), source };
            let missing = || LookupError::NotFound { name: name.to_owned() };
            let head = self.head(parsed.dataset).await.map_err(unreadable)?.ok_or_else(missing)?;
            match parsed.part {
                name::Part::Head => Ok(head),
                name::Part::Snapshot(snapshot) => {
                    head.snapshot(snapshot).await.map_err(unreadable)?.ok_or_else(missing)
                }
                name::Part::Bookmark(bookmark) => {
                    head.bookmark(bookmark).await.map_err(unreadable)?.ok_or_else(missing)
                }
            }
        })
    }

    /// The live dataset of this name, legal or not; `None` if nothing has it.
    ///
    /// # Errors
    /// What leads to it cannot be read.
    pub fn head<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Dataset>, ReadError>> {
        Box::pin(async move {
            let mut components = name.split('/');
            if components.next() != Some(self.pool()) {
                return Ok(None);
            }
            let mut dir = self.dir(self.0.root).await?;
            for component in components {
                let Some(children) = dir.child_map(self).await? else { return Ok(None) };
                let Some(child) = children.get_u64(component).await? else { return Ok(None) };
                dir = self.dir_at(child, &dir, component).await?;
            }
            Dataset::head(self, dir).await.map(Some)
        })
    }

    /// Name of the dataset whose object number in the MOS is `object`; `None` if it is not a live dataset.
    ///
    /// # Errors
    /// What leads to its name cannot be read.
    pub fn head_name(&self, object: u64) -> BoxFuture<'_, Result<Option<String>, ReadError>> {
        Box::pin(async move {
            let (phys, _) = dataset::read_phys(self.mos(), object).await?;
            let dir = self.dir(phys.dir).await?;
            Ok((dir.phys().head_dataset == object).then(|| dir.name().to_owned()))
        })
    }

    /// The live dataset or snapshot whose object number in the MOS is `object`; `None` if no name leads to it.
    ///
    /// # Errors
    /// It is no dataset, or what leads to its name cannot be read.
    pub fn by_object(&self, object: u64) -> BoxFuture<'_, Result<Option<Dataset>, ReadError>> {
        Box::pin(async move {
            let (phys, _) = dataset::read_phys(self.mos(), object).await?;
            let head = Dataset::head(self, self.dir(phys.dir).await?).await?;
            if head.object() == object {
                return Ok(Some(head));
            }
            Ok(head.snapshots_among(&[object]).await?.pop())
        })
    }

    /// Those of these live datasets and snapshots that a name leads to, by object number. The names of a dataset's snapshots
    /// are gone through once for all of them. What cannot be read is left out.
    pub fn by_objects<'a>(&'a self, objects: &'a [u64]) -> BoxFuture<'a, BTreeMap<u64, Dataset>> {
        Box::pin(async move {
            let (mut found, mut wanted) = (BTreeMap::new(), BTreeMap::<u64, Vec<u64>>::new());
            for &object in objects {
                if let Ok((phys, _)) = dataset::read_phys(self.mos(), object).await {
                    wanted.entry(phys.dir).or_default().push(object);
                }
            }
            for (dir, objects) in wanted {
                let Ok(dir) = self.dir(dir).await else { continue };
                let Ok(head) = Dataset::head(self, dir).await else { continue };
                // The names of snapshots are not asked for if only the live dataset is wanted.
                if objects.iter().any(|object| *object != head.object()) {
                    let snapshots = head.snapshots_among(&objects).await.unwrap_or_default();
                    found.extend(snapshots.into_iter().map(|snapshot| (snapshot.object(), snapshot)));
                }
                if objects.contains(&head.object()) {
                    found.insert(head.object(), head);
                }
            }
            found
        })
    }

    /// Space of one of the pool's own dirs (`$FREE`: waiting to be freed); 0 if there is none of this name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn internal_used<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(async move {
            let root = self.dir(self.0.root).await?;
            let Some(map) = root.child_map(self).await? else { return Ok(0) };
            match map.get_u64(name).await? {
                Some(object) => Ok(dir::read_phys(self.mos(), object).await?.phys.used_bytes),
                None => Ok(0),
            }
        })
    }

    /// The dir with this object number, its name found by going up to the root.
    ///
    /// # Errors
    /// It or an ancestor cannot be read, or is in no child map.
    pub fn dir(&self, object: u64) -> BoxFuture<'_, Result<Arc<Dir>, ReadError>> {
        Box::pin(async move {
            // From the dir up to the first known ancestor, then down again with names.
            let mut chain = Vec::new();
            let mut at = object;
            let mut known = loop {
                if let Some(dir) = self.0.dirs.lock().get(&at) {
                    break Some(Arc::clone(dir));
                }
                let phys = dir::read_phys(&self.0.mos, at).await?;
                let parent = phys.phys.parent;
                chain.push((at, phys));
                if at == self.0.root {
                    break None;
                }
                let broken = |what| ReadError::Inconsistent {
                    at: At { objset: 0, object: at, level: 0, blkid: 0 },
                    what,
                };
                if parent == 0 {
                    return Err(broken("the dataset's parents do not lead to the root"));
                }
                if chain.len() > DEPTH_MAX {
                    return Err(broken("the dataset's parents form a loop"));
                }
                at = parent;
            };
            while let Some((object, phys)) = chain.pop() {
                let name = match &known {
                    None => self.pool().to_owned(),
                    Some(parent) => match parent.child_name(self, object).await? {
                        Some(name) => format!("{}/{name}", parent.name()),
                        None => {
                            let at = At { objset: 0, object, level: 0, blkid: 0 };
                            return Err(ReadError::Inconsistent {
                                at,
                                what: "the dataset is in no child map",
                            });
                        }
                    },
                };
                known = Some(self.remember(Dir::new(object, name, known, phys)));
            }
            known.ok_or(ReadError::NoObject { objset: 0, object })
        })
    }

    /// The dir `object`, found under `name` in the child map of `parent`.
    async fn dir_at(&self, object: u64, parent: &Arc<Dir>, name: &str) -> Result<Arc<Dir>, ReadError> {
        if let Some(dir) = self.0.dirs.lock().get(&object) {
            return Ok(Arc::clone(dir));
        }
        let phys = dir::read_phys(&self.0.mos, object).await?;
        let at = At { objset: 0, object, level: 0, blkid: 0 };
        if phys.phys.parent != parent.object() {
            return Err(ReadError::Inconsistent {
                at,
                what: "the dataset names another parent than the map it is in",
            });
        }
        if parent.depth() >= DEPTH_MAX {
            return Err(ReadError::Inconsistent { at, what: "datasets are nested too deeply" });
        }
        let name = format!("{}/{name}", parent.name());
        Ok(self.remember(Dir::new(object, name, Some(Arc::clone(parent)), phys)))
    }

    fn remember(&self, dir: Dir) -> Arc<Dir> {
        let dir = Arc::new(dir);
        Arc::clone(self.0.dirs.lock().entry(dir.object()).or_insert(dir))
    }
}

/// Bytes on the list of frees that wait for the next txg.
async fn deferred_bytes(mos: &ObjectSet, directory: &Zap) -> Result<u64, ReadError> {
    let Some(object) = directory.get_u64("sync_bplist").await? else { return Ok(0) };
    let found = mos.dnode(object).await?;
    let at = At { objset: 0, object, level: 0, blkid: 0 };
    let list = BpobjPhys::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
    Ok(list.bytes)
}

/// Checks that a MOS object has the bonus of a DSL structure: the object's own type changes when it gets extra
/// attributes, the bonus type does not.
fn check_bonus(found: &DnodeAt, wanted: ObjectType) -> Result<(), ReadError> {
    if found.dnode.bonus_type == wanted {
        return Ok(());
    }
    let at = At { objset: 0, object: found.number, level: 0, blkid: 0 };
    Err(ReadError::Inconsistent { at, what: "the object is not the dataset structure it is used as" })
}
