//! What a frame hands over: it reaches a peer of the same process as it is, and leaves no process.

mod common;

use std::sync::{Arc, atomic::AtomicUsize};

use asterism_transport::{FrameError, LocalValue};
use common::{Rig, channel, frame, pair, receive, send, within};

#[tokio::test]
async fn local() {
    hands_over_within_a_process(common::local(), true).await;
}

#[tokio::test]
async fn sim() {
    hands_over_within_a_process(common::sim(), true).await;
}

#[tokio::test]
async fn quic() {
    hands_over_within_a_process(common::quic(), false).await;
}

#[cfg(feature = "ucx")]
#[tokio::test]
async fn ucx() {
    hands_over_within_a_process(common::ucx("shm"), false).await;
}

async fn hands_over_within_a_process(rig: impl Rig, hands_over: bool) {
    let pair = pair(&rig).await;
    let (mut near, mut far) = channel(&pair.near_link, &pair.far_link).await;
    let value = Arc::new(AtomicUsize::new(7));
    let sent = within(near.sender.send(frame(1, 9, 8).handing(LocalValue::new(value.clone())))).await;
    assert_eq!(near.sender.hands_over(), hands_over);
    if hands_over {
        sent.expect("it is in this process");
        let handed = receive(&mut far).await.handed.expect("it came along");
        assert!(handed.get::<usize>().is_none());
        assert!(Arc::ptr_eq(&*handed.get::<Arc<AtomicUsize>>().expect("of this type"), &value));
    } else {
        assert_eq!(sent.expect_err("it cannot leave its process"), FrameError::Handed.into());
    }
    send(&mut near, frame(9, 9, 8)).await;
    let next = receive(&mut far).await;
    assert_eq!((next.header.correlation, next.handed.is_some()), (9, false), "the channel goes on");
}
