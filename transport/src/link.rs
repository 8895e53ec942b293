//! What every transport is made of: a transport, links to peers, channels of frames, and who counts what passes. Sends nothing itself.

pub mod measure;
pub mod place;

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;

use crate::{
    certificates::Member,
    error::TransportError,
    frame::{Frame, version::OLDEST_PROTOCOL},
};

/// Listens for peers and connects to them.
pub trait Transport: Send + Sync + 'static {
    /// What it is called in metrics: `quic`, `ucx`, `local` or `sim`.
    fn name(&self) -> &'static str;
    /// Where peers reach this process.
    fn local_address(&self) -> SocketAddr;
    /// What it offers peers as its address; theirs make an address of it by [`Transport::resolve`].
    fn offered(&self) -> String {
        self.local_address().to_string()
    }
    /// The address of a peer that offers this; `None` where it is for others. The error says what is wrong with it.
    fn resolve(&self, offered: &str) -> Result<Option<SocketAddr>, String> {
        offered.parse().map(Some).map_err(|_| format!("'{offered}' is no address"))
    }
    /// Connects to a peer and authenticates both sides.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>>;
    /// Why a peer had best be reached by another transport for now, if there is one.
    fn ailing(&self, _address: SocketAddr) -> Option<String> {
        None
    }
    /// The next authenticated peer; `None` once closed. Refused peers are counted by the [`Observer`], not returned.
    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>>;
    /// Stops listening and closes every link.
    fn close(&self);
    /// After `close`: completes once every peer has been told, or cannot be. A process that ends earlier leaves its peers
    /// to their idle timeout.
    fn drained(&self) -> BoxFuture<'_, ()>;
}

/// One authenticated peer. It lives as long as it or one of its channels is held; closing it, or dropping the last of
/// them, loses what is still under way, so let the peer answer first.
pub trait Link: Send + Sync + 'static {
    /// The peer's address.
    fn peer_address(&self) -> SocketAddr;
    /// Who the peer is, by its certificate; `None` where the transport has no certificates, and never where it has.
    fn peer(&self) -> Option<&Member>;
    /// Version of messages that both ends speak: nothing newer may be said over it. By default what every build speaks.
    fn version(&self) -> u16 {
        OLDEST_PROTOCOL
    }
    /// Smoothed round trip to the peer; `None` once the link is gone, and where the transport measures none.
    fn rtt(&self) -> Option<Duration>;
    /// Opens a channel. Nothing reaches the peer before the first frame.
    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>>;
    /// The next channel the peer opened.
    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>>;
    /// Closes the link and its channels; `reason` reaches the peer's error.
    fn close(&self, reason: &str);
    /// Completes with the cause once the link is gone.
    fn closed(&self) -> BoxFuture<'_, TransportError>;
}

/// An ordered, reliable, two-way sequence of frames.
pub struct Channel {
    /// The sending half.
    pub sender: Box<dyn FrameSender>,
    /// The receiving half.
    pub receiver: Box<dyn FrameReceiver>,
}

/// The sending half of a channel. Polled, so that a frame costs no future of its own; [`send`](#method.send) is what to await.
pub trait FrameSender: Send {
    /// Sends the frame in `frame`, which is taken out once it is on its way; waits while the peer's window is full. Polled no
    /// further after that, it leaves open whether the frame arrives; the channel stays usable. Dropping the sender ends the
    /// peer's receiving half in order.
    fn poll_send(&mut self, context: &mut Context<'_>, frame: &mut Option<Frame>) -> Poll<Result<(), TransportError>>;

    /// Whether what a frame hands over reaches the peer: within a process alone.
    fn hands_over(&self) -> bool {
        false
    }
}

impl dyn FrameSender + '_ {
    /// Sends one frame; waits while the peer's window is full. Dropping the future leaves open whether the frame arrives; the
    /// channel stays usable.
    pub fn send(&mut self, frame: Frame) -> impl Future<Output = Result<(), TransportError>> + Send + Unpin {
        let mut frame = Some(frame);
        poll_fn(move |context| self.poll_send(context, &mut frame))
    }
}

/// The receiving half of a channel; [`receive`](#method.receive) is what to await.
pub trait FrameReceiver: Send {
    /// The next frame; `None` when the peer finished its half. Polled no further, it loses nothing.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>>;
}

impl dyn FrameReceiver + '_ {
    /// The next frame; `None` when the peer finished its half. Dropping the future loses nothing.
    pub fn receive(&mut self) -> impl Future<Output = Result<Option<Frame>, TransportError>> + Send + Unpin {
        poll_fn(|context| self.poll_receive(context))
    }
}

/// Counts what happens on the wire; the metrics exporter stays outside this crate. Every method may be called from any
/// task. The default counts nothing.
pub trait Observer: Send + Sync + 'static {
    /// Bytes of one frame written (`sent`) or read.
    fn bytes(&self, sent: bool, bytes: usize) {
        let _ = (sent, bytes);
    }
    /// A peer was refused: `reason` is one of `certificate`, `identity`, `protocol_version`, `handshake`, `half_open`,
    /// `frame`; or a word of whoever looks at what peers say.
    fn rejected(&self, reason: &'static str) {
        let _ = reason;
    }
    /// A peer showed a good certificate that ends then.
    fn shown(&self, member: &Member, ends: SystemTime) {
        let _ = (member, ends);
    }
    /// The link to a peer has so many further lanes for large payloads from now on.
    fn lanes(&self, peer: SocketAddr, lanes: usize) {
        let _ = (peer, lanes);
    }
    /// A peer that called from there got no link: `cause` in words.
    fn turned_away(&self, peer: SocketAddr, cause: &str) {
        let _ = (peer, cause);
    }
}

/// An observer that counts nothing.
pub struct NoObserver;

impl Observer for NoObserver {}
