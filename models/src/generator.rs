//! Phase 2: queries and generated tokens of several jobs, attending to context shards that live elsewhere. A step takes rows
//! of many jobs through the linear layers together; a row's bits do not depend on its company.

mod context;
mod devices;
mod merging;
mod team;

use std::{borrow::Cow, ops::Range, sync::Arc};

use asterism_kernels::{Ask, Backend, Mask, TensorOps};
use asterism_plan::{ContextView, KeptShard, MergeTree, Plan, attention::Streaming};

pub use context::{
    ContextAttention, Held, HeldShards, LayerQueries, LocalContext, PackedRows, PartAnswer, PartAsk, PartialRows,
    ShardPartial, StepError,
};

pub use team::{Team, TeamContext, TensorParallel};

use crate::{Decoder, EncodedShard, ModelError, decoder::Projected};
use merging::{Answer, Answered};

/// The state of phase 2 of one job on the query host: its own keys and values and the next position.
pub struct Generator<B: Backend> {
    tail: Vec<B::Kv>,
    context: ContextKeys,
    merge: Arc<MergeTree>,
    next_position: u32,
    /// The position behind the question, where it is longer than a step.
    question_end: u32,
    /// Rows that went through, and fresh keys before them.
    rows: usize,
}

/// The keys that phase 2 finds in the context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextKeys {
    /// Its shards in merge order: the keys that each must answer for, and the group that it is merged with.
    pub shards: Vec<KeptShard>,
    /// Partials that are merged at a time, above the groups.
    pub fan_in: u32,
    /// Which of the keys a row sees.
    pub view: ContextView,
}

impl ContextKeys {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self { shards: plan.kept_shards(), fan_in: plan.fan_in, view: plan.view }
    }
}

/// What one job brings to a step.
pub struct StepPart<'a, B: Backend> {
    /// The job.
    pub generator: &'a mut Generator<B>,
    /// Its query, the next tokens of it, or one generated token. A step that is taken again brings the same.
    pub ids: &'a [u32],
}

/// How each part of a step ended: its rows `(t, e)` of the residual stream ([`Decoder::logits`] of the last one give the
/// next token), or why it has none.
pub type StepEnds<B> = Vec<Result<<B as TensorOps>::Tensor, StepError>>;

impl<B: Backend> Generator<B> {
    /// Starts behind a context; the first query token has position id `query_start`.
    pub fn new(context: ContextKeys, query_start: u32) -> Self {
        let merge = Arc::new(MergeTree::new(&context.shards, context.fan_in));
        Self { tail: Vec::new(), context, merge, next_position: query_start, question_end: 0, rows: 0 }
    }

    /// With a question of so many tokens, however few a step brings: where rotary frequencies depend on the length of the sequence,
    /// its rows have those of the whole prompt, and each later row those of what is there with it.
    #[must_use]
    pub fn asked(self, question: usize) -> Self {
        Self { question_end: self.next_position.saturating_add(question as u32), ..self }
    }

    /// Starts behind a context of which the query host has some tokens anew: rows see these keys before their own, whoever
    /// answers for the others.
    ///
    /// # Panics
    /// When rows went through already.
    pub fn refresh(&mut self, fresh: EncodedShard<B>) {
        assert!(self.tail.is_empty(), "fresh keys come before the first row");
        (self.tail, self.rows) = (fresh.layers, fresh.tokens);
    }

    /// Starts behind the context of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self::new(ContextKeys::of(plan), plan.query_start)
    }

    /// A step of this job alone.
    ///
    /// # Errors
    /// As [`step`]; a part that was to be taken again is [`ModelError::Cancelled`].
    pub fn step(
        &mut self,
        decoder: &Decoder<B>,
        ids: &[u32],
        context: &mut dyn ContextAttention<B>,
    ) -> Result<B::Tensor, ModelError> {
        let ends = step(decoder, &mut [StepPart { generator: self, ids }], context)?;
        ends.into_iter().next().expect("an end for the part").map_err(|error| match error {
            StepError::Failed(error) => error,
            StepError::Later => ModelError::Cancelled,
        })
    }
}

/// Takes the rows of every part through every layer, together.
///
/// A part whose context does not answer, or not for all of its keys ([`ModelError::KeyCount`]: a step is refused, never
/// renormalised), leaves the step; the others go on. It may be taken again from the start: keys and values that it left are
/// the same to the last bit, and stay.
///
/// # Errors
/// What ends the step for all parts: a kernel that fails, a context that is no more.
pub fn step<B: Backend>(
    decoder: &Decoder<B>,
    parts: &mut [StepPart<'_, B>],
    context: &mut dyn ContextAttention<B>,
) -> Result<StepEnds<B>, ModelError> {
    let mut batch = Batch::new(decoder, parts);
    let ids: Vec<u32> = batch.live.iter().flat_map(|live| batch.parts[live.part].ids).copied().collect();
    if let [Live { part, .. }] = batch.live[..]
        && let Some(team) = context.team(part, ids.len())
    {
        return batch.together(&team, &ids);
    }
    let mut x = if ids.is_empty() { None } else { Some(decoder.embed(&ids)?) };
    for layer in 0..decoder.config().layers {
        x = match x {
            Some(x) => batch.layer(layer, x, context)?,
            None => break,
        };
    }
    batch.end(x)
}

/// The rows of several jobs on their way through the layers.
struct Batch<'a, 'b, B: Backend> {
    decoder: &'a Decoder<B>,
    parts: &'a mut [StepPart<'b, B>],
    /// Parts that are still in it.
    live: Vec<Live>,
    /// Why a part is not, for each.
    left: Vec<Option<StepError>>,
    /// Packed rows of the jobs' own keys; kept for its memory.
    own: Vec<f32>,
}

