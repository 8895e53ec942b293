//! What the journal keeps of each thing, and how it is read back. Reads and writes no file.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    api::{ErrorBody, FinishReason, HostTiming, JobPhase, JobState, RecoveryStatus, TokenLogprobs},
    store::{Change, Entry, StoreError, Table},
    supervisor::{
        fingerprint::Fingerprint,
        tables::{
            context::{Context, ContextOwner, Placed, ShardLocation},
            hosts::{HostRecord, KeptHost, host_report::Address},
            job::{Job, JobFacts, JobProgress, PhaseTimes, Question, Restored},
            model::{ClusterModels, ModelMark},
            numbers::Origin,
            prepared::PreparedContext,
            sessions::Session,
        },
    },
    ticket::Secret,
};

const CLUSTER_KEY: &str = "cluster";
/// The part of a context that changes, which has an entry of its own.
pub const PLACES: &str = "places";

/// What is kept once.
#[derive(Serialize, Deserialize)]
pub struct ClusterEntry {
    pub cluster: u64,
    pub secret: Secret,
    pub last_number: u64,
    /// The model that all of it is of which names none.
    #[serde(default)]
    pub model: Option<ModelMark>,
    /// The models that the rest of it is of, by their labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelMark>,
}

/// What of a context never changes.
#[derive(Serialize, Deserialize)]
pub struct ContextEntry {
    pub owner: ContextOwner,
    pub prepared: PreparedContext,
    pub taken: Duration,
}

/// Kept apart from the plan, which is large and never changes.
#[derive(Serialize, Deserialize)]
pub struct PlacesEntry {
    pub attempt: u32,
    pub together: bool,
    pub hosts: Vec<Option<String>>,
    pub numerics: Option<String>,
    pub mixed_numerics: bool,
    pub began: Duration,
    pub first_ready: Option<Duration>,
}

/// A job.
#[derive(Serialize, Deserialize)]
pub struct JobEntry {
    pub facts: JobFacts,
    pub state: JobState,
    /// The phase that it was in, unless it has ended.
    pub phase: Option<JobPhase>,
    #[serde(default)]
    pub reused_tokens: usize,
    pub cached_tokens: usize,
    /// Of one that has ended; of another its query host says again what it generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerEntry>,
    pub error: Option<ErrorBody>,
    pub attention_sparsity: Option<f64>,
    pub mixed_numerics: bool,
    pub recoveries: Vec<RecoveryStatus>,
    pub hosts: Vec<HostTiming>,
    pub fingerprint: Option<Fingerprint>,
    pub context: u64,
    pub question: Option<Question>,
    /// What its tokens were computed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
    pub clock: PhaseTimes,
}

/// The answer of a job that has ended, or what there was of it.
#[derive(Serialize, Deserialize)]
pub struct AnswerEntry {
    pub text: String,
    pub tokens: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprobs>,
    pub finish_reason: Option<FinishReason>,
}

/// What was drawn once for this journal, the last number given away, and the models.
pub fn cluster(origin: &Origin, last_number: u64, models: &ClusterModels) -> Change {
    let Origin { cluster, secret } = origin.clone();
    let mut models = models.marks();
    let model = models.remove("");
    put(Table::Cluster, CLUSTER_KEY.to_string(), &ClusterEntry { cluster, secret, last_number, model, models })
}

/// A host.
pub fn host(record: &HostRecord) -> Change {
    kept(record, &record.kept)
}

/// A host with what is to be kept of it.
pub fn kept(record: &HostRecord, kept: &KeptHost) -> Change {
    put(Table::Hosts, record.spec.name.clone(), kept)
}

/// A context that was taken in.
pub fn context(context: &Context) -> [Change; 2] {
    [context_entry(context), ids(context)]
}

/// The part of a context that never changes.
pub fn context_entry(context: &Context) -> Change {
    let (owner, prepared, taken) = (context.owner.clone(), context.prepared.clone(), context.taken);
    put(Table::Contexts, number_key(context.number), &ContextEntry { owner, prepared, taken })
}

/// The ids of a context's tokens, four bytes each.
pub fn ids(context: &Context) -> Change {
    let value = context.prepared.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Change::Put { table: Table::Ids, key: number_key(context.number), value }
}

/// Where a context's shards are, by host name; nothing before its turn has come.
pub fn places(context: &Context, names: &[Address]) -> Option<Change> {
    let placed = context.placed()?;
    let host = |place: &ShardLocation| place.host.map(|host| names[host].0.clone());
    let Placed { attempt, together, began, first_ready, ref places, .. } = *placed;
    let hosts = places.iter().map(host).collect();
    let (numerics, mixed_numerics) = (context.numerics.clone(), context.mixed_numerics);
    let entry = PlacesEntry { attempt, together, hosts, numerics, mixed_numerics, began, first_ready };
    Some(put(Table::Contexts, part_key(context.number, PLACES), &entry))
}

