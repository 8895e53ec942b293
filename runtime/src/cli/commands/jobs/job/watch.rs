//! A job followed to its end: progress on standard error, tokens to whoever wants them. Ctrl-C leaves the job running.

use std::sync::{
    Arc, Mutex, Once, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use asterism_actors::api::{FinishReason, JobEvent, JobState, JobStatus};

use crate::{
    cli::progress::Progress,
    client::{Client, Following},
    cluster::size::count,
    error::{CliError, Exit},
    globals::{Globals, printable},
};

/// Follows a job to its end; `token` is called with each piece of the answer.
pub fn follow(
    following: Following<'_>,
    globals: &Globals,
    mut token: impl FnMut(&str) -> Result<(), CliError>,
) -> Result<JobStatus, CliError> {
    let mut progress = Progress::new(globals);
    let mut heard = 0;
    let id = following.id().to_owned();
    let mut token = |text: &str| {
        let goes_on = || format!("job {id} goes on; `asterism job result {id}` waits for it");
        token(text).map_err(|error| error.hint(goes_on()))
    };
    for event in following {
        match event.inspect_err(|_| progress.clear())? {
            JobEvent::Phase { phase } => progress.phase(phase),
            JobEvent::Waiting { waiting } => progress.waiting(waiting.as_ref()),
            JobEvent::Progress { hosts } => progress.hosts(&hosts),
            JobEvent::Token { text, .. } => {
                heard += text.len();
                token(&text)?;
            }
            JobEvent::Recovery { recovery } => progress.recovery(&recovery),
            JobEvent::Finished { status } => {
                progress.clear();
                // A job that had ended before, and text held back until its end, come with the status alone.
                status.text.get(heard..).filter(|rest| !rest.is_empty()).map(&mut token).transpose()?;
                return Ok(*status);
            }
        }
    }
    progress.clear();
    Err(CliError::unreachable(format!("the events of job {id} ended before it did"))
        .hint("`asterism status` shows whether the supervisor still runs"))
}

/// A finished job as a command's outcome.
pub fn outcome(status: &JobStatus) -> Result<Exit, CliError> {
    let failed = |code: &str, message: String| Err(CliError::of_code(code, message).hint(hint(status, code)));
    match (status.state, &status.error) {
        (JobState::Succeeded, _) => Ok(Exit::Success),
        (JobState::Cancelled, _) => failed("cancelled", format!("job {} was cancelled", status.id)),
        (_, Some(error)) => {
            failed(&error.code, format!("job {} failed with {}: {}", status.id, error.code, error.message))
        }
        (_, None) => failed("internal", format!("job {} ended without an answer", status.id)),
    }
}

fn hint(status: &JobStatus, code: &str) -> String {
    match code {
        "host_lost" => {
            "`asterism status` shows the hosts, and why they are not there; submit it again once they are".into()
        }
        "timeout" => "submit it again with a longer --timeout, or another --method".into(),
        "cancelled" => "submit it again with another --id".into(),
        _ => format!("`asterism job status {}` shows what it did", status.id),
    }
}

/// Ctrl-C while jobs are followed: says that the job goes on, or cancels it, and ends the process with exit 130.
#[derive(Clone, Default)]
pub struct Interrupt {
    following: Arc<Mutex<Option<String>>>,
    caught: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on Ctrl-C is ours; `cancel`: the job does not go on.
    pub fn listen(client: &Client, cancel: bool) -> Self {
        let interrupt = Self::default();
        let (client, heard) = (client.clone(), interrupt.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if runtime.is_ok_and(|runtime| runtime.block_on(tokio::signal::ctrl_c()).is_ok()) {
                heard.caught.store(true, Ordering::SeqCst);
                let id = heard.following.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match id {
                    Some(id) if cancel => {
                        eprintln!("\ncancelling job {id}");
                        if let Err(error) = client.cancel(&id) {
                            eprintln!("error: {}", printable(&error.to_string()));
                        }
                    }
                    Some(id) => eprintln!(
                        "\njob {id} goes on; `asterism job result {id}` waits for it, `asterism job cancel {id}` ends it"
                    ),
                    None => eprintln!("\ninterrupted"),
                }
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        interrupt
    }

    /// Whether Ctrl-C came: the process is about to end with exit 130.
    pub fn caught(&self) -> bool {
        self.caught.load(Ordering::SeqCst)
    }

    /// Names the job that is followed.
    pub fn following(&self, id: &str) {
        *self.following.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.to_owned());
    }
}

/// What Ctrl-C leaves, in words.
static LEFT: Mutex<String> = Mutex::new(String::new());

/// Ctrl-C from now on ends the process with exit 130, and says what goes on without it.
pub fn leaves(what: &str) {
    static LISTENS: Once = Once::new();
    *LEFT.lock().unwrap_or_else(PoisonError::into_inner) = printable(what).into_owned();
    LISTENS.call_once(|| drop(std::thread::spawn(report_what_goes_on)));
}

fn report_what_goes_on() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if runtime.is_ok_and(|runtime| runtime.block_on(tokio::signal::ctrl_c()).is_ok()) {
        eprintln!("\n{}", LEFT.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::exit(Exit::Interrupted as i32);
    }
}

/// That an answer would have gone on, if it would.
pub fn cut(status: &JobStatus) -> Option<String> {
    let after = count(status.generated_tokens, "token");
    let words = format!("the answer was cut after {after}: a larger --max-tokens lets it go on");
    (status.finish_reason == Some(FinishReason::Length)).then_some(words)
}

/// Seconds by phase on one line.
pub fn times(status: &JobStatus) -> String {
    let time = &status.timings;
    format!(
        "{:.2} s: queued {:.2}, encoding {:.2}, query {:.2}, decoding {:.2}",
        time.total_s, time.queue_s, time.encode_s, time.query_s, time.decode_s
    )
}
