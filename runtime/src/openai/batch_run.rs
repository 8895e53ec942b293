//! Works a batch off: a job for each line, under the line's own id, so that none is done twice whatever ends in between. A document
//! that several lines ask about is encoded once, as a session.

mod documents;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use asterism_actors::{
    JobError,
    api::{ErrorBody, JobEvent, JobStatus, bounds},
};
use ring::digest;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, Semaphore, watch},
    task::JoinSet,
    time::sleep,
};

use documents::document;

use super::{
    ApiState, Checked, answer,
    ask::Asked,
    chat, completions,
    fields::Fields,
    refusal, response, responses, running,
    store::{self, Answered, BATCH, Batch, Counts, Course, FILE, Kept},
    wire::{Head, Kind},
};

/// Lines that are worked on at once.
const AT_ONCE: usize = 8;
/// Batches whose files are in memory; others wait.
const AT_WORK: usize = 4;
/// How long a full queue or disk is left alone.
const LATER: Duration = Duration::from_secs(1);

/// Batches that have not ended, by their ids.
#[derive(Clone)]
pub struct Open {
    batches: Arc<Mutex<HashMap<String, Way>>>,
    turns: Arc<Semaphore>,
}

/// How far a batch is, and how it is told to end.
struct Way {
    cancel: watch::Sender<bool>,
    counts: Counts,
}

impl Default for Open {
    fn default() -> Self {
        Self { batches: Arc::default(), turns: Arc::new(Semaphore::new(AT_WORK)) }
    }
}

impl Open {
    /// Has a batch end early.
    pub fn cancel(&self, batch: &str) {
        if let Some(way) = self.lock().get(batch) {
            way.cancel.send_replace(true);
        }
    }

    /// Lines that are done, of a batch that has not ended.
    pub fn counts(&self, batch: &str) -> Option<Counts> {
        self.lock().get(batch).map(|way| way.counts)
    }

    /// Sets how far a batch is that goes on.
    fn set(&self, batch: &str, counts: Counts) {
        if let Some(way) = self.lock().get_mut(batch) {
            way.counts = counts;
        }
    }

