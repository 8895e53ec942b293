//! Sessions: contexts that are encoded once, kept, and asked many times. Chooses no host.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    api::{Appending, ErrorBody, SessionHost, SessionState, SessionStatus, bounds},
    error::JobError,
    news::News,
    supervisor::{
        codes::MODEL_CHANGED,
        journal::{
            change::{Decided, Effect},
            record,
        },
        state::{Command, SupervisorState},
        tables::{
            asked_session::AskedSession,
            context::{Context, Owner},
            prepared::PreparedContext,
        },
    },
};

/// Sessions that ended by themselves and are still known by name.
const EXPIRED_NAMES: usize = 256;

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
    /// The context that it goes on with once that is encoded: its own, and what is appended.
    #[serde(default)]
    pub append: Option<u64>,
    /// Why the last append came to nothing, if it did.
    #[serde(default)]
    pub append_error: Option<ErrorBody>,
}

impl Session {
    /// The session with one question more.
    pub fn asked(&self) -> Self {
        Self { hits: self.hits + 1, ..self.clone() }
    }
}

/// Every session, and the names of those that expired lately.
#[derive(Debug, Default)]
pub struct Sessions {
    open: BTreeMap<String, Session>,
    /// By when they end.
    ends: BTreeSet<(Duration, String)>,
    failed: usize,
    expired: Vec<String>,
}

impl Sessions {
    /// Takes one in, in place of what it was.
    pub fn insert(&mut self, session: Session) {
        self.forget(&session.name, false);
        self.ends.insert((session.expires, session.name.clone()));
        self.failed += usize::from(session.error.is_some());
        self.open.insert(session.name.clone(), session);
    }

    /// One that has not ended.
    pub fn get(&self, name: &str) -> Option<&Session> {
        self.open.get(name)
    }

    /// How many have not ended.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// How many of them failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Notes why one came to nothing. Returns it, and the context that it was to go on with.
    fn fail(&mut self, name: &str, error: ErrorBody) -> Option<(&Session, Option<u64>)> {
        let session = self.open.get_mut(name)?;
        self.failed += usize::from(session.error.is_none());
        session.error = Some(error);
        let append = session.append.take();
        Some((session, append))
    }

    fn first_expired(&self, now: Duration) -> Option<String> {
        self.ends.first().filter(|(ends, _)| *ends <= now).map(|(_, name)| name.clone())
    }

    /// A session that can be asked.
    ///
    /// # Errors
    /// When there is none of that name, it expired, or it failed.
    pub fn find(&self, name: &str) -> Result<&Session, JobError> {
        match self.open.get(name) {
            Some(session) => match &session.error {
                Some(error) if error.code == MODEL_CHANGED => Err(JobError::ModelChanged { name: name.to_string() }),
                Some(error) => Err(JobError::SessionFailed { name: name.to_string(), cause: error.message.clone() }),
                None => Ok(session),
            },
            None if self.expired.iter().any(|expired| expired == name) => {
                Err(JobError::SessionExpired { name: name.to_string() })
            }
            None => Err(JobError::NoSession { name: name.to_string() }),
        }
    }

    /// Takes one in, in place of an expired one of its name.
    pub fn take(&mut self, session: Session) {
        self.expired.retain(|expired| *expired != session.name);
        self.insert(session);
    }

    fn forget(&mut self, name: &str, expired: bool) -> Option<Session> {
        let session = self.open.remove(name)?;
        self.ends.remove(&(session.expires, session.name.clone()));
        self.failed -= usize::from(session.error.is_some());
        if expired {
            self.expired.push(name.to_string());
            let surplus = self.expired.len().saturating_sub(EXPIRED_NAMES);
            self.expired.drain(..surplus);
        }
        Some(session)
    }
}

impl SupervisorState {
    /// What taking a session in under `number` changes; its context then waits for its turn. `ttl`: the cluster's default
    /// where none is given.
    ///
    /// # Errors
    /// When the name is taken or is none, or its keys and values have no room.
    pub fn create_session(
        &self,
        (now, number): (Duration, u64),
        name: &str,
        prepared: PreparedContext,
        ttl: Option<Duration>,
    ) -> Result<Decided, JobError> {
        bounds::name("name", name)?;
        if self.sessions.open.contains_key(name) {
            return Err(JobError::SessionExists { name: name.to_string() });
        }
        if self.sessions.count() >= self.config.max_queue {
            return Err(JobError::Overloaded { waiting: self.sessions.count() });
        }
        self.check_bytes(prepared.bytes())?;
        self.check_pinned(prepared.weight().kv_bytes)?;
        self.check_room(&prepared, &BTreeSet::new())?;
        let ttl = ttl.unwrap_or(self.config.sessions.default_ttl);
        let (hits, error, append, append_error) = Default::default();
        let (name, expires) = (name.to_string(), now + ttl);
        let session = Session { name, context: number, ttl, expires, hits, error, append, append_error };
        let context = Context::new((number, now), Owner::Session(session.name.clone()), prepared);
        let number = self.last_number.max(number);
        let mut changes = vec![record::cluster(&self.origin, number, &self.model.mark()), record::session(&session)];
        changes.extend(record::context(&context));
        Ok(Decided::new(now, changes, Effect::Create(session, Box::new(context))))
    }

    /// Refuses more bytes than sessions may hold.
    pub(in crate::supervisor) fn check_pinned(&self, needed: u64) -> Result<(), JobError> {
        let pinned = self.contexts.pinned_bytes();
        match self.config.sessions.max_pinned_bytes {
            Some(most) if pinned.saturating_add(needed) > most => Err(JobError::Capacity {
                needed,
                free: most.saturating_sub(pinned),
                cause: format!("sessions.max_pinned_bytes is {most}, sessions hold {pinned}"),
            }),
            _ => Ok(()),
        }
    }

