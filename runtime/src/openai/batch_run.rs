//! Works a batch off: a job for each line, under the line's own id, so that none is done twice whatever ends in between. A document
//! that several lines ask about is encoded once, as a session.

mod answers;
mod line;
mod lines;
mod open;

use std::{
    collections::{HashMap, VecDeque},
    io::Write,
    sync::Arc,
    time::Duration,
};

use asterism_actors::{
    JobError,
    api::{ErrorBody, JobEvent, JobRequest, JobStatus, SessionRequest, bounds},
    room::{Holder, Share},
};
use ring::digest;
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, watch},
    task::JoinSet,
    time::sleep,
};

use super::{
    ApiState, Checked, answer,
    ask::Asked,
    chat, completions,
    fields::Fields,
    files, refusal, response, responses, running,
    store::{self, BATCH, Batch, Course, FILE, Kept},
    wire::{Head, Kind},
};
use crate::http::{error::Refusal, weight};
use answers::Answers;
pub use line::Line;
pub use lines::{Lines, Place};
pub use open::Open;

/// Lines that are worked on at once.
const AT_ONCE: usize = 8;
/// Most lines of a batch.
pub const MOST_LINES: usize = 50_000;
/// How long a full queue or disk is left alone.
const LATER: Duration = Duration::from_secs(1);
/// How long a document of a batch is kept at most.
const KEPT_S: f64 = 7.0 * 86_400.0;

/// Goes on with every batch that an earlier process left open.
pub fn resume(state: &ApiState) {
    for batch in state.store.open_batches().iter().filter_map(|id| state.store.batch(id)) {
        start(state, batch);
    }
}

