//! The thread that generates: step after step for all jobs together, which join and leave between steps. What goes into a step
//! `schedule` decides, by what steps took; who answers for a context, `contexts`.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use asterism_kernels::{Backend, KernelError, Rank, RowChoice};
use asterism_models::{Decoder, ModelError, StepError, StepPart, step};
use asterism_transport::MAX_PAYLOAD_BYTES;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    compute::{CROWDED, LoadedModel, ROOM_AFTER, ReportSink},
    messages::{AnswerToken, Generate},
    query_host::{
        arrival::Arrival,
        background::words,
        forms::{self, FormWorker, PendingGuide},
        generation::{Chosen, End, Generation, LastRow},
        partials::contexts::JobContexts,
        refresh::{self, RefreshWorker},
        schedule::{StepBudget, StepScheduler, StepSize, WaitingJob},
        spans::GenerationSpans,
        state::{GenerationEnd, QueryHostEvent},
    },
};

/// Rows of a step: questions go through in parts of so many.
const ROWS: usize = 512;

/// Logits that are worth a thread of their own to choose tokens of.
const LOGITS_OF_A_THREAD: usize = 1 << 20;

/// The generations of a query host.
pub struct Engine<B: Backend> {
    model: Arc<LoadedModel<B>>,
    contexts: JobContexts<B>,
    generations: BTreeMap<u64, Generation<B>>,
    /// Its thread starts with the first that needs it.
    refresher: Option<RefreshWorker<B>>,
    /// The same, for answers that are held to a form.
    former: Option<FormWorker>,
    /// Where it says that it is done.
    arrivals: mpsc::UnboundedSender<Arrival>,
    scheduler: StepScheduler,
    /// Steps in a row for which the device had no room.
    crowded: usize,
    post: ReportSink<QueryHostEvent>,
}

/// Rows whose logits are looked at together, where those of a question are.
const SCORED_ROWS: usize = 64;

/// What the rows of a part come to.
struct PartLogits {
    /// Tokens of its question with the logits that they were expected by.
    scored: Vec<AnswerToken>,
    /// What its last row came to, if a token comes of it, and the rows of guesses behind it.
    last: Vec<LastRow>,
}

/// What a part comes to.
type PartEnd = Result<Result<PartLogits, ModelError>, StepError>;

/// The tokens that were chosen, and how the answer ends; of how many guesses.
type ChosenTokens = Result<(Vec<Chosen>, usize), ModelError>;

impl<B: Backend> Engine<B> {
    /// Generates nothing yet, later in steps of about `interval`; what happens goes to `post`.
    pub fn new(
        model: Arc<LoadedModel<B>>,
        contexts: JobContexts<B>,
        arrivals: mpsc::UnboundedSender<Arrival>,
        interval: Duration,
        post: ReportSink<QueryHostEvent>,
    ) -> Self {
        let scheduler = StepScheduler::new(interval);
        Self {
            model,
            contexts,
            generations: BTreeMap::new(),
            refresher: None,
            former: None,
            arrivals,
            scheduler,
            crowded: 0,
            post,
        }
    }

    /// Generates until it is told to close.
    pub fn run(mut self) {
        loop {
            if !self.generations.is_empty() {
                self.model.decoder.backend().await_turn(self.scheduler.interval());
            }
            while let Some(arrival) = self.contexts.arrived_by_now() {
                if !self.on_arrival(arrival) {
                    return;
                }
            }
            let (chosen, size) = self.choose();
            if !chosen.is_empty() {
                let (began, jobs) = (Instant::now(), chosen.len());
                self.step(chosen, size);
                tracing::trace!(jobs, rows = size.rows, took = ?began.elapsed(), "a step");
            } else if let Some(arrival) = self.contexts.wait()
                && !self.on_arrival(arrival)
            {
                return;
            }
        }
    }

