//! What a link and its channels share: the peer's UCX endpoint and the QUIC connection that vouches for it. With that
//! connection the link ends, and the other way round.

pub(crate) mod arrive;
pub(crate) mod parting;
pub(crate) mod parts;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn::{Connection, VarInt};
use tokio::{
    sync::{Notify, mpsc},
    time::MissedTickBehavior,
};

use super::{
    channel::SharedChannel,
    core::parting::{Parting, parts_of},
    endpoint::{Failure, UcxEndpoint},
    message::{Addressee, Header, Kind, Message, MessagePiece, SMALL_UCX_META},
    windows::Windows,
};
use crate::{
    Frame, Meta, Observer, TransportError,
    certificates::Member,
    frame::{buffers::Buffers, codec},
    local::TRANSPORT_CLOSED,
    quic::{cause, trust::Revocable},
    signal::{Signal, lock},
};

/// Channels that a peer may have open at a time, as its opener counts them; the other side may count a few more.
const MAX_CHANNELS: usize = 1024;
/// A peer that ends a link closes its UCX endpoint and tells the reason over QUIC: the reason is awaited this long.
const GRACE: Duration = Duration::from_millis(250);
/// How often the round trip is measured at least, and how many of these times in a row nothing may come.
const PING_EVERY: Duration = Duration::from_secs(1);
const QUIET_PINGS: u32 = 5;
/// Bytes under way for which a second more of silence is granted.
const SLOW: u64 = 8 << 20;

/// What a link begins with.
pub(super) struct LinkStart {
    pub theirs: Addressee,
    /// What the two may send ahead of each other's readers.
    pub windows: Arc<Windows>,
    /// The channels of the side that connected have even numbers.
    pub connected: bool,
    pub connection: Connection,
    pub member: Option<Member>,
    pub endpoint: Arc<UcxEndpoint>,
    /// Whether the endpoint leads through shared memory.
    pub shares_memory: bool,
    pub failure: Arc<Failure>,
}

pub(super) struct Core {
    pub address: SocketAddr,
    pub observer: Arc<dyn Observer>,
    pub met: LinkStart,
    pub buffers: Arc<Buffers>,
    channels: Mutex<BTreeMap<u64, Arc<SharedChannel>>>,
    opened: AtomicU64,
    pub(super) parting: Parting,
    /// Messages and bodies that came, and bytes of bodies that are being fetched.
    pub arrivals: AtomicU64,
    pub fetching: AtomicU64,
    /// Whether the peer broke the rules.
    pub refused: AtomicBool,
    accepted: mpsc::UnboundedSender<Arc<SharedChannel>>,
    /// Told when a channel is over.
    pub room: Notify,
    /// The words of this side's `close`.
    closing: OnceLock<String>,
    ended: Signal<Option<TransportError>>,
    /// False while it surely has not: asked for every frame, so without a lock.
    may_be_over: AtomicBool,
    /// Whether the peer was heard over UCX.
    pub heard: Signal<bool>,
    pub clock: Instant,
    pub round_trip: Mutex<Option<Duration>>,
}

impl Core {
    /// A link, and where the channels that the peer opens come out.
    pub fn new(
        met: LinkStart,
        observer: Arc<dyn Observer>,
        buffers: Arc<Buffers>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Arc<SharedChannel>>) {
        let (accepted, receiver) = mpsc::unbounded_channel();
        let core = Self {
            address: met.connection.remote_address(),
            observer,
            met,
            buffers,
            channels: Mutex::default(),
            opened: AtomicU64::new(0),
            parting: Parting::default(),
            arrivals: AtomicU64::new(0),
            fetching: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            accepted,
            room: Notify::new(),
            closing: OnceLock::new(),
            ended: Signal::default(),
            may_be_over: AtomicBool::new(false),
            heard: Signal::default(),
            clock: Instant::now(),
            round_trip: Mutex::default(),
        };
        (Arc::new(core), receiver)
    }

