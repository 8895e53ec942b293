//! Every session by name, and when each ends. Knows no context but by its number; chooses no host.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::error::{ErrorBody, JobError, codes::MODEL_CHANGED};

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
    /// Contexts that sessions have grown out of and that somebody may still ask.
    pub outgrown: BTreeSet<u64>,
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

    /// Those that have not ended, by name.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.open.values()
    }

    /// The names of those behind one, in their order.
    pub fn names(&self, after: Option<&str>) -> Vec<String> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.open.range::<str, _>((behind, Bound::Unbounded)).map(|(name, _)| name.clone()).collect()
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
    pub fn fail(&mut self, name: &str, error: ErrorBody) -> Option<(&Session, Option<u64>)> {
        let session = self.open.get_mut(name)?;
        self.failed += usize::from(session.error.is_none());
        session.error = Some(error);
        let append = session.append.take();
        Some((session, append))
    }

    /// One whose time has passed.
    pub fn first_expired(&self, now: Duration) -> Option<String> {
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

    /// Takes one out, which ended by itself or not.
    pub fn forget(&mut self, name: &str, expired: bool) -> Option<Session> {
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
