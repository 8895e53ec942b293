//! One generation: its question, then token by token. Knows no other and no host.

use std::{sync::Arc, time::Duration};

use asterism_kernels::{Backend, RowChoice, RowToken, TokenChoice};
use asterism_models::{
    CLOSES_WITHIN, CallPiece, CallReader, Constraint, ContextKeys, Generator, Guide, Logprobs, ModelError, Sampler,
    StepPart, TextStream, TokenMask,
};
use tokio::time::Instant;

use crate::{
    api::TokenLogprobs,
    compute::LoadedModel,
    messages::{AnswerToken, Generate},
    query_host::{
        forms::PendingGuide, lookup::Lookup, refresh::PendingRefresh, schedule::WaitingJob, spans::GenerationSpans,
    },
    readings::DurationHistogram,
};

/// A generation on its way.
///
/// For tokens that another host generated the sampler draws, and is overruled: what follows them is the same to the last bit.
///
/// A step may bring guesses of what follows its last token, each with a row of its own. The token behind each row is drawn as ever,
/// and as long as it is what was guessed, the next row is that of the answer; the others are forgotten. So the tokens are those of an
/// answer without guesses, and so is whatever else is made of the rows.
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
    /// What the mask of the next token took.
    masked: Duration,
    /// What holding it to its form took: a mask, and taking in the token that came of it.
    masks: DurationHistogram,
    text: TextStream,
    /// Reads the answer for the call that ends it, where one does.
    calls: Option<CallReader>,
    /// Keys of its context, which each row reads.
    keys: u64,
    /// The question, or the token chosen last and what is guessed to follow it.
    ids: Vec<u32>,
    /// How many of them are guesses.
    guessed: usize,
    /// Of how many rows of its step the form told what may come behind them; absent: of all.
    told: Option<usize>,
    /// Whether its form was closed with tokens that were not chosen, for want of room.
    cut: bool,
    /// Where guesses come from, if there are to be any.
    lookup: Option<Lookup>,
    /// How many of them went through.
    through: usize,
    /// Whether the question is through.
    answers: bool,
    /// Rows of a step that it left: the next one is the same.
    again: Option<usize>,
    tokens: usize,
    /// Time since the last token in steps.
    took: Duration,
    spans: Option<GenerationSpans>,
}

/// Most guesses in a step: sixteen rows cost a device little more than one.
const MOST_GUESSES: usize = 15;

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
    /// A token that the device chose, and what it tells of the row.
    Chosen(RowToken),
}

impl LastRow {
    /// How many logits there are to look at.
    pub fn logits(&self) -> usize {
        match self {
            Self::Logits(logits) => logits.len(),
            Self::Chosen(_) => 0,
        }
    }
}

/// The end of an answer.
#[derive(Debug, PartialEq)]
pub struct End {
    /// End of sequence, stop string or call, rather than the token limit.
    pub stopped: bool,
    /// Text held back.
    pub text: String,
}

