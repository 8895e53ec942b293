//! What the journal keeps, and the state that a supervisor begins with when it reads it. Reads and writes no file.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    api::{JobPhase, JobState, JobStatus},
    store::{Change, Entry, StoreError, Table},
    supervisor::{
        config::SupervisorConfig,
        fingerprint::Fingerprint,
        rules::sessions::Session,
        state::{Origin, SupervisorState},
        tables::{
            context::{Context, Owner, Place},
            hosts::{HostRecord, KeptHost, told::Address},
            job::{Clock, Job, Question},
            model::ModelMark,
            prepared::PreparedContext,
        },
    },
    ticket::Secret,
};

const CLUSTER_KEY: &str = "cluster";
/// The part of a context that changes, which has an entry of its own.
const PLACES: &str = "places";

#[derive(Serialize, Deserialize)]
struct ClusterEntry {
    cluster: u64,
    secret: Secret,
    last_number: u64,
    /// The model that all of it is of.
    #[serde(default)]
    model: Option<ModelMark>,
}

#[derive(Serialize, Deserialize)]
struct ContextEntry {
    owner: Owner,
    prepared: PreparedContext,
    taken: Duration,
}

/// Kept apart from the plan, which is large and never changes.
#[derive(Serialize, Deserialize)]
struct PlacesEntry {
    attempt: u32,
    together: bool,
    hosts: Vec<Option<String>>,
    numerics: Option<String>,
    mixed_numerics: bool,
    clock: (Option<Duration>, Option<Duration>),
}

#[derive(Serialize, Deserialize)]
struct JobEntry {
    status: JobStatus,
    fingerprint: Option<Fingerprint>,
    context: u64,
    question: Option<Question>,
    /// What its tokens were computed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numerics: Option<String>,
    clock: Clock,
}