    fn count(&self, batch: &str, answered: &Answered) {
        if let Some(way) = self.lock().get_mut(batch) {
            way.counts.add(answered.is_good);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Way>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line of an input file.
#[derive(Debug, Deserialize)]
pub struct Line {
    pub custom_id: String,
    pub method: String,
    pub url: String,
    pub body: Fields,
}

/// The lines of a file that have something on them, with their places.
pub fn lines(content: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = content.split(|byte| *byte == b'\n').enumerate();
    lines.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace))
}

/// Goes on with every batch that an earlier process left open.
pub fn resume(state: &ApiState) {
    for batch in state.store.batches().into_iter().filter(Batch::is_open) {
        start(state, batch);
    }
}

/// Works a batch off beside everything else.
pub fn start(state: &ApiState, batch: Batch) {
    let (cancel, cancelled) = watch::channel(batch.status == Course::Cancelling);
    state.open.lock().insert(batch.id.clone(), Way { cancel, counts: Counts::default() });
    let state = state.clone();
    state.runtime.clone().spawn(async move {
        let id = batch.id.clone();
        let mut told = String::new();
        loop {
            let (batch, cancelled) = (batch.clone(), cancelled.clone());
            let work = Work { state: state.clone(), batch, cancelled, documents: HashMap::new() };
            match work.run().await.map_err(|error| error.to_string()) {
                Ok(true) => break drop(state.open.lock().remove(&id)),
                // Said once, not at each try.
                Err(error) if error != told => {
                    tracing::error!(batch = id, error, "a batch waits for its folder");
                    told = error;
                }
                Ok(false) | Err(_) => {}
            }
            sleep(LATER).await;
        }
    });
}

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// A batch at work.
struct Work {
    state: ApiState,
    batch: Batch,
    cancelled: watch::Receiver<bool>,
    /// Documents that several lines ask about, with the sessions that have them.
    documents: HashMap<Digest, (String, OnceCell<bool>)>,
}

/// What became of a line.
enum Outcome {
    Answered(Answered),
    Cancelled,
    /// The supervisor ends; another one goes on.
    Stopped,
}

impl Work {
    /// Does what is left of the batch; whether it is at its end then.
    async fn run(mut self) -> std::io::Result<bool> {
        let (store, open, id) = (self.state.store.clone(), self.state.open.clone(), self.batch.id.clone());
        let mut done = HashSet::new();
        let mut counts = Counts::default();
        for answered in store.answered(&id) {
            counts.add(answered.is_good);
            done.insert(answered.line);
        }
        open.set(&id, counts);
        let mut cancelled = self.cancelled.clone();
        let _turn = tokio::select! {
            turn = open.turns.clone().acquire_owned() => turn.ok(),
            _ = cancelled.wait_for(|cancelled| *cancelled) => None,
        };
        // One that is cancelled while its input cannot be read ends all the same.
        let content =
            store.input(&id).or_else(|error| if *cancelled.borrow() { Ok(Vec::new()) } else { Err(error) })?;
        let mut left: VecDeque<(usize, Vec<u8>)> = lines(&content).map(|(at, line)| (at, line.to_vec())).collect();
        drop(content);
        self.find_documents(&left).await;
        left.retain(|(at, _)| !done.contains(at));
        let mut answers = store.answers(&id)?;
        let (work, mut tasks, mut stopped) = (Arc::new(self), JoinSet::new(), false);
        loop {
            while tasks.len() < AT_ONCE && !stopped {
                let Some((at, line)) = left.pop_front() else { break };
                tasks.spawn(work.clone().line(at, line));
            }
            match tasks.join_next().await {
                Some(Ok(Outcome::Answered(answered))) => {
                    store::append(&mut answers, &answered)?;
                    open.count(&id, &answered);
                }
                Some(Ok(Outcome::Cancelled)) => {}
                Some(Ok(Outcome::Stopped) | Err(_)) => stopped = true,
                None => break,
            }
        }
        if stopped {
            return Ok(false);
        }
        answers.sync_all()?;
        work.drop_sessions().await;
        work.finish().map(|()| true)
    }

    async fn asked(&self, body: Fields) -> Checked<Asked> {
        match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => chat::asked(&self.state, body).await,
            "/v1/completions" => completions::asked(&self.state, body).await,
            _ => responses::asked(&self.state, body).await,
        }
    }

    async fn line(self: Arc<Self>, at: usize, line: Vec<u8>) -> Outcome {
        let Ok(Line { custom_id, body, .. }) = serde_json::from_slice(&line) else { return Outcome::Cancelled };
        let told = match self.asked(body).await {
            Ok(asked) => self.answer(at, asked).await,
            Err(refused) => Some(Err(refused)),
        };
        let digits = store::digits(BATCH, &self.batch.id).unwrap_or_default();
        let (id, request) = (format!("batch_req_{digits}-{at}"), self.job_id(at));
        let (is_good, status, body) = match told {
            None if *self.cancelled.borrow() => return Outcome::Cancelled,
            None => return Outcome::Stopped,
            Some(Ok(status)) => (true, 200, self.worded(&status)),
            Some(Err(refusal)) => (false, refusal.status().as_u16(), json!(refusal.envelope(None))),
        };
        let response = json!({ "status_code": status, "request_id": request, "body": body });
        let answer = json!({ "id": id, "custom_id": custom_id, "response": response, "error": null });
        Outcome::Answered(Answered { line: at, is_good, answer })
    }

    fn job_id(&self, at: usize) -> String {
        format!("batch-{}-{at}", store::digits(BATCH, &self.batch.id).unwrap_or_default())
    }

