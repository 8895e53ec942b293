//! Parcels of phase 1 between the channels that bring them and the encoder that waits for them. Computes nothing.
//!
//! A parcel belongs to an attempt of its context: those of earlier attempts than the one expected are dropped, those of later
//! ones wait until they are expected.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
};

use asterism_models::Parcel;
use asterism_transport::{FrameKind, FrameReceiver};
use tokio::sync::Notify;

use crate::{
    context_host::{
        error::ChannelError,
        parcels::pieces::{Joiner, ReceivedParcel},
        stop::StopFlag,
    },
    messages::{ParcelMeta, WireMessage},
};

/// Layers that a sender may be ahead of the encoder here; what comes later stays in the channel.
const LAYERS_AHEAD: usize = 1;
/// Attempts that parcels may come for before the order does; those of others stay in their channels.
const UNEXPECTED_ATTEMPTS: usize = 64;
/// Contexts whose ended attempts are remembered, so that their late parcels are dropped.
const REMEMBERED_CONTEXTS: usize = 1024;

/// An attempt of a context.
pub type Attempt = (u64, u32);

/// Parcels of all contexts.
#[derive(Default)]
pub struct ParcelInbox {
    rooms: Mutex<Rooms>,
    arrived: Notify,
    moved: Notify,
}

#[derive(Default)]
struct Rooms {
    open: BTreeMap<Attempt, ParcelSlots>,
    /// The earliest attempt of a context that parcels are taken for.
    earliest: BTreeMap<u64, u32>,
}

#[derive(Default)]
struct ParcelSlots {
    expected: bool,
    layer: usize,
    parcels: HashMap<Parcel, ReceivedParcel>,
    /// A peer to or from whom a channel ended early, and why.
    broken: Option<(String, String)>,
}

impl ParcelInbox {
    /// Takes in what a peer sends for an attempt, until it closes the channel or the attempt ends here. Whoever waits for what
    /// a broken channel would have brought is answered with that.
    pub async fn take_in(
        &self,
        attempt: Attempt,
        receiver: Box<dyn FrameReceiver>,
        peer: &str,
    ) -> Result<(), ChannelError> {
        let taken = self.take_all(attempt, receiver, peer).await;
        if let Err(cause) = &taken {
            self.break_off(attempt, peer, cause);
        }
        taken
    }

    /// A channel from or to a peer broke: whoever waits for a parcel of this attempt that has not come waits in vain.
    pub fn break_off(&self, attempt: Attempt, peer: &str, cause: &ChannelError) {
        if let Some(holes) = self.lock().open.get_mut(&attempt) {
            holes.broken.get_or_insert_with(|| (peer.to_string(), cause.to_string()));
            self.arrived.notify_waiters();
        }
    }

    async fn take_all(
        &self,
        attempt: Attempt,
        mut receiver: Box<dyn FrameReceiver>,
        peer: &str,
    ) -> Result<(), ChannelError> {
        let mut joiner = Joiner::default();
        while let Some(frame) = receiver.receive().await? {
            if frame.header.kind != FrameKind::Data {
                return Err(ChannelError::Frame { peer: peer.to_owned(), kind: frame.header.kind, of: "parcels" });
            }
            let meta = ParcelMeta::read(&frame.meta, peer)?;
            let (from, to) = (meta.from as usize, meta.to.map(|block| block as usize));
            let parcel = Parcel { layer: meta.layer as usize, part: meta.part.into(), from, to };
            let piece = ReceivedParcel { meta, frame, more: Vec::new() };
            let joined = joiner.add(parcel, piece);
            let Some((parcel, whole)) = joined.map_err(|cause| ChannelError::Piece { peer: peer.to_owned(), cause })?
            else {
                continue;
            };
            let mut arrived = Some(whole);
            while arrived.is_some() {
                let moved = self.moved.notified();
                if !self.put(attempt, parcel, &mut arrived) {
                    return Ok(());
                }
                if arrived.is_some() {
                    moved.await;
                }
            }
        }
        Ok(())
    }

