//! What the transport tests share: frames to send, peers to meet, and deadlines.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    collections::HashMap,
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use asterism_transport::{
    Channel, Frame, FrameHeader, FrameKind, Link, Observer, PayloadType, Transport,
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    local::LocalNetwork,
    quic::{QuicConfig, QuicTransport, Security},
    sim::{Faults, SimConfig, SimNetwork},
};
#[cfg(feature = "ucx")]
use asterism_transport::{
    NoObserver,
    ucx::{UcxConfig, UcxTransport},
};
use bytes::Bytes;
use rkyv::util::AlignedVec;
use tokio::sync::watch;

/// Far beyond what anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("the literal is an address")
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("the event comes before the deadline")
}

pub fn an_hour() -> Validity {
    Validity::starting(SystemTime::now(), Duration::from_secs(3600))
}

pub fn authority() -> CertificateAuthority {
    CertificateAuthority::create("test", an_hour()).expect("the name is valid")
}

pub fn mutual(authority: &CertificateAuthority, host: &str) -> Security {
    Security::Mutual(Credentials::issue(authority, (MemberRole::Context, host), an_hour()).expect("the name is valid"))
}

/// Counts what happens, and lets a test wait for a count.
pub struct Counts {
    rejected: watch::Sender<HashMap<&'static str, usize>>,
    bytes: Mutex<[usize; 2]>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { rejected: watch::Sender::new(HashMap::new()), bytes: Mutex::default() }
    }
}

impl Counts {
    pub async fn wait_for_rejections(&self, reason: &'static str, count: usize) {
        let mut rejected = self.rejected.subscribe();
        within(rejected.wait_for(|seen| seen.get(reason).copied().unwrap_or(0) >= count)).await.expect("self lives");
        assert_eq!(*self.rejected.borrow(), HashMap::from([(reason, count)]));
    }

    pub fn rejections(&self) -> usize {
        self.rejected.borrow().values().sum()
    }

    /// Bytes sent and received.
    pub fn bytes(&self) -> [usize; 2] {
        *self.bytes.lock().expect("no test panics here")
    }
}

impl Observer for Counts {
    fn bytes(&self, sent: bool, bytes: usize) {
        self.bytes.lock().expect("no test panics here")[usize::from(!sent)] += bytes;
    }

    fn rejected(&self, reason: &'static str) {
        self.rejected.send_modify(|seen| *seen.entry(reason).or_default() += 1);
    }
}

/// Makes transports that can reach each other.
pub trait Rig: Send + Sync + 'static {
    fn bind(&self, observer: Arc<dyn Observer>) -> Arc<dyn Transport>;
    /// What a peer's name is.
    fn name(&self) -> Option<&'static str>;
    /// Gives peers up soon, and says which error tells that a peer vanished without a word.
    fn give_up_soon(&mut self) -> &'static str;
}

pub struct Local(pub LocalNetwork);

pub fn local() -> Local {
    Local(LocalNetwork::new())
}

impl Rig for Local {
    fn bind(&self, observer: Arc<dyn Observer>) -> Arc<dyn Transport> {
        Arc::new(self.0.bind(loopback(), observer).expect("a port is free"))
    }

    fn name(&self) -> Option<&'static str> {
        None
    }

    fn give_up_soon(&mut self) -> &'static str {
        "closed"
    }
}

pub struct Sim(pub SimNetwork);

pub fn sim() -> Sim {
    Sim(SimNetwork::new(SimConfig::new(1)))
}

/// Frames take their time, and those of different channels overtake each other.
pub fn sim_delayed() -> Sim {
    let milliseconds = Duration::from_millis;
    let (delay, reorder_by) = (milliseconds(0)..=milliseconds(2), milliseconds(3));
    let faults = Faults { delay, reorder: 0.2, reorder_by, ..Faults::default() };
    Sim(SimNetwork::new(SimConfig { faults, ..SimConfig::new(2) }))
}

impl Rig for Sim {
    fn bind(&self, observer: Arc<dyn Observer>) -> Arc<dyn Transport> {
        Arc::new(self.0.bind(loopback(), observer).expect("a port is free"))
    }

    fn name(&self) -> Option<&'static str> {
        None
    }

    fn give_up_soon(&mut self) -> &'static str {
        "closed"
    }
}

pub struct Quic {
    security: Security,
    name: Option<&'static str>,
    idle_timeout: Duration,
}

pub fn quic() -> Quic {
    Quic { security: mutual(&authority(), "host-a"), name: Some("host-a"), idle_timeout: Duration::from_secs(30) }
}

pub fn quic_insecure() -> Quic {
    Quic { security: Security::Insecure, name: None, idle_timeout: Duration::from_secs(30) }
}

impl Quic {
    pub fn config(&self) -> QuicConfig {
        let mut config = QuicConfig::new(loopback(), self.security.clone());
        config.idle_timeout = self.idle_timeout;
        config.keep_alive = self.idle_timeout / 5;
        config.connect_timeout = self.idle_timeout;
        // Small, so that big frames need many windows.
        config.receive_window = 1 << 20;
        config
    }
}

impl Rig for Quic {
    fn bind(&self, observer: Arc<dyn Observer>) -> Arc<dyn Transport> {
        Arc::new(QuicTransport::bind(self.config(), observer).expect("loopback has a free port"))
    }

