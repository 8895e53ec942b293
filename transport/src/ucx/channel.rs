//! One channel of a link: its two halves, and what they share with whoever drives the worker. Order is restored here, since
//! UCX promises none between short and long messages.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    task::{Context, Waker},
};

use super::windows::{Charge, largest, weight};
use crate::{Frame, FrameError, signal::lock};

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
pub(super) struct SharedChannel {
    pub id: u64,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) outbox: Mutex<Outbox>,
}

#[derive(Default)]
pub(super) struct Inbox {
    /// Place of the next frame that the reader gets into `queue`.
    pub(super) next: u64,
    pub(super) early: BTreeMap<u64, Item>,
    pub(super) queue: VecDeque<(Frame, Charge)>,
    pub(super) finished: bool,
    /// Whether the end has been announced, though frames before it may be missing.
    pub(super) ends: bool,
    /// Nobody reads any more.
    pub(super) dropped: bool,
    pub(super) refused: Option<FrameError>,
    /// Bytes announced to this side, those done with, and those of them that the peer knows of.
    pub(super) arrived: u64,
    pub(super) done: u64,
    pub(super) credited: u64,
    pub(super) reader: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Outbox {
    pub(super) next: u64,
    pub(super) sent: u64,
    pub(super) credited: u64,
    pub(super) stopped: bool,
    pub(super) finished: bool,
    pub(super) writer: Option<Waker>,
}

impl Inbox {
    /// What is to be said to the peer so that it sends on; nothing while that would be little.
    pub(super) fn credit_due(&mut self, window: u64) -> Option<u64> {
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

impl SharedChannel {
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

    /// Whether there is something for the reader.
    pub(super) fn has_next(&self) -> bool {
        let inbox = lock(&self.inbox);
        !inbox.queue.is_empty() || inbox.finished || inbox.refused.is_some()
    }
}

pub(super) fn weigh(frame: &Frame) -> u64 {
    weight(frame.meta.len(), frame.payload.len())
}

pub(super) fn keep(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use rkyv::util::AlignedVec;

    use super::{
        super::windows::{HeldBytes, Windows},
        *,
    };

    fn item() -> Item {
        let charge = Windows::new(1000, HeldBytes::new(1000)).admit(1).expect("it is empty");
        Item::Frame(Frame::control(AlignedVec::new()), charge)
    }

    #[test]
    fn places_are_put_in_order_and_used_once() {
        let shared = SharedChannel::new(0);
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
        let (shared, window) = (SharedChannel::new(0), 1000);
        assert_eq!(shared.admit(window - 1, window), Some(true));
        assert_eq!(shared.admit(largest(), window), Some(true), "one frame may go beyond the window");
        assert_eq!(shared.admit(2, window), None);
    }

    #[test]
    fn credit_for_what_was_never_sent_is_refused() {
        let shared = SharedChannel::new(0);
        lock(&shared.outbox).sent = 100;
        assert!(shared.credit(100));
        assert!(shared.credit(40), "an older credit says nothing new");
        assert_eq!(lock(&shared.outbox).credited, 100);
        assert!(!shared.credit(101));
    }
}
