//! TLS by certificates (X.509).

use std::{fmt, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};

use super::{Proof, Tls, TlsError};

impl Tls {
    /// A server that shows this certificate chain (PEM) and has its key (PEM). With an authority (PEM) clients have to
    /// show a certificate of that authority. If it is required, nothing is served without it.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(
        chain: &[u8],
        key: &[u8],
        authority: Option<&[u8]>,
        is_required: bool,
    ) -> Result<Self, TlsError> {
        let chain = certificates("server's certificate", chain)?;
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
                for certificate in certificates("authority of clients", authority)? {
                    roots.add(certificate).map_err(|error| config(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| config(&error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let server = builder.with_single_cert(chain, key).map_err(|error| config(&error))?;
        Ok(Self { proof: Proof::Certificates(TlsAcceptor::from(Arc::new(server))), is_required })
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |why: String| TlsError::Pem { what, why };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad("it holds no certificate (PEM)".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(bad(error.to_string())),
    }
}
