//! File systems, read-only: directories, files, symbolic links, extended attributes.
//!
//! ```text
//!   master node (object 1) ─ ROOT ─▶ directory: ZAP  name ─▶ object, kind
//!        └ SA_ATTRS ─▶ registry, layouts               │
//!                        how attributes are packed     ▼
//!                                          dnode: bonus (+ spill block) = attributes, data = content
//! ```
//!
//! A [`FileSystem`] is one object set of type ZPL, live or snapshot; a [`Node`] is one object in it with its
//! attributes read. Names are bytes: the format does not promise UTF-8. Paths are walked here and not by the
//! operating system, so a link in a pool never leads out of the pool.
//!
//! Not here: mounting, permission checks (whoever reads a pool's devices reads everything), quotas, the
//! delete queue. Facts: docs/format/zpl.md.

mod node;
mod path;
mod xattr;

use std::{fmt, sync::Arc};

use ondisk::{
    objset::ObjsetType,
    sa::{Layouts, Registry},
};

pub use node::{DirectoryEntry, Node, Stat, Xattr};
pub use path::Follow;

use crate::{
    BoxFuture,
    dmu::{ObjectSet, ReadError},
    zap::Zap,
};

/// The master node's object number, in every file system.
const MASTER_NODE: u64 = 1;
/// Newest version of the layer; older ones are read as well.
const VERSION_MAX: u64 = 5;
/// Files carry system attributes since this version.
const VERSION_SA: u64 = 5;

/// Why something in a file system could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A block or structure on the way.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The dataset holds something else.
    #[error("not a file system")]
    NotFileSystem,
    /// Written by something newer.
    #[error("file system version {0} is not known here (the newest known is {VERSION_MAX})")]
    Version(u64),
    /// No such name.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// As far as the walk came.
        path: String,
    },
    /// A component on the way is not a directory.
    #[error("{path}: not a directory")]
    NotDirectory {
        /// As far as the walk came.
        path: String,
    },
    /// Symbolic links that lead in a circle.
    #[error("{path}: too many levels of symbolic links")]
    LinkLoop {
        /// What was looked up.
        path: String,
    },
}

/// An open file system or file system snapshot. Cheap to clone.
#[derive(Clone)]
pub struct FileSystem(Arc<Inner>);

struct Inner {
    set: Arc<ObjectSet>,
    root: u64,
    /// Attribute tables; none before version 5.
    tables: Option<(Registry, Layouts)>,
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileSystem(object set {})", self.0.set.id())
    }
}

impl FileSystem {
    /// Opens the file system in `set`.
    ///
    /// # Errors
    /// It is something else, of a version nobody knows, or its master node or attribute tables cannot be read.
    pub fn open(set: Arc<ObjectSet>) -> BoxFuture<'static, Result<Self, FileError>> {
        Box::pin(async move {
            if set.kind() != ObjsetType::FileSystem {
                return Err(FileError::NotFileSystem);
            }
            let master = Zap::open_in(&set, MASTER_NODE).await?;
            let version = required(&master, "VERSION", "the master node has no version").await?;
            if version == 0 || version > VERSION_MAX {
                return Err(FileError::Version(version));
            }
            let root = required(&master, "ROOT", "the master node has no root directory").await?;
            let tables = if version >= VERSION_SA { Some(read_tables(&set, &master).await?) } else { None };
            Ok(Self(Arc::new(Inner { set, root, tables })))
        })
    }

    /// The object set it lives in.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSet> {
        &self.0.set
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn root(&self) -> BoxFuture<'_, Result<Node, FileError>> {
        self.node(self.0.root)
    }

    /// Object `number`, which must be a file of some kind.
    ///
    /// # Errors
    /// There is no such object, or its attributes cannot be read.
    pub fn node(&self, number: u64) -> BoxFuture<'_, Result<Node, FileError>> {
        Box::pin(async move { Ok(Node::read_attributes(self.clone(), number).await?) })
    }
}

/// A number that must be in a ZAP.
async fn required(zap: &Zap, name: &str, missing: &'static str) -> Result<u64, ReadError> {
    let at = zap.object().bookmark(0, 0);
    zap.get_u64(name).await?.ok_or(ReadError::Inconsistent { at, what: missing })
}

/// The attribute tables that the master node leads to.
async fn read_tables(set: &Arc<ObjectSet>, master: &Zap) -> Result<(Registry, Layouts), ReadError> {
    let attributes = required(master, "SA_ATTRS", "the master node has no attribute tables").await?;
    let attributes = Zap::open_in(set, attributes).await?;
    let registry_object = required(&attributes, "REGISTRY", "there is no attribute registry").await?;
    let layouts_object = required(&attributes, "LAYOUTS", "there are no attribute layouts").await?;

    let mut registry = Registry::default();
    let zap = Zap::open_in(set, registry_object).await?;
    let at = zap.object().bookmark(0, 0);
    for (key, value) in zap.to_vec().await? {
        if let (Some(name), Some(word)) = (key.name(), value.as_u64()) {
            registry.insert(name, word).map_err(ReadError::malformed(at))?;
        }
    }
    let mut layouts = Layouts::default();
    let zap = Zap::open_in(set, layouts_object).await?;
    let at = zap.object().bookmark(0, 0);
    for (key, value) in zap.to_vec().await? {
        if let Some(name) = key.name() {
            let attributes: Option<Vec<u16>> =
                value.integers().map(|number| u16::try_from(number).ok()).collect();
            let wrong = ReadError::Inconsistent { at, what: "a layout names an attribute beyond 16 bits" };
            layouts.insert(name, attributes.ok_or(wrong)?).map_err(ReadError::malformed(at))?;
        }
    }
    Ok((registry, layouts))
}
