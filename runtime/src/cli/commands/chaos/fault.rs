//! Which fault comes in which round: every phase with every role and both signals, in turn. Sends nothing.

use asterism_actors::api::{JobEvent, JobPhase};
use clap::ValueEnum;
use rustix::process::Signal;
use serde::Serialize;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The first progress of phase 1
    Encoding,
    /// The query step of phase 2
    Querying,
    /// The first token
    FirstToken,
    /// Half of the tokens
    MiddleToken,
    /// The last token but one
    LastToken,
}

/// What is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Victim {
    /// A context host; each round another
    Context,
    /// The query host
    Query,
    /// The supervisor
    Supervisor,
}

/// What it is struck with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
#[value(rename_all = "UPPER")]
pub enum Blow {
    /// SIGKILL: the process is gone
    Kill,
    /// SIGSTOP: the process hangs
    Stop,
}

impl Blow {
    /// The signal to send.
    pub fn signal(self) -> Signal {
        match self {
            Self::Kill => Signal::KILL,
            Self::Stop => Signal::STOP,
        }
    }
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// When.
    pub phase: Moment,
    /// Whom.
    pub role: Victim,
    /// With what.
    pub signal: Blow,
}

/// Every combination of what is left open.
pub fn matrix(phase: Option<Moment>, role: Option<Victim>, signal: Option<Blow>) -> Vec<Fault> {
    let phases = phase.map_or(Moment::value_variants().to_vec(), |one| vec![one]);
    let roles = role.map_or(Victim::value_variants().to_vec(), |one| vec![one]);
    let signals = signal.map_or(Blow::value_variants().to_vec(), |one| vec![one]);
    let mut faults = Vec::new();
    for &phase in &phases {
        for &role in &roles {
            faults.extend(signals.iter().map(|&signal| Fault { phase, role, signal }));
        }
    }
    faults
}

/// Tells when the moment has come, once.
pub struct Trigger {
    moment: Moment,
    /// Tokens that the answer will have.
    tokens: usize,
    heard: usize,
    pulled: bool,
}

impl Trigger {
    /// For an answer of so many tokens.
    pub fn new(moment: Moment, tokens: usize) -> Self {
        Self { moment, tokens, heard: 0, pulled: false }
    }

    /// Whether the moment is this event.
    pub fn pulled_by(&mut self, event: &JobEvent) -> bool {
        self.heard += usize::from(matches!(event, JobEvent::Token { .. }));
        let token = |wanted: usize| matches!(event, JobEvent::Token { .. }) && self.heard == wanted.max(1);
        let now = match self.moment {
            Moment::Encoding => matches!(event, JobEvent::Progress { .. }),
            Moment::Querying => matches!(event, JobEvent::Phase { phase: JobPhase::Querying }),
            Moment::FirstToken => token(1),
            Moment::MiddleToken => token(self.tokens / 2),
            Moment::LastToken => token(self.tokens.saturating_sub(1)),
        };
        let first = now && !self.pulled;
        self.pulled |= now;
        first
    }

    /// Whether the moment came.
    pub fn was_pulled(&self) -> bool {
        self.pulled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_combination_once() {
        let all = matrix(None, None, None);
        assert_eq!(all.len(), 30);
        assert!((0..30).all(|at| !all[..at].contains(&all[at])));
        let some = matrix(Some(Moment::Querying), None, Some(Blow::Stop));
        assert_eq!(some.len(), 3);
        assert!(some.iter().all(|fault| fault.phase == Moment::Querying && fault.signal == Blow::Stop));
    }

    #[test]
    fn a_moment_comes_once() {
        let token = || JobEvent::Token { id: 1, text: String::new(), logprobs: None };
        let at = |moment| {
            let mut trigger = Trigger::new(moment, 64);
            (1..=64).filter(|_| trigger.pulled_by(&token())).collect::<Vec<usize>>()
        };
        assert_eq!([Moment::FirstToken, Moment::MiddleToken, Moment::LastToken].map(at), [[1], [32], [63]]);
        let mut trigger = Trigger::new(Moment::Encoding, 64);
        let progress = JobEvent::Progress { hosts: Vec::new() };
        assert_eq!([trigger.pulled_by(&progress), trigger.pulled_by(&progress)], [true, false]);
        let mut trigger = Trigger::new(Moment::Querying, 64);
        assert!(!trigger.pulled_by(&JobEvent::Phase { phase: JobPhase::Encoding }));
        assert!(trigger.pulled_by(&JobEvent::Phase { phase: JobPhase::Querying }) && trigger.was_pulled());
    }
}
