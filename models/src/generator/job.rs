//! Phase 2 of one job: its own keys and values, and what its next rows see. Goes through no layer.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Ask, Backend, Mask};
use asterism_plan::{ContextView, KeptShard, MergeTree, Plan, attention::Streaming};

use super::{
    answers::StepError,
    batch::PartAsk,
    merging::{Answer, Answered},
};
use crate::{Decoder, EncodedShard, ModelError};

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

/// Where keys and values of a job's next rows go.
pub(super) enum Append<'a, B: Backend> {
    /// Behind those that are there.
    To(&'a mut B::Kv),
    /// They are the first of their layer, which is the next.
    First(&'a mut Vec<B::Kv>),
    /// Those of an earlier try are there.
    Done,
}

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

    /// Its own keys and values, a cache a layer, and how many of them there are before its next rows.
    pub(super) fn own(&mut self, decoder: &Decoder<B>) -> Result<(&mut [B::Kv], usize), ModelError> {
        let config = decoder.config();
        // Of a first step that did not come to its last layer there are some.
        if self.tail.len() < config.layers {
            self.tail.resize(config.layers, decoder.backend().kv_none(config.heads)?);
        }
        Ok((&mut self.tail, self.rows))
    }

    /// Where keys and values of its next rows go in a layer.
    pub(super) fn appends(&mut self, backend: &B, layer: usize) -> Append<'_, B> {
        if layer == self.tail.len() {
            return Append::First(&mut self.tail);
        }
        let kv = &mut self.tail[layer];
        if backend.kv_len(kv) > self.rows { Append::Done } else { Append::To(kv) }
    }

    /// Appends keys and values `(kv, t, dim)` of the rows that are on their way.
    pub(super) fn append(
        &mut self,
        decoder: &Decoder<B>,
        layer: usize,
        [k, v]: [&B::Tensor; 2],
    ) -> Result<(), ModelError> {
        let backend = decoder.backend();
        match self.tail.get_mut(layer) {
            // Those of an earlier try are there.
            Some(kv) if backend.kv_len(kv) > self.rows => {}
            Some(kv) => backend.kv_append(kv, k, v)?,
            None => self.tail.push(decoder.kept(k, v)?),
        }
        Ok(())
    }

    /// What its rows of a step ask of its own keys.
    pub(super) fn own_ask(&self, (layer, window): (usize, Option<usize>), ask: &PartAsk) -> Ask<'_, B::Kv> {
        Ask { kv: &self.tail[layer], rows: ask.rows.clone(), mask: ask.own_mask_within(window), holes: &[] }
    }

    /// Its next rows, which are these of a step's, as its context is asked.
    pub(super) fn ask(&self, part: usize, rows: Range<usize>) -> PartAsk {
        let ((mask, own_mask), position) = (self.masks(), self.next_position);
        let own_start = position.saturating_sub(self.rows as u32);
        // Whoever does not say how long the question is brings it in one step.
        let question_end = if self.question_end == 0 { position + rows.len() as u32 } else { self.question_end };
        PartAsk { part, rows, mask, own_mask, position, own_start, question_end }
    }

    /// So many rows went through all layers.
    pub(super) fn advance(&mut self, rows: usize) {
        self.next_position += rows as u32;
        self.rows += rows;
    }

    /// The last of the rows that went through are forgotten, as if they had not: what stood for a token that was not chosen.
    ///
    /// # Errors
    /// Of the device.
    ///
    /// # Panics
    /// For more rows than went through.
    pub fn retract(&mut self, backend: &B, rows: usize) -> Result<(), ModelError> {
        self.rows = self.rows.checked_sub(rows).expect("rows that went through");
        self.next_position -= rows as u32;
        self.tail.iter_mut().try_for_each(|kv| backend.kv_truncate(kv, self.rows))?;
        Ok(())
    }

    /// A part's answers in a layer, at their places in its merge, or why the part has to leave.
    pub(super) fn review(&self, layer: usize, answers: Vec<Answer>) -> Result<Answered, StepError> {
        Answered::of(&self.context.shards, &self.merge, (layer, answers)).map_err(StepError::Failed)
    }

    /// The order in which its context's shards are merged.
    pub(super) fn merge(&self) -> &MergeTree {
        &self.merge
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
