//! What the simulated network does to frames, channels and links, and that its seed decides it. Clocks are paused.

mod common;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use asterism_transport::{
    Link, NoObserver, Transport, TransportError,
    sim::{Fault, FaultKind, Faults, SimConfig, SimNetwork},
};
use common::{Counts, Rig, Sim, channel, frame, meet, receive, send, within};
use futures_util::FutureExt;
use tokio::time::Instant;

const IDLE: Duration = Duration::from_secs(2);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Two transports of a network, and a link from the first to the second.
struct World {
    network: SimNetwork,
    near: Arc<dyn Transport>,
    far: Arc<dyn Transport>,
    near_link: Arc<dyn Link>,
    far_link: Arc<dyn Link>,
    far_counts: Arc<Counts>,
}

impl World {
    async fn new(seed: u64, faults: Faults) -> Self {
        let network = SimNetwork::new(SimConfig { idle_timeout: IDLE, ..SimConfig::new(seed) });
        let rig = Sim(network.clone());
        let far_counts = Arc::new(Counts::default());
        let (near, far) = (rig.bind(Arc::new(NoObserver)), rig.bind(far_counts.clone()));
        let (near_link, far_link) = meet(&near, &far).await;
        network.set_faults(faults);
        Self { network, near, far, near_link, far_link, far_counts }
    }

    fn ends(&self) -> ([SocketAddr; 1], [SocketAddr; 1]) {
        ([self.near.local_address()], [self.far.local_address()])
    }

    fn partition(&self) {
        let (near, far) = self.ends();
        self.network.partition(&near, &far);
    }

    fn heal(&self) {
        let (near, far) = self.ends();
        self.network.heal(&near, &far);
    }
}

/// What arrives over three channels, with its time, and what went wrong on the way.
async fn journal(seed: u64, faults: Faults) -> (Vec<(u64, Duration)>, Vec<Fault>) {
    let world = World::new(seed, Faults::default()).await;
    let mut channels = Vec::new();
    for _ in 0..3 {
        channels.push(channel(&world.near_link, &world.far_link).await);
    }
    world.network.set_faults(faults);
    let start = Instant::now();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    for (index, (mut near, mut far)) in channels.into_iter().enumerate() {
        let arrived = arrived.clone();
        tokio::spawn(async move {
            for step in 0..50 {
                send(&mut near, frame(100 * index as u64 + step, 4, 8)).await;
            }
            near
        });
        tokio::spawn(async move {
            for step in 0..50 {
                let frame = receive(&mut far).await;
                assert_eq!(frame.header.correlation, 100 * index as u64 + step, "each channel keeps its order");
                arrived.send((frame.header.correlation, start.elapsed())).expect("the test waits");
            }
        });
    }
    drop(arrived);
    let mut journal = Vec::new();
    while let Some(arrival) = within(arrivals.recv()).await {
        journal.push(arrival);
    }
    assert_eq!(journal.len(), 150, "nothing is lost, and nothing comes twice");
    (journal, world.network.faults())
}

