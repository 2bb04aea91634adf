//! What all targets do with their clients' connections, whatever is spoken there.
//!
//! ```text
//!   accept ──▶ Crowd: a Place, or who has to leave for it ──▶ the protocol ──▶ Link: asleep, or looking, until the next request
//! ```
//!
//! Targets (`nbd`, `iscsi`) use it; it knows no protocol and no volume.
#![forbid(unsafe_code)]

mod beside;
mod crowd;
mod habit;
mod link;
mod window;
pub use crowd::{Crowd, Full, Peer, Place, Places, host_of};
pub use link::{Link, Look, Socket};
