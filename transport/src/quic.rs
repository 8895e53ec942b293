//! QUIC between processes: TLS 1.3, both sides authenticated against the cluster's CA. Carries frames; reads none.
//!
//! One socket listens and connects, so that a peer's address is the one it listens on. A channel is one bidirectional
//! stream. The protocol version is the TLS application protocol (`asterism/N`): the newest that both speak, and a peer that
//! speaks none of ours is refused before a byte of it is read.

pub(crate) mod admission;
pub(crate) mod cause;
pub(crate) mod config;
mod joining;
mod lanes;
mod link;
mod peer;
mod settings;
pub(crate) mod tls;
pub(crate) mod trust;
mod tuning;
pub(crate) mod vouch;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
};

use futures_util::future::BoxFuture;
use quinn::{ClientConfig, Connecting, Connection, Endpoint, VarInt};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use crate::{Link, Observer, Transport, TransportError, certificates::CLUSTER_DNS_NAME};
use admission::{AdmissionGuard, HalfOpen, Limits};
use cause::TRANSPORT_CLOSED;
pub use config::{QuicConfig, Security};
use lanes::Lanes;
pub use lanes::MOST_LANES;
use link::QuicLink;
use settings::{HandshakeSettings, Rejected};
use trust::{KnownPeer, Revoked, Trust};
pub use tuning::SOCKET_QUEUE;
use tuning::socket::Socket;

/// Links that have shaken hands but wait for `accept`.
const QUIC_LINKS_IN_FLIGHT: usize = 256;
/// Handshakes under way at once. A source has as many as a machine has hosts.
const HANDSHAKES: Limits = Limits { by_source: 64, in_all: 256 };

/// A listening QUIC socket. Dropping it closes it.
pub struct QuicTransport {
    endpoint: Endpoint,
    address: SocketAddr,
    settings: Arc<HandshakeSettings>,
    accepted: AsyncMutex<mpsc::Receiver<Arc<dyn Link>>>,
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
        let settings = Arc::new(HandshakeSettings {
            paths,
            trust: RwLock::new(trust),
            connect_timeout,
            idle_timeout,
            buffers: Arc::default(),
            lanes,
            observer,
            vouched: vouch::VouchService::default(),
            reception: AdmissionGuard::new(HANDSHAKES),
            revoked: Revoked::default(),
        });
        joining::accept(&settings);
        let (sender, accepted) = mpsc::channel(QUIC_LINKS_IN_FLIGHT);
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
                joining::connect(&self.settings, &link.peer, &announced);
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
    ) -> Result<(Connection, Option<KnownPeer>), TransportError> {
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

/// Shakes hands with several peers at once, so that a slow one delays no other.
async fn listen(endpoint: Endpoint, settings: Arc<HandshakeSettings>, accepted: mpsc::Sender<Arc<dyn Link>>) {
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

/// A link; none where the connection is to vouch for one of another transport.
async fn welcome(
    coming: (Connecting, HalfOpen),
    settings: &Arc<HandshakeSettings>,
) -> Result<Option<Arc<dyn Link>>, Rejected> {
    let (connection, peer) = settings.shaken(coming).await?;
    if vouch::is_asked_of(&connection) {
        settings.vouched.hand_over(connection, peer).await;
        return Ok(None);
    }
    // In TLS 1.3 a client is done before its certificate is looked at; this tells it that it was let in.
    let mut greeting = connection.open_uni().await?;
    let link = QuicLink::new(connection, peer, settings);
    let stated = [&link.version().to_le_bytes()[..], &settings.lanes.announce(&link.peer)].concat();
    // A lost connection shows in the link's first use.
    let _ = greeting.write_all(&stated).await;
    Ok(Some(Arc::new(link)))
}
