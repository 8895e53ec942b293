//! Parcels of phase 1 as frames, and tensors again. Sends and waits for nothing.

use std::collections::VecDeque;

use asterism_kernels::{Backend, Exported, Heads, RawBytes, TensorOps};
use asterism_models::{ModelError, Parcel, Part};
use asterism_transport::{Frame, FrameHeader, FrameKind, LocalValue, Meta, PayloadType};
use bytes::Bytes;

use crate::{
    context_host::parcels::pieces::{self, Memory, ReceivedParcel},
    messages::{ParcelMeta, ParcelPart, WireMessage},
    payload,
};

/// A parcel to be sent.
pub type Sent<'a, B> = (Parcel, &'a [<B as TensorOps>::Tensor]);

/// A frame that is to be, but for its payload.
struct PendingFrame {
    /// Of which parcel.
    place: usize,
    header: FrameHeader,
    meta: Meta,
    /// Of the payload.
    bytes: usize,
}

/// Parcels of one encoder.
pub struct Parcels<'a, B: Backend> {
    /// Where their tensors are.
    pub backend: &'a B,
}

impl<B: Backend> Parcels<'_, B> {
    /// Each parcel in as many frames as it needs, of at most so many bytes: `take` gets each with the parcel's place, while those
    /// behind it are on the device still. Small parcels are fetched together.
    pub fn frames(
        &self,
        parcels: &[Sent<'_, B>],
        pieces: (usize, &mut Memory),
        take: impl FnMut(usize, Frame) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let tensors: Vec<B::Tensor> = parcels.iter().flat_map(|(_, tensors)| *tensors).cloned().collect();
        let raw = self.backend.raw(&tensors)?;
        let headings = parcels.iter().map(|(parcel, tensors)| self.heading(*parcel, tensors)).collect();
        cut(&*raw, headings, pieces, take)
    }

    /// Keys and values of so many tokens of a layer, as they are kept.
    pub fn kept_frames(
        &self,
        parcel: Parcel,
        (heads, tokens, raw): (Heads, usize, &dyn RawBytes),
        pieces: (usize, &mut Memory),
        take: impl FnMut(usize, Frame) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let (shape, payload_type) = self.kept(heads, tokens);
        cut(raw, vec![heading(parcel, vec![shape; 2], payload_type)], pieces, take)
    }

    /// The shape of the keys, and of the values, of so many tokens of a layer as they are kept, and their type on the wire.
    pub fn kept(&self, Heads { kv, dim, .. }: Heads, tokens: usize) -> ([u32; 3], PayloadType) {
        let of = self.backend.kv_type();
        let (row, payload_type) = match of.is_computed() {
            true => (dim, payload::payload_type(of.computed)),
            false => (of.row_bytes(dim), PayloadType::Bytes),
        };
        ([kv, tokens, row].map(|size| size as u32), payload_type)
    }

    /// A parcel for hosts of this process.
    pub fn exported(&self, (parcel, tensors): Sent<'_, B>) -> Result<Frame, ModelError> {
        let (header, meta) = self.heading(parcel, tensors);
        let exported: Exported<B> = self.backend.export(tensors.to_vec())?;
        Ok(Frame::new(header, meta.archive(), Bytes::new()).handing(LocalValue::new(exported)))
    }

    /// What says of a parcel in one frame what it is.
    fn heading(&self, parcel: Parcel, tensors: &[B::Tensor]) -> (FrameHeader, ParcelMeta) {
        let shape = |tensor: &B::Tensor| self.backend.shape(tensor).into_iter().map(|size| size as u32).collect();
        let shapes: Vec<Vec<u32>> = tensors.iter().map(shape).collect();
        heading(parcel, shapes, payload::payload_type(self.backend.dtype()))
    }

    /// The tensors of a parcel that came.
    pub fn read(&self, arrived: &ReceivedParcel) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, ReceivedParcel { meta, frame, .. }) = (self.backend, arrived);
        let wrong = |cause: String| ModelError::Host { host: format!("of shard {}", meta.from), cause };
        let expected = payload::payload_type(backend.dtype());
        if let Some(handed) = &frame.handed {
            let exported = handed
                .get::<Exported<B>>()
                .ok_or_else(|| wrong("it handed over what no host of this kind has".into()))?;
            return Ok((*exported)(backend)?);
        }
        if frame.header.payload_type != expected {
            return Err(wrong(format!("expected {expected:?} tensors, got {:?}", frame.header)));
        }
        let (tensors, part) = (meta.shapes.len(), meta.part);
        if tensors != part.tensors() || meta.shapes.iter().any(|shape| shape.len() != 3) {
            return Err(wrong(format!(
                "{part:?} are {} tensors of 3 dimensions, got {:?}",
                part.tensors(),
                meta.shapes
            )));
        }
        let sizes: Vec<Vec<usize>> =
            meta.shapes.iter().map(|shape| shape.iter().map(|size| *size as usize).collect()).collect();
        let count = |shape: &[usize]| shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
        let counts = sizes.iter().map(|shape| count(shape)).collect::<Option<Vec<_>>>();
        let total =
            counts.as_ref().and_then(|counts| counts.iter().try_fold(0_usize, |all, count| all.checked_add(*count)));
        let (Some(counts), Some(total)) = (counts, total) else {
            return Err(wrong(format!("its shapes are {sizes:?}")));
        };
        let bytes = arrived.payloads().map(<[u8]>::len).sum();
        payload::check(bytes, total, expected).map_err(|error| wrong(error.to_string()))?;
        let (mut pieces, each) = (arrived.payloads().collect(), payload::element_bytes(expected));
        let upload = |(shape, count): (&Vec<usize>, usize)| {
            Ok(backend.upload_raw(shape, &take_first(&mut pieces, count * each))?)
        };
        sizes.iter().zip(counts).map(upload).collect()
    }
}

