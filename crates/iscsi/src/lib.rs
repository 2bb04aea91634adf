//! iSCSI target: the protocol as values without I/O, and the server that drives them.
//!
//! ```text
//!   serve ── sockets, tasks, timers: one connection, and what drives its session
//!     ├─ login     the login phase, chap    ┐
//!     ├─ session   the full feature phase   │ values: bytes in, bytes and jobs out
//!     │    └─ task one command              │
//!     ├─ negotiate text keys                │
//!     ├─ inbox     what comes in, until     │
//!     │            it is whole PDUs         │
//!     ├─ pdu       framing, outbox          ┘
//!     ├─ silence   how long a peer may say nothing
//!     └─ targets   what is served to whom, and who is logged in; access: who may; tally: who did what
//!   scsi ── what a command means       block ── what a volume is
//! ```
//!
//! One connection per session, error recovery level 0, several portals in one or more portal groups. Nothing here
//! knows a pool. Facts: RFC 7143; sections are named where they are used.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")
)]

pub mod access;
mod chap;
pub mod inbox;
pub mod iqn;
pub mod login;
pub mod negotiate;
pub mod pdu;
mod serve;
pub mod session;
mod silence;
pub mod tally;
mod targets;
mod task;

pub use access::{Access, AccessError, Auth, Network};
pub use scsi::{Form, LogicalUnit, Naa, Registration, naa};
pub use serve::{Keep, Server};
pub use targets::{AddError, Config, Counters, LUN_MAX, Offer, Portal, SessionInfo, Shut, Target, Targets};
