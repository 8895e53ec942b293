//! Parcels that are larger than a frame may be: cut into pieces where they leave, joined where they arrive. Whose they are
//! and what they hold is not looked at.

use asterism_models::Parcel;
use bytes::Bytes;

use super::{error::PieceError, mailroom::Arrived};
use crate::{messages::ParcelMeta, payload};

/// Most pieces of a parcel, in whole frames 4 GiB. What is larger is refused where it is planned.
pub const MOST_PIECES: u32 = 16;

/// The payloads of the pieces of a parcel, none larger than `most` bytes.
pub fn cut(payload: &Bytes, most: usize) -> Vec<Bytes> {
    // Whole elements.
    let most = (most / 64 * 64).max(64);
    let starts = (0..payload.len().max(1)).step_by(most);
    starts.map(|start| payload.slice(start..payload.len().min(start + most))).collect()
}

/// The parcel that comes over a channel, piece by piece: the next one begins when it is whole.
#[derive(Default)]
pub struct Joiner(Option<Coming>);

struct Coming {
    parcel: Parcel,
    first: Arrived,
    bytes: Vec<u8>,
    next: u32,
}

impl Joiner {
    /// Takes a piece in; gives the parcel when it was the last.
    ///
    /// # Errors
    /// What is wrong with a piece that is not the one expected.
    pub fn add(&mut self, parcel: Parcel, mut piece: Arrived) -> Result<Option<(Parcel, Arrived)>, PieceError> {
        let ParcelMeta { piece: at, pieces, .. } = piece.meta;
        let Some(mut coming) = self.0.take() else {
            if at != 0 || !(1..=MOST_PIECES).contains(&pieces) {
                return Err(PieceError::First { piece: at, pieces, most: MOST_PIECES });
            }
            if pieces == 1 {
                return Ok(Some((parcel, piece)));
            }
            let bytes = std::mem::take(&mut piece.frame.payload).into();
            self.0 = Some(Coming { parcel, first: piece, bytes, next: 1 });
            return Ok(None);
        };
        let expected = ParcelMeta { piece: coming.next, ..coming.first.meta.clone() };
        if parcel != coming.parcel || piece.meta != expected || piece.frame.header != coming.first.frame.header {
            let named = |parcel: Parcel, meta: &ParcelMeta| format!("{meta:?} of {parcel:?}");
            let (expected, got) = (named(coming.parcel, &expected), named(parcel, &piece.meta));
            return Err(PieceError::Next { expected, got });
        }
        let whole = whole_bytes(&coming.first);
        if whole.is_none_or(|whole| coming.bytes.len() + piece.frame.payload.len() > whole) {
            return Err(PieceError::TooLong { shapes: expected.shapes });
        }
        coming.bytes.extend_from_slice(&piece.frame.payload);
        coming.next += 1;
        if coming.next < pieces {
            self.0 = Some(coming);
            return Ok(None);
        }
        let Coming { parcel, mut first, bytes, .. } = coming;
        first.frame.payload = bytes.into();
        Ok(Some((parcel, first)))
    }
}

/// Bytes of all tensors of a parcel; none if they are more than can be counted.
pub fn whole_bytes(arrived: &Arrived) -> Option<usize> {
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

    fn pieces(payload: &[u8], most: usize) -> Vec<Arrived> {
        let payloads = cut(&Bytes::copy_from_slice(payload), most);
        let pieces = payloads.len() as u32;
        let piece = |(piece, payload): (u32, Bytes)| {
            let shapes = vec![vec![2, 5, 10], vec![1, 5, 20]];
            let meta = ParcelMeta { part: ParcelPart::Keys, from: 1, to: None, shapes, piece, pieces };
            let (kind, payload_type) = (FrameKind::Parcel, PayloadType::F32);
            let header = FrameHeader { kind, job: 1, shard_set: 0, layer: 2, step: 0, rows: 0, payload_type };
            Arrived { frame: Frame::new(header, meta.archive(), payload), meta }
        };
        (0..).zip(payloads).map(piece).collect()
    }

    fn joined(pieces: Vec<Arrived>) -> Result<Option<Bytes>, PieceError> {
        let mut joiner = Joiner::default();
        let mut whole = None;
        for piece in pieces {
            whole = joiner.add(PARCEL, piece)?;
        }
        Ok(whole.map(|(_, arrived)| arrived.frame.payload))
    }

    #[test]
    fn pieces_join_to_what_was_cut() {
        let payload: Vec<u8> = (0..800_u32).map(|byte| byte as u8).collect();
        for (most, count) in [(10_000, 1), (800, 2), (768, 2), (256, 4), (70, 13)] {
            let pieces = pieces(&payload, most);
            assert_eq!(pieces.len(), count, "{most}");
            assert_eq!(joined(pieces).unwrap().unwrap(), payload);
        }
        assert_eq!(cut(&Bytes::new(), 64), [Bytes::new()]);
    }

    #[test]
    fn pieces_that_are_not_the_next_are_refused() {
        let payload = vec![7; 800];
        let with = |change: fn(&mut Vec<Arrived>)| {
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
}