/// Bytes of parcels in frames.
fn cut(
    raw: &dyn RawBytes,
    headings: Vec<(FrameHeader, ParcelMeta)>,
    (piece_bytes, memory): (usize, &mut Memory),
    mut take: impl FnMut(usize, Frame) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let mut all = Vec::new();
    for (place, (header, meta)) in headings.into_iter().enumerate() {
        let count: usize =
            meta.shapes.iter().map(|shape| shape.iter().map(|size| *size as usize).product::<usize>()).sum();
        let lengths = pieces::cut(count * payload::element_bytes(header.payload_type), piece_bytes);
        let pieces = lengths.len() as u32;
        let meta = |piece| ParcelMeta { piece, pieces, ..meta.clone() }.archive().into();
        let piece = |(piece, bytes)| PendingFrame { place, header, meta: meta(piece), bytes };
        all.extend((0..).zip(lengths).map(piece));
    }
    let (mut rest, mut start) = (all.into_iter().peekable(), 0);
    while let Some(first) = rest.next() {
        let (mut bytes, mut together) = (first.bytes, vec![first]);
        while let Some(next) = rest.next_if(|next| bytes + next.bytes <= piece_bytes) {
            bytes += next.bytes;
            together.push(next);
        }
        let mut fetched = memory.take(bytes);
        raw.read(start, &mut fetched)?;
        start += bytes;
        let mut fetched = memory.export(fetched);
        for PendingFrame { place, header, meta, bytes } in together {
            take(place, Frame::new(header, meta, fetched.split_to(bytes)))?;
        }
    }
    Ok(())
}

