//! Large payloads over several lanes: they arrive whole, in order, and no lane outlives what it is for.

mod common;

use std::{net::SocketAddr, sync::Arc};

use asterism_transport::{
    Channel, Link, Observer, Transport, TransportError,
    quic::{QuicConfig, QuicTransport, Security},
};
use common::{channel, frame, loopback, meet, receive, send, within};
use tokio::sync::watch;

/// Larger than what is spread.
const LARGE: usize = 3 << 20;

/// How many lanes a transport was told of.
#[derive(Default)]
struct Told(watch::Sender<usize>);

impl Observer for Told {
    fn lanes(&self, _: SocketAddr, lanes: usize) {
        self.0.send_replace(lanes);
    }
}

impl Told {
    async fn wait(&self, lanes: usize) {
        within(self.0.subscribe().wait_for(|reported| *reported == lanes)).await.expect("self lives");
    }
}

/// What is taken out of it leaves the transports alive.
struct Pair {
    _transports: [Arc<dyn Transport>; 2],
    links: [Arc<dyn Link>; 2],
    channels: [Channel; 2],
}

/// Two transports with so many lanes, a link with those of them that both have, and a channel.
async fn pair(security: [Security; 2], lanes: [usize; 2]) -> Pair {
    let reported = [(); 2].map(|()| Arc::new(Told::default()));
    let mut transports = security.into_iter().zip(lanes).zip(&reported).map(|((security, lanes), reported)| {
        // Small windows: a part needs many.
        let config = QuicConfig { lanes, receive_window: 1 << 20, ..QuicConfig::new(loopback(), security) };
        Arc::new(QuicTransport::bind(config, reported.clone()).expect("loopback has free ports")) as Arc<dyn Transport>
    });
    let [near, far] = [(); 2].map(|()| transports.next().expect("two"));
    let (near_link, far_link) = meet(&near, &far).await;
    for reported in reported {
        reported.wait(lanes[0].min(lanes[1])).await;
    }
    let (near_end, far_end) = channel(&near_link, &far_link).await;
    Pair { _transports: [near, far], links: [near_link, far_link], channels: [near_end, far_end] }
}

fn insecure() -> [Security; 2] {
    [Security::Insecure, Security::Insecure]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_arrive_whole_and_in_order() {
    let authority = common::authority();
    let security = ["near", "far"].map(|name| common::mutual(&authority, name));
    let pair = pair(security, [2, 3]).await;
    let [mut near, mut far] = pair.channels;
    let sending = tokio::spawn(async move {
        for step in 0..12 {
            // Small ones between them go over the link alone.
            send(&mut near, frame(step, 40, if step % 3 == 1 { 50 } else { LARGE + 2 * step as usize })).await;
        }
        for step in 20..24 {
            assert_eq!(receive(&mut near).await.header.correlation, step);
        }
        near
    });
    for step in 0..12 {
        assert_eq!(receive(&mut far).await.header.correlation, step);
    }
    for step in 20..24 {
        send(&mut far, frame(step, 0, LARGE)).await;
    }
    sending.await.expect("the sender does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_channels_share_the_lanes() {
    let pair = pair(insecure(), [2, 2]).await;
    let [near, far] = pair.links;
    let channels: Vec<_> = futures_util::future::join_all((0..6).map(|_| near.open())).await;
    let sending = tokio::spawn(async move {
        let channels = channels.into_iter().map(|channel| channel.expect("the link is up"));
        futures_util::future::join_all(channels.zip(1..).map(async |(mut channel, number)| {
            for step in 0..4 {
                send(&mut channel, frame(100 * number + step, 0, LARGE)).await;
            }
        }))
        .await;
        near
    });
    futures_util::future::join_all((0..6).map(async |_| {
        let mut channel = within(far.accept()).await.expect("the link is up");
        let first = receive(&mut channel).await.header.correlation;
        for step in 1..4 {
            assert_eq!(receive(&mut channel).await.header.correlation, first + step);
        }
    }))
    .await;
    sending.await.expect("the sender does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_half_is_told_and_the_lanes_go_on() {
    let pair = pair(insecure(), [2, 2]).await;
    let ([near, far], [mut sender, receiver]) = (pair.links, pair.channels);
    drop(receiver.receiver);
    let error = loop {
        if let Err(error) = within(sender.sender.send(frame(1, 0, LARGE))).await {
            break error;
        }
    };
    assert!(matches!(error, TransportError::ChannelClosed { .. }), "{error}");
    let (mut other, mut end) = channel(&near, &far).await;
    let sending = tokio::spawn(async move { send(&mut other, frame(2, 0, LARGE)).await });
    assert_eq!(receive(&mut end).await.payload.len(), LARGE);
    sending.await.expect("the sender does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_closes_with_its_lanes_and_says_why() {
    let pair = pair(insecure(), [3, 3]).await;
    let ([near, far], [mut sender, mut receiver]) = (pair.links, pair.channels);
    let waiting = tokio::spawn(async move {
        // Never all of it comes.
        while receiver.receiver.receive().await.is_ok() {}
        receiver.receiver.receive().await.expect_err("the link is closed")
    });
    let sent = tokio::spawn(async move { while sender.sender.send(frame(1, 0, LARGE)).await.is_ok() {} });
    near.close("enough");
    for error in [within(far.closed()).await, within(waiting).await.expect("it does not panic")] {
        assert!(error.to_string().contains("enough"), "{error}");
    }
    within(sent).await.expect("it does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_lanes_gets_whole_frames() {
    let pair = pair(insecure(), [2, 0]).await;
    let [mut near, mut far] = pair.channels;
    let sending = tokio::spawn(async move { send(&mut near, frame(3, 9, LARGE)).await });
    assert_eq!(receive(&mut far).await.header.correlation, 3);
    sending.await.expect("the sender does not panic");
}
