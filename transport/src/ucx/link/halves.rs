//! The two halves of a channel as their user holds them. Restores no order.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    Channel, Frame, FrameReceiver, FrameSender, TransportError,
    frame::codec,
    signal::lock,
    ucx::{
        channel::{SharedChannel, keep, weigh},
        core::Core,
        message::{Kind, Message},
    },
};

/// A channel's two halves, for its user.
pub(crate) fn halves(shared: Arc<SharedChannel>, link: &Arc<HeldLink>) -> Channel {
    let sender = UcxSender { shared: shared.clone(), link: link.clone() };
    Channel { sender: Box::new(sender), receiver: Box::new(UcxReceiver { shared, link: link.clone() }) }
}

pub(crate) struct UcxSender {
    pub(crate) shared: Arc<SharedChannel>,
    pub(crate) link: Arc<HeldLink>,
}

impl FrameSender for UcxSender {
    fn poll_send(&mut self, context: &mut Context<'_>, next: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
        let Some(frame) = next else { return Poll::Ready(Ok(())) };
        codec::check_leaving(frame)?;
        let bytes = frame.wire_bytes();
        let place = ready!(self.shared.poll_room(context, &self.link, weigh(frame)))?;
        self.link.core.post_frame(self.shared.id, place, next.take().expect("looked at above"));
        self.link.core.observer.bytes(true, bytes);
        Poll::Ready(Ok(()))
    }
}

impl Drop for UcxSender {
    fn drop(&mut self) {
        let mut outbox = lock(&self.shared.outbox);
        outbox.finished = true;
        let number = outbox.next;
        drop(outbox);
        self.link.core.post(Message { kind: Kind::Finish, channel: self.shared.id, number });
        self.link.core.forget_if_over(&self.shared);
    }
}

pub(crate) struct UcxReceiver {
    pub(crate) shared: Arc<SharedChannel>,
    pub(crate) link: Arc<HeldLink>,
}

impl FrameReceiver for UcxReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        // What comes at once is taken without being woken for it.
        if !self.shared.has_next() {
            self.link.core.met.endpoint.worker.look();
        }
        let frame = ready!(self.shared.poll_frame(context, &self.link))?;
        if let Some(frame) = &frame {
            self.link.core.observer.bytes(false, frame.wire_bytes());
        }
        Poll::Ready(Ok(frame))
    }
}

impl Drop for UcxReceiver {
    fn drop(&mut self) {
        let mut inbox = lock(&self.shared.inbox);
        inbox.dropped = true;
        let unread = std::mem::take(&mut inbox.queue);
        let stops = !inbox.finished && inbox.refused.is_none();
        drop(inbox);
        drop(unread);
        self.link.core.post_credit(self.link.core.met.windows.credit_due());
        if stops {
            self.link.core.post(Message { kind: Kind::Stop, channel: self.shared.id, number: 0 });
        }
    }
}

impl SharedChannel {
    /// The place and the permission for a frame of so many bytes.
    fn poll_room(&self, cx: &mut Context<'_>, link: &HeldLink, bytes: u64) -> Poll<Result<u64, TransportError>> {
        let mut outbox = lock(&self.outbox);
        if let Some(error) = link.core.ended() {
            return Poll::Ready(Err(error));
        }
        if outbox.stopped {
            return Poll::Ready(Err(TransportError::ChannelClosed { peer: link.core.address }));
        }
        if outbox.sent - outbox.credited >= link.core.met.windows.of_channel() || !link.core.met.windows.send(bytes) {
            keep(&mut outbox.writer, cx);
            return Poll::Pending;
        }
        outbox.sent += bytes;
        outbox.next += 1;
        Poll::Ready(Ok(outbox.next - 1))
    }

    /// The next frame, and what the peer is to be told of what was read.
    fn poll_frame(&self, cx: &mut Context<'_>, link: &HeldLink) -> Poll<Result<Option<Frame>, TransportError>> {
        let mut inbox = lock(&self.inbox);
        if let Some(error) = link.core.ended() {
            return Poll::Ready(Err(error));
        }
        if let Some(error) = &inbox.refused {
            return Poll::Ready(Err(error.clone().into()));
        }
        let Some((frame, charge)) = inbox.queue.pop_front() else {
            if inbox.finished {
                return Poll::Ready(Ok(None));
            }
            keep(&mut inbox.reader, cx);
            return Poll::Pending;
        };
        inbox.done += weigh(&frame);
        let credit = inbox.credit_due(link.core.met.windows.of_channel());
        drop(inbox);
        link.core.post_credit(charge.pay());
        if let Some(number) = credit {
            link.core.post(Message { kind: Kind::Credit, channel: self.id, number });
        }
        Poll::Ready(Ok(Some(frame)))
    }
}

/// A link as its user and the user's channels hold it; it ends with the last of them.
pub(crate) struct HeldLink {
    pub core: Arc<Core>,
}

impl Drop for HeldLink {
    fn drop(&mut self) {
        self.core.close("");
    }
}
