//! What the journal takes next, what waits for that, and what is told outside when it is done. No file and no thread: those
//! are `writer.rs`.
//!
//! Writes go one after the other; all that came up during one is the next, in one transaction, of clients' changes no more than a
//! disk takes quickly, keys in turn. What clients change is decided
//! only when its write begins, on the state as it is then, and comes into force when the journal has it. Of changes that
//! touch the same job, session or host, one is in a write; the next is decided when that is in force. To decide it on what
//! the state will be would need a second state. What hosts changed is in force already; what follows from it outside waits
//! for its write, and everything later waits behind it.
//!
//! A write that the disk refuses takes nothing: its changes of clients are refused, and what hosts changed goes on while the
//! journal lags behind. Which entries lag is remembered, not what they say; the next write, after a pause, says of them how
//! things are by then, and no more. Only when it is taken are changes of clients decided again, so that a long outage costs
//! no more than a short one; when it is not, they are refused with it.
//!
//! A write that takes long is like one that was refused to all that happened: it goes on, and the journal lags behind until the write
//! ends. To clients it is under way.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    capacity::Holder,
    error::JobError,
    store::{Change, StoreError, Table},
    supervisor::{command::SupervisorCommand, journal::change::Decided, state::SupervisorState},
};

/// Time after a refused write in which none is tried: each opens and verifies the whole file.
const PAUSE: Duration = Duration::from_secs(1);
/// A write that takes longer holds up nothing that happened.
const OVERTAKEN_AFTER: Duration = Duration::from_secs(1);
/// Changes of clients that wait for their write, and bytes of them.
const QUEUED_CHANGES: usize = 1024;
const QUEUED_CHANGE_BYTES: u64 = 64 << 20;

/// Answers that wait for what they rest on, each with all that it says.
const QUEUED_ANSWERS: usize = 512;

/// Decides a change on the state as it is.
pub type Decide = Box<dyn FnOnce(&mut SupervisorState, Duration) -> Result<Decided, JobError> + Send>;
/// Receives how things are.
pub type StateCallback = Box<dyn FnOnce(&SupervisorState, Duration) + Send>;
/// Receives that a change is in force, or why it is not.
pub type ChangeCallback = Box<dyn FnOnce(Result<(&SupervisorState, Duration), JobError>) + Send>;

/// What one write can change once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A job, by its id.
    Job(String),
    /// A session, by its name.
    Session(String),
    /// The room that sessions share.
    Room,
    /// Who takes work.
    Hosts,
}

/// What a change that a client asks for touches.
#[derive(Clone, Debug, Default)]
pub struct ChangeScope {
    /// What it changes.
    pub changes: Vec<Subject>,
    /// What it asks, as others may in the same write.
    pub asks: Option<Subject>,
    /// Bytes that it takes while it waits.
    pub bytes: u64,
    /// Whose it is: the changes of several keys are decided in turn.
    pub key: Holder,
}

impl ChangeScope {
    /// Changes these, and takes next to nothing while it waits.
    pub fn of(changes: Vec<Subject>) -> Self {
        Self { changes, ..Self::default() }
    }
}

/// A change that a client asks for.
pub struct Request {
    /// What it touches.
    pub scope: ChangeScope,
    /// Decides it.
    pub decide: Decide,
    /// Hears what came of it.
    pub answer: ChangeCallback,
}

/// What is to be done outside.
pub enum JournalAction {
    /// A command, other than to keep something.
    Do(Box<SupervisorCommand>),
    /// Somebody is told what was asked.
    Notify(StateCallback),
}

/// The most changes of clients that one write takes: everything that is said to anybody waits for the write under way, and what is
/// large takes a disk long. What happened it takes all, as a part of it may need the rest.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Changes.
    pub entries: usize,
    /// Bytes of them, about.
    pub bytes: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { entries: 256, bytes: 512 << 10 }
    }
}

type ChangeKey = (Table, String);

/// Something that happened: what the journal is to know of it before the rest is done.
struct Happening {
    changes: Vec<Change>,
    acts: Vec<JournalAction>,
}

/// The write under way.
struct WriteBatch {
    begun: Duration,
    /// It has the first so many of what happened.
    happenings: usize,
    keys: BTreeSet<ChangeKey>,
    decided: Vec<(Decided, ChangeCallback)>,
}

/// The queue before the journal.
#[derive(Default)]
pub struct Journal {
    limits: BatchLimits,
    requests: VecDeque<Request>,
    request_bytes: u64,
    happened: VecDeque<Happening>,
    batch: Option<WriteBatch>,
    /// What the journal has not as it is.
    lagging: BTreeSet<ChangeKey>,
    /// Since a write was refused and until one is taken: when the next may be. Something lags then.
    again: Option<Duration>,
}

