//! Links within one process: between the hosts that share one, and for tests. Nothing is encrypted or serialized, and who is at the
//! other end is what the process says.
//!
//! It keeps the rules of a network transport: bounded queues, no channel before its first frame, limits on frame sizes,
//! aligned payloads, and a closed link loses what was under way.

mod channel;
pub(crate) mod side;

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use crate::{
    Channel, Link, Observer, PROTOCOL_VERSION, Transport, TransportError,
    certificates::Member,
    signal::{Signal, lock},
};
use channel::{Announcement, Ends};
use side::{Connection, Side};

/// Channels opened but not yet accepted before `open` waits.
const CHANNELS_IN_FLIGHT: usize = 256;
/// Links connected but not yet accepted before `connect` waits.
const LOCAL_LINKS_IN_FLIGHT: usize = 256;
const FIRST_PORT: u16 = 49152;
pub(crate) const TRANSPORT_CLOSED: &str = "the transport was closed";

/// An address space shared by the transports of one process. Clones are the same network; separate networks never meet.
#[derive(Clone, Default)]
pub struct LocalNetwork {
    endpoints: Arc<Mutex<HashMap<SocketAddr, Arc<LocalEndpoint>>>>,
    links: Arc<AtomicU64>,
    /// Drawn at random: no other network has it, in this process or another.
    name: Name,
}

#[derive(Clone, Copy)]
struct Name(u64);

impl Default for Name {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl LocalNetwork {
    /// An empty network.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where transports listen, in order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses: Vec<_> = lock(&self.endpoints).keys().copied().collect();
        addresses.sort();
        addresses
    }

    /// A transport at `address`, which need not exist outside this network; port 0 takes a free one.
    pub fn bind(&self, mut address: SocketAddr, observer: Arc<dyn Observer>) -> Result<LocalTransport, TransportError> {
        let mut endpoints = lock(&self.endpoints);
        let in_use = |cause: &str| TransportError::Bind { address, cause: cause.into() };
        if address.port() == 0 {
            let ports = (FIRST_PORT..=u16::MAX).chain(1..FIRST_PORT);
            let mut free = ports.filter(|port| !endpoints.contains_key(&SocketAddr::new(address.ip(), *port)));
            let port = free.next().ok_or_else(|| in_use("every port is in use"))?;
            address.set_port(port);
        } else if endpoints.contains_key(&address) {
            return Err(in_use("the address is in use"));
        }
        let (sender, receiver) = mpsc::channel(LOCAL_LINKS_IN_FLIGHT);
        let (sides, closed, member) = Default::default();
        let endpoint = Arc::new(LocalEndpoint { address, observer, incoming: sender, sides, closed, member });
        endpoints.insert(address, endpoint.clone());
        Ok(LocalTransport { network: self.clone(), endpoint, incoming: AsyncMutex::new(receiver) })
    }
}

/// One address of a [`LocalNetwork`]. Dropping it closes it.
pub struct LocalTransport {
    network: LocalNetwork,
    endpoint: Arc<LocalEndpoint>,
    incoming: AsyncMutex<mpsc::Receiver<Arc<LocalLink>>>,
}

impl LocalTransport {
    /// Has its peers know it as this member; before the first link.
    #[must_use]
    pub fn known_as(self, member: Member) -> Self {
        // The first name stands.
        let _ = self.endpoint.member.set(member);
        self
    }

    pub(crate) async fn connect_to(&self, address: SocketAddr) -> Result<Arc<LocalLink>, TransportError> {
        if self.endpoint.closed.get() {
            return Err(TransportError::TransportClosed);
        }
        let unreachable = || TransportError::Unreachable { address, cause: "nothing listens there".into() };
        let peer = lock(&self.network.endpoints).get(&address).cloned().ok_or_else(unreachable)?;
        let permit = tokio::select! {
            biased;
            () = peer.closed() => return Err(unreachable()),
            () = self.endpoint.closed() => return Err(TransportError::TransportClosed),
            permit = peer.incoming.reserve() => permit.map_err(|_| unreachable())?,
        };
        let number = self.network.links.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection { number, closed: Signal::default() });
        let (to_peer, from_here) = mpsc::channel(CHANNELS_IN_FLIGHT);
        let (to_here, from_peer) = mpsc::channel(CHANNELS_IN_FLIGHT);
        let near = LocalLink::new(self.endpoint.join(&connection, &peer), to_peer, from_peer);
        let far = LocalLink::new(peer.join(&connection, &self.endpoint), to_here, from_here);
        permit.send(Arc::new(far));
        Ok(Arc::new(near))
    }

    pub(crate) async fn accept_next(&self) -> Option<Arc<LocalLink>> {
        let mut incoming = self.incoming.lock().await;
        tokio::select! {
            biased;
            () = self.endpoint.closed() => None,
            link = incoming.recv() => link,
        }
    }

    /// Completes once the transport is closed.
    #[cfg(feature = "sim")]
    pub(crate) async fn closed(&self) {
        self.endpoint.closed().await;
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        "local"
    }

    fn local_address(&self) -> SocketAddr {
        self.endpoint.address
    }

    fn offered(&self) -> String {
        format!("{:016x}/{}", self.network.name.0, self.endpoint.address)
    }

    fn resolve(&self, offered: &str) -> Result<Option<SocketAddr>, String> {
        let own = format!("{:016x}", self.network.name.0);
        let of_network = offered.split_once('/').filter(|(name, _)| *name == own);
        let address = of_network.map(|(_, address)| address.parse().map_err(|_| format!("'{offered}' is no address")));
        address.transpose()
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        Box::pin(async move { Ok(self.connect_to(address).await? as Arc<dyn Link>) })
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        Box::pin(async { Some(self.accept_next().await? as Arc<dyn Link>) })
    }

    fn close(&self) {
        lock(&self.network.endpoints).retain(|_, endpoint| !Arc::ptr_eq(endpoint, &self.endpoint));
        self.endpoint.closed.set(true);
        for side in lock(&self.endpoint.sides).drain(..).filter_map(|side| side.upgrade()) {
            side.connection.close(TRANSPORT_CLOSED);
        }
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.close();
    }
}

