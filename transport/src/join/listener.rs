//! Where tokens and old certificates are exchanged for new certificates: beside the CA's key. Decides nothing that its
//! caller should decide.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use quinn::{
    Connection, Endpoint, IdleTimeout, Incoming, ReadToEndError, ServerConfig, TransportConfig, VarInt,
    crypto::rustls::HandshakeData,
};
use rustls_pki_types::CertificateDer;

use super::{
    error::JoinError,
    message::{JoinAnswer, JoinOffer, JoinRequest, MAX_JOIN_BYTES, MAX_JOIN_HOSTS, Refusal, RenewRequest, WantedHost},
    tls,
    token::{JoinToken, TokenBook, TokenRecord},
};
use crate::{
    certificates::{CertificateAuthority, CertificateError, CertificateInfo, Member, MemberRole, Validity},
    quic::admission::{self, AdmissionGuard, HalfOpen, Limits, Received},
    signal::lock,
};

/// Nodes served at a time; the others' packets come again.
const NODES_AT_A_TIME: Limits = Limits { by_source: 4, in_all: 64 };
/// For how long a token that is too old is remembered, so that its refusal can say so.
const JOIN_MEMORY: Duration = Duration::from_secs(7 * 86_400);
/// The listener's own certificate is good for this long.
const OWN_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// A node that never says anything is dropped after this long.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);
const REFUSED: VarInt = VarInt::from_u32(1);

/// What the caller of a [`JoinListener`] knows, decides and keeps. Every method may be called from any thread, and may
/// block for as long as a file takes.
pub trait JoinRules: Send + Sync + 'static {
    /// The time by which tokens expire and certificates begin.
    fn now(&self) -> SystemTime;
    /// As what `node` may have a certificate for `host`; none when it may not.
    fn role(&self, node: &str, host: &str) -> Option<MemberRole>;
    /// Whether the holder of a good certificate may renew. What it may have then, [`Self::role`] says by its name.
    fn may_renew(&self, member: &Member) -> bool;
    /// A node whose token is bound to its name offers hosts that may be new: takes them in, so that [`Self::role`] knows them.
    ///
    /// # Errors
    /// Why they are not taken in, in words for the node.
    fn offered(&self, asked: &Asked<'_>, offer: &str) -> Result<(), String> {
        let _ = (asked, offer);
        Err("nodes that are not in the cluster file do not join here".into())
    }
    /// What stands against giving a node certificates of these names, if anything does, in words for the node.
    fn objection(&self, asked: &Asked<'_>) -> Option<String> {
        let _ = asked;
        None
    }
    /// Serial numbers of the certificates that count no more.
    fn revoked(&self) -> Vec<String> {
        Vec::new()
    }
    /// These certificates (PEM) are given out now.
    fn issued(&self, certificates: &[String]) -> Result<(), String> {
        let _ = certificates;
        Ok(())
    }
    /// Stores every token there is; a token is spent once this has succeeded. The error's words reach the node.
    fn store(&self, tokens: &[TokenRecord]) -> Result<(), String>;
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The node, as its token's request or its certificate says.
    pub node: &'a str,
    /// Where it asks from; it receives there.
    pub from: IpAddr,
    /// The names that it wants certificates of.
    pub names: &'a [&'a str],
    /// The serial number of the certificate that it shows; none where it has a token.
    pub serial: Option<&'a str>,
}

/// How a listener works.
pub struct JoinConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Who issues.
    pub authority: CertificateAuthority,
    /// For how long issued certificates are good.
    pub lifetime: Duration,
    /// A node that has not asked and taken its answer by then is dropped.
    pub time_limit: Duration,
}

impl JoinConfig {
    /// Certificates for a year; five seconds a node.
    pub fn new(listen: SocketAddr, authority: CertificateAuthority) -> Self {
        Self { listen, authority, lifetime: Duration::from_secs(365 * 86_400), time_limit: TIME_LIMIT }
    }
}

/// Exchanges tokens, and certificates that are not over, for new certificates. Dropping it closes it.
pub struct JoinListener {
    endpoint: Endpoint,
    address: SocketAddr,
    counter: Arc<Counter>,
}

impl JoinListener {
    /// Listens, knowing `tokens`. Must be called within a tokio runtime, which then drives the socket.
    pub fn bind(config: JoinConfig, tokens: Vec<TokenRecord>, rules: Arc<dyn JoinRules>) -> Result<Self, JoinError> {
        let JoinConfig { listen, authority, lifetime, time_limit } = config;
        let identity = authority.issue_to_join_listener(Validity::starting(rules.now(), OWN_LIFETIME))?;
        let mut server = ServerConfig::with_crypto(tls::server(&identity, authority.certificate())?);
        admission::bound_waiting(&mut server).transport_config(Arc::new(transport(time_limit))).migration(false);
        let failed = |error: std::io::Error| JoinError::Bind { address: listen, cause: error.to_string() };
        let endpoint = Endpoint::server(server, listen).map_err(failed)?;
        let address = endpoint.local_addr().map_err(failed)?;
        let book = Mutex::new(TokenBook { records: tokens });
        let counter = Arc::new(Counter { authority, lifetime, book, rules });
        tokio::spawn(listen_on(endpoint.clone(), counter.clone(), time_limit));
        Ok(Self { endpoint, address, counter })
    }

