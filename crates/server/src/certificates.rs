//! TLS of NBD, from the files that `qemu-nbd` and `nbdkit` use, so that they serve all of them: a directory of PEM files
//! (`server-cert.pem`, `server-key.pem`, and `ca-cert.pem` if clients have to show a certificate, with `ca-crl.pem` if
//! some of those were taken back), or a file of keys agreed on beforehand (`keys.psk`).

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use nbd::{Credential, Validity};

use crate::{daemon::ServeError, view};

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
        /// Clients need a certificate of the authority in `ca-cert.pem` that is not in `ca-crl.pem`, if that is there.
        verifies_clients: bool,
    },
    /// By the keys in this file, a line for each user.
    Keys(PathBuf),
}

impl NbdTls {
    /// Reads the files, and when each of them ends.
    ///
    /// # Errors
    /// One cannot be read or used; which one.
    pub(crate) fn load(&self) -> Result<(nbd::Tls, Vec<Expiry>), ServeError> {
        let (path, tls) = match &self.proof {
            NbdProof::Certificates { directory, verifies_clients } => {
                let read = |name: &str| read(&directory.join(name));
                let (chain, key) = (read(file_of(Credential::Chain))?, read("server-key.pem")?);
                let (mut certificates, mut revoked) = (None, None);
                if *verifies_clients {
                    certificates = Some(read(file_of(Credential::Authority))?);
                    revoked = if_there(read(file_of(Credential::Revoked)))?;
                }
                let authority = certificates
                    .as_deref()
                    .map(|certificates| nbd::Authority { certificates, revoked: revoked.as_deref() });
                (directory, nbd::Tls::new(&chain, &key, authority, self.is_required))
            }
            NbdProof::Keys(path) => {
                let lines = read(path)?;
                warn_of_readers(path);
                (path, nbd::Tls::with_keys(&lines, self.is_required))
            }
        };
        let tls = tls.map_err(|source| ServeError::Tls { path: path.clone(), source })?;
        let expiry = |validity: &Validity| {
            let file = path.join(file_of(validity.of)).display().to_string();
            Expiry { file, validity: *validity }
        };
        let expiries = tls.validities().iter().map(expiry).collect();
        Ok((tls, expiries))
    }
}

fn file_of(credential: Credential) -> &'static str {
    match credential {
        Credential::Chain => "server-cert.pem",
        Credential::Authority => "ca-cert.pem",
        Credential::Revoked => "ca-crl.pem",
    }
}

/// When one of the files ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// Its path.
    pub(crate) file: String,
    /// From when until when it is good.
    pub(crate) validity: Validity,
}

impl Expiry {
    /// What the file holds.
    pub(crate) fn noun(&self) -> &'static str {
        match self.validity.of {
            Credential::Chain => "server's certificate",
            Credential::Authority => "certificate of the clients' authority",
            Credential::Revoked => "list of revoked certificates",
        }
    }

    /// Whether it had run out at `now`, in seconds since 1970.
    pub(crate) fn has_run_out(&self, now: u64) -> bool {
        self.validity.until <= now
    }
}

/// A sentence for each that had run out at `now`, in seconds since 1970.
pub(crate) fn run_out(expiries: &[Expiry], now: u64) -> impl Iterator<Item = String> {
    expiries.iter().filter(move |expiry| expiry.has_run_out(now)).map(|expiry| {
        let (noun, file, when) = (expiry.noun(), &expiry.file, view::timestamp(expiry.validity.until));
        format!("the {noun} of NBD in '{file}' has run out ({when}): renew it, then have it read (SIGHUP)")
    })
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

/// Nothing is wrong where there is no such file. One that cannot be read would let in whom it keeps out.
fn if_there(read: Result<Vec<u8>, ServeError>) -> Result<Option<Vec<u8>>, ServeError> {
    match read {
        Err(ServeError::Certificate { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Whoever reads a key has it.
fn warn_of_readers(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o004 != 0 {
        let path = path.display();
        tracing::warn!("everybody on this machine can read the keys in '{path}': chmod o-r '{path}'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_revoked_certificates_that_cannot_be_read_is_no_reason_to_do_without() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["server-cert.pem", "server-key.pem", "ca-cert.pem"] {
            std::fs::write(dir.path().join(name), "nonsense").unwrap();
        }
        let load = |verifies_clients| {
            let proof = NbdProof::Certificates { directory: dir.path().to_owned(), verifies_clients };
            NbdTls { proof, is_required: true }.load().unwrap_err()
        };
        // Without it, it is the certificates that are of no use.
        assert!(matches!(load(true), ServeError::Tls { .. }));
        std::fs::create_dir(dir.path().join("ca-crl.pem")).unwrap();
        let refused = load(true);
        assert!(refused.to_string().contains("ca-crl.pem"), "{refused}");
        assert!(matches!(load(false), ServeError::Tls { .. }), "nobody is asked for a certificate");
    }
}
