//! Parcels that are larger than a frame may be: cut into pieces where they leave, put together where they arrive. Whose they
//! are and what they hold is not looked at.

use std::collections::VecDeque;

use asterism_models::Parcel;
use asterism_transport::Frame;
use bytes::{Bytes, BytesMut};

use crate::{
    context_host::error::PieceError,
    messages::ParcelMeta,
    payload::{self, MOST_PIECES, PIECE_BYTES},
};

/// Most bytes of a parcel, however they are cut.
const MOST_BYTES: usize = MOST_PIECES as usize * PIECE_BYTES;
/// Memory of so many pieces is used again: of those that wait to be sent, and of those under way.
const REUSED_PIECES: usize = 32;

/// How long the pieces of a parcel of so many bytes are, none longer than `most`.
pub fn cut(bytes: usize, most: usize) -> Vec<usize> {
    // Whole elements.
    let most = (most / 64 * 64).max(64);
    let starts = (0..bytes.max(1)).step_by(most);
    starts.map(|start| most.min(bytes - start)).collect()
}

/// Memory of what is sent, used again once it has left.
#[derive(Default)]
pub struct Memory(VecDeque<Bytes>);

impl Memory {
    /// So many bytes of whatever was there.
    pub fn take(&mut self, bytes: usize) -> BytesMut {
        // They leave in the order in which they were exported.
        let mut memory = match self.0.pop_front().map(Bytes::try_into_mut) {
            Some(Ok(again)) => again,
            Some(Err(under_way)) => {
                self.0.push_front(under_way);
                BytesMut::new()
            }
            None => BytesMut::new(),
        };
        memory.resize(bytes, 0);
        memory
    }

    /// What is to be sent of it.
    pub fn export(&mut self, memory: BytesMut) -> Bytes {
        let exported = memory.freeze();
        self.0.push_back(exported.clone());
        if self.0.len() > REUSED_PIECES {
            self.0.pop_front();
        }
        exported
    }
}

/// Tensors of one parcel as they came.
pub struct ReceivedParcel {
    /// Shapes and addressing.
    pub meta: ParcelMeta,
    /// The frame that brought them, or the first piece.
    pub frame: Frame,
    /// The payloads of further pieces.
    pub more: Vec<Bytes>,
}

impl ReceivedParcel {
    /// Its bytes, piece by piece.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        [&self.frame.payload].into_iter().chain(&self.more).map(|payload| &payload[..])
    }
}

/// The parcel that comes over a channel, piece by piece: the next one begins when it is whole.
#[derive(Default)]
pub struct Joiner(Option<IncomingParcel>);

struct IncomingParcel {
    parcel: Parcel,
    first: ReceivedParcel,
    bytes: usize,
    next: u32,
}

impl Joiner {
    /// Takes a piece in; gives the parcel when it was the last.
    ///
    /// # Errors
    /// What is wrong with a piece that is not the one expected.
    pub fn add(
        &mut self,
        parcel: Parcel,
        piece: ReceivedParcel,
    ) -> Result<Option<(Parcel, ReceivedParcel)>, PieceError> {
        let ParcelMeta { piece: at, pieces, .. } = piece.meta;
        let Some(mut coming) = self.0.take() else {
            if at != 0 || !(1..=MOST_PIECES).contains(&pieces) {
                return Err(PieceError::First { piece: at, pieces, most: MOST_PIECES });
            }
            if pieces == 1 {
                return Ok(Some((parcel, piece)));
            }
            let bytes = piece.frame.payload.len();
            self.0 = Some(IncomingParcel { parcel, first: piece, bytes, next: 1 });
            return Ok(None);
        };
        let expected = ParcelMeta { piece: coming.next, ..coming.first.meta.clone() };
        if parcel != coming.parcel || piece.meta != expected || piece.frame.header != coming.first.frame.header {
            let named = |parcel: Parcel, meta: &ParcelMeta| format!("{meta:?} of {parcel:?}");
            let (expected, got) = (named(coming.parcel, &expected), named(parcel, &piece.meta));
            return Err(PieceError::Next { expected, got });
        }
        coming.bytes += piece.frame.payload.len();
        if whole_bytes(&coming.first).is_none_or(|whole| coming.bytes > whole.min(MOST_BYTES)) {
            return Err(PieceError::TooLong { shapes: expected.shapes });
        }
        coming.first.more.push(piece.frame.payload);
        coming.next += 1;
        if coming.next < pieces {
            self.0 = Some(coming);
            return Ok(None);
        }
        Ok(Some((coming.parcel, coming.first)))
    }
}