/// A context is gone.
pub fn no_context(number: u64) -> [Change; 3] {
    let keys = [
        (Table::Contexts, number_key(number)),
        (Table::Ids, number_key(number)),
        (Table::Contexts, part_key(number, PLACES)),
    ];
    keys.map(|(table, key)| Change::Remove { table, key })
}

/// A job; one that has ended without its question.
pub fn job(job: &Job) -> Change {
    let (ended, progress) = (job.has_ended(), job.progress.clone());
    let JobProgress { state, reused_tokens, cached_tokens, text, tokens, logprobs, finish_reason, .. } = progress;
    let entry = JobEntry {
        facts: job.facts.clone(),
        state,
        phase: job.shown_phase(),
        reused_tokens,
        cached_tokens,
        answer: ended.then_some(AnswerEntry { text, tokens, logprobs, finish_reason }),
        error: progress.error,
        attention_sparsity: progress.attention_sparsity,
        mixed_numerics: progress.mixed_numerics,
        recoveries: progress.recoveries,
        hosts: progress.hosts,
        fingerprint: job.fingerprint,
        context: job.context,
        question: (!ended || !job.question.query_ids.is_empty()).then(|| job.question.clone()),
        numerics: job.numerics.clone().filter(|_| !ended),
        clock: job.clock.clone(),
    };
    put(Table::Jobs, number_key(job.number), &entry)
}

/// A job is forgotten.
pub fn no_job(number: u64) -> Change {
    Change::Remove { table: Table::Jobs, key: number_key(number) }
}

/// A session.
pub fn session(session: &Session) -> Change {
    put(Table::Sessions, session.name.clone(), session)
}

/// A session is gone.
pub fn no_session(name: &str) -> Change {
    Change::Remove { table: Table::Sessions, key: name.to_string() }
}

impl JobEntry {
    /// The job that this is of.
    pub fn restore(self, number: u64) -> Job {
        let ended = !matches!(self.state, JobState::Pending | JobState::Running);
        let mut progress = JobProgress {
            state: self.state,
            error: self.error,
            attention_sparsity: self.attention_sparsity,
            mixed_numerics: self.mixed_numerics,
            recoveries: self.recoveries,
            hosts: self.hosts,
            reused_tokens: self.reused_tokens,
            ..JobProgress::new(self.cached_tokens)
        };
        if let Some(AnswerEntry { text, tokens, logprobs, finish_reason }) = self.answer {
            progress = JobProgress { text, tokens, logprobs, finish_reason, ..progress };
        }
        let mut job = Job::restored(Restored {
            number,
            context: self.context,
            facts: self.facts,
            progress,
            question: self.question.unwrap_or_default(),
            clock: PhaseTimes { ended: self.clock.ended.filter(|_| ended), ..self.clock },
            phase: self.phase.unwrap_or(JobPhase::Queued),
        });
        (job.fingerprint, job.numerics) = (self.fingerprint, self.numerics);
        job
    }
}

fn put(table: Table, key: String, value: &impl Serialize) -> Change {
    let value = serde_json::to_vec(value).expect("records are plain values with text keys");
    Change::Put { table, key, value }
}

/// An entry's value.
pub fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|error| unreadable(entry, error))
}

/// The number in an entry's key.
pub fn parse(entry: &Entry, number: &str) -> Result<u64, StoreError> {
    number.parse().map_err(|error| unreadable(entry, error))
}

fn unreadable(entry: &Entry, cause: impl ToString) -> StoreError {
    StoreError::Record { table: entry.table.name(), key: entry.key.clone(), cause: cause.to_string() }
}

/// The ids of an entry.
pub fn read_ids(entry: &Entry) -> Result<Arc<[u32]>, StoreError> {
    let (ids, rest) = entry.value.as_chunks::<4>();
    match rest.is_empty() {
        true => Ok(ids.iter().map(|id| u32::from_le_bytes(*id)).collect()),
        false => Err(unreadable(entry, format!("{} bytes are not whole ids of 4", entry.value.len()))),
    }
}

/// Whether a context has the ids that its plan numbers.
pub fn check_ids(number: u64, prepared: &PreparedContext) -> Result<(), StoreError> {
    let (expected, got) = (prepared.plan.context_tokens + prepared.plan.extra_ids.len(), prepared.ids.len());
    if expected == got {
        return Ok(());
    }
    let (table, key) = (Table::Ids.name(), number_key(number));
    Err(StoreError::Record { table, key, cause: format!("it has {got} ids and the plan {expected}") })
}

fn part_key(number: u64, part: &str) -> String {
    format!("{}/{part}", number_key(number))
}

/// Sorts as numbers do.
fn number_key(number: u64) -> String {
    format!("{number:020}")
}
