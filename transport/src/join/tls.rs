//! The TLS side of joining: the listener shows a certificate; the node shows one to renew it, else none. Sends nothing.

use std::sync::{Arc, OnceLock};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    CertificateError as Objection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::token::sha256;
use crate::{
    certificates::{self, CertificateError, Identity},
    quic::tls::{Possession, possession_methods},
};

/// Spoken by a node that has a token.
pub(super) const JOIN: &[u8] = b"asterism-join/1";
/// Spoken by a node that has a token and offers hosts that the cluster does not know.
pub(super) const OFFER: &[u8] = b"asterism-offer/1";
/// Spoken by a node that shows a certificate.
pub(super) const RENEW: &[u8] = b"asterism-renew/1";

/// Shows `identity`, and with it the CA's certificate, to anybody; a certificate that is shown must be good and of that CA.
pub(super) fn server(identity: &Identity, ca: &str) -> Result<Arc<QuicServerConfig>, CertificateError> {
    let mut chain = certificates::certificate_chain(&identity.certificate)?;
    let authority = certificates::certificate_chain(ca)?;
    let invalid = |cause: String| CertificateError::invalid("CA certificate", cause);
    let mut roots = RootCertStore::empty();
    for certificate in &authority {
        roots.add(certificate.clone()).map_err(|error| invalid(error.to_string()))?;
    }
    let nodes = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).allow_unauthenticated();
    let nodes = nodes.build().map_err(|error| invalid(error.to_string()))?;
    chain.extend(authority);
    let mut server = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_client_cert_verifier(nodes)
        .with_single_cert(chain, certificates::private_key(&identity.key)?)
        .map_err(|error| CertificateError::invalid("join certificate", error))?;
    server.alpn_protocols = vec![JOIN.to_vec(), RENEW.to_vec(), OFFER.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Arc::new(QuicServerConfig::try_from(server).expect("ring has QUIC's initial cipher suite")))
}

/// Trusts the CA that `pinned` names. Shows `identity` to renew it, or nothing to join, and says so by `joining`.
pub(super) fn client(
    pinned: Arc<Pinned>,
    identity: Option<&Identity>,
    joining: &'static [u8],
) -> Result<Arc<QuicClientConfig>, CertificateError> {
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(pinned);
    let (mut client, protocol) = match identity {
        None => (client.with_no_client_auth(), joining),
        Some(Identity { certificate, key }) => {
            let (chain, key) = (certificates::certificate_chain(certificate)?, certificates::private_key(key)?);
            let shown = client.with_client_auth_cert(chain, key);
            (shown.map_err(|error| CertificateError::invalid("host certificate", error))?, RENEW)
        }
    };
    client.alpn_protocols = vec![protocol.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(client).expect("ring has QUIC's initial cipher suite")))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Trusts CAs of which only the hashes are known; the peer brings its certificate along.
#[derive(Debug)]
pub(super) struct Pinned {
    authorities: Vec<[u8; 32]>,
    provider: Arc<CryptoProvider>,
    possession: Possession,
    refused: OnceLock<String>,
}

impl Pinned {
    pub(super) fn new(authorities: Vec<[u8; 32]>) -> Self {
        let provider = provider();
        let possession = Possession::new(provider.clone());
        Self { authorities, provider, possession, refused: OnceLock::new() }
    }

    /// Why a peer was refused for its certificates, if one was.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    fn verifier(&self, chain: &[CertificateDer<'_>]) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let authority = chain.iter().find(|certificate| self.authorities.contains(&sha256(certificate)));
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
