//! Strangers who trust a join listener and then do as they like. Knows no token.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use asterism_transport::join::JOIN_DNS_NAME;
use quinn::crypto::rustls::QuicClientConfig;
use rustls_pki_types::{CertificateDer, pem::PemObject};

use crate::common::within;

pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A connection to the listener by somebody who then does as he likes.
pub async fn stranger(ca: &str, address: SocketAddr) -> quinn::Connection {
    stranger_speaking(b"asterism-join/1", ca, address).await
}

pub async fn stranger_speaking(protocol: &[u8], ca: &str, address: SocketAddr) -> quinn::Connection {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("it was just made")).expect("it was just made");
    let mut client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![protocol.to_vec()];
    let client = QuicClientConfig::try_from(client).expect("ring has the initial suite");
    let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback has a free port");
    let config = quinn::ClientConfig::new(Arc::new(client));
    let connecting = endpoint.connect_with(config, address, JOIN_DNS_NAME).expect("the address is valid");
    within(connecting).await.expect("the listener shows itself to anybody")
}