    /// Whether to go on.
    fn on_arrival(&mut self, arrival: Arrival) -> bool {
        match arrival {
            Arrival::Begin(mut order) => {
                let spans = GenerationSpans::of(&order);
                let layers = self.model.decoder.config().layers;
                self.contexts.add(&order, spans.as_ref().map(|spans| spans.layers(layers)));
                let (job, arrivals) = (order.job, self.arrivals.clone());
                let done = move || drop(arrivals.send(Arrival::Fresh { job }));
                let decoder = &self.model.decoder;
                let start = || refresh::start(decoder.clone());
                let refresher = &mut self.refresher;
                let awaited = order.refresh_order.take().map(|refresh_order| {
                    refresher.get_or_insert_with(start).order((order.tenant, *refresh_order), done)
                });
                let forming = self.forming(&order);
                let generation = Generation::new(self.model.clone(), (*order, spans), (awaited, forming));
                self.generations.insert(job, generation);
            }
            Arrival::Fresh { job } => {
                let fresh = self.generations.get_mut(&job).map_or(Ok(()), Generation::take_arrived);
                if let Err((code, message)) = fresh {
                    self.end(job, |_| GenerationEnd::Failed { code, message });
                }
            }
            Arrival::Stop { job } => self.end(job, |_| GenerationEnd::Stopped),
            Arrival::Close => return false,
            // Those of contexts that there are not any more.
            Arrival::Holders { .. } | Arrival::Frame(..) | Arrival::Broke(..) => {}
        }
        true
    }

    /// Has what holds a job's answer to its form made.
    fn forming(&mut self, order: &Generate) -> Option<PendingGuide> {
        let constraint = order.choice.sampling().constraint?.masking()?.clone();
        let (job, arrivals) = (order.job, self.arrivals.clone());
        let former = self.former.get_or_insert_with(|| forms::start(self.model.clone()));
        Some(former.order((order.tenant, constraint), move || drop(arrivals.send(Arrival::Fresh { job }))))
    }

    /// The rows of the next step by job, and their size.
    fn choose(&mut self) -> (Vec<(u64, usize)>, StepSize) {
        let ready =
            |(job, generation): &(&u64, &Generation<B>)| generation.is_ready() && !self.contexts.is_stuck(**job);
        let ready = self.generations.iter().filter(ready);
        let waiting = ready.map(|(&job, generation)| WaitingJob {
            job,
            shards: self.contexts.most_shards(job),
            ..generation.waiting()
        });
        let waiting: Vec<WaitingJob> = waiting.collect();
        let row_bytes = 4 * self.model.decoder.config().heads.packed_row();
        let room = StepBudget { rows: ROWS, partials: MAX_PAYLOAD_BYTES / row_bytes };
        let chosen = self.scheduler.choose(&waiting, room);
        let size_of = |one: &WaitingJob| {
            let rows = chosen.binary_search_by_key(&one.job, |(job, _)| *job).ok().map(|at| chosen[at].1);
            one.size(rows.unwrap_or(0))
        };
        let size = waiting.iter().map(size_of).fold(StepSize::default(), StepSize::and);
        (chosen, size)
    }

    fn step(&mut self, chosen: Vec<(u64, usize)>, size: StepSize) {
        let began = Instant::now();
        let ends = catch_unwind(AssertUnwindSafe(|| self.compute(&chosen)));
        let failed = |code: &str, message: String| {
            let (code, message) = (code.to_owned(), message);
            move |_| GenerationEnd::Failed { code, message }
        };
        let ends = match ends {
            Ok(Ok(ends)) => ends,
            // The order to close, or to stop, is heard next.
            Ok(Err(ModelError::Cancelled)) => chosen.iter().map(|_| Err(StepError::Later)).collect(),
            // The host ends with its device, and another goes on.
            Ok(Err(_)) if self.model.decoder.backend().health().is_err() => return std::thread::sleep(ROOM_AFTER),
            Ok(Err(_)) if self.contexts.has_lost_a_device() => chosen.iter().map(|_| Err(StepError::Later)).collect(),
            Ok(Err(error)) => {
                let end = |(job, _)| self.end(job, failed(error.code(), error.to_string()));
                return chosen.into_iter().for_each(end);
            }
            Err(panic) => {
                let words = words(panic);
                let end = |(job, _)| self.end(job, failed("internal", format!("the generation panicked: {words}")));
                return chosen.into_iter().for_each(end);
            }
        };
        let (took, whole) = (began.elapsed(), ends.iter().all(Result::is_ok));
        let tokens = self.tokens(&chosen, ends, took);
        if whole {
            self.scheduler.took(size, began.elapsed());
        }
        for (job, chosen) in tokens {
            match chosen {
                Ok((chosen, guesses)) => {
                    self.contexts.guessed(job, guesses, chosen.len().saturating_sub(1));
                    chosen.into_iter().for_each(|chosen| self.chosen(job, chosen));
                }
                Err(error) => self.end(job, failed(error.code(), error.to_string())),
            }
        }
    }

