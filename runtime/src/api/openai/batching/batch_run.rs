//! Works a batch off: a job for each line, under the line's own id, so that none is done twice whatever ends in between. A document
//! that several lines ask about is encoded once, as a session.

mod answers;
mod documents;
mod line;
mod lines;
pub(crate) mod work;

use std::{
    collections::{HashMap, VecDeque},
    io::Write,
    sync::Arc,
};

use asterism_actors::{
    JobError,
    api::{JobEvent, JobStatus, bounds},
    capacity::CapacityShare,
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::files;
pub use crate::api::openai::store::open::Open;
use crate::api::{
    http::{
        body::{intake::unmarked, weight},
        error::{Refusal, parser_words},
    },
    openai::{
        ApiState, Checked,
        answers::{
            answer, response, running,
            wire::{Head, RequestKind},
        },
        chat, completions, refusal,
        requests::{ask::ParsedRequest, fields::Fields, shape::AnswerShape},
        responses,
        store::{self, BATCH_PREFIX, Batch, BatchState, FILE_PREFIX, StoredFile, record::ResponseSettings},
    },
};
use answers::BatchAnswers;
use documents::document;
pub use line::BatchLine;
pub use lines::{LinePlace, Lines};
use work::{BatchWork, LATER, may_pass};

/// Lines that are worked on at once.
const LINES_AT_ONCE: usize = 8;
/// Most lines of a batch.
pub const MOST_LINES: usize = 50_000;

/// Goes on with every batch that an earlier process left open.
pub fn resume(state: &ApiState) {
    for batch in state.store.open_batches().iter().filter_map(|id| state.store.batch(id)) {
        start(state, batch);
    }
}

/// Works a batch off beside everything else.
pub fn start(state: &ApiState, batch: Batch) {
    let cancelled = state.open.insert(&batch.id, batch.status == BatchState::Cancelling);
    let state = state.clone();
    state.runtime.clone().spawn(async move {
        let id = batch.id.clone();
        let mut reported = String::new();
        loop {
            let (batch, cancelled) = (batch.clone(), cancelled.clone());
            match BatchWork::new(&state, batch, cancelled).run().await.map_err(|error| error.to_string()) {
                Ok(true) => break state.open.remove(&id),
                // Said once, not at each try.
                Err(error) if error != reported => {
                    tracing::error!(batch = id, error, "a batch waits for its folder");
                    reported = error;
                }
                Ok(false) | Err(_) => {}
            }
            sleep(LATER).await;
        }
    });
}

/// How a line's job ended, and what is told of its answer.
type Worded = (Checked<JobStatus>, AnswerShape);

/// What became of a line.
enum LineOutcome {
    Answered {
        line: usize,
        is_good: bool,
        answer: Value,
    },
    Cancelled,
    /// The supervisor ends, and another one goes on, or the disk gives nothing now.
    Stopped,
}

impl BatchWork {
    fn new(state: &ApiState, batch: Batch, cancelled: watch::Receiver<bool>) -> Self {
        // No key has a name with a space: what batches hold is apart from what their keys' requests hold.
        let holder = Some(format!("batches of {}", batch.owner.as_deref().unwrap_or_default()).into());
        Self { state: state.clone(), batch, cancelled, holder, lines: Lines::none(), documents: HashMap::new() }
    }

    /// Does what is left of the batch; whether it is at its end then.
    async fn run(mut self) -> std::io::Result<bool> {
        let (store, open, id) = (self.state.store.clone(), self.state.open.clone(), self.batch.id.clone());
        let mut answers = BatchAnswers::read(store.answers(&id)?)?;
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
        let mut left: VecDeque<LinePlace> = self.lines.places.clone().into();
        left.retain(|place| !answers.has(place.line));
        let (work, mut tasks, mut stopped) = (Arc::new(self), JoinSet::new(), false);
        loop {
            while tasks.len() < LINES_AT_ONCE && !stopped {
                let Some(place) = left.pop_front() else { break };
                tasks.spawn(work.clone().line(place));
            }
            match tasks.join_next().await {
                Some(Ok(LineOutcome::Answered { line, is_good, answer })) => {
                    work.keep_answer(&mut answers, (line, is_good), &answer)?;
                    open.set(&id, answers.counts());
                }
                Some(Ok(LineOutcome::Cancelled)) => {}
                Some(Ok(LineOutcome::Stopped) | Err(_)) => stopped = true,
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
        answers: &mut BatchAnswers,
        (line, is_good): (usize, bool),
        answer: &Value,
    ) -> std::io::Result<()> {
        let json = serde_json::to_vec(answer)?;
        match self.state.store.grow(&self.batch.id, json.len() as u64) {
            Ok(()) => answers.append((line, is_good), &json),
            Err(full) => {
                let refused = Err(files::full(&full));
                let (_, answer) = self.worded(line, answer["custom_id"].clone(), (refused, AnswerShape::default()));
                answers.append((line, false), &serde_json::to_vec(&answer)?)
            }
        }
    }

    /// The request of a line, once there is room for it, and its share of that.
    async fn read(&self, place: LinePlace) -> Checked<(BatchLine, CapacityShare)> {
        let (intake, unread) = (&self.state.intake, weight::unread(place.bytes));
        let gone = |error: std::io::Error| refusal::of_disk(&error);
        let structure = {
            let _share = intake.awaited(&self.holder, unread).await;
            intake.structure(&self.lines.read(place).map_err(gone)?)?
        };
        // All at once: lines that had some of what they take each would wait for each other.
        let mut share = intake.awaited(&self.holder, unread + structure).await;
        let line = serde_json::from_slice(unmarked(&self.lines.read(place).map_err(gone)?));
        share.shrink(unread);
        line.map(|line| (line, share))
            .map_err(|error| Refusal::invalid("body", format!("the line is no request: {}", parser_words(&error))))
    }

    async fn asked(&self, body: Fields) -> Checked<ParsedRequest> {
        let asked = match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => chat::parse_chat(&self.state, body).await?,
            "/v1/completions" => completions::parse_completion(&self.state, body).await?,
            _ => responses::parse_response(&self.state, body, (self.batch.owner.as_ref(), &self.holder)).await?,
        };
        match (asked.choices, asked.more.len()) {
            (1, 0) => Ok(asked),
            (1, _) => Err(refusal::unsupported("prompt", "expected one prompt on a line of a batch")),
            _ => Err(refusal::unsupported("n", "expected 1 on a line of a batch")),
        }
    }

    async fn line(self: Arc<Self>, place: LinePlace) -> LineOutcome {
        let (at, mut shape) = (place.line, AnswerShape::default());
        let (id, reported) = match self.read(place).await {
            Ok((BatchLine { custom_id, body, .. }, share)) => match self.asked(body).await {
                Ok(asked) => {
                    shape = asked.shape.clone();
                    (custom_id, self.answer(at, asked, share).await)
                }
                Err(refused) => (custom_id, Some(Err(refused))),
            },
            Err(refused) if refused.code() == "disk_full" => return LineOutcome::Stopped,
            Err(refused) => (String::new(), Some(Err(refused))),
        };
        match reported {
            None if *self.cancelled.borrow() => LineOutcome::Cancelled,
            None => LineOutcome::Stopped,
            Some(reported) => {
                let (is_good, answer) = self.worded(at, id.into(), (reported, shape));
                LineOutcome::Answered { line: at, is_good, answer }
            }
        }
    }

    /// The answer to a line as its client reads it, and whether it is one.
    fn worded(&self, at: usize, custom_id: Value, (reported, shape): Worded) -> (bool, Value) {
        let digits = store::digits(BATCH_PREFIX, &self.batch.id).unwrap_or_default();
        let (id, request) = (format!("batch_req_{digits}-{at}"), self.job_id(at));
        let (is_good, status, body) = match reported {
            Ok(status) => (true, 200, self.object(&status, shape)),
            Err(refusal) => (false, refusal.status().as_u16(), json!(refusal.envelope(None))),
        };
        let response = json!({ "status_code": status, "request_id": request, "body": body });
        (is_good, json!({ "id": id, "custom_id": custom_id, "response": response, "error": null }))
    }

    fn job_id(&self, at: usize) -> String {
        format!("batch-{}-{at}", store::digits(BATCH_PREFIX, &self.batch.id).unwrap_or_default())
    }

    fn object(&self, status: &JobStatus, shape: AnswerShape) -> Value {
        let model = self.state.model_that_answers(status);
        let new = |kind| Head::new(kind, &status.id, status.created_at, &model);
        match self.batch.endpoint.as_str() {
            "/v1/chat/completions" => new(RequestKind::Chat).of_choice(0, shape).whole(status),
            "/v1/completions" => new(RequestKind::Text).of_choice(0, shape).whole(status),
            _ => {
                let mut settings = ResponseSettings::default();
                if let Some(tools) = &shape.tools {
                    (settings.tools, settings.tool_choice) = (tools.flat(), tools.flat_choice());
                }
                response::object((status, &settings), &model)
            }
        }
    }

    /// How the job of a line ends; none where it does not end here. `share`: what its texts hold until it is taken.
    async fn answer(&self, at: usize, mut asked: ParsedRequest, share: CapacityShare) -> Option<Checked<JobStatus>> {
        asked.job.labels.remove(bounds::ATTACHED);
        asked.job.labels.insert(bounds::BATCH.into(), self.batch.id.clone());
        asked.job.labels.extend(self.batch.owner.clone().map(|name| (bounds::KEY.to_owned(), name)));
        asked.job.id = Some(self.job_id(at));
        let mut whole = (None, None);
        if let Some((name, made)) = document(&asked.job).and_then(|digest| self.documents.get(&digest))
            && *made.get_or_init(|| self.keep(name, &asked.job)).await
        {
            whole = (asked.job.context.take(), asked.job.method.take());
            asked.job.session = Some(name.clone());
        }
        let id = loop {
            if *self.cancelled.borrow() {
                return None;
            }
            match running::submit(&self.state.supervisor, asked.clone()).await {
                // Its seed was drawn again, or its document went another way: it is this line's all the same.
                Ok(id) | Err(JobError::IdTaken { id }) => break id,
                Err(JobError::Stopping) => return None,
                Err(JobError::RotatedOtherwise { .. }) if asked.job.session.is_some() => {
                    (asked.job.context, asked.job.method) = std::mem::take(&mut whole);
                    asked.job.session = None;
                }
                Err(error) if may_pass(&error) => sleep(LATER).await,
                Err(error) => return Some(Err(refusal::of_request(error, ("body", asked.form_field)))),
            }
        };
        drop((asked, whole, share));
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
                    JobEvent::Finished { status } => return Some(crate::api::openai::answers::running::outcome(*status)),
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
    fn finish(&self, answers: &BatchAnswers) -> std::io::Result<()> {
        let (mut batch, counts, now) = (self.batch.clone(), answers.counts(), answer::unix_time());
        let store = &self.state.store;
        let write = |good: bool, kind: &str| -> std::io::Result<Option<String>> {
            if (if good { counts.good } else { counts.bad }) == 0 {
                return Ok(None);
            }
            // The same at each try, so that one that the disk ended leaves no file that nobody knows.
            let id = store::derived(FILE_PREFIX, &self.batch.id, kind);
            let kept = StoredFile {
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
        batch.status =
            if counts.good + counts.bad == batch.total { BatchState::Completed } else { BatchState::Cancelled };
        batch.ended_at = Some(now);
        store.put_batch(&batch)?;
        store.remove_work(&batch.id)
    }
}
