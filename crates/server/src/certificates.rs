//! TLS of NBD, from a directory of PEM files with the names that `qemu-nbd` and `nbdkit` use, so that one directory
//! serves all of them: `server-cert.pem`, `server-key.pem`, and `ca-cert.pem` if clients have to show a certificate.

use std::{io, path::PathBuf};

use crate::daemon::ServeError;

/// What TLS NBD has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTls {
    /// Where the certificates are.
    pub directory: PathBuf,
    /// Nothing is served without TLS.
    pub is_required: bool,
    /// Clients need a certificate of the authority in `ca-cert.pem`.
    pub verifies_clients: bool,
}

impl NbdTls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read or used; which one.
    pub(crate) fn load(&self) -> Result<nbd::Tls, ServeError> {
        let read = |name: &str| {
            let path = self.directory.join(name);
            let too_large = || io::Error::other("it is no certificate: larger than 1 MiB");
            let bytes = std::fs::metadata(&path).and_then(|metadata| match metadata.len() {
                0..=BYTES_MAX => std::fs::read(&path),
                _ => Err(too_large()),
            });
            bytes.map_err(|source| ServeError::Certificate { path, source })
        };
        let (chain, key) = (read("server-cert.pem")?, read("server-key.pem")?);
        let authority = self.verifies_clients.then(|| read("ca-cert.pem")).transpose()?;
        nbd::Tls::new(&chain, &key, authority.as_deref(), self.is_required)
            .map_err(|source| ServeError::Tls { directory: self.directory.clone(), source })
    }
}

/// Larger than any chain of certificates.
const BYTES_MAX: u64 = 1 << 20;
