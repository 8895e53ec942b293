//! Lanes: further sockets of a transport, each driven by a thread of its own, over which large payloads are spread. Made here,
//! told to peers, and joined to the link that they are for.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, Weak},
    thread,
    time::Duration,
};

use quinn::{Endpoint, ReadExactError, RecvStream, ServerConfig};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

use super::{
    peer::Peer,
    tuning::{self, socket::Socket},
};
use crate::{quic::cause::LANE_CLOSED, signal::lock};

/// Lanes at most, the link's own connection not counted.
pub const MOST_LANES: usize = 15;
pub(super) const TOKEN_BYTES: usize = 16;

/// Which link a lane is for: drawn at random, and told to the link's peer alone.
pub(super) type LaneToken = [u8; TOKEN_BYTES];

/// The lanes of a transport.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// Links whose lanes have not all come.
    pub(super) expected: Mutex<HashMap<LaneToken, Weak<Peer>>>,
}

pub(super) struct Lane {
    pub(super) endpoint: Endpoint,
    pub(super) port: u16,
    /// The lane's thread, which ends once `alive` is dropped.
    pub(super) runtime: Handle,
    pub(super) _alive: watch::Sender<()>,
}

/// What a peer told of its lanes.
pub(super) struct AnnouncedLanes {
    pub(super) ports: Vec<u16>,
    pub(super) token: LaneToken,
}

impl Lane {
    fn new(mut address: SocketAddr, server: ServerConfig) -> io::Result<Self> {
        address.set_port(0);
        let socket = UdpSocket::bind(address)?;
        tuning::deepen_queues(&socket);
        let port = socket.local_addr()?.port();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = {
            let _entered = runtime.enter();
            let (socket, driver) = (Arc::new(Socket::new(socket)?), Arc::new(quinn::TokioRuntime));
            Endpoint::new_with_abstract_socket(tuning::endpoint(), Some(server), socket, driver)?
        };
        let handle = runtime.handle().clone();
        let (alive, mut ended) = watch::channel(());
        let last = endpoint.clone();
        thread::Builder::new().name("quic lane".into()).spawn(move || {
            runtime.block_on(async {
                // It fails once the sender is gone, which is what is waited for.
                let _ = ended.changed().await;
                let _ = tokio::time::timeout(FAREWELL, last.wait_idle()).await;
            });
        })?;
        Ok(Self { endpoint, port, runtime: handle, _alive: alive })
    }
}

impl Lanes {
    /// So many sockets beside `address`.
    pub fn new(count: usize, address: SocketAddr, server: &ServerConfig) -> io::Result<Self> {
        let lanes = (0..count.min(MOST_LANES)).map(|_| Lane::new(address, server.clone())).collect::<Result<_, _>>()?;
        Ok(Self { lanes, expected: Mutex::default() })
    }

    /// From now on lanes show and trust what `server` says.
    pub fn rotate(&self, server: &ServerConfig) {
        self.lanes.iter().for_each(|lane| lane.endpoint.set_server_config(Some(server.clone())));
    }

    pub fn close(&self, reason: &[u8]) {
        self.lanes.iter().for_each(|lane| lane.endpoint.close(LANE_CLOSED, reason));
    }

    /// What the peer of a new link is told: how many lanes there are, their ports, and the token of the link.
    pub fn announce(&self, peer: &Arc<Peer>) -> Vec<u8> {
        let mut stated = vec![self.lanes.len() as u8];
        let mut token = [0; TOKEN_BYTES];
        if self.lanes.is_empty() || SystemRandom::new().fill(&mut token).is_err() {
            return vec![0];
        }
        stated.extend(self.lanes.iter().flat_map(|lane| lane.port.to_le_bytes()));
        stated.extend(token);
        let mut expected = lock(&self.expected);
        expected.retain(|_, peer| peer.strong_count() > 0);
        expected.insert(token, Arc::downgrade(peer));
        stated
    }
}

impl AnnouncedLanes {
    /// The peer's words; `None` where it has no lanes.
    pub async fn read(greeting: &mut RecvStream) -> Result<Option<Self>, ReadExactError> {
        let mut count = [0];
        greeting.read_exact(&mut count).await?;
        let (mut ports, mut token) = (vec![0; 2 * usize::from(count[0])], LaneToken::default());
        if ports.is_empty() {
            return Ok(None);
        }
        greeting.read_exact(&mut ports).await?;
        greeting.read_exact(&mut token).await?;
        let ports = ports.chunks_exact(2).map(|port| u16::from_le_bytes([port[0], port[1]])).collect();
        Ok(Some(Self { ports, token }))
    }
}

/// How long a lane's thread waits for peers to hear that it was closed.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::certificates::CLUSTER_DNS_NAME;
    use crate::{
        Link, NoObserver, Observer, Transport,
        quic::{
            QuicTransport,
            config::{QuicConfig, Security},
        },
    };
    use quinn::{ConnectionError, VarInt};

    const LANES: usize = 3;

    /// Tells of lanes and of who was refused.
    struct LaneNotifier(watch::Sender<(usize, usize)>);

    impl Observer for LaneNotifier {
        fn lanes(&self, _: SocketAddr, lanes: usize) {
            self.0.send_modify(|reported| reported.0 = lanes);
        }

        fn rejected(&self, _: &'static str) {
            self.0.send_modify(|reported| reported.1 += 1);
        }
    }

    fn bind(lanes: usize, observer: Arc<dyn Observer>) -> QuicTransport {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = QuicConfig { lanes, ..QuicConfig::new(listen, Security::Insecure) };
        QuicTransport::bind(config, observer).expect("loopback has free ports")
    }

    #[tokio::test]
    async fn a_lost_lane_takes_its_link_with_it() {
        let reported = [(); 2].map(|()| Arc::new(LaneNotifier(watch::Sender::default())));
        let [near, far] = [0, 1].map(|end| bind(LANES, reported[end].clone()));
        let (link, accepted) = tokio::join!(near.connect_to(far.local_address()), far.accept());
        let (link, accepted) = (link.expect("it listens"), accepted.expect("it is open"));
        for reported in &reported {
            reported.0.subscribe().wait_for(|reported| reported.0 == LANES).await.expect("it lives");
        }
        link.peer.stripes.ready()[1].close(VarInt::from_u32(7), b"torn");
        let reason = link.closed().await.to_string();
        assert!(reason.contains("lane 2 of 3 was lost"), "{reason}");
        assert!(accepted.closed().await.to_string().contains("lane 2 of 3 was lost"));
    }

    #[tokio::test]
    async fn a_stranger_brings_no_lane() {
        let reported = Arc::new(LaneNotifier(watch::Sender::default()));
        let (near, far) = (bind(1, Arc::new(NoObserver)), bind(1, reported.clone()));
        let address = SocketAddr::new(far.local_address().ip(), far.settings.lanes.lanes[0].port);
        let client = near.settings.trust().sides(address).client.clone();
        let endpoint = &near.settings.lanes.lanes[0].endpoint;
        let lane =
            endpoint.connect_with(client, address, CLUSTER_DNS_NAME).expect("it is open").await.expect("it listens");
        let mut stated = lane.open_uni().await.expect("it is up");
        stated.write_all(&[0; TOKEN_BYTES + 1]).await.expect("it is up");
        assert!(matches!(lane.closed().await, ConnectionError::ApplicationClosed(_)));
        reported.0.subscribe().wait_for(|reported| reported.1 == 1).await.expect("it lives");
    }
}
