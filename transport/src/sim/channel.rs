//! One side of a channel: what it sends takes the time, and meets the end, that its faults say. Draws nothing itself.

use std::{
    future::pending,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::Instant};

use super::{
    faults::{self, Course},
    pair::{Refusals, SimConnection, SimSide},
};
use crate::{Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError, frame::codec};

/// Frames under way in one direction of a channel before `send` waits.
const FRAMES_UNDER_WAY: usize = 16;

/// Where a channel ends.
pub(super) struct ChannelEnd {
    pub side: Arc<SimSide>,
    pub refusals: Arc<Refusals>,
    pub course: Course,
}

/// `inner` with faults on what is sent over it.
pub(super) fn over(inner: Channel, end: ChannelEnd) -> Channel {
    let ChannelEnd { side, refusals, course } = end;
    let (queue, packets) = mpsc::channel(FRAMES_UNDER_WAY);
    let route = Route { connection: side.connection.clone(), from: side.index, refusals: refusals.clone() };
    tokio::spawn(route.carry(packets, inner.sender));
    let sender = SimSender { side: side.clone(), course, sent: 0, due: None, queue, place: None };
    let receiver = SimReceiver { side, refusals, refused: None, ended: None, inner: inner.receiver };
    Channel { sender: Box::new(sender), receiver: Box::new(receiver) }
}

type SimPermit = Result<mpsc::OwnedPermit<Packet>, TransportError>;

struct SimSender {
    side: Arc<SimSide>,
    course: Course,
    sent: u64,
    /// When the frame before arrives; none overtakes it.
    due: Option<Instant>,
    queue: mpsc::Sender<Packet>,
    /// While a frame waits: a place in the queue.
    place: Option<BoxFuture<'static, SimPermit>>,
}

/// A frame under way.
struct Packet {
    due: Instant,
    frame: Frame,
    end: faults::FrameEnd,
}

impl FrameSender for SimSender {
    fn poll_send(&mut self, context: &mut Context<'_>, next: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
        if let Some(frame) = next {
            codec::check(frame)?;
        }
        let place = self.place.get_or_insert_with(|| wait_for_place(self.side.clone(), self.queue.clone()));
        let permit = ready!(place.as_mut().poll(context));
        self.place = None;
        let (permit, Some(frame)) = (permit?, next.take()) else { return Poll::Ready(Ok(())) };
        let connection = &self.side.connection;
        let network = connection.network();
        let fate = network.faults_of(&connection.pair).fate(&self.course, self.sent, &frame);
        network.log(fate.faults.into_iter().map(|kind| self.course.fault(self.sent, kind)));
        let now = Instant::now() + fate.delay;
        let due = self.due.map_or(now, |before| before.max(now));
        (self.sent, self.due) = (self.sent + 1, Some(due));
        let bytes = frame.wire_bytes();
        permit.send(Packet { due, frame, end: fate.end });
        self.side.observer.bytes(true, bytes);
        Poll::Ready(Ok(()))
    }

    fn hands_over(&self) -> bool {
        true
    }
}

fn wait_for_place(side: Arc<SimSide>, queue: mpsc::Sender<Packet>) -> BoxFuture<'static, SimPermit> {
    Box::pin(async move {
        tokio::select! {
            biased;
            error = side.ended() => Err(error),
            permit = queue.reserve_owned() => {
                permit.map_err(|_| TransportError::ChannelClosed { peer: side.peer() })
            }
        }
    })
}

/// One direction of a channel.
struct Route {
    connection: Arc<SimConnection>,
    /// The sending side.
    from: usize,
    refusals: Arc<Refusals>,
}

impl Route {
    /// Delivers packets until the sender has finished, the receiver is gone, or the link has ended at the receiver: a link
    /// that ended only here is still silent there.
    async fn carry(self, mut packets: mpsc::Receiver<Packet>, mut inner: Box<dyn FrameSender>) {
        let until_ended_here = async {
            tokio::select! {
                biased;
                () = self.connection.silent(self.from) => pending().await,
                () = self.deliver(&mut packets, &mut inner) => {}
            }
            self.connection.pend_if_given_up(self.from).await;
        };
        tokio::select! {
            biased;
            _ = self.connection.ended(1 - self.from) => {}
            () = until_ended_here => {}
        }
    }

    async fn deliver(&self, packets: &mut mpsc::Receiver<Packet>, inner: &mut Box<dyn FrameSender>) {
        while let Some(packet) = packets.recv().await {
            if packet.due > Instant::now() {
                tokio::time::sleep_until(packet.due).await;
            }
            self.connection.pair.wait_open().await;
            match packet.end {
                faults::FrameEnd::Cut => return self.connection.cut(),
                faults::FrameEnd::Refused(error) => {
                    // Set once: nothing is delivered after it.
                    let _ = self.refusals.0[self.from].set(error);
                    return;
                }
                faults::FrameEnd::Arrives => {}
            }
            match inner.send(packet.frame).await {
                Ok(()) => {}
                Err(TransportError::ChannelClosed { .. }) => return,
                // The link beneath has ended; whoever should hear of it does so from the connection.
                Err(_) => pending().await,
            }
        }
        // The end of the half is under way like a frame.
        self.connection.pair.wait_open().await;
    }
}

struct SimReceiver {
    side: Arc<SimSide>,
    refusals: Arc<Refusals>,
    /// Why this half is read no further.
    refused: Option<FrameError>,
    /// While nothing has come: the end of the link.
    ended: Option<BoxFuture<'static, TransportError>>,
    inner: Box<dyn FrameReceiver>,
}

impl SimReceiver {
    /// Notices, once, why the half ended.
    fn look_for_refusal(&mut self) {
        if self.refused.is_none() {
            self.refused = self.refusals.0[1 - self.side.index].get().cloned();
            if self.refused.is_some() {
                self.side.observer.rejected("frame");
            }
        }
    }
}

impl FrameReceiver for SimReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        let side = self.side.clone();
        let ended = self.ended.get_or_insert_with(|| Box::pin(async move { side.ended().await }));
        if let Poll::Ready(error) = ended.as_mut().poll(context) {
            self.ended = None;
            return Poll::Ready(Err(error));
        }
        // An error of the link beneath says nothing: how this one ended is said above.
        let Ok(frame) = ready!(self.inner.poll_receive(context)) else { return Poll::Pending };
        self.ended = None;
        match &frame {
            Some(frame) => self.side.observer.bytes(false, frame.wire_bytes()),
            None => {
                self.look_for_refusal();
                if let Some(error) = &self.refused {
                    return Poll::Ready(Err(error.clone().into()));
                }
            }
        }
        Poll::Ready(Ok(frame))
    }
}
