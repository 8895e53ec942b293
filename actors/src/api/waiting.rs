//! What a job or a session waits for, as clients see it: a plain value, and the words for it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HostHealth, Scheduling, SessionState};

/// Hosts that a text names; of more it tells the number.
const NAMED: usize = 3;

/// Why nothing is done for a job or session right now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Waiting {
    /// These hosts have to be there first.
    Hosts {
        /// Which, and how each is.
        hosts: Vec<AwaitedHost>,
    },
    /// Others came first.
    Turn {
        /// Those that wait and begin earlier.
        before: usize,
        /// Those that are worked on.
        running: usize,
    },
    /// Hosts have not enough free memory for its keys and values.
    Memory {
        /// The hosts.
        hosts: Vec<String>,
        /// Bytes that it needs.
        needed_bytes: u64,
        /// Bytes that are free there, in sum.
        free_bytes: u64,
    },
    /// The session that it asks cannot be asked yet.
    Session {
        /// Its name.
        name: String,
        /// How it is.
        state: SessionState,
    },
    /// Another one's context is being encoded that begins as its own, which has nothing to encode for that then.
    SameContext,
    /// It was accepted before a restart of the supervisor, and the cluster has to pass its self-test first.
    SelfTest,
    /// No host that could take it is there.
    Placement {
        /// Why, and what to do.
        cause: String,
    },
}

/// A host that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AwaitedHost {
    /// Its name.
    pub host: String,
    /// How it is.
    pub health: HostHealth,
    /// Whether it would take work.
    pub scheduling: Scheduling,
    /// Why it is so, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl fmt::Display for AwaitedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.health, self.scheduling) {
            (HostHealth::Ready, Scheduling::Open) => "busy".to_string(),
            (HostHealth::Ready, scheduling) => format!("{scheduling:?}").to_lowercase(),
            (health, _) => format!("{health:?}").to_lowercase(),
        };
        match &self.cause {
            Some(cause) => write!(f, "{}: {state} ({cause})", self.host),
            None => write!(f, "{}: {state}", self.host),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts { hosts } => write!(f, "waiting for {}", listed(hosts)),
            Self::Turn { before: 0, running } => {
                write!(f, "next in line, {} before yours at work", jobs(*running))
            }
            Self::Turn { before, running: 0 } => write!(f, "{} before yours", jobs(*before)),
            Self::Turn { before, running } => write!(f, "{} before yours, {running} more at work", jobs(*before)),
            Self::Memory { hosts, needed_bytes, free_bytes } => write!(
                f,
                "waiting for memory on {}: {} needed, {} free",
                listed(hosts),
                mebibytes(*needed_bytes),
                mebibytes(*free_bytes)
            ),
            Self::Session { name, state } => {
                write!(f, "waiting for session {name}: {}", format!("{state:?}").to_lowercase())
            }
            Self::SameContext => {
                f.write_str("waiting for the same context, which is being encoded for another question")
            }
            Self::SelfTest => f.write_str("waiting for the cluster's self-test to pass"),
            Self::Placement { cause } => write!(f, "waiting for a host: {cause}"),
        }
    }
}

fn jobs(count: usize) -> String {
    if count == 1 { "1 job".into() } else { format!("{count} jobs") }
}

fn listed(items: &[impl fmt::Display]) -> String {
    let named: Vec<String> = items.iter().take(NAMED).map(ToString::to_string).collect();
    match items.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(at: usize, health: HostHealth) -> AwaitedHost {
        AwaitedHost { host: format!("c{at}"), health, scheduling: Scheduling::Open, cause: None }
    }

    #[test]
    fn it_is_said_in_words() {
        let starting = |count| (0..count).map(|at| host(at, HostHealth::Starting)).collect();
        let drained = AwaitedHost { scheduling: Scheduling::Draining, ..host(0, HostHealth::Ready) };
        let dead = AwaitedHost { cause: Some("exit 2".into()), ..host(1, HostHealth::Dead) };
        let memory = Waiting::Memory { hosts: vec!["c0".into()], needed_bytes: 3 << 20, free_bytes: 1 << 19 };
        let stated = [
            Waiting::Hosts { hosts: starting(1) },
            Waiting::Hosts { hosts: starting(5) },
            Waiting::Hosts { hosts: vec![drained, dead] },
            Waiting::Turn { before: 0, running: 1 },
            Waiting::Turn { before: 2, running: 4 },
            memory,
            Waiting::Session { name: "moby".into(), state: SessionState::Encoding },
        ];
        let expected = [
            "waiting for c0: starting",
            "waiting for c0: starting, c1: starting, c2: starting and 2 more",
            "waiting for c0: draining, c1: dead (exit 2)",
            "next in line, 1 job before yours at work",
            "2 jobs before yours, 4 more at work",
            "waiting for memory on c0: 3.0 MiB needed, 0.5 MiB free",
            "waiting for session moby: encoding",
        ];
        assert_eq!(stated.map(|waiting| waiting.to_string()), expected);
    }
}
