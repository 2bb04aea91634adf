//! NBD, served: fixed newstyle handshake and transmission, over any [`block::BlockVolume`].
//!
//! ```text
//!  socket ─▶ serve ─▶ Session ┬ handshake     options in, replies out; picks an Export
//!            (sockets)        └ transmission  bytes in ▶ Request … complete(Tag) ▶ bytes out
//!                                 ▲   │
//!                                 │   ▼
//!                             BlockVolume: read_cached (same task), or a future in the same task
//! ```
//!
//! The protocol is a value: [`Session`] owns no socket, task or clock. However the byte stream is
//! split, the same requests come out and the same replies go in. Cache hits are answered in the
//! connection's own task and leave in one vectored write per batch, straight from the cache's buffers;
//! misses run as futures of that same task, so replies come in any order and a slow request delays no other.
//!
//! What is offered: `GO`, `INFO`, `EXPORT_NAME`, `LIST`, `ABORT`, structured replies, `base:allocation`,
//! extended headers, `STARTTLS`; `READ` (with `DF`), `WRITE`, `FLUSH`, `TRIM`, `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`),
//! `CACHE`, `BLOCK_STATUS` (`REQ_ONE`), `FUA`, multi-conn. Not offered: resize, payload
//! filters for block status.
//!
//! Facts: the NBD project's `doc/proto.md` and its `extension-ext-header` branch.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests build their own bytes; a panic there is a failed test"
    )
)]

mod error;
mod export;
mod handshake;
mod outbox;
pub mod proto;
mod pump;
mod serve;
mod session;
mod stats;
mod tls;
mod transmission;
mod wire;

pub use error::{NbdError, ProtocolError};
pub use export::{Export, ExportEntry, Exports, Registry, RegistryError};
pub use serve::{Listener, ServeLimits, Server};
pub use session::{Limits, Phase, Session};
pub use stats::{ConnectionInfo, Counters};
pub use tls::{Authority, Credential, Tls, TlsError, Validity};
pub use transmission::{Op, Outcome, Request, Tag};
