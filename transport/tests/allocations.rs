//! What a frame costs in memory beyond what QUIC itself takes: allocations on the thread of whoever sends and receives.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, NoObserver, PayloadType};
use bytes::Bytes;
use common::{Rig, channel, meet, within};
use rkyv::util::AlignedVec;
use tokio::runtime::{Builder, Runtime};

/// The system's allocator, which counts what each thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
}

// SAFETY: every call goes on to the system's allocator unchanged; counting touches a thread-local cell only, which allocates
// nothing and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let [calls, bytes] = ASKED.get();
        ASKED.set([calls + 1, bytes + layout.size()]);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, that is, from the system with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Frames before anything is counted: queues have grown, buffers have come back once.
const WARM_UP: usize = 300;
const COUNTED: usize = 200;

/// Frames of `bytes`, behind a meta of so many, there and back between two transports whose sockets others drive; what a round asks
/// the allocator for.
fn cost(rig: impl Rig, [meta, bytes]: [usize; 2]) -> (f64, f64) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
    cost_on(&runtime, rig, [meta, bytes])
}

fn cost_on(runtime: &Runtime, rig: impl Rig, [meta, bytes]: [usize; 2]) -> (f64, f64) {
    runtime.block_on(async {
        let [near, far] = [(); 2].map(|()| rig.bind(Arc::new(NoObserver)));
        let (near_link, far_link) = meet(&near, &far).await;
        let (mut near, mut far) = channel(&near_link, &far_link).await;
        let payload = aligned(bytes);
        let mut next = frame(meta, &payload);
        for _ in 0..WARM_UP {
            next = within(round(&mut near, &mut far, next, &payload)).await;
        }
        let before = ASKED.get();
        for _ in 0..COUNTED {
            next = round(&mut near, &mut far, next, &payload).await;
        }
        let after = ASKED.get();
        let each = |index: usize| (after[index] - before[index]) as f64 / COUNTED as f64;
        (each(0), each(1))
    })
}

/// Sends a frame there and back; what comes back is the next one.
async fn round(near: &mut Channel, far: &mut Channel, next: Frame, payload: &Bytes) -> Frame {
    near.sender.send(next).await.expect("the frame is sent");
    let got = far.receiver.receive().await.expect("the link is up").expect("the peer sends on");
    assert_eq!(got.payload.len(), payload.len());
    far.sender.send(got).await.expect("the frame is sent");
    let back = near.receiver.receive().await.expect("the link is up").expect("the peer sends on");
    assert!(back.payload == *payload && back.payload.as_ptr().addr().is_multiple_of(64));
    Frame { payload: payload.clone(), ..back }
}

fn frame(meta: usize, payload: &Bytes) -> Frame {
    let header = FrameHeader { kind: FrameKind::Response, payload_type: PayloadType::F32, correlation: 0 };
    let mut archived = AlignedVec::with_capacity(meta);
    archived.resize(meta, 7);
    Frame::new(header, archived, payload.clone())
}

fn aligned(bytes: usize) -> Bytes {
    let mut buffer = AlignedVec::<64>::with_capacity(bytes);
    buffer.extend_from_slice(&vec![7; bytes]);
    Bytes::from_owner(buffer)
}

/// A queue that grows once may cost five allocations in a hundred rounds.
const NOTHING: f64 = 0.05;
/// quinn begins its list of what is not acknowledged anew for each frame, of which a round has two.
const OF_QUINN: [f64; 2] = [2.0, 2.0 * 128.0];

#[test]
fn a_frame_within_a_process_costs_nothing_and_is_not_copied() {
    let (calls, _) = cost(common::local(), [200, 16 << 10]);
    assert!(calls <= NOTHING, "{calls} allocations a round");
}

#[test]
fn a_frame_over_quic_arrives_in_memory_that_came_back() {
    for [meta, bytes] in [[0, 4], [200, 4], [0, 16 << 10], [200, 16 << 10], [0, 300 << 10]] {
        let (calls, taken) = cost(common::quic(), [meta, bytes]);
        let [calls_of_quinn, bytes_of_quinn] = OF_QUINN;
        assert!(calls <= calls_of_quinn + NOTHING, "{calls} allocations a round of frames of {bytes} bytes");
        assert!(taken <= 1.1 * bytes_of_quinn, "{taken} bytes a round of frames of {bytes} bytes");
    }
}

/// UCX is driven on the thread that counts, so that arrivals count too; so does what QUIC does beside it, now and then.
#[cfg(feature = "ucx")]
#[test]
fn a_frame_over_ucx_costs_nothing() {
    for (transports, [meta, bytes]) in [
        ("shm", [0, 4]),
        ("shm", [200, 4]),
        ("shm", [200, 16 << 10]),
        ("shm", [200, 300 << 10]),
        ("tcp", [200, 4]),
        ("tcp", [0, 16 << 10]),
        ("tcp", [200, 16 << 10]),
    ] {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let (calls, _) = cost_on(&runtime, common::ucx(transports), [meta, bytes]);
        assert!(calls < 0.5, "{calls} allocations a round of frames of {bytes} bytes over {transports}");
    }
}
