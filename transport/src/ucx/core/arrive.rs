//! What a link does with what arrives. It runs within UCX's callbacks: it waits for nobody and trusts nothing.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rkyv::util::AlignedVec;

use super::Core;
use crate::{
    Frame, FrameError,
    frame::codec::{self, Lengths},
    signal::lock,
    ucx::{
        channel::{Item, Settled, SharedChannel},
        core::parting::ReceivedFrame,
        message::{Kind, Message, MessagePiece},
        windows::{Charge, weight},
        worker::{Arrival, fetch::ReceiveTarget},
    },
};

/// Messages under way to a peer beyond which its pings are not answered.
const ANSWERS: usize = 1024;

impl Core {
    /// Takes a message of the peer; says whether somebody may have waited for it.
    pub fn arrived(self: &Arc<Self>, message: Message, piece: Option<MessagePiece<'_>>, body: Arrival<'_>) -> bool {
        let Message { kind, channel, number } = message;
        if self.refused.load(Ordering::Relaxed) {
            return false;
        }
        self.note_arrival();
        match (kind, piece) {
            (Kind::Frame, Some(piece)) if piece.parts > 0 => return self.take_part(channel, number, piece, body),
            (Kind::Ping, _) => {
                // A peer that asks and does not read gets no heap of answers.
                if self.met.endpoint.under_way() < ANSWERS {
                    self.post(Message { kind: Kind::Pong, ..message });
                }
                self.heard.set(true);
            }
            (Kind::Pong, _) => self.measure(number),
            (Kind::Credit, _) => {
                if self.known(channel).is_some_and(|channel| !channel.credit(number)) {
                    self.refuse("the peer has read what was never sent");
                }
            }
            (Kind::LinkCredit, _) => match self.met.windows.credit(number) {
                Some(true) => self.wake_writers(),
                Some(false) => {}
                None => self.refuse("the peer has read what was never sent"),
            },
            (Kind::Stop, _) => self.known(channel).iter().for_each(|channel| channel.stop()),
            (Kind::Finish, _) => {
                if let Some(channel) = self.known_or_new(channel) {
                    self.land(&channel, number, Item::Finish);
                }
            }
            (Kind::Frame, Some(piece)) => {
                if let Some(channel) = self.known_or_new(channel) {
                    self.take(&channel, number, piece, body);
                }
            }
            (Kind::Frame, None) => {}
        }
        true
    }

    /// UCX calls one at a time.
    fn note_arrival(&self) {
        self.arrivals.store(self.arrivals.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn measure(&self, sent: u64) {
        let Some(taken) = self.clock.elapsed().checked_sub(Duration::from_nanos(sent)) else { return };
        let mut round_trip = lock(&self.round_trip);
        // As TCP smooths it (RFC 6298).
        *round_trip = Some(round_trip.map_or(taken, |smoothed| smoothed * 7 / 8 + taken / 8));
        drop(round_trip);
        self.heard.set(true);
    }

    /// Takes a frame, or the announcement of one.
    fn take(self: &Arc<Self>, channel: &Arc<SharedChannel>, place: u64, piece: MessagePiece<'_>, body: Arrival<'_>) {
        let read = codec::decode_header(piece.frame).and_then(|(header, lengths)| {
            let beside = piece.meta.len();
            if (beside == 0 || beside == lengths.meta) && beside + body.len() == lengths.meta + lengths.payload {
                Ok((header, lengths))
            } else {
                Err(FrameError::Truncated)
            }
        });
        let (header, lengths) = match read {
            Ok(read) => read,
            Err(error) => {
                let bytes = weight(0, 0);
                if let Err(cause) = self.admit(channel, bytes) {
                    return self.refuse(cause);
                }
                self.observer.rejected("frame");
                if channel.refuse(error) {
                    self.post(Message { kind: Kind::Stop, channel: channel.id, number: 0 });
                }
                return self.land(channel, place, Item::Unread(bytes));
            }
        };
        let bytes = weight(lengths.meta, lengths.payload);
        let (charge, is_read) = match self.admit(channel, bytes) {
            Ok(admitted) => admitted,
            Err(cause) => return self.refuse(cause),
        };
        if !is_read {
            drop(charge);
            return self.land(channel, place, Item::Unread(bytes));
        }
        match body {
            Arrival::Whole(body) => {
                let (meta, payload) = body.split_at(lengths.meta - piece.meta.len());
                let mut landing = self.landing(&lengths);
                landing.meta.extend_from_slice(piece.meta);
                landing.meta.extend_from_slice(meta);
                landing.payload.iter_mut().for_each(|buffer| buffer.append(payload));
                self.landed(channel, place, ReceivedFrame { header, landing, charge });
            }
            Arrival::Announced(announced) => {
                let (core, channel, bytes) = (self.clone(), channel.clone(), announced.length as u64);
                self.fetching.fetch_add(bytes, Ordering::Relaxed);
                let fetched = move |landing: Result<ReceiveTarget, &'static str>| {
                    core.fetching.fetch_sub(bytes, Ordering::Relaxed);
                    core.note_arrival();
                    match landing {
                        Ok(landing) => core.landed(&channel, place, ReceivedFrame { header, landing, charge }),
                        Err(cause) => core.met.failure.set(cause),
                    }
                };
                let mut landing = self.landing(&lengths);
                landing.meta.extend_from_slice(piece.meta);
                announced.fetch(&self.met.endpoint.worker, landing, Box::new(fetched));
            }
        }
    }

    /// Counts so many bytes as this side's to hold, and says whether somebody may read them; the error says why they are too many.
    pub(crate) fn admit(&self, channel: &SharedChannel, bytes: u64) -> Result<(Charge, bool), &'static str> {
        let is_read = channel.admit(bytes, self.met.windows.of_channel());
        let is_read = is_read.ok_or("the peer sends more than the window lets it")?;
        Ok((self.met.windows.admit(bytes)?, is_read))
    }

    pub(crate) fn landing(&self, lengths: &Lengths) -> ReceiveTarget {
        ReceiveTarget {
            meta: self.buffers.meta(lengths.meta).unwrap_or_else(|| AlignedVec::with_capacity(lengths.meta).into()),
            payload: (lengths.payload > 0).then(|| self.buffers.take(lengths.payload)),
            lengths: *lengths,
        }
    }

    pub(crate) fn landed(
        &self,
        channel: &Arc<SharedChannel>,
        place: u64,
        ReceivedFrame { header, landing, charge }: ReceivedFrame,
    ) {
        let payload = landing.payload.map_or_else(Bytes::new, |buffer| self.buffers.share(buffer));
        let frame = Frame::new(header, landing.meta, payload);
        self.land(channel, place, Item::Frame(frame, charge));
    }

    fn land(&self, channel: &Arc<SharedChannel>, place: u64, item: Item) {
        match channel.land(place, item) {
            Settled::Kept => {}
            // Where nobody reads, it was given up at once.
            Settled::Over => {
                self.forget_if_over(channel);
                self.post_credit(self.met.windows.credit_due());
            }
            Settled::Twice => self.refuse("the peer has sent a frame twice"),
        }
    }

    /// Ends a link whose peer does what no peer of this version does. What it sends meanwhile is dropped.
    pub(crate) fn refuse(&self, cause: &'static str) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            self.observer.rejected("frame");
            self.met.failure.set(cause);
        }
    }
}
