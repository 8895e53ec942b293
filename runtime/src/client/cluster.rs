//! Hosts and sessions of a running cluster, as the admin API serves them.

use std::time::Duration;

use asterism_actors::api::{
    AppendRequest, HostStatus, LinksReport, Scheduling, SelfTestReport, SessionRequest, SessionStatus,
};

use super::Client;
use crate::{
    api::admin::{Applied, ApplyConfig, Copied, Drain, Extension, Joining, Replacement, Restart, Token},
    client::path::segment,
    error::CliError,
};

impl Client {
    /// A token with which a node can join within `ttl`.
    pub fn create_join_token(&self, node: &str, ttl: Duration) -> Result<Token, CliError> {
        self.post("/api/v1/join-tokens", &Joining { node: node.to_owned(), ttl_s: ttl.as_secs_f64() })
    }

    /// Has the cluster be as a cluster file of this text says, without some nodes of those that joined.
    pub fn apply_config(&self, request: &ApplyConfig) -> Result<Applied, CliError> {
        self.post("/api/v1/config", request)
    }

    /// Begins a self-test, unless one runs.
    pub fn start_self_test(&self) -> Result<SelfTestReport, CliError> {
        self.post("/api/v1/self-test", &())
    }

    /// Has hosts measure their links, unless they do.
    pub fn measure_links(&self) -> Result<LinksReport, CliError> {
        self.post("/api/v1/links", &())
    }

    /// What links were measured to take.
    pub fn links(&self) -> Result<LinksReport, CliError> {
        self.get("/api/v1/links")
    }

    /// How the latest self-test stands.
    pub fn self_test(&self) -> Result<SelfTestReport, CliError> {
        self.get("/api/v1/self-test")
    }

    /// Every host, in the order of the cluster file.
    pub fn hosts(&self) -> Result<Vec<HostStatus>, CliError> {
        self.get("/api/v1/hosts")
    }

    /// One host.
    pub fn host(&self, name: &str) -> Result<HostStatus, CliError> {
        self.get(&format!("/api/v1/hosts/{}", segment(name)?))
    }

    /// Sets whether a host takes work; `deadline` bounds a drain.
    pub fn schedule_host(
        &self,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<HostStatus, CliError> {
        let verb = match scheduling {
            Scheduling::Open => "uncordon",
            Scheduling::Cordoned => "cordon",
            Scheduling::Draining => "drain",
            Scheduling::Removed => "remove",
        };
        let path = format!("/api/v1/hosts/{}/{verb}", segment(name)?);
        self.post(&path, &Drain { deadline_s: deadline.map(|deadline| deadline.as_secs_f64()) })
    }

    /// Has a host give away what it has within `deadline`, end, and be started again.
    pub fn restart_host(&self, name: &str, deadline: Duration) -> Result<HostStatus, CliError> {
        let path = format!("/api/v1/hosts/{}/restart", segment(name)?);
        self.post(&path, &Restart { deadline_s: Some(deadline.as_secs_f64()) })
    }

    /// Has the supervisor write a copy of its journal.
    pub fn backup(&self) -> Result<Copied, CliError> {
        self.post("/api/v1/backup", &serde_json::json!({}))
    }

    /// Lets a spare take a dead host's place.
    pub fn replace_host(&self, dead: &str, spare: &str) -> Result<HostStatus, CliError> {
        let path = format!("/api/v1/hosts/{}/replace", segment(dead)?);
        self.post(&path, &Replacement { spare: spare.to_owned() })
    }

    /// Begins to encode a context that stays.
    pub fn create_session(&self, request: &SessionRequest) -> Result<SessionStatus, CliError> {
        self.post("/api/v1/sessions", request)
    }

    /// Begins to encode what a session goes on with.
    pub fn append_session(&self, name: &str, request: &AppendRequest) -> Result<SessionStatus, CliError> {
        self.post(&format!("/api/v1/sessions/{}/append", segment(name)?), request)
    }

    /// Every session.
    pub fn sessions(&self) -> Result<Vec<SessionStatus>, CliError> {
        self.get("/api/v1/sessions")
    }

    /// One session.
    pub fn session(&self, name: &str) -> Result<SessionStatus, CliError> {
        self.get(&format!("/api/v1/sessions/{}", segment(name)?))
    }

    /// Lets a session live so long from now on.
    pub fn extend_session(&self, name: &str, ttl: Duration) -> Result<SessionStatus, CliError> {
        let path = format!("/api/v1/sessions/{}/extend", segment(name)?);
        self.post(&path, &Extension { ttl_s: ttl.as_secs_f64() })
    }

    /// Ends a session; its keys and values are freed.
    pub fn drop_session(&self, name: &str) -> Result<(), CliError> {
        self.delete(&format!("/api/v1/sessions/{}", segment(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_of_a_path() {
        assert_eq!(segment("moby-dick_1.2").unwrap(), "moby-dick_1.2");
        assert_eq!(segment("a/b ?ü").unwrap(), "a%2Fb%20%3F%C3%BC");
        for path in ["", ".", ".."] {
            assert_eq!(segment(path).unwrap_err().exit as u8, 2);
        }
    }
}
