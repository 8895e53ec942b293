//! One job: what is asked, how far it is, and what it took. Chooses no host.

mod spans;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use asterism_plan::Refresh;
use serde::{Deserialize, Serialize};

use crate::{
    api::{ErrorBody, FinishReason, JobPhase, JobState, JobStatus, RecoveryStatus, Timings, TokenLogprobs},
    messages::TokenChoice,
    metric::Observation,
    news::{JobName, News},
    supervisor::{fingerprint::Fingerprint, tables::prepared::PreparedContext},
    trace::JobTrace,
};

/// Bytes that a job takes beside its texts and tokens, about.
const OVERHEAD: u64 = 1024;

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
    pub anew: Option<Box<Anew>>,
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

/// What a question gets anew, chosen while its session had a certain context.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Anew {
    /// Number of the context.
    pub context: u64,
    /// Its tokens, and the keys that they stand for.
    pub refresh: Refresh,
}

impl Question {
    /// What a query host says of a token's probability, no more than was asked for; nothing where it was not.
    pub fn told(&self, logprobs: Option<Box<TokenLogprobs>>) -> Option<Box<TokenLogprobs>> {
        let wanted = self.choice.logprobs?;
        let mut told = logprobs?;
        told.top.truncate(wanted as usize);
        Some(told)
    }
}

impl Anew {
    fn bytes(&self) -> usize {
        let runs: usize = self.refresh.hidden.iter().map(|hidden| size_of_val(&hidden.runs[..])).sum();
        size_of_val(&self.refresh.shard.prefix[..]) + runs
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
        context + 4 * self.question.query_ids.len() as u64
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

/// One job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number, unique for the life of the journal.
    pub number: u64,
    /// What clients see; timings are filled in when asked for.
    pub status: JobStatus,
    /// What its request was, where its client chose the id.
    pub fingerprint: Option<Fingerprint>,
    /// The context it asks.
    pub context: u64,
    /// The key that asked for the context, if one did.
    pub key: Option<String>,
    /// What it asks.
    pub question: Question,
    /// The host that generates, once chosen.
    pub query_host: Option<usize>,
    /// Attempt of the context whose holders the query host was told.
    pub told_attempt: u32,
    /// Hosts that the query host got no answer from since the last token, how often that was acted upon, and when last.
    pub stalls: Stalls,
    /// Hosts that answered what cannot be right, the last with what it was.
    pub accused: Vec<(usize, String)>,
    /// Hosts that could reach nobody when they generated for it.
    pub avoid: BTreeSet<usize>,
    /// What decides the bits of the query host that made its first tokens.
    pub numerics: Option<String>,
    /// Since when its context is ready, if it is.
    pub ready_since: Option<Duration>,
    /// Whether somebody wants to hear how it goes on.
    pub watched: bool,
    /// When it was submitted and entered each phase.
    pub clock: Clock,
    /// Recoveries under way: place in the status, and when the loss was declared.
    open: Vec<(usize, Duration)>,
    /// The phase that it goes back to.
    phase: JobPhase,
}

/// What a query host did not get answers from, since the last token.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    /// Hosts that did not answer.
    pub hosts: BTreeSet<usize>,
    /// How often that was acted upon.
    pub count: u32,
    /// When it was, last.
    pub last: Duration,
}

/// When a job entered each phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
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

impl Job {
    /// A waiting job over a context with this method and so many tokens.
    pub fn new((number, context): (u64, u64), now: Duration, status: JobStatus, prepared: &PreparedJob) -> Self {
        let clock = Clock { submitted: now, ..Clock::default() };
        Self {
            fingerprint: prepared.fingerprint,
            ..Self::restored((number, context), status, prepared.question.clone(), clock)
        }
    }

