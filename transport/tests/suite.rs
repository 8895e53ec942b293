//! What every transport must do, run over each of them. What only QUIC can do wrong is in `quic.rs`.

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use asterism_transport::{Frame, FrameError, MAX_PAYLOAD_BYTES, PayloadType, TransportError};
use bytes::Bytes;
use common::{Counts, Rig, channel, check, frame, meet, pair, receive, send, within};
use futures_util::{FutureExt, future::join_all};

macro_rules! suite {
    ($($transport:ident => $rig:expr;)*) => { $(suite!(@ $transport, $rig,
        keeps_order, answers_both_ways, carries_many_channels, carries_big_payloads, aligns_payloads, carries_many_links,
        connects_both_ways, names_its_peer, says_why_it_closed, closes_all_links, ends_a_half_in_order,
        reports_a_dropped_half, reports_a_dropped_link, reports_a_vanished_peer, refuses_frames_over_the_limit,
        holds_back_a_fast_sender, survives_dropped_futures, counts_bytes, reports_nobody_there, opens_nothing_when_closed,
    );)* };
    (@ $transport:ident, $rig:expr, $($test:ident,)*) => {
        mod $transport { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($rig).await;
            }
        )* }
    };
}

suite! {
    local => crate::common::local();
    sim => crate::common::sim();
    sim_delayed => crate::common::sim_delayed();
    quic => crate::common::quic();
    quic_insecure => crate::common::quic_insecure();
}

#[cfg(feature = "ucx")]
suite! {
    ucx_tcp => crate::common::ucx("tcp");
    ucx_shm => crate::common::ucx("shm");
    ucx => crate::common::ucx("shm,tcp");
}

async fn keeps_order(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    let sending = tokio::spawn(async move {
        for step in 0..500 {
            send(&mut near, frame(step, step as usize % 100, step as usize % 3 * 1000)).await;
        }
        near
    });
    for step in 0..500 {
        assert_eq!(receive(&mut far).await.header.correlation, step);
    }
    sending.await.expect("the sender does not panic");
}

async fn answers_both_ways(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    for step in 0..100 {
        send(&mut near, frame(step, 24, 4096)).await;
        assert_eq!(receive(&mut far).await.header.correlation, step);
        send(&mut far, frame(step + 1000, 40, 2048)).await;
        assert_eq!(receive(&mut near).await.header.correlation, step + 1000);
    }
}

async fn carries_many_channels(rig: impl Rig) {
    const CHANNELS: u64 = 64;
    let pair = pair(&rig).await;
    let echo = tokio::spawn(async move {
        join_all((0..CHANNELS).map(|_| async {
            let mut channel = within(pair.far_link.accept()).await.expect("the link is up");
            while let Some(frame) = within(channel.receiver.receive()).await.expect("the link is up") {
                send(&mut channel, frame).await;
            }
        }))
        .await;
        pair.far_link
    });
    join_all((0..CHANNELS).map(|index| {
        let link = pair.near_link.clone();
        async move {
            let mut channel = within(link.open()).await.expect("the link is up");
            for step in 0..20 {
                send(&mut channel, frame(index * 100 + step, 8, 500)).await;
                assert_eq!(receive(&mut channel).await.header.correlation, index * 100 + step);
            }
            drop(channel.sender);
            assert!(within(channel.receiver.receive()).await.expect("the link is up").is_none());
        }
    }))
    .await;
    echo.await.expect("the echo does not panic");
}

async fn carries_big_payloads(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    let sending = tokio::spawn(async move {
        send(&mut near, frame(1, 3, 8 << 20)).await;
        send(&mut near, frame(2, 1 << 20, 0)).await;
        near
    });
    assert_eq!(receive(&mut far).await.payload.len(), 8 << 20);
    assert_eq!(receive(&mut far).await.meta.len(), 1 << 20);
    sending.await.expect("the sender does not panic");
}

async fn aligns_payloads(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    for (step, meta) in (0..130).step_by(13).enumerate() {
        let mut sent = frame(step as u64, meta, 514);
        // A payload cut out of a larger buffer starts anywhere.
        let mut buffer = vec![0; step];
        buffer.extend_from_slice(&sent.payload);
        sent.payload = Bytes::from(buffer).slice(step..);
        send(&mut near, sent).await;
        check(&receive(&mut far).await);
    }
}

