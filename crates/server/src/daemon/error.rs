//! Why the daemon did not start, or ended, for whoever started it.

use std::{io, net::SocketAddr, path::PathBuf};

use ::memory::limit::LimitError;

use crate::{host::HostError, state::StateError, unix_socket::SocketError};

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Not an address.
    #[error("'{address}' is not an address: give ADDR:PORT, for example {example}")]
    Address {
        /// What was given.
        address: String,
        /// One of its kind that is.
        example: &'static str,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
    /// Not the path of a socket.
    #[error("'{0}' does not name a socket: give unix:PATH, for example unix:/run/millpond-nbd.sock")]
    SocketPath(String),
    /// Memory: too little, or more than there is.
    #[error(transparent)]
    Memory(#[from] LimitError),
    /// Cannot listen.
    #[error("cannot listen on {address} for {protocol}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// For what.
        protocol: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A certificate or key is not there.
    #[error("cannot read '{}', which TLS needs", path.display())]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Certificates or keys are of no use.
    #[error("TLS cannot be used with what is in '{}'", path.display())]
    Tls {
        /// Where they are.
        path: PathBuf,
        /// What is wrong with them.
        #[source]
        source: nbd::TlsError,
    },
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another daemon uses the state directory, or it cannot be used at all.
    #[error(transparent)]
    State(#[from] StateError),
    /// A pool that was named cannot be opened.
    #[error(transparent)]
    Pool(#[from] HostError),
    /// A pool that was named is there and cannot be opened. The whole sentence.
    #[error("{0}")]
    Open(String),
    /// No pool was named and none can be opened.
    #[error("no pools available to serve{0}")]
    NoPools(String),
    /// Pools could not be closed: what was written last may not be on their devices.
    #[error("{}", .0.join("\n"))]
    Close(Vec<String>),
    /// The system refused something else.
    #[error("cannot serve")]
    Io(#[from] io::Error),
}