    pub fn post(&self, message: Message) {
        let header = Header::new(&self.met.theirs, message, None);
        if let Some(endpoint) = self.met.endpoint.enter() {
            endpoint.send(&header, Meta::default(), &Bytes::new(), 0..0);
        }
    }

    pub fn post_frame(&self, channel: u64, number: u64, frame: Frame) {
        let Some(endpoint) = self.met.endpoint.enter() else { return };
        let Frame { header, meta, payload, .. } = frame;
        let first = codec::encode_header(&header, meta.len(), payload.len());
        let message = Message { kind: Kind::Frame, channel, number };
        let header = |piece| Header::new(&self.met.theirs, message, Some(piece));
        let whole = MessagePiece::whole(&first);
        if meta.len() > SMALL_UCX_META {
            return endpoint.send(&header(whole), meta, &payload, 0..payload.len());
        }
        let parts = if self.met.shares_memory { parts_of(payload.len()) } else { 0 };
        let mut header = header(MessagePiece { parts, meta: &meta, ..whole });
        for (part, range) in (0..).zip(codec::cut(payload.len(), usize::from(parts).max(1))) {
            if part > 0 {
                header.turn_to(part);
            }
            endpoint.send(&header, Meta::default(), &payload, range);
        }
    }

    /// Tells the peer what was read of all channels, once that is much.
    pub fn post_credit(&self, due: Option<u64>) {
        if let Some(number) = due {
            self.post(Message { kind: Kind::LinkCredit, channel: 0, number });
        }
    }

    fn ping(&self) {
        self.post(Message { kind: Kind::Ping, channel: 0, number: self.clock.elapsed().as_nanos() as u64 });
    }

    pub(super) fn known(&self, channel: u64) -> Option<Arc<SharedChannel>> {
        lock(&self.channels).get(&channel).cloned()
    }

    /// A channel; one of the peer's is new with the first that comes of it.
    pub(super) fn known_or_new(&self, id: u64) -> Option<Arc<SharedChannel>> {
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.get(&id) {
            return Some(channel.clone());
        }
        if self.is_own(id) {
            return None;
        }
        if channels.len() > 4 * MAX_CHANNELS {
            drop(channels);
            self.refuse("the peer has opened too many channels");
            return None;
        }
        let channel = SharedChannel::new(id);
        channels.insert(id, channel.clone());
        drop(channels);
        // A receiver that is gone means a dropped link.
        let _ = self.accepted.send(channel.clone());
        Some(channel)
    }

    /// A new channel; none while as many are open as may be.
    pub fn open(&self) -> Option<Arc<SharedChannel>> {
        let mut channels = lock(&self.channels);
        if channels.keys().filter(|id| self.is_own(**id)).count() >= MAX_CHANNELS {
            return None;
        }
        let id = 2 * self.opened.fetch_add(1, Ordering::Relaxed) + u64::from(!self.met.connected);
        let shared = SharedChannel::new(id);
        channels.insert(id, shared.clone());
        Some(shared)
    }

    /// Has all senders look whether there is room.
    pub fn wake_writers(&self) {
        let channels: Vec<_> = lock(&self.channels).values().cloned().collect();
        channels.iter().for_each(|channel| channel.wake_writer());
    }

    fn is_own(&self, id: u64) -> bool {
        id.is_multiple_of(2) == self.met.connected
    }

    pub fn forget_if_over(&self, channel: &SharedChannel) {
        if channel.is_over() {
            lock(&self.channels).remove(&channel.id);
            self.room.notify_waiters();
        }
    }

    /// Smoothed round trip; none before the first, and once the link is gone.
    pub fn round_trip(&self) -> Option<Duration> {
        if self.ended().is_some() { None } else { *lock(&self.round_trip) }
    }

    /// Why the link is gone, once it is.
    pub fn ended(&self) -> Option<TransportError> {
        if self.may_be_over.load(Ordering::Acquire) { self.ended.get() } else { None }
    }

    pub async fn end_of(&self) -> TransportError {
        let error = self.ended.wait_for(Option::is_some).await;
        error.unwrap_or(TransportError::TransportClosed)
    }

