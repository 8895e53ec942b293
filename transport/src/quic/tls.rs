//! The TLS side of QUIC: 1.3 only, *ring* for cryptography, no resumption. Reads no files.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use time::{Duration, OffsetDateTime};

use super::config::Security;
use crate::{
    certificates::{self, CLUSTER_DNS_NAME, CertificateError, Identity, Validity},
    frame::version,
};

/// Both roles of a host.
pub(super) struct Tls {
    pub client: Arc<QuicClientConfig>,
    /// The client of a connection that carries no frames but vouches for a link of another transport.
    pub vouching: Arc<QuicClientConfig>,
    pub server: Arc<QuicServerConfig>,
}

pub(super) fn configure(security: &Security) -> Result<Tls, CertificateError> {
    let provider = Arc::new(provider());
    match security {
        Security::Mutual(credentials) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates::certificate_chain(&credentials.ca)? {
                roots.add(certificate).map_err(|error| CertificateError::invalid("CA certificate", error))?;
            }
            let roots = Arc::new(roots);
            let invalid = |error| CertificateError::invalid("CA certificate", error);
            let peers = Verifiers {
                server: WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                    .build()
                    .map_err(invalid)?,
                client: WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(invalid)?,
            };
            build(&provider, peers, &credentials.identity)
        }
        Security::Insecure => {
            let anyone = Arc::new(Anyone { possession: Possession::new(provider.clone()) });
            let peers = Verifiers { server: anyone.clone(), client: anyone };
            // Nobody looks at the dates of a certificate that vouches for itself.
            let start = OffsetDateTime::UNIX_EPOCH;
            let validity = Validity { not_before: start, not_after: start + Duration::weeks(52 * 200) };
            build(&provider, peers, &Identity::self_signed(CLUSTER_DNS_NAME, validity)?)
        }
    }
}

/// *ring*, AES-128 first: ten rounds a block where AES-256 takes fourteen, and no weaker for what lives as long as a link.
fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

struct Verifiers {
    server: Arc<dyn ServerCertVerifier>,
    client: Arc<dyn ClientCertVerifier>,
}

fn build(provider: &Arc<CryptoProvider>, peers: Verifiers, identity: &Identity) -> Result<Tls, CertificateError> {
    let chain = certificates::certificate_chain(&identity.certificate)?;
    let key = certificates::private_key(&identity.key)?;
    let unusable = |error| CertificateError::invalid("host certificate", error);

    let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(peers.server)
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(unusable)?;
    client.alpn_protocols = version::offered();
    client.resumption = Resumption::disabled();
    let mut vouching = client.clone();
    vouching.alpn_protocols = vec![PROTOCOL.to_vec()];

    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_client_cert_verifier(peers.client)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    server.alpn_protocols = [version::offered(), vec![PROTOCOL.to_vec()]].concat();
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;

    let client = QuicClientConfig::try_from(client).expect("ring has QUIC's initial cipher suite");
    let vouching = QuicClientConfig::try_from(vouching).expect("ring has QUIC's initial cipher suite");
    let server = QuicServerConfig::try_from(server).expect("ring has QUIC's initial cipher suite");
    Ok(Tls { client: Arc::new(client), vouching: Arc::new(vouching), server: Arc::new(server) })
}

/// The part of a verifier that is the same for every role and every policy: the holder of a certificate must have its key.
#[derive(Clone, Debug)]
pub(crate) struct Possession {
    provider: Arc<CryptoProvider>,
}

impl Possession {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self { provider }
    }

    pub(crate) fn check(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    pub(crate) fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }

    /// What TLS 1.2 would ask, had it not been left out.
    pub(crate) fn never_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }
}

/// The methods that both of rustls' verifier traits ask for, from a field `possession`.
macro_rules! possession_methods {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Possession::never_tls12()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.possession.check(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.possession.schemes()
        }
    };
}

pub(crate) use possession_methods;

/// Accepts any certificate whose holder has its key.
#[derive(Debug)]
struct Anyone {
    possession: Possession,
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    possession_methods!();
}

impl ClientCertVerifier for Anyone {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    possession_methods!();
}

/// The TLS application protocol of such connections.
pub(crate) const PROTOCOL: &[u8] = b"asterism-ucx/4";
