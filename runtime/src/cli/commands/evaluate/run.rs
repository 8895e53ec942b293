//! Every method's answer to every question, some at a time over the cluster. A failed question costs no other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};

use asterism_actors::api::{JobRequest, JobState, JobStatus};
use serde::Serialize;

use super::{
    arguments::AskedAs,
    asked_session::AskedSession,
    common::question,
    contender::{AnswerSource, Contender},
    meter::{LINE_EVERY, Meter},
    questions::Questions,
};
use crate::{
    cli::commands::jobs::job::follow,
    client::{Client, Following},
    error::{CliError, Exit, exit_of_code},
    eval::{Answer, AnswerSeconds, EvalQuestion},
    globals::Globals,
};

/// A question without an answer.
#[derive(Clone, Debug, Serialize, thiserror::Error)]
#[error("failed: {method}, {suite} {task} at {length} tokens, sample {sample}: {code}: {message}")]
pub struct Failure {
    /// The method as typed.
    pub method: String,
    /// The question's suite.
    pub suite: String,
    /// Its task.
    pub task: String,
    /// Tokens asked for.
    pub length: usize,
    /// Which of the task's questions.
    pub sample: u64,
    /// Stable code of the error.
    pub code: String,
    /// What went wrong.
    pub message: String,
}

/// What a run came to.
#[derive(Default)]
pub struct RunOutcome {
    /// In the order of questions, then of methods.
    pub answers: Vec<Answer>,
    /// Questions that failed.
    pub failures: Vec<Failure>,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// Why it ended before its time: a method, a question or the cluster refused.
    pub refused: Option<CliError>,
}

enum Event {
    /// With its place in the run.
    Answered(usize, Box<Answer>),
    Failed(Box<Failure>),
    Refused(CliError),
    Interrupted,
    /// A thread ended.
    Idle,
}

/// A question for a method.
struct EvalWork {
    /// In the order of questions, then of methods.
    place: usize,
    question: Arc<EvalQuestion>,
    contender: usize,
}

/// What to ask whom.
pub struct Asking<'a> {
    /// The cluster.
    pub client: &'a Client,
    /// The model that answers.
    pub model: &'a str,
    /// The same, where it is asked for by name.
    pub named: Option<&'a str>,
    /// Methods that answer.
    pub contenders: &'a [Contender],
    /// What they are asked.
    pub questions: &'a Questions,
    /// Questions in flight at once.
    pub jobs: usize,
    /// Answers of an earlier run, which are not asked for again.
    pub known: Vec<Answer>,
}

/// What the threads of a run share.
struct EvalRun<'a> {
    client: &'a Client,
    /// Who answers, and whether it is asked for by name.
    model: &'a str,
    named: Option<&'a str>,
    globals: Globals,
    quiet: bool,
    /// Whether the supervisor's absence was told.
    noted: AtomicBool,
    contenders: &'a [Contender],
    questions: &'a Questions,
    /// Answers of an earlier run by their place in this one.
    known: BTreeMap<usize, Answer>,
    stop: AtomicBool,
    in_flight: Mutex<Vec<String>>,
}

/// Asks all contenders all questions that are not answered yet; `answered` is called with each answer as it comes.
pub fn answer_all(
    globals: &Globals,
    asking: Asking<'_>,
    mut answered: impl FnMut(&Meter, &Answer) -> Result<(), CliError>,
) -> Result<RunOutcome, CliError> {
    let Asking { client, model, named, contenders, questions, jobs, known } = asking;
    let run = EvalRun {
        client,
        model,
        named,
        globals: Globals { quiet: true, ..globals.clone() },
        quiet: globals.quiet,
        noted: AtomicBool::new(false),
        contenders,
        questions,
        known: placed(known, contenders, questions),
        stop: AtomicBool::new(false),
        in_flight: Mutex::default(),
    };
    let (events, heard) = channel();
    listen(events.clone());
    let (work, todo) = sync_channel::<EvalWork>(jobs);
    let todo = Arc::new(Mutex::new(todo));
    let mut meter = Meter::new(globals, questions.len() * contenders.len() - run.known.len());
    let outcome = thread::scope(|scope| {
        let run = &run;
        let feeder = events.clone();
        scope.spawn(move || run.feed(&work, &feeder));
        for _ in 0..jobs {
            let (todo, events) = (todo.clone(), events.clone());
            scope.spawn(move || run.work(&todo, &events));
        }
        drop(todo);
        let outcome = run.gather(&heard, jobs + 1, &mut meter, &mut answered);
        run.end();
        outcome
    });
    meter.clear();
    outcome
}

