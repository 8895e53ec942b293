//! One side of a channel: what it sends takes the time, and meets the end, that its faults say. Draws nothing itself.

use std::{future::pending, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::Instant};

use super::{
    faults::{self, Course},
    link::{Connection, Refusals, Side},
};
use crate::{Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError, codec};

/// Frames under way in one direction of a channel before `send` waits.
const FRAMES_UNDER_WAY: usize = 16;

/// Where a channel ends.
pub(super) struct End {
    pub side: Arc<Side>,
    pub refusals: Arc<Refusals>,
    pub course: Course,
}

/// `inner` with faults on what is sent over it.
pub(super) fn over(inner: Channel, end: End) -> Channel {
    let End { side, refusals, course } = end;
    let (queue, packets) = mpsc::channel(FRAMES_UNDER_WAY);
    let route = Route { connection: side.connection.clone(), from: side.index, refusals: refusals.clone() };
    tokio::spawn(route.carry(packets, inner.sender));
    let sender = SimSender { side: side.clone(), course, sent: 0, due: None, queue };
    let receiver = SimReceiver { side, refusals, refused: None, inner: inner.receiver };
    Channel { sender: Box::new(sender), receiver: Box::new(receiver) }
}

struct SimSender {
    side: Arc<Side>,
    course: Course,
    sent: u64,
    /// When the frame before arrives; none overtakes it.
    due: Option<Instant>,
    queue: mpsc::Sender<Packet>,
}

/// A frame under way.
struct Packet {
    due: Instant,
    frame: Frame,
    end: faults::End,
}

impl FrameSender for SimSender {
    fn send(&mut self, frame: Frame) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            codec::check(&frame)?;
            let permit = tokio::select! {
                biased;
                error = self.side.ended() => return Err(error),
                permit = self.queue.reserve() => permit,
            };
            let permit = permit.map_err(|_| TransportError::ChannelClosed { peer: self.side.peer() })?;
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
            Ok(())
        })
    }
}

/// One direction of a channel.
struct Route {
    connection: Arc<Connection>,
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
                faults::End::Cut => return self.connection.cut(),
                faults::End::Refused(error) => {
                    // Set once: nothing is delivered after it.
                    let _ = self.refusals.0[self.from].set(error);
                    return;
                }
                faults::End::Arrives => {}
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
    side: Arc<Side>,
    refusals: Arc<Refusals>,
    /// Why this half is read no further.
    refused: Option<FrameError>,
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
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Frame>, TransportError>> {
        Box::pin(async {
            let frame = tokio::select! {
                biased;
                error = self.side.ended() => return Err(error),
                Ok(frame) = self.inner.receive() => frame,
            };
            match &frame {
                Some(frame) => self.side.observer.bytes(false, frame.wire_bytes()),
                None => {
                    self.look_for_refusal();
                    if let Some(error) = &self.refused {
                        return Err(error.clone().into());
                    }
                }
            }
            Ok(frame)
        })
    }
}
