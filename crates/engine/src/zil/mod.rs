//! The intent log: what makes a write durable before its transaction group is.
//!
//! ```text
//!   flush, FUA, sync=always ─▶ Log::commit ─▶ records of what is dirty and not logged ─▶ blocks of the chain ─▶ devices
//!                                 │ no place, a device fails, far too much: wait for the transaction group instead
//!   syncing task ── every group: blocks whose records are all in the pool are freed, the header moves on
//!
//!   after a crash: claim (every block a log refers to is allocated) ─▶ sync ─▶ replay into the volumes ─▶ log freed
//! ```
//!
//! * [`log`] is the log of one volume: its chain in memory, and the commits that share its blocks; [`Logs`] are those of
//!   all open volumes.
//! * [`space`] is where log blocks get their places while the syncing task, which owns the allocator, is busy.
//! * [`claim`] and [`replay`] are what an import after a crash does; `outside` bounds the memory it takes.
//! * [`stats`] counts who asked for stability, why, and what it took.
//!
//! Facts: docs/format/zil.md.

mod chain;
pub mod claim;
pub mod log;
mod logs;
mod outside;
pub(crate) mod records;
pub mod replay;
mod shelf;
pub mod space;
pub mod stats;

pub use log::Log;
pub use logs::Logs;
pub use space::{LogSpace, Supply};
pub use stats::{Report, Why};