/// Answers by their place among the questions and contenders of this run; others are left out.
fn placed(known: Vec<Answer>, contenders: &[Contender], questions: &Questions) -> BTreeMap<usize, Answer> {
    let known: HashMap<_, _> =
        known.into_iter().map(|answer| ((answer.key(), answer.method.clone()), answer)).collect();
    let places = (0..questions.len()).flat_map(|index| {
        let key = questions.key(index);
        contenders
            .iter()
            .enumerate()
            .map(move |(contender, method)| (index * contenders.len() + contender, (key.clone(), method.label.clone())))
    });
    places.filter_map(|(place, key)| Some((place, known.get(&key)?.clone()))).collect()
}

impl EvalRun<'_> {
    /// Makes questions as they are needed.
    fn feed(&self, work: &SyncSender<EvalWork>, events: &Sender<Event>) {
        let places = |index: usize| index * self.contenders.len()..(index + 1) * self.contenders.len();
        for index in 0..self.questions.len() {
            let open: Vec<usize> = places(index).filter(|place| !self.known.contains_key(place)).collect();
            if self.stopped() {
                break;
            }
            if open.is_empty() {
                continue;
            }
            let question = match self.questions.make(index) {
                Ok(question) => Arc::new(question),
                Err(error) => {
                    let _ = events.send(Event::Refused(error));
                    break;
                }
            };
            let sent = open.into_iter().try_for_each(|place| {
                work.send(EvalWork { place, question: question.clone(), contender: place % self.contenders.len() })
            });
            // Nobody works any more.
            if sent.is_err() {
                break;
            }
        }
        let _ = events.send(Event::Idle);
    }

    fn work(&self, todo: &Mutex<Receiver<EvalWork>>, events: &Sender<Event>) {
        while !self.stopped() {
            let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(next) = next else { break };
            if self.stopped() {
                break;
            }
            // The listener ends with the run, not before its threads.
            let _ = events.send(self.ask(&next));
        }
        let _ = events.send(Event::Idle);
    }

    fn ask(&self, work: &EvalWork) -> Event {
        let (asked, contender) = (&*work.question, &self.contenders[work.contender]);
        if let AnswerSource::Oracle(oracle) = &contender.answers {
            return match oracle.answer(asked) {
                Ok((text, seconds)) => {
                    let answer = Answer::new(asked, (self.model, &contender.label), &text, seconds);
                    Event::Answered(work.place, Box::new(answer))
                }
                Err(error) => event_of(error, asked, contender),
            };
        }
        let request = question(&asked.record, contender.config.clone(), asked.max_tokens);
        let request = JobRequest { model: self.named.map(str::to_owned), ..request };
        let (request, session) = match contender.asked_as {
            AskedAs::Jobs => (request, None),
            AskedAs::Sessions => match AskedSession::create(self.client, request, work.place) {
                Ok((request, session)) => (request, Some(session)),
                Err(error) => return event_of(error, asked, contender),
            },
        };
        let following = match Following::submit(self.client, request, |text| self.note(text)) {
            Ok(following) => following,
            Err(error) => return event_of(error, asked, contender),
        };
        let id = following.id().to_owned();
        self.in_flight().push(id.clone());
        if self.stopped() {
            self.cancel(&id);
        }
        let followed = follow(following, &self.globals, |_| Ok(()));
        self.in_flight().retain(|other| *other != id);
        match followed {
            Ok(status) => {
                let cached = status.timings.hosts.iter().any(|host| host.cached_tokens > 0);
                let encode = (!cached).then_some(status.timings.encode_s);
                let encode = session.map_or(encode, AskedSession::encode_s);
                judged(&status, encode, (asked, contender), work.place)
            }
            Err(error) => event_of(error, asked, contender),
        }
    }

    /// One line for an outage, however many questions it meets.
    fn note(&self, text: &str) {
        if !self.quiet && !self.noted.swap(true, Ordering::SeqCst) {
            eprintln!("{text}");
        }
    }

    /// Hears events until every one of `threads` ended.
    fn gather(
        &self,
        heard: &Receiver<Event>,
        mut threads: usize,
        meter: &mut Meter,
        answered: &mut impl FnMut(&Meter, &Answer) -> Result<(), CliError>,
    ) -> Result<RunOutcome, CliError> {
        let mut outcome = RunOutcome::default();
        let mut answers = self.known.clone();
        while threads > 0 {
            let event = match heard.recv_timeout(LINE_EVERY) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    meter.tick();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match event {
                Event::Answered(place, answer) => {
                    answered(meter, &answer)?;
                    meter.step(format!("{} {}", answer.method, answer.task));
                    answers.insert(place, *answer);
                }
                // What was cancelled by us did not fail.
                Event::Failed(_) | Event::Refused(_) if self.stopped() => {}
                Event::Failed(failure) => {
                    meter.print(&failure.to_string());
                    meter.step(failure.method.clone());
                    outcome.failures.push(*failure);
                }
                Event::Refused(error) => {
                    outcome.refused = Some(error);
                    self.end();
                }
                Event::Interrupted => {
                    outcome.interrupted = true;
                    self.end();
                }
                Event::Idle => threads -= 1,
            }
        }
        outcome.answers = answers.into_values().collect();
        Ok(outcome)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn in_flight(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No new question; those in flight are cancelled.
    fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let ids = self.in_flight().clone();
        ids.iter().for_each(|id| self.cancel(id));
    }

    /// A job that ended meanwhile needs no cancelling, and a supervisor that is gone has none.
    fn cancel(&self, id: &str) {
        if let Err(error) = self.client.cancel(id) {
            tracing::debug!(job = id, %error, "not cancelled");
        }
    }
}