    /// A parcel that has arrived.
    pub fn find(&self, attempt: Attempt, parcel: Parcel) -> Option<ReceivedParcel> {
        self.lock().open.get_mut(&attempt).and_then(|holes| holes.parcels.remove(&parcel))
    }

    /// Waits for a parcel; none when told to stop first.
    ///
    /// # Errors
    /// A peer whose channel for this attempt broke, and why, when the parcel has not come.
    pub async fn wait(
        &self,
        attempt: Attempt,
        parcel: Parcel,
        stop: &StopFlag,
    ) -> Result<Option<ReceivedParcel>, (String, String)> {
        loop {
            let arrived = self.arrived.notified();
            if let Some(holes) = self.lock().open.get_mut(&attempt) {
                if let Some(arrived) = holes.parcels.remove(&parcel) {
                    return Ok(Some(arrived));
                }
                if let Some(broken) = &holes.broken {
                    return Err(broken.clone());
                }
            }
            tokio::select! {
                biased;
                () = stop.wait() => return Ok(None),
                () = arrived => {}
            }
        }
    }

    /// The encoder is done with a layer: room for another.
    pub fn layer_done(&self, attempt: Attempt, layer: usize) {
        if let Some(holes) = self.lock().open.get_mut(&attempt) {
            holes.layer = layer + 1;
            holes.parcels.retain(|parcel, _| parcel.layer > layer);
        }
        self.moved.notify_waiters();
    }

    /// An attempt was ordered here: its parcels are wanted, those of earlier ones no longer.
    pub fn expect(&self, (context, attempt): Attempt) {
        let mut rooms = self.lock();
        rooms.end_before(context, attempt);
        rooms.open.entry((context, attempt)).or_default().expected = true;
        self.moved.notify_waiters();
    }

    /// An attempt came to its end here.
    pub fn end(&self, (context, attempt): Attempt) {
        self.lock().end_before(context, attempt.saturating_add(1));
        self.moved.notify_waiters();
    }

    /// Drops everything of a context up to the attempt that was ordered here last, also what is still to come of it. Parcels of
    /// a later one stay: they may be faster than its order, and than the word that the one before is over.
    pub fn forget(&self, context: u64) {
        let mut rooms = self.lock();
        let of_context = rooms.open.range((context, 0)..=(context, u32::MAX)).rev();
        let latest = of_context.filter(|(_, holes)| holes.expected).map(|((_, attempt), _)| *attempt).next();
        if let Some(latest) = latest {
            rooms.end_before(context, latest.saturating_add(1));
        }
        self.moved.notify_waiters();
    }

