//! The writing half of the pool: from acknowledged writes to a new uberblock.
//!
//! ```text
//!   volume ── dirty blocks of the open txg ──┐                 create, open: where a Syncer comes from
//!   engine ── commands as sync tasks ────────┤
//!   txg    ── open ▶ quiescing ▶ syncing ────▼
//!                                          sync: one transaction group, from dirty to durable
//!              dsl   datasets, snapshots, space accounting        mos   ZAPs, lists of block pointers, features
//!                \                                              /
//!                 dmu   object sets as they will be: dnodes, indirect trees
//!                  |
//!                write  compress ▶ checksum ▶ allocate ▶ parity ▶ devices ▶ labels, uberblock
//!                  |
//!                alloc  metaslabs, space maps
//! ```
//!
//! Everything below `sync` runs in the one task that syncs, so none of it takes a lock; what clients touch
//! (`volume`, `txg`) holds memory only. Reading is the `pool` crate's: an [`pool::Pool`] is the view of one
//! committed transaction group.
//!
//! Facts: docs/format/overview.md §6, txg-and-throttle.md.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod create;
pub mod devices;
pub mod dmu;
pub mod dsl;
pub mod ear;
pub mod engine;
pub mod error;
pub mod events;
mod fill;
mod heal;
pub mod missed;
pub mod mos;
pub mod open;
pub mod policy;
pub mod prewarm;
pub mod scan;
pub mod second;
pub mod space;
pub mod suspend;
pub mod sync;
pub mod txg;
pub mod upgrade;
pub mod volume;
pub mod write;
pub mod zil;

pub use block::BoxFuture;
pub use error::EngineError;
