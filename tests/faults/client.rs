//! A client: submits its job, and again under the same id when the supervisor comes back; checks every token that it is told.

use asterism_actors::{
    api::{JobEvent, JobState, JobStatus},
    supervisor::{PreparedJob, Recovery, Source},
};

use crate::{
    clock::{Happening, Pid, Time},
    scenario::JobSpec,
    supervisor::unix,
    toy::{self, Answer},
    world::World,
};

const AGAIN: Time = 200_000;

/// A client with one job.
pub struct Client {
    pub spec: JobSpec,
    /// How the job ended.
    pub done: Option<JobState>,
    expected: Answer,
    /// The supervisor that it watches the job of.
    watches: Option<Pid>,
    /// Tokens of the watch under way.
    seen: Vec<u32>,
    cancelled: bool,
}

impl Client {
    /// Before it submits.
    pub fn new(spec: JobSpec) -> Self {
        let expected = toy::answer(&spec.context, &spec.question);
        Self { spec, done: None, expected, watches: None, seen: Vec::new(), cancelled: false }
    }

    /// What its watch says; an error is a violation.
    pub fn hear(&mut self, event: JobEvent, recovery: Recovery) -> Result<(), String> {
        let id = &self.spec.id;
        match event {
            JobEvent::Token { id: token, text } => {
                let index = self.seen.len();
                let expected = self.expected.tokens.get(index);
                if expected != Some(&token) || text != toy::text(token) {
                    return Err(format!("{id}: token {index} is {token} '{text}', not {expected:?}"));
                }
                self.seen.push(token);
            }
            JobEvent::Finished { status } => {
                self.done = Some(status.state);
                return self.check_end(&status, recovery);
            }
            _ => {}
        }
        Ok(())
    }

    fn check_end(&self, status: &JobStatus, recovery: Recovery) -> Result<(), String> {
        let id = &self.spec.id;
        match status.state {
            JobState::Succeeded => {
                let got = Answer { tokens: status.tokens.clone(), text: status.text.clone() };
                if got != self.expected {
                    return Err(format!("{id} answered {got:?}, not {:?}", self.expected));
                }
                if !self.seen.is_empty() && self.seen != got.tokens {
                    return Err(format!("{id}: its client saw {:?} of {:?}", self.seen, got.tokens));
                }
                Ok(())
            }
            JobState::Cancelled if self.cancelled => Ok(()),
            JobState::Failed
                if recovery == Recovery::Fail
                    && status.error.as_ref().is_some_and(|error| error.code == "host_lost") =>
            {
                Ok(())
            }
            state => Err(format!("{id} ended {state:?}: {:?}", status.error)),
        }
    }
}

impl World {
    /// A client does what is next.
    pub(super) fn client_acts(&mut self, number: usize) -> Result<(), String> {
        if self.clients[number].done.is_some() {
            return Ok(());
        }
        self.core.after(AGAIN, Happening::Client(number));
        let Some(supervisor) = self.supervisor.as_mut().filter(|supervisor| !self.core.is_hung(supervisor.pid)) else {
            return Ok(());
        };
        let (pid, now) = (supervisor.pid, unix(&self.core));
        if self.clients[number].watches == Some(pid) {
            return self.cancel(number);
        }
        let spec = self.clients[number].spec.clone();
        if spec.session.is_some_and(|session| !self.sessions_made.contains(&session)) {
            return Ok(());
        }
        let source = match spec.session {
            Some(session) => Source::Session(self.scenario.sessions[session].0.clone()),
            None => Source::Context(spec.context),
        };
        let job =
            PreparedJob { id: spec.id, fingerprint: None, source, question: spec.question, labels: Default::default() };
        let fresh = supervisor.state.number();
        match supervisor.state.submit(now, fresh, job) {
            Ok((job, decided)) => {
                if supervisor.change(&mut self.core, decided) {
                    let client = &mut self.clients[number];
                    (client.watches, client.seen) = (Some(pid), Vec::new());
                    supervisor.watch(&mut self.core, number, job);
                }
                Ok(())
            }
            Err(error) if error.code() == "overloaded" => Ok(()),
            Err(error) if self.scenario.config.recovery == Recovery::Fail && error.code() == "session_failed" => {
                self.clients[number].done = Some(JobState::Failed);
                Ok(())
            }
            Err(error) => Err(format!("{} was refused: {error}", self.clients[number].spec.id)),
        }
    }

    fn cancel(&mut self, number: usize) -> Result<(), String> {
        let client = &mut self.clients[number];
        let due = client.spec.cancel.is_some_and(|at| at <= self.core.now);
        let Some(supervisor) = self.supervisor.as_mut().filter(|_| due && !client.cancelled) else { return Ok(()) };
        if supervisor.state.job_number(&client.spec.id).is_none() {
            return Ok(());
        }
        client.cancelled = true;
        if let Ok(decided) = supervisor.state.cancel(unix(&self.core), &client.spec.id) {
            supervisor.change(&mut self.core, decided);
        }
        Ok(())
    }

    /// Creates sessions that are not there yet.
    pub(super) fn create_sessions(&mut self) -> Result<(), String> {
        for number in 0..self.scenario.sessions.len() {
            let Some(supervisor) = self.supervisor.as_mut().filter(|s| !s.dead && !self.core.is_hung(s.pid)) else {
                return Ok(());
            };
            if self.sessions_made.contains(&number) {
                continue;
            }
            let (name, context) = self.scenario.sessions[number].clone();
            let fresh = supervisor.state.number();
            let made = match supervisor.state.create_session((unix(&self.core), fresh), &name, context, None) {
                Ok(decided) => supervisor.change(&mut self.core, decided),
                Err(error) if error.code() == "session_exists" => true,
                Err(error) => return Err(format!("session {name} was refused: {error}")),
            };
            if made {
                self.sessions_made.insert(number);
            }
        }
        Ok(())
    }
}
