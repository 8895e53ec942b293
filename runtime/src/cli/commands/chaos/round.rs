//! One round: a job, a fault at its moment, what was seen of the recovery, and the way back to a whole cluster.

use std::{
    path::Path,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use asterism_actors::api::{HostHealth, HostStatus, JobEvent, JobRequest, JobState, JobStatus, Role};
use rustix::process::Signal;
use serde::Serialize;
use uuid::Uuid;

use super::fault::{Fault, Trigger, Victim};
use crate::{
    client::{Client, Following},
    data_dir,
    error::CliError,
    processes::node::signal,
};

const ROUND_POLL: Duration = Duration::from_millis(20);
/// Longest wait for a fault to be noticed.
const DETECTION_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait until every host is ready again.
const HEALING_LIMIT: Duration = Duration::from_secs(90);
/// How long one question about the cluster's state may take while a process hangs.
const GLANCE: Duration = Duration::from_secs(1);

/// What faults are done to.
pub struct Target<'a> {
    /// Its admin API.
    pub client: &'a Client,
    /// The same, asked with little patience.
    pub glance: Client,
    /// Where its supervisor's record lies.
    pub data_dir: &'a Path,
    /// Asked in every round, each time with another salt: what one leaves on the hosts is found by no other, nor by a later run.
    pub request: JobRequest,
    /// What these salts begin with.
    run: Uuid,
}

/// The job without a fault.
#[derive(Clone, Debug, Serialize)]
pub struct Reference {
    /// Its answer.
    pub tokens: Vec<u32>,
    /// Tokens of its context.
    pub context_tokens: usize,
    /// Seconds in all.
    pub total_s: f64,
    /// Seconds of phase 1 a shard, on the slowest host.
    pub shard_s: f64,
}

/// What a round came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundOutcome {
    /// The reference's tokens.
    Same,
    /// Other tokens, from this one on.
    Different {
        /// Index of the first that differs.
        at: usize,
    },
    /// No answer.
    Failed {
        /// Why.
        cause: String,
    },
    /// The reference's tokens, and no fault: the moment was over before it was heard of.
    Missed,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosRound {
    /// From 1.
    pub round: usize,
    /// The fault.
    #[serde(flatten)]
    pub fault: Fault,
    /// Who was struck.
    pub victim: String,
    /// Signal to declaration of death; for the supervisor, to its next answer.
    pub detected_s: Option<f64>,
    /// Declaration to the job going on, says the supervisor.
    pub recovered_s: Option<f64>,
    /// Submission to the end.
    pub total_s: f64,
    /// What became of the answer.
    pub outcome: RoundOutcome,
}

/// A process to strike.
struct Struck {
    name: String,
    pid: u32,
    supervisor: bool,
}

impl<'a> Target<'a> {
    /// A target behind `client`.
    pub fn new(client: &'a Client, data_dir: &'a Path, request: JobRequest) -> Self {
        Self { client, glance: client.with_request_timeout(GLANCE), data_dir, request, run: Uuid::new_v4() }
    }

    /// The job without a fault.
    pub fn reference(&self) -> Result<Reference, CliError> {
        let started = Instant::now();
        let status = self.ask(0, |_| ())?;
        let total_s = started.elapsed().as_secs_f64();
        if let RoundOutcome::Failed { cause } = outcome(&status, &status.tokens) {
            let hint = "`asterism status` shows the hosts; chaos begins with a cluster that works";
            return Err(CliError::unreachable(format!("the job without a fault failed: {cause}")).hint(hint));
        }
        let shard_s =
            status.timings.hosts.iter().map(|host| host.encode_s / host.shards.max(1) as f64).fold(0.0, f64::max);
        Ok(Reference { tokens: status.tokens, context_tokens: status.context_tokens, total_s, shard_s })
    }

    /// Strikes once; returns when the cluster is whole again.
    pub fn round(&self, round: usize, fault: Fault, reference: &Reference) -> Result<ChaosRound, CliError> {
        let struck = self.choose(round, fault.role)?;
        let mut trigger = Trigger::new(fault.phase, reference.tokens.len());
        let mut detection = None;
        let started = Instant::now();
        let asked = self.ask(round, |event| {
            if trigger.pulled_by(event) {
                let sent = Instant::now();
                signal(struck.pid, fault.signal.signal());
                detection = Some(self.detect(&struck, sent));
            }
        });
        let total_s = started.elapsed().as_secs_f64();
        let detected_s = detection.and_then(|thread| thread.join().ok().flatten());
        let outcome = match &asked {
            Ok(status) => match outcome(status, &reference.tokens) {
                RoundOutcome::Same if !trigger.was_pulled() => RoundOutcome::Missed,
                outcome => outcome,
            },
            Err(error) => RoundOutcome::Failed { cause: error.to_string() },
        };
        let recoveries = asked.iter().flat_map(|status| &status.recoveries);
        let recovered_s = recoveries.filter_map(|recovery| recovery.recovered_s).reduce(f64::max);
        self.healed().inspect_err(|_| {
            // Nothing that we stopped is left behind stopped.
            signal(struck.pid, Signal::CONT);
        })?;
        Ok(ChaosRound { round, fault, victim: struck.name, detected_s, recovered_s, total_s, outcome })
    }