    fn name(&self) -> Option<&'static str> {
        self.name
    }

    fn give_up_soon(&mut self) -> &'static str {
        self.idle_timeout = Duration::from_secs(1);
        "timed_out"
    }
}

/// UCX over the given transports, vouched for by QUIC.
#[cfg(feature = "ucx")]
pub struct Ucx {
    quic: Quic,
    transports: &'static str,
}

#[cfg(feature = "ucx")]
pub fn ucx(transports: &'static str) -> Ucx {
    Ucx { quic: quic(), transports }
}

#[cfg(feature = "ucx")]
impl Ucx {
    pub fn config(&self) -> UcxConfig {
        let transports = Some(self.transports.to_owned());
        UcxConfig { transports, receive_window: 1 << 20, connect_timeout: DEADLINE, ..UcxConfig::default() }
    }
}

#[cfg(feature = "ucx")]
impl Rig for Ucx {
    fn bind(&self, observer: Arc<dyn Observer>) -> Arc<dyn Transport> {
        let mut config = self.quic.config();
        if self.transports == "tcp" {
            // What TCP tells comes first then, however slow the machine.
            config.idle_timeout = DEADLINE;
        }
        let quic = Arc::new(QuicTransport::bind(config, Arc::new(NoObserver)).expect("a port is free"));
        Arc::new(UcxTransport::bind(self.config(), quic, observer).expect("every host has these transports"))
    }

    fn name(&self) -> Option<&'static str> {
        self.quic.name()
    }

    fn give_up_soon(&mut self) -> &'static str {
        let silent = self.quic.give_up_soon();
        // A runtime that ends closes its sockets, and the system says so; shared memory stays as it was.
        if self.transports == "tcp" { "ucx_lost" } else { silent }
    }
}

/// Two transports and the link between them, as either side sees it.
pub struct Pair {
    pub near: Arc<dyn Transport>,
    pub far: Arc<dyn Transport>,
    pub near_link: Arc<dyn Link>,
    pub far_link: Arc<dyn Link>,
}

pub async fn pair(rig: &dyn Rig) -> Pair {
    let [near, far] = [(); 2].map(|()| rig.bind(Arc::new(Counts::default())));
    let (near_link, far_link) = meet(&near, &far).await;
    Pair { near, far, near_link, far_link }
}

pub async fn meet(near: &Arc<dyn Transport>, far: &Arc<dyn Transport>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (near_link, far_link) = within(async { tokio::join!(near.connect(far.local_address()), far.accept()) }).await;
    (near_link.expect("the peer listens"), far_link.expect("the transport is open"))
}

/// A channel that has carried one frame, as either side sees it.
pub async fn channel(near: &Arc<dyn Link>, far: &Arc<dyn Link>) -> (Channel, Channel) {
    let mut opened = within(near.open()).await.expect("the link is up");
    within(opened.sender.send(frame(0, 0, 0))).await.expect("the link is up");
    let mut accepted = within(far.accept()).await.expect("the link is up");
    receive(&mut accepted).await;
    (opened, accepted)
}

pub async fn send(channel: &mut Channel, frame: Frame) {
    within(channel.sender.send(frame)).await.expect("the frame is sent");
}

pub async fn receive(channel: &mut Channel) -> Frame {
    let frame = within(channel.receiver.receive()).await.expect("the link is up");
    let frame = frame.expect("the peer sends on");
    check(&frame);
    frame
}

/// A frame whose content follows from `step`, so that [`check`] knows it.
pub fn frame(step: u64, meta: usize, payload: usize) -> Frame {
    let header = FrameHeader {
        kind: FrameKind::Request,
        payload_type: if payload == 0 { PayloadType::None } else { PayloadType::Bf16 },
        correlation: step,
    };
    let mut archived = AlignedVec::with_capacity(meta);
    archived.extend_from_slice(&(0..meta).map(|index| pattern(step, index)).collect::<Vec<_>>());
    Frame::new(header, archived, (0..payload).map(|index| pattern(step.wrapping_add(1), index)).collect::<Bytes>())
}

/// The frame says what `frame` put into it, and its payload is aligned.
pub fn check(got: &Frame) {
    let expected = frame(got.header.correlation, got.meta.len(), got.payload.len());
    assert_eq!(got.header, expected.header);
    assert!(got.meta.as_slice() == expected.meta.as_slice(), "meta of frame {} differs", got.header.correlation);
    assert!(got.payload == expected.payload, "payload of frame {} differs", got.header.correlation);
    assert!(got.payload.is_empty() || got.payload.as_ptr().addr().is_multiple_of(64));
}

fn pattern(seed: u64, index: usize) -> u8 {
    (seed as usize ^ index ^ (index >> 8).wrapping_mul(31) ^ (index >> 16).wrapping_mul(17)) as u8
}

/// Says that a test is not run here; fails where `ASTERISM_REQUIRE=all` takes nothing for tested that was skipped.
pub fn skipped(why: &str) {
    eprintln!("SKIPPED, NOTHING WAS TESTED: {why}");
    let required = std::env::var("ASTERISM_REQUIRE").is_ok_and(|required| required == "all");
    assert!(!required, "skipped, where ASTERISM_REQUIRE=all: {why}");
}
