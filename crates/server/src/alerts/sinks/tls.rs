//! TLS: the certificate authorities this machine trusts, and those of a file.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject as _},
    },
};

/// The certificates of a PEM file.
///
/// # Errors
/// It cannot be read, or has none: a sentence.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let found =
        CertificateDer::pem_file_iter(path).map_err(|error| format!("cannot read '{shown}': {error}"))?;
    let all: Result<Vec<_>, _> = found.collect();
    match all {
        Ok(all) if all.is_empty() => Err(format!("'{shown}' has no certificate (PEM)")),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("'{shown}' is not a certificate (PEM): {error}")),
    }
}

/// Connects and verifies the other side's name.
///
/// # Errors
/// The file is of no use: a sentence.
pub(super) fn connector(ca: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    // One that cannot be parsed is of no use, and no reason to trust none.
    let _counts = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in ca.map(certificates).transpose()?.unwrap_or_default() {
        roots
            .add(certificate)
            .map_err(|error| format!("the certificate authority cannot be used: {error}"))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be used: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
