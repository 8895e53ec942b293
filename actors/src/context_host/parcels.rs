//! Parcels of phase 1 as frames, and tensors again. Sends and waits for nothing.

use asterism_kernels::{Backend, Lent};
use asterism_models::{ModelError, Parcel, Part};
use asterism_transport::{Frame, FrameHeader, FrameKind, Handed};
use bytes::Bytes;

use super::{
    mailroom::{Arrived, Attempt},
    pieces,
};
use crate::{
    messages::{ParcelMeta, ParcelPart, WireMessage},
    payload,
};

/// A parcel to be sent.
pub type Sent<'a, B> = (Parcel, &'a [<B as Backend>::Tensor]);

/// Those of an attempt.
pub struct Parcels<'a, B: Backend> {
    /// Where their tensors are.
    pub backend: &'a B,
    /// The attempt.
    pub attempt: Attempt,
}

impl<B: Backend> Parcels<'_, B> {
    /// Each parcel in as many frames as it needs, of at most so many bytes; all are fetched from the device together.
    pub fn frames(&self, parcels: &[Sent<'_, B>], piece_bytes: usize) -> Result<Vec<Vec<Frame>>, ModelError> {
        let backend = self.backend;
        let tensors: Vec<B::Tensor> = parcels.iter().flat_map(|(_, tensors)| *tensors).cloned().collect();
        let mut bytes = Bytes::from(backend.download_raw(&tensors)?);
        let frames = parcels.iter().map(|(parcel, tensors)| {
            let (header, meta) = self.heading(*parcel, tensors);
            let count: usize = tensors.iter().map(|tensor| backend.shape(tensor).iter().product::<usize>()).sum();
            let payload = bytes.split_to(count * payload::element_bytes(header.payload_type));
            let payloads = pieces::cut(&payload, piece_bytes);
            let pieces = payloads.len() as u32;
            let frame =
                |(piece, payload)| Frame::new(header, ParcelMeta { piece, pieces, ..meta.clone() }.archive(), payload);
            (0..).zip(payloads).map(frame).collect()
        });
        Ok(frames.collect())
    }

    /// A parcel for hosts of this process.
    pub fn lent(&self, (parcel, tensors): Sent<'_, B>) -> Result<Frame, ModelError> {
        let (header, meta) = self.heading(parcel, tensors);
        let lent: Lent<B> = self.backend.lend(tensors.to_vec())?;
        Ok(Frame::new(header, meta.archive(), Bytes::new()).handing(Handed::new(lent)))
    }

    /// What says of a parcel in one frame what it is.
    fn heading(&self, parcel: Parcel, tensors: &[B::Tensor]) -> (FrameHeader, ParcelMeta) {
        let backend = self.backend;
        let shape = |tensor: &B::Tensor| backend.shape(tensor).into_iter().map(|size| size as u32).collect();
        let meta = ParcelMeta {
            part: parcel.part.into(),
            from: parcel.from as u32,
            to: parcel.to.map(|block| block as u32),
            shapes: tensors.iter().map(shape).collect(),
            piece: 0,
            pieces: 1,
        };
        let header = FrameHeader {
            kind: FrameKind::Parcel,
            job: self.attempt.0,
            shard_set: self.attempt.1,
            layer: parcel.layer as u32,
            step: 0,
            rows: 0,
            payload_type: payload::payload_type(backend.dtype()),
        };
        (header, meta)
    }

    /// The tensors of a parcel that came.
    pub fn read(&self, Arrived { meta, frame }: &Arrived) -> Result<Vec<B::Tensor>, ModelError> {
        let backend = self.backend;
        let wrong = |cause: String| ModelError::Host { host: format!("of shard {}", meta.from), cause };
        let expected = payload::payload_type(backend.dtype());
        if let Some(handed) = &frame.handed {
            let lent =
                handed.get::<Lent<B>>().ok_or_else(|| wrong("it handed over what no host of this kind has".into()))?;
            return Ok((*lent)(backend)?);
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
        payload::check(&frame.payload, total, expected).map_err(|error| wrong(error.to_string()))?;
        let (mut rest, each) = (&frame.payload[..], payload::element_bytes(expected));
        let mut tensors = Vec::with_capacity(sizes.len());
        for (shape, count) in sizes.iter().zip(counts) {
            let (own, after) = rest.split_at(count * each);
            tensors.push(backend.upload_raw(shape, own)?);
            rest = after;
        }
        Ok(tensors)
    }
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

    use super::*;

    #[test]
    fn what_came_lies_beside_what_was_made_here() {
        for dtype in [DType::F32, DType::Bf16] {
            let cpu = Cpu::new(CpuOptions { dtype, threads: Some(1), ..CpuOptions::default() }).unwrap();
            let (shape, values) = ([2, 3, 4], (0..24).map(|x| x as f32 / 8.0).collect::<Vec<_>>());
            let made = cpu.cast(&cpu.upload(&shape, &values).unwrap()).unwrap();
            let parcels = Parcels { backend: &cpu, attempt: (1, 1) };
            for part in [Part::Keys, Part::Queries, Part::Heads, Part::Outputs] {
                let tensors = vec![made.clone(); ParcelPart::from(part).tensors()];
                let parcel = Parcel { layer: 0, part, from: 0, to: Some(1) };
                let mut frames = parcels.frames(&[(parcel, &tensors)], 1 << 20).unwrap();
                let frame = frames.remove(0).remove(0);
                let arrived = Arrived { meta: parcels.heading(parcel, &tensors).1, frame };
                for came in parcels.read(&arrived).unwrap() {
                    let both = cpu.concat(&[came, made.clone()], 0).unwrap();
                    assert_eq!(cpu.download(&both).unwrap(), [&values[..], &values].concat(), "{part:?} in {dtype:?}");
                }
            }
        }
    }
}
