//! `job submit`: from arguments to requests, and from their events to text on standard output.

use std::{path::PathBuf, time::Duration};

use asterism_actors::api::{JobRequest, JobStatus, Prompt};
use asterism_models::{EMBEDDED_NAME, QuerySeparator, Sampling};
use asterism_plan::MethodConfig;
use clap::Args;

use super::{
    input::{self, JobQuestion},
    watch::{Interrupt, cut, follow, outcome, times},
};
use crate::{
    cli::{
        commands::jobs::{
            arguments::{MethodArgs, PlacementArgs, label},
            plan::Planner,
        },
        output,
    },
    client::{Client, Following},
    cluster::size::{Tokens, grouped, seconds},
    error::{CliError, Exit},
    eval,
    globals::{Format, Globals},
};

/// `asterism job submit`
#[derive(Args, Debug)]
pub struct SubmitArgs {
    /// Document, or - for standard input; several are joined
    #[arg(long, value_name = "FILE")]
    pub context: Vec<String>,
    /// Session to ask, instead of a document
    #[arg(long, value_name = "NAME", conflicts_with_all = ["context", "input", "method", "block_size", "anchor_size", "allow_idle_hosts", "cache_salt", "dry_run"])]
    pub session: Option<String>,
    /// Model that answers, of several [default: the session's or the cluster's first]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Question, or - for standard input
    #[arg(long, value_name = "TEXT")]
    pub query: Option<String>,
    /// Questions, one JSON object a line with input_context and input_query
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["context", "query", "id"])]
    pub input: Option<PathBuf>,
    /// Text between document and question, '' for none [default: the session's or the cluster's; of --input: the line's, or none]
    #[arg(long, value_name = "TEXT")]
    pub query_separator: Option<QuerySeparator>,
    /// Attention
    #[command(flatten)]
    pub method: MethodArgs,
    /// Hosts
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Tokens
    #[command(flatten)]
    pub generation: GenerationArgs,
    /// Waiting
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Idempotency key: the same id a second time is the same job
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Label, shown by `job list`
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Share nothing of the context with jobs of another salt, or of none
    #[arg(long, value_name = "TEXT")]
    pub cache_salt: Option<String>,
    /// Take a block size that leaves context hosts without a block
    #[arg(long)]
    pub allow_idle_hosts: bool,
    /// Print what the plan costs each host, and submit nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// How long an answer is waited for.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// Print the id and return
    #[arg(long)]
    pub no_wait: bool,
    /// Cancel the job on Ctrl-C instead of leaving it to go on
    #[arg(long, conflicts_with = "no_wait")]
    pub cancel_on_interrupt: bool,
    /// Seconds after which the job fails
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
pub struct GenerationArgs {
    /// Most tokens of the answer
    #[arg(long, value_name = "N", default_value = "128")]
    pub max_tokens: Tokens,
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Draw from the likeliest tokens with this probability in sum
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// End the answer before this text; several may be given
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// Submits, and waits unless told not to.
pub fn run(globals: &Globals, args: &SubmitArgs) -> Result<Exit, CliError> {
    let requests = requests(args)?;
    if args.dry_run {
        return dry_run(globals, requests);
    }
    let asked_freely = requests.iter().any(is_free);
    let client = Client::find(globals)?;
    if args.wait.no_wait {
        for request in requests {
            let following = Following::submit(&client, request, |text| globals.note(text))?;
            output::print(&format!("{}\n", following.id()))?;
        }
        return Ok(Exit::Success);
    }
    let interrupt = Interrupt::listen(&client, args.wait.cancel_on_interrupt);
    let mut statuses = Vec::new();
    for request in requests {
        let following = Following::submit(&client, request, |text| globals.note(text))?;
        interrupt.following(following.id());
        let status = follow(following, globals, |text| shown(globals, text))?;
        if interrupt.caught() {
            return Ok(Exit::Interrupted);
        }
        show(globals, &status)?;
        statuses.push(status);
    }
    match (globals.format, &args.input, &statuses[..]) {
        (Format::Json, None, [status]) => output::print_json(status, globals.format)?,
        (Format::Json, ..) => output::print_json(&statuses, globals.format)?,
        _ => {}
    }
    if asked_freely && statuses.iter().any(|status| status.model == EMBEDDED_NAME) {
        globals.note(format_args!(
            "note: {EMBEDDED_NAME} knows the questions of its benchmark tasks only, such as \"What is the special magic number for \
             KEY?\"; any other wants a model of your own: [model] path in cluster.toml"
        ));
    }
    statuses.iter().map(outcome).find(Result::is_err).unwrap_or(Ok(Exit::Success))
}

/// Prints an answer as it comes, where it is for people.
fn shown(globals: &Globals, text: &str) -> Result<(), CliError> {
    match globals.format {
        Format::Table => output::print_piece(text),
        Format::Json | Format::Jsonl => Ok(()),
    }
}

/// Whether a request asks in words that no task of `eval` has.
fn is_free(request: &JobRequest) -> bool {
    matches!(&request.query, Prompt::Text(query) if !eval::is_task_question(query))
}

/// Follows a job that was submitted before, as one that is submitted.
pub fn watch(globals: &Globals, id: &str) -> Result<Exit, CliError> {
    let client = Client::find(globals)?;
    let interrupt = Interrupt::listen(&client, false);
    let following = Following::of(&client, id, |text| globals.note(text))?;
    interrupt.following(id);
    let status = follow(following, globals, |text| shown(globals, text))?;
    if interrupt.caught() {
        return Ok(Exit::Interrupted);
    }
    show(globals, &status)?;
    if globals.format == Format::Json {
        output::print_json(&status, globals.format)?;
    }
    outcome(&status)
}

fn requests(args: &SubmitArgs) -> Result<Vec<JobRequest>, CliError> {
    let questions = match (&args.session, &args.input, &args.query) {
        (Some(_), _, Some(query)) => {
            let asked = JobRequest::new(None, input::read_query(query, input::QUERY_OPTION)?.into());
            return Ok(vec![request(args, &None, asked)]);
        }
        (Some(name), _, None) => {
            return Err(CliError::usage("a session is asked a question")
                .hint(format!("asterism job submit --session {name} --query TEXT")));
        }
        (None, Some(path), _) => input::of_lines(path)?,
        (None, None, query) => vec![input::of_arguments(&args.context, query.as_deref())?],
    };
    let method = args.method.resolve()?;
    let asked = |JobQuestion { context, query, query_separator }| {
        let asked = JobRequest::new(Some(context.into()), query.into());
        request(args, &method, JobRequest { query_separator, ..asked })
    };
    Ok(questions.into_iter().map(asked).collect())
}

/// `asked` with what the arguments say about how it is answered.
fn request(args: &SubmitArgs, method: &Option<MethodConfig>, asked: JobRequest) -> JobRequest {
    let generation = &args.generation;
    JobRequest {
        id: args.id.clone(),
        session: args.session.clone(),
        model: args.model_name.clone(),
        method: method.clone(),
        allow_idle_hosts: args.allow_idle_hosts,
        max_tokens: generation.max_tokens.0,
        sampling: Sampling {
            temperature: generation.temperature,
            top_p: generation.top_p,
            seed: generation.seed,
            ..Sampling::default()
        },
        stop: generation.stop.clone(),
        placement: args.placement.policy(),
        timeout_s: args.wait.timeout.map(|timeout| timeout.as_secs_f64()),
        labels: args.labels.iter().cloned().collect(),
        cache_salt: args.cache_salt.clone(),
        query_separator: args.query_separator.clone().or(asked.query_separator.clone()),
        ..asked
    }
}

fn show(globals: &Globals, status: &JobStatus) -> Result<(), CliError> {
    match globals.format {
        Format::Table if !status.text.is_empty() => output::print("\n")?,
        Format::Jsonl => output::print_json(status, globals.format)?,
        Format::Table | Format::Json => {}
    }
    let anew = match status.refreshed_tokens {
        0 => String::new(),
        tokens => format!(", {} anew", grouped(tokens)),
    };
    globals.note(format_args!(
        "job {}: {} of {} + {} tokens{}, {} generated; {}",
        status.id,
        status.method,
        grouped(status.context_tokens),
        grouped(status.query_tokens),
        anew,
        grouped(status.generated_tokens),
        times(status),
    ));
    cut(status).into_iter().for_each(|words| globals.note(words));
    Ok(())
}

fn dry_run(globals: &Globals, requests: Vec<JobRequest>) -> Result<Exit, CliError> {
    let planner = Planner::of(globals, requests.first().and_then(|request| request.model.as_deref()))?;
    requests.into_iter().try_for_each(|request| planner.show(globals, request))?;
    globals.note("nothing was submitted");
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: Option<&str>, block: Option<usize>, anchor: Option<usize>) -> MethodArgs {
        MethodArgs { method: name.map(str::to_owned), block_size: block.map(Tokens), anchor_size: anchor.map(Tokens) }
    }

    #[test]
    fn a_method_and_its_sizes() {
        assert_eq!(method(None, None, None).resolve().unwrap(), None);
        let star = method(Some("star"), Some(4096), Some(64)).resolve().unwrap().unwrap();
        assert_eq!(serde_json::to_string(&star).unwrap(), r#"{"star":{"block_tokens":4096,"anchor_tokens":64}}"#);
        let wrong = [
            method(Some("comet"), None, None),
            method(Some("dense"), Some(4096), None),
            method(Some("star"), Some(4), None),
            method(None, Some(4), None),
            method(Some("star"), Some(1024), Some(2048)),
        ];
        let errors = wrong.map(|args| args.resolve().unwrap_err().message).join("\n");
        insta::assert_snapshot!(errors);
    }
}
