//! The TLS side of joining: the listener shows a certificate, the node none. Sends nothing.

use std::sync::{Arc, OnceLock};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    CertificateError as Objection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::NoServerSessionStorage,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::token::sha256;
use crate::{
    certificates::{self, CertificateError, Identity},
    quic::tls::{Possession, possession_methods},
};

const PROTOCOL: &[u8] = b"asterism-join/1";

/// Shows `identity`, and with it the CA's certificate, to anybody.
pub(super) fn server(identity: &Identity, ca: &str) -> Result<Arc<QuicServerConfig>, CertificateError> {
    let mut chain = certificates::certificate_chain(&identity.certificate)?;
    chain.extend(certificates::certificate_chain(ca)?);
    let mut server = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, certificates::private_key(&identity.key)?)
        .map_err(|error| CertificateError::invalid("join certificate", error))?;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Arc::new(QuicServerConfig::try_from(server).expect("ring has QUIC's initial cipher suite")))
}

/// Shows nothing and trusts the CA that `pinned` names.
pub(super) fn client(pinned: Arc<Pinned>) -> Arc<QuicClientConfig> {
    let mut client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.resumption = Resumption::disabled();
    Arc::new(QuicClientConfig::try_from(client).expect("ring has QUIC's initial cipher suite"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Trusts a CA of which only the hash is known; the peer brings its certificate along.
#[derive(Debug)]
pub(super) struct Pinned {
    authority: [u8; 32],
    provider: Arc<CryptoProvider>,
    possession: Possession,
    refused: OnceLock<String>,
}

impl Pinned {
    pub(super) fn new(authority: [u8; 32]) -> Self {
        let provider = provider();
        let possession = Possession::new(provider.clone());
        Self { authority, provider, possession, refused: OnceLock::new() }
    }

    /// Why a peer was refused for its certificates, if one was.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    fn verifier(&self, chain: &[CertificateDer<'_>]) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let authority = chain.iter().find(|certificate| sha256(certificate) == self.authority);
        let authority = authority.ok_or(Objection::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.verifier(chain).and_then(|verifier| verifier.verify_server_cert(certificate, chain, name, ocsp, now));
        verified.inspect_err(|error| {
            self.refused.get_or_init(|| error.to_string());
        })
    }

    possession_methods!();
}
