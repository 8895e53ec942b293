//! One channel of a link: its two halves, and what they share with whoever drives the worker. Order is restored here, since
//! UCX promises none between short and long messages.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
};

use super::{
    link::Held,
    message::{Kind, Message},
    windows::{Charge, largest, weight},
};
use crate::{Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError, codec, local::lock};

/// What arrived at a place of a channel.
pub(super) enum Item {
    Frame(Frame, Charge),
    /// A frame that nobody wants any more.
    Unread(u64),
    Finish,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It is there for the reader, or waits for what comes before it.
    Kept,
    /// Something was given up, or the channel has come to its end.
    Over,
    /// Its place was taken.
    Twice,
}

/// A channel as its link knows it.
pub(super) struct Shared {
    pub id: u64,
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
}

#[derive(Default)]
struct Inbox {
    /// Place of the next frame that the reader gets into `queue`.
    next: u64,
    early: BTreeMap<u64, Item>,
    queue: VecDeque<(Frame, Charge)>,
    finished: bool,
    /// Whether the end has been announced, though frames before it may be missing.
    ends: bool,
    /// Nobody reads any more.
    dropped: bool,
    refused: Option<FrameError>,
    /// Bytes announced to this side, those done with, and those of them that the peer knows of.
    arrived: u64,
    done: u64,
    credited: u64,
    reader: Option<Waker>,
}

#[derive(Default)]
struct Outbox {
    next: u64,
    sent: u64,
    credited: u64,
    stopped: bool,
    finished: bool,
    writer: Option<Waker>,
}

impl Inbox {
    /// What is to be said to the peer so that it sends on; nothing while that would be little.
    fn credit_due(&mut self, window: u64) -> Option<u64> {
        if self.done - self.credited < window.div_ceil(4) || self.finished {
            return None;
        }
        self.credited = self.done;
        Some(self.done)
    }

    /// Puts what comes next, and what came early after it, into the queue.
    fn settle(&mut self, item: Item) -> Settled {
        let mut settled = self.settle_one(item);
        while let Some(item) = self.early.remove(&self.next) {
            if self.settle_one(item) == Settled::Over {
                settled = Settled::Over;
            }
        }
        settled
    }

    fn settle_one(&mut self, item: Item) -> Settled {
        self.next += 1;
        match item {
            Item::Frame(frame, charge) if self.is_read() => {
                self.queue.push_back((frame, charge));
                return Settled::Kept;
            }
            Item::Frame(frame, _) => self.done += weigh(&frame),
            Item::Unread(bytes) => self.done += bytes,
            Item::Finish => self.finished = true,
        }
        Settled::Over
    }

    fn is_read(&self) -> bool {
        !self.dropped && self.refused.is_none()
    }
}

impl Shared {
    pub fn new(id: u64) -> Arc<Self> {
        Arc::new(Self { id, inbox: Mutex::default(), outbox: Mutex::default() })
    }

    /// Makes room for a frame of so many bytes, and says whether somebody may still read it; none where the peer sends more than
    /// it may.
    pub fn admit(&self, bytes: u64, window: u64) -> Option<bool> {
        let mut inbox = lock(&self.inbox);
        inbox.arrived += bytes;
        (inbox.arrived - inbox.credited <= window + largest()).then_some(inbox.is_read())
    }

    /// Takes what arrived at a place.
    pub fn land(&self, place: u64, item: Item) -> Settled {
        let mut inbox = lock(&self.inbox);
        let ends = matches!(item, Item::Finish);
        if place < inbox.next || inbox.finished || ends && inbox.ends {
            return Settled::Twice;
        }
        inbox.ends |= ends;
        if place > inbox.next {
            return if inbox.early.insert(place, item).is_none() { Settled::Kept } else { Settled::Twice };
        }
        let settled = inbox.settle(item);
        let reader = inbox.reader.take();
        drop(inbox);
        reader.into_iter().for_each(Waker::wake);
        settled
    }

    /// Lets nobody read on, because what came was no frame; says whether it is the first such.
    pub fn refuse(&self, error: FrameError) -> bool {
        let mut inbox = lock(&self.inbox);
        let first = inbox.refused.is_none();
        inbox.refused.get_or_insert(error);
        inbox.queue.clear();
        let reader = inbox.reader.take();
        drop(inbox);
        reader.into_iter().for_each(Waker::wake);
        first
    }

