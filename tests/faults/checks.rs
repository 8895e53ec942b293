//! What must hold at the end of a schedule: the healed cluster works and nothing is left over. Injects nothing.

use std::collections::BTreeSet;

use asterism_actors::{
    api::{HostHealth, JobState, Scheduling, SessionState},
    store::{StateStore, Table},
    supervisor::{JobFilter, Recovery},
};

use crate::{
    client::Client,
    clock::{Happening, Time},
    supervisor::unix,
    world::World,
};

/// From the end of the faults to the end of the last job.
const BOUND: Time = 150_000_000;
/// For hosts to come back, and for what was freed to be freed.
const HEALING: Time = 60_000_000;
/// For fresh jobs: where nobody is left to generate, one fails as long after it is encoded as a job waits for hosts, 60 s.
const ANSWERING: Time = 75_000_000;
const SETTLING: Time = 3_000_000;

/// All of them.
pub fn every_job() -> JobFilter {
    JobFilter { limit: usize::MAX, ..JobFilter::default() }
}

/// How far a schedule is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Course {
    /// Faults happen, jobs go on.
    Faults,
    /// Jobs are done; every host comes back, since then.
    Healing(Time),
    /// A fresh job and a question to every session.
    Fresh(Time),
    /// What only sessions need is held, since then.
    Pinned(Time),
    /// Sessions are dropped; nothing is held, since then.
    Empty(Time),
    /// All is well.
    Over,
}

