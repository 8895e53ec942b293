//! One job: what is asked, how far it is, and what it took. Chooses no host.

mod spans;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use asterism_models::TemplateDate;
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        ErrorBody, FinishReason, HostTiming, JobPhase, JobState, JobStatus, JobTrace, RecoveryStatus, Timings,
        TokenLogprobs,
    },
    cluster_event::{ClusterEventKind, JobName},
    messages::TokenChoice,
    metric::Observation,
    supervisor::{
        fingerprint::Fingerprint,
        tables::prepared::{PreparedContext, TenantKey, refresh_choice::RefreshChoice},
    },
};

/// Bytes that a job takes beside its texts and tokens, about.
const JOB_OVERHEAD_BYTES: u64 = 1024;

/// What a query host needs beside the context.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// Query tokens.
    pub query_ids: Vec<u32>,
    /// How tokens are chosen.
    pub choice: TokenChoice,
    /// Time after submission at which the job fails.
    pub timeout: Option<Duration>,
    /// What of a session's context it gets anew.
    #[serde(default)]
    pub refresh_order: Option<Box<RefreshChoice>>,
    /// Whether it is one of the cluster's own test, which goes before what waits for that to pass.
    #[serde(skip)]
    pub canary: bool,
    /// Its text with what separates it, where a session was asked with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its span, where spans are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<JobTrace>,
}

impl Question {
    /// Whether it is a whole prompt, which sees nothing of its context.
    pub fn is_alone(&self) -> bool {
        self.choice.scored.is_some()
    }

    /// What a query host says of a token's probability, no more than was asked for; nothing where it was not.
    pub fn reported(&self, logprobs: Option<Box<TokenLogprobs>>) -> Option<Box<TokenLogprobs>> {
        let wanted = self.choice.logprobs?;
        let mut reported = logprobs?;
        reported.top.truncate(wanted as usize);
        Some(reported)
    }
}

/// A request tokenised and planned.
#[derive(Clone, Debug)]
pub struct PreparedJob {
    /// Its id: its client's, or one that nobody guesses.
    pub id: String,
    /// What was asked, where the client chose the id.
    pub fingerprint: Option<Fingerprint>,
    /// What is asked about.
    pub source: Source,
    /// What is asked.
    pub question: Question,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl PreparedJob {
    /// Bytes that it takes, about.
    pub fn bytes(&self) -> u64 {
        let context = match &self.source {
            Source::Context(context) => context.bytes(),
            Source::Session(_) => 0,
        };
        context + 4 * (self.question.query_ids.len() + self.question.choice.scored_tokens()) as u64
    }
}

/// What a question is about.
#[derive(Clone, Debug)]
pub enum Source {
    /// A context of the job's own.
    Context(PreparedContext),
    /// A session's context.
    Session(String),
}

/// What of a job never changes, as clients see it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobFacts {
    /// Its id.
    pub id: String,
    /// When it was submitted, in seconds since 1970.
    pub created_at: u64,
    /// Method by name.
    pub method: String,
    /// Why it was taken, where `auto` chose.
    pub method_reason: Option<String>,
    /// Model by name.
    pub model: String,
    /// The session asked, if one was.
    pub session: Option<String>,
    /// The date that the chat template was told, where one was applied.
    pub template_date: Option<TemplateDate>,
    /// Context tokens.
    pub context_tokens: usize,
    /// Query tokens.
    pub query_tokens: usize,
    /// Those of them that are told with the answer's.
    #[serde(default)]
    pub scored_tokens: usize,
    /// Tokens of a session's context that the question gets anew.
    pub refreshed_tokens: usize,
    /// Labels of the request.
    pub labels: BTreeMap<String, String>,
}

/// What a job has come to so far.
#[derive(Clone, Debug)]
pub struct JobProgress {
    /// State.
    pub state: JobState,
    /// Context tokens of blocks that hosts held already.
    pub reused_tokens: usize,
    /// Of these, those that were not encoded for it in any way.
    pub cached_tokens: usize,
    /// Answer so far.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How likely each was, where that was asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why the answer ended.
    pub finish_reason: Option<FinishReason>,
    /// Why it failed.
    pub error: Option<ErrorBody>,
    /// Share of dense attention's pairs that phase 1 did not compute.
    pub attention_sparsity: Option<f64>,
    /// Whether hosts of unequal numerics worked on it.
    pub mixed_numerics: bool,
    /// Hosts lost while it needed them.
    pub recoveries: Vec<RecoveryStatus>,
    /// What each host did for its context.
    pub hosts: Vec<HostTiming>,
}

