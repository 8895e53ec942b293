//! Links within one process that fail as told, for tests: delay, loss, repetition, reordering, corruption, cuts and
//! partitions, all drawn from a seed. Nothing is encrypted or authenticated.
//!
//! It keeps the promise of [`crate::Channel`], as a network transport does: frames arrive whole, once and in order, or
//! their link or channel ends. So a lost or overtaken *packet* shows as delay, and a repeated one not at all. What the
//! frame decoder refuses ends its channel with the decoder's error, as on QUIC. A partition is silent: it holds frames back
//! and lets no link come about; if it outlasts the idle timeout, links across it end with `TimedOut` on both sides, each on
//! its own. A side that closes a link across a partition is heard once it heals.
//!
//! Time is tokio's, so a paused clock drives it. Faults follow from the seed, the two addresses, and the places of link,
//! channel and frame among their like, so they do not depend on how tasks are scheduled.

mod channel;
mod draw;
mod faults;
mod link;
mod pair;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{
    Link, NoObserver, Observer, Transport, TransportError,
    local::{LocalLink, LocalNetwork, LocalTransport, TRANSPORT_CLOSED},
    signal::lock,
};
pub use draw::Draw;

pub use faults::{Fault, FaultKind, Faults, SimConfig};
use link::SimLink;
use pair::{Pair, Shared, SimConnection};

/// An address space shared by the transports of one process, with faults between them. Clones are the same network.
#[derive(Clone)]
pub struct SimNetwork {
    shared: Arc<Shared>,
}

impl SimNetwork {
    /// A network without transports.
    pub fn new(config: SimConfig) -> Self {
        let faults = Mutex::new(config.faults.clone());
        let shared = Shared {
            config,
            local: LocalNetwork::new(),
            faults,
            pairs: Mutex::default(),
            half_taken: Mutex::default(),
            log: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A transport at `address`, which need not exist outside this network; port 0 takes a free one, the same in every run
    /// that binds in the same order.
    pub fn bind(&self, address: SocketAddr, observer: Arc<dyn Observer>) -> Result<SimTransport, TransportError> {
        let local = self.shared.local.bind(address, Arc::new(NoObserver))?;
        Ok(SimTransport { network: self.shared.clone(), local, observer })
    }

    /// Where transports listen, in order: the others of one that is to be partitioned from all.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.local.addresses()
    }

    /// From now on this goes wrong between peers that have no faults of their own.
    pub fn set_faults(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// From now on this goes wrong between these two, in both directions; `None`: what goes wrong everywhere.
    pub fn set_faults_between(&self, left: SocketAddr, right: SocketAddr, faults: Option<Faults>) {
        *lock(&self.shared.pair(left, right).faults) = faults;
    }

    /// Closes every link between these two, on both sides at once. They may connect again.
    pub fn cut(&self, left: SocketAddr, right: SocketAddr) {
        self.shared.pair(left, right).cut();
    }

    /// `from` gives every link to `to` up, which hears of it only `later`: until then it hears what was under way. Must be
    /// called within a tokio runtime.
    pub fn half_close(&self, from: SocketAddr, to: SocketAddr, later: Duration) {
        for connection in self.shared.pair(from, to).connections() {
            connection.half_close(connection.side_of(from), later);
        }
    }

    /// Silence between each of `left` and each of `right` until it is healed. Must be called within a tokio runtime, which
    /// then drives the idle timeout.
    pub fn partition(&self, left: &[SocketAddr], right: &[SocketAddr]) {
        self.each(left, right, |pair| pair.block(self.shared.config.idle_timeout));
    }

    /// Ends the silence between each of `left` and each of `right`: what was held back arrives.
    pub fn heal(&self, left: &[SocketAddr], right: &[SocketAddr]) {
        self.each(left, right, |pair| pair.heal());
    }

    /// Ends every silence.
    pub fn heal_all(&self) {
        let pairs: Vec<_> = lock(&self.shared.pairs).values().cloned().collect();
        pairs.iter().for_each(|pair| pair.heal());
    }

    /// Every fault drawn so far, by sender, receiver, link, channel and frame. Plain delays are not among them.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = lock(&self.shared.log).clone();
        faults.sort();
        faults
    }

    fn each(&self, left: &[SocketAddr], right: &[SocketAddr], act: impl Fn(&Arc<Pair>)) {
        for left in left {
            right.iter().filter(|right| *right != left).for_each(|right| act(&self.shared.pair(*left, *right)));
        }
    }
}

/// One address of a [`SimNetwork`]. Dropping it closes it.
pub struct SimTransport {
    network: Arc<Shared>,
    local: LocalTransport,
    observer: Arc<dyn Observer>,
}

impl SimTransport {
    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<dyn Link>, TransportError> {
        let timeout = self.network.config.connect_timeout;
        tokio::select! {
            biased;
            () = self.local.closed() => Err(TransportError::TransportClosed),
            link = self.shake_hands(address) => link,
            () = tokio::time::sleep(timeout) => {
                Err(TransportError::Unreachable { address, cause: format!("no answer within {timeout:?}") })
            }
        }
    }

    async fn shake_hands(&self, address: SocketAddr) -> Result<Arc<dyn Link>, TransportError> {
        let pair = self.network.pair(self.local_address(), address);
        pair.wait_open().await;
        let round_trip = 2 * *self.network.faults_of(&pair).delay.start();
        if !round_trip.is_zero() {
            tokio::time::sleep(round_trip).await;
            pair.wait_open().await;
        }
        let inner = self.local.connect_to(address).await?;
        let connection = self.connection(&inner, [self.local_address(), address]);
        if inner.closed().now_or_never().is_some() {
            // The peer's transport closed before it could know of this link.
            connection.close(1, TRANSPORT_CLOSED);
        }
        Ok(Arc::new(SimLink::new(connection, 0, inner, self.observer.clone())))
    }

    async fn accept_next(&self) -> Option<Arc<dyn Link>> {
        let inner = self.local.accept_next().await?;
        let connection = self.connection(&inner, [inner.peer_address(), self.local_address()]);
        Some(Arc::new(SimLink::new(connection, 1, inner, self.observer.clone())))
    }

    /// The connection over `inner`, made by the side that asks first. `ends`: who connected, and to whom.
    fn connection(&self, inner: &LocalLink, ends: [SocketAddr; 2]) -> Arc<SimConnection> {
        let mut half_taken = lock(&self.network.half_taken);
        if let Some(connection) = half_taken.remove(&inner.number()) {
            return connection;
        }
        let connection = SimConnection::new(&self.network, ends);
        half_taken.insert(inner.number(), connection.clone());
        connection
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn local_address(&self) -> SocketAddr {
        self.local.local_address()
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        Box::pin(self.connect_to(address))
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        Box::pin(self.accept_next())
    }

    fn close(&self) {
        // In this order, so that a link made meanwhile is seen here or sees the link beneath it closed.
        self.local.close();
        let here = self.local_address();
        let mut pairs: Vec<_> = lock(&self.network.pairs).iter().map(|(ends, pair)| (*ends, pair.clone())).collect();
        pairs.retain(|(ends, _)| ends.0 == here || ends.1 == here);
        for connection in pairs.iter().flat_map(|(_, pair)| pair.connections()) {
            connection.close(connection.side_of(here), TRANSPORT_CLOSED);
        }
        lock(&self.network.half_taken).retain(|_, connection| !connection.is_over());
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        self.close();
    }
}