async fn carries_many_links(rig: impl Rig) {
    const LINKS: u64 = 8;
    let hub = rig.bind(Arc::new(Counts::default()));
    let spokes: Vec<_> = (0..LINKS).map(|_| rig.bind(Arc::new(Counts::default()))).collect();
    let accepting = tokio::spawn({
        let hub = hub.clone();
        async move {
            let mut links = HashMap::new();
            for _ in 0..LINKS {
                let link = within(hub.accept()).await.expect("the hub is open");
                let mut channel = within(link.accept()).await.expect("the link is up");
                let first = receive(&mut channel).await;
                send(&mut channel, first).await;
                links.insert(link.peer_address(), (link, channel));
            }
            links
        }
    });
    let far = join_all(spokes.iter().enumerate().map(|(index, spoke)| {
        let address = hub.local_address();
        async move {
            let link = within(spoke.connect(address)).await.expect("the hub listens");
            let mut channel = within(link.open()).await.expect("the link is up");
            send(&mut channel, frame(index as u64, 9, 998)).await;
            assert_eq!(receive(&mut channel).await.header.correlation, index as u64);
            link
        }
    }))
    .await;
    let links = accepting.await.expect("the hub does not panic");
    assert_eq!((far.len(), links.len()), (LINKS as usize, LINKS as usize));
    assert!(
        spokes.iter().all(|spoke| links.contains_key(&spoke.local_address())),
        "a peer's address is where it listens"
    );
}

async fn connects_both_ways(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (back, forth) = meet(&pair.far, &pair.near).await;
    let (mut near, mut far) = channel(&back, &forth).await;
    send(&mut near, frame(4, 4, 4)).await;
    assert_eq!(receive(&mut far).await.header.correlation, 4);
    assert_eq!(back.peer_address(), pair.near.local_address());
}

async fn names_its_peer(rig: impl Rig) {
    let pair = pair(&rig).await;
    assert_eq!(pair.near_link.peer().map(|member| member.name.as_str()), rig.name());
    assert_eq!(pair.far_link.peer().map(|member| member.name.as_str()), rig.name());
}

async fn says_why_it_closed(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    pair.near_link.close("drained for maintenance");
    pair.near_link.close("a second reason is not heard");
    for (link, peer) in [(&pair.near_link, &pair.far), (&pair.far_link, &pair.near)] {
        let closed = TransportError::Closed { peer: peer.local_address(), reason: "drained for maintenance".into() };
        assert_eq!(within(link.closed()).await, closed);
        assert_eq!(within(link.open()).await.err(), Some(closed.clone()));
        assert_eq!(within(link.accept()).await.err(), Some(closed));
    }
    for channel in [&mut near, &mut far] {
        assert_eq!(within(channel.receiver.receive()).await.expect_err("the link is closed").code(), "closed");
        assert_eq!(within(channel.sender.send(frame(1, 1, 2))).await.expect_err("the link is closed").code(), "closed");
    }
}

async fn closes_all_links(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (back, forth) = meet(&pair.far, &pair.near).await;
    pair.near.close();
    for link in [&pair.near_link, &pair.far_link, &back, &forth] {
        let error = within(link.closed()).await;
        assert!(error.to_string().contains("the transport was closed"), "{error}");
    }
    assert!(within(pair.near.accept()).await.is_none());
    within(pair.near.drained()).await;
}

async fn ends_a_half_in_order(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    send(&mut near, frame(5, 5, 4096)).await;
    drop(near.sender);
    assert_eq!(receive(&mut far).await.header.correlation, 5);
    for _ in 0..2 {
        assert!(within(far.receiver.receive()).await.expect("the link is up").is_none());
    }
    send(&mut far, frame(6, 6, 6)).await;
    let answer = within(near.receiver.receive()).await.expect("the link is up").expect("the other half goes on");
    assert_eq!(answer.header.correlation, 6);

    let unused = within(pair.near_link.open()).await.expect("the link is up");
    drop(unused);
    let mut accepted = within(pair.far_link.accept()).await.expect("the link is up");
    assert!(within(accepted.receiver.receive()).await.expect("the link is up").is_none());
}

async fn reports_a_dropped_half(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, far) = channel(&pair.near_link, &pair.far_link).await;
    drop(far.receiver);
    let error = loop {
        if let Err(error) = within(near.sender.send(frame(1, 1, 2))).await {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error, TransportError::ChannelClosed { peer: pair.far.local_address() });
    channel(&pair.near_link, &pair.far_link).await;
}

async fn reports_a_dropped_link(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    drop(pair.near_link);
    let mut near = near;
    send(&mut near, frame(2, 2, 2)).await;
    assert_eq!(receive(&mut far).await.header.correlation, 2, "a channel keeps its link");
    drop(near);
    assert_eq!(within(pair.far_link.closed()).await.code(), "closed");
}

async fn reports_a_vanished_peer(mut rig: impl Rig) {
    let code = rig.give_up_soon();
    let rig = Arc::new(rig);
    let near = rig.bind(Arc::new(Counts::default()));
    let address = near.local_address();
    let (vanish, vanishing) = tokio::sync::oneshot::channel::<()>();
    // A runtime that is no longer driven falls silent as a lost machine does.
    let peer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async {
            let far = rig.bind(Arc::new(Counts::default()));
            let link = within(far.connect(address)).await.expect("the peer listens");
            let mut channel = within(link.open()).await.expect("the link is up");
            send(&mut channel, frame(1, 1, 2)).await;
            vanishing.await.expect("the test goes on");
            // Within one process nothing but this can take a peer away before its channels.
            drop(far);
        });
    });
    let link = within(near.accept()).await.expect("the transport is open");
    let mut channel = within(link.accept()).await.expect("the link is up");
    receive(&mut channel).await;
    vanish.send(()).expect("the peer waits");
    assert_eq!(within(channel.receiver.receive()).await.expect_err("the peer is gone").code(), code);
    assert_eq!(within(link.closed()).await.code(), code);
    assert_eq!(within(channel.sender.send(frame(2, 2, 2))).await.expect_err("the peer is gone").code(), code);
    assert_eq!(within(link.open()).await.err().map(|error| error.code()), Some(code));
    peer.join().expect("the peer does not panic");
}

