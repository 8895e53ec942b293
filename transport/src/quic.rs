//! QUIC between processes: TLS 1.3, both sides authenticated against the cluster's CA. Carries frames; reads none.
//!
//! One socket listens and connects, so that a peer's address is the one it listens on. A channel is one bidirectional
//! stream. The protocol version is the TLS application protocol (`asterism/1`), so that a peer of another version is
//! refused before a byte of it is read.

pub(crate) mod admission;
pub(crate) mod cause;
mod channel;
mod lanes;
mod link;
mod loopback;
mod patient;
mod socket;
mod stripes;
pub(crate) mod tls;
pub(crate) mod trust;
mod tuning;
pub(crate) mod vouch;

pub use lanes::MOST_LANES;
pub use tuning::SOCKET_QUEUE;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use quinn::{ClientConfig, Connecting, Connection, Endpoint, Incoming, TransportConfig, VarInt};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use self::{
    admission::{HalfOpen, Limits, Received, Reception},
    lanes::Lanes,
    link::{Peer, QuicLink},
    socket::Socket,
    trust::{Known, Revoked, Trust},
};
use crate::{
    Link, Observer, PROTOCOL_VERSION, Transport, TransportError,
    buffers::Buffers,
    certificates::{CLUSTER_DNS_NAME, Credentials},
};

/// Links that have shaken hands but wait for `accept`.
const LINKS_IN_FLIGHT: usize = 256;
/// Handshakes under way at once. A source has as many as a machine has hosts.
const HANDSHAKES: Limits = Limits { by_source: 64, in_all: 256 };
const TRANSPORT_CLOSED: &str = "the transport was closed";

/// Whom a host trusts.
#[derive(Clone, Debug)]
pub enum Security {
    /// Peers with a certificate of the same CA.
    Mutual(Credentials),
    /// Everybody: encrypted, but with whom is unknown. For trusted networks and experiments.
    Insecure,
}

/// How a host listens, whom it trusts, and how patient it is.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whom to trust.
    pub security: Security,
    /// A silent link is probed this often.
    pub keep_alive: Duration,
    /// A peer silent for this long is lost. The smaller of both sides' values counts.
    pub idle_timeout: Duration,
    /// Longest wait for `connect`.
    pub connect_timeout: Duration,
    /// Bytes a peer may send ahead of the reader, per channel and per link.
    pub receive_window: u32,
    /// Largest datagram, up to which paths between machines are probed. Within a machine datagrams are as large as IP packets.
    pub max_mtu: u16,
    /// Further sockets, each with a thread of its own, over which large payloads are spread where the peer has some too.
    pub lanes: usize,
}

impl QuicConfig {
    /// The defaults, listening at `listen`.
    pub fn new(listen: SocketAddr, security: Security) -> Self {
        Self {
            listen,
            security,
            keep_alive: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            receive_window: 64 << 20,
            max_mtu: 8952,
            lanes: 0,
        }
    }
}

/// A listening QUIC socket. Dropping it closes it.
pub struct QuicTransport {
    endpoint: Endpoint,
    address: SocketAddr,
    settings: Arc<Settings>,
    accepted: AsyncMutex<mpsc::Receiver<Arc<dyn Link>>>,
}

/// What every handshake of a transport needs.
struct Settings {
    paths: Paths,
    trust: RwLock<Arc<Trust>>,
    connect_timeout: Duration,
    idle_timeout: Duration,
    buffers: Arc<Buffers>,
    lanes: Lanes,
    observer: Arc<dyn Observer>,
    vouched: vouch::Desk,
    reception: Arc<Reception>,
    revoked: Revoked,
}

/// QUIC's numbers by kind of path.
struct Paths {
    /// Of whoever connects, and of whoever is connected to.
    loopback: [Arc<TransportConfig>; 2],
    network: [Arc<TransportConfig>; 2],
}