impl World {
    /// Goes on to the next part when this one is done.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let now = self.core.now;
        if self.supervisor.as_ref().is_some_and(|supervisor| !supervisor.state.indexes_agree()) {
            return Err("an index of the supervisor is not what counting gives".to_string());
        }
        match self.course {
            Course::Faults => {
                let done = self.clients.iter().all(|client| client.done.is_some());
                if done && self.is_calm() && self.sessions_made.len() == self.scenario.sessions.len() {
                    self.course = Course::Healing(now);
                } else if now > self.calm.max(10_000_000) + BOUND {
                    return Err(self.describe_stuck());
                }
            }
            Course::Healing(since) => {
                if self.is_healed()? {
                    self.ask_again();
                    self.course = Course::Fresh(now);
                } else if now > since + HEALING {
                    return Err(format!("the cluster does not heal: {}", self.describe_stuck()));
                }
            }
            Course::Fresh(since) => {
                if self.clients.iter().all(|client| client.done.is_some()) {
                    self.course = Course::Pinned(now);
                } else if now > since + ANSWERING {
                    return Err(format!("on the healed cluster: {}", self.describe_stuck()));
                }
            }
            Course::Pinned(since) if now > since + SETTLING => {
                self.check_leaks()?;
                self.drop_sessions()?;
                self.course = Course::Empty(now);
            }
            Course::Empty(since) if now > since + SETTLING => {
                self.check_leaks()?;
                self.course = Course::Over;
            }
            Course::Pinned(_) | Course::Empty(_) | Course::Over => {}
        }
        Ok(())
    }

    /// Who is not done, and what the supervisor says of it.
    pub(super) fn describe_stuck(&self) -> String {
        let mut lines = vec![format!("not done after {:.1} s", self.core.now as f64 / 1e6)];
        for client in self.clients.iter().filter(|client| client.done.is_none()) {
            lines.push(format!("  {} of session {:?} is not done", client.spec.id, client.spec.session));
        }
        if let Some(supervisor) = &self.supervisor {
            let now = unix(&self.core);
            for host in supervisor.state.cluster_status(now, "").hosts {
                lines.push(format!(
                    "  {} {:?} {:?} shards {} cause {:?}",
                    host.name, host.health, host.scheduling, host.shards, host.cause
                ));
            }
            for job in supervisor.state.job_statuses(now, &every_job()).into_iter().flatten() {
                let tokens = job.tokens.len();
                lines.push(format!("  {} {:?} {:?} {tokens} tokens {:?}", job.id, job.state, job.phase, job.error));
            }
            for session in supervisor.state.session_statuses(now) {
                lines.push(format!("  session {} {:?} {:?}", session.name, session.state, session.error));
            }
        }
        let given_up: Vec<usize> = self.nodes.iter().flat_map(|node| node.given_up.clone()).collect();
        lines.push(format!("  supervisor {}, hosts given up {given_up:?}", self.supervisor.is_some()));
        lines.join("\n")
    }

    fn is_healed(&mut self) -> Result<bool, String> {
        let Some(supervisor) = self.supervisor.as_mut().filter(|s| !s.dead && !self.core.is_hung(s.pid)) else {
            return Ok(false);
        };
        supervisor.dies = None;
        let now = unix(&self.core);
        let status = supervisor.state.cluster_status(now, "");
        for host in status.hosts.iter().filter(|host| host.scheduling != Scheduling::Open) {
            let opened = supervisor.state.schedule_host(now, &host.name, Scheduling::Open, None);
            let decided = opened.map_err(|error| error.to_string())?;
            supervisor.change(&mut self.core, decided);
        }
        let given_up = |name: &str| {
            let host = self.scenario.config.hosts.iter().position(|host| host.name == name);
            self.nodes.iter().any(|node| host.is_some_and(|host| node.given_up.contains(&host)))
        };
        let fail = self.scenario.config.recovery == Recovery::Fail;
        for session in supervisor.state.session_statuses(now) {
            match session.state {
                SessionState::Ready => {}
                SessionState::Failed if fail => {}
                SessionState::Failed => {
                    return Err(format!("session {} was lost: {:?}", session.name, session.error));
                }
                _ => return Ok(false),
            }
        }
        // Shards that were on the move when their host was opened again arrive all the same.
        let still = self.hosts.values().all(|host| host.encoder.is_idle());
        Ok(still && status.hosts.iter().all(|host| host.health == HostHealth::Ready || given_up(&host.name)))
    }

    fn ask_again(&mut self) {
        let mut specs = vec![self.scenario.fresh(self.seed, None)];
        for session in 0..self.scenario.sessions.len() {
            let context = self.scenario.sessions[session].1.clone();
            let mut spec = self.scenario.fresh(self.seed, Some(session));
            spec.context = context;
            specs.push(spec);
        }
        for spec in specs {
            self.core.after(0, Happening::Client(self.clients.len()));
            self.clients.push(Client::new(spec));
        }
    }

    fn drop_sessions(&mut self) -> Result<(), String> {
        let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
        for (name, _) in &self.scenario.sessions {
            let dropped = supervisor.state.drop_session(unix(&self.core), name);
            let decided = dropped.map_err(|error| format!("session {name} was lost: {error}"))?;
            supervisor.change(&mut self.core, decided);
        }
        Ok(())
    }

    /// Hosts hold what the journal has a context for, and nothing runs; the journal has contexts for sessions alone.
    fn check_leaks(&mut self) -> Result<(), String> {
        let entries = self.journal.load().map_err(|error| error.to_string())?;
        let of = |table: Table| entries.iter().filter(move |entry| entry.table == table);
        let number = |key: &str| key.split('/').next().and_then(|number| number.parse::<u64>().ok());
        let contexts: BTreeSet<u64> = of(Table::Contexts).filter_map(|entry| number(&entry.key)).collect();
        let failed = self.supervisor.as_ref().map_or(0, |supervisor| {
            let sessions = supervisor.state.session_statuses(unix(&self.core));
            sessions.iter().filter(|session| session.state == SessionState::Failed).count()
        });
        let sessions = of(Table::Sessions).count() - failed;
        if contexts.len() != sessions {
            return Err(format!("the journal has contexts {contexts:?} for {sessions} sessions"));
        }
        for host in self.hosts.values() {
            let (name, held) = (&host.config.name, host.desk.contexts());
            let leaked: Vec<&u64> = held.iter().filter(|held| !contexts.contains(held)).collect();
            let known: Vec<u64> = host.context.contexts().into_iter().filter(|held| !contexts.contains(held)).collect();
            let generations: Vec<&u64> = host.generations.keys().collect();
            let jobs = host.query.jobs().into_iter().map(|(job, _)| job).collect::<Vec<_>>();
            let idle = leaked.is_empty() && known.is_empty() && generations.is_empty() && jobs.is_empty();
            if !idle || !host.encoder.is_idle() {
                return Err(format!(
                    "host {name} holds shards of {leaked:?}, encodes {known:?}, generates {generations:?}, answers of {jobs:?}"
                ));
            }
        }
        let unended = self
            .clients
            .iter()
            .filter(|client| client.done.is_none_or(|state| matches!(state, JobState::Pending | JobState::Running)));
        match unended.count() {
            0 => Ok(()),
            count => Err(format!("{count} jobs have not ended")),
        }
    }
}