/// The first Ctrl-C ends the run, the second the process.
fn listen(events: Sender<Event>) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            eprintln!("\ninterrupted: cancelling the questions in flight; Ctrl-C again leaves them");
            let _ = events.send(Event::Interrupted);
        }
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
}

fn judged(status: &JobStatus, encode: Option<f64>, asked: (&EvalQuestion, &Contender), place: usize) -> Event {
    let ((asked, contender), time) = (asked, &status.timings);
    let seconds = AnswerSeconds { encode, query: time.query_s, decode: time.decode_s, total: time.total_s };
    match (status.state, &status.error) {
        (JobState::Succeeded, _) => Event::Answered(
            place,
            Box::new(Answer::new(asked, (&status.model, &contender.label), &status.text, seconds)),
        ),
        (_, Some(error)) if exit_of_code(&error.code) == Exit::Usage => {
            event_of(CliError::of_code(&error.code, &error.message), asked, contender)
        }
        (_, Some(error)) => failed(asked, contender, &error.code, &error.message),
        (_, None) => failed(asked, contender, "cancelled", "the job was cancelled"),
    }
}

/// A refusal that the next question would meet as well ends the run.
fn event_of(error: CliError, asked: &EvalQuestion, contender: &Contender) -> Event {
    match error.exit {
        Exit::Capacity | Exit::TimedOut | Exit::JobFailed => failed(asked, contender, "not_submitted", &error.message),
        exit => {
            let Contender { label, .. } = contender;
            let (task, length) = (&asked.record.task, asked.length);
            let refused =
                CliError { message: format!("{label}, {task} at {length} tokens: {}", error.message), ..error };
            Event::Refused(match exit {
                Exit::Usage => refused.hint("correct --methods, --lengths or --max-tokens"),
                _ => refused,
            })
        }
    }
}

fn failed(asked: &EvalQuestion, contender: &Contender, code: &str, message: &str) -> Event {
    Event::Failed(Box::new(Failure {
        method: contender.label.clone(),
        suite: asked.suite.clone(),
        task: asked.record.task.clone(),
        length: asked.length,
        sample: asked.sample,
        code: code.to_owned(),
        message: message.to_owned(),
    }))
}
