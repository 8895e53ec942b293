//! One generation: its question, then token by token. Knows no other and no host.

use std::{sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_models::{ContextKeys, Generator, ModelError, Sampler, Sampling, StepPart, TextStream};

use crate::{
    api::TokenLogprobs,
    host::LoadedModel,
    messages::{AnswerToken, Generate},
    query_host::{refresh::PendingRefresh, schedule::WaitingJob, spans::GenerationSpans},
};

/// A generation on its way.
///
/// Tokens that another host generated are gone through one step at a time, as they were the first time, so that what
/// follows them is the same to the last bit: the sampler draws, and is overruled.
pub struct Generation<B: Backend> {
    model: Arc<LoadedModel<B>>,
    order: Generate,
    /// Fresh keys that it has to wait for.
    awaited: Option<PendingRefresh<B>>,
    generator: Generator<B>,
    sampler: Sampler,
    text: TextStream,
    /// Keys of its context, which each row reads.
    keys: u64,
    /// The question, or the token chosen last.
    ids: Vec<u32>,
    /// How many of them went through.
    through: usize,
    /// Rows of a step that it left: the next one is the same.
    again: Option<usize>,
    tokens: usize,
    /// Time since the last token in steps.
    took: Duration,
    spans: Option<GenerationSpans>,
}

/// What a step's logits come to.
#[derive(Debug, Default, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: Option<AnswerToken>,
    /// How the answer ends, if it does.
    pub end: Option<End>,
}

/// The end of an answer.
#[derive(Debug, PartialEq)]
pub struct End {
    /// End of sequence or stop string, rather than the token limit.
    pub stopped: bool,
    /// Text held back.
    pub text: String,
}

impl<B: Backend> Generation<B> {
    /// As ordered; it begins when what is awaited has come.
    pub fn new(
        model: Arc<LoadedModel<B>>,
        (order, spans): (Generate, Option<GenerationSpans>),
        awaited: Option<PendingRefresh<B>>,
    ) -> Self {
        let keys = ContextKeys { shards: order.shards.clone(), fan_in: order.fan_in, view: order.view };
        let (temperature, top_p, seed) = (order.choice.temperature, order.choice.top_p, order.choice.seed);
        Self {
            awaited,
            generator: Generator::new(keys, order.query_start).asked(order.query_ids.len()),
            sampler: Sampler::new(Sampling { temperature, top_p, seed }),
            text: TextStream::new(model.tokenizer.clone(), order.choice.stop.clone()),
            ids: order.query_ids.clone(),
            keys: order.shards.iter().map(|shard| shard.keys).fold(0, u64::saturating_add),
            through: 0,
            again: None,
            tokens: 0,
            took: Duration::ZERO,
            spans,
            model,
            order,
        }
    }

    /// Takes in the fresh keys that have come; the error is code and message of what failed.
    pub fn refresh(&mut self) -> Result<(), (String, String)> {
        if let Some(fresh) = self.awaited.as_ref().and_then(PendingRefresh::take) {
            self.generator.refresh(fresh?);
            self.awaited = None;
        }
        Ok(())
    }

    /// Whether it can take steps.
    pub fn is_ready(&self) -> bool {
        self.awaited.is_none()
    }

    /// What it has to go through, but for how its shards are spread over hosts.
    pub fn waiting(&self) -> WaitingJob {
        let (rows, &Generate { job, tenant, .. }) = (self.ids.len() - self.through, &self.order);
        WaitingJob { job, tenant, rows, again: self.again, shards: 0, keys: self.keys }
    }

    /// Whether a token comes of a step of so many rows.
    pub fn completes(&self, rows: usize) -> bool {
        self.through + rows == self.ids.len()
    }

    /// Its part of a step.
    pub fn part(&mut self, rows: usize) -> StepPart<'_, B> {
        self.again = Some(rows);
        StepPart { generator: &mut self.generator, ids: &self.ids[self.through..self.through + rows] }
    }

    /// A step took so long; its rows went through, unless it has to be taken again.
    pub fn stepped(&mut self, rows: Option<usize>, took: Duration) {
        self.took += took;
        if let Some(rows) = rows {
            self.through += rows;
            self.again = None;
        }
    }

    /// Time in steps since the last token.
    pub fn took(&mut self) -> Duration {
        std::mem::take(&mut self.took)
    }

    /// Chooses the next token from the logits of the last row.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Chosen, ModelError> {
        self.spans.iter_mut().for_each(GenerationSpans::stepped);
        let (drawn, choice) = (self.sampler.next(logits), &self.order.choice);
        let given = self.order.generated.get(self.tokens).copied();
        if given.is_none() && !choice.ignore_eos && self.model.decoder.config().eos.contains(&drawn) {
            return Ok(Chosen { token: None, end: Some(End { stopped: true, text: self.text.finish()? }) });
        }
        let id = given.unwrap_or(drawn);
        let piece = self.text.push(id)?;
        self.tokens += 1;
        (self.ids, self.through) = (vec![id], 0);
        let logprobs = choice.logprobs.map(|most| Box::new(TokenLogprobs::of(logits, id, most)));
        let end = if self.text.stopped() {
            Some(End { stopped: true, text: String::new() })
        } else if self.tokens >= choice.max_tokens as usize {
            Some(End { stopped: false, text: self.text.finish()? })
        } else {
            None
        };
        Ok(Chosen { token: Some((id, piece, logprobs)), end })
    }
}
