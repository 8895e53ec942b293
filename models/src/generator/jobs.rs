//! The jobs of a step, on the device that has their own keys and values: a layer's partials over these, and those that their
//! contexts answer with.

pub(super) mod laid;

use std::{borrow::Cow, sync::Arc};

use asterism_kernels::{Ask, Backend, Heads, TensorOps};

use super::{
    answers::{Answers, LayerQueries, PackedRows, PartialRows, ShardPartial, StepError},
    batch::{BatchStep, PartAsk},
    context::ContextAttention,
    job::{Append, StepPart},
    layer::{Attention, LayerAttention, LayerPartials},
    merging::{Answer, Answered},
    partials::{Partial, Partials, attend_on_device, attend_on_host},
};
use crate::{Decoder, ModelError};

/// How each part of a step ended: its rows `(t, e)` of the residual stream ([`Decoder::logits`] of the last one give the
/// next token), or why it has none.
pub type StepEnds<B> = Vec<Result<<B as TensorOps>::Tensor, StepError>>;

/// What the jobs of a step bring, and why some of them left it.
pub(super) struct Jobs<'a, 'b, B: Backend> {
    pub parts: &'a mut [StepPart<'b, B>],
    /// Of each part.
    pub left: Vec<Option<StepError>>,
}

impl<'a, 'b, B: Backend> Jobs<'a, 'b, B> {
    /// The jobs of these parts, and the step that they take: those whose tokens there are.
    pub fn new(decoder: &Decoder<B>, parts: &'a mut [StepPart<'b, B>]) -> (Self, BatchStep) {
        let (mut step, mut left) = (BatchStep::default(), Vec::with_capacity(parts.len()));
        for (part, StepPart { generator, ids }) in parts.iter().enumerate() {
            let refused = decoder.check_ids(ids).err().map(StepError::Failed);
            if refused.is_none() {
                let start = step.ids.len();
                step.ids.extend_from_slice(ids);
                step.parts.push(generator.ask(part, start..step.ids.len()));
            }
            left.push(refused);
        }
        (Self { parts, left }, step)
    }

    /// Every layer is done for the parts that are in the step still, whose rows `x` are, or none is.
    pub fn end(self, backend: &B, step: BatchStep, x: Option<B::Tensor>) -> Result<StepEnds<B>, ModelError> {
        let mut ends: Vec<_> = self.left.into_iter().map(|left| left.map(Err)).collect();
        for (PartAsk { part, rows, .. }, x) in step.parts.into_iter().zip(x.iter().cycle()) {
            self.parts[part].generator.advance(rows.len());
            ends[part] = Some(Ok(backend.rows(x, rows.start, rows.end)?));
        }
        Ok(ends.into_iter().map(|end| end.expect("a part is in the step or has left it")).collect())
    }
}

/// Jobs whose contexts are asked.
pub(super) struct JobsAttention<'a, 'j, 'p, B: Backend> {
    pub decoder: &'a Decoder<B>,
    pub jobs: &'a mut Jobs<'j, 'p, B>,
    pub context: &'a mut dyn ContextAttention<B>,
    /// Packed rows of the jobs' own keys; kept for its memory.
    pub packed: Arc<Vec<f32>>,
}

