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

use quinn::{Connecting, Connection, ConnectionError, Endpoint, ReadExactError, RecvStream, ServerConfig, VarInt};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

use super::{Peer, Rejected, Settings, admission::HalfOpen, cause, socket::Socket, stripes, tuning};
use crate::{certificates::CLUSTER_DNS_NAME, local::lock};

/// Lanes at most, the link's own connection not counted.
pub const MOST_LANES: usize = 15;
const TOKEN_BYTES: usize = 16;
/// How long a peer may take to say which link a lane is for.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// How long a lane's thread waits for peers to hear that it was closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Closes a lane with its link.
pub(super) const CLOSED: VarInt = VarInt::from_u32(0);

/// Which link a lane is for: drawn at random, and told to the link's peer alone.
type Token = [u8; TOKEN_BYTES];

/// The lanes of a transport.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// Links whose lanes have not all come.
    expected: Mutex<HashMap<Token, Weak<Peer>>>,
}

struct Lane {
    endpoint: Endpoint,
    port: u16,
    /// The lane's thread, which ends once `alive` is dropped.
    runtime: Handle,
    _alive: watch::Sender<()>,
}

/// What a peer told of its lanes.
pub(super) struct Announced {
    ports: Vec<u16>,
    token: Token,
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
        self.lanes.iter().for_each(|lane| lane.endpoint.close(CLOSED, reason));
    }

    /// What the peer of a new link is told: how many lanes there are, their ports, and the token of the link.
    pub fn announce(&self, peer: &Arc<Peer>) -> Vec<u8> {
        let mut said = vec![self.lanes.len() as u8];
        let mut token = [0; TOKEN_BYTES];
        if self.lanes.is_empty() || SystemRandom::new().fill(&mut token).is_err() {
            return vec![0];
        }
        said.extend(self.lanes.iter().flat_map(|lane| lane.port.to_le_bytes()));
        said.extend(token);
        let mut expected = lock(&self.expected);
        expected.retain(|_, peer| peer.strong_count() > 0);
        expected.insert(token, Arc::downgrade(peer));
        said
    }
}

impl Announced {
    /// The peer's words; `None` where it has no lanes.
    pub async fn read(greeting: &mut RecvStream) -> Result<Option<Self>, ReadExactError> {
        let mut count = [0];
        greeting.read_exact(&mut count).await?;
        let (mut ports, mut token) = (vec![0; 2 * usize::from(count[0])], Token::default());
        if ports.is_empty() {
            return Ok(None);
        }
        greeting.read_exact(&mut ports).await?;
        greeting.read_exact(&mut token).await?;
        let ports = ports.chunks_exact(2).map(|port| u16::from_le_bytes([port[0], port[1]])).collect();
        Ok(Some(Self { ports, token }))
    }
}

/// Lets peers' lanes in, each on the thread of the lane that it reached.
pub(super) fn accept(settings: &Arc<Settings>) {
    for (index, lane) in settings.lanes.lanes.iter().enumerate() {
        let (endpoint, settings) = (lane.endpoint.clone(), Arc::downgrade(settings));
        lane.runtime.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let Some(settings) = settings.upgrade() else { return };
                let peer = incoming.remote_address();
                let Some(coming) = settings.receive(incoming) else { continue };
                tokio::spawn(async move {
                    if let Err(rejected) = admit(&settings, index, coming).await {
                        settings.refused(peer, &rejected);
                    }
                });
            }
        });
    }
}

/// A lane of a peer: it must be a member, and of the link whose token it knows.
async fn admit(settings: &Arc<Settings>, index: usize, coming: (Connecting, HalfOpen)) -> Result<(), Rejected> {
    let (lane, known) = settings.shaken(coming).await?;
    let member = known.map(|known| known.member);
    let refuse = |cause: String| {
        lane.close(cause::WRONG_IDENTITY, cause.as_bytes());
        Rejected { reason: cause::IDENTITY, cause }
    };
    let introduced = tokio::time::timeout(INTRODUCTION, introduction(&lane)).await;
    let Ok(Some((token, count))) = introduced else { return Err(refuse("a lane did not say what it is for".into())) };
    let peer = lock(&settings.lanes.expected).get(&token).and_then(Weak::upgrade);
    let Some(peer) = peer.filter(|peer| peer.member == member && count <= settings.lanes.lanes.len()) else {
        return Err(refuse("a lane named a link that is not there".into()));
    };
    if attach(settings, &peer, (index, count), lane.clone()).map_err(|cause| refuse(cause.into()))? {
        lock(&settings.lanes.expected).remove(&token);
    }
    Ok(())
}

/// What a lane says first: the token of its link, and how many lanes there will be.
async fn introduction(lane: &Connection) -> Option<(Token, usize)> {
    let mut said = [0; TOKEN_BYTES + 1];
    lane.accept_uni().await.ok()?.read_exact(&mut said).await.ok()?;
    let (token, count) = said.split_at(TOKEN_BYTES);
    Some((token.try_into().ok()?, usize::from(count[0])))
}

/// Connects as many lanes as both sides have, while the link is in use already. Without them it goes on alone.
pub(super) fn connect(settings: &Arc<Settings>, peer: &Arc<Peer>, announced: &Announced) {
    let count = settings.lanes.lanes.len().min(announced.ports.len());
    for (index, lane) in settings.lanes.lanes.iter().enumerate().take(count) {
        let address = SocketAddr::new(peer.address.ip(), announced.ports[index]);
        let (settings, peer, token) = (settings.clone(), Arc::downgrade(peer), announced.token);
        lane.runtime.spawn(async move {
            let joined = join(&settings, &peer, (index, count), (address, token));
            let joined = tokio::time::timeout(settings.connect_timeout, joined).await;
            if let Err(cause) = joined.unwrap_or_else(|_| Err("no answer in time".into())) {
                tracing::warn!(%address, cause, "a lane cannot be had; its link goes on without");
            }
        });
    }
}