    /// A job as the journal has it. Tokens come from its query host again.
    pub fn restored((number, context): (u64, u64), status: JobStatus, question: Question, clock: Clock) -> Self {
        let phase = status.phase.unwrap_or(JobPhase::Queued);
        Self {
            number,
            status,
            fingerprint: None,
            context,
            key: None,
            question,
            query_host: None,
            told_attempt: 0,
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
        self.status.state == JobState::Running
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.clock.ended.is_some()
    }

    /// Moves on. Whether that is news.
    pub fn enter(&mut self, now: Duration, phase: JobPhase) -> bool {
        self.status.state = JobState::Running;
        let clock = match phase {
            JobPhase::Encoding => &mut self.clock.encoding,
            JobPhase::Querying => &mut self.clock.querying,
            JobPhase::Decoding => &mut self.clock.decoding,
            JobPhase::Queued | JobPhase::Recovering => return false,
        };
        clock.get_or_insert(now);
        let news = self.phase != phase;
        self.phase = phase;
        if self.open.is_empty() {
            self.status.phase = Some(phase);
        }
        news && self.open.is_empty()
    }

    /// The phase that it is in, or goes back to when it has recovered.
    pub fn phase(&self) -> JobPhase {
        self.phase
    }

    /// Notes the loss of a host that it needs.
    pub fn lost(&mut self, now: Duration, recovery: RecoveryStatus) {
        self.open.push((self.status.recoveries.len(), now));
        self.status.recoveries.push(recovery);
        self.status.phase = Some(JobPhase::Recovering);
    }

    /// It goes on: closes the recoveries under way and returns them.
    pub fn recovered(&mut self, now: Duration) -> Vec<RecoveryStatus> {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            self.status.phase = Some(self.phase);
        }
        let close = |(at, declared): (usize, Duration)| {
            let recovery = &mut self.status.recoveries[at];
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

    /// Bytes that are held for it: of what it asks, and once it has ended of what it answers.
    pub fn bytes(&self) -> u64 {
        let labels = self.status.labels.iter().map(|(key, value)| key.len() + value.len());
        let asked = self.question.text.as_ref().map_or(0, String::len);
        let text: usize = self.status.id.len() + labels.sum::<usize>() + asked;
        let part = match self.has_ended() {
            false => {
                let stops = self.question.choice.stop.iter().map(String::len).sum::<usize>();
                4 * self.question.query_ids.len() + stops + self.question.anew.as_ref().map_or(0, |anew| anew.bytes())
            }
            true => {
                let logprobs = self.status.logprobs.iter().map(TokenLogprobs::bytes).sum::<usize>();
                4 * (self.question.query_ids.len() + self.status.tokens.len()) + self.status.text.len() + logprobs
            }
        };
        OVERHEAD + (text + part) as u64
    }

    /// Marks the end.
    pub fn finish(&mut self, now: Duration, outcome: Outcome) {
        self.clock.ended = Some(now);
        // What was asked a session may become a part of it.
        let query_ids = std::mem::take(&mut self.question.query_ids);
        let kept = if self.status.session.is_some() { query_ids } else { Vec::new() };
        let text = self.question.text.take();
        self.question = Question { query_ids: kept, text, trace: self.question.trace, ..Question::default() };
        self.open.clear();
        self.status.phase = None;
        self.status.error = outcome.error();
        self.status.state = match outcome {
            Outcome::Answered { stopped } => {
                self.status.finish_reason = Some(if stopped { FinishReason::Stop } else { FinishReason::Length });
                JobState::Succeeded
            }
            Outcome::Failed { .. } => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        };
    }

    /// Its status with timings up to `now`.
    pub fn status_at(&self, now: Duration) -> JobStatus {
        JobStatus { timings: self.timings(now), ..self.status.clone() }
    }

    fn timings(&self, now: Duration) -> Timings {
        let end = self.clock.ended.unwrap_or(now);
        let span = |from: Option<Duration>, to: Option<Duration>| match from {
            Some(from) => to.unwrap_or(end).saturating_sub(from).as_secs_f64(),
            None => 0.0,
        };
        let Clock { submitted, encoding, querying, decoding, ended } = self.clock.clone();
        Timings {
            queue_s: span(Some(submitted), encoding),
            encode_s: span(encoding, querying),
            query_s: span(querying, decoding),
            decode_s: span(decoding, ended),
            total_s: end.saturating_sub(submitted).as_secs_f64(),
            hosts: self.status.timings.hosts.clone(),
        }
    }

    /// Its names.
    pub fn name(&self) -> JobName {
        JobName { id: self.status.id.clone(), number: self.number }
    }

    /// That it was taken in.
    pub fn submitted(&self) -> News {
        let JobStatus { session, method, context_tokens, query_tokens, .. } = &self.status;
        News::JobSubmitted {
            job: self.name(),
            context: self.context,
            session: session.clone(),
            method: method.clone(),
            context_tokens: *context_tokens,
            query_tokens: *query_tokens,
        }
    }

    /// That hosts work on it, where they did not before.
    pub fn started(&self, now: Duration) -> Option<News> {
        let queue_s = now.saturating_sub(self.clock.submitted).as_secs_f64();
        (self.status.state == JobState::Pending).then(|| News::JobStarted { job: self.name(), queue_s })
    }

    /// That it is over.
    pub fn ended(&self) -> News {
        let JobStatus { state, generated_tokens: tokens, error, .. } = &self.status;
        let (code, timings) = (error.as_ref().map(|error| error.code.clone()), self.timings(Duration::ZERO));
        News::JobEnded { job: self.name(), state: *state, code, tokens: *tokens, timings }
    }

    /// What its end adds to the metrics.
    pub fn ended_observations(&self) -> Vec<Observation> {
        let timings = self.timings(self.clock.ended.unwrap_or_default());
        let mut observations = vec![match &self.status.error {
            Some(error) => Observation::RequestFailed { code: error.code.clone() },
            None => Observation::RequestEnded { reason: self.status.finish_reason },
        }];
        observations.extend(self.spans().into_iter().map(Observation::Span));
        if self.status.state == JobState::Succeeded {
            observations.push(Observation::Request {
                method: self.status.method.clone(),
                model: self.status.model.clone(),
                prompt_tokens: self.status.context_tokens + self.status.query_tokens,
                generated_tokens: self.status.generated_tokens,
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