impl QuicTransport {
    /// Listens. Must be called within a tokio runtime, which then drives the socket.
    pub fn bind(config: QuicConfig, observer: Arc<dyn Observer>) -> Result<Self, TransportError> {
        let failed = |error: std::io::Error| TransportError::Bind { address: config.listen, cause: error.to_string() };
        let socket = UdpSocket::bind(config.listen).map_err(failed)?;
        let queue = tuning::deepen_queues(&socket);
        let paths = tuning::paths(&config, queue);
        let trust = Arc::new(Trust::new(&config.security, &paths)?);
        let address = socket.local_addr().map_err(failed)?;
        let server = trust.network.server.as_ref().clone();
        let lanes = Lanes::new(config.lanes, address, &server).map_err(failed)?;
        let socket = Arc::new(Socket::new(socket).map_err(failed)?);
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new_with_abstract_socket(tuning::endpoint(), Some(server), socket, runtime);
        let endpoint = endpoint.map_err(failed)?;
        let QuicConfig { connect_timeout, idle_timeout, .. } = config;
        let settings = Arc::new(Settings {
            paths,
            trust: RwLock::new(trust),
            connect_timeout,
            idle_timeout,
            buffers: Arc::default(),
            lanes,
            observer,
            vouched: vouch::Desk::default(),
            reception: Reception::new(HANDSHAKES),
            revoked: Revoked::default(),
        });
        lanes::accept(&settings);
        let (sender, accepted) = mpsc::channel(LINKS_IN_FLIGHT);
        tokio::spawn(listen(endpoint.clone(), settings.clone(), sender));
        Ok(Self { endpoint, address, settings, accepted: AsyncMutex::new(accepted) })
    }

    /// From now on handshakes show and trust what `security` says; links that are up live on under the old certificates.
    /// Changes nothing if `security` is not usable. To change the cluster's CA, first give every host both CA certificates
    /// in [`Credentials::ca`], then certificates of the new CA, then only its certificate.
    pub fn rotate(&self, security: &Security) -> Result<(), TransportError> {
        let trust = Arc::new(Trust::new(security, &self.settings.paths)?);
        self.endpoint.set_server_config(Some(trust.network.server.as_ref().clone()));
        self.settings.lanes.rotate(&trust.network.server);
        *self.settings.trust.write().unwrap_or_else(PoisonError::into_inner) = trust;
        Ok(())
    }

