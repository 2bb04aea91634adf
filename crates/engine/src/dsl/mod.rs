//! Datasets: what the commands do to the MOS, and how the space of each is counted.
//!
//! Every operation runs in the syncing task. It checks everything first and changes nothing if it refuses;
//! once it changes something, only a failing device can stop it, and then the whole transaction group is lost.
//! Facts: docs/format/mos.md §6–§11, zvol.md.

pub mod account;
mod attributes;
mod bookmarks;
mod clone;
mod create;
mod dataset;
mod destroy;
mod dir;
mod edit;
mod encryption;
mod filesystem;
mod find;
mod free;
mod holds;
mod init;
pub(crate) mod kept;
mod limits;
mod log;
mod policy;
mod promote;
mod properties;
mod rename;
mod rollback;
mod shrink;
mod snapshot;
mod space;

pub use bookmarks::{bookmark, destroy_bookmark};
pub use clone::clone;
pub use create::{create_filesystem, create_volume};
pub use destroy::{destroy_head, destroy_snapshots};
pub use edit::sync_volume;
pub(crate) use free::Stuck;
pub use free::free_some;
pub(crate) use holds::{destroy_deferred, release_temporary};
pub use holds::{hold, release};
pub use init::init;
pub use log::set_log;
pub(crate) use log::{end_idle_log, end_log, end_replayed_log, is_unclaimed, waits};
pub use policy::policy;
pub use promote::promote;
pub use properties::{inherit, inherit_all, set_pool};
pub use rename::rename;
pub use rollback::rollback;
pub use shrink::set;
pub use snapshot::snapshot;
pub use space::{Holding, accounted_block, available, available_below, default_refreservation};
pub(crate) use space::{holding, supply};

use std::collections::BTreeMap;

use ondisk::blkptr::BlkPtr;
use pool::dmu::Object;

use crate::{EngineError, write::summed::Summed};

/// Why an operation was refused. `Display` is the reason as OpenZFS words it, to be put behind
/// "cannot create 'tank/x': ".
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The name is taken.
    #[error("dataset already exists")]
    Exists,
    /// There is no such dataset.
    #[error("dataset does not exist")]
    NoDataset,
    /// The parent is missing.
    #[error("parent does not exist")]
    NoParent,
    /// Something uses it: served, held, has clones.
    #[error("dataset is busy")]
    Busy,
    /// It cannot be done in this transaction group: a snapshot was taken in it, or it is too much for one and was only
    /// begun. To be done again in the next one.
    #[error("try again in the next transaction group")]
    Again,
    /// No room.
    #[error("out of space")]
    NoSpace,
    /// Anything else OpenZFS has a sentence for, worded as it does.
    #[error("{0}")]
    Refused(String),
    /// The pool failed underneath.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A property value as it is stored in the `props` ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Number or index.
    Number(u64),
    /// Text.
    Text(String),
}

/// Properties to set, checked by the caller against `pool::props::table`. `quota` and `reservation` live in the
/// directory, `volsize` in the volume; everything else in the `props` ZAP.
pub type Properties = BTreeMap<String, Stored>;

/// A volume to be.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Full name.
    pub name: String,
    /// Bytes; a multiple of `block`.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Further properties; `refreservation` among them unless it is thin.
    pub properties: Properties,
    /// Create missing parents.
    pub parents: bool,
}

/// What a volume's clients changed in one transaction group.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    /// Blocks, ascending.
    pub blocks: Vec<(u64, Summed)>,
    /// Ranges of blocks that were freed; none of them is in `blocks`.
    pub freed: Vec<std::ops::Range<u64>>,
    /// Those of `blocks` that were [written ahead](crate::write::ahead::Ahead) with just this content, and where.
    pub ahead: Vec<(u64, BlkPtr)>,
    /// What else was written ahead in this transaction group: changed or freed again, or of no use.
    pub unwanted: Vec<BlkPtr>,
    /// There is room for so many copies, whatever `copies` says by now.
    pub copies_max: Option<u8>,
}

/// A volume after its changes were synced.
#[derive(Debug)]
pub struct SyncedVolume {
    /// Its data object, for readers of what is now on disk.
    pub data: Object,
    /// Its new root.
    pub root: BlkPtr,
}