    /// A step took so long: what comes of it for the jobs that have tokens of it, or failed. Where logits are many, several threads
    /// choose.
    fn tokens(&mut self, chosen: &[(u64, usize)], ends: Vec<PartEnd>, took: Duration) -> Vec<(u64, ChosenTokens)> {
        let (mut tokens, mut drawn) = (Vec::with_capacity(chosen.len()), Vec::new());
        let mut ends = chosen.iter().zip(ends).peekable();
        for (job, generation) in &mut self.generations {
            let Some(((_, rows), end)) = ends.next_if(|((next, _), _)| next == job) else { continue };
            generation.stepped(end.is_ok().then_some(*rows), took);
            match end {
                Err(StepError::Later) => {}
                Ok(Ok(PartLogits { scored, last })) => {
                    scored.into_iter().for_each(|token| (self.post)(QueryHostEvent::Token { job: *job, token }));
                    if !last.is_empty() {
                        self.contexts.stepped(*job, generation.took());
                        drawn.push((*job, generation, last));
                    }
                }
                Ok(Err(error)) | Err(StepError::Failed(error)) => tokens.push((*job, Err(error))),
            }
        }
        let logits: usize = drawn.iter().flat_map(|(.., last)| last).map(LastRow::logits).sum();
        let threads = match self.model.cores.threads() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let threads = threads.min(logits / LOGITS_OF_A_THREAD).max(1);
        let draw = |part: &mut [(u64, &mut Generation<B>, Vec<LastRow>)]| -> Vec<(u64, ChosenTokens)> {
            let draw =
                |generation: &mut Generation<B>, rows: &[LastRow]| Ok((generation.choose(rows)?, rows.len() - 1));
            part.iter_mut().map(|(job, generation, rows)| (*job, draw(generation, rows))).collect()
        };
        let each = drawn.len().div_ceil(threads).max(1);
        let mut parts = drawn.chunks_mut(each);
        let own = parts.next();
        std::thread::scope(|scope| {
            let others: Vec<_> = parts.map(|part| scope.spawn(move || draw(part))).collect();
            tokens.extend(own.into_iter().flat_map(draw));
            tokens.extend(others.into_iter().flat_map(|part| part.join().expect("choosing a token does not panic")));
        });
        tokens
    }