    /// Where nodes reach it.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// A new token, good for `lifetime`, for a node or for any. It is stored before this returns.
    pub fn create_token(&self, node: Option<&str>, lifetime: Duration) -> Result<JoinToken, JoinError> {
        let token = JoinToken::create(self.counter.authority.certificate())?;
        let record = token.record(self.counter.rules.now() + lifetime);
        self.add(TokenRecord { node: node.map(str::to_owned), ..record })?;
        Ok(token)
    }

    /// From now on knows a token that was made elsewhere, and forgets those that are long too old.
    pub fn add(&self, token: TokenRecord) -> Result<(), JoinError> {
        let mut book = lock(&self.counter.book);
        book.forget(self.counter.rules.now(), JOIN_MEMORY);
        book.records.push(token);
        let stored = self.counter.rules.store(&book.records);
        stored.inspect_err(|_| drop(book.records.pop())).map_err(|cause| JoinError::Store { cause })
    }

    /// Every token it knows, spent and too old ones among them.
    pub fn tokens(&self) -> Vec<TokenRecord> {
        lock(&self.counter.book).records.clone()
    }

    /// Stops listening and drops every node that is being served.
    pub fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the listener was closed");
    }
}

impl Drop for JoinListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// QUIC's numbers for one short exchange.
fn transport(time_limit: Duration) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let window = VarInt::from_u32(MAX_JOIN_BYTES as u32);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        .receive_window(window)
        .max_idle_timeout(Some(IdleTimeout::try_from(time_limit).unwrap_or(VarInt::MAX.into())))
        .datagram_receive_buffer_size(None);
    transport
}

async fn listen_on(endpoint: Endpoint, counter: Arc<Counter>, time_limit: Duration) {
    let reception = AdmissionGuard::new(NODES_AT_A_TIME);
    while let Some(incoming) = endpoint.accept().await {
        let peer = incoming.remote_address();
        let (incoming, place) = match reception.receive(incoming) {
            Received::Shake(incoming, place) => (*incoming, place),
            Received::Later => continue,
            Received::Dropped(reason) => {
                reception.log_refusal(peer, reason, "too many nodes are joining");
                continue;
            }
        };
        let (counter, reception) = (counter.clone(), reception.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(time_limit, serve((incoming, place), counter)).await {
                Ok(Ok(())) => {}
                Ok(Err(cause)) => reception.log_refusal(peer, "join", &cause),
                Err(_) => reception.log_refusal(peer, "slow", &format!("it did not join within {time_limit:?}")),
            }
        });
    }
}

/// How a node shows who it is.
enum Proof {
    /// By a token, in its request.
    Token,
    /// By a token, in its offer.
    OfferedToken,
    /// By the certificate of this member, in TLS, and its serial number.
    Certificate(Member, String),
}

/// What the handshake settled; the error says what is missing.
fn proof(connection: &Connection) -> Result<Proof, &'static str> {
    let settled = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    match settled.and_then(|data| data.protocol).as_deref() {
        Some(tls::RENEW) => {}
        Some(tls::OFFER) => return Ok(Proof::OfferedToken),
        _ => return Ok(Proof::Token),
    }
    let shown = connection.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    let shown = shown.and_then(|chain| CertificateInfo::from_der(chain.first()?).ok());
    shown
        .and_then(|info| Some(Proof::Certificate(info.member?, info.serial)))
        .ok_or("to renew certificates, show one; to join, use a token")
}

/// One node, from its first packet until it has its answer, and its place until then. Dropping the future drops the node.
async fn serve((incoming, place): (Incoming, HalfOpen), counter: Arc<Counter>) -> Result<(), String> {
    let from = incoming.remote_address().ip();
    let connection = incoming.await.map_err(|error| error.to_string())?;
    let proof = proof(&connection).inspect_err(|cause| connection.close(REFUSED, cause.as_bytes()))?;
    let (mut send, mut receive) = connection.accept_bi().await.map_err(|error| error.to_string())?;
    let bytes = match receive.read_to_end(MAX_JOIN_BYTES).await {
        Ok(bytes) => bytes,
        Err(error) => return Err(refuse_unread(&connection, &error)),
    };
    let answering = tokio::task::spawn_blocking(move || counter.answer((&proof, from), &bytes));
    let answer = answering.await.map_err(|error| error.to_string())?;
    send.write_all(&answer.to_bytes()).await.map_err(|error| error.to_string())?;
    // Fails only where the node is gone, which the next line waits for anyway.
    let _ = send.finish();
    connection.closed().await;
    match answer {
        JoinAnswer::Issued { .. } => {
            place.prove();
            Ok(())
        }
        JoinAnswer::Refused(refusal) => Err(format!("{refusal:?}")),
    }
}

