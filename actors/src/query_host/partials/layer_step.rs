//! What a layer step asks of all hosts, as frames, and what they answer. Reads and writes no line.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Backend, Exported, Heads, KernelError, Mask};
use asterism_models::{LayerQueries, PackedRows, PartAsk, PartialRows, ShardPartial, StepError};
use asterism_transport::{Frame, FrameHeader, FrameKind, LocalValue, PayloadType};
use bytes::{Bytes, BytesMut};

use crate::{
    messages::{QueryMeta, QueryPart, ShardKeys, StreamingMask, WireMessage},
    payload::{self, Floats, are_numbers},
    query_host::partials::answers::AnswerError,
};

/// The layer step under way.
pub struct LayerStep<B: Backend> {
    /// Job of each part of the step, and whether a token comes of it.
    pub jobs: Vec<(u64, bool)>,
    /// Number of the step.
    pub step: u32,
    /// Layer.
    pub layer: u32,
    /// The rows of all parts on the device, `(rows, query heads dim)`.
    queries: Option<B::Tensor>,
    /// The same as they travel, once that is needed.
    payload: Option<Bytes>,
    heads: Option<(Heads, PayloadType)>,
    /// Parts that are still in the step.
    pub parts: Vec<LayerStepPart<B>>,
}

impl<B: Backend> Default for LayerStep<B> {
    fn default() -> Self {
        let (jobs, parts, queries, payload, heads) = Default::default();
        Self { jobs, step: 0, layer: 0, queries, payload, heads, parts }
    }
}

/// A part of the step.
pub struct LayerStepPart<B: Backend> {
    /// Job.
    pub job: u64,
    /// Whether a token comes of it.
    pub token: bool,
    /// Its rows among those of all.
    pub rows: Range<usize>,
    mask: Option<StreamingMask>,
    /// What came so far.
    pub answers: Vec<ShardPartial<'static, B>>,
    /// Whether all of it did, or why it will not.
    pub end: Option<Result<(), StepError>>,
}

