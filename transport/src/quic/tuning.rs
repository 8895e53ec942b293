//! QUIC's numbers for hosts of one cluster: short paths, bulk transfers and small frames in turn. Reads no clock.

use std::{net::UdpSocket, sync::Arc, time::Duration};

use quinn::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig,
    VarInt, congestion::CubicConfig,
};

use socket2::SockRef;

use super::{Paths, QuicConfig, Sides, tls::Tls};

/// Assumed until measured: a lost first packet is repeated after thrice this.
const INITIAL_RTT: Duration = Duration::from_millis(20);
/// Bytes sent at once on an idle link: one query frame and its answers need no second round trip.
const INITIAL_WINDOW: u64 = 512 << 10;
/// Bytes the system may hold for a socket in either direction.
pub const SOCKET_QUEUE: usize = 4 << 20;
/// Packets of a bulk transfer that one acknowledgement may cover.
const PACKETS_PER_ACK: u32 = 8;
/// Channels a peer may have open at a time.
const MAX_CHANNELS: u32 = 1024;

/// Asks for queues that hold a burst of every host of a small cluster; a full queue drops datagrams, and each drop costs a
/// round trip. A system that grants less (Linux: `net.core.rmem_max`) is slower, not wrong.
pub(super) fn deepen_queues(socket: &UdpSocket) {
    let socket = SockRef::from(socket);
    let granted = socket.set_recv_buffer_size(SOCKET_QUEUE).and_then(|()| socket.set_send_buffer_size(SOCKET_QUEUE));
    if let Err(error) = granted {
        tracing::debug!(%error, "the socket keeps its queues as they are");
    }
}

pub(super) fn endpoint(config: &QuicConfig) -> EndpointConfig {
    let mut endpoint = EndpointConfig::default();
    endpoint.max_udp_payload_size(max_mtu(config)).expect("the MTU is at least QUIC's smallest");
    endpoint
}

pub(super) fn paths(config: &QuicConfig) -> Paths {
    Paths { loopback: Arc::new(transport(config, true)), network: Arc::new(transport(config, false)) }
}

pub(super) fn sides(tls: &Tls, path: &Arc<TransportConfig>) -> Sides {
    let mut client = ClientConfig::new(tls.client.clone());
    client.transport_config(path.clone());
    let mut vouching = ClientConfig::new(tls.vouching.clone());
    vouching.transport_config(path.clone());
    let mut server = ServerConfig::with_crypto(tls.server.clone());
    server.transport_config(path.clone()).migration(false);
    Sides { client, vouching, server: Arc::new(server) }
}

fn transport(config: &QuicConfig, loopback: bool) -> TransportConfig {
    let window = VarInt::from_u32(config.receive_window);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(max_mtu(config));
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK));
    let mut congestion = CubicConfig::default();
    congestion.initial_window(INITIAL_WINDOW);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_CHANNELS))
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .max_idle_timeout(Some(IdleTimeout::try_from(config.idle_timeout).unwrap_or(VarInt::MAX.into())))
        .keep_alive_interval(Some(config.keep_alive))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(config.receive_window))
        .initial_rtt(INITIAL_RTT)
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(congestion))
        .datagram_receive_buffer_size(None);
    if loopback {
        // The loopback device takes 64 KiB; nothing is to be discovered.
        transport.initial_mtu(max_mtu(config));
    }
    transport
}

fn max_mtu(config: &QuicConfig) -> u16 {
    const SMALLEST: u16 = 1200;
    config.max_mtu.max(SMALLEST)
}
