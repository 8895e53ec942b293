//! Whom QUIC lets in, whom it refuses, and what either side hears about it.

mod common;

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, SystemTime},
};

use asterism_transport::{
    FRAME_VERSION, FrameError, Link, NoObserver, OLDEST_PROTOCOL, PROTOCOL_VERSION, SpokenVersions, Transport,
    TransportError,
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    quic::{QuicConfig, QuicTransport, Security},
};
use common::{Counts, an_hour, authority, frame, loopback, meet, mutual, receive, send, within};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// The application protocol of `version`.
fn protocol(version: u16) -> Vec<u8> {
    format!("asterism/{version}").into_bytes()
}

/// A transport and what it counted.
fn bind(security: Security) -> (Arc<dyn Transport>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let transport = QuicTransport::bind(QuicConfig::new(loopback(), security), counts.clone());
    (Arc::new(transport.expect("loopback has a free port")), counts)
}

/// `security` knocks at `host` in vain; both sides call it `reason`.
async fn refused(host: Security, security: Security, reason: &'static str) -> TransportError {
    let (host, counts) = bind(host);
    let (guest, _) = bind(security);
    let error = within(guest.connect(host.local_address())).await.err().expect("the guest is refused");
    assert_eq!(error.code(), reason, "{error}");
    counts.wait_for_rejections(reason, 1).await;
    error
}

#[tokio::test]
async fn another_ca_is_refused_and_counted() {
    let error = refused(mutual(&authority(), "host"), mutual(&authority(), "guest"), "certificate").await;
    assert!(error.to_string().contains("asterism cert init"), "{error}");
}

#[tokio::test]
async fn a_guest_that_trusts_the_host_is_refused_all_the_same() {
    let ours = authority();
    let theirs = authority();
    // The host's certificate satisfies the guest; the guest's own is of another CA.
    let mut guest = Credentials::issue(&theirs, (MemberRole::Context, "guest"), an_hour()).expect("the name is valid");
    guest.ca = ours.certificate().into();
    refused(mutual(&ours, "host"), Security::Mutual(guest), "certificate").await;
}

#[tokio::test]
async fn an_impostor_is_refused_by_its_guest() {
    let ours = authority();
    let mut host =
        Credentials::issue(&authority(), (MemberRole::Context, "host"), an_hour()).expect("the name is valid");
    host.ca = ours.certificate().into();
    let (host, _) = bind(Security::Mutual(host));
    let (guest, counts) = bind(mutual(&ours, "guest"));
    let error = within(guest.connect(host.local_address())).await.err().expect("the guest refuses");
    assert_eq!(error.code(), "certificate", "{error}");
    counts.wait_for_rejections("certificate", 1).await;
}

#[tokio::test]
async fn an_expired_or_future_certificate_is_refused_and_counted() {
    let ours = authority();
    let day = Duration::from_secs(86_400);
    for start in [SystemTime::now() - 2 * day, SystemTime::now() + 2 * day] {
        let guest = Credentials::issue(&ours, (MemberRole::Context, "guest"), Validity::starting(start, day))
            .expect("the name is valid");
        refused(mutual(&ours, "host"), Security::Mutual(guest), "certificate").await;
    }
}

#[tokio::test]
async fn a_guest_without_security_is_refused_by_a_host_with() {
    refused(mutual(&authority(), "host"), Security::Insecure, "certificate").await;
    refused(Security::Insecure, mutual(&authority(), "guest"), "certificate").await;
}

#[tokio::test]
async fn no_certificate_is_refused_and_counted() {
    let ours = authority();
    let (host, counts) = bind(mutual(&ours, "host"));
    let stranger = Stranger::new(&ours, &protocol(PROTOCOL_VERSION), Certificate::None);
    let error = within(stranger.connect(host.local_address())).await.expect_err("the stranger is refused");
    assert!(error.to_string().contains("certificate"), "{error}");
    counts.wait_for_rejections("certificate", 1).await;
}

#[tokio::test]
async fn another_protocol_version_is_refused_and_counted() {
    let ours = authority();
    let (host, counts) = bind(mutual(&ours, "host"));
    let stranger = Stranger::new(&ours, &protocol(PROTOCOL_VERSION + 1), Certificate::OfHost);
    within(stranger.connect(host.local_address())).await.expect_err("the stranger is refused");
    counts.wait_for_rejections("protocol_version", 1).await;

    let error = within(host.connect(stranger.address())).await.err().expect("the host is refused");
    assert_eq!(error, TransportError::ProtocolVersion { peer: stranger.address(), expected: SpokenVersions });
}

