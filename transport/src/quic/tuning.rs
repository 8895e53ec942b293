//! QUIC's numbers for hosts of one cluster: short paths, bulk transfers and small frames in turn. Reads no clock.

pub(crate) mod loopback;
pub(crate) mod patient;
pub(crate) mod socket;

use std::{fs, net::UdpSocket, sync::Arc, time::Duration};

use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt, congestion::CubicConfig,
};
use socket2::SockRef;

use super::{
    admission,
    config::{Paths, QuicConfig},
    tls::Tls,
    tuning::{loopback::Loopback, patient::Patient, socket::LARGEST_DATAGRAM},
};

/// Assumed until measured: a lost first packet is repeated after thrice this.
const INITIAL_RTT: Duration = Duration::from_millis(20);
/// Bytes sent at once on an idle link: one query frame and its answers need no second round trip.
const INITIAL_WINDOW: u64 = 512 << 10;
/// Bytes the system may hold for a socket in either direction.
pub const SOCKET_QUEUE: usize = 4 << 20;
/// Packets of a bulk transfer that one acknowledgement may cover.
const PACKETS_PER_ACK: u32 = 8;
/// The system's queue of a receiver by what one sender may have under way on loopback: the system counts more than the bytes
/// of a datagram, and other hosts of the machine send too.
const QUEUE_PER_WINDOW: usize = 4;
/// Where Linux tells the loopback device's MTU, and what it is on systems that tell it elsewhere.
const LOOPBACK_MTU: &str = "/sys/class/net/lo/mtu";
const UNTOLD_MTU: u32 = 16384;
/// Bytes of the headers of IPv6 and UDP.
const HEADERS: u32 = 40 + 8;
/// QUIC's smallest.
const SMALLEST_MTU: u16 = 1200;
/// What QUIC lets a peer send in one datagram (RFC 9000, section 18.2). Buffers are as large: the system hands over several
/// datagrams of a peer as one.
const LARGEST_UDP_PAYLOAD: u16 = 65527;
/// Channels a peer may have open at a time, and parts of payloads that a lane may carry. QUIC's state of each is there with the
/// connection, 90 KB of all.
const MAX_CHANNELS: u32 = 1024;
/// Those of a peer that has not shown a certificate.
const NO_CHANNELS: u32 = 0;

/// Asks for queues that hold a burst of every host of a small cluster, and says what a receiver has; a full queue drops
/// datagrams, and each drop costs a round trip. A system that grants less (Linux: `net.core.rmem_max`) is slower, not wrong.
pub(super) fn deepen_queues(socket: &UdpSocket) -> usize {
    let socket = SockRef::from(socket);
    let granted = socket.set_recv_buffer_size(SOCKET_QUEUE).and_then(|()| socket.set_send_buffer_size(SOCKET_QUEUE));
    if let Err(error) = granted {
        tracing::debug!(%error, "the socket keeps its queues as they are");
    }
    socket.recv_buffer_size().unwrap_or_default()
}

pub(super) fn endpoint() -> EndpointConfig {
    let mut endpoint = EndpointConfig::default();
    endpoint.max_udp_payload_size(LARGEST_UDP_PAYLOAD).expect("it is QUIC's largest");
    endpoint
}

/// `queue` is what a receiver on this machine has.
pub(super) fn paths(config: &QuicConfig, queue: usize) -> Paths {
    let loopback = |channels| Arc::new(loopback((config, channels), queue));
    let network = |channels| Arc::new(network((config, channels)));
    Paths { loopback: [MAX_CHANNELS, NO_CHANNELS].map(loopback), network: [MAX_CHANNELS, NO_CHANNELS].map(network) }
}

/// Lets a peer that came and has shown a certificate open channels.
pub(super) fn open_up(connection: &Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(MAX_CHANNELS));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(MAX_CHANNELS));
}

pub(super) fn sides(tls: &Tls, [going, coming]: &[Arc<TransportConfig>; 2]) -> Sides {
    let mut client = ClientConfig::new(tls.client.clone());
    client.transport_config(going.clone());
    let mut vouching = ClientConfig::new(tls.vouching.clone());
    vouching.transport_config(going.clone());
    let mut server = ServerConfig::with_crypto(tls.server.clone());
    admission::bound_waiting(&mut server).transport_config(coming.clone()).migration(false);
    Sides { client, vouching, server: Arc::new(server) }
}

fn network(config: (&QuicConfig, u32)) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(config.0.max_mtu.max(SMALLEST_MTU));
    let mut congestion = CubicConfig::default();
    congestion.initial_window(INITIAL_WINDOW);
    let mut transport = transport(config, PACKETS_PER_ACK);
    transport
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(Patient(Arc::new(congestion))));
    transport
}

/// The loopback device says how much it takes, mostly whole IP packets: nothing is to be discovered, nor to be segmented.
fn loopback(config: (&QuicConfig, u32), queue: usize) -> TransportConfig {
    let datagram = loopback_datagram(fs::read_to_string(LOOPBACK_MTU).ok().as_deref());
    let step = u64::from(datagram);
    let most = (queue / QUEUE_PER_WINDOW) as u64;
    // Four acknowledgements a window: none waits for what may not be sent before it.
    let packets_per_ack = (most / step / 4).clamp(1, PACKETS_PER_ACK.into());
    let mut transport = transport(config, packets_per_ack as u32);
    transport
        .initial_mtu(datagram)
        .mtu_discovery_config(None)
        .enable_segmentation_offload(datagram < LARGEST_DATAGRAM / 2)
        .congestion_controller_factory(Arc::new(Loopback { most, step }));
    transport
}

/// The largest datagram of a loopback device whose MTU the system tells, headers of IPv6 and UDP taken off.
fn loopback_datagram(reported: Option<&str>) -> u16 {
    let mtu = reported.and_then(|reported| reported.trim().parse::<u32>().ok()).unwrap_or(UNTOLD_MTU);
    mtu.saturating_sub(HEADERS).clamp(SMALLEST_MTU.into(), LARGEST_DATAGRAM.into()) as u16
}

fn transport((config, channels): (&QuicConfig, u32), packets_per_ack: u32) -> TransportConfig {
    let window = VarInt::from_u32(config.receive_window);
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(packets_per_ack));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(channels))
        .max_concurrent_uni_streams(VarInt::from_u32(channels))
        .max_idle_timeout(Some(IdleTimeout::try_from(config.idle_timeout).unwrap_or(VarInt::MAX.into())))
        .keep_alive_interval(Some(config.keep_alive))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(config.receive_window))
        .initial_rtt(INITIAL_RTT)
        .ack_frequency_config(Some(acks))
        .datagram_receive_buffer_size(None);
    transport
}

/// The configurations of both roles for one kind of path.
pub(crate) struct Sides {
    pub client: ClientConfig,
    #[cfg_attr(not(feature = "ucx"), expect(dead_code, reason = "only UCX connects so"))]
    pub vouching: ClientConfig,
    pub server: Arc<ServerConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_fits_the_loopback_device() {
        assert_eq!(loopback_datagram(Some("65536\n")), LARGEST_DATAGRAM);
        assert_eq!(loopback_datagram(Some("1500\n")), 1452);
        assert_eq!(loopback_datagram(Some("68")), SMALLEST_MTU);
        assert_eq!(loopback_datagram(None), 16336);
    }
}
