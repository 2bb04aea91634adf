//! TLS by certificates (X.509).
//!
//! Handshakes are `rustls`'s. It does not tell for how long a certificate is good, which is read by the library that the keys
//! are served with: out of files of whoever runs the server, and of no client.

use std::{cmp::Reverse, fmt, io, sync::Arc};

use openssl::{
    asn1::{Asn1Time, Asn1TimeRef},
    x509::{X509, X509Crl},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{
        RootCertStore, ServerConfig, SupportedCipherSuite,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
        server::{Acceptor, VerifierBuilderError, WebPkiClientVerifier},
    },
    server::TlsStream,
};

use super::{Buffered, Proof, Tls, TlsError};

/// Whom clients have to have their certificates from.
#[derive(Clone, Copy, Debug)]
pub struct Authority<'a> {
    /// Its certificate (PEM).
    pub certificates: &'a [u8],
    /// Certificates that it has taken back (PEM): who shows one is not let in. As with GnuTLS, which QEMU uses, an authority
    /// of whom there is no such list has taken back none; but a list that has run out holds until there is another.
    pub revoked: Option<&'a [u8]>,
}

/// What TLS by certificates is made of, and ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The server's certificate, and those that lead from it to its authority.
    Chain,
    /// The authority of clients.
    Authority,
    /// The list of what that authority has taken back.
    Revoked,
}

/// For how long one of them is good, in seconds since 1970. Of several certificates or lists that were given for it, that of
/// which the end comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Which.
    pub of: Credential,
    /// When it was made, or begins to be good.
    pub from: u64,
    /// From when on it is not good any more; of a list, when there should be a newer one.
    pub until: u64,
}

/// Who we are by a certificate, and whom we let in.
#[derive(Clone)]
pub(crate) struct Certificates {
    /// For clients of TLS 1.3, which has fresh keys when some have been used enough: in the order of ciphers that they like.
    current: Arc<ServerConfig>,
    /// For those of TLS 1.2, which has none, so that the connection ends then (256 GiB, or half an hour of small answers). They have the cipher that needs none, if they know it: in our order.
    older: Arc<ServerConfig>,
}

impl Certificates {
    fn new(current: ServerConfig) -> Self {
        let mut older = current.clone();
        older.ignore_client_order = true;
        Self { current: current.into(), older: older.into() }
    }

    /// The server's part of a handshake.
    pub(crate) async fn accept<S>(&self, socket: S) -> io::Result<TlsStream<Buffered<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // What is sent it holds together itself.
        let begun = LazyConfigAcceptor::new(Acceptor::default(), Buffered::new(socket)).await?;
        let hello = begun.client_hello();
        let known = &self.current.crypto_provider().cipher_suites;
        let is_current = known
            .iter()
            .any(|suite| suite.tls13().is_some() && hello.cipher_suites().contains(&suite.suite()));
        let config = if is_current { &self.current } else { &self.older };
        begun.into_stream(Arc::clone(config)).await
    }
}

/// Ciphers, first those under which most may be sent with the same keys.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        Reverse(match suite {
            SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit,
            SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit,
        })
    });
    provider
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
        let mut validities = Vec::from_iter(soonest(Credential::Chain, chain.iter().filter_map(certificate)));
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem { what: "server's key", why: error.to_string() })?;
        let config = |error: &dyn fmt::Display| TlsError::Config(error.to_string());
        let provider = Arc::new(provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| config(&error))?;
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                let trusted: Vec<CertificateDer<'static>> =
                    all("authority of clients", "certificate", authority.certificates)?;
                validities.extend(soonest(Credential::Authority, trusted.iter().filter_map(certificate)));
                for certificate in trusted {
                    roots.add(certificate).map_err(|error| config(&error))?;
                }
                let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                if let Some(revoked) = authority.revoked {
                    let lists: Vec<CertificateRevocationListDer<'static>> =
                        all(REVOKED, "list of revoked certificates", revoked)?;
                    validities.extend(soonest(Credential::Revoked, lists.iter().filter_map(list)));
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
        let proof = Proof::Certificates(Certificates::new(server));
        Ok(Self { proof, is_required, validities: validities.into() })
    }

    /// For how long what it is made of is good. Keys have no end.
    #[must_use]
    pub fn validities(&self) -> &[Validity] {
        &self.validities
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

/// That of these, from when until when, of which the end comes first.
fn soonest(of: Credential, spans: impl Iterator<Item = (u64, u64)>) -> Option<Validity> {
    let (from, until) = spans.min_by_key(|(_, until)| *until)?;
    Some(Validity { of, from, until })
}

/// What cannot be read is served as it is: it is clients who judge it.
fn certificate(der: &CertificateDer<'static>) -> Option<(u64, u64)> {
    let certificate = X509::from_der(der).ok()?;
    Some((seconds(certificate.not_before())?, seconds(certificate.not_after())?))
}

/// A list need not say when the next one comes.
fn list(der: &CertificateRevocationListDer<'static>) -> Option<(u64, u64)> {
    let list = X509Crl::from_der(der).ok()?;
    Some((seconds(list.last_update())?, seconds(list.next_update()?)?))
}

/// Since 1970; whatever was before is as good as that.
fn seconds(time: &Asn1TimeRef) -> Option<u64> {
    let since = Asn1Time::from_unix(0).ok()?.diff(time).ok()?;
    let seconds = i64::from(since.days).saturating_mul(86_400).saturating_add(i64::from(since.secs));
    Some(u64::try_from(seconds).unwrap_or(0))
}