impl<B: Backend> Attention<B> for JobsAttention<'_, '_, '_, B> {
    fn attend(
        &mut self,
        step: &BatchStep,
        layer: usize,
        [q, k, v]: [&B::Tensor; 3],
    ) -> Result<LayerAttention<'_, B>, ModelError> {
        let (backend, heads) = (self.decoder.backend(), self.decoder.config().heads);
        let window = self.decoder.config().window(layer);
        let answers = self.context.ask(LayerQueries { layer, window, heads, q }, &step.parts)?;
        let Jobs { parts, left } = &mut *self.jobs;
        append(self.decoder, parts, step, layer, [k, v])?;
        let own: Vec<Ask<'_, B::Kv>> =
            step.parts.iter().map(|ask| parts[ask.part].generator.own_ask((layer, window), ask)).collect();
        let (own, answers): (Vec<_>, _) = match answers {
            Answers::Here(answers) => (own.into_iter().map(Partial::Keys).collect(), answers),
            Answers::Coming { on_devices: true, collect } => {
                let own = attend_on_device(backend, (heads, q), &own)?;
                (own.into_iter().map(Partial::Device).collect(), collect()?)
            }
            Answers::Coming { on_devices: false, collect } => {
                let own = attend_on_host(backend, (heads, q), &own, &mut self.packed)?;
                (own.into_iter().map(Partial::Host).collect(), collect()?)
            }
        };
        let mut all = Vec::new();
        let answered: Vec<Option<Answered>> = step
            .parts
            .iter()
            .zip(answers)
            .map(|(ask, answer)| {
                let placed = answer.map(|partials| placed(ask, partials, &mut all));
                let reviewed = placed.and_then(|answers| parts[ask.part].generator.review(layer, answers));
                reviewed.map_err(|error| left[ask.part] = Some(error)).ok()
            })
            .collect();
        let merged = answered.iter().zip(all.len()..).filter_map(|(part, own)| Some((part.as_ref()?, own)));
        let merged: Vec<(&Answered, usize)> = merged.collect();
        all.extend(own);
        let sinks = self.decoder.sinks(layer).map(|sinks| {
            let first = all.len();
            let rows = |ask: &PartAsk| Partial::Host(sink_rows(heads, sinks, ask.rows.len()));
            let stays = step.parts.iter().zip(&answered).filter(|(_, answered)| answered.is_some());
            all.extend(stays.map(|(ask, _)| rows(ask)));
            first
        });
        let mut merging = Answered::merging(&merged, all.len());
        if let Some(first) = sinks {
            merging.tops.iter_mut().enumerate().for_each(|(part, top)| top.push(first + part));
        }
        let stays = answered.iter().map(Option::is_some).collect();
        let partials = Partials { heads, all };
        Ok(LayerAttention::Partials(LayerPartials { partials, merging: Cow::Owned(merging), stays }))
    }

    fn merged(&mut self) {
        self.context.merged();
    }
}

/// Packed rows that have no output, and the sinks of a layer for their log-sum-exps.
fn sink_rows(heads: Heads, sinks: &[f32], rows: usize) -> PackedRows {
    let row: Vec<f32> = std::iter::repeat_n(0.0, heads.query * heads.dim).chain(sinks.iter().copied()).collect();
    let values = row.repeat(rows);
    let range = 0..values.len();
    PackedRows::new(Arc::new(values), range)
}

/// Appends keys and values `(kv, t, dim)` of all rows to the jobs' own.
fn append<B: Backend>(
    decoder: &Decoder<B>,
    parts: &mut [StepPart<'_, B>],
    step: &BatchStep,
    layer: usize,
    [k, v]: [&B::Tensor; 2],
) -> Result<(), ModelError> {
    if let [PartAsk { part, .. }] = &step.parts[..] {
        return parts[*part].generator.append(decoder, layer, [k, v]);
    }
    let (mut asks, backend) = (step.parts.iter().peekable(), decoder.backend());
    let mut caches = Vec::with_capacity(step.parts.len());
    for (part, job) in parts.iter_mut().enumerate() {
        let Some(ask) = asks.next_if(|ask| ask.part == part) else { continue };
        match job.generator.appends(backend, layer) {
            Append::To(kv) => caches.push((kv, ask.rows.clone())),
            Append::First(tail) => {
                let [k, v] = [k, v].map(|x| backend.narrow(x, 1, ask.rows.start, ask.rows.end));
                tail.push(decoder.kept(&k?, &v?)?);
            }
            Append::Done => {}
        }
    }
    Ok(backend.kv_append_each(caches, k, v)?)
}

/// Puts the partials of a part behind the others; the shards of each, and its number.
fn placed<'a, B: Backend>(
    ask: &PartAsk,
    partials: Vec<ShardPartial<'a, B>>,
    all: &mut Vec<Partial<'a, B>>,
) -> Vec<Answer> {
    let place = |ShardPartial { shards, rows }: ShardPartial<'a, B>| {
        all.push(match rows {
            PartialRows::Keys { kv, mask, holes } => Partial::Keys(Ask { kv, rows: ask.rows.clone(), mask, holes }),
            PartialRows::Exported(exported, rows) => Partial::Exported(exported, rows),
            PartialRows::Host(rows) => Partial::Host(rows),
        });
        (shards, all.len() - 1)
    };
    partials.into_iter().map(place).collect()
}
