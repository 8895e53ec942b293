//! What a peer may send that knows the token, or does not: each message is refused for what it is, and costs little.

use std::{collections::HashMap, env, fs, process::Command, sync::Mutex, time::Duration};

use bytes::Bytes;
use rkyv::util::AlignedVec;

use super::{
    core::parting::parts_of,
    hello::ProcessLocation,
    message::{Header, Kind, LinkToken, MOST_PARTS, Message, MessagePiece, PART, SMALL_UCX_META},
    worker::{Arrival, Handler},
    *,
};
use crate::{
    DataPlane, Endpoint as DataEndpoint, Frame, FrameHeader, FrameKind, Meta, NoObserver, PayloadType,
    frame::{HEADER_BYTES, codec},
    quic::config::{QuicConfig, Security},
    signal::lock,
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

fn over(transports: &str) -> UcxConfig {
    UcxConfig { transports: Some(transports.into()), connect_timeout: DEADLINE, ..UcxConfig::default() }
}

fn bind(config: UcxConfig, observer: Arc<dyn Observer>) -> UcxTransport {
    UcxTransport::bind(config, quic(), observer).expect("every host has these transports")
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
    pair_of(over("shm")).await
}

async fn pair_of(config: UcxConfig) -> Pair {
    let counts = Arc::new(Counts::default());
    let (near, far) = (bind(config.clone(), Arc::new(NoObserver)), bind(config, counts.clone()));
    let (near_link, far_link) = within(async { tokio::join!(near.connect(far.local_address()), far.accept()) }).await;
    let (near_link, far_link) = (near_link.expect("the peer listens"), far_link.expect("the transport is open"));
    Pair { near, far, near_link, far_link, counts }
}

/// The only link of a transport, as it is addressed.
fn only(transport: &UcxTransport) -> (Arc<Core>, Addressee) {
    transport.shared.table.held().into_iter().next().expect("there is a link")
}

fn frame(payload: usize) -> Frame {
    let header = FrameHeader {
        kind: FrameKind::Request,
        payload_type: if payload == 0 { PayloadType::None } else { PayloadType::Bf16 },
        correlation: 0,
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

/// Sends over the only link of a transport.
fn post(near: &UcxTransport, message: Message, frame: Option<&[u8; HEADER_BYTES]>, body: Bytes) {
    post_piece(near, message, frame.map(MessagePiece::whole), body);
}

fn post_piece(near: &UcxTransport, message: Message, piece: Option<MessagePiece<'_>>, body: Bytes) {
    let (core, _) = only(near);
    core.met.endpoint.enter().expect("it is open").send(
        &Header::new(&core.met.theirs, message, piece),
        Meta::default(),
        &body,
        0..body.len(),
    );
}

/// Fills channels of the only link of a transport, from one on, with a frame each that nobody asked for.
fn fill(near: &UcxTransport, channels: std::ops::Range<u64>, bytes: usize) {
    let stated = frame(bytes);
    for channel in channels {
        let message = Message { kind: Kind::Frame, channel: 2 * channel, number: 0 };
        post(near, message, Some(&first_bytes(&stated)), stated.payload.clone());
    }
}

impl Pair {
    /// Sends what no sender would; `own` numbers count from where no channel of the near side is.
    fn send(&self, kind: Kind, [channel, number]: [u64; 2], frame: Option<&[u8; HEADER_BYTES]>, body: &[u8]) {
        post(&self.near, Message { kind, channel, number }, frame, Bytes::copy_from_slice(body));
    }

    /// Why the far side ends the link.
    async fn end(&self) -> String {
        let error = within(self.far_link.closed()).await;
        assert_eq!(error.code(), "ucx_lost", "{error}");
        let reported = within(self.near_link.closed()).await;
        assert_eq!(reported.code(), "ucx_lost", "the near side is told: {reported}");
        assert_eq!(self.counts.of("frame"), 1);
        error.to_string()
    }
}

#[tokio::test]
async fn a_message_without_the_token_reaches_nobody() {
    let pair = pair().await;
    let (core, _) = only(&pair.near);
    let theirs = core.met.theirs;
    let mut token: LinkToken = theirs.token;
    token[15] ^= 1;
    let strangers = [Addressee { token, ..theirs }, Addressee { link: theirs.link ^ 1, ..theirs }];
    for to in strangers {
        let stated = frame(4);
        let message = Message { kind: Kind::Frame, channel: 0, number: 0 };
        let first = first_bytes(&stated);
        let header = Header::new(&to, message, Some(MessagePiece::whole(&first)));
        core.met.endpoint.enter().expect("it is open").send(
            &header,
            Meta::default(),
            &stated.payload,
            0..stated.payload.len(),
        );
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
    large[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
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

/// A frame in parts, of which each may be sent, and sent wrongly.
struct InParts {
    first: [u8; HEADER_BYTES],
    payload: Bytes,
    parts: u8,
}

impl InParts {
    fn new(payload: usize) -> Self {
        let payload = Bytes::from((0..payload).map(|index| (index * 31 + (index >> 8)) as u8).collect::<Vec<_>>());
        let first = first_bytes(&Frame { payload: payload.clone(), ..frame(2) });
        Self { first, parts: parts_of(payload.len()), payload }
    }

    fn body(&self, part: u8) -> Bytes {
        let range = codec::cut(self.payload.len(), self.parts.into()).nth(part.into()).expect("there is such a part");
        self.payload.slice(range)
    }

    fn send(&self, pair: &Pair, part: u8) {
        self.send_as(
            pair,
            MessagePiece { part, parts: self.parts, ..MessagePiece::whole(&self.first) },
            self.body(part),
        );
    }

    fn send_as(&self, pair: &Pair, piece: MessagePiece<'_>, body: Bytes) {
        post_piece(&pair.near, Message { kind: Kind::Frame, channel: 100, number: 0 }, Some(piece), body);
    }
}

#[tokio::test]
async fn parts_come_in_any_order_and_are_read_once_all_are_here() {
    let (pair, sent) = (pair().await, InParts::new(3 * PART + 100));
    assert_eq!(sent.parts, 4);
    for part in [2, 0, 3] {
        sent.send(&pair, part);
    }
    // The frame after it is here, and waits for it.
    pair.send(Kind::Frame, [100, 1], Some(&first_bytes(&frame(8))), &[0; 8]);
    let mut far = within(pair.far_link.accept()).await.expect("the link is up");
    works(&pair).await;
    let waits = futures_util::future::poll_immediate(far.receiver.receive()).await;
    assert!(waits.is_none(), "{waits:?}");
    sent.send(&pair, 1);
    let got = within(far.receiver.receive()).await.expect("the link is up").expect("it is whole");
    assert!(got.payload == sent.payload && got.payload.as_ptr().addr().is_multiple_of(64));
    within(far.receiver.receive()).await.expect("the link is up").expect("the next has come");
}

#[tokio::test]
async fn what_is_no_part_of_its_frame_ends_the_link() {
    let sent = InParts::new(2 * PART);
    let mut other = sent.first;
    other[12] ^= 1;
    let (mut none, mut much) = (sent.first, sent.first);
    none[0] = b'H';
    much[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let second = MessagePiece { part: 1, parts: 2, ..MessagePiece::whole(&sent.first) };
    let wrong = [
        ("another length", second, sent.body(1).slice(2..)),
        ("the same again", MessagePiece { part: 0, ..second }, sent.body(0)),
        ("another frame", MessagePiece { frame: &other, ..second }, sent.body(1)),
        ("another number of parts", MessagePiece { parts: 3, ..second }, sent.body(1)),
        ("a meta that the frame does not have", MessagePiece { meta: &[7; SMALL_UCX_META], ..second }, sent.body(1)),
        ("no frame", MessagePiece { frame: &none, parts: MOST_PARTS as u8, ..second }, sent.body(1)),
        ("too large a frame", MessagePiece { frame: &much, ..second }, sent.body(1)),
    ];
    for (what, piece, body) in wrong {
        let pair = pair().await;
        if !what.ends_with("frame") || what.starts_with("another") {
            sent.send(&pair, 0);
        }
        sent.send_as(&pair, piece, body);
        let error = pair.end().await;
        assert!(
            error.contains("is no part of its frame") || error.contains("parts of what is no frame"),
            "{what}: {error}"
        );
    }
}

#[tokio::test]
async fn frames_begun_and_never_finished_hold_no_more_than_their_link_may() {
    let pair = pair_of(UcxConfig { receive_window: 1 << 20, ..over("shm") }).await;
    let sent = InParts::new(MOST_PARTS * PART);
    // A little of each, and the whole counts.
    let frames = (windows::largest() + (1 << 20)) / sent.payload.len() as u64;
    for number in 0..=frames {
        let piece = MessagePiece { part: 63, parts: 64, ..MessagePiece::whole(&sent.first) };
        post_piece(&pair.near, Message { kind: Kind::Frame, channel: 100, number }, Some(piece), sent.body(63));
    }
    let error = pair.end().await;
    assert!(error.contains("more than the window lets it"), "{error}");
}

#[tokio::test]
async fn small_frames_begun_and_never_finished_are_not_kept_by_the_thousand() {
    let (pair, sent) = (pair().await, InParts::new(PART + 2));
    for number in 0..2000 {
        let piece = MessagePiece { part: 1, parts: 2, ..MessagePiece::whole(&sent.first) };
        post_piece(&pair.near, Message { kind: Kind::Frame, channel: 100, number }, Some(piece), sent.body(1));
    }
    let error = pair.end().await;
    assert!(error.contains("begins frames and does not finish them"), "{error}");
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

/// Most bytes that this process has had in memory.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Which of UCX's transports the process that measures its memory takes.
const TRANSPORTS: &str = "ASTERISM_TEST_TRANSPORTS";

/// A gigabyte in channels of which each keeps to its window.
#[tokio::test]
#[ignore = "it measures the memory of its process; others start it"]
async fn many_channels_hold_no_more_than_their_link_may() {
    let Ok(transports) = env::var(TRANSPORTS) else { return };
    let pair = pair_of(over(&transports)).await;
    let before = peak();
    fill(&pair.near, 50..114, 16 << 20);
    let error = pair.end().await;
    assert!(error.contains("more than the link's window lets it"), "{error}");
    let most = windows::largest() + u64::from(UcxConfig::default().receive_window);
    // The near side's copy of the payload, and what the heap and UCX keep.
    let (grown, beside) = (peak() - before, 64 << 20);
    assert!(grown < most + beside, "{} MiB in memory", grown >> 20);
}

fn measures_its_memory(transports: &str) {
    let mut child = Command::new(env::current_exe().expect("a test is a program"));
    child.args(["--ignored", "--exact", "ucx::tests::many_channels_hold_no_more_than_their_link_may", "--nocapture"]);
    let output = child.env(TRANSPORTS, transports).output().expect("a test is a program");
    let stated = [output.stdout, output.stderr].map(|stated| String::from_utf8_lossy(&stated).into_owned()).concat();
    assert!(output.status.success() && stated.contains("1 passed"), "{stated}");
}

#[test]
fn many_channels_hold_no_more_than_their_link_may_over_tcp() {
    measures_its_memory("tcp");
}

#[test]
fn many_channels_hold_no_more_than_their_link_may_over_shared_memory() {
    measures_its_memory("shm");
}

#[tokio::test]
async fn of_all_links_the_one_that_has_most_ends() {
    let pair = pair_of(UcxConfig { most_held: 32 << 20, ..over("shm") }).await;
    let modest = bind(over("shm"), Arc::new(NoObserver));
    let (link, far) = within(async { tokio::join!(modest.connect(pair.far.local_address()), pair.far.accept()) }).await;
    let (link, far) = (link.expect("the peer listens"), far.expect("the transport is open"));
    fill(&modest, 50..52, 4 << 20);
    // Both have arrived when these are accepted.
    let held = [within(far.accept()).await, within(far.accept()).await];
    fill(&pair.near, 50..54, 8 << 20);
    let error = pair.end().await;
    assert!(error.contains("this process holds too much that was not read"), "{error}");
    let mut near = within(link.open()).await.expect("the link is up");
    within(near.sender.send(frame(64))).await.expect("the link is up");
    let mut last = within(far.accept()).await.expect("the link is up");
    within(last.receiver.receive()).await.expect("the link is up").expect("the peer sends");
    drop(held);
}

#[tokio::test]
async fn a_path_that_falls_silent_is_lost_and_left_for_quic() {
    let pair = pair_of(UcxConfig { silence: Duration::from_millis(500), ..over("shm") }).await;
    works(&pair).await;
    let (silent, _) = only(&pair.far);
    let near: Arc<dyn Transport> = Arc::new(pair.near);
    let far: Arc<dyn Transport> = Arc::new(pair.far);
    let [near_quic, far_quic] = [(); 2].map(|()| -> Arc<dyn Transport> { quic() });
    let offered = [DataEndpoint::of(far.as_ref()), DataEndpoint::of(far_quic.as_ref())];
    let plane = DataPlane::new(vec![near, near_quic], Vec::new());
    assert_eq!(within(plane.connect(&offered)).await.expect("it listens").transport, "ucx");
    // As where packets get lost that are larger than a path takes: QUIC goes on.
    silent.refused.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = within(pair.near_link.closed()).await.to_string();
    assert!(error.contains("nothing came over UCX for 500ms, though QUIC reaches the peer"), "{error}");
    let reached = within(plane.connect(&offered)).await.expect("QUIC is left");
    assert_eq!(reached.transport, "quic");
    assert!(
        reached.why.contains("its path was lost") && reached.why.contains("nothing came over UCX"),
        "{}",
        reached.why
    );
}

fn quic() -> Arc<QuicTransport> {
    let listen = "127.0.0.1:0".parse().expect("the literal is an address");
    let quic = QuicTransport::bind(QuicConfig::new(listen, Security::Insecure), Arc::new(NoObserver));
    Arc::new(quic.expect("a port is free"))
}

/// The words of a peer whose UCX is of another release, with a worker that nobody must take for one.
fn of_another_release() -> Hello {
    let addressee = Addressee { token: [7; TOKEN_BYTES], link: 1 };
    Hello {
        version: "1.0.3".into(),
        place: ProcessLocation::nowhere(),
        addressee,
        window: 1 << 20,
        worker: vec![0xff; 40],
    }
}

#[tokio::test]
async fn a_peer_of_another_release_gets_no_link_and_hears_why() {
    let counts = Arc::new(Counts::default());
    let far = bind(over("shm"), counts.clone());
    let address = far.local_address();
    let stranger = quic();
    let vouched = within(stranger.connect_vouched(address)).await.expect("it listens");
    let (mut send, mut receive) = within(vouched.connection.open_bi()).await.expect("the connection is up");
    within(hello::send_hello(&mut send, &of_another_release(), address)).await.expect("the connection is up");
    let theirs = within(hello::receive_hello(&mut receive, address)).await.expect("it says its own all the same");
    assert_eq!(theirs.version, context::version());
    assert_eq!(
        far.shared.worker.endpoints.load(std::sync::atomic::Ordering::Relaxed),
        0,
        "the worker was not looked at"
    );
    vouched.connection.close(0u32.into(), b"");
    within(async {
        while counts.of("handshake") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_link_to_another_release_goes_over_quic_and_names_both() {
    let far = quic();
    let mut asking = far.take_vouched().expect("nobody else takes them");
    tokio::spawn(async move {
        let vouched = asking.recv().await.expect("the peer asks");
        let (mut send, mut receive) = vouched.connection.accept_bi().await.expect("the connection is up");
        let peer = vouched.connection.remote_address();
        hello::receive_hello(&mut receive, peer).await.expect("it speaks first");
        hello::send_hello(&mut send, &of_another_release(), peer).await.expect("the connection is up");
        vouched.connection.closed().await;
    });
    let near: Arc<dyn Transport> = Arc::new(bind(over("tcp"), Arc::new(NoObserver)));
    let plane = DataPlane::new(vec![near, quic()], Vec::new());
    let offered = ["ucx", "quic"].map(|transport| DataEndpoint::new(transport, far.local_address()));
    let reached = within(plane.connect(&offered)).await.expect("QUIC is left");
    let both = format!("runs UCX 1.0.3, this host {}", context::version());
    assert!(reached.transport == "quic" && reached.why.contains(&both), "{}", reached.why);
}

#[tokio::test]
async fn who_asks_and_does_not_read_gets_no_heap_of_answers() {
    let pair = pair().await;
    let (core, _) = only(&pair.far);
    // Nobody drives either side meanwhile.
    for number in 0..10_000 {
        core.arrived(Message { kind: Kind::Ping, channel: 0, number }, None, Arrival::Whole(&[]));
    }
    let under_way = core.met.endpoint.under_way();
    assert!((100..=1024).contains(&under_way), "{under_way} messages");
    works(&pair).await;
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
        let kinds = [Kind::Frame, Kind::Finish, Kind::Stop, Kind::Credit, Kind::LinkCredit, Kind::Ping, Kind::Pong];
        let kind = kinds[draw.below(kinds.len()).min(draw.below(kinds.len()))];
        let number = if draw.below(8) == 0 { draw.number() } else { draw.below(20) as u64 };
        let channel = draw.below(40) as u64;
        let stated = frame(2 * draw.below(50));
        let first = first_bytes(&stated);
        let parts = (draw.below(2) * draw.below(5)) as u8;
        let part = draw.below(usize::from(parts).max(1)) as u8;
        let piece = MessagePiece { part, parts, ..MessagePiece::whole(&first) };
        let header = Header::new(&own, Message { kind, channel, number }, (kind == Kind::Frame).then_some(piece));
        let (mut header, mut body) = (header.as_bytes().to_vec(), stated.payload.to_vec());
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
