//! The OpenZFS on-disk format as types: bytes in, values out, and back.
//!
//! Everything here is a pure function of a byte slice and an [`Order`]: no I/O, no clock, no
//! checksums (crate `codec` computes those; this crate says over which bytes and where the result
//! lies). All numbers come from strangers: a decoder returns [`Error`] with the structure, the
//! offset and the reason, and neither panics nor allocates more than its input justifies.
//!
//! ```text
//!   label ─▶ nvlist            device ─▶ label ─▶ uberblock ─▶ blkptr ─▶ objset ─▶ dnode ─▶ …
//!         └▶ uberblock         dnode bonus and data: dsl, bpobj, zap, spacemap, history, scan, sa, zpl
//!   blkptr ─▶ gang             outside the tree: zil (log), l2arc (cache), stream (replication)
//! ```
//!
//! Numbers are stored in the writer's byte order, which is a run-time parameter everywhere: disks
//! move between machines, and blocks of both orders may live in one pool. Unknown bits and unknown
//! name-value pairs are kept, so that encoding what was decoded gives the same bytes.
//!
//! Facts: docs/format/*.md; each module names its page.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may fail loudly")
)]

mod error;
mod order;

pub mod blkptr;
pub mod bpobj;
pub mod brt;
pub mod ddt;
pub mod dnode;
pub mod dsl;
pub mod features;
pub mod gang;
pub mod history;
pub mod indirect;
pub mod l2arc;
pub mod label;
pub mod nvlist;
pub mod objset;
pub mod sa;
pub mod scan;
pub mod spacemap;
pub mod stream;
pub mod uberblock;
pub mod zap;
pub mod zil;
pub mod zpl;

#[cfg(test)]
mod testdata;

pub use error::{Error, Reason, Result};
pub use order::{Order, Reader, Writer};
