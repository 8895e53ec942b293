//! Frames whose payload goes in parts, which are short enough that UCX keeps none of them: each is copied once on each side, the
//! next written while one is read, and each goes to its place in the frame's buffer as it comes, in whatever order.

use super::{Core, parting::ReceivedFrame};
use crate::{
    frame::codec,
    signal::lock,
    ucx::{
        core::parting::{Begun, MOST_BEGUN},
        message::MessagePiece,
        windows::weight,
        worker::Arrival,
    },
};

impl Core {
    /// Takes a part of a frame; says whether the frame is whole now.
    pub(crate) fn take_part(&self, channel: u64, place: u64, piece: MessagePiece<'_>, body: Arrival<'_>) -> bool {
        let mut begun = lock(&self.parting.0);
        let known = begun.iter().rposition(|begun| begun.place == place && begun.channel.id == channel);
        let index = known.unwrap_or(begun.len());
        if known.is_none() {
            match self.begin(begun.len(), (channel, place), &piece) {
                Ok(frame) => begun.push(frame),
                Err(cause) => {
                    cause.into_iter().for_each(|cause| self.refuse(cause));
                    return false;
                }
            }
        }
        let added = match body {
            Arrival::Whole(body) => begun[index].add(&piece, body),
            Arrival::Announced(_) => None,
        };
        if added.is_none() {
            self.refuse("the peer sends what is no part of its frame");
            return false;
        }
        if begun[index].missing > 0 {
            return false;
        }
        let Begun { channel, landed, .. } = begun.swap_remove(index);
        drop(begun);
        self.landed(&channel, place, landed);
        true
    }

    /// A frame of which this is the first part to come, where so many others have begun; the error says why it is none, if the link
    /// is to end for it.
    fn begin(
        &self,
        begun: usize,
        (channel, place): (u64, u64),
        piece: &MessagePiece<'_>,
    ) -> Result<Begun, Option<&'static str>> {
        let channel = self.known_or_new(channel).ok_or(None)?;
        if begun >= MOST_BEGUN {
            return Err(Some("the peer begins frames and does not finish them"));
        }
        let (header, lengths) =
            codec::decode_header(piece.frame).map_err(|_| Some("the peer sends parts of what is no frame"))?;
        let (charge, _) = self.admit(&channel, weight(lengths.meta, lengths.payload))?;
        let landed = ReceivedFrame { header, landing: self.landing(&lengths), charge };
        let (first_bytes, parts) = (*piece.frame, piece.parts);
        Ok(Begun { channel, place, first_bytes, parts, missing: u64::MAX >> (64 - u32::from(parts)), landed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucx::{
        core::parting::parts_of,
        message::{MOST_PARTS, PART},
    };

    #[test]
    fn parts_are_no_larger_than_said_and_no_more() {
        for payload in (0..2 * MOST_PARTS * PART).step_by(1021).chain([PART, PART + 1, MOST_PARTS * PART]) {
            let parts = parts_of(payload).into();
            assert_eq!(parts > 0, payload > PART && payload <= MOST_PARTS * PART, "{payload}");
            assert!(parts == 0 || codec::cut(payload, parts).all(|part| part.len() <= PART), "{payload}");
        }
    }
}
