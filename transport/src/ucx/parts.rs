//! Frames whose payload goes in parts, which are short enough that UCX keeps none of them: each is copied once on each side, the
//! next written while one is read, and each goes to its place in the frame's buffer as it comes, in whatever order.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use super::{
    arrive::Landed,
    channel::Shared,
    core::Core,
    message::{MOST_PARTS, Piece},
    windows::weight,
    worker::Arrival,
};
use crate::{
    codec::{self, HEADER_BYTES},
    local::lock,
};

/// Bytes of a part at most.
pub(super) const PART: usize = 8 << 10;

/// Frames of a link that may have begun and not be whole at a time: each is looked for among them. A sender finishes one after
/// another.
const MOST_BEGUN: usize = 1024;

/// How many parts a payload goes in; 0 where it goes as it is.
pub(super) fn parts_of(payload: usize) -> u8 {
    match payload.div_ceil(PART) {
        0 | 1 => 0,
        parts if parts <= MOST_PARTS => parts as u8,
        _ => 0,
    }
}

/// A frame of which some parts have come.
struct Begun {
    channel: Arc<Shared>,
    place: u64,
    first_bytes: [u8; HEADER_BYTES],
    parts: u8,
    /// A bit for each part that is to come.
    missing: u64,
    landed: Landed,
}

/// All such frames of a link.
#[derive(Default)]
pub(super) struct Parting(Mutex<Vec<Begun>>);

impl Begun {
    /// Puts a part where it belongs; nothing where it is none of this frame.
    fn add(&mut self, piece: &Piece<'_>, body: &[u8]) -> Option<()> {
        let lengths = self.landed.landing.lengths;
        let bit = 1 << piece.part;
        let Range { start, end } = codec::cut(lengths.payload, piece.parts.into()).nth(piece.part.into())?;
        let meta = if piece.part == 0 { lengths.meta } else { 0 };
        let fits = [body.len(), piece.meta.len()] == [end - start, meta];
        if !fits || piece.parts != self.parts || piece.frame != &self.first_bytes || self.missing & bit == 0 {
            return None;
        }
        self.missing &= !bit;
        self.landed.landing.meta.extend_from_slice(piece.meta);
        self.landed.landing.payload.as_mut()?.put(start, body);
        Some(())
    }
}

impl Core {
    /// Takes a part of a frame; says whether the frame is whole now.
    pub(super) fn take_part(&self, channel: u64, place: u64, piece: Piece<'_>, body: Arrival<'_>) -> bool {
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
        piece: &Piece<'_>,
    ) -> Result<Begun, Option<&'static str>> {
        let channel = self.known_or_new(channel).ok_or(None)?;
        if begun >= MOST_BEGUN {
            return Err(Some("the peer begins frames and does not finish them"));
        }
        let (header, lengths) =
            codec::decode_header(piece.frame).map_err(|_| Some("the peer sends parts of what is no frame"))?;
        let (charge, _) = self.admit(&channel, weight(lengths.meta, lengths.payload))?;
        let landed = Landed { header, landing: self.landing(&lengths), charge };
        let (first_bytes, parts) = (*piece.frame, piece.parts);
        Ok(Begun { channel, place, first_bytes, parts, missing: u64::MAX >> (64 - u32::from(parts)), landed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_no_larger_than_said_and_no_more() {
        for payload in (0..2 * MOST_PARTS * PART).step_by(1021).chain([PART, PART + 1, MOST_PARTS * PART]) {
            let parts = parts_of(payload).into();
            assert_eq!(parts > 0, payload > PART && payload <= MOST_PARTS * PART, "{payload}");
            assert!(parts == 0 || codec::cut(payload, parts).all(|part| part.len() <= PART), "{payload}");
        }
    }
}
