//! Clients: one a job, which submits it, and again under the same id when the supervisor comes back, and checks every token
//! that it is told; and one a session.

use std::{sync::Arc, time::Duration};

use asterism_actors::{
    JobError,
    api::{AppendRequest, JobEvent, JobState, JobStatus, Prompt, SessionRequest},
    supervisor::{Recovery, Supervisor},
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    cluster::Cluster,
    model,
    scenario::{self, JobSpec},
};

const AGAIN: Duration = Duration::from_millis(200);

/// What came of a request to a supervisor.
enum Asked {
    Again,
    Over,
    Wrong(String),
}

/// Creates a session, however often it takes, in as many parts as its scenario says.
pub async fn make_session(cluster: Arc<Cluster>, session: usize) {
    let whole = cluster.scenario.sessions[session].clone();
    let ids = model::ids(&whole.context).to_vec();
    let cut = cluster.scenario.cuts[session];
    let first = Prompt::Tokens(ids[..cut.unwrap_or(ids.len())].to_vec());
    let request = SessionRequest { context: first, ..whole };
    let mut made = false;
    loop {
        if let Some((supervisor, life)) = cluster.supervisor() {
            let done = match (made, cut) {
                (false, _) => supervisor.create_session(request.clone()).await.map(|_| cut.is_none()),
                (true, None) => Ok(true),
                (true, Some(cut)) => grow(&supervisor, &request.name, &ids, cut).await,
            };
            match done {
                Ok(true) => return cluster.session_made(session),
                Ok(false) => made = true,
                Err(error) if error.code() == "session_exists" => made = true,
                Err(error) if made && error.code() == "session_busy" => {}
                Err(error) => match judged(&cluster, life, &error) {
                    Asked::Again => {}
                    // Questions hear of it too.
                    Asked::Over => return cluster.session_made(session),
                    Asked::Wrong(_) => return cluster.fail(format!("session {session} was refused: {error}")),
                },
            }
        }
        sleep(AGAIN).await;
    }
}

/// Appends the next part of a session unless one is being appended. Whether it has all of them.
async fn grow(supervisor: &Supervisor, name: &str, ids: &[u32], cut: usize) -> Result<bool, JobError> {
    let status = supervisor.session(name).await?;
    let middle = scenario::middle(cut, ids.len());
    let next = match status.context_tokens {
        tokens if tokens == ids.len() => return Ok(true),
        tokens if tokens == cut => cut..middle,
        _ => middle..ids.len(),
    };
    if status.appending.is_none() {
        let request = AppendRequest { context: Some(Prompt::Tokens(ids[next].to_vec())), job: None };
        supervisor.append_session(name, request).await?;
    }
    Ok(false)
}

/// What a refusal means: a supervisor that has ended since is asked again when it is back.
fn judged(cluster: &Cluster, life: u64, error: &JobError) -> Asked {
    let gone = cluster.supervisor().is_none_or(|(_, now)| now != life);
    match error.code() {
        _ if gone => Asked::Again,
        "overloaded" | "stopping" => Asked::Again,
        "session_failed" if cluster.scenario.config.recovery == Recovery::Fail => Asked::Over,
        _ => Asked::Wrong(error.to_string()),
    }
}

/// Asks until there is an answer.
pub async fn ask(cluster: Arc<Cluster>, spec: JobSpec) {
    let id = spec.request.id.clone().expect("every job has one");
    sleep(spec.at).await;
    if let Some(session) = spec.session {
        cluster.wait_until(|cluster| cluster.has_session(session)).await;
    }
    let mut cancel = Cancel { at: spec.cancel.map(|after| Instant::now() + after), asked: false };
    loop {
        if let Some((supervisor, life)) = cluster.supervisor() {
            let asked = match submit(&cluster, &supervisor, &spec, &mut cancel).await {
                Ok(Some(())) => Asked::Over,
                Ok(None) => Asked::Again,
                Err(Wrong::Answer(cause)) => Asked::Wrong(cause),
                Err(Wrong::Refused(error)) => judged(&cluster, life, &error),
            };
            match asked {
                Asked::Again => {}
                Asked::Over => {
                    cluster.phase(&id, None);
                    return;
                }
                Asked::Wrong(cause) => return cluster.fail(format!("{id}: {cause}")),
            }
        }
        sleep(AGAIN).await;
    }
}

struct Cancel {
    at: Option<Instant>,
    asked: bool,
}

enum Wrong {
    Refused(JobError),
    Answer(String),
}

impl From<JobError> for Wrong {
    fn from(error: JobError) -> Self {
        Self::Refused(error)
    }
}

/// Submits and listens; none when the supervisor ends before the job.
async fn submit(
    cluster: &Cluster,
    supervisor: &Supervisor,
    spec: &JobSpec,
    cancel: &mut Cancel,
) -> Result<Option<()>, Wrong> {
    let id = supervisor.submit(spec.request.clone()).await?;
    cluster.note(|| format!("{id} is taken"));
    let mut events = supervisor.watch(&id).await?;
    let mut seen = Vec::new();
    loop {
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            () = sleep_until(cancel.at.unwrap_or_else(Instant::now)), if cancel.at.is_some() => {
                (cancel.at, cancel.asked) = (None, true);
                match supervisor.cancel(&id).await {
                    Err(error) if error.code() != "job_ended" => cluster.note(|| format!("{id} is not cancelled: {error}")),
                    _ => cluster.note(|| format!("{id} is cancelled")),
                }
                continue;
            }
        };
        match event {
            None => return Ok(None),
            Some(JobEvent::Phase { phase }) => {
                cluster.note(|| format!("{id} {phase:?}"));
                cluster.phase(&id, Some(phase));
            }
            Some(JobEvent::Token { id: token, .. }) => {
                cluster.note(|| format!("{id} token {} is {token}", seen.len()));
                if spec.expected.get(seen.len()) != Some(&token) {
                    let expected = &spec.expected;
                    return Err(Wrong::Answer(format!("after {seen:?} it got {token}, expected {expected:?}")));
                }
                seen.push(token);
            }
            Some(JobEvent::Finished { status }) => {
                cluster.note(|| format!("{id} {:?} {:?}", status.state, status.error));
                return check_end(cluster, spec, &status, (&seen, cancel.asked)).map(Some).map_err(Wrong::Answer);
            }
            Some(event @ (JobEvent::Recovery { .. } | JobEvent::Waiting { .. })) => {
                cluster.note(|| format!("{id} {event:?}"));
            }
            Some(JobEvent::Progress { .. }) => {}
        }
    }
}

fn check_end(
    cluster: &Cluster,
    spec: &JobSpec,
    status: &JobStatus,
    (seen, cancelled): (&[u32], bool),
) -> Result<(), String> {
    let fail = cluster.scenario.config.recovery == Recovery::Fail;
    let code = status.error.as_ref().map(|error| error.code.as_str());
    match status.state {
        JobState::Succeeded if status.tokens != spec.expected => {
            Err(format!("answered {:?}, expected {:?}", status.tokens, spec.expected))
        }
        JobState::Succeeded if !seen.is_empty() && seen != status.tokens => {
            Err(format!("its client saw {seen:?} of {:?}", status.tokens))
        }
        JobState::Succeeded => Ok(()),
        JobState::Cancelled if cancelled => Ok(()),
        JobState::Failed if fail && matches!(code, Some("host_lost" | "session_failed")) => Ok(()),
        state => Err(format!("ended {state:?}: {:?}", status.error)),
    }
}