    fn worded(&self, status: &JobStatus) -> Value {
        let head = |kind| Head::new(kind, &status.id, status.created_at, self.state.supervisor.model()).whole(status);
        match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => head(Kind::Chat),
            "/v1/completions" => head(Kind::Text),
            _ => response::object(status),
        }
    }

    /// How the job of a line ends; none where it does not end here.
    async fn answer(&self, at: usize, mut asked: Asked) -> Option<Checked<JobStatus>> {
        asked.job.labels.remove(bounds::ATTACHED);
        asked.job.labels.insert(bounds::BATCH.into(), self.batch.id.clone());
        asked.job.id = Some(self.job_id(at));
        if let Some((name, made)) = document(&asked.job).and_then(|digest| self.documents.get(&digest))
            && *made.get_or_init(|| self.keep(name, &asked.job)).await
        {
            (asked.job.context, asked.job.method, asked.job.session) = (None, None, Some(name.clone()));
        }
        let id = loop {
            if *self.cancelled.borrow() {
                return None;
            }
            match running::submit(&self.state.supervisor, asked.clone()).await {
                Ok(id) => break id,
                // Its seed was drawn again, or its document went another way: it is this line's all the same.
                Err(JobError::IdTaken { id }) => break id,
                Err(JobError::Stopping) => return None,
                Err(error) if may_pass(&error) => sleep(LATER).await,
                Err(error) => return Some(Err(refusal::of_job(error, "body"))),
            }
        };
        self.ended(&id).await
    }

    async fn ended(&self, id: &str) -> Option<Checked<JobStatus>> {
        let supervisor = &self.state.supervisor;
        let mut listener = loop {
            match supervisor.watch(id).await {
                Ok(listener) => break listener,
                Err(JobError::Crowded { .. }) => sleep(LATER).await,
                Err(_) => return None,
            }
        };
        let mut cancelled = self.cancelled.clone();
        let mut asked_to_end = false;
        loop {
            tokio::select! {
                event = listener.next() => match event? {
                    JobEvent::Finished { .. } if asked_to_end => return None,
                    JobEvent::Finished { status } => return Some(answer::outcome(*status)),
                    _ => {}
                },
                is_wanted = async { cancelled.wait_for(|cancelled| *cancelled).await.is_ok() }, if !asked_to_end => {
                    asked_to_end = true;
                    if is_wanted {
                        let _ = supervisor.cancel(id).await;
                    }
                }
            }
        }
    }

    /// Writes the files of a batch that is at its end.
    fn finish(&self) -> std::io::Result<()> {
        let mut batch = self.batch.clone();
        let store = &self.state.store;
        let (good, bad): (Vec<_>, Vec<_>) =
            store.answered(&self.batch.id).into_iter().partition(|answered| answered.is_good);
        let now = answer::unix_time();
        let write = |answered: &[Answered], kind: &str| -> std::io::Result<Option<String>> {
            if answered.is_empty() {
                return Ok(None);
            }
            let content: String = answered.iter().map(|answered| format!("{}\n", answered.answer)).collect();
            // The same at each try, so that one that the disk ended leaves no file that nobody knows.
            let id = store::derived(FILE, &self.batch.id, kind);
            let kept = Kept {
                id: id.clone(),
                owner: self.batch.owner.clone(),
                filename: format!("{}_{kind}.jsonl", self.batch.id),
                purpose: "batch_output".into(),
                bytes: content.len(),
                created_at: now,
            };
            store.put_file(&kept, content.as_bytes()).map(|()| Some(id))
        };
        (batch.output_file_id, batch.error_file_id) = (write(&good, "output")?, write(&bad, "error")?);
        batch.counts = Counts { good: good.len(), bad: bad.len() };
        let whole = good.len() + bad.len() == batch.total;
        batch.status = if whole { Course::Completed } else { Course::Cancelled };
        batch.ended_at = Some(now);
        store.put_batch(&batch)?;
        store.remove_work(&batch.id)
    }
}

/// Whether a refusal is for now alone.
fn may_pass(error: &JobError) -> bool {
    let ErrorBody { code, .. } = error.body();
    ["overloaded", "not_ready", "self_test_failed", "disk_full", "session_replaced"].contains(&code.as_str())
}
