//! Channels within one process: two bounded queues of frames, which go over as they are.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::side::Side;
use crate::{Channel, Frame, FrameReceiver, FrameSender, TransportError, frame::codec};

/// Frames that wait in one direction of a channel before `send` waits.
const FRAMES_IN_FLIGHT: usize = 16;

/// One side's ends of a channel's two queues.
pub(super) struct Ends {
    /// Its place among the channels that its opener opened on this link.
    pub number: u64,
    outgoing: mpsc::Sender<Frame>,
    incoming: mpsc::Receiver<Frame>,
}

impl Ends {
    pub fn pair(number: u64) -> (Self, Self) {
        let (near_sender, far_receiver) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (far_sender, near_receiver) = mpsc::channel(FRAMES_IN_FLIGHT);
        let near = Self { number, outgoing: near_sender, incoming: near_receiver };
        (near, Self { number, outgoing: far_sender, incoming: far_receiver })
    }

    pub fn into_channel(self, side: &Arc<Side>, announcement: Option<Announcement>) -> Channel {
        let sender = LocalSender { side: side.clone(), outgoing: self.outgoing, announcement, place: None };
        let ended = side.clone();
        let closed = Box::pin(async move { ended.closed().await });
        let receiver = LocalReceiver { side: side.clone(), incoming: self.incoming, closed };
        Channel { sender: Box::new(sender), receiver: Box::new(receiver) }
    }
}

/// The peer's ends of a channel that it has not heard of yet, with the place kept for them in its queue.
pub(super) struct Announcement {
    pub permit: mpsc::OwnedPermit<Ends>,
    pub ends: Ends,
}

impl Announcement {
    fn send(self) {
        self.permit.send(self.ends);
    }
}

type LocalPermit = Result<mpsc::OwnedPermit<Frame>, TransportError>;

struct LocalSender {
    side: Arc<Side>,
    outgoing: mpsc::Sender<Frame>,
    announcement: Option<Announcement>,
    /// While the queue is full: a place in it.
    place: Option<BoxFuture<'static, LocalPermit>>,
}

impl FrameSender for LocalSender {
    fn poll_send(&mut self, context: &mut Context<'_>, next: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
        let Some(mut frame) = next.take() else { return Poll::Ready(Ok(())) };
        codec::check(&frame)?;
        if let Some(announcement) = self.announcement.take() {
            announcement.send();
        }
        if let Some(error) = self.side.error() {
            return Poll::Ready(Err(error));
        }
        frame.payload = codec::align(frame.payload);
        let bytes = frame.wire_bytes();
        if self.place.is_none() {
            match self.outgoing.try_send(frame) {
                Ok(()) => return self.sent(bytes),
                Err(TrySendError::Closed(_)) => return Poll::Ready(Err(self.side.channel_closed())),
                Err(TrySendError::Full(waiting)) => frame = waiting,
            }
        }
        let place = self.place.get_or_insert_with(|| wait_for_place(self.side.clone(), self.outgoing.clone()));
        let Poll::Ready(permit) = place.as_mut().poll(context) else {
            *next = Some(frame);
            return Poll::Pending;
        };
        self.place = None;
        permit?.send(frame);
        self.sent(bytes)
    }

    fn hands_over(&self) -> bool {
        true
    }
}

impl LocalSender {
    fn sent(&self, bytes: usize) -> Poll<Result<(), TransportError>> {
        self.side.observer.bytes(true, bytes);
        Poll::Ready(Ok(()))
    }
}

fn wait_for_place(side: Arc<Side>, outgoing: mpsc::Sender<Frame>) -> BoxFuture<'static, LocalPermit> {
    Box::pin(async move {
        tokio::select! {
            biased;
            error = side.closed() => Err(error),
            permit = outgoing.reserve_owned() => permit.map_err(|_| side.channel_closed()),
        }
    })
}

impl Drop for LocalSender {
    /// A channel given up unused still ends in order at the peer.
    fn drop(&mut self) {
        if let Some(announcement) = self.announcement.take() {
            announcement.send();
        }
    }
}

struct LocalReceiver {
    side: Arc<Side>,
    incoming: mpsc::Receiver<Frame>,
    /// Why the link ended, once it has.
    closed: BoxFuture<'static, TransportError>,
}

impl FrameReceiver for LocalReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        if let Some(error) = self.side.error() {
            return Poll::Ready(Err(error));
        }
        let Poll::Ready(frame) = self.incoming.poll_recv(context) else {
            return self.closed.as_mut().poll(context).map(Err);
        };
        if let Some(frame) = &frame {
            self.side.observer.bytes(false, frame.wire_bytes());
        }
        Poll::Ready(Ok(frame))
    }
}
