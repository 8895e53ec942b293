//! A job that somebody waits for on a connection: cancelled when nobody does any more.

use std::time::Duration;

use actix_web::http::StatusCode;
use asterism_actors::{
    JobError,
    api::{JobEvent, JobRequest, JobState, JobStatus, bounds},
    supervisor::{JobFilter, Listener, Supervisor},
};
use tokio::{runtime::Handle, time::sleep};

use crate::api::{
    http::{error::Refusal, pace::ResponseGuard, span::RequestSpan},
    openai::{refusal, requests::ask::ParsedRequest},
};

/// Jobs that are looked at together.
const LOOKED_AT: usize = 1000;
/// When a job that many listen to is listened to again.
const LATER: Duration = Duration::from_secs(1);

/// A job, cancelled when this is dropped before its end.
pub struct RunningJob {
    supervisor: Supervisor,
    /// Its id.
    pub id: String,
    is_free: bool,
    /// The request that waits for it.
    span: Option<RequestSpan>,
}

impl RunningJob {
    /// Submits a job for a request, and listens to it.
    pub async fn start(
        supervisor: &Supervisor,
        mut asked: ParsedRequest,
        mut span: Option<RequestSpan>,
    ) -> Result<(Self, Listener), JobError> {
        let model = asked.job.model.clone().unwrap_or_else(|| supervisor.model().name.clone());
        span.iter_mut().for_each(|span| span.asks(&model));
        asked.job.trace = span.as_ref().map(RequestSpan::context);
        let id = submit(supervisor, asked).await?;
        let running = Self { supervisor: supervisor.clone(), id, is_free: false, span };
        let listener = supervisor.watch(&running.id).await?;
        Ok((running, listener))
    }

    /// A job that goes on whoever listens.
    pub fn of(supervisor: &Supervisor, id: &str) -> Self {
        Self { supervisor: supervisor.clone(), id: id.to_owned(), is_free: true, span: None }
    }

    /// Not to be cancelled from now on: nobody has to wait for it.
    pub fn let_go(&mut self) {
        self.is_free = true;
    }

    /// It has ended so, and is answered with this status of HTTP.
    pub fn ended(&mut self, status: &JobStatus, answered: StatusCode) {
        self.is_free = true;
        if let Some(span) = &mut self.span {
            span.ended(status);
            span.answered(answered);
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if self.is_free {
            return;
        }
        let (supervisor, id) = (self.supervisor.clone(), self.id.clone());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // One that has just ended needs no end.
                let _ = supervisor.cancel(&id).await;
            });
        }
    }
}

/// Submits a job. An answer whose length the request leaves open gets what room there is.
pub async fn submit(supervisor: &Supervisor, asked: ParsedRequest) -> Result<String, JobError> {
    let again = (!asked.is_limited).then(|| asked.job.clone());
    match (supervisor.submit(asked.job).await, again) {
        (Err(JobError::TooLong { context, query, maximum, .. }), Some(job)) if context + query < maximum => {
            supervisor.submit(JobRequest { max_tokens: maximum - context - query, ..job }).await
        }
        (submitted, _) => submitted,
    }
}

/// Cancels jobs whose connections went with an earlier supervisor.
pub async fn cancel_orphans(supervisor: &Supervisor) {
    for job in open_jobs(supervisor, |job| job.labels.contains_key(bounds::ATTACHED)).await {
        let _ = supervisor.cancel(&job.id).await;
    }
}

/// Jobs that have not ended, of those that are `wanted`.
pub async fn open_jobs(supervisor: &Supervisor, wanted: impl Fn(&JobStatus) -> bool) -> Vec<JobStatus> {
    let (mut open, states) = (Vec::new(), vec![JobState::Pending, JobState::Running]);
    let mut filter = JobFilter { states, after: None, oldest_first: true, limit: LOOKED_AT };
    while let Ok(jobs) = supervisor.jobs(filter.clone()).await {
        let Some(last) = jobs.last() else { break };
        filter.after = Some(last.id.clone());
        open.extend(jobs.into_iter().filter(&wanted));
    }
    open
}

/// Keeps something until a job has ended.
pub async fn hold(supervisor: Supervisor, id: String, what: ResponseGuard) {
    let mut listener = loop {
        match supervisor.watch(&id).await {
            Ok(listener) => break listener,
            Err(JobError::Crowded { .. } | JobError::Busy) => sleep(LATER).await,
            Err(_) => return,
        }
    };
    while let Some(event) = listener.next().await {
        if matches!(event, JobEvent::Finished { .. }) {
            break;
        }
    }
    drop(what);
}

/// The status of HTTP that a job has as a whole answer.
pub fn http_status(status: &JobStatus) -> StatusCode {
    match (status.state, &status.error) {
        (JobState::Failed, Some(error)) => refusal::of_failure(error.clone()).status(),
        (JobState::Cancelled, _) => refusal::cancelled().status(),
        _ => StatusCode::OK,
    }
}

/// The status of a job that succeeded, or why it did not.
pub fn outcome(status: JobStatus) -> Result<JobStatus, Refusal> {
    match (status.state, status.error) {
        (JobState::Failed, Some(error)) => Err(refusal::of_failure(error)),
        (JobState::Cancelled, _) => Err(refusal::cancelled()),
        (_, error) => Ok(JobStatus { error, ..status }),
    }
}
