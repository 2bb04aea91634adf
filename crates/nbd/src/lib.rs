//! NBD, served (API first; the protocol core follows).
#![forbid(unsafe_code)]
mod export;
pub mod proto;
mod serve;
mod stats;
pub use export::{Export, ExportEntry, Exports, Registry, RegistryError};
pub use serve::{Listener, ServeLimits, Server};
pub use stats::{ConnectionInfo, Counters};