/// A part that is in the step.
struct Live {
    part: usize,
    /// Its rows among those of all.
    rows: Range<usize>,
}

impl<'a, 'b, B: Backend> Batch<'a, 'b, B> {
    fn new(decoder: &'a Decoder<B>, parts: &'a mut [StepPart<'b, B>]) -> Self {
        let (mut live, mut left, mut start) = (Vec::new(), Vec::new(), 0);
        for (part, StepPart { ids, .. }) in parts.iter().enumerate() {
            let refused = decoder.check_ids(ids).err().map(StepError::Failed);
            if refused.is_none() {
                live.push(Live { part, rows: start..start + ids.len() });
                start += ids.len();
            }
            left.push(refused);
        }
        Self { decoder, parts, live, left, own: Vec::new() }
    }

    /// One layer; nothing once no part is left.
    fn layer(
        &mut self,
        layer: usize,
        x: B::Tensor,
        context: &mut dyn ContextAttention<B>,
    ) -> Result<Option<B::Tensor>, ModelError> {
        let (decoder, backend, heads) = (self.decoder, self.decoder.backend(), self.decoder.config().heads);
        let Projected { q, k, v } =
            decoder.rotate_stacked(&decoder.project(layer, &x)?, &self.positions(), &self.sequences())?;
        let q = backend.row_major(&q)?;
        let masks: Vec<(Mask, Mask)> = self.live.iter().map(|live| self.parts[live.part].generator.masks()).collect();
        let ask = |(live, (mask, _)): (&Live, &(Mask, Mask))| PartAsk {
            part: live.part,
            rows: live.rows.clone(),
            mask: *mask,
        };
        let asks: Vec<PartAsk> = self.live.iter().zip(&masks).map(ask).collect();
        let queries = LayerQueries { layer, heads, q: &q };
        if let Some(held) = context.here(&queries, &asks)? {
            self.append(layer, &k, &v)?;
            return self.layer_here(layer, (x, &q), (&masks, &held));
        }
        let on_devices = context.ask(queries, &asks)?;
        self.append(layer, &k, &v)?;
        if on_devices {
            return self.layer_on_devices(layer, (x, &q), &masks, context);
        }
        let mut packed = std::mem::take(&mut self.own);
        packed.clear();
        backend.attend_many(heads, &q, &self.own_asks(layer, &masks).collect::<Vec<_>>(), &mut packed)?;
        self.own = packed;
        let on_host = |ShardPartial { shards, rows }: ShardPartial<B>| match rows {
            PartialRows::Host(rows) => (Cow::Owned(shards), rows),
            PartialRows::Lent(..) => unreachable!("who asked for none on a device gets none there"),
        };
        let answers = context.collect()?.into_iter();
        let answers = answers.map(|answer| Ok(answer?.into_iter().map(on_host).collect())).collect();
        let answered = self.review(layer, answers);
        let Some(x) = self.without_those_that_left(x, &answered)? else { return Ok(None) };
        let row = heads.packed_row();
        let merged = Answered::merged(backend, heads, answered.iter().flatten().map(|(_, answered)| answered))?;
        let own = answered.iter().flatten().map(|(own, _)| &self.own[own.start * row..own.end * row]);
        let partials: Vec<Vec<&[f32]>> =
            merged.partials().zip(own).map(|(top, own)| top.into_iter().chain([own]).collect()).collect();
        let merged = backend.merge_packed(heads, &partials)?;
        context.merged();
        Ok(Some(decoder.finish_joined(layer, x, &merged)?))
    }

    /// What the parts ask of the jobs' own keys.
    fn own_asks(&self, layer: usize, masks: &[(Mask, Mask)]) -> impl Iterator<Item = Ask<'_, B::Kv>> {
        let ask = move |(live, (_, mask)): (&Live, &(Mask, Mask))| {
            self.parts[live.part].generator.own_ask(layer, live.rows.clone(), *mask)
        };
        self.live.iter().zip(masks).map(ask)
    }

