//! Encryption to the server, with the certificate checked or not as the URL asks.

use std::{fmt, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    Error, Result,
    backends::postgres::options::{Certificate, Trust},
};

/// The TLS connector.
#[derive(Clone)]
pub(in crate::backends::postgres) struct Tls(pub(super) MakeRustlsConnect);

impl Tls {
    pub(in crate::backends::postgres) fn new(trust: &Trust, certificate: Option<&Certificate>) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid_config("TLS cannot be used").caused_by(error))?;
        let builder = match trust {
            Trust::Unverified => builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider))),
            Trust::Verified(file) => builder.with_root_certificates(roots(file.as_deref())?),
        };
        let Some(certificate) = certificate else {
            return Ok(Self(MakeRustlsConnect::new(builder.with_no_client_auth())));
        };
        let unfit = |what: &str, path: &Path, error: String| {
            Error::invalid_config(format!("{what}={} cannot be used: {error}", path.display()))
        };
        let chain = certificates(&certificate.chain)
            .map_err(|error| unfit("sslcert", &certificate.chain, error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&certificate.key)
            .map_err(|error| unfit("sslkey", &certificate.key, error.to_string()))?;
        let config = builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| unfit("sslcert", &certificate.chain, error.to_string()))?;
        Ok(Self(MakeRustlsConnect::new(config)))
    }

    pub(in crate::backends::postgres) fn from_config(config: &ClientConfig) -> Self {
        Self(MakeRustlsConnect::new(config.clone()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(file: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_file_iter(file)?.collect()
}

fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unfit =
        |error: String| Error::invalid_config(format!("sslrootcert={} cannot be used: {error}", file.display()));
    for certificate in certificates(file).map_err(|error| unfit(error.to_string()))? {
        roots.add(certificate).map_err(|error| unfit(error.to_string()))?;
    }
    Ok(roots)
}

/// Accepts any certificate: `sslmode=prefer` protects only against passive eavesdropping.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