    /// What a question to a session is prepared for.
    pub fn asked_session(&self, name: &str) -> Result<AskedSession, JobError> {
        let context = self.sessions.find(name)?.context;
        Ok(AskedSession::of(context, &self.contexts[context].prepared))
    }

    /// What changes when a session lives `ttl` from now on.
    ///
    /// # Errors
    /// When there is none of that name, it expired, or it failed.
    pub fn extend_session(&self, now: Duration, name: &str, ttl: Duration) -> Result<Decided, JobError> {
        let session = Session { ttl, expires: now + ttl, ..self.sessions.find(name)?.clone() };
        Ok(Decided::new(now, vec![record::session(&session)], Effect::Extend(session)))
    }

    /// What ending a session changes. Questions under way are answered still.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn drop_session(&self, now: Duration, name: &str) -> Result<Decided, JobError> {
        let session = match self.sessions.open.get(name) {
            Some(session) => session,
            None => self.sessions.find(name)?,
        };
        let mut changes = vec![record::no_session(name)];
        let unasked = |context: &u64| !self.is_asked_beside(*context, None);
        changes
            .extend([session.context].into_iter().chain(session.append).filter(unasked).flat_map(record::no_context));
        Ok(Decided::new(now, changes, Effect::Drop(name.to_string())))
    }

    /// The names of sessions behind one, in their order.
    pub fn session_names(&self, after: Option<&str>) -> Vec<String> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions.open.range::<str, _>((behind, Bound::Unbounded)).map(|(name, _)| name.clone()).collect()
    }

    /// Every session.
    #[cfg(test)]
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
    pub(in crate::supervisor) fn expire_sessions(&mut self, now: Duration, commands: &mut Vec<Command>) {
        while let Some(name) = self.sessions.first_expired(now) {
            self.end_session(&name, true, commands);
        }
    }

    /// A session's context came to nothing.
    pub(in crate::supervisor) fn fail_session(
        &mut self,
        (name, context): (&str, u64),
        error: ErrorBody,
        commands: &mut Vec<Command>,
    ) {
        match self.sessions.get(name) {
            Some(session) if session.append == Some(context) => return self.fail_append(name, error, commands),
            Some(session) if session.context == context => {}
            _ => return,
        }
        let code = error.code.clone();
        let Some((session, append)) = self.sessions.fail(name, error) else { return };
        commands.push(Command::Tell(News::SessionFailed { session: name.to_string(), code }));
        commands.push(Command::Persist(record::session(session)));
        append.into_iter().for_each(|context| self.release_unused(context, commands));
    }

    /// A session's new end comes into force, unless it is over.
    pub(in crate::supervisor) fn renew_session(&mut self, kept: Session, commands: &mut Vec<Command>) {
        if let Some(open) = self.sessions.open.get(&kept.name) {
            let renewed = Session { ttl: kept.ttl, expires: kept.expires, ..open.clone() };
            self.put_session(renewed, &kept, commands);
        }
    }

    /// Puts a session in place of what it was; the journal has it as `kept`.
    pub(in crate::supervisor) fn put_session(&mut self, session: Session, kept: &Session, commands: &mut Vec<Command>) {
        if session != *kept {
            commands.push(Command::Persist(record::session(&session)));
        }
        self.sessions.insert(session);
    }

    pub(in crate::supervisor) fn end_session(&mut self, name: &str, expired: bool, commands: &mut Vec<Command>) {
        let Some(session) = self.sessions.forget(name, expired) else { return };
        let (context, hits) = (session.context, session.hits);
        commands.push(Command::Tell(News::SessionEnded { session: name.to_string(), context, expired, hits }));
        commands.push(Command::Persist(record::no_session(name)));
        self.release_unused(session.context, commands);
        session.append.into_iter().for_each(|context| self.release_unused(context, commands));
    }

    fn describe(&self, now: Duration, session: &Session) -> SessionStatus {
        let context = self.contexts.get(session.context);
        let name = |host| self.hosts.name(host).to_string();
        let appending = session.append.and_then(|context| self.contexts.get(context)).map(|context| Appending {
            context_tokens: context.plan().context_tokens,
            waiting: self.context_waits_for(now, context),
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
            Some(context) if context.is_ready() => SessionState::Ready,
            Some(context) if context.was_ready() => SessionState::Recovering,
            _ => SessionState::Encoding,
        };
        let clock = context.map(|context| context.clock).unwrap_or_default();
        let encoded = state == SessionState::Ready || session.error.is_some();
        let unfinished = context.filter(|context| !encoded && context.is_placed());
        let progress = unfinished.map(|context| context.progress(&|host| self.hosts.name(host).to_string()));
        let encode_s = match clock {
            (Some(began), ready) => ready.unwrap_or(now).saturating_sub(began).as_secs_f64(),
            (None, _) => 0.0,
        };
        SessionStatus {
            name: session.name.clone(),
            state,
            method: context.map_or(String::new(), |context| context.plan().method.name.clone()),
            context_tokens: context.map_or(0, |context| context.plan().context_tokens),
            cached_tokens: context.map_or(0, |context| context.cached_tokens()),
            appending,
            append_error: session.append_error.clone(),
            kv_bytes: hosts.iter().map(|host| host.kv_bytes).sum(),
            hosts,
            hits: session.hits,
            encode_s,
            waiting: context.filter(|_| !encoded).and_then(|context| self.context_waits_for(now, context)),
            progress: progress.unwrap_or_default(),
            expires_s: session.expires.saturating_sub(now).as_secs_f64(),
            error: session.error.clone(),
        }
    }
}
