//! Sessions: contexts that are encoded once, kept, and asked many times. Chooses no host.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    api::{ErrorBody, SessionHost, SessionState, SessionStatus},
    error::JobError,
    supervisor::{
        context::{Context, Owner, PreparedContext},
        prepare::AskedSession,
        record,
        state::{Command, SupervisorState},
    },
};

/// Sessions that ended by themselves and are still known by name.
const EXPIRED_NAMES: usize = 256;
const NAME_LENGTH: usize = 64;

/// One session, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Name.
    pub name: String,
    /// Its context.
    pub context: u64,
    /// How long it lives from its creation, or from when it was extended.
    pub ttl: Duration,
    /// When it ends by itself.
    pub expires: Duration,
    /// Questions asked.
    pub hits: u64,
    /// Why its context could not be encoded.
    pub error: Option<ErrorBody>,
}

/// Every session, and the names of those that expired lately.
#[derive(Debug, Default)]
pub struct Sessions {
    /// By name.
    pub open: BTreeMap<String, Session>,
    expired: Vec<String>,
}

impl Sessions {
    /// A session that can be asked.
    ///
    /// # Errors
    /// When there is none of that name, it expired, or it failed.
    pub fn find(&self, name: &str) -> Result<&Session, JobError> {
        match self.open.get(name) {
            Some(session) => match &session.error {
                Some(error) => Err(JobError::SessionFailed { name: name.to_string(), cause: error.message.clone() }),
                None => Ok(session),
            },
            None if self.expired.iter().any(|expired| expired == name) => {
                Err(JobError::SessionExpired { name: name.to_string() })
            }
            None => Err(JobError::NoSession { name: name.to_string() }),
        }
    }

    fn forget(&mut self, name: &str, expired: bool) -> Option<Session> {
        let session = self.open.remove(name)?;
        if expired {
            self.expired.push(name.to_string());
            let surplus = self.expired.len().saturating_sub(EXPIRED_NAMES);
            self.expired.drain(..surplus);
        }
        Some(session)
    }
}

impl SupervisorState {
    /// Takes a session in; its context waits for its turn. `ttl`: the cluster's default where none is given.
    ///
    /// # Errors
    /// When the name is taken or is none, or its keys and values have no room.
    pub fn create_session(
        &mut self,
        now: Duration,
        name: &str,
        prepared: PreparedContext,
        ttl: Option<Duration>,
    ) -> Result<Vec<Command>, JobError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > NAME_LENGTH || !name.chars().all(fits) {
            let message = format!(
                "a session's name has 1 to {NAME_LENGTH} letters, digits, '-', '_' or '.'; got '{}'",
                name.escape_debug()
            );
            return Err(JobError::Invalid { param: "name", message });
        }
        if self.sessions.open.contains_key(name) {
            return Err(JobError::SessionExists { name: name.to_string() });
        }
        let (pinned, needed): (u64, u64) =
            (self.pinned().map(|context| context.prepared.all_kv_bytes()).sum(), prepared.all_kv_bytes());
        if let Some(most) = self.config.sessions.max_pinned_bytes
            && pinned + needed > most
        {
            return Err(JobError::Capacity {
                needed,
                free: most.saturating_sub(pinned),
                cause: format!("sessions.max_pinned_bytes is {most}, sessions hold {pinned}"),
            });
        }
        self.check_room(&prepared)?;
        let ttl = ttl.unwrap_or(self.config.sessions.default_ttl);
        let mut commands = Vec::new();
        let number = self.take_number(&mut commands);
        let session =
            Session { name: name.to_string(), context: number, ttl, expires: now + ttl, hits: 0, error: None };
        self.sessions.forget(name, false);
        self.sessions.expired.retain(|expired| expired != name);
        commands.push(Command::Persist(record::session(&session)));
        self.sessions.open.insert(name.to_string(), session);
        let context = Context::new(number, Owner::Session(name.to_string()), prepared);
        self.take_context(now, context, &mut commands);
        self.advance(now, &mut commands);
        Ok(commands)
    }

    /// What a question to a session is prepared for.
    pub fn asked_session(&self, name: &str) -> Result<AskedSession, JobError> {
        let prepared = &self.contexts[&self.sessions.find(name)?.context].prepared;
        Ok(AskedSession { context_tokens: prepared.plan.context_tokens, chat_template: prepared.chat_template })
    }

    /// Lets a session live `ttl` from now on.
    pub fn extend_session(&mut self, now: Duration, name: &str, ttl: Duration) -> Result<Vec<Command>, JobError> {
        self.sessions.find(name)?;
        let session = self.sessions.open.get_mut(name).expect("just found");
        (session.ttl, session.expires) = (ttl, now + ttl);
        Ok(vec![Command::Persist(record::session(session))])
    }

    /// Ends a session. Questions under way are answered still.
    pub fn drop_session(&mut self, now: Duration, name: &str) -> Result<Vec<Command>, JobError> {
        if !self.sessions.open.contains_key(name) {
            self.sessions.find(name)?;
        }
        let mut commands = Vec::new();
        self.end_session(name, false, &mut commands);
        self.advance(now, &mut commands);
        Ok(commands)
    }

    /// Every session.
    pub fn session_statuses(&self, now: Duration) -> Vec<SessionStatus> {
        self.sessions.open.values().map(|session| self.describe(now, session)).collect()
    }

    /// One session, also one that failed.
    pub fn session_status(&self, now: Duration, name: &str) -> Result<SessionStatus, JobError> {
        match self.sessions.open.get(name) {
            Some(session) => Ok(self.describe(now, session)),
            None => self.sessions.find(name).map(|session| self.describe(now, session)),
        }
    }

    /// Ends the sessions whose time has passed.
    pub(super) fn expire_sessions(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let over = |session: &&Session| session.expires <= now;
        let expired: Vec<String> = self.sessions.open.values().filter(over).map(|over| over.name.clone()).collect();
        expired.iter().for_each(|name| self.end_session(name, true, commands));
    }

    /// A session's context came to nothing.
    pub(super) fn fail_session(&mut self, name: &str, error: ErrorBody, commands: &mut Vec<Command>) {
        let Some(session) = self.sessions.open.get_mut(name) else { return };
        session.error = Some(error);
        commands.push(Command::Persist(record::session(session)));
    }

    fn end_session(&mut self, name: &str, expired: bool, commands: &mut Vec<Command>) {
        let Some(session) = self.sessions.forget(name, expired) else { return };
        commands.push(Command::Persist(record::no_session(name)));
        self.release_unused(session.context, commands);
    }

    fn describe(&self, now: Duration, session: &Session) -> SessionStatus {
        let context = self.contexts.get(&session.context);
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
            Some(context) if context.is_ready() => SessionState::Ready,
            Some(context) if context.was_ready() => SessionState::Recovering,
            _ => SessionState::Encoding,
        };
        let clock = context.map(|context| context.clock).unwrap_or_default();
        let encode_s = match clock {
            (Some(began), ready) => ready.unwrap_or(now).saturating_sub(began).as_secs_f64(),
            (None, _) => 0.0,
        };
        SessionStatus {
            name: session.name.clone(),
            state,
            method: context.map_or(String::new(), |context| context.plan().method.name.clone()),
            context_tokens: context.map_or(0, |context| context.plan().context_tokens),
            kv_bytes: hosts.iter().map(|host| host.kv_bytes).sum(),
            hosts,
            hits: session.hits,
            encode_s,
            expires_s: session.expires.saturating_sub(now).as_secs_f64(),
            error: session.error.clone(),
        }
    }
}