impl<B: Backend> Generation<B> {
    /// As ordered; it begins when what is awaited has come.
    pub fn new(
        model: Arc<LoadedModel<B>>,
        (mut order, spans): (Generate, Option<GenerationSpans>),
        (awaited, forming): (Option<PendingRefresh<B>>, Option<PendingGuide>),
    ) -> Self {
        let keys = ContextKeys { shards: order.shards.clone(), fan_in: order.fan_in, view: order.view };
        let scored = order.choice.scored.as_deref().unwrap_or_default();
        let ids = [&order.query_ids[..], scored].concat();
        let sampling = order.choice.sampling();
        let ending = sampling.constraint.as_ref().and_then(Constraint::ends_behind);
        let calls = ending.map(|tools| CallReader::new(tools.to_vec()));
        let lookup = order.lookup.take().map(|context| Lookup::new([context, ids.clone()].concat()));
        Self {
            awaited,
            generator: Generator::new(keys, order.query_start).asked(ids.len()),
            sampler: Sampler::asked(sampling, &ids, &model.decoder.config().eos),
            guide: None,
            forming,
            masked: Duration::ZERO,
            masks: DurationHistogram::default(),
            text: TextStream::new(model.tokenizer.clone(), order.choice.stop.clone()),
            calls,
            ids,
            guessed: 0,
            told: None,
            cut: false,
            lookup,
            keys: order.shards.iter().map(|shard| shard.keys).fold(0, u64::saturating_add),
            through: 0,
            answers: false,
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
        let (rows, &Generate { job, tenant, .. }) = (self.asked_rows(), &self.order);
        let (guesses, chance) = self.guesses();
        WaitingJob { job, tenant, rows, again: self.again, guesses, chance, shards: 0, keys: self.keys }
    }

    /// Rows that it has to go through, without guesses.
    fn asked_rows(&self) -> usize {
        self.ids.len() - self.guessed - self.through
    }

    /// Tokens that another host generated, of those that come next.
    fn known(&self) -> &[u32] {
        self.order.generated.get(self.tokens..).unwrap_or_default()
    }

    /// How many guesses its next step may bring, and how likely each is right where those before it are.
    fn guesses(&self) -> (usize, f64) {
        // Behind its last token, nothing is asked for.
        let most = (self.order.choice.max_tokens as usize).saturating_sub(self.tokens + 1).min(MOST_GUESSES);
        match &self.lookup {
            Some(_) if self.answers && !self.known().is_empty() => (self.known().len().min(most), 1.0),
            Some(lookup) if self.answers && lookup.chance() > 0.0 => (most, lookup.chance()),
            _ => (0, 0.0),
        }
    }

    /// Whether a token comes of a step of so many rows.
    pub fn completes(&self, rows: usize) -> bool {
        rows >= self.asked_rows()
    }

    /// How many rows of a step that it completes tokens are drawn of.
    pub fn drawn_rows(&self) -> usize {
        1 + self.guessed
    }

    /// Its part of a step: of more rows than it has to go through, the others are guesses.
    pub fn part(&mut self, rows: usize) -> StepPart<'_, B> {
        let guesses = rows.saturating_sub(self.asked_rows());
        if let Some(lookup) = self.lookup.as_ref().filter(|_| guesses > self.guessed) {
            let known = self.order.generated.get(self.tokens..).filter(|known| !known.is_empty());
            match known {
                Some(known) => self.ids.extend(known.iter().take(guesses)),
                None => self.ids.extend(lookup.guesses(0..guesses)),
            }
            self.guessed = guesses;
        }
        if self.completes(rows)
            && let Some(guide) = &mut self.guide
        {
            // Where the host chooses, a mask is made for a guess once it is right.
            let ahead = if self.model.decoder.backend().queues() { self.guessed } else { 0 };
            guide.look_ahead(&self.ids[self.ids.len() - ahead..]);
        }
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

    /// How many of the likeliest tokens are told beside each.
    fn top(&self) -> usize {
        self.order.choice.logprobs.unwrap_or(0) as usize
    }

    /// What is asked of the row that tells how likely a token of the question was.
    pub fn scoring(&self, id: u32) -> RowChoice {
        RowChoice { token: TokenChoice::Known(id), shape: None, top: self.top() }
    }

    /// The logarithms of probabilities of a token of the question, whose row went through.
    pub fn score(&mut self, row: &RowToken) -> AnswerToken {
        self.tokens += 1;
        (row.token, String::new(), Some(Box::new(Logprobs::of_row(row).into())))
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

    /// What is asked of the rows that its next tokens are drawn of.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] where nothing may come next.
    pub fn choices(&mut self) -> Result<Vec<RowChoice>, ModelError> {
        let mut choices = self.sampler.choices(&self.ids[self.ids.len() - self.guessed..]);
        if let Some(masks) = self.next_masks()? {
            self.told = Some(masks.len());
            for (choice, mask) in choices.iter_mut().zip(masks) {
                choice.shape.get_or_insert_default().allowed = Some(mask.into_words());
            }
        }
        // Where an answer's form may be closed it counts what the model would have said.
        let free = if self.guide.is_some() { self.left().saturating_sub(CLOSES_WITHIN) } else { usize::MAX };
        for (choice, id) in choices.iter_mut().zip(self.known()).take(free) {
            (choice.token, choice.shape) = (TokenChoice::Known(*id), None);
        }
        let top = self.top();
        choices.iter_mut().for_each(|choice| choice.top = top);
        Ok(choices)
    }

    /// Which tokens may come next and behind guesses, as far as that is known, where the answer is held to a form.
    fn next_masks(&mut self) -> Result<Option<Vec<TokenMask>>, ModelError> {
        let left = self.left();
        let Some(guide) = self.guide.as_mut().filter(|_| left > 0) else { return Ok(None) };
        let began = Instant::now();
        let masks = guide.masks();
        self.masked += began.elapsed();
        masks.map(Some)
    }

    /// Room for tokens.
    fn left(&self) -> usize {
        (self.order.choice.max_tokens as usize).saturating_sub(self.tokens)
    }

    /// What tokens waited for their masks, where the answer is held to a form.
    pub fn masks(&self) -> &DurationHistogram {
        &self.masks
    }

    /// Chooses the next tokens from what the last rows came to: as many as stand behind what is right of the guesses.
    pub fn choose(&mut self, rows: &[LastRow]) -> Result<Vec<Chosen>, ModelError> {
        self.spans.iter_mut().for_each(GenerationSpans::stepped);
        let guesses = self.ids.split_off(self.ids.len() - std::mem::take(&mut self.guessed));
        let told = self.told.take().unwrap_or(rows.len());
        let mut all = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate().take(told) {
            let chosen = self.choose_next(row)?;
            let token = chosen.token.as_ref().map(|token| token.0);
            let goes_on = chosen.end.is_none() && token.is_some_and(|token| guesses.get(at) == Some(&token));
            all.push(chosen);
            if !goes_on {
                break;
            }
        }
        if rows.len() > all.len() {
            self.generator.retract(self.model.decoder.backend(), rows.len() - all.len())?;
        }
        Ok(all)
    }

    /// The token to go on with where this one was chosen: another where its form could not be closed behind it.
    fn within_room(&mut self, drawn: u32) -> u32 {
        let left = self.left();
        let Some(guide) = &mut self.guide else { return drawn };
        let began = Instant::now();
        let taken = guide.within_room(drawn, left);
        self.masked += began.elapsed();
        self.cut |= taken != drawn;
        taken
    }

    /// Chooses the next token from what its row came to.
    fn choose_next(&mut self, last: &LastRow) -> Result<Chosen, ModelError> {
        if self.tokens >= self.order.choice.max_tokens as usize {
            // The prompt's tokens were all that was asked for.
            return Ok(Chosen { token: None, end: Some(End { stopped: false, text: self.text.finish()? }) });
        }
        let drawn = match last {
            LastRow::Chosen(row) => {
                self.sampler.chose();
                row.token
            }
            LastRow::Logits(logits) => match self.next_masks()?.as_deref() {
                Some([mask, ..]) => self.sampler.next_within(logits, mask),
                _ => self.sampler.next(logits),
            },
        };
        let drawn = self.within_room(drawn);
        let given = self.order.generated.get(self.tokens).copied();
        let choice = &self.order.choice;
        let goes_on = choice.ignore_eos && self.guide.is_none();
        if given.is_none() && !goes_on && self.model.decoder.config().eos.contains(&drawn) {
            return Ok(Chosen { token: None, end: Some(End { stopped: !self.cut, text: self.text.finish()? }) });
        }
        let id = given.unwrap_or(drawn);
        self.sampler.accept(id);
        if let Some(guide) = &mut self.guide {
            let began = Instant::now();
            guide.accept(id)?;
            self.masks.add(std::mem::take(&mut self.masked) + began.elapsed());
        }
        let piece = self.text.push(id)?;
        self.lookup.iter_mut().for_each(|lookup| lookup.push(id));
        self.tokens += 1;
        (self.ids, self.through, self.answers) = (vec![id], 0, true);
        let logprobs = match (last, choice.logprobs) {
            (LastRow::Logits(logits), Some(most)) => Some(Box::new(TokenLogprobs::of(logits, id, most))),
            (LastRow::Chosen(row), Some(_)) => Some(Box::new(Logprobs::of_another(row, id).into())),
            (_, None) => None,
        };
        let has_called = self.calls.as_mut().is_some_and(|calls| ends_call(calls, &piece));
        let end = if self.text.stopped() || has_called {
            Some(End { stopped: !self.cut, text: String::new() })
        } else if self.guide.as_ref().is_some_and(Guide::is_whole) {
            Some(End { stopped: !self.cut, text: self.text.finish()? })
        } else if self.tokens >= choice.max_tokens as usize {
            Some(End { stopped: false, text: self.text.finish()? })
        } else {
            None
        };
        Ok(Chosen { token: Some((id, piece, logprobs)), end })
    }
}

/// Whether a call ends with this piece of an answer.
fn ends_call(calls: &mut CallReader, piece: &str) -> bool {
    !piece.is_empty() && calls.push(piece).iter().any(|piece| matches!(piece, CallPiece::Call { .. }))
}