    fn end(&self, error: TransportError) {
        // Whoever hears of it below finds it set.
        self.may_be_over.store(true, Ordering::Release);
        self.ended.set_once(error);
        let channels: Vec<_> = lock(&self.channels).values().cloned().collect();
        channels.iter().for_each(|channel| channel.wake());
        self.room.notify_waiters();
        self.met.endpoint.close();
    }

    /// Ends the link; an empty reason is that of a link that was dropped.
    pub fn close(&self, reason: &str) {
        let reason = self.closing.get_or_init(|| reason.to_owned());
        self.met.connection.close(VarInt::from_u32(0), reason.as_bytes());
        self.end(TransportError::Closed { peer: self.address, reason: reason.clone() });
    }

    /// Completes once the peer was heard over UCX.
    pub async fn reached(&self, within: Duration) -> Result<(), TransportError> {
        let heard = async {
            tokio::select! {
                biased;
                error = self.end_of() => Err(error),
                _ = self.heard.wait_for(|heard| *heard) => Ok(()),
            }
        };
        match tokio::time::timeout(within, heard).await {
            Ok(heard) => heard,
            Err(_) => {
                let cause = format!("no answer over UCX within {within:?}");
                Err(self.lose(cause))
            }
        }
    }

    /// Ends the link because its path is gone, and tells the peer so over QUIC.
    fn lose(&self, cause: String) -> TransportError {
        self.met.connection.close(cause::UCX_LOST, cause.as_bytes());
        let error = TransportError::UcxLost { peer: self.address, cause };
        self.end(error.clone());
        error
    }

    /// Sees to it that the link ends with its connection and with its path, which is lost when nothing comes for as long as
    /// `silence`. Says why, where the path was lost and the peer lives.
    pub async fn watch(&self, silence: Duration) -> Option<String> {
        let every = PING_EVERY.min(silence / QUIET_PINGS);
        let mut pings = tokio::time::interval(every);
        // Of a process that was held up for long, only one look counts.
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut quiet) = (0, 0);
        let connection = self.met.connection.clone();
        let lost = |error| {
            let closing = self.closing.get().map_or(TRANSPORT_CLOSED, String::as_str);
            cause::of_loss(error, self.address, closing)
        };
        loop {
            tokio::select! {
                biased;
                error = connection.closed() => {
                    let error = lost(error);
                    self.end(error.clone());
                    return match error {
                        TransportError::UcxLost { cause, .. } => Some(cause),
                        _ => None,
                    };
                }
                cause = self.met.failure.wait() => {
                    if let Ok(error) = tokio::time::timeout(GRACE, connection.closed()).await {
                        self.end(lost(error));
                        return None;
                    }
                    tracing::warn!(peer = %self.address, cause, "the UCX path to a peer is gone");
                    self.lose(cause.into());
                    return None;
                }
                _ = pings.tick() => {
                    let arrivals = self.arrivals.load(Ordering::Relaxed);
                    quiet = if arrivals == seen { quiet + 1 } else { 0 };
                    seen = arrivals;
                    if arrivals > 0 && every * quiet >= self.patience(silence) {
                        let cause = format!(
                            "nothing came over UCX for {:?}, though QUIC reaches the peer: see that nothing holds up TCP between \
                             the two, and that the path takes packets as large as the interface's MTU",
                            every * quiet
                        );
                        tracing::warn!(peer = %self.address, cause, "the UCX path to a peer is gone");
                        self.lose(cause.clone());
                        return Some(cause);
                    }
                    self.ping();
                }
            }
        }
    }
}

impl Core {
    /// How long nothing may come: longer while much is under way, behind which answers wait.
    fn patience(&self, silence: Duration) -> Duration {
        let bytes = self.met.endpoint.bytes_under_way() as u64 + self.fetching.load(Ordering::Relaxed);
        silence + Duration::from_secs(bytes / SLOW)
    }
}

impl Revocable for Core {
    fn revoke(&self, words: &str) {
        self.close(words);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.met.endpoint.close();
    }
}