    /// Takes a parcel in if there is room for its layer. Whether its attempt goes on: nothing comes in for one that ended.
    fn put(&self, attempt: Attempt, parcel: Parcel, arrived: &mut Option<ReceivedParcel>) -> bool {
        let mut rooms = self.lock();
        if rooms.earliest.get(&attempt.0).is_some_and(|earliest| attempt.1 < *earliest) {
            return false;
        }
        let unexpected = rooms.open.values().filter(|holes| !holes.expected).count();
        if !rooms.open.contains_key(&attempt) && unexpected >= UNEXPECTED_ATTEMPTS {
            return true;
        }
        let holes = rooms.open.entry(attempt).or_default();
        if parcel.layer <= holes.layer + LAYERS_AHEAD {
            holes.parcels.extend(arrived.take().map(|arrived| (parcel, arrived)));
            self.arrived.notify_waiters();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().expect("no holder panics")
    }
}

impl Rooms {
    fn end_before(&mut self, context: u64, attempt: u32) {
        self.open.retain(|(open, tried), _| *open != context || *tried >= attempt);
        let earliest = self.earliest.entry(context).or_default();
        *earliest = attempt.max(*earliest);
        while self.earliest.len() > REMEMBERED_CONTEXTS {
            self.earliest.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use asterism_models::Part;
    use asterism_transport::{Frame, FrameHeader, PayloadType, TransportError};

    use super::*;
    use crate::messages::ParcelPart;

    fn parcel(layer: usize) -> Parcel {
        Parcel { layer, part: Part::Keys, from: 0, to: None }
    }

    fn arrived(layer: u32) -> Option<ReceivedParcel> {
        let meta =
            ParcelMeta { layer, part: ParcelPart::Keys, from: 0, to: None, shapes: Vec::new(), piece: 0, pieces: 1 };
        let (kind, payload_type) = (FrameKind::Data, PayloadType::None);
        let header = FrameHeader { kind, payload_type, correlation: 0 };
        Some(ReceivedParcel { frame: Frame::new(header, meta.archive(), Default::default()), meta, more: Vec::new() })
    }

    #[test]
    fn parcels_of_an_earlier_attempt_are_dropped_and_those_of_a_later_one_wait() {
        let parcel_inbox = ParcelInbox::default();
        parcel_inbox.expect((1, 2));
        assert!(!parcel_inbox.put((1, 1), parcel(0), &mut arrived(0)));
        assert!(parcel_inbox.put((1, 2), parcel(0), &mut arrived(0)));
        assert!(parcel_inbox.put((1, 3), parcel(0), &mut arrived(0)));
        parcel_inbox.expect((1, 3));
        assert!(parcel_inbox.find((1, 2), parcel(0)).is_none());
        assert!(parcel_inbox.find((1, 3), parcel(0)).is_some());
        parcel_inbox.end((1, 3));
        assert!(!parcel_inbox.put((1, 3), parcel(0), &mut arrived(0)));
        assert!(parcel_inbox.put((1, 4), parcel(0), &mut arrived(0)));
        parcel_inbox.expect((1, 4));
        assert!(parcel_inbox.put((1, 5), parcel(0), &mut arrived(0)));
        parcel_inbox.forget(1);
        assert!(!parcel_inbox.put((1, 4), parcel(0), &mut arrived(0)));
        parcel_inbox.expect((1, 5));
        assert!(parcel_inbox.find((1, 5), parcel(0)).is_some(), "it came before the word that the fourth was over");
    }

    #[test]
    fn parcels_of_layers_far_ahead_and_of_many_unknown_attempts_stay_outside() {
        let parcel_inbox = ParcelInbox::default();
        let mut far = arrived(2);
        assert!(parcel_inbox.put((1, 1), parcel(2), &mut far) && far.is_some());
        parcel_inbox.layer_done((1, 1), 0);
        assert!(parcel_inbox.put((1, 1), parcel(2), &mut far) && far.is_none());
        for context in 2..=UNEXPECTED_ATTEMPTS as u64 {
            assert!(parcel_inbox.put((context, 1), parcel(0), &mut arrived(0)));
        }
        let mut unknown = arrived(0);
        assert!(parcel_inbox.put((1000, 1), parcel(0), &mut unknown) && unknown.is_some());
        parcel_inbox.expect((1000, 1));
        assert!(parcel_inbox.put((1000, 1), parcel(0), &mut unknown) && unknown.is_none());
    }

    #[tokio::test]
    async fn a_wait_ends_when_told_to_stop() {
        let stop = StopFlag::default();
        stop.set();
        assert!(matches!(ParcelInbox::default().wait((1, 1), parcel(0), &stop).await, Ok(None)));
    }

    /// A channel that breaks at its first frame.
    struct Breaking;

    impl FrameReceiver for Breaking {
        fn poll_receive(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
            Poll::Ready(Err(TransportError::TransportClosed))
        }
    }

    #[tokio::test]
    async fn a_broken_channel_is_heard_by_whoever_waits_for_what_it_would_have_brought() {
        let (parcel_inbox, stop) = (ParcelInbox::default(), StopFlag::default());
        parcel_inbox.expect((1, 1));
        assert!(parcel_inbox.put((1, 1), parcel(0), &mut arrived(0)));
        assert!(parcel_inbox.take_in((1, 1), Box::new(Breaking), "c1").await.is_err());
        assert!(matches!(parcel_inbox.wait((1, 1), parcel(0), &stop).await, Ok(Some(_))), "it had come before");
        let Err((peer, _)) = parcel_inbox.wait((1, 1), parcel(1), &stop).await else { panic!("it never comes") };
        assert_eq!(peer, "c1");
    }
}
