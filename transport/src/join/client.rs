//! The node's side: makes keys, sends their public halves with the token or by the certificate it has, checks what comes
//! back. Stores nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, VarInt};
use rcgen::{KeyPair, PublicKeyData};

use super::{
    error::JoinError,
    message::{JoinAnswer, JoinOffer, JoinRequest, MAX_JOIN_BYTES, RenewRequest, WantedHost},
    tls::{self, Pinned},
    token::{JoinToken, authority_hashes, hex},
};
use crate::{
    certificates::{CertificateError, CertificateInfo, Credentials, Identity, JOIN_DNS_NAME},
    quic::cause,
};

/// Longest wait for the whole exchange.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Where certificates are given out, and where this node is.
#[derive(Clone, Copy, Debug)]
pub struct JoinAddress {
    /// The listener.
    pub listener: SocketAddr,
    /// The node's own address, which is shown where it is this machine's.
    pub node: Option<IpAddr>,
}

impl From<SocketAddr> for JoinAddress {
    fn from(listener: SocketAddr) -> Self {
        Self { listener, node: None }
    }
}

/// Exchanges `token` for certificates of `hosts`, which are to run on `node`: in their order, each with a new key that was
/// made here. The token is spent once the listener has said yes, even if its answer is then lost.
pub async fn join(
    at: impl Into<JoinAddress>,
    token: &JoinToken,
    node: &str,
    hosts: &[String],
) -> Result<Vec<(String, Credentials)>, JoinError> {
    let wanted = Wanted::new(hosts)?;
    let request = JoinRequest { secret: token.secret, node: node.into(), hosts: wanted.hosts() };
    let listener = Listener { at: at.into(), authorities: vec![token.authority], node, identity: None, offers: false };
    let Given { ca, certificates, .. } = listener.ask(&request.to_bytes()).await?;
    listener.check(wanted, &ca, certificates)
}

/// The same for a node that the cluster does not know yet: `offer` is what it says of itself and its hosts.
pub async fn join_offering(
    at: impl Into<JoinAddress>,
    token: &JoinToken,
    (node, offer): (&str, String),
    hosts: &[String],
) -> Result<Vec<(String, Credentials)>, JoinError> {
    let wanted = Wanted::new(hosts)?;
    let request = JoinRequest { secret: token.secret, node: node.into(), hosts: wanted.hosts() };
    let listener = Listener { at: at.into(), authorities: vec![token.authority], node, identity: None, offers: true };
    let Given { ca, certificates, .. } = listener.ask(&JoinOffer { request, offer }.to_bytes()).await?;
    listener.check(wanted, &ca, certificates)
}

/// Exchanges certificates of a node, which must not be over, for new ones of `hosts`, which run on that node: in their
/// order, each with a new key that was made here. `current` is the node's own; its CA certificates stay trusted, and the
/// listener must be of one of them.
pub async fn renew(
    at: impl Into<JoinAddress>,
    current: &Credentials,
    hosts: &[String],
) -> Result<Vec<(String, Credentials)>, JoinError> {
    let node = CertificateInfo::from_pem(&current.identity.certificate)?.name;
    let wanted = Wanted::new(hosts)?;
    let request = RenewRequest { hosts: wanted.hosts() };
    let authorities = authority_hashes(&current.ca)?;
    let listener =
        Listener { at: at.into(), authorities, node: &node, identity: Some(&current.identity), offers: false };
    let given = listener.ask(&request.to_bytes()).await?;
    listener.check(wanted, &current.ca, given.certificates)
}

/// Serial numbers of the cluster's certificates that count no more, for a node with a good certificate.
pub async fn revoked(at: impl Into<JoinAddress>, current: &Credentials) -> Result<Vec<String>, JoinError> {
    let node = CertificateInfo::from_pem(&current.identity.certificate)?.name;
    let authorities = authority_hashes(&current.ca)?;
    let listener =
        Listener { at: at.into(), authorities, node: &node, identity: Some(&current.identity), offers: false };
    Ok(listener.ask(&RenewRequest { hosts: Vec::new() }.to_bytes()).await?.revoked)
}

/// What a listener gave.
struct Given {
    ca: String,
    certificates: Vec<String>,
    revoked: Vec<String>,
}

/// Hosts and the keys made for them.
struct Wanted<'a>(Vec<(&'a String, KeyPair)>);

impl<'a> Wanted<'a> {
    fn new(hosts: &'a [String]) -> Result<Self, CertificateError> {
        let keys = hosts.iter().map(|host| Ok((host, KeyPair::generate().map_err(CertificateError::generate)?)));
        keys.collect::<Result<_, _>>().map(Self)
    }

    fn hosts(&self) -> Vec<WantedHost> {
        let wanted = |(name, key): &(&String, KeyPair)| WantedHost {
            name: (*name).clone(),
            public_key: key.der_bytes().to_vec(),
        };
        self.0.iter().map(wanted).collect()
    }
}