/// What others see of a transport.
struct LocalEndpoint {
    address: SocketAddr,
    observer: Arc<dyn Observer>,
    incoming: mpsc::Sender<Arc<LocalLink>>,
    sides: Mutex<Vec<Weak<Side>>>,
    closed: Signal<bool>,
    member: OnceLock<Member>,
}

impl LocalEndpoint {
    async fn closed(&self) {
        self.closed.wait_for(|closed| *closed).await;
    }

    /// This endpoint's side of a new connection.
    fn join(&self, connection: &Arc<Connection>, peer: &Self) -> Arc<Side> {
        let (observer, member) = (self.observer.clone(), peer.member.get().cloned());
        let side = Arc::new(Side { peer: peer.address, member, connection: connection.clone(), observer });
        let mut sides = lock(&self.sides);
        sides.retain(|side| side.strong_count() > 0);
        sides.push(Arc::downgrade(&side));
        if self.closed.get() {
            connection.close(TRANSPORT_CLOSED);
        }
        side
    }
}

pub(crate) struct LocalLink {
    side: Arc<Side>,
    channels: AtomicU64,
    opened: mpsc::Sender<Ends>,
    incoming: AsyncMutex<mpsc::Receiver<Ends>>,
}

impl LocalLink {
    fn new(side: Arc<Side>, opened: mpsc::Sender<Ends>, incoming: mpsc::Receiver<Ends>) -> Self {
        Self { side, channels: AtomicU64::new(0), opened, incoming: AsyncMutex::new(incoming) }
    }

    /// The same at both ends of a link, and no other link of the network has it.
    #[cfg(feature = "sim")]
    pub(crate) fn number(&self) -> u64 {
        self.side.connection.number
    }

    /// A new channel and its place among those opened here.
    pub(crate) async fn open_numbered(&self) -> Result<(u64, Channel), TransportError> {
        let permit = tokio::select! {
            biased;
            error = self.side.closed() => return Err(error),
            permit = self.opened.clone().reserve_owned() => permit,
        };
        let Ok(permit) = permit else { return Err(self.side.closed().await) };
        let number = self.channels.fetch_add(1, Ordering::Relaxed);
        let (near, far) = Ends::pair(number);
        Ok((number, near.into_channel(&self.side, Some(Announcement { permit, ends: far }))))
    }

    /// The next channel of the peer and its place among those opened there.
    pub(crate) async fn accept_numbered(&self) -> Result<(u64, Channel), TransportError> {
        let mut incoming = self.incoming.lock().await;
        let ends = tokio::select! {
            biased;
            error = self.side.closed() => return Err(error),
            ends = incoming.recv() => ends,
        };
        match ends {
            Some(ends) => Ok((ends.number, ends.into_channel(&self.side, None))),
            None => Err(self.side.closed().await),
        }
    }
}

impl Link for LocalLink {
    fn peer_address(&self) -> SocketAddr {
        self.side.peer
    }

    fn peer(&self) -> Option<&Member> {
        self.side.member.as_ref()
    }

    fn version(&self) -> u16 {
        PROTOCOL_VERSION
    }

    fn rtt(&self) -> Option<Duration> {
        None
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async { Ok(self.open_numbered().await?.1) })
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async { Ok(self.accept_numbered().await?.1) })
    }

    fn close(&self, reason: &str) {
        self.side.connection.close(reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        Box::pin(self.side.closed())
    }
}
