//! What a layer step asks of all hosts, as frames, and what they answer. Reads and writes no line.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Heads, Mask};
use asterism_models::{PackedRows, PartAsk, ShardPartial, StepError};
use asterism_transport::{Frame, FrameHeader, FrameKind, PayloadType};
use bytes::{Bytes, BytesMut};

use crate::{
    messages::{QueryMeta, QueryPart, ShardKeys, StreamingMask, WireMessage},
    payload::{self, Floats},
};

/// The layer step under way.
#[derive(Default)]
pub struct Asked {
    /// Job of each part of the step, and whether a token comes of it.
    pub jobs: Vec<(u64, bool)>,
    /// Number of the step.
    pub step: u32,
    /// Layer.
    pub layer: u32,
    /// The rows of all parts.
    payload: Bytes,
    row_bytes: usize,
    heads: Option<(Heads, PayloadType)>,
    /// Parts that are still in the step.
    pub parts: Vec<AskedPart>,
}

/// A part of the step.
pub struct AskedPart {
    /// Job.
    pub job: u64,
    /// Whether a token comes of it.
    pub token: bool,
    /// Its rows among those of all.
    pub rows: Range<usize>,
    mask: Option<StreamingMask>,
    /// What came so far.
    pub answers: Vec<ShardPartial>,
    /// Whether all of it did, or why it will not.
    pub end: Option<Result<(), StepError>>,
}

impl Asked {
    /// A layer's queries, whose rows are `payload`, are asked of the contexts of these parts.
    pub fn layer(&mut self, layer: usize, heads: Heads, (payload, kind): (Bytes, PayloadType), asks: &[PartAsk]) {
        let part = |ask: &PartAsk| {
            let (job, token) = self.jobs[ask.part];
            AskedPart { job, token, rows: ask.rows.clone(), mask: streaming(ask.mask), answers: Vec::new(), end: None }
        };
        self.parts = asks.iter().map(part).collect();
        (self.layer, self.payload, self.heads) = (layer as u32, payload, Some((heads, kind)));
        self.row_bytes = heads.query * heads.dim * payload::element_bytes(kind);
    }

    /// Takes the parts that are waited for out of the step, to be taken again, once all of them are stuck.
    pub fn leave_where(&mut self, is_stuck: impl Fn(u64) -> bool) {
        let mut waiting: Vec<_> = self.parts.iter_mut().filter(|part| part.end.is_none()).collect();
        if waiting.iter().all(|part| is_stuck(part.job)) {
            waiting.iter_mut().for_each(|part| part.end = Some(Err(StepError::Later)));
        }
    }

    /// The part of a job, if this layer of this step is what it waits for.
    pub fn awaits(&self, job: u64, of: (u32, u32)) -> Option<usize> {
        let asked = (self.step, self.layer) == of;
        self.parts.iter().position(|part| asked && part.job == job && part.end.is_none())
    }

    /// The partials of groups of shards, which lie in `range` of `values`; the error is a shard whose numbers are none.
    pub fn partials(
        &self,
        groups: &[Vec<ShardKeys>],
        (values, range): (&Arc<Floats>, Range<usize>),
    ) -> Result<Vec<ShardPartial>, usize> {
        let each = range.len() / groups.len().max(1);
        let mut partials = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            let start = range.start + index * each;
            let rows = PackedRows::new(values.clone(), start..start + each);
            let shards: Vec<(usize, u64)> = group.iter().map(|shard| (shard.block as usize, shard.keys)).collect();
            if self.heads.is_some_and(|(heads, _)| !are_numbers(heads, rows.values())) {
                return Err(shards.first().map_or(0, |shard| shard.0));
            }
            partials.push(ShardPartial { shards, rows });
        }
        Ok(partials)
    }

    /// The frame that asks for parts by the attachments that they go to.
    pub fn frame(&self, asks: &[(usize, u64)]) -> Frame {
        let bytes = |part: usize| {
            let rows = &self.parts[part].rows;
            self.payload.slice(rows.start * self.row_bytes..rows.end * self.row_bytes)
        };
        let all = asks.len() == self.parts.len() && asks.iter().map(|ask| ask.0).eq(0..asks.len());
        let payload = match asks {
            _ if all => self.payload.clone(),
            [(part, _)] => bytes(*part),
            asks => {
                let mut joined = BytesMut::new();
                asks.iter().for_each(|(part, _)| joined.extend_from_slice(&bytes(*part)));
                joined.freeze()
            }
        };
        let part = |(part, attachment): &(usize, u64)| {
            let AskedPart { rows, mask, .. } = &self.parts[*part];
            QueryPart { attachment: *attachment, rows: rows.len() as u32, mask: *mask }
        };
        let parts: Vec<QueryPart> = asks.iter().map(part).collect();
        let header = FrameHeader {
            kind: FrameKind::Query,
            job: 0,
            shard_set: 0,
            layer: self.layer,
            step: self.step,
            rows: parts.iter().map(|part| part.rows).sum(),
            payload_type: self.heads.map_or(PayloadType::None, |(_, kind)| kind),
        };
        Frame::new(header, QueryMeta { parts }.archive(), payload)
    }
}

/// Whether partials can be merged. A row that sees none of a shard's keys has a log-sum-exp of minus infinity.
fn are_numbers(heads: Heads, packed: &[f32]) -> bool {
    packed.chunks_exact(heads.packed_row()).all(|row| {
        let (output, lse) = row.split_at(heads.query * heads.dim);
        output.iter().fold(true, |all, value| all & value.is_finite())
            && lse.iter().fold(true, |all, &value| all & (value < f32::INFINITY))
    })
}

/// The mask as it travels; none when every key is seen.
fn streaming(mask: Mask) -> Option<StreamingMask> {
    match mask {
        Mask::Streaming { sink, window, first_row, first_key } => {
            let [sink, window, first_row, first_key] = [sink, window, first_row, first_key].map(|size| size as u64);
            Some(StreamingMask { sink, window, first_row, first_key })
        }
        Mask::None | Mask::Causal | Mask::From { .. } => None,
    }
}