#[tokio::test]
async fn a_peer_of_an_older_version_is_spoken_to_in_its_own() {
    let ours = authority();
    let (host, _) = bind(mutual(&ours, "host"));
    for version in [OLDEST_PROTOCOL, PROTOCOL_VERSION] {
        let stranger = Stranger::new(&ours, &protocol(version), Certificate::OfHost);
        let (connection, link) =
            within(async { tokio::join!(stranger.knock(host.local_address()), host.accept()) }).await;
        let (connection, link) = (connection.expect("it is let in"), link.expect("the host is open"));
        assert_eq!(link.version(), version);
        let mut welcome = within(connection.accept_uni()).await.expect("the host says what it settled on");
        let mut stated = [0; 2];
        within(welcome.read_exact(&mut stated)).await.expect("it is all there");
        assert_eq!(u16::from_le_bytes(stated), version);
    }
    let (guest, _) = bind(mutual(&ours, "guest"));
    let (near, far) = meet(&guest, &host).await;
    assert_eq!([near.version(), far.version()], [PROTOCOL_VERSION; 2], "the newest that both speak");
}

#[tokio::test]
async fn refusals_keep_nobody_else_out() {
    let ours = authority();
    let (host, counts) = bind(mutual(&ours, "host"));
    let (stranger, _) = bind(mutual(&authority(), "stranger"));
    let (guest, _) = bind(mutual(&ours, "guest"));
    for count in 1..4 {
        within(stranger.connect(host.local_address())).await.err().expect("the stranger is refused");
        counts.wait_for_rejections("certificate", count).await;
    }
    let (near, far) = meet(&guest, &host).await;
    assert_eq!(near.peer().map(|member| member.name.as_str()), Some("host"));
    assert_eq!(far.peer().map(|member| member.name.as_str()), Some("guest"));
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_their_channel_only() {
    let ours = authority();
    let (host, counts) = bind(mutual(&ours, "host"));
    let stranger = Stranger::new(&ours, &protocol(PROTOCOL_VERSION), Certificate::OfHost);
    let (connection, link) =
        within(async { tokio::join!(stranger.connect(host.local_address()), host.accept()) }).await;
    let (connection, link) = (connection.expect("the certificate is good"), link.expect("the host is open"));

    let mut lying = *b"ASTR..\x01\x00correlat\xff\xff\xff\xff\xff\xff\xff\xff........zero-zer";
    lying[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
    let cases: [(&[u8], FrameError); 2] = [
        (&[b'x'; 64], FrameError::Magic { got: *b"xxxx" }),
        (&lying, FrameError::TooLarge { part: "meta", got: u64::MAX, max: 64 << 20 }),
    ];
    for (count, (bytes, expected)) in cases.into_iter().enumerate() {
        let (mut out, _back) = within(connection.open_bi()).await.expect("the link is up");
        within(out.write_all(bytes)).await.expect("the host reads");
        let mut channel = within(link.accept()).await.expect("the link is up");
        for _ in 0..2 {
            assert_eq!(within(channel.receiver.receive()).await.err(), Some(expected.clone().into()));
        }
        assert!(within(out.stopped()).await.expect("the link is up").is_some(), "the peer is told");
        counts.wait_for_rejections("frame", count + 1).await;
    }

    let (mut out, _back) = within(connection.open_bi()).await.expect("the link is up");
    within(out.write_all(b"ASTR")).await.expect("the host reads");
    out.finish().expect("the stream is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    assert_eq!(within(channel.receiver.receive()).await.err(), Some(FrameError::Truncated.into()));
}

#[tokio::test]
async fn a_dropped_writer_does_not_pass_half_a_frame_off_as_whole() {
    let ours = authority();
    let (near, _) = bind(mutual(&ours, "near"));
    let (far, _) = bind(mutual(&ours, "far"));
    let (near_link, far_link) = meet(&near, &far).await;
    let (mut near, mut far) = common::channel(&near_link, &far_link).await;
    // More than the windows hold, so that one poll sends a part.
    let sending = near.sender.send(frame(1, 0, 200 << 20));
    assert!(futures_util::FutureExt::now_or_never(sending).is_none());
    drop(near.sender);
    assert_eq!(within(far.receiver.receive()).await.err(), Some(FrameError::Truncated.into()));
}

#[tokio::test]
async fn a_peer_that_stops_while_every_window_is_full_frees_its_writer() {
    let ours = authority();
    let bind = |host| {
        let mut config = QuicConfig::new(loopback(), mutual(&ours, host));
        config.receive_window = 1 << 16;
        Arc::new(QuicTransport::bind(config, Arc::new(NoObserver)).expect("loopback has a free port"))
            as Arc<dyn Transport>
    };
    let (near, far) = (bind("near"), bind("far"));
    let (near_link, far_link) = meet(&near, &far).await;
    for _ in 0..20 {
        let (mut near, far) = common::channel(&near_link, &far_link).await;
        let writing = tokio::spawn(async move { near.sender.send(frame(1, 0, 1 << 20)).await });
        drop(far.receiver);
        let error = within(writing).await.expect("the writer does not panic").expect_err("nobody reads");
        assert_eq!(error.code(), "channel_closed");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = UdpSocket::bind(loopback()).expect("loopback has a free port");
    let address = taken.local_addr().expect("the socket is bound");
    let error = QuicTransport::bind(QuicConfig::new(address, Security::Insecure), Arc::new(NoObserver)).err();
    let error = error.expect("the port is taken");
    assert_eq!(error.code(), "bind");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn unusable_credentials_are_refused_before_listening() {
    let ours = authority();
    let mut credentials =
        Credentials::issue(&ours, (MemberRole::Context, "host"), an_hour()).expect("the name is valid");
    credentials.identity.key = ours.issue(MemberRole::Context, "other", an_hour()).expect("the name is valid").key;
    let config = QuicConfig::new(loopback(), Security::Mutual(credentials));
    let error = QuicTransport::bind(config, Arc::new(NoObserver)).err().expect("the key is another's");
    assert_eq!(error.code(), "certificate_invalid", "{error}");
}

/// A QUIC transport that can be told to rotate, as itself and as any transport.
fn rotating(security: Security) -> (Arc<QuicTransport>, Arc<dyn Transport>) {
    let transport = QuicTransport::bind(QuicConfig::new(loopback(), security), Arc::new(NoObserver));
    let transport = Arc::new(transport.expect("loopback has a free port"));
    (transport.clone(), transport)
}

#[tokio::test]
async fn certificates_rotate_under_a_live_link() {
    let ours = authority();
    let (quic, near) = rotating(mutual(&ours, "near"));
    let (far, _) = bind(mutual(&ours, "far"));
    let (near_link, far_link) = meet(&near, &far).await;
    let (mut out, mut back) = common::channel(&near_link, &far_link).await;

    quic.rotate(&mutual(&ours, "near-renewed")).expect("the certificate is good");
    let (_, accepted) = meet(&near, &far).await;
    assert_eq!(accepted.peer().map(|member| member.name.as_str()), Some("near-renewed"), "as a guest");
    let (connected, _) = meet(&far, &near).await;
    assert_eq!(connected.peer().map(|member| member.name.as_str()), Some("near-renewed"), "as a host");
    assert_eq!(
        far_link.peer().map(|member| member.name.as_str()),
        Some("near"),
        "a link keeps the name it was made under"
    );
    send(&mut out, frame(1, 2, 4)).await;
    receive(&mut back).await;
    send(&mut back, frame(2, 2, 4)).await;
    receive(&mut out).await;

    let mut wrong = Credentials::issue(&ours, (MemberRole::Context, "near"), an_hour()).expect("the name is valid");
    wrong.identity.key = ours.issue(MemberRole::Context, "other", an_hour()).expect("the name is valid").key;
    let error = quic.rotate(&Security::Mutual(wrong)).expect_err("the key is another's");
    assert_eq!(error.code(), "certificate_invalid", "{error}");
    let (_, accepted) = meet(&near, &far).await;
    assert_eq!(accepted.peer().map(|member| member.name.as_str()), Some("near-renewed"), "what was there stays");
}

#[tokio::test]
async fn a_cluster_changes_its_ca_without_a_restart() {
    let (old, new) = (authority(), authority());
    let hosts = ["near", "far"].map(|name| (name, rotating(mutual(&old, name))));
    let [(_, (_, near)), (_, (_, far))] = &hosts;
    let (near_link, far_link) = meet(near, far).await;
    let (mut out, mut back) = common::channel(&near_link, &far_link).await;

    let both = format!("{}{}", old.certificate(), new.certificate());
    let steps = [(&old, both.as_str()), (&new, both.as_str()), (&new, new.certificate())];
    for (step, (authority, ca)) in steps.into_iter().enumerate() {
        for (name, (quic, _)) in &hosts {
            let mut credentials =
                Credentials::issue(authority, (MemberRole::Context, name), an_hour()).expect("the name is valid");
            credentials.ca = ca.into();
            quic.rotate(&Security::Mutual(credentials)).expect("the certificate is good");
            // Hosts that are a step apart still meet, both ways.
            let (one, other) = meet(near, far).await;
            common::channel(&one, &other).await;
            let (one, other) = meet(far, near).await;
            common::channel(&one, &other).await;
        }
        send(&mut out, frame(step as u64, 2, 4)).await;
        receive(&mut back).await;
    }
    let (latecomer, _) = bind(mutual(&old, "latecomer"));
    let error = within(latecomer.connect(near.local_address())).await.err().expect("its CA is no longer trusted");
    assert_eq!(error.code(), "certificate", "{error}");
}

#[tokio::test]
async fn a_link_knows_its_round_trip_until_it_is_gone() {
    let authority = authority();
    let ((near, _), (far, _)) = (bind(mutual(&authority, "near")), bind(mutual(&authority, "far")));
    let (near_link, far_link): (Arc<dyn Link>, _) = meet(&near, &far).await;
    for link in [&near_link, &far_link] {
        let rtt = link.rtt().expect("it is up");
        assert!(rtt > Duration::ZERO && rtt < Duration::from_secs(5), "{rtt:?}");
    }
    near_link.close("enough");
    within(far_link.closed()).await;
    assert_eq!((near_link.rtt(), far_link.rtt()), (None, None));
}

#[tokio::test]
async fn a_silent_address_is_given_up() {
    let silent = UdpSocket::bind(loopback()).expect("loopback has a free port");
    let address = silent.local_addr().expect("the socket is bound");
    let mut config = QuicConfig::new(loopback(), Security::Insecure);
    config.connect_timeout = Duration::from_millis(300);
    let transport = QuicTransport::bind(config, Arc::new(NoObserver)).expect("loopback has a free port");
    let error = within(transport.connect(address)).await.err().expect("nobody answers");
    assert_eq!(error, TransportError::Unreachable { address, cause: "no answer within 300ms".into() });
}

#[tokio::test]
async fn a_reloaded_authority_makes_hosts_of_the_same_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let first = authority();
    first.save(folder.path()).expect("the folder is writable");
    let second = CertificateAuthority::load(folder.path()).expect("it was just written");
    let (near, _) = bind(mutual(&first, "near"));
    let (far, _) = bind(mutual(&second, "far"));
    let (near_link, far_link): (Arc<dyn Link>, _) = meet(&near, &far).await;
    let (mut near, mut far) = common::channel(&near_link, &far_link).await;
    send(&mut near, frame(1, 2, 4)).await;
    receive(&mut far).await;
}

/// A QUIC peer that is not ours: it chooses protocol and certificate, and writes what it likes.
struct Stranger {
    endpoint: quinn::Endpoint,
}

enum Certificate {
    None,
    OfHost,
}

impl Stranger {
    fn new(authority: &CertificateAuthority, protocol: &[u8], certificate: Certificate) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        let pem = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("it was just made");
        roots.add(pem(authority.certificate())).expect("it was just made");
        let identity = authority.issue(MemberRole::Context, "stranger", an_hour()).expect("the name is valid");
        let key = || PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("it was just made");
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            .with_root_certificates(roots);
        let mut client = match certificate {
            Certificate::None => client.with_no_client_auth(),
            Certificate::OfHost => {
                client.with_client_auth_cert(vec![pem(&identity.certificate)], key()).expect("the key belongs to it")
            }
        };
        client.alpn_protocols = vec![protocol.to_vec()];
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![pem(&identity.certificate)], key())
            .expect("the key belongs to it");
        server.alpn_protocols = vec![protocol.to_vec()];

        let server = QuicServerConfig::try_from(server).expect("ring has the initial suite");
        let server = quinn::ServerConfig::with_crypto(Arc::new(server));
        let mut endpoint = quinn::Endpoint::server(server, loopback()).expect("loopback has a free port");
        let client = QuicClientConfig::try_from(client).expect("ring has the initial suite");
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(client)));
        let accepting = endpoint.clone();
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                // Its end is the test's affair.
                drop(incoming.await);
            }
        });
        Self { endpoint }
    }

    fn address(&self) -> SocketAddr {
        self.endpoint.local_addr().expect("the socket is bound")
    }

    /// Connects, and waits to be let in or refused.
    async fn connect(&self, address: SocketAddr) -> Result<quinn::Connection, quinn::ConnectionError> {
        let connection = self.knock(address).await?;
        connection.accept_uni().await?;
        Ok(connection)
    }

    /// Connects, and does not wait to be let in.
    async fn knock(&self, address: SocketAddr) -> Result<quinn::Connection, quinn::ConnectionError> {
        self.endpoint.connect(address, "asterism").expect("the address is valid").await
    }
}