/// Bytes of all tensors of a parcel; none if they are more than can be counted.
pub fn whole_bytes(arrived: &ReceivedParcel) -> Option<usize> {
    let values = |shape: &Vec<u32>| shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size as usize));
    let mut shapes = arrived.meta.shapes.iter();
    let values = shapes.try_fold(0_usize, |all, shape| all.checked_add(values(shape)?))?;
    values.checked_mul(payload::element_bytes(arrived.frame.header.payload_type))
}

#[cfg(test)]
mod tests {
    use asterism_models::Part;
    use asterism_transport::{Frame, FrameHeader, FrameKind, PayloadType};

    use super::*;
    use crate::messages::{ParcelPart, WireMessage};

    const PARCEL: Parcel = Parcel { layer: 2, part: Part::Keys, from: 1, to: None };

    fn pieces(payload: &[u8], most: usize) -> Vec<ReceivedParcel> {
        let (mut payload, lengths) = (Bytes::copy_from_slice(payload), cut(payload.len(), most));
        let pieces = lengths.len() as u32;
        let piece = |(piece, length): (u32, usize)| {
            let payload = payload.split_to(length);
            let shapes = vec![vec![2, 5, 10], vec![1, 5, 20]];
            let meta = ParcelMeta { layer: 2, part: ParcelPart::Keys, from: 1, to: None, shapes, piece, pieces };
            let (kind, payload_type) = (FrameKind::Data, PayloadType::F32);
            let header = FrameHeader { kind, payload_type, correlation: 0 };
            ReceivedParcel { frame: Frame::new(header, meta.archive(), payload), meta, more: Vec::new() }
        };
        (0..).zip(lengths).map(piece).collect()
    }

    fn joined(pieces: Vec<ReceivedParcel>) -> Result<Option<Vec<u8>>, PieceError> {
        let mut joiner = Joiner::default();
        let mut whole = None;
        for piece in pieces {
            whole = joiner.add(PARCEL, piece)?;
        }
        Ok(whole.map(|(_, arrived)| arrived.payloads().flatten().copied().collect()))
    }

    #[test]
    fn pieces_join_to_what_was_cut() {
        let payload: Vec<u8> = (0..800_u32).map(|byte| byte as u8).collect();
        for (most, count) in [(10_000, 1), (800, 2), (768, 2), (256, 4), (70, 13)] {
            let pieces = pieces(&payload, most);
            assert_eq!(pieces.len(), count, "{most}");
            assert_eq!(joined(pieces).unwrap().unwrap(), payload);
        }
        assert_eq!(cut(0, 64), [0]);
    }

    #[test]
    fn memory_is_used_again_once_it_has_left() {
        let mut memory = Memory::default();
        let first = memory.take(100);
        let at = first.as_ptr();
        let (exported, mut other) = (memory.export(first), memory.take(50));
        assert_ne!(other.as_ptr(), at, "the first is under way");
        other[0] = 1;
        let other = memory.export(other);
        drop(exported);
        let again = memory.take(80);
        assert_eq!((again.as_ptr(), again.len()), (at, 80));
        assert_eq!(other[0], 1);
    }

    #[test]
    fn pieces_that_are_not_the_next_are_refused() {
        let payload = vec![7; 800];
        let with = |change: fn(&mut Vec<ReceivedParcel>)| {
            let mut all = pieces(&payload, 256);
            change(&mut all);
            joined(all)
        };
        assert!(with(|_| ()).unwrap().is_some());
        assert!(with(|all| drop(all.pop())).unwrap().is_none(), "it waits for the last");
        assert!(with(|all| drop(all.remove(0))).is_err());
        assert!(with(|all| all.swap(1, 2)).is_err());
        assert!(with(|all| all[2].meta.shapes[0][0] = 9).is_err());
        assert!(with(|all| all[0].meta.pieces = MOST_PIECES + 1).is_err());
        assert!(with(|all| all[3].frame.payload = vec![0; 400].into()).is_err(), "more than its shapes say");
    }

    #[test]
    fn no_parcel_is_larger_than_any_may_be_whatever_its_shapes_say() {
        let (piece, mut joiner) = (Bytes::from(vec![0; 128 << 20]), Joiner::default());
        let mut first = pieces(&[0; 800], 256).remove(0);
        (first.meta.pieces, first.meta.shapes) = (MOST_PIECES, vec![vec![2, 1 << 10, 1 << 20]]);
        let taken = (0..MOST_PIECES).take_while(|number| {
            let (mut meta, mut frame) = (first.meta.clone(), first.frame.clone());
            (meta.piece, frame.payload) = (*number, piece.clone());
            joiner.add(PARCEL, ReceivedParcel { meta, frame, more: Vec::new() }).is_ok()
        });
        assert_eq!(taken.count(), 32);
    }
}
