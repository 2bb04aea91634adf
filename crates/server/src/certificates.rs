//! TLS of NBD, from the files that `qemu-nbd` and `nbdkit` use, so that they serve all of them: a directory of PEM files
//! (`server-cert.pem`, `server-key.pem`, and `ca-cert.pem` if clients have to show a certificate), or a file of keys
//! agreed on beforehand (`keys.psk`).

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::daemon::ServeError;

/// What TLS NBD has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTls {
    /// By what either side knows the other.
    pub proof: NbdProof,
    /// Nothing is served without TLS.
    pub is_required: bool,
}

/// By what server and client know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdProof {
    /// By certificates.
    Certificates {
        /// Where they are.
        directory: PathBuf,
        /// Clients need a certificate of the authority in `ca-cert.pem`.
        verifies_clients: bool,
    },
    /// By the keys in this file, a line for each user.
    Keys(PathBuf),
}

impl NbdTls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read or used; which one.
    pub(crate) fn load(&self) -> Result<nbd::Tls, ServeError> {
        let (path, tls) = match &self.proof {
            NbdProof::Certificates { directory, verifies_clients } => {
                let read = |name: &str| read(&directory.join(name));
                let (chain, key) = (read("server-cert.pem")?, read("server-key.pem")?);
                let authority = verifies_clients.then(|| read("ca-cert.pem")).transpose()?;
                (directory, nbd::Tls::new(&chain, &key, authority.as_deref(), self.is_required))
            }
            NbdProof::Keys(path) => {
                let lines = read(path)?;
                warn_of_readers(path);
                (path, nbd::Tls::with_keys(&lines, self.is_required))
            }
        };
        tls.map_err(|source| ServeError::Tls { path: path.clone(), source })
    }
}

/// Larger than any chain of certificates, and than the keys of ten thousand users.
const BYTES_MAX: u64 = 1 << 20;

fn read(path: &Path) -> Result<Vec<u8>, ServeError> {
    let too_large = || io::Error::other("it holds no certificates or keys: larger than 1 MiB");
    let bytes = std::fs::metadata(path).and_then(|metadata| match metadata.len() {
        0..=BYTES_MAX => std::fs::read(path),
        _ => Err(too_large()),
    });
    bytes.map_err(|source| ServeError::Certificate { path: path.to_path_buf(), source })
}

/// Whoever reads a key has it.
fn warn_of_readers(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o004 != 0 {
        let path = path.display();
        tracing::warn!("everybody on this machine can read the keys in '{path}': chmod o-r '{path}'");
    }
}