/// Who is asked, by whom.
struct Listener<'a> {
    at: JoinAddress,
    /// SHA-256 of the CA certificates of which it must have one's key.
    authorities: Vec<[u8; 32]>,
    node: &'a str,
    /// What it is shown.
    identity: Option<&'a Identity>,
    /// Whether hosts are offered that it does not know.
    offers: bool,
}

impl Listener<'_> {
    /// What it gives for a request.
    async fn ask(&self, request: &[u8]) -> Result<Given, JoinError> {
        let asked = tokio::time::timeout(TIME_LIMIT, self.answer(request)).await;
        match asked.unwrap_or_else(|_| Err(self.unreachable(format!("no answer within {TIME_LIMIT:?}"))))? {
            JoinAnswer::Refused(refusal) => Err(JoinError::refused(refusal, self.at.listener, self.node)),
            JoinAnswer::Issued { ca, certificates, revoked } => match authority_hashes(&ca)?.first() {
                Some(hash) if self.authorities.contains(hash) => Ok(Given { ca, certificates, revoked }),
                _ => Err(self.wrong("its CA certificate is not the one expected")),
            },
        }
    }

    async fn answer(&self, request: &[u8]) -> Result<JoinAnswer, JoinError> {
        let JoinAddress { listener: address, node } = self.at;
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // An address that is not this machine's is the listener's to object to.
        let own = node.filter(|node| node.is_ipv4() == address.is_ipv4());
        let endpoint = own
            .and_then(|own| Endpoint::client((own, 0).into()).ok())
            .map_or_else(|| Endpoint::client((any, 0).into()), Ok);
        let endpoint = endpoint.map_err(|error| self.unreachable(error.to_string()))?;
        let pinned = Arc::new(Pinned::new(self.authorities.clone()));
        let client = ClientConfig::new(tls::client(
            pinned.clone(),
            self.identity,
            if self.offers { tls::OFFER } else { tls::JOIN },
        )?);
        let connecting = endpoint.connect_with(client, address, JOIN_DNS_NAME);
        let connecting = connecting.map_err(|error| self.unreachable(error.to_string()))?;
        let connection = connecting.await.map_err(|error| match pinned.refusal() {
            Some(cause) => {
                let expected = self.authorities.iter().map(|hash| hex(hash)).collect::<Vec<_>>().join(" or ");
                JoinError::WrongAuthority { address, expected, cause: cause.into() }
            }
            None => self.lost(error),
        })?;
        let answer = exchange(&connection, request).await;
        let answer = answer.map_err(|cause| match connection.close_reason() {
            Some(error) => self.lost(error),
            None => self.unreachable(cause),
        });
        connection.close(VarInt::from_u32(0), b"done");
        // The listener waits for the close; this sees it off.
        endpoint.wait_idle().await;
        JoinAnswer::from_bytes(&answer?).map_err(|cause| JoinError::Answer { address, cause })
    }

    /// Each certificate with its key, if it is for the host and key that were named.
    fn check(
        &self,
        Wanted(wanted): Wanted<'_>,
        ca: &str,
        certificates: Vec<String>,
    ) -> Result<Vec<(String, Credentials)>, JoinError> {
        if certificates.len() != wanted.len() {
            return Err(self.wrong("it holds another number of certificates than hosts were named"));
        }
        let issued = wanted.into_iter().zip(certificates).map(|((host, key), certificate)| {
            let info = CertificateInfo::from_pem(&certificate)?;
            if info.member.as_ref().is_none_or(|member| member.name != *host) || !info.is_of_key(&key) {
                return Err(self.wrong("a certificate is for another host or key"));
            }
            let identity = Identity { certificate, key: key.serialize_pem() };
            Ok((host.clone(), Credentials { ca: ca.into(), identity }))
        });
        issued.collect()
    }

    /// TLS refuses the certificate of a client only once the client thinks that it is connected.
    fn lost(&self, error: ConnectionError) -> JoinError {
        match self.identity {
            Some(_) if cause::rejection(&error) == "certificate" => JoinError::CertificateRefused {
                address: self.at.listener,
                node: self.node.into(),
                cause: cause::words(error),
            },
            _ => self.unreachable(words(error)),
        }
    }

    fn unreachable(&self, cause: String) -> JoinError {
        JoinError::Unreachable { address: self.at.listener, cause }
    }

    fn wrong(&self, cause: &str) -> JoinError {
        JoinError::Answer { address: self.at.listener, cause: cause.into() }
    }
}

async fn exchange(connection: &Connection, request: &[u8]) -> Result<Vec<u8>, String> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(|error| error.to_string())?;
    send.write_all(request).await.map_err(|error| error.to_string())?;
    send.finish().map_err(|error| error.to_string())?;
    receive.read_to_end(MAX_JOIN_BYTES).await.map_err(|error| error.to_string())
}

/// What the listener said when it closed, or what QUIC says.
fn words(error: ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "it dropped the connection without a word, as it does with nodes that are too slow".into()
        }
        ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
        error => error.to_string(),
    }
}
