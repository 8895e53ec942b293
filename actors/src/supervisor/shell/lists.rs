//! Lists of jobs and sessions, a few at a time, so that whatever else the supervisor has to do comes between. Keeps none.

use std::collections::VecDeque;

use crate::{
    api::{JobStatus, SessionStatus},
    error::JobError,
    supervisor::{Supervisor, shell::event_loop::SupervisorShell, state::view::JobFilter},
};

/// Entries that are told at once.
const ENTRIES_PER_STEP: usize = 16;

/// Jobs of a list that are not told yet.
pub struct JobPages {
    supervisor: Supervisor,
    left: VecDeque<u64>,
}

impl JobPages {
    /// The next few; none at the end. Jobs that were forgotten meanwhile are left out.
    ///
    /// # Errors
    /// When the supervisor ends, or many others wait for it.
    pub async fn next(&mut self) -> Result<Option<Vec<JobStatus>>, JobError> {
        let some: Vec<u64> = self.left.drain(..self.left.len().min(ENTRIES_PER_STEP)).collect();
        if some.is_empty() {
            return Ok(None);
        }
        let status = move |shell: &mut SupervisorShell| {
            let now = shell.now();
            some.into_iter().filter_map(|number| shell.state().job_status(now, number)).collect()
        };
        self.supervisor.ask(status).await.map(Some)
    }
}

/// Sessions of a list that are not told yet.
pub struct SessionPages {
    supervisor: Supervisor,
    left: VecDeque<String>,
}

impl SessionPages {
    /// The next few; none at the end. Sessions that ended meanwhile are left out.
    ///
    /// # Errors
    /// When the supervisor ends, or many others wait for it.
    pub async fn next(&mut self) -> Result<Option<Vec<SessionStatus>>, JobError> {
        let some: Vec<String> = self.left.drain(..self.left.len().min(ENTRIES_PER_STEP)).collect();
        if some.is_empty() {
            return Ok(None);
        }
        let status = move |shell: &mut SupervisorShell| {
            let now = shell.now();
            some.iter().filter_map(|name| shell.state().session_status(now, name).ok()).collect()
        };
        self.supervisor.ask(status).await.map(Some)
    }
}

impl Supervisor {
    /// Jobs, newest first unless the filter says otherwise, a few at a time.
    ///
    /// # Errors
    /// When the one that they come after is not known.
    pub async fn job_pages(&self, filter: JobFilter) -> Result<JobPages, JobError> {
        let left = self.ask(move |shell| shell.state().listed_jobs(&filter)).await??.into();
        Ok(JobPages { supervisor: self.clone(), left })
    }

    /// Jobs, newest first unless the filter says otherwise.
    ///
    /// # Errors
    /// When the one that they come after is not known.
    pub async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobStatus>, JobError> {
        let (mut pages, mut jobs) = (self.job_pages(filter).await?, Vec::new());
        while let Some(page) = pages.next().await? {
            jobs.extend(page);
        }
        Ok(jobs)
    }

    /// Sessions by name, those behind one, a few at a time.
    ///
    /// # Errors
    /// When the supervisor ends, or many others wait for it.
    pub async fn session_pages(&self, after: Option<String>) -> Result<SessionPages, JobError> {
        let left = self.ask(move |shell| shell.state().session_names(after.as_deref())).await?.into();
        Ok(SessionPages { supervisor: self.clone(), left })
    }

    /// Every session, by name.
    ///
    /// # Errors
    /// As for [`session_pages`](Self::session_pages).
    pub async fn sessions(&self) -> Result<Vec<SessionStatus>, JobError> {
        let (mut pages, mut sessions) = (self.session_pages(None).await?, Vec::new());
        while let Some(page) = pages.next().await? {
            sessions.extend(page);
        }
        Ok(sessions)
    }
}