    /// From now on nobody with a certificate of these serial numbers is let in or reached, and links to such peers are closed.
    /// They replace those of the last call.
    pub fn revoke(&self, serials: BTreeSet<String>) {
        self.settings.revoked.replace(serials);
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<QuicLink>, TransportError> {
        self.in_time(address, async {
            let trust = self.settings.trust();
            let (connection, peer) = self.shake_hands(address, &trust, &trust.sides(address).client).await?;
            let link = QuicLink::new(connection, peer, &self.settings);
            if let Some(announced) = link.await_welcome().await? {
                lanes::connect(&self.settings, &link.peer, &announced);
            }
            Ok(Arc::new(link))
        })
        .await
    }

    /// What comes of `connecting` within the time that a connection may take.
    pub(crate) async fn in_time<T>(
        &self,
        address: SocketAddr,
        connecting: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, TransportError> {
        let timeout = self.settings.connect_timeout;
        match tokio::time::timeout(timeout, connecting).await {
            Ok(result) => result,
            Err(_) => Err(TransportError::Unreachable { address, cause: format!("no answer within {timeout:?}") }),
        }
    }

    /// A connection, and who answers there.
    async fn shake_hands(
        &self,
        address: SocketAddr,
        trust: &Trust,
        client: &ClientConfig,
    ) -> Result<(Connection, Option<Known>), TransportError> {
        let client = client.clone();
        let connecting =
            self.endpoint.connect_with(client, address, CLUSTER_DNS_NAME).map_err(|error| match error {
                quinn::ConnectError::EndpointStopping => TransportError::TransportClosed,
                other => TransportError::Unreachable { address, cause: other.to_string() },
            })?;
        let connection = connecting.await.map_err(|error| {
            if let quinn::ConnectionError::TransportError(_) = error {
                self.settings.observer.rejected(cause::rejection(&error));
            }
            cause::of_handshake(error, address)
        })?;
        let peer = self.settings.identify(&connection, trust).map_err(|cause| {
            self.settings.observer.rejected(cause::IDENTITY);
            TransportError::Certificate { peer: address, cause }
        })?;
        Ok((connection, peer))
    }
}

impl Transport for QuicTransport {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        Box::pin(async move { Ok(self.connect_to(address).await? as Arc<dyn Link>) })
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        Box::pin(async { self.accepted.lock().await.recv().await })
    }

    fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), TRANSPORT_CLOSED.as_bytes());
        self.settings.lanes.close(TRANSPORT_CLOSED.as_bytes());
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.endpoint.wait_idle())
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl Settings {
    fn trust(&self) -> Arc<Trust> {
        // Nothing panics while holding this lock.
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The handshake of a peer that came, if it has a place. What waits for its end holds no packet: a task is as large as its
    /// largest moment.
    fn receive(&self, incoming: Incoming) -> Option<(Connecting, HalfOpen)> {
        let peer = incoming.remote_address();
        let begun = match self.reception.receive(incoming) {
            Received::Shake(incoming, place) => {
                let server = self.trust().sides(peer).server.clone();
                (*incoming).accept_with(server).map(|connecting| (connecting, place)).map_err(Rejected::from)
            }
            Received::Later => return None,
            Received::Dropped(reason) => Err(Rejected { reason, cause: "too many handshakes are under way".into() }),
        };
        begun.inspect_err(|rejected| self.refused(peer, rejected)).ok()
    }

    /// A connection whose peer has shown a certificate of this cluster, in the time that this may take, and who it is.
    async fn shaken(
        &self,
        (connecting, place): (Connecting, HalfOpen),
    ) -> Result<(Connection, Option<Known>), Rejected> {
        let limit = self.connect_timeout;
        let connection = tokio::time::timeout(limit, connecting).await.map_err(|_| Rejected {
            reason: cause::HANDSHAKE,
            cause: format!("it showed no certificate within {limit:?}"),
        })??;
        let peer = self.identify(&connection, &self.trust());
        let peer = peer.map_err(|cause| Rejected { reason: cause::IDENTITY, cause })?;
        place.prove();
        tuning::open_up(&connection);
        Ok((connection, peer))
    }

    /// Who a peer is whose certificate TLS has verified, if it is one of this cluster and not revoked; else the connection is
    /// closed, and the error says why.
    fn identify(&self, connection: &Connection, trust: &Trust) -> Result<Option<Known>, String> {
        let shown = trust.shown(connection).and_then(|shown| match &shown {
            Some((_, info)) if self.revoked.holds(&info.serial) => {
                Err(format!("the certificate {} of {:?} is revoked", info.serial, info.name))
            }
            _ => Ok(shown),
        });
        let shown = shown.inspect_err(|cause| connection.close(cause::WRONG_IDENTITY, cause.as_bytes()))?;
        Ok(shown.map(|(member, info)| {
            self.observer.shown(&member, info.validity.not_after.into());
            Known { member, serial: info.serial }
        }))
    }

    fn refused(&self, peer: SocketAddr, Rejected { reason, cause }: &Rejected) {
        self.observer.rejected(reason);
        self.observer.turned_away(peer, cause);
        self.reception.tell(peer, reason, cause);
    }
}

/// Shakes hands with several peers at once, so that a slow one delays no other.
async fn listen(endpoint: Endpoint, settings: Arc<Settings>, accepted: mpsc::Sender<Arc<dyn Link>>) {
    while let Some(incoming) = endpoint.accept().await {
        let peer = incoming.remote_address();
        let Some(coming) = settings.receive(incoming) else { continue };
        let (settings, accepted) = (settings.clone(), accepted.clone());
        tokio::spawn(async move {
            match welcome(coming, &settings).await {
                // A receiver that is gone means a closed transport; the link closes with it.
                Ok(Some(link)) => drop(accepted.send(link).await),
                Ok(None) => {}
                Err(rejected) => settings.refused(peer, &rejected),
            }
        });
    }
}

/// A peer that does not get a link.
struct Rejected {
    reason: &'static str,
    cause: String,
}

impl From<quinn::ConnectionError> for Rejected {
    fn from(error: quinn::ConnectionError) -> Self {
        Self { reason: cause::rejection(&error), cause: error.to_string() }
    }
}

/// A link; none where the connection is to vouch for one of another transport.
async fn welcome(coming: (Connecting, HalfOpen), settings: &Arc<Settings>) -> Result<Option<Arc<dyn Link>>, Rejected> {
    let (connection, peer) = settings.shaken(coming).await?;
    if vouch::is_asked_of(&connection) {
        settings.vouched.hand_over(connection, peer).await;
        return Ok(None);
    }
    // In TLS 1.3 a client is done before its certificate is looked at; this tells it that it was let in.
    let mut greeting = connection.open_uni().await?;
    let link = QuicLink::new(connection, peer, settings);
    let said = [&PROTOCOL_VERSION.to_le_bytes()[..], &settings.lanes.announce(&link.peer)].concat();
    // A lost connection shows in the link's first use.
    let _ = greeting.write_all(&said).await;
    Ok(Some(Arc::new(link)))
}