impl<B: Backend> LayerStep<B> {
    /// A layer's queries are asked of the contexts of these parts.
    pub fn layer(
        &mut self,
        LayerQueries { layer, window, heads, q }: LayerQueries<'_, B>,
        kind: PayloadType,
        asks: &[PartAsk],
    ) {
        let part = |ask: &PartAsk| {
            let (job, token) = self.jobs[ask.part];
            LayerStepPart {
                job,
                token,
                rows: ask.rows.clone(),
                mask: streaming(ask.mask_within(window)),
                answers: Vec::new(),
                end: None,
            }
        };
        self.parts = asks.iter().map(part).collect();
        (self.layer, self.queries, self.payload) = (layer as u32, Some(q.clone()), None);
        self.heads = Some((heads, kind));
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

    /// The partials of groups of shards, which lie in `range` of `values`; the error says which are no numbers.
    pub fn partials(
        &self,
        groups: &[Vec<ShardKeys>],
        (values, range): (&Arc<Floats>, Range<usize>),
    ) -> Result<Vec<ShardPartial<'static, B>>, AnswerError> {
        let each = range.len() / groups.len().max(1);
        let mut partials = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            let start = range.start + index * each;
            let rows = PackedRows::new(values.clone(), start..start + each);
            let shards: Vec<(usize, u64)> = group.iter().map(|shard| (shard.block as usize, shard.keys)).collect();
            if self.heads.is_some_and(|(heads, _)| !are_numbers(heads, rows.values())) {
                let shard = shards.first().map_or(0, |shard| shard.0);
                return Err(AnswerError::NotFinite { shard, layer: self.layer });
            }
            partials.push(ShardPartial { shards, rows: PartialRows::Host(rows) });
        }
        Ok(partials)
    }

    /// The partials of groups of shards, each of so many rows, which are those of `exported` from `start` on.
    pub fn exported(
        groups: &[Vec<ShardKeys>],
        (exported, start): (&Arc<Exported<B>>, usize),
        rows: usize,
    ) -> Vec<ShardPartial<'static, B>> {
        let partial = |(index, group): (usize, &Vec<ShardKeys>)| ShardPartial {
            shards: group.iter().map(|shard| (shard.block as usize, shard.keys)).collect(),
            rows: PartialRows::Exported(exported.clone(), start + index * rows..start + (index + 1) * rows),
        };
        groups.iter().enumerate().map(partial).collect()
    }

    /// The frame that asks for parts by the attachments that they go to, over a line that hands over or does not.
    pub fn frame(&mut self, backend: &B, asks: &[(usize, u64)], hands_over: bool) -> Result<Frame, KernelError> {
        if hands_over {
            let queries = LocalValue::new::<Exported<B>>(backend.export(vec![self.rows_of(backend, asks)?])?);
            return Ok(self.heading(asks, Bytes::new()).handing(queries));
        }
        let payload = self.bytes_of(backend, asks)?;
        Ok(self.heading(asks, payload))
    }

    /// Whether these are all parts, in order.
    fn all(&self, asks: &[(usize, u64)]) -> bool {
        asks.len() == self.parts.len() && asks.iter().map(|ask| ask.0).eq(0..asks.len())
    }

    /// The rows of some parts, on the device.
    fn rows_of(&self, backend: &B, asks: &[(usize, u64)]) -> Result<B::Tensor, KernelError> {
        let queries = self.queries.as_ref().expect("a layer is asked");
        let rows = |part: usize| backend.rows(queries, self.parts[part].rows.start, self.parts[part].rows.end);
        match asks {
            asks if self.all(asks) => Ok(queries.clone()),
            [(part, _)] => rows(*part),
            asks => backend.concat(&asks.iter().map(|ask| rows(ask.0)).collect::<Result<Vec<_>, _>>()?, 0),
        }
    }

    /// The rows of some parts, as they travel.
    fn bytes_of(&mut self, backend: &B, asks: &[(usize, u64)]) -> Result<Bytes, KernelError> {
        let (heads, kind) = self.heads.expect("a layer is asked");
        let payload = match &self.payload {
            Some(payload) => payload.clone(),
            None => {
                let (mut bytes, queries) = (Vec::new(), self.queries.as_ref().expect("a layer is asked"));
                payload::write(&mut bytes, &backend.download(queries)?, kind);
                self.payload.insert(bytes.into()).clone()
            }
        };
        let row_bytes = heads.query * heads.dim * payload::element_bytes(kind);
        let bytes = |part: usize| {
            let rows = &self.parts[part].rows;
            payload.slice(rows.start * row_bytes..rows.end * row_bytes)
        };
        Ok(match asks {
            asks if self.all(asks) => payload,
            [(part, _)] => bytes(*part),
            asks => {
                let mut joined = BytesMut::new();
                asks.iter().for_each(|(part, _)| joined.extend_from_slice(&bytes(*part)));
                joined.freeze()
            }
        })
    }

    fn heading(&self, asks: &[(usize, u64)], payload: Bytes) -> Frame {
        let part = |(part, attachment): &(usize, u64)| {
            let LayerStepPart { rows, mask, .. } = &self.parts[*part];
            QueryPart { attachment: *attachment, rows: rows.len() as u32, mask: *mask }
        };
        let parts: Vec<QueryPart> = asks.iter().map(part).collect();
        let header = FrameHeader {
            kind: FrameKind::Request,
            payload_type: self.heads.map_or(PayloadType::None, |(_, kind)| kind),
            correlation: correlation(self.step, self.layer),
        };
        Frame::new(header, QueryMeta { layer: self.layer, parts }.archive(), payload)
    }
}

/// The number that answers to a layer step repeat.
fn correlation(step: u32, layer: u32) -> u64 {
    u64::from(step) << 32 | u64::from(layer)
}

/// The step and the layer that an answer is to.
pub fn step_and_layer(correlation: u64) -> (u32, u32) {
    ((correlation >> 32) as u32, correlation as u32)
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
