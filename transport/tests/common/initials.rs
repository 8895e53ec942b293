//! QUIC's first packets (RFC 9000, section 17.2.2) as a stranger makes them: good enough to begin a handshake that he never
//! goes on with. Sends nothing.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, Side,
    crypto::ring::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider},
    quic::{ClientConnection, Version},
};

/// Bytes of a datagram with a first packet.
pub const DATAGRAM: usize = 1200;
/// QUIC's version 1.
const VERSION: u32 = 1;
const PACKET_NUMBER_BYTES: usize = 4;
const TAG_BYTES: usize = 16;

/// Makes first packets that all begin the same handshake, for a connection each.
pub struct Initials {
    hello: Vec<u8>,
    made: u64,
}

/// What a listener that wants an address validated sends.
pub struct Retry {
    /// The connection that the next packet is to be of.
    connection: Vec<u8>,
    token: Vec<u8>,
}

impl Initials {
    /// To listeners that speak `protocol` and are called `name`.
    pub fn new(protocol: &[u8], name: &'static str) -> Self {
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3");
        let mut client = client.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        client.alpn_protocols = vec![protocol.to_vec()];
        // The one parameter that must be there: an empty initial_source_connection_id.
        let parameters = vec![0x0f, 0];
        let name = name.try_into().expect("a DNS name");
        let client = ClientConnection::new(Arc::new(client), Version::V1, name, parameters);
        let mut hello = Vec::new();
        client.expect("it is complete").write_hs(&mut hello);
        Self { hello, made: 0 }
    }

    /// The first packet of another connection.
    pub fn next(&mut self) -> Vec<u8> {
        self.made += 1;
        self.packet(&self.made.to_be_bytes(), &[])
    }

    /// The same packet again, by somebody who received a Retry.
    pub fn again(&self, retry: &Retry) -> Vec<u8> {
        self.packet(&retry.connection, &retry.token)
    }

    fn packet(&self, connection: &[u8], token: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xc0 | (PACKET_NUMBER_BYTES - 1) as u8];
        packet.extend(VERSION.to_be_bytes());
        packet.push(connection.len() as u8);
        packet.extend(connection);
        // This side's own connection has no name.
        packet.push(0);
        packet.extend(two_bytes(token.len()));
        packet.extend(token);
        let rest = DATAGRAM - packet.len() - 2;
        packet.extend(two_bytes(rest));
        let number = packet.len();
        packet.extend([0; PACKET_NUMBER_BYTES]);
        let header = packet.clone();
        // A CRYPTO frame from offset 0; what follows is padding.
        packet.extend([0x06, 0]);
        packet.extend(two_bytes(self.hello.len()));
        packet.extend(&self.hello);
        assert!(packet.len() <= DATAGRAM - TAG_BYTES, "the hello is too long");
        packet.resize(DATAGRAM - TAG_BYTES, 0);

        let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite()).expect("QUIC's own suite");
        let keys = suite.keys(connection, Side::Client, Version::V1).local;
        let tag = keys.packet.encrypt_in_place(0, &header, &mut packet[header.len()..]).expect("it fits");
        packet.extend(tag.as_ref());
        let sample = packet[number + 4..number + 4 + keys.header.sample_len()].to_vec();
        let (first, numbered) = packet.split_at_mut(1);
        let number = &mut numbered[number - 1..number - 1 + PACKET_NUMBER_BYTES];
        keys.header.encrypt_in_place(&sample, &mut first[0], number).expect("a whole sample");
        packet
    }
}

impl Retry {
    /// The Retry in a datagram, if it is one (RFC 9000, section 17.2.5).
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let (first, rest) = datagram.split_first()?;
        let own = usize::from(*rest.get(4)?);
        let connection = rest.get(5 + own..)?;
        let (length, connection) = connection.split_first()?;
        let (connection, token) = connection.split_at_checked(usize::from(*length))?;
        let token = token.get(..token.len().checked_sub(TAG_BYTES)?)?;
        (first & 0xf0 == 0xf0).then(|| Self { connection: connection.to_vec(), token: token.to_vec() })
    }
}

/// A number as a QUIC integer of two bytes.
fn two_bytes(number: usize) -> [u8; 2] {
    assert!(number < 1 << 14, "it has 14 bits");
    (0x4000 | number as u16).to_be_bytes()
}
