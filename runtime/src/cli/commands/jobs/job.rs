//! `job submit|list|status|watch|cancel|result`: what is asked of a running cluster, and how its answers are shown.

mod input;
mod submit;
pub mod watch;

use std::time::{SystemTime, UNIX_EPOCH};

use asterism_actors::api::{FinishReason, JobState, JobStatus, RecoveryStatus};
use clap::{Args, Subcommand};

use crate::{
    cli::{
        output::{self, Table},
        progress,
    },
    client::{Client, Following},
    cluster::size::{count, grouped, span},
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};
pub use input::{read_contexts, read_query};
pub use submit::{GenerationArgs, SubmitArgs, WaitArgs};
use watch::{cut, times};
pub use watch::{follow, outcome};

/// `asterism job`
#[derive(Debug, Subcommand)]
pub enum JobVerb {
    /// Ask a question about a document; waits for the answer and shows it as it comes
    Submit(Box<SubmitArgs>),
    /// Show jobs, newest first
    List(ListArgs),
    /// Show one job
    Status(JobId),
    /// Follow a job to its end: what it waits for, how far it is, its answer as it comes
    Watch(JobId),
    /// Cancel a job
    Cancel(JobId),
    /// Print a job's answer; waits for it
    Result(JobId),
}

/// A job by its id.
#[derive(Args, Debug)]
pub struct JobId {
    /// Id of the job
    pub id: String,
}

/// Which jobs to show.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only those in this state; may be given again [default: any]
    #[arg(long, value_name = "STATE", value_parser = job_state)]
    pub state: Vec<JobState>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
}

fn job_state(name: &str) -> Result<JobState, String> {
    serde_json::from_value(name.to_uppercase().into())
        .map_err(|_| "expected pending, running, succeeded, failed or cancelled".into())
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: JobVerb) -> Result<Exit, CliError> {
    logging::client(globals);
    match verb {
        JobVerb::Submit(args) => submit::run(globals, &args),
        JobVerb::List(ListArgs { state, limit }) => {
            let (client, most) = (Client::find(globals)?, usize::try_from(limit).unwrap_or(usize::MAX));
            let jobs = progress::answered(globals, &client, |client| client.jobs(&state, most))?;
            output::print_rows(&jobs, globals.format, table)?;
            globals.note(match jobs.first() {
                Some(job) => format!("next: asterism job status {}", job.id),
                None => "next: asterism job submit --context FILE --query TEXT".into(),
            });
            Ok(Exit::Success)
        }
        JobVerb::Status(JobId { id }) => {
            let status = progress::answered(globals, &Client::find(globals)?, |client| client.job(&id))?;
            show(globals, &status)?;
            globals.note(match status.phase {
                Some(_) => format!("next: asterism job result {id} waits for it"),
                None => format!("next: asterism job result {id} prints its answer"),
            });
            Ok(Exit::Success)
        }
        JobVerb::Cancel(JobId { id }) => {
            show(globals, &Client::find(globals)?.cancel(&id)?)?;
            globals.note("next: asterism job list");
            Ok(Exit::Success)
        }
        JobVerb::Watch(JobId { id }) => submit::watch(globals, &id),
        JobVerb::Result(JobId { id }) => result(globals, &id),
    }
}

fn result(globals: &Globals, id: &str) -> Result<Exit, CliError> {
    let client = Client::find(globals)?;
    let status = follow(Following::of(&client, id, |text| globals.note(text))?, globals, |_| Ok(()))?;
    match globals.format {
        Format::Table if status.text.is_empty() => {}
        Format::Table => output::print(&(status.text.clone() + "\n"))?,
        format => output::print_json(&status, format)?,
    }
    cut(&status).into_iter().for_each(|words| globals.note(words));
    outcome(&status)
}

fn show(globals: &Globals, status: &JobStatus) -> Result<(), CliError> {
    if globals.format != Format::Table {
        return output::print_json(status, globals.format);
    }
    let ended = match status.finish_reason {
        Some(FinishReason::Length) => ", its most: the answer was cut there",
        _ => "",
    };
    let mut lines = vec![
        ("id", status.id.clone()),
        ("state", state(status)),
        ("age", age(status)),
        ("method", status.method.clone()),
        ("model", status.model.clone()),
        ("context", count(status.context_tokens, "token")),
        ("query", count(status.query_tokens, "token")),
        ("generated", count(status.generated_tokens, "token") + ended),
        ("time", times(status)),
    ];
    if status.reused_tokens > 0 {
        lines.push(("reused", format!("{} of the context, which hosts held", count(status.reused_tokens, "token"))));
    }
    lines.extend(status.waiting.iter().map(|waiting| ("now", waiting.to_string())));
    lines.extend(status.session.iter().map(|session| ("session", session.clone())));
    lines.extend(status.method_reason.iter().map(|reason| ("because", reason.clone())));
    let pairs = |sparsity: f64| format!("{:.0}% of dense attention's pairs", 100.0 * (1.0 - sparsity));
    lines.extend(status.attention_sparsity.map(|sparsity| ("attention", pairs(sparsity))));
    if status.mixed_numerics {
        lines.push((
            "numerics",
            "mixed: hosts of different kernels worked on it, so another run may answer otherwise".into(),
        ));
    }
    lines.extend(status.recoveries.iter().map(|recovery| ("recovered", recovered(recovery))));
    lines.extend(status.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    lines.extend(status.error.iter().map(|error| ("error", format!("{} ({})", error.message, error.code))));
    if !status.text.is_empty() {
        lines.push(("answer", status.text.trim().to_owned()));
    }
    output::print_pairs(&lines)
}

fn recovered(recovery: &RecoveryStatus) -> String {
    let RecoveryStatus { host, reason, silent_s, shards, recovered_s, .. } = recovery;
    let phase = output::lower(&recovery.phase);
    let outcome = recovered_s.map_or("not yet".into(), |seconds| format!("after {seconds:.2} s"));
    format!("{host} lost while {phase} ({reason}, silent for {silent_s:.1} s), {}, {outcome}", count(*shards, "shard"))
}

fn table(jobs: &[JobStatus]) -> Table {
    let mut table = Table::new(["JOB", "STATE", "AGE", "METHOD", "CONTEXT", "GENERATED", "SECONDS", "LABELS"]);
    for job in jobs {
        let labels: Vec<_> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            job.id.clone(),
            state(job),
            age(job),
            job.method.clone(),
            grouped(job.context_tokens),
            grouped(job.generated_tokens),
            format!("{:.2}", job.timings.total_s),
            labels.join(","),
        ]);
    }
    table
}

/// How long ago it was submitted, by the clock here.
fn age(job: &JobStatus) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    span(now.saturating_sub(job.created_at) as f64)
}

fn state(job: &JobStatus) -> String {
    let state = match job.state {
        JobState::Pending => "PENDING",
        JobState::Running => "RUNNING",
        JobState::Succeeded => "SUCCEEDED",
        JobState::Failed => "FAILED",
        JobState::Cancelled => "CANCELLED",
    };
    match job.phase.filter(|_| job.state == JobState::Running) {
        Some(phase) => format!("{state} ({})", format!("{phase:?}").to_lowercase()),
        None => state.into(),
    }
}
