//! What clients see of sessions. Changes nothing.

use std::time::Duration;

use super::SupervisorState;
use crate::{
    api::{Appending, SessionHost, SessionState, SessionStatus},
    error::JobError,
    supervisor::tables::{context::Context, sessions::Session},
};

impl SupervisorState {
    /// The names of sessions behind one, in their order.
    pub fn session_names(&self, after: Option<&str>) -> Vec<String> {
        self.sessions.names(after)
    }

    /// Every session.
    #[cfg(test)]
    pub fn session_statuses(&self, now: Duration) -> Vec<SessionStatus> {
        self.sessions.iter().map(|session| self.describe(now, session)).collect()
    }

    /// One session, also one that failed.
    pub fn session_status(&self, now: Duration, name: &str) -> Result<SessionStatus, JobError> {
        match self.sessions.get(name) {
            Some(session) => Ok(self.describe(now, session)),
            None => self.sessions.find(name).map(|session| self.describe(now, session)),
        }
    }

    fn describe(&self, now: Duration, session: &Session) -> SessionStatus {
        let context = self.contexts.get(session.context);
        let name = |host| self.hosts.name(host).to_string();
        let appending = session.append.and_then(|context| self.contexts.get(context)).map(|context| Appending {
            context_tokens: context.plan().context_tokens,
            waiting: self.waits(now).context(context),
            progress: if context.is_placed() { context.progress(&name) } else { Vec::new() },
        });
        let timings = context.map(|context| context.timings(&|host| self.hosts.name(host).to_string()));
        let hosts: Vec<SessionHost> = timings
            .unwrap_or_default()
            .into_iter()
            .map(|timing| SessionHost {
                host: timing.host,
                shards: timing.shards,
                kept_tokens: timing.kept_tokens,
                kv_bytes: timing.kv_bytes,
            })
            .collect();
        let state = match context {
            _ if session.error.is_some() => SessionState::Failed,
            Some(context) => context.stage().of_session(),
            None => SessionState::Encoding,
        };
        let encoded = state == SessionState::Ready || session.error.is_some();
        let unfinished = context.filter(|context| !encoded && context.is_placed());
        let progress = unfinished.map(|context| context.progress(&|host| self.hosts.name(host).to_string()));
        let encode_s = context
            .and_then(Context::placed)
            .map_or(0.0, |placed| placed.first_ready.unwrap_or(now).saturating_sub(placed.began).as_secs_f64());
        SessionStatus {
            name: session.name.clone(),
            state,
            model: context
                .and_then(|context| self.config.model(context.prepared.model()))
                .map_or(String::new(), |model| model.name.clone()),
            method: context.map_or(String::new(), |context| context.plan().method.name.clone()),
            context_tokens: context.map_or(0, |context| context.plan().context_tokens),
            cached_tokens: context.map_or(0, |context| context.cached_tokens()),
            appending,
            append_error: session.append_error.clone(),
            kv_bytes: hosts.iter().map(|host| host.kv_bytes).sum(),
            hosts,
            hits: session.hits,
            encode_s,
            waiting: context.filter(|_| !encoded).and_then(|context| self.waits(now).context(context)),
            progress: progress.unwrap_or_default(),
            expires_s: session.expires.saturating_sub(now).as_secs_f64(),
            error: session.error.clone(),
        }
    }
}