/// What was drawn once for this journal, the last number given away, and the model.
pub fn cluster(origin: &Origin, last_number: u64, model: &ModelMark) -> Change {
    let Origin { cluster, secret } = origin.clone();
    let model = Some(model.clone());
    put(Table::Cluster, CLUSTER_KEY.to_string(), &ClusterEntry { cluster, secret, last_number, model })
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

fn context_entry(context: &Context) -> Change {
    let (owner, prepared, taken) = (context.owner.clone(), context.prepared.clone(), context.taken);
    put(Table::Contexts, number_key(context.number), &ContextEntry { owner, prepared, taken })
}

/// The ids of a context's tokens, four bytes each.
fn ids(context: &Context) -> Change {
    let value = context.prepared.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Change::Put { table: Table::Ids, key: number_key(context.number), value }
}

/// Where a context's shards are, by host name.
pub fn places(context: &Context, names: &[Address]) -> Change {
    let host = |place: &Place| place.host.map(|host| names[host].0.clone());
    let hosts = context.places.iter().map(host).collect();
    let (attempt, together, clock) = (context.attempt, context.together, context.clock);
    let (numerics, mixed_numerics) = (context.numerics.clone(), context.mixed_numerics);
    let entry = PlacesEntry { attempt, together, hosts, numerics, mixed_numerics, clock };
    put(Table::Contexts, part_key(context.number, PLACES), &entry)
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
    let mut status = job.status_at(job.clock.ended.unwrap_or(job.clock.submitted));
    let question = (!job.has_ended() || !job.question.query_ids.is_empty()).then(|| job.question.clone());
    if !job.has_ended() {
        // What was generated, its query host says again.
        (status.generated_tokens, status.tokens, status.text) = (0, Vec::new(), String::new());
        status.logprobs.clear();
    }
    let (numerics, clock) = (job.numerics.clone().filter(|_| !job.has_ended()), job.clock.clone());
    let entry = JobEntry { status, fingerprint: job.fingerprint, context: job.context, question, numerics, clock };
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

impl SupervisorState {
    /// The state that `entries` of the journal describe, before any host came back. `origin` is that of a journal that is
    /// empty.
    ///
    /// # Errors
    /// [`StoreError::Record`] with the entry that cannot be read.
    pub fn restore(
        config: SupervisorConfig,
        now: Duration,
        origin: Origin,
        entries: &[Entry],
    ) -> Result<Self, StoreError> {
        let mut state = Self::new(config, now, origin);
        let mut contexts = BTreeMap::new();
        let (mut places, mut ids) = (BTreeMap::new(), BTreeMap::new());
        let mut jobs = Vec::new();
        for entry in entries {
            match entry.table {
                Table::Cluster => {
                    let ClusterEntry { cluster, secret, last_number, model } = read(entry)?;
                    (state.origin, state.last_number) = (Origin { cluster, secret }, last_number);
                    state.model.restore(model, last_number);
                }
                Table::Hosts => state.hosts.restore(&entry.key, read::<KeptHost>(entry)?),
                Table::Contexts => match entry.key.split_once('/') {
                    Some((number, _)) => drop(places.insert(parse(entry, number)?, read::<PlacesEntry>(entry)?)),
                    None => drop(contexts.insert(parse(entry, &entry.key)?, read::<ContextEntry>(entry)?)),
                },
                Table::Ids => drop(ids.insert(parse(entry, &entry.key)?, read_ids(entry)?)),
                Table::Jobs => {
                    let number = parse(entry, &entry.key)?;
                    jobs.push(read::<JobEntry>(entry)?.restore(number));
                }
                Table::Sessions => {
                    let mut session: Session = read(entry)?;
                    // A wall clock that was set back must not let it live longer than it may.
                    session.expires = session.expires.min(now + session.ttl);
                    state.sessions.insert(session);
                }
            }
        }
        for (number, ContextEntry { owner, mut prepared, taken }) in contexts {
            prepared.ids = ids.remove(&number).unwrap_or_default();
            check_ids(number, &prepared)?;
            let mut context = Context::new((number, taken), owner, prepared);
            context.ticket = state.origin.secret.ticket(number);
            if let Some(entry) = places.remove(&number) {
                state.put_back(&mut context, entry);
            }
            state.contexts.insert(context);
        }
        state.lend_again();
        for mut job in jobs {
            if !job.has_ended() && state.contexts.get(job.context).is_some_and(Context::is_placed) {
                job.enter(now, JobPhase::Encoding);
            }
            state.jobs.insert(job);
        }
        Ok(state)
    }

    /// What the journal should have in place of `changes` that are not in force: how things are.
    pub fn restated(&self, changes: &[Change]) -> Vec<Change> {
        changes.iter().map(|change| self.as_it_is(change.table(), change.key())).collect()
    }

    /// What the journal should have in one place.
    pub(in crate::supervisor) fn as_it_is(&self, table: Table, key: &str) -> Change {
        let (number, part) = key.split_once('/').unwrap_or((key, ""));
        let number = number.parse().unwrap_or_default();
        let is = match table {
            Table::Cluster => Some(cluster(&self.origin, self.last_number, &self.model.mark())),
            Table::Hosts => self.hosts.by_name(key).map(|at| host(self.hosts.at(at))),
            Table::Contexts => self.contexts.get(number).and_then(|context| match part {
                PLACES => context.is_placed().then(|| self::places(context, &self.addresses())),
                _ => Some(context_entry(context)),
            }),
            Table::Ids => self.contexts.get(number).map(ids),
            Table::Jobs => self.jobs.get(number).map(job),
            Table::Sessions => self.sessions.get(key).map(session),
        };
        is.unwrap_or_else(|| Change::Remove { table, key: key.to_string() })
    }

    fn put_back(&self, context: &mut Context, entry: PlacesEntry) {
        (context.numerics, context.mixed_numerics) = (entry.numerics, entry.mixed_numerics);
        let host = |name: &Option<String>| name.as_ref().and_then(|name| self.hosts.by_name(name));
        let place = |name: &Option<String>| Place { host: host(name), encoded: None };
        context.places = entry.hosts.iter().map(place).collect();
        (context.attempt, context.together, context.clock) = (entry.attempt, entry.together, entry.clock);
    }
}

impl JobEntry {
    fn restore(self, number: u64) -> Job {
        let ended = !matches!(self.status.state, JobState::Pending | JobState::Running);
        let clock = Clock { ended: self.clock.ended.filter(|_| ended), ..self.clock };
        let mut job = Job::restored((number, self.context), self.status, self.question.unwrap_or_default(), clock);
        (job.fingerprint, job.numerics) = (self.fingerprint, self.numerics);
        job
    }
}

fn put(table: Table, key: String, value: &impl Serialize) -> Change {
    let value = serde_json::to_vec(value).expect("records are plain values with text keys");
    Change::Put { table, key, value }
}

fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|error| unreadable(entry, error))
}

fn parse(entry: &Entry, number: &str) -> Result<u64, StoreError> {
    number.parse().map_err(|error| unreadable(entry, error))
}

fn unreadable(entry: &Entry, cause: impl ToString) -> StoreError {
    StoreError::Record { table: entry.table.name(), key: entry.key.clone(), cause: cause.to_string() }
}

/// The ids of an entry.
fn read_ids(entry: &Entry) -> Result<Arc<[u32]>, StoreError> {
    let (ids, rest) = entry.value.as_chunks::<4>();
    match rest.is_empty() {
        true => Ok(ids.iter().map(|id| u32::from_le_bytes(*id)).collect()),
        false => Err(unreadable(entry, format!("{} bytes are not whole ids of 4", entry.value.len()))),
    }
}

/// Whether a context has the ids that its plan numbers.
fn check_ids(number: u64, prepared: &PreparedContext) -> Result<(), StoreError> {
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
