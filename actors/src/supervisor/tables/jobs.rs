//! Every job, and the orders in which the rules ask for them. An index follows a job when the borrow that changed it ends, so
//! that none can be forgotten. Decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::{Bound, Deref, DerefMut, SubAssign},
    time::Duration,
};

use crate::{
    api::JobState,
    supervisor::tables::{job::Job, prepared::TenantKey},
};

/// A job without a host that could be generated: since when, and its number.
pub type UnassignedJob = (Duration, u64);

/// Jobs of a model that a key asked wait in one line.
type QueueKey = (String, TenantKey);

/// What a round of looking for query hosts need not look at again.
#[derive(Debug, Default)]
pub struct Passed {
    /// Places in the lines: jobs up to there were looked at.
    places: BTreeMap<QueueKey, UnassignedJob>,
    /// Models whose query hosts have all they take.
    full: BTreeSet<String>,
}

/// Jobs by number, with indexes.
#[derive(Debug, Default)]
pub struct Jobs {
    all: BTreeMap<u64, Job>,
    index: JobIndex,
    /// Whether what was accepted waits until a self-test has passed.
    pub held: bool,
    /// The job of that test that was taken in last.
    pub canary: Option<u64>,
}

/// What is looked up other than by number. Times stand before numbers where the earliest is asked for.
#[derive(Debug, Default, PartialEq)]
struct JobIndex {
    by_id: HashMap<String, u64>,
    by_state: [BTreeSet<u64>; 5],
    of_context: BTreeMap<u64, BTreeSet<u64>>,
    watched_of: BTreeMap<u64, BTreeSet<u64>>,
    on_host: BTreeMap<usize, BTreeSet<u64>>,
    /// Tokens that their questions and answers keep on each host, at most.
    tokens_on: BTreeMap<usize, u64>,
    /// By the models and keys that asked.
    unassigned_jobs: BTreeMap<QueueKey, BTreeSet<UnassignedJob>>,
    /// Jobs that hosts generate for, by the keys that asked.
    generating: BTreeMap<TenantKey, usize>,
    limits: BTreeSet<(Duration, u64)>,
    ended: BTreeSet<(Duration, u64)>,
    generating_own: usize,
    open_bytes: u64,
    ended_bytes: u64,
}

/// What of a job the indexes know.
#[derive(Clone, Debug, PartialEq)]
struct JobIndexKeys {
    queue: QueueKey,
    state: JobState,
    context: u64,
    own_context: bool,
    query_host: Option<usize>,
    own_tokens: u64,
    ready_since: Option<Duration>,
    limit: Option<Duration>,
    ended: Option<Duration>,
    watched: bool,
    bytes: u64,
}

impl JobIndexKeys {
    fn of(job: &Job) -> Self {
        Self {
            queue: queue_of(job),
            state: job.progress.state,
            context: job.context,
            own_context: job.facts.session.is_none(),
            query_host: job.query_host,
            own_tokens: job.own_tokens(),
            ready_since: job.ready_since,
            limit: job.question.timeout.map(|limit| job.clock.submitted.saturating_add(limit)),
            ended: job.clock.ended,
            watched: job.watched,
            bytes: job.bytes(),
        }
    }
}

/// A job that is being changed.
pub struct JobEdit<'a> {
    job: &'a mut Job,
    index: &'a mut JobIndex,
    before: JobIndexKeys,
}

impl Deref for JobEdit<'_> {
    type Target = Job;

    fn deref(&self) -> &Job {
        self.job
    }
}

impl DerefMut for JobEdit<'_> {
    fn deref_mut(&mut self) -> &mut Job {
        self.job
    }
}

impl Drop for JobEdit<'_> {
    fn drop(&mut self) {
        let after = JobIndexKeys::of(self.job);
        if after != self.before {
            self.index.remove(self.job.number, &self.before);
            self.index.insert(self.job.number, &after);
        }
    }
}

impl Jobs {
    /// Takes a job in whose number is new.
    pub fn insert(&mut self, job: Job) {
        self.index.by_id.insert(job.facts.id.clone(), job.number);
        self.index.insert(job.number, &JobIndexKeys::of(&job));
        self.all.insert(job.number, job);
    }

    /// Forgets a job.
    pub fn remove(&mut self, number: u64) {
        let Some(job) = self.all.remove(&number) else { return };
        self.index.remove(number, &JobIndexKeys::of(&job));
        self.index.by_id.remove(&job.facts.id);
    }

    /// One job.
    pub fn get(&self, number: u64) -> Option<&Job> {
        self.all.get(&number)
    }