    /// The peer has read so many bytes; false where these were never sent.
    #[must_use]
    pub fn credit(&self, bytes: u64) -> bool {
        let mut outbox = lock(&self.outbox);
        if bytes > outbox.sent {
            return false;
        }
        outbox.credited = outbox.credited.max(bytes);
        let writer = outbox.writer.take();
        drop(outbox);
        writer.into_iter().for_each(Waker::wake);
        true
    }

    /// The peer reads no more.
    pub fn stop(&self) {
        let mut outbox = lock(&self.outbox);
        outbox.stopped = true;
        let writer = outbox.writer.take();
        drop(outbox);
        writer.into_iter().for_each(Waker::wake);
    }

    /// Has the sending half look whether there is room.
    pub fn wake_writer(&self) {
        let writer = lock(&self.outbox).writer.take();
        writer.into_iter().for_each(Waker::wake);
    }

    /// Has both halves look whether the link is still there.
    pub fn wake(&self) {
        let reader = lock(&self.inbox).reader.take();
        let writer = lock(&self.outbox).writer.take();
        reader.into_iter().chain(writer).for_each(Waker::wake);
    }

    /// Whether nothing more comes or goes.
    pub fn is_over(&self) -> bool {
        lock(&self.inbox).finished && lock(&self.outbox).finished
    }

    /// The place and the permission for a frame of so many bytes.
    fn poll_room(&self, cx: &mut Context<'_>, link: &Held, bytes: u64) -> Poll<Result<u64, TransportError>> {
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

    /// Whether there is something for the reader.
    fn has_next(&self) -> bool {
        let inbox = lock(&self.inbox);
        !inbox.queue.is_empty() || inbox.finished || inbox.refused.is_some()
    }

    /// The next frame, and what the peer is to be told of what was read.
    fn poll_frame(&self, cx: &mut Context<'_>, link: &Held) -> Poll<Result<Option<Frame>, TransportError>> {
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

fn weigh(frame: &Frame) -> u64 {
    weight(frame.meta.len(), frame.payload.len())
}

fn keep(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

/// A channel's two halves, for its user.
pub(super) fn halves(shared: Arc<Shared>, link: &Arc<Held>) -> Channel {
    let sender = UcxSender { shared: shared.clone(), link: link.clone() };
    Channel { sender: Box::new(sender), receiver: Box::new(UcxReceiver { shared, link: link.clone() }) }
}

struct UcxSender {
    shared: Arc<Shared>,
    link: Arc<Held>,
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

struct UcxReceiver {
    shared: Arc<Shared>,
    link: Arc<Held>,
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

#[cfg(test)]
mod tests {
    use rkyv::util::AlignedVec;

    use super::{
        super::windows::{Holding, Windows},
        *,
    };

    fn item() -> Item {
        let charge = Windows::new(1000, Holding::new(1000)).admit(1).expect("it is empty");
        Item::Frame(Frame::control(AlignedVec::new()), charge)
    }

    #[test]
    fn places_are_put_in_order_and_used_once() {
        let shared = Shared::new(0);
        assert_eq!(shared.land(2, Item::Finish), Settled::Kept);
        assert_eq!(shared.land(3, Item::Finish), Settled::Twice, "a channel ends once");
        assert_eq!(shared.land(1, item()), Settled::Kept);
        assert!(lock(&shared.inbox).queue.is_empty(), "place 0 is still to come");
        assert_eq!(shared.land(1, item()), Settled::Twice, "place 1 has come");
        assert_eq!(shared.land(0, Item::Unread(64)), Settled::Over);
        assert_eq!(shared.land(0, item()), Settled::Twice, "place 0 is past");
        assert_eq!(shared.land(3, item()), Settled::Twice, "the channel is finished");
        let inbox = lock(&shared.inbox);
        assert_eq!((inbox.queue.len(), inbox.finished, inbox.done), (1, true, 64));
    }

    #[test]
    fn a_peer_that_overruns_its_window_is_noticed() {
        let (shared, window) = (Shared::new(0), 1000);
        assert_eq!(shared.admit(window - 1, window), Some(true));
        assert_eq!(shared.admit(largest(), window), Some(true), "one frame may go beyond the window");
        assert_eq!(shared.admit(2, window), None);
    }

    #[test]
    fn credit_for_what_was_never_sent_is_refused() {
        let shared = Shared::new(0);
        lock(&shared.outbox).sent = 100;
        assert!(shared.credit(100));
        assert!(shared.credit(40), "an older credit says nothing new");
        assert_eq!(lock(&shared.outbox).credited, 100);
        assert!(!shared.credit(101));
    }
}
