//! TLS by certificates (X.509).

use std::{fmt, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
        server::{VerifierBuilderError, WebPkiClientVerifier},
    },
};

use super::{Proof, Tls, TlsError};

/// Whom clients have to have their certificates from.
#[derive(Clone, Copy, Debug)]
pub struct Authority<'a> {
    /// Its certificate (PEM).
    pub certificates: &'a [u8],
    /// Certificates that it has taken back (PEM): who shows one is not let in. As with GnuTLS, which QEMU uses, an authority
    /// of whom there is no such list has taken back none; but a list that has run out holds until there is another.
    pub revoked: Option<&'a [u8]>,
}

impl Tls {
    /// A server that shows this certificate chain (PEM) and has its key (PEM). With an authority clients have to
    /// show a certificate of that authority. If it is required, nothing is served without it.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(
        chain: &[u8],
        key: &[u8],
        authority: Option<Authority<'_>>,
        is_required: bool,
    ) -> Result<Self, TlsError> {
        let chain: Vec<CertificateDer<'static>> = all("server's certificate", "certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem { what: "server's key", why: error.to_string() })?;
        let config = |error: &dyn fmt::Display| TlsError::Config(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| config(&error))?;
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in all("authority of clients", "certificate", authority.certificates)? {
                    roots.add(certificate).map_err(|error| config(&error))?;
                }
                let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                if let Some(revoked) = authority.revoked {
                    let lists: Vec<CertificateRevocationListDer<'static>> =
                        all(REVOKED, "list of revoked certificates", revoked)?;
                    verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
                }
                let verifier = verifier.build().map_err(|error| match error {
                    error @ VerifierBuilderError::InvalidCrl(_) => {
                        TlsError::Pem { what: REVOKED, why: error.to_string() }
                    }
                    error => config(&error),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let server = builder.with_single_cert(chain, key).map_err(|error| config(&error))?;
        Ok(Self { proof: Proof::Certificates(TlsAcceptor::from(Arc::new(server))), is_required })
    }
}

const REVOKED: &str = "list of clients' revoked certificates";

/// All of one kind that a PEM file holds.
fn all<T: PemObject>(what: &'static str, kind: &str, pem: &[u8]) -> Result<Vec<T>, TlsError> {
    let bad = |why: String| TlsError::Pem { what, why };
    let all: Result<Vec<_>, _> = T::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad(format!("it holds no {kind} (PEM)"))),
        Ok(all) => Ok(all),
        Err(error) => Err(bad(error.to_string())),
    }
}