async fn join(
    settings: &Arc<Settings>,
    peer: &Weak<Peer>,
    place: (usize, usize),
    (address, token): (SocketAddr, Token),
) -> Result<(), String> {
    let trust = settings.trust();
    let client = trust.sides(address).client.clone();
    let endpoint = &settings.lanes.lanes[place.0].endpoint;
    let connecting = endpoint.connect_with(client, address, CLUSTER_DNS_NAME).map_err(|error| error.to_string())?;
    let lane = connecting.await.map_err(cause::words)?;
    let member = settings.identify(&lane, &trust)?.map(|known| known.member);
    let mut introduction = lane.open_uni().await.map_err(cause::words)?;
    let said = [&token[..], &[place.1 as u8]].concat();
    introduction.write_all(&said).await.map_err(|error| error.to_string())?;
    let Some(peer) = peer.upgrade().filter(|peer| peer.member == member) else {
        return Err("its link is gone, or it ends at another member".into());
    };
    attach(settings, &peer, place, lane)?;
    Ok(())
}

/// Gives a link its lane; whether it has all of them now. Called on the lane's thread, which reads it from then on.
fn attach(
    settings: &Arc<Settings>,
    peer: &Arc<Peer>,
    (index, count): (usize, usize),
    lane: Connection,
) -> Result<bool, &'static str> {
    let are_all = peer.stripes.attach(index, count, lane.clone())?;
    if are_all {
        settings.observer.lanes(peer.address, count);
    }
    tokio::spawn(read(Arc::downgrade(peer), (index, count), lane, settings.idle_timeout));
    Ok(are_all)
}

/// Reads a lane until it ends. One that is lost takes its link with it.
async fn read(peer: Weak<Peer>, (index, count): (usize, usize), lane: Connection, patience: Duration) {
    let Some(stripes) = peer.upgrade().map(|peer| peer.stripes.clone()) else { return };
    let lost = loop {
        match lane.accept_uni().await {
            Ok(stream) => {
                let stripes = stripes.clone();
                tokio::spawn(async move { stripes::receive(&stripes, index, stream).await });
            }
            Err(error) => break error,
        }
    };
    match &lost {
        // Lanes are closed with their link, which says why.
        ConnectionError::LocallyClosed => return,
        ConnectionError::ApplicationClosed(close) if close.error_code == CLOSED => return,
        // A silent peer is noticed by the link itself, perhaps a moment later.
        ConnectionError::TimedOut => tokio::time::sleep(patience).await,
        _ => {}
    }
    if let Some(peer) = peer.upgrade() {
        peer.close(&format!("lane {} of {count} was lost: {}", index + 1, cause::words(lost)));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{
        Link, NoObserver, Observer, Transport,
        quic::{QuicConfig, QuicTransport, Security},
    };

    const LANES: usize = 3;

    /// Tells of lanes and of who was refused.
    struct Told(watch::Sender<(usize, usize)>);

    impl Observer for Told {
        fn lanes(&self, _: SocketAddr, lanes: usize) {
            self.0.send_modify(|told| told.0 = lanes);
        }

        fn rejected(&self, _: &'static str) {
            self.0.send_modify(|told| told.1 += 1);
        }
    }

    fn bind(lanes: usize, observer: Arc<dyn Observer>) -> QuicTransport {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = QuicConfig { lanes, ..QuicConfig::new(listen, Security::Insecure) };
        QuicTransport::bind(config, observer).expect("loopback has free ports")
    }

    #[tokio::test]
    async fn a_lost_lane_takes_its_link_with_it() {
        let told = [(); 2].map(|()| Arc::new(Told(watch::Sender::default())));
        let [near, far] = [0, 1].map(|end| bind(LANES, told[end].clone()));
        let (link, accepted) = tokio::join!(near.connect_to(far.local_address()), far.accept());
        let (link, accepted) = (link.expect("it listens"), accepted.expect("it is open"));
        for told in &told {
            told.0.subscribe().wait_for(|told| told.0 == LANES).await.expect("it lives");
        }
        link.peer.stripes.ready()[1].close(VarInt::from_u32(7), b"torn");
        let reason = link.closed().await.to_string();
        assert!(reason.contains("lane 2 of 3 was lost"), "{reason}");
        assert!(accepted.closed().await.to_string().contains("lane 2 of 3 was lost"));
    }

    #[tokio::test]
    async fn a_stranger_brings_no_lane() {
        let told = Arc::new(Told(watch::Sender::default()));
        let (near, far) = (bind(1, Arc::new(NoObserver)), bind(1, told.clone()));
        let address = SocketAddr::new(far.local_address().ip(), far.settings.lanes.lanes[0].port);
        let client = near.settings.trust().sides(address).client.clone();
        let endpoint = &near.settings.lanes.lanes[0].endpoint;
        let lane =
            endpoint.connect_with(client, address, CLUSTER_DNS_NAME).expect("it is open").await.expect("it listens");
        let mut said = lane.open_uni().await.expect("it is up");
        said.write_all(&[0; TOKEN_BYTES + 1]).await.expect("it is up");
        assert!(matches!(lane.closed().await, ConnectionError::ApplicationClosed(_)));
        told.0.subscribe().wait_for(|told| told.1 == 1).await.expect("it lives");
    }
}
