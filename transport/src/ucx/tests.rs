//! What a peer may send that knows the token, or does not: each message is refused for what it is, and costs little.

use std::collections::HashMap;

use bytes::Bytes;
use rkyv::util::AlignedVec;

use super::{
    message::{Header, Kind, Message, Token},
    *,
};
use crate::{
    Frame, FrameHeader, FrameKind, NoObserver, PayloadType,
    codec::{self, HEADER_BYTES},
    quic::{QuicConfig, Security},
    sim::Draw,
};

/// Far beyond what anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("the event comes before the deadline")
}

#[derive(Default)]
struct Counts(Mutex<HashMap<&'static str, usize>>);

impl Counts {
    fn of(&self, reason: &'static str) -> usize {
        lock(&self.0).get(reason).copied().unwrap_or(0)
    }
}

impl Observer for Counts {
    fn rejected(&self, reason: &'static str) {
        *lock(&self.0).entry(reason).or_default() += 1;
    }
}

fn bind(observer: Arc<dyn Observer>) -> UcxTransport {
    let listen = "127.0.0.1:0".parse().expect("the literal is an address");
    let quic = QuicTransport::bind(QuicConfig::new(listen, Security::Insecure), Arc::new(NoObserver));
    let config = UcxConfig { transports: Some("shm".into()), connect_timeout: DEADLINE, ..UcxConfig::default() };
    UcxTransport::bind(config, Arc::new(quic.expect("a port is free")), observer).expect("every host has shared memory")
}

/// Two transports that have met, and what the far one counts.
struct Pair {
    near: UcxTransport,
    far: UcxTransport,
    near_link: Arc<dyn Link>,
    far_link: Arc<dyn Link>,
    counts: Arc<Counts>,
}

async fn pair() -> Pair {
    let counts = Arc::new(Counts::default());
    let (near, far) = (bind(Arc::new(NoObserver)), bind(counts.clone()));
    let (near_link, far_link) = within(async { tokio::join!(near.connect(far.local_address()), far.accept()) }).await;
    let (near_link, far_link) = (near_link.expect("the peer listens"), far_link.expect("the transport is open"));
    Pair { near, far, near_link, far_link, counts }
}

/// The only link of a transport, as it is addressed.
fn only(transport: &UcxTransport) -> (Arc<Core>, Addressee) {
    let links = lock(&transport.shared.table.links);
    let (link, entry) = links.iter().next().expect("there is a link");
    (entry.core.upgrade().expect("it is held"), Addressee { token: entry.token, link: *link })
}

fn frame(payload: usize) -> Frame {
    let header = FrameHeader {
        kind: FrameKind::Query,
        job: 7,
        shard_set: 0,
        layer: 0,
        step: 0,
        rows: 1,
        payload_type: if payload == 0 { PayloadType::None } else { PayloadType::Bf16 },
    };
    Frame::new(header, AlignedVec::new(), vec![1; payload].into())
}

fn first_bytes(frame: &Frame) -> [u8; HEADER_BYTES] {
    codec::encode_header(&frame.header, frame.meta.len(), frame.payload.len())
}

/// One frame goes from a new channel of the near side to the far one's reader.
async fn works(pair: &Pair) {
    let mut near = within(pair.near_link.open()).await.expect("the link is up");
    within(near.sender.send(frame(64))).await.expect("the link is up");
    let mut far = within(pair.far_link.accept()).await.expect("the link is up");
    let got = within(far.receiver.receive()).await.expect("the link is up").expect("the peer sends");
    assert_eq!(got.payload.len(), 64);
}

impl Pair {
    /// Sends what no sender would; `own` numbers count from where no channel of the near side is.
    fn send(&self, kind: Kind, [channel, number]: [u64; 2], frame: Option<&[u8; HEADER_BYTES]>, body: &[u8]) {
        let (core, _) = only(&self.near);
        let header = Header::new(&core.met.theirs, Message { kind, channel, number }, frame);
        core.met.endpoint.send(header, AlignedVec::new(), Bytes::copy_from_slice(body));
    }

    /// Why the far side ends the link.
    async fn end(&self) -> String {
        let error = within(self.far_link.closed()).await;
        assert_eq!(error.code(), "ucx_lost", "{error}");
        let told = within(self.near_link.closed()).await;
        assert_eq!(told.code(), "ucx_lost", "the near side is told: {told}");
        assert_eq!(self.counts.of("frame"), 1);
        error.to_string()
    }
}

#[tokio::test]
async fn a_message_without_the_token_reaches_nobody() {
    let pair = pair().await;
    let (core, _) = only(&pair.near);
    let theirs = core.met.theirs;
    let mut token: Token = theirs.token;
    token[15] ^= 1;
    let strangers = [Addressee { token, ..theirs }, Addressee { link: theirs.link ^ 1, ..theirs }];
    for to in strangers {
        let said = frame(4);
        let message = Message { kind: Kind::Frame, channel: 0, number: 0 };
        let header = Header::new(&to, message, Some(&first_bytes(&said)));
        core.met.endpoint.send(header, AlignedVec::new(), said.payload);
    }
    works(&pair).await;
    assert_eq!(pair.counts.of("ucx_token"), 2);
}

#[tokio::test]
async fn what_is_no_frame_ends_its_channel_only() {
    let pair = pair().await;
    let good = first_bytes(&frame(8));
    let mut magic = good;
    magic[0] = b'H';
    let mut large = good;
    large[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    for (turn, (header, body, code)) in [
        (magic, 8, "frame_magic"),
        (large, 8, "frame_too_large"),
        (good, 6, "frame_truncated"),
        (good, 9 << 20, "frame_truncated"),
    ]
    .into_iter()
    .enumerate()
    {
        pair.send(Kind::Frame, [100 + 2 * turn as u64, 0], Some(&header), &vec![0; body]);
        let mut refused = within(pair.far_link.accept()).await.expect("the link is up");
        for _ in 0..2 {
            let error = within(refused.receiver.receive()).await.expect_err("that was no frame");
            assert_eq!(error.code(), code);
        }
    }
    works(&pair).await;
    assert_eq!(pair.counts.of("frame"), 4);
}

#[tokio::test]
async fn a_frame_sent_twice_ends_the_link() {
    let pair = pair().await;
    let header = first_bytes(&frame(8));
    pair.send(Kind::Frame, [100, 0], Some(&header), &[0; 8]);
    pair.send(Kind::Frame, [100, 0], Some(&header), &[0; 8]);
    let error = pair.end().await;
    assert!(error.contains("the peer has sent a frame twice"), "{error}");
}

#[tokio::test]
async fn credit_for_what_was_never_sent_ends_the_link() {
    let pair = pair().await;
    let mut far = within(pair.far_link.open()).await.expect("the link is up");
    within(far.sender.send(frame(64))).await.expect("the link is up");
    let mut near = within(pair.near_link.accept()).await.expect("the link is up");
    within(near.receiver.receive()).await.expect("the link is up");
    pair.send(Kind::Credit, [1, 1 << 40], None, &[]);
    let error = pair.end().await;
    assert!(error.contains("the peer has read what was never sent"), "{error}");
}

#[tokio::test]
async fn channels_without_end_end_the_link() {
    let pair = pair().await;
    for channel in 0..5000 {
        pair.send(Kind::Finish, [2 * channel, 0], None, &[]);
    }
    let error = within(pair.far_link.closed()).await.to_string();
    assert!(error.contains("the peer has opened too many channels"), "{error}");
}

#[tokio::test]
async fn whatever_comes_is_refused_or_read() {
    const INPUTS: u64 = 20_000;
    let pair = pair().await;
    let (core, own) = only(&pair.far);
    let table = pair.far.shared.table.clone();
    let mut seen = [0; 2];
    for input in 0..INPUTS {
        let mut draw = Draw::new(input);
        let kinds = [Kind::Frame, Kind::Finish, Kind::Stop, Kind::Credit, Kind::Ping, Kind::Pong];
        let kind = kinds[draw.below(kinds.len()).min(draw.below(kinds.len()))];
        let number = if draw.below(8) == 0 { draw.number() } else { draw.below(20) as u64 };
        let channel = draw.below(40) as u64;
        let said = frame(2 * draw.below(50));
        let first = first_bytes(&said);
        let header = Header::new(&own, Message { kind, channel, number }, (kind == Kind::Frame).then_some(&first));
        let (mut header, mut body) = (header.as_bytes().to_vec(), said.payload.to_vec());
        if draw.below(2) == 0 {
            // The token stays, or nothing else would be looked at.
            let mut rest = header.split_off(20);
            draw.damage(&mut rest);
            header.extend(rest);
            draw.damage(&mut body);
        }
        table.arrived(&header, Arrival::Whole(&body));
        seen[usize::from(message::read(&header).is_some())] += 1;
    }
    assert!(seen.iter().all(|seen| *seen > 1000), "neither all good nor all bad: {seen:?}");
    assert!(pair.counts.of("ucx_token") > 0 && pair.counts.of("frame") > 0);
    // The link ends for what it was sent, in good order.
    drop(core);
    assert_eq!(within(pair.far_link.closed()).await.code(), "ucx_lost");
}