fn refuse_unread(connection: &Connection, error: &ReadToEndError) -> String {
    let cause = format!("the request is not readable: {error}; at most {MAX_JOIN_BYTES} bytes are read");
    connection.close(REFUSED, cause.as_bytes());
    cause
}

/// What decides on a request.
struct Counter {
    authority: CertificateAuthority,
    lifetime: Duration,
    book: Mutex<TokenBook>,
    rules: Arc<dyn JoinRules>,
}

impl Counter {
    fn answer(&self, (proof, from): (&Proof, IpAddr), bytes: &[u8]) -> JoinAnswer {
        let unreadable = |cause| Refusal::Request { cause };
        let answer = match proof {
            Proof::Token => {
                JoinRequest::from_bytes(bytes).map_err(unreadable).and_then(|request| self.issue(&request, from, None))
            }
            Proof::OfferedToken => JoinOffer::from_bytes(bytes)
                .map_err(unreadable)
                .and_then(|JoinOffer { request, offer }| self.issue(&request, from, Some(&offer))),
            Proof::Certificate(member, serial) => RenewRequest::from_bytes(bytes)
                .map_err(unreadable)
                .and_then(|request| self.renew((member, serial), &request, from)),
        };
        answer.unwrap_or_else(JoinAnswer::Refused)
    }

    /// Gives nothing but names that are this node's now, whatever the node had before.
    fn renew(
        &self,
        (member, serial): (&Member, &str),
        request: &RenewRequest,
        from: IpAddr,
    ) -> Result<JoinAnswer, Refusal> {
        if member.cluster != self.authority.cluster_name() || !self.rules.may_renew(member) {
            return Err(Refusal::NotANode { member: member.to_string() });
        }
        self.check((&member.name, Some(serial)), &request.hosts, from)?;
        if request.hosts.is_empty() {
            return Ok(self.giving(Vec::new()));
        }
        let certificates = self.certify(&member.name, &request.hosts)?;
        self.note(&certificates)?;
        tracing::info!(node = member.name, certificates = certificates.len(), "renewed certificates");
        Ok(self.giving(certificates))
    }

    /// Holds the book throughout, so that of two nodes with one token one gets certificates.
    fn issue(&self, request: &JoinRequest, from: IpAddr, offer: Option<&str>) -> Result<JoinAnswer, Refusal> {
        let mut book = lock(&self.book);
        let token = book.find((&request.secret, &request.node), self.rules.now())?;
        if let Some(offer) = offer {
            if book.records[token].node.is_none() {
                return Err(Refusal::NotYours { cause: "the token is for no node by name".into() });
            }
            let names: Vec<&str> = request.hosts.iter().map(|host| host.name.as_str()).collect();
            let asked = Asked { node: &request.node, from, names: &names, serial: None };
            self.rules.offered(&asked, offer).map_err(|cause| Refusal::NotYours { cause })?;
        }
        let certificates = self.certify(&request.node, &request.hosts)?;
        self.check((&request.node, None), &request.hosts, from)?;
        book.records[token].spent_by = Some(request.node.clone());
        if let Err(cause) = self.rules.store(&book.records) {
            book.records[token].spent_by = None;
            return Err(Refusal::Unavailable { cause });
        }
        self.note(&certificates)?;
        Ok(self.giving(certificates))
    }

    /// Asks the rules what stands against it.
    fn check(&self, (node, serial): (&str, Option<&str>), hosts: &[WantedHost], from: IpAddr) -> Result<(), Refusal> {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let objection = self.rules.objection(&Asked { node, from, names: &names, serial });
        objection.map_or(Ok(()), |cause| Err(Refusal::NotYours { cause }))
    }

    fn note(&self, certificates: &[String]) -> Result<(), Refusal> {
        self.rules.issued(certificates).map_err(|cause| Refusal::Unavailable { cause })
    }

    fn giving(&self, certificates: Vec<String>) -> JoinAnswer {
        JoinAnswer::Issued { ca: self.authority.certificate().into(), certificates, revoked: self.rules.revoked() }
    }

    /// A certificate for each of `hosts` if `node` may have them all.
    fn certify(&self, node: &str, hosts: &[WantedHost]) -> Result<Vec<String>, Refusal> {
        let asked = hosts.len();
        if !(1..=MAX_JOIN_HOSTS).contains(&asked) {
            return Err(Refusal::Request { cause: format!("{asked} hosts, expected 1 to {MAX_JOIN_HOSTS}") });
        }
        let role = |host: &WantedHost| {
            let role = self.rules.role(node, &host.name);
            role.ok_or_else(|| Refusal::HostNotAllowed { host: host.name.clone() })
        };
        let roles = hosts.iter().map(role).collect::<Result<Vec<_>, _>>()?;
        let validity = Validity::starting(self.rules.now(), self.lifetime);
        let certify = |(host, role): (&WantedHost, MemberRole)| {
            self.authority.certify((role, &host.name), &host.public_key, validity)
        };
        let certificates = hosts.iter().zip(roles).map(certify).collect::<Result<_, CertificateError>>();
        certificates.map_err(|error| Refusal::Request { cause: error.to_string() })
    }
}