    fn compute(&mut self, chosen: &[(u64, usize)]) -> Result<Vec<PartEnd>, ModelError> {
        let Self { model, contexts, generations, .. } = self;
        let decoder = &model.decoder;
        let (mut tokens, mut parts): (Vec<bool>, Vec<StepPart<'_, B>>) = Default::default();
        let mut rows = chosen.iter().copied().peekable();
        for (job, generation) in generations.iter_mut() {
            if let Some((_, rows)) = rows.next_if(|(next, _)| next == job) {
                tokens.push(generation.completes(rows));
                parts.push(generation.part(rows));
            }
        }
        let jobs: Vec<u64> = chosen.iter().map(|(job, _)| *job).collect();
        let (priority, ends) = match contexts.local_shards(&jobs) {
            Some(mut local_shards) => (local_shards.priority(), step(decoder, &mut parts, &mut local_shards)),
            None => {
                contexts.begin(jobs.into_iter().zip(tokens.iter().copied()).collect());
                (vec![decoder.backend().priority(Rank::Token)], step(decoder, &mut parts, contexts))
            }
        };
        if ends.is_err() {
            contexts.failed();
        }
        let ends = match ends {
            // A context that does not fit leaves the device's memory soon. What the step wrote so far stays.
            Err(ModelError::Kernel(KernelError::DeviceMemory { .. })) if self.crowded < CROWDED => {
                if self.crowded == 0 {
                    tracing::warn!("the device's memory is full: a step waits for room");
                }
                self.crowded += 1;
                drop(priority);
                std::thread::sleep(ROOM_AFTER);
                return Ok(chosen.iter().map(|_| Err(StepError::Later)).collect());
            }
            ends => ends?,
        };
        self.crowded = 0;
        // Who waits for no token would take what a queue holds for done.
        if !tokens.contains(&true) {
            self.model.decoder.backend().mark()?()?;
        }
        self.logits(chosen, ends, &tokens)
    }

    /// What the rows of each part come to, of which `tokens` says whether a token comes of it.
    fn logits(
        &mut self,
        chosen: &[(u64, usize)],
        ends: Vec<Result<B::Tensor, StepError>>,
        tokens: &[bool],
    ) -> Result<Vec<PartEnd>, ModelError> {
        let Self { model, generations, .. } = self;
        let decoder = &model.decoder;
        let parts = || ends.iter().zip(chosen);
        // An answer's tokens come behind those of its question.
        let mut scored: Vec<Result<Vec<AnswerToken>, ModelError>> = Vec::with_capacity(ends.len());
        for (end, (job, rows)) in parts() {
            let of = end.as_ref().ok().zip(generations.get_mut(job));
            scored.push(of.map_or(Ok(Vec::new()), |(x, generation)| scored_tokens(decoder, generation, (x, *rows))));
        }
        // A device that works off a queue chooses tokens itself, and hands over no logits.
        let chooses = decoder.backend().queues();
        let (mut drawn, mut asked, mut counts) = (Vec::new(), Vec::new(), Vec::with_capacity(ends.len()));
        for ((end, (job, _)), token) in parts().zip(tokens) {
            let Some((x, generation)) = end.as_ref().ok().zip(generations.get_mut(job)).filter(|_| *token) else {
                counts.push(Ok(0));
                continue;
            };
            let rows = generation.drawn_rows();
            let choices = if chooses { generation.choices() } else { Ok(Vec::new()) };
            counts.push(match choices {
                Ok(choices) => {
                    drawn.extend(last_rows(decoder.backend(), x, rows)?);
                    asked.extend(choices);
                    Ok(rows)
                }
                Err(error) => Err(error),
            });
        }
        let last: Vec<Result<LastRow, ModelError>> = match &drawn.iter().collect::<Vec<_>>()[..] {
            [] => Vec::new(),
            rows if chooses => {
                decoder.choose_last(rows, &asked)?.into_iter().map(|row| row.map(LastRow::Chosen)).collect()
            }
            rows => decoder.last_logits(rows)?.into_iter().map(|row| row.map(LastRow::Logits)).collect(),
        };
        let mut last = last.into_iter();
        // All of a part's rows, also behind one that failed.
        let mut of_part =
            |rows| last.by_ref().take(rows).collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>();
        let each = ends.into_iter().zip(scored).zip(counts);
        let part = |((end, scored), rows): ((Result<_, _>, Result<_, _>), Result<usize, ModelError>)| {
            end.map(|_: B::Tensor| Ok(PartLogits { last: rows.and_then(&mut of_part)?, scored: scored? }))
        };
        Ok(each.map(part).collect())
    }

    fn chosen(&mut self, job: u64, Chosen { token, end }: Chosen) {
        if let Some(token) = token {
            (self.post)(QueryHostEvent::Token { job, token });
        }
        if let Some(End { stopped, text }) = end {
            self.end(job, |times| GenerationEnd::Answered { stopped, text, times });
        }
    }

    fn end(&mut self, job: u64, end: impl FnOnce(Box<crate::readings::Phase2Times>) -> GenerationEnd) {
        if let Some(generation) = self.generations.remove(&job) {
            let masks = generation.masks();
            if masks.count() > 0 {
                (self.post)(QueryHostEvent::Masked { job, masks: Box::new(masks.clone()) });
            }
            let times = self.contexts.remove(job);
            (self.post)(QueryHostEvent::Ended { job, end: end(times) });
        }
    }
}

/// The last rows of `x (t, e)`, each for itself.
fn last_rows<B: Backend>(backend: &B, x: &B::Tensor, rows: usize) -> Result<Vec<B::Tensor>, ModelError> {
    let end = backend.shape(x)[0];
    (end - rows..end).map(|row| Ok(backend.rows(x, row, row + 1)?)).collect()
}

/// The tokens of a question that the rows `x (t, e)` of a part tell the probabilities of.
fn scored_tokens<B: Backend>(
    decoder: &Decoder<B>,
    generation: &mut Generation<B>,
    (x, rows): (&B::Tensor, usize),
) -> Result<Vec<AnswerToken>, ModelError> {
    let (first, ids) = generation.scored(rows);
    let (ids, mut tokens) = (ids.to_vec(), Vec::with_capacity(ids.len()));
    for (part, ids) in ids.chunks(SCORED_ROWS).enumerate() {
        let start = first + part * SCORED_ROWS;
        let rows = decoder.backend().narrow(x, 0, start, start + ids.len())?;
        let choices: Vec<RowChoice> = ids.iter().map(|id| generation.scoring(*id)).collect();
        for row in decoder.choose_each(&rows, &choices)? {
            tokens.push(generation.score(&row?));
        }
    }
    Ok(tokens)
}