fn rough() -> Faults {
    Faults {
        delay: ms(1)..=ms(9),
        drop: 0.2,
        retransmit_after: ms(20),
        duplicate: 0.2,
        reorder: 0.2,
        reorder_by: ms(30),
        ..Faults::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_seed_repeats_its_faults_and_its_times() {
    let (mut first, faults) = journal(7, rough()).await;
    for kind in [FaultKind::Dropped, FaultKind::Duplicated, FaultKind::Reordered] {
        assert!(faults.iter().filter(|fault| fault.kind == kind).count() > 10, "{kind:?}");
    }
    let (mut again, faults_again) = journal(7, rough()).await;
    assert_eq!(faults, faults_again);
    assert!(!first.is_sorted(), "channels overtake each other");
    first.sort();
    again.sort();
    assert_eq!(first, again);
    let (_, others) = journal(8, rough()).await;
    assert_ne!(faults, others);
}

#[tokio::test(start_paused = true)]
async fn a_lost_packet_is_a_late_frame() {
    let faults = Faults { drop: 1.0, retransmit_after: ms(10), ..Faults::default() };
    let (journal, _) = journal(1, faults).await;
    // Six losses in a row are the most: 10 ms, then twice as long each time.
    assert!(journal.iter().all(|(_, at)| *at >= ms(630)), "{journal:?}");
}

#[tokio::test(start_paused = true)]
async fn delays_lie_in_their_range_and_do_not_add_up() {
    let (journal, faults) = journal(1, Faults { delay: ms(10)..=ms(20), ..Faults::default() }).await;
    assert!(faults.is_empty());
    assert!(journal.iter().all(|(_, at)| (ms(10)..ms(120)).contains(at)), "{journal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_frame_ends_its_channel_only() {
    let world = World::new(1, Faults::default()).await;
    let (mut near, mut far) = channel(&world.near_link, &world.far_link).await;
    let (near_address, far_address) = (world.near.local_address(), world.far.local_address());
    world.network.set_faults_between(near_address, far_address, Some(Faults { corrupt: 1.0, ..Faults::default() }));
    // Some bits stay unnoticed by the decoder; those are repeated and come whole.
    let error = loop {
        if let Err(error) = within(near.sender.send(frame(1, 20, 8))).await {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error, TransportError::ChannelClosed { peer: far_address });
    for _ in 0..2 {
        let error = loop {
            if let Err(error) = within(far.receiver.receive()).await {
                break error;
            }
        };
        assert!(matches!(error, TransportError::Frame(_)), "{error:?}");
    }
    world.far_counts.wait_for_rejections("frame", 1).await;
    assert_eq!(world.network.faults().iter().filter(|fault| fault.kind == FaultKind::Refused).count(), 1);
    world.network.set_faults_between(near_address, far_address, None);
    channel(&world.near_link, &world.far_link).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_ends_the_link_on_both_sides_and_another_can_be_made() {
    let world = World::new(1, Faults::default()).await;
    let (mut near, mut far) = channel(&world.near_link, &world.far_link).await;
    world.network.cut(world.near.local_address(), world.far.local_address());
    for (link, peer) in [(&world.near_link, &world.far), (&world.far_link, &world.near)] {
        let cut = TransportError::Closed { peer: peer.local_address(), reason: "the link was cut".into() };
        assert_eq!(within(link.closed()).await, cut);
    }
    assert_eq!(within(near.sender.send(frame(1, 1, 2))).await.expect_err("the link is gone").code(), "closed");
    assert_eq!(within(far.receiver.receive()).await.expect_err("the link is gone").code(), "closed");

    let (near_link, far_link) = meet(&world.near, &world.far).await;
    world.network.set_faults(Faults { cut: 1.0, ..Faults::default() });
    let mut opened = within(near_link.open()).await.expect("the link is up");
    send(&mut opened, frame(1, 1, 2)).await;
    assert_eq!(within(far_link.closed()).await.code(), "closed");
    assert_eq!(world.network.faults().last().map(|fault| (fault.kind, fault.link)), Some((FaultKind::Cut, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_silent_until_both_sides_give_up() {
    let world = World::new(1, Faults::default()).await;
    let (mut near, mut far) = channel(&world.near_link, &world.far_link).await;
    let start = Instant::now();
    world.partition();
    send(&mut near, frame(1, 1, 2)).await;
    assert!(tokio::time::timeout(IDLE - ms(10), far.receiver.receive()).await.is_err(), "nothing comes through");
    for (link, peer) in [(&world.near_link, &world.far), (&world.far_link, &world.near)] {
        assert_eq!(within(link.closed()).await, TransportError::TimedOut { peer: peer.local_address() });
    }
    assert_eq!(start.elapsed(), IDLE);
    assert_eq!(within(far.receiver.receive()).await.expect_err("the link is gone").code(), "timed_out");

    let error = world.near.connect(world.far.local_address()).await.err().expect("nobody hears");
    let cause = "no answer within 5s".into();
    assert_eq!(error, TransportError::Unreachable { address: world.far.local_address(), cause });
    world.heal();
    assert_eq!(within(world.near_link.closed()).await.code(), "timed_out", "a dead link stays dead");
    let (near_link, far_link) = meet(&world.near, &world.far).await;
    channel(&near_link, &far_link).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_partition_only_delays() {
    let world = World::new(1, Faults::default()).await;
    let (mut near, mut far) = channel(&world.near_link, &world.far_link).await;
    for _ in 0..3 {
        world.partition();
        let start = Instant::now();
        for step in 0..5 {
            send(&mut near, frame(step, 1, 2)).await;
        }
        let connecting = world.near.connect(world.far.local_address());
        let (mut connecting, mut receiving) = (connecting, far.receiver.receive());
        assert!(tokio::time::timeout(IDLE - ms(1), &mut connecting).await.is_err());
        assert!((&mut receiving).now_or_never().is_none());
        world.network.heal_all();
        assert!(within(receiving).await.is_ok());
        within(connecting).await.expect("the silence is over");
        within(world.far.accept()).await.expect("the transport is open");
        for step in 1..5 {
            assert_eq!(receive(&mut far).await.header.correlation, step);
        }
        assert_eq!(start.elapsed(), IDLE - ms(1));
    }
    assert!(world.near_link.closed().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_close_is_not_heard_across_a_partition() {
    let world = World::new(1, Faults::default()).await;
    let (near, mut far) = channel(&world.near_link, &world.far_link).await;
    let (second, second_far) = meet(&world.near, &world.far).await;
    let (_, mut second_channel) = channel(&second, &second_far).await;
    world.partition();
    world.near_link.close("enough");
    drop((near, second));
    assert_eq!(within(world.near_link.closed()).await.code(), "closed");
    for receiving in [far.receiver.receive(), second_channel.receiver.receive()] {
        assert!(tokio::time::timeout(ms(10), receiving).await.is_err(), "the far side hears nothing");
    }
    assert!(tokio::time::timeout(ms(10), world.far_link.open()).await.is_ok(), "the far side thinks it is up");
    world.heal();
    let printed = |reason: &str| TransportError::Closed { peer: world.near.local_address(), reason: reason.into() };
    assert_eq!(within(world.far_link.closed()).await, printed("enough"));
    assert_eq!(within(second_far.closed()).await, printed("the peer dropped the link"));

    let (_near_link, far_link) = meet(&world.near, &world.far).await;
    world.partition();
    world.near.close();
    assert_eq!(within(far_link.closed()).await.code(), "timed_out");
}

#[tokio::test(start_paused = true)]
async fn faults_between_two_spare_the_others() {
    let world = World::new(1, Faults::default()).await;
    let third = Sim(world.network.clone()).bind(Arc::new(NoObserver));
    let (third_link, far_link) = meet(&third, &world.far).await;
    let faults = Faults { delay: ms(50)..=ms(50), ..Faults::default() };
    world.network.set_faults_between(world.far.local_address(), world.near.local_address(), Some(faults));
    world.network.partition(&[world.near.local_address()], &[third.local_address()]);
    let mut all = [&world.near, &world.far, &third].map(|transport| transport.local_address());
    all.sort();
    assert_eq!(world.network.addresses(), all);
    let start = Instant::now();
    channel(&third_link, &far_link).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    channel(&world.near_link, &world.far_link).await;
    assert_eq!(start.elapsed(), ms(50));
}

#[tokio::test(start_paused = true)]
async fn a_link_that_one_side_gave_up_brings_the_other_what_was_under_way() {
    let world = World::new(7, Faults::default()).await;
    let (mut here, mut there) = channel(&world.near_link, &world.far_link).await;
    world.network.set_faults(Faults { delay: ms(500)..=ms(500), ..Faults::default() });
    let began = Instant::now();
    send(&mut here, frame(1, 0, 0)).await;
    let ([near], [far]) = world.ends();
    world.network.half_close(near, far, ms(1500));
    assert!(matches!(world.near_link.closed().await, TransportError::TimedOut { .. }));
    drop(here);
    world.near_link.close("it is over here");
    assert_eq!((receive(&mut there).await.header.correlation, began.elapsed()), (1, ms(500)));
    assert!(world.far_link.closed().now_or_never().is_none(), "it has heard of no end");
    assert!(matches!(world.far_link.closed().await, TransportError::TimedOut { .. }));
    assert_eq!(began.elapsed(), ms(1500));
}
