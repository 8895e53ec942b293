//! What clients change, in one way: decided by looking, kept by the journal, and only then in force. Until it is in force
//! nothing of it is in the state, so that a change that the journal cannot take leaves nothing to undo.
//!
//! Between the two, hosts may go on saying things; another change of the same job, session or hosts waits for its turn.

use std::time::Duration;

use crate::{
    api::Scheduling,
    store::Change,
    supervisor::tables::{context::Context, job::Job, reserved::Reservation, sessions::Session},
};

/// A change that is not in force.
#[derive(Debug)]
pub struct Decided {
    /// What the journal is to take, as one transaction, before anybody is told.
    pub changes: Vec<Change>,
    pub(in crate::supervisor) effect: Effect,
    pub(in crate::supervisor) at: Duration,
}

/// What a change does once it is kept.
#[derive(Debug)]
pub enum Effect {
    /// It was in force already.
    Nothing,
    /// A job is taken in.
    Submit(Box<Submission>),
    /// A job is given up.
    Cancel(u64),
    /// A session is taken in.
    Create(Session, Box<Context>),
    /// A session is to go on with another context, once that is encoded.
    Append(Session, Box<Context>),
    /// A session lives on, as it is here.
    Extend(Session),
    /// A session ends.
    Drop(String),
    /// A host takes new work or none, or gives what it has to others by a deadline.
    Schedule(usize, Scheduling, Option<Duration>),
    /// A host ends by this time and is started again, or is started.
    Restart(usize, Duration),
    /// A host's place goes to a spare.
    Replace(usize, usize),
}

/// A job, and what it is about.
#[derive(Debug)]
pub struct Submission {
    pub job: Job,
    /// A context of its own.
    pub context: Option<Context>,
    /// The session that it asks, as the journal has it then.
    pub session: Option<Session>,
}

impl Decided {
    /// What it takes of the queue until it is in force.
    pub fn share(&self) -> Reservation {
        match &self.effect {
            Effect::Submit(submission) => {
                let context = submission.context.as_ref().map_or(0, |context| context.prepared.bytes());
                let asks = submission.session.as_ref().map(|_| submission.job.context);
                Reservation { jobs: 1, bytes: context + submission.job.bytes(), asks }
            }
            Effect::Create(_, context) | Effect::Append(_, context) => {
                Reservation { bytes: context.prepared.bytes(), ..Reservation::default() }
            }
            _ => Reservation::default(),
        }
    }

    /// A change decided at this time.
    pub fn new(at: Duration, changes: Vec<Change>, effect: Effect) -> Self {
        Self { changes, effect, at }
    }
}
