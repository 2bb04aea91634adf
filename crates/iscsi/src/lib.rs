//! iSCSI target: the protocol as values without I/O, and the server that drives them.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")
)]

pub mod iqn;
mod serve;
mod targets;

pub use serve::Server;
pub use targets::{AddError, Config, Counters, SessionInfo, Target, Targets};