    /// One job that hosts work on, to be changed.
    pub fn running_mut(&mut self, number: u64) -> Option<JobEdit<'_>> {
        self.get_mut(number).filter(|job| job.is_running())
    }

    /// Whether a job waits for the self-test.
    pub fn is_held(&self, number: u64) -> bool {
        self.held && !self.get(number).is_some_and(|job| job.question.canary)
    }

    /// One job, to be changed: anything but its number, id and context.
    pub fn get_mut(&mut self, number: u64) -> Option<JobEdit<'_>> {
        let job = self.all.get_mut(&number)?;
        Some(JobEdit { before: JobIndexKeys::of(job), job, index: &mut self.index })
    }

    /// A job that has not ended, to be changed.
    pub fn open_mut(&mut self, number: u64) -> Option<JobEdit<'_>> {
        self.get_mut(number).filter(|job| !job.has_ended())
    }

    /// A job's number by its id.
    pub fn number(&self, id: &str) -> Option<u64> {
        self.index.by_id.get(id).copied()
    }

    /// Jobs in some states or in any, newest first or oldest first, those behind a number in that order.
    pub fn listed(&self, after: Option<u64>, states: &[JobState], order: (bool, usize)) -> Vec<u64> {
        let (oldest_first, limit) = order;
        let rest = match (after, oldest_first) {
            (None, _) => (Bound::Unbounded, Bound::Unbounded),
            (Some(number), true) => (Bound::Excluded(number), Bound::Unbounded),
            (Some(number), false) => (Bound::Unbounded, Bound::Excluded(number)),
        };
        let some = |numbers: &mut dyn DoubleEndedIterator<Item = u64>| -> Vec<u64> {
            match oldest_first {
                true => numbers.take(limit).collect(),
                false => numbers.rev().take(limit).collect(),
            }
        };
        if states.is_empty() {
            return some(&mut self.all.range(rest).map(|(number, _)| *number));
        }
        let of = |state: &JobState| some(&mut self.index.by_state[*state as usize].range(rest).copied());
        let numbers: BTreeSet<u64> = states.iter().flat_map(of).collect();
        some(&mut numbers.into_iter())
    }

    /// How many are in a state.
    pub fn count(&self, state: JobState) -> usize {
        self.index.by_state[state as usize].len()
    }

    /// Jobs in a state, oldest first.
    pub fn in_state(&self, state: JobState) -> impl Iterator<Item = u64> + '_ {
        self.index.by_state[state as usize].iter().copied()
    }

    /// Jobs that ask a context and have not ended.
    pub fn of_context(&self, context: u64) -> Vec<u64> {
        self.index.of_context.get(&context).into_iter().flatten().copied().collect()
    }

    /// Whether a job that has not ended asks a context, other than `one`.
    pub fn ask(&self, context: u64, one: Option<u64>) -> bool {
        let of = self.index.of_context.get(&context);
        of.is_some_and(|jobs| jobs.len() > usize::from(one.is_some_and(|one| jobs.contains(&one))))
    }

    /// Of these, those that somebody watches.
    pub fn watched_of(&self, context: u64) -> impl Iterator<Item = u64> + '_ {
        self.index.watched_of.get(&context).into_iter().flatten().copied()
    }

    /// Jobs that a host generates for.
    pub fn on_host(&self, host: usize) -> Vec<u64> {
        self.index.on_host.get(&host).into_iter().flatten().copied().collect()
    }

    /// How many these are.
    pub fn count_on(&self, host: usize) -> usize {
        self.index.on_host.get(&host).map_or(0, BTreeSet::len)
    }

    /// Tokens that the questions and answers of the jobs that a host generates for keep there, at most.
    pub fn tokens_on(&self, host: usize) -> u64 {
        self.index.tokens_on.get(&host).copied().unwrap_or(0)
    }

    /// The job to be generated next: of the key for which the fewest are, the one that could be for the longest.
    pub fn next_unassigned(&self, passed: &Passed) -> Option<UnassignedJob> {
        let first = |(queue, line): (&QueueKey, &BTreeSet<UnassignedJob>)| {
            let after = passed.places.get(queue).map_or(Bound::Unbounded, |place| Bound::Excluded(*place));
            Some((self.generating_of(&queue.1), *line.range((after, Bound::Unbounded)).next()?))
        };
        let lines = self.index.unassigned_jobs.iter().filter(|((model, _), _)| !passed.full.contains(model));
        lines.filter_map(first).min().map(|(_, place)| place)
    }

    /// The job of a model without a host that could be generated for the longest.
    pub fn longest_unassigned(&self, model: &str) -> Option<UnassignedJob> {
        self.lines_of(model).filter_map(|(_, line)| line.first()).min().copied()
    }

    /// The lines of jobs of a model that have no host and could be generated.
    fn lines_of(&self, model: &str) -> impl Iterator<Item = (&QueueKey, &BTreeSet<UnassignedJob>)> {
        let from = (model.to_owned(), TenantKey::None);
        let lines = self.index.unassigned_jobs.range(from..);
        lines.take_while(move |((of, _), _)| of == model)
    }

    /// How many are generated before a job, or would be: of other keys as many as of its own, as they take turns. Other models have
    /// query hosts of their own.
    pub fn unassigned_before(&self, number: u64) -> usize {
        let Some(job) = self.get(number) else { return 0 };
        let queue = queue_of(job);
        let before = |line: &BTreeSet<UnassignedJob>| match job.ready_since {
            Some(since) => line.range(..(since, number)).count(),
            None => line.len(),
        };
        let own = self.index.unassigned_jobs.get(&queue).map_or(0, before);
        let others = self.lines_of(&queue.0).filter(|(other, _)| **other != queue);
        own + others.map(|(_, line)| line.len().min(own)).sum::<usize>()
    }

    /// Jobs of a key that hosts generate for.
    pub fn generating_of(&self, key: &TenantKey) -> usize {
        self.index.generating.get(key).copied().unwrap_or(0)
    }

    /// Jobs whose time limit has passed.
    pub fn late(&self, now: Duration) -> Vec<u64> {
        self.index.limits.iter().take_while(|(limit, _)| *limit < now).map(|(_, number)| *number).collect()
    }

    /// Jobs with a context of their own that a host generates for.
    pub fn generating_own(&self) -> usize {
        self.index.generating_own
    }

    /// Bytes of the questions of jobs that have not ended.
    pub fn open_bytes(&self) -> u64 {
        self.index.open_bytes
    }

    /// The job that ended first, when more are remembered than these, or more bytes of them.
    pub fn surplus(&self, jobs: usize, bytes: u64) -> Option<u64> {
        let much = self.index.ended.len() > jobs || (self.index.ended_bytes > bytes && self.index.ended.len() > 1);
        self.index.ended.first().filter(|_| much).map(|(_, number)| *number)
    }

    /// Whether the indexes are what counting anew gives.
    pub fn agree(&self) -> bool {
        let mut counted = JobIndex::default();
        for job in self.all.values() {
            counted.by_id.insert(job.facts.id.clone(), job.number);
            counted.insert(job.number, &JobIndexKeys::of(job));
        }
        self.index == counted
    }
}