impl Journal {
    /// Nothing waits. One write takes so much.
    pub fn new(limits: BatchLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// How much of what happened waits for its write.
    pub fn backlog(&self) -> usize {
        self.happened.len()
    }

    /// Whether so many answers wait for a slow disk that no more should.
    pub fn is_crowded(&self) -> bool {
        self.happened.len() >= QUEUED_ANSWERS
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.batch.is_some()
    }

    /// The next write need not wait for the pause after one that was refused.
    pub fn hurry(&mut self) {
        self.again = self.again.map(|_| Duration::ZERO);
    }

    /// Takes in what an event wants done. Returns what can be done now.
    pub fn follow(&mut self, commands: Vec<SupervisorCommand>) -> Vec<JournalAction> {
        let (mut changes, mut acts) = (Vec::new(), Vec::with_capacity(commands.len()));
        let mut noted = Vec::new();
        for command in commands {
            match command {
                SupervisorCommand::Persist(change) => changes.push(change),
                SupervisorCommand::Note(change) => noted.push(change),
                other => acts.push(JournalAction::Do(Box::new(other))),
            }
        }
        let mut acts = self.happen(Happening { changes, acts });
        if !noted.is_empty() {
            acts.extend(self.happen(Happening { changes: noted, acts: Vec::new() }));
        }
        acts
    }

    /// Tells somebody how things are when the journal has all that this rests on.
    pub fn notify(&mut self, callback: impl FnOnce() + Send + 'static) -> Vec<JournalAction> {
        let callback = JournalAction::Notify(Box::new(move |_, _| callback()));
        self.happen(Happening { changes: Vec::new(), acts: vec![callback] })
    }

    fn happen(&mut self, happening: Happening) -> Vec<JournalAction> {
        if self.again.is_some() {
            self.lagging.extend(keys(&happening.changes));
            return happening.acts;
        }
        if self.happened.is_empty() && happening.changes.is_empty() {
            return happening.acts;
        }
        self.happened.push_back(happening);
        Vec::new()
    }

    /// Takes in what a client wants changed.
    pub fn ask(&mut self, request: Request) {
        let bytes = self.request_bytes.saturating_add(request.scope.bytes);
        if self.requests.len() >= QUEUED_CHANGES || (bytes > QUEUED_CHANGE_BYTES && !self.requests.is_empty()) {
            return (request.answer)(Err(JobError::Busy));
        }
        self.request_bytes = bytes;
        self.requests.push_back(request);
    }

    /// What is to be written now, as one transaction, if anything is and nothing else is being written.
    pub fn begin(&mut self, state: &mut SupervisorState, now: Duration) -> Option<Vec<Change>> {
        if self.batch.is_some() || self.again.is_some_and(|again| now < again) {
            return None;
        }
        let lagging = std::mem::take(&mut self.lagging);
        let mut changes: Vec<Change> = lagging.iter().map(|(table, key)| state.as_it_is(*table, key)).collect();
        self.happened.iter_mut().for_each(|happening| changes.append(&mut happening.changes));
        let happenings = self.happened.len();
        let decided = match self.again {
            None => self.decide(state, now),
            Some(_) => Vec::new(),
        };
        changes.extend(decided.iter().flat_map(|(decided, _)| decided.changes.iter().cloned()));
        if changes.is_empty() {
            return None;
        }
        self.batch = Some(WriteBatch { begun: now, happenings, keys: keys(&changes).collect(), decided });
        Some(changes)
    }

    /// Decides what clients wait for, until the write is full.
    fn decide(&mut self, state: &mut SupervisorState, now: Duration) -> Vec<(Decided, ChangeCallback)> {
        let (mut decided, mut later, mut bytes) = (Vec::new(), VecDeque::new(), 0);
        let (mut changed, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for request in in_turn(std::mem::take(&mut self.requests)) {
            let scope = &request.scope;
            let full = decided.len() >= self.limits.entries || bytes >= self.limits.bytes;
            let taken = scope.changes.iter().any(|subject| changed.contains(subject) || asked.contains(subject));
            let waits = full || taken || scope.asks.iter().any(|subject| changed.contains(subject));
            changed.extend(scope.changes.iter().cloned());
            asked.extend(scope.asks.iter().cloned());
            if waits {
                later.push_back(request);
                continue;
            }
            self.request_bytes -= scope.bytes;
            let change = (request.decide)(state, now).and_then(|decided: Decided| {
                let checked = decided.changes.iter().try_for_each(Change::check);
                checked.map(|()| decided).map_err(|error| JobError::Journal(Arc::new(error)))
            });
            match change {
                Err(error) => (request.answer)(Err(error)),
                Ok(change) if change.changes.is_empty() => (request.answer)(Ok((state, now))),
                Ok(change) => {
                    bytes += change.changes.iter().map(Change::bytes).sum::<usize>();
                    state.reserve(&change);
                    decided.push((change, request.answer));
                }
            }
        }
        self.requests = later;
        decided
    }

    /// Does what waits for a write that takes too long. Returns what is to be done now.
    pub fn overtake(&mut self, now: Duration) -> Vec<JournalAction> {
        let Some(batch) = self.batch.as_mut().filter(|batch| now.saturating_sub(batch.begun) > OVERTAKEN_AFTER) else {
            return Vec::new();
        };
        if self.again.is_none() {
            let seconds = now.saturating_sub(batch.begun).as_secs_f32();
            tracing::warn!(
                seconds,
                "the journal is slow; what runs goes on, and what is missing is written when it takes something again"
            );
            self.again = Some(now);
        }
        batch.happenings = 0;
        self.lag()
    }

    /// What happened is done, and the journal has it not.
    fn lag(&mut self) -> Vec<JournalAction> {
        let happened = std::mem::take(&mut self.happened);
        self.lagging.extend(happened.iter().flat_map(|happening| keys(&happening.changes)));
        happened.into_iter().flat_map(|happening| happening.acts).collect()
    }

    /// The write under way ended. Returns what is to be done now.
    pub fn written(
        &mut self,
        state: &mut SupervisorState,
        now: Duration,
        result: Result<(), StoreError>,
    ) -> Vec<JournalAction> {
        let Some(batch) = self.batch.take() else { return Vec::new() };
        batch.decided.iter().for_each(|(decided, _)| state.unreserve(decided));
        match result {
            Ok(()) => self.took(batch, state, now),
            Err(error) => self.refused(batch, now, error),
        }
    }

    fn took(&mut self, batch: WriteBatch, state: &mut SupervisorState, now: Duration) -> Vec<JournalAction> {
        self.again = None;
        let mut acts: Vec<JournalAction> =
            self.happened.drain(..batch.happenings).flat_map(|happening| happening.acts).collect();
        for (mut decided, answer) in batch.decided {
            let kept = std::mem::take(&mut decided.changes);
            let mut commands = state.adopt(now, decided);
            let change_of = |command: &SupervisorCommand| match command {
                SupervisorCommand::Persist(change) | SupervisorCommand::Note(change) => Some(change.clone()),
                _ => None,
            };
            if self.happened.is_empty() && commands.iter().filter_map(change_of).all(|change| kept.contains(&change)) {
                // The journal has it all so, and nothing came since.
                commands.retain(|command| change_of(command).is_none());
            }
            // It follows what happened since it was decided.
            acts.extend(self.follow(commands));
            acts.push(JournalAction::Notify(Box::new(move |state, now| answer(Ok((state, now))))));
        }
        while self.happened.front().is_some_and(|happening| happening.changes.is_empty()) {
            acts.extend(self.happened.pop_front().into_iter().flat_map(|happening| happening.acts));
        }
        acts
    }

    fn refused(&mut self, batch: WriteBatch, now: Duration, error: StoreError) -> Vec<JournalAction> {
        tracing::error!(%error, "the journal lags behind; what is missing is written when it takes something again");
        let lagged = self.again.replace(now + PAUSE).is_some();
        // A disk that failed while it confirmed may have it all the same.
        self.lagging.extend(batch.keys);
        let error = Arc::new(error);
        let refuse = |answer: ChangeCallback| answer(Err(JobError::Journal(error.clone())));
        batch.decided.into_iter().for_each(|(_, answer)| refuse(answer));
        if lagged {
            self.request_bytes = 0;
            std::mem::take(&mut self.requests).into_iter().for_each(|request| refuse(request.answer));
        }
        self.lag()
    }
}

/// The first of each key, then the second of each, and so on; those of one key as they came.
fn in_turn(requests: VecDeque<Request>) -> Vec<Request> {
    let mut turns: BTreeMap<Holder, usize> = BTreeMap::new();
    let turn_of = |request: Request| {
        let turn = turns.entry(request.scope.key.clone()).or_default();
        *turn += 1;
        (*turn, request)
    };
    let mut requests: Vec<(usize, Request)> = requests.into_iter().map(turn_of).collect();
    requests.sort_by_key(|(turn, _)| *turn);
    requests.into_iter().map(|(_, request)| request).collect()
}

fn keys(changes: &[Change]) -> impl Iterator<Item = ChangeKey> + '_ {
    changes.iter().map(|change| (change.table(), change.key().to_string()))
}
