//! TLS: who the server is, whom it lets in, and whether there is a way around it.
//!
//! Both ways that NBD `doc/proto.md`, "TLS support", and the stock clients know: certificates (X.509, [`certificates`]), or
//! keys agreed on beforehand, one for each user (PSK, [`keys`]). What a client negotiated before `STARTTLS` is forgotten, and
//! bytes that came in the clear behind it end the connection: they are somebody's attempt to be taken for the client.

mod buffered;
mod certificates;
mod keys;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

pub(crate) use buffered::Buffered;
use certificates::Certificates;
pub use certificates::{Authority, Credential, Validity};
pub(crate) use keys::Keyed;
use keys::Keys;

/// How connections are secured.
#[derive(Clone)]
pub struct Tls {
    pub(crate) proof: Proof,
    pub(crate) is_required: bool,
    validities: Arc<[Validity]>,
}

/// By what either side knows the other.
#[derive(Clone)]
pub(crate) enum Proof {
    /// The server by its certificate, and clients by theirs if they need one.
    Certificates(Certificates),
    /// Both by the key of the user whom the client names.
    Keys(Keys),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

/// Why certificates or keys are of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Not what was expected in a PEM file.
    #[error("the {what} cannot be used: {why}")]
    Pem {
        /// Which file it was to be.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// They do not belong together, or are too weak.
    #[error("certificate and key cannot be used: {0}")]
    Config(String),
    /// A line of the keys is no user and key.
    #[error("line {line}: {why}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it. Tells nothing of the key.
        why: &'static str,
    },
    /// The keys name nobody.
    #[error(
        "it names no user: a line is USER:KEY, the key in hexadecimal (psktool and openssl rand -hex 32 make some)"
    )]
    NoKeys,
    /// The library refuses to serve keys.
    #[error("keys cannot be used: {0}")]
    Library(String),
}

/// How a connection stands to TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Security {
    /// There is none.
    #[default]
    Off,
    /// A client may ask for it.
    Offered,
    /// A client must ask for it before anything else.
    Required,
    /// It is on.
    On,
}