/// What says of a parcel in one frame what it is.
fn heading<S: Into<Vec<u32>>>(parcel: Parcel, shapes: Vec<S>, payload_type: PayloadType) -> (FrameHeader, ParcelMeta) {
    let meta = ParcelMeta {
        layer: parcel.layer as u32,
        part: parcel.part.into(),
        from: parcel.from as u32,
        to: parcel.to.map(|block| block as u32),
        shapes: shapes.into_iter().map(Into::into).collect(),
        piece: 0,
        pieces: 1,
    };
    (FrameHeader { kind: FrameKind::Data, payload_type, correlation: 0 }, meta)
}

/// Takes so many bytes off the beginning of pieces.
pub(super) fn take_first<'a>(pieces: &mut VecDeque<&'a [u8]>, mut bytes: usize) -> Vec<&'a [u8]> {
    let mut taken = Vec::new();
    while bytes > 0 {
        let Some(first) = pieces.front_mut() else { break };
        let own = first.split_off(..bytes.min(first.len())).expect("it is no longer than that");
        bytes -= own.len();
        taken.push(own);
        if first.is_empty() {
            pieces.pop_front();
        }
    }
    taken
}

impl ParcelPart {
    /// Tensors of such a parcel.
    fn tensors(self) -> usize {
        match self {
            Self::Keys => 2,
            Self::Heads => 3,
            Self::Queries | Self::Outputs => 1,
        }
    }
}

impl From<Part> for ParcelPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Keys => Self::Keys,
            Part::Queries => Self::Queries,
            Part::Heads => Self::Heads,
            Part::Outputs => Self::Outputs,
        }
    }
}

impl From<ParcelPart> for Part {
    fn from(part: ParcelPart) -> Self {
        match part {
            ParcelPart::Keys => Self::Keys,
            ParcelPart::Queries => Self::Queries,
            ParcelPart::Heads => Self::Heads,
            ParcelPart::Outputs => Self::Outputs,
        }
    }
}

#[cfg(test)]
mod tests {
    use asterism_kernels::{Cpu, CpuOptions, DType};

    use super::{super::pieces::Joiner, *};

    #[test]
    fn what_came_lies_beside_what_was_made_here() {
        for dtype in [DType::F32, DType::Bf16] {
            let cpu = Cpu::new(CpuOptions { dtype, threads: Some(1), ..CpuOptions::default() }).unwrap();
            let (shape, values) = ([2, 3, 4], (0..24).map(|x| x as f32 / 8.0).collect::<Vec<_>>());
            let made = cpu.cast(&cpu.upload(&shape, &values).unwrap()).unwrap();
            let parcels = Parcels { backend: &cpu };
            for part in [Part::Keys, Part::Queries, Part::Heads, Part::Outputs] {
                let tensors = vec![made.clone(); ParcelPart::from(part).tensors()];
                let parcel = Parcel { layer: 0, part, from: 0, to: Some(1) };
                // Whole, with pieces that end within tensors, and another in the same frame's memory.
                for piece_bytes in [1 << 20, 64] {
                    let mut came: [Vec<Frame>; 2] = Default::default();
                    let both = [(parcel, &tensors[..]), (Parcel { from: 2, ..parcel }, &tensors)];
                    let take = |place: usize, frame| {
                        came[place].push(frame);
                        Ok(())
                    };
                    parcels.frames(&both, (piece_bytes, &mut Memory::default()), take).unwrap();
                    for (frames, (parcel, _)) in came.into_iter().zip(both) {
                        let mut joiner = Joiner::default();
                        let whole = frames.into_iter().find_map(|frame| {
                            let meta = ParcelMeta::read(&frame.meta, "itself").unwrap();
                            joiner.add(parcel, ReceivedParcel { meta, frame, more: Vec::new() }).unwrap()
                        });
                        for came in parcels.read(&whole.unwrap().1).unwrap() {
                            let both = cpu.concat(&[came, made.clone()], 0).unwrap();
                            let both = cpu.download(&both).unwrap();
                            assert_eq!(both, [&values[..], &values].concat(), "{part:?} in {dtype:?}");
                        }
                    }
                }
            }
        }
    }
}