    /// Appends keys and values `(kv, t, dim)` to the jobs' own.
    fn append(&mut self, layer: usize, k: &B::Tensor, v: &B::Tensor) -> Result<(), ModelError> {
        let backend = self.decoder.backend();
        for Live { part, rows } in &self.live {
            let of_part = |x: &B::Tensor| match self.live.len() {
                1 => Ok(x.clone()),
                _ => backend.narrow(x, 1, rows.start, rows.end),
            };
            let (k, v) = (of_part(k)?, of_part(v)?);
            self.parts[*part].generator.append(backend, layer, [&k, &v])?;
        }
        Ok(())
    }

    /// The rows and the answers of each live part; nothing for one that has to leave.
    fn review<R: Clone>(
        &mut self,
        layer: usize,
        answers: Vec<Result<Vec<Answer<'_, R>>, StepError>>,
    ) -> Vec<Option<(Range<usize>, Answered<R>)>> {
        let review = |(live, answer): (&Live, Result<Vec<Answer<'_, R>>, StepError>)| {
            let Generator { context, merge, .. } = &*self.parts[live.part].generator;
            let whole = answer
                .and_then(|answers| Answered::of(&context.shards, merge, (layer, answers)).map_err(StepError::Failed));
            match whole {
                Ok(answered) => Some((live.rows.clone(), answered)),
                Err(error) => {
                    self.left[live.part] = Some(error);
                    None
                }
            }
        };
        self.live.iter().zip(answers).map(review).collect()
    }

    /// The rows of `x` whose parts were answered; nothing when no part was.
    fn without_those_that_left<T>(
        &mut self,
        x: B::Tensor,
        answered: &[Option<T>],
    ) -> Result<Option<B::Tensor>, ModelError> {
        if answered.iter().all(Option::is_some) {
            return Ok(Some(x));
        }
        let (backend, mut start, mut kept) = (self.decoder.backend(), 0, Vec::new());
        let live = std::mem::take(&mut self.live).into_iter().zip(answered);
        for (Live { part, rows }, _) in live.filter(|(_, answer)| answer.is_some()) {
            kept.push(backend.narrow(&x, 0, rows.start, rows.end)?);
            self.live.push(Live { part, rows: start..start + rows.len() });
            start += rows.len();
        }
        Ok(if kept.is_empty() { None } else { Some(backend.concat(&kept, 0)?) })
    }

    fn positions(&self) -> Vec<u32> {
        let of = |live: &Live| {
            let StepPart { generator, ids } = &self.parts[live.part];
            (generator.next_position..).take(ids.len())
        };
        self.live.iter().flat_map(of).collect()
    }

    /// The rows of each part, and the tokens of its sequence.
    fn sequences(&self) -> Vec<(usize, u32)> {
        let of = |live: &Live| {
            let StepPart { generator, ids } = &self.parts[live.part];
            (ids.len(), generator.question_end.max(generator.next_position + ids.len() as u32))
        };
        self.live.iter().map(of).collect()
    }

    /// Every layer is done, or no part is left.
    fn end(self, x: Option<B::Tensor>) -> Result<StepEnds<B>, ModelError> {
        let mut ends: Vec<_> = self.left.into_iter().map(|left| left.map(Err)).collect();
        for (Live { part, rows }, x) in self.live.into_iter().zip(x.iter().cycle()) {
            let StepPart { generator, ids } = &mut self.parts[part];
            generator.next_position += ids.len() as u32;
            generator.rows += ids.len();
            ends[part] = Some(Ok(self.decoder.backend().rows(x, rows.start, rows.end)?));
        }
        Ok(ends.into_iter().map(|end| end.expect("a part is in the step or has left it")).collect())
    }
}

impl<B: Backend> Generator<B> {
    /// Appends keys and values `(kv, t, dim)` of the rows that are on their way.
    fn append(&mut self, backend: &B, layer: usize, [k, v]: [&B::Tensor; 2]) -> Result<(), ModelError> {
        match self.tail.get_mut(layer) {
            // Those of an earlier try are there.
            Some(kv) if backend.kv_len(kv) > self.rows => {}
            Some(kv) => backend.kv_append(kv, k, v)?,
            None => self.tail.push(backend.kv(k, v)?),
        }
        Ok(())
    }

    /// What some rows of a step ask of its own keys.
    fn own_ask(&self, layer: usize, rows: Range<usize>, mask: Mask) -> Ask<'_, B::Kv> {
        Ask { kv: &self.tail[layer], rows, mask, holes: &[] }
    }

    /// What its next rows see of the context, and of the query and the generated tokens.
    fn masks(&self) -> (Mask, Mask) {
        match self.context.view {
            ContextView::All => (Mask::None, Mask::Causal),
            ContextView::Streaming(Streaming { sink_tokens: sink, window_tokens: window }) => {
                let keys = self.context.shards.iter().map(|shard| shard.keys as usize).sum();
                let first_row = keys + self.rows;
                let from = |first_key| Mask::Streaming { sink, window, first_row, first_key };
                (from(0), from(keys))
            }
        }
    }
}
