//! What only UCX can do wrong: peers without it, and peers that die in the middle of it.
#![cfg(feature = "ucx")]

mod common;

use std::{
    env,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use asterism_transport::{
    Frame, Link, NoObserver, Observer, PayloadType, Transport, TransportError,
    quic::{QuicConfig, QuicTransport, Security},
    ucx::{UcxConfig, UcxTransport},
};
use bytes::Bytes;
use common::{Counts, authority, channel, frame, loopback, meet, mutual, receive, send, within};

/// Given to the process that is to be killed.
const PEER: &str = "ASTERISM_TEST_PEER";
const TRANSPORTS: &str = "ASTERISM_TEST_TRANSPORTS";

fn quic(security: Security) -> Arc<QuicTransport> {
    let mut config = QuicConfig::new(loopback(), security);
    // Long, so that nothing here is noticed by QUIC's silence.
    config.idle_timeout = Duration::from_secs(300);
    Arc::new(QuicTransport::bind(config, Arc::new(NoObserver)).expect("a port is free"))
}

fn over(transports: &str) -> UcxConfig {
    UcxConfig { transports: Some(transports.into()), connect_timeout: Duration::from_secs(60), ..UcxConfig::default() }
}

fn bind(config: UcxConfig, observer: Arc<dyn Observer>) -> Result<UcxTransport, TransportError> {
    UcxTransport::bind(config, quic(Security::Insecure), observer)
}

#[tokio::test]
async fn one_quic_transport_vouches_for_one_of_ucx() {
    let quic = quic(Security::Insecure);
    let first = UcxTransport::bind(over("tcp"), quic.clone(), Arc::new(NoObserver)).expect("every host has TCP");
    let again = || UcxTransport::bind(over("tcp"), quic.clone(), Arc::new(NoObserver));
    let printed = again().err().expect("there is one").to_string();
    assert!(printed.contains("another UCX transport"), "{printed}");
    drop(first);
    // The task that took the peers ends with its transport, a moment later.
    within(async {
        while again().is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_without_ucx_says_so() {
    let near = bind(over("tcp"), Arc::new(NoObserver)).expect("every host has TCP");
    let far = quic(Security::Insecure);
    let error = within(near.connect(far.local_address())).await.err().expect("the peer has no UCX");
    let cause = "UCX is switched off there".into();
    assert_eq!(error, TransportError::NoUcx { peer: far.local_address(), cause });
}

#[tokio::test]
async fn quic_and_ucx_share_a_socket() {
    let [near, far] = [(); 2].map(|()| quic(Security::Insecure));
    let bind = |quic: &Arc<QuicTransport>| -> Arc<dyn Transport> {
        Arc::new(UcxTransport::bind(over("tcp"), quic.clone(), Arc::new(NoObserver)).expect("every host has TCP"))
    };
    let (near_ucx, far_ucx) = (bind(&near), bind(&far));
    let [near, far]: [Arc<dyn Transport>; 2] = [near, far];
    let ucx = meet(&near_ucx, &far_ucx).await;
    let quic = meet(&near, &far).await;
    for (near, far) in [&ucx, &quic] {
        let (mut near, mut far) = channel(near, far).await;
        send(&mut near, frame(3, 3, 4)).await;
        assert_eq!(receive(&mut far).await.header.correlation, 3);
    }
    // Closing one leaves the other.
    near_ucx.close();
    within(ucx.1.closed()).await;
    channel(&quic.0, &quic.1).await;
}

#[tokio::test]
async fn a_stranger_gets_no_further_than_quic() {
    let [ours, theirs] = [(); 2].map(|()| mutual(&authority(), "host"));
    let counts = Arc::new(Counts::default());
    let far = UcxTransport::bind(over("tcp"), quic(ours), counts.clone()).expect("every host has TCP");
    let near = UcxTransport::bind(over("tcp"), quic(theirs), counts).expect("every host has TCP");
    let error = within(near.connect(far.local_address())).await.err().expect("the certificates differ");
    assert_eq!(error.code(), "certificate", "{error}");
}

/// Frames of every size around the thresholds of UCX's protocols arrive as they were sent.
async fn every_size_arrives(transports: &str) {
    let [near, far] = [(); 2].map(|()| -> Arc<dyn Transport> {
        Arc::new(bind(over(transports), Arc::new(NoObserver)).expect("every host has it"))
    });
    let (near, far) = meet(&near, &far).await;
    let (mut near, mut far) = channel(&near, &far).await;
    let sizes = (2..=22).flat_map(|power| [(1 << power) - 2, 1 << power, (1 << power) + 2]);
    let sizes: Vec<usize> = sizes.map(|size: usize| size.next_multiple_of(2)).collect();
    let sending = tokio::spawn({
        let sizes = sizes.clone();
        async move {
            for (step, size) in sizes.iter().enumerate() {
                send(&mut near, frame(step as u64, 0, *size)).await;
                send(&mut near, frame(step as u64, *size / 3, *size)).await;
                send(&mut near, frame(step as u64, *size, 0)).await;
            }
            near
        }
    });
    for (step, size) in sizes.iter().enumerate() {
        for (meta, payload) in [(0, *size), (size / 3, *size), (*size, 0)] {
            let got = receive(&mut far).await;
            assert_eq!((got.header.correlation, got.meta.len(), got.payload.len()), (step as u64, meta, payload));
        }
    }
    sending.await.expect("the sender does not panic");
}

#[tokio::test]
async fn every_size_arrives_over_tcp() {
    every_size_arrives("tcp").await;
}

#[tokio::test]
async fn every_size_arrives_over_shared_memory() {
    every_size_arrives("shm").await;
}

#[tokio::test]
async fn channels_share_the_window_of_their_link() {
    const FRAME: usize = 64 << 10;
    // Bookkeeping fills some of it, and one frame goes beyond.
    const AHEAD: usize = (1 << 20) / FRAME + 1;
    let config = || UcxConfig { receive_window: 1 << 20, ..over("shm") };
    let [near, far] = [(); 2]
        .map(|()| -> Arc<dyn Transport> { Arc::new(bind(config(), Arc::new(NoObserver)).expect("every host has it")) });
    let (near, far) = meet(&near, &far).await;
    let mut channels = Vec::new();
    for _ in 0..8 {
        channels.push(channel(&near, &far).await);
    }
    let mut nobody = Context::from_waker(Waker::noop());
    let mut sent = vec![0; channels.len()];
    for (sent, (near, _)) in sent.iter_mut().zip(&mut channels) {
        let mut next = Some(frame(0, 0, FRAME));
        while let Poll::Ready(done) = near.sender.poll_send(&mut nobody, &mut next) {
            done.expect("the link is up");
            *sent += 1;
            next = Some(frame(0, 0, FRAME));
        }
    }
    let all: usize = sent.iter().sum();
    assert!((AHEAD / 2..=AHEAD).contains(&all), "{sent:?} frames");
    // Each goes on once what is under way is read.
    let reading = channels.into_iter().zip(sent).map(|((mut near, mut far), sent)| async move {
        let sending = async {
            for _ in 0..AHEAD {
                send(&mut near, frame(1, 0, FRAME)).await;
            }
        };
        let receiving = async {
            for _ in 0..sent + AHEAD {
                receive(&mut far).await;
            }
        };
        tokio::join!(sending, receiving);
    });
    futures_util::future::join_all(reading).await;
}

/// The process that is killed: it meets its parent, says one word, and then stays.
#[tokio::test]
#[ignore = "the other tests start it"]
async fn peer() {
    let Ok(address) = env::var(PEER) else { return };
    let address: SocketAddr = address.parse().expect("the parent gives its address");
    let transports = env::var(TRANSPORTS).expect("the parent says which");
    let transport = bind(over(&transports), Arc::new(NoObserver)).expect("every host has it");
    let link = within(transport.connect(address)).await.expect("the parent listens");
    let mut channel = within(link.open()).await.expect("the link is up");
    send(&mut channel, frame(1, 1, 2)).await;
    link.closed().await;
}

/// Ends the process however the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails only where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_peer(address: SocketAddr, transports: &str) -> Killed {
    start_peer_with(address, transports, [])
}

/// The same with more in its environment.
fn start_peer_with<const N: usize>(address: SocketAddr, transports: &str, more: [(&str, &str); N]) -> Killed {
    let mut command = Command::new(env::current_exe().expect("a test is a program"));
    command
        .args(["--ignored", "--exact", "peer"])
        .env(PEER, address.to_string())
        .env(TRANSPORTS, transports)
        .envs(more);
    Killed(command.stdout(Stdio::null()).spawn().expect("a test is a program"))
}

/// Bytes that tell when nobody holds them any more.
struct Watched(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

async fn a_killed_peer_is_noticed(transports: &str) {
    let near = bind(over(transports), Arc::new(NoObserver)).expect("every host has it");
    let mut peer = start_peer(near.local_address(), transports);
    let link: Arc<dyn Link> = within(near.accept()).await.expect("the transport is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    receive(&mut channel).await;

    peer.0.kill().expect("the peer runs");
    peer.0.wait().expect("the peer ends");
    // The announcement of this one may still be taken, but nobody fetches it.
    let released = Arc::new(AtomicBool::new(false));
    let mut big = frame(2, 0, 4);
    big.payload = Bytes::from_owner(Watched(vec![7; 32 << 20], released.clone()));
    big.header.payload_type = PayloadType::F32;
    let sent: Result<(), TransportError> = within(channel.sender.send(big)).await;
    assert!(sent.is_ok() || sent.err().map(|error| error.code()) == Some("ucx_lost"));

    let error = within(link.closed()).await;
    assert_eq!(error.code(), "ucx_lost", "{error}");
    let received: Result<Option<Frame>, TransportError> = within(channel.receiver.receive()).await;
    assert_eq!(received.expect_err("the peer is gone"), error);
    assert_eq!(within(channel.sender.send(frame(3, 3, 4))).await, Err(error));
    within(async {
        while !released.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_killed_peer_is_noticed_over_tcp() {
    a_killed_peer_is_noticed("tcp").await;
}

#[tokio::test]
async fn a_killed_peer_is_noticed_over_shared_memory() {
    a_killed_peer_is_noticed("shm").await;
}

/// UCX takes a peer's shared memory to be laid out as its own is.
#[tokio::test]
async fn the_environment_of_one_host_lays_out_no_shared_memory() {
    let near = bind(over("shm"), Arc::new(NoObserver)).expect("every host has it");
    let other = [("UCX_POSIX_FIFO_ELEM_SIZE", "512"), ("UCX_POSIX_SEG_SIZE", "1k"), ("UCX_POSIX_FIFO_SIZE", "64")];
    let _peer = start_peer_with(near.local_address(), "posix", other);
    let link: Arc<dyn Link> = within(near.accept()).await.expect("the transport is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    assert_eq!(receive(&mut channel).await.header.correlation, 1);
}

/// Seconds of CPU that this thread has taken, which drives what the test binds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a thread has it");
    let ticks = stat.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// A peer that hangs leaves its queue in shared memory full, and what waits for room there waits for good once it is killed.
#[tokio::test]
async fn a_peer_that_dies_with_its_queue_full_costs_no_core() {
    let near = bind(over("shm"), Arc::new(NoObserver)).expect("every host has it");
    let mut peer = start_peer(near.local_address(), "shm");
    let link: Arc<dyn Link> = within(near.accept()).await.expect("the transport is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    receive(&mut channel).await;
    let hung = Command::new("kill").args(["-STOP", &peer.0.id().to_string()]).status();
    assert!(hung.expect("every system has kill").success());
    let mut sent = 0;
    while let Ok(done) = tokio::time::timeout(Duration::from_millis(300), channel.sender.send(frame(2, 0, 4000))).await
    {
        done.expect("nobody has noticed");
        sent += 1;
    }
    assert!(sent > 256, "its queue is full after {sent} frames");
    peer.0.kill().expect("it is there");
    peer.0.wait().expect("it ends");
    link.close("enough");
    drop((channel, link));
    // Others are heard all the same, and nobody spins meanwhile.
    let (began, before) = (std::time::Instant::now(), cpu_s());
    let again = start_peer(near.local_address(), "shm");
    let link: Arc<dyn Link> = within(near.accept()).await.expect("the transport is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    receive(&mut channel).await;
    let nothing = tokio::time::timeout(Duration::from_secs(2), channel.receiver.receive()).await;
    assert!(nothing.is_err(), "it says no more");
    let share = (cpu_s() - before) / began.elapsed().as_secs_f64();
    assert!(share < 0.1, "{share} of a core");
    drop(again);
}