impl JobProgress {
    /// Nobody has worked on it yet; hosts have keys and values of so many of its tokens.
    pub fn new(cached_tokens: usize) -> Self {
        Self {
            state: JobState::Pending,
            reused_tokens: 0,
            cached_tokens,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish_reason: None,
            error: None,
            attention_sparsity: None,
            mixed_numerics: false,
            recoveries: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

/// One job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number, unique for the life of the journal.
    pub number: u64,
    /// What of it never changes.
    pub facts: JobFacts,
    /// What it has come to.
    pub progress: JobProgress,
    /// What its request was, where its client chose the id.
    pub fingerprint: Option<Fingerprint>,
    /// The context it asks.
    pub context: u64,
    /// The key that asked for the context, if one did.
    pub key: TenantKey,
    /// What it asks.
    pub question: Question,
    /// The host that generates, once chosen.
    pub query_host: Option<usize>,
    /// Attempt of the context whose holders the query host was told.
    pub ordered_attempt: u32,
    /// Hosts that the query host got no answer from since the last token, how often that was acted upon, and when last.
    pub stalls: QueryStalls,
    /// Hosts that answered what cannot be right, the last with what it was.
    pub accused: Vec<(usize, String)>,
    /// Hosts that could reach nobody when they generated for it.
    pub avoid: BTreeSet<usize>,
    /// What decides the bits of the query host that made its first tokens.
    pub numerics: Option<String>,
    /// Since when its context is ready, if it is.
    pub ready_since: Option<Duration>,
    /// Whether somebody listens to its events.
    pub watched: bool,
    /// When it was submitted and entered each phase.
    pub clock: PhaseTimes,
    /// Recoveries under way: place in the status, and when the loss was declared.
    open: Vec<(usize, Duration)>,
    /// The phase that it goes back to.
    phase: JobPhase,
}

/// What a query host did not get answers from, since the last token.
#[derive(Clone, Debug, Default)]
pub struct QueryStalls {
    /// Hosts that did not answer.
    pub hosts: BTreeSet<usize>,
    /// How often that was acted upon.
    pub count: u32,
    /// When it was, last.
    pub last: Duration,
}

/// When a job entered each phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Taken in.
    pub submitted: Duration,
    /// Phase 1 began.
    pub encoding: Option<Duration>,
    /// Phase 2 began.
    pub querying: Option<Duration>,
    /// The first token came.
    pub decoding: Option<Duration>,
    /// It ended.
    pub ended: Option<Duration>,
}

/// What the journal has of a job.
pub struct Restored {
    /// Number.
    pub number: u64,
    /// The context it asks.
    pub context: u64,
    /// What of it never changes.
    pub facts: JobFacts,
    /// What it had come to.
    pub progress: JobProgress,
    /// What it asks.
    pub question: Question,
    /// When it entered each phase.
    pub clock: PhaseTimes,
    /// The phase that it was in.
    pub phase: JobPhase,
}

/// Tokens of an answer that there is to be room for, whether they come or not.
const ANSWER_STEP: u64 = 1024;

impl Job {
    /// A waiting job over a context.
    pub fn new(
        (number, context): (u64, u64),
        now: Duration,
        (facts, cached_tokens): (JobFacts, usize),
        prepared: &PreparedJob,
    ) -> Self {
        let clock = PhaseTimes { submitted: now, ..PhaseTimes::default() };
        let progress = JobProgress::new(cached_tokens);
        let phase = JobPhase::Queued;
        let restored = Restored { number, context, facts, progress, question: prepared.question.clone(), clock, phase };
        Self { fingerprint: prepared.fingerprint, ..Self::restored(restored) }
    }

    /// A job as the journal has it. Tokens come from its query host again.
    pub fn restored(restored: Restored) -> Self {
        let Restored { number, context, facts, progress, question, clock, phase } = restored;
        Self {
            number,
            facts,
            progress,
            fingerprint: None,
            context,
            key: None,
            question,
            query_host: None,
            ordered_attempt: 0,
            stalls: Default::default(),
            accused: Vec::new(),
            avoid: BTreeSet::new(),
            numerics: None,
            ready_since: None,
            watched: false,
            clock,
            open: Vec::new(),
            phase,
        }
    }

    /// Whether hosts work on it.
    pub fn is_running(&self) -> bool {
        self.progress.state == JobState::Running
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.clock.ended.is_some()
    }