impl Passed {
    /// A job was looked at, which stands at this place of its line.
    pub fn pass(&mut self, job: &Job, place: UnassignedJob) {
        self.places.insert(queue_of(job), place);
    }

    /// No query host of a model takes more.
    pub fn fill(&mut self, model: &str) {
        self.full.insert(model.to_owned());
    }
}

fn queue_of(job: &Job) -> QueueKey {
    (job.facts.model.clone(), job.key.clone())
}

impl JobIndex {
    fn insert(&mut self, number: u64, keys: &JobIndexKeys) {
        self.by_state[keys.state as usize].insert(number);
        if let Some(ended) = keys.ended {
            self.ended.insert((ended, number));
            self.ended_bytes += keys.bytes;
            return;
        }
        self.open_bytes += keys.bytes;
        self.of_context.entry(keys.context).or_default().insert(number);
        if keys.watched {
            self.watched_of.entry(keys.context).or_default().insert(number);
        }
        if let Some(limit) = keys.limit {
            self.limits.insert((limit, number));
        }
        match (keys.query_host, keys.ready_since) {
            (Some(host), _) => {
                self.on_host.entry(host).or_default().insert(number);
                let tokens = self.tokens_on.entry(host).or_default();
                *tokens = tokens.saturating_add(keys.own_tokens);
                self.generating_own += usize::from(keys.own_context);
                *self.generating.entry(keys.queue.1.clone()).or_default() += 1;
            }
            (None, Some(since)) => {
                self.unassigned_jobs.entry(keys.queue.clone()).or_default().insert((since, number));
            }
            (None, None) => {}
        }
    }

    fn remove(&mut self, number: u64, keys: &JobIndexKeys) {
        self.by_state[keys.state as usize].remove(&number);
        if let Some(ended) = keys.ended {
            self.ended.remove(&(ended, number));
            self.ended_bytes -= keys.bytes;
            return;
        }
        self.open_bytes -= keys.bytes;
        remove_from(&mut self.of_context, &keys.context, number);
        remove_from(&mut self.watched_of, &keys.context, number);
        if let Some(limit) = keys.limit {
            self.limits.remove(&(limit, number));
        }
        match (keys.query_host, keys.ready_since) {
            (Some(host), _) => {
                remove_from(&mut self.on_host, &host, number);
                count_down(&mut self.tokens_on, &host, keys.own_tokens);
                self.generating_own -= usize::from(keys.own_context);
                count_down(&mut self.generating, &keys.queue.1, 1);
            }
            (None, Some(since)) => remove_from(&mut self.unassigned_jobs, &keys.queue, (since, number)),
            (None, None) => {}
        }
    }
}

/// Takes a member out of one of the sets of `sets`, which holds no empty one.
pub fn remove_from<K: Ord, M: Ord>(sets: &mut BTreeMap<K, BTreeSet<M>>, key: &K, member: M) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(&member);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// Counts down one of the counts of `counts`, which holds none of nothing.
pub fn count_down<K: Ord, N: Copy + Default + PartialEq + SubAssign>(counts: &mut BTreeMap<K, N>, key: &K, less: N) {
    if let Some(count) = counts.get_mut(key) {
        *count -= less;
        if *count == N::default() {
            counts.remove(key);
        }
    }
}
