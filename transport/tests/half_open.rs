//! Strangers who begin handshakes over QUIC and never end them: what they are sent, what they cost, and who is let in meanwhile.

mod common;
#[path = "common/initials.rs"]
mod initials;

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use asterism_transport::{
    NoObserver, Transport,
    certificates::CLUSTER_DNS_NAME,
    quic::{QuicConfig, QuicTransport},
};
use common::{Counts, authority, loopback, mutual, within};
use initials::{DATAGRAM, Initials, Retry};

/// Handshakes that a listener begins with one address.
const BY_SOURCE: usize = 64;
/// A packet that nothing answers is sent again after this time, so many times in all.
const RESEND_AFTER: Duration = Duration::from_secs(2);
const SENT_AT_MOST: usize = 15;

fn initials() -> Initials {
    Initials::new(format!("asterism/{}", asterism_transport::PROTOCOL_VERSION).as_bytes(), CLUSTER_DNS_NAME)
}

/// A socket at an address of this machine that nothing else has.
fn stranger(number: u8) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 7, 0, number], 0))).expect("loopback is 127.0.0.0/8");
    socket.set_read_timeout(Some(RESEND_AFTER)).expect("a timeout");
    socket
}

/// The next datagram that comes before the socket's time is over.
fn receive(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut datagram = [0; 2048];
    let length = socket.recv(&mut datagram).ok()?;
    Some(datagram[..length].to_vec())
}

/// Sends `packet` until something answers it for which `read` has a value, as every client of QUIC does: a datagram may be
/// lost. The value and how often it was sent.
fn ask<T>(socket: &UdpSocket, packet: &[u8], to: SocketAddr, read: impl Fn(&[u8]) -> Option<T>) -> (T, usize) {
    let answer = (1..=SENT_AT_MOST).find_map(|sent| {
        socket.send_to(packet, to).expect("loopback takes it");
        let value = std::iter::from_fn(|| receive(socket)).find_map(|answer| read(&answer))?;
        Some((value, sent))
    });
    answer.expect("an answer in time")
}

/// What a listener answers a first packet with, and how many of these packets it was sent.
fn retry(socket: &UdpSocket, initials: &mut Initials, to: SocketAddr) -> (Retry, usize) {
    ask(socket, &initials.next(), to, |answer| {
        assert!(answer.len() < DATAGRAM, "{} bytes for {DATAGRAM}", answer.len());
        Some(Retry::read(answer).expect("it is to show that it receives there"))
    })
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has some");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

/// A listener whose half-open connections end after this long, and what it counted.
fn listener(idle: Duration) -> (QuicTransport, Arc<Counts>, asterism_transport::certificates::CertificateAuthority) {
    let (ours, counts) = (authority(), Arc::new(Counts::default()));
    let mut config = QuicConfig::new(loopback(), mutual(&ours, "host"));
    config.idle_timeout = idle;
    (QuicTransport::bind(config, counts.clone()).expect("a free port"), counts, ours)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_shown_that_he_receives_is_sent_less_than_he_sent() {
    let (listener, _, _) = listener(Duration::from_secs(1));
    let socket = stranger(1);
    let (_, sent) = retry(&socket, &mut initials(), listener.local_address());
    // An answer each and nothing again: there is nobody who would.
    let more =
        tokio::task::spawn_blocking(move || std::iter::from_fn(|| receive(&socket)).count()).await.expect("it ends");
    assert!(more < sent, "{} answers to {sent} packets", more + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_costs_nothing_and_keeps_no_member_out() {
    let (listener, _, ours) = listener(Duration::from_secs(20));
    let (to, mut initials) = (listener.local_address(), initials());
    let before = resident();
    for source in 1..=100 {
        let socket = stranger(source);
        retry(&socket, &mut initials, to);
        for _ in 0..20 {
            socket.send_to(&initials.next(), to).expect("loopback takes it");
        }
    }
    let guest = QuicTransport::bind(QuicConfig::new(loopback(), mutual(&ours, "guest")), Arc::new(NoObserver));
    let guest = guest.expect("a free port");
    let link = within(guest.connect(to)).await.expect("a member is let in");
    assert_eq!(link.peer().map(|member| member.name.as_str()), Some("host"));
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes, most of them of one more transport");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_cost_little_and_a_source_has_so_many() {
    let (listener, counts, ours) = listener(Duration::from_secs(20));
    let (to, mut initials) = (listener.local_address(), initials());
    let taken = |source: u8, initials: &mut Initials| {
        let socket = stranger(source);
        let (retry, _) = retry(&socket, initials, to);
        // The handshake goes on.
        ask(&socket, &initials.again(&retry), to, |answer| Retry::read(answer).is_none().then_some(()));
        socket
    };
    // What is allocated once and for all.
    let mut sockets: Vec<UdpSocket> = (1..=8).map(|source| taken(source, &mut initials)).collect();
    let before = resident();
    const SOURCES: [u8; 3] = [101, 102, 103];
    for source in SOURCES {
        sockets.extend((0..BY_SOURCE).map(|_| taken(source, &mut initials)));
    }
    let each = resident().saturating_sub(before) / (SOURCES.len() * BY_SOURCE);
    // quinn's own are 38 KB and the first pages of a buffer for a datagram of loopback.
    assert!(each < 60_000, "{each} bytes for each");

    let socket = stranger(SOURCES[0]);
    let (retry, _) = retry(&socket, &mut initials, to);
    for _ in (0..SENT_AT_MOST).take_while(|_| counts.rejections() == 0) {
        socket.send_to(&initials.again(&retry), to).expect("loopback takes it");
        assert!(receive(&socket).is_none(), "it is one too many");
    }
    counts.wait_for_rejections("half_open", counts.rejections().max(1)).await;
    let guest = QuicTransport::bind(QuicConfig::new(loopback(), mutual(&ours, "guest")), Arc::new(NoObserver));
    within(guest.expect("a free port").connect(to)).await.expect("others are let in");
}