    /// Moves on. Whether that is a change.
    pub fn enter(&mut self, now: Duration, phase: JobPhase) -> bool {
        self.progress.state = JobState::Running;
        let clock = match phase {
            JobPhase::Encoding => &mut self.clock.encoding,
            JobPhase::Querying => &mut self.clock.querying,
            JobPhase::Decoding => &mut self.clock.decoding,
            JobPhase::Queued | JobPhase::Recovering => return false,
        };
        clock.get_or_insert(now);
        let update = self.phase != phase;
        self.phase = phase;
        update && self.open.is_empty()
    }

    /// The phase that it is in, or goes back to when it has recovered.
    pub fn phase(&self) -> JobPhase {
        self.phase
    }

    /// Notes the loss of a host that it needs.
    pub fn lost(&mut self, now: Duration, recovery: RecoveryStatus) {
        self.open.push((self.progress.recoveries.len(), now));
        self.progress.recoveries.push(recovery);
    }

    /// It goes on: closes the recoveries under way and returns them.
    pub fn recovered(&mut self, now: Duration) -> Vec<RecoveryStatus> {
        let open = std::mem::take(&mut self.open);
        let close = |(at, declared): (usize, Duration)| {
            let recovery = &mut self.progress.recoveries[at];
            recovery.recovered_s = Some(now.saturating_sub(declared).as_secs_f64());
            recovery.clone()
        };
        open.into_iter().map(close).collect()
    }

    /// Whether a recovery is under way.
    pub fn is_recovering(&self) -> bool {
        !self.open.is_empty()
    }

    /// Since when it lacks a host that it lost, if it does.
    pub fn lost_since(&self) -> Option<Duration> {
        self.open.first().map(|(_, declared)| *declared)
    }

    /// Tokens that who generates its answer keeps for it, or soon will: of its question, and of its answer in steps of
    /// [`ANSWER_STEP`].
    pub fn own_tokens(&self) -> u64 {
        let answer = (self.progress.tokens.len() as u64 / ANSWER_STEP + 1) * ANSWER_STEP;
        let answer = answer.min(self.question.choice.max_tokens.into());
        answer.saturating_add(self.question.query_ids.len() as u64).max(1)
    }

    /// Bytes that are held for it: of what it asks, and once it has ended of what it answers.
    pub fn bytes(&self) -> u64 {
        let labels = self.facts.labels.iter().map(|(key, value)| key.len() + value.len());
        let asked = self.question.text.as_ref().map_or(0, String::len);
        let text: usize = self.facts.id.len() + labels.sum::<usize>() + asked;
        let part = match self.has_ended() {
            false => {
                4 * self.question.query_ids.len()
                    + self.question.choice.bytes()
                    + self.question.refresh_order.as_ref().map_or(0, |refresh_order| refresh_order.bytes())
            }
            true => {
                let logprobs = self.progress.logprobs.iter().map(TokenLogprobs::bytes).sum::<usize>();
                4 * (self.question.query_ids.len() + self.progress.tokens.len()) + self.progress.text.len() + logprobs
            }
        };
        JOB_OVERHEAD_BYTES + (text + part) as u64
    }

    /// Marks the end.
    pub fn finish(&mut self, now: Duration, outcome: Outcome) {
        self.clock.ended = Some(now);
        // What was asked a session may become a part of it.
        let query_ids = std::mem::take(&mut self.question.query_ids);
        let kept = if self.facts.session.is_some() { query_ids } else { Vec::new() };
        let text = self.question.text.take();
        self.question = Question { query_ids: kept, text, trace: self.question.trace, ..Question::default() };
        self.open.clear();
        self.progress.error = outcome.error();
        self.progress.state = match outcome {
            Outcome::Answered { stopped } => {
                self.progress.finish_reason = Some(if stopped { FinishReason::Stop } else { FinishReason::Length });
                JobState::Succeeded
            }
            Outcome::Failed { .. } => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        };
    }

    /// The phase that clients see; none once it has ended.
    pub fn shown_phase(&self) -> Option<JobPhase> {
        match (self.has_ended(), self.is_recovering()) {
            (true, _) => None,
            (false, true) => Some(JobPhase::Recovering),
            (false, false) => Some(self.phase),
        }
    }

