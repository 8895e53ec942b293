//! Frames of which some parts have come. Takes none in itself.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::{
    FrameHeader,
    frame::{HEADER_BYTES, codec},
    ucx::{
        channel::SharedChannel,
        message::{MOST_PARTS, MessagePiece, PART},
        windows::Charge,
        worker::fetch::ReceiveTarget,
    },
};

/// Frames of a link that may have begun and not be whole at a time: each is looked for among them. A sender finishes one after
/// another.
pub(crate) const MOST_BEGUN: usize = 1024;

/// How many parts a payload goes in; 0 where it goes as it is.
pub(crate) fn parts_of(payload: usize) -> u8 {
    match payload.div_ceil(PART) {
        0 | 1 => 0,
        parts if parts <= MOST_PARTS => parts as u8,
        _ => 0,
    }
}

/// A frame of which some parts have come.
pub(crate) struct Begun {
    pub(crate) channel: Arc<SharedChannel>,
    pub(crate) place: u64,
    pub(crate) first_bytes: [u8; HEADER_BYTES],
    pub(crate) parts: u8,
    /// A bit for each part that is to come.
    pub(crate) missing: u64,
    pub(crate) landed: ReceivedFrame,
}

/// All such frames of a link.
#[derive(Default)]
pub(crate) struct Parting(pub(super) Mutex<Vec<Begun>>);

impl Begun {
    /// Puts a part where it belongs; nothing where it is none of this frame.
    pub(crate) fn add(&mut self, piece: &MessagePiece<'_>, body: &[u8]) -> Option<()> {
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

/// A frame that is here.
pub(crate) struct ReceivedFrame {
    pub header: FrameHeader,
    pub landing: ReceiveTarget,
    pub charge: Charge,
}