    fn ask(&self, round: usize, mut heard: impl FnMut(&JobEvent)) -> Result<JobStatus, CliError> {
        let request = JobRequest { cache_salt: Some(salt(self.run, round)), ..self.request.clone() };
        for event in Following::submit(self.client, request, |_| ())? {
            let event = event?;
            heard(&event);
            if let JobEvent::Finished { status } = event {
                return Ok(*status);
            }
        }
        Err(CliError::unreachable("the job's events ended before it did"))
    }

    fn choose(&self, round: usize, victim: Victim) -> Result<Struck, CliError> {
        let role = match victim {
            Victim::Context => Role::Context,
            Victim::Query => Role::Query,
            Victim::Supervisor => {
                let record = data_dir::running(self.data_dir)
                    .ok_or_else(|| CliError::unreachable("no supervisor serves this cluster file here"))?;
                return Ok(Struck { name: "supervisor".into(), pid: record.pid, supervisor: true });
            }
        };
        let hosts = self.client.topology()?.hosts;
        let serving: Vec<&HostStatus> =
            hosts.iter().filter(|host| host.role == role && host.health == HostHealth::Ready).collect();
        let chosen = serving.get(round % serving.len().max(1)).and_then(|host| Some((host, host.pid?)));
        let Some((host, pid)) = chosen else {
            return Err(
                CliError::unreachable(format!("no {role:?} host is ready")).hint("`asterism host list` shows why")
            );
        };
        Ok(Struck { name: host.name.clone(), pid, supervisor: false })
    }

    /// Watches until the fault was noticed; returns the seconds since it was done.
    fn detect(&self, struck: &Struck, sent: Instant) -> JoinHandle<Option<f64>> {
        let (client, data_dir) = (self.glance.clone(), self.data_dir.to_owned());
        let Struck { name, pid, supervisor } = struck;
        let (name, pid, supervisor) = (name.clone(), *pid, *supervisor);
        thread::spawn(move || {
            while sent.elapsed() < DETECTION_LIMIT {
                let noticed = match supervisor {
                    true => {
                        data_dir::running(&data_dir).is_some_and(|record| record.pid != pid)
                            && client.topology().is_ok()
                    }
                    false => client.topology().is_ok_and(|status| {
                        let same = |host: &&HostStatus| host.name == name;
                        let gone = |host: &HostStatus| host.health == HostHealth::Dead || host.pid != Some(pid);
                        status.hosts.iter().find(same).is_none_or(gone)
                    }),
                };
                if noticed {
                    return Some(sent.elapsed().as_secs_f64());
                }
                thread::sleep(ROUND_POLL);
            }
            None
        })
    }

    /// Waits until every host is ready again.
    fn healed(&self) -> Result<(), CliError> {
        let started = Instant::now();
        loop {
            let seen = self.glance.topology();
            if seen.as_ref().is_ok_and(|status| status.ready) {
                return Ok(());
            }
            if started.elapsed() > HEALING_LIMIT {
                let late = |host: &&HostStatus| host.health != HostHealth::Ready;
                let missing = seen?.hosts.iter().find(late).map(|host| {
                    let cause = host.cause.as_deref().unwrap_or("no cause is known");
                    format!("host '{}' is {:?}: {cause}", host.name, host.health)
                });
                let missing = missing.unwrap_or_default();
                let seconds = HEALING_LIMIT.as_secs();
                return Err(CliError::unreachable(format!(
                    "not every host is ready {seconds} s after a fault; {missing}"
                ))
                .hint("a host that is struck often needs a higher [supervisor] max_restarts"));
            }
            thread::sleep(10 * ROUND_POLL);
        }
    }
}

/// What nobody else encodes the document of a round with.
fn salt(run: Uuid, round: usize) -> String {
    format!("chaos-{}-{round}", run.simple())
}

fn outcome(status: &JobStatus, reference: &[u32]) -> RoundOutcome {
    match (status.state, &status.error) {
        (JobState::Succeeded, _) if status.tokens == reference => RoundOutcome::Same,
        (JobState::Succeeded, _) => {
            let same = status.tokens.iter().zip(reference).take_while(|(got, wanted)| got == wanted).count();
            RoundOutcome::Different { at: same }
        }
        (_, Some(error)) => RoundOutcome::Failed { cause: format!("{}: {}", error.code, error.message) },
        (_, None) => RoundOutcome::Failed { cause: "the job was cancelled".into() },
    }
}