async fn refuses_frames_over_the_limit(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    let mut big = frame(1, 0, 4);
    big.payload = Bytes::from(vec![0; MAX_PAYLOAD_BYTES + 2]);
    let error = within(near.sender.send(big)).await.expect_err("the payload is too large");
    let got = MAX_PAYLOAD_BYTES as u64 + 2;
    assert_eq!(error, FrameError::TooLarge { part: "payload", got, max: MAX_PAYLOAD_BYTES }.into());

    let mut odd = frame(1, 0, 6);
    odd.header.payload_type = PayloadType::F32;
    let error = within(near.sender.send(odd)).await.expect_err("the type is wrong");
    assert_eq!(error, FrameError::PayloadLength { payload_type: PayloadType::F32, got: 6 }.into());

    send(&mut near, frame(9, 9, 8)).await;
    assert_eq!(receive(&mut far).await.header.correlation, 9, "the channel goes on after a refusal");
}

async fn holds_back_a_fast_sender(rig: impl Rig) {
    const FRAMES: u64 = 200;
    const AHEAD: usize = 64;
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let sending = tokio::spawn({
        let sent = sent.clone();
        async move {
            for step in 0..FRAMES {
                send(&mut near, frame(step, 0, 64 << 10)).await;
                sent.fetch_add(1, Ordering::Relaxed);
            }
            near
        }
    });
    for received in 0..FRAMES as usize {
        assert!(sent.load(Ordering::Relaxed) <= received + AHEAD);
        receive(&mut far).await;
    }
    sending.await.expect("the sender does not panic");
}

async fn survives_dropped_futures(rig: impl Rig) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    // Polled once and dropped while the peer reads nothing: some of these are sent, some half, some not at all.
    let mut dropped = 0;
    for step in 0..40 {
        let sending = near.sender.send(frame(step, 7, 100_000));
        dropped += usize::from(sending.now_or_never().is_none());
    }
    assert!(dropped > 0, "the queue fills");
    let sending = tokio::spawn(async move {
        send(&mut near, frame(1000, 7, 100_000)).await;
        near
    });
    let mut last = None;
    loop {
        // Dropped while waiting: nothing is lost.
        let _ = far.receiver.receive().now_or_never().map(|frame| {
            last = frame.expect("the link is up").map(|frame: Frame| frame.header.correlation);
        });
        if last == Some(1000) {
            break;
        }
        let step = receive(&mut far).await.header.correlation;
        assert!(last.is_none_or(|last| last < step));
        last = Some(step);
        if step == 1000 {
            break;
        }
    }
    sending.await.expect("the sender does not panic");
}

async fn counts_bytes(rig: impl Rig) {
    let counts = [Arc::new(Counts::default()), Arc::new(Counts::default())];
    let [near, far] = [rig.bind(counts[0].clone()), rig.bind(counts[1].clone())];
    let (near_link, far_link) = meet(&near, &far).await;
    let (mut near, mut far) = channel(&near_link, &far_link).await;
    let start = counts[0].bytes()[0];
    let sizes = [frame(1, 0, 0).wire_bytes(), frame(2, 5, 10).wire_bytes()];
    assert_eq!(sizes, [40, 74]);
    send(&mut near, frame(1, 0, 0)).await;
    send(&mut near, frame(2, 5, 10)).await;
    receive(&mut far).await;
    receive(&mut far).await;
    send(&mut far, frame(3, 64, 0)).await;
    receive(&mut near).await;
    assert_eq!(counts[0].bytes(), [start + 114, 104]);
    assert_eq!(counts[1].bytes(), [104, start + 114]);
    assert_eq!(counts[0].rejections() + counts[1].rejections(), 0);
}

async fn reports_nobody_there(mut rig: impl Rig) {
    rig.give_up_soon();
    let near = rig.bind(Arc::new(Counts::default()));
    // Bound by nobody: port 9 discards, and is not served here.
    let address = "127.0.0.1:9".parse().expect("the literal is an address");
    let error = within(near.connect(address)).await.err().expect("nobody listens");
    assert_eq!(error.code(), "unreachable");
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
}

async fn opens_nothing_when_closed(rig: impl Rig) {
    let pair = pair(&rig).await;
    pair.near.close();
    let error = within(pair.near.connect(pair.far.local_address())).await.err();
    assert_eq!(error, Some(TransportError::TransportClosed));
}
