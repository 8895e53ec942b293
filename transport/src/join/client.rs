//! The joining node's side: makes keys, sends their public halves with the token, checks what comes back. Stores nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, VarInt};
use rcgen::{KeyPair, PublicKeyData};

use super::{
    JOIN_DNS_NAME,
    error::JoinError,
    message::{JoinAnswer, JoinRequest, MAX_JOIN_BYTES, WantedHost},
    tls::{self, Pinned},
    token::{JoinToken, authority_hash, hex},
};
use crate::certificates::{CertificateError, CertificateInfo, Credentials, Identity};

/// Longest wait for the whole exchange.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Exchanges `token` for certificates of `hosts`, which are to run on `node`: in their order, each with a new key that was
/// made here. The token is spent once the listener has said yes, even if its answer is then lost.
pub async fn join(
    address: SocketAddr,
    token: &JoinToken,
    node: &str,
    hosts: &[String],
) -> Result<Vec<(String, Credentials)>, JoinError> {
    let keys = hosts.iter().map(|_| KeyPair::generate().map_err(CertificateError::generate));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let wanted = hosts.iter().zip(&keys);
    let wanted = wanted.map(|(name, key)| WantedHost { name: name.clone(), public_key: key.der_bytes().to_vec() });
    let request = JoinRequest { secret: token.secret, node: node.into(), hosts: wanted.collect() };
    let answer = match tokio::time::timeout(TIME_LIMIT, ask(address, token, &request)).await {
        Ok(answer) => answer?,
        Err(_) => return Err(JoinError::Unreachable { address, cause: format!("no answer within {TIME_LIMIT:?}") }),
    };
    match answer {
        JoinAnswer::Refused(refusal) => Err(JoinError::refused(refusal, address, node)),
        JoinAnswer::Issued { ca, certificates } => {
            let wrong = |cause: &str| JoinError::Answer { address, cause: cause.into() };
            if authority_hash(&ca)? != token.authority {
                return Err(wrong("its CA certificate is not the token's"));
            }
            if certificates.len() != hosts.len() {
                return Err(wrong("it holds another number of certificates than hosts were named"));
            }
            let issued = hosts.iter().zip(&keys).zip(certificates);
            issued
                .map(|((host, key), certificate)| {
                    let info = CertificateInfo::from_pem(&certificate)?;
                    if info.name != *host || !info.is_of_key(key) {
                        return Err(wrong("a certificate is for another host or key"));
                    }
                    let identity = Identity { certificate, key: key.serialize_pem() };
                    Ok((host.clone(), Credentials { ca: ca.clone(), identity }))
                })
                .collect()
        }
    }
}

async fn ask(address: SocketAddr, token: &JoinToken, request: &JoinRequest) -> Result<JoinAnswer, JoinError> {
    let unreachable = |cause: String| JoinError::Unreachable { address, cause };
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let endpoint = Endpoint::client((any, 0).into()).map_err(|error| unreachable(error.to_string()))?;
    let pinned = Arc::new(Pinned::new(token.authority));
    let client = ClientConfig::new(tls::client(pinned.clone()));
    let connecting = endpoint.connect_with(client, address, JOIN_DNS_NAME);
    let connecting = connecting.map_err(|error| unreachable(error.to_string()))?;
    let connection = connecting.await.map_err(|error| match pinned.refusal() {
        Some(cause) => JoinError::WrongAuthority { address, expected: hex(&token.authority), cause: cause.into() },
        None => unreachable(words(error)),
    })?;
    let answer = exchange(&connection, request).await;
    let answer = answer.map_err(|cause| unreachable(connection.close_reason().map_or(cause, words)));
    connection.close(VarInt::from_u32(0), b"done");
    // The listener waits for the close; this sees it off.
    endpoint.wait_idle().await;
    JoinAnswer::from_bytes(&answer?).map_err(|cause| JoinError::Answer { address, cause })
}

async fn exchange(connection: &Connection, request: &JoinRequest) -> Result<Vec<u8>, String> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(|error| error.to_string())?;
    send.write_all(&request.to_bytes()).await.map_err(|error| error.to_string())?;
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
