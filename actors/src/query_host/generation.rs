//! One generation: its question, then token by token. Knows no other and no host.

use std::{sync::Arc, time::Duration};

use asterism_kernels::{Backend, Likeliest};
use asterism_models::{ContextKeys, Generator, Guide, ModelError, Sampler, StepPart, TextStream};

use crate::{
    api::TokenLogprobs,
    compute::LoadedModel,
    messages::{AnswerToken, Generate},
    query_host::{forms::PendingGuide, refresh::PendingRefresh, schedule::WaitingJob, spans::GenerationSpans},
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
    /// What holds the answer to its form, if it has one, and has to be waited for first.
    guide: Option<Guide>,
    forming: Option<PendingGuide>,
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

/// Tokens of an answer's room that are left to close what is open of its form.
const CLOSES_WITHIN: usize = 64;

/// What a step's logits come to.
#[derive(Debug, Default, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: Option<AnswerToken>,
    /// How the answer ends, if it does.
    pub end: Option<End>,
}

/// What a token is chosen of.
#[derive(Debug)]
pub enum LastRow {
    /// The logits of all tokens.
    Logits(Vec<f32>),
    /// The likeliest token, which the device chose.
    Likeliest(Likeliest),
}

impl LastRow {
    /// How many logits there are to look at.
    pub fn logits(&self) -> usize {
        match self {
            Self::Logits(logits) => logits.len(),
            Self::Likeliest(_) => 0,
        }
    }
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
        (awaited, forming): (Option<PendingRefresh<B>>, Option<PendingGuide>),
    ) -> Self {
        let keys = ContextKeys { shards: order.shards.clone(), fan_in: order.fan_in, view: order.view };
        let scored = order.choice.scored.as_deref().unwrap_or_default();
        let ids = [&order.query_ids[..], scored].concat();
        Self {
            awaited,
            generator: Generator::new(keys, order.query_start).asked(ids.len()),
            sampler: Sampler::asked(order.choice.sampling(), &ids, &model.decoder.config().eos),
            guide: None,
            forming,
            text: TextStream::new(model.tokenizer.clone(), order.choice.stop.clone()),
            ids,
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

    /// Takes in what has come of what it waits for; the error is code and message of what failed.
    pub fn take_arrived(&mut self) -> Result<(), (String, String)> {
        if let Some(fresh) = self.awaited.as_ref().and_then(PendingRefresh::take) {
            self.generator.refresh(fresh?);
            self.awaited = None;
        }
        if let Some(guide) = self.forming.as_ref().and_then(PendingGuide::take) {
            self.guide = Some(guide?);
            self.forming = None;
        }
        Ok(())
    }

    /// Whether it can take steps.
    pub fn is_ready(&self) -> bool {
        self.awaited.is_none() && self.forming.is_none()
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

    /// Which of its next rows tell how likely a token of the question was, and these tokens.
    pub fn scored(&self, rows: usize) -> (usize, &[u32]) {
        if self.tokens >= self.order.choice.scored_tokens() {
            return (0, &[]);
        }
        let first = self.through.max(self.order.query_ids.len() - 1);
        let end = (self.through + rows).min(self.ids.len() - 1);
        if first >= end { (0, &[]) } else { (first - self.through, &self.ids[first + 1..end + 1]) }
    }

    /// The logarithms of probabilities of a token of the question, whose row went through.
    pub fn score(&mut self, (id, logits): (u32, &[f32])) -> AnswerToken {
        self.tokens += 1;
        let most = self.order.choice.logprobs.unwrap_or(0);
        (id, String::new(), Some(Box::new(TokenLogprobs::of(logits, id, most))))
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

    /// Whether its next token is the likeliest, and nothing else is asked about it.
    pub fn takes_the_likeliest(&self) -> bool {
        self.guide.is_none() && self.order.choice.logprobs.is_none() && self.sampler.is_greedy()
    }

    /// Chooses the next token from what the last row came to.
    pub fn choose(&mut self, last: &LastRow) -> Result<Chosen, ModelError> {
        self.spans.iter_mut().for_each(GenerationSpans::stepped);
        if self.tokens >= self.order.choice.max_tokens as usize {
            // The prompt's tokens were all that was asked for.
            return Ok(Chosen { token: None, end: Some(End { stopped: false, text: self.text.finish()? }) });
        }
        let choice = &self.order.choice;
        let given = self.order.generated.get(self.tokens).copied();
        let left = (choice.max_tokens as usize).saturating_sub(self.tokens);
        let drawn = match (last, &mut self.guide) {
            (LastRow::Likeliest(likeliest), _) => likeliest.token,
            // The room that is left is taken to close what is open.
            (LastRow::Logits(logits), Some(guide)) => {
                let answer = choice.max_tokens as usize - choice.scored_tokens();
                self.sampler.guided(logits, guide, left <= (answer / 2).min(CLOSES_WITHIN))?
            }
            (LastRow::Logits(logits), None) => self.sampler.next(logits),
        };
        let goes_on = choice.ignore_eos && self.guide.is_none();
        if given.is_none() && !goes_on && self.model.decoder.config().eos.contains(&drawn) {
            return Ok(Chosen { token: None, end: Some(End { stopped: true, text: self.text.finish()? }) });
        }
        let id = given.unwrap_or(drawn);
        self.sampler.accept(id);
        self.guide.as_mut().map_or(Ok(()), |guide| guide.accept(id))?;
        let piece = self.text.push(id)?;
        self.tokens += 1;
        (self.ids, self.through) = (vec![id], 0);
        let logprobs = match (last, choice.logprobs) {
            (LastRow::Logits(logits), Some(most)) => Some(Box::new(TokenLogprobs::of(logits, id, most))),
            _ => None,
        };
        let end = if self.text.stopped() {
            Some(End { stopped: true, text: String::new() })
        } else if self.guide.as_ref().is_some_and(Guide::is_whole) {
            Some(End { stopped: true, text: self.text.finish()? })
        } else if self.tokens >= choice.max_tokens as usize {
            Some(End { stopped: false, text: self.text.finish()? })
        } else {
            None
        };
        Ok(Chosen { token: Some((id, piece, logprobs)), end })
    }
}
