//! The reading half: from leaf devices to datasets, volumes and files.
//!
//! ```text
//!   volume   zpl   traverse/verify        what users see: block volumes, file systems, "is it all right?"
//!       \     |     /
//!      dsl, props, zap                    datasets, snapshots, properties; name → value objects
//!           |
//!          dmu                            object sets, objects, indirect trees
//!           |
//!           io  ── cache                  block pointer → verified bytes: copies, gangs, parity, decompression
//!           |
//!          vdev                           (vdev, offset) → leaf reads: mirrors, RAIDZ, removed devices
//!           |
//!      disk::Disk                         one leaf device
//! ```
//!
//! `zil` follows intent logs, for whoever claims, replays, verifies or shows them.
//! `import` finds pools on devices and builds a [`Pool`]; `status` says how its devices are.
//! Everything that reads a block takes an [`io::PoolIo`], which exists before the pool is fully open
//! (import reads the pool's own configuration through it), so nothing below `dsl` needs a [`Pool`].
//!
//! Not here: bytes of on-disk structures (`ondisk`), checksums, compression and parity arithmetic
//! (`codec`), how a device is read (`disk`), protocols. Facts: `docs/format/overview.md`.
#![forbid(unsafe_code)]

pub mod cache;
pub mod dmu;
pub mod dsl;
pub mod error;
pub mod features;
pub mod import;
pub mod io;
pub mod props;
pub mod space;
pub mod status;
pub mod text;
pub mod time;
pub mod traverse;
pub mod vdev;
pub mod verify;
pub mod volume;
pub mod zap;
pub mod zil;
pub mod zpl;

mod pool;

/// What is below, for whoever shows a pool's structures as they are.
pub use ::{codec, ondisk};
pub use block::BoxFuture;
pub use error::{BlockError, BlockErrorKind, Evidence};
pub use import::ImportError;
pub use io::{Bookmark, Ear, Pointers, PoolIo, WrittenBlock, Wrong};
pub use pool::{Pool, Removal};