/// Works a batch off beside everything else.
pub fn start(state: &ApiState, batch: Batch) {
    let cancelled = state.open.insert(&batch.id, batch.status == Course::Cancelling);
    let state = state.clone();
    state.runtime.clone().spawn(async move {
        let id = batch.id.clone();
        let mut told = String::new();
        loop {
            let (batch, cancelled) = (batch.clone(), cancelled.clone());
            match Work::new(&state, batch, cancelled).run().await.map_err(|error| error.to_string()) {
                Ok(true) => break state.open.remove(&id),
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
    /// Who holds what its lines take.
    holder: Holder,
    lines: Lines,
    /// Documents that several lines ask about, with the sessions that have them.
    documents: HashMap<Digest, (String, OnceCell<bool>)>,
}

/// What became of a line.
enum Outcome {
    Answered {
        line: usize,
        is_good: bool,
        answer: Value,
    },
    Cancelled,
    /// The supervisor ends, and another one goes on, or the disk gives nothing now.
    Stopped,
}

impl Work {
    fn new(state: &ApiState, batch: Batch, cancelled: watch::Receiver<bool>) -> Self {
        // No key has a name with a space: what batches hold is apart from what their keys' requests hold.
        let holder = Some(format!("batches of {}", batch.owner.as_deref().unwrap_or_default()).into());
        Self { state: state.clone(), batch, cancelled, holder, lines: Lines::none(), documents: HashMap::new() }
    }

    /// Does what is left of the batch; whether it is at its end then.
    async fn run(mut self) -> std::io::Result<bool> {
        let (store, open, id) = (self.state.store.clone(), self.state.open.clone(), self.batch.id.clone());
        let mut answers = Answers::read(store.answers(&id)?)?;
        store.recount(&id);
        open.set(&id, answers.counts());
        let mut cancelled = self.cancelled.clone();
        let _turn = tokio::select! {
            turn = open.turn(&self.holder) => Some(turn),
            _ = cancelled.wait_for(|cancelled| *cancelled) => None,
        };
        self.lines = match store.input(&id).and_then(|input| Lines::find(input, MOST_LINES)) {
            // One that is cancelled while its input cannot be read ends all the same.
            Err(_) if *cancelled.borrow() => Lines::none(),
            lines => lines?,
        };
        self.find_documents().await;
        let mut left: VecDeque<Place> = self.lines.places.clone().into();
        left.retain(|place| !answers.has(place.line));
        let (work, mut tasks, mut stopped) = (Arc::new(self), JoinSet::new(), false);
        loop {
            while tasks.len() < AT_ONCE && !stopped {
                let Some(place) = left.pop_front() else { break };
                tasks.spawn(work.clone().line(place));
            }
            match tasks.join_next().await {
                Some(Ok(Outcome::Answered { line, is_good, answer })) => {
                    work.keep_answer(&mut answers, (line, is_good), &answer)?;
                    open.set(&id, answers.counts());
                }
                Some(Ok(Outcome::Cancelled)) => {}
                Some(Ok(Outcome::Stopped) | Err(_)) => stopped = true,
                None => break,
            }
        }
        if stopped {
            return Ok(false);
        }
        answers.sync()?;
        work.drop_sessions().await;
        work.finish(&answers).map(|()| true)
    }

    /// Keeps an answer, or where there is no room for it, that there was none.
    fn keep_answer(
        &self,
        answers: &mut Answers,
        (line, is_good): (usize, bool),
        answer: &Value,
    ) -> std::io::Result<()> {
        let json = serde_json::to_vec(answer)?;
        match self.state.store.grow(&self.batch.id, json.len() as u64) {
            Ok(()) => answers.append((line, is_good), &json),
            Err(full) => {
                let refused = Err(files::full(&full));
                let (_, answer) = self.worded(line, answer["custom_id"].clone(), refused);
                answers.append((line, false), &serde_json::to_vec(&answer)?)
            }
        }
    }

    /// Forgets the documents that were kept.
    async fn drop_sessions(&self) {
        let own = self.session("");
        for kept in self.state.supervisor.sessions().await.into_iter().flatten() {
            if kept.name.starts_with(&own) {
                let _ = self.state.supervisor.drop_session(&kept.name).await;
            }
        }
    }

    fn session(&self, document: &str) -> String {
        format!("batch-{}-{document}", store::digits(BATCH, &self.batch.id).unwrap_or_default())
    }

    /// Names the documents that more than one line asks about.
    async fn find_documents(&mut self) {
        let mut seen: HashMap<Digest, usize> = HashMap::new();
        for at in 0..self.lines.places.len() {
            let Ok((Line { body, .. }, _share)) = self.read(self.lines.places[at]).await else { continue };
            let Ok(asked) = self.asked(body).await else { continue };
            if let Some(digest) = document(&asked.job) {
                *seen.entry(digest).or_default() += 1;
            }
        }
        for (digest, _) in seen.into_iter().filter(|(_, lines)| *lines > 1) {
            let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            self.documents.insert(digest, (self.session(&name), OnceCell::new()));
        }
    }

    /// The request of a line, once there is room for it, and its share of that.
    async fn read(&self, place: Place) -> Checked<(Line, Share)> {
        let (intake, unread) = (&self.state.intake, weight::unread(place.bytes));
        let gone = |error: std::io::Error| files::of_disk(&error);
        let structure = {
            let _share = intake.awaited(&self.holder, unread).await;
            intake.structure(&self.lines.read(place).map_err(gone)?)?
        };
        // All at once: lines that had some of what they take each would wait for each other.
        let mut share = intake.awaited(&self.holder, unread + structure).await;
        let line = serde_json::from_slice(&self.lines.read(place).map_err(gone)?);
        share.shrink(unread);
        line.map(|line| (line, share))
            .map_err(|error| Refusal::invalid("body", format!("the line is no request: {error}")))
    }

    async fn asked(&self, body: Fields) -> Checked<Asked> {
        match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => chat::asked(&self.state, body).await,
            "/v1/completions" => completions::asked(&self.state, body).await,
            _ => responses::asked(&self.state, body).await,
        }
    }

    async fn line(self: Arc<Self>, place: Place) -> Outcome {
        let at = place.line;
        let (id, told) = match self.read(place).await {
            Ok((Line { custom_id, body, .. }, share)) => match self.asked(body).await {
                Ok(asked) => (custom_id, self.answer(at, asked, share).await),
                Err(refused) => (custom_id, Some(Err(refused))),
            },
            Err(refused) if refused.code() == "disk_full" => return Outcome::Stopped,
            Err(refused) => (String::new(), Some(Err(refused))),
        };
        match told {
            None if *self.cancelled.borrow() => Outcome::Cancelled,
            None => Outcome::Stopped,
            Some(told) => {
                let (is_good, answer) = self.worded(at, id.into(), told);
                Outcome::Answered { line: at, is_good, answer }
            }
        }
    }

    /// The answer to a line as its client reads it, and whether it is one.
    fn worded(&self, at: usize, custom_id: Value, told: Checked<JobStatus>) -> (bool, Value) {
        let digits = store::digits(BATCH, &self.batch.id).unwrap_or_default();
        let (id, request) = (format!("batch_req_{digits}-{at}"), self.job_id(at));
        let (is_good, status, body) = match told {
            Ok(status) => (true, 200, self.object(&status)),
            Err(refusal) => (false, refusal.status().as_u16(), json!(refusal.envelope(None))),
        };
        let response = json!({ "status_code": status, "request_id": request, "body": body });
        (is_good, json!({ "id": id, "custom_id": custom_id, "response": response, "error": null }))
    }

    fn job_id(&self, at: usize) -> String {
        format!("batch-{}-{at}", store::digits(BATCH, &self.batch.id).unwrap_or_default())
    }

    fn object(&self, status: &JobStatus) -> Value {
        let head = |kind| Head::new(kind, &status.id, status.created_at, self.state.supervisor.model()).whole(status);
        match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => head(Kind::Chat),
            "/v1/completions" => head(Kind::Text),
            _ => response::object(status),
        }
    }

    /// How the job of a line ends; none where it does not end here. `share`: what its texts hold until it is taken.
    async fn answer(&self, at: usize, mut asked: Asked, share: Share) -> Option<Checked<JobStatus>> {
        asked.job.labels.remove(bounds::ATTACHED);
        asked.job.labels.insert(bounds::BATCH.into(), self.batch.id.clone());
        asked.job.labels.extend(self.batch.owner.clone().map(|name| (bounds::KEY.to_owned(), name)));
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
        drop((asked, share));
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

    /// Keeps the document of a job as a session; whether there is one then.
    async fn keep(&self, name: &str, job: &JobRequest) -> bool {
        loop {
            let Some(context) = job.context.clone() else { return false };
            let request = SessionRequest {
                name: name.to_owned(),
                context,
                method: job.method.clone(),
                allow_idle_hosts: job.allow_idle_hosts,
                chat_template: false,
                query_separator: job.query_separator.clone(),
                ttl_s: Some(KEPT_S),
                placement: job.placement.clone(),
            };
            match self.state.supervisor.create_session(request).await {
                Ok(_) | Err(JobError::SessionExists { .. }) => return true,
                Err(error) if may_pass(&error) && !*self.cancelled.borrow() => sleep(LATER).await,
                // Each line brings its document then.
                Err(_) => return false,
            }
        }
    }

    /// Writes the files of a batch that is at its end.
    fn finish(&self, answers: &Answers) -> std::io::Result<()> {
        let mut batch = self.batch.clone();
        let (store, counts, now) = (&self.state.store, answers.counts(), answer::unix_time());
        let write = |good: bool, kind: &str| -> std::io::Result<Option<String>> {
            if (if good { counts.good } else { counts.bad }) == 0 {
                return Ok(None);
            }
            // The same at each try, so that one that the disk ended leaves no file that nobody knows.
            let id = store::derived(FILE, &self.batch.id, kind);
            let kept = Kept {
                id: id.clone(),
                owner: self.batch.owner.clone(),
                filename: format!("{}_{kind}.jsonl", self.batch.id),
                purpose: "batch_output".into(),
                bytes: 0,
                created_at: now,
            };
            store.put_made(kept, |file| {
                let mut file = std::io::BufWriter::new(file);
                answers.copy(good, &mut file).and_then(|()| file.flush())
            })?;
            Ok(Some(id))
        };
        (batch.output_file_id, batch.error_file_id) = (write(true, "output")?, write(false, "error")?);
        batch.counts = counts;
        batch.status = if counts.good + counts.bad == batch.total { Course::Completed } else { Course::Cancelled };
        batch.ended_at = Some(now);
        store.put_batch(&batch)?;
        store.remove_work(&batch.id)
    }
}

/// The digest of a job's document, where it could be a session's.
fn document(job: &JobRequest) -> Option<Digest> {
    let mut context = digest::Context::new(&digest::SHA256);
    let text = job.context.as_ref().filter(|context| context.text().is_some())?;
    context.update(&serde_json::to_vec(&(text, &job.method, &job.query_separator)).ok()?);
    context.finish().as_ref().try_into().ok()
}

/// Whether a refusal is for now alone.
fn may_pass(error: &JobError) -> bool {
    let ErrorBody { code, .. } = error.body();
    ["overloaded", "not_ready", "self_test_failed", "disk_full", "session_replaced"].contains(&code.as_str())
}