    /// What clients see of it, with timings up to `now`.
    pub fn status_at(&self, now: Duration) -> JobStatus {
        let (facts, progress) = (self.facts.clone(), self.progress.clone());
        JobStatus {
            id: facts.id,
            created_at: facts.created_at,
            state: progress.state,
            phase: self.shown_phase(),
            waiting: None,
            method: facts.method,
            method_reason: facts.method_reason,
            model: facts.model,
            session: facts.session,
            template_date: facts.template_date,
            context_tokens: facts.context_tokens,
            query_tokens: facts.query_tokens,
            refreshed_tokens: facts.refreshed_tokens,
            reused_tokens: progress.reused_tokens,
            cached_tokens: progress.cached_tokens,
            generated_tokens: progress.tokens.len().saturating_sub(facts.scored_tokens),
            scored_tokens: facts.scored_tokens,
            text: progress.text,
            tokens: progress.tokens,
            logprobs: progress.logprobs,
            finish_reason: progress.finish_reason,
            error: progress.error,
            labels: facts.labels,
            attention_sparsity: progress.attention_sparsity,
            mixed_numerics: progress.mixed_numerics,
            recoveries: progress.recoveries,
            timings: self.timings(now),
        }
    }

    fn timings(&self, now: Duration) -> Timings {
        let end = self.clock.ended.unwrap_or(now);
        let span = |from: Option<Duration>, to: Option<Duration>| match from {
            Some(from) => to.unwrap_or(end).saturating_sub(from).as_secs_f64(),
            None => 0.0,
        };
        let PhaseTimes { submitted, encoding, querying, decoding, ended } = self.clock.clone();
        Timings {
            queue_s: span(Some(submitted), encoding),
            encode_s: span(encoding, querying),
            query_s: span(querying, decoding),
            decode_s: span(decoding, ended),
            total_s: end.saturating_sub(submitted).as_secs_f64(),
            hosts: self.progress.hosts.clone(),
        }
    }

    /// Its names.
    pub fn name(&self) -> JobName {
        JobName { id: self.facts.id.clone(), number: self.number }
    }

    /// That it was taken in.
    pub fn submitted(&self) -> ClusterEventKind {
        let JobFacts { session, method, context_tokens, query_tokens, .. } = &self.facts;
        ClusterEventKind::JobSubmitted {
            job: self.name(),
            context: self.context,
            session: session.clone(),
            method: method.clone(),
            context_tokens: *context_tokens,
            query_tokens: *query_tokens,
        }
    }

    /// That hosts work on it, where they did not before.
    pub fn started(&self, now: Duration) -> Option<ClusterEventKind> {
        let queue_s = now.saturating_sub(self.clock.submitted).as_secs_f64();
        (self.progress.state == JobState::Pending).then(|| ClusterEventKind::JobStarted { job: self.name(), queue_s })
    }

    /// That it is over.
    pub fn ended(&self) -> ClusterEventKind {
        let JobProgress { state, tokens, error, .. } = &self.progress;
        let (code, timings) = (error.as_ref().map(|error| error.code.clone()), self.timings(Duration::ZERO));
        ClusterEventKind::JobEnded { job: self.name(), state: *state, code, tokens: tokens.len(), timings }
    }

    /// What its end adds to the metrics.
    pub fn ended_observations(&self) -> Vec<Observation> {
        let timings = self.timings(self.clock.ended.unwrap_or_default());
        let mut observations = vec![match &self.progress.error {
            Some(error) => Observation::RequestFailed { code: error.code.clone() },
            None => Observation::RequestEnded { reason: self.progress.finish_reason },
        }];
        observations.extend(self.spans().into_iter().map(Observation::Span));
        if self.progress.state == JobState::Succeeded {
            observations.push(Observation::Request {
                method: self.facts.method.clone(),
                model: self.facts.model.clone(),
                prompt_tokens: self.facts.context_tokens + self.facts.query_tokens,
                generated_tokens: self.progress.tokens.len().saturating_sub(self.facts.scored_tokens),
                timings,
            });
        }
        observations
    }
}

/// How a job ends.
#[derive(Debug)]
pub enum Outcome {
    /// With an answer; `stopped` by an end of sequence or stop string rather than the token limit.
    Answered {
        /// See above.
        stopped: bool,
    },
    /// With an error.
    Failed {
        /// Stable code.
        code: String,
        /// What, where, what to do.
        message: String,
    },
    /// By its user.
    Cancelled,
}

impl Outcome {
    /// The error, if it is one.
    pub fn error(&self) -> Option<ErrorBody> {
        match self {
            Self::Failed { code, message } => {
                Some(ErrorBody { message: message.clone(), code: code.clone(), param: None })
            }
            _ => None,
        }
    }
}
